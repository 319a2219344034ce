//! Where on the data node the lock of a bridged rule has its key.

use std::sync::atomic::Ordering;

use super::Adoption;
use crate::config::{AdoptMode, AdoptRule};

/// A key of the data node that stands for a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KeyPlace {
    /// The number of the database.
    pub(crate) database: u64,
    /// The key there.
    pub(crate) key: Vec<u8>,
}

impl Adoption {
    /// The mode of this rule now.
    pub(super) fn mode(&self, rule: usize) -> AdoptMode {
        let mode = self.modes.get(rule).map(|mode| mode.load(Ordering::Acquire));
        mode.map_or(AdoptMode::Audit, AdoptMode::of_number)
    }

    /// Takes the modes of these rules, which are the same rules otherwise.
    pub(crate) fn step_to(&self, rules: &[AdoptRule]) {
        for (mode, rule) in self.modes.iter().zip(rules) {
            mode.store(rule.mode as u8, Ordering::Release);
        }
        let answers = rules.iter().any(|rule| rule.mode.is_answered());
        self.answers.store(answers, Ordering::Release);
    }

    /// The key that the data node must have for this lock too, as clients name it to LOCK. Returns
    /// `None` if no bridged rule has such a lock.
    pub(crate) fn place(&self, lock: &[u8]) -> Option<KeyPlace> {
        let (database, lock) = split_database(lock);
        (0..self.rules.len()).filter(|rule| self.mode(*rule) == AdoptMode::Bridge).find_map(
            |rule| {
                let key = self.rules[rule].key_of(lock)?;
                (self.rule(&key) == Some(rule)).then_some(KeyPlace { database, key })
            },
        )
    }
}

/// The database that a lock's name begins with, and the name in that database.
fn split_database(lock: &[u8]) -> (u64, &[u8]) {
    let parse = || {
        let colon = lock.iter().take(12).position(|byte| *byte == b':')?;
        let number = std::str::from_utf8(&lock[..colon]).ok()?;
        let is_plain = number.bytes().all(|digit| digit.is_ascii_digit());
        (is_plain && !number.starts_with('0')).then_some(())?;
        Some((number.parse().ok()?, &lock[colon + 1..]))
    };
    parse().unwrap_or((0, lock))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn adoption(rules: &str) -> std::sync::Arc<Adoption> {
        let config = Config::parse(&format!("adopt: {rules}"), "f", &|_| None).unwrap();
        Adoption::new(&config.adopt.rules).unwrap()
    }

    #[test]
    fn a_lock_tells_its_key_and_database_while_its_rule_is_bridged() {
        let adoption = adoption(
            "[{keys: 'lock:x*', lock: 'x{1}'}, {keys: 'lock:*:l', lock: 'a:{1}', mode: bridge}, \
             {keys: 'm:[0-9]', mode: bridge}, {keys: 'e:*', mode: enforce}]",
        );
        let place = |lock: &str| {
            let place = adoption.place(lock.as_bytes())?;
            Some((place.database, String::from_utf8(place.key).unwrap()))
        };
        assert_eq!(place("a:job"), Some((0, "lock:job:l".into())));
        assert_eq!(place("7:a:job"), Some((7, "lock:job:l".into())));
        assert_eq!(place("m:7"), Some((0, "m:7".into())));
        assert_eq!(place("3:m:7"), Some((3, "m:7".into())));
        for other in ["xy", "job", "a", "07:a:job", "0:a:job", "+7:a:job", "m:x", "e:1", "", ":"] {
            assert_eq!(place(other), None, "{other}");
        }
        assert_eq!(place("a:xy"), None, "an earlier rule has its key");
        let mut rules = adoption.rules.clone();
        rules[1].mode = AdoptMode::Enforce;
        rules[2].mode = AdoptMode::Audit;
        adoption.step_to(&rules);
        assert_eq!((place("a:job"), place("m:7")), (None, None));
        assert!(adoption.enforces());
    }
}
