//! LOCKGATE UNLOCK: an operator takes a lock back, whichever client holds it and through whichever proxy.

use std::time::Duration;

use super::{
    admin_actions::{TOKEN, freed, post},
    logs::lines,
    who::address_of,
};
use crate::support::{Client, Proxy, Reply, encode, eventually};

/// The line that is logged before anything is done to a holder.
const BEGINS: &str = "an operator takes a lock back";
const ACCOUNTS: &str = "guards:\n  - keys: 'account:*'\n    lock: 'account:{1}'";

fn deployment() -> Proxy {
    Proxy::with().nodes(3).locks("default_ttl: 2s").start()
}

fn unlock(client: &mut Client, key: &str, fence: i64) -> Reply {
    client.cmd(&["LOCKGATE", "UNLOCK", key, "FENCE", &fence.to_string()])
}

#[test]
fn a_lease_is_taken_back_by_its_fence_alone_and_a_waiter_has_it() {
    let proxy = deployment();
    let (mut holder, mut operator, mut waiter) = (proxy.client(), proxy.client(), proxy.client());
    let first = holder.cmd(&["LOCK", "job", "PX", "60000"]).grant();
    waiter.send(&encode(&["LOCK", "job", "PX", "60000", "WAIT", "30000"]));
    eventually("it waits", || proxy.waiters() == 1);
    assert_eq!(operator.cmd(&["CLIENT", "SETNAME", "night-shift"]), Reply::ok());

    assert_eq!(unlock(&mut operator, "job", first.fence - 1), Reply::Int(0));
    assert_eq!(unlock(&mut operator, "other", first.fence), Reply::Int(0));
    proxy.assert_value_on_nodes("lock:job", &first.token);
    assert_eq!(unlock(&mut operator, "job", first.fence), Reply::Int(1));
    let second = waiter.reply().grant();
    assert!(second.fence > first.fence);
    proxy.assert_on_nodes("lockgate:ended:lock:job", 3);

    // The next holder has another grant.
    assert_eq!(unlock(&mut operator, "job", first.fence), Reply::Int(0));
    assert_eq!(holder.cmd(&["RENEW", "job", "PX", "60000"]), Reply::Int(0));
    assert_eq!(holder.cmd(&["UNLOCK", "job"]), Reply::Int(0));
    proxy.assert_value_on_nodes("lock:job", &second.token);
    assert_eq!(operator.cmd(&["lockgate", "unlock", "job", "any"]), Reply::Int(1));
    assert_eq!(operator.cmd(&["LOCKGATE", "UNLOCK", "job", "ANY"]), Reply::Int(0));
    proxy.assert_on_nodes("lock:job", 0);

    assert_eq!(proxy.metric("lockgate_operator_unlocks_total", "result=\"ok\""), 2.0);
    assert_eq!(proxy.metric("lockgate_operator_unlocks_total", "result=\"not_held\""), 4.0);
    let holder = format!("\"address\":\"{}\"", address_of(&holder));
    for what in [BEGINS, "an operator has taken a lock back"] {
        let told = lines(&proxy, &[what]);
        assert_eq!(told.len(), 2, "{}", proxy.log());
        let fence = first.fence.to_string();
        for part in ["job", &fence, "127.0.0.1:", "user", "default", "night-shift", &holder] {
            assert!(told[0].contains(part), "{part} in {}", told[0]);
        }
    }
    assert!(!proxy.log().contains(&first.token), "no token is logged");
}

#[test]
fn the_holder_of_a_session_lock_is_told_and_nobody_puts_it_back() {
    let proxy = deployment();
    let (mut holder, mut operator) = (proxy.client(), proxy.client());
    let first = holder.cmd(&["LOCK", "job"]).grant();
    assert_eq!(unlock(&mut operator, "job", first.fence), Reply::Int(1));
    // Two renewals would have come meanwhile.
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(proxy.nodes_with("lock:job"), 0);
    assert!(holder.cmd(&["SET", "x", "1"]).error().starts_with("LOCKLOST the lock 'job' was lost"));
    assert_eq!(holder.cmd(&["GET", "x"]), Reply::NullBulk, "it was not carried out");
    assert_eq!(proxy.metric("lockgate_lost_locks_total", "reason=\"operator\""), 1.0);
    assert_eq!(proxy.metric("lockgate_session_locks", ""), 0.0);
    // The operator may be the holder.
    let own = operator.cmd(&["LOCK", "own"]).grant();
    assert_eq!(unlock(&mut operator, "own", own.fence), Reply::Int(1));
    assert!(operator.cmd(&["PING"]).error().starts_with("LOCKLOST"));
}

