//! How long others wait for a client that takes its replies slowly, until it is closed.
//!
//! One that takes nothing has three seconds: the system of a client that reads slowly takes what it reads in bursts, at
//! times of more than a second. Where several such clients are one behind the other on a link, each has half the time
//! of the one before, so that whoever is behind them all waits little longer than behind two. The same holds for those
//! that take something, in whose place others wait for ten seconds.

use std::{
    ops::Range,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use tokio::time::{Instant, Sleep, sleep};

use super::mailbox::{Mailbox, SHARED_HELD};

/// A client for which others wait is closed, if it takes less than [`SHARED_HELD`] in this time.
const PATIENCE: Duration = Duration::from_secs(3);
/// A client for which others have waited for so long is closed, if it has taken less than [`FAST`] bytes a second
/// meanwhile: a reply of 512 MB may else last for hours.
const LONG: Duration = Duration::from_secs(10);
const FAST: u64 = 10_000_000;
/// The least time for each client: one that reads takes much meanwhile, also on a busy machine.
const LEAST: Duration = Duration::from_millis(250);

/// What a link knows of the time for which others wait for its owners.
#[derive(Default)]
pub(super) struct Patience {
    /// The number of the last of those who wait.
    last: u64,
    /// How many owners were closed since they wait, as they took nothing, and as they took too little.
    closed: (u32, u32),
    present: Option<PresentOwner>,
}

/// The owner for which others wait now.
struct PresentOwner {
    mailbox: Arc<Mailbox>,
    /// Since when they wait for it, and all that it had taken then.
    since: Instant,
    before: u64,
    /// What it had taken when it was last looked at, and when to look again.
    look: Option<(u64, Pin<Box<Sleep>>)>,
}

/// Returns the time that is left for a client behind so many that were closed.
fn halved(time: Duration, closed: u32) -> Duration {
    time.checked_div(1_u32.checked_shl(closed).unwrap_or(u32::MAX)).unwrap_or_default().max(LEAST)
}

impl Patience {
    /// Notes that others wait for what this client takes, which has taken so many bytes in all. `turns`: the numbers of
    /// those whose turn it is on the link, the owner first.
    pub(super) fn note(&mut self, owner: &Arc<Mailbox>, taken: u64, turns: Range<u64>) {
        if turns.start >= self.last {
            (self.last, self.closed) = (turns.end, (0, 0));
        }
        if !self.present.as_ref().is_some_and(|present| Arc::ptr_eq(&present.mailbox, owner)) {
            let (mailbox, since) = (owner.clone(), Instant::now());
            self.present = Some(PresentOwner { mailbox, since, before: taken, look: None });
        }
    }

    /// Notes that the client for which others wait has taken enough for now.
    pub(super) fn rest(&mut self) {
        if let Some(present) = &mut self.present {
            present.look = None;
        }
    }

    /// Notes that nobody waits.
    pub(super) fn end(&mut self) {
        self.present = None;
    }

    /// Whether the client that was noted last takes too little, as far as others can see who get nothing until it has
    /// taken more: it is to be closed. If not, the task is woken when to ask again.
    pub(super) fn is_over(&mut self, cx: &mut Context<'_>, taken: u64) -> bool {
        let Some(present) = &mut self.present else { return false };
        let (idle, slow) = &mut self.closed;
        let waited = present.since.elapsed();
        let fast = u128::from(FAST) * waited.as_millis() / 1000;
        if waited >= halved(LONG, *slow) && u128::from(taken - present.before) < fast {
            *slow += 1;
            return true;
        }
        let time = halved(PATIENCE, *idle);
        let (before, timer) = present.look.get_or_insert_with(|| (taken, Box::pin(sleep(time))));
        while let Poll::Ready(()) = timer.as_mut().poll(cx) {
            if taken - *before < SHARED_HELD as u64 {
                *idle += 1;
                return true;
            }
            (*before, *timer) = (taken, Box::pin(sleep(time)));
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    const STEP: Duration = Duration::from_millis(10);
    const NEVER: Duration = Duration::from_secs(1000);

    /// Returns how long others wait for a client that takes `some` bytes each `every`, until it is closed. `turn`: whose
    /// turn it is of ten that came together.
    async fn waited(patience: &mut Patience, turn: u64, some: usize, every: Duration) -> Duration {
        let (owner, since, mut taken) = (Arc::default(), Instant::now(), 0);
        loop {
            patience.note(&owner, taken, turn..turn.next_multiple_of(10));
            let is_over = poll_fn(|cx| Poll::Ready(patience.is_over(cx, taken))).await;
            let waited = since.elapsed();
            if is_over || waited > LONG * 2 {
                patience.end();
                return waited;
            }
            tokio::time::sleep(STEP).await;
            let bursts = |time: Duration| time.as_millis() / every.as_millis();
            taken += some as u64 * u64::from(bursts(since.elapsed()) > bursts(waited));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_behind_many_that_take_nothing_waits_little_longer_than_behind_one() {
        let patience = &mut Patience::default();
        let one = waited(patience, 1, 0, NEVER).await;
        assert!(one >= PATIENCE && one < PATIENCE + STEP * 5, "{one:?}");
        let mut all = one;
        for turn in 2..10 {
            let next = waited(patience, turn, 0, NEVER).await;
            assert!(next >= LEAST && next <= one);
            all += next;
        }
        assert!(all < PATIENCE * 2 + LEAST * 8, "{all:?}");
        // Those who come later have not waited before.
        assert!(waited(patience, 11, 0, NEVER).await >= PATIENCE);
    }

    #[tokio::test(start_paused = true)]
    async fn who_takes_some_is_not_closed_before_others_have_waited_for_long() {
        let second = Duration::from_secs(1);
        // In bursts, as systems do.
        for (some, every) in [(SHARED_HELD * 2, second * 2), (1_000_000, second)] {
            let patience = &mut Patience::default();
            let slow = waited(patience, 1, some, every).await;
            assert!(slow >= LONG && slow < LONG + second, "{some}: {slow:?}");
            let next = waited(patience, 2, some, every).await;
            assert!(next >= LONG / 2 && next < LONG / 2 + second, "{some}: {next:?}");
            let apart = waited(patience, 11, some, every).await;
            assert!(apart >= LONG, "{some}: {apart:?}");
        }
        // Behind one that takes enough, the next has all its time, however long others have waited.
        let (patience, enough) = (&mut Patience::default(), usize::try_from(FAST / 5).unwrap());
        assert!(waited(patience, 1, enough, second / 10).await > LONG * 2);
        assert!(waited(patience, 2, 1_000_000, second).await >= LONG);
        assert!(waited(patience, 3, 0, NEVER).await >= PATIENCE);
    }
}
