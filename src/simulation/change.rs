//! Changes of the lock nodes while proxies run, by the product's own coordinators.
//!
//! Coordinators die half-way, two work at once, some take the change back. Proxies hear of the next nodes in any
//! order, one of them only once the change is done. Nodes of both sets are stopped, cut off and lose their memory
//! meanwhile.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::time::{Instant, sleep, timeout};

use super::{
    DRIFT_FACTOR, MAX_TTL, NODE_TIMEOUT, Planted,
    checker::{Checker, Happened},
    client::{Client, full, ms},
    clock,
    connection::{SessionUnderTest, shared},
    hold,
    network::Network,
    redis::Edit,
    seeds, simulate_by,
    world::{RunOutcome, dial, lock_nodes, must_end},
};
use crate::{
    config::{LockNode, LocksConfig},
    lock::{ChangeError, Changed, Engine, WallClock, back_out, change, initialise},
};

/// The number of proxies at first; one more is started once the change is done.
const PROXIES: usize = 3;
/// The number under which a coordinator connects; a second one has the next number.
const COORDINATOR: usize = PROXIES + 1;
const ENDS: usize = COORDINATOR + 2;
const CLIENTS: usize = 6;
/// The number of simulated nodes.
const NODES: usize = 6;
/// The seeds tried.
const SEEDS: u64 = 5;
/// The most tries to change the nodes, once all is well.
const TRIES: usize = 100;

/// Returns the lock nodes before and after the change.
fn sets(seed: u64) -> (&'static [usize], &'static [usize]) {
    match seed % 5 {
        0 => (&[0, 1, 2], &[3, 4, 5]),
        1 => (&[0, 1, 2], &[0, 1, 3]),
        2 => (&[0, 1, 2], &[0, 1, 2, 3, 4]),
        3 => (&[0, 1, 2, 3, 4], &[2, 1, 0]),
        _ => (&[0], &[1, 2, 0]),
    }
}

/// Whether nodes lose their memory one by one, with time between. In the other seeds none does, as a
/// single lock node must not.
fn forgets(seed: u64) -> bool {
    seed % 2 == 1 && seed % 5 != 4
}

/// Returns the wall clock of a proxy. Where no node forgets, the first one's is so far ahead that fences grow only as
/// long as they are stored.
fn clock_of(proxy: usize, begun: Instant, seed: u64) -> WallClock {
    let (own, ahead) =
        (clock(proxy, begun), if proxy == 0 && !forgets(seed) { 60_000_000 } else { 0 });
    Arc::new(move || own() + ahead)
}

fn nodes_of(which: &[usize], proxy: usize) -> Vec<LockNode> {
    lock_nodes(proxy, which.iter().copied())
}

/// Returns a configuration that lists both sets.
fn config(proxy: usize, seed: u64) -> LocksConfig {
    let (before, next) = sets(seed);
    LocksConfig {
        nodes: nodes_of(before, proxy),
        next_nodes: nodes_of(next, proxy),
        max_ttl: MAX_TTL,
        default_ttl: ms(600),
        node_timeout: NODE_TIMEOUT,
        node_silence: ms(800),
        drift_factor: DRIFT_FACTOR,
        ..LocksConfig::default()
    }
}

/// Returns a configuration from before the change.
fn config_before(proxy: usize, seed: u64) -> LocksConfig {
    LocksConfig { next_nodes: Vec::new(), ..config(proxy, seed) }
}

/// Runs `work` to its end, or until its process dies.
async fn perhaps_dying<T>(network: &Network, work: impl Future<Output = T>) -> Option<T> {
    let lives = if network.below(2) == 0 { ms(20 + network.below(600)) } else { ms(60_000) };
    timeout(lives, work).await.ok()
}

/// Whether a coordinator says that the next nodes vote.
fn is_done(said: Option<&Result<Changed, ChangeError>>) -> bool {
    matches!(said, Some(Ok(_) | Err(ChangeError::Done)))
}

