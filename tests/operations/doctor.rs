//! `lockgate doctor` finds faults, says what to do, and changes nothing.

use std::{fs::Permissions, os::unix::fs::PermissionsExt, process::Command, time::Duration};

use crate::support::{self, Client, Proxy, Reply, cluster::Cluster, eventually, relay::Relay};
use lockgate::tools::{free_port::free_port, redis_server::RedisServer};

/// Addresses that no other process has.
const HERE: &str = "listen: 127.0.0.1:0\nadmin: off\n";

/// Returns the exit status and the report of doctor on a running proxy.
fn doctor_of(proxy: &Proxy) -> (Option<i32>, String) {
    let mut doctor = Command::new(env!("CARGO_BIN_EXE_lockgate"));
    let output = doctor.arg("doctor").arg(proxy.config_file()).output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Returns what doctor says of a running proxy that needs no repair.
fn report(proxy: &Proxy) -> String {
    let (status, report) = doctor_of(proxy);
    assert_eq!(status, Some(0), "nothing needs repair");
    report
}

/// Runs doctor on a deployment. Returns its exit status, its report and its errors.
fn doctor(data: &str, nodes: &[String], more: &str) -> (Option<i32>, String, String) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("lockgate.yaml");
    let list: String = nodes.iter().map(|url| format!("    - {url}\n")).collect();
    let here = if data.contains("listen:") || data.contains("admin:") { "" } else { HERE };
    let text = format!("{here}data: {data}\nlocks:\n{more}  nodes:\n{list}");
    std::fs::write(&file, text).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_lockgate"))
        .args(["doctor", file.to_str().unwrap()])
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

/// Makes these nodes a deployment.
fn init(nodes: &[String]) {
    let settings = format!("locks:\n  nodes: [{}]\n", nodes.join(", "));
    let said = support::init(&settings, &[]);
    assert!(said.contains("may vote"), "{said}");
}

fn start(arguments: &[&str]) -> RedisServer {
    RedisServer::start(arguments).unwrap()
}

/// Returns the lines about the server of this part.
fn of_part(report: &str, part: &str) -> String {
    let mut lines = report.lines().skip_while(|line| !line.starts_with(&format!("{part}  ")));
    let first = lines.next().unwrap_or_else(|| panic!("{part} is not in {report}"));
    let rest = lines.take_while(|line| line.starts_with(' '));
    [first].into_iter().chain(rest).collect::<Vec<&str>>().join("\n")
}

/// Returns the lines about the server at `url`.
fn about<'a>(report: &'a str, url: &str) -> Vec<&'a str> {
    let address = url.trim_start_matches("redis://").split('@').next_back().unwrap();
    let mut lines = report.lines().skip_while(|line| !line.contains(address));
    let first = lines.next().unwrap_or_else(|| panic!("{address} is not in {report}"));
    [first].into_iter().chain(lines.take_while(|line| line.starts_with(' '))).collect()
}

#[test]
fn a_data_node_that_is_one_of_a_cluster_is_named_with_what_to_write() {
    let (data, node) = (support::cluster::node(&[]), start(&[]));
    let urls = [node.url()];
    init(&urls);
    let what = "it is a node of a Redis Cluster, and leads clients past the proxy";
    for (guards, mark) in
        [("", " -"), ("guards: [{keys: 'account:*', lock: 'account:{1}'}]\n", "!!")]
    {
        let url = format!("{}\n{guards}", data.url());
        let (status, report, _) = doctor(url.trim_end(), &urls, "");
        assert_eq!(status == Some(0), guards.is_empty(), "{report}");
        let lines = about(&report, &data.url());
        let told = lines.iter().find(|line| line.contains(what));
        assert!(told.is_some_and(|line| line.trim_start().starts_with(mark.trim())), "{report}");
        assert!(report.contains("Write data: {cluster: [host:port, …]}"), "{report}");
    }
}

#[test]
fn a_sound_deployment_is_fit() {
    let (data, nodes) = (start(&[]), [start(&[]), start(&[]), start(&["--appendonly", "yes"])]);
    let urls: Vec<String> = nodes.iter().map(RedisServer::url).collect();
    init(&urls);
    let before = Client::connect(nodes[0].port()).cmd(&["DBSIZE"]);
    let (status, report, error) = doctor(&data.url(), &urls, "");
    assert_eq!((status, error.as_str()), (Some(0), ""), "{report}");
    assert_eq!(report.lines().count(), 5, "{report}");
    assert!(report.ends_with("\nfit: of 3 lock nodes 1 may fail\n"), "{report}");
    assert!(report.starts_with("data node  "), "{report}");
    for words in ["redis 7.", "round trip", "clock ", "no persistence"] {
        assert!(about(&report, &urls[0])[0].contains(words), "{words} is not in {report}");
    }
    assert!(about(&report, &urls[2])[0].contains("append-only file"), "{report}");
    let mut node = Client::connect(nodes[0].port());
    assert_eq!(node.cmd(&["DBSIZE"]), before, "it has changed something");
}

#[test]
fn programs_are_told_the_same() {
    let (data, nodes) = (start(&[]), [start(&[]), start(&[]), start(&["--requirepass", "x"])]);
    let urls = nodes.each_ref().map(RedisServer::url);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("lockgate.yaml");
    let settings = format!("{HERE}data: {}\nlocks: {{nodes: [{}]}}\n", data.url(), urls.join(", "));
    std::fs::write(&file, settings).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_lockgate"))
        .args(["doctor", "--json", "--config", file.to_str().unwrap()])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let told: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(told["fit"], false);
    assert_eq!(told["verdict"], "not fit: 1 of 4 servers (!!)");
    assert_eq!((&told["lock_nodes"], &told["may_fail"]), (&3.into(), &1.into()));
    assert_eq!((&told["can_lock"], &told["waiting"]), (&false.into(), &2.into()));
    let examined = told["examined"].as_array().unwrap();
    let parts: Vec<&str> = examined.iter().map(|one| one["part"].as_str().unwrap()).collect();
    assert_eq!(parts, ["data node", "lock node 1", "lock node 2", "lock node 3"]);
    let locked = &examined[3];
    assert_eq!(
        (&locked["fit"], &locked["address"]),
        (&false.into(), &nodes[2].addr().to_string().into())
    );
    let finding = &locked["findings"][0];
    assert_eq!(finding["severity"], "grave");
    assert!(finding["advice"].as_str().unwrap().contains("user and password"), "{finding}");
    assert_eq!((&examined[1]["fit"], &examined[1]["waits"]), (&true.into(), &true.into()));
}

