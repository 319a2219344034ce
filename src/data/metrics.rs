//! Counters of a data node that is followed.

use metrics::{Counter, counter, describe_counter};

use crate::metrics::labels;

labels! {
    /// Why a Redis is not the data node any more; the label `reason` of
    /// `lockgate_data_switches_total`.
    pub(super) enum SwitchReason {
        /// A majority of the Sentinels names another.
        Sentinels = "sentinels",
        /// The Redis says that it is no master.
        Replica = "replica",
        /// The name leads to another, which says that it is a master.
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
}

/// Handles of a data node that is followed.
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
