//! An adopt rule that is bridged, its modes changed as the guide says, and who may lock by them.

use std::{
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use tokio::time::{Instant, sleep};

use super::{
    MAX_TTL, PROXIES, Planted,
    adopted::EXTEND,
    checker::Checker,
    client::ms,
    clock, config,
    connection::{Reply, SessionUnderTest, bridge, old, rules, shared},
    engine_config,
    network::Network,
    simulate_by,
    world::{RunOutcome, dial},
};
use crate::{
    adopt::Adoption,
    config::{AdoptMode, LocksConfig, NoTtlPolicy},
    lock::{Engine, initialise},
};

/// How long everybody waits before the next step: the longest TTL, and what is under way.
const LONGEST: Duration = MAX_TTL.saturating_add(Duration::from_millis(500));
/// How often it is looked whether something may be.
const PAUSE: Duration = Duration::from_millis(50);

/// A kind of clients that may not lock in every mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LockerKind {
    /// They take locks by LOCK, and exclude others from bridge on.
    Lock = 0,
    /// They go to the data node past the proxies, and exclude others up to bridge.
    Past = 1,
}

/// The modes of the rule in all proxies.
pub(super) struct Modes {
    now: Mutex<ModesNow>,
    /// What becomes of locks without a TTL.
    no_ttl: NoTtlPolicy,
}

struct ModesNow {
    /// The mode of a proxy that starts now.
    mode: AdoptMode,
    /// What each proxy knows of the rule, and its mode there.
    proxies: Vec<(Arc<Adoption>, AdoptMode)>,
    /// Whether clients of a kind may lock now, and how many do.
    kinds: [(bool, usize); 2],
}

/// Clients of this kind may lock until this is dropped.
pub(super) struct LockPermit(Arc<Modes>, LockerKind);

impl Drop for LockPermit {
    fn drop(&mut self) {
        self.0.lock().kinds[self.1 as usize].1 -= 1;
    }
}

impl Modes {
    pub(super) fn new(mode: AdoptMode, no_ttl: NoTtlPolicy) -> Arc<Modes> {
        let kinds = [(mode != AdoptMode::Audit, 0), (mode != AdoptMode::Enforce, 0)];
        let now = Mutex::new(ModesNow { mode, proxies: Vec::new(), kinds });
        Arc::new(Modes { now, no_ttl })
    }

    fn lock(&self) -> MutexGuard<'_, ModesNow> {
        self.now.lock().unwrap()
    }

    /// Starts another proxy.
    pub(super) fn start(&self) -> Arc<Adoption> {
        let mut now = self.lock();
        let mode = now.mode;
        let adoption = Adoption::new(&rules(mode, self.no_ttl)).unwrap();
        now.proxies.push((adoption.clone(), mode));
        adoption
    }

    /// Waits until clients of this kind may lock.
    pub(super) async fn turn(self: &Arc<Self>, kind: LockerKind) -> LockPermit {
        loop {
            {
                let (may, locking) = &mut self.lock().kinds[kind as usize];
                if *may {
                    *locking += 1;
                    return LockPermit(self.clone(), kind);
                }
            }
            sleep(PAUSE).await;
        }
    }

    /// Whether proxies keep locks without a TTL.
    pub(super) fn keeps(&self) -> bool {
        self.no_ttl == NoTtlPolicy::Session
    }

    /// Whether this proxy leaves locks to the data node alone.
    pub(super) fn is_audited(&self, proxy: usize) -> bool {
        self.lock().proxies.get(proxy).is_some_and(|(_, mode)| *mode == AdoptMode::Audit)
    }

    /// Goes from audit to enforce and back, again and again.
    pub(super) async fn change(self: Arc<Self>, network: Arc<Network>, checker: Arc<Checker>) {
        loop {
            for mode in [AdoptMode::Bridge, AdoptMode::Enforce, AdoptMode::Bridge, AdoptMode::Audit]
            {
                sleep(Duration::from_millis(500 + network.below(3000))).await;
                self.step(mode, &network, &checker).await;
            }
        }
    }

    async fn step(&self, mode: AdoptMode, network: &Network, checker: &Checker) {
        // Those who would not see others' locks any more are gone before.
        let gone = match mode {
            AdoptMode::Audit => Some(LockerKind::Lock),
            AdoptMode::Bridge => None,
            AdoptMode::Enforce => Some(LockerKind::Past),
        };
        if let Some(kind) = gone {
            self.lock().kinds[kind as usize].0 = false;
            while self.lock().kinds[kind as usize].1 > 0 {
                sleep(PAUSE).await;
            }
            sleep(LONGEST).await;
        }
        let before = std::mem::replace(&mut self.lock().mode, mode);
        for proxy in 0..PROXIES {
            if let Some((adoption, its)) = self.lock().proxies.get_mut(proxy) {
                adoption.step_to(&rules(mode, self.no_ttl));
                *its = mode;
            }
            checker.happened(&format!("proxy {proxy} has the rule in {mode:?}"));
            sleep(Duration::from_millis(network.below(500))).await;
        }
        // A bridged proxy sees the keys that there are at once; locks of enforced ones have none.
        if before != AdoptMode::Audit {
            sleep(LONGEST).await;
        }
        if mode == AdoptMode::Bridge {
            self.lock().kinds.iter_mut().for_each(|(may, _)| *may = true);
        }
    }
}

