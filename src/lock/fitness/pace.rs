//! How fast a lock node answers. A node that is up and too slow votes too late, and from outside
//! looks well.

use std::{
    sync::atomic::{AtomicBool, AtomicU16, Ordering},
    time::Duration,
};

use metrics::Gauge;
use tracing::{info, warn};

use crate::lock::Fault;

/// More of the last eight samples over a limit than this make a node slow.
const MANY: u32 = 4;
/// With as few samples over the limit as this the node is fast again.
const FEW: u32 = 2;
/// So many samples in a row that came too late make a node slow at once.
const IN_A_ROW: u8 = 0b111;

/// The times of one node's last answers: one sample for each read, PINGs included.
pub(crate) struct Pace {
    address: String,
    timeout: Duration,
    gauge: Gauge,
    /// One bit for each sample, the lowest for the last one. The lower byte says whether it took
    /// more than half of `locks.node_timeout`, the upper byte whether more than all of it. Only the
    /// connection's task changes it.
    recent: AtomicU16,
    slow: AtomicBool,
    too_slow: AtomicBool,
}

impl Pace {
    /// The pace of the node at `address`, whose votes count for `timeout`. `gauge` is 1 while the
    /// node is slow.
    pub(crate) fn new(address: &str, timeout: Duration, gauge: Gauge) -> Pace {
        Pace {
            address: address.to_owned(),
            timeout,
            gauge,
            recent: AtomicU16::new(0),
            slow: AtomicBool::new(false),
            too_slow: AtomicBool::new(false),
        }
    }

    /// Whether the answers mostly take more than half of `locks.node_timeout`.
    pub(crate) fn is_slow(&self) -> bool {
        self.slow.load(Ordering::Relaxed)
    }

    /// Whether the answers mostly come too late to count.
    pub(crate) fn is_too_slow(&self) -> bool {
        self.too_slow.load(Ordering::Relaxed)
    }

    /// Whether an answer that took so long came too late.
    #[inline]
    pub(crate) fn is_late(&self, took: Duration) -> bool {
        took > self.timeout
    }

    /// Notes how long an answer took, or has been waited for. Logs one line when the node becomes
    /// slow, and one when it is fast again.
    #[inline]
    pub(crate) fn sample(&self, took: Duration) {
        let recent = self.recent.load(Ordering::Relaxed);
        // Nearly always all answers are fast, and this is skipped.
        if recent != 0 || took + took > self.timeout {
            self.judge(recent, took);
        }
    }

    #[cold]
    fn judge(&self, recent: u16, took: Duration) {
        let [slow, late] = recent.to_le_bytes();
        let slow = slow << 1 | u8::from(took > self.timeout / 2);
        let late = late << 1 | u8::from(self.is_late(took));
        self.recent.store(u16::from_le_bytes([slow, late]), Ordering::Relaxed);
        let judge = |was: bool, bits: u8| {
            let enough = if was { FEW } else { MANY };
            bits.count_ones() > enough || late & IN_A_ROW == IN_A_ROW
        };
        let before = self.is_slow();
        self.too_slow.store(judge(self.is_too_slow(), late), Ordering::Relaxed);
        let slow = judge(before, slow);
        if slow == before {
            return;
        }
        self.slow.store(slow, Ordering::Relaxed);
        self.gauge.set(f64::from(u8::from(slow)));
        let (node, fault) = (&self.address, Fault::Slow);
        if slow {
            warn!(%node, fault = fault.as_str(), "lock node is unfit: {}", fault.meaning());
        } else {
            info!(%node, "lock node is no longer slow");
        }
    }

    /// Forgets all samples: the connection is gone, or is another.
    pub(crate) fn reset(&self) {
        self.recent.store(0, Ordering::Relaxed);
        self.slow.store(false, Ordering::Relaxed);
        self.too_slow.store(false, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_slow_by_most_of_its_answers_and_fast_again_by_nearly_all() {
        let ms = Duration::from_millis;
        let pace = Pace::new("a:1", ms(50), Gauge::noop());
        let told = |took: u64, times: usize| {
            (0..times).for_each(|_| pace.sample(ms(took)));
            (pace.is_slow(), pace.is_too_slow())
        };
        assert_eq!(told(25, 100), (false, false), "half is not more than half");
        assert_eq!(told(80, 2), (false, false), "twice may happen");
        assert_eq!(told(1, 8), (false, false));
        assert_eq!(told(30, 4), (false, false));
        assert_eq!(told(30, 1), (true, false), "slow, but its votes count");
        assert_eq!(told(1, 5), (true, false));
        assert_eq!(told(1, 1), (false, false));
        assert_eq!(told(51, 3), (true, true), "late three times in a row");
        assert_eq!(told(30, 8), (true, false));
        pace.reset();
        assert_eq!(told(80, 2), (false, false));
    }
}
