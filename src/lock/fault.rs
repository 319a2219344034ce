//! What can be wrong with a lock node, by name.

/// What makes a node unfit to vote, or may do so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It may have forgotten locks that are still held: it waits.
    Quarantined,
    /// It is the same instance as another node.
    SharedInstance,
    /// It is a replica.
    Replica,
    /// It may drop locks when memory is short.
    Eviction,
    /// It refuses keys of other slots.
    Cluster,
    /// It lets nobody in from elsewhere without a password.
    ProtectedMode,
    /// Wrong or missing credentials, or too few permissions.
    Auth,
    /// It does not tell its `run_id`.
    Unidentified,
    /// It says what Redis does not say.
    Garbage,
    /// Its answers take too long for its votes to count.
    Slow,
    /// It belongs to another deployment.
    Foreign,
    /// Its marker has other nodes or another prefix than this proxy.
    Disagrees,
    /// Its clock has jumped forward.
    Clock,
    /// It does not tell its TIME.
    Unwatched,
}

impl Fault {
    /// All of them, each at its own number.
    pub const ALL: [Fault; 14] = [
        Fault::Quarantined,
        Fault::SharedInstance,
        Fault::Replica,
        Fault::Eviction,
        Fault::Cluster,
        Fault::ProtectedMode,
        Fault::Auth,
        Fault::Unidentified,
        Fault::Garbage,
        Fault::Slow,
        Fault::Foreign,
        Fault::Disagrees,
        Fault::Clock,
        Fault::Unwatched,
    ];

    /// Its name in metrics and in LOCKGATE NODES.
    pub fn name(self) -> &'static str {
        match self {
            Fault::Quarantined => "quarantined",
            Fault::SharedInstance => "shared_instance",
            Fault::Replica => "replica",
            Fault::Eviction => "eviction",
            Fault::Cluster => "cluster",
            Fault::ProtectedMode => "protected_mode",
            Fault::Auth => "auth",
            Fault::Unidentified => "unidentified",
            Fault::Garbage => "garbage",
            Fault::Slow => "slow",
            Fault::Foreign => "foreign",
            Fault::Disagrees => "disagrees",
            Fault::Clock => "clock",
            Fault::Unwatched => "unwatched",
        }
    }

    /// What it means, in half a sentence.
    pub fn meaning(self) -> &'static str {
        match self {
            Fault::Quarantined => "it may have forgotten locks that are still held",
            Fault::SharedInstance => "it is the same instance as another node",
            Fault::Replica => "it is a replica, whose votes are not its own",
            Fault::Eviction => "its maxmemory-policy is not noeviction, so it may drop locks",
            Fault::Cluster => "it is in cluster mode, where it refuses keys of other slots",
            Fault::ProtectedMode => "it is in protected mode and lets nobody in from elsewhere",
            Fault::Auth => "it refuses the credentials, or allows them too little",
            Fault::Unidentified => "it does not tell its run_id, so a restart would go unseen",
            Fault::Garbage => "it answers what Redis does not answer",
            Fault::Slow => "it mostly takes more than half of locks.node_timeout to answer",
            Fault::Foreign => "it belongs to another deployment",
            Fault::Disagrees => "it was set up with other nodes or another prefix",
            Fault::Clock => "its clock has jumped forward, so it may have ended locks too early",
            Fault::Unwatched => "it does not tell its TIME, so a jump of its clock would go unseen",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_stands_at_its_own_number() {
        for (index, fault) in Fault::ALL.into_iter().enumerate() {
            assert_eq!(fault as usize, index);
        }
    }
}
