//! Clients that share locks as readers, beside others that take the same locks alone.
//!
//! They hold leases and session locks, wait, renew and give back over the connection that was granted the lock, or
//! over one to the other proxy, hang up, and forget. Meanwhile everything fails that may fail. Then nothing fails any
//! more, and of clients that take turns without a pause each must get its turn.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::time::{Instant, sleep};

use super::{
    DRIFT_FACTOR, MAX_TTL, NODE_TIMEOUT, Planted,
    client::ms,
    clock,
    connection::{Reply, SessionUnderTest, shared},
    hold,
    network::Network,
    redis::Edit,
    seeds,
    shared_checker::{Share, SharedChecker},
    simulate_by,
    world::{RunOutcome, dial, lock_nodes, must_end},
};
use crate::{
    config::LocksConfig,
    lock::{Engine, initialise, seams::validity},
};

const PROXIES: usize = 2;
const CLIENTS: usize = 8;
const KEYS: [&str; 2] = ["a", "b"];
/// The lock of those that take turns when nothing fails: so many readers that it always has one unless new ones are
/// barred, and one client of the other proxy that takes it alone. It pauses: here no proxy hears of another's releases.
const BUSY: &str = "busy";
const BUSY_READERS: usize = 8;
const DEFAULT_TTL: Duration = Duration::from_millis(600);
/// For how long everything fails, and for how long clients take turns afterwards.
const PLAYED: Duration = Duration::from_secs(40);
const TURNS: Duration = Duration::from_secs(15);
/// The longest wait for a turn, in ms: intents bar readers for half of the time.
const PATIENCE: &str = "8000";
/// The seeds tried.
const SEEDS: u64 = 4;

/// Returns the edits of scripts that plant a fault of shared locks.
pub(super) fn edits(planted: Planted) -> &'static [Edit] {
    const ACQUIRE: &str = "-- Takes a lock on this node and";
    const READ: &str = "-- Adds a reader to a lock";
    const SETS: &str = "-- The set of a lock's readers";
    match planted {
        Planted::BarringNobody => &[(ACQUIRE, "last >= now", "false")],
        Planted::EndedCounted => &[
            (ACQUIRE, "last >= now", "last > 0"),
            (SETS, "tonumber(score) >= now then", "tonumber(score) then"),
        ],
        Planted::HealOverReaders => {
            &[("-- Puts a lock back", " or settle(KEYS[1], time()) then", " then")]
        }
        Planted::Outlasting => &[(
            SETS,
            "redis.call('PEXPIREAT', key, text(last + 1))",
            "redis.call('PEXPIREAT', key, text(math.max(last + 1, now + redis.call('PTTL', key))))",
        )],
        Planted::IntentsIgnored => {
            &[(READ, "elseif score and score <", "elseif false and score <")]
        }
        _ => &[],
    }
}

/// A client with a connection to each proxy.
struct LockSharer {
    connections: [SessionUnderTest; PROXIES],
    network: Arc<Network>,
    checker: Arc<SharedChecker>,
    name: usize,
}

/// A lock that a client has, alone or as a reader.
struct HeldPart<'a> {
    key: &'static str,
    name: &'a str,
    token: &'a str,
    share: Share,
    /// The connection that was granted it.
    over: usize,
    is_session_lock: bool,
    /// Whether the client knows that it no longer has it.
    is_over: Arc<AtomicBool>,
    /// Whether a RENEW got no answer. It may be carried out late, and for a shorter time (docs/limits.md): the client
    /// sends no other.
    is_unanswered: AtomicBool,
}

impl<'a> HeldPart<'a> {
    fn new(
        (key, name, token): (&'static str, &'a str, &'a str),
        share: Share,
        over: usize,
        is_session_lock: bool,
    ) -> HeldPart<'a> {
        let (is_over, is_unanswered) = (Arc::default(), AtomicBool::default());
        HeldPart { key, name, token, share, over, is_session_lock, is_over, is_unanswered }
    }
}

impl HeldPart<'_> {
    /// Returns the part as the checker knows it.
    fn known(&self) -> (&'static str, &str, Share) {
        (self.key, self.name, self.share)
    }

    /// Whether no other client has the token, so that it tells the part on any connection.
    fn is_told_by_token(&self) -> bool {
        self.token == self.name
    }
}

impl LockSharer {
    fn below(&self, limit: u64) -> u64 {
        self.network.below(limit)
    }

    /// Returns true once in `times` calls on average.
    fn one_in(&self, times: u64) -> bool {
        self.below(times) == 0
    }

