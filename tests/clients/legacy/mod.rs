//! Lock libraries through a proxy with rules for their keys: each does what it does on Redis.
//!
//! `locks.py`, `locks.js`, `locks.php` and `locks.rs` drive them, with a row for each. `make test` installs the
//! libraries.

use std::{
    path::{Path, PathBuf},
    sync::PoisonError,
    thread,
    time::Duration,
};

use super::{MACHINE, file, run, support::Proxy};

/// Keys of all rows, except the lists by which python-redis-lock and walrus wake waiters.
const KEYS: &[&str] = &[
    "legacy:*",
    "lock:*",
    "redlock:*",
    "mutex:*",
    ":1:legacy:*",
    "qo_*",
    "SINGLETONLOCK_*",
    "redbeat::lock:*",
    "rq:scheduler-lock:*",
];

/// The driver of one language's libraries: the program, its script, and its number of rows.
struct Driver(PathBuf, Option<&'static str>, usize);

fn drivers() -> [Driver; 4] {
    let python = file("legacy/.venv/bin/python");
    let rust = Path::new(env!("CARGO_BIN_EXE_lockgate")).with_file_name("examples/legacy_locks");
    let module = file("legacy/node_modules/ioredis");
    assert!(
        [&python, &rust, &module].iter().all(|file| file.exists()),
        "a library is missing in tests/clients/legacy: run \"make test\", which installs it"
    );
    [
        Driver(python, Some("legacy/locks.py"), 28),
        Driver("node".into(), Some("legacy/locks.js"), 19),
        Driver("php".into(), Some("legacy/locks.php"), 16),
        Driver(rust, None, 2),
    ]
}

/// What happens to the lock nodes meanwhile.
#[derive(Clone, Copy, PartialEq)]
enum Nodes {
    Run,
    /// Two of five are killed one after the other and come back without their memory, again and again. At such a
    /// moment a library's request is refused, so each row is tried again.
    Die,
}

/// Runs all drivers, each through a proxy with `adopt:` rules of this mode, and with a data node to which no script
/// has been sent.
fn libraries_work(mode: &str, nodes: Nodes) {
    let _alone = MACHINE.write().unwrap_or_else(PoisonError::into_inner);
    let (keys, expect) = if mode == "enforce" { (KEYS, "enforce") } else { (&["*"][..], "plain") };
    let rule = |keys: &&str| format!("  - keys: '{keys}'\n    mode: {mode}\n");
    let rules = format!("adopt:\n{}", keys.iter().map(rule).collect::<String>());
    // The lock nodes hold a lock for two node time-outs longer than its client asks for.
    let locks = if nodes == Nodes::Die { "node_timeout: 1s" } else { "node_timeout: 250ms" };
    let drive = |Driver(program, script, rows): Driver| {
        // RQ asks for 61 s.
        let with = Proxy::with().nodes(5).locks(locks).locks("max_ttl: 61s").locks("shared: yes");
        let mut proxy = with.top(&rules).start();
        let (script, port) = (script.map(file), proxy.port().to_string());
        let mut arguments: Vec<&str> = script.iter().filter_map(|path| path.to_str()).collect();
        let tries = if nodes == Nodes::Die { "8" } else { "1" };
        arguments.extend([port.as_str(), "--expect", expect, "--tries", tries]);
        let said = thread::scope(|scope| {
            let running = scope.spawn(|| run(&program, &arguments, b""));
            while nodes == Nodes::Die && !running.is_finished() {
                for node in [0, 1] {
                    proxy.node(node).kill().unwrap();
                    thread::sleep(Duration::from_secs(1));
                    proxy.node(node).restart().unwrap();
                    thread::sleep(Duration::from_secs(1));
                }
            }
            running.join()
        });
        let said = said.unwrap_or_else(|_| panic!("{} failed", program.display()));
        let said = String::from_utf8(said.stdout).unwrap();
        assert!(proxy.is_alive());
        assert_eq!(said.lines().count(), rows, "{said}");
        let labels = "operation=\"lock\",result=\"ok\"";
        let granted = proxy.metric("lockgate_lock_requests_total", labels);
        assert_eq!(granted > 5.0, mode == "enforce", "{granted} by the lock nodes: {said}");
    };
    thread::scope(|scope| {
        for driver in drivers() {
            scope.spawn(|| drive(driver));
        }
    });
}

#[test]
#[ignore = "takes long: make long"]
fn lock_libraries_notice_no_audit() {
    libraries_work("audit", Nodes::Run);
}

#[test]
fn lock_libraries_lock_on_the_quorum_and_notice_nothing() {
    libraries_work("enforce", Nodes::Run);
}

#[test]
#[ignore = "takes long: make long"]
fn lock_libraries_notice_nothing_of_lock_nodes_that_die_and_come_back() {
    libraries_work("enforce", Nodes::Die);
}
