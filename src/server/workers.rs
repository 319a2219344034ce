//! The threads on which sessions run: as many as cores unless told otherwise, each with a
//! runtime of its own.
//!
//! A session never moves to another thread, and shares nothing with others on a byte's path. So a scheduler whose
//! threads steal tasks gains nothing: it woke them for one another's work, and cost a seventh of the CPU at pipeline
//! depth 16 (bench/README.md).

use std::{
    future::Future,
    io,
    sync::atomic::{AtomicUsize, Ordering},
    thread::{self, JoinHandle},
};

use tokio::runtime::{Builder, Handle};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// The number of tasks from which on a thread gets no more of those that share connections, while another has fewer. The
/// proxy's own tasks, of which the first thread has some dozens, count too.
const FEW: usize = 128;

/// The threads. Dropping this ends the tasks that still run.
pub(super) struct Workers {
    handles: Vec<Handle>,
    shared: Handle,
    threads: Vec<JoinHandle<()>>,
    /// Counts tasks; tells which thread gets the next.
    next: AtomicUsize,
    /// Every task, so that a shutdown can wait for them.
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl Workers {
    /// Starts `count` threads; without one, as many as there are cores to run on.
    ///
    /// # Errors
    /// If the operating system gives no thread or no epoll.
    pub(super) fn start(count: Option<usize>) -> io::Result<Workers> {
        let cores = || thread::available_parallelism().map_or(1, usize::from);
        let count = count.unwrap_or_else(cores);
        let stop = CancellationToken::new();
        let (mut handles, mut threads) = (Vec::new(), Vec::new());
        for number in 0..count {
            let runtime = Builder::new_current_thread().enable_all().build()?;
            handles.push(runtime.handle().clone());
            let stop = stop.clone();
            let worker = move || runtime.block_on(stop.cancelled());
            threads.push(thread::Builder::new().name(format!("worker-{number}")).spawn(worker)?);
        }
        let Some(shared) = handles.first().cloned() else {
            return Err(io::Error::other("no thread to run on"));
        };
        Ok(Workers {
            handles,
            shared,
            threads,
            next: AtomicUsize::new(0),
            tasks: TaskTracker::new(),
            stop,
        })
    }

    /// Returns the next thread in turn.
    pub(super) fn next(&self) -> Worker<'_> {
        let turn = self.next.fetch_add(1, Ordering::Relaxed) % self.handles.len();
        Worker { runtime: &self.handles[turn], tasks: &self.tasks }
    }

    /// Returns a thread for a task that shares connections with others of its thread: the first thread with few tasks, or
    /// the one with fewest if there is none. The more clients share a link, the more commands are sent by one system
    /// call, and executed by Redis at once: spread over 16 threads, 50 clients would share next to nothing.
    pub(super) fn beside_others(&self) -> Worker<'_> {
        let tasks = |handle: &&Handle| handle.metrics().num_alive_tasks().max(FEW);
        // The first of equals.
        let runtime = self.handles.iter().min_by_key(tasks).unwrap_or(&self.shared);
        Worker { runtime, tasks: &self.tasks }
    }

    /// Returns the number of tasks that have not ended.
    pub(super) fn running(&self) -> usize {
        self.tasks.len()
    }

    /// Returns the runtime of one thread, for the parts that all sessions share.
    pub(super) fn shared(&self) -> &Handle {
        &self.shared
    }

    /// Waits until every thread has run a task. Never returns if a thread is stuck.
    pub(super) async fn answer(&self) {
        for handle in &self.handles {
            // A thread that has ended is not stuck.
            let _ = handle.spawn(async {}).await;
        }
    }

    /// Waits until all tasks have ended.
    pub(super) async fn finished(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }
}

/// One of the threads, chosen for a task.
pub(super) struct Worker<'a> {
    runtime: &'a Handle,
    tasks: &'a TaskTracker,
}

impl Worker<'_> {
    /// Whether this is the thread of the caller.
    pub(super) fn is_here(&self) -> bool {
        self.runtime.id() == Handle::current().id()
    }

    /// Runs a task on this thread.
    pub(super) fn spawn(self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn_on(task, self.runtime);
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.stop.cancel();
        for thread in self.threads.drain(..) {
            // A worker that panicked has nothing left to end.
            let _ = thread.join();
        }
    }
}
