//! The short way for guarded writes: one script that compares the fences and writes.
//!
//! A script's reply goes through Lua, which knows one kind of null and no integers beyond 2^53, and
//! an error in it is worded for scripts. So this way is for commands whose successful replies are
//! known to survive Lua unchanged, and any error sends the write the long way. Several writes may
//! share one call; see [`Write::may_follow`].

use std::sync::LazyLock;

use smallvec::SmallVec;

use super::fences::FencePlace;
use crate::{key::Key, resp::encode};

/// Prefix of the status reply that tells an integer too large for Lua.
pub(crate) const INTEGER: &[u8] = b"+INTEGER ";
/// The most bytes of one write, or of all in one call: larger ones are not copied through Lua.
pub(crate) const MAX_BYTES: usize = 16 * 1024;
/// The most writes in one call. With so many, each saves nearly all of a round trip; the data node
/// serves no other client meanwhile.
pub(crate) const MAX_WRITES: usize = 64;
const BODY: &str = include_str!("write.lua");
/// The most words of one write: Lua's stack takes no more than some thousands.
const MAX_WORDS: usize = 128;

static DIGEST: LazyLock<String> =
    LazyLock::new(|| sha1_smol::Sha1::from(body()).digest().to_string());

fn body() -> &'static str {
    #[cfg(feature = "planted")]
    if std::env::var("LOCKGATE_PLANT").is_ok_and(|fault| fault == "compare") {
        static BLIND: LazyLock<String> =
            LazyLock::new(|| BODY.replace("redis.call('GET', KEYS[i]) ~= ARGV[i]", "false"));
        return &BLIND;
    }
    BODY
}

/// The other writes that may share a call with a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Company {
    /// Any other write.
    Any,
    /// Any other write, if the call begins with one of this kind. Such a write takes as much memory as
    /// its words say, and Redis refuses it beyond `maxmemory`; but of a script Redis refuses only the
    /// first write.
    Grows,
    /// No other write. Such a write may take any amount of memory, or look at any number of
    /// elements (clients are refused with BUSY while a script runs for long), or wake clients that
    /// are blocked on a key without a guard, which happens only when the script ends.
    None,
}

/// Commands whose replies are a status, a bulk string, an integer or a null where a bulk
/// string could stand, in RESP2 and in RESP3. Sorted.
const KNOWN: &[(&str, Company)] = &[
    ("APPEND", Company::Grows),
    ("COPY", Company::None),
    ("DECR", Company::Grows),
    ("DECRBY", Company::Grows),
    ("DEL", Company::Any),
    ("EXPIRE", Company::Any),
    ("EXPIREAT", Company::Any),
    ("GETDEL", Company::Any),
    ("GETEX", Company::Any),
    ("GETSET", Company::Grows),
    ("HDEL", Company::Any),
    ("HINCRBY", Company::Grows),
    ("HINCRBYFLOAT", Company::Grows),
    ("HMSET", Company::Grows),
    ("HSET", Company::Grows),
    ("HSETNX", Company::Grows),
    ("INCR", Company::Grows),
    ("INCRBY", Company::Grows),
    ("INCRBYFLOAT", Company::Grows),
    ("LINSERT", Company::None),
    ("LPUSH", Company::Grows),
    ("LPUSHX", Company::Grows),
    ("LREM", Company::None),
    ("LSET", Company::None),
    ("LTRIM", Company::Any),
    ("MSET", Company::Grows),
    ("MSETNX", Company::Grows),
    ("PERSIST", Company::Any),
    ("PEXPIRE", Company::Any),
    ("PEXPIREAT", Company::Any),
    ("PFADD", Company::Grows),
    ("PSETEX", Company::Grows),
    ("RENAME", Company::None),
    ("RENAMENX", Company::None),
    ("RPUSH", Company::Grows),
    ("RPUSHX", Company::Grows),
    ("SADD", Company::Grows),
    ("SET", Company::Grows),
    ("SETBIT", Company::None),
    ("SETEX", Company::Grows),
    ("SETNX", Company::Grows),
    ("SETRANGE", Company::None),
    ("SMOVE", Company::Any),
    ("SREM", Company::Any),
    ("UNLINK", Company::Any),
    ("XACK", Company::Any),
    ("XDEL", Company::Any),
    ("ZREM", Company::Any),
];

fn company(name: &[u8]) -> Option<Company> {
    let name: SmallVec<[u8; 16]> = name.iter().map(u8::to_ascii_uppercase).collect();
    let at = KNOWN.binary_search_by_key(&&name[..], |(known, _)| known.as_bytes());
    Some(KNOWN[at.ok()?].1)
}

/// A write that may go the short way.
#[derive(Debug, Clone, Copy)]
pub struct Write {
    company: Company,
    count: usize,
    /// Number of bytes before the words.
    head: usize,
    /// Number of bytes in all.
    pub length: usize,
}

impl Write {
    /// Makes a write of a command's words and bytes. Returns `None` if it must go the long way.
    pub fn of(words: &[&[u8]], command: &[u8]) -> Option<Write> {
        if command.len() > MAX_BYTES || command.first() != Some(&b'*') || words.len() > MAX_WORDS {
            return None;
        }
        let company = company(words.first()?)?;
        // Redis does not look at the byte behind `\r`: it need not be a line feed.
        let head = memchr::memchr(b'\r', command)? + 2;
        Some(Write { company, count: words.len(), head, length: command.len() })
    }

