//! A Redis Cluster as data: a front for each node.

use std::process::Command;

use lockgate::tools::{free_port::free_port, redis_server::RedisServer};

use crate::support::{
    Client, Proxy, Reply,
    cluster::{Cluster, answer, join, node, ready, text},
    eventually,
};

/// Returns what a client may be told for this reply of a node: each node's port is replaced by its front's, which
/// has no bus.
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
                if let Some((before, bus)) = text.split_once(&format!("127.0.0.1:{node}@")) {
                    let rest = bus.trim_start_matches(|digit: char| digit.is_ascii_digit());
                    text = format!("{before}127.0.0.1:{front}@0{rest}");
                }
            }
            Reply::Bulk(untimed(&text).into_bytes())
        }
        other => other,
    }
}

/// Returns the text without what changes from one moment to the next: when each node was last heard.
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

/// Returns the ports of nodes and of their fronts.
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
            // The replication offset moves now and then.
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
    // The command is queued before the slot moves, so EXEC itself is redirected.
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

    // Locks are on the lock nodes, whichever front is asked, a replica's included.
    let grant = Client::connect(fronts[0]).cmd(&["LOCK", &foreign, "PX", "30000"]).grant();
    for front in &fronts {
        assert_eq!(
            Client::connect(*front).cmd(&["LOCK", &foreign, "PX", "1000"]),
            Reply::NullArray
        );
    }
    assert_eq!(Client::connect(fronts[5]).cmd(&["UNLOCK", &foreign, &grant.token]), Reply::Int(1));
}

/// Returns the slot of a key, as text.
fn text_of_slot(client: &mut Client, key: &str) -> String {
    match client.cmd(&["CLUSTER", "KEYSLOT", key]) {
        Reply::Int(slot) => slot.to_string(),
        other => panic!("{other:?}"),
    }
}

/// Returns the front that leads to a node, once there is one.
fn front_of(proxy: &Proxy, id: &str) -> u16 {
    let mut found = None;
    eventually("the node has a front", || {
        let is_its = |port: &&u16| answer(**port, &["CLUSTER", "MYID"]) == Some(Reply::bulk(id));
        found = proxy.fronts().iter().find(is_its).copied();
        found.is_some()
    });
    found.unwrap()
}

fn lines_of_nodes(port: u16) -> usize {
    text(&Client::connect(port).cmd(&["CLUSTER", "NODES"])).lines().count()
}

