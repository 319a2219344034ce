//! The locks that a connection was granted, keeps, or acts under by LOCK.ATTACH.

use std::{
    collections::VecDeque,
    hash::{BuildHasher, RandomState},
    sync::LazyLock,
    time::Duration,
};

use crate::{
    clock::Instant,
    key::{Key, KeyMap, Token},
    lock::{Claim, Grant, Keep, Lost},
};

/// Tokens remembered on one connection. Those whose TTL has run out make room
/// first; a connection that holds more at once must name its tokens itself.
pub(super) const MAX_TOKENS: usize = 10_000;

/// Locks of which a connection remembers that it was refused or does not have them any more.
const MAX_PAST: usize = 256;

/// A token that this connection was granted or attached to, for UNLOCK and RENEW without one.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) token: Token,
    /// The grant's name on the nodes, where this connection was told it.
    pub(super) claim: Option<Claim>,
    pub(super) ttl: Duration,
    pub(super) until: Instant,
    pub(super) fence: u64,
    /// The data node has been told the fence.
    pub(super) announced: bool,
    /// A session lock: it is renewed no more when this goes.
    pub(super) keep: Option<Keep>,
    /// By LOCK.ATTACH: it was granted elsewhere.
    pub(super) attached: bool,
    /// UNLOCK was sent to the nodes: each releases it as soon as it can be reached.
    pub(super) giving_back: bool,
}

impl Held {
    /// A lock just granted, as held for as long as the client is told, not as the nodes keep it.
    pub(super) fn granted(token: Token, ttl: Duration, grant: &Grant, keep: Option<Keep>) -> Held {
        let Grant { fence, claim, until, .. } = *grant;
        let (announced, attached, giving_back) = (false, false, false);
        Held { token, claim, ttl, until, fence, announced, keep, attached, giving_back }
    }
}

/// The tokens that this connection was granted or attached to, by key.
#[derive(Debug, Default)]
pub(super) struct Tokens {
    pub(super) held: KeyMap<Held>,
    /// Keys and tokens that LOCK was refused: to unlock them is to unlock another's.
    refused: Past,
    /// Keys of which the connection held a lock: to unlock that is no mistake.
    ended: Past,
}

/// The last things of one kind; the oldest goes first.
#[derive(Debug, Default)]
struct Past(VecDeque<u64>);

impl Past {
    fn note(&mut self, number: u64) {
        self.forget(number);
        if self.0.len() >= MAX_PAST {
            self.0.pop_front();
        }
        self.0.push_back(number);
    }

    fn has(&self, number: u64) -> bool {
        self.0.contains(&number)
    }

    fn forget(&mut self, number: u64) {
        // Nearly always it is what was noted last.
        if self.0.back() == Some(&number) {
            self.0.pop_back();
        } else if self.has(number) {
            self.0.retain(|known| *known != number);
        }
    }
}

/// The number of a key with a token. Clients choose both, so they must not be able to make
/// them meet.
fn number_of(key: &Key, token: &[u8]) -> u64 {
    static HASHES: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    HASHES.hash_one((key.number(), token))
}

/// What a connection held of a lock that it was granted again.
#[derive(Debug, Clone, Copy)]
pub(super) struct Before {
    was_session_lock: bool,
    until: Instant,
}

impl Before {
    /// Until when the lease was granted that it was. None: it was a session lock.
    pub(super) fn lease_until(&self) -> Option<Instant> {
        (!self.was_session_lock).then_some(self.until)
    }
}

/// How long a grant is still valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Left {
    /// As long as the connection, as it is a session lock; if it were not renewed, so long.
    Kept(Duration),
    /// So long.
    For(Duration),
}

impl Tokens {
    pub(super) fn insert(&mut self, key: Key, held: Held, now: Instant) {
        self.refused_no_more(&key, &held.token);
        self.ended.forget(key.number());
        if self.has_room(&key, now) {
            self.held.insert(key, held);
        }
    }

    /// Whether the connection holds the lock with another token, and until then at least.
    pub(super) fn outlasts(&self, key: &Key, token: &Token, until: Instant) -> bool {
        self.held.get(key).is_some_and(|held| {
            let longer = held.keep.is_some() || held.until > until;
            held.token != *token && !held.attached && !held.giving_back && longer
        })
    }