/// Changes the nodes, with coordinators that die and take it back, until it is done.
async fn change_nodes(
    network: Arc<Network>,
    checker: Arc<Checker>,
    seed: u64,
    is_well: Arc<AtomicBool>,
) {
    let (one, other) = (config(COORDINATOR, seed), config(COORDINATOR + 1, seed));
    let mut tries = 0;
    loop {
        sleep(ms(network.below(1500))).await;
        let well = is_well.load(Ordering::Relaxed);
        tries += usize::from(well);
        if tries > TRIES {
            return checker.must(false, "the nodes are not changed though all is well");
        }
        let kind = if well { 9 } else { network.below(4) };
        let done = match kind {
            0 => {
                let said = perhaps_dying(&network, back_out(&one)).await;
                checker.happened(&format!("a coordinator backs out: {said:?}"));
                matches!(said, Some(Err(ChangeError::Done)))
            }
            1 => {
                let first =
                    perhaps_dying(&network, change(&one, None, |step| checker.happened(step)));
                let pause = ms(network.below(60));
                let second = async {
                    sleep(pause).await;
                    perhaps_dying(&network, change(&other, None, |step| checker.happened(step)))
                        .await
                };
                let (first, second) = tokio::join!(first, second);
                checker.happened(&format!("two coordinators: {first:?}, {second:?}"));
                is_done(first.as_ref()) || is_done(second.as_ref())
            }
            _ => {
                let work = change(&one, None, |step| checker.happened(step));
                let said = perhaps_dying(&network, work).await;
                checker.happened(&format!("a coordinator: {said:?}"));
                is_done(said.as_ref())
            }
        };
        if done {
            return;
        }
    }
}

/// Whether a set that has begun has a seat without a copy, other than this node's. If this node forgot too, more
/// nodes than are allowed to would lack grants, as where a quorum of any set forgets.
fn lacks_another(network: &Network, next: &[usize], index: usize) -> bool {
    let begun = next.iter().filter_map(|node| {
        let [marker, seats] = network.marker_of(*node);
        let words: Vec<&str> = marker.split(' ').collect();
        let [_, epoch, place, ..] = words[..] else { return None };
        let stands = place.contains('@') && !place.contains(':');
        stands.then(|| (epoch.parse::<u64>().unwrap(), seats))
    });
    let Some((_, seats)) = begun.max_by_key(|(epoch, _)| *epoch) else { return false };
    let is_filled = |line: &str| !line.starts_with('-') && line.split(' ').count() == 2;
    seats.lines().zip(next).any(|(line, node)| *node != index && !is_filled(line))
}

/// Disturbs the nodes.
async fn fail(network: Arc<Network>, checker: Arc<Checker>, seed: u64) {
    let mut last = Instant::now();
    loop {
        sleep(ms(100 + network.below(1200))).await;
        if forgets(seed) && last.elapsed() > ms(6000) {
            let index = network.below(NODES as u64) as usize;
            if lacks_another(&network, sets(seed).1, index) {
                continue;
            }
            last = Instant::now();
            network.forget(index);
            checker.happened(&format!("node {index} is restarted, and has forgotten all"));
        } else {
            checker.happened(&network.disturb(ENDS));
        }
    }
}

