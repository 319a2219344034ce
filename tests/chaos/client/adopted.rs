//! A client of a lock library: it knows SET NX PX, scripts that compare with its token, polls and
//! DEL, on keys that the proxies adopt. It counts on the whole TTL from the reply on.

use std::{
    io,
    time::{Duration, Instant},
};

use rand::RngExt;
use sha1_smol::Sha1;

use super::{
    Client, Ended, Line, Style,
    connection::{Connection, Reply, encode},
    outcome,
};
use crate::{
    history::{Event, Idiom, IdiomKind, Outcome, Time, now},
    trace,
};

const RELEASE: &str = "if redis.call('get', KEYS[1]) == ARGV[1] then return \
                       redis.call('del', KEYS[1]) else return 0 end";
const EXTEND: &str = "if redis.call('get', KEYS[1]) == ARGV[1] then return \
                      redis.call('pexpire', KEYS[1], ARGV[2]) else return 0 end";
/// redis-py's script, which with `0` behind the time adds it to what is left.
const REDIS_PY_EXTEND: &str = "a4e8783852e6b949f9ef3a97212805108459a890";
/// aioredlock's script, which takes the lock, or renews what its token has.
const AIOREDLOCK_LOCK: &str = "c75a9bf1538efcdb1f383acc3e273c5089d57e58";
/// The token of programs that have one for all, and never give a lock back.
const CONSTANT: &str = "1";

/// A lock that the client was told it has.
struct Taken {
    token: String,
    /// The TTL in ms.
    ttl: u64,
    /// The time until which the client counts on the lock.
    until: Time,
}

impl Client {
    /// Takes a lock as a library does, and does with it what libraries do.
    pub(super) fn adopted(&mut self, lock: &str) -> Result<(), Ended> {
        if self.plan.style == Style::AdoptedToTheEnd {
            return self.adopted_to_the_end(lock);
        }
        self.think(2, 40);
        // Past the proxies, a DEL would end a LOCK client's lock too.
        let may_delete = trace::may_be_deleted(lock) && !self.plan.is_past;
        if may_delete && self.random.random_bool(0.3) {
            return self.delete(lock);
        }
        let kind = self.random.random_range(0..100);
        // A client that does not give its lock back must not keep others away for long.
        let ttl = if kind < 25 {
            self.random.random_range(250..700)
        } else {
            self.random.random_range(400..=self.plan.max_ttl)
        };
        // Redis itself knows only scripts that it was shown.
        let again = kind > 85 && !self.plan.is_past;
        let token = if kind < 5 { CONSTANT.to_owned() } else { self.token() };
        let mut taken = self.poll(lock, token, ttl, again)?;
        match kind {
            // Leaves the lock to its TTL.
            0..10 => {
                if kind > 7 {
                    self.hang_up();
                }
                self.sleep_until(taken.until);
                return Ok(());
            }
            // Sleeps past the lock's end, and prolongs a lock that may be another's by then.
            10..20 => {
                self.sleep_until(taken.until);
                self.think(1, 600);
                self.prolong(lock, &mut taken, again)?;
                self.think(5, 100);
            }
            // Sleeps past the lock's end, and gives back a lock that may be another's by then.
            20..25 => {
                self.sleep_until(taken.until);
                self.think(1, 600);
            }
            25..55 | 86..90 => {
                for _ in 0..self.random.random_range(1..4) {
                    self.think(5, 200);
                    self.prolong(lock, &mut taken, again)?;
                }
            }
            // A library that has a pool goes on over another connection, perhaps to another proxy.
            55..65 => {
                self.think(1, 60);
                self.hang_up();
            }
            65..75 => {
                self.think(1, 60);
                self.look(lock)?;
            }
            _ => self.think(0, 60),
        }
        if may_delete && self.random.random_bool(0.5) {
            return self.delete(lock);
        }
        let words = [&*trace::adopted(lock), &*taken.token];
        self.idiom(IdiomKind::Release, lock, &taken.token, 0, |connection, deadline| {
            script(connection, deadline, RELEASE, &words)
        })?;
        if self.random.random_bool(0.05) {
            self.hang_up();
        }
        Ok(())
    }

    fn adopted_to_the_end(&mut self, lock: &str) -> Result<(), Ended> {
        let (token, ttl) = (self.token(), self.random.random_range(300..600));
        let taken = self.poll(lock, token, ttl, false)?;
        self.sleep_until(taken.until);
        Ok(())
    }

    fn token(&mut self) -> String {
        let number: u64 = self.random.random();
        format!("old-{number:x}")
    }

