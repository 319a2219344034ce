//! LOCK, UNLOCK and RENEW on the engine, and what the client is told.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker, ready},
    time::{Duration, Instant},
};

use super::Session;
use crate::{
    command::{BadRequest, Request},
    key::{Key, KeyMap, Token},
    lock::{Acquire, Alarm, Grant, Keep, Losses, NoQuorum, NotGranted, Release, Renew, Waiter},
    metrics::{Operation, Outcome},
    resp::encode,
};

/// Tokens remembered on one connection. Those whose TTL has run out make room
/// first; a connection that holds more at once must name its tokens itself.
const MAX_TOKENS: usize = 10_000;

/// A token that this connection was granted, for UNLOCK and RENEW without one.
#[derive(Debug)]
struct Held {
    token: Token,
    ttl: Duration,
    until: Instant,
    fence: u64,
    /// The data node has been told the fence.
    raised: bool,
    /// A session lock: it is released when this goes.
    keep: Option<Keep>,
}

/// The tokens that this connection was granted, by key.
#[derive(Debug, Default)]
pub struct Tokens {
    held: KeyMap<Held>,
}

/// How long a grant is still valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Left {
    /// As long as the connection: it is a session lock.
    Kept,
    /// So long.
    For(Duration),
}

impl Tokens {
    fn insert(&mut self, key: Key, held: Held, now: Instant) {
        if self.has_room(&key, now) {
            self.held.insert(key, held);
        }
    }

    /// Whether one more can be remembered, or this one anew.
    fn has_room(&mut self, key: &Key, now: Instant) -> bool {
        if self.held.len() >= MAX_TOKENS && !self.held.contains_key(key) {
            self.held.retain(|_, held| held.keep.is_some() || held.until > now);
        }
        self.held.len() < MAX_TOKENS || self.held.contains_key(key)
    }

    /// The fence under which this connection holds a lock, and whether the data node
    /// has been told of it. None: it does not hold it.
    pub(super) fn claim(&self, key: &Key, now: Instant) -> Option<(u64, bool)> {
        let held = self.held.get(key)?;
        let holds = held.keep.is_some() || now < held.until;
        holds.then_some((held.fence, held.raised))
    }

    /// What is left of the grant with this fence; none: nothing.
    pub(super) fn left(&self, key: &Key, fence: u64, now: Instant) -> Option<Left> {
        let held = self.held.get(key).filter(|held| held.fence == fence)?;
        if held.keep.is_some() {
            return Some(Left::Kept);
        }
        (held.until > now).then(|| Left::For(held.until - now))
    }

    /// The data node has been told this fence.
    pub(super) fn raised(&mut self, key: &Key, fence: u64) {
        if let Some(held) = self.held.get_mut(key).filter(|held| held.fence == fence) {
            held.raised = true;
        }
    }

    /// The connection does not hold the lock any more that was granted with this fence.
    pub(super) fn forget(&mut self, key: &Key, fence: u64) {
        if self.held.get(key).is_some_and(|held| held.fence == fence) {
            self.held.remove(key);
        }
    }

    /// Of all locks that a token is remembered for.
    pub(super) fn keys(&self) -> impl Iterator<Item = &Key> {
        self.held.keys()
    }

    /// Forgets the token of `key` if it is this one.
    pub(super) fn remove(&mut self, key: &Key, token: &Token) {
        if self.held.get(key).is_some_and(|held| held.token == *token) {
            self.held.remove(key);
        }
    }
}

/// A request on its way through the nodes.
pub struct Running {
    key: Key,
    token: Token,
    ttl: Duration,
    /// LOCK without a TTL.
    is_session_lock: bool,
    since: Instant,
    asking: Asking,
    operation: Operation,
}

enum Asking {
    Lock(Acquire),
    Wait(Box<Waiter>),
    Unlock(Release),
    Renew(Renew),
    /// The connection holds no token for that key, so there is nobody to ask.
    Nobody,
}

/// A lock's key, token and fence.
pub(super) type Granted = (Key, Token, u64);

