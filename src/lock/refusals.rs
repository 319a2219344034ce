//! Locks that the lock nodes have just said are held: clients that poll for them are refused without asking again.
//! Whatever tells a client that such a lock is free, or not its own any more, ends that, so that no client is told
//! "free" and then refused from memory.

use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use crate::{
    clock::Instant,
    key::{Key, KeyMap},
    sync::Mutex,
};

/// The longest time for which an answer of the lock nodes is repeated. Clients of lock libraries poll every 10 to 250
/// ms, and may learn of a release through another proxy that much later.
const FRESH: Duration = Duration::from_millis(250);
/// Most locks that are remembered. Polls for further ones ask the lock nodes.
const MOST: usize = 4096;

/// Counters of what may have freed a lock; locks share them by hash.
const COUNTERS: usize = 256;

/// A lock that others hold, as far as is known.
struct KnownHolder {
    /// Until when it counts as held.
    until: Instant,
    /// From when on one client asks again, before `until`. Otherwise a herd whose clients all find the answer
    /// outdated at once would ask all together: 200 that polled in step asked at every second poll.
    ask_again: Option<Instant>,
}

/// The locks that count as held.
pub(super) struct Refusals {
    all: Mutex<KeyMap<KnownHolder>>,
    /// Counts of what may have freed a lock: an answer that was asked for before such an event says nothing after it.
    releases: [AtomicU32; COUNTERS],
}

impl Default for Refusals {
    fn default() -> Refusals {
        let releases = std::array::from_fn(|_| AtomicU32::new(0));
        Refusals { all: Mutex::default(), releases }
    }
}

impl Refusals {
    fn counter(&self, key: &Key) -> &AtomicU32 {
        &self.releases[key.spread() % COUNTERS]
    }

    /// Returns how often something may have freed this lock, or one that shares its counter.
    pub(super) fn releases(&self, key: &Key) -> u32 {
        self.counter(key).load(Ordering::Acquire)
    }

    /// Notes that a quorum of lock nodes said at `now` that the lock is held, and for how long at
    /// least (`None`: without end).
    pub(super) fn note(&self, key: &Key, remaining: Option<Duration>, now: Instant) {
        let lasts = remaining.map_or(FRESH, |remaining| remaining.min(FRESH));
        let refusal = KnownHolder { until: now + lasts, ask_again: Some(now + lasts / 2) };
        let mut all = self.all.lock();
        if all.len() >= MOST {
            all.retain(|_, refusal| refusal.until > now);
        }
        if all.len() < MOST {
            all.insert(key.clone(), refusal);
        }
    }

    /// Returns whether the lock was held a moment ago, and nothing may have freed it since. Before the answer is
    /// outdated one asker gets `false`, so that it asks the lock nodes in time.
    pub(super) fn take_known_as_held(&self, key: &Key, now: Instant) -> bool {
        let mut all = self.all.lock();
        let Some(refusal) = all.get_mut(key).filter(|refusal| now < refusal.until) else {
            return false;
        };
        refusal.ask_again.take_if(|from| now >= *from).is_none()
    }

    /// Notes that the lock may be free: it is being released, or the lock nodes have said that it is not held, or not
    /// by an asker.
    pub(super) fn freed(&self, key: &Key) {
        if key.is_of_reader() {
            return self.freed(&key.of_lock());
        }
        self.counter(key).fetch_add(1, Ordering::AcqRel);
        let mut all = self.all.lock();
        // The map is nearly always empty: then no key has to be hashed.
        if !all.is_empty() {
            all.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_answer_is_repeated_for_a_moment_and_not_behind_a_release() {
        let (refusals, key, ms) = (Refusals::default(), Key::from("k"), Duration::from_millis);
        let now = Instant::now();
        assert!(!refusals.take_known_as_held(&key, now));
        refusals.note(&key, Some(ms(1000)), now);
        assert!(refusals.take_known_as_held(&key, now + ms(124)));
        assert!(!refusals.take_known_as_held(&key, now + ms(125)), "one asks again");
        assert!(refusals.take_known_as_held(&key, now + ms(125)), "and the others do not");
        assert!(refusals.take_known_as_held(&key, now + ms(249)));
        assert!(!refusals.take_known_as_held(&key, now + ms(250)));
        assert!(!refusals.take_known_as_held(&Key::from("l"), now));
        refusals.note(&key, Some(ms(10)), now);
        assert!(
            !refusals.take_known_as_held(&key, now + ms(9))
                && refusals.take_known_as_held(&key, now + ms(9))
        );
        assert!(!refusals.take_known_as_held(&key, now + ms(10)));
        refusals.note(&key, None, now);
        let before = refusals.releases(&key);
        refusals.freed(&key);
        assert_ne!(refusals.releases(&key), before);
        assert!(!refusals.take_known_as_held(&key, now));
    }

    #[tokio::test(start_paused = true)]
    async fn no_more_is_remembered_than_there_is_room_for() {
        let (refusals, now) = (Refusals::default(), Instant::now());
        for n in 0..2 * MOST {
            refusals.note(&Key::from(&n.to_string()), None, now);
        }
        assert_eq!(refusals.all.lock().len(), MOST);
        let later = now + FRESH;
        refusals.note(&Key::from("k"), None, later);
        assert!(refusals.take_known_as_held(&Key::from("k"), later));
        assert_eq!(refusals.all.lock().len(), 1);
    }
}
