//! Runs the real engine, its real connections and scripts, and the real sessions of clients against
//! simulated nodes, under virtual time and a network whose faults follow from a seed.
//!
//! Everything below the bytes of the sockets is simulated: the lock nodes and the data node by [`redis`], the ways to
//! them and their faults by [`network`]. A [`client`] locks and writes over a [`connection`] that a session of the
//! product serves, by LOCK or, where it is [`library_client`], as lock libraries do; where such locks are [`bridged`],
//! some clients go past the proxies. [`checker`] checks what must hold, [`writes`] what must hold of guarded writes. In
//! [`failover`] Sentinels promote a lock node's replica; in [`pools`] programs share tokens and connections, in
//! [`same_token`] they send all commands by one token in any order; in [`lengths`] one proxy grants for longer than the
//! other; in [`apart`] the mode of an adopt rule differs by a step; in [`several`] clients take sets of locks by MLOCK,
//! and permits, and [`set_checker`] checks what must hold of these; in [`shared_locks`] they share locks as readers,
//! [`shared_checker`] checks that nobody has a lock alone beside them, and [`set_watch`] watches what nodes make of
//! their readers.
//! A seed that fails does so each time: `LOCKGATE_SEED=n cargo test --lib simulation` prints its history. What
//! [`recorder`] has seen of it is a page in `target/tests/` ([`history_page`]).
//! `LOCKGATE_SEEDS=n` tries `n` seeds.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod apart;
mod bridged;
mod change;
mod checker;
mod client;
mod connection;
mod failover;
mod history_page;
mod kept_keys;
mod lengths;
mod library_client;
mod memory;
mod network;
mod pools;
mod real_lua;
mod reasons;
mod recorder;
mod redis;
mod same_token;
mod set_checker;
mod set_watch;
mod several;
mod shared_checker;
mod shared_locks;
mod sorted_set;
mod step_to_audit;
mod watched_pair;
mod world;
mod writes;

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::time::{Instant, sleep};

use crate::{
    adopt::Adoption,
    bridge::Bridge,
    config::{AdoptMode, LocksConfig, NoTtlPolicy},
    guard::fences::NOT_COMPARED,
    lock::{
        Engine, WallClock, initialise, padded,
        seams::{
            LATE, NEW_IF_BARE, NO_HEALS, NOT_ASKED_AGAIN, NOT_CONFIRMED, NOT_RETRIED, OWN_LONGEST,
            TOO_SMALL, UNDONE, UNWATCHED, set_seed,
        },
    },
    net::memory_stream::set_network,
    session::planted::{PlantedFault, plant},
};
use bridged::Modes;
use checker::{Checker, Happened};
use client::{Client, full};
use connection::{SessionUnderTest, bridge, rules, shared};
use network::Network;
use redis::{Edit, Illness};
use world::{RunOutcome, dial, lock_nodes, must_end};

const MAX_TTL: Duration = Duration::from_millis(1500);
const NODE_TIMEOUT: Duration = Duration::from_millis(100);
/// Large, so that clocks may be far from right.
const DRIFT_FACTOR: f64 = 0.1;
/// The number of proxies. The last one starts later than the others, in every other seed when all
/// nodes have just forgotten all.
const PROXIES: usize = 3;
const CLIENTS: usize = 6;
/// The number of clients that lock as libraries do, in seeds that have some ([`adopts`]).
const ADOPTED: usize = 3;
/// The number of clients that go past the proxies, in seeds that have a bridge ([`bridges`]).
const PAST: usize = 2;
const ROUNDS: usize = 8;
/// The number of seeds tried in `make test`; see [`seeds`].
const SEEDS: u64 = 20;
/// The most pages that are written of the seeds of one test that fail.
const PAGES: usize = 10;

