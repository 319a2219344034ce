//! Lockgate's commands among those of Redis: every reply is at its place, every effect is in the order sent, and the
//! connection's state is always known.

use std::{
    thread,
    time::{Duration, Instant},
};

use crate::support::{Client, Proxy, Reply, encode, eventually, pipeline, replicates};
use lockgate::tools::redis_server::RedisServer;

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

const UNKNOWN: &str = "ERR unknown command";

#[test]
fn unlock_waits_for_earlier_commands_and_later_ones_wait_for_it() {
    let proxy = Proxy::start();
    let mut client = proxy.client();
    let mut other = proxy.client();
    client.cmd(&["LOCK", "k", "t", "PX", "30000"]).grant();
    client.send(&pipeline(&[
        &["BLPOP", "list", "0"],
        &["UNLOCK", "k", "t"],
        &["SET", "after", "1"],
    ]));
    thread::sleep(ms(200));
    assert_eq!(other.cmd(&["LOCK", "k", "PX", "30000"]), Reply::NullArray, "not yet released");
    assert_eq!(other.cmd(&["EXISTS", "after"]), Reply::Int(0), "not yet sent on");
    assert_eq!(other.cmd(&["RPUSH", "list", "x"]), Reply::Int(1));
    assert!(matches!(client.reply(), Reply::Array(_)));
    assert_eq!(client.reply(), Reply::Int(1));
    assert_eq!(client.reply(), Reply::ok());
    other.cmd(&["LOCK", "k", "PX", "30000"]).grant();
    assert!(proxy.metric("lockgate_barrier_waits_total", "") >= 1.0);
}

#[test]
fn a_lock_inside_multi_is_refused_and_aborts_it() {
    let proxy = Proxy::start();
    let mut client = proxy.client();
    let replies = client.pipe(&[
        &["MULTI"],
        &["SET", "a", "1"],
        &["LOCK", "k", "PX", "1000"],
        &["EXEC"],
        &["LOCK", "k", "t", "PX", "30000"],
        &["MULTI"],
        &["UNLOCK", "k", "t"],
        &["DISCARD"],
        &["UNLOCK", "k", "t"],
        &["EXISTS", "a"],
    ]);
    assert_eq!((&replies[0], &replies[1]), (&Reply::ok(), &Reply::simple("QUEUED")));
    assert!(replies[2].error().starts_with(UNKNOWN));
    assert!(replies[3].error().starts_with("EXECABORT"));
    replies[4].grant();
    assert!(replies[6].error().starts_with(UNKNOWN));
    assert_eq!((&replies[7], &replies[8]), (&Reply::ok(), &Reply::Int(1)));
    assert_eq!(replies[9], Reply::Int(0));
    proxy.assert_on_nodes("lock:k", 0);
}

#[test]
fn watch_holds_over_a_lock() {
    let proxy = Proxy::start();
    let (mut client, mut other) = (proxy.client(), proxy.client());
    for interfere in [false, true] {
        client.cmd(&["WATCH", "w"]);
        client.cmd(&["LOCK", "k", "PX", "30000"]).grant();
        if interfere {
            other.cmd(&["SET", "w", "x"]);
        }
        let replies = client.pipe(&[&["MULTI"], &["INCR", "n"], &["EXEC"], &["UNLOCK", "k"]]);
        let expected = if interfere { Reply::NullArray } else { Reply::Array(vec![Reply::Int(1)]) };
        assert_eq!((&replies[2], &replies[3]), (&expected, &Reply::Int(1)));
    }
}