#[test]
fn lock_nodes_that_wait_are_no_fault_and_programs_are_told_that_no_lock_can_be_had() {
    let (data, nodes) = (start(&[]), [start(&[]), start(&[]), start(&[])]);
    let urls = nodes.each_ref().map(RedisServer::url);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("lockgate.yaml");
    let settings = format!("{HERE}data: {}\nlocks: {{nodes: [{}]}}\n", data.url(), urls.join(", "));
    std::fs::write(&file, settings).unwrap();
    let told = || {
        let mut doctor = Command::new(env!("CARGO_BIN_EXE_lockgate"));
        let output = doctor.args(["doctor", "--json"]).arg(&file).output().unwrap();
        assert_eq!(output.status.code(), Some(0));
        let told: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(told["fit"], true);
        (told["can_lock"].clone(), told["waiting"].clone(), told["verdict"].to_string())
    };
    let (can_lock, waiting, verdict) = told();
    assert_eq!((can_lock, waiting), (false.into(), 3.into()));
    assert!(
        verdict.contains(
            "fit, but no lock can be had now: 3 of 3 lock nodes do not vote, and a lock needs 2 votes"
        ),
        "{verdict}"
    );
    init(&urls);
    let (can_lock, waiting, _) = told();
    assert_eq!((can_lock, waiting), (true.into(), 0.into()));
}

#[test]
fn a_proxy_that_waits_for_its_lock_nodes_needs_no_mending() {
    let mut nodes = [start(&[]), start(&[]), start(&[])];
    let urls = nodes.each_ref().map(RedisServer::url);
    let proxy = Proxy::with().node_urls(&urls).uninitialised().start();
    eventually("they wait", || proxy.http("/readyz").contains(": waits "));
    let doctor = |proxy: &Proxy| {
        let mut doctor = Command::new(env!("CARGO_BIN_EXE_lockgate"));
        let output = doctor.arg("doctor").arg(proxy.config_file()).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let (status, report) = doctor(&proxy);
    assert_eq!(status, Some(0), "{report}");
    assert!(report.contains("not ready yet"), "{report}");
    assert!(report.contains("fit, but no lock can be had now: 3 of 3 lock nodes do"), "{report}");
    nodes[0].kill().unwrap();
    eventually("one is away", || proxy.http("/readyz").matches(": waits ").count() == 2);
    assert!(doctor(&proxy).1.contains("not ready yet"), "two of three are a quorum");
    nodes[1].kill().unwrap();
    eventually("too few are left to wait for", || doctor(&proxy).1.contains("not ready, version"));
    assert_eq!(doctor(&proxy).0, Some(1));
}

#[test]
fn a_node_that_the_running_proxy_leaves_alone_is_not_counted_among_those_that_may_fail() {
    let mut proxy = Proxy::with().nodes(3).start();
    let node = proxy.node(1).addr().to_string();
    let mut operator = proxy.client();
    assert_eq!(operator.cmd(&["LOCKGATE", "NODE", &node, "PAUSE"]), Reply::ok());
    let told = report(&proxy);
    let verdict = "\nfit: 1 of 3 lock nodes does not vote now, and 0 more may fail";
    assert!(told.contains(verdict), "{told}");
    assert!(told.contains(&format!("LOCKGATE NODE {node} RESUME")), "{told}");
    assert_eq!(operator.cmd(&["LOCKGATE", "NODE", &node, "RESUME"]), Reply::ok());
    let told = report(&proxy);
    assert!(told.contains("\nfit: of 3 lock nodes 1 may fail"), "{told}");
}

#[test]
fn clients_of_the_running_proxy_that_do_not_share_are_named_with_the_reason() {
    let proxy = Proxy::with().nodes(3).top("share: yes\nio_threads: 1").start();
    let mut clients: Vec<Client> = (0..4).map(|_| proxy.client()).collect();
    for client in &mut clients {
        assert_eq!(client.cmd(&["PING"]), Reply::simple("PONG"));
    }
    let told = of_part(&report(&proxy), "clients");
    assert_eq!(
        told,
        "clients  4 share 1 link; 0 of 4 since the start (0 %) got a connection of their own"
    );
    clients[0].cmd(&["CLIENT", "SETNAME", "worker-7"]);
    clients[0].cmd(&["WATCH", "k"]);
    clients[1].cmd(&["CLIENT", "NO-EVICT", "on"]);
    clients[2].cmd(&["CLIENT", "NO-EVICT", "on"]);
    let told = of_part(&report(&proxy), "clients");
    let lines: Vec<&str> = told.lines().collect();
    let [title, client, less, transaction, script] = &lines[..] else { panic!("{told}") };
    assert!(
        title.ends_with(
            "1 share 1 link; 3 of 4 since the start (75 %) got a connection of their own"
        )
    );
    assert_eq!(*client, "   - client: 2 of 4 clients: '127.0.0.1' with CLIENT NO-EVICT, 2 times");
    assert_eq!(*transaction, "   - transaction: 1 of 4 clients: 'worker-7' with WATCH");
    assert!(less.contains("Only CLIENT SETNAME and SETINFO share"), "{told}");
    assert!(script.contains("a script shares"), "{told}");
    let plain = Proxy::with().nodes(3).top("share: no").start();
    assert!(!report(&plain).contains("\nclients  "));
}

#[test]
fn keys_on_a_new_lock_node_are_told() {
    let (data, nodes) = (start(&[]), [start(&[]), start(&[]), start(&[])]);
    let urls = nodes.each_ref().map(RedisServer::url);
    let mut other = Client::connect(nodes[1].port());
    other.cmd(&["MSET", "a", "1", "b", "2"]);
    other.cmd(&["SELECT", "3"]);
    other.cmd(&["SET", "c", "3"]);
    let what = "it has 3 keys already: locks share this Redis with them";
    let (status, report, _) = doctor(&data.url(), &urls, "");
    assert!(status == Some(0) && report.matches("keys already").count() == 1, "{report}");
    assert!(about(&report, &urls[1]).iter().any(|line| line.contains(what)), "{report}");
    let said = support::init(&format!("locks:\n  nodes: [{}]\n", urls.join(", ")), &[]);
    assert!(said.contains(&format!("lock node {}: {what}", nodes[1].addr())), "{said}");
    assert_eq!(said.matches("already: locks").count(), 1, "{said}");
    // From now on most keys are Lockgate's.
    let (_, report, _) = doctor(&data.url(), &urls, "");
    assert!(!report.contains("keys already"), "{report}");
}

#[test]
fn lockgates_own_keys_on_a_node_that_has_forgotten_all_are_nobody_elses() {
    let mut proxy = Proxy::with().nodes(3).locks("max_ttl: 10m").start();
    // Without a quorum no marker is written.
    for node in [1, 2] {
        proxy.node(node).restart().unwrap();
    }
    for node in [1, 2] {
        let mut node = proxy.node_client(node);
        eventually("it waits", || {
            node.cmd(&["EXISTS", "lockgate:since", "lockgate:max_ttl"]) == Reply::Int(2)
        });
    }
    let told = doctor_of(&proxy).1;
    assert!(!told.contains("keys already"), "{told}");
}

#[test]
fn programs_are_told_what_is_wrong_with_the_file_too() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("lockgate.yaml");
    std::fs::write(&file, "listen: 127.0.0.1:1\nlocks:\n  prefx: a\n  max_waiters: 0\n").unwrap();
    let doctor = |file: &std::path::Path| {
        let mut doctor = Command::new(env!("CARGO_BIN_EXE_lockgate"));
        let output = doctor.args(["doctor", "--json"]).arg(file).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        let told: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((&told["fit"], &told["examined"]), (&false.into(), &serde_json::Value::Null));
        assert_eq!(told["verdict"], "the configuration cannot be used");
        (told["problems"].clone(), String::from_utf8(output.stderr).unwrap())
    };
    let (problems, error) = doctor(&file);
    let problems = problems.as_array().unwrap();
    let of = |key: &str| problems.iter().find(|problem| problem["key"] == key).unwrap();
    let waiters = of("locks.max_waiters");
    assert_eq!((problems.len(), &waiters["line"]), (2, &4.into()), "{problems:?}");
    assert_eq!(waiters["file"], file.to_str().unwrap());
    assert_eq!(waiters["what"], "0 lets nobody wait; give at least 1");
    assert!(error.contains(":4: locks.max_waiters: 0 lets nobody wait"), "{error}");
    let (problems, _) = doctor(&dir.path().join("none.yaml"));
    assert!(problems[0]["what"].as_str().unwrap().contains("No such file"), "{problems}");
}