#[test]
fn a_proxy_that_renews_a_lock_does_not_bring_it_back() {
    let proxy = deployment();
    let other = Proxy::beside(&proxy).start();
    let (mut holder, mut late) = (other.client(), other.client());
    let first = holder.cmd(&["LOCK", "job"]).grant();
    let lease = late.cmd(&["LOCK", "lease", "PX", "60000"]).grant();
    let mut operator = proxy.client();
    assert_eq!(unlock(&mut operator, "job", first.fence), Reply::Int(1));
    assert_eq!(unlock(&mut operator, "lease", lease.fence), Reply::Int(1));
    let mut next = proxy.client();
    let second = next.cmd(&["LOCK", "job", "PX", "60000"]).grant();
    eventually("its keeper finds out", || {
        other.metric("lockgate_lost_locks_total", "reason=\"not_held\"") == 1.0
    });
    assert!(holder.cmd(&["PING"]).error().starts_with("LOCKLOST"));
    assert_eq!(late.cmd(&["RENEW", "lease", "PX", "60000"]), Reply::Int(0));
    proxy.assert_value_on_nodes("lock:job", &second.token);
    assert_eq!(proxy.nodes_with("lock:lease"), 0);
}

#[test]
fn a_proxy_that_slept_or_died_is_not_needed() {
    let proxy = deployment();
    let mut other = Proxy::beside(&proxy).start();
    let mut holder = other.client();
    let session = holder.cmd(&["LOCK", "job"]).grant();
    let lease = holder.cmd(&["LOCK", "lease", "PX", "60000"]).grant();
    other.freeze();
    let mut operator = proxy.client();
    assert_eq!(unlock(&mut operator, "job", session.fence), Reply::Int(1));
    let second = operator.cmd(&["LOCK", "job", "PX", "60000"]).grant();
    other.thaw();
    eventually("its keeper finds out", || other.metric("lockgate_lost_locks_total", "") == 1.0);
    assert!(holder.cmd(&["PING"]).error().starts_with("LOCKLOST"));
    proxy.assert_value_on_nodes("lock:job", &second.token);
    other.kill();
    assert_eq!(unlock(&mut operator, "lease", lease.fence + 1), Reply::Int(0));
    assert_eq!(unlock(&mut operator, "lease", lease.fence), Reply::Int(1));
    proxy.assert_on_nodes("lock:lease", 0);
}

#[test]
fn too_few_lock_nodes_are_told_and_it_can_be_repeated() {
    let mut proxy = Proxy::with().nodes(3).locks("node_timeout: 200ms").start();
    let (mut holder, mut operator) = (proxy.client(), proxy.client());
    let first = holder.cmd(&["LOCK", "job", "PX", "60000"]).grant();
    for node in [1, 2] {
        proxy.node(node).freeze().unwrap();
    }
    for words in [&["LOCKGATE", "UNLOCK", "job", "ANY"][..]; 2] {
        assert!(operator.cmd(words).error().starts_with("NOQUORUM 1 of 3 lock nodes answered"));
    }
    for node in [1, 2] {
        proxy.node(node).thaw().unwrap();
    }
    eventually("they answer again", || unlock(&mut operator, "job", first.fence) == Reply::Int(1));
    proxy.assert_on_nodes("lock:job", 0);
    assert!(proxy.metric("lockgate_operator_unlocks_total", "result=\"no_quorum\"") >= 2.0);
}

