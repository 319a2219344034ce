//! Other lock nodes replace those of running proxies: `locks.next_nodes`, SIGHUP, `lockgate nodes`.

use std::{
    fs,
    process::{Child, Command, Output, Stdio},
    thread,
    time::Duration,
};

use lockgate::tools::redis_server::RedisServer;
use rustix::process::{Pid, Signal, kill_process};

use crate::support::{Client, Proxy, Reply, encode, eventually, relay::Relay};

fn redis() -> RedisServer {
    RedisServer::start(&[]).unwrap()
}

/// Writes the next lock nodes into the proxy's file, and has the proxy read it.
fn list(proxy: &Proxy, next: &[String]) {
    let text = fs::read_to_string(proxy.config_file()).unwrap();
    let end = text.find("  next_nodes:").unwrap_or(text.len());
    fs::write(proxy.config_file(), format!("{}  next_nodes: {next:?}\n", &text[..end])).unwrap();
    reload(proxy);
}

/// Writes both lists into the proxy's file, and has the proxy read it. An empty list is left out.
fn list_both(proxy: &Proxy, nodes: &[String], next: &[String]) {
    write_both(proxy, nodes, next);
    reload(proxy);
}

fn write_both(proxy: &Proxy, nodes: &[String], next: &[String]) {
    let text = fs::read_to_string(proxy.config_file()).unwrap();
    let at = text.find("  nodes:").unwrap();
    let next = if next.is_empty() { String::new() } else { format!("  next_nodes: {next:?}\n") };
    let lists = format!("  nodes: {nodes:?}\n{next}");
    fs::write(proxy.config_file(), format!("{}{lists}", &text[..at])).unwrap();
}

/// Writes `count` fences to the proxy's lock nodes, so that copying takes a while.
fn fill(proxy: &Proxy, count: usize) {
    let fill = format!(
        "for n = 1, {count} do redis.call('SET', 'lockgate:fence:lock:' .. n, n .. ' 1111111111111111') end"
    );
    for node in 0..3 {
        proxy.node_client(node).cmd(&["EVAL", &fill, "0"]);
    }
}

fn three() -> [RedisServer; 3] {
    [redis(), redis(), redis()]
}

fn urls(nodes: &[RedisServer]) -> Vec<String> {
    nodes.iter().map(RedisServer::url).collect()
}

fn reload(proxy: &Proxy) {
    let done = || proxy.metric("lockgate_config_reloads_total", "result=\"ok\"");
    let before = done();
    proxy.reload();
    eventually("it was read again", || done() > before);
}

/// Runs `lockgate nodes` with the proxy's file.
fn nodes(proxy: &Proxy, flags: &[&str]) -> Output {
    let mut tool = Command::new(env!("CARGO_BIN_EXE_lockgate"));
    tool.arg("nodes").args(flags).arg(proxy.config_file()).output().unwrap()
}

/// Returns what `lockgate nodes` prints, and checks that it succeeds.
fn shown(proxy: &Proxy, flags: &[&str]) -> String {
    let Output { status, stdout, stderr } = nodes(proxy, flags);
    let text = |bytes| String::from_utf8(bytes).unwrap();
    assert!(status.success(), "{}{}", text(stdout), text(stderr));
    text(stdout)
}

/// Returns the errors of `lockgate nodes`, and checks that it fails.
fn refused(proxy: &Proxy, flags: &[&str]) -> String {
    let Output { status, stderr, .. } = nodes(proxy, flags);
    assert!(!status.success());
    String::from_utf8(stderr).unwrap()
}

