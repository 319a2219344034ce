//! A real deployment in one line, and a client that sees every byte.
//!
//! [`Proxy`] runs the real binary with real `redis-server` processes on free loopback ports, and stops them all when
//! it is dropped. [`Client`] speaks RESP over a plain socket. Everything has a time limit, so a test never hangs.

#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part")]
#![allow(clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

pub mod browser;
pub mod cluster;
pub mod machine;
pub mod relay;
pub mod sentinel;

use std::{
    io::{self, BufRead, BufReader, ErrorKind, Read, Write},
    net::{Shutdown, SocketAddr, TcpStream},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use lockgate::tools::{free_port::free_port, redis_server::RedisServer};
use rustix::process::{Pid, Signal, kill_process};
use socket2::{Domain, Socket, Type};

/// The longest time for what should happen at once.
pub const LIMIT: Duration = Duration::from_secs(30);

/// How often a proxy is started again because another process has taken one of its ports.
const PORT_ATTEMPTS: usize = 10;

/// How much later than the quorum a lock node may be.
const LATE_NODE: Duration = Duration::from_secs(1);

/// Returns what is seen once it is as expected, or else once no lock node can be late any more.
fn at_last<T: PartialEq>(expected: T, mut seen: impl FnMut() -> T) -> T {
    let deadline = Instant::now() + LATE_NODE;
    loop {
        let now = seen();
        if now == expected || Instant::now() > deadline {
            return now;
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until `condition` holds. It looks less often the longer it has waited: most conditions fetch a page, which
/// costs the proxy some milliseconds.
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let since = Instant::now();
    while !condition() {
        let waited = since.elapsed();
        assert!(waited < LIMIT, "not within {LIMIT:?}: {what}");
        thread::sleep((waited / 8).clamp(Duration::from_millis(5), Duration::from_millis(50)));
    }
}

/// Waits until a replica of this server gets writes at once. A replica that calls itself connected may get nothing
/// yet: its master holds everything back until the first acknowledgement. `key` is deleted in the end.
pub fn replicates(master: u16, key: &str) {
    let mut client = Client::connect(master);
    eventually("a replica has acknowledged a write", || {
        let replies = client.pipe(&[&["SET", key, "0"], &["DEL", key], &["WAIT", "1", "100"]]);
        matches!(replies[2], Reply::Int(1..))
    });
}

/// Returns how many rounds of a race to run: `count` times LOCKGATE_ROUNDS, which `make races` sets.
pub fn rounds(count: usize) -> usize {
    let times = std::env::var("LOCKGATE_ROUNDS").map(|times| times.parse().expect("a number"));
    count * times.unwrap_or(1)
}

/// Returns a line of redis-cli without the parts that differ each time: tokens, fences, validities.
pub fn shape(line: &str) -> String {
    let known = |word: &str| match word {
        _ if word.len() == 32 && word.bytes().all(|b| b.is_ascii_hexdigit()) => "TOKEN".into(),
        _ if word.len() > 3 && word.bytes().all(|b| b.is_ascii_digit()) => "NUMBER".into(),
        _ => word.to_owned(),
    };
    let words = line.trim().split(' ').map(|word| word.split('"').map(known).collect::<Vec<_>>());
    words.map(|parts| parts.join("\"")).collect::<Vec<_>>().join(" ")
}

/// Sends SIGSTOP, and waits until every thread of the process has obeyed.
pub fn freeze(child: &Child) {
    kill_process(Pid::from_child(child), Signal::STOP).expect("signal");
    let tasks = format!("/proc/{}/task", child.id());
    let stopped = |task: std::io::Result<std::fs::DirEntry>| {
        let stat = std::fs::read_to_string(task.expect("task").path().join("stat"));
        // The state stands behind the name, which may contain any character.
        stat.is_ok_and(|stat| stat.rsplit(") ").next().is_some_and(|s| s.starts_with('T')))
    };
    eventually("it is stopped", || std::fs::read_dir(&tasks).expect("tasks").all(stopped));
}

/// The setup of a [`Proxy`].
pub struct Setup {
    nodes: usize,
    data_arguments: Vec<&'static str>,
    data_port: Option<u16>,
    data_url: Option<String>,
    tls: Option<String>,
    behind_balancer: Option<String>,
    environment: Vec<(String, String)>,
    top: String,
    locks: String,
    node_urls: Option<Vec<String>>,
    init: bool,
    ready: bool,
    host: String,
    files: Option<(u64, u64)>,
    hosts: Option<PathBuf>,
    fronts: usize,
    admin_token: Option<String>,
    peers: Vec<String>,
    hostname: Option<String>,
}

impl Setup {
    /// Sets the number of lock nodes.
    pub fn nodes(mut self, nodes: usize) -> Setup {
        self.nodes = nodes;
        self
    }

    /// Adds arguments to the data node's command line.
    pub fn data_arguments(mut self, arguments: &[&'static str]) -> Setup {
        self.data_arguments = arguments.to_vec();
        self
    }

    /// Makes the server on this loopback port the data node.
    pub fn data_port(mut self, port: u16) -> Setup {
        self.data_port = Some(port);
        self.ready = false;
        self
    }

    /// Makes the Redis at this URL the data node.
    pub fn data_url(mut self, url: &str) -> Setup {
        self.data_url = Some(url.to_owned());
        self.ready = false;
        self
    }

    /// Adds a listener, whose `tls` is this mapping of YAML; see [`Proxy::tls_port`].
    pub fn tls(mut self, settings: &str) -> Setup {
        self.tls = Some(settings.to_owned());
        self
    }

    /// Adds a listener that demands a PROXY header, with these further settings in YAML, such as `, tls: …`. See
    /// [`Proxy::balancer_port`].
    pub fn behind_balancer(mut self, settings: &str) -> Setup {
        self.behind_balancer = Some(settings.to_owned());
        self
    }

    /// Sets a variable of the proxy's environment.
    pub fn environment(mut self, name: &str, value: &str) -> Setup {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Sets `admin.token`.
    pub fn admin_token(mut self, token: &str) -> Setup {
        self.admin_token = Some(token.to_owned());
        self
    }

    /// Sets `admin.peers`.
    pub fn peers(mut self, urls: &[String]) -> Setup {
        self.peers = urls.to_vec();
        self
    }

    /// Makes clients connect to this address instead of loopback.
    pub fn host(mut self, host: &str) -> Setup {
        self.host = host.to_owned();
        self
    }

    /// Limits the proxy's open files to `soft`, and to `hard` if the proxy raises the limit.
    pub fn files(mut self, soft: u64, hard: u64) -> Setup {
        self.files = Some((soft, hard));
        self
    }

    /// Makes the proxy look names up in this file, which has the format of /etc/hosts.
    pub fn with_hosts(mut self, file: &Path) -> Setup {
        self.hosts = Some(file.to_owned());
        self
    }

    /// Gives the proxy this host name.
    pub fn hostname(mut self, name: &str) -> Setup {
        self.hostname = Some(name.to_owned());
        self
    }

    /// Listens on this many addresses; see [`Proxy::fronts`].
    pub fn fronts(mut self, fronts: usize) -> Setup {
        self.fronts = fronts;
        self
    }

    /// Adds lines to the top of the configuration.
    pub fn top(mut self, lines: &str) -> Setup {
        self.top += lines;
        self.top.push('\n');
        self
    }

    /// Adds a line to the `locks:` section.
    pub fn locks(mut self, line: &str) -> Setup {
        self.locks += &format!("  {line}\n");
        self
    }

    /// Uses these lock nodes instead of its own; does not wait for readiness.
    pub fn node_urls(mut self, urls: &[String]) -> Setup {
        self.node_urls = Some(urls.to_vec());
        self.ready = false;
        self
    }

    /// Skips `lockgate init`: nodes without a marker stay as they are.
    pub fn uninitialised(mut self) -> Setup {
        self.init = false;
        self
    }

    /// Starts without waiting for readiness.
    pub fn unready(mut self) -> Setup {
        self.ready = false;
        self
    }

    /// Starts everything, and waits until it is ready.
    pub fn start(self) -> Proxy {
        let data = RedisServer::start(&self.data_arguments).expect("data node");
        let nodes: Vec<RedisServer> = match self.node_urls {
            Some(_) => Vec::new(),
            None => (0..self.nodes).map(|_| RedisServer::start(&[]).expect("lock node")).collect(),
        };
        let urls = self.node_urls.unwrap_or_else(|| nodes.iter().map(RedisServer::url).collect());
        let data_port = self.data_port.unwrap_or(data.port());
        // The nodes get much time, unless the test is about time: the machine may be busy.
        let patience = if self.locks.contains("node_") { "" } else { "  node_timeout: 2s\n" };
        let list: String = urls.iter().map(|url| format!("    - {url}\n")).collect();
        let data_url = self.data_url.unwrap_or(format!("redis://127.0.0.1:{data_port}"));
        // `make shared` runs the tests with clients that share connections to the data node.
        let may_share = !["send_proxy_protocol", "share:"].iter().any(|key| self.top.contains(key));
        let share = match std::env::var_os("LOCKGATE_TEST_SHARE") {
            Some(_) if may_share => "share: yes\n",
            _ => "",
        };
        let settings = format!(
            "data: {data_url}\n{share}{}locks:\n{}{patience}  nodes:\n{list}",
            self.top, self.locks
        );
        let mut admin = String::new();
        if let Some(token) = &self.admin_token {
            admin += &format!(", token: '{token}'");
        }
        if !self.peers.is_empty() {
            admin += &format!(", peers: ['{}']", self.peers.join("', '"));
        }
        let more = (self.tls.as_deref(), self.behind_balancer.as_deref(), &*admin);
        if self.init {
            // `init` does not listen there, but a cluster needs this many addresses.
            let listen = format!("listen: 127.0.0.1:1-{}\n", self.fronts);
            init(&(listen + &settings), &self.environment);
        }
        let Listening { child, ports, tls_port, balancer_port, admin_port, dir } = (0
            ..PORT_ATTEMPTS)
            .find_map(|_| {
                listening(
                    (&self.host, self.fronts),
                    more,
                    &settings,
                    &self.environment,
                    (self.files, self.hosts.as_deref(), self.hostname.as_deref()),
                )
            })
            .expect("a port that nobody else takes");
        let (locks, node_urls) = (self.locks, urls);
        let proxy = Proxy {
            child,
            ports,
            tls_port,
            balancer_port,
            admin_port,
            data_port,
            data,
            nodes,
            node_urls,
            locks,
            dir,
        };
        if self.ready {
            eventually("the proxy is ready", || proxy.http("/readyz").starts_with("HTTP/1.1 200"));
            eventually("every node is up", || proxy.nodes_up() == proxy.node_urls.len());
        }
        proxy
    }
}

/// Runs `lockgate init` and returns its output. Nodes that are set up already, or are not fit, stay as they are.
pub fn init(settings: &str, environment: &[(String, String)]) -> String {
    let dir = tempfile::tempdir().expect("directory");
    let file = dir.path().join("lockgate.yaml");
    std::fs::write(&file, settings).expect("configuration");
    let output = Command::new(env!("CARGO_BIN_EXE_lockgate"))
        .args(["init", "--if-new"])
        .arg(&file)
        .envs(environment.iter().map(|(name, value)| (name, value)))
        .output()
        .expect("lockgate init");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    text(&output.stdout) + &text(&output.stderr)
}

/// A process that accepts connections.
struct Listening {
    child: Child,
    ports: Vec<u16>,
    tls_port: u16,
    balancer_port: u16,
    admin_port: u16,
    dir: tempfile::TempDir,
}

/// Starts the binary and waits until it listens. Returns `None` if another process has taken one of its ports.
fn listening(
    (host, fronts): (&str, usize),
    (tls, behind_balancer, admin): (Option<&str>, Option<&str>, &str),
    settings: &str,
    environment: &[(String, String)],
    (files, hosts, hostname): (Option<(u64, u64)>, Option<&Path>, Option<&str>),
) -> Option<Listening> {
    let [tls_port, balancer_port, admin_port] = [(); 3].map(|()| free_port().expect("port"));
    let ports: Vec<u16> = (0..fronts).map(|_| free_port().expect("port")).collect();
    let mut listen = "listen:\n".to_owned();
    for port in &ports {
        listen += &format!("  - {host}:{port}\n");
    }
    if let Some(tls) = tls {
        listen += &format!("  - address: {host}:{tls_port}\n    tls: {tls}\n");
    }
    if let Some(settings) = behind_balancer {
        listen +=
            &format!("  - {{address: '{host}:{balancer_port}', proxy_protocol: yes{settings}}}\n");
    }
    let admin = match admin {
        "" => format!("127.0.0.1:{admin_port}"),
        more => format!("{{listen: '127.0.0.1:{admin_port}'{more}}}"),
    };
    let config = format!("{listen}admin: {admin}\n{settings}");
    let dir = tempfile::tempdir().expect("directory");
    let (file, log_file) = (dir.path().join("lockgate.yaml"), dir.path().join("log"));
    std::fs::write(&file, &config).expect("configuration");
    if hosts.is_some() {
        machine::has_own_mounts();
    }
    if hostname.is_some() {
        machine::has_own_host_names();
    }
    let mut child = Command::new("setpriv")
        .args(["--pdeathsig", "KILL"])
        // Each program replaces itself by the one that it starts.
        .args(
            files
                .iter()
                .flat_map(|(soft, hard)| ["prlimit".to_owned(), format!("--nofile={soft}:{hard}")]),
        )
        .args(hosts.iter().flat_map(|hosts| {
            let mount = format!("mount --bind '{}' /etc/hosts && exec \"$@\"", hosts.display());
            ["unshare", "--mount", "sh", "-c", &mount, "sh"].map(str::to_owned)
        }))
        .args(hostname.iter().flat_map(|name| {
            let set = format!("hostname '{name}' && exec \"$@\"");
            ["unshare", "--uts", "sh", "-c", &set, "sh"].map(str::to_owned)
        }))
        .args([env!("CARGO_BIN_EXE_lockgate"), "--config"])
        .arg(&file)
        .env("LOCKGATE_LOG", "debug")
        .envs(environment.iter().map(|(name, value)| (name, value)))
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(std::fs::File::create(&log_file).expect("log"))
        .spawn()
        .expect("lockgate");
    let mut taken = false;
    eventually("the proxy listens", || {
        let ended = child.try_wait().expect("status");
        let log = std::fs::read_to_string(&log_file).expect("log");
        taken = ended.is_some() && log.contains("Address already in use");
        assert!(taken || ended.is_none(), "the proxy ended: {ended:?}\n{log}\n{config}");
        // The log is the proxy's own, whereas another process could answer at the port.
        let listeners = fronts + [tls, behind_balancer].iter().flatten().count();
        taken || log.matches("\"listening\"").count() == listeners
    });
    (!taken).then_some(Listening { child, ports, tls_port, balancer_port, admin_port, dir })
}

/// Returns a proxy's log so far. A thread of the proxy writes it, so a line may come after a client was told of the
/// same. Reads until nothing has come for a while.
pub fn log_in(file: &Path) -> String {
    let read = || std::fs::read_to_string(file).unwrap_or_default();
    let mut log = read();
    loop {
        thread::sleep(Duration::from_millis(100));
        let now = read();
        if now.len() == log.len() {
            return now;
        }
        log = now;
    }
}

/// The real binary, its data node and its lock nodes.
pub struct Proxy {
    child: Child,
    ports: Vec<u16>,
    tls_port: u16,
    balancer_port: u16,
    admin_port: u16,
    data_port: u16,
    data: RedisServer,
    nodes: Vec<RedisServer>,
    node_urls: Vec<String>,
    locks: String,
    dir: tempfile::TempDir,
}

impl Proxy {
    /// Starts a proxy with one data node and one lock node.
    pub fn start() -> Proxy {
        Proxy::with().start()
    }

    /// Returns the setup of [`Proxy::start`], to be changed.
    pub fn with() -> Setup {
        Setup {
            nodes: 1,
            data_arguments: Vec::new(),
            data_port: None,
            data_url: None,
            tls: None,
            behind_balancer: None,
            environment: Vec::new(),
            top: String::new(),
            locks: String::new(),
            node_urls: None,
            init: true,
            ready: true,
            host: "127.0.0.1".into(),
            files: None,
            hosts: None,
            fronts: 1,
            admin_token: None,
            peers: Vec::new(),
            hostname: None,
        }
    }

    /// Sets up another proxy with the nodes and the data node of `other`, and with the same limits of locks. Nodes
    /// are stopped and examined through `other`.
    pub fn beside(other: &Proxy) -> Setup {
        Setup {
            data_port: Some(other.data_port),
            locks: other.locks.clone(),
            node_urls: Some(other.node_urls.clone()),
            init: false,
            ..Proxy::with()
        }
    }

    /// The port for clients.
    pub fn port(&self) -> u16 {
        self.ports[0]
    }

    /// The ports for clients, in the order of `listen`; more than one only with [`Setup::fronts`].
    pub fn fronts(&self) -> &[u16] {
        &self.ports
    }

    /// The port for clients that speak TLS; only with [`Setup::tls`].
    pub fn tls_port(&self) -> u16 {
        self.tls_port
    }

    /// The port for a balancer; only with [`Setup::behind_balancer`].
    pub fn balancer_port(&self) -> u16 {
        self.balancer_port
    }

    /// The port of the admin address.
    pub fn admin_port(&self) -> u16 {
        self.admin_port
    }

    /// The proxy's configuration file.
    pub fn config_file(&self) -> PathBuf {
        self.dir.path().join("lockgate.yaml")
    }

    /// The proxy's process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Connects a client to the proxy.
    pub fn client(&self) -> Client {
        Client::connect(self.port())
    }

    /// The data node.
    pub fn data(&mut self) -> &mut RedisServer {
        &mut self.data
    }

    /// Connects a client to the data node, past the proxy.
    pub fn data_client(&self) -> Client {
        Client::connect(self.data_port)
    }

    /// The data node's port, past the proxy.
    pub fn data_client_port(&self) -> u16 {
        self.data_port
    }

    /// The lock node with this index, from 0.
    pub fn node(&mut self, index: usize) -> &mut RedisServer {
        &mut self.nodes[index]
    }

    /// The URLs of the lock nodes.
    pub fn urls(&self) -> Vec<String> {
        self.node_urls.clone()
    }

    /// Connects a client to a lock node, past the proxy.
    pub fn node_client(&self, index: usize) -> Client {
        Client::connect(self.nodes[index].port())
    }

    /// Returns the number of lock nodes that have this key.
    pub fn nodes_with(&self, key: &str) -> usize {
        let exists =
            |index: &usize| self.node_client(*index).cmd(&["EXISTS", key]) == Reply::Int(1);
        (0..self.nodes.len()).filter(exists).count()
    }

    /// Returns the values of this key on the lock nodes.
    pub fn on_nodes(&self, key: &str) -> Vec<Reply> {
        (0..self.nodes.len()).map(|index| self.node_client(index).cmd(&["GET", key])).collect()
    }

    /// Checks that this many lock nodes have this key, within a moment: the client is told once a quorum has
    /// answered, and the other nodes may be later.
    pub fn assert_on_nodes(&self, key: &str, nodes: usize) {
        assert_eq!(
            at_last(nodes, || self.nodes_with(key)),
            nodes,
            "the lock nodes that have {key}"
        );
    }

    /// Like [`Proxy::assert_on_nodes`], for this value on every lock node.
    pub fn assert_value_on_nodes(&self, key: &str, value: &str) {
        let everywhere = vec![Reply::bulk(value); self.nodes.len()];
        assert_eq!(at_last(everywhere.clone(), || self.on_nodes(key)), everywhere, "{key}");
    }

    /// Returns the number of lock nodes that are up for the proxy.
    pub fn nodes_up(&self) -> usize {
        let metrics = self.http("/metrics");
        metrics.lines().filter(|l| l.starts_with("lockgate_node_up") && l.ends_with(" 1")).count()
    }

    /// Returns a page of the admin port, with its head.
    pub fn http(&self, path: &str) -> String {
        let Ok(mut stream) = TcpStream::connect(("127.0.0.1", self.admin_port)) else {
            return String::new();
        };
        stream.set_read_timeout(Some(LIMIT)).expect("limit");
        let port = self.admin_port;
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).expect("request");
        let mut page = String::new();
        stream.read_to_string(&mut page).expect("page");
        page
    }

    /// Sends these bytes to the admin address, and reads until it closes.
    pub fn http_bytes(&self, bytes: &[u8]) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", self.admin_port)).expect("admin address");
        stream.set_read_timeout(Some(LIMIT)).expect("limit");
        // The proxy may have refused the request before its end.
        let _ = stream.write_all(bytes);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8(answer).expect("text")
    }

    /// Posts a body with these headers, each with its line end. Returns the answer with its head.
    pub fn http_post(&self, path: &str, headers: &str, body: &str) -> String {
        let (port, length) = (self.admin_port, body.len());
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\
             Content-Length: {length}\r\n{headers}\r\n"
        );
        self.http_bytes((head + body).as_bytes())
    }

    /// Returns the sum of all samples of a metric whose line contains `labels`.
    pub fn metric(&self, name: &str, labels: &str) -> f64 {
        let page = self.http("/metrics");
        assert!(!page.contains(" -0\n"), "the sum of no fractions: {page}");
        let samples = page.lines().filter(|line| {
            line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']))
                && line.contains(labels)
        });
        samples.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    }

    /// Returns the values of this key on the lock nodes of `owner`, which are also this proxy's.
    pub fn on_nodes_of(&self, owner: &Proxy, key: &str) -> Vec<Reply> {
        assert_eq!(self.node_urls, owner.node_urls);
        owner.on_nodes(key)
    }

    /// Returns a client whose LOCK stands in line.
    pub fn in_line(&self, words: &[&str]) -> Client {
        let before = self.waiters();
        let mut client = self.client();
        client.send(&encode(words));
        eventually("it stands in line", || self.waiters() == before + 1);
        client
    }

    /// Returns the number of clients that wait in line.
    pub fn waiters(&self) -> usize {
        // Many tests ask again and again, and this costs the proxy less than its metrics.
        let page = self.http("/api/status");
        let status = page.split_once("\r\n\r\n").expect("a page with a body").1;
        let status: serde_json::Value = serde_json::from_str(status).expect("JSON");
        status["locks"]["waiters"].as_u64().expect("a number") as usize
    }

    /// Returns a field of /proc/PID/status in bytes, such as VmRSS or VmHWM.
    pub fn memory(&self, field: &str) -> usize {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).expect("proc");
        let line = status.lines().find(|line| line.starts_with(field)).expect("field");
        let kib = line.split_whitespace().nth(1).and_then(|n| n.parse::<usize>().ok());
        kib.expect("number") * 1024
    }

    /// Returns the CPU time that the process has used, in ticks, of which there are a hundred in a second.
    pub fn ticks(&self) -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid())).expect("proc");
        stat.split(' ').skip(13).take(2).map(|ticks| ticks.parse::<u64>().expect("number")).sum()
    }

    /// Whether the process still runs.
    pub fn is_alive(&mut self) -> bool {
        self.child.try_wait().expect("status").is_none()
    }

    /// Sends SIGTERM.
    pub fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// Sends SIGSTOP: the proxy keeps its connections and answers nothing.
    pub fn freeze(&self) {
        freeze(&self.child);
    }

    /// Sends SIGHUP: the proxy reads its configuration again.
    pub fn reload(&self) {
        self.signal(Signal::HUP);
    }

    /// Sends SIGCONT.
    pub fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    /// Sends SIGKILL.
    pub fn kill(&mut self) {
        self.signal(Signal::KILL);
        self.wait();
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("signal");
    }

    /// Waits for the end of the process.
    pub fn wait(&mut self) -> ExitStatus {
        let mut status = None;
        eventually("the proxy ends", || {
            status = self.child.try_wait().expect("status");
            status.is_some()
        });
        status.expect("status")
    }

    /// Starts the proxy again after its end, on the same ports and with the same configuration.
    pub fn start_again(&mut self) {
        let log = std::fs::File::options().append(true).open(self.dir.path().join("log"));
        let log = log.expect("log");
        let listening = self.log().matches("\"listening\"").count();
        self.child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", env!("CARGO_BIN_EXE_lockgate"), "--config"])
            .arg(self.config_file())
            .env("LOCKGATE_LOG", "debug")
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("lockgate");
        eventually("it listens again", || self.log().matches("\"listening\"").count() > listening);
    }

    /// The proxy's log so far.
    pub fn log(&self) -> String {
        log_in(&self.dir.path().join("log"))
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if thread::panicking() {
            eprintln!("the proxy's log:\n{}", self.log());
        }
    }
}

