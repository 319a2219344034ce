//! A guarded key is written only under its lock, and not once a larger fence has been announced.

use std::time::Duration;

use crate::support::{Client, Proxy, Reply, eventually, pipeline};

const ACCOUNTS: &str = "guards:\n  - keys: 'account:*'\n    lock: 'account:{1}'";

/// Starts a deployment with guarded accounts.
fn accounts() -> Proxy {
    Proxy::with().top(ACCOUNTS).start()
}

/// Returns a client that holds the locks of these accounts.
fn holder(proxy: &Proxy, accounts: &[&str]) -> Client {
    let mut client = proxy.client();
    for account in accounts {
        client.cmd(&["LOCK", &format!("account:{account}"), "PX", "30000"]).grant();
    }
    client
}

fn direct(proxy: &mut Proxy) -> Client {
    Client::connect(proxy.data().port())
}

#[test]
fn a_write_needs_the_lock_and_a_read_does_not() {
    let mut proxy = accounts();
    let mut stranger = proxy.client();
    let refused = stranger.cmd(&["SET", "account:7", "1"]);
    assert_eq!(
        refused.error(),
        "NOTHELD 'account:7' may only be written under the lock 'account:7', which this \
         connection does not hold"
    );
    assert_eq!(stranger.cmd(&["GET", "account:7"]), Reply::NullBulk);
    assert_eq!(stranger.cmd(&["SET", "other:7", "1"]), Reply::ok());
    let mut holder = holder(&proxy, &["7"]);
    assert_eq!(holder.cmd(&["SET", "account:7", "100"]), Reply::ok());
    assert_eq!(
        holder.cmd(&["INCRBY", "account:7", "9007199254740993"]),
        Reply::Int(9007199254741093)
    );
    assert!(holder.cmd(&["SET", "account:8", "1"]).error().starts_with("NOTHELD 'account:8'"));
    assert_eq!(stranger.cmd(&["GET", "account:7"]), Reply::bulk("9007199254741093"));
    assert_eq!(holder.cmd(&["UNLOCK", "account:7"]), Reply::Int(1));
    assert!(holder.cmd(&["DEL", "account:7"]).error().starts_with("NOTHELD"));
    assert_eq!(direct(&mut proxy).cmd(&["GET", "account:7"]), Reply::bulk("9007199254741093"));
    assert_eq!(proxy.metric("lockgate_guarded_writes_total", "\"passed\""), 2.0);
    assert_eq!(proxy.metric("lockgate_guarded_writes_total", "\"notheld\""), 3.0);
}

#[test]
fn every_reply_of_a_pipeline_is_at_its_place() {
    let proxy = accounts();
    let mut holder = holder(&proxy, &["1", "2"]);
    let replies = holder.pipe(&[
        &["PING"],
        &["SET", "account:1", "a"],
        &["GET", "account:1"],
        &["LPUSH", "account:1", "x"],
        &["SET", "account:3", "x"],
        &["MSET", "account:1", "b", "account:2", "c", "free", "d"],
        &["MGET", "account:1", "account:2", "free"],
        &["SET", "account:1"],
        &["LPOP", "account:9", "5"],
        &["GETDEL", "account:1"],
        &["PING"],
    ]);
    assert_eq!(replies[0], Reply::simple("PONG"));
    assert_eq!(replies[1], Reply::ok());
    assert_eq!(replies[2], Reply::bulk("a"));
    assert!(replies[3].error().starts_with("WRONGTYPE"), "{replies:?}");
    assert!(replies[4].error().starts_with("NOTHELD 'account:3'"));
    assert_eq!(replies[5], Reply::ok());
    assert_eq!(
        replies[6],
        Reply::Array(vec![Reply::bulk("b"), Reply::bulk("c"), Reply::bulk("d")])
    );
    assert_eq!(replies[7].error(), "ERR wrong number of arguments for 'set' command");
    assert!(replies[8].error().starts_with("NOTHELD 'account:9'"));
    assert_eq!(replies[9], Reply::bulk("b"));
    assert_eq!(replies[10], Reply::simple("PONG"));
}

