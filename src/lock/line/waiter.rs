//! One client that waits in line for a lock.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::time::{Instant, Sleep, sleep_until};

use super::{
    circle_confirmed,
    in_line::LineUp,
    queue::{Departure, WaiterTurn},
};
use crate::{
    card::ClientCard,
    key::{Key, Token},
    lock::{Acquire, Claim, Grant, NotGranted, lock_metrics::WakeUp, locks::Locks},
};

/// Numbers that tell waiters apart.
static TICKETS: AtomicU64 = AtomicU64::new(0);

/// Returns the number of a new waiter.
pub(super) fn next_ticket() -> u64 {
    TICKETS.fetch_add(1, Ordering::Relaxed)
}

/// Whether a circle exists, once the lock nodes have answered.
type Standing = Pin<Box<dyn Future<Output = bool> + Send>>;

/// A LOCK that waits in line. Dropped before it is ready, it leaves the queue and is undone on
/// every node.
///
/// A request under way when the time is up may still be granted: it takes no longer than a LOCK
/// that does not wait.
pub struct Waiter {
    locks: Arc<Locks>,
    key: Key,
    token: Token,
    ttl: Duration,
    /// Whether it is a reader.
    shared: bool,
    /// The client that waits, if that is known.
    card: Option<Arc<ClientCard>>,
    ticket: u64,
    /// Whether the waiter has a place in the queue.
    seated: bool,
    /// Whether it had to wait there.
    has_waited: bool,
    since: Instant,
    deadline: Instant,
    asking: Option<Acquire>,
    /// The circle that the wait seems to close, and whether it does.
    circle: Option<(Vec<Key>, Standing)>,
    timer: Pin<Box<Sleep>>,
    /// The last answer of the nodes.
    last: NotGranted,
}

impl Waiter {
    pub(in crate::lock) fn new(
        locks: &Arc<Locks>,
        key: Key,
        token: Token,
        ttl: Duration,
        wait: Duration,
        again: Option<Claim>,
    ) -> Waiter {
        let since = Instant::now();
        let deadline = since + wait;
        // A client that has the lock already must not wait for itself.
        let asking =
            again.map(|_| Acquire::ask(&locks.grants, key.clone(), token.clone(), ttl, again));
        Waiter {
            locks: locks.clone(),
            key,
            token,
            ttl,
            shared: false,
            card: None,
            ticket: next_ticket(),
            seated: false,
            has_waited: false,
            since,
            deadline,
            asking,
            circle: None,
            timer: Box::pin(sleep_until(deadline)),
            last: NotGranted::held(false),
        }
    }

    /// Asks for a reader's part of the lock. Where nobody waits, it is asked for before there is a line: readers do not
    /// wait for one another.
    pub(in crate::lock) fn shared(mut self) -> Waiter {
        self.shared = true;
        if self.locks.queues.is_nobody_there(&self.key) {
            let (grants, token) = (&self.locks.grants, self.token.clone());
            self.asking =
                Some(Acquire::ask_shared(grants, &self.key, token, self.ttl, Claim::new()));
        }
        self
    }

    /// Notes which client waits.
    pub(crate) fn by(mut self, card: &Arc<ClientCard>) -> Waiter {
        self.asking = self.asking.take().map(|asking| asking.by(card));
        self.card = Some(card.clone());
        self
    }

    /// Notes on a request which client it is for.
    fn in_its_name(&self, asking: Acquire) -> Acquire {
        match &self.card {
            Some(card) => asking.by(card),
            None => asking,
        }
    }

    /// Notes that the wait has begun, and checks whether it closes a circle.
    fn look_for_circle(&mut self) {
        let Some(card) = &self.card else { return };
        let holders = &self.locks.grants.holders;
        let Some(found) = self.locks.circles.begin(holders, &self.key, card) else { return };
        let keys = found.iter().map(|lock| lock.key.clone()).collect();
        let standing = circle_confirmed::stands(self.locks.grants.clone(), found, card.clone());
        self.circle = Some((keys, Box::pin(standing)));
    }

