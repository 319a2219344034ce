//! Two proxies one step apart in the mode of an adopt rule, and programs whose pool reaches both.
//!
//! Each lock has one program, which takes, extends and gives it back through either proxy. While the program surely
//! has the lock, each answer must be the one that a single Redis would give.

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
    client::ms,
    clock,
    connection::{Reply, SessionUnderTest, bridge, old, rules, shared},
    hold,
    library_client::{EXTEND, RELEASE},
    network::Network,
    seeds, simulate_by,
    world::{RunOutcome, dial, lock_nodes, must_end},
};
use crate::{
    adopt::Adoption,
    config::{AdoptMode, LocksConfig, NoTtlPolicy},
    lock::{Engine, initialise},
};

const NODES: usize = 3;
const KEYS: [&str; 2] = ["a", "b"];
const TTL: Duration = Duration::from_secs(3);
/// For how long one deployment is played.
const PLAYED: Duration = Duration::from_secs(90);
/// The seeds tried.
const SEEDS: u64 = 4;

fn config(proxy: usize) -> LocksConfig {
    LocksConfig {
        nodes: lock_nodes(proxy, 0..NODES),
        max_ttl: Duration::from_secs(4),
        default_ttl: TTL,
        node_timeout: NODE_TIMEOUT,
        drift_factor: DRIFT_FACTOR,
        ..LocksConfig::default()
    }
}

/// A program whose connections lead to both proxies.
struct Pool {
    connections: [SessionUnderTest; 2],
    network: Arc<Network>,
    checker: Arc<Checker>,
    key: &'static str,
}

impl Pool {
    async fn run(mut self, is_over: Arc<AtomicBool>) {
        for round in 0.. {
            if is_over.load(Ordering::Relaxed) {
                break;
            }
            let token = format!("{}.{round}", self.key);
            if self.round(&token).await.is_none() {
                // It is not known what was carried out.
                sleep(2 * TTL).await;
            }
            sleep(self.pause(300)).await;
        }
        self.connections.iter_mut().for_each(SessionUnderTest::close);
    }

    /// Takes, extends and gives back the lock once. Returns `None` if a command was answered by an error, or not at
    /// all.
    async fn round(&mut self, token: &str) -> Option<()> {
        let (key, px) = (old(self.key), TTL.as_millis().to_string());
        let asked = Instant::now();
        let taken = self.ask(&["SET", &key, token, "NX", "PX", &px]).await?;
        self.expect(taken.text() == "+OK", "is not free", token, &taken)?;
        self.checker.taken(self.key, token, None, TTL / 2, asked);
        let mut until = Instant::now() + TTL / 2;
        // Some programs keep it for longer than the TTL.
        for _ in 0..self.network.below(20) {
            sleep(self.pause(400)).await;
            let extended = self.ask(&["EVAL", EXTEND, "1", &key, token, &px]).await?;
            if Instant::now() < until {
                self.expect(extended.number() == Some(1), "is not extended", token, &extended)?;
            }
            until = Instant::now() + TTL / 2;
        }
        sleep(self.pause(400)).await;
        self.checker.ended(self.key, token, "given back");
        let released = self.ask(&["EVAL", RELEASE, "1", &key, token]).await?;
        if Instant::now() < until {
            self.expect(released.number() == Some(1), "is not given back", token, &released)?;
        }
        // The lock must be given back on both sides, or the next round finds it taken.
        Some(())
    }

    fn expect(&self, is_so: bool, what: &str, token: &str, reply: &Reply) -> Option<()> {
        if reply.text().starts_with('-') {
            return None;
        }
        self.checker.must(is_so, &format!("{} {what} for {token}: {reply:?}", self.key));
        is_so.then_some(())
    }

    /// Sends a command through either proxy.
    async fn ask(&mut self, words: &[&str]) -> Option<Reply> {
        let over = self.network.below(2) as usize;
        self.checker.happened(&format!("{words:?} over proxy {over}"));
        let connection = &mut self.connections[over];
        connection.open().await;
        connection.ask(words).await.ok()
    }

    fn pause(&self, most: u64) -> Duration {
        ms(self.network.below(most))
    }
}

async fn live(seed: u64, planted: Planted) -> RunOutcome {
    let delay = ms(3);
    let network = Network::new(seed, NODES, 1.09, delay);
    network.keep_time(true);
    let data = Network::of_data(seed, delay, 1.0, false, false, false);
    dial(&network, Some(&data));
    let checker = Arc::new(Checker::new());
    initialise(&config(0)).await.unwrap();
    let begun = Instant::now();
    // The steps that a rolling change of the mode goes through.
    let steps = [AdoptMode::Audit, AdoptMode::Enforce];
    let modes = [AdoptMode::Bridge, steps[seed as usize % 2]];
    let proxies = [0, 1].map(|proxy| {
        let engine = Engine::start_alone(&config(proxy), clock(proxy, begun));
        let adoption = Adoption::new(&rules(modes[proxy], NoTtlPolicy::Refuse)).unwrap();
        // As the fleet's records say, within seconds of a change.
        adoption.others_bridge(|_| proxy == 1 && planted != Planted::OneSided);
        let way = bridge(&engine, &adoption, config(proxy), 2 * KEYS.len() + proxy);
        shared(&engine, config(proxy), Some(adoption), Some(way))
    });
    sleep(Duration::from_secs(2)).await;
    let is_over = Arc::new(AtomicBool::new(false));
    let pools = KEYS.iter().enumerate().map(|(at, key)| {
        let connections = [0, 1].map(|proxy| {
            SessionUnderTest::new(proxies[proxy].clone(), data.clone(), 2 * at + proxy)
        });
        let pool = Pool { connections, network: network.clone(), checker: checker.clone(), key };
        tokio::spawn(pool.run(is_over.clone()))
    });
    let pools: Vec<_> = pools.collect();
    sleep(PLAYED).await;
    is_over.store(true, Ordering::Relaxed);
    must_end(pools, Duration::from_secs(60), ("a program never ends", &checker)).await;
    RunOutcome::of(&checker)
}

fn simulate(seed: u64, planted: Planted) -> RunOutcome {
    simulate_by(seed, planted, live)
}

#[test]
fn a_pool_that_reaches_both_is_told_what_one_redis_would_tell() {
    let seeds = seeds(SEEDS);
    let tried = seeds.end - seeds.start;
    let taken = hold(seeds, simulate).taken as u64;
    assert!(taken > 20 * tried, "hardly anything happened");
}

#[test]
fn a_mode_that_heeds_no_other_proxy_is_found() {
    for what in ["is not free", "is not extended"] {
        let says =
            |seed: &u64| simulate(*seed, Planted::OneSided).faults.iter().any(|f| f.contains(what));
        let found = (0..50).find(says);
        println!("OneSided, {what:?}, is found by seed {found:?}");
        assert!(found.is_some(), "a mode of its own is not found by {what:?}");
    }
}
