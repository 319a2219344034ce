//! Guarded writes that a client sends one behind the other share one call on the data node. Each is still checked,
//! carried out once and answered as if it had come alone.

use std::{thread, time::Duration};

use crate::support::{Client, Proxy, Reply, Setup, encode, eventually, pipeline, relay::Relay};
use lockgate::Write;

const ACCOUNTS: &str = "guards:\n  - keys: 'account:*'\n    lock: 'account:{1}'";

fn accounts() -> Setup {
    Proxy::with().top(ACCOUNTS)
}

/// Returns a client that holds the locks of these accounts and has loaded the script on the data node.
fn holder(proxy: &Proxy, accounts: &[&str]) -> Client {
    let mut client = proxy.client();
    for account in accounts {
        client.cmd(&["LOCK", &format!("account:{account}"), "PX", "30000"]).grant();
        client.cmd(&["DEL", &format!("account:{account}")]);
    }
    client
}

fn direct(proxy: &mut Proxy) -> Client {
    Client::connect(proxy.data().port())
}

/// Returns how often the data node has carried out this command.
fn calls(data: &mut Client, command: &str) -> usize {
    let Reply::Bulk(info) = data.cmd(&["INFO", "commandstats"]) else { panic!("no INFO") };
    let info = String::from_utf8_lossy(&info).into_owned();
    let rest = info.split(&format!("cmdstat_{command}:calls=")).nth(1).unwrap_or("0,");
    rest.split(',').next().and_then(|calls| calls.parse().ok()).unwrap_or_default()
}

/// Sends all commands so that the proxy finds them at once, and reads a reply for each.
fn at_once(proxy: &Proxy, client: &mut Client, commands: &[&[&str]]) -> Vec<Reply> {
    proxy.freeze();
    client.send(&pipeline(commands));
    proxy.thaw();
    commands.iter().map(|_| client.reply()).collect()
}

/// Returns the number of writes with this result.
fn counted(proxy: &Proxy, result: &str) -> f64 {
    proxy.metric("lockgate_guarded_writes_total", &format!("\"{result}\""))
}

#[test]
fn writes_that_are_here_share_a_call() {
    let mut proxy = accounts().start();
    let mut data = direct(&mut proxy);
    let mut client = holder(&proxy, &["1", "2"]);
    let (before, passed) = (calls(&mut data, "evalsha"), counted(&proxy, "passed"));
    let commands: Vec<&[&str]> = (0..100)
        .map(|n| if n % 2 == 0 { &["INCR", "account:1"][..] } else { &["incr", "account:2"] })
        .collect();
    let expected: Vec<Reply> = (0..100).map(|n| Reply::Int(n / 2 + 1)).collect();
    assert_eq!(at_once(&proxy, &mut client, &commands), expected);
    // One call carries at most 64 writes.
    assert_eq!(calls(&mut data, "evalsha") - before, 2);
    assert_eq!(counted(&proxy, "passed") - passed, 100.0);
    assert_eq!(data.cmd(&["GET", "account:2"]), Reply::bulk("50"));
    // It carries at most 16 KB.
    let value = "v".repeat(3000);
    let command = ["SET", "account:1", &value];
    let commands = vec![&command[..]; 50];
    assert_eq!(at_once(&proxy, &mut client, &commands), vec![Reply::ok(); 50]);
    assert_eq!(calls(&mut data, "evalsha") - before, 12);
    assert_eq!(calls(&mut data, "multi"), 1, "for want of the script");
}

#[test]
fn what_stands_between_them_keeps_its_place() {
    let mut proxy = accounts().start();
    let mut data = direct(&mut proxy);
    let mut client = holder(&proxy, &["1"]);
    let before = calls(&mut data, "evalsha");
    let replies = at_once(
        &proxy,
        &mut client,
        &[
            &["SET", "account:1", "a"],
            &["APPEND", "account:1", "b"],
            &["GET", "account:1"],
            &["APPEND", "account:1", "c"],
            &["SET", "free", "x"],
            &["APPEND", "account:1", "d"],
            &["MULTI"],
            &["APPEND", "account:1", "e"],
            &["EXEC"],
            &["APPEND", "account:1", "f"],
            &["LPOP", "account:1"],
            &["APPEND", "account:1", "g"],
            &["UNLOCK", "account:1"],
            &["APPEND", "account:1", "h"],
        ],
    );
    assert_eq!(replies[..3], [Reply::ok(), Reply::Int(2), Reply::bulk("ab")]);
    assert_eq!(replies[3..6], [Reply::Int(3), Reply::ok(), Reply::Int(4)]);
    assert_eq!(replies[8], Reply::Array(vec![Reply::Int(5)]));
    assert_eq!(replies[9], Reply::Int(6));
    assert!(replies[10].error().starts_with("WRONGTYPE"), "{replies:?}");
    assert_eq!(replies[11..13], [Reply::Int(7), Reply::Int(1)]);
    assert!(replies[13].error().starts_with("NOTHELD"), "{replies:?}");
    assert_eq!(data.cmd(&["GET", "account:1"]), Reply::bulk("abcdefg"));
    assert_eq!(calls(&mut data, "evalsha") - before, 5);
}