/// One reply, RESP2 or RESP3.
#[derive(Debug, Clone, PartialEq)]
pub enum Reply {
    /// `+`
    Simple(String),
    /// `-`
    Error(String),
    /// `:`
    Int(i64),
    /// `$`
    Bulk(Vec<u8>),
    /// `$-1`
    NullBulk,
    /// `*-1`
    NullArray,
    /// `_`
    Null,
    /// `*`
    Array(Vec<Reply>),
    /// `~`
    Set(Vec<Reply>),
    /// `%`, keys and values in turn
    Map(Vec<Reply>),
    /// `>`
    Push(Vec<Reply>),
    /// Any other line, with its type
    Other(String),
}

impl Reply {
    /// Makes a bulk string of a text.
    pub fn bulk(text: &str) -> Reply {
        Reply::Bulk(text.as_bytes().to_vec())
    }

    /// Makes a status.
    pub fn simple(text: &str) -> Reply {
        Reply::Simple(text.to_owned())
    }

    /// `+OK`
    pub fn ok() -> Reply {
        Reply::simple("OK")
    }

    /// Returns the text of an error; panics if the reply is none.
    #[track_caller]
    pub fn error(&self) -> &str {
        match self {
            Reply::Error(text) => text,
            other => panic!("not an error: {other:?}"),
        }
    }