/// A fault planted on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Planted {
    Nothing,
    /// Quorums are one too small.
    SmallQuorum,
    /// A release does not check whose the lock is.
    CarelessRelease,
    /// Nothing is set aside for clocks that run fast.
    NoDrift,
    /// A node that was restarted votes at once.
    NoQuarantine,
    /// LOCK does not announce its fence on the data node.
    NoRaise,
    /// The client is told the validity from before its fence was announced on the data node.
    ValidityOfBefore,
    /// Neither script nor proxy compares fences.
    NoCompare,
    /// WATCH watches nothing.
    NoWatch,
    /// A fence that the data node has forgotten is announced again without asking the lock nodes.
    NoAsking,
    /// Jumps of nodes' clocks are not watched for.
    Unwatched,
    /// A held lock is granted to any client that has the holder's token.
    ByToken,
    /// Any client that has the holder's token releases the lock.
    ReleaseByToken,
    /// A release that a node has answered with an error is not followed up.
    NotAskedAgain,
    /// A node without a marker counts as new.
    NewIfBare,
    /// A lock is not put back on nodes that have lost it.
    NoHeals,
    /// Locks are renewed when they have nearly run out.
    Late,
    /// A renewal that got no quorum is not tried again.
    NotRetried,
    /// What a node answers late is undone there though the lock was granted.
    Undone,
    /// A write is sent along with others whether its lock is held or not.
    Together,
    /// An answer does not wait for earlier replies.
    OutOfPlace,
    /// A session lock is renewed after its client has gone.
    Kept,
    /// An adopted lock is held for its TTL from when it was asked for.
    ShortHold,
    /// A lock library is told that its lock was prolonged, whichever client has it.
    ExtendedAnyway,
    /// A blind DEL ends a LOCK client's lock too.
    BlindForAll,
    /// A connection forgets that it was refused a lock.
    ForgottenRefusal,
    /// A refusal bars all later grants of the token too.
    AnyGrant,
    /// An UNLOCK without a token means any lock that the connection holds.
    AnyAttempt,
    /// A bridged lock does not take its key on the data node.
    NoKey,
    /// A bridged lock's key lasts no longer than the lock.
    KeyUnpadded,
    /// A bridged lock's key is freed when the lock is renewed.
    KeyFreed,
    /// A release frees the key of a bridged lock, whichever client has it.
    KeyFreedForAll,
    /// A master's votes count, however long ago the Sentinels named it.
    NotConfirmed,
    /// At a change of the lock nodes, the locks are not copied.
    NotCopied,
    /// At a change of the lock nodes, the next ones begin without the fences.
    FencesNotCopied,
    /// At a change of the lock nodes, sealed nodes vote.
    SealedVotes,
    /// A proxy waits for the longest of its own grants alone.
    OwnLongest,
    /// A proxy gives back and extends by its own mode, whatever another proxy's mode is.
    OneSided,
    /// A MLOCK that is refused one of its locks keeps the others.
    SomeKept,
    /// A client is told the name of another permit than it got.
    OtherPermit,
    /// Readers of a lock keep no writer out.
    BarringNobody,
    /// A reader counts after its end.
    EndedCounted,
    /// A writer's lock is put back where a reader has it.
    HealOverReaders,
    /// A set of readers stays until the end of one that was given back.
    Outlasting,
    /// Writers that wait keep no readers out.
    IntentsIgnored,
}

impl Planted {
    /// Whether only bridged locks show this fault.
    fn is_of_bridge(self) -> bool {
        use Planted::{KeyFreed, KeyFreedForAll, KeyUnpadded, NoKey};
        matches!(self, NoKey | KeyUnpadded | KeyFreed | KeyFreedForAll)
    }

    /// Whether only clients that lock as libraries do show this fault.
    fn is_of_adopted(self) -> bool {
        matches!(self, Planted::ShortHold | Planted::ExtendedAnyway | Planted::BlindForAll)
    }