/// Starts to change the lock nodes, with the proxy's file.
fn start_changing(proxy: &Proxy) -> Child {
    let mut tool = Command::new(env!("CARGO_BIN_EXE_lockgate"));
    tool.args(["nodes", "--change", "--at-most", "60s"]).arg(proxy.config_file());
    tool.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Waits for the end of the command, and returns what it has printed.
fn said(tool: Child) -> String {
    let Output { stdout, stderr, .. } = tool.wait_with_output().unwrap();
    String::from_utf8([stdout, stderr].concat()).unwrap()
}

/// Runs `lockgate doctor` with the proxy's file. Returns whether all is fit, and the report.
fn doctor(proxy: &Proxy) -> (bool, String) {
    let mut tool = Command::new(env!("CARGO_BIN_EXE_lockgate"));
    let Output { status, stdout, .. } =
        tool.arg("doctor").arg(proxy.config_file()).output().unwrap();
    (status.success(), String::from_utf8(stdout).unwrap())
}

/// Returns the addresses of a proxy's lock nodes that are up.
fn asked(proxy: &Proxy) -> Vec<String> {
    asked_if(proxy, |up| *up == Reply::Int(1))
}

/// Returns the addresses of those lock nodes of a proxy for which `is_meant` holds; it is given whether the node is
/// up.
fn asked_if(proxy: &Proxy, is_meant: impl Fn(&Reply) -> bool) -> Vec<String> {
    let Reply::Array(all) = proxy.client().cmd(&["LOCKGATE", "NODES"]) else { panic!("no nodes") };
    let of = |node: &Reply| match node {
        Reply::Array(fields) => match &fields[1] {
            Reply::Bulk(address) if is_meant(&fields[3]) => {
                Some(String::from_utf8(address.clone()).unwrap())
            }
            _ => None,
        },
        _ => panic!("no node"),
    };
    all.iter().filter_map(of).collect()
}

/// Returns the addresses of the lock nodes in /metrics, by their numbers.
fn series(proxy: &Proxy) -> Vec<String> {
    let text = proxy.http("/metrics");
    let mut told: Vec<(&str, &str)> = text
        .lines()
        .filter_map(|line| line.split_once("{node=\"")?.1.split_once("\",address=\""))
        .map(|(number, rest)| (number, rest.split('"').next().unwrap()))
        .collect();
    told.sort_unstable();
    told.dedup();
    told.into_iter().map(|(_, address)| address.to_owned()).collect()
}

fn addresses(nodes: &[&RedisServer]) -> Vec<String> {
    nodes.iter().map(|node| node.addr().to_string()).collect()
}

/// Takes the lock, as soon as lock nodes can be asked. Returns its fence.
fn lock(client: &mut Client, words: &[&str]) -> i64 {
    let mut granted = None;
    eventually("lock nodes can be asked", || {
        let reply = client.cmd(words);
        granted = (!reply.error_text().starts_with("NOQUORUM")).then(|| reply.grant().fence);
        granted.is_some()
    });
    granted.unwrap()
}

fn has(node: &RedisServer, key: &str) -> Reply {
    Client::connect(node.port()).cmd(&["GET", key])
}

#[test]
fn locks_outlive_the_nodes_that_granted_them() {
    let mut one = Proxy::with().nodes(3).locks("node_timeout: 500ms").start();
    let other = Proxy::beside(&one).start();
    eventually("the other proxy is ready", || asked(&other).len() == 3);
    let (four, five) = (redis(), redis());
    let (mut session, mut waiter) = (one.client(), other.client());
    let (mut client, mut elsewhere) = (one.client(), other.client());
    session.cmd(&["LOCK", "session", "s"]).grant();
    let fence = client.cmd(&["LOCK", "lease", "l", "PX", "50000"]).grant().fence;
    client.cmd(&["LOCK", "released", "r", "PX", "50000"]).grant();
    assert_eq!(elsewhere.cmd(&["UNLOCK", "released", "r"]), Reply::Int(1));
    waiter.send(&encode(&["LOCK", "session", "w", "PX", "5000", "WAIT", "30000"]));
    eventually("it waits", || other.waiters() == 1);
    // If the data node has seen a larger fence, a lock's fence may be far ahead of the clock.
    let far = "9000000000000000 1111111111111111";
    for node in 0..3 {
        one.node_client(node).cmd(&["SET", "lockgate:fence:lock:far", far]);
    }

    // One node stays, at another place in the list.
    let next: Vec<String> = vec![four.url(), one.node(1).url(), five.url()];
    list(&one, &next);
    list(&other, &next);
    let text = shown(&one, &[]);
    assert!(text.starts_with("locks.nodes vote\n"), "{text}");
    assert!(text.contains(&format!("{}  no marker", four.addr())), "{text}");
    let text = shown(&one, &["--change"]);
    assert!(text.contains("changed: 2 held locks were copied"), "{text}");
    assert!(!text.contains("another command"), "{text}");
    assert!(text.contains("\nlocks.next_nodes vote\n"), "{text}");
    for node in [&four, &five] {
        assert_eq!(has(node, "lockgate:fence:lock:far"), Reply::bulk(far));
    }
    let stays = one.node(1).addr();
    let expected = [four.addr(), stays, five.addr()].map(|addr| addr.to_string());
    for proxy in [&one, &other] {
        eventually("the next nodes are asked", || asked(proxy) == expected);
        // Otherwise alerts on the old nodes would never resolve.
        eventually("only the next nodes have series", || series(proxy) == expected);
    }
    one.node(0).kill().unwrap();
    one.node(2).kill().unwrap();

    for client in [&mut client, &mut elsewhere] {
        assert_eq!(client.cmd(&["LOCK", "lease", "x", "PX", "1000"]), Reply::NullArray);
        assert_eq!(client.cmd(&["LOCK", "session", "x", "PX", "1000"]), Reply::NullArray);
    }
    client.cmd(&["LOCK", "released", "x", "PX", "50000"]).grant();
    assert!(client.cmd(&["LOCK", "far", "x", "PX", "1000"]).grant().fence > 9_000_000_000_000_000);
    let renewed = elsewhere.cmd(&["RENEW", "lease", "l", "PX", "50000"]);
    assert!(matches!(renewed, Reply::Int(left) if left > 40_000), "{renewed:?}");
    // By then the TTL of a session lock is over, unless it was renewed on the next nodes.
    thread::sleep(Duration::from_secs(11));
    assert_eq!(session.cmd(&["PING"]), Reply::simple("PONG"));
    assert_eq!(session.cmd(&["UNLOCK", "session", "s"]), Reply::Int(1));
    waiter.reply().grant();
    assert_eq!(client.cmd(&["UNLOCK", "lease", "l"]), Reply::Int(1));
    assert!(elsewhere.cmd(&["LOCK", "lease", "x", "PX", "1000"]).grant().fence > fence);

    // A proxy that starts with either file finds the next nodes too.
    let mut one = one;
    one.kill();
    one.start_again();
    eventually("the next nodes are asked", || asked(&one) == expected);
    let text = fs::read_to_string(other.config_file()).unwrap();
    let at = text.find("  nodes:").unwrap();
    fs::write(other.config_file(), format!("{}  nodes: {next:?}\n", &text[..at])).unwrap();
    reload(&other);
    for key in ["locks.nodes", "locks.next_nodes"] {
        assert!(other.log().contains(&format!("\"changed\",\"key\":\"{key}\"")), "{}", other.log());
    }
    // Without a change nothing can fail: the state of each lock node is shown.
    let text = shown(&other, &[]);
    assert!(
        text.starts_with("no change is asked for: the file has no locks.next_nodes\n"),
        "{text}"
    );
    assert_eq!(text.matches(", which votes; epoch ").count(), next.len(), "{text}");
    assert!(refused(&other, &["--change"]).contains("has no locks.next_nodes"));
    assert!(shown(&one, &["--change"]).contains("have been changed already"));
    assert!(refused(&one, &["--back-out"]).contains("have been changed already"));
    elsewhere.cmd(&["LOCK", "again", "x", "PX", "1000"]).grant();
}

#[test]
fn readers_outlive_the_nodes_that_granted_them() {
    let mut one = Proxy::with().nodes(3).locks("node_timeout: 500ms").locks("shared: yes").start();
    let other = Proxy::beside(&one).start();
    eventually("the other proxy is ready", || asked(&other).len() == 3);
    let (mut session, mut lease, mut writer) = (one.client(), other.client(), other.client());
    let mut late = one.client();
    session.cmd(&["LOCK", "k", "s", "SHARED"]).grant();
    lease.cmd(&["LOCK", "k", "l", "SHARED", "PX", "50000"]).grant();
    session.cmd(&["LOCK", "k", "released", "SHARED", "PX", "50000"]).grant();
    assert_eq!(lease.cmd(&["UNLOCK", "k", "released"]), Reply::Int(1));
    late.cmd(&["LOCK", "k", "late", "SHARED", "PX", "50000"]).grant();
    let next = three();
    list(&one, &urls(&next));
    list(&other, &urls(&next));
    // It gives its part back behind the copy, on the nodes that granted it.
    one.freeze();
    late.send(&encode(&["UNLOCK", "k", "late"]));
    let text = shown(&one, &["--change"]);
    assert!(text.contains("changed: 1 held locks were copied"), "{text}");
    let score = |member: &str| Client::connect(next[0].port()).cmd(&["ZCARD", member]);
    assert_eq!(score("lock:k"), Reply::Int(4), "three readers and the mark");
    one.thaw();
    assert_eq!(late.reply(), Reply::Int(1));
    eventually("it is given back there", || score("lock:k") == Reply::Int(3));
    for node in 0..3 {
        one.node(node).kill().unwrap();
    }
    for proxy in [&one, &other] {
        let expected = addresses(&next.each_ref());
        eventually("the next nodes are asked", || asked(proxy) == expected);
    }
    assert_eq!(writer.cmd(&["LOCK", "k", "w", "PX", "1000"]), Reply::NullArray);
    // By then the TTL of a session lock is over, unless it was renewed on the next nodes.
    thread::sleep(Duration::from_secs(11));
    let left = session.cmd(&["RENEW", "k", "s"]);
    assert!(matches!(left, Reply::Int(left) if left > 0), "{left:?}");
    let renewed = lease.cmd(&["RENEW", "k", "l", "PX", "50000"]);
    assert!(matches!(renewed, Reply::Int(left) if left > 40_000), "{renewed:?}");
    assert_eq!(session.cmd(&["UNLOCK", "k", "s"]), Reply::Int(1));
    assert_eq!(writer.cmd(&["LOCK", "k", "w", "PX", "1000"]), Reply::NullArray);
    assert_eq!(lease.cmd(&["UNLOCK", "k", "l"]), Reply::Int(1));
    writer.cmd(&["LOCK", "k", "w", "PX", "50000"]).grant();
}

#[test]
fn a_proxy_that_has_not_read_the_file_grants_nothing_more() {
    let one = Proxy::with().nodes(3).locks("node_timeout: 500ms").start();
    let late = Proxy::beside(&one).start();
    eventually("the late proxy is ready", || asked(&late).len() == 3);
    let next = [redis(), redis(), redis(), redis(), redis()];
    let urls: Vec<String> = next.iter().map(RedisServer::url).collect();
    let mut client = late.client();
    client.cmd(&["LOCK", "held", "h", "PX", "50000"]).grant();
    list(&one, &urls);
    // The proxies and the command say so before the change.
    let unread = format!("{}, pid {} has not read locks.next_nodes", late.port(), late.pid());
    let text = shown(&one, &[]);
    assert!(text.contains(&unread) && text.matches("has not read").count() == 1, "{text}");
    let differs = "locks.next_nodes is none in this proxy and a list of 5 in ";
    eventually("it says so itself", || late.http("/readyz").contains(differs));
    assert!(
        doctor(&one).1.contains("locks.next_nodes is a list of 5 in this configuration and none")
    );
    assert!(shown(&one, &["--change"]).contains(&unread));
    let expected = addresses(&next.each_ref());
    eventually("the next nodes are asked", || asked(&one) == expected);
    assert!(!shown(&one, &["--change"]).contains("has not read"), "the change is made");
    let reply = client.cmd(&["LOCK", "a", "x", "PX", "1000"]);
    assert!(reply.error_text().starts_with("NOQUORUM"), "{reply:?}");
    let reply = client.cmd(&["RENEW", "held", "h", "PX", "50000"]);
    assert!(reply.error_text().starts_with("NOQUORUM"), "{reply:?}");
    eventually("it says why", || {
        late.http("/readyz").contains("other lock nodes are to take its place")
    });
    let reply = client.cmd(&["LOCK", "a", "x", "PX", "1000"]);
    let told = "(other lock nodes are to take its place, or have taken it";
    assert!(reply.error_text().contains(told), "{reply:?}");
    list(&late, &urls);
    lock(&mut client, &["LOCK", "a", "x", "PX", "1000"]);
    assert!(matches!(client.cmd(&["RENEW", "held", "h", "PX", "50000"]), Reply::Int(_)));
    assert_eq!(one.client().cmd(&["UNLOCK", "held", "h"]), Reply::Int(1));
}

#[test]
#[ignore = "takes long: make long"]
fn nodes_that_were_left_and_have_forgotten_it_vote_for_nobody() {
    let short = "max_ttl: 2s\n  default_ttl: 2s\n  node_timeout: 200ms";
    let one = Proxy::with().nodes(3).locks(short).start();
    let mut late = Proxy::beside(&one).start();
    eventually("the late proxy is ready", || asked(&late).len() == 3);
    let next = [redis(), redis(), redis()];
    list(&one, &next.each_ref().map(|node| node.url()));
    shown(&one, &["--change"]);
    let expected = addresses(&next.each_ref());
    eventually("the next nodes are asked", || asked(&one) == expected);
    // Only one of the old nodes still knows that its set was left.
    for node in 0..2 {
        one.node_client(node).cmd(&["FLUSHALL"]);
    }
    // Longer than emptied nodes wait.
    thread::sleep(Duration::from_secs(6));
    let refused = |late: &Proxy| {
        let reply = late.client().cmd(&["LOCK", "a", "x", "PX", "1000"]);
        assert!(reply.error_text().starts_with("NOQUORUM"), "{reply:?}");
    };
    refused(&late);
    late.kill();
    late.start_again();
    thread::sleep(Duration::from_secs(6));
    refused(&late);
    one.client().cmd(&["LOCK", "a", "x", "PX", "1000"]).grant();
}

#[test]
#[ignore = "takes long: make long"]
fn a_change_that_was_cut_off_is_taken_back_or_brought_to_its_end() {
    let mut proxy = Proxy::with().nodes(3).locks("node_timeout: 500ms\n  default_ttl: 5s").start();
    let next = [redis(), redis(), redis()];
    let urls: Vec<String> = next.iter().map(RedisServer::url).collect();
    let mut client = proxy.client();
    client.cmd(&["LOCK", "held", "h", "PX", "50000"]).grant();
    fill(&proxy, 60_000);
    list(&proxy, &urls);
    let cut_off = |proxy: &Proxy| {
        let mut tool = start_changing(proxy);
        eventually("it is sealed", || shown(proxy, &[]).starts_with("locks.nodes are sealed"));
        tool.kill().unwrap();
        assert!(
            shown(proxy, &[]).starts_with("locks.nodes are sealed"),
            "the copy takes too little time"
        );
        said(tool)
    };

    let text = refused(&proxy, &["--change"]);
    assert!(text.contains("that may be 2.5 s: allow more by --at-most"), "{text}");
    assert!(text.contains("nothing was changed"), "{text}");
    let text = cut_off(&proxy);
    let told = text.split("seals locks.nodes").next().unwrap();
    assert!(told.contains("about 60000 fences and locks"), "{text}");
    assert!(told.contains("locks.default_ttl (5s) is not well above that"), "{text}");
    // Nothing may be deleted on these nodes.
    let (_, report) = doctor(&proxy);
    assert!(report.contains("!! its set is sealed"), "{report}");
    assert!(!report.contains("DEL ") && report.contains("lockgate nodes"), "{report}");
    let reply = client.cmd(&["LOCK", "a", "x", "PX", "1000"]);
    assert!(reply.error_text().starts_with("NOQUORUM"), "{reply:?}");
    assert!(
        shown(&proxy, &["--back-out"])
            .starts_with("taken back: locks.nodes vote\nlocks.nodes vote")
    );
    lock(&mut client, &["LOCK", "a", "x", "PX", "50000"]);
    assert_eq!(client.cmd(&["UNLOCK", "held", "h"]), Reply::Int(1));
    lock(&mut client, &["LOCK", "held", "newer", "PX", "50000"]);

    // What the first copy has left there does not hide who holds the lock now.
    cut_off(&proxy);
    let text = shown(&proxy, &["--change", "--at-most", "60s"]);
    assert!(text.contains("changed: 2 held locks were copied"), "{text}");
    assert!(text.contains("nor before since it was begun by another command"), "{text}");
    let expected = addresses(&next.each_ref());
    eventually("the next nodes are asked", || asked(&proxy) == expected);
    for node in &next {
        assert_eq!(has(node, "lock:held"), Reply::bulk("newer"));
    }
    for node in 0..3 {
        proxy.node(node).kill().unwrap();
    }
    assert_eq!(client.cmd(&["LOCK", "held", "x", "PX", "1000"]), Reply::NullArray);
    assert_eq!(client.cmd(&["UNLOCK", "held", "newer"]), Reply::Int(1));
    client.cmd(&["LOCK", "held", "x", "PX", "1000"]).grant();
}

#[test]
fn nothing_is_sealed_where_the_next_nodes_cannot_take_a_copy() {
    let proxy = Proxy::with().nodes(3).start();
    let full = || RedisServer::start(&["--maxmemory", "1"]).unwrap();
    let next = [full(), full(), redis()];
    let urls: Vec<String> = next.iter().map(RedisServer::url).collect();
    list(&proxy, &urls);
    let words = refused(&proxy, &["--change"]);
    assert!(words.contains("OOM") && words.contains("nothing was changed"), "{words}");
    assert!(shown(&proxy, &[]).starts_with("locks.nodes vote"));
    // A node belongs to another deployment.
    let others = Proxy::with().nodes(3).start();
    list(&proxy, &others.urls());
    let words = refused(&proxy, &["--change"]);
    assert!(words.contains("belongs to another deployment"), "{words}");
    // Too few nodes answer.
    let gone = "redis://127.0.0.1:1".to_owned();
    list(&proxy, &[urls[2].clone(), gone, "redis://127.0.0.1:2".into()]);
    let words = refused(&proxy, &["--change"]);
    assert!(words.contains("127.0.0.1:1") && words.contains("nothing was changed"), "{words}");
    proxy.client().cmd(&["LOCK", "a", "x", "PX", "1000"]).grant();
    others.client().cmd(&["LOCK", "a", "x", "PX", "1000"]).grant();
}

#[test]
fn what_is_released_behind_the_copy_is_released_on_the_next_nodes() {
    let proxy = Proxy::with().nodes(3).locks("node_timeout: 500ms").start();
    let next = [redis(), redis(), redis()];
    list(&proxy, &next.each_ref().map(|node| node.url()));
    let mut client = proxy.client();
    client.cmd(&["LOCK", "a", "x", "PX", "50000"]).grant();
    // The proxy has not heard of the change when it releases the lock on the nodes that granted it.
    proxy.freeze();
    client.send(&encode(&["UNLOCK", "a", "x"]));
    shown(&proxy, &["--change"]);
    assert!(next.iter().all(|node| has(node, "lock:a") == Reply::bulk("x")), "it is copied");
    proxy.thaw();
    match client.reply() {
        Reply::Int(1) => {}
        // It has heard of the change first, and makes the release good.
        refused => assert!(refused.error_text().starts_with("NOQUORUM"), "{refused:?}"),
    }
    eventually("it is released there", || {
        next.iter().all(|node| has(node, "lock:a") == Reply::NullBulk)
    });
}

#[test]
fn doctor_knows_that_nodes_were_left_for_others() {
    let mut proxy = Proxy::with().nodes(3).start();
    let (four, five) = (redis(), redis());
    let stays = proxy.urls().swap_remove(0);
    list(&proxy, &[four.url(), stays, five.url()]);
    shown(&proxy, &["--change"]);
    let expected = [four.addr(), proxy.node(0).addr(), five.addr()].map(|addr| addr.to_string());
    eventually("the next nodes are asked", || asked(&proxy) == expected);
    let left = [1, 2].map(|node| proxy.node(node).addr().to_string());
    let check = |proxy: &Proxy, what: &str| {
        let (is_fit, report) = doctor(proxy);
        assert!(is_fit && !report.contains("DEL "), "{report}");
        assert!(report.contains("fit: of 3 lock nodes 1 may fail; to look at: 2 (-)"), "{report}");
        for address in &left {
            let lines: Vec<&str> =
                report.lines().skip_while(|line| !line.contains(address)).take(3).collect();
            assert!(lines[1].contains(what), "{report}");
            assert!(lines[2].contains("Write locks.next_nodes as locks.nodes"), "{report}");
        }
        // A node that stays has no fault, and the ports are the running proxy's.
        assert!(!report.contains("in use"), "{report}");
        assert!(report.contains("running proxy  "), "{report}");
        assert_eq!(report.lines().count(), 1 + 1 + 2 * 3 + 3 + 1, "{report}");
    };
    check(&proxy, " - locks.next_nodes have taken its place");
    // The file does not list the next nodes.
    let text = fs::read_to_string(proxy.config_file()).unwrap();
    let end = text.find("  next_nodes:").unwrap();
    fs::write(proxy.config_file(), &text[..end]).unwrap();
    let (is_fit, report) = doctor(&proxy);
    assert!(!is_fit && !report.contains("DEL "), "{report}");
    assert!(report.contains("!! other lock nodes have taken its place"), "{report}");
    assert!(report.contains("locks.nodes are to be those of the last change"), "{report}");
    let state = shown(&proxy, &[]);
    let what = "locks.nodes were left for other lock nodes, which this file does not list";
    assert!(state.starts_with(what) && !state.contains("no change is asked for"), "{state}");
    fs::write(proxy.config_file(), &text).unwrap();
    // The old nodes are no longer needed.
    for node in [1, 2] {
        proxy.node(node).kill().unwrap();
    }
    check(&proxy, " - locks.next_nodes have taken its place, and it does not answer");
}

#[test]
fn what_is_wrong_with_a_node_is_told_before_and_behind_the_change() {
    let proxy = Proxy::with().nodes(3).locks("node_timeout: 200ms").start();
    let full = RedisServer::start(&["--maxmemory", "1"]).unwrap();
    let next = [redis(), redis(), redis(), redis(), full, redis(), redis()];
    let mut urls = next.each_ref().map(RedisServer::url);
    let slow = Relay::to(next[2].port());
    slow.delay_replies(Duration::from_millis(300));
    urls[2] = format!("redis://127.0.0.1:{}", slow.port());
    list(&proxy, &urls);
    next[3].freeze().unwrap();
    Client::connect(next[0].port()).cmd(&["SET", "another's", "x"]);
    // As on a node that was restarted while no quorum was there.
    Client::connect(next[1].port()).cmd(&["SET", "lockgate:max_ttl", "1000"]);
    let text = shown(&proxy, &["--change"]);
    let (before, behind) = text.split_once("seals locks.nodes").unwrap();
    for (node, why) in [(3, "no answer"), (4, "OOM")] {
        let address = next[node].addr();
        let line = |text: &str| {
            let mut lines = text.lines();
            lines.any(|line| line.contains(&address.to_string()) && line.contains(why))
        };
        assert!(line(before), "{text}");
        assert!(line(behind), "{text}");
    }
    assert!(before.contains("nobody waits for it"), "{text}");
    let late = before.lines().find(|line| line.contains("more than locks.node_timeout (200ms)"));
    assert!(late.unwrap().contains(&format!("127.0.0.1:{} takes", slow.port())), "{text}");
    let used = format!("{} has keys already (1)", next[0].addr());
    assert!(before.contains(&used), "{text}");
    assert_eq!(before.matches("warning: ").count(), 4, "{text}");
    assert!(!behind.contains("was not there"), "{text}");
    next[3].thaw().unwrap();
}

/// Their votes would all come too late.
#[test]
fn nodes_that_answer_too_late_are_not_changed_to() {
    let proxy = Proxy::with().nodes(3).locks("node_timeout: 200ms").start();
    let next = three();
    let slow = next.each_ref().map(|node| Relay::to(node.port()));
    slow.iter().for_each(|way| way.delay_replies(Duration::from_millis(300)));
    let urls = slow.each_ref().map(|way| format!("redis://127.0.0.1:{}", way.port()));
    list(&proxy, &urls);
    let refused = nodes(&proxy, &["--change"]);
    let told = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && told.contains("nothing was changed"), "{told}");
    assert!(told.contains("a vote counts only within locks.node_timeout (200ms)"), "{told}");
    for way in &slow {
        assert!(told.contains(&format!("127.0.0.1:{} takes", way.port())), "{told}");
    }
    proxy.client().cmd(&["LOCK", "k", "PX", "1000"]).grant();
    // With a quorum in time they are.
    slow[..2].iter().for_each(|way| way.delay_replies(Duration::ZERO));
    assert!(shown(&proxy, &["--change"]).contains("locks.next_nodes vote"));
}

