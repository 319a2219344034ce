//! The modes of all proxies that share the lock nodes, and rules whose modes are two steps apart.
//!
//! Where one proxy has a rule in audit and another in enforce, a lock may be granted twice: the
//! clients of the first see the data node's key alone, those of the other the lock nodes alone. So
//! each proxy writes a record of its modes on the lock nodes, and reads those of the others. A proxy
//! without the rule counts as one that audits: it forwards what its clients send.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use metrics::{Gauge, describe_gauge, gauge};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use tokio::sync::Notify;
use tracing::{info, warn};

use crate::{
    config::{AdoptMode, AdoptRule, Pattern},
    sync::Mutex,
};

/// The key of the records on each lock node.
pub(crate) const MODES: &[u8] = b"lockgate:modes";
/// Most records on a lock node: the newest are kept.
pub(crate) const MOST_RECORDS: usize = 128;
/// Most bytes of a record. Rules that find no room are left out, and the record says so.
const MAX_RECORD: usize = 2048;
/// Most other proxies that are remembered.
const MOST_OTHERS: usize = 512;
/// Most lines in the log at once, of conflicts that begin and of those that end. All are counted.
const MOST_LINES: usize = 16;
/// How long another proxy is remembered that is not seen any more: two looks, and more.
const REMEMBERED: Duration = Duration::from_secs(25);
/// Characters that stand in a record as they are.
const PLAIN: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b':').remove(b'-').remove(b'_').remove(b'.').remove(b'*');

/// The modes of one proxy's rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ProxyModes {
    /// A number of the process, in hexadecimal.
    pub(crate) id: String,
    /// A number that grows with each record of the process.
    pub(crate) sequence: u64,
    /// Where the proxy is, for operators.
    pub(crate) name: String,
    /// The replication id of its data node; empty: that is not known.
    pub(crate) replication_id: String,
    /// The address of its data node.
    pub(crate) data: String,
    /// The `keys` of each rule, and its mode.
    pub(crate) rules: Vec<(String, AdoptMode)>,
    /// Whether all of its rules are here.
    pub(crate) is_whole: bool,
}

/// A rule whose modes in two proxies are two steps apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ModeConflict {
    /// The rule's `keys`.
    pub(crate) keys: String,
    /// The mode in the first proxy.
    pub(crate) here: AdoptMode,
    /// The mode in the other one.
    pub(crate) there: AdoptMode,
    /// The other proxy's id.
    pub(crate) id: String,
    /// The other proxy's name.
    pub(crate) name: String,
}

impl ProxyModes {
    /// The modes of these rules, as far as a record has room for them.
    pub(crate) fn new(id: &str, name: &str, data: &str, rules: &[AdoptRule]) -> ProxyModes {
        let mut modes = ProxyModes {
            id: id.to_owned(),
            sequence: 0,
            name: name.to_owned(),
            replication_id: String::new(),
            data: data.to_owned(),
            rules: Vec::new(),
            is_whole: true,
        };
        for rule in rules {
            modes.rules.push((rule.keys.as_str().to_owned(), rule.mode));
        }
        // Room for a number and a replication id that are not known yet.
        while modes.record().len() > MAX_RECORD - 64 && modes.rules.pop().is_some() {
            modes.is_whole = false;
        }
        modes
    }

    /// The record as it is written, without its id.
    pub(crate) fn record(&self) -> String {
        let word = |text: &str| utf8_percent_encode(text, PLAIN).to_string();
        let mut words = vec![
            self.sequence.to_string(),
            if self.is_whole { "all" } else { "some" }.to_owned(),
            word(&self.replication_id),
            word(&self.data),
            word(&self.name),
        ];
        words.extend(
            self.rules.iter().map(|(keys, mode)| format!("{}={}", mode.as_str(), word(keys))),
        );
        words.join(" ")
    }

    /// Reads the records of a lock node: in each line a time, an id and a record. What is none is
    /// left out.
    pub(crate) fn read_all(text: &str) -> Vec<ProxyModes> {
        text.lines().take(MOST_RECORDS).filter_map(ProxyModes::read).collect()
    }

