//! A session lock that is kept for a connection: whose it is, how far it is, and its times.

use std::{
    sync::{
        Arc, MutexGuard,
        atomic::{AtomicU8, Ordering},
    },
    time::Duration,
};

use super::losses::{Losses, Lost};
use crate::{
    clock::Instant,
    key::{Key, Token},
    lock::Claim,
    sync::Mutex,
};

/// A session lock that is watched over.
pub(in crate::lock) struct Watch {
    pub(in crate::lock) id: u64,
    pub(in crate::lock) key: Key,
    pub(in crate::lock) token: Token,
    pub(in crate::lock) claim: Claim,
    /// `locks.max_hold` after its grant.
    pub(in crate::lock) hold_until: Option<Instant>,
    stage: AtomicU8,
    times: Mutex<Times>,
    /// Of the connection that keeps it.
    pub(in crate::lock) losses: Arc<Losses>,
}

/// When what happens to a session lock.
pub(in crate::lock) struct Times {
    /// It is renewed for so long.
    pub(in crate::lock) ttl: Duration,
    /// When validity ends. No node that has voted for the lock ends it before.
    pub(in crate::lock) valid_until: Instant,
    /// Where it stands on the schedule.
    pub(in crate::lock) due: Option<Instant>,
    /// Nodes keep its fence for long enough until then.
    pub(in crate::lock) fence_until: Instant,
}

/// It is renewed.
const KEPT: u8 = 0;
/// A release is under way, whose outcome is not known.
const RELEASING: u8 = 1;
/// It is released or lost.
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
            stage: AtomicU8::new(KEPT),
            times: Mutex::new(times),
            losses: losses.clone(),
        }
    }

    /// Whether it is renewed.
    pub(in crate::lock) fn is_kept(&self) -> bool {
        self.stage.load(Ordering::Acquire) == KEPT
    }

    /// Renews it no more, as it is being released. True: it was renewed until now.
    pub(in crate::lock) fn pause(&self) -> bool {
        self.leave(RELEASING)
    }

    /// Notes that it is lost. True: it was renewed until now.
    pub(in crate::lock) fn lose(&self) -> bool {
        self.leave(ENDED)
    }

    fn leave(&self, stage: u8) -> bool {
        self.stage.compare_exchange(KEPT, stage, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Notes that it is released. True: it was not yet released or lost.
    pub(in crate::lock) fn end(&self) -> bool {
        self.stage.swap(ENDED, Ordering::AcqRel) != ENDED
    }

    /// The end of `locks.max_hold` ends whatever was told before.
    pub(in crate::lock) fn within_hold(&self, validity: Duration) -> Duration {
        let left = self.hold_until.map(|until| until.saturating_duration_since(Instant::now()));
        left.map_or(validity, |left| left.min(validity))
    }

    /// What its connection is told of its loss. `replaced`: another connection has taken it
    /// over, or released it.
    pub(in crate::lock) fn loss(&self, replaced: bool) -> Lost {
        Lost { key: self.key.clone(), token: self.token.clone(), replaced, id: self.id }
    }

    pub(in crate::lock) fn times(&self) -> MutexGuard<'_, Times> {
        self.times.lock()
    }
}
