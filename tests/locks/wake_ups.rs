//! How a proxy hears of releases through another one where the lock node is a Redis Cluster: from the shard that has
//! the lock's slot, wherever that is.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use lockgate::tools::redis_server::RedisServer;

use crate::support::{
    Client, Proxy, Reply, Setup,
    cluster::{Cluster, text},
    encode, eventually,
};

/// Both ways of notifying.
const NOTIFY: [&str; 2] = ["notify: pubsub", "notify: stream"];

/// Sets up a proxy with these lock nodes.
fn before(nodes: &[String]) -> Setup {
    Proxy::with().node_urls(nodes).locks("node_timeout: 400ms")
}

/// Starts two proxies with the same nodes, and waits until these are up.
fn two(setup: Setup) -> [Proxy; 2] {
    let first = setup.start();
    let second = Proxy::beside(&first).unready().start();
    for proxy in [&first, &second] {
        eventually("all voters are up", || proxy.nodes_up() >= 1 && is_ready(proxy));
    }
    [first, second]
}

fn is_ready(proxy: &Proxy) -> bool {
    proxy.http("/readyz").starts_with("HTTP/1.1 200")
}

/// Returns a client that waits for the lock at `key`.
fn waiting(proxy: &Proxy, key: &str) -> Client {
    let (mut client, before) = (proxy.client(), proxy.waiters());
    client.send(&encode(&["LOCK", key, "PX", "5000", "WAIT", "0"]));
    eventually("it waits", || proxy.waiters() == before + 1);
    client
}

/// The number of proxies to which a node publishes releases of the lock at `key`.
fn listeners(node: &RedisServer, key: &str) -> i64 {
    let mut client = Client::connect(node.port());
    let pattern = format!("lockgate:free:*:lock:{}", key.replace(['[', ']'], "?"));
    let Reply::Array(channels) = client.cmd(&["PUBSUB", "SHARDCHANNELS", &pattern]) else {
        panic!("no channels")
    };
    let count = |channel: &Reply| match client.cmd(&["PUBSUB", "SHARDNUMSUB", &text(channel)]) {
        Reply::Array(all) => match all[1] {
            Reply::Int(count) => count,
            _ => panic!("{all:?}"),
        },
        other => panic!("{other:?}"),
    };
    channels.iter().map(count).sum()
}

/// The number of proxies that hear from a node of releases of the lock at `key`, or by a stream of any lock.
fn hearing(node: &RedisServer, key: &str) -> i64 {
    listeners(node, key) + blocked(node)
}

/// The number of connections that wait for an entry of a stream.
fn blocked(node: &RedisServer) -> i64 {
    let told = text(&Client::connect(node.port()).cmd(&["INFO", "clients"]));
    let line = told.lines().find_map(|line| line.strip_prefix("blocked_clients:"));
    line.and_then(|count| count.trim().parse().ok()).expect("a number")
}

/// Makes `holder` release the lock for which `waiter` waits through the other proxy.
fn told(holder: &mut Client, key: &str, waiter: &mut Client) {
    assert_eq!(holder.cmd(&["UNLOCK", key]), Reply::Int(1));
    waiter.reply().grant();
    assert_eq!(waiter.cmd(&["UNLOCK", key]), Reply::Int(1));
}

#[test]
fn the_shard_of_a_lock_tells_of_its_release_and_no_other_node_does() {
    let cluster = Cluster::start(3);
    let [first, second] = two(before(&[cluster.voter()]));
    let mut holder = first.client();
    let mut rounds = 0.0;
    for (shard, name) in [(0, "a"), (1, "b"), (2, "c"), (0, "d"), (1, "e"), (2, "f")] {
        let key = cluster.key(shard, name);
        holder.cmd(&["LOCK", &key, "PX", "60000"]).grant();
        let mut waiter = waiting(&second, &key);
        let tells = |shard: usize| listeners(&cluster.nodes[shard], &key);
        eventually("its shard will tell", || tells(shard) == 1);
        assert_eq!((tells((shard + 1) % 3), tells((shard + 2) % 3)), (0, 0));
        told(&mut holder, &key, &mut waiter);
        rounds += 1.0;
        for node in &cluster.nodes {
            let plain = Client::connect(node.port()).cmd(&["PUBSUB", "CHANNELS"]);
            assert_eq!(plain, Reply::Array(Vec::new()), "a plain message goes to all nodes");
        }
    }
    // A waiter also looks for itself, and may have been about to.
    let messages = second.metric("lockgate_wakeups_total", "message");
    assert!(messages >= rounds / 2.0, "{messages} of {rounds}");
    eventually("nobody is told for ever", || {
        cluster.nodes.iter().all(|node| listeners(node, "*") == 0)
    });
}

