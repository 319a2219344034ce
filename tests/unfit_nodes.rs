//! Nodes that must not vote do not: those that were restarted, those that are not
//! what they seem. And whoever looks is told.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod support;

use std::{
    thread,
    time::{Duration, Instant},
};

use lockgate::redis_server::RedisServer;
use support::{Client, Proxy, Reply, Setup, eventually};

/// The longest TTL of these deployments.
const MAX_TTL: Duration = Duration::from_secs(4);

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn nodes(count: usize, arguments: &[&str]) -> Vec<RedisServer> {
    (0..count).map(|_| RedisServer::start(arguments).unwrap()).collect()
}

fn urls(nodes: &[RedisServer]) -> Vec<String> {
    nodes.iter().map(RedisServer::url).collect()
}

fn before(nodes: &[RedisServer]) -> Setup {
    Proxy::with()
        .node_urls(&urls(nodes))
        .locks("max_ttl: 4s")
        .locks("default_ttl: 2s")
        .locks("node_timeout: 400ms")
}

fn all_up(proxy: &Proxy, count: usize) {
    eventually("all nodes are up", || proxy.nodes_up() == count);
}

/// Asks until the lock is granted, and says when.
fn granted_at(client: &mut Client) -> Instant {
    loop {
        let reply = client.cmd(&["LOCK", "k", "b", "PX", "1000"]);
        if matches!(reply, Reply::Array(_)) {
            return Instant::now();
        }
        thread::sleep(ms(20));
    }
}

#[test]
fn without_quarantine_two_clients_hold_one_lock() {
    let mut nodes = nodes(3, &[]);
    let proxy = before(&nodes).locks("quarantine: no").start();
    all_up(&proxy, 3);
    let held = proxy.client().cmd(&["LOCK", "k", "a", "PX", "4000"]).grant();
    let until = Instant::now() + ms(held.validity.unsigned_abs());
    nodes[0].restart().unwrap();
    nodes[1].restart().unwrap();
    assert!(granted_at(&mut proxy.client()) < until, "this is what quarantine is for");
}

/// Restarts two of three nodes while a lock is held. Nobody else gets it before
/// it has run out, through a proxy that has seen it or through a new one.
fn two_restarted_nodes_grant_nothing_twice(arguments: &[&str], new_proxy: bool) {
    let mut nodes = nodes(3, arguments);
    let first = before(&nodes).start();
    all_up(&first, 3);
    let held = first.client().cmd(&["LOCK", "k", "a", "PX", "4000"]).grant();
    let until = Instant::now() + ms(held.validity.unsigned_abs());
    nodes[0].restart().unwrap();
    nodes[1].restart().unwrap();
    let second = new_proxy.then(|| before(&nodes).start());
    let proxy = second.as_ref().unwrap_or(&first);
    let mut client = proxy.client();
    eventually("they are in quarantine", || {
        client.cmd(&["LOCK", "k", "b", "PX", "1000"]).error_text().contains("(quarantined)")
    });
    let at = granted_at(&mut client);
    assert!(at > until, "{:?} too soon", until - at);
    all_up(proxy, 3);
}

#[test]
fn nodes_that_lost_their_memory_grant_nothing_twice() {
    two_restarted_nodes_grant_nothing_twice(&[], false);
}

#[test]
fn nodes_that_lost_their_memory_are_known_to_a_new_proxy() {
    two_restarted_nodes_grant_nothing_twice(&[], true);
}

#[test]
fn nodes_that_may_have_kept_their_memory_are_not_believed_either() {
    two_restarted_nodes_grant_nothing_twice(&["--appendonly", "yes"], true);
}

#[test]
fn all_nodes_restarted_at_once_are_no_new_deployment_to_a_proxy_that_knew_them() {
    let mut nodes = nodes(3, &[]);
    let proxy = before(&nodes).start();
    all_up(&proxy, 3);
    let held = proxy.client().cmd(&["LOCK", "k", "a", "PX", "4000"]).grant();
    let until = Instant::now() + ms(held.validity.unsigned_abs());
    nodes.iter_mut().for_each(|node| node.restart().unwrap());
    assert!(granted_at(&mut proxy.client()) > until);
}

