//! LOCK, UNLOCK, RENEW, LOCK.ATTACH and LOCK.DETACH on the engine, and what the client is told.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker, ready},
    time::Duration,
};

use super::Session;
use crate::{
    clock::Instant,
    command::{BadRequest, Request},
    key::{Key, KeyMap, Token},
    lock::{
        Acquire, Alarm, Attach, Claim, Grant, Keep, Losses, NoQuorum, NotAttached, NotGranted,
        Release, Renew, Renewed, Waiter,
    },
    metrics::{Operation, Outcome},
    resp::encode,
};

/// Tokens remembered on one connection. Those whose TTL has run out make room
/// first; a connection that holds more at once must name its tokens itself.
const MAX_TOKENS: usize = 10_000;

/// Told of a lock whose nodes have forgotten its fence.
pub(super) const FENCE_FORGOTTEN: &str =
    "ERR too few lock nodes know this lock's fence (locks.fence_ttl), LOCK it again";

/// A token that this connection was granted or attached to, for UNLOCK and RENEW without one.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) token: Token,
    /// The grant's name on the nodes, where this connection was told it.
    pub(super) claim: Option<Claim>,
    pub(super) ttl: Duration,
    pub(super) until: Instant,
    pub(super) fence: u64,
    /// The data node has been told the fence.
    pub(super) raised: bool,
    /// A session lock: it is released when this goes.
    pub(super) keep: Option<Keep>,
    /// By LOCK.ATTACH: it was granted elsewhere.
    pub(super) attached: bool,
}

/// The tokens that this connection was granted or attached to, by key.
#[derive(Debug, Default)]
pub struct Tokens {
    pub(super) held: KeyMap<Held>,
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
    pub(super) fn insert(&mut self, key: Key, held: Held, now: Instant) {
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

    /// The token of the grant with this fence, and what is left of it; none: nothing.
    pub(super) fn left(&self, key: &Key, fence: u64, now: Instant) -> Option<(&Token, Left)> {
        let held = self.held.get(key).filter(|held| held.fence == fence)?;
        if held.keep.is_some() {
            return Some((&held.token, Left::Kept));
        }
        (held.until > now).then(|| (&held.token, Left::For(held.until - now)))
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

    /// Until when all session locks are surely held; those that are not any more are lost.
    #[cold]
    pub(super) fn valid_until(&self) -> Option<Instant> {
        let now = Instant::now();
        self.held.values().filter_map(|held| held.keep.as_ref()?.valid_until(now)).min()
    }

    /// The claim by which this connection was granted a lock with this token.
    fn claim_of(&self, key: &Key, token: &Token) -> Option<Claim> {
        self.held.get(key).filter(|held| held.token == *token)?.claim
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
    Attach(Attach),
    /// Nobody need be asked, as the connection holds no token for that key; or, for
    /// LOCK.DETACH, one that it has now forgotten.
    Nobody {
        detached: bool,
    },
}

/// A lock that this connection has, from now on.
pub(super) struct Granted {
    pub(super) key: Key,
    pub(super) token: Token,
    pub(super) claim: Option<Claim>,
    pub(super) fence: u64,
    /// By LOCK.ATTACH.
    pub(super) attached: bool,
}

/// What the nodes said.
pub enum Told {
    /// To a LOCK.
    Lock(Result<Grant, NotGranted>),
    /// To an UNLOCK.
    Unlock(Result<bool, NoQuorum>),
    /// To a RENEW.
    Renew(Result<Option<Renewed>, NoQuorum>),
    /// To a LOCK.ATTACH.
    Attach(Result<Option<Grant>, NotAttached>),
    /// They were not asked.
    Nothing {
        /// But LOCK.DETACH had something to end.
        detached: bool,
    },
}

impl Granted {
    fn new(key: &Key, token: &Token, grant: Grant, attached: bool) -> Granted {
        let Grant { fence, claim, .. } = grant;
        Granted { key: key.clone(), token: token.clone(), claim, fence, attached }
    }
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
            Asking::Attach(asking) => Some(asking.alarm()),
            Asking::Wait(_) | Asking::Nobody { .. } => None,
        }
    }
}

impl Running {
    /// Whether it is a LOCK that waits in line.
    pub fn waits_in_line(&self) -> bool {
        matches!(self.asking, Asking::Wait(_))
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
            Asking::Attach(asking) => Told::Attach(ready!(Pin::new(asking).poll(cx))),
            Asking::Nobody { detached } => Told::Nothing { detached: *detached },
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
        let nobody = || (Token::from(""), Asking::Nobody { detached: false });
        let (operation, token, ttl, is_session_lock, asking) = match request {
            Request::Lock { token, ttl, wait } => {
                let is_session_lock = ttl.is_none();
                if is_session_lock && !self.tokens.has_room(key, since) {
                    return Err(BadRequest::TooManySessionLocks(MAX_TOKENS));
                }
                let token = token.clone().unwrap_or_else(new_token);
                let ttl = ttl.unwrap_or(self.config.locks.default_ttl);
                let again = self.tokens.claim_of(key, &token);
                let (key, wanted) = (key.clone(), token.clone());
                let asking = match wait {
                    None => Asking::Lock(engine.acquire(key, wanted, ttl, again)),
                    Some(wait) => {
                        Asking::Wait(Box::new(engine.wait(key, wanted, ttl, *wait, again)))
                    }
                };
                (Operation::Lock, token, ttl, is_session_lock, asking)
            }
            Request::Unlock { token } => {
                let held = self.tokens.held.get(key);
                let token = token.as_ref().or(held.map(|held| &held.token)).cloned();
                let (token, asking) = match token {
                    Some(token) => {
                        let claim = self.tokens.claim_of(key, &token);
                        let asking = engine.release(key.clone(), token.clone(), claim);
                        (token, Asking::Unlock(asking))
                    }
                    None => nobody(),
                };
                (Operation::Unlock, token, Duration::ZERO, false, asking)
            }
            Request::Renew { token, ttl } => {
                let held = self.tokens.held.get(key);
                let token = token.as_ref().or(held.map(|held| &held.token)).cloned();
                let before = held.filter(|h| Some(&h.token) == token.as_ref()).map(|h| h.ttl);
                let ttl = ttl.or(before).unwrap_or(self.config.locks.default_ttl);
                let (token, asking) = match token {
                    Some(token) => {
                        let claim = self.tokens.claim_of(key, &token);
                        let asking = engine.renew(key.clone(), token.clone(), ttl, claim);
                        (token, Asking::Renew(asking))
                    }
                    None => nobody(),
                };
                (Operation::Renew, token, ttl, false, asking)
            }
            Request::Attach { token } => {
                if !self.tokens.has_room(key, since) {
                    return Err(BadRequest::TooManyLocks(MAX_TOKENS));
                }
                let asking = Asking::Attach(engine.attach(key.clone(), token.clone()));
                // What it was taken for is not known here, should it be renewed.
                (Operation::Attach, token.clone(), self.config.locks.default_ttl, false, asking)
            }
            Request::Detach => {
                let detached = self.tokens.detach(key);
                let asking = Asking::Nobody { detached };
                (Operation::Detach, Token::from(""), Duration::ZERO, false, asking)
            }
        };
        let key = key.clone();
        let mut running = Running { key, token, ttl, is_session_lock, since, asking, operation };
        running.swap_alarms(&mut self.alarm);
        Ok(running)
    }