/// PUBSUB NUMSUB would count on the wrong node.
#[test]
#[ignore = "takes long: make long"]
fn a_hand_over_at_a_cluster_knows_that_another_proxy_waits() {
    for notify in NOTIFY {
        let cluster = Cluster::start(3);
        let setup = before(&[cluster.voter()]).locks(notify).locks("max_handovers: 1000000");
        let [first, second] = two(setup);
        let key = cluster.key(1, "k");
        let mut holder = first.client();
        holder.cmd(&["LOCK", &key, "PX", "60000"]).grant();
        let mut other = waiting(&second, &key);
        eventually("its shard will tell", || hearing(&cluster.nodes[1], &key) == 1);
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let mut client = first.client();
                    while !stop.load(Ordering::Relaxed) {
                        client.cmd(&["LOCK", &key, "PX", "60000", "WAIT", "20000"]).grant();
                        assert_eq!(client.cmd(&["UNLOCK", &key]), Reply::Int(1));
                    }
                });
            }
            eventually("they wait", || first.waiters() == 3);
            assert_eq!(holder.cmd(&["UNLOCK", &key]), Reply::Int(1));
            other.reply().grant();
            stop.store(true, Ordering::Relaxed);
            assert_eq!(other.cmd(&["UNLOCK", &key]), Reply::Int(1));
        });
        let handed = first.metric("lockgate_handovers_total", "");
        assert!(handed < 10.0, "{handed} hand-overs before the other proxy had its turn");
    }
}

#[test]
#[ignore = "takes long: make long"]
fn whoever_waits_while_a_slot_is_moved_is_told_where_it_is_then() {
    for notify in NOTIFY {
        let cluster = Cluster::start(3);
        let [first, second] = two(before(&[cluster.voter()]).locks(notify));
        let key = cluster.key(0, "k");
        let mut holder = first.client();
        holder.cmd(&["LOCK", &key, "PX", "60000"]).grant();
        let mut waiter = waiting(&second, &key);
        eventually("its shard will tell", || hearing(&cluster.nodes[0], &key) == 1);
        cluster.move_slot(&format!("lock:{key}"), 0, 1, |_| {});
        eventually("the shard that has it now will tell", || hearing(&cluster.nodes[1], &key) == 1);
        assert_eq!(listeners(&cluster.nodes[0], &key), 0);
        eventually("the other proxy knows too", || {
            first.client().cmd(&["LOCK", &key, "PX", "5000"]) == Reply::NullArray
        });
        told(&mut holder, &key, &mut waiter);
    }
}

#[test]
#[ignore = "takes long: make long"]
fn whoever_waits_while_its_shard_fails_over_is_told_by_the_promoted_master() {
    for notify in NOTIFY {
        let cluster = Cluster::start(3).node_timeout(2000);
        let limits = "default_ttl: 9s\n  max_ttl: 9s";
        let [first, second] = two(before(&[cluster.voter()]).locks(notify).locks(limits));
        let key = cluster.key(0, "k");
        let mut holder = first.client();
        holder.cmd(&["LOCK", &key]).grant();
        let mut waiter = waiting(&second, &key);
        eventually("its shard will tell", || hearing(&cluster.nodes[0], &key) == 1);
        assert_eq!(cluster.client(3).cmd(&["CLUSTER", "FAILOVER"]), Reply::ok());
        eventually("the promoted master will tell", || hearing(&cluster.nodes[3], &key) == 1);
        drop(holder);
        waiter.reply().grant();
    }
}

#[test]
#[ignore = "takes long: make long"]
fn a_message_of_a_shard_that_never_comes_costs_time_only() {
    for notify in NOTIFY {
        let cluster = Cluster::start(3);
        let [first, second] = two(before(&[cluster.voter()]).locks(notify));
        let key = cluster.key(2, "k");
        first.client().cmd(&["LOCK", &key, "h", "PX", "60000"]).grant();
        let mut waiter = waiting(&second, &key);
        eventually("its shard will tell", || hearing(&cluster.nodes[2], &key) == 1);
        // No message tells of this release.
        let lock = format!("lock:{key}");
        assert_eq!(cluster.client(2).cmd(&["DEL", &lock]), Reply::Int(1));
        waiter.reply().grant();
    }
}

