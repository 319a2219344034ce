//! Bridged rules: instances past the proxy, adopted clients and LOCK clients exclude one another, also when the mode
//! changes while clients are connected.

use std::{
    collections::BTreeMap,
    fs,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use super::adopt::adopted;
use crate::support::{Client, Proxy, Reply, encode, eventually, relay::Relay};
use lockgate::tools::redis_server::RedisServer;

const RELEASE: &str = "if redis.call('get', KEYS[1]) == ARGV[1] then return \
                       redis.call('del', KEYS[1]) else return 0 end";
const EXTEND: &str = "if redis.call('get', KEYS[1]) == ARGV[1] then return \
                      redis.call('pexpire', KEYS[1], ARGV[2]) else return 0 end";
const TAKE: [&str; 6] = ["SET", "lock:job", "t", "NX", "PX", "20000"];

fn in_mode(mode: &str) -> Proxy {
    let rules = format!("adopt:\n  - keys: 'lock:*'\n    lock: '{{1}}'\n    mode: {mode}");
    Proxy::with().nodes(3).top(&rules).start()
}

/// Changes the mode in the file, and waits until the proxy has read it again.
fn step(proxy: &Proxy, from: &str, to: &str) {
    let text = fs::read_to_string(proxy.config_file()).unwrap();
    let (from, to) = (format!("mode: {from}"), format!("mode: {to}"));
    assert!(text.contains(&from), "{text}");
    fs::write(proxy.config_file(), text.replace(&from, &to)).unwrap();
    let done = || proxy.metric("lockgate_config_reloads_total", "result=\"ok\"");
    let before = done();
    proxy.reload();
    eventually("it was read again", || done() > before);
}

fn left(client: &mut Client, key: &str) -> i64 {
    let Reply::Int(left) = client.cmd(&["PTTL", key]) else { panic!() };
    left
}

#[test]
fn back_in_audit_a_lock_without_a_ttl_lasts_on_the_data_node_until_it_is_deleted() {
    let proxy = in_mode("bridge\n    no_ttl: session");
    let (mut client, mut past) = (proxy.client(), proxy.data_client());
    assert_eq!(client.cmd(&["SETNX", "lock:job", "t"]), Reply::Int(1));
    eventually("its key is kept", || left(&mut past, "lock:job") > 0);
    // The proxy looks at its session locks four times a second.
    thread::sleep(Duration::from_millis(600));
    step(&proxy, "bridge", "audit");
    eventually("its key is for ever", || left(&mut past, "lock:job") == -1);
    eventually("the lock nodes have it no more", || proxy.nodes_with("lock:job") == 0);
    assert_eq!(client.cmd(&["SETNX", "lock:job", "u"]), Reply::Int(0));
    assert_eq!(past.cmd(&["GET", "lock:job"]), Reply::bulk("t"));
    assert_eq!(client.cmd(&["DEL", "lock:job"]), Reply::Int(1));
    thread::sleep(Duration::from_millis(600));
    assert_eq!(past.cmd(&["EXISTS", "lock:job"]), Reply::Int(0));
    assert_eq!(client.cmd(&["PING"]), Reply::simple("PONG"));
}

#[test]
fn an_empty_value_is_an_empty_value_past_the_proxy_too() {
    let proxy = in_mode("bridge\n    no_ttl: session");
    let (mut client, mut other, mut past) = (proxy.client(), proxy.client(), proxy.data_client());
    let take = ["SET", "lock:job", "", "NX", "PX", "20000"];
    let releases: [&[&str]; 2] = [&["DEL", "lock:job"], &["EVAL", RELEASE, "1", "lock:job", ""]];
    for release in releases {
        assert_eq!(client.cmd(&take), Reply::ok());
        assert_eq!((other.cmd(&take), past.cmd(&take)), (Reply::NullBulk, Reply::NullBulk));
        for one in [&mut other, &mut past] {
            assert_eq!(one.cmd(&["GET", "lock:job"]), Reply::bulk(""));
            assert_eq!(one.cmd(&["EVAL", RELEASE, "1", "lock:job", "t"]), Reply::Int(0));
        }
        assert_eq!(other.cmd(release), Reply::Int(1), "{release:?}");
        assert_eq!(past.cmd(&["EXISTS", "lock:job"]), Reply::Int(0));
        proxy.assert_on_nodes("lock:job", 0);
        // A lock that was taken past the proxy is read, renewed and freed through it.
        assert_eq!(past.cmd(&take), Reply::ok());
        assert_eq!(client.cmd(&take), Reply::NullBulk);
        assert_eq!(client.cmd(&["GET", "lock:job"]), Reply::bulk(""));
        assert_eq!(client.cmd(&["EVAL", EXTEND, "1", "lock:job", "", "30000"]), Reply::Int(1));
        assert!(left(&mut past, "lock:job") > 20_000);
        assert_eq!(client.cmd(release), Reply::Int(1), "{release:?}");
        assert_eq!(past.cmd(&["EXISTS", "lock:job"]), Reply::Int(0));
    }
    assert_eq!(client.cmd(&["SETNX", "lock:job", ""]), Reply::Int(1));
    eventually("its key is kept", || left(&mut past, "lock:job") > 0);
    assert_eq!(past.cmd(&["GET", "lock:job"]), Reply::bulk(""));
    assert_eq!(client.cmd(&["DEL", "lock:job"]), Reply::Int(1));
}

#[test]
fn a_key_is_not_made_anew_behind_what_another_proxy_did() {
    let rules =
        "adopt:\n  - keys: 'lock:*'\n    lock: '{1}'\n    mode: bridge\n    no_ttl: session";
    let one = Proxy::with().nodes(3).top(rules).start();
    let other = Proxy::beside(&one).top(rules).start();
    let (mut holder, mut elsewhere) = (one.client(), other.client());
    let mut past = one.data_client();
    // The proxy looks at its session locks four times a second.
    for pause in [0, 60, 120, 180, 240] {
        holder.cmd(&["LOCK", "job", "t"]).grant();
        thread::sleep(Duration::from_millis(pause));
        assert_eq!(elsewhere.cmd(&["UNLOCK", "job", "t"]), Reply::Int(1));
        thread::sleep(Duration::from_millis(600));
        assert_eq!(past.cmd(&["EXISTS", "lock:job"]), Reply::Int(0), "after {pause} ms");
        holder.cmd(&["UNLOCK", "job", "t"]);
        assert_eq!(holder.cmd(&["SETNX", "lock:old", "t"]), Reply::Int(1));
        thread::sleep(Duration::from_millis(pause));
        assert_eq!(elsewhere.cmd(&["EXPIRE", "lock:old", "1"]), Reply::Int(1));
        thread::sleep(Duration::from_millis(600));
        let first = left(&mut past, "lock:old");
        thread::sleep(Duration::from_millis(600));
        let then = left(&mut past, "lock:old");
        // A session lock is kept for some 11 s at a time; one such renewal may have been under way.
        assert!(then == -2 || then <= first - 500, "{first} ms, then {then} ms, after {pause} ms");
        elsewhere.cmd(&["DEL", "lock:old"]);
    }
}

/// Who gives a key a new TTL has asked the lock nodes before. Here the lock is released through another proxy between
/// the two questions.
#[test]
fn no_key_is_made_behind_a_release_through_another_proxy() {
    let data = RedisServer::start(&[]).expect("data node");
    let slow = Relay::to(data.port());
    let rules = "adopt:\n  - keys: 'lock:*'\n    lock: '{1}'\n    mode: bridge";
    let one = Proxy::with().nodes(3).top(rules).data_port(slow.port()).start();
    let other = Proxy::beside(&one).top(rules).data_port(data.port()).start();
    let (mut holder, mut elsewhere) = (one.client(), other.client());
    let mut past = Client::connect(data.port());
    // A session lock's key is kept by the proxy itself, a lease's by its holder's RENEW or LOCK.
    let cases: [(&[&str], &[&str], Option<Reply>); 3] = [
        (&["LOCK", "job", "token-1"], &[], None),
        (
            &["LOCK", "job", "token-1", "PX", "20000"],
            &["RENEW", "job", "token-1", "PX", "20000"],
            Some(Reply::Int(0)),
        ),
        (
            &["LOCK", "job", "token-1", "PX", "20000"],
            &["LOCK", "job", "token-1", "PX", "20000"],
            None,
        ),
    ];
    for (take, again, answer) in cases {
        holder.cmd(take).grant();
        slow.hold_request("token-1");
        holder.send(&if again.is_empty() { Vec::new() } else { encode(again) });
        slow.wait_until_held();
        assert_eq!(elsewhere.cmd(&["UNLOCK", "job", "token-1"]), Reply::Int(1));
        assert_eq!(past.cmd(&["EXISTS", "lock:job"]), Reply::Int(0));
        slow.release();
        if again.first() == Some(&"LOCK") {
            holder.reply().grant();
            assert_eq!(past.cmd(&["GET", "lock:job"]), Reply::bulk("token-1"));
            one.assert_on_nodes("lock:job", 3);
            continue;
        }
        if let Some(answer) = answer {
            assert_eq!(holder.reply(), answer, "{again:?}");
        }
        thread::sleep(Duration::from_millis(300));
        assert_eq!(past.cmd(&["EXISTS", "lock:job"]), Reply::Int(0), "{take:?} {again:?}");
    }
}

#[test]
fn three_kinds_of_clients_exclude_one_another() {
    let proxy = in_mode("bridge");
    let (mut past, mut old, mut new) = (proxy.data_client(), proxy.client(), proxy.client());
    let lock = ["LOCK", "job", "PX", "20000"];
    let release = ["EVAL", RELEASE, "1", "lock:job", "t"];
    // Taken past the proxy.
    assert_eq!(past.cmd(&TAKE), Reply::ok());
    assert_eq!(old.cmd(&["SET", "lock:job", "u", "NX", "PX", "20000"]), Reply::NullBulk);
    assert_eq!(new.cmd(&lock), Reply::NullArray);
    assert_eq!(proxy.nodes_with("lock:job"), 0);
    assert_eq!(old.cmd(&["GET", "lock:job"]), Reply::bulk("t"));
    assert_eq!(old.cmd(&["STRLEN", "lock:job"]), Reply::Int(1));
    assert_eq!(old.cmd(&["DEL", "lock:job"]), Reply::Int(1), "as it would without the proxy");
    assert_eq!(past.cmd(&TAKE), Reply::ok());
    // Only an adopted client, by the token, can free a key of which the lock nodes know nothing.
    assert_eq!(new.cmd(&["UNLOCK", "job", "t"]), Reply::Int(0));
    assert_eq!(new.cmd(&["RENEW", "job", "t", "PX", "20000"]), Reply::Int(0));
    assert_eq!(past.cmd(&release), Reply::Int(1));
    // Taken by an adopted client.
    eventually("what is known of it is forgotten", || old.cmd(&TAKE) == Reply::ok());
    proxy.assert_on_nodes("lock:job", 3);
    assert_eq!(past.cmd(&["SET", "lock:job", "u", "NX", "PX", "20000"]), Reply::NullBulk);
    assert_eq!(new.cmd(&lock), Reply::NullArray);
    assert!(left(&mut past, "lock:job") > 20_500, "it outlasts what the client believes");
    assert_eq!(old.cmd(&["EVAL", EXTEND, "1", "lock:job", "t", "30000"]), Reply::Int(1));
    assert!(left(&mut past, "lock:job") > 30_500);
    assert_eq!(old.cmd(&release), Reply::Int(1));
    assert_eq!(past.cmd(&["EXISTS", "lock:job"]), Reply::Int(0));
    proxy.assert_on_nodes("lock:job", 0);
    // Taken by LOCK.
    let grant = new.cmd(&lock).grant();
    assert_eq!(past.cmd(&TAKE), Reply::NullBulk);
    assert_eq!(old.cmd(&TAKE), Reply::NullBulk);
    assert_eq!(old.cmd(&["DEL", "lock:job"]), Reply::Int(0), "no blind command ends it");
    assert!(matches!(new.cmd(&["RENEW", "job", "PX", "30000"]), Reply::Int(1..)));
    assert!(left(&mut past, "lock:job") > 30_500);
    let again = new.cmd(&lock);
    assert_eq!(again, Reply::NullArray, "with another token");
    assert_eq!(new.cmd(&["UNLOCK", "job"]), Reply::Int(0), "that one was refused");
    assert_eq!(new.cmd(&["UNLOCK", "job", &grant.token]), Reply::Int(1));
    assert_eq!(past.cmd(&["EXISTS", "lock:job"]), Reply::Int(0));
    // The same token again is the same lock.
    new.cmd(&["LOCK", "job", "mine", "PX", "20000"]).grant();
    new.cmd(&["LOCK", "job", "mine", "PX", "30000"]).grant();
    assert!(left(&mut past, "lock:job") > 30_500);
    assert_eq!(new.cmd(&["UNLOCK", "job", "mine"]), Reply::Int(1));
    // Taken by a direct SET NX on the lock nodes.
    for node in 0..3 {
        proxy.node_client(node).cmd(&["SET", "lock:job", "x", "PX", "20000"]);
    }
    assert_eq!(new.cmd(&lock), Reply::NullArray);
    eventually("the key is given back", || past.cmd(&["EXISTS", "lock:job"]) == Reply::Int(0));
    assert_eq!(old.cmd(&TAKE), Reply::NullBulk);
    eventually("the key is given back", || past.cmd(&["EXISTS", "lock:job"]) == Reply::Int(0));
}

#[test]
fn a_lock_that_waits_is_granted_once_the_data_node_is_free_too() {
    let proxy = in_mode("bridge");
    let (mut past, mut new) = (proxy.data_client(), proxy.client());
    assert_eq!(past.cmd(&TAKE), Reply::ok());
    assert_eq!(new.cmd(&["LOCK", "job", "PX", "1000", "WAIT", "100"]), Reply::NullArray);
    new.send(&encode(&["LOCK", "job", "PX", "1000", "WAIT", "30000"]));
    thread::sleep(Duration::from_millis(60));
    assert_eq!(past.cmd(&["DEL", "lock:job"]), Reply::Int(1));
    new.reply().grant();
    assert_eq!(new.cmd(&["UNLOCK", "job"]), Reply::Int(1));
    new.cmd(&["LOCK", "other:job:x", "t", "PX", "1000"]).grant();
    assert_eq!(past.cmd(&["EXISTS", "lock:other:job:x"]), Reply::Int(1));
}

#[test]
fn a_key_that_the_data_node_has_lost_is_made_anew_unless_another_has_it() {
    let proxy = in_mode("bridge");
    let (mut past, mut old, mut new) = (proxy.data_client(), proxy.client(), proxy.client());
    let extend = ["EVAL", EXTEND, "1", "lock:job", "t", "60000"];
    assert_eq!(old.cmd(&TAKE), Reply::ok());
    past.cmd(&["FLUSHALL"]);
    assert_eq!(old.cmd(&extend), Reply::Int(1));
    assert_eq!(past.cmd(&["GET", "lock:job"]), Reply::bulk("t"));
    past.cmd(&["SET", "lock:job", "another's", "PX", "60000"]);
    assert_eq!(old.cmd(&extend), Reply::Int(0));
    eventually("it is held by nobody", || proxy.nodes_with("lock:job") == 0);
    past.cmd(&["DEL", "lock:job"]);
    new.cmd(&["LOCK", "job", "PX", "60000"]).grant();
    past.cmd(&["SET", "lock:job", "another's", "PX", "60000"]);
    assert_eq!(new.cmd(&["RENEW", "job", "PX", "60000"]), Reply::Int(0));
    assert_eq!(past.cmd(&["GET", "lock:job"]), Reply::bulk("another's"));
    eventually("it is held by nobody", || proxy.nodes_with("lock:job") == 0);
    // A key of another type counts as held, too.
    past.cmd(&["DEL", "lock:job"]);
    past.cmd(&["HSET", "lock:job", "f", "v"]);
    assert_eq!(new.cmd(&["LOCK", "job", "PX", "60000"]), Reply::NullArray);
    assert_eq!(past.cmd(&["DEL", "lock:job"]), Reply::Int(1));
}

#[test]
fn a_data_node_that_does_not_answer_grants_nothing() {
    let mut proxy = in_mode("bridge");
    let (mut old, mut new) = (proxy.client(), proxy.client());
    new.cmd(&["LOCK", "held", "t", "PX", "30000"]).grant();
    assert_eq!(old.cmd(&TAKE), Reply::ok());
    assert_eq!(old.cmd(&["DEL", "lock:job"]), Reply::Int(1));
    // The permission for LOCK is remembered, so only the lock itself needs the data node.
    new.cmd(&["LOCK", "job", "t", "PX", "30000"]).grant();
    assert_eq!(new.cmd(&["UNLOCK", "job"]), Reply::Int(1));
    proxy.data().freeze().unwrap();
    for words in [
        &["LOCK", "job", "t", "PX", "1000"][..],
        &["LOCK", "job", "t", "PX", "1000", "WAIT", "100"],
        &["RENEW", "held", "PX", "30000"],
    ] {
        let said = new.cmd(words);
        let expected = "NOQUORUM a bridged lock needs the data node too, which failed: ";
        assert!(said.error_text().starts_with(expected), "{words:?}: {said:?}");
    }
    proxy.assert_on_nodes("lock:job", 0);
    proxy.data().thaw().unwrap();
    // A key that may have been taken runs out.
    eventually("it is free", || new.cmd(&["LOCK", "job", "t", "PX", "1000"]) != Reply::NullArray);
}

#[test]
fn a_user_who_may_not_select_grants_nothing() {
    let data = RedisServer::start(&[]).unwrap();
    let mut past = Client::connect(data.port());
    let user = "ACL SETUSER gate on >p +ping ~lock:* +eval +exists +get +set +del +pttl";
    assert_eq!(past.cmd(&user.split(' ').collect::<Vec<_>>()), Reply::ok());
    let proxy = Proxy::with()
        .data_url(&format!("redis://gate:p@127.0.0.1:{}", data.port()))
        .top("adopt: {keys: 'lock:*', lock: '{1}', mode: bridge, no_quorum: error}")
        .start();
    eventually("the lock node is up", || proxy.nodes_up() == 1);
    let mut client = proxy.client();
    for words in [&["LOCK", "job", "t", "PX", "20000"][..], &TAKE] {
        let said = client.cmd(words);
        assert!(said.error_text().contains("NOQUORUM a bridged lock needs"), "{said:?}");
    }
    assert_eq!(past.cmd(&["EXISTS", "lock:job"]), Reply::Int(0));
    assert_eq!(past.cmd(&["ACL", "SETUSER", "gate", "+select"]), Reply::ok());
    client.cmd(&["LOCK", "job", "t", "PX", "20000"]).grant();
    assert_eq!(past.cmd(&["GET", "lock:job"]), Reply::bulk("t"));
}

#[test]
fn modes_change_step_by_step_under_connected_clients() {
    let proxy = in_mode("audit");
    let (mut past, mut old, mut new) = (proxy.data_client(), proxy.client(), proxy.client());
    let (extend, release) =
        (["EVAL", EXTEND, "1", "lock:job", "t", "20000"], ["EVAL", RELEASE, "1", "lock:job", "t"]);
    assert_eq!(old.cmd(&TAKE), Reply::ok());
    new.cmd(&["LOCK", "job", "PX", "500"]).grant();
    step(&proxy, "audit", "enforce");
    assert!(proxy.log().contains("goes one step at a time: audit, bridge, enforce"));
    assert_eq!(old.cmd(&["EVAL", RELEASE, "1", "lock:job", "u"]), Reply::Int(0));
    assert_eq!(past.cmd(&["GET", "lock:job"]), Reply::bulk("t"), "nothing has changed");

    step(&proxy, "enforce", "bridge");
    eventually("the lease from before ends", || proxy.nodes_with("lock:job") == 0);
    // What was taken before still belongs to the client, and excludes LOCK.
    assert_eq!(new.cmd(&["LOCK", "job", "PX", "1000"]), Reply::NullArray);
    assert_eq!(old.cmd(&extend), Reply::Int(1));
    proxy.assert_on_nodes("lock:job", 3);
    assert_eq!(old.cmd(&release), Reply::Int(1));
    assert_eq!(past.cmd(&["EXISTS", "lock:job"]), Reply::Int(0));
    assert_eq!(old.cmd(&TAKE), Reply::ok());

    step(&proxy, "bridge", "enforce");
    assert_eq!(old.cmd(&extend), Reply::Int(1));
    assert_eq!(old.cmd(&["GET", "lock:job"]), Reply::bulk("t"));
    assert_eq!(old.cmd(&release), Reply::Int(1));
    proxy.assert_on_nodes("lock:job", 0);
    past.cmd(&["DEL", "lock:job"]);
    assert_eq!(old.cmd(&TAKE), Reply::ok());
    assert_eq!(past.cmd(&["EXISTS", "lock:job"]), Reply::Int(0));

    step(&proxy, "enforce", "audit");
    assert_eq!(old.cmd(&release), Reply::Int(1), "still enforced");
    step(&proxy, "audit", "bridge");
    step(&proxy, "bridge", "audit");
    assert_eq!(old.cmd(&TAKE), Reply::ok());
    assert_eq!(
        (past.cmd(&["EXISTS", "lock:job"]), proxy.nodes_with("lock:job")),
        (Reply::Int(1), 0)
    );
}

#[test]
fn a_step_of_keys_on_which_nothing_was_locked_is_told_before_and_as_it_is_taken() {
    for is_taken in [false, true] {
        let proxy = in_mode("audit");
        let mut client = proxy.client();
        for _ in 0..3 {
            client.cmd(&["DEL", "lock:job"]);
        }
        if is_taken {
            client.cmd(&TAKE);
        }
        let text = fs::read_to_string(proxy.config_file()).unwrap();
        let next = proxy.config_file().with_file_name("next.yaml");
        fs::write(&next, text.replace("mode: audit", "mode: bridge")).unwrap();
        let mut doctor = std::process::Command::new(env!("CARGO_BIN_EXE_lockgate"));
        let report = doctor.arg("doctor").arg(next).output().unwrap().stdout;
        let report = String::from_utf8(report).unwrap();
        let told = "no command that takes a lock was seen on 'lock:*', but 3 others";
        assert_eq!(report.contains(told), !is_taken, "{report}");
        step(&proxy, "audit", "bridge");
        let told = "adopt: no command that takes a lock was seen on these keys";
        assert_eq!(proxy.log().contains(told), !is_taken);
    }
}

#[test]
fn a_step_that_refuses_what_was_seen_is_told_before_and_as_it_is_taken() {
    let proxy = in_mode("audit");
    let mut client = proxy.client();
    assert_eq!(client.cmd(&["CLIENT", "SETNAME", "old-worker"]), Reply::ok());
    assert_eq!(client.cmd(&["SET", "lock:job", "t"]), Reply::ok());
    client.cmd(&TAKE);
    let text = fs::read_to_string(proxy.config_file()).unwrap();
    let next = proxy.config_file().with_file_name("next.yaml");
    fs::write(&next, text.replace("mode: audit", "mode: bridge")).unwrap();
    let mut doctor = std::process::Command::new(env!("CARGO_BIN_EXE_lockgate"));
    let report = doctor.arg("doctor").arg(next).output().unwrap().stdout;
    let report = String::from_utf8(report).unwrap();
    let told =
        " - a step of 'lock:*' from audit has overwrite of 'old-worker' refused, seen 1 times: ";
    assert_eq!(report.matches(told).count(), 1, "{report}");
    step(&proxy, "audit", "bridge");
    let log = proxy.log();
    let lines: Vec<&str> =
        log.lines().filter(|line| line.contains("adopt: what is seen on these keys")).collect();
    assert_eq!(lines.len(), 1, "{log}");
    assert!(
        lines[0].contains("\"idiom\":\"overwrite\"") && lines[0].contains("old-worker"),
        "{lines:?}"
    );
}

#[test]
fn the_mode_of_each_rule_is_told_as_it_is_now() {
    let rules = "adopt:\n  - keys: 'lock:*'\n    lock: 'j:{1}'\n    mode: audit\n  - keys: 'never:*'\n    \
                 lock: 'n:{1}'\n    mode: enforce";
    let proxy = Proxy::with().nodes(3).top(rules).start();
    let mut client = proxy.client();
    let told = |client: &mut Client| {
        let entry = |entry: &BTreeMap<String, String>| {
            ["times", "keys", "lock", "verdict", "mode"].map(|field| entry[field].clone())
        };
        adopted(client).iter().map(entry).collect::<Vec<_>>()
    };
    let unseen = ["0", "never:*", "n:{1}", "", "enforce"].map(str::to_owned);
    for version in ["2", "3"] {
        client.cmd(&["HELLO", version]);
        assert_eq!(
            told(&mut client),
            [["0", "lock:*", "j:{1}", "", "audit"].map(str::to_owned), unseen.clone()]
        );
    }
    client.cmd(&TAKE);
    for mode in ["audit", "bridge", "enforce"] {
        for version in ["2", "3"] {
            client.cmd(&["HELLO", version]);
            let seen = ["1", "lock:*", "j:{1}", "quorum", mode].map(str::to_owned);
            assert_eq!(told(&mut client), [seen, unseen.clone()]);
            // New fields come last, as some clients read the earlier ones by their places.
            let Reply::Array(all) = client.cmd(&["LOCKGATE", "ADOPTED"]) else { panic!() };
            for entry in all {
                let (Reply::Array(fields) | Reply::Map(fields)) = entry else { panic!() };
                assert_eq!((fields.len(), &fields[24]), (28, &Reply::bulk("mode")));
                assert_eq!(fields[26], Reply::bulk("longest_ttl_ms"));
            }
        }
        match mode {
            "audit" => step(&proxy, "audit", "bridge"),
            // The other rule must stay where it is.
            "bridge" => step(&proxy, "bridge", "enforce"),
            _ => {}
        }
    }
}

#[test]
fn a_relayed_connection_ends_once_its_commands_must_be_seen() {
    let proxy = in_mode("audit");
    let mut old = proxy.client();
    // Behind these commands replies cannot be followed, which mode audit allows.
    for words in [&["MULTI"][..], &["CLIENT", "REPLY", "SKIP"], &["EXEC"]] {
        old.send(&encode(words));
    }
    assert_eq!((old.reply(), old.reply()), (Reply::ok(), Reply::simple("QUEUED")));
    thread::sleep(Duration::from_millis(100));
    step(&proxy, "audit", "bridge");
    old.send(&encode(&TAKE));
    old.rest();
    assert_eq!(proxy.data_client().cmd(&["EXISTS", "lock:job"]), Reply::Int(0));
}

#[test]
fn databases_have_keys_of_their_own() {
    let proxy = in_mode("bridge");
    let (mut past, mut old, mut new) = (proxy.data_client(), proxy.client(), proxy.client());
    past.cmd(&["SELECT", "7"]);
    old.cmd(&["SELECT", "7"]);
    new.cmd(&["LOCK", "7:job", "PX", "20000"]).grant();
    assert_eq!(past.cmd(&TAKE), Reply::NullBulk);
    assert_eq!(old.cmd(&TAKE), Reply::NullBulk);
    assert_eq!(new.cmd(&TAKE), Reply::ok(), "in database 0");
    assert_eq!(new.cmd(&["UNLOCK", "7:job"]), Reply::Int(1));
    eventually("it is free", || old.cmd(&TAKE) == Reply::ok());
    assert_eq!(past.cmd(&["GET", "lock:job"]), Reply::bulk("t"));
    // If two keys could have one name, that name is the lock of both.
    let other = ["SET", "lock:7:job", "t", "NX", "PX", "20000"];
    assert_eq!(new.cmd(&other), Reply::NullBulk);
    assert_eq!(old.cmd(&["DEL", "lock:job"]), Reply::Int(1));
    eventually("it is free", || new.cmd(&other) == Reply::ok());
    assert_eq!(past.cmd(&TAKE), Reply::NullBulk);
    assert_eq!(proxy.data_client().cmd(&["DEL", "lock:7:job"]), Reply::Int(1));
    assert_eq!(new.cmd(&["EVAL", EXTEND, "1", "lock:7:job", "t", "20000"]), Reply::Int(1));
    assert_eq!(proxy.data_client().cmd(&["EXISTS", "lock:7:job"]), Reply::Int(1), "made anew");
    assert_eq!(new.cmd(&["DEL", "lock:7:job"]), Reply::Int(1));
    assert_eq!(past.cmd(&TAKE), Reply::ok());
    // A number that is no database selects no other key.
    new.cmd(&["LOCK", "42:report", "t", "PX", "20000"]).grant();
    assert_eq!(proxy.data_client().cmd(&["GET", "lock:42:report"]), Reply::bulk("t"));
    assert_eq!(proxy.data_client().cmd(&["EXISTS", "lock:report"]), Reply::Int(0));
    assert_eq!(new.cmd(&["UNLOCK", "42:report"]), Reply::Int(1));
}

#[test]
fn a_lock_that_is_named_as_its_key_has_that_key_whatever_it_looks_like() {
    let proxy = Proxy::with().nodes(3).top("adopt: {keys: '*:lock', mode: bridge}").start();
    let (mut past, mut old) = (proxy.data_client(), proxy.client());
    assert_eq!(old.cmd(&["SET", "42:lock", "t", "NX", "PX", "20000"]), Reply::ok());
    assert_eq!(past.cmd(&["SET", "42:lock", "u", "NX", "PX", "20000"]), Reply::NullBulk);
    old.cmd(&["LOCK", "43:lock", "t", "PX", "20000"]).grant();
    assert_eq!(past.cmd(&["SET", "43:lock", "u", "NX", "PX", "20000"]), Reply::NullBulk);
    // A client that may set the key may lock it.
    past.cmd(&["ACL", "SETUSER", "one", "on", ">p", "+@all", "~lock:*"]);
    past.cmd(&["ACL", "SETUSER", "two", "on", ">p", "+@all", "~*:lock"]);
    let (mut one, mut two) = (proxy.client(), proxy.client());
    one.cmd(&["AUTH", "one", "p"]);
    two.cmd(&["AUTH", "two", "p"]);
    assert!(one.cmd(&["LOCK", "a:lock", "PX", "1000"]).error().starts_with("NOPERM"));
    two.cmd(&["LOCK", "a:lock", "PX", "1000"]).grant();
}

#[test]
fn a_session_lock_whose_client_has_gone_leaves_no_key() {
    let proxy = Proxy::with()
        .nodes(3)
        .top("adopt:\n  - keys: 'lock:*'\n    lock: '{1}'\n    mode: bridge")
        .locks("default_ttl: 50s")
        .start();
    let mut past = proxy.data_client();
    for how in ["close", "QUIT", "RESET"] {
        let mut client = proxy.client();
        client.cmd(&["LOCK", "job", "t"]).grant();
        assert!(left(&mut past, "lock:job") > 40_000);
        match how {
            "close" => client.hang_up(),
            command => client.send(&encode(&[command])),
        }
        eventually("its key is free", || left(&mut past, "lock:job") == -2);
        eventually("it is free", || proxy.nodes_with("lock:job") == 0);
        // Nor is the key made anew.
        thread::sleep(Duration::from_millis(600));
        assert_eq!(left(&mut past, "lock:job"), -2, "{how}");
    }
}

#[test]
fn a_session_lock_keeps_its_key_also_through_the_step() {
    let proxy = Proxy::with()
        .nodes(3)
        .top("adopt:\n  - keys: 'lock:*'\n    lock: '{1}'\n    mode: enforce")
        .locks("default_ttl: 1s")
        .start();
    let (mut past, mut new) = (proxy.data_client(), proxy.client());
    new.cmd(&["LOCK", "job", "t"]).grant();
    step(&proxy, "enforce", "bridge");
    new.cmd(&["LOCK", "other", "t"]).grant();
    let has_keys = |past: &mut Client| past.cmd(&["EXISTS", "lock:job", "lock:other"]);
    eventually("both have keys", || has_keys(&mut past) == Reply::Int(2));
    // Longer than a key lasts that is not kept.
    for _ in 0..40 {
        thread::sleep(Duration::from_millis(100));
        assert_eq!(has_keys(&mut past), Reply::Int(2));
    }
    assert_eq!(new.cmd(&["UNLOCK", "other"]), Reply::Int(1));
    assert_eq!(has_keys(&mut past), Reply::Int(1));
    // An instance past the proxy has the key: the session lock ends, and its client is told.
    past.cmd(&["SET", "lock:job", "another's", "PX", "60000"]);
    eventually("it is lost", || new.cmd(&["PING"]).error_text().starts_with("LOCKLOST"));
    assert_eq!(past.cmd(&["GET", "lock:job"]), Reply::bulk("another's"));
    eventually("the lock nodes have it no more", || proxy.nodes_with("lock:job") == 0);
}

#[test]
fn who_waited_through_the_step_is_granted_the_key_too() {
    let proxy = in_mode("enforce");
    let (mut past, mut a, mut b) = (proxy.data_client(), proxy.client(), proxy.client());
    for free in [true, false] {
        a.cmd(&["LOCK", "job", "a", "PX", "60000"]).grant();
        b.send(&encode(&["LOCK", "job", "b", "PX", "60000", "WAIT", "60000"]));
        eventually("it waits", || proxy.waiters() == 1);
        step(&proxy, "enforce", "bridge");
        if !free {
            past.cmd(&["SET", "lock:job", "past", "PX", "60000"]);
        }
        assert_eq!(a.cmd(&["UNLOCK", "job", "a"]), Reply::Int(1));
        if free {
            b.reply().grant();
            assert_eq!(past.cmd(&["GET", "lock:job"]), Reply::bulk("b"));
            assert_eq!(b.cmd(&["UNLOCK", "job", "b"]), Reply::Int(1));
        } else {
            assert_eq!(b.reply(), Reply::NullArray);
            eventually("it is given back", || proxy.nodes_with("lock:job") == 0);
        }
        proxy.assert_on_nodes("lock:job", 0);
        past.cmd(&["DEL", "lock:job"]);
        step(&proxy, "bridge", "enforce");
    }
}

#[test]
fn a_key_that_was_taken_for_a_client_that_has_gone_is_given_back() {
    let mut proxy = in_mode("bridge");
    let mut past = proxy.data_client();
    proxy.client().cmd(&["LOCK", "job", "t", "PX", "1000"]).grant();
    past.cmd(&["DEL", "lock:job"]);
    eventually("it is free", || proxy.nodes_with("lock:job") == 0);
    let mut gone: Vec<Client> = (0..20).map(|_| proxy.client()).collect();
    // The proxy has asked whether these clients may lock.
    for (at, client) in gone.iter_mut().enumerate() {
        client.cmd(&["LOCK", &format!("k{at}"), "t", "PX", "60000"]).grant();
        assert_eq!(client.cmd(&["UNLOCK", &format!("k{at}")]), Reply::Int(1));
    }
    proxy.data().freeze().unwrap();
    for (at, client) in gone.iter_mut().enumerate() {
        client.send(&encode(&["LOCK", &format!("k{at}"), "t", "PX", "60000"]));
    }
    thread::sleep(Duration::from_millis(100));
    drop(gone);
    thread::sleep(Duration::from_millis(100));
    proxy.data().thaw().unwrap();
    let none = Reply::Array(Vec::new());
    eventually("all keys are given back", || past.cmd(&["KEYS", "lock:k*"]) == none);
    thread::sleep(Duration::from_millis(300));
    assert_eq!(past.cmd(&["KEYS", "lock:k*"]), none);
}

#[test]
fn a_renewal_is_not_refused_for_the_key_of_somebody_whom_the_quorum_refuses() {
    let proxy = in_mode("bridge");
    let mut holder = proxy.client();
    holder.cmd(&["LOCK", "job", "t", "PX", "60000"]).grant();
    // While the data node has lost the key, another client takes it, for a moment each time.
    let port = proxy.port();
    let data = proxy.data_client();
    let stop = AtomicBool::new(false);
    let lose = "if redis.call('get', KEYS[1]) == 't' then redis.call('del', KEYS[1]) end";
    thread::scope(|scope| {
        scope.spawn(|| {
            let (mut poller, mut past) = (Client::connect(port), data);
            while !stop.load(Ordering::Relaxed) {
                past.cmd(&["EVAL", lose, "1", "lock:job"]);
                poller.cmd(&["LOCK", "job", "u", "PX", "1000"]);
                thread::sleep(Duration::from_millis(5));
            }
        });
        let renewed = (0..50).all(|_| {
            thread::sleep(Duration::from_millis(5));
            matches!(holder.cmd(&["RENEW", "job", "t", "PX", "60000"]), Reply::Int(1..))
        });
        stop.store(true, Ordering::Relaxed);
        assert!(renewed);
    });
}
