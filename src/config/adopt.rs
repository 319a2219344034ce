//! The `adopt:` section: the keys on which lock idioms of existing libraries are recognised.

use std::time::Duration;

use serde_yaml::Value;

use super::{
    AdoptOptions, AdoptScript, FlushPolicy, GuardRule, NoTtlPolicy, Pattern, Template,
    adopt_scripts,
    keys::words,
    locate::{self, PathStep},
    reader::{Fill, FromYaml, Reader, Section, Wrong},
};

/// The keys of a rule.
pub(super) const RULE_KEYS: &[&str] = &[
    "keys",
    "lock",
    "mode",
    "blind",
    "unknown",
    "no_ttl",
    "long_ttl",
    "no_quorum",
    "flush",
    "scripts",
];
/// Keys and channels by which libraries wake waiters: the pattern, an example, and the library.
const SIGNALS: [(&str, &str, &str); 3] = [
    ("lock-signal:*", "lock-signal:Any name.9", "python-redis-lock"),
    ("lock.event:*", "lock.event:Any name.9", "walrus"),
    (
        "@simple-redis-mutex:locks-releases",
        "@simple-redis-mutex:locks-releases",
        "simple-redis-mutex",
    ),
];

/// A rule: which keys are locks, and what happens to idioms on them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AdoptRule {
    /// `keys`: which keys on the data node.
    pub keys: Pattern,
    /// `lock`: the lock that a key stands for, as a client names it to LOCK. None: the key itself.
    pub lock: Option<Template>,
    /// `mode`: how idioms are treated.
    pub mode: AdoptMode,
    /// Treatment of idioms that a quorum cannot carry out as they are.
    pub options: AdoptOptions,
    /// `scripts`: the deployment's own scripts.
    pub scripts: Vec<AdoptScript>,
}

/// Treatment of an idiom on an adopted key. The modes are steps: a rule moves only to a neighbouring one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum AdoptMode {
    /// The idiom is forwarded and reported to operators.
    Audit,
    /// A lock is taken on the data node, as the client would take it, and on the lock nodes.
    Bridge,
    /// The lock nodes decide, and the data node stores nothing of the lock.
    Enforce,
}

impl AdoptMode {
    /// The mode's name in the configuration.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            AdoptMode::Audit => "audit",
            AdoptMode::Bridge => "bridge",
            AdoptMode::Enforce => "enforce",
        }
    }

    /// Whether the proxy answers idioms itself.
    pub(crate) fn is_answered(self) -> bool {
        self != AdoptMode::Audit
    }

    /// Whether `other` is this mode or one step away from it.
    pub(crate) fn is_near(self, other: AdoptMode) -> bool {
        (self as u8).abs_diff(other as u8) <= 1
    }

    /// Returns the mode with this discriminant.
    pub(crate) fn of_number(number: u8) -> AdoptMode {
        match number {
            0 => AdoptMode::Audit,
            1 => AdoptMode::Bridge,
            _ => AdoptMode::Enforce,
        }
    }
}

impl AdoptRule {
    /// Returns the key from which the rule makes this lock. `None` if there is none, or if the rule's locks
    /// do not reveal their keys ([`AdoptRule::is_reversible`]).
    pub(crate) fn key_of(&self, lock: &[u8]) -> Option<Vec<u8>> {
        let Some(template) = &self.lock else {
            return self.keys.matches(lock).then(|| lock.to_vec());
        };
        let (before, behind) = template.around_one()?;
        let (key_before, key_behind) = self.keys.around_star()?;
        let taken = lock.strip_prefix(before.as_bytes())?.strip_suffix(behind.as_bytes())?;
        Some([&key_before, taken, &key_behind].concat())
    }

    /// Whether each lock that the rule makes reveals its key.
    fn is_reversible(&self) -> bool {
        self.lock.as_ref().is_none_or(|template| {
            template.around_one().is_some() && self.keys.around_star().is_some()
        })
    }

