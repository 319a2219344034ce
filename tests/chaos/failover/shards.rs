//! A Redis Cluster as a lock node, proxies before it, and clients: real processes, each host of them in
//! a network namespace of its own. Dropping the fleet removes all of it.
//!
//! Three shards have a master and a replica each, which no election moves to another shard. A fourth shard is a
//! master without slots, to which slots are moved. The clients' host is never cut off.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    net::SocketAddr,
    path::PathBuf,
    process::{Child, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use rustix::process::Signal;

use super::fleet::{Cut, History, Running, Server, ask, await_end, read_all};
use crate::{
    client::{Plan, Style},
    deployment::{answers, end, eventually, redis_address, send_signal},
    history::{self, Time},
    network::{self, Network, PREFIX, Wire, address},
    trace,
};

/// The number of shards with a master and a replica.
pub(super) const SHARDS: usize = 3;
/// The shard that has no slots at the start, and no replica.
pub(super) const NEW: usize = SHARDS;
const NODES: usize = 2 * SHARDS + 1;
pub(super) const PROXIES: usize = 3;
/// The number of lock nodes that are one Redis each, where the cluster is not alone.
pub(super) const PLAIN: usize = 2;
const FIRST_PROXY: usize = NODES;
const FIRST_PLAIN: usize = FIRST_PROXY + PROXIES;
const DATA: usize = FIRST_PLAIN + PLAIN;
const CLIENTS: usize = DATA + 1;
const HOSTS: usize = CLIENTS + 1;
const PORT: &str = "6379";
const PROXY_PORT: u16 = 6380;
const SLOTS: usize = 16384;
/// The distance of the slots in which a marker may lie.
const APART: u16 = 16;
/// The time in ms after which a node that does not answer is taken for dead.
pub(super) const NODE_TIMEOUT: u64 = 2000;
/// The pause after which the test asks the nodes again which are the masters.
const WATCH: Duration = Duration::from_millis(100);
/// The longest time that moves of slots may take once nothing else is wrong.
const MOVED: Duration = Duration::from_secs(60);

/// Options of a fleet.
#[derive(Debug, Clone)]
pub(super) struct Options {
    pub(super) seed: u64,
    /// Whether the cluster is the only lock node.
    pub(super) alone: bool,
    /// `cluster-require-full-coverage`: whether a shard that is down stops the whole cluster.
    pub(super) full: bool,
    /// Both in ms.
    pub(super) max_ttl: u64,
    pub(super) default_ttl: u64,
    pub(super) quarantine: bool,
    pub(super) binary: PathBuf,
    /// The clients of each proxy, and those that go to any.
    pub(super) pinned: &'static [Style],
    pub(super) wandering: &'static [Style],
    pub(super) keys: usize,
}

/// A slot, of those that a shard has now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Slot {
    /// The slot of the shard's lock with this number, modulo the number of its locks.
    Lock(usize),
    /// A slot in which a marker may lie, next to the slot of such a lock.
    Beside(usize),
    /// The highest slot in which a marker may lie.
    Station,
}

/// One step of a fault, or of its end. Shards are given by their numbers.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Act {
    /// CLUSTER FAILOVER, at the replica; with FORCE, without the master's consent.
    FailOver {
        shard: usize,
        force: bool,
    },
    /// SIGKILL for the master, and perhaps the replica.
    Kill {
        shard: usize,
        whole: bool,
    },
    /// The killed nodes come back in their former roles (`nodes.conf`), with their keys or without.
    Restart {
        shard: usize,
        empty: bool,
    },
    /// The replica no longer gets what the master gets.
    HoldReplication(usize),
    LetReplicate(usize),
    /// SIGSTOP for the master, and perhaps the replica.
    Stop {
        shard: usize,
        whole: bool,
    },
    Continue(usize),
    /// The shard's master, a proxy, the replicas of these shards and these plain lock nodes reach no other hosts,
    /// except those that both sides reach.
    CutOff {
        proxy: usize,
        shard: usize,
        replicas: Vec<usize>,
        plain: Vec<usize>,
        shared: Vec<usize>,
    },
    /// A proxy reaches no node of these shards.
    Deafen {
        proxy: usize,
        shards: Vec<usize>,
    },
    /// Ends what cut this proxy off.
    Heal {
        proxy: usize,
    },
    KillProxy(usize),
    StartProxy(usize),
    /// A slot begins to be moved.
    BeginMove {
        slot: Slot,
        from: usize,
        to: usize,
    },
    /// One key of each slot that is being moved is moved.
    MoveKey,
    /// All other keys and the slot itself are moved, if all nodes that take part answer.
    FinishMoves,
    /// Slots that were moved begin to be moved back, the last one first.
    BeginBack,
    /// The end of a fault that needs no undoing.
    Nothing,
}

