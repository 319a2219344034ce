//! Splits a short command into words.

use std::borrow::Cow;

use smallvec::SmallVec;

use super::{
    inline,
    request::{Line, line},
};

/// Words, borrowed from the bytes unless they had quotes to remove.
pub(crate) type Words<'a> = SmallVec<[Cow<'a, [u8]>; 7]>;

/// The result of splitting a command.
#[derive(Debug, PartialEq, Eq)]
pub enum Split<'a> {
    /// The command is whole.
    Whole {
        /// The words, the name included.
        words: Words<'a>,
        /// Bytes from the command's first to its last.
        length: usize,
    },
    /// More bytes are needed.
    Incomplete,
    /// The command has more words or bytes than allowed.
    TooLong,
}

/// Splits the command at the beginning of `buf`, which the scanner has reported, if it has at most `max_words`
/// words and `max_bytes` bytes.
pub fn split(buf: &[u8], max_words: usize, max_bytes: usize) -> Split<'_> {
    if buf.first() != Some(&b'*') {
        let Some(end) = memchr::memchr(b'\n', buf) else { return Split::Incomplete };
        let Some(words) = inline::split(&buf[..end]) else { return Split::TooLong };
        if words.len() > max_words || end > max_bytes {
            return Split::TooLong;
        }
        let words = words.into_iter().map(Cow::Owned).collect();
        return Split::Whole { words, length: end + 1 };
    }
    let Line::Number { value, length: mut at } = line(buf, b'*') else { return Split::Incomplete };
    if value > max_words as i64 {
        return Split::TooLong;
    }
    let mut words = Words::new();
    for _ in 0..value {
        match line(buf.get(at..).unwrap_or_default(), b'$') {
            Line::Number { value, length } => {
                let start = at + length;
                if value < 0 || value > max_bytes as i64 {
                    return Split::TooLong;
                }
                at = start + value as usize + 2;
                if at > max_bytes {
                    return Split::TooLong;
                }
                let Some(word) = buf.get(start..start + value as usize) else {
                    return Split::Incomplete;
                };
                words.push(Cow::Borrowed(word));
            }
            Line::Incomplete => return Split::Incomplete,
            Line::Bad => return Split::TooLong,
        }
    }
    if at > buf.len() {
        return Split::Incomplete;
    }
    Split::Whole { words, length: at }
}
