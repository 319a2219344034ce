//! The tasks of all sessions: when the proxy ends, all of them wake up. A token that each session awaits would take
//! several times the memory.

use std::{sync::Arc, task::Waker};

use slab::Slab;

use crate::sync::Mutex;

/// How many places are always kept.
const FEW: usize = 1024;

/// The tasks of all sessions.
#[derive(Default)]
pub(crate) struct Roll(Mutex<Slab<Waker>>);

/// A session's place on the roll, which it leaves when this is dropped.
pub(super) struct Enrolled {
    roll: Arc<Roll>,
    place: usize,
}

impl Roll {
    /// Wakes all sessions, so that each looks whether it must end.
    pub(crate) fn wake_all(&self) {
        // A task that is woken may end at once, and leave the roll.
        let wakers: Vec<Waker> = self.0.lock().iter().map(|(_, waker)| waker.clone()).collect();
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl Enrolled {
    /// Adds a session's task.
    pub(super) fn new(roll: Arc<Roll>, waker: Waker) -> Enrolled {
        let place = roll.0.lock().insert(waker);
        Enrolled { roll, place }
    }
}

impl Drop for Enrolled {
    fn drop(&mut self) {
        let mut roll = self.roll.0.lock();
        let left = roll.try_remove(self.place);
        // The memory of many sessions is not kept for few.
        if roll.is_empty() && roll.capacity() > FEW {
            *roll = Slab::new();
        }
        drop((roll, left));
    }
}