    /// Returns the edits of scripts that plant this fault.
    fn edits(self) -> &'static [Edit] {
        const ACQUIRE: &str = "-- Takes a lock on this node and";
        const TAKE: &str = "-- Takes a lock's keys for a token";
        const KEEP: &str = "-- Gives a lock's keys a new TTL";
        const SET: &str = "redis.call('set', key, ARGV[1], 'PX', ARGV[2])";
        // The TTL without what outlasts the lock, and with the drift.
        const UNPADDED: &str =
            "redis.call('set', key, ARGV[1], 'PX', math.max(1, ARGV[2] * 0.9 - 1500))";
        match self {
            Planted::ByToken => {
                &[(ACQUIRE, "'NX') then", "'NX') and redis.pcall('GET', KEYS[1]) ~= ARGV[1] then")]
            }
            Planted::ReleaseByToken => &[(
                "-- Gives a lock back on this node and",
                "if not string.find",
                "if false and not string.find",
            )],
            Planted::NoKey => &[(TAKE, SET, "")],
            Planted::KeyUnpadded => &[(TAKE, SET, UNPADDED), (KEEP, SET, UNPADDED)],
            Planted::KeyFreed => &[(KEEP, SET, "redis.call('del', key)")],
            Planted::KeyFreedForAll => {
                &[("-- Deletes those of a lock's keys", "== ARGV[1] then", "~= 1 then")]
            }
            other => shared_locks::edits(other),
        }
    }

    /// Plants this fault in this thread.
    fn set(self) {
        plant(match self {
            Planted::NoRaise => Some(PlantedFault::Raise),
            Planted::ValidityOfBefore => Some(PlantedFault::ValidityOfBefore),
            Planted::NoAsking => Some(PlantedFault::NoAsking),
            Planted::Together => Some(PlantedFault::Together),
            Planted::OutOfPlace => Some(PlantedFault::OutOfPlace),
            Planted::Kept => Some(PlantedFault::Kept),
            Planted::ShortHold => Some(PlantedFault::ShortHold),
            Planted::ExtendedAnyway => Some(PlantedFault::ExtendedAnyway),
            Planted::BlindForAll => Some(PlantedFault::BlindForAll),
            Planted::ForgottenRefusal => Some(PlantedFault::ForgottenRefusal),
            Planted::AnyGrant => Some(PlantedFault::AnyGrant),
            Planted::AnyAttempt => Some(PlantedFault::AnyAttempt),
            Planted::SomeKept => Some(PlantedFault::SomeKept),
            Planted::OtherPermit => Some(PlantedFault::OtherPermit),
            _ => None,
        });
        NOT_COMPARED.set(self == Planted::NoCompare);
        TOO_SMALL.set(self == Planted::SmallQuorum);
        // If no drift is set aside, every clock here seems to jump.
        UNWATCHED.set(matches!(self, Planted::Unwatched | Planted::NoDrift));
        NOT_ASKED_AGAIN.set(self == Planted::NotAskedAgain);
        NEW_IF_BARE.set(self == Planted::NewIfBare);
        NO_HEALS.set(self == Planted::NoHeals);
        LATE.set(self == Planted::Late);
        NOT_RETRIED.set(self == Planted::NotRetried);
        UNDONE.set(self == Planted::Undone);
        NOT_CONFIRMED.set(self == Planted::NotConfirmed);
        OWN_LONGEST.set(self == Planted::OwnLongest);
    }
}

/// What a proxy knows of a bridged rule, and its way to such locks.
type BridgedRule = (Option<Arc<Adoption>>, Option<Arc<Bridge>>);

/// Simulates one deployment from its start to its end.
fn simulate(seed: u64, planted: Planted) -> RunOutcome {
    simulate_by(seed, planted, live)
}

/// Runs `live` under virtual time, with all chance from the seed and this fault planted.
fn simulate_by<T: Future<Output = RunOutcome>>(
    seed: u64,
    planted: Planted,
    live: fn(u64, Planted) -> T,
) -> RunOutcome {
    planted.set();
    set_seed(Some(seed));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    let outcome = runtime.block_on(live(seed, planted));
    drop(runtime);
    set_network(None);
    set_seed(None);
    Planted::Nothing.set();
    outcome
}

