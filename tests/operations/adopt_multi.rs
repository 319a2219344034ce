//! Adopted commands inside a client's own transaction: EXEC is carried out as a whole.

use crate::support::{Client, Proxy, Reply, encode, eventually};

const RELEASE: &str = "if redis.call('get', KEYS[1]) == ARGV[1] then return \
                       redis.call('del', KEYS[1]) else return 0 end";
const EXTEND: &str = "if redis.call('get', KEYS[1]) == ARGV[1] then return \
                      redis.call('pexpire', KEYS[1], ARGV[2]) else return 0 end";
const MULTI: &[&str] = &["MULTI"];
const EXEC: &[&str] = &["EXEC"];
const TAKE: &[&str] = &["SET", "lock:job", "t", "NX", "PX", "30000"];

fn start(mode: &str, options: &str) -> Proxy {
    let rule = format!("adopt: {{keys: 'lock:*', lock: '{{1}}', mode: {mode}, {options}}}");
    Proxy::with().nodes(3).top(&rule).start()
}

/// Returns the replies to a whole transaction with these commands.
fn transaction(client: &mut Client, inside: &[&[&str]]) -> Vec<Reply> {
    client.pipe(&[&[MULTI], inside, &[EXEC]].concat())
}

#[test]
fn replies_are_those_of_redis_each_at_its_place() {
    for (mode, version) in [("enforce", "2"), ("enforce", "3"), ("bridge", "2")] {
        let proxy = start(mode, "no_ttl: session");
        let (mut client, mut redis) = (proxy.client(), proxy.data_client());
        for one in [&mut client, &mut redis] {
            one.cmd(&["HELLO", version]);
        }
        for inside in [
            // Alone, and with others.
            &[&["SET", "K", "t", "NX", "PX", "30000"][..]][..],
            &[
                &["HSET", "X", "f", "1"],
                &["EXPIRE", "X", "60"],
                &["EVAL", EXTEND, "1", "K", "t", "30000"],
            ],
            &[
                &["SET", "K", "u", "NX", "PX", "30000"],
                &["GET", "K"],
                &["LRANGE", "none", "0", "-1"],
            ],
            &[&["EXPIRE", "K", "30"], &["SET", "L", "t", "NX", "EX", "30"], &["EXPIRE", "L", "30"]],
            // Released, and then taken.
            &[&["DEL", "K"], &["INCR", "N"], &["SET", "K", "v", "NX", "EX", "30"], &["GET", "K"]],
            &[&["DEL", "K", "L", "M"], &["EXISTS", "K"], &["INCR", "N"]],
            // rdlock-py's transaction, whose lock has no TTL for a moment.
            &[&["SETNX", "K", "t"], &["EXPIRE", "K", "20"], &["TTL", "K"]],
            &[&["EVAL", RELEASE, "1", "K", "x"], &["EVAL", RELEASE, "1", "K", "t"]],
            // Commands that Redis answers with an error at their place.
            &[&["SET", "K", "t", "NX", "XX"], &["INCR", "N"]],
            &[&["WATCH", "K"], &["INCR", "N"]],
            &[&["MULTI"], &["INCR", "N"]],
        ] {
            let with = |names: [&'static str; 5]| -> Vec<Vec<u8>> {
                let word = |word: &&'static str| {
                    let at = ["K", "L", "M", "N", "X"].iter().position(|name| name == word);
                    at.map_or(*word, |at| names[at])
                };
                let words = |words: &&[&'static str]| -> Vec<&'static str> {
                    words.iter().map(word).collect()
                };
                inside.iter().map(words).map(|words| encode(&words)).collect()
            };
            let say = |client: &mut Client, names| -> Vec<Reply> {
                let commands = [vec![encode(MULTI)], with(names), vec![encode(EXEC)]].concat();
                client.send(&commands.concat());
                commands.iter().map(|_| client.reply()).collect()
            };
            let said = say(&mut client, ["lock:k", "lock:l", "lock:m", "n", "x"]);
            let expected = say(&mut redis, ["key:k", "key:l", "key:m", "other:n", "other:x"]);
            assert_eq!(said, expected, "{mode}: {inside:?}");
        }
        proxy.assert_on_nodes("lock:k", 0);
        // No key of a lock is left on the data node.
        assert_eq!(redis.cmd(&["EXISTS", "lock:k", "lock:l"]), Reply::Int(0));
    }
}

