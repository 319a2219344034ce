//! A client of a lock library: it knows SET NX PX, scripts that compare with its token, polls and
//! blind DEL, all on keys that the proxy adopts. It counts on the whole TTL from the reply on.
//!
//! Where the data node alone has its lock, as the client goes past the proxy or the rule is only audited, it counts
//! from the request on, and sets aside what clocks may differ by: libraries do neither, but nothing promises that
//! they may rely on that. Once its connection ends there, it gives up: what it has sent may be carried out late.

use std::time::Duration;

use sha1_smol::Sha1;
use tokio::time::Instant;

use super::{
    DRIFT_FACTOR, MAX_TTL,
    bridged::LockerKind,
    client::{Client, DELETED, Hold, ms},
    connection::{Reply, SessionEnded, old},
};

pub(super) const RELEASE: &str = "if redis.call('get', KEYS[1]) == ARGV[1] then return \
                       redis.call('del', KEYS[1]) else return 0 end";
pub(super) const EXTEND: &str = "if redis.call('get', KEYS[1]) == ARGV[1] then return \
                      redis.call('pexpire', KEYS[1], ARGV[2]) else return 0 end";
/// redis-py's script, which with `0` behind the time adds it to what is left, and with `1` puts it
/// in its place.
const REDIS_PY_EXTEND: &str = "a4e8783852e6b949f9ef3a97212805108459a890";
/// aioredlock's script, which takes the lock, or renews what its token has.
const AIOREDLOCK_LOCK: &str = "c75a9bf1538efcdb1f383acc3e273c5089d57e58";
/// The beginnings of the errors that such a client may be told.
const ERRORS: [&str; 4] =
    ["-NOQUORUM ", "-NOTHELD the lock had run out before", "-FENCED ", "-ERR the TTL would be "];

/// A reply as a library understands it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LibraryReply {
    Yes,
    No,
    Error,
}

/// The way in which a lock is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asks {
    /// By SET NX.
    Once,
    /// By a script that renews what its token has.
    Again,
    /// By SETNX, without a TTL. A client is not told when such a lock is lost, so it counts on the lock only once it
    /// has given it a TTL.
    Endless,
}

impl Client {
    /// Locks as lock libraries do.
    pub(super) async fn run_adopted(mut self, rounds: usize) {
        for round in 0..rounds {
            let is_past = self.connection.is_past();
            let _turn = if is_past { self.turn(LockerKind::Past).await } else { None };
            let name = format!("{}{}.{round}", if is_past { "past" } else { "old" }, self.name);
            let key = self.any_lock();
            self.one_adopted(key, &name).await;
            let pause = ms(self.below(100));
            self.connection.listen(pause).await;
        }
        self.connection.close();
    }

    async fn one_adopted(&mut self, key: &'static str, name: &str) {
        let longest = MAX_TTL.as_millis() as u64;
        let ttl = 50 + self.below(longest - 49);
        self.open().await;
        let is_clean = self.is_clean;
        let deletes = key == DELETED && !self.connection.is_past();
        if deletes && self.one_in(5) {
            return self.delete(key).await;
        }
        let knows_all = self.knows_all();
        let again = knows_all && self.one_in(4);
        let keeps = knows_all && self.modes.as_ref().is_some_and(|modes| modes.keeps());
        let asks = match again {
            true => Asks::Again,
            false if keeps && self.one_in(4) => Asks::Endless,
            false => Asks::Once,
        };
        let Some(mut hold) = self.poll(key, name, ms(ttl), asks).await else { return };
        for _ in 0..self.below(5) {
            let pause = ms(self.below(ttl / 2 + 1));
            self.connection.listen(pause).await;
            match self.below(7) {
                // A lock that is no longer known here has no fence to write under.
                0..2 if hold.fence > 0 => _ = self.update(&mut hold).await,
                2 => self.look(key).await,
                3 if knows_all => {
                    let add = 1 + self.below(longest / 2);
                    self.add(&hold, ms(add)).await;
                }
                // A library that has a pool goes on over another connection.
                4 => self.connection.close(),
                _ => {
                    let ttl = if self.one_in(2) { ttl } else { 50 + self.below(longest - 49) };
                    if !self.extend(&mut hold, ms(ttl), again).await {
                        return;
                    }
                }
            }
            self.open().await;
        }
        self.is_clean = false;
        if self.one_in(8) {
            // Leaves it to the TTL.
            return;
        }
        self.checker.ended(key, name, "released");
        if deletes && self.one_in(2) {
            return self.delete(key).await;
        }
        if self.one_in(6) {
            // Does not wait for the answer.
            let (mut release, on) = (Vec::new(), old(key));
            let words = ["EVAL", RELEASE, "1", &on, name].map(str::as_bytes);
            crate::resp::encode::command(&mut release, &words);
            let _ = self.connection.send(&release).await;
            self.connection.close();
            return;
        }
        let reply = self.script(RELEASE, &[&old(key), name]).await;
        self.is_clean = is_clean && reply.is_ok_and(|reply| self.said(&reply) == LibraryReply::Yes);
    }

