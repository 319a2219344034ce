//! Answers what LOCKGATE tells of locks, and of the clients that hold them or wait. No token is
//! told.

use std::{cmp::Reverse, collections::BinaryHeap, sync::Arc, time::Duration};

use super::{
    super::{desk::Desk, metrics::Outcome},
    Answer, Job, Ours, Progress, Question, not_asked,
};
use crate::{
    card::ClientCard,
    clock::millis,
    command::operator::LocksWanted,
    glob::{self, Budget},
    key::Key,
    lock::{GrantStatus, LockOrder, LockStatus, NoQuorum},
    resp::encode,
};

/// Most entries of one answer.
const MOST: usize = 1000;
/// Most bytes of keys in one answer.
const MAX_KEY_BYTES: usize = 1024 * 1024;
/// Steps that comparing keys with the pattern of one LOCKGATE LOCKS may take: some ten
/// milliseconds, in which the thread that renews locks does nothing else.
const MAX_STEPS: usize = 10_000_000;

const TOO_MANY_STEPS: &str = "ERR comparing all keys with this pattern would take too long, \
     give one with fewer stars, or that begins as the keys do";

/// A number that is not known of a lock that another proxy has granted.
const UNKNOWN: i64 = -1;

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

/// What the lock nodes tell of a lock that another proxy has granted.
struct GrantElsewhere {
    fence: Option<u64>,
    left: Option<Duration>,
}

impl Desk {
    /// Answers LOCKGATE LOCK: asks the lock nodes about a lock that was not granted here.
    pub(super) fn tell_one_lock(&self, ours: Ours, name: &[u8]) -> Progress {
        let key = self.key(name);
        match self.shared.engine.lock(&key).filter(|lock| lock.grant.is_some()) {
            Some(lock) => {
                let mut out = Vec::new();
                self.tell_lock(&mut out, &lock, None);
                ours.answer(out, None)
            }
            None => {
                let question = Question::Look(key.clone());
                Progress::Ask(Box::new(Elsewhere { ours, key, left: None }), question)
            }
        }
    }

    /// Answers LOCKGATE LOCKS.
    pub(super) fn tell_locks(&self, out: &mut Vec<u8>, wanted: &LocksWanted) {
        let LocksWanted { pattern, most, by } = wanted;
        let most = most.unwrap_or(MOST).min(MOST);
        let (mut found, mut bytes) = (Vec::new(), 0);
        let (mut budget, mut is_enough) = (Budget::of(MAX_STEPS), true);
        let engine = &self.shared.engine;
        let mut matches = |key: &[u8]| {
            let matches = match pattern {
                None => Some(true),
                Some(pattern) => glob::matches_within(pattern, self.plain(key), &mut budget),
            };
            is_enough &= matches.is_some();
            matches
        };
        if matches!(by, Some(LockOrder::Waiters | LockOrder::Wait)) {
            // There are no more than clients.
            engine.waited_for(&mut |key| {
                if matches(key) == Some(true) {
                    found.push(key.to_vec());
                }
            });
        }
        let mut oldest = Oldest::new(most);
        let all = found.len() + most;
        engine.locks(&mut |key, held_for| {
            match matches(key) {
                None => return false,
                Some(false) => return true,
                Some(true) => {}
            }
            if *by == Some(LockOrder::Age) {
                oldest.note(key, held_for);
                return true;
            }
            bytes += key.len();
            found.push(key.to_vec());
            found.len() < all && bytes < MAX_KEY_BYTES
        });
        if !is_enough {
            // An answer with some of the locks would look as if they were all.
            return encode::error(out, TOO_MANY_STEPS);
        }
        found.extend(oldest.keys());
        found.sort();
        found.dedup();
        // A lock may have been given back meanwhile.
        let mut found: Vec<LockStatus> = found.iter().filter_map(|key| engine.lock(key)).collect();
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
        let found: Vec<LockStatus> = found.into_iter().take(most).take_while(has_room).collect();
        encode::array(out, found.len());
        found.iter().for_each(|lock| self.tell_lock(out, lock, None));
    }

