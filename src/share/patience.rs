//! How long others wait for a client that takes its replies slowly, until it is closed.
//!
//! One that takes nothing has three seconds: the system of a client that reads slowly takes what it reads in bursts, at
//! times of more than a second. Where several such clients are one behind the other on a link, each has half the time
//! of the one before, so that whoever is behind them all waits little longer than behind one.

use std::{
    ops::Range,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use tokio::time::{Instant, Sleep, sleep};

use super::mailbox::{Mailbox, SHARED_HELD};

/// Half of this time has a client for which others wait: if it takes less than [`SHARED_HELD`] meanwhile, it is closed. The
/// next has half of what is left.
const PATIENCE: Duration = Duration::from_secs(6);
/// Where others have waited for so long, a client is closed if it takes less than [`FAST`] bytes a second: a reply of
/// 512 MB may else last for hours.
const LONG: Duration = Duration::from_secs(10);
const FAST: u64 = 10_000_000;
/// The least time for each client: one that reads takes much meanwhile, also on a busy machine.
const LEAST: Duration = Duration::from_millis(250);
/// What a link knows of the time for which others wait for its owners.
#[derive(Default)]
pub(super) struct Patience {
    /// Since when others wait, whoever owned the link meanwhile, and the number of the last of them.
    waiting: Option<(Instant, u64)>,
    present: Option<PresentOwner>,
}

/// The owner for which others wait now.
struct PresentOwner {
    mailbox: Arc<Mailbox>,
    /// Since when they wait for it, and all that it had taken then.
    since: Instant,
    before: u64,
    /// In which time it must take something.
    time: Duration,
    /// What it had taken when it was last looked at, and when to look again.
    look: Option<(u64, Pin<Box<Sleep>>)>,
}

impl Patience {
    /// Notes that others wait for what this client takes, which has taken so many bytes in all. `turns`: the numbers of
    /// those whose turn it is on the link, the owner first.
    pub(super) fn note(&mut self, owner: &Arc<Mailbox>, taken: u64, turns: Range<u64>) {
        let now = Instant::now();
        let (since, _) = *match &mut self.waiting {
            Some(waiting) if turns.start < waiting.1 => waiting,
            waiting => waiting.insert((now, turns.end)),
        };
        if !self.present.as_ref().is_some_and(|present| Arc::ptr_eq(&present.mailbox, owner)) {
            let time = (PATIENCE.saturating_sub(now - since) / 2).max(LEAST);
            let (mailbox, before) = (owner.clone(), taken);
            self.present = Some(PresentOwner { mailbox, since: now, before, time, look: None });
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
    /// taken more. If not, the task is woken when to ask again.
    pub(super) fn is_over(&mut self, cx: &mut Context<'_>, taken: u64) -> bool {
        let (Some((since, _)), Some(present)) = (self.waiting, &mut self.present) else {
            return false;
        };
        let now = Instant::now();
        let (waited, own) = (now - since, now - present.since);
        let least = u128::from(FAST) * own.as_millis() / 1000;
        if waited >= LONG && own >= LEAST && u128::from(taken - present.before) < least {
            return true;
        }
        let time = present.time;
        let (before, timer) = present.look.get_or_insert_with(|| (taken, Box::pin(sleep(time))));
        while let Poll::Ready(()) = timer.as_mut().poll(cx) {
            if taken - *before < SHARED_HELD as u64 {
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
        assert!(one >= PATIENCE / 2 && one < PATIENCE / 2 + STEP * 5, "{one:?}");
        let mut all = one;
        for turn in 2..10 {
            let next = waited(patience, turn, 0, NEVER).await;
            assert!(next >= LEAST && next <= one);
            all += next;
        }
        assert!(all < PATIENCE + LEAST * 8, "{all:?}");
        // Those who come later have not waited before.
        assert!(waited(patience, 11, 0, NEVER).await >= PATIENCE / 2);
    }

    #[tokio::test(start_paused = true)]
    async fn who_takes_some_is_not_closed_before_others_have_waited_for_long() {
        let second = Duration::from_secs(1);
        // In bursts, as systems do.
        for (some, every) in [(SHARED_HELD * 2, second * 2), (1_000_000, second)] {
            let patience = &mut Patience::default();
            let slow = waited(patience, 1, some, every).await;
            assert!(slow >= LONG && slow < LONG + second, "{some}: {slow:?}");
            // The next has a moment, though others have waited for long.
            let next = waited(patience, 2, some, every).await;
            assert!(next >= LEAST && next < second, "{some}: {next:?}");
            let apart = waited(patience, 11, some, every).await;
            assert!(apart >= LONG, "{some}: {apart:?}");
        }
        let some = usize::try_from(FAST / 5).unwrap();
        assert!(waited(&mut Patience::default(), 1, some, second / 10).await > LONG * 2);
    }
}
