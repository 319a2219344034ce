//! How fast a lock node answers. A node that is up but too slow votes too late, though it looks healthy from outside.
//!
//! What counts is the share of late answers, with a memory of ten seconds: a node that answers every second request
//! late is slow all the time, and does not alternate between slow and fast.

use std::{
    sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering},
    time::Duration,
};

use metrics::Gauge;
use tracing::{info, warn};

use crate::{clock::Instant, lock::Fault, sync::Mutex};

/// The time over which answers are counted together.
const SPAN: Duration = Duration::from_secs(1);
/// How many finished spans are remembered.
const SPANS: usize = 10;
/// How many of the latest finished spans, with the current one, decide that a node is slow.
const LATELY: usize = 2;
/// Fewer slow answers than this do not count.
const LEAST: u32 = 3;
/// After this many checks in a row that find a request overdue, the node is slow at once.
const IN_A_ROW: u8 = 3;

/// Counts of answers over some time.
#[derive(Debug, Clone, Copy, Default)]
struct Answers {
    all: u32,
    /// Answers that took more than half of `locks.node_timeout`.
    slow: u32,
    /// Answers that took more than all of it.
    late: u32,
}

/// The remembered spans, the latest first.
struct PastAnswers {
    spans: [Answers; SPANS],
    /// When the current span began.
    since: Option<Instant>,
}

/// The times of one node's latest answers: one sample for each read, including PINGs.
pub(crate) struct Pace {
    address: String,
    timeout: Duration,
    gauge: Gauge,
    /// The counts of the current span. Only the connection's task changes them.
    all: AtomicU32,
    slow_ones: AtomicU32,
    late_ones: AtomicU32,
    /// How many checks in a row found a request overdue.
    unanswered: AtomicU8,
    past: Mutex<PastAnswers>,
    slow: AtomicBool,
    too_slow: AtomicBool,
    /// The state that the log and the gauge show.
    told: AtomicBool,
}

impl Answers {
    fn plus(self, other: Answers) -> Answers {
        Answers {
            all: self.all.saturating_add(other.all),
            slow: self.slow.saturating_add(other.slow),
            late: self.late.saturating_add(other.late),
        }
    }
}

/// Whether `count` is more than one in `part` of `all`, and at least [`LEAST`].
fn exceeds(count: u32, all: u32, part: u64) -> bool {
    count >= LEAST && u64::from(count) * part > u64::from(all)
}

impl Pace {
    /// Creates the pace of the node at `address`, whose votes count for `timeout`. `gauge` is 1 while the node is
    /// slow.
    pub(crate) fn new(address: &str, timeout: Duration, gauge: Gauge) -> Pace {
        Pace {
            address: address.to_owned(),
            timeout,
            gauge,
            all: AtomicU32::new(0),
            slow_ones: AtomicU32::new(0),
            late_ones: AtomicU32::new(0),
            unanswered: AtomicU8::new(0),
            past: Mutex::new(PastAnswers { spans: Default::default(), since: None }),
            slow: AtomicBool::new(false),
            too_slow: AtomicBool::new(false),
            told: AtomicBool::new(false),
        }
    }

    /// Whether more than a quarter of the latest answers take more than half of `locks.node_timeout`, or none comes.
    /// A slow node stays slow until at most a tenth do so, of the latest answers and of those of ten seconds.
    pub(crate) fn is_slow(&self) -> bool {
        self.slow.load(Ordering::Relaxed) || self.is_stuck()
    }

    /// Whether more than half of the latest answers come too late to count, or none comes. The node stays too slow
    /// until at most a quarter do so, of the latest answers and of those of ten seconds.
    pub(crate) fn is_too_slow(&self) -> bool {
        self.too_slow.load(Ordering::Relaxed) || self.is_stuck()
    }

    /// Whether nothing is answered at all.
    fn is_stuck(&self) -> bool {
        self.unanswered.load(Ordering::Relaxed) >= IN_A_ROW
    }

    /// Whether an answer that took this long came too late.
    #[inline]
    pub(crate) fn is_late(&self, took: Duration) -> bool {
        took > self.timeout
    }

