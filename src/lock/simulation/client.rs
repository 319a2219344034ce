//! A client that locks, renews, waits, holds, hangs up and unlocks at random.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    task::{Wake, Waker},
    time::Duration,
};

use tokio::time::{Instant, sleep, timeout};

use super::{
    super::{Claim as GrantClaim, Engine, Grant, Losses, NotGranted, quorum::validity},
    DRIFT_FACTOR, MAX_TTL, Planted,
    checker::Checker,
    network::Network,
    reasons::Loss,
    session::{Session, Told},
    writes::{name, value},
};
use crate::{
    guard::fences::Claim,
    key::{Key, Token},
};

const KEYS: [&str; 2] = ["a", "b"];

pub(super) struct Client {
    pub(super) engine: Arc<Engine>,
    pub(super) network: Arc<Network>,
    pub(super) checker: Arc<Checker>,
    pub(super) name: usize,
    /// The number of its proxy.
    pub(super) proxy: usize,
    /// The longest that a message takes but now and then.
    pub(super) delay: Duration,
    pub(super) planted: Planted,
}

/// A lock that it has, as its session knows it.
struct Hold<'a> {
    session: &'a mut Session,
    claim: Option<Claim>,
    /// The grant's name on the lock nodes.
    grant: Option<super::super::Claim>,
    key: &'static str,
    token: &'a str,
    /// Its own, where others use the token too.
    name: &'a str,
    /// Of a session lock.
    lost: Option<Arc<Lost>>,
    /// How many writes it has sent.
    writes: usize,
}

/// Notes a lost lock at the moment at which its holder is told, and whether that had a reason.
struct Lost {
    checker: Arc<Checker>,
    network: Arc<Network>,
    proxy: usize,
    delay: Duration,
    key: &'static str,
    claim: GrantClaim,
    name: String,
    /// The TTL that it has, and since when.
    ttl: Mutex<(Duration, Instant)>,
}

impl Lost {
    /// From now on it has that TTL.
    fn has(&self, ttl: Duration) {
        *self.ttl.lock().unwrap() = (ttl, Instant::now());
    }

    /// That TTL is asked for: a shorter one counts whatever comes of it.
    fn asks(&self, ttl: Duration) {
        if ttl < self.ttl.lock().unwrap().0 {
            self.has(ttl);
        }
    }
}

