//! The clock by which locks end: one that runs while the machine is suspended.
//!
//! `CLOCK_MONOTONIC`, which the standard library and tokio read, stands still meanwhile, so
//! that a holder would count on a lock that has run out long ago. Timers may be tokio's: one
//! that fires late is only late.

use std::{
    ops::{Add, Sub},
    time::Duration,
};

/// A moment by that clock. In unit tests it follows tokio's, which may be paused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Instant {
    /// Since the machine was started.
    nanos: u64,
}

impl Instant {
    /// Now: one system call that the kernel answers without being entered.
    #[cfg(not(test))]
    #[inline]
    pub fn now() -> Instant {
        use rustix::time::{ClockId, clock_gettime};
        #[cfg(target_os = "linux")]
        const CLOCK: ClockId = ClockId::Boottime;
        #[cfg(not(target_os = "linux"))]
        const CLOCK: ClockId = ClockId::Monotonic;
        let now = clock_gettime(CLOCK);
        // Neither is below 0.
        Instant { nanos: now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64 }
    }

    /// Now, by tokio's clock.
    #[cfg(test)]
    pub fn now() -> Instant {
        use std::sync::LazyLock;
        static BEGUN: LazyLock<std::time::Instant> = LazyLock::new(std::time::Instant::now);
        let (begun, now) = (*BEGUN, tokio::time::Instant::now().into_std());
        // A paused clock may have been stopped before.
        let nanos = 1_000_000_000_000_000 + now.saturating_duration_since(begun).as_nanos()
            - begun.saturating_duration_since(now).as_nanos();
        Instant { nanos: nanos as u64 }
    }

    /// How long ago that was; nothing if it is to come.
    pub fn elapsed(self) -> Duration {
        Instant::now() - self
    }

    /// The time since an earlier moment; nothing if that is later.
    #[inline]
    pub fn saturating_duration_since(self, earlier: Instant) -> Duration {
        self - earlier
    }

    /// In microseconds, since whenever.
    #[inline]
    pub(crate) fn micros(self) -> i64 {
        (self.nanos / 1000) as i64
    }

    /// When a timer must go off that is set for it now.
    pub(crate) fn timer(self) -> tokio::time::Instant {
        let now = tokio::time::Instant::now();
        // One that is too far away for tokio's clock is as good as none.
        now.checked_add(self - Instant::now()).unwrap_or(now + Duration::from_secs(1 << 30))
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;

    #[inline]
    fn add(self, duration: Duration) -> Instant {
        let nanos = duration.as_secs().saturating_mul(1_000_000_000);
        let nanos = nanos.saturating_add(duration.subsec_nanos().into());
        Instant { nanos: self.nanos.saturating_add(nanos) }
    }
}

impl Sub<Duration> for Instant {
    type Output = Instant;

    fn sub(self, duration: Duration) -> Instant {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Instant { nanos: self.nanos.saturating_sub(nanos) }
    }
}

impl Sub for Instant {
    type Output = Duration;

    /// Nothing if the other is later.
    #[inline]
    fn sub(self, earlier: Instant) -> Duration {
        Duration::from_nanos(self.nanos.saturating_sub(earlier.nanos))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn it_follows_tokios_clock_and_bears_the_largest_numbers() {
        let begun = Instant::now();
        tokio::time::advance(Duration::from_millis(1500)).await;
        assert_eq!(begun.elapsed(), Duration::from_millis(1500));
        assert_eq!(begun - Instant::now(), Duration::ZERO);
        let later = Instant::now() + Duration::from_secs(2);
        assert_eq!(later.timer() - tokio::time::Instant::now(), Duration::from_secs(2));
        assert_eq!(later - Duration::from_millis(3500), begun);
        assert!(begun + Duration::MAX > later);
        let _ = (begun + Duration::MAX).timer();
    }
}
