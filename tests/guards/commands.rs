//! With guards, every write command of Redis has the same replies as without.
//!
//! `guarded.txt` has the cases. Each runs four times in RESP2 and in RESP3, on keys prepared alike, at the proxy and
//! at a plain Redis: under the locks, without them, and in a transaction. Replies are compared byte for byte, and
//! then the data.

use std::{
    collections::BTreeSet,
    io::{BufRead, Read},
};

use crate::support::{Client, Proxy, Reply};
use lockgate::{resp::inline, tools::redis_server::RedisServer};

const CASES: &str = include_str!("guarded.txt");
/// Writes that name no key, or none that could be guarded. They pass.
const FREE: [&str; 4] = [
    "FUNCTION|DELETE nolib",
    "FUNCTION|LOAD REPLACE {lib}",
    "FUNCTION|RESTORE garbage",
    "FUNCTION|FLUSH ASYNC",
];
/// Writes of whole databases. They are refused (`guards.flush`).
const REFUSED: [&str; 3] = ["FLUSHALL", "FLUSHDB", "SWAPDB"];
const GUARDS: &str = "guards:\n  - keys: 'g:*'\n    lock: 'l:{1}'";
const LOCKS: [&[u8]; 6] = [b"l:a", b"l:b", b"l:c", b"l:d", b"l:missing", b"l:\x00\xff \n*"];
const LIBRARY: &str = "#!lua name=lib\nredis.register_function('put', function(keys, args) \
                       return redis.call('SET', keys[#keys], args[1]) end)";
const SCRIPT: &str = "return redis.call('SET', KEYS[1], ARGV[1])";

type Words = Vec<Vec<u8>>;

fn words(line: &str) -> Words {
    inline::split(line.as_bytes()).expect("quotes")
}

fn encode(words: &[Vec<u8>]) -> Vec<u8> {
    let mut out = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        out.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        out.extend_from_slice(word);
        out.extend_from_slice(b"\r\n");
    }
    out
}

/// Reads the bytes of one reply; no push comes between.
fn read_raw(client: &mut Client, out: &mut Vec<u8>) {
    let begin = out.len();
    client.reader().read_until(b'\n', out).expect("reply");
    let line = String::from_utf8_lossy(&out[begin..]).trim_end().to_owned();
    assert!(!line.is_empty(), "the connection has ended");
    let count = || line[1..].parse::<i64>().expect("length");
    match line.as_bytes()[0] {
        b'$' | b'=' if count() >= 0 => {
            let mut value = vec![0; count() as usize + 2];
            client.reader().read_exact(&mut value).expect("value");
            out.extend_from_slice(&value);
        }
        b'*' | b'~' => (0..count()).for_each(|_| read_raw(client, out)),
        b'%' => (0..2 * count()).for_each(|_| read_raw(client, out)),
        _ => {}
    }
}

fn raw(client: &mut Client, words: &[Vec<u8>]) -> Vec<u8> {
    client.send(&encode(words));
    let mut reply = Vec::new();
    read_raw(client, &mut reply);
    reply
}

fn shown(bytes: &[u8]) -> String {
    let cut = &bytes[..bytes.len().min(300)];
    cut.escape_ascii().to_string()
}

/// One line of the table.
struct Case {
    line: &'static str,
    preparation: Vec<Words>,
    command: Words,
}

fn cases() -> Vec<Case> {
    let is_case = |line: &&str| !line.is_empty() && !line.starts_with('#');
    let case = |line: &'static str| {
        let (before, command) = line.split_once("=> ").expect("an arrow");
        let preparation = before.split(" ; ").map(words).filter(|words| !words.is_empty());
        Case { line, preparation: preparation.collect(), command: words(command) }
    };
    CASES.lines().filter(is_case).map(case).collect()
}

/// Two servers side by side, and a third for MIGRATE.
struct Bench {
    proxy: Proxy,
    plain: RedisServer,
    third: RedisServer,
    /// A connection straight to the proxy's data node.
    data: Client,
    /// A connection straight to the plain server, to prepare keys and to look at them.
    other: Client,
    dump: Vec<u8>,
    sha: Vec<u8>,
}