#[test]
fn who_slept_through_its_ttl_is_refused_by_the_data() {
    let mut proxy = accounts();
    let mut slow = proxy.client();
    slow.cmd(&["LOCK", "account:1", "mine", "PX", "30000"]).grant();
    assert_eq!(slow.cmd(&["SET", "account:1", "slow"]), Reply::ok());
    // Another client has the lock on the nodes, but the proxy has not been told.
    for node in 0..proxy.nodes_up() {
        proxy.node_client(node).cmd(&["DEL", "lock:account:1"]);
    }
    let mut quick = proxy.client();
    quick.cmd(&["LOCK", "account:1", "PX", "30000"]).grant();
    let refused = slow.cmd(&["SET", "account:1", "late"]);
    assert!(refused.error().starts_with("FENCED 'account:1' was not written: the lock 'account:1' was granted again since, with fence "), "{refused:?}");
    assert_eq!(quick.cmd(&["SET", "account:1", "quick"]), Reply::ok());
    assert_eq!(direct(&mut proxy).cmd(&["GET", "account:1"]), Reply::bulk("quick"));
    // The session has given up its claim.
    assert!(slow.cmd(&["SET", "account:1", "later"]).error().starts_with("NOTHELD"));
    assert_eq!(proxy.metric("lockgate_guarded_writes_total", "\"fenced\""), 1.0);
}

#[test]
fn a_session_lock_lost_while_the_data_takes_its_fence_is_told_by_that_alone() {
    let mut proxy = Proxy::with().nodes(3).top(ACCOUNTS).locks("default_ttl: 300ms").start();
    let mut client = proxy.client();
    client.cmd(&["LOCK", "account:1"]).grant();
    assert_eq!(client.cmd(&["UNLOCK", "account:1"]), Reply::Int(1));
    eventually("it is released", || proxy.nodes_with("lock:account:1") == 0);
    proxy.data().freeze().unwrap();
    client.send(&pipeline(&[&["LOCK", "account:1"]]));
    eventually("it is granted", || proxy.nodes_with("lock:account:1") == 3);
    for node in 0..3 {
        proxy.node_client(node).cmd(&["DEL", "lock:account:1"]);
    }
    eventually("it is lost", || proxy.metric("lockgate_lost_locks_total", "") == 1.0);
    proxy.data().thaw().unwrap();
    assert!(client.reply().error().starts_with("NOTHELD the lock had run out"));
    assert_eq!(client.cmd(&["PING"]), Reply::simple("PONG"));
    client.cmd(&["LOCK", "account:1"]).grant();
    assert_eq!(client.cmd(&["SET", "account:1", "1"]), Reply::ok());
}

#[test]
fn a_transaction_writes_under_locks_held_at_its_beginning() {
    let mut proxy = accounts();
    let mut holder = holder(&proxy, &["1", "2"]);
    let replies = holder.pipe(&[
        &["MULTI"],
        &["SET", "account:1", "a"],
        &["INCR", "free"],
        &["SET", "account:2", "b"],
        &["EXEC"],
        &["GET", "account:2"],
    ]);
    let queued = Reply::simple("QUEUED");
    assert_eq!(replies[..4], [Reply::ok(), queued.clone(), queued.clone(), queued.clone()]);
    assert_eq!(replies[4], Reply::Array(vec![Reply::ok(), Reply::Int(1), Reply::ok()]));
    assert_eq!(replies[5], Reply::bulk("b"));
    let replies =
        holder.pipe(&[&["MULTI"], &["SET", "free", "x"], &["SET", "account:3", "c"], &["EXEC"]]);
    assert!(replies[2].error().starts_with("NOTHELD 'account:3'"));
    assert!(replies[3].error().starts_with("EXECABORT"));
    let mut data = direct(&mut proxy);
    assert_eq!(data.cmd(&["GET", "free"]), Reply::bulk("1"));
    assert_eq!(data.cmd(&["EXISTS", "account:3"]), Reply::Int(0));
    // Without any lock MULTI works as ever, and the write is still refused.
    let replies = proxy.client().pipe(&[&["MULTI"], &["SET", "account:1", "x"], &["EXEC"]]);
    assert_eq!(replies[0], Reply::ok());
    assert!(replies[1].error().starts_with("NOTHELD"));
    assert!(replies[2].error().starts_with("EXECABORT"));
}

