//! Real clients do real work through the proxy, and notice nothing.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod support;

use std::{path::Path, process::Command};

use support::Proxy;

/// Patient nodes: the machine may be busy with the other tests.
fn proxy() -> Proxy {
    Proxy::with().nodes(3).locks("node_timeout: 2s").locks("node_silence: 4s").start()
}

/// Runs a command; its failure is the test's.
fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program)
        .args(arguments)
        .output()
        .unwrap_or_else(|error| panic!("{program}: {error}; make test installs it"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, error) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{program} {arguments:?}:\n{out}\n{error}");
    out + &error
}

fn client_file(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients").join(name);
    assert!(path.exists(), "{} is missing; make test installs it", path.display());
    path.display().to_string()
}

#[test]
fn redis_py_works_in_resp2() {
    let port = proxy();
    let out = run(
        &client_file(".venv/bin/python"),
        &[&client_file("redis_py.py"), &port.port().to_string(), "2"],
    );
    assert!(out.ends_with("RESP 2 ok\n"), "{out}");
}

#[test]
fn redis_py_works_in_resp3() {
    let port = proxy();
    let out = run(
        &client_file(".venv/bin/python"),
        &[&client_file("redis_py.py"), &port.port().to_string(), "3"],
    );
    assert!(out.ends_with("RESP 3 ok\n"), "{out}");
}

#[test]
fn ioredis_works() {
    let port = proxy();
    client_file("node_modules/ioredis/package.json");
    let out = run("node", &[&client_file("ioredis.js"), &port.port().to_string()]);
    assert!(out.ends_with("ok\n"), "{out}");
}

#[test]
fn redis_cli_shows_grants_and_errors() {
    let proxy = proxy();
    let cli = |words: &[&str]| {
        let port = proxy.port().to_string();
        run("redis-cli", &[&["-p", &port][..], words].concat())
    };
    let grant = cli(&["LOCK", "job", "PX", "30000"]);
    let lines: Vec<&str> = grant.lines().collect();
    assert_eq!((lines.len(), lines[0].len()), (3, 32), "{grant}");
    assert_eq!(cli(&["SET", "x", "1"]), "OK\n");
    assert_eq!(cli(&["-3", "LOCK", "job", "PX", "1000"]), "\n");
    assert_eq!(cli(&["UNLOCK", "job", lines[0]]), "1\n");
    assert_eq!(cli(&["LOCK", "job", "PX", "x"]), "ERR value is not an integer or out of range\n\n");
}

#[test]
fn redis_benchmark_completes() {
    let proxy = proxy();
    let port = proxy.port().to_string();
    for options in [&["-c", "20"][..], &["-c", "20", "-P", "16", "-d", "2000"]] {
        let out =
            run("redis-benchmark", &[&["-p", &port, "-q", "-n", "2000"][..], options].concat());
        let results = out.matches("requests per second").count();
        assert!(results >= 18 && !out.contains("rror"), "{results} results: {out}");
    }
}
