//! Our own commands: from words to a typed [`Request`], in Redis's grammar and wording.
//!
//! This module knows nothing of connections, nor of how a lock is taken.
//!
//! - [`operator`]: the questions of LOCKGATE, and those of COMMAND about our commands.
//! - [`act`]: the subcommands of LOCKGATE that change something.
//! - [`docs`]: the answers to COMMAND INFO and DOCS.
//! - [`key_words`]: the words that are keys, for COMMAND GETKEYS.

pub(crate) mod act;
pub(crate) mod docs;
pub(crate) mod key_words;
pub mod operator;

use std::{collections::HashSet, time::Duration};

use thiserror::Error;

use crate::{
    config::{LocksConfig, MAX_PERMITS, PermitRule},
    key::{Key, Token},
    lock::{permit_of, shortest_ttl},
    resp::{name::Own, number},
};

/// The most locks that MLOCK takes at once.
pub(crate) const MAX_KEYS: usize = 128;
/// The most bytes of MLOCK or MUNLOCK, unless a single key and token may be longer: as much as any client may leave
/// unsent.
pub(crate) const MAX_BYTES_OF_MANY: usize = 64 * 1024;
/// Prefix of keys that belong to Lockgate itself.
const RESERVED: &[u8] = b"lockgate:";
/// The option of LOCK for a reader. It has no value.
const SHARED: &[u8] = b"SHARED";
/// Words that are refused as tokens, in upper or lower case: a client that sends one as a token
/// has misplaced an option.
const NO_TOKENS: [&[u8]; 15] = [
    b"PX", b"EX", b"PXAT", b"EXAT", b"WAIT", b"NX", b"XX", b"KEEPTTL", b"GET", SHARED, b"PERMITS",
    b"COUNT", b"DELAY", b"NOTE", b"FENCE",
];

/// A well-formed command on one lock, or on several.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// Take a lock, or all of several.
    Lock {
        /// The client's own token; `None`: the proxy makes one.
        token: Option<Token>,
        /// The TTL of a lease; `None`: a session lock, which lives as long as its connection.
        ttl: Option<Duration>,
        /// How long to wait for the lock; `None`: not at all.
        wait: Option<Duration>,
    },
    /// Take a reader's part of a lock, which several clients may have at the same time.
    Shared {
        /// As for [`Request::Lock`].
        token: Option<Token>,
        /// As for [`Request::Lock`].
        ttl: Option<Duration>,
        /// As for [`Request::Lock`].
        wait: Option<Duration>,
    },
    /// Take the first free lock of a family.
    Permit {
        /// The number of permits.
        n: usize,
        /// As for [`Request::Lock`].
        token: Option<Token>,
        /// As for [`Request::Lock`].
        ttl: Option<Duration>,
        /// As for [`Request::Lock`].
        wait: Option<Duration>,
    },
    /// Give locks back.
    Unlock {
        /// `None`: for each, the token that this connection was granted.
        token: Option<Token>,
    },
    /// Give a lock a fresh TTL.
    Renew {
        /// `None`: the token that this connection was granted.
        token: Option<Token>,
        /// `None`: the TTL that the lock was taken with, or `locks.default_ttl`.
        ttl: Option<Duration>,
    },
    /// Act under a lock that was taken on another connection.
    Attach {
        /// The token that the lock was taken with.
        token: Token,
    },
    /// Stop acting under an attached lock.
    Detach,
}

