//! What stands behind the `?` of a request for a list.

use percent_encoding::percent_decode;

use crate::lock::{LockOrder, LocksWanted, MOST_TOLD};

/// The longest pattern, in bytes, as that of LOCKGATE LOCKS. Each lock's key is compared with it.
const MAX_PATTERN: usize = 256;

/// Reads `by`, `match` and `count`.
///
/// # Errors
/// What is wrong, for people.
pub(super) fn locks(query: &str) -> Result<LocksWanted, String> {
    let mut wanted = LocksWanted::default();
    for (name, value) in pairs(query) {
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
    for (name, value) in pairs(query) {
        match &*name {
            b"count" => count = number(&value)?,
            _ => return Err(unknown(&name)),
        }
    }
    Ok(count)
}

/// The names and values of a query, without `%` and `+`.
fn pairs(query: &str) -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> {
    query.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let plain = |text: &str| percent_decode(text.replace('+', " ").as_bytes()).collect();
        (plain(name), plain(value))
    })
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
    let name = name[..name.len().min(64)].escape_ascii();
    format!("there is no parameter '{name}' here")
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
        for wrong in ["by=size", "count=0", "count=1001", "count=x", "token=1", "by"] {
            assert!(locks(wrong).is_err(), "{wrong}");
        }
        assert!(locks(&format!("match={}", "x".repeat(MAX_PATTERN + 1))).is_err());
        assert_eq!(count("by=age", 1), Err("there is no parameter 'by' here".into()));
    }
}