    /// Notes what the nodes said and words the reply. Gives the lock too that it is about,
    /// if that is this connection's from now on.
    pub(super) fn finish_running(
        &mut self,
        running: &mut Running,
        told: Told,
        waker: &Waker,
    ) -> (Vec<u8>, Option<Granted>) {
        running.swap_alarms(&mut self.alarm);
        let Running { key, token, ttl, is_session_lock, since, operation, .. } = running;
        let (ttl, mut granted) = (*ttl, None);
        let mut out = Vec::with_capacity(96);
        let now = Instant::now();
        let outcome = match told {
            Told::Lock(Ok(grant)) => {
                encode_grant(&mut out, token, grant.fence, grant.validity);
                let keep = grant.claim.filter(|_| *is_session_lock).map(|claim| {
                    let losses =
                        self.losses.get_or_insert_with(|| Arc::new(Losses::new(waker.clone())));
                    self.shared.engine.keep(key, token, claim, ttl, grant.validity, losses)
                });
                // Held for as long as the client was told, not as the nodes keep it.
                let until = now + grant.validity;
                granted = Some(Granted::new(key, token, grant, false));
                let Grant { fence, claim, .. } = grant;
                let (token, raised, attached) = (token.clone(), false, false);
                let held = Held { token, claim, ttl, until, fence, raised, keep, attached };
                self.tokens.insert(key.clone(), held, now);
                Outcome::Ok
            }
            Told::Attach(Ok(Some(grant))) => {
                let fence = self.tokens.attach((key, token), ttl, grant, now);
                encode_grant(&mut out, token, fence, grant.validity);
                granted = Some(Granted::new(key, token, Grant { fence, ..grant }, true));
                Outcome::Ok
            }
            Told::Attach(Ok(None)) => {
                self.tokens.not_held(key, token);
                encode::null_array(&mut out, self.state.resp3);
                Outcome::NotHeld
            }
            Told::Attach(Err(NotAttached::FenceForgotten)) => {
                encode::error(&mut out, FENCE_FORGOTTEN);
                Outcome::NotHeld
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
            Told::Renew(Ok(Some(Renewed { validity, .. }))) => {
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
            Told::Nothing { detached } => {
                encode::integer(&mut out, i64::from(detached));
                if detached { Outcome::Ok } else { Outcome::NotHeld }
            }
            Told::Lock(Err(NotGranted::NoQuorum(error)))
            | Told::Attach(Err(NotAttached::NoQuorum(error)))
            | Told::Unlock(Err(error))
            | Told::Renew(Err(error)) => {
                encode::error(&mut out, &format!("NOQUORUM {error}"));
                Outcome::NoQuorum
            }
        };
        self.shared.metrics.lock_request(*operation, outcome, now - *since);
        (out, granted)
    }
}

/// Appends the reply to a LOCK that was granted, or a LOCK.ATTACH.
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
