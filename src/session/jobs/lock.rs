//! LOCK.

use std::time::Duration;

use super::{
    super::{
        attempts::InTheWay,
        claims::{Granted, Held, MAX_TOKENS},
        desk::Desk,
        session_metrics::Outcome,
    },
    Attached, Job, Ours, Progress, Question, announce, unexpected,
};
use crate::{
    clock::{Instant, millis},
    command::{BadRequest, shown},
    key::{Key, Token},
    lock::{Claim, Grant, NoQuorum, NotAttached, NotGranted, SameToken},
    resp::encode,
};

/// A LOCK about which the lock nodes are asked.
struct Locking {
    ours: Ours,
    wanted: LockWanted,
    /// The TTL that the lock nodes are asked for: the default may change meanwhile.
    ttl: Duration,
    /// The token of this connection's own lease, for which the LOCK waits until the client sends more behind it.
    own_lease: Option<Token>,
    /// The connection has the lock by this token, as far as it knows.
    again: bool,
    /// The lock's keys on the data node are taken too.
    is_bridged: bool,
    /// Set once the lock nodes have granted the lock and its rule has been bridged meanwhile: the claim of that
    /// grant.
    granted_before: Option<Option<Claim>>,
}

/// Makes a token that cannot be guessed: 128 random bits as 32 hexadecimal digits.
pub(super) fn new_token() -> Token {
    let bytes = rand::random::<u128>().to_le_bytes();
    let mut token = [0; 32];
    for (at, byte) in bytes.iter().enumerate() {
        let digit = |value: u8| b"0123456789abcdef"[usize::from(value)];
        (token[2 * at], token[2 * at + 1]) = (digit(byte >> 4), digit(byte & 15));
    }
    Token::from(&token)
}

/// Asks the lock nodes.
///
/// # Errors
/// If the connection has too many locks to keep one more, or would wait for its own session lock.
pub(super) fn begin(
    ours: Ours,
    key: Key,
    token: Option<Token>,
    (ttl, wait): (Option<Duration>, Option<Duration>),
    desk: &mut Desk,
) -> Result<Progress, BadRequest> {
    let (named, is_session_lock) = (token.is_some(), ttl.is_none());
    if is_session_lock && !desk.tokens.make_room(&key, ours.since) {
        return Err(BadRequest::TooManySessionLocks(MAX_TOKENS));
    }
    // No guarded write could be made under a lock that is not remembered.
    if desk.is_guard_lock(&key) && !desk.tokens.make_room(&key, ours.since) {
        return Err(BadRequest::TooManyLocks(MAX_TOKENS));
    }
    if wait.is_some() && desk.tokens.keeps_reader(&key) {
        desk.tokens.stood_in_the_way(InTheWay::of_others());
        return Err(BadRequest::Deadlock);
    }
    let token = token.unwrap_or_else(new_token);
    let wanted = LockWanted { key, token, named, ttl, wait };
    let LockWanted { key, token, .. } = &wanted;
    if wait.is_some_and(|wait| desk.tokens.outlasts(key, token, ours.since + wait)) {
        // A pool releases a lease on whichever connection it has at hand, and sends nothing behind a LOCK.
        if let Some(held) = desk.tokens.lease(key) {
            return Ok(wanted.ask(ours, Some(held), desk));
        }
        desk.tokens.stood_in_the_way(InTheWay::of_others());
        return Err(BadRequest::Deadlock);
    }
    Ok(wanted.ask(ours, None, desk))
}

/// What a LOCK asks for.
struct LockWanted {
    key: Key,
    token: Token,
    /// The client has named the token.
    named: bool,
    /// `None`: a session lock.
    ttl: Option<Duration>,
    wait: Option<Duration>,
}

impl LockWanted {
    /// Takes in whether this connection still has the lock that the LOCK would wait for, by the lease with the token
    /// `held`.
    fn doubted(self, ours: Ours, held: &Token, said: Vec<Attached>, desk: &mut Desk) -> Progress {
        // Only one lock was asked about.
        match said.into_iter().next() {
            Some(Ok(None)) | None => {
                desk.tokens.not_held(&self.key, held);
                self.ask(ours, None, desk)
            }
            Some(Err(NotAttached::NoQuorum(error))) => {
                desk.tokens.stood_in_the_way(InTheWay::Unknown(Instant::now()));
                no_quorum(ours, &error, desk)
            }
            Some(Ok(Some(_)) | Err(NotAttached::FenceForgotten)) => {
                desk.tokens.stood_in_the_way(InTheWay::of_others());
                ours.refuse(&BadRequest::Deadlock.to_string(), Outcome::BadRequest, desk)
            }
        }
    }

