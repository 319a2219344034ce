//! The memory of a simulated node, and `redis.call` on it.

use std::{
    collections::HashMap,
    hash::{DefaultHasher, Hash, Hasher},
};

use super::sorted_set::{self, SortedSet};
use crate::guard::FENCE_PREFIX;

/// The prefix that turns a lock's key into the key that is written under the lock.
pub(super) const DATA: &[u8] = b"data:";

/// The prefix that turns a lock's name into the key that lock libraries take for it.
pub(super) const OLD: &[u8] = b"old:";

/// The most keys that one SCAN returns.
const SCANNED: usize = 2;

/// What TIME tells at the beginning of a node's clock, in ms: as Redis writes it in these years.
pub(super) const EPOCH: u64 = 1_700_000_000_000;

const WRONG_TYPE: RedisReply =
    RedisReply::Error("WRONGTYPE Operation against a key holding the wrong kind of value");

/// What a key holds.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum StoredValue {
    Text(Vec<u8>),
    Set(SortedSet),
}

impl StoredValue {
    pub(super) fn text(&self) -> Option<&Vec<u8>> {
        match self {
            StoredValue::Text(text) => Some(text),
            StoredValue::Set(_) => None,
        }
    }
}

/// Keys, their values, and when they end, in ms.
pub(super) type StoredKeys = HashMap<Vec<u8>, (StoredValue, Option<u64>)>;

/// Keys and values that a node knows, and can forget.
#[derive(Debug, Default)]
pub(super) struct Memory {
    pub(super) keys: StoredKeys,
    /// The time by the node's own clock, in ms.
    pub(super) now: u64,
    /// Every SET of a data node, in order.
    pub(super) written: Vec<(Vec<u8>, Vec<u8>)>,
    /// Keys that the command under way has written, and that connections may watch.
    pub(super) touched: Vec<Vec<u8>>,
}

impl Memory {
    pub(super) fn get(&self, key: &[u8]) -> Option<&(StoredValue, Option<u64>)> {
        self.keys.get(key).filter(|(_, ends)| ends.is_none_or(|ends| ends > self.now))
    }

    /// Returns the key's value if that is a string.
    pub(super) fn text(&self, key: &[u8]) -> Option<&Vec<u8>> {
        self.get(key)?.0.text()
    }

    /// Returns the keys of locks that are held now.
    pub(super) fn locks(&self) -> Vec<Vec<u8>> {
        let locks = self.keys.iter().filter(|(key, _)| key.starts_with(b"lock:"));
        let held = locks.filter(|(_, (_, ends))| ends.is_none_or(|ends| ends > self.now));
        held.map(|(key, _)| key.clone()).collect()
    }

    /// Carries out `redis.call`, for the commands that Lockgate's scripts use.
    pub(super) fn call(&mut self, words: &[Vec<u8>]) -> RedisReply {
        let key = words.get(1).map_or(&[][..], Vec::as_slice);
        match words[0].to_ascii_uppercase().as_slice() {
            b"GET" => match self.get(key) {
                None => RedisReply::Nil,
                Some((StoredValue::Text(text), _)) => RedisReply::Bulk(text.clone()),
                Some((StoredValue::Set(_), _)) => WRONG_TYPE,
            },
            b"SET" => self.set(key, &words[2], &words[3..]),
            b"MGET" => {
                let value = |key: &Vec<u8>| self.text(key).cloned();
                RedisReply::Many(words[1..].iter().map(value).collect())
            }
            b"TIME" => {
                let parts = [(EPOCH + self.now) / 1000, self.now % 1000 * 1000];
                RedisReply::Many(parts.map(|part| Some(part.to_string().into_bytes())).to_vec())
            }
            b"DEL" => {
                let was = i64::from(self.get(key).is_some());
                self.keys.remove(key);
                RedisReply::Int(was)
            }
            b"PTTL" => RedisReply::Int(match self.get(key) {
                None => -2,
                Some((_, None)) => -1,
                Some((_, Some(ends))) => (ends - self.now) as i64,
            }),
            b"PEXPIRE" => {
                let ends = self.now + number(&words[2]);
                if self.get(key).is_none() {
                    return RedisReply::Int(0);
                }
                if let Some(entry) = self.keys.get_mut(key) {
                    entry.1 = Some(ends);
                }
                RedisReply::Int(1)
            }
            b"PEXPIREAT" => {
                let ends = number(&words[2]).saturating_sub(EPOCH);
                if self.get(key).is_none() {
                    return RedisReply::Int(0);
                }
                if let Some(entry) = self.keys.get_mut(key) {
                    entry.1 = Some(ends);
                }
                RedisReply::Int(1)
            }
            name if name.starts_with(b"Z") => self.call_on_set(name, key, &words[2..]),
            b"SCAN" => self.scan(number(key)),
            b"EXISTS" => RedisReply::Int(i64::from(self.get(key).is_some())),
            b"SELECT" => RedisReply::Ok,
            // No subscriber exists: waiters look by themselves.
            b"PUBLISH" => RedisReply::Int(0),
            b"PUBSUB" => RedisReply::Listeners,
            other => panic!("{}", String::from_utf8_lossy(other)),
        }
    }

