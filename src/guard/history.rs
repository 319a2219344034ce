//! Whether the data node may have forgotten fences that it was told: it is another process, or its
//! data has another history.
//!
//! A process that was a replica in between has kept its clients' connections and may have gone back
//! to an earlier fence, which nobody can tell from the largest. Redis takes another replication id
//! when it is promoted, and follows its master's while it is a replica. So from another id on, every
//! fence told counts as forgotten.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use bb8_redis::redis::{self, RedisError, aio::MultiplexedConnection};
use tokio::time::timeout;
use tracing::warn;

/// How often the data node is asked.
pub(super) const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long an answer may take.
const LIMIT: Duration = Duration::from_secs(1);

/// The data node's history, for sessions.
#[derive(Debug, Default)]
pub(crate) struct DataHistory {
    /// How often it was another than before.
    changes: AtomicU64,
}

/// What was seen last of the data node's history.
#[derive(Debug, Default)]
pub(super) struct SeenHistory {
    /// The `run_id` and `master_replid`. `None`: nothing yet.
    ids: Option<[String; 2]>,
    /// The log says that nothing can be seen.
    told: bool,
}

impl DataHistory {
    /// Returns how often the data node's history was another than before.
    #[inline]
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// Asks the data node. What does not answer has not changed: its connection's end tells.
    pub(super) async fn look(&self, seen: &mut SeenHistory, redis: &mut MultiplexedConnection) {
        match timeout(LIMIT, ids(redis)).await {
            Ok(Ok(ids)) => self.take_in(seen, ids),
            Ok(Err(error)) if !seen.told => {
                seen.told = true;
                warn!(
                    %error,
                    "guards: the data node does not tell its INFO (the user in data needs +info); \
                     it is not seen whether it has been a replica in between"
                );
            }
            Ok(Err(_)) | Err(_) => {}
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
