//! Five lock nodes, three proxies, a data node and the clients: real processes, each host of them
//! in a network namespace of its own. Dropping the deployment removes all of it.

use std::{
    collections::HashMap,
    fs::{self, File},
    io::{Read as _, Write as _},
    net::SocketAddr,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, prlimit};

use crate::{
    client::{self, Plan, Style},
    history::{self, Event, Time, Writer},
    network::{self, Network, PREFIX, address},
    support::{Client, Reply},
    trace,
    writes::Lists,
};

/// The number of lock nodes, on hosts from 0.
pub(crate) const NODES: usize = 5;
/// The number of proxies, on the hosts that follow.
pub(crate) const PROXIES: usize = 3;
/// The host of the data node.
pub(crate) const DATA: usize = NODES + PROXIES;
/// The number of groups of clients, each on a host of its own.
pub(crate) const GROUPS: usize = 2;
const HOSTS: usize = DATA + 1 + GROUPS;
const REDIS_PORT: u16 = 6379;
/// The port of the server that may take a node's place.
pub(crate) const SPARE_PORT: u16 = 6390;
const PROXY_PORT: u16 = 6380;
/// The longest time for processes to start.
const START_LIMIT: Duration = Duration::from_secs(30);
/// The longest time for clients to end, once told to: the longest request.
const END_LIMIT: Duration = Duration::from_secs(30);
/// The longest time for a proxy to end, once told to, and for which connections go on through a
/// process that was replaced.
const GRACE: Duration = Duration::from_secs(3);
/// Other clients get -BUSY once a script has run for 100 ms, and a replica is synchronised at once.
const HASTE: [&str; 4] = ["--lua-time-limit", "100", "--repl-diskless-sync-delay", "0"];
/// The size of the file systems that are filled.
const DISK: &str = "size=24m";
/// An acknowledged write is in the data node's file. The file is in memory too: processes die here,
/// not machines, and the disk's own speed is not under test.
const DATA_PERSISTENCE: [&str; 4] = ["--appendonly", "yes", "--appendfsync", "always"];
const DATA_DISK: &str = "size=256m";

/// Returns the host of a proxy.
pub(crate) fn proxy_host(proxy: usize) -> usize {
    NODES + proxy
}

/// Returns the host of a group of clients.
pub(crate) fn group_host(group: usize) -> usize {
    DATA + 1 + group
}

/// Returns the persistence of a node: none, or a file on a disk that can be filled.
pub(crate) fn persistence(node: usize) -> &'static [&'static str] {
    match node {
        0 => &["--appendonly", "yes", "--appendfsync", "always"],
        1 => &["--appendonly", "yes", "--appendfsync", "everysec"],
        _ => &[],
    }
}

/// Options of a deployment.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    pub(crate) seed: u64,
    pub(crate) style: Style,
    pub(crate) clients: usize,
    /// The number of clients that share locks of their own, for which the proxies' files allow it.
    pub(crate) sharers: usize,
    /// The number of clients that run a stock redis-py.
    pub(crate) stock: usize,
    /// The `mode` of the proxies' `adopt` rule, if they have one.
    pub(crate) adopt: Option<&'static str>,
    /// The numbers of clients that lock as lock libraries do, of those that run redis-py's own Lock, and of those
    /// that go to the data node past the proxies.
    pub(crate) adopted: usize,
    pub(crate) stock_adopted: usize,
    pub(crate) past: usize,
    /// The time in ms for which a reply to a lock library may be under way without shortening its
    /// lock: twice `locks.node_timeout`, unless locks are in mode audit for a while.
    pub(crate) aside: u64,
    pub(crate) keys: usize,
    /// The longest TTL in ms.
    pub(crate) max_ttl: u64,
    pub(crate) quarantine: bool,
    /// Whether proxies have guards, and clients write under their locks.
    pub(crate) guards: bool,
    /// The binary, and the fault planted in it.
    pub(crate) proxy: (PathBuf, Option<&'static str>),
    /// The clocks of nodes at the start, in libfaketime's notation. `None`: the machine's clock.
    pub(crate) node_clocks: [Option<&'static str>; NODES],
    pub(crate) proxy_clocks: [Option<&'static str>; PROXIES],
}

/// Variants of a proxy's configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Settings {
    Right,
    /// A valid configuration that differs.
    Other,
    /// A configuration that the proxy refuses.
    Wrong,
}

/// A Redis, running or not.
struct Server {
    child: Option<Child>,
    directory: PathBuf,
}

impl Server {
    fn socket(&self) -> PathBuf {
        self.directory.join("socket")
    }
}

/// The program of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Program {
    /// This test's own client.
    Own(Style),
    /// This test's own client of a lock library, past the proxies.
    Past,
    /// A stock redis-py that sends LOCK.
    Stock,
    /// A stock redis-py with its own Lock.
    StockAdopted,
}