    /// Returns the text of an error, or an empty one.
    pub fn error_text(&self) -> &str {
        match self {
            Reply::Error(text) => text,
            _ => "",
        }
    }

    /// Returns the grant in the reply to LOCK; panics if the lock was not granted.
    #[track_caller]
    pub fn grant(&self) -> Granted {
        match self {
            Reply::Array(all) => match all.as_slice() {
                [Reply::Bulk(token), Reply::Int(fence), Reply::Int(validity)] => Granted {
                    token: String::from_utf8_lossy(token).into_owned(),
                    fence: *fence,
                    validity: *validity,
                },
                other => panic!("not a grant: {other:?}"),
            },
            other => panic!("not a grant: {other:?}"),
        }
    }
}

/// The reply to a granted LOCK.
#[derive(Debug, Clone, PartialEq)]
pub struct Granted {
    pub token: String,
    pub fence: i64,
    /// The validity in ms.
    pub validity: i64,
}

/// Encodes a command as an array of bulk strings.
pub fn encode(words: &[&str]) -> Vec<u8> {
    let mut out = format!("*{}\r\n", words.len());
    for word in words {
        out += &format!("${}\r\n{word}\r\n", word.len());
    }
    out.into_bytes()
}

/// Encodes several commands, one behind the other.
pub fn pipeline(commands: &[&[&str]]) -> Vec<u8> {
    commands.iter().flat_map(|words| encode(words)).collect()
}