/// The reason why a command is refused; its `Display` is the error that the client is sent.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum BadRequest {
    /// Too few words, or too many for a command without options.
    #[error("ERR wrong number of arguments for '{}' command", name(*.0))]
    Arity(Own),
    /// Words that no command of ours has.
    #[error("ERR syntax error")]
    Syntax,
    /// More words than a command has with all its options.
    #[error("ERR syntax error, there are more words than options")]
    TooManyWords,
    /// An unknown option.
    #[error("ERR syntax error, unknown option '{0}'")]
    UnknownOption(String),
    /// A word in an option's place, which may be a token, and a number behind it, which may be a TTL.
    #[error("ERR syntax error, unknown option '{0}'; for a TTL write PX {1}")]
    NumberWithoutOption(String, String),
    /// An option that was given already, or one that excludes it.
    #[error("ERR syntax error, '{0}' is one option too many")]
    Repeated(String),
    /// An option without its value.
    #[error("ERR syntax error, '{0}' lacks its value")]
    NoValue(String),
    /// A word that was not meant as a token, and advice on what to write.
    #[error("ERR '{0}' is no token; {1}")]
    NotAToken(String, String),
    /// An empty key.
    #[error("ERR the key is empty")]
    EmptyKey,
    /// A value that is no 64-bit integer, and its option.
    #[error("ERR value is not an integer or out of range, '{0}' for {1}")]
    NotAnInteger(String, &'static str),
    /// A TTL too short to leave a validity.
    #[error("ERR invalid expire time in '{}' command, the shortest is {} ms", name(*.0), .1.as_millis())]
    ExpireTime(Own, Duration),
    /// A TTL over `locks.max_ttl`.
    #[error("ERR invalid expire time in '{}' command, the longest is {} ms (locks.max_ttl)", name(*.0), .1.as_millis())]
    ExpireTimeOverLimit(Own, Duration),
    /// A key longer than `locks.max_key`.
    #[error("ERR key is longer than {0} bytes (locks.max_key)")]
    KeyTooLong(usize),
    /// A token longer than `locks.max_token`.
    #[error("ERR token is longer than {0} bytes (locks.max_token)")]
    TokenTooLong(usize),
    /// A number of keys that is none.
    #[error("ERR numkeys should be greater than 0, '{0}' is not")]
    NumKeys(String),
    /// A number of keys over [`MAX_KEYS`].
    #[error("ERR numkeys should be at most {MAX_KEYS}, '{0}' is more")]
    NumKeysOverLimit(String),
    /// Fewer words than keys: the number of keys, and that of the words behind it.
    #[error(
        "ERR Number of keys can't be greater than number of args, numkeys is {0}, and {1} words follow"
    )]
    KeysMissing(usize, usize),
    /// More words than [`MAX_KEYS`] keys and all options.
    #[error("ERR syntax error, there are more words than {MAX_KEYS} keys and all options")]
    TooManyKeys,
    /// Keys that take more than [`MAX_BYTES_OF_MANY`] together.
    #[error("ERR the keys are too long, together they may take {MAX_BYTES_OF_MANY} bytes")]
    KeysTooLong,
    /// A number of permits that is none, or over [`MAX_PERMITS`].
    #[error("ERR PERMITS should be between 1 and {MAX_PERMITS}, '{0}' is not")]
    Permits(String),
    /// Another number of permits than the file has: the family, the number given, and the right one.
    #[error("ERR '{0}' has {2} permits (locks.permits), PERMITS {1} contradicts that")]
    OtherPermits(String, usize, usize),
    /// A permit that is taken for a family.
    #[error("ERR '{0}' is a permit of '{1}', and has no permits of its own")]
    IsAPermit(String, String),
    /// SHARED where the file does not allow it.
    #[error("ERR SHARED is off; it needs 'locks.shared: yes' in the file of every proxy")]
    SharedOff,
    /// SHARED with PERMITS.
    #[error("ERR SHARED and PERMITS exclude each other")]
    SharedPermits,
    /// SHARED of a lock that has a key on the data node too.
    #[error(
        "ERR no SHARED of a lock that an adopt rule bridges, as it is a key of the data node too"
    )]
    SharedBridged,
    /// SHARED of a lock that a guard needs.
    #[error(
        "ERR no SHARED of a lock that a guard needs: a reader has no fence, and would read what a writer sends late"
    )]
    SharedGuard,
    /// SHARED where another proxy does not know of readers.
    #[error(
        "ERR SHARED is refused while another proxy of this deployment is of a version without it"
    )]
    SharedUnknown,
    /// A RENEW that would make another connection the keeper of a reader.
    #[error(
        "ERR the lock '{0}' is shared by this token on another connection, which keeps it; name a TTL"
    )]
    ReaderKept(String),
    /// An UNLOCK or RENEW by a token that several readers of the lock have.
    #[error("ERR several readers of '{0}' have this token; use the connection that was granted it")]
    SeveralReaders(String),
    /// A lock that is named twice in one command.
    #[error("ERR the lock '{0}' is named twice")]
    NamedTwice(String),
    /// A lock that the connection holds already, by an earlier LOCK or MLOCK.
    #[error("ERR this connection holds the lock '{0}' already")]
    HeldAlready(String),
    /// Before a cluster: keys of more than one slot.
    #[error("CROSSSLOT Keys in request don't hash to the same slot")]
    CrossSlot,
    /// A key or token so long that it was not even kept.
    #[error("ERR key or token is too long (locks.max_key, locks.max_token)")]
    TooLong,
    /// An unknown subcommand.
    #[error("ERR unknown subcommand '{0}'. Try LOCKGATE HELP.")]
    Subcommand(String),
    /// A subcommand with too few or too many words.
    #[error("ERR wrong number of arguments for 'lockgate|{0}' command")]
    SubcommandArity(String),
    /// A pattern too long to be compared with every lock.
    #[error("ERR pattern is longer than {0} bytes")]
    PatternTooLong(usize),
    /// One session lock more than a connection can keep.
    #[error("ERR too many session locks on this connection, it can keep {0} locks")]
    TooManySessionLocks(usize),

    /// One lock more than a connection can remember, attached or needed by a guard.
    #[error("ERR too many locks on this connection, it can keep {0}")]
    TooManyLocks(usize),
    /// A key of Lockgate's own.
    #[error("ERR keys that begin with 'lockgate:' are reserved")]
    Reserved,
    /// A WAIT that is no 64-bit integer, in the words of XREAD's BLOCK.
    #[error("ERR timeout is not an integer or out of range, '{0}' for WAIT")]
    Timeout(String),
    /// A negative WAIT.
    #[error("ERR timeout is negative")]
    NegativeTimeout,
    /// A WAIT over `locks.max_wait`.
    #[error("ERR invalid wait time in '{}' command, the longest is {} ms (locks.max_wait)", name(*.0), .1.as_millis())]
    TimeoutOverLimit(Own, Duration),
    /// An UNLOCK or RENEW without a token, of a lock that the connection never had.
    #[error("NOTOKEN this connection took no lock '{0}'; name its token")]
    NoToken(String),
    /// An UNLOCK or RENEW without a token, of a lock that several LOCKs on the connection asked for.
    #[error("NOTOKEN several LOCKs of '{0}' came over this connection; name the token")]
    MustName(String),
    /// An UNLOCK or RENEW by a token that may be another client's too.
    #[error(
        "UNSURE this connection was refused a LOCK of '{0}' with this token, or its reader by it has ended, and \
         whether another client has the lock by it is not known; use the connection that was granted it"
    )]
    Unsure(String),
    /// A WAIT that only the waiting connection itself could end.
    #[error("DEADLOCK this connection holds the lock and would wait for itself")]
    Deadlock,
    /// A command whose keys COMMAND GETKEYS cannot tell.
    #[error(transparent)]
    NoKeys(#[from] key_words::NoKeys),
}