#[test]
fn a_resp2_subscriber_is_refused_until_its_last_channel_is_gone() {
    let proxy = Proxy::start();
    let (mut client, mut other) = (proxy.client(), proxy.client());
    client.send(&pipeline(&[&["SUBSCRIBE", "a", "b"], &["PSUBSCRIBE", "p*"]]));
    for _ in 0..3 {
        assert!(matches!(client.reply(), Reply::Array(_)));
    }
    let error = client.cmd(&["LOCK", "k", "PX", "1000"]);
    assert!(error.error().starts_with(UNKNOWN), "{error:?}");
    // Messages may come at any time, and look like replies of three elements.
    assert_eq!(other.cmd(&["PUBLISH", "a", "unsubscribe"]), Reply::Int(1));
    client.send(&pipeline(&[&["UNSUBSCRIBE"], &["PUNSUBSCRIBE"], &["LOCK", "k", "PX", "30000"]]));
    assert!(matches!(client.reply(), Reply::Array(all) if all[0] == Reply::bulk("message")));
    for _ in 0..3 {
        assert!(matches!(client.reply(), Reply::Array(all) if all.len() == 3));
    }
    client.reply().grant();
    assert_eq!(client.cmd(&["UNLOCK", "k"]), Reply::Int(1));
    // Unsubscribing from nothing has one reply too.
    client.send(&pipeline(&[&["UNSUBSCRIBE"], &["LOCK", "k", "PX", "30000"]]));
    assert!(matches!(client.reply(), Reply::Array(_)));
    client.reply().grant();
}

#[test]
fn a_resp3_subscriber_may_lock_among_its_messages() {
    let proxy = Proxy::start();
    let (mut client, mut other) = (proxy.client(), proxy.client());
    client.cmd(&["HELLO", "3"]);
    client.send(&pipeline(&[&["SUBSCRIBE", "a", "b"], &["LOCK", "k", "PX", "30000"]]));
    assert!(matches!(client.reply(), Reply::Push(_)));
    assert!(matches!(client.reply(), Reply::Push(_)));
    client.reply().grant();
    for round in 0..20 {
        other.cmd(&["PUBLISH", "a", "x"]);
        client.send(&pipeline(&[&["RENEW", "k"], &["ECHO", "e"]]));
        let mut replies = [client.reply(), client.reply(), client.reply()];
        replies.sort_by_key(|reply| matches!(reply, Reply::Push(_)));
        assert!(matches!(replies[0], Reply::Int(1..)), "{round}: {replies:?}");
        assert_eq!(replies[1], Reply::bulk("e"));
    }
    // The client's own message: its push stands before or behind its reply.
    client.send(&pipeline(&[&["PUBLISH", "b", "x"], &["UNLOCK", "k"]]));
    assert!(matches!(client.reply(), Reply::Push(_)));
    assert_eq!((client.reply(), client.reply()), (Reply::Int(1), Reply::Int(1)));
    // The same inside EXEC's array.
    let commands: [&[&str]; 4] =
        [&["MULTI"], &["PUBLISH", "b", "y"], &["EXEC"], &["LOCK", "k", "PX", "30000"]];
    client.send(&pipeline(&commands));
    assert_eq!((client.reply(), client.reply()), (Reply::ok(), Reply::simple("QUEUED")));
    client.send(b"");
    // The array's only element stands behind the push, and then comes the grant.
    let inside = client.reply();
    assert!(matches!(&inside, Reply::Array(all) if matches!(all[0], Reply::Push(_))), "{inside:?}");
    assert_eq!(client.reply(), Reply::Int(1));
    client.reply().grant();
}

#[test]
fn a_connection_that_cannot_be_followed_passes_bytes_and_may_not_lock() {
    let proxy = Proxy::start();
    let mut client = proxy.client();
    let replies = client.pipe(&[&["MULTI"], &["SUBSCRIBE", "a"], &["EXEC"]]);
    assert_eq!(replies[1], Reply::simple("QUEUED"));
    let error = client.cmd(&["LOCK", "k", "PX", "1000"]);
    assert!(error.error().starts_with(UNKNOWN), "{error:?}");
    assert_eq!(proxy.nodes_with("lock:k"), 0);
}

