//! What an enforced rule makes of an idiom: a task for the lock nodes, or an error.

use std::time::Duration;

use super::{
    by_holder::Replies,
    idiom::{Idiom, NO_SCRIPT, Op},
    normal::TtlUnit,
    sighting::{Sighting, Sightings},
    verdict::{AdoptVerdict, Limits},
};
use crate::{
    config::{AdoptOptions, NoTtlPolicy},
    key::Token,
};

/// The most keys of one command: its locks are asked for one after the other.
pub(super) const MAX_KEYS: usize = 16;
/// Why a command with more keys is not carried out.
pub(super) const TOO_MANY_KEYS: &str = "it has more than 16 keys";

/// What the proxy does for a command on an adopted key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AdoptTask {
    /// The key, as the client names it.
    pub(crate) key: Vec<u8>,
    /// The lock that the key stands for in database 0, named as in LOCK.
    pub(crate) lock: Vec<u8>,
    /// The database of the lock, if a script names one.
    pub(crate) database: Option<u64>,
    /// Further keys with their locks, for which the same is to be done.
    pub(crate) others: Vec<(Vec<u8>, Vec<u8>)>,
    /// What is to be done.
    pub(crate) work: AdoptWork,
    /// The options of the rule.
    pub(crate) options: AdoptOptions,
    /// Commands for the data node, once the lock is released: they wake the library's waiters.
    pub(crate) aside: Vec<Vec<Vec<u8>>>,
    /// The sender of the command.
    pub(crate) sender: SentBy,
    /// What is to be counted once it is known that the client may send the command.
    pub(crate) seen: Sightings,
    /// The sighting of the command itself.
    pub(crate) sighting: Option<Sighting>,
}

/// The sender of a command, as far as its words tell.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct SentBy {
    /// The library, by its script; empty if that is not known.
    pub(crate) library: &'static str,
    /// The words that stand for the command.
    pub(crate) form: &'static str,
}

impl SentBy {
    /// Returns the library, or else the form.
    pub(crate) fn name(self) -> &'static str {
        if self.library.is_empty() { self.form } else { self.library }
    }
}

impl AdoptTask {
    /// Makes the task of a command whose key is not known.
    pub(super) fn without_key(work: AdoptWork) -> AdoptTask {
        let (key, lock, others, aside) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let options = AdoptOptions::default();
        let sender = SentBy::default();
        let (seen, sighting) = (Sightings::new(), None);
        AdoptTask {
            key,
            lock,
            database: None,
            others,
            work,
            options,
            aside,
            sender,
            seen,
            sighting,
        }
    }
}

/// What is to be done for a command on an adopted key. TTLs are as the client asks for them, tokens as
/// the lock nodes store them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum AdoptWork {
    /// Take the lock if it is free, whatever the token.
    Acquire { token: Vec<u8>, ttl: Duration, replies: Replies },
    /// Take the lock until a time that has passed: only tell whether it could be taken.
    AcquirePast { replies: Replies },
    /// Renew the lock for its token, or take it if it is free.
    AcquireAgain { token: Vec<u8>, ttl: Duration, replies: Replies },
    /// Take the lock without a TTL, or remove its TTL.
    Keep { token: Vec<u8>, of: KeptFrom, replies: Replies },
    /// Give the lock a new TTL if the token holds it.
    Extend { token: Vec<u8>, ttl: Duration, replies: Replies },
    /// Add to the lock's TTL if the token holds it.
    ExtendBy { token: Vec<u8>, ttl: Duration, replies: Replies },
    /// Free the lock if the token holds it.
    Release { token: Vec<u8>, replies: Replies },
    /// Give the lock a new TTL, whichever token of an adopted command holds it.
    ExtendBlind { ttl: Duration, replies: Replies },
    /// Free the lock, whichever token of an adopted command holds it.
    ReleaseBlind { replies: Replies },
    /// Tell who holds the lock, or for how long.
    Look(LookWord),
    /// Tell for how long the token holds the lock.
    Left { token: Vec<u8>, replies: Replies },
    /// Watch the lock for a transaction.
    Watch,
    /// Queue this for EXEC.
    Queue(QueuedWork),
    /// Refuse the command for this reason.
    Refuse(&'static str),
    /// Answer with this error.
    Fail(&'static str),
}

impl AdoptWork {
    /// Whether a lock is given back or extended.
    pub(super) fn is_giving_back_or_extending(&self) -> bool {
        matches!(
            self,
            AdoptWork::AcquireAgain { .. }
                | AdoptWork::Extend { .. }
                | AdoptWork::ExtendBy { .. }
                | AdoptWork::ExtendBlind { .. }
                | AdoptWork::Release { .. }
                | AdoptWork::ReleaseBlind { .. }
        )
    }
}

/// The holder that a lock may have when it is to be kept without a TTL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeptFrom {
    /// None: the lock is free.
    Nobody,
    /// None, or the token.
    NobodyOrToken,
    /// The token.
    Token,
}

