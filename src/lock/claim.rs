//! The name of one grant.

use std::fmt;

use crate::key::Key;

/// The smallest claim. Claims have sixteen digits, so that none is the beginning of another, and
/// are below 2^53, up to which Lua's numbers are exact.
const FIRST: u64 = 1_000_000_000_000_000;
/// The smallest claim of a lock that was taken over.
const TAKEN_OVER: u64 = 8_000_000_000_000_000;
/// The smallest claim of a grant to an adopted command.
const ADOPTED: u64 = 9_000_000_000_000_000;
/// The smallest claim of a grant to an adopted command that named no TTL.
const ENDLESS: u64 = 9_007_000_000_000_000;
const END: u64 = 1 << 53;

/// The name of one grant of a lock on the nodes, from its first vote to its release. The claim is kept when the lock
/// is taken again, raised and put back. Release, undo, renewal and hand-over name it, so that none of them affects
/// another grant of the same token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Claim(u64);

impl Claim {
    /// The claim of no grant: it stands for a holder that has only the key of a bridged lock on the data node. Blind
    /// commands may end that.
    pub(crate) const PAST_THE_NODES: Claim = Claim(ADOPTED);

    /// Stands for the claim of a grant whose node stores none: it was made past Lockgate.
    pub(crate) const NOT_STORED: Claim = Claim(1);

    /// Makes a claim that no other grant has.
    pub(crate) fn new() -> Claim {
        Claim(FIRST + rand::random::<u64>() % (TAKEN_OVER - FIRST))
    }

    /// Makes a claim that no other grant has, for a lock whose token has it already. Any proxy can tell from the claim
    /// that the token may have had the lock before.
    pub(crate) fn taken_over() -> Claim {
        Claim(TAKEN_OVER + rand::random::<u64>() % (ADOPTED - TAKEN_OVER))
    }

    /// Makes a claim that no other grant has, for an adopted command. Blind commands (DEL) may end only grants with
    /// such a claim.
    pub(crate) fn adopted() -> Claim {
        Claim(ADOPTED + 1 + rand::random::<u64>() % (ENDLESS - ADOPTED - 1))
    }

    /// Makes a claim as [`Claim::adopted`] does, for a session lock that the command took without a TTL. Any proxy can
    /// tell from the claim that the command named none, whatever TTL the lock has on the nodes.
    pub(crate) fn endless() -> Claim {
        Claim(ENDLESS + rand::random::<u64>() % (END - ENDLESS))
    }

    /// Whether the lock was taken over by its token. Versions before 0.3 give an eighth of all grants such a claim.
    pub(crate) fn is_taken_over(self) -> bool {
        (TAKEN_OVER..ADOPTED).contains(&self.0)
    }

    /// Whether the grant was made to an adopted command.
    pub(crate) fn is_adopted(self) -> bool {
        self.0 >= ADOPTED
    }

    /// Whether the grant was made to an adopted command that named no TTL.
    pub(crate) fn is_endless(self) -> bool {
        self.0 >= ENDLESS
    }

    /// Returns the key under which the reader of a lock is kept that has this claim.
    pub(crate) fn key_of_reader(self, lock: &Key) -> Key {
        lock.of_reader(self.0)
    }

    /// Reads a claim from a node's answer. Returns `None` if the node stores none.
    pub(super) fn read(number: i64) -> Option<Claim> {
        u64::try_from(number).ok().filter(|number| (FIRST..END).contains(number)).map(Claim)
    }

    /// Returns the claim of a grant in a node's answer, or [`Claim::NOT_STORED`].
    pub(super) fn told(number: i64) -> Claim {
        Claim::read(number).unwrap_or(Claim::NOT_STORED)
    }

    /// Returns a claim by which nodes release the grant: where none is stored, any claim will do.
    pub(super) fn to_release(self) -> Claim {
        if self == Claim::NOT_STORED { Claim::new() } else { self }
    }

    /// Returns the claim as the scripts write it.
    pub(super) fn number(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_tells_to_whom_the_grant_was_made() {
        for _ in 0..1000 {
            let all = [Claim::new(), Claim::taken_over(), Claim::adopted(), Claim::endless()];
            assert_eq!(all.map(Claim::is_taken_over), [false, true, false, false]);
            assert_eq!(all.map(Claim::is_adopted), [false, false, true, true]);
            assert_eq!(all.map(Claim::is_endless), [false, false, false, true]);
            for claim in all {
                assert_eq!(Claim::read(i64::try_from(claim.number()).unwrap()), Some(claim));
                assert_eq!(claim.to_string().len(), 16);
            }
        }
        assert!(Claim::PAST_THE_NODES.is_adopted() && !Claim::PAST_THE_NODES.is_endless());
    }
}
