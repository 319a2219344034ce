//! The table of settings that weaken a promise. None is silent: `check` notes them, `doctor` finds them, a
//! starting proxy warns of them, and /readyz has a line for each.

use std::time::Duration;

use super::{
    AdoptMode, AdoptRule, Config, Flush, FlushPolicy, LongTtlPolicy, NoTtlPolicy, OnLost, Policy,
    UnknownPolicy,
};

/// The shortest `fence_ttl` that is not reported. A shorter one may end while a late holder still means to
/// write.
const SHORT_FENCE_TTL: Duration = Duration::from_secs(24 * 60 * 60);
/// The longest `authorize_cache` that is not reported. A revoked permission should not count for longer.
const LONG_AUTHORIZE_CACHE: Duration = Duration::from_secs(60);

/// Returns a line for each way in which a setting weakens a promise, with the consequence.
type Weakness = fn(&Config) -> Vec<String>;

/// All weaknesses.
const TABLE: &[Weakness] = &[
    |config| {
        told(!config.locks.quarantine, "locks.quarantine is no", || {
            "two clients may hold one lock after a lock node was restarted, emptied or replaced"
                .into()
        })
    },
    |config| {
        told(config.locks.allow_shared_instance, "locks.allow_shared_instance is yes", || {
            "lock nodes may be one Redis, whose end ends all of their locks".into()
        })
    },
    |config| {
        told(config.locks.drift_factor == 0.0, "locks.drift_factor is 0", || {
            "nothing is set aside for clocks that run faster than others: a lock may be granted before its \
             holder's time is up"
                .into()
        })
    },
    |config| {
        told(config.locks.prefix.is_empty(), "locks.prefix is empty", || {
            "a lock's key may be any key of the lock nodes, Lockgate's own (lockgate:*) among them"
                .into()
        })
    },
    |config| {
        told(config.locks.on_lost == OnLost::Ignore, "locks.on_lost is ignore", || {
            "a client whose session lock is lost is not told".into()
        })
    },
    |config| {
        let fence_ttl = config.locks.fence_ttl;
        let is_short = config.guards.enforces() && fence_ttl < SHORT_FENCE_TTL;
        told(is_short, &format!("locks.fence_ttl is {fence_ttl:?}"), || {
            "a holder that is later than that is not refused by its fence (guards)".into()
        })
    },
    |config| {
        let cache = config.locks.authorize_cache;
        let is_long = cache > LONG_AUTHORIZE_CACHE;
        told(is_long, &format!("locks.authorize_cache is {cache:?}"), || {
            "a client locks for so long after its permission was taken away".into()
        })
    },
    |config| {
        let is_allowed = config.guards.enforces() && config.guards.flush == Flush::Allow;
        told(is_allowed, "guards.flush is allow", || {
            "FLUSHALL, FLUSHDB and SWAPDB change guarded keys without their locks".into()
        })
    },
    |config| {
        let audited = config.guards.rules.iter().filter(|rule| rule.policy == Policy::Audit);
        let told = audited.map(|rule| {
            let keys = rule.keys.as_str();
            format!("the guard on '{keys}' is audit: writes pass without the lock, and are counted")
        });
        told.collect()
    },
    |config| {
        of_rules(config, |rule| {
            (rule.options.unknown == UnknownPolicy::Forward).then(|| {
                "unknown: forward: a command that is no lock idiom reaches the data node, past the lock nodes"
                    .into()
            })
        })
    },
    |config| {
        of_rules(config, |rule| {
            (rule.options.long_ttl == LongTtlPolicy::Cap).then(|| {
                "long_ttl: cap: a client counts on its lock for longer than it lasts".into()
            })
        })
    },
    |config| {
        of_rules(config, |rule| {
            (rule.options.flush == FlushPolicy::Free)
                .then(|| "flush: free: FLUSHDB and FLUSHALL free locks, whoever holds them".into())
        })
    },
    |config| {
        of_rules(config, |rule| match rule.options.no_ttl {
            NoTtlPolicy::For(ttl) => Some(format!(
                "no_ttl: {ttl:?}: a client that asks for no TTL counts on its lock for longer than it lasts"
            )),
            NoTtlPolicy::Refuse | NoTtlPolicy::Session => None,
        })
    },
    |config| {
        told(config.allow_open, "allow_open is yes", || {
            "listen may leave this machine though the data node asks for no password".into()
        })
    },
];

impl Config {
    /// Returns a line for each setting that weakens a promise, with the consequence.
    pub(crate) fn weakened(&self) -> Vec<String> {
        TABLE.iter().flat_map(|weakness| weakness(self)).collect()
    }
}

fn told(is_so: bool, setting: &str, comes_of_it: impl Fn() -> String) -> Vec<String> {
    if is_so { vec![format!("{setting}: {}", comes_of_it())] } else { Vec::new() }
}

/// Returns the lines that `says` gives for the adopt rules whose commands the proxy answers.
fn of_rules(config: &Config, says: impl Fn(&AdoptRule) -> Option<String>) -> Vec<String> {
    let answered = config.adopt.rules.iter().filter(|rule| rule.mode != AdoptMode::Audit);
    let told = answered.filter_map(|rule| {
        let keys = rule.keys.as_str();
        Some(format!("the adopt rule on '{keys}' has {}", says(rule)?))
    });
    told.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn weakened(text: &str) -> Vec<String> {
        Config::parse(text, "f", &|_| None).unwrap().weakened()
    }

    #[test]
    fn what_weakens_a_promise_is_told_once_and_defaults_weaken_none() {
        assert_eq!(weakened(""), Vec::<String>::new());
        let guard = |rest: &str| format!("guards: {{rules: [{{keys: g, lock: g}}], {rest}}}");
        let adopt = |rest: &str| format!("adopt: [{{keys: 'l:*', mode: enforce, {rest}}}]");
        let fences = format!("locks: {{fence_ttl: 1h}}\n{}", guard("flush: refuse"));
        let cases = [
            ("locks: {quarantine: no}", "locks.quarantine is no: "),
            ("locks: {allow_shared_instance: yes}", "locks.allow_shared_instance is yes: "),
            ("locks: {drift_factor: 0}", "locks.drift_factor is 0: "),
            ("locks: {prefix: ''}", "locks.prefix is empty: "),
            ("locks: {on_lost: ignore}", "locks.on_lost is ignore: "),
            ("locks: {authorize_cache: 1h}", "locks.authorize_cache is 3600s: "),
            ("allow_open: yes", "allow_open is yes: "),
            ("guards: {keys: 'g:*', lock: g, policy: audit}", "the guard on 'g:*' is audit: "),
            (&guard("flush: allow"), "guards.flush is allow: "),
            (&fences, "locks.fence_ttl is 3600s: "),
            (&adopt("unknown: forward"), "the adopt rule on 'l:*' has unknown: forward: "),
            (&adopt("long_ttl: cap"), "the adopt rule on 'l:*' has long_ttl: cap: "),
            (&adopt("flush: free"), "the adopt rule on 'l:*' has flush: free: "),
            (&adopt("no_ttl: 5s"), "the adopt rule on 'l:*' has no_ttl: 5s: "),
        ];
        for (text, begins) in cases {
            let [told] = &weakened(text)[..] else { panic!("{text}: {:?}", weakened(text)) };
            assert!(told.starts_with(begins), "{text}: {told}");
            let notes = Config::parse(text, "f", &|_| None).unwrap().notes();
            assert!(notes.contains(told), "check notes it: {notes:?}");
        }
        assert_eq!(cases.len(), TABLE.len(), "each has a case");
    }
}
