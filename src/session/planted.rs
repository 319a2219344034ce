//! Faults put into a session on purpose, to show that the tests that should find them do. The simulation plants a
//! fault for a thread; a build with the feature `planted` takes it from LOCKGATE_PLANT. Other builds have none.

/// A fault that can be planted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PlantedFault {
    /// The fence is not announced on the data node at LOCK.
    Raise,
    /// The client is told the validity from before the announcement.
    ValidityOfBefore,
    /// A forgotten fence is announced again without asking the lock nodes.
    NoAsking,
    /// A fence counts as announced whatever has become of the data node.
    NoDoubt,
    /// A fence counts as announced whether replicas have acknowledged it or not.
    NoReplicas,
    /// A write shares a call with others whether its lock is held or not.
    Together,
    /// An answer does not wait for earlier replies.
    OutOfPlace,
    /// A session lock is renewed though its client has gone.
    Kept,
    /// A loss is pushed, and the next command is carried out all the same.
    Untold,
    /// Commands behind one that was refused for a loss are carried out.
    Pipeline,
    /// Session locks are released whoever ends the connection.
    GiveBack,
    /// Lock nodes hold an adopted lock for its TTL from when they were asked.
    ShortHold,
    /// An adopted command that extends a lock is answered as if it had, whoever holds the lock.
    ExtendedAnyway,
    /// A blind adopted command ends a lock that was taken by LOCK.
    BlindForAll,
    /// A connection forgets that it was refused a lock.
    ForgottenRefusal,
    /// A refusal excludes all later grants of the token too.
    AnyGrant,
    /// An UNLOCK without a token means whatever the connection holds.
    AnyAttempt,
    /// A MLOCK that is refused one of its locks keeps the others.
    SomeKept,
    /// A client is told the name of another permit than it got.
    OtherPermit,
}

#[cfg(test)]
thread_local! {
    static PLANTED: std::cell::Cell<Option<PlantedFault>> = const { std::cell::Cell::new(None) };
}

/// Plants a fault, or takes it out, on this thread.
#[cfg(test)]
pub(crate) fn plant(fault: Option<PlantedFault>) {
    PLANTED.set(fault);
}

/// Whether this fault was planted.
#[cfg(test)]
pub(super) fn has(fault: PlantedFault) -> bool {
    PLANTED.get() == Some(fault)
}

/// Whether this fault was planted.
#[cfg(all(feature = "planted", not(test)))]
pub(super) fn has(fault: PlantedFault) -> bool {
    let name = match fault {
        PlantedFault::Raise => "raise",
        PlantedFault::NoDoubt => "no doubt",
        PlantedFault::NoReplicas => "no replicas",
        PlantedFault::Untold => "untold",
        PlantedFault::Pipeline => "pipeline",
        PlantedFault::GiveBack => "give back",
        PlantedFault::ShortHold => "short hold",
        PlantedFault::ExtendedAnyway => "extended anyway",
        PlantedFault::BlindForAll => "blind for all",
        PlantedFault::SomeKept => "some kept",
        PlantedFault::OtherPermit => "other permit",
        _ => return false,
    };
    std::env::var("LOCKGATE_PLANT").is_ok_and(|planted| planted == name)
}

/// Whether this fault was planted.
#[cfg(not(any(feature = "planted", test)))]
#[inline]
pub(super) const fn has(_fault: PlantedFault) -> bool {
    false
}