#[test]
fn whatever_is_wrong_is_told_with_what_to_do() {
    let evicting = start(&["--maxmemory", "50mb", "--maxmemory-policy", "allkeys-lru"]);
    let replica = start(&["--replicaof", "127.0.0.1 1"]);
    let locked = start(&["--requirepass", "secret"]);
    let fit = start(&[]);
    // A spelling that only the system knows.
    let twin = format!("redis://127.1:{}", fit.port());
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
    assert_eq!(error, "lockgate: not fit: 6 of 8 servers\n", "{report}");
    // None of them has a marker.
    assert!(report.ends_with("\nnot fit: 6 of 8 servers (!!); to look at: 4 (-)\n"), "{report}");
    for (url, what, advice) in [
        (&urls[0], "!! its maxmemory-policy", "CONFIG SET maxmemory-policy noeviction"),
        (&urls[1], "!! it is a replica", "masters only"),
        (&urls[2], "!! ", "user and password"),
        (&twin, "!! it is the same instance", "a Redis of its own"),
        (&urls[5], "!! ", "The ACL user needs"),
        (&nobody, "!! ", "Is it running"),
    ] {
        let lines = about(&report, url);
        assert!(lines[1].contains(what) && lines[2].contains(advice), "{url}: {report}");
    }
    let fit = about(&report, &urls[3]);
    assert!(fit.len() == 3 && fit[1].contains(" - it has no marker"), "{report}");
}

#[test]
fn what_is_advised_is_about_what_came() {
    let dir = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let [cert, key] = [("crt", made.cert.pem()), ("key", made.signing_key.serialize_pem())].map(
        |(name, content)| {
            std::fs::write(dir.path().join(name), content).unwrap();
            dir.path().join(name).display().to_string()
        },
    );
    let tls_port = free_port().unwrap();
    let port = tls_port.to_string();
    let _tls = start(&[
        "--tls-port",
        &port,
        "--tls-cert-file",
        &cert,
        "--tls-key-file",
        &key,
        "--tls-ca-cert-file",
        &cert,
        "--tls-auth-clients",
        "no",
    ]);
    let locked = start(&["--requirepass", "secret"]);
    let port = locked.port();
    for (url, advice) in [
        (locked.url(), "Put user and password into its URL"),
        (format!("redis://:wrong@127.0.0.1:{port}"), "is not the right one"),
        (format!("redis://bob:secret@127.0.0.1:{port}"), "is not the right one"),
        (format!("rediss://localhost:{port}"), "Does it speak TLS at that port"),
        (format!("redis://localhost:{tls_port}"), "begins with rediss://"),
        (format!("rediss://localhost:{tls_port}"), "Name the CA that has signed"),
        (format!("redis://127.0.0.1:{}", free_port().unwrap()), "Is it running"),
    ] {
        let (status, report, _) = doctor(&start(&[]).url(), std::slice::from_ref(&url), "");
        let told = of_part(&report, "lock node 1");
        assert!(status == Some(1) && told.contains(advice), "{url}: {report}");
    }
}

