//! Lock nodes that Sentinels fail over: a promoted replica may lack a lock, and still no lock is granted twice. What
//! is held stays held.

use std::{
    thread,
    time::{Duration, Instant},
};

use lockgate::tools::redis_server::RedisServer;

use crate::support::{
    Client, Proxy, Reply, Setup, eventually,
    relay::Relay,
    sentinel::{MASTER, Sentinel, Watched},
};

/// Sets up a proxy with these lock nodes.
fn before(nodes: &[String]) -> Setup {
    Proxy::with().node_urls(nodes).locks("default_ttl: 2s").locks("node_timeout: 400ms")
}

fn all_up(proxy: &Proxy, count: usize) {
    eventually("all nodes are up", || proxy.nodes_up() == count);
}

fn waits(proxy: &Proxy) {
    eventually("the promoted replica waits", || {
        proxy.http("/readyz").contains("locks that are still held")
    });
}

/// Kills the only lock node before a lock is replicated, and has another client ask for the lock until it is granted.
/// Returns when the first grant ends, and when the second one was made.
fn second_grant_after_a_failover(line: &str) -> (Instant, Instant) {
    let mut watched = Watched::start(&[]);
    let proxy = before(&[watched.data("")]).locks("max_ttl: 8s").locks(line).start();
    all_up(&proxy, 1);
    watched.hold_replication();
    let held = proxy.client().cmd(&["LOCK", "k", "a", "PX", "8000"]).grant();
    let until = Instant::now() + Duration::from_millis(held.validity.unsigned_abs());
    watched.master.kill().unwrap();
    let mut second = proxy.client();
    loop {
        if matches!(second.cmd(&["LOCK", "k", "b", "PX", "1000"]), Reply::Array(_)) {
            let stored = watched.replica_client().cmd(&["GET", "lock:k"]);
            assert_eq!(stored, Reply::bulk("b"), "the promoted replica has granted it");
            eprintln!("{}", proxy.log());
            return (until, Instant::now());
        }
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
#[ignore = "takes long: make long"]
fn without_quarantine_a_failover_grants_a_lock_twice() {
    let (until, again) = second_grant_after_a_failover("quarantine: no");
    assert!(again < until, "this is what the wait is for");
}

#[test]
#[ignore = "takes long: make long"]
fn a_failover_before_the_lock_was_replicated_grants_it_once() {
    let (until, again) = second_grant_after_a_failover("");
    assert!(again >= until);
}

fn unconfirmed(proxy: &Proxy) -> f64 {
    proxy.metric("lockgate_node_fault", "fault=\"unconfirmed\"")
}

#[test]
fn a_proxy_that_hears_of_no_sentinel_grants_and_renews_nothing() {
    let watched = Watched::start(&[]);
    let relays: Vec<Relay> =
        watched.sentinels.iter().map(|sentinel| Relay::to(sentinel.port())).collect();
    let all: Vec<String> =
        relays.iter().map(|relay| format!("'127.0.0.1:{}'", relay.port())).collect();
    let node = format!("{{sentinels: [{}], master: {MASTER}}}", all.join(", "));
    let proxy = before(&[node]).start();
    all_up(&proxy, 1);
    let mut client = proxy.client();
    client.cmd(&["LOCK", "k", "a", "PX", "60000"]).grant();
    let nobody = lockgate::tools::free_port::free_port().unwrap();
    let lead = |count: usize, to: fn(&Watched, usize) -> Option<u16>| {
        for (index, relay) in relays.iter().enumerate().take(count) {
            relay.move_to(to(&watched, index).unwrap_or(nobody));
        }
    };
    let sentinel = |watched: &Watched, index: usize| Some(watched.sentinels[index].port());
    // The master still answers, but a replica may have been promoted.
    lead(2, |_, _| None);
    let reason = "not confirmed by its Sentinels: 2 of 3 Sentinels must name one master";
    eventually("nothing is granted", || client.cmd(&["LOCK", "l"]).error_text().contains(reason));
    for command in [&["RENEW", "k", "a", "PX", "50000"][..], &["LOCK", "k", "a", "PX", "5000"]] {
        let reply = client.cmd(command);
        assert!(reply.error_text().starts_with("NOQUORUM"), "{command:?}: {reply:?}");
    }
    let page = proxy.http("/readyz");
    assert!(page.starts_with("HTTP/1.1 503") && page.contains(reason), "{page}");
    eventually("it is counted", || unconfirmed(&proxy) == 1.0);
    // A lock can be given back all the same.
    assert_eq!(client.cmd(&["UNLOCK", "k", "a"]), Reply::Int(1));
    lead(2, sentinel);
    eventually("locks are granted again", || matches!(client.cmd(&["LOCK", "m"]), Reply::Array(_)));
    eventually("it is counted", || unconfirmed(&proxy) == 0.0);
    assert!(proxy.log().contains("the Sentinels confirm this lock node again"));
}

#[test]
fn what_is_held_stays_held_while_one_of_three_nodes_fails_over() {
    let mut watched = Watched::start(&[]);
    let others = [RedisServer::start(&[]).unwrap(), RedisServer::start(&[]).unwrap()];
    let nodes = [watched.data(""), others[0].url(), others[1].url()];
    let proxy = before(&nodes).locks("max_ttl: 4s").start();
    all_up(&proxy, 3);
    watched.hold_replication();
    let mut holder = proxy.client();
    holder.cmd(&["LOCK", "k"]).grant();
    watched.master.kill().unwrap();
    // A promotion ends the connections to the replica.
    waits(&proxy);
    eventually("the lock is put back on the promoted replica, which waits", || {
        watched.replica_client().cmd(&["EXISTS", "lock:k"]) == Reply::Int(1)
    });
    all_up(&proxy, 3);
    assert_eq!(proxy.client().cmd(&["LOCK", "k"]), Reply::NullArray);
    assert_eq!(holder.cmd(&["UNLOCK", "k"]), Reply::Int(1), "it was never lost");
    let stored = |port| Client::connect(port).cmd(&["EXISTS", "lock:k"]);
    eventually("it is free", || stored(watched.replica.port()) == Reply::Int(0));
}

#[test]
fn a_lock_outlives_a_failover_by_hand() {
    let watched = Watched::start(&[]);
    let proxy = before(&[watched.data("")]).locks("max_ttl: 20s").start();
    all_up(&proxy, 1);
    let mut client = proxy.client();
    client.cmd(&["LOCK", "k", "a", "PX", "20000"]).grant();
    watched.fail_over();
    waits(&proxy);
    let refused = client.cmd(&["LOCK", "k", "b"]);
    assert!(refused.error_text().starts_with("NOQUORUM"), "{refused:?}");
    let stored = watched.replica_client().cmd(&["GET", "lock:k"]);
    assert_eq!(stored, Reply::bulk("a"));
}

/// Whether the lock's TTL on the former replica is longer than it would be without a renewal since `since`.
fn is_renewed(watched: &Watched, key: &str, ttl: Duration, since: Instant) -> bool {
    let left = watched.replica_client().cmd(&["PTTL", key]);
    let before = ttl.saturating_sub(since.elapsed());
    matches!(left, Reply::Int(left) if Duration::from_millis(left.max(0) as u64) > before)
}

#[test]
fn session_locks_outlive_the_failover_of_the_only_node() {
    const TTL: Duration = Duration::from_secs(24);
    let mut watched = Watched::start(&[]);
    let proxy = Proxy::with()
        .node_urls(&[watched.data("")])
        .locks("default_ttl: 24s")
        .locks("max_ttl: 24s")
        .locks("node_timeout: 400ms")
        .start();
    all_up(&proxy, 1);
    let mut holder = proxy.client();
    holder.cmd(&["LOCK", "replicated", "a"]).grant();
    eventually("it is replicated", || {
        watched.replica_client().cmd(&["EXISTS", "lock:replicated"]) == Reply::Int(1)
    });
    watched.hold_replication();
    holder.cmd(&["LOCK", "lost", "b"]).grant();
    let mut lease = proxy.client();
    lease.cmd(&["LOCK", "lease", "c", "PX", "24000"]).grant();
    let since = Instant::now();
    watched.master.kill().unwrap();
    waits(&proxy);
    for key in ["lock:replicated", "lock:lost"] {
        eventually("it is renewed on the promoted replica", || {
            is_renewed(&watched, key, TTL, since + TTL / 2)
        });
    }
    eventually("the lease is put back", || {
        watched.replica_client().cmd(&["GET", "lock:lease"]) == Reply::bulk("c")
    });
    let refused = proxy.client().cmd(&["LOCK", "another"]);
    assert!(refused.error_text().contains("locks that are still held"), "{refused:?}");
    assert!(matches!(lease.cmd(&["RENEW", "lease", "c", "PX", "24000"]), Reply::Int(1..)));
    eventually("the promoted replica votes", || {
        matches!(proxy.client().cmd(&["LOCK", "another", "PX", "1000"]), Reply::Array(_))
    });
    for (key, token) in [("replicated", "a"), ("lost", "b")] {
        assert_eq!(proxy.client().cmd(&["LOCK", key]), Reply::NullArray);
        assert_eq!(holder.cmd(&["UNLOCK", key, token]), Reply::Int(1), "it was never lost");
    }
    assert_eq!(lease.cmd(&["UNLOCK", "lease", "c"]), Reply::Int(1));
}

#[test]
fn a_promoted_replica_alone_says_nothing_of_locks_that_the_proxy_does_not_know() {
    let watched = Watched::start(&[]);
    let with = || before(&[watched.data("")]).locks("max_ttl: 60s").start();
    let (proxy, other) = (with(), with());
    all_up(&proxy, 1);
    all_up(&other, 1);
    let mut holders = [proxy.client(), other.client()];
    for (holder, key) in holders.iter_mut().zip(["k", "l"]) {
        holder.cmd(&["LOCK", key, "a", "PX", "60000"]).grant();
    }
    let since = Instant::now();
    watched.fail_over();
    for proxy in [&proxy, &other] {
        waits(proxy);
    }
    // Each proxy keeps what it knows to be valid, once the former master would no longer grant anything.
    for (holder, key) in holders.iter_mut().zip(["k", "l"]) {
        let renew = ["RENEW", key, "a", "PX", "50000"];
        eventually("its own lease is renewed", || matches!(holder.cmd(&renew), Reply::Int(1..)));
    }
    assert!(since.elapsed() >= Duration::from_secs(5), "another proxy could still use the master");
    let renew = ["RENEW", "k", "a", "PX", "50000"];
    let commands = [&renew[..], &["LOCK.ATTACH", "k", "a"], &["LOCK", "k", "a", "PX", "5000"]];
    for command in commands {
        let reply = other.client().cmd(command);
        assert!(reply.error_text().starts_with("NOQUORUM"), "{command:?}: {reply:?}");
    }
    assert_eq!(other.client().cmd(&["UNLOCK", "k", "a"]), Reply::Int(1));
}

/// A master may be elected again without having heard of the one in between. It then has everything that proves its
/// votes.
#[test]
fn a_master_that_is_elected_again_waits() {
    let master = RedisServer::start(&[]).unwrap();
    let elected = |election: u32| {
        let line = format!("sentinel config-epoch {MASTER} {election}");
        Sentinel::start(master.port(), 1, &line)
    };
    let (first, again) = (elected(0), elected(2));
    let relay = Relay::to(first.port());
    let node = format!("{{sentinels: ['127.0.0.1:{}'], master: {MASTER}}}", relay.port());
    let proxy = before(&[node]).locks("max_ttl: 4s").start();
    all_up(&proxy, 1);
    let mut client = proxy.client();
    client.cmd(&["LOCK", "k", "a", "PX", "3000"]).grant();
    relay.move_to(again.port());
    waits(&proxy);
    let refused = client.cmd(&["LOCK", "l", "b"]);
    assert!(refused.error_text().starts_with("NOQUORUM"), "{refused:?}");
    eventually("it votes", || matches!(client.cmd(&["LOCK", "l", "b"]), Reply::Array(_)));
}