#[test]
fn one_that_fails_is_told_at_its_place_and_each_is_made_once() {
    let mut proxy = accounts().start();
    let mut data = direct(&mut proxy);
    let mut client = holder(&proxy, &["1", "2"]);
    for first in ["INCR", "LPUSH"] {
        client.cmd(&["SET", "account:1", "0"]);
        let replies = at_once(
            &proxy,
            &mut client,
            &[
                &[first, "account:1", "x"][..if first == "INCR" { 2 } else { 3 }],
                &["INCR", "account:1"],
                &["LPUSH", "account:1", "x"],
                &["INCR", "account:1"],
                &["SET", "account:2", "x", "y"],
                &["HSET", "account:2", "f"],
                &["INCRBY", "account:1", "9223372036854775807"],
                &["INCR", "account:1"],
                &["SET", "account:2", "x"],
            ],
        );
        let wrong = |reply: &Reply| reply.error_text().starts_with("WRONGTYPE");
        let made = i64::from(first == "INCR");
        assert!(replies[0] == Reply::Int(1) || wrong(&replies[0]), "{replies:?}");
        assert_eq!(replies[1], Reply::Int(made + 1));
        assert!(wrong(&replies[2]), "{replies:?}");
        assert_eq!(replies[3], Reply::Int(made + 2));
        assert_eq!(replies[4].error(), "ERR syntax error");
        assert_eq!(replies[5].error(), "ERR wrong number of arguments for 'hset' command");
        assert_eq!(replies[6].error(), "ERR increment or decrement would overflow");
        assert_eq!(replies[7..], [Reply::Int(made + 3), Reply::ok()]);
        assert_eq!(data.cmd(&["GET", "account:1"]), Reply::bulk(&(made + 3).to_string()));
    }
}

#[test]
fn writes_that_fail_are_not_sent_many_times() {
    let mut proxy = accounts().start();
    let mut data = direct(&mut proxy);
    let mut client = holder(&proxy, &["1"]);
    client.cmd(&["SET", "account:1", "x"]);
    let mut received = || {
        let Reply::Bulk(info) = data.cmd(&["INFO", "stats"]) else { panic!("no INFO") };
        let info = String::from_utf8_lossy(&info).into_owned();
        let rest = info.split("total_net_input_bytes:").nth(1).expect("field");
        rest.split("\r\n").next().and_then(|n| n.parse::<usize>().ok()).expect("number")
    };
    let before = received();
    let commands = [&["LPUSH", "account:1", "0123456789"][..]; 200];
    let replies = at_once(&proxy, &mut client, &commands);
    assert!(replies.iter().all(|reply| reply.error_text().starts_with("WRONGTYPE")), "{replies:?}");
    // Each write is sent twice, with the questions of the long way, and one call carries 64.
    let sent = received() - before;
    assert!(sent < 200 * 600, "{sent} bytes");
}

