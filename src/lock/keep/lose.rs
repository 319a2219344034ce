//! How a session lock is lost.

use std::sync::Arc;

use super::{
    losses::{LossKind, Lost},
    watch::Watch,
};
use crate::{
    clock::Instant,
    lock::{Release, audit_trail::GrantEnd, lock_metrics::LostReason, locks::Locks},
};

/// Returns the reason as it is counted, and what the client is to know. If an adopted lock without a TTL belongs to
/// another grant now, or to none, this proxy cannot tell whether it was lost, or was released or given a TTL through
/// another proxy.
fn judged(watch: &Watch, reason: LostReason) -> (LostReason, LossKind) {
    match reason {
        _ if !watch.claim.is_endless() => (reason, LossKind::Told),
        LostReason::NotHeld | LostReason::Replaced => (LostReason::Elsewhere, LossKind::Ended),
        _ => (reason, LossKind::Unknown),
    }
}

/// Whether a lost lock is released. The validity that this proxy knows may not be the longest that was told: the lock's
/// client may have renewed it for longer through another proxy, or before it became a session lock. The lock then ends
/// by its TTL. Nodes that deny the lock may have ended it too early, as one does whose clock jumps; if the others
/// released it now, another client could be granted it within a validity that was told.
fn is_released(watch: &Watch, reason: LostReason) -> bool {
    match reason {
        // No validity that this proxy tells reaches beyond `locks.max_hold`, which counts for those that others tell,
        // too. A grant that was replaced is on no node.
        LostReason::MaxHold | LostReason::Replaced => true,
        _ => watch.claim.is_endless(),
    }
}

/// Ends a lost session lock: tells its holder, and releases it on every node, or leaves it there until its TTL
/// has run out.
pub(in crate::lock) fn lose(locks: &Arc<Locks>, watch: &Arc<Watch>, reason: LostReason) {
    let (reason, kind) = judged(watch, reason);
    // Locked until the loss is added: the holder's connection, which may have found out at the same time, must not go
    // on in between (see [`Losses::settle`]).
    let mut lost = watch.losses.lock();
    let was_kept = watch.lose();
    debug_assert!(!watch.is_kept(), "a lost lock is renewed no more");
    if was_kept {
        // Released before the holder is told: its next LOCK by the same token must not be hit by
        // this release.
        let other = match is_released(watch, reason) {
            true => Release::ask_lost(locks, watch),
            false => Release::leave_lost(locks, watch),
        };
        watch.losses.add(&mut lost, Lost { kind, ..watch.loss(false) });
        drop(lost);
        // Counted once the holder's next command is sure to be refused.
        locks.grants.metrics.lost(reason);
        // Whether to log the loss of an adopted lock without a TTL is for the session to decide.
        if kind == LossKind::Told {
            let (client, votes) = (watch.losses.client(), watch.times().votes);
            locks.grants.audit_trail.lost(&watch.key, (&client.0, &client.1), reason, votes);
        }
        // The lock may have been granted anew to the same token meanwhile, for another keeper.
        if let Some(other) = other {
            other.losses.tell(other.loss(true));
        }
        watch.losses.wake();
    }
}

/// Ends a session lock that an operator takes back: tells its holder, and begins the `release`.
pub(in crate::lock) fn take_back(
    locks: &Arc<Locks>,
    watch: &Arc<Watch>,
    release: impl FnOnce() -> Release,
) -> Release {
    let (reason, kind) = judged(watch, LostReason::Operator);
    let mut lost = watch.losses.lock();
    let was_kept = watch.lose();
    let release = release();
    if was_kept {
        watch.losses.add(&mut lost, Lost { kind, ..watch.loss(false) });
        drop(lost);
        locks.grants.metrics.lost(reason);
        watch.losses.wake();
    }
    release
}

/// Ends all locks of this proxy as lost: a quorum of nodes may have ended them. The holders of session locks are
/// told; the loss of a lease is only noted in the audit trail.
pub(in crate::lock) fn lose_all(locks: &Arc<Locks>) {
    let (watches, leases) = locks.grants.holders.forget(Instant::now());
    locks.grants.ended(leases, GrantEnd::Lost);
    for watch in watches {
        lose(locks, &watch, LostReason::Clock);
    }
}