impl Bench {
    fn start() -> Bench {
        let debug = ["--enable-debug-command", "yes"];
        let mut proxy = Proxy::with().top(GUARDS).data_arguments(&debug).start();
        let plain = RedisServer::start(&debug).expect("plain server");
        let third = RedisServer::start(&[]).expect("third server");
        let mut data = Client::connect(proxy.data().port());
        let mut other = Client::connect(plain.port());
        other.cmd(&["SET", "d", "dumped"]);
        let Reply::Bulk(dump) = other.cmd(&["DUMP", "d"]) else { panic!("no dump") };
        let Reply::Bulk(sha) = other.cmd(&["SCRIPT", "LOAD", SCRIPT]) else { panic!("no digest") };
        data.cmd(&["SCRIPT", "LOAD", SCRIPT]);
        Bench { proxy, plain, third, data, other, dump, sha }
    }

    /// Returns the words, with the values that are known only now.
    fn filled(&self, words: &[Vec<u8>]) -> Words {
        let fill = |word: &Vec<u8>| match word.as_slice() {
            b"{port}" => self.third.port().to_string().into_bytes(),
            b"{dump}" => self.dump.clone(),
            b"{sha}" => self.sha.clone(),
            b"{lib}" => LIBRARY.into(),
            _ => word.clone(),
        };
        words.iter().map(fill).collect()
    }

    /// Empties both servers, except for fences, and prepares the keys of a case.
    fn prepare(&mut self, case: &Case) {
        let third = &mut Client::connect(self.third.port());
        third.cmd(&["FLUSHALL"]);
        for client in [&mut self.data, &mut self.other] {
            for database in ["1", "0"] {
                client.cmd(&["SELECT", database]);
                let Reply::Array(keys) = client.cmd(&["KEYS", "*"]) else { panic!("no keys") };
                for key in keys {
                    let Reply::Bulk(key) = key else { panic!("no key") };
                    if !key.starts_with(b"lockgate:guard:") {
                        raw(client, &[b"DEL".to_vec(), key]);
                    }
                }
            }
        }
        for words in &case.preparation {
            let words = self.filled(words);
            for client in [&mut self.data, &mut self.other] {
                let reply = raw(client, &words);
                assert_ne!(reply[0], b'-', "{}: {}", case.line, shown(&reply));
            }
        }
    }

    /// Checks that both servers have the same data.
    fn compare_data(&mut self, case: &Case) {
        let (data, other) = (state(&mut self.data), state(&mut self.other));
        assert_eq!(data, other, "{}", case.line);
    }
}

/// Returns every key of both databases except fences, with a digest of its value.
fn state(client: &mut Client) -> Vec<(String, Vec<u8>, String)> {
    let mut all = Vec::new();
    for database in ["1", "0"] {
        client.cmd(&["SELECT", database]);
        let Reply::Array(keys) = client.cmd(&["KEYS", "*"]) else { panic!("no keys") };
        for key in keys {
            let Reply::Bulk(key) = key else { panic!("no key") };
            if key.starts_with(b"lockgate:guard:") {
                continue;
            }
            let ask = |client: &mut Client, words: &[&str]| {
                let mut words: Words = words.iter().map(|word| word.as_bytes().to_vec()).collect();
                words.push(key.clone());
                raw(client, &words)
            };
            let mut seen = ask(client, &["TYPE"]);
            let is_stream = seen == b"+stream\r\n";
            seen.extend(ask(client, &["DEBUG", "DIGEST-VALUE"]));
            seen.extend(ask(client, &["OBJECT", "ENCODING"]));
            seen.push(u8::from(ask(client, &["PTTL"]).len() > 5));
            if is_stream {
                seen.extend(ask(client, &["XINFO", "GROUPS"]));
            }
            all.push((database.to_owned(), key, shown(&seen)));
        }
    }
    all.sort();
    all
}

/// Opens a connection that speaks this protocol, with or without the locks.
fn connect(port: u16, protocol: &str, locks: bool) -> Client {
    let mut client = Client::connect(port);
    client.cmd(&["HELLO", protocol]);
    for lock in LOCKS.iter().filter(|_| locks) {
        // The client that held the lock before may still be on its way out.
        let wait = [b"LOCK".to_vec(), lock.to_vec(), b"WAIT".to_vec(), b"10000".to_vec()];
        let granted = raw(&mut client, &wait);
        assert!(granted.starts_with(b"*3"), "{}", shown(&granted));
    }
    client
}

