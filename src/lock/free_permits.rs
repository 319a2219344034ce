//! Which permit of a family was unlocked last through this proxy: a client that takes one asks for it first, as it is likely to
//! be free while clients of other proxies hold others.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::{
    key::{Key, KeyMap},
    sync::Mutex,
};

/// Most families that are remembered. Beyond that all are forgotten.
const MOST: usize = 4096;

/// The permits unlocked last.
#[derive(Default)]
pub(super) struct FreePermits {
    /// Whether there is a family at all: where there is none, no UNLOCK looks for one.
    any: AtomicBool,
    last: Mutex<KeyMap<Option<usize>>>,
}

impl FreePermits {
    /// Takes the permit that was unlocked last, for one client to ask for. From now on those of this family are noted.
    pub(super) fn take(&self, family: &Key) -> Option<usize> {
        let mut last = self.last.lock();
        if last.len() >= MOST && !last.contains_key(family) {
            last.clear();
        }
        self.any.store(true, Ordering::Relaxed);
        last.entry(family.clone()).or_default().take()
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
        let Some(at) = memchr::memrchr(b'#', key) else { return };
        let (family, number) = (&key[..at], &key[at + 1..]);
        let number = std::str::from_utf8(number).ok().and_then(|number| number.parse().ok());
        if let Some(known) = self.last.lock().get_mut(&Key::from(family)) {
            *known = number;
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
        assert_eq!(free.take(&family), None, "nobody takes permits of it yet");
        free.freed(&permit(&family, 3));
        free.freed(&permit(&family, 1));
        free.freed(&permit(&Key::from("other"), 4));
        assert_eq!((free.take(&family), free.take(&family)), (Some(1), None));
        free.freed(&Key::from("gpu#x"));
        assert_eq!(free.take(&family), None);
        for n in 0..2 * MOST {
            free.take(&Key::from(&n.to_string()));
        }
        assert!(free.last.lock().len() <= MOST);
    }
}
