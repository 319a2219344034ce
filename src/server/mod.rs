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
    net::SocketAddr,
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
    upgrade::{Common, Place, Predecessor, Prepared, Replaced},
    workers::Workers,
};
use crate::{
    config::{Config, Listener},
    guard::Guards,
    lock::{self, Engine},
    metrics::Recorder,
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
    let recorder = start_counting()?;
    let (opened, succession) = Opened::open(&config, &mut control).await?;
    let proxy = Proxy::build(config, control, &opened, recorder)?;
    let Some(standing) = proxy.take_over(succession).await? else { return Ok(()) };
    let mut serving = proxy.open_doors(opened, standing).await;
    let end = serving.until_end().await;
    serving.end(end).await;
    Ok(())
}

/// Installs the recorder, and gives each metric its help text.
fn start_counting() -> anyhow::Result<Recorder> {
    let recorder = crate::metrics::install()?;
    metrics::describe();
    session::metrics::describe();
    lock::metrics::describe();
    net::tls::metrics::describe();
    Ok(recorder)
}

/// What a process must have before anything runs in it. Whoever cannot have all of it ends.
struct Opened {
    /// The way to the data node.
    connector: Connector,
    exposure: Arc<Exposure>,
    /// One for each entry of `listen`.
    listeners: Vec<(TcpListener, Option<Acceptor>)>,
    /// `admin`, unless it is off.
    admin: Option<(SocketAddr, Arc<TcpListener>)>,
}

/// Whose place this process takes, and where it can be replaced itself.
struct Succession {
    predecessor: Option<Predecessor>,
    place: Option<Prepared>,
}

