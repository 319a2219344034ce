//! The sending end of the connection to one lock node: a queue that takes jobs synchronously and that the connection
//! empties in order. That order keeps a release from overtaking its own acquire, even on the slowest node.

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

use crate::{lock::operation::Operation, resp::flat, sync::Mutex};

/// Why a connection ended.
#[derive(Debug, Error)]
pub(super) enum Closed {
    /// The node or the network closed the connection.
    #[error("disconnected: {0}")]
    Io(#[from] io::Error),
    /// Requests were in flight and nothing came for `locks.node_silence`.
    #[error("silent for {0:?}")]
    Silent(Duration),
    /// The node sent bytes that are no Redis reply.
    #[error("{0}")]
    Garbage(#[from] flat::Garbage),
    /// The node's marker has changed: an epoch has begun, or the node has lost its memory.
    #[error("its marker is not the one it was admitted by")]
    Unproven,
    /// The node must be admitted anew ([`Link::end`]).
    #[error("it is looked at anew")]
    Anew,
    /// The node must not vote any more.
    #[error("it has become a replica")]
    Replica,
    /// The engine was dropped.
    #[error("not needed any more")]
    Unused,
}

impl Closed {
    /// Whether the node is probably well and will be admitted again at once.
    pub(super) fn is_brief(&self) -> bool {
        matches!(self, Closed::Unproven | Closed::Anew)
    }
}

/// An entry of the queue.
pub(super) enum Queued {
    /// One node's part of an operation.
    Operation(Arc<Operation>),
    /// A command whose reply does not matter.
    Blind(Vec<u8>),
}

impl Queued {
    /// Returns the entry's operation; `None` for a blind command.
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
    /// The answer to CLIENT ID, by which the next connection can end this one.
    pub(super) client_id: Option<i64>,
    pub(super) run_id: Option<String>,
}

/// The part that all clones of a [`Link`] share. The connection ends when the last of them is
/// dropped.
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
    /// Jobs queued or in flight: operations, and commands whose replies do not matter.
    pub(super) pending: AtomicUsize,
    pub(super) closed: AtomicBool,
    /// Whether the connection is to end, because its node must be admitted anew.
    pub(super) ending: AtomicBool,
    pub(super) ended: Notify,
}

impl LinkShared {
    /// Returns why the connection must end, if [`Link::end`] was called.
    pub(super) fn ended_from_outside(&self) -> Option<Closed> {
        let ending = self.ending.load(Ordering::Acquire);
        ending.then_some(Closed::Anew)
    }

    /// Notes that a job queued or in flight is answered.
    pub(super) fn done(&self) {
        let before = self.pending.fetch_sub(1, Ordering::Relaxed);
        debug_assert!(before > 0, "what is answered was sent");
    }
}

/// Jobs for all clients. The connection takes them all at once, so each side pays only for a mutex that is nearly
/// always free.
#[derive(Default)]
pub(super) struct JobQueue {
    pub(super) jobs: VecDeque<Queued>,
    /// Whether the queue takes no more jobs.
    pub(super) closed: bool,
    /// The connection's task, while it waits for a job.
    pub(super) waker: Option<Waker>,
}

/// Operations not answered when the connection ended.
pub(super) struct Leftover {
    /// Operations sent, with an unknown outcome.
    pub(super) sent: Vec<Arc<Operation>>,
    /// Operations that the node has not carried out: it could not prove its marker, or they were not sent. In the
    /// order of submission.
    pub(super) unsent: Vec<Arc<Operation>>,
    pub(super) reason: Closed,
}

impl Link {
    /// Returns the number of jobs queued or in flight.
    pub(super) fn pending(&self) -> usize {
        self.sender.0.pending.load(Ordering::Relaxed)
    }

    /// Puts a job at the end of the queue. Returns false if the connection has ended.
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

    /// Ends the connection, because its node must be admitted anew.
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
