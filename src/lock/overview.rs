//! What operators see of locks, of clients that hold or wait, and of what is waited for. No token is shown: a token
//! is all it takes to release the lock.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap},
    sync::Arc,
    time::Duration,
};

use super::{
    holders::{SHARDS, Shown},
    line::family::{family_of, permit_of},
    locks::Locks,
};
use crate::{
    card::ClientCard,
    clock::Instant,
    glob::{self, Budget},
    key::{Key, KeyMap},
};

/// The kind of a lock that has readers.
const SHARED: &str = "shared";
/// Most locks, clients or waiters in one answer.
pub(crate) const MOST_TOLD: usize = 1000;
/// Most bytes of keys in one answer.
const MAX_KEY_BYTES: usize = 1024 * 1024;
/// Most keys that are shown of one client's locks.
const MOST_KEYS: usize = 16;
/// Steps that comparing keys with the pattern of one [`LocksWanted`] may take: about ten milliseconds, in which the
/// thread does nothing else.
const MAX_STEPS: usize = 10_000_000;

/// One lock that was granted through this proxy, or that its clients wait for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LockStatus {
    /// The lock's key on the nodes.
    pub key: Key,
    /// The grant. `None` if the lock is only waited for here.
    pub grant: Option<GrantStatus>,
    /// Whether the lock nodes have named a holder that was granted the lock through another proxy.
    pub is_elsewhere: bool,
    /// Whether it is no lock, but the line of a family.
    pub(crate) is_family: bool,
    /// Clients of this proxy that wait for the lock.
    pub waiters: usize,
    /// Time for which the first of them has waited.
    pub longest_wait: Duration,
}

/// The grant of a lock through this proxy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GrantStatus {
    /// The fence of the last grant.
    pub fence: u64,
    /// Whether it is a session lock; otherwise it is a lease.
    pub session: bool,
    /// The number of its readers here, of which this is the oldest; 0: the client has the lock alone.
    pub readers: usize,
    /// The library, or else the words, that took the lock in place of LOCK.
    pub adopted: Option<&'static str>,
    /// Time since the grant.
    pub held_for: Duration,
    /// Time until the lock ends unless it is renewed.
    pub remaining: Duration,
    /// The client that was granted the lock, if that is known.
    pub(crate) holder: Option<Arc<ClientCard>>,
}

impl GrantStatus {
    fn of(shown: Shown, readers: usize) -> GrantStatus {
        GrantStatus {
            fence: shown.fence,
            session: shown.is_session_lock,
            readers,
            adopted: shown.adopted,
            held_for: shown.held_for,
            remaining: shown.remaining,
            holder: shown.card,
        }
    }

    /// Returns `session` or `lease`.
    pub(crate) fn kind(&self) -> &'static str {
        kind(Some(self.session), false, false)
    }
}

/// A client that holds locks or waits for one.
#[derive(Debug)]
pub(crate) struct ClientStatus {
    /// The client's address and name.
    pub(crate) card: Arc<ClientCard>,
    /// How many locks it holds.
    pub(crate) held: usize,
    /// The keys of some of them, on the nodes.
    pub(crate) keys: Vec<Key>,
    /// Time for which it has held the oldest of them.
    pub(crate) longest_hold: Duration,
    /// The lock that it waits for, and for how long it has.
    pub(crate) waits_for: Option<(Key, Duration)>,
}

/// A lock that is waited for, or was.
#[derive(Debug)]
pub(crate) struct HotLock {
    /// The lock's key on the nodes.
    pub(crate) key: Key,
    /// How long clients of this proxy have waited for it, all together, those that wait now included.
    pub(crate) waited: Duration,
    /// The part of `waited` that may have been for other locks.
    pub(crate) excess: Duration,
    /// The number of waits, and the longest of them.
    pub(crate) waits: u64,
    pub(crate) longest: Duration,
    /// Clients that wait now.
    pub(crate) waiters: usize,
    /// Whether the lock nodes have named a holder to the clients that wait.
    is_held: bool,
    /// Whether it is no lock, but the line of a family.
    is_family: bool,
    /// As [`LockStatus::kind`]; empty if no client of this proxy holds the lock or waits for it.
    pub(crate) kind: &'static str,
    /// The client that holds the lock, if it was granted through this proxy.
    pub(crate) holder: Option<Arc<ClientCard>>,
}

/// The order of locks, the largest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockOrder {
    /// By the number of waiters.
    Waiters,
    /// By the time since the grant.
    Age,
    /// By the longest wait of the clients that wait now.
    Wait,
}