async fn live(seed: u64, planted: Planted) -> RunOutcome {
    let (before, next) = sets(seed);
    let delay = ms([1, 3, 10][seed as usize / 5 % 3]);
    let network = Network::new(seed, NODES, 1.09, delay);
    network.keep_time(true);
    network.edit(edits(planted));
    let data = Network::of_data(seed, delay, 1.0, false, false, false);
    dial(&network, Some(&data));
    let checker = Arc::new(Checker::new());
    checker.happened(&format!("from nodes {before:?} to {next:?}"));
    initialise(&config_before(0, seed)).await.unwrap();
    let begun = Instant::now();
    let start = |config: &LocksConfig, proxy| {
        let engine = Engine::start_alone(config, clock_of(proxy, begun, seed));
        engine.follow_next_nodes();
        engine
    };
    let mut engines: Vec<Arc<Engine>> =
        (0..PROXIES).map(|proxy| start(&config_before(proxy, seed), proxy)).collect();
    sleep(Duration::from_secs(2)).await;
    let client = |engine: &Arc<Engine>, proxy: usize, name: usize| {
        let shared = shared(engine, config(proxy, seed), None, None);
        let connection = SessionUnderTest::new(shared, data.clone(), name);
        Client::new(connection, network.clone(), checker.clone(), name, proxy, delay)
    };
    let [is_over, is_well] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
    let mut clients = Vec::new();
    for name in 0..CLIENTS {
        let proxy = name % PROXIES;
        let client = client(&engines[proxy], proxy, name);
        clients.push(tokio::spawn(client.run_until(is_over.clone())));
    }
    let keeper = client(&engines[0], 0, CLIENTS).keep("kept", is_over.clone());
    clients.push(tokio::spawn(keeper));
    // Two proxies are told of the next nodes at any time, the third one once the change is done.
    for (proxy, engine) in engines.iter().enumerate().take(PROXIES - 1) {
        let (engine, told, checker) = (engine.clone(), config(proxy, seed), checker.clone());
        let after = ms(network.below(5000));
        tokio::spawn(async move {
            sleep(after).await;
            engine.set_listed_nodes(&told.nodes, &told.next_nodes);
            checker.happened(&format!("proxy {proxy} is told"));
        });
    }
    let failing = tokio::spawn(fail(network.clone(), checker.clone(), seed));
    let changing = change_nodes(network.clone(), checker.clone(), seed, is_well.clone());
    let mut changing = tokio::spawn(changing);
    // The nodes are disturbed for so long, or until the change is done and for a while longer.
    let disturbed = ms(5000 + network.below(25_000));
    let is_changed = timeout(disturbed, &mut changing).await.is_ok();
    checker.happened(&format!("changed while disturbed: {is_changed}"));
    if is_changed {
        sleep(ms(network.below(4000))).await;
    }
    failing.abort();
    network.heal();
    data.heal();
    is_well.store(true, Ordering::Relaxed);
    if !is_changed {
        let ended = timeout(Duration::from_secs(1200), changing).await;
        checker.must(matches!(ended, Ok(Ok(()))), "a coordinator never ends");
    }
    // By now this proxy gets no votes.
    sleep(ms(network.below(3000))).await;
    let told = config(PROXIES - 1, seed);
    engines[PROXIES - 1].set_listed_nodes(&told.nodes, &told.next_nodes);
    checker.happened("the last proxy is told");
    // A proxy that is started with the file of the change finds out by itself.
    engines.push(start(&config(PROXIES, seed), PROXIES));
    let late = client(&engines[PROXIES], PROXIES, CLIENTS + 1);
    clients.push(tokio::spawn(late.run_until(is_over.clone())));
    // Nodes without a copy have waited by then.
    sleep(Duration::from_secs(8)).await;
    is_over.store(true, Ordering::Relaxed);
    must_end(clients, Duration::from_secs(120), ("a client never ends", &checker)).await;
    sleep(2 * MAX_TTL).await;
    for (proxy, engine) in engines.iter().enumerate() {
        let serving: Vec<String> = engine.serving().iter().map(|node| node.to_string()).collect();
        let wanted: Vec<String> =
            nodes_of(next, proxy).iter().map(|node| node.to_string()).collect();
        checker.must(serving == wanted, &format!("proxy {proxy} asks {serving:?}"));
        let (key, token) = (full("d"), format!("last.{proxy}"));
        let granted = engine.acquire(&key, token.as_bytes(), MAX_TTL, None).await;
        let granted = granted.map(|grant| grant.fence);
        checker.must(granted.is_ok(), &format!("not to be had when all is well: {granted:?}"));
        let released = engine.release(&key, token.as_bytes(), None).await;
        checker.must(released == Ok(true), &format!("not to be given back: {released:?}"));
    }
    sleep(ms(900)).await;
    let locks = network.locks();
    let left: Vec<_> = next.iter().map(|node| &locks[*node]).collect();
    checker.must(left.iter().all(|locks| locks.is_empty()), &format!("left behind: {left:?}"));
    checker.stored(&data.written());
    let counts = Happened { past: usize::from(is_changed), ..checker.counts() };
    RunOutcome { counts, ..RunOutcome::of(&checker) }
}

/// Returns the edits of a change's scripts that plant a fault.
fn edits(planted: Planted) -> &'static [Edit] {
    const COPY: &str = "-- Writes a lock, as it is on other nodes";
    const ACQUIRE: &str = "-- Takes a lock on this node and";
    match planted {
        Planted::NotCopied => &[(COPY, "if token ~= '' then", "if false then")],
        Planted::FencesNotCopied => {
            &[(COPY, "if largest < tonumber(ARGV[6]) then", "if false then")]
        }
        Planted::SealedVotes => &[(
            ACQUIRE,
            "if found[2] ~= ARGV[7] and ARGV[7] ~= ''",
            "if found[2] ~= ARGV[7] and not string.find(found[2] or '', ':joint:', 1, true)",
        )],
        _ => &[],
    }
}

