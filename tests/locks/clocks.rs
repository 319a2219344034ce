//! Clocks that jump, and proxies whose clocks stand still: no two clients hold one lock.
//!
//! `clocks.c` is preloaded into lock nodes and proxies, and moves each of their clocks while they run.

use std::{
    fs::File,
    net::TcpStream,
    os::unix::fs::FileExt,
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::LazyLock,
    thread,
    time::{Duration, Instant},
};

use crate::support::{Client, Proxy, Reply, Setup, encode, eventually};
use lockgate::{
    config::LocksConfig,
    lock::Engine,
    tools::{free_port::free_port, redis_server::RedisServer},
};

/// The positions of clocks in the file that moves them.
const REALTIME: u64 = 0;
const MONOTONIC: u64 = 1;
const BOOTTIME: u64 = 2;

const HOUR: Duration = Duration::from_secs(3600);

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Returns the path of the library, compiled once.
fn library() -> PathBuf {
    static BUILT: LazyLock<PathBuf> = LazyLock::new(|| {
        let library = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("clocks.so");
        // Several processes may compile it at once.
        let own = library.with_extension(std::process::id().to_string());
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/locks/clocks.c");
        let compiling = ["-shared", "-fPIC", "-O1", "-o"];
        let compiled = Command::new("cc").args(compiling).arg(&own).arg(source).status();
        assert!(compiled.expect("a C compiler").success());
        std::fs::rename(&own, &library).expect("library");
        library
    });
    BUILT.clone()
}

/// The clocks of one process.
struct Clocks(tempfile::NamedTempFile);

impl Clocks {
    fn new() -> Clocks {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(24).unwrap();
        Clocks(file)
    }

    fn environment(&self) -> [(String, String); 2] {
        let text = |path: &std::path::Path| path.to_str().unwrap().to_owned();
        [("LD_PRELOAD".into(), text(&library())), ("CLOCKS".into(), text(self.0.path()))]
    }

    /// Sets how far a clock is ahead of the true one.
    fn set(&self, clock: u64, ahead: i64) {
        let file: &File = self.0.as_file();
        file.write_all_at(&ahead.to_ne_bytes(), 8 * clock).unwrap();
    }

    fn forward(&self, clock: u64, by: Duration) {
        self.set(clock, by.as_nanos() as i64);
    }

    fn back(&self, clock: u64, by: Duration) {
        self.set(clock, -(by.as_nanos() as i64));
    }
}

/// A lock node whose clock can be set.
struct Node {
    child: Child,
    port: u16,
    clocks: Clocks,
}

impl Node {
    fn start() -> Node {
        let (clocks, port) = (Clocks::new(), free_port().unwrap());
        Node { child: Node::spawn(port, &clocks), port, clocks }
    }

    /// Restarts the node without its memory; its clock stays moved.
    fn restart(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.child = Node::spawn(self.port, &self.clocks);
    }