#[test]
fn the_fronts_follow_failovers_moved_slots_and_new_nodes() {
    let mut cluster = Cluster::start(3);
    // One more front than nodes.
    let proxy = cluster.proxy("").fronts(7).start();
    let fronts = cluster.fronts(&proxy);
    let (key, name) = (cluster.key(0, "k"), cluster.id(0));
    let (mut on_master, mut on_other) = (Client::connect(fronts[0]), Client::connect(fronts[1]));
    assert_eq!(on_master.cmd(&["SET", &key, "1"]), Reply::ok());
    let moved_to = |front: u16, reply: &Reply| {
        reply.error_text().starts_with("MOVED ")
            && reply.error_text().ends_with(&format!(" 127.0.0.1:{front}"))
    };
    assert!(moved_to(fronts[0], &on_other.cmd(&["GET", &key])));
    eventually("the replica has the key", || {
        cluster.client(3).pipe(&[&["READONLY"], &["GET", &key]])[1] == Reply::bulk("1")
    });

    // A master dies: its front closes at once, and its replica's front takes over.
    cluster.nodes[0].kill().unwrap();
    assert_eq!(on_master.rest().0, b"");
    assert_eq!(Client::connect(fronts[0]).rest().0, b"", "as the node itself would");
    assert_eq!(cluster.client(3).cmd(&["CLUSTER", "FAILOVER", "TAKEOVER"]), Reply::ok());
    eventually("the other node leads there", || moved_to(fronts[3], &on_other.cmd(&["GET", &key])));
    eventually("the cluster serves again", || {
        answer(fronts[3], &["SET", &key, "2"]) == Some(Reply::ok())
    });
    // A front without its node does not make the proxy unready.
    ready(&proxy);
    cluster.nodes[0].restart().unwrap();
    assert_eq!(front_of(&proxy, &name), fronts[0], "the node comes back to its front");
    eventually("the node is a replica now", || {
        answer(fronts[0], &["GET", &key]).is_some_and(|reply| moved_to(fronts[3], &reply))
    });

    // A slot moves.
    let moving = cluster.key(1, "moving");
    let slot = text_of_slot(&mut cluster.client(1), &moving);
    assert_eq!(on_other.cmd(&["GET", &moving]), Reply::NullBulk);
    let target = cluster.id(2);
    for index in [2, 1] {
        let words = ["CLUSTER", "SETSLOT", &slot, "NODE", &target];
        assert_eq!(cluster.client(index).cmd(&words), Reply::ok());
    }
    assert!(moved_to(fronts[2], &on_other.cmd(&["GET", &moving])));
    assert_eq!(Client::connect(fronts[2]).cmd(&["GET", &moving]), Reply::NullBulk);

    // A node joins, and takes the free front; another one finds none.
    assert_eq!(lines_of_nodes(fronts[1]), 6);
    let new = join(&cluster.nodes);
    let id = text(&Client::connect(new.port()).cmd(&["CLUSTER", "MYID"]));
    let seventh = front_of(&proxy, &id);
    assert!(!fronts.contains(&seventh));
    eventually("clients are told of it", || lines_of_nodes(fronts[1]) == 7);
    cluster.nodes.push(new);
    let eighth = join(&cluster.nodes);
    eventually("that one is named", || {
        proxy.metric("lockgate_cluster_fault", "fault=\"no_front\"") == 1.0
    });
    let page = proxy.http("/readyz");
    assert!(page.contains(&format!("127.0.0.1:{} (", eighth.port())), "{page}");
    assert!(page.contains("has no front: listen has 7, and the cluster 8 nodes. Add an"), "{page}");
    assert!(page.contains("cluster: 8 nodes; 7 of 7 fronts lead to one"), "{page}");
    assert_eq!(proxy.log().matches("has no front").count(), 1);
    eventually("the node itself is told", || {
        text(&cluster.client(1).cmd(&["CLUSTER", "NODES"])).lines().count() == 8
    });
    assert_eq!(lines_of_nodes(fronts[1]), 7);
    // No client is redirected to it either.
    let id = text(&Client::connect(eighth.port()).cmd(&["CLUSTER", "MYID"]));
    // A node that imports a slot and then takes it has a newer epoch than all that had it.
    for (how, who) in [("IMPORTING", &target), ("NODE", &id)] {
        let words = ["CLUSTER", "SETSLOT", &slot, how, who];
        assert_eq!(Client::connect(eighth.port()).cmd(&words), Reply::ok());
    }
    // Of two nodes that claim a slot the one with the larger epoch has it.
    Client::connect(eighth.port()).cmd(&["CLUSTER", "BUMPEPOCH"]);
    eventually("the slot is there", || {
        let told = Client::connect(fronts[2]).cmd(&["GET", &moving]);
        assert!(
            !told.error_text().contains(&format!(":{}", eighth.port()))
                || told.error_text().starts_with("TRYAGAIN"),
            "{told:?}"
        );
        told.error_text().starts_with("TRYAGAIN the proxy has no front")
    });
}

/// Starts a proxy with this cluster. Returns what /readyz and doctor say once there is this fault.
fn told(data: &str, fronts: usize, fault: &str, is_ready: bool) -> (String, String) {
    let proxy = Proxy::with().data_url(data).fronts(fronts).start();
    eventually(fault, || {
        proxy.metric("lockgate_cluster_fault", &format!("fault=\"{fault}\"")) >= 1.0
    });
    let status = if is_ready { "HTTP/1.1 200" } else { "HTTP/1.1 503" };
    eventually("the data node has been asked", || proxy.http("/readyz").starts_with(status));
    let doctor = Command::new(env!("CARGO_BIN_EXE_lockgate"))
        .args(["doctor", proxy.config_file().to_str().unwrap()])
        .output()
        .unwrap();
    let report = String::from_utf8_lossy(&doctor.stdout).into_owned();
    let is_grave = !["alone", "down"].contains(&fault);
    assert_eq!(doctor.status.success(), !is_grave, "{report}");
    assert!(proxy.log().contains(&format!("\"fault\":\"{fault}\"")), "{}", proxy.log());
    (proxy.http("/readyz"), report)
}

