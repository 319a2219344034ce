//! LOCK, UNLOCK and RENEW on the engine, and what the client is told.

use std::{
    collections::HashMap,
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
    lock::{Acquire, Grant, Keep, Losses, NoQuorum, NotGranted, Release, Renew, Waiter},
    metrics::{Operation, Outcome},
    resp::encode,
};

/// Tokens remembered on one connection. Those whose TTL has run out make room
/// first; a connection that holds more at once must name its tokens itself.
const MAX_TOKENS: usize = 10_000;

/// A token that this connection was granted, for UNLOCK and RENEW without one.
#[derive(Debug)]
struct Held {
    token: Vec<u8>,
    ttl: Duration,
    until: Instant,
    /// A session lock: it is released when this goes.
    keep: Option<Keep>,
}

/// The tokens that this connection was granted, by key.
#[derive(Debug, Default)]
pub struct Tokens {
    held: HashMap<Vec<u8>, Held>,
}

impl Tokens {
    fn insert(&mut self, key: Vec<u8>, held: Held, now: Instant) {
        if self.has_room(&key, now) {
            self.held.insert(key, held);
        }
    }

    /// Whether one more can be remembered, or this one anew.
    fn has_room(&mut self, key: &[u8], now: Instant) -> bool {
        if self.held.len() >= MAX_TOKENS && !self.held.contains_key(key) {
            self.held.retain(|_, held| held.keep.is_some() || held.until > now);
        }
        self.held.len() < MAX_TOKENS || self.held.contains_key(key)
    }

    /// Forgets the token of `key` if it is this one.
    pub(super) fn remove(&mut self, key: &[u8], token: &[u8]) {
        if self.held.get(key).is_some_and(|held| held.token == token) {
            self.held.remove(key);
        }
    }
}

/// A request on its way through the nodes.
pub struct Running {
    key: Vec<u8>,
    token: Vec<u8>,
    ttl: Duration,
    /// LOCK without a TTL.
    is_session_lock: bool,
    since: Instant,
    /// None: the connection holds no token for that key, so there is nobody to ask.
    asking: Option<Asking>,
    operation: Operation,
}

enum Asking {
    Lock(Acquire),
    Wait(Box<Waiter>),
    Unlock(Release),
    Renew(Renew),
}

enum Told {
    Lock(Result<Grant, NotGranted>),
    Unlock(Result<bool, NoQuorum>),
    Renew(Result<Option<Duration>, NoQuorum>),
    Nothing,
}

/// A request and what the nodes said.
pub struct Finished {
    key: Vec<u8>,
    token: Vec<u8>,
    ttl: Duration,
    is_session_lock: bool,
    since: Instant,
    operation: Operation,
    told: Told,
}

impl fmt::Debug for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Running({:?})", self.operation)
    }
}

impl Running {
    /// Whether it is a LOCK that waits in line.
    pub fn waits_in_line(&self) -> bool {
        matches!(self.asking, Some(Asking::Wait(_)))
    }

