//! A client that locks, renews, waits, holds, hangs up and unlocks at random.

use std::{
    sync::Arc,
    task::{Wake, Waker},
    time::Duration,
};

use tokio::time::{sleep, timeout};

use super::{
    super::{Engine, Grant, Losses, NotGranted, quorum::validity},
    DRIFT_FACTOR, MAX_TTL,
    checker::Checker,
    network::Network,
};
use crate::key::{Key, Token};

const KEYS: [&str; 2] = ["a", "b"];

pub(super) struct Client {
    pub(super) engine: Arc<Engine>,
    pub(super) network: Arc<Network>,
    pub(super) checker: Arc<Checker>,
    pub(super) name: usize,
}

/// Notes a lost lock at the moment at which its holder is told.
struct Lost {
    checker: Arc<Checker>,
    key: &'static str,
    token: String,
}

impl Wake for Lost {
    fn wake(self: Arc<Self>) {
        self.checker.ended(self.key, &self.token, "lost");
    }
}

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

impl Client {
    fn below(&self, limit: u64) -> u64 {
        self.network.below(limit)
    }

    /// One of so many times.
    fn one_in(&self, times: u64) -> bool {
        self.below(times) == 0
    }

    pub(super) async fn run(self, rounds: usize) {
        for round in 0..rounds {
            let token = format!("{}.{round}", self.name);
            let key = KEYS[self.below(2) as usize];
            self.one(key, &token).await;
            sleep(ms(self.below(100))).await;
        }
    }

    async fn one(&self, key: &'static str, token: &str) {
        let is_session_lock = self.one_in(3);
        let longest = MAX_TTL.as_millis() as u64;
        let ttl = if is_session_lock { ms(600) } else { ms(50 + self.below(longest - 49)) };
        let Some(grant) = self.lock(key, token, ttl).await else { return };
        if is_session_lock {
            self.checker.granted(key, token, grant.fence, None);
            let lost = Lost { checker: self.checker.clone(), key, token: token.to_owned() };
            let losses = Arc::new(Losses::new(Waker::from(Arc::new(lost))));
            let keep = self.engine.keep(
                &Key::from(&full(key)),
                &Token::from(token),
                ttl,
                grant.validity,
                &losses,
            );
            self.hold(key, token, ttl * 2, true).await;
            self.checker.ended(key, token, "closed");
            drop(keep);
        } else {
            self.checker.granted(key, token, grant.fence, Some(grant.validity));
            self.hold(key, token, ttl, false).await;
            if self.one_in(10) {
                // It forgets to unlock: the TTL does it.
                return;
            }
            self.checker.ended(key, token, "unlocked");
            let released = self.engine.release(&full(key), token.as_bytes());
            if self.one_in(5) {
                drop(released);
            } else {
                let _ = released.await;
            }
        }
    }

    /// Locks, with or without waiting; now and then it hangs up in the middle.
    async fn lock(&self, key: &'static str, token: &str, ttl: Duration) -> Option<Grant> {
        let patience = if self.one_in(6) { ms(self.below(300)) } else { ms(60_000) };
        let (full, token_bytes) = (full(key), token.as_bytes());
        let asked = if self.one_in(3) {
            timeout(patience, self.engine.acquire(&full, token_bytes, ttl)).await
        } else {
            let wait = ms(self.below(3000));
            timeout(patience, self.engine.wait(&full, token_bytes, ttl, wait)).await
        };
        match asked {
            Ok(Ok(grant)) => return Some(grant),
            Ok(Err(NotGranted::Held { .. })) => self.checker.refused(key, token, "held"),
            Ok(Err(NotGranted::QueueFull { .. })) => self.checker.refused(key, token, "full"),
            Ok(Err(NotGranted::NoQuorum(why))) => {
                self.checker.refused(key, token, &why.to_string())
            }
            Err(_) => self.checker.refused(key, token, "hung up"),
        }
        None
    }

    /// Holds it for up to `longest`, renewing it now and then.
    async fn hold(&self, key: &'static str, token: &str, longest: Duration, is_session_lock: bool) {
        for _ in 0..self.below(3) {
            sleep(ms(self.below(longest.as_millis() as u64 / 2))).await;
            if !self.one_in(2) {
                continue;
            }
            let ttl = ms(50 + self.below(MAX_TTL.as_millis() as u64 - 49));
            if !is_session_lock && self.one_in(3) {
                // It repeats itself, as after a time-out.
                let again = self.engine.acquire(&full(key), token.as_bytes(), ttl).await;
                if let Ok(grant) = again {
                    self.checker.granted(key, token, grant.fence, Some(grant.validity));
                }
                continue;
            }
            let least = validity(ttl, Duration::ZERO, DRIFT_FACTOR).unwrap_or_default();
            self.checker.asked(key, token, least);
            match self.engine.renew(&full(key), token.as_bytes(), ttl).await {
                Ok(Some(validity)) if !is_session_lock => {
                    self.checker.renewed(key, token, validity);
                }
                Ok(None) => self.checker.ended(key, token, "not renewed"),
                _ => {}
            }
        }
        sleep(ms(self.below(longest.as_millis() as u64))).await;
    }
}

/// Its key on the nodes.
pub(super) fn full(key: &str) -> Vec<u8> {
    format!("lock:{key}").into_bytes()
}
