//! LOCKGATE NODE and LOCKGATE PAUSE: for maintenance, an operator has the proxy leave a lock node or new locks alone.

use std::time::{Duration, Instant};

use super::{
    logs::lines,
    who::{elements, field},
};
use crate::support::{Client, Proxy, Reply, encode, eventually};

fn deployment() -> Proxy {
    Proxy::with().nodes(3).locks("default_ttl: 1500ms").start()
}

fn address(proxy: &mut Proxy, node: usize) -> String {
    proxy.node(node).addr().to_string()
}

fn values(client: &mut Client, key: &str) -> Reply {
    client.cmd(&["GET", key])
}

#[test]
fn a_paused_node_keeps_what_it_has_and_is_asked_for_nothing_new() {
    let mut proxy = deployment();
    let (mut holder, mut operator) = (proxy.client(), proxy.client());
    let before = holder.cmd(&["LOCK", "before"]).grant().token;
    let given = holder.cmd(&["LOCK", "given", "PX", "60000"]).grant().token;
    let address = address(&mut proxy, 1);
    let mut paused = proxy.node_client(1);
    assert_eq!(values(&mut paused, "lock:before"), Reply::bulk(&before));
    assert_eq!(operator.cmd(&["LOCKGATE", "NODE", &address, "PAUSE"]), Reply::ok());

    let page = proxy.http("/readyz");
    assert!(page.starts_with("HTTP/1.1 200") && page.contains("lock nodes: 2 of 3 up"), "{page}");
    assert!(
        page.contains(&format!("lock node {address}: an operator has it asked for no new locks"))
    );
    assert_eq!(proxy.metric("lockgate_node_fault", "fault=\"paused\""), 1.0);
    assert_eq!(proxy.nodes_up(), 2);
    eventually("it is told", || proxy.metric("lockgate_quorum_slack", "") == 0.0);
    let nodes = format!("{:?}", operator.cmd(&["LOCKGATE", "NODES"]));
    assert!(nodes.contains(&format!("{:?}", Reply::bulk("paused"))), "{nodes}");

    // A grant needs the two other nodes, and is then put on this one.
    proxy.node(0).freeze().unwrap();
    let refused = operator.cmd(&["LOCK", "new", "PX", "60000"]);
    assert!(refused.error().contains(&format!("{address} (paused)")), "{refused:?}");
    proxy.node(0).thaw().unwrap();
    eventually("the other answers again", || {
        matches!(operator.cmd(&["LOCK", "new", "PX", "60000"]), Reply::Array(_))
    });
    let Reply::Bulk(new) = values(&mut proxy.node_client(2), "lock:new") else { panic!("no lock") };
    eventually("it is put there", || values(&mut paused, "lock:new") == Reply::Bulk(new.clone()));
    assert_eq!(holder.cmd(&["UNLOCK", "given"]), Reply::Int(1));
    assert_eq!(proxy.nodes_with("lock:given"), 0, "{given}");
    // Two renewals later the lock is still there: all three nodes are asked.
    std::thread::sleep(Duration::from_millis(1600));
    assert_eq!(values(&mut paused, "lock:before"), Reply::bulk(&before));

    assert_eq!(operator.cmd(&["LOCKGATE", "NODE", &address, "RESUME"]), Reply::ok());
    assert_eq!(proxy.nodes_up(), 3);
    assert_eq!(proxy.metric("lockgate_node_fault", "fault=\"paused\""), 0.0);
    proxy.node(0).freeze().unwrap();
    eventually("it votes again", || {
        matches!(operator.cmd(&["LOCK", "again", "PX", "60000"]), Reply::Array(_))
    });
    for what in ["paused", "resumed"] {
        let what = format!("an operator has {what} a lock node");
        let told = lines(&proxy, &[&what, &format!("\"node\":\"{address}\""), "user"]);
        assert_eq!(told.len(), 1, "{}", proxy.log());
    }
}

#[test]
fn a_paused_node_that_is_restarted_has_its_locks_again() {
    let locks = "default_ttl: 2s\n  max_ttl: 2s\n  node_timeout: 200ms";
    let mut proxy = Proxy::with().nodes(3).locks(locks).start();
    let (mut holder, mut operator) = (proxy.client(), proxy.client());
    let address = address(&mut proxy, 2);
    assert_eq!(operator.cmd(&["LOCKGATE", "NODE", &address, "PAUSE"]), Reply::ok());
    let token = holder.cmd(&["LOCK", "job"]).grant().token;
    proxy.node(2).restart().unwrap();
    eventually("the lock is there", || {
        proxy.node_client(2).cmd(&["GET", "lock:job"]) == Reply::bulk(&token)
    });
    assert_eq!(proxy.nodes_up(), 2, "it is paused still");
    assert_eq!(operator.cmd(&["LOCKGATE", "NODE", &address, "RESUME"]), Reply::ok());
    eventually("it votes", || proxy.nodes_up() == 3);
    assert_eq!(holder.cmd(&["UNLOCK", "job"]), Reply::Int(1));
}

