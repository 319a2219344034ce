//! The sending end of the connection to one lock node: a queue into which putting is
//! synchronous, and which the connection empties in order. That order is what keeps a release
//! from overtaking its own acquire, on the slowest node too.

use std::{
    collections::VecDeque,
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::Waker,
    time::Duration,
};

use thiserror::Error;
use tokio::sync::Notify;

use crate::{
    lock::{operation::Operation, reply},
    sync::Mutex,
};

/// Why a connection ended.
#[derive(Debug, Error)]
pub(super) enum Closed {
    /// The node closed it, or the network did.
    #[error("disconnected: {0}")]
    Io(#[from] io::Error),
    /// Requests were in flight and nothing came for `locks.node_silence`.
    #[error("silent for {0:?}")]
    Silent(Duration),
    /// It answered what Redis does not answer.
    #[error("{0}")]
    Garbage(#[from] reply::Garbage),
    /// It is not what it was admitted as: its marker has changed, or it has become a
    /// replica. It is to be looked at anew.
    #[error("{0}")]
    Changed(&'static str),
    /// The engine has gone.
    #[error("not needed any more")]
    Unused,
}

/// What goes through the queue.
pub(super) enum Queued {
    /// One node's part of an operation.
    Operation(Arc<Operation>),
    /// A command whose reply does not matter.
    Blind(Vec<u8>),
}

impl Queued {
    /// The operation in it, if it is one.
    pub(super) fn operation(self) -> Option<Arc<Operation>> {
        match self {
            Queued::Operation(operation) => Some(operation),
            Queued::Blind(_) => None,
        }
    }
}

/// The sending end of a connection.
#[derive(Clone)]
pub(super) struct Link {
    pub(super) sender: Arc<Sender>,
    /// What CLIENT ID said, to be able to end this connection from the next one.
    pub(super) client_id: Option<i64>,
    pub(super) run_id: Option<String>,
}

/// What all clones of a [`Link`] share. Dropped with the last of them, it ends the
/// connection.
pub(super) struct Sender(pub(super) Arc<LinkShared>);

impl Drop for Sender {
    fn drop(&mut self) {
        let mut queue = self.0.queue.lock();
        queue.closed = true;
        let waker = queue.waker.take();
        drop(queue);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

pub(super) struct LinkShared {
    pub(super) queue: Mutex<JobQueue>,
    /// Operations queued or in flight.
    pub(super) pending: AtomicUsize,
    pub(super) closed: AtomicBool,
    /// It is to end, as its node is to be looked at anew.
    pub(super) ending: AtomicBool,
    pub(super) ended: Notify,
}

impl LinkShared {
    /// Why the connection is to end, if [`Link::end`] has said so.
    pub(super) fn ended_from_outside(&self) -> Option<Closed> {
        let ending = self.ending.load(Ordering::Acquire);
        ending.then_some(Closed::Changed("it is looked at anew"))
    }

    /// One of those that were queued or in flight is answered.
    pub(super) fn done(&self) {
        let before = self.pending.fetch_sub(1, Ordering::Relaxed);
        debug_assert!(before > 0, "what is answered was sent");
    }
}

/// Jobs of all clients. The connection takes them all at once, so that neither
/// side pays for more than a lock that is nearly always free.
#[derive(Default)]
pub(super) struct JobQueue {
    pub(super) jobs: VecDeque<Queued>,
    /// Nothing is put into it any more.
    pub(super) closed: bool,
    /// Of the connection, while it waits for a job.
    pub(super) waker: Option<Waker>,
}

/// What was not answered when the connection ended.
pub(super) struct Leftover {
    /// Sent, outcome unknown.
    pub(super) sent: Vec<Arc<Operation>>,
    pub(super) unsent: Vec<Arc<Operation>>,
    pub(super) reason: Closed,
}

impl Link {
    /// Operations queued or in flight.
    pub(super) fn pending(&self) -> usize {
        self.sender.0.pending.load(Ordering::Relaxed)
    }

    /// Puts a job at the end of the queue. False: the connection has ended.
    #[inline]
    pub(super) fn send(&self, job: Queued) -> bool {
        let shared = &self.sender.0;
        shared.pending.fetch_add(1, Ordering::Relaxed);
        let mut queue = shared.queue.lock();
        if queue.closed {
            return false;
        }
        queue.jobs.push_back(job);
        let waker = queue.waker.take();
        drop(queue);
        if let Some(waker) = waker {
            waker.wake();
        }
        true
    }

    /// Ends the connection: its node is to be looked at anew.
    pub(super) fn end(&self) {
        let shared = &self.sender.0;
        shared.ending.store(true, Ordering::Release);
        let mut queue = shared.queue.lock();
        queue.closed = true;
        let waker = queue.waker.take();
        drop(queue);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Whether the connection has ended.
    pub(super) fn is_closed(&self) -> bool {
        self.sender.0.closed.load(Ordering::Acquire)
    }

    /// Waits until the connection has ended.
    pub(super) async fn closed(&self) {
        loop {
            let ended = self.sender.0.ended.notified();
            if self.is_closed() {
                return;
            }
            ended.await;
        }
    }
}