struct Running {
    child: Option<Child>,
    history: PathBuf,
    program: Program,
}

/// All processes.
pub(crate) struct Deployment {
    options: Options,
    nodes: Vec<Server>,
    /// Empty servers that are up, one for each node that keeps nothing on a disk.
    spares: Vec<Option<Server>>,
    /// The proxies' first processes. Those that have replaced them are found on their hosts.
    proxies: Vec<Option<Child>>,
    data: Server,
    clients: Vec<Running>,
    /// Connections over which an endless script was started.
    busy: HashMap<PathBuf, UnixStream>,
    /// The seconds by which a node's clock is wrong, if it was set.
    clocks: [i64; NODES],
    /// The events and their times.
    pub(crate) log: Vec<(Time, String)>,
    network: Network,
    directory: tempfile::TempDir,
}

impl Deployment {
    /// Starts all but the clients, and waits until the proxies listen.
    pub(crate) fn start(options: Options) -> Deployment {
        static STARTED: AtomicUsize = AtomicUsize::new(0);
        must_be_able();
        network::sweep();
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let name = format!("{}.{number}", std::process::id());
        let network = Network::new(&name, HOSTS);
        let directory =
            tempfile::Builder::new().prefix(&format!("{PREFIX}{name}-")).tempdir().expect("dir");
        let server = |name: &str| {
            let directory = directory.path().join(name);
            fs::create_dir(&directory).expect("directory");
            Server { child: None, directory }
        };
        let spare = |node| server(&format!("spare-{node}"));
        let clocks = options.node_clocks.map(|clock| clock.map_or(0, |clock| wrong_by(clock).0));
        let mut deployment = Deployment {
            options,
            nodes: (0..NODES).map(|node| server(&format!("node-{node}"))).collect(),
            spares: (0..NODES)
                .map(|node| persistence(node).is_empty().then(|| spare(node)))
                .collect(),
            proxies: (0..PROXIES).map(|_| None).collect(),
            data: server("data"),
            clients: Vec::new(),
            busy: HashMap::new(),
            clocks,
            log: Vec::new(),
            network,
            directory,
        };
        for node in 0..NODES {
            if !persistence(node).is_empty() {
                mount(&deployment.nodes[node].directory, DISK);
            }
            if let Some(clock) = deployment.options.node_clocks[node] {
                deployment.set_clock(&format!("clock-{node}"), clock);
            }
            deployment.start_node(node);
            deployment.start_spare(node);
        }
        mount(&deployment.data.directory, DATA_DISK);
        deployment.start_data();
        for proxy in 0..PROXIES {
            if let Some(clock) = deployment.options.proxy_clocks[proxy] {
                deployment.set_proxy_clock(proxy, clock);
            }
        }
        let spares = deployment.spares.iter().flatten();
        for server in deployment.nodes.iter().chain(spares).chain([&deployment.data]) {
            eventually("a Redis answers", || answers(&server.socket()));
        }
        deployment.initialise();
        for proxy in 0..PROXIES {
            deployment.start_proxy(proxy);
        }
        for proxy in 0..PROXIES {
            let log = deployment.path(&format!("proxy-{proxy}.log"));
            eventually("a proxy listens", || {
                fs::read_to_string(&log).is_ok_and(|text| text.contains("\"listening\""))
            });
        }
        deployment
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Notes an event.
    pub(crate) fn note(&mut self, what: String) {
        self.log.push((history::now(), what));
    }

    /// Returns the network.
    pub(crate) fn network(&self) -> &Network {
        &self.network
    }

    /// Returns the options of the start.
    pub(crate) fn options(&self) -> &Options {
        &self.options
    }

    fn redis(
        &self,
        (host, port): (usize, u16),
        dir: &Path,
        more: &[&str],
        clock: Option<PathBuf>,
    ) -> Child {
        let mut command = self.network.command(host);
        command
            .args(clock.iter().flat_map(|file| faketime(file)))
            .arg("redis-server")
            .args(["--port", &port.to_string(), "--protected-mode", "no", "--save", ""])
            .args(HASTE)
            .args(["--daemonize", "no", "--auto-aof-rewrite-min-size", "1mb", "--dir"])
            .arg(dir)
            .arg("--unixsocket")
            .arg(dir.join("socket"))
            .arg("--logfile")
            .arg(dir.with_extension("log"))
            .args(more);
        command.spawn().expect("nsenter (package util-linux)")
    }

    // Nodes

    /// Starts a node that is not running.
    pub(crate) fn start_node(&mut self, node: usize) {
        let directory = &self.nodes[node].directory;
        mend_file(directory);
        let at = (node, REDIS_PORT);
        let child = self.redis(at, directory, persistence(node), self.node_clock(node));
        self.nodes[node].child = Some(child);
    }

    fn node_clock(&self, node: usize) -> Option<PathBuf> {
        self.options.node_clocks[node].map(|_| self.path(&format!("clock-{node}")))
    }

    /// Sends SIGKILL to a node.
    pub(crate) fn kill_node(&mut self, node: usize) {
        end(&mut self.nodes[node].child);
    }

    /// Deletes all that a node has on its disk; the node must not be running.
    pub(crate) fn clear_node(&self, node: usize) {
        for entry in fs::read_dir(&self.nodes[node].directory).expect("directory").flatten() {
            let _ = fs::remove_dir_all(entry.path()).or_else(|_| fs::remove_file(entry.path()));
        }
    }

    /// Sends SIGSTOP or SIGCONT to a node.
    pub(crate) fn signal_node(&self, node: usize, signal: Signal) {
        self.nodes[node].child.iter().for_each(|child| send_signal(child, signal));
    }

    /// Whether a node has not ended by itself.
    pub(crate) fn node_runs(&mut self, node: usize) -> bool {
        let child = self.nodes[node].child.as_mut();
        child.is_some_and(|child| child.try_wait().expect("status").is_none())
    }

    /// Starts the server that may take a node's place, if there is one and it is not running.
    pub(crate) fn start_spare(&mut self, node: usize) {
        let Some(spare) = &self.spares[node] else { return };
        let child = self.redis((node, SPARE_PORT), &spare.directory, &[], self.node_clock(node));
        self.spares[node].as_mut().expect("a spare").child = Some(child);
    }

    /// Kills a node; another server, which has been up for a while, takes its address.
    pub(crate) fn exchange_node(&mut self, node: usize) {
        let mut spare = self.spares[node].take().expect("a spare");
        let before = &mut self.nodes[node];
        end(&mut before.child);
        std::mem::swap(before, &mut spare);
        self.spares[node] = Some(spare);
        let port = REDIS_PORT.to_string();
        self.tell_node(node, &["CONFIG", "SET", "port", &port]);
    }

    /// Sends a node a command, past all wires.
    pub(crate) fn tell_node(&self, node: usize, words: &[&str]) {
        tell(&self.nodes[node].socket(), words);
    }

    /// Keeps a node busy with a script until [`Deployment::end_script`].
    pub(crate) fn keep_node_busy(&mut self, node: usize) {
        self.keep_busy(self.nodes[node].socket());
    }

    /// Keeps the data node busy with a script until [`Deployment::end_data_script`].
    pub(crate) fn keep_data_busy(&mut self) {
        self.keep_busy(self.data.socket());
    }

    fn keep_busy(&mut self, socket: PathBuf) {
        let mut stream = connect(&socket);
        let words = ["EVAL", "while true do end", "0"];
        stream.write_all(&crate::support::encode(&words)).expect("a script");
        self.busy.insert(socket, stream);
    }

    /// Ends a node's script.
    pub(crate) fn end_node_script(&mut self, node: usize) {
        self.end_script(&self.nodes[node].socket());
    }

    /// Ends the data node's script.
    pub(crate) fn end_data_script(&mut self) {
        self.end_script(&self.data.socket());
    }

    fn end_script(&mut self, socket: &Path) {
        // Redis kills a script only once it has run for so long that others get -BUSY.
        eventually("the script is ended", || match tell(socket, &["SCRIPT", "KILL"]) {
            Reply::Error(error) => error.starts_with("NOTBUSY"),
            _ => false,
        });
        self.busy.remove(socket);
    }

    /// Makes the clock of a node that has one of its own wrong by `seconds`.
    pub(crate) fn set_node_clock(&mut self, node: usize, seconds: i64) {
        assert!(self.options.node_clocks[node].is_some(), "node {node} has no clock of its own");
        self.clocks[node] = seconds;
        let (_, rate) = self.options.node_clocks[node].map(wrong_by).unwrap_or_default();
        self.set_clock(&format!("clock-{node}"), &format!("{seconds:+}{rate}"));
    }

    /// Steps the clock of a node that has one of its own, forward or back.
    pub(crate) fn step_node_clock(&mut self, node: usize, seconds: i64) {
        self.set_node_clock(node, self.clocks[node] + seconds);
    }

    /// Sets a proxy's clock, in libfaketime's notation.
    pub(crate) fn set_proxy_clock(&self, proxy: usize, clock: &str) {
        assert!(self.options.proxy_clocks[proxy].is_some(), "proxy {proxy} has no clock");
        self.set_clock(&format!("proxy-clock-{proxy}"), clock);
    }

    fn set_clock(&self, name: &str, clock: &str) {
        // The file is replaced as a whole, so that no process reads half of it.
        let (new, file) = (self.path(&format!("{name}.new")), self.path(name));
        fs::write(&new, clock).and_then(|()| fs::rename(&new, file)).expect("a clock");
    }

    /// Fills the disk of a node that has one. This may end the node.
    pub(crate) fn fill_disk(&self, node: usize) {
        let file = self.nodes[node].directory.join("filler");
        let mut filler = File::options().create(true).append(true).open(file).expect("filler");
        for size in [1 << 20, 1 << 12, 1] {
            while filler.write_all(&vec![0; size]).is_ok() {}
        }
    }

    /// Frees the filled disk.
    pub(crate) fn free_disk(&self, node: usize) {
        fs::remove_file(self.nodes[node].directory.join("filler")).expect("filler");
    }

    // The data node

    /// Starts the data node, which must not be running.
    pub(crate) fn start_data(&mut self) {
        let at = (DATA, REDIS_PORT);
        self.data.child = Some(self.redis(at, &self.data.directory, &DATA_PERSISTENCE, None));
    }

    /// Sends SIGKILL to the data node.
    pub(crate) fn kill_data(&mut self) {
        end(&mut self.data.child);
    }

    /// Sends the data node a command, past all wires.
    pub(crate) fn tell_data(&self, words: &[&str]) -> Reply {
        tell(&self.data.socket(), words)
    }

    /// Deletes all fences of the data node.
    pub(crate) fn delete_fences(&self) {
        let Reply::Array(keys) = self.tell_data(&["KEYS", "lockgate:guard:*"]) else { return };
        for key in keys {
            if let Reply::Bulk(key) = key {
                self.tell_data(&["DEL", &String::from_utf8_lossy(&key)]);
            }
        }
    }

    /// Sends SIGSTOP or SIGCONT to the data node.
    pub(crate) fn signal_data(&self, signal: Signal) {
        self.data.child.iter().for_each(|child| send_signal(child, signal));
    }

    /// Returns the entries written under each lock, in the order in which they landed.
    pub(crate) fn lists(&self) -> Lists {
        lists(&self.data.socket(), self.options.keys)
    }

    // Proxies

    /// Writes the configuration of a proxy; with another `default_ttl`, which can change while the
    /// proxy runs, or with an error.
    pub(crate) fn configure(&self, proxy: usize, with: Settings) {
        let nodes: String =
            (0..NODES).map(|node| format!("    - redis://{}\n", redis_address(node))).collect();
        let quarantine = if self.options.quarantine { "yes" } else { "no" };
        let guards = if self.options.guards { trace::GUARDS } else { "" };
        let adopt = self.options.adopt.map(trace::adopt).unwrap_or_default();
        let shared = if self.options.sharers > 0 { "  shared: yes\n" } else { "" };
        let max_ttl = self.options.max_ttl;
        let default_ttl = if with == Settings::Other { max_ttl / 2 } else { max_ttl * 2 / 3 };
        let wrong = if with == Settings::Wrong { "wrong: yes\n" } else { "" };
        // `make shared` has clients share connections to the data node.
        let share = std::env::var_os("LOCKGATE_TEST_SHARE").map_or("", |_| "share: yes\n");
        let settings = format!(
            "listen: 0.0.0.0:{PROXY_PORT}\nadmin: 127.0.0.1:9380\nallow_open: true\n\
             data: redis://{}\nlog:\n  level: info\n  format: json\n\
             upgrade_socket: {}\nupgrade_grace: {grace}s\nshutdown_grace: {grace}s\n{wrong}{share}\
             locks:\n{shared}  max_ttl: {max_ttl}ms\n  default_ttl: {default_ttl}ms\n  \
             node_timeout: 100ms\n  quarantine: {quarantine}\n  nodes:\n{nodes}{guards}{adopt}",
            redis_address(DATA),
            self.path(&format!("upgrade-{proxy}.socket")).display(),
            grace = GRACE.as_secs(),
        );
        // The file is replaced as a whole, so that no process reads half of it.
        let (new, file) = (self.path(&format!("{proxy}.new")), self.configuration(proxy));
        fs::write(&new, settings).and_then(|()| fs::rename(&new, file)).expect("configuration");
    }

    fn configuration(&self, proxy: usize) -> PathBuf {
        // Each process has a file of its own, as the others may be reading theirs.
        self.path(&format!("lockgate-{proxy}.yaml"))
    }

    /// Runs `lockgate init`.
    fn initialise(&self) {
        self.configure(0, Settings::Right);
        let mut command = self.network.command(proxy_host(0));
        command.arg(&self.options.proxy.0).arg("init").arg(self.configuration(0));
        let output = command.stderr(Stdio::piped()).output().expect("nsenter");
        let words = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "lockgate init: {words}");
    }

