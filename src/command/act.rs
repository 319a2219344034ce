//! Reads what an operator has the proxy do: LOCKGATE UNLOCK.

use super::{BadRequest, shown};
use crate::resp::number;

/// What an operator has the proxy do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OperatorAct {
    /// Take a lock back from its holder.
    Unlock {
        /// The key as clients write it, without the prefix.
        key: Vec<u8>,
        /// The fence of the grant that is meant; none: whoever holds the lock.
        fence: Option<u64>,
    },
}

/// Reads the words behind LOCKGATE. Returns `None` if they ask for nothing to be done.
pub fn read<Word: AsRef<[u8]>>(words: &[Word]) -> Option<Result<OperatorAct, BadRequest>> {
    let (subcommand, arguments) = words.split_first()?;
    let arguments: Vec<&[u8]> = arguments.iter().map(AsRef::as_ref).collect();
    match subcommand.as_ref().to_ascii_lowercase().as_slice() {
        b"unlock" => Some(unlock(&arguments)),
        _ => None,
    }
}

fn unlock(arguments: &[&[u8]]) -> Result<OperatorAct, BadRequest> {
    let is = |word: &[u8], name: &[u8]| word.eq_ignore_ascii_case(name);
    match *arguments {
        [key, any] if is(any, b"ANY") => Ok(OperatorAct::Unlock { key: key.into(), fence: None }),
        [_, fence] if is(fence, b"FENCE") => Err(BadRequest::NoValue(shown(fence))),
        [key, fence, number] if is(fence, b"FENCE") => {
            let fence = number::integer(number).and_then(|fence| u64::try_from(fence).ok());
            let fence = fence.ok_or_else(|| BadRequest::NotAnInteger(shown(number), "FENCE"))?;
            Ok(OperatorAct::Unlock { key: key.into(), fence: Some(fence) })
        }
        [_, word] | [_, word, _] => Err(BadRequest::UnknownOption(shown(word))),
        _ => Err(BadRequest::SubcommandArity("unlock".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_words(text: &str) -> Option<Result<OperatorAct, BadRequest>> {
        read(&text.split_whitespace().map(str::as_bytes).collect::<Vec<_>>())
    }

    #[test]
    fn what_an_operator_wants_is_read_in_any_case() {
        let unlock = |fence| Some(Ok(OperatorAct::Unlock { key: b"Job".to_vec(), fence }));
        assert_eq!(read_words("UNLOCK Job FENCE 7"), unlock(Some(7)));
        assert_eq!(read_words("unlock Job any"), unlock(None));
        for other in ["", "LOCK Job", "INFO"] {
            assert_eq!(read_words(other), None);
        }
    }

    #[test]
    fn a_grant_is_never_guessed() {
        for (text, error) in [
            ("UNLOCK", "ERR wrong number of arguments for 'lockgate|unlock' command"),
            ("UNLOCK k", "ERR wrong number of arguments for 'lockgate|unlock' command"),
            ("UNLOCK k FENCE 7 8", "ERR wrong number of arguments for 'lockgate|unlock' command"),
            ("UNLOCK k FENCE", "ERR syntax error, 'FENCE' lacks its value"),
            ("UNLOCK k 7", "ERR syntax error, unknown option '7'"),
            ("UNLOCK k ANY 7", "ERR syntax error, unknown option 'ANY'"),
            ("UNLOCK k FENCE x", "ERR value is not an integer or out of range, 'x' for FENCE"),
            ("UNLOCK k FENCE -1", "ERR value is not an integer or out of range, '-1' for FENCE"),
        ] {
            assert_eq!(read_words(text).unwrap().unwrap_err().to_string(), error, "{text}");
        }
    }
}
