//! Lock libraries through a proxy that knows their keys: each does what it does on Redis.
//!
//! `locks.py` and `locks.js` drive them, with a row for each. `make test` installs the libraries.

use std::{path::Path, sync::PoisonError, thread};

use super::{MACHINE, file, run, support::Proxy};

/// Keys of all rows, without the lists by which python-redis-lock and walrus wake waiters.
const KEYS: &[&str] = &[
    "legacy:*",
    "lock:*",
    "redlock:*",
    "mutex:*",
    ":1:legacy:*",
    "qo_*",
    "SINGLETONLOCK_*",
    "redbeat::lock:*",
];

/// Runs both programs, each through a proxy with `adopt:` rules of this mode, and a data node to
/// which no script was sent. Returns what the programs said.
fn libraries_work(mode: &str) -> [String; 2] {
    let _alone = MACHINE.write().unwrap_or_else(PoisonError::into_inner);
    let (keys, expect) = if mode == "enforce" { (KEYS, "enforce") } else { (&["*"][..], "plain") };
    let (python, modules) = (file("legacy/.venv/bin/python"), file("legacy/node_modules/ioredis"));
    assert!(
        python.exists() && modules.exists(),
        "a library is missing in tests/clients/legacy: run \"make test\", which installs it"
    );
    let rule = |keys: &&str| format!("  - keys: '{keys}'\n    mode: {mode}\n");
    let rules = format!("adopt:\n{}", keys.iter().map(rule).collect::<String>());
    let runs = |program: &Path, script: &str| {
        // The lock nodes hold a lock for twice that longer than its client asks for.
        let locks = "node_timeout: 250ms";
        let mut proxy = Proxy::with().nodes(5).locks(locks).top(&rules).start();
        let (script, port) = (file(script), proxy.port().to_string());
        let arguments = [script.to_str().unwrap(), &port, "--expect", expect];
        let said = String::from_utf8(run(program, &arguments, b"").stdout).unwrap();
        assert!(proxy.is_alive());
        let labels = "operation=\"lock\",result=\"ok\"";
        let granted = proxy.metric("lockgate_lock_requests_total", labels);
        assert_eq!(granted > 20.0, mode == "enforce", "{granted} by the lock nodes: {said}");
        said
    };
    thread::scope(|scope| {
        let python = scope.spawn(|| runs(&python, "legacy/locks.py"));
        let node = runs(Path::new("node"), "legacy/locks.js");
        [python.join().unwrap(), node]
    })
}

#[test]
fn lock_libraries_notice_no_audit() {
    for (said, rows) in libraries_work("audit").iter().zip([27, 19]) {
        assert_eq!(said.lines().count(), rows, "{said}");
    }
}

#[test]
fn lock_libraries_lock_on_the_quorum_and_notice_nothing() {
    for (said, rows) in libraries_work("enforce").iter().zip([27, 19]) {
        assert_eq!(said.lines().count(), rows, "{said}");
    }
}
