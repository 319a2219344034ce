//! What operators are told of locks, of clients that hold or wait, and of what is waited for. No
//! token is told: whoever knows it can release the lock.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::Arc,
    time::Duration,
};

use super::{line::queue::WaiterStatus, locks::Locks};
use crate::{card::ClientCard, key::Key};

/// Most keys that are told of one client's locks.
const MOST_KEYS: usize = 16;

/// One lock that was granted through this proxy, or that its clients wait for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockStatus {
    /// The lock's key on the nodes.
    pub key: Vec<u8>,
    /// The grant; none if the lock is only waited for here, as another proxy's client has it.
    pub grant: Option<GrantStatus>,
    /// Clients of this proxy that wait for the lock.
    pub waiters: usize,
    /// Time for which the first of them has waited.
    pub longest_wait: Duration,
}

/// The grant of a lock through this proxy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrantStatus {
    /// The fence of the last grant.
    pub fence: u64,
    /// Whether it is a session lock; otherwise it is a lease.
    pub session: bool,
    /// The library, or the words, that took the lock in place of LOCK.
    pub adopted: Option<&'static str>,
    /// Time since the grant.
    pub held_for: Duration,
    /// Time until the lock ends if nobody renews it.
    pub remaining: Duration,
    /// The client that was granted the lock, if that is known.
    pub(crate) holder: Option<Arc<ClientCard>>,
}

/// A client that holds locks or waits for one.
#[derive(Debug)]
pub(crate) struct ClientStatus {
    /// Who it is.
    pub(crate) card: Arc<ClientCard>,
    /// How many locks it holds.
    pub(crate) held: usize,
    /// The keys of some of them, on the nodes.
    pub(crate) keys: Vec<Vec<u8>>,
    /// Time for which it has held the oldest of them.
    pub(crate) longest_hold: Duration,
    /// The lock that it waits for, and for how long it has.
    pub(crate) waits_for: Option<(Vec<u8>, Duration)>,
}

/// A lock that is waited for, or was.
#[derive(Debug)]
pub(crate) struct HotLock {
    /// The lock's key on the nodes.
    pub(crate) key: Vec<u8>,
    /// How long clients of this proxy waited for it, all together, and wait now.
    pub(crate) waited: Duration,
    /// The part of `waited` that may have been for other locks.
    pub(crate) excess: Duration,
    /// The number of waits, and the longest of them.
    pub(crate) waits: u64,
    pub(crate) longest: Duration,
    /// Clients that wait now.
    pub(crate) waiters: usize,
    /// The client that holds the lock, if it was granted through this proxy.
    pub(crate) holder: Option<Arc<ClientCard>>,
}

/// By what locks are sorted, the largest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockOrder {
    /// By the number of waiters.
    Waiters,
    /// By the time since the grant.
    Age,
    /// By the longest wait of those that wait.
    Wait,
}

impl LockStatus {
    /// The number by which the lock is sorted.
    pub(crate) fn rank(&self, order: LockOrder) -> u128 {
        match order {
            LockOrder::Waiters => self.waiters as u128,
            LockOrder::Age => self.grant.as_ref().map_or(0, |grant| grant.held_for.as_nanos()),
            LockOrder::Wait => self.longest_wait.as_nanos(),
        }
    }
}

/// One lock. Returns `None` if no client of this proxy holds it now, or waits for it.
pub(super) fn lock(locks: &Locks, key: &Key) -> Option<LockStatus> {
    let shown = locks.grants.holders.show(key);
    let line = locks.queues.line(key);
    let longest_wait = line.first().map_or(Duration::ZERO, |first| first.waited);
    let grant = shown.map(|shown| GrantStatus {
        fence: shown.fence,
        session: shown.is_session_lock,
        adopted: shown.adopted,
        held_for: shown.held_for,
        remaining: shown.remaining,
        holder: shown.card,
    });
    let is_known = grant.is_some() || !line.is_empty();
    is_known.then(|| LockStatus { key: key.to_vec(), grant, waiters: line.len(), longest_wait })
}

/// All clients that hold locks or wait, in no order. Locks and waiters whose client is not known are
/// left out.
pub(super) fn clients(locks: &Locks) -> Vec<ClientStatus> {
    let mut all = HashMap::new();
    let client = |card: Arc<ClientCard>| ClientStatus {
        card,
        held: 0,
        keys: Vec::new(),
        longest_hold: Duration::ZERO,
        waits_for: None,
    };
    locks.grants.holders.visit(&mut |key, shown| {
        if let Some(card) = shown.card {
            let client = all.entry(card.number()).or_insert_with(|| client(card));
            client.held += 1;
            client.longest_hold = client.longest_hold.max(shown.held_for);
            if client.keys.len() < MOST_KEYS {
                client.keys.push(key.to_vec());
            }
        }
        true
    });
    locks.queues.visit(&mut |key, line| {
        for WaiterStatus { card, waited, .. } in line {
            if let Some(card) = card {
                let client = all.entry(card.number()).or_insert_with(|| client(card.clone()));
                client.waits_for = Some((key.to_vec(), *waited));
            }
        }
    });
    all.into_values().collect()
}

/// The locks that are waited for longest, the first of them first, at most `most`.
pub(super) fn hot(locks: &Locks, most: usize) -> Vec<HotLock> {
    let mut all: HashMap<Vec<u8>, HotLock> = HashMap::new();
    for counted in locks.hot.all() {
        let key = counted.key.to_vec();
        let hot = HotLock {
            waited: counted.waited,
            excess: counted.excess,
            waits: counted.waits,
            longest: counted.longest,
            ..HotLock::new(&key)
        };
        all.insert(key, hot);
    }
    locks.queues.visit(&mut |key, line| {
        let hot = match all.entry(key.to_vec()) {
            Entry::Occupied(counted) => counted.into_mut(),
            Entry::Vacant(none) => none.insert(HotLock::new(key)),
        };
        hot.waiters = line.len();
        hot.waits += line.len() as u64;
        hot.waited += line.iter().map(|waiter| waiter.waited).sum::<Duration>();
        // First come, first: the first has waited longest.
        let longest = line.first().map_or(Duration::ZERO, |first| first.waited);
        hot.longest = hot.longest.max(longest);
    });
    let mut all: Vec<HotLock> = all.into_values().collect();
    all.sort_by(|a, b| b.waited.cmp(&a.waited).then_with(|| a.key.cmp(&b.key)));
    all.truncate(most);
    for hot in &mut all {
        let shown = locks.grants.holders.show(&Key::from(&hot.key));
        hot.holder = shown.and_then(|shown| shown.card);
    }
    all
}

impl HotLock {
    fn new(key: &[u8]) -> HotLock {
        HotLock {
            key: key.to_vec(),
            waited: Duration::ZERO,
            excess: Duration::ZERO,
            waits: 0,
            longest: Duration::ZERO,
            waiters: 0,
            holder: None,
        }
    }
}
