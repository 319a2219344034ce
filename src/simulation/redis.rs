//! A simulated lock node: keys that expire by a clock of their own, the few commands that Lockgate
//! sends, transactions, and its own Lua scripts ([`lua`]).

use std::{
    borrow::Cow,
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use redis_protocol::resp2::types::OwnedFrame;
use tokio::time::Instant;

use super::{
    memory::{Memory, OLD, RedisReply, StoredKeys},
    real_lua,
    set_watch::SetWatch,
};
use crate::{
    guard::FENCE_PREFIX,
    lock::MARKER,
    resp::{encode, inline},
};

/// The state of a lock on a node from `at` on.
#[derive(Debug)]
pub(super) struct Had {
    pub(super) at: Instant,
    pub(super) key: Vec<u8>,
    /// The claim of the grant that held the lock, and until when if nothing changes. `None`: the
    /// lock was free.
    pub(super) by: Option<(String, Instant)>,
    /// Whether the grant before had not yet run out.
    pub(super) was_ended: bool,
    /// The cause of the change.
    pub(super) cause: Cause,
}

/// Why the state of a lock on a node has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cause {
    Command,
    /// The node was restarted without its memory.
    Memory,
    /// The node's clock was set.
    Clock,
}

/// A node counts whole milliseconds.
const ROUNDING: Duration = Duration::from_millis(2);

/// A simulated node.
#[derive(Debug)]
pub(super) struct Redis {
    memory: Memory,
    scripts: HashMap<String, String>,
    run_id: String,
    /// New when the run id is, or when the node was promoted.
    replication_id: String,
    /// The time of its start.
    born: Instant,
    /// The rate of its clock, compared with the true one.
    pub(super) rate: f64,
    begun: Instant,
    /// The ms by which its clock was set; they begin far from 0, so that it can be set back.
    set: i64,
    /// The latest time from which its clock was set back, in ms.
    set_back_from: u64,
    /// A planted fault: releases do not check whose the lock is, and writes no fences.
    pub(super) careless: bool,
    /// A planted fault: WATCH does nothing.
    pub(super) blind: bool,
    /// Planted faults: edits of scripts.
    pub(super) edits: &'static [Edit],
    /// The number of locks put back.
    pub(super) heals: usize,
    /// What scripts did wrong about readers.
    pub(super) wrong: Vec<String>,
    /// The kind of error that it answers with.
    pub(super) illness: Option<Illness>,
    /// Transactions by connection.
    transactions: BTreeMap<u64, Transaction>,
    /// The database that each connection has selected; all of them have one memory.
    selected: BTreeMap<u64, String>,
    /// The changes of all locks, in order.
    pub(super) record: Vec<Had>,
    /// The claim of each lock that is held by the record, and until when.
    held: BTreeMap<Vec<u8>, (String, Instant)>,
}

/// An edit of a script: words of its first comment, the text to replace, and the new text.
pub(super) type Edit = (&'static str, &'static str, &'static str);

/// Why a node answers with errors for a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Illness {
    /// The node is out of memory, and stores nothing.
    Full,
    /// A script does not end: every request is refused.
    Busy,
    /// The node takes no write.
    ReadOnly,
    /// The node takes no write, as it has too few replicas.
    Lonely,
}

impl Illness {
    pub(super) const ALL: [Illness; 4] =
        [Illness::Full, Illness::Busy, Illness::ReadOnly, Illness::Lonely];

    fn error(self) -> &'static str {
        match self {
            Illness::Full => "OOM command not allowed when used memory > 'maxmemory'.",
            Illness::Busy => "BUSY Redis is busy running a script.",
            Illness::ReadOnly => "READONLY You can't write against a read only replica.",
            Illness::Lonely => "NOREPLICAS Not enough good replicas to write.",
        }
    }
}

/// The keys that a connection watches, and the commands that it has queued.
#[derive(Debug, Default)]
struct Transaction {
    watched: Vec<Vec<u8>>,
    /// Whether a watched key was written.
    is_dirty: bool,
    queued: Option<Vec<Vec<Vec<u8>>>>,
    /// Whether a command in it was refused.
    is_aborted: bool,
}

