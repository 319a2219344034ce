//! What a glance at the beginning of a command tells.

use crate::resp::words::{Walk, WordStep};

/// Where a command's keys are, as far as adoption cares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    /// No keys, or a command that no lock library sends.
    None,
    /// The word behind the name; also of commands that are not listed.
    First,
    /// All words behind the name.
    Every,
    /// Every second word behind the name.
    EverySecond,
    /// EVAL and EVALSHA.
    Script,
    /// The words behind the second argument, which says how many they are.
    Function,
    /// SCRIPT, which may show a script.
    Load,
    /// FLUSHDB and FLUSHALL.
    Flush,
}

/// What is known of all commands that begin with the same bytes up to the end of their name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NameGlance {
    /// The command is not looked at.
    Free,
    /// The key is the word behind the name.
    First {
        /// Bytes before the name's line end.
        name_end: usize,
    },
    /// Undecided: more of the command must be read.
    More,
}

/// Length of `*?\r?$?\r?`: the beginning of a command of fewer than ten words, whose name has fewer than
/// ten letters.
const HEAD_LENGTH: usize = 8;

impl NameGlance {
    /// Glances at the command at the beginning of `bytes`.
    #[inline]
    pub(crate) fn of(bytes: &[u8]) -> NameGlance {
        let [b'*', _, b'\r', _, b'$', length @ b'1'..=b'9', b'\r', _, name @ ..] = bytes else {
            return NameGlance::More;
        };
        let length = usize::from(length - b'0');
        match name.get(..length).map(class) {
            Some(Class::First) => NameGlance::First { name_end: HEAD_LENGTH + length },
            Some(Class::None) => NameGlance::Free,
            _ => NameGlance::More,
        }
    }

    /// Whether the command at the beginning of `bytes` is certainly not about keys that begin
    /// with one of these bytes.
    #[inline]
    pub(super) fn is_free(self, bytes: &[u8], first_bytes: &[bool; 256]) -> bool {
        match self {
            NameGlance::Free => true,
            NameGlance::First { name_end } => {
                match bytes.get(name_end..).and_then(<[u8]>::first_chunk::<8>) {
                    // The key's length has one digit, or two.
                    Some(
                        [_, _, b'$', _, b'\r', _, first, _] | [_, _, b'$', _, _, b'\r', _, first],
                    ) => !first_bytes[usize::from(*first)],
                    _ => false,
                }
            }
            NameGlance::More => false,
        }
    }
}

/// The beginning of a command that is not looked at, up to the first byte of its key. One that begins
/// alike is not looked at either: to see that takes a third of the instructions of a glance.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Alike {
    head: u64,
    /// The name, and a mask for the bytes of the eight that belong to it.
    name: u64,
    name_mask: u64,
    name_end: usize,
    /// The key's length and first byte, and a mask for the bytes of the eight that belong to them.
    key: u64,
    key_mask: u64,
}

impl Alike {
    /// The beginning of no command.
    pub(crate) const NONE: Alike =
        Alike { head: 0, name: 1, name_mask: 0, name_end: 0, key: 1, key_mask: 0 };

    /// Returns the beginning of a command that, by the glance, is not looked at.
    #[inline]
    pub(super) fn of(glance: NameGlance, bytes: &[u8]) -> Alike {
        let NameGlance::First { name_end } = glance else { return Alike::NONE };
        let (Some(head), Some(name), Some(key)) =
            (eight(bytes, 0), eight(bytes, HEAD_LENGTH), eight(bytes, name_end))
        else {
            return Alike::NONE;
        };
        let length = name_end - HEAD_LENGTH;
        if length > 8 {
            return Alike::NONE;
        }
        let name_mask = u64::MAX >> (64 - 8 * length);
        // The length has one digit, or two.
        let key_mask = if bytes[name_end + 4] == b'\r' { u64::MAX >> 8 } else { u64::MAX };
        let (name, key) = (name & name_mask, key & key_mask);
        Alike { head, name, name_mask, name_end, key, key_mask }
    }

    /// Whether the command at the beginning of `bytes` begins alike.
    #[inline]
    pub(crate) fn is(&self, bytes: &[u8]) -> bool {
        eight(bytes, 0) == Some(self.head)
            && eight(bytes, HEAD_LENGTH).is_some_and(|name| name & self.name_mask == self.name)
            && self.is_key(bytes)
    }

    /// Whether the command at the beginning of `bytes`, whose name is this one's, begins alike.
    #[inline]
    pub(crate) fn is_key(&self, bytes: &[u8]) -> bool {
        eight(bytes, self.name_end).is_some_and(|key| key & self.key_mask == self.key)
    }
}

#[inline]
fn eight(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|eight| u64::from_le_bytes(*eight))
}

