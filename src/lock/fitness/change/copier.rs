//! Copies of locks from one set of lock nodes to another, while no node of the first one votes
//! ([`super::change`]).

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use bb8_redis::redis::{self, ErrorKind, RedisError};
use sha1_smol::Sha1;
use smallvec::SmallVec;
use tokio::time::{Instant, timeout};

use super::{inspect::PROBE, marker::MARKER, round::Way};
use crate::{
    lock::{
        jitter,
        quorum::{fence_bounds, quorum},
        scripts::fence_key,
    },
    net::redis_client::{self, Connection},
};

/// The key of the note on a node about the copy that it has: [`CopyNote`].
pub(super) const COPIED: &[u8] = b"lockgate:copied";
/// The longest time of one exchange.
const LIMIT: Duration = Duration::from_secs(2);
/// Locks in one exchange.
const AT_ONCE: usize = 250;

const TELL: &str = include_str!("../scripts/tell.lua");
const COPY: &str = include_str!("../scripts/copy.lua");

/// What stands on a node about the copy that it has. It is gone with the node's memory.
pub(super) struct CopyNote {
    /// While locks are being written.
    begun: String,
    /// Once all are there.
    pub(super) whole: String,
}

impl CopyNote {
    /// The note about a copy of what the nodes of this deployment have under this seal.
    pub(super) fn new(id: &str, seal: u64) -> CopyNote {
        let begun = format!("begun {id} {seal} {:016x}", jitter::number());
        CopyNote { begun, whole: CopyNote::whole(id, seal) }
    }

    /// What stands on a node whose copy is whole.
    pub(super) fn whole(id: &str, seal: u64) -> String {
        format!("whole {id} {seal}")
    }
}

/// A connection by which locks are read or written.
pub(super) struct Copier {
    pub(super) seat: usize,
    /// The number of the node's database.
    db: u32,
    /// How long the node took to answer when it was tried.
    pub(super) took: Duration,
    /// What the node noted about a copy before locks were read for another one; empty: nothing.
    noted: String,
    connection: Connection,
}

impl Copier {
    /// Connects to the node on a seat.
    pub(super) async fn connect(way: &Way) -> Result<Copier, RedisError> {
        let there = way.address.now()?;
        let connection = within(redis_client::connect(&there.url, &way.connector)).await?;
        let (seat, db, took, noted) = (way.seat.seat, there.url.db, Duration::ZERO, String::new());
        let mut copier = Copier { seat, db, took, noted, connection };
        let mut load = redis::pipe();
        load.cmd("SCRIPT").arg("LOAD").arg(TELL).ignore();
        load.cmd("SCRIPT").arg("LOAD").arg(COPY).ignore();
        within(load.query_async::<()>(&mut copier.connection.redis)).await?;
        Ok(copier)
    }

    /// Tries whether the node lets its keys be listed.
    pub(super) async fn try_to_read(&mut self) -> Result<(), RedisError> {
        let (mut scan, begun) = (redis::cmd("SCAN"), Instant::now());
        let scanned = scan.arg(0).arg("COUNT").arg(1).query_async(&mut self.connection.redis);
        within::<redis::Value>(scanned).await?;
        self.took = begun.elapsed();
        Ok(())
    }

    /// How many keys the node has in its database, as far as it tells.
    pub(super) async fn keys(&mut self) -> u64 {
        let (mut info, db) = (redis::cmd("INFO"), format!("db{}:keys=", self.db));
        let asked = info.arg("keyspace").query_async(&mut self.connection.redis);
        let told: String = within(asked).await.unwrap_or_default();
        let keys = told.lines().find_map(|line| line.strip_prefix(&db)?.split(',').next());
        keys.and_then(|keys| keys.parse().ok()).unwrap_or_default()
    }

    /// Tries whether the node takes writes.
    pub(super) async fn try_to_write(&mut self) -> Result<(), RedisError> {
        // There is no such key, so this writes nothing: another coordinator's copy may be there by now.
        let (mut probe, begun) = (redis::cmd("SET"), Instant::now());
        probe.arg(PROBE).arg("").arg("XX").arg("PX").arg(1);
        within::<redis::Value>(probe.query_async(&mut self.connection.redis)).await?;
        self.took = begun.elapsed();
        Ok(())
    }

    /// Reads all locks of the node, as long as its marker is `told`.
    pub(super) async fn read_all(
        &mut self,
        told: &str,
        prefix: &str,
        found: &mut FoundLocks,
    ) -> Result<(), RedisError> {
        let mut cursor = b"0".to_vec();
        loop {
            cursor = self.read(told, prefix, &cursor, &[], found).await?;
            if cursor == b"0" {
                return Ok(());
            }
        }
    }

