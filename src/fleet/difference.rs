//! What two proxies have differently.

use super::record::{ALL_ADOPTED, ALL_GUARDS, GuardRecord, MAX_TTL, NEXT_NODES, NONE, ProxyRecord};
use crate::config::AdoptMode;

/// The kind of a difference between two proxies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum DifferenceKind {
    /// A guard, or a setting of all guards.
    Guards,
    /// An adopt rule, except its mode.
    Adopt,
    /// `locks.max_ttl`.
    MaxTtl,
    /// Another setting of `locks`.
    Locks,
    /// Whether there is a `locks.next_nodes`.
    NextNodes,
    /// The version, or the features that it lists.
    Version,
}

impl DifferenceKind {
    /// All kinds, in the order in which operators are told of them.
    pub(crate) const ALL: [DifferenceKind; 6] = [
        DifferenceKind::Guards,
        DifferenceKind::Adopt,
        DifferenceKind::MaxTtl,
        DifferenceKind::Locks,
        DifferenceKind::NextNodes,
        DifferenceKind::Version,
    ];

    /// Returns the kind as a metric label.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            DifferenceKind::Guards => "guards",
            DifferenceKind::Adopt => "adopt",
            DifferenceKind::MaxTtl => "max_ttl",
            DifferenceKind::Locks => "locks",
            DifferenceKind::NextNodes => "next_nodes",
            DifferenceKind::Version => "version",
        }
    }

    /// Returns what the difference leads to, for operators.
    pub(crate) fn meaning(self) -> &'static str {
        match self {
            DifferenceKind::Guards => {
                "one proxy lets through what another refuses, so that keys are written without their lock"
            }
            DifferenceKind::Adopt => {
                "what one proxy takes for a lock, another forwards or takes for another lock"
            }
            DifferenceKind::MaxTtl => {
                "all of them wait for the longest where a lock node has forgotten"
            }
            DifferenceKind::Locks => {
                "promises that hold through one proxy need not hold through another"
            }
            DifferenceKind::NextNodes => {
                "a change of the lock nodes that not all files have: once it is made, a proxy without the list grants \
                 nothing until SIGHUP"
            }
            DifferenceKind::Version => "an upgrade that is not finished",
        }
    }

    fn of_setting(name: &str) -> DifferenceKind {
        match name.split('.').next() {
            Some("guards") => DifferenceKind::Guards,
            Some("adopt") => DifferenceKind::Adopt,
            Some("version" | "knows") => DifferenceKind::Version,
            _ if name == MAX_TTL => DifferenceKind::MaxTtl,
            _ if name == NEXT_NODES => DifferenceKind::NextNodes,
            _ => DifferenceKind::Locks,
        }
    }
}

/// Something that two proxies have differently.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FleetDifference {
    /// Its kind.
    pub(crate) kind: DifferenceKind,
    /// What differs: a setting, a guard, an adopt rule.
    pub(crate) what: String,
    /// The first proxy's value.
    pub(crate) here: String,
    /// The other proxy's value.
    pub(crate) there: String,
    /// The other proxy's id.
    pub(crate) id: String,
    /// The other proxy's name.
    pub(crate) name: String,
}

/// An adopt rule whose modes in two proxies are two steps apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ModeConflict {
    /// The rule's `keys`.
    pub(crate) keys: String,
    /// Its mode in the first proxy.
    pub(crate) here: AdoptMode,
    /// Its mode in the other one.
    pub(crate) there: AdoptMode,
    /// The other proxy's id.
    pub(crate) id: String,
    /// The other proxy's name.
    pub(crate) name: String,
}

impl ProxyRecord {
    /// Whether these are two different proxies that both serve clients.
    fn serves_beside(&self, other: &ProxyRecord) -> bool {
        self.id != other.id && !self.has_ended && !other.has_ended
    }

