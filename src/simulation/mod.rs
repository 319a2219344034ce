//! Runs the real engine, its real connections and scripts, and the real sessions of clients against
//! simulated nodes, under virtual time and a network whose faults follow from a seed.
//!
//! Everything below the sockets' bytes is simulated: [`redis`] the lock nodes and the data node,
//! [`network`] the ways to them and their faults. A [`client`] locks and writes over a
//! [`connection`] that a session of the product serves, by LOCK or, where it is [`adopted`], as lock
//! libraries do. [`checker`] checks what must hold,
//! [`writes`] what must hold of guarded writes. A seed that fails does so each time:
//! `LOCKGATE_SEED=n cargo test --lib simulation` prints its history. `LOCKGATE_SEEDS=n` tries `n`
//! seeds.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod adopted;
mod checker;
mod client;
mod connection;
mod lua;
mod memory;
mod network;
mod reasons;
mod redis;
mod writes;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::time::{Instant, sleep};

use crate::{
    config::{Endpoint, LocksConfig, RedisUrl},
    guard::fences::NOT_COMPARED,
    lock::{
        Engine, WallClock, initialise, padded,
        seams::{
            LATE, NEW_IF_BARE, NO_HEALS, NOT_ASKED_AGAIN, NOT_RETRIED, TOO_SMALL, UNDONE,
            UNWATCHED, set_seed,
        },
    },
    net::memory::set_network,
    session::planted::{PlantedFault, plant},
};
use checker::{Checker, Happened};
use client::{Client, full};
use connection::{SessionUnderTest, shared};
use network::Network;
use redis::{Edit, Illness};

const MAX_TTL: Duration = Duration::from_millis(1500);
const NODE_TIMEOUT: Duration = Duration::from_millis(100);
/// Large, so that clocks may be far from true.
const DRIFT_FACTOR: f64 = 0.1;
/// The number of proxies. The last one starts later than the others, in every other seed when all
/// nodes have just forgotten all.
const PROXIES: usize = 3;
const CLIENTS: usize = 6;
/// The number of clients that lock as libraries do, in seeds that have some ([`adopts`]).
const ADOPTED: usize = 3;
const ROUNDS: usize = 8;
/// The number of seeds tried in `make test`; see [`seeds`].
const SEEDS: u64 = 60;

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
    /// The data node is not told the fence at LOCK.
    NoRaise,
    /// The client is told the validity from before its fence was announced on the data node.
    ValidityOfBefore,
    /// Neither script nor proxy compares fences.
    NoCompare,
    /// WATCH watches nothing.
    NoWatch,
    /// A fence that the data node has forgotten is announced again without asking the lock nodes.
    NoAsking,
    /// Nodes' clocks may jump.
    Unwatched,
    /// A client with the token that has a lock is granted it.
    ByToken,
    /// A client with the token that has a lock releases it.
    ReleaseByToken,
    /// A release that a node has answered with an error is not followed up.
    NotAskedAgain,
    /// A node without a marker is new.
    NewIfBare,
    /// A lock is not put back on nodes that have lost it.
    NoHeals,
    /// Locks are renewed when they have nearly run out.
    Late,
    /// A renewal that got no quorum is not tried again.
    NotRetried,
    /// A lock whose grant came late is undone though it was renewed since.
    Undone,
    /// A write goes with others whether its lock is held or not.
    Together,
    /// An answer does not wait for earlier replies.
    OutOfPlace,
    /// A session lock is renewed after its client has gone.
    Kept,
    /// An adopted lock is held for its TTL from when it was asked for.
    ShortHold,
    /// A lock library is told that its lock was prolonged, whoever has it.
    ExtendedAnyway,
    /// A blind DEL ends a LOCK client's lock too.
    BlindForAll,
}

impl Planted {
    /// Whether only clients that lock as libraries do show this fault.
    fn is_of_adopted(self) -> bool {
        matches!(self, Planted::ShortHold | Planted::ExtendedAnyway | Planted::BlindForAll)
    }

    /// The edits of scripts that plant this fault.
    fn edits(self) -> &'static [Edit] {
        const ACQUIRE: &str = "-- Takes a lock on this node and";
        match self {
            Planted::ByToken => {
                &[(ACQUIRE, "'NX') then", "'NX') and redis.pcall('GET', KEYS[1]) ~= ARGV[1] then")]
            }
            Planted::ReleaseByToken => &[(
                "-- Gives a lock back on this node and",
                "if not string.find",
                "if false and not string.find",
            )],
            _ => &[],
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
    }
}

