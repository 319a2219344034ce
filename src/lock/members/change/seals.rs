//! Whose turn it is to seal the set before, if several coordinators change the lock nodes at once.
//!
//! A coordinator that comes later takes the seal, as the earlier one may have died. The one that lost it then waits
//! for the other: two that kept taking it from each other would never end if copying takes a while. So each
//! coordinator takes it once, and the last one copies.

use std::collections::BTreeSet;

/// What to do about a set that was found standing, or sealed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SealTurn {
    /// Copy the locks under this seal, which is this coordinator's.
    Copy(u64),
    /// Seal the set with a new seal.
    Seal,
    /// Wait, as another coordinator works under a seal that came after this one's.
    Wait,
}

/// The seals of one coordinator.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Seals {
    /// The seals that it has written, or found before it wrote its own. Any other seal came later.
    before: BTreeSet<u64>,
    /// The last seal that it has written, if nothing was copied under it yet.
    unused: Option<u64>,
}

impl Seals {
    /// Says whose turn it is. `found`: the seal of the set; `None`: the set stands.
    pub(super) fn turn(&mut self, found: Option<u64>) -> SealTurn {
        match (found, self.unused.take()) {
            (Some(found), Some(own)) if found == own => SealTurn::Copy(own),
            (Some(found), _) if !self.before.is_empty() && !self.before.contains(&found) => {
                SealTurn::Wait
            }
            _ => SealTurn::Seal,
        }
    }

    /// Notes a unique seal, which is to replace the one that was `found`.
    pub(super) fn replaces(&mut self, found: Option<u64>, own: u64) {
        self.before.extend(found.into_iter().chain([own]));
        self.unused = Some(own);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seal_is_taken_from_another_once() {
        let (mut one, mut other) = (Seals::default(), Seals::default());
        assert_eq!(one.turn(None), SealTurn::Seal);
        one.replaces(None, 1);
        assert_eq!(other.turn(Some(1)), SealTurn::Seal);
        other.replaces(Some(1), 2);
        assert_eq!(one.turn(Some(2)), SealTurn::Wait);
        assert_eq!(other.turn(Some(2)), SealTurn::Copy(2));
        // The copy came to nothing.
        assert_eq!(other.turn(Some(2)), SealTurn::Seal);
        other.replaces(Some(2), 3);
        assert_eq!(one.turn(Some(3)), SealTurn::Wait);
        assert_eq!(other.turn(Some(3)), SealTurn::Copy(3));
    }

    #[test]
    fn who_could_not_replace_a_seal_tries_again() {
        let mut one = Seals::default();
        assert_eq!(one.turn(Some(7)), SealTurn::Seal);
        one.replaces(Some(7), 1);
        assert_eq!(one.turn(Some(7)), SealTurn::Seal);
    }
}