/// Returns a client's word as an error repeats it: [`crate::log_text::shown`].
pub(crate) fn shown(word: &[u8]) -> String {
    crate::log_text::shown(word).into_owned()
}

/// Returns the command's name as Redis writes it in errors.
pub(crate) fn name(own: Own) -> &'static str {
    match own {
        Own::Lock => "lock",
        Own::Unlock => "unlock",
        Own::Renew => "renew",
        Own::Mlock => "mlock",
        Own::Munlock => "munlock",
        Own::Attach => "lock.attach",
        Own::Detach => "lock.detach",
        Own::Lockgate => "lockgate",
        Own::Command => "command",
    }
}

/// Checks the number of words, the name included. Redis does so before it checks whether the
/// client is authenticated.
///
/// # Errors
/// [`BadRequest::Arity`], or [`BadRequest::Syntax`] if there are too many options.
pub fn check_arity(own: Own, words: usize) -> Result<(), BadRequest> {
    let is_wrong = match own {
        Own::Lock | Own::Renew | Own::Lockgate | Own::Command => false,
        Own::Unlock => words > 3,
        Own::Mlock | Own::Munlock => words < 3,
        Own::Attach => words != 3,
        Own::Detach => words != 2,
    };
    if words < 2 || is_wrong { Err(BadRequest::Arity(own)) } else { Ok(()) }
}

/// Returns the most words that a well-formed command of ours can have, its name included.
pub(crate) fn max_words(own: Own) -> usize {
    match own {
        // With the longest command of ours behind GETKEYS.
        Own::Command => 2 + max_words(Own::Mlock),
        // `MLOCK numkeys`, the keys, `token PX ms WAIT ms`.
        Own::Mlock | Own::Munlock => 2 + MAX_KEYS + 5,
        // `LOCK key token PX ms WAIT ms PERMITS n` has nine.
        Own::Lock => 10,
        _ => 8,
    }
}

