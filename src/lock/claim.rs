//! The name of one grant.

use std::fmt;

/// The smallest claim. Claims have sixteen digits, so that none is the beginning of another, and
/// are below 2^53, up to which Lua's numbers are exact.
const FIRST: u64 = 1_000_000_000_000_000;
/// The smallest claim of a grant to an adopted command.
const ADOPTED: u64 = 9_000_000_000_000_000;
const END: u64 = 1 << 53;

/// The name of one grant of a lock on the nodes, from its first vote to its release. The claim is
/// kept when the lock is taken again, raised and put back. Release, undo, renewal and hand-over
/// name it, so that none of them meets another grant of the same token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Claim(u64);

impl Claim {
    /// A claim that no other grant has.
    pub(crate) fn new() -> Claim {
        Claim(FIRST + rand::random::<u64>() % (ADOPTED - FIRST))
    }

    /// A claim that no other grant has, of a grant to an adopted command: blind commands (DEL) may
    /// end such a grant, and no other.
    pub(crate) fn adopted() -> Claim {
        Claim(ADOPTED + rand::random::<u64>() % (END - ADOPTED))
    }

    /// Whether the grant was made to an adopted command.
    pub(crate) fn is_adopted(self) -> bool {
        self.0 >= ADOPTED
    }

    /// Reads a claim as a node tells it. Returns `None` if the node stores none, or one of version
    /// 0.1.
    pub(super) fn read(number: i64) -> Option<Claim> {
        u64::try_from(number).ok().filter(|number| (FIRST..END).contains(number)).map(Claim)
    }

    /// The claim as the scripts write it.
    pub(super) fn number(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