    fn spawn(port: u16, clocks: &Clocks) -> Child {
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "redis-server", "--port", &port.to_string()])
            .args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
            .envs(clocks.environment())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        eventually("it listens", || TcpStream::connect(("127.0.0.1", port)).is_ok());
        child
    }

    fn client(&self) -> Client {
        Client::connect(self.port)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn three() -> Vec<Node> {
    (0..3).map(|_| Node::start()).collect()
}

fn before(nodes: &[Node]) -> Setup {
    with_max_ttl(nodes, "4s")
}

fn with_max_ttl(nodes: &[Node], max_ttl: &str) -> Setup {
    let urls: Vec<String> =
        nodes.iter().map(|node| format!("redis://127.0.0.1:{}", node.port)).collect();
    let timed = if max_ttl == "1s" { ["500ms", "100ms"] } else { ["2s", "400ms"] };
    Proxy::with()
        .node_urls(&urls)
        .locks(&format!("max_ttl: {max_ttl}"))
        .locks(&format!("default_ttl: {}", timed[0]))
        .locks(&format!("node_timeout: {}", timed[1]))
}

fn all_up(proxy: &Proxy) {
    eventually("all nodes are up", || proxy.nodes_up() == 3);
}

fn fault_at(node: &Node, name: &str) -> String {
    format!("127.0.0.1:{}\",fault=\"{name}\"", node.port)
}

/// Asks until the lock is granted. Returns the time, and all errors before.
fn granted_at(client: &mut Client) -> (Instant, String) {
    let mut said = String::new();
    loop {
        match client.cmd(&["LOCK", "k", "b", "PX", "1000"]) {
            Reply::Array(_) => return (Instant::now(), said),
            other => said += other.error_text(),
        }
        thread::sleep(ms(20));
    }
}

/// Takes a lease on a quorum, then moves `count` clocks forward by an hour. No other client gets the lock before the
/// lease has run out.
fn jumping_clocks_grant_nothing_twice(count: usize) {
    let nodes = three();
    let proxy = before(&nodes).top("log: {locks: all}").start();
    let other = before(&nodes).start();
    all_up(&proxy);
    all_up(&other);
    let held = proxy.client().cmd(&["LOCK", "k", "a", "PX", "4000"]).grant();
    let until = Instant::now() + ms(held.validity.unsigned_abs());
    if count == 1 {
        // The lock is deleted there, as if the third node had been away when it was taken.
        eventually("all have it", || nodes[2].client().cmd(&["DEL", "lock:k"]) == Reply::Int(1));
    }
    nodes[..count].iter().for_each(|node| node.clocks.forward(REALTIME, HOUR));
    let (at, said) = granted_at(&mut other.client());
    assert!(at > until, "{:?} too soon", until - at);
    if count > 1 {
        assert!(said.contains("(clock jumped)"), "{said}");
        let end = format!("\"audit\":\"lost\",\"fence\":{},", held.fence);
        assert_eq!(proxy.log().matches(&end).count(), 1, "{}", proxy.log());
    }
    all_up(&proxy);
    all_up(&other);
    for node in &nodes[..count] {
        let labels = format!("127.0.0.1:{}\",direction=\"forward\"", node.port);
        assert_eq!(other.metric("lockgate_clock_jumps_total", &labels), 1.0);
    }
    assert_eq!(other.metric("lockgate_clock_jumps_total", "forward"), count as f64);
}

#[test]
fn one_clock_that_jumps_grants_nothing_twice() {
    jumping_clocks_grant_nothing_twice(1);
}

#[test]
fn a_quorum_of_clocks_that_jump_grants_nothing_twice() {
    jumping_clocks_grant_nothing_twice(2);
}

#[test]
fn all_clocks_that_jump_grant_nothing_twice() {
    jumping_clocks_grant_nothing_twice(3);
}

/// A lease of one proxy outlasts the `max_ttl` of another proxy, which sees all clocks jump.
fn clocks_that_jump_end_no_longer_lease(
    shorter: impl FnOnce(&[Node], Proxy) -> (Option<Proxy>, Proxy),
) {
    let nodes = three();
    let proxy = with_max_ttl(&nodes, "8s").start();
    all_up(&proxy);
    let held = proxy.client().cmd(&["LOCK", "k", "a", "PX", "8000"]).grant();
    let until = Instant::now() + ms(held.validity.unsigned_abs());
    let (_longer, shorter) = shorter(&nodes, proxy);
    all_up(&shorter);
    // Only a proxy that knows the clocks can see that they jump.
    eventually("they are measured", || {
        nodes.iter().all(|node| {
            let labels = format!(":{}\"", node.port);
            shorter.metric("lockgate_node_clock_offset_seconds", &labels) != 0.0
        })
    });
    nodes.iter().for_each(|node| node.clocks.forward(REALTIME, HOUR));
    let (at, said) = granted_at(&mut shorter.client());
    assert!(at > until, "{:?} too soon: {said}", until - at);
    assert!(said.contains("(clock jumped)"), "{said}");
}

#[test]
fn a_proxy_with_shorter_ttls_waits_for_the_leases_of_another_whose_clocks_have_jumped() {
    clocks_that_jump_end_no_longer_lease(|nodes, longer| {
        (Some(longer), with_max_ttl(nodes, "1s").start())
    });
}

#[test]
fn a_proxy_whose_max_ttl_was_lowered_waits_for_the_leases_of_before() {
    clocks_that_jump_end_no_longer_lease(|nodes, longer| {
        drop(longer);
        (None, with_max_ttl(nodes, "1s").start())
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn clocks_that_jump_make_no_lock_look_free() {
    let nodes = three();
    // This proxy makes the nodes a deployment, and takes no further part.
    all_up(&before(&nodes).start());
    let urls = nodes.iter().map(|node| format!("redis://127.0.0.1:{}", node.port).parse());
    let engine = Engine::start(&LocksConfig {
        nodes: urls.collect::<Result<_, _>>().unwrap(),
        max_ttl: ms(4000),
        ..LocksConfig::default()
    });
    eventually("all nodes are up", || engine.status().iter().all(|node| node.up));
    let grant = engine.acquire(b"lock:k", b"a", ms(4000), None).await.unwrap();
    let until = Instant::now() + grant.validity;
    nodes[..2].iter().for_each(|node| node.clocks.forward(REALTIME, HOUR));
    let mut said = String::new();
    loop {
        match engine.look(b"lock:k").await {
            Ok(None) => break,
            Ok(Some(held)) => assert_eq!(&*held.token, b"a"),
            Err(error) => said += &error.to_string(),
        }
        tokio::time::sleep(ms(20)).await;
    }
    assert!(Instant::now() > until, "{:?} too soon", until - Instant::now());
    assert!(said.contains("(clock jumped)"), "{said}");
}

#[test]
fn a_node_whose_clock_has_jumped_is_named_and_the_others_go_on() {
    let nodes = three();
    let proxy = before(&nodes).start();
    all_up(&proxy);
    let mut holder = proxy.client();
    holder.cmd(&["LOCK", "kept"]).grant();
    nodes[1].clocks.forward(REALTIME, ms(500));
    eventually("it is named", || {
        proxy.metric("lockgate_node_fault", &fault_at(&nodes[1], "clock")) == 1.0
    });
    let offset = |node: &Node| {
        proxy.metric("lockgate_node_clock_offset_seconds", &format!(":{}\"", node.port))
    };
    // The offset is only there to be looked at, so a busy machine may blur it.
    eventually("it is measured", || (0.4..0.6).contains(&offset(&nodes[1])));
    eventually("the others too", || offset(&nodes[0]).abs() < 0.1);
    assert!(proxy.http("/readyz").contains("its clock has jumped"), "{}", proxy.http("/readyz"));
    let told = format!("{:?}", proxy.client().cmd(&["LOCKGATE", "NODES"]));
    assert!(told.contains(&format!("{:?}", Reply::bulk("clock"))), "{told}");
    let mut client = proxy.client();
    client.cmd(&["LOCK", "k", "t", "PX", "1000"]).grant();
    assert_eq!(client.cmd(&["UNLOCK", "k", "t"]), Reply::Int(1));
    all_up(&proxy);
    assert_eq!(proxy.metric("lockgate_node_fault", &fault_at(&nodes[1], "clock")), 0.0);
    assert_eq!(holder.cmd(&["GET", "x"]), Reply::NullBulk, "nothing was lost");
}

#[test]
fn a_clock_that_is_stepped_back_is_named_and_votes_on() {
    let nodes = three();
    let proxy = before(&nodes).start();
    all_up(&proxy);
    nodes.iter().for_each(|node| node.clocks.back(REALTIME, HOUR));
    eventually("it is counted", || {
        proxy.metric("lockgate_clock_jumps_total", "direction=\"back\"") == 3.0
    });
    assert!(proxy.log().contains("stepped back"));
    proxy.client().cmd(&["LOCK", "k", "PX", "1000"]).grant();
    assert_eq!(proxy.nodes_up(), 3);
}

/// A proxy that has never had the nodes' votes sees the jump by what it asks them while they wait.
#[test]
fn a_clock_that_jumps_while_its_node_waits_is_seen() {
    let mut nodes = three();
    let first = before(&nodes).start();
    all_up(&first);
    // Too few nodes are left to note that these wait, so no proxy is connected to them yet.
    nodes[1].restart();
    nodes[2].restart();
    let proxy = before(&nodes).start();
    eventually("they wait", || {
        (1..3).all(|seat| {
            proxy.metric("lockgate_node_fault", &fault_at(&nodes[seat], "quarantined")) == 1.0
        })
    });
    nodes[1].clocks.forward(REALTIME, HOUR);
    let labels = format!("127.0.0.1:{}\",direction=\"forward\"", nodes[1].port);
    eventually("it is counted", || proxy.metric("lockgate_clock_jumps_total", &labels) == 1.0);
    all_up(&proxy);
    assert_eq!(proxy.metric("lockgate_clock_jumps_total", "forward"), 1.0);
}

/// Stops a proxy whose client has a session lock, until another client has the lock and has written. Meanwhile the
/// clocks `stopped` of the proxy stand still. Returns both proxies, and the first client, which has sent a write
/// meanwhile.
fn late_write(nodes: &[Node], stopped: &[u64]) -> (Proxy, Proxy, Client) {
    let clocks = Clocks::new();
    let mut setup = before(nodes);
    for (name, value) in clocks.environment() {
        setup = setup.environment(&name, &value);
    }
    let proxy = setup.start();
    let other = Proxy::beside(&proxy).start();
    all_up(&proxy);
    all_up(&other);
    let mut late = proxy.client();
    late.cmd(&["LOCK", "k"]).grant();
    proxy.freeze();
    let since = Instant::now();
    let mut next = other.client();
    eventually("another has it", || matches!(next.cmd(&["LOCK", "k"]), Reply::Array(_)));
    assert_eq!(next.cmd(&["SET", "x", "next"]), Reply::ok());
    late.send(&encode(&["SET", "x", "late"]));
    for clock in stopped {
        clocks.back(*clock, since.elapsed());
    }
    proxy.thaw();
    // The file is deleted with `clocks`, but the process still has it open.
    (proxy, other, late)
}

#[test]
fn a_proxy_that_was_suspended_counts_that_time() {
    let nodes = three();
    let (_proxy, other, mut late) = late_write(&nodes, &[MONOTONIC]);
    let reply = late.reply();
    assert!(reply.error_text().starts_with("LOCKLOST"), "{reply:?}");
    assert_eq!(other.client().cmd(&["GET", "x"]), Reply::bulk("next"));
}

/// A limit: such a proxy cannot know of the pause before it has asked the nodes for their time.
#[test]
fn a_proxy_that_was_paused_with_its_clocks_finds_out_and_grants_nothing_for_a_while() {
    let nodes = three();
    let (proxy, _other, mut late) = late_write(&nodes, &[MONOTONIC, BOOTTIME]);
    let thawed = Instant::now();
    let mut reply = late.reply();
    eventually("its client is told", || {
        let told = reply.error_text().starts_with("LOCKLOST");
        if !told {
            reply = late.cmd(&["GET", "x"]);
        }
        told
    });
    let mut client = proxy.client();
    eventually("it grants nothing", || {
        client.cmd(&["LOCK", "free", "t", "PX", "100"]).error_text().contains("(clock jumped)")
    });
    eventually("it goes on", || {
        matches!(client.cmd(&["LOCK", "free", "t", "PX", "100"]), Reply::Array(_))
    });
    assert!(thawed.elapsed() > ms(4000), "not before what it may have granted has run out");
    // If the machine stands still at the wrong moment, a node's clock looks wrong once more.
    assert!(proxy.metric("lockgate_clock_jumps_total", "forward") >= 3.0);
}

#[test]
fn a_node_that_does_not_tell_its_time_votes_and_is_warned_of() {
    let all: Vec<RedisServer> = (0..3).map(|_| RedisServer::start(&[]).unwrap()).collect();
    for node in &all {
        Client::connect(node.port()).cmd(&["ACL", "SETUSER", "default", "-time"]);
    }
    let urls: Vec<String> = all.iter().map(RedisServer::url).collect();
    let proxy = Proxy::with().node_urls(&urls).start();
    all_up(&proxy);
    eventually("it is named", || proxy.metric("lockgate_node_fault", "fault=\"unwatched\"") == 3.0);
    assert!(proxy.log().contains("does not tell its TIME"));
    let mut client = proxy.client();
    client.cmd(&["LOCK", "k", "t", "PX", "30000"]).grant();
    assert_eq!(client.cmd(&["UNLOCK", "k", "t"]), Reply::Int(1));
    let doctor = Command::new(env!("CARGO_BIN_EXE_lockgate"))
        .arg("doctor")
        .arg(proxy.config_file())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&doctor.stdout);
    assert!(said.contains("+time"), "{said}");
    // The permission is given back while the proxy runs.
    for node in &all {
        Client::connect(node.port()).cmd(&["ACL", "SETUSER", "default", "+time"]);
    }
    eventually("it is seen", || proxy.metric("lockgate_node_fault", "fault=\"unwatched\"") == 0.0);
}
