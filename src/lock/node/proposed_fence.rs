//! The fence that a proxy proposes.

use std::sync::atomic::{AtomicU64, Ordering};

/// How far a learned fence may be ahead of this proxy's clock, in microseconds: a day. A larger fence comes from a
/// wrong clock or a client, and counts for its own lock alone.
pub(super) const TOO_FAR: u64 = 24 * 60 * 60 * 1_000_000;

/// The largest fence seen of any lock, so that fences grow although clocks differ.
#[derive(Debug, Default)]
pub(super) struct LargestFence {
    largest: AtomicU64,
}

impl LargestFence {
    /// Returns the fence to propose at the time of day `now`, in microseconds.
    pub(super) fn propose(&self, now: u64) -> u64 {
        now.max(self.largest.load(Ordering::Relaxed))
    }

    /// Learns a fence that was granted, or that the data node has seen.
    pub(super) fn learn(&self, fence: u64, now: u64) {
        if fence > now && fence - now <= TOO_FAR {
            self.largest.fetch_max(fence, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_less_is_proposed_than_was_seen_but_for_what_no_clock_can_have_made() {
        let fences = LargestFence::default();
        assert_eq!(fences.propose(1000), 1000);
        fences.learn(1500, 1000);
        assert_eq!((fences.propose(1000), fences.propose(2000)), (1500, 2000));
        fences.learn(2000 + TOO_FAR + 1, 2000);
        assert_eq!(fences.propose(2000), 2000);
        fences.learn(2000 + TOO_FAR, 2000);
        assert_eq!(fences.propose(2000), 2000 + TOO_FAR);
    }
}