/// A slot on its way, or at another shard than at the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Move {
    slot: u16,
    to: usize,
}

/// What a node says of a master.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Claim {
    node: usize,
    epoch: u64,
    slots: Vec<(u16, u16)>,
}

/// What each node last said of the masters. Empty: it does not answer.
type Views = Vec<Vec<Claim>>;

/// The masters of a shard, each with the time when the nodes first said so.
type Tenures = Vec<(Time, usize)>;

/// All processes.
pub(super) struct ShardFleet {
    options: Options,
    nodes: Vec<Server>,
    plain: Vec<Server>,
    data: Server,
    /// The ids of the nodes.
    ids: Vec<String>,
    proxies: Vec<Option<Child>>,
    clients: Vec<Running>,
    killed: BTreeSet<usize>,
    stopped: BTreeSet<usize>,
    /// The wires that are cut, by the proxy for which they were cut.
    wires: BTreeMap<usize, Vec<(usize, usize)>>,
    pub(super) cuts: Vec<Cut>,
    moves: Vec<Move>,
    /// Slots that are at another shard than at the start, and where they belong.
    away: Vec<Move>,
    /// The number of slots that were moved.
    pub(super) moved: usize,
    views: Arc<Mutex<Views>>,
    over: Arc<AtomicBool>,
    watcher: Option<JoinHandle<()>>,
    /// The masters of each shard.
    masters: Arc<Mutex<Vec<Tenures>>>,
    pub(super) log: Vec<(Time, String)>,
    network: Network,
    directory: tempfile::TempDir,
}