fn simulate(seed: u64, planted: Planted) -> RunOutcome {
    simulate_by(seed, planted, live)
}

/// Changes the nodes while one of each set stands still.
async fn beside_silent_nodes(seed: u64, _: Planted) -> RunOutcome {
    let network = Network::new(seed, NODES, 1.0, ms(1));
    network.heal();
    dial(&network, None);
    let (checker, config) = (Checker::new(), config(COORDINATOR, 0));
    initialise(&config).await.unwrap();
    for index in [2, 5] {
        network.stop(index, ms(600_000));
    }
    let changed = change(&config, None, |step| checker.happened(step)).await;
    let is_quick = |changed: &Changed| changed.sealed < Duration::from_secs(1);
    let what = format!("each step has waited for a silent node: {changed:?}");
    checker.must(changed.is_ok_and(|changed| is_quick(&changed)), &what);
    RunOutcome::of(&checker)
}

#[test]
fn nobody_waits_for_a_silent_node_while_no_set_votes() {
    let outcome = simulate_by(0, Planted::Nothing, beside_silent_nodes);
    assert!(outcome.faults.is_empty(), "{:?}\n{}", outcome.faults, outcome.history);
}

/// Lets three coordinators change the nodes. The first one dies about when the next nodes begin, the second one while
/// it completes that: the seed says when. One of the next nodes is not there and gets no copy.
async fn with_two_deaths(seed: u64, _: Planted) -> RunOutcome {
    let network = Network::new(seed, NODES, 1.0, ms(1));
    network.heal();
    dial(&network, None);
    let (checker, config) = (Checker::new(), config(COORDINATOR, seed));
    initialise(&config).await.unwrap();
    network.demote(sets(seed).1[0]);
    for lives in [70 + seed / 5 % 10, 10 + seed / 50] {
        let died = timeout(ms(lives), change(&config, None, |step| checker.happened(step))).await;
        checker.happened(&format!("a coordinator that lives for {lives} ms: {died:?}"));
    }
    let changed = change(&config, None, |step| checker.happened(step)).await;
    checker.must(is_done(Some(&changed)), &format!("a change that is never done: {changed:?}"));
    RunOutcome::of(&checker)
}

#[test]
fn coordinators_that_die_at_any_moment_keep_nobody_from_a_change() {
    // All nodes of the set before belong to the next one.
    for seed in (0..50 * 10).filter(|seed| [2, 4].contains(&(seed % 5))) {
        let RunOutcome { faults, history, .. } =
            simulate_by(seed, Planted::Nothing, with_two_deaths);
        assert!(faults.is_empty(), "seed {seed}: {faults:?}\n{history}");
    }
}

#[test]
fn no_change_of_nodes_breaks_anything() {
    let seeds = seeds(SEEDS);
    let tried = seeds.end - seeds.start;
    let Happened { grants, past, .. } = hold(seeds, simulate);
    println!("{past} changes while disturbed");
    assert!(tried == 1 || grants as u64 > 5 * tried, "hardly anything happened");
    assert!(tried < 10 || past > 0, "no change was done while nodes were disturbed");
}

#[test]
fn a_change_tells_the_same_story_each_time() {
    for seed in [1, 5] {
        let digests: Vec<u64> = (0..2).map(|_| simulate(seed, Planted::Nothing).digest).collect();
        assert!(digests.iter().all(|digest| *digest == digests[0]), "seed {seed}: {digests:?}");
    }
}

/// Checks that the checker says this of some seed from `first` on.
fn is_found(planted: Planted, what: &str, first: u64) {
    let says = |seed: &u64| simulate(*seed, planted).faults.iter().any(|f| f.contains(what));
    let found = (first..first + 200).find(says);
    println!("{planted:?}, {what:?}, is found by seed {found:?}");
    assert!(found.is_some(), "{planted:?} is not found");
}

#[test]
fn a_set_that_begins_without_the_locks_is_found() {
    is_found(Planted::NotCopied, "at once", 75);
}

#[test]
fn a_set_that_begins_without_the_fences_is_found() {
    is_found(Planted::FencesNotCopied, "after", 40);
}

#[test]
fn sealed_nodes_that_vote_are_found() {
    is_found(Planted::SealedVotes, "at once", 1105);
}
