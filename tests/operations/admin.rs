//! Metrics and the admin port, as Prometheus and an operator see them.

use std::{
    io::{Read, Write},
    net::TcpStream,
    process::Command,
    time::Duration,
};

use crate::support::{self, LIMIT, Proxy, Reply, encode, eventually, machine, relay::Relay};
use lockgate::tools::redis_server::RedisServer;

#[test]
fn every_metric_is_there_from_the_start() {
    let proxy = Proxy::with().nodes(3).start();
    eventually("all nodes are up", || proxy.metric("lockgate_quorum_slack", "") == 1.0);
    let page = proxy.http("/metrics");
    assert!(page.starts_with("HTTP/1.1 200 OK\r\n"));
    assert!(page.contains("content-type: text/plain; version=0.0.4"));
    for sample in [
        "lockgate_build_info{version=\"",
        "lockgate_client_connections ",
        "lockgate_client_connections_total ",
        "lockgate_received_bytes_total{from=\"client\"} ",
        "lockgate_received_bytes_total{from=\"data\"} ",
        "lockgate_commands_total{command=\"lock\"} ",
        "lockgate_commands_total{command=\"unlock\"} ",
        "lockgate_commands_total{command=\"renew\"} ",
        "lockgate_commands_total{command=\"other\"} ",
        "lockgate_protocol_errors_total ",
        "lockgate_closes_total{reason=\"barrier_buffer\"} ",
        "lockgate_closes_total{reason=\"upstream_connect\"} ",
        "lockgate_barrier_waits_total ",
        "lockgate_lock_requests_total{operation=\"lock\",result=\"no_quorum\"} ",
        "lockgate_lock_requests_total{operation=\"renew\",result=\"aborted\"} ",
        "lockgate_lock_requests_total{operation=\"lock.attach\",result=\"no_quorum\"} ",
        "lockgate_commands_total{command=\"lock.detach\"} ",
        "lockgate_node_up{node=\"3\",address=\"127.0.0.1:",
        "lockgate_node_errors_total{node=\"1\",address=\"",
        "lockgate_hold_seconds_bucket{le=\"3600\"} ",
        "lockgate_queue_seconds_bucket{le=\"300\"} ",
        "lockgate_grants_total{kind=\"session\"} ",
        "lockgate_upstream_connects_total{result=\"failed\"} ",
        "lockgate_leases ",
        "lockgate_oldest_hold_seconds ",
        "lockgate_ready 1",
        "lockgate_data_up 1",
        "lockgate_nodes 3",
        "lockgate_quorum 2",
        "lockgate_quorum_slack 1",
    ] {
        assert!(page.lines().any(|line| line.starts_with(sample)), "{sample} is missing");
    }
}

/// Checks those rules of `promtool check metrics` that could be broken here.
#[test]
fn every_metric_has_help_and_a_name_as_prometheus_wants_it() {
    let page = Proxy::with().nodes(3).start().http("/metrics");
    let body = page.split_once("\r\n\r\n").unwrap().1;
    let told = |what: &str, name: &str| {
        body.lines().any(|line| {
            let rest = line.strip_prefix(what).and_then(|rest| rest.strip_prefix(name));
            rest.is_some_and(|rest| rest.trim().len() > 3 && rest.starts_with(' '))
        })
    };
    let types = body.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    let mut count = 0;
    for (name, kind) in types {
        count += 1;
        assert!(told("# HELP ", name), "{name} has no help");
        let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        let is_ours = name.starts_with("lockgate_") || name.starts_with("process_");
        assert!(is_ours && name.chars().all(is_plain), "{name}");
        assert_eq!(name.ends_with("_total"), kind == "counter", "{name} is a {kind}");
        assert_eq!(kind == "histogram", name.ends_with("_seconds") && kind != "gauge", "{name}");
        assert!(!name.ends_with("_count") && !name.ends_with("_bucket"), "{name}");
    }
    assert!(count > 30, "{count}");
    for line in body.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
        let name = line.split(['{', ' ']).next().unwrap();
        let family = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
        assert!(
            told("# TYPE ", name) || family.is_some_and(|family| told("# TYPE ", family)),
            "{name} has no type"
        );
    }
}

