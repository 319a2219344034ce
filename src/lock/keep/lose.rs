//! How a session lock is lost.

use std::sync::Arc;

use super::watch::Watch;
use crate::lock::{Release, locks::Locks, metrics::LostReason};

/// Ends a session lock that is lost: its holder is told, and nothing of the lock may stay.
pub(in crate::lock) fn lose(locks: &Arc<Locks>, watch: &Arc<Watch>, reason: LostReason) {
    // Held until it is told: its holder's connection, which may have found out at the
    // same time, must not go on in between (see [`Losses::settle`]).
    let mut lost = watch.losses.lock();
    let was_kept = watch.lose();
    debug_assert!(!watch.is_kept(), "a lost lock is renewed no more");
    if was_kept {
        locks.grants.metrics.lost(reason);
        // Before anybody is told: who locks again at once, by the same token,
        // must not be met by this.
        let other = Release::ask_lost(locks, watch);
        watch.losses.add(&mut lost, watch.loss(false));
        drop(lost);
        // By the same token it may have been granted anew meanwhile.
        if let Some(other) = other {
            other.losses.tell(other.loss(true));
        }
        watch.losses.wake();
    }
}

/// Nothing counts any more that is held here: a quorum of nodes may have ended it.
pub(in crate::lock) fn lose_all(locks: &Arc<Locks>) {
    for watch in locks.grants.holders.forget() {
        lose(locks, &watch, LostReason::Clock);
    }
}
