//! The Redis that a lock node is at some time.

use crate::config::RedisUrl;

/// The Redis that a lock node is now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Location {
    pub(crate) url: RedisUrl,
    /// The election that made it the master. `None`: no Sentinels elect it.
    pub(crate) election: Option<u64>,
    /// For a shard's master, the epoch of its claim to the slots, which is new after each election and when slots are
    /// moved. `None` for any other node.
    pub(crate) claimed: Option<u64>,
}