#[test]
fn each_needs_its_own_lock() {
    let mut proxy = accounts().start();
    let mut data = direct(&mut proxy);
    let mut client = holder(&proxy, &["1", "2", "3"]);
    let nobodys: [&[&str]; 3] =
        [&["INCR", "account:1"], &["INCR", "account:9"], &["DECR", "account:1"]];
    let replies = at_once(&proxy, &mut client, &nobodys);
    assert_eq!((&replies[0], &replies[2]), (&Reply::Int(1), &Reply::Int(0)));
    assert!(replies[1].error().starts_with("NOTHELD 'account:9'"), "{replies:?}");
    assert_eq!(data.cmd(&["EXISTS", "account:9"]), Reply::Int(0));
    // The lock of account 2 has run out, and that of account 3 was granted to another client.
    client.cmd(&["UNLOCK", "account:2"]);
    client.cmd(&["LOCK", "account:2", "PX", "600"]).grant();
    thread::sleep(Duration::from_millis(700));
    for node in 0..proxy.nodes_up() {
        proxy.node_client(node).cmd(&["DEL", "lock:account:3"]);
    }
    let mut other = holder(&proxy, &["3"]);
    let (passed, not_held) = (counted(&proxy, "passed"), counted(&proxy, "notheld"));
    let replies = at_once(
        &proxy,
        &mut client,
        &[
            &["INCR", "account:1"],
            &["INCR", "account:2"],
            &["INCR", "account:1"],
            &["INCR", "account:9"],
            &["INCR", "account:1"],
            &["MSET", "account:1", "10", "account:3", "10"],
            &["INCR", "account:1"],
            &["INCR", "account:3"],
            &["INCR", "account:1"],
        ],
    );
    assert_eq!(replies[0], Reply::Int(1));
    assert!(replies[1].error().starts_with("NOTHELD 'account:2'"), "{replies:?}");
    assert_eq!(replies[2], Reply::Int(2));
    assert!(replies[3].error().starts_with("NOTHELD 'account:9'"), "{replies:?}");
    assert_eq!(replies[4], Reply::Int(3));
    assert!(replies[5].error().starts_with("FENCED 'account:3' was not written"), "{replies:?}");
    assert_eq!(replies[6], Reply::Int(4));
    assert!(replies[7].error().starts_with("NOTHELD 'account:3'"), "{replies:?}");
    assert_eq!(replies[8], Reply::Int(5));
    assert_eq!(counted(&proxy, "passed") - passed, 5.0);
    assert_eq!(counted(&proxy, "notheld") - not_held, 3.0);
    assert_eq!(counted(&proxy, "fenced"), 1.0);
    assert_eq!(data.cmd(&["EXISTS", "account:2", "account:3", "account:9"]), Reply::Int(0));
    assert_eq!(other.cmd(&["INCR", "account:3"]), Reply::Int(1));
}

#[test]
fn a_data_node_that_forgot_script_and_fences_is_told_again() {
    let mut proxy = accounts().start();
    let mut data = direct(&mut proxy);
    let mut client = holder(&proxy, &["1", "2"]);
    let commands: [&[&str]; 4] = [
        &["INCR", "account:1"],
        &["INCR", "account:2"],
        &["INCR", "account:1"],
        &["INCR", "account:2"],
    ];
    assert_eq!(data.cmd(&["SCRIPT", "FLUSH"]), Reply::ok());
    assert_eq!(at_once(&proxy, &mut client, &commands), [1, 1, 2, 2].map(Reply::Int));
    assert_eq!(data.cmd(&["FLUSHALL"]), Reply::ok());
    assert_eq!(at_once(&proxy, &mut client, &commands), [1, 1, 2, 2].map(Reply::Int));
}

#[test]
fn what_the_clients_user_may_not_do_is_refused_alone() {
    let mut proxy = accounts().start();
    let mut data = direct(&mut proxy);
    drop(holder(&proxy, &["9"]));
    let commands: [&[&str]; 4] = [
        &["SET", "account:1", "1"],
        &["DEL", "account:1"],
        &["INCR", "account:1"],
        &["PERSIST", "account:1"],
    ];
    for denied in ["-del", "-evalsha"] {
        let user = ["ACL", "SETUSER", "app", "reset", "on", ">pw", "~*", "+@all", denied];
        assert_eq!(data.cmd(&user), Reply::ok());
        let mut client = proxy.client();
        assert_eq!(client.cmd(&["AUTH", "app", "pw"]), Reply::ok());
        client.cmd(&["LOCK", "account:1", "PX", "30000"]).grant();
        let replies = at_once(&proxy, &mut client, &commands);
        assert_eq!(replies[0], Reply::ok());
        if denied == "-del" {
            assert!(replies[1].error().contains("NOPERM"), "{replies:?}");
            assert_eq!(replies[2..], [Reply::Int(2), Reply::Int(0)]);
        } else {
            assert_eq!(replies[1..], [Reply::Int(1), Reply::Int(1), Reply::Int(0)]);
        }
        assert_eq!(client.cmd(&["UNLOCK", "account:1"]), Reply::Int(1));
    }
}