fn compare_all(protocol: &str) {
    let mut bench = Bench::start();
    let mut holder = connect(bench.proxy.port(), protocol, true);
    let mut stranger = connect(bench.proxy.port(), protocol, false);
    let mut plain = connect(bench.plain.port(), protocol, false);
    for case in cases() {
        let command = bench.filled(&case.command);
        bench.prepare(&case);
        // Without the locks nothing changes, in a transaction or out of it.
        let before = bench.data.cmd(&["DEBUG", "DIGEST"]);
        let refused = raw(&mut stranger, &command);
        assert!(refused.starts_with(b"-NOTHELD '"), "{}: {}", case.line, shown(&refused));
        raw(&mut stranger, &[b"MULTI".to_vec()]);
        let refused = raw(&mut stranger, &command);
        assert!(refused.starts_with(b"-NOTHELD '"), "{}: {}", case.line, shown(&refused));
        let dropped = raw(&mut stranger, &[b"EXEC".to_vec()]);
        assert!(dropped.starts_with(b"-EXECABORT"), "{}: {}", case.line, shown(&dropped));
        assert_eq!(bench.data.cmd(&["DEBUG", "DIGEST"]), before, "{}", case.line);
        // With them, all is as without guards.
        let (guarded, expected) = (raw(&mut holder, &command), raw(&mut plain, &command));
        assert!(
            guarded == expected,
            "{}: {} is not {}",
            case.line,
            shown(&guarded),
            shown(&expected)
        );
        bench.compare_data(&case);
        bench.prepare(&case);
        for words in [&[b"MULTI".to_vec()][..], &command, &[b"EXEC".to_vec()]] {
            let (guarded, expected) = (raw(&mut holder, words), raw(&mut plain, words));
            assert!(
                guarded == expected,
                "{} in MULTI: {} is not {}",
                case.line,
                shown(&guarded),
                shown(&expected)
            );
        }
        bench.compare_data(&case);
    }
    // Redis itself answers a command that lacks words.
    for name in write_commands(&mut bench.other) {
        let bare: Words = name.split('|').map(|word| word.as_bytes().to_vec()).collect();
        if REFUSED.contains(&name.as_str()) || name == "FUNCTION|FLUSH" {
            continue;
        }
        for client in [&mut holder, &mut stranger] {
            let (guarded, expected) = (raw(client, &bare), raw(&mut plain, &bare));
            assert_eq!(shown(&guarded), shown(&expected), "{name}");
            assert!(guarded.starts_with(b"-ERR wrong number of arguments"), "{name}");
        }
    }
    for name in REFUSED {
        let bare = [name.as_bytes().to_vec()];
        assert!(raw(&mut holder, &bare).starts_with(b"-NOTHELD "), "{name}");
    }
    for line in FREE {
        let command = bench.filled(&words(&line.replacen('|', " ", 1)));
        let (guarded, expected) = (raw(&mut stranger, &command), raw(&mut plain, &command));
        assert_eq!(shown(&guarded), shown(&expected), "{line}");
    }
}

#[test]
fn every_write_is_answered_as_without_guards_in_resp2() {
    compare_all("2");
}

#[test]
#[ignore = "takes long: make long"]
fn every_write_is_answered_as_without_guards_in_resp3() {
    compare_all("3");
}

/// Returns all commands that a Redis lists as writes, subcommands as `CONTAINER|SUB`.
fn write_commands(client: &mut Client) -> BTreeSet<String> {
    fn text(reply: &Reply) -> &str {
        match reply {
            Reply::Simple(text) => text,
            Reply::Bulk(bytes) => std::str::from_utf8(bytes).expect("a name"),
            other => panic!("not a text: {other:?}"),
        }
    }
    fn walk(entries: &[Reply], found: &mut BTreeSet<String>) {
        for entry in entries {
            let Reply::Array(fields) = entry else { panic!("not an entry: {entry:?}") };
            let (Reply::Array(flags), Reply::Array(subcommands)) = (&fields[2], &fields[9]) else {
                panic!("not an entry: {fields:?}")
            };
            let has = |flag: &str| flags.iter().any(|known| text(known) == flag);
            let scripts = has("movablekeys") && has("noscript") && !has("readonly");
            if has("write") || scripts {
                found.insert(text(&fields[0]).to_uppercase());
            }
            walk(subcommands, found);
        }
    }
    let Reply::Array(entries) = client.cmd(&["COMMAND"]) else { panic!("no commands") };
    let mut found = BTreeSet::new();
    walk(&entries, &mut found);
    found
}