/// Returns the key on the lock nodes: the prefix and the client's key.
pub fn full_key(key: &[u8], config: &LocksConfig) -> Key {
    Key::new(config.prefix.as_bytes(), key)
}

/// Reads the words behind LOCK, UNLOCK, RENEW, LOCK.ATTACH or LOCK.DETACH, whose number
/// [`check_arity`] has approved. `full_key` is [`full_key`] of the first.
///
/// # Errors
/// The first problem found.
pub fn parse<Word: AsRef<[u8]>>(
    own: Own,
    full_key: &Key,
    words: &[Word],
    config: &LocksConfig,
) -> Result<Request, BadRequest> {
    if words.is_empty() {
        return Err(BadRequest::Arity(own));
    }
    let (keys, rest) = words.split_at(1);
    let request = parse_behind(own, keys, rest, config)?;
    check_reserved(full_key)?;
    Ok(request)
}

/// Divides the words behind MLOCK or MUNLOCK, whose number [`check_arity`] has approved, into the keys and the words
/// behind these.
///
/// # Errors
/// If the first word is no number of keys, or not that of these.
pub fn divide<Word>(words: &[Word]) -> Result<(&[Word], &[Word]), BadRequest>
where
    Word: AsRef<[u8]>,
{
    let [numkeys, rest @ ..] = words else { return Err(BadRequest::Syntax) };
    let is_huge = numkeys.as_ref().len() > 18 && numkeys.as_ref().iter().all(u8::is_ascii_digit);
    let number = if is_huge { Some(i64::MAX) } else { number::integer(numkeys.as_ref()) };
    let number = number.filter(|number| *number > 0);
    let number = number.ok_or_else(|| BadRequest::NumKeys(shown(numkeys.as_ref())))?;
    let number = usize::try_from(number).ok().filter(|number| *number <= MAX_KEYS);
    let number = number.ok_or_else(|| BadRequest::NumKeysOverLimit(shown(numkeys.as_ref())))?;
    rest.split_at_checked(number).ok_or(BadRequest::KeysMissing(number, rest.len()))
}

/// Reads the words behind MLOCK or MUNLOCK that [`divide`] has divided. `full_keys` are [`full_key`] of `keys`.
///
/// # Errors
/// The first problem found.
pub fn parse_many<Word: AsRef<[u8]>>(
    own: Own,
    (full_keys, keys): (&[Key], &[Word]),
    rest: &[Word],
    config: &LocksConfig,
) -> Result<Request, BadRequest> {
    let request = parse_behind(own, keys, rest, config)?;
    full_keys.iter().try_for_each(check_reserved)?;
    let mut known = HashSet::new();
    let twice = full_keys.iter().zip(keys).find(|(full_key, _)| !known.insert(full_key.number()));
    match twice {
        Some((_, key)) => Err(BadRequest::NamedTwice(shown(key.as_ref()))),
        None => Ok(request),
    }
}

