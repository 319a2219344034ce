//! The name of one grant.

use std::fmt;

/// Names one grant of a lock on the nodes, from its first vote to its release: kept when
/// the lock is taken again, raised and put back. Release, undo, renewal and hand-over go by
/// it, so that none of them meets another grant of the same token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Claim(u64);

impl Claim {
    /// One that nobody else has.
    pub(super) fn new() -> Claim {
        // Lua's numbers are exact up to 2^53; 0 says that there is none.
        Claim((rand::random::<u64>() >> 12).max(1))
    }

    /// As a node told it; none: it has none.
    pub(super) fn read(number: i64) -> Option<Claim> {
        u64::try_from(number).ok().filter(|number| *number > 0).map(Claim)
    }

    /// As the scripts write it.
    pub(super) fn number(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