#[test]
fn what_was_taken_is_given_back_where_the_rest_is_not_executed() {
    for mode in ["enforce", "bridge"] {
        let proxy = start(mode, "no_ttl: session");
        let (mut client, mut other) = (proxy.client(), proxy.client());
        let is_free = |other: &mut Client, key: &str| {
            eventually("it is given back", || {
                other.cmd(&["SET", key, "u", "NX", "PX", "30000"]) == Reply::ok()
            });
            assert_eq!(other.cmd(&["DEL", key]), Reply::Int(1));
        };
        // The client's WATCH fails.
        client.cmd(&["WATCH", "x"]);
        other.cmd(&["SET", "x", "1"]);
        let inside = [TAKE, &["SETNX", "lock:kept", "t"], &["SET", "y", "1"]];
        let said = transaction(&mut client, &inside);
        assert_eq!(said.last(), Some(&Reply::NullArray), "{mode}: {said:?}");
        is_free(&mut other, "lock:job");
        is_free(&mut other, "lock:kept");
        // The data node does not queue a command.
        let said = transaction(&mut client, &[TAKE, &["SET", "y"]]);
        assert!(said[3].error().starts_with("EXECABORT"), "{mode}: {said:?}");
        is_free(&mut other, "lock:job");
        // The rule refuses a command.
        let said = transaction(&mut client, &[TAKE, &["HSET", "lock:h", "f", "v"]]);
        assert!(said[2].error().starts_with("ERR 'lock:h' is an adopted lock: "), "{said:?}");
        assert!(said[3].error().starts_with("EXECABORT"), "{mode}: {said:?}");
        is_free(&mut other, "lock:job");
        // A lock that the transaction would free is not freed.
        assert_eq!(client.cmd(TAKE), Reply::ok());
        client.cmd(&["WATCH", "x"]);
        other.cmd(&["SET", "x", "2"]);
        let said = transaction(&mut client, &[&["DEL", "lock:job"], &["SET", "y", "1"]]);
        assert_eq!(said.last(), Some(&Reply::NullArray), "{mode}: {said:?}");
        assert_eq!(client.cmd(&["GET", "lock:job"]), Reply::bulk("t"));
        // DISCARD and RESET leave nothing for the next transaction.
        for end in [&["DISCARD"][..], &["RESET"]] {
            client.pipe(&[MULTI, &["DEL", "lock:job"], end]);
            let said = transaction(&mut client, &[&["GET", "lock:job"]]);
            let expected = Reply::Array(vec![Reply::bulk("t")]);
            assert_eq!(said.last(), Some(&expected), "{end:?}");
        }
        assert_eq!(proxy.data_client().cmd(&["EXISTS", "y"]), Reply::Int(0));
        // A client that hangs up before EXEC has changed nothing.
        assert_eq!(client.cmd(&["DEL", "lock:job"]), Reply::Int(1));
        client.pipe(&[MULTI, TAKE]);
        client.hang_up();
        client.rest();
        assert_eq!(other.cmd(&["GET", "lock:job"]), Reply::NullBulk);
    }
}

#[test]
fn too_few_lock_nodes_execute_nothing() {
    let mut proxy = start("enforce", "no_quorum: error");
    let mut client = proxy.client();
    let freeze = |proxy: &mut Proxy, are_away: bool| {
        for node in 0..2 {
            let node = proxy.node(node);
            if are_away { node.freeze() } else { node.thaw() }.expect("a lock node");
        }
    };
    assert_eq!(client.cmd(&["SET", "lock:held", "t", "NX", "PX", "30000"]), Reply::ok());
    freeze(&mut proxy, true);
    let said = transaction(&mut client, &[&["SET", "x", "1"], TAKE]);
    assert!(said[3].error().starts_with("NOQUORUM"), "{said:?}");
    assert_eq!(client.cmd(&["GET", "x"]), Reply::NullBulk);
    // A release would follow the other commands, so they are not executed either.
    let said =
        transaction(&mut client, &[&["SET", "x", "1"], &["EVAL", RELEASE, "1", "lock:held", "t"]]);
    assert!(said[3].error().starts_with("NOQUORUM"), "{said:?}");
    assert_eq!(client.cmd(&["GET", "x"]), Reply::NullBulk);
    freeze(&mut proxy, false);
    proxy.assert_on_nodes("lock:held", 3);

    let mut proxy = start("enforce", "no_quorum: wait");
    let mut client = proxy.client();
    let retries = |proxy: &Proxy| proxy.metric("lockgate_adopt_retries_total", "");
    freeze(&mut proxy, true);
    client.pipe(&[MULTI, &["SET", "x", "1"], TAKE]);
    client.send(&encode(EXEC));
    eventually("they are asked again", || retries(&proxy) > 0.0);
    assert_eq!(proxy.data_client().cmd(&["GET", "x"]), Reply::NullBulk, "locks come first");
    freeze(&mut proxy, false);
    assert_eq!(client.reply(), Reply::Array(vec![Reply::ok(), Reply::ok()]));
}

