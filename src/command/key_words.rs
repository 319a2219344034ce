//! The words of our own commands that are keys, for COMMAND GETKEYS and GETKEYSANDFLAGS: what Redis 7 would tell of such
//! a command, with its errors.

use thiserror::Error;

use super::docs::{self, KeyWords};
use crate::resp::{name::Own, number};

/// Why no keys are told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum NoKeys {
    /// An unknown subcommand.
    #[error("ERR Invalid command specified")]
    Unknown,
    /// A command that never has keys.
    #[error("ERR The command has no key arguments")]
    Keyless,
    /// Too few words, or too many for a command without options.
    #[error("ERR Invalid number of arguments specified for command")]
    Arity,
    /// A number of keys that is none, or fewer words than keys.
    #[error("ERR Invalid arguments specified for command")]
    Arguments,
}

/// Returns those of the words behind a command's name that are keys. Like Redis, this looks at nothing else.
///
/// # Errors
/// The first problem found, in Redis's order.
pub(super) fn keys<Word: AsRef<[u8]>>(own: Own, words: &[Word]) -> Result<&[Word], NoKeys> {
    let it = docs::described(own);
    if let Some(word) = words.first().filter(|_| !it.subcommands.is_empty())
        && !it.has_subcommand(word.as_ref())
    {
        return Err(NoKeys::Unknown);
    }
    if it.keys == KeyWords::Nothing {
        return Err(NoKeys::Keyless);
    }
    if !it.takes(words.len() + 1) {
        return Err(NoKeys::Arity);
    }
    let found = match (it.keys, words) {
        (KeyWords::First, words) => words.get(..1),
        (KeyWords::Counted, [numkeys, rest @ ..]) => {
            let number = number::integer(numkeys.as_ref()).filter(|number| *number > 0);
            number.and_then(|number| rest.get(..usize::try_from(number).ok()?))
        }
        _ => None,
    };
    found.ok_or(NoKeys::Arguments)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_stand_where_command_info_says() {
        let read = |own, text: &'static str| {
            let words: Vec<&str> = text.split_whitespace().collect();
            keys(own, &words).map(|keys| keys.join(" "))
        };
        for own in [Own::Lock, Own::Unlock, Own::Renew] {
            assert_eq!(read(own, "a"), Ok("a".into()));
            assert_eq!(read(own, "a t PX"), Ok("a".into()), "the rest is not read");
            assert_eq!(read(own, ""), Err(NoKeys::Arity));
        }
        assert_eq!(read(Own::Attach, "a t"), Ok("a".into()));
        assert_eq!(read(Own::Attach, "a"), Err(NoKeys::Arity));
        assert_eq!(read(Own::Detach, "a"), Ok("a".into()));
        assert_eq!(read(Own::Detach, "a b"), Err(NoKeys::Arity));
        for own in [Own::Mlock, Own::Munlock] {
            assert_eq!(read(own, "2 a b"), Ok("a b".into()));
            assert_eq!(read(own, "2 a a t PX 5"), Ok("a a".into()));
            assert_eq!(read(own, "1"), Err(NoKeys::Arity));
            for text in ["3 a b", "0 a", "-1 a", "x a", "99999999999999999999 a"] {
                assert_eq!(read(own, text), Err(NoKeys::Arguments), "{text}");
            }
        }
        for text in ["", "HELP", "Locks a*", "unlock a ANY"] {
            assert_eq!(read(Own::Lockgate, text), Err(NoKeys::Keyless), "{text}");
        }
        assert_eq!(read(Own::Lockgate, "FOO"), Err(NoKeys::Unknown));
    }
}
