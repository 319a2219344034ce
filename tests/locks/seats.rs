//! Seats of a cluster's shards: a promoted replica has its master's seat, all proxies agree upon the seats, and
//! another number of them is another deployment.

use std::{
    thread,
    time::{Duration, Instant},
};

use lockgate::tools::redis_server::RedisServer;

use crate::support::{self, Client, Proxy, Reply, Setup, cluster::Cluster, eventually};

/// Sets up a proxy with this cluster alone, whose promoted replicas need not wait for long.
fn before(voter: &str) -> Setup {
    let locks = Proxy::with().node_urls(&[voter.to_owned()]).locks("node_timeout: 400ms");
    locks.locks("max_ttl: 5s").locks("default_ttl: 4s")
}

fn is_granted(client: &mut Client, key: &str) -> bool {
    matches!(client.cmd(&["LOCK", key, "PX", "1000"]), Reply::Array(_))
}

/// Counts the epochs that a proxy has learned.
fn epochs(proxy: &Proxy) -> usize {
    proxy.log().matches("the lock nodes' epoch").count()
}

#[test]
#[ignore = "takes long: make long"]
fn who_is_promoted_has_its_masters_seat_in_all_proxies() {
    let mut cluster = Cluster::start(3).node_timeout(1500);
    let proxy = before(&cluster.voter()).start();
    let key = cluster.key(0, "k");
    eventually("locks are granted", || is_granted(&mut proxy.client(), &key));
    cluster.nodes[0].kill().unwrap();
    eventually("the replica is promoted", || {
        cluster.text(3, &["INFO", "replication"]).contains("role:master")
    });
    // The promoted node has no marker, which would tell its seat to a proxy that has not seen it as a replica.
    assert_eq!(cluster.client(3).cmd(&["FLUSHALL"]), Reply::ok());
    let beside = before(&cluster.voter()).uninitialised().unready().start();
    for (name, proxy) in [("one", &proxy), ("other", &beside)] {
        eventually(&format!("locks are granted by the {name}: {}", proxy.http("/readyz")), || {
            is_granted(&mut proxy.client(), &key)
        });
    }
    let log = proxy.log();
    assert!(!log.contains("\"shard\":4"), "it is no new shard: {log}");
    // They do not overthrow each other's epochs, which the questions that they ask twice a second would do.
    let before = [&proxy, &beside].map(epochs);
    thread::sleep(Duration::from_secs(3));
    assert_eq!([&proxy, &beside].map(epochs), before, "all agree");
}

#[test]
#[ignore = "takes long: make long"]
fn another_number_of_shards_is_another_deployment() {
    let cluster = Cluster::start(3);
    let proxy = before(&cluster.voter()).start();
    let keys: Vec<String> = (0..3).map(|index| cluster.key(index, "k")).collect();
    let mut holder = proxy.client();
    for key in &keys {
        eventually("the lock is granted", || matches!(holder.cmd(&["LOCK", key]), Reply::Array(_)));
    }
    for shards in ["shards: 5", "shards: 7"] {
        let other = before(&cluster.voter().replace("shards: 6", shards)).unready().start();
        let mut client = other.client();
        let reason =
            "shards 1, 2, 3: its marker is of a deployment with seats 6+ and prefix 'lock:'";
        eventually(&format!("all shards refuse: {}", other.http("/readyz")), || {
            other.http("/readyz").contains(reason)
        });
        let last = Instant::now() + Duration::from_secs(5);
        while Instant::now() < last {
            for key in &keys {
                let reply = client.cmd(&["LOCK", key, "PX", "1000"]);
                assert!(reply.error_text().starts_with("NOQUORUM"), "{reply:?}");
            }
            thread::sleep(Duration::from_millis(50));
        }
    }
    for key in &keys {
        assert_eq!(holder.cmd(&["UNLOCK", key]), Reply::Int(1), "{key} was held all the time");
    }
}

