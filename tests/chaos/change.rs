//! Changes of the lock nodes, again and again, while clients lock: coordinators are killed, run at once or against
//! each other, and nodes of both sets forget, stand still or die meanwhile.
//!
//! All processes are on one host, without networks of their own: a node is cut off by stopping its process. One of
//! three proxies hears of each change late. The checker judges what clients were told.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use lockgate::tools::redis_server::RedisServer;
use rand::{RngExt, SeedableRng, rngs::StdRng, seq::SliceRandom};

use crate::{
    alone,
    checker::{self, Wrong},
    client::{self, Plan, Style},
    history::{self, Event, Time},
    number,
    support::{Proxy, Reply, eventually},
};

/// The number of nodes of which sets are made.
const POOL: usize = 7;
/// The number of proxies; the last one hears of changes late.
const PROXIES: usize = 3;
/// The longest TTL in ms.
const MAX_TTL: u64 = 3000;
/// How long a change may take, with all that goes wrong in it.
const LIMIT: Duration = Duration::from_secs(60);
const STYLES: [Style; 5] =
    [Style::Mixed, Style::ToTheEnd, Style::Sessions, Style::Late, Style::Mixed];
/// The number of clients of each style.
const CLIENTS: usize = 3;

/// What may happen to a node while the nodes are changed.
#[derive(Debug, Clone, Copy)]
enum Harm {
    None,
    /// It dies and comes back with nothing.
    Emptied,
    /// It dies, and comes back with nothing once the change is over.
    Killed,
    /// It stands still for a second.
    Frozen,
}

const HARMS: [Harm; 4] = [Harm::None, Harm::Emptied, Harm::Killed, Harm::Frozen];

/// Counts of what was done.
#[derive(Debug, Default)]
struct Counts {
    changes: usize,
    back_outs: usize,
    killed: usize,
    at_once: usize,
    harmed: usize,
    shared: usize,
}

/// All processes.
struct Scene {
    random: StdRng,
    pool: Vec<RedisServer>,
    proxies: Vec<Proxy>,
    /// The nodes of the pool that vote.
    now: Vec<usize>,
    /// The binary by which nodes are changed, and the fault planted in it.
    tool: (PathBuf, Option<&'static str>),
    clients: Vec<(Child, PathBuf)>,
    control: PathBuf,
    counts: Counts,
    /// The events and their times.
    log: Vec<(Time, String)>,
    directory: tempfile::TempDir,
}

impl Scene {
    fn start(seed: u64, tool: (PathBuf, Option<&'static str>)) -> Scene {
        let pool: Vec<RedisServer> =
            (0..POOL).map(|_| RedisServer::start(&[]).expect("lock node")).collect();
        let now = vec![0, 1, 2];
        let urls: Vec<String> = now.iter().map(|node: &usize| pool[*node].url()).collect();
        let first = Proxy::with()
            .node_urls(&urls)
            .locks(&format!("max_ttl: {MAX_TTL}ms"))
            .locks(&format!("default_ttl: {MAX_TTL}ms"))
            .locks("node_timeout: 200ms")
            .start();
        let mut proxies = vec![first];
        while proxies.len() < PROXIES {
            proxies.push(Proxy::beside(&proxies[0]).start());
        }
        let directory = tempfile::tempdir().expect("directory");
        let control = directory.path().join("control");
        fs::write(&control, "go on").expect("control");
        let random = StdRng::seed_from_u64(seed);
        let (clients, counts, log) = (Vec::new(), Counts::default(), Vec::new());
        let mut scene =
            Scene { random, pool, proxies, now, tool, clients, control, counts, log, directory };
        scene.await_all_nodes();
        for number in 0..STYLES.len() * CLIENTS {
            scene.start_client(seed, number);
        }
        scene
    }

    fn start_client(&mut self, seed: u64, number: usize) {
        let style = STYLES[number % STYLES.len()];
        let addresses = self.proxies.iter().map(|proxy| address(proxy.port()));
        // One client of three keeps to the proxy that hears late.
        let proxies = match number % CLIENTS {
            0 => addresses.skip(PROXIES - 1).collect(),
            _ => addresses.take(PROXIES - 1).collect(),
        };
        let history = self.directory.path().join(format!("history-{number}"));
        let plan = Plan {
            seed: seed * 1000 + number as u64,
            number,
            style,
            proxies,
            history: history.clone(),
            control: self.control.clone(),
            keys: 12,
            max_ttl: MAX_TTL,
            writes: false,
            is_past: false,
            aside: 0,
        };
        let child = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "client_process", "--ignored"])
            .env(client::VARIABLE, plan.encode())
            .stdout(Stdio::null())
            .spawn()
            .expect("a client");
        self.clients.push((child, history));
    }