#[test]
fn a_transaction_of_a_holder_that_was_superseded_executes_nothing() {
    let mut proxy = accounts();
    let mut slow = holder(&proxy, &["1"]);
    assert_eq!(slow.cmd(&["MULTI"]), Reply::ok());
    assert_eq!(slow.cmd(&["SET", "account:1", "slow"]), Reply::simple("QUEUED"));
    for node in 0..proxy.nodes_up() {
        proxy.node_client(node).cmd(&["DEL", "lock:account:1"]);
    }
    let mut quick = holder(&proxy, &["1"]);
    assert!(slow.cmd(&["EXEC"]).error().starts_with("FENCED"));
    assert_eq!(quick.cmd(&["SET", "account:1", "quick"]), Reply::ok());
    // If its fence was replaced before MULTI, the write is refused at once.
    let replies = slow.pipe(&[&["MULTI"], &["SET", "account:1", "slow"], &["EXEC"]]);
    assert_eq!(replies[0], Reply::ok());
    assert!(replies[1].error().starts_with("FENCED"), "{replies:?}");
    assert!(replies[2].error().starts_with("EXECABORT"));
    assert_eq!(direct(&mut proxy).cmd(&["GET", "account:1"]), Reply::bulk("quick"));
}

#[test]
fn a_transaction_that_the_client_itself_made_conditional_ends_as_ever() {
    let mut proxy = accounts();
    let mut holder = holder(&proxy, &["1"]);
    assert_eq!(holder.cmd(&["WATCH", "free"]), Reply::ok());
    assert!(
        holder
            .cmd(&["SET", "account:1", "x"])
            .error()
            .starts_with("ERR a guarded write between WATCH")
    );
    direct(&mut proxy).cmd(&["SET", "free", "1"]);
    assert_eq!(holder.cmd(&["MULTI"]), Reply::ok());
    assert_eq!(holder.cmd(&["SET", "account:1", "x"]), Reply::simple("QUEUED"));
    assert_eq!(holder.cmd(&["EXEC"]), Reply::NullArray);
    assert_eq!(holder.cmd(&["SET", "account:1", "y"]), Reply::ok());
}

#[test]
fn scripts_are_writes_of_the_keys_that_they_declare() {
    let proxy = accounts();
    let script = "return redis.call('SET', KEYS[1], ARGV[1])";
    let mut stranger = proxy.client();
    assert!(stranger.cmd(&["EVAL", script, "1", "account:1", "x"]).error().starts_with("NOTHELD"));
    assert_eq!(stranger.cmd(&["EVAL", script, "1", "free", "x"]), Reply::ok());
    assert_eq!(stranger.cmd(&["EVAL_RO", "return 1", "1", "account:1"]), Reply::Int(1));
    let mut holder = holder(&proxy, &["1"]);
    assert_eq!(holder.cmd(&["EVAL", script, "1", "account:1", "x"]), Reply::ok());
}