async fn live(seed: u64, planted: Planted) -> RunOutcome {
    let nodes = if seed.is_multiple_of(3) { 5 } else { 3 };
    // Nodes have a tenth of a TTL to answer, and in one batch with a shorter one half of that: with
    // a round trip of 40 ms no lock of 600 ms could be judged.
    let delay = Duration::from_micros([500, 3_000, 15_000][seed as usize % 3]);
    let network = Network::new(seed, nodes, 1.09, delay);
    if planted == Planted::CarelessRelease {
        network.careless();
    }
    network.keep_time(true);
    network.edit(planted.edits());
    // In calm seeds nodes fail one by one, with time between.
    let is_calm = seed % 4 == 1;
    // Faults that clients of lock libraries do not show are sought without these, as they would only take time.
    let shows = planted == Planted::Nothing || planted.is_of_bridge();
    let adopts = adopts(seed) && (shows || planted.is_of_adopted());
    let bridges = bridges(seed) && shows;
    // Modes change where the data node forgets nothing.
    let steps = bridges && seed % 4 < 2;
    let (careless, blind) = (planted == Planted::NoCompare, planted == Planted::NoWatch);
    let fastest = if bridges { 1.09 } else { 1.0 };
    let data = Network::of_data(seed, delay, fastest, forgets_fences(seed), careless, blind);
    data.edit(planted.edits());
    dial(&network, Some(&data));
    let checker = Arc::new(Checker::new());
    initialise(&config(0, nodes, planted)).await.unwrap();
    let begun = Instant::now();
    let start = |proxy| {
        Engine::start_alone(&engine_config(proxy, nodes, planted, adopts), clock(proxy, begun))
    };
    let mut engines: Vec<Arc<Engine>> = (0..PROXIES - 1).map(start).collect();
    // The new proxies find each other's markers, and all nodes.
    sleep(Duration::from_secs(2)).await;
    let by_library = CLIENTS + if adopts { ADOPTED } else { 0 };
    let all = by_library + if bridges { PAST } else { 0 };
    let first_mode = if steps { AdoptMode::Audit } else { AdoptMode::Bridge };
    // Under audit, a lock without a TTL would stay for ever.
    let no_ttl = if steps { NoTtlPolicy::Refuse } else { NoTtlPolicy::Session };
    let modes = bridges.then(|| Modes::new(first_mode, no_ttl));
    let rule_of = |engine: &Arc<Engine>, proxy| match &modes {
        Some(modes) => {
            let (adoption, locks) = (modes.start(), config(proxy, nodes, planted));
            let bridge = bridge(engine, &adoption, locks, all + PROXIES + proxy);
            (Some(adoption), Some(bridge))
        }
        None => (None, None),
    };
    let client = |engine: &Arc<Engine>, rule: &BridgedRule, proxy, name, end| {
        let (network, checker) = (network.clone(), checker.clone());
        let (adoption, bridge) = rule.clone();
        let enforced = || {
            adopts.then(|| Adoption::new(&rules(AdoptMode::Enforce, NoTtlPolicy::Refuse))).flatten()
        };
        let adoption = adoption.or_else(enforced);
        let shared = shared(engine, config(proxy, nodes, planted), adoption, bridge);
        let connection = SessionUnderTest::new(shared, data.clone(), end);
        let modes = modes.clone();
        let client = Client::new(connection, network, checker, name, proxy, delay);
        Client { adopts, modes, steps, judges: true, ..client }
    };
    let run = |engine: &Arc<Engine>, rule: &BridgedRule, proxy| -> Vec<_> {
        let of_proxy = |name: &usize| name % PROXIES == proxy;
        let client = |name| client(engine, rule, proxy, name, name);
        let lock = (0..CLIENTS).filter(of_proxy).map(|name| tokio::spawn(client(name).run(ROUNDS)));
        let adopted = (CLIENTS..by_library).filter(of_proxy);
        let adopted = adopted.map(|name| tokio::spawn(client(name).run_adopted(ROUNDS)));
        let past = (by_library..all).filter(of_proxy);
        let past = past.map(|name| {
            let client = client(name);
            let connection = client.connection.past();
            // Where keys are forgotten, nothing promises that these clients exclude others.
            let elsewhere = forgets_fences(seed).then(|| Arc::new(Checker::new()));
            let checker = elsewhere.unwrap_or(client.checker);
            tokio::spawn(Client { connection, checker, ..client }.run_adopted(ROUNDS))
        });
        lock.chain(adopted).chain(past).collect()
    };
    let mut clients = Vec::new();
    let is_over = Arc::new(AtomicBool::new(false));
    let mut keepers = Vec::new();
    for (proxy, engine) in engines.iter().enumerate() {
        let rule = rule_of(engine, proxy);
        clients.extend(run(engine, &rule, proxy));
        let keeper = client(engine, &rule, proxy, proxy, all + proxy);
        keepers.push(tokio::spawn(keeper.keep(["kept", "kept too"][proxy], is_over.clone())));
    }
    let changing = modes.clone().filter(|_| steps).map(|modes| {
        let (network, checker) = (network.clone(), checker.clone());
        tokio::spawn(modes.change(network, checker))
    });
    let data_ends = if bridges { all + 2 * PROXIES } else { all };
    let failing = [("", &network, PROXIES, 500), ("data: ", &data, data_ends, 2000)];
    let failing = failing.map(|(name, what, ends, longest)| {
        let (network, checker) = (what.clone(), checker.clone());
        tokio::spawn(async move {
            while name.is_empty() && is_calm {
                for node in 0..nodes {
                    checker.happened(&network.fail_at(node, ends));
                    sleep(Duration::from_millis(4500 + network.below(1000))).await;
                }
            }
            loop {
                sleep(Duration::from_millis(50 + network.below(longest))).await;
                checker.happened(&format!("{name}{}", network.fail(ends)));
            }
        })
    });
    if seed.is_multiple_of(2) {
        sleep(Duration::from_millis(network.below(3000))).await;
        network.forget_all();
        checker.happened("all nodes have forgotten all");
        sleep(Duration::from_millis(network.below(100))).await;
    }
    let proxy = PROXIES - 1;
    engines.push(start(proxy));
    checker.happened(&format!("proxy {proxy} starts"));
    if planted != Planted::NoDrift {
        let (network, engine) = (network.clone(), engines[proxy].clone());
        // A proxy can watch a clock only if it has seen it before it jumps.
        tokio::spawn(async move {
            let mut seen = vec![false; nodes];
            while seen.contains(&false) {
                sleep(Duration::from_millis(100)).await;
                for (seen, status) in seen.iter_mut().zip(engine.status()) {
                    *seen |= status.up;
                }
            }
            network.keep_time(false);
        });
    }
    let rule = rule_of(&engines[proxy], proxy);
    clients.extend(run(&engines[proxy], &rule, proxy));
    must_end(clients, Duration::from_secs(600), ("a client never got its answer", &checker)).await;
    failing.iter().chain(&changing).for_each(|failing| failing.abort());
    is_over.store(true, Ordering::Relaxed);
    must_end(keepers, Duration::from_secs(60), ("a keeper never ends", &checker)).await;
    network.heal();
    data.heal();
    // By now nodes are out of quarantine and forgotten locks have run out.
    sleep(Duration::from_secs(10)).await;
    // If all nodes have forgotten all, a proxy that starts just then and one that remembers may
    // each make a deployment anew. Nothing tells a node that has accepted what no quorum has from
    // one that belongs to others. So it stays out until an operator has emptied it, and if the
    // others forget once more, all of them do.
    let is_split = network.was_split();
    checker.split(is_split);
    for (proxy, engine) in engines.iter().enumerate() {
        let (key, token) = (full("a"), format!("first.{proxy}"));
        let _ = engine.acquire(&key, token.as_bytes(), MAX_TTL, None).await;
        let _ = engine.release(&key, token.as_bytes(), None).await;
    }
    // An idle proxy learns by these votes of an epoch that it has missed on some node, and makes
    // that connection anew. (The product looks every ten seconds: `inspect`.)
    sleep(Duration::from_secs(3)).await;
    for (proxy, engine) in engines.iter().enumerate() {
        let (key, token) = (full("a"), format!("last.{proxy}"));
        let granted = engine.acquire(&key, token.as_bytes(), MAX_TTL, None).await;
        let granted = granted.map(|grant| grant.fence);
        checker.must(
            is_split || granted.is_ok(),
            &format!("not to be had when all is well: {granted:?}"),
        );
        for node in engine.status().iter().filter(|node| !node.up) {
            checker.must(is_split, &format!("kept out when all is well: {node:?}"));
        }
        let which = seed as usize + proxy;
        let illness = Illness::ALL[which % Illness::ALL.len()];
        network.ail(which % nodes, illness, Duration::from_millis(200));
        let released = engine.release(&key, token.as_bytes(), None).await;
        checker
            .must(is_split || released == Ok(true), &format!("not to be given back: {released:?}"));
        // The lock's TTL does not end so soon.
        sleep(Duration::from_millis(900)).await;
        let left = network.locks();
        checker.must(
            left.iter().all(Vec::is_empty),
            &format!("left behind by a node that was {illness:?}: {left:?}"),
        );
    }
    // Writes sent over dead connections may have landed since.
    checker.stored(&data.written());
    checker.must(bridges || !data.had_adopted(), "an adopted lock is stored on the data node");
    let left = data.adopted();
    checker.must(left.is_empty(), &format!("left behind on the data node: {left:?}"));
    checker.healed(network.heals());
    RunOutcome::of(&checker)
}

