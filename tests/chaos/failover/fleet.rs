//! Redises that Sentinels fail over, proxies before them, and clients: real processes, each host of
//! them in a network namespace of its own. Dropping the fleet removes all of it.
//!
//! Three hosts have two Redises each, one of the lock node and one of the data node. Three Sentinels
//! watch both. The clients' host is never cut off: clients of a proxy that is cut off go on.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use rustix::process::Signal;

use super::writer::{self, Acknowledged, Orders};
use crate::{
    client::{self, Plan, Style},
    deployment::{self, answers, end, eventually, redis_address, send_signal},
    history::{self, Event, Time},
    network::{self, Network, PREFIX, Wire, address},
    support::encode,
    trace,
    writes::Lists,
};

/// The number of Redises of each kind, on hosts from 0.
pub(super) const REDISES: usize = 3;
pub(super) const SENTINELS: usize = 3;
pub(super) const PROXIES: usize = 3;
/// The number of lock nodes that do not fail over, where the watched one is not alone.
pub(super) const PLAIN: usize = 2;
const FIRST_SENTINEL: usize = REDISES;
const FIRST_PROXY: usize = FIRST_SENTINEL + SENTINELS;
const FIRST_PLAIN: usize = FIRST_PROXY + PROXIES;
const CLIENTS: usize = FIRST_PLAIN + PLAIN;
const HOSTS: usize = CLIENTS + 1;
const PROXY_PORT: u16 = 6380;
const SENTINEL_PORT: u16 = 26379;
/// The pause after which the test asks the Sentinels again which master they name.
const WATCH: Duration = Duration::from_millis(50);
/// The longest time for an answer of a Redis, past all wires.
const ANSWER_LIMIT: Duration = Duration::from_secs(1);
/// The longest time for clients to end, once told to.
const END_LIMIT: Duration = Duration::from_secs(30);
/// The time within which a proxy that was cut off has reached the Sentinels again, and follows them.
const RECONNECTED: Time = 6_000_000;

/// What one client wrote down.
pub(super) type History = Vec<(Time, Event)>;

/// What the Sentinels watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum What {
    Locks,
    Data,
}

use What::{Data, Locks};

impl What {
    /// Returns the name that the Sentinels have for it.
    fn name(self) -> &'static str {
        match self {
            Locks => "locks",
            Data => "data",
        }
    }

    fn port(self) -> u16 {
        match self {
            Locks => 6379,
            Data => 6400,
        }
    }

    /// Returns the host of the first master.
    fn first(self) -> usize {
        match self {
            Locks => 0,
            Data => 1,
        }
    }
}

/// Options of a fleet.
#[derive(Debug, Clone)]
pub(super) struct Options {
    pub(super) seed: u64,
    /// Whether the watched lock node is the only one.
    pub(super) alone: bool,
    /// Both in ms.
    pub(super) max_ttl: u64,
    pub(super) default_ttl: u64,
    pub(super) quarantine: bool,
    pub(super) binary: PathBuf,
    /// The clients of each proxy, and those that go to any.
    pub(super) pinned: &'static [Style],
    pub(super) wandering: &'static [Style],
    pub(super) keys: usize,
    /// What the proxies' `guards` have beside their rules, if clients write under their locks.
    pub(super) guards: Option<&'static str>,
}

/// One step of a fault, or of its end.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Act {
    /// SENTINEL FAILOVER, by a Sentinel that runs.
    FailOver(What),
    /// SIGKILL for the master.
    Kill(What),
    /// The killed master comes back, with its file or with nothing. It calls itself a master.
    Restart {
        what: What,
        empty: bool,
    },
    /// The replicas no longer get what the master gets.
    HoldReplication(What),
    LetReplicate(What),
    /// SIGSTOP for the master.
    Stop(What),
    Continue(What),
    /// The host of the lock node's master, perhaps that of the data node's, a proxy, a Sentinel and these plain lock
    /// nodes reach no other hosts, except those that both sides reach.
    CutOff {
        proxy: usize,
        sentinel: usize,
        plain: Vec<usize>,
        shared: Vec<usize>,
        data: bool,
    },
    /// A proxy reaches no Sentinel.
    Deafen {
        proxy: usize,
    },
    /// Ends what cut this proxy off.
    Heal {
        proxy: usize,
    },
    KillSentinel(usize),
    StartSentinel(usize),
    /// The end of a fault that needs no undoing.
    Nothing,
}

