//! Finds the words of one command as its bytes arrive.

use std::ops::Range;

use smallvec::SmallVec;

use super::{
    encode, inline,
    name::{LOOKED_AT, Name, ParsedName, name_of},
    request::{Line, line},
};

/// The fewest bytes of a word: `$0`, line end, nothing, line end.
const SHORTEST: usize = 6;

/// The words of a command, borrowed from its bytes.
pub(crate) type Spans<'b> = SmallVec<[&'b [u8]; 8]>;

/// A walk over the words of a command that is an array, from its first byte.
#[derive(Debug, Clone, Default)]
pub(crate) struct Walk {
    /// Position of the walk.
    at: usize,
    /// Words still to come; `None` before the head is read.
    left: Option<usize>,
}

/// The result of a step of a [`Walk`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum WordStep {
    /// The next word is at this range.
    Word(Range<usize>),
    /// The words have ended; the command takes this many bytes.
    End(usize),
    /// More bytes are needed: the command takes at least this many.
    More(usize),
    /// Redis would not read this command.
    Bad,
}

impl Walk {
    /// Finds the next word of the command at the beginning of `bytes`, which must begin with the bytes of the
    /// earlier steps.
    pub(crate) fn step(&mut self, bytes: &[u8]) -> WordStep {
        let left = match self.left {
            Some(left) => left,
            None => match line(bytes, b'*') {
                Line::Number { value, length } => {
                    let Ok(words) = usize::try_from(value) else { return WordStep::Bad };
                    self.at = length;
                    *self.left.insert(words)
                }
                Line::Incomplete => return WordStep::More(bytes.len() + 1),
                Line::Bad => return WordStep::Bad,
            },
        };
        let least = |left: usize, at: usize| at.saturating_add(left.saturating_mul(SHORTEST));
        if left == 0 {
            return if self.at > bytes.len() {
                WordStep::More(self.at)
            } else {
                WordStep::End(self.at)
            };
        }
        match line(bytes.get(self.at..).unwrap_or_default(), b'$') {
            Line::Number { value, length } => {
                let Ok(size) = usize::try_from(value) else { return WordStep::Bad };
                let start = self.at + length;
                let end = start.saturating_add(size);
                if end > bytes.len() {
                    return WordStep::More(least(left - 1, end.saturating_add(2)));
                }
                (self.at, self.left) = (end + 2, Some(left - 1));
                WordStep::Word(start..end)
            }
            Line::Incomplete => WordStep::More(least(left, self.at).max(bytes.len() + 1)),
            Line::Bad => WordStep::Bad,
        }
    }

    /// Adds the next words to `spans` until it has `most`. Returns how the walk ended, or `None` if `spans` has
    /// `most`.
    pub(crate) fn find<'b>(
        &mut self,
        bytes: &'b [u8],
        spans: &mut Spans<'b>,
        most: usize,
    ) -> Option<WordStep> {
        while spans.len() < most {
            match self.step(bytes) {
                WordStep::Word(range) => spans.push(&bytes[range]),
                end => return Some(end),
            }
        }
        None
    }

    /// Walks on to the command's end: returns `End`, `More` or `Bad`.
    pub(crate) fn finish(&mut self, bytes: &[u8]) -> WordStep {
        loop {
            match self.step(bytes) {
                WordStep::Word(_) => {}
                last => return last,
            }
        }
    }
}

/// Returns the words of a whole command that is an array.
pub(crate) fn of(bytes: &[u8]) -> Spans<'_> {
    let mut spans = Spans::new();
    let _ = Walk::default().find(bytes, &mut spans, usize::MAX);
    spans
}

/// Whether Redis may take a command with a zero byte in its first or second word for another one, after which
/// replies are counted differently: Redis compares some names only up to that byte.
pub(crate) fn hides_a_name(bytes: &[u8]) -> bool {
    let words = first_words(bytes);
    let Some(first) = words.first() else { return false };
    let Some(end) = memchr::memchr(0, first) else { return true };
    !matches!(name_of(&first[..end]), ParsedName::Name(Name::Other))
}

/// Whether Redis may answer this command although CLIENT REPLY SKIP stands before it. A WAIT that has blocked is
/// answered once replicas have acknowledged: Redis ends the SKIP first. A WAIT that times out is not answered, nor is
/// any other command that blocks.
pub(crate) fn may_be_answered_unasked(bytes: &[u8]) -> bool {
    let words = first_words(bytes);
    let is =
        |name: &str| words.first().is_some_and(|word| word.eq_ignore_ascii_case(name.as_bytes()));
    is("WAIT") || is("WAITAOF")
}

/// The words at the beginning of a command, at least the first two, as far as they have arrived.
fn first_words(bytes: &[u8]) -> Vec<Vec<u8>> {
    match bytes.first() {
        Some(b'*') => beginnings(bytes),
        _ => inline::split(memchr::memchr(b'\n', bytes).map_or(bytes, |end| &bytes[..end]))
            .unwrap_or_default(),
    }
}

/// Encodes the beginning of a command with a zero byte in its first or second word, with `\0` for each such
/// byte. No Redis has a command of that name, so the data node answers with its own error.
pub(crate) fn without_zero_bytes(bytes: &[u8]) -> Vec<u8> {
    let words = first_words(bytes);
    let has_zero = |word: &Vec<u8>| word.contains(&0);
    let count = words.iter().take(2).position(has_zero).map_or(1, |at| at + 1);
    let shown = |word: &Vec<u8>| {
        let cut = &word[..word.len().min(LOOKED_AT)];
        cut.iter()
            .flat_map(|byte| if *byte == 0 { &b"\\0"[..] } else { std::slice::from_ref(byte) })
            .copied()
            .collect::<Vec<u8>>()
    };
    let words: Vec<Vec<u8>> = words.iter().take(count).map(shown).collect();
    let mut out = Vec::new();
    encode::command(&mut out, &words.iter().map(Vec::as_slice).collect::<Vec<_>>());
    out
}

