//! Two proxies, one of which may grant for longer than the other, while nodes' clocks jump and nodes forget.
//!
//! A proxy that judges such a node waits until no grant from before can be left, including those of the other proxy.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::time::{Instant, sleep};

use super::{
    DRIFT_FACTOR, NODE_TIMEOUT, Planted,
    checker::Checker,
    client::{full, ms},
    clock, hold,
    network::Network,
    seeds, simulate_by,
    world::{RunOutcome, dial, lock_nodes, must_end},
};
use crate::{
    config::LocksConfig,
    lock::{Engine, initialise},
};

const NODES: usize = 3;
/// The longest grant of each proxy.
const MAX_TTLS: [Duration; 2] = [Duration::from_secs(4), Duration::from_millis(600)];
const KEY: &str = "a";
/// For how long one deployment is played.
const PLAYED: Duration = Duration::from_secs(120);
/// The seeds tried.
const SEEDS: u64 = 4;

fn config(proxy: usize) -> LocksConfig {
    LocksConfig {
        nodes: lock_nodes(proxy, 0..NODES),
        max_ttl: MAX_TTLS[proxy],
        default_ttl: ms(600),
        node_timeout: NODE_TIMEOUT,
        node_silence: ms(800),
        drift_factor: DRIFT_FACTOR,
        ..LocksConfig::default()
    }
}

/// Takes the lock through this proxy again and again, most often for as long as it grants.
async fn lock(
    engine: Arc<Engine>,
    proxy: usize,
    (network, checker): (Arc<Network>, Arc<Checker>),
    is_over: Arc<AtomicBool>,
) {
    let key = full(KEY);
    let longest = u64::try_from(MAX_TTLS[proxy].as_millis()).unwrap();
    for round in 0.. {
        if is_over.load(Ordering::Relaxed) {
            return;
        }
        let ttl = if network.below(3) == 0 { 50 + network.below(longest - 49) } else { longest };
        let token = format!("p{proxy}.{round}");
        if let Ok(grant) = engine.acquire(&key, token.as_bytes(), ms(ttl), None).await {
            checker.granted(KEY, &token, grant.fence, Some(grant.validity));
            sleep(ms(network.below(ttl))).await;
            // Some programs leave it to the TTL.
            if network.below(3) > 0 {
                checker.ended(KEY, &token, "unlocked");
                let _ = engine.release(&key, token.as_bytes(), None).await;
            }
        }
        sleep(ms(20 + network.below(200))).await;
    }
}

/// Sets the clocks of some nodes, or makes one forget. Each fault comes after the wait of the last one, or all would
/// wait for ever.
async fn fail(network: Arc<Network>, checker: Arc<Checker>) {
    loop {
        sleep(ms(5000 + network.below(5000))).await;
        let node = network.below(NODES as u64) as usize;
        match network.below(4) {
            0 => {
                network.forget(node);
                checker.happened(&format!("node {node} has forgotten all"));
            }
            kind => {
                let by = i64::try_from(1000 + network.below(4000)).unwrap();
                let which = if kind == 1 { node..node + 1 } else { 0..NODES };
                checker.happened(&format!("clocks of nodes {which:?} are set by {by} ms"));
                network.set_clocks(which, by);
            }
        }
    }
}

async fn live(seed: u64, _planted: Planted) -> RunOutcome {
    let network = Network::new(seed, NODES, 1.09, ms(3));
    dial(&network, None);
    let checker = Arc::new(Checker::new());
    // With the file of the proxy that grants for longer.
    initialise(&config(0)).await.unwrap();
    let begun = Instant::now();
    let engines = [0, 1].map(|proxy| Engine::start_alone(&config(proxy), clock(proxy, begun)));
    sleep(Duration::from_secs(2)).await;
    // In the product, the first inspection of a node and the fleet's records tell a proxy so within seconds of its
    // start, before any clock jumps. Here is neither.
    engines.iter().for_each(|engine| engine.heard_of(MAX_TTLS[0]));
    let is_over = Arc::new(AtomicBool::new(false));
    let lockers = [0, 1].map(|proxy| {
        let told = (network.clone(), checker.clone());
        tokio::spawn(lock(engines[proxy].clone(), proxy, told, is_over.clone()))
    });
    let failing = tokio::spawn(fail(network.clone(), checker.clone()));
    sleep(PLAYED).await;
    failing.abort();
    is_over.store(true, Ordering::Relaxed);
    must_end(lockers, Duration::from_secs(60), ("a client never ends", &checker)).await;
    RunOutcome::of(&checker)
}

fn simulate(seed: u64, planted: Planted) -> RunOutcome {
    simulate_by(seed, planted, live)
}

#[test]
fn no_jump_ends_the_longer_grant_of_another_proxy() {
    let seeds = seeds(SEEDS);
    let tried = seeds.end - seeds.start;
    let grants = hold(seeds, simulate).grants as u64;
    assert!(grants > 20 * tried, "hardly anything happened");
}

#[test]
fn a_wait_for_ones_own_grants_alone_is_found() {
    let says = |seed: &u64| {
        simulate(*seed, Planted::OwnLongest).faults.iter().any(|fault| fault.contains("at once"))
    };
    let found = (0..50).find(says);
    println!("a wait for its own grants alone is found by seed {found:?}");
    assert!(found.is_some());
}
