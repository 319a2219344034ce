//! Clients that write their whole pipeline before they read the first reply, as redis-py, phpredis, Jedis and hiredis
//! do. Whichever command in it waits for earlier replies, the whole pipeline is carried out as on a Redis, and client
//! and proxy never wait for each other.

use std::{io::Write, thread};

use super::{
    shared::{ms, sharing, warm},
    slow_sharers::keep_busy,
};
use crate::support::{Client, Proxy, Reply, encode, eventually};

/// Guards of accounts, and an adopt rule for a library's locks.
const RULES: &str = "guards:\n  rules:\n    - keys: 'account:*'\n      lock: 'account:{1}'\n\
                     adopt:\n  - keys: 'lock:*'\n    lock: '{1}'\n    mode: enforce\n    no_ttl: session";

/// More values of this size than all sockets on the way hold.
const COUNT: usize = 12;
const MB: usize = 1 << 20;

/// Returns a client whose socket holds few unread bytes.
fn narrow(port: u16) -> Client {
    Client::connect_narrow(port, 64 * 1024)
}

/// Returns the text for a word in a test's commands, where some words stand for longer ones.
fn spelled(word: &str) -> String {
    match word {
        "LONG" => "k".repeat(100_000),
        "TEXT" => "t".repeat(2 * MB),
        "RELEASE" => "if redis.call('get',KEYS[1])==ARGV[1] then return redis.call('del',KEYS[1]) \
                      else return 0 end"
            .to_owned(),
        word => word.to_owned(),
    }
}

/// Writes large reads, these commands and large writes, and only then reads. Returns the replies to these commands,
/// of which there are `replies`, and all replies behind them.
fn whole(client: &mut Client, commands: &[&[&str]], replies: usize) -> Vec<Reply> {
    let value = "w".repeat(MB);
    let mut bytes = encode(&["GET", "big"]).repeat(COUNT);
    for words in commands {
        let words: Vec<String> = words.iter().map(|word| spelled(word)).collect();
        bytes.extend(encode(&words.iter().map(String::as_str).collect::<Vec<_>>()));
    }
    bytes.extend(encode(&["SET", "w", &value]).repeat(COUNT));
    client.send(&bytes);
    for at in 0..COUNT {
        assert!(
            matches!(client.reply(), Reply::Bulk(big) if big.len() == MB),
            "{at} of {commands:?}"
        );
    }
    (0..replies + COUNT).map(|_| client.reply()).collect()
}