impl Redis {
    pub(super) fn new(name: &str, rate: f64) -> Redis {
        let now = Instant::now();
        Redis {
            memory: Memory::default(),
            scripts: HashMap::new(),
            run_id: format!("{name}x0"),
            replication_id: format!("{name}x0"),
            born: now,
            rate,
            begun: now,
            set: 1_000_000,
            set_back_from: 0,
            careless: false,
            blind: false,
            edits: &[],
            heals: 0,
            wrong: Vec::new(),
            illness: None,
            transactions: BTreeMap::new(),
            selected: BTreeMap::new(),
            record: Vec::new(),
            held: BTreeMap::new(),
        }
    }

    pub(super) fn marker(&self) -> Option<&[u8]> {
        self.get(MARKER)
    }

    /// Returns the value of a key.
    pub(super) fn get(&self, key: &[u8]) -> Option<&[u8]> {
        self.memory.text(key).map(Vec::as_slice)
    }

    /// Notes the locks that the node has now, and until when.
    fn note(&mut self, cause: Cause) {
        self.memory.now = self.clock();
        let now = Instant::now();
        let mut keys = self.memory.locks();
        keys.extend(self.held.keys().cloned());
        keys.sort_unstable();
        keys.dedup();
        for key in keys {
            // Readers have no grant of the whole lock.
            let alone = self.memory.get(&key).filter(|(value, _)| value.text().is_some());
            let by = alone.map(|(_, ends)| {
                let fence = self.memory.text(&[b"lockgate:fence:", key.as_slice()].concat());
                let fence = fence.map(|fence| String::from_utf8_lossy(fence).into_owned());
                let claim = fence.as_deref().and_then(|fence| fence.split(' ').nth(1));
                let left = ends.map_or(u64::MAX >> 30, |ends| ends - self.memory.now);
                let left = Duration::from_millis(left).div_f64(self.rate);
                (claim.unwrap_or_default().to_owned(), now + left)
            });
            let before = self.held.get(&key);
            let is_same = match (before, &by) {
                (Some((before, ended)), Some((claim, ends))) => {
                    before == claim && ended.max(ends).duration_since(*ended.min(ends)) < ROUNDING
                }
                (None, None) => true,
                _ => false,
            };
            if !is_same {
                let other = by.as_ref().map(|(claim, _)| claim);
                let was_ended = before
                    .is_some_and(|(claim, ends)| *ends > now + ROUNDING && Some(claim) != other);
                match &by {
                    Some(by) => self.held.insert(key.clone(), by.clone()),
                    None => self.held.remove(&key),
                };
                self.record.push(Had { at: now, key, by, was_ended, cause });
            }
        }
    }

    pub(super) fn locks(&mut self) -> Vec<Vec<u8>> {
        self.memory.now = self.clock();
        self.memory.locks()
    }

    /// Returns the token that has this lock now.
    pub(super) fn token_of(&mut self, key: &[u8]) -> Option<String> {
        self.memory.now = self.clock();
        self.get(key).map(|token| String::from_utf8_lossy(token).into_owned())
    }

    /// Whether the grant with this claim has had this lock.
    pub(super) fn has_had(&self, key: &[u8], claim: &str) -> bool {
        let is_so = |had: &Had| had.by.as_ref().is_some_and(|(by, _)| by == claim);
        self.record.iter().any(|had| had.key == key && is_so(had))
    }

    /// Whether there is, or was, a key that lock libraries take for a lock.
    pub(super) fn had_adopted(&self) -> bool {
        self.memory.keys.keys().any(|key| key.starts_with(OLD))
    }

    /// Returns the existing keys that lock libraries take for a lock.
    pub(super) fn adopted(&mut self) -> Vec<String> {
        self.memory.now = self.clock();
        let is_there = |key: &&Vec<u8>| key.starts_with(OLD) && self.memory.get(key).is_some();
        let keys = self.memory.keys.keys().filter(is_there);
        keys.map(|key| String::from_utf8_lossy(key).into_owned()).collect()
    }

    /// Returns every SET of a data node, in order.
    pub(super) fn written(&self) -> Vec<(Vec<u8>, Vec<u8>)> {
        self.memory.written.clone()
    }