#[test]
fn no_quorum_is_paused_away_unless_that_is_meant() {
    let mut proxy = deployment();
    let mut operator = proxy.client();
    let addresses: Vec<String> = (0..3).map(|node| address(&mut proxy, node)).collect();
    let node = |operator: &mut Client, at: usize, words: &[&str]| {
        operator.cmd(&[&["LOCKGATE", "NODE", &addresses[at]], words].concat())
    };
    assert_eq!(node(&mut operator, 0, &["PAUSE"]), Reply::ok());
    assert_eq!(node(&mut operator, 0, &["PAUSE"]), Reply::ok(), "it is already");
    let refused = node(&mut operator, 1, &["PAUSE"]);
    assert!(refused.error().starts_with("ERR 1 other lock nodes vote, and 2 are needed"));
    let mut holder = proxy.client();
    let held = holder.cmd(&["LOCK", "job"]).grant();
    assert_eq!(node(&mut operator, 1, &["PAUSE", "FORCE"]), Reply::ok());
    assert!(operator.cmd(&["LOCK", "new"]).error().starts_with("NOQUORUM 1 of 3"));
    assert!(proxy.http("/readyz").starts_with("HTTP/1.1 503"));
    // Held locks stay held.
    std::thread::sleep(Duration::from_millis(1600));
    assert_eq!(proxy.on_nodes("lock:job")[2], Reply::bulk(&held.token));
    assert_eq!(holder.cmd(&["UNLOCK", "job"]), Reply::Int(1));
    for at in [0, 1] {
        assert_eq!(node(&mut operator, at, &["RESUME"]), Reply::ok());
    }
    operator.cmd(&["LOCK", "new"]).grant();
    let unknown = operator.cmd(&["LOCKGATE", "NODE", "10.0.0.1:1", "PAUSE"]);
    assert!(unknown.error().starts_with("ERR no lock node has the address '10.0.0.1:1'"));
    for (action, result, times) in [
        ("pause_node", "ok", 3.0),
        ("pause_node", "refused", 2.0),
        ("resume_node", "ok", 2.0),
        ("resume_node", "refused", 0.0),
    ] {
        assert_eq!(done(&proxy, action, result), times, "{action} {result}");
    }
}

/// How often operators have done this, with this result.
fn done(proxy: &Proxy, action: &str, result: &str) -> f64 {
    let labels = format!("action=\"{action}\",result=\"{result}\"");
    proxy.metric("lockgate_operator_actions_total", &labels)
}

#[test]
fn new_locks_wait_while_holders_go_on() {
    let proxy = deployment();
    let (mut holder, mut operator) = (proxy.client(), proxy.client());
    let session = holder.cmd(&["LOCK", "session"]).grant();
    let lease = holder.cmd(&["LOCK", "lease", "PX", "60000"]).grant();
    let mut in_line = proxy.client();
    in_line.send(&encode(&["LOCK", "lease", "PX", "60000", "WAIT", "30000"]));
    eventually("it waits", || proxy.waiters() == 1);
    assert_eq!(operator.cmd(&["LOCKGATE", "PAUSE", "600000"]), Reply::ok());
    assert!(proxy.http("/readyz").contains("locks: new ones wait for "));
    assert_eq!(proxy.metric("lockgate_paused", ""), 1.0);

    let mut new = proxy.client();
    assert_eq!(new.cmd(&["LOCK", "free", "PX", "60000"]), Reply::NullArray, "it may not wait");
    let since = Instant::now();
    assert_eq!(new.cmd(&["LOCK", "free", "PX", "60000", "WAIT", "300"]), Reply::NullArray);
    assert!(since.elapsed() >= Duration::from_millis(300));
    new.send(&encode(&["LOCK", "free", "PX", "60000", "WAIT", "30000"]));
    eventually("it waits", || proxy.waiters() == 2);

    let Reply::Int(1..) = holder.cmd(&["RENEW", "lease", "PX", "60000"]) else {
        panic!("no RENEW")
    };
    let again = holder.cmd(&["LOCK", "lease", &lease.token, "PX", "60000"]).grant();
    assert!(again.fence > lease.fence);
    assert_eq!(holder.cmd(&["UNLOCK", "lease"]), Reply::Int(1));
    std::thread::sleep(Duration::from_millis(1600));
    assert_eq!(proxy.on_nodes("lock:session"), [(); 3].map(|()| Reply::bulk(&session.token)));
    assert_eq!(proxy.nodes_with("lock:lease"), 0, "nobody in line has it");
    assert_eq!(proxy.nodes_with("lock:free"), 0);
    let Reply::Bulk(info) = operator.cmd(&["LOCKGATE", "INFO"]) else { panic!("no INFO") };
    let info = String::from_utf8(info).unwrap();
    assert!(!info.contains("paused_ms:0") && info.contains("paused_ms:"), "{info}");

    assert_eq!(operator.cmd(&["LOCKGATE", "UNPAUSE"]), Reply::ok());
    in_line.reply().grant();
    new.reply().grant();
    eventually("it is told", || proxy.metric("lockgate_paused", "") == 0.0);
    // A pause also ends by itself.
    assert_eq!(operator.cmd(&["LOCKGATE", "PAUSE", "400"]), Reply::ok());
    let since = Instant::now();
    operator.cmd(&["LOCK", "own", "PX", "60000", "WAIT", "30000"]).grant();
    assert!(since.elapsed() >= Duration::from_millis(300));
    assert_eq!(operator.cmd(&["LOCKGATE", "PAUSE", "600000"]), Reply::ok());
    assert_eq!(operator.cmd(&["LOCKGATE", "PAUSE", "0"]), Reply::ok());
    operator.cmd(&["LOCK", "more", "PX", "60000"]).grant();
    assert_eq!((done(&proxy, "pause", "ok"), done(&proxy, "unpause", "ok")), (3.0, 2.0));
}

