//! No way leads past the guards: a client without locks never changes a guarded key.
//!
//! This test has a binary of its own, because it raises its process's limit of open files.

mod support;

use std::{net::Shutdown, time::Duration};

use lockgate::tools::redis_server::RedisServer;
use support::{Client, Proxy, Reply, encode, eventually, pipeline, relay::Relay};

const GUARDS: &str = "guards:\n  - keys: 'g:*'\n    lock: 'l:{1}'";

/// Encodes a command whose words need not be text.
fn command(words: &[&[u8]]) -> Vec<u8> {
    let mut out = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        out.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        out.extend_from_slice(word);
        out.extend_from_slice(b"\r\n");
    }
    out
}

fn guarded() -> Proxy {
    Proxy::with().top(GUARDS).data_arguments(&["--enable-debug-command", "yes"]).start()
}

fn direct(proxy: &mut Proxy) -> Client {
    Client::connect(proxy.data().port())
}

/// Whether the data node has the key.
fn exists(proxy: &mut Proxy, key: &str) -> bool {
    direct(proxy).cmd(&["EXISTS", key]) == Reply::Int(1)
}

#[test]
fn options_are_found_wherever_redis_finds_them() {
    let mut proxy = guarded();
    let mut data = direct(&mut proxy);
    data.cmd(&["RPUSH", "list", "2", "1"]);
    data.cmd(&["GEOADD", "geo", "0", "0", "m"]);
    data.cmd(&["XADD", "g:stream", "1-1", "a", "b"]);
    data.cmd(&["XGROUP", "CREATE", "g:stream", "STREAMS", "0"]);
    let before = data.cmd(&["DEBUG", "DIGEST"]);
    let mut client = proxy.client();
    let radius = ["GEORADIUS", "geo", "0", "0", "1", "m"];
    let with = |more: &[&'static str]| [&radius[..], more].concat();
    for words in [
        &["SORT", "list", "STORE", "g:1"][..],
        &["SORT", "list", "STORE", "free", "STORE", "g:1"],
        &["SORT", "list", "STORE", "BY", "STORE", "g:1"],
        &["SORT", "list", "LIMIT", "0", "1", "store\0x", "g:1"],
        &["SORT", "list", "BY", "nosort", "GET", "STORE", "STORE", "g:1"],
        &with(&["STORE", "g:1"]),
        &with(&["STORE", "free", "STORE", "g:1"]),
        &with(&["STORE", "STORE", "STORE", "g:1"]),
        &with(&["STORE", "free", "StoreDist\0", "g:1"]),
        &["GEORADIUSBYMEMBER", "geo", "m", "1", "m", "STORE", "free", "STORE", "g:1"],
        &["GEORADIUSBYMEMBER", "geo", "m", "1", "m", "STORE\0", "g:1"],
        &["XREADGROUP", "GROUP", "STREAMS", "c", "STREAMS", "g:stream", ">"],
        &["XREADGROUP", "COUNT", "1", "GROUP", "STREAMS", "c", "STREAMS", "g:stream", ">"],
        &["XREADGROUP", "GROUP", "STREAMS", "c", "STREAMS\0", "g:stream", ">"],
        &["XREADGROUP", "GROUP", "STREAMS", "c", "STREAMS", "free", "g:stream", ">", ">"],
        &["MIGRATE", "127.0.0.1", "1", "", "0", "1", "AUTH", "KEYS", "KEYS", "g:stream"],
        &["MIGRATE", "127.0.0.1", "1", "", "0", "1", "KEYS\0", "free", "g:stream"],
        &["MIGRATE", "127.0.0.1", "1", "g:stream", "0", "1"],
        &["COPY", "list", "g:1", "DB", "3", "REPLACE"],
        &["MOVE", "g:stream", "1"],
    ] {
        let refused = client.cmd(words);
        assert!(refused.error_text().starts_with("NOTHELD 'g:"), "{words:?}: {refused:?}");
    }
    assert_eq!(data.cmd(&["DEBUG", "DIGEST"]), before);
}

#[test]
fn a_zero_byte_in_a_name_is_not_left_to_chance() {
    let mut proxy = guarded();
    let mut client = proxy.client();
    // Redis takes about one in a hundred of these for SET, depending on their hashes.
    for n in 0..3000 {
        let name = format!("SET\0{n}");
        client.send(&command(&[name.as_bytes(), b"g:1", b"x"]));
    }
    for _ in 0..3000 {
        let refused = client.reply();
        assert!(refused.error().starts_with("ERR unknown command"), "{refused:?}");
    }
    direct(&mut proxy).cmd(&["XADD", "g:stream", "1-1", "a", "b"]);
    for n in 0..500 {
        let name = format!("CREATE\0{n}");
        client.send(&command(&[b"XGROUP", name.as_bytes(), b"g:stream", b"group", b"0"]));
        assert!(client.reply().error().starts_with("ERR unknown command"));
    }
    // Commands that change the state of the connection.
    assert_eq!(
        client.cmd(&["SUBSCRIBE", "c"]),
        Reply::Array(vec![Reply::bulk("subscribe"), Reply::bulk("c"), Reply::Int(1)])
    );
    for n in 0..1000 {
        let name = format!("RESET\0{n}");
        client.send(&command(&[name.as_bytes()]));
        assert!(client.reply().error_text().contains("ERR"));
        client.send(&encode(&["SET", "g:1", "x"]));
        assert!(client.reply().error().starts_with("ERR Can't execute 'set'"));
    }
    // Redis reads this word up to the zero byte, and so does the proxy.
    let mut mute = proxy.client();
    mute.send(&pipeline(&[&["client", "reply", "OFF\0"], &["SET", "g:1", "x"]]));
    mute.send(&pipeline(&[&["CLIENT", "REPLY", "ON\0OFF"], &["ECHO", "seen"]]));
    assert_eq!((mute.reply(), mute.reply()), (Reply::ok(), Reply::bulk("seen")));
    assert!(!exists(&mut proxy, "g:1"));
    let groups = direct(&mut proxy).cmd(&["XINFO", "GROUPS", "g:stream"]);
    assert_eq!(groups, Reply::Array(Vec::new()));
}

#[test]
fn renamed_commands_are_what_they_were() {
    let arguments = [
        "--rename-command",
        "SET",
        "put",
        "--rename-command",
        "GET",
        "read",
        "--rename-command",
        "GETSET",
        "GET",
        "--rename-command",
        "EVAL",
        "",
    ];
    // Guards themselves need EVAL, GET and SET where a client holds locks. A client without locks is refused,
    // whatever the command is called.
    let mut proxy = Proxy::with().top(GUARDS).data_arguments(&arguments).start();
    let mut client = proxy.client();
    for words in [&["put", "g:1", "x"][..], &["PUT", "g:1", "x"], &["GET", "g:1", "x"]] {
        assert!(client.cmd(words).error_text().starts_with("NOTHELD 'g:1'"), "{words:?}");
    }
    assert_eq!(client.cmd(&["put", "free", "x"]), Reply::ok());
    assert_eq!(client.cmd(&["read", "g:1"]), Reply::NullBulk);
    assert_eq!(client.cmd(&["GET", "free", "y"]), Reply::bulk("x"));
    assert!(client.cmd(&["SET", "g:1", "x"]).error().starts_with("ERR unknown command"));
    assert!(!exists(&mut proxy, "g:1"));
    // A renamed command that guards themselves do not need works under its lock.
    let arguments = ["--rename-command", "LPUSH", "put-in-front-of-the-list"];
    let proxy = Proxy::with().top(GUARDS).data_arguments(&arguments).start();
    let mut client = proxy.client();
    let words = ["put-in-front-of-the-list", "g:1", "x"];
    assert!(client.cmd(&words).error().starts_with("NOTHELD 'g:1'"));
    client.cmd(&["LOCK", "l:1"]).grant();
    assert_eq!(client.cmd(&words), Reply::Int(1));
    let replies = client.pipe(&[&["MULTI"], &words, &["EXEC"]]);
    assert_eq!(replies[2], Reply::Array(vec![Reply::Int(2)]));
}

#[test]
fn a_line_that_is_too_long_is_never_completed() {
    let mut proxy = guarded();
    let mut data = direct(&mut proxy);
    for name in ["SET g:1 ", "SET free x\r\nSET g:1 "] {
        let mut client = proxy.client();
        // Otherwise DEBUG and the bytes behind it wait until the commands are known.
        assert_eq!(client.cmd(&["SET", "other", "x"]), Reply::ok());
        // Redis reads what arrives during its sleep in one go.
        client.send(&encode(&["DEBUG", "SLEEP", "0.5"]));
        client.send(name.as_bytes());
        client.send(&vec![b'x'; 65_530 + 10]);
        std::thread::sleep(Duration::from_millis(100));
        client.send(b"y\r\nSET g:1 y\r\n");
        client.send(&encode(&["SET", "g:1", "z"]));
        let said = String::from_utf8_lossy(&client.rest().0).into_owned();
        assert!(said.starts_with("+OK\r\n"), "{said:?}");
        assert!(said.ends_with("-ERR Protocol error: too big inline request\r\n"), "{said:?}");
        assert_eq!(data.cmd(&["EXISTS", "g:1"]), Reply::Int(0), "{name}");
    }
}

#[test]
fn what_redis_would_not_parse_is_answered_and_nothing_behind_it_is_carried_out() {
    let mut proxy = guarded();
    for (bad, error) in [
        (&b"*2147483648\r\n"[..], "invalid multibulk length"),
        (b"*1x\r\n", "invalid multibulk length"),
        (b"*123456789012345678901234567890", "invalid multibulk length"),
        (b"*2\r\n$3\r\nSET\r\n$-1\r\n", "invalid bulk length"),
        // Lines of arrays end at CR, whatever follows it.
        (b"*1\n$4\r\nPING\r\n", "invalid multibulk length"),
        (b"*1\r9\n\r0\r\n", "expected '$', got"),
        (b"*1\r\n$4*\nEXEC\r\n", "invalid bulk length"),
        (b"*3\r\n$6\r\nENT\r\n$5\r\nREPLY\r\n", "expected '$', got"),
        // Before the name is known.
        (b"*1\r\n+PING\r\n", "expected '$', got '+'"),
        (b"*2\r\n:1\r\n", "expected '$', got ':'"),
        (b"*1\r\n\r\n", "expected '$', got"),
        (b"*1\r\n$-5\r\n", "invalid bulk length"),
        (b"*2\r\n$x\r\n", "invalid bulk length"),
        (b"*1\r\n$04\r\nPING\r\n", "invalid bulk length"),
        (b"*3\r\n$3\r\nSET\r\n$3\r\ng:1\r\n:3\r\n", "expected '$', got ':'"),
        (b"*3\r\n$3\r\nSET\r\n$3\r\ng:1\r\n$3x\r\nabc\r\n", "invalid bulk length"),
        (b"SET g:1 \"x\r\n", "unbalanced quotes in request"),
        (b"SET g:1 'x'y\r\n", "unbalanced quotes in request"),
    ] {
        for split in [false, true] {
            let mut client = proxy.client();
            let mut bytes = b"PING\r\n".to_vec();
            bytes.extend_from_slice(bad);
            bytes.extend_from_slice(&pipeline(&[&["SET", "g:1", "x"], &["SET", "g:1", "y"]]));
            // Sent byte by byte only so far that it is not refused in between.
            let (begin, rest) = bytes.split_at(if split { 6 + bad.len() / 3 } else { 0 });
            begin.iter().for_each(|byte| client.send(&[*byte]));
            client.send(rest);
            let said = String::from_utf8_lossy(&client.rest().0).into_owned();
            assert!(said.starts_with("+PONG\r\n-ERR Protocol error: "), "{said:?}");
            assert!(said.contains(error), "{said:?}");
        }
    }
    // Redis finds no end of a line with a zero byte, and waits.
    let mut client = proxy.client();
    client.send(b"SET g:1 x\0\r\nSET g:1 x\r\n");
    client.send(&encode(&["SET", "g:1", "x"]));
    client.hang_up();
    assert_eq!(client.rest().0, b"");
    assert!(!exists(&mut proxy, "g:1"));
}

#[test]
fn commands_that_replace_data_without_being_writes_are_refused() {
    let mut proxy = guarded();
    let mut client = proxy.client();
    for words in [
        &["DEBUG", "POPULATE", "3", "g"][..],
        &["debug", "populate", "3", "g"],
        &["DEBUG", "RELOAD"],
        &["DEBUG", "LOADAOF"],
        &["REPLICAOF", "NO", "ONE"],
        &["SLAVEOF", "127.0.0.1", "1"],
        &["FLUSHALL"],
        &["FLUSHDB", "SYNC"],
        &["SWAPDB", "0", "1"],
    ] {
        assert!(client.cmd(words).error_text().starts_with("NOTHELD"), "{words:?}");
    }
    let zero = client.cmd(&["DEBUG", "POPULATE\0", "3", "g"]);
    assert!(zero.error_text().starts_with("ERR unknown command"), "{zero:?}");
    assert_eq!(client.cmd(&["DEBUG", "SLEEP", "0"]), Reply::ok());
    assert_eq!(direct(&mut proxy).cmd(&["DBSIZE"]), Reply::Int(0));
}

#[test]
fn no_state_of_a_connection_opens_a_way() {
    let mut proxy = guarded();
    let set: &[&str] = &["SET", "g:1", "x"];
    for before in [
        &[&["MULTI"][..], &["MULTI"]][..],
        &[&["EXEC"]],
        &[&["MULTI"], &["DISCARD"]],
        &[&["MULTI"], &["DISCARD", "x"]],
        &[&["MULTI"], &["EXEC", "x"]],
        &[&["MULTI", "x"]],
        &[&["MULTI"], &["RESET"]],
        &[&["MULTI"], &["WATCH", "g:1"]],
        &[&["WATCH", "g:1"], &["MULTI"]],
        &[&["WATCH", "g:1"]],
        &[&["HELLO", "3"], &["SUBSCRIBE", "c"]],
        &[&["SUBSCRIBE", "c"], &["UNSUBSCRIBE", "c"]],
        &[&["PSUBSCRIBE", "c*"], &["SUBSCRIBE", "c"], &["PUNSUBSCRIBE"], &["UNSUBSCRIBE"]],
        &[&["SSUBSCRIBE", "c"], &["SUNSUBSCRIBE", "c"]],
        &[&["SUBSCRIBE", "c"], &["RESET"]],
        &[&["MONITOR"]],
        &[&["MONITOR"], &["RESET"]],
        &[&["SELECT", "3"]],
        &[&["CLIENT", "NO-EVICT", "on"]],
        &[&["CLIENT", "TRACKING", "on"]],
        &[&["CLIENT", "CACHING", "yes"]],
        &[&["ASKING"]],
        &[&["READONLY"]],
        &[&["CLIENT", "REPLY", "ON"]],
        &[&["AUTH", "default", "x"]],
        &[&["*"]],
    ] {
        let mut client = proxy.client();
        client.send(&pipeline(before));
        client.send(b"\r\n*0\r\n*-1\r\n");
        client.send(&pipeline(&[set, &["EXEC"], set, &["DISCARD"], set]));
        client.send(b"set g:1 x\r\nSeT \"g:\\x31\" x\n");
        let _ = client.socket().shutdown(Shutdown::Write);
        let said = String::from_utf8_lossy(&client.rest().0).into_owned();
        assert!(said.contains('-'), "{before:?}: {said:?}");
        let mut data = direct(&mut proxy);
        assert_eq!(data.cmd(&["DBSIZE"]), Reply::Int(0), "{before:?}: {said:?}");
        data.cmd(&["SELECT", "3"]);
        assert_eq!(data.cmd(&["DBSIZE"]), Reply::Int(0), "{before:?}: {said:?}");
    }
    // While replies are off there is nothing to read.
    for before in [
        &[&["CLIENT", "REPLY", "OFF"][..]][..],
        &[&["CLIENT", "REPLY", "SKIP"]],
        &[&["CLIENT", "REPLY", "SKIP"], &["MULTI"]],
        &[&["CLIENT", "REPLY", "OFF"], &["MULTI"]],
        &[&["CLIENT", "REPLY", "OFF"], &["SUBSCRIBE", "c"]],
        &[&["CLIENT", "REPLY", "OFF"], &["RESET"]],
        &[&["CLIENT", "REPLY", "OFF"], &["MULTI"], &["RESET"]],
        &[&["CLIENT", "REPLY", "OFF"], &["MULTI"], &["DISCARD", "x"]],
        &[&["CLIENT", "REPLY", "SKIP"], &["HELLO", "3"]],
        &[&["MULTI"], &["CLIENT", "REPLY", "OFF"]],
        &[&["MULTI"], &["HELLO", "3"]],
        &[&["MULTI"], &["SUBSCRIBE", "c"]],
        &[&["REPLCONF", "ACK", "0"]],
        &[&["SYNC"]],
        &[&["PSYNC", "?", "-1"]],
    ] {
        let mut client = proxy.client();
        client.send(&pipeline(before));
        client.send(&pipeline(&[set, &["EXEC"], set, &["DISCARD"], set]));
        // Some of these connections are closed at once.
        let _ = client.socket().shutdown(Shutdown::Write);
        client.rest();
        assert_eq!(direct(&mut proxy).cmd(&["DBSIZE"]), Reply::Int(0), "{before:?}");
    }
}

#[test]
fn a_dropped_command_of_a_subscriber_does_not_let_the_next_one_pass() {
    let rules = "guards:\n  max_command: 64kb\n  rules:\n    - keys: 'g:*'\n      lock: 'l:{1}'";
    let mut proxy = Proxy::with().top(rules).start();
    let mut client = proxy.client();
    client.cmd(&["SUBSCRIBE", "c"]);
    let large = "x".repeat(70_000);
    client.send(&pipeline(&[&["SET", "g:1", &large], &["RESET"], &["SET", "g:1", "x"]]));
    assert!(client.reply().error().starts_with("ERR command too large"));
    assert_eq!(client.reply(), Reply::simple("RESET"));
    assert!(client.reply().error().starts_with("NOTHELD"));
    assert!(!exists(&mut proxy, "g:1"));
}

#[test]
fn while_nothing_is_known_of_the_data_node_nothing_passes_unchecked() {
    let mut proxy = guarded();
    let mut client = proxy.client();
    assert!(client.cmd(&["SET", "g:1", "x"]).error().starts_with("NOTHELD"));
    proxy.data().restart().expect("data node");
    // The first client may come before the commands are known again.
    for _ in 0..20 {
        let mut client = proxy.client();
        let refused = client.cmd(&["SET", "g:1", "x"]);
        assert!(refused.error_text().starts_with("NOTHELD"), "{refused:?}");
    }
    eventually("others pass", || proxy.client().cmd(&["SET", "free", "x"]) == Reply::ok());
    assert!(!exists(&mut proxy, "g:1"));
}

#[test]
fn keys_that_a_script_does_not_declare_are_not_seen() {
    let mut proxy = guarded();
    let mut client = proxy.client();
    let script = "return redis.call('SET', 'g:' .. ARGV[1], 'x')";
    assert_eq!(client.cmd(&["EVAL", script, "0", "1"]), Reply::ok());
    assert!(exists(&mut proxy, "g:1"));
}

#[test]
fn after_monitor_neither_scripts_nor_debug_write() {
    let mut proxy = guarded();
    for words in [
        &["EVAL", "return redis.call('SET', KEYS[1], 'x')", "1", "g:1"][..],
        &["DEBUG", "POPULATE", "3", "g"],
        &["REPLICAOF", "127.0.0.1", "1"],
        &["SET", "g:1", "x"],
    ] {
        let mut client = proxy.client();
        assert_eq!(client.cmd(&["MONITOR"]), Reply::ok());
        client.send(&encode(words));
        assert_eq!(client.reply().error(), "ERR Replica can't interact with the keyspace");
        // In a transaction the proxy closes the connection.
        client.send(&pipeline(&[&["MULTI"], words, &["EXEC"]]));
        // Otherwise MONITOR's lines about the proxy's own questions would never end.
        let _ = client.socket().shutdown(Shutdown::Write);
        client.rest();
        assert_eq!(direct(&mut proxy).cmd(&["DBSIZE"]), Reply::Int(0), "{words:?}");
    }
}

/// Redis ignores the byte behind a `\r`, and the two behind a word. Whatever stands there, the proxy checks exactly
/// the command that Redis carries out.
#[test]
fn bytes_that_redis_does_not_look_at_hide_no_other_write() {
    let mut proxy = guarded();
    let mut client = proxy.client();
    client.cmd(&["LOCK", "l:1", "PX", "30000"]).grant();
    client.cmd(&["DEL", "g:1"]);
    // The first line end is in a value, with another write behind it.
    let hidden = "\n$3\r\nSET\r\n$3\r\ng:2\r\n$1\r\nx\r\n";
    let set = format!("*3\rX$3\rXSETXX$3\rXg:1XX${}\rX{hidden}XX", hidden.len());
    let follow = encode(&["GET", "g:1"]);
    for first in [&b""[..], &encode(&["APPEND", "g:1", "x"])] {
        client.send(&[first, set.as_bytes(), &follow].concat());
        if !first.is_empty() {
            client.reply();
        }
        assert_eq!(client.reply(), Reply::ok());
        assert_eq!(client.reply(), Reply::bulk(hidden));
        assert!(!exists(&mut proxy, "g:2"));
    }
}

#[test]
fn a_name_that_could_not_be_asked_about_does_not_pass() {
    // More clients than may ask at once.
    const CLIENTS: u64 = 1300;
    let files = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let limit = rustix::process::Rlimit { current: files.maximum, ..files };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).expect("files");
    let arguments = ["--rename-command", "LPUSH", "lput"];
    let mut proxy = Proxy::with().top(GUARDS).data_arguments(&arguments).start();
    let mut clients: Vec<Client> = (0..CLIENTS).map(|_| proxy.client()).collect();
    for client in &mut clients {
        assert_eq!(client.cmd(&["PING"]), Reply::simple("PONG"));
    }
    // The first client has the data node asked, which then does not answer for a while.
    proxy.data().freeze().expect("freeze");
    for client in &mut clients {
        client.send(&encode(&["lput", "g:8", "hacked"]));
    }
    std::thread::sleep(Duration::from_millis(700));
    proxy.data().thaw().expect("thaw");
    for client in &mut clients {
        let refused = client.reply();
        let told = ["NOTHELD 'g:8'", "ERR the command could not be checked against the guards"];
        assert!(told.iter().any(|words| refused.error_text().starts_with(words)), "{refused:?}");
    }
    assert!(!exists(&mut proxy, "g:8"));
    // In the end the proxy knows the command.
    eventually("it is known", || {
        clients[0].cmd(&["lput", "g:8", "hacked"]).error_text().starts_with("NOTHELD 'g:8'")
    });
}