    /// Leaves the node like a replica that was behind and has taken its place. The record of stored values notes it
    /// by a key that is no lock's name.
    pub(super) fn forget_fences(&mut self) {
        let is_kept = |key: &[u8]| !key.starts_with(FENCE_PREFIX) && !key.starts_with(OLD);
        self.memory.keys.retain(|key, _| is_kept(key));
        self.memory.written.push((FENCE_PREFIX.to_vec(), Vec::new()));
        self.transactions.values_mut().for_each(|one| one.is_dirty |= !one.watched.is_empty());
    }

    fn clock(&self) -> u64 {
        (self.begun.elapsed().as_secs_f64() * self.rate * 1000.0) as u64 + self.set as u64
    }

    /// Moves the node's clock by `by` ms.
    pub(super) fn set_clock(&mut self, by: i64) {
        if by < 0 {
            self.set_back_from = self.set_back_from.max(self.clock());
        }
        self.set += by;
        self.note(Cause::Clock);
    }

    /// Starts the node again, with or without its memory.
    pub(super) fn restart(&mut self, times: usize, keeps_memory: bool) {
        self.run_id = format!("{}x{times}", self.run_id.split('x').next().unwrap());
        self.replication_id.clone_from(&self.run_id);
        self.born = Instant::now();
        self.scripts.clear();
        self.illness = None;
        self.transactions.clear();
        self.selected.clear();
        if !keeps_memory {
            self.memory = Memory::default();
            self.note(Cause::Memory);
        }
    }

    /// Returns all keys, with the times at which they end by the node's clock: what a replica is sent.
    pub(super) fn keys(&self) -> StoredKeys {
        self.memory.keys.clone()
    }

    /// Makes the node, which was a replica, a master with what it was sent. `times`: the number of promotions.
    pub(super) fn promote(&mut self, keys: StoredKeys, times: usize) {
        self.memory.keys = keys;
        self.replication_id = format!("p{times}");
        self.scripts.clear();
        self.transactions.clear();
        self.note(Cause::Memory);
    }

    /// Carries out one command. `client` is the connection's number.
    pub(super) fn execute(&mut self, words: &[Vec<u8>], client: u64) -> Vec<u8> {
        self.memory.now = self.clock();
        let mut out = Vec::new();
        if !self.transact(words, client, &mut out) {
            self.carry_out(words, client, &mut out);
        }
        for key in std::mem::take(&mut self.memory.touched) {
            for transaction in self.transactions.values_mut() {
                transaction.is_dirty |= transaction.watched.contains(&key);
            }
        }
        self.note(Cause::Command);
        out
    }

    /// Whether the command is about a transaction, or queued in one.
    fn transact(&mut self, words: &[Vec<u8>], client: u64, out: &mut Vec<u8>) -> bool {
        let (name, blind) = (words[0].as_slice(), self.blind);
        if name == b"WATCH" {
            let transaction = self.transactions.entry(client).or_default();
            if !blind {
                transaction.watched.extend_from_slice(&words[1..]);
            }
            encode::simple(out, "OK");
            return true;
        }
        match name {
            b"MULTI" => {
                self.transactions.entry(client).or_default().queued = Some(Vec::new());
                encode::simple(out, "OK");
            }
            b"UNWATCH" | b"DISCARD" => {
                self.transactions.remove(&client);
                encode::simple(out, "OK");
            }
            b"EXEC" => {
                let transaction = self.transactions.remove(&client).unwrap_or_default();
                if transaction.is_aborted {
                    encode::error(out, "EXECABORT Transaction discarded");
                    return true;
                }
                if transaction.is_dirty {
                    out.extend_from_slice(b"*-1\r\n");
                    return true;
                }
                let queued = transaction.queued.unwrap();
                encode::array(out, queued.len());
                queued.iter().for_each(|words| self.carry_out(words, client, out));
            }
            _ => {
                let transaction = self.transactions.get_mut(&client);
                let Some(queued) = transaction.and_then(|one| one.queued.as_mut()) else {
                    return false;
                };
                if name == b"LOCK" {
                    self.transactions.entry(client).or_default().is_aborted = true;
                    return false;
                }
                queued.push(words.to_vec());
                encode::simple(out, "QUEUED");
            }
        }
        true
    }

    /// Carries out SCRIPT FLUSH.
    pub(super) fn forget_scripts(&mut self) {
        self.scripts.clear();
    }