/// The locks to list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LocksWanted {
    /// A glob that their names, without `locks.prefix`, match; none: all locks.
    pub pattern: Option<Vec<u8>>,
    /// At most so many; none: as many as an answer may have.
    pub most: Option<usize>,
    /// The largest first; none: by key.
    pub by: Option<LockOrder>,
}

/// The keys of the locks that are held for longest, as many as are wanted.
struct Oldest {
    most: usize,
    /// A heap, with the lock that is held for the shortest time on top.
    found: BinaryHeap<Reverse<(Duration, Key)>>,
}

impl Oldest {
    fn new(most: usize) -> Oldest {
        Oldest { most, found: BinaryHeap::new() }
    }

    fn note(&mut self, key: Key, held_for: Duration) {
        if self.found.len() >= self.most {
            if self.found.peek().is_none_or(|Reverse((least, _))| *least >= held_for) {
                return;
            }
            self.found.pop();
        }
        self.found.push(Reverse((held_for, key)));
    }

    fn keys(self) -> impl Iterator<Item = Key> {
        self.found.into_iter().map(|Reverse((_, key))| key)
    }
}

impl LockStatus {
    /// Returns what operators see as the lock's kind: `session`, `lease`, `shared` (it has readers), `permits`,
    /// `elsewhere`, or `unknown`.
    pub(crate) fn kind(&self) -> &'static str {
        let is_shared = self.grant.as_ref().is_some_and(|grant| grant.readers > 0);
        let session = self.grant.as_ref().map(|grant| grant.session);
        if is_shared { SHARED } else { kind(session, self.is_family, self.is_elsewhere) }
    }

    /// Returns the key of the family of which this is the line, or, if it is one, a permit.
    pub(crate) fn family(&self) -> Option<&[u8]> {
        match self.is_family {
            true => family_of(&self.key),
            false => permit_of(&self.key).map(|(family, _)| family),
        }
    }

    /// Returns the number by which the lock is sorted.
    pub(crate) fn rank(&self, order: LockOrder) -> u128 {
        match order {
            LockOrder::Waiters => self.waiters as u128,
            LockOrder::Age => self.grant.as_ref().map_or(0, |grant| grant.held_for.as_nanos()),
            LockOrder::Wait => self.longest_wait.as_nanos(),
        }
    }
}

/// Names the kind of a lock: its grant here is a session lock or a lease, or it is the line of a family, or it was
/// granted elsewhere, or clients here wait for it and its holder is unknown.
fn kind(is_session_lock: Option<bool>, is_family: bool, is_elsewhere: bool) -> &'static str {
    match is_session_lock {
        Some(true) => "session",
        Some(false) => "lease",
        None if is_family => "permits",
        None if is_elsewhere => "elsewhere",
        None => "unknown",
    }
}

/// The bytes of keys for which an answer still has room.
struct KeyRoom(usize);

impl KeyRoom {
    fn new() -> KeyRoom {
        KeyRoom(MAX_KEY_BYTES)
    }

    /// Takes room for a key, if there is any left. The last key may need more.
    fn take(&mut self, key: &[u8]) -> bool {
        let had_room = self.0 > 0;
        self.0 = self.0.saturating_sub(key.len());
        had_room
    }
}

/// The present, by the clock of locks and by that of waiting clients.
#[derive(Clone, Copy)]
pub(super) struct Moment {
    lock: Instant,
    wait: tokio::time::Instant,
}

impl Moment {
    pub(super) fn now() -> Moment {
        Moment { lock: Instant::now(), wait: tokio::time::Instant::now() }
    }
}

/// Describes one lock as of `at`. Returns `None` if no client of this proxy holds it, or waits for it.
pub(super) fn lock(locks: &Locks, key: &Key, at: Moment) -> Option<LockStatus> {
    let alone = locks.grants.holders.show(key, at.lock);
    let alone = alone.map(|shown| (shown, 0));
    let shown = alone.or_else(|| locks.grants.holders.oldest_reader(key, at.lock));
    let line = locks.queues.line_of(key, at.wait);
    let grant = shown.map(|(shown, readers)| GrantStatus::of(shown, readers));
    let is_known = grant.is_some() || line.is_some();
    let is_elsewhere = grant.is_none() && line.as_ref().is_some_and(|line| line.is_held);
    let is_family = grant.is_none() && line.as_ref().is_some_and(|line| line.is_family);
    let (waiters, longest_wait) = line.map(|line| (line.waiters, line.longest)).unwrap_or_default();
    let key = key.clone();
    is_known.then_some(LockStatus { key, grant, is_elsewhere, is_family, waiters, longest_wait })
}

