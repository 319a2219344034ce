//! Makes names fit for a terminal: clients choose the names of locks and their own, and a terminal obeys control
//! characters in them.

use std::fmt;

use serde::{Deserialize, Deserializer};

/// A text in which each character has a place of its own on the screen. Text from others reaches the terminal only
/// in this form.
///
/// Control characters, marks that change the direction of writing, those that join the character before them, and
/// other invisible ones are written as escapes, as `\u{1b}`. A backslash is written as two, so that different
/// names stay different.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct PlainText(String);

impl PlainText {
    /// Makes any text plain.
    pub(super) fn of(text: &str) -> PlainText {
        let mut plain = String::with_capacity(text.len());
        for c in text.chars() {
            match c {
                // `escape_debug` would escape quotation marks, as in Rust's literals.
                '"' | '\'' => plain.push(c),
                c => plain.extend(c.escape_debug()),
            }
        }
        PlainText(plain)
    }

    /// Makes any bytes plain. Bytes that are not UTF-8 are written as `\xff`.
    pub(super) fn of_bytes(bytes: &[u8]) -> PlainText {
        let mut plain = PlainText::default();
        for piece in bytes.utf8_chunks() {
            plain.0 += &PlainText::of(piece.valid()).0;
            plain.0 += &piece.invalid().escape_ascii().to_string();
        }
        plain
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for PlainText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for PlainText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<PlainText, D::Error> {
        String::deserialize(deserializer).map(|text| PlainText::of(&text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_a_terminal_obeys_is_left() {
        for (text, plain) in [
            ("job:1", "job:1"),
            ("wörk 作業 \"it's\"", "wörk 作業 \"it's\""),
            ("\x1b[2J\x1b]0;gone\x07", "\\u{1b}[2J\\u{1b}]0;gone\\u{7}"),
            ("\u{9b}31m", "\\u{9b}31m"),
            ("a\r\nb\tc\u{8}\u{7f}\0", "a\\r\\nb\\tc\\u{8}\\u{7f}\\0"),
            ("\u{202e}bp.drowssap\u{2066}", "\\u{202e}bp.drowssap\\u{2066}"),
            ("a\u{200b}\u{feff}\u{2028}\u{301}", "a\\u{200b}\\u{feff}\\u{2028}\\u{301}"),
        ] {
            assert_eq!(PlainText::of(text).as_str(), plain);
        }
        for c in '\0'..=char::MAX {
            let plain = PlainText::of(&c.to_string());
            assert!(!plain.as_str().contains(char::is_control), "{c:?}");
        }
    }

    #[test]
    fn different_names_stay_different() {
        assert_ne!(PlainText::of("\x1b"), PlainText::of("\\u{1b}"));
        assert_ne!(PlainText::of_bytes(b"\xff"), PlainText::of_bytes(b"\\xff"));
        assert_eq!(PlainText::of_bytes(b"a\xff\x1b\xc3\xa4").as_str(), "a\\xff\\u{1b}ä");
    }

    #[test]
    fn what_comes_as_json_is_plain() {
        let name: PlainText = serde_json::from_str(r#""\u001b[31mworker\u0007""#).unwrap();
        assert_eq!(name.as_str(), "\\u{1b}[31mworker\\u{7}");
    }
}