struct RunOutcome {
    faults: Vec<String>,
    history: String,
    digest: u64,
    counts: Happened,
}

/// One deployment, from its start to its end.
fn simulate(seed: u64, planted: Planted) -> RunOutcome {
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
    // What lock libraries do not show is sought where they take nobody's time.
    let adopts = adopts(seed) && (planted == Planted::Nothing || planted.is_of_adopted());
    let (careless, blind) = (planted == Planted::NoCompare, planted == Planted::NoWatch);
    let data = Network::of_data(seed, delay, forgets_fences(seed), careless, blind);
    let dialled = network.clone();
    set_network(Some(Box::new(move |host| {
        let numbers: Vec<usize> =
            host.split('-').skip(1).map(|number| number.parse().unwrap()).collect();
        dialled.connect(numbers[0], numbers[1])
    })));
    let checker = Arc::new(Checker::new());
    initialise(&config(0, nodes, planted)).await.unwrap();
    let begun = Instant::now();
    let start = |proxy| {
        Engine::start_alone(&engine_config(proxy, nodes, planted, adopts), clock(proxy, begun))
    };
    let mut engines: Vec<Arc<Engine>> = (0..PROXIES - 1).map(start).collect();
    // The new proxies find each other's markers, and all nodes.
    sleep(Duration::from_secs(2)).await;
    let client = |engine: &Arc<Engine>, proxy, name, end| {
        let (network, checker) = (network.clone(), checker.clone());
        let shared = shared(engine, config(proxy, nodes, planted), adopts);
        let connection = SessionUnderTest::new(shared, data.clone(), end);
        Client { connection, is_clean: true, network, checker, name, proxy, delay, adopts }
    };
    let all = CLIENTS + if adopts { ADOPTED } else { 0 };
    let run = |engine: &Arc<Engine>, proxy| -> Vec<_> {
        let of_proxy = |name: &usize| name % PROXIES == proxy;
        let client = |name| client(engine, proxy, name, name);
        let lock = (0..CLIENTS).filter(of_proxy).map(|name| tokio::spawn(client(name).run(ROUNDS)));
        let adopted = (CLIENTS..all).filter(of_proxy);
        let adopted = adopted.map(|name| tokio::spawn(client(name).run_adopted(ROUNDS)));
        lock.chain(adopted).collect()
    };
    let mut clients = Vec::new();
    let is_over = Arc::new(AtomicBool::new(false));
    let mut keepers = Vec::new();
    for (proxy, engine) in engines.iter().enumerate() {
        clients.extend(run(engine, proxy));
        let keeper = client(engine, proxy, proxy, all + proxy);
        keepers.push(tokio::spawn(keeper.keep(["kept", "kept too"][proxy], is_over.clone())));
    }
    let failing = [(&network, PROXIES, 500), (&data, all, 2000)].map(|(what, ends, longest)| {
        let (network, checker) = (what.clone(), checker.clone());
        let name = if ends == PROXIES { "" } else { "data: " };
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
    checker.happened("a proxy starts");
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
    clients.extend(run(&engines[proxy], proxy));
    for client in clients {
        let ended = tokio::time::timeout(Duration::from_secs(600), client).await;
        checker.must(matches!(ended, Ok(Ok(()))), "a client never got its answer");
    }
    failing.iter().for_each(|failing| failing.abort());
    is_over.store(true, Ordering::Relaxed);
    for keeper in keepers {
        let ended = tokio::time::timeout(Duration::from_secs(60), keeper).await;
        checker.must(matches!(ended, Ok(Ok(()))), "a keeper never ends");
    }
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
    // Writes sent by dead connections may have landed since.
    checker.stored(&data.written());
    checker.must(!data.has_adopted(), "an adopted lock is stored on the data node");
    checker.healed(network.heals());
    let outcome = RunOutcome {
        faults: checker.faults(),
        history: checker.history(),
        digest: checker.digest(),
        counts: checker.counts(),
    };
    drop(engines);
    outcome
}

/// Whether the data node forgets fences now and then.
fn forgets_fences(seed: u64) -> bool {
    seed % 4 == 3
}

fn config(proxy: usize, nodes: usize, planted: Planted) -> LocksConfig {
    let node = |index: usize| RedisUrl {
        endpoint: Endpoint::Tcp { host: format!("simulated-{proxy}-{index}"), port: 1 },
        ..RedisUrl::local(1)
    };
    LocksConfig {
        nodes: (0..nodes).map(node).collect(),
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

/// The configuration of an engine: of adopted locks it needs longer TTLs than clients ask for.
fn engine_config(proxy: usize, nodes: usize, planted: Planted, adopts: bool) -> LocksConfig {
    let locks = config(proxy, nodes, planted);
    let max_ttl = if adopts { padded(locks.max_ttl, &locks) } else { locks.max_ttl };
    LocksConfig { max_ttl, ..locks }
}

/// The time of day of a proxy. If most nodes forget at once, fences grow only if proxies' clocks
/// differ by less time than such a node is kept out for.
fn clock(proxy: usize, begun: Instant) -> WallClock {
    let wrong = [1_000_000, 0][proxy % 2];
    Arc::new(move || 1_000_000_000 + wrong + u64::try_from(begun.elapsed().as_micros()).unwrap())
}

/// The seeds to try.
fn seeds() -> std::ops::Range<u64> {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    match (number("LOCKGATE_SEED"), number("LOCKGATE_SEEDS")) {
        (Some(seed), None) => seed..seed + 1,
        (first, count) => first.unwrap_or(0)..first.unwrap_or(0) + count.unwrap_or(SEEDS),
    }
}

#[test]
fn no_seed_breaks_anything() {
    let (mut counts, begun, seeds) = (Happened::default(), std::time::Instant::now(), seeds());
    let (tried, mut failed) = (seeds.end - seeds.start, Vec::new());
    for seed in seeds {
        let outcome = simulate(seed, Planted::Nothing);
        if tried == 1 {
            println!("{}", outcome.history);
        }
        if !outcome.faults.is_empty() {
            println!("seed {seed}: {:?}", outcome.faults);
            failed.push(seed);
        }
        counts.grants += outcome.counts.grants;
        counts.refusals += outcome.counts.refusals;
        counts.renewals += outcome.counts.renewals;
        counts.losses += outcome.counts.losses;
        counts.judged += outcome.counts.judged;
        counts.clocks += outcome.counts.clocks;
        counts.forgotten += outcome.counts.forgotten;
        counts.unreachable += outcome.counts.unreachable;
        counts.split += outcome.counts.split;
        counts.heals += outcome.counts.heals;
        counts.taken += outcome.counts.taken;
        counts.prolonged += outcome.counts.prolonged;
        counts.deleted += outcome.counts.deleted;
        counts.writes += outcome.counts.writes;
        counts.fenced += outcome.counts.fenced;
        counts.untold += outcome.counts.untold;
    }
    println!("{tried} seeds in {:?}: {counts:?}", begun.elapsed());
    assert!(failed.is_empty(), "LOCKGATE_SEED=n shows the history of these: {failed:?}");
    assert!(tried == 1 || counts.grants as u64 > 5 * tried, "hardly anything happened");
    assert!(tried < 20 || counts.losses > 0 && counts.renewals > 0);
    assert!(tried < 20 || counts.heals > 0);
    assert!(tried == 1 || counts.taken as u64 > 2 * tried, "hardly any lock was adopted");
    assert!(tried < 20 || counts.prolonged as u64 > tried && counts.deleted > 0);
    assert!(tried < 20 || counts.fenced > 0 && counts.writes as u64 > 2 * tried);
}

#[test]
fn a_seed_tells_the_same_story_each_time() {
    for seed in [1, 2, 3] {
        let digests: Vec<u64> = (0..3).map(|_| simulate(seed, Planted::Nothing).digest).collect();
        assert!(digests.iter().all(|digest| *digest == digests[0]), "seed {seed}: {digests:?}");
    }
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
        _ => !planted.is_of_adopted() || adopts(*seed),
    };
    // What few seeds find is looked for near one that does.
    let first = match planted {
        Planted::NoRaise => 130,
        Planted::ValidityOfBefore => 60,
        _ => 0,
    };
    let mut seeds = (first..400).filter(shows);
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