/// Lists the readers of a lock that were granted their parts here, at most `most`: each with the number of its claim,
/// those first that have read for longest.
pub(super) fn readers(
    locks: &Locks,
    key: &Key,
    most: usize,
    now: Instant,
) -> Vec<(u64, GrantStatus)> {
    let shown = locks.grants.holders.shown_readers(key, now).into_iter();
    let mut all: Vec<_> =
        shown.map(|(claim, shown)| (claim.number(), GrantStatus::of(shown, 1))).collect();
    all.sort_by_key(|(number, grant)| (Reverse(grant.held_for), *number));
    all.truncate(most);
    all
}

/// Lists the locks that are wanted. `prefix`: the length of what stands before a lock's name in its key. Returns
/// `None` if comparing all keys with the pattern would take too long: a part of the locks would look like all of
/// them.
pub(super) fn list(locks: &Locks, wanted: &LocksWanted, prefix: usize) -> Option<Vec<LockStatus>> {
    let LocksWanted { pattern, most, by } = wanted;
    let most = most.unwrap_or(MOST_TOLD).min(MOST_TOLD);
    let mut budget = Budget::of(MAX_STEPS);
    // Never called while a mutex is held that a lock needs: this may take long.
    let mut matches = |key: &Key| {
        let name = key.get(prefix..).unwrap_or_default();
        match pattern {
            None => Some(true),
            Some(pattern) => glob::matches_within(pattern, name, &mut budget),
        }
    };
    // One moment for all locks, so that they sort by their grants however long the listing takes.
    let at = Moment::now();
    let mut found = Vec::new();
    if matches!(by, Some(LockOrder::Waiters | LockOrder::Wait)) {
        // There are no more lines than clients.
        for line in locks.queues.lines() {
            if matches(&line.key)? {
                found.push(line.key);
            }
        }
    }
    let (mut oldest, mut room) = (Oldest::new(most), KeyRoom::new());
    let all = found.len() + most;
    'holders: for shard in 0..SHARDS {
        for (key, held_for) in locks.grants.holders.held(shard, at.lock) {
            // A lock is one row, however many readers it has.
            let key = if key.is_of_reader() { key.of_lock().into_owned() } else { key };
            if !matches(&key)? {
                continue;
            }
            if *by == Some(LockOrder::Age) {
                oldest.note(key, held_for);
            } else if found.len() < all && room.take(&key) {
                found.push(key);
            } else {
                break 'holders;
            }
        }
    }
    found.extend(oldest.keys());
    found.sort();
    found.dedup();
    // A lock may have been given back meanwhile.
    let mut found: Vec<LockStatus> = found.iter().filter_map(|key| lock(locks, key, at)).collect();
    match by {
        None => found.retain(|lock| lock.grant.is_some()),
        Some(order) => found.sort_by_key(|lock| Reverse(lock.rank(*order))),
    }
    let mut room = KeyRoom::new();
    Some(found.into_iter().take(most).take_while(|lock| room.take(&lock.key)).collect())
}

/// Lists the clients that hold locks or wait, at most `most` and [`MOST_TOLD`]: first those that wait longest, then
/// those that hold most. Locks and waiters whose client is not known are left out.
pub(super) fn clients(locks: &Locks, most: usize) -> Vec<ClientStatus> {
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
                client.keys.push(key.clone());
            }
        }
    });
    for (card, key, waited) in locks.queues.waiting_clients() {
        let client = all.entry(card.number()).or_insert_with(|| client(card));
        client.waits_for = Some((key, waited));
    }
    let mut all: Vec<ClientStatus> = all.into_values().collect();
    all.sort_by_cached_key(|client| {
        let waited = client.waits_for.as_ref().map(|(_, waited)| *waited);
        (Reverse(waited), Reverse(client.held), client.card.number())
    });
    all.truncate(most.min(MOST_TOLD));
    all.iter_mut().for_each(|client| client.keys.sort());
    cut_keys(&mut all);
    all
}