    /// Whether this write may join a call that begins with `first`.
    pub fn may_follow(&self, first: &Write) -> bool {
        match (first.company, self.company) {
            (Company::None, _) | (_, Company::None) => false,
            (Company::Any, Company::Grows) => false,
            (Company::Grows, Company::Grows) | (_, Company::Any) => true,
        }
    }
}

/// Returns the call that carries out the writes at the beginning of `held` in this database, but only
/// if the data node's largest fences in `place` are these, each given with its lock's key.
pub(crate) fn call(
    held: &[u8],
    writes: &[Write],
    place: FencePlace,
    fences: &[(Key, u64)],
    database: u64,
) -> Vec<u8> {
    let words = writes.iter().fold(0, |sum, write| sum + 1 + write.count);
    let bytes = writes.iter().fold(0, |sum, write| sum + 8 + write.length);
    let mut out = Vec::with_capacity(bytes + 160 + fences.len() * 128);
    encode::array(&mut out, 4 + 2 * fences.len() + words);
    encode::bulk(&mut out, b"EVALSHA");
    encode::bulk(&mut out, DIGEST.as_bytes());
    encode::bulk_number(&mut out, fences.len() as u64);
    for (key, _) in fences {
        place.append(&mut out, key);
    }
    for (_, fence) in fences {
        encode::bulk_number(&mut out, *fence);
    }
    match database {
        0 => encode::bulk(&mut out, b""),
        other => encode::bulk_number(&mut out, other),
    }
    let mut rest = held;
    for (at, write) in writes.iter().enumerate() {
        if at + 1 < writes.len() {
            encode::bulk_number(&mut out, write.count as u64);
        } else {
            encode::bulk(&mut out, b"");
        }
        let (command, behind) = rest.split_at(write.length);
        out.extend_from_slice(&command[write.head..]);
        rest = behind;
    }
    out
}

/// Appends the command that loads the script.
pub(crate) fn load(out: &mut Vec<u8>) {
    encode::command(out, &[b"SCRIPT", b"LOAD", body().as_bytes()]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resp::words::{Spans, Walk};

    fn encoded(words: &[&[u8]]) -> Vec<u8> {
        let mut out = Vec::new();
        encode::command(&mut out, words);
        out
    }

    fn parsed(command: &[u8]) -> Option<Write> {
        let mut words = Spans::new();
        Walk::default().find(command, &mut words, usize::MAX);
        Write::of(&words, command)
    }

    #[test]
    fn names_are_found_in_any_case() {
        assert!(KNOWN.is_sorted_by_key(|(name, _)| name));
        assert_eq!(company(b"set"), Some(Company::Grows));
        assert_eq!(company(b"Zrem"), Some(Company::Any));
        assert_eq!(company(b"LPOP"), None);
        assert_eq!(company(b"SETX"), None);
    }

    #[test]
    fn the_writes_follow_the_fences_as_they_came() {
        let (set, del) = (encoded(&[b"SET", b"k", b"v"]), encoded(&[b"del", b"k"]));
        let fences = [(Key::from("lock:a"), 7), (Key::from("lock:b"), 8)];
        let writes = [&set, &del].map(|command| parsed(command).unwrap());
        let call = call(&[set, del].concat(), &writes, FencePlace::Alone, &fences, 5);
        let expected = encoded(&[
            b"EVALSHA",
            DIGEST.as_bytes(),
            b"2",
            b"lockgate:guard:lock:a",
            b"lockgate:guard:lock:b",
            b"7",
            b"8",
            b"5",
            b"3",
            b"SET",
            b"k",
            b"v",
            b"",
            b"del",
            b"k",
        ]);
        assert_eq!(String::from_utf8(call).unwrap(), String::from_utf8(expected).unwrap());
    }

    #[test]
    fn what_lua_cannot_take_goes_the_longer_way() {
        let large = vec![b'x'; MAX_BYTES];
        assert!(parsed(&encoded(&[b"SET", b"k", &large])).is_none());
        let mut many: Vec<&[u8]> = vec![b"DEL"];
        many.resize(MAX_WORDS + 1, b"k");
        assert!(parsed(&encoded(&many)).is_none());
        assert!(Write::of(&[b"SET", b"k", b"v"], b"SET k v\r\n").is_none());
        assert!(parsed(&encoded(&[b"EVAL", b"", b"0"])).is_none());
    }

    #[test]
    fn words_begin_behind_the_head_whatever_ends_it() {
        let command = b"*2\rX$3\rXDEL\n\n$1\rXk\n\n";
        assert_eq!(parsed(command).unwrap().head, 4);
    }

    #[test]
    fn what_redis_refuses_for_want_of_memory_it_refuses_in_company_too() {
        let [set, del, copy] =
            [&[b"SET".as_slice(), b"k", b"v"][..], &[b"DEL", b"k"], &[b"COPY"]].map(encoded);
        let [set, del, copy] = [&set, &del, &copy].map(|command| parsed(command).unwrap());
        assert!(set.may_follow(&set) && del.may_follow(&set) && del.may_follow(&del));
        assert!(!set.may_follow(&del));
        assert!(!copy.may_follow(&set) && !set.may_follow(&copy) && !copy.may_follow(&del));
    }
}
