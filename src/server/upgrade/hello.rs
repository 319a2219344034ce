//! What two processes say to each other, and what they must have in common.

use crate::config::{AdoptMode, AdoptRule, Config};

/// First words of a process that wants to take another's place, with the version of the
/// protocol. The digests of [`Common`] follow.
pub(super) const HELLO: &str = "lockgate-upgrade 2";
/// First words of version 0.1, without digests.
pub(super) const OLD_HELLO: &str = "lockgate-upgrade 1";
/// Said by the old process to one that must not take over, with the reason.
pub(super) const REFUSED: &str = "refused";
/// Said by the new process once it can serve.
pub(super) const READY: &str = "ready";
/// Said by the old process once it accepts no more.
pub(super) const DONE: &str = "done";

/// Settings that two processes that serve at the same time must share, each as a digest: which
/// nodes have the locks, under which keys, and which keys of the data node are locks, with the modes
/// of their rules. The last is empty, and left out, where the proxy answers no idioms.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Common([String; 3]);

impl Common {
    /// Takes the settings of this configuration.
    pub(crate) fn of(config: &Config) -> Common {
        // Displayed without passwords, which may change.
        let nodes: Vec<String> = config.locks.nodes.iter().map(ToString::to_string).collect();
        let digest = |text: &str| sha1_smol::Sha1::from(text).digest().to_string();
        // The first rule that matches a key counts, so those before an answered one count too.
        let rules = &config.adopt.rules;
        let last = rules.iter().rposition(|rule| rule.mode.is_answered());
        let answered = &rules[..last.map_or(0, |last| last + 1)];
        let same: Vec<AdoptRule> = answered
            .iter()
            .map(|rule| AdoptRule { mode: AdoptMode::Audit, ..rule.clone() })
            .collect();
        let modes: String = answered.iter().map(|rule| (rule.mode as u8).to_string()).collect();
        let adopted = match answered {
            [] => String::new(),
            _ => format!("{}.{modes}", digest(&format!("{same:?}"))),
        };
        Common([digest(&nodes.join(" ")), digest(&config.locks.prefix), adopted])
    }

    /// Whether keys of the data node are locks.
    pub(super) fn enforces(&self) -> bool {
        !self.0[2].is_empty()
    }

    pub(super) fn hello(&self) -> String {
        let Common([nodes, prefix, adopted]) = self;
        format!("{HELLO} {nodes} {prefix} {adopted}").trim_end().to_owned()
    }

    /// The keys that differ in another process's first words. Returns `None` if it is no such
    /// process.
    pub(super) fn differences(&self, hello: &str) -> Option<Vec<&'static str>> {
        if hello == OLD_HELLO {
            return Some(if self.enforces() { vec!["adopt"] } else { Vec::new() });
        }
        let mut told: Vec<&str> =
            hello.strip_prefix(HELLO)?.strip_prefix(' ')?.split(' ').collect();
        if told.len() == 2 {
            told.push("");
        }
        let names = ["locks.nodes", "locks.prefix", "adopt"];
        (told.len() == names.len()).then(|| {
            let differs = |at: &usize| match at {
                2 => !may_share_keys(&self.0[2], told[2]),
                _ => self.0[*at] != told[*at],
            };
            (0..names.len()).filter(differs).map(|at| names[at]).collect()
        })
    }
}

/// Whether two processes with these rules may serve at the same time: the rules are the same, and
/// no mode of one is two steps away from the other's.
fn may_share_keys(ours: &str, theirs: &str) -> bool {
    let split = |told: &str| {
        told.split_once('.').map(|(rules, modes)| (rules.to_owned(), modes.to_owned()))
    };
    let (Some((our_rules, our_modes)), Some((rules, modes))) = (split(ours), split(theirs)) else {
        return ours == theirs;
    };
    let is_near = |(one, other): (u8, u8)| one.abs_diff(other) <= 1;
    our_rules == rules
        && our_modes.len() == modes.len()
        && our_modes.bytes().zip(modes.bytes()).all(is_near)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_must_be_the_same_is_compared() {
        let config = |nodes: &str, prefix: &str| {
            let text = format!("locks: {{nodes: [{nodes}], prefix: '{prefix}'}}");
            Common::of(&Config::parse(&text, "f", &|_| None).unwrap())
        };
        let ours = config("'redis://a:1', 'redis://b:1', 'redis://c:1'", "l:");
        let same = config("'redis://:pass@a:1', 'redis://b:1', 'redis://c:1'", "l:");
        let turned = config("'redis://b:1', 'redis://a:1', 'redis://c:1'", "m:");
        assert_eq!(ours.differences(&same.hello()), Some(vec![]), "passwords may change");
        assert_eq!(
            ours.differences(&turned.hello()),
            Some(vec!["locks.nodes", "locks.prefix"]),
            "each node has its seat"
        );
        assert_eq!(ours.differences(OLD_HELLO), Some(vec![]));
        let adopting = |adopt: &str| {
            let text = format!("locks: {{nodes: ['redis://a:1']}}\nadopt: {adopt}");
            Common::of(&Config::parse(&text, "f", &|_| None).unwrap())
        };
        let [none, audit, bridge, enforce, other] = [
            "[]",
            "{keys: 'a:*', mode: audit}",
            "{keys: 'a:*', mode: bridge}",
            "{keys: 'a:*', mode: enforce}",
            "{keys: 'a:*', lock: '{1}', mode: enforce}",
        ]
        .map(adopting);
        assert_eq!(none.hello().split(' ').count(), 4, "as version 2 knows it");
        assert_eq!(audit.differences(&none.hello()), Some(vec![]), "an audit may come and go");
        assert_eq!(bridge.differences(&enforce.hello()), Some(vec![]), "one step away");
        assert_eq!(enforce.differences(&bridge.hello()), Some(vec![]));
        for (one, two) in
            [(&audit, &enforce), (&audit, &bridge), (&enforce, &none), (&enforce, &other)]
        {
            assert_eq!(one.differences(&two.hello()), Some(vec!["adopt"]));
        }
        assert_eq!(enforce.differences(&enforce.hello()), Some(vec![]));
        assert_eq!(enforce.differences(OLD_HELLO), Some(vec!["adopt"]));
        let options = "{keys: 'a:*', mode: enforce, blind: as-redis, no_ttl: refuse}";
        assert_eq!(enforce.differences(&adopting(options).hello()), Some(vec![]), "defaults");
        for option in [
            "blind: refuse",
            "unknown: forward",
            "no_ttl: 5s",
            "no_ttl: session",
            "long_ttl: cap",
            "scripts: {digest: c3f8721cbb97f72bc19e972846bd7aaf91901658, op: release, token: 1, \
             replies: [0, 1, 1, 0]}",
        ] {
            let other = adopting(&format!("{{keys: 'a:*', mode: enforce, {option}}}"));
            assert_eq!(enforce.differences(&other.hello()), Some(vec!["adopt"]), "{option}");
        }
        let shadowed = adopting("[{keys: 'a:x', mode: audit}, {keys: 'a:*', mode: enforce}]");
        assert_eq!(enforce.differences(&shadowed.hello()), Some(vec!["adopt"]));
        for other in [
            "",
            "x",
            HELLO,
            "lockgate-upgrade 2 a",
            "lockgate-upgrade 3 a b",
            "lockgate-upgrade 2 a b c d",
        ] {
            assert_eq!(ours.differences(other), None, "{other}");
        }
    }
}
