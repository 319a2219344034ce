//! All locks of one proxy: what was granted, and who waits.

use std::sync::Arc;

use super::{grants::Grants, line::queue::Queues, metrics::LockMetrics, node::nodes::Nodes};
use crate::config::LocksConfig;

/// What the engine shares with all that is under way.
pub(super) struct Locks {
    /// What was granted here.
    pub(super) grants: Arc<Grants>,
    /// Who waits here.
    pub(super) queues: Queues,
}

impl Locks {
    /// Nothing granted, nobody waiting.
    pub(super) fn new(config: &LocksConfig, nodes: Nodes) -> Locks {
        let metrics = Arc::new(LockMetrics::new());
        let queues = Queues::new(config, metrics.clone());
        Locks { grants: Arc::new(Grants::new(config, nodes, metrics)), queues }
    }
}