    /// Returns the script that EVALSHA calls; of other commands, and where the node does not know it, an empty one.
    pub(super) fn script(&self, words: &[Vec<u8>]) -> &str {
        let digest = words.get(1).filter(|_| words[0] == b"EVALSHA");
        let digest = digest.and_then(|digest| std::str::from_utf8(digest).ok());
        digest.and_then(|digest| self.scripts.get(digest)).map_or("", String::as_str)
    }

    /// Returns the error that an ill node answers instead.
    fn refusal(&self, words: &[Vec<u8>]) -> Option<&'static str> {
        let illness = self.illness?;
        let body = match words[0].as_slice() {
            b"EVALSHA" => self.scripts.get(std::str::from_utf8(&words[1]).unwrap())?.as_str(),
            b"EVAL" => std::str::from_utf8(&words[1]).unwrap(),
            b"SET" => "'SET'",
            _ => "",
        };
        let calls = |names: &[&str]| names.iter().any(|name| body.contains(name));
        let refuses = match illness {
            Illness::Busy => true,
            Illness::Full => calls(&["'SET'", "'ZADD'"]),
            Illness::ReadOnly | Illness::Lonely => {
                calls(&["'SET'", "'DEL'", "'PEXPIRE'", "'ZADD'"])
            }
        };
        refuses.then(|| illness.error())
    }

    fn carry_out(&mut self, words: &[Vec<u8>], client: u64, out: &mut Vec<u8>) {
        if let Some(error) = self.refusal(words) {
            return encode::error(out, error);
        }
        match words[0].as_slice() {
            b"SELECT" | b"CLIENT" if words.len() == 2 && words[1] == b"ID" => {
                encode::integer(out, client as i64);
            }
            b"CLIENT" if words[1] == b"INFO" => {
                let selected = self.selected.get(&client).map_or("0", String::as_str);
                encode::bulk(out, format!("id={client} db={selected} sub=0\n").as_bytes());
            }
            b"SELECT" => {
                let selected = String::from_utf8(words[1].clone()).unwrap();
                self.selected.insert(client, selected);
                encode::simple(out, "OK");
            }
            b"CLIENT" => encode::simple(out, "OK"),
            b"HELLO" => {
                encode::map(out, 1, true);
                encode::bulk(out, b"proto");
                encode::integer(out, 3);
            }
            b"ECHO" => encode::bulk(out, &words[1]),
            b"LOCK" => encode::error(out, "ERR unknown command 'LOCK'"),
            b"PING" => encode::simple(out, "PONG"),
            b"SCRIPT" => {
                let body = String::from_utf8(words[2].clone()).unwrap();
                let digest = sha1_smol::Sha1::from(&body).digest().to_string();
                encode::bulk(out, digest.as_bytes());
                self.scripts.insert(digest, body);
            }
            b"INFO" => {
                let uptime = Duration::from_secs_f64(self.born.elapsed().as_secs_f64() * self.rate);
                let info = format!(
                    "role:master\r\nrun_id:{}\r\nmaster_replid:{}\r\nuptime_in_seconds:{}\r\n",
                    self.run_id,
                    self.replication_id,
                    uptime.as_secs()
                );
                encode::bulk(out, info.as_bytes());
            }
            b"EVAL" => {
                let body = String::from_utf8(words[1].clone()).unwrap();
                self.run(&body, &words[2..], out);
            }
            b"EVALSHA" => {
                match self.scripts.get(std::str::from_utf8(&words[1]).unwrap()).cloned() {
                    None => encode::error(out, "NOSCRIPT No matching script."),
                    Some(body) => self.run(&body, &words[2..], out),
                }
            }
            _ => match self.memory.call(words) {
                RedisReply::Nil => out.extend_from_slice(b"$-1\r\n"),
                RedisReply::Bulk(bytes) => encode::bulk(out, &bytes),
                RedisReply::Int(number) => encode::integer(out, number),
                RedisReply::Many(all) => {
                    encode::array(out, all.len());
                    for value in all {
                        match value {
                            Some(bytes) => encode::bulk(out, &bytes),
                            None => out.extend_from_slice(b"$-1\r\n"),
                        }
                    }
                }
                RedisReply::Scanned(next, keys) => {
                    encode::array(out, 2);
                    encode::bulk(out, next.to_string().as_bytes());
                    encode::array(out, keys.len());
                    keys.iter().for_each(|key| encode::bulk(out, key));
                }
                RedisReply::Ok | RedisReply::Listeners => encode::simple(out, "OK"),
                RedisReply::Error(text) => encode::error(out, text),
            },
        }
    }

    /// Runs a script with the keys and arguments that follow their number.
    fn run(&mut self, body: &str, words: &[Vec<u8>], out: &mut Vec<u8>) {
        let count: usize = String::from_utf8_lossy(&words[0]).parse().unwrap();
        let (keys, arguments) = words[1..].split_at(count);
        let mut body = Cow::Borrowed(body);
        if self.careless && body.contains("-- Gives a lock back on this node and") {
            let (from, to) = ("if not string.find", "if false and not string.find");
            assert!(body.contains(from), "{body}");
            body = body.replace("~= ARGV[1]", "== nil").replace(from, to).into();
        }
        if self.careless && body.contains("-- Carries a write out") {
            body = body.replace("~= ARGV[i]", "== nil").into();
        }
        for (script, from, to) in self.edits {
            if body.contains(script) {
                assert!(body.contains(from), "{script}: {from}");
                body = body.replace(from, to).into();
            }
        }
        let before = out.len();
        let watch = SetWatch::before(&self.memory, keys, self.set_back_from);
        real_lua::run(&mut self.memory, &body, keys, arguments, out);
        self.wrong.extend(watch.faults(&self.memory, (&body, arguments), &out[before..]));
        let puts_back = ["-- Puts a lock back", "-- Puts a reader back"];
        let heals = out[before..].starts_with(b"*2\r\n:1")
            && puts_back.iter().any(|words| body.contains(words));
        self.heals += usize::from(heals);
    }
}