#[test]
fn every_write_command_of_the_server_has_a_case() {
    let server = RedisServer::start(&[]).expect("server");
    let known = write_commands(&mut Client::connect(server.port()));
    assert!(known.len() > 100, "{known:?}");
    let name_of = |words: &Words| {
        let upper = |at: usize| String::from_utf8_lossy(&words[at]).to_uppercase();
        if upper(0) == "XGROUP" { format!("{}|{}", upper(0), upper(1)) } else { upper(0) }
    };
    let mut covered: BTreeSet<String> = cases().iter().map(|case| name_of(&case.command)).collect();
    covered.extend(REFUSED.map(str::to_owned));
    covered.extend(FREE.map(|line| line.split(' ').next().unwrap_or_default().to_owned()));
    let missing: Vec<&String> = known.difference(&covered).collect();
    assert!(missing.is_empty(), "write commands without a case: {missing:?}");
    let unknown: Vec<&String> = covered.difference(&known).collect();
    assert!(unknown.is_empty(), "cases of what is no write command: {unknown:?}");
}

#[test]
fn each_of_several_locks_is_needed() {
    let bench = Bench::start();
    let mut client = connect(bench.proxy.port(), "2", true);
    for (line, key) in [
        ("MSET g:a 1 g:z 2", "g:z"),
        ("MSET free 1 g:z 2 g:a 3", "g:z"),
        ("DEL g:a g:b g:z", "g:z"),
        ("RENAME g:a g:z", "g:z"),
        ("RENAME g:z g:a", "g:z"),
        ("RENAME free g:z", "g:z"),
        ("COPY g:a g:z", "g:z"),
        ("LMOVE g:a g:z LEFT LEFT", "g:z"),
        ("SMOVE free g:z x", "g:z"),
        ("BLMPOP 0 3 g:a free g:z LEFT", "g:z"),
        ("ZUNIONSTORE g:z 2 g:a g:b", "g:z"),
        ("SORT g:a BY nosort STORE g:z", "g:z"),
        ("EVAL 'return 1' 2 g:a g:z g:y", "g:z"),
        ("XREADGROUP GROUP STREAMS c STREAMS g:a g:z > >", "g:z"),
        ("MIGRATE 127.0.0.1 1 '' 0 1 KEYS g:a g:z", "g:z"),
        ("BITOP AND g:z g:a g:b", "g:z"),
        ("mSeT g:a 1 \"g:\\x7a\" 1", "g:z"),
    ] {
        // Each command is sent as an array and as a line.
        for bytes in [encode(&words(line)), format!("{line}\r\n").into_bytes()] {
            client.send(&bytes);
            let expected = format!(
                "NOTHELD '{key}' may only be written under the lock 'l:z', which this connection \
                 does not hold"
            );
            assert_eq!(client.reply().error(), expected, "{line}");
        }
    }
    // A key that is only read needs no lock.
    for line in ["COPY g:z g:a", "SUNIONSTORE g:a g:z", "BITOP OR g:a g:z", "SORT g:z STORE g:a"] {
        client.send(&encode(&words(line)));
        assert!(matches!(client.reply(), Reply::Int(_)), "{line}");
    }
}

#[test]
fn blocking_commands_answer_at_once_instead_of_waiting() {
    let bench = Bench::start();
    for (protocol, array, bulk) in [("2", "*-1\r\n", "$-1\r\n"), ("3", "_\r\n", "_\r\n")] {
        let mut client = connect(bench.proxy.port(), protocol, true);
        for (line, expected) in [
            ("BLPOP g:a 0", array),
            ("BRPOP g:a g:b 0", array),
            // After a time-out Redis answers these two with a null array, unlike here.
            ("BLMOVE g:a g:b LEFT LEFT 0", bulk),
            ("BRPOPLPUSH g:a g:b 0", bulk),
            ("BLMPOP 0 1 g:a LEFT", array),
            ("BZPOPMIN g:a 0", array),
            ("BZPOPMAX g:a 0", array),
            ("BZMPOP 0 1 g:a MIN", array),
        ] {
            let reply = raw(&mut client, &words(line));
            assert_eq!(shown(&reply), shown(expected.as_bytes()), "{line}");
        }
        let mut stranger = connect(bench.proxy.port(), protocol, false);
        assert!(raw(&mut stranger, &words("BLPOP free g:a 0")).starts_with(b"-NOTHELD 'g:a'"));
    }
}