    fn note(&mut self, what: String) {
        self.log.push((history::now(), what));
    }

    fn urls(&self, nodes: &[usize]) -> Vec<String> {
        nodes.iter().map(|node| self.pool[*node].url()).collect()
    }

    /// Writes both lists into a proxy's file and makes the proxy read it.
    fn list(&self, proxy: usize, nodes: &[usize], next: &[usize]) {
        let proxy = &self.proxies[proxy];
        let text = fs::read_to_string(proxy.config_file()).expect("file");
        let end = text.find("  nodes:").expect("a list of nodes");
        let (nodes, next) = (self.urls(nodes), self.urls(next));
        let lists = format!("{}  nodes: {nodes:?}\n  next_nodes: {next:?}\n", &text[..end]);
        fs::write(proxy.config_file(), lists).expect("file");
        let done = || proxy.metric("lockgate_config_reloads_total", "result=\"ok\"");
        let before = done();
        proxy.reload();
        eventually("the file was read again", || done() > before);
    }

    /// Returns the nodes that a proxy asks, and how many of them vote.
    fn asked(&self, proxy: usize) -> (Vec<String>, usize) {
        let Reply::Array(all) = self.proxies[proxy].client().cmd(&["LOCKGATE", "NODES"]) else {
            return (Vec::new(), 0);
        };
        let (mut addresses, mut voting) = (Vec::new(), 0);
        for node in &all {
            let Reply::Array(fields) = node else { panic!("{node:?}") };
            let Reply::Bulk(address) = &fields[1] else { panic!("{node:?}") };
            addresses.push(String::from_utf8_lossy(address).into_owned());
            voting += usize::from(fields[3] == Reply::Int(1));
        }
        (addresses, voting)
    }

    /// Waits until each proxy has all nodes' votes.
    fn await_all_nodes(&self) {
        let addresses: Vec<String> =
            self.now.iter().map(|node| self.pool[*node].addr().to_string()).collect();
        let deadline = Instant::now() + LIMIT;
        for proxy in 0..PROXIES {
            loop {
                let asked = self.asked(proxy);
                if asked == (addresses.clone(), addresses.len()) {
                    break;
                }
                assert!(
                    Instant::now() < deadline,
                    "proxy {proxy}: {addresses:?}, not {asked:?}\n{}\n{:#?}\n{}",
                    self.proxies[proxy].log(),
                    self.log,
                    self.shown(),
                );
                thread::sleep(Duration::from_millis(20));
            }
        }
    }

    fn tool(&self, file: &Path, flags: &[&str]) -> Command {
        let mut command = Command::new(&self.tool.0);
        command.arg("nodes").args(flags).arg(file);
        command.envs(self.tool.1.map(|fault| ("LOCKGATE_PLANT", fault)));
        command
    }

    /// Returns the first line of what the tool shows: which nodes vote.
    fn shown(&self) -> String {
        let output = self.tool(&self.proxies[0].config_file(), &[]).output().expect("lockgate");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.lines().next().unwrap_or_default().to_owned()
    }

