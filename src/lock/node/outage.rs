//! Operations that too few lock nodes answered (NOQUORUM), for the log and for /readyz.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use metrics::{Counter, counter};
use tokio::time::Instant;
use tracing::warn;

use crate::{
    lock::{NoQuorum, quorum::Decision},
    sync::Mutex,
};

/// The shortest time between two lines in the log, and the time for which a failure counts if no operation follows
/// it.
const TELL_EVERY: Duration = Duration::from_secs(10);
/// How long the last line is shown: somewhat longer than the time to the next one.
const SHOWN_FOR: Duration = Duration::from_secs(12);
/// The number of failures in a row that is no longer chance.
const IN_A_ROW: u64 = 8;

/// Outcomes of the operations of one proxy.
pub(in crate::lock) struct Outage {
    /// Operations since the last line in the log, or since the last check that found no failure.
    asked: AtomicU64,
    failed: AtomicU64,
    /// Failures since the last operation that a quorum decided.
    in_a_row: AtomicU64,
    /// Operations whose nodes were all late at once.
    all_late: Counter,
    last: Mutex<LastFailure>,
}

struct LastFailure {
    error: Option<NoQuorum>,
    /// The time of the last failure in a row.
    at: Instant,
    /// The time from which `asked` and `failed` are counted.
    since: Instant,
    told: Option<Instant>,
    /// The last line in the log.
    line: Option<String>,
}

impl Outage {
    pub(in crate::lock) fn new() -> Outage {
        let now = Instant::now();
        let last =
            Mutex::new(LastFailure { error: None, at: now, since: now, told: None, line: None });
        let (zero, all_late) = (AtomicU64::default, counter!("lockgate_all_late_total"));
        Outage { asked: zero(), failed: zero(), in_a_row: zero(), all_late, last }
    }

    /// Notes the outcome of one operation. `patient`: its nodes had all of `locks.node_timeout`. A failure within a
    /// shorter time, due to a short TTL, says nothing about the nodes, and any client can cause it.
    #[inline]
    pub(in crate::lock) fn decided(&self, decision: Decision, patient: bool) {
        self.asked.fetch_add(1, Ordering::Relaxed);
        match decision {
            Decision::Yes | Decision::No => {
                if self.in_a_row.load(Ordering::Relaxed) != 0 {
                    self.in_a_row.store(0, Ordering::Relaxed);
                }
            }
            Decision::NoQuorum | Decision::Open if patient => {
                self.in_a_row.fetch_add(1, Ordering::Relaxed);
                self.last.lock().at = Instant::now();
            }
            Decision::NoQuorum | Decision::Open => {}
        }
    }

    /// Counts an operation whose nodes were all late at once.
    #[cold]
    pub(in crate::lock) fn all_late(&self) {
        self.all_late.increment(1);
    }

    /// Notes an error that a client was told, or would have been.
    pub(in crate::lock) fn failed(&self, error: &NoQuorum) {
        self.failed.fetch_add(1, Ordering::Relaxed);
        self.last.lock().error = Some(error.clone());
    }

    /// Returns how many of the last operations failed in a row, and the last error; `None` unless these show that
    /// locks cannot be had now.
    pub(in crate::lock) fn status(&self) -> Option<(u64, NoQuorum)> {
        let failed = self.in_a_row.load(Ordering::Relaxed);
        let last = self.last.lock();
        let counts = failed >= IN_A_ROW && last.at.elapsed() < TELL_EVERY;
        last.error.clone().filter(|_| counts).map(|error| (failed, error))
    }

    /// Returns the last line in the log; `None` once a newer one would have followed if locks still failed.
    pub(in crate::lock) fn last_line(&self) -> Option<String> {
        let last = self.last.lock();
        let is_recent = last.told.is_some_and(|told| told.elapsed() < SHOWN_FOR);
        last.line.clone().filter(|_| is_recent)
    }

    /// Logs the failures, if there are any and the last line is old enough.
    pub(in crate::lock) fn tell(&self) {
        let now = Instant::now();
        let mut last = self.last.lock();
        let failed = self.failed.load(Ordering::Relaxed);
        if failed > 0 && last.told.is_some_and(|told| now - told < TELL_EVERY) {
            return;
        }
        // Every failure was counted in `asked` before.
        self.failed.fetch_sub(failed, Ordering::Relaxed);
        let asked = self.asked.swap(0, Ordering::Relaxed).max(failed);
        let time = now - last.since;
        last.since = now;
        if failed > 0
            && let Some(error) = &last.error
        {
            let time = time.as_secs_f64();
            let line = format!("NOQUORUM: {failed} of {asked} operations in {time:.1} s; {error}");
            warn!("{line}");
            (last.told, last.line) = (Some(now), Some(line));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn so_many_in_a_row_count_until_one_succeeds_or_nothing_is_asked() {
        let outage = Outage::new();
        let error = NoQuorum { answered: 2, nodes: 5, quorum: 3, ..NoQuorum::default() };
        let fail = |patient| {
            outage.decided(Decision::NoQuorum, patient);
            outage.failed(&error);
        };
        (1..IN_A_ROW).for_each(|_| fail(true));
        assert_eq!(outage.status(), None);
        (0..100).for_each(|_| fail(false));
        assert_eq!(outage.status(), None, "a client with a short TTL proves nothing");
        fail(true);
        assert_eq!(outage.status(), Some((IN_A_ROW, error.clone())));
        tokio::time::advance(TELL_EVERY).await;
        assert_eq!(outage.status(), None, "somebody must try");
        fail(true);
        assert!(outage.status().is_some());
        outage.decided(Decision::No, true);
        assert_eq!(outage.status(), None, "held by another is an answer");
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_line_is_shown_until_the_next_would_be_there() {
        let outage = Outage::new();
        outage.tell();
        assert_eq!(outage.last_line(), None);
        let error = NoQuorum { answered: 2, nodes: 5, quorum: 3, ..NoQuorum::default() };
        for decision in [Decision::Yes, Decision::NoQuorum, Decision::Yes] {
            outage.decided(decision, true);
        }
        outage.failed(&error);
        outage.tell();
        let line = outage.last_line().unwrap();
        assert!(line.starts_with("NOQUORUM: 1 of 3 operations in 0.0 s; "), "{line}");
        tokio::time::advance(TELL_EVERY).await;
        outage.tell();
        assert_eq!(outage.last_line(), Some(line));
        tokio::time::advance(SHOWN_FOR - TELL_EVERY).await;
        assert_eq!(outage.last_line(), None);
    }
}
