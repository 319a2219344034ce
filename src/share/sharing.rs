//! What all threads know of the shared connections to one data node.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use super::{share_metrics::ShareMetrics, sharers::Sharers};
use crate::data::DataNode;

/// Tells the pools of different data nodes apart.
static NUMBERS: AtomicU64 = AtomicU64::new(0);

/// The shared connections to one data node; of a cluster, to the node behind one front.
pub(crate) struct Sharing {
    /// Its number among all, on this proxy.
    pub(super) number: u64,
    pub(super) data: Arc<DataNode>,
    /// Whether a client that has used a link ends with it. With guards it must: a data node that has restarted may
    /// have forgotten fences, and until the proxy has seen that only the end of their connection tells.
    pub(super) is_strict: bool,
    pub(super) metrics: ShareMetrics,
    /// The clients of all data nodes of this proxy.
    pub(super) sharers: Arc<Sharers>,
}

/// How long a connection may take, and how it is probed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Connecting {
    pub(crate) limit: Duration,
    pub(crate) keepalive: Duration,
}

impl Sharing {
    /// Makes the pools of `data`. `is_strict`: there are guards.
    pub(crate) fn new(data: Arc<DataNode>, is_strict: bool, sharers: Arc<Sharers>) -> Arc<Sharing> {
        let (number, metrics) = (NUMBERS.fetch_add(1, Ordering::Relaxed), ShareMetrics::new());
        Arc::new(Sharing { number, data, is_strict, metrics, sharers })
    }
}
