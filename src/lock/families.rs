//! Families as operators see them: what is known of the permits of each, on one line.
//!
//! A lock whose name is like that of a permit belongs to a family only if the proxy knows that family: by a rule of
//! `locks.permits`, by clients that wait for its permits, or by a client that has asked for one. Any other lock is one
//! that happens to have such a name.

use std::{collections::HashMap, time::Duration};

use super::{
    line::family::{family_of, permit_of, shown_line},
    locks::Locks,
};
use crate::{
    config::PermitRule,
    glob::{self, Budget},
    key::Key,
};

/// Steps that comparing the families of one list with all patterns may take: about ten milliseconds, in which the
/// thread does nothing else.
const MAX_STEPS: usize = 10_000_000;

/// What decides which families are shown.
pub(crate) struct FamiliesWanted<'a> {
    /// `locks.permits`.
    pub(crate) rules: &'a [PermitRule],
    /// The length of `locks.prefix`.
    pub(crate) prefix: usize,
    /// A glob that the name of their line, `family#*`, matches; none: all families.
    pub(crate) pattern: Option<&'a [u8]>,
}

/// The permits of a family that are held through this proxy, and the clients that wait for them here.
#[derive(Debug)]
pub(crate) struct FamilyStatus {
    /// The key of the family's line, by which operators see it.
    pub(crate) line: Key,
    /// How many permits the family has.
    pub(crate) n: usize,
    /// Which of them are held.
    pub(crate) held: Vec<usize>,
    /// Time since the oldest of their grants.
    pub(crate) held_for: Option<Duration>,
    /// Time until the first of them ends unless it is renewed.
    pub(crate) remaining: Option<Duration>,
    /// Clients that wait for any permit, or for one by its name.
    pub(crate) waiters: usize,
    /// Time for which the first of them has waited.
    pub(crate) longest_wait: Duration,
}

impl FamilyStatus {
    fn new(line: Key, n: usize) -> FamilyStatus {
        let (held, held_for, remaining) = (Vec::new(), None, None);
        FamilyStatus {
            line,
            n,
            held,
            held_for,
            remaining,
            waiters: 0,
            longest_wait: Duration::ZERO,
        }
    }
}

/// Describes the families among these, which are given by their keys, by key. A name may come several times.
pub(super) fn list<'k>(
    locks: &Locks,
    names: impl Iterator<Item = &'k [u8]>,
    wanted: &FamiliesWanted<'_>,
) -> Vec<FamilyStatus> {
    let mut budget = Budget::of(MAX_STEPS);
    // With what is no family too, so that each is looked for once.
    let mut found: HashMap<&[u8], Option<FamilyStatus>> = HashMap::new();
    for name in names {
        found.entry(name).or_insert_with(|| begin(locks, name, wanted, &mut budget));
    }
    if found.values().all(Option::is_none) {
        return Vec::new();
    }
    locks.grants.holders.visit(&mut |key, shown| {
        let Some((name, at)) = permit_of(key) else { return };
        if let Some(Some(family)) = found.get_mut(name) {
            family.held.push(at);
            family.held_for = family.held_for.max(Some(shown.held_for));
            let sooner = |known: Duration| known.min(shown.remaining);
            family.remaining = Some(family.remaining.map_or(shown.remaining, sooner));
        }
    });
    for line in locks.queues.lines() {
        if let Some(Some(family)) = family_of(&line.key).and_then(|name| found.get_mut(name)) {
            family.waiters += line.waiters;
            family.longest_wait = family.longest_wait.max(line.longest);
        }
    }
    let mut all: Vec<FamilyStatus> = found.into_values().flatten().collect();
    all.sort_by(|a, b| a.line.cmp(&b.line));
    all.iter_mut().for_each(|family| family.held.sort_unstable());
    all
}

/// Returns the family with this key, if there is one that is wanted, without its locks and clients.
fn begin(
    locks: &Locks,
    key: &[u8],
    wanted: &FamiliesWanted<'_>,
    budget: &mut Budget,
) -> Option<FamilyStatus> {
    let FamiliesWanted { rules, prefix, pattern } = wanted;
    let name = key.get(*prefix..).filter(|name| !name.is_empty() && permit_of(name).is_none())?;
    let family = Key::from(key);
    // Where a pattern is too costly to compare, the locks are shown one by one.
    let rule = rules.iter().find(|rule| rule.keys.matches_within(name, budget) == Some(true));
    let n = match rule {
        Some(rule) => rule.n,
        None => locks.queues.permits_of(&family).max(locks.free_permits.n(&family))?,
    };
    let line = shown_line(&family);
    let is_wanted = pattern.is_none_or(|pattern| {
        let shown = line.get(*prefix..).unwrap_or_default();
        glob::matches_within(pattern, shown, budget) == Some(true)
    });
    is_wanted.then(|| FamilyStatus::new(line, n))
}