    /// Notes how long an answer took.
    #[inline]
    pub(crate) fn sample(&self, took: Duration) {
        self.all.store(self.all.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        // Nearly always all answers are fast, which skips this.
        if took + took > self.timeout || self.unanswered.load(Ordering::Relaxed) != 0 {
            self.count(took);
        }
    }

    #[cold]
    fn count(&self, took: Duration) {
        self.unanswered.store(0, Ordering::Relaxed);
        self.slow_ones.fetch_add(u32::from(took > self.timeout / 2), Ordering::Relaxed);
        self.late_ones.fetch_add(u32::from(self.is_late(took)), Ordering::Relaxed);
    }

    /// Checks how the node answers, a few times a second. `waited`: how long the oldest unanswered request has
    /// waited. Logs one line when the node becomes slow, and one when it is fast again.
    pub(crate) fn look(&self, now: Instant, waited: Option<Duration>) {
        if waited.is_some_and(|waited| self.is_late(waited)) {
            self.all.fetch_add(1, Ordering::Relaxed);
            self.slow_ones.fetch_add(1, Ordering::Relaxed);
            self.late_ones.fetch_add(1, Ordering::Relaxed);
            let unanswered = self.unanswered.load(Ordering::Relaxed).saturating_add(1);
            self.unanswered.store(unanswered, Ordering::Relaxed);
        }
        let (lately, all) = self.remember(now);
        // The good time before must not at once outweigh what made the node slow.
        let slow = match self.slow.load(Ordering::Relaxed) {
            true => [lately, all].iter().any(|of| exceeds(of.slow, of.all, 10)),
            false => exceeds(lately.slow, lately.all, 4),
        };
        let too_slow = match self.too_slow.load(Ordering::Relaxed) {
            true => [lately, all].iter().any(|of| exceeds(of.late, of.all, 4)),
            false => exceeds(lately.late, lately.all, 2),
        };
        self.slow.store(slow, Ordering::Relaxed);
        self.too_slow.store(too_slow, Ordering::Relaxed);
        self.tell(all);
    }

    /// Starts a new span if the current one is over. Returns the sums of the latest spans and of all.
    fn remember(&self, now: Instant) -> (Answers, Answers) {
        let mut past = self.past.lock();
        let mut current = Answers {
            all: self.all.load(Ordering::Relaxed),
            slow: self.slow_ones.load(Ordering::Relaxed),
            late: self.late_ones.load(Ordering::Relaxed),
        };
        let since = *past.since.get_or_insert(now);
        if now.saturating_duration_since(since) >= SPAN {
            past.spans.rotate_right(1);
            past.spans[0] = std::mem::take(&mut current);
            past.since = Some(now);
            for counter in [&self.all, &self.slow_ones, &self.late_ones] {
                counter.store(0, Ordering::Relaxed);
            }
        }
        let sum = |spans: &[Answers]| spans.iter().copied().fold(current, Answers::plus);
        (sum(&past.spans[..LATELY]), sum(&past.spans))
    }

    fn tell(&self, last: Answers) {
        let slow = self.is_slow();
        if self.told.swap(slow, Ordering::Relaxed) == slow {
            return;
        }
        self.gauge.set(f64::from(u8::from(slow)));
        let (node, fault) = (&self.address, Fault::Slow);
        let Answers { all, slow: slow_ones, late } = last;
        if slow {
            warn!(
                %node, fault = fault.as_str(), answers = all, slow = slow_ones, late,
                "lock node is unfit: {}", fault.meaning()
            );
        } else {
            info!(%node, "lock node is no longer slow");
        }
    }

    /// Forgets all samples, as the connection has ended or a new one replaces it.
    pub(crate) fn reset(&self) {
        *self.past.lock() = PastAnswers { spans: Default::default(), since: None };
        for counter in [&self.all, &self.slow_ones, &self.late_ones] {
            counter.store(0, Ordering::Relaxed);
        }
        self.unanswered.store(0, Ordering::Relaxed);
        for state in [&self.slow, &self.too_slow, &self.told] {
            state.store(false, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pace with a clock: each answer comes after the pace has been checked for the one before.
    struct PacedNode {
        pace: Pace,
        now: Instant,
        /// How often the node has become slow, or fast again.
        changes: usize,
    }

    impl PacedNode {
        fn new() -> PacedNode {
            let pace = Pace::new("a:1", Duration::from_millis(50), Gauge::noop());
            PacedNode { pace, now: Instant::now(), changes: 0 }
        }

        /// Gives one answer every tenth of a second, `tenths` times; `took` says how many ms each takes. Returns
        /// whether the node is slow, and too slow, then.
        fn answers(&mut self, tenths: u64, took: impl Fn(u64) -> u64) -> (bool, bool) {
            for tenth in 0..tenths {
                self.now = self.now + Duration::from_millis(100);
                self.pace.sample(Duration::from_millis(took(tenth)));
                let before = self.pace.is_slow();
                self.pace.look(self.now, None);
                self.changes += usize::from(self.pace.is_slow() != before);
            }
            (self.pace.is_slow(), self.pace.is_too_slow())
        }
    }

    #[test]
    fn a_node_is_slow_by_the_share_of_its_late_answers() {
        let mut watch = PacedNode::new();
        assert_eq!(watch.answers(100, |_| 25), (false, false), "half is not more than half");
        assert_eq!(watch.answers(2, |_| 80), (false, false), "twice may happen");
        assert_eq!(watch.answers(100, |_| 1), (false, false));
        assert_eq!(watch.answers(20, |_| 30), (true, false), "slow, but its votes count");
        assert_eq!(watch.answers(60, |_| 51), (true, true));
        assert_eq!(watch.answers(50, |_| 1), (true, true), "it is remembered");
        assert_eq!(watch.answers(70, |_| 1), (false, false));
        watch.answers(20, |_| 51);
        watch.pace.reset();
        assert_eq!(watch.answers(2, |_| 80), (false, false));
    }

    #[test]
    fn a_node_that_is_late_by_turns_is_slow_all_the_time() {
        // Two of three answers are late, then one of two, and one of five.
        for late in [
            |n: u64| !n.is_multiple_of(3),
            |n: u64| n.is_multiple_of(2),
            |n: u64| n.is_multiple_of(5),
        ] {
            let mut watch = PacedNode::new();
            // The good time before does not outweigh it.
            watch.answers(300, |_| 1);
            watch.answers(30, |_| 51);
            assert_eq!(watch.changes, 1);
            watch.answers(600, |n| if late(n) { 51 } else { 1 });
            assert_eq!((watch.changes, watch.pace.is_slow()), (1, true));
        }
    }

    #[test]
    fn a_node_that_answers_nothing_is_slow_at_once_and_until_it_answers() {
        let mut watch = PacedNode::new();
        watch.answers(1000, |_| 1);
        for look in 1..=IN_A_ROW {
            assert!(!watch.pace.is_too_slow(), "{look}");
            watch.pace.look(watch.now, Some(Duration::from_millis(51)));
        }
        assert!(watch.pace.is_slow() && watch.pace.is_too_slow());
        assert_eq!(watch.answers(20, |_| 1), (false, false));
    }
}