#[test]
fn nodes_that_are_listed_later_are_not_said_to_vote() {
    let proxy = Proxy::with().nodes(3).start();
    let next = [redis(), redis(), redis(), redis()];
    let urls = next.each_ref().map(RedisServer::url);
    list(&proxy, &urls[..3]);
    let text = shown(&proxy, &["--change"]);
    assert!(text.contains("\nlocks.next_nodes vote\n"), "{text}");
    let expected = addresses(&[&next[0], &next[1], &next[2]]);
    eventually("the next nodes are asked", || asked(&proxy) == expected);
    let edit = |next: &[String]| {
        let text = fs::read_to_string(proxy.config_file()).unwrap();
        let end = text.find("  next_nodes:").unwrap();
        fs::write(proxy.config_file(), format!("{}  next_nodes: {next:?}\n", &text[..end]))
            .unwrap();
    };
    edit(&[urls[0].clone(), urls[1].clone(), urls[3].clone()]);
    let text = shown(&proxy, &[]);
    let expected = format!("locks.next_nodes vote, without {}\n", next[3].addr());
    assert!(text.starts_with(&expected), "{text}");
    // None of these lists is the one that votes.
    let others = [redis(), redis(), redis()];
    for list in [&urls[..1], &others.each_ref().map(RedisServer::url)[..]] {
        edit(list);
        let text = shown(&proxy, &[]);
        assert!(
            text.starts_with("it is decided that other nodes than locks.next_nodes vote"),
            "{text}"
        );
    }
    edit(&urls[..3]);
    next[2].freeze().unwrap();
    let text = shown(&proxy, &[]);
    next[2].thaw().unwrap();
    let expected = format!("locks.next_nodes vote, without {}\n", next[2].addr());
    assert!(text.starts_with(&expected), "{text}");
}