impl ShardFleet {
    /// Starts all but the clients, and waits until the cluster could fail over.
    pub(super) fn start(options: Options) -> ShardFleet {
        static STARTED: AtomicUsize = AtomicUsize::new(0);
        network::sweep();
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let name = format!("{}.c{number}", std::process::id());
        let network = Network::new(&name, HOSTS);
        let directory =
            tempfile::Builder::new().prefix(&format!("{PREFIX}{name}-")).tempdir().expect("dir");
        let server = |name: String| {
            let directory = directory.path().join(name);
            fs::create_dir(&directory).expect("directory");
            Server { child: None, directory }
        };
        let plain = if options.alone { 0 } else { PLAIN };
        let first = (0..=SHARDS).map(|shard| vec![(0, shard_nodes(shard)[0])]).collect();
        let mut fleet = ShardFleet {
            nodes: (0..NODES).map(|node| server(format!("node-{node}"))).collect(),
            plain: (0..plain).map(|node| server(format!("plain-{node}"))).collect(),
            data: server("data".into()),
            options,
            ids: Vec::new(),
            proxies: Vec::new(),
            clients: Vec::new(),
            killed: BTreeSet::new(),
            stopped: BTreeSet::new(),
            wires: BTreeMap::new(),
            cuts: Vec::new(),
            moves: Vec::new(),
            away: Vec::new(),
            moved: 0,
            views: Arc::new(Mutex::new(vec![Vec::new(); NODES])),
            over: Arc::default(),
            watcher: None,
            masters: Arc::new(Mutex::new(first)),
            log: Vec::new(),
            network,
            directory,
        };
        (0..NODES).for_each(|node| fleet.start_node(node));
        for number in 0..plain {
            let child = fleet.redis(FIRST_PLAIN + number, &fleet.plain[number], &[]);
            fleet.plain[number].child = Some(child);
        }
        fleet.data.child = Some(fleet.redis(DATA, &fleet.data, &[]));
        for server in fleet.nodes.iter().chain(&fleet.plain).chain([&fleet.data]) {
            eventually("a Redis answers", || answers(&server.socket()));
        }
        fleet.join();
        fleet.watch();
        fleet.configure();
        fleet.initialise();
        for proxy in 0..PROXIES {
            fleet.proxies.push(None);
            fleet.start_proxy(proxy);
        }
        for proxy in 0..PROXIES {
            eventually("a proxy listens", || fleet.proxy_log(proxy).contains("\"listening\""));
        }
        fleet
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Returns the log of a proxy.
    pub(super) fn proxy_log(&self, proxy: usize) -> String {
        fs::read_to_string(self.path(&format!("proxy-{proxy}.log"))).unwrap_or_default()
    }

    pub(super) fn options(&self) -> &Options {
        &self.options
    }

    /// Notes an event.
    fn note(&mut self, what: String) {
        self.log.push((history::now(), what));
    }

    // Nodes

    fn redis(&self, host: usize, server: &Server, more: &[&str]) -> Child {
        let mut command = self.network.command(host);
        command
            .args(["redis-server", "--port", PORT, "--protected-mode", "no", "--save", ""])
            .args(["--appendonly", "yes", "--appendfsync", "everysec", "--dir"])
            .arg(&server.directory)
            .arg("--unixsocket")
            .arg(server.socket())
            .arg("--logfile")
            .arg(server.directory.with_extension("log"))
            .args(more);
        command.spawn().expect("nsenter (package util-linux)")
    }

    fn start_node(&mut self, node: usize) {
        let timeout = NODE_TIMEOUT.to_string();
        let coverage = if self.options.full { "yes" } else { "no" };
        let more = [
            ["--cluster-enabled", "yes"],
            ["--cluster-config-file", "nodes.conf"],
            ["--cluster-node-timeout", &timeout],
            ["--cluster-require-full-coverage", coverage],
            // A replica that was held back for long is elected all the same, but only in its own shard.
            ["--cluster-replica-validity-factor", "0"],
            ["--cluster-allow-replica-migration", "no"],
            // Replicas catch up soon, and notice soon that a wire is cut.
            ["--repl-diskless-sync-delay", "0"],
            ["--repl-ping-replica-period", "1"],
            ["--repl-timeout", "5"],
        ];
        let child = self.redis(node, &self.nodes[node], more.as_flattened());
        self.nodes[node].child = Some(child);
    }

    /// Sends a node a command, past all wires.
    fn tell(&self, node: usize, words: &[&str]) -> Option<String> {
        ask(&self.nodes[node].socket(), words)
    }

    fn must(&self, node: usize, words: &[&str]) {
        eventually(&format!("node {node}: {words:?}"), || {
            self.tell(node, words).is_some_and(|reply| reply.starts_with("+OK"))
        });
    }

    /// Makes the nodes a cluster.
    fn join(&mut self) {
        self.ids = (0..NODES)
            .map(|node| bulk(&self.tell(node, &["CLUSTER", "MYID"]).expect("an id")))
            .collect();
        for node in 0..NODES {
            self.must(node, &["CLUSTER", "SET-CONFIG-EPOCH", &(node + 1).to_string()]);
        }
        for shard in 0..SHARDS {
            let share = SLOTS / SHARDS;
            let last = if shard + 1 == SHARDS { SLOTS } else { (shard + 1) * share };
            let (first, last) = ((shard * share).to_string(), (last - 1).to_string());
            self.must(shard, &["CLUSTER", "ADDSLOTSRANGE", &first, &last]);
        }
        for node in 1..NODES {
            self.must(0, &["CLUSTER", "MEET", &address(node).to_string(), PORT]);
        }
        let lists = |node: usize, words: &[&str], is_well: &dyn Fn(&str) -> bool| {
            eventually(&format!("node {node} is well: {words:?}"), || {
                self.tell(node, words).is_some_and(|text| is_well(&text))
            });
        };
        for node in 0..NODES {
            lists(node, &["CLUSTER", "NODES"], &|text| {
                text.matches(" connected").count() == NODES && !text.contains("handshake")
            });
        }
        for shard in 0..SHARDS {
            let [master, replica] = shard_nodes(shard)[..] else { panic!("no replica") };
            self.must(replica, &["CLUSTER", "REPLICATE", &self.ids[master]]);
        }
        for node in 0..NODES {
            lists(node, &["CLUSTER", "INFO"], &|text| text.contains("cluster_state:ok"));
            lists(node, &["CLUSTER", "NODES"], &|text| text.matches("slave ").count() == SHARDS);
        }
        for shard in 0..SHARDS {
            lists(shard_nodes(shard)[1], &["INFO", "replication"], &|text| {
                text.contains("master_link_status:up")
            });
        }
    }

    /// Starts to watch which nodes are the masters.
    fn watch(&mut self) {
        let sockets: Vec<PathBuf> = self.nodes.iter().map(Server::socket).collect();
        let (ids, over) = (self.ids.clone(), Arc::clone(&self.over));
        let (views, masters) = (Arc::clone(&self.views), Arc::clone(&self.masters));
        // One thread for each node, as stopped nodes answer late.
        let watch = move |node: usize, socket: PathBuf| {
            while !over.load(Ordering::Relaxed) {
                let text = ask(&socket, &["CLUSTER", "NODES"]).unwrap_or_default();
                let claims = text.lines().filter_map(|line| claim(line, &ids)).collect();
                let mut views = views.lock().unwrap();
                views[node] = claims;
                for (shard, tenures) in masters.lock().unwrap().iter_mut().enumerate() {
                    let master = newest(&views, |claim| shard_nodes(shard).contains(&claim.node));
                    let last = tenures.last().map(|(_, node)| *node);
                    tenures.extend(
                        master.filter(|it| Some(*it) != last).map(|it| (history::now(), it)),
                    );
                }
                drop(views);
                thread::sleep(WATCH);
            }
        };
        let watch_all = move || {
            thread::scope(|scope| {
                for (node, socket) in sockets.into_iter().enumerate() {
                    scope.spawn({
                        let watch = &watch;
                        move || watch(node, socket)
                    });
                }
            });
        };
        self.watcher = Some(thread::spawn(watch_all));
        eventually("all slots have masters", || {
            (0..SHARDS).all(|shard| self.owner((shard * SLOTS / SHARDS + 1) as u16).is_some())
        });
    }

    /// Returns the masters of a shard, each with the time from which on it was the master.
    pub(super) fn tenures(&self, shard: usize) -> Tenures {
        self.masters.lock().unwrap()[shard].clone()
    }

    fn master(&self, shard: usize) -> usize {
        self.tenures(shard).last().map_or(shard_nodes(shard)[0], |(_, node)| *node)
    }

    /// Returns the replica of a shard.
    fn replica(&self, shard: usize) -> Option<usize> {
        let master = self.master(shard);
        shard_nodes(shard).into_iter().find(|node| *node != master)
    }

    /// Returns the master that has a slot.
    fn owner(&self, slot: u16) -> Option<usize> {
        newest(&self.views.lock().unwrap(), |claim| has(&claim.slots, slot))
    }

    /// Returns the shard that has the slot of a lock now.
    pub(super) fn shard_of(&self, key: &str) -> Option<usize> {
        let owner = self.owner(slot_of(key))?;
        (0..=SHARDS).find(|shard| shard_nodes(*shard).contains(&owner))
    }

    // Proxies

    fn configure(&self) {
        let nodes: Vec<String> =
            (0..2 * SHARDS).map(|node| format!("'{}:{PORT}'", address(node))).collect();
        let plain: String = (0..self.plain.len())
            .map(|number| format!("    - redis://{}\n", redis_address(FIRST_PLAIN + number)))
            .collect();
        let Options { max_ttl, default_ttl, quarantine, .. } = self.options;
        let quarantine = if quarantine { "yes" } else { "no" };
        let settings = format!(
            "listen: 0.0.0.0:{PROXY_PORT}\nadmin: 127.0.0.1:9380\nallow_open: true\n\
             data: redis://{}\nlog:\n  level: info\n  format: json\n\
             locks:\n  max_ttl: {max_ttl}ms\n  default_ttl: {default_ttl}ms\n  \
             node_timeout: 300ms\n  quarantine: {quarantine}\n  nodes:\n    \
             - {{cluster: [{}], shards: 6}}\n{plain}",
            redis_address(DATA),
            nodes.join(", "),
        );
        fs::write(self.path("lockgate.yaml"), settings).expect("configuration");
    }

    fn initialise(&self) {
        let mut command = self.network.command(FIRST_PROXY);
        command.arg(&self.options.binary).arg("init").arg(self.path("lockgate.yaml"));
        let output = command.stderr(Stdio::piped()).output().expect("nsenter");
        let words = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "lockgate init: {words}");
    }

