//! The options of an adopt rule for idioms that a quorum cannot carry out as they are.

use std::time::Duration;

use serde_yaml::Value;

use super::{
    keys::words,
    locate::PathStep,
    reader::{FromYaml, Reader, Section, Wrong},
    units,
};

/// The shortest `no_ttl`. A shorter one would leave the nodes less than a millisecond to answer.
const LEAST_TTL: Duration = Duration::from_millis(10);

/// Treatment of idioms that a quorum cannot, or should not, carry out as they are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct AdoptOptions {
    /// `blind`: DEL, EXPIRE and their like, which name no token.
    pub blind: BlindPolicy,
    /// `unknown`: commands and scripts that are no lock idiom.
    pub unknown: UnknownPolicy,
    /// `no_ttl`: locks without a TTL.
    pub no_ttl: NoTtlPolicy,
    /// `long_ttl`: TTLs above `locks.max_ttl`.
    pub long_ttl: LongTtlPolicy,
    /// `no_quorum`: commands about which too few lock nodes answer.
    pub no_quorum: NoQuorumPolicy,
    /// `flush`: FLUSHDB and FLUSHALL.
    pub flush: FlushPolicy,
}

/// Treatment of a command that frees or prolongs a lock and names no token.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum BlindPolicy {
    /// The command is carried out, whichever adopted client holds the lock.
    #[default]
    AsRedis,
    /// The command is carried out only on a lock that was granted to the same connection.
    OwnOnly,
    /// The command is refused.
    Refuse,
}

/// Treatment of a command that is no lock idiom.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum UnknownPolicy {
    /// The command is refused.
    #[default]
    Refuse,
    /// The command goes to the data node as it came.
    Forward,
}

/// Treatment of a command that takes a lock without a TTL.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum NoTtlPolicy {
    /// The command is refused.
    #[default]
    Refuse,
    /// The lock is taken for this time.
    For(Duration),
    /// The lock is a session lock, kept for as long as the client's connection lives.
    Session,
}

/// Treatment of a TTL above `locks.max_ttl`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum LongTtlPolicy {
    /// The command is refused.
    #[default]
    Refuse,
    /// The lock is taken with `locks.max_ttl`.
    Cap,
}

/// Treatment of a command about which too few lock nodes answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum NoQuorumPolicy {
    /// The lock nodes are asked again for some seconds, then the connection is closed.
    #[default]
    Wait,
    /// The connection is closed, as by a Redis that went away.
    Close,
    /// The command is answered `-NOQUORUM`.
    Error,
}

/// What FLUSHDB and FLUSHALL do to adopted locks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum FlushPolicy {
    /// The locks stay.
    #[default]
    Keep,
    /// The adopted locks granted through this proxy are freed, as the data node drops their keys.
    Free,
}

impl AdoptOptions {
    /// Reads the options of a rule.
    pub(super) fn read(reader: &mut Reader<'_>, rule: &Section<'_>) -> AdoptOptions {
        let mut options = AdoptOptions::default();
        reader.read(rule, "blind", &mut options.blind);
        reader.read(rule, "unknown", &mut options.unknown);
        reader.read(rule, "no_ttl", &mut options.no_ttl);
        reader.read(rule, "long_ttl", &mut options.long_ttl);
        reader.read(rule, "no_quorum", &mut options.no_quorum);
        reader.read(rule, "flush", &mut options.flush);
        options
    }

    /// Returns what is wrong with `no_ttl`, by itself and against `locks.max_ttl`.
    pub(super) fn wrong_no_ttl(&self, max_ttl: Duration) -> Option<String> {
        let NoTtlPolicy::For(ttl) = self.no_ttl else { return None };
        if ttl < LEAST_TTL {
            return Some("must be at least 10ms".into());
        }
        (ttl > max_ttl).then(|| format!("{ttl:?} is longer than locks.max_ttl ({max_ttl:?})"))
    }

    /// Combines the options of two rules for a command that has keys of both: the stricter value of each.
    pub(crate) fn and(self, other: AdoptOptions) -> AdoptOptions {
        let blind = match (self.blind, other.blind) {
            (BlindPolicy::Refuse, _) | (_, BlindPolicy::Refuse) => BlindPolicy::Refuse,
            (BlindPolicy::OwnOnly, _) | (_, BlindPolicy::OwnOnly) => BlindPolicy::OwnOnly,
            (BlindPolicy::AsRedis, BlindPolicy::AsRedis) => BlindPolicy::AsRedis,
        };
        let unknown = match (self.unknown, other.unknown) {
            (UnknownPolicy::Forward, UnknownPolicy::Forward) => UnknownPolicy::Forward,
            _ => UnknownPolicy::Refuse,
        };
        let no_ttl = match (self.no_ttl, other.no_ttl) {
            (NoTtlPolicy::For(one), NoTtlPolicy::For(two)) => NoTtlPolicy::For(one.min(two)),
            (NoTtlPolicy::Session, NoTtlPolicy::Session) => NoTtlPolicy::Session,
            _ => NoTtlPolicy::Refuse,
        };
        let long_ttl = match (self.long_ttl, other.long_ttl) {
            (LongTtlPolicy::Cap, LongTtlPolicy::Cap) => LongTtlPolicy::Cap,
            _ => LongTtlPolicy::Refuse,
        };
        let no_quorum = match (self.no_quorum, other.no_quorum) {
            (NoQuorumPolicy::Error, _) | (_, NoQuorumPolicy::Error) => NoQuorumPolicy::Error,
            (NoQuorumPolicy::Close, _) | (_, NoQuorumPolicy::Close) => NoQuorumPolicy::Close,
            (NoQuorumPolicy::Wait, NoQuorumPolicy::Wait) => NoQuorumPolicy::Wait,
        };
        let flush = match (self.flush, other.flush) {
            (FlushPolicy::Free, FlushPolicy::Free) => FlushPolicy::Free,
            _ => FlushPolicy::Keep,
        };
        AdoptOptions { blind, unknown, no_ttl, long_ttl, no_quorum, flush }
    }
}

words! {
    BlindPolicy: "as-redis, own-only or refuse",
    "as-redis" => BlindPolicy::AsRedis,
    "own-only" => BlindPolicy::OwnOnly,
    "refuse" => BlindPolicy::Refuse,
}

words! {
    UnknownPolicy: "refuse or forward",
    "refuse" => UnknownPolicy::Refuse,
    "forward" => UnknownPolicy::Forward,
}

impl FromYaml for NoTtlPolicy {
    fn read(_: &mut Reader<'_>, value: &Value, _: &[PathStep]) -> Result<NoTtlPolicy, Wrong> {
        match value.as_str() {
            Some("refuse") => Ok(NoTtlPolicy::Refuse),
            Some("session") => Ok(NoTtlPolicy::Session),
            text => text
                .and_then(units::duration)
                .map(NoTtlPolicy::For)
                .ok_or(Wrong::Wanted("refuse, session, or a duration with its unit, as 10s,")),
        }
    }
}

words! {
    LongTtlPolicy: "refuse or cap",
    "refuse" => LongTtlPolicy::Refuse,
    "cap" => LongTtlPolicy::Cap,
}

words! {
    NoQuorumPolicy: "wait, close or error",
    "wait" => NoQuorumPolicy::Wait,
    "close" => NoQuorumPolicy::Close,
    "error" => NoQuorumPolicy::Error,
}

words! {
    FlushPolicy: "keep or free",
    "keep" => FlushPolicy::Keep,
    "free" => FlushPolicy::Free,
}