#[test]
fn lock_nodes_that_are_too_slow_are_told_everywhere() {
    let nodes: Vec<RedisServer> = (0..5).map(|_| RedisServer::start(&[]).unwrap()).collect();
    let relays: Vec<Relay> = nodes[2..].iter().map(|node| Relay::to(node.port())).collect();
    let ports = nodes[..2].iter().map(RedisServer::port).chain(relays.iter().map(Relay::port));
    let urls: Vec<String> = ports.map(|port| format!("redis://127.0.0.1:{port}")).collect();
    let proxy = Proxy::with().locks("node_timeout: 200ms").node_urls(&urls).start();
    let ready = || proxy.http("/readyz").starts_with("HTTP/1.1 200");
    eventually("all are up", || proxy.nodes_up() == 5 && ready());
    let late = |by| relays.iter().for_each(|relay| relay.delay_replies(Duration::from_millis(by)));
    late(600);
    // Seen by PINGs alone.
    eventually("it is not ready", || proxy.http("/readyz").contains("3 of them too slow"));
    assert!(!ready());
    assert_eq!(proxy.nodes_up(), 5);
    let slow = "often takes more than half of locks.node_timeout";
    assert_eq!(proxy.http("/readyz").matches(slow).count(), 3);
    assert_eq!(proxy.metric("lockgate_node_fault", "fault=\"slow\""), 3.0);
    eventually("it is counted", || proxy.metric("lockgate_quorum_slack", "") == -1.0);
    assert_eq!(proxy.metric("lockgate_ready", ""), 0.0);
    let mut client = proxy.client();
    for _ in 0..8 {
        let reply = client.cmd(&["LOCK", "job", "PX", "30000"]);
        let error = reply.error();
        assert!(error.starts_with("NOQUORUM 2 of 5 lock nodes answered, 3 are needed"), "{error}");
    }
    let nodes = format!("{:?}", client.cmd(&["LOCKGATE", "NODES"]));
    assert_eq!(nodes.matches(&format!("{:?}", Reply::bulk("slow"))).count(), 3, "{nodes}");
    assert!(proxy.http("/readyz").contains("locks: NOQUORUM "), "{}", proxy.http("/readyz"));
    eventually("the log has it", || proxy.log().contains("NOQUORUM: "));
    let log = proxy.log();
    let line = log.lines().find(|line| line.contains("NOQUORUM: ")).unwrap();
    assert!(line.contains("\"WARN\"") && line.contains(" operations in "), "{line}");
    assert!(line.contains("missing: 127.0.0.1:") && line.contains("(timeout)"), "{line}");
    assert_eq!(log.matches("\"fault\":\"slow\"").count(), 3, "{log}");
    eventually("its end is told", || proxy.log().contains("the quorum is lost"));
    let log = proxy.log();
    let line = log.lines().find(|line| line.contains("the quorum is lost")).unwrap();
    assert!(line.contains("\"voting\":2,\"needed\":3"), "{line}");
    assert_eq!(line.matches(" (too slow)").count(), 3, "{line}");
    late(0);
    eventually("ready again", ready);
    eventually("its return is told", || proxy.log().contains("the quorum is back"));
    eventually("all are fast", || proxy.metric("lockgate_node_fault", "fault=\"slow\"") == 0.0);
    client.cmd(&["LOCK", "other", "PX", "30000"]).grant();
}

#[test]
fn votes_that_are_late_are_counted_though_the_others_made_the_quorum() {
    // The nodes are asked about leases shortly after the start, and about session locks after a third of their TTL:
    // none of these questions is late here.
    let proxy = Proxy::with().nodes(3).locks("node_timeout: 1s").locks("default_ttl: 60s");
    let mut proxy = proxy.start();
    proxy.node(2).freeze().unwrap();
    let mut client = proxy.client();
    for key in ["a", "b", "c", "d", "e", "f"] {
        client.cmd(&["LOCK", key]).grant();
    }
    let late = || proxy.metric("lockgate_node_errors_total", "reason=\"timeout\"");
    eventually("they are counted", || late() >= 6.0);
    assert_eq!(late(), 6.0);
    proxy.node(2).thaw().unwrap();
}