#[test]
fn a_number_that_may_not_be_read_back_ends_the_connection_and_is_added_once() {
    let mut proxy = accounts().start();
    let mut data = direct(&mut proxy);
    drop(holder(&proxy, &["9"]));
    let user = ["ACL", "SETUSER", "app", "on", ">pw", "~*", "+@all", "-hget"];
    assert_eq!(data.cmd(&user), Reply::ok());
    let add: &[&str] = &["HINCRBY", "account:1", "f", "9007199254740993"];
    for (sent, sum) in [(vec![add], 1), (vec![&["HSETNX", "account:1", "g", "1"], add, add], 2)] {
        let mut client = proxy.client();
        assert_eq!(client.cmd(&["AUTH", "app", "pw"]), Reply::ok());
        client.cmd(&["LOCK", "account:1", "PX", "30000"]).grant();
        proxy.freeze();
        client.send(&pipeline(&sent));
        proxy.thaw();
        let (told, _) = client.rest();
        assert_eq!(told, if sent.len() == 1 { b"".as_slice() } else { b":1\r\n" });
        let sum = (9_007_199_254_740_993_i64 * sum).to_string();
        assert_eq!(data.cmd(&["HGET", "account:1", "f"]), Reply::bulk(&sum));
        // A lease outlives its connection.
        for node in 0..proxy.nodes_up() {
            proxy.node_client(node).cmd(&["DEL", "lock:account:1"]);
        }
    }
}

#[test]
fn what_redis_refuses_for_want_of_memory_is_refused() {
    let mut proxy = accounts().start();
    let mut data = direct(&mut proxy);
    let mut client = holder(&proxy, &["1"]);
    assert_eq!(client.cmd(&["SET", "account:1", "1"]), Reply::ok());
    let commands: [&[&str]; 7] = [
        &["EXPIRE", "account:1", "100"],
        &["SET", "account:1", "2"],
        &["PERSIST", "account:1"],
        &["INCR", "account:1"],
        &["PERSIST", "account:1"],
        &["DEL", "account:1"],
        &["APPEND", "account:1", "x"],
    ];
    assert_eq!(data.cmd(&["CONFIG", "SET", "maxmemory", "1"]), Reply::ok());
    let refused = at_once(&proxy, &mut client, &commands);
    assert_eq!(data.cmd(&["CONFIG", "SET", "maxmemory", "0"]), Reply::ok());
    for at in [1, 3, 6] {
        assert!(refused[at].error().starts_with("OOM"), "{refused:?}");
    }
    assert_eq!([0, 2, 4, 5].map(|at| refused[at].clone()), [1, 1, 0, 1].map(Reply::Int));
    assert_eq!(data.cmd(&["EXISTS", "account:1"]), Reply::Int(0));
}

#[test]
fn what_may_follow_what_is_as_redis_says() {
    let mut proxy = accounts().start();
    let Reply::Array(commands) = direct(&mut proxy).cmd(&["COMMAND"]) else { panic!("no list") };
    let write = |name: &str| Write::of(&[name.as_bytes()], &encode(&[name]));
    let [set, del] = ["SET", "DEL"].map(|name| write(name).expect("known"));
    let mut known = 0;
    for entry in commands {
        let Reply::Array(entry) = entry else { panic!("no entry") };
        let (Reply::Bulk(name), Reply::Array(flags)) = (&entry[0], &entry[2]) else {
            panic!("no name and flags")
        };
        let name = String::from_utf8_lossy(name);
        let Some(write) = write(&name) else { continue };
        known += 1;
        assert!(flags.contains(&Reply::simple("write")), "{name}");
        let refused_beyond_maxmemory = flags.contains(&Reply::simple("denyoom"));
        let alone = !write.may_follow(&set);
        assert_eq!(alone || refused_beyond_maxmemory, !write.may_follow(&del), "{name}");
    }
    assert!(known > 40);
}

#[test]
fn those_that_may_take_long_have_a_call_each() {
    let mut proxy = accounts().start();
    let mut data = direct(&mut proxy);
    let mut client = holder(&proxy, &["1"]);
    let before = calls(&mut data, "evalsha");
    let commands = [&["LREM", "account:1", "0", "y"][..]; 20];
    assert_eq!(at_once(&proxy, &mut client, &commands), vec![Reply::Int(0); 20]);
    assert_eq!(calls(&mut data, "evalsha") - before, 20);
}

