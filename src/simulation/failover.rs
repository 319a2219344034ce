//! A lock node with a replica, which three Sentinels promote: alone, or one of three nodes.
//!
//! The Sentinels and the two nodes are simulated; the proxies ask them by the product's own `sentinel`. What a
//! replica was sent may be old. The former master goes on for a while, with the proxies that reach it and are cut off
//! from the Sentinels; then it becomes the replica.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex},
    time::{Instant, sleep, sleep_until},
};

use super::{
    DRIFT_FACTOR, NODE_TIMEOUT, Planted,
    checker::Checker,
    client::{Client, full, ms},
    clock,
    connection::{SessionUnderTest, shared},
    hold,
    network::Network,
    redis::next_command,
    seeds, simulate_by,
    watched_pair::{SENTINELS, WatchedPair},
    world::{RunOutcome, dial, lock_nodes, must_end, url},
};
use crate::{
    config::{LockNode, LocksConfig, SentinelMaster},
    lock::{Engine, initialise, seams::validity},
    resp::encode,
};

const PROXIES: usize = 3;
const MASTER: &str = "m";
/// The longest TTL, and that of session locks: they outlast a failover.
const MAX_TTL: Duration = Duration::from_secs(16);
/// The number of failovers in one run.
const FAILOVERS: usize = 3;
/// The seeds tried.
const SEEDS: u64 = 3;

/// Connects a proxy to a Sentinel.
pub(super) fn connect(
    network: &Arc<Network>,
    proxy: usize,
    sentinel: usize,
) -> io::Result<DuplexStream> {
    if network.watched(|pair| pair.hears_again(proxy)).is_some() {
        return Err(io::ErrorKind::ConnectionRefused.into());
    }
    let (here, there) = duplex(4096);
    tokio::spawn(answer(network.clone(), there, proxy, sentinel));
    Ok(here)
}

/// Answers as a Sentinel does. It publishes no news, so a proxy asks in its own time.
async fn answer(network: Arc<Network>, mut stream: DuplexStream, proxy: usize, sentinel: usize) {
    let mut received = Vec::new();
    while matches!(stream.read_buf(&mut received).await, Ok(1..)) {
        while let Some(words) = next_command(&mut received) {
            pass(&network, proxy).await;
            let mut out = Vec::new();
            if words[0] == b"SUBSCRIBE" {
                out.extend_from_slice(b"*3\r\n$9\r\nsubscribe\r\n$14\r\n+switch-master\r\n:1\r\n");
            } else if words[1] == b"MASTER" {
                let election = network.watched(|pair| pair.elections[sentinel]);
                encode::array(&mut out, 2);
                encode::bulk(&mut out, b"config-epoch");
                encode::bulk(&mut out, election.to_string().as_bytes());
            } else {
                let node = network.watched(|pair| pair.nodes[pair.named[sentinel]]);
                encode::array(&mut out, 2);
                encode::bulk(&mut out, format!("simulated-{proxy}-{node}").as_bytes());
                encode::bulk(&mut out, b"1");
            }
            pass(&network, proxy).await;
            if stream.write_all(&out).await.is_err() {
                return;
            }
        }
    }
}

/// Waits for as long as a message between a proxy and a Sentinel takes.
async fn pass(network: &Network, proxy: usize) {
    if let Some(until) = network.watched(|pair| pair.hears_again(proxy)) {
        sleep_until(until).await;
    }
    sleep(ms(1 + network.below(20))).await;
}

fn config(proxy: usize, nodes: usize, planted: Planted) -> LocksConfig {
    let sentinels =
        (0..SENTINELS).map(|k| url(format!("simulated-sentinel-{proxy}-{k}"))).collect();
    let pair = LockNode::Sentinels(SentinelMaster::simulated(sentinels, MASTER));
    let others = lock_nodes(proxy, 1..nodes);
    LocksConfig {
        nodes: std::iter::once(pair).chain(others).collect(),
        max_ttl: MAX_TTL,
        default_ttl: MAX_TTL,
        node_timeout: NODE_TIMEOUT,
        node_silence: ms(800),
        drift_factor: DRIFT_FACTOR,
        quarantine: planted != Planted::NoQuarantine,
        ..LocksConfig::default()
    }
}

/// Promotes the replica, with what it had got a while ago, or elects the former master once more if that does not
/// know yet that it is no longer the master.
async fn fail_over(network: &Arc<Network>, checker: &Checker) {
    let (old, new) = network.watched(|pair| (pair.nodes[pair.master], pair.replica()));
    // Some proxies are cut off from the Sentinels a while before, and so do not hear of the promotion.
    let cut: Vec<usize> = (0..PROXIES).filter(|_| network.below(3) == 0).collect();
    let until = Instant::now() + ms(network.below(16_000));
    for proxy in &cut {
        network.watched(|pair| pair.unheard.insert(*proxy, until));
    }
    let sent = network.keys_of(old);
    sleep(ms(if network.below(3) == 0 { network.below(4000) } else { network.below(5) })).await;
    let lingers = network.watched(|pair| std::mem::take(&mut pair.lingers));
    let dies = lingers || network.below(2) == 0;
    if dies {
        network.demote(old);
        sleep(ms(network.below(1500))).await;
    }
    if !lingers {
        network.promote(new, sent);
    }
    let last = network.below(SENTINELS as u64) as usize;
    network.watched(|pair| {
        pair.master = 1 - pair.master;
        let master = pair.master;
        for sentinel in (0..SENTINELS).filter(|sentinel| *sentinel != last) {
            pair.named[sentinel] = master;
            pair.elections[sentinel] += 1;
        }
    });
    checker.happened(&format!(
        "node {new} is elected in place of {old}, which dies: {dies}; it was one before: {lingers}; \
         cut off: {cut:?}"
    ));
    sleep(ms(network.below(1000))).await;
    network.watched(|pair| {
        pair.named = [pair.master; SENTINELS];
        pair.elections = [*pair.elections.iter().max().unwrap(); SENTINELS];
    });
    if !dies && network.below(2) == 0 {
        network.watched(|pair| pair.lingers = true);
    } else if !dies {
        sleep_until(until.max(Instant::now() + ms(network.below(3000)))).await;
        network.demote(old);
        checker.happened(&format!("node {old} is a replica"));
    }
}

