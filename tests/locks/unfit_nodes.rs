//! Nodes that must not vote do not vote: those that were restarted, and those that are not what they seem. Operators
//! are told, wherever they look.

use std::{
    net::{Shutdown, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use crate::support::{self, Client, Proxy, Reply, Setup, eventually, relay::Relay};
use lockgate::tools::{free_port::free_port, redis_server::RedisServer};

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
    before_urls(&urls(nodes))
}

fn before_urls(urls: &[String]) -> Setup {
    with_max_ttl(urls, "4s")
}

fn with_max_ttl(urls: &[String], max_ttl: &str) -> Setup {
    Proxy::with()
        .node_urls(urls)
        .locks(&format!("max_ttl: {max_ttl}"))
        .locks("default_ttl: 2s")
        .locks("node_timeout: 400ms")
}

fn all_up(proxy: &Proxy, count: usize) {
    eventually("all nodes are up", || proxy.nodes_up() == count);
}

/// Asks until the lock is granted. Returns the time.
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

/// Restarts two of three nodes while a lock is held. No other client gets it before it has run out, neither through a
/// proxy that has seen the restarts nor through a new one.
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
    eventually("they wait, and it is said for how long", || {
        let answer = client.cmd(&["LOCK", "k", "b", "PX", "1000"]);
        answer.error_text().contains("(waits ") && answer.error_text().contains(" s more (it was")
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

/// Restarts all nodes while a lock is held. No other client gets it before it has run out, through any proxy.
fn all_restarted_nodes_grant_nothing_twice(count: usize, stays: bool, comes: bool) {
    let mut nodes = nodes(count, &[]);
    let mut first = before(&nodes).start();
    all_up(&first, count);
    let held = first.client().cmd(&["LOCK", "k", "a", "PX", "4000"]).grant();
    let until = Instant::now() + ms(held.validity.unsigned_abs());
    nodes.iter_mut().for_each(|node| node.restart().unwrap());
    if !stays {
        first.kill();
    }
    let second = comes.then(|| before(&nodes).uninitialised().start());
    for proxy in stays.then_some(&first).into_iter().chain(&second) {
        let mut client = proxy.client();
        let at = granted_at(&mut client);
        assert!(at > until, "{:?} too soon", until - at);
        client.cmd(&["UNLOCK", "k", "b"]);
        all_up(proxy, count);
    }
}

#[test]
fn a_single_node_that_is_restarted_grants_nothing_twice() {
    all_restarted_nodes_grant_nothing_twice(1, true, true);
}

#[test]
fn all_nodes_restarted_at_once_are_not_new_to_a_proxy_that_knew_them() {
    all_restarted_nodes_grant_nothing_twice(5, true, false);
}

#[test]
fn all_nodes_restarted_at_once_are_not_new_to_a_proxy_beside_one_that_knew_them() {
    all_restarted_nodes_grant_nothing_twice(5, true, true);
}

#[test]
fn all_nodes_and_all_proxies_restarted_at_once_are_not_new() {
    all_restarted_nodes_grant_nothing_twice(5, false, true);
}

#[test]
fn a_quorum_that_is_flushed_under_a_held_lock_grants_nothing_twice() {
    let nodes = nodes(3, &[]);
    let proxy = before(&nodes).start();
    all_up(&proxy, 3);
    let held = proxy.client().cmd(&["LOCK", "k", "a", "PX", "4000"]).grant();
    let until = Instant::now() + ms(held.validity.unsigned_abs());
    for node in &nodes[..2] {
        assert_eq!(Client::connect(node.port()).cmd(&["FLUSHALL"]), Reply::ok());
    }
    assert!(granted_at(&mut proxy.client()) > until);
    all_up(&proxy, 3);
}

#[test]
fn all_nodes_flushed_under_a_held_lock_grant_nothing_twice() {
    let nodes = nodes(3, &[]);
    let proxy = before(&nodes).start();
    let second = before(&nodes).start();
    all_up(&proxy, 3);
    all_up(&second, 3);
    let held = proxy.client().cmd(&["LOCK", "k", "a", "PX", "4000"]).grant();
    let until = Instant::now() + ms(held.validity.unsigned_abs());
    for node in &nodes {
        assert_eq!(Client::connect(node.port()).cmd(&["FLUSHALL"]), Reply::ok());
    }
    assert!(granted_at(&mut second.client()) > until);
    all_up(&proxy, 3);
    all_up(&second, 3);
}

#[test]
fn all_nodes_flushed_are_not_new_to_a_proxy_whose_own_ttls_are_shorter() {
    let nodes = nodes(3, &[]);
    let longer = before(&nodes).start();
    all_up(&longer, 3);
    let urls = urls(&nodes);
    let shorter = Proxy::with()
        .node_urls(&urls)
        .locks("max_ttl: 1s")
        .locks("default_ttl: 500ms")
        .locks("node_timeout: 100ms")
        .start();
    all_up(&shorter, 3);
    // Normally the new proxy hears of the other's TTLs soon after its start.
    thread::sleep(ms(1500));
    let held = longer.client().cmd(&["LOCK", "k", "a", "PX", "4000"]).grant();
    let until = Instant::now() + ms(held.validity.unsigned_abs());
    for node in &nodes {
        assert_eq!(Client::connect(node.port()).cmd(&["FLUSHALL"]), Reply::ok());
    }
    let at = granted_at(&mut shorter.client());
    assert!(at > until, "{:?} too soon", until - at);
    all_up(&longer, 3);
    all_up(&shorter, 3);
}

/// A proxy that starts after the nodes have forgotten everything knows nothing itself. The proxy beside it tells it,
/// by a note on the nodes that wait and by its record.
#[test]
fn all_nodes_flushed_are_not_new_to_a_proxy_that_starts_with_shorter_ttls() {
    let nodes = nodes(3, &[]);
    let longer = with_max_ttl(&urls(&nodes), "8s").start();
    all_up(&longer, 3);
    let held = longer.client().cmd(&["LOCK", "k", "a", "PX", "8000"]).grant();
    let until = Instant::now() + ms(held.validity.unsigned_abs());
    for node in &nodes {
        assert_eq!(Client::connect(node.port()).cmd(&["FLUSHALL"]), Reply::ok());
    }
    // With its own TTLs alone it would wait for the shortest time, 2 s.
    let shorter = Proxy::with()
        .node_urls(&urls(&nodes))
        .locks("max_ttl: 1s")
        .locks("default_ttl: 500ms")
        .locks("node_timeout: 100ms")
        .uninitialised()
        .start();
    let at = granted_at(&mut shorter.client());
    assert!(at > until, "{:?} too soon", until - at);
    let told = Client::connect(nodes[0].port()).cmd(&["GET", "lockgate:max_ttl"]);
    assert_eq!(told, Reply::bulk("8000"), "the node that waited was told");
}

#[test]
fn an_emptied_node_is_noticed_where_nobody_locks() {
    let nodes = nodes(3, &[]);
    let proxy = before(&nodes).start();
    all_up(&proxy, 3);
    assert_eq!(Client::connect(nodes[1].port()).cmd(&["FLUSHALL"]), Reply::ok());
    eventually("it is seen", || proxy.nodes_up() == 2);
    all_up(&proxy, 3);
}

/// A node that was made a replica has that fault alone, and none once it is a master again.
#[test]
fn a_node_that_was_a_replica_has_one_fault_at_a_time() {
    let nodes = nodes(3, &[]);
    let proxy = before(&nodes).start();
    all_up(&proxy, 3);
    proxy.client().cmd(&["LOCK", "longest", "a", "PX", "4000"]).grant();
    let address = format!("lock node 127.0.0.1:{}: ", nodes[0].port());
    let line = || {
        let ready = proxy.http("/readyz");
        ready.lines().find_map(|line| line.strip_prefix(&address)).unwrap().to_owned()
    };
    let mut client = Client::connect(nodes[0].port());
    client.cmd(&["REPLICAOF", "127.0.0.1", "1"]);
    eventually("it is a replica", || line().contains("it is a replica"));
    // Nodes are inspected every ten seconds.
    let until = Instant::now() + ms(11_000);
    while Instant::now() < until {
        assert!(!line().contains("refuses writes"), "{}", line());
        thread::sleep(ms(50));
    }
    assert_eq!(client.cmd(&["REPLICAOF", "NO", "ONE"]), Reply::ok());
    eventually("it waits", || line().contains("waits "));
    assert!(!line().contains("its votes are not its own"), "{}", line());
    all_up(&proxy, 3);
    assert_eq!(line(), "ok");
}

#[test]
fn replicas_and_back_grant_nothing_twice() {
    let nodes = nodes(3, &[]);
    let empty = RedisServer::start(&["--repl-diskless-sync-delay", "0"]).unwrap();
    let proxy = before(&nodes).start();
    all_up(&proxy, 3);
    let held = proxy.client().cmd(&["LOCK", "k", "a", "PX", "4000"]).grant();
    let until = Instant::now() + ms(held.validity.unsigned_abs());
    for node in &nodes[..2] {
        let mut client = Client::connect(node.port());
        client.cmd(&["REPLICAOF", "127.0.0.1", &empty.port().to_string()]);
        eventually("it is empty", || client.cmd(&["DBSIZE"]) == Reply::Int(0));
        assert_eq!(client.cmd(&["REPLICAOF", "NO", "ONE"]), Reply::ok());
    }
    assert!(granted_at(&mut proxy.client()) > until);
    all_up(&proxy, 3);
}

/// An address that leads to one server, and later to another.
struct Address {
    port: u16,
    leads_to: Arc<Mutex<(u16, Vec<TcpStream>)>>,
}

impl Address {
    fn of(server: u16) -> Address {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let leads_to = Arc::new(Mutex::new((server, Vec::new())));
        let ours = leads_to.clone();
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let mut way = ours.lock().unwrap();
                let Ok(server) = TcpStream::connect(("127.0.0.1", way.0)) else { continue };
                let twin = |stream: &TcpStream| stream.try_clone().unwrap();
                way.1.extend([twin(&client), twin(&server)]);
                for (mut from, mut to) in [(twin(&client), twin(&server)), (server, client)] {
                    thread::spawn(move || {
                        let _ = std::io::copy(&mut from, &mut to);
                        let _ = to.shutdown(Shutdown::Both);
                    });
                }
            }
        });
        Address { port, leads_to }
    }

    fn lead_to(&self, server: u16) {
        let mut way = self.leads_to.lock().unwrap();
        way.0 = server;
        for stream in way.1.drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

#[test]
fn spares_that_were_started_in_time_grant_nothing_twice() {
    let (nodes, spares) = (nodes(3, &[]), nodes(2, &[]));
    // So long that they have been up for longer than any lock lasts.
    thread::sleep(MAX_TTL + ms(1200));
    let relays: Vec<Address> = nodes[..2].iter().map(|node| Address::of(node.port())).collect();
    let mut urls: Vec<String> =
        relays.iter().map(|relay| format!("redis://127.0.0.1:{}", relay.port)).collect();
    urls.push(nodes[2].url());
    let proxy = before_urls(&urls).start();
    all_up(&proxy, 3);
    let held = proxy.client().cmd(&["LOCK", "k", "a", "PX", "4000"]).grant();
    let until = Instant::now() + ms(held.validity.unsigned_abs());
    for (relay, spare) in relays.iter().zip(&spares) {
        relay.lead_to(spare.port());
    }
    assert!(granted_at(&mut proxy.client()) > until);
    all_up(&proxy, 3);
}

#[test]
fn proxies_that_disagree_do_not_vote_and_say_so() {
    let nodes = nodes(5, &[]);
    let three = before(&nodes[..3]).start();
    all_up(&three, 3);
    let five = before(&nodes).start();
    let other_prefix = before(&nodes[..3]).locks("prefix: 'p:'").start();
    let mut turned = urls(&nodes[..3]);
    turned.rotate_left(1);
    let turned = Proxy::with().node_urls(&turned).start();
    for (proxy, words) in [
        (&five, "as node 1 of 3 with prefix 'lock:', this proxy as node 1 of 5"),
        (&other_prefix, "this proxy as node 1 of 3 with prefix 'p:'"),
        (&turned, "as node 2 of 3 with prefix 'lock:', this proxy as node 1 of 3"),
    ] {
        eventually("it is said", || proxy.http("/readyz").contains(words));
        assert!(proxy.http("/readyz").starts_with("HTTP/1.1 503"), "{}", proxy.http("/readyz"));
        assert!(proxy.log().contains(words), "{}", proxy.log());
        let answer = proxy.client().cmd(&["LOCK", "k", "t", "PX", "1000"]);
        assert!(answer.error().starts_with("NOQUORUM"), "{answer:?}");
        eventually("and counted", || {
            proxy.metric("lockgate_node_fault", "fault=\"disagrees\"") >= 3.0
        });
    }
    three.client().cmd(&["LOCK", "k", "t", "PX", "1000"]).grant();
}

#[test]
fn a_node_of_another_deployment_is_named() {
    let nodes = nodes(6, &[]);
    let (ours, others) = nodes.split_at(3);
    all_up(&before(ours).start(), 3);
    all_up(&before(others).start(), 3);
    let mixed: Vec<String> = [&ours[0], &ours[1], &others[2]].map(RedisServer::url).to_vec();
    let proxy = Proxy::with().node_urls(&mixed).start();
    eventually("it is foreign", || proxy.metric("lockgate_node_fault", "fault=\"foreign\"") == 1.0);
    eventually("the others vote", || proxy.nodes_up() == 2);
    assert!(
        proxy.http("/readyz").contains("it belongs to deployment "),
        "{}",
        proxy.http("/readyz")
    );
    proxy.client().cmd(&["LOCK", "k", "t", "PX", "1000"]).grant();
}

/// Takes and gives back locks until `end`. Returns the number of grants and renewals, and all errors.
fn lock_often(port: u16, name: &str, end: &AtomicBool) -> (usize, Vec<String>) {
    let mut client = Client::connect(port);
    let (mut granted, mut errors) = (0, Vec::new());
    while !end.load(Ordering::Relaxed) {
        for words in [&["LOCK", name, "t", "PX", "8000"][..], &["RENEW", name, "t", "PX", "8000"]] {
            match client.cmd(words) {
                Reply::Error(error) => errors.push(error),
                Reply::Array(_) | Reply::Int(1..) => granted += 1,
                other => errors.push(format!("{words:?}: {other:?}")),
            }
        }
        match client.cmd(&["UNLOCK", name, "t"]) {
            Reply::Int(1) => {}
            other => errors.push(format!("UNLOCK: {other:?}")),
        }
        thread::sleep(ms(2));
    }
    (granted, errors)
}

#[test]
#[ignore = "takes long: make long"]
fn nodes_that_come_back_empty_keep_nobody_from_locking() {
    let mut nodes = nodes(5, &[]);
    // The beginning of an epoch takes a moment, and longer on a busy machine.
    let setup = Proxy::with().node_urls(&urls(&nodes)).locks("node_timeout: 800ms");
    let one = setup.locks("max_ttl: 8s").locks("default_ttl: 8s").start();
    let other = Proxy::beside(&one).start();
    [&one, &other].iter().for_each(|proxy| all_up(proxy, 5));
    let end = AtomicBool::new(false);
    let all = thread::scope(|scope| {
        let clients: Vec<_> = [&one, &other, &one, &other]
            .iter()
            .enumerate()
            .map(|(n, proxy)| {
                let (port, end) = (proxy.port(), &end);
                scope.spawn(move || lock_often(port, &format!("busy:{n}"), end))
            })
            .collect();
        for round in 0..6 {
            let node = &mut nodes[round % 2];
            node.kill().unwrap();
            thread::sleep(ms(200));
            node.restart().unwrap();
            thread::sleep(ms(700));
        }
        [&one, &other].iter().for_each(|proxy| all_up(proxy, 5));
        end.store(true, Ordering::Relaxed);
        clients.into_iter().map(|client| client.join().unwrap()).collect::<Vec<_>>()
    });
    for proxy in [&one, &other] {
        let epochs = proxy.log().matches("the lock nodes' epoch").count();
        assert!(epochs > 4, "{epochs} epochs");
    }
    for (granted, errors) in all {
        assert!(granted > 100, "{granted}");
        assert_eq!(errors, Vec::<String>::new());
    }
}

#[test]
fn a_session_lock_outlives_a_rolling_restart_of_all_nodes() {
    let mut nodes = nodes(3, &[]);
    let proxy = before(&nodes).start();
    all_up(&proxy, 3);
    let mut holder = proxy.client();
    holder.cmd(&["LOCK", "k"]).grant();
    for (index, node) in nodes.iter_mut().enumerate() {
        node.restart().unwrap();
        eventually("the restart is seen", || proxy.nodes_up() == 2);
        all_up(&proxy, 3);
        eventually("the lock is put back", || {
            Client::connect(node.port()).cmd(&["EXISTS", "lock:k"]) == Reply::Int(1)
        });
        assert_eq!(holder.cmd(&["GET", "x"]), Reply::NullBulk, "after {index}");
    }
    assert_eq!(holder.cmd(&["UNLOCK", "k"]), Reply::Int(1));
}

/// Waits until a node that has come back empty waits on its seat.
fn one_waits(proxy: &Proxy, count: usize) {
    eventually("a node waits", || proxy.nodes_up() == count - 1);
}

fn has(node: &RedisServer, key: &str) -> bool {
    Client::connect(node.port()).cmd(&["EXISTS", key]) == Reply::Int(1)
}

#[test]
fn a_lease_taken_while_a_node_waits_outlives_the_restart_of_the_next() {
    let mut nodes = nodes(3, &[]);
    let proxy = before(&nodes).start();
    all_up(&proxy, 3);
    let (mut holder, mut other) = (proxy.client(), proxy.client());
    holder.cmd(&["LOCK", "longest", "a", "PX", "4000"]).grant();
    nodes[2].restart().unwrap();
    one_waits(&proxy, 3);
    thread::sleep(ms(2000));
    holder.cmd(&["LOCK", "k", "a", "PX", "4000"]).grant();
    holder.cmd(&["LOCK", "given back", "a", "PX", "4000"]).grant();
    all_up(&proxy, 3);
    nodes[0].kill().unwrap();
    assert!(matches!(holder.cmd(&["RENEW", "k", "a", "PX", "4000"]), Reply::Int(1..)));
    assert_eq!(other.cmd(&["LOCK", "k", "b", "PX", "1000"]), Reply::NullArray);
    for lock in ["k", "given back"] {
        assert_eq!(holder.cmd(&["UNLOCK", lock, "a"]), Reply::Int(1), "{lock}");
        other.cmd(&["LOCK", lock, "b", "PX", "1000"]).grant();
    }
}

/// The wait of a node begins anew once it is given a place, if it could not be given one at first. Operators are told
/// so during the first wait.
#[test]
fn a_wait_that_may_begin_anew_is_told_so() {
    let mut nodes = nodes(3, &[]);
    let proxy = before(&nodes).start();
    all_up(&proxy, 3);
    proxy.client().cmd(&["LOCK", "longest", "a", "PX", "4000"]).grant();
    let anew = |node: &RedisServer| {
        let ready = proxy.http("/readyz");
        let address = format!("127.0.0.1:{}: waits ", node.port());
        ready.lines().any(|line| line.contains(&address) && line.contains("its wait begins anew"))
    };
    nodes[0].restart().unwrap();
    one_waits(&proxy, 3);
    assert!(!anew(&nodes[0]), "two others vote, so its place is certain");
    thread::sleep(ms(1000));
    nodes[1].restart().unwrap();
    eventually("the second one cannot be given a place", || anew(&nodes[1]));
    assert!(!anew(&nodes[0]), "the first one has its place");
    eventually("a quorum votes", || proxy.nodes_up() == 2);
    eventually("the second one waits anew", || {
        let ready = proxy.http("/readyz");
        ready.contains(": waits 4 s more") || ready.contains(": waits 5 s more")
    });
    assert!(!anew(&nodes[1]), "it has its place now");
    all_up(&proxy, 3);
}

#[test]
fn a_lease_is_put_back_where_it_was_forgotten_for_the_rest_of_its_time() {
    let mut nodes = nodes(3, &[]);
    let proxy = before(&nodes).start();
    all_up(&proxy, 3);
    let mut holder = proxy.client();
    holder.cmd(&["LOCK", "k", "a", "PX", "4000"]).grant();
    let since = Instant::now();
    nodes[2].restart().unwrap();
    eventually("it is put back", || has(&nodes[2], "lock:k"));
    let on = |node: &RedisServer, words: &[&str]| Client::connect(node.port()).cmd(words);
    let left = on(&nodes[2], &["PTTL", "lock:k"]);
    let most = i64::try_from((ms(4100) - since.elapsed()).as_millis()).unwrap();
    assert!(matches!(left, Reply::Int(left) if 0 < left && left <= most), "{left:?} of {most}");
    for key in ["lock:k", "lockgate:fence:lock:k"] {
        let values = [0, 2].map(|node: usize| on(&nodes[node], &["GET", key]));
        assert_eq!(values[0], values[1], "token, fence and claim");
    }
    assert_eq!(holder.cmd(&["UNLOCK", "k", "a"]), Reply::Int(1));
    eventually("it is given back", || nodes.iter().all(|node| !has(node, "lock:k")));
    assert!(since.elapsed() < ms(3500), "it has not run out");
}

#[test]
fn a_lease_that_was_given_back_elsewhere_is_put_back_on_no_node_for_long() {
    let mut nodes = nodes(3, &[]);
    let relay = Relay::to(nodes[2].port());
    let setup = |urls: &[String]| {
        Proxy::with().node_urls(urls).locks("max_ttl: 20s").locks("node_timeout: 400ms")
    };
    let mut ways = urls(&nodes);
    ways[2] = format!("redis://127.0.0.1:{}", relay.port());
    let one = setup(&ways).start();
    all_up(&one, 3);
    // The other proxy does not reach the node, so its release does not arrive there.
    ways[2] = format!("redis://127.0.0.1:{}", free_port().unwrap());
    let other = setup(&ways).uninitialised().start();
    all_up(&other, 2);
    one.client().cmd(&["LOCK", "k", "a", "PX", "20000"]).grant();
    let since = Instant::now();
    nodes[2].kill().unwrap();
    let heal = concat!(
        include_str!("../../src/lock/scripts/plain_marker.lua"),
        include_str!("../../src/lock/scripts/plain_beside.lua"),
        include_str!("../../src/lock/scripts/readers.lua"),
        include_str!("../../src/lock/scripts/heal.lua")
    );
    let heal = Client::connect(nodes[0].port()).cmd(&["SCRIPT", "LOAD", heal]);
    let Reply::Bulk(heal) = heal else { panic!("{heal:?}") };
    relay.hold_request(&format!("{}\r\n$1\r\n2\r\n", String::from_utf8(heal).unwrap()));
    nodes[2].restart().unwrap();
    relay.wait_until_held();
    assert_eq!(other.client().cmd(&["UNLOCK", "k", "a"]), Reply::Int(1));
    assert!(!has(&nodes[2], "lock:k"));
    relay.release();
    eventually("it is put back too late", || has(&nodes[2], "lock:k"));
    eventually("it is given back there", || !has(&nodes[2], "lock:k"));
    assert!(since.elapsed() < ms(19_000), "it has not run out");
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
fn nodes_without_a_marker_wait_and_init_is_named() {
    let all = nodes(3, &[]);
    let begun = Instant::now();
    let proxy = before(&all).uninitialised().start();
    let mut client = proxy.client();
    eventually("init is named", || {
        client.cmd(&["LOCK", "k", "PX", "1000"]).error_text().contains("lockgate init FILE")
            && proxy.http("/readyz").matches("lockgate init FILE").count() == 3
            && proxy.log().contains("lockgate init FILE")
    });
    all_up(&proxy, 3);
    assert!(begun.elapsed() > MAX_TTL, "{:?}", begun.elapsed());
    client.cmd(&["LOCK", "k", "PX", "1000"]).grant();
}

#[test]
fn init_ends_the_wait_and_is_refused_where_a_marker_is() {
    let mut all = nodes(3, &[]);
    let settings =
        format!("data: {}\nlocks:\n  nodes: [{}]\n", all[0].url(), urls(&all).join(", "));
    all[2].kill().unwrap();
    assert!(support::init(&settings, &[]).contains("nothing was written"));
    all[2].restart().unwrap();
    // Without `init` the nodes would wait for a minute.
    let proxy = Proxy::with().node_urls(&urls(&all)).uninitialised().start();
    eventually("they wait", || proxy.http("/readyz").contains("lockgate init FILE"));
    let said = support::init(&settings, &[]);
    assert!(said.contains("3 lock nodes may vote"), "{said}");
    all_up(&proxy, 3);
    proxy.client().cmd(&["LOCK", "k", "PX", "1000"]).grant();
    let said = support::init(&settings, &[]);
    assert!(said.contains("nothing to do") && said.contains("is node 3 of 3"), "{said}");
}

/// Checks that a node's fault is named wherever an operator looks.
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

/// Returns how a bulk string with this text is printed for debugging, without the ends.
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
    // No real Redis can be made to misbehave like this.
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
    // This node is fit, but has no marker.
    is_named(&proxy, &fit.url(), "quarantined", "waits ");
}

#[test]
fn an_eviction_policy_is_warned_of_and_votes() {
    let all = nodes(3, &["--maxmemory", "50mb", "--maxmemory-policy", "allkeys-lru"]);
    let proxy = before(&all).start();
    all_up(&proxy, 3);
    proxy.client().cmd(&["LOCK", "k", "PX", "1000"]).grant();
    is_named(&proxy, &all[0].url(), "eviction", "noeviction");
    // The policy is corrected while the proxy runs.
    Client::connect(all[0].port()).cmd(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    eventually("it is seen", || {
        proxy.metric("lockgate_node_fault", &format!("{}\",fault=\"eviction", all[0].port())) == 0.0
    });
}

/// Each question has a limit of its own, a second here. The client library's, 500 ms by default, must not undercut it.
#[test]
fn a_slow_node_is_inspected_within_the_limit_of_an_inspection() {
    let all = nodes(3, &["--maxmemory", "50mb"]);
    let relay = Relay::to(all[2].port());
    let mut ways = urls(&all);
    ways[2] = format!("redis://127.0.0.1:{}", relay.port());
    let proxy = Proxy::with().node_urls(&ways).start();
    all_up(&proxy, 3);
    relay.delay_replies(ms(600));
    Client::connect(all[2].port()).cmd(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    eventually("it is seen", || {
        proxy.metric("lockgate_node_fault", &format!("{}\",fault=\"eviction", relay.port())) == 1.0
    });
}

#[test]
fn protected_mode_is_named() {
    // Redis refuses only connections from another address.
    let Some(address) = own_address() else { return };
    let node = RedisServer::start(&["--bind", "0.0.0.0", "--protected-mode", "yes"]).unwrap();
    let url = format!("redis://{address}:{}", node.port());
    let proxy = Proxy::with().node_urls(&[url]).start();
    eventually("it is named", || {
        proxy.metric("lockgate_node_fault", "fault=\"protected_mode\"") == 1.0
            && proxy.http("/readyz").contains("protected mode")
    });
}

/// Returns an address of this machine beyond loopback.
fn own_address() -> Option<std::net::IpAddr> {
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").ok()?;
    // This sends nothing.
    socket.connect("192.0.2.1:9").ok()?;
    let address = socket.local_addr().ok()?.ip();
    (!address.is_loopback()).then_some(address)
}

#[test]
fn two_entries_for_one_instance_are_one_vote() {
    let all = nodes(2, &[]);
    // A spelling that only the system knows.
    let twin = format!("redis://127.1:{}/1", all[0].port());
    let proxy = Proxy::with().node_urls(&[all[0].url(), twin.clone(), all[1].url()]).start();
    eventually("it is seen", || proxy.http("/readyz").contains("same instance as node"));
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
