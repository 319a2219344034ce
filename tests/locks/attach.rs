//! A connection acts under a lock that was taken on another one, as long as the lock nodes confirm it.

use std::{thread, time::Duration};

use crate::support::{Client, Granted, Proxy, Reply, Setup, eventually, pipeline};

const ACCOUNTS: &str = "guards:\n  - keys: 'account:*'\n    lock: 'account:{1}'";
const LOCK: &str = "account:1";

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Sets up a deployment with guarded accounts, and with nodes that the proxy waits for even on a busy machine.
fn accounts() -> Setup {
    guarded("2s")
}

fn guarded(node_timeout: &str) -> Setup {
    let node_timeout = format!("node_timeout: {node_timeout}");
    Proxy::with().nodes(5).top(ACCOUNTS).locks(&node_timeout).locks("node_silence: 20s")
}

/// Returns a client that has the lock of account 1 for a long time.
fn holder(proxy: &Proxy) -> (Client, Granted) {
    let mut client = proxy.client();
    let grant = client.cmd(&["LOCK", LOCK, "PX", "30000"]).grant();
    (client, grant)
}

fn attached(proxy: &Proxy, token: &str) -> Client {
    let mut client = proxy.client();
    client.cmd(&["LOCK.ATTACH", LOCK, token]).grant();
    client
}

fn write(client: &mut Client) -> Reply {
    client.cmd(&["INCR", LOCK])
}

/// Waits until this many nodes have the lock.
fn settled(proxy: &Proxy, nodes: usize) {
    eventually("all have it", || proxy.nodes_with(&format!("lock:{LOCK}")) == nodes);
}

#[test]
fn who_attaches_acts_under_the_lock() {
    let proxy = accounts().start();
    let (mut owner, grant) = holder(&proxy);
    let mut other = proxy.client();
    assert!(write(&mut other).error().starts_with("NOTHELD"));
    let same = other.cmd(&["lock.attach", LOCK, &grant.token]).grant();
    assert_eq!((&same.token, same.fence), (&grant.token, grant.fence));
    assert!(same.validity > 20_000 && same.validity <= 29_698, "{same:?}");
    assert_eq!(write(&mut other), Reply::Int(1));
    assert_eq!(write(&mut owner), Reply::Int(2), "its fence still is the largest");
    assert!(other.cmd(&["SET", "account:2", "x"]).error().starts_with("NOTHELD"));
    // In one packet, and through another proxy.
    let beside = Proxy::beside(&proxy).top(ACCOUNTS).start();
    let replies = beside.client().pipe(&[
        &["LOCK.ATTACH", LOCK, &grant.token],
        &["INCR", LOCK],
        &["LOCK.DETACH", LOCK],
        &["INCR", LOCK],
    ]);
    assert_eq!(replies[0].grant().fence, grant.fence);
    assert_eq!(replies[1..3], [Reply::Int(3), Reply::Int(1)]);
    assert!(replies[3].error().starts_with("NOTHELD"));
    assert_eq!(write(&mut owner), Reply::Int(4));
}

#[test]
fn whose_token_does_not_hold_the_lock_is_refused() {
    let proxy = accounts().start();
    let (mut owner, grant) = holder(&proxy);
    let mut other = proxy.client();
    assert_eq!(other.cmd(&["LOCK.ATTACH", LOCK, "wrong"]), Reply::NullArray);
    assert_eq!(other.cmd(&["LOCK.ATTACH", "account:2", &grant.token]), Reply::NullArray);
    assert!(write(&mut other).error().starts_with("NOTHELD"));
    other.cmd(&["HELLO", "3"]);
    assert_eq!(other.cmd(&["LOCK.ATTACH", LOCK, "wrong"]), Reply::Null);
    other.cmd(&["LOCK.ATTACH", LOCK, &grant.token]).grant();
    assert_eq!(write(&mut other), Reply::Int(1));
    // Once LOCK.ATTACH is refused, the client no longer acts under the lock.
    assert_eq!(owner.cmd(&["UNLOCK", LOCK]), Reply::Int(1));
    assert_eq!(other.cmd(&["LOCK.ATTACH", LOCK, &grant.token]), Reply::Null);
    assert!(write(&mut other).error().starts_with("NOTHELD"));
    let results = |result| {
        let labels = format!("operation=\"lock.attach\",result=\"{result}\"");
        proxy.metric("lockgate_lock_requests_total", &labels)
    };
    assert_eq!((results("ok"), results("not_held")), (1.0, 4.0));
}