    /// This connection's lock is about to be released.
    pub(super) fn gives_back(&mut self, key: &Key, token: &Token) {
        if let Some(held) = self.held.get_mut(key).filter(|held| held.token == *token) {
            held.giving_back = true;
        }
    }

    /// Whether one more can be remembered, or this one anew.
    pub(super) fn has_room(&mut self, key: &Key, now: Instant) -> bool {
        if self.held.len() >= MAX_TOKENS && !self.held.contains_key(key) {
            self.held.retain(|_, held| held.keep.is_some() || held.until > now);
        }
        self.held.len() < MAX_TOKENS || self.held.contains_key(key)
    }

    /// The fence under which this connection holds a lock, and whether the data node
    /// has been told of it. None: it does not hold it.
    pub(super) fn claim(&self, key: &Key, now: Instant) -> Option<(u64, bool)> {
        let held = self.held.get(key)?;
        let holds = held.keep.is_some() || now < held.until;
        holds.then_some((held.fence, held.announced))
    }

    /// The token of the grant with this fence, and what is left of it; none: nothing.
    pub(super) fn left(&self, key: &Key, fence: u64, now: Instant) -> Option<(&Token, Left)> {
        let held = self.held.get(key).filter(|held| held.fence == fence)?;
        if let Some(keep) = &held.keep {
            let until = keep.valid_until(now)?;
            return Some((&held.token, Left::Kept(keep.within_hold(until - now))));
        }
        let left = held.until.saturating_duration_since(now);
        // Clients are told whole milliseconds.
        (left >= Duration::from_millis(1)).then_some((&held.token, Left::For(left)))
    }

    /// The data node has been told this fence.
    pub(super) fn announced(&mut self, key: &Key, fence: u64) {
        if let Some(held) = self.held.get_mut(key).filter(|held| held.fence == fence) {
            held.announced = true;
        }
    }

    /// The lock nodes have raised the fence of the grant that had that one.
    pub(super) fn was_raised(&mut self, key: &Key, before: u64, fence: u64) {
        if let Some(held) = self.held.get_mut(key).filter(|held| held.fence == before) {
            held.fence = fence;
        }
    }

    /// The connection does not hold the lock any more that was granted with this fence.
    pub(super) fn forget(&mut self, key: &Key, fence: u64) {
        if self.held.get(key).is_some_and(|held| held.fence == fence) {
            self.held.remove(key);
            self.ended.note(key.number());
        }
    }

    /// Of all locks that a token is remembered for.
    pub(super) fn keys(&self) -> impl Iterator<Item = &Key> {
        self.held.keys()
    }

    /// Until when all session locks are surely held; those that are not any more are lost.
    #[cold]
    pub(super) fn valid_until(&self) -> Option<Instant> {
        let now = Instant::now();
        self.held.values().filter_map(|held| held.keep.as_ref()?.valid_until(now)).min()
    }

    /// The claim by which this connection was granted a lock with this token.
    pub(super) fn claim_of(&self, key: &Key, token: &Token) -> Option<Claim> {
        self.held.get(key).filter(|held| held.token == *token)?.claim
    }

    /// A lease was renewed, or a session lock beyond what the watchdog does.
    pub(super) fn renewed(&mut self, key: &Key, token: &Token, ttl: Duration, until: Instant) {
        self.refused_no_more(key, token);
        if let Some(held) = self.held.get_mut(key).filter(|held| held.token == *token) {
            (held.ttl, held.until, held.giving_back) = (ttl, until, false);
        }
    }

    /// Whether the connection held the lock once, and does not any more.
    pub(super) fn has_ended(&self, key: &Key) -> bool {
        self.ended.has(key.number())
    }

    /// Forgets the token of `key` if it is this one.
    pub(super) fn remove(&mut self, key: &Key, token: &Token) {
        if self.held.get(key).is_some_and(|held| held.token == *token) {
            self.held.remove(key);
            self.ended.note(key.number());
        }
    }

    /// A LOCK was not granted. Not if the connection holds that lock from before.
    pub(super) fn refused(&mut self, key: &Key, token: &Token) {
        if !self.held.get(key).is_some_and(|held| held.token == *token) {
            self.refused.note(number_of(key, token));
        }
    }