#[test]
fn keys_that_only_redis_can_tell_are_asked_for() {
    let proxy = accounts();
    let mut holder = holder(&proxy, &["1"]);
    assert_eq!(holder.cmd(&["RPUSH", "list", "2", "1"]), Reply::Int(2));
    assert_eq!(holder.cmd(&["SORT", "list", "STORE", "account:1"]), Reply::Int(2));
    assert!(holder.cmd(&["SORT", "list", "STORE", "account:2"]).error().starts_with("NOTHELD"));
    assert_eq!(
        proxy.client().cmd(&["SORT", "account:1"]),
        Reply::Array(vec![Reply::bulk("1"), Reply::bulk("2")])
    );
    let replies = holder.pipe(&[&["MULTI"], &["SORT", "list", "STORE", "account:2"], &["EXEC"]]);
    assert!(replies[1].error().starts_with("NOTHELD"));
}

#[test]
fn databases_are_not_emptied_under_guarded_keys() {
    let proxy = accounts();
    let mut client = holder(&proxy, &["1"]);
    for words in [&["FLUSHALL"][..], &["flushdb", "ASYNC"], &["SWAPDB", "0", "1"]] {
        assert!(client.cmd(words).error().starts_with("NOTHELD"), "{words:?}");
    }
    assert!(
        client.cmd(&["SET", "lockgate:guard:lock:account:1", "1"]).error().starts_with("ERR keys")
    );
}

#[test]
fn commands_that_nobody_knows_are_refused_by_redis_itself() {
    let proxy = accounts();
    let error = proxy.client().cmd(&["NOSUCH", "account:1"]);
    assert!(error.error().starts_with("ERR unknown command 'NOSUCH'"), "{error:?}");
}

#[test]
fn replies_that_are_off_stay_off() {
    let mut proxy = accounts();
    let mut client = holder(&proxy, &["1"]);
    client.send(&pipeline(&[
        &["CLIENT", "REPLY", "OFF"],
        &["SET", "account:1", "a"],
        &["SET", "account:2", "a"],
        &["APPEND", "account:1", "b"],
        &["CLIENT", "REPLY", "ON"],
        &["CLIENT", "REPLY", "SKIP"],
        &["APPEND", "account:1", "c"],
        &["CLIENT", "REPLY", "SKIP"],
        &["APPEND", "account:2", "c"],
        &["GET", "account:1"],
    ]));
    assert_eq!(client.reply(), Reply::ok());
    assert_eq!(client.reply(), Reply::bulk("abc"));
    assert_eq!(direct(&mut proxy).cmd(&["EXISTS", "account:2"]), Reply::Int(0));
}

#[test]
fn a_lock_taken_without_a_reply_fences_the_holder_before() {
    for mode in ["OFF", "SKIP"] {
        let mut proxy = accounts();
        let mut slow = holder(&proxy, &["1"]);
        assert_eq!(slow.cmd(&["SET", "account:1", "slow"]), Reply::ok());
        for node in 0..proxy.nodes_up() {
            proxy.node_client(node).cmd(&["DEL", "lock:account:1"]);
        }
        let mut quick = proxy.client();
        quick.send(&pipeline(&[
            &["CLIENT", "REPLY", mode],
            &["LOCK", "account:1", "PX", "30000"],
            &["PING"],
            &["CLIENT", "REPLY", "ON"],
            &["GET", "account:1"],
        ]));
        if mode == "SKIP" {
            assert_eq!(quick.reply(), Reply::simple("PONG"));
        }
        assert_eq!([quick.reply(), quick.reply()], [Reply::ok(), Reply::bulk("slow")]);
        let refused = slow.cmd(&["SET", "account:1", "late"]);
        assert!(refused.error_text().starts_with("FENCED"), "{mode}: {refused:?}");
        assert_eq!(quick.cmd(&["SET", "account:1", "quick"]), Reply::ok());
        // A lock whose fence the data node refuses is given back without a reply.
        let mut data = direct(&mut proxy);
        let user = ["ACL", "SETUSER", "app", "on", ">pw", "~*", "+@all", "-eval"];
        assert_eq!(data.cmd(&user), Reply::ok());
        let mut client = proxy.client();
        client.send(&pipeline(&[
            &["AUTH", "app", "pw"],
            &["CLIENT", "REPLY", mode],
            &["LOCK", "account:2", "PX", "30000"],
            &["CLIENT", "REPLY", mode],
            &["SET", "account:2", "x"],
            &["CLIENT", "REPLY", "ON"],
            &["PING"],
        ]));
        let pong = Reply::simple("PONG");
        assert_eq!([(); 3].map(|()| client.reply()), [Reply::ok(), Reply::ok(), pong]);
        eventually("it is given back", || proxy.nodes_with("lock:account:2") == 0);
        assert_eq!(data.cmd(&["EXISTS", "account:2"]), Reply::Int(0));
    }
}