/// Reads the words behind these keys.
fn parse_behind<Word: AsRef<[u8]>>(
    own: Own,
    keys: &[Word],
    rest: &[Word],
    config: &LocksConfig,
) -> Result<Request, BadRequest> {
    let shares = |word: &Word| own == Own::Lock && word.as_ref().eq_ignore_ascii_case(SHARED);
    if let Some(at) = rest.iter().position(shares) {
        let keys: Vec<&[u8]> = keys.iter().map(AsRef::as_ref).collect();
        let mut rest: Vec<&[u8]> = rest.iter().map(AsRef::as_ref).collect();
        rest.remove(at);
        let request = shared(parse_behind(own, &keys, &rest, config)?, config)?;
        // It stands behind the token, and not between an option and its value.
        let is_behind = |token: usize| at >= token && (at - token).is_multiple_of(2);
        return match (is_behind(rest.len() % 2), at.checked_sub(1)) {
            (true, _) => Ok(request),
            (false, None) => Err(BadRequest::UnknownOption(shown(rest[0]))),
            (false, Some(before)) => Err(BadRequest::NoValue(shown(rest[before]))),
        };
    }
    // Options come in pairs, so with an odd number of words the first is the token.
    let (token, pairs) = match rest {
        [token, pairs @ ..] if rest.len() % 2 == 1 => (Some(token.as_ref()), pairs),
        pairs => (None, pairs),
    };
    let mut ttl: Option<(&[u8], Unit)> = None;
    let mut wait: Option<&[u8]> = None;
    let mut permits: Option<&[u8]> = None;
    for pair in pairs.chunks_exact(2) {
        let [option, value] = pair else { return Err(BadRequest::Syntax) };
        let repeated = match option_of(own, option.as_ref()) {
            Some(Choice::Ttl(unit)) => ttl.replace((value.as_ref(), unit)).is_some(),
            Some(Choice::Wait) => wait.replace(value.as_ref()).is_some(),
            Some(Choice::Permits) => permits.replace(value.as_ref()).is_some(),
            None => return Err(misplaced(own, rest)),
        };
        if repeated {
            return Err(BadRequest::Repeated(shown(option.as_ref())));
        }
    }
    let has_ttl = ttl.is_some();
    let ttl = ttl.map(|(value, unit)| read_ttl(own, value, unit, config)).transpose()?;
    let wait = wait.map(|value| read_wait(own, value, config.max_wait)).transpose()?;
    keys.iter().try_for_each(|key| check_length(key.as_ref(), config))?;
    let permits = permits.zip(keys.first());
    let permits =
        permits.map(|(value, key)| read_permits(value, key.as_ref(), config)).transpose()?;
    if token.is_some_and(|token| token.len() > config.max_token) {
        return Err(BadRequest::TokenTooLong(config.max_token));
    }
    if let Some(token) = token {
        check_token(own, keys, token, rest, has_ttl)?;
    }
    let token = token.map(Token::from);
    Ok(match (own, permits) {
        (Own::Lock, Some(n)) => Request::Permit { n, token, ttl, wait },
        (own, _) => request_of(own, token, ttl, wait)?,
    })
}

/// Makes the request of a LOCK with SHARED from that of the LOCK without it.
fn shared(request: Request, config: &LocksConfig) -> Result<Request, BadRequest> {
    match request {
        Request::Lock { .. } if !config.shared => Err(BadRequest::SharedOff),
        Request::Lock { token, ttl, wait } => Ok(Request::Shared { token, ttl, wait }),
        Request::Shared { .. } => Err(BadRequest::Repeated(shown(SHARED))),
        _ => Err(BadRequest::SharedPermits),
    }
}

/// Makes the request of a command without permits.
fn request_of(
    own: Own,
    token: Option<Token>,
    ttl: Option<Duration>,
    wait: Option<Duration>,
) -> Result<Request, BadRequest> {
    Ok(match own {
        Own::Lock | Own::Mlock => Request::Lock { token, ttl, wait },
        Own::Unlock | Own::Munlock => Request::Unlock { token },
        Own::Renew => Request::Renew { token, ttl },
        Own::Attach => Request::Attach { token: token.ok_or(BadRequest::Arity(own))? },
        Own::Detach => Request::Detach,
        Own::Lockgate | Own::Command => return Err(BadRequest::Syntax),
    })
}

/// Checks a key as a client writes it, without the prefix. `full_key` is [`full_key`] of it.
///
/// # Errors
/// If no lock can have that key.
pub(crate) fn check_key(
    key: &[u8],
    full_key: &Key,
    config: &LocksConfig,
) -> Result<(), BadRequest> {
    check_length(key, config)?;
    check_reserved(full_key)
}

fn check_length(key: &[u8], config: &LocksConfig) -> Result<(), BadRequest> {
    match key.len() {
        0 => Err(BadRequest::EmptyKey),
        length if length > config.max_key => Err(BadRequest::KeyTooLong(config.max_key)),
        _ => Ok(()),
    }
}

fn check_reserved(full_key: &Key) -> Result<(), BadRequest> {
    match full_key.starts_with(RESERVED) {
        true => Err(BadRequest::Reserved),
        false => Ok(()),
    }
}

