//! Replies of a Sentinel, parsed within bounds, as they are input from outside.

/// The most bytes of one reply. The longest that is asked for has all fields of a master.
pub(super) const LONGEST: usize = 4096;
/// The most elements of one reply. A Sentinel tells some twenty fields of a master, with their names.
const MOST_ELEMENTS: usize = 128;

/// A reply, or a message of a subscription.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum SentinelReply {
    /// An error, with its code.
    Error(String),
    /// An array of texts; a number counts as text, and null as the empty one.
    Texts(Vec<Vec<u8>>),
    /// A status or a number.
    Text(Vec<u8>),
    /// Null.
    Nothing,
}

/// The error for bytes that are no reply of a Sentinel.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Garbled;

/// Reads the reply at the beginning of `bytes`, with its length. Returns `None` if more bytes are
/// needed.
///
/// # Errors
/// [`Garbled`] if no further bytes could make it a reply, or it is longer than [`LONGEST`].
pub(super) fn read(bytes: &[u8]) -> Result<Option<(SentinelReply, usize)>, Garbled> {
    let whole = whole(bytes)?;
    if whole.is_none() && bytes.len() >= LONGEST {
        return Err(Garbled);
    }
    Ok(whole)
}

fn whole(bytes: &[u8]) -> Result<Option<(SentinelReply, usize)>, Garbled> {
    let Some((line, mut at)) = line(bytes, 0)? else { return Ok(None) };
    let (kind, text) = line.split_first().ok_or(Garbled)?;
    let reply = match kind {
        b'-' => SentinelReply::Error(String::from_utf8_lossy(text).into_owned()),
        b'_' => SentinelReply::Nothing,
        b'*' | b'>' => {
            let Some(count) = length(text)? else { return Ok(Some((SentinelReply::Nothing, at))) };
            if count > MOST_ELEMENTS {
                return Err(Garbled);
            }
            let mut texts = Vec::new();
            for _ in 0..count {
                let Some((text, end)) = element(bytes, at)? else { return Ok(None) };
                texts.push(text.unwrap_or_default());
                at = end;
            }
            SentinelReply::Texts(texts)
        }
        _ => {
            let Some((text, end)) = element(bytes, 0)? else { return Ok(None) };
            at = end;
            text.map_or(SentinelReply::Nothing, SentinelReply::Text)
        }
    };
    Ok(Some((reply, at)))
}

/// A text, or null, and where it ends.
type TextAt = (Option<Vec<u8>>, usize);

/// Reads a bulk string, a status or a number that begins at `at`.
fn element(bytes: &[u8], at: usize) -> Result<Option<TextAt>, Garbled> {
    let Some((line, begin)) = line(bytes, at)? else { return Ok(None) };
    let (kind, text) = line.split_first().ok_or(Garbled)?;
    match kind {
        b'+' | b':' => Ok(Some((Some(text.to_vec()), begin))),
        b'_' => Ok(Some((None, begin))),
        b'$' => {
            let Some(length) = length(text)? else { return Ok(Some((None, begin))) };
            let end = begin + length;
            match bytes.get(end..end + 2) {
                None => Ok(None),
                Some(b"\r\n") => Ok(Some((Some(bytes[begin..end].to_vec()), end + 2))),
                Some(_) => Err(Garbled),
            }
        }
        _ => Err(Garbled),
    }
}

/// Reads a length; `None` for null.
fn length(text: &[u8]) -> Result<Option<usize>, Garbled> {
    if text == b"-1" {
        return Ok(None);
    }
    let text = std::str::from_utf8(text).map_err(|_| Garbled)?;
    match text.parse::<usize>() {
        Ok(length) if length <= LONGEST => Ok(Some(length)),
        _ => Err(Garbled),
    }
}

/// Reads the line that begins at `at`. Returns it without its end, and where the next begins.
fn line(bytes: &[u8], at: usize) -> Result<Option<(&[u8], usize)>, Garbled> {
    let rest = bytes.get(at..).ok_or(Garbled)?;
    match memchr::memchr(b'\n', rest) {
        None => Ok(None),
        Some(end) => {
            let line = rest[..end].strip_suffix(b"\r").ok_or(Garbled)?;
            Ok(Some((line, at + end + 1)))
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn texts(all: &[&str]) -> SentinelReply {
        SentinelReply::Texts(all.iter().map(|text| text.as_bytes().to_vec()).collect())
    }

    #[test]
    fn replies_of_sentinels_are_read_in_pieces_too() {
        let cases: [(&[u8], SentinelReply); 7] = [
            (b"*2\r\n$9\r\n127.0.0.1\r\n$4\r\n6379\r\n", texts(&["127.0.0.1", "6379"])),
            (b"*-1\r\n", SentinelReply::Nothing),
            (b"$-1\r\n", SentinelReply::Nothing),
            (b"_\r\n", SentinelReply::Nothing),
            (
                b"-NOAUTH Authentication required.\r\n",
                SentinelReply::Error("NOAUTH Authentication required.".into()),
            ),
            (b"+OK\r\n", SentinelReply::Text(b"OK".to_vec())),
            (b"*3\r\n$9\r\nsubscribe\r\n$2\r\n+s\r\n:1\r\n", texts(&["subscribe", "+s", "1"])),
        ];
        for (bytes, reply) in cases {
            let more = [bytes, b"+more"].concat();
            assert_eq!(read(&more), Ok(Some((reply, bytes.len()))));
            for end in 0..bytes.len() {
                assert_eq!(read(&bytes[..end]), Ok(None), "{end} of {bytes:?}");
            }
        }
    }

    #[test]
    fn what_no_sentinel_sends_is_refused_and_nothing_is_waited_for_without_end() {
        let garbage: [&[u8]; 8] = [
            b"HTTP/1.1 400 Bad Request\r\n",
            b"\r\n",
            b"+OK\n",
            b"*1\r\n*1\r\n",
            b"*129\r\n",
            b"*-2\r\n",
            b"$4097\r\n",
            b"$2\r\nabc\r\n",
        ];
        for bytes in garbage {
            assert_eq!(read(bytes), Err(Garbled), "{bytes:?}");
        }
        assert_eq!(read(&[b'x'; LONGEST]), Err(Garbled));
        assert_eq!(read(&[b'x'; LONGEST - 1]), Ok(None));
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic_and_no_reply_is_longer_than_what_came(
            bytes in "[*$+:_\\-0-9\r\nab]{0,64}",
        ) {
            if let Ok(Some((_, length))) = read(bytes.as_bytes()) {
                prop_assert!(length <= bytes.len());
            }
        }
    }
}