#[test]
fn of_two_at_once_each_says_what_has_become_of_it() {
    let proxy = Proxy::with().nodes(3).locks("node_timeout: 500ms").start();
    let next = [redis(), redis(), redis()];
    let (before, next) = (proxy.urls(), next.each_ref().map(RedisServer::url).to_vec());
    let turned: Vec<String> = next.iter().rev().cloned().collect();
    proxy.client().cmd(&["LOCK", "held", "h", "PX", "50000"]).grant();
    let lists = [&before, &next, &turned, &next, &turned, &before];
    for pair in lists.windows(2) {
        list_both(&proxy, pair[0], pair[1]);
        let both = [start_changing(&proxy), start_changing(&proxy)].map(said);
        let is_done = both.iter().any(|text| text.contains("changed: 1 held locks"));
        assert!(is_done, "{both:?}\n{}", shown(&proxy, &[]));
        for text in &both {
            assert!(!text.contains("changed: 0 held locks"), "{both:?}");
            // A command that has sealed the nodes takes part in the change.
            let is_told = text.contains("\nchanged: ") || !text.contains("seals locks.nodes");
            assert!(is_told, "{both:?}");
        }
        let expected: Vec<&str> =
            pair[1].iter().map(|url| url.trim_start_matches("redis://")).collect();
        // The other command may have kept a node from being copied to; such a node waits.
        eventually("the next nodes are asked", || asked_if(&proxy, |_| true) == expected);
    }
    lock(&mut proxy.client(), &["LOCK", "other", "x", "PX", "1000"]);
    assert_eq!(proxy.client().cmd(&["LOCK", "held", "x", "PX", "1000"]), Reply::NullArray);
}

