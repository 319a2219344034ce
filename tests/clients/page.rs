//! The programs of docs/clients/, as they stand there. The short ones wait for a lock with the libraries' default
//! settings. The long ones lose no update while their locks and their connections are taken away.

use std::{
    path::{Path, PathBuf},
    process::{Child, Command},
    sync::PoisonError,
    thread,
    time::Duration,
};

use bb8_redis::redis::Client;

use super::{MACHINE, file};
use crate::support::{Proxy, Reply, eventually};

const PAGES: [&str; 4] = [
    include_str!("../../docs/clients/python.md"),
    include_str!("../../docs/clients/node.md"),
    include_str!("../../docs/clients/rust.md"),
    include_str!("../../docs/clients/shell.md"),
];
/// The pages of the commands: a row of their tables has a command and its error.
const COMMANDS: [&str; 9] = [
    include_str!("../../docs/commands/index.md"),
    include_str!("../../docs/commands/lock.md"),
    include_str!("../../docs/commands/permits.md"),
    include_str!("../../docs/commands/unlock.md"),
    include_str!("../../docs/commands/renew.md"),
    include_str!("../../docs/commands/mlock.md"),
    include_str!("../../docs/commands/lock-attach.md"),
    include_str!("../../docs/commands/lock-detach.md"),
    include_str!("../../docs/commands/lockgate.md"),
];
/// How often each program adds one.
const TIMES: usize = 20;
/// The longest time for all programs.
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

mod short_rust {
    use bb8_redis::redis;
    include!("redis_rs_short.rs");

    pub(super) fn run(port: u16) {
        let client = Client::open(format!("redis://127.0.0.1:{port}")).unwrap();
        add_report(&client, "rust's").unwrap();
    }
}

/// Returns all programs in this language, in the order of the pages.
fn blocks(language: &str) -> impl Iterator<Item = &'static str> {
    let begin = format!("```{language}\n");
    let blocks = move |page: &'static str| {
        let blocks = page.split(&begin).skip(1).map(|block| block.split("```").next().unwrap());
        blocks.collect::<Vec<_>>()
    };
    PAGES.into_iter().flat_map(blocks)
}

/// Returns the long programs in this language: those that take arguments.
fn programs(language: &str) -> Vec<&'static str> {
    blocks(language).filter(|text| text.contains("argv")).collect()
}

/// Starts a program that is a script, from a file, in an environment with its library.
fn spawn(language: &str, text: &str, script: &Path, arguments: &[String]) -> Child {
    let interpreter = match language {
        "python" => file(".venv/bin/python"),
        "js" => PathBuf::from("node"),
        shell => PathBuf::from(shell),
    };
    std::fs::write(script, text).unwrap();
    Command::new("timeout")
        .args(["--kill-after=5", &LIMIT.as_secs().to_string()])
        .arg(interpreter)
        .arg(script)
        .args(arguments)
        .env("NODE_PATH", file("node_modules"))
        .spawn()
        .unwrap()
}

/// Starts the long programs that are scripts.
fn start(port: u16, kind: &str, directory: &Path) -> Vec<Child> {
    let arguments = [port.to_string(), TIMES.to_string(), kind.to_owned()];
    let mut children = Vec::new();
    for language in ["python", "js"] {
        let texts = programs(language);
        assert_eq!(texts.len(), 2, "{language}");
        for text in texts {
            let script = directory.join(format!("{}.{language}", children.len()));
            children.push(spawn(language, text, &script, &arguments));
        }
    }
    children
}

