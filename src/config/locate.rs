//! On which line of a YAML text something stands.
//!
//! The YAML crate tells a position only together with an error. So the text is
//! read once more by a visitor that follows the path and fails where it ends.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// One step from a value to one inside it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    /// Into a mapping.
    Key(String),
    /// Into a list.
    Index(usize),
}

/// A path as people write it: `locks.nodes[1]`. A URL that stands as a key, for
/// want of the `-` before it, may hold a password and is not repeated.
pub(super) fn name(path: &[Step]) -> String {
    path.iter().fold(String::new(), |mut all, step| {
        match step {
            Step::Key(key) => {
                let dot = if all.is_empty() { "" } else { "." };
                all.extend([dot, if key.contains("://") { "(a URL)" } else { key }]);
            }
            Step::Index(index) => all.push_str(&format!("[{index}]")),
        }
        all
    })
}

/// The line of the key or element at the end of `path`, from 1.
pub(super) fn line(text: &str, path: &[Step]) -> Option<usize> {
    let error = Follow(path).deserialize(serde_yaml::Deserializer::from_str(text)).err()?;
    Some(error.location()?.line())
}

/// How many lines the text has, counted as YAML does; an empty one behind the last line end too.
pub(super) fn lines(text: &str) -> usize {
    let ends = text.matches(['\n', '\r', '\u{85}', '\u{2028}', '\u{2029}']).count();
    1 + ends - text.matches("\r\n").count()
}

/// The line on which more than `most` brackets are open, wherever they stand; none: on no
/// line.
pub(super) fn too_deep(text: &str, most: usize) -> Option<usize> {
    let mut depth = 0_usize;
    let at = text.bytes().position(|byte| {
        match byte {
            b'[' | b'{' => depth += 1,
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth > most
    })?;
    Some(lines(&text[..at]))
}

/// Whether there is a tab in what indents `line`, counted from 1.
pub(super) fn indented_by_tab(text: &str, line: usize) -> bool {
    let line = text.lines().nth(line.saturating_sub(1)).unwrap_or_default();
    line.chars().take_while(|c| c.is_whitespace()).any(|c| c == '\t')
}

struct Follow<'a>(&'a [Step]);

impl<'de> DeserializeSeed<'de> for Follow<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Follow<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the end of the path")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let [Step::Key(key), rest @ ..] = self.0 else { return Err(A::Error::custom("here")) };
        while let Some(found) = map.next_key_seed(KeyIs { key, stop: rest.is_empty() })? {
            if found {
                map.next_value_seed(Follow(rest))?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        let [Step::Index(index), rest @ ..] = self.0 else { return Err(A::Error::custom("here")) };
        for _ in 0..*index {
            list.next_element::<IgnoredAny>()?;
        }
        list.next_element_seed(Follow(rest))?;
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(())
    }
}

/// Reads a key and says whether it is the one; fails there if the path ends with it.
struct KeyIs<'a> {
    key: &'a str,
    stop: bool,
}

impl<'de> DeserializeSeed<'de> for KeyIs<'_> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<bool, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for KeyIs<'_> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<bool, E> {
        if self.stop && text == self.key { Err(E::custom("here")) } else { Ok(text == self.key) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_keys_and_elements_in_any_style() {
        let text =
            "# first\na: 1\n\nb:\n  c: 2\n  'd':\n    - x\n    # y\n    - {e: 3,\n       f: 4}\n";
        let key = |key: &str| Step::Key(key.to_owned());
        let cases: [(&[Step], usize); 7] = [
            (&[key("a")], 2),
            (&[key("b")], 4),
            (&[key("b"), key("c")], 5),
            (&[key("b"), key("d")], 6),
            (&[key("b"), key("d"), Step::Index(0)], 7),
            (&[key("b"), key("d"), Step::Index(1)], 9),
            (&[key("b"), key("d"), Step::Index(1), key("f")], 10),
        ];
        for (path, expected) in cases {
            assert_eq!(line(text, path), Some(expected), "{path:?}");
        }
        assert_eq!(line(text, &[key("z")]), None);
    }
}