#[test]
fn a_proxy_whose_list_was_edited_asks_nobody_else() {
    let short = "max_ttl: 2s\n  default_ttl: 2s\n  node_timeout: 200ms";
    let one = Proxy::with().nodes(3).locks(short).start();
    let mut late = Proxy::beside(&one).start();
    eventually("the late proxy is ready", || asked(&late).len() == 3);
    let next = [redis(), redis(), redis()];
    list(&one, &next.each_ref().map(RedisServer::url));
    shown(&one, &["--change"]);
    lock(&mut one.client(), &["LOCK", "a", "x", "PX", "1000"]);
    late.kill();
    let others = [redis(), redis(), redis()];
    for count in [1, 3] {
        let text = fs::read_to_string(late.config_file()).unwrap();
        let end = text.find("  next_nodes:").unwrap_or(text.len());
        let urls: Vec<String> = others[..count].iter().map(RedisServer::url).collect();
        fs::write(late.config_file(), format!("{}  next_nodes: {urls:?}\n", &text[..end])).unwrap();
        late.start_again();
        // Longer than new nodes wait.
        thread::sleep(Duration::from_secs(6));
        let reply = late.client().cmd(&["LOCK", "a", "y", "PX", "1000"]);
        assert!(reply.error_text().starts_with("NOQUORUM"), "{count}: {reply:?}");
        late.kill();
    }
}

#[test]
fn a_next_node_that_refuses_writes_behind_its_copy_does_not_keep_the_others_from_voting() {
    refusing_behind_its_copy(false);
}

#[test]
fn a_next_node_that_has_not_begun_is_named_where_it_was_not_heard_that_the_others_had() {
    refusing_behind_its_copy(true);
}