/// Adds one, as many times as the loops of the scripts do. Returns how often the connection broke, so that it is
/// unknown whether the one was added.
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
                // On a busy machine redis-rs may not connect within its second, nor get an answer within half of it.
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
/// Returns how much they have added beyond what they know of, without what redis-rs gave up waiting for.
fn add_up(kind: &str, pause: Duration, mut fault: impl FnMut(&mut Proxy)) -> usize {
    let _shared = MACHINE.read().unwrap_or_else(PoisonError::into_inner);
    let guards = "guards:\n  - {keys: 'account:*', lock: 'account:{1}'}";
    let setup = Proxy::with().nodes(3).top(guards).locks("default_ttl: 4s");
    // By `everysec` Redis holds back for up to 2 s what it writes while a sync is under way: a killed data node would lose
    // updates that it has acknowledged.
    let setup = setup.data_arguments(&["--appendonly", "yes", "--appendfsync", "no"]);
    let mut proxy = setup.locks("node_timeout: 100ms").start();
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
            fault(&mut proxy);
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

fn take_locks_away(proxy: &mut Proxy) {
    for node in 0..3 {
        let mut node = proxy.node_client(node);
        node.cmd(&["DEL", "lock:account:1"]);
        node.cmd(&["PUBLISH", "lockgate:free:lock:account:1", ""]);
    }
}

#[test]
fn the_page_has_the_programs_in_rust() {
    let programs = [include_str!("redis_rs_short.rs"), include_str!("redis_rs.rs")];
    assert!(blocks("rust").eq(programs));
}

/// Starts the short programs that are scripts. Returns each with its text.
fn start_short(port: u16, directory: &Path) -> Vec<(Child, String)> {
    let mut children = Vec::new();
    for language in ["python", "js", "sh", "bash"] {
        for text in blocks(language).filter(|text| !text.contains("argv")) {
            let script = directory.join(format!("{}.{language}", children.len()));
            let text = text.replace("6380", &port.to_string());
            children.push((spawn(language, &text, &script, &[]), text));
        }
    }
    assert_eq!(children.len(), 6);
    children
}

#[test]
fn its_short_programs_ask_again_while_too_few_lock_nodes_answer() {
    let _shared = MACHINE.read().unwrap_or_else(PoisonError::into_inner);
    let setup = Proxy::with().nodes(3).locks("node_timeout: 2s").locks("node_silence: 4s");
    let (mut proxy, directory) = (setup.start(), tempfile::tempdir().unwrap());
    let nodes = [0, 1].map(|node| proxy.node(node).addr().to_string());
    let mut operator = proxy.client();
    for node in &nodes {
        assert_eq!(operator.cmd(&["LOCKGATE", "NODE", node, "PAUSE", "FORCE"]), Reply::ok());
    }
    let children = start_short(proxy.port(), directory.path());
    let port = proxy.port();
    let rust = thread::spawn(move || short_rust::run(port));
    let refused = || {
        let labels = r#"operation="lock",result="no_quorum""#;
        proxy.metric("lockgate_lock_requests_total", labels)
    };
    // One that ends asks once.
    eventually("all ask again", || refused() >= 14.0);
    for node in &nodes {
        assert_eq!(operator.cmd(&["LOCKGATE", "NODE", node, "RESUME"]), Reply::ok());
    }
    for (mut child, text) in children {
        assert!(child.wait().unwrap().success(), "{text}");
    }
    rust.join().unwrap();
    assert_eq!(proxy.data_client().cmd(&["GET", "reports"]), Reply::bulk("7"));
}

#[test]
fn no_quorum_for_unlock_is_no_loss_to_the_script() {
    let _shared = MACHINE.read().unwrap_or_else(PoisonError::into_inner);
    let setup = Proxy::with().nodes(1).locks("node_timeout: 100ms");
    let (proxy, directory) = (setup.start(), tempfile::tempdir().unwrap());
    let text = blocks("bash").next().unwrap().replace("6380", &proxy.port().to_string());
    // What becomes of the lock before it is given back, and whether that is a loss.
    let node = proxy.urls().swap_remove(0);
    let at_node = |words: &str| format!("redis-cli -u {node} {words}\nask UNLOCK report\n");
    for (words, is_loss) in [("CLIENT PAUSE 2000", false), ("DEL lock:report", true)] {
        let text = text.replace("ask UNLOCK report\n", &at_node(words));
        let script = directory.path().join("unlock.bash");
        let status = spawn("bash", &text, &script, &[]).wait().unwrap();
        assert_eq!(status.success(), !is_loss, "{words}: {status}");
        eventually("it is given back", || proxy.nodes_with("lock:report") == 0);
    }
}

/// No program goes on while another client has the lock; then each adds one, in any order.
#[test]
fn its_short_programs_wait_for_the_lock() {
    let _shared = MACHINE.read().unwrap_or_else(PoisonError::into_inner);
    let setup = Proxy::with().nodes(3).locks("node_timeout: 2s").locks("node_silence: 4s");
    let (proxy, directory) = (setup.start(), tempfile::tempdir().unwrap());
    let port = proxy.port();
    let mut holder = proxy.client();
    assert!(matches!(holder.cmd(&["LOCK", "report"]), Reply::Array(_)));
    let children = start_short(port, directory.path());
    let rust = thread::spawn(move || short_rust::run(port));
    // The programs in Node.js ask again and again, all others stand in line.
    eventually("all others wait", || proxy.waiters() == 5);
    let refused = || {
        let labels = r#"operation="lock",result="busy""#;
        proxy.metric("lockgate_lock_requests_total", labels)
    };
    eventually("the rest ask for it", || refused() >= 4.0);
    let mut data = proxy.data_client();
    assert_eq!(data.cmd(&["GET", "reports"]), Reply::NullBulk, "one goes on without the lock");
    assert!(!rust.is_finished());
    assert_eq!(holder.cmd(&["UNLOCK", "report"]), Reply::Int(1));
    for (mut child, text) in children {
        assert!(child.wait().unwrap().success(), "{text}");
    }
    rust.join().unwrap();
    assert_eq!(data.cmd(&["GET", "reports"]), Reply::bulk("7"), "each has added one");
    eventually("the lock is given back", || proxy.nodes_with("lock:report") == 0);
}

#[test]
fn its_leases_lose_no_update_though_they_are_taken_away() {
    assert_eq!(add_up("lease", Duration::from_millis(50), take_locks_away), 0);
}

#[test]
fn its_session_locks_lose_no_update_though_they_are_taken_away() {
    assert_eq!(add_up("session", Duration::from_millis(50), take_locks_away), 0);
}

/// Keeps two nodes silent for longer than votes count, and so seldom that locks still have enough time.
fn keep_nodes_silent(proxy: &mut Proxy) {
    (0..2).for_each(|node| drop(proxy.node_client(node).cmd(&["CLIENT", "PAUSE", "150"])));
}

#[test]
fn its_leases_lose_no_update_though_nodes_are_silent() {
    assert_eq!(add_up("lease", Duration::from_millis(300), keep_nodes_silent), 0);
}

#[test]
fn its_session_locks_lose_no_update_though_connections_are() {
    // A lock whose LOCK or UNLOCK was in flight has to run out, so kills must not come too often.
    let mut kills = 0;
    // The unknown ones were in flight on a connection that broke, on a machine too busy to reconnect in time.
    let unknown = add_up("session", Duration::from_millis(200), |proxy| {
        if kills < 6 {
            proxy.data_client().cmd(&["CLIENT", "KILL", "TYPE", "normal"]);
            kills += 1;
        }
    });
    assert!(unknown <= 5 * kills, "{unknown}");
}

/// A restart of the data node breaks all connections, and none can be made for a while.
#[test]
fn its_programs_go_on_and_lose_no_update_when_the_data_node_is_restarted() {
    let mut restarts = 0;
    let unknown = add_up("session", Duration::from_millis(500), |proxy| {
        if restarts == 0 {
            proxy.data().kill().unwrap();
            thread::sleep(Duration::from_millis(1500));
            proxy.data().restart().unwrap();
            restarts += 1;
        }
    });
    assert!(unknown <= 5, "{unknown}");
}

#[test]
fn what_the_commands_pages_send_is_answered_as_they_say() {
    let proxy = Proxy::with().nodes(1).start();
    let mut tried = 0;
    for row in COMMANDS.iter().flat_map(|page| page.lines()) {
        let Some((sent, rest)) = row.strip_prefix("| `").and_then(|row| row.split_once("` | `-"))
        else {
            continue;
        };
        let error = rest.split_once('`').unwrap().0.replace("\\|", "|");
        let words: Vec<_> = sent.split(' ').map(|word| word.trim_matches('"')).collect();
        let answer = proxy.client().cmd(&words);
        match error.strip_suffix('…') {
            Some(begin) => assert!(answer.error_text().starts_with(begin), "{sent}: {answer:?}"),
            None => assert_eq!(answer, Reply::Error(error), "{sent}"),
        }
        tried += 1;
    }
    assert!(tried >= 20, "they are not found: {tried}");
}