    /// Tells one lock; `elsewhere`: what the lock nodes say of one that was not granted here.
    fn tell_lock(&self, out: &mut Vec<u8>, lock: &LockStatus, elsewhere: Option<&GrantElsewhere>) {
        let grant = lock.grant.as_ref();
        let kind = match grant {
            Some(GrantStatus { session: true, .. }) => "session",
            Some(_) => "lease",
            None => "elsewhere",
        };
        let number = |value: Option<u64>| {
            value.map_or(UNKNOWN, |value| i64::try_from(value).unwrap_or(i64::MAX))
        };
        let fence = grant.map(|grant| grant.fence).or_else(|| elsewhere?.fence);
        let left = grant.map(|grant| grant.remaining).or_else(|| elsewhere?.left);
        encode::map(out, 12, self.conn.state.resp3);
        field(out, "key", self.plain(&lock.key));
        field(out, "kind", kind.as_bytes());
        numeric(out, "fence", number(fence));
        numeric(out, "held-ms", number(grant.map(|grant| millis(grant.held_for))));
        numeric(out, "remaining-ms", number(left.map(millis)));
        numeric(out, "waiters", number(Some(lock.waiters as u64)));
        field(out, "adopted", grant.and_then(|grant| grant.adopted).unwrap_or_default().as_bytes());
        numeric(out, "longest-wait-ms", number(Some(millis(lock.longest_wait))));
        let holder = grant.and_then(|grant| grant.holder.as_ref());
        tell_client(out, holder);
        let connected = holder.map_or(UNKNOWN, |holder| i64::from(holder.is_here()));
        numeric(out, "connected", connected);
        let proxy = if grant.is_some() { self.shared.name.as_str() } else { "" };
        field(out, "proxy", proxy.as_bytes());
    }

    /// Answers LOCKGATE WAITERS.
    pub(super) fn tell_waiters(&self, out: &mut Vec<u8>, name: &[u8]) {
        let mut line = self.shared.engine.waiters(&self.key(name));
        line.truncate(MOST);
        encode::array(out, line.len());
        for waiter in line {
            encode::map(out, 4, self.conn.state.resp3);
            tell_client(out, waiter.card.as_ref());
            duration(out, "waited-ms", waiter.waited);
            duration(out, "ttl-ms", waiter.ttl);
        }
    }

    /// Answers LOCKGATE CLIENTS: who waits longest first, then who holds most.
    pub(super) fn tell_clients(&self, out: &mut Vec<u8>) {
        let mut clients = self.shared.engine.clients();
        clients.sort_by_cached_key(|client| {
            let waited = client.waits_for.as_ref().map(|(_, waited)| *waited);
            (Reverse(waited), Reverse(client.held), client.card.number())
        });
        clients.truncate(MOST);
        encode::array(out, clients.len());
        for mut client in clients {
            encode::map(out, 8, self.conn.state.resp3);
            tell_client(out, Some(&client.card));
            numeric(out, "connected", i64::from(client.card.is_here()));
            numeric(out, "locks", i64::try_from(client.held).unwrap_or(i64::MAX));
            client.keys.sort();
            encode::bulk(out, b"keys");
            encode::array(out, client.keys.len());
            client.keys.iter().for_each(|key| encode::bulk(out, self.plain(key)));
            duration(out, "longest-hold-ms", client.longest_hold);
            let (key, waited) = client.waits_for.unwrap_or_default();
            field(out, "waits-for", self.plain(&key));
            duration(out, "waited-ms", waited);
        }
    }