/// Whether the data node forgets fences now and then.
fn forgets_fences(seed: u64) -> bool {
    seed % 4 == 3
}

fn config(proxy: usize, nodes: usize, planted: Planted) -> LocksConfig {
    LocksConfig {
        nodes: lock_nodes(proxy, 0..nodes),
        max_ttl: MAX_TTL,
        default_ttl: Duration::from_millis(600),
        node_timeout: NODE_TIMEOUT,
        node_silence: Duration::from_millis(800),
        drift_factor: if planted == Planted::NoDrift { 0.0 } else { DRIFT_FACTOR },
        quarantine: planted != Planted::NoQuarantine,
        ..LocksConfig::default()
    }
}

/// Whether there are clients that lock as libraries do.
fn adopts(seed: u64) -> bool {
    (seed / 4).is_multiple_of(2)
}

/// Whether these clients' locks are bridged, with clients that go past the proxies. Where the data node forgets, the
/// latter are not judged.
fn bridges(seed: u64) -> bool {
    adopts(seed) && !(seed / 8).is_multiple_of(2)
}

/// Returns the configuration of an engine, which needs longer TTLs for adopted locks than clients ask for.
fn engine_config(proxy: usize, nodes: usize, planted: Planted, adopts: bool) -> LocksConfig {
    let locks = config(proxy, nodes, planted);
    let max_ttl = if adopts { padded(locks.max_ttl, &locks) } else { locks.max_ttl };
    LocksConfig { max_ttl, ..locks }
}