    /// Returns everything that the two proxies have differently, except modes of adopt rules. Guards and adopt rules
    /// are compared only where both proxies have the same data node.
    pub(crate) fn differences(&self, other: &ProxyRecord) -> Vec<FleetDifference> {
        if !self.serves_beside(other) {
            return Vec::new();
        }
        let has_same_data = self.has_data_of(other);
        let are_whole = self.is_whole && other.is_whole;
        let is_compared = |name: &str| match name {
            // Whole records are compared rule by rule instead.
            ALL_GUARDS | ALL_ADOPTED => has_same_data && !are_whole,
            _ => has_same_data || !name.starts_with("guards."),
        };
        let mut found = Vec::new();
        for (name, here) in self.settings.iter().filter(|(name, _)| is_compared(name)) {
            // The other proxy's version may not know the setting: then it cannot be compared.
            if let Some(there) = other.setting(name)
                && here != there
                && (name != NEXT_NODES || [&**here, there].contains(&NONE))
            {
                let kind = DifferenceKind::of_setting(name);
                found.push(self.difference(other, kind, name.clone(), here, there));
            }
        }
        if has_same_data {
            self.compare_guards(other, &mut found);
            self.compare_adopted(other, &mut found);
        }
        found.sort_by(|one, other| (one.kind, &one.what).cmp(&(other.kind, &other.what)));
        found
    }

    fn difference(
        &self,
        other: &ProxyRecord,
        kind: DifferenceKind,
        what: String,
        here: &str,
        there: &str,
    ) -> FleetDifference {
        let (here, there) = (here.to_owned(), there.to_owned());
        let (id, name) = (other.id.clone(), other.name.clone());
        FleetDifference { kind, what, here, there, id, name }
    }

    fn compare_guards(&self, other: &ProxyRecord, found: &mut Vec<FleetDifference>) {
        let new = other.guards.iter().filter(|theirs| !self.guards.contains(theirs));
        let all = self.guards.iter().filter(|ours| !other.guards.contains(ours)).chain(new);
        let mut told: Vec<&str> = Vec::new();
        for GuardRecord { keys, .. } in all {
            if told.contains(&&**keys) {
                continue;
            }
            told.push(keys);
            let (here, there) = (self.guard_on(keys), other.guard_on(keys));
            // A record that is not whole may lack the guard.
            if here == NONE && !self.is_whole || there == NONE && !other.is_whole {
                continue;
            }
            let what = format!("the guard on '{keys}'");
            let there = match here == there {
                true => format!("{there} of another lock"),
                false => there,
            };
            found.push(self.difference(other, DifferenceKind::Guards, what, &here, &there));
        }
    }

    /// Returns the policies of the guards on these keys, in words.
    fn guard_on(&self, keys: &str) -> String {
        let guards = self.guards.iter().filter(|guard| guard.keys == keys);
        let policy = |guard: &GuardRecord| if guard.is_enforced { "enforce" } else { "audit" };
        let policies: Vec<&str> = guards.map(policy).collect();
        if policies.is_empty() { NONE.to_owned() } else { policies.join(" and ") }
    }

    fn compare_adopted(&self, other: &ProxyRecord, found: &mut Vec<FleetDifference>) {
        let missing = other.adopted.iter().filter(|rule| self.adopt_rule(&rule.keys).is_none());
        let is_same_version = self.setting("version") == other.setting("version");
        for rule in self.adopted.iter().chain(missing) {
            let what = format!("the adopt rule on '{}'", rule.keys);
            let kind = DifferenceKind::Adopt;
            match (self.adopt_rule(&rule.keys), other.adopt_rule(&rule.keys)) {
                // The digest depends on which options a version has.
                (Some(ours), Some(theirs)) if ours.digest != theirs.digest && is_same_version => {
                    let (here, there) = ("so", "with another lock or other options");
                    found.push(self.difference(other, kind, what, here, there));
                }
                (Some(ours), None) if other.is_whole => {
                    found.push(self.difference(other, kind, what, ours.mode.as_str(), NONE));
                }
                (None, Some(theirs)) if self.is_whole => {
                    found.push(self.difference(other, kind, what, NONE, theirs.mode.as_str()));
                }
                _ => {}
            }
        }
    }

