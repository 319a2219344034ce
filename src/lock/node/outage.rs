//! Operations that too few lock nodes answered (NOQUORUM), for the log and for /readyz.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use tokio::time::Instant;
use tracing::warn;

use crate::{
    lock::{NoQuorum, quorum::Decision},
    sync::Mutex,
};

/// How often they are told of at the most; and for how long a failure counts where
/// nothing was asked since.
const TELL_EVERY: Duration = Duration::from_secs(10);
/// So many in a row are no chance.
const IN_A_ROW: u64 = 8;

/// What became of the operations of one proxy.
pub(in crate::lock) struct Outage {
    /// Since the log last told of them, or since all was well.
    asked: AtomicU64,
    failed: AtomicU64,
    /// Without one in between that found a quorum.
    in_a_row: AtomicU64,
    last: Mutex<LastFailure>,
}

struct LastFailure {
    error: Option<NoQuorum>,
    /// When the last of those in a row failed.
    at: Instant,
    /// Since when `asked` and `failed` are counted.
    since: Instant,
    told: Option<Instant>,
}

impl Outage {
    pub(in crate::lock) fn new() -> Outage {
        let now = Instant::now();
        let last = Mutex::new(LastFailure { error: None, at: now, since: now, told: None });
        let zero = AtomicU64::default;
        Outage { asked: zero(), failed: zero(), in_a_row: zero(), last }
    }

    /// Notes what the votes on one operation came to. `patient`: its nodes had all of
    /// `locks.node_timeout`. Those with so short a TTL that they had less tell nothing of
    /// the nodes, and any client may send them.
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

    /// Notes what a client was told, or would have been.
    pub(in crate::lock) fn failed(&self, error: &NoQuorum) {
        self.failed.fetch_add(1, Ordering::Relaxed);
        self.last.lock().error = Some(error.clone());
    }

    /// How many of the last operations failed in a row, and how, if that says that locks
    /// cannot be had now.
    pub(in crate::lock) fn status(&self) -> Option<(u64, NoQuorum)> {
        let failed = self.in_a_row.load(Ordering::Relaxed);
        let last = self.last.lock();
        let counts = failed >= IN_A_ROW && last.at.elapsed() < TELL_EVERY;
        last.error.clone().filter(|_| counts).map(|error| (failed, error))
    }

    /// Tells the log, if something failed and the last time is long enough ago.
    pub(in crate::lock) fn tell(&self) {
        let now = Instant::now();
        let mut last = self.last.lock();
        let failed = self.failed.load(Ordering::Relaxed);
        if failed > 0 && last.told.is_some_and(|told| now - told < TELL_EVERY) {
            return;
        }
        // Each is asked before it fails.
        self.failed.fetch_sub(failed, Ordering::Relaxed);
        let asked = self.asked.swap(0, Ordering::Relaxed).max(failed);
        let time = now - last.since;
        last.since = now;
        if failed > 0
            && let Some(error) = &last.error
        {
            warn!(
                "NOQUORUM: {failed} of {asked} operations in {:.1} s; {error}",
                time.as_secs_f64()
            );
            last.told = Some(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn so_many_in_a_row_count_until_one_succeeds_or_nothing_is_asked() {
        let outage = Outage::new();
        let error = NoQuorum { answered: 2, nodes: 5, quorum: 3, missing: Vec::new() };
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
}