    fn any_ttl(&self) -> u64 {
        50 + self.below(MAX_TTL.as_millis() as u64 - 49)
    }

    async fn run(mut self, is_over: Arc<AtomicBool>) {
        for round in 0.. {
            if is_over.load(Ordering::Relaxed) {
                break;
            }
            let name = format!("c{}.{round}", self.name);
            self.round(&name).await;
            sleep(ms(self.below(100))).await;
        }
        self.connections.iter_mut().for_each(SessionUnderTest::close);
    }

    async fn round(&mut self, name: &str) {
        for connection in &mut self.connections {
            connection.open().await;
        }
        let (key, over) = (KEYS[self.below(2) as usize], self.below(2) as usize);
        let (is_session_lock, ttl) = (self.one_in(3), self.any_ttl());
        let token = if self.one_in(4) { "host" } else { name };
        let (px, wait) = (ttl.to_string(), self.below(3000).to_string());
        let share = if self.one_in(3) { Share::Writer } else { Share::Reader };
        let mut words = vec!["LOCK", key, token];
        if share == Share::Reader {
            words.push("SHARED");
        }
        if !is_session_lock {
            words.extend(["PX", &px]);
        }
        if !self.one_in(3) {
            words.extend(["WAIT", &wait]);
        }
        // Some clients hang up in the middle.
        let patience = if self.one_in(6) { ms(self.below(300)) } else { ms(60_000) };
        let part = HeldPart::new((key, name, token), share, over, is_session_lock);
        if self.take(&part, &words, patience).await {
            self.hold(&part, ttl).await;
            self.give_back(&part).await;
        }
        self.connections[over].tell_nobody();
    }

    /// Sends a LOCK and notes its outcome. The holder of a session lock will be told of its loss.
    async fn take(&mut self, part: &HeldPart<'_>, words: &[&str], patience: Duration) -> bool {
        let said = self.connections[part.over].pipeline(&[words], patience).await;
        let reply = said.ok().and_then(|said| said.into_iter().next());
        let Some((fence, left)) = reply.as_ref().and_then(Reply::grant) else {
            let why = reply.as_ref().map_or("hung up", Reply::text);
            self.checker.checker.refused(part.key, part.name, why);
            return false;
        };
        let validity = (!part.is_session_lock).then(|| ms(left));
        part.is_over.store(false, Ordering::Relaxed);
        self.checker.granted(part.known(), fence, validity);
        if part.is_session_lock {
            let (checker, is_over) = (self.checker.clone(), part.is_over.clone());
            let (key, name) = (part.key, part.name.to_owned());
            self.connections[part.over].tell(Box::new(move |what| {
                if what.is_none_or(|what| what == key) && !is_over.swap(true, Ordering::Relaxed) {
                    let why = if what.is_some() { "lost" } else { "closed" };
                    checker.ended(key, &name, why);
                }
            }));
        }
        true
    }

    /// Holds a lock for a while, and renews it now and then.
    async fn hold(&mut self, part: &HeldPart<'_>, ttl: u64) {
        let is_lease = !part.is_session_lock;
        for _ in 0..self.below(4) {
            let pause = ms(self.below(ttl / 2));
            self.connections[part.over].listen(pause).await;
            match self.below(4) {
                0 => {}
                1 if is_lease => {
                    // The client repeats its LOCK, as after a time-out.
                    let px = self.any_ttl().to_string();
                    let mut words = vec!["LOCK", part.key, part.token, "PX", &px];
                    if part.share == Share::Reader {
                        words.push("SHARED");
                    }
                    self.take(part, &words, ms(60_000)).await;
                }
                2 if is_lease && part.is_told_by_token() => self.renew(part, 1 - part.over).await,
                _ => self.renew(part, part.over).await,
            }
        }
        let pause = ms(self.below(ttl));
        self.connections[part.over].listen(pause).await;
    }

    async fn renew(&mut self, part: &HeldPart<'_>, over: usize) {
        if part.is_unanswered.load(Ordering::Relaxed) {
            return;
        }
        let ttl = self.any_ttl();
        let px = ttl.to_string();
        let mut words = vec!["RENEW", part.key];
        if part.is_told_by_token() {
            words.push(part.token);
        }
        words.extend(["PX", &px]);
        let least = validity(ms(ttl), Duration::ZERO, DRIFT_FACTOR).unwrap_or_default();
        self.checker.asked(part.key, part.name, least);
        let reply = self.connections[over].ask(&words).await;
        if part.is_over.load(Ordering::Relaxed) {
            return;
        }
        match reply.ok().and_then(|reply| reply.number()) {
            Some(0) => {
                part.is_over.store(true, Ordering::Relaxed);
                self.checker.ended(part.key, part.name, "not renewed");
            }
            Some(left) => {
                self.checker.renewed(part.known(), (!part.is_session_lock).then(|| ms(left)));
            }
            None => part.is_unanswered.store(true, Ordering::Relaxed),
        }
    }