/// Returns where the keys of the command of this name are; the case does not matter.
#[inline]
pub(super) fn class(name: &[u8]) -> Class {
    let is = |word: &str| name.eq_ignore_ascii_case(word.as_bytes());
    // One look at length and first letter keeps ordinary commands cheap.
    match (name.len(), name.first().map(u8::to_ascii_uppercase)) {
        (3, Some(b'D')) if is("DEL") => Class::Every,
        (6, Some(b'U')) if is("UNLINK") => Class::Every,
        (6, Some(b'E')) if is("EXISTS") => Class::Every,
        (4, Some(b'M')) if is("MGET") => Class::Every,
        (5, Some(b'T')) if is("TOUCH") => Class::Every,
        (5, Some(b'W')) if is("WATCH") => Class::Every,
        (4, Some(b'M')) if is("MSET") => Class::EverySecond,
        (6, Some(b'M')) if is("MSETNX") => Class::EverySecond,
        (4, Some(b'E')) if is("EVAL") => Class::Script,
        (7, Some(b'E')) if is("EVALSHA") => Class::Script,
        (7, Some(b'E')) if is("EVAL_RO") => Class::Function,
        (10, Some(b'E')) if is("EVALSHA_RO") => Class::Function,
        (5, Some(b'F')) if is("FCALL") => Class::Function,
        (8, Some(b'F')) if is("FCALL_RO") => Class::Function,
        (6, Some(b'S')) if is("SCRIPT") => Class::Load,
        (7, Some(b'F')) if is("FLUSHDB") => Class::Flush,
        (8, Some(b'F')) if is("FLUSHALL") => Class::Flush,
        (length, Some(first)) if is_without_keys(name, length, first) => Class::None,
        _ => Class::First,
    }
}

/// Whether the command at the beginning of `bytes` may have the body of a script in it.
pub(crate) fn has_body(bytes: &[u8]) -> bool {
    let WordStep::Word(range) = Walk::default().step(bytes) else { return false };
    let is = |word: &str| bytes[range.clone()].eq_ignore_ascii_case(word.as_bytes());
    is("EVAL") || is("SCRIPT")
}

/// Whether the command has no key behind its name, but something else.
fn is_without_keys(name: &[u8], length: usize, first: u8) -> bool {
    let is = |word: &str| name.eq_ignore_ascii_case(word.as_bytes());
    let any = |words: &[&str]| words.iter().any(|word| is(word));
    match (length, first) {
        (3, b'A') => is("ACL"),
        (4, b'E' | b'I' | b'K' | b'P' | b'R' | b'S' | b'T' | b'W') => {
            any(&["ECHO", "EXEC", "INFO", "KEYS", "PING", "ROLE", "SAVE", "SCAN", "TIME", "WAIT"])
        }
        (5, b'B' | b'D' | b'H' | b'M' | b'R' | b'X') => {
            any(&["BITOP", "DEBUG", "HELLO", "MULTI", "RESET", "XREAD", "XINFO"])
        }
        (6, b'B' | b'C' | b'D' | b'L' | b'M' | b'O' | b'P' | b'X') => any(&[
            "BGSAVE", "CLIENT", "CONFIG", "DBSIZE", "LOLWUT", "MEMORY", "MODULE", "OBJECT",
            "PUBSUB", "XGROUP",
        ]),
        (7, b'C' | b'D' | b'L' | b'M' | b'P' | b'S' | b'U' | b'W') => any(&[
            "CLUSTER", "COMMAND", "DISCARD", "LATENCY", "MIGRATE", "PUBLISH", "SLAVEOF", "SLOWLOG",
            "UNWATCH", "WAITAOF",
        ]),
        (8, b'F' | b'L' | b'R' | b'S') => {
            any(&["FAILOVER", "FUNCTION", "LASTSAVE", "READONLY", "SHUTDOWN", "SPUBLISH"])
        }
        (9, b'R') => any(&["RANDOMKEY", "READWRITE", "REPLICAOF"]),
        (10, b'X') => is("XREADGROUP"),
        (12, b'B') => is("BGREWRITEAOF"),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resp::encode;

    #[test]
    fn commands_begin_alike_up_to_the_first_byte_of_their_key() {
        let encoded = |words: &[&str]| {
            let mut bytes = Vec::new();
            let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
            encode::command(&mut bytes, &words);
            bytes
        };
        let first = encoded(&["GET", "key:1"]);
        let alike = Alike::of(NameGlance::of(&first), &first);
        for (words, expected) in [
            (&["GET", "key:1"][..], true),
            (&["GET", "kex:2"], true),
            (&["GET", "lock:"], false),
            (&["GET", "key:12"], false),
            (&["DEL", "key:1"], false),
            (&["GET", "key:1", "key:1"], false),
        ] {
            assert_eq!(alike.is(&encoded(words)), expected, "{words:?}");
        }
        assert!(!alike.is(&first[..18]), "the key is not here");
        assert!(!Alike::NONE.is(&first) && !Alike::NONE.is_key(&first));
        let many = encoded(&["DEL", "key:1"]);
        assert!(!Alike::of(NameGlance::of(&many), &many).is(&many), "others may be adopted");
    }

    #[test]
    fn a_glance_tells_what_a_look_would() {
        let mut first_bytes = [false; 256];
        first_bytes[usize::from(b'l')] = true;
        let long = "l".repeat(100);
        for (words, free) in [
            (&["GET", "key:1"][..], true),
            (&["GET", "lock:1"], false),
            (&["get", "l"], false),
            (&["SET", "", "v"], true),
            (&["SET", "key:1234567890", "v"], true),
            (&["SET", &long, "v"], false),
            (&["PING"], true),
            (&["PUBLISH", "lock:1", "x"], true),
            (&["DEL", "key:1", "lock:1"], false),
            (&["EVAL", "return 1", "1", "lock:1"], false),
            (&["CLIENT", "SETNAME", "x"], true),
            (&["FLUSHALL"], false),
            (&["JSON.GET", "key:1"], true),
        ] {
            let mut bytes = Vec::new();
            let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
            encode::command(&mut bytes, &words);
            let glance = NameGlance::of(&bytes);
            assert_eq!(glance.is_free(&bytes, &first_bytes), free, "{words:?} {glance:?}");
        }
        assert!(!NameGlance::of(b"GET key:1\r\n").is_free(b"GET key:1\r\n", &first_bytes));
    }
}