#[test]
fn tracking_pushes_pass_during_a_lock() {
    let mut proxy =
        Proxy::with().nodes(3).locks("node_timeout: 5s").locks("node_silence: 6s").start();
    let (mut client, mut other) = (proxy.client(), proxy.client());
    client.cmd(&["HELLO", "3"]);
    client.pipe(&[
        &["CLIENT", "TRACKING", "ON"],
        &["GET", "watched"],
        &["LOCK", "warm", "PX", "9000"],
    ]);
    proxy.node(1).freeze().unwrap();
    proxy.node(2).freeze().unwrap();
    client.send(&encode(&["LOCK", "k", "PX", "60000"]));
    eventually("the LOCK is under way", || {
        proxy.node_client(0).cmd(&["EXISTS", "lock:k"]) == Reply::Int(1)
    });
    other.cmd(&["SET", "watched", "1"]);
    assert!(matches!(client.reply(), Reply::Push(all) if all[0] == Reply::bulk("invalidate")));
    proxy.node(1).thaw().unwrap();
    client.reply().grant();
}

#[test]
fn monitor_lines_and_reset() {
    let proxy = Proxy::start();
    let (mut client, mut other) = (proxy.client(), proxy.client());
    assert_eq!(client.cmd(&["MONITOR"]), Reply::ok());
    other.cmd(&["SET", "a", "1"]);
    assert!(matches!(client.reply(), Reply::Simple(line) if line.contains("\"SET\" \"a\"")));
    client.send(&encode(&["LOCK", "k", "PX", "1000"]));
    let mut reply = client.reply();
    while matches!(reply, Reply::Simple(_)) {
        reply = client.reply();
    }
    assert!(reply.error().starts_with(UNKNOWN));
    client.send(&pipeline(&[&["MONITOR"], &["RESET"], &["LOCK", "k", "PX", "1000"]]));
    let mut reply = client.reply();
    while reply != Reply::simple("RESET") {
        assert!(matches!(reply, Reply::Simple(_)), "{reply:?}");
        reply = client.reply();
    }
    client.reply().grant();
}

#[test]
fn monitor_goes_on_once_replies_are_on_again() {
    let proxy = Proxy::start();
    let mut client = proxy.client();
    assert_eq!(client.cmd(&["MONITOR"]), Reply::ok());
    for mode in ["OFF", "SKIP"] {
        client.send(&pipeline(&[&["CLIENT", "REPLY", mode], &["ECHO", "unheard"]]));
        client.send(&pipeline(&[&["CLIENT", "REPLY", "ON"], &["ECHO", "heard"]]));
        let mut reply = client.reply();
        while reply != Reply::bulk("heard") {
            assert_ne!(reply, Reply::bulk("unheard"));
            reply = client.reply();
        }
    }
    client.send(&pipeline(&[&["CLIENT", "REPLY", "OFF"], &["QUIT"]]));
    client.rest();
}

#[test]
fn with_replies_off_locks_are_taken_in_silence() {
    let proxy = Proxy::with().nodes(3).start();
    let mut client = proxy.client();
    client.send(&pipeline(&[
        &["ECHO", "a"],
        &["CLIENT", "REPLY", "OFF"],
        &["LOCK", "k", "t", "PX", "30000"],
        &["SET", "x", "1"],
        &["LOCK", "bad", "PX", "0"],
        &["LOCK"],
        &["CLIENT", "REPLY", "OFF"],
        &["LOCK", "k2", "t", "PX", "30000"],
    ]));
    assert_eq!(client.reply(), Reply::bulk("a"));
    eventually("both are held", || {
        proxy.nodes_with("lock:k") == 3 && proxy.nodes_with("lock:k2") == 3
    });
    client.expect_silence(ms(50));
    let replies =
        [&["UNLOCK", "k", "t"][..], &["CLIENT", "REPLY", "ON"], &["GET", "x"], &["UNLOCK", "k2"]];
    client.send(&pipeline(&replies));
    assert_eq!(client.reply(), Reply::ok());
    assert_eq!((client.reply(), client.reply()), (Reply::bulk("1"), Reply::Int(1)));
    eventually("released everywhere", || proxy.nodes_with("lock:k") == 0);
}

