//! Reads the words of one command as a lock idiom.
//!
//! Options stand in any order and case, and exclude one another as in Redis: what Redis refuses is
//! [`Op::Malformed`] here. What becomes of an idiom is decided elsewhere.

use std::time::Duration;

use smallvec::SmallVec;

use super::{by_holder::Replies, normal::TtlUnit};
use crate::{metrics::labels, resp::number};

labels! {
    /// What a command does to a lock; the label `idiom` of `lockgate_adopt_seen_total`.
    pub(crate) enum Op {
        /// Takes the lock if it is free, with a TTL.
        Acquire = "acquire",
        /// Takes the lock if it is free, without a TTL.
        AcquireForEver = "acquire_no_ttl",
        /// Takes the lock, or gives it a new TTL if the token holds it already.
        AcquireAgain = "acquire_reentrant",
        /// Takes the first of several locks that is free, with a TTL.
        AcquireFirst = "acquire_first",
        /// Takes a reader's part of the lock, which several clients may have, or gives it a new TTL.
        AcquireShared = "acquire_shared",
        /// Gives the lock a TTL if the token holds it.
        Extend = "extend",
        /// Adds to the TTL if the token holds the lock.
        ExtendBy = "extend_by",
        /// Removes the TTL if the token holds the lock.
        Persist = "persist",
        /// Gives the lock a TTL, whoever holds it.
        ExtendBlind = "blind_extend",
        /// Removes the TTL, whoever holds the lock.
        PersistBlind = "blind_persist",
        /// Frees the lock if the token holds it.
        Release = "release",
        /// Frees the lock, whoever holds it.
        ReleaseBlind = "blind_release",
        /// Reads the token or the TTL.
        Look = "look",
        /// Sets the key, whoever holds the lock.
        Overwrite = "overwrite",
        /// SET with XX: prolongs the lock if its holder sends it, or else takes it from the holder.
        OverwriteHeld = "overwrite_held",
        /// A library's script with an error that makes the lock useless.
        Faulty = "faulty_script",
        /// A script in which the lock is a part of a queued job.
        Job = "job_script",
        /// A script that is not known.
        UnknownScript = "unknown_script",
        /// A digest whose script no client has shown.
        UnseenScript = "unseen_script",
        /// WATCH of a lock that the known transaction does not follow.
        Watch = "watch",
        /// No lock idiom.
        Other = "other",
        /// A command that Redis refuses too.
        Malformed = "malformed",
        /// A command too large to be looked at.
        TooLarge = "too_large",
    }
}

impl Op {
    /// Whether it takes a lock that is free.
    pub(crate) fn takes(self) -> bool {
        use Op::{Acquire, AcquireAgain, AcquireFirst, AcquireForEver, AcquireShared};
        matches!(self, Acquire | AcquireForEver | AcquireAgain | AcquireFirst | AcquireShared)
    }
}

/// An idiom as the words of a command say it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Idiom<'a> {
    /// What the command does.
    pub(crate) op: Op,
    /// The words that stand for the command.
    pub(crate) form: &'static str,
    /// The token.
    pub(crate) token: Option<&'a [u8]>,
    /// The TTL.
    pub(crate) ttl: Option<(i64, TtlUnit)>,
    /// The time of day that was given instead, in milliseconds since 1970.
    pub(crate) until: Option<i64>,
    /// The TTL that was asked for, where it was cut to the longest that a lock may have.
    pub(crate) capped_from: Option<(i64, TtlUnit)>,
    /// The name that a script answers before the place of the lock that it has taken.
    pub(crate) name: Option<&'a [u8]>,
    /// Whether the token may be that of a reader.
    pub(crate) may_read: bool,
    /// The replies; those to a command that only reads are told by its name.
    pub(crate) replies: Replies,
    /// A TTL of 0 or less, or a time that has passed, frees the lock, as with EXPIRE.
    pub(crate) frees_at_zero: bool,
    /// What the command is about other than a lock.
    pub(crate) kind: OtherKind,
    /// Redis's error for a command that it refuses ([`Op::Malformed`]).
    pub(crate) error: &'static str,
}

/// Redis's errors.
const SYNTAX: &str = "ERR syntax error";
pub(super) const NOT_AN_INTEGER: &str = "ERR value is not an integer or out of range";
pub(super) const NO_SCRIPT: &str = "NOSCRIPT No matching script. Please use EVAL.";

macro_rules! errors_with_names {
    ($function:ident: $before:literal, $after:literal, $($name:literal)*) => {
        /// Returns Redis's error with the name of the command, which is given in capitals.
        fn $function(upper: &[u8]) -> &'static str {
            $(if upper.eq_ignore_ascii_case($name.as_bytes()) {
                return concat!($before, $name, $after);
            })*
            SYNTAX
        }
    };
}
errors_with_names!(wrong_number: "ERR wrong number of arguments for '", "' command",
    "set" "setnx" "delifeq" "expire" "pexpire" "expireat" "pexpireat" "persist" "get" "ttl" "pttl" "type"
    "strlen");