#[test]
fn nodes_that_wait_are_told_with_what_to_do() {
    let mut nodes = [start(&[]), start(&[]), start(&[])];
    let urls: Vec<String> = nodes.iter().map(RedisServer::url).collect();
    let (status, report, _) = doctor(&start(&[]).url(), &urls, "");
    assert_eq!(status, Some(0), "{report}");
    let lines = about(&report, &urls[1]);
    assert!(lines[1].contains("no lock node has a marker"), "{report}");
    assert!(lines[2].contains("lockgate init"), "{report}");
    let proxy = Proxy::with().node_urls(&urls).start();
    support::eventually("all are admitted", || proxy.nodes_up() == 3);
    nodes[1].restart().unwrap();
    let (status, report, _) = doctor(&start(&[]).url(), &urls, "");
    assert_eq!(status, Some(0), "{report}");
    let lines = about(&report, &urls[1]);
    assert!(lines[1].contains("restarted, emptied"), "{report}");
    assert_eq!(about(&report, &urls[0]).len(), 1, "{report}");
    let (status, report, _) = doctor(&start(&[]).url(), &urls, "  prefix: 'p:'\n");
    assert_eq!(status, Some(1), "{report}");
    assert!(report.contains("this proxy as node 1 of 3 with prefix 'p:'"), "{report}");
}

#[test]
fn one_lock_node_that_is_the_data_node_by_another_name_is_told() {
    let (both, other) = (start(&[]), start(&[]));
    // A spelling that only the system knows.
    let by_name = format!("redis://127.1:{}", both.port());
    init(std::slice::from_ref(&by_name));
    let (status, report, _) = doctor(&both.url(), &[by_name], "");
    assert_eq!(status, Some(0), "{report}");
    assert!(report.contains(" - it is the only lock node: when it fails"), "{report}");
    assert!(report.contains("(locks.nodes) is the data node too"), "{report}");
    assert!(report.ends_with("\nfit: of 1 lock nodes 0 may fail; to look at: 2 (-)\n"), "{report}");
    let (_, report, _) = doctor(&both.url(), &[other.url()], "");
    assert!(!report.contains("is the data node too"), "{report}");
}

#[test]
fn a_lock_cluster_that_is_the_data_cluster_is_told_by_whichever_of_its_nodes_both_are_named() {
    let (both, other) = (Cluster::start(3), Cluster::start(3));
    let front = free_port().unwrap();
    let asked = |nodes: &Cluster| {
        let data = format!("{{cluster: ['{}']}}\nlisten: 127.0.0.1:{front}", both.nodes[0].addr());
        doctor(&data, &[format!("{{cluster: ['{}']}}", nodes.nodes[1].addr())], "").1
    };
    let told = format!(" - cluster ({}) (locks.nodes) is the data node too", both.nodes[1].addr());
    let report = asked(&both);
    assert_eq!(report.matches(&told).count(), 1, "{told} in {report}");
    assert!(!asked(&other).contains("is the data node too"));
}

#[test]
fn an_eviction_policy_without_a_limit_of_memory_evicts_nothing() {
    let (data, node) = (start(&[]), start(&["--maxmemory-policy", "allkeys-lru"]));
    init(&[node.url()]);
    let (status, report, _) = doctor(&data.url(), &[node.url()], "");
    assert_eq!(status, Some(0), "{report}");
    assert!(report.contains(" - its maxmemory-policy"), "{report}");
}

#[test]
fn a_node_that_is_far_away_is_examined() {
    let (data, node) = (start(&[]), start(&[]));
    let far = Relay::to(node.port());
    let url = format!("redis://127.0.0.1:{}", far.port());
    init(std::slice::from_ref(&url));
    // All questions together take longer than one answer may.
    far.delay_replies(Duration::from_millis(150));
    let (_, report, _) = doctor(&data.url(), std::slice::from_ref(&url), "");
    let lines = about(&report, &url);
    assert!(lines[0].contains(", round trip 15") && !report.contains("no answer"), "{report}");
    far.hold_reply("PONG");
    let (_, report, _) = doctor(&data.url(), std::slice::from_ref(&url), "");
    assert!(report.contains("no answer within 3s"), "{report}");
    far.release();
}

/// Its votes come too late, so it is none of the spare ones.
#[test]
fn a_lock_node_that_is_too_far_away_to_vote_is_not_fit() {
    let (data, nodes) = (start(&[]), [start(&[]), start(&[]), start(&[])]);
    let mut urls = nodes.each_ref().map(RedisServer::url);
    init(&urls);
    let far = Relay::to(nodes[2].port());
    urls[2] = format!("redis://127.0.0.1:{}", far.port());
    far.delay_replies(Duration::from_millis(300));
    let (status, report, _) = doctor(&data.url(), &urls, "  node_timeout: 200ms\n");
    assert_eq!(status, Some(1), "{report}");
    let lines = about(&report, &urls[2]).join("\n");
    assert!(lines.contains("!! from here a round trip takes 3"), "{report}");
    assert!(lines.contains("more than locks.node_timeout (200ms)"), "{report}");
    assert!(report.contains("not fit: 1 of 4 servers"), "{report}");
}

