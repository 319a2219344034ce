//! What would become of an idiom if its lock were taken on a quorum of lock nodes, why it would be
//! refused, and what is unsafe about it today.

use std::time::Duration;

use super::{
    idiom::{Idiom, Op, OtherKind},
    normal::TtlUnit,
};
use crate::{
    config::{AdoptOptions, BlindPolicy, LongTtlPolicy, NoTtlPolicy, UnknownPolicy},
    key::Token,
    metrics::labels,
};

labels! {
    /// What would become of a command; the label `verdict` of `lockgate_adopt_seen_total`.
    pub(crate) enum AdoptVerdict {
        /// The quorum would carry the command out, with the reply that it has now.
        Quorum = "quorum",
        /// The proxy would answer an error.
        Refused = "refused",
        /// The proxy would answer NOSCRIPT, so that the client shows its script.
        NoScript = "noscript",
        /// The data node would answer, as the rule says so (`unknown: forward`).
        Forwarded = "forwarded",
        /// Redis refuses the command, and the proxy would too.
        Error = "error",
        /// The command was not looked at.
        Unknown = "unknown",
    }
}

labels! {
    /// Why a command is refused; the label `reason` of `lockgate_adopt_refused_total`.
    pub(crate) enum RefusalReason {
        /// A command that is no lock idiom.
        NoIdiom = "no_idiom",
        /// A command or a script about a hash, as Redisson's.
        Hash = "hash",
        /// A command or a script about a sorted set, as Symfony's.
        SortedSet = "sorted_set",
        /// A script in which the lock is a part of a queued job.
        Job = "job",
        /// A script that is not known.
        UnknownScript = "unknown_script",
        /// SET over a lock, whoever holds it.
        Overwrite = "overwrite",
        /// DEL or EXPIRE, which name no token.
        Blind = "blind",
        /// A lock without a TTL.
        NoTtl = "no_ttl",
        /// A TTL above `locks.max_ttl`.
        LongTtl = "long_ttl",
        /// A reader's part, where `locks.shared` does not allow it.
        Shared = "shared",
        /// A token above `locks.max_token`, or a reserved one.
        Token = "token",
        /// Several keys, or some that are adopted and some that are not.
        Keys = "keys",
        /// WATCH, or a command inside MULTI.
        Transaction = "transaction",
        /// The command is larger than what is looked at.
        TooLarge = "too_large",
        /// A command that the proxy cannot carry out yet.
        Unbuilt = "unbuilt",
    }
}

/// A command that is no idiom.
const NO_IDIOM: &str = "it is no lock idiom";
/// A command that a lock idiom may be written with, in a form that no library was seen to send.
const VARIANT: &str = "it is a form of a lock idiom that is not carried out on the lock nodes";
const HASH: &str = "it is about a hash, as Redisson's locks and BullMQ's jobs are";
const SORTED_SET: &str = "it is about a sorted set, as the locks of Symfony 5.2 and later are";
/// A script that is not known.
const UNKNOWN_SCRIPT: &str = "the script is none that is known";
const HASH_SCRIPT: &str =
    "the script is none that is known; it has a hash, as Redisson's locks and BullMQ's jobs";
const SORTED_SET_SCRIPT: &str = "the script is none that is known; it has a sorted set, as the \
                                 locks of Symfony 5.2 and later";
/// A lock without a TTL.
const NO_TTL: &str = "lock nodes keep no lock without a TTL (no_ttl)";
const GIVEN_TTL: &str = "it has no TTL, and gets the rule's (no_ttl)";
const KEPT: &str = "it has no TTL, and is kept for as long as its connection lives (no_ttl)";
const LONG_TTL: &str = "its TTL is longer than locks.max_ttl";
/// A TTL that is cut.
pub(super) const CAPPED: &str = "its TTL is longer than locks.max_ttl, and is cut to that";
const SHARED_OFF: &str = "it shares the lock with other readers, which needs 'locks.shared: yes' in the file of every proxy";
const RESERVED_TOKEN: &str = "its token is the one that stands for an empty value";
const LONG_TOKEN: &str = "its token is longer than locks.max_token";
const OVERWRITES: &str = "it sets the key whoever holds the lock";
const JOB: &str = "the lock is a part of a queued job, as BullMQ's are";
/// A command that names no token.
const BLIND: &str = "it names no token, which the rule refuses (blind)";
const OWN_ONLY: &str = "only on the connection that took the lock (blind)";
/// A command with adopted keys and others.
pub(super) const MIXED: &str = "some of its keys are adopted and some are not";
/// A command with several keys, where one is meant.
pub(super) const SEVERAL: &str = "it has several keys, which is not built yet";
/// A script that selects a database.
pub(super) const DATABASE: &str = "only where the database that it names is the selected one";
/// A command within a transaction.
pub(crate) const IN_MULTI: &str = "it is inside MULTI";

