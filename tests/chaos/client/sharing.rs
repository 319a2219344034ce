//! A client that shares locks as a reader, and sometimes takes the same locks alone.

use std::time::Duration;

use rand::{Rng, RngExt};

use super::{Client, Ended, Grant};
use crate::{
    history::{Outcome, Time, Verb},
    trace::{self, SHARED},
};

impl Client {
    pub(super) fn sharing(&mut self) -> Result<(), Ended> {
        let key = trace::shared(self.random.random_range(0..SHARED));
        match self.random.random_range(0..10) {
            0..6 => self.reader(&key),
            6..9 => self.lease(&key),
            _ => self.session(&key),
        }
    }

    /// Reads for a while, and renews its part now and then.
    fn reader(&mut self, key: &str) -> Result<(), Ended> {
        self.think(2, 40);
        let max_ttl = self.plan.max_ttl;
        let ttl = self.random.random_bool(0.6).then(|| self.random.random_range(400..=max_ttl));
        let mut grant = self.read_with_others(key, ttl)?;
        for _ in 0..self.random.random_range(0..4) {
            self.think(5, 150);
            match self.random.random_range(0..4) {
                0 => _ = self.ask(Verb::Ping, key, &["PING"], Duration::ZERO)?,
                1 if ttl.is_some() => {
                    // The client repeats its LOCK.
                    let ttl = ttl.unwrap_or(max_ttl).to_string();
                    let words = ["LOCK", key, &grant.token, "SHARED", "PX", &ttl];
                    self.ask(Verb::SharedLease, key, &words, Duration::ZERO)?;
                }
                _ => {
                    // Any proxy renews and releases a lease.
                    if ttl.is_some() && self.random.random_bool(0.2) {
                        self.hang_up();
                    }
                    grant.until = self.renew(key, &grant.token, ttl)?;
                }
            }
        }
        self.think(0, 100);
        self.stop_reading(key, &grant, ttl)
    }

    /// Takes a reader's part of the lock.
    fn read_with_others(&mut self, key: &str, ttl: Option<u64>) -> Result<Grant, Ended> {
        let own = self.random.random_bool(0.4).then(|| format!("own-{:x}", self.random.next_u64()));
        let ttl_words = ttl.map(|ttl| ttl.to_string());
        let wait = self.random.random_bool(0.6).then(|| self.random.random_range(50..1500));
        let wait_words = wait.map(|wait: u64| wait.to_string());
        let mut words = vec!["LOCK", key];
        words.extend(own.as_deref());
        words.push("SHARED");
        words.extend(ttl_words.iter().flat_map(|ttl| ["PX", ttl]));
        words.extend(wait_words.iter().flat_map(|wait| ["WAIT", wait]));
        let verb = if ttl.is_some() { Verb::SharedLease } else { Verb::SharedSession };
        let wait = Duration::from_millis(wait.unwrap_or(0));
        let (sent, Outcome::Granted { token, fence, validity, .. }) =
            self.ask(verb, key, &words, wait)?
        else {
            return Err(Ended);
        };
        let until: Time = sent + validity * 1000;
        Ok(Grant { key: key.to_owned(), token, fence, until })
    }

    /// Gives the part back, hangs up, or leaves it to its TTL.
    fn stop_reading(&mut self, key: &str, grant: &Grant, ttl: Option<u64>) -> Result<(), Ended> {
        match self.random.random_range(0..20) {
            0..2 if ttl.is_some() => {
                self.sleep_until(grant.until);
                return Ok(());
            }
            0..6 if ttl.is_some() => self.hang_up(),
            0..6 => {
                self.hang_up();
                return Ok(());
            }
            _ => {}
        }
        let words = ["UNLOCK", key, &grant.token];
        match self.ask(Verb::Unlock, key, &words, Duration::ZERO)? {
            (_, Outcome::Number(_)) => Ok(()),
            // NOQUORUM: a session lock may still be held for as long as the connection lives.
            _ => Err(Ended),
        }
    }
}
