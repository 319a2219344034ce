//! `lockgate init`: declares a deployment new, so that its nodes vote at once.

use std::{path::Path, time::Duration};

use anyhow::bail;
use bb8_redis::redis;
use tokio::time::timeout;

use super::{keyspace, say::say};
use crate::{
    config::{Config, LockNode, LocksConfig},
    lock::{self, InitError, initialise},
    net::redis_client,
};

/// How long a lock node may take to tell how many keys it has.
const LIMIT: Duration = Duration::from_secs(2);

/// Writes the first markers on all lock nodes of `file`, or of the default configuration. With `if_new`, finding
/// nodes that have markers is no error, and changes nothing.
///
/// # Errors
/// The configuration's; also if a node cannot be reached, must not vote, or has a marker.
pub fn run(file: Option<&Path>, if_new: bool) -> anyhow::Result<()> {
    let config = file.map_or_else(|| Ok(Config::default()), Config::load)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (shared, done) = runtime.block_on(async {
        (shared_with_keys(&config.locks).await, initialise(&config.locks).await)
    });
    runtime.shutdown_background();
    let nodes = config.locks.nodes.len();
    match done {
        Ok(id) => {
            say(format_args!(
                "deployment {id}: the markers are written, {nodes} lock nodes may vote; \
                 proxies that run already take it over by themselves after the longest TTL, or at once when restarted"
            ));
            shared.into_iter().for_each(say);
        }
        Err(InitError::Found { markers, .. }) if if_new => {
            say(format_args!("nothing to do: {}", markers.join("; ")));
        }
        Err(error) => bail!(error),
    }
    Ok(())
}

/// Returns a line for each lock node that has keys already. A cluster is not asked, nor does a node that does not
/// answer have one: the markers are not written then.
async fn shared_with_keys(locks: &LocksConfig) -> Vec<String> {
    let way = lock::connector_to_nodes(locks);
    let mut lines = Vec::new();
    for node in locks.nodes.iter().filter(|node| !matches!(node, LockNode::Cluster(_))) {
        let asking = async {
            let there = lock::locate(node, &locks.tls, lock::MARKER).await.ok()?;
            let mut connection = redis_client::connect(&there.url, &way).await.ok()?;
            let mut question = redis::cmd("INFO");
            question.arg("keyspace");
            let info: String = question.query_async(&mut connection.redis).await.ok()?;
            let fields = info.lines().filter_map(|line| line.trim_end().split_once(':'));
            Some(keyspace::count_foreign(&mut connection.redis, fields).await)
        };
        let Ok(Some(keys)) = timeout(LIMIT, asking).await else { continue };
        let told = keyspace::shared_with_keys(keys);
        lines.extend(told.map(|told| format!("lock node {node}: {told}")));
    }
    lines
}