/// The limits of a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limits {
    /// `locks.max_token`, in bytes.
    pub(crate) max_token: usize,
    /// `locks.max_ttl`.
    pub(crate) max_ttl: Duration,
    /// `locks.shared`: whether a lock may have readers.
    pub(crate) shared: bool,
}

/// Returns what would become of an idiom, and why, by what it does alone.
pub(super) fn of(op: Op) -> (AdoptVerdict, &'static str) {
    use AdoptVerdict::{Error, NoScript, Quorum, Refused, Unknown};
    match op {
        Op::Acquire | Op::AcquireAgain | Op::Extend | Op::ExtendBy | Op::Release | Op::Look => {
            (Quorum, "")
        }
        Op::AcquireFirst | Op::AcquireShared | Op::ExtendBlind | Op::ReleaseBlind => (Quorum, ""),
        Op::OverwriteHeld => (Quorum, "only for the token that holds the lock"),
        Op::AcquireForEver | Op::Persist | Op::PersistBlind => (Refused, NO_TTL),
        Op::Overwrite => (Refused, OVERWRITES),
        Op::Faulty => (Refused, "the script deletes its key at once (expire=None)"),
        Op::Job => (Refused, JOB),
        Op::UnknownScript => (Refused, UNKNOWN_SCRIPT),
        Op::Watch => (Refused, "it is not followed by the one transaction that is known"),
        Op::Other => (Refused, NO_IDIOM),
        Op::UnseenScript => (NoScript, "no client has shown the script"),
        Op::Malformed => (Error, "Redis refuses it"),
        Op::TooLarge => (Unknown, "it is larger than what is looked at"),
    }
}

/// Whether a command goes to the data node because its rule says so.
pub(super) fn is_forwarded(idiom: &Idiom<'_>, options: &AdoptOptions) -> bool {
    options.unknown == UnknownPolicy::Forward && idiom.is_foreign()
}

/// Returns what would become of an idiom, and why, by its rule, its token and its TTL too.
pub(super) fn within(
    idiom: &Idiom<'_>,
    limits: &Limits,
    options: &AdoptOptions,
) -> (AdoptVerdict, &'static str) {
    let (verdict, because) = match idiom.op {
        Op::Other | Op::UnknownScript => (AdoptVerdict::Refused, no_idiom(idiom)),
        Op::ReleaseBlind | Op::ExtendBlind => match options.blind {
            BlindPolicy::AsRedis => of(idiom.op),
            BlindPolicy::OwnOnly => (AdoptVerdict::Quorum, OWN_ONLY),
            BlindPolicy::Refuse => (AdoptVerdict::Refused, BLIND),
        },
        Op::AcquireForEver | Op::Persist => without_ttl(options),
        Op::AcquireShared if !limits.shared => (AdoptVerdict::Refused, SHARED_OFF),
        // Only a script that can also take a lock without a TTL.
        Op::AcquireAgain if idiom.ttl.is_none() => without_ttl(options),
        op => of(op),
    };
    if verdict != AdoptVerdict::Quorum {
        return (verdict, because);
    }
    match (idiom.token, idiom.ttl) {
        (Some(Token::OF_EMPTY_VALUE | Token::OF_READERS), _) => {
            (AdoptVerdict::Refused, RESERVED_TOKEN)
        }
        (Some(token), _) if token.len() > limits.max_token => (AdoptVerdict::Refused, LONG_TOKEN),
        (_, Some((..=0, _)))
            if idiom.until.is_none()
                && matches!(
                    idiom.op,
                    Op::Acquire | Op::AcquireAgain | Op::AcquireFirst | Op::AcquireShared
                ) =>
        {
            (AdoptVerdict::Refused, "its TTL is not above 0")
        }
        (_, Some((ttl, unit))) if unit.times(ttl) > limits.max_ttl => {
            (AdoptVerdict::Refused, LONG_TTL)
        }
        _ if idiom.capped_from.is_some() => (verdict, CAPPED),
        _ => (verdict, because),
    }
}

