//! Reads the subcommands by which an operator changes something: LOCKGATE UNLOCK, NODE, PAUSE and
//! UNPAUSE.

use std::time::Duration;

use super::{BadRequest, shown};
use crate::resp::number;

/// A change that an operator asks the proxy for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum OperatorAct {
    /// Take a lock back from its holder.
    Unlock {
        /// The key as clients write it, without the prefix.
        key: Vec<u8>,
        /// Whose lock it is.
        grant: MeantGrant,
    },
    /// Stop asking a lock node for new locks.
    PauseNode {
        /// The node's address as LOCKGATE NODES shows it.
        address: Vec<u8>,
        /// Pause the node even if too few others vote.
        force: bool,
    },
    /// Ask a lock node for new locks again.
    ResumeNode {
        /// The node's address as LOCKGATE NODES shows it.
        address: Vec<u8>,
    },
    /// Make new LOCKs wait.
    Pause {
        /// For how long. Zero ends the pause.
        time: Duration,
    },
}

/// The grant of a lock that an operator means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MeantGrant {
    /// Whichever has the lock; all its readers.
    Any,
    /// That with this fence.
    Fence(u64),
    /// One reader, by the number of its claim.
    Reader(u64),
}

/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(24 * 60 * 60);

/// Reads the words behind LOCKGATE. Returns `None` if they ask for no change.
pub(crate) fn read<Word: AsRef<[u8]>>(words: &[Word]) -> Option<Result<OperatorAct, BadRequest>> {
    let (subcommand, arguments) = words.split_first()?;
    let arguments: Vec<&[u8]> = arguments.iter().map(AsRef::as_ref).collect();
    match subcommand.as_ref().to_ascii_lowercase().as_slice() {
        b"unlock" => Some(unlock(&arguments)),
        b"node" => Some(node(&arguments)),
        b"pause" => Some(pause(&arguments)),
        b"unpause" if arguments.is_empty() => Some(Ok(OperatorAct::Pause { time: Duration::ZERO })),
        b"unpause" => Some(Err(BadRequest::SubcommandArity("unpause".to_owned()))),
        _ => None,
    }
}

fn unlock(arguments: &[&[u8]]) -> Result<OperatorAct, BadRequest> {
    let is = |word: &[u8], name: &[u8]| word.eq_ignore_ascii_case(name);
    match *arguments {
        [key, any] if is(any, b"ANY") => {
            Ok(OperatorAct::Unlock { key: key.into(), grant: MeantGrant::Any })
        }
        [_, word] if is(word, b"FENCE") || is(word, b"READER") => {
            Err(BadRequest::NoValue(shown(word)))
        }
        [key, word, number] if is(word, b"FENCE") => {
            let grant = MeantGrant::Fence(unsigned(number, "FENCE")?);
            Ok(OperatorAct::Unlock { key: key.into(), grant })
        }
        [key, word, number] if is(word, b"READER") => {
            let grant = MeantGrant::Reader(unsigned(number, "READER")?);
            Ok(OperatorAct::Unlock { key: key.into(), grant })
        }
        [_, word] | [_, word, _] => Err(BadRequest::UnknownOption(shown(word))),
        _ => Err(BadRequest::SubcommandArity("unlock".to_owned())),
    }
}

fn unsigned(word: &[u8], option: &'static str) -> Result<u64, BadRequest> {
    let number = number::integer(word).and_then(|number| u64::try_from(number).ok());
    number.ok_or_else(|| BadRequest::NotAnInteger(shown(word), option))
}

fn node(arguments: &[&[u8]]) -> Result<OperatorAct, BadRequest> {
    let is = |word: &[u8], name: &[u8]| word.eq_ignore_ascii_case(name);
    let pause = |address: &[u8], force| OperatorAct::PauseNode { address: address.into(), force };
    match *arguments {
        [address, what] if is(what, b"PAUSE") => Ok(pause(address, false)),
        [address, what, force] if is(what, b"PAUSE") && is(force, b"FORCE") => {
            Ok(pause(address, true))
        }
        [address, what] if is(what, b"RESUME") => {
            Ok(OperatorAct::ResumeNode { address: address.into() })
        }
        [_, what, word] if is(what, b"PAUSE") => Err(BadRequest::UnknownOption(shown(word))),
        [_, what] => Err(BadRequest::UnknownOption(shown(what))),
        _ => Err(BadRequest::SubcommandArity("node".to_owned())),
    }
}

