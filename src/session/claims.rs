//! The locks that a connection was granted, keeps, or has attached to by LOCK.ATTACH.

use std::{
    collections::VecDeque,
    hash::{BuildHasher, RandomState},
    sync::LazyLock,
    time::Duration,
};

use crate::{
    clock::Instant,
    key::{Key, KeyMap, Token},
    lock::{Claim, Grant, Keep, Lost},
};

/// Most tokens remembered on one connection. Tokens whose TTL has run out make room first; a client
/// with more locks at once must name its tokens itself.
pub(super) const MAX_TOKENS: usize = 10_000;

/// Most locks that a connection remembers it was refused, and most that it remembers as ended.
const MAX_PAST: usize = 256;

/// A lock that this connection was granted or attached to; its token serves UNLOCK and RENEW
/// without one.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) token: Token,
    /// The claim of the grant, if this connection knows it.
    pub(super) claim: Option<Claim>,
    pub(super) ttl: Duration,
    pub(super) until: Instant,
    pub(super) fence: u64,
    /// The fence was announced on the data node.
    pub(super) announced: bool,
    /// The data node may have forgotten the fence since: the lock nodes are asked before it is
    /// announced again.
    pub(super) doubted: bool,
    /// Set for a session lock, which is renewed no more once this is dropped.
    pub(super) keep: Option<Keep>,
    /// Set by LOCK.ATTACH: the lock was granted elsewhere.
    pub(super) attached: bool,
    /// UNLOCK was sent to the lock nodes: each releases the lock as soon as it can be reached.
    pub(super) giving_back: bool,
}

impl Held {
    /// Makes the record of a lock just granted. It counts as held for as long as the client is
    /// told, not as long as the lock nodes keep it.
    pub(super) fn granted(token: Token, ttl: Duration, grant: &Grant, keep: Option<Keep>) -> Held {
        let Grant { fence, claim, until, .. } = *grant;
        Held {
            token,
            claim,
            ttl,
            until,
            fence,
            announced: false,
            doubted: false,
            keep,
            attached: false,
            giving_back: false,
        }
    }
}

/// The locks that this connection was granted or attached to, by key.
#[derive(Debug, Default)]
pub(super) struct Tokens {
    pub(super) held: KeyMap<Held>,
    /// Keys with tokens that LOCK was refused: an UNLOCK of them would unlock another's lock.
    refused: Past,
    /// Keys of locks that the connection held once: an UNLOCK of them is no mistake.
    ended: Past,
}

/// The last numbers noted; the oldest goes first.
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
        // The number is nearly always the one noted last.
        if self.0.back() == Some(&number) {
            self.0.pop_back();
        } else if self.has(number) {
            self.0.retain(|known| *known != number);
        }
    }
}

/// Hashes a key with a token, seeded at random: clients choose both, and must not be able to make
/// two hashes collide.
fn number_of(key: &Key, token: &[u8]) -> u64 {
    static HASHES: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    HASHES.hash_one((key.number(), token))
}

/// Earlier hold of a connection on a lock that it was granted again.
#[derive(Debug, Clone, Copy)]
pub(super) struct Before {
    was_session_lock: bool,
    until: Instant,
}

/// How long a grant is still valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Left {
    /// A session lock, valid as long as the connection; without renewal for this long.
    Kept(Duration),
    /// A lease, valid for this long.
    For(Duration),
}

impl Left {
    /// Returns for how long the grant is valid, without renewal.
    pub(super) fn duration(self) -> Duration {
        let (Left::Kept(left) | Left::For(left)) = self;
        left
    }
}

impl Tokens {
    pub(super) fn insert(&mut self, key: Key, held: Held, now: Instant) {
        self.refused_no_more(&key, &held.token);
        self.ended.forget(key.number());
        if self.has_room(&key, now) {
            self.held.insert(key, held);
        }
    }