#[test]
fn a_session_lock_dies_with_the_memory_of_its_nodes_and_is_not_granted_before() {
    let mut nodes = nodes(3, &[]);
    let proxy = before(&nodes).start();
    all_up(&proxy, 3);
    let mut holder = proxy.client();
    holder.cmd(&["LOCK", "k"]).grant();
    nodes[0].restart().unwrap();
    nodes[1].restart().unwrap();
    eventually("it is lost", || proxy.metric("lockgate_lost_locks_total", "") == 1.0);
    let lost = Instant::now();
    assert!(granted_at(&mut proxy.client()) > lost);
    assert!(holder.cmd(&["GET", "x"]).error().starts_with("LOCKLOST"));
}

#[test]
fn a_broken_connection_is_no_restart() {
    let nodes = nodes(3, &[]);
    let proxy = before(&nodes).start();
    all_up(&proxy, 3);
    for node in &nodes {
        Client::connect(node.port()).cmd(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    }
    let mut client = proxy.client();
    let begun = Instant::now();
    eventually("it goes on", || {
        matches!(client.cmd(&["LOCK", "k", "t", "PX", "1000"]), Reply::Array(_))
    });
    all_up(&proxy, 3);
    assert!(begun.elapsed() < MAX_TTL, "{:?}", begun.elapsed());
    assert!(!proxy.log().contains("quarantined"), "{}", proxy.log());
}

#[test]
fn a_new_deployment_that_is_not_complete_waits() {
    let mut all = nodes(3, &[]);
    all[2].kill().unwrap();
    let proxy = before(&all).start();
    let mut client = proxy.client();
    eventually("nobody can tell whether it is new", || {
        proxy.http("/readyz").matches("not all nodes have told").count() == 2
    });
    assert!(client.cmd(&["LOCK", "k", "PX", "1000"]).error().contains("(quarantined)"));
    all[2].restart().unwrap();
    all_up(&proxy, 3);
    client.cmd(&["LOCK", "k", "PX", "1000"]).grant();
}

/// What is wrong with a node is named wherever somebody looks.
fn is_named(proxy: &Proxy, node: &str, fault: &str, words: &str) {
    let port = node.rsplit(':').next().unwrap().to_owned();
    eventually(fault, || {
        let labels = format!("127.0.0.1:{port}\",fault=\"{fault}\"");
        proxy.metric("lockgate_node_fault", &labels) == 1.0
    });
    let names = |text: &str| text.lines().any(|line| line.contains(&port) && line.contains(words));
    assert!(names(&proxy.http("/readyz")), "{}", proxy.http("/readyz"));
    assert!(names(&proxy.log()), "{}", proxy.log());
    let Reply::Array(list) = proxy.client().cmd(&["LOCKGATE", "NODES"]) else { panic!() };
    let told = list.iter().find(|node| format!("{node:?}").contains(&as_bulk(&port))).unwrap();
    assert!(format!("{told:?}").contains(&as_bulk(fault)), "{told:?}");
}

/// How a bulk string with this text is printed for debugging, without its ends.
fn as_bulk(text: &str) -> String {
    let shown = format!("{:?}", text.as_bytes());
    shown.trim_matches(['[', ']']).to_owned()
}

#[test]
fn whatever_makes_a_node_unfit_is_named() {
    use std::io::{Read, Write};
    let start = |arguments: &[&str]| RedisServer::start(arguments).unwrap();
    let evicting = start(&["--maxmemory", "50mb", "--maxmemory-policy", "allkeys-lru"]);
    let replica = start(&["--replicaof", "127.0.0.1 1", "--replica-read-only", "no"]);
    let locked = start(&["--requirepass", "secret"]);
    let nameless = start(&[]);
    Client::connect(nameless.port()).cmd(&["ACL", "SETUSER", "default", "-info"]);
    let narrow = start(&[]);
    Client::connect(narrow.port()).cmd(&["ACL", "SETUSER", "default", "resetkeys", "~lock:*"]);
    let fit = start(&[]);
    // No Redis can be made to misbehave so, hence a fake one.
    let garbage = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let garbage_url = format!("redis://{}", garbage.local_addr().unwrap());
    thread::spawn(move || {
        while let Ok((mut stream, _)) = garbage.accept() {
            let _ = stream.write_all(&[b'x'; 10_000]);
            let _ = stream.read(&mut [0; 1000]);
        }
    });
    let urls = [
        evicting.url(),
        replica.url(),
        locked.url(),
        nameless.url(),
        garbage_url.clone(),
        fit.url(),
        narrow.url(),
    ];
    let proxy = Proxy::with().node_urls(&urls).start();
    for (url, fault, words) in [
        (evicting.url(), "eviction", "noeviction"),
        (replica.url(), "replica", "a replica"),
        (locked.url(), "auth", "NOAUTH"),
        (nameless.url(), "unidentified", "run_id"),
        (narrow.url(), "auth", "NOPERM"),
        (garbage_url, "garbage", "makes no sense"),
    ] {
        is_named(&proxy, &url, fault, words);
    }
    // Sound, but nobody knows whether the deployment is new.
    is_named(&proxy, &fit.url(), "quarantined", "not all nodes");
}

#[test]
fn an_eviction_policy_is_warned_of_and_votes() {
    let all = nodes(3, &["--maxmemory", "50mb", "--maxmemory-policy", "allkeys-lru"]);
    let proxy = before(&all).start();
    all_up(&proxy, 3);
    proxy.client().cmd(&["LOCK", "k", "PX", "1000"]).grant();
    is_named(&proxy, &all[0].url(), "eviction", "noeviction");
    // Mended while it runs.
    Client::connect(all[0].port()).cmd(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    eventually("it is seen", || {
        proxy.metric("lockgate_node_fault", &format!("{}\",fault=\"eviction", all[0].port())) == 0.0
    });
}

#[test]
fn protected_mode_is_named() {
    // Only from another address does it refuse.
    let Some(address) = own_address() else { return };
    let node = RedisServer::start(&["--bind", "0.0.0.0", "--protected-mode", "yes"]).unwrap();
    let url = format!("redis://{address}:{}", node.port());
    let proxy = Proxy::with().node_urls(&[url]).start();
    eventually("it is named", || {
        proxy.metric("lockgate_node_fault", "fault=\"protected_mode\"") == 1.0
            && proxy.http("/readyz").contains("protected mode")
    });
}

/// An address of this machine that is not loopback's.
fn own_address() -> Option<std::net::IpAddr> {
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").ok()?;
    // Sends nothing.
    socket.connect("192.0.2.1:9").ok()?;
    let address = socket.local_addr().ok()?.ip();
    (!address.is_loopback()).then_some(address)
}

#[test]
fn two_entries_for_one_instance_are_one_vote() {
    let all = nodes(2, &[]);
    let twin = format!("redis://localhost:{}/1", all[0].port());
    let proxy = Proxy::with().node_urls(&[all[0].url(), twin.clone(), all[1].url()]).start();
    eventually("two of them are up", || proxy.nodes_up() == 2);
    let page = proxy.http("/readyz");
    assert!(page.contains("same instance as node"), "{page}");
    assert_eq!(proxy.metric("lockgate_node_fault", "fault=\"shared_instance\""), 1.0);
    let Reply::Array(list) = proxy.client().cmd(&["LOCKGATE", "NODES"]) else { panic!() };
    assert!(format!("{list:?}").contains(&as_bulk("shared_instance")));
    let all = nodes(2, &[]);
    let twin = format!("redis://localhost:{}/1", all[0].port());
    let allowed = Proxy::with()
        .node_urls(&[all[0].url(), twin, all[1].url()])
        .locks("allow_shared_instance: yes")
        .start();
    all_up(&allowed, 3);
    allowed.client().cmd(&["LOCK", "k", "PX", "1000"]).grant();
}