    fn start_proxy(&mut self, proxy: usize) {
        let log = self.path(&format!("proxy-{proxy}.log"));
        let log = File::options().create(true).append(true).open(log).expect("log");
        let mut command = self.network.command(FIRST_PROXY + proxy);
        command.arg(&self.options.binary).arg("--config");
        command.arg(self.path("lockgate.yaml")).stderr(log);
        self.proxies[proxy] = Some(command.spawn().expect("nsenter"));
    }

    // Clients

    /// Starts the clients, which go on until [`ShardFleet::stop_clients`].
    pub(super) fn start_clients(&mut self) {
        fs::write(self.path("control"), "go on").expect("control");
        let Options { pinned, wandering, .. } = self.options;
        for proxy in 0..PROXIES {
            pinned.iter().for_each(|style| self.start_client(*style, Some(proxy)));
        }
        wandering.iter().for_each(|style| self.start_client(*style, None));
    }

    fn start_client(&mut self, style: Style, proxy: Option<usize>) {
        let number = self.clients.len();
        let all = (0..PROXIES).filter(|one| proxy.is_none_or(|proxy| proxy == *one));
        let plan = Plan {
            seed: self.options.seed ^ ((number as u64) << 32),
            number,
            style,
            proxies: all
                .map(|proxy| SocketAddr::from((address(FIRST_PROXY + proxy), PROXY_PORT)))
                .collect(),
            history: self.path(&format!("history-{number}")),
            control: self.path("control"),
            keys: self.options.keys,
            max_ttl: self.options.max_ttl,
            writes: false,
            is_past: false,
            aside: 0,
        };
        let command = self.network.command(CLIENTS);
        self.clients.push(Running::start(command, &plan, proxy, self.directory.path()));
    }