errors_with_names!(invalid_expire: "ERR invalid expire time in '", "' command",
    "set" "expireat" "pexpireat");

/// What a command that is no lock idiom is about.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum OtherKind {
    /// Nothing that suggests a library.
    #[default]
    Any,
    /// A hash, as Redisson's locks.
    Hash,
    /// A sorted set, as Symfony's locks.
    SortedSet,
}

impl<'a> Idiom<'a> {
    pub(super) fn new(op: Op, form: &'static str) -> Idiom<'a> {
        let kind = OtherKind::Any;
        let (token, ttl, until, capped_from, name) = (None, None, None, None, None);
        let (frees_at_zero, may_read) = (op == Op::ExtendBlind, false);
        let replies = Replies::read(match op {
            Op::Extend | Op::OverwriteHeld | Op::Persist => ["nil", "+OK", "+OK", "nil"],
            Op::Release => ["0", "1", "1", "0"],
            Op::ReleaseBlind | Op::ExtendBlind => ["0", "1", "1", "1"],
            _ => ["+OK", "nil", "nil", "nil"],
        });
        let error = SYNTAX;
        Idiom {
            op,
            form,
            token,
            ttl,
            until,
            capped_from,
            name,
            may_read,
            replies,
            frees_at_zero,
            kind,
            error,
        }
    }

    /// Makes the idiom of a command that Redis refuses with this error.
    pub(super) fn malformed(form: &'static str, error: &'static str) -> Idiom<'a> {
        Idiom { error, ..Idiom::new(Op::Malformed, form) }
    }

    /// Returns the TTL that the client has asked for. `None`: it gives none, or none above 0.
    pub(super) fn asked_ttl(&self) -> Option<Duration> {
        let (ttl, unit) = self.capped_from.or(self.ttl)?;
        (ttl > 0).then(|| unit.times(ttl))
    }

    /// Turns a time of day into a TTL. `now`: milliseconds since 1970.
    pub(super) fn counted_from(self, now: impl FnOnce() -> i64) -> Idiom<'a> {
        match self.until {
            Some(until) => {
                Idiom { ttl: Some((until.saturating_sub(now()), TtlUnit::Millis)), ..self }
            }
            None => self,
        }
    }
}

/// When a key is to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expiry {
    In(i64, TtlUnit),
    /// Milliseconds since 1970.
    At(i64),
    Keep,
    /// Redis refuses it with this error.
    Refused(&'static str),
}

impl Expiry {
    /// Reads the number of an option of SET.
    fn read(number: &[u8], unit: TtlUnit, is_time_of_day: bool) -> Expiry {
        match number::integer(number) {
            None => Expiry::Refused(NOT_AN_INTEGER),
            Some(number @ 1..) if !is_time_of_day => Expiry::In(number, unit),
            Some(at) => time_of_day(at, unit)
                .filter(|_| at > 0)
                .map_or(Expiry::Refused(invalid_expire(b"set")), Expiry::At),
        }
    }
}

/// The condition of a SET.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Condition<'a> {
    Absent,
    Present,
    Equal(&'a [u8]),
    /// Another condition, of newer versions of Redis.
    Rare,
}

