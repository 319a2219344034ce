//! The programs of docs/clients.md, as they stand there, lose no update while their locks and
//! their connections are taken away.

use std::{
    path::{Path, PathBuf},
    process::{Child, Command},
    sync::PoisonError,
    thread,
    time::Duration,
};

use bb8_redis::redis::Client;

use super::{MACHINE, file};
use crate::support::{Proxy, Reply};

const PAGE: &str = include_str!("../../docs/clients.md");
/// How often each program adds one.
const TIMES: usize = 20;
/// The longest time for the programs.
const LIMIT: Duration = Duration::from_secs(120);

mod rust {
    use bb8_redis::redis;
    include!("redis_rs.rs");

    pub(super) async fn add_one(
        client: &Client,
        token: &str,
        kind: &str,
    ) -> Result<(), RedisError> {
        if kind == "session" {
            return add_under_a_session_lock(client, "account:1", token).await;
        }
        let mut connection = connect(client).await?;
        add_under_a_lease(&mut connection, "account:1", token).await.map(drop)
    }
}

/// The programs in this language, in the order of the page.
fn programs(language: &str) -> Vec<&'static str> {
    let begin = format!("```{language}\n");
    PAGE.split(&begin).skip(1).map(|block| block.split("```").next().unwrap()).collect()
}

/// Starts the programs that are scripts, each in a file where it finds its library.
fn start(port: u16, kind: &str, directory: &Path) -> Vec<Child> {
    let python = file(".venv/bin/python");
    let node = PathBuf::from("node");
    let all = [("python", "py", &python), ("js", "js", &node)];
    let mut children = Vec::new();
    for (language, ending, program) in all {
        let texts = programs(language);
        assert_eq!(texts.len(), 2, "{language}");
        for (n, text) in texts.into_iter().enumerate() {
            let script = directory.join(format!("{n}.{ending}"));
            std::fs::write(&script, text).unwrap();
            let child = Command::new("timeout")
                .args(["--kill-after=5", &LIMIT.as_secs().to_string()])
                .arg(program)
                .arg(script)
                .args([port.to_string(), TIMES.to_string(), kind.to_owned()])
                .env("NODE_PATH", file("node_modules"))
                .spawn();
            children.push(child.unwrap());
        }
    }
    children
}

/// Adds as often as the scripts' own loops. Returns how often the connection broke, so that it is
/// not known whether that was added.
async fn add_often(port: u16, kind: &str) -> usize {
    let client = Client::open(format!("redis://127.0.0.1:{port}")).unwrap();
    let (mut done, mut attempts, mut unknown) = (0, 0, 0);
    while done < TIMES {
        attempts += 1;
        match rust::add_one(&client, &format!("rust-{attempts}"), kind).await {
            Ok(()) => done += 1,
            Err(error) => {
                let again = ["LOCKLOST", "NOTHELD", "FENCED", "LOST", "NOQUORUM"]
                    .iter()
                    .any(|word| error.to_string().contains(word));
                // A busy machine may not connect within redis-rs's second, nor answer within half
                // of it.
                let broken = error.is_unrecoverable_error() || error.is_timeout();
                assert!(again || broken, "{error}");
                unknown += usize::from(broken && !again);
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }
    unknown
}

/// Runs all programs at once, all adding to one number, while `fault` happens again and again.
///
/// Returns what they have added beyond what they know of, apart from what redis-rs gave up waiting
/// for.
fn add_up(kind: &str, pause: Duration, mut fault: impl FnMut(&Proxy)) -> usize {
    let _shared = MACHINE.read().unwrap_or_else(PoisonError::into_inner);
    let guards = "guards:\n  - {keys: 'account:*', lock: 'account:{1}'}";
    let setup = Proxy::with().nodes(3).top(guards).locks("default_ttl: 4s");
    let proxy = setup.locks("node_timeout: 100ms").start();
    let directory = tempfile::tempdir().unwrap();
    let mut children = start(proxy.port(), kind, directory.path());
    let port = proxy.port();
    let unknown = thread::scope(|scope| {
        let rust = scope.spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let work = async { tokio::time::timeout(LIMIT, add_often(port, kind)).await };
            runtime.unwrap().block_on(work).expect("in time")
        });
        let runs = |child: &mut Child| child.try_wait().unwrap().is_none();
        while !rust.is_finished() || children.iter_mut().any(runs) {
            thread::sleep(pause);
            fault(&proxy);
        }
        rust.join().unwrap()
    });
    for (n, mut child) in children.into_iter().enumerate() {
        let status = child.wait().unwrap();
        let locks = || proxy.client().cmd(&["LOCKGATE", "LOCKS"]);
        assert!(status.success(), "the {n}. of the scripts: {status}; locks now: {:?}", locks());
    }
    let Reply::Bulk(added) = proxy.data_client().cmd(&["GET", "account:1"]) else { panic!("none") };
    let added: usize = String::from_utf8(added).unwrap().parse().unwrap();
    let beyond = added.checked_sub(5 * TIMES).unwrap_or_else(|| panic!("lost updates: {added}"));
    beyond.saturating_sub(unknown)
}

fn take_locks_away(proxy: &Proxy) {
    for node in 0..3 {
        let mut node = proxy.node_client(node);
        node.cmd(&["DEL", "lock:account:1"]);
        node.cmd(&["PUBLISH", "lockgate:free:lock:account:1", ""]);
    }
}

#[test]
fn the_page_has_the_program_in_rust() {
    let program = include_str!("redis_rs.rs");
    assert_eq!(programs("rust"), [program]);
}

#[test]
fn its_leases_lose_no_update_though_they_are_taken_away() {
    assert_eq!(add_up("lease", Duration::from_millis(50), take_locks_away), 0);
}

#[test]
fn its_session_locks_lose_no_update_though_they_are_taken_away() {
    assert_eq!(add_up("session", Duration::from_millis(50), take_locks_away), 0);
}

/// Keeps nodes silent for longer than votes count, and so seldom that locks have time enough.
fn keep_nodes_silent(proxy: &Proxy) {
    (0..2).for_each(|node| drop(proxy.node_client(node).cmd(&["CLIENT", "PAUSE", "150"])));
}

#[test]
fn its_leases_lose_no_update_though_nodes_are_silent() {
    assert_eq!(add_up("lease", Duration::from_millis(300), keep_nodes_silent), 0);
}

#[test]
fn its_session_locks_lose_no_update_though_connections_are() {
    // A lock whose LOCK or UNLOCK was under way runs out, so kills must not come too often.
    let mut kills = 0;
    // Commands under way in a connection that broke, on a machine too busy to reconnect in time.
    let unknown = add_up("session", Duration::from_millis(200), |proxy| {
        if kills < 6 {
            proxy.data_client().cmd(&["CLIENT", "KILL", "TYPE", "normal"]);
            kills += 1;
        }
    });
    assert!(unknown <= 5 * kills, "{unknown}");
}