    /// Starts a proxy that is not running.
    pub(crate) fn start_proxy(&mut self, proxy: usize) {
        self.configure(proxy, Settings::Right);
        let log = self.path(&format!("proxy-{proxy}.log"));
        let log = File::options().create(true).append(true).open(log).expect("log");
        let clock = self.options.proxy_clocks[proxy].map(|_| format!("proxy-clock-{proxy}"));
        let clock = clock.map(|name| self.path(&name));
        let (binary, plant) = &self.options.proxy;
        let mut command = self.network.command(proxy_host(proxy));
        command
            .args(clock.iter().flat_map(|file| faketime(file)))
            .args(plant.map(|plant| format!("LOCKGATE_PLANT={plant}")))
            .arg(binary)
            .arg("--config")
            .arg(self.configuration(proxy))
            .stderr(log);
        self.proxies[proxy] = Some(command.spawn().expect("nsenter"));
    }

    /// Returns the processes of a proxy, the newest last. Those that were replaced still serve the connections that
    /// they have.
    fn proxy_processes(&self, proxy: usize) -> Vec<Pid> {
        self.network.processes(proxy_host(proxy))
    }

    /// Sends SIGKILL to all processes of a proxy.
    pub(crate) fn kill_proxy(&mut self, proxy: usize) {
        // A process may be starting another.
        eventually("a proxy is dead", || {
            let processes = self.proxy_processes(proxy);
            processes.iter().for_each(|pid| _ = kill_process(*pid, Signal::KILL));
            self.proxies[proxy].iter_mut().for_each(|child| _ = child.try_wait());
            processes.is_empty()
        });
        end(&mut self.proxies[proxy]);
    }

