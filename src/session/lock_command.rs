//! LOCK, UNLOCK, RENEW, LOCK.ATTACH and LOCK.DETACH on the engine, and what the client is told.

use std::{
    collections::VecDeque,
    fmt,
    future::Future,
    hash::{BuildHasher, RandomState},
    pin::Pin,
    sync::{Arc, LazyLock},
    task::{Context, Poll, Waker, ready},
    time::Duration,
};

use super::{
    Session,
    metrics::{Operation, Outcome},
};
use crate::{
    clock::Instant,
    command::{BadRequest, Request, shown},
    key::{Key, KeyMap, Token},
    lock::{
        Acquire, Alarm, Attach, Claim, Grant, Keep, Losses, Lost, NoQuorum, NotAttached,
        NotGranted, Release, Renew, Renewed, Waiter,
    },
    resp::encode,
};

/// Tokens remembered on one connection. Those whose TTL has run out make room
/// first; a connection that holds more at once must name its tokens itself.
const MAX_TOKENS: usize = 10_000;

/// Locks of which a connection remembers that it was refused or does not have them any more.
const MAX_PAST: usize = 256;

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
    /// A session lock: it is renewed no more when this goes.
    pub(super) keep: Option<Keep>,
    /// By LOCK.ATTACH: it was granted elsewhere.
    pub(super) attached: bool,
    /// UNLOCK was sent to the nodes: each releases it as soon as it can be reached.
    pub(super) giving_back: bool,
}

/// The tokens that this connection was granted or attached to, by key.
#[derive(Debug, Default)]
pub struct Tokens {
    pub(super) held: KeyMap<Held>,
    /// Keys and tokens that LOCK was refused: to unlock them is to unlock another's.
    refused: Past,
    /// Keys of which the connection held a lock: to unlock that is no mistake.
    ended: Past,
}

/// The last things of one kind; the oldest goes first.
#[derive(Debug, Default)]
struct Past(VecDeque<u64>);

impl Past {
    fn note(&mut self, number: u64) {
        self.forget(number);
        if self.0.len() >= MAX_PAST {
            self.0.pop_front();
        }
        self.0.push_back(number);
    }

    fn has(&self, number: u64) -> bool {
        self.0.contains(&number)
    }

    fn forget(&mut self, number: u64) {
        // Nearly always it is what was noted last.
        if self.0.back() == Some(&number) {
            self.0.pop_back();
        } else if self.has(number) {
            self.0.retain(|known| *known != number);
        }
    }
}

/// The number of a key with a token. Clients choose both, so they must not be able to make
/// them meet.
fn number_of(key: &Key, token: &[u8]) -> u64 {
    static HASHES: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    HASHES.hash_one((key.number(), token))
}

/// What a connection held of a lock that it was granted again.
#[derive(Debug, Clone, Copy)]
pub(super) struct Before {
    was_session_lock: bool,
    until: Instant,
}

/// How long a grant is still valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Left {
    /// As long as the connection, as it is a session lock; if it were not renewed, so long.
    Kept(Duration),
    /// So long.
    For(Duration),
}

impl Tokens {
    pub(super) fn insert(&mut self, key: Key, held: Held, now: Instant) {
        self.refused_no_more(&key, &held.token);
        self.ended.forget(key.number());
        if self.has_room(&key, now) {
            self.held.insert(key, held);
        }
    }

    /// Whether the connection holds the lock with another token, and until then at least.
    fn outlasts(&self, key: &Key, token: &Token, until: Instant) -> bool {
        self.held.get(key).is_some_and(|held| {
            let longer = held.keep.is_some() || held.until > until;
            held.token != *token && !held.attached && !held.giving_back && longer
        })
    }

