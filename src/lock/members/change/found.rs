//! What the nodes that were read say together of each lock: whether it may be held, by which token, and which of its
//! fences is the largest. Uses no connections.

use std::collections::{BTreeMap, BTreeSet};

use smallvec::SmallVec;

use crate::lock::{
    jitter,
    quorum::{fence_bounds, quorum},
};

/// What one node stores of a lock, or of one of its readers: a row of `tell.lua`'s answer.
pub(super) struct ToldLock {
    pub(super) token: Vec<u8>,
    pub(super) left: Vec<u8>,
    pub(super) fence: Vec<u8>,
    pub(super) ended: Vec<u8>,
}

/// A lock on one node.
#[derive(Debug, Clone, PartialEq, Eq)]
struct OnNode {
    seat: usize,
    /// Empty: the key is there, but no token can be read from it.
    token: Vec<u8>,
    /// In ms; -1: without a TTL.
    left: i64,
    fence: u64,
    claim: Vec<u8>,
}

/// A reader of a lock on one node.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ReaderOnNode {
    seat: usize,
    /// Its claim and token, as they stand in the set.
    reader: Vec<u8>,
    /// In ms.
    left: i64,
}

/// A lock, as the nodes that were read have it.
#[derive(Debug, Default)]
struct FoundLock {
    /// Where a client has it alone, or a key is there that is no lock's.
    on: SmallVec<[OnNode; 3]>,
    readers: Vec<ReaderOnNode>,
    /// Claims of grants that were released through another proxy than the one that made them.
    ended: SmallVec<[Vec<u8>; 1]>,
    /// The largest fence, including those of failed attempts, and the claim beside it.
    largest: u64,
    claim: Vec<u8>,
}

/// All locks on the nodes that were read.
#[derive(Debug, Default)]
pub(super) struct FoundLocks(BTreeMap<Vec<u8>, FoundLock>);

/// A lock to write. Without a token, only its fence is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LockCopy {
    pub(super) key: Vec<u8>,
    pub(super) token: Vec<u8>,
    /// In ms; -1: without a TTL; 0: to take back.
    pub(super) left: i64,
    pub(super) fence: u64,
    pub(super) largest: u64,
    pub(super) claim: Vec<u8>,
    /// Readers, with the time that is left to each, in ms. A lock that has any has no token.
    pub(super) readers: BTreeMap<Vec<u8>, i64>,
}

impl LockCopy {
    /// Whether a client may hold the lock.
    pub(super) fn may_be_held(&self) -> bool {
        !self.token.is_empty() || !self.readers.is_empty()
    }

    /// Returns what is to be taken back of this copy, as its nodes say `now` that it was given back.
    fn over(&self, now: &LockCopy) -> Option<LockCopy> {
        let readers: BTreeMap<Vec<u8>, i64> = self
            .readers
            .iter()
            .filter(|(reader, _)| !now.readers.contains_key(*reader))
            .map(|(reader, left)| (reader.clone(), *left))
            .collect();
        let is_over = match self.token.is_empty() {
            true => !readers.is_empty() && now.token.is_empty(),
            false => !now.may_be_held(),
        };
        is_over.then(|| LockCopy { left: 0, readers, ..self.clone() })
    }
}

impl FoundLocks {
    /// Adds what a node reports of a lock. Returns `None` if it is nothing that Redis answers.
    pub(super) fn add(&mut self, seat: usize, key: Vec<u8>, told: ToldLock) -> Option<()> {
        let ToldLock { token, left, fence, ended } = told;
        let number = |text: &[u8]| std::str::from_utf8(text).ok()?.parse::<i64>().ok();
        let left = number(&left)?;
        let lock = self.0.entry(key).or_default();
        match &ended[..] {
            b"reader" => {
                lock.readers.push(ReaderOnNode { seat, reader: token, left });
                return Some(());
            }
            b"ended" => {
                lock.ended.push(token);
                return Some(());
            }
            _ => {}
        }
        // "fence claim" or "largest/fence claim".
        let (numbers, claim) = match fence.iter().position(|byte| *byte == b' ') {
            Some(at) => (&fence[..at], fence[at + 1..].to_vec()),
            None => (&fence[..], b"-".to_vec()),
        };
        let mut numbers = numbers.split(|byte| *byte == b'/');
        let of = |text: Option<&[u8]>| Some(number(text?).unwrap_or_default().unsigned_abs());
        let largest = of(numbers.next()).unwrap_or_default();
        let fence = of(numbers.next()).unwrap_or(largest);
        if largest >= lock.largest {
            lock.largest = largest;
            lock.claim.clone_from(&claim);
        }
        if let Some((b' ', ended)) = ended.split_first() {
            lock.ended.push(ended.to_vec());
        }
        // A SCAN may return a key twice.
        lock.on.retain(|on| on.seat != seat);
        lock.readers.retain(|on| on.seat != seat);
        if left != -2 {
            lock.on.push(OnNode { seat, token, left, fence, claim });
        }
        Some(())
    }

