//! How one client that comes through a front is shown the cluster.

use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio::sync::Notify;

use super::data_metrics::ClusterMetrics;
use crate::{
    cluster::{
        rewrite::{Face, Redirected},
        table::FrontTable,
    },
    resp::name::Topology,
};

/// The view of the cluster for one client: puts fronts into its replies.
pub(crate) struct FrontView {
    pub(super) table: Arc<ArcSwap<FrontTable>>,
    /// The host of all fronts, as this client knows them.
    pub(super) host: String,
    /// Whether the client's listener speaks TLS.
    pub(super) tls: bool,
    /// The host of the node behind the client's front.
    pub(super) asked: String,
    /// Notified when a redirection shows that the cluster changes.
    pub(super) wanted: Arc<Notify>,
    pub(super) metrics: Arc<ClusterMetrics>,
}

impl FrontView {
    /// Makes a view of these nodes, with fronts at `host`.
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

    /// Whether a client that behaves like a replica may be one: where nodes announce fronts, their replicas are led
    /// to them.
    pub(crate) fn may_lead_replicas(&self) -> bool {
        self.table.load().has_fronts_announced()
    }

    /// Returns the line to send in place of an error that may be a redirection, or `None` to send the error itself.
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

    /// Returns the reply to send in place of one about the cluster, or `None` to send the reply itself.
    pub(crate) fn topology(&self, reply: &[u8], kind: Topology) -> Option<Vec<u8>> {
        self.face(&self.table.load()).topology(reply, kind)
    }

    /// Returns the reply to send in place of EXEC's, whose elements with these indexes are about the cluster, or
    /// `None` to send the reply itself.
    pub(crate) fn exec(&self, reply: &[u8], asked: &[(usize, Topology)]) -> Option<Vec<u8>> {
        self.face(&self.table.load()).exec(reply, asked)
    }

    fn face<'a>(&'a self, table: &'a FrontTable) -> Face<'a> {
        Face { table, host: &self.host, tls: self.tls, asked: &self.asked }
    }
}