#[test]
#[ignore = "takes long: make long"]
fn a_cluster_that_refuses_channels_costs_time_only() {
    for notify in NOTIFY {
        let cluster = Cluster::start(2);
        let user = "ACL SETUSER locker on >secret ~* resetchannels -@all +evalsha +script|load +get +set \
                +del +pttl +pexpire +select +ping +info +cluster|nodes";
        let words: Vec<&str> = user.split_whitespace().collect();
        for index in 0..cluster.nodes.len() {
            assert_eq!(cluster.client(index).cmd(&words), Reply::ok());
        }
        let voter = cluster.data(", shards: 4, username: locker, password: secret");
        let [first, second] = two(before(&[voter]).locks(notify));
        let mut holder = first.client();
        holder.cmd(&["LOCK", "k", "PX", "60000"]).grant();
        let waiters = [waiting(&first, "k"), waiting(&second, "k")];
        assert_eq!(holder.cmd(&["UNLOCK", "k"]), Reply::Int(1));
        // No waiter is told: the first is the one that asks next, through either proxy.
        thread::scope(|scope| {
            for mut waiter in waiters {
                scope.spawn(move || {
                    waiter.reply().grant();
                    assert_eq!(waiter.cmd(&["UNLOCK", "k"]), Reply::Int(1));
                });
            }
        });
    }
}

/// Beside a cluster, all nodes name channels as its shards do.
#[test]
fn a_cluster_and_other_nodes_tell_together() {
    let cluster = Cluster::start(2);
    let others = [RedisServer::start(&[]).unwrap(), RedisServer::start(&[]).unwrap()];
    let nodes = [others[0].url(), cluster.voter(), others[1].url()];
    let [first, second] = two(before(&nodes));
    let key = cluster.key(1, "k");
    let all = [&others[0], &cluster.nodes[1], &others[1]];
    let mut holder = first.client();
    for _ in 0..10 {
        holder.cmd(&["LOCK", &key, "PX", "60000"]).grant();
        let mut waiter = waiting(&second, &key);
        eventually("all voters will tell", || all.iter().all(|node| listeners(node, &key) == 1));
        told(&mut holder, &key, &mut waiter);
    }
    let messages = second.metric("lockgate_wakeups_total", "message");
    assert!(messages >= 5.0, "{messages} of 10");
}

/// Starts two proxies that notify each other by streams, with these further settings.
fn streaming(cluster: &Cluster, more: &str) -> [Proxy; 2] {
    let locks = format!("notify: stream{more}");
    two(before(&[cluster.voter()]).locks(&locks))
}

/// The number of proxies that read the stream of the lock at `key` on a node.
fn readers(node: &RedisServer, key: &str) -> i64 {
    let mut client = Client::connect(node.port());
    let Reply::Array(streams) = client.cmd(&["KEYS", &format!("lockgate:wake:*:lock:{key}")])
    else {
        panic!("no keys")
    };
    let Some(stream) = streams.first() else { return 0 };
    match client.cmd(&["XINFO", "CONSUMERS", &text(stream), "lockgate"]) {
        Reply::Array(all) => all.len() as i64,
        _ => 0,
    }
}

/// Waits until one of the clients is granted the lock. Returns its index.
fn granted_one(waiters: &mut [Client]) -> usize {
    let mut next = None;
    eventually("one is granted the lock", || {
        next = waiters.iter().position(|waiter| {
            waiter.socket().set_nonblocking(true).expect("mode");
            let has_reply = waiter.socket().peek(&mut [0; 1]).is_ok();
            waiter.socket().set_nonblocking(false).expect("mode");
            has_reply
        });
        next.is_some()
    });
    let next = next.expect("one");
    waiters[next].reply().grant();
    next
}

#[test]
fn a_release_told_by_a_stream_wakes_one_proxy() {
    let cluster = Cluster::start(3);
    let [first, second] = streaming(&cluster, "");
    let third = Proxy::beside(&first).unready().start();
    eventually("it is ready", || is_ready(&third));
    let mut holder = first.client();
    let rounds = 10;
    for round in 0..rounds {
        let (shard, name) = (round % 3, format!("k{round}"));
        let key = cluster.key(shard, &name);
        holder.cmd(&["LOCK", &key, "PX", "60000"]).grant();
        let mut waiters = [waiting(&second, &key), waiting(&third, &key)];
        eventually("two read", || readers(&cluster.nodes[shard], &key) == 2);
        assert_eq!(holder.cmd(&["UNLOCK", &key]), Reply::Int(1));
        for _ in 0..2 {
            let next = granted_one(&mut waiters);
            assert_eq!(waiters[next].cmd(&["UNLOCK", &key]), Reply::Int(1));
        }
    }
    let messages: f64 = [&second, &third]
        .map(|proxy| proxy.metric("lockgate_wakeups_total", "message"))
        .iter()
        .sum();
    // A waiter also looks for itself, and may have been about to.
    assert!((rounds as f64..=2.0 * rounds as f64).contains(&messages), "{messages}");
    eventually("no stream is left", || {
        cluster.nodes.iter().all(|node| {
            Client::connect(node.port()).cmd(&["KEYS", "lockgate:wake:*"])
                == Reply::Array(Vec::new())
        })
    });
}

