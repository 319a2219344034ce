//! The locks that a connection was granted, keeps, or has attached to by LOCK.ATTACH.

use std::{collections::VecDeque, hash::BuildHasherDefault, time::Duration};

use super::{
    attempts::{Attempt, Attempts, InTheWay},
    planted::{self, PlantedFault},
    rare::Unchanged,
};
use crate::{
    clock::Instant,
    key::{Key, KeyMap, Token},
    lock::{Claim, Grant, Keep, Lost, SameToken},
};

/// Most tokens remembered on one connection. Tokens whose TTL has run out make room first; a client
/// with more locks at once must name its tokens itself.
pub(super) const MAX_TOKENS: usize = 10_000;

/// Most locks that a connection remembers as ended.
const MAX_ENDED: usize = 256;

/// Stands for any reader of a lock, in the place of a grant's number.
const ANY_READER: u64 = u64::MAX;

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
    /// Set for a session lock, which is no longer renewed once this is dropped.
    pub(super) keep: Option<Keep>,
    /// Set by LOCK.ATTACH: the lock was granted elsewhere.
    pub(super) attached: bool,
    /// UNLOCK was sent to the lock nodes: each releases the lock as soon as it can be reached.
    pub(super) giving_back: bool,
    /// Whether an UNLOCK or RENEW without a token means this lock.
    unnamed: Unnamed,
}

/// Whether an UNLOCK or RENEW without a token means a grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unnamed {
    /// It does: the grant was made to the last LOCK without a token.
    Own,
    /// It does: the token was named, and no other user of this connection has asked for the lock since.
    Lent,
    /// It does not: the last LOCK without a token was refused, and its UNLOCK has not come.
    Refused,
    /// It does not: several users of this connection have asked for the lock, so the token must be named.
    MustName,
}

/// The grant that an UNLOCK or RENEW without a token means.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Meant {
    /// The one that this token has.
    Grant(Token),
    /// None: the last LOCK without a token was refused, though the connection holds the lock.
    Refused,
    /// None: what the connection had, or was refused, has ended.
    Ended,
    /// None: it is not known which user of the connection asks.
    MustName,
    /// None: the connection has never asked for the lock.
    Nothing,
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
            unnamed: Unnamed::Lent,
        }
    }
}

/// The locks that this connection was granted or attached to, by key.
#[derive(Debug, Default)]
pub(super) struct Tokens {
    pub(super) held: KeyMap<Held>,
    /// The LOCK under way, and the refused LOCKs that named a token.
    attempts: Attempts,
    /// Locks that the connection once held, or was refused when its LOCK named no token: an UNLOCK of them is no
    /// mistake.
    ended: EndedLocks,
    /// Whether the connection was ever granted a reader's part of a lock.
    reads: bool,
    /// Whether locks may be shared: then each refused LOCK that names a token is noted, as another client's reader may
    /// have the token.
    pub(super) shares: bool,
}

/// The last locks noted, by the numbers of their keys; the oldest is dropped first.
#[derive(Debug, Default)]
struct EndedLocks {
    /// With each, whether an UNLOCK without a token is still to come.
    keys: VecDeque<(u64, bool)>,
    /// Whether a lock had to be forgotten whose UNLOCK was still to come.
    has_forgotten: bool,
}

impl Unchanged for Tokens {
    const UNCHANGED: &'static Tokens = &Tokens {
        held: KeyMap::with_hasher(BuildHasherDefault::new()),
        attempts: Attempts::NONE,
        ended: EndedLocks { keys: VecDeque::new(), has_forgotten: false },
        reads: false,
        shares: false,
    };
}

impl EndedLocks {
    fn note(&mut self, key: &Key, is_open: bool) {
        self.forget(key);
        if self.keys.len() >= MAX_ENDED
            && let Some((_, was_open)) = self.keys.pop_front()
        {
            self.has_forgotten |= was_open;
        }
        self.keys.push_back((key.number(), is_open));
    }

    fn has(&self, key: &Key) -> bool {
        self.keys.iter().any(|(known, _)| *known == key.number())
    }

    /// Whether the UNLOCK without a token that belongs to an ended grant, or to a refused LOCK, may still come. It
    /// means no grant made since.
    fn is_open(&self, key: &Key) -> bool {
        self.has_forgotten || self.keys.contains(&(key.number(), true))
    }

    /// Notes that an UNLOCK without a token has come.
    fn close(&mut self, key: &Key) {
        let known = self.keys.iter_mut().find(|(known, _)| *known == key.number());
        if let Some((_, is_open)) = known {
            *is_open = false;
        }
    }

