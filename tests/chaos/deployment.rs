//! Five lock nodes, three proxies, a data node and the clients: real processes, each
//! host of them in a network namespace of its own. Dropped, nothing of it is left.

use std::{
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

/// Lock nodes: hosts from 0.
pub(crate) const NODES: usize = 5;
/// Proxies: hosts behind the nodes.
pub(crate) const PROXIES: usize = 3;
/// The host of the data node.
pub(crate) const DATA: usize = NODES + PROXIES;
/// Groups of clients, each a host.
pub(crate) const GROUPS: usize = 2;
const HOSTS: usize = DATA + 1 + GROUPS;
const REDIS_PORT: u16 = 6379;
const PROXY_PORT: u16 = 6380;
/// How long processes may take to start.
const START_LIMIT: Duration = Duration::from_secs(30);
/// How long clients may take to end, once told to: the longest request.
const END_LIMIT: Duration = Duration::from_secs(30);
/// The size of the file systems that are filled.
const DISK: &str = "size=24m";
/// What was acknowledged is in the data node's file. That is in memory as well: processes
/// die here, not machines, and the disk's own pace is not what is tried.
const DATA_PERSISTENCE: [&str; 4] = ["--appendonly", "yes", "--appendfsync", "always"];
const DATA_DISK: &str = "size=256m";

/// The host of a proxy.
pub(crate) fn proxy_host(proxy: usize) -> usize {
    NODES + proxy
}

/// The host of a group of clients.
pub(crate) fn group_host(group: usize) -> usize {
    DATA + 1 + group
}

/// Whether a node keeps its memory on a disk, and one that can be filled.
pub(crate) fn persistence(node: usize) -> &'static [&'static str] {
    match node {
        0 => &["--appendonly", "yes", "--appendfsync", "always"],
        1 => &["--appendonly", "yes", "--appendfsync", "everysec"],
        _ => &[],
    }
}

