//! When each session lock is to be renewed.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::sync::{Notify, Semaphore};
use tokio_util::sync::CancellationToken;

use super::watch::{Times, Watch};
use crate::{clock::Instant, config::LocksConfig, lock::quorum::validity, sync::Mutex};

/// A lock is renewed after this share of its TTL.
const RENEW_SHARE: u32 = 3;
/// A renewal that got no quorum is tried again after this share of the TTL.
const RETRY_SHARE: u32 = 20;
/// Nodes are told to keep a fence on after this share of its TTL.
pub(in crate::lock) const FENCE_SHARE: u32 = 3;
/// Calls that renew locks under way at once, as far as no quorum has answered them. With more
/// of them nodes would answer the last ones too late to count, and late ones are repeated.
const AT_ONCE: usize = 8;
/// Renewals that are due within this share of the default TTL go together.
const TOGETHER_SHARE: u32 = 30;

#[cfg(test)]
thread_local! {
    /// A fault that tests plant: locks are renewed when they have nearly run out.
    pub(crate) static LATE: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
    /// Another: a renewal that got no quorum is not tried again.
    pub(crate) static NOT_RETRIED: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// After so long a lock is renewed.
pub(in crate::lock) fn renewed_after(ttl: Duration) -> Duration {
    #[cfg(test)]
    if LATE.get() {
        return ttl.mul_f64(0.8);
    }
    ttl / RENEW_SHARE
}

/// After so long it is tried again.
pub(in crate::lock) fn tried_again_after(ttl: Duration) -> Duration {
    #[cfg(test)]
    if NOT_RETRIED.get() {
        return ttl;
    }
    ttl / RETRY_SHARE
}

/// All session locks of one proxy, by when they are to be renewed.
pub(in crate::lock) struct Schedule {
    due: Mutex<BTreeMap<(Instant, u64), Arc<Watch>>>,
    /// The first of them has changed.
    pub(in crate::lock) changed: Notify,
    /// A lock node has come back, which may have lost all of them.
    pub(in crate::lock) came_back: Notify,
    /// One for each call that may be under way.
    pub(in crate::lock) calls: Arc<Semaphore>,
    pub(in crate::lock) gone: CancellationToken,
    next_id: AtomicU64,
    max_hold: Option<Duration>,
    /// What is due within so long goes together.
    pub(in crate::lock) together: Duration,
}

impl Schedule {
    pub(in crate::lock) fn new(config: &LocksConfig) -> Schedule {
        Schedule {
            due: Mutex::default(),
            changed: Notify::new(),
            came_back: Notify::new(),
            calls: Arc::new(Semaphore::new(AT_ONCE)),
            gone: CancellationToken::new(),
            next_id: AtomicU64::new(0),
            max_hold: config.max_hold,
            together: config.default_ttl / TOGETHER_SHARE,
        }
    }

    /// A number that no other session lock of this proxy has.
    pub(in crate::lock) fn next_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// Until when a lock may be kept that was granted now, by `locks.max_hold`.
    pub(in crate::lock) fn hold_until(&self, now: Instant) -> Option<Instant> {
        self.max_hold.map(|hold| now + hold)
    }

    /// When the first of them is due.
    pub(in crate::lock) fn first(&self) -> Option<Instant> {
        self.due.lock().first_key_value().map(|((when, _), _)| *when)
    }

    /// Has all locks renewed now.
    pub(in crate::lock) fn all_are_due(&self) {
        let now = Instant::now();
        let mut due = self.due.lock();
        for ((_, id), watch) in std::mem::take(&mut *due) {
            watch.times().due = Some(now);
            due.insert((now, id), watch);
        }
    }

    /// Has those renewed later that could not be now, unless their times have changed.
    pub(in crate::lock) fn put_back(&self, watches: &[Arc<Watch>], when: Instant) {
        let mut due = self.due.lock();
        for watch in watches.iter().filter(|watch| watch.is_kept()) {
            if watch.times().due.get_or_insert(when) == &when {
                due.insert((when, watch.id), watch.clone());
            }
        }
    }

    /// Takes off the schedule what is due until then, the first `most` of it.
    pub(in crate::lock) fn take_due(&self, until: Instant, most: usize) -> Vec<Arc<Watch>> {
        let mut due = self.due.lock();
        let mut taken = Vec::new();
        while taken.len() < most
            && let Some(entry) = due.first_entry().filter(|entry| entry.key().0 <= until)
        {
            let ((when, _), watch) = entry.remove_entry();
            let due = watch.times().due.take();
            debug_assert_eq!(due, Some(when), "a session lock knows its place on the schedule");
            taken.push(watch);
        }
        taken
    }

    /// Puts it on the schedule, or moves it there, unless `change` says that it is
    /// to stay where it is.
    pub(in crate::lock) fn set(
        &self,
        watch: &Arc<Watch>,
        change: impl FnOnce(&mut Times) -> Option<Instant>,
    ) {
        let mut due = self.due.lock();
        let mut times = watch.times();
        let Some(when) = change(&mut times) else { return };
        let when = watch.hold_until.map_or(when, |until| when.min(until));
        if let Some(before) = times.due.replace(when) {
            let was_there = due.remove(&(before, watch.id)).is_some();
            debug_assert!(was_there, "a session lock knows its place on the schedule");
        }
        due.insert((when, watch.id), watch.clone());
        let first = due.first_key_value().is_some_and(|((_, id), _)| *id == watch.id);
        drop(times);
        drop(due);
        if first {
            self.changed.notify_one();
        }
    }

    /// A lock node has come back: what it has lost is put back soon.
    pub(in crate::lock) fn came_back(&self) {
        self.came_back.notify_one();
    }

    /// Its holder asks the nodes for another TTL. A shorter one counts at once: the
    /// nodes may have it though nobody hears of it, and a renewal for the longer
    /// one, under way since before, says nothing any more.
    pub(in crate::lock) fn asked(&self, watch: &Arc<Watch>, ttl: Duration, drift_factor: f64) {
        let now = Instant::now();
        if watch.is_kept() {
            self.set(watch, |times| {
                let shorter = ttl < times.ttl;
                if shorter {
                    let until =
                        now + validity(ttl, Duration::ZERO, drift_factor).unwrap_or_default();
                    (times.ttl, times.valid_until) = (ttl, times.valid_until.min(until));
                    watch.losses.check_by(times.valid_until);
                }
                shorter.then(|| now + renewed_after(ttl))
            });
        }
    }

    /// Its holder got that TTL, which is valid until then; it goes on with it.
    pub(in crate::lock) fn granted(&self, watch: &Arc<Watch>, ttl: Duration, until: Instant) {
        let now = Instant::now();
        if watch.is_kept() {
            self.set(watch, |times| {
                (times.ttl, times.valid_until) = (ttl, until);
                watch.losses.check_by(times.valid_until);
                Some(now + renewed_after(ttl))
            });
        }
    }

    /// Takes it off the schedule: it is being released. True: it was kept until now.
    pub(in crate::lock) fn pause(&self, watch: &Watch) -> bool {
        let was_kept = watch.pause();
        let mut due = self.due.lock();
        if let Some(before) = watch.times().due.take() {
            let was_there = due.remove(&(before, watch.id)).is_some();
            debug_assert!(was_there, "a session lock knows its place on the schedule");
        }
        was_kept
    }

    /// The same, where not its keeper may be who releases it: the keeper is told.
    pub(in crate::lock) fn release(&self, watch: &Watch) {
        if self.pause(watch) {
            watch.losses.tell(watch.loss(true));
        }
    }

    /// Another is the lock's keeper from now on: the one before is told.
    pub(in crate::lock) fn replace(&self, watch: &Watch) {
        self.release(watch);
        watch.end();
    }
}
