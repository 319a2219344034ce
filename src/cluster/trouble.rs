//! What can be wrong with a cluster, and what to do about it.

use std::fmt;

use crate::metrics::labels;

labels! {
    /// What is wrong with a cluster; the label `fault` of `lockgate_cluster_fault`, and of
    /// `lockgate_lock_cluster_fault`.
    pub(crate) enum ClusterFault {
        /// A node that is named in the configuration cannot be reached, or does not answer in time.
        Unreachable = "unreachable",
        /// A node refuses the user and password, or the user may not ask.
        Auth = "auth",
        /// What listens there is no node of a cluster.
        Off = "off",
        /// The cluster has only one node.
        Alone = "alone",
        /// Some slots have no master.
        Uncovered = "uncovered",
        /// A node has no front.
        NoFront = "no_front",
        /// A node announces an address that cannot be reached.
        Address = "address",
        /// A node announces no front, so clients are sent an address that leads past the proxy.
        Past = "past",
        /// The other nodes say that a node is down.
        Down = "down",
        /// A node named in the configuration belongs to another cluster.
        Foreign = "foreign",
        /// Too few masters answer to know whether another one has been elected.
        Minority = "minority",
        /// The cluster has more shards than it may have as a lock node.
        TooMany = "too_many",
        /// Slots of a lock node are in doubt: they have left a shard that waits, or it is not known where they have
        /// been.
        InDoubt = "in_doubt",
    }
}

impl ClusterFault {
    /// Whether clients are not served as they should be; otherwise it is only a hint.
    pub(crate) fn is_grave(self) -> bool {
        !matches!(self, ClusterFault::Alone | ClusterFault::Down)
    }

    /// Returns what to do about it.
    pub(crate) fn advice(self) -> &'static str {
        match self {
            ClusterFault::Unreachable => {
                "Is it running, is its address under cluster right, and does a firewall stand between?"
            }
            ClusterFault::Auth => {
                "Put user and password into username and password beside cluster; the user needs \
                 +cluster|nodes +ping."
            }
            ClusterFault::Off => {
                "Set cluster-enabled yes in its redis.conf; for a Redis alone write \
                 redis://host:port."
            }
            ClusterFault::Alone => {
                "Join the others with redis-cli --cluster create or CLUSTER MEET; for a Redis alone \
                 write redis://host:port."
            }
            ClusterFault::Uncovered => {
                "redis-cli --cluster check HOST:PORT says which, --cluster fix assigns them; commands \
                 on their keys get -CLUSTERDOWN."
            }
            ClusterFault::NoFront => {
                "Add an address to listen for each node, masters and replicas, and restart or \
                 upgrade; until then clients are not told of the node."
            }
            ClusterFault::Address => {
                "Set cluster-announce-ip (and -port) on the node to an address that is reached from \
                 here, or name the node under cluster by one."
            }
            ClusterFault::Past => {
                "announce is off: have the node announce its front (docs/moving-data-node.md), or leave announce \
                 out; until then clients are led past the proxy, and to that node not at all where \
                 guards are enforced."
            }
            ClusterFault::Down => {
                "Its front closes connections until it is back; CLUSTER FORGET it if it does not come \
                 back."
            }
            ClusterFault::Foreign => "Name nodes of one cluster under cluster.",
            ClusterFault::Minority => {
                "No lock is granted there: let the proxy reach more than half of the masters."
            }
            ClusterFault::InDoubt => {
                "It passes by itself. Move no slots away from a shard that waits, and none while no \
                 proxy runs."
            }
            ClusterFault::TooMany => {
                "No lock of the shards that have no seat is granted. Set shards in all proxies' files \
                 to more than there will ever be; that is a new deployment (lockgate init)."
            }
        }
    }
}

/// One thing that is wrong with a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ClusterTrouble {
    pub(crate) fault: ClusterFault,
    /// What is wrong, with the node that it is about.
    pub(crate) what: String,
}

impl ClusterTrouble {
    pub(crate) fn new(fault: ClusterFault, what: impl Into<String>) -> ClusterTrouble {
        ClusterTrouble { fault, what: what.into() }
    }
}

impl fmt::Display for ClusterTrouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}. {}", self.what, self.fault.advice())
    }
}