#[test]
fn a_lock_node_of_another_deployment_is_not_fit() {
    let (data, nodes) = (start(&[]), [start(&[]), start(&[]), start(&[])]);
    let others = [start(&[]), start(&[]), start(&[])];
    let mut urls = nodes.each_ref().map(RedisServer::url);
    init(&urls);
    init(&others.each_ref().map(RedisServer::url));
    // On the same seat, where its marker names it.
    urls[2] = others[2].url();
    let (status, report, _) = doctor(&data.url(), &urls, "");
    assert_eq!(status, Some(1), "{report}");
    assert!(
        about(&report, &urls[2]).join("\n").contains("!! it belongs to deployment "),
        "{report}"
    );
    for url in &urls[..2] {
        assert_eq!(about(&report, url).len(), 1, "{report}");
    }
}

#[test]
fn a_lock_node_that_a_replica_has_visited_waits_and_says_why() {
    let (data, nodes) = (start(&[]), [start(&[]), start(&[]), start(&[])]);
    let urls = nodes.each_ref().map(RedisServer::url);
    init(&urls);
    let proxy = Proxy::with().node_urls(&urls).start();
    eventually("all vote", || proxy.nodes_up() == 3);
    // A node waits for this TTL.
    proxy.client().cmd(&["LOCK", "k", "a", "PX", "20000"]).grant();
    // As redis-cli --rdb does.
    let mut copier = Client::connect(nodes[0].port());
    copier.send(b"SYNC\r\n");
    let why = "or got its first replica (redis-cli --rdb is one)";
    eventually("the proxy says why", || proxy.http("/readyz").contains(why));
    let (status, report, _) = doctor(&data.url(), &urls, "");
    assert_eq!(status, Some(0), "{report}");
    assert!(of_part(&report, "lock node 1").contains(why), "{report}");
    drop(copier);
}

#[test]
fn nodes_to_come_are_examined_too() {
    let (data, nodes) = (start(&[]), [start(&[]), start(&[]), start(&[])]);
    let urls = nodes.each_ref().map(RedisServer::url);
    init(&urls);
    let evicting = start(&["--maxmemory", "50mb", "--maxmemory-policy", "allkeys-lru"]);
    let replica = start(&["--replicaof", "127.0.0.1 1"]);
    let (locked, full) = (start(&["--requirepass", "secret"]), start(&["--maxmemory", "1"]));
    let (others, fit) = (start(&[]), start(&[]));
    init(&[others.url()]);
    // A spelling that only the system knows.
    let twin = format!("redis://127.1:{}", fit.port());
    let gone = format!("redis://127.0.0.1:{}", free_port().unwrap());
    let next = [
        evicting.url(),
        replica.url(),
        locked.url(),
        full.url(),
        others.url(),
        fit.url(),
        twin,
        data.url(),
        gone,
    ];
    let of = |next: &[String]| format!("  next_nodes: [{}]\n", next.join(", "));
    let (status, report, _) = doctor(&data.url(), &urls, &of(&next));
    assert_eq!(status, Some(1), "{report}");
    for (number, what, advice) in [
        (1, "!! its maxmemory-policy", "CONFIG SET maxmemory-policy noeviction"),
        (2, "!! it is a replica", "masters only"),
        (3, "!! ", "user and password"),
        (4, "!! it refuses writes: \"OOM\"", "raise maxmemory"),
        (5, "!! it belongs to another deployment", "DEL lockgate:deployment there"),
        (7, "!! it is the same instance", "a Redis of its own"),
        (8, " (locks.next_nodes) is the data node too", "a Redis of their own"),
        (9, "!! ", "Is it running"),
    ] {
        let lines = of_part(&report, &format!("next lock node {number}"));
        assert!(lines.contains(what) && lines.contains(advice), "{number}: {report}");
    }
    assert_eq!(of_part(&report, "next lock node 6").lines().count(), 1, "{report}");
    assert_eq!(of_part(&report, "lock node 1").lines().count(), 1, "{report}");
    assert!(report.contains("\nnot fit: 7 of 13 servers (!!)"), "{report}");

    // Nodes that vote now may stay, and new nodes are no finding.
    let (status, report, _) = doctor(&data.url(), &urls, &of(&[fit.url()]));
    assert_eq!(status, Some(0), "{report}");
    let alone = of_part(&report, "next lock node 1");
    assert!(alone.contains("it is the only lock node") && alone.contains("locks.next_nodes"));
    let third = start(&[]);
    let (status, report, _) =
        doctor(&data.url(), &urls, &of(&[fit.url(), urls[1].clone(), third.url()]));
    assert_eq!(status, Some(0), "{report}");
    assert!(report.ends_with("\nfit: of 3 lock nodes 1 may fail\n"), "{report}");
}

#[test]
fn a_lock_node_that_takes_no_writes_is_told() {
    let (data, nodes) = (start(&[]), [start(&[]), start(&[]), start(&[])]);
    let urls = nodes.each_ref().map(RedisServer::url);
    init(&urls);
    let mut full = Client::connect(nodes[1].port());
    assert_eq!(full.cmd(&["CONFIG", "SET", "maxmemory", "1"]), Reply::ok());
    let (status, report, _) = doctor(&data.url(), &urls, "");
    assert_eq!(status, Some(1), "{report}");
    let lines = of_part(&report, "lock node 2");
    assert!(lines.contains("!! it refuses writes: \"OOM\": command not allowed"), "{report}");
    assert!(lines.contains("raise maxmemory"), "{report}");
    assert_eq!(of_part(&report, "lock node 1").lines().count(), 1, "{report}");
}

