//! For any bytes of a client, in any pieces: without locks it changes no guarded key, and with all locks it is
//! answered as by Redis itself.
//!
//! The commands come from the table of `commands.rs` and from others about the state of a connection; bytes that are
//! no command come between. A failure names its seed; LOCKGATE_SEED runs that one alone.

use std::{
    io::{Read, Write},
    net::{Shutdown, TcpStream},
    thread,
};

use crate::support::{Client, LIMIT, Proxy, Reply, rounds};
use lockgate::{resp::inline, tools::redis_server::RedisServer};
use rand::{RngExt, SeedableRng, rngs::StdRng};

const CASES: &str = include_str!("guarded.txt");
const GUARDS: &str = "guards:\n  - keys: 'g:*'\n    lock: 'l:{1}'";

/// Commands about keys without guards, or without keys.
const HARMLESS: &[&str] = &[
    "PING",
    "GET g:a",
    "TYPE g:a",
    "SET free v",
    "MSET free 1 s2 2",
    "GET free",
    "INCR counter",
    "NOSUCH g:a",
    "GET",
    "LRANGE g:a 0 -1",
    "ECHO g:a",
    "EVAL \"return redis.call('GET', KEYS[1])\" 1 free",
    "SORT counters",
    "STRLEN g:b",
];
/// Commands that begin and end a transaction.
const TRANSACTION: &[&str] = &["MULTI", "EXEC", "MULTI", "EXEC", "DISCARD", "EXEC x"];
/// Commands that may select another database.
const DATABASES: &[&str] = &["SELECT 1", "SELECT 0", "SELECT 2", "SELECT x", "SELECT 99"];
/// Commands that change a connection's other state.
const STATE: &[&str] = &[
    "WATCH g:a",
    "UNWATCH",
    "HELLO 3",
    "HELLO 2",
    "HELLO 9",
    "RESET",
    "SELECT 1",
    "SELECT 0",
    "SELECT x",
    "CLIENT REPLY OFF",
    "CLIENT REPLY SKIP",
    "CLIENT REPLY ON",
    "CLIENT TRACKING ON",
    "CLIENT CACHING YES",
    "SUBSCRIBE c d",
    "UNSUBSCRIBE",
    "PSUBSCRIBE c*",
    "PUNSUBSCRIBE",
    "AUTH default x",
    "MONITOR",
    "FLUSHALL",
    "FLUSHDB",
    "SWAPDB 0 1",
    "DEBUG POPULATE 5 g",
    "LOCK l:other",
    "UNLOCK l:other",
];
/// Bytes that are no command, or only half of one.
const NOISE: &[&[u8]] = &[
    b"\r\n",
    b"*0\r\n",
    b"*-1\r\n",
    b"   \r\n",
    b"*1x\r\n",
    b"*2\r\n$3\r\nSET\r\n",
    b"SET g:a \"x\r\n",
    b"*3\r\n$3\r\nSET\r\n$3\r\ng:a\r\n$-5\r\n",
];

fn seeds() -> Vec<u64> {
    match std::env::var("LOCKGATE_SEED") {
        Ok(seed) => vec![seed.parse().expect("LOCKGATE_SEED is a number")],
        Err(_) => (1..=rounds(1) as u64).collect(),
    }
}

/// Returns the table's commands and their preparations, without those that need values filled in.
fn table(with_preparations: bool, is_wanted: impl Fn(&str) -> bool) -> Vec<&'static str> {
    let mut all = Vec::new();
    for line in CASES.lines().filter(|line| !line.starts_with('#')) {
        let Some((before, command)) = line.split_once("=> ") else { continue };
        let before = before.trim().split(" ; ").filter(|_| with_preparations);
        all.extend(before.chain([command]));
    }
    all.retain(|line| !line.is_empty() && !line.contains('{') && is_wanted(line));
    all
}

/// Appends a command as an array or, now and then, as a careless array or as a line.
fn encode(rng: &mut StdRng, line: &str, out: &mut Vec<u8>) {
    if rng.random_ratio(1, 8) {
        out.extend_from_slice(line.as_bytes());
        out.extend_from_slice(if rng.random() { b"\r\n" } else { b"\n" });
        return;
    }
    // Redis ignores the byte behind `\r`, and the two behind a word.
    let careless = rng.random_ratio(1, 8);
    let any = |usual: u8, rng: &mut StdRng| {
        if careless { one(rng, b"\n\r$*0\0x") } else { usual }
    };
    let words = inline::split(line.as_bytes()).expect("quotes");
    out.extend_from_slice(format!("*{}\r", words.len()).as_bytes());
    out.push(any(b'\n', rng));
    for (at, word) in words.iter().enumerate() {
        let word = match rng.random_range(0..4) {
            0 if at == 0 => word.to_ascii_lowercase(),
            _ => word.clone(),
        };
        out.extend_from_slice(format!("${}\r", word.len()).as_bytes());
        out.push(any(b'\n', rng));
        out.extend_from_slice(&word);
        out.extend_from_slice(&[any(b'\r', rng), any(b'\n', rng)]);
    }
}