    /// This connection's lock is about to be released.
    fn gives_back(&mut self, key: &Key, token: &Token) {
        if let Some(held) = self.held.get_mut(key).filter(|held| held.token == *token) {
            held.giving_back = true;
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
        if let Some(keep) = &held.keep {
            let until = keep.valid_until(now)?;
            return Some((&held.token, Left::Kept(keep.within_hold(until - now))));
        }
        let left = held.until.saturating_duration_since(now);
        // Clients are told whole milliseconds.
        (left >= Duration::from_millis(1)).then_some((&held.token, Left::For(left)))
    }

    /// The data node has been told this fence.
    pub(super) fn raised(&mut self, key: &Key, fence: u64) {
        if let Some(held) = self.held.get_mut(key).filter(|held| held.fence == fence) {
            held.raised = true;
        }
    }

    /// The lock nodes have raised the fence of the grant that had that one.
    pub(super) fn was_raised(&mut self, key: &Key, before: u64, fence: u64) {
        if let Some(held) = self.held.get_mut(key).filter(|held| held.fence == before) {
            held.fence = fence;
        }
    }

    /// The connection does not hold the lock any more that was granted with this fence.
    pub(super) fn forget(&mut self, key: &Key, fence: u64) {
        if self.held.get(key).is_some_and(|held| held.fence == fence) {
            self.held.remove(key);
            self.ended.note(key.number());
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
            self.ended.note(key.number());
        }
    }

    /// A LOCK was not granted. Not if the connection holds that lock from before.
    pub(super) fn refused(&mut self, key: &Key, token: &Token) {
        if !self.held.get(key).is_some_and(|held| held.token == *token) {
            self.refused.note(number_of(key, token));
        }
    }

    /// Whether the connection was refused that lock and has not been granted it since.
    fn was_refused(&self, key: &Key, token: &Token) -> bool {
        !self.refused.0.is_empty() && self.refused.has(number_of(key, token))
    }

    /// It was granted it, or holds it otherwise.
    fn refused_no_more(&mut self, key: &Key, token: &Token) {
        if !self.refused.0.is_empty() {
            self.refused.forget(number_of(key, token));
        }
    }

    /// A session lock is lost. False: the connection does not keep it any more.
    pub(super) fn lose(&mut self, lost: &Lost) -> bool {
        let kept = |keep: &Keep| keep.is(lost);
        match self.held.get_mut(&lost.key) {
            Some(held) if held.keep.as_ref().is_some_and(kept) => {
                if let Some(keep) = held.keep.take()
                    && lost.replaced
                {
                    keep.was_replaced();
                }
                self.held.remove(&lost.key);
                self.ended.note(lost.key.number());
                true
            }
            _ => false,
        }
    }

    /// What the connection holds of this lock, if it was granted it by that token.
    fn before(&self, key: &Key, token: &Token, now: Instant) -> Option<Before> {
        let held = self.held.get(key).filter(|held| held.token == *token && !held.attached)?;
        let was_session_lock = held.keep.is_some();
        let until = held.until;
        (was_session_lock || until > now).then_some(Before { was_session_lock, until })
    }

    /// It was granted again, but the client is told that it was not.
    pub(super) fn restore(&mut self, key: &Key, before: Before) {
        if let Some(held) = self.held.get_mut(key) {
            held.until = held.until.max(before.until);
            if !before.was_session_lock {
                held.keep = None;
            }
        }
    }

    /// The client has ended the connection, or what it was: session locks are released.
    pub(super) fn give_back(&mut self) {
        self.held.retain(|_, held| match held.keep.take() {
            Some(keep) => {
                keep.give_back();
                false
            }
            None => true,
        });
    }
}

/// A request on its way through the nodes.
pub struct Running {
    key: Key,
    token: Token,
    ttl: Duration,
    /// LOCK without a TTL.
    is_session_lock: bool,
    /// The client has named the token.
    named: bool,
    since: Instant,
    asking: Asking,
    operation: Operation,
}

enum Asking {
    Lock(Acquire),
    Wait(Box<Waiter>),
    Unlock(Release),
    Renew(Renew),
    TakeOver(Acquire),
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
    /// It was granted elsewhere.
    pub(super) attached: bool,
    /// What this connection held of it before.
    pub(super) again: Option<Before>,
    /// Nobody counts on it yet.
    pub(super) is_new: bool,
}

/// What the nodes said.
pub enum Told {
    /// To a LOCK.
    Lock(Result<Grant, NotGranted>),
    /// To an UNLOCK.
    Unlock(Result<bool, NoQuorum>),
    /// To a RENEW.
    Renew(Result<Option<Renewed>, NoQuorum>),
    /// To a RENEW by which the connection becomes the keeper of a session lock.
    TakeOver(Result<Grant, NotGranted>),
    /// To a LOCK.ATTACH.
    Attach(Result<Option<Grant>, NotAttached>),
    /// They were not asked.
    Nothing {
        /// But LOCK.DETACH had something to end.
        detached: bool,
    },
}

impl Granted {
    fn new(key: &Key, token: &Token, grant: &Grant, attached: bool) -> Granted {
        let Grant { fence, claim, .. } = *grant;
        let (key, token) = (key.clone(), token.clone());
        Granted { key, token, claim, fence, attached, again: None, is_new: false }
    }