    /// Makes one change, or tries to, whatever goes wrong. Afterwards all is well.
    fn change(&mut self) {
        let size = if self.random.random_bool(0.3) { 5 } else { 3 };
        let mut next: Vec<usize> = (0..POOL).collect();
        next.shuffle(&mut self.random);
        next.truncate(size);
        if next == self.now {
            return;
        }
        self.counts.shared += usize::from(next.iter().any(|node| self.now.contains(node)));
        let now = self.now.clone();
        (0..PROXIES - 1).for_each(|proxy| self.list(proxy, &now, &next));
        // No more than one node of both sets is harmed: a quorum of each is needed.
        let all: Vec<usize> = [&now[..], &next[..]].concat();
        let harmed = all[self.random.random_range(0..all.len())];
        let harm = HARMS[self.random.random_range(0..HARMS.len())];
        self.note(format!("{now:?} to {next:?}, node {harmed}: {harm:?}"));
        self.attempt(harm, harmed);
        let is_changed = self.settle();
        if matches!(harm, Harm::Killed) {
            self.pool[harmed].restart().expect("lock node");
        }
        if is_changed {
            self.counts.changes += 1;
            // The last proxy hears of the change now.
            thread::sleep(Duration::from_millis(self.random.random_range(0..600)));
            self.list(PROXIES - 1, &now, &next);
            self.now = next;
            self.await_all_nodes();
        } else {
            self.counts.back_outs += 1;
            self.await_all_nodes();
        }
        let now = self.now.clone();
        (0..PROXIES).for_each(|proxy| self.list(proxy, &now, &[]));
    }

    /// Makes the first attempt: its coordinator may be killed, another may meet it, and a node may be harmed.
    fn attempt(&mut self, harm: Harm, harmed: usize) {
        let (file, other) = (self.proxies[0].config_file(), self.proxies[1].config_file());
        let quiet = |mut command: Command| {
            command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("lockgate")
        };
        let mut first = quiet(self.tool(&file, &["--change"]));
        let second = self.random.random_bool(0.4).then(|| {
            thread::sleep(Duration::from_millis(self.random.random_range(0..60)));
            let flags = if self.random.random_bool(0.5) { "--change" } else { "--back-out" };
            quiet(self.tool(&other, &[flags]))
        });
        thread::sleep(Duration::from_millis(self.random.random_range(0..80)));
        let node = &mut self.pool[harmed];
        match harm {
            Harm::None => {}
            Harm::Emptied => node.restart().expect("lock node"),
            Harm::Killed => node.kill().expect("lock node"),
            Harm::Frozen => {
                node.freeze().expect("lock node");
                thread::sleep(Duration::from_secs(1));
                node.thaw().expect("lock node");
            }
        }
        self.counts.harmed += usize::from(!matches!(harm, Harm::None));
        if self.random.random_bool(0.5) {
            thread::sleep(Duration::from_millis(self.random.random_range(0..40)));
            if first.try_wait().expect("status").is_none() {
                self.counts.killed += 1;
            }
            first.kill().expect("kill");
        }
        first.wait().expect("status");
        if let Some(mut second) = second {
            self.counts.at_once += 1;
            second.wait().expect("status");
        }
    }

    /// Completes the change, or takes it back. Returns whether it is made.
    fn settle(&mut self) -> bool {
        let deadline = Instant::now() + LIMIT;
        let file = self.proxies[0].config_file();
        let backs_out = self.random.random_bool(0.3);
        let mut tried = 0;
        loop {
            let shown = self.shown();
            if shown.starts_with("locks.next_nodes vote") {
                // The next nodes may not have begun, as their coordinator is dead.
                let output = self.tool(&file, &["--change"]).output().expect("lockgate");
                let error = String::from_utf8_lossy(&output.stderr).into_owned();
                self.note(format!("--change: {shown}: {}", error.trim()));
                if output.status.success() || error.contains("changed already") {
                    return true;
                }
                assert!(Instant::now() < deadline, "it does not begin: {:#?}", self.log);
                continue;
            }
            // A change that did not begin is tried again, unless it is taken back.
            if shown.starts_with("locks.nodes vote") && (backs_out || tried > 1) {
                return false;
            }
            tried += 1;
            let flags = if backs_out { "--back-out" } else { "--change" };
            let Output { stderr, .. } = self.tool(&file, &[flags]).output().expect("lockgate");
            let error = String::from_utf8_lossy(&stderr).into_owned();
            self.note(format!("{flags}: {shown}: {}", error.trim()));
            assert!(Instant::now() < deadline, "neither made nor taken back: {:#?}", self.log);
        }
    }

