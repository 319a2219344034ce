//! Unchanged programs do real work through the proxy and notice nothing: redis-py, ioredis, lock libraries,
//! redis-cli, redis-benchmark, and a replica.
//!
//! Each library has a script in `tests/clients/`, which is only started here. `make test` installs the libraries.

mod agents;
mod cluster;
mod failover;
mod helpers;
mod legacy;
mod page;
mod recipes;
mod stock;

use std::{
    ffi::OsStr,
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    sync::RwLock,
    thread,
};

use lockgate::tools::redis_server::RedisServer;

use crate::support::{self, Client, Proxy, Reply, eventually};

/// The longest time for a program, in seconds: far more than any of them needs. Then it is killed, so that a lost
/// reply is a failure.
const LIMIT: &str = "120";

/// Held by tests that need their share of the machine: some depend on when their faults come, others run dozens of
/// libraries at once.
static MACHINE: RwLock<()> = RwLock::new(());

/// Runs a program to its end, with `input` on its standard input.
fn run(program: impl AsRef<OsStr>, arguments: &[&str], input: &[u8]) -> Output {
    run_within(LIMIT, program, arguments, input)
}

/// Does the same with another limit.
fn run_within(limit: &str, program: impl AsRef<OsStr>, arguments: &[&str], input: &[u8]) -> Output {
    let mut child = Command::new("timeout")
        .args(["--kill-after=5", limit])
        .arg(program.as_ref())
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let output = thread::scope(|scope| {
        scope.spawn(move || {
            // A program that ended early has said why.
            let _ = stdin.write_all(input);
        });
        child.wait_with_output().unwrap()
    });
    assert!(
        output.status.success(),
        "{:?} {arguments:?}: {}\n{}{}",
        program.as_ref(),
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

/// Starts a proxy whose nodes have much time to answer: the machine may be busy with other tests.
fn proxy() -> Proxy {
    Proxy::with().nodes(3).locks("node_timeout: 2s").locks("node_silence: 4s").start()
}

/// Returns the path of a file in `tests/clients/`.
fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients").join(name)
}

/// Runs a library's script in a RESP version. At its end the script leaves 50 at `counter` on the data node, and no
/// lock.
fn library_works(program: &Path, installed: &str, script: &str, version: &str) {
    assert!(
        file(installed).exists(),
        "tests/clients/{installed} is missing: run \"make test\", which installs it"
    );
    let mut proxy = proxy();
    let script = file(script);
    let arguments = [script.to_str().unwrap(), &proxy.port().to_string(), version];
    let output = String::from_utf8(run(program, &arguments, b"").stdout).unwrap();
    assert!(output.ends_with(&format!("RESP{version} ok\n")), "{output}");
    assert!(proxy.is_alive());
    let mut direct = Client::connect(proxy.data().port());
    assert_eq!(direct.cmd(&["GET", "counter"]), Reply::bulk("50"), "it worked elsewhere");
    for lock in ["lock:shared", "lock:job"] {
        eventually("the locks are gone", || proxy.nodes_with(lock) == 0);
        assert_eq!(direct.cmd(&["EXISTS", lock]), Reply::Int(0));
    }
}

fn redis_py_works(version: &str) {
    library_works(&file(".venv/bin/python"), ".venv/bin/python", "redis_py.py", version);
}

fn ioredis_works(version: &str) {
    library_works(Path::new("node"), "node_modules/ioredis", "ioredis.js", version);
}

#[test]
fn redis_py_and_its_own_lock_work_in_resp2() {
    redis_py_works("2");
}

#[test]
fn redis_py_and_its_own_lock_work_in_resp3() {
    redis_py_works("3");
}

#[test]
fn ioredis_works_in_resp2() {
    ioredis_works("2");
}

#[test]
fn ioredis_works_in_resp3() {
    ioredis_works("3");
}

#[test]
fn the_schema_of_the_configuration_and_lockgate_check_agree() {
    let script = file("schema.py");
    let arguments = [script.to_str().unwrap(), env!("CARGO_BIN_EXE_lockgate")];
    let said = String::from_utf8(run(file(".venv/bin/python"), &arguments, b"").stdout).unwrap();
    assert!(said.ends_with("the schema agree\n"), "{said}");
}

/// Returns the output of redis-cli at this port, which is the proxy's or a server's.
fn redis_cli(port: u16, arguments: &[&str], input: &str) -> String {
    let port = port.to_string();
    let arguments = [&["-p", &port], arguments].concat();
    String::from_utf8(run("redis-cli", &arguments, input.as_bytes()).stdout).unwrap()
}

#[test]
fn redis_cli_locks_and_works_as_always() {
    let mut proxy = proxy();
    let (port, data) = (proxy.port(), proxy.data().port());

    let grant = redis_cli(port, &["LOCK", "job", "PX", "30000"], "");
    let [token, fence, validity] = *grant.lines().collect::<Vec<_>>() else { panic!("{grant}") };
    assert!(fence.parse::<i64>().unwrap() > 0 && validity.parse::<i64>().unwrap() <= 30_000);
    assert_eq!(token.len(), 32, "{grant}");
    assert_eq!(redis_cli(port, &["LOCK", "job", "PX", "30000"], ""), "\n");
    assert_eq!(redis_cli(port, &["-3", "LOCK", "job", "PX", "30000"], ""), "\n");
    let error = "ERR value is not an integer or out of range, 'x' for PX\n\n";
    assert_eq!(redis_cli(port, &["LOCK", "job", "PX", "x"], ""), error);
    assert_eq!(redis_cli(port, &["SET", "x", "1"], ""), "OK\n");
    assert_eq!(redis_cli(port, &["UNLOCK", "job", token], ""), "1\n");

    let session = "MULTI\nINCR x\nHSET h a 1\nEXEC\nHGETALL h\nGET none\nNOSUCH\n";
    // A new Redis lists its commands in another order until it has rehashed them.
    redis_cli(data, &[], &"COMMAND COUNT\n".repeat(300));
    for protocol in ["-2", "-3"] {
        redis_cli(data, &[], "FLUSHALL\n");
        let direct = redis_cli(data, &[protocol], session);
        redis_cli(data, &[], "FLUSHALL\n");
        assert_eq!(redis_cli(port, &[protocol], session), direct);
        // redis-cli sends this command at its prompt, to give hints; 170 KB.
        let docs = redis_cli(port, &[protocol, "COMMAND", "DOCS"], "");
        let direct = redis_cli(data, &[protocol, "COMMAND", "DOCS"], "");
        let ours = docs.strip_prefix(direct.trim_end()).expect("Redis's own first");
        assert!(direct.len() > 50_000 && ours.starts_with("\nlock"), "{ours}");
    }
}

#[test]
fn redis_cli_inserts_masses_and_finds_them_again() {
    let mut proxy = proxy();
    let sets: String = (0..5_000).map(|n| format!("SET key:{n} {n}\r\n")).collect();
    let said = redis_cli(proxy.port(), &["--pipe"], &sets);
    assert!(said.contains("errors: 0, replies: 5000"), "{said}");
    let found = redis_cli(proxy.port(), &["--scan", "--pattern", "key:*"], "");
    assert_eq!(found.lines().count(), 5_000);
    let mut direct = Client::connect(proxy.data().port());
    assert_eq!(direct.cmd(&["DBSIZE"]), Reply::Int(5_000));
}

#[test]
fn redis_cli_takes_a_copy_of_the_data() {
    let proxy = Proxy::with().data_arguments(&["--repl-diskless-sync-delay", "0"]).start();
    let value = "v".repeat(3 << 20);
    proxy.client().cmd(&["CONFIG", "SET", "rdbcompression", "no"]);
    assert_eq!(proxy.client().cmd(&["SET", "copied", &value]), Reply::ok());
    let dir = tempfile::tempdir().unwrap();
    let copy = dir.path().join("copy");
    redis_cli(proxy.port(), &["--rdb", copy.to_str().unwrap()], "");
    let bytes = std::fs::read(copy).unwrap();
    assert!(bytes.starts_with(b"REDIS0") && bytes.len() > value.len(), "{} bytes", bytes.len());
}

#[test]
fn a_redis_replicates_through_the_proxy() {
    let mut proxy = Proxy::with().data_arguments(&["--repl-diskless-sync-delay", "0"]).start();
    let before = "b".repeat(3 << 20);
    assert_eq!(proxy.client().cmd(&["SET", "before", &before]), Reply::ok());
    let master = proxy.port().to_string();
    let replica = RedisServer::start(&["--replicaof", "127.0.0.1", &master]).unwrap();
    let mut reader = Client::connect(replica.port());
    eventually("the replica has what was there", || {
        reader.cmd(&["GET", "before"]) == Reply::bulk(&before)
    });
    for n in 0..1000 {
        proxy.client().cmd(&["RPUSH", "after", &n.to_string()]);
    }
    eventually("the replica follows", || reader.cmd(&["LLEN", "after"]) == Reply::Int(1000));
    assert!(proxy.is_alive());
    let mut direct = Client::connect(proxy.data().port());
    // The replica's acknowledgements pass in the other direction.
    assert_eq!(direct.cmd(&["WAIT", "1", "25000"]), Reply::Int(1));
}

#[test]
fn redis_benchmark_completes() {
    let mut proxy = proxy();
    let port = proxy.port().to_string();
    for more in [&["-c", "20"][..], &["-c", "5", "-P", "16"], &["-c", "5", "-P", "4", "-d", "2000"]]
    {
        let arguments = [&["-p", &port, "-n", "300", "--csv"], more].concat();
        let output = run("redis-benchmark", &arguments, b"");
        let table = String::from_utf8(output.stdout).unwrap();
        let complaints = String::from_utf8(output.stderr).unwrap();
        assert!(complaints.is_empty(), "{complaints}");
        let tests: Vec<&str> = table.lines().filter_map(|l| l.split('"').nth(1)).collect();
        for test in
            ["PING_INLINE", "SET", "GET", "LRANGE_600 (first 600 elements)", "MSET (10 keys)"]
        {
            assert!(tests.contains(&test), "{test} is missing: {table}");
        }
    }
    assert!(proxy.is_alive());
}
