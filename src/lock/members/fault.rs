//! Faults of a lock node, by name.

use crate::metrics::labels;

labels! {
    /// A fault that makes a node unfit to vote, or may do so. Its name is the label `fault` of `lockgate_node_fault`,
    /// and appears in LOCKGATE NODES and in the log.
    pub enum Fault {
        /// The node may have forgotten locks that are still held: it waits.
        Quarantined = "quarantined",
        /// The node is the same instance as another node.
        SharedInstance = "shared_instance",
        /// The node is a replica.
        Replica = "replica",
        /// The node may drop locks when memory is short.
        Eviction = "eviction",
        /// The node is in cluster mode, so it refuses keys of other slots.
        Cluster = "cluster",
        /// The node is in protected mode: it accepts no connection from another host without a password.
        ProtectedMode = "protected_mode",
        /// Wrong or missing credentials, or too few permissions.
        Auth = "auth",
        /// The node does not tell its `run_id`.
        Unidentified = "unidentified",
        /// The node sends what Redis never sends.
        Garbage = "garbage",
        /// The node often takes more than half of `locks.node_timeout` to answer.
        Slow = "slow",
        /// The node belongs to another deployment.
        Foreign = "foreign",
        /// The node's marker has other lock nodes or another prefix than this proxy.
        Disagrees = "disagrees",
        /// The node's clock has jumped forward.
        Clock = "clock",
        /// The node does not answer TIME.
        Unwatched = "unwatched",
        /// No majority of the node's Sentinels, or of its cluster's masters, has named it lately.
        Unconfirmed = "unconfirmed",
        /// The node answers all writes with an error.
        Refuses = "refuses",
        /// Other lock nodes are to replace this one, or have replaced it.
        Changing = "changing",
        /// An operator has paused the node: proxies ask it for no new locks.
        Paused = "paused",
    }
}

impl Fault {
    /// Describes the fault in half a sentence.
    pub(crate) fn meaning(self) -> &'static str {
        match self {
            Fault::Quarantined => "it may have forgotten locks that are still held",
            Fault::SharedInstance => "it is the same instance as another node",
            Fault::Replica => "it is a replica, whose votes are not its own",
            Fault::Eviction => "its maxmemory-policy is not noeviction, so it may drop locks",
            Fault::Cluster => {
                "it is a node of a cluster, where it refuses keys of other slots: name the cluster"
            }
            Fault::ProtectedMode => "it is in protected mode and lets nobody in from elsewhere",
            Fault::Auth => "it refuses the credentials, or allows them too little",
            Fault::Unidentified => "it does not tell its run_id, so a restart would go unseen",
            Fault::Garbage => "it answers what Redis does not answer",
            Fault::Slow => "it often takes more than half of locks.node_timeout to answer",
            Fault::Foreign => "it belongs to another deployment",
            Fault::Disagrees => "it was set up with other nodes or another prefix",
            Fault::Clock => "its clock has jumped forward, so it may have ended locks too early",
            Fault::Unwatched => "it does not tell its TIME, so a jump of its clock would go unseen",
            Fault::Refuses => {
                "it refuses writes: its disk or its memory is full, or replicas that it wants are missing"
            }
            Fault::Changing => {
                "other lock nodes are to take its place, or have taken it (lockgate nodes)"
            }
            Fault::Paused => "an operator has it asked for no new locks (LOCKGATE NODE)",
            Fault::Unconfirmed => {
                "no majority of its Sentinels, or of its cluster's masters, was heard lately to name it, so another may be \
                 the master"
            }
        }
    }
}