/// Steps the rule from bridge to audit while an adopted client takes or extends its lock: the seed says which and
/// when. Then another client takes the lock on the data node, past the proxy.
async fn across_a_step(seed: u64, planted: Planted) -> RunOutcome {
    const NODES: usize = 3;
    let (network, data) = (
        Network::new(seed, NODES, 1.0, ms(5)),
        Network::of_data(seed, ms(5), 1.0, false, false, false),
    );
    network.heal();
    data.heal();
    dial(&network, Some(&data));
    let (checker, begun) = (Checker::new(), Instant::now());
    initialise(&config(0, NODES, planted)).await.unwrap();
    // A lock may last for longer than a key that was not extended.
    let lasting = |locks| LocksConfig { max_ttl: ms(10_000), ..locks };
    let locks = lasting(config(0, NODES, planted));
    let of_engine = lasting(engine_config(0, NODES, planted, true));
    let engine = Engine::start_alone(&of_engine, clock(0, begun));
    sleep(Duration::from_secs(2)).await;
    let adoption = Modes::new(AdoptMode::Bridge, NoTtlPolicy::Refuse).start();
    let bridge = bridge(&engine, &adoption, locks.clone(), 2);
    let state = shared(&engine, locks, Some(adoption.clone()), Some(bridge));
    let client = |name| SessionUnderTest::new(state.clone(), data.clone(), name);
    let (mut adopted, mut taker, mut past) = (client(0), client(3), client(1).past());
    for connection in [&mut adopted, &mut taker, &mut past] {
        connection.open().await;
    }
    let key = old("a");
    let extends = seed % 2 == 1;
    if extends {
        // A connection that has sent no command about the key asks first whether its client may.
        let taken = taker.ask(&["SET", &key, "one", "NX", "PX", "100"]).await;
        checker.must(is_yes(taken.ok()), "the lock is not to be had");
    }
    let asking = async {
        let words: &[&str] = match extends {
            true => &["EVAL", EXTEND, "1", &key, "one", "4000"],
            false => &["SET", &key, "one", "NX", "PX", "4000"],
        };
        is_yes(adopted.ask(words).await.ok())
    };
    let stepping = async {
        sleep(ms(seed / 2)).await;
        adoption.step_to(&rules(AdoptMode::Audit, NoTtlPolicy::Refuse));
    };
    let (has_it, ()) = tokio::join!(asking, stepping);
    // By then a key that was not extended has run out.
    sleep(ms(2500)).await;
    let is_others = is_yes(past.ask(&["SET", &key, "other", "NX", "PX", "4000"]).await.ok());
    checker.happened(&format!("it has the lock: {has_it}, another: {is_others}"));
    checker.must(!(has_it && is_others), "two clients have the lock");
    RunOutcome::of(&checker)
}

fn is_yes(reply: Option<Reply>) -> bool {
    reply.is_some_and(|reply| reply.text() == "+OK" || reply.number() == Some(1))
}

#[test]
fn a_command_judged_before_its_rule_was_audited_takes_no_lock_from_the_data_node() {
    let mut granted = 0;
    for seed in 0..160 {
        let outcome = simulate_by(seed, Planted::Nothing, across_a_step);
        let RunOutcome { faults, history, .. } = outcome;
        assert!(faults.is_empty(), "seed {seed}: {faults:?}\n{history}");
        granted += usize::from(history.contains("it has the lock: true"));
    }
    assert!(granted > 80, "hardly anybody was granted the lock: {granted}");
}