#[test]
fn a_skipped_reply_is_the_locks_own() {
    let proxy = Proxy::start();
    let mut client = proxy.client();
    for words in [&["LOCK", "k", "t", "PX", "30000"][..], &["LOCK", "k", "PX", "0"], &["LOCK"]] {
        client.send(&pipeline(&[
            &["ECHO", "a"],
            &["CLIENT", "REPLY", "SKIP"],
            words,
            &["ECHO", "b"],
            &["CLIENT", "REPLY", "SKIP"],
            &["ECHO", "hidden"],
            &["LOCK", "k", "t", "PX", "30000"],
        ]));
        assert_eq!((client.reply(), client.reply()), (Reply::bulk("a"), Reply::bulk("b")));
        client.reply().grant();
    }
    // *0 uses up the flag.
    client.send(b"CLIENT REPLY SKIP\r\n*0\r\nUNLOCK k t\r\nPING\r\n");
    assert_eq!((client.reply(), client.reply()), (Reply::Int(1), Reply::simple("PONG")));
}

#[test]
fn reset_turns_replies_on_and_resp3_off() {
    let proxy = Proxy::start();
    let mut client = proxy.client();
    client.cmd(&["HELLO", "3"]);
    proxy.client().cmd(&["LOCK", "k", "PX", "30000"]).grant();
    assert_eq!(client.cmd(&["LOCK", "k", "PX", "1000"]), Reply::Null);
    client.send(&pipeline(&[
        &["CLIENT", "REPLY", "OFF"],
        &["RESET"],
        &["LOCK", "k", "PX", "1000"],
    ]));
    assert_eq!(client.reply(), Reply::simple("RESET"));
    assert_eq!(client.reply(), Reply::NullArray);
}

#[test]
fn a_refused_client_reply_is_answered_and_changes_nothing() {
    let mut proxy = Proxy::start();
    let mut admin = Client::connect(proxy.data().port());
    admin.cmd(&["ACL", "SETUSER", "app", "on", "nopass", "~*", "+@all", "-client|reply"]);
    let mut client = proxy.client();
    client.cmd(&["AUTH", "app", "x"]);
    for mode in ["OFF", "SKIP"] {
        let replies = client.pipe(&[
            &["CLIENT", "REPLY", mode],
            &["ECHO", "a"],
            &["LOCK", "k", "t", "PX", "1000"],
        ]);
        assert!(replies[0].error().starts_with("NOPERM"));
        assert_eq!(replies[1], Reply::bulk("a"));
        replies[2].grant();
    }
}

#[test]
fn who_may_not_set_the_key_may_not_lock_it() {
    let mut proxy = Proxy::with().data_arguments(&["--requirepass", "pw"]).nodes(3).start();
    let mut admin = Client::connect(proxy.data().port());
    admin.cmd(&["AUTH", "pw"]);
    admin.cmd(&["ACL", "SETUSER", "app", "on", ">pw", "~lock:mine:*", "+@all"]);
    admin.cmd(&["ACL", "SETUSER", "reader", "on", ">pw", "~*", "+@read", "+@connection"]);
    let mut client = proxy.client();
    for own in [&["LOCK", "mine:a", "PX", "1000"][..], &["UNLOCK", "a", "t"], &["RENEW", "a", "t"]]
    {
        assert!(client.cmd(own).error().starts_with("NOAUTH"), "{own:?}");
    }
    assert!(client.cmd(&["LOCK"]).error().starts_with("ERR wrong number"), "as Redis does");
    assert!(client.cmd(&["LOCK", "a", "PX", "x"]).error().starts_with("NOAUTH"), "as Redis does");
    let auth_and_lock: [&[&str]; 3] =
        [&["PING"], &["AUTH", "app", "pw"], &["LOCK", "mine:a", "PX", "9000"]];
    let replies = client.pipe(&auth_and_lock);
    assert!(replies[0].error().starts_with("NOAUTH"));
    assert_eq!(replies[1], Reply::ok());
    replies[2].grant();
    assert!(client.cmd(&["LOCK", "yours", "PX", "1000"]).error().starts_with("NOPERM"));
    assert_eq!(client.cmd(&["UNLOCK", "mine:a"]), Reply::Int(1));
    // The data node is asked again for another user on the same connection.
    client.cmd(&["LOCK", "mine:a", "PX", "1000"]).grant();
    client.cmd(&["AUTH", "reader", "pw"]);
    let error = client.cmd(&["UNLOCK", "mine:a"]);
    assert!(error.error().starts_with("NOPERM") && error.error().contains("'lock'"), "{error:?}");
    let hello: &[&str] = &["HELLO", "3", "AUTH", "app", "pw"];
    assert!(matches!(client.cmd(hello), Reply::Map(_)));
    assert_eq!(client.cmd(&["UNLOCK", "mine:a"]), Reply::Int(1));
    assert_eq!(client.cmd(&["RESET"]), Reply::simple("RESET"));
    assert!(client.cmd(&["LOCK", "mine:a", "PX", "1000"]).error().starts_with("NOAUTH"));
    // The probe has changed nothing and left nothing.
    assert_eq!(admin.cmd(&["DBSIZE"]), Reply::Int(0));
    assert_eq!(proxy.metric("lockgate_lock_requests_total", "denied"), 7.0);
}