/// A client that sees every byte, by default over TCP.
pub struct Client<S = TcpStream> {
    reader: BufReader<S>,
}

impl Client {
    /// Connects to a loopback port.
    pub fn connect(port: u16) -> Client {
        Client::over_tcp(TcpStream::connect(("127.0.0.1", port)).expect("connection"))
    }

    /// Connects to a loopback port from this address, such as 127.0.0.2.
    pub fn connect_from(source: [u8; 4], port: u16) -> Client {
        Client::connect_with(port, |socket| socket.bind(&SocketAddr::from((source, 0)).into()))
    }

    /// Connects to a loopback port. The client's system takes about so many bytes before the client reads.
    pub fn connect_narrow(port: u16, room: usize) -> Client {
        Client::connect_with(port, |socket| socket.set_recv_buffer_size(room))
    }

    fn connect_with(port: u16, set: impl FnOnce(&Socket) -> io::Result<()>) -> Client {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("socket");
        set(&socket).expect("options");
        socket.connect(&SocketAddr::from(([127, 0, 0, 1], port)).into()).expect("connection");
        Client::over_tcp(socket.into())
    }

    fn over_tcp(stream: TcpStream) -> Client {
        stream.set_nodelay(true).expect("nodelay");
        stream.set_read_timeout(Some(LIMIT)).expect("limit");
        stream.set_write_timeout(Some(LIMIT)).expect("limit");
        Client { reader: BufReader::new(stream) }
    }