#[test]
fn a_large_value_passes_and_a_larger_one_is_refused() {
    let rules = "guards:\n  max_command: 64mb\n  rules:\n    - keys: 'account:*'\n      lock: 'account:{1}'";
    let mut proxy = Proxy::with().top(rules).start();
    let mut client = holder(&proxy, &["1"]);
    let large = "x".repeat(60 << 20);
    assert_eq!(client.cmd(&["SET", "account:1", &large]), Reply::ok());
    assert_eq!(client.cmd(&["STRLEN", "account:1"]), Reply::Int(60 << 20));
    let larger = "x".repeat(65 << 20);
    let refused = client.cmd(&["SET", "account:1", &larger]);
    assert!(refused.error().starts_with("ERR command too large"), "{refused:?}");
    assert_eq!(client.cmd(&["SET", "free", &larger]), Reply::ok());
    assert_eq!(direct(&mut proxy).cmd(&["STRLEN", "account:1"]), Reply::Int(60 << 20));
    // Many small words.
    let values: Vec<String> = (0..200_000).map(|n| n.to_string()).collect();
    let mut words = vec!["RPUSH", "account:list"];
    words.extend(values.iter().map(String::as_str));
    client.cmd(&["LOCK", "account:list", "PX", "30000"]).grant();
    assert_eq!(client.cmd(&words), Reply::Int(200_000));
}

#[test]
fn audit_lets_pass_and_counts() {
    let rules = "guards:\n  - keys: 'account:*'\n    lock: 'account:{1}'\n    policy: audit";
    let proxy = Proxy::with().top(rules).start();
    // Before the commands are known, nothing is counted.
    eventually("commands are known", || proxy.log().contains("commands are known"));
    assert_eq!(proxy.client().cmd(&["SET", "account:1", "x"]), Reply::ok());
    assert_eq!(holder(&proxy, &["1"]).cmd(&["SET", "account:1", "y"]), Reply::ok());
    assert_eq!(proxy.metric("lockgate_guarded_writes_total", "\"audited\""), 1.0);
    assert_eq!(proxy.metric("lockgate_guarded_writes_total", "\"passed\""), 1.0);
    assert_eq!(proxy.client().cmd(&["FLUSHALL"]), Reply::ok());
}

/// The connection over which the proxy learns the data node's commands ends; a client that sends a command which is
/// known again waits for no second reading.
#[test]
fn who_comes_while_no_commands_are_known_waits_for_one_reading() {
    let mut proxy = accounts();
    let mut data = direct(&mut proxy);
    let known = |proxy: &Proxy| proxy.log().matches("commands are known").count();
    eventually("the commands are known", || known(&proxy) == 1);
    let mut client = proxy.client();
    assert_eq!(client.cmd(&["PING"]), Reply::simple("PONG"));
    assert_eq!(data.cmd(&["CONFIG", "RESETSTAT"]), Reply::ok());
    let Reply::Bulk(list) = data.cmd(&["CLIENT", "LIST"]) else { panic!("no list") };
    let list = String::from_utf8(list).unwrap();
    let asks = |line: &&str| line.contains("cmd=info") || line.contains("cmd=command");
    let asking: Vec<&str> = list.lines().filter(asks).collect();
    assert!(!asking.is_empty(), "{list}");
    for line in asking {
        let id = line.strip_prefix("id=").unwrap().split(' ').next().unwrap();
        assert_eq!(data.cmd(&["CLIENT", "KILL", "ID", id]), Reply::Int(1));
    }
    while known(&proxy) == 1 {
        assert_eq!(client.cmd(&["PING"]), Reply::simple("PONG"));
    }
    let Reply::Bulk(stats) = data.cmd(&["INFO", "commandstats"]) else { panic!("no statistics") };
    let stats = String::from_utf8(stats).unwrap();
    assert!(stats.contains("cmdstat_command:calls=1,"), "{stats}");
}