    /// Tells all clients to end, and waits until they have.
    pub(super) fn stop_clients(&mut self) {
        fs::write(self.path("control"), "").expect("control");
        await_end(self.clients.iter_mut().map(|client| &mut client.child));
    }

    /// Returns the number of clients.
    pub(super) fn clients(&self) -> usize {
        self.clients.len()
    }

    /// Returns the histories of all clients so far, each with its proxy.
    pub(super) fn histories(&self) -> Vec<(Option<usize>, History)> {
        read_all(&self.clients)
    }

    // Faults

    /// Does one step of a fault.
    pub(super) fn act(&mut self, act: &Act) {
        self.note(format!("{act:?}"));
        match act {
            Act::FailOver { shard, force } => {
                let Some(replica) = self.replica(*shard) else { return };
                let words = ["CLUSTER", "FAILOVER", "FORCE"];
                let reply = self.tell(replica, if *force { &words } else { &words[..2] });
                self.note(format!("node {replica}: {}", reply.unwrap_or_default().trim()));
            }
            Act::Kill { shard, whole } => {
                for node in self.master_or_all(*shard, *whole) {
                    end(&mut self.nodes[node].child);
                    self.killed.insert(node);
                    self.note(format!("node {node}"));
                }
            }
            Act::Restart { shard, empty } => {
                for node in shard_nodes(*shard) {
                    if !self.killed.remove(&node) {
                        continue;
                    }
                    if *empty {
                        let file = self.nodes[node].directory.join("appendonlydir");
                        let _ = fs::remove_dir_all(file);
                    }
                    self.start_node(node);
                }
            }
            Act::HoldReplication(shard) => {
                let nobody = ["CONFIG", "SET", "masteruser", "nobody", "masterauth", "nothing"];
                let Some(replica) = self.replica(*shard) else { return };
                self.tell(replica, &nobody);
                self.tell(self.master(*shard), &["CLIENT", "KILL", "TYPE", "replica"]);
            }
            Act::LetReplicate(shard) => {
                for node in shard_nodes(*shard) {
                    let words = ["CONFIG", "SET", "masteruser", "", "masterauth", ""];
                    self.tell(node, &words);
                }
            }
            Act::Stop { shard, whole } => {
                for node in self.master_or_all(*shard, *whole) {
                    self.nodes[node].child.iter().for_each(|it| send_signal(it, Signal::STOP));
                    self.stopped.insert(node);
                    self.note(format!("node {node}"));
                }
            }
            Act::Continue(shard) => {
                for node in shard_nodes(*shard) {
                    if self.stopped.remove(&node) {
                        let child = &self.nodes[node].child;
                        child.iter().for_each(|it| send_signal(it, Signal::CONT));
                    }
                }
            }
            Act::CutOff { proxy, shard, replicas, plain, shared } => {
                let mut inside = vec![self.master(*shard), FIRST_PROXY + proxy];
                inside.extend(replicas.iter().filter_map(|shard| self.replica(*shard)));
                inside.extend(plain.iter().map(|number| FIRST_PLAIN + number));
                let mut both = vec![CLIENTS, DATA];
                both.extend(shared.iter().map(|number| FIRST_PLAIN + number));
                let is_outside = |host: &usize| !both.contains(host) && !inside.contains(host);
                let outside: Vec<usize> = (0..HOSTS).filter(is_outside).collect();
                let pairs = inside.iter().flat_map(|i| outside.iter().map(move |o| (*i, *o)));
                let pairs = pairs.collect();
                self.cut(*proxy, pairs, !plain.is_empty());
                self.note(format!("hosts {inside:?}"));
            }
            Act::Deafen { proxy, shards } => {
                let nodes = shards.iter().flat_map(|shard| shard_nodes(*shard));
                let pairs = nodes.map(|node| (FIRST_PROXY + proxy, node)).collect();
                self.cut(*proxy, pairs, false);
            }
            Act::Heal { proxy } => {
                self.wires.remove(proxy);
                for cut in self.cuts.iter_mut().filter(|cut| cut.proxy == *proxy) {
                    cut.until.get_or_insert_with(history::now);
                }
                self.set_wires();
            }
            Act::KillProxy(proxy) => end(&mut self.proxies[*proxy]),
            Act::StartProxy(proxy) => {
                if self.proxies[*proxy].is_none() {
                    self.start_proxy(*proxy);
                }
            }
            Act::BeginMove { slot, from, to } => {
                let Some(slot) = self.slot(*slot, *from) else { return };
                self.away.push(Move { slot, to: *from });
                self.begin(Move { slot, to: *to });
            }
            Act::MoveKey => {
                for one in self.moves.clone() {
                    self.move_keys(one, "1");
                }
            }
            Act::FinishMoves => {
                for one in self.moves.clone() {
                    let is_done = self.finish(one);
                    self.note(format!("slot {} is moved: {is_done}", one.slot));
                }
            }
            Act::BeginBack => {
                // A move that is not finished has to be finished first.
                let (going, away): (Vec<Move>, Vec<Move>) = std::mem::take(&mut self.away)
                    .into_iter()
                    .partition(|one| self.moves.iter().any(|other| other.slot == one.slot));
                self.away = going;
                away.into_iter().rev().for_each(|one| self.begin(one));
            }
            Act::Nothing => {}
        }
    }