    /// Adds what another connection has read.
    pub(super) fn merge(&mut self, other: FoundLocks) {
        for (key, theirs) in other.0 {
            let lock = self.0.entry(key).or_default();
            if theirs.largest >= lock.largest {
                (lock.largest, lock.claim) = (theirs.largest, theirs.claim);
            }
            lock.ended.extend(theirs.ended);
            let seats: SmallVec<[usize; 3]> = theirs.on.iter().map(|on| on.seat).collect();
            lock.on.retain(|on| !seats.contains(&on.seat));
            lock.on.extend(theirs.on);
            // Each connection reads a node of its own.
            lock.readers.extend(theirs.readers);
        }
    }

    /// Returns the locks to remove from a node: all that it has, except those in `held`. A key without a fence beside
    /// it was never a lock of ours, and stays, unless it is a set of readers.
    pub(super) fn others(self, held: &BTreeSet<Vec<u8>>) -> Vec<LockCopy> {
        let is_other = |(key, lock): &(Vec<u8>, FoundLock)| {
            let is_ours = !lock.on.is_empty() && lock.largest > 0 || !lock.readers.is_empty();
            is_ours && !held.contains(key)
        };
        let others = self.0.into_iter().filter(is_other);
        let away = |(key, lock): (Vec<u8>, FoundLock)| {
            let token = lock.on.into_iter().next().map(|on| on.token).unwrap_or_default();
            let (claim, readers) = (Vec::new(), BTreeMap::new());
            LockCopy { key, token, left: 0, fence: 0, largest: 0, claim, readers }
        };
        others.map(away).collect()
    }

    /// Returns what to take back of `copies`, which were given back before these locks were read, if `read` of `nodes`
    /// nodes were.
    pub(super) fn over<'a>(
        &self,
        copies: impl IntoIterator<Item = &'a LockCopy>,
        read: usize,
        nodes: usize,
    ) -> Vec<LockCopy> {
        // The nodes that were not read may be a quorum by themselves.
        if nodes.saturating_sub(read) >= quorum(nodes) {
            return Vec::new();
        }
        let now = |copy: &LockCopy| Some(self.0.get(&copy.key)?.copy(&copy.key, read, nodes));
        copies.into_iter().filter_map(|copy| copy.over(&now(copy)?)).collect()
    }

    /// Returns what to write, if `read` of `nodes` nodes were read.
    pub(super) fn copies(&self, read: usize, nodes: usize) -> Vec<LockCopy> {
        self.0.iter().map(|(key, lock)| lock.copy(key, read, nodes)).collect()
    }
}