#[test]
fn a_permission_taken_away_is_noticed() {
    let mut proxy = Proxy::with().locks("authorize_cache: 200ms").start();
    let mut admin = Client::connect(proxy.data().port());
    admin.cmd(&["ACL", "SETUSER", "app", "on", ">pw", "~*", "+@all"]);
    let mut client = proxy.client();
    client.cmd(&["AUTH", "app", "pw"]);
    client.cmd(&["LOCK", "k", "t", "PX", "9000"]).grant();
    admin.cmd(&["ACL", "SETUSER", "app", "resetkeys"]);
    eventually("it is noticed", || {
        thread::sleep(ms(20));
        matches!(client.cmd(&["RENEW", "k", "t"]), Reply::Error(_))
    });
}

#[test]
fn a_client_that_does_not_read_is_closed_only_when_a_barrier_must_hold_too_much() {
    let proxy = Proxy::with().top("barrier_buffer: 256kb").start();
    let mut client = proxy.client();
    client.cmd(&["SET", "big", &"x".repeat(1 << 20)]);
    // If no command waits, Redis itself holds the replies.
    for _ in 0..30 {
        client.send(&encode(&["GET", "big"]));
    }
    thread::sleep(ms(200));
    assert_eq!(proxy.metric("lockgate_closes_total", "barrier_buffer"), 0.0);
    client.send(&encode(&["LOCK", "k", "PX", "1000"]));
    eventually("it is closed", || proxy.metric("lockgate_closes_total", "barrier_buffer") == 1.0);
    // A client that reads in the end, and needs less, gets everything.
    let mut client = proxy.client();
    for _ in 0..20 {
        client.send(&encode(&["ECHO", &"y".repeat(10_000)]));
    }
    client.send(&encode(&["LOCK", "k", "PX", "1000"]));
    thread::sleep(ms(100));
    for _ in 0..20 {
        assert!(matches!(client.reply(), Reply::Bulk(value) if value.len() == 10_000));
    }
    client.reply().grant();
}

#[test]
fn what_came_before_a_hang_up_still_runs_in_order() {
    let proxy = Proxy::start();
    proxy.client().cmd(&["LOCK", "k", "t", "PX", "30000"]).grant();
    let mut client = proxy.client();
    client.send(&pipeline(&[&["SET", "a", "1"], &["UNLOCK", "k", "t"], &["SET", "b", "2"]]));
    client.hang_up();
    let (bytes, closed) = client.rest();
    assert_eq!((String::from_utf8_lossy(&bytes).as_ref(), closed), ("+OK\r\n:1\r\n+OK\r\n", true));
    proxy.assert_on_nodes("lock:k", 0);
    assert_eq!(
        proxy.client().cmd(&["MGET", "a", "b"]),
        Reply::Array(vec![Reply::bulk("1"), Reply::bulk("2")])
    );
}

#[test]
fn a_client_gone_behind_a_blocked_command_is_let_go() {
    let proxy = Proxy::start();
    for own in [&["UNLOCK", "k", "t"][..], &["LOCK", "k", "PX", "1000"]] {
        let mut client = proxy.client();
        client.send(&pipeline(&[&["BLPOP", "list", "0"], own]));
        thread::sleep(ms(50));
        client.hang_up();
        assert_eq!(client.rest(), (Vec::new(), true), "{own:?}");
    }
    let mut client = proxy.client();
    client.cmd(&["RPUSH", "list", "x"]);
    assert_eq!(client.cmd(&["LLEN", "list"]), Reply::Int(1), "nobody popped it");
}