/// What EXEC does to the lock whose token GET told under WATCH.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum QueuedWork {
    /// Free it.
    Release,
    /// Give it a new TTL.
    Extend(Duration),
}

/// A command that reads a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LookWord {
    Get,
    Exists,
    Ttl,
    Pttl,
    Type,
    Strlen,
}

impl LookWord {
    /// Returns the command's name.
    pub(crate) fn name(self) -> &'static [u8] {
        match self {
            LookWord::Get => b"GET",
            LookWord::Exists => b"EXISTS",
            LookWord::Ttl => b"TTL",
            LookWord::Pttl => b"PTTL",
            LookWord::Type => b"TYPE",
            LookWord::Strlen => b"STRLEN",
        }
    }
}

const SET: Replies = Replies::read(["+OK", "nil", "nil", "nil"]);
const SET_HELD: Replies = Replies::read(["nil", "+OK", "+OK", "nil"]);
const COMPARED: Replies = Replies::read(["0", "1", "1", "0"]);
const BLIND: Replies = Replies::read(["0", "1", "1", "1"]);
/// Replies of scripts that do the same for several keys: 1, or the number of keys.
const TAKEN: Replies = Replies::read(["1", "0", "0", "0"]);

/// Whether a script does the same for several keys, and its reply is their number.
pub(super) fn is_for_many(op: Op, replies: Replies) -> bool {
    match op {
        Op::Acquire => replies == TAKEN,
        Op::Extend | Op::Release => replies == COMPARED,
        _ => false,
    }
}

/// What is known of a command besides its words.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Circumstances {
    /// A script's replies.
    pub(super) replies: Option<Replies>,
    /// Why the proxy cannot carry the command out, if it cannot.
    pub(super) obstacle: Option<&'static str>,
    /// A TTL of 0 or less, or a time that has passed, frees the lock, as with EXPIRE.
    pub(super) zero_frees: bool,
    /// The database that a script names.
    pub(super) database: Option<u64>,
}