/// Leaves out keys beyond [`MAX_KEY_BYTES`]. The key that a client waits for is shown, or the client is left out. Of
/// the keys that clients hold, each client gets one before any gets another.
fn cut_keys(clients: &mut Vec<ClientStatus>) {
    let mut room = KeyRoom::new();
    let is_told =
        |client: &&ClientStatus| client.waits_for.as_ref().is_none_or(|(key, _)| room.take(key));
    let told = clients.iter().take_while(is_told).count();
    clients.truncate(told);
    let mut told = vec![0; clients.len()];
    for nth in 0..MOST_KEYS {
        for (client, told) in clients.iter().zip(&mut told) {
            if client.keys.get(nth).is_some_and(|key| room.take(key)) {
                *told += 1;
            }
        }
    }
    for (client, told) in clients.iter_mut().zip(told) {
        client.keys.truncate(told);
    }
}

/// Lists the locks that are waited for longest, the longest first, at most `most` and [`MOST_TOLD`].
pub(super) fn hot(locks: &Locks, most: usize) -> Vec<HotLock> {
    let mut all: KeyMap<HotLock> = KeyMap::default();
    for counted in locks.hot.all() {
        let hot = HotLock {
            waited: counted.waited,
            excess: counted.excess,
            waits: counted.waits,
            longest: counted.longest,
            ..HotLock::new(&counted.key)
        };
        all.insert(counted.key, hot);
    }
    for line in locks.queues.lines() {
        let hot = all.entry(line.key).or_insert_with_key(HotLock::new);
        hot.waiters = line.waiters;
        hot.waits += line.waiters as u64;
        hot.waited += line.waited;
        hot.longest = hot.longest.max(line.longest);
        (hot.is_held, hot.is_family) = (line.is_held, line.is_family);
    }
    let mut all: Vec<HotLock> = all.into_values().collect();
    all.sort_by(|a, b| b.waited.cmp(&a.waited).then_with(|| a.key.cmp(&b.key)));
    let mut room = KeyRoom::new();
    let told = all.iter().take(most.min(MOST_TOLD)).take_while(|hot| room.take(&hot.key)).count();
    all.truncate(told);
    let now = Instant::now();
    for hot in &mut all {
        let holders = &locks.grants.holders;
        let alone = holders.show(&hot.key, now);
        let is_shared = alone.is_none();
        let oldest = || holders.oldest_reader(&hot.key, now).map(|(shown, _)| shown);
        let shown = alone.or_else(oldest);
        let is_known = shown.is_some() || hot.waiters > 0;
        let session = shown.as_ref().map(|shown| shown.is_session_lock);
        hot.kind = match (is_known, session) {
            (false, _) => "",
            (true, Some(_)) if is_shared => SHARED,
            (true, _) => kind(session, hot.is_family, hot.is_held),
        };
        hot.holder = shown.and_then(|shown| shown.card);
    }
    all
}

impl HotLock {
    fn new(key: &Key) -> HotLock {
        HotLock {
            key: key.clone(),
            waited: Duration::ZERO,
            excess: Duration::ZERO,
            waits: 0,
            longest: Duration::ZERO,
            waiters: 0,
            is_held: false,
            is_family: false,
            kind: "",
            holder: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicBool, AtomicU64, Ordering},
        task::Waker,
        thread,
    };

    use super::*;
    use crate::{
        config::LocksConfig,
        key::Token,
        lock::{Claim, Engine, holders::Holder, line::in_line::LineUp},
    };

    const LONG: Duration = Duration::from_secs(60);

    /// A proxy whose lock node does not answer.
    fn engine() -> Arc<Engine> {
        let nodes = vec!["redis://127.0.0.1:1".parse().unwrap()];
        let config = LocksConfig { nodes, ..LocksConfig::default() };
        Engine::start_alone(&config, Arc::new(|| 1))
    }

    fn granted(locks: &Locks, key: &str, card: &Arc<ClientCard>) {
        let now = Instant::now();
        let holder = Holder::new(&Token::from("t"), Claim::new(), 1, now, now + LONG);
        locks.grants.granted(&Key::from(key), holder.by(Some(card.clone())));
    }

    fn waits(locks: &Locks, key: &Key, ticket: u64, card: &Arc<ClientCard>) {
        let card = Some(card.clone());
        let wants = LineUp { token: Token::from("t"), ttl: LONG, shared: false, card };
        locks.queues.join(key, wants, ticket).unwrap();
    }

    /// A name of 4,096 bytes, which is the longest by default.
    fn long(name: &str) -> String {
        format!("{name:x<4096}")
    }