    /// Whether a key of this rule and a different key of the other rule can make the same lock.
    fn collides_with(&self, other: &AdoptRule) -> bool {
        let locks = |rule: &AdoptRule| match &rule.lock {
            Some(template) => template.as_pattern(),
            None => rule.keys.clone(),
        };
        (self.lock.is_some() || other.lock.is_some()) && locks(self).overlaps(&locks(other))
    }
}

/// The adopt rules. The first that matches a key applies.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct AdoptConfig {
    /// `adopt`, a list of rules.
    pub rules: Vec<AdoptRule>,
}

/// A rule and its path in the file.
#[derive(Debug)]
struct PlacedAdoption {
    rule: AdoptRule,
    path: Vec<PathStep>,
}

impl PlacedAdoption {
    fn path(&self, key: &str) -> Vec<PathStep> {
        let mut path = self.path.clone();
        path.push(PathStep::Key(key.to_owned()));
        path
    }
}

/// Does nothing: [`read`] reads the section, once the guards are known.
impl Fill for AdoptConfig {
    fn fill(&mut self, _: &mut Reader<'_>, _: &Section<'_>, _: &str) {}
}

/// Reads the section and checks it against the guards and `locks.max_ttl`.
pub(super) fn read(
    reader: &mut Reader<'_>,
    top: &Section<'_>,
    guards: &[GuardRule],
    max_ttl: Duration,
) -> AdoptConfig {
    let mut rules = Vec::<PlacedAdoption>::new();
    if top.get("adopt").is_some_and(|value| !value.is_null()) {
        reader.read(top, "adopt", &mut rules);
    }
    for (index, placed) in rules.iter().enumerate() {
        check(reader, placed, &rules[..index], guards);
        let is_sound = reader.sound(&top.inside("locks"), &["max_ttl"]);
        if let Some(what) = placed.rule.options.wrong_no_ttl(max_ttl).filter(|_| is_sound) {
            reader.problem(&placed.path("no_ttl"), what);
        }
    }
    AdoptConfig { rules: rules.into_iter().map(|placed| placed.rule).collect() }
}

fn check(
    reader: &mut Reader<'_>,
    placed: &PlacedAdoption,
    before: &[PlacedAdoption],
    guards: &[GuardRule],
) {
    let PlacedAdoption { rule, .. } = placed;
    let AdoptRule { keys, lock, .. } = rule;
    let at = |key: &str| placed.path(key);
    if let Some(lock) = lock
        && lock.largest() > keys.stars()
    {
        let (largest, stars) = (lock.largest(), keys.stars());
        let what = format!("there is no {{{largest}}}: keys has {stars} '*' to take it from");
        reader.problem(&at("lock"), what);
    }
    if rule.mode == AdoptMode::Bridge && !rule.is_reversible() {
        let what = "cannot be turned back into the key, as mode bridge must: use {1} once, and one '*' \
                    in keys, beside which nothing but text stands";
        reader.problem(&at("lock"), what);
    }
    if rule.options.flush == FlushPolicy::Free {
        if !rule.is_reversible() {
            let what = "cannot be turned back into the key, as flush: free must: use {1} once, and one \
                        '*' in keys, beside which nothing but text stands";
            reader.problem(&at("lock"), what);
        }
        if !guards.is_empty() {
            reader
                .problem(&at("flush"), "must be keep beside guards, which FLUSHDB would empty too");
        }
    }
    let needs_keys = |rule: &AdoptRule| match rule.options.flush {
        _ if rule.mode == AdoptMode::Bridge => Some("mode bridge"),
        FlushPolicy::Free => Some("flush: free"),
        FlushPolicy::Keep => None,
    };
    let collision = before.iter().find_map(|other| {
        let what = needs_keys(rule).or(needs_keys(&other.rule))?;
        rule.collides_with(&other.rule).then_some((other, what))
    });
    if let Some((other, what)) = collision {
        let what = format!(
            "can make the same lock as {}, so that {what} could not tell whose key it is",
            locate::name(&other.path)
        );
        reader.problem(&at("lock"), what);
    }
    if let Some(same) = before.iter().find(|before| before.rule.keys == *keys) {
        let what = format!("is there twice, as in {}; keep one rule", locate::name(&same.path));
        reader.problem(&at("keys"), what);
    }
    if !keys.overlaps(&Pattern::new("*")) {
        reader.problem(&at("keys"), "no key matches it: it has a class without bytes, []");
    }
    if let Some(guard) = guards.iter().find(|guard| guard.keys.overlaps(keys)) {
        let what = format!(
            "also matches keys that a guard is about ('{}'): a key is data under a lock, or a lock",
            guard.keys.as_str()
        );
        reader.problem(&at("keys"), what);
    }
}