    /// Asks the lock nodes. `own_lease`: the token of this connection's own lease that the LOCK waits for.
    fn ask(self, ours: Ours, own_lease: Option<Token>, desk: &Desk) -> Progress {
        let LockWanted { key, token, wait, .. } = &self;
        // A grant to an adopted command is not a LOCK's: blind commands may end it.
        let again = desk.tokens.claim_of(key, token).filter(|claim| !claim.is_adopted());
        let (is_again, is_bridged) = (again.is_some(), desk.shared.is_bridged(key));
        let ttl = self.ttl.unwrap_or(desk.config.locks.default_ttl);
        let (key, token, wait) = (key.clone(), token.clone(), *wait);
        let question = Question::lock(key, token, ttl, again, wait);
        let locking = Locking {
            ours,
            wanted: self,
            ttl,
            own_lease,
            again: is_again,
            is_bridged,
            granted_before: None,
        };
        Progress::ask(locking, question, Locking::answered)
    }
}

impl Job for Locking {
    fn asks_for(&self) -> Option<Ours> {
        Some(self.ours)
    }

    fn waits_in_line(&self) -> bool {
        self.wanted.wait.is_some()
    }

    fn gives_way(&self) -> bool {
        self.own_lease.is_some()
    }

    fn more_came(self: Box<Self>, _desk: &mut Desk) -> Progress {
        let Locking { ours, mut wanted, own_lease, .. } = *self;
        let Some(held) = own_lease else { return unexpected() };
        let waited = Instant::now().saturating_duration_since(ours.since);
        wanted.wait = wanted.wait.map(|wait| wait.saturating_sub(waited));
        let question = Question::attached(vec![(wanted.key.clone(), held.clone())]);
        let doubted = move |ours, said, desk: &mut Desk| wanted.doubted(ours, &held, said, desk);
        Progress::ask(ours, question, doubted)
    }
}

impl Locking {
    /// Takes in whether the lock nodes have granted the lock.
    fn answered(self, said: Result<Grant, NotGranted>, desk: &mut Desk) -> Progress {
        match said {
            Ok(grant) if !self.is_bridged && desk.shared.is_bridged(&self.wanted.key) => {
                self.ask_for_keys(&grant)
            }
            Ok(grant) => self.granted(grant, desk),
            Err(why) => self.refused(why, desk),
        }
    }

    /// Asks for the lock once more, with its keys on the data node: its rule was bridged while the client waited.
    fn ask_for_keys(self, grant: &Grant) -> Progress {
        let Locking { wanted: LockWanted { key, token, .. }, ttl, .. } = &self;
        let (key, token, ttl, again) = (key.clone(), token.clone(), *ttl, grant.claim);
        let question = Question::lock(key, token, ttl, again, None);
        let granted_before = Some(grant.claim);
        let locking = Locking { is_bridged: true, own_lease: None, granted_before, ..self };
        Progress::ask(locking, question, Locking::answered)
    }

    /// Gives back what the lock nodes granted before the lock's rule was bridged.
    fn give_back_granted(&mut self, desk: &Desk) {
        if let Some(claim) = self.granted_before.take() {
            desk.shared.give_back(self.wanted.key.clone(), self.wanted.token.clone(), claim);
        }
    }

    fn refused(mut self, why: NotGranted, desk: &mut Desk) -> Progress {
        self.give_back_granted(desk);
        let has_waited = self.wanted.named && self.waits_in_line();
        let LockWanted { key, token, .. } = self.wanted;
        refused(self.ours, (key, token), has_waited, why, desk)
    }