pub(super) struct Server {
    pub(super) child: Option<Child>,
    pub(super) directory: PathBuf,
}

impl Server {
    pub(super) fn socket(&self) -> PathBuf {
        self.directory.join("socket")
    }
}

pub(super) struct Running {
    pub(super) child: Child,
    history: PathBuf,
    /// The only proxy that the client knows.
    proxy: Option<usize>,
}

impl Running {
    /// Starts a client by this command of its host. `proxy`: the only one that it knows.
    pub(super) fn start(
        command: Command,
        plan: &Plan,
        proxy: Option<usize>,
        directory: &Path,
    ) -> Running {
        let variable = format!("{}={}", client::VARIABLE, plan.encode());
        let log = directory.join(format!("client-{}.log", plan.number));
        let child = start_program(command, &variable, "client_process", &log);
        Running { child, history: plan.history.clone(), proxy }
    }
}

/// Starts this program again, for one test, by this command of its host.
fn start_program(mut command: Command, variable: &str, test: &str, log: &Path) -> Child {
    let log = File::create(log).expect("log");
    command
        .arg(variable)
        .arg(std::env::current_exe().expect("this program"))
        .args(["--exact", test, "--ignored"])
        .stdout(log.try_clone().expect("log"))
        .stderr(log);
    command.spawn().expect("nsenter")
}

