//! The handle by which a connection keeps a session lock, looks at it and ends it.

use std::{fmt, sync::Arc, time::Duration};

use super::{
    lose::lose,
    losses::{Losses, Lost},
    schedule::{FENCE_SHARE, renewed_after},
    watch::{Times, Watch},
};
use tokio::runtime::Handle;

use crate::{
    clock::Instant,
    key::{Key, Token},
    lock::{Claim, Release, grants::Grants, lock_metrics::LostReason, locks::Locks},
};

/// The size of a batch of releases when a connection with many locks ends: more at once would fill the queues of the
/// lock nodes, and other clients' LOCKs would be refused.
const AT_ONCE: usize = 64;

/// The handle that keeps a session lock. Once it is dropped, the lock is no longer renewed and runs out: its holder
/// may count on it for as long as it was told. [`Keep::give_back`] ends the lock.
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
    /// Keeps a lock that was just granted for `ttl` and is valid until `valid_until`. Its loss goes to `losses`.
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

    /// Releases these locks, or hands them over to the next waiters, as their holder has given them up. Many are
    /// released in batches, one after the other.
    pub(crate) fn give_back(mut keeps: Vec<Keep>) {
        let Some(first) = keeps.first() else { return };
        let giving_back = first.locks.grants.giving_back.clone();
        let runtime = Handle::try_current().ok().filter(|_| keeps.len() > AT_ONCE);
        let Some(runtime) = runtime else {
            keeps.into_iter().for_each(|keep| drop(keep.release()));
            return;
        };
        keeps.iter().for_each(Keep::unlocking);
        runtime.spawn(async move {
            let _turn = giving_back.acquire_owned().await;
            while !keeps.is_empty() {
                let batch = keeps.split_off(keeps.len().saturating_sub(AT_ONCE));
                let releases: Vec<Release> = batch.into_iter().filter_map(Keep::release).collect();
                for release in releases {
                    // Nodes that do not answer release it as soon as they can be reached.
                    let _ = release.await;
                }
            }
        });
    }

    /// Begins to release the lock, unless it was lost.
    fn release(self) -> Option<Release> {
        self.locks.grants.schedule.pause(&self.watch);
        let Watch { key, token, claim, .. } = &*self.watch;
        let ends = self.watch.end();
        ends.then(|| Release::ask(&self.locks, key.clone(), token.clone(), Some(*claim)))
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

    /// Gives the lock up as lost: another holder has had it since.
    pub(crate) fn superseded(&self) {
        lose(&self.locks, &self.watch, LostReason::Replaced);
    }

    /// Returns the time until which the lock is surely held, as far as is known; `None` if it is not held, which the
    /// connection is told like any loss. The watchdog would find out too, but perhaps only after the holder's next
    /// command: if this process has stood still, or if a renewal under way comes too late.
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
