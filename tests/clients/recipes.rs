//! The programs of docs/recipes.md, as they stand there, on two hosts with a proxy each. The page promises what each
//! does while two want the lock, and when one loses it.

use std::{
    fs,
    os::unix::{fs::PermissionsExt, process::CommandExt},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::PoisonError,
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use super::{MACHINE, file};
use crate::support::{Client, Proxy, Reply, eventually, freeze, relay::Relay};

const PAGE: &str = include_str!("../../docs/recipes.md");

/// The first block of code below this heading: its language and its text.
fn block(heading: &str) -> (&'static str, &'static str) {
    let (_, section) = PAGE.split_once(&format!("# {heading}\n")).expect("the heading");
    let (_, code) = section.split_once("```").expect("its code");
    let (language, code) = code.split_once('\n').expect("its language");
    (language, code.split_once("```").expect("its end").0)
}

/// Two hosts, each with a proxy before the same data node, the guards of the page, and a directory for files.
struct Hosts {
    first: Proxy,
    second: Proxy,
    directory: tempfile::TempDir,
}

impl Hosts {
    fn start(locks: &str) -> Hosts {
        let (language, guards) = block("Recipes");
        assert_eq!(language, "yaml");
        let first = Proxy::with().nodes(3).top(guards).locks(locks).start();
        let second = Proxy::beside(&first).top(guards).start();
        eventually("it is ready", || second.http("/readyz").starts_with("HTTP/1.1 200"));
        Hosts { first, second, directory: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Makes a command, which programs find by its name.
    fn command(&self, name: &str, script: &str) {
        let path = self.path(name);
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// What commands have written to their common file, a word a line.
    fn written(&self) -> Vec<String> {
        let text = fs::read_to_string(self.path("written")).unwrap_or_default();
        text.split_whitespace().map(str::to_owned).collect()
    }

    /// Deletes a lock on the lock nodes, and tells those that wait for it. Neither the holder nor its proxy is told.
    fn take_away(&self, lock: &str) {
        for node in 0..3 {
            let mut node = self.first.node_client(node);
            node.cmd(&["DEL", &format!("lock:{lock}")]);
            node.cmd(&["PUBLISH", &format!("lockgate:free:lock:{lock}"), ""]);
        }
    }

    /// An operator takes a lock back, through the second proxy.
    fn take_back(&self, lock: &str) {
        let answer = self.second.client().cmd(&["LOCKGATE", "UNLOCK", lock, "ANY"]);
        assert_eq!(answer, Reply::Int(1));
    }

    fn held(&self, lock: &str) -> bool {
        self.first.nodes_with(&format!("lock:{lock}")) >= 2
    }

    fn data(&self) -> Client {
        self.first.data_client()
    }

    fn get(&self, key: &str) -> Option<String> {
        match self.data().cmd(&["GET", key]) {
            Reply::Bulk(value) => Some(String::from_utf8(value).unwrap()),
            _ => None,
        }
    }

    /// Starts a program of the page for the proxy at this port. `change` may put something behind it that uses it.
    fn program(
        &self,
        heading: &str,
        port: u16,
        arguments: &[&str],
        change: impl FnOnce(String) -> String,
    ) -> Program {
        let (language, text) = block(heading);
        let interpreter = match language {
            "python" => file(".venv/bin/python"),
            "js" => PathBuf::from("node"),
            shell => PathBuf::from(shell),
        };
        let text = change(text.replace("6380", &port.to_string()));
        let script = tempfile::NamedTempFile::new_in(self.directory.path()).unwrap();
        fs::write(script.path(), text).unwrap();
        let gate = Path::new(env!("CARGO_BIN_EXE_lockgate")).parent().unwrap();
        let path = std::env::var("PATH").unwrap();
        let path = format!("{}:{}:{path}", self.directory.path().display(), gate.display());
        let child = Command::new(interpreter)
            .arg(script.path())
            .args(arguments)
            .env("PATH", path)
            .env("NODE_PATH", file("node_modules"))
            .env("WRITTEN", self.path("written"))
            .env("STOP", self.path("stop"))
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        Program { child, _script: script }
    }

    /// A program as it stands on the page.
    fn run(&self, heading: &str, proxy: &Proxy, arguments: &[&str]) -> Program {
        self.program(heading, proxy.port(), arguments, |text| text)
    }

    /// Functions of the page, and a line that calls them.
    fn call(&self, heading: &str, port: u16, line: &str) -> Program {
        self.program(heading, port, &[], |text| format!("{text}\n{line}\n"))
    }

    /// The same over a relay that holds one of its commands, for longer than the page has it wait on a busy machine.
    fn call_held(&self, heading: &str, relay: &Relay, line: &str) -> Program {
        self.program(heading, relay.port(), &[], |text| {
            assert!(text.contains("socket_timeout=10"), "{text}");
            format!("{}\n{line}\n", text.replace("socket_timeout=10", "socket_timeout=100"))
        })
    }
}

/// A running program. It ends with all that it has started when it is dropped, as on a host that dies.
struct Program {
    child: Child,
    _script: tempfile::NamedTempFile,
}

impl Program {
    fn runs(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Waits for the end. Returns the exit status, and what was printed.
    fn end(mut self) -> (Option<i32>, String) {
        eventually("the program ends", || !self.runs());
        let status = self.child.wait().unwrap().code();
        let (out, err) = (self.child.stdout.take().unwrap(), self.child.stderr.take().unwrap());
        let said = std::io::read_to_string(out).unwrap() + &std::io::read_to_string(err).unwrap();
        (status, said)
    }

    fn ends_well(self) {
        let (status, said) = self.end();
        assert_eq!(status, Some(0), "{said}");
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // All of it may have ended.
        let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        let _ = self.child.wait();
    }
}

fn shared() -> std::sync::RwLockReadGuard<'static, ()> {
    MACHINE.read().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn each_recipe_of_the_page_is_tried() {
    let tests = include_str!("recipes.rs");
    let headings = PAGE.lines().filter(|line| line.starts_with("##"));
    let mut tried = 0;
    for heading in headings.map(|line| line.trim_start_matches("#").trim()) {
        assert!(tests.contains(&format!("\"{heading}\"")), "{heading}");
        tried += 1;
    }
    // One below each heading, and the guards.
    assert_eq!((tried, PAGE.matches("\n```").count()), (10, 2 * 11));
}

#[test]
fn cron_runs_the_command_on_one_host() {
    let _shared = shared();
    let hosts = Hosts::start("max_ttl: 60s");
    hosts.command("report", "echo run >>$WRITTEN; sleep 0.5; [ ! -e $STOP ]");
    let cron = |proxy| hosts.run("Cron on one of many hosts", proxy, &[]);
    let (one, other) = (cron(&hosts.first), cron(&hosts.second));
    one.ends_well();
    other.ends_well();
    // One whose clock is late.
    cron(&hosts.second).ends_well();
    assert_eq!(hosts.written().len(), 1, "{:?}", hosts.written());
    // The next interval. A command that fails is no host that has come too late.
    hosts.take_back("report");
    fs::write(hosts.path("stop"), "").unwrap();
    let (status, said) = cron(&hosts.first).end();
    assert_eq!(status, Some(1), "{said}");
    assert_eq!(hosts.written().len(), 2);
}

#[test]
fn once_a_day_another_host_takes_over_and_what_is_done_is_not_done_again() {
    let _shared = shared();
    let hosts = Hosts::start("max_ttl: 60s");
    hosts.command("report", "echo run >>$WRITTEN; while [ -e $STOP ]; do sleep 0.05; done");
    let daily = |proxy| hosts.run("Once a day", proxy, &[]);
    fs::write(hosts.path("stop"), "").unwrap();
    let one = daily(&hosts.first);
    eventually("it runs", || hosts.written().len() == 1);
    let other = daily(&hosts.second);
    eventually("the other host waits", || hosts.second.waiters() == 1);
    // The first host dies.
    drop(one);
    eventually("the other host takes over", || hosts.written().len() == 2);
    let late = daily(&hosts.first);
    eventually("the late host waits", || hosts.first.waiters() == 1);
    fs::remove_file(hosts.path("stop")).unwrap();
    other.ends_well();
    late.ends_well();
    daily(&hosts.second).ends_well();
    assert_eq!(hosts.written().len(), 2, "it is done");
}

/// A proxy that answers nothing any more stands for a network that is cut.
#[test]
fn a_worker_whose_lock_nothing_confirms_ends_before_the_next_begins() {
    let _shared = shared();
    let hosts = Hosts::start("default_ttl: 7s");
    // It does not end by itself when it is asked to.
    let worker =
        "trap '' TERM; while [ ! -e $STOP ]; do echo $LOCKGATE_URL >>$WRITTEN; sleep 0.02; done";
    hosts.command("worker", worker);
    let start = |proxy| hosts.run("A worker that must stop", proxy, &[]);
    let name = |proxy: &Proxy| format!("redis://127.0.0.1:{}", proxy.port());
    let (one, other) = (name(&hosts.first), name(&hosts.second));
    let first = start(&hosts.first);
    eventually("the first works", || hosts.written().contains(&one));
    let second = start(&hosts.second);
    eventually("the second waits", || hosts.second.waiters() == 1);
    assert!(!hosts.written().contains(&other));
    hosts.first.freeze();
    eventually("the second works", || hosts.written().contains(&other));
    thread::sleep(Duration::from_millis(300));
    let written = hosts.written();
    let begun = written.iter().position(|word| *word == other).unwrap();
    assert!(written[begun..].iter().all(|word| *word == other), "both work at once");
    hosts.first.thaw();
    eventually("the first stands in line again", || hosts.first.waiters() == 1);
    fs::write(hosts.path("stop"), "").unwrap();
    second.ends_well();
    first.ends_well();
}

const LEASE: &str = "A lease with a heartbeat";

/// The job, with a lease of 4 s instead of 30 s.
fn job(hosts: &Hosts) -> Program {
    hosts.program(LEASE, hosts.first.port(), &["100000"], |text| {
        assert!(text.contains("TTL = 30 "));
        text.replace("TTL = 30 ", "TTL = 4 ")
    })
}

#[test]
fn a_heartbeat_keeps_the_lease_until_it_is_taken_back() {
    let _shared = shared();
    let hosts = Hosts::start("max_ttl: 60s");
    let mut running = job(&hosts);
    eventually("it works", || hosts.get("exported").is_some());
    let since = Instant::now();
    while since.elapsed() < Duration::from_secs(9) {
        assert!(hosts.held("export") && running.runs(), "after {:?}", since.elapsed());
        thread::sleep(Duration::from_millis(50));
    }
    let (status, said) = job(&hosts).end();
    assert_eq!((status, said.trim()), (Some(1), "another process exports"));
    hosts.take_back("export");
    let (status, said) = running.end();
    assert_eq!(status, Some(1), "{said}");
    assert!(said.starts_with("the lock is lost, or not confirmed"), "{said}");
}

#[test]
fn a_job_whose_lease_nothing_confirms_ends_by_the_clock() {
    let _shared = shared();
    let hosts = Hosts::start("max_ttl: 60s");
    let mut running = job(&hosts);
    eventually("it works", || hosts.get("exported").is_some());
    for node in 0..2 {
        assert_eq!(hosts.first.node_client(node).cmd(&["CLIENT", "PAUSE", "20000"]), Reply::ok());
    }
    let paused = Instant::now();
    // The job has done something after this time.
    let (mut last, mut before, mut count) = (paused, paused, hosts.get("exported"));
    eventually("it ends", || {
        let (asked, now) = (Instant::now(), hosts.get("exported"));
        if now != count {
            (last, count) = (before, now);
        }
        before = asked;
        !running.runs()
    });
    // What was answered just before the pause is valid for no longer than the lease.
    assert!(last - paused < Duration::from_secs(4), "it worked on for {:?}", last - paused);
    let (status, said) = running.end();
    assert!(status == Some(1) && said.contains("not confirmed"), "{status:?} {said}");
}

const ONCE: &str = "A task that must not run twice";

/// A delivery of a task that adds one to `charged`, and waits while the file `stop` is there.
fn delivery(hosts: &Hosts, proxy: &Proxy) -> Program {
    let line = "
import os, sys, time

def work():
    r.incr('charged')
    while os.path.exists(os.environ['STOP']):
        time.sleep(0.05)

try:
    once('charge:4711', work)
except Busy:
    sys.exit(75)";
    hosts.call(ONCE, proxy.port(), line)
}

#[test]
fn a_task_is_done_once_however_often_it_is_delivered() {
    let _shared = shared();
    let hosts = Hosts::start("max_ttl: 60s");
    fs::write(hosts.path("stop"), "").unwrap();
    let first = delivery(&hosts, &hosts.first);
    eventually("it works", || hosts.get("charged").is_some());
    assert_eq!(delivery(&hosts, &hosts.second).end().0, Some(75), "another worker does it");
    fs::remove_file(hosts.path("stop")).unwrap();
    first.ends_well();
    eventually("the lease is given back", || !hosts.held("task:charge:4711"));
    delivery(&hosts, &hosts.second).ends_well();
    assert_eq!(hosts.get("charged").as_deref(), Some("1"));
}

#[test]
fn a_task_is_done_again_where_a_worker_dies_and_a_late_worker_marks_nothing() {
    let _shared = shared();
    let hosts = Hosts::start("max_ttl: 60s");
    fs::write(hosts.path("stop"), "").unwrap();
    let dies = delivery(&hosts, &hosts.first);
    eventually("it works", || hosts.get("charged").as_deref() == Some("1"));
    drop(dies);
    assert_eq!(delivery(&hosts, &hosts.second).end().0, Some(75), "until the lease has run out");
    // Its time is over.
    hosts.take_away("task:charge:4711");
    let late = delivery(&hosts, &hosts.first);
    eventually("it works", || hosts.get("charged").as_deref() == Some("2"));
    hosts.take_away("task:charge:4711");
    let mut next = hosts.second.client();
    next.cmd(&["LOCK", "task:charge:4711", "PX", "30000"]).grant();
    fs::remove_file(hosts.path("stop")).unwrap();
    let (status, said) = late.end();
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("FENCED") || said.contains("NOTHELD"), "{said}");
    assert_eq!(hosts.get("done:charge:4711"), None);
}

const TRANSFER: &str = "A transfer between two accounts";

#[test]
fn a_transfer_that_comes_too_late_reads_again() {
    let _shared = shared();
    let hosts = Hosts::start("max_ttl: 60s");
    for account in ["account:1", "account:2"] {
        assert_eq!(hosts.data().cmd(&["SET", account, "100"]), Reply::ok());
    }
    let relay = Relay::to(hosts.first.port());
    relay.hold_request("EXEC");
    let line = "assert transfer('account:1', 'account:2', 10) is True";
    let late = hosts.call_held(TRANSFER, &relay, line);
    relay.wait_until_held();
    hosts.take_away("account:1");
    hosts.take_away("account:2");
    let between = "assert transfer('account:2', 'account:1', 5) is True";
    hosts.call(TRANSFER, hosts.second.port(), between).ends_well();
    relay.release();
    late.ends_well();
    let balances = || ["account:1", "account:2"].map(|account| hosts.get(account).unwrap());
    assert_eq!(balances(), ["95", "105"]);
    let too_much = "assert transfer('account:1', 'account:2', 96) is False";
    hosts.call(TRANSFER, hosts.first.port(), too_much).ends_well();
    assert_eq!(balances(), ["95", "105"]);
}

#[test]
fn transfers_in_both_directions_do_not_wait_for_each_other() {
    let _shared = shared();
    let hosts = Hosts::start("max_ttl: 60s");
    for account in ["account:1", "account:2"] {
        assert_eq!(hosts.data().cmd(&["SET", account, "100"]), Reply::ok());
    }
    let line = |from, to| {
        format!("for _ in range(30): assert transfer('account:{from}', 'account:{to}', 1) is True")
    };
    let programs = [
        hosts.call(TRANSFER, hosts.first.port(), &line(1, 2)),
        hosts.call(TRANSFER, hosts.second.port(), &line(2, 1)),
        hosts.call(TRANSFER, hosts.first.port(), &line(2, 1)),
    ];
    programs.into_iter().for_each(Program::ends_well);
    assert_eq!(hosts.get("account:1").as_deref(), Some("130"));
    assert_eq!(hosts.get("account:2").as_deref(), Some("70"));
}

#[test]
fn a_deposed_leader_does_not_write_its_name() {
    let _shared = shared();
    // The first proxy does not look at the lock before the leader writes.
    let hosts = Hosts::start("default_ttl: 60s");
    let candidate = |name, proxy| hosts.run("Leader election", proxy, &[name]);
    let leads = |name: &str| hosts.get("leader").as_deref() == Some(name);
    let one = candidate("one", &hosts.first);
    eventually("the first leads", || leads("one"));
    let two = candidate("two", &hosts.second);
    eventually("the second waits", || hosts.second.waiters() == 1);
    freeze(&one.child);
    hosts.take_back("leader");
    eventually("the second leads", || leads("two"));
    kill_process(Pid::from_child(&one.child), Signal::CONT).unwrap();
    eventually("the first stands in line again", || {
        assert!(leads("two"), "{:?}", hosts.get("leader"));
        hosts.first.waiters() == 1
    });
    assert!(hosts.first.metric("lockgate_guarded_writes_total", "result=\"fenced\"") >= 1.0);
    // A leader that dies: the next leads at once, long before the lock could run out.
    drop(two);
    eventually("the first leads again", || leads("one"));
}

/// The end of a connection ends no candidate. Its lock runs out, as the client did not end the connection.
#[test]
fn a_leader_whose_connection_breaks_stands_in_line_again() {
    let _shared = shared();
    let hosts = Hosts::start("default_ttl: 4s");
    let _one = hosts.run("Leader election", &hosts.first, &["one"]);
    eventually("it leads", || hosts.get("leader").is_some());
    hosts.data().cmd(&["CLIENT", "KILL", "TYPE", "normal"]);
    hosts.data().cmd(&["DEL", "leader"]);
    eventually("it leads again", || hosts.get("leader").is_some());
}

const READERS: &str = "Many readers, one writer";
/// A catalog whose items all have this price.
const CATALOG: &str = "def catalog(price): return {f'item:{n}': price for n in range(50)}\n";

#[test]
fn readers_see_one_generation_and_a_late_writer_publishes_none() {
    let _shared = shared();
    let hosts = Hosts::start("max_ttl: 60s");
    let call = |port, line: &str| hosts.call(READERS, port, &format!("{CATALOG}{line}"));
    call(hosts.first.port(), "publish(catalog(1))").ends_well();
    let before = hosts.get("catalog").unwrap();
    let relay = Relay::to(hosts.first.port());
    relay.hold_request("EXEC");
    let late = hosts.call_held(READERS, &relay, &format!("{CATALOG}publish(catalog(2))"));
    relay.wait_until_held();
    hosts.take_away("catalog");
    call(hosts.second.port(), "publish(catalog(3))").ends_well();
    let now = hosts.get("catalog").unwrap();
    relay.release();
    let (status, said) = late.end();
    assert!(status == Some(1) && said.contains("FENCED"), "{status:?} {said}");
    assert_eq!(hosts.get("catalog"), Some(now.clone()));
    call(hosts.first.port(), "assert total(catalog(0)) == 150, total(catalog(0))").ends_well();
    // The earlier generation ends, the present one stays, and the late writer has left none.
    let mut data = hosts.data();
    assert!(matches!(data.cmd(&["TTL", &before]), Reply::Int(1..=3600)));
    assert_eq!(data.cmd(&["TTL", &now]), Reply::Int(-1));
    let Reply::Array(generations) = data.cmd(&["KEYS", "prices:*"]) else { panic!("no array") };
    assert_eq!(generations.len(), 2);
    // A reader beside a writer, until it has seen several generations.
    let writer = call(
        hosts.second.port(),
        "import itertools, os

for price in itertools.count(1):
    publish(catalog(price))
    if os.path.exists(os.environ['STOP']):
        break",
    );
    let reader = call(
        hosts.first.port(),
        "seen = set()
while len(seen) < 8:
    seen.add(total(catalog(0)))
    assert all(one % 50 == 0 for one in seen), seen",
    );
    reader.ends_well();
    fs::write(hosts.path("stop"), "").unwrap();
    writer.ends_well();
}

const PERMITS: &str = "At most n at once";

#[test]
fn at_most_two_have_permits_at_once() {
    let _shared = shared();
    let hosts = Hosts::start("max_ttl: 60s");
    // Each notes its permit, and how many work at once.
    let line = "
import time
with permit('gpu', 2) as name:
    r.sadd('names', name)
    r.rpush('at once', r.incr('now'))
    time.sleep(0.4)
    r.decr('now')";
    let call = |proxy: &Proxy, line: &str| hosts.call(PERMITS, proxy.port(), line);
    let proxies = [&hosts.first, &hosts.second];
    let programs: Vec<Program> = (0..6).map(|n| call(proxies[n % 2], line)).collect();
    programs.into_iter().for_each(Program::ends_well);
    let mut data = hosts.data();
    let Reply::Array(mut names) = data.cmd(&["SMEMBERS", "names"]) else { panic!("no names") };
    names.sort_by_key(|name| format!("{name:?}"));
    assert_eq!(names, [Reply::bulk("gpu#0"), Reply::bulk("gpu#1")]);
    let Reply::Array(numbers) = data.cmd(&["LRANGE", "at once", "0", "-1"]) else { panic!("none") };
    assert_eq!(numbers.len(), 6);
    assert!(
        numbers.iter().all(|n| [Reply::bulk("1"), Reply::bulk("2")].contains(n)),
        "{numbers:?}"
    );
    assert!(numbers.contains(&Reply::bulk("2")), "never two: {numbers:?}");
    // Both are given back, by their names; and with both taken, a third one is told.
    eventually("they are given back", || !hosts.held("gpu#0") && !hosts.held("gpu#1"));
    let mut holder = hosts.first.client();
    for _ in 0..2 {
        let answer = holder.cmd(&["LOCK", "gpu", "PERMITS", "2", "PX", "60000"]);
        assert!(matches!(answer, Reply::Array(_)), "{answer:?}");
    }
    let (status, said) = call(&hosts.second, line).end();
    assert!(status == Some(1) && said.contains("all 2 permits of gpu are taken"), "{said}");
}

const SHARDS: &str = "N workers, each its shard";

#[test]
fn each_worker_has_a_shard_and_a_late_one_writes_nothing() {
    let _shared = shared();
    // The proxies do not look at a permit before its holder writes, however busy the machine is.
    let hosts = Hosts::start("default_ttl: 10m\n  max_ttl: 10m");
    let worker = |proxy: &Proxy| {
        hosts.program(SHARDS, proxy.port(), &[], |text| {
            assert!(text.contains("SHARDS = 8\n"));
            text.replace("SHARDS = 8\n", "SHARDS = 2\n")
        })
    };
    let position = |shard: usize| -> usize {
        hosts.get(&format!("shard:{shard}:position")).map_or(0, |text| text.parse().unwrap())
    };
    let works = |shard: usize| {
        let before = position(shard);
        eventually("somebody works there", || position(shard) > before);
    };
    let one = worker(&hosts.first);
    eventually("it works", || position(0) + position(1) > 0);
    let (taken, free) = if position(0) > 0 { (0, 1) } else { (1, 0) };
    let two = worker(&hosts.second);
    works(free);
    works(taken);
    let _three = worker(&hosts.second);
    eventually("the third waits", || hosts.second.waiters() == 1);
    // One that dies: the third has its shard at once, long before the permit could run out.
    drop(two);
    works(free);
    // One that hangs: it writes nothing once another worker has its shard.
    freeze(&one.child);
    hosts.take_back(&format!("shard#{taken}"));
    let _four = worker(&hosts.second);
    works(taken);
    let stopped = position(taken);
    eventually("the new one is far ahead", || position(taken) > stopped + 3);
    let mut last = position(taken);
    kill_process(Pid::from_child(&one.child), Signal::CONT).unwrap();
    eventually("the late one waits", || {
        let now = position(taken);
        assert!(now >= last, "{now} after {last}");
        last = now;
        hosts.first.waiters() == 1
    });
    assert!(hosts.first.metric("lockgate_guarded_writes_total", "result=\"fenced\"") >= 1.0);
}
