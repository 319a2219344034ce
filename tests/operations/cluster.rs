//! A Redis Cluster as data: a front for each node.

use lockgate::tools::redis_server::RedisServer;

use crate::support::{Client, Reply, cluster::Cluster, eventually};

/// What a client may be told, given what a node tells: the front's port wherever a node's stands.
fn through_fronts(reply: Reply, ports: &[(u16, u16)]) -> Reply {
    let all =
        |parts: Vec<Reply>| parts.into_iter().map(|part| through_fronts(part, ports)).collect();
    let front = |port: i64| ports.iter().find(|(node, _)| i64::from(*node) == port);
    match reply {
        Reply::Int(port) => Reply::Int(front(port).map_or(port, |(_, front)| i64::from(*front))),
        Reply::Array(parts) => Reply::Array(all(parts)),
        Reply::Map(parts) => Reply::Map(all(parts)),
        Reply::Bulk(text) => {
            let mut text = String::from_utf8(text).unwrap();
            for (node, front) in ports {
                text = text.replace(&format!("127.0.0.1:{node}@"), &format!("127.0.0.1:{front}@"));
            }
            Reply::Bulk(untimed(&text).into_bytes())
        }
        other => other,
    }
}

/// The text without what changes from one moment to the next: when each node was last heard.
fn untimed(text: &str) -> String {
    let line = |line: &str| {
        let mut words: Vec<&str> = line.split(' ').collect();
        if words.len() > 7 {
            (words[4], words[5]) = ("ping", "pong");
        }
        words.join(" ")
    };
    text.split('\n').map(line).collect::<Vec<_>>().join("\n")
}

/// The ports of nodes and of their fronts.
fn pairs(cluster: &Cluster, fronts: &[u16]) -> Vec<(u16, u16)> {
    cluster.nodes.iter().map(RedisServer::port).zip(fronts.iter().copied()).collect()
}