#[test]
fn losing_the_data_node_closes_its_clients_only() {
    let mut proxy = Proxy::with().nodes(3).start();
    let mut client = proxy.client();
    client.cmd(&["LOCK", "k", "t", "PX", "30000"]).grant();
    proxy.data().restart().unwrap();
    assert_eq!(client.rest(), (Vec::new(), true));
    assert_eq!(proxy.client().cmd(&["UNLOCK", "k", "t"]), Reply::Int(1));
    proxy.data().kill().unwrap();
    let (bytes, _) = proxy.client().rest();
    assert!(bytes.is_empty());
    assert!(proxy.is_alive());
    eventually("it is not ready", || proxy.http("/readyz").starts_with("HTTP/1.1 503"));
}

#[test]
fn sigterm_lets_what_is_in_flight_finish() {
    let mut proxy = Proxy::with().nodes(3).start();
    let (mut busy, mut idle) = (proxy.client(), proxy.client());
    assert_eq!(idle.cmd(&["PING"]), Reply::simple("PONG"));
    busy.send(&pipeline(&[&["BLPOP", "list", "5"], &["LOCK", "k", "PX", "30000"]]));
    thread::sleep(ms(100));
    let data_port = proxy.data().port();
    proxy.terminate();
    assert_eq!(idle.rest(), (Vec::new(), true), "an idle client is closed at once");
    thread::sleep(ms(100));
    assert!(std::net::TcpStream::connect(("127.0.0.1", proxy.port())).is_err(), "nobody new");
    Client::connect(data_port).cmd(&["RPUSH", "list", "x"]);
    assert!(matches!(busy.reply(), Reply::Array(_)));
    busy.reply().grant();
    assert_eq!(busy.rest(), (Vec::new(), true));
    assert_eq!(proxy.wait().code(), Some(0));
}

#[test]
fn sigterm_does_not_wait_longer_than_its_grace() {
    let mut proxy = Proxy::with().top("shutdown_grace: 300ms").start();
    let mut client = proxy.client();
    client.send(&encode(&["BLPOP", "list", "0"]));
    thread::sleep(ms(50));
    let begun = Instant::now();
    proxy.terminate();
    assert_eq!(proxy.wait().code(), Some(0));
    assert!(begun.elapsed() >= ms(300));
    let (bytes, _) = client.rest();
    assert!(bytes.is_empty());
}

#[test]
fn one_client_too_many_gets_redis_own_error() {
    let proxy = Proxy::with().top("maxclients: 2").start();
    let mut first = proxy.client();
    let mut second = proxy.client();
    assert_eq!(
        (first.cmd(&["PING"]), second.cmd(&["PING"])),
        (Reply::simple("PONG"), Reply::simple("PONG"))
    );
    let mut third = proxy.client();
    assert_eq!(third.rest().0, b"-ERR max number of clients reached\r\n");
    drop(first);
    eventually("there is room again", || {
        let mut client = proxy.client();
        client.send(&encode(&["PING"]));
        client.rest_is_pong()
    });
}

#[test]
fn an_answer_never_lands_inside_a_push() {
    // Redis must not close a subscriber that is slow on a busy machine.
    let patient = ["--client-output-buffer-limit", "pubsub 0 0 0"];
    let proxy = Proxy::with().nodes(3).data_arguments(&patient).start();
    let mut client = proxy.client();
    client.cmd(&["HELLO", "3"]);
    client.send(&pipeline(&[&["SUBSCRIBE", "a"], &["LOCK", "k", "PX", "60000"]]));
    assert!(matches!(client.reply(), Reply::Push(_)));
    client.reply().grant();
    // A message that takes many reads to pass.
    let large = "m".repeat(4 << 20);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut other = proxy.client();
            for _ in 0..15 {
                assert_eq!(other.cmd(&["PUBLISH", "a", &large]), Reply::Int(1));
            }
        });
        let (mut pushes, mut asked) = (0, 0);
        while pushes < 15 {
            client.send(&encode(&["RENEW", "k"]));
            asked += 1;
            loop {
                match client.reply() {
                    Reply::Push(all) => {
                        assert!(all[2] == Reply::bulk(&large));
                        pushes += 1;
                    }
                    Reply::Int(1..) => break,
                    other => panic!("{other:?} after {pushes} pushes and {asked} renewals"),
                }
            }
        }
    });
}

