//! Finds the line of a key or element in a YAML text, and a key that appears twice.
//!
//! The YAML crate gives a position only with an error. So a second walk over the text fails at the place
//! that it looks for.

use std::{collections::HashSet, fmt};

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// A step from a value to one inside it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PathStep {
    Key(String),
    Index(usize),
}

/// Writes a path as people do: `locks.nodes[1]`. A URL may take the place of a key where the `-` before it
/// is missing; it may hold a password and is not repeated.
pub(super) fn name(path: &[PathStep]) -> String {
    path.iter().fold(String::new(), |mut all, step| {
        match step {
            PathStep::Key(key) => {
                let dot = if all.is_empty() { "" } else { "." };
                all.extend([dot, if key.contains("://") { "(a URL)" } else { key }]);
            }
            PathStep::Index(index) => all.push_str(&format!("[{index}]")),
        }
        all
    })
}

/// The line of the key or element at the end of `path`, from 1.
pub(super) fn line(text: &str, path: &[PathStep]) -> Option<usize> {
    PathWalk::through(text, Some(path)).map(|(line, _)| line)
}

/// The line, from 1, and the path of the first key that is twice in its mapping. The YAML crate refuses
/// such a file too, but names the line where the mapping begins.
///
/// Returns `None` also if the text is not YAML, which its parser reports.
pub(super) fn first_duplicate(text: &str) -> Option<(usize, Vec<PathStep>)> {
    PathWalk::through(text, None)
        .filter(|(_, walk)| walk.found_twice)
        .map(|(line, walk)| (line, walk.path))
}

/// The number of lines, as YAML counts them. An empty line behind the last line end counts too.
pub(super) fn lines(text: &str) -> usize {
    let ends = text.matches(['\n', '\r', '\u{85}', '\u{2028}', '\u{2029}']).count();
    1 + ends - text.matches("\r\n").count()
}

/// The first line on which more than `most` brackets are open. Returns `None` if there is none.
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

/// Whether the indentation of `line`, counted from 1, has a tab.
pub(super) fn indented_by_tab(text: &str, line: usize) -> bool {
    let line = text.lines().nth(line.saturating_sub(1)).unwrap_or_default();
    line.chars().take_while(|c| c.is_whitespace()).any(|c| c == '\t')
}

/// A walk through a text. When it fails, `path` is the place.
struct PathWalk<'a> {
    path: Vec<PathStep>,
    /// The walk fails at this path, or earlier on it at a value that cannot have the next step. `None`: it fails
    /// at the first key that is twice in its mapping.
    goal: Option<&'a [PathStep]>,
    found_twice: bool,
}

impl<'a> PathWalk<'a> {
    /// Walks through `text`. Returns the line on which the walk fails, or `None` if it does not.
    fn through(text: &str, goal: Option<&'a [PathStep]>) -> Option<(usize, PathWalk<'a>)> {
        let mut walk = PathWalk { path: Vec::new(), goal, found_twice: false };
        let error = (&mut walk).deserialize(serde_yaml::Deserializer::from_str(text)).err()?;
        Some((error.location()?.line(), walk))
    }

    /// Whether the value at `path` is on the way to the goal.
    fn leads_on(&self) -> bool {
        self.goal.is_none_or(|goal| goal.starts_with(&self.path))
    }

    /// Fails if this value is the goal, or of a kind that cannot have the next step to it.
    fn go_on<E: Error>(&self, has: fn(&PathStep) -> bool) -> Result<(), E> {
        match self.goal {
            Some(goal) if !goal.get(self.path.len()).is_some_and(has) => Err(E::custom("here")),
            _ => Ok(()),
        }
    }
}

impl<'de> DeserializeSeed<'de> for &mut PathWalk<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for &mut PathWalk<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<(), E> {
        self.go_on(|_| false)
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<(), E> {
        self.go_on(|_| false)
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<(), E> {
        self.go_on(|_| false)
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<(), E> {
        self.go_on(|_| false)
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<(), E> {
        self.go_on(|_| false)
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        self.go_on(|_| false)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        self.go_on(|step| matches!(step, PathStep::Key(_)))?;
        let mut seen = HashSet::new();
        while map.next_key_seed(PathKey { walk: &mut *self, seen: &mut seen })?.is_some() {
            if self.leads_on() {
                map.next_value_seed(&mut *self)?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
            self.path.pop();
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        self.go_on(|step| matches!(step, PathStep::Index(_)))?;
        for index in 0.. {
            self.path.push(PathStep::Index(index));
            let is_there = if self.leads_on() {
                list.next_element_seed(&mut *self)?.is_some()
            } else {
                list.next_element::<IgnoredAny>()?.is_some()
            };
            self.path.pop();
            if !is_there {
                break;
            }
        }
        Ok(())
    }
}

/// Reads a key onto the path. A walk that fails at a key fails in here, where the line is known.
struct PathKey<'w, 'a> {
    walk: &'w mut PathWalk<'a>,
    seen: &'w mut HashSet<String>,
}

impl<'de> DeserializeSeed<'de> for PathKey<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for PathKey<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E: Error>(self, key: &str) -> Result<(), E> {
        let PathKey { walk, seen } = self;
        walk.path.push(PathStep::Key(key.to_owned()));
        walk.found_twice = walk.goal.is_none() && !seen.insert(key.to_owned());
        let is_goal = walk.goal == Some(walk.path.as_slice());
        if walk.found_twice || is_goal { Err(E::custom("here")) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_keys_and_elements_in_any_style() {
        let text =
            "# first\na: 1\n\nb:\n  c: 2\n  'd':\n    - x\n    # y\n    - {e: 3,\n       f: 4}\n";
        let key = |key: &str| PathStep::Key(key.to_owned());
        let cases: [(&[PathStep], usize); 7] = [
            (&[key("a")], 2),
            (&[key("b")], 4),
            (&[key("b"), key("c")], 5),
            (&[key("b"), key("d")], 6),
            (&[key("b"), key("d"), PathStep::Index(0)], 7),
            (&[key("b"), key("d"), PathStep::Index(1)], 9),
            (&[key("b"), key("d"), PathStep::Index(1), key("f")], 10),
        ];
        for (path, expected) in cases {
            assert_eq!(line(text, path), Some(expected), "{path:?}");
        }
        assert_eq!(line(text, &[key("z")]), None);
    }
}
