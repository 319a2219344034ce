//! The clock by which locks end: one that runs while the machine is suspended.
//!
//! `CLOCK_MONOTONIC`, which the standard library and tokio read, stands still meanwhile: a holder would count on a
//! lock that ran out long ago. Timers may be tokio's: a late timer is only late.

use std::{
    ops::{Add, Sub},
    time::Duration,
};

/// Returns whole milliseconds, rounded down: a lock's remaining time must not be overstated.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// A moment by the clock of this file. In unit tests it follows tokio's clock, which may be
/// paused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Instant {
    /// Nanoseconds since the machine was started.
    nanos: u64,
}

impl Instant {
    /// Reads the clock, by a system call that does not enter the kernel.
    #[cfg(not(test))]
    #[inline]
    pub(crate) fn now() -> Instant {
        use rustix::time::{ClockId, clock_gettime};
        #[cfg(target_os = "linux")]
        const CLOCK: ClockId = ClockId::Boottime;
        #[cfg(not(target_os = "linux"))]
        const CLOCK: ClockId = ClockId::Monotonic;
        let now = clock_gettime(CLOCK);
        // Neither is below 0.
        Instant { nanos: now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64 }
    }

    /// Reads tokio's clock.
    #[cfg(test)]
    pub(crate) fn now() -> Instant {
        use std::sync::LazyLock;
        static BEGUN: LazyLock<std::time::Instant> = LazyLock::new(std::time::Instant::now);
        let (begun, now) = (*BEGUN, tokio::time::Instant::now().into_std());
        // A paused clock may have been paused before `BEGUN`.
        let nanos = 1_000_000_000_000_000 + now.saturating_duration_since(begun).as_nanos()
            - begun.saturating_duration_since(now).as_nanos();
        Instant { nanos: nanos as u64 }
    }

    /// Returns the time since this moment; zero if it is in the future.
    pub(crate) fn elapsed(self) -> Duration {
        Instant::now() - self
    }

    /// Returns the time since an earlier moment; zero if that is later.
    #[inline]
    pub(crate) fn saturating_duration_since(self, earlier: Instant) -> Duration {
        self - earlier
    }

    /// Returns microseconds since an arbitrary moment.
    #[inline]
    pub(crate) fn micros(self) -> i64 {
        (self.nanos / 1000) as i64
    }

    /// Returns the moment by tokio's clock at which a timer for this one must fire.
    pub(crate) fn timer(self) -> tokio::time::Instant {
        let now = tokio::time::Instant::now();
        // A moment that is too far away for tokio's clock is as good as never.
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

    /// Returns zero if `earlier` is later.
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