/// Returns what is to be done for an idiom on one key that was judged so.
pub(super) fn of(
    idiom: &Idiom<'_>,
    (verdict, because): (AdoptVerdict, &'static str),
    known: Circumstances,
    options: &AdoptOptions,
) -> AdoptWork {
    let refuse = AdoptWork::Refuse;
    if idiom.op == Op::Watch && known.obstacle.is_none() {
        return AdoptWork::Watch;
    }
    match verdict {
        AdoptVerdict::Quorum => {}
        AdoptVerdict::NoScript => {
            return AdoptWork::Fail(NO_SCRIPT);
        }
        AdoptVerdict::Error => return AdoptWork::Fail(idiom.error),
        AdoptVerdict::Refused | AdoptVerdict::Unknown | AdoptVerdict::Forwarded => {
            return refuse(because);
        }
    }
    if let Some(obstacle) = known.obstacle {
        return refuse(obstacle);
    }
    let replies = |otherwise| known.replies.unwrap_or(otherwise);
    let token = idiom.token.map(|value| Token::stored(value).to_vec());
    let frees = known.zero_frees && idiom.ttl.is_some_and(|(ttl, _)| ttl <= 0);
    let ttl = idiom.ttl.and_then(|(ttl, unit)| duration(ttl, unit));
    const NO_TTL: &str = "its TTL is not above 0";
    let given = match options.no_ttl {
        NoTtlPolicy::For(given) => Some(given),
        NoTtlPolicy::Refuse | NoTtlPolicy::Session => None,
    };
    let is_kept = options.no_ttl == NoTtlPolicy::Session;
    match (idiom.op, token) {
        (Op::AcquireForEver, Some(token)) if is_kept => {
            AdoptWork::Keep { token, of: KeptFrom::Nobody, replies: replies(SET) }
        }
        (Op::AcquireAgain, Some(token)) if is_kept && idiom.ttl.is_none() => {
            AdoptWork::Keep { token, of: KeptFrom::NobodyOrToken, replies: replies(SET) }
        }
        (Op::Persist, Some(token)) if is_kept => {
            AdoptWork::Keep { token, of: KeptFrom::Token, replies: replies(SET_HELD) }
        }
        (Op::AcquireForEver, Some(token)) => match given {
            Some(ttl) => AdoptWork::Acquire { token, ttl, replies: replies(SET) },
            None => refuse(NO_TTL),
        },
        (Op::Persist, Some(token)) => match given {
            Some(ttl) => AdoptWork::Extend { token, ttl, replies: replies(SET_HELD) },
            None => refuse(NO_TTL),
        },
        (Op::Acquire, Some(token)) => match ttl {
            Some(ttl) => AdoptWork::Acquire { token, ttl, replies: replies(SET) },
            None if idiom.until.is_some() => AdoptWork::AcquirePast { replies: replies(SET) },
            None => refuse(NO_TTL),
        },
        (Op::AcquireAgain, Some(token)) => match ttl.or(given.filter(|_| idiom.ttl.is_none())) {
            Some(ttl) => AdoptWork::AcquireAgain { token, ttl, replies: replies(SET) },
            None => refuse(NO_TTL),
        },
        (Op::Extend | Op::OverwriteHeld, Some(token)) => match ttl {
            Some(ttl) => AdoptWork::Extend { token, ttl, replies: replies(SET_HELD) },
            None if frees => AdoptWork::Release { token, replies: replies(COMPARED) },
            None => refuse(NO_TTL),
        },
        (Op::ExtendBy, Some(token)) => match ttl {
            Some(ttl) => AdoptWork::ExtendBy { token, ttl, replies: replies(COMPARED) },
            None => refuse(NO_TTL),
        },
        (Op::Release, Some(token)) => AdoptWork::Release { token, replies: replies(COMPARED) },
        (Op::ReleaseBlind, _) => AdoptWork::ReleaseBlind { replies: replies(BLIND) },
        (Op::ExtendBlind, _) => match ttl {
            Some(ttl) => AdoptWork::ExtendBlind { ttl, replies: replies(BLIND) },
            None if frees => AdoptWork::ReleaseBlind { replies: replies(BLIND) },
            None => refuse(NO_TTL),
        },
        (Op::Look, token) => match (look_word(idiom.form), token, known.replies) {
            (Some(word), None, None) => AdoptWork::Look(word),
            (_, Some(token), Some(replies)) => AdoptWork::Left { token, replies },
            _ => refuse("its reply is not built yet"),
        },
        _ => refuse("it is not built yet"),
    }
}

/// Returns what a command on one key does at EXEC. `None`: the known transaction has no such command,
/// or its TTL is too long.
pub(super) fn queued(idiom: &Idiom<'_>, limits: &Limits) -> Option<QueuedWork> {
    match (idiom.op, idiom.form, idiom.ttl) {
        (Op::ReleaseBlind, "DEL" | "UNLINK", None) => Some(QueuedWork::Release),
        (Op::ExtendBlind, "EXPIRE" | "PEXPIRE", Some((ttl, unit))) => match duration(ttl, unit) {
            None => Some(QueuedWork::Release),
            Some(ttl) => (ttl <= limits.max_ttl).then_some(QueuedWork::Extend(ttl)),
        },
        _ => None,
    }
}

fn look_word(form: &str) -> Option<LookWord> {
    Some(match form {
        "GET" => LookWord::Get,
        "EXISTS" => LookWord::Exists,
        "TTL" => LookWord::Ttl,
        "PTTL" => LookWord::Pttl,
        "TYPE" => LookWord::Type,
        "STRLEN" => LookWord::Strlen,
        _ => return None,
    })
}

/// Returns `None` unless the TTL is above 0.
fn duration(ttl: i64, unit: TtlUnit) -> Option<Duration> {
    let ttl = u64::try_from(ttl).ok().filter(|ttl| *ttl > 0)?;
    Some(match unit {
        TtlUnit::Seconds => Duration::from_secs(ttl),
        TtlUnit::Millis => Duration::from_millis(ttl),
    })
}