/// What the nodes said.
pub enum Told {
    /// To a LOCK.
    Lock(Result<Grant, NotGranted>),
    /// To an UNLOCK.
    Unlock(Result<bool, NoQuorum>),
    /// To a RENEW.
    Renew(Result<Option<Duration>, NoQuorum>),
    /// They were not asked.
    Nothing,
}

impl fmt::Debug for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Running({:?})", self.operation)
    }
}

impl Asking {
    /// What it times itself with; one that waits in line has more to time.
    fn alarm(&mut self) -> Option<&mut Alarm> {
        match self {
            Asking::Lock(asking) => Some(asking.alarm()),
            Asking::Unlock(asking) => Some(asking.alarm()),
            Asking::Renew(asking) => Some(asking.alarm()),
            Asking::Wait(_) | Asking::Nobody => None,
        }
    }
}

impl Running {
    /// Whether it is a LOCK that waits in line.
    pub fn waits_in_line(&self) -> bool {
        matches!(self.asking, Asking::Wait(_))
    }

    /// The lock that was granted with this answer.
    pub(super) fn granted(&self, told: &Told) -> Option<Granted> {
        match told {
            Told::Lock(Ok(grant)) => Some((self.key.clone(), self.token.clone(), grant.fence)),
            _ => None,
        }
    }

    /// Gives it the connection's alarm, or gives that back.
    fn swap_alarms(&mut self, alarm: &mut Alarm) {
        if let Some(own) = self.asking.alarm() {
            std::mem::swap(own, alarm);
        }
    }

    /// Ready once a quorum has decided, or cannot.
    pub fn poll_answer(&mut self, cx: &mut Context<'_>) -> Poll<Told> {
        Poll::Ready(match &mut self.asking {
            Asking::Lock(asking) => Told::Lock(ready!(Pin::new(asking).poll(cx))),
            Asking::Wait(waiter) => Told::Lock(ready!(Pin::new(waiter).poll(cx))),
            Asking::Unlock(asking) => Told::Unlock(ready!(Pin::new(asking).poll(cx))),
            Asking::Renew(asking) => Told::Renew(ready!(Pin::new(asking).poll(cx))),
            Asking::Nobody => Told::Nothing,
        })
    }
}

/// A token nobody can guess: 128 random bits as 32 hexadecimal digits.
fn new_token() -> Token {
    let bytes = rand::random::<u128>().to_le_bytes();
    let mut token = [0; 32];
    for (at, byte) in bytes.iter().enumerate() {
        let digit = |value: u8| b"0123456789abcdef"[usize::from(value)];
        (token[2 * at], token[2 * at + 1]) = (digit(byte >> 4), digit(byte & 15));
    }
    Token::from(&token)
}

impl Session {
    /// Asks the nodes. `since`: now.
    ///
    /// # Errors
    /// If the connection has too many locks to keep one more.
    pub(super) fn start_running(
        &mut self,
        key: &Key,
        request: &Request,
        since: Instant,
    ) -> Result<Running, BadRequest> {
        let engine = &self.shared.engine;
        let nobody = || (Token::from(""), Asking::Nobody);
        let (operation, token, ttl, is_session_lock, asking) = match request {
            Request::Lock { token, ttl, wait } => {
                let is_session_lock = ttl.is_none();
                if is_session_lock && !self.tokens.has_room(key, since) {
                    return Err(BadRequest::TooManySessionLocks(MAX_TOKENS));
                }
                let token = token.clone().unwrap_or_else(new_token);
                let ttl = ttl.unwrap_or(self.shared.locks.default_ttl);
                let (key, wanted) = (key.clone(), token.clone());
                let asking = match wait {
                    None => Asking::Lock(engine.acquire(key, wanted, ttl)),
                    Some(wait) => Asking::Wait(Box::new(engine.wait(key, wanted, ttl, *wait))),
                };
                (Operation::Lock, token, ttl, is_session_lock, asking)
            }
            Request::Unlock { token } => {
                let held = self.tokens.held.get(key);
                let token = token.as_ref().or(held.map(|held| &held.token)).cloned();
                let (token, asking) = match token {
                    Some(token) => {
                        let asking = Asking::Unlock(engine.release(key.clone(), token.clone()));
                        (token, asking)
                    }
                    None => nobody(),
                };
                (Operation::Unlock, token, Duration::ZERO, false, asking)
            }
            Request::Renew { token, ttl } => {
                let held = self.tokens.held.get(key);
                let token = token.as_ref().or(held.map(|held| &held.token)).cloned();
                let before = held.filter(|h| Some(&h.token) == token.as_ref()).map(|h| h.ttl);
                let ttl = ttl.or(before).unwrap_or(self.shared.locks.default_ttl);
                let (token, asking) = match token {
                    Some(token) => {
                        let asking = engine.renew(key.clone(), token.clone(), ttl);
                        (token, Asking::Renew(asking))
                    }
                    None => nobody(),
                };
                (Operation::Renew, token, ttl, false, asking)
            }
        };
        let key = key.clone();
        let mut running = Running { key, token, ttl, is_session_lock, since, asking, operation };
        running.swap_alarms(&mut self.alarm);
        Ok(running)
    }

