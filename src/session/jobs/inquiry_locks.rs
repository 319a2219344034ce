//! Answers what LOCKGATE tells of locks, holders and waiters. No token is told.

use std::{sync::Arc, time::Duration};

use super::{
    super::{desk::Desk, session_metrics::Outcome},
    Ours, Progress, Question,
};
use crate::{
    card::ClientCard,
    clock::millis,
    key::{Key, Token},
    lock::{Holding, LockStatus, LocksWanted, MOST_TOLD},
    resp::encode,
};

const TOO_MANY_STEPS: &str = "ERR comparing all keys with this pattern would take too long, \
     give one with fewer stars, or that begins as the keys do";

/// The number told in place of a value that is not known, as of a lock that another proxy has granted.
const UNKNOWN: i64 = -1;

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
                let question = Question::look(key.clone());
                Progress::ask(ours, question, |ours, said, desk| match said {
                    Ok(Some(holding)) => ask_for_fence(ours, key, holding, desk),
                    Ok(None) => tell_nobody(ours, desk),
                    Err(error) => ours.refuse(&error.told(), Outcome::NoQuorum, desk),
                })
            }
        }
    }

    /// Answers LOCKGATE LOCKS.
    pub(super) fn tell_locks(&self, out: &mut Vec<u8>, wanted: &LocksWanted) {
        let prefix = self.config.locks.prefix.len();
        let Some(found) = self.shared.engine.list(wanted, prefix) else {
            return encode::error(out, TOO_MANY_STEPS);
        };
        encode::array(out, found.len());
        found.iter().for_each(|lock| self.tell_lock(out, lock, None));
    }

    /// Encodes one lock. `elsewhere`: what the lock nodes say of a lock that was not granted here.
    fn tell_lock(&self, out: &mut Vec<u8>, lock: &LockStatus, elsewhere: Option<&GrantElsewhere>) {
        let grant = lock.grant.as_ref();
        let fence = grant.map(|grant| grant.fence).or_else(|| elsewhere?.fence);
        let left = grant.map(|grant| grant.remaining).or_else(|| elsewhere?.left);
        encode::map(out, 13, self.conn.state.resp3);
        field(out, "key", self.plain(&lock.key));
        field(out, "kind", lock.kind().as_bytes());
        known(out, "fence", fence);
        known(out, "held-ms", grant.map(|grant| millis(grant.held_for)));
        known(out, "remaining-ms", left.map(millis));
        count(out, "waiters", lock.waiters as u64);
        field(out, "adopted", grant.and_then(|grant| grant.adopted).unwrap_or_default().as_bytes());
        duration(out, "longest-wait-ms", lock.longest_wait);
        let holder = grant.and_then(|grant| grant.holder.as_ref());
        tell_client(out, holder);
        known(out, "connected", holder.map(|holder| u64::from(holder.is_here())));
        count(out, "readers", grant.map_or(0, |grant| grant.readers) as u64);
        let proxy = if grant.is_some() { self.shared.name.as_str() } else { "" };
        field(out, "proxy", proxy.as_bytes());
    }

    /// Answers LOCKGATE READERS.
    pub(super) fn tell_readers(&self, out: &mut Vec<u8>, name: &[u8]) {
        let readers = self.shared.engine.readers(&self.key(name), MOST_TOLD);
        encode::array(out, readers.len());
        for (number, grant) in readers {
            encode::map(out, 7, self.conn.state.resp3);
            count(out, "reader", number);
            field(out, "kind", grant.kind().as_bytes());
            duration(out, "held-ms", grant.held_for);
            duration(out, "remaining-ms", grant.remaining);
            tell_client(out, grant.holder.as_ref());
            known(
                out,
                "connected",
                grant.holder.as_ref().map(|holder| u64::from(holder.is_here())),
            );
        }
    }

    /// Answers LOCKGATE WAITERS.
    pub(super) fn tell_waiters(&self, out: &mut Vec<u8>, name: &[u8]) {
        let mut line = self.shared.engine.waiters(&self.key(name));
        line.truncate(MOST_TOLD);
        encode::array(out, line.len());
        for waiter in line {
            encode::map(out, 4, self.conn.state.resp3);
            tell_client(out, waiter.card.as_ref());
            duration(out, "waited-ms", waiter.waited);
            duration(out, "ttl-ms", waiter.ttl);
        }
    }

    /// Answers LOCKGATE CLIENTS.
    pub(super) fn tell_clients(&self, out: &mut Vec<u8>) {
        let clients = self.shared.engine.clients(MOST_TOLD);
        encode::array(out, clients.len());
        for client in clients {
            encode::map(out, 8, self.conn.state.resp3);
            tell_client(out, Some(&client.card));
            count(out, "connected", u64::from(client.card.is_here()));
            count(out, "locks", client.held as u64);
            encode::bulk(out, b"keys");
            encode::array(out, client.keys.len());
            client.keys.iter().for_each(|key| encode::bulk(out, self.plain(key)));
            duration(out, "longest-hold-ms", client.longest_hold);
            let (key, waited) = client.waits_for.unzip();
            field(out, "waits-for", key.as_ref().map_or(&[], |key| self.plain(key)));
            duration(out, "waited-ms", waited.unwrap_or_default());
        }
    }

    /// Answers LOCKGATE HOT.
    pub(super) fn tell_hot(&self, out: &mut Vec<u8>, most: usize) {
        let hot = self.shared.engine.hot(most);
        encode::array(out, hot.len());
        for lock in hot {
            encode::map(out, 9, self.conn.state.resp3);
            field(out, "key", self.plain(&lock.key));
            duration(out, "waited-ms", lock.waited);
            duration(out, "excess-ms", lock.excess);
            count(out, "waits", lock.waits);
            duration(out, "longest-ms", lock.longest);
            count(out, "waiters", lock.waiters as u64);
            tell_client(out, lock.holder.as_ref());
            field(out, "kind", lock.kind.as_bytes());
        }
    }

    /// Returns the lock's name as clients know it.
    fn plain<'k>(&self, key: &'k [u8]) -> &'k [u8] {
        key.get(self.config.locks.prefix.len()..).unwrap_or_default()
    }
}

