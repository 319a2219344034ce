//! Two simulated nodes as their Sentinels see them.

use std::collections::BTreeMap;

use tokio::time::Instant;

pub(super) const SENTINELS: usize = 3;

/// A master and its replica, as three Sentinels see them.
pub(super) struct WatchedPair {
    /// The two nodes.
    pub(super) nodes: [usize; 2],
    /// The one of them that is the master.
    pub(super) master: usize,
    /// The one of them that each Sentinel names, and by which election.
    pub(super) named: [usize; SENTINELS],
    pub(super) elections: [u64; SENTINELS],
    /// Whether the other one does not know yet that it is no longer the master.
    pub(super) lingers: bool,
    /// The time before which nothing passes between a proxy and the Sentinels.
    pub(super) unheard: BTreeMap<usize, Instant>,
}

impl WatchedPair {
    pub(super) fn new(nodes: [usize; 2]) -> WatchedPair {
        let (named, elections) = ([0; SENTINELS], [0; SENTINELS]);
        WatchedPair { nodes, master: 0, named, elections, lingers: false, unheard: BTreeMap::new() }
    }

    pub(super) fn replica(&self) -> usize {
        self.nodes[1 - self.master]
    }

    pub(super) fn hears_again(&self, proxy: usize) -> Option<Instant> {
        self.unheard.get(&proxy).copied().filter(|until| *until > Instant::now())
    }
}
