//! Our own commands: from words to a typed [`Request`], in Redis's grammar and wording.
//!
//! Knows nothing of connections or of how a lock is taken.
//!
//! - [`operator`]: LOCKGATE, and what libraries ask of our commands.
//! - [`docs`]: what they are told; [`glob`]: which keys an operator means.

pub mod docs;
pub mod operator;

use std::time::Duration;

use thiserror::Error;

pub use crate::glob;

use crate::{
    config::LocksConfig,
    key::{Key, Token},
    resp::{name::Own, number},
};

/// Most words that a command of ours can have and still be well formed: COMMAND INFO with
/// the names of all six. `LOCK key token PX ms WAIT ms` has seven.
pub const MAX_WORDS: usize = 8;
/// What is left of every key that begins so belongs to Lockgate itself.
const RESERVED: &[u8] = b"lockgate:";
/// The shortest TTL of which a validity is left after the constant part of the drift.
const MIN_TTL: Duration = Duration::from_millis(3);

/// A well-formed command on one lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// Take a lock.
    Lock {
        /// The client's own token; none: the proxy makes one.
        token: Option<Token>,
        /// A lease's TTL; none: a session lock, which lives as its connection does.
        ttl: Option<Duration>,
        /// How long to wait for it; none: not at all.
        wait: Option<Duration>,
    },
    /// Give a lock back.
    Unlock {
        /// None: the token that this connection was granted.
        token: Option<Token>,
    },
    /// Give a lock a fresh TTL.
    Renew {
        /// None: the token that this connection was granted.
        token: Option<Token>,
        /// None: the TTL that it was taken with, or `locks.default_ttl`.
        ttl: Option<Duration>,
    },
    /// Act under a lock that was taken elsewhere.
    Attach {
        /// What it was taken with.
        token: Token,
    },
    /// Act under it no longer.
    Detach,
}

/// Why words are no command; displays as the error that the client reads.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum BadRequest {
    /// Too few words, or too many for a command without options.
    #[error("ERR wrong number of arguments for '{}' command", name(*.0))]
    Arity(Own),
    /// An unknown, repeated or incomplete option.
    #[error("ERR syntax error")]
    Syntax,
    /// Not an integer of 64 bits.
    #[error("ERR value is not an integer or out of range")]
    NotAnInteger,
    /// A TTL that is not positive, overflows, or leaves no validity.
    #[error("ERR invalid expire time in '{}' command", name(*.0))]
    ExpireTime(Own),
    /// A TTL over `locks.max_ttl`.
    #[error("ERR invalid expire time in '{}' command, the longest is {} ms (locks.max_ttl)", name(*.0), .1.as_millis())]
    ExpireTimeOverLimit(Own, Duration),
    /// A key longer than `locks.max_key`.
    #[error("ERR key is longer than {0} bytes (locks.max_key)")]
    KeyTooLong(usize),
    /// A token longer than `locks.max_token`.
    #[error("ERR token is longer than {0} bytes (locks.max_token)")]
    TokenTooLong(usize),
    /// So much longer that it was not even kept.
    #[error("ERR key or token is too long (locks.max_key, locks.max_token)")]
    TooLong,
    /// An unknown subcommand.
    #[error("ERR unknown subcommand '{0}'. Try LOCKGATE HELP.")]
    Subcommand(String),
    /// A subcommand with too few or too many words.
    #[error("ERR wrong number of arguments for 'lockgate|{0}' command")]
    SubcommandArity(String),
    /// A pattern that would take too long to compare.
    #[error("ERR pattern is longer than {0} bytes")]
    PatternTooLong(usize),
    /// A session lock more than a connection can keep.
    #[error("ERR too many session locks on this connection, it can keep {0} locks")]
    TooManySessionLocks(usize),
    /// An attached lock more than a connection can remember.
    #[error("ERR too many locks on this connection, it can keep {0}")]
    TooManyLocks(usize),
    /// A key of Lockgate's own.
    #[error("ERR keys that begin with 'lockgate:' are reserved")]
    Reserved,
    /// WAIT with no integer of 64 bits, in the words of XREAD's BLOCK.
    #[error("ERR timeout is not an integer or out of range")]
    Timeout,
    /// WAIT with a negative number.
    #[error("ERR timeout is negative")]
    NegativeTimeout,
    /// A WAIT over `locks.max_wait`.
    #[error("ERR invalid wait time in 'lock' command, the longest is {} ms (locks.max_wait)", .0.as_millis())]
    TimeoutOverLimit(Duration),
}

/// The command's name as Redis writes it in errors.
pub fn name(own: Own) -> &'static str {
    match own {
        Own::Lock => "lock",
        Own::Unlock => "unlock",
        Own::Renew => "renew",
        Own::Attach => "lock.attach",
        Own::Detach => "lock.detach",
        Own::Lockgate => "lockgate",
        Own::Command => "command",
    }
}