/// Returns the wall clock of a proxy. If most nodes forget at once, fences grow only if proxies' clocks differ by
/// less time than such a node is kept out for.
fn clock(proxy: usize, begun: Instant) -> WallClock {
    let wrong = [1_000_000, 0][proxy % 2];
    Arc::new(move || 1_000_000_000 + wrong + u64::try_from(begun.elapsed().as_micros()).unwrap())
}

/// Returns the seeds to try: `count` of them, unless the environment has others.
fn seeds(count: u64) -> std::ops::Range<u64> {
    seeds_from(0, count)
}

/// Does the same from a first seed on.
fn seeds_from(first: u64, count: u64) -> std::ops::Range<u64> {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    match (number("LOCKGATE_SEED"), number("LOCKGATE_SEEDS")) {
        (Some(seed), None) => seed..seed + 1,
        (named, wanted) => {
            let first = named.unwrap_or(first);
            first..first + wanted.unwrap_or(count)
        }
    }
}

/// Simulates these seeds on all cores; the outcomes come as they are ready.
fn outcomes(
    seeds: std::ops::Range<u64>,
    simulate: fn(u64, Planted) -> RunOutcome,
) -> impl Iterator<Item = (u64, RunOutcome)> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let next = Arc::new(AtomicU64::new(seeds.start));
    let (tell, told) = std::sync::mpsc::channel();
    for _ in 0..threads {
        let (next, end, tell) = (next.clone(), seeds.end, tell.clone());
        std::thread::spawn(move || {
            let seed = || Some(next.fetch_add(1, Ordering::Relaxed)).filter(|seed| *seed < end);
            while let Some(seed) = seed() {
                // The receiver is gone once the test has failed.
                let _ = tell.send((seed, simulate(seed, Planted::Nothing)));
            }
        });
    }
    told.into_iter()
}