/// The proxy that gives the lock back has waited the longest, so it gets the entry that it wrote itself.
#[test]
fn a_proxy_that_reads_its_own_word_passes_it_on() {
    let cluster = Cluster::start(3);
    let [first, second] = streaming(&cluster, "\n  max_handovers: 0");
    let key = cluster.key(1, "k");
    let mut holder = first.client();
    holder.cmd(&["LOCK", &key, "PX", "60000"]).grant();
    let mut own = waiting(&first, &key);
    eventually("one reads", || readers(&cluster.nodes[1], &key) == 1);
    let mut other = waiting(&second, &key);
    eventually("two read", || readers(&cluster.nodes[1], &key) == 2);
    let told = second.metric("lockgate_wakeups_total", "message");
    assert_eq!(holder.cmd(&["UNLOCK", &key]), Reply::Int(1));
    eventually("it is told", || second.metric("lockgate_wakeups_total", "message") > told);
    for client in [&mut own, &mut other] {
        // Each UNLOCK is carried out once the lock is granted.
        client.send(&encode(&["UNLOCK", &key]));
    }
    for client in [&mut own, &mut other] {
        client.reply().grant();
        assert_eq!(client.reply(), Reply::Int(1));
    }
}

#[test]
fn a_proxy_that_dies_when_it_is_woken_loses_its_turn_to_the_next() {
    let cluster = Cluster::start(3);
    let [first, mut second] = streaming(&cluster, "");
    let third = Proxy::beside(&first).unready().start();
    eventually("it is ready", || is_ready(&third));
    let key = cluster.key(1, "k");
    let shard = &cluster.nodes[1];
    let mut holder = first.client();
    holder.cmd(&["LOCK", &key, "PX", "60000"]).grant();
    let _lost = waiting(&second, &key);
    eventually("one reads", || readers(shard, &key) == 1);
    // It is the only proxy that waits for an entry when it is stopped.
    eventually("it reads", || blocked(shard) == 1);
    second.freeze();
    let mut next = waiting(&third, &key);
    eventually("two read", || readers(shard, &key) == 2);
    assert_eq!(holder.cmd(&["UNLOCK", &key]), Reply::Int(1));
    second.kill();
    next.reply().grant();
    assert_eq!(next.cmd(&["UNLOCK", &key]), Reply::Int(1));
    // A proxy that goes on waiting removes the dead one.
    holder.cmd(&["LOCK", &key, "PX", "60000"]).grant();
    let _waits = waiting(&third, &key);
    eventually("the dead one is forgotten", || readers(shard, &key) == 1);
}

#[test]
#[ignore = "takes long: make long"]
fn locks_that_many_wait_for_take_a_bounded_part_of_a_cluster() {
    let cluster = Cluster::start(1);
    let [first, second] = streaming(&cluster, "");
    let keys: Vec<String> = (0..150).map(|number| format!("k{number}")).collect();
    let (mut holder, shard) = (first.client(), &cluster.nodes[0]);
    let mut waiters = Vec::new();
    for key in &keys {
        holder.cmd(&["LOCK", key, "PX", "60000"]).grant();
        waiters.push(waiting(&second, key));
    }
    eventually("as many are read as may be", || blocked(shard) == 64);
    let mut client = Client::connect(shard.port());
    let Reply::Array(streams) = client.cmd(&["KEYS", "lockgate:wake:*"]) else { panic!("no keys") };
    assert!(streams.len() <= 64, "{}", streams.len());
    for (key, waiter) in keys.iter().zip(&mut waiters) {
        told(&mut holder, key, waiter);
    }
    // The same streams are used again and again, and hold one entry.
    for _ in 0..50 {
        holder.cmd(&["LOCK", "k0", "PX", "60000"]).grant();
        told(&mut holder, "k0", &mut waiting(&second, "k0"));
        let Reply::Array(streams) = client.cmd(&["KEYS", "lockgate:wake:*:lock:k0"]) else {
            panic!("no keys")
        };
        for stream in &streams {
            let length = client.cmd(&["XLEN", &text(stream)]);
            assert!(matches!(length, Reply::Int(0 | 1)), "{length:?}");
            let left = client.cmd(&["PTTL", &text(stream)]);
            assert!(matches!(left, Reply::Int(1..=10_000)), "{left:?}");
        }
    }
}
