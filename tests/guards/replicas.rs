//! A data node with replicas, which acknowledge fences and writes. A data node that goes back to an earlier fence
//! lets no late holder in.

use std::time::{Duration, Instant};

use lockgate::tools::redis_server::RedisServer;

use super::account::{SCRIPT, WAYS, is_written, take_away, write};
use crate::support::{
    Client, Proxy, Reply, cluster::text, encode, eventually, pipeline, relay::Relay, replicates,
};

const FENCE: &str = "lockgate:guard:lock:account:1";
const TOKEN: &str = "a-token-of-at-least-20-characters";
/// The master sends a replica its data at once, and not after five seconds.
const AT_ONCE: &[&str] = &["--repl-diskless-sync-delay", "0"];

/// The guard, with these other keys beside it.
fn guards(others: &str) -> String {
    format!("guards:\n  {others}\n  rules:\n    - keys: 'account:*'\n      lock: 'account:{{1}}'")
}

/// A deployment whose data node has a replica.
struct Deployment {
    proxy: Proxy,
    replica: RedisServer,
    /// The data node's connection to the replica.
    replication: Relay,
    _data: RedisServer,
}

/// Takes a lock, again until the replica acknowledges its fence within a short time, which a busy machine may delay.
/// Returns how many fences were not acknowledged.
fn granted(proxy: &Proxy, client: &mut Client, lock: &[&str]) -> f64 {
    eventually("it is granted", || matches!(client.cmd(lock), Reply::Array(_)));
    unacknowledged(proxy, "lock")
}

fn ready(proxy: &Proxy) {
    eventually("the proxy is ready", || proxy.http("/readyz").starts_with("HTTP/1.1 200"));
}

impl Deployment {
    fn start(others: &str) -> Deployment {
        // The first replica gives the data another history, so it is started before the proxy.
        let data = RedisServer::start(AT_ONCE).expect("data node");
        let replication = Relay::to(data.port());
        let master = replication.port().to_string();
        let replica = RedisServer::start(&["--replicaof", "127.0.0.1", &master]);
        let replica = replica.expect("replica");
        replicates(data.port(), "seen");
        let proxy = Proxy::with().nodes(3).top(&guards(others)).data_port(data.port());
        let proxy = proxy.admin_token(TOKEN).start();
        ready(&proxy);
        Deployment { proxy, replica, replication, _data: data }
    }
}

fn unacknowledged(proxy: &Proxy, of: &str) -> f64 {
    proxy.metric("lockgate_guard_unacknowledged_total", &format!("of=\"{of}\""))
}

/// Returns the first word of an error reply.
fn word(reply: &Reply) -> &str {
    reply.error_text().split(' ').next().unwrap_or_default()
}

#[test]
fn a_lock_that_is_told_has_its_fence_on_the_replica() {
    let Deployment { proxy, replica, replication, _data } =
        Deployment::start("replicas: 1\n  replica_timeout: 10s");
    // With a slow replication the fence is not there by chance.
    replication.delay_replies(Duration::from_millis(20));
    let mut replica = Client::connect(replica.port());
    let mut client = proxy.client();
    let check = |replica: &mut Client, fence: i64| {
        assert_eq!(replica.cmd(&["GET", FENCE]), Reply::bulk(&fence.to_string()));
    };
    for round in 0..30 {
        let granted = client.cmd(&["LOCK", "account:1", "mine", "PX", "30000"]).grant();
        check(&mut replica, granted.fence);
        // A fence that the data node has forgotten is acknowledged again.
        proxy.data_client().cmd(&["DEL", FENCE]);
        let written = write(&mut client, WAYS[round % WAYS.len()], "x");
        assert!(is_written(&written), "{written:?}");
        check(&mut replica, granted.fence);
    }
    let mut attached = proxy.client();
    proxy.data_client().cmd(&["DEL", FENCE]);
    let fence = attached.cmd(&["LOCK.ATTACH", "account:1", "mine"]).grant().fence;
    check(&mut replica, fence);
    // The state of the connection makes no difference.
    for before in [&["SELECT", "3"][..], &["HELLO", "3"], &["CLIENT", "REPLY", "SKIP"]] {
        let mut client = proxy.client();
        client.send(&encode(before));
        if before[0] != "CLIENT" {
            client.reply();
        }
        client.send(&pipeline(&[&["LOCK", "account:1", "mine", "PX", "30000"]]));
        client.send(&encode(&["PING"]));
        eventually("it is answered", || client.reply() == Reply::simple("PONG"));
    }
    assert_eq!(unacknowledged(&proxy, "lock"), 0.0);
}