#[test]
#[ignore = "takes long: make long"]
fn a_cluster_in_another_place_of_the_list_refuses() {
    let cluster = Cluster::start(3).node_timeout(1500);
    let [one, two] = [0, 1].map(|_| RedisServer::start(&[]).unwrap());
    let entries = [one.url(), cluster.voter(), two.url()];
    let in_order = |order: [usize; 3]| {
        let nodes = order.map(|at| entries[at].clone());
        let locks = Proxy::with().node_urls(&nodes).locks("node_timeout: 400ms").unready();
        locks.locks("max_ttl: 5s").locks("default_ttl: 4s")
    };
    let proxy = in_order([0, 1, 2]).start();
    let mut holder = proxy.client();
    eventually("the lock is granted", || {
        matches!(holder.cmd(&["LOCK", "k", "PX", "5000"]), Reply::Array(_))
    });
    for order in [[0, 2, 1], [1, 0, 2]] {
        let other = in_order(order).uninitialised().start();
        let reason = "all proxies need the same locks.nodes in the same order";
        eventually("what differs is told", || other.http("/readyz").contains(reason));
        // The time for which it would wait for nodes that have forgotten, or for a shard that is gone.
        let last = Instant::now() + Duration::from_secs(18);
        while Instant::now() < last {
            let reply = other.client().cmd(&["LOCK", "k", "PX", "1000"]);
            assert!(reply.error_text().starts_with("NOQUORUM"), "{reply:?}");
            thread::sleep(Duration::from_millis(100));
        }
    }
    eventually("the lock is granted again", || {
        matches!(holder.cmd(&["LOCK", "k", "PX", "1000"]), Reply::Array(_))
    });
}

#[test]
#[ignore = "takes long: make long"]
fn a_shard_that_gets_slots_while_it_waits_is_admitted_by_all() {
    let cluster = Cluster::start(3).node_timeout(1500);
    let proxy = before(&cluster.voter()).start();
    let key = cluster.key(0, "k");
    eventually("locks are granted", || is_granted(&mut proxy.client(), &key));
    let beside = before(&cluster.voter()).uninitialised().unready().start();
    eventually("by both", || is_granted(&mut beside.client(), &key));
    assert_eq!(cluster.client(0).cmd(&["FLUSHALL"]), Reply::ok());
    eventually("it waits", || proxy.http("/readyz").contains(": waits "));
    thread::sleep(Duration::from_secs(1));
    // Higher slots, where its marker would be looked for if it did not lie elsewhere.
    let mut asked = cluster.client(0);
    for slot in [10_928, 11_200] {
        let slot = Reply::Int(slot);
        let numbers = (0..200_000).map(|number| number.to_string());
        let inside =
            numbers.into_iter().find(|key| asked.cmd(&["CLUSTER", "KEYSLOT", key]) == slot);
        cluster.move_slot(&inside.unwrap(), 2, 0, |_| {});
        // The first slot changes the node's epoch, so that it is inspected again; the next slots do not.
        thread::sleep(Duration::from_secs(2));
    }
    for (name, proxy) in [("one", &proxy), ("other", &beside)] {
        eventually(&format!("locks are granted by the {name}: {}", proxy.http("/readyz")), || {
            is_granted(&mut proxy.client(), &key)
        });
    }
}

#[test]
#[ignore = "takes long: make long"]
fn a_deployment_is_begun_by_a_whole_cluster_alone() {
    let (cluster, other) = (Cluster::start(3), Cluster::start(1));
    let with = |entry: u16| cluster.voter().replace(']', &format!(", '127.0.0.1:{entry}']"));
    let init = |voter: &str| {
        let listen = "listen: 127.0.0.1:1\nadmin: off\ndata: redis://127.0.0.1:2\n";
        support::init(&format!("{listen}locks: {{nodes: [\"{voter}\"]}}\n").replace('"', ""), &[])
    };
    let dead = lockgate::tools::free_port::free_port().unwrap();
    for (voter, what) in [
        (cluster.voter().replace("shards: 6", "shards: 2"), "it has 3 shards; shards is 2"),
        (with(dead), "Connection refused"),
        (with(other.nodes[0].port()), "belongs to another cluster"),
    ] {
        let said = init(&voter);
        assert!(said.contains(what) && said.contains("nothing was written"), "{voter}: {said}");
    }
    let said = init(&cluster.voter());
    assert!(said.contains("the markers are written"), "{said}");
    // A proxy that starts does not choose between two clusters.
    let mixed = before(&with(other.nodes[0].port())).uninitialised().unready().start();
    eventually("two clusters are told", || mixed.http("/readyz").contains("another cluster"));
    let last = Instant::now() + Duration::from_secs(3);
    while Instant::now() < last {
        let reply = mixed.client().cmd(&["LOCK", "k", "PX", "1000"]);
        assert!(reply.error_text().starts_with("NOQUORUM"), "{reply:?}");
    }
}
