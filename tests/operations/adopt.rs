//! Unchanged lock libraries through a proxy that audits them, and what operators are told.
//!
//! The programs are in `tests/clients/`; `make test` installs the libraries.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::Command,
};

use crate::support::{Client, Proxy, Reply, pipeline};

const RULES: &str =
    "adopt:\n  - keys: 'lock:*'\n    lock: '{1}'\n  - keys: 'redlock:*'\n    mode: audit";

pub(crate) type Entry = BTreeMap<String, String>;

/// Returns the reply to LOCKGATE ADOPTED.
pub(crate) fn adopted(client: &mut Client) -> Vec<Entry> {
    let text = |reply: &Reply| match reply {
        Reply::Bulk(bytes) => String::from_utf8(bytes.clone()).unwrap(),
        Reply::Int(number) => number.to_string(),
        other => panic!("no text: {other:?}"),
    };
    let Reply::Array(all) = client.cmd(&["LOCKGATE", "ADOPTED"]) else { panic!("no array") };
    let entry = |entry: &Reply| match entry {
        Reply::Array(fields) | Reply::Map(fields) => {
            fields.chunks(2).map(|pair| (text(&pair[0]), text(&pair[1]))).collect()
        }
        other => panic!("no map: {other:?}"),
    };
    all.iter().map(entry).collect()
}

/// Returns how often something with all these fields was seen.
fn times(all: &[Entry], fields: &[(&str, &str)]) -> u64 {
    let is = |entry: &&Entry| fields.iter().all(|(name, value)| entry[*name] == *value);
    all.iter().filter(is).map(|entry| entry["times"].parse::<u64>().unwrap()).sum()
}

fn runs(program: &Path, script: &str, port: u16) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients").join(script);
    let output = Command::new("timeout")
        .args(["--kill-after=5", "120"])
        .arg(program)
        .arg(script)
        .arg(port.to_string())
        .output()
        .unwrap();
    let (out, error) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(out, "ok\n", "{error}\nis a library missing? \"make test\" installs it");
}

#[test]
fn libraries_are_seen_as_they_are() {
    let proxy = Proxy::with().top(RULES).start();
    let python = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/clients/.venv/bin/python");
    runs(&python, "legacy_locks.py", proxy.port());
    runs(Path::new("node"), "legacy_locks.js", proxy.port());
    for version in ["2", "3"] {
        let mut client = proxy.client();
        client.cmd(&["HELLO", version]);
        let all = adopted(&mut client);
        for (expected, fields) in [
            (
                2,
                &[
                    ("client", "redis-py"),
                    ("idiom", "acquire"),
                    ("keys", "lock:*"),
                    ("lock", "{1}"),
                ][..],
            ),
            (1, &[("client", "redis-py"), ("idiom", "acquire_no_ttl"), ("verdict", "refused")]),
            (1, &[("library", "redis-py"), ("idiom", "extend_by"), ("verdict", "quorum")]),
            (2, &[("library", "redis-py"), ("idiom", "extend")]),
            (2, &[("library", "redis-py"), ("idiom", "release"), ("replies", "0 1 1 0")]),
            (1, &[("library", "pottery"), ("idiom", "extend"), ("client", "pottery")]),
            (1, &[("library", "pottery"), ("idiom", "release"), ("keys", "redlock:*")]),
            (2, &[("library", "node-redlock 5"), ("idiom", "acquire"), ("client", "node-redlock")]),
            (1, &[("library", "node-redlock 5"), ("idiom", "extend")]),
            (1, &[("client", "by-hand"), ("idiom", "acquire_no_ttl"), ("form", "SETNX")]),
            (1, &[("client", "by-hand"), ("idiom", "blind_extend"), ("form", "EXPIRE")]),
            (1, &[("client", "by-hand"), ("idiom", "overwrite"), ("verdict", "refused")]),
            (
                2,
                &[
                    ("client", "by-hand"),
                    ("idiom", "blind_release"),
                    ("unsafe", "frees the lock whoever holds it"),
                ],
            ),
            (
                1,
                &[
                    ("client", "by-hand"),
                    ("idiom", "other"),
                    ("form", "a hash, as Redisson's locks are"),
                ],
            ),
        ] {
            // A script is sent twice if Redis does not know it yet.
            let found = times(&all, fields);
            assert!((expected..=2 * expected).contains(&found), "{found} {fields:?} in {all:#?}");
        }
        // The library also gives back what it was refused.
        assert!(times(&all, &[("library", "redlock-py"), ("idiom", "release")]) >= 1, "{all:#?}");
        assert_eq!(times(&all, &[("idiom", "unknown_script")]), 0, "{all:#?}");
        let unsafe_ones = all.iter().take_while(|entry| !entry["unsafe"].is_empty()).count();
        assert!(
            unsafe_ones > 0 && all[unsafe_ones..].iter().all(|entry| entry["unsafe"].is_empty())
        );
    }
    let metric = |labels: &str| proxy.metric("lockgate_adopt_seen_total", labels);
    assert_eq!(metric("idiom=\"blind_release\",verdict=\"quorum\""), 2.0);
    assert!(metric("idiom=\"acquire\",verdict=\"quorum\"") >= 5.0);
    let log = proxy.log();
    assert!(
        log.contains("an unsafe lock idiom was seen") && log.contains("\"client\":\"by-hand\"")
    );
    // Nothing was taken on the lock nodes.
    assert_eq!(proxy.on_nodes("lock:py"), [Reply::NullBulk]);
}

