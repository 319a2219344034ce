//! Reads LOCKGATE, the operator's command, and COMMAND INFO and DOCS about commands of ours:
//! from words to a typed [`Inquiry`].

use super::BadRequest;
use crate::resp::name::{Own, own_by_name};

/// A question of an operator or a client library.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Inquiry {
    /// The list of subcommands.
    Help,
    /// The state of the proxy as a whole.
    Info,
    /// The state of the lock nodes.
    Nodes,
    /// Locks granted here whose key matches the pattern.
    Locks {
        /// A glob; none: all locks.
        pattern: Option<Vec<u8>>,
    },
    /// A single lock.
    Lock {
        /// The key as clients write it, without the prefix.
        key: Vec<u8>,
    },
    /// Lock idioms seen on adopted keys.
    Adopted,
    /// The program's version.
    Version,
    /// COMMAND INFO.
    CommandInfo(Vec<Own>),
    /// COMMAND DOCS.
    CommandDocs(Vec<Own>),
}

/// The longest pattern of LOCKGATE LOCKS, in bytes. Each lock's key is compared with it.
const MAX_PATTERN: usize = 256;

/// Reads the words behind LOCKGATE.
///
/// # Errors
/// Redis's errors for a container command.
pub fn lockgate<Word: AsRef<[u8]>>(words: &[Word]) -> Result<Inquiry, BadRequest> {
    let [subcommand, arguments @ ..] = words else { return Err(BadRequest::Arity(Own::Lockgate)) };
    let subcommand = subcommand.as_ref();
    let name = subcommand.to_ascii_lowercase();
    match (name.as_slice(), arguments) {
        (b"help", []) => Ok(Inquiry::Help),
        (b"info", []) => Ok(Inquiry::Info),
        (b"nodes", []) => Ok(Inquiry::Nodes),
        (b"version", []) => Ok(Inquiry::Version),
        (b"adopted", []) => Ok(Inquiry::Adopted),
        (b"locks", []) => Ok(Inquiry::Locks { pattern: None }),
        (b"locks", [pattern]) if pattern.as_ref().len() > MAX_PATTERN => {
            Err(BadRequest::PatternTooLong(MAX_PATTERN))
        }
        (b"locks", [pattern]) => Ok(Inquiry::Locks { pattern: Some(pattern.as_ref().to_vec()) }),
        (b"lock", [key]) => Ok(Inquiry::Lock { key: key.as_ref().to_vec() }),
        (b"help" | b"info" | b"nodes" | b"version" | b"locks" | b"lock" | b"adopted", _) => {
            Err(BadRequest::SubcommandArity(String::from_utf8_lossy(&name).into_owned()))
        }
        _ => {
            let shown = &subcommand[..subcommand.len().min(128)];
            Err(BadRequest::Subcommand(String::from_utf8_lossy(shown).into_owned()))
        }
    }
}

/// Reads the words behind COMMAND. Returns `None` if they ask about commands of Redis too: the
/// data node answers those.
pub fn command<Word: AsRef<[u8]>>(words: &[Word]) -> Option<Inquiry> {
    let (subcommand, names) = words.split_first()?;
    let ours = names.iter().map(|name| own_by_name(name.as_ref())).collect::<Option<Vec<Own>>>()?;
    match subcommand.as_ref().to_ascii_lowercase().as_slice() {
        b"info" => Some(Inquiry::CommandInfo(ours)),
        b"docs" => Some(Inquiry::CommandDocs(ours)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<Vec<u8>> {
        text.split_whitespace().map(|word| word.as_bytes().to_vec()).collect()
    }

    #[test]
    fn subcommands_are_read_in_any_case() {
        let read = |text: &str| lockgate(&words(text));
        assert_eq!(read("HeLp"), Ok(Inquiry::Help));
        assert_eq!(read("info"), Ok(Inquiry::Info));
        assert_eq!(read("NODES"), Ok(Inquiry::Nodes));
        assert_eq!(read("version"), Ok(Inquiry::Version));
        assert_eq!(read("Adopted"), Ok(Inquiry::Adopted));
        assert_eq!(read("locks"), Ok(Inquiry::Locks { pattern: None }));
        assert_eq!(read("LOCKS a*"), Ok(Inquiry::Locks { pattern: Some(b"a*".to_vec()) }));
        assert_eq!(read("LOCK K"), Ok(Inquiry::Lock { key: b"K".to_vec() }));
    }

    #[test]
    fn bad_words_get_redis_own_wording() {
        for (text, error) in [
            ("", "ERR wrong number of arguments for 'lockgate' command"),
            ("foo", "ERR unknown subcommand 'foo'. Try LOCKGATE HELP."),
            ("LOCK", "ERR wrong number of arguments for 'lockgate|lock' command"),
            ("Locks a b", "ERR wrong number of arguments for 'lockgate|locks' command"),
            ("adopted x", "ERR wrong number of arguments for 'lockgate|adopted' command"),
            ("info all", "ERR wrong number of arguments for 'lockgate|info' command"),
        ] {
            assert_eq!(lockgate(&words(text)).unwrap_err().to_string(), error);
        }
    }

    #[test]
    fn command_is_ours_only_where_all_names_are() {
        let read = |text: &str| command(&words(text));
        assert_eq!(read("docs LOCK"), Some(Inquiry::CommandDocs(vec![Own::Lock])));
        let both = Some(Inquiry::CommandInfo(vec![Own::Lock, Own::Unlock]));
        assert_eq!(read("INFO lock unlock"), both);
        assert_eq!(read("INFO lock get"), None);
        assert_eq!(read("GETKEYS lock"), None);
    }
}