/// Asks the lock nodes for the fence of a lock whose holder they have named.
fn ask_for_fence(
    ours: Ours,
    key: Key,
    Holding { token, left, .. }: Holding,
    desk: &Desk,
) -> Progress {
    // A holder without a token has no fence, nor have readers.
    if token.is_empty() || *token == *Token::OF_READERS {
        return tell_elsewhere(ours, &key, None, left, desk);
    }
    let question = Question::attached(vec![(key.clone(), token)]);
    Progress::ask(ours, question, move |ours, said, desk| match said.into_iter().next() {
        // The lock was given back meanwhile.
        Some(Ok(None)) | None => tell_nobody(ours, desk),
        Some(Ok(Some(grant))) => tell_elsewhere(ours, &key, Some(grant.fence), left, desk),
        Some(Err(_)) => tell_elsewhere(ours, &key, None, left, desk),
    })
}

fn tell_elsewhere(
    ours: Ours,
    key: &Key,
    fence: Option<u64>,
    left: Option<Duration>,
    desk: &Desk,
) -> Progress {
    // Clients here may wait for the lock, or may have been granted it meanwhile.
    let mut lock = desk.shared.engine.lock(key).unwrap_or_else(|| LockStatus {
        key: key.clone(),
        grant: None,
        is_elsewhere: true,
        is_family: false,
        waiters: 0,
        longest_wait: Duration::ZERO,
    });
    lock.is_elsewhere = lock.grant.is_none();
    let mut out = Vec::new();
    desk.tell_lock(&mut out, &lock, Some(&GrantElsewhere { fence, left }));
    ours.answer(out, None)
}

fn tell_nobody(ours: Ours, desk: &Desk) -> Progress {
    let mut out = Vec::new();
    encode::null(&mut out, desk.conn.state.resp3);
    ours.answer(out, None)
}

/// Encodes a client's address and name, in two fields.
fn tell_client(out: &mut Vec<u8>, card: Option<&Arc<ClientCard>>) {
    let (address, name) = card.map(|card| (card.address(), card.name())).unwrap_or_default();
    field(out, "address", address.as_bytes());
    field(out, "name", name.as_bytes());
}

pub(super) fn field(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    encode::bulk(out, name.as_bytes());
    encode::bulk(out, value);
}

pub(super) fn count(out: &mut Vec<u8>, name: &str, value: u64) {
    encode::bulk(out, name.as_bytes());
    encode::integer(out, i64::try_from(value).unwrap_or(i64::MAX));
}

pub(super) fn duration(out: &mut Vec<u8>, name: &str, value: Duration) {
    count(out, name, millis(value));
}

/// Encodes a number, or that it is not known.
fn known(out: &mut Vec<u8>, name: &str, value: Option<u64>) {
    match value {
        Some(value) => count(out, name, value),
        None => {
            encode::bulk(out, name.as_bytes());
            encode::integer(out, UNKNOWN);
        }
    }
}
