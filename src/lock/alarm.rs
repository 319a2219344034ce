//! A timer for operations that nearly always end long before it fires.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::time::{Instant, Sleep, sleep_until};

/// A timer that keeps running when the operation it was set for has ended. The next operation has a later deadline,
/// so the timer is set early enough for it, and keeping it costs less than a new one. The alarm belongs to one task,
/// whose waker it keeps.
#[derive(Debug, Default)]
pub(crate) struct Alarm(Option<Pin<Box<Sleep>>>);

impl Alarm {
    /// Becomes ready at `deadline`.
    pub(super) fn poll(&mut self, deadline: Instant, cx: &mut Context<'_>) -> Poll<()> {
        let timer = match &mut self.0 {
            Some(timer) if timer.deadline() <= deadline => {
                // The timer will wake this task. Asking it again would cost more than this check.
                if !timer.is_elapsed() {
                    return Poll::Pending;
                }
                timer
            }
            Some(timer) => {
                timer.as_mut().reset(deadline);
                timer
            }
            none => none.insert(Box::pin(sleep_until(deadline))),
        };
        loop {
            ready!(timer.as_mut().poll(cx));
            if timer.deadline() >= deadline {
                return Poll::Ready(());
            }
            timer.as_mut().reset(deadline);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{future::poll_fn, time::Duration};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn it_is_on_time_whatever_it_was_set_for_before() {
        let begun = Instant::now();
        let at = |millis| begun + Duration::from_millis(millis);
        let mut alarm = Alarm::default();
        // Deadlines given up, then replaced by one that is later, earlier, or equal.
        for (given_up, deadline) in [(50, 80), (500, 100), (110, 130), (140, 135), (150, 150)] {
            let first = poll_fn(|cx| Poll::Ready(alarm.poll(at(given_up), cx))).await;
            assert!(first.is_pending(), "{given_up}");
            poll_fn(|cx| alarm.poll(at(deadline), cx)).await;
            assert_eq!(Instant::now(), at(deadline));
        }
        poll_fn(|cx| alarm.poll(at(100), cx)).await;
        assert_eq!(Instant::now(), at(150), "that is past");
    }
}
