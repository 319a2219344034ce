//! A lock node that is not there: keys that expire by a clock of their own, the
//! few commands that Lockgate sends, and its own Lua scripts, run by a real Lua.

use std::{cell::RefCell, collections::HashMap, time::Duration};

use mlua::{Lua, MultiValue, Table, Value};
use redis_protocol::resp2::types::OwnedFrame;
use tokio::time::Instant;

use crate::resp::encode;

/// What a node knows and forgets.
#[derive(Debug, Default)]
pub(super) struct Memory {
    keys: HashMap<Vec<u8>, (Vec<u8>, Option<u64>)>,
    /// By the node's own clock, in ms.
    now: u64,
}

impl Memory {
    fn get(&self, key: &[u8]) -> Option<&(Vec<u8>, Option<u64>)> {
        self.keys.get(key).filter(|(_, ends)| ends.is_none_or(|ends| ends > self.now))
    }

    /// The keys of locks that are held now.
    pub(super) fn locks(&self) -> Vec<Vec<u8>> {
        let locks = self.keys.keys().filter(|key| key.starts_with(b"lock:"));
        locks.filter(|key| self.get(key).is_some()).cloned().collect()
    }

    /// `redis.call` in a script, for the commands that ours use.
    fn call(&mut self, words: &[Vec<u8>]) -> Answer {
        let number = |text: &[u8]| String::from_utf8_lossy(text).parse::<f64>().unwrap() as u64;
        let key = words.get(1).map_or(&[][..], Vec::as_slice);
        match words[0].as_slice() {
            b"GET" => self.get(key).map_or(Answer::Nil, |(value, _)| Answer::Bulk(value.clone())),
            b"SET" => {
                let ends = match words.get(3).map(Vec::as_slice) {
                    Some(b"PX") => Some(self.now + number(&words[4])),
                    None => None,
                    Some(other) => panic!("SET with {other:?}"),
                };
                self.keys.insert(key.to_vec(), (words[2].clone(), ends));
                Answer::Ok
            }
            b"DEL" => {
                let was = i64::from(self.get(key).is_some());
                self.keys.remove(key);
                Answer::Int(was)
            }
            b"PTTL" => Answer::Int(match self.get(key) {
                None => -2,
                Some((_, None)) => -1,
                Some((_, Some(ends))) => (ends - self.now) as i64,
            }),
            b"PEXPIRE" => {
                let ends = self.now + number(&words[2]);
                if self.get(key).is_none() {
                    return Answer::Int(0);
                }
                if let Some(entry) = self.keys.get_mut(key) {
                    entry.1 = Some(ends);
                }
                Answer::Int(1)
            }
            // Nobody subscribes: waiters look by themselves.
            b"PUBLISH" => Answer::Int(0),
            b"PUBSUB" => Answer::Listeners,
            other => panic!("{}", String::from_utf8_lossy(other)),
        }
    }
}

enum Answer {
    Nil,
    Ok,
    Int(i64),
    Bulk(Vec<u8>),
    /// A channel and 0.
    Listeners,
}

thread_local! {
    static LUA: Scripts = Scripts::new();
    /// That of the node whose script runs.
    static MEMORY: RefCell<Memory> = RefCell::default();
}

struct Scripts {
    lua: Lua,
    by_body: RefCell<HashMap<String, mlua::Function>>,
}

impl Scripts {
    fn new() -> Scripts {
        let lua = Lua::new();
        let call = |lua: &Lua, words: MultiValue| {
            let words: Vec<Vec<u8>> = words.iter().map(text).collect();
            match MEMORY.with_borrow_mut(|memory| memory.call(&words)) {
                Answer::Nil => Ok(Value::Boolean(false)),
                Answer::Ok => Ok(Value::Table(lua.create_table_from([("ok", "OK")])?)),
                Answer::Int(number) => Ok(Value::Number(number as f64)),
                Answer::Bulk(bytes) => Ok(Value::String(lua.create_string(bytes)?)),
                Answer::Listeners => {
                    let table = lua.create_table()?;
                    table.push("channel")?;
                    table.push(0)?;
                    Ok(Value::Table(table))
                }
            }
        };
        let redis = lua.create_table().unwrap();
        redis.set("call", lua.create_function(call).unwrap()).unwrap();
        redis.set("pcall", lua.create_function(call).unwrap()).unwrap();
        lua.globals().set("redis", redis).unwrap();
        Scripts { lua, by_body: RefCell::default() }
    }

    fn run(&self, body: &str, keys: &[Vec<u8>], arguments: &[Vec<u8>]) -> Vec<i64> {
        let strings = |all: &[Vec<u8>]| -> Table {
            let strings = all.iter().map(|bytes| self.lua.create_string(bytes).unwrap());
            self.lua.create_sequence_from(strings).unwrap()
        };
        self.lua.globals().set("KEYS", strings(keys)).unwrap();
        self.lua.globals().set("ARGV", strings(arguments)).unwrap();
        let mut known = self.by_body.borrow_mut();
        if !known.contains_key(body) {
            known.insert(body.to_owned(), self.lua.load(body).into_function().unwrap());
        }
        let answer: Table = known[body].call(()).unwrap();
        // As Redis does: numbers lose what is behind the point.
        answer.sequence_values::<f64>().map(|number| number.unwrap() as i64).collect()
    }
}

/// As `redis.call` takes its arguments: a number is written as Lua writes it.
fn text(value: &Value) -> Vec<u8> {
    match value {
        Value::String(string) => string.as_bytes().to_vec(),
        Value::Integer(number) => number.to_string().into_bytes(),
        Value::Number(number) => number.to_string().into_bytes(),
        other => panic!("{other:?}"),
    }
}

