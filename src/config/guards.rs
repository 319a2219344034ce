//! The `guards:` section: which writes need which lock.

use std::time::Duration;

use serde_yaml::Value;

use super::{
    DataConfig, Pattern, Template,
    check::LONGEST_STRING,
    keys::words,
    locate::{self, PathStep},
    pattern::Piece,
    reader::{Fill, FromYaml, Reader, Section, Wrong},
};

/// The keys under `guards`, if it is more than a list of rules.
pub(super) const KEYS: &[&str] =
    &["rules", "max_command", "flush", "replicas", "replica_timeout", "wait_at"];
pub(super) const RULE_KEYS: &[&str] = &["keys", "lock", "policy"];
/// The least `max_command`, in bytes. Less would refuse ordinary writes.
const LEAST_COMMAND: usize = 64 * 1024;
/// Most `replicas`. Each LOCK waits for all of them.
const MOST_REPLICAS: usize = 16;
/// Longest `replica_timeout`. The client's connection to the data node is blocked meanwhile.
const LONGEST_REPLICA_TIMEOUT: Duration = Duration::from_secs(60);
/// First bytes of Lockgate's own keys, on the lock nodes and on the data node.
const RESERVED: &str = "lockgate:";

/// The `guards:` section.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GuardsConfig {
    /// `rules`, or the whole section. A key that several rules match needs the locks of all of
    /// them.
    pub rules: Vec<GuardRule>,
    /// `max_command`: the longest command, in bytes, that the proxy holds to check it.
    pub max_command: usize,
    /// `flush`: treatment of FLUSHALL, FLUSHDB and SWAPDB.
    pub flush: Flush,
    /// `replicas`: how many replicas of the data node must acknowledge a fence before LOCK is answered. With 0
    /// none is asked.
    pub replicas: usize,
    /// `replica_timeout`: how long the replicas may take.
    pub replica_timeout: Duration,
    /// `wait_at`: what the replicas must acknowledge.
    pub wait_at: WaitAt,
}

impl Default for GuardsConfig {
    fn default() -> GuardsConfig {
        GuardsConfig {
            rules: Vec::new(),
            max_command: 128 * 1024 * 1024,
            flush: Flush::Refuse,
            replicas: 0,
            replica_timeout: Duration::from_millis(100),
            wait_at: WaitAt::Lock,
        }
    }
}

impl GuardsConfig {
    /// Whether at least one rule is enforced.
    pub(crate) fn enforces(&self) -> bool {
        self.rules.iter().any(|rule| rule.policy == Policy::Enforce)
    }

    /// Returns a line for each setting that is allowed but easily not what was meant.
    pub(super) fn notes(&self, data_is_followed: bool) -> Vec<String> {
        let enforces = self.enforces();
        match self.replicas {
            0 if enforces && data_is_followed => vec![
                "guards.replicas is 0, and data may become another Redis: one that lacks the last \
                 fence lets a late write in; set it to the number of replicas that may be promoted"
                    .into(),
            ],
            1.. if enforces => vec![format!(
                "guards.replicas is {}: it must be the number of all replicas that may be promoted, as \
                 any {} of them may be those that acknowledge; lockgate doctor counts them",
                self.replicas, self.replicas
            )],
            1.. => vec![
                "guards.replicas waits for nothing: no rule has policy: enforce, so no LOCK has a fence \
                 that replicas could acknowledge"
                    .into(),
            ],
            0 => Vec::new(),
        }
    }
}

/// A rule: writes to these keys need this lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GuardRule {
    /// `keys`: which keys on the data node.
    pub keys: Pattern,
    /// `lock`: the lock's key as a client gives it to LOCK, without `locks.prefix`.
    pub lock: Template,
    /// `policy`: whether a write without the lock passes.
    pub policy: Policy,
}

/// Treatment of a write by a client that does not hold the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Policy {
    /// Refuses the write.
    Enforce,
    /// Lets the write pass, logs and counts it.
    Audit,
}

/// Treatment of FLUSHALL, FLUSHDB and SWAPDB while there are enforced guards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flush {
    /// Refuses the commands.
    Refuse,
    /// Lets the commands pass.
    Allow,
}

/// What replicas must acknowledge before the client is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WaitAt {
    /// The fence of a guarded lock, before LOCK is answered.
    Lock,
    /// Each guarded write too, before it is answered.
    Write,
}

/// A rule and its path in the file.
#[derive(Debug)]
pub(super) struct Placed {
    rule: GuardRule,
    path: Vec<PathStep>,
}

impl Placed {
    fn path(&self, key: &str) -> Vec<PathStep> {
        let mut path = self.path.clone();
        path.push(PathStep::Key(key.to_owned()));
        path
    }
}

/// Does nothing: [`read`] reads the section, once the prefix of locks is known to be sound.
impl Fill for GuardsConfig {
    fn fill(&mut self, _: &mut Reader<'_>, _: &Section<'_>, _: &str) {}
}

