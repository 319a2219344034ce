//! FLUSHDB and FLUSHALL under adopt rules that free locks.

use crate::support::{Client, Proxy, Reply, eventually};

fn rule(mode: &str, options: &str) -> String {
    format!(
        "adopt: [{{keys: 'lock:*', lock: 'l:{{1}}', mode: {mode}, no_ttl: session, {options}}},\n  \
         {{keys: 'kept:*', mode: {mode}}}]"
    )
}

fn take(client: &mut Client, key: &str) -> Reply {
    client.cmd(&["SET", key, "t", "NX", "PX", "30000"])
}

#[test]
fn flushing_frees_the_locks_of_its_database_where_the_rule_says_so() {
    for mode in ["enforce", "bridge"] {
        let proxy = Proxy::with().nodes(3).top(&rule(mode, "flush: free")).start();
        let (mut client, mut other, mut third) = (proxy.client(), proxy.client(), proxy.client());
        assert_eq!(third.cmd(&["SELECT", "3"]), Reply::ok());
        for (flush, is_all) in [
            (&["FLUSHDB"][..], false),
            (&["flushdb", "ASYNC"], false),
            (&["FLUSHALL"], true),
            (&["FlushAll", "SYNC"], true),
        ] {
            for key in ["lock:a", "kept:a"] {
                assert_eq!(take(&mut client, key), Reply::ok(), "{mode} {flush:?}: {key}");
            }
            // A lock of another connection, without a TTL, and one in another database.
            assert_eq!(other.cmd(&["SETNX", "lock:b", "t"]), Reply::Int(1));
            assert_eq!(take(&mut third, "lock:a"), Reply::ok());
            assert_eq!(client.cmd(&["SET", "x", "1"]), Reply::ok());
            client.cmd(&["LOCK", "l:ours", "u", "PX", "30000"]).grant();
            // The commands behind it in the pipeline see its effects.
            let all = [
                flush,
                &["GET", "x"],
                &["GET", "lock:a"],
                &["SET", "lock:b", "u", "NX", "PX", "30000"],
            ];
            let said = client.pipe(&all);
            let expected = [Reply::ok(), Reply::NullBulk, Reply::NullBulk, Reply::ok()];
            assert_eq!(said, expected, "{mode} {flush:?}");
            proxy.assert_on_nodes("lock:l:a", 0);
            let left = if is_all { Reply::NullBulk } else { Reply::bulk("t") };
            assert_eq!(third.cmd(&["GET", "lock:a"]), left, "{mode} {flush:?}");
            // Locks of other rules, and of LOCK clients, stay.
            assert_eq!(client.cmd(&["UNLOCK", "l:ours", "u"]), Reply::Int(1));
            assert_eq!(client.cmd(&["GET", "kept:a"]), Reply::bulk("t"));
            assert_eq!(client.cmd(&["DEL", "kept:a", "lock:b"]), Reply::Int(2));
            third.cmd(&["DEL", "lock:a"]);
            // The client that had a lock without a TTL is told nothing, and goes on.
            assert_eq!(other.cmd(&["GET", "lock:b"]), Reply::NullBulk);
        }
    }
}

#[test]
fn flushing_frees_nothing_otherwise() {
    let proxy = Proxy::with().nodes(3).top(&rule("enforce", "flush: keep")).start();
    let mut client = proxy.client();
    assert_eq!(take(&mut client, "lock:a"), Reply::ok());
    assert_eq!(client.cmd(&["FLUSHALL"]), Reply::ok());
    assert_eq!(client.cmd(&["GET", "lock:a"]), Reply::bulk("t"));

    let proxy = Proxy::with().nodes(3).top(&rule("enforce", "flush: free")).start();
    let mut client = proxy.client();
    proxy.data_client().cmd(&["ACL", "SETUSER", "some", "on", ">p", "~*", "+@all", "-flushdb"]);
    assert_eq!(take(&mut client, "lock:a"), Reply::ok());
    let mut some = proxy.client();
    some.cmd(&["AUTH", "some", "p"]);
    // The data node decides whether the client may, and whether the words are valid.
    assert!(some.cmd(&["FLUSHDB"]).error().starts_with("NOPERM"));
    assert!(client.cmd(&["FLUSHDB", "NOW"]).error().starts_with("ERR"));
    assert_eq!(client.cmd(&["GET", "lock:a"]), Reply::bulk("t"));
    // In a transaction it is queued like any other command.
    let said = client.pipe(&[&["MULTI"], &["FLUSHDB"], &["EXEC"]]);
    assert_eq!(said[2], Reply::Array(vec![Reply::ok()]));
    assert_eq!(client.cmd(&["GET", "lock:a"]), Reply::bulk("t"));
    assert_eq!(client.cmd(&["FLUSHDB"]), Reply::ok());
    eventually("it is free", || proxy.nodes_with("lock:l:a") == 0);
}
