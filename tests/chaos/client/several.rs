//! A client that takes several locks by MLOCK.

use std::time::Duration;

use rand::{Rng, RngExt};

use super::{Client, Ended};
use crate::{
    history::{Outcome, Verb, keys},
    trace,
};

impl Client {
    /// Takes two or three locks, works under them, and gives them back together, one by one, or by hanging up.
    pub(super) fn several(&mut self) -> Result<(), Ended> {
        self.think(2, 40);
        let mut left: Vec<usize> = (0..self.plan.keys).collect();
        let count = self.random.random_range(2..=3);
        let mut any = |_| trace::lock(left.swap_remove(self.random.random_range(0..left.len())));
        let keys: Vec<String> = (0..count).map(&mut any).collect();
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        let max_ttl = self.plan.max_ttl;
        let ttl = self.random.random_bool(0.6).then(|| self.random.random_range(400..=max_ttl));
        let token = format!("all-{:x}", self.random.next_u64());
        let Some(fences) = self.take_all(&keys, &token, ttl)? else {
            return self.probe(&keys.join(","), &token);
        };
        for (key, fence) in keys.iter().zip(fences) {
            if self.writes_under(key) && self.random.random_bool(0.7) {
                self.read(key)?;
            }
            match self.write(key, fence)? {
                Outcome::Written(_) | Outcome::Pong => {}
                // A refused write ends session locks, and what the client does under them.
                _ if ttl.is_none() => return Err(Ended),
                _ => {}
            }
            self.think(0, 30);
        }
        if self.random.random_bool(0.3) {
            let key = keys[self.random.random_range(0..keys.len())];
            self.renew(key, &token, ttl)?;
        }
        self.think(0, 60);
        self.give_back_all(&keys, &token)
    }

    /// Returns the fences, or `None` if one of the locks is held.
    fn take_all(
        &mut self,
        keys: &[&str],
        token: &str,
        ttl: Option<u64>,
    ) -> Result<Option<Vec<u64>>, Ended> {
        let wait = self.random.random_bool(0.6).then(|| self.random.random_range(50..1500));
        let (number, ttl) = (keys.len().to_string(), ttl.map(|ttl| ttl.to_string()));
        let wait_words = wait.map(|wait: u64| wait.to_string());
        let mut words = [&["MLOCK", &number][..], keys, &[token]].concat();
        words.extend(ttl.iter().flat_map(|ttl| ["PX", ttl]));
        words.extend(wait_words.iter().flat_map(|wait| ["WAIT", wait]));
        let verb = if ttl.is_some() { Verb::LeaseAll } else { Verb::SessionAll };
        let wait = Duration::from_millis(wait.unwrap_or(0));
        match self.ask(verb, &keys.join(","), &words, wait)? {
            (_, Outcome::AllGranted { fences, .. }) => Ok(Some(fences)),
            (_, Outcome::Held) => Ok(None),
            _ => Err(Ended),
        }
    }

    fn give_back_all(&mut self, keys: &[&str], token: &str) -> Result<(), Ended> {
        match self.random.random_range(0..10) {
            0..6 => {
                let number = keys.len().to_string();
                let mut words = [&["MUNLOCK", &number][..], keys].concat();
                words.extend(self.random.random_bool(0.5).then_some(token));
                match self.ask(Verb::UnlockAll, &keys.join(","), &words, Duration::ZERO)? {
                    (_, Outcome::Number(_)) => Ok(()),
                    // NOQUORUM: a session lock may still be held for as long as the connection lives.
                    _ => Err(Ended),
                }
            }
            6..9 => {
                for key in keys {
                    self.ask(Verb::Unlock, key, &["UNLOCK", key, token], Duration::ZERO)?;
                    self.think(0, 30);
                }
                Ok(())
            }
            // Leases live on.
            _ => Err(Ended),
        }
    }

    /// Asks for the locks of a MLOCK, or of a LOCK with PERMITS, that was refused, by its token. It does so on another
    /// connection: this one knows what it has given back, and would not ask for it.
    pub(super) fn probe(&mut self, joined: &str, token: &str) -> Result<(), Ended> {
        if self.random.random_bool(0.5) {
            return Ok(());
        }
        self.hang_up();
        self.think(300, 500);
        for key in keys(joined) {
            self.ask(Verb::Probe, key, &["RENEW", key, token], Duration::ZERO)?;
        }
        Ok(())
    }
}