#[test]
fn whatever_names_a_node_names_its_front() {
    let cluster = Cluster::start(3);
    let proxy = cluster.proxy("").start();
    let fronts = cluster.fronts(&proxy);
    let ports = pairs(&cluster, &fronts);
    let (id, foreign) = (cluster.id(1), cluster.key(1, "k"));
    let questions: [&[&str]; 5] = [
        &["CLUSTER", "SLOTS"],
        &["CLUSTER", "SHARDS"],
        &["CLUSTER", "NODES"],
        &["CLUSTER", "REPLICAS", &id],
        &["cluster", "slaves", &id],
    ];
    for version in ["2", "3"] {
        for question in questions {
            let at = |port: u16| {
                let mut client = Client::connect(port);
                client.cmd(&["HELLO", version]);
                client
            };
            let (mut direct, mut through) = (at(cluster.nodes[0].port()), at(fronts[0]));
            // The offset of replication moves now and then.
            eventually("both tell the same", || {
                let told = through_fronts(direct.cmd(question), &ports);
                let got = through_fronts(through.cmd(question), &[]);
                let queued = through.pipe(&[&["MULTI"], &["PING"], question, &["PING"], &["EXEC"]]);
                let [.., Reply::Array(all)] = &queued[..] else { panic!("{queued:?}") };
                let [Reply::Simple(before), inside, Reply::Simple(after)] = &all[..] else {
                    panic!("{all:?}")
                };
                assert_eq!((&**before, &**after), ("PONG", "PONG"));
                told == got && through_fronts(inside.clone(), &[]) == told
            });
        }
    }

    let mut client = Client::connect(fronts[0]);
    let slot = client.cmd(&["CLUSTER", "KEYSLOT", &foreign]);
    let Reply::Int(slot) = slot else { panic!("{slot:?}") };
    let moved = Reply::Error(format!("MOVED {slot} 127.0.0.1:{}", fronts[1]));
    let own = cluster.key(0, "k");
    assert_eq!(client.cmd(&["GET", &foreign]), moved);
    let all = client.pipe(&[
        &["SET", &own, "1"],
        &["GET", &foreign],
        &["GET", &own],
        &["MULTI"],
        &["GET", &own],
        &["GET", &foreign],
        &["EXEC"],
    ]);
    assert_eq!((&all[1], &all[2], &all[5]), (&moved, &Reply::bulk("1"), &moved));
    assert!(all[6].error().starts_with("EXECABORT"), "{all:?}");
    // Queued before the slot goes: EXEC itself leads elsewhere.
    let moving = cluster.key(0, "moving");
    assert_eq!(client.pipe(&[&["MULTI"], &["GET", &moving]])[1], Reply::simple("QUEUED"));
    let slot = text_of_slot(&mut Client::connect(fronts[0]), &moving);
    let (source, target) = (cluster.id(0), cluster.id(1));
    let node = |index: usize, words: &[&str]| {
        assert_eq!(
            cluster.client(index).cmd(&[&["CLUSTER", "SETSLOT", &slot], words].concat()),
            Reply::ok()
        );
    };
    node(1, &["IMPORTING", &source]);
    node(0, &["MIGRATING", &target]);
    let ask = Reply::Error(format!("ASK {slot} 127.0.0.1:{}", fronts[1]));
    assert_eq!(Client::connect(fronts[0]).cmd(&["GET", &moving]), ask);
    let mut asking = Client::connect(fronts[1]);
    assert_eq!(asking.pipe(&[&["ASKING"], &["GET", &moving]])[1], Reply::NullBulk);
    for index in [1, 0, 2] {
        node(index, &["NODE", &target]);
    }
    assert_eq!(
        client.cmd(&["EXEC"]),
        Reply::Error(format!("MOVED {slot} 127.0.0.1:{}", fronts[1]))
    );
    assert!(proxy.metric("lockgate_cluster_redirects_total", "result=\"front\"") >= 5.0);

    // A node that tells its host by another name, or not at all.
    let mut set = cluster.client(0);
    for (kind, name) in [("unknown-endpoint", ""), ("hostname", "localhost")] {
        assert_eq!(set.cmd(&["CONFIG", "SET", "cluster-announce-hostname", name]), Reply::ok());
        let announced =
            cluster.client(1).cmd(&["CONFIG", "SET", "cluster-announce-hostname", name]);
        assert_eq!(announced, Reply::ok());
        assert_eq!(
            set.cmd(&["CONFIG", "SET", "cluster-preferred-endpoint-type", kind]),
            Reply::ok()
        );
        eventually("the node is known by its new name", || {
            let told = Client::connect(fronts[0]).cmd(&["GET", &foreign]);
            assert!(!told.error().contains(&format!(":{}", cluster.nodes[1].port())), "{told:?}");
            told == moved && set.cmd(&["GET", &foreign]).error().contains(&format!(" {name}:"))
        });
        let told = format!("{:?}", Client::connect(fronts[0]).cmd(&["CLUSTER", "SLOTS"]));
        assert!(!told.contains("localhost"), "{told}");
    }

    // Locks are the lock nodes', whichever front is asked, a replica's too.
    let grant = Client::connect(fronts[0]).cmd(&["LOCK", &foreign, "PX", "30000"]).grant();
    for front in &fronts {
        assert_eq!(
            Client::connect(*front).cmd(&["LOCK", &foreign, "PX", "1000"]),
            Reply::NullArray
        );
    }
    assert_eq!(Client::connect(fronts[5]).cmd(&["UNLOCK", &foreign, &grant.token]), Reply::Int(1));
}

/// The slot of a key, as text.
fn text_of_slot(client: &mut Client, key: &str) -> String {
    match client.cmd(&["CLUSTER", "KEYSLOT", key]) {
        Reply::Int(slot) => slot.to_string(),
        other => panic!("{other:?}"),
    }
}