    /// Asks for the lock until it is granted, or for a while.
    fn poll(&mut self, lock: &str, token: String, ttl: u64, again: bool) -> Result<Taken, Ended> {
        let (on, px) = (trace::adopted(lock), ttl.to_string());
        let words: Vec<&str> = match self.random.random_range(0..2) {
            _ if again => vec!["EVALSHA", AIOREDLOCK_LOCK, "1", &on, &token, &px],
            0 => vec!["SET", &on, &token, "NX", "PX", &px],
            _ => vec!["set", &on, &token, "px", &px, "nx"],
        };
        let is_hasty = self.plan.style == Style::AdoptedToTheEnd;
        for _ in 0..self.random.random_range(1..30) {
            let ask = |connection: &mut Connection, deadline| connection.ask(&words, deadline);
            if self.idiom(IdiomKind::Take, lock, &token, ttl, ask)? == Outcome::Set {
                let until = now() + ttl * 1000;
                return Ok(Taken { token, ttl, until });
            }
            if is_hasty {
                self.think(1, 3);
            } else {
                self.think(5, 120);
            }
        }
        Err(Ended)
    }

    /// Prolongs the lock, if it still is the client's.
    fn prolong(&mut self, lock: &str, taken: &mut Taken, again: bool) -> Result<(), Ended> {
        let (on, token) = (trace::adopted(lock), &taken.token.clone());
        let adds = !again && !self.plan.is_past && self.random.random_bool(0.2);
        let ms = if adds { self.random.random_range(50..500) } else { taken.ttl };
        let px = ms.to_string();
        let kind = if adds { IdiomKind::Add } else { IdiomKind::Extend };
        // On Redis itself SET XX overwrites the lock, whichever client has it.
        let sets = self.plan.aside > 0 && self.random.random_bool(0.3);
        let said =
            self.idiom(kind, lock, token, ms, |connection, deadline| match (again, adds) {
                (true, _) => {
                    let words = ["EVALSHA", AIOREDLOCK_LOCK, "1", &on, token, &px];
                    connection.ask(&words, deadline)
                }
                (_, true) => {
                    let words = ["EVALSHA", REDIS_PY_EXTEND, "1", &on, token, &px, "0"];
                    connection.ask(&words, deadline)
                }
                _ if sets => connection.ask(&["SET", &on, token, "XX", "PX", &px], deadline),
                _ => script(connection, deadline, EXTEND, &[&on, token, &px]),
            })?;
        match said {
            Outcome::Set | Outcome::Number(1) if adds => taken.until += ms * 1000,
            Outcome::Set | Outcome::Number(1) => taken.until = now() + ms * 1000,
            Outcome::Held | Outcome::Number(_) => return Err(Ended),
            // The lock may still be held.
            _ => {}
        }
        Ok(())
    }

    fn look(&mut self, lock: &str) -> Result<(), Ended> {
        let on = trace::adopted(lock);
        let ask = |connection: &mut Connection, deadline| connection.ask(&["GET", &on], deadline);
        self.idiom(IdiomKind::Look, lock, "-", 0, ask).map(|_| ())
    }

    /// Deletes the lock, whichever client has it.
    fn delete(&mut self, lock: &str) -> Result<(), Ended> {
        let on = trace::adopted(lock);
        let ask = |connection: &mut Connection, deadline| connection.ask(&["DEL", &on], deadline);
        self.idiom(IdiomKind::Delete, lock, "-", 0, ask).map(|_| ())
    }

    /// Sends a library's command, and writes down the answer.
    fn idiom(
        &mut self,
        kind: IdiomKind,
        lock: &str,
        token: &str,
        ttl: u64,
        talk: impl FnOnce(&mut Connection, Instant) -> io::Result<Reply>,
    ) -> Result<Outcome, Ended> {
        let (key, token, aside) = (lock.to_owned(), token.to_owned(), self.plan.aside);
        let event = Event::Idiom(Idiom { kind, key, token, ttl, aside });
        let told = |connection: &mut Connection, deadline| talk(connection, deadline).map(said);
        self.exchange(Line::Own, &event, Duration::ZERO, told).map(|(_, outcome)| outcome)
    }
}

/// Runs a script by its digest, and shows it where it is not known, as libraries do.
fn script(
    connection: &mut Connection,
    deadline: Instant,
    body: &str,
    words: &[&str],
) -> io::Result<Reply> {
    let digest = Sha1::from(body).digest().to_string();
    let by_digest = encode(&[&["EVALSHA", &digest, "1"], words].concat());
    connection.send(&by_digest)?;
    let reply = connection.answer(deadline)?;
    if !matches!(&reply, Reply::Error(error) if error.starts_with("NOSCRIPT")) {
        return Ok(reply);
    }
    // Libraries do one or the other.
    if words.len() > 2 {
        return connection.ask(&[&["EVAL", body, "1"], words].concat(), deadline);
    }
    connection.ask(&["SCRIPT", "LOAD", body], deadline)?;
    connection.send(&by_digest)?;
    connection.answer(deadline)
}

/// Returns the answer as a library understands it.
fn said(reply: Reply) -> Outcome {
    match reply {
        Reply::Text(text) if text == "OK" => Outcome::Set,
        Reply::Text(text) => Outcome::Value(text),
        // aioredlock's word for a lock that another client has.
        Reply::Error(error) if error == "ERR ERROR" => Outcome::Held,
        other => outcome(other),
    }
}