    /// Returns the rules whose modes in the two proxies are two steps apart. A rule is identified by its `keys`.
    pub(crate) fn conflicts(&self, other: &ProxyRecord) -> Vec<ModeConflict> {
        if !self.serves_beside(other) || !self.has_data_of(other) {
            return Vec::new();
        }
        let missing = other.adopted.iter().filter(|rule| self.adopt_rule(&rule.keys).is_none());
        let all = self.adopted.iter().chain(missing).map(|rule| &rule.keys);
        all.filter_map(|keys| {
            let (here, there) = (self.mode_on(keys)?, other.mode_on(keys)?);
            let (keys, id, name) = (keys.clone(), other.id.clone(), other.name.clone());
            (!here.is_near(there)).then_some(ModeConflict { keys, here, there, id, name })
        })
        .collect()
    }

    /// Whether the other proxy must know of this one before this one grants anything. It must if this one's grants
    /// last longer than its own: it would wait too short a time. It must also if both have the same data node, and
    /// one bridges an adopt rule that the other is not known to bridge: one of them would take the lock on a side on
    /// which the other does not look.
    pub(crate) fn must_be_known_to(&self, other: &ProxyRecord) -> bool {
        if !self.serves_beside(other) {
            return false;
        }
        let are_apart = |keys: &String| {
            let (here, there) = (self.mode_on(keys), other.mode_on(keys));
            here != there && [here, there].contains(&Some(AdoptMode::Bridge))
        };
        let keys = self.adopted.iter().chain(&other.adopted).map(|rule| &rule.keys);
        other.longest < self.longest || self.has_data_of(other) && keys.into_iter().any(are_apart)
    }

    /// Whether the other proxy has the same data node and bridges the adopt rule on these keys.
    pub(crate) fn bridges(&self, keys: &str, other: &ProxyRecord) -> bool {
        self.has_data_of(other) && other.mode_on(keys) == Some(AdoptMode::Bridge)
    }
}

