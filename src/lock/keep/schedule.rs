//! The times at which session locks are renewed.

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

/// The share of its TTL after which a lock is renewed.
const RENEW_SHARE: u32 = 3;
/// The share of the TTL after which a renewal without a quorum is tried again.
const RETRY_SHARE: u32 = 20;
/// The share of a fence's TTL after which nodes are asked to keep it for longer.
pub(in crate::lock) const FENCE_SHARE: u32 = 3;
/// The most renewal calls under way at once that no quorum has answered. With more of them nodes would answer the
/// last ones too late to count, and late calls are repeated.
const AT_ONCE: usize = 8;
/// The share of the default TTL within which renewals that are due go together.
const TOGETHER_SHARE: u32 = 30;

#[cfg(test)]
thread_local! {
    /// A fault that tests plant: locks are renewed when they have nearly run out.
    pub(crate) static LATE: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
    /// A fault that tests plant: a renewal without a quorum is not tried again.
    pub(crate) static NOT_RETRIED: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Returns the time after which a lock is renewed.
pub(in crate::lock) fn renewed_after(ttl: Duration) -> Duration {
    #[cfg(test)]
    if LATE.get() {
        return ttl.mul_f64(0.8);
    }
    ttl / RENEW_SHARE
}

/// Returns the time after which a renewal without a quorum is tried again.
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
    /// Notified when another lock has become the first that is due.
    pub(in crate::lock) changed: Notify,
    /// Notified when a lock node has come back, which may have lost all locks.
    pub(in crate::lock) came_back: Notify,
    /// Notified then too, for the leases.
    pub(in crate::lock) lacks_leases: Notify,
    /// A permit for each renewal call that may be under way.
    pub(in crate::lock) calls: Arc<Semaphore>,
    pub(in crate::lock) gone: CancellationToken,
    next_id: AtomicU64,
    max_hold: Option<Duration>,
    /// The time within which renewals that are due go together.
    pub(in crate::lock) together: Duration,
}

impl Schedule {
    pub(in crate::lock) fn new(config: &LocksConfig) -> Schedule {
        Schedule {
            due: Mutex::default(),
            changed: Notify::new(),
            came_back: Notify::new(),
            lacks_leases: Notify::new(),
            calls: Arc::new(Semaphore::new(AT_ONCE)),
            gone: CancellationToken::new(),
            next_id: AtomicU64::new(0),
            max_hold: config.max_hold,
            together: config.default_ttl / TOGETHER_SHARE,
        }
    }

    /// Returns a number that no other session lock of this proxy has.
    pub(in crate::lock) fn next_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns the end of `locks.max_hold` for a lock granted now.
    pub(in crate::lock) fn hold_until(&self, now: Instant) -> Option<Instant> {
        self.max_hold.map(|hold| now + hold)
    }

    /// Returns the time when the first lock is due.
    pub(in crate::lock) fn first(&self) -> Option<Instant> {
        self.due.lock().first_key_value().map(|((when, _), _)| *when)
    }

    /// Makes all locks due now.
    pub(in crate::lock) fn all_are_due(&self) {
        let now = Instant::now();
        let mut due = self.due.lock();
        for ((_, id), watch) in std::mem::take(&mut *due) {
            watch.times().due = Some(now);
            due.insert((now, id), watch);
        }
    }

    /// Puts locks that could not be renewed now back on the schedule, at `when`, unless their times have changed.
    pub(in crate::lock) fn put_back(&self, watches: &[Arc<Watch>], when: Instant) {
        let mut due = self.due.lock();
        for watch in watches.iter().filter(|watch| watch.is_kept()) {
            if watch.times().due.get_or_insert(when) == &when {
                due.insert((when, watch.id), watch.clone());
            }
        }
    }

    /// Takes the first `most` locks that are due by `until` off the schedule.
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

    /// Puts a lock on the schedule, or changes its time there. If `change` returns `None`, its time stays.
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

    /// Notes that a lock node has come back: locks that it has lost are put back soon.
    pub(in crate::lock) fn came_back(&self) {
        self.came_back.notify_one();
        self.lacks_leases.notify_one();
    }

    /// Notes that the holder asks the nodes for another TTL. A shorter one counts at once: the nodes may apply it
    /// though no answer arrives, and a renewal under way for the longer one says nothing any more.
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
                // Not after the validity's end, so that the holder is told of a loss in time.
                shorter.then(|| (now + renewed_after(ttl)).min(times.valid_until))
            });
        }
    }

    /// Notes that the holder got this TTL, valid until `until`: the lock is renewed for it from now
    /// on.
    pub(in crate::lock) fn granted(&self, watch: &Arc<Watch>, ttl: Duration, until: Instant) {
        let now = Instant::now();
        if watch.is_kept() {
            self.set(watch, |times| {
                (times.ttl, times.valid_until) = (ttl, until);
                watch.losses.check_by(times.valid_until);
                Some((now + renewed_after(ttl)).min(until))
            });
        }
    }

    /// Takes a lock that is being released off the schedule. Returns whether it was kept until now.
    pub(in crate::lock) fn pause(&self, watch: &Watch) -> bool {
        let was_kept = watch.pause();
        let mut due = self.due.lock();
        if let Some(before) = watch.times().due.take() {
            let was_there = due.remove(&(before, watch.id)).is_some();
            debug_assert!(was_there, "a session lock knows its place on the schedule");
        }
        was_kept
    }

    /// Takes a lock that another connection may be releasing off the schedule, and tells its keeper.
    pub(in crate::lock) fn release(&self, watch: &Watch) {
        if self.pause(watch) {
            watch.losses.tell(watch.loss(true));
        }
    }

    /// Ends the watch of a lock that has another keeper from now on, and tells the previous one.
    pub(in crate::lock) fn replace(&self, watch: &Watch) {
        self.release(watch);
        watch.end();
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;
    use crate::{
        card::ClientCard,
        key::{Key, Token},
        lock::{Claim, keep::losses::Losses},
    };

    /// The holder asks for a shorter TTL a moment before the lock's validity ends, and no node answers.
    #[tokio::test(start_paused = true)]
    async fn a_shorter_ttl_that_is_asked_for_does_not_hide_the_end_of_the_validity() {
        let schedule = Schedule::new(&LocksConfig::default());
        let (now, ttl) = (Instant::now(), Duration::from_secs(6));
        let until = now + Duration::from_millis(10);
        let times = Times { ttl, valid_until: until, due: None, fence_until: until, votes: None };
        let losses = Arc::new(Losses::new(Waker::noop().clone(), ClientCard::new(None)));
        let grant = (&Key::from("k"), &Token::from("t"), Claim::new());
        let watch = Arc::new(Watch::new(1, grant, None, times, &losses));
        schedule.set(&watch, |_| Some(until));
        schedule.asked(&watch, Duration::from_secs(3), 0.01);
        assert_eq!(schedule.first(), Some(until));
        schedule.granted(&watch, Duration::from_secs(3), until);
        assert_eq!(schedule.first(), Some(until));
    }
}