    /// Whether the connection was refused that lock and has not been granted it since.
    pub(super) fn was_refused(&self, key: &Key, token: &Token) -> bool {
        !self.refused.0.is_empty() && self.refused.has(number_of(key, token))
    }

    /// It was granted it, or holds it otherwise.
    fn refused_no_more(&mut self, key: &Key, token: &Token) {
        if !self.refused.0.is_empty() {
            self.refused.forget(number_of(key, token));
        }
    }

    /// A session lock is lost. False: the connection does not keep it any more.
    pub(super) fn lose(&mut self, lost: &Lost) -> bool {
        let kept = |keep: &Keep| keep.is(lost);
        match self.held.get_mut(&lost.key) {
            Some(held) if held.keep.as_ref().is_some_and(kept) => {
                if let Some(keep) = held.keep.take()
                    && lost.replaced
                {
                    keep.was_replaced();
                }
                self.held.remove(&lost.key);
                self.ended.note(lost.key.number());
                true
            }
            _ => false,
        }
    }

    /// What the connection holds of this lock, if it was granted it by that token.
    pub(super) fn before(&self, key: &Key, token: &Token, now: Instant) -> Option<Before> {
        let held = self.held.get(key).filter(|held| held.token == *token && !held.attached)?;
        let was_session_lock = held.keep.is_some();
        let until = held.until;
        (was_session_lock || until > now).then_some(Before { was_session_lock, until })
    }

    /// It was granted again, but the client is told that it was not.
    pub(super) fn restore(&mut self, key: &Key, before: Before) {
        if let Some(held) = self.held.get_mut(key) {
            held.until = held.until.max(before.until);
            if !before.was_session_lock {
                held.keep = None;
            }
        }
    }

    /// The client has ended the connection, or what it was: session locks are released.
    pub(super) fn give_back(&mut self) {
        self.held.retain(|_, held| match held.keep.take() {
            Some(keep) => {
                keep.give_back();
                false
            }
            None => true,
        });
    }
}

/// A lock that this connection has, from now on.
pub(super) struct Granted {
    pub(super) key: Key,
    pub(super) token: Token,
    pub(super) claim: Option<Claim>,
    pub(super) fence: u64,
    /// It was granted elsewhere.
    pub(super) attached: bool,
    /// What this connection held of it before.
    pub(super) again: Option<Before>,
    /// Nobody counts on it yet.
    pub(super) is_new: bool,
}

impl Granted {
    fn new(key: &Key, token: &Token, grant: &Grant, attached: bool) -> Granted {
        let Grant { fence, claim, .. } = *grant;
        let (key, token) = (key.clone(), token.clone());
        Granted { key, token, claim, fence, attached, again: None, is_new: false }
    }

    pub(super) fn here(key: &Key, token: &Token, grant: &Grant, again: Option<Before>) -> Granted {
        let is_new = again.is_none();
        Granted { again, is_new, ..Granted::new(key, token, grant, false) }
    }

    pub(super) fn elsewhere(key: &Key, token: &Token, grant: &Grant) -> Granted {
        Granted::new(key, token, grant, true)
    }
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
        let (fence, until) = (grant.fence, grant.until);
        match self.held.get_mut(key).filter(|held| held.token == *token) {
            Some(held) => {
                held.until = until;
                // It never tells too much, but what was known before may have been more.
                if fence > held.fence {
                    (held.fence, held.announced) = (fence, false);
                }
                held.fence
            }
            None => {
                let held =
                    Held { attached: true, ..Held::granted(token.clone(), ttl, &grant, None) };
                self.insert(key.clone(), held, now);
                fence
            }
        }
    }

    /// Forgets a lock of which the nodes have denied that this token holds it. A session lock
    /// is left to the watchdog.
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
    pub(super) fn is_attached(&self, key: &Key) -> bool {
        self.held.get(key).is_some_and(|held| held.attached)
    }

    /// The token with which it did so until its time ran out.
    pub(super) fn run_out(&self, key: &Key, now: Instant) -> Option<&Token> {
        let held = self.held.get(key).filter(|held| held.attached && held.until <= now)?;
        Some(&held.token)
    }
}