#[test]
fn replies_that_are_not_twice_the_same_have_their_shape() {
    let bench = Bench::start();
    for protocol in ["2", "3"] {
        let mut client = connect(bench.proxy.port(), protocol, true);
        raw(&mut client, &words("DEL g:a g:b g:c"));
        let id = raw(&mut client, &words("XADD g:a * f v"));
        assert!(id.starts_with(b"$15\r\n") && id.ends_with(b"-0\r\n"), "{}", shown(&id));
        raw(&mut client, &words("SADD g:b x y z"));
        assert!(raw(&mut client, &words("SPOP g:b")).starts_with(b"$1\r\n"));
        let kind = if protocol == "2" { b"*1\r\n" } else { b"~1\r\n" };
        assert!(raw(&mut client, &words("SPOP g:b 1")).starts_with(kind));
        assert_eq!(client.cmd(&["SCARD", "g:b"]), Reply::Int(1));
    }
}

#[test]
fn messages_to_the_writer_itself_stand_where_they_would() {
    let mut bench = Bench::start();
    for client in [&mut bench.data, &mut bench.other] {
        client.cmd(&["CONFIG", "SET", "notify-keyspace-events", "KEA"]);
    }
    let mut holder = connect(bench.proxy.port(), "3", true);
    let mut plain = connect(bench.plain.port(), "3", false);
    for line in [
        "SUBSCRIBE __keyspace@0__:g:a channel",
        "SET g:a v",
        "EVAL \"redis.call('PUBLISH', 'channel', 'x') return {1, {2}}\" 1 g:a",
        "UNSUBSCRIBE channel __keyspace@0__:g:a",
        "CLIENT TRACKING ON",
        "GET g:a",
        "SET g:a w",
        "PING",
    ] {
        let mut both = Vec::new();
        for client in [&mut holder, &mut plain] {
            client.send(&encode(&words(line)));
            // The echo marks the end: everything before it answers the command.
            client.send(&encode(&words("PING end")));
            let mut all = Vec::new();
            while !all.ends_with(b"$3\r\nend\r\n") {
                client.reader().read_until(b'\n', &mut all).expect("reply");
            }
            both.push(shown(&all));
        }
        assert_eq!(both[0], both[1], "{line}");
    }
}

#[test]
fn a_transaction_in_another_database_is_not_dropped() {
    let bench = Bench::start();
    let mut client = connect(bench.proxy.port(), "2", true);
    client.cmd(&["SELECT", "1"]);
    let replies = client.pipe(&[&["MULTI"], &["SET", "g:a", "v"], &["EXEC"]]);
    assert_eq!(replies[2], Reply::Array(vec![Reply::ok()]));
    // A client that watches a key itself may write there too.
    client.cmd(&["SELECT", "2"]);
    let words: [&[&str]; 4] = [&["WATCH", "free"], &["MULTI"], &["SET", "g:a", "v"], &["EXEC"]];
    assert_eq!(client.pipe(&words)[3], Reply::Array(vec![Reply::ok()]));
}

#[test]
fn who_listens_is_refused_in_the_words_of_redis() {
    let bench = Bench::start();
    let mut holder = connect(bench.proxy.port(), "2", true);
    let mut plain = connect(bench.plain.port(), "2", false);
    for (state, reset) in [("SUBSCRIBE c", "UNSUBSCRIBE c"), ("MONITOR", "RESET")] {
        for line in [state, "SET g:a v", "sOrT s STORE g:a", "BLPOP g:a 0", reset] {
            for as_line in [false, true] {
                if as_line && line != "SET g:a v" {
                    continue;
                }
                let both = [&mut holder, &mut plain].map(|client| {
                    let line_bytes = format!("{line}\r\n").into_bytes();
                    client.send(&if as_line { line_bytes } else { encode(&words(line)) });
                    // The lines of MONITOR about other commands begin with their time.
                    loop {
                        let mut reply = Vec::new();
                        read_raw(client, &mut reply);
                        if !reply.starts_with(b"+1") {
                            return shown(&reply);
                        }
                    }
                });
                assert_eq!(both[0], both[1], "{state}: {line}");
            }
        }
        if reset == "RESET" {
            // RESET has released the session lock.
            let write = holder.cmd(&["SET", "g:a", "v"]);
            assert!(write.error().starts_with("NOTHELD"), "{write:?}");
            holder.cmd(&["LOCK", "l:a", "WAIT", "10000"]).grant();
        }
        assert_eq!(holder.cmd(&["SET", "g:a", "v"]), Reply::ok(), "{state}");
    }
}
