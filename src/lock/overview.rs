//! What operators are told of locks, of clients that hold or wait, and of what is waited for. No
//! token is told: whoever knows it can release the lock.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap, hash_map::Entry},
    sync::Arc,
    time::Duration,
};

use super::{line::queue::WaiterStatus, locks::Locks};
use crate::{
    card::ClientCard,
    glob::{self, Budget},
    key::Key,
};

/// Most locks, clients or waiters that are told at once.
pub(crate) const MOST_TOLD: usize = 1000;
/// Most bytes of keys that are told at once.
const MAX_KEY_BYTES: usize = 1024 * 1024;
/// Most keys that are told of one client's locks.
const MOST_KEYS: usize = 16;
/// Steps that comparing keys with the pattern of one [`LocksWanted`] may take: some ten
/// milliseconds, in which the thread does nothing else.
const MAX_STEPS: usize = 10_000_000;

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
    /// As [`LockStatus::kind`]; empty if no client of this proxy holds the lock or waits for it.
    pub(crate) kind: &'static str,
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

/// Which locks are listed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LocksWanted {
    /// A glob that their keys match; none: all locks.
    pub pattern: Option<Vec<u8>>,
    /// At most so many; none: as many as an answer may have.
    pub most: Option<usize>,
    /// The largest first; none: by key.
    pub by: Option<LockOrder>,
}

/// The keys of the locks that are held for longest, as many as are wanted.
struct Oldest {
    most: usize,
    /// The one that is held for the shortest time is at hand.
    found: BinaryHeap<Reverse<(Duration, Vec<u8>)>>,
}

impl Oldest {
    fn new(most: usize) -> Oldest {
        Oldest { most, found: BinaryHeap::new() }
    }

    fn note(&mut self, key: &[u8], held_for: Duration) {
        if self.found.len() >= self.most {
            if self.found.peek().is_none_or(|Reverse((least, _))| *least >= held_for) {
                return;
            }
            self.found.pop();
        }
        self.found.push(Reverse((held_for, key.to_vec())));
    }

    fn keys(self) -> impl Iterator<Item = Vec<u8>> {
        self.found.into_iter().map(|Reverse((_, key))| key)
    }
}

impl LockStatus {
    /// What operators are told that the lock is: `session`, `lease`, or `elsewhere`.
    pub(crate) fn kind(&self) -> &'static str {
        kind(self.grant.as_ref().map(|grant| grant.session))
    }

    /// The number by which the lock is sorted.
    pub(crate) fn rank(&self, order: LockOrder) -> u128 {
        match order {
            LockOrder::Waiters => self.waiters as u128,
            LockOrder::Age => self.grant.as_ref().map_or(0, |grant| grant.held_for.as_nanos()),
            LockOrder::Wait => self.longest_wait.as_nanos(),
        }
    }
}

/// What a lock is called whose grant here is a session lock, or a lease, or which was granted elsewhere.
fn kind(is_session_lock: Option<bool>) -> &'static str {
    match is_session_lock {
        Some(true) => "session",
        Some(false) => "lease",
        None => "elsewhere",
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

/// The locks that are wanted. `prefix`: the length of what stands before a lock's name in its key.
/// Returns `None` if comparing all keys with the pattern would take too long: some of the locks would
/// look as if they were all.
pub(super) fn list(locks: &Locks, wanted: &LocksWanted, prefix: usize) -> Option<Vec<LockStatus>> {
    let LocksWanted { pattern, most, by } = wanted;
    let most = most.unwrap_or(MOST_TOLD).min(MOST_TOLD);
    let (mut found, mut bytes) = (Vec::new(), 0);
    let (mut budget, mut is_enough) = (Budget::of(MAX_STEPS), true);
    let mut matches = |key: &[u8]| {
        let name = key.get(prefix..).unwrap_or_default();
        let matches = match pattern {
            None => Some(true),
            Some(pattern) => glob::matches_within(pattern, name, &mut budget),
        };
        is_enough &= matches.is_some();
        matches
    };
    if matches!(by, Some(LockOrder::Waiters | LockOrder::Wait)) {
        // There are no more than clients.
        locks.queues.visit(&mut |key, _| {
            if matches(key) == Some(true) {
                found.push(key.to_vec());
            }
        });
    }
    let mut oldest = Oldest::new(most);
    let all = found.len() + most;
    locks.grants.holders.visit(&mut |key, shown| {
        match matches(key) {
            None => return false,
            Some(false) => return true,
            Some(true) => {}
        }
        if *by == Some(LockOrder::Age) {
            oldest.note(key, shown.held_for);
            return true;
        }
        bytes += key.len();
        found.push(key.to_vec());
        found.len() < all && bytes < MAX_KEY_BYTES
    });
    if !is_enough {
        return None;
    }
    found.extend(oldest.keys());
    found.sort();
    found.dedup();
    // A lock may have been given back meanwhile.
    let found = found.iter().filter_map(|key| lock(locks, &Key::from(key)));
    let mut found: Vec<LockStatus> = found.collect();
    match by {
        None => found.retain(|lock| lock.grant.is_some()),
        Some(order) => found.sort_by_key(|lock| Reverse(lock.rank(*order))),
    }
    let mut room = MAX_KEY_BYTES;
    let has_room = |lock: &LockStatus| {
        let had_room = room > 0;
        room = room.saturating_sub(lock.key.len());
        had_room
    };
    Some(found.into_iter().take(most).take_while(has_room).collect())
}

/// The clients that hold locks or wait, at most [`MOST_TOLD`]: who waits longest first, then who holds
/// most. Locks and waiters whose client is not known are left out.
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
    let mut all: Vec<ClientStatus> = all.into_values().collect();
    all.sort_by_cached_key(|client| {
        let waited = client.waits_for.as_ref().map(|(_, waited)| *waited);
        (Reverse(waited), Reverse(client.held), client.card.number())
    });
    all.truncate(MOST_TOLD);
    all.iter_mut().for_each(|client| client.keys.sort());
    all
}

/// The locks that are waited for longest, the first of them first, at most `most` and
/// [`MOST_TOLD`].
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
    all.truncate(most.min(MOST_TOLD));
    for hot in &mut all {
        let shown = locks.grants.holders.show(&Key::from(&hot.key));
        let is_known = shown.is_some() || hot.waiters > 0;
        let session = shown.as_ref().map(|shown| shown.is_session_lock);
        hot.kind = if is_known { kind(session) } else { "" };
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
            kind: "",
            holder: None,
        }
    }
}