    fn read(line: &str) -> Option<ProxyModes> {
        if line.len() > 2 * MAX_RECORD {
            return None;
        }
        let word = |text: &str| {
            let text = percent_decode_str(text).decode_utf8().ok()?;
            (!text.contains(char::is_control)).then(|| text.into_owned())
        };
        let mut words = line.split(' ').skip(1);
        let id = word(words.next()?)?;
        let sequence = words.next()?.parse().ok()?;
        let is_whole = words.next()? == "all";
        let (replication_id, data, name) =
            (word(words.next()?)?, word(words.next()?)?, word(words.next()?)?);
        let rule = |text: &str| {
            let (mode, keys) = text.split_once('=')?;
            let modes = [AdoptMode::Audit, AdoptMode::Bridge, AdoptMode::Enforce];
            Some((word(keys)?, modes.into_iter().find(|known| known.as_str() == mode)?))
        };
        let rules = words.map(rule).collect::<Option<Vec<_>>>()?;
        Some(ProxyModes { id, sequence, name, replication_id, data, rules, is_whole })
    }

    /// The rules that are two steps away in another proxy. Rules are told apart by their `keys`.
    pub(crate) fn conflicts(&self, other: &ProxyModes) -> Vec<ModeConflict> {
        if self.id == other.id || !self.has_data_of(other) {
            return Vec::new();
        }
        let missing = other.rules.iter().filter(|(keys, _)| self.rule(keys).is_none());
        let all = self.rules.iter().chain(missing).map(|(keys, _)| keys);
        all.filter_map(|keys| {
            let (here, there) = (self.mode_on(keys)?, other.mode_on(keys)?);
            let (keys, id, name) = (keys.clone(), other.id.clone(), other.name.clone());
            (!here.is_near(there)).then_some(ModeConflict { keys, here, there, id, name })
        })
        .collect()
    }

    fn rule(&self, keys: &str) -> Option<AdoptMode> {
        self.rules.iter().find(|(known, _)| known == keys).map(|(_, mode)| *mode)
    }

    /// What becomes of these keys. Returns `None` where that is not known: other rules may be about
    /// some of them.
    fn mode_on(&self, keys: &str) -> Option<AdoptMode> {
        self.rule(keys).or_else(|| {
            let pattern = Pattern::new(keys);
            let meets = |(other, _): &(String, AdoptMode)| Pattern::new(other).overlaps(&pattern);
            (self.is_whole && !self.rules.iter().any(meets)).then_some(AdoptMode::Audit)
        })
    }

    /// Whether both have the same data node, as far as is known.
    fn has_data_of(&self, other: &ProxyModes) -> bool {
        match (&*self.replication_id, &*other.replication_id) {
            ("", _) | (_, "") => self.data == other.data,
            (one, another) => one == another,
        }
    }
}

/// What this proxy knows of the others.
pub(crate) struct Fleet {
    /// The id of this process.
    pub(crate) id: String,
    state: Mutex<FleetState>,
    /// Notified when modes of this proxy have changed.
    pub(crate) stepped: Notify,
    /// The number of conflicts.
    gauge: Gauge,
}

#[derive(Default)]
struct FleetState {
    ours: Option<ProxyModes>,
    /// By their ids, each with when it was seen last.
    others: HashMap<String, (ProxyModes, Instant)>,
    conflicts: Vec<ModeConflict>,
}

impl Fleet {
    /// Knows nobody yet. Install the recorder of metrics first.
    pub(crate) fn new() -> Fleet {
        describe_gauge!(
            "lockgate_adopt_mode_conflicts",
            "Adopt rules that another proxy has in a mode two steps away, for each such proxy."
        );
        Fleet {
            id: format!("{:016x}", rand::random::<u64>()),
            state: Mutex::default(),
            stepped: Notify::new(),
            gauge: gauge!("lockgate_adopt_mode_conflicts"),
        }
    }

    /// Whether another proxy has been seen a moment ago.
    pub(crate) fn has_others(&self) -> bool {
        !self.state.lock().others.is_empty()
    }