/// Simulates these seeds, none of which may break anything. Returns what happened in all of them.
fn hold(seeds: std::ops::Range<u64>, simulate: fn(u64, Planted) -> RunOutcome) -> Happened {
    let (mut counts, begun) = (Happened::default(), std::time::Instant::now());
    let (tried, mut ended, mut failed) = (seeds.end - seeds.start, 0, Vec::new());
    for (seed, outcome) in outcomes(seeds, simulate) {
        ended += 1;
        counts += outcome.counts;
        if tried == 1 {
            println!("{}", outcome.history);
        }
        if !outcome.faults.is_empty() {
            println!("seed {seed}: {:?}", outcome.faults);
            failed.push(match failed.len() {
                ..PAGES => {
                    let again = recorder::recorded(|| simulate(seed, Planted::Nothing));
                    format!("{seed}, {}", again.write_page(seed).display())
                }
                _ => seed.to_string(),
            });
        }
    }
    println!("{tried} seeds in {:?}: {counts:?}", begun.elapsed());
    let failed = failed.join("\n");
    assert!(failed.is_empty(), "LOCKGATE_SEED=n shows the history of these seeds again:\n{failed}");
    assert_eq!(ended, tried, "a thread panicked");
    counts
}

#[test]
fn no_seed_breaks_anything() {
    // From here on few seeds show all that may happen.
    let seeds = seeds_from(40, SEEDS);
    let tried = seeds.end - seeds.start;
    let counts = hold(seeds, simulate);
    assert!(tried == 1 || counts.grants as u64 > 5 * tried, "hardly anything happened");
    assert!(tried < 20 || counts.losses > 0 && counts.renewals > 0);
    assert!(tried < 20 || counts.heals > 0);
    assert!(tried == 1 || counts.taken as u64 > 2 * tried, "hardly any lock was adopted");
    assert!(tried < 20 || counts.prolonged as u64 > tried && counts.deleted > 0);
    assert!(tried < 20 || counts.past as u64 > tried, "hardly anybody went past the proxies");
    assert!(tried < 20 || counts.fenced > 0 && counts.writes as u64 > 2 * tried);
}

#[test]
fn a_seed_tells_the_same_story_each_time() {
    for seed in [3, 10] {
        let digests: Vec<u64> = (0..2).map(|_| simulate(seed, Planted::Nothing).digest).collect();
        assert!(digests.iter().all(|digest| *digest == digests[0]), "seed {seed}: {digests:?}");
    }
}

#[test]
fn a_blind_delete_leaves_the_key_of_a_lock_that_is_being_granted() {
    let outcome = simulate(202, Planted::Nothing);
    assert_eq!(outcome.faults, Vec::<String>::new());
}

/// Checks that two clients hold one lock in some seed, and the checker says so.
fn is_found(planted: Planted) {
    is_found_by(planted, "at once");
}

/// Checks that the checker says this of some seed.
fn is_found_by(planted: Planted, what: &str) {
    let says = |seed: &u64| simulate(*seed, planted).faults.iter().any(|f| f.contains(what));
    let shows = |seed: &u64| match planted {
        Planted::NoAsking => forgets_fences(*seed),
        _ if planted.is_of_bridge() => bridges(*seed) && !forgets_fences(*seed),
        _ => !planted.is_of_adopted() || adopts(*seed),
    };
    // Faults that few seeds find are sought near one that does.
    let first = match planted {
        Planted::CarelessRelease | Planted::NoHeals => 3,
        Planted::NewIfBare | Planted::NotRetried => 4,
        Planted::Late => 11,
        Planted::NoAsking => 867,
        Planted::NoRaise => 353,
        Planted::ValidityOfBefore => 117,
        Planted::NoCompare => 45,
        Planted::NoWatch => 152,
        Planted::BlindForAll => 75,
        Planted::ReleaseByToken => 37,
        Planted::Undone => 254,
        Planted::Unwatched => 87,
        Planted::NoKey => 9,
        Planted::KeyFreed => 41,
        Planted::KeyUnpadded => 505,
        Planted::KeyFreedForAll => 122,
        _ => 0,
    };
    let mut seeds = (first..first + 400).filter(shows);
    let found = seeds.find(says);
    println!("{planted:?}, {what:?}, is found by seed {found:?}");
    assert!(found.is_some(), "{planted:?} is not found");
}