/// Waits until clients that were told to end have ended.
pub(super) fn await_end<'a>(clients: impl Iterator<Item = &'a mut Child>) {
    let deadline = Instant::now() + END_LIMIT;
    for child in clients {
        loop {
            if let Some(status) = child.try_wait().expect("status") {
                assert!(status.success(), "a client ended with {status}");
                break;
            }
            assert!(Instant::now() < deadline, "a client does not end");
            thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Reads the histories of these clients so far, each with its proxy.
pub(super) fn read_all(clients: &[Running]) -> Vec<(Option<usize>, History)> {
    // All are cut at one time, so that none has what follows from a line that another still lacks.
    let until = history::now();
    let read = |client: &Running| {
        let mut events = history::read(&client.history);
        events.retain(|(time, _)| *time <= until);
        (client.proxy, events)
    };
    clients.iter().map(read).collect()
}

/// What one Sentinel says from some time on: the host of the master that it names.
#[derive(Debug, Clone, Copy)]
struct Naming {
    time: Time,
    sentinel: usize,
    what: What,
    host: Option<usize>,
}

/// A time in which a proxy was cut off.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cut {
    pub(super) proxy: usize,
    pub(super) from: Time,
    /// `None`: it lasts.
    pub(super) until: Option<Time>,
    /// Whether it was cut off from other lock nodes too, and not from the Sentinels alone.
    pub(super) from_nodes: bool,
    /// Whether others were cut off from a plain lock node.
    pub(super) plain: bool,
}

impl Cut {
    /// Whether the cut may be felt at `time`; it is felt until `after` its end.
    pub(super) fn is_felt(&self, time: Time, after: Time) -> bool {
        self.from <= time && self.until.is_none_or(|until| time <= until + after)
    }
}

/// All processes.
pub(super) struct Fleet {
    options: Options,
    locks: Vec<Server>,
    data: Vec<Server>,
    plain: Vec<Server>,
    sentinels: Vec<Server>,
    proxies: Vec<Option<Child>>,
    clients: Vec<Running>,
    writers: Vec<(Child, usize, PathBuf)>,
    /// The hosts of masters that were killed or stopped, and have not come back: locks, data.
    killed: [Option<usize>; 2],
    stopped: [Option<usize>; 2],
    /// The time at which each data Redis was started last.
    started: [Time; REDISES],
    /// The wires that are cut, by the proxy for which they were cut.
    wires: BTreeMap<usize, Vec<(usize, usize)>>,
    pub(super) cuts: Vec<Cut>,
    names: Arc<Mutex<Vec<Naming>>>,
    over: Arc<AtomicBool>,
    watcher: Option<JoinHandle<()>>,
    pub(super) log: Vec<(Time, String)>,
    network: Network,
    directory: tempfile::TempDir,
}

impl Fleet {
    /// Starts all but the clients, and waits until the Sentinels could fail over.
    pub(super) fn start(options: Options) -> Fleet {
        static STARTED: AtomicUsize = AtomicUsize::new(0);
        network::sweep();
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let name = format!("{}.{number}", std::process::id());
        let network = Network::new(&name, HOSTS);
        let directory =
            tempfile::Builder::new().prefix(&format!("{PREFIX}{name}-")).tempdir().expect("dir");
        let servers = |name: &str, count: usize| -> Vec<Server> {
            let server = |number| {
                let directory = directory.path().join(format!("{name}-{number}"));
                fs::create_dir(&directory).expect("directory");
                Server { child: None, directory }
            };
            (0..count).map(server).collect()
        };
        let plain = if options.alone { 0 } else { PLAIN };
        let mut fleet = Fleet {
            locks: servers("locks", REDISES),
            data: servers("data", REDISES),
            plain: servers("plain", plain),
            sentinels: servers("sentinel", SENTINELS),
            options,
            proxies: Vec::new(),
            clients: Vec::new(),
            writers: Vec::new(),
            killed: [None; 2],
            stopped: [None; 2],
            started: [0; REDISES],
            wires: BTreeMap::new(),
            cuts: Vec::new(),
            names: Arc::default(),
            over: Arc::default(),
            watcher: None,
            log: Vec::new(),
            network,
            directory,
        };
        for what in [Locks, Data] {
            let master = address(what.first()).to_string();
            let port = what.port().to_string();
            for host in 0..REDISES {
                let of = ["--replicaof", &master, &port];
                fleet.start_redis(what, host, if host == what.first() { &[] } else { &of });
            }
        }
        for number in 0..plain {
            let child = fleet.redis(FIRST_PLAIN + number, Locks, &fleet.plain[number], &[]);
            fleet.plain[number].child = Some(child);
        }
        for server in fleet.locks.iter().chain(&fleet.data).chain(&fleet.plain) {
            eventually("a Redis answers", || answers(&server.socket()));
        }
        (0..SENTINELS).for_each(|sentinel| fleet.configure_sentinel(sentinel));
        (0..SENTINELS).for_each(|sentinel| fleet.start_sentinel(sentinel));
        fleet.acquaint();
        fleet.watch();
        fleet.configure();
        fleet.initialise();
        for proxy in 0..PROXIES {
            let log = File::create(fleet.path(&format!("proxy-{proxy}.log"))).expect("log");
            let mut command = fleet.network.command(FIRST_PROXY + proxy);
            command.arg(&fleet.options.binary).arg("--config");
            command.arg(fleet.path("lockgate.yaml")).stderr(log);
            let child = command.spawn().expect("nsenter");
            fleet.proxies.push(Some(child));
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
    pub(super) fn note(&mut self, what: String) {
        self.log.push((history::now(), what));
    }

    // Redises and Sentinels

    fn servers(&mut self, what: What) -> &mut Vec<Server> {
        match what {
            Locks => &mut self.locks,
            Data => &mut self.data,
        }
    }

    fn server(&self, what: What, host: usize) -> &Server {
        match what {
            Locks => &self.locks[host],
            Data => &self.data[host],
        }
    }

    fn redis(&self, host: usize, what: What, server: &Server, more: &[&str]) -> Child {
        let mut command = self.network.command(host);
        command
            .arg("redis-server")
            .args(["--port", &what.port().to_string(), "--protected-mode", "no", "--save", ""])
            .args(["--appendonly", "yes", "--appendfsync", "everysec"])
            // Replicas catch up soon, and notice soon that a wire is cut.
            .args(["--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1"])
            .args(["--repl-timeout", "5", "--repl-backlog-ttl", "0", "--dir"])
            .arg(&server.directory)
            .arg("--unixsocket")
            .arg(server.socket())
            .arg("--logfile")
            .arg(server.directory.with_extension("log"))
            .args(more);
        command.spawn().expect("nsenter (package util-linux)")
    }

    fn start_redis(&mut self, what: What, host: usize, more: &[&str]) {
        let child = self.redis(host, what, self.server(what, host), more);
        self.servers(what)[host].child = Some(child);
        if what == Data {
            self.started[host] = history::now();
        }
    }

    fn configure_sentinel(&self, sentinel: usize) {
        let Server { directory, .. } = &self.sentinels[sentinel];
        let mut text = format!(
            "port {SENTINEL_PORT}\nprotected-mode no\ndir {}\nunixsocket {}\nlogfile {}\n",
            directory.display(),
            self.sentinels[sentinel].socket().display(),
            directory.with_extension("log").display()
        );
        for what in [Locks, Data] {
            let (name, at) = (what.name(), address(what.first()));
            text += &format!(
                "sentinel monitor {name} {at} {} 2\n\
                 sentinel down-after-milliseconds {name} 1000\n\
                 sentinel failover-timeout {name} 3000\nsentinel parallel-syncs {name} 2\n",
                what.port()
            );
        }
        fs::write(directory.join("sentinel.conf"), text).expect("configuration");
    }

    fn start_sentinel(&mut self, sentinel: usize) {
        let mut command = self.network.command(FIRST_SENTINEL + sentinel);
        let file = self.sentinels[sentinel].directory.join("sentinel.conf");
        command.arg("redis-server").arg(file).arg("--sentinel");
        self.sentinels[sentinel].child = Some(command.spawn().expect("nsenter"));
    }

    /// Waits until the Sentinels know each other and all Redises.
    fn acquaint(&self) {
        // They then need not take ten seconds to hear of a replica, or two to hear of each other.
        self.set_periods("200");
        for sentinel in &self.sentinels {
            eventually("the Sentinel knows the replicas and the other Sentinels", || {
                let info = ask(&sentinel.socket(), &["INFO", "sentinel"]).unwrap_or_default();
                info.matches("slaves=2,sentinels=3").count() == 2
            });
        }
        // A Sentinel makes a replica that calls itself a master a replica again if it hears of no failover within
        // four such periods.
        self.set_periods("1000");
    }

    fn set_periods(&self, publish: &str) {
        for sentinel in &self.sentinels {
            let words = ["SENTINEL", "DEBUG", "info-period", "500", "publish-period", publish];
            eventually("the Sentinel obeys", || {
                ask(&sentinel.socket(), &words).is_some_and(|reply| reply.starts_with("+OK"))
            });
        }
    }

    /// Starts to watch which masters the Sentinels name.
    fn watch(&mut self) {
        let sockets: Vec<PathBuf> = self.sentinels.iter().map(Server::socket).collect();
        let (names, over) = (Arc::clone(&self.names), Arc::clone(&self.over));
        let watch = move || {
            let mut last: BTreeMap<(usize, &str), Option<usize>> = BTreeMap::new();
            while !over.load(Ordering::Relaxed) {
                for (sentinel, socket) in sockets.iter().enumerate() {
                    for what in [Locks, Data] {
                        let host = named(socket, what);
                        if last.insert((sentinel, what.name()), host) != Some(host) {
                            let time = history::now();
                            names.lock().unwrap().push(Naming { time, sentinel, what, host });
                        }
                    }
                }
                thread::sleep(WATCH);
            }
        };
        self.watcher = Some(thread::spawn(watch));
        eventually("the Sentinels name masters", || {
            [Locks, Data].iter().all(|what| self.tenures(*what).len() == 1)
        });
    }

    /// Returns the hosts that a majority of the Sentinels has named as the master, each with the times when it and
    /// when the next one was named.
    pub(super) fn tenures(&self, what: What) -> Vec<(Time, Time, usize)> {
        let mut says = [None; SENTINELS];
        let mut tenures: Vec<(Time, Time, usize)> = Vec::new();
        let names = self.names.lock().unwrap();
        for naming in names.iter().filter(|naming| naming.what == what) {
            says[naming.sentinel] = naming.host;
            let votes = |host: usize| says.iter().filter(|named| **named == Some(host)).count();
            let Some(host) = (0..REDISES).find(|host| votes(*host) > SENTINELS / 2) else {
                continue;
            };
            if tenures.last().is_none_or(|(_, _, last)| *last != host) {
                if let Some(last) = tenures.last_mut() {
                    last.1 = naming.time;
                }
                tenures.push((naming.time, Time::MAX, host));
            }
        }
        tenures
    }

    fn master(&self, what: What) -> usize {
        self.tenures(what).last().map_or(what.first(), |(_, _, host)| *host)
    }

    // Proxies

    fn configure(&self) {
        let sentinels: Vec<String> = (0..SENTINELS)
            .map(|sentinel| format!("'{}:{SENTINEL_PORT}'", address(FIRST_SENTINEL + sentinel)))
            .collect();
        let master = |what: What| {
            format!("{{sentinels: [{}], master: {}}}", sentinels.join(", "), what.name())
        };
        let plain: String = (0..self.plain.len())
            .map(|number| format!("    - redis://{}\n", redis_address(FIRST_PLAIN + number)))
            .collect();
        let Options { max_ttl, default_ttl, quarantine, .. } = self.options;
        let quarantine = if quarantine { "yes" } else { "no" };
        let guards = self.options.guards.map_or(String::new(), |more| {
            trace::GUARDS.replacen('\n', &format!("\n{more}  rules:\n"), 1)
        });
        let settings = format!(
            "listen: 0.0.0.0:{PROXY_PORT}\nadmin: 127.0.0.1:9380\nallow_open: true\n\
             data: {}\nconnect_timeout: 10s\nlog:\n  level: info\n  format: json\n\
             locks:\n  max_ttl: {max_ttl}ms\n  default_ttl: {default_ttl}ms\n  \
             node_timeout: 300ms\n  quarantine: {quarantine}\n  nodes:\n    - {}\n{plain}{guards}",
            master(Data),
            master(Locks),
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

    // Clients

    /// Starts the clients, which go on until [`Fleet::stop_clients`].
    pub(super) fn start_clients(&mut self) {
        fs::write(self.path("control"), "go on").expect("control");
        let Options { pinned, wandering, .. } = self.options;
        for proxy in 0..PROXIES {
            pinned.iter().for_each(|style| self.start_client(*style, Some(proxy)));
            self.start_writer(proxy);
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
            proxies: all.map(proxy_address).collect(),
            history: self.path(&format!("history-{number}")),
            control: self.path("control"),
            keys: self.options.keys,
            max_ttl: self.options.max_ttl,
            writes: self.options.guards.is_some(),
            is_past: false,
            aside: 0,
        };
        let command = self.network.command(CLIENTS);
        self.clients.push(Running::start(command, &plan, proxy, self.directory.path()));
    }

    fn start_writer(&mut self, proxy: usize) {
        let orders = Orders {
            number: proxy,
            proxy: proxy_address(proxy),
            notes: self.path(&format!("written-{proxy}")),
            control: self.path("control"),
        };
        let variable = format!("{}={}", writer::VARIABLE, orders.encode());
        let name = format!("writer-{proxy}");
        let log = self.path(&format!("{name}.log"));
        let command = self.network.command(CLIENTS);
        let child = start_program(command, &variable, "failover::writer_process", &log);
        self.writers.push((child, proxy, orders.notes));
    }

    /// Tells all clients to end, and waits until they have.
    pub(super) fn stop_clients(&mut self) {
        fs::write(self.path("control"), "").expect("control");
        let clients = self.clients.iter_mut().map(|client| &mut client.child);
        await_end(clients.chain(self.writers.iter_mut().map(|(child, ..)| child)));
    }

    /// Returns the number of clients that lock.
    pub(super) fn clients(&self) -> usize {
        self.clients.len()
    }

    /// Returns the histories of all clients so far, each with its proxy.
    pub(super) fn histories(&self) -> Vec<(Option<usize>, History)> {
        read_all(&self.clients)
    }

    /// Returns the acknowledged writes, each with its proxy and the host of the Redis.
    pub(super) fn acknowledged(&self) -> Vec<(usize, usize, Acknowledged)> {
        let host = |write: &Acknowledged| {
            let is_there = |server: &Server| server.directory == write.directory;
            self.data.iter().position(is_there).expect("one of the data Redises")
        };
        let of = |(_, proxy, notes): &(Child, usize, PathBuf)| {
            let all = writer::read(notes).into_iter();
            all.map(|write| (*proxy, host(&write), write)).collect::<Vec<_>>()
        };
        self.writers.iter().flat_map(of).collect()
    }

    /// Returns since when the data node's master has kept all that it was sent, and its host.
    pub(super) fn last_data(&self) -> (Time, usize) {
        let (since, _, host) = *self.tenures(Data).last().expect("a master");
        (since.max(self.started[host]), host)
    }

    /// Returns the entries written under each lock, as the data node has them.
    pub(super) fn lists(&self) -> Lists {
        let (_, host) = self.last_data();
        deployment::lists(&self.data[host].socket(), self.options.keys)
    }

    /// Whether a data Redis has this key.
    pub(super) fn has(&self, host: usize, key: &str) -> bool {
        let reply = ask(&self.data[host].socket(), &["EXISTS", key]);
        reply.is_some_and(|reply| reply.starts_with(":1"))
    }

    /// Whether a proxy may know less of the Sentinels than others at this time.
    pub(super) fn is_cut_off(&self, proxy: usize, time: Time) -> bool {
        self.cuts.iter().any(|cut| cut.proxy == proxy && cut.is_felt(time, RECONNECTED))
    }

    // Faults

    /// Does one step of a fault.
    pub(super) fn act(&mut self, act: &Act) {
        self.note(format!("{act:?}"));
        match act {
            Act::FailOver(what) => {
                // A Sentinel that knows no replica to promote refuses.
                let sockets: Vec<PathBuf> = self.sentinels.iter().map(Server::socket).collect();
                let words = ["SENTINEL", "FAILOVER", what.name()];
                for socket in sockets {
                    let reply = ask(&socket, &words).unwrap_or_default();
                    self.note(format!("told: {}", reply.trim()));
                    if reply.starts_with("+OK") {
                        return;
                    }
                }
            }
            Act::Kill(what) => {
                let host = self.master(*what);
                end(&mut self.servers(*what)[host].child);
                self.killed[*what as usize] = Some(host);
                self.note(format!("host {host}"));
            }
            Act::Restart { what, empty } => {
                let Some(host) = self.killed[*what as usize].take() else { return };
                // A master that comes back with nothing empties its replicas too.
                let empties_all = self.options.guards.is_some() && self.master(*what) == host;
                if *empty && !empties_all {
                    let files = fs::read_dir(&self.server(*what, host).directory);
                    for entry in files.expect("directory").flatten() {
                        let _ = fs::remove_dir_all(entry.path())
                            .or_else(|_| fs::remove_file(entry.path()));
                    }
                }
                self.start_redis(*what, host, &[]);
            }
            Act::HoldReplication(what) => {
                let master = self.master(*what);
                let nobody = ["CONFIG", "SET", "masteruser", "nobody", "masterauth", "nothing"];
                for host in (0..REDISES).filter(|host| *host != master) {
                    let _ = ask(&self.server(*what, host).socket(), &nobody);
                }
                let end = ["CLIENT", "KILL", "TYPE", "replica"];
                let _ = ask(&self.server(*what, master).socket(), &end);
            }
            Act::LetReplicate(what) => {
                for host in 0..REDISES {
                    let words = ["CONFIG", "SET", "masteruser", "", "masterauth", ""];
                    let _ = ask(&self.server(*what, host).socket(), &words);
                }
            }
            Act::Stop(what) => {
                let host = self.master(*what);
                self.server(*what, host).child.iter().for_each(|c| send_signal(c, Signal::STOP));
                self.stopped[*what as usize] = Some(host);
                self.note(format!("host {host}"));
            }
            Act::Continue(what) => {
                let Some(host) = self.stopped[*what as usize].take() else { return };
                self.server(*what, host).child.iter().for_each(|c| send_signal(c, Signal::CONT));
            }
            Act::CutOff { proxy, sentinel, plain, shared, data } => {
                let host = self.master(Locks);
                let mut inside = vec![host, FIRST_SENTINEL + sentinel, FIRST_PROXY + proxy];
                inside.extend(data.then(|| self.master(Data)));
                inside.extend(plain.iter().map(|number| FIRST_PLAIN + number));
                let mut both = vec![CLIENTS];
                both.extend(shared.iter().map(|number| FIRST_PLAIN + number));
                let is_outside = |host: &usize| !both.contains(host) && !inside.contains(host);
                let outside: Vec<usize> = (0..HOSTS).filter(is_outside).collect();
                let pairs = inside.iter().flat_map(|i| outside.iter().map(move |o| (*i, *o)));
                let pairs = pairs.collect();
                self.cut(*proxy, pairs, true, !plain.is_empty());
                self.note(format!("host {host}"));
            }
            Act::Deafen { proxy } => {
                let sentinels = FIRST_SENTINEL..FIRST_SENTINEL + SENTINELS;
                let pairs = sentinels.map(|sentinel| (FIRST_PROXY + proxy, sentinel)).collect();
                self.cut(*proxy, pairs, false, false);
            }
            Act::Heal { proxy } => {
                self.wires.remove(proxy);
                for cut in self.cuts.iter_mut().filter(|cut| cut.proxy == *proxy) {
                    cut.until.get_or_insert_with(history::now);
                }
                self.set_wires();
            }
            Act::KillSentinel(sentinel) => end(&mut self.sentinels[*sentinel].child),
            Act::StartSentinel(sentinel) => {
                if self.sentinels[*sentinel].child.is_none() {
                    self.start_sentinel(*sentinel);
                }
            }
            Act::Nothing => {}
        }
    }

    fn cut(&mut self, proxy: usize, pairs: Vec<(usize, usize)>, from_nodes: bool, plain: bool) {
        self.wires.entry(proxy).or_default().extend(pairs);
        self.cuts.push(Cut { proxy, from: history::now(), until: None, from_nodes, plain });
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
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        let _ = self.watcher.take().map(JoinHandle::join);
        // All processes are on hosts.
        self.network.end_processes();
        let clients = self.clients.iter_mut().map(|client| &mut client.child);
        let clients = clients.chain(self.writers.iter_mut().map(|(child, ..)| child));
        clients.for_each(|child| _ = child.wait());
        let servers = self.locks.iter_mut().chain(&mut self.data).chain(&mut self.plain);
        let servers = servers.chain(&mut self.sentinels).map(|server| &mut server.child);
        servers.chain(&mut self.proxies).for_each(end);
    }
}

fn proxy_address(proxy: usize) -> SocketAddr {
    SocketAddr::from((address(FIRST_PROXY + proxy), PROXY_PORT))
}

/// Returns the host of the master that a Sentinel names, if it answers.
fn named(socket: &Path, what: What) -> Option<usize> {
    let reply = ask(socket, &["SENTINEL", "GET-MASTER-ADDR-BY-NAME", what.name()])?;
    // An array of two; the address's length, the address, and the port.
    let named: Ipv4Addr = reply.lines().nth(2)?.parse().ok()?;
    (0..REDISES).find(|host| address(*host) == named)
}

/// Sends a command to a Redis that may be dead or stopped. Returns the part of its reply that comes at once.
pub(super) fn ask(socket: &Path, words: &[&str]) -> Option<String> {
    let mut stream = UnixStream::connect(socket).ok()?;
    stream.set_read_timeout(Some(ANSWER_LIMIT)).ok()?;
    stream.write_all(&encode(words)).ok()?;
    let mut bytes = [0; 8192];
    let length = stream.read(&mut bytes).ok()?;
    (length > 0).then(|| String::from_utf8_lossy(&bytes[..length]).into_owned())
}