    fn forget(&mut self, key: &Key) {
        // The lock is nearly always the one noted last.
        if self.keys.back().is_some_and(|(last, _)| *last == key.number()) {
            self.keys.pop_back();
        } else if self.has(key) {
            self.keys.retain(|(known, _)| *known != key.number());
        }
    }
}

/// A connection's earlier hold on a lock that it was granted again.
#[derive(Debug, Clone, Copy)]
pub(super) struct Before {
    was_session_lock: bool,
    until: Instant,
}

/// How long a grant is still valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Left {
    /// A session lock: valid for as long as the connection lives, and for this long without renewal.
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
    /// Takes in the grant to the LOCK under way.
    pub(super) fn granted(&mut self, key: Key, held: Held, now: Instant) {
        match self.attempts.granted() {
            Some(None) => self.put(key, Held { unnamed: Unnamed::Own, ..held }, now),
            Some(Some(_)) | None => self.insert(key, held, now),
        }
    }

    /// Takes in the reader's part of `lock` that is granted to the LOCK under way. It is kept under the key `reader`.
    pub(super) fn granted_shared(&mut self, lock: &Key, reader: Key, held: Held, now: Instant) {
        self.attempts.granted();
        self.attempts.forget(lock, &held.token);
        self.attempts.forget(&lock.of_reader(ANY_READER), &held.token);
        self.ended.forget(lock);
        self.reads = true;
        self.put(reader, held, now);
    }

    /// Notes that this connection was refused the lock by a token at `at`, or that its reader with the token has ended. What
    /// reads by the token and was granted before is another client's.
    fn others_read(&mut self, lock: &Key, token: &Token, at: Instant) {
        if self.shares {
            let any = lock.of_lock().of_reader(ANY_READER);
            self.attempts.refused(&any, token, InTheWay::Unknown(at));
        }
    }

    /// Returns what tells whether a reader with this token, which this connection does not have, may be its user's.
    pub(super) fn reader_in_the_way(&self, lock: &Key, token: &Token) -> Option<InTheWay> {
        self.attempts.in_the_way(&lock.of_reader(ANY_READER), token)
    }

    /// Iterates over the keys of this connection's readers of `lock`: those with this token, or all.
    pub(super) fn readers<'t>(
        &'t self,
        lock: &'t Key,
        token: Option<&'t Token>,
    ) -> impl Iterator<Item = &'t Key> {
        let readers = self.held.iter().filter(move |(key, held)| {
            key.is_of_reader()
                && key[..] == lock[..]
                && token.is_none_or(|token| held.token == *token)
        });
        // Most connections never read a lock.
        readers.map(|(key, _)| key).take(if self.reads { usize::MAX } else { 0 })
    }

    /// Returns the key of this connection's reader of `lock` with this token.
    pub(super) fn reader_with(&self, lock: &Key, token: &Token) -> Option<Key> {
        let mut readers = self.readers(lock, Some(token));
        readers.find(|reader| !self.is_given_back(reader, token)).cloned()
    }

    /// Whether this connection keeps a reader of `lock`, for as long as it lives.
    pub(super) fn keeps_reader(&self, lock: &Key) -> bool {
        let keeps = |reader: &Key| self.held.get(reader).is_some_and(|held| held.keep.is_some());
        self.readers(lock, None).any(keeps)
    }

    /// Takes in a grant to the MLOCK under way. `is_named`: the client has named the token.
    pub(super) fn granted_with_others(
        &mut self,
        key: Key,
        held: Held,
        is_named: bool,
        now: Instant,
    ) {
        match is_named {
            true => self.insert(key, held, now),
            false => self.put(key, Held { unnamed: Unnamed::Own, ..held }, now),
        }
    }

    /// Takes in that all locks of the MLOCK under way are granted.
    pub(super) fn all_granted(&mut self) {
        self.attempts.all_granted();
    }

    /// Takes in a lock whose token the client has named.
    pub(super) fn insert(&mut self, key: Key, held: Held, now: Instant) {
        let unnamed = match self.held.get(&key) {
            Some(before) if before.token == held.token => before.unnamed,
            Some(before) if before.unnamed == Unnamed::Lent => Unnamed::Lent,
            // The UNLOCK of the grant before has come.
            Some(before) if before.giving_back && before.unnamed != Unnamed::Refused => {
                Unnamed::Lent
            }
            Some(_) => Unnamed::MustName,
            None if self.ended.is_open(&key) => Unnamed::MustName,
            None => Unnamed::Lent,
        };
        self.put(key, Held { unnamed, ..held }, now);
    }

    fn put(&mut self, key: Key, held: Held, now: Instant) {
        self.attempts.forget(&key, &held.token);
        self.ended.forget(&key);
        if self.reads && !key.is_of_reader() {
            // Whoever has the lock alone shows that they have ended. Of the end of one that is kept the client is told.
            let is_readers_lease = |known: &Key, held: &Held| {
                known.is_of_reader() && known[..] == key[..] && held.keep.is_none()
            };
            self.held.retain(|known, held| !is_readers_lease(known, held));
        }
        if self.make_room(&key, now) {
            self.held.insert(key, held);
        }
    }

    /// Notes that a LOCK begins. Until its grant is taken in or [`Tokens::stood_in_the_way`] is called, it counts as
    /// refused for an unknown reason.
    pub(super) fn begin_attempt(&mut self, key: Key, token: Option<Token>, now: Instant) {
        self.attempts.begin(key, token, now);
    }

    /// As [`Tokens::begin_attempt`], for a MLOCK of these keys.
    pub(super) fn begin_attempts(&mut self, keys: &[Key], token: Option<&Token>, now: Instant) {
        self.attempts.begin_several(keys, token, now);
    }

    /// Notes what stood in the way of the MLOCK under way, for each of its locks.
    pub(super) fn stood_in_the_way_of_each(&mut self, all: impl Iterator<Item = InTheWay>) {
        self.attempts.stood_in_the_way_of_each(all);
    }

    /// Notes what stood in the way of the LOCK under way.
    pub(super) fn stood_in_the_way(&mut self, what: InTheWay) {
        self.attempts.stood_in_the_way(what);
    }

    /// Remembers the last LOCK or MLOCK, if it was refused.
    #[inline]
    pub(super) fn settle_attempt(&mut self) {
        while let Some(attempt) = self.attempts.ended() {
            self.settle(attempt);
        }
    }

    #[cold]
    fn settle(&mut self, Attempt { key, token, in_the_way, at }: Attempt) {
        match (token, self.held.get_mut(&key)) {
            (None, Some(held)) => held.unnamed = Unnamed::Refused,
            (None, None) => {
                let mut reads = false;
                if self.reads {
                    for (_, held) in self.held.iter_mut().filter(|(known, _)| known[..] == key[..])
                    {
                        (held.unnamed, reads) = (Unnamed::Refused, true);
                    }
                }
                if !reads {
                    self.ended.note(&key, true);
                }
            }
            // A grant of its own by this token comes first, until the client is told that it has ended.
            (Some(token), _) => {
                self.others_asked(&key, &token);
                self.others_read(&key, &token, at);
                self.attempts.refused(&key, &token, in_the_way);
            }
        }
    }

    /// Returns the grant that an UNLOCK or RENEW without a token means.
    pub(super) fn meant(&self, key: &Key) -> Meant {
        let Some(held) = self.held.get(key) else {
            return if self.ended.has(key) { Meant::Ended } else { Meant::Nothing };
        };
        match held.unnamed {
            _ if planted::has(PlantedFault::AnyAttempt) => Meant::Grant(held.token.clone()),
            Unnamed::Own | Unnamed::Lent => Meant::Grant(held.token.clone()),
            Unnamed::Refused => Meant::Refused,
            Unnamed::MustName => Meant::MustName,
        }
    }

    /// Notes that an UNLOCK without a token, which meant no grant, is answered.
    pub(super) fn unnamed_answered(&mut self, key: &Key) {
        match self.held.get_mut(key) {
            Some(held) if held.unnamed == Unnamed::Refused => held.unnamed = Unnamed::MustName,
            Some(_) => {}
            None => self.ended.close(key),
        }
    }

    /// Returns what stood in the way of the last LOCK with this token, if it was refused, or when the connection's own
    /// reader with it ended: an UNLOCK or RENEW by the token may then be about another client's grant. `None` if the
    /// connection was granted the lock by this token, and so knows its own grant.
    pub(super) fn in_the_way(&self, key: &Key, token: &Token) -> Option<InTheWay> {
        match self.held.get(key) {
            Some(held) if held.token == *token && !held.attached => None,
            _ if planted::has(PlantedFault::ForgottenRefusal) => None,
            _ => {
                let refused = self.attempts.in_the_way(key, token);
                refused.or_else(|| self.reader_in_the_way(key, token).filter(|_| self.reads))
            }
        }
    }

    /// Forgets that a LOCK with this token was refused: what stood in its way has ended.
    pub(super) fn refused_no_more(&mut self, key: &Key, token: &Token) {
        self.attempts.forget(key, token);
    }

    /// Notes that a lock library was refused a lock that these grants of its token had.
    pub(super) fn refused_adopted(&mut self, key: &Key, token: &Token, same_token: SameToken) {
        self.others_asked(key, token);
        if let SameToken::Grants(grants) = same_token {
            self.attempts.refused(key, token, InTheWay::Grants(grants));
        }
    }

    /// Notes that the lock was asked for by this token. If the connection has the lock by another token, that token
    /// must be named from now on, unless the grant was made to a LOCK without one.
    fn others_asked(&mut self, key: &Key, token: &Token) {
        if let Some(held) = self.held.get_mut(key)
            && held.token != *token
            && held.unnamed == Unnamed::Lent
            && !held.giving_back
        {
            held.unnamed = Unnamed::MustName;
        }
    }

    /// Whether the connection holds the lock with another token, at least until `until`.
    pub(super) fn outlasts(&self, key: &Key, token: &Token, until: Instant) -> bool {
        self.held.get(key).is_some_and(|held| {
            let longer = held.keep.is_some() || held.until > until;
            held.token != *token && !held.attached && !held.giving_back && longer
        })
    }

    /// Returns the token by which this connection holds the lock, as far as it knows, and whether the lock is a
    /// session lock. A lock that was granted elsewhere does not count.
    pub(super) fn held_here(&self, key: &Key, now: Instant) -> Option<(&Token, bool)> {
        let held = self.held.get(key).filter(|held| !held.attached && !held.giving_back)?;
        let is_session_lock = held.keep.is_some();
        (is_session_lock || held.until > now).then_some((&held.token, is_session_lock))
    }

    /// Returns the token of a lease that this connection has, as far as it knows: another connection may have
    /// released it.
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

    /// Makes room to remember this lock, and returns whether there is any.
    pub(super) fn make_room(&mut self, key: &Key, now: Instant) -> bool {
        if self.held.len() >= MAX_TOKENS && !self.held.contains_key(key) {
            self.forget_run_out(now);
        }
        self.held.len() < MAX_TOKENS || self.held.contains_key(key)
    }

    /// Makes room to remember so many locks more, and returns whether there is any.
    pub(super) fn make_room_for(&mut self, more: usize, now: Instant) -> bool {
        if self.held.len() + more > MAX_TOKENS {
            self.forget_run_out(now);
        }
        self.held.len() + more <= MAX_TOKENS
    }

    fn forget_run_out(&mut self, now: Instant) {
        self.held.retain(|_, held| held.keep.is_some() || held.until > now);
    }

    /// Whether this connection holds a lock, as far as it knows.
    pub(super) fn holds(&self, key: &Key, now: Instant) -> bool {
        self.held.get(key).is_some_and(|held| held.keep.is_some() || now < held.until)
    }

    /// Whether this connection holds the lock or a part of it by this token, or by any, as far as it knows.
    pub(super) fn has_of(&self, lock: &Key, token: Option<&[u8]>, now: Instant) -> bool {
        self.held.iter().any(|(key, held)| {
            key[..] == lock[..]
                && token.is_none_or(|token| *held.token == *token)
                && !held.attached
                && !held.giving_back
                && self.holds(key, now)
        })
    }

    /// Returns the fence under which this connection holds a lock, and whether it was announced.
    /// Returns `None` if the connection does not hold the lock.
    pub(super) fn claim(&self, key: &Key, now: Instant) -> Option<(u64, bool)> {
        let held = self.held.get(key).filter(|_| self.holds(key, now))?;
        Some((held.fence, held.announced))
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

    /// Notes that the data node has forgotten the fence. Until it has the fence again, and so have the replicas that
    /// must, each write asks the lock nodes first.
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
    pub(super) fn note_raised(&mut self, key: &Key, before: u64, fence: u64) {
        if let Some(held) = self.held.get_mut(key).filter(|held| held.fence == before) {
            held.fence = fence;
        }
    }

    /// Forgets the lock that was granted with this fence: the connection does not hold it any more.
    pub(super) fn forget(&mut self, key: &Key, fence: u64) {
        if self.held.get(key).is_some_and(|held| held.fence == fence) {
            self.end(key);
        }
    }

    /// Forgets a lock that has ended, though the client has not given it back: its UNLOCK is still to
    /// come.
    fn end(&mut self, key: &Key) {
        if let Some(held) = self.held.remove(key) {
            let is_open = matches!(held.unnamed, Unnamed::Own | Unnamed::Refused);
            self.ended.note(&key.of_lock(), is_open);
            self.others_read(key, &held.token, Instant::now());
        }
    }

    /// Takes in that a larger fence than this grant's was seen: another holder has had the lock since. The connection
    /// is told of the end of a session lock as of any loss.
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

    /// Whether the connection was granted, or has attached to, the lock by this token, as far as it knows.
    pub(super) fn has_by(&self, key: &Key, token: &Token) -> bool {
        self.held.get(key).is_some_and(|held| held.token == *token)
    }

    /// Whether UNLOCK was sent for this lock and too few lock nodes have answered it.
    pub(super) fn is_given_back(&self, key: &Key, token: &Token) -> bool {
        self.held.get(key).is_some_and(|held| held.token == *token && held.giving_back)
    }

    /// Notes that a lease was renewed, or a session lock beyond what the watchdog does.
    pub(super) fn renewed(&mut self, key: &Key, token: &Token, ttl: Duration, until: Instant) {
        if let Some(held) = self.held.get_mut(key).filter(|held| held.token == *token) {
            (held.ttl, held.until) = (ttl, until);
        }
    }

    /// Forgets the token of `key` if it is this one: the client has been told that the lock has ended.
    pub(super) fn remove(&mut self, key: &Key, token: &Token) {
        if let Some(held) = self.held.get(key).filter(|held| held.token == *token) {
            let is_open = held.unnamed == Unnamed::Refused;
            self.held.remove(key);
            self.others_read(key, token, Instant::now());
            self.ended.note(&key.of_lock(), is_open);
        }
    }

    /// Forgets a grant that is given back before its client was told of it: its LOCK is refused.
    pub(super) fn undo(&mut self, key: &Key, fence: u64) {
        let Some(held) = self.held.get(key).filter(|held| held.fence == fence) else { return };
        let token = (held.unnamed != Unnamed::Own).then(|| held.token.clone());
        let in_the_way = InTheWay::GivenBack(held.claim);
        self.end(key);
        self.settle(Attempt { key: key.clone(), token, in_the_way, at: Instant::now() });
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
                self.end(&lost.key);
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

    /// Restores the hold from before a second grant, of which the client is told that it failed.
    pub(super) fn restore(&mut self, key: &Key, before: Before) {
        if let Some(held) = self.held.get_mut(key) {
            held.until = held.until.max(before.until);
            if !before.was_session_lock {
                held.keep = None;
            }
        }
    }

    /// Whether there is a session lock.
    pub(super) fn has_session_locks(&self) -> bool {
        self.held.values().any(|held| held.keep.is_some())
    }

    /// Releases all session locks, as the client has ended or RESET the connection. Those that adopted commands took
    /// stay: a pool closes connections while clients still count on the locks.
    /// `also` is told of each.
    pub(super) fn give_back(&mut self, also: impl Fn(&Key, &Token)) {
        let mut given_back = Vec::new();
        self.held.retain(|key, held| match held.keep.take_if(|keep| !keep.is_adopted()) {
            Some(keep) => {
                also(key, &held.token);
                given_back.push(keep);
                false
            }
            None => true,
        });
        Keep::give_back(given_back);
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
    /// The connection's earlier hold on the lock.
    pub(super) again: Option<Before>,
    /// The client does not count on the lock yet.
    pub(super) is_new: bool,
    /// How long the client counts on the lock if the reply does not tell its validity.
    pub(super) least: Option<Duration>,
}

impl Granted {
    fn new(key: &Key, token: &Token, grant: &Grant, attached: bool) -> Granted {
        let Grant { fence, claim, .. } = *grant;
        let (key, token) = (key.clone(), token.clone());
        Granted { key, token, claim, fence, attached, again: None, is_new: false, least: None }
    }

    /// Makes the record of a lock granted to an adopted command, whose client counts on it for `ttl`.
    pub(super) fn adopted(key: &Key, token: &Token, grant: &Grant, ttl: Duration) -> Granted {
        Granted { least: Some(ttl), ..Granted::here(key, token, grant, None) }
    }

    pub(super) fn here(key: &Key, token: &Token, grant: &Grant, again: Option<Before>) -> Granted {
        let is_new = again.is_none();
        Granted { again, is_new, ..Granted::new(key, token, grant, false) }
    }

    /// Makes the record of an adopted command's lock that has a new claim, and whose client counts on it for `ttl`.
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
        // The client says that the grant is its own.
        self.attempts.forget(key, token);
        match self.held.get_mut(key).filter(|held| held.token == *token) {
            Some(held) => {
                held.until = until;
                // The lock nodes never tell too large a fence, but the one known before may be
                // larger.
                if fence > held.fence {
                    (held.fence, held.announced) = (fence, false);
                    if held.keep.is_none() {
                        // Another grant than the one known here, which has ended.
                        (held.claim, held.attached) = (None, true);
                    }
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

    /// Forgets a lock that this token does not hold, as the lock nodes have said. A session lock is left to the
    /// watchdog.
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
