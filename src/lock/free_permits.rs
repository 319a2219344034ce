//! The families for whose permits clients of this proxy have asked: how many permits each has, and which was unlocked
//! last through this proxy. A client that takes one asks for that first, as it is likely to be free while clients of
//! other proxies hold others.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::{
    key::{Key, KeyMap},
    lock::permit_of,
    sync::Mutex,
};

/// Most families that are remembered. Beyond that all are forgotten.
const MOST: usize = 4096;

/// The families that were asked for permits.
#[derive(Default)]
pub(super) struct FreePermits {
    /// Whether there is a family at all: where there is none, no UNLOCK looks for one.
    any: AtomicBool,
    families: Mutex<KeyMap<AskedFamily>>,
}

#[derive(Default)]
struct AskedFamily {
    /// How many permits it has, as the last client said.
    n: usize,
    /// The permit that was unlocked last.
    last: Option<usize>,
}

impl FreePermits {
    /// Takes the permit that was unlocked last, for one client to ask for, which wants one of `n`. From now on those of
    /// this family are noted.
    pub(super) fn take(&self, family: &Key, n: usize) -> Option<usize> {
        let mut families = self.families.lock();
        if families.len() >= MOST && !families.contains_key(family) {
            families.clear();
        }
        self.any.store(true, Ordering::Relaxed);
        let asked = families.entry(family.clone()).or_default();
        asked.n = n;
        asked.last.take()
    }

    /// Returns how many permits a family has for which clients have asked.
    pub(super) fn n(&self, family: &Key) -> Option<usize> {
        self.families.lock().get(family).map(|asked| asked.n)
    }

    /// Notes that a lock was unlocked, which may be a permit. One that was granted and given back untold does not count:
    /// its client could not be told for a reason that may last.
    #[inline]
    pub(super) fn freed(&self, key: &Key) {
        if self.any.load(Ordering::Relaxed) {
            self.note(key);
        }
    }

    fn note(&self, key: &Key) {
        let Some((family, at)) = permit_of(key) else { return };
        if let Some(asked) = self.families.lock().get_mut(&Key::from(family)) {
            asked.last = Some(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::permit;

    #[test]
    fn the_last_permit_that_was_released_is_asked_for_once() {
        let (free, family) = (FreePermits::default(), Key::from("gpu"));
        free.freed(&permit(&family, 2));
        assert_eq!(
            (free.take(&family, 4), free.n(&family)),
            (None, Some(4)),
            "the first that asks"
        );
        free.freed(&permit(&family, 3));
        free.freed(&permit(&family, 1));
        free.freed(&permit(&Key::from("other"), 4));
        assert_eq!((free.take(&family, 4), free.take(&family, 4)), (Some(1), None));
        free.freed(&Key::from("gpu#x"));
        assert_eq!((free.take(&family, 8), free.n(&family)), (None, Some(8)));
        for n in 0..2 * MOST {
            free.take(&Key::from(&n.to_string()), 2);
        }
        assert!(free.families.lock().len() <= MOST);
    }
}