    fn granted(self, grant: Grant, desk: &mut Desk) -> Progress {
        let Locking { ours, wanted, ttl, again, .. } = self;
        let LockWanted { key, token, ttl: named_ttl, .. } = wanted;
        let is_session_lock = named_ttl.is_none();
        let mut out = Vec::with_capacity(96);
        let now = Instant::now();
        desk.shared.metrics.granted(is_session_lock);
        // The client is told of this grant alone: the one before may have ended unknown to this connection.
        let again = desk.tokens.before(&key, &token, now).filter(|_| again);
        let keep = if is_session_lock { desk.keep(&key, &token, ttl, &grant) } else { None };
        let validity = keep.as_ref().map(|keep| keep.within_hold(grant.validity));
        encode_grant(&mut out, &token, grant.fence, validity.unwrap_or(grant.validity));
        let granted = Granted::here(&key, &token, &grant, again);
        desk.tokens.granted(key, Held::granted(token, ttl, &grant, keep), now);
        ours.count(Outcome::Ok, desk);
        announce::granted(ours, granted, out, desk)
    }
}

/// Answers that a lock is not granted to this token, and notes which grants of the token stood in the way. `has_waited`:
/// the client has named the token, and has waited in line.
pub(super) fn refused(
    ours: Ours,
    (key, token): (Key, Token),
    has_waited: bool,
    why: NotGranted,
    desk: &mut Desk,
) -> Progress {
    let is_refused = matches!(why, NotGranted::Held { .. } | NotGranted::Deadlock { .. });
    if has_waited && is_refused {
        // It may have asked no lock node, or long ago: another client with its token may have been granted the lock
        // meanwhile.
        let question = Question::claim_of(key, token);
        return Progress::ask(ours, question, move |ours, said, desk| {
            let same_token = match said {
                Ok(claim) => SameToken::Grants(claim.into_iter().collect()),
                Err(_) => SameToken::Unknown,
            };
            desk.tokens.stood_in_the_way(InTheWay::of(same_token, Instant::now()));
            not_granted(ours, &why, desk)
        });
    }
    let same_token = match &why {
        NotGranted::Held { same_token, .. } => same_token.clone(),
        _ => SameToken::Unknown,
    };
    desk.tokens.stood_in_the_way(InTheWay::of(same_token, Instant::now()));
    not_granted(ours, &why, desk)
}

/// Answers that a lock is not granted, and why.
pub(super) fn not_granted(ours: Ours, why: &NotGranted, desk: &Desk) -> Progress {
    match why {
        NotGranted::QueueFull { limit, permits } => {
            let error = match permits {
                false => format!("QUEUEFULL {limit} clients wait for this lock already"),
                true => format!("QUEUEFULL clients wait for as many as {limit} permits already"),
            };
            ours.refuse(&error, Outcome::QueueFull, desk)
        }
        NotGranted::Held { .. } => {
            let mut out = Vec::new();
            encode::null_array(&mut out, desk.conn.state.resp3);
            ours.count(Outcome::Busy, desk);
            ours.answer(out, None)
        }
        NotGranted::Deadlock { keys } => {
            let names: Vec<String> =
                keys.iter().map(|key| format!("'{}'", shown(desk.name(key)))).collect();
            let error = format!("DEADLOCK clients wait for one another: {}", names.join(", "));
            ours.refuse(&error, Outcome::BadRequest, desk)
        }
        NotGranted::NoQuorum(error) => no_quorum(ours, error, desk),
    }
}

/// Answers that too few lock nodes have answered, or that the audit trail cannot be written.
pub(super) fn no_quorum(ours: Ours, error: &NoQuorum, desk: &Desk) -> Progress {
    let outcome = if error.is_unwritten { Outcome::Unwritten } else { Outcome::NoQuorum };
    ours.refuse(&error.told(), outcome, desk)
}

/// Appends the reply to a LOCK that was granted, or to a LOCK.ATTACH.
pub(super) fn encode_grant(out: &mut Vec<u8>, token: &Token, fence: u64, validity: Duration) {
    encode::array(out, 3);
    encode::bulk(out, token);
    encode::integer(out, i64::try_from(fence).unwrap_or(i64::MAX));
    encode_millis(out, validity);
}

pub(super) fn encode_millis(out: &mut Vec<u8>, duration: Duration) {
    encode::integer(out, i64::try_from(millis(duration)).unwrap_or(i64::MAX));
}
