//! The locks that are waited for longest, in bounded memory.
//!
//! Space-Saving: A. Metwally, D. Agrawal, A. El Abbadi, "Efficient Computation of Frequent and Top-k Elements in Data
//! Streams", ICDT 2005, with the time that each waiter waited as the weight. There is a fixed number of counters. A
//! lock without one takes over the smallest, and what that has counted becomes the lock's `excess`: the lock may have
//! been waited for less by that much. A lock that has more than one part in [`COUNTERS`] of all the time has a
//! counter for certain.
//!
//! All numbers are halved every [`HALVED_EVERY`], so that locks that were hot make room for those that are hot now.

use std::time::Duration;

use tokio::time::Instant;

use crate::{key::Key, sync::Mutex};

/// Locks counted at once.
const COUNTERS: usize = 128;
/// How often all numbers are halved.
const HALVED_EVERY: Duration = Duration::from_secs(600);

/// The locks that clients of one proxy have waited for.
pub(in crate::lock) struct HotLocks(Mutex<Sketch>);

struct Sketch {
    counters: Vec<WaitedFor>,
    halved_at: Instant,
}

/// How long one lock was waited for, by clients that wait no more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::lock) struct WaitedFor {
    pub(in crate::lock) key: Key,
    /// The sum of all waits.
    pub(in crate::lock) waited: Duration,
    /// The part of `waited` that may have been for other locks.
    pub(in crate::lock) excess: Duration,
    /// The number of waits since the lock got its counter.
    pub(in crate::lock) waits: u64,
    /// The longest of them.
    pub(in crate::lock) longest: Duration,
}

impl Default for HotLocks {
    fn default() -> HotLocks {
        HotLocks(Mutex::new(Sketch { counters: Vec::new(), halved_at: Instant::now() }))
    }
}

impl HotLocks {
    /// Counts a client that has waited for a lock, granted or not.
    pub(in crate::lock) fn count(&self, key: &Key, waited: Duration) {
        let mut sketch = self.0.lock();
        sketch.forget_half(Instant::now());
        let counter = sketch.counter(key);
        counter.waited += waited;
        counter.waits += 1;
        counter.longest = counter.longest.max(waited);
    }

    /// Returns all counters, in no order.
    pub(in crate::lock) fn all(&self) -> Vec<WaitedFor> {
        let mut sketch = self.0.lock();
        sketch.forget_half(Instant::now());
        sketch.counters.clone()
    }
}

impl Sketch {
    /// Returns the lock's counter. A lock without one gets a free counter or, if none is left, takes over that of the
    /// lock waited for least.
    fn counter(&mut self, key: &Key) -> &mut WaitedFor {
        let at = match self.counters.iter().position(|counter| counter.key == *key) {
            Some(at) => at,
            None if self.counters.len() < COUNTERS => {
                self.counters.push(WaitedFor::new(key, Duration::ZERO));
                self.counters.len() - 1
            }
            None => {
                let least = |(_, counter): &(usize, &WaitedFor)| counter.waited;
                let at = self.counters.iter().enumerate().min_by_key(least).map_or(0, |(at, _)| at);
                self.counters[at] = WaitedFor::new(key, self.counters[at].waited);
                at
            }
        };
        &mut self.counters[at]
    }

    /// Halves all numbers as often as is due.
    fn forget_half(&mut self, now: Instant) {
        while !self.counters.is_empty() && now >= self.halved_at + HALVED_EVERY {
            self.halved_at += HALVED_EVERY;
            for counter in &mut self.counters {
                counter.waited /= 2;
                counter.excess /= 2;
                counter.waits /= 2;
                counter.longest /= 2;
            }
            self.counters.retain(|counter| counter.waited >= Duration::from_millis(1));
        }
        if self.counters.is_empty() {
            self.halved_at = now;
        }
    }
}

impl WaitedFor {
    fn new(key: &Key, excess: Duration) -> WaitedFor {
        WaitedFor { key: key.clone(), waited: excess, excess, waits: 0, longest: Duration::ZERO }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn find(hot: &HotLocks, key: &str) -> Option<WaitedFor> {
        hot.all().into_iter().find(|counter| counter.key == Key::from(key))
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_waited_for_longest_is_found_among_any_number_of_locks() {
        let hot = HotLocks::default();
        let mut all = Duration::ZERO;
        for n in 0..10_000_u32 {
            hot.count(&Key::from(&format!("cold {n}")), 3 * MS);
            all += 3 * MS;
            if n % 10 == 0 {
                hot.count(&Key::from("hot"), 20 * MS);
                all += 20 * MS;
            }
        }
        let counters = hot.all();
        assert_eq!(counters.len(), COUNTERS);
        let sum: Duration = counters.iter().map(|counter| counter.waited).sum();
        assert_eq!(sum, all, "nothing is forgotten with a counter that is taken over");
        let first = counters.iter().max_by_key(|counter| counter.waited).unwrap();
        assert_eq!(first.key, Key::from("hot"));
        let (exact, most) = (1000 * 20 * MS, all / 128);
        assert!(first.waited >= exact && first.waited - first.excess <= exact, "{first:?}");
        assert!(counters.iter().all(|counter| counter.excess <= most), "more than one part");
        assert_eq!((first.waits, first.longest), (1000, 20 * MS));
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_hot_once_is_forgotten() {
        let hot = HotLocks::default();
        hot.count(&Key::from("k"), 800 * MS);
        tokio::time::advance(HALVED_EVERY - MS).await;
        assert_eq!(find(&hot, "k").unwrap().waited, 800 * MS);
        tokio::time::advance(MS).await;
        assert_eq!(find(&hot, "k").unwrap().waited, 400 * MS);
        hot.count(&Key::from("k"), 100 * MS);
        tokio::time::advance(2 * HALVED_EVERY).await;
        assert_eq!(find(&hot, "k").unwrap().waited, 125 * MS);
        tokio::time::advance(20 * HALVED_EVERY).await;
        assert_eq!(hot.all(), []);
    }
}
