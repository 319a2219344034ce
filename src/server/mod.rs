//! Start, accept, drain.
//!
//! Each accepted connection becomes one task with one [`Session`] on one of the
//! [`Workers`]; nothing is shared between sessions but the lock engine and the
//! counters.
//!
//! - [`entry`]: whom this process lets in, and how many.
//! - [`door`]: a listener's clients, from accept to session.
//! - [`workers`]: a thread for each core, to which sessions are dealt.
//! - [`admin`]: `/metrics`, `/healthz`, `/readyz` over HTTP.
//! - [`upgrade`]: one process takes another's place.
//! - [`reload`]: the configuration read again, and what of it can change.
//! - [`systemd`]: what a service manager is told.
//! - [`metrics`]: what is counted of clients' coming and going and of the configuration.
//! - [`logging`]: tracing's output, human on a terminal and JSON otherwise.

pub mod admin;
mod door;
pub mod entry;
pub mod logging;
pub mod metrics;
pub mod reload;
pub mod systemd;
pub mod upgrade;
pub mod workers;

use std::{
    future::pending,
    path::PathBuf,
    slice,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::Context as _;
use arc_swap::ArcSwap;
use tokio::{
    net::TcpListener,
    sync::Notify,
    task::JoinSet,
    time::{Instant, sleep, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::{info, warn};

use self::{
    door::Door,
    entry::{
        admission::Admission,
        descriptors,
        exposure::{self, Exposure},
        introduction::Introduction,
        listeners::Listeners,
    },
    logging::Level,
    metrics::{DoorMetrics, ReloadMetrics},
    reload::Reloader,
    workers::Workers,
};
use crate::{
    config::{Config, Listener},
    guard::Guards,
    lock::{self, Engine},
    net::{self, Acceptor, Connector},
    session::{self, Shared, idle::Idle, metrics::Metrics},
};

/// What is left of the grace for releases to reach the nodes.
const RELEASE_GRACE: Duration = Duration::from_millis(500);

/// How a proxy is started and what reaches it from outside while it runs.
#[derive(Default)]
pub struct Control {
    /// Cancelled when it is to end.
    pub shutdown: CancellationToken,
    /// Told when the configuration is to be read again.
    pub reload: Arc<Notify>,
    /// Told when a process is to be started that takes this one's place.
    pub upgrade: Arc<Notify>,
    /// Where the configuration was read.
    pub file: Option<PathBuf>,
    /// The running log.
    pub log: Option<Level>,
    /// Sockets that are open already.
    pub listeners: Listeners,
    /// It is to take the place of a proxy that runs, if one does.
    pub take_over: bool,
}

/// Runs the proxy until it is to end, or another has taken its place, and what was in
/// flight is done.
///
/// # Errors
/// If an address cannot be listened on, strangers would come to a data node that is open
/// to them, the metrics cannot be set up, or a running proxy's place cannot be taken.
pub async fn run(config: Config, mut control: Control) -> anyhow::Result<()> {
    let shutdown = control.shutdown.clone();
    let recorder = crate::metrics::install()?;
    metrics::describe();
    session::metrics::describe();
    lock::metrics::describe();
    net::tls::metrics::describe();
    let predecessor = upgrade::predecessor(&config, control.take_over).await?;
    let predecessor = predecessor.map(|(predecessor, sockets)| {
        control.listeners.add(sockets);
        predecessor
    });
    let connector = Connector::start("data", &config.tls, slice::from_ref(&config.data))
        .sending_header(config.send_proxy_protocol);
    let exposure = Exposure::find_out(&config, connector.clone()).await?;
    let open = |listener| open(listener, &mut control.listeners);
    let listeners = config.listen.iter().map(open).collect::<anyhow::Result<Vec<_>>>()?;
    let admin_listener = match config.admin {
        Some(addr) => {
            let listener = control.listeners.open(addr);
            let listener = listener.with_context(|| format!("cannot listen on {addr} (admin)"))?;
            Some((addr, Arc::new(listener)))
        }
        None => None,
    };
    control.listeners.close_others();
    let place = upgrade::prepare(&config)?;
    let room = descriptors::make_room(config.maxclients, config.locks.nodes.len());
    let admission = Admission::new(&Config { maxclients: room, ..config.clone() });
    let (metrics, door_metrics) = (Metrics::new(), DoorMetrics::new());
    let workers = Arc::new(Workers::start(config.io_threads)?);
    let engine = Engine::start_on(&config.locks, workers.shared());
    tokio::spawn(exposure.clone().watch(shutdown.clone()));
    let idle = Arc::new(Idle::default());
    let watching = idle.clone().watch(config.data.clone(), connector.clone(), shutdown.clone());
    tokio::spawn(watching);
    let guards = Guards::start(&config, &connector, workers.shared());
    let state = Arc::new(admin::State::new(
        recorder,
        engine.clone(),
        config.data.clone(),
        connector.clone(),
        exposure.clone(),
        guards.clone(),
    ));
    let has_predecessor = predecessor.is_some();
    if let Some(predecessor) = predecessor {
        tokio::select! {
            warm = predecessor.warm_up(&state) => warm?,
            // The other one goes on.
            () = shutdown.cancelled() => return Ok(()),
        }
        predecessor.replace().await?;
    }
    let place = upgrade::install(place, has_predecessor)?;

    let (drain, abort) = (CancellationToken::new(), CancellationToken::new());
    let shared = Arc::new(Shared {
        engine: engine.clone(),
        metrics,
        config: ArcSwap::from_pointee(config.clone()),
        guards,
        idle,
        ahead: Arc::default(),
        clients: AtomicUsize::new(0),
        started: Instant::now(),
        listen: config.listen.iter().map(|listener| listener.address).collect(),
        draining: AtomicBool::new(false),
        drain: drain.clone(),
        abort: abort.clone(),
    });
    // Tasks that accept, those of `admin` apart: it is open until all is done.
    let (doors, accepting) = (TaskTracker::new(), CancellationToken::new());
    let (admin_task, admin_stop) = (TaskTracker::new(), CancellationToken::new());
    let mut sockets = Vec::new();
    if let Some((addr, listener)) = admin_listener {
        sockets.push((addr, listener.clone()));
        admin_task.spawn(admin::serve(listener, state.clone(), admin_stop.clone()));
    }
    for ((listener, tls), settings) in listeners.into_iter().zip(&config.listen) {
        if let Ok(addr) = listener.local_addr() {
            let (nodes, tls) = (config.locks.nodes.len(), tls.is_some());
            info!(%addr, tls, data = %config.data, nodes, "listening");
        }
        let listener = Arc::new(listener);
        sockets.push((settings.address, listener.clone()));
        let door = Door {
            shared: shared.clone(),
            workers: workers.clone(),
            admission: admission.clone(),
            // None: its clients can only be on this machine.
            exposure: Some(exposure.clone()).filter(|_| exposure::serves_strangers(settings)),
            introduction: Introduction::demanded(&config, settings),
            tls,
            connector: connector.clone(),
            metrics: door_metrics.clone(),
        };
        doors.spawn(door.accept(listener, accepting.clone()));
    }
    systemd::ready(has_predecessor).await;

    let metrics = ReloadMetrics::new();
    metrics.succeeded_now();
    let reloader = Reloader {
        file: control.file,
        log: control.log,
        shared: shared.clone(),
        admission,
        metrics,
    };
    let mut in_charge = JoinSet::new();
    in_charge.spawn(reloader.run(control.reload));
    in_charge.spawn(upgrade::start_successors(control.upgrade, place.is_some()));
    in_charge.spawn(systemd::watchdog(workers.clone()));
    let common = upgrade::Common::of(&config);
    let is_ready = || async { state.is_ready_now().await.is_ok() };
    let replaced = tokio::select! {
        () = shutdown.cancelled() => None,
        replaced = upgrade::wait(place.as_ref(), &sockets, &common, is_ready) => Some(replaced),
    };
    drop(sockets);
    if let Some(replaced) = replaced {
        // From here on all that is another process's.
        in_charge.shutdown().await;
        accepting.cancel();
        admin_stop.cancel();
        for tasks in [&doors, &admin_task] {
            tasks.close();
            tasks.wait().await;
        }
        let (by, grace) = (replaced.by(), shared.config.load().upgrade_grace);
        replaced.done().await;
        let connections = workers.running();
        info!(by, connections, ?grace, "replaced; serving the connections there are");
        tokio::select! {
            () = workers.finished() => {}
            () = shutdown.cancelled() => {}
            () = passed(grace) => warn!("upgrade_grace is over"),
        }
    } else {
        upgrade::leave(place);
        state.drain();
        systemd::stopping().await;
        let delay = shared.config.load().shutdown_delay;
        if !delay.is_zero() {
            info!(?delay, "draining: /readyz says so, and clients are still let in");
            sleep(delay).await;
        }
        accepting.cancel();
    }
    let grace = shared.config.load().shutdown_grace;
    info!(connections = workers.running(), ?grace, "shutting down");
    shared.draining.store(true, Ordering::Relaxed);
    drain.cancel();
    if timeout(grace, workers.finished()).await.is_err() {
        warn!(connections = workers.running(), "closed with commands still in flight");
        abort.cancel();
        let _ = timeout(RELEASE_GRACE, workers.finished()).await;
    }
    engine.drain(RELEASE_GRACE).await;
    in_charge.shutdown().await;
    admin_stop.cancel();
    Ok(())
}

/// Once `time` has passed, if there is an end to it.
async fn passed(time: Option<Duration>) {
    match time {
        Some(time) => sleep(time).await,
        None => pending().await,
    }
}

/// Opens one entry of `listen`.
fn open(
    listener: &Listener,
    sockets: &mut Listeners,
) -> anyhow::Result<(TcpListener, Option<Acceptor>)> {
    let Listener { address, tls, .. } = listener;
    let cannot = || format!("cannot listen on {address} (listen)");
    let socket = sockets.open(*address).with_context(cannot)?;
    let acceptor = tls.as_ref().map(|tls| Acceptor::start(*address, tls)).transpose();
    Ok((socket, acceptor.map_err(anyhow::Error::msg).with_context(cannot)?))
}
