//! A deployment's own scripts, which an adopt rule describes as Lockgate describes those of libraries.

use serde_yaml::Value;

use super::{
    keys::words,
    locate::PathStep,
    reader::{FromYaml, Reader, Section, Wrong},
};

/// The keys of a script.
pub(super) const SCRIPT_KEYS: &[&str] = &["digest", "op", "token", "ttl", "unit", "replies"];
/// The replies that a script may give. In RESP, Lua's true is 1; its false and nil are null.
const REPLIES: [&str; 14] =
    ["nil", "+OK", "0", "1", "2", "3", "-1", "-2", "-3", "4", "-4", "5", "true", "false"];

/// A script, known by its digest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AdoptScript {
    /// `digest`: its SHA-1.
    pub digest: [u8; 20],
    /// `op`: what it does to the lock, which is its first key.
    pub op: ScriptOp,
    /// `token`: the token's index in ARGV, from 1.
    pub token: usize,
    /// `ttl`: the TTL's index in ARGV, from 1; none for a release.
    pub ttl: Option<usize>,
    /// `unit`: the TTL's unit.
    pub unit: ScriptUnit,
    /// `replies`: its replies where the key is absent, has this token, has it without a TTL, has another token.
    pub replies: [&'static str; 4],
}

/// What a script does to a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ScriptOp {
    /// Takes the lock if nobody has it.
    Acquire,
    /// Takes the lock if nobody has it, or gives it a new TTL if the script's token has it.
    AcquireReentrant,
    /// Frees the lock if the script's token has it.
    Release,
    /// Gives the lock a new TTL if the script's token has it.
    Extend,
    /// Adds to the lock's TTL if the script's token has it.
    ExtendBy,
}

/// The unit of a TTL.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum ScriptUnit {
    /// `ms`.
    #[default]
    Millis,
    /// `s`.
    Seconds,
}

/// A script's digest.
struct ScriptDigest([u8; 20]);

/// A script's replies.
struct ScriptReplies([&'static str; 4]);

/// Reports scripts that a rule lists twice.
pub(super) fn check(reader: &mut Reader<'_>, rule: &[PathStep], scripts: &[AdoptScript]) {
    for (at, script) in scripts.iter().enumerate() {
        if scripts[..at].iter().any(|before| before.digest == script.digest) {
            let mut path = rule.to_vec();
            path.push(PathStep::Key("scripts".to_owned()));
            reader.problem(&path, format!("the digest of number {} is there twice", at + 1));
        }
    }
}

/// Reads an index in ARGV. Returns `None` if it is missing or wrong.
fn place(reader: &mut Reader<'_>, section: &Section<'_>, key: &str) -> Option<usize> {
    section.get(key)?;
    let mut place = usize::MAX;
    reader.read(section, key, &mut place);
    if place == 0 {
        reader.problem(&section.path(key), "places in ARGV count from 1");
    }
    (place > 0 && place < usize::MAX).then_some(place)
}

impl FromYaml for AdoptScript {
    fn read(
        reader: &mut Reader<'_>,
        value: &Value,
        path: &[PathStep],
    ) -> Result<AdoptScript, Wrong> {
        let Value::Mapping(_) = value else {
            return Err(Wrong::Wanted("a script with digest, op, token and replies"));
        };
        let section = reader.mapping(value, path.to_vec(), SCRIPT_KEYS);
        let (mut digest, mut op, mut replies) = (None, None, None);
        let mut unit = ScriptUnit::default();
        reader.read(&section, "digest", &mut digest);
        reader.read(&section, "op", &mut op);
        let token = place(reader, &section, "token");
        let ttl = place(reader, &section, "ttl");
        reader.read(&section, "unit", &mut unit);
        reader.read(&section, "replies", &mut replies);
        for (key, what) in [
            ("digest", "is missing; which script?"),
            ("op", "is missing; what does the script do?"),
            ("token", "is missing; where in ARGV does the token stand?"),
            ("replies", "is missing; what does the script answer?"),
        ] {
            if section.get(key).is_none() {
                reader.problem(&section.path(key), what);
            }
        }
        let (Some(ScriptDigest(digest)), Some(op), Some(token), Some(ScriptReplies(replies))) =
            (digest, op, token, replies)
        else {
            return Err(Wrong::Told);
        };
        let has_ttl = section.get("ttl").is_some();
        if op == ScriptOp::Release {
            for key in ["ttl", "unit"] {
                if section.get(key).is_some() {
                    reader.problem(&section.path(key), "a release has no TTL; leave it out");
                }
            }
        } else if !has_ttl {
            let what = "is missing; where in ARGV does the TTL stand?";
            reader.problem(&section.path("ttl"), what);
        }
        if op == ScriptOp::Acquire && (replies[1] != replies[3] || replies[2] != replies[3]) {
            let what = "acquire refuses its own token as any other, so the last three must be the \
                        same; or the op is acquire-reentrant";
            reader.problem(&section.path("replies"), what);
        }
        Ok(AdoptScript { digest, op, token, ttl, unit, replies })
    }
}

impl FromYaml for Option<ScriptDigest> {
    fn read(_: &mut Reader<'_>, value: &Value, _: &[PathStep]) -> Result<Self, Wrong> {
        let wanted = Wrong::Wanted("a digest, 40 hexadecimal digits in quotes,");
        let Some(text) = value.as_str() else { return Err(wanted) };
        let mut digest = [0; 20];
        let (pairs, rest) = text.as_bytes().as_chunks::<2>();
        if pairs.len() != digest.len() || !rest.is_empty() {
            return Err(wanted);
        }
        for (byte, pair) in digest.iter_mut().zip(pairs) {
            let digit = |at: usize| char::from(pair[at]).to_digit(16);
            let (Some(high), Some(low)) = (digit(0), digit(1)) else { return Err(wanted) };
            *byte = (high << 4 | low) as u8;
        }
        Ok(Some(ScriptDigest(digest)))
    }
}

words! {
    Option<ScriptOp>: "acquire, acquire-reentrant, release, extend or extend-by",
    "acquire" => Some(ScriptOp::Acquire),
    "acquire-reentrant" => Some(ScriptOp::AcquireReentrant),
    "release" => Some(ScriptOp::Release),
    "extend" => Some(ScriptOp::Extend),
    "extend-by" => Some(ScriptOp::ExtendBy),
}

words! {
    ScriptUnit: "ms or s",
    "ms" => ScriptUnit::Millis,
    "s" => ScriptUnit::Seconds,
}

impl FromYaml for Option<ScriptReplies> {
    fn read(_: &mut Reader<'_>, value: &Value, _: &[PathStep]) -> Result<Self, Wrong> {
        let wanted = Wrong::Wanted(
            "a list of four replies, each nil, +OK, 'true', 'false' or from -4 to 5,",
        );
        let known = |value: &Value| {
            let number = value.as_i64().map(|number| number.to_string());
            let text = number.as_deref().or(value.as_str())?;
            REPLIES.into_iter().find(|reply| *reply == text)
        };
        let Value::Sequence(all) = value else { return Err(wanted) };
        let replies: Option<Vec<&'static str>> = all.iter().map(known).collect();
        let replies = replies.and_then(|replies| replies.try_into().ok());
        replies.map(|replies| Some(ScriptReplies(replies))).ok_or(wanted)
    }
}
