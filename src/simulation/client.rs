//! A client that locks, renews, waits, holds, hangs up and unlocks at random.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::time::{Instant, sleep};

use super::{
    DRIFT_FACTOR, MAX_TTL,
    bridged::{LockPermit, LockerKind, Modes},
    checker::Checker,
    connection::{Reply, SessionUnderTest, WriteReply, data, told},
    network::Network,
    reasons::Loss,
    writes::{name, value},
};
use crate::{
    key::{Key, Token},
    lock::{Claim, seams::validity},
};

const KEYS: [&str; 2] = ["a", "b"];
/// A lock that is used where there are clients of lock libraries, whose blind DELs end such clients' locks.
pub(super) const DELETED: &str = "c";

pub(super) struct Client {
    pub(super) connection: SessionUnderTest,
    /// Whether the connection has no other lock than the one that it is known to have.
    pub(super) is_clean: bool,
    pub(super) network: Arc<Network>,
    pub(super) checker: Arc<Checker>,
    pub(super) name: usize,
    /// The number of its proxy.
    pub(super) proxy: usize,
    /// The longest time that a message takes, with rare exceptions.
    pub(super) delay: Duration,
    /// Whether there are clients of lock libraries.
    pub(super) adopts: bool,
    /// The modes of the adopt rule, where it is bridged.
    pub(super) modes: Option<Arc<Modes>>,
    /// Whether modes change.
    pub(super) steps: bool,
    /// Whether a session lock must not be lost without a reason.
    pub(super) judges: bool,
}

/// A lock that a client has.
pub(super) struct Hold<'a> {
    pub(super) key: &'static str,
    pub(super) token: &'a str,
    /// The holder's own name, if other clients use the token too.
    pub(super) name: &'a str,
    pub(super) fence: u64,
    /// Set for a session lock.
    pub(super) lost: Option<Arc<LossNote>>,
    /// The number of writes sent under the lock.
    pub(super) writes: usize,
}

/// A note about a session lock: it records the loss when the holder is told, and whether the loss had a reason.
pub(super) struct LossNote {
    checker: Arc<Checker>,
    network: Arc<Network>,
    proxy: usize,
    delay: Duration,
    adopts: bool,
    judges: bool,
    pub(super) key: &'static str,
    /// The grant's name on the lock nodes, if its proxy still knows it.
    claim: Option<Claim>,
    name: String,
    /// The lock's TTL, and since when it has that.
    ttl: Mutex<(Duration, Instant)>,
    /// Whether the holder no longer believes that it holds the lock.
    is_over: AtomicBool,
}

impl LossNote {
    /// Notes that the lock has this TTL from now on.
    fn has(&self, ttl: Duration) {
        *self.ttl.lock().unwrap() = (ttl, Instant::now());
    }

    /// Notes that this TTL is asked for: a shorter one counts whatever comes of it.
    fn asks(&self, ttl: Duration) {
        if ttl < self.ttl.lock().unwrap().0 {
            self.has(ttl);
        }
    }
}

impl LossNote {
    /// Notes that the holder is told of the loss or, with `is_closed`, that its connection has
    /// ended.
    pub(super) fn told(&self, is_closed: bool) {
        if self.is_over.swap(true, Ordering::Relaxed) {
            return;
        }
        if is_closed {
            return self.checker.ended(self.key, &self.name, "closed");
        }
        self.checker.ended(self.key, &self.name, "lost");
        // Under bridge the data node may be the reason.
        let Some(claim) = self.claim.filter(|_| self.judges) else { return };
        let (ttl, since) = *self.ttl.lock().unwrap();
        let (proxy, key, delay) = (self.proxy, full(self.key), self.delay);
        let (valid, adopts) = (1.0 - DRIFT_FACTOR, self.adopts);
        let loss = Loss { proxy, key, claim, ttl, since, valid, delay, adopts };
        self.checker.lost(self.key, &self.network.reason_of(&loss));
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }
}

pub(super) fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

impl Client {
    /// Makes a client of session locks and leases, without lock libraries and bridge.
    pub(super) fn new(
        connection: SessionUnderTest,
        network: Arc<Network>,
        checker: Arc<Checker>,
        name: usize,
        proxy: usize,
        delay: Duration,
    ) -> Client {
        let (is_clean, adopts, modes, steps, judges) = (true, false, None, false, false);
        Client {
            connection,
            is_clean,
            network,
            checker,
            name,
            proxy,
            delay,
            adopts,
            modes,
            steps,
            judges,
        }
    }