#[test]
fn late_writes_of_the_last_holder_are_refused_at_once() {
    let proxy = Proxy::with().nodes(3).top(ACCOUNTS).start();
    let other = Proxy::beside(&proxy).top(ACCOUNTS).start();
    let (mut holder, mut operator) = (other.client(), proxy.client());
    let first = holder.cmd(&["LOCK", "account:1", "PX", "60000"]).grant();
    assert_eq!(holder.cmd(&["SET", "account:1", "100"]), Reply::ok());
    let mut direct = proxy.data_client();

    // The data node comes first: if the proxy's own user may not tell it, the lock stays, and its words are told. What
    // the operator's user may do besides CLIENT KILL does not matter.
    let user = ["ACL", "SETUSER", "op", "on", ">op", "+@all", "~nothing", "-eval", "-wait"];
    assert_eq!(direct.cmd(&user), Reply::ok());
    assert_eq!(operator.cmd(&["AUTH", "op", "op"]), Reply::ok());
    assert_eq!(direct.cmd(&["ACL", "SETUSER", "default", "-eval"]), Reply::ok());
    let refused = unlock(&mut operator, "account:1", first.fence);
    assert!(refused.error().starts_with("NOPERM "), "{refused:?}");
    assert_eq!(direct.cmd(&["ACL", "SETUSER", "default", "+eval"]), Reply::ok());
    proxy.assert_value_on_nodes("lock:account:1", &first.token);
    assert_eq!(holder.cmd(&["SET", "account:1", "150"]), Reply::ok());
    assert_eq!(proxy.metric("lockgate_operator_unlocks_total", "result=\"failed\""), 1.0);
    for parts in [&[BEGINS][..], &["an operator has not taken a lock back", "NOPERM"]] {
        let [line] = &lines(&proxy, parts)[..] else { panic!("{parts:?} in {}", proxy.log()) };
        assert!(line.contains("account:1") && line.contains("user \\\"op\\\""), "{line}");
    }
    // An operator's client must not take it for a demand to authenticate.
    assert_eq!(direct.cmd(&["CONFIG", "SET", "requirepass", "x"]), Reply::ok());
    let refused = unlock(&mut operator, "account:1", first.fence);
    assert!(refused.error().starts_with("ERR the data node: NOAUTH"), "{refused:?}");
    assert_eq!(direct.cmd(&["CONFIG", "SET", "requirepass", ""]), Reply::ok());
    proxy.assert_value_on_nodes("lock:account:1", &first.token);

    operator.cmd(&["SELECT", "3"]);
    operator.send(&encode(&["CLIENT", "REPLY", "OFF"]));
    operator.send(&encode(&["LOCKGATE", "UNLOCK", "account:1", "ANY"]));
    operator.send(&encode(&["CLIENT", "REPLY", "ON"]));
    assert_eq!(operator.reply(), Reply::ok());
    proxy.assert_on_nodes("lock:account:1", 0);
    assert!(holder.cmd(&["SET", "account:1", "200"]).error().starts_with("FENCED 'account:1'"));
    assert_eq!(direct.cmd(&["GET", "account:1"]), Reply::bulk("150"));
    let second = proxy.client().cmd(&["LOCK", "account:1", "PX", "60000"]).grant();
    assert!(second.fence > first.fence);
}

#[test]
fn late_writes_are_refused_where_no_lock_node_knows_a_fence_that_is_ahead_of_the_clock() {
    let proxy = Proxy::with().nodes(3).top(ACCOUNTS).admin_token(TOKEN).start();
    let other = Proxy::beside(&proxy).top(ACCOUNTS).start();
    let (mut holder, mut operator) = (other.client(), proxy.client());
    let mut direct = proxy.data_client();
    for over_http in [false, true] {
        // A proxy whose clock is ten minutes ahead has had the lock before.
        let now = std::time::UNIX_EPOCH.elapsed().unwrap() + Duration::from_secs(600);
        let ahead = now.as_micros().to_string();
        let fence = "lockgate:guard:lock:account:1";
        assert_eq!(direct.cmd(&["SET", fence, &ahead]), Reply::ok());
        let granted = holder.cmd(&["LOCK", "account:1", "PX", "60000"]).grant();
        assert!(granted.fence > ahead.parse().unwrap());
        for node in 0..3 {
            let mut node = proxy.node_client(node);
            assert_eq!(node.cmd(&["DEL", "lockgate:fence:lock:account:1"]), Reply::Int(1));
        }
        match over_http {
            false => {
                let words = ["LOCKGATE", "UNLOCK", "account:1", "ANY"];
                assert_eq!(operator.cmd(&words), Reply::Int(1));
            }
            true => {
                let any = r#"{"key": "account:1", "any": true}"#;
                assert_eq!(post(&proxy, "/api/locks/unlock", any), freed(true));
            }
        }
        proxy.assert_on_nodes("lock:account:1", 0);
        let late = holder.cmd(&["SET", "account:1", "200"]);
        assert!(late.error().starts_with("FENCED 'account:1'"), "{over_http}: {late:?}");
        assert_eq!(direct.cmd(&["DEL", fence]), Reply::Int(1));
    }
}