    fn leave(&mut self, how: Departure) {
        if std::mem::take(&mut self.seated) {
            if let Some(card) = &self.card {
                card.set_waits_for(None);
            }
            self.locks.queues.leave(&self.key, self.ticket, how);
            let waited = self.since.elapsed();
            self.locks.grants.metrics.waited(&self.key, waited);
            if self.has_waited {
                self.locks.hot.count(&self.key, waited);
            }
        }
    }

    /// Returns the keys of the circle of waiters in which this one is, once the circle is known to stand.
    fn poll_circle(&mut self, cx: &mut Context<'_>) -> Option<Vec<Key>> {
        let (keys, standing) = self.circle.as_mut()?;
        let Poll::Ready(stands) = standing.as_mut().poll(cx) else { return None };
        let keys = std::mem::take(keys);
        self.circle = None;
        stands.then_some(keys)
    }

    /// Waits until `until` or the deadline, whichever is first.
    fn poll_timer(&mut self, until: Option<Instant>, cx: &mut Context<'_>) -> Poll<()> {
        let until = until.map_or(self.deadline, |until| until.min(self.deadline));
        if self.timer.deadline() != until {
            self.timer.as_mut().reset(until);
        }
        self.timer.as_mut().poll(cx)
    }
}

impl Future for Waiter {
    type Output = Result<Grant, NotGranted>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            if let Some(keys) = self.poll_circle(cx) {
                self.asking = None;
                self.leave(Departure::Gone);
                return Poll::Ready(Err(NotGranted::Deadlock { keys }));
            }
            if let Some(asking) = &mut self.asking {
                let result = ready!(Pin::new(asking).poll(cx));
                self.asking = None;
                match result {
                    Ok(grant) => {
                        let ttl = self.ttl;
                        self.leave(Departure::Granted(ttl));
                        return Poll::Ready(Ok(grant));
                    }
                    Err(why) => {
                        if self.seated {
                            self.locks.queues.refused(&self.key, self.ticket, &why);
                        }
                        self.last = why;
                    }
                }
            }
            if !self.seated {
                let (token, ttl, card) = (self.token.clone(), self.ttl, self.card.clone());
                let asked = LineUp { token, ttl, shared: self.shared, card };
                self.locks.queues.join(&self.key, asked, self.ticket)?;
                self.seated = true;
                self.look_for_circle();
                if self.circle.is_some() {
                    continue;
                }
            }
            let until = match self.locks.queues.turn(&self.key, self.ticket, cx.waker()) {
                WaiterTurn::Take(acquire) => {
                    self.locks.grants.metrics.woken(WakeUp::HandOver);
                    self.locks.grants.metrics.handovers.increment(1);
                    self.asking = Some(self.in_its_name(acquire));
                    continue;
                }
                WaiterTurn::Ask(reason) if reason.is_none() || Instant::now() < self.deadline => {
                    if let Some(reason) = reason {
                        self.locks.grants.metrics.woken(reason);
                    }
                    let (grants, token, ttl) = (&self.locks.grants, self.token.clone(), self.ttl);
                    let asking = match self.shared {
                        true => Acquire::ask_shared(grants, &self.key, token, ttl, Claim::new()),
                        false => Acquire::ask_in_line(grants, self.key.clone(), token, ttl),
                    };
                    self.asking = Some(self.in_its_name(asking));
                    continue;
                }
                WaiterTurn::Ask(_) => None,
                WaiterTurn::Wait(until) => until,
            };
            if Instant::now() >= self.deadline {
                // Only the head hears from the nodes, so the others get its error.
                let no_quorum = self.locks.queues.no_quorum(&self.key);
                self.leave(Departure::Gone);
                return Poll::Ready(Err(
                    no_quorum.map_or_else(|| self.last.clone(), NotGranted::NoQuorum)
                ));
            }
            self.has_waited = true;
            ready!(self.poll_timer(until, cx));
        }
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        // The waiter's request is undone before the next one asks.
        self.asking = None;
        self.leave(Departure::Gone);
    }
}
