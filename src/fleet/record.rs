//! What one proxy says of itself: everything that all proxies over the same lock nodes must agree
//! upon.
//!
//! A record is one line of words, percent-encoded. What a newer version adds is a setting or a word
//! that an older one skips.

use std::{collections::HashMap, fmt::Write as _, time::Duration};

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use sha1_smol::Sha1;

use crate::config::{
    AdoptMode, AdoptRule, Config, Flush, GuardRule, GuardsConfig, LockNode, LockNotify, Pattern,
    PermitRule, Policy, Template, WaitAt,
};

/// The key of the records on each lock node.
pub(crate) const RECORDS: &[u8] = b"lockgate:fleet";
/// Most records on a lock node: the newest are kept.
pub(crate) const MOST_RECORDS: usize = 128;
/// Most bytes of all records on a lock node.
pub(crate) const MOST_BYTES: usize = 256 * 1024;
/// Most bytes of a record. Rules that find no room are left out, and the record says so.
pub(super) const MAX_RECORD: usize = 4096;
/// Room for what is not known when a record is made: its number, a replication id, that its proxy has ended.
const ROOM: usize = 80;
/// Features of this version that older proxies may lack. `longest`: waits are as long as any proxy's `locks.max_ttl`.
/// `both-sides`: an adopted lock is given back on both sides if any proxy bridges its rule. `readers`: writers that wait
/// leave intents among the readers of a lock, and take a lock on which only such intents are left.
const KNOWS: &[&str] = &["longest", "both-sides", READERS];
const READERS: &str = "readers";
/// The setting on which the waits of all proxies depend.
pub(super) const MAX_TTL: &str = "locks.max_ttl";
/// The setting that shows a change of the lock nodes. Files may spell the nodes differently, so only whether there
/// are any is compared.
pub(super) const NEXT_NODES: &str = "locks.next_nodes";
/// Most bytes of the numbers of permits in a record.
const MOST_PERMITS: usize = 200;
/// The value of a setting that is not set.
pub(super) const NONE: &str = "none";
/// The setting with a digest of all guards. It is compared where a record lacks some of them.
pub(super) const ALL_GUARDS: &str = "guards";
/// The setting with a digest of all adopt rules. It is compared where a record lacks some of them.
pub(super) const ALL_ADOPTED: &str = "adopt";
/// Characters that a record has unencoded.
const PLAIN: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b':').remove(b'-').remove(b'_').remove(b'.').remove(b'*');

/// What one proxy says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ProxyRecord {
    /// A number of the process, in hexadecimal.
    pub(crate) id: String,
    /// A number that grows with each record of the process.
    pub(crate) sequence: u64,
    /// Where the proxy is, for operators.
    pub(crate) name: String,
    /// The replication id of its data node; empty if not known.
    pub(crate) replication_id: String,
    /// The address of its data node.
    pub(crate) data: String,
    /// The longest time that one of its grants lasts on the lock nodes.
    pub(crate) longest: Duration,
    /// Settings that all proxies must have alike, by name, with values as operators are told them.
    pub(crate) settings: Vec<(String, String)>,
    /// The guards.
    pub(crate) guards: Vec<GuardRecord>,
    /// The adopt rules.
    pub(crate) adopted: Vec<AdoptRecord>,
    /// Whether the record has all guards and adopt rules.
    pub(crate) is_whole: bool,
    /// Whether the process serves no client any more. What it granted may last, so its longest grant and the modes of
    /// its rules count until the record runs out. Its differences do not.
    pub(crate) has_ended: bool,
}

/// A guard as a record has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GuardRecord {
    /// Its `keys`.
    pub(crate) keys: String,
    /// Whether its `policy` is `enforce`.
    pub(crate) is_enforced: bool,
    /// A digest of its `lock`.
    pub(crate) digest: String,
}

/// An adopt rule as a record has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AdoptRecord {
    /// Its `keys`.
    pub(crate) keys: String,
    /// Its present `mode`.
    pub(crate) mode: AdoptMode,
    /// A digest of its `lock`, options and scripts, as this version knows them.
    pub(crate) digest: String,
}

impl ProxyRecord {
    /// Makes the record of a proxy with this configuration, whose longest grant lasts for `longest` on the lock
    /// nodes.
    pub(crate) fn new(id: &str, name: &str, config: &Config, longest: Duration) -> ProxyRecord {
        let mut record = ProxyRecord {
            id: id.to_owned(),
            sequence: 0,
            name: name.to_owned(),
            replication_id: String::new(),
            data: config.data.to_string(),
            longest,
            settings: settings(config),
            guards: config.guards.rules.iter().map(GuardRecord::of).collect(),
            adopted: config.adopt.rules.iter().map(AdoptRecord::of).collect(),
            is_whole: true,
            has_ended: false,
        };
        record.fit();
        record
    }