impl Opened {
    /// Asks a running proxy for its sockets, asks the data node whether strangers may come,
    /// and opens the sockets that are still missing.
    async fn open(config: &Config, control: &mut Control) -> anyhow::Result<(Opened, Succession)> {
        let predecessor = upgrade::predecessor(config, control.take_over).await?;
        let predecessor = predecessor.map(|(predecessor, sockets)| {
            control.listeners.add(sockets);
            predecessor
        });
        let connector = Connector::start("data", &config.tls, slice::from_ref(&config.data))
            .sending_header(config.send_proxy_protocol);
        let exposure = Exposure::find_out(config, connector.clone()).await?;
        let open = |listener| open(listener, &mut control.listeners);
        let listeners = config.listen.iter().map(open).collect::<anyhow::Result<Vec<_>>>()?;
        let admin = match config.admin {
            Some(addr) => {
                let listener = control.listeners.open(addr);
                let listener =
                    listener.with_context(|| format!("cannot listen on {addr} (admin)"))?;
                Some((addr, Arc::new(listener)))
            }
            None => None,
        };
        control.listeners.close_others();
        let place = upgrade::prepare(config)?;
        Ok((Opened { connector, exposure, listeners, admin }, Succession { predecessor, place }))
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

/// All that serves clients, before the first one is let in.
struct Proxy {
    /// As this process was started.
    config: Config,
    control: Control,
    connector: Connector,
    exposure: Arc<Exposure>,
    admission: Arc<Admission>,
    metrics: Arc<Metrics>,
    door_metrics: Arc<DoorMetrics>,
    idle: Arc<Idle>,
    guards: Option<Arc<Guards>>,
    state: Arc<admin::State>,
    engine: Arc<Engine>,
    workers: Arc<Workers>,
}

/// How this process came to serve, and how it can be replaced.
struct Standing {
    /// It has taken the place of another.
    is_successor: bool,
    /// Where a process asks that is to take its place.
    place: Option<Place>,
}

impl Proxy {
    /// Starts the threads, the lock engine, and the tasks that watch the data node.
    fn build(
        config: Config,
        control: Control,
        opened: &Opened,
        recorder: Recorder,
    ) -> anyhow::Result<Proxy> {
        let Opened { connector, exposure, .. } = opened;
        let shutdown = &control.shutdown;
        let room = descriptors::make_room(config.maxclients, config.locks.nodes.len());
        let admission = Admission::new(&Config { maxclients: room, ..config.clone() });
        let (metrics, door_metrics) = (Metrics::new(), DoorMetrics::new());
        let workers = Arc::new(Workers::start(config.io_threads)?);
        let engine = Engine::start_on(&config.locks, workers.shared());
        tokio::spawn(exposure.clone().watch(shutdown.clone()));
        let idle = Arc::new(Idle::default());
        let watching = idle.clone().watch(config.data.clone(), connector.clone(), shutdown.clone());
        tokio::spawn(watching);
        let guards = Guards::start(&config, connector, workers.shared());
        let state = Arc::new(admin::State::new(
            recorder,
            engine.clone(),
            config.data.clone(),
            connector.clone(),
            exposure.clone(),
            guards.clone(),
        ));
        let (connector, exposure) = (connector.clone(), exposure.clone());
        Ok(Proxy {
            config,
            control,
            connector,
            exposure,
            admission,
            metrics,
            door_metrics,
            idle,
            guards,
            state,
            engine,
            workers,
        })
    }

    /// Takes the place of the process that runs, if there is one. Returns `None` if this one
    /// is to end before that: the other goes on.
    async fn take_over(&self, succession: Succession) -> anyhow::Result<Option<Standing>> {
        let Succession { predecessor, place } = succession;
        let is_successor = predecessor.is_some();
        if let Some(predecessor) = predecessor {
            tokio::select! {
                warm = predecessor.warm_up(&self.state) => warm?,
                () = self.control.shutdown.cancelled() => return Ok(None),
            }
            predecessor.replace().await?;
        }
        let place = upgrade::install(place, is_successor)?;
        Ok(Some(Standing { is_successor, place }))
    }

    /// Lets clients in, and says so to the service manager.
    async fn open_doors(self, opened: Opened, standing: Standing) -> Serving {
        let Standing { is_successor, place } = standing;
        let shared = self.share();
        let (doors, admin) = (Stoppable::default(), Stoppable::default());
        let mut sockets = Vec::new();
        if let Some((addr, listener)) = opened.admin {
            sockets.push((addr, listener.clone()));
            admin.spawn(|stop| admin::serve(listener, self.state.clone(), stop));
        }
        for ((listener, tls), settings) in opened.listeners.into_iter().zip(&self.config.listen) {
            if let Ok(addr) = listener.local_addr() {
                let (nodes, tls) = (self.config.locks.nodes.len(), tls.is_some());
                info!(%addr, tls, data = %self.config.data, nodes, "listening");
            }
            let listener = Arc::new(listener);
            sockets.push((settings.address, listener.clone()));
            let door = self.door(&shared, settings, tls);
            doors.spawn(|stop| door.accept(listener, stop));
        }
        systemd::ready(is_successor).await;
        let common = Common::of(&self.config);
        let (state, workers, shutdown) =
            (self.state.clone(), self.workers.clone(), self.control.shutdown.clone());
        let in_charge = self.take_charge(&shared, place.is_some());
        Serving {
            shutdown,
            in_charge,
            doors,
            admin,
            sockets,
            common,
            place,
            shared,
            state,
            workers,
        }
    }

    /// What all sessions of this process share.
    fn share(&self) -> Arc<Shared> {
        Arc::new(Shared {
            engine: self.engine.clone(),
            metrics: self.metrics.clone(),
            config: ArcSwap::from_pointee(self.config.clone()),
            guards: self.guards.clone(),
            idle: self.idle.clone(),
            ahead: Arc::default(),
            clients: AtomicUsize::new(0),
            started: Instant::now(),
            listen: self.config.listen.iter().map(|listener| listener.address).collect(),
            draining: AtomicBool::new(false),
            drain: CancellationToken::new(),
            abort: CancellationToken::new(),
        })
    }

    /// The door of one entry of `listen`.
    fn door(&self, shared: &Arc<Shared>, settings: &Listener, tls: Option<Acceptor>) -> Door {
        // None: its clients can only be on this machine.
        let exposure = exposure::serves_strangers(settings).then(|| self.exposure.clone());
        Door {
            shared: shared.clone(),
            workers: self.workers.clone(),
            admission: self.admission.clone(),
            exposure,
            introduction: Introduction::demanded(&self.config, settings),
            tls,
            connector: self.connector.clone(),
            metrics: self.door_metrics.clone(),
        }
    }

    /// Starts what only one process at a time must do: read the configuration again, start a
    /// process that takes its place, answer the service manager.
    fn take_charge(self, shared: &Arc<Shared>, is_replaceable: bool) -> JoinSet<()> {
        let metrics = ReloadMetrics::new();
        metrics.succeeded_now();
        let Control { file, log, reload, upgrade, .. } = self.control;
        let (shared, admission) = (shared.clone(), self.admission);
        let reloader = Reloader { file, log, shared, admission, metrics };
        let mut in_charge = JoinSet::new();
        in_charge.spawn(reloader.run(reload));
        in_charge.spawn(upgrade::start_successors(upgrade, is_replaceable));
        in_charge.spawn(systemd::watchdog(self.workers));
        in_charge
    }
}

/// Tasks that are told to stop together.
#[derive(Default)]
struct Stoppable {
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl Stoppable {
    fn spawn<F>(&self, task: impl FnOnce(CancellationToken) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.tasks.spawn(task(self.stop.clone()));
    }

    async fn ended(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }
}

/// A proxy whose doors are open.
struct Serving {
    shutdown: CancellationToken,
    /// What only one process at a time must do.
    in_charge: JoinSet<()>,
    doors: Stoppable,
    /// Apart from the doors: the pages are served until all is done.
    admin: Stoppable,
    /// What another process would get, with the addresses as they are configured.
    sockets: Vec<(SocketAddr, Arc<TcpListener>)>,
    /// What that process must have in common with this one.
    common: Common,
    /// Where it asks. `None` if `upgrade_socket` is off, or its socket could not be made.
    place: Option<Place>,
    shared: Arc<Shared>,
    state: Arc<admin::State>,
    workers: Arc<Workers>,
}

/// Why a proxy stops accepting clients.
enum End {
    /// It is to end.
    Shutdown,
    /// Another process accepts them.
    Replaced(Replaced),
}

impl Serving {
    /// Waits until the proxy is to end, or another process has taken its place.
    async fn until_end(&mut self) -> End {
        let is_ready = || async { self.state.is_ready_now().await.is_ok() };
        let end = tokio::select! {
            () = self.shutdown.cancelled() => End::Shutdown,
            replaced = upgrade::wait(self.place.as_ref(), &self.sockets, &self.common, is_ready) => {
                End::Replaced(replaced)
            }
        };
        // Each closes with its door.
        self.sockets.clear();
        end
    }

    /// Lets no more clients in, gives those that are there their time, and ends.
    async fn end(mut self, end: End) {
        match end {
            End::Replaced(replaced) => self.give_way(replaced).await,
            End::Shutdown => self.close_doors().await,
        }
        self.drain().await;
        self.in_charge.shutdown().await;
        self.admin.stop.cancel();
    }

    /// Leaves everything but its clients to the process that has taken over, and serves them
    /// for as long as `upgrade_grace` allows.
    async fn give_way(&mut self, replaced: Replaced) {
        self.in_charge.shutdown().await;
        self.doors.stop.cancel();
        self.admin.stop.cancel();
        self.doors.ended().await;
        self.admin.ended().await;
        let (by, grace) = (replaced.by(), self.shared.config.load().upgrade_grace);
        replaced.done().await;
        let connections = self.workers.running();
        info!(by, connections, ?grace, "replaced; serving the connections there are");
        tokio::select! {
            () = self.workers.finished() => {}
            () = self.shutdown.cancelled() => {}
            () = passed(grace) => warn!("upgrade_grace is over"),
        }
    }

    /// Tells everybody that this proxy ends, and lets clients in for `shutdown_delay` more.
    async fn close_doors(&mut self) {
        upgrade::leave(self.place.take());
        self.state.drain();
        systemd::stopping().await;
        let delay = self.shared.config.load().shutdown_delay;
        if !delay.is_zero() {
            info!(?delay, "draining: /readyz says so, and clients are still let in");
            sleep(delay).await;
        }
        self.doors.stop.cancel();
    }

    /// Ends the sessions, after `shutdown_grace` at the latest, and releases their locks.
    async fn drain(&self) {
        let Shared { config, engine, draining, drain, abort, .. } = &*self.shared;
        let grace = config.load().shutdown_grace;
        info!(connections = self.workers.running(), ?grace, "shutting down");
        draining.store(true, Ordering::Relaxed);
        drain.cancel();
        if timeout(grace, self.workers.finished()).await.is_err() {
            warn!(connections = self.workers.running(), "closed with commands still in flight");
            abort.cancel();
            let _ = timeout(RELEASE_GRACE, self.workers.finished()).await;
        }
        engine.drain(RELEASE_GRACE).await;
    }
}

/// Once `time` has passed, if there is an end to it.
async fn passed(time: Option<Duration>) {
    match time {
        Some(time) => sleep(time).await,
        None => pending().await,
    }
}
