//! Tries, as the proxy's user, what the scripts of a lock's readers (`locks.shared`) send a lock node.

use bb8_redis::redis;
use tokio::time::timeout;

use super::{TRIAL_NAME, patient::LIMIT, report::Finding};
use crate::{
    config::{LockNode, LocksConfig},
    fleet::record::RECORDS,
    lock,
    net::{Connector, redis_client},
};

/// What the scripts send besides what all locks need, with arguments behind the key by which each changes nothing, as
/// the key is not there.
const NEEDED: [(&str, &[&str]); 11] = [
    ("exists", &[]),
    ("pexpireat", &["1"]),
    ("zadd", &["XX", "1", "a"]),
    ("zcount", &["0", "1"]),
    ("zrange", &["0", "0"]),
    ("zrangebyscore", &["0", "1"]),
    ("zrem", &["a"]),
    ("zremrangebyscore", &["0", "1"]),
    ("zrevrange", &["0", "0"]),
    ("zscore", &["a"]),
    ("get", &[]),
];

/// Finding about a lock node on which clients cannot share locks. Finds nothing where the node does not answer.
pub(super) async fn cannot_share(
    locks: &LocksConfig,
    node: &LockNode,
    way: &Connector,
) -> Option<Finding> {
    if !locks.shared {
        return None;
    }
    let key = format!("{}{TRIAL_NAME}", locks.prefix);
    let trying = async {
        let there = lock::locate(node, &locks.tls, RECORDS).await.ok()?;
        let mut connection = redis_client::connect(&there.url, way).await.ok()?;
        let mut lacking = Vec::new();
        for (name, arguments) in NEEDED {
            let mut command = redis::cmd(name);
            command.arg(&key).arg(arguments);
            let tried = command.query_async::<redis::Value>(&mut connection.redis).await;
            if tried.is_err_and(|error| error.code() == Some("NOPERM")) {
                lacking.push(format!("+{name}"));
            }
        }
        Some(lacking)
    };
    let lacking = timeout(LIMIT, trying).await.ok()??;
    let what = format!(
        "the proxy's user lacks what LOCK with SHARED sends (locks.shared): {}",
        lacking.join(" ")
    );
    let advice = "Allow the user these commands (ACL SETUSER); until then this lock node does not vote on readers, and may keep one until its TTL.";
    (!lacking.is_empty()).then(|| Finding::minor(what, advice))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const SCRIPTS: [&str; 7] = [
        include_str!("../../lock/scripts/readers.lua"),
        include_str!("../../lock/scripts/acquire_shared.lua"),
        include_str!("../../lock/scripts/heal_shared.lua"),
        include_str!("../../lock/scripts/look_shared.lua"),
        include_str!("../../lock/scripts/prolong_shared.lua"),
        include_str!("../../lock/scripts/release_shared.lua"),
        include_str!("../../lock/scripts/renew_shared.lua"),
    ];
    const CALLS: [&str; 3] = ["redis.call('", "redis.pcall('", "ask('"];
    /// What all locks need.
    const OF_ALL_LOCKS: [&str; 4] = ["del", "pttl", "set", "time"];

    #[test]
    fn what_is_tried_is_what_the_scripts_send() {
        let mut sent = BTreeSet::new();
        for (script, call) in SCRIPTS.iter().flat_map(|script| CALLS.map(|call| (script, call))) {
            let names = script.split(call).skip(1).filter_map(|rest| rest.split('\'').next());
            sent.extend(names.map(str::to_ascii_lowercase));
        }
        for name in OF_ALL_LOCKS {
            sent.remove(name);
        }
        let tried: BTreeSet<String> = NEEDED.iter().map(|(name, _)| (*name).to_owned()).collect();
        assert_eq!(tried, sent);
    }
}
