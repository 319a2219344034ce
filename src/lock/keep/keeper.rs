//! The handle by which a connection keeps a session lock, looks at it and ends it.

use std::{fmt, sync::Arc, time::Duration};

use super::{
    lose::lose,
    losses::{Losses, Lost},
    schedule::{FENCE_SHARE, renewed_after},
    watch::{Times, Watch},
};
use crate::{
    clock::Instant,
    key::{Key, Token},
    lock::{Claim, Release, grants::Grants, locks::Locks, metrics::LostReason},
};

/// Keeps a session lock. Once this is dropped, the lock is renewed no more and runs out: its holder
/// may count on it for as long as it was told. [`Keep::give_back`] ends the lock at once.
pub(crate) struct Keep {
    locks: Arc<Locks>,
    watch: Arc<Watch>,
}

impl fmt::Debug for Keep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Keep({})", self.watch.id)
    }
}

impl Drop for Keep {
    fn drop(&mut self) {
        self.locks.grants.schedule.pause(&self.watch);
        self.watch.end();
        self.locks.grants.metrics.session_locks.decrement(1.0);
    }
}

impl Keep {
    /// Keeps a lock that was just granted for `ttl` and is valid until `valid_until`. `losses` is
    /// told if it is lost.
    pub(in crate::lock) fn new(
        locks: &Arc<Locks>,
        grant: (&Key, &Token, Claim),
        ttl: Duration,
        valid_until: Instant,
        losses: &Arc<Losses>,
    ) -> Keep {
        let now = Instant::now();
        let Grants { holders, schedule, metrics, .. } = &*locks.grants;
        let fence_until = now + locks.grants.nodes().fence_ttl / FENCE_SHARE;
        let times = Times { ttl, valid_until, due: None, fence_until, votes: None };
        let hold_until = schedule.hold_until(now);
        let watch = Watch::new(schedule.next_id(), grant, hold_until, times, losses);
        let watch = Arc::new(watch);
        losses.check_by(valid_until);
        holders.watch(grant.0, grant.2, watch.clone());
        schedule.set(&watch, |_| Some(now + renewed_after(ttl)));
        metrics.session_locks.increment(1.0);
        Keep { locks: locks.clone(), watch }
    }

    /// Releases the lock, or hands it over to the next waiter, as its holder wants it no more.
    pub(crate) fn give_back(self) {
        self.locks.grants.schedule.pause(&self.watch);
        if self.watch.end() {
            let Watch { key, token, claim, .. } = &*self.watch;
            drop(Release::ask(&self.locks, key.clone(), token.clone(), Some(*claim)));
        }
    }

    /// Notes that the holder is about to release the lock, which is no loss.
    pub(crate) fn unlocking(&self) {
        self.locks.grants.schedule.pause(&self.watch);
    }

    /// Whether `lost` is this lock.
    pub(crate) fn is(&self, lost: &Lost) -> bool {
        self.watch.id == lost.id
    }

    /// Limits a validity to the rest of `locks.max_hold`.
    pub(crate) fn within_hold(&self, validity: Duration) -> Duration {
        self.watch.within_hold(validity)
    }

    /// Notes that the holder was told that another connection has taken the lock over or released
    /// it.
    pub(crate) fn was_replaced(self) {
        // A pool releases an adopted lock on whichever connection it has at hand.
        if !self.is_adopted() {
            self.locks.grants.metrics.lost(LostReason::Replaced);
        }
    }

    /// Whether an adopted command took the lock, without a TTL.
    pub(crate) fn is_adopted(&self) -> bool {
        self.watch.claim.is_endless()
    }

    /// Gives the lock up as lost: another has had it since.
    pub(crate) fn superseded(&self) {
        lose(&self.locks, &self.watch, LostReason::Replaced);
    }

    /// The time until which the lock is surely held, as far as is known. Returns `None` if it is
    /// not: the connection is told of that like of any loss. The watchdog would find out too, but
    /// perhaps only after the holder's next command: if this process has stood still, or while a
    /// renewal is under way that comes too late.
    pub(crate) fn valid_until(&self, now: Instant) -> Option<Instant> {
        if !self.watch.is_kept() {
            return None;
        }
        let until = self.watch.times().valid_until;
        if until <= now {
            lose(&self.locks, &self.watch, LostReason::NoQuorum);
            return None;
        }
        Some(until)
    }
}