    pub(super) fn below(&self, limit: u64) -> u64 {
        self.network.below(limit)
    }

    /// Returns true once in `times` calls on average.
    pub(super) fn one_in(&self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// Returns one of the locks.
    pub(super) fn any_lock(&self) -> &'static str {
        let [a, b] = KEYS;
        // A DEL that is forwarded may be late for a step, and end a LOCK client's key.
        let deletes = self.adopts && !self.steps;
        let locks = if deletes { &[a, b, a, b, DELETED][..] } else { &KEYS };
        locks[self.below(locks.len() as u64) as usize]
    }

    /// Waits until clients of this kind may lock.
    pub(super) async fn turn(&mut self, kind: LockerKind) -> Option<LockPermit> {
        match &self.modes {
            Some(modes) => Some(modes.turn(kind).await),
            None => None,
        }
    }

    pub(super) async fn run(mut self, rounds: usize) {
        for round in 0..rounds {
            self.round(round).await;
        }
        self.connection.close();
    }

    /// Goes on until `is_over`.
    pub(super) async fn run_until(mut self, is_over: Arc<AtomicBool>) {
        for round in 0.. {
            if is_over.load(Ordering::Relaxed) {
                break;
            }
            self.round(round).await;
        }
        self.connection.close();
    }

    async fn round(&mut self, round: usize) {
        let _turn = self.turn(LockerKind::Lock).await;
        let name = format!("c{}.{round}", self.name);
        // Some clients share a token, like clients that use their host's name.
        let token = if self.one_in(3) { "host" } else { &name };
        let key = self.any_lock();
        self.one(key, token, &name).await;
        self.connection.tell_nobody();
        let pause = ms(self.below(100));
        self.connection.listen(pause).await;
    }

    /// Keeps a session lock until `is_over`, and takes it again once it is lost.
    pub(super) async fn keep(mut self, key: &'static str, is_over: Arc<AtomicBool>) {
        let mut round = 0;
        while !is_over.load(Ordering::Relaxed) {
            round += 1;
            let name = format!("keeper.{}.{round}", self.name);
            self.connection.open().await;
            let words = ["LOCK", key, &name, "WAIT", "1000"];
            let Some(hold) = self.granted(key, &name, &name, &words, ms(60_000)).await else {
                sleep(ms(50)).await;
                continue;
            };
            let lost = hold.lost.unwrap();
            while !lost.is_over() && !is_over.load(Ordering::Relaxed) {
                self.connection.listen(ms(50)).await;
            }
            lost.told(true);
            if self.one_in(2) {
                self.connection.close();
            } else {
                let _ = self.connection.ask(&["UNLOCK", key, &name]).await;
            }
        }
        self.connection.close();
    }