#[test]
fn bytes_and_replies_are_the_same_with_audit_as_without() {
    let (with, without) = (Proxy::with().top(RULES).start(), Proxy::with().start());
    let large = "x".repeat(100_000);
    let release = "local was = redis.call('get', KEYS[1]) if was == ARGV[1] then return redis.call('del', KEYS[1]) end return 0";
    let digest = "c3f8721cbb97f72bc19e972846bd7aaf91901658";
    let bytes = pipeline(&[
        &["HELLO", "3", "SETNAME", "x"],
        &["SET", "lock:a", "t", "NX", "PX", "100000"],
        &["SET", "lock:a", "t2", "NX", "PX", "100000"],
        &["EVALSHA", digest, "1", "lock:a", "t"],
        &["EVAL", release, "1", "lock:a", "other"],
        &["EVAL", release, "1", "lock:a", "t"],
        &["SET", "lock:a", &large],
        &["GET", "lock:a"],
        &["EVAL", &format!("return 1 --{large}"), "1", "lock:a"],
        &["WATCH", "lock:a"],
        &["GET", "lock:a"],
        &["MULTI"],
        &["DEL", "lock:a"],
        &["HSET", "lock:h", "f", "v"],
        &["EXEC"],
        &["SET", "lock:a", "t", "NX", "XX"],
        &["SETNX", "lock:a"],
        &["SETNX", "lock:a", "1"],
        &["DEL", "lock:a", "key"],
        &["SELECT", "1"],
        &["GET", "lock:a"],
        &["ECHO", "end"],
    ]);
    let replies = |proxy: &Proxy, piece: usize| {
        let mut client = proxy.client();
        client.cmd(&["FLUSHALL"]);
        for piece in bytes.chunks(piece) {
            client.send(piece);
        }
        // HELLO's reply is left out: it has the connection's number.
        client.reply();
        (1..22).map(|_| client.reply()).collect::<Vec<_>>()
    };
    let expected = replies(&without, usize::MAX);
    assert_eq!(expected.last(), Some(&Reply::bulk("end")));
    for piece in [usize::MAX, 1000, 33] {
        assert_eq!(replies(&with, piece), expected, "in pieces of {piece}");
    }
    let mut client = with.client();
    let all = adopted(&mut client);
    assert_eq!(times(&all, &[("idiom", "too_large"), ("client", "x"), ("keys", "lock:*")]), 3);
    assert_eq!(times(&all, &[("idiom", "too_large"), ("keys", "")]), 3, "a body of 100,000 bytes");
    assert_eq!(times(&all, &[("idiom", "release"), ("script", "")]), 3, "{all:#?}");
    assert_eq!(times(&all, &[("because", "it is inside MULTI"), ("idiom", "other")]), 3);
    assert_eq!(adopted(&mut without.client()), [], "there are no rules");
}