    /// Whether the connection holds the lock with another token, at least until `until`.
    pub(super) fn outlasts(&self, key: &Key, token: &Token, until: Instant) -> bool {
        self.held.get(key).is_some_and(|held| {
            let longer = held.keep.is_some() || held.until > until;
            held.token != *token && !held.attached && !held.giving_back && longer
        })
    }

    /// The token of a lease that this connection has, as far as it knows: another connection may
    /// have released it.
    pub(super) fn lease(&self, key: &Key) -> Option<Token> {
        let held = self.held.get(key).filter(|held| held.keep.is_none())?;
        Some(held.token.clone())
    }

    /// Notes that this connection's lock is about to be released.
    pub(super) fn gives_back(&mut self, key: &Key, token: &Token) {
        if let Some(held) = self.held.get_mut(key).filter(|held| held.token == *token) {
            held.giving_back = true;
        }
    }

    /// Whether there is room to remember this lock.
    pub(super) fn has_room(&mut self, key: &Key, now: Instant) -> bool {
        if self.held.len() >= MAX_TOKENS && !self.held.contains_key(key) {
            self.held.retain(|_, held| held.keep.is_some() || held.until > now);
        }
        self.held.len() < MAX_TOKENS || self.held.contains_key(key)
    }

    /// Returns the fence under which this connection holds a lock, and whether it was announced.
    /// Returns `None` if the connection does not hold the lock.
    pub(super) fn claim(&self, key: &Key, now: Instant) -> Option<(u64, bool)> {
        let held = self.held.get(key)?;
        let holds = held.keep.is_some() || now < held.until;
        holds.then_some((held.fence, held.announced))
    }

    /// Returns the token of the grant with this fence, and the validity that is left. Returns
    /// `None` if nothing is left.
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

    /// Notes that the fence was announced on the data node.
    pub(super) fn announced(&mut self, key: &Key, fence: u64) {
        if let Some(held) = self.held.get_mut(key).filter(|held| held.fence == fence) {
            (held.announced, held.doubted) = (true, false);
        }
    }

    /// Notes that the data node has forgotten the fence. Until replicas too have it again, each write
    /// asks anew.
    pub(super) fn forgotten(&mut self, key: &Key, fence: u64) {
        if let Some(held) = self.held.get_mut(key).filter(|held| held.fence == fence) {
            (held.announced, held.doubted) = (false, true);
        }
    }

    /// Notes that the data node may have forgotten all fences.
    #[cold]
    pub(super) fn doubt_all(&mut self) {
        for held in self.held.values_mut() {
            (held.announced, held.doubted) = (false, true);
        }
    }

    /// Whether the data node may have forgotten the lock's fence.
    pub(super) fn is_doubted(&self, key: &Key) -> bool {
        self.held.get(key).is_some_and(|held| held.doubted)
    }

    /// Notes that the lock nodes have raised a grant's fence from `before` to `fence`.
    pub(super) fn was_raised(&mut self, key: &Key, before: u64, fence: u64) {
        if let Some(held) = self.held.get_mut(key).filter(|held| held.fence == before) {
            held.fence = fence;
        }
    }

    /// Forgets the lock that was granted with this fence: the connection does not hold it any more.
    pub(super) fn forget(&mut self, key: &Key, fence: u64) {
        if self.held.get(key).is_some_and(|held| held.fence == fence) {
            self.held.remove(key);
            self.ended.note(key.number());
        }
    }

    /// Takes in that a larger fence than this grant's was seen: another has had the lock since. The
    /// connection is told of a session lock's end like of any loss.
    pub(super) fn superseded(&mut self, key: &Key, fence: u64) {
        let Some(held) = self.held.get(key).filter(|held| held.fence == fence) else { return };
        match &held.keep {
            Some(keep) => keep.superseded(),
            None => self.forget(key, fence),
        }
    }

    /// Returns the keys of all locks remembered.
    pub(super) fn keys(&self) -> impl Iterator<Item = &Key> {
        self.held.keys()
    }