    /// Connects, unless the connection is open.
    async fn open(&mut self) {
        self.is_clean |= !self.connection.is_open();
        self.connection.open().await;
    }

    /// Asks for the lock until it is granted, a few times at most.
    async fn poll<'a>(
        &mut self,
        key: &'static str,
        name: &'a str,
        ttl: Duration,
        asks: Asks,
    ) -> Option<Hold<'a>> {
        for _ in 0..=self.below(40) {
            self.open().await;
            let (asked, was_alone) = (Instant::now(), self.data_node_alone());
            let said = self.ask_for(key, name, ttl, asks).await;
            match said {
                Ok(LibraryReply::Yes) if asks == Asks::Endless => {
                    self.checker.happened(&format!("{key} taken by {name} without a TTL"));
                    return Some(Hold { key, token: name, name, fence: 0, lost: None, writes: 0 });
                }
                Ok(LibraryReply::Yes) => {
                    let ttl = self.counts_on(ttl, asked, was_alone);
                    let fence = self.known(key, name).map(|(_, fence)| fence);
                    self.checker.taken(key, name, fence, ttl, asked);
                    let (token, lost, fence) = (name, None, fence.unwrap_or_default());
                    return Some(Hold { key, token, name, fence, lost, writes: 0 });
                }
                Ok(LibraryReply::No) => self.checker.refused(key, name, "held"),
                Ok(LibraryReply::Error) => self.checker.refused(key, name, "no quorum"),
                Err(SessionEnded) => {
                    self.checker.refused(key, name, "hung up");
                    return None;
                }
            }
            let pause = ms(self.below(150));
            self.connection.listen(pause).await;
        }
        None
    }

    async fn ask_for(
        &mut self,
        key: &str,
        name: &str,
        ttl: Duration,
        asks: Asks,
    ) -> Result<LibraryReply, SessionEnded> {
        let (on, px) = (old(key), ttl.as_millis().to_string());
        let words: &[&str] = match self.below(2) {
            _ if asks == Asks::Again => &["EVALSHA", AIOREDLOCK_LOCK, "1", &on, name, &px],
            _ if asks == Asks::Endless => &["SETNX", &on, name],
            0 => &["SET", &on, name, "NX", "PX", &px],
            _ => &["set", &on, name, "px", &px, "nx"],
        };
        // Some clients hang up in the middle.
        let patience = if self.one_in(15) { ms(self.below(300)) } else { ms(60_000) };
        let said = self.connection.pipeline(&[words], patience).await?;
        Ok(said.first().map_or(LibraryReply::Error, |reply| self.said(reply)))
    }

    /// Whether the client's commands never reach the data node, which knows only scripts that it was shown.
    fn knows_all(&self) -> bool {
        !self.steps && !self.connection.is_past()
    }

    /// Whether the data node alone has the client's locks.
    fn data_node_alone(&self) -> bool {
        let modes = self.modes.as_ref();
        self.connection.is_past() || modes.is_some_and(|modes| modes.is_audited(self.proxy))
    }

    /// Returns for how long from now the client counts on a lock that it asked for at `asked`.
    fn counts_on(&self, ttl: Duration, asked: Instant, was_alone: bool) -> Duration {
        if was_alone || self.data_node_alone() {
            ttl.mul_f64(1.0 - DRIFT_FACTOR).saturating_sub(asked.elapsed() + ms(1))
        } else {
            ttl
        }
    }

    /// Gives the lock this TTL. Returns false if the client gives up.
    async fn extend(&mut self, hold: &mut Hold<'_>, ttl: Duration, again: bool) -> bool {
        let (key, name) = (hold.key, hold.token);
        let (on, px, asked) = (old(key), ttl.as_millis().to_string(), Instant::now());
        let was_alone = self.data_node_alone();
        self.checker.asked(key, name, self.counts_on(ttl, asked, was_alone));
        let knows_all = self.knows_all();
        let reply = match self.below(3) {
            _ if again => {
                let words = ["EVALSHA", AIOREDLOCK_LOCK, "1", &on, name, &px];
                self.connection.ask(&words).await
            }
            0 => self.script(EXTEND, &[&on, name, &px]).await,
            1 if knows_all => {
                let words = ["EVALSHA", REDIS_PY_EXTEND, "1", &on, name, &px, "1"];
                self.connection.ask(&words).await
            }
            // Where another client has the lock, SET XX would take it over on the data node.
            _ if !knows_all => self.script(EXTEND, &[&on, name, &px]).await,
            _ => self.connection.ask(&["SET", &on, name, "XX", "PX", &px]).await,
        };
        let Ok(reply) = reply else {
            let gives_up = was_alone || self.data_node_alone();
            if gives_up {
                self.checker.ended(key, name, "given up");
            }
            return !gives_up;
        };
        match self.said(&reply) {
            LibraryReply::Yes => {
                let ttl = self.counts_on(ttl, asked, was_alone);
                self.checker.extended(key, name, ttl, asked);
                // aioredlock may have taken it anew, and another connection knows no fence of it.
                if again {
                    hold.fence = self.known(key, name).map_or(0, |(_, fence)| fence);
                }
            }
            LibraryReply::No => self.checker.ended(key, name, "not extended"),
            LibraryReply::Error => {}
        }
        true
    }

    /// Adds to the lock's TTL.
    async fn add(&mut self, hold: &Hold<'_>, more: Duration) {
        let (key, name) = (hold.key, hold.token);
        let (on, px, asked) = (old(key), more.as_millis().to_string(), Instant::now());
        let words = ["EVALSHA", REDIS_PY_EXTEND, "1", &on, name, &px, "0"];
        let Ok(reply) = self.connection.ask(&words).await else { return };
        match self.said(&reply) {
            LibraryReply::Yes => self.checker.prolonged(key, name, more, asked),
            LibraryReply::No => self.checker.ended(key, name, "not prolonged"),
            LibraryReply::Error => {}
        }
    }

    /// Asks which client has the lock, or for how long.
    async fn look(&mut self, key: &str) {
        let word = ["GET", "EXISTS", "PTTL"][self.below(3) as usize];
        if let Ok(reply) = self.connection.ask(&[word, &old(key)]).await
            && reply.text().starts_with('-')
        {
            self.said(&reply);
        }
    }

    /// Deletes the lock whichever library client has it; a LOCK client's stays.
    async fn delete(&mut self, key: &'static str) {
        self.checker.deletes(key);
        let reply = self.connection.ask(&["DEL", &old(key)]).await;
        self.checker.deleted(key, reply.is_ok());
        if let Ok(reply) = reply {
            self.said(&reply);
        }
    }

    /// Runs a script by its digest, and shows it where it is not known, as libraries do.
    async fn script(&mut self, body: &str, words: &[&str]) -> Result<Reply, SessionEnded> {
        let digest = Sha1::from(body).digest().to_string();
        let by_digest = [&["EVALSHA", &digest, "1"], words].concat();
        let reply = self.connection.ask(&by_digest).await?;
        if !reply.text().starts_with("-NOSCRIPT ") {
            return Ok(reply);
        }
        if self.one_in(2) {
            return self.connection.ask(&[&["EVAL", body, "1"], words].concat()).await;
        }
        self.connection.ask(&["SCRIPT", "LOAD", body]).await?;
        self.connection.ask(&by_digest).await
    }

    fn said(&self, reply: &Reply) -> LibraryReply {
        let text = reply.text();
        match reply {
            _ if text == "+OK" || reply.number() == Some(1) => LibraryReply::Yes,
            Reply::Array(None) => LibraryReply::No,
            // The data node's reply to a SET.
            Reply::Bulk(None) if self.modes.is_some() => LibraryReply::No,
            _ if reply.number() == Some(0) || text == "-ERR ERROR" => LibraryReply::No,
            _ => {
                let is_known = ERRORS.iter().any(|error| text.starts_with(error));
                self.checker.must(is_known, &format!("a library is told {reply:?}"));
                LibraryReply::Error
            }
        }
    }
}
