//! A Redis fails over to a replica that has not yet heard of a lock. Two workers that lock on it are then at work at
//! once. Through Lockgate, before the same failover, the same program keeps them apart.
//!
//! docs/moving-data-node.md describes this test and shows its output.

use std::{
    fmt::Write as _,
    io::{BufRead, BufReader, PipeWriter, Write, pipe},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex, PoisonError},
    thread,
};

use super::file;
use crate::support::{Client, Proxy, Reply, eventually, relay::Relay};
use lockgate::tools::redis_server::RedisServer;

/// The lock that both workers take.
const LOCK: &str = "lock:invoices";
/// How often the second worker must be refused after the failover.
const REFUSALS: usize = 10;

/// The lines of the workers and of the test, in the order in which they were written: all write to one pipe.
struct Journal {
    lines: Arc<Mutex<Vec<String>>>,
    writer: PipeWriter,
}

impl Journal {
    fn new() -> Journal {
        let (reader, writer) = pipe().unwrap();
        let lines = Arc::new(Mutex::new(Vec::new()));
        let ours = lines.clone();
        thread::spawn(move || {
            for line in BufReader::new(reader).lines().map_while(Result::ok) {
                ours.lock().unwrap_or_else(PoisonError::into_inner).push(line);
            }
        });
        Journal { lines, writer }
    }

    fn note(&mut self, what: &str) {
        writeln!(self.writer, "-- {what}").unwrap();
    }

    fn lines(&self) -> Vec<String> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn times(&self, line: &str) -> usize {
        self.lines().iter().filter(|other| *other == line).count()
    }

    fn wait_for(&self, line: &str) {
        eventually(line, || self.times(line) > 0);
    }

    /// The lines as a text, with repeated ones counted.
    fn told(&self) -> String {
        let lines = self.lines();
        lines.chunk_by(|one, next| one == next).fold(String::new(), |mut text, alike| {
            let times =
                if alike.len() > 1 { format!(" ({} times)", alike.len()) } else { "".into() };
            writeln!(text, "{}{times}", alike[0]).unwrap();
            text
        })
    }

    /// The largest number of workers at work at once.
    fn most_at_work(&self) -> usize {
        let (mut now, mut most) = (0, 0);
        for line in self.lines() {
            if line.ends_with(" begins") {
                now += 1;
                most = most.max(now);
            } else if line.ends_with(" ends") {
                now -= 1;
            }
        }
        most
    }
}

/// A process that does one job under the lock.
struct Worker(Child);

impl Worker {
    fn start(
        (program, script): &(PathBuf, PathBuf),
        name: &str,
        port: u16,
        journal: &Journal,
    ) -> Worker {
        // Has the kernel end the worker with this thread, should it not be dropped.
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL"])
            .arg(program)
            .arg(script)
            .args([name, &port.to_string()])
            .stdin(Stdio::piped())
            .stdout(journal.writer.try_clone().unwrap())
            .spawn();
        Worker(child.unwrap())
    }

    /// Lets the worker end its job.
    fn finish(&mut self) {
        self.0.stdin.take().unwrap().write_all(b"\n").unwrap();
    }