    #[tokio::test]
    async fn clients_are_told_with_no_more_than_a_megabyte_of_keys() {
        let engine = engine();
        let locks = engine.locks();
        let cards: Vec<_> = (0..1000).map(|_| ClientCard::new(None)).collect();
        for (number, card) in cards.iter().enumerate() {
            (0..MOST_KEYS).for_each(|n| granted(locks, &long(&format!("{number} {n} ")), card));
        }
        let bytes = |clients: &[ClientStatus]| -> usize {
            let all = clients.iter().flat_map(|client| {
                let waits_for = client.waits_for.as_ref().map(|(key, _)| key);
                client.keys.iter().chain(waits_for).map(|key| key.len())
            });
            all.sum()
        };
        let told = clients(locks, usize::MAX);
        assert!((MAX_KEY_BYTES..MAX_KEY_BYTES + 4096).contains(&bytes(&told)));
        assert_eq!(told.len(), 1000, "who has no room for keys is told all the same");
        assert!(told.iter().all(|client| client.held == MOST_KEYS && client.keys.len() <= 1));
        let few = clients(locks, 10);
        assert_eq!((few.len(), bytes(&few)), (10, 10 * MOST_KEYS * 4096));
        // What a client waits for is shown before what others hold.
        for (ticket, card) in (0..).zip(&cards[600..]) {
            waits(locks, &Key::from(&long(&format!("waited {ticket} "))), ticket, card);
        }
        let told = clients(locks, usize::MAX);
        assert!((MAX_KEY_BYTES..MAX_KEY_BYTES + 4096).contains(&bytes(&told)));
        assert!(told.iter().all(|client| client.waits_for.is_some()));
        let told = hot(locks, usize::MAX);
        let bytes: usize = told.iter().map(|hot| hot.key.len()).sum();
        assert!((MAX_KEY_BYTES..MAX_KEY_BYTES + 4096).contains(&bytes));
    }

    #[tokio::test]
    async fn locks_are_sorted_by_their_grants_however_close_these_were() {
        let engine = engine();
        let locks = engine.locks();
        let (now, older) = (Instant::now(), Duration::from_nanos);
        let keys: Vec<Key> = (0..200).map(|n| Key::from(&format!("{n:03}"))).collect();
        for (key, n) in keys.iter().zip(0..) {
            let since = now - older(1000 - n);
            let holder = Holder::new(&Token::from("t"), Claim::new(), 1, since, now + LONG);
            locks.grants.granted(key, holder);
        }
        for most in [keys.len(), 3] {
            let by = Some(LockOrder::Age);
            let wanted = LocksWanted { most: Some(most), by, ..LocksWanted::default() };
            let told = list(locks, &wanted, 0).unwrap();
            let told: Vec<&Key> = told.iter().map(|lock| &lock.key).collect();
            assert_eq!(told, keys[..most].iter().collect::<Vec<_>>());
        }
    }

    #[tokio::test]
    async fn whoever_waits_goes_on_while_keys_are_compared_with_a_costly_pattern() {
        let engine = engine();
        let locks = engine.locks().clone();
        let card = ClientCard::new(None);
        for ticket in 0..200 {
            waits(&locks, &Key::from(&long(&format!("{ticket} "))), ticket, &card);
        }
        let (rounds, lists) = (Arc::new(AtomicU64::new(0)), locks.clone());
        let (counted, seen) = (rounds.clone(), Arc::new(AtomicBool::new(false)));
        let is_seen = seen.clone();
        // A waiter looks whether it is its turn, again and again.
        let waiter = thread::spawn(move || {
            while !is_seen.load(Ordering::Relaxed) {
                locks.queues.turn(b"none", 0, Waker::noop());
                counted.fetch_add(1, Ordering::Relaxed);
                // Leaves the mutex to others most of the time.
                (0..1000).for_each(|_| std::hint::spin_loop());
            }
        });
        let wanted = LocksWanted {
            pattern: Some(format!("*{}y", "x".repeat(200)).into_bytes()),
            by: Some(LockOrder::Waiters),
            ..LocksWanted::default()
        };
        for _ in 0..20 {
            let before = rounds.load(Ordering::Relaxed);
            assert_eq!(list(&lists, &wanted, 0), None, "it is costly");
            // Some rounds come before the list begins to compare, and after it.
            if rounds.load(Ordering::Relaxed) - before > 100 {
                seen.store(true, Ordering::Relaxed);
                break;
            }
        }
        let went_on = seen.swap(true, Ordering::Relaxed);
        waiter.join().unwrap();
        assert!(went_on, "nobody's turn came while keys were compared");
    }
}
