//! The rules' present modes, and where the lock of a bridged rule has its key on the data node.

use std::sync::atomic::Ordering;

use super::Adoption;
use crate::config::{AdoptMode, AdoptRule, FlushPolicy};

/// A key of the data node that stands for a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KeyPlace {
    /// The number of the database.
    pub(crate) database: u64,
    /// The key there.
    pub(crate) key: Vec<u8>,
}

impl Adoption {
    /// Returns the present mode of this rule.
    pub(super) fn mode(&self, rule: usize) -> AdoptMode {
        let mode = self.modes.get(rule).map(|mode| mode.load(Ordering::Acquire));
        mode.map_or(AdoptMode::Audit, AdoptMode::of_number)
    }

    /// Takes over the modes of these rules, which are otherwise the present ones.
    pub(crate) fn step_to(&self, rules: &[AdoptRule]) {
        for (mode, rule) in self.modes.iter().zip(rules) {
            mode.store(rule.mode as u8, Ordering::Release);
        }
        let answers = rules.iter().any(|rule| rule.mode.is_answered());
        self.answers.store(answers, Ordering::Release);
        self.attend();
    }

    /// Notes which rules another proxy has bridged, by their `keys`.
    pub(crate) fn others_bridge(&self, bridges: impl Fn(&str) -> bool) {
        for (bridged, rule) in self.bridged_elsewhere.iter().zip(&self.rules) {
            bridged.store(bridges(rule.keys.as_str()), Ordering::Release);
        }
        self.attend();
    }

    fn attend(&self) {
        let is_followed = (0..self.rules.len()).any(|rule| self.is_followed(rule));
        self.attends.store(self.enforces() || is_followed, Ordering::Release);
    }

    /// Whether another proxy has bridged this rule, and this one has not.
    pub(super) fn is_followed(&self, rule: usize) -> bool {
        let bridged = self.bridged_elsewhere.get(rule);
        bridged.is_some_and(|bridged| bridged.load(Ordering::Acquire))
            && self.mode(rule) != AdoptMode::Bridge
    }

    /// Returns the keys that the data node, too, must have for this lock, whose name is as in LOCK: one in
    /// database 0, and one in the database whose number the name begins with. There are none if no
    /// bridged rule has such a lock.
    pub(crate) fn places(&self, lock: &[u8]) -> Vec<KeyPlace> {
        match self.enforces() {
            true => self.places_by(lock, |rule| self.mode(rule) == AdoptMode::Bridge),
            false => Vec::new(),
        }
    }

    /// Returns the keys that the data node may have for this lock because another proxy has bridged a
    /// rule that is not bridged here.
    pub(crate) fn followed_places(&self, lock: &[u8]) -> Vec<KeyPlace> {
        match self.attends() {
            true => self.places_by(lock, |rule| self.is_followed(rule)),
            false => Vec::new(),
        }
    }

    /// Whether this lock belongs to a rule that is only audited, and to none that the proxy answers.
    pub(crate) fn leaves(&self, lock: &[u8]) -> bool {
        let is_left = |rule| !self.mode(rule).is_answered();
        !self.places_by(lock, is_left).is_empty()
            && self.places_by(lock, |rule| !is_left(rule)).is_empty()
    }

    /// Whether FLUSHDB and FLUSHALL free the locks of this rule.
    pub(super) fn is_flushed(&self, rule: usize) -> bool {
        let options = self.rules.get(rule).map(|rule| rule.options);
        options.is_some_and(|options| options.flush == FlushPolicy::Free)
            && self.mode(rule).is_answered()
    }

    /// Whether FLUSHDB in this database frees this lock, whose name is as in LOCK. `None`: FLUSHALL.
    pub(crate) fn frees(&self, lock: &[u8], database: Option<u64>) -> bool {
        let places = self.places_by(lock, |rule| self.is_flushed(rule));
        // A name that begins with a database's number counts as one in that database.
        places
            .last()
            .is_some_and(|place| database.is_none_or(|database| database == place.database))
    }

    /// Returns the keys of this lock under the rules that are meant.
    fn places_by(&self, lock: &[u8], is_meant: impl Fn(usize) -> bool) -> Vec<KeyPlace> {
        let readings = [Some((0, lock)), split_database(lock)];
        let key_place = |(database, lock): (u64, &[u8])| {
            let mut meant = (0..self.rules.len()).filter(|rule| is_meant(*rule));
            meant.find_map(|rule| {
                let key = self.rules[rule].key_of(lock)?;
                (self.rule(&key) == Some(rule)).then_some(KeyPlace { database, key })
            })
        };
        readings.into_iter().flatten().filter_map(key_place).collect()
    }