/// The expected replies.
enum Right {
    /// This many replies, the same as those of Redis.
    AsRedis(usize),
    /// Exactly these.
    Is(Vec<Reply>),
    /// A grant.
    Grant,
    /// One error that begins with this.
    Error(&'static str),
    /// This many replies, none of them an error.
    Some(usize),
}

/// Whether the replies are the same, except for what differs between connections.
fn is_same(one: &Reply, other: &Reply) -> bool {
    one == other || matches!((one, other), (Reply::Map(_), Reply::Map(_)))
}

#[test]
fn a_whole_pipeline_is_carried_out_whatever_stands_in_it() {
    use Right::{AsRedis, Error, Grant, Is, Some};
    let proxy = Proxy::with().nodes(3).top(RULES).start();
    let mut data = proxy.data_client();
    let port = data.socket().peer_addr().unwrap().port();
    data.cmd(&["SET", "big", &"b".repeat(MB)]);
    let text = spelled("TEXT");
    let pairs: Vec<&[&str]> = [&["GET", "account:2"][..], &["SET", "account:1", "5"]].repeat(200);
    let queued = || vec![Reply::ok(), Reply::simple("QUEUED")];
    let cases: Vec<(&[&[&str]], Right)> = vec![
        (&[&["LOCK", "a", "t", "PX", "60000"]], Grant),
        (&[&["LOCK", "held", "o", "PX", "60000"]], Is(vec![Reply::NullArray])),
        (&[&["RENEW", "held", "h", "PX", "60000"]], Some(1)),
        (&[&["UNLOCK", "nobody", "t"]], Is(vec![Reply::Int(0)])),
        (&[&["LOCK.ATTACH", "nobody", "t"]], Is(vec![Reply::NullArray])),
        (&[&["LOCK.DETACH", "nobody"]], Is(vec![Reply::Int(0)])),
        (&[&["LOCK", "LONG"]], Error("ERR")),
        (&[&["LOCK", "a", "PX", "x"]], Error("ERR")),
        (&[&["LOCKGATE", "NOTHING"]], Error("ERR")),
        (&[&["LOCKGATE", "VERSION"]], Some(1)),
        (&[&["SET", "lock:a1", "t", "NX", "PX", "60000"]], Is(vec![Reply::ok()])),
        (&[&["SETNX", "lock:a2", "t"]], Is(vec![Reply::Int(1)])),
        (&[&["GET", "lock:nobody"]], Is(vec![Reply::NullBulk])),
        (&[&["EVAL", "RELEASE", "1", "lock:nobody", "t"]], Is(vec![Reply::Int(0)])),
        (&[&["INCR", "lock:a3"]], Error("ERR")),
        (&[&["SET", "lock:a4", "TEXT"]], Error("ERR")),
        (
            &[&["WATCH", "lock:n"], &["GET", "lock:n"], &["MULTI"], &["DEL", "lock:n"], &["EXEC"]],
            Is([
                vec![Reply::ok(), Reply::NullBulk],
                queued(),
                vec![Reply::Array(vec![Reply::Int(0)])],
            ]
            .concat()),
        ),
        (&[&["SET", "account:1", "5"]], AsRedis(1)),
        (&[&["SET", "account:1", "TEXT"]], AsRedis(1)),
        (&[&["GETEX", "account:1"], &["SET", "account:1", "5", "GET"]], AsRedis(2)),
        (&[&["EVAL", "return redis.call('SET',KEYS[1],'5')", "1", "account:1"]], AsRedis(1)),
        (&[&["SET", "account:9", "5"]], Error("NOTHELD")),
        (&[&["MULTI"], &["SET", "account:1", "5"], &["GETEX", "account:1"], &["EXEC"]], AsRedis(4)),
        (&[&["SELECT", "1"], &["SET", "account:1", "5"], &["SELECT", "0"]], AsRedis(3)),
        (&pairs, AsRedis(400)),
        (&[&["HELLO", "3"]], AsRedis(1)),
        (&[&["HELLO", "9"]], AsRedis(1)),
        (&[&["AUTH", "x"]], AsRedis(1)),
        (&[&["AUTH", "nobody", "x"]], AsRedis(1)),
        (&[&["RESET"]], AsRedis(1)),
        (&[&["CLIENT", "REPLY", "SKIP"], &["PING"]], AsRedis(0)),
        (&[&["CLIENT", "REPLY", "OFF"], &["PING"], &["CLIENT", "REPLY", "ON"]], AsRedis(1)),
        (&[&["CLIENT", "SETNAME", "x"]], AsRedis(1)),
        (&[&["SUBSCRIBE", "a", "b"], &["UNSUBSCRIBE"]], AsRedis(4)),
        (&[&["NOCOMMAND"]], AsRedis(1)),
        (&[&["COMMAND", "COUNT"], &["COMMAND", "INFO", "LOCK"]], Some(2)),
    ];
    for (commands, right) in cases {
        let name = format!("{:.60}", format!("{commands:?}"));
        println!("{name}");
        let mut client = narrow(proxy.port());
        client.cmd(&["LOCK", "account:1", "t", "PX", "60000"]).grant();
        client.cmd(&["LOCK", "held", "h", "PX", "60000"]);
        data.cmd(&["SET", "account:1", &text]);
        data.cmd(&["SET", "account:2", &"a".repeat(10_000)]);
        let expected = match right {
            AsRedis(replies) => {
                let got = whole(&mut narrow(port), commands, replies);
                data.cmd(&["SET", "account:1", &text]);
                got
            }
            _ => Vec::new(),
        };
        let count = match &right {
            AsRedis(replies) | Some(replies) => *replies,
            Is(replies) => replies.len(),
            Grant | Error(_) => 1,
        };
        let got = whole(&mut client, commands, count);
        let (own, behind) = got.split_at(count);
        match &right {
            AsRedis(_) => {
                assert!(
                    got.iter().zip(&expected).all(|(one, other)| is_same(one, other)),
                    "{name}"
                );
            }
            Is(replies) => assert_eq!(own, replies, "{name}"),
            Grant => drop(own[0].grant()),
            Error(begin) => assert!(own[0].error().starts_with(begin), "{name}: {own:?}"),
            Some(_) => {
                assert!(own.iter().all(|one| one.error_text().is_empty()), "{name}: {own:?}")
            }
        }
        if !matches!(right, AsRedis(_)) {
            assert!(behind.iter().all(|reply| *reply == Reply::ok()), "{name}: {behind:?}");
        }
        client.cmd(&["RESET"]);
        client.cmd(&["UNLOCK", "account:1", "t"]);
        client.cmd(&["UNLOCK", "held", "h"]);
    }
    assert_eq!(proxy.metric("lockgate_closes_total", "barrier_buffer"), 0.0);
}

/// Writes 16 MB of commands, each of which is echoed, and `behind` amid them, and only then reads.
fn echoed(client: &mut Client, size: usize, behind: &[&[&str]]) -> Vec<Reply> {
    let text = "e".repeat(size);
    let (one, count) = (encode(&["ECHO", &text]), 8 * MB / size);
    let behind_all: Vec<u8> = behind.iter().flat_map(|words| encode(words)).collect();
    client.send(&[one.repeat(count), behind_all, one.repeat(count)].concat());
    let echoes = |client: &mut Client| {
        for at in 0..count {
            assert_eq!(client.reply(), Reply::bulk(&text), "{at} of {size} bytes each");
        }
    };
    echoes(client);
    let replies = behind.iter().map(|_| client.reply()).collect();
    echoes(client);
    replies
}

#[test]
fn small_replies_to_a_whole_pipeline_are_held_by_the_data_node() {
    let multi = [&["MULTI"][..], &["INCR", "n"], &["EXEC"]];
    let done = |n| vec![Reply::ok(), Reply::simple("QUEUED"), Reply::Array(vec![Reply::Int(n)])];
    for share in ["no", "yes"] {
        let proxy = Proxy::with().top(&format!("share: {share}\nio_threads: 1")).start();
        for (size, n) in [(150, 1), (4000, 2), (15_000, 3)] {
            thread::scope(|scope| {
                let whole = scope.spawn(|| {
                    let mut client = narrow(proxy.port());
                    assert_eq!(echoed(&mut client, size, &[]), []);
                    assert_eq!(echoed(&mut client, size, &multi), done(n));
                });
                // Some of them are behind the pipeline on its link.
                let mut others: Vec<Client> = (0..4).map(|_| proxy.client()).collect();
                while !whole.is_finished() {
                    others.iter_mut().for_each(|other| other.send(&encode(&["ECHO", "other"])));
                    let is_right = |other: &mut Client| other.reply() == Reply::bulk("other");
                    assert!(others.iter_mut().all(is_right));
                }
            });
        }
        assert_eq!(proxy.metric("lockgate_closes_total", "slow_reader"), 0.0);
        let pinned = proxy.metric("lockgate_pinned_total", "");
        assert_eq!(pinned, if share == "yes" { 3.0 } else { 0.0 }, "by MULTI alone");
    }
}

#[test]
fn large_replies_to_a_whole_pipeline_are_held_by_the_data_node() {
    // Much less than the replies that may be on the way at once.
    let proxy = sharing().top("barrier_buffer: 1mb").start();
    let (big, value) = ("b".repeat(100_000), "w".repeat(MB));
    proxy.data_client().cmd(&["SET", "big", &big]);
    let mut client = narrow(proxy.port());
    let (gets, sets) = (encode(&["GET", "big"]).repeat(300), encode(&["SET", "w", &value[1..]]));
    let small = encode(&["SETRANGE", "w", "0", &value[..50_000]]);
    client.send(&[&gets[..], &small.repeat(300), &sets].concat());
    assert!((0..300).all(|_| client.reply() == Reply::bulk(&big)));
    assert!((0..300).all(|_| client.reply() == Reply::Int(50_000)));
    assert_eq!(client.reply(), Reply::ok());
    assert_eq!(proxy.metric("lockgate_closes_total", ""), 0.0);
}

#[test]
fn one_that_does_not_read_keeps_the_proxy_no_more_busy_than_one_that_is_idle() {
    let rules = "barrier_buffer: 1mb\nguards: [{keys: 'g:*', lock: 'g:{1}'}]";
    let proxy = sharing().top(rules).start();
    proxy.data_client().cmd(&["SET", "value", &"v".repeat(8000)]);
    eventually("commands are known", || proxy.log().contains("commands are known"));
    let get = encode(&["GET", "value"]);
    let waiting: [&[&str]; 8] = [
        &["PING"],
        &["WAIT", "1", "0"],
        &["CLIENT", "SETNAME", "x"],
        &["CLIENT", "MAINT_NOTIFICATIONS", "ON"],
        &["SELECT", "0"],
        &["MULTI"],
        &["LOCK", "k"],
        &["QUIT"],
    ];
    let clients = waiting.map(|words| {
        let mut client = narrow(proxy.port());
        client.send(&[get.repeat(300), encode(words), get.repeat(500)].concat());
        // Its link is its own by then.
        thread::sleep(ms(50));
        client
    });
    thread::sleep(ms(500));
    let before = proxy.ticks();
    thread::sleep(ms(2000));
    let used = proxy.ticks() - before;
    assert!(used < 100, "{used} ticks of CPU in two seconds");
    assert_eq!(proxy.metric("lockgate_closes_total", ""), 0.0, "all were there");
    drop(clients);
}

/// Returns a client that does not read for now, once as many of its commands as can be are put on the link at once.
fn eager(proxy: &Proxy, value: &str) -> Client {
    proxy.data_client().cmd(&["SET", "value", value]);
    let mut client = narrow(proxy.port());
    for _ in 0..5 {
        client.send(&encode(&["GET", "value"]).repeat(1000));
        assert!((0..1000).all(|_| client.reply() == Reply::bulk(value)));
    }
    client
}

#[test]
fn who_is_behind_a_whole_pipeline_on_its_link_waits_for_a_part_of_it() {
    let (proxy, value) = (sharing().start(), "v".repeat(8000));
    let (mut client, mut busy, mut behind) = (eager(&proxy, &value), warm(&proxy), warm(&proxy));
    keep_busy(&mut busy, 300);
    client.send(&encode(&["GET", "value"]).repeat(2000));
    thread::sleep(ms(50));
    assert_eq!(behind.cmd(&["ECHO", "behind"]), Reply::bulk("behind"));
    assert!((0..2000).all(|_| client.reply() == Reply::bulk(&value)));
    assert_eq!(proxy.metric("lockgate_closes_total", ""), 0.0);
}

#[test]
fn a_whole_pipeline_goes_on_once_nobody_is_behind_it_on_its_link() {
    let (proxy, value) = (sharing().start(), "v".repeat(8000));
    proxy.data_client().cmd(&["SET", "value", &value]);
    // Its socket is full from the beginning, but little is held for it, so that it is on a link with others.
    let mut client = Client::connect_narrow(proxy.port(), 4096);
    for _ in 0..3 {
        client.send(&encode(&["GET", "value"]).repeat(8));
        thread::sleep(ms(100));
    }
    let (mut busy, mut long, mut last) = (warm(&proxy), warm(&proxy), warm(&proxy));
    let (key, text, longer) = ("k".repeat(1700), "e".repeat(500), "l".repeat(25_000));
    // Redis reads 16 KB of commands at once, and then writes all their replies. So the pipeline's first replies, of
    // which the client takes nothing, come before `last` is carried out; and what is behind that comes later.
    keep_busy(&mut busy, 300);
    client.send(&encode(&["MGET", "value", &key]).repeat(9));
    thread::sleep(ms(50));
    long.send(&encode(&["ECHO", &longer]));
    thread::sleep(ms(50));
    keep_busy(&mut last, 300);
    assert_eq!(busy.reply(), Reply::Int(1));
    keep_busy(&mut client, 300);
    // It is more than what the sockets take.
    client.send(&encode(&["ECHO", &text]).repeat(40_000));
    let two = Reply::Array(vec![Reply::bulk(&value), Reply::NullBulk]);
    assert!((0..24).all(|_| client.reply() == Reply::bulk(&value)));
    assert!((0..9).all(|_| client.reply() == two));
    assert_eq!(client.reply(), Reply::Int(1));
    assert!((0..40_000).all(|_| client.reply() == Reply::bulk(&text)));
    assert_eq!((long.reply(), last.reply()), (Reply::bulk(&longer), Reply::Int(1)));
    assert_eq!(proxy.metric("lockgate_closes_total", ""), 0.0);
}

#[test]
fn one_that_leaves_too_much_unread_gets_what_was_held_and_is_told_why_it_is_closed() {
    let (lock, hello) = (&["LOCK", "k", "t", "PX", "60000"][..], &["HELLO", "3"][..]);
    let with = |share| Proxy::with().top(&format!("share: {share}\nbarrier_buffer: 2mb")).start();
    thread::scope(|scope| {
        scope.spawn(|| is_told_why(&with("no"), &[lock, &["UNLOCK", "k", "t"], hello]));
        // A connection of the client's own waits for earlier replies too.
        let long = ["SET", "w", &spelled("LONG")];
        is_told_why(&with("yes"), &[lock, hello, &["MULTI"], &long]);
    });
}

fn is_told_why(proxy: &Proxy, commands: &[&[&str]]) {
    proxy.client().cmd(&["SET", "big", &"b".repeat(100_000)]);
    for command in commands {
        let mut client = narrow(proxy.port());
        let mut bytes = encode(&["GET", "big"]).repeat(300);
        bytes.extend(encode(command));
        bytes.extend(encode(&["SET", "w", &"w".repeat(MB)]).repeat(COUNT));
        client.send(&bytes);
        let mut whole = 0;
        let told = loop {
            match client.reply() {
                Reply::Bulk(value) => whole += usize::from(value.len() == 100_000),
                other => break other,
            }
        };
        assert!(told.error().starts_with("ERR closed: this client has taken none"), "{told:?}");
        assert!((20..300).contains(&whole), "{whole}");
        assert_eq!(client.rest(), (Vec::new(), true));
        assert_eq!(proxy.client().cmd(&["EXISTS", "w"]), Reply::Int(0));
    }
    // A close is counted once the connection has ended.
    let all = commands.len();
    eventually("each is counted", || {
        proxy.metric("lockgate_closes_total", "barrier_buffer") == all as f64
    });
    assert_eq!(proxy.log().matches("it has taken none of its replies for 5s").count(), all);
    assert_eq!(proxy.nodes_with("lock:k"), 0);
}

#[test]
fn one_that_never_reads_harms_only_itself() {
    let mut proxy = Proxy::with().top("barrier_buffer: 8mb").start();
    proxy.client().cmd(&["SET", "big", &"b".repeat(MB)]);
    let before = proxy.memory("VmRSS");
    let silent: Vec<Client> = (0..8)
        .map(|number| {
            let mut client = narrow(proxy.port());
            client.cmd(&["LOCK", &format!("session:{number}")]).grant();
            let mut bytes = encode(&["GET", "big"]).repeat(16);
            bytes.extend(encode(&["UNLOCK", "k", "t"]));
            client.send(&bytes);
            client
        })
        .collect();
    let mut other = proxy.client();
    eventually("all are closed", || {
        assert_eq!(other.cmd(&["PING"]), Reply::simple("PONG"));
        proxy.metric("lockgate_closes_total", "barrier_buffer") == 8.0
    });
    // Twice what one client may hold, one MB for each, and what is kept for other reasons.
    let grown = proxy.memory("VmHWM") - before;
    assert!(grown < 40 * MB, "{grown}");
    assert_eq!(proxy.metric("lockgate_session_locks", ""), 0.0);
    drop(silent);
    assert!(proxy.is_alive());
}

#[test]
fn one_that_still_writes_as_its_data_node_closes_is_not_left_waiting() {
    let proxy = Proxy::start();
    let mut data = proxy.data_client();
    data.cmd(&["SET", "big", &"b".repeat(MB)]);
    let received = || proxy.metric("lockgate_received_bytes_total", "client");
    for command in [&["PING"][..], &["HELLO", "3"]] {
        let mut client = narrow(proxy.port());
        let Reply::Int(id) = client.cmd(&["CLIENT", "ID"]) else { panic!("no id") };
        let mut writer = client.socket().try_clone().unwrap();
        let mut bytes = encode(&["GET", "big"]).repeat(COUNT);
        bytes.extend(encode(command));
        bytes.extend(encode(&["SET", "w", &"w".repeat(MB)]).repeat(2));
        writer.write_all(&bytes).unwrap();
        eventually("the first write is there", || data.cmd(&["EXISTS", "w"]) == Reply::Int(1));
        assert_eq!(data.cmd(&["CLIENT", "KILL", "ID", &id.to_string()]), Reply::Int(1));
        // Bytes written now go nowhere, and the proxy takes all of them before the client reads anything.
        let (taken, more) = (received(), encode(&["SET", "w", &"w".repeat(MB)]));
        // If the kernel has room for all replies that have come, the proxy closes before it has read everything.
        let is_taken = (0..COUNT).all(|_| writer.write_all(&more).is_ok());
        if is_taken {
            eventually("it is taken", || received() - taken >= (COUNT * more.len()) as f64);
        }
        let mut rest = Vec::new();
        let read = std::io::Read::read_to_end(client.reader(), &mut rest);
        assert!(
            (read.is_ok() || !is_taken) && rest.len() > MB,
            "{command:?}: {read:?}, {} bytes",
            rest.len()
        );
        data.cmd(&["DEL", "w"]);
    }
}