    /// Reads these locks again, as long as the node's marker is `told`.
    pub(super) async fn read_these(
        &mut self,
        told: &str,
        prefix: &str,
        keys: &[Vec<u8>],
        found: &mut FoundLocks,
    ) -> Result<(), RedisError> {
        for keys in keys.chunks(AT_ONCE) {
            self.read(told, prefix, b"", keys, found).await?;
        }
        Ok(())
    }

    async fn read(
        &mut self,
        told: &str,
        prefix: &str,
        cursor: &[u8],
        keys: &[Vec<u8>],
        found: &mut FoundLocks,
    ) -> Result<Vec<u8>, RedisError> {
        let mut call = redis::cmd("EVALSHA");
        call.arg(Sha1::from(TELL).digest().to_string()).arg(1).arg(MARKER);
        call.arg(told).arg(prefix).arg(cursor).arg(keys);
        let redis = &mut self.connection.redis;
        let answer: Vec<Vec<u8>> = within(call.query_async(redis)).await?;
        let mut words = answer.into_iter();
        let next = words.next().ok_or_else(|| failed("its marker is another meanwhile"))?;
        while let (Some(key), Some(token), Some(left), Some(fence), Some(ended)) =
            (words.next(), words.next(), words.next(), words.next(), words.next())
        {
            found.add(self.seat, key, ToldLock { token, left, fence, ended })?;
        }
        Ok(next)
    }

    /// Remembers what the node notes about a copy.
    pub(super) async fn remember_note(&mut self) -> Result<(), RedisError> {
        self.noted = self.note().await?.unwrap_or_default();
        Ok(())
    }

    /// Notes that a copy is begun, if the node's marker still is `told` (empty: none), and its note the one
    /// that is remembered. From then on nobody else's writes of a copy are carried out.
    pub(super) async fn begin(&mut self, note: &CopyNote, told: &str) -> Result<(), RedisError> {
        let compare = "if (redis.call('GET', KEYS[2]) or '') ~= ARGV[1] \
                       or (redis.call('GET', KEYS[1]) or '') ~= ARGV[3] then return 0 end \
                       redis.call('SET', KEYS[1], ARGV[2]) return 1";
        let noted = std::mem::take(&mut self.noted);
        self.note_if(compare, &[told, &note.begun, &noted]).await
    }

    /// Writes locks, as long as the node's marker is `told` (empty: none) and nobody else has begun a copy.
    pub(super) async fn write(
        &mut self,
        (note, told): (&CopyNote, &str),
        locks: &[LockCopy],
        fence_ttl: Duration,
    ) -> Result<(), RedisError> {
        let digest = Sha1::from(COPY).digest().to_string();
        for locks in locks.chunks(AT_ONCE) {
            let mut calls = redis::pipe();
            for lock in locks {
                let call = calls.cmd("EVALSHA").arg(&digest).arg(4);
                call.arg(&lock.key).arg(fence_key(&lock.key)).arg(COPIED).arg(MARKER);
                call.arg(&note.begun).arg(told);
                call.arg(&lock.token).arg(lock.left).arg(lock.fence).arg(lock.largest);
                call.arg(fence_ttl.as_millis().to_string()).arg(&lock.claim);
            }
            let redis = &mut self.connection.redis;
            let answers: Vec<(i64,)> = within(calls.query_async(redis)).await?;
            if answers.contains(&(0,)) {
                return Err(failed("it has forgotten what was copied"));
            }
        }
        Ok(())
    }

    /// Notes that all is there.
    pub(super) async fn end(&mut self, note: &CopyNote) -> Result<(), RedisError> {
        // What has forgotten the copy has forgotten the note.
        let compare = "if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end \
                       redis.call('SET', KEYS[1], ARGV[2]) return 1";
        self.note_if(compare, &[&note.begun, &note.whole]).await
    }

    async fn note_if(&mut self, script: &str, words: &[&str]) -> Result<(), RedisError> {
        let mut load = redis::pipe();
        load.cmd("SCRIPT").arg("LOAD").arg(script).ignore();
        let call = load.cmd("EVALSHA").arg(Sha1::from(script).digest().to_string());
        call.arg(2).arg(COPIED).arg(MARKER).arg(words);
        match within(load.query_async::<(i64,)>(&mut self.connection.redis)).await? {
            (1,) => Ok(()),
            _ => Err(failed("it has forgotten what was copied, or was changed meanwhile")),
        }
    }

    /// What the node notes about a copy.
    pub(super) async fn note(&mut self) -> Result<Option<String>, RedisError> {
        within(redis::cmd("GET").arg(COPIED).query_async(&mut self.connection.redis)).await
    }
}