#[test]
fn where_the_data_node_is_away_clients_are_closed_as_by_it_and_that_is_measured() {
    let mut proxy = Proxy::with().nodes(3).start();
    let mut open = proxy.client();
    assert_eq!(open.cmd(&["PING"]), Reply::simple("PONG"));
    proxy.data().kill().unwrap();
    assert!(open.rest().0.is_empty());
    // A client would take a word for the reply to something.
    for sent in
        ["", "PING\r\n", "*2\r\n$5\r\nHELLO\r\n$1\r\n3\r\n", "*4\r\n$4\r\nLO", "*nonsense\r\n"]
    {
        let mut client = proxy.client();
        client.send(sent.as_bytes());
        assert!(client.rest().0.is_empty(), "{sent:?}");
    }
    eventually("it is seen", || proxy.metric("lockgate_data_up", "") == 0.0);
    eventually("not ready", || proxy.metric("lockgate_ready", "") == 0.0);
    assert!(proxy.metric("lockgate_upstream_connects_total", "failed") >= 3.0);
    proxy.data().restart().unwrap();
    eventually("it is back", || proxy.metric("lockgate_data_up", "") == 1.0);
    assert_eq!(proxy.client().cmd(&["PING"]), Reply::simple("PONG"));
}

#[test]
fn a_proxy_that_finishes_what_is_in_flight_is_not_ready() {
    let mut proxy = Proxy::with().top("shutdown_grace: 60s").start();
    let mut blocked = proxy.client();
    blocked.send(&support::encode(&["BLPOP", "list", "0"]));
    eventually("it blocks", || proxy.metric("lockgate_commands_total", "other") == 1.0);
    proxy.terminate();
    eventually("draining", || proxy.http("/readyz").starts_with("HTTP/1.1 503"));
    assert!(proxy.http("/readyz").contains("\ndraining: "));
    assert!(proxy.http("/healthz").starts_with("HTTP/1.1 200"));
    drop(blocked);
    assert!(proxy.wait().success());
}

#[test]
fn a_proxy_that_is_to_end_says_so_before_it_refuses_anybody() {
    let mut proxy = Proxy::with().top("shutdown_delay: 10s\nshutdown_grace: 30s").start();
    let mut blocked = proxy.client();
    blocked.send(&support::encode(&["BLPOP", "list", "0"]));
    eventually("it blocks", || proxy.metric("lockgate_commands_total", "other") == 1.0);
    proxy.terminate();
    eventually("draining", || {
        let page = proxy.http("/readyz");
        page.starts_with("HTTP/1.1 503") && page.contains("\ndraining: ")
    });
    assert_eq!(proxy.client().cmd(&["LPUSH", "other", "x"]), Reply::Int(1));
    assert!(proxy.http("/healthz").starts_with("HTTP/1.1 200"));
    assert_eq!(proxy.metric("lockgate_ready", ""), 0.0);
    eventually("the delay is over", || TcpStream::connect(("127.0.0.1", proxy.port())).is_err());
    // The proxy waits for commands in flight, and still serves the page.
    assert!(proxy.http("/readyz").contains("\ndraining: "));
    assert!(proxy.http("/healthz").starts_with("HTTP/1.1 200"));
    assert_eq!(proxy.data_client().cmd(&["LPUSH", "list", "x"]), Reply::Int(1));
    assert_eq!(blocked.reply(), Reply::Array(vec![Reply::bulk("list"), Reply::bulk("x")]));
    assert!(proxy.wait().success());
}