#[test]
fn a_name_does_not_pass_while_all_names_are_being_read() {
    let data = RedisServer::start(&["--rename-command", "LPUSH", "lput"]).expect("data node");
    let relay = Relay::to(data.port());
    let proxy = Proxy::with().top(GUARDS).data_port(relay.port()).start();
    eventually("it is ready", || proxy.http("/readyz").starts_with("HTTP/1.1 200"));
    let mut client = proxy.client();
    // All names have just been read. Each part of the next reading stays within its time limit, but all of it takes a
    // while.
    assert!(client.cmd(&["FOO"]).error().starts_with("ERR unknown command"));
    relay.hold_request("*1\r\n$7\r\nCOMMAND\r\n");
    client.send(&encode(&["lput", "g:8", "hacked"]));
    for next in [Some("$4\r\nINFO\r\n"), None] {
        relay.wait_until_held();
        std::thread::sleep(Duration::from_millis(440));
        relay.release();
        next.into_iter().for_each(|next| relay.hold_request(next));
    }
    let refused = client.reply();
    let told = ["NOTHELD 'g:8'", "ERR the command could not be checked against the guards"];
    assert!(told.iter().any(|words| refused.error_text().starts_with(words)), "{refused:?}");
    assert_eq!(Client::connect(data.port()).cmd(&["EXISTS", "g:8"]), Reply::Int(0));
}

#[test]
fn a_fence_that_no_clock_has_made_is_told() {
    let mut proxy = guarded();
    let mut client = proxy.client();
    client.cmd(&["LOCK", "l:1"]).grant();
    assert_eq!(client.cmd(&["UNLOCK", "l:1"]), Reply::Int(1));
    assert_eq!(proxy.metric("lockgate_guard_fences_ahead_total", ""), 0.0);
    direct(&mut proxy).cmd(&["SET", "lockgate:guard:lock:l:1", "9007199254740991"]);
    assert!(client.cmd(&["LOCK", "l:1"]).error().starts_with("FENCED"));
    assert!(proxy.metric("lockgate_guard_fences_ahead_total", "") >= 1.0);
    eventually("it is told", || proxy.log().contains("more than a day ahead of the clock"));
    // Locks of other clients are not affected.
    client.cmd(&["LOCK", "l:2"]).grant();
    assert_eq!(client.cmd(&["SET", "g:2", "x"]), Reply::ok());
}
