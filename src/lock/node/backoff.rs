//! The pause before the next attempt to connect.

use std::time::Duration;

use crate::lock::jitter::jittered;

/// The pause before the second attempt.
const FIRST: Duration = Duration::from_millis(50);
/// The longest pause: how long a node that is back may wait to be found.
const LONGEST: Duration = Duration::from_secs(2);

/// Exponential back-off with jitter, so that many proxies do not come back to a node all at once.
#[derive(Debug, Default)]
pub(in crate::lock) struct Backoff {
    failures: u32,
}

impl Backoff {
    /// Returns the pause after one more failure: between half and all of a time that doubles with each failure.
    pub(in crate::lock) fn next(&mut self) -> Duration {
        let full = FIRST.saturating_mul(1 << self.failures.min(16)).min(LONGEST);
        self.failures += 1;
        jittered(full)
    }

    /// Notes that a connection lasted for `time`. A connection that ends at once is a failure too.
    pub(in crate::lock) fn lasted(&mut self, time: Duration) {
        if time >= LONGEST {
            self.failures = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_limit_and_are_never_equal() {
        let mut backoff = Backoff::default();
        let pauses: Vec<Duration> = (0..40).map(|_| backoff.next()).collect();
        assert!(pauses[0] >= FIRST / 2 && pauses[0] < FIRST);
        assert!(pauses.iter().all(|pause| *pause < LONGEST));
        assert!(pauses[10..].iter().all(|pause| *pause >= LONGEST / 2));
        assert_ne!(pauses[20], pauses[21]);
        backoff.lasted(LONGEST / 2);
        assert!(backoff.next() >= LONGEST / 2);
        backoff.lasted(LONGEST);
        assert!(backoff.next() < FIRST);
    }
}
