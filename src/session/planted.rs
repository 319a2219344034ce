//! Faults that are put into a session on purpose, so that the tests that are to find them can
//! show that they do: by the thread in the simulation, by LOCKGATE_PLANT in a build with the
//! feature `planted`. Anywhere else there are none.

/// Such a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PlantedFault {
    /// The data node is not told the fence at LOCK.
    Raise,
    /// The client is told as much validity as before the data node was told its fence.
    ValidityOfBefore,
    /// A fence that the data node has forgotten is raised again without asking.
    NoAsking,
    /// A write goes with others whether its lock is held or not.
    Together,
    /// An answer does not wait for earlier replies.
    OutOfPlace,
    /// A session lock is renewed though its client has gone.
    Kept,
    /// A loss is pushed, and the next command carried out all the same.
    Untold,
    /// What stands behind a command that was refused for a loss is carried out.
    Pipeline,
    /// Whoever ends a connection, its session locks are released.
    GiveBack,
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
        PlantedFault::Untold => "untold",
        PlantedFault::Pipeline => "pipeline",
        PlantedFault::GiveBack => "give back",
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
