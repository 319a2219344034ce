//! How one client that comes through a front is shown the cluster.

use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio::sync::Notify;

use super::metrics::ClusterMetrics;
use crate::{
    cluster::{
        rewrite::{Face, Redirected},
        table::FrontTable,
    },
    resp::name::Topology,
};

/// Puts fronts into the replies to one client.
pub(crate) struct FrontView {
    pub(super) table: Arc<ArcSwap<FrontTable>>,
    /// The host of all fronts, as this client knows them.
    pub(super) host: String,
    /// The client's listener speaks TLS.
    pub(super) tls: bool,
    /// The host of the node behind the client's front.
    pub(super) asked: String,
    /// Notified when a redirection shows that the cluster changes.
    pub(super) wanted: Arc<Notify>,
    pub(super) metrics: Arc<ClusterMetrics>,
}

impl FrontView {
    /// Shows these nodes, with fronts at `host`.
    #[cfg(test)]
    pub(crate) fn of(table: FrontTable, host: &str) -> FrontView {
        FrontView {
            table: Arc::new(ArcSwap::from_pointee(table)),
            host: host.to_owned(),
            tls: false,
            asked: String::new(),
            wanted: Arc::default(),
            metrics: Arc::new(ClusterMetrics::new()),
        }
    }

    /// Whether a client that speaks as replicas do may be one: nodes announce fronts, so that their
    /// replicas are led to them.
    pub(crate) fn may_lead_replicas(&self) -> bool {
        self.table.load().has_fronts_announced()
    }

    /// The line to tell in place of an error that may be a redirection; `None`: the error itself.
    pub(crate) fn redirect(&self, line: &[u8]) -> Option<Vec<u8>> {
        match self.face(&self.table.load()).redirect(line) {
            Redirected::AsItIs => None,
            Redirected::Front(line) => {
                self.wanted.notify_one();
                self.metrics.redirected.increment(1);
                Some(line)
            }
            Redirected::Nowhere(line) => {
                self.wanted.notify_one();
                self.metrics.nowhere.increment(1);
                Some(line)
            }
        }
    }

    /// The reply to tell in place of one about the cluster; `None`: the reply itself.
    pub(crate) fn topology(&self, reply: &[u8], kind: Topology) -> Option<Vec<u8>> {
        self.face(&self.table.load()).topology(reply, kind)
    }

    /// The reply to tell in place of EXEC's, in which the elements with these indexes are about the
    /// cluster; `None`: the reply itself.
    pub(crate) fn exec(&self, reply: &[u8], asked: &[(usize, Topology)]) -> Option<Vec<u8>> {
        self.face(&self.table.load()).exec(reply, asked)
    }

    fn face<'a>(&'a self, table: &'a FrontTable) -> Face<'a> {
        Face { table, host: &self.host, tls: self.tls, asked: &self.asked }
    }
}