impl FleetDifference {
    /// Returns the difference as a sentence. `here` is what the first proxy is called.
    pub(crate) fn sentence(&self, here: &str) -> String {
        let FleetDifference { kind, what, here: one, there, name, .. } = self;
        format!("{what} is {one} in {here} and {there} in {name}: {}", kind.meaning())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use AdoptMode::{Audit, Bridge, Enforce};

    fn proxy(id: &str, text: &str) -> ProxyRecord {
        let config = Config::parse(text, "f", &|_| None).unwrap();
        ProxyRecord::new(id, &format!("web {id}"), &config, config.locks.max_ttl)
    }

    /// What differs, and how both have it.
    fn found(ours: &str, theirs: &str) -> Vec<(DifferenceKind, String, String, String)> {
        let found = proxy("a", ours).differences(&proxy("b", theirs));
        found.into_iter().map(|it| (it.kind, it.what, it.here, it.there)).collect()
    }

    #[test]
    fn each_thing_that_a_fleet_must_agree_upon_is_named_where_it_differs() {
        use DifferenceKind::{Adopt, Guards, Locks, MaxTtl, NextNodes};
        let guard = "guards: [{keys: 'a:*', lock: 'a:{1}'}]";
        let adopt = "adopt: [{keys: 'l:*', mode: bridge}]";
        for (ours, theirs, kind, what, here, there) in [
            ("locks: {max_ttl: 20s}", "locks: {max_ttl: 30s}", MaxTtl, MAX_TTL, "20s", "30s"),
            ("", "locks: {quarantine: no}", Locks, "locks.quarantine", "yes", "no"),
            ("", "locks: {prefix: 'l:'}", Locks, "locks.prefix", "'lock:'", "'l:'"),
            ("", "locks: {drift_factor: 0}", Locks, "locks.drift_factor", "0.01", "0"),
            (
                "locks: {permits: {keys: 'g:*', n: 3}}",
                "locks: {permits: {keys: 'g:*', n: 4}}",
                Locks,
                "locks.permits",
                "'g:*' 3",
                "'g:*' 4",
            ),
            ("", guard, Guards, "the guard on 'a:*'", NONE, "enforce"),
            (
                "locks: {next_nodes: ['redis://a:1']}",
                "",
                NextNodes,
                "locks.next_nodes",
                "a list of 1",
                NONE,
            ),
            (guard, "", Guards, "the guard on 'a:*'", "enforce", NONE),
            (
                guard,
                "guards: [{keys: 'a:*', lock: 'a:{1}', policy: audit}]",
                Guards,
                "the guard on 'a:*'",
                "enforce",
                "audit",
            ),
            (
                guard,
                "guards: [{keys: 'a:*', lock: 'b:{1}'}]",
                Guards,
                "the guard on 'a:*'",
                "enforce",
                "enforce of another lock",
            ),
            (
                "guards: {rules: [{keys: g, lock: g}], replicas: 1}",
                "guards: {rules: [{keys: g, lock: g}], replicas: 1, wait_at: write}",
                Guards,
                "guards.wait_at",
                "lock",
                "write",
            ),
            ("", "guards: {flush: allow}", Guards, "guards.flush", "refuse", "allow"),
            ("", adopt, Adopt, "the adopt rule on 'l:*'", NONE, "bridge"),
            (
                adopt,
                "adopt: [{keys: 'l:*', mode: bridge, blind: refuse}]",
                Adopt,
                "the adopt rule on 'l:*'",
                "so",
                "with another lock or other options",
            ),
        ] {
            let expected = vec![(kind, what.to_owned(), here.to_owned(), there.to_owned())];
            assert_eq!(found(ours, theirs), expected, "{ours} {theirs}");
        }
        assert_eq!(found(guard, guard), []);
        // Modes one step apart are a change under way.
        assert_eq!(found(adopt, "adopt: [{keys: 'l:*', mode: enforce}]"), []);
        // The order of guards does not matter.
        let two = |one: &str, other: &str| {
            format!("guards: [{{keys: {one}, lock: x}}, {{keys: {other}, lock: x}}]")
        };
        assert_eq!(found(&two("a", "b"), &two("b", "a")), []);
        assert_eq!(proxy("a", guard).differences(&proxy("a", "")), [], "itself");
    }

    #[test]
    fn guards_that_found_no_room_in_the_record_are_compared_all_the_same() {
        let long = "x".repeat(60);
        let rules = |lock: &str| {
            let rule = |n: usize| format!("{{keys: 'k:{n:03}:{long}:*', lock: {lock}}}");
            (0..200).map(rule).collect::<Vec<_>>().join(", ")
        };
        let text = |lock: &str| format!("guards: [{}]", rules(lock));
        assert!(!proxy("a", &text("a")).is_whole);
        assert_eq!(found(&text("a"), &text("a")), []);
        let last = text("a").replace("lock: a}]", "lock: b}]");
        let found = found(&text("a"), &last);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].1, ALL_GUARDS);
    }

    #[test]
    fn what_a_newer_version_tells_besides_is_no_difference() {
        let (ours, mut theirs) = (proxy("a", ""), proxy("b", ""));
        theirs.settings.push(("locks.new".to_owned(), "7".to_owned()));
        assert_eq!((ours.differences(&theirs), theirs.differences(&ours)), (vec![], vec![]));
        theirs.settings[0].1 = "9.9.9".to_owned();
        assert_eq!(ours.differences(&theirs)[0].kind, DifferenceKind::Version);
    }

    #[test]
    fn guards_and_rules_are_compared_before_one_data_node() {
        let with = |record: &ProxyRecord, id: &str, data: &str| ProxyRecord {
            replication_id: id.into(),
            data: data.into(),
            ..record.clone()
        };
        let ours = proxy("a", "adopt: [{keys: 'l:*', mode: enforce}]\nguards: {keys: g, lock: g}");
        let theirs = proxy("b", "adopt: [{keys: 'l:*', mode: audit}]");
        for (one, another, are_compared) in [
            (("x", "a:1"), ("x", "b:1"), true),
            (("x", "a:1"), ("y", "a:1"), false),
            (("", "a:1"), ("y", "a:1"), true),
            (("", "a:1"), ("y", "b:1"), false),
        ] {
            let (one, another) = (with(&ours, one.0, one.1), with(&theirs, another.0, another.1));
            assert_eq!(one.conflicts(&another).len(), usize::from(are_compared));
            assert_eq!(one.differences(&another).len(), usize::from(are_compared));
        }
        assert_eq!(ours.conflicts(&proxy("a", "")), [], "itself");
    }

    #[test]
    fn of_a_proxy_that_has_ended_only_what_it_granted_counts() {
        let ours = proxy("a", "adopt: [{keys: 'l:*', mode: audit}]");
        let theirs = proxy("b", "adopt: [{keys: 'l:*', mode: bridge}]\nlocks: {max_ttl: 20s}");
        let ended = ProxyRecord { has_ended: true, ..theirs.clone() };
        assert_eq!((ours.differences(&theirs).len(), ours.must_be_known_to(&theirs)), (1, true));
        assert_eq!((ours.differences(&ended).len(), ours.must_be_known_to(&ended)), (0, false));
        assert!(ended.differences(&ours).is_empty(), "nor does it name others");
        assert!(ours.bridges("l:*", &ended), "its locks are on both sides still");
        let enforced = proxy("b", "adopt: [{keys: 'l:*', mode: enforce}]");
        let ended = ProxyRecord { has_ended: true, ..enforced.clone() };
        assert_eq!((ours.conflicts(&enforced).len(), ours.conflicts(&ended).len()), (1, 0));
    }

    #[test]
    fn only_two_steps_are_a_conflict() {
        let rules = |rules: &[(&str, AdoptMode)]| {
            let rule = |(keys, mode): &(&str, AdoptMode)| {
                format!("{{keys: '{keys}', mode: {}}}", mode.as_str())
            };
            format!("adopt: [{}]", rules.iter().map(rule).collect::<Vec<_>>().join(", "))
        };
        let found = |ours: &[(&str, AdoptMode)], theirs: &[(&str, AdoptMode)]| {
            let (ours, theirs) = (proxy("a", &rules(ours)), proxy("b", &rules(theirs)));
            let conflicts = ours.conflicts(&theirs).into_iter();
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
        // A proxy without such a rule forwards everything.
        assert_eq!(found(&[("lock:*", Enforce)], &[]), conflict(Enforce, Audit));
        assert_eq!(found(&[], &[("lock:*", Enforce)]), conflict(Audit, Enforce));
        assert_eq!(found(&[], &[("lock:*", Bridge)]), []);
        // Rules whose `keys` differ are not compared.
        assert_eq!(found(&[("lock:*", Enforce)], &[("lock:b*", Audit)]), []);
    }

    #[test]
    fn others_must_know_of_longer_grants_and_of_another_side() {
        let audit = "adopt: [{keys: 'l:*', mode: audit}]";
        let bridge = "adopt: [{keys: 'l:*', mode: bridge}]";
        let enforce = "adopt: [{keys: 'l:*', mode: enforce}]";
        let (short, long) = ("locks: {max_ttl: 20s}", "locks: {max_ttl: 30s}");
        for (ours, theirs, must) in [
            ("", "", false),
            (long, short, true),
            (short, long, false),
            (bridge, bridge, false),
            (bridge, audit, true),
            (audit, bridge, true),
            (enforce, bridge, true),
            (enforce, enforce, false),
        ] {
            let is_to = proxy("a", ours).must_be_known_to(&proxy("b", theirs));
            assert_eq!(is_to, must, "{ours} {theirs}");
        }
    }
}
