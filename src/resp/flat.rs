//! Replies of a Redis that the proxy asks itself, without the client library: found by their length, checked to be
//! small and flat, and only then given to a decoder.
//!
//! Lock nodes answer with statuses, errors, integers, short strings and flat arrays of those. Any other reply comes
//! from no Redis that can vote.

use redis_protocol::resp2::{decode::decode, types::OwnedFrame};
use thiserror::Error;

use super::number;

/// Bytes of the longest reply: INFO of one section at the handshake is the largest asked for.
const MAX_REPLY: usize = 64 * 1024;
/// Bytes of the longest line, for an error's text.
const MAX_LINE: usize = 8 * 1024;
/// The most elements in an array.
const MAX_ELEMENTS: i64 = 16;

/// Bytes that are no reply that Redis gives to the proxy's commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("a reply that makes no sense")]
pub(crate) struct Garbage;

/// Returns the length of the reply that `buf` begins with. Returns `None` if it is not all there.
pub(crate) fn length(buf: &[u8]) -> Result<Option<usize>, Garbage> {
    let Some((header, value)) = header(buf)? else { return Ok(None) };
    if buf[0] != b'*' {
        return flat_length(buf, header, value);
    }
    if !(-1..=MAX_ELEMENTS).contains(&value) {
        return Err(Garbage);
    }
    let mut at = header;
    for _ in 0..value {
        let rest = &buf[at..];
        let Some((header, value)) = self::header(rest)? else { return Ok(None) };
        if rest[0] == b'*' {
            return Err(Garbage);
        }
        let Some(length) = flat_length(rest, header, value)? else { return Ok(None) };
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

fn flat_length(buf: &[u8], header: usize, value: i64) -> Result<Option<usize>, Garbage> {
    let length = match (buf[0], value) {
        (b'$', 0..) if value as usize <= MAX_REPLY => header + value as usize + 2,
        (b'$', 0..) => return Err(Garbage),
        (b'$', _) if value != -1 => return Err(Garbage),
        _ => header,
    };
    Ok(Some(length).filter(|length| *length <= buf.len()))
}

/// Decodes one whole reply.
pub(crate) fn read(frame: &[u8]) -> Result<OwnedFrame, Garbage> {
    match decode(frame) {
        Ok(Some((decoded, _))) => Ok(decoded),
        _ => Err(Garbage),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            assert!(read(reply.as_bytes()).is_ok(), "{reply:?}");
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
        ] {
            assert_eq!(length(bad.as_bytes()), Err(Garbage), "{bad:?}");
        }
        assert_eq!(length(&b"*1\r\n".repeat(100_000)), Err(Garbage));
        assert_eq!(length(&[b'+'; MAX_LINE]), Err(Garbage));
    }
}