    /// Leaves out rules that do not fit: the last first, of whichever kind has more.
    fn fit(&mut self) {
        while self.line().len() > MAX_RECORD - ROOM {
            let left_out = match self.guards.len() > self.adopted.len() {
                true => self.guards.pop().is_some(),
                false => self.adopted.pop().is_some(),
            };
            if !left_out {
                return;
            }
            self.is_whole = false;
        }
    }

    /// Returns the record as it is written, without its id.
    pub(crate) fn line(&self) -> String {
        let word = |text: &str| utf8_percent_encode(text, PLAIN).to_string();
        let mut line = format!(
            "{} {} {} {} {} {}",
            self.sequence,
            if self.is_whole { "all" } else { "some" },
            self.longest.as_millis(),
            word(&self.replication_id),
            word(&self.data),
            word(&self.name),
        );
        if self.has_ended {
            line.push_str(" e=ended");
        }
        // Writing to a String cannot fail.
        for (name, value) in &self.settings {
            let _ = write!(line, " s={}={}", word(name), word(value));
        }
        for GuardRecord { keys, is_enforced, digest } in &self.guards {
            let policy = if *is_enforced { "enforce" } else { "audit" };
            let _ = write!(line, " g={policy}={digest}={}", word(keys));
        }
        for AdoptRecord { keys, mode, digest } in &self.adopted {
            let _ = write!(line, " a={}={digest}={}", mode.as_str(), word(keys));
        }
        line
    }

    /// Whether the proxy's version knows of readers of a lock.
    pub(super) fn knows_readers(&self) -> bool {
        self.setting("knows").is_some_and(|knows| knows.split(',').any(|word| word == READERS))
    }

    /// Whether the proxy serves clients and its file has no `locks.next_nodes`. False also if its version does not
    /// tell.
    pub(crate) fn lists_no_next_nodes(&self) -> bool {
        !self.has_ended && self.setting(NEXT_NODES) == Some(NONE)
    }

    /// Returns the newest record of each proxy among those of several lock nodes, ordered by the proxies' names.
    pub(crate) fn newest<'a>(
        all: impl IntoIterator<Item = &'a ProxyRecord>,
    ) -> Vec<&'a ProxyRecord> {
        let mut newest: HashMap<&str, &ProxyRecord> = HashMap::new();
        for record in all {
            let known = newest.entry(&record.id).or_insert(record);
            if record.sequence > known.sequence {
                *known = record;
            }
        }
        let mut newest: Vec<&ProxyRecord> = newest.into_values().collect();
        newest.sort_by_key(|record| &record.name);
        newest
    }

    /// Reads the records of a lock node: each line has a time, an id and a record. Lines without a record are left
    /// out.
    pub(crate) fn read_all(text: &str) -> Vec<ProxyRecord> {
        text.lines().take(MOST_RECORDS).filter_map(ProxyRecord::read).collect()
    }

    fn read(line: &str) -> Option<ProxyRecord> {
        if line.len() > 2 * MAX_RECORD {
            return None;
        }
        let mut words = line.split(' ').skip(1);
        let id = decoded(words.next()?)?;
        let sequence = words.next()?.parse().ok()?;
        let is_whole = words.next()? == "all";
        let longest = Duration::from_millis(words.next()?.parse().ok()?);
        let mut text = || decoded(words.next()?);
        let (replication_id, data, name) = (text()?, text()?, text()?);
        let (settings, guards, adopted) = (Vec::new(), Vec::new(), Vec::new());
        let mut record = ProxyRecord {
            id,
            sequence,
            name,
            replication_id,
            data,
            longest,
            settings,
            guards,
            adopted,
            is_whole,
            has_ended: false,
        };
        words.try_for_each(|word| record.take_in(word))?;
        Some(record)
    }

    /// Takes in a word of the record. Returns `None` if it is no such word.
    fn take_in(&mut self, word: &str) -> Option<()> {
        let parts: Vec<&str> = word.split('=').collect();
        match parts[..] {
            ["s", name, value] => self.settings.push((decoded(name)?, decoded(value)?)),
            ["g", policy, digest, keys] => self.guards.push(GuardRecord {
                keys: decoded(keys)?,
                is_enforced: policy == "enforce",
                digest: decoded(digest)?,
            }),
            ["a", mode, digest, keys] => {
                let modes = [AdoptMode::Audit, AdoptMode::Bridge, AdoptMode::Enforce];
                let mode = modes.into_iter().find(|known| known.as_str() == mode)?;
                let (keys, digest) = (decoded(keys)?, decoded(digest)?);
                self.adopted.push(AdoptRecord { keys, mode, digest });
            }
            ["e", "ended"] => self.has_ended = true,
            // A word of a newer version.
            [_, _, ..] => {}
            _ => return None,
        }
        Some(())
    }

    /// Returns the value of a setting.
    pub(super) fn setting(&self, name: &str) -> Option<&str> {
        self.settings.iter().find(|(known, _)| known == name).map(|(_, value)| &**value)
    }

    pub(super) fn adopt_rule(&self, keys: &str) -> Option<&AdoptRecord> {
        self.adopted.iter().find(|known| known.keys == keys)
    }

    /// Returns the mode for these keys. A proxy without a rule for them forwards what its clients send, as audit
    /// does. Returns `None` where the mode is not known: rules with other patterns, or missing in the record, may
    /// cover some of the keys.
    pub(super) fn mode_on(&self, keys: &str) -> Option<AdoptMode> {
        self.adopt_rule(keys).map(|rule| rule.mode).or_else(|| {
            let pattern = Pattern::new(keys);
            let meets = |rule: &AdoptRecord| Pattern::new(&rule.keys).overlaps(&pattern);
            (self.is_whole && !self.adopted.iter().any(meets)).then_some(AdoptMode::Audit)
        })
    }

    /// Whether both proxies have the same data node, as far as is known.
    pub(super) fn has_data_of(&self, other: &ProxyRecord) -> bool {
        match (&*self.replication_id, &*other.replication_id) {
            ("", _) | (_, "") => self.data == other.data,
            (one, another) => one == another,
        }
    }
}

