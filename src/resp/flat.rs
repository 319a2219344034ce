//! Replies of a Redis that the proxy asks itself, without the client library: found by their length, checked to be
//! small and flat, and only then given to a decoder.
//!
//! Lock nodes and Sentinels answer with statuses, errors, integers, short strings and flat arrays of those. Any other
//! reply comes from neither.

use redis_protocol::resp2::{decode::decode, types::OwnedFrame};
use thiserror::Error;

use super::number;

/// Bytes of the longest line, for an error's text.
const MAX_LINE: usize = 8 * 1024;

/// The largest replies that a server gives to the proxy's questions.
#[derive(Clone, Copy)]
pub(crate) struct FlatLimits {
    /// Bytes of the longest string.
    pub(crate) string: usize,
    /// The most elements in an array.
    pub(crate) elements: i64,
}

/// Bytes that are no reply that Redis gives to the proxy's commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("a reply that makes no sense")]
pub(crate) struct Garbage;

/// Reads the reply that `buf` begins with. Returns it and its length, or `None` if it is not all there.
///
/// # Errors
/// [`Garbage`] if no further bytes could make it a reply within `limits`.
pub(crate) fn read(buf: &[u8], limits: FlatLimits) -> Result<Option<(OwnedFrame, usize)>, Garbage> {
    let Some(length) = length(buf, limits)? else { return Ok(None) };
    match decode(&buf[..length]) {
        Ok(Some((reply, _))) => Ok(Some((reply, length))),
        _ => Err(Garbage),
    }
}

/// Returns the length of the reply that `buf` begins with. Returns `None` if it is not all there.
fn length(buf: &[u8], limits: FlatLimits) -> Result<Option<usize>, Garbage> {
    let Some((header, value)) = header(buf)? else { return Ok(None) };
    if buf[0] != b'*' {
        return flat_length(buf, header, value, limits);
    }
    if !(-1..=limits.elements).contains(&value) {
        return Err(Garbage);
    }
    let mut at = header;
    for _ in 0..value {
        let rest = &buf[at..];
        let Some((header, value)) = self::header(rest)? else { return Ok(None) };
        if rest[0] == b'*' {
            return Err(Garbage);
        }
        let Some(length) = flat_length(rest, header, value, limits)? else { return Ok(None) };
        at += length;
    }
    Ok(Some(at))
}

/// Returns the first line's length, and its number if its type has one.
fn header(buf: &[u8]) -> Result<Option<(usize, i64)>, Garbage> {
    let Some(kind) = buf.first() else { return Ok(None) };
    if !matches!(kind, b'+' | b'-' | b':' | b'$' | b'*') {
        return Err(Garbage);
    }
    let window = &buf[..buf.len().min(MAX_LINE)];
    let Some(end) = memchr::memchr(b'\n', window) else {
        return if window.len() == MAX_LINE { Err(Garbage) } else { Ok(None) };
    };
    let line = window[1..end].strip_suffix(b"\r").ok_or(Garbage)?;
    let value = match kind {
        b'+' | b'-' => 0,
        _ => number::integer(line).ok_or(Garbage)?,
    };
    Ok(Some((end + 1, value)))
}

fn flat_length(
    buf: &[u8],
    header: usize,
    value: i64,
    limits: FlatLimits,
) -> Result<Option<usize>, Garbage> {
    let length = match (buf[0], value) {
        (b'$', 0..) if value as usize <= limits.string => header + value as usize + 2,
        (b'$', 0..) => return Err(Garbage),
        (b'$', _) if value != -1 => return Err(Garbage),
        _ => header,
    };
    match buf.get(..length) {
        None => Ok(None),
        Some(whole) if whole.ends_with(b"\r\n") => Ok(Some(length)),
        Some(_) => Err(Garbage),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIMITS: FlatLimits = FlatLimits { string: 64 * 1024, elements: 16 };

    fn length(buf: &[u8]) -> Result<Option<usize>, Garbage> {
        Ok(read(buf, LIMITS)?.map(|(_, length)| length))
    }

    #[test]
    fn a_reply_is_whole_at_its_last_byte_and_not_before() {
        for reply in [
            "+OK\r\n",
            "-ERR x\r\n",
            ":-1\r\n",
            "$-1\r\n",
            "$3\r\na\r\n\r\n",
            "*2\r\n:1\r\n:22\r\n",
            "*0\r\n",
            "*-1\r\n",
            "*2\r\n$1\r\na\r\n+b\r\n",
        ] {
            for cut in 0..reply.len() {
                assert_eq!(length(&reply.as_bytes()[..cut]), Ok(None), "{reply:?} cut at {cut}");
            }
            assert_eq!(length(format!("{reply}:1\r\n").as_bytes()), Ok(Some(reply.len())));
        }
    }

    #[test]
    fn what_could_hurt_a_decoder_never_reaches_it() {
        for bad in [
            "*1\r\n*1\r\n",
            "*17\r\n",
            "*1000000000\r\n",
            "$65537\r\n",
            "$-2\r\n",
            "*-2\r\n",
            "%1\r\n",
            ">1\r\n",
            "hello",
            ":1x\r\n",
            "+a\n",
            "*x\r\n",
            "\0",
            "\r\n",
            "HTTP/1.1 400 Bad Request\r\n",
            "$2\r\nabc\r\n",
        ] {
            assert_eq!(length(bad.as_bytes()), Err(Garbage), "{bad:?}");
        }
        assert_eq!(length(&b"*1\r\n".repeat(100_000)), Err(Garbage));
        assert_eq!(length(&[b'+'; MAX_LINE]), Err(Garbage));
    }
    proptest! {
        #[test]
        fn no_bytes_make_it_panic_and_no_reply_is_longer_than_what_came(
            bytes in "[*$+:_\\-0-9\r\nab]{0,64}",
        ) {
            if let Ok(Some(length)) = length(bytes.as_bytes()) {
                prop_assert!(length <= bytes.len());
            }
        }
    }
}