#[test]
fn a_lock_whose_fence_no_replica_acknowledges_is_not_granted() {
    let Deployment { proxy, replica, replication: _way, _data } =
        Deployment::start("replicas: 1\n  replica_timeout: 200ms");
    let mut holder = proxy.client();
    let again = ["LOCK", "account:2", "held", "PX", "30000"];
    let late = granted(&proxy, &mut holder, &again);
    replica.freeze().expect("stopped");
    let mut client = proxy.client();
    for lock in [&["LOCK", "account:1", "PX", "30000"][..], &["LOCK", "account:1"]] {
        let begun = Instant::now();
        let refused = client.cmd(lock);
        let expected = "NOREPLICAS 0 of 1 replicas have acknowledged the lock's fence within 200ms \
                        (guards.replicas), try again";
        assert_eq!(refused.error_text(), expected);
        assert!(begun.elapsed() >= Duration::from_millis(200));
        eventually("it is given back", || proxy.nodes_with("lock:account:1") == 0);
        assert_eq!(word(&write(&mut client, "short", "never")), "NOTHELD");
    }
    // A lock that no guard needs needs no replica.
    client.cmd(&["LOCK", "other", "PX", "30000"]).grant();
    // LOCK.ATTACH is refused too, and a lock that its client already has stays.
    let attach = ["LOCK.ATTACH", "account:2", "held"];
    assert_eq!(word(&client.cmd(&attach)), "NOREPLICAS");
    assert_eq!(word(&holder.cmd(&again)), "NOREPLICAS");
    assert_eq!(unacknowledged(&proxy, "lock") - late, 4.0);
    proxy.assert_on_nodes("lock:account:2", 3);
    // Its new fence is not acknowledged, so nothing is written under it.
    for (way, expected) in WAYS.into_iter().zip(["NOREPLICAS", "NOREPLICAS", "NOREPLICAS"]) {
        let key = ["SET", "account:2", "x"];
        let replies = match way {
            "short" => holder.pipe(&[&key]),
            "long" => holder.pipe(&[&["EVAL", SCRIPT, "1", "account:2", "x"]]),
            _ => holder.pipe(&[&["MULTI"], &key, &["EXEC"]]),
        };
        let error = replies.iter().find(|reply| matches!(reply, Reply::Error(_)));
        assert_eq!(error.map(word), Some(expected), "{way}: {replies:?}");
    }
    assert_eq!(proxy.data_client().cmd(&["EXISTS", "account:2"]), Reply::Int(0));
    // Other commands of that client go on.
    assert_eq!(holder.cmd(&["PING"]), Reply::simple("PONG"));
    replica.thaw().expect("goes on");
    eventually("it may write again", || holder.cmd(&["SET", "account:2", "x"]) == Reply::ok());
    eventually("locks are granted again", || {
        matches!(client.cmd(&["LOCK", "account:1", "PX", "30000"]), Reply::Array(_))
    });
}