#[test]
fn a_claim_lasts_no_longer_than_the_lock() {
    let proxy = accounts().start();
    let mut owner = proxy.client();
    let grant = owner.cmd(&["LOCK", LOCK, "PX", "3000"]).grant();
    let mut other = attached(&proxy, &grant.token);
    assert_eq!(write(&mut other), Reply::Int(1));
    thread::sleep(ms(3100));
    assert!(write(&mut other).error().starts_with("NOTHELD"));
    assert_eq!(other.cmd(&["LOCK.ATTACH", LOCK, &grant.token]), Reply::NullArray);
}

#[test]
fn a_pool_writes_under_the_lock_of_one_of_its_connections() {
    let proxy = accounts().locks("default_ttl: 2s").start();
    let mut owner = proxy.client();
    let grant = owner.cmd(&["LOCK", LOCK]).grant();
    let mut pool = [attached(&proxy, &grant.token), attached(&proxy, &grant.token)];
    let asked = || proxy.metric("lockgate_guarded_writes_total", "passed");
    for round in 0..4 {
        // Before each further round their claims have run out, while the lock was renewed.
        for client in pool.iter_mut().chain([&mut owner]) {
            for _ in 0..2 {
                let written = write(client);
                assert!(matches!(written, Reply::Int(_)), "round {round}: {written:?}");
            }
        }
        thread::sleep(ms(2100));
    }
    assert_eq!(asked(), 24.0);
    let [first, second] = &mut pool;
    // An attached connection takes nothing with it when it ends.
    second.hang_up();
    eventually("it is gone", || proxy.metric("lockgate_client_connections", "") == 2.0);
    assert_eq!(write(&mut owner), Reply::Int(25));
    assert_eq!(write(first), Reply::Int(26));
    // The lock ends with its owner's connection, whatever the pool does.
    owner.hang_up();
    eventually("it is free", || proxy.nodes_with(&format!("lock:{LOCK}")) == 0);
    thread::sleep(ms(2100));
    let refused = write(first);
    assert!(refused.error_text().starts_with("NOTHELD"), "{refused:?}");
}

#[test]
fn a_claim_whose_lock_went_to_another_is_refused_by_the_data() {
    let mut proxy = accounts().start();
    let (mut owner, grant) = holder(&proxy);
    let mut other = attached(&proxy, &grant.token);
    let mut quiet = attached(&proxy, &grant.token);
    assert_eq!(write(&mut other), Reply::Int(1));
    assert_eq!(owner.cmd(&["UNLOCK", LOCK]), Reply::Int(1));
    let (mut next, newer) = holder(&proxy);
    for client in [&mut other, &mut quiet] {
        let refused = write(client);
        assert!(refused.error().starts_with("FENCED 'account:1' was not written"), "{refused:?}");
        assert!(write(client).error().starts_with("NOTHELD"));
        assert_eq!(client.cmd(&["LOCK.DETACH", LOCK]), Reply::Int(0), "it ended already");
    }
    assert_eq!(write(&mut next), Reply::Int(2));
    // The lock nodes still know the token, but the data node has seen a newer grant.
    let larger = (newer.fence + 5).to_string();
    let mut data = Client::connect(proxy.data().port());
    data.cmd(&["SET", &format!("lockgate:guard:lock:{LOCK}"), &larger]);
    let refused = other.cmd(&["LOCK.ATTACH", LOCK, &newer.token]);
    let expected = format!(
        "FENCED the lock was granted again since, with fence {larger} after {}",
        newer.fence
    );
    assert_eq!(refused.error(), expected);
    assert!(write(&mut other).error().starts_with("NOTHELD"));
    // The attached connection has not taken the lock away from its holder.
    assert!(matches!(next.cmd(&["RENEW", LOCK]), Reply::Int(1..)));
}