/// The first two words of an array, as far as they have arrived.
fn beginnings(bytes: &[u8]) -> Vec<Vec<u8>> {
    let (mut words, mut at) = (Vec::new(), 0);
    if let Line::Number { length, .. } = line(bytes, b'*') {
        at = length;
    }
    for _ in 0..2 {
        let Line::Number { value, length } = line(bytes.get(at..).unwrap_or_default(), b'$') else {
            break;
        };
        let (rest, size) = (bytes.get(at + length..).unwrap_or_default(), value.max(0) as usize);
        words.push(rest[..size.min(rest.len())].to_vec());
        at = at.saturating_add(length).saturating_add(size).saturating_add(2);
    }
    words
}

/// Checks the command at the beginning of `bytes` for what Redis refuses from an unauthenticated client: more
/// than 10 words, or one of more than 16 KB. Returns the shortest bytes that are refused for the same reason.
pub(crate) fn too_much_of_a_stranger(bytes: &[u8]) -> Option<&'static [u8]> {
    let Line::Number { value: words, length: mut at } = line(bytes, b'*') else { return None };
    if words > 10 {
        return Some(b"*11\r\n");
    }
    for _ in 0..words {
        match line(bytes.get(at..)?, b'$') {
            Line::Number { value, .. } if value > 16 * 1024 => return Some(b"*1\r\n$16385\r\n"),
            Line::Number { value, length } => at += length + usize::try_from(value).ok()? + 2,
            Line::Incomplete | Line::Bad => return None,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resp::encode;

    #[test]
    fn words_are_found_however_they_come() {
        let words: [&[u8]; 4] = [b"MSET", b"", b"k\r\n", &[b'x'; 300]];
        let mut whole = Vec::new();
        encode::command(&mut whole, &words);
        let mut walk = Walk::default();
        let mut found = Vec::new();
        for end in 0..=whole.len() {
            loop {
                match walk.step(&whole[..end]) {
                    WordStep::Word(range) => found.push(whole[range].to_vec()),
                    WordStep::More(least) => {
                        assert!(least > end && least <= whole.len(), "{least} at {end}");
                        break;
                    }
                    WordStep::End(length) => {
                        assert_eq!((length, end), (whole.len(), whole.len()));
                        break;
                    }
                    WordStep::Bad => panic!("bad at {end}"),
                }
            }
        }
        assert_eq!(found, words);
    }

    #[test]
    fn a_zero_byte_is_written_out_where_it_makes_a_name_unclear() {
        let long = [&b"PING\0"[..], &[b'x'; 100]].concat();
        for (words, expected) in [
            (&[&b"GET\0a"[..], b"k\0"][..], "*1\r\n$6\r\nGET\\0a\r\n"),
            (&[b"CLIENT", b"REPLY\0", b"OFF"], "*2\r\n$6\r\nCLIENT\r\n$7\r\nREPLY\\0\r\n"),
            (&[b"\0"], "*1\r\n$2\r\n\\0\r\n"),
            (&[&long], &format!("*1\r\n$65\r\nPING\\0{}\r\n", "x".repeat(59))),
        ] {
            let mut bytes = Vec::new();
            encode::command(&mut bytes, words);
            assert_eq!(String::from_utf8(without_zero_bytes(&bytes)).unwrap(), expected);
        }
        let line = b"\"QUIT\\x00a\" b\r\n";
        assert_eq!(without_zero_bytes(line), b"*1\r\n$7\r\nQUIT\\0a\r\n");
        let cut = b"*3\r\n$9\r\nSUBSCRIBE\r\n$900\r\na\0b";
        assert_eq!(without_zero_bytes(cut), b"*2\r\n$9\r\nSUBSCRIBE\r\n$4\r\na\\0b\r\n");
    }

    #[test]
    fn strangers_have_redis_own_limits() {
        for (bytes, least) in [
            ("*10\r\n$3\r\nDEL\r\n", None),
            ("*11\r\n", Some("*11\r\n")),
            ("*3\r\n$3\r\nSET\r\n$1\r\na\r\n$16384\r\n", None),
            ("*3\r\n$3\r\nSET\r\n$1\r\na\r\n$16385\r\n", Some("*1\r\n$16385\r\n")),
            ("*3\r\n$3\r\nSET\r\n$1\r\na\r\n$1638", None),
            ("*2\r\n$9223372036854775807\r\n", Some("*1\r\n$16385\r\n")),
            ("*2\r\n$-1\r\n", None),
            ("SET a b\r\n", None),
        ] {
            let found = too_much_of_a_stranger(bytes.as_bytes());
            assert_eq!(found, least.map(str::as_bytes), "{bytes:?}");
        }
    }

    #[test]
    fn lengths_without_bounds_do_not_overflow() {
        let huge = b"*2147483647\r\n$9223372036854775807\r\n";
        assert!(matches!(Walk::default().finish(huge), WordStep::More(_)));
        assert_eq!(Walk::default().finish(b"*2\r\n$-1\r\n"), WordStep::Bad);
        assert_eq!(Walk::default().finish(b"*2\r\n:1\r\n"), WordStep::Bad);
    }
}