/// Changes the lock nodes, where a next one refuses writes once it has its copy. If `is_answer_lost`, the answer of
/// another one, that it has begun, is lost: the coordinator learns of it at its next attempt.
fn refusing_behind_its_copy(is_answer_lost: bool) {
    let proxy = Proxy::with().nodes(3).locks("node_timeout: 500ms").start();
    let next = [redis(), redis(), redis()];
    let relay = Relay::to(next[0].port());
    let first = format!("redis://127.0.0.1:{}", relay.port());
    list(&proxy, &[first, next[1].url(), next[2].url()]);
    let mut client = proxy.client();
    client.cmd(&["LOCK", "held", "h", "PX", "50000"]).grant();
    // Nothing is decided until every node that can have a whole copy has one.
    relay.hold_request("whole ");
    let tool = start_changing(&proxy);
    relay.wait_until_held();
    let copied = || match has(&next[2], "lockgate:copied") {
        Reply::Bulk(note) => note.starts_with(b"whole "),
        _ => false,
    };
    eventually("the last one has its copy", copied);
    let mut last = Client::connect(next[2].port());
    last.cmd(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    if is_answer_lost {
        // The first of these replies is to the note that the copy is whole.
        relay.then_hold_reply(1, "*1\r\n:1\r\n");
    }
    relay.release();
    if is_answer_lost {
        relay.wait_until_held();
        relay.cut();
    }
    let text = said(tool);
    assert!(text.contains("changed: 1 held locks were copied"), "{text}");
    let address = next[2].addr();
    assert!(text.contains(&format!("{address} has not begun with the others")), "{text}");
    assert!(text.contains("NOREPLICAS"), "{text}");
    // For a moment two of the old nodes may still be up.
    let others = [format!("127.0.0.1:{}", relay.port()), next[1].addr().to_string()];
    eventually("the others are asked", || asked(&proxy) == others);
    assert_eq!(client.cmd(&["UNLOCK", "held", "h"]), Reply::Int(1));
    lock(&mut client, &["LOCK", "held", "x", "PX", "1000"]);
    last.cmd(&["CONFIG", "SET", "min-replicas-to-write", "0"]);
}

#[test]
fn a_node_that_has_not_heard_that_it_was_left_is_named_and_told() {
    let mut proxy = Proxy::with().nodes(3).locks("node_timeout: 500ms").start();
    let next = [redis(), redis(), redis()];
    list(&proxy, &next.each_ref().map(|node| node.url()));
    proxy.client().cmd(&["LOCK", "a", "x", "PX", "1000"]).grant();
    proxy.node(2).freeze().unwrap();
    shown(&proxy, &["--change"]);
    proxy.node(2).thaw().unwrap();
    let text = shown(&proxy, &[]);
    let address = proxy.node(2).addr();
    assert!(text.contains(&format!("warning: {address} has not heard that it was left")), "{text}");
    assert!(shown(&proxy, &["--change"]).contains("have been changed already"));
    let text = shown(&proxy, &[]);
    assert!(text.starts_with("locks.next_nodes vote\n"), "{text}");
    assert!(!text.contains("has not heard"), "{text}");
}

#[test]
#[ignore = "takes long: make long"]
fn two_at_once_come_to_an_end_where_copying_takes_long() {
    let proxy = Proxy::with().nodes(3).locks("node_timeout: 500ms").start();
    let next = three();
    fill(&proxy, 20_000);
    proxy.client().cmd(&["LOCK", "held", "h", "PX", "50000"]).grant();
    list(&proxy, &urls(&next));
    let all = [(); 3].map(|()| {
        let tool = start_changing(&proxy);
        // After the first command's seal, while it copies.
        eventually("it is sealed", || shown(&proxy, &[]).starts_with("locks.nodes are sealed"));
        tool
    });
    let all = all.map(said);
    let copied = |text: &&String| text.contains("changed: 1 held locks were copied");
    assert_eq!(all.iter().filter(copied).count(), 1, "{all:?}");
    let are_told = all.iter().all(|text| text.contains("\nlocks.next_nodes vote\n"));
    assert!(are_told, "{all:?}");
    let expected = addresses(&next.each_ref());
    eventually("the next nodes are asked", || asked(&proxy) == expected);
    lock(&mut proxy.client(), &["LOCK", "a", "x", "PX", "1000"]);
}

#[test]
fn who_waits_for_another_takes_the_change_back_in_time() {
    let proxy = Proxy::with().nodes(3).locks("node_timeout: 500ms\n  default_ttl: 6s").start();
    let next = three();
    fill(&proxy, 40_000);
    list(&proxy, &urls(&next));
    let sealed = || shown(&proxy, &[]).starts_with("locks.nodes are sealed");
    let mut tool = Command::new(env!("CARGO_BIN_EXE_lockgate"));
    tool.args(["nodes", "--change", "--at-most", "6s"]).arg(proxy.config_file());
    let first = tool.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    eventually("it is sealed", sealed);
    let seal = || {
        let marker = proxy.node_client(0).cmd(&["GET", "lockgate:deployment"]);
        let Reply::Bulk(marker) = marker else { panic!("no marker") };
        String::from_utf8(marker).unwrap()
    };
    let before = seal();
    let mut second = start_changing(&proxy);
    eventually("the other one has sealed", || seal() != before);
    second.kill().unwrap();
    second.wait().unwrap();
    let said = said(first);
    assert!(said.contains("was taken back: locks.nodes vote again"), "{said}");
    lock(&mut proxy.client(), &["LOCK", "a", "x", "PX", "1000"]);
    assert!(shown(&proxy, &["--back-out"]).starts_with("there is nothing to take back\n"));
}

#[test]
fn who_runs_beside_a_back_out_says_so() {
    let proxy = Proxy::with().nodes(3).locks("node_timeout: 500ms").start();
    let next = three();
    fill(&proxy, 20_000);
    list(&proxy, &urls(&next));
    let tool = start_changing(&proxy);
    eventually("it is sealed", || shown(&proxy, &[]).starts_with("locks.nodes are sealed"));
    assert!(shown(&proxy, &["--back-out"]).starts_with("taken back: locks.nodes vote\n"));
    let said = said(tool);
    assert!(said.contains("somebody else has taken it back"), "{said}");
    assert!(shown(&proxy, &[]).starts_with("locks.nodes vote\n"));
    lock(&mut proxy.client(), &["LOCK", "a", "x", "PX", "1000"]);
}

#[test]
fn a_proxy_goes_over_to_what_its_file_has_ahead_of_it() {
    let one = Proxy::with().nodes(3).locks("node_timeout: 500ms").start();
    let other = Proxy::beside(&one).start();
    eventually("the other proxy is ready", || asked(&other).len() == 3);
    let first = one.urls();
    let [second, third] = [three(), three()];
    let mut client = other.client();
    client.cmd(&["LOCK", "held", "h", "PX", "50000"]).grant();
    // Before the change the other proxy has read the file of step 4, with the list of the next change in it.
    list_both(&other, &urls(&second), &urls(&third));
    let text = other.log();
    for key in ["locks.nodes", "locks.next_nodes"] {
        assert!(text.contains(&format!("\"key\":\"{key}\"")), "{key}: {text}");
    }
    assert!(text.contains("goes over to those of the file once they have taken their place"));
    client.cmd(&["LOCK", "a", "x", "PX", "1000"]).grant();
    list(&one, &urls(&second));
    shown(&one, &["--change"]);
    eventually("the second nodes are asked", || asked(&other) == addresses(&second.each_ref()));
    list_both(&one, &urls(&second), &urls(&third));
    shown(&one, &["--change"]);
    for proxy in [&one, &other] {
        eventually("the third nodes are asked", || asked(proxy) == addresses(&third.each_ref()));
    }
    assert!(matches!(client.cmd(&["RENEW", "held", "h", "PX", "50000"]), Reply::Int(_)));

    // Then it hears of neither of two changes, and the nodes of the first one are gone.
    list_both(&other, &urls(&third), &[]);
    let fourth = three();
    list_both(&one, &urls(&third), &urls(&fourth));
    shown(&one, &["--change"]);
    eventually("the fourth nodes are asked", || asked(&one) == addresses(&fourth.each_ref()));
    list_both(&one, &urls(&fourth), &first);
    for node in 0..3 {
        one.node_client(node).cmd(&["FLUSHALL"]);
    }
    shown(&one, &["--change"]);
    let voting: Vec<String> =
        first.iter().map(|url| url.trim_start_matches("redis://").to_owned()).collect();
    eventually("the first nodes are asked", || asked(&one) == voting);
    drop(fourth);
    let reply = client.cmd(&["LOCK", "a", "x", "PX", "1000"]);
    assert!(reply.error_text().starts_with("NOQUORUM"), "{reply:?}");
    list_both(&other, &first, &[]);
    eventually("the first nodes are asked", || asked(&other) == voting);
    lock(&mut client, &["LOCK", "a", "x", "PX", "1000"]);
    assert!(matches!(client.cmd(&["RENEW", "held", "h", "PX", "50000"]), Reply::Int(_)));
}

#[test]
fn a_proxy_asks_its_nodes_again_once_they_are_back_in_their_place() {
    let one = Proxy::with().nodes(3).locks("node_timeout: 500ms").start();
    let other = Proxy::beside(&one).start();
    eventually("the other proxy is ready", || asked(&other).len() == 3);
    let first = one.urls();
    let second = three();
    let mut client = other.client();
    client.cmd(&["LOCK", "held", "h", "PX", "50000"]).grant();
    // In the second round its file lists nodes that do not come after all.
    for lists in [vec![], urls(&three())] {
        list_both(&other, &first, &lists);
        list_both(&one, &first, &urls(&second));
        shown(&one, &["--change"]);
        eventually("the second nodes are asked", || asked(&one) == addresses(&second.each_ref()));
        let reply = client.cmd(&["LOCK", "a", "x", "PX", "1000"]);
        assert!(reply.error_text().starts_with("NOQUORUM"), "{reply:?}");
        list_both(&one, &urls(&second), &first);
        shown(&one, &["--change"]);
        lock(&mut client, &["LOCK", "a", "x", "PX", "1000"]);
        assert!(matches!(client.cmd(&["RENEW", "held", "h", "PX", "50000"]), Reply::Int(_)));
        client.cmd(&["UNLOCK", "a", "x"]);
    }
}

#[test]
#[ignore = "takes long: make long"]
fn what_cannot_be_done_is_told_as_it_is() {
    let proxy = Proxy::with().nodes(3).locks("node_timeout: 200ms\n  default_ttl: 4s").start();
    let next = three();
    let init = |nodes: &[RedisServer]| {
        let text = fs::read_to_string(proxy.config_file()).unwrap();
        let at = text.find("  nodes:").unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), format!("{}  nodes: {:?}\n", &text[..at], urls(nodes))).unwrap();
        let mut tool = Command::new(env!("CARGO_BIN_EXE_lockgate"));
        let Output { status, stderr, .. } = tool.arg("init").arg(file.path()).output().unwrap();
        assert!(!status.success());
        String::from_utf8(stderr).unwrap()
    };
    // The change is cut off while it copies, before anything is decided.
    fill(&proxy, 20_000);
    list(&proxy, &urls(&next));
    let mut tool = start_changing(&proxy);
    eventually("copying is begun", || has(&next[0], "lockgate:copied") != Reply::NullBulk);
    tool.kill().unwrap();
    tool.wait().unwrap();
    let words = init(&next);
    assert!(words.contains("copied by lockgate nodes --change"), "{words}");
    assert!(words.contains("DEL lockgate:copied on node 1"), "{words}");
    // A quorum of the sealed nodes forgets the seal.
    for node in 0..2 {
        proxy.node_client(node).cmd(&["FLUSHALL"]);
    }
    for flag in ["--change", "--back-out"] {
        let words = refused(&proxy, &[flag]);
        assert!(words.contains("locks.nodes are sealed, and too few"), "{flag}: {words}");
        assert!(words.contains("a new deployment is needed"), "{flag}: {words}");
        assert!(!words.contains("run lockgate nodes"), "{flag}: {words}");
    }
    assert!(shown(&proxy, &[]).starts_with("too few nodes answer, and have kept their memory"));
}