impl Wake for Lost {
    fn wake(self: Arc<Self>) {
        self.checker.ended(self.key, &self.name, "lost");
        let (ttl, since) = *self.ttl.lock().unwrap();
        let (proxy, key, claim, delay) = (self.proxy, full(self.key), self.claim, self.delay);
        let valid = 1.0 - DRIFT_FACTOR;
        let loss = Loss { proxy, key, claim, ttl, since, valid, delay };
        self.checker.lost(self.key, &self.network.reason_of(&loss));
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

    pub(super) async fn run(self, mut session: Session, rounds: usize) {
        for round in 0..rounds {
            let name = format!("{}.{round}", self.name);
            // As those who use their host's name.
            let token = if self.one_in(3) { "host" } else { &name };
            let key = KEYS[self.below(2) as usize];
            self.one(&mut session, key, token, &name).await;
            sleep(ms(self.below(100))).await;
        }
    }

    /// Keeps a session lock for as long as it can, and takes it again once it is lost.
    pub(super) async fn keep(self, key: &'static str, is_over: Arc<AtomicBool>) {
        let mut round = 0;
        while !is_over.load(Ordering::Relaxed) {
            round += 1;
            let (name, ttl) = (format!("keeper.{}.{round}", self.name), ms(600));
            let wait = self.engine.wait(&full(key), name.as_bytes(), ttl, ms(1000), None);
            let Ok(grant) = wait.await else { continue };
            let claim = grant.claim.unwrap();
            let lost = self.lost(key, &name, ttl, claim);
            let losses = Arc::new(Losses::new(Waker::from(lost)));
            let (on, token) = (Key::from(&full(key)), Token::from(name.as_str()));
            let keep = self.engine.keep(&on, &token, claim, ttl, grant.until, &losses);
            self.checker.granted(key, &name, grant.fence, None);
            while !losses.any() && !is_over.load(Ordering::Relaxed) {
                sleep(ms(50)).await;
            }
            if !losses.any() {
                self.checker.ended(key, &name, "closed");
                keep.give_back();
            }
        }
    }

    fn lost(&self, key: &'static str, name: &str, ttl: Duration, claim: GrantClaim) -> Arc<Lost> {
        Arc::new(Lost {
            checker: self.checker.clone(),
            network: self.network.clone(),
            proxy: self.proxy,
            delay: self.delay,
            key,
            claim,
            name: name.to_owned(),
            ttl: Mutex::new((ttl, Instant::now())),
        })
    }

    async fn one(&self, session: &mut Session, key: &'static str, token: &str, name: &str) {
        let is_session_lock = self.one_in(3);
        let longest = MAX_TTL.as_millis() as u64;
        let ttl = if is_session_lock { ms(600) } else { ms(50 + self.below(longest - 49)) };
        session.open();
        let Some(grant) = self.lock(key, token, ttl).await else { return };
        let lost = is_session_lock.then(|| self.lost(key, name, ttl, grant.claim.unwrap()));
        let grant_claim = grant.claim;
        let mut hold =
            Hold { session, claim: None, grant: grant_claim, key, token, name, lost, writes: 0 };
        if let Some(lost) = hold.lost.clone() {
            let losses = Arc::new(Losses::new(Waker::from(lost)));
            let keep = self.engine.keep(
                &Key::from(&full(key)),
                &Token::from(token),
                grant.claim.unwrap(),
                ttl,
                grant.until,
                &losses,
            );
            self.checker.granted(key, name, grant.fence, None);
            self.claim(&mut hold, &grant, true).await;
            if hold.claim.is_some() {
                self.hold(&mut hold, ttl * 2, true).await;
            }
            self.checker.ended(key, name, "closed");
            keep.give_back();
        } else {
            self.claim(&mut hold, &grant, false).await;
            if hold.claim.is_some() {
                self.hold(&mut hold, ttl, false).await;
            }
            if hold.claim.is_some() && self.one_in(10) {
                // It forgets to unlock: the TTL does it.
                return;
            }
            self.checker.ended(key, name, "unlocked");
            let released = self.engine.release(&full(key), token.as_bytes(), hold.grant);
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
            timeout(patience, self.engine.acquire(&full, token_bytes, ttl, None)).await
        } else {
            let wait = ms(self.below(3000));
            timeout(patience, self.engine.wait(&full, token_bytes, ttl, wait, None)).await
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

    /// Has the data node told of a grant before the client is. Without a claim after
    /// that, the lock is to be given back.
    async fn claim(&self, hold: &mut Hold<'_>, grant: &Grant, is_session_lock: bool) {
        let asked = Instant::now();
        hold.claim = hold.session.claim(hold.key, grant.fence).await;
        if is_session_lock || hold.claim.is_none() {
            return;
        }
        let spent = if self.planted == Planted::ValidityOfBefore {
            Duration::ZERO
        } else {
            asked.elapsed()
        };
        let left = grant.validity.saturating_sub(spent);
        if left.is_zero() {
            hold.claim = None;
        } else {
            self.checker.granted(hold.key, hold.name, grant.fence, Some(left));
        }
    }

    /// Holds it for up to `longest`, renewing it now and then, and writing under it,
    /// even when it is over: nobody looks at a clock.
    async fn hold(&self, hold: &mut Hold<'_>, longest: Duration, is_session_lock: bool) {
        let (key, token, name) = (hold.key, hold.token, hold.name);
        for _ in 0..self.below(4) {
            sleep(ms(self.below(longest.as_millis() as u64 / 2))).await;
            self.update(hold).await;
            if hold.claim.is_none() {
                return;
            }
            if !self.one_in(2) {
                continue;
            }
            let ttl = ms(50 + self.below(MAX_TTL.as_millis() as u64 - 49));
            if !is_session_lock && self.one_in(3) {
                // It repeats itself, as after a time-out.
                let again =
                    self.engine.acquire(&full(key), token.as_bytes(), ttl, hold.grant).await;
                if let Ok(grant) = again {
                    self.claim(hold, &grant, false).await;
                    if hold.claim.is_none() {
                        return;
                    }
                }
                continue;
            }
            let least = validity(ttl, Duration::ZERO, DRIFT_FACTOR).unwrap_or_default();
            self.checker.asked(key, name, least);
            if let Some(lost) = &hold.lost {
                lost.asks(ttl);
            }
            match self.engine.renew(&full(key), token.as_bytes(), ttl, hold.grant).await {
                Ok(Some(renewed)) if !is_session_lock => {
                    self.checker.renewed(key, name, renewed.validity);
                }
                Ok(Some(_)) => hold.lost.iter().for_each(|lost| lost.has(ttl)),
                Ok(None) => self.checker.ended(key, name, "not renewed"),
                Err(_) => {}
            }
        }
        sleep(ms(self.below(longest.as_millis() as u64))).await;
        if self.one_in(2) {
            self.update(hold).await;
        }
    }

    /// Reads, thinks, and writes what follows from that.
    async fn update(&self, hold: &mut Hold<'_>) {
        let Some(claim) = &mut hold.claim else { return };
        let acknowledged = self.checker.reads(hold.key);
        let Ok(found) = hold.session.read(hold.key).await else {
            hold.claim = None;
            return;
        };
        self.checker.read(hold.key, found.as_deref(), acknowledged);
        if self.one_in(3) {
            sleep(ms(self.below(500))).await;
        }
        hold.writes += 1;
        let own = format!("{}.{}", hold.name, hold.writes);
        let value = value(&own, claim.fence, found.as_deref().map(name));
        let asked = (&self.engine, hold.token);
        let told = hold.session.write(asked, claim, (hold.key, &value)).await;
        self.checker.wrote(hold.key, &own, claim.fence, told);
        if matches!(told, Told::Fenced | Told::Nothing) {
            hold.claim = None;
        }
    }
}

/// Its key on the nodes.
pub(super) fn full(key: &str) -> Vec<u8> {
    format!("lock:{key}").into_bytes()
}