    /// Waits until the worker has ended.
    fn join(mut self) {
        let mut status = None;
        eventually("the worker ends", || {
            status = self.0.try_wait().unwrap();
            status.is_some()
        });
        assert!(status.unwrap().success(), "{status:?}");
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A master with a replica, and one address at which clients find the master, as with a managed service.
struct Pair {
    master: RedisServer,
    replica: RedisServer,
    /// The replica's connection to the master.
    link: Relay,
    address: Relay,
}

impl Pair {
    fn start() -> Pair {
        let master = RedisServer::start(&["--repl-diskless-sync-delay", "0"]).unwrap();
        let (link, address) = (Relay::to(master.port()), Relay::to(master.port()));
        let replica =
            RedisServer::start(&["--replicaof", "127.0.0.1", &link.port().to_string()]).unwrap();
        let pair = Pair { master, replica, link, address };
        assert_eq!(pair.on_master(&["SET", "before", "1"]), Reply::ok());
        eventually("the replica follows", || {
            pair.on_replica(&["GET", "before"]) == Reply::bulk("1")
        });
        pair
    }

    fn on_master(&self, words: &[&str]) -> Reply {
        Client::connect(self.master.port()).cmd(words)
    }

    fn on_replica(&self, words: &[&str]) -> Reply {
        Client::connect(self.replica.port()).cmd(words)
    }

    /// Keeps everything that the master writes from now on from the replica.
    fn fall_behind(&self) {
        self.link.hold_reply("behind");
        assert_eq!(self.on_master(&["SET", "behind", "1"]), Reply::ok());
        self.link.wait_until_held();
    }

    /// Kills the master, and promotes its replica.
    fn fail_over(&mut self, journal: &mut Journal) {
        self.master.kill().unwrap();
        self.link.cut();
        journal.note("the master is killed");
        assert_eq!(self.on_replica(&["REPLICAOF", "NO", "ONE"]), Reply::ok());
        self.address.lead_to(self.replica.port());
        journal.note("the replica is the master");
    }
}

/// Runs two workers, and a failover while the first is at work; through Lockgate if `is_safe`. Returns the lines, and
/// how many workers were at work at once.
fn fails_over(program: &(PathBuf, PathBuf), is_safe: bool) -> (String, usize) {
    let (mut pair, mut journal) = (Pair::start(), Journal::new());
    let proxy = is_safe.then(|| {
        let rules = "adopt:\n  - keys: 'lock:*'\n    mode: enforce";
        let setup = Proxy::with().nodes(5).data_port(pair.address.port()).top(rules);
        let proxy = setup.locks("max_ttl: 2m").start();
        eventually("the proxy is ready", || proxy.http("/readyz").starts_with("HTTP/1.1 200"));
        proxy
    });
    let port = proxy.as_ref().map_or(pair.address.port(), Proxy::port);
    pair.fall_behind();
    let mut first = Worker::start(program, "A", port, &journal);
    journal.wait_for("A begins");
    let mut second = Worker::start(program, "B", port, &journal);
    journal.wait_for("B waits");
    // The lock is on the master without Lockgate, and on the replica in neither case.
    let on_master = pair.on_master(&["EXISTS", LOCK]) == Reply::Int(1);
    assert_eq!(on_master, !is_safe, "the lock is on the data node");
    assert_eq!(pair.on_replica(&["EXISTS", "behind", LOCK]), Reply::Int(0));
    pair.fail_over(&mut journal);

    if is_safe {
        let before = journal.times("B waits");
        eventually("B is refused", || journal.times("B waits") >= before + REFUSALS);
    } else {
        journal.wait_for("B begins");
    }
    first.finish();
    first.join();
    journal.wait_for("B begins");
    second.finish();
    second.join();
    journal.wait_for("B has released the lock");
    (journal.told(), journal.most_at_work())
}

fn keeps_workers_apart_only_through_lockgate(program: &Path, script: &str) {
    let program = (program.to_owned(), file(script));
    let (said, most) = fails_over(&program, false);
    println!("{script}, on a Redis with a replica:\n\n{said}");
    assert_eq!(most, 2, "{said}");
    assert!(said.contains("A finds that it has lost the lock"), "{said}");
    let (said, most) = fails_over(&program, true);
    println!("{script}, through Lockgate:\n\n{said}");
    assert_eq!(most, 1, "{said}");
    assert!(said.contains("A has released the lock"), "{said}");
}

#[test]
fn a_failover_lets_two_workers_of_redis_py_in_and_through_lockgate_one() {
    let python = file(".venv/bin/python");
    keeps_workers_apart_only_through_lockgate(&python, "failover/redis_py.py");
}

#[test]
fn a_failover_lets_two_workers_of_node_redlock_in_and_through_lockgate_one() {
    keeps_workers_apart_only_through_lockgate(Path::new("node"), "failover/node_redlock.js");
}