    /// Sends a LOCK and notes its outcome. The holder of a session lock will be told of its loss.
    async fn granted<'a>(
        &mut self,
        key: &'static str,
        token: &'a str,
        name: &'a str,
        words: &[&str],
        patience: Duration,
    ) -> Option<Hold<'a>> {
        let is_session_lock = !words.contains(&"PX");
        let said = self.connection.pipeline(&[words], patience).await;
        let grant = match said.as_deref() {
            Ok([Reply::Array(Some(grant))]) => grant,
            Ok([Reply::Array(None)]) => {
                self.checker.refused(key, name, "held");
                return None;
            }
            Ok([reply]) => {
                self.checker.refused(key, name, reply.text());
                return None;
            }
            _ => {
                self.checker.refused(key, name, "hung up");
                return None;
            }
        };
        let [_, fence, validity] = &grant[..] else { panic!("{grant:?}") };
        let (fence, validity) = (fence.number().unwrap(), ms(validity.number().unwrap()));
        let left = (!is_session_lock).then_some(validity);
        self.checker.granted(key, name, fence, left);
        let lost = is_session_lock.then(|| self.lost(key, token, name, fence));
        if let Some(lost) = lost.clone() {
            self.connection.tell(Box::new(move |what| {
                if what.is_none_or(|key| key == lost.key) {
                    lost.told(what.is_none());
                }
            }));
        }
        Some(Hold { key, token, name, fence, lost, writes: 0 })
    }

    /// Returns the claim and the fence by which the token has the lock, as its proxy knows them.
    pub(super) fn known(&self, key: &str, token: &str) -> Option<(Claim, u64)> {
        self.connection.engine().claim_of(&Key::from(&full(key)), &Token::from(token))
    }

    /// Makes the note about a session lock that was just granted.
    pub(super) fn lost(
        &self,
        key: &'static str,
        token: &str,
        name: &str,
        fence: u64,
    ) -> Arc<LossNote> {
        let known = self.known(key, token);
        Arc::new(LossNote {
            checker: self.checker.clone(),
            network: self.network.clone(),
            proxy: self.proxy,
            delay: self.delay,
            adopts: self.adopts,
            judges: self.judges && self.modes.is_none(),
            key,
            claim: known.filter(|(_, known)| *known == fence).map(|(claim, _)| claim),
            name: name.to_owned(),
            ttl: Mutex::new((ms(600), Instant::now())),
            is_over: AtomicBool::new(false),
        })
    }

    async fn one(&mut self, key: &'static str, token: &str, name: &str) {
        let is_session_lock = self.one_in(3);
        let longest = MAX_TTL.as_millis() as u64;
        let ttl = if is_session_lock { 600 } else { 50 + self.below(longest - 49) };
        let (px, wait) = (ttl.to_string(), self.below(3000).to_string());
        let is_clean = self.is_clean || !self.connection.is_open();
        self.is_clean = is_clean;
        self.connection.open().await;
        let mut words = vec!["LOCK", key, token];
        if !is_session_lock {
            words.extend(["PX", &px]);
        }
        if !self.one_in(3) {
            words.extend(["WAIT", &wait]);
        }
        // Some clients hang up in the middle.
        let patience = if self.one_in(6) { ms(self.below(300)) } else { ms(60_000) };
        let Some(mut hold) = self.granted(key, token, name, &words, patience).await else { return };
        let longest = if is_session_lock { ms(2 * ttl) } else { ms(ttl) };
        self.hold(&mut hold, longest).await;
        if !is_session_lock && self.connection.is_open() && self.one_in(10) {
            // Some clients forget to unlock, and leave it to the TTL. The connection is closed:
            // over it, the next LOCK with this token would find the lock still its own.
            self.connection.close();
            return;
        }
        match &hold.lost {
            Some(lost) => lost.told(true),
            None => self.checker.ended(key, name, "unlocked"),
        }
        let mut unlock = Vec::new();
        crate::resp::encode::command(&mut unlock, &[b"UNLOCK", key.as_bytes()]);
        if self.one_in(5) {
            // The client does not wait for the answer.
            let _ = self.connection.send(&unlock).await;
            self.connection.close();
        } else if hold.lost.is_some() && self.one_in(2) {
            self.connection.close();
        } else {
            let commands: [&[&str]; 2] = [&["ECHO", "before"], &["UNLOCK", key]];
            let said = self.connection.pipeline(&commands, ms(60_000)).await.unwrap_or_default();
            if let [before, _] = &said[..] {
                let text = before.text();
                let is_told = text == "before" || text.starts_with("-LOCKLOST");
                self.checker.must(is_told, &format!("ECHO is answered {before:?}"));
            }
            self.is_clean = is_clean && said.get(1).is_some_and(|reply| reply.number().is_some());
        }
    }

    /// Holds a lock for up to `longest`, renews it now and then, and writes under it, even after
    /// its end: no client looks at a clock.
    pub(super) async fn hold(&mut self, hold: &mut Hold<'_>, longest: Duration) {
        let (key, token, name) = (hold.key, hold.token, hold.name);
        for _ in 0..self.below(4) {
            let pause = ms(self.below(longest.as_millis() as u64 / 2));
            self.connection.listen(pause).await;
            if !self.update(hold).await {
                return;
            }
            if !self.one_in(2) {
                continue;
            }
            let ttl = 50 + self.below(MAX_TTL.as_millis() as u64 - 49);
            let (px, ttl) = (ttl.to_string(), ms(ttl));
            if hold.lost.is_none() && self.one_in(3) {
                // The client repeats its LOCK, as after a time-out.
                let words = ["LOCK", key, token, "PX", &px];
                let before = self.known(key, token);
                match self.granted(key, token, name, &words, ms(60_000)).await {
                    Some(again) => hold.fence = again.fence,
                    None if self.connection.is_open() => {
                        // If it was refused after the nodes had granted it, the lock has a larger fence all the same.
                        let now = self.known(key, token).filter(|(claim, _)| {
                            before.is_some_and(|(before, _)| before == *claim)
                        });
                        hold.fence = now.map_or(hold.fence, |(_, fence)| fence);
                    }
                    None => return,
                }
                continue;
            }
            let least = validity(ttl, Duration::ZERO, DRIFT_FACTOR).unwrap_or_default();
            self.checker.asked(key, name, least);
            if let Some(lost) = &hold.lost {
                lost.asks(ttl);
            }
            let reply = self.connection.ask(&["RENEW", key, "PX", &px]).await;
            match reply.map(|reply| reply.number()) {
                Ok(Some(0)) => {
                    if let Some(lost) = &hold.lost {
                        lost.told(true);
                    }
                    self.checker.ended(key, name, "not renewed");
                }
                Ok(Some(left)) => {
                    match &hold.lost {
                        Some(lost) => lost.has(ttl),
                        None => self.checker.renewed(key, name, ms(left)),
                    }
                    // RENEW raises the fence of a lock that a LOCK had raised before it was refused.
                    let known = self.known(key, token).map(|(_, fence)| fence);
                    hold.fence = hold.fence.max(known.unwrap_or_default());
                }
                Ok(None) => {}
                Err(_) => return,
            }
        }
        let pause = ms(self.below(longest.as_millis() as u64));
        self.connection.listen(pause).await;
        if self.one_in(2) {
            self.update(hold).await;
        }
    }

    /// Reads, pauses, and writes a value that follows from what it read: by one write, by two at
    /// once, in a transaction, in another database. Returns false if the connection has ended, or
    /// the client knows that it may not write.
    pub(super) async fn update(&mut self, hold: &mut Hold<'_>) -> bool {
        let (key, fence, on) = (hold.key, hold.fence, data(hold.key));
        let acknowledged = self.checker.reads(key);
        let Ok(found) = self.connection.ask(&["GET", &on]).await else { return false };
        let Reply::Bulk(found) = found else {
            // A lost lock is told in place of the reply.
            self.checker.must(found.text().starts_with("-LOCKLOST"), &format!("GET: {found:?}"));
            return true;
        };
        self.checker.read(key, found.as_deref(), acknowledged);
        if self.one_in(3) {
            let pause = ms(self.below(500));
            self.connection.listen(pause).await;
        }
        let mut next = || {
            hold.writes += 1;
            format!("{}.{}", hold.name, hold.writes)
        };
        let (first, second) = (next(), next());
        let one = value(&first, fence, found.as_deref().map(name));
        let two = value(&second, fence, Some(&first));
        let other = data(KEYS[usize::from(key == KEYS[0])]);
        let stray = value(&format!("{second}.stray"), fence, None);
        let (set, then) = (["SET", &on, &one], ["SET", &on, &two]);
        let stray_set = ["SET", &other, &stray];
        let way = if self.is_clean { self.below(8) } else { self.below(3) };
        let commands: Vec<&[&str]> = match way {
            0 => vec![&set, &then],
            1 => vec![&["MULTI"], &set, &["EXEC"]],
            2 => vec![&["SELECT", "1"], &set, &["SELECT", "0"]],
            // A write under the lock of the other key, which the client does not hold.
            3 => vec![&set, &stray_set, &["ECHO", "still here"]],
            _ => vec![&set],
        };
        if self.one_in(4) {
            // The client's writes, or the proxy's questions for it, arrive late: only the data node
            // stands between two holders.
            let (from, time) = (ms(self.below(30)), ms(self.below(1200)));
            self.connection.delay(from, time);
        }
        let patience = if self.one_in(40) { ms(self.below(40)) } else { ms(60_000) };
        let said = if way > 5 {
            // A line of text, which no guard's script may take.
            let line = format!("SET {on} \"{one}\"\r\n");
            self.connection.line(&line, patience).await
        } else {
            self.connection.pipeline(&commands, patience).await
        };
        let said = said.unwrap_or_default();
        let at = |index: usize| told(said.get(index));
        let done = match way {
            1 => at(2),
            2 => at(1),
            _ => at(0),
        };
        self.checker.wrote(key, &first, fence, done);
        if way == 0 {
            self.checker.wrote(key, &second, fence, at(1));
            self.checker.must(
                !(done == WriteReply::Fenced && at(1) == WriteReply::Done),
                &format!("{second} goes on behind {first}, which was fenced"),
            );
        }
        if way == 3 {
            self.checker.must(at(1) != WriteReply::Done, &format!("{stray} without its lock"));
            let last = said.get(2).map(Reply::text);
            let is_told =
                last.is_none_or(|text| text == "still here" || text.starts_with("-LOCKLOST"));
            self.checker.must(is_told, &format!("ECHO is answered {last:?}"));
        }
        !matches!(done, WriteReply::Fenced | WriteReply::Nothing)
    }
}

/// Returns the lock's key on the nodes.
pub(super) fn full(key: &str) -> Vec<u8> {
    format!("lock:{key}").into_bytes()
}