    /// The socket.
    pub fn socket(&self) -> &TcpStream {
        self.reader.get_ref()
    }
}

impl<S: Read + Write> Client<S> {
    /// Makes a client over a stream that has time limits of its own.
    pub fn over(stream: S) -> Client<S> {
        Client { reader: BufReader::new(stream) }
    }

    /// The buffered reader of replies.
    pub fn reader(&mut self) -> &mut BufReader<S> {
        &mut self.reader
    }

    /// Writes bytes.
    pub fn send(&mut self, bytes: &[u8]) {
        self.reader.get_mut().write_all(bytes).expect("write");
    }

    /// Sends a command, and reads one reply.
    pub fn cmd(&mut self, words: &[&str]) -> Reply {
        self.send(&encode(words));
        self.reply()
    }

    /// Sends several commands at once, and reads a reply for each.
    pub fn pipe(&mut self, commands: &[&[&str]]) -> Vec<Reply> {
        self.send(&pipeline(commands));
        commands.iter().map(|_| self.reply()).collect()
    }

    /// Reads one reply.
    pub fn reply(&mut self) -> Reply {
        let mut line = Vec::new();
        self.reader.read_until(b'\n', &mut line).expect("reply");
        let text = String::from_utf8_lossy(&line).into_owned();
        let text =
            text.strip_suffix("\r\n").unwrap_or_else(|| panic!("connection ended: {text:?}"));
        let (kind, rest) = text.split_at(1);
        let count = || rest.parse::<usize>().unwrap_or_else(|_| panic!("length: {text:?}"));
        match kind {
            "+" => Reply::simple(rest),
            "-" => Reply::Error(rest.to_owned()),
            ":" => Reply::Int(rest.parse().expect("integer")),
            "$" if rest == "-1" => Reply::NullBulk,
            "*" if rest == "-1" => Reply::NullArray,
            "_" => Reply::Null,
            "$" | "=" => {
                let mut value = vec![0; count() + 2];
                self.reader.read_exact(&mut value).expect("value");
                value.truncate(count());
                Reply::Bulk(value)
            }
            "*" => Reply::Array(self.replies(count())),
            "~" => Reply::Set(self.replies(count())),
            ">" => Reply::Push(self.replies(count())),
            "%" => Reply::Map(self.replies(2 * count())),
            _ => Reply::Other(text.to_owned()),
        }
    }