/// Reads a command that is no script. `words` has its name and its first key at least.
pub(crate) fn of_words<'a>(words: &[&'a [u8]]) -> Idiom<'a> {
    let [name, _, rest @ ..] = words else { return Idiom::new(Op::Malformed, "") };
    let mut upper = [0; 16];
    let Some(upper) = upper.get_mut(..name.len()) else { return Idiom::new(Op::Other, "") };
    upper.copy_from_slice(name);
    upper.make_ascii_uppercase();
    let upper = &*upper;
    let malformed = |form| Idiom::malformed(form, wrong_number(upper));
    match (upper, rest) {
        (b"SET", [value, options @ ..]) => {
            set(value, options).unwrap_or_else(|error| Idiom::malformed("SET", error))
        }
        (b"SET", []) => malformed("SET"),
        (b"SETNX", [value]) => {
            let (token, replies) = (Some(*value), Replies::read(["1", "0", "0", "0"]));
            Idiom { token, replies, ..Idiom::new(Op::AcquireForEver, "SETNX") }
        }
        (b"SETNX", _) => malformed("SETNX"),
        (b"SETEX" | b"PSETEX" | b"GETSET", _) => {
            Idiom::new(Op::Overwrite, "SETEX, PSETEX or GETSET")
        }
        (b"DELIFEQ", [value]) => Idiom { token: Some(value), ..Idiom::new(Op::Release, "DELIFEQ") },
        (b"DELIFEQ", _) => malformed("DELIFEQ"),
        (b"DELEX", []) => Idiom::new(Op::ReleaseBlind, "DELEX"),
        (b"DELEX", [condition, value]) if is(condition, b"IFEQ") => {
            Idiom { token: Some(value), ..Idiom::new(Op::Release, "DELEX IFEQ") }
        }
        (b"DELEX", _) => Idiom::new(Op::Other, DELEX),
        (b"DEL", _) => Idiom::new(Op::ReleaseBlind, "DEL"),
        (b"UNLINK", _) => Idiom::new(Op::ReleaseBlind, "UNLINK"),
        (b"EXPIRE", [ttl, ..]) => expire("EXPIRE", ttl, rest.len(), TtlUnit::Seconds),
        (b"PEXPIRE", [ttl, ..]) => expire("PEXPIRE", ttl, rest.len(), TtlUnit::Millis),
        (b"EXPIREAT", [at, ..]) => expire_at("EXPIREAT", at, rest.len(), TtlUnit::Seconds),
        (b"PEXPIREAT", [at, ..]) => expire_at("PEXPIREAT", at, rest.len(), TtlUnit::Millis),
        (b"EXPIRE" | b"PEXPIRE" | b"EXPIREAT" | b"PEXPIREAT", []) => malformed("EXPIRE"),
        (b"PERSIST", []) => Idiom::new(Op::PersistBlind, "PERSIST"),
        (b"GET", []) => Idiom::new(Op::Look, "GET"),
        (b"EXISTS", _) => Idiom::new(Op::Look, "EXISTS"),
        (b"TTL", []) => Idiom::new(Op::Look, "TTL"),
        (b"PTTL", []) => Idiom::new(Op::Look, "PTTL"),
        (b"TYPE", []) => Idiom::new(Op::Look, "TYPE"),
        (b"STRLEN", []) => Idiom::new(Op::Look, "STRLEN"),
        (b"PERSIST" | b"GET" | b"TTL" | b"PTTL" | b"TYPE" | b"STRLEN", _) => malformed("GET"),
        (b"WATCH", _) => Idiom::new(Op::Watch, "WATCH"),
        (upper, _) => {
            let (form, kind) = family(upper);
            Idiom { kind, ..Idiom::new(Op::Other, form) }
        }
    }
}

/// Returns the name for a family of commands that are no idiom, and what they are about.
fn family(upper: &[u8]) -> (&'static str, OtherKind) {
    let form = match upper {
        b"INCR" | b"DECR" | b"INCRBY" | b"DECRBY" | b"INCRBYFLOAT" => "a counter",
        b"MGET" | b"MSET" => "MGET or MSET",
        b"MSETNX" => MSETNX,
        [b'H', ..] => return ("a hash, as Redisson's locks are", OtherKind::Hash),
        [b'Z', ..] => {
            let form = "a sorted set, as the locks of Symfony 5.2 and later are";
            return (form, OtherKind::SortedSet);
        }
        [b'S', b'A' | b'C' | b'D' | b'I' | b'M' | b'P' | b'R' | b'U', ..] => "a set",
        [b'L' | b'R', b'P' | b'R' | b'L', ..] => "a list",
        _ => "another command",
    };
    (form, OtherKind::Any)
}

/// Forms of lock idioms that the lock nodes do not carry out, but that are not foreign commands either.
const SET_NX_GET: &str = "SET NX GET";
const MSETNX: &str = "MSETNX";
const DELEX: &str = "DELEX";

impl Idiom<'_> {
    /// Whether the command is neither a lock idiom nor a variant of one, so that the data node may have
    /// it.
    pub(super) fn is_foreign(&self) -> bool {
        match self.op {
            Op::UnknownScript => true,
            Op::Other => {
                let is_variant = [SET_NX_GET, MSETNX, DELEX].contains(&self.form);
                !is_variant && !self.form.contains("EXPIRE")
            }
            _ => false,
        }
    }
}

fn expire<'a>(form: &'static str, ttl: &[u8], words: usize, unit: TtlUnit) -> Idiom<'a> {
    match number::integer(ttl) {
        None => Idiom::malformed(form, NOT_AN_INTEGER),
        // No library sends NX, XX, GT or LT.
        _ if words > 1 => Idiom::new(Op::Other, form),
        Some(ttl) => Idiom { ttl: Some((ttl, unit)), ..Idiom::new(Op::ExtendBlind, form) },
    }
}

fn expire_at<'a>(form: &'static str, at: &[u8], words: usize, unit: TtlUnit) -> Idiom<'a> {
    let until = number::integer(at).and_then(|at| time_of_day(at, unit));
    match expire(form, at, words, unit) {
        Idiom { op: Op::ExtendBlind, .. } if until.is_none() => {
            Idiom::malformed(form, invalid_expire(form.as_bytes()))
        }
        idiom => Idiom { ttl: None, until, ..idiom },
    }
}