#[test]
fn what_happens_is_counted_and_nothing_secret_is_shown() {
    let proxy = Proxy::with().nodes(3).start();
    let mut client = proxy.client();
    client.cmd(&["SET", "a", "1"]);
    let grant = client.cmd(&["LOCK", "secret-key", "PX", "5000"]).grant();
    assert_eq!(
        proxy.client().cmd(&["LOCK", "secret-key", "secret-token", "PX", "5000"]),
        Reply::NullArray
    );
    client.cmd(&["RENEW", "secret-key"]);
    client.cmd(&["UNLOCK", "secret-key"]);
    client.cmd(&["UNLOCK", "secret-key"]);
    for (name, labels, value) in [
        ("lockgate_lock_requests_total", "operation=\"lock\",result=\"ok\"", 1.0),
        ("lockgate_lock_requests_total", "operation=\"lock\",result=\"busy\"", 1.0),
        ("lockgate_lock_requests_total", "operation=\"lock\",result=\"not_held\"", 0.0),
        ("lockgate_grants_total", "kind=\"lease\"", 1.0),
        ("lockgate_upstream_connects_total", "result=\"ok\"", 2.0),
        ("lockgate_lock_requests_total", "operation=\"renew\",result=\"ok\"", 1.0),
        ("lockgate_lock_requests_total", "operation=\"unlock\",result=\"ok\"", 1.0),
        ("lockgate_lock_requests_total", "operation=\"unlock\",result=\"not_held\"", 1.0),
        ("lockgate_lock_request_seconds_count", "operation=\"unlock\"", 2.0),
        ("lockgate_commands_total", "command=\"lock\"", 2.0),
        ("lockgate_commands_total", "command=\"other\"", 1.0),
    ] {
        assert_eq!(proxy.metric(name, labels), value, "{name} {labels}");
    }
    assert!(proxy.metric("lockgate_received_bytes_total", "client") > 100.0);
    let seen = proxy.http("/metrics") + &proxy.http("/readyz") + &proxy.log();
    assert!(!seen.contains("secret") && !seen.contains(&grant.token));
}

#[test]
fn readiness_follows_the_data_node_and_the_quorum() {
    let mut proxy = Proxy::with().nodes(3).locks("quarantine: no").start();
    let ready = |proxy: &Proxy| proxy.http("/readyz").starts_with("HTTP/1.1 200");
    proxy.node(0).kill().unwrap();
    eventually("the node is seen down", || proxy.http("/readyz").contains("2 of 3 up"));
    assert!(ready(&proxy));
    proxy.node(1).kill().unwrap();
    eventually("not ready", || !ready(&proxy));
    proxy.node(1).restart().unwrap();
    eventually("ready", || ready(&proxy));
    proxy.data().freeze().unwrap();
    eventually("a stopped data node is noticed", || !ready(&proxy));
    proxy.data().thaw().unwrap();
    eventually("ready again", || ready(&proxy));
    proxy.data().kill().unwrap();
    eventually("a dead data node is noticed", || !ready(&proxy));
    assert!(proxy.http("/healthz").starts_with("HTTP/1.1 200"), "the process is well");
    assert!(proxy.http("/nothing").starts_with("HTTP/1.1 404"));
    // One line for each change, and no more.
    let log = proxy.log();
    let lines = |what: &str| log.lines().filter(|line| line.contains(what)).count();
    assert_eq!(lines("data node is reachable"), 2, "{log}");
    assert_eq!(lines("\"lock node is up\""), 4, "{log}");
}

#[test]
fn a_client_locks_what_it_was_allowed_while_the_data_node_hangs() {
    let mut proxy = Proxy::with().nodes(3).locks("authorize_cache: 1ms").start();
    let (mut known, mut stranger, mut other_user) =
        (proxy.client(), proxy.client(), proxy.client());
    for client in [&mut known, &mut other_user] {
        client.cmd(&["LOCK", "k", "t", "PX", "60000"]).grant();
        assert_eq!(client.cmd(&["UNLOCK", "k", "t"]), Reply::Int(1));
    }
    // A client that may have become another user is asked about again.
    assert!(!matches!(other_user.cmd(&["HELLO", "2"]), Reply::Error(_)));
    proxy.data().freeze().unwrap();
    eventually("it is noticed", || proxy.http("/readyz").contains("no answer within"));
    known.cmd(&["LOCK", "k", "t", "PX", "60000"]).grant();
    assert!(matches!(known.cmd(&["RENEW", "k", "PX", "60000"]), Reply::Int(1..)));
    assert_eq!(known.cmd(&["UNLOCK", "k", "t"]), Reply::Int(1));
    for (client, key) in [(&mut stranger, "k"), (&mut other_user, "k"), (&mut known, "another")] {
        client.send(&encode(&["LOCK", key, "PX", "1000"]));
        client.expect_silence(Duration::from_millis(200));
    }
    proxy.data().thaw().unwrap();
    for client in [&mut stranger, &mut other_user, &mut known] {
        let said = client.reply();
        assert!(matches!(said, Reply::Array(_) | Reply::NullArray), "{said:?}");
    }
}