    /// Returns until when all session locks are surely held. A session lock without a validity is
    /// lost already and does not count.
    #[cold]
    pub(super) fn valid_until(&self) -> Option<Instant> {
        let now = Instant::now();
        self.held.values().filter_map(|held| held.keep.as_ref()?.valid_until(now)).min()
    }

    /// Returns the claim by which this connection was granted a lock with this token. Once UNLOCK
    /// was sent, the next LOCK must not have the same claim: a lock node that carries the UNLOCK
    /// out late would end the new grant.
    pub(super) fn claim_of(&self, key: &Key, token: &Token) -> Option<Claim> {
        self.held.get(key).filter(|held| held.token == *token && !held.giving_back)?.claim
    }

    /// Whether the connection was granted, or has attached to, the lock by this token and claim.
    pub(super) fn has_grant(&self, key: &Key, token: &Token, claim: Option<Claim>) -> bool {
        self.held.get(key).is_some_and(|held| {
            let is_same = held.claim == claim || held.attached && held.claim.is_none();
            held.token == *token && is_same
        })
    }

    /// Whether UNLOCK was sent for this lock and too few lock nodes have answered it.
    pub(super) fn is_given_back(&self, key: &Key, token: &Token) -> bool {
        self.held.get(key).is_some_and(|held| held.token == *token && held.giving_back)
    }

    /// Notes that a lease was renewed, or a session lock beyond what the watchdog does.
    pub(super) fn renewed(&mut self, key: &Key, token: &Token, ttl: Duration, until: Instant) {
        self.refused_no_more(key, token);
        if let Some(held) = self.held.get_mut(key).filter(|held| held.token == *token) {
            (held.ttl, held.until) = (ttl, until);
        }
    }

    /// Whether the connection held the lock once and does not any more.
    pub(super) fn has_ended(&self, key: &Key) -> bool {
        self.ended.has(key.number())
    }

    /// Forgets the token of `key` if it is this one.
    pub(super) fn remove(&mut self, key: &Key, token: &Token) {
        if self.held.get(key).is_some_and(|held| held.token == *token) {
            self.held.remove(key);
            self.ended.note(key.number());
        }
    }

    /// Notes that a LOCK was not granted, unless the connection holds that lock from before.
    pub(super) fn refused(&mut self, key: &Key, token: &Token) {
        if !self.held.get(key).is_some_and(|held| held.token == *token) {
            self.refused.note(number_of(key, token));
        }
    }

    /// Whether the connection was refused that lock and not granted it since.
    pub(super) fn was_refused(&self, key: &Key, token: &Token) -> bool {
        !self.refused.0.is_empty() && self.refused.has(number_of(key, token))
    }

    /// Notes that the connection was granted the lock or otherwise holds it.
    fn refused_no_more(&mut self, key: &Key, token: &Token) {
        if !self.refused.0.is_empty() {
            self.refused.forget(number_of(key, token));
        }
    }

    /// Takes in the loss of a session lock. Returns `false` if the connection does not keep that
    /// lock any more.
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

    /// Returns this connection's hold on the lock, if it was granted here with that token.
    pub(super) fn before(&self, key: &Key, token: &Token, now: Instant) -> Option<Before> {
        let held = self.held.get(key).filter(|held| held.token == *token && !held.attached)?;
        if held.giving_back {
            return None;
        }
        let was_session_lock = held.keep.is_some();
        let until = held.until;
        (was_session_lock || until > now).then_some(Before { was_session_lock, until })
    }

    /// Puts back the hold from before a second grant that the client is told failed.
    pub(super) fn restore(&mut self, key: &Key, before: Before) {
        if let Some(held) = self.held.get_mut(key) {
            held.until = held.until.max(before.until);
            if !before.was_session_lock {
                held.keep = None;
            }
        }
    }

    /// Releases all session locks, as the client has ended or RESET the connection. Those that
    /// adopted commands took stay: a pool closes connections whose locks are still counted on.
    pub(super) fn give_back(&mut self) {
        self.held.retain(|_, held| match held.keep.take_if(|keep| !keep.is_adopted()) {
            Some(keep) => {
                keep.give_back();
                false
            }
            None => true,
        });
    }
}

