//! A proxy from its threads to its open doors.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize},
};

use arc_swap::ArcSwap;
use tokio::{task::JoinSet, time::Instant};
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::{
    adopt::Adoption,
    bridge::Bridge,
    config::{Config, Listener},
    data::DataNode,
    fleet::known::Fleet,
    guard::Guards,
    lock::{Engine, longest_grant},
    metrics::Recorder,
    net::{Acceptor, tls::certificates},
    server::{
        Control, admin,
        door::Door,
        entry::{
            accepting::Accepting,
            admission::Admission,
            balancer::HeaderPolicy,
            descriptors,
            exposure::{self, Exposure},
        },
        fleet::{self, FleetTelling},
        opened::{Opened, Succession},
        reload::{Reloader, ReplacedProcess},
        server_metrics::{DoorMetrics, ReloadMetrics},
        serving::{Serving, Stoppable},
        systemd,
        upgrade::{self, Predecessor, Rendezvous, Replacing},
        workers::Workers,
    },
    session::{self, Shared, idle::Idle, session_metrics::Metrics},
    share::{Sharers, Sharing},
};

/// All parts that serve clients, before the first client is let in.
pub(super) struct Proxy {
    /// The configuration at the start.
    config: Config,
    control: Control,
    data: Arc<DataNode>,
    exposure: Arc<Exposure>,
    admission: Arc<Admission>,
    metrics: Arc<Metrics>,
    door_metrics: Arc<DoorMetrics>,
    idle: Arc<Idle>,
    guards: Option<Arc<Guards>>,
    fleet: Arc<Fleet>,
    state: Arc<admin::PageSource>,
    engine: Arc<Engine>,
    workers: Arc<Workers>,
    /// The clients, if they share connections to the data node.
    sharers: Option<Arc<Sharers>>,
}

/// How this process came to serve, and how it can be replaced.
pub(super) struct Replacement {
    /// Whether this process has taken the place of another.
    is_successor: bool,
    /// The id of that process, which may still have clients.
    predecessor: Option<i32>,
    /// The connection on which that process reports them.
    replacing: Option<Replacing>,
    /// The socket at which a process asks to take over.
    rendezvous: Option<Rendezvous>,
}

impl Proxy {
    /// Starts the threads, the lock engine, and the tasks that watch the data node.
    pub(super) fn build(
        config: Config,
        control: Control,
        opened: &mut Opened,
        recorder: Recorder,
    ) -> anyhow::Result<Proxy> {
        let shutdown = &control.shutdown;
        let room = descriptors::make_room(config.maxclients, config.locks.listed());
        let admission = Admission::new(&Config { maxclients: room, ..config.clone() });
        let (metrics, door_metrics) = (Metrics::new(), DoorMetrics::new());
        let workers = Arc::new(Workers::start(config.io_threads)?);
        opened.watch_sharers(&config, workers.shared())?;
        let Opened { data, exposure, .. } = opened;
        let mut locks = config.locks.clone();
        if !config.adopt.rules.is_empty() {
            locks.max_ttl = longest_grant(&config);
            locks.fence_ttl = locks.fence_ttl.max(locks.max_ttl);
        }
        let engine = Engine::start_on(&locks, workers.shared());
        engine.tell_apart(&config.metrics.keys, &locks.prefix);
        tokio::spawn(exposure.clone().watch(shutdown.clone()));
        tokio::spawn(certificates::watch());
        let idle = Arc::new(Idle::default());
        tokio::spawn(idle.clone().watch(data.clone(), shutdown.clone()));
        let guards = Guards::start(&config, data, workers.shared());
        if guards.is_some() {
            tokio::spawn(session::tell_left_out());
        }
        let fleet = Arc::new(Fleet::new());
        let state = Arc::new(admin::PageSource::new(
            recorder,
            engine.clone(),
            data.clone(),
            exposure.clone(),
            guards.clone(),
            fleet.clone(),
            (metrics.refusals.clone(), metrics.earlier.clone()),
        ));
        state.runs_with(&config);
        let (data, exposure) = (data.clone(), exposure.clone());
        let sharers = config.shares_any().then(Arc::default);
        Ok(Proxy {
            config,
            control,
            data,
            exposure,
            admission,
            metrics,
            door_metrics,
            idle,
            guards,
            fleet,
            state,
            engine,
            workers,
            sharers,
        })
    }

    /// Takes the place of the running process, if there is one. Returns `None` if this one is
    /// told to end before that: the other goes on.
    pub(super) async fn take_over(
        &self,
        succession: Succession,
    ) -> anyhow::Result<Option<Replacement>> {
        let Succession { predecessor, rendezvous } = succession;
        let is_successor = predecessor.is_some();
        let pid = predecessor.as_ref().and_then(Predecessor::pid);
        let mut replacing = None;
        if let Some(predecessor) = predecessor {
            tokio::select! {
                warm = predecessor.warm_up(&self.state) => warm?,
                () = self.control.shutdown.cancelled() => return Ok(None),
            }
            replacing = Some(predecessor.replace().await?);
        }
        let rendezvous = upgrade::install(rendezvous, is_successor)?;
        Ok(Some(Replacement { is_successor, predecessor: pid, replacing, rendezvous }))
    }

    /// Introduces this proxy to the others over the same lock nodes, and learns of them.
    pub(super) async fn join_fleet(&self) -> (Arc<Shared>, FleetTelling) {
        let shared = self.share();
        let telling = fleet::start(&shared, self.data.clone());
        tokio::select! {
            () = fleet::introduce(&shared, telling.clone()) => {}
            () = self.control.shutdown.cancelled() => {}
        }
        (shared, telling)
    }