impl GuardRecord {
    fn of(rule: &GuardRule) -> GuardRecord {
        GuardRecord {
            keys: rule.keys.as_str().to_owned(),
            is_enforced: rule.policy == Policy::Enforce,
            digest: digest(rule.lock.as_str()),
        }
    }
}

impl AdoptRecord {
    fn of(rule: &AdoptRule) -> AdoptRecord {
        let AdoptRule { keys, lock, mode, options, scripts } = rule;
        let lock = lock.as_ref().map(Template::as_str);
        let digest = digest(&format!("{lock:?} {options:?} {scripts:?}"));
        AdoptRecord { keys: keys.as_str().to_owned(), mode: *mode, digest }
    }
}

/// Returns the settings that all proxies must have alike.
fn settings(config: &Config) -> Vec<(String, String)> {
    let Config { locks, guards, adopt, .. } = config;
    let yes_or_no = |is: bool| if is { "yes" } else { "no" }.to_owned();
    let notify = match locks.notify {
        LockNotify::PubSub => "pubsub",
        LockNotify::Stream => "stream",
    };
    let rules: Vec<AdoptRecord> = adopt.rules.iter().map(AdoptRecord::of).collect();
    let adopted: Vec<String> =
        rules.iter().map(|rule| format!("{} {}", rule.keys, rule.digest)).collect();
    let all = [
        ("version", env!("CARGO_PKG_VERSION").to_owned()),
        ("knows", KNOWS.join(",")),
        (MAX_TTL, format!("{:?}", locks.max_ttl)),
        ("locks.prefix", format!("'{}'", locks.prefix)),
        ("locks.quarantine", yes_or_no(locks.quarantine)),
        ("locks.drift_factor", locks.drift_factor.to_string()),
        ("locks.notify", notify.to_owned()),
        (NEXT_NODES, listed(&locks.next_nodes)),
        ("locks.shared", yes_or_no(locks.shared)),
        ("locks.permits", permits(&locks.permits)),
        (
            "guards.wait_at",
            if guards.wait_at == WaitAt::Write { "write" } else { "lock" }.to_owned(),
        ),
        ("guards.flush", if guards.flush == Flush::Allow { "allow" } else { "refuse" }.to_owned()),
        ("guards.replicas", guards.replicas.to_string()),
        (ALL_GUARDS, digest(&format!("{:?}", sorted(guards)))),
        (ALL_ADOPTED, digest(&adopted.join("\n"))),
    ];
    all.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Describes the numbers of permits. Their order counts, as the first rule that matches does.
fn permits(rules: &[PermitRule]) -> String {
    let all: Vec<String> =
        rules.iter().map(|rule| format!("'{}' {}", rule.keys.as_str(), rule.n)).collect();
    match all.join(", ") {
        none if none.is_empty() => NONE.to_owned(),
        few if few.len() <= MOST_PERMITS => few,
        many => format!("{} rules, digest {}", all.len(), digest(&many)),
    }
}

/// Describes a list of lock nodes by its length.
fn listed(nodes: &[LockNode]) -> String {
    if nodes.is_empty() { NONE.to_owned() } else { format!("a list of {}", nodes.len()) }
}

/// Returns all guards in an order that does not depend on the file's: a key needs the locks of all that match.
fn sorted(guards: &GuardsConfig) -> Vec<(&str, &str, bool)> {
    let rules = guards.rules.iter();
    let mut all: Vec<_> = rules
        .map(|rule| (rule.keys.as_str(), rule.lock.as_str(), rule.policy == Policy::Enforce))
        .collect();
    all.sort_unstable();
    all
}

/// Returns a short digest of a text.
fn digest(text: &str) -> String {
    let mut digits = Sha1::from(text).digest().to_string();
    digits.truncate(12);
    digits
}

/// Decodes a word. Returns `None` if it has control characters, which operators are not shown.
fn decoded(word: &str) -> Option<String> {
    let text = percent_decode_str(word).decode_utf8().ok()?;
    (!text.contains(char::is_control)).then(|| text.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use AdoptMode::{Audit, Bridge, Enforce};

    fn config(text: &str) -> Config {
        Config::parse(text, "f", &|_| None).unwrap()
    }

    fn record(text: &str) -> ProxyRecord {
        ProxyRecord::new("a1", "web 1: 10.0.0.1:6380, pid 7", &config(text), Duration::from_secs(9))
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let text = "guards: [{keys: 'account: *=%€', lock: 'a:{1}'}, {keys: 'b:*', lock: b, policy: audit}]
adopt: [{keys: 'lock:*', lock: 'l:{1}', mode: bridge}, {keys: 'm:*', mode: enforce}]";
        let record = ProxyRecord { replication_id: "abc".into(), sequence: 17, ..record(text) };
        let ended = ProxyRecord { has_ended: true, ..record.clone() };
        assert_eq!(ProxyRecord::read_all(&format!("1234 a1 {}\n", ended.line())), [ended]);
        let line = format!("1234 a1 {}\n", record.line());
        assert_eq!(ProxyRecord::read_all(&line), std::slice::from_ref(&record));
        assert_eq!(record.guards.len(), 2);
        // Words that a newer version adds are skipped, and lines that are no record are left out.
        let newer = line.replace('\n', " z=1 s=locks.new=7\n");
        let read = ProxyRecord::read_all(&newer);
        assert_eq!(read[0].setting("locks.new"), Some("7"));
        assert_eq!((&read[0].adopted, &read[0].guards), (&record.adopted, &record.guards));
        let bad = [
            "x",
            "",
            "1 b",
            "1 c 5 all 1 a b c what",
            "1 c 5 all 1 a b c a=what=x=y",
            "1 c 5 all long a b c",
            "1 c 5 all 1 a b line%0Afeed",
            &"y".repeat(100_000),
        ];
        let text = format!("{}\n{line}{}", bad[..4].join("\n"), bad[4..].join("\n"));
        assert_eq!(ProxyRecord::read_all(&text), [record]);
    }

    #[test]
    fn a_record_has_bounded_length_and_says_that_something_is_missing() {
        let long = "x".repeat(60);
        let rules = |kind: &str, lock: &str| {
            let rule = |n: usize| format!("{{keys: '{kind}:{n}:{long}:*'{lock}}}");
            (0..60).map(rule).collect::<Vec<_>>().join(", ")
        };
        let text = format!("guards: [{}]\nadopt: [{}]", rules("g", ", lock: a"), rules("a", ""));
        let record = record(&text);
        assert!(!record.is_whole && record.line().len() <= MAX_RECORD);
        let (sequence, replication_id) = (u64::MAX, "f".repeat(40));
        let last = ProxyRecord { sequence, replication_id, has_ended: true, ..record.clone() };
        assert!(last.line().len() <= record.line().len() + ROOM, "it may be at the limit before");
        assert!(record.guards.len() > 10 && record.adopted.len() > 10, "{}", record.line());
        assert_eq!(record.mode_on("another:*"), None, "it may be among those that are missing");
        // The digest still covers what is left out.
        let other = text.replacen("lock: a}]", "lock: b}]", 1);
        assert_ne!(record.setting(ALL_GUARDS), self::record(&other).setting(ALL_GUARDS));
    }

    #[test]
    fn a_proxy_without_the_rule_audits() {
        let record =
            record("adopt: [{keys: 'lock:a*', mode: bridge}, {keys: 'm:*', mode: enforce}]");
        for (keys, mode) in [
            ("lock:a*", Some(Bridge)),
            ("m:*", Some(Enforce)),
            ("other:*", Some(Audit)),
            ("lock:*", None),
        ] {
            assert_eq!(record.mode_on(keys), mode, "{keys}");
        }
    }
}