#[test]
fn who_reads_in_the_end_is_not_closed_for_what_is_held_meanwhile() {
    let proxy = Proxy::with().top("barrier_buffer: 64kb").start();
    let mut client = proxy.client();
    client.cmd(&["SET", "big", &"x".repeat(8 << 20)]);
    client.send(&pipeline(&[&["GET", "big"], &["LOCK", "k", "PX", "60000"]]));
    thread::sleep(ms(500));
    assert!(matches!(client.reply(), Reply::Bulk(value) if value.len() == 8 << 20));
    client.reply().grant();
    assert_eq!(proxy.metric("lockgate_closes_total", "barrier_buffer"), 0.0);
}

#[test]
fn a_push_that_is_not_read_is_no_reply_that_a_lock_waits_for() {
    let patient = ["--client-output-buffer-limit", "pubsub 0 0 0"];
    // The permission to lock is remembered, so that nothing has to be asked behind the push.
    let proxy = Proxy::with()
        .data_arguments(&patient)
        .top("barrier_buffer: 16kb")
        .locks("authorize_cache: 60s")
        .start();
    let mut client = proxy.client();
    client.cmd(&["HELLO", "3"]);
    client.send(&pipeline(&[&["LOCK", "k", "PX", "60000"], &["SUBSCRIBE", "a"]]));
    client.reply().grant();
    assert!(matches!(client.reply(), Reply::Push(_)));
    let large = "m".repeat(32 << 20);
    assert_eq!(proxy.client().cmd(&["PUBLISH", "a", &large]), Reply::Int(1));
    // The push fills every buffer on its way before the RENEW comes.
    thread::sleep(ms(500));
    client.send(&encode(&["RENEW", "k"]));
    thread::sleep(ms(300));
    assert!(matches!(client.reply(), Reply::Push(all) if all[2] == Reply::bulk(&large)));
    assert!(matches!(client.reply(), Reply::Int(1..)));
}

/// Redis ends the SKIP before it answers a WAIT that has blocked. Replies behind it must not be told apart wrongly: by an
/// answer to another question a client would lock what it may not.
#[test]
fn a_wait_behind_skip_is_answered_as_redis_answers_it() {
    let at_once = ["--repl-diskless-sync-delay", "0"];
    let data = RedisServer::start(&at_once).unwrap();
    let replica = ["--replicaof", "127.0.0.1", &data.port().to_string()];
    let _replica = RedisServer::start(&replica).unwrap();
    replicates(data.port(), "seen");
    let proxy = Proxy::with().nodes(3).data_port(data.port()).start();
    let through = |port: u16| {
        let mut client = Client::connect(port);
        client.send(&pipeline(&[
            &["SET", "x", "1"],
            &["CLIENT", "REPLY", "SKIP"],
            &["WAIT", "1", "5000"],
            &["LOCK", "k", "PX", "1000"],
            &["ECHO", "end"],
            &["QUIT"],
        ]));
        client.rest()
    };
    let expected = "+OK\r\n:1\r\n-ERR unknown command 'LOCK', with args beginning with: 'k' 'PX' '1000' \r\n$3\r\nend\r\n\
                    +OK\r\n";
    // Where the replica has acknowledged before WAIT is read, WAIT does not block, and has no reply.
    let is_answered = |port: u16| {
        let (all, _) = through(port);
        let all = String::from_utf8(all).unwrap();
        assert_eq!(all.replace(":1\r\n", ""), expected.replace(":1\r\n", ""));
        all == expected
    };
    eventually("Redis answers it", || is_answered(data.port()));
    eventually("the proxy passes the answer", || is_answered(proxy.port()));
    proxy.assert_on_nodes("lock:k", 0);
}
