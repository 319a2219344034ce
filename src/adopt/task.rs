//! What an enforced rule makes of an idiom: a task for the lock nodes, or an error.

use std::time::Duration;

use super::{
    by_holder::{Act, Acts, Replies},
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
    /// Makes the task of a command on this key, or on one that is not known.
    pub(super) fn new(key: Vec<u8>, lock: Vec<u8>, work: AdoptWork) -> AdoptTask {
        AdoptTask {
            key,
            lock,
            database: None,
            others: Vec::new(),
            work,
            options: AdoptOptions::default(),
            aside: Vec::new(),
            sender: SentBy::default(),
            seen: Sightings::new(),
            sighting: None,
        }
    }
}

/// What is to be done for a command on an adopted key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum AdoptWork {
    /// Do something with the lock, or nothing, by who holds it.
    Lock(LockWork),
    /// Tell who holds the lock, or for how long.
    Look(LookWord),
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
    /// Whether the command is answered with an error.
    pub(crate) fn is_refusal(&self) -> bool {
        matches!(self, AdoptWork::Refuse(_) | AdoptWork::Fail(_))
    }

    /// Whether the command frees the lock, which cannot be undone.
    pub(crate) fn frees(&self) -> bool {
        matches!(self, AdoptWork::Lock(work) if work.acts.own == Act::Free)
    }

    /// Whether a lock is given back or extended.
    pub(super) fn gives_back_or_extends(&self) -> bool {
        let AdoptWork::Lock(LockWork { acts, ttl, .. }) = self else { return false };
        acts.own == Act::Free || acts.own != Act::Nothing && ttl.is_some()
    }
}

/// What is done with a lock, and what its client is told, by who holds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LockWork {
    /// The token by which the lock is the command's own, as the lock nodes store it. `None`: any by which an adopted
    /// command holds the lock.
    pub(crate) token: Option<Token>,
    /// The TTL, as the client asks for it; zero if it gives a time that has passed. `None`: the command has none. A
    /// lock that is taken or renewed without a TTL is kept for as long as the connection lives.
    pub(crate) ttl: Option<Duration>,
    pub(crate) acts: Acts,
    pub(crate) replies: Replies,
    /// Set if the first free one of several locks is taken: the reply is this name and the place of that lock.
    pub(crate) first_of: Option<Vec<u8>>,
    pub(crate) readers: WorkOnReaders,
}

/// What a command has to do with readers of its lock.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum WorkOnReaders {
    /// Nothing.
    #[default]
    None,
    /// The token may be a reader's: what is not done to a lock that the token holds alone is done to the reader's part.
    May,
    /// It takes a reader's part.
    Takes,
}

impl LockWork {
    /// Makes the work of these acts, where they fit the replies: a script with a reply of its own for a lock without a
    /// TTL does not renew that.
    pub(super) fn new(
        (token, ttl): (Option<Token>, Option<Duration>),
        mut acts: Acts,
        mut replies: Replies,
    ) -> LockWork {
        if token.is_none() {
            // The lock is the command's own, whichever token holds it. A lock of a LOCK client is not: it counts as free.
            (replies.endless, replies.other) = (replies.own, replies.absent);
        } else if acts.own == Act::Renew && (ttl.is_none() || replies.own != replies.endless) {
            acts.endless = Act::Nothing;
        }
        LockWork { token, ttl, acts, replies, first_of: None, readers: WorkOnReaders::None }
    }

    /// Whether the lock is taken without a TTL, or loses its TTL.
    pub(crate) fn keeps(&self) -> bool {
        self.ttl.is_none() && (self.acts.absent == Act::Take || self.acts.own == Act::Renew)
    }
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

/// Whether a script does the same for several keys, and its reply is their number, or 1.
pub(super) fn is_for_many(idiom: &Idiom<'_>) -> bool {
    let replies = match idiom.op {
        Op::Acquire => ["1", "0", "0", "0"],
        Op::Extend | Op::Release => ["0", "1", "1", "0"],
        _ => return false,
    };
    idiom.replies == Replies::read(replies)
}

/// Returns what is to be done for an idiom that was judged so. `obstacle`: why the proxy cannot carry it out, if it
/// cannot.
pub(super) fn of(
    idiom: &Idiom<'_>,
    (verdict, because): (AdoptVerdict, &'static str),
    obstacle: Option<&'static str>,
    options: &AdoptOptions,
) -> AdoptWork {
    let refuse = AdoptWork::Refuse;
    if idiom.op == Op::Watch && obstacle.is_none() {
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
    if let Some(obstacle) = obstacle {
        return refuse(obstacle);
    }
    match look_word(idiom.form).filter(|_| idiom.op == Op::Look) {
        Some(word) => AdoptWork::Look(word),
        None => lock_work(idiom, options).map_or_else(refuse, AdoptWork::Lock),
    }
}

/// Returns what is done with the lock of an idiom that the lock nodes are to carry out.
///
/// # Errors
/// Why they cannot.
fn lock_work(idiom: &Idiom<'_>, options: &AdoptOptions) -> Result<LockWork, &'static str> {
    const NO_TTL: &str = "its TTL is not above 0";
    let asked = idiom.ttl.and_then(|(ttl, unit)| duration(ttl, unit));
    let frees = idiom.frees_at_zero && idiom.ttl.is_some_and(|(ttl, _)| ttl <= 0);
    let ttl = || asked.map(Some).ok_or(NO_TTL);
    // That of a lock for which the client gives none.
    let given = || match options.no_ttl {
        NoTtlPolicy::For(given) => Ok(Some(given)),
        NoTtlPolicy::Session => Ok(None),
        NoTtlPolicy::Refuse => Err(NO_TTL),
    };
    let (acts, ttl) = match idiom.op {
        Op::Acquire if idiom.until.is_some() => (Acts::TAKE, Some(asked.unwrap_or_default())),
        Op::Acquire | Op::AcquireFirst => (Acts::TAKE, ttl()?),
        Op::AcquireForEver => (Acts::TAKE, given()?),
        Op::AcquireAgain if idiom.ttl.is_none() => (Acts::TAKE_OR_RENEW, given()?),
        Op::AcquireAgain | Op::AcquireShared => (Acts::TAKE_OR_RENEW, ttl()?),
        Op::Extend | Op::OverwriteHeld | Op::ExtendBlind if frees => (Acts::FREE, None),
        Op::Extend | Op::OverwriteHeld | Op::ExtendBlind => (Acts::RENEW, ttl()?),
        Op::Persist => (Acts::RENEW, given()?),
        Op::ExtendBy => (Acts::ADD_TO, ttl()?),
        Op::Release | Op::ReleaseBlind => (Acts::FREE, None),
        Op::Look if idiom.token.is_some() => (Acts::LOOK, None),
        Op::Look => return Err("its reply is not built yet"),
        _ => return Err("it is not built yet"),
    };
    let is_blind = matches!(idiom.op, Op::ReleaseBlind | Op::ExtendBlind);
    let token = idiom.token.filter(|_| !is_blind).map(|value| Token::from(Token::stored(value)));
    if token.is_none() && !is_blind {
        return Err("it is not built yet");
    }
    let first_of = idiom.name.map(<[u8]>::to_vec);
    let readers = match idiom.op {
        Op::AcquireShared => WorkOnReaders::Takes,
        _ if idiom.may_read => WorkOnReaders::May,
        _ => WorkOnReaders::None,
    };
    Ok(LockWork { first_of, readers, ..LockWork::new((token, ttl), acts, idiom.replies) })
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