#[test]
fn a_quorum_of_nodes_decides() {
    let mut proxy = guarded("500ms").start();
    // On a minority of the nodes a lock belongs to no client.
    for node in 0..2 {
        proxy.node_client(node).cmd(&["SET", "lock:account:2", "few", "PX", "60000"]);
    }
    assert_eq!(proxy.client().cmd(&["LOCK.ATTACH", "account:2", "few"]), Reply::NullArray);
    let mut owner = proxy.client();
    let grant = owner.cmd(&["LOCK", LOCK, "PX", "4000"]).grant();
    settled(&proxy, 5);
    let mut early = attached(&proxy, &grant.token);
    for node in 0..2 {
        proxy.node(node).freeze().unwrap();
    }
    let mut other = proxy.client();
    assert_eq!(other.cmd(&["LOCK.ATTACH", LOCK, &grant.token]).grant().fence, grant.fence);
    assert_eq!(other.cmd(&["LOCK.ATTACH", LOCK, "wrong"]), Reply::NullArray);
    // Three nodes are left, and one of them does not have the lock. The two silent ones may have it.
    proxy.node_client(4).cmd(&["DEL", &format!("lock:{LOCK}")]);
    let refused = other.cmd(&["LOCK.ATTACH", LOCK, &grant.token]);
    assert!(refused.error().starts_with("NOQUORUM 3 of 5 lock nodes answered"), "{refused:?}");
    proxy.node(2).freeze().unwrap();
    let refused = other.cmd(&["LOCK.ATTACH", LOCK, &grant.token]);
    assert!(refused.error().starts_with("NOQUORUM 2 of 5 lock nodes answered, 3 are needed"));
    // An attachment counts for the validity that was told. After that, too few nodes can confirm it.
    assert_eq!(write(&mut early), Reply::Int(1));
    thread::sleep(ms(4100));
    let refused = write(&mut early);
    assert!(refused.error().starts_with("NOQUORUM 2 of 5"), "{refused:?}");
    for node in 0..3 {
        proxy.node(node).thaw().unwrap();
    }
    eventually("they are heard again", || write(&mut early).error().starts_with("NOTHELD"));
}

#[test]
fn the_time_is_that_of_a_quorum() {
    let proxy = accounts().start();
    let (_owner, grant) = holder(&proxy);
    settled(&proxy, 5);
    for (node, millis) in ["20000", "15000", "29000", "10000", "18000"].into_iter().enumerate() {
        proxy.node_client(node).cmd(&["PEXPIRE", &format!("lock:{LOCK}"), millis]);
    }
    // No quorum has it for longer than 18 s, less what has passed since and the drift;
    // those that answer first may have it for less.
    let told = proxy.client().cmd(&["LOCK.ATTACH", LOCK, &grant.token]).grant();
    assert!(told.validity > 0 && told.validity <= 17_818, "{told:?}");
    // Without a TTL, it lasts no longer than any lock may.
    for node in 0..5 {
        proxy.node_client(node).cmd(&["PERSIST", &format!("lock:{LOCK}")]);
    }
    let told = proxy.client().cmd(&["LOCK.ATTACH", LOCK, &grant.token]).grant();
    assert!(told.validity > 50_000 && told.validity < 60_000, "{told:?}");
}