    async fn give_back(&mut self, part: &HeldPart<'_>) {
        let (over, is_lease) = (part.over, !part.is_session_lock);
        if is_lease && self.one_in(10) {
            // Some clients forget to unlock. The connection is closed: over it, an UNLOCK without a token would name
            // what was left.
            return self.connections[over].close();
        }
        if !part.is_over.swap(true, Ordering::Relaxed) {
            self.checker.ended(part.key, part.name, "unlocked");
        }
        let mut words = vec!["UNLOCK", part.key];
        if part.is_told_by_token() {
            words.push(part.token);
        }
        match self.below(4) {
            0 if !is_lease => self.connections[over].close(),
            1 if is_lease && part.is_told_by_token() => {
                self.connections[1 - over].open().await;
                let _ = self.connections[1 - over].ask(&words).await;
            }
            _ => {
                let said = self.connections[over].ask(&words).await;
                if !said.is_ok_and(|reply| reply.number().is_some()) {
                    // The connection may go on holding a session lock.
                    self.connections[over].close();
                }
            }
        }
    }

    /// Takes the busy lock again and again, when nothing fails, and waits for it each time.
    async fn take_turns(mut self, share: Share, is_over: Arc<AtomicBool>) {
        let over = usize::from(share == Share::Writer);
        for round in 0.. {
            if is_over.load(Ordering::Relaxed) {
                break;
            }
            self.connections[over].open().await;
            let name = format!("t{}.{round}", self.name);
            let mut words = vec!["LOCK", BUSY, &name, "WAIT", PATIENCE];
            if share == Share::Reader {
                words.push("SHARED");
            }
            let is_session_lock = self.one_in(2);
            if !is_session_lock {
                words.extend(["PX", "1400"]);
            }
            let key = BUSY;
            let part = HeldPart::new((key, &name, &name), share, over, is_session_lock);
            let since = Instant::now();
            let is_granted = self.take(&part, &words, ms(60_000)).await;
            let (checker, waited) = (&self.checker.checker, since.elapsed());
            checker.must(is_granted, &format!("{share:?} {name} starves: {waited:?}"));
            if !is_granted {
                continue;
            }
            let (longest, pause) = if share == Share::Reader { (400, 20) } else { (100, 600) };
            let held = ms(20 + self.below(longest));
            self.connections[over].listen(held).await;
            let is_lost = part.is_over.swap(true, Ordering::Relaxed);
            self.checker.ended(key, &name, "unlocked");
            let said = self.connections[over].ask(&["UNLOCK", BUSY, &name]).await;
            let is_held = !is_lost && said.is_ok_and(|reply| reply.number() == Some(1));
            self.checker.checker.must(is_held, &format!("{share:?} {name} has lost it"));
            self.connections[over].tell_nobody();
            sleep(ms(self.below(pause))).await;
        }
        self.connections.iter_mut().for_each(SessionUnderTest::close);
    }
}

fn config(proxy: usize, nodes: usize) -> LocksConfig {
    LocksConfig {
        nodes: lock_nodes(proxy, 0..nodes),
        max_ttl: MAX_TTL,
        default_ttl: DEFAULT_TTL,
        node_timeout: NODE_TIMEOUT,
        node_silence: ms(800),
        drift_factor: DRIFT_FACTOR,
        shared: true,
        ..LocksConfig::default()
    }
}

/// Makes something fail now and then.
async fn fail(network: Arc<Network>, data: Arc<Network>, checker: Arc<SharedChecker>) {
    loop {
        sleep(ms(50 + network.below(700))).await;
        if network.below(10) == 0 {
            checker.checker.happened(&format!("data: {}", data.disturb(CLIENTS * PROXIES)));
        } else {
            checker.checker.happened(&network.fail(PROXIES));
        }
    }
}

/// Waits for `time`, and looks meanwhile at what scripts make of the sets of readers.
async fn look(network: &Network, checker: &SharedChecker, time: Duration) {
    let until = Instant::now() + time;
    while Instant::now() < until {
        sleep(ms(100)).await;
        network.wrong().iter().for_each(|what| checker.checker.must(false, what));
    }
}

fn is_free(network: &Network, checker: &SharedChecker) {
    let left = network.locks();
    checker.checker.must(left.iter().all(Vec::is_empty), &format!("left behind: {left:?}"));
}

