//! How proxies hear of releases through each other where the lock node is a Redis Cluster: from the shard
//! that has the lock's slot, wherever that is.

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

/// Before these lock nodes.
fn before(nodes: &[String]) -> Setup {
    Proxy::with().node_urls(nodes).locks("node_timeout: 400ms")
}

/// Two proxies before the same nodes, which are up.
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

/// A client that waits for the lock at `key`.
fn waiting(proxy: &Proxy, key: &str) -> Client {
    let (mut client, before) = (proxy.client(), proxy.waiters());
    client.send(&encode(&["LOCK", key, "PX", "5000", "WAIT", "0"]));
    eventually("it waits", || proxy.waiters() == before + 1);
    client
}

/// The number of proxies that a node tells of the releases of the lock at `key`.
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

/// Has `holder` release the lock for which somebody waits through the other proxy.
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
    // A waiter looks for itself too, and may have been about to.
    let messages = second.metric("lockgate_wakeups_total", "message");
    assert!(messages >= rounds / 2.0, "{messages} of {rounds}");
    eventually("nobody is told for ever", || {
        cluster.nodes.iter().all(|node| listeners(node, "*") == 0)
    });
}

/// PUBSUB NUMSUB would count on the wrong node.
#[test]
fn a_hand_over_at_a_cluster_knows_that_another_proxy_waits() {
    let cluster = Cluster::start(3);
    let [first, second] = two(before(&[cluster.voter()]).locks("max_handovers: 1000000"));
    let key = cluster.key(1, "k");
    let mut holder = first.client();
    holder.cmd(&["LOCK", &key, "PX", "60000"]).grant();
    let mut other = waiting(&second, &key);
    eventually("its shard will tell", || listeners(&cluster.nodes[1], &key) == 1);
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

#[test]
fn whoever_waits_while_a_slot_is_moved_is_told_where_it_is_then() {
    let cluster = Cluster::start(3);
    let [first, second] = two(before(&[cluster.voter()]));
    let key = cluster.key(0, "k");
    let mut holder = first.client();
    holder.cmd(&["LOCK", &key, "PX", "60000"]).grant();
    let mut waiter = waiting(&second, &key);
    eventually("its shard will tell", || listeners(&cluster.nodes[0], &key) == 1);
    cluster.move_slot(&format!("lock:{key}"), 0, 1, |_| {});
    eventually("the shard that has it now will tell", || listeners(&cluster.nodes[1], &key) == 1);
    assert_eq!(listeners(&cluster.nodes[0], &key), 0);
    eventually("the other proxy knows too", || {
        first.client().cmd(&["LOCK", &key, "PX", "5000"]) == Reply::NullArray
    });
    told(&mut holder, &key, &mut waiter);
}

#[test]
fn whoever_waits_while_its_shard_fails_over_is_told_by_the_promoted_master() {
    let cluster = Cluster::start(3).node_timeout(2000);
    let limits = "default_ttl: 9s\n  max_ttl: 9s";
    let [first, second] = two(before(&[cluster.voter()]).locks(limits));
    let key = cluster.key(0, "k");
    let mut holder = first.client();
    holder.cmd(&["LOCK", &key]).grant();
    let mut waiter = waiting(&second, &key);
    eventually("its shard will tell", || listeners(&cluster.nodes[0], &key) == 1);
    assert_eq!(cluster.client(3).cmd(&["CLUSTER", "FAILOVER"]), Reply::ok());
    eventually("the promoted master will tell", || listeners(&cluster.nodes[3], &key) == 1);
    drop(holder);
    waiter.reply().grant();
}

#[test]
fn a_message_of_a_shard_that_never_comes_costs_time_only() {
    let cluster = Cluster::start(3);
    let [first, second] = two(before(&[cluster.voter()]));
    let key = cluster.key(2, "k");
    first.client().cmd(&["LOCK", &key, "h", "PX", "60000"]).grant();
    let mut waiter = waiting(&second, &key);
    eventually("its shard will tell", || listeners(&cluster.nodes[2], &key) == 1);
    // Nobody tells of this release.
    let lock = format!("lock:{key}");
    assert_eq!(cluster.client(2).cmd(&["DEL", &lock]), Reply::Int(1));
    waiter.reply().grant();
}

#[test]
fn a_cluster_that_refuses_channels_costs_time_only() {
    let cluster = Cluster::start(2);
    let user = "ACL SETUSER locker on >secret ~* resetchannels -@all +evalsha +script|load +get +set \
                +del +pttl +pexpire +select +ping +info +cluster|nodes";
    let words: Vec<&str> = user.split_whitespace().collect();
    for index in 0..cluster.nodes.len() {
        assert_eq!(cluster.client(index).cmd(&words), Reply::ok());
    }
    let voter = cluster.data(", shards: 4, username: locker, password: secret");
    let [first, second] = two(before(&[voter]));
    let mut holder = first.client();
    holder.cmd(&["LOCK", "k", "PX", "60000"]).grant();
    let mut waiters = [waiting(&first, "k"), waiting(&second, "k")];
    assert_eq!(holder.cmd(&["UNLOCK", "k"]), Reply::Int(1));
    waiters[0].reply().grant();
    assert_eq!(waiters[0].cmd(&["UNLOCK", "k"]), Reply::Int(1));
    waiters[1].reply().grant();
    assert_eq!(waiters[1].cmd(&["UNLOCK", "k"]), Reply::Int(1));
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
