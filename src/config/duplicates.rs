//! Finds a key that stands twice in one mapping, with the line of the second.
//!
//! The YAML crate refuses such a file too, but names the line where the mapping
//! begins. Knows nothing of which keys there are.

use std::{collections::HashSet, fmt};

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use super::locate::Step;

/// The line, from 1, and the path of the first key that was there before.
/// None also where the text is no YAML: whoever parses it says so.
pub(super) fn first(text: &str) -> Option<(usize, Vec<Step>)> {
    let mut walk = Walk { path: Vec::new(), found: false };
    let error = (&mut walk).deserialize(serde_yaml::Deserializer::from_str(text)).err()?;
    walk.found.then_some((error.location()?.line(), walk.path))
}

/// Goes through a value. When it fails at a duplicate, `path` leads there.
struct Walk {
    path: Vec<Step>,
    found: bool,
}

impl<'de> DeserializeSeed<'de> for &mut Walk {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for &mut Walk {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut seen = HashSet::new();
        while map.next_key_seed(Key { walk: &mut *self, seen: &mut seen })?.is_some() {
            map.next_value_seed(&mut *self)?;
            self.path.pop();
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        for index in 0.. {
            self.path.push(Step::Index(index));
            if list.next_element_seed(&mut *self)?.is_none() {
                break;
            }
            self.path.pop();
        }
        self.path.pop();
        Ok(())
    }
}

/// Reads a key onto the path. Fails inside the reading, where the line is known.
struct Key<'a> {
    walk: &'a mut Walk,
    seen: &'a mut HashSet<String>,
}

impl<'de> DeserializeSeed<'de> for Key<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for Key<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E: Error>(self, key: &str) -> Result<(), E> {
        self.walk.path.push(Step::Key(key.to_owned()));
        if self.seen.insert(key.to_owned()) {
            return Ok(());
        }
        self.walk.found = true;
        Err(E::custom("twice"))
    }
}
