//! The short way for a guarded write: one script that compares the fences and writes.
//!
//! A script's reply goes through Lua, which knows one kind of null and no integers
//! beyond 2^53, and an error in it is worded for scripts. So only commands go this way
//! whose successful replies are known to come out as they went in, and any error sends
//! the write the longer way.

use std::sync::LazyLock;

use crate::{
    key::Key,
    resp::{
        encode,
        words::{Step, Walk},
    },
};

/// The status in which an integer is told that Lua could not hold.
pub const INTEGER: &[u8] = b"+INTEGER ";
const BODY: &str = include_str!("write.lua");
/// Larger ones are not copied through Lua.
const MAX_BYTES: usize = 16 * 1024;
/// Lua's stack takes no more than some thousands.
const MAX_WORDS: usize = 128;

static DIGEST: LazyLock<String> =
    LazyLock::new(|| sha1_smol::Sha1::from(BODY).digest().to_string());

/// Commands whose replies are a status, a bulk string, an integer that counts or a null
/// where a bulk string could stand, in RESP2 and in RESP3. Sorted.
const EXACT: &[&str] = &[
    "APPEND",
    "COPY",
    "DEL",
    "EXPIRE",
    "EXPIREAT",
    "GETDEL",
    "GETEX",
    "GETSET",
    "HDEL",
    "HINCRBYFLOAT",
    "HMSET",
    "HSET",
    "HSETNX",
    "INCRBYFLOAT",
    "LINSERT",
    "LPUSH",
    "LPUSHX",
    "LREM",
    "LSET",
    "LTRIM",
    "MSET",
    "MSETNX",
    "PERSIST",
    "PEXPIRE",
    "PEXPIREAT",
    "PFADD",
    "PSETEX",
    "RENAME",
    "RENAMENX",
    "RPUSH",
    "RPUSHX",
    "SADD",
    "SET",
    "SETBIT",
    "SETEX",
    "SETNX",
    "SETRANGE",
    "SMOVE",
    "SREM",
    "UNLINK",
    "XACK",
    "XDEL",
    "ZREM",
];
/// The same, but for integers of any size, with how they are read back.
const INTEGERS: &[(&str, &str)] =
    &[("DECR", "GET"), ("DECRBY", "GET"), ("HINCRBY", "HGET"), ("INCR", "GET"), ("INCRBY", "GET")];

/// How the integers of a command are read back; none: it is not to go this way.
fn reader(name: &[u8]) -> Option<&'static str> {
    let name = name.to_ascii_uppercase();
    let at = |known: &&str| known.as_bytes().cmp(&name);
    if EXACT.binary_search_by(at).is_ok() {
        return Some("");
    }
    INTEGERS.iter().find(|(known, _)| known.as_bytes() == name).map(|(_, reader)| *reader)
}

/// Appends the call that carries `command` out in this database if the data node has
/// seen these fences, given as key and fence. None: it must go the longer way.
pub fn call(command: &[u8], fences: &[(Key, u64)], database: u64) -> Option<Vec<u8>> {
    if command.len() > MAX_BYTES || command.first() != Some(&b'*') {
        return None;
    }
    let head = memchr::memchr(b'\n', command)? + 1;
    let (mut walk, mut words) = (Walk::default(), 1);
    let Step::Word(name) = walk.step(command) else { return None };
    let reader = reader(&command[name])?;
    while let Step::Word(_) = walk.step(command) {
        words += 1;
    }
    if words > MAX_WORDS {
        return None;
    }
    let mut out = Vec::with_capacity(command.len() + 160 + fences.len() * 128);
    encode::array(&mut out, 5 + 2 * fences.len() + words);
    encode::bulk(&mut out, b"EVALSHA");
    encode::bulk(&mut out, DIGEST.as_bytes());
    encode::bulk_number(&mut out, fences.len() as u64);
    for (key, _) in fences {
        encode::bulk_of_two(&mut out, super::FENCE_PREFIX, key);
    }
    for (_, fence) in fences {
        encode::bulk_number(&mut out, *fence);
    }
    match database {
        0 => encode::bulk(&mut out, b""),
        other => encode::bulk_number(&mut out, other),
    }
    encode::bulk(&mut out, reader.as_bytes());
    out.extend_from_slice(&command[head..]);
    Some(out)
}

/// Appends what makes the data node know the script.
pub fn load(out: &mut Vec<u8>) {
    encode::command(out, &[b"SCRIPT", b"LOAD", BODY.as_bytes()]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(words: &[&[u8]]) -> Vec<u8> {
        let mut out = Vec::new();
        encode::command(&mut out, words);
        out
    }

    #[test]
    fn names_are_found_in_any_case() {
        assert!(EXACT.is_sorted());
        assert_eq!(reader(b"set"), Some(""));
        assert_eq!(reader(b"IncrBy"), Some("GET"));
        assert_eq!(reader(b"LPOP"), None);
    }

    #[test]
    fn the_write_follows_the_fences_as_it_came() {
        let call = call(&encoded(&[b"SET", b"k", b"v"]), &[(Key::from("lock:a"), 7)], 0).unwrap();
        let expected = encoded(&[
            b"EVALSHA",
            DIGEST.as_bytes(),
            b"1",
            b"lockgate:guard:lock:a",
            b"7",
            b"",
            b"",
            b"SET",
            b"k",
            b"v",
        ]);
        assert_eq!(String::from_utf8(call).unwrap(), String::from_utf8(expected).unwrap());
    }

    #[test]
    fn what_lua_cannot_take_goes_the_longer_way() {
        let large = vec![b'x'; MAX_BYTES];
        assert!(call(&encoded(&[b"SET", b"k", &large]), &[], 0).is_none());
        let mut many: Vec<&[u8]> = vec![b"DEL"];
        many.resize(MAX_WORDS + 1, b"k");
        assert!(call(&encoded(&many), &[], 0).is_none());
        assert!(call(b"SET k v\r\n", &[], 0).is_none());
        assert!(call(&encoded(&[b"EVAL", b"", b"0"]), &[], 0).is_none());
    }
}