#[test]
fn who_may_not_lock_is_told_where_redis_would() {
    let proxy = start("enforce", "no_ttl: session");
    let mut redis = proxy.data_client();
    redis.cmd(&["ACL", "SETUSER", "some", "on", ">p", "~lock:mine*", "+@all"]);
    let mut client = proxy.client();
    client.cmd(&["AUTH", "some", "p"]);
    for inside in [
        &["SET", "lock:job", "t", "NX", "PX", "30000"][..],
        &["DEL", "lock:mine", "lock:job"],
        &["GET", "lock:job"],
    ] {
        let said =
            transaction(&mut client, &[&["SET", "lock:mine", "t", "NX", "PX", "30000"], inside]);
        assert!(said[2].error().starts_with("NOPERM"), "{said:?}");
        assert!(said[3].error().starts_with("EXECABORT"), "{said:?}");
    }
    eventually("nothing is held", || proxy.nodes_with("lock:mine") == 0);
    // Another database has locks of its own, even if the proxy has not asked for the database before MULTI.
    let mut client = proxy.client();
    client.cmd(&["SELECT", "7"]);
    assert_eq!(transaction(&mut client, &[TAKE])[2], Reply::Array(vec![Reply::ok()]));
    proxy.assert_on_nodes("lock:7:job", 3);
    let said = transaction(&mut client, &[&["SELECT", "3"], TAKE]);
    let expected = "ERR an adopted lock behind SELECT needs CLIENT INFO (adopt)";
    assert_eq!(said[2].error(), expected);
    assert!(said[3].error().starts_with("EXECABORT"), "{said:?}");
}

#[test]
fn what_cannot_be_undone_is_refused_inside() {
    let rule = "adopt: {keys: 'lock:*', lock: '{1}', mode: enforce}\n\
                guards: {keys: 'work:*', lock: 'job'}";
    let proxy = Proxy::with().nodes(3).top(rule).start();
    let mut client = proxy.client();
    // node-redlock's script, for two locks, and a lock that a guard needs.
    let several = "96da70f7716f27d278a5218544df37fd8b0a5e4c";
    for (inside, error) in [
        (
            &["EVALSHA", several, "2", "lock:a", "lock:b", "t", "1000"][..],
            "ERR several adopted locks of one command are not taken or prolonged inside MULTI (adopt)",
        ),
        (TAKE, "ERR a lock that guards need is not taken or prolonged inside MULTI (adopt)"),
    ] {
        let said = transaction(&mut client, &[inside]);
        assert_eq!(said[1].error(), error);
        assert!(said[2].error().starts_with("EXECABORT"), "{said:?}");
    }
    // Writes under a lock that the same transaction releases.
    assert_eq!(client.cmd(TAKE), Reply::ok());
    let said = transaction(&mut client, &[&["SET", "work:1", "x"], &["DEL", "lock:job"]]);
    assert_eq!(said[3], Reply::Array(vec![Reply::ok(), Reply::Int(1)]), "{said:?}");
    proxy.assert_on_nodes("lock:job", 0);
    let said = transaction(&mut client, &[&["SET", "work:1", "y"], &["GET", "lock:job"]]);
    assert!(said[3].error().starts_with("EXECABORT"), "{said:?}");
}