fn one<Item: Copy>(rng: &mut StdRng, items: &[Item]) -> Item {
    items[rng.random_range(0..items.len())]
}

/// Sends all bytes in pieces of random length, as long as the other side takes them.
fn send_in_pieces(rng: &mut StdRng, mut stream: &TcpStream, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        let most = one(rng, &[1, 7, 100, 1000, 100_000]);
        let (piece, rest) = bytes.split_at(rng.random_range(1..=most).min(bytes.len()));
        if stream.write_all(piece).is_err() {
            return;
        }
        bytes = rest;
    }
}

/// Returns digests of all guarded keys of both databases.
fn guarded_keys(client: &mut Client) -> Vec<(String, Reply, Reply)> {
    let mut all = Vec::new();
    for database in ["1", "0"] {
        client.cmd(&["SELECT", database]);
        let Reply::Array(keys) = client.cmd(&["KEYS", "g:*"]) else { panic!("no keys") };
        for key in keys {
            let Reply::Bulk(key) = key else { panic!("no key") };
            let key = String::from_utf8(key).expect("text");
            let digest = client.cmd(&["DEBUG", "DIGEST-VALUE", &key]);
            let groups = client.cmd(&["XINFO", "GROUPS", &key]);
            all.push((format!("{database} {key}"), digest, groups));
        }
    }
    all.sort_by(|one, other| one.0.cmp(&other.0));
    all
}

/// Writes of the short way, with every kind of reply, and others that may stand between them.
const PIPELINED: &[&str] = &[
    "SET g:a v",
    "SET g:b 1 NX",
    "SET g:c v GET",
    "SET g:a v XX GET",
    "SETNX g:n 0",
    "INCRBY g:n 9007199254740993",
    "DECRBY g:n 9007199254740993",
    "INCR g:n",
    "DECR g:n",
    "HINCRBY g:h f 9007199254740993",
    "HINCRBY g:h f -9007199254740990",
    "HINCRBYFLOAT g:h d 0.25",
    "INCRBYFLOAT g:d 0.1",
    "HSET g:h a 1 b 2",
    "HDEL g:h a",
    "LPUSH g:l a b",
    "RPUSH g:l c",
    "LSET g:l 0 x",
    "LTRIM g:l 0 20",
    "LREM g:l 1 a",
    "SADD g:s a b",
    "SMOVE g:s g:t a",
    "SREM g:s a",
    "DEL g:a g:b",
    "DEL g:l",
    "GETDEL g:b",
    "GETSET g:a w",
    "GETEX g:a",
    "APPEND g:a xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
    "MSET g:a 1 g:b 2",
    "MSETNX g:c 1 g:d 2",
    "RENAME g:a g:b",
    "COPY g:a g:c REPLACE",
    "EXPIRE g:a 1000",
    "PERSIST g:a",
    "SETRANGE g:a 5000 x",
    "PFADD g:p a",
];
/// Commands that mostly fail.
const FAILING: &[&str] = &[
    "LPUSH g:a x",
    "INCR g:l",
    "SET g:a v v",
    "HSET g:h a",
    "SETEX g:a 0 v",
    "GETDEL g:l",
    "INCRBY g:n 9223372036854775807",
    "LSET g:l 99 x",
    "RENAME g:none g:a",
];
/// The locks under which all keys here are written.
const LOCKED: &str = "abcdhlnpst";