#[test]
fn what_ends_connections_or_changes_a_replication_id_is_told() {
    let (data, watched) = (start(&["--timeout", "300"]), start(&["--timeout", "60"]));
    let nodes = [start(&[]), watched, start(&[])];
    let master = format!("127.0.0.1 {}", nodes[0].port());
    let replica = start(&["--replicaof", &master]);
    let mut asked = Client::connect(nodes[0].port());
    support::eventually("it has a replica", || {
        format!("{:?}", asked.cmd(&["ROLE"]))
            .contains(&format!("{:?}", Reply::bulk(&replica.port().to_string())))
    });
    // A Sentinel subscribes to this channel.
    let mut sentinel = Client::connect(nodes[1].port());
    sentinel.cmd(&["SUBSCRIBE", "__sentinel__:hello"]);
    let urls: Vec<String> = nodes.iter().map(RedisServer::url).collect();
    init(&urls);
    let (status, report, _) = doctor(&data.url(), &urls, "");
    assert_eq!(status, Some(0), "{report}");
    let of_data = about(&report, &data.url()).join("\n");
    assert!(of_data.contains(" - it closes connections that are idle for 300 s"), "{report}");
    assert!(of_data.contains("CONFIG SET timeout 0"), "{report}");
    let first = about(&report, &urls[0]).join("\n");
    assert!(
        first.contains(" - it has replicas (1): its replication id changes when a"),
        "{report}"
    );
    let second = about(&report, &urls[1]).join("\n");
    assert!(
        second.contains(" - Sentinels watch it (1): its replication id changes at"),
        "{report}"
    );
    assert!(second.contains(" - it closes connections that are idle for 60 s"), "{report}");
    assert_eq!(about(&report, &urls[2]).len(), 1, "{report}");
    assert!(report.ends_with("; to look at: 4 (-)\n"), "{report}");
}

#[test]
fn a_listener_for_which_the_proxy_would_not_start_is_told() {
    let (open, nodes) = (start(&[]), [start(&[]), start(&[]), start(&[])]);
    let urls: Vec<String> = nodes.iter().map(RedisServer::url).collect();
    let of = |data: &RedisServer| {
        let listen = format!("{}\nlisten: 0.0.0.0:6380", data.url());
        doctor(&listen, &urls, "")
    };
    let (status, report, error) = of(&open);
    assert_eq!((status, error.as_str()), (Some(1), "lockgate: not fit: 1 of 4 servers\n"));
    let lines = about(&report, &open.url());
    assert!(lines[1].contains("!! 0.0.0.0:6380 (listen) can be reached from"), "{report}");
    assert!(lines[2].contains("Lockgate does not start"), "{report}");
    let guarded = start(&["--requirepass", "secret"]);
    let (_, report, _) = of(&guarded);
    assert!(!report.contains("can be reached from"), "{report}");
}