#[test]
fn a_container_can_ask_for_health() {
    let mut proxy = Proxy::start();
    let health = |addr: &str| {
        Command::new(env!("CARGO_BIN_EXE_lockgate")).args(["health", addr]).output().unwrap()
    };
    let addr = format!("127.0.0.1:{}", proxy.admin_port());
    assert!(health(&addr).status.success());
    let file = proxy.config_file();
    assert!(health(file.to_str().unwrap()).status.success(), "the file has the address");
    proxy.terminate();
    proxy.wait();
    let gone = health(&addr);
    assert_eq!(gone.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&gone.stderr).contains("cannot connect"));
}

#[test]
fn health_tries_all_addresses_of_a_name_and_the_port_that_is_left_out() {
    machine::has_own_mounts();
    let proxy = Proxy::start();
    let hosts = tempfile::NamedTempFile::new().unwrap();
    // No process listens at the address that is tried first, whichever that is.
    let names = "::1 all\n127.0.0.2 all\n127.0.0.1 all\n127.0.0.3 all\n127.0.0.9 none\n";
    std::fs::write(hosts.path(), names).unwrap();
    let mount = format!("mount --bind '{}' /etc/hosts && exec \"$@\"", hosts.path().display());
    let health = |address: &str| {
        let output = Command::new("unshare")
            .args(["--mount", "sh", "-c", &mount, "sh", env!("CARGO_BIN_EXE_lockgate"), "health"])
            .arg(address)
            .output()
            .unwrap();
        (output.status.success(), String::from_utf8(output.stderr).unwrap())
    };
    let port = proxy.admin_port();
    for address in [format!("all:{port}"), format!("http://all:{port}/")] {
        assert_eq!(health(&address), (true, String::new()));
    }
    let (healthy, error) = health(&format!("none:{port}"));
    assert!(!healthy && error.contains(&format!("cannot connect to 127.0.0.9:{port}")), "{error}");
    for address in ["http://none", "http://none/"] {
        let (healthy, error) = health(address);
        // Some process may listen there.
        assert!(healthy || error.contains("127.0.0.9:9380"), "{error}");
    }
    let redis = RedisServer::start(&[]).unwrap();
    for port in [redis.port(), proxy.port()] {
        let (healthy, error) = health(&format!("127.0.0.1:{port}"));
        assert!(!healthy && error.contains("does not answer as an admin address"), "{error}");
    }
    let (healthy, error) = health("http://[::1]");
    assert!(healthy || error.contains("[::1]:9380"), "{error}");
}

#[test]
fn how_long_is_held_and_waited_is_measured() {
    let proxy = Proxy::with().nodes(3).start();
    let gauge = |name: &str| proxy.metric(name, "");
    assert_eq!(gauge("lockgate_longest_wait_seconds"), 0.0);
    let (mut holder, mut waiter) = (proxy.client(), proxy.client());
    holder.cmd(&["LOCK", "job", "PX", "60000"]).grant();
    let kept = holder.cmd(&["LOCK", "kept"]).grant();
    waiter.send(&support::encode(&["LOCK", "job", "PX", "60000", "WAIT", "60000"]));
    eventually("it is held", || gauge("lockgate_oldest_hold_seconds") > 0.0);
    eventually("it is waited for", || gauge("lockgate_longest_wait_seconds") > 0.0);
    assert_eq!((gauge("lockgate_leases"), gauge("lockgate_session_locks")), (1.0, 1.0));
    assert_eq!(holder.cmd(&["UNLOCK", "kept", &kept.token]), Reply::Int(1));
    assert_eq!(holder.cmd(&["UNLOCK", "job"]), Reply::Int(1));
    let grant = waiter.reply().grant();
    assert_eq!(waiter.cmd(&["UNLOCK", "job", &grant.token]), Reply::Int(1));
    eventually("nobody holds", || gauge("lockgate_oldest_hold_seconds") == 0.0);
    eventually("nobody waits", || gauge("lockgate_longest_wait_seconds") == 0.0);
    assert_eq!(gauge("lockgate_leases"), 0.0);
}