async fn within<T>(asking: impl Future<Output = Result<T, RedisError>>) -> Result<T, RedisError> {
    timeout(LIMIT, asking).await.unwrap_or_else(|_| Err(failed("no answer in time")))
}

fn failed(why: &'static str) -> RedisError {
    (ErrorKind::Client, why).into()
}

/// What one node tells of a lock, as it stands there.
struct ToldLock {
    token: Vec<u8>,
    left: Vec<u8>,
    fence: Vec<u8>,
    ended: Vec<u8>,
}

/// A lock on one node.
#[derive(Debug, Clone, PartialEq, Eq)]
struct OnNode {
    seat: usize,
    /// Empty: held by nobody that can be told.
    token: Vec<u8>,
    /// In ms; -1: it does not end by itself.
    left: i64,
    fence: u64,
    claim: Vec<u8>,
}

/// A lock as those nodes have it that were read.
#[derive(Debug, Default)]
struct FoundLock {
    on: SmallVec<[OnNode; 3]>,
    /// Claims of grants that were released through another proxy than their own.
    ended: SmallVec<[Vec<u8>; 1]>,
    /// The largest fence, of failed attempts too, and the claim beside it.
    largest: u64,
    claim: Vec<u8>,
}

/// All locks on the nodes that were read.
#[derive(Debug, Default)]
pub(super) struct FoundLocks(BTreeMap<Vec<u8>, FoundLock>);

/// A lock to be written. Without a token only its fence is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LockCopy {
    pub(super) key: Vec<u8>,
    pub(super) token: Vec<u8>,
    /// In ms; -1: without a TTL; 0: to be taken back.
    pub(super) left: i64,
    pub(super) fence: u64,
    pub(super) largest: u64,
    pub(super) claim: Vec<u8>,
}

impl FoundLocks {
    fn add(&mut self, seat: usize, key: Vec<u8>, told: ToldLock) -> Result<(), RedisError> {
        let ToldLock { token, left, fence, ended } = told;
        let number = |text: &[u8]| std::str::from_utf8(text).ok()?.parse::<i64>().ok();
        let left = number(&left).ok_or_else(|| failed("it answers what Redis does not answer"))?;
        // "fence claim" or "largest/fence claim".
        let (numbers, claim) = match fence.iter().position(|byte| *byte == b' ') {
            Some(at) => (&fence[..at], fence[at + 1..].to_vec()),
            None => (&fence[..], b"-".to_vec()),
        };
        let mut numbers = numbers.split(|byte| *byte == b'/');
        let of = |text: Option<&[u8]>| Some(number(text?).unwrap_or_default().unsigned_abs());
        let largest = of(numbers.next()).unwrap_or_default();
        let fence = of(numbers.next()).unwrap_or(largest);
        let lock = self.0.entry(key).or_default();
        if largest >= lock.largest {
            lock.largest = largest;
            lock.claim.clone_from(&claim);
        }
        if let Some((b' ', ended)) = ended.split_first() {
            lock.ended.push(ended.to_vec());
        }
        // A part of the node may be told twice.
        lock.on.retain(|on| on.seat != seat);
        if left != -2 {
            lock.on.push(OnNode { seat, token, left, fence, claim });
        }
        Ok(())
    }

    /// The locks that a node has, to be taken away from it unless they are among `held`. What has no fence
    /// beside it was never a lock of ours, and stays.
    pub(super) fn others(self, held: &BTreeSet<Vec<u8>>) -> Vec<LockCopy> {
        let is_other = |(key, lock): &(Vec<u8>, FoundLock)| {
            !lock.on.is_empty() && lock.largest > 0 && !held.contains(key)
        };
        let others = self.0.into_iter().filter(is_other);
        let away = |(key, lock): (Vec<u8>, FoundLock)| {
            let token = lock.on.into_iter().next().map(|on| on.token).unwrap_or_default();
            LockCopy { key, token, left: 0, fence: 0, largest: 0, claim: Vec::new() }
        };
        others.map(away).collect()
    }

    /// The locks of which no grant can be on a quorum, if `read` of `nodes` nodes were read.
    pub(super) fn free(&self, read: usize, nodes: usize) -> BTreeSet<Vec<u8>> {
        // The others may be a quorum by themselves.
        if nodes.saturating_sub(read) >= quorum(nodes) {
            return BTreeSet::new();
        }
        let all = self.copies(read, nodes).into_iter();
        all.filter(|lock| lock.token.is_empty()).map(|lock| lock.key).collect()
    }