#[test]
fn who_lists_other_nodes_than_those_decided_upon_is_told_so() {
    let proxy = Proxy::with().nodes(3).start();
    let [next, others] = [three(), three()];
    list(&proxy, &urls(&next));
    shown(&proxy, &["--change"]);
    let before = proxy.urls();
    write_both(&proxy, &before, &urls(&others));
    for flag in ["--change", "--back-out"] {
        let words = refused(&proxy, &[flag]);
        assert!(words.contains("it is decided that other nodes than locks.next_nodes"), "{words}");
        assert!(!words.contains("No locks are granted"), "{words}");
    }
}

#[test]
fn a_command_that_is_ended_takes_its_change_back() {
    let proxy = Proxy::with().nodes(3).locks("node_timeout: 500ms").start();
    let next = three();
    fill(&proxy, 20_000);
    list(&proxy, &urls(&next));
    for signal in [Signal::INT, Signal::TERM] {
        let tool = start_changing(&proxy);
        eventually("it is sealed", || shown(&proxy, &[]).starts_with("locks.nodes are sealed"));
        kill_process(Pid::from_child(&tool), signal).unwrap();
        let said = said(tool);
        assert!(said.contains("ended by a signal; the change was taken back"), "{said}");
        assert!(shown(&proxy, &[]).starts_with("locks.nodes vote\n"));
    }
    lock(&mut proxy.client(), &["LOCK", "a", "x", "PX", "1000"]);
}