/// Makes nodes store another fence of the lock than that of its grant.
fn store(proxy: &Proxy, nodes: &[usize], fence: i64) {
    for node in nodes {
        let key = format!("lockgate:fence:lock:{LOCK}");
        proxy.node_client(*node).cmd(&["SET", &key, &format!("{fence} 7")]);
    }
}

#[test]
fn the_fence_is_that_of_the_grant_whatever_a_minority_stores() {
    let mut proxy = accounts().start();
    let (mut owner, grant) = holder(&proxy);
    settled(&proxy, 5);
    let told = |proxy: &Proxy| {
        // Asked many times, since any nodes may answer first.
        let mut fences: Vec<i64> = (0..20)
            .map(|_| proxy.client().cmd(&["LOCK.ATTACH", LOCK, &grant.token]).grant().fence)
            .collect();
        fences.dedup();
        fences
    };
    store(&proxy, &[0, 1], grant.fence + 1000);
    assert_eq!(told(&proxy), [grant.fence]);
    store(&proxy, &[1], grant.fence - 1000);
    assert_eq!(told(&proxy), [grant.fence]);
    // With one node away, the smallest possible fence is told.
    store(&proxy, &[1], grant.fence + 1000);
    proxy.node(4).kill().unwrap();
    assert_eq!(told(&proxy), [grant.fence]);
    // The lock's holder is never refused because of that.
    assert_eq!(write(&mut owner), Reply::Int(1));
    // A lock that was taken without Lockgate has no fence.
    for node in 0..4 {
        proxy.node_client(node).cmd(&["SET", "lock:account:2", "raw", "PX", "60000"]);
    }
    let refused = proxy.client().cmd(&["LOCK.ATTACH", "account:2", "raw"]);
    assert!(refused.error().starts_with("ERR too few lock nodes know this lock's fence"));
}

#[test]
fn an_attached_connection_may_renew_and_release_without_the_token() {
    let proxy = accounts().start();
    let mut owner = proxy.client();
    let grant = owner.cmd(&["LOCK", LOCK, "PX", "3000"]).grant();
    let mut other = attached(&proxy, &grant.token);
    let Reply::Int(validity) = other.cmd(&["RENEW", LOCK, "PX", "30000"]) else { panic!() };
    assert!(validity > 20_000);
    thread::sleep(ms(3100));
    assert_eq!(write(&mut other), Reply::Int(1));
    assert!(write(&mut owner).error().starts_with("NOTHELD"), "it has not heard of it");
    owner.cmd(&["LOCK.ATTACH", LOCK, &grant.token]).grant();
    assert_eq!(write(&mut owner), Reply::Int(2));
    assert_eq!(other.cmd(&["UNLOCK", LOCK]), Reply::Int(1));
    eventually("it is free", || proxy.nodes_with(&format!("lock:{LOCK}")) == 0);
    assert!(write(&mut other).error().starts_with("NOTHELD"));
}

#[test]
fn detach_ends_what_attach_began_and_no_more() {
    let proxy = accounts().start();
    let mut owner = proxy.client();
    let grant = owner.cmd(&["LOCK", LOCK]).grant();
    let mut other = attached(&proxy, &grant.token);
    assert_eq!(other.cmd(&["LOCK.DETACH", "account:2"]), Reply::Int(0));
    assert_eq!(other.cmd(&["LOCK.DETACH", LOCK]), Reply::Int(1));
    assert_eq!(other.cmd(&["LOCK.DETACH", LOCK]), Reply::Int(0));
    assert!(write(&mut other).error().starts_with("NOTHELD"));
    assert!(other.cmd(&["UNLOCK", LOCK]).error().starts_with("NOTOKEN"));
    // The connection that took the lock keeps it, whatever it sends.
    assert_eq!(owner.cmd(&["LOCK.DETACH", LOCK]), Reply::Int(0));
    assert_eq!(owner.cmd(&["LOCK.ATTACH", LOCK, &grant.token]).grant().fence, grant.fence);
    assert_eq!(owner.cmd(&["LOCK.DETACH", LOCK]), Reply::Int(0));
    assert_eq!(write(&mut owner), Reply::Int(1));
    assert!(proxy.nodes_with(&format!("lock:{LOCK}")) >= 3);
    // The lock ends with that connection, as ever.
    drop(owner);
    eventually("it is free", || proxy.nodes_with(&format!("lock:{LOCK}")) == 0);
}