fn pause(arguments: &[&[u8]]) -> Result<OperatorAct, BadRequest> {
    let [millis] = *arguments else {
        return Err(BadRequest::SubcommandArity("pause".to_owned()));
    };
    let time = unsigned(millis, "PAUSE").ok().map(Duration::from_millis);
    let time = time.filter(|time| *time <= LONGEST_PAUSE);
    let time = time.ok_or_else(|| BadRequest::NotAnInteger(shown(millis), "PAUSE"))?;
    Ok(OperatorAct::Pause { time })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_words(text: &str) -> Option<Result<OperatorAct, BadRequest>> {
        read(&text.split_whitespace().map(str::as_bytes).collect::<Vec<_>>())
    }

    #[test]
    fn what_an_operator_wants_is_read_in_any_case() {
        let unlock = |grant| Some(Ok(OperatorAct::Unlock { key: b"Job".to_vec(), grant }));
        assert_eq!(read_words("UNLOCK Job FENCE 7"), unlock(MeantGrant::Fence(7)));
        assert_eq!(read_words("unlock Job reader 7"), unlock(MeantGrant::Reader(7)));
        assert_eq!(read_words("unlock Job any"), unlock(MeantGrant::Any));
        let address = b"a:1".to_vec();
        let paused = |force| OperatorAct::PauseNode { address: address.clone(), force };
        assert_eq!(read_words("NODE a:1 PAUSE"), Some(Ok(paused(false))));
        assert_eq!(read_words("node a:1 pause force"), Some(Ok(paused(true))));
        let resumed = OperatorAct::ResumeNode { address: address.clone() };
        assert_eq!(read_words("Node a:1 Resume"), Some(Ok(resumed)));
        let pause = |millis| Some(Ok(OperatorAct::Pause { time: Duration::from_millis(millis) }));
        assert_eq!(read_words("PAUSE 1500"), pause(1500));
        assert_eq!(read_words("unpause"), pause(0));
        for other in ["", "LOCK Job", "INFO", "NODES"] {
            assert_eq!(read_words(other), None);
        }
    }

    #[test]
    fn nothing_is_guessed() {
        for (text, error) in [
            ("UNLOCK", "ERR wrong number of arguments for 'lockgate|unlock' command"),
            ("UNLOCK k", "ERR wrong number of arguments for 'lockgate|unlock' command"),
            ("UNLOCK k FENCE 7 8", "ERR wrong number of arguments for 'lockgate|unlock' command"),
            ("UNLOCK k READER", "ERR syntax error, 'READER' lacks its value"),
            ("UNLOCK k READER x", "ERR value is not an integer or out of range, 'x' for READER"),
            ("UNLOCK k FENCE", "ERR syntax error, 'FENCE' lacks its value"),
            ("UNLOCK k 7", "ERR syntax error, unknown option '7'"),
            ("UNLOCK k ANY 7", "ERR syntax error, unknown option 'ANY'"),
            ("UNLOCK k FENCE x", "ERR value is not an integer or out of range, 'x' for FENCE"),
            ("UNLOCK k FENCE -1", "ERR value is not an integer or out of range, '-1' for FENCE"),
            ("NODE a", "ERR wrong number of arguments for 'lockgate|node' command"),
            ("NODE a STOP", "ERR syntax error, unknown option 'STOP'"),
            ("NODE a PAUSE NOW", "ERR syntax error, unknown option 'NOW'"),
            ("NODE a RESUME FORCE", "ERR wrong number of arguments for 'lockgate|node' command"),
            ("PAUSE", "ERR wrong number of arguments for 'lockgate|pause' command"),
            ("UNPAUSE 1", "ERR wrong number of arguments for 'lockgate|unpause' command"),
            ("PAUSE -1", "ERR value is not an integer or out of range, '-1' for PAUSE"),
            ("PAUSE 86400001", "ERR value is not an integer or out of range, '86400001' for PAUSE"),
        ] {
            assert_eq!(read_words(text).unwrap().unwrap_err().to_string(), error, "{text}");
        }
    }
}