/// What it is to be like.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    pub(crate) seed: u64,
    pub(crate) style: Style,
    pub(crate) clients: usize,
    pub(crate) keys: usize,
    /// In ms.
    pub(crate) max_ttl: u64,
    pub(crate) quarantine: bool,
    /// Proxies have guards, and clients write under their locks.
    pub(crate) guards: bool,
    /// The binary, and the fault planted in it.
    pub(crate) proxy: (PathBuf, Option<&'static str>),
    /// What the clocks of nodes and proxies say at first, as libfaketime has it; none
    /// where the machine's clock is not touched.
    pub(crate) node_clocks: [Option<&'static str>; NODES],
    pub(crate) proxy_clocks: [Option<&'static str>; PROXIES],
}

/// All processes.
pub(crate) struct Deployment {
    options: Options,
    nodes: Vec<Option<Child>>,
    proxies: Vec<Option<Child>>,
    data: Option<Child>,
    clients: Vec<(Option<Child>, PathBuf)>,
    /// By how many seconds a node's clock is wrong, where it was set.
    clocks: [i64; NODES],
    /// What happened when.
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
        let mut deployment = Deployment {
            options,
            nodes: (0..NODES).map(|_| None).collect(),
            proxies: (0..PROXIES).map(|_| None).collect(),
            data: None,
            clients: Vec::new(),
            clocks: [0; NODES],
            log: Vec::new(),
            network,
            directory,
        };
        for node in 0..NODES {
            let directory = deployment.node_directory(node);
            fs::create_dir(&directory).expect("directory");
            if !persistence(node).is_empty() {
                mount(&directory, DISK);
            }
            if let Some(clock) = deployment.options.node_clocks[node] {
                deployment.set_clock(&format!("clock-{node}"), clock);
            }
            deployment.start_node(node);
        }
        let data = deployment.path("data");
        fs::create_dir(&data).expect("directory");
        mount(&data, DATA_DISK);
        deployment.start_data();
        for proxy in 0..PROXIES {
            if let Some(clock) = deployment.options.proxy_clocks[proxy] {
                deployment.set_proxy_clock(proxy, clock);
            }
        }
        for node in 0..NODES {
            let socket = deployment.node_directory(node).join("socket");
            eventually("a node answers", || answers(&socket));
        }
        deployment.init();
        let socket = deployment.path("data").join("socket");
        eventually("the data node answers", || answers(&socket));
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

    fn node_directory(&self, node: usize) -> PathBuf {
        self.path(&format!("node-{node}"))
    }

    /// Notes what happens.
    pub(crate) fn note(&mut self, what: String) {
        self.log.push((history::now(), what));
    }

    /// The wires.
    pub(crate) fn network(&self) -> &Network {
        &self.network
    }

    /// What it was started with.
    pub(crate) fn options(&self) -> &Options {
        &self.options
    }

    /// A command on a host, that ends with the thread that starts it.
    fn on(&self, host: usize) -> Command {
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--net={}", self.network.namespace(host)))
            .args(["setpriv", "--pdeathsig", "KILL", "env"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command
    }

    fn redis(&self, host: usize, dir: &Path, more: &[&str], clock: Option<PathBuf>) -> Child {
        let mut command = self.on(host);
        command
            .args(clock.iter().flat_map(|file| faketime(file)))
            .arg("redis-server")
            .args(["--port", &REDIS_PORT.to_string(), "--protected-mode", "no", "--save", ""])
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
        let directory = self.node_directory(node);
        let clock = self.options.node_clocks[node].map(|_| self.path(&format!("clock-{node}")));
        self.nodes[node] = Some(self.redis(node, &directory, persistence(node), clock));
    }

    /// SIGKILL.
    pub(crate) fn kill_node(&mut self, node: usize) {
        end(&mut self.nodes[node]);
    }

    /// SIGSTOP or SIGCONT.
    pub(crate) fn signal_node(&self, node: usize, signal: Signal) {
        self.nodes[node].iter().for_each(|child| send_signal(child, signal));
    }

    /// Whether it has not ended by itself.
    pub(crate) fn node_runs(&mut self, node: usize) -> bool {
        let child = self.nodes[node].as_mut();
        child.is_some_and(|child| child.try_wait().expect("status").is_none())
    }

    /// Makes the clock of a node that has one of its own wrong by so many seconds.
    pub(crate) fn set_node_clock(&mut self, node: usize, seconds: i64) {
        assert!(self.options.node_clocks[node].is_some(), "node {node} has no clock of its own");
        self.clocks[node] = seconds;
        self.set_clock(&format!("clock-{node}"), &format!("{seconds:+}"));
    }

    /// Steps such a clock back.
    pub(crate) fn step_node_clock(&mut self, node: usize, seconds: u64) {
        self.set_node_clock(node, self.clocks[node] - seconds.cast_signed());
    }

    /// Sets a proxy's clock, in libfaketime's words.
    pub(crate) fn set_proxy_clock(&self, proxy: usize, clock: &str) {
        assert!(self.options.proxy_clocks[proxy].is_some(), "proxy {proxy} has no clock");
        self.set_clock(&format!("proxy-clock-{proxy}"), clock);
    }

    fn set_clock(&self, name: &str, clock: &str) {
        // Never seen half written.
        let (new, file) = (self.path(&format!("{name}.new")), self.path(name));
        fs::write(&new, clock).and_then(|()| fs::rename(&new, file)).expect("a clock");
    }

    /// Fills the disk of a node that has one. It may end of that.
    pub(crate) fn fill_disk(&self, node: usize) {
        let file = self.node_directory(node).join("filler");
        let mut filler = File::options().create(true).append(true).open(file).expect("filler");
        for size in [1 << 20, 1 << 12, 1] {
            while filler.write_all(&vec![0; size]).is_ok() {}
        }
    }

    /// Makes room again.
    pub(crate) fn free_disk(&self, node: usize) {
        fs::remove_file(self.node_directory(node).join("filler")).expect("filler");
    }

    // The data node

    /// Starts it, which must not be running.
    pub(crate) fn start_data(&mut self) {
        self.data = Some(self.redis(DATA, &self.path("data"), &DATA_PERSISTENCE, None));
    }

    /// SIGKILL.
    pub(crate) fn kill_data(&mut self) {
        end(&mut self.data);
    }

    /// SIGSTOP or SIGCONT.
    pub(crate) fn signal_data(&self, signal: Signal) {
        self.data.iter().for_each(|child| send_signal(child, signal));
    }

    /// What was written under each lock, in the order in which it landed.
    pub(crate) fn lists(&self) -> Lists {
        let socket = self.path("data").join("socket");
        eventually("the data node answers", || answers(&socket));
        let stream = UnixStream::connect(socket).expect("the data node");
        stream.set_read_timeout(Some(START_LIMIT)).expect("limit");
        let mut client = Client::over(stream);
        let locks = (0..self.options.keys).map(trace::lock).filter(|lock| trace::is_guard(lock));
        let mut list = |lock: &str| match client.cmd(&["LRANGE", &trace::list(lock), "0", "-1"]) {
            Reply::Array(entries) => entries.into_iter().map(|entry| match entry {
                Reply::Bulk(text) => String::from_utf8_lossy(&text).parse().expect("an entry"),
                other => panic!("not an entry: {other:?}"),
            }),
            other => panic!("not a list: {other:?}"),
        };
        locks.map(|lock| (lock.clone(), list(&lock).collect())).collect()
    }

    // Proxies

    /// Says once, before there is a proxy, that the nodes are new.
    fn init(&self) {
        let file = self.path("init.yaml");
        fs::write(&file, self.settings()).expect("configuration");
        let mut command = self.on(proxy_host(0));
        let ended = command.arg(&self.options.proxy.0).arg("init").arg(file).status();
        assert!(ended.expect("nsenter").success(), "lockgate init");
    }

    fn settings(&self) -> String {
        let nodes: String =
            (0..NODES).map(|node| format!("    - redis://{}\n", redis_address(node))).collect();
        let quarantine = if self.options.quarantine { "yes" } else { "no" };
        let guards = if self.options.guards { trace::GUARDS } else { "" };
        format!(
            "listen: 0.0.0.0:{PROXY_PORT}\nadmin: 127.0.0.1:9380\nallow_open: true\n\
             data: redis://{}\nlog:\n  level: info\n  format: json\nlocks:\n  max_ttl: {}ms\n  \
             default_ttl: {}ms\n  node_timeout: 100ms\n  quarantine: {quarantine}\n  nodes:\n{nodes}{guards}",
            redis_address(DATA),
            self.options.max_ttl,
            self.options.max_ttl * 2 / 3,
        )
    }

    /// Starts a proxy that is not running.
    pub(crate) fn start_proxy(&mut self, proxy: usize) {
        let settings = self.settings();
        // One for each, as the others may be reading theirs.
        let file = self.path(&format!("lockgate-{proxy}.yaml"));
        fs::write(&file, settings).expect("configuration");
        let log = self.path(&format!("proxy-{proxy}.log"));
        let log = File::options().create(true).append(true).open(log).expect("log");
        let clock = self.options.proxy_clocks[proxy].map(|_| format!("proxy-clock-{proxy}"));
        let clock = clock.map(|name| self.path(&name));
        let (binary, plant) = &self.options.proxy;
        let mut command = self.on(proxy_host(proxy));
        command
            .args(clock.iter().flat_map(|file| faketime(file)))
            .args(plant.map(|plant| format!("LOCKGATE_PLANT={plant}")))
            .arg(binary)
            .arg("--config")
            .arg(file)
            .stderr(log);
        self.proxies[proxy] = Some(command.spawn().expect("nsenter"));
    }

    /// SIGKILL.
    pub(crate) fn kill_proxy(&mut self, proxy: usize) {
        end(&mut self.proxies[proxy]);
    }

    /// SIGSTOP or SIGCONT.
    pub(crate) fn signal_proxy(&self, proxy: usize, signal: Signal) {
        self.proxies[proxy].iter().for_each(|child| send_signal(child, signal));
    }

    /// Leaves a proxy no descriptor more than it has open; or as many as there may be.
    pub(crate) fn limit_descriptors(&self, proxy: usize, limited: bool) {
        let Some(child) = &self.proxies[proxy] else { return };
        let open = fs::read_dir(format!("/proc/{}/fd", child.id())).expect("proc").count();
        // The hard limit stays what it is for all.
        let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
        let current = if limited { Some(open as u64) } else { maximum };
        let limit = Rlimit { current, maximum };
        prlimit(Some(Pid::from_child(child)), Resource::Nofile, limit).expect("prlimit");
    }

    // Clients

    /// Starts the clients, which go on until [`Deployment::stop_clients`].
    pub(crate) fn start_clients(&mut self) {
        self.control("go on");
        for client in 0..self.options.clients {
            self.start_client(client);
        }
    }

    fn control(&self, word: &str) {
        fs::write(self.path("control"), word).expect("control");
    }

    /// One more, of those that are there in the place of the `client`th.
    fn start_client(&mut self, client: usize) {
        let number = self.clients.len();
        let file = self.path(&format!("history-{number}"));
        let group = client % GROUPS;
        let plan = Plan {
            seed: self.options.seed ^ ((number as u64) << 32),
            number,
            style: self.options.style,
            proxies: (0..PROXIES).map(proxy_address).collect(),
            history: file.clone(),
            control: self.path("control"),
            keys: self.options.keys,
            max_ttl: self.options.max_ttl,
            writes: self.options.guards,
        };
        let mut command = self.on(group_host(group));
        command
            .arg(format!("{}={}", client::VARIABLE, plan.encode()))
            .arg(std::env::current_exe().expect("this program"))
            .args(["--exact", "client_process", "--ignored"]);
        let errors = self.path(&format!("client-{number}.log"));
        command.stdout(File::create(&errors).expect("log"));
        command.stderr(File::create(errors).expect("log"));
        self.clients.push((Some(command.spawn().expect("nsenter")), file));
    }

    /// SIGKILL, and another one in its place.
    pub(crate) fn kill_client(&mut self, client: usize) {
        let Some(number) = self.running_client(client) else { return };
        Writer::new(&self.clients[number].1).expect("history").add(&Event::Killed);
        end(&mut self.clients[number].0);
        self.start_client(client);
    }

    /// SIGSTOP or SIGCONT.
    pub(crate) fn signal_client(&self, client: usize, signal: Signal) {
        if let Some(number) = self.running_client(client) {
            self.clients[number].0.iter().for_each(|child| send_signal(child, signal));
        }
    }

    fn running_client(&self, client: usize) -> Option<usize> {
        let mut running =
            (0..self.clients.len()).filter(|number| self.clients[*number].0.is_some());
        running.nth(client)
    }

    /// Tells all to end, and waits until they have.
    pub(crate) fn stop_clients(&mut self) {
        self.control("");
        let deadline = Instant::now() + END_LIMIT;
        for (number, (child, _)) in self.clients.iter_mut().enumerate() {
            let Some(process) = child else { continue };
            let log = self.directory.path().join(format!("client-{number}.log"));
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

    /// How many client processes there have been.
    pub(crate) fn clients(&self) -> usize {
        self.clients.len()
    }

    /// What all clients have written down so far.
    pub(crate) fn histories(&self) -> Vec<Vec<(Time, Event)>> {
        self.clients.iter().map(|(_, file)| history::read(file)).collect()
    }

    /// What a proxy has logged.
    pub(crate) fn proxy_log(&self, proxy: usize) -> String {
        fs::read_to_string(self.path(&format!("proxy-{proxy}.log"))).unwrap_or_default()
    }
}

impl Drop for Deployment {
    fn drop(&mut self) {
        let clients = self.clients.iter_mut().map(|(child, _)| child);
        let servers = self.nodes.iter_mut().chain(&mut self.proxies).chain([&mut self.data]);
        clients.chain(servers).for_each(end);
        network::unmount_below(self.directory.path());
    }
}

/// Fails with what is missing, unless everything is there.
fn must_be_able() {
    let root = rustix::process::geteuid().is_root();
    assert!(root, "chaos needs root: it makes network namespaces, TUN devices and mounts");
    assert!(Path::new("/dev/net/tun").exists(), "chaos needs /dev/net/tun");
    libfaketime();
}

/// The library that gives a process a clock of its own.
fn libfaketime() -> PathBuf {
    let directories = fs::read_dir("/usr/lib").into_iter().flatten().flatten();
    let files = directories.map(|entry| entry.path().join("faketime/libfaketimeMT.so.1"));
    let found = files.into_iter().find(|file| file.exists());
    found.expect("chaos needs libfaketimeMT.so.1 (apt-get install faketime)")
}

/// The environment of a process whose time of day is that of a file. Time since the
/// start of the machine stays what it is: nobody can set it.
fn faketime(file: &Path) -> [String; 4] {
    [
        // The C library before jemalloc, which asks for the time while libfaketime is
        // not yet ready to tell it.
        format!("LD_PRELOAD={}:libc.so.6", libfaketime().display()),
        format!("FAKETIME_TIMESTAMP_FILE={}", file.display()),
        "FAKETIME_NO_CACHE=1".to_owned(),
        "FAKETIME_DONT_FAKE_MONOTONIC=1".to_owned(),
    ]
}

/// A file system in memory.
fn mount(directory: &Path, size: &str) {
    let mut mount = Command::new("mount");
    mount.args(["-t", "tmpfs", "-o", size, "tmpfs"]).arg(directory);
    let mounted = mount.status().expect("mount");
    assert!(mounted.success(), "a tmpfs could not be mounted: this needs root");
}

fn redis_address(host: usize) -> SocketAddr {
    SocketAddr::from((address(host), REDIS_PORT))
}

fn proxy_address(proxy: usize) -> SocketAddr {
    SocketAddr::from((address(proxy_host(proxy)), PROXY_PORT))
}

fn send_signal(child: &Child, signal: Signal) {
    // One that has ended by itself needs none.
    let _ = kill_process(Pid::from_child(child), signal);
}

fn end(child: &mut Option<Child>) {
    if let Some(mut child) = child.take() {
        let _ = child.kill();
        let _ = child.wait();
        // What libfaketime does not clean up itself when its process is killed.
        for name in ["faketime_shm_", "sem.faketime_sem_"] {
            let _ = fs::remove_file(format!("/dev/shm/{name}{}", child.id()));
        }
    }
}

fn answers(socket: &Path) -> bool {
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

fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + START_LIMIT;
    while !condition() {
        assert!(Instant::now() < deadline, "not within {START_LIMIT:?}: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}