#[test]
fn an_operator_who_takes_nothing_back_is_told_of_all_the_same() {
    let mut proxy = Proxy::with().nodes(3).admin_token(TOKEN).start();
    let mut operator = proxy.client();
    let granted = proxy.client().cmd(&["LOCK", "held", "h", "PX", "60000"]).grant();
    assert_eq!(unlock(&mut operator, "held", granted.fence + 1), Reply::Int(0));
    post(&proxy, "/api/locks/unlock", r#"{"key": "free", "any": true}"#);
    for node in 0..2 {
        proxy.node(node).freeze().unwrap();
    }
    let reply = operator.cmd(&["LOCKGATE", "UNLOCK", "held", "ANY"]);
    assert!(reply.error().starts_with("NOQUORUM"), "{reply:?}");
    for (lock, error) in
        [("held", "ERR nobody holds"), ("free", "ERR nobody holds"), ("held", "NOQUORUM")]
    {
        let lock = format!("\"lock\":\"{lock}\"");
        let told = lines(&proxy, &["an operator has not taken a lock back", &lock, error]);
        assert!(told.len() == 1 && told[0].contains("\"by\":"), "{}", proxy.log());
    }
    assert!(lines(&proxy, &[BEGINS]).is_empty(), "{}", proxy.log());
    // A malformed command has no line.
    let before = proxy.log().len();
    assert!(operator.cmd(&["LOCKGATE", "UNLOCK", "", "ANY"]).error().starts_with("ERR"));
    assert_eq!(proxy.log()[before..].matches("an operator").count(), 0);
}

#[test]
fn an_operator_who_goes_in_the_middle_does_not_leave_half_of_it() {
    let mut proxy = Proxy::with()
        .nodes(3)
        .top(&format!("{ACCOUNTS}\nshutdown_grace: 500ms"))
        .locks("node_timeout: 6s\n  node_silence: 8s")
        .start();
    let (mut holder, mut direct) = (proxy.client(), proxy.data_client());
    let count =
        |proxy: &Proxy, result: &str| proxy.metric("lockgate_operator_unlocks_total", result);
    let clients = |proxy: &Proxy| proxy.metric("lockgate_client_connections", "");
    // The data node answers everything but the announcement of the larger fence.
    let begins = |proxy: &Proxy, direct: &mut Client, times: usize| {
        assert_eq!(direct.cmd(&["CLIENT", "PAUSE", "60000", "WRITE"]), Reply::ok());
        let mut operator = proxy.client();
        operator.send(&encode(&["LOCKGATE", "UNLOCK", "account:1", "ANY"]));
        eventually("it begins", || lines(proxy, &[BEGINS]).len() == times);
        operator
    };
    let taken = "an operator has taken a lock back";

    let first = holder.cmd(&["LOCK", "account:1", "PX", "60000"]).grant();
    begins(&proxy, &mut direct, 1).reset();
    eventually("the operator's session has ended", || clients(&proxy) == 1.0);
    // A slow data node has its time.
    std::thread::sleep(Duration::from_secs(1));
    proxy.assert_on_nodes("lock:account:1", 3);
    assert_eq!(direct.cmd(&["CLIENT", "UNPAUSE"]), Reply::ok());
    eventually("it is taken back", || count(&proxy, "result=\"ok\"") == 1.0);
    proxy.assert_on_nodes("lock:account:1", 0);
    let told = lines(&proxy, &[taken, &first.fence.to_string(), "user \\\"default\\\""]);
    assert_eq!(told.len(), 1, "{}", proxy.log());
    assert!(holder.cmd(&["SET", "account:1", "200"]).error().starts_with("FENCED"));

    // Nor where lock nodes are slow.
    let second = holder.cmd(&["LOCK", "account:1", "PX", "60000"]).grant();
    let operator = begins(&proxy, &mut direct, 2);
    for node in [1, 2] {
        proxy.node(node).freeze().unwrap();
    }
    assert_eq!(direct.cmd(&["CLIENT", "UNPAUSE"]), Reply::ok());
    eventually("the first node has released it", || {
        proxy.node_client(0).cmd(&["EXISTS", "lock:account:1"]) == Reply::Int(0)
    });
    operator.reset();
    eventually("the operator's session has ended", || clients(&proxy) == 1.0);
    for node in [1, 2] {
        proxy.node(node).thaw().unwrap();
    }
    // On a slow machine it may be too late for a quorum.
    eventually("the end is counted", || {
        count(&proxy, "result=\"ok\"") + count(&proxy, "result=\"no_quorum\"") == 2.0
    });
    let fence = second.fence.to_string();
    let told = [taken, "an operator has not taken a lock back"];
    let told = told.map(|what| lines(&proxy, &[what, &fence]).len());
    assert_eq!(told.iter().sum::<usize>(), 1, "{}", proxy.log());
    assert!(holder.cmd(&["SET", "account:1", "200"]).error().starts_with("FENCED"));

    // A proxy that ends in the middle has left a trace.
    eventually("it is granted", || {
        matches!(holder.cmd(&["LOCK", "account:1", "PX", "60000"]), Reply::Array(_))
    });
    let _operator = begins(&proxy, &mut direct, 3);
    proxy.terminate();
    let ends = "the proxy ends while an operator takes a lock back";
    eventually("it has ended", || lines(&proxy, &[ends, "account:1"]).len() == 1);
}

#[test]
fn the_audit_trail_names_the_operator_whoever_granted_the_lock() {
    let audited = |setup: crate::support::Setup| setup.top("log: {locks: all}").start();
    let proxy = audited(Proxy::with().nodes(3).locks("default_ttl: 2s"));
    let other = audited(Proxy::beside(&proxy));
    let (mut holder, mut operator) = (proxy.client(), proxy.client());
    assert_eq!(operator.cmd(&["CLIENT", "SETNAME", "night-shift"]), Reply::ok());
    let first = holder.cmd(&["LOCK", "job", "PX", "60000"]).grant();
    other.client().cmd(&["LOCK", "there", "PX", "60000"]).grant();
    assert_eq!(unlock(&mut operator, "job", first.fence), Reply::Int(1));
    assert_eq!(operator.cmd(&["LOCKGATE", "UNLOCK", "there", "ANY"]), Reply::Int(1));
    assert_eq!(operator.cmd(&["LOCK", "own", "PX", "60000"]).grant().token.len(), 32);
    assert_eq!(operator.cmd(&["UNLOCK", "own"]), Reply::Int(1));
    let by = format!(
        "\"by\":\"{} user \\\"default\\\" name \\\"night-shift\\\"\"",
        address_of(&operator)
    );
    for (event, lock, named) in [
        ("taken_back", "job", true),
        ("released_elsewhere", "there", true),
        ("released", "own", false),
    ] {
        let (event, lock) = (format!("\"audit\":\"{event}\""), format!("\"lock\":\"{lock}\""));
        let [line] = &lines(&proxy, &[&event, &lock])[..] else { panic!("{}", proxy.log()) };
        assert_eq!(line.contains(&by), named, "{by} in {line}");
        assert_eq!(line.contains("\"by\""), named, "{line}");
    }
}

#[test]
fn who_may_not_kill_connections_may_not_take_locks_back() {
    let proxy = deployment();
    let (mut holder, mut operator) = (proxy.client(), proxy.client());
    let first = holder.cmd(&["LOCK", "job", "PX", "60000"]).grant();
    let user = ["ACL", "SETUSER", "app", "on", ">app", "~*", "+@all", "-client|kill"];
    assert_eq!(holder.cmd(&user), Reply::ok());
    operator.cmd(&["AUTH", "app", "app"]);
    let redis = operator.cmd(&["CLIENT", "KILL", "ID", "1"]);
    assert!(redis.error().starts_with("NOPERM"));
    assert_eq!(operator.cmd(&["LOCKGATE", "UNLOCK", "job", "ANY"]), redis);
    assert_eq!(operator.cmd(&["LOCKGATE", "UNLOCK", "job", "SOME"]), redis);
    proxy.assert_value_on_nodes("lock:job", &first.token);

    // A client that may use it is told what is wrong. The question whether it may has killed no connection.
    for (words, error) in [
        (&["LOCKGATE", "UNLOCK", "", "ANY"][..], "ERR the key is empty"),
        (
            &["LOCKGATE", "UNLOCK", "job"],
            "ERR wrong number of arguments for 'lockgate|unlock' command",
        ),
    ] {
        assert_eq!(holder.cmd(words).error(), error);
    }
    assert_eq!(operator.cmd(&["PING"]), Reply::simple("PONG"));
    let bare = Proxy::with().locks("prefix: ''").start();
    let mut client = bare.client();
    assert_eq!(
        client.cmd(&["LOCKGATE", "UNLOCK", "lockgate:deployment", "ANY"]).error(),
        "ERR keys that begin with 'lockgate:' are reserved"
    );
    assert_eq!(bare.node_client(0).cmd(&["LPUSH", "list", "x"]), Reply::Int(1));
    let told = client.cmd(&["LOCKGATE", "UNLOCK", "list", "ANY"]);
    assert!(told.error().starts_with("ERR what lies at the lock's key"), "{told:?}");
}
