//! Locks that were taken elsewhere, and under which this connection acts by LOCK.ATTACH.
//!
//! Such a claim lasts as long as the lock nodes have said. Who keeps the lock renews it
//! meanwhile, of which this connection hears nothing. So once the time has run out, the
//! next guarded write, or MULTI, asks the nodes again: one round trip, and only then.

use std::time::Duration;

use super::{
    Session,
    barrier::Barrier,
    guarded::Told,
    lock_command::{FENCE_FORGOTTEN, Held, Tokens},
    metrics::GuardedWrite,
};
use crate::{
    clock::Instant,
    guard::{MAX_LOCKS, Need},
    key::{Key, Token},
    lock::{Attach, Grant, NotAttached},
};

/// What the lock nodes said.
pub(super) struct Verified {
    /// Of the write; a MULTI has none.
    needs: Option<Vec<Need>>,
    locks: Vec<Lock>,
}

/// What they said of one lock.
struct Lock {
    key: Key,
    token: Token,
    held: Result<Option<Grant>, NotAttached>,
}

impl Tokens {
    /// Takes in that the nodes have found the lock held by this token, which they may
    /// have granted to this connection. Gives the fence that counts here.
    pub(super) fn attach(
        &mut self,
        (key, token): (&Key, &Token),
        ttl: Duration,
        grant: Grant,
        now: Instant,
    ) -> u64 {
        let (fence, claim, until) = (grant.fence, grant.claim, grant.until);
        match self.held.get_mut(key).filter(|held| held.token == *token) {
            Some(held) => {
                held.until = until;
                // It never tells too much, but what was known before may have been more.
                if fence > held.fence {
                    (held.fence, held.raised) = (fence, false);
                }
                held.fence
            }
            None => {
                let (token, keep) = (token.clone(), None);
                let (raised, attached) = (false, true);
                let giving_back = false;
                let held =
                    Held { token, claim, ttl, until, fence, raised, keep, attached, giving_back };
                self.insert(key.clone(), held, now);
                fence
            }
        }
    }

    /// They have found that it is not. Of a session lock the watchdog tells.
    pub(super) fn not_held(&mut self, key: &Key, token: &Token) {
        if self.held.get(key).is_some_and(|held| held.token == *token && held.keep.is_none()) {
            self.held.remove(key);
        }
    }

    /// Ends what LOCK.ATTACH began. False: there is nothing of it.
    pub(super) fn detach(&mut self, key: &Key) -> bool {
        let attached = self.is_attached(key);
        attached && self.held.remove(key).is_some()
    }

    /// Whether the connection acts under this lock by LOCK.ATTACH, perhaps no longer.
    fn is_attached(&self, key: &Key) -> bool {
        self.held.get(key).is_some_and(|held| held.attached)
    }

    /// The token with which it did so until its time ran out.
    fn run_out(&self, key: &Key, now: Instant) -> Option<&Token> {
        let held = self.held.get(key).filter(|held| held.attached && held.until <= now)?;
        Some(&held.token)
    }
}

impl Session {
    /// Asks the lock nodes if the connection acts under some of these locks by
    /// LOCK.ATTACH and its time has run out. False: no need to.
    pub(super) fn verify_for(&self, barrier: &mut Barrier, needs: &[Need], now: Instant) -> bool {
        let prefix = self.config.locks.prefix.as_bytes();
        let keys = needs.iter().map(|need| Key::new(prefix, &need.lock));
        self.verify(barrier, keys, now, || Some(needs.to_vec()))
    }

    /// The same, of all locks under which a transaction may write.
    pub(super) fn verify_all(&self, barrier: &mut Barrier, now: Instant) -> bool {
        let prefix = self.config.locks.prefix.len();
        let Some(guards) = &self.shared.guards else { return false };
        let needed = |key: &&Key| key.get(prefix..).is_some_and(|lock| guards.is_needed(lock));
        self.verify(barrier, self.tokens.keys().filter(needed).cloned(), now, || None)
    }

    fn verify(
        &self,
        barrier: &mut Barrier,
        keys: impl Iterator<Item = Key>,
        now: Instant,
        needs: impl FnOnce() -> Option<Vec<Need>>,
    ) -> bool {
        let Some(guarded) = barrier.guarded().filter(|guarded| !guarded.is_verified()) else {
            return false;
        };
        // Asked in one go; who waits for the first waits for all.
        let asked: Vec<(Key, Token, Attach)> = keys
            .filter_map(|key| {
                let token = self.tokens.run_out(&key, now)?.clone();
                let attach = self.shared.engine.attach(key.clone(), token.clone());
                Some((key, token, attach))
            })
            .take(MAX_LOCKS)
            .collect();
        if asked.is_empty() {
            return false;
        }
        let needs = needs();
        guarded.wait_for(async move {
            let mut locks = Vec::with_capacity(asked.len());
            for (key, token, attach) in asked {
                let held = attach.await;
                locks.push(Lock { key, token, held });
            }
            Told::Verified(Verified { needs, locks })
        });
        true
    }

    /// They have answered: goes on with the write, or the MULTI.
    pub(super) fn goes_on_verified(&mut self, barrier: Box<Barrier>, verified: Verified) {
        let mut error = None;
        let now = Instant::now();
        for Lock { key, token, held } in verified.locks {
            match held {
                Ok(Some(grant)) => {
                    let ttl = self.config.locks.default_ttl;
                    self.tokens.attach((&key, &token), ttl, grant, now);
                }
                Ok(None) => self.tokens.not_held(&key, &token),
                Err(NotAttached::NoQuorum(why)) => error = Some(format!("NOQUORUM {why}")),
                Err(NotAttached::FenceForgotten) => error = Some(FENCE_FORGOTTEN.to_owned()),
            }
        }
        match (verified.needs, error) {
            (None, _) => self.begin_multi(barrier),
            (Some(needs), None) => self.begin_write(barrier, &needs),
            (Some(_), Some(error)) => {
                self.refuse_write(barrier, error.into_bytes(), GuardedWrite::Refused);
            }
        }
    }

    /// Whether a write under this lock would pass, as far as can be told without asking.
    pub(super) fn counts_as_held(&self, key: &Key, now: Instant) -> bool {
        self.tokens.claim(key, now).is_some() || self.tokens.is_attached(key)
    }
}
