//! Whose turn it is to seal the set before, where several coordinators change the lock nodes at once.
//!
//! Whoever comes later takes the seal, as the one before may have died. Whoever lost it so waits for the
//! other: two that took it from each other would never end where copying takes a while. So each
//! coordinator takes it once, and the last one copies.

use std::collections::BTreeSet;

/// What is to be done about a set that was found standing, or sealed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SealTurn {
    /// The locks are copied under this seal, which is this coordinator's.
    Copy(u64),
    /// This coordinator seals the set by a seal of its own.
    Seal,
    /// Another coordinator works under a seal that came behind this one's.
    Wait,
}

/// The seals of one coordinator.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Seals {
    /// Those that it has written or found before it wrote its own. Any other one came later.
    before: BTreeSet<u64>,
    /// The last one that it has written, if nothing was copied under it yet.
    unused: Option<u64>,
}

impl Seals {
    /// Whose turn it is. `found`: the seal of the set; `None`: the set stands.
    pub(super) fn turn(&mut self, found: Option<u64>) -> SealTurn {
        match (found, self.unused.take()) {
            (Some(found), Some(own)) if found == own => SealTurn::Copy(own),
            (Some(found), _) if !self.before.is_empty() && !self.before.contains(&found) => {
                SealTurn::Wait
            }
            _ => SealTurn::Seal,
        }
    }

    /// Notes a seal that no other one is, which is to replace the one that was `found`.
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
        // What was copied has come to nothing.
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
