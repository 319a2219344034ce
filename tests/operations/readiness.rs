//! What /readyz and the metrics say about lock nodes that are up but cannot be counted on.

use std::{thread, time::Duration};

use crate::support::{Proxy, Reply, eventually};

/// Causes for which a node refuses writes, each with its end.
const CAUSES: [(&[&str], &[&str]); 2] = [
    (&["CONFIG", "SET", "maxmemory", "1"], &["CONFIG", "SET", "maxmemory", "0"]),
    (
        &["CONFIG", "SET", "min-replicas-to-write", "1"],
        &["CONFIG", "SET", "min-replicas-to-write", "0"],
    ),
];

#[test]
fn nodes_that_refuse_writes_are_up_and_do_not_count() {
    let proxy = Proxy::with().nodes(3).start();
    let ready = || proxy.http("/readyz").starts_with("HTTP/1.1 200");
    let faults = || proxy.metric("lockgate_node_fault", "fault=\"refuses\"");
    let mut client = proxy.client();
    for (node, (cause, _)) in CAUSES.iter().enumerate() {
        assert_eq!(proxy.node_client(node).cmd(cause), Reply::ok());
        // An error makes the proxy check the node; otherwise it checks a little later.
        client.cmd(&["LOCK", "job", "PX", "30000"]);
        eventually("it is found", || faults() == (node + 1) as f64);
        assert_eq!(proxy.nodes_up(), 3);
        assert_eq!(ready(), node == 0, "{}", proxy.http("/readyz"));
        let slack = -(node as f64);
        eventually("it is counted", || proxy.metric("lockgate_quorum_slack", "") == slack);
    }
    let page = proxy.http("/readyz");
    assert!(page.contains("lock nodes: 3 of 3 up, 2 of them refusing locks, 2 needed"), "{page}");
    assert_eq!(page.matches("; it refuses writes: its disk or its memory is full").count(), 2);
    let nodes = format!("{:?}", client.cmd(&["LOCKGATE", "NODES"]));
    assert_eq!(nodes.matches(&format!("{:?}", Reply::bulk("refuses"))).count(), 2, "{nodes}");
    eventually("the end of the quorum is told", || proxy.log().contains("the quorum is lost"));
    let log = proxy.log();
    let line = log.lines().find(|line| line.contains("the quorum is lost")).unwrap();
    assert!(line.contains("\"voting\":1,\"needed\":2"), "{line}");
    assert_eq!(line.matches(" (refuses locks)").count(), 2, "{line}");
    // What is left cannot be paused away either.
    for (node, (_, end)) in CAUSES.iter().enumerate() {
        assert_eq!(proxy.node_client(node).cmd(end), Reply::ok());
    }
    eventually("it is over", || faults() == 0.0 && ready());
    let log = proxy.log();
    for part in ["\"fault\":\"refuses\"", "OOM", "NOREPLICAS", "lock node serves locks again"] {
        assert!(log.contains(part), "{part} in {log}");
    }
    client.cmd(&["LOCK", "other", "PX", "30000"]).grant();
    assert_eq!(proxy.nodes_with("lockgate:probe"), 0);
}

#[test]
fn round_trips_are_measured_of_a_node_that_is_never_idle() {
    let proxy = Proxy::start();
    let mut client = proxy.client();
    let measured = || proxy.metric("lockgate_node_round_trip_seconds_count", "");
    // Requests come more often than an idle node would be asked.
    let begun = measured();
    eventually("it is measured", || {
        for _ in 0..20 {
            client.cmd(&["LOCK", "job", "PX", "30000"]).grant();
            client.cmd(&["UNLOCK", "job"]);
        }
        measured() >= begun + 4.0
    });
}

#[test]
fn the_process_tells_what_it_uses() {
    let proxy = Proxy::start();
    let resident = proxy.metric("process_resident_memory_bytes", "");
    assert!(resident > 1e6 && resident < 1e9, "{resident}");
    let open = || proxy.metric("process_open_fds", "");
    let before = open();
    let clients: Vec<_> = (0..20).map(|_| proxy.client()).collect();
    // Each client has a connection to the data node too.
    eventually("they are counted", || open() >= before + 40.0);
    drop(clients);
    assert!(proxy.metric("process_start_time_seconds", "") > 1e9);
    assert!(proxy.metric("process_max_fds", "") >= 20.0);
}

#[test]
fn an_emptied_node_that_refuses_writes_stops_no_other() {
    let proxy = Proxy::with().nodes(3).start();
    let mut client = proxy.client();
    client.cmd(&["LOCK", "a", "x", "PX", "50000"]).grant();
    let epoch = || {
        let marker = proxy.node_client(0).cmd(&["GET", "lockgate:deployment"]);
        let Reply::Bulk(marker) = marker else { panic!("{marker:?}") };
        let marker = String::from_utf8(marker).unwrap();
        marker.split(' ').nth(1).unwrap().parse::<u64>().unwrap()
    };
    let before = epoch();
    proxy.node_client(2).cmd(&["CONFIG", "SET", "maxmemory", "1"]);
    proxy.node_client(2).cmd(&["FLUSHALL"]);
    eventually("it is to wait", || epoch() > before);
    for n in 0..400 {
        client.cmd(&["LOCK", &format!("b{n}"), "x", "PX", "1000"]);
        thread::sleep(Duration::from_millis(10));
    }
    // Each epoch that is written in vain stops the other nodes for a moment.
    let epochs = epoch() - before;
    assert!(epochs < 40, "{epochs} epochs were written for a node that takes none on");
    proxy.node_client(2).cmd(&["CONFIG", "SET", "maxmemory", "0"]);
    eventually("it is told that it waits", || {
        proxy.node_client(2).cmd(&["GET", "lockgate:deployment"]) != Reply::NullBulk
    });
}
