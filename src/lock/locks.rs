//! All locks of one proxy: the grants, and the clients that wait.

use std::sync::Arc;

use tokio::sync::Semaphore;

use super::{
    free_permits::FreePermits,
    grants::Grants,
    line::{circle::Circles, hot::HotLocks, queue::Queues},
    lock_metrics::LockMetrics,
    node::nodes::Nodes,
    refusals::Refusals,
};
use crate::config::LocksConfig;

/// Most looks at permits at the same time. More would take the room of other clients' requests in the queues of the
/// lock nodes (`locks.node_queue`).
const LOOKS: usize = 512;

/// The state that the engine shares with all operations under way.
pub(super) struct Locks {
    /// Locks granted here.
    pub(super) grants: Arc<Grants>,
    /// Clients that wait here.
    pub(super) queues: Queues,
    /// Finds clients that wait for one another.
    pub(super) circles: Circles,
    /// Locks that clients here have waited for.
    pub(super) hot: HotLocks,
    /// Locks that others are known to hold.
    pub(super) refusals: Refusals,
    /// Permits that were released last.
    pub(super) free_permits: FreePermits,
    /// Permits of families at which clients may look at the same time.
    pub(super) looks: Semaphore,
}

impl Locks {
    /// Starts without grants and waiters.
    pub(super) fn new(config: &LocksConfig, nodes: Nodes) -> Locks {
        let metrics = Arc::new(LockMetrics::new());
        let queues = Queues::new(config, metrics.clone());
        let grants = Arc::new(Grants::new(config, nodes, metrics));
        Locks {
            grants,
            queues,
            circles: Circles::default(),
            hot: HotLocks::default(),
            refusals: Refusals::default(),
            free_permits: FreePermits::default(),
            looks: Semaphore::new(LOOKS),
        }
    }
}