impl FoundLock {
    /// Returns the lock as it is to be written: held, if one grant, or one token by several grants, may be on a
    /// quorum.
    fn copy(&self, key: &[u8], read: usize, nodes: usize) -> LockCopy {
        let (key, largest) = (key.to_vec(), self.largest);
        let unread = nodes.saturating_sub(read);
        let of = |one: &OnNode| {
            let same = |on: &&OnNode| on.token == one.token && on.claim == one.claim;
            self.on.iter().filter(same).collect::<SmallVec<[&OnNode; 3]>>()
        };
        let mut grants: SmallVec<[&OnNode; 3]> = SmallVec::new();
        for one in &self.on {
            let is_known = grants.iter().any(|on| on.token == one.token && on.claim == one.claim);
            if !is_known && of(one).len() + unread >= quorum(nodes) {
                grants.push(one);
            }
        }
        // The key keeps others out, whatever claim stands beside it: a connection that takes a lock over may have
        // written its own claim on some nodes, and be refused.
        let has_token = |token: &[u8]| self.on.iter().filter(|on| on.token == token).count();
        #[cfg_attr(not(feature = "planted"), expect(unused_mut, reason = "a fault changes it"))]
        let mut may_be_held =
            self.on.iter().any(|on| has_token(&on.token) + unread >= quorum(nodes));
        #[cfg_attr(not(feature = "planted"), expect(unused_mut, reason = "a fault changes it"))]
        let mut readers = self.readers(unread, nodes);
        #[cfg(feature = "planted")]
        if std::env::var("LOCKGATE_PLANT").is_ok_and(|fault| fault == "no copy") {
            grants.clear();
            may_be_held = false;
            readers.clear();
        }
        let longest = |on: &[&OnNode]| match on.iter().any(|on| on.left < 0) {
            true => -1,
            // Zero would take the lock back.
            false => on.iter().map(|on| on.left).max().unwrap_or_default().max(1),
        };
        match grants[..] {
            [] if !may_be_held => {
                let (token, claim) = (Vec::new(), self.claim.clone());
                LockCopy { key, token, left: -1, fence: largest, largest, claim, readers }
            }
            [one]
                if readers.is_empty()
                    && !one.token.is_empty()
                    && !self.ended.contains(&one.claim) =>
            {
                let mut fences: SmallVec<[u64; 3]> = of(one).iter().map(|on| on.fence).collect();
                let least = fences.iter().copied().min().unwrap_or(largest);
                let fence = fence_bounds(&mut fences, nodes).map_or(least, |(fence, _)| fence);
                let (token, claim, left) =
                    (one.token.clone(), one.claim.clone(), longest(&of(one)));
                LockCopy { key, token, left, fence, largest, claim, readers }
            }
            // It is unknown which grant stands, or whether it was released: no client gets the lock before its time.
            _ => {
                let token = format!("lockgate:unknown:{:016x}", jitter::number()).into_bytes();
                let left = match longest(&self.on.iter().collect::<SmallVec<[&OnNode; 3]>>()) {
                    -1 => -1,
                    left => readers.into_values().fold(left, i64::max),
                };
                let (claim, readers) = (b"0".to_vec(), BTreeMap::new());
                LockCopy { key, token, left, fence: largest, largest, claim, readers }
            }
        }
    }