#[test]
fn without_locks_no_guarded_key_ever_changes() {
    let debug = ["--enable-debug-command", "yes"];
    let mut proxy = Proxy::with().top(GUARDS).data_arguments(&debug).start();
    let mut data = Client::connect(proxy.data().port());
    for database in ["1", "0"] {
        data.cmd(&["SELECT", database]);
        data.cmd(&["RPUSH", "g:a", "1", "2", "3"]);
        data.cmd(&["SET", "g:b", "v"]);
        data.cmd(&["XADD", "g:missing", "1-1", "f", "v"]);
        data.cmd(&["XGROUP", "CREATE", "g:missing", "grp", "0"]);
        data.cmd(&["RPUSH", "s", "2", "1"]);
    }
    let before = guarded_keys(&mut data);
    assert_eq!(before.len(), 6);
    let writes = table(false, |_| true);
    for seed in seeds() {
        let rng = &mut StdRng::seed_from_u64(seed);
        for session in 0..60 {
            let mut bytes = Vec::new();
            let most = if session % 20 == 0 { 1000 } else { 60 };
            for _ in 0..rng.random_range(1..most) {
                match rng.random_range(0..100) {
                    0..60 => {
                        let line = one(rng, &writes);
                        encode(rng, line, &mut bytes);
                    }
                    60..75 => {
                        let line = one(rng, HARMLESS);
                        encode(rng, line, &mut bytes);
                    }
                    75..90 => {
                        let line = one(rng, TRANSACTION);
                        encode(rng, line, &mut bytes);
                    }
                    90..98 => {
                        let line = one(rng, STATE);
                        encode(rng, line, &mut bytes);
                    }
                    _ => bytes.extend_from_slice(one(rng, NOISE)),
                }
            }
            let mut client = proxy.client();
            let reader = client.socket().try_clone().expect("socket");
            let drain = thread::spawn(move || {
                let mut reader = reader;
                let _ = reader.read_to_end(&mut Vec::new());
            });
            send_in_pieces(rng, client.socket(), &bytes);
            let _ = client.socket().shutdown(Shutdown::Write);
            drain.join().expect("reader");
            let _ = client.reader();
            let sent = bytes.escape_ascii();
            assert_eq!(guarded_keys(&mut data), before, "seed {seed}, {session}: {sent}");
        }
    }
}

#[test]
fn with_all_locks_replies_are_those_of_redis() {
    // Commands that depend on chance, on time, on another server or on blocked clients are left out.
    let differs = ["SPOP", "nosort", "MIGRATE", "BLOCK", "BL", "BR", "BZ", "for i=1", "SORT s"];
    let writes = table(true, |line| {
        let name = line.split(' ').next().unwrap_or_default();
        !differs.iter().any(|other| name.starts_with(other) || line.contains(&format!(" {other}")))
            && !line.contains("for i=1")
            && !line.contains("3000000")
    });
    assert!(writes.len() > 200);
    for seed in seeds() {
        let debug = ["--enable-debug-command", "yes"];
        let mut proxy = Proxy::with().top(GUARDS).data_arguments(&debug).start();
        let plain = RedisServer::start(&debug).expect("plain server");
        let rng = &mut StdRng::seed_from_u64(seed);
        let mut bytes = Vec::new();
        let mut sent = 0;
        let protocol = one(rng, &["HELLO 2", "HELLO 3"]);
        for _ in 0..1000 {
            sent += 1;
            match rng.random_range(0..100) {
                0..65 => {
                    let line = one(rng, &writes);
                    encode(rng, line, &mut bytes);
                }
                65..80 => {
                    let line = one(rng, HARMLESS);
                    encode(rng, line, &mut bytes);
                }
                80..93 => {
                    let line = one(rng, TRANSACTION);
                    encode(rng, line, &mut bytes);
                }
                93..98 => {
                    let line = one(rng, DATABASES);
                    encode(rng, line, &mut bytes);
                }
                98 => {
                    bytes.extend_from_slice(one(rng, &NOISE[..4]));
                    sent -= 1;
                }
                _ => {
                    encode(rng, "WATCH free", &mut bytes);
                    encode(rng, "MULTI", &mut bytes);
                    sent += 1;
                }
            }
        }
        let [guarded, expected] = [proxy.port(), plain.port()].map(|port| {
            let mut client = Client::connect(port);
            client.cmd(&protocol.split(' ').collect::<Vec<_>>());
            if port == proxy.port() {
                for lock in ["l:a", "l:b", "l:c", "l:d", "l:missing"] {
                    client.cmd(&["LOCK", lock]).grant();
                }
                let odd = b"*2\r\n$4\r\nLOCK\r\n$7\r\nl:\x00\xff \n*\r\n";
                client.send(odd);
                client.reply().grant();
            }
            let writer = client.socket().try_clone().expect("socket");
            writer.set_write_timeout(Some(LIMIT)).expect("limit");
            let (all, mut pieces) = (bytes.clone(), StdRng::seed_from_u64(seed));
            let sender = thread::spawn(move || send_in_pieces(&mut pieces, &writer, &all));
            let replies: Vec<Reply> = (0..sent).map(|_| client.reply()).collect();
            sender.join().expect("sender");
            replies
        });
        for (at, (one, other)) in guarded.iter().zip(&expected).enumerate() {
            assert_eq!(one, other, "seed {seed}, reply {at} of {sent}");
        }
        let mut stores = [proxy.data().port(), plain.port()].map(Client::connect);
        for database in 0..16 {
            let [one, other] = stores.each_mut().map(|client| {
                client.cmd(&["SELECT", &database.to_string()]);
                let Reply::Array(mut keys) = client.cmd(&["KEYS", "g:*"]) else { panic!("keys") };
                keys.sort_by_key(|key| format!("{key:?}"));
                let value = |key: &Reply| match key {
                    Reply::Bulk(key) => {
                        client.cmd(&["DEBUG", "DIGEST-VALUE", &String::from_utf8_lossy(key)])
                    }
                    other => panic!("{other:?}"),
                };
                let values: Vec<Reply> = keys.iter().map(value).collect();
                (keys, values)
            });
            assert_eq!(one, other, "seed {seed}, database {database}");
        }
    }
}