fn no_idiom(idiom: &Idiom<'_>) -> &'static str {
    match (idiom.op, idiom.kind) {
        (Op::UnknownScript, OtherKind::Any) => UNKNOWN_SCRIPT,
        (Op::UnknownScript, OtherKind::Hash) => HASH_SCRIPT,
        (Op::UnknownScript, OtherKind::SortedSet) => SORTED_SET_SCRIPT,
        (Op::Other, _) if !idiom.is_foreign() => VARIANT,
        (_, OtherKind::Any) => NO_IDIOM,
        (_, OtherKind::Hash) => HASH,
        (_, OtherKind::SortedSet) => SORTED_SET,
    }
}

fn without_ttl(options: &AdoptOptions) -> (AdoptVerdict, &'static str) {
    match options.no_ttl {
        NoTtlPolicy::Refuse => (AdoptVerdict::Refused, NO_TTL),
        NoTtlPolicy::For(_) => (AdoptVerdict::Quorum, GIVEN_TTL),
        NoTtlPolicy::Session => (AdoptVerdict::Quorum, KEPT),
    }
}

/// Cuts a TTL that is longer than a lock may have, if the rule says so.
pub(super) fn capped<'a>(idiom: Idiom<'a>, limits: &Limits, options: &AdoptOptions) -> Idiom<'a> {
    match idiom.ttl {
        Some((ttl, unit))
            if options.long_ttl == LongTtlPolicy::Cap && unit.times(ttl) > limits.max_ttl =>
        {
            let most = i64::try_from(limits.max_ttl.as_millis()).unwrap_or(i64::MAX);
            Idiom { ttl: Some((most, TtlUnit::Millis)), capped_from: idiom.ttl, ..idiom }
        }
        _ => idiom,
    }
}

/// Returns the reason under which the refusal of a command that was judged so is counted.
pub(super) fn reason(op: Op, because: &str) -> RefusalReason {
    match (because, op) {
        (IN_MULTI, _) | (_, Op::Watch) => RefusalReason::Transaction,
        (MIXED | SEVERAL, _) => RefusalReason::Keys,
        (HASH | HASH_SCRIPT, _) => RefusalReason::Hash,
        (SORTED_SET | SORTED_SET_SCRIPT, _) => RefusalReason::SortedSet,
        (NO_TTL, _) => RefusalReason::NoTtl,
        (LONG_TTL, _) => RefusalReason::LongTtl,
        (SHARED_OFF, _) => RefusalReason::Shared,
        (RESERVED_TOKEN | LONG_TOKEN, _) => RefusalReason::Token,
        (BLIND, _) => RefusalReason::Blind,
        (_, Op::Other) => RefusalReason::NoIdiom,
        (_, Op::UnknownScript) => RefusalReason::UnknownScript,
        (_, Op::Overwrite) => RefusalReason::Overwrite,
        (_, Op::Job) => RefusalReason::Job,
        (_, Op::TooLarge) => RefusalReason::TooLarge,
        _ => RefusalReason::Unbuilt,
    }
}

/// Returns what is unsafe about an idiom on any Redis; empty: nothing that can be seen from here.
pub(crate) fn danger(op: Op) -> &'static str {
    match op {
        Op::ReleaseBlind => "frees the lock whoever holds it",
        Op::ExtendBlind => "prolongs the lock whoever holds it",
        Op::AcquireForEver | Op::Persist | Op::PersistBlind => {
            "a holder that dies keeps the lock for ever"
        }
        Op::Overwrite | Op::OverwriteHeld => "takes the lock from whoever holds it",
        Op::Faulty => "locks nothing",
        _ => "",
    }
}
