//! Reads the questions of LOCKGATE, the operator's command, and those of COMMAND about our
//! commands: from words to a typed [`Inquiry`].

use super::{BadRequest, key_words::keys, shown};
use crate::{
    lock::{LockOrder, LocksWanted},
    resp::{
        name::{Own, own_by_name},
        number,
    },
};

/// A question of an operator or a client library.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Inquiry {
    /// The list of subcommands.
    Help,
    /// The state of the proxy as a whole.
    Info,
    /// The state of the lock nodes.
    Nodes,
    /// Locks granted through this proxy.
    Locks(LocksWanted),
    /// A single lock.
    Lock {
        /// The key as clients write it, without the prefix.
        key: Vec<u8>,
    },
    /// The readers of a lock.
    Readers {
        /// The key as clients write it, without the prefix.
        key: Vec<u8>,
    },
    /// The clients that wait for a lock.
    Waiters {
        /// The key as clients write it, without the prefix.
        key: Vec<u8>,
    },
    /// The clients that hold locks or wait.
    Clients,
    /// The locks that are waited for longest.
    Hot {
        /// The most locks to list.
        most: usize,
    },
    /// Lock idioms seen on adopted keys.
    Adopted,
    /// The program's version.
    Version,
    /// COMMAND INFO.
    CommandInfo(Vec<Own>),
    /// COMMAND DOCS.
    CommandDocs(Vec<Own>),
    /// COMMAND GETKEYS, or GETKEYSANDFLAGS.
    CommandKeys {
        /// The keys of the command.
        keys: Vec<Vec<u8>>,
        /// Whether it is told too what the command does with them.
        with_flags: bool,
    },
}

/// The number of locks that LOCKGATE HOT lists by default.
const HOT: usize = 10;

/// The longest pattern of LOCKGATE LOCKS, in bytes: each lock's key is compared with it.
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
        (b"clients", []) => Ok(Inquiry::Clients),
        (b"locks", options) => Ok(Inquiry::Locks(locks_wanted(options)?)),
        (b"lock", [key]) => Ok(Inquiry::Lock { key: key.as_ref().to_vec() }),
        (b"readers", [key]) => Ok(Inquiry::Readers { key: key.as_ref().to_vec() }),
        (b"waiters", [key]) => Ok(Inquiry::Waiters { key: key.as_ref().to_vec() }),
        (b"hot", []) => Ok(Inquiry::Hot { most: HOT }),
        (b"hot", [most]) => Ok(Inquiry::Hot { most: count(most.as_ref(), "HOT")? }),
        (
            b"help" | b"info" | b"nodes" | b"version" | b"lock" | b"adopted" | b"clients"
            | b"readers" | b"waiters" | b"hot",
            _,
        ) => Err(BadRequest::SubcommandArity(shown(&name))),
        _ => Err(BadRequest::Subcommand(shown(subcommand))),
    }
}

/// Reads the words behind LOCKGATE LOCKS. Options are pairs of words, so with an odd number of words
/// the first one is the pattern.
fn locks_wanted<Word: AsRef<[u8]>>(words: &[Word]) -> Result<LocksWanted, BadRequest> {
    let mut wanted = LocksWanted::default();
    let (pattern, options) = words.split_at(words.len() % 2);
    if let [pattern] = pattern {
        if pattern.as_ref().len() > MAX_PATTERN {
            return Err(BadRequest::PatternTooLong(MAX_PATTERN));
        }
        wanted.pattern = Some(pattern.as_ref().to_vec());
    }
    for [option, value] in options.as_chunks().0 {
        let (option, value) = (option.as_ref(), value.as_ref());
        match option.to_ascii_lowercase().as_slice() {
            b"count" if wanted.most.is_none() => wanted.most = Some(count(value, "COUNT")?),
            b"by" if wanted.by.is_none() => wanted.by = Some(order(value)?),
            b"count" | b"by" => return Err(BadRequest::Repeated(shown(option))),
            _ => return Err(BadRequest::UnknownOption(shown(option))),
        }
    }
    Ok(wanted)
}

/// Reads a limit on the number of entries.
fn count(word: &[u8], option: &'static str) -> Result<usize, BadRequest> {
    let number = number::integer(word).and_then(|count| usize::try_from(count).ok());
    let number = number.filter(|count| *count > 0);
    number.ok_or_else(|| BadRequest::NotAnInteger(shown(word), option))
}

/// Reads the order in which locks are listed.
fn order(word: &[u8]) -> Result<LockOrder, BadRequest> {
    match word.to_ascii_lowercase().as_slice() {
        b"waiters" => Ok(LockOrder::Waiters),
        b"age" => Ok(LockOrder::Age),
        b"wait" => Ok(LockOrder::Wait),
        _ => Err(BadRequest::UnknownOption(shown(word))),
    }
}