#[test]
fn a_connection_that_ends_leaves_the_lock_it_is_attached_to() {
    let proxy = accounts().start();
    let (mut owner, grant) = holder(&proxy);
    settled(&proxy, 5);
    let mut other = attached(&proxy, &grant.token);
    other.hang_up();
    eventually("it is gone", || proxy.metric("lockgate_client_connections", "") == 1.0);
    proxy.assert_on_nodes(&format!("lock:{LOCK}"), 5);
    assert_eq!(write(&mut owner), Reply::Int(1));
}

#[test]
fn a_transaction_writes_under_a_lock_that_the_connection_is_attached_to() {
    let proxy = accounts().locks("default_ttl: 2s").start();
    let mut owner = proxy.client();
    let grant = owner.cmd(&["LOCK", LOCK]).grant();
    let mut other = attached(&proxy, &grant.token);
    for round in 1..3 {
        let replies = other.pipe(&[&["MULTI"], &["INCR", LOCK], &["EXEC"]]);
        assert_eq!(replies[1..], [Reply::simple("QUEUED"), Reply::Array(vec![Reply::Int(round)])]);
        thread::sleep(ms(2100));
    }
    // Lockgate's commands are refused in a transaction, by Redis itself.
    for words in [&["LOCK.ATTACH", LOCK, &grant.token][..], &["LOCK.DETACH", LOCK]] {
        let replies = other.pipe(&[&["MULTI"], words, &["EXEC"]]);
        assert!(replies[1].error().starts_with("ERR unknown command 'LOCK."), "{replies:?}");
        assert!(replies[2].error().starts_with("EXECABORT"));
    }
    // The lock is released, and granted to another client, between MULTI and EXEC.
    assert!(matches!(write(&mut other), Reply::Int(_)));
    assert_eq!(other.cmd(&["MULTI"]), Reply::ok());
    assert_eq!(other.cmd(&["INCR", LOCK]), Reply::simple("QUEUED"));
    assert_eq!(owner.cmd(&["UNLOCK", LOCK]), Reply::Int(1));
    holder(&proxy);
    assert!(other.cmd(&["EXEC"]).error().starts_with("FENCED"));
}

#[test]
fn a_claim_that_runs_out_within_a_transaction_is_not_asked_about_again() {
    let mut proxy = accounts().start();
    let grant = proxy.client().cmd(&["LOCK", LOCK, "PX", "3000"]).grant();
    let mut other = attached(&proxy, &grant.token);
    assert_eq!(other.cmd(&["MULTI"]), Reply::ok());
    assert_eq!(other.cmd(&["SET", LOCK, "x"]), Reply::simple("QUEUED"));
    thread::sleep(ms(3100));
    assert!(other.cmd(&["SET", LOCK, "y"]).error().starts_with("NOTHELD"));
    assert!(other.cmd(&["EXEC"]).error().starts_with("EXECABORT"));
    let mut data = Client::connect(proxy.data().port());
    assert_eq!(data.cmd(&["EXISTS", LOCK]), Reply::Int(0));
}

#[test]
fn who_asks_about_its_own_session_lock_is_still_told_that_it_is_lost() {
    let proxy = accounts().locks("default_ttl: 3s").start();
    let mut owner = proxy.client();
    let grant = owner.cmd(&["LOCK", LOCK]).grant();
    settled(&proxy, 5);
    for node in 0..5 {
        proxy.node_client(node).cmd(&["DEL", &format!("lock:{LOCK}")]);
    }
    let is_lost = |reply: &Reply| reply.error_text().starts_with("LOCKLOST");
    // Unless the client was told before.
    let told = owner.cmd(&["LOCK.ATTACH", LOCK, &grant.token]);
    if !is_lost(&told) {
        assert_eq!(told, Reply::NullArray);
        eventually("it is told", || is_lost(&owner.cmd(&["PING"])));
    }
}