    fn replies(&mut self, count: usize) -> Vec<Reply> {
        (0..count).map(|_| self.reply()).collect()
    }
}

impl Client {
    /// Sends FIN.
    pub fn hang_up(&mut self) {
        self.socket().shutdown(Shutdown::Write).expect("FIN");
    }

    /// Sends RST.
    pub fn reset(self) {
        let socket = socket2::SockRef::from(self.socket());
        socket.set_linger(Some(Duration::ZERO)).expect("linger");
    }

    /// Reads until the other side closes. Returns the bytes, and false if it closed with a reset.
    pub fn rest(&mut self) -> (Vec<u8>, bool) {
        let mut all = Vec::new();
        match self.reader.read_to_end(&mut all) {
            Ok(_) => (all, true),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => (all, false),
            Err(error) => panic!("neither closed nor reset: {error} after {all:?}"),
        }
    }

    /// Waits for further bytes. Returns whether the other side has closed instead.
    pub fn is_at_end(&mut self) -> bool {
        match self.reader.fill_buf() {
            Ok(bytes) => bytes.is_empty(),
            // Silence is no end.
            Err(error) => !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut),
        }
    }

    /// Whether the next line is `+PONG`. False also if the connection ends.
    pub fn rest_is_pong(&mut self) -> bool {
        let mut line = String::new();
        self.reader.read_line(&mut line).is_ok() && line == "+PONG\r\n"
    }

    /// Checks that nothing comes within `time`.
    pub fn expect_silence(&mut self, time: Duration) {
        assert!(self.reader.buffer().is_empty(), "unread: {:?}", self.reader.buffer());
        self.socket().set_read_timeout(Some(time)).expect("limit");
        let mut byte = [0; 1];
        let read = self.reader.get_mut().read(&mut byte);
        self.socket().set_read_timeout(Some(LIMIT)).expect("limit");
        match read {
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            other => panic!("not silent: {other:?} {byte:?}"),
        }
    }
}