    /// Whether at least one rule is bridged.
    pub(crate) fn bridges(&self) -> bool {
        (0..self.rules.len()).any(|rule| self.mode(rule) == AdoptMode::Bridge)
    }

    /// Whether the rule of this key is only audited.
    pub(crate) fn is_audited(&self, key: &[u8]) -> bool {
        self.rule(key).is_some_and(|rule| self.mode(rule) == AdoptMode::Audit)
    }

    /// Whether the rule of this key is bridged.
    pub(crate) fn is_bridged(&self, key: &[u8]) -> bool {
        self.enforces() && self.rule(key).is_some_and(|rule| self.mode(rule) == AdoptMode::Bridge)
    }
}

/// Returns the database that a lock's name begins with, unless that is 0, and the name in that
/// database.
fn split_database(lock: &[u8]) -> Option<(u64, &[u8])> {
    let colon = lock.iter().take(12).position(|byte| *byte == b':')?;
    let number = std::str::from_utf8(&lock[..colon]).ok()?;
    let is_plain = number.bytes().all(|digit| digit.is_ascii_digit());
    (is_plain && !number.starts_with('0')).then_some(())?;
    Some((number.parse().ok()?, &lock[colon + 1..]))
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
    fn flushing_frees_the_locks_of_its_database_and_of_rules_that_say_so() {
        let keys = "[{keys: 'lock:*', mode: enforce, flush: free}, {keys: 'seen:*', flush: free}, \
                    {keys: 'mutex:*', mode: bridge}]";
        let names = "{keys: 'lock:*', lock: '{1}', mode: bridge, flush: free}";
        for (rules, lock, expected) in [
            (keys, "lock:job", [true, false, true]),
            (keys, "7:lock:job", [false, true, true]),
            (keys, "mutex:a", [false; 3]),
            (keys, "seen:a", [false; 3]),
            (names, "job", [true, false, true]),
            (names, "7:job", [false, true, true]),
        ] {
            let adoption = adoption(rules);
            let frees = [Some(0), Some(7), None].map(|at| adoption.frees(lock.as_bytes(), at));
            assert_eq!(frees, expected, "{lock}");
        }
    }

    #[test]
    fn a_lock_tells_its_key_and_database_while_its_rule_is_bridged() {
        let adoption = adoption(
            "[{keys: 'lock:x*', lock: 'x{1}'}, {keys: 'lock:*:l', lock: 'a:{1}', mode: bridge}, \
             {keys: 'm:[0-9]', mode: bridge}, {keys: 'e:*', mode: enforce}, \
             {keys: '[0-9]*:mutex', mode: bridge}]",
        );
        let places = |lock: &str| {
            let places = adoption.places(lock.as_bytes()).into_iter();
            let place = |place: KeyPlace| (place.database, String::from_utf8(place.key).unwrap());
            places.map(place).collect::<Vec<_>>()
        };
        let at = |database, key: &str| (database, key.to_owned());
        assert_eq!(places("a:job"), [at(0, "lock:job:l")]);
        assert_eq!(places("7:a:job"), [at(7, "lock:job:l")]);
        assert_eq!(places("m:7"), [at(0, "m:7")]);
        assert_eq!(places("3:m:7"), [at(3, "m:7")]);
        assert_eq!(places("42:mutex"), [at(0, "42:mutex")]);
        assert_eq!(places("5:42:mutex"), [at(0, "5:42:mutex"), at(5, "42:mutex")]);
        for other in ["xy", "job", "a", "07:a:job", "0:a:job", "+7:a:job", "m:x", "e:1", "", ":"] {
            assert_eq!(places(other), [], "{other}");
        }
        assert_eq!(places("a:xy"), [], "an earlier rule has its key");
        assert!(adoption.is_bridged(b"5:mutex") && !adoption.is_bridged(b"lock:xy"));
        let mut rules = adoption.rules.clone();
        rules[1].mode = AdoptMode::Enforce;
        rules[2].mode = AdoptMode::Audit;
        adoption.step_to(&rules);
        assert_eq!((places("a:job"), places("m:7")), (vec![], vec![]));
        assert!(adoption.enforces());
    }
}
