//! Query strings of requests for lists.

use std::fmt;

use percent_encoding::percent_decode;

use crate::lock::{LockOrder, LocksWanted, MOST_TOLD};

/// The longest pattern, in bytes, as in LOCKGATE LOCKS. Each lock's key is compared with it.
const MAX_PATTERN: usize = 256;
/// More parameters than any list has.
const MOST_PAIRS: usize = 8;

/// A name, and a value.
type Parameter = (Vec<u8>, Vec<u8>);

/// Reads `by`, `match` and `count`.
///
/// # Errors
/// What is wrong, for people.
pub(super) fn locks(query: &str) -> Result<LocksWanted, String> {
    let mut wanted = LocksWanted::default();
    for (name, value) in pairs(query)? {
        match &*name {
            b"by" => wanted.by = Some(order(&value)?),
            b"match" if value.len() > MAX_PATTERN => {
                return Err(format!("a pattern has at most {MAX_PATTERN} bytes"));
            }
            b"match" => wanted.pattern = Some(value),
            b"count" => wanted.most = Some(number(&value)?),
            _ => return Err(unknown(&name)),
        }
    }
    Ok(wanted)
}

/// Reads `count`.
///
/// # Errors
/// What is wrong, for people.
pub(super) fn count(query: &str, default: usize) -> Result<usize, String> {
    let mut count = default;
    for (name, value) in pairs(query)? {
        match &*name {
            b"count" => count = number(&value)?,
            _ => return Err(unknown(&name)),
        }
    }
    Ok(count)
}

/// Reads a query that has nothing.
///
/// # Errors
/// What is wrong, for people.
pub(super) fn nothing(query: &str) -> Result<(), String> {
    pairs(query)?.first().map_or(Ok(()), |(name, _)| Err(unknown(name)))
}

/// Reads `key`, once or several times, and whether `peers` may be asked.
///
/// # Errors
/// What is wrong, for people.
pub(super) fn holders(query: &str, most: usize) -> Result<(Vec<Vec<u8>>, bool), String> {
    let (mut keys, mut may_ask) = (Vec::new(), true);
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        match (&*plain(name)?, plain(value)?) {
            (b"key", _) if keys.len() == most => {
                return Err(format!("'key' is there more than {most} times"));
            }
            (b"key", key) => keys.push(key),
            (b"peers", value) if value == b"no" => may_ask = false,
            (b"peers", _) => return Err("'peers' is no, or left out".into()),
            (name, _) => return Err(unknown(name)),
        }
    }
    match keys.is_empty() {
        true => Err("which lock? 'key' names it".into()),
        false => Ok((keys, may_ask)),
    }
}

/// Splits a query into names and values, and decodes them.
///
/// # Errors
/// If one cannot be read, or a name is there twice.
fn pairs(query: &str) -> Result<Vec<Parameter>, String> {
    let mut pairs: Vec<Parameter> = Vec::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let (name, value) = (plain(name)?, plain(value)?);
        if pairs.iter().any(|(before, _)| *before == name) {
            return Err(format!("the parameter '{}' is there twice", named(&name)));
        }
        // Unknown parameters do not pile up.
        if pairs.len() == MOST_PAIRS {
            return Err(unknown(&name));
        }
        pairs.push((name, value));
    }
    Ok(pairs)
}

/// Decodes `%` and `+`.
fn plain(text: &str) -> Result<Vec<u8>, String> {
    let is_digit = |at: Option<&u8>| at.is_some_and(u8::is_ascii_hexdigit);
    let bytes = text.as_bytes();
    let is_sound = |at: usize| is_digit(bytes.get(at + 1)) && is_digit(bytes.get(at + 2));
    let mut escapes = bytes.iter().enumerate().filter(|(_, byte)| **byte == b'%');
    match escapes.all(|(at, _)| is_sound(at)) {
        true => Ok(percent_decode(text.replace('+', " ").as_bytes()).collect()),
        false => Err("behind a % stand two hexadecimal digits; a % itself is %25".into()),
    }
}

fn order(value: &[u8]) -> Result<LockOrder, String> {
    match value {
        b"waiters" => Ok(LockOrder::Waiters),
        b"age" => Ok(LockOrder::Age),
        b"wait" => Ok(LockOrder::Wait),
        _ => Err("'by' is waiters, age or wait".into()),
    }
}

fn number(value: &[u8]) -> Result<usize, String> {
    let count = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
    let count = count.filter(|count| (1..=MOST_TOLD).contains(count));
    count.ok_or_else(|| format!("'count' is a number from 1 to {MOST_TOLD}"))
}

fn unknown(name: &[u8]) -> String {
    format!("there is no parameter '{}' here", named(name))
}

/// Returns a parameter's name as it is told.
fn named(name: &[u8]) -> impl fmt::Display + '_ {
    name[..name.len().min(64)].escape_ascii()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_a_query_are_read_and_their_bytes_are_as_they_were_meant() {
        let wanted = LocksWanted {
            pattern: Some(b"a b+\xff*".to_vec()),
            most: Some(7),
            by: Some(LockOrder::Wait),
        };
        assert_eq!(locks("match=a+b%2B%ff*&count=7&by=wait"), Ok(wanted));
        assert_eq!(locks(""), Ok(LocksWanted::default()));
        assert_eq!((count("", 10), count("count=1000", 10)), (Ok(10), Ok(1000)));
        for wrong in [
            "by=size",
            "count=0",
            "count=1001",
            "count=x",
            "token=1",
            "by",
            "match=%zz",
            "match=%2",
        ] {
            assert!(locks(wrong).is_err(), "{wrong}");
        }
        assert!(locks(&format!("match={}", "x".repeat(MAX_PATTERN + 1))).is_err());
        let twice = Err("the parameter 'count' is there twice".to_owned());
        assert_eq!(
            (count("count=1&%63ount=2", 1), count("count=1&count=1", 1)),
            (twice.clone(), twice)
        );
        let many: String = (0..=MOST_PAIRS).map(|name| format!("{name}&")).collect();
        assert_eq!(count(&many, 1), Err(unknown(MOST_PAIRS.to_string().as_bytes())));
        let both = Ok((vec![b"a b".to_vec(), b"\xff".to_vec()], false));
        assert_eq!(holders("key=a+b&peers=no&key=%ff", 2), both);
        for wrong in ["", "key=a&key=b&key=c", "peers=yes&key=a", "name=a", "key=%"] {
            assert!(holders(wrong, 2).is_err(), "{wrong}");
        }
        assert_eq!(count("by=age", 1), Err("there is no parameter 'by' here".into()));
        assert_eq!((nothing(""), nothing("&")), (Ok(()), Ok(())));
        assert_eq!(nothing("x=1"), Err("there is no parameter 'x' here".into()));
        assert!(nothing("%").is_err());
    }
}
