//! A session lock that is kept for a connection: its holder, its stage and its times.

use std::{
    sync::{
        Arc, MutexGuard,
        atomic::{AtomicU8, Ordering},
    },
    time::Duration,
};

use super::losses::{LossKind, Losses, Lost};
use crate::{
    clock::Instant,
    key::{Key, Token},
    lock::{Claim, quorum::Votes},
    sync::Mutex,
};

/// A session lock that is watched over.
pub(in crate::lock) struct Watch {
    pub(in crate::lock) id: u64,
    pub(in crate::lock) key: Key,
    pub(in crate::lock) token: Token,
    pub(in crate::lock) claim: Claim,
    /// The end of `locks.max_hold`, counted from the grant.
    pub(in crate::lock) hold_until: Option<Instant>,
    /// The end of its validity as it was granted.
    pub(in crate::lock) granted_until: Instant,
    stage: AtomicU8,
    times: Mutex<Times>,
    /// The losses of the connection that keeps the lock.
    pub(in crate::lock) losses: Arc<Losses>,
}

/// The times of a session lock.
pub(in crate::lock) struct Times {
    /// The TTL for which the lock is renewed.
    pub(in crate::lock) ttl: Duration,
    /// The end of its validity. No node that has voted for the lock ends it before.
    pub(in crate::lock) valid_until: Instant,
    /// The lock's time on the schedule.
    pub(in crate::lock) due: Option<Instant>,
    /// The time until which nodes surely keep its fence.
    pub(in crate::lock) fence_until: Instant,
    /// The votes of the last renewal, if there was one.
    pub(in crate::lock) votes: Option<Votes>,
}

/// The lock is renewed.
const KEPT: u8 = 0;
/// A release is under way, whose outcome is not known.
const RELEASING: u8 = 1;
/// The lock is released or lost.
const ENDED: u8 = 2;

impl Watch {
    /// Watches over a lock that was just granted.
    pub(in crate::lock) fn new(
        id: u64,
        (key, token, claim): (&Key, &Token, Claim),
        hold_until: Option<Instant>,
        times: Times,
        losses: &Arc<Losses>,
    ) -> Watch {
        Watch {
            id,
            key: key.clone(),
            token: token.clone(),
            claim,
            hold_until,
            granted_until: times.valid_until,
            stage: AtomicU8::new(KEPT),
            times: Mutex::new(times),
            losses: losses.clone(),
        }
    }

    /// Whether the lock is renewed.
    pub(in crate::lock) fn is_kept(&self) -> bool {
        self.stage.load(Ordering::Acquire) == KEPT
    }

    /// Stops renewals, as the lock is being released. Returns whether it was renewed until now.
    pub(in crate::lock) fn pause(&self) -> bool {
        self.leave(RELEASING)
    }

    /// Notes that the lock is lost. Returns whether it was renewed until now.
    pub(in crate::lock) fn lose(&self) -> bool {
        self.leave(ENDED)
    }

    fn leave(&self, stage: u8) -> bool {
        self.stage.compare_exchange(KEPT, stage, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Notes that the lock is released. Returns whether it was neither released nor lost before.
    pub(in crate::lock) fn end(&self) -> bool {
        self.stage.swap(ENDED, Ordering::AcqRel) != ENDED
    }

    /// Limits a validity to the rest of `locks.max_hold`.
    pub(in crate::lock) fn within_hold(&self, validity: Duration) -> Duration {
        let left = self.hold_until.map(|until| until.saturating_duration_since(Instant::now()));
        left.map_or(validity, |left| left.min(validity))
    }

    /// Returns the loss as the connection is told of it. `replaced`: another connection has taken the lock over, or
    /// released it.
    pub(in crate::lock) fn loss(&self, replaced: bool) -> Lost {
        let kind = if self.claim.is_endless() { LossKind::Ended } else { LossKind::Told };
        Lost { key: self.key.clone(), token: self.token.clone(), replaced, kind, id: self.id }
    }

    pub(in crate::lock) fn times(&self) -> MutexGuard<'_, Times> {
        self.times.lock()
    }
}
