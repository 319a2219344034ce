//! A bridged adopt rule, whose modes change as the guide says, and the clients that may lock in each mode.

use std::{
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use tokio::time::{Instant, sleep};

use super::{
    MAX_TTL, PROXIES, Planted,
    checker::Checker,
    clock, config,
    connection::{SessionUnderTest, bridge, rules, shared},
    engine_config,
    network::Network,
    world::dial,
};
use crate::{
    adopt::Adoption,
    config::{AdoptMode, LocksConfig, NoTtlPolicy},
    lock::{Engine, initialise},
    session::Shared,
};

/// How long to wait before the next step: the longest TTL, and the time for what is under way.
const LONGEST: Duration = MAX_TTL.saturating_add(Duration::from_millis(500));
/// The pause between two looks at whether something is allowed yet.
const PAUSE: Duration = Duration::from_millis(50);

/// A kind of clients that may not lock in every mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LockerKind {
    /// Clients that take locks by LOCK, and exclude others from bridge on.
    Lock = 0,
    /// Clients that go to the data node past the proxies, and exclude others up to bridge.
    Past = 1,
}

/// The modes of the rule in all proxies.
pub(super) struct Modes {
    now: Mutex<ModesNow>,
    /// The policy for locks without a TTL.
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

/// One proxy with a bridged rule, well lock nodes and a data node, whose locks may last for [`LASTING`].
pub(super) struct BridgedProxy {
    pub(super) network: Arc<Network>,
    pub(super) data: Arc<Network>,
    pub(super) adoption: Arc<Adoption>,
    /// What its sessions share.
    pub(super) state: Arc<Shared>,
}

/// The longest TTL of a [`BridgedProxy`].
const LASTING: Duration = Duration::from_secs(10);

impl BridgedProxy {
    /// Starts it. Its own connection to the data node has the number `end`.
    pub(super) async fn start(seed: u64, planted: Planted, end: usize) -> BridgedProxy {
        const NODES: usize = 3;
        let (network, data) = (
            Network::new(seed, NODES, 1.0, Duration::from_millis(5)),
            Network::of_data(seed, Duration::from_millis(5), 1.0, false, false, false),
        );
        network.heal();
        data.heal();
        dial(&network, Some(&data));
        let begun = Instant::now();
        initialise(&config(0, NODES, planted)).await.unwrap();
        let lasting = |locks| LocksConfig { max_ttl: LASTING, ..locks };
        let locks = lasting(config(0, NODES, planted));
        let of_engine = lasting(engine_config(0, NODES, planted, true));
        let engine = Engine::start_alone(&of_engine, clock(0, begun));
        sleep(Duration::from_secs(2)).await;
        let adoption = Modes::new(AdoptMode::Bridge, NoTtlPolicy::Refuse).start();
        let bridge = bridge(&engine, &adoption, locks.clone(), end);
        let state = shared(&engine, locks, Some(adoption.clone()), Some(bridge));
        BridgedProxy { network, data, adoption, state }
    }

    /// Returns a client of this number, which has not connected yet.
    pub(super) fn client(&self, name: usize) -> SessionUnderTest {
        SessionUnderTest::new(self.state.clone(), self.data.clone(), name)
    }
}

/// A client's permission to lock, until it is dropped.
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

    /// Steps from audit to enforce and back, again and again.
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
        // Clients that would no longer see others' locks stop before the step.
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
        // A bridged proxy sees existing keys at once; locks of enforced proxies have none.
        if before != AdoptMode::Audit {
            sleep(LONGEST).await;
        }
        if mode == AdoptMode::Bridge {
            self.lock().kinds.iter_mut().for_each(|(may, _)| *may = true);
        }
    }
}