#[test]
fn pipelines_of_guarded_writes_are_answered_byte_for_byte_as_by_redis() {
    for seed in seeds() {
        let debug = ["--enable-debug-command", "yes"];
        let mut proxy = Proxy::with().top(GUARDS).data_arguments(&debug).start();
        let plain = RedisServer::start(&debug).expect("plain server");
        let rng = &mut StdRng::seed_from_u64(seed);
        let (mut bytes, mut writes) = (Vec::new(), 0);
        // From no command to almost every third.
        let failing = rng.random_range(0..30);
        for _ in 0..1500 {
            let line = match rng.random_range(0..100) {
                0..3 => one(rng, HARMLESS),
                at if at < 3 + failing => one(rng, FAILING),
                _ => one(rng, PIPELINED),
            };
            writes += usize::from(!HARMLESS.contains(&line));
            encode(rng, line, &mut bytes);
        }
        bytes.extend_from_slice(b"QUIT\r\n");
        let protocol = if seed % 2 == 0 { "2" } else { "3" };
        let [guarded, expected] = [proxy.port(), plain.port()].map(|port| {
            let mut client = Client::connect(port);
            if port == proxy.port() {
                for lock in LOCKED.chars().map(|key| format!("l:{key}")).chain(["l:none".into()]) {
                    client.cmd(&["LOCK", &lock]).grant();
                }
            }
            client.cmd(&["HELLO", protocol]);
            let writer = client.socket().try_clone().expect("socket");
            writer.set_write_timeout(Some(LIMIT)).expect("limit");
            let (all, mut pieces) = (bytes.clone(), StdRng::seed_from_u64(seed));
            let sender = thread::spawn(move || send_in_pieces(&mut pieces, &writer, &all));
            let (replies, _) = client.rest();
            sender.join().expect("sender");
            replies
        });
        let differs = guarded.iter().zip(&expected).position(|(one, other)| one != other);
        let at = differs.unwrap_or(guarded.len().min(expected.len())).saturating_sub(50);
        let [shown, wanted] = [&guarded, &expected]
            .map(|all| all[at..all.len().min(at + 100)].escape_ascii().to_string());
        assert_eq!((shown, guarded.len()), (wanted, expected.len()), "seed {seed}, from {at}");
        let mut stores = [proxy.data().port(), plain.port()].map(Client::connect);
        let Reply::Bulk(stats) = stores[0].cmd(&["INFO", "commandstats"]) else {
            panic!("no INFO")
        };
        let stats = String::from_utf8_lossy(&stats).into_owned();
        let calls = stats.split("cmdstat_evalsha:calls=").nth(1).and_then(|s| s.split(',').next());
        let calls: usize = calls.and_then(|calls| calls.parse().ok()).expect("calls");
        println!("seed {seed}: {writes} writes in {calls} calls");
        assert!(calls < writes, "seed {seed}: {writes} writes in {calls} calls");
        let [one, other] = stores.each_mut().map(|client| {
            let digest = |key| client.cmd(&["DEBUG", "DIGEST-VALUE", &format!("g:{key}")]);
            LOCKED.chars().map(digest).collect::<Vec<_>>()
        });
        assert_eq!(one, other, "seed {seed}");
    }
}
