//! Redis's inline grammar: a command as a line of text, with quoting.
//!
//! It follows what Redis 7.0 was observed to accept: words separated by white space;
//! `"…"` with `\n \r \t \b \a \xHH` and backslash-anything; `'…'` with `\'`;
//! a closing quote must be followed by white space or the line's end. A vertical tab and a form feed
//! are white space before a word and behind a closing quote, and a part of a word that has begun.
//! `tests/proxy/word_ends.rs` compares this with a real Redis.

use super::encode;

/// Whether C's `isspace` accepts the byte in the "C" locale: white space before a word.
fn is_space(byte: u8) -> bool {
    ends_word(byte) || matches!(byte, 0x0b | 0x0c)
}

/// Whether an unquoted word ends before the byte.
fn ends_word(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r')
}

/// The words of a line without quotes.
pub(super) fn plain_words(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = line;
    std::iter::from_fn(move || {
        let begin = rest.iter().position(|byte| !is_space(*byte))?;
        let text = &rest[begin..];
        let length = text.iter().position(|byte| ends_word(*byte)).unwrap_or(text.len());
        rest = &text[length..];
        Some(&text[..length])
    })
}

/// Encodes the words of a line (without its `\n`) as the equivalent array; empty if there are no words. Returns
/// `None` if the line's quotes do not balance.
pub(crate) fn as_array(line: &[u8]) -> Option<Vec<u8>> {
    let words = split(line)?;
    let mut array = Vec::new();
    if !words.is_empty() {
        encode::command(&mut array, &words.iter().map(Vec::as_slice).collect::<Vec<_>>());
    }
    Some(array)
}

/// Splits a line into words. Returns `None` if its quotes do not balance.
pub fn split(line: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut words = Vec::new();
    let mut rest = line;
    loop {
        while let [first, tail @ ..] = rest
            && is_space(*first)
        {
            rest = tail;
        }
        if rest.is_empty() {
            return Some(words);
        }
        let mut word = Vec::new();
        rest = read_word(rest, &mut word)?;
        words.push(word);
    }
}

/// Reads one word into `word` and returns what follows it.
fn read_word<'a>(mut rest: &'a [u8], word: &mut Vec<u8>) -> Option<&'a [u8]> {
    loop {
        match rest {
            [] => return Some(rest),
            [b'"', tail @ ..] => return read_double_quoted(tail, word),
            [b'\'', tail @ ..] => return read_single_quoted(tail, word),
            [byte, tail @ ..] if ends_word(*byte) => return Some(tail),
            [byte, tail @ ..] => {
                word.push(*byte);
                rest = tail;
            }
        }
    }
}

fn read_double_quoted<'a>(mut rest: &'a [u8], word: &mut Vec<u8>) -> Option<&'a [u8]> {
    loop {
        rest = match rest {
            [] => return None,
            [b'\\', b'x', high, low, tail @ ..]
                if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() =>
            {
                word.push(hex(*high) << 4 | hex(*low));
                tail
            }
            [b'\\', escaped, tail @ ..] => {
                word.push(match escaped {
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'b' => 0x08,
                    b'a' => 0x07,
                    other => *other,
                });
                tail
            }
            [b'"', tail @ ..] => return after_quote(tail),
            [byte, tail @ ..] => {
                word.push(*byte);
                tail
            }
        };
    }
}

fn read_single_quoted<'a>(mut rest: &'a [u8], word: &mut Vec<u8>) -> Option<&'a [u8]> {
    loop {
        rest = match rest {
            [] => return None,
            [b'\\', b'\'', tail @ ..] => {
                word.push(b'\'');
                tail
            }
            [b'\'', tail @ ..] => return after_quote(tail),
            [byte, tail @ ..] => {
                word.push(*byte);
                tail
            }
        };
    }
}

fn after_quote(rest: &[u8]) -> Option<&[u8]> {
    match rest {
        [] => Some(rest),
        [byte, tail @ ..] if is_space(*byte) => Some(tail),
        _ => None,
    }
}

fn hex(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        b'a'..=b'f' => digit - b'a' + 10,
        _ => digit - b'A' + 10,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Option<Vec<String>> {
        split(line.as_bytes()).map(|words| {
            words.into_iter().map(|word| word.iter().map(|b| char::from(*b)).collect()).collect()
        })
    }

    #[test]
    fn splits_as_redis_does() {
        let cases: [(&str, Option<&[&str]>); 21] = [
            ("", Some(&[])),
            ("  \t ", Some(&[])),
            ("PING", Some(&["PING"])),
            (" SET  a\tb ", Some(&["SET", "a", "b"])),
            (r#"SET a "b c""#, Some(&["SET", "a", "b c"])),
            (r#"SET a "\x41\n\"\q""#, Some(&["SET", "a", "A\n\"q"])),
            (r#"SET a "\xzz""#, Some(&["SET", "a", "xzz"])),
            (r"SET a 'b\'c\n'", Some(&["SET", "a", r"b'c\n"])),
            (r#"a"b""#, Some(&["ab"])),
            (r#""""#, Some(&[""])),
            (r#"a "b"c"#, None),
            (r#"a "b"#, None),
            ("a 'b", None),
            (r#"a "b\"#, None),
            ("a 'b'c", None),
            (r#"'a' "b""#, Some(&["a", "b"])),
            ("MSET x\x0by v1", Some(&["MSET", "x\x0by", "v1"])),
            ("\x0c\x0bGET\x0c \x0bk\x0c", Some(&["GET\x0c", "k\x0c"])),
            ("'a'\x0bb \"c\"\x0c", Some(&["a", "b", "c"])),
            ("a\x0b'b'", Some(&["a\x0bb"])),
            ("\x0b \x0c", Some(&[])),
        ];
        for (line, expected) in cases {
            let expected = expected.map(|w| w.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>());
            assert_eq!(words(line), expected, "{line}");
        }
    }
}
