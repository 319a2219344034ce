//! `locks.permits`: how many permits families of locks have.

use serde_yaml::Value;

use super::{
    Pattern,
    guards::tag,
    locate::PathStep,
    reader::{FromYaml, Reader, Section, Wrong},
};

/// The most permits of a family.
pub(crate) const MAX_PERMITS: usize = 256;
pub(super) const RULE_KEYS: &[&str] = &["keys", "n"];
/// Most rules, and the most bytes of a pattern: a LOCK with PERMITS compares its key with each.
const MOST: (usize, usize) = (32, 128);

/// A rule: these families have so many permits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PermitRule {
    /// `keys`: the families' names, as a client gives them to LOCK, without `locks.prefix`.
    pub keys: Pattern,
    /// `n`: the number of permits.
    pub n: usize,
}

/// Checks the number and the length of rules.
pub(super) fn few_permits(rules: &[PermitRule]) -> Option<String> {
    let (most, longest) = MOST;
    if rules.len() > most {
        return Some(format!("has more than {most} rules"));
    }
    let is_long = |rule: &PermitRule| rule.keys.as_str().len() > longest;
    if rules.iter().any(is_long) {
        return Some(format!("a pattern must have at most {longest} bytes"));
    }
    let repeated = |at: usize| rules[..at].iter().any(|before| before.keys == rules[at].keys);
    let twice = (0..rules.len()).find(|at| repeated(*at));
    twice.map(|at| format!("has '{}' twice; keep one rule", rules[at].keys.as_str()))
}

/// Reports families whose permits may be in different slots of the data node's cluster.
pub(super) fn check_slots(reader: &mut Reader<'_>, locks: &Section<'_>, rules: &[PermitRule]) {
    for rule in rules.iter().filter(|rule| tag(&rule.keys.pieces()).is_none()) {
        let keys = rule.keys.as_str();
        let what = format!(
            "of a cluster, all permits of a family must be in one slot: give '{keys}' a hash tag, as '{{{keys}}}'"
        );
        reader.problem(&locks.path("permits"), what);
    }
}

impl FromYaml for PermitRule {
    fn read(reader: &mut Reader<'_>, value: &Value, path: &[PathStep]) -> Result<Self, Wrong> {
        let Value::Mapping(_) = value else {
            return Err(Wrong::Wanted("a rule with keys and n, as {keys: \"gpu:*\", n: 8},"));
        };
        let section = reader.mapping(value, path.to_vec(), RULE_KEYS);
        let (mut keys, mut n): (Option<Pattern>, usize) = (None, 0);
        reader.read(&section, "keys", &mut keys);
        reader.read(&section, "n", &mut n);
        if section.get("keys").is_none() {
            reader.problem(&section.path("keys"), "is missing; which families have n permits?");
        }
        if section.get("n").is_none() {
            reader.problem(&section.path("n"), "is missing; how many permits have the families?");
        } else if reader.sound(&section, &["n"]) && !(1..=MAX_PERMITS).contains(&n) {
            let what = format!("must be between 1 and {MAX_PERMITS}");
            reader.problem(&section.path("n"), what);
        }
        match (keys, n) {
            (Some(keys), 1..=MAX_PERMITS) => Ok(PermitRule { keys, n }),
            _ => Err(Wrong::Told),
        }
    }
}