/// Reads and checks the section, a list of rules or a mapping. `locks` is the section `locks`, `prefix` its
/// prefix. The guarded keys are on `data`.
pub(super) fn read(
    reader: &mut Reader<'_>,
    top: &Section<'_>,
    (locks, prefix): (&Section<'_>, &str),
    data: &DataConfig,
) -> GuardsConfig {
    let mut guards = GuardsConfig::default();
    let mut rules = Vec::<Placed>::new();
    match top.get("guards") {
        None | Some(Value::Null) => {}
        Some(value @ Value::Mapping(mapping))
            if !RULE_KEYS.iter().any(|key| mapping.contains_key(key)) =>
        {
            let section = reader.mapping(value, top.path("guards"), KEYS);
            reader.read(&section, "rules", &mut rules);
            reader.read(&section, "max_command", &mut guards.max_command);
            reader.read(&section, "flush", &mut guards.flush);
            reader.read(&section, "replicas", &mut guards.replicas);
            reader.read(&section, "replica_timeout", &mut guards.replica_timeout);
            reader.read(&section, "wait_at", &mut guards.wait_at);
            replicas(reader, &section, &guards, rules.is_empty());
            if !(LEAST_COMMAND..=LONGEST_STRING).contains(&guards.max_command) {
                reader.problem(&section.path("max_command"), "must be from 64kb to 512mb");
            }
        }
        // As everywhere, a list of one may be written as its element.
        Some(_) => reader.read(top, "guards", &mut rules),
    }
    for (index, rule) in rules.iter().enumerate() {
        check(reader, rule, &rules[..index]);
        if data.cluster().is_some() {
            check_slots(reader, rule);
        }
    }
    own_keys(reader, &rules, reader.sound(locks, &["prefix"]).then_some(prefix));
    guards.rules = rules.into_iter().map(|placed| placed.rule).collect();
    guards
}

/// Reports what is wrong with the keys about replicas.
fn replicas(
    reader: &mut Reader<'_>,
    section: &Section<'_>,
    guards: &GuardsConfig,
    is_without_rules: bool,
) {
    if guards.replicas > MOST_REPLICAS {
        reader.problem(&section.path("replicas"), "must be from 0 to 16");
    }
    let longest = LONGEST_REPLICA_TIMEOUT;
    if !(Duration::from_millis(1)..=longest).contains(&guards.replica_timeout) {
        reader.problem(&section.path("replica_timeout"), "must be from 1ms to 1m");
    }
    if guards.replicas > 0 && is_without_rules && reader.sound(section, &["rules"]) {
        let what = "there are no guards.rules: no LOCK has a fence that replicas could acknowledge";
        reader.problem(&section.path("replicas"), what);
    }
    if guards.replicas == 0
        && guards.wait_at == WaitAt::Write
        && reader.sound(section, &["replicas"])
    {
        let what = "waits for no replica while guards.replicas is 0; how many are there?";
        reader.problem(&section.path("wait_at"), what);
    }
}

/// Reports what is wrong with a rule by itself and against the rules before it.
fn check(reader: &mut Reader<'_>, placed: &Placed, before: &[Placed]) {
    let Placed { rule: GuardRule { keys, lock, .. }, .. } = placed;
    if lock.largest() > keys.stars() {
        let what = match keys.stars() {
            0 => format!("there is no {{{}}}: keys has no '*' to take it from", lock.largest()),
            1 => format!("there is no {{{}}}: keys has one '*'", lock.largest()),
            stars => format!("there is no {{{}}}: keys has {stars} '*'", lock.largest()),
        };
        reader.problem(&placed.path("lock"), what);
    }
    if let Some(same) = before.iter().find(|before| before.rule.keys == *keys) {
        let what = format!("is there twice, as in {}; keep one rule", locate::name(&same.path));
        reader.problem(&placed.path("keys"), what);
    }
    if !keys.overlaps(&Pattern::new("*")) {
        reader.problem(&placed.path("keys"), "no key matches it: it has a class without bytes, []");
    }
}

/// Reports an enforced rule whose keys and lock may be in different slots of a cluster: no node could then
/// check the fence together with the write.
fn check_slots(reader: &mut Reader<'_>, placed: &Placed) {
    let GuardRule { keys, lock, policy } = &placed.rule;
    let (key_pieces, lock_pieces) = (keys.pieces(), lock.pieces());
    // A template has no `Piece::Any`, so equal pieces are equal texts.
    let is_key = key_pieces == lock_pieces;
    let has_same_tag = tag(&key_pieces).is_some() && tag(&key_pieces) == tag(&lock_pieces);
    if *policy == Policy::Enforce && !(is_key || has_same_tag) {
        let what = "of a cluster, a lock must be in the slot of each key that it guards: name it as the \
                    key itself is named (keys: 'account:*', lock: 'account:{1}'), or give both the \
                    same hash tag (keys: 'account:{*}:*', lock: 'account:{{1}}')";
        reader.problem(&placed.path("lock"), what);
    }
}

/// Returns the pieces of the hash tag that all texts made of `pieces` have. `None` if their hash tags may be
/// other bytes.
pub(super) fn tag(pieces: &[Piece]) -> Option<&[Piece]> {
    let is_byte = |piece: &Piece| matches!(piece, Piece::Byte(_));
    let from = pieces.iter().position(|piece| *piece == Piece::Byte(b'{'))? + 1;
    let length = pieces[from..].iter().position(|piece| *piece == Piece::Byte(b'}'))?;
    // A star before the braces could contain braces of its own, and empty braces are no tag.
    let is_certain = pieces[..from].iter().all(is_byte) && length > 0;
    is_certain.then(|| &pieces[from..from + length])
}

/// Reports rules that match Lockgate's own keys: neither a lock's key nor the fences on the data node may
/// need a lock. `prefix` is `locks.prefix`, if it is sound.
fn own_keys(reader: &mut Reader<'_>, rules: &[Placed], prefix: Option<&str>) {
    let locks: Vec<_> = rules
        .iter()
        .filter_map(|placed| Some((placed, placed.rule.lock.behind(prefix?))))
        .collect();
    for (placed, lock) in &locks {
        // Only a literal beginning is refused. If a capture makes the beginning, only the keys whose lock
        // would begin so cannot be written.
        if lock.begins_with(RESERVED) {
            let what = "LOCK refuses keys that begin with 'lockgate:', so nobody could hold it";
            reader.problem(&placed.path("lock"), what);
        }
    }
    let reserved = Pattern::new(&format!("{RESERVED}*"));
    for placed in rules {
        let keys = &placed.rule.keys;
        if let Some((of, lock)) = locks.iter().find(|(_, lock)| keys.overlaps(lock)) {
            let what = format!(
                "also matches keys of locks themselves, '{}' (locks.prefix and {}), and to take a \
                 lock must need none; narrow it, or choose another lock or locks.prefix",
                lock.as_str(),
                locate::name(&of.path("lock")),
            );
            reader.problem(&placed.path("keys"), what);
        }
        if keys.overlaps(&reserved) {
            let what = "also matches Lockgate's own keys, 'lockgate:*'; narrow it, as by '[^l]*' for a \
                        star at the beginning, which leaves out keys that begin with l";
            reader.problem(&placed.path("keys"), what);
        }
    }
}

impl FromYaml for Placed {
    fn read(reader: &mut Reader<'_>, value: &Value, path: &[PathStep]) -> Result<Placed, Wrong> {
        let Value::Mapping(_) = value else {
            return Err(Wrong::Wanted("a rule with keys and lock"));
        };
        let section = reader.mapping(value, path.to_vec(), RULE_KEYS);
        let (mut keys, mut lock) = (None, None);
        let mut policy = Policy::Enforce;
        reader.read(&section, "keys", &mut keys);
        reader.read(&section, "lock", &mut lock);
        reader.read(&section, "policy", &mut policy);
        if section.get("keys").is_none() {
            reader.problem(&section.path("keys"), "is missing; which keys need the lock?");
        }
        if section.get("lock").is_none() {
            reader.problem(&section.path("lock"), "is missing; which lock do its keys need?");
        }
        match (keys, lock) {
            (Some(keys), Some(lock)) => {
                Ok(Placed { rule: GuardRule { keys, lock, policy }, path: path.to_vec() })
            }
            _ => Err(Wrong::Told),
        }
    }
}

impl FromYaml for Option<Pattern> {
    fn read(_: &mut Reader<'_>, value: &Value, _: &[PathStep]) -> Result<Self, Wrong> {
        match value.as_str().ok_or(Wrong::Wanted("a pattern of keys, as \"account:*\","))? {
            "" => Err(Wrong::Because("is empty; it must match keys, as \"account:*\"".into())),
            text => Ok(Some(Pattern::new(text))),
        }
    }
}

impl FromYaml for Option<Template> {
    fn read(_: &mut Reader<'_>, value: &Value, _: &[PathStep]) -> Result<Self, Wrong> {
        match value.as_str().ok_or(Wrong::Wanted("the key of a lock, as \"account:{1}\","))? {
            "" => Err(Wrong::Because("is empty; it must name a lock, as \"account:{1}\"".into())),
            text => Template::new(text).map(Some).map_err(Wrong::Because),
        }
    }
}

words! {
    Policy: "enforce or audit",
    "enforce" => Policy::Enforce,
    "audit" => Policy::Audit,
}

words! {
    Flush: "refuse or allow",
    "refuse" => Flush::Refuse,
    "allow" => Flush::Allow,
}

words! {
    WaitAt: "lock or write",
    "lock" => WaitAt::Lock,
    "write" => WaitAt::Write,
}