#[test]
fn a_connection_whose_replies_cannot_be_followed_is_closed() {
    let proxy = accounts();
    let mut client = proxy.client();
    client.send(&pipeline(&[&["REPLCONF", "capa", "eof"], &["SET", "account:1", "x"]]));
    client.rest();
    eventually("it is counted", || proxy.metric("lockgate_closes_total", "unguarded") == 1.0);
    let mut other = proxy.client();
    assert_eq!(other.cmd(&["EXISTS", "account:1"]), Reply::Int(0));
}

#[test]
fn the_lock_of_a_session_counts_until_it_is_released() {
    let proxy = accounts();
    let mut client = proxy.client();
    client.cmd(&["LOCK", "account:1"]).grant();
    assert_eq!(client.cmd(&["SET", "account:1", "x"]), Reply::ok());
    // A lease counts only for the validity that the client was told.
    client.cmd(&["LOCK", "account:2", "PX", "600"]).grant();
    assert_eq!(client.cmd(&["SET", "account:2", "x"]), Reply::ok());
    std::thread::sleep(Duration::from_millis(700));
    assert!(client.cmd(&["SET", "account:2", "y"]).error().starts_with("NOTHELD"));
    assert_eq!(client.cmd(&["SET", "account:1", "y"]), Reply::ok());
}

#[test]
fn common_writes_go_the_short_way_and_reply_as_ever() {
    let mut proxy = accounts();
    let mut client = holder(&proxy, &["1"]);
    let mut data = direct(&mut proxy);
    let mut calls = |command: &str| {
        let Reply::Bulk(info) = data.cmd(&["INFO", "commandstats"]) else { panic!("no INFO") };
        let (info, field) =
            (String::from_utf8_lossy(&info).into_owned(), format!("cmdstat_{command}:calls="));
        let rest = info.split(&field).nth(1).unwrap_or("0,");
        rest.split(',').next().and_then(|calls| calls.parse::<usize>().ok()).unwrap_or_default()
    };
    // The first write finds that the data node does not know the script.
    assert_eq!(client.cmd(&["SET", "account:1", "9007199254740991"]), Reply::ok());
    assert_eq!((calls("evalsha"), calls("multi")), (1, 1));
    for (words, reply) in [
        (&["INCR", "account:1"][..], Reply::Int(9_007_199_254_740_992)),
        (&["incrby", "account:1", "1"], Reply::Int(9_007_199_254_740_993)),
        (&["DECRBY", "account:1", "18014398509481986"], Reply::Int(-9_007_199_254_740_993)),
        (&["SET", "account:1", "x", "NX"], Reply::NullBulk),
        (&["SET", "account:1", "x", "GET"], Reply::bulk("-9007199254740993")),
        (&["DEL", "account:1"], Reply::Int(1)),
        (&["GETDEL", "account:1"], Reply::NullBulk),
        (&["HSET", "account:1", "f", "9007199254740993"], Reply::Int(1)),
        (&["HINCRBY", "account:1", "f", "2"], Reply::Int(9_007_199_254_740_995)),
    ] {
        assert_eq!(client.cmd(words), reply, "{words:?}");
    }
    assert_eq!((calls("evalsha"), calls("multi")), (10, 1));
    // The long way finds the error again, and its reply is Redis's.
    assert!(client.cmd(&["INCR", "account:1"]).error().starts_with("WRONGTYPE"));
    assert_eq!(client.cmd(&["SET", "account:1", "x", "y"]).error(), "ERR syntax error");
    assert_eq!((calls("evalsha"), calls("multi")), (12, 3));
    data.cmd(&["SCRIPT", "FLUSH"]);
    assert_eq!(client.cmd(&["SET", "account:1", "x"]), Reply::ok());
    assert_eq!(client.cmd(&["SET", "account:1", "y"]), Reply::ok());
    let queued = client.pipe(&[
        &["HELLO", "3"],
        &["SET", "account:1", "z", "XX", "GET"],
        &["SET", "account:1", "z", "NX"],
    ]);
    assert_eq!(queued[1..], [Reply::bulk("y"), Reply::Null]);
}