    /// All rules whose modes are two steps apart here and in another proxy.
    pub(crate) fn conflicts(&self) -> Vec<ModeConflict> {
        self.state.lock().conflicts.clone()
    }

    /// Notes the modes of this proxy.
    pub(crate) fn runs(&self, ours: ProxyModes, now: Instant) {
        let mut state = self.state.lock();
        state.ours = Some(ours);
        self.compare(&mut state, now);
    }

    /// Notes the records that a lock node has.
    pub(crate) fn heard(&self, records: Vec<ProxyModes>, now: Instant) {
        let mut state = self.state.lock();
        for record in records.into_iter().filter(|record| record.id != self.id) {
            let is_known = state.others.contains_key(&record.id);
            if !is_known && state.others.len() >= MOST_OTHERS {
                continue;
            }
            let (known, seen) =
                state.others.entry(record.id.clone()).or_insert_with(|| (record.clone(), now));
            *seen = now;
            // A lock node that was away has an older one.
            if record.sequence > known.sequence {
                *known = record;
            }
        }
        self.compare(&mut state, now);
    }

    /// Finds the conflicts, with a line in the log for each that is new, and for each that is over.
    fn compare(&self, state: &mut FleetState, now: Instant) {
        state.others.retain(|_, (_, seen)| now.saturating_duration_since(*seen) < REMEMBERED);
        let Some(ours) = &state.ours else { return };
        let mut found: Vec<ModeConflict> =
            state.others.values().flat_map(|(other, _)| ours.conflicts(other)).collect();
        found.sort_by(|one, other| (&one.keys, &one.name).cmp(&(&other.keys, &other.name)));
        for ModeConflict { keys, here, there, id, name } in
            found.iter().filter(|conflict| !state.conflicts.contains(conflict)).take(MOST_LINES)
        {
            let (here, there) = (here.as_str(), there.as_str());
            warn!(
                keys,
                here,
                there,
                proxy = name,
                id,
                "adopt: another proxy has this rule in a mode two steps away: a lock may be granted \
                 twice, by either"
            );
        }
        for ModeConflict { keys, name, id, .. } in
            state.conflicts.iter().filter(|conflict| !found.contains(conflict)).take(MOST_LINES)
        {
            info!(
                keys,
                proxy = name,
                id,
                "adopt: the other proxy's mode is near again, or it is not seen any more"
            );
        }
        self.gauge.set(f64::from(u32::try_from(found.len()).unwrap_or(u32::MAX)));
        state.conflicts = found;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use AdoptMode::{Audit, Bridge, Enforce};

    fn proxy(id: &str, rules: &[(&str, AdoptMode)]) -> ProxyModes {
        let rules = rules.iter().map(|(keys, mode)| ((*keys).to_owned(), *mode)).collect();
        let modes = ProxyModes::new(id, "web 1: 10.0.0.1:6380, pid 7", "10.0.0.9:6379", &[]);
        ProxyModes { rules, ..modes }
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let modes = ProxyModes {
            replication_id: "abc".into(),
            sequence: 17,
            ..proxy("a1", &[("lock: *=%\n€", Audit), ("b:*", Enforce)])
        };
        let text = format!("1234 a1 {}\n", modes.record());
        assert_eq!(ProxyModes::read_all(&text), [], "no control characters are shown to anybody");
        let modes = ProxyModes { rules: vec![("lock: *=%€".into(), Bridge)], ..modes };
        let text = format!("1234 a1 {}\n", modes.record());
        assert_eq!(ProxyModes::read_all(&text), vec![modes.clone()]);
        let text = format!("x\n\n1 b\n{text}1 c 5 all a b c what=x\n{}", "y".repeat(100_000));
        assert_eq!(ProxyModes::read_all(&text), [modes]);
    }

    #[test]
    fn a_record_has_bounded_length_and_says_what_is_missing() {
        let rule = |n: usize| format!("{{keys: 'lock:{n}:{}:*'}}", "x".repeat(60));
        let rules: Vec<String> = (0..60).map(rule).collect();
        let text = format!("adopt: [{}]", rules.join(", "));
        let config = crate::config::Config::parse(&text, "f", &|_| None).unwrap();
        let modes = ProxyModes::new("a", "n", "d", &config.adopt.rules);
        assert!(!modes.is_whole && modes.rules.len() > 20 && modes.record().len() <= MAX_RECORD);
        assert_eq!(modes.mode_on("another:*"), None, "it may be among those that are missing");
    }

    #[test]
    fn only_two_steps_are_a_conflict() {
        let found = |ours: &[(&str, AdoptMode)], theirs: &[(&str, AdoptMode)]| {
            let conflicts = proxy("a", ours).conflicts(&proxy("b", theirs)).into_iter();
            conflicts.map(|found| (found.keys, found.here, found.there)).collect::<Vec<_>>()
        };
        let conflict = |here, there| vec![("lock:*".to_owned(), here, there)];
        for (ours, theirs, expected) in [
            (Audit, Audit, vec![]),
            (Audit, Bridge, vec![]),
            (Enforce, Bridge, vec![]),
            (Enforce, Audit, conflict(Enforce, Audit)),
            (Audit, Enforce, conflict(Audit, Enforce)),
        ] {
            assert_eq!(found(&[("lock:*", ours)], &[("a:*", Audit), ("lock:*", theirs)]), expected);
        }
        // Who has no such rule forwards all of it.
        assert_eq!(found(&[("lock:*", Enforce)], &[]), conflict(Enforce, Audit));
        assert_eq!(found(&[], &[("lock:*", Enforce)]), conflict(Audit, Enforce));
        assert_eq!(found(&[], &[("lock:*", Bridge)]), []);
        // Rules that differ otherwise are not compared.
        assert_eq!(found(&[("lock:*", Enforce)], &[("lock:b*", Audit)]), []);
    }

    #[test]
    fn proxies_before_other_data_nodes_are_no_conflict() {
        let (ours, theirs) = (proxy("a", &[("l:*", Enforce)]), proxy("b", &[("l:*", Audit)]));
        let with = |modes: &ProxyModes, id: &str, data: &str| ProxyModes {
            replication_id: id.into(),
            data: data.into(),
            ..modes.clone()
        };
        for (one, another, expected) in [
            (("x", "a:1"), ("x", "b:1"), 1),
            (("x", "a:1"), ("y", "a:1"), 0),
            (("", "a:1"), ("y", "a:1"), 1),
            (("", "a:1"), ("y", "b:1"), 0),
        ] {
            let (one, another) = (with(&ours, one.0, one.1), with(&theirs, another.0, another.1));
            assert_eq!(one.conflicts(&another).len(), expected, "{one:?} {another:?}");
        }
        assert_eq!(ours.conflicts(&proxy("a", &[("l:*", Audit)])), [], "itself");
    }

    #[test]
    fn the_newest_record_counts_and_is_forgotten_in_the_end() {
        let (fleet, now) = (Fleet::new(), Instant::now());
        let at = |sequence, mode| ProxyModes { sequence, ..proxy("b", &[("l:*", mode)]) };
        fleet.runs(proxy("a", &[("l:*", Enforce)]), now);
        fleet.heard(vec![at(4, Audit)], now);
        assert_eq!(fleet.conflicts().len(), 1);
        fleet.heard(vec![at(5, Bridge)], now);
        fleet.heard(vec![at(4, Audit)], now);
        assert_eq!(fleet.conflicts(), [], "a lock node that was away has an older one");
        fleet.heard(vec![at(6, Audit)], now);
        assert_eq!(fleet.conflicts().len(), 1);
        fleet.heard(vec![], now + REMEMBERED);
        assert_eq!((fleet.conflicts(), fleet.has_others()), (vec![], false));
        let many = |n| ProxyModes { id: format!("{n}"), ..at(1, Audit) };
        fleet.heard((0..2 * MOST_OTHERS).map(many).collect(), now);
        assert_eq!(fleet.conflicts().len(), MOST_OTHERS);
    }
}