#[test]
fn what_is_wrong_with_a_cluster_is_named_with_what_to_do() {
    let seed = |server: &RedisServer| format!("'127.0.0.1:{}'", server.port());
    let expect = |data: &str, fronts: usize, fault: &str, is_ready: bool, words: [&str; 2]| {
        let (page, report) = told(data, fronts, fault, is_ready);
        for words in words {
            assert!(page.contains(words), "{words} is not in {page}");
            assert!(report.contains(words), "{words} is not in {report}");
        }
    };
    let plain = RedisServer::start(&[]).unwrap();
    let data = format!("{{cluster: {}}}", seed(&plain));
    let words = ["cluster support disabled", "Set cluster-enabled yes"];
    expect(&data, 1, "off", false, words);

    let nobody = free_port().unwrap();
    let data = format!("{{cluster: '127.0.0.1:{nobody}'}}");
    expect(&data, 1, "unreachable", false, ["refused", "Is it running"]);

    let guarded = node(&["--requirepass", "secret"]);
    expect(
        &format!("{{cluster: {}}}", seed(&guarded)),
        1,
        "auth",
        false,
        ["NOAUTH", "password beside cluster"],
    );

    let alone = node(&[]);
    let data = format!("{{cluster: {}}}", seed(&alone));
    expect(&data, 2, "uncovered", true, ["16384 of 16384 slots have no master", "--cluster fix"]);
    let words = ["CLUSTER", "ADDSLOTSRANGE", "0", "16383"];
    assert_eq!(Client::connect(alone.port()).cmd(&words), Reply::ok());
    expect(&data, 2, "alone", true, ["the cluster has one node", "--cluster create"]);
    let data = format!("{{cluster: [{}, {}]}}", seed(&alone), seed(&node(&[])));
    expect(&data, 2, "unreachable", true, ["refused", "Is it running"]);
    let other = node(&[]);
    let data = format!("{{cluster: [{}, {}]}}", seed(&alone), seed(&other));
    expect(&data, 2, "foreign", true, ["belongs to another cluster", "nodes of one cluster"]);

    let second = join(std::slice::from_ref(&alone));
    let data = format!("{{cluster: {}}}", seed(&alone));
    expect(&data, 1, "no_front", true, ["has no front: listen has 1", "Add an address to listen"]);
    let data = format!("{{cluster: {}, announce: off}}", seed(&alone));
    expect(&data, 2, "past", true, ["announces no front", "led past the proxy"]);
    let mut set = Client::connect(second.port());
    let announced = nobody.to_string();
    assert_eq!(set.cmd(&["CONFIG", "SET", "cluster-announce-port", &announced]), Reply::ok());
    eventually("the other node knows", || {
        text(&Client::connect(alone.port()).cmd(&["CLUSTER", "NODES"])).contains(&announced)
    });
    let data = format!("{{cluster: {}}}", seed(&alone));
    let words = ["cannot be reached where it announces", "cluster-announce-ip"];
    expect(&data, 2, "address", true, words);
    // Named by its own address, the node is reached.
    let data = format!("{{cluster: [{}, {}]}}", seed(&alone), seed(&second));
    let proxy = Proxy::with().data_url(&data).fronts(2).start();
    let id = text(&set.cmd(&["CLUSTER", "MYID"]));
    front_of(&proxy, &id);
    assert_eq!(proxy.metric("lockgate_cluster_fault", "fault=\"address\""), 0.0);
}

#[test]
fn a_node_that_announces_a_front_has_that_one_and_stays_as_it_is() {
    let one = node(&[]);
    let two = join(std::slice::from_ref(&one));
    let words = ["CLUSTER", "ADDSLOTSRANGE", "0", "16383"];
    assert_eq!(Client::connect(two.port()).cmd(&words), Reply::ok());
    let id = text(&Client::connect(one.port()).cmd(&["CLUSTER", "MYID"]));
    for announce in ["auto", "off"] {
        let data = format!(
            "{{cluster: ['127.0.0.1:{}', '127.0.0.1:{}'], announce: {announce}}}",
            one.port(),
            two.port()
        );
        let mut proxy = Proxy::with().data_url(&data).fronts(2).start();
        // The nodes announce the fronts the other way round.
        let given = front_of(&proxy, &id);
        let other = proxy.fronts().iter().copied().find(|port| *port != given).unwrap();
        for (node, front) in [(&one, other), (&two, given)] {
            let front = front.to_string();
            let set = ["CONFIG", "SET", "cluster-announce-port", &front];
            assert_eq!(Client::connect(node.port()).cmd(&set), Reply::ok());
        }
        let mut direct = Client::connect(one.port());
        eventually("the nodes tell of the fronts", || {
            direct.cmd(&["GET", "k"]).error().ends_with(&format!(":{given}"))
                && text(&Client::connect(two.port()).cmd(&["CLUSTER", "NODES"]))
                    .contains(&format!(":{other}@"))
        });
        proxy.kill();
        proxy.start_again();
        assert_eq!(front_of(&proxy, &id), other);
        let mut client = Client::connect(other);
        for words in [&["GET", "k"][..], &["CLUSTER", "SLOTS"]] {
            assert_eq!(client.cmd(words), direct.cmd(words));
        }
        ready(&proxy);
        assert_eq!(client.cmd(&["LOCK", announce]).grant().token.len(), 32);
        assert_eq!(proxy.metric("lockgate_cluster_fault", "fault=\"past\""), 0.0);
        assert_eq!(proxy.metric("lockgate_cluster_redirects_total", ""), 0.0);
    }
}