/// Holds leases that outlast a failover, and renews them.
async fn hold_leases(mut client: Client, key: &'static str, is_over: Arc<AtomicBool>) {
    let mut round = 0;
    while !is_over.load(Ordering::Relaxed) {
        round += 1;
        let token = format!("lease.{}.{round}", client.name);
        client.connection.open().await;
        let ttl = 3000 + client.below(12_000);
        let px = ttl.to_string();
        let said = client.connection.ask(&["LOCK", key, &token, "PX", &px]).await;
        let Some((fence, left)) = said.ok().and_then(|reply| reply.grant()) else {
            sleep(ms(100 + client.below(400))).await;
            continue;
        };
        client.checker.granted(key, &token, fence, Some(ms(left)));
        for _ in 0..client.below(8) {
            sleep(ms(client.below(ttl / 2))).await;
            let least = validity(ms(ttl), Duration::ZERO, DRIFT_FACTOR).unwrap_or_default();
            client.checker.asked(key, &token, least);
            let said = client.connection.ask(&["RENEW", key, &token, "PX", &px]).await;
            match said.map(|reply| reply.number()) {
                Ok(Some(0)) => {
                    client.checker.ended(key, &token, "not renewed");
                    break;
                }
                Ok(Some(left)) => client.checker.renewed(key, &token, ms(left)),
                Ok(None) => {}
                Err(_) => break,
            }
        }
        client.checker.ended(key, &token, "unlocked");
        let _ = client.connection.ask(&["UNLOCK", key, &token]).await;
    }
    client.connection.close();
}

async fn live(seed: u64, planted: Planted) -> RunOutcome {
    let nodes = if seed.is_multiple_of(2) { 1 } else { 3 };
    let delay = ms(3);
    let network = Network::new(seed, nodes + 1, 1.09, delay);
    network.keep_time(true);
    network.watch(WatchedPair::new([0, nodes]));
    let data = Network::of_data(seed, delay, 1.0, false, false, false);
    dial(&network, Some(&data));
    let checker = Arc::new(Checker::new());
    initialise(&config(0, nodes, planted)).await.unwrap();
    let begun = Instant::now();
    let engines: Vec<Arc<Engine>> = (0..PROXIES)
        .map(|proxy| Engine::start_alone(&config(proxy, nodes, planted), clock(proxy, begun)))
        .collect();
    sleep(Duration::from_secs(2)).await;
    let client = |proxy: usize, name: usize| {
        let shared = shared(&engines[proxy], config(proxy, nodes, planted), None, None);
        let connection = SessionUnderTest::new(shared, data.clone(), name);
        Client::new(connection, network.clone(), checker.clone(), name, proxy, delay)
    };
    let is_over = Arc::new(AtomicBool::new(false));
    let mut clients = Vec::new();
    for proxy in 0..PROXIES {
        // Each lock has a client at every proxy.
        clients.push(tokio::spawn(client(proxy, 10 * proxy).keep("a", is_over.clone())));
        let lease = hold_leases(client(proxy, 10 * proxy + 1), "b", is_over.clone());
        clients.push(tokio::spawn(lease));
    }
    for _ in 0..FAILOVERS {
        sleep(ms(2000 + network.below(40_000))).await;
        fail_over(&network, &checker).await;
    }
    sleep(2 * MAX_TTL).await;
    is_over.store(true, Ordering::Relaxed);
    must_end(clients, Duration::from_secs(120), ("a client never ends", &checker)).await;
    sleep(2 * MAX_TTL).await;
    for (proxy, engine) in engines.iter().enumerate() {
        let (key, token) = (full("d"), format!("last.{proxy}"));
        let granted = engine.acquire(&key, token.as_bytes(), MAX_TTL, None).await;
        let granted = granted.map(|grant| grant.fence);
        checker.must(granted.is_ok(), &format!("not to be had when all is well: {granted:?}"));
        let released = engine.release(&key, token.as_bytes(), None).await;
        checker.must(released == Ok(true), &format!("not to be given back: {released:?}"));
    }
    RunOutcome::of(&checker)
}

fn simulate(seed: u64, planted: Planted) -> RunOutcome {
    simulate_by(seed, planted, live)
}

#[test]
fn no_failover_breaks_anything() {
    let seeds = seeds(SEEDS);
    let tried = seeds.end - seeds.start;
    let grants = hold(seeds, simulate).grants as u64;
    assert!(tried < 10 || grants > FAILOVERS as u64 * tried, "hardly anything happened");
}

/// Checks that two clients hold one lock in some seed with one lock node.
fn is_found(planted: Planted, first: u64) {
    let says =
        |seed: &u64| simulate(*seed, planted).faults.iter().any(|fault| fault.contains("at once"));
    let found = (first..first + 200).step_by(2).find(says);
    println!("{planted:?} is found by seed {found:?}");
    assert!(found.is_some(), "{planted:?} is not found");
}

#[test]
fn a_promoted_node_that_votes_at_once_is_found() {
    is_found(Planted::NoQuarantine, 0);
}

#[test]
fn a_master_that_votes_without_its_sentinels_is_found() {
    is_found(Planted::NotConfirmed, 242);
}
