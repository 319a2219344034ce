//! Which session locks a connection has lost, and by when it must look for itself.

use std::{
    sync::{
        MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
    task::Waker,
};

use crate::{
    clock::Instant,
    key::{Key, Token},
    sync::Mutex,
};

/// A lock that was lost.
#[derive(Debug)]
pub(crate) struct Lost {
    /// Its key on the nodes.
    pub key: Key,
    /// With which it was held.
    pub token: Token,
    /// Another connection has taken it over or released it; that may be the same one,
    /// which then does not keep it any more ([`Keep::is`](super::keeper::Keep::is)).
    pub replaced: bool,
    /// Of the watch.
    pub(in crate::lock) id: u64,
}

/// What one connection is to be told of.
#[derive(Debug)]
pub(crate) struct Losses {
    any: AtomicBool,
    lost: Mutex<Vec<Lost>>,
    /// Before that, no lock of the connection's is lost for want of a renewal; none:
    /// it keeps none.
    check_at: Mutex<Option<Instant>>,
    waker: Waker,
}

impl Losses {
    /// None yet. `waker` is woken for each.
    pub(crate) fn new(waker: Waker) -> Losses {
        let (any, lost) = (AtomicBool::new(false), Mutex::default());
        Losses { any, lost, check_at: Mutex::default(), waker }
    }

    /// Whether validity may have ended of a lock that is kept. If so, each must be looked
    /// at ([`Keep::valid_until`](super::keeper::Keep::valid_until)), and the next check be
    /// set ([`Losses::check_by`]).
    pub(crate) fn is_check_due(&self) -> bool {
        self.check_at.lock().take_if(|check_at| *check_at <= Instant::now()).is_some()
    }

    /// A check is due then, if none is before.
    pub(crate) fn check_by(&self, valid_until: Instant) {
        let mut check_at = self.check_at.lock();
        *check_at = Some(check_at.map_or(valid_until, |before| before.min(valid_until)));
    }

    /// Whether there is anything to take.
    pub(crate) fn any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    /// Takes the locks that were lost since the last time.
    pub(crate) fn take(&self) -> Vec<Lost> {
        let mut lost = self.lock();
        self.any.store(false, Ordering::Release);
        std::mem::take(&mut lost)
    }

    /// Returns once every loss that had been found is among those to take.
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

    /// Has [`Losses::settle`] wait for as long as this is held.
    pub(in crate::lock) fn lock(&self) -> MutexGuard<'_, Vec<Lost>> {
        self.lost.lock()
    }
}
