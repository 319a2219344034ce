//! What Prometheus and an operator are told.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod support;

use std::{
    io::{Read, Write},
    net::TcpStream,
    process::Command,
};

use lockgate::redis_server::RedisServer;
use support::{LIMIT, Proxy, Reply, eventually};

#[test]
fn every_metric_is_there_from_the_start() {
    let proxy = Proxy::with().nodes(3).start();
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
    ] {
        assert!(page.lines().any(|line| line.starts_with(sample)), "{sample} is missing");
    }
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
        ("lockgate_lock_requests_total", "operation=\"lock\",result=\"not_held\"", 1.0),
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
fn a_container_can_ask_for_health() {
    let mut proxy = Proxy::start();
    let health = |addr: &str| {
        Command::new(env!("CARGO_BIN_EXE_lockgate")).args(["health", addr]).output().unwrap()
    };
    let addr = format!("127.0.0.1:{}", proxy.admin_port());
    assert!(health(&addr).status.success());
    proxy.terminate();
    proxy.wait();
    let gone = health(&addr);
    assert_eq!(gone.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&gone.stderr).contains("cannot connect"));
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

/// One whole answer, or a panic after [`LIMIT`].
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
    assert!(
        ask(&proxy, "GET", "/").ends_with("\r\n\r\nthere are /metrics, /healthz and /readyz\n")
    );
    let head = ask(&proxy, "HEAD", "/healthz");
    assert!(head.starts_with("HTTP/1.1 200") && head.ends_with("\r\n\r\n"), "{head}");
}

#[test]
fn connections_that_say_nothing_do_not_keep_others_out() {
    let proxy = Proxy::start();
    // More than are served at once: some must be shut out for the page's turn to come.
    let silent: Vec<_> =
        (0..100).map(|_| TcpStream::connect(("127.0.0.1", proxy.admin_port())).unwrap()).collect();
    assert!(ask(&proxy, "GET", "/healthz").starts_with("HTTP/1.1 200"));
    drop(silent);
}

#[test]
fn connections_that_do_not_read_do_not_keep_others_out() {
    let proxy = Proxy::start();
    let request = "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n".repeat(2000);
    let unread: Vec<_> = (0..100)
        .map(|_| {
            let mut stream = TcpStream::connect(("127.0.0.1", proxy.admin_port())).unwrap();
            stream.set_nonblocking(true).unwrap();
            // As much as it takes.
            let _ = stream.write(request.as_bytes());
            stream
        })
        .collect();
    for _ in 0..3 {
        assert!(ask(&proxy, "GET", "/healthz").starts_with("HTTP/1.1 200"));
    }
    drop(unread);
}

#[test]
fn who_takes_nothing_of_an_answer_is_given_up() {
    let proxy = Proxy::start();
    let mut stream = TcpStream::connect(("127.0.0.1", proxy.admin_port())).unwrap();
    stream.write_all("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n".repeat(2000).as_bytes()).unwrap();
    let sockets = || {
        let files = std::fs::read_dir(format!("/proc/{}/fd", proxy.pid())).unwrap();
        let links = files.filter_map(|file| std::fs::read_link(file.ok()?.path()).ok());
        links.filter(|link| link.to_string_lossy().starts_with("socket:")).count()
    };
    let mut most = 0;
    let begun = std::time::Instant::now();
    eventually("it is closed", || {
        most = most.max(sockets());
        // The readiness check has one now and then.
        begun.elapsed().as_secs() > 4 && sockets() + 1 < most
    });
}
