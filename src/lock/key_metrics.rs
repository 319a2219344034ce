//! How long locks are waited for and held, by the first pattern of `metrics.keys` that matches a lock's
//! key.

use std::time::Duration;

use metrics::{Histogram, Unit, describe_histogram, histogram};

use crate::{
    config::{OTHER_KEYS, Pattern},
    glob::Budget,
    key::Key,
};

/// Steps that comparing one key with all patterns may take: about a tenth of a millisecond. A key that takes more
/// counts as matched by none.
const MAX_STEPS: usize = 100_000;

/// Gives each metric its help text. The recorder must be installed before.
pub(super) fn describe() {
    describe_histogram!(
        "lockgate_key_queue_seconds",
        Unit::Seconds,
        "How long clients waited in line, granted or not, by the pattern of metrics.keys that \
         matched the lock."
    );
    describe_histogram!(
        "lockgate_key_hold_seconds",
        Unit::Seconds,
        "From a grant to its release, both through this proxy, by the pattern of metrics.keys that \
         matched the lock."
    );
}

/// Handles by pattern.
pub(super) struct KeyMetrics {
    /// The length of `locks.prefix`.
    prefix: usize,
    patterns: Vec<(Pattern, WaitAndHold)>,
    others: WaitAndHold,
}

struct WaitAndHold {
    queue_seconds: Histogram,
    hold_seconds: Histogram,
}

impl WaitAndHold {
    fn new(keys: &str) -> WaitAndHold {
        WaitAndHold {
            queue_seconds: histogram!("lockgate_key_queue_seconds", "keys" => keys.to_owned()),
            hold_seconds: histogram!("lockgate_key_hold_seconds", "keys" => keys.to_owned()),
        }
    }
}

impl KeyMetrics {
    /// Makes the handles. `prefix`: the length of `locks.prefix`.
    pub(super) fn new(patterns: &[String], prefix: usize) -> KeyMetrics {
        let handles = |keys: &String| (Pattern::new(keys), WaitAndHold::new(keys));
        let patterns = patterns.iter().map(handles).collect();
        KeyMetrics { prefix, patterns, others: WaitAndHold::new(OTHER_KEYS) }
    }

    /// Counts a client that has waited in line.
    pub(super) fn waited(&self, key: &Key, time: Duration) {
        self.of(key).queue_seconds.record(time.as_secs_f64());
    }

    /// Counts a lock that was given back.
    pub(super) fn held(&self, key: &Key, time: Duration) {
        self.of(key).hold_seconds.record(time.as_secs_f64());
    }

    /// Returns the handles of the first pattern that matches.
    fn of(&self, key: &Key) -> &WaitAndHold {
        let name = key.get(self.prefix..).unwrap_or_default();
        let mut budget = Budget::of(MAX_STEPS);
        for (pattern, handles) in &self.patterns {
            match pattern.matches_within(name, &mut budget) {
                Some(true) => return handles,
                Some(false) => {}
                None => break,
            }
        }
        &self.others
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::counted;

    #[test]
    fn the_first_pattern_that_matches_counts_or_else_other() {
        let shown = counted(|| {
            let patterns = ["account:1*", "account:*", "*x*x*x*x*x*x*x*x*y"].map(str::to_owned);
            let metrics = KeyMetrics::new(&patterns, 5);
            for key in ["account:17", "account:2", "account:18", "job"] {
                metrics.held(&Key::from(&format!("lock:{key}")), Duration::from_secs(40));
            }
            // Too many steps: the key counts, and as fast as any other.
            metrics.held(&Key::from(&format!("lock:{}", "x".repeat(4000))), Duration::ZERO);
            metrics.waited(&Key::from("lock:account:2"), Duration::from_secs(3000));
        });
        for line in [
            r#"lockgate_key_hold_seconds_count{keys="account:1*"} 2"#,
            r#"lockgate_key_hold_seconds_count{keys="account:*"} 1"#,
            r#"lockgate_key_hold_seconds_count{keys="other"} 2"#,
            r#"lockgate_key_queue_seconds_bucket{keys="account:*",le="300"} 0"#,
            r#"lockgate_key_queue_seconds_bucket{keys="account:*",le="3600"} 1"#,
            r#"lockgate_key_queue_seconds_count{keys="other"} 0"#,
        ] {
            assert!(shown.contains(line), "no {line} in {shown}");
        }
    }
}
