//! What two processes say to each other, and what they must have in common.

use std::time::Duration;

use crate::{
    config::{AdoptMode, AdoptRule, Config},
    data::FrontOfNode,
};

/// The first words of a process that wants to take another's place, with the version of the protocol. The digests of
/// [`Common`] follow.
pub(super) const HELLO: &str = "lockgate-upgrade 2";
/// The first words of such a process if its data node is a Redis Cluster: it asks for the fronts of the nodes too. The
/// digests are those of [`HELLO`].
pub(super) const CLUSTER_HELLO: &str = "lockgate-upgrade 3";
/// Said by the old process to one that must not take over, with the reason.
pub(super) const REFUSED: &str = "refused";
/// Said by the new process once it can serve.
pub(super) const READY: &str = "ready";
/// Said by the old process once it accepts no more.
pub(super) const DONE: &str = "done";

/// Returns the line that says to which node a front leads, or led before the node was gone.
pub(super) fn encode_front(FrontOfNode { front, node, gone_for }: &FrontOfNode) -> String {
    match gone_for {
        None => format!("{front} {node}"),
        Some(gone_for) => format!("{front} {node} gone {}", gone_for.as_millis()),
    }
}

/// Reads such a line. Returns `None` if it says something else.
pub(super) fn read_front(line: &str) -> Option<FrontOfNode> {
    let (front, node, gone_for) = match line.split(' ').collect::<Vec<_>>()[..] {
        [front, node] => (front, node, None),
        [front, node, "gone", gone_for] => {
            (front, node, Some(Duration::from_millis(gone_for.parse().ok()?)))
        }
        _ => return None,
    };
    Some(FrontOfNode { front: front.parse().ok()?, node: node.to_owned(), gone_for })
}

/// Settings that two processes that serve at the same time must share, each as a digest: which nodes have the locks,
/// under which keys, and which keys of the data node are locks, with the modes of their rules. The last is empty, and
/// left out, where the proxy answers no idioms.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Common {
    digests: [String; 3],
    /// Whether the data node is a cluster, whose fronts should stay as they are.
    has_fronts: bool,
}

impl Common {
    /// Takes the settings of this configuration.
    pub(crate) fn of(config: &Config) -> Common {
        // As displayed: without passwords, which may change.
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
        Common {
            digests: [digest(&nodes.join(" ")), digest(&config.locks.prefix), adopted],
            has_fronts: config.data.cluster().is_some(),
        }
    }

    /// Returns the first words to try, the newest first: a process hangs up on those that it does not know.
    pub(super) fn hellos(&self) -> Vec<String> {
        let [nodes, prefix, adopted] = &self.digests;
        let hello = |version| format!("{version} {nodes} {prefix} {adopted}").trim_end().to_owned();
        let mut hellos = vec![hello(HELLO)];
        if self.has_fronts {
            hellos.insert(0, hello(CLUSTER_HELLO));
        }
        hellos
    }