    /// Carries out a command on a sorted set.
    fn call_on_set(&mut self, name: &[u8], key: &[u8], words: &[Vec<u8>]) -> RedisReply {
        let (mut set, ends) = match self.get(key) {
            None => (SortedSet::default(), None),
            Some((StoredValue::Set(set), ends)) => (set.clone(), *ends),
            Some((StoredValue::Text(_), _)) => return WRONG_TYPE,
        };
        let before = set.clone();
        let int = |count: usize| RedisReply::Int(i64::try_from(count).unwrap());
        let reply = match name {
            b"ZSCORE" => set
                .score(&words[0])
                .map_or(RedisReply::Nil, |score| RedisReply::Bulk(sorted_set::text(score))),
            b"ZADD" => {
                let (pairs, rest) = words.as_chunks::<2>();
                assert!(rest.is_empty(), "ZADD with an option: {words:?}");
                let new = pairs.iter().filter(|[score, member]| set.add(decimal(score), member));
                int(new.count())
            }
            b"ZREM" => int(words.iter().filter(|member| set.remove(member)).count()),
            b"ZCARD" => int(set.all().len()),
            b"ZCOUNT" => int(set.between(&words[0], &words[1]).len()),
            b"ZREMRANGEBYSCORE" => {
                let gone = set.between(&words[0], &words[1]);
                int(gone.iter().filter(|(_, member)| set.remove(member)).count())
            }
            b"ZRANGEBYSCORE" => scored(set.between(&words[0], &words[1]), &words[2..]),
            b"ZRANGE" | b"ZREVRANGE" => {
                let [from, to] = [0, 1].map(|at| decimal(&words[at]) as i64);
                scored(set.ranked(from, to, name == b"ZREVRANGE"), &words[2..])
            }
            other => panic!("{}", String::from_utf8_lossy(other)),
        };
        if set.is_empty() {
            self.keys.remove(key);
        } else if set != before {
            self.keys.insert(key.to_vec(), (StoredValue::Set(set), ends));
        }
        reply
    }

    /// Returns a few keys from a cursor on, in the order of their hashes, so that a key that stays is returned
    /// whatever comes and goes meanwhile.
    fn scan(&self, cursor: u64) -> RedisReply {
        let place = |key: &Vec<u8>| {
            let mut hasher = DefaultHasher::new();
            key.hash(&mut hasher);
            // Lua's numbers are exact up to 2^53.
            (hasher.finish() >> 12).max(1)
        };
        let mut left: Vec<(u64, Vec<u8>)> =
            self.keys.keys().map(|key| (place(key), key.clone())).collect();
        left.retain(|(place, key)| *place > cursor && self.get(key).is_some());
        left.sort();
        let is_last = left.len() <= SCANNED;
        left.truncate(SCANNED);
        let next = left.last().filter(|_| !is_last).map_or(0, |(place, _)| *place);
        RedisReply::Scanned(next, left.into_iter().map(|(_, key)| key).collect())
    }

    fn set(&mut self, key: &[u8], value: &[u8], options: &[Vec<u8>]) -> RedisReply {
        let (mut ends, mut nx, mut xx) = (None, false, false);
        let mut options = options.iter();
        while let Some(option) = options.next() {
            match option.to_ascii_uppercase().as_slice() {
                b"PX" => ends = Some(self.now + number(options.next().unwrap())),
                b"NX" => nx = true,
                b"XX" => xx = true,
                other => panic!("SET with {other:?}"),
            }
        }
        let is_there = self.get(key).is_some();
        match (nx, xx) {
            // A session's probe of whether the client may write the key.
            (true, true) => return RedisReply::Error("ERR syntax error"),
            (true, false) if is_there => return RedisReply::Nil,
            (false, true) if !is_there => return RedisReply::Nil,
            _ => {}
        }
        self.keys.insert(key.to_vec(), (StoredValue::Text(value.to_vec()), ends));
        if key.starts_with(DATA) || key.starts_with(FENCE_PREFIX) {
            self.written.push((key.to_vec(), value.to_vec()));
            self.touched.push(key.to_vec());
        }
        RedisReply::Ok
    }
}

fn number(text: &[u8]) -> u64 {
    decimal(text) as u64
}

fn decimal(text: &[u8]) -> f64 {
    String::from_utf8_lossy(text).parse().unwrap()
}

/// Returns members with their scores behind them.
fn scored(members: Vec<(f64, Vec<u8>)>, options: &[Vec<u8>]) -> RedisReply {
    assert_eq!(options, [b"WITHSCORES".to_vec()]);
    let told = members.into_iter().flat_map(|(score, member)| [member, sorted_set::text(score)]);
    RedisReply::Many(told.map(Some).collect())
}

/// The reply to a command.
pub(super) enum RedisReply {
    Nil,
    Ok,
    Int(i64),
    Bulk(Vec<u8>),
    Many(Vec<Option<Vec<u8>>>),
    /// The next cursor, and the keys.
    Scanned(u64, Vec<Vec<u8>>),
    /// A channel's name and 0 subscribers.
    Listeners,
    Error(&'static str),
}