    /// Answers LOCKGATE HOT.
    pub(super) fn tell_hot(&self, out: &mut Vec<u8>, most: usize) {
        let hot = self.shared.engine.hot(most.min(MOST));
        encode::array(out, hot.len());
        for lock in hot {
            encode::map(out, 8, self.conn.state.resp3);
            field(out, "key", self.plain(&lock.key));
            duration(out, "waited-ms", lock.waited);
            duration(out, "excess-ms", lock.excess);
            numeric(out, "waits", i64::try_from(lock.waits).unwrap_or(i64::MAX));
            duration(out, "longest-ms", lock.longest);
            numeric(out, "waiters", i64::try_from(lock.waiters).unwrap_or(i64::MAX));
            tell_client(out, lock.holder.as_ref());
        }
    }

    /// The lock's name as clients know it.
    fn plain<'k>(&self, key: &'k [u8]) -> &'k [u8] {
        key.get(self.config.locks.prefix.len()..).unwrap_or_default()
    }
}

/// The lock nodes are asked about a lock that was not granted here.
struct Elsewhere {
    ours: Ours,
    key: Key,
    /// For how long the lock lasts, once the nodes have named a holder; then they are asked for its
    /// fence.
    left: Option<Option<Duration>>,
}

impl Job for Elsewhere {
    fn answer(self: Box<Self>, answer: Answer, desk: &mut Desk) -> Progress {
        let Elsewhere { ours, key, left } = *self;
        match (answer, left) {
            (Answer::Look(Ok(Some(holding))), None) => {
                let left = Some(holding.left);
                // A holder without a token has no fence.
                if holding.token.is_empty() {
                    return tell_elsewhere(ours, &key, None, holding.left, desk);
                }
                let question = Question::Attached(vec![(key.clone(), holding.token)]);
                Progress::Ask(Box::new(Elsewhere { ours, key, left }), question)
            }
            (Answer::Look(Ok(None)), None) => tell_nobody(ours, desk),
            (Answer::Look(Err(error)), None) => tell_silence(ours, &error, desk),
            (Answer::Attached(said), Some(left)) => match said.into_iter().next() {
                // It was given back meanwhile.
                Some(Ok(None)) | None => tell_nobody(ours, desk),
                Some(Ok(Some(grant))) => tell_elsewhere(ours, &key, Some(grant.fence), left, desk),
                Some(Err(_)) => tell_elsewhere(ours, &key, None, left, desk),
            },
            _ => not_asked(),
        }
    }

    fn asks_for(&self) -> Option<Ours> {
        Some(self.ours)
    }
}

fn tell_elsewhere(
    ours: Ours,
    key: &Key,
    fence: Option<u64>,
    left: Option<Duration>,
    desk: &Desk,
) -> Progress {
    // Clients here may wait for it, or may have been granted it meanwhile.
    let lock = desk.shared.engine.lock(key).unwrap_or_else(|| LockStatus {
        key: key.to_vec(),
        grant: None,
        waiters: 0,
        longest_wait: Duration::ZERO,
    });
    let mut out = Vec::new();
    desk.tell_lock(&mut out, &lock, Some(&GrantElsewhere { fence, left }));
    ours.answer(out, None)
}

fn tell_nobody(ours: Ours, desk: &Desk) -> Progress {
    let mut out = Vec::new();
    encode::null(&mut out, desk.conn.state.resp3);
    ours.answer(out, None)
}

fn tell_silence(ours: Ours, error: &NoQuorum, desk: &Desk) -> Progress {
    ours.refuse(&format!("NOQUORUM {error}"), Outcome::NoQuorum, desk)
}

/// Tells who a client is, in two fields.
fn tell_client(out: &mut Vec<u8>, card: Option<&Arc<ClientCard>>) {
    let (address, name) = card.map(|card| (card.address(), card.name())).unwrap_or_default();
    field(out, "address", address.as_bytes());
    field(out, "name", name.as_bytes());
}

fn field(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    encode::bulk(out, name.as_bytes());
    encode::bulk(out, value);
}

fn numeric(out: &mut Vec<u8>, name: &str, value: i64) {
    encode::bulk(out, name.as_bytes());
    encode::integer(out, value);
}

fn duration(out: &mut Vec<u8>, name: &str, value: Duration) {
    numeric(out, name, i64::try_from(millis(value)).unwrap_or(i64::MAX));
}
