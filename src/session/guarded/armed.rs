//! The client's own transactions: at MULTI, Redis is made to watch the fences of all
//! locks that the connection holds.

use super::{
    super::{Session, barrier::Barrier, requests::Pass},
    fenced,
    ways::MAX_TRIES,
};
use crate::{
    clock::Instant,
    guard::{
        MAX_LOCKS,
        fences::{Claim, Fences, Standing},
    },
    key::Key,
    resp::name::ReplyMode,
};

/// The fences that Redis watches for the client's transaction.
#[derive(Debug, Default)]
pub(in crate::session) struct Armed {
    claims: Vec<Claim>,
    /// Why not of this lock; without a key, of any.
    refused: Vec<(Option<Key>, Vec<u8>)>,
}

impl Armed {
    pub(super) fn watches(&self, claim: &Claim) -> bool {
        self.claims.iter().any(|other| other.key == claim.key && other.fence == claim.fence)
    }

    pub(super) fn refused(&self, key: &Key) -> Option<Vec<u8>> {
        let of = |(other, _): &&(Option<Key>, Vec<u8>)| other.as_ref().is_none_or(|o| o == key);
        self.refused.iter().find(of).map(|(_, error)| error.clone())
    }
}

impl Session {
    /// Whether a MULTI must first be armed. Else whatever was armed before is not any more.
    pub(in crate::session) fn must_arm(&mut self) -> bool {
        let Some(guards) = &self.shared.guards else { return false };
        let prefix = self.config.locks.prefix.len();
        let needed = |key: &Key| key.get(prefix..).is_some_and(|lock| guards.is_needed(lock));
        let any = self.reply_mode == ReplyMode::On && self.tokens.keys().any(needed);
        if !any {
            self.armed = None;
        }
        any
    }

    /// Has Redis watch the fences of all locks that may be needed.
    pub(in crate::session) fn begin_multi(&mut self, mut barrier: Box<Barrier>) {
        // A second MULTI is refused, and nothing can be watched there.
        if self.state.multi || self.blind_multi {
            return self.pass_held(Pass::Counted);
        }
        self.armed = None;
        let (now, prefix) = (Instant::now(), self.config.locks.prefix.len());
        if self.verify_all(&mut barrier, now) {
            return self.barrier = Some(barrier.goes_on());
        }
        let (Some(guards), Some(guarded)) = (&self.shared.guards, barrier.guarded()) else {
            return;
        };
        let needed = |key: &&Key| key.get(prefix..).is_some_and(|lock| guards.is_needed(lock));
        let keys: Vec<Key> = self.tokens.keys().filter(needed).take(MAX_LOCKS).cloned().collect();
        guarded.claims = keys
            .into_iter()
            .filter_map(|key| {
                let (fence, raised) = self.tokens.claim(&key, now)?;
                Some(Claim { key, fence, raised, wanted_for: Vec::new() })
            })
            .collect();
        if guarded.claims.is_empty() {
            return self.pass_held(Pass::Counted);
        }
        match self.database {
            Some(_) => self.ask_for_fences(barrier, false),
            None => self.ask_for_database(barrier),
        }
    }

    /// The client's transaction can have no guarded write, for this reason.
    pub(super) fn arm_for_nothing(&mut self, error: Vec<u8>) {
        let (claims, refused) = (Vec::new(), vec![(None, error)]);
        self.armed = Some(Box::new(Armed { claims, refused }));
        self.pass_held(Pass::Counted);
    }

    /// The fences are known, and watched.
    pub(super) fn arm(&mut self, mut barrier: Box<Barrier>, fences: &Fences) {
        let Some(guarded) = barrier.guarded() else { return };
        if let Some(error) = fences.error() {
            return self.arm_for_nothing(error.to_vec());
        }
        let standings: Vec<Standing> = fences.standings(&guarded.claims).collect();
        if standings.contains(&Standing::Unknown) && guarded.tries < MAX_TRIES {
            for (claim, standing) in guarded.claims.iter_mut().zip(&standings) {
                claim.raised = *standing != Standing::Unknown;
            }
            return self.ask_whether_held(barrier, false);
        }
        let mut armed = Armed::default();
        for (claim, standing) in guarded.claims.drain(..).zip(standings) {
            match standing {
                Standing::Largest => {
                    self.tokens.raised(&claim.key, claim.fence);
                    armed.claims.push(claim);
                }
                Standing::Fenced(seen) => {
                    self.tokens.forget(&claim.key, claim.fence);
                    let error = fenced(&claim, seen, self.config.locks.prefix.len());
                    armed.refused.push((Some(claim.key), error.into_bytes()));
                }
                Standing::Unknown => {}
            }
        }
        self.armed = Some(Box::new(armed));
        self.pass_held(Pass::Counted);
    }
}
