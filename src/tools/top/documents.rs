//! What one proxy tells in one round, with all its texts made plain.

use std::collections::HashMap;

use super::plain::PlainText;
use crate::{
    lock::{ANY_PERMIT, family_of},
    report::{
        document::StatusDocument,
        lists::{BusyClientPart, FamilyPart, HotPart, LockPart},
        lock_name::LockName,
    },
};

/// Everything that a proxy reported in one round.
#[derive(Debug, Clone, Default)]
pub(super) struct Round {
    pub(super) status: StatusDocument<PlainText>,
    /// Locks, each once.
    pub(super) locks: Vec<LockPart<PlainText>>,
    /// Their families. One may be there several times, from several lists.
    pub(super) families: Vec<FamilyPart>,
    /// The time that all clients together waited for hot locks.
    pub(super) waited_ms: HashMap<LockName, u64>,
    /// Clients in line for the open lock.
    pub(super) line: Vec<BusyClientPart<PlainText>>,
    /// Why a list is missing.
    pub(super) complaint: Option<PlainText>,
}

impl Round {
    /// Adds a list of locks. A lock may be in several lists, with different fields.
    pub(super) fn add(&mut self, list: Vec<LockPart<PlainText>>) {
        let known = self.locks.iter().enumerate();
        let known: HashMap<LockName, usize> =
            known.map(|(place, lock)| (lock.name.clone(), place)).collect();
        for lock in list {
            match known.get(&lock.name).and_then(|place| self.locks.get_mut(*place)) {
                None => self.locks.push(lock),
                Some(known) => complete(known, lock),
            }
        }
    }

    /// Adds a list of hot locks.
    pub(super) fn add_hot(&mut self, list: Vec<HotPart<PlainText>>) {
        self.waited_ms.extend(list.iter().map(|hot| (hot.name.clone(), hot.waited_ms)));
        let lock = |hot: HotPart<PlainText>| LockPart {
            name: hot.name,
            kind: hot.kind.unwrap_or_default(),
            fence: hot.fence,
            held_ms: hot.held_ms,
            waiters: hot.waiters,
            holder: hot.holder,
            proxy: hot.proxy,
            ..LockPart::default()
        };
        self.add(list.into_iter().map(lock).collect());
    }

    /// Keeps those of all clients that wait for the lock of this name or, if it is that of a family's line, for any of
    /// its permits.
    pub(super) fn keep_line(&mut self, clients: Vec<BusyClientPart<PlainText>>, name: &[u8]) {
        let family = name.strip_suffix(ANY_PERMIT);
        let waits = |client: &BusyClientPart<PlainText>| {
            let lock = client.waits_for.as_ref().map(|lock| &lock.0[..]);
            lock == Some(name) || family.is_some() && lock.and_then(family_of) == family
        };
        self.line = clients.into_iter().filter(waits).collect();
    }
}

/// Adds what the same proxy reports of the same lock in another list.
fn complete(known: &mut LockPart<PlainText>, other: LockPart<PlainText>) {
    known.fence = known.fence.max(other.fence);
    known.held_ms = known.held_ms.max(other.held_ms);
    known.remaining_ms = known.remaining_ms.or(other.remaining_ms);
    known.waiters = known.waiters.max(other.waiters);
    known.longest_wait_ms = known.longest_wait_ms.max(other.longest_wait_ms);
    if known.holder.is_none() {
        (known.holder, known.proxy) = (other.holder, other.proxy);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::lists::{HotList, LockList};

    #[test]
    fn a_lock_is_known_by_its_bytes_and_its_client_is_plain() {
        let list = r#"{"locks": [
            {"key": "a�", "key_hex": "61ff", "waiters": 2, "holder":
                {"address": "10.0.0.7:4711", "name": "\u001b]0;w\u0007", "connected": true}},
            {"key": "\u001b[2J", "waiters": 1, "new_field": {}}]}"#;
        let list: LockList<PlainText> = serde_json::from_str(list).unwrap();
        let [first, second] = &list.locks[..] else { panic!("two locks") };
        assert_eq!(first.name.0, b"a\xff");
        assert_eq!(first.holder.as_ref().unwrap().name.as_str(), "\\u{1b}]0;w\\u{7}");
        assert_eq!(second.name.0, b"\x1b[2J");
    }

    #[test]
    fn a_lock_of_two_lists_is_one() {
        let list = r#"{"locks": [{"key": "a", "waiters": 2, "held_ms": 5, "remaining_ms": 9}]}"#;
        let hot = r#"{"hot": [{"key": "a", "waiters": 2, "waited_ms": 70}, {"key": "b"}]}"#;
        let mut round = Round::default();
        round.add(serde_json::from_str::<LockList<_>>(list).unwrap().locks);
        round.add_hot(serde_json::from_str::<HotList<_>>(hot).unwrap().hot);
        let [a, b] = &round.locks[..] else { panic!("two locks") };
        assert_eq!((a.waiters, a.held_ms, a.remaining_ms), (2, Some(5), Some(9)));
        assert_eq!((round.waited_ms[&a.name], &b.name.0[..]), (70, &b"b"[..]));
    }
}