    /// Ready once a quorum has decided, or cannot.
    pub fn poll_answer(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Finished> {
        let this = self.get_mut();
        let told = match &mut this.asking {
            Some(Asking::Lock(asking)) => Told::Lock(ready!(Pin::new(asking).poll(cx))),
            Some(Asking::Wait(waiter)) => Told::Lock(ready!(Pin::new(waiter).poll(cx))),
            Some(Asking::Unlock(asking)) => Told::Unlock(ready!(Pin::new(asking).poll(cx))),
            Some(Asking::Renew(asking)) => Told::Renew(ready!(Pin::new(asking).poll(cx))),
            None => Told::Nothing,
        };
        Poll::Ready(Finished {
            key: std::mem::take(&mut this.key),
            token: std::mem::take(&mut this.token),
            ttl: this.ttl,
            is_session_lock: this.is_session_lock,
            since: this.since,
            operation: this.operation,
            told,
        })
    }
}

/// A token nobody can guess: 128 random bits as 32 hexadecimal digits.
fn new_token() -> Vec<u8> {
    let bytes: [u8; 16] = rand::random();
    let digit = |value: u8| b"0123456789abcdef"[usize::from(value)];
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

impl Session {
    /// Asks the nodes.
    ///
    /// # Errors
    /// If the connection has too many locks to keep one more.
    pub(super) fn start_running(&mut self, request: Request) -> Result<Running, BadRequest> {
        let engine = &self.shared.engine;
        let mut running = Running {
            key: Vec::new(),
            token: Vec::new(),
            ttl: Duration::ZERO,
            is_session_lock: false,
            since: Instant::now(),
            asking: None,
            operation: Operation::Lock,
        };
        Ok(match request {
            Request::Lock { key, token, ttl, wait } => {
                let is_session_lock = ttl.is_none();
                if is_session_lock && !self.tokens.has_room(&key, running.since) {
                    return Err(BadRequest::TooManySessionLocks(MAX_TOKENS));
                }
                let token = token.unwrap_or_else(new_token);
                let ttl = ttl.unwrap_or(self.shared.locks.default_ttl);
                running.asking = Some(match wait {
                    None => Asking::Lock(engine.acquire(&key, &token, ttl)),
                    Some(wait) => Asking::Wait(Box::new(engine.wait(&key, &token, ttl, wait))),
                });
                Running { key, token, ttl, is_session_lock, ..running }
            }
            Request::Unlock { key, token } => {
                let token = token.or_else(|| self.tokens.held.get(&key).map(|h| h.token.clone()));
                running.asking =
                    token.as_ref().map(|token| Asking::Unlock(engine.release(&key, token)));
                let token = token.unwrap_or_default();
                Running { key, token, operation: Operation::Unlock, ..running }
            }
            Request::Renew { key, token, ttl } => {
                let held = self.tokens.held.get(&key);
                let token = token.or_else(|| held.map(|held| held.token.clone()));
                let before = held.filter(|h| Some(&h.token) == token.as_ref()).map(|h| h.ttl);
                let ttl = ttl.or(before).unwrap_or(self.shared.locks.default_ttl);
                running.asking =
                    token.as_ref().map(|token| Asking::Renew(engine.renew(&key, token, ttl)));
                let token = token.unwrap_or_default();
                Running { key, token, ttl, operation: Operation::Renew, ..running }
            }
        })
    }

    /// Notes what the nodes said and words the reply.
    pub(super) fn finish_running(&mut self, finished: Finished, waker: &Waker) -> Vec<u8> {
        let Finished { key, token, ttl, is_session_lock, since, operation, told } = finished;
        let mut out = Vec::with_capacity(96);
        let now = Instant::now();
        let outcome = match told {
            Told::Lock(Ok(grant)) => {
                encode::array(&mut out, 3);
                encode::bulk(&mut out, &token);
                encode::integer(&mut out, i64::try_from(grant.fence).unwrap_or(i64::MAX));
                encode::integer(&mut out, millis(grant.validity));
                let keep = is_session_lock.then(|| {
                    let losses =
                        self.losses.get_or_insert_with(|| Arc::new(Losses::new(waker.clone())));
                    self.shared.engine.keep(&key, &token, ttl, grant.validity, losses)
                });
                self.tokens.insert(key, Held { token, ttl, until: now + ttl, keep }, now);
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
                self.tokens.remove(&key, &token);
                encode::integer(&mut out, i64::from(released));
                if released { Outcome::Ok } else { Outcome::NotHeld }
            }
            Told::Renew(Ok(Some(validity))) => {
                encode::integer(&mut out, millis(validity));
                if let Some(held) = self.tokens.held.get_mut(&key)
                    && held.token == token
                {
                    (held.ttl, held.until) = (ttl, now + ttl);
                }
                Outcome::Ok
            }
            Told::Renew(Ok(None)) => {
                self.tokens.remove(&key, &token);
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
        self.shared.metrics.lock_request(operation, outcome, since.elapsed());
        out
    }
}

/// Whole milliseconds, rounded down: a validity must not be overstated.
fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}