#[test]
fn a_data_node_that_asks_for_a_password_is_reachable() {
    let proxy = Proxy::with().data_arguments(&["--requirepass", "word"]).start();
    assert!(proxy.http("/readyz").starts_with("HTTP/1.1 200"));
    assert!(proxy.client().cmd(&["GET", "a"]).error().starts_with("NOAUTH"));
}

#[test]
fn users_and_passwords_of_nodes_are_not_shown() {
    let rights = ["--user", "hiddenuser", "on", ">hiddenword", "~*", "&*", "+@all"];
    let node = RedisServer::start(&rights).unwrap();
    let url = format!("redis://hiddenuser:hiddenword@{}", node.addr());
    let proxy = Proxy::with().node_urls(&[url]).start();
    eventually("ready", || proxy.http("/readyz").starts_with("HTTP/1.1 200"));
    let seen = proxy.http("/metrics") + &proxy.http("/readyz") + &proxy.log();
    assert!(seen.contains(&node.addr().to_string()) && !seen.contains("hidden"), "{seen}");
}

/// Reads one whole answer; panics after [`LIMIT`].
fn ask(proxy: &Proxy, method: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", proxy.admin_port())).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    write!(stream, "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).unwrap();
    page
}

#[test]
fn only_get_and_head_of_known_pages_are_served() {
    let proxy = Proxy::start();
    let refused = ask(&proxy, "POST", "/metrics");
    assert!(refused.starts_with("HTTP/1.1 405") && refused.contains("allow: GET, HEAD"));
    assert!(refused.ends_with("\r\n\r\nonly GET and HEAD\n"), "{refused}");
    assert!(ask(&proxy, "GET", "/nothing").ends_with(
        "\r\n\r\nthere are the status page at /, /metrics, /healthz, /readyz, and as JSON \
             /api/status, /api/locks, /api/hot, /api/holders, /api/clients, /api/adopted, \
             /api/pinned, /api/history, /api/proxies\n"
    ));
    let head = ask(&proxy, "HEAD", "/healthz");
    assert!(head.starts_with("HTTP/1.1 200") && head.ends_with("\r\n\r\n"), "{head}");
}

#[test]
fn connections_that_say_nothing_do_not_keep_others_out() {
    let proxy = Proxy::start();
    // More connections than are served at once, so that some must be closed before the page is served.
    let silent: Vec<_> =
        (0..100).map(|_| TcpStream::connect(("127.0.0.1", proxy.admin_port())).unwrap()).collect();
    assert!(ask(&proxy, "GET", "/healthz").starts_with("HTTP/1.1 200"));
    drop(silent);
}

#[test]
#[ignore = "takes long: make long"]
fn connections_that_do_not_read_do_not_keep_others_out() {
    let proxy = Proxy::start();
    let request = "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n".repeat(2000);
    let unread: Vec<_> = (0..100)
        .map(|_| {
            let mut stream = TcpStream::connect(("127.0.0.1", proxy.admin_port())).unwrap();
            stream.set_nonblocking(true).unwrap();
            // Sends as much of the request as the proxy takes.
            let _ = stream.write(request.as_bytes());
            stream
        })
        .collect();
    for _ in 0..3 {
        assert!(ask(&proxy, "GET", "/healthz").starts_with("HTTP/1.1 200"));
    }
    drop(unread);
}

/// Returns the inode of the socket by which the process that listens on `port` serves `client`: 0 once no process has
/// the socket, `None` once the kernel has forgotten it.
fn server_socket(port: u16, client: u16) -> Option<u64> {
    let sockets = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let (port, client) = (format!(":{port:04X}"), format!(":{client:04X}"));
    sockets.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let is_it = fields.get(1)?.ends_with(&port) && fields.get(2)?.ends_with(&client);
        is_it.then(|| fields[9].parse().unwrap())
    })
}

#[test]
#[ignore = "takes long: make long"]
fn who_takes_nothing_of_an_answer_is_given_up() {
    let proxy = Proxy::start();
    let mut stream = TcpStream::connect(("127.0.0.1", proxy.admin_port())).unwrap();
    stream.write_all("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n".repeat(2000).as_bytes()).unwrap();
    let inode = || server_socket(proxy.admin_port(), stream.local_addr().unwrap().port());
    eventually("it is accepted", || inode().is_some_and(|inode| inode != 0));
    eventually("it is closed", || inode().is_none_or(|inode| inode == 0));
}