#[test]
fn doctor_tells_of_a_lock_node_whose_locks_cannot_be_listed() {
    let proxy = Proxy::with().nodes(3).start();
    proxy.node_client(0).cmd(&["ACL", "SETUSER", "default", "-scan"]);
    let says = |proxy: &Proxy| doctor(proxy).1.contains("--change cannot list its locks: ");
    assert!(!says(&proxy), "no change is wanted");
    let next = three();
    list(&proxy, &urls(&next));
    assert!(says(&proxy), "{}", doctor(&proxy).1);
}

#[test]
#[ignore = "takes long: make long"]
fn old_nodes_that_forget_all_beside_a_list_of_others_say_what_to_do() {
    let mut proxy = Proxy::with()
        .nodes(3)
        .locks("max_ttl: 2s\n  default_ttl: 1s\n  node_timeout: 200ms")
        .start();
    let next = three();
    // Either no change was begun, or one was cut off and the proxy has seen it.
    for is_begun in [false, true] {
        fill(&proxy, 20_000);
        list(&proxy, &urls(&next));
        lock(&mut proxy.client(), &["LOCK", "a", "x", "PX", "100"]);
        if is_begun {
            let mut tool = start_changing(&proxy);
            // A proxy that is not asked for locks notices the change later.
            let mut client = proxy.client();
            eventually("the proxy has seen it", || {
                client.cmd(&["LOCK", "c", "x", "PX", "100"]);
                proxy.http("/readyz").contains("take its place")
            });
            tool.kill().unwrap();
            tool.wait().unwrap();
        }
        for node in 0..3 {
            proxy.node(node).kill().unwrap();
        }
        eventually("it is seen", || proxy.nodes_up() == 0);
        for node in 0..3 {
            proxy.node(node).restart().unwrap();
        }
        let untold = "take locks.next_nodes out of the file, and send SIGHUP";
        eventually("it is told", || proxy.http("/readyz").contains(untold));
        let (is_fit, report) = doctor(&proxy);
        assert!(!is_fit && report.contains("take locks.next_nodes out of the file"), "{report}");
        list_both(&proxy, &proxy.urls(), &[]);
        eventually("they vote", || proxy.nodes_up() == 3);
        lock(&mut proxy.client(), &["LOCK", "b", "x", "PX", "100"]);
    }
    list(&proxy, &proxy.urls());
    let why = refused(&proxy, &["--change"]);
    assert!(why.contains("there is nothing to change; nothing was changed"), "{why}");
}

/// The replaced node was waiting and was not told that its set was left, and the new node is away. Neither has the
/// seat, so the other nodes have their seats by both lists.
#[test]
fn a_change_is_known_to_be_done_where_the_replaced_node_and_the_new_one_have_no_part_in_it() {
    let mut proxy = Proxy::with().nodes(3).locks("node_timeout: 200ms").start();
    lock(&mut proxy.client(), &["LOCK", "a", "x", "PX", "1000"]);
    proxy.node(2).restart().unwrap();
    eventually("it waits on its seat", || proxy.log().contains("\"epoch\":2"));
    let mut new = redis();
    let before = proxy.urls();
    let next = [before[0].clone(), before[1].clone(), new.url()];
    list(&proxy, &next);
    new.kill().unwrap();
    shown(&proxy, &["--change"]);
    assert!(shown(&proxy, &[]).starts_with("locks.next_nodes vote"));
    let text = shown(&proxy, &["--change"]);
    assert!(text.contains("have been changed already"), "{text}");
    new.restart().unwrap();
    let late = Proxy::beside(&proxy).unready().start();
    list_both(&late, &before, &next);
    let wanted: Vec<String> =
        next.iter().map(|url| url.strip_prefix("redis://").unwrap().to_owned()).collect();
    eventually("the late one asks the next nodes", || asked(&late) == wanted);
    lock(&mut late.client(), &["LOCK", "a", "x", "PX", "1000"]);
}

#[test]
fn lists_of_another_deployment_are_never_followed() {
    let one = Proxy::with().nodes(3).locks("node_timeout: 200ms").start();
    let late = Proxy::beside(&one).start();
    eventually("the late proxy is ready", || asked(&late).len() == 3);
    let before = one.urls();
    // Another deployment has changed its nodes once, too.
    let foreign = Proxy::with().nodes(3).start();
    let [next, theirs] = [three(), three()];
    list(&foreign, &urls(&theirs));
    shown(&foreign, &["--change"]);
    eventually("they are asked", || asked(&foreign) == addresses(&theirs.each_ref()));
    list(&one, &urls(&next));
    shown(&one, &["--change"]);
    for (nodes, next) in [(urls(&theirs), vec![]), (before.clone(), urls(&theirs))] {
        list_both(&late, &nodes, &next);
        thread::sleep(Duration::from_secs(2));
        assert!(
            asked_if(&late, |_| true)
                .iter()
                .all(|node| before.iter().any(|url| url.ends_with(node)))
        );
        let reply = late.client().cmd(&["LOCK", "a", "x", "PX", "1000"]);
        assert!(reply.error_text().starts_with("NOQUORUM"), "{reply:?}");
    }
    list_both(&late, &urls(&next), &[]);
    lock(&mut late.client(), &["LOCK", "a", "x", "PX", "1000"]);
}

#[test]
fn a_proxy_finds_the_nodes_that_vote_whichever_of_them_it_knows_from_before() {
    let one = Proxy::with().nodes(3).locks("node_timeout: 200ms").start();
    let late = [(); 2].map(|()| Proxy::beside(&one).start());
    late.iter().for_each(|late| eventually("a late proxy is ready", || asked(late).len() == 3));
    let [a, b, _] = [0, 1, 2].map(|node| one.urls()[node].clone());
    let [f, g, h] = three();
    let middle = [a, b.clone(), f.url()];
    late.iter().for_each(Proxy::freeze);
    list(&one, &middle);
    shown(&one, &["--change"]);
    // The first node comes back empty, and takes no part in what follows.
    let last = [g.url(), b, h.url()];
    list_both(&one, &middle, &last);
    let mut one = one;
    one.node(0).restart().unwrap();
    shown(&one, &["--change"]);
    let voting: Vec<String> =
        last.iter().map(|url| url.trim_start_matches("redis://").to_owned()).collect();
    eventually("the last ones are asked", || asked(&one) == voting);
    // In one file the last change is done, in the other it is still to come.
    for (late, (nodes, next)) in late.iter().zip([(&last[..], &[][..]), (&middle, &last)]) {
        late.thaw();
        list_both(late, nodes, next);
        eventually("the late proxy asks them too", || asked(late) == voting);
        lock(&mut late.client(), &["LOCK", "a", "x", "PX", "1000"]);
        assert_eq!(late.client().cmd(&["UNLOCK", "a", "x"]), Reply::Int(1));
    }
}
