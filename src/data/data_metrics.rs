//! Counters of a data node that is followed.

use metrics::{Counter, Gauge, counter, describe_counter, describe_gauge, gauge};

use crate::{
    cluster::trouble::{ClusterFault, ClusterTrouble},
    metrics::labels,
};

labels! {
    /// Why a Redis is no longer the data node; the label `reason` of `lockgate_data_switches_total`.
    pub(super) enum SwitchReason {
        /// A majority of the Sentinels names another one.
        Sentinels = "sentinels",
        /// The Redis says that it is not a master.
        Replica = "replica",
        /// The name leads to another Redis, which says that it is a master.
        Name = "name",
    }
}

/// Gives each metric its help text. Install the recorder first.
pub(super) fn describe() {
    describe_counter!(
        "lockgate_data_switches_total",
        "Times that a Redis was the data node and is not any more, by reason."
    );
    describe_counter!(
        "lockgate_data_readonly_total",
        "Reads of replies with -READONLY, upon which the data node is asked for its ROLE."
    );
    describe_gauge!("lockgate_cluster_fault", "Things that are wrong with the cluster, by name.");
    describe_gauge!("lockgate_cluster_nodes", "Nodes of the cluster.");
    describe_counter!(
        "lockgate_cluster_redirects_total",
        "Redirections told to clients, by result: with a front, or an error as the node has none."
    );
    describe_counter!(
        "lockgate_cluster_front_moves_total",
        "Times that the node behind a front has gone, or is elsewhere."
    );
}

/// Handles of a followed data node.
pub(super) struct FollowMetrics {
    /// By [`SwitchReason`].
    switches: Vec<Counter>,
    /// Refused writes that cast doubt on the data node.
    pub(super) doubts: Counter,
}

impl FollowMetrics {
    /// Makes the handles.
    pub(super) fn new() -> FollowMetrics {
        let switches = |reason: SwitchReason| counter!("lockgate_data_switches_total", "reason" => reason.as_str());
        FollowMetrics {
            switches: SwitchReason::ALL.map(switches).into(),
            doubts: counter!("lockgate_data_readonly_total"),
        }
    }

    pub(super) fn switched(&self, reason: SwitchReason) {
        self.switches[reason as usize].increment(1);
    }
}

/// Handles of a cluster.
pub(super) struct ClusterMetrics {
    /// By [`ClusterFault`].
    faults: Vec<Gauge>,
    nodes: Gauge,
    /// Redirections with a front in them.
    pub(super) redirected: Counter,
    /// Redirections to a node without a front.
    pub(super) nowhere: Counter,
    pub(super) moves: Counter,
    /// Refused writes that cast doubt on a node.
    pub(super) doubts: Counter,
}

impl ClusterMetrics {
    /// Makes the handles.
    pub(super) fn new() -> ClusterMetrics {
        let fault =
            |fault: ClusterFault| gauge!("lockgate_cluster_fault", "fault" => fault.as_str());
        let redirects =
            |result: &'static str| counter!("lockgate_cluster_redirects_total", "result" => result);
        ClusterMetrics {
            faults: ClusterFault::ALL.map(fault).into(),
            nodes: gauge!("lockgate_cluster_nodes"),
            redirected: redirects("front"),
            nowhere: redirects("nowhere"),
            moves: counter!("lockgate_cluster_front_moves_total"),
            doubts: counter!("lockgate_data_readonly_total"),
        }
    }

    /// Sets the gauges.
    pub(super) fn count(&self, troubles: &[ClusterTrouble], nodes: usize) {
        for (fault, gauge) in ClusterFault::ALL.iter().zip(&self.faults) {
            let count = troubles.iter().filter(|trouble| trouble.fault == *fault).count();
            gauge.set(u32::try_from(count).unwrap_or(u32::MAX));
        }
        self.nodes.set(u32::try_from(nodes).unwrap_or(u32::MAX));
    }
}