/// Whether the number of words alone is right, which Redis checks before
/// it asks who the client is. `words` counts the name too.
///
/// # Errors
/// [`BadRequest::Arity`], or [`BadRequest::Syntax`] where options are too many.
pub fn check_arity(own: Own, words: usize) -> Result<(), BadRequest> {
    let too_many = match own {
        Own::Lock | Own::Renew | Own::Lockgate | Own::Command => false,
        Own::Unlock => words > 3,
        Own::Attach => words != 3,
        Own::Detach => words != 2,
    };
    if words < 2 || too_many { Err(BadRequest::Arity(own)) } else { Ok(()) }
}

/// The key on the nodes: the prefix and the client's key.
pub fn full_key(key: &[u8], config: &LocksConfig) -> Key {
    Key::new(config.prefix.as_bytes(), key)
}

/// Reads the words behind LOCK, UNLOCK, RENEW, LOCK.ATTACH or LOCK.DETACH, whose number [`check_arity`] has
/// approved. `full_key` is what [`full_key`] has made of the first.
///
/// # Errors
/// The first thing that is wrong with them.
pub fn parse<Word: AsRef<[u8]>>(
    own: Own,
    full_key: &Key,
    words: &[Word],
    config: &LocksConfig,
) -> Result<Request, BadRequest> {
    let [key, rest @ ..] = words else { return Err(BadRequest::Arity(own)) };
    // Options come in pairs, so an odd word more is the token.
    let (token, pairs) = match rest {
        [token, pairs @ ..] if rest.len() % 2 == 1 => (Some(token.as_ref()), pairs),
        pairs => (None, pairs),
    };
    let mut ttl = None;
    let mut wait = None;
    for pair in pairs.chunks_exact(2) {
        let [option, value] = pair else { return Err(BadRequest::Syntax) };
        let is = |name: &[u8]| option.as_ref().eq_ignore_ascii_case(name);
        let (slot, unit) = match own {
            Own::Lock | Own::Renew if is(b"PX") => (&mut ttl, 1),
            Own::Lock | Own::Renew if is(b"EX") => (&mut ttl, 1000),
            Own::Lock if is(b"WAIT") => (&mut wait, 1),
            _ => return Err(BadRequest::Syntax),
        };
        if slot.replace((value.as_ref(), unit)).is_some() {
            return Err(BadRequest::Syntax);
        }
    }
    let ttl = ttl.map(|(value, unit)| read_ttl(own, value, unit, config.max_ttl)).transpose()?;
    let wait = wait.map(|(value, _)| read_wait(value, config.max_wait)).transpose()?;
    if key.as_ref().len() > config.max_key {
        return Err(BadRequest::KeyTooLong(config.max_key));
    }
    if token.is_some_and(|token| token.len() > config.max_token) {
        return Err(BadRequest::TokenTooLong(config.max_token));
    }
    if full_key.starts_with(RESERVED) {
        return Err(BadRequest::Reserved);
    }
    let token = token.map(Token::from);
    Ok(match own {
        Own::Lock => Request::Lock { token, ttl, wait },
        Own::Unlock => Request::Unlock { token },
        Own::Renew => Request::Renew { token, ttl },
        Own::Attach => Request::Attach { token: token.ok_or(BadRequest::Arity(own))? },
        Own::Detach => Request::Detach,
        Own::Lockgate | Own::Command => return Err(BadRequest::Syntax),
    })
}

fn read_ttl(own: Own, value: &[u8], unit: i64, max: Duration) -> Result<Duration, BadRequest> {
    let value = number::integer(value).ok_or(BadRequest::NotAnInteger)?;
    let millis = value.checked_mul(unit).and_then(|millis| u64::try_from(millis).ok());
    let ttl = Duration::from_millis(millis.ok_or(BadRequest::ExpireTime(own))?);
    if ttl < MIN_TTL {
        return Err(BadRequest::ExpireTime(own));
    }
    if ttl > max {
        return Err(BadRequest::ExpireTimeOverLimit(own, max));
    }
    Ok(ttl)
}

/// 0 waits as long as is allowed. More is refused rather than cut: a client would
/// take the null that comes too early for the end of its own time-out.
fn read_wait(value: &[u8], max: Duration) -> Result<Duration, BadRequest> {
    let millis = number::integer(value).ok_or(BadRequest::Timeout)?;
    let millis = u64::try_from(millis).map_err(|_| BadRequest::NegativeTimeout)?;
    match Duration::from_millis(millis) {
        Duration::ZERO => Ok(max),
        wait if wait > max => Err(BadRequest::TimeoutOverLimit(max)),
        wait => Ok(wait),
    }
}

#[cfg(test)]
mod tests;
