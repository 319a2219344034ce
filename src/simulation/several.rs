//! Clients that take two or three of five locks by MLOCK, in any order, or one of three permits, beside others that take
//! single locks by LOCK. One of the permits is among the locks that MLOCK takes by name.
//!
//! They hold, renew, write under guard, and give back by MUNLOCK, one by one, or by the end of their connection. Nodes
//! are stopped, answer errors and are cut off meanwhile, and the clock of one jumps. None forgets all: a lock that is
//! not given back is still there for [`SetChecker`] to see.

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
    checker::{Checker, Happened},
    client::{Client, Hold, ms},
    clock,
    connection::{Reply, SessionUnderTest, shared},
    hold,
    network::Network,
    redis::Illness,
    seeds,
    set_checker::SetChecker,
    simulate_by,
    world::{RunOutcome, dial, lock_nodes, must_end},
};
use crate::{
    config::LocksConfig,
    lock::{Engine, initialise},
};

const PROXIES: usize = 2;
/// The number of clients that use MLOCK, and of those that use LOCK.
const TAKERS: usize = 6;
const LOCKERS: usize = 2;
/// LOCK clients take the first two of them.
const KEYS: [&str; 5] = ["a", "b", "c", "d", "p#1"];
/// The permits of the family `p`.
const PERMITS: [&str; 3] = ["p#0", "p#1", "p#2"];
/// Longer than it takes to give back what was not granted.
const MAX_TTL: Duration = Duration::from_secs(12);
/// The shortest lease that a MLOCK asks for, in ms.
const SHORTEST: u64 = 8000;
/// The shortest time between two jumps of nodes' clocks: longer than such a node waits.
const JUMPS: Duration = Duration::from_secs(16);
/// For how long one deployment is played.
const PLAYED: Duration = Duration::from_secs(90);
/// The seeds tried.
const SEEDS: u64 = 4;

/// A client that takes locks by MLOCK, and permits.
struct SetTaker {
    client: Client,
    sets: Arc<SetChecker>,
}

impl SetTaker {
    async fn run(mut self, is_over: Arc<AtomicBool>) {
        let mut granted = 0;
        for round in 0.. {
            if is_over.load(Ordering::Relaxed) {
                break;
            }
            let token = format!("m{}.{round}", self.client.name);
            granted += usize::from(self.round(&token).await);
            self.client.connection.tell_nobody();
            let pause = ms(self.client.below(200));
            self.client.connection.listen(pause).await;
        }
        self.client.connection.close();
        let name = self.client.name;
        self.client.checker.must(granted > 2, &format!("m{name} was granted {granted} MLOCKs"));
    }

