//! A test of everything that reads bytes from outside: no reader recurses deeper for longer input.
//!
//! Each reader gets each production, repeated until 16 KB are full: one inside the other, or one behind the other as
//! the links of a chain. The reader has a stack of 1 MB, half of what a thread of the proxy has; unoptimised code takes
//! several times as much. A reader that recurses for each link, or whose result is dropped recursively, overflows the
//! stack and ends the process.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{hint::black_box, thread};

use bb8_redis::redis;

use crate::{
    adopt::{glance::has_body, normal},
    cluster::{
        rewrite::Face,
        table::{FrontTable, ShownAs},
    },
    command::{act, operator},
    config::{Config, Endpoint, RedisUrl},
    fleet::record::ProxyRecord,
    glob,
    guard::catalog::{self, Table},
    lock,
    net::proxy_header,
    resp::{
        inline,
        name::{Topology, given_name},
        reply::{NextReply, ReplyScanner},
        request::{NextRequest, RequestScanner},
        split::split,
        words::{Walk, without_zero_bytes},
    },
    server,
};

/// Bytes of each input: as many as the longest client command whose body is inspected.
const BYTES: usize = 16 * 1024;
const STACK: usize = 1024 * 1024;

/// An input of any length: `begin`, `open` repeated, `middle`, `close` repeated as often, `end`.
struct Production {
    begin: &'static str,
    open: &'static str,
    middle: &'static str,
    close: &'static str,
    end: &'static str,
}