#[test]
fn words_are_checked_as_redis_checks_them() {
    let proxy = Proxy::with().data_arguments(&["--requirepass", "x"]).start();
    let mut client = proxy.client();
    assert!(client.cmd(&["LOCK.ATTACH", "k", "t"]).error().starts_with("NOAUTH"));
    assert!(client.cmd(&["LOCK.DETACH", "k"]).error().starts_with("NOAUTH"));
    client.cmd(&["AUTH", "x"]);
    for (words, error) in [
        (&["LOCK.ATTACH"][..], "ERR wrong number of arguments for 'lock.attach' command"),
        (&["Lock.Attach", "k"], "ERR wrong number of arguments for 'lock.attach' command"),
        (
            &["LOCK.ATTACH", "k", "t", "x"],
            "ERR wrong number of arguments for 'lock.attach' command",
        ),
        (&["LOCK.DETACH"], "ERR wrong number of arguments for 'lock.detach' command"),
        (&["LOCK.DETACH", "k", "t"], "ERR wrong number of arguments for 'lock.detach' command"),
        (
            &["LOCK.DETACH", "1", "2", "3", "4", "5", "6", "7", "8"],
            "ERR wrong number of arguments for 'lock.detach' command",
        ),
    ] {
        assert_eq!(client.cmd(words).error(), error, "{words:?}");
    }
    // A user that may not SET the key may not attach either.
    client.cmd(&["ACL", "SETUSER", "app", "on", "nopass", "~lock:app:*", "+@all"]);
    client.cmd(&["AUTH", "app", "x"]);
    assert!(client.cmd(&["LOCK.ATTACH", "k", "t"]).error().starts_with("NOPERM"));
    assert_eq!(client.cmd(&["LOCK.DETACH", "app:k"]), Reply::Int(0));
}

#[test]
fn it_answers_without_guards_and_where_replies_are_off() {
    let plain = Proxy::start();
    let grant = plain.client().cmd(&["LOCK", "k", "PX", "30000"]).grant();
    let mut client = plain.client();
    assert_eq!(client.cmd(&["LOCK.ATTACH", "k", &grant.token]).grant().fence, grant.fence);
    assert_eq!(client.cmd(&["LOCK.DETACH", "k"]), Reply::Int(1));

    let proxy = accounts().start();
    let (_owner, grant) = holder(&proxy);
    let mut client = proxy.client();
    client.send(&pipeline(&[
        &["CLIENT", "REPLY", "OFF"],
        &["LOCK.ATTACH", LOCK, &grant.token],
        &["INCR", LOCK],
        &["CLIENT", "REPLY", "ON"],
        &["GET", LOCK],
    ]));
    assert_eq!(client.reply(), Reply::ok());
    assert_eq!(client.reply(), Reply::bulk("1"));
}

#[test]
fn audit_does_not_count_who_is_attached() {
    let proxy = Proxy::with().top(&format!("{ACCOUNTS}\n    policy: audit")).start();
    let mut owner = proxy.client();
    let grant = owner.cmd(&["LOCK", LOCK, "PX", "3000"]).grant();
    let mut other = attached(&proxy, &grant.token);
    thread::sleep(ms(3100));
    assert_eq!(write(&mut other), Reply::Int(1));
    assert_eq!(write(&mut proxy.client()), Reply::Int(2));
    assert_eq!(proxy.metric("lockgate_guarded_writes_total", "\"audited\""), 1.0);
    assert_eq!(proxy.metric("lockgate_guarded_writes_total", "\"passed\""), 1.0);
}