    /// What is to be written, if `read` of `nodes` nodes were read.
    pub(super) fn copies(&self, read: usize, nodes: usize) -> Vec<LockCopy> {
        self.0.iter().map(|(key, lock)| lock.copy(key, read, nodes)).collect()
    }
}

impl FoundLock {
    /// The lock as it is to be written: held, if any grant may be on a quorum.
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
        #[cfg(feature = "planted")]
        if std::env::var("LOCKGATE_PLANT").is_ok_and(|fault| fault == "no copy") {
            grants.clear();
        }
        let longest = |on: &[&OnNode]| match on.iter().any(|on| on.left < 0) {
            true => -1,
            // Zero would take it back.
            false => on.iter().map(|on| on.left).max().unwrap_or_default().max(1),
        };
        match grants[..] {
            [] => {
                let (token, claim) = (Vec::new(), self.claim.clone());
                LockCopy { key, token, left: -1, fence: largest, largest, claim }
            }
            [one] if !one.token.is_empty() && !self.ended.contains(&one.claim) => {
                let mut fences: SmallVec<[u64; 3]> = of(one).iter().map(|on| on.fence).collect();
                let least = fences.iter().copied().min().unwrap_or(largest);
                let fence = fence_bounds(&mut fences, nodes).map_or(least, |(fence, _)| fence);
                let (token, claim, left) =
                    (one.token.clone(), one.claim.clone(), longest(&of(one)));
                LockCopy { key, token, left, fence, largest, claim }
            }
            // Nobody can tell who has it, or whether it was released: nobody gets it before its time.
            _ => {
                let token = format!("lockgate:unknown:{:016x}", jitter::number()).into_bytes();
                let left = longest(&self.on.iter().collect::<SmallVec<[&OnNode; 3]>>());
                LockCopy { key, token, left, fence: largest, largest, claim: b"0".to_vec() }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What nodes tell of one lock: seat, token, remaining TTL, fence and claim, which claim has ended.
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
        // One node of three has it, and all were read.
        let free =
            copied(&[(0, "t", 700, "5 c", ""), (1, "", -2, "", ""), (2, "", -2, "6 x", "")], 3, 3);
        assert_eq!((&free.token[..], free.largest, &free.claim[..]), (&b""[..], 6, &b"x"[..]));
        // The third one was not read, and may have it too.
        let may = copied(&[(0, "t", 700, "5 c", ""), (1, "", -2, "", "")], 2, 3);
        assert_eq!((&may.token[..], may.left), (&b"t"[..], 700));
        // A lock without a TTL has none there either; one that ends just now is not taken back.
        assert_eq!(copied(&[(0, "t", -1, "5 c", ""), (1, "t", 9, "5 c", "")], 2, 3).left, -1);
        assert_eq!(copied(&[(0, "t", 0, "5 c", ""), (1, "t", 0, "5 c", "")], 2, 3).left, 1);
    }

    #[test]
    fn where_nobody_can_tell_who_has_it_nobody_gets_it_before_its_time() {
        let two = copied(&[(0, "t", 700, "5 c", ""), (1, "u", 900, "6 d", "")], 2, 3);
        assert!(is_placeholder(&two), "{two:?}");
        assert_eq!((two.left, two.largest), (900, 6));
        // One token, two grants: which of them stands is not known.
        assert!(is_placeholder(&copied(&[(0, "t", 7, "5 c", ""), (1, "t", 9, "6 d", "")], 2, 3)));
        // Its release was answered by a node, and may have come to nothing elsewhere.
        let ended = [(0, "t", 700, "5 c", ""), (1, "t", 700, "5 c", ""), (2, "", -2, "5 c", " c")];
        assert!(is_placeholder(&copied(&ended, 3, 3)));
        let over = [(0, "t", 700, "5 c", ""), (1, "", -2, "5 c", " c"), (2, "", -2, "5 c", " c")];
        assert_eq!(copied(&over, 3, 3).token, b"");
        // A key that is no token's.
        assert!(is_placeholder(&copied(&[(0, "", 700, "", ""), (1, "", 700, "", "")], 3, 3)));
    }

    #[test]
    fn what_too_few_nodes_do_not_have_may_be_held() {
        let mut found = FoundLocks::default();
        let (token, left, ended) = (Vec::new(), b"-2".to_vec(), Vec::new());
        let told = ToldLock { token, left, fence: b"5 c".to_vec(), ended };
        found.add(0, b"lock:a".to_vec(), told).unwrap();
        assert_eq!(found.free(1, 3), BTreeSet::new(), "the other two may have it");
        assert_eq!(found.free(2, 3), BTreeSet::from([b"lock:a".to_vec()]));
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