#[test]
fn large_replies_wait_for_a_client_that_does_not_read() {
    let mut proxy = accounts().top("barrier_buffer: 256kb").start();
    let mut data = direct(&mut proxy);
    let mut client = holder(&proxy, &["1", "2"]);
    let (short, large) = ("s".repeat(4000), "l".repeat(8 << 20));
    data.cmd(&["SET", "account:1", &short]);
    data.cmd(&["SET", "account:2", &large]);
    let mut commands = vec![&["GETEX", "account:1"][..]; 4000];
    commands.insert(2000, &["GETDEL", "account:2"]);
    let (bytes, before) = (pipeline(&commands), proxy.memory("VmHWM"));
    let mut writer = client.socket().try_clone().expect("socket");
    let sender = thread::spawn(move || std::io::Write::write_all(&mut writer, &bytes));
    // By then, all that can be held on the way to the client is held.
    thread::sleep(Duration::from_millis(1000));
    for at in 0..commands.len() {
        let Reply::Bulk(value) = client.reply() else { panic!("no value") };
        assert_eq!(value, if at == 2000 { &large } else { &short }.as_bytes(), "{at}");
    }
    sender.join().expect("sender").expect("sent");
    assert!(proxy.memory("VmHWM") - before < 4 << 20);
    assert_eq!(proxy.metric("lockgate_closes_total", "barrier_buffer"), 0.0);
}

/// Starts a proxy whose connections to the data node can be cut, and connects a client to it.
fn with_relay() -> (Proxy, Proxy, Relay, Client) {
    let mut first = accounts().start();
    let relay = Relay::to(first.data().port());
    let proxy = Proxy::beside(&first).top(ACCOUNTS).data_port(relay.port()).start();
    eventually("it is ready", || proxy.http("/readyz").starts_with("HTTP/1.1 200"));
    let client = holder(&proxy, &["1", "2"]);
    (first, proxy, relay, client)
}

#[test]
fn a_connection_cut_in_the_middle_tells_nothing_that_has_not_happened() {
    for what in ["request", "reply", "part"] {
        let (mut first, proxy, relay, mut client) = with_relay();
        let mut data = direct(&mut first);
        // Repeated, so that a packet has a whole one, wherever packets end.
        let large = "x".repeat(8 << 20) + &"END".repeat(1000);
        data.cmd(&["SET", "account:2", &large]);
        match what {
            "request" => relay.hold_request("marked"),
            "reply" => relay.hold_reply("marked"),
            _ => relay.hold_reply("END"),
        }
        proxy.freeze();
        client.send(&pipeline(&[
            &["INCR", "account:1"],
            &["INCR", "account:1"],
            &["SET", "account:1", "marked", "GET"],
            &["GETSET", "account:1", "3"],
            &["GETDEL", "account:2"],
            &["INCR", "account:1"],
        ]));
        proxy.thaw();
        relay.wait_until_held();
        relay.cut();
        let (told, _) = client.rest();
        let value = data.cmd(&["GET", "account:1"]);
        let there = data.cmd(&["EXISTS", "account:2"]);
        match what {
            "request" => {
                assert_eq!((value, there), (Reply::NullBulk, Reply::Int(1)));
                assert!(told.is_empty());
            }
            "reply" => {
                assert_eq!((value, there), (Reply::bulk("3"), Reply::Int(0)));
                assert!(told.is_empty());
            }
            _ => {
                assert_eq!((value, there), (Reply::bulk("3"), Reply::Int(0)));
                let before = b":1\r\n:2\r\n$1\r\n2\r\n$6\r\nmarked\r\n$8391608\r\nxxx";
                assert!(told.starts_with(before), "{}", told[..100].escape_ascii());
                assert!(!told.ends_with(b"\r\n"));
            }
        }
    }
}