impl AdoptConfig {
    /// Checks that `read` differs only in modes, each by at most one step.
    ///
    /// # Errors
    /// Why the running proxy cannot take `read` over.
    pub(crate) fn stepped_to(&self, read: &AdoptConfig) -> Result<(), &'static str> {
        let is_same = |(one, other): (&AdoptRule, &AdoptRule)| {
            *one == AdoptRule { mode: one.mode, ..other.clone() }
        };
        let mut pairs = self.rules.iter().zip(&read.rules);
        if self.rules.len() != read.rules.len() || !pairs.clone().all(is_same) {
            return Err("takes a restart where more than modes changes");
        }
        match pairs.all(|(one, other)| one.mode.is_near(other.mode)) {
            true => Ok(()),
            false => Err("goes one step at a time: audit, bridge, enforce"),
        }
    }

    /// Returns a line for each setting that is allowed but easily not what was meant.
    pub(super) fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        for (index, AdoptRule { keys, options, .. }) in self.rules.iter().enumerate() {
            if options.no_ttl == NoTtlPolicy::Session {
                notes.push(format!(
                    "adopt[{index}].no_ttl is session: a lock without a TTL ends within \
                     locks.default_ttl of its connection, also where a pool closes that as idle \
                     (docs/adoption-reference.md)"
                ));
            }
            let pattern = keys.as_str();
            // An arbitrary key: only a pattern for every key matches it.
            if keys.matches(b"\x01Any key.9") {
                notes.push(format!(
                    "adopt[{index}].keys, '{pattern}', matches every key: caches and counters \
                     would be taken for locks; narrow it to the keys of locks"
                ));
                continue;
            }
            for (signals, one, library) in SIGNALS {
                // A pattern that begins with a star overlaps nearly any other, so the example is tried instead.
                let is_met = match pattern.starts_with('*') {
                    true => keys.matches(one.as_bytes()),
                    false => keys.overlaps(&Pattern::new(signals)),
                };
                if is_met {
                    notes.push(format!(
                        "adopt[{index}].keys, '{pattern}', also matches '{signals}', with which \
                         {library} wakes those that wait; these are no locks: narrow it"
                    ));
                }
            }
        }
        notes
    }
}

impl FromYaml for PlacedAdoption {
    fn read(
        reader: &mut Reader<'_>,
        value: &Value,
        path: &[PathStep],
    ) -> Result<PlacedAdoption, Wrong> {
        let Value::Mapping(_) = value else {
            return Err(Wrong::Wanted("a rule with keys"));
        };
        let section = reader.mapping(value, path.to_vec(), RULE_KEYS);
        let (mut keys, mut lock, mut mode) = (None, None, AdoptMode::Audit);
        reader.read(&section, "keys", &mut keys);
        reader.read(&section, "lock", &mut lock);
        reader.read(&section, "mode", &mut mode);
        let options = AdoptOptions::read(reader, &section);
        let mut scripts = Vec::new();
        reader.read(&section, "scripts", &mut scripts);
        adopt_scripts::check(reader, path, &scripts);
        if section.get("keys").is_none() {
            reader.problem(&section.path("keys"), "is missing; which keys are locks?");
        }
        let Some(keys) = keys else { return Err(Wrong::Told) };
        let rule = AdoptRule { keys, lock, mode, options, scripts };
        Ok(PlacedAdoption { rule, path: path.to_vec() })
    }
}

words! {
    AdoptMode: "audit, bridge or enforce",
    "audit" => AdoptMode::Audit,
    "enforce" => AdoptMode::Enforce,
    "bridge" => AdoptMode::Bridge,
}