/// A lock that this connection has just been granted or attached to.
pub(super) struct Granted {
    pub(super) key: Key,
    pub(super) token: Token,
    pub(super) claim: Option<Claim>,
    pub(super) fence: u64,
    /// The lock was granted elsewhere.
    pub(super) attached: bool,
    /// The hold of this connection on the lock from before.
    pub(super) again: Option<Before>,
    /// The client does not count on the lock yet.
    pub(super) is_new: bool,
    /// How long the client will count on the lock if the reply does not tell it how long the lock
    /// is valid.
    pub(super) least: Option<Duration>,
}

impl Granted {
    fn new(key: &Key, token: &Token, grant: &Grant, attached: bool) -> Granted {
        let Grant { fence, claim, .. } = *grant;
        let (key, token) = (key.clone(), token.clone());
        Granted { key, token, claim, fence, attached, again: None, is_new: false, least: None }
    }

    /// A lock granted to an adopted command, whose client counts on it for `ttl`.
    pub(super) fn adopted(key: &Key, token: &Token, grant: &Grant, ttl: Duration) -> Granted {
        Granted { least: Some(ttl), ..Granted::here(key, token, grant, None) }
    }

    pub(super) fn here(key: &Key, token: &Token, grant: &Grant, again: Option<Before>) -> Granted {
        let is_new = again.is_none();
        Granted { again, is_new, ..Granted::new(key, token, grant, false) }
    }

    /// A lock of an adopted command that has a new claim, and whose client counts on it for `ttl`.
    pub(super) fn converted(key: &Key, token: &Token, grant: &Grant, ttl: Duration) -> Granted {
        Granted { least: Some(ttl), ..Granted::elsewhere(key, token, grant) }
    }

    pub(super) fn elsewhere(key: &Key, token: &Token, grant: &Grant) -> Granted {
        Granted::new(key, token, grant, true)
    }
}

impl Tokens {
    /// Takes in that the lock nodes found the lock held by this token; the lock may have been
    /// granted to this very connection. Returns the fence that counts here.
    pub(super) fn attach(
        &mut self,
        (key, token): (&Key, &Token),
        ttl: Duration,
        grant: Grant,
        now: Instant,
    ) -> u64 {
        let (fence, until) = (grant.fence, grant.until);
        match self.held.get_mut(key).filter(|held| held.token == *token) {
            Some(held) => {
                held.until = until;
                // The lock nodes never tell too large a fence, but the one known before may be
                // larger.
                if fence > held.fence {
                    (held.fence, held.announced) = (fence, false);
                }
                held.fence
            }
            None => {
                let held =
                    Held { attached: true, ..Held::granted(token.clone(), ttl, &grant, None) };
                self.insert(key.clone(), held, now);
                fence
            }
        }
    }

    /// Forgets a lock that the lock nodes said this token does not hold. A session lock is left to
    /// the watchdog.
    pub(super) fn not_held(&mut self, key: &Key, token: &Token) {
        if self.held.get(key).is_some_and(|held| held.token == *token && held.keep.is_none()) {
            self.held.remove(key);
        }
    }

    /// Ends an attachment by LOCK.ATTACH. Returns `false` if there is none.
    pub(super) fn detach(&mut self, key: &Key) -> bool {
        let attached = self.is_attached(key);
        attached && self.held.remove(key).is_some()
    }

    /// Whether the connection is attached to this lock, even if its time has run out.
    pub(super) fn is_attached(&self, key: &Key) -> bool {
        self.held.get(key).is_some_and(|held| held.attached)
    }

    /// Returns the token of an attachment whose time has run out.
    pub(super) fn run_out(&self, key: &Key, now: Instant) -> Option<&Token> {
        let held = self.held.get(key).filter(|held| held.attached && held.until <= now)?;
        Some(&held.token)
    }
}
