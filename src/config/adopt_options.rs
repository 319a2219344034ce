//! What an adopt rule says of idioms that a quorum cannot carry out as they are.

use std::time::Duration;

use serde_yaml::Value;

use super::{
    locate::PathStep,
    reader::{FromYaml, Reader, Section, Wrong},
    units,
};

/// The shortest `no_ttl`. Nodes would have less than a millisecond to answer for a shorter one.
const LEAST_TTL: Duration = Duration::from_millis(10);

/// What becomes of idioms that a quorum cannot carry out as they are, or should not.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AdoptOptions {
    /// `blind`: DEL, EXPIRE and their like, which name no token.
    pub blind: BlindPolicy,
    /// `unknown`: commands and scripts that are no lock idiom.
    pub unknown: UnknownPolicy,
    /// `no_ttl`: locks without a TTL.
    pub no_ttl: NoTtlPolicy,
    /// `long_ttl`: TTLs above `locks.max_ttl`.
    pub long_ttl: LongTtlPolicy,
}

/// Treatment of a command that frees or prolongs a lock and names no token.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum BlindPolicy {
    /// The command is carried out on the lock of whichever adopted client has it.
    #[default]
    AsRedis,
    /// The command is carried out on a lock that its own connection was granted.
    OwnOnly,
    /// The command is refused.
    Refuse,
}

/// Treatment of a command that is no lock idiom.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum UnknownPolicy {
    /// The command is refused.
    #[default]
    Refuse,
    /// The command goes to the data node as it came.
    Forward,
}

/// Treatment of a command that takes a lock without a TTL.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum NoTtlPolicy {
    /// The command is refused.
    #[default]
    Refuse,
    /// The lock is taken for this time.
    For(Duration),
    /// The lock is a session lock: kept for as long as the client's connection lives.
    Session,
}

/// Treatment of a TTL above `locks.max_ttl`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LongTtlPolicy {
    /// The command is refused.
    #[default]
    Refuse,
    /// The lock has `locks.max_ttl`.
    Cap,
}

impl AdoptOptions {
    /// Reads the options that stand in a rule.
    pub(super) fn read(reader: &mut Reader<'_>, rule: &Section<'_>) -> AdoptOptions {
        let mut options = AdoptOptions::default();
        reader.read(rule, "blind", &mut options.blind);
        reader.read(rule, "unknown", &mut options.unknown);
        reader.read(rule, "no_ttl", &mut options.no_ttl);
        reader.read(rule, "long_ttl", &mut options.long_ttl);
        options
    }

    /// Returns what is wrong with `no_ttl` beside `locks.max_ttl`.
    pub(super) fn wrong_no_ttl(&self, max_ttl: Duration) -> Option<String> {
        let NoTtlPolicy::For(ttl) = self.no_ttl else { return None };
        if ttl < LEAST_TTL {
            return Some("must be at least 10ms".into());
        }
        (ttl > max_ttl).then(|| format!("{ttl:?} is longer than locks.max_ttl ({max_ttl:?})"))
    }

    /// Returns what two rules say together of a command about keys of both: of each option the
    /// stricter one.
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
        AdoptOptions { blind, unknown, no_ttl, long_ttl }
    }
}

impl FromYaml for BlindPolicy {
    fn read(_: &mut Reader<'_>, value: &Value, _: &[PathStep]) -> Result<BlindPolicy, Wrong> {
        match value.as_str() {
            Some("as-redis") => Ok(BlindPolicy::AsRedis),
            Some("own-only") => Ok(BlindPolicy::OwnOnly),
            Some("refuse") => Ok(BlindPolicy::Refuse),
            _ => Err(Wrong::Wanted("as-redis, own-only or refuse")),
        }
    }
}

impl FromYaml for UnknownPolicy {
    fn read(_: &mut Reader<'_>, value: &Value, _: &[PathStep]) -> Result<UnknownPolicy, Wrong> {
        match value.as_str() {
            Some("refuse") => Ok(UnknownPolicy::Refuse),
            Some("forward") => Ok(UnknownPolicy::Forward),
            _ => Err(Wrong::Wanted("refuse or forward")),
        }
    }
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

impl FromYaml for LongTtlPolicy {
    fn read(_: &mut Reader<'_>, value: &Value, _: &[PathStep]) -> Result<LongTtlPolicy, Wrong> {
        match value.as_str() {
            Some("refuse") => Ok(LongTtlPolicy::Refuse),
            Some("cap") => Ok(LongTtlPolicy::Cap),
            _ => Err(Wrong::Wanted("refuse or cap")),
        }
    }
}