#[test]
fn a_lost_lock_is_told_between_them() {
    let mut proxy = accounts().locks("default_ttl: 300ms").start();
    let mut data = direct(&mut proxy);
    let mut client = holder(&proxy, &["1"]);
    client.cmd(&["LOCK", "session"]).grant();
    // The first write waits for its turn when the lock is lost, and the others wait behind it.
    client.send(&pipeline(&[
        &["BLPOP", "list", "0"],
        &["INCR", "account:1"],
        &["INCR", "account:1"],
        &["INCR", "account:1"],
        &["INCR", "account:1"],
    ]));
    eventually("it waits", || {
        let Reply::Bulk(info) = data.cmd(&["INFO", "clients"]) else { panic!("no INFO") };
        String::from_utf8_lossy(&info).contains("blocked_clients:1")
    });
    for node in 0..proxy.nodes_up() {
        proxy.node_client(node).cmd(&["DEL", "lock:session"]);
    }
    eventually("it is lost", || proxy.metric("lockgate_lost_locks_total", "") == 1.0);
    data.cmd(&["RPUSH", "list", "item"]);
    assert_eq!(client.reply(), Reply::Array(vec![Reply::bulk("list"), Reply::bulk("item")]));
    // The proxy had sent none of the writes on.
    for _ in 0..4 {
        assert!(client.reply().error().starts_with("LOCKLOST the lock 'session'"));
    }
}

#[test]
fn what_was_sent_while_the_proxy_slept_is_not_executed_under_a_lost_lock() {
    let mut proxy = accounts().locks("default_ttl: 1s").start();
    let mut client = proxy.client();
    client.cmd(&["LOCK", "account:1"]).grant();
    client.cmd(&["DEL", "account:1"]);
    proxy.freeze();
    thread::sleep(Duration::from_millis(1300));
    client.send(&encode(&["INCR", "account:1"]).repeat(10));
    proxy.thaw();
    for _ in 0..10 {
        assert!(client.reply().error().starts_with("LOCKLOST"));
    }
    assert!(client.cmd(&["INCR", "account:1"]).error().starts_with("NOTHELD"));
    assert_eq!(direct(&mut proxy).cmd(&["EXISTS", "account:1"]), Reply::Int(0));
}

#[test]
fn those_before_the_end_of_a_client_are_all_made_however_long_it_takes() {
    let mut proxy = accounts().data_arguments(&["--enable-debug-command", "yes"]).start();
    let mut data = direct(&mut proxy);
    let mut client = holder(&proxy, &["1"]);
    // Together the writes take longer than a single one may take once the client has ended. DEBUG SLEEP stops Redis
    // for exactly its time, and every client has a turn before the next one. CLIENT PAUSE ends by a timer of 100 ms,
    // and the next one may begin before the proxy has had its turn.
    let sleep = encode(&["DEBUG", "SLEEP", "0.12"]);
    data.send(&sleep);
    // These take the long way, one by one.
    client.send(&encode(&["ZINCRBY", "account:1", "1", "m"]).repeat(1000));
    // The command behind them waits only for the data node.
    client.send(&encode(&["DEBUG", "SLEEP", "1.2"]));
    client.hang_up();
    for sum in 1..11 {
        assert_eq!(client.reply(), Reply::bulk(&sum.to_string()));
        assert_eq!(data.reply(), Reply::ok());
        data.send(&sleep);
    }
    for sum in 11..=1000 {
        assert_eq!(client.reply(), Reply::bulk(&sum.to_string()));
    }
    assert_eq!(client.rest().0, b"+OK\r\n");
}

#[test]
fn one_that_never_has_its_turn_does_not_keep_a_client_that_has_gone() {
    let mut proxy = accounts().start();
    let mut data = direct(&mut proxy);
    let mut client = holder(&proxy, &["1"]);
    // Long enough for the proxy to see the client's end while the first write waits.
    assert_eq!(data.cmd(&["CLIENT", "PAUSE", "300"]), Reply::ok());
    client.send(&pipeline(&[
        &["INCR", "account:1"],
        &["BLPOP", "list", "0"],
        &["INCR", "account:1"],
    ]));
    client.hang_up();
    assert_eq!(client.rest().0, b":1\r\n");
    assert_eq!(data.cmd(&["GET", "account:1"]), Reply::bulk("1"));
}

#[test]
fn replies_that_are_off_or_skipped_stay_so() {
    let proxy = accounts().start();
    let mut client = holder(&proxy, &["1"]);
    proxy.freeze();
    client.send(&pipeline(&[
        &["INCR", "account:1"],
        &["INCR", "account:1"],
        &["CLIENT", "REPLY", "SKIP"],
        &["INCR", "account:1"],
        &["INCR", "account:1"],
        &["INCR", "account:1"],
        &["CLIENT", "REPLY", "OFF"],
        &["INCR", "account:1"],
        &["INCR", "account:1"],
        &["CLIENT", "REPLY", "ON"],
        &["INCR", "account:1"],
        &["INCR", "account:1"],
    ]));
    proxy.thaw();
    let replies: Vec<Reply> = (0..7).map(|_| client.reply()).collect();
    assert_eq!(replies[..4], [1, 2, 4, 5].map(Reply::Int));
    assert_eq!(replies[4..], [Reply::ok(), Reply::Int(8), Reply::Int(9)]);
}