#[test]
fn a_client_that_may_not_call_scripts_writes_all_the_same() {
    let mut proxy = accounts();
    let mut data = direct(&mut proxy);
    let user = ["ACL", "SETUSER", "app", "on", ">pw", "~*", "+@all", "-evalsha"];
    assert_eq!(data.cmd(&user), Reply::ok());
    let mut client = proxy.client();
    assert_eq!(client.cmd(&["AUTH", "app", "pw"]), Reply::ok());
    client.cmd(&["LOCK", "account:1", "PX", "30000"]).grant();
    assert_eq!(client.cmd(&["SET", "account:1", "x"]), Reply::ok());
    assert_eq!(client.cmd(&["SET", "account:1", "y"]), Reply::ok());
    // A user without a permission that guards need is refused, not let through.
    assert_eq!(data.cmd(&["ACL", "SETUSER", "app", "-multi"]), Reply::ok());
    assert_no_permission(&client.cmd(&["SET", "account:1", "z"]));
    assert_eq!(data.cmd(&["ACL", "SETUSER", "app", "+multi", "-watch"]), Reply::ok());
    assert_no_permission(&client.cmd(&["SET", "account:1", "z"]));
    assert_eq!(data.cmd(&["ACL", "SETUSER", "app", "+watch", "-exec"]), Reply::ok());
    assert!(client.cmd(&["SET", "account:1", "z"]).error().contains("NOPERM"));
    assert_eq!(data.cmd(&["ACL", "SETUSER", "app", "+exec", "-eval"]), Reply::ok());
    assert!(client.cmd(&["LOCK", "account:2", "PX", "30000"]).error().starts_with("NOPERM"));
    eventually("it is given back", || proxy.nodes_with("lock:account:2") == 0);
    assert_eq!(data.cmd(&["GET", "account:1"]), Reply::bulk("y"));
}

fn assert_no_permission(reply: &Reply) {
    assert!(reply.error_text().starts_with("NOPERM"), "{reply:?}");
}

#[test]
fn nobody_is_served_before_the_commands_are_known() {
    let mut proxy = Proxy::with()
        .top(ACCOUNTS)
        .data_arguments(&["--user", "default", "on", "nopass", "~*", "&*", "+@all", "-command"])
        .unready()
        .start();
    eventually("it says why", || {
        proxy.http("/readyz").contains("guards: clients' commands are refused")
    });
    assert!(proxy.http("/readyz").starts_with("HTTP/1.1 503"));
    let mut client = proxy.client();
    let refused = client.cmd(&["GET", "account:1"]);
    assert!(refused.error().starts_with("ERR the command could not be checked"), "{refused:?}");
    assert_eq!(direct(&mut proxy).cmd(&["ACL", "SETUSER", "default", "+command"]), Reply::ok());
    eventually("it is ready", || proxy.http("/readyz").starts_with("HTTP/1.1 200"));
    assert_eq!(client.cmd(&["GET", "account:1"]), Reply::NullBulk);
}
