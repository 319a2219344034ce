//! Counters of shared upstream connections.

use metrics::{Counter, Gauge, counter, describe_counter, describe_gauge, gauge};

use crate::metrics::labels;

labels! {
    /// Why a client got a connection of its own; the label `by` of `lockgate_pinned_total`.
    pub(super) enum PinCause {
        /// MULTI, or WATCH.
        Transaction = "transaction",
        /// A subscription, or MONITOR.
        PubSub = "pubsub",
        /// A command that may block its connection.
        Blocking = "blocking",
        /// A CLIENT subcommand other than SETNAME and SETINFO.
        Client = "client",
        /// SELECT of another database, behind other commands.
        Select = "select",
        /// A command of more than 64 KB.
        Large = "large",
        /// A command that is not known to leave nothing behind in its connection.
        Other = "other",
        /// A line instead of an array of words.
        Inline = "inline",
        /// Bytes that Redis would refuse as no command.
        Broken = "broken",
        /// A command that Redis would refuse of a client that has not authenticated, and close the connection.
        Stranger = "stranger",
        /// Commands with large replies.
        Replies = "replies",
        /// More names than are remembered.
        Names = "names",
    }
}

/// Gives each metric its help text. Install the recorder first.
pub(crate) fn describe() {
    describe_counter!(
        "lockgate_pinned_total",
        "Clients that got an upstream connection of their own, with share: yes, by what they sent."
    );
    describe_gauge!("lockgate_links", "Upstream connections that clients share.");
    describe_counter!(
        "lockgate_link_ends_total",
        "Shared upstream connections that the data node has ended."
    );
    describe_counter!(
        "lockgate_link_pushes_total",
        "Pushes dropped, as they came over a shared connection and belong to nobody."
    );
}

/// Handles for all links.
pub(super) struct ShareMetrics {
    /// By [`PinCause`].
    pinned: Vec<Counter>,
    pub(super) links: Gauge,
    pub(super) link_ends: Counter,
    pub(super) pushes: Counter,
}

impl ShareMetrics {
    pub(super) fn new() -> ShareMetrics {
        let pinned = |by: PinCause| counter!("lockgate_pinned_total", "by" => by.as_str());
        ShareMetrics {
            pinned: PinCause::ALL.map(pinned).into(),
            links: gauge!("lockgate_links"),
            link_ends: counter!("lockgate_link_ends_total"),
            pushes: counter!("lockgate_link_pushes_total"),
        }
    }

    pub(super) fn pinned(&self, by: PinCause) {
        self.pinned[by as usize].increment(1);
    }
}