/// Makes an operator take the lock back at the admin address.
fn unlock_over_http(proxy: &Proxy) -> String {
    let headers = format!("Authorization: Bearer {TOKEN}\r\nContent-Type: application/json\r\n");
    proxy.http_post("/api/locks/unlock", &headers, r#"{"key": "account:1", "any": true}"#)
}

const UNLOCK: [&str; 4] = ["LOCKGATE", "UNLOCK", "account:1", "ANY"];

#[test]
fn a_lock_that_an_operator_takes_back_has_a_larger_fence_on_the_replica() {
    let Deployment { proxy, replica, replication, _data } =
        Deployment::start("replicas: 1\n  replica_timeout: 10s");
    // With a slow replication the fence is not there by chance.
    replication.delay_replies(Duration::from_millis(20));
    let mut replica = Client::connect(replica.port());
    let (mut holder, mut operator) = (proxy.client(), proxy.client());
    for round in 0..20 {
        let granted = holder.cmd(&["LOCK", "account:1", "PX", "30000"]).grant();
        if round % 2 == 0 {
            assert_eq!(operator.cmd(&UNLOCK), Reply::Int(1));
        } else {
            let told = unlock_over_http(&proxy);
            assert!(told.ends_with(r#"{"freed":true}"#), "{told}");
        }
        let larger = (granted.fence + 1).to_string();
        assert_eq!(replica.cmd(&["GET", FENCE]), Reply::bulk(&larger), "round {round}");
    }
}

#[test]
fn a_lock_whose_larger_fence_no_replica_acknowledges_is_not_taken_back() {
    let Deployment { proxy, replica, replication: _way, _data } =
        Deployment::start("replicas: 1\n  replica_timeout: 200ms");
    let (mut holder, mut operator) = (proxy.client(), proxy.client());
    let late = granted(&proxy, &mut holder, &["LOCK", "account:1", "PX", "60000"]);
    replica.freeze().unwrap();
    let told = operator.cmd(&UNLOCK);
    let error = "NOREPLICAS 0 of 1 replicas have acknowledged the lock's fence within 200ms";
    assert!(told.error().starts_with(error), "{told:?}");
    let told = unlock_over_http(&proxy);
    assert!(told.starts_with("HTTP/1.1 502") && told.contains(error), "{told}");
    proxy.assert_on_nodes("lock:account:1", 3);
    assert_eq!(unacknowledged(&proxy, "lock") - late, 2.0);
    replica.thaw().unwrap();
    eventually("it acknowledges again", || operator.cmd(&UNLOCK) == Reply::Int(1));
    proxy.assert_on_nodes("lock:account:1", 0);
}

/// A fence that is announced again is not on the replica yet, so nothing may be written under it.
#[test]
fn nothing_is_written_under_a_forgotten_fence_before_replicas_have_it_again() {
    let Deployment { proxy, replica, replication: _way, _data } =
        Deployment::start("replicas: 1\n  replica_timeout: 200ms");
    let mut client = proxy.client();
    granted(&proxy, &mut client, &["LOCK", "account:1", "mine", "PX", "60000"]);
    assert!(is_written(&write(&mut client, "short", "x")));
    replica.freeze().expect("stopped");
    proxy.data_client().cmd(&["DEL", FENCE]);
    for way in WAYS.into_iter().chain(WAYS) {
        let refused = write(&mut client, way, "y");
        assert_eq!(word(&refused), "NOREPLICAS", "{way}: {refused:?}");
    }
    let set: &[&str] = &["SET", "account:1", "y"];
    let refused = client.pipe(&[set; 3]);
    assert!(refused.iter().all(|reply| word(reply) == "NOREPLICAS"), "{refused:?}");
    assert_eq!(proxy.data_client().cmd(&["GET", "account:1"]), Reply::bulk("x"));
    let page = proxy.http("/readyz");
    assert!(page.contains("guards: locks are refused (NOREPLICAS), 9 times in a row"), "{page}");
    assert_eq!(proxy.log().matches("too few replicas have acknowledged").count(), 1);
    replica.thaw().expect("goes on");
    eventually("the replica has it again", || is_written(&write(&mut client, "short", "z")));
    for way in WAYS {
        assert!(is_written(&write(&mut client, way, "z")), "{way}");
    }
}

/// The wait for replicas ends with the lock at the latest.
#[test]
fn a_lock_is_refused_once_its_time_is_over() {
    let Deployment { proxy, replica, replication: _way, _data } =
        Deployment::start("replicas: 1\n  replica_timeout: 30s");
    replica.freeze().expect("stopped");
    let begun = Instant::now();
    let refused = proxy.client().cmd(&["LOCK", "account:1", "PX", "500"]);
    assert!(["NOREPLICAS", "NOTHELD"].contains(&word(&refused)), "{refused:?}");
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
}

#[test]
fn a_user_who_may_not_wait_is_told_so() {
    let Deployment { proxy, replica: _replica, replication: _way, _data } =
        Deployment::start("replicas: 1");
    proxy.data_client().cmd(&["ACL", "SETUSER", "bank", "on", ">x", "~*", "+@all", "-wait"]);
    let mut client = proxy.client();
    assert_eq!(client.cmd(&["AUTH", "bank", "x"]), Reply::ok());
    let refused = client.cmd(&["LOCK", "account:1", "PX", "30000"]);
    let text = refused.error_text();
    assert!(text.starts_with("NOPERM guards.replicas needs WAIT: "), "{text}");
    eventually("it is given back", || proxy.nodes_with("lock:account:1") == 0);
}

#[test]
fn a_write_that_is_answered_is_on_the_replica() {
    let Deployment { proxy, replica, replication, _data } =
        Deployment::start("replicas: 1\n  wait_at: write\n  replica_timeout: 10s");
    // With a slow replication the write is not there by chance.
    replication.delay_replies(Duration::from_millis(20));
    let mut replica = Client::connect(replica.port());
    let mut client = proxy.client();
    client.cmd(&["LOCK", "account:1", "PX", "30000"]).grant();
    for round in 0..30 {
        let value = round.to_string();
        assert!(is_written(&write(&mut client, WAYS[round % WAYS.len()], &value)));
        assert_eq!(replica.cmd(&["GET", "account:1"]), Reply::bulk(&value));
    }
    // Several writes in one call; one reply is a number too large for Lua.
    let many: Vec<[&str; 3]> = vec![["APPEND", "account:1", "x"]; 40];
    let mut all: Vec<&[&str]> = vec![&["SET", "account:1", ""]];
    all.extend(many.iter().map(|words| &words[..]));
    all.extend([
        &["GETSET", "account:1", "9007199254740993"][..],
        &["INCRBY", "account:1", "1"],
        &["LPUSH", "account:1", "wrong type"],
        &["SET", "account:1", "last"],
    ]);
    let replies = client.pipe(&all);
    assert_eq!(replies[40], Reply::Int(40));
    assert_eq!(replies[41], Reply::bulk(&"x".repeat(40)));
    assert_eq!(replies[42], Reply::Int(9_007_199_254_740_994));
    assert_eq!(word(&replies[43]), "WRONGTYPE");
    assert_eq!(replies[44], Reply::ok());
    assert_eq!(replica.cmd(&["GET", "account:1"]), Reply::bulk("last"));
    // The client's own WATCH drops its transaction, and Redis's own reply says so.
    assert_eq!(client.cmd(&["WATCH", "seen"]), Reply::ok());
    proxy.data_client().cmd(&["SET", "seen", "1"]);
    let replies = client.pipe(&[&["MULTI"], &["SET", "account:1", "x"], &["EXEC"]]);
    assert_eq!(replies[2], Reply::NullArray);
    // A fence written in between drops it too.
    let replies = client.pipe(&[&["MULTI"], &["SET", "account:1", "x"]]);
    assert_eq!(replies[1], Reply::simple("QUEUED"));
    proxy.data_client().cmd(&["SET", FENCE, "9007199254740000"]);
    assert_eq!(word(&client.cmd(&["EXEC"])), "FENCED");
    assert_eq!(client.cmd(&["PING"]), Reply::simple("PONG"));
    assert_eq!(unacknowledged(&proxy, "write"), 0.0);
}

#[test]
fn a_client_is_told_that_no_replica_has_its_write() {
    let Deployment { proxy, replica, replication: _way, _data } =
        Deployment::start("replicas: 1\n  wait_at: write\n  replica_timeout: 100ms");
    let mut client = proxy.client();
    granted(&proxy, &mut client, &["LOCK", "account:1", "PX", "30000"]);
    // From here on the data node knows the script.
    let first = ["SET", "account:1", "before"];
    eventually("the replica has the write", || client.cmd(&first) == Reply::ok());
    let late = unacknowledged(&proxy, "write");
    replica.freeze().expect("stopped");
    for way in WAYS {
        let refused = write(&mut client, way, way);
        let expected = "UNREPLICATED it was carried out, but may be lost in a failover: 0 of 1 replicas \
                        have acknowledged it within 100ms (guards.replicas)";
        assert_eq!(refused.error_text(), expected, "{way}");
        assert_eq!(proxy.data_client().cmd(&["GET", "account:1"]), Reply::bulk(way));
    }
    let three = [&["APPEND", "account:1", "x"][..]; 3];
    let replies = client.pipe(&three);
    assert!(replies.iter().all(|reply| word(reply) == "UNREPLICATED"), "{replies:?}");
    assert_eq!(unacknowledged(&proxy, "write") - late, 6.0);
    // A command that wrote nothing cannot be lost, and a read waits for no replica.
    assert_eq!(word(&client.cmd(&["LPUSH", "account:1", "x"])), "WRONGTYPE");
    assert_eq!(client.cmd(&["GET", "account:1"]), Reply::bulk("transactionxxx"));
    // A write with replies off is not waited for.
    client.send(&pipeline(&[
        &["CLIENT", "REPLY", "OFF"],
        &["SET", "account:1", "silent"],
        &["CLIENT", "REPLY", "ON"],
    ]));
    assert_eq!(client.reply(), Reply::ok());
    assert_eq!(client.cmd(&["GET", "account:1"]), Reply::bulk("silent"));
    replica.thaw().expect("goes on");
    eventually("it is acknowledged again", || is_written(&write(&mut client, "short", "after")));
}

#[test]
fn replicas_that_are_away_are_waited_for_once_where_the_script_is_not_known() {
    let Deployment { proxy, replica, replication: _way, _data } =
        Deployment::start("replicas: 1\n  wait_at: write\n  replica_timeout: 100ms");
    let mut client = proxy.client();
    granted(&proxy, &mut client, &["LOCK", "account:1", "PX", "30000"]);
    replica.freeze().expect("stopped");
    let waits = || {
        let stats = text(&proxy.data_client().cmd(&["INFO", "commandstats"]));
        let line = stats.lines().find_map(|line| line.strip_prefix("cmdstat_wait:calls="));
        line.and_then(|line| line.split(',').next()?.parse::<u64>().ok()).unwrap_or_default()
    };
    for value in ["first", "second"] {
        let before = waits();
        assert_eq!(word(&client.cmd(&["SET", "account:1", value])), "UNREPLICATED");
        assert_eq!(waits() - before, 1, "{value}");
    }
    replica.thaw().expect("goes on");
    eventually("it is acknowledged again", || is_written(&write(&mut client, "short", "after")));
}

/// A data node and its replica, whose replication can be held, and A's way to the data node.
struct Pair {
    data: RedisServer,
    /// B's proxy.
    b: Proxy,
    /// A's proxy.
    a: Proxy,
    way: Relay,
    replication: Relay,
    replica: RedisServer,
}

impl Pair {
    fn start(others: &str) -> Pair {
        let data = RedisServer::start(AT_ONCE).expect("data node");
        let (way, replication) = (Relay::to(data.port()), Relay::to(data.port()));
        let master = replication.port().to_string();
        let of = [&["--replicaof", "127.0.0.1", &master], AT_ONCE].concat();
        let replica = RedisServer::start(&of).expect("replica");
        replicates(data.port(), "seen");
        let guards = guards(others);
        let b = Proxy::with().nodes(3).top(&guards).data_port(data.port()).start();
        let a = Proxy::beside(&b).top(&guards).data_port(way.port()).start();
        ready(&a);
        ready(&b);
        Pair { data, b, a, way, replication, replica }
    }

    /// Promotes the replica, makes the data node its replica, and then promotes the data node: a failover and a
    /// failback, in which the data node goes back to the replica's data. All connections to it stay.
    fn fail_over_and_back(&self) {
        let mut replica = Client::connect(self.replica.port());
        assert_eq!(replica.cmd(&["REPLICAOF", "NO", "ONE"]), Reply::ok());
        self.replication.cut();
        let port = self.replica.port().to_string();
        let mut data = self.b.data_client();
        assert_eq!(data.cmd(&["REPLICAOF", "127.0.0.1", &port]), Reply::ok());
        eventually("it is in step", || {
            let Reply::Array(role) = data.cmd(&["ROLE"]) else { return false };
            role.get(3) == Some(&Reply::bulk("connected"))
        });
        assert_eq!(data.cmd(&["REPLICAOF", "NO", "ONE"]), Reply::ok());
    }

    /// Waits until both proxies have seen that the data node has another history.
    fn is_seen(&self) {
        let Reply::Bulk(info) = Client::connect(self.data.port()).cmd(&["INFO", "replication"])
        else {
            panic!("no INFO")
        };
        let info = String::from_utf8_lossy(&info).into_owned();
        let id = info.lines().find_map(|line| line.strip_prefix("master_replid:")).expect("an id");
        for proxy in [&self.a, &self.b] {
            eventually("it is seen", || proxy.log().contains(id));
        }
    }
}

/// Grants A the lock, deletes it on the lock nodes as if its time were over, and has B ask for it while the replica
/// gets nothing more. Returns A with its fence, and B with the reply to its LOCK.
fn two_holders(pair: &Pair) -> (Client, i64, Client, Reply) {
    let (mut a, mut b) = (pair.a.client(), pair.b.client());
    let fence = a.cmd(&["LOCK", "account:1", "PX", "30000"]).grant().fence;
    // From here on the data node knows the script.
    assert_eq!(a.cmd(&["SET", "account:1", "100"]), Reply::ok());
    eventually("the replica has it", || {
        Client::connect(pair.replica.port()).cmd(&["GET", "account:1"]) == Reply::bulk("100")
    });
    take_away(&pair.b);
    pair.replication.hold_reply("account:1");
    let answer = b.cmd(&["LOCK", "account:1", "PX", "30000"]);
    pair.replication.wait_until_held();
    (a, fence, b, answer)
}

/// Returns the reply to A's late write in this way, and to B's write if B was told of its lock.
fn late_write(way: &str, others: &str) -> (Reply, Option<Reply>) {
    let pair = Pair::start(others);
    let (mut a, fence, mut b, answer) = two_holders(&pair);
    pair.fail_over_and_back();
    let data = |key: &str| pair.b.data_client().cmd(&["GET", key]);
    assert_eq!(data(FENCE), Reply::bulk(&fence.to_string()), "it has gone back to A's fence");
    pair.is_seen();
    let late = write(&mut a, way, "late");
    let is_told = matches!(answer, Reply::Array(_));
    (late, is_told.then(|| write(&mut b, way, "quick")))
}

/// The connections of A and B have survived the failovers, and the data node has A's fence again. The lock nodes say
/// that A's time is over and that B has the lock.
#[test]
fn a_data_node_with_another_history_has_the_lock_nodes_asked() {
    for way in WAYS {
        let (a, b) = late_write(way, "flush: refuse");
        assert_eq!(word(&a), "NOTHELD", "{way}: {a:?}");
        assert!(b.as_ref().is_some_and(is_written), "{way}: {b:?}");
    }
}

/// Returns the reply to a write of A that was in flight when the data node went back: nothing asks about it any more.
/// Returns also the reply to B's LOCK.
fn write_under_way(others: &str) -> (Reply, Reply) {
    let pair = Pair::start(others);
    pair.way.hold_request("late");
    let (mut a, _, _b, answer) = two_holders(&pair);
    a.send(&encode(&["SET", "account:1", "late"]));
    pair.way.wait_until_held();
    pair.fail_over_and_back();
    pair.way.release();
    let told = a.reply();
    let landed = pair.b.data_client().cmd(&["GET", "account:1"]) == Reply::bulk("late");
    assert_eq!(landed, told == Reply::ok(), "{told:?}");
    (told, answer)
}

/// The hole that replicas close: B believes that no earlier holder can write any more.
#[test]
fn without_replicas_a_write_under_way_lands_where_the_data_node_goes_back() {
    let (told, answer) = write_under_way("replicas: 0");
    assert_eq!(told, Reply::ok());
    answer.grant();
}

#[test]
fn with_replicas_nobody_is_told_of_a_lock_that_the_data_node_can_go_back_behind() {
    let (told, answer) = write_under_way("replicas: 1\n  replica_timeout: 1s");
    assert_eq!(word(&answer), "NOREPLICAS", "{answer:?}");
    // No other client has been told of the lock since, so none needs protection.
    assert_eq!(told, Reply::ok());
}

/// A master was replaced, and B's proxy has not heard of it. A has attached to its lock on the new master before its
/// time was over. Returns the replies to A's late write and to B's LOCK.
fn two_masters(others: &str) -> (Reply, Reply) {
    let pair = Pair::start(others);
    let mut first = pair.b.client();
    first.cmd(&["LOCK", "account:1", "a", "PX", "30000"]).grant();
    eventually("the replica has the fence", || {
        Client::connect(pair.replica.port()).cmd(&["EXISTS", FENCE]) == Reply::Int(1)
    });
    let mut replica = Client::connect(pair.replica.port());
    assert_eq!(replica.cmd(&["REPLICAOF", "NO", "ONE"]), Reply::ok());
    // The new master has no replica yet, so its proxy waits for none.
    let after = Proxy::beside(&pair.b).top(&guards("flush: refuse"));
    let after = after.data_port(pair.replica.port()).start();
    ready(&after);
    let mut a = after.client();
    a.cmd(&["LOCK.ATTACH", "account:1", "a"]).grant();
    take_away(&pair.b);
    let answer = pair.b.client().cmd(&["LOCK", "account:1", "b", "PX", "30000"]);
    (a.cmd(&["SET", "account:1", "late"]), answer)
}

/// Another hole that replicas close, where no data goes back.
#[test]
fn without_replicas_a_master_that_was_replaced_has_fences_of_its_own() {
    let (told, answer) = two_masters("replicas: 0");
    answer.grant();
    assert_eq!(told, Reply::ok());
}

#[test]
fn with_replicas_a_master_that_was_replaced_grants_no_lock() {
    let (told, answer) = two_masters("replicas: 1\n  replica_timeout: 1s");
    assert_eq!(word(&answer), "NOREPLICAS", "{answer:?}");
    // No other client has been told of the lock since, so none needs protection.
    assert_eq!(told, Reply::ok());
}
