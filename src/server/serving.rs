//! A proxy that serves, until it is told to end or another process has taken its place.

use std::{
    future::pending,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{
    net::TcpListener,
    runtime::Handle,
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::{info, warn};

use crate::{
    config,
    data::DataNode,
    server::{
        admin,
        fleet::{self, FleetTelling},
        systemd,
        upgrade::{self, Rendezvous, Replaced},
        workers::Workers,
    },
    session::{Shared, earlier::WhatIsLeft},
};

/// How long aborted sessions may take to end, and then the last releases to reach the nodes.
const RELEASE_GRACE: Duration = Duration::from_millis(500);

/// A proxy whose doors are open.
pub(super) struct Serving {
    pub(super) shutdown: CancellationToken,
    /// Reads the configuration again, even once another process has replaced this one: what changes for a lock node
    /// concerns the clients that stay.
    pub(super) reloading: JoinSet<()>,
    /// Whether another process has replaced this one.
    pub(super) replaced: Arc<AtomicBool>,
    /// Tasks that only one process at a time must run.
    pub(super) in_charge: JoinSet<()>,
    pub(super) doors: Stoppable,
    /// Apart from the doors: if the proxy is told to end, it serves the pages until everything else has ended.
    pub(super) admin: Stoppable,
    /// Sockets that a successor would get, with their configured addresses.
    pub(super) sockets: Vec<(SocketAddr, Arc<TcpListener>)>,
    /// The socket at which a successor asks. `None` if `upgrade_socket` is off, or could not be
    /// made.
    pub(super) rendezvous: Option<Rendezvous>,
    pub(super) shared: Arc<Shared>,
    pub(super) state: Arc<admin::PageSource>,
    pub(super) data: Arc<DataNode>,
    pub(super) workers: Arc<Workers>,
    pub(super) telling: FleetTelling,
}

/// Reason why a proxy stops accepting clients.
pub(super) enum End {
    /// The proxy was told to end.
    Shutdown,
    /// Another process accepts clients now.
    Replaced(Replaced),
}

impl Serving {
    /// Waits until the proxy is told to end, or another process has taken its place.
    pub(super) async fn until_end(&mut self) -> End {
        let is_ready = || async { self.state.is_ready_now().await.is_ok() };
        let end = tokio::select! {
            () = self.shutdown.cancelled() => End::Shutdown,
            replaced = upgrade::wait(self.rendezvous.as_ref(), &self.sockets, (&self.shared.config, &self.data), is_ready) => {
                End::Replaced(replaced)
            }
        };
        // Each socket closes with its door.
        self.sockets.clear();
        end
    }

    /// Lets no more clients in, gives connected ones their time, and ends.
    pub(super) async fn end(mut self, end: End) {
        match end {
            End::Replaced(replaced) => self.give_way(replaced).await,
            End::Shutdown => self.close_doors().await,
        }
        self.drain().await;
        fleet::farewell(&self.shared, self.telling).await;
        self.in_charge.shutdown().await;
        self.reloading.shutdown().await;
        self.admin.stop.cancel();
    }

    /// Leaves everything but its clients to the process that has taken over. Serves the clients
    /// for as long as `upgrade_grace` allows.
    async fn give_way(&mut self, replaced: Replaced) {
        self.replaced.store(true, Ordering::Release);
        self.in_charge.shutdown().await;
        self.doors.stop.cancel();
        self.admin.stop.cancel();
        self.doors.ended().await;
        self.admin.ended().await;
        debug_assert!(self.doors.tasks.is_empty() && self.sockets.is_empty(), "nobody accepts");
        let (by, grace) = (replaced.by(), self.shared.config.load().upgrade_grace);
        let told = grace.map_or_else(|| "off".to_owned(), config::written);
        replaced.done().await;
        let connections = self.workers.running();
        info!(by, connections, grace = told, "replaced; serving the connections there are");
        let own = || self.left();
        tokio::select! {
            () = self.workers.finished() => {}
            () = self.shutdown.cancelled() => {}
            () = replaced.tell(own, &self.shared.metrics.earlier) => {}
            () = passed(grace) => warn!("upgrade_grace is over"),
        }
    }

    /// Returns what this process still has.
    fn left(&self) -> WhatIsLeft {
        let counts = self.shared.engine.counts();
        let count = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
        WhatIsLeft {
            connections: count(self.workers.running()),
            held: count(counts.held),
            waiters: count(counts.waiters),
        }
    }

    /// Announces that this proxy ends, and lets clients in for `shutdown_delay` more.
    async fn close_doors(&mut self) {
        upgrade::leave(self.rendezvous.take());
        self.state.drain();
        systemd::stopping().await;
        let delay = self.shared.config.load().shutdown_delay;
        if !delay.is_zero() {
            info!(
                delay = config::written(delay),
                "draining: /readyz says so, and clients are still let in"
            );
            sleep(delay).await;
        }
        self.doors.stop.cancel();
    }

    /// Ends the sessions after `shutdown_grace` at the latest, and releases their locks.
    async fn drain(&self) {
        let Shared { config, engine, draining, drain, abort, roll, .. } = &*self.shared;
        let grace = config.load().shutdown_grace;
        let connections = self.workers.running();
        info!(connections, grace = config::written(grace), "shutting down");
        draining.store(true, Ordering::Relaxed);
        drain.cancel();
        roll.wake_all();
        if timeout(grace, self.workers.finished()).await.is_err() {
            warn!(connections = self.workers.running(), "closed with commands still in flight");
            abort.cancel();
            roll.wake_all();
            let _ = timeout(RELEASE_GRACE, self.workers.finished()).await;
        }
        engine.drain(RELEASE_GRACE).await;
    }
}

/// Returns once `time` has passed; never if there is none.
async fn passed(time: Option<Duration>) {
    match time {
        Some(time) => sleep(time).await,
        None => pending().await,
    }
}

/// Tasks that are stopped together.
#[derive(Default)]
pub(super) struct Stoppable {
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl Stoppable {
    pub(super) fn spawn<F>(&self, task: impl FnOnce(CancellationToken) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.spawn_on(task, &Handle::current());
    }

    /// Spawns a task on this runtime.
    pub(super) fn spawn_on<F>(&self, task: impl FnOnce(CancellationToken) -> F, runtime: &Handle)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.tasks.spawn_on(task(self.stop.clone()), runtime);
    }

    async fn ended(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }
}