/// Takes the first whole command off `received`.
pub(super) fn next_command(received: &mut Vec<u8>) -> Option<Vec<Vec<u8>>> {
    // Empty lines, sent as signs of life.
    while received.starts_with(b"\r\n") {
        received.drain(..2);
    }
    if received.first().is_some_and(|byte| *byte != b'*') {
        let end = memchr::memchr(b'\n', received)?;
        let line: Vec<u8> = received.drain(..=end).collect();
        return inline::split(&line[..end]);
    }
    let (frame, length) = redis_protocol::resp2::decode::decode(received).unwrap()?;
    received.drain(..length);
    let OwnedFrame::Array(words) = frame else { panic!("{frame:?}") };
    Some(
        words
            .into_iter()
            .map(|word| match word {
                OwnedFrame::BulkString(bytes) => bytes,
                other => panic!("{other:?}"),
            })
            .collect(),
    )
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::lock::{
        Claim,
        scripts::{self, Dialect, Ended},
    };

    /// Returns the node's answer to `request`.
    fn answer(redis: &mut Redis, mut request: Vec<u8>) -> String {
        let mut replies = Vec::new();
        while let Some(words) = next_command(&mut request) {
            replies = redis.execute(&words, 1);
        }
        String::from_utf8(replies).unwrap()
    }

    /// Returns the first two numbers of the node's answer to a script.
    fn said(redis: &mut Redis, mut request: Vec<u8>) -> (i64, i64) {
        // The last argument of proven scripts.
        request.extend(scripts::told(Dialect::Plain, b"", b""));
        let answer = answer(redis, request);
        // A yes of acquire.lua is its fence alone.
        if let Some(fence) = answer.strip_prefix(':') {
            return (1, fence.trim().parse().unwrap());
        }
        let mut numbers = answer.split("\r\n:").skip(1).map(|text| text.trim().parse().unwrap());
        (numbers.next().unwrap(), numbers.next().unwrap())
    }

    fn loaded() -> Redis {
        let mut redis = Redis::new("n", 1.0);
        let mut load = Vec::new();
        scripts::load(Dialect::Plain, &mut load);
        answer(&mut redis, load);
        redis
    }

    const TTL: Duration = Duration::from_secs(10);

    fn wanted(token: &'static [u8], fence: u64, claim: Claim) -> scripts::Wanted<'static> {
        scripts::Wanted { key: b"lock:k", token, ttl: TTL, fence, fence_ttl: 10 * TTL, claim }
    }

    fn release(token: &[u8], claim: Claim, barred: Option<Duration>) -> Vec<u8> {
        scripts::release(Dialect::Plain, b"lock:k", token, b"", Ended { claim, barred })
    }

    #[tokio::test(start_paused = true)]
    async fn a_fence_is_raised_only_where_its_grant_has_the_lock() {
        let (mut redis, ours, others) = (loaded(), Claim::new(), Claim::new());
        let taking = scripts::acquire(Dialect::Plain, &wanted(b"a", 9, ours), false);
        assert_eq!(said(&mut redis, taking), (1, 9));
        let raise =
            |claim, fence| scripts::raise(Dialect::Plain, b"lock:k", b"a", fence, 10 * TTL, claim);
        assert_eq!(said(&mut redis, raise(others, 20)), (0, 0));
        assert_eq!(said(&mut redis, raise(ours, 5)), (1, 9), "the other's was not stored");
        assert_eq!(said(&mut redis, raise(ours, 12)), (1, 12));
        tokio::time::advance(TTL).await;
        assert_eq!(said(&mut redis, raise(ours, 30)), (0, 0), "it has run out");
    }

    #[tokio::test(start_paused = true)]
    async fn the_same_token_is_held_but_for_the_grant_that_has_it() {
        let (mut redis, ours, others) = (loaded(), Claim::new(), Claim::new());
        assert_eq!(
            said(&mut redis, scripts::acquire(Dialect::Plain, &wanted(b"a", 9, ours), false)),
            (1, 9)
        );
        for again in [false, true] {
            let taking = scripts::acquire(Dialect::Plain, &wanted(b"a", 10, others), again);
            assert_eq!(said(&mut redis, taking), (0, 10_000), "{again}");
        }
        assert_eq!(
            said(&mut redis, scripts::acquire(Dialect::Plain, &wanted(b"a", 9, ours), true)),
            (1, 10)
        );
        let undo = scripts::undo(Dialect::Plain, b"lock:k", b"a", others, false);
        assert_eq!(answer(&mut redis, undo), "*2\r\n:0\r\n:0\r\n");
        let mut release = |claim| answer(&mut redis, release(b"a", claim, None));
        assert_eq!(release(others), "*3\r\n:0\r\n:0\r\n:0\r\n");
        assert_eq!(release(ours), ":0\r\n");
        let again = scripts::acquire(Dialect::Plain, &wanted(b"a", 12, ours), true);
        assert_eq!(said(&mut redis, again), (0, -2), "it is not taken anew by that claim");
        assert_eq!(
            said(&mut redis, scripts::acquire(Dialect::Plain, &wanted(b"a", 12, others), false)),
            (1, 12)
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_lock_is_put_back_where_nobody_has_it_and_fences_never_fall() {
        let (mut redis, ours, others) = (loaded(), Claim::new(), Claim::new());
        assert_eq!(said(&mut redis, scripts::heal(Dialect::Plain, &wanted(b"a", 5, ours))), (1, 5));
        assert_eq!(
            said(&mut redis, scripts::heal(Dialect::Plain, &wanted(b"b", 6, others))),
            (0, 0)
        );
        let renew =
            |token, claim| scripts::renew(Dialect::Plain, b"lock:k", token, TTL, Some(claim), TTL);
        assert_eq!(said(&mut redis, renew(b"a", ours)), (1, 5));
        assert_eq!(said(&mut redis, renew(b"a", others)), (0, 0));
        assert_eq!(answer(&mut redis, release(b"a", ours, None)), ":0\r\n");
        // The grant that is put back keeps its own fence beside the node's.
        assert_eq!(
            said(&mut redis, scripts::heal(Dialect::Plain, &wanted(b"b", 3, others))),
            (1, 3)
        );
        assert_eq!(said(&mut redis, renew(b"b", others)), (1, 3));
        let raise = |fence| scripts::raise(Dialect::Plain, b"lock:k", b"b", fence, TTL, others);
        for (fence, raised) in [(2, 3), (4, 4)] {
            assert_eq!(said(&mut redis, raise(fence)), (1, raised));
            assert_eq!(
                said(&mut redis, scripts::attach(Dialect::Plain, b"lock:k", b"b")),
                (1, raised)
            );
        }
        assert_eq!(answer(&mut redis, release(b"b", others, None)), ":0\r\n");
        assert_eq!(
            said(&mut redis, scripts::heal(Dialect::Plain, &wanted(b"b", 4, others))),
            (1, 4)
        );
        // Once another proxy has released it, the lock is not put back, whether it was there or not.
        for answered in [":0\r\n", "*3\r\n:0\r\n:0\r\n:0\r\n"] {
            let release = release(b"b", others, Some(2 * TTL));
            assert_eq!(answer(&mut redis, release), answered);
            assert_eq!(
                said(&mut redis, scripts::heal(Dialect::Plain, &wanted(b"b", 4, others))),
                (0, 0)
            );
        }
        assert_eq!(said(&mut redis, scripts::heal(Dialect::Plain, &wanted(b"b", 4, ours))), (1, 4));
        tokio::time::advance(TTL).await;
        let next = scripts::acquire(Dialect::Plain, &wanted(b"c", 1, Claim::new()), false);
        assert_eq!(said(&mut redis, next), (1, 6));
        let near_its_end = wanted(b"c", (1 << 53) - 1, Claim::new());
        tokio::time::advance(TTL).await;
        assert_eq!(said(&mut redis, scripts::acquire(Dialect::Plain, &near_its_end, false)).0, 4);
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_tells_who_holds_a_lock_and_for_how_long() {
        let mut redis = loaded();
        let look = |redis: &mut Redis, marker: &[u8]| {
            let mut request = scripts::look(Dialect::Plain, b"lock:k");
            request.extend(scripts::told(Dialect::Plain, marker, b""));
            answer(redis, request)
        };
        assert_eq!(look(&mut redis, b""), "*4\r\n:0\r\n:0\r\n:0\r\n$0\r\n\r\n");
        assert_eq!(look(&mut redis, b"d 1 0/3 lock:"), "*4\r\n:3\r\n:0\r\n:0\r\n$0\r\n\r\n");
        let claim = Claim::new();
        let taking = scripts::acquire(Dialect::Plain, &wanted(b"\0a\r\n", 9, claim), false);
        assert_eq!(said(&mut redis, taking), (1, 9));
        tokio::time::advance(TTL / 10).await;
        assert_eq!(
            look(&mut redis, b""),
            format!("*4\r\n:1\r\n:9000\r\n:{claim}\r\n$4\r\n\0a\r\n\r\n")
        );
        tokio::time::advance(TTL).await;
        assert_eq!(look(&mut redis, b""), "*4\r\n:0\r\n:0\r\n:0\r\n$0\r\n\r\n");
        for (length, told) in [(32_768, 32_768), (32_769, 0)] {
            let mut set = Vec::new();
            encode::command(&mut set, &[b"SET", b"lock:k", &vec![b'x'; length]]);
            answer(&mut redis, set);
            let begins = format!("*4\r\n:1\r\n:-1\r\n:{claim}\r\n${told}\r\n");
            assert!(look(&mut redis, b"").starts_with(&begins), "{length}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_vote_proves_itself_and_the_longest_ttl_is_noted() {
        let (mut redis, claim) = (loaded(), Claim::new());
        let told = scripts::told(Dialect::Plain, b"d 1 0/3 lock:", b"");
        let ask = |redis: &mut Redis| {
            let mut request = scripts::acquire(Dialect::Plain, &wanted(b"a", 9, claim), false);
            request.extend_from_slice(&told);
            let answer = answer(redis, request);
            if answer.starts_with(':') { b'1' } else { answer.as_bytes()[5] }
        };
        assert_eq!(ask(&mut redis), b'3', "it has none");
        for (marker, says) in [("d 2 0/3 lock:", b'3'), ("d 1 0/3 lock:", b'1')] {
            let mut request = Vec::new();
            encode::command(&mut request, &[b"SET", scripts::MARKER, marker.as_bytes()]);
            answer(&mut redis, request);
            assert_eq!(ask(&mut redis), says, "{marker}");
        }
        for (seconds, longest) in [(10, "10000"), (5, "10000"), (11, "11000")] {
            answer(&mut redis, scripts::note(scripts::LONGEST, Duration::from_secs(seconds)));
            let mut get = Vec::new();
            encode::command(&mut get, &[b"GET", scripts::LONGEST]);
            assert_eq!(answer(&mut redis, get), format!("$5\r\n{longest}\r\n"));
        }
    }
}