#[test]
fn they_are_made_in_the_database_that_is_selected() {
    let mut proxy = accounts().start();
    let mut data = direct(&mut proxy);
    let mut client = holder(&proxy, &["1"]);
    let before = calls(&mut data, "evalsha");
    let replies = at_once(
        &proxy,
        &mut client,
        &[
            &["INCR", "account:1"],
            &["INCRBY", "account:1", "9007199254740993"],
            &["SELECT", "5"],
            &["INCR", "account:1"],
            &["INCR", "account:1"],
            &["LPUSH", "account:1", "x"],
            &["INCRBY", "account:1", "9007199254740993"],
            &["SELECT", "0"],
            &["DECR", "account:1"],
        ],
    );
    assert_eq!(replies[..2], [Reply::Int(1), Reply::Int(9_007_199_254_740_994)]);
    assert_eq!(replies[3..5], [1, 2].map(Reply::Int));
    assert!(replies[5].error().starts_with("WRONGTYPE"), "{replies:?}");
    assert_eq!(replies[6], Reply::Int(9_007_199_254_740_995));
    assert_eq!(replies[8], Reply::Int(9_007_199_254_740_993));
    assert_eq!(calls(&mut data, "evalsha") - before, 5);
    assert_eq!(data.cmd(&["SELECT", "5"]), Reply::ok());
    assert_eq!(data.cmd(&["GET", "account:1"]), Reply::bulk("9007199254740995"));
}

#[test]
fn pushes_come_between_replies() {
    let proxy = accounts().start();
    let mut client = holder(&proxy, &["1", "2"]);
    client.cmd(&["HELLO", "3"]);
    assert_eq!(client.cmd(&["CLIENT", "TRACKING", "ON"]), Reply::ok());
    for round in 0..3 {
        for key in ["account:1", "account:2"] {
            client.cmd(&["GET", key]);
        }
        proxy.freeze();
        let add: [&[&str]; 4] = [
            &["INCR", "account:1"],
            &["INCR", "account:2"],
            &["INCR", "account:1"],
            &["INCR", "account:2"],
        ];
        client.send(&pipeline(&add));
        client.send(&encode(&["PING"]));
        proxy.thaw();
        let (mut replies, mut pushes) = (Vec::new(), 0);
        while replies.last() != Some(&Reply::simple("PONG")) || pushes < 2 {
            match client.reply() {
                Reply::Push(_) => pushes += 1,
                reply => replies.push(reply),
            }
        }
        let sums = [1, 1, 2, 2].map(|sum| Reply::Int(2 * round + sum));
        assert_eq!(replies[..4], sums);
        assert_eq!((replies.len(), pushes), (5, 2));
    }
}

#[test]
fn audited_writes_between_them_pass_and_are_counted() {
    let rules = format!("{ACCOUNTS}\n  - keys: 'log:*'\n    lock: 'log'\n    policy: audit");
    let mut proxy = Proxy::with().top(&rules).start();
    let mut data = direct(&mut proxy);
    let mut client = holder(&proxy, &["1"]);
    let (passed, before) = (counted(&proxy, "passed"), calls(&mut data, "evalsha"));
    let replies = at_once(
        &proxy,
        &mut client,
        &[
            &["INCR", "account:1"],
            &["INCR", "account:1"],
            &["INCR", "log:1"],
            &["INCR", "log:1"],
            &["MSET", "account:1", "5", "log:1", "6"],
            &["INCR", "account:1"],
            &["INCR", "log:1"],
        ],
    );
    assert_eq!(replies[..4], [1, 2, 1, 2].map(Reply::Int));
    assert_eq!(replies[4..], [Reply::ok(), Reply::Int(6), Reply::Int(7)]);
    assert_eq!(counted(&proxy, "audited"), 3.0);
    assert_eq!(counted(&proxy, "passed") - passed, 4.0);
    assert_eq!(calls(&mut data, "evalsha") - before, 2);
}