/// The unit of a TTL: the option's name, and the milliseconds in one unit.
type Unit = (&'static str, u64);

/// An option of LOCK or RENEW.
enum Choice {
    Ttl(Unit),
    Wait,
    Permits,
}

fn option_of(own: Own, word: &[u8]) -> Option<Choice> {
    let is = |name: &[u8]| word.eq_ignore_ascii_case(name);
    match own {
        Own::Lock | Own::Mlock | Own::Renew if is(b"PX") => Some(Choice::Ttl(("PX", 1))),
        Own::Lock | Own::Mlock | Own::Renew if is(b"EX") => Some(Choice::Ttl(("EX", 1000))),
        Own::Lock | Own::Mlock if is(b"WAIT") => Some(Choice::Wait),
        Own::Lock if is(b"PERMITS") => Some(Choice::Permits),
        _ => None,
    }
}

fn is_number(word: &[u8]) -> bool {
    !word.is_empty() && word.iter().all(u8::is_ascii_digit)
}

/// Whether the word may be meant as a time: a number, perhaps with a sign, a point or a unit. A
/// number with an exponent is none, as a random hexadecimal token may look like one.
fn is_time(word: &[u8]) -> bool {
    const UNITS: [&[u8]; 5] = [b"", b"ms", b"s", b"m", b"h"];
    let word = word.strip_prefix(b"+").or_else(|| word.strip_prefix(b"-")).unwrap_or(word);
    let digits = word.iter().rposition(u8::is_ascii_digit).map_or(0, |last| last + 1);
    let (number, unit) = word.split_at(digits);
    UNITS.iter().any(|known| unit.eq_ignore_ascii_case(known))
        && number.splitn(2, |byte| *byte == b'.').all(is_number)
}

/// Says which word behind the key should be an option, or lacks its value. `LOCK k t NX` has a
/// token in front, `LOCK k NX PX 9` and `LOCK k FOO 9` have none.
fn misplaced<Word: AsRef<[u8]>>(own: Own, rest: &[Word]) -> BadRequest {
    let word = |at: usize| rest.get(at).map(AsRef::as_ref).unwrap_or_default();
    let is_option = |at: usize| option_of(own, word(at)).is_some();
    let names_token = match rest.len() % 2 {
        1 => !is_no_token(word(0)),
        _ => !is_no_token(word(0)) && !is_number(word(1)),
    };
    let mut at = usize::from(names_token);
    while is_option(at) && at + 1 < rest.len() {
        at += 2;
    }
    let takes_ttl = matches!(own, Own::Lock | Own::Mlock | Own::Renew);
    match is_option(at) {
        true => BadRequest::NoValue(shown(word(at))),
        false if takes_ttl && at == 0 && !is_no_token(word(0)) && is_number(word(1)) => {
            BadRequest::NumberWithoutOption(shown(word(0)), shown(word(1)))
        }
        false => BadRequest::UnknownOption(shown(word(at))),
    }
}

/// Returns the token that the words behind the keys of a malformed command seem to name.
pub(crate) fn named_token<Word: AsRef<[u8]>>(rest: &[Word]) -> Option<Token> {
    let word = rest.first()?.as_ref();
    let is_option = is_no_token(word) || is_number(word) || is_time(word);
    (!word.is_empty() && !is_option).then(|| Token::from(word))
}

fn is_no_token(word: &[u8]) -> bool {
    word == Token::OF_EMPTY_VALUE
        || word == Token::OF_READERS
        || NO_TOKENS.iter().any(|name| word.eq_ignore_ascii_case(name))
}

/// Whether the word is one by which Redis sets a TTL.
fn is_ttl_word(word: &[u8]) -> bool {
    [&b"PX"[..], b"EX", b"PXAT", b"EXAT", b"KEEPTTL"]
        .iter()
        .any(|name| word.eq_ignore_ascii_case(name))
}

/// Refuses a word that was certainly not meant as a token: two clients that make the same
/// mistake would both be granted the lock.
fn check_token<Word: AsRef<[u8]>>(
    own: Own,
    keys: &[Word],
    token: &[u8],
    rest: &[Word],
    has_ttl: bool,
) -> Result<(), BadRequest> {
    let command = || command_with_keys(own, keys);
    let takes_ttl = matches!(own, Own::Lock | Own::Mlock | Own::Renew);
    let not = |right: String| Err(BadRequest::NotAToken(shown(token), right));
    match own {
        Own::Lock | Own::Mlock if token.is_empty() => {
            not("leave it out, and the proxy makes one".to_owned())
        }
        Own::Munlock if token.is_empty() => {
            not("leave it out for those that this connection was granted".to_owned())
        }
        Own::Unlock | Own::Renew if token.is_empty() => {
            not("leave it out for the one that this connection was granted".to_owned())
        }
        _ if token.is_empty() => not("name the one that LOCK answered".to_owned()),
        // `LOCK k PX 9 NX`: the odd word stands behind the options, not before them.
        _ if takes_ttl && is_no_token(token) && rest.len() > 1 => Err(misplaced(own, rest)),
        _ if matches!(option_of(own, token), Some(Choice::Wait)) => {
            not(format!("for a limit write {} WAIT <milliseconds>", command()))
        }
        _ if matches!(option_of(own, token), Some(Choice::Permits)) => {
            not(format!("for one of n permits write {} PERMITS <n>", command()))
        }
        _ if takes_ttl && is_ttl_word(token) => {
            not(format!("for a TTL write {} PX <milliseconds>", command()))
        }
        _ if takes_ttl && is_number(token) && !has_ttl => {
            not(format!("for a TTL write {} PX {}", command(), shown(token)))
        }
        _ if takes_ttl && is_time(token) && !has_ttl => {
            not(format!("for a TTL write {} PX <milliseconds>", command()))
        }
        _ if is_no_token(token) => not("LOCK grants none of that name".to_owned()),
        _ => Ok(()),
    }
}

fn read_ttl(
    own: Own,
    value: &[u8],
    (option, unit): Unit,
    config: &LocksConfig,
) -> Result<Duration, BadRequest> {
    let number =
        number::integer(value).ok_or_else(|| BadRequest::NotAnInteger(shown(value), option))?;
    let millis = u64::try_from(number).unwrap_or_default().saturating_mul(unit);
    let (ttl, shortest) = (Duration::from_millis(millis), shortest_ttl(config.drift_factor));
    if ttl < shortest {
        return Err(BadRequest::ExpireTime(own, shortest));
    }
    if ttl > config.max_ttl {
        return Err(BadRequest::ExpireTimeOverLimit(own, config.max_ttl));
    }
    Ok(ttl)
}

/// Reads the number of permits of the family `key`.
fn read_permits(value: &[u8], key: &[u8], config: &LocksConfig) -> Result<usize, BadRequest> {
    let number = number::integer(value).and_then(|number| usize::try_from(number).ok());
    let n = number.filter(|number| (1..=MAX_PERMITS).contains(number));
    let n = n.ok_or_else(|| BadRequest::Permits(shown(value)))?;
    if let Some((family, _)) = permit_of(key) {
        return Err(BadRequest::IsAPermit(shown(key), shown(family)));
    }
    let longest = key.len() + format!("#{}", n - 1).len();
    if longest > config.max_key {
        return Err(BadRequest::KeyTooLong(config.max_key));
    }
    Ok(n)
}

/// Checks the number of permits of the family `key`, without the prefix, by the first rule that is about it.
///
/// # Errors
/// If the rule says another number.
pub(crate) fn check_permits(key: &[u8], n: usize, rules: &[PermitRule]) -> Result<(), BadRequest> {
    match rules.iter().find(|rule| rule.keys.matches(key)) {
        Some(rule) if rule.n != n => Err(BadRequest::OtherPermits(shown(key), n, rule.n)),
        _ => Ok(()),
    }
}

/// Whether these words behind the name of a command ask for a permit, however malformed they are.
pub(crate) fn wants_permit<Word: AsRef<[u8]>>(own: Own, words: &[Word]) -> bool {
    words.iter().skip(1).any(|word| matches!(option_of(own, word.as_ref()), Some(Choice::Permits)))
}

/// Returns a command with its keys, as an error shows it. Of several keys it has the first.
fn command_with_keys<Word: AsRef<[u8]>>(own: Own, keys: &[Word]) -> String {
    let first = keys.first().map(|key| shown(key.as_ref())).unwrap_or_default();
    let command = name(own).to_ascii_uppercase();
    match (own, keys.len()) {
        (Own::Mlock | Own::Munlock, 1) => format!("{command} 1 {first}"),
        (Own::Mlock | Own::Munlock, number) => format!("{command} {number} {first} …"),
        _ => format!("{command} {first}"),
    }
}

/// Reads a WAIT; 0 stands for the longest that is allowed. A longer one is refused rather than
/// cut: a client would take the early null for the end of its own time-out.
fn read_wait(own: Own, value: &[u8], max: Duration) -> Result<Duration, BadRequest> {
    let millis = number::integer(value).ok_or_else(|| BadRequest::Timeout(shown(value)))?;
    let millis = u64::try_from(millis).map_err(|_| BadRequest::NegativeTimeout)?;
    match Duration::from_millis(millis) {
        Duration::ZERO => Ok(max),
        wait if wait > max => Err(BadRequest::TimeoutOverLimit(own, max)),
        wait => Ok(wait),
    }
}

#[cfg(test)]
mod grammar_tests;