    /// Returns the master of a shard, or both its nodes, without those that were killed.
    fn master_or_all(&self, shard: usize, whole: bool) -> Vec<usize> {
        let mut nodes = if whole { shard_nodes(shard) } else { vec![self.master(shard)] };
        nodes.retain(|node| !self.killed.contains(node));
        nodes
    }

    fn cut(&mut self, proxy: usize, pairs: Vec<(usize, usize)>, plain: bool) {
        self.wires.entry(proxy).or_default().extend(pairs);
        let from = history::now();
        self.cuts.push(Cut { proxy, from, until: None, from_nodes: true, plain });
        self.set_wires();
    }

    fn set_wires(&self) {
        let mut wires = self.network.all_well();
        let cut = Wire { cut: true, ..Wire::default() };
        for (one, other) in self.wires.values().flatten() {
            wires[*one][*other] = cut;
            wires[*other][*one] = cut;
        }
        self.network.set(wires);
    }

    // Moves of slots

    /// Returns the number of a slot that this shard has now.
    fn slot(&self, slot: Slot, shard: usize) -> Option<u16> {
        let master = self.master(shard);
        let owned = |slot: &u16| self.owner(*slot) == Some(master);
        let of_locks = || -> Vec<u16> {
            (0..self.options.keys).map(|it| slot_of(&trace::lock(it))).filter(owned).collect()
        };
        match slot {
            Slot::Lock(number) => {
                let all = of_locks();
                (!all.is_empty()).then(|| all[number % all.len()])
            }
            Slot::Beside(number) => {
                let all = of_locks();
                let slot = (!all.is_empty()).then(|| all[number % all.len()] / APART * APART);
                slot.filter(owned)
            }
            Slot::Station => {
                (0..SLOTS as u16 / APART).rev().map(|number| number * APART).find(owned)
            }
        }
    }