    /// Notes what the nodes said and words the reply.
    pub(super) fn finish_running(
        &mut self,
        running: &mut Running,
        told: Told,
        waker: &Waker,
    ) -> Vec<u8> {
        running.swap_alarms(&mut self.alarm);
        let Running { key, token, ttl, is_session_lock, since, operation, .. } = running;
        let ttl = *ttl;
        let mut out = Vec::with_capacity(96);
        let now = Instant::now();
        let outcome = match told {
            Told::Lock(Ok(grant)) => {
                encode_grant(&mut out, token, grant.fence, grant.validity);
                let keep = is_session_lock.then(|| {
                    let losses =
                        self.losses.get_or_insert_with(|| Arc::new(Losses::new(waker.clone())));
                    self.shared.engine.keep(key, token, ttl, grant.validity, losses)
                });
                // Held for as long as the client was told, not as the nodes keep it.
                let until = now + grant.validity;
                let (token, fence) = (token.clone(), grant.fence);
                let held = Held { token, ttl, until, fence, raised: false, keep };
                self.tokens.insert(key.clone(), held, now);
                Outcome::Ok
            }
            Told::Lock(Err(NotGranted::QueueFull { limit })) => {
                let error = format!("QUEUEFULL {limit} clients wait for this lock already");
                encode::error(&mut out, &error);
                Outcome::QueueFull
            }
            Told::Lock(Err(NotGranted::Held { .. })) => {
                encode::null_array(&mut out, self.state.resp3);
                Outcome::NotHeld
            }
            Told::Unlock(Ok(released)) => {
                self.tokens.remove(key, token);
                encode::integer(&mut out, i64::from(released));
                if released { Outcome::Ok } else { Outcome::NotHeld }
            }
            Told::Renew(Ok(Some(validity))) => {
                encode::integer(&mut out, millis(validity));
                if let Some(held) = self.tokens.held.get_mut(key)
                    && held.token == *token
                {
                    (held.ttl, held.until) = (ttl, now + validity);
                }
                Outcome::Ok
            }
            Told::Renew(Ok(None)) => {
                self.tokens.remove(key, token);
                encode::integer(&mut out, 0);
                Outcome::NotHeld
            }
            Told::Nothing => {
                encode::integer(&mut out, 0);
                Outcome::NotHeld
            }
            Told::Lock(Err(NotGranted::NoQuorum(error)))
            | Told::Unlock(Err(error))
            | Told::Renew(Err(error)) => {
                encode::error(&mut out, &format!("NOQUORUM {error}"));
                Outcome::NoQuorum
            }
        };
        self.shared.metrics.lock_request(*operation, outcome, now - *since);
        out
    }
}

/// The reply to a LOCK that was granted.
pub(super) fn encode_grant(out: &mut Vec<u8>, token: &Token, fence: u64, validity: Duration) {
    encode::array(out, 3);
    encode::bulk(out, token);
    encode::integer(out, i64::try_from(fence).unwrap_or(i64::MAX));
    encode::integer(out, millis(validity));
}

/// Whole milliseconds, rounded down: a validity must not be overstated.
fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}
