//! The data node's history: if it changes, the data node may have forgotten fences, as it is another
//! process, or its data has another past.
//!
//! A process that was a replica for a while keeps its clients' connections, but may have gone back to
//! an earlier fence, which looks just like the largest. Redis takes a new replication id when it is
//! promoted, and its master's while it is a replica. So once the id changes, every fence seen before
//! counts as forgotten. Each node of a cluster has a history of its own, which changes too when the
//! node gets slots: their fences come from another node, which may have lost some.

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bb8_redis::redis::{self, RedisError, aio::MultiplexedConnection};
use tokio::time::{sleep, timeout};
use tracing::warn;

use crate::{
    data::{DataNode, Tenure},
    net::redis_client::Connection,
};

/// How often the data node is asked.
pub(super) const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long an answer may take.
const LIMIT: Duration = Duration::from_secs(1);

/// The data node's history, for sessions.
#[derive(Debug, Default)]
pub(crate) struct DataHistory {
    /// How often the history has changed.
    changes: AtomicU64,
}

/// The data node's history as last seen.
#[derive(Debug, Default)]
pub(super) struct SeenHistory {
    /// How often the cluster node had got slots.
    gains: Option<u64>,
    /// The `run_id` and `master_replid`. `None`: nothing yet.
    ids: Option<[String; 2]>,
    /// Whether the log has said that the history cannot be read.
    told: bool,
}

impl DataHistory {
    /// Returns how often the data node's history has changed.
    #[inline]
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// Asks the data node for its ids. No answer counts as no change: a later look, on this connection or
    /// a new one, shows the change.
    pub(super) async fn look(&self, seen: &mut SeenHistory, redis: &mut MultiplexedConnection) {
        match timeout(LIMIT, ids(redis)).await {
            Ok(Ok(ids)) => self.take_in(seen, ids),
            Ok(Err(error)) => tell_of_silence(seen, &error),
            Err(_) => {}
        }
    }

    fn take_in(&self, seen: &mut SeenHistory, ids: [String; 2]) {
        if seen.ids.as_ref().is_some_and(|before| *before != ids) {
            self.changes.fetch_add(1, Ordering::Release);
            warn!(
                run_id = %ids[0], replication_id = %ids[1],
                "guards: the data node is another process, or its data has another history; the lock \
                 nodes are asked before the next write under each lock"
            );
        }
        seen.ids = Some(ids);
    }
}

/// Asks the node behind a front of a cluster, for as long as `history` is in use. Each time that the
/// node does not answer counts as a change, as its history could not be seen.
pub(super) async fn watch(data: Arc<DataNode>, history: Weak<DataHistory>) {
    let (mut seen, mut connected) = (SeenHistory::default(), None);
    while let Some(history) = history.upgrade() {
        if !history.look_at_front(&data, &mut seen, &mut connected).await {
            connected = None;
            history.changes.fetch_add(1, Ordering::Release);
        }
        drop(history);
        sleep(LOOK_EVERY).await;
    }
}

impl DataHistory {
    /// Asks the node behind a front. Returns `true` if the node has told its history, or refuses to.
    async fn look_at_front(
        &self,
        data: &DataNode,
        seen: &mut SeenHistory,
        connected: &mut Option<(Arc<Tenure>, Connection)>,
    ) -> bool {
        let is_open = |(tenure, connection): &(Arc<Tenure>, Connection)| {
            !tenure.has_ended() && !connection.is_closed()
        };
        // A fence that was on another node meanwhile may have come back as an earlier one.
        let gains = data.gains();
        if seen.gains.replace(gains).is_some_and(|before| before != gains) {
            self.changes.fetch_add(1, Ordering::Release);
        }
        if !connected.as_ref().is_some_and(is_open) {
            let Ok(Ok(connection)) = timeout(LIMIT, data.ask()).await else { return false };
            *connected = Some(connection);
        }
        let Some((_, connection)) = connected else { return false };
        match timeout(LIMIT, ids(&mut connection.redis)).await {
            Ok(Ok(ids)) => {
                self.take_in(seen, ids);
                true
            }
            Ok(Err(error)) if error.is_io_error() || error.is_timeout() => false,
            Ok(Err(error)) => {
                tell_of_silence(seen, &error);
                true
            }
            Err(_) => false,
        }
    }
}

/// Logs, once, that the data node does not tell its history.
fn tell_of_silence(seen: &mut SeenHistory, error: &RedisError) {
    if !std::mem::replace(&mut seen.told, true) {
        warn!(
            %error,
            "guards: the data node does not tell its INFO (the user in data needs +info); it is not \
             seen whether it has been a replica in between"
        );
    }
}

/// Asks for the `run_id` and the `master_replid`.
async fn ids(redis: &mut MultiplexedConnection) -> Result<[String; 2], RedisError> {
    let mut both = redis::pipe();
    both.cmd("INFO").arg("server").cmd("INFO").arg("replication");
    let (server, replication): (String, String) = both.query_async(redis).await?;
    Ok([field(&server, "run_id"), field(&replication, "master_replid")])
}

/// Returns a field of INFO; empty if there is none.
fn field(info: &str, name: &str) -> String {
    let value =
        |line: &str| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim_end().to_owned());
    info.lines().find_map(value).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_run_id_or_replication_id_is_a_change_and_the_first_is_none() {
        let (history, mut seen) = (DataHistory::default(), SeenHistory::default());
        for (ids, changes) in
            [(["a", "b"], 0), (["a", "b"], 0), (["a", "c"], 1), (["d", "c"], 2), (["d", "c"], 2)]
        {
            history.take_in(&mut seen, ids.map(str::to_owned));
            assert_eq!(history.changes(), changes, "{ids:?}");
        }
    }

    #[test]
    fn a_field_is_found_by_its_whole_name() {
        let info = "# Replication\r\nmaster_replid2:x\r\nmaster_replid:y\r\n";
        assert_eq!(field(info, "master_replid"), "y");
        assert_eq!(field(info, "run_id"), "");
    }
}