const fn nested([begin, open, middle, close, end]: [&'static str; 5]) -> Production {
    Production { begin, open, middle, close, end }
}

/// Makes a production that repeats a link, with nothing to close.
const fn chain(begin: &'static str, link: &'static str, end: &'static str) -> Production {
    nested([begin, link, "", "", end])
}

impl Production {
    fn text(&self) -> String {
        let Production { begin, open, middle, close, end } = self;
        let times = BYTES / (open.len() + close.len());
        [begin, &*open.repeat(times), middle, &*close.repeat(times), end].concat()
    }
}

/// The part of Lua that the proxy reads.
const LUA: &[Production] = &[
    chain("local x = redis", "()", " return 1"),
    chain("local x = redis", ".a", " return 1"),
    chain("local x = redis", "[1]", " return 1"),
    chain("local x = redis", ".a[1]()", " return 1"),
    chain("local x = redis.call('get', KEYS[1])", "(1)", " return 1"),
    chain("return x", "()", ""),
    chain("if redis", "()", " == 1 then return 1 end return 0"),
    chain("if (redis", ".a", ") == 1 then return 1 else return 0 end"),
    chain("x", "()", ""),
    chain("", "x() ", ""),
    chain("", "local a = 1 ", "return 1"),
    chain("local a", ", a", " = 1"),
    chain("local a = 1", ", 1", ""),
    chain("return x(1", ", 1", ")"),
    chain("", "--[[ ]] ", "return 1"),
    chain("", "--\n", "return 1"),
    chain("--[", "=", "[ ]] return 1"),
    nested(["return ", "(", "1", ")", ""]),
    nested(["return ", "x(", "1", ")", ""]),
    nested(["return ", "x.a(", "1", ").b", ""]),
    nested(["return ", "(", "x", ")()", ""]),
    nested(["", "if a == b then ", "return 1", " end ", ""]),
    nested(["if ", "(", "a == b", ")", " then return 1 end"]),
    nested(["if ", "((", "a", ") == b)", " then return 1 end"]),
];

/// Commands of clients, and values found in them.
const COMMANDS: &[Production] = &[
    chain("", "*1\r\n", ""),
    chain("*4000\r\n", "$1\r\na\r\n", ""),
    chain("*2\r\n$4\r\nEVAL\r\n", "$1\r\n", ""),
    chain("", "*1\r\n$4\r\nPING\r\n", ""),
    chain("*2\r\n$20000\r\n", "a\0", ""),
    chain("", "a ", "\r\n"),
    chain("", "\"a\" ", "\r\n"),
    chain("\"", "\\x00", "\"\r\n"),
    chain("'", "\\'", "'\r\n"),
    chain("", "\\", "\n"),
    chain("", "\r\n", ""),
    chain("", "\x0b", "\n"),
    chain("HELLO 3", " SETNAME a", "\n"),
    chain("HELLO 3", " AUTH a b", "\n"),
    chain("LOCK a", " PX 1", "\n"),
    chain("LOCKGATE LOCKS", " BY AGE", "\n"),
];

/// Replies of Redis, of lock nodes, of Sentinels and of a cluster's nodes.
const REPLIES: &[Production] = &[
    chain("", "*1\r\n", ""),
    chain("", "*2\r\n:1\r\n", ""),
    chain("", "%1\r\n+a\r\n", ""),
    chain("", "~1\r\n", ""),
    chain("", ">1\r\n", ""),
    chain("", "|1\r\n+a\r\n+b\r\n", "+c\r\n"),
    chain("", "|1\r\n", ""),
    chain("", "+OK\r\n", ""),
    chain("*4000\r\n", ":1\r\n", ""),
    chain("+", "a", "\r\n"),
    chain("-MOVED 1 ", "a:", "1\r\n"),
    chain("$16384\r\n", "id ip:1@2,host ", "\r\n"),
    chain(":", "1", "\r\n"),
    chain("*1\r\n*10\r\n+get\r\n:1\r\n", "*1\r\n", ""),
];

/// YAML and JSON.
const FILES: &[Production] = &[
    nested(["", "[", "", "]", ""]),
    nested(["", "{a: ", "1", "}", ""]),
    nested(["", "{\"a\":", "1", "}", ""]),
    nested(["", "[{\"a\":", "1", "}]", ""]),
    nested(["guards: ", "[{keys: ", "a", "}]", ""]),
    chain("", "- ", "a"),
    chain("", "? ", "a"),
    chain("", "a: ", "b"),
    chain("", "!a ", "b"),
    chain("", "&a ", "b"),
    chain("a: &a 1\nb: [", "*a, ", "*a]"),
    chain("[", "1,", "1]"),
    chain("", "---\n", "a"),
    chain("a: |\n", " b\n", ""),
    chain("", "\\", ""),
    chain("\"", "\\u0041", "\""),
    chain("redis://", "a:@", "/"),
    chain("keys: \"", "*", "\""),
    chain("lock: \"", "{1}", "\""),
];

/// Patterns, markers, records, upgrade lines, PROXY headers, query strings.
const OTHERS: &[Production] = &[
    chain("", "*a", ""),
    chain("", "[a", ""),
    chain("", "[^a-", "]"),
    chain("", "\\", ""),
    chain("", "?", ""),
    chain("3 id 1 2 prefix ", "a ", ""),
    chain("", "1 id 1 all 1 a b c a=enforce=1=a\n", ""),
    chain("1 id 1 all 1 a b c", " s=a=b", ""),
    chain("1 id 1 all 1 a b c", " a=enforce=1=a", ""),
    chain("lockgate-upgrade 2", " a", ""),
    chain("10.0.0.1:7100 id", " gone 1", ""),
    chain("PROXY TCP4 1.1.1.1 1.1.1.1", " 1", "\r\n"),
    chain("\r\n\r\n\0\r\nQUIT\n\x21\x11\x40\x00", "\x04\0\0", ""),
    chain("a=b", "&a=b", ""),
    chain("match=", "%2a", ""),
];

/// Returns YAML that is nested by its indentation.
fn indented() -> String {
    let mut text = String::new();
    for depth in 0.. {
        let line = format!("{}a:\n", " ".repeat(depth));
        if text.len() + line.len() > BYTES {
            break;
        }
        text += &line;
    }
    text
}

/// Gives a text to every reader.
fn read(text: &str) {
    let bytes = text.as_bytes();
    black_box(normal::of(bytes).is_some());
    read_as_commands(bytes);
    read_as_replies(bytes);
    read_as_file(text);
    black_box(glob::matches(bytes, &bytes[..64.min(bytes.len())]));
    black_box(glob::matches(&bytes[..64.min(bytes.len())], bytes));
    black_box(ProxyRecord::read_all(text).len());
    lock::seams::read_marker(text);
    server::seams::read_lines(text);
    let _ = black_box(proxy_header::parse(&mut bytes[..bytes.len().min(4096)].to_vec()));
}

fn read_as_commands(bytes: &[u8]) {
    let (mut scanner, mut pos) = (RequestScanner::default(), 0);
    while let NextRequest::Command { at, .. } = scanner.next(bytes, &mut pos) {
        black_box(Walk::default().finish(&bytes[at..at + 64.min(bytes.len() - at)]));
    }
    black_box(Walk::default().finish(bytes));
    black_box((split(bytes, 16, BYTES), without_zero_bytes(bytes), has_body(bytes)));
    black_box(inline::as_array(bytes));
    let words = inline::split(bytes).unwrap_or_default();
    black_box(given_name(&words));
    let words: Vec<Vec<u8>> = words.into_iter().skip(1).collect();
    black_box((act::read(&words).is_some(), operator::lockgate(&words).is_ok()));
    black_box(operator::command(&words).is_some());
}

fn read_as_replies(bytes: &[u8]) {
    let (mut scanner, mut pos) = (ReplyScanner::default(), 0);
    while let NextReply::Frame(frame) = scanner.next(bytes, &mut pos) {
        black_box(frame.first_element());
    }
    black_box(lock::read_votes(bytes));
    let mut table = FrontTable::default();
    table.add("id", &["ip"], 1, ShownAs::Front(2));
    let face = Face { table: &table, host: "a", tls: false, asked: "b" };
    for kind in [Topology::Slots, Topology::Shards, Topology::Nodes, Topology::Replicas] {
        black_box(face.topology(bytes, kind));
    }
    black_box(face.redirect(bytes));
    // What the client library reads from a data node.
    if let Ok(value) = redis::parse_redis_value(bytes) {
        black_box((
            catalog::names(&value),
            Table::read(&[b"GET".to_vec()], &value, [true; 256]).len(),
        ));
    }
}

fn read_as_file(text: &str) {
    black_box(Config::parse(text, "a.yaml", &|_| None).is_ok());
    black_box(serde_json::from_str::<serde_json::Value>(text).is_ok());
    if let Ok(RedisUrl { endpoint: Endpoint::Tcp { .. }, .. }) = text.parse::<RedisUrl>() {
        black_box(text);
    }
}

#[test]
fn no_reader_goes_deeper_for_longer_input() {
    let all = [LUA, COMMANDS, REPLIES, FILES, OTHERS];
    let texts = all.into_iter().flatten().map(Production::text).chain([indented()]);
    for text in texts {
        let shown = text.chars().take(60).collect::<String>();
        // Printed first: a stack overflow leaves no chance to print it later.
        println!("{shown:?}");
        let small = thread::Builder::new().stack_size(STACK);
        small.spawn(move || read(&text)).unwrap().join().unwrap();
    }
}