    /// Returns the keys that differ in another process's first words, or `None` if these are no such words.
    pub(super) fn differences(&self, hello: &str) -> Option<Vec<&'static str>> {
        let told = hello.strip_prefix(HELLO).or_else(|| hello.strip_prefix(CLUSTER_HELLO))?;
        let mut told: Vec<&str> = told.strip_prefix(' ')?.split(' ').collect();
        if told.len() == 2 {
            told.push("");
        }
        let names = ["locks.nodes", "locks.prefix", "adopt"];
        (told.len() == names.len()).then(|| {
            let differs = |at: &usize| match at {
                2 => !may_share_keys(&self.digests[2], told[2]),
                _ => self.digests[*at] != told[*at],
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
    fn a_front_is_told_with_how_long_its_node_has_been_gone() {
        let front = "127.0.0.1:7100".parse().unwrap();
        for gone_for in [None, Some(Duration::ZERO), Some(Duration::from_millis(59_999))] {
            let told = FrontOfNode { front, node: "07c37".into(), gone_for };
            assert_eq!(read_front(&encode_front(&told)), Some(told));
        }
        for bad in
            ["", "127.0.0.1:7100", "a 07c37", "127.0.0.1:7100 a gone", "127.0.0.1:7100 a gone b"]
        {
            assert_eq!(read_front(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_proxy_before_a_cluster_asks_for_the_fronts_first() {
        let text =
            "listen: 127.0.0.1:1-2\ndata: {cluster: [a, b]}\nlocks: {nodes: ['redis://a:1']}";
        let cluster = Common::of(&Config::parse(text, "f", &|_| None).unwrap());
        let text = "locks: {nodes: ['redis://a:1']}";
        let alone = Common::of(&Config::parse(text, "f", &|_| None).unwrap());
        let versions = |common: &Common| -> Vec<char> {
            common.hellos().iter().filter_map(|hello| hello.chars().nth(17)).collect()
        };
        assert_eq!((versions(&cluster), versions(&alone)), (vec!['3', '2'], vec!['2']));
        for hello in cluster.hellos() {
            assert_eq!(alone.differences(&hello), Some(vec![]), "{hello}");
        }
    }

    #[test]
    fn what_must_be_the_same_is_compared() {
        let config = |nodes: &str, prefix: &str| {
            let text = format!("locks: {{nodes: [{nodes}], prefix: '{prefix}'}}");
            Common::of(&Config::parse(&text, "f", &|_| None).unwrap())
        };
        let ours = config("'redis://a:1', 'redis://b:1', 'redis://c:1'", "l:");
        let same = config("'redis://:pass@a:1', 'redis://b:1', 'redis://c:1'", "l:");
        let turned = config("'redis://b:1', 'redis://a:1', 'redis://c:1'", "m:");
        assert_eq!(ours.differences(&same.hellos()[0]), Some(vec![]), "passwords may change");
        assert_eq!(
            ours.differences(&turned.hellos()[0]),
            Some(vec!["locks.nodes", "locks.prefix"]),
            "each node has its seat"
        );
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
        assert_eq!(none.hellos()[0].split(' ').count(), 4, "as version 2 knows it");
        assert_eq!(audit.differences(&none.hellos()[0]), Some(vec![]), "an audit may come and go");
        assert_eq!(bridge.differences(&enforce.hellos()[0]), Some(vec![]), "one step away");
        assert_eq!(enforce.differences(&bridge.hellos()[0]), Some(vec![]));
        for (one, two) in
            [(&audit, &enforce), (&audit, &bridge), (&enforce, &none), (&enforce, &other)]
        {
            assert_eq!(one.differences(&two.hellos()[0]), Some(vec!["adopt"]));
        }
        assert_eq!(enforce.differences(&enforce.hellos()[0]), Some(vec![]));
        let options = "{keys: 'a:*', mode: enforce, blind: as-redis, no_ttl: refuse}";
        assert_eq!(enforce.differences(&adopting(options).hellos()[0]), Some(vec![]), "defaults");
        for option in [
            "blind: refuse",
            "unknown: forward",
            "no_ttl: 5s",
            "no_ttl: session",
            "long_ttl: cap",
            "no_quorum: error",
            "flush: free",
            "scripts: {digest: c3f8721cbb97f72bc19e972846bd7aaf91901658, op: release, token: 1, \
             replies: [0, 1, 1, 0]}",
        ] {
            let other = adopting(&format!("{{keys: 'a:*', mode: enforce, {option}}}"));
            assert_eq!(enforce.differences(&other.hellos()[0]), Some(vec!["adopt"]), "{option}");
        }
        let shadowed = adopting("[{keys: 'a:x', mode: audit}, {keys: 'a:*', mode: enforce}]");
        assert_eq!(enforce.differences(&shadowed.hellos()[0]), Some(vec!["adopt"]));
        for other in [
            "",
            "x",
            HELLO,
            "lockgate-upgrade 1",
            "lockgate-upgrade 2 a",
            "lockgate-upgrade 4 a b",
            "lockgate-upgrade 2 a b c d",
        ] {
            assert_eq!(ours.differences(other), None, "{other}");
        }
    }
}
