//! One longest grant: the longest time that any grant may last, whichever proxy made it.
//!
//! Everything that waits for grants to run out waits for this time: a node that has forgotten or was promoted, a node
//! whose clock has jumped, a slot in doubt, a release that is repeated, and the note of a grant that must not be put
//! back. It is the largest of this proxy's own `max_ttl`, of what the lock nodes have answered, and of what other
//! proxies say of themselves. It never gets smaller while the process lives: a proxy that is not heard of any more
//! may be cut off from those that listen, but not from all lock nodes.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use crate::clock::millis;

#[cfg(test)]
thread_local! {
    /// Plants the fault that a proxy knows of its own grants alone.
    pub(crate) static OWN_LONGEST: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// The longest time that any grant may last.
#[derive(Debug)]
pub(in crate::lock) struct LongestGrant {
    /// This proxy's `max_ttl`.
    own: Duration,
    /// The longest time heard of, in ms.
    heard: AtomicU64,
}

impl LongestGrant {
    /// Starts with this proxy's `max_ttl` alone.
    pub(in crate::lock) fn new(own: Duration) -> LongestGrant {
        LongestGrant { own, heard: AtomicU64::new(0) }
    }

    /// Notes that grants may last for so long, rounded up to whole milliseconds.
    pub(in crate::lock) fn heard_of(&self, longest: Duration) {
        let rounded = millis(longest.saturating_add(Duration::from_nanos(999_999)));
        self.heard.fetch_max(rounded, Ordering::AcqRel);
    }

    /// Returns the longest time that any grant may last.
    pub(in crate::lock) fn get(&self) -> Duration {
        #[cfg(test)]
        if OWN_LONGEST.get() {
            return self.own;
        }
        self.own.max(Duration::from_millis(self.heard.load(Ordering::Acquire)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_largest_that_was_heard_of_and_never_shrinks() {
        let secs = Duration::from_secs;
        let longest = LongestGrant::new(secs(20));
        for (heard, expected) in [(3, 20), (60, 60), (30, 60)] {
            longest.heard_of(secs(heard));
            assert_eq!(longest.get(), secs(expected), "{heard}");
        }
        longest.heard_of(secs(60) + Duration::from_nanos(1));
        assert_eq!(longest.get(), Duration::from_millis(60_001), "rounded up");
        longest.heard_of(Duration::MAX);
        assert!(longest.get() > secs(1 << 30));
    }
}