/// Returns milliseconds since 1970. `None`: Redis has no such time.
fn time_of_day(at: i64, unit: TtlUnit) -> Option<i64> {
    match unit {
        TtlUnit::Seconds => at.checked_mul(1000),
        TtlUnit::Millis => Some(at),
    }
}

/// Reads SET's options as Redis does.
///
/// # Errors
/// Redis's own.
fn set<'a>(value: &'a [u8], options: &[&'a [u8]]) -> Result<Idiom<'a>, &'static str> {
    let (mut expiry, mut condition, mut gets) = (None::<(Expiry, u8)>, None, false);
    let mut options: SmallVec<[&[u8]; 8]> = options.iter().copied().rev().collect();
    while let Some(option) = options.pop() {
        if is(option, b"NX") {
            is_free(&condition, |before| *before == Condition::Absent)?;
            condition = Some(Condition::Absent);
        } else if is(option, b"XX") {
            is_free(&condition, |before| *before == Condition::Present)?;
            condition = Some(Condition::Present);
        } else if is(option, b"GET") {
            gets = true;
        } else if is(option, b"KEEPTTL") {
            is_free(&expiry, |(before, _)| *before == Expiry::Keep)?;
            expiry = Some((Expiry::Keep, 0));
        } else if is(option, b"IFEQ") {
            is_free(&condition, |_| false)?;
            condition = Some(Condition::Equal(options.pop().ok_or(SYNTAX)?));
        } else if is(option, b"IFNE") || is(option, b"IFDEQ") || is(option, b"IFDNE") {
            is_free(&condition, |_| false)?;
            options.pop().ok_or(SYNTAX)?;
            condition = Some(Condition::Rare);
        } else {
            let kinds: [(&[u8], TtlUnit); 4] = [
                (b"EX", TtlUnit::Seconds),
                (b"PX", TtlUnit::Millis),
                (b"EXAT", TtlUnit::Seconds),
                (b"PXAT", TtlUnit::Millis),
            ];
            let kind = kinds.iter().position(|(name, _)| is(option, name)).ok_or(SYNTAX)?;
            is_free(&expiry, |(_, before)| usize::from(*before) == kind + 1)?;
            // If an option stands twice, the last one counts, as in Redis.
            let set = Expiry::read(options.pop().ok_or(SYNTAX)?, kinds[kind].1, kind >= 2);
            // Refused only below, since a syntax error comes first.
            expiry = Some((set, kind as u8 + 1));
        }
    }
    let expiry = expiry.map(|(expiry, _)| expiry);
    let (ttl, until) = match expiry {
        Some(Expiry::Refused(error)) => return Err(error),
        Some(Expiry::In(ttl, unit)) => (Some((ttl, unit)), None),
        Some(Expiry::At(until)) => (None, Some(until)),
        Some(Expiry::Keep) | None => (None, None),
    };
    let has_ttl = ttl.is_some() || until.is_some();
    let (op, form) = match (condition, has_ttl, gets) {
        (Some(Condition::Absent), _, true) => (Op::Other, SET_NX_GET),
        (Some(_), _, true) => (Op::Overwrite, "SET with another condition"),
        (Some(Condition::Absent), true, false) => (Op::Acquire, "SET NX with a TTL"),
        (Some(Condition::Absent), false, false) => (Op::AcquireForEver, "SET NX without a TTL"),
        (Some(Condition::Present), true, false) => (Op::OverwriteHeld, "SET XX with a TTL"),
        (Some(Condition::Equal(old)), true, false) if old == value => {
            (Op::Extend, "SET IFEQ with a TTL")
        }
        (Some(Condition::Equal(old)), false, false) if old == value => {
            (Op::Persist, "SET IFEQ without a TTL")
        }
        (Some(_), ..) => (Op::Overwrite, "SET with another condition"),
        (None, true, _) => (Op::Overwrite, "SET with a TTL"),
        (None, false, _) => (Op::Overwrite, "SET"),
    };
    let (token, frees_at_zero) = (Some(value), until.is_some());
    Ok(Idiom { token, ttl, until, frees_at_zero, ..Idiom::new(op, form) })
}

/// Fails if an option that excludes this one came before.
fn is_free<T>(before: &Option<T>, also: impl FnOnce(&T) -> bool) -> Result<(), &'static str> {
    before.as_ref().is_none_or(also).then_some(()).ok_or(SYNTAX)
}

/// Whether Redis takes a word for this option: it compares up to the first zero byte.
fn is(word: &[u8], option: &[u8]) -> bool {
    let word = word.split(|byte| *byte == 0).next().unwrap_or_default();
    word.eq_ignore_ascii_case(option)
}

#[cfg(test)]
#[path = "idiom_tests.rs"]
mod tests;