    /// Returns the readers that may be on a quorum, with the longest time that is left to each.
    fn readers(&self, unread: usize, nodes: usize) -> BTreeMap<Vec<u8>, i64> {
        let mut all: BTreeMap<&[u8], (usize, i64)> = BTreeMap::new();
        for ReaderOnNode { reader, left, .. } in &self.readers {
            let (on, longest) = all.entry(reader).or_default();
            (*on, *longest) = (*on + 1, (*longest).max(*left));
        }
        let may_read = |(reader, (on, _)): &(&[u8], (usize, i64))| {
            let claim = reader.split(|byte| *byte == b' ').next().unwrap_or_default();
            on + unread >= quorum(nodes) && !self.ended.iter().any(|ended| ended == claim)
        };
        let readers = all.into_iter().filter(may_read);
        readers.map(|(reader, (_, left))| (reader.to_vec(), left)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Copies one lock by what nodes report: seat, token, remaining TTL, fence and claim, and the claim that has
    /// ended.
    fn copied(told: &[(usize, &str, i64, &str, &str)], read: usize, nodes: usize) -> LockCopy {
        let mut found = FoundLocks::default();
        for (seat, token, left, fence, ended) in told {
            let [token, fence, ended] = [token, fence, ended].map(|text| text.as_bytes().to_vec());
            let told = ToldLock { token, left: left.to_string().into_bytes(), fence, ended };
            found.add(*seat, b"lock:a".to_vec(), told).unwrap();
        }
        let mut all = found.copies(read, nodes);
        assert_eq!(all.len(), 1);
        all.remove(0)
    }

    fn is_placeholder(copy: &LockCopy) -> bool {
        copy.token.starts_with(b"lockgate:unknown:") && copy.claim == b"0"
    }

    #[test]
    fn what_a_quorum_may_have_is_copied_for_as_long_as_any_node_has_it() {
        let copy = copied(
            &[(0, "t", 700, "5 c", ""), (1, "t", 900, "9/5 c", ""), (2, "", -2, "7 x", "")],
            3,
            3,
        );
        let LockCopy { token, left, fence, largest, claim, .. } = copy;
        assert_eq!(
            (&token[..], left, fence, largest, &claim[..]),
            (&b"t"[..], 900, 5, 9, &b"c"[..])
        );
        // One of three nodes has it, and all were read.
        let free =
            copied(&[(0, "t", 700, "5 c", ""), (1, "", -2, "", ""), (2, "", -2, "6 x", "")], 3, 3);
        assert_eq!((&free.token[..], free.largest, &free.claim[..]), (&b""[..], 6, &b"x"[..]));
        // The third node was not read, and may have it too.
        let may = copied(&[(0, "t", 700, "5 c", ""), (1, "", -2, "", "")], 2, 3);
        assert_eq!((&may.token[..], may.left), (&b"t"[..], 700));
        // A lock without a TTL is copied without one; a lock that ends just now is not taken back.
        assert_eq!(copied(&[(0, "t", -1, "5 c", ""), (1, "t", 9, "5 c", "")], 2, 3).left, -1);
        assert_eq!(copied(&[(0, "t", 0, "5 c", ""), (1, "t", 0, "5 c", "")], 2, 3).left, 1);
    }

    #[test]
    fn where_nobody_can_tell_who_has_it_nobody_gets_it_before_its_time() {
        let two = copied(&[(0, "t", 700, "5 c", ""), (1, "u", 900, "6 d", "")], 2, 3);
        assert!(is_placeholder(&two), "{two:?}");
        assert_eq!((two.left, two.largest), (900, 6));
        // One token, two grants: it is unknown which of them stands.
        assert!(is_placeholder(&copied(&[(0, "t", 7, "5 c", ""), (1, "t", 9, "6 d", "")], 2, 3)));
        // One token with another claim on each node: its holder was told of one of them.
        let taking_over =
            [(0, "t", 700, "6 d", ""), (1, "t", 900, "5 c", ""), (2, "", -2, "5 c", "")];
        assert!(is_placeholder(&copied(&taking_over, 3, 3)));
        let three = [(0, "t", 7, "6 d", ""), (1, "t", 9, "5 c", ""), (2, "t", 8, "4 b", "")];
        assert!(is_placeholder(&copied(&three, 3, 3)));
        // One node carried out its release, which may have failed elsewhere.
        let ended = [(0, "t", 700, "5 c", ""), (1, "t", 700, "5 c", ""), (2, "", -2, "5 c", " c")];
        assert!(is_placeholder(&copied(&ended, 3, 3)));
        let over = [(0, "t", 700, "5 c", ""), (1, "", -2, "5 c", " c"), (2, "", -2, "5 c", " c")];
        assert_eq!(copied(&over, 3, 3).token, b"");
        // A key without a readable token.
        assert!(is_placeholder(&copied(&[(0, "", 700, "", ""), (1, "", 700, "", "")], 3, 3)));
    }

    /// Reads what nodes report of one lock again: seat, token, remaining TTL, fence and claim.
    fn told(all: &[(usize, &str, &str, &str, &str)]) -> FoundLocks {
        let mut found = FoundLocks::default();
        for (seat, token, left, fence, ended) in all {
            let [token, left, fence, ended] =
                [token, left, fence, ended].map(|text| text.as_bytes().to_vec());
            found.add(*seat, b"lock:a".to_vec(), ToldLock { token, left, fence, ended }).unwrap();
        }
        found
    }

    #[test]
    fn what_too_few_nodes_do_not_have_may_be_held() {
        let held = (0..3).map(|seat| (seat, "t", "900", "5 c", "")).collect::<Vec<_>>();
        let copies = told(&held).copies(3, 3);
        let free = told(&[(0, "", "-2", "5 c", "")]);
        assert_eq!(free.over(&copies, 1, 3), [], "the other two may have it");
        let over = free.over(&copies, 2, 3);
        assert_eq!((over[0].left, &over[0].token[..], over.len()), (0, &b"t"[..], 1));
        // Nor is a lock free that one token has by several claims.
        let two = told(&[(0, "t", "900", "5 c", ""), (1, "t", "900", "6 d", "")]);
        assert_eq!(two.over(&copies, 3, 3), []);
    }

    const READERS: [&str; 2] = ["1111111111111111 a", "2222222222222222 b"];

    /// Returns what a node reports of a lock that these share.
    fn shared(seat: usize, readers: &[(&'static str, &'static str)]) -> Vec<RowTold> {
        let lock = (seat, "", "-2", "5 c", "");
        let reader =
            |(reader, left): &(&'static str, &'static str)| (seat, *reader, *left, "", "reader");
        [lock].into_iter().chain(readers.iter().map(reader)).collect()
    }

    type RowTold = (usize, &'static str, &'static str, &'static str, &'static str);

    fn readers(copy: &LockCopy) -> Vec<(&str, i64)> {
        copy.readers
            .iter()
            .map(|(reader, left)| (std::str::from_utf8(reader).unwrap(), *left))
            .collect()
    }

    #[test]
    fn readers_are_copied_that_a_quorum_may_have() {
        let [a, b] = READERS;
        let nodes = [shared(0, &[(a, "700")]), shared(1, &[(a, "900"), (b, "50")]), shared(2, &[])];
        let all = told(&nodes.concat()).copies(3, 3).remove(0);
        assert_eq!((&all.token[..], all.fence, &all.claim[..]), (&b""[..], 5, &b"c"[..]));
        assert_eq!(readers(&all), [(a, 900)]);
        let two = told(&nodes[..2].concat()).copies(2, 3).remove(0);
        assert_eq!(readers(&two), [(a, 900), (b, 50)], "the third node may have them too");
        // A SCAN may return a key twice.
        let twice = told(&[&nodes[0][..], &nodes[0], &nodes[2]].concat()).copies(3, 3).remove(0);
        assert_eq!((readers(&twice), twice.may_be_held()), (vec![], false));
    }

    #[test]
    fn readers_that_were_given_back_are_not_copied() {
        let [a, b] = READERS;
        let nodes = [shared(0, &[(a, "700"), (b, "50")]), shared(1, &[(a, "900"), (b, "50")])];
        let copies = told(&nodes.concat()).copies(2, 3);
        assert_eq!(readers(&copies[0]), [(a, 900), (b, 50)]);
        // Through another proxy, on one node, before they were read.
        let ended: RowTold = (2, "1111111111111111", "0", "", "ended");
        let noted = told(&[&nodes.concat()[..], &[ended]].concat()).copies(2, 3);
        assert_eq!(readers(&noted[0]), [(b, 50)]);
        // Behind the reading.
        let again = told(&[shared(0, &[(b, "40")]), shared(1, &[(b, "40")])].concat());
        let over = again.over(&copies, 2, 3);
        assert_eq!((over.len(), over[0].left, readers(&over[0])), (1, 0, vec![(a, 900)]));
        assert_eq!(told(&nodes.concat()).over(&copies, 2, 3), []);
    }

    #[test]
    fn nobody_gets_what_a_writer_or_readers_may_have() {
        let [a, _] = READERS;
        let either = [&[(0, "t", "700", "5 c", "")][..], &shared(1, &[(a, "900")])].concat();
        let copy = told(&either).copies(2, 3).remove(0);
        assert!(is_placeholder(&copy) && readers(&copy).is_empty(), "{copy:?}");
        assert_eq!(copy.left, 900);
    }

    #[test]
    fn what_a_node_had_besides_is_taken_away() {
        let mut found = FoundLocks::default();
        let all =
            [("kept", "9", "5 c"), ("old", "9", "5 c"), ("gone", "-2", "5 c"), ("x", "9", "")];
        for (key, left, fence) in all {
            let told = ToldLock {
                token: b"t".to_vec(),
                left: left.into(),
                fence: fence.into(),
                ended: Vec::new(),
            };
            found.add(0, key.into(), told).unwrap();
        }
        let others = found.others(&BTreeSet::from([b"kept".to_vec()]));
        let keys: Vec<&[u8]> = others.iter().map(|lock| &lock.key[..]).collect();
        assert_eq!((keys, others[0].left), (vec![&b"old"[..]], 0));
    }
}