#[test]
fn what_keeps_a_proxy_from_starting_here_is_told() {
    let (data, node) = (start(&[]), start(&[]));
    let urls = [node.url()];
    let file = tempfile::NamedTempFile::new().unwrap();
    let within = format!("upgrade_socket: {}/lockgate.sock", file.path().display());
    for (settings, words) in [
        (
            "listen: 203.0.113.7:6390\nallow_open: true",
            "cannot listen on 203.0.113.7:6390 (listen)",
        ),
        ("admin: 203.0.113.7:9", "cannot listen on 203.0.113.7:9 (admin)"),
        (
            "upgrade_socket: /nowhere/lockgate.sock",
            "cannot make upgrade_socket /nowhere/lockgate.sock",
        ),
        (&within, "is no directory"),
    ] {
        let (status, report, _) = doctor(&format!("{}\n{settings}", data.url()), &urls, "");
        assert!(status == Some(1) && report.contains(words), "{settings}: {report}");
        assert!(report.contains("Lockgate does not start here"), "{report}");
    }
    let mut with_filter = Command::new(env!("CARGO_BIN_EXE_lockgate"));
    let settings = format!("data: {}\nlocks:\n  nodes: [{}]\n", data.url(), node.url());
    std::fs::write(file.path(), settings).unwrap();
    let output =
        with_filter.arg("doctor").arg(file.path()).env("LOCKGATE_LOG", "loud").output().unwrap();
    let report = String::from_utf8(output.stdout).unwrap();
    assert!(!output.status.success() && report.contains("'loud' is no level"), "{report}");

    // Something else lies where the socket is to be, or is made.
    let (plain, dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let path = |dir: &tempfile::TempDir| dir.path().join("lockgate.sock");
    std::fs::write(path(&plain), "").unwrap();
    std::fs::create_dir(dir.path().join("lockgate.sock.new")).unwrap();
    for (path, words) in
        [(path(&plain), "a file that is not a socket"), (path(&dir), "cannot be removed")]
    {
        let settings = format!("{}\nupgrade_socket: {}", data.url(), path.display());
        let (status, report, _) = doctor(&settings, &urls, "");
        assert!(status == Some(1) && report.contains(words), "{report}");
        assert!(report.contains("Lockgate does not start here"), "{report}");
    }
    let settings = format!("{}\nupgrade_socket: /run/lockgate-of-nobody/l.sock", data.url());
    let (status, report, _) = doctor(&settings, &urls, "");
    assert!(status == Some(0) && report.contains("RuntimeDirectory"), "{report}");
}

#[test]
fn a_port_that_another_program_has_is_told_and_a_proxy_of_ones_own_may_have_it() {
    let (data, node) = (start(&[]), start(&[]));
    let urls = [node.url()];
    let taken = [0; 2].map(|_| std::net::TcpListener::bind("127.0.0.1:0").unwrap());
    let [listen, admin] = taken.each_ref().map(|taken| taken.local_addr().unwrap());
    let settings = format!("{}\nlisten: {listen}\nadmin: {admin}", data.url());
    let (status, report, _) = doctor(&settings, &urls, "");
    let told = format!(" - in use: {listen} (listen), {admin} (admin)");
    assert!(status == Some(0) && report.contains(&told), "{report}");
    // Nobody met doctor there.
    drop(taken);
    let (_, report, _) = doctor(&settings, &urls, "");
    assert!(!report.contains("in use"), "{report}");
}

/// Runs doctor as a user without any rights.
fn doctor_of_nobody(settings: &str) -> (Option<i32>, String) {
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    let (file, binary) = (dir.path().join("f.yaml"), dir.path().join("lockgate"));
    std::fs::write(&file, settings).unwrap();
    // Another process copies the file. A process that another test starts would inherit the open file, and a file
    // that is open for writing cannot be run.
    let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_lockgate")).arg(&binary).status();
    assert!(copied.unwrap().success());
    let output = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", "--bounding-set=-all"])
        .arg(&binary)
        .arg("doctor")
        .arg(&file)
        .output()
        .unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn what_a_user_without_rights_may_not_have_is_told() {
    let (data, node) = (start(&[]), start(&[]));
    let dir = tempfile::tempdir().unwrap();
    let others = dir.path().join("others");
    std::fs::create_dir(&others).unwrap();
    std::fs::set_permissions(dir.path(), Permissions::from_mode(0o1777)).unwrap();
    std::fs::set_permissions(&others, Permissions::from_mode(0o755)).unwrap();
    std::fs::write(dir.path().join("mine.sock.new"), "").unwrap();
    let path = dir.path().display();
    // In containers this is 0.
    let first = std::fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start").unwrap();
    let port = match first.trim() {
        "0" => "cannot make upgrade_socket /nowhere/l.sock",
        _ => "cannot listen on 127.0.0.1:1 (listen): Permission denied",
    };
    for (settings, words) in [
        ("listen: 127.0.0.1:1\nadmin: off\nupgrade_socket: /nowhere/l.sock".to_owned(), port),
        (format!("{HERE}upgrade_socket: {path}/others/l.sock"), "others: Permission denied"),
        (format!("{HERE}upgrade_socket: {path}/mine.sock"), "mine.sock.new is in the way"),
    ] {
        let (data, node) = (data.url(), node.url());
        let (status, report) =
            doctor_of_nobody(&format!("{settings}\ndata: {data}\nlocks: {{nodes: {node}}}\n"));
        assert!(status == Some(1) && report.contains(words), "{settings}: {report}");
    }
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

#[test]
fn what_the_proxys_user_lacks_for_a_bridge_is_told() {
    let (data, node) = (start(&[]), start(&[]));
    let urls = [node.url()];
    init(&urls);
    let mut admin = Client::connect(data.port());
    let (bridge, audit) = ("mode: bridge", "mode: audit");
    let mut examine = |permissions: &str, mode: &str| {
        let words = format!("ACL SETUSER gate reset on >secret +ping {permissions}");
        let words: Vec<&str> = words.split(' ').collect();
        assert_eq!(admin.cmd(&words), Reply::ok());
        let rules = format!("adopt: {{keys: 'lock:*:l', lock: 'j:{{1}}', {mode}}}");
        let url = format!("redis://gate:secret@127.0.0.1:{}\n{rules}", data.port());
        doctor(&url, &urls, "")
    };
    let all = "+info ~lock:* +eval +select +exists +get +set +del +pttl";
    let (status, report, _) = examine(all, bridge);
    assert_eq!((status, about(&report, &data.url()).len()), (Some(0), 1), "{report}");
    // Another client has this key, and keeps it.
    let mut holder = Client::connect(data.port());
    holder.cmd(&["SET", "lock:lockgate:doctor:l", "t", "PX", "100000"]);
    for (key, permissions, lacking) in [
        (false, "+info ~lock:* +eval +select +exists +get +set", "PTTL, DEL"),
        (true, "+info ~lock:* +eval +select +exists +get +del +pttl", "SET"),
        (true, "+info ~lock:* +eval +set +del +pttl", "SELECT, GET, EXISTS"),
        (true, "+info ~lock:* +select +exists +get +set +del +pttl", "EVAL"),
        (true, "+info ~other:* +eval +select +exists +get +set +del +pttl", "the keys"),
        (true, "~lock:* +eval +exists +get +set +del +pttl", "SELECT"),
    ] {
        if !key {
            holder.cmd(&["RENAME", "lock:lockgate:doctor:l", "aside"]);
        }
        let (status, report, error) = examine(permissions, bridge);
        assert_eq!(status, Some(1), "{report}");
        assert_eq!(error, "lockgate: not fit: 1 of 2 servers\n", "{report}");
        let lines = about(&report, &data.url()).join("\n");
        let expected = format!(
            "!! the proxy's user lacks what mode: bridge needs on 'lock:*:l': {lacking} (tried on \
             'lock:lockgate:doctor:l')\n     Allow the user in data ~lock:*:l +eval +select"
        );
        assert!(lines.contains(&expected), "{permissions}: {report}");
        if !key {
            holder.cmd(&["RENAME", "aside", "lock:lockgate:doctor:l"]);
        }
        assert_eq!(holder.cmd(&["GET", "lock:lockgate:doctor:l"]), Reply::bulk("t"));
    }
    // A configuration that bridges nothing needs none of these permissions.
    let (status, report, _) = examine("+info", audit);
    assert_eq!((status, about(&report, &data.url()).len()), (Some(0), 1), "{report}");
}

#[test]
fn a_user_whom_doctor_finds_fit_can_bridge() {
    let data = start(&[]);
    let words = "ACL SETUSER gate on >secret +ping +info ~lock:* +eval +select +exists +get +set +del +pttl";
    let words: Vec<&str> = words.split(' ').collect();
    assert_eq!(Client::connect(data.port()).cmd(&words), Reply::ok());
    let proxy = Proxy::with()
        .data_url(&format!("redis://gate:secret@127.0.0.1:{}", data.port()))
        .top("adopt: {keys: 'lock:*', lock: '{1}', mode: bridge}")
        .start();
    support::eventually("it is ready", || proxy.http("/readyz").starts_with("HTTP/1.1 200"));
    let (mut past, mut client) = (Client::connect(data.port()), proxy.client());
    client.cmd(&["LOCK", "job", "t", "PX", "20000"]).grant();
    assert_eq!(past.cmd(&["GET", "lock:job"]), Reply::bulk("t"));
    assert!(matches!(client.cmd(&["RENEW", "job", "PX", "60000"]), Reply::Int(1..)));
    let Reply::Int(left) = past.cmd(&["PTTL", "lock:job"]) else { panic!() };
    assert!(left > 20_000, "{left}");
    assert_eq!(client.cmd(&["SET", "lock:job", "u", "NX", "PX", "20000"]), Reply::NullBulk);
    assert_eq!(client.cmd(&["GET", "lock:job"]), Reply::bulk("t"));
    assert_eq!(client.cmd(&["UNLOCK", "job", "t"]), Reply::Int(1));
    assert_eq!(past.cmd(&["EXISTS", "lock:job"]), Reply::Int(0));
}

#[test]
fn a_user_who_cannot_raise_fences_is_named() {
    let (data, node) = (start(&[]), start(&[]));
    init(&[node.url()]);
    let mut admin = Client::connect(data.port());
    let mut examine = |permissions: &str, rules: &str| {
        let words = format!("ACL SETUSER gate reset on >secret +ping +info {permissions}");
        let words: Vec<&str> = words.split(' ').collect();
        assert_eq!(admin.cmd(&words), Reply::ok());
        let url = format!("redis://gate:secret@127.0.0.1:{}\n{rules}", data.port());
        doctor(&url, &[node.url()], "")
    };
    let guarded = "guards: {keys: 'account:*', lock: 'account:{1}'}";
    for (permissions, lacking) in [
        ("~lockgate:guard:* +eval +get +set", None),
        ("~lockgate:guard:* +eval +get", Some("SET")),
        ("~lockgate:guard:* +eval", Some("GET, SET")),
        ("~lockgate:guard:* +get +set", Some("EVAL")),
        ("~other:* +eval +get +set", Some("the keys")),
    ] {
        let (status, report, _) = examine(permissions, guarded);
        assert_eq!(status, Some(0), "{report}");
        let lines = about(&report, &data.url()).join("\n");
        let what = "an operator's UNLOCK of a lock that guards need sends";
        assert_eq!(lines.contains(what), lacking.is_some(), "{permissions}: {report}");
        if let Some(lacking) = lacking {
            assert!(lines.contains(&format!("{what}: {lacking}\n")), "{permissions}: {report}");
        }
    }
    let (_, report, _) = examine("", "");
    assert_eq!(about(&report, &data.url()).len(), 1, "{report}");
}

#[test]
fn what_readers_need_of_a_lock_node_is_tried() {
    let [data, node] = [start(&[]), start(&[])];
    init(&[node.url()]);
    let others =
        "+@connection +@scripting +@pubsub +info +time +get +set +del +pttl +pexpire +scan";
    let readers = ["exists", "pexpireat", "zadd", "zcount", "zrange", "zrangebyscore", "zrem"];
    let readers = [&readers[..], &["zremrangebyscore", "zrevrange", "zscore"]].concat();
    for (lacking, shared) in
        [(&[][..], "yes"), (&["zadd"], "yes"), (&["zrem", "zscore"], "yes"), (&["zadd"], "no")]
    {
        let allowed =
            readers.iter().filter(|name| !lacking.contains(*name)).map(|name| format!("+{name}"));
        let allowed = allowed.collect::<Vec<_>>().join(" ");
        let rules = format!("reset on >secret ~lock:* ~lockgate:* &lockgate:* {others} {allowed}");
        let set = format!("ACL SETUSER proxy {rules}");
        let set: Vec<&str> = set.split(' ').collect();
        assert_eq!(Client::connect(node.port()).cmd(&set), Reply::ok());
        let url = node.url().replace("redis://", "redis://proxy:secret@");
        let (status, report, _) = doctor(&data.url(), &[url], &format!("  shared: {shared}\n"));
        assert_eq!(status, Some(0), "{report}");
        let names: String = lacking.iter().map(|name| format!(" +{name}")).collect();
        let what =
            format!("the proxy's user lacks what LOCK with SHARED sends (locks.shared):{names}\n");
        let is_told = shared == "yes" && !lacking.is_empty();
        assert_eq!(report.contains(&what), is_told, "{lacking:?}: {report}");
        assert_eq!(report.contains("LOCK with SHARED"), is_told, "{report}");
    }
}

#[test]
fn guards_need_all_replicas_that_may_be_promoted() {
    let (data, node) = (start(&["--repl-diskless-sync-delay", "0"]), start(&[]));
    init(&[node.url()]);
    let asked = |replicas: &str| {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("lockgate.yaml");
        let text = format!(
            "{HERE}data: {}\nguards: {{{replicas}rules: {{keys: 'a:*', lock: 'a:{{1}}'}}}}\nlocks: {{nodes: {}}}\n",
            data.url(),
            node.url()
        );
        std::fs::write(&file, text).unwrap();
        let output = Command::new(env!("CARGO_BIN_EXE_lockgate"))
            .args(["doctor", file.to_str().unwrap()])
            .output()
            .unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let (status, alone) = asked("");
    assert_eq!(status, Some(0), "{alone}");
    assert!(!alone.contains("replicas"), "{alone}");
    let (status, none) = asked("replicas: 1, ");
    assert_eq!(status, Some(1), "{none}");
    assert!(
        none.contains(
            "it has 0 replicas now, of which 0 acknowledge what they get, and guards.replicas is 1"
        ),
        "{none}"
    );
    let replica = start(&["--replicaof", "127.0.0.1", &data.port().to_string()]);
    support::eventually("the replica is connected", || {
        Client::connect(data.port()).cmd(&["WAIT", "1", "100"]) == Reply::Int(1)
    });
    let (status, few) = asked("");
    assert_eq!(status, Some(0), "{few}");
    assert!(few.contains("1 replicas may be promoted, and guards.replicas is 0"), "{few}");
    assert!(few.contains("min-replicas-to-write is 0"), "{few}");
    let words = ["CONFIG", "SET", "min-replicas-to-write", "1"];
    assert_eq!(Client::connect(data.port()).cmd(&words), Reply::ok());
    let (status, all) = asked("replicas: 1, ");
    assert_eq!(status, Some(0), "{all}");
    assert!(!all.contains("may be promoted") && !all.contains("min-replicas"), "{all}");
    drop(replica);
}