/// One node.
#[derive(Debug)]
pub(super) struct Redis {
    memory: Memory,
    scripts: HashMap<String, String>,
    run_id: String,
    /// When it was started.
    born: Instant,
    /// How much faster its clock runs than the true one.
    pub(super) rate: f64,
    begun: Instant,
    /// Releases without looking whose the lock is: a planted fault.
    pub(super) careless: bool,
}

impl Redis {
    pub(super) fn new(name: &str, rate: f64) -> Redis {
        let now = Instant::now();
        Redis {
            memory: Memory::default(),
            scripts: HashMap::new(),
            run_id: format!("{name}-0"),
            // Long ago: nobody waits for a deployment to be old enough.
            born: now,
            rate,
            begun: now,
            careless: false,
        }
    }

    pub(super) fn locks(&mut self) -> Vec<Vec<u8>> {
        self.memory.now = self.clock();
        self.memory.locks()
    }

    fn clock(&self) -> u64 {
        (self.begun.elapsed().as_secs_f64() * self.rate * 1000.0) as u64
    }

    /// It is started again, with or without what it had.
    pub(super) fn restart(&mut self, times: usize, keeps_memory: bool) {
        self.run_id = format!("{}-{times}", self.run_id.split('-').next().unwrap());
        self.born = Instant::now();
        self.scripts.clear();
        if !keeps_memory {
            self.memory = Memory::default();
        }
    }

    /// Carries out one command. `client` is the connection's number.
    pub(super) fn execute(&mut self, words: &[Vec<u8>], client: u64) -> Vec<u8> {
        self.memory.now = self.clock();
        let mut out = Vec::new();
        match words[0].as_slice() {
            b"SELECT" | b"CLIENT" if words.len() == 2 && words[1] == b"ID" => {
                encode::integer(&mut out, client as i64);
            }
            b"SELECT" | b"CLIENT" => encode::simple(&mut out, "OK"),
            b"PING" => encode::simple(&mut out, "PONG"),
            b"SCRIPT" => {
                let body = String::from_utf8(words[2].clone()).unwrap();
                let digest = sha1_smol::Sha1::from(&body).digest().to_string();
                encode::bulk(&mut out, digest.as_bytes());
                self.scripts.insert(digest, body);
            }
            b"INFO" => {
                let uptime = Duration::from_secs_f64(self.born.elapsed().as_secs_f64() * self.rate);
                let info = format!(
                    "role:master\r\nrun_id:{}\r\nuptime_in_seconds:{}\r\n",
                    self.run_id,
                    uptime.as_secs()
                );
                encode::bulk(&mut out, info.as_bytes());
            }
            b"EVALSHA" => match self.scripts.get(std::str::from_utf8(&words[1]).unwrap()) {
                None => encode::error(&mut out, "NOSCRIPT No matching script."),
                Some(body) => {
                    let count: usize = String::from_utf8_lossy(&words[2]).parse().unwrap();
                    let (keys, arguments) = words[3..].split_at(count);
                    let mut body = body.clone();
                    if self.careless && body.starts_with("-- Gives a lock back") {
                        body = body.replace("~= ARGV[1]", "== nil");
                    }
                    MEMORY.set(std::mem::take(&mut self.memory));
                    let answer = LUA.with(|lua| lua.run(&body, keys, arguments));
                    self.memory = MEMORY.take();
                    encode::array(&mut out, answer.len());
                    answer.iter().for_each(|number| encode::integer(&mut out, *number));
                }
            },
            _ => match self.memory.call(words) {
                Answer::Nil => out.extend_from_slice(b"$-1\r\n"),
                Answer::Bulk(bytes) => encode::bulk(&mut out, &bytes),
                Answer::Int(number) => encode::integer(&mut out, number),
                Answer::Ok | Answer::Listeners => encode::simple(&mut out, "OK"),
            },
        }
        out
    }
}

/// Takes the first whole command off `received`.
pub(super) fn next_command(received: &mut Vec<u8>) -> Option<Vec<Vec<u8>>> {
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

    use super::{super::super::scripts, *};

    /// What a node answers to `request`.
    fn answer(redis: &mut Redis, mut request: Vec<u8>) -> String {
        let mut replies = Vec::new();
        while let Some(words) = next_command(&mut request) {
            replies = redis.execute(&words, 1);
        }
        String::from_utf8(replies).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_fence_is_raised_only_where_its_token_has_the_lock() {
        let mut redis = Redis::new("n", 1.0);
        let mut load = Vec::new();
        scripts::load(&mut load);
        answer(&mut redis, load);
        let ttl = Duration::from_secs(10);
        let wanted = scripts::Wanted {
            key: b"lock:k",
            token: b"a",
            ttl,
            fence: 9,
            fence_ttl: ttl,
            attempt: 1,
        };
        assert_eq!(answer(&mut redis, scripts::acquire(&wanted)), "*2\r\n:1\r\n:9\r\n");
        let raise = |token: &[u8], fence| scripts::raise(b"lock:k", token, fence, ttl);
        assert_eq!(answer(&mut redis, raise(b"b", 20)), "*2\r\n:0\r\n:0\r\n");
        assert_eq!(answer(&mut redis, raise(b"a", 5)), "*2\r\n:1\r\n:9\r\n", "b's was not stored");
        assert_eq!(answer(&mut redis, raise(b"a", 12)), "*2\r\n:1\r\n:12\r\n");
        tokio::time::advance(ttl).await;
        assert_eq!(answer(&mut redis, raise(b"a", 30)), "*2\r\n:0\r\n:0\r\n", "it has run out");
    }
}