    /// Lets clients in, and tells the service manager.
    pub(super) async fn open_doors(
        self,
        opened: Opened,
        (shared, telling): (Arc<Shared>, FleetTelling),
        replacement: Replacement,
    ) -> Serving {
        let Replacement { is_successor, predecessor, replacing, rendezvous } = replacement;
        if let Some(replacing) = replacing {
            tokio::spawn(replacing.follow(self.metrics.earlier.clone()));
        }
        let (doors, admin) = (Stoppable::default(), Stoppable::default());
        let mut sockets = Vec::new();
        if let Some((addr, listener)) = opened.admin {
            sockets.push((addr, listener.clone()));
            let (state, settings) = (self.state.clone(), &self.config.admin);
            let site = Arc::new(admin::AdminSite::new(
                state,
                shared.clone(),
                self.sharers.clone(),
                settings,
            ));
            admin.spawn(|stop| admin::serve(listener, site, stop));
        }
        for (index, ((listener, tls), settings)) in
            opened.listeners.into_iter().zip(&self.config.listen).enumerate()
        {
            if let Ok(addr) = listener.local_addr() {
                let (nodes, tls) = (self.config.locks.nodes.len(), tls.is_some());
                info!(%addr, tls, data = %self.config.data, nodes, "listening");
            }
            let listener = Arc::new(listener);
            sockets.push((settings.address, listener.clone()));
            let door = self.door(&shared, index, settings, tls);
            let accepting = Accepting::new(listener);
            match door.sharing {
                // Where most of its clients are served, as long as they are few.
                Some(_) => {
                    doors.spawn_on(|stop| door.accept(accepting, stop), self.workers.shared())
                }
                None => doors.spawn(|stop| door.accept(accepting, stop)),
            }
        }
        systemd::ready(is_successor).await;
        let (state, workers, shutdown) =
            (self.state.clone(), self.workers.clone(), self.control.shutdown.clone());
        let data = self.data.clone();
        let replaced = Arc::default();
        let (reloading, in_charge) =
            self.take_charge(&shared, rendezvous.is_some(), (predecessor, &replaced));
        Serving {
            shutdown,
            reloading,
            replaced,
            in_charge,
            doors,
            admin,
            sockets,
            rendezvous,
            shared,
            state,
            data,
            workers,
            telling,
        }
    }

    /// Makes the state that all sessions of this process share.
    fn share(&self) -> Arc<Shared> {
        let adoption = Adoption::new(&self.config.adopt.rules);
        let (engine, data, runtime) = (&self.engine, &self.data, self.workers.shared());
        let bridge = adoption
            .as_ref()
            .map(|adoption| Bridge::new(&self.config, adoption, engine, data, runtime));
        let name = fleet::name_of(&self.config);
        engine.set_audit_trail(self.config.log.locks == "all", &name);
        Arc::new(Shared {
            engine: self.engine.clone(),
            data: self.data.clone(),
            metrics: self.metrics.clone(),
            config: ArcSwap::from_pointee(self.config.clone()),
            guards: self.guards.clone(),
            adoption,
            bridge,
            fleet: self.fleet.clone(),
            data_is_silent: self.state.data_is_silent(),
            idle: self.idle.clone(),
            ahead: Arc::default(),
            unread: Arc::default(),
            clients: AtomicUsize::new(0),
            started: Instant::now(),
            name,
            listen: self.config.listen.iter().map(|listener| listener.address).collect(),
            draining: AtomicBool::new(false),
            drain: CancellationToken::new(),
            roll: Arc::default(),
            abort: CancellationToken::new(),
        })
    }

    /// Makes the door of one entry of `listen`, by its place there.
    fn door(
        &self,
        shared: &Arc<Shared>,
        index: usize,
        settings: &Listener,
        tls: Option<Acceptor>,
    ) -> Door {
        // `None`: the clients can only be on this machine.
        let exposure = exposure::serves_strangers(settings).then(|| self.exposure.clone());
        let data = self.data.front(index);
        let sharers = self.sharers.as_ref().filter(|_| self.config.shares(settings));
        let sharing = sharers
            .map(|sharers| Sharing::new(data.clone(), shared.guards.is_some(), sharers.clone()));
        Door {
            shared: shared.clone(),
            workers: self.workers.clone(),
            admission: self.admission.clone(),
            exposure,
            header_policy: HeaderPolicy::demanded(&self.config, settings),
            tls,
            data,
            sharing,
            metrics: self.door_metrics.clone(),
        }
    }

    /// Starts the task that reads the configuration again, and those that only one process at a time must run: start a
    /// process that takes over, answer the service manager.
    fn take_charge(
        self,
        shared: &Arc<Shared>,
        is_replaceable: bool,
        (predecessor, replaced): (Option<i32>, &Arc<AtomicBool>),
    ) -> (JoinSet<()>, JoinSet<()>) {
        let metrics = ReloadMetrics::new();
        metrics.succeeded_now();
        let Control { file, log, reload, upgrade, .. } = self.control;
        let (shared, admission, state) = (shared.clone(), self.admission, self.state);
        let (earlier, replaced) = (predecessor.and_then(ReplacedProcess::of), replaced.clone());
        let reloader = Reloader { file, log, shared, state, admission, metrics, earlier, replaced };
        let (mut reloading, mut in_charge) = (JoinSet::new(), JoinSet::new());
        reloading.spawn(reloader.run(reload));
        in_charge.spawn(upgrade::start_successors(upgrade, is_replaceable));
        in_charge.spawn(systemd::watchdog(self.workers));
        (reloading, in_charge)
    }
}