#[test]
fn a_quorum_one_too_small_is_found() {
    is_found(Planted::SmallQuorum);
}

#[test]
fn a_release_that_does_not_look_is_found() {
    is_found(Planted::CarelessRelease);
}

#[test]
fn a_validity_without_drift_is_found() {
    is_found(Planted::NoDrift);
}

#[test]
fn restarted_nodes_that_vote_at_once_are_found() {
    is_found(Planted::NoQuarantine);
}

#[test]
fn clocks_that_nobody_watches_are_found() {
    is_found(Planted::Unwatched);
}

#[test]
fn a_token_that_is_granted_twice_is_found() {
    is_found(Planted::ByToken);
}

#[test]
fn a_release_by_token_alone_is_found() {
    is_found(Planted::ReleaseByToken);
}

#[test]
fn a_release_that_is_not_asked_again_is_found() {
    is_found_by(Planted::NotAskedAgain, "left behind");
}

#[test]
fn nodes_without_a_marker_that_vote_are_found() {
    is_found(Planted::NewIfBare);
}

#[test]
fn locks_that_are_not_put_back_are_found() {
    is_found_by(Planted::NoHeals, "should have been put back");
}

#[test]
fn renewals_that_come_late_are_found() {
    is_found_by(Planted::Late, "should have been renewed");
}

#[test]
fn renewals_that_are_not_tried_again_are_found() {
    is_found_by(Planted::NotRetried, "should have been renewed");
}

#[test]
fn renewed_locks_that_a_clean_up_ends_are_found() {
    is_found_by(Planted::Undone, "has ended it");
}

#[test]
fn adopted_locks_that_end_too_early_are_found() {
    is_found(Planted::ShortHold);
}

#[test]
fn adopted_locks_that_are_prolonged_for_anybody_are_found() {
    is_found(Planted::ExtendedAnyway);
}

#[test]
fn a_blind_delete_that_ends_any_lock_is_found() {
    is_found(Planted::BlindForAll);
}

#[test]
fn bridged_locks_without_a_key_are_found() {
    is_found(Planted::NoKey);
}

#[test]
fn keys_that_do_not_outlast_their_locks_are_found() {
    is_found(Planted::KeyUnpadded);
}

#[test]
fn keys_that_are_freed_while_their_locks_are_held_are_found() {
    is_found(Planted::KeyFreed);
}

#[test]
fn keys_that_anybody_frees_are_found() {
    is_found(Planted::KeyFreedForAll);
}

#[test]
fn a_lock_that_the_data_node_is_not_told_of_is_found() {
    is_found_by(Planted::NoRaise, "is lost by");
}

#[test]
fn a_validity_told_too_late_is_found() {
    is_found(Planted::ValidityOfBefore);
}

#[test]
fn fences_that_are_not_compared_are_found() {
    is_found_by(Planted::NoCompare, "below");
}

#[test]
fn forgotten_fences_that_are_raised_without_asking_are_found() {
    is_found_by(Planted::NoAsking, "raised again");
}

#[test]
fn fences_that_are_not_watched_are_found() {
    is_found_by(Planted::NoWatch, "below");
}

#[test]
fn a_write_that_goes_with_others_without_its_lock_is_found() {
    is_found_by(Planted::Together, "without its lock");
}

#[test]
fn an_answer_told_for_another_command_is_found() {
    is_found_by(Planted::OutOfPlace, "answered");
}

#[test]
fn session_locks_of_clients_that_have_gone_are_found() {
    is_found_by(Planted::Kept, "left behind");
}