    fn stop_clients(&mut self) {
        fs::write(&self.control, "").expect("control");
        let deadline = Instant::now() + LIMIT;
        for (child, _) in &mut self.clients {
            while child.try_wait().expect("status").is_none() {
                assert!(Instant::now() < deadline, "a client does not end");
                thread::sleep(Duration::from_millis(10));
            }
        }
    }

    fn histories(&self) -> Vec<Vec<(Time, Event)>> {
        self.clients.iter().map(|(_, file)| history::read(file)).collect()
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        for (child, _) in &mut self.clients {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn address(port: u16) -> SocketAddr {
    ([127, 0, 0, 1], port).into()
}

/// Returns the binary that is tested.
fn tool() -> (PathBuf, Option<&'static str>) {
    (env!("CARGO_BIN_EXE_lockgate").into(), None)
}

/// Changes the nodes for `length`, and returns what is wrong.
fn run(seed: u64, length: Duration, tool: (PathBuf, Option<&'static str>)) -> Vec<String> {
    let _alone = alone();
    let mut scene = Scene::start(seed, tool);
    let (from, until) = (history::now(), Instant::now() + length);
    thread::sleep(Duration::from_millis(500));
    while Instant::now() < until {
        scene.change();
        thread::sleep(Duration::from_millis(scene.random.random_range(100..1500)));
    }
    let to = history::now();
    scene.stop_clients();
    let verdict = checker::check(&scene.histories());
    let mut wrong: Vec<String> = verdict.wrong.iter().map(Wrong::to_string).collect();
    if verdict.over != scene.clients.len() {
        wrong.push(format!("{} of {} clients ended", verdict.over, scene.clients.len()));
    }
    let (gap, _) = checker::longest_gap(&verdict.granted, from, to);
    let checker::Counts { grants, renewals, no_quorum, losses, .. } = verdict.counts;
    println!(
        "change: seed={seed} seconds={} {:?} grants={grants} renewals={renewals} \
         noquorum={no_quorum} losses={losses} longest_without={} ms wrong={}",
        (to - from) / 1_000_000,
        scene.counts,
        gap / 1000,
        wrong.len(),
    );
    if !wrong.is_empty() {
        scene.log.iter().for_each(|(time, what)| println!("{time} {what}"));
    }
    assert!(scene.counts.changes > 0 && grants > 0, "nothing happened");
    wrong
}

#[test]
#[ignore = "takes long: make chaos"]
fn locks_hold_while_their_nodes_are_changed() {
    let wrong = run(number("LOCKGATE_SEED", 1), Duration::from_secs(7), tool());
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
#[ignore = "takes minutes: make chaos"]
fn locks_hold_while_their_nodes_are_changed_for_minutes() {
    let seed = match number("LOCKGATE_SEED", 0) {
        0 => rand::random_range(1..1_000_000),
        seed => seed,
    };
    let wrong = run(seed, Duration::from_secs(60 * number("LOCKGATE_MINUTES", 5)), tool());
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// The copy leaves out the holders of the locks.
#[test]
#[ignore = "needs a build with planted faults: make chaos"]
fn a_change_that_copies_no_holder_is_found() {
    let binary = std::env::var_os("LOCKGATE_PLANTED").expect("LOCKGATE_PLANTED: make chaos");
    let wrong = run(1, Duration::from_secs(10), (binary.into(), Some("no copy")));
    let found = wrong.iter().find(|wrong| wrong.contains("at once"));
    println!("{} are wrong, the first: {:?}", wrong.len(), found.expect("two holders"));
}