/// Adopted commands that were refused in a pause say nothing about the lock.
#[test]
fn an_adopted_lock_is_granted_at_once_when_the_pause_ends() {
    for mode in ["enforce", "bridge"] {
        let rules = format!("adopt: {{keys: 'lock:*', lock: '{{1}}', mode: {mode}}}");
        let proxy = Proxy::with().nodes(3).top(&rules).start();
        let mut client = proxy.client();
        let take = ["SET", "lock:job", "t", "NX", "PX", "20000"];
        assert_eq!(client.cmd(&["LOCKGATE", "PAUSE", "60000"]), Reply::ok());
        assert_eq!(client.cmd(&take), Reply::NullBulk);
        assert_eq!(client.cmd(&["LOCKGATE", "UNPAUSE"]), Reply::ok());
        assert_eq!(client.cmd(&take), Reply::ok(), "{mode}");
    }
}

#[test]
fn who_may_not_kill_connections_may_pause_nothing() {
    let mut proxy = deployment();
    let (mut admin, mut app) = (proxy.client(), proxy.client());
    let user = ["ACL", "SETUSER", "app", "on", ">app", "~*", "+@all", "-client|kill"];
    assert_eq!(admin.cmd(&user), Reply::ok());
    app.cmd(&["AUTH", "app", "app"]);
    let address = address(&mut proxy, 0);
    for words in [&["LOCKGATE", "NODE", &address, "PAUSE"][..], &["LOCKGATE", "PAUSE", "60000"]] {
        assert!(app.cmd(words).error().starts_with("NOPERM"), "{words:?}");
    }
    assert_eq!(proxy.nodes_up(), 3);
    app.cmd(&["LOCK", "job"]).grant();
}

#[test]
fn a_lock_of_which_no_holder_is_known_is_not_told_as_held_elsewhere() {
    let mut proxy = deployment();
    let other = Proxy::beside(&proxy).start();
    let (mut operator, mut waiter) = (proxy.client(), proxy.client());
    let mut told_as = |proxy: &Proxy, kind: &str| {
        let hot = elements(operator.cmd(&["LOCKGATE", "HOT"]));
        let listed = elements(operator.cmd(&["LOCKGATE", "LOCKS", "BY", "wait"]));
        let kinds: Vec<Reply> = hot.iter().chain(&listed).map(|lock| field(lock, "kind")).collect();
        let json = format!("\"kind\":\"{kind}\"");
        let pages = ["/api/hot", "/api/locks?by=wait"].map(|page| proxy.http(page));
        kinds == [Reply::bulk(kind), Reply::bulk(kind)]
            && pages.iter().all(|page| page.contains(&json))
    };
    // The lock is free, but is not granted.
    assert_eq!(proxy.client().cmd(&["LOCKGATE", "PAUSE", "600000"]), Reply::ok());
    waiter.send(&encode(&["LOCK", "job", "WAIT", "60000"]));
    eventually("it waits", || proxy.waiters() == 1);
    assert!(told_as(&proxy, "unknown"));
    assert_eq!(proxy.client().cmd(&["LOCKGATE", "UNPAUSE"]), Reply::ok());
    waiter.reply().grant();
    assert_eq!(waiter.cmd(&["UNLOCK", "job"]), Reply::Int(1));

    other.client().cmd(&["LOCK", "job", "token", "PX", "60000"]).grant();
    waiter.send(&encode(&["LOCK", "job", "WAIT", "60000"]));
    eventually("its holder is named", || told_as(&proxy, "elsewhere"));
    // The holder is unknown after a pause has begun, and while too few nodes answer.
    assert_eq!(proxy.client().cmd(&["LOCKGATE", "PAUSE", "600000"]), Reply::ok());
    eventually("no holder is named in a pause", || told_as(&proxy, "unknown"));
    assert_eq!(proxy.client().cmd(&["LOCKGATE", "UNPAUSE"]), Reply::ok());
    eventually("its holder is named again", || told_as(&proxy, "elsewhere"));
    (0..2).for_each(|node| proxy.node(node).freeze().unwrap());
    eventually("no holder is named without a quorum", || told_as(&proxy, "unknown"));
    (0..2).for_each(|node| proxy.node(node).thaw().unwrap());
    eventually("its holder is named again", || told_as(&proxy, "elsewhere"));
    eventually("the other proxy sees them too", || other.nodes_up() == 3);
    assert_eq!(other.client().cmd(&["UNLOCK", "job", "token"]), Reply::Int(1));
    waiter.reply().grant();
}
