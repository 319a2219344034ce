//! `lockgate doctor` finds what is wrong, says what to do, and changes nothing.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod support;

use std::process::Command;

use lockgate::redis_server::{RedisServer, free_port};
use support::{Client, Proxy, Reply};

/// What it says of a deployment, and how it ends.
fn doctor(data: &str, nodes: &[String], more: &str) -> (Option<i32>, String, String) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("lockgate.yaml");
    let list: String = nodes.iter().map(|url| format!("    - {url}\n")).collect();
    std::fs::write(&file, format!("data: {data}\nlocks:\n{more}  nodes:\n{list}")).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_lockgate"))
        .args(["doctor", file.to_str().unwrap()])
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

fn start(arguments: &[&str]) -> RedisServer {
    RedisServer::start(arguments).unwrap()
}

/// The lines about the server at `url`.
fn about<'a>(report: &'a str, url: &str) -> Vec<&'a str> {
    let address = url.trim_start_matches("redis://").split('@').next_back().unwrap();
    let mut lines = report.lines().skip_while(|line| !line.contains(address));
    let first = lines.next().unwrap_or_else(|| panic!("{address} is not in {report}"));
    [first].into_iter().chain(lines.take_while(|line| line.starts_with(' '))).collect()
}

#[test]
fn a_sound_deployment_is_fit() {
    let (data, nodes) = (start(&[]), [start(&[]), start(&[]), start(&["--appendonly", "yes"])]);
    let urls: Vec<String> = nodes.iter().map(RedisServer::url).collect();
    let (status, report, error) = doctor(&data.url(), &urls, "");
    assert_eq!((status, error.as_str()), (Some(0), ""), "{report}");
    assert_eq!(report.lines().count(), 4, "{report}");
    assert!(report.starts_with("data node  "), "{report}");
    for words in ["redis 7.", "round trip", "clock ", "no persistence"] {
        assert!(about(&report, &urls[0])[0].contains(words), "{words} is not in {report}");
    }
    assert!(about(&report, &urls[2])[0].contains("append-only file"), "{report}");
    let mut node = Client::connect(nodes[0].port());
    assert_eq!(node.cmd(&["DBSIZE"]), Reply::Int(0), "it has changed something");
}

#[test]
fn whatever_is_wrong_is_told_with_what_to_do() {
    let evicting = start(&["--maxmemory", "50mb", "--maxmemory-policy", "allkeys-lru"]);
    let replica = start(&["--replicaof", "127.0.0.1 1"]);
    let locked = start(&["--requirepass", "secret"]);
    let fit = start(&[]);
    let twin = format!("redis://localhost:{}", fit.port());
    let nameless = start(&[]);
    Client::connect(nameless.port()).cmd(&["ACL", "SETUSER", "default", "-info"]);
    let nobody = format!("redis://127.0.0.1:{}", free_port().unwrap());
    let urls = [
        evicting.url(),
        replica.url(),
        locked.url(),
        fit.url(),
        twin.clone(),
        nameless.url(),
        nobody.clone(),
    ];
    let (status, report, error) = doctor(&start(&[]).url(), &urls, "");
    assert_eq!(status, Some(1), "{report}");
    assert_eq!(error, "lockgate: 5 servers are not fit for their part\n", "{report}");
    for (url, what, advice) in [
        (&urls[0], " - its maxmemory-policy", "CONFIG SET maxmemory-policy noeviction"),
        (&urls[1], "!! it is a replica", "masters only"),
        (&urls[2], "!! ", "user and password"),
        (&twin, "!! it is the same instance", "a Redis of its own"),
        (&urls[5], "!! ", "The ACL user needs"),
        (&nobody, "!! ", "Is it running"),
    ] {
        let lines = about(&report, url);
        assert!(lines[1].contains(what) && lines[2].contains(advice), "{url}: {report}");
    }
    assert_eq!(about(&report, &urls[3]).len(), 1, "{report}");
}

#[test]
fn a_node_in_quarantine_is_told_with_its_time() {
    let mut nodes = [start(&[]), start(&[]), start(&[])];
    let urls: Vec<String> = nodes.iter().map(RedisServer::url).collect();
    let proxy = Proxy::with().node_urls(&urls).start();
    support::eventually("all are admitted", || proxy.nodes_up() == 3);
    nodes[1].restart().unwrap();
    let (status, report, _) = doctor(&urls[0], &urls, "");
    assert_eq!(status, Some(0), "{report}");
    let lines = about(&report, &format!("lock node 2  {}", nodes[1].addr()));
    assert!(lines[1].contains("restarted or is new") && lines[1].contains("are left"), "{report}");
}

#[test]
fn what_the_data_node_does_to_clients_is_told() {
    let nodes = [start(&[])];
    let urls: Vec<String> = nodes.iter().map(RedisServer::url).collect();
    let data = start(&["--timeout", "300"]);
    let (status, report, _) = doctor(&data.url(), &urls, "");
    assert_eq!(status, Some(0), "{report}");
    assert!(report.contains("idle for 300 s (timeout)"), "{report}");
    for (name, words) in [("SET", "knows no command SET"), ("INFO", "INFO has another name")] {
        let data = start(&["--rename-command", name, "other"]);
        let (status, report, _) = doctor(&data.url(), &urls, "");
        assert!(status == Some(1) && report.contains(words), "{report}");
    }
}