    fn here(key: &Key, token: &Token, grant: &Grant, again: Option<Before>) -> Granted {
        let is_new = again.is_none();
        Granted { again, is_new, ..Granted::new(key, token, grant, false) }
    }

    fn elsewhere(key: &Key, token: &Token, grant: &Grant) -> Granted {
        Granted::new(key, token, grant, true)
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
            Asking::Lock(asking) | Asking::TakeOver(asking) => Some(asking.alarm()),
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
            Asking::TakeOver(asking) => Told::TakeOver(ready!(Pin::new(asking).poll(cx))),
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
    /// If the connection has too many locks to keep one more, would wait for itself, or has
    /// no token that could be meant.
    pub(super) fn start_running(
        &mut self,
        key: &Key,
        request: &Request,
        since: Instant,
    ) -> Result<Running, BadRequest> {
        let engine = &self.shared.engine;
        let nobody = || (Token::from(""), Asking::Nobody { detached: false });
        let prefix = self.config.locks.prefix.len();
        let no_token = || BadRequest::NoToken(shown(&key[prefix.min(key.len())..]));
        let mut named = false;
        let (operation, token, ttl, is_session_lock, asking) = match request {
            Request::Lock { token, ttl, wait } => {
                named = token.is_some();
                let is_session_lock = ttl.is_none();
                if is_session_lock && !self.tokens.has_room(key, since) {
                    return Err(BadRequest::TooManySessionLocks(MAX_TOKENS));
                }
                let token = token.clone().unwrap_or_else(new_token);
                if wait.is_some_and(|wait| self.tokens.outlasts(key, &token, since + wait)) {
                    if named {
                        self.tokens.refused(key, &token);
                    }
                    return Err(BadRequest::Deadlock);
                }
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
                let token = token.as_ref().or(held.map(|held| &held.token));
                let (token, asking) = match token {
                    _ if self.was_lost(key, token.map(|token| &**token)) => nobody(),
                    Some(token) if self.tokens.was_refused(key, token) => nobody(),
                    Some(token) => {
                        // Of its own doing it is told by the answer.
                        let held = held.filter(|held| held.token == *token);
                        if let Some(keep) = held.and_then(|held| held.keep.as_ref()) {
                            keep.unlocking();
                        }
                        let claim = held.and_then(|held| held.claim);
                        let asking = engine.release(key.clone(), token.clone(), claim);
                        (token.clone(), Asking::Unlock(asking))
                    }
                    None if self.tokens.ended.has(key.number()) => nobody(),
                    None => return Err(no_token()),
                };
                self.tokens.gives_back(key, &token);
                (Operation::Unlock, token, Duration::ZERO, false, asking)
            }
            Request::Renew { token, ttl } => {
                let held = self.tokens.held.get(key);
                let is_named = token.is_some();
                let token = token.as_ref().or(held.map(|held| &held.token));
                let held = held.filter(|held| Some(&held.token) == token);
                // Who names the token of a lock that is not its own is to be its keeper.
                let takes_over = is_named && ttl.is_none() && held.is_none_or(|held| held.attached);
                let before = held.map(|held| held.ttl).filter(|_| !takes_over);
                let ttl = ttl.or(before).unwrap_or(self.config.locks.default_ttl);
                let (token, asking) = match token.cloned() {
                    token if self.was_lost(key, token.as_deref()) => nobody(),
                    Some(token) if takes_over => {
                        if !self.tokens.has_room(key, since) {
                            return Err(BadRequest::TooManySessionLocks(MAX_TOKENS));
                        }
                        let asking = engine.take_over(key.clone(), token.clone(), ttl);
                        (token, Asking::TakeOver(asking))
                    }
                    Some(token) => {
                        let claim = self.tokens.claim_of(key, &token);
                        let asking = engine.renew(key.clone(), token.clone(), ttl, claim);
                        (token, Asking::Renew(asking))
                    }
                    None if self.tokens.ended.has(key.number()) => nobody(),
                    None => return Err(no_token()),
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
        let mut running =
            Running { key, token, ttl, is_session_lock, named, since, asking, operation };
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
        let Running { key, token, ttl, is_session_lock, named, since, operation, .. } = running;
        let (ttl, mut granted) = (*ttl, None);
        let mut out = Vec::with_capacity(96);
        let now = Instant::now();
        if matches!(&told, Told::Lock(Err(_))) && *named {
            self.tokens.refused(key, token);
        }
        let outcome = match told {
            Told::Lock(Ok(grant)) => {
                self.shared.metrics.granted(*is_session_lock);
                let again = self.tokens.before(key, token, now);
                // What was told before stays true, and nodes shorten nothing.
                let mut grant = grant;
                if let Some(before) = again.as_ref().filter(|before| !before.was_session_lock) {
                    grant.until = grant.until.max(before.until);
                    grant.validity = grant.until - now;
                }
                let keep = match is_session_lock {
                    true => self.keep(key, token, ttl, &grant, waker),
                    false => None,
                };
                let validity = keep.as_ref().map(|keep| keep.within_hold(grant.validity));
                encode_grant(&mut out, token, grant.fence, validity.unwrap_or(grant.validity));
                granted = Some(Granted::here(key, token, &grant, again));
                self.hold(key, token, ttl, &grant, keep, now);
                Outcome::Ok
            }
            Told::TakeOver(Ok(grant)) => {
                let keep = self.keep(key, token, ttl, &grant, waker);
                let validity = keep.as_ref().map(|keep| keep.within_hold(grant.validity));
                encode::integer(&mut out, millis(validity.unwrap_or(grant.validity)));
                granted = Some(Granted::elsewhere(key, token, &grant));
                self.hold(key, token, ttl, &grant, keep, now);
                Outcome::Ok
            }
            Told::Attach(Ok(Some(grant))) => {
                let fence = self.tokens.attach((key, token), ttl, grant, now);
                encode_grant(&mut out, token, fence, grant.validity);
                granted = Some(Granted::elsewhere(key, token, &Grant { fence, ..grant }));
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
                Outcome::Busy
            }
            Told::Unlock(Ok(released)) => {
                self.tokens.remove(key, token);
                encode::integer(&mut out, i64::from(released));
                if released { Outcome::Ok } else { Outcome::NotHeld }
            }
            Told::Renew(Ok(Some(renewed))) => {
                encode::integer(&mut out, millis(renewed.validity));
                self.tokens.refused_no_more(key, token);
                if let Some(held) = self.tokens.held.get_mut(key)
                    && held.token == *token
                {
                    (held.ttl, held.until, held.giving_back) = (ttl, renewed.until, false);
                }
                Outcome::Ok
            }
            Told::Renew(Ok(None))
            | Told::TakeOver(Err(NotGranted::Held { .. } | NotGranted::QueueFull { .. })) => {
                self.tokens.remove(key, token);
                encode::integer(&mut out, 0);
                Outcome::NotHeld
            }
            Told::Nothing { detached } => {
                if matches!(operation, Operation::Unlock | Operation::Renew) {
                    self.tells_of(key, *operation == Operation::Unlock);
                }
                encode::integer(&mut out, i64::from(detached));
                if detached { Outcome::Ok } else { Outcome::NotHeld }
            }
            Told::Lock(Err(NotGranted::NoQuorum(error)))
            | Told::Attach(Err(NotAttached::NoQuorum(error)))
            | Told::TakeOver(Err(NotGranted::NoQuorum(error)))
            | Told::Unlock(Err(error))
            | Told::Renew(Err(error)) => {
                encode::error(&mut out, &format!("NOQUORUM {error}"));
                Outcome::NoQuorum
            }
        };
        self.shared.metrics.lock_request(*operation, outcome, now - *since);
        (out, granted)
    }

    /// Has a session lock renewed from now on.
    fn keep(
        &mut self,
        key: &Key,
        token: &Token,
        ttl: Duration,
        grant: &Grant,
        waker: &Waker,
    ) -> Option<Keep> {
        let claim = grant.claim?;
        let losses = self.losses.get_or_insert_with(|| Arc::new(Losses::new(waker.clone())));
        Some(self.shared.engine.keep(key, token, claim, ttl, grant.until, losses))
    }

    /// Remembers a lock, as held for as long as the client is told, not as the nodes keep it.
    fn hold(
        &mut self,
        key: &Key,
        token: &Token,
        ttl: Duration,
        grant: &Grant,
        keep: Option<Keep>,
        now: Instant,
    ) {
        let Grant { fence, claim, .. } = *grant;
        let (token, until) = (token.clone(), grant.until);
        let (raised, attached) = (false, false);
        let giving_back = false;
        let held = Held { token, claim, ttl, until, fence, raised, keep, attached, giving_back };
        self.tokens.insert(key.clone(), held, now);
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