    fn begin(&mut self, one: Move) {
        self.moves.push(one);
        self.note(format!("slot {} to shard {}", one.slot, one.to));
        self.set_out(one);
    }

    /// Tells both masters that a slot is on its way. Returns the master that has it, if that is not yet the target.
    fn set_out(&self, Move { slot, to }: Move) -> Option<usize> {
        let (owner, target) = (self.owner(slot)?, self.master(to));
        if owner == target {
            return None;
        }
        let known = self.views.lock().unwrap()[target].clone();
        let is_known = known.iter().any(|claim| claim.node == owner && has(&claim.slots, slot));
        let slot = slot.to_string();
        if !is_known {
            // A node that imports a slot learns of no other master for it, and knows none once that master was
            // demoted.
            self.tell(target, &["CLUSTER", "SETSLOT", &slot, "STABLE"]);
            return Some(owner);
        }
        self.tell(target, &["CLUSTER", "SETSLOT", &slot, "IMPORTING", &self.ids[owner]]);
        self.tell(owner, &["CLUSTER", "SETSLOT", &slot, "MIGRATING", &self.ids[target]]);
        Some(owner)
    }

    /// Moves up to `count` keys of a slot. Returns whether its master then has none left.
    fn move_keys(&self, Move { slot, to }: Move, count: &str) -> bool {
        let Some(owner) = self.owner(slot) else { return false };
        let slot = slot.to_string();
        let told = self.tell(owner, &["CLUSTER", "GETKEYSINSLOT", &slot, count]);
        let Some(told) = told.filter(|told| told.starts_with('*')) else { return false };
        // Each key has its length before it.
        let keys: Vec<&str> = told.lines().skip(2).step_by(2).collect();
        if keys.is_empty() {
            return true;
        }
        let target = address(self.master(to)).to_string();
        let mut words = vec!["MIGRATE", &target, PORT, "", "0", "900", "REPLACE", "KEYS"];
        words.extend(&keys);
        let moved = self.tell(owner, &words).unwrap_or_default();
        moved.starts_with("+OK") && keys.len() < count.parse().unwrap_or(0)
    }