async fn live(seed: u64, planted: Planted) -> RunOutcome {
    let (nodes, delay) = ([3, 5][usize::from(seed.is_multiple_of(3))], ms(3));
    let network = Network::new(seed, nodes, 1.09, delay);
    network.keep_time(true);
    network.edit(planted.edits());
    let data = Network::of_data(seed, delay, 1.0, false, false, false);
    dial(&network, Some(&data));
    let checker = Arc::new(SharedChecker::new());
    initialise(&config(0, nodes)).await.unwrap();
    let begun = Instant::now();
    let engines: Vec<Arc<Engine>> = (0..PROXIES)
        .map(|proxy| Engine::start_alone(&config(proxy, nodes), clock(proxy, begun)))
        .collect();
    sleep(Duration::from_secs(2)).await;
    // By now each proxy has seen all clocks.
    network.keep_time(false);
    let client = |name: usize| {
        let connections = [0, 1].map(|proxy| {
            let shared = shared(&engines[proxy], config(proxy, nodes), None, None);
            SessionUnderTest::new(shared, data.clone(), PROXIES * name + proxy)
        });
        LockSharer { connections, network: network.clone(), checker: checker.clone(), name }
    };
    let is_over = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> =
        (0..CLIENTS).map(|name| tokio::spawn(client(name).run(is_over.clone()))).collect();
    let failing = tokio::spawn(fail(network.clone(), data.clone(), checker.clone()));
    look(&network, &checker, PLAYED).await;
    failing.abort();
    is_over.store(true, Ordering::Relaxed);
    network.heal();
    data.heal();
    let told = ("a client never ends", &*checker.checker);
    must_end(clients, Duration::from_secs(60), told).await;
    // By now nodes are out of quarantine, and forgotten locks have run out.
    look(&network, &checker, Duration::from_secs(10)).await;
    is_free(&network, &checker);
    let is_over = Arc::new(AtomicBool::new(false));
    let turns = (0..=BUSY_READERS).map(|name| {
        let share = if name < BUSY_READERS { Share::Reader } else { Share::Writer };
        tokio::spawn(client(name).take_turns(share, is_over.clone()))
    });
    let turns: Vec<_> = turns.collect();
    look(&network, &checker, TURNS).await;
    is_over.store(true, Ordering::Relaxed);
    must_end(turns, Duration::from_secs(60), told).await;
    look(&network, &checker, Duration::from_secs(3)).await;
    is_free(&network, &checker);
    let [reads, writes] = checker.grants_of(BUSY);
    let what = format!("{reads} reads and {writes} writes in {TURNS:?}");
    checker.checker.happened(&what);
    checker.checker.must(reads > 50 && writes > 10, &what);
    checker.checker.healed(network.heals());
    RunOutcome::of(&checker.checker)
}

fn simulate(seed: u64, planted: Planted) -> RunOutcome {
    simulate_by(seed, planted, live)
}

#[test]
fn who_has_a_lock_alone_has_it_beside_no_reader_and_nobody_starves() {
    let seeds = seeds(SEEDS);
    let tried = (seeds.end - seeds.start) as usize;
    let happened = hold(seeds, simulate);
    let is_much = happened.grants > 30 * tried && happened.heals > 5 * tried;
    assert!(tried == 1 || is_much, "hardly anything happened");
}

/// Checks that the checker says this of some seed.
fn is_found(planted: Planted, what: &str) {
    let says = |seed: &u64| simulate(*seed, planted).faults.iter().any(|f| f.contains(what));
    let found = (0..60).find(says);
    println!("{planted:?}, {what:?}, is found by seed {found:?}");
    assert!(found.is_some(), "{planted:?} is not found by {what:?}");
}

#[test]
fn readers_that_keep_no_writer_out_are_found() {
    is_found(Planted::BarringNobody, "beside");
}

#[test]
fn readers_that_count_after_their_end_are_found() {
    is_found(Planted::EndedCounted, "though nobody has it");
    is_found(Planted::EndedCounted, "counts again");
}

#[test]
fn a_lock_that_is_put_back_over_a_reader_is_found() {
    // On that node alone, most often: a quorum of the others still has the reader.
    is_found(Planted::HealOverReaders, "has not ended");
}

#[test]
fn sets_that_outlast_their_readers_are_found() {
    is_found(Planted::Outlasting, "later than its last member");
}

#[test]
fn writers_that_readers_keep_out_for_ever_are_found() {
    is_found(Planted::IntentsIgnored, "starves");
}
