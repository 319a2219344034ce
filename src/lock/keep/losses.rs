//! Session locks that a connection has lost, and the time by which it must check its locks itself.

use std::{
    sync::{
        Arc, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
    task::Waker,
};

use crate::{
    card::ClientCard,
    clock::Instant,
    key::{Key, Token},
    sync::Mutex,
};

/// A lock that was lost.
#[derive(Debug)]
pub(crate) struct Lost {
    /// The lock's key on the nodes.
    pub key: Key,
    /// The token that held the lock.
    pub token: Token,
    /// Whether a connection has taken the lock over or released it: another one, or this one itself, which then does
    /// not keep it any more ([`Keep::is`](super::keeper::Keep::is)).
    pub replaced: bool,
    /// What the connection's client is to know of the loss.
    pub kind: LossKind,
    /// The `id` of the lock's watch.
    pub(in crate::lock) id: u64,
}

/// What a client is to know of the loss of a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LossKind {
    /// The client is told, as `locks.on_lost` says.
    Told,
    /// An adopted command took the lock without a TTL, and its library knows no LOCKLOST: the loss is logged, and the
    /// client is not told, unless `locks.on_lost: close` ends its connection.
    Unknown,
    /// As `Unknown`, but the lock may have been released, or given a TTL, by another connection of
    /// the same client.
    Ended,
}

/// Losses that one connection is to be told of.
#[derive(Debug)]
pub(crate) struct Losses {
    any: AtomicBool,
    lost: Mutex<Vec<Lost>>,
    /// The time before which no lock of the connection is lost for want of a renewal. `None`: it
    /// keeps no lock.
    check_at: Mutex<Option<Instant>>,
    waker: Waker,
    /// The connection's client, for the log.
    card: Arc<ClientCard>,
}

impl Losses {
    /// Creates an empty list. `waker` is woken for each loss.
    pub(crate) fn new(waker: Waker, card: Arc<ClientCard>) -> Losses {
        let (any, lost) = (AtomicBool::new(false), Mutex::default());
        Losses { any, lost, check_at: Mutex::default(), waker, card }
    }

    /// Returns the address of the connection's client, and its name.
    pub(in crate::lock) fn client(&self) -> (String, Arc<str>) {
        (self.card.address(), self.card.name())
    }

    /// Takes the check that is due, and returns whether there was one: the validity of a kept lock may have ended. The
    /// caller must then look at each lock
    /// ([`Keep::valid_until`](super::keeper::Keep::valid_until)) and set the next check ([`Losses::check_by`]).
    pub(crate) fn take_due_check(&self) -> bool {
        self.check_at.lock().take_if(|check_at| *check_at <= Instant::now()).is_some()
    }

    /// Sets a check for `valid_until`, unless one is due before.
    pub(crate) fn check_by(&self, valid_until: Instant) {
        let mut check_at = self.check_at.lock();
        *check_at = Some(check_at.map_or(valid_until, |before| before.min(valid_until)));
    }

    /// Whether there is a loss to take.
    pub(crate) fn any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    /// Takes the losses since the last time.
    pub(crate) fn take(&self) -> Vec<Lost> {
        let mut lost = self.lock();
        self.any.store(false, Ordering::Release);
        std::mem::take(&mut lost)
    }

    /// Waits until every loss found so far can be taken.
    pub(crate) fn settle(&self) {
        drop(self.lock());
    }

    /// Adds a loss and wakes the connection.
    pub(in crate::lock) fn tell(&self, loss: Lost) {
        self.add(&mut self.lock(), loss);
        self.wake();
    }

    /// Adds a loss while [`Losses::lock`] is held.
    pub(in crate::lock) fn add(&self, lost: &mut Vec<Lost>, loss: Lost) {
        lost.push(loss);
        self.any.store(true, Ordering::Release);
    }

    /// Wakes the connection, which then takes what was added.
    pub(in crate::lock) fn wake(&self) {
        self.waker.wake_by_ref();
    }

    /// Locks the list. [`Losses::settle`] waits for as long as the guard lives.
    pub(in crate::lock) fn lock(&self) -> MutexGuard<'_, Vec<Lost>> {
        self.lost.lock()
    }
}