    /// Finishes a move. Returns false if that is impossible now.
    fn finish(&mut self, one: Move) -> bool {
        let owner = self.set_out(one);
        let target = self.master(one.to);
        if owner.is_some() && !self.move_keys(one, "1000") {
            return false;
        }
        // A node that was promoted meanwhile knows nothing of the move.
        if owner.is_some() && (self.owner(one.slot) != owner || self.master(one.to) != target) {
            return false;
        }
        let slot = one.slot.to_string();
        let words = ["CLUSTER", "SETSLOT", &slot, "NODE", &self.ids[target]];
        let told = self.tell(target, &words);
        if !told.is_some_and(|told| told.starts_with("+OK")) {
            return false;
        }
        for shard in 0..=SHARDS {
            self.tell(self.master(shard), &words);
        }
        self.moves.retain(|other| other.slot != one.slot);
        self.moved += 1;
        true
    }

    /// Returns what was done, and what the nodes say of themselves.
    fn why_not(&self) -> String {
        let log: Vec<String> = self.log.iter().map(|(at, what)| format!("{at} {what}")).collect();
        let told = (0..NODES).map(|node| {
            let told = self.tell(node, &["CLUSTER", "NODES"]).unwrap_or_default();
            format!("node {node}, {}: {told}", self.ids[node])
        });
        let told: Vec<String> = told.collect();
        format!("{:?}\n{}\n{}", self.moves, told.join("\n"), log.join("\n"))
    }

    /// Moves all slots back to their shards, once nothing else is wrong.
    pub(super) fn settle(&mut self) {
        let deadline = Instant::now() + MOVED;
        while !self.moves.is_empty() || !self.away.is_empty() {
            assert!(Instant::now() < deadline, "slots cannot be moved: {}", self.why_not());
            self.moves.clone().into_iter().for_each(|one| _ = self.finish(one));
            if self.moves.is_empty() {
                self.act(&Act::BeginBack);
            }
            thread::sleep(WATCH);
        }
    }
}

impl Drop for ShardFleet {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        let _ = self.watcher.take().map(JoinHandle::join);
        // All processes are on hosts.
        self.network.end_processes();
        self.clients.iter_mut().for_each(|client| _ = client.child.wait());
        let servers = self.nodes.iter_mut().chain(&mut self.plain).chain([&mut self.data]);
        servers.map(|server| &mut server.child).chain(&mut self.proxies).for_each(end);
    }
}

/// Returns the nodes of a shard.
fn shard_nodes(shard: usize) -> Vec<usize> {
    if shard == NEW { vec![2 * SHARDS] } else { vec![shard, shard + SHARDS] }
}

/// Returns the text of a bulk string.
fn bulk(reply: &str) -> String {
    reply.lines().nth(1).unwrap_or_default().to_owned()
}

/// Reads a line of CLUSTER NODES that is about a master.
fn claim(line: &str, ids: &[String]) -> Option<Claim> {
    let words: Vec<&str> = line.split(' ').collect();
    let [id, _, flags, _, _, _, epoch, _, slots @ ..] = &words[..] else { return None };
    if !flags.split(',').any(|flag| flag == "master") {
        return None;
    }
    let node = ids.iter().position(|known| known == id)?;
    let range = |word: &&str| {
        let (first, last) = word.split_once('-').unwrap_or((word, word));
        Some((first.parse().ok()?, last.parse().ok()?))
    };
    Some(Claim {
        node,
        epoch: epoch.parse().ok()?,
        slots: slots.iter().filter_map(range).collect(),
    })
}

/// Returns the node with the newest of these claims: each election and each move makes a larger epoch.
fn newest(views: &Views, which: impl Fn(&Claim) -> bool) -> Option<usize> {
    let claims = views.iter().flatten().filter(|claim| which(claim));
    claims.max_by_key(|claim| claim.epoch).map(|claim| claim.node)
}

fn has(slots: &[(u16, u16)], slot: u16) -> bool {
    slots.iter().any(|(first, last)| (*first..=*last).contains(&slot))
}

/// Returns the slot of a lock, whose name has no tag.
fn slot_of(lock: &str) -> u16 {
    let add = |crc: u16, byte: u8| {
        (0..8).fold(crc ^ (u16::from(byte) << 8), |crc, _| {
            (crc << 1) ^ if crc & 0x8000 == 0 { 0 } else { 0x1021 }
        })
    };
    format!("lock:{lock}").bytes().fold(0, add) % SLOTS as u16
}