/// Reads the words behind COMMAND. Returns `None` unless they are INFO or DOCS about our commands
/// alone, or GETKEYS or GETKEYSANDFLAGS of one: the data node answers the rest.
pub fn command<Word: AsRef<[u8]>>(words: &[Word]) -> Option<Result<Inquiry, BadRequest>> {
    let (subcommand, names) = words.split_first()?;
    let ours = || names.iter().map(|name| own_by_name(name.as_ref())).collect::<Option<Vec<Own>>>();
    let subcommand = subcommand.as_ref().to_ascii_lowercase();
    match subcommand.as_slice() {
        b"info" => Some(Ok(Inquiry::CommandInfo(ours()?))),
        b"docs" => Some(Ok(Inquiry::CommandDocs(ours()?))),
        b"getkeys" | b"getkeysandflags" => {
            // Redis refuses a name alone in words of its own.
            let (name, words) = names.split_first().filter(|(_, words)| !words.is_empty())?;
            let with_flags = subcommand == b"getkeysandflags";
            let told = |keys: &[Word]| {
                let keys = keys.iter().map(|key| key.as_ref().to_vec()).collect();
                Inquiry::CommandKeys { keys, with_flags }
            };
            Some(keys(own_by_name(name.as_ref())?, words).map(told).map_err(BadRequest::from))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::key_words::NoKeys;

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
        assert_eq!(read("readers K"), Ok(Inquiry::Readers { key: b"K".to_vec() }));
        assert_eq!(read("waiters K"), Ok(Inquiry::Waiters { key: b"K".to_vec() }));
        assert_eq!(read("Clients"), Ok(Inquiry::Clients));
        assert_eq!(read("hot"), Ok(Inquiry::Hot { most: 10 }));
        assert_eq!(read("HOT 3"), Ok(Inquiry::Hot { most: 3 }));
        assert_eq!(read("LOCK K"), Ok(Inquiry::Lock { key: b"K".to_vec() }));
    }

    #[test]
    fn the_first_of_an_odd_number_of_words_is_the_pattern_of_locks() {
        let locks = |pattern: Option<&str>, most, by| {
            let pattern = pattern.map(|pattern| pattern.as_bytes().to_vec());
            Ok(Inquiry::Locks(LocksWanted { pattern, most, by }))
        };
        let read = |text: &str| lockgate(&words(text));
        assert_eq!(read("locks"), locks(None, None, None));
        assert_eq!(read("LOCKS a*"), locks(Some("a*"), None, None));
        assert_eq!(read("LOCKS by"), locks(Some("by"), None, None));
        assert_eq!(read("locks BY wait"), locks(None, None, Some(LockOrder::Wait)));
        let all = locks(Some("a*"), Some(5), Some(LockOrder::Age));
        assert_eq!(read("locks a* by AGE count 5"), all);
        assert_eq!(read("locks a* COUNT 5 BY age"), all);
        assert_eq!(read("locks by by waiters"), locks(Some("by"), None, Some(LockOrder::Waiters)));
    }

    #[test]
    fn bad_words_get_redis_own_wording() {
        for (text, error) in [
            ("", "ERR wrong number of arguments for 'lockgate' command"),
            ("foo", "ERR unknown subcommand 'foo'. Try LOCKGATE HELP."),
            ("LOCK", "ERR wrong number of arguments for 'lockgate|lock' command"),
            ("Locks a b", "ERR syntax error, unknown option 'a'"),
            ("Locks by size", "ERR syntax error, unknown option 'size'"),
            ("Locks by wait by age", "ERR syntax error, 'by' is one option too many"),
            ("locks count 0", "ERR value is not an integer or out of range, '0' for COUNT"),
            ("hot many", "ERR value is not an integer or out of range, 'many' for HOT"),
            ("hot 1 2", "ERR wrong number of arguments for 'lockgate|hot' command"),
            ("readers", "ERR wrong number of arguments for 'lockgate|readers' command"),
            ("waiters", "ERR wrong number of arguments for 'lockgate|waiters' command"),
            ("clients x", "ERR wrong number of arguments for 'lockgate|clients' command"),
            ("adopted x", "ERR wrong number of arguments for 'lockgate|adopted' command"),
            ("info all", "ERR wrong number of arguments for 'lockgate|info' command"),
        ] {
            assert_eq!(lockgate(&words(text)).unwrap_err().to_string(), error);
        }
    }

    #[test]
    fn command_is_ours_only_where_all_names_are() {
        let read = |text: &str| command(&words(text));
        assert_eq!(read("docs LOCK"), Some(Ok(Inquiry::CommandDocs(vec![Own::Lock]))));
        let both = Some(Ok(Inquiry::CommandInfo(vec![Own::Lock, Own::Unlock])));
        assert_eq!(read("INFO lock unlock"), both);
        assert_eq!(read("INFO lock get"), None);
        let keys = vec![b"a".to_vec(), b"get".to_vec()];
        let told = |with_flags| Some(Ok(Inquiry::CommandKeys { keys: keys.clone(), with_flags }));
        assert_eq!(read("GETKEYS mlock 2 a get t"), told(false));
        assert_eq!(read("getkeysandflags MLOCK 2 a get"), told(true));
        assert_eq!(read("GETKEYS mlock 1"), Some(Err(NoKeys::Arity.into())));
        assert_eq!(read("GETKEYS lock"), None);
        assert_eq!(read("GETKEYS get lock"), None);
        assert_eq!(read("GETKEYS"), None);
    }
}