    /// Returns two or three of the locks in some order.
    fn some_locks(&self) -> Vec<&'static str> {
        let mut left = KEYS.to_vec();
        let mut any = || left.remove(self.client.below(left.len() as u64) as usize);
        let mut keys = vec![any(), any()];
        if self.client.one_in(2) {
            keys.push(any());
        }
        keys
    }

    /// Whether the locks were granted.
    async fn round(&mut self, token: &str) -> bool {
        let (keys, is_session_lock) = (self.some_locks(), self.client.one_in(3));
        self.client.connection.open().await;
        let taken = match self.client.one_in(3) {
            true => self.take_permit(token, is_session_lock).await,
            false => self.take(&keys, token, is_session_lock).await,
        };
        let Some(mut holds) = taken else { return false };
        self.work(&mut holds).await;
        match self.client.below(4) {
            0 if is_session_lock => {
                holds.iter().for_each(|hold| self.ended(hold));
                self.client.connection.close();
            }
            1 => self.give_back_one_by_one(holds).await,
            _ => self.give_back(&holds).await,
        }
        true
    }

    async fn take<'t>(
        &mut self,
        keys: &[&'static str],
        token: &'t str,
        is_session_lock: bool,
    ) -> Option<Vec<Hold<'t>>> {
        let number = keys.len().to_string();
        let words = [&["MLOCK", &number][..], keys, &[token]].concat();
        let reply = self.ask(words, is_session_lock).await;
        let Some((validity, fences)) = reply.as_ref().and_then(all_granted) else {
            self.not_granted(token, keys, reply.as_ref(), is_session_lock);
            let client = &mut self.client;
            if client.connection.is_open() && client.one_in(4) {
                // As a careless `finally` does.
                let words = [&["MUNLOCK", &number][..], keys, &[token]].concat();
                let said = client.connection.ask(&words).await;
                let released = said.ok().and_then(|reply| reply.number()).unwrap_or(0);
                client.checker.must(released == 0, &format!("{token} had {released} locks"));
            }
            return None;
        };
        let locks: Vec<(&str, u64)> = keys.iter().copied().zip(fences).collect();
        Some(self.holds(token, locks, validity, is_session_lock))
    }

    /// Takes the first free permit.
    async fn take_permit<'t>(
        &mut self,
        token: &'t str,
        is_session_lock: bool,
    ) -> Option<Vec<Hold<'t>>> {
        let words = vec!["LOCK", "p", token, "PERMITS", "3"];
        let reply = self.ask(words, is_session_lock).await;
        let Some((validity, fence, name)) = reply.as_ref().and_then(permit_granted) else {
            self.not_granted(token, &PERMITS, reply.as_ref(), is_session_lock);
            return None;
        };
        Some(self.holds(token, vec![(name, fence)], validity, is_session_lock))
    }

    /// Sends a LOCK or MLOCK, with a TTL and a WAIT as it happens. Returns no reply if the client hangs up.
    async fn ask(&mut self, mut words: Vec<&str>, is_session_lock: bool) -> Option<Reply> {
        let client = &mut self.client;
        let (px, wait) = (SHORTEST + client.below(4000), client.below(3000).to_string());
        let px = px.to_string();
        if !is_session_lock {
            words.extend(["PX", &px]);
        }
        if !client.one_in(3) {
            words.extend(["WAIT", &wait]);
        }
        let patience = if client.one_in(6) { ms(client.below(300)) } else { ms(60_000) };
        let said = client.connection.pipeline(&[&words], patience).await;
        said.ok().and_then(|said| said.into_iter().next())
    }

    /// Notes that the client was not told that it has these locks.
    fn not_granted(
        &self,
        token: &str,
        keys: &[&'static str],
        reply: Option<&Reply>,
        is_session_lock: bool,
    ) {
        let why = reply.map_or("hung up", Reply::text);
        self.client.checker.refused(&keys.join(" "), token, why);
        // Of leases, a client that hangs up may have been granted all.
        if reply.is_some() || is_session_lock {
            self.sets.none(token, keys);
        }
    }

    /// Notes locks that the client was just told of.
    fn holds<'t>(
        &mut self,
        token: &'t str,
        locks: Vec<(&'static str, u64)>,
        validity: Duration,
        is_session_lock: bool,
    ) -> Vec<Hold<'t>> {
        let client = &mut self.client;
        self.sets.granted(client, token, &locks);
        let left = (!is_session_lock).then_some(validity);
        let hold = |(at, (key, fence))| {
            client.checker.granted(key, token, fence, left);
            let lost = is_session_lock.then(|| client.lost(key, token, token, fence));
            // The numbers of writes tell those under one lock from those under the others.
            Hold { key, token, name: token, fence, lost, writes: 1000 * at }
        };
        let holds: Vec<Hold<'_>> = locks.into_iter().enumerate().map(hold).collect();
        let losses: Vec<_> = holds.iter().filter_map(|hold| hold.lost.clone()).collect();
        client.connection.tell(Box::new(move |what| {
            for lost in losses.iter().filter(|lost| what.is_none_or(|key| key == lost.key)) {
                lost.told(what.is_none());
            }
        }));
        holds
    }

    /// Holds the locks, renews some of them, and writes under them.
    async fn work(&mut self, holds: &mut [Hold<'_>]) {
        for _ in 0..self.client.below(4) {
            let (pause, at) = (ms(self.client.below(300)), self.client.below(holds.len() as u64));
            self.client.connection.listen(pause).await;
            let hold = &mut holds[at as usize];
            if self.client.one_in(3) {
                self.client.hold(hold, ms(300)).await;
            } else if !self.client.update(hold).await {
                return;
            }
        }
    }

    /// Notes that the client no longer believes that it holds the lock.
    fn ended(&self, hold: &Hold<'_>) {
        match &hold.lost {
            Some(lost) => lost.told(true),
            None => self.client.checker.ended(hold.key, hold.name, "unlocked"),
        }
    }

    async fn give_back(&mut self, holds: &[Hold<'_>]) {
        holds.iter().for_each(|hold| self.ended(hold));
        let number = holds.len().to_string();
        let keys: Vec<&str> = holds.iter().map(|hold| hold.key).collect();
        let mut words = [&["MUNLOCK", &number][..], &keys].concat();
        let token = holds.first().map(|hold| hold.token);
        if !self.client.connection.is_open() || self.client.one_in(2) {
            words.extend(token);
        }
        self.client.connection.open().await;
        let said = self.client.connection.ask(&words).await;
        let released = said.ok().and_then(|reply| reply.number());
        let is_possible = released.is_none_or(|released| released <= holds.len() as u64);
        self.client.checker.must(is_possible, &format!("{words:?} releases {released:?}"));
        if released.is_none() {
            // The connection may go on holding session locks.
            self.client.connection.close();
        }
    }

    async fn give_back_one_by_one(&mut self, holds: Vec<Hold<'_>>) {
        for mut hold in holds {
            if self.client.connection.is_open() && self.client.one_in(2) {
                self.client.update(&mut hold).await;
            }
            self.ended(&hold);
            self.client.connection.open().await;
            let said = self.client.connection.ask(&["UNLOCK", hold.key, hold.token]).await;
            if !said.is_ok_and(|reply| reply.number().is_some()) {
                self.client.connection.close();
            }
        }
    }
}

/// Returns the validity and the fences of a MLOCK that was granted.
fn all_granted(reply: &Reply) -> Option<(Duration, Vec<u64>)> {
    let Reply::Array(Some(parts)) = reply else { return None };
    let [_, validity, Reply::Array(Some(fences))] = &parts[..] else { panic!("{reply:?}") };
    let fences = fences.iter().map(|fence| fence.number().unwrap()).collect();
    Some((ms(validity.number().unwrap()), fences))
}

/// Returns the validity, the fence and the name of a permit that was granted.
fn permit_granted(reply: &Reply) -> Option<(Duration, u64, &'static str)> {
    let Reply::Array(Some(parts)) = reply else { return None };
    let [_, fence, validity, name] = &parts[..] else { panic!("{reply:?}") };
    let name = PERMITS.into_iter().find(|known| *known == name.text()).unwrap();
    Some((ms(validity.number().unwrap()), fence.number().unwrap(), name))
}

fn config(proxy: usize, nodes: usize) -> LocksConfig {
    LocksConfig {
        nodes: lock_nodes(proxy, 0..nodes),
        max_ttl: MAX_TTL,
        default_ttl: MAX_TTL,
        node_timeout: NODE_TIMEOUT,
        node_silence: ms(800),
        drift_factor: DRIFT_FACTOR,
        ..LocksConfig::default()
    }
}

/// Disturbs the nodes and the ways to them now and then, and the data node's more seldom.
async fn fail(network: Arc<Network>, data: Arc<Network>, checker: Arc<Checker>, nodes: usize) {
    let mut jumped = Instant::now();
    loop {
        sleep(ms(300 + network.below(3000))).await;
        match network.below(9) {
            8 if jumped.elapsed() > JUMPS => {
                let (node, by) =
                    (network.below(nodes as u64) as usize, 1000 + network.below(12_000));
                checker.happened(&format!("the clock of node {node} is set by {by} ms"));
                network.set_clocks(node..node + 1, i64::try_from(by).unwrap());
                jumped = Instant::now();
            }
            0 => checker.happened(&format!("data: {}", data.disturb(TAKERS + LOCKERS))),
            1..3 => {
                let node = network.below(nodes as u64) as usize;
                let illness = Illness::ALL[network.below(Illness::ALL.len() as u64) as usize];
                let time = ms(20 + network.below(1500));
                checker.happened(&format!("node {node} is {illness:?} for {time:?}"));
                network.ail(node, illness, time);
            }
            _ => checker.happened(&network.disturb(PROXIES)),
        }
    }
}

async fn live(seed: u64, _planted: Planted) -> RunOutcome {
    let (nodes, delay) = ([3, 5][usize::from(seed.is_multiple_of(3))], ms(3));
    let network = Network::new(seed, nodes, 1.09, delay);
    network.keep_time(true);
    let data = Network::of_data(seed, delay, 1.0, false, false, false);
    dial(&network, Some(&data));
    let checker = Arc::new(Checker::new());
    initialise(&config(0, nodes)).await.unwrap();
    let begun = Instant::now();
    let engines: Vec<Arc<Engine>> = (0..PROXIES)
        .map(|proxy| Engine::start_alone(&config(proxy, nodes), clock(proxy, begun)))
        .collect();
    sleep(Duration::from_secs(2)).await;
    let (is_over, sets) =
        (Arc::new(AtomicBool::new(false)), SetChecker::new(network.clone(), checker.clone()));
    let sets = Arc::new(sets);
    let client = |name: usize| {
        let proxy = name % PROXIES;
        let shared = shared(&engines[proxy], config(proxy, nodes), None, None);
        let connection = SessionUnderTest::new(shared, data.clone(), name);
        Client::new(connection, network.clone(), checker.clone(), name, proxy, delay)
    };
    let takers = (0..TAKERS).map(|name| {
        // It holds more than one lock, so it does not try to write without one.
        let client = Client { is_clean: false, ..client(name) };
        tokio::spawn(SetTaker { client, sets: sets.clone() }.run(is_over.clone()))
    });
    let mut clients: Vec<_> = takers.collect();
    let lockers = TAKERS..TAKERS + LOCKERS;
    clients.extend(lockers.map(|name| tokio::spawn(client(name).run_until(is_over.clone()))));
    let failing = tokio::spawn(fail(network.clone(), data.clone(), checker.clone(), nodes));
    let until = Instant::now() + PLAYED;
    while Instant::now() < until {
        sleep(ms(200)).await;
        sets.look();
    }
    failing.abort();
    is_over.store(true, Ordering::Relaxed);
    network.heal();
    data.heal();
    must_end(clients, Duration::from_secs(60), ("a client never ends", &checker)).await;
    sleep(MAX_TTL).await;
    sets.look();
    checker.must(sets.left() == 0, "nodes were not looked at");
    checker.stored(&data.written());
    RunOutcome::of(&checker)
}

fn simulate(seed: u64, planted: Planted) -> RunOutcome {
    simulate_by(seed, planted, live)
}

#[test]
fn who_is_granted_a_set_has_all_of_it_and_who_is_not_has_none() {
    let seeds = seeds(SEEDS);
    let tried = (seeds.end - seeds.start) as usize;
    let Happened { sets, looks, refusals, writes, .. } = hold(seeds, simulate);
    assert!(sets > 50 * tried && looks > 20 * tried, "hardly anything happened");
    assert!(refusals > 20 * tried && writes > 20 * tried, "hardly anything happened");
}

#[test]
fn a_refused_mlock_that_keeps_some_of_its_locks_is_found() {
    let says = |seed: &u64| {
        let faults = simulate(*seed, Planted::SomeKept).faults;
        faults.iter().any(|fault| fault.contains("refused"))
    };
    let found = (0..20).find(says);
    println!("{:?} is found by seed {found:?}", Planted::SomeKept);
    assert!(found.is_some());
}

#[test]
fn a_permit_that_is_told_by_another_name_is_found() {
    let found = (0..20).find(|seed| !simulate(*seed, Planted::OtherPermit).faults.is_empty());
    println!("{:?} is found by seed {found:?}", Planted::OtherPermit);
    assert!(found.is_some());
}