    /// Sends SIGSTOP or SIGCONT to a proxy.
    pub(crate) fn signal_proxy(&self, proxy: usize, signal: Signal) {
        self.proxy_processes(proxy).iter().for_each(|pid| _ = kill_process(*pid, signal));
    }

    /// Sends a signal to the process that serves new clients.
    pub(crate) fn signal_newest(&self, proxy: usize, signal: Signal) {
        self.proxy_processes(proxy).last().iter().for_each(|pid| _ = kill_process(**pid, signal));
    }

    /// Makes all proxies take this mode of their `adopt` rule, one after the other, while clients go on.
    pub(crate) fn step_to(&mut self, mode: &'static str, pause: Duration) {
        const TAKEN: &str = "read the configuration again";
        self.note(format!("mode {mode}"));
        self.options.adopt = Some(mode);
        for proxy in 0..PROXIES {
            let times =
                |deployment: &Deployment| deployment.proxy_log(proxy).matches(TAKEN).count();
            let before = times(self);
            self.configure(proxy, Settings::Right);
            self.signal_newest(proxy, Signal::HUP);
            eventually("the mode is taken", || times(self) > before);
            thread::sleep(pause);
        }
        self.note(format!("mode {mode} everywhere"));
    }

    /// Waits until each proxy's last line in the log about each node says that it is up. The wait
    /// is limited: a process that was replaced may have the last line.
    pub(crate) fn wait_for_nodes(&self) {
        let deadline = Instant::now() + START_LIMIT / 2;
        let is_up = |log: &str, node: usize| {
            let about = format!("\"node\":\"{}\"", redis_address(node));
            let last = |words: &&str| words.contains(&about) && words.contains("\"lock node is ");
            let is_state =
                |words: &&str| ["is up\"", "is down\""].iter().any(|word| words.contains(word));
            log.lines()
                .rfind(|line| last(line) && is_state(line))
                .is_some_and(|line| line.contains("is up\""))
        };
        let all_up = |proxy| {
            let log = self.proxy_log(proxy);
            (0..NODES).all(|node| is_up(&log, node))
        };
        while !(0..PROXIES).all(all_up) && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Leaves a proxy no descriptors beyond those that it has open, or lifts that limit.
    pub(crate) fn limit_descriptors(&self, proxy: usize, limited: bool) {
        for pid in self.proxy_processes(proxy) {
            let descriptors = format!("/proc/{}/fd", pid.as_raw_nonzero());
            let Ok(open) = fs::read_dir(descriptors).map(Iterator::count) else { continue };
            // The hard limit stays as it is for all.
            let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
            let current = if limited { Some(open as u64) } else { maximum };
            let limit = Rlimit { current, maximum };
            // The process may have ended.
            let _ = prlimit(Some(pid), Resource::Nofile, limit);
        }
    }

    // Clients

    /// Starts the clients, which go on until [`Deployment::stop_clients`].
    pub(crate) fn start_clients(&mut self) {
        self.control("go on");
        let Options { style, clients, sharers, adopted, stock, stock_adopted, past, .. } =
            self.options;
        for (program, clients) in [
            (Program::Past, past),
            (Program::Own(style), clients),
            (Program::Own(Style::Adopted), adopted),
            (Program::Stock, stock),
            (Program::StockAdopted, stock_adopted),
            (Program::Own(Style::Sharers), sharers),
        ] {
            self.start_more(program, clients);
        }
    }

    /// Starts more clients.
    pub(crate) fn start_more(&mut self, program: Program, clients: usize) {
        for client in 0..clients {
            self.start_client(client % GROUPS, program);
        }
    }

    fn control(&self, word: &str) {
        for file in ["control", "control-past"] {
            fs::write(self.path(file), word).expect("control");
        }
    }

    /// Ends the clients past the proxies, or lets new ones go on.
    pub(crate) fn stop_past(&mut self, stop: bool) {
        let word = if stop { "" } else { "go on" };
        fs::write(self.path("control-past"), word).expect("control");
        if stop {
            self.await_end(|program| program == Program::Past);
        }
    }

    /// Starts one more client.
    fn start_client(&mut self, group: usize, program: Program) {
        let number = self.clients.len();
        let history = self.path(&format!("history-{number}"));
        let plan = Plan {
            seed: self.options.seed ^ ((number as u64) << 32),
            number,
            style: match program {
                Program::Own(style) => style,
                Program::Past => Style::Adopted,
                Program::Stock | Program::StockAdopted => self.options.style,
            },
            proxies: match program {
                Program::Past => vec![redis_address(DATA)],
                _ => (0..PROXIES).map(proxy_address).collect(),
            },
            history: history.clone(),
            control: self.path(match program {
                Program::Past => "control-past",
                _ => "control",
            }),
            keys: self.options.keys,
            max_ttl: self.options.max_ttl,
            writes: self.options.guards,
            is_past: program == Program::Past,
            aside: match program {
                Program::Past => 0,
                _ => self.options.aside,
            },
        };
        let mut command = self.network.command(group_host(group));
        match program {
            Program::Own(_) | Program::Past => command
                .arg(format!("{}={}", client::VARIABLE, plan.encode()))
                .arg(std::env::current_exe().expect("this program"))
                .args(["--exact", "client_process", "--ignored"]),
            Program::Stock => command.args(client::python()).args(plan.arguments()),
            Program::StockAdopted => {
                let more = [trace::adopted(""), plan.aside.to_string()];
                command.args(client::python()).args(plan.arguments()).args(more)
            }
        };
        let log = File::create(self.client_log(number)).expect("log");
        command.stdout(log.try_clone().expect("log")).stderr(log);
        let child = Some(command.spawn().expect("nsenter"));
        self.clients.push(Running { child, history, program });
    }

    fn client_log(&self, number: usize) -> PathBuf {
        self.path(&format!("client-{number}.log"))
    }

    /// Returns the number of clients at any time.
    pub(crate) fn running_clients(&self) -> usize {
        let Options { clients, sharers, adopted, stock, stock_adopted, past, .. } = self.options;
        clients + sharers + adopted + stock + stock_adopted + past
    }

    /// Sends SIGKILL to a client, and starts another in its place.
    pub(crate) fn kill_client(&mut self, client: usize) {
        let Some(number) = self.running_client(client) else { return };
        let Running { child, history, program } = &mut self.clients[number];
        Writer::new(history).expect("history").add(&Event::Killed);
        end(child);
        let program = *program;
        self.start_client(client % GROUPS, program);
    }

    /// Sends SIGSTOP or SIGCONT to a client.
    pub(crate) fn signal_client(&self, client: usize, signal: Signal) {
        if let Some(number) = self.running_client(client) {
            self.clients[number].child.iter().for_each(|child| send_signal(child, signal));
        }
    }

    fn running_client(&self, client: usize) -> Option<usize> {
        let mut running =
            (0..self.clients.len()).filter(|number| self.clients[*number].child.is_some());
        running.nth(client)
    }

    /// Tells all clients to end, and waits until they have.
    pub(crate) fn stop_clients(&mut self) {
        self.control("");
        self.await_end(|_| true);
    }

    fn await_end(&mut self, which: impl Fn(Program) -> bool) {
        let deadline = Instant::now() + END_LIMIT;
        for number in 0..self.clients.len() {
            let log = self.client_log(number);
            let Running { child, program, .. } = &mut self.clients[number];
            let Some(process) = child.as_mut().filter(|_| which(*program)) else { continue };
            loop {
                if let Some(status) = process.try_wait().expect("status") {
                    let words = fs::read_to_string(&log).unwrap_or_default();
                    assert!(status.success(), "client {number} ended with {status}: {words}");
                    break;
                }
                assert!(Instant::now() < deadline, "client {number} does not end");
                thread::sleep(Duration::from_millis(10));
            }
            *child = None;
        }
    }

    /// Returns the number of client processes so far.
    pub(crate) fn clients(&self) -> usize {
        self.clients.len()
    }

    /// Returns the histories of all clients so far.
    pub(crate) fn histories(&self) -> Vec<Vec<(Time, Event)>> {
        // All are cut at one time: a history read later may have what followed from a line that came too late for one
        // read earlier.
        let until = history::now();
        let read = |client: &Running| {
            let mut events = history::read(&client.history);
            events.retain(|(time, _)| *time <= until);
            events
        };
        self.clients.iter().map(read).collect()
    }

    /// Returns the log of a proxy.
    pub(crate) fn proxy_log(&self, proxy: usize) -> String {
        fs::read_to_string(self.path(&format!("proxy-{proxy}.log"))).unwrap_or_default()
    }
}

impl Drop for Deployment {
    fn drop(&mut self) {
        let clients = self.clients.iter_mut().map(|client| &mut client.child);
        let servers = self.nodes.iter_mut().chain(self.spares.iter_mut().flatten());
        let servers = servers.chain([&mut self.data]).map(|server| &mut server.child);
        clients.chain(servers).chain(&mut self.proxies).for_each(end);
        // Processes that have replaced others.
        self.network.end_processes();
        network::unmount_below(self.directory.path());
    }
}

/// Fails with a list of the missing tools, if there are any.
fn must_be_able() {
    let root = rustix::process::geteuid().is_root();
    assert!(root, "chaos needs root: it makes network namespaces, TUN devices and mounts");
    assert!(Path::new("/dev/net/tun").exists(), "chaos needs /dev/net/tun");
    libfaketime();
    let python = client::python()[0].clone();
    assert!(python.exists(), "{} is missing: run \"make test\"", python.display());
}

/// Returns the library that gives a process a clock of its own.
fn libfaketime() -> PathBuf {
    let directories = fs::read_dir("/usr/lib").into_iter().flatten().flatten();
    let files = directories.map(|entry| entry.path().join("faketime/libfaketimeMT.so.1"));
    let found = files.into_iter().find(|file| file.exists());
    found.expect("chaos needs libfaketimeMT.so.1 (apt-get install faketime)")
}

/// Returns the environment of a process whose time of day is that of a file. The time since the machine's start stays
/// true: it cannot be set.
fn faketime(file: &Path) -> [String; 4] {
    [
        // The C library comes before jemalloc, which asks for the time before libfaketime is ready.
        format!("LD_PRELOAD={}:libc.so.6", libfaketime().display()),
        format!("FAKETIME_TIMESTAMP_FILE={}", file.display()),
        "FAKETIME_NO_CACHE=1".to_owned(),
        "FAKETIME_DONT_FAKE_MONOTONIC=1".to_owned(),
    ]
}

/// Returns the seconds by which a clock is wrong, and the words for its rate.
fn wrong_by(clock: &'static str) -> (i64, &'static str) {
    let (seconds, rate) = clock.split_at(clock.find(' ').unwrap_or(clock.len()));
    (seconds.parse().expect("seconds"), rate)
}

/// Mounts a file system in memory.
fn mount(directory: &Path, size: &str) {
    let mut mount = Command::new("mount");
    mount.args(["-t", "tmpfs", "-o", size, "tmpfs"]).arg(directory);
    let mounted = mount.status().expect("mount");
    assert!(mounted.success(), "a tmpfs could not be mounted: this needs root");
}

pub(crate) fn redis_address(host: usize) -> SocketAddr {
    SocketAddr::from((address(host), REDIS_PORT))
}

fn proxy_address(proxy: usize) -> SocketAddr {
    SocketAddr::from((address(proxy_host(proxy)), PROXY_PORT))
}

pub(crate) fn send_signal(child: &Child, signal: Signal) {
    // A process that has ended by itself needs no signal.
    let _ = kill_process(Pid::from_child(child), signal);
}

pub(crate) fn end(child: &mut Option<Child>) {
    if let Some(mut child) = child.take() {
        let _ = child.kill();
        let _ = child.wait();
        // libfaketime leaves these behind when its process is killed.
        for name in ["faketime_shm_", "sem.faketime_sem_"] {
            let _ = fs::remove_file(format!("/dev/shm/{name}{}", child.id()));
        }
    }
}

/// Cuts a node's append-only file where a full disk has broken it, as an operator would: Redis does not start with it
/// otherwise.
fn mend_file(directory: &Path) {
    let manifest = directory.join("appendonlydir/appendonly.aof.manifest");
    if manifest.exists() {
        let mut command = Command::new("redis-check-aof");
        command.arg("--fix").arg(manifest).stdin(Stdio::piped()).stdout(Stdio::null());
        let mut child = command.spawn().expect("redis-check-aof (package redis-tools)");
        // Redis asks only if there is something to cut.
        let _ = child.stdin.take().expect("piped").write_all(b"y\n");
        child.wait().expect("status");
    }
}

/// Sends a command to a Redis, which must be running, and reads the answer.
fn tell(socket: &Path, words: &[&str]) -> Reply {
    let stream = connect(socket);
    stream.set_read_timeout(Some(START_LIMIT)).expect("limit");
    Client::over(stream).cmd(words)
}

/// Connects to a Redis that may have been started only now.
fn connect(socket: &Path) -> UnixStream {
    let deadline = Instant::now() + START_LIMIT;
    loop {
        match UnixStream::connect(socket) {
            Ok(stream) => return stream,
            Err(error) if Instant::now() > deadline => {
                let log = socket.parent().expect("a directory").with_extension("log");
                let log = fs::read(log).unwrap_or_default();
                let end = String::from_utf8_lossy(&log[log.len().saturating_sub(4000)..]);
                panic!("{}: {error}: …{end}", socket.display());
            }
            Err(_) => thread::sleep(Duration::from_millis(10)),
        }
    }
}

pub(crate) fn answers(socket: &Path) -> bool {
    let ping = || -> std::io::Result<bool> {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(Duration::from_secs(1)))?;
        stream.write_all(b"PING\r\n")?;
        let mut first = [0; 1];
        stream.read_exact(&mut first)?;
        Ok(first[0] == b'+')
    };
    ping().unwrap_or(false)
}

pub(crate) fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + START_LIMIT;
    while !condition() {
        assert!(Instant::now() < deadline, "not within {START_LIMIT:?}: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Returns the entries written under each of the first `locks` locks, in the order in which they landed on the data
/// node at this socket.
pub(crate) fn lists(socket: &Path, locks: usize) -> Lists {
    eventually("the data node answers", || answers(socket));
    let stream = UnixStream::connect(socket).expect("the data node");
    stream.set_read_timeout(Some(START_LIMIT)).expect("limit");
    let mut client = Client::over(stream);
    let locks = (0..locks).map(trace::lock).filter(|lock| trace::is_guard(lock));
    let mut list = |lock: &str| match client.cmd(&["LRANGE", &trace::list(lock), "0", "-1"]) {
        Reply::Array(entries) => entries.into_iter().map(|entry| match entry {
            Reply::Bulk(text) => String::from_utf8_lossy(&text).parse().expect("an entry"),
            other => panic!("not an entry: {other:?}"),
        }),
        other => panic!("not a list: {other:?}"),
    };
    locks.map(|lock| (lock.clone(), list(&lock).collect())).collect()
}
