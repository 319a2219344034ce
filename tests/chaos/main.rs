//! Real processes, and everything that can go wrong with them.
//!
//! Five lock nodes, three proxies and two dozen clients, each a process and each host in a network namespace, before
//! one data node. Nodes, proxies, clients and the data node are killed and stopped, cut off each way, made slow and
//! lossy; nodes forget, are flushed, exchanged, made replicas, have clocks that are wrong or jump, and full disks;
//! other clients of the nodes and of the data node flush scripts, kill and pause clients, and keep them busy and
//! full; proxies are upgraded, reloaded, terminated, and run out of file descriptors. Clients write under their
//! locks, in time and too late, and write down what they ask and are told; some share locks as readers, some are a stock
//! redis-py, and some lock as libraries do, by commands that the proxies adopt. A checker judges: never two holders at once, however a
//! connection ended; fences that grow, an answer to every request, grants and writes whenever a quorum and the data
//! node are up; of the writes, that what was acknowledged is there, what was refused is not, and none landed below a
//! larger fence; and that redis-py loses no update.
//!
//! Failovers of a lock node and of the data node have a deployment of their own ([`failover`]), and so have changes
//! of the lock nodes ([`change`]).
//!
//! `make test` runs the short form; `make chaos` the long one (`MINUTES`, `SEED`), and
//! shows that planted faults are found. It needs root.
//!
//! The tests have a binary of their own: it runs itself again for each client, and faults need the
//! machine alone.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod change;
mod checker;
mod client;
mod deployment;
mod directed;
mod failed_run;
mod failover;
mod fault;
mod history;
#[path = "../../src/simulation/history_page.rs"]
#[allow(dead_code, reason = "no votes are seen")]
mod history_page;
mod network;
mod report;
mod schedule;
#[path = "../support/mod.rs"]
mod support;
mod trace;
mod updates;
mod writes;

use std::{
    path::PathBuf,
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use client::Style;
use deployment::{Deployment, Options, Program};
use schedule::Pace;

/// The seed of the short form.
const SEED: u64 = 4;
/// Twice the proxies' `node_timeout`, in ms: by so much longer lock nodes hold adopted locks.
const ASIDE: u64 = 200;
/// The time without faults at the end of every run.
const CALM: Duration = Duration::from_secs(13);

/// Locks a mutex: two deployments at a time would starve each other.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the binary as it is delivered, or another to be tried (`LOCKGATE_BINARY`).
fn sound() -> (PathBuf, Option<&'static str>) {
    let other = std::env::var_os("LOCKGATE_BINARY").filter(|file| !file.is_empty());
    (other.map_or(PathBuf::from(env!("CARGO_BIN_EXE_lockgate")), PathBuf::from), None)
}

/// Returns options in which all nodes but one have clocks that are wrong, by a little or a lot.
fn everything(seed: u64) -> Options {
    Options {
        seed,
        style: Style::Mixed,
        clients: 16,
        sharers: 4,
        stock: 3,
        adopt: Some("enforce"),
        adopted: 5,
        stock_adopted: 3,
        past: 0,
        aside: ASIDE,
        keys: 10,
        max_ttl: 3000,
        quarantine: true,
        guards: true,
        proxy: sound(),
        node_clocks: [None, Some("-90000"), Some("+0 x1.005"), Some("+0 x0.995"), Some("+7200")],
        proxy_clocks: [Some("+0"), Some("-0.5"), None],
    }
}

/// Returns a number from the environment, or `otherwise`.
fn number(name: &str, otherwise: u64) -> u64 {
    let value = std::env::var(name).ok().filter(|value| !value.is_empty());
    value.map_or(otherwise, |value| value.parse().expect("a number"))
}

fn run(options: Options, length: Duration, pace: &Pace) {
    let _alone = alone();
    let mut deployment = Deployment::start(options);
    deployment.start_clients();
    let from = history::now();
    thread::sleep(Duration::from_secs(1));
    let spans = schedule::run(&mut deployment, length, pace, true);
    thread::sleep(CALM);
    let until = history::now();
    deployment.stop_clients();
    report::judge(&deployment, &spans, from, until);
}

/// No test of its own: the entry point of each client process that the tests start.
#[test]
#[ignore = "started by the other tests, as a process of its own"]
fn client_process() {
    if let Ok(plan) = std::env::var(client::VARIABLE) {
        client::run(client::Plan::decode(&plan));
    }
}

#[test]
fn locks_hold_while_everything_fails_once() {
    let pace = Pace { fault: 250..650, calm: 50..200, together: 3 };
    run(everything(number("LOCKGATE_SEED", SEED)), Duration::from_secs(30), &pace);
}

/// Returns options in which clients of lock libraries go to the data node through the proxies and past them.
fn bridged(seed: u64) -> Options {
    let adopt = Some("bridge");
    // A lock that is bridged cannot be shared.
    Options { adopt, clients: 12, sharers: 0, stock: 2, adopted: 4, past: 5, ..everything(seed) }
}

#[test]
#[ignore = "takes minutes: make chaos"]
fn bridged_locks_hold_while_everything_fails_once() {
    let pace = Pace { fault: 250..650, calm: 50..200, together: 3 };
    run(bridged(number("LOCKGATE_SEED", SEED)), Duration::from_secs(30), &pace);
}

/// Moves a fleet from one Redis to the lock nodes, and half the way back, while all its clients go on. LOCK clients
/// come once all proxies are bridged; clients that go past the proxies end before one is enforced.
#[test]
#[ignore = "takes minutes: make chaos"]
fn locks_hold_while_their_mode_changes() {
    let _alone = alone();
    let options = Options {
        adopt: Some("audit"),
        clients: 0,
        sharers: 0,
        stock: 0,
        adopted: 6,
        past: 5,
        // In mode audit a late reply shortens the lock, as on Redis.
        aside: 0,
        ..everything(number("LOCKGATE_SEED", SEED))
    };
    // Adopted locks last for somewhat longer than the longest TTL.
    let longest = Duration::from_millis(options.max_ttl + 500);
    let (work, pause) = (Duration::from_secs(6), Duration::from_millis(700));
    let mut deployment = Deployment::start(options);
    deployment.start_clients();
    thread::sleep(work);
    deployment.step_to("bridge", pause);
    deployment.start_more(Program::Own(Style::Writers), 6);
    deployment.start_more(Program::Own(Style::Late), 4);
    thread::sleep(work.max(longest));
    deployment.stop_past(true);
    thread::sleep(longest);
    deployment.step_to("enforce", pause);
    // Session locks that are held through the step get keys on the data node.
    deployment.start_more(Program::Own(Style::Sessions), 2);
    thread::sleep(work);
    deployment.step_to("bridge", pause);
    thread::sleep(longest);
    deployment.stop_past(false);
    deployment.start_more(Program::Past, 5);
    thread::sleep(work);
    // A client that has a session lock goes on for seconds.
    let until = history::now();
    deployment.stop_clients();
    report::judge(&deployment, &[], until - 1, until);
}

#[test]
#[ignore = "takes minutes: make chaos"]
fn locks_hold_while_everything_fails_for_minutes() {
    let seed = match number("LOCKGATE_SEED", 0) {
        0 => rand::random_range(1..1_000_000),
        seed => seed,
    };
    let length = Duration::from_secs(60 * number("LOCKGATE_MINUTES", 5));
    let pace = Pace { fault: 500..5000, calm: 100..5000, together: 3 };
    run(everything(seed), length, &pace);
}
