//! What would become of an idiom if its lock were taken on a quorum of lock nodes, and what is
//! unsafe about it today.

use std::time::Duration;

use super::{
    idiom::{Idiom, Op},
    normal::TtlUnit,
};
use crate::metrics::labels;

labels! {
    /// What would become of a command; the label `verdict` of `lockgate_adopt_seen_total`.
    pub(crate) enum AdoptVerdict {
        /// The quorum would carry the command out, with the reply that it has now.
        Quorum = "quorum",
        /// The proxy would answer an error.
        Refused = "refused",
        /// The proxy would answer NOSCRIPT, so that the client shows its script.
        NoScript = "noscript",
        /// Redis refuses it now, and it would be refused.
        Error = "error",
        /// The command was not looked at.
        Unknown = "unknown",
    }
}

/// A command with adopted keys and others.
pub(super) const MIXED: &str = "some of its keys are adopted and some are not";
/// A command with several keys, where one is meant.
pub(super) const SEVERAL: &str = "it has several keys, which is not built yet";
/// A script that selects a database.
pub(super) const DATABASE: &str = "only where the database that it names is the selected one";
/// A command within a transaction.
pub(crate) const IN_MULTI: &str = "it is inside MULTI";

/// What bounds a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limits {
    /// `locks.max_token`, in bytes.
    pub(crate) max_token: usize,
    /// `locks.max_ttl`.
    pub(crate) max_ttl: Duration,
}

/// What would become of an idiom, and why, as far as these words alone say.
pub(super) fn of(op: Op) -> (AdoptVerdict, &'static str) {
    use AdoptVerdict::{Error, NoScript, Quorum, Refused, Unknown};
    match op {
        Op::Acquire | Op::AcquireAgain | Op::Extend | Op::ExtendBy | Op::Release | Op::Look => {
            (Quorum, "")
        }
        Op::ExtendBlind | Op::ReleaseBlind => (Quorum, ""),
        Op::OverwriteHeld => (Quorum, "only for the token that holds the lock"),
        Op::AcquireForEver | Op::Persist | Op::PersistBlind => {
            (Refused, "lock nodes keep no lock without a TTL")
        }
        Op::Overwrite => (Refused, "it sets the key whoever holds the lock"),
        Op::Faulty => (Refused, "the script deletes its key at once (expire=None)"),
        Op::Job => (Refused, "the lock is a part of a queued job"),
        Op::UnknownScript => (Refused, "the script is none that is known"),
        Op::Watch => (Refused, "it is not followed by the one transaction that is known"),
        Op::Other => (Refused, "it is no lock idiom"),
        Op::UnseenScript => (NoScript, "no client has shown the script"),
        Op::Malformed => (Error, "Redis refuses it"),
        Op::TooLarge => (Unknown, "it is larger than what is looked at"),
    }
}

/// What would become of an idiom, by its token and TTL too.
pub(super) fn within(idiom: &Idiom<'_>, limits: &Limits) -> (AdoptVerdict, &'static str) {
    let (verdict, because) = of(idiom.op);
    if verdict != AdoptVerdict::Quorum {
        return (verdict, because);
    }
    match (idiom.token, idiom.ttl) {
        (Some([]), _) => (AdoptVerdict::Refused, "its token is empty"),
        (Some(token), _) if token.len() > limits.max_token => {
            (AdoptVerdict::Refused, "its token is longer than locks.max_token")
        }
        (_, Some((..=0, _))) if matches!(idiom.op, Op::Acquire | Op::AcquireAgain) => {
            (AdoptVerdict::Refused, "its TTL is not above 0")
        }
        (_, Some((ttl, unit))) if duration(ttl, unit) > limits.max_ttl => {
            (AdoptVerdict::Refused, "its TTL is longer than locks.max_ttl")
        }
        _ => (verdict, because),
    }
}

fn duration(ttl: i64, unit: TtlUnit) -> Duration {
    let ttl = u64::try_from(ttl).unwrap_or(0);
    match unit {
        TtlUnit::Seconds => Duration::from_secs(ttl),
        TtlUnit::Millis => Duration::from_millis(ttl),
    }
}

/// What is unsafe about an idiom on any Redis; empty: nothing that is seen from here.
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
