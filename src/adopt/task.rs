//! What an enforced rule makes of an idiom: a task for the lock nodes, or an error.

use std::time::Duration;

use super::{
    idiom::{Idiom, Op},
    normal::TtlUnit,
    verdict::AdoptVerdict,
};

/// Replies where the key is absent, has this token, has it without a TTL, has another. As
/// [`super::rows::Behaviour`] has them.
pub(crate) type Replies = [&'static str; 4];

/// A command on an adopted key that the proxy answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AdoptTask {
    /// The key, as the client names it.
    pub(crate) key: Vec<u8>,
    /// The lock that the key stands for in database 0, as a client names it to LOCK.
    pub(crate) lock: Vec<u8>,
    /// The database that a script names: the lock is there.
    pub(crate) database: Option<u64>,
    /// Further keys with their locks, for which the same is to be done.
    pub(crate) others: Vec<(Vec<u8>, Vec<u8>)>,
    /// What is to be done.
    pub(crate) work: AdoptWork,
    /// Commands for the data node, once the lock is released: they wake who waits.
    pub(crate) aside: Vec<Vec<Vec<u8>>>,
    /// Who sends such a command.
    pub(crate) sender: SentBy,
}

/// Who sends a command, as far as its words tell.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct SentBy {
    /// The library, by its script; empty if that is not known.
    pub(crate) library: &'static str,
    /// The words that stand for the command.
    pub(crate) form: &'static str,
}

impl SentBy {
    /// The library, or else the form.
    pub(crate) fn name(self) -> &'static str {
        if self.library.is_empty() { self.form } else { self.library }
    }
}

/// What is to be done for a command on an adopted key. TTLs are what the client asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum AdoptWork {
    /// Take the lock if nobody holds it, whatever the token.
    Acquire { token: Vec<u8>, ttl: Duration, replies: Replies },
    /// Renew the lock for its token, or take it if nobody holds it.
    AcquireAgain { token: Vec<u8>, ttl: Duration, replies: Replies },
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
    /// Refuse the command for this reason.
    Refuse(&'static str),
    /// Answer this error.
    Fail(&'static str),
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
    /// The command's name.
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

const SET: Replies = ["+OK", "nil", "nil", "nil"];
const SET_HELD: Replies = ["nil", "+OK", "+OK", "nil"];
const COMPARED: Replies = ["0", "1", "1", "0"];
const BLIND: Replies = ["0", "1", "1", "1"];

/// Whether a script does the same for several keys, and its reply is their number.
pub(super) fn is_for_many(op: Op, replies: Replies) -> bool {
    matches!(
        (op, replies),
        (Op::Acquire, ["1", "0", "0", "0"]) | (Op::Extend | Op::Release, ["0", "1", "1", "0"])
    )
}

/// What is known of a command besides its words.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Circumstances {
    /// A script's replies.
    pub(super) replies: Option<Replies>,
    /// What the script does besides, or needs, that is not built.
    pub(super) obstacle: Option<&'static str>,
    /// A TTL of 0 or less frees the lock, as with EXPIRE.
    pub(super) zero_frees: bool,
    /// The database that a script names.
    pub(super) database: Option<u64>,
}

/// What is to be done for an idiom on one key, which was judged so.
pub(super) fn of(
    idiom: &Idiom<'_>,
    (verdict, because): (AdoptVerdict, &'static str),
    known: Circumstances,
) -> AdoptWork {
    let refuse = AdoptWork::Refuse;
    match verdict {
        AdoptVerdict::Quorum => {}
        AdoptVerdict::NoScript => {
            return AdoptWork::Fail("NOSCRIPT No matching script. Please use EVAL.");
        }
        AdoptVerdict::Error => return AdoptWork::Fail("ERR syntax error"),
        AdoptVerdict::Refused | AdoptVerdict::Unknown => return refuse(because),
    }
    if let Some(obstacle) = known.obstacle {
        return refuse(obstacle);
    }
    let replies = |otherwise| known.replies.unwrap_or(otherwise);
    let token = idiom.token.map(<[u8]>::to_vec);
    let frees = known.zero_frees && idiom.ttl.is_some_and(|(ttl, _)| ttl <= 0);
    let ttl = idiom.ttl.and_then(|(ttl, unit)| duration(ttl, unit));
    const NO_TTL: &str = "its TTL is a time of day, or not above 0";
    match (idiom.op, token) {
        (Op::Acquire, Some(token)) => match ttl {
            Some(ttl) => AdoptWork::Acquire { token, ttl, replies: replies(SET) },
            None => refuse(NO_TTL),
        },
        (Op::AcquireAgain, Some(token)) => match ttl {
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
            (_, Some(token), Some(replies)) if !replies.iter().any(|one| one.starts_with('[')) => {
                AdoptWork::Left { token, replies }
            }
            _ => refuse("its reply is not built yet"),
        },
        _ => refuse("it is not built yet"),
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
