//! A look at each command whether guards are about it, and large ones held until they
//! are whole.

use super::{Session, barrier::Barrier, guarded::Guarded, intercept::Dropping};
use crate::{
    guard::{Look, Room, catalog::Table},
    resp::words::{Step, Walk},
};

/// A large command that must be whole before it is looked at.
pub struct Gather {
    /// How many bytes are needed before it is worth another look.
    need: usize,
    walk: Walk,
    room: Room,
}

/// What becomes of a command that guards may be about.
pub(super) enum Guarding {
    /// It is forwarded.
    Pass,
    /// It waits for its turn, or for the rest of itself.
    Kept,
    /// Its bytes are dropped as they come.
    Dropping(Dropping),
}

impl Session {
    /// Looks at a command whether guards are about it.
    pub(super) fn guard(&mut self, commands: Option<&Table>, bytes: &[u8]) -> Guarding {
        if let (Some(guards), Some(commands)) = (&self.shared.guards, commands)
            && guards.is_free(commands, bytes)
        {
            return Guarding::Pass;
        }
        self.look_closely(commands, bytes)
    }

    #[cold]
    fn look_closely(&mut self, commands: Option<&Table>, bytes: &[u8]) -> Guarding {
        let Some(guards) = &self.shared.guards else { return Guarding::Pass };
        let look = guards.look(commands, bytes);
        let room = |bytes| self.shared.guards.as_ref().and_then(|guards| guards.room(bytes));
        match look {
            Look::Free => Guarding::Pass,
            Look::Audited(needs) => {
                self.audit(&needs);
                Guarding::Pass
            }
            Look::TooLarge => Guarding::Dropping(Dropping::Unguardable { too_large: true }),
            Look::More(need, walk) => match room(need) {
                Some(room) => {
                    self.gather = Some(Box::new(Gather { need, walk, room }));
                    Guarding::Kept
                }
                None => Guarding::Dropping(Dropping::Unguardable { too_large: false }),
            },
            Look::Stop(length, stop) => match room(length) {
                Some(room) => {
                    debug_assert!(length <= bytes.len());
                    self.wait(Barrier::of(Guarded::write(length, stop, Some(room))));
                    Guarding::Kept
                }
                None => Guarding::Dropping(Dropping::Unguardable { too_large: false }),
            },
        }
    }

    /// Whether enough of a large command has come to look at it again.
    pub(super) fn is_gathered(&mut self) -> bool {
        let Some(gather) = &mut self.gather else { return true };
        if self.held.len() < gather.need {
            return false;
        }
        if let Step::More(need) = gather.walk.finish(&self.held)
            && let Some(guards) = &self.shared.guards
            && need <= guards.max_command
            && let Some(room) = guards.room(need)
        {
            (gather.need, gather.room) = (need, room);
            return false;
        }
        // All there, or more than is allowed.
        self.gather = None;
        true
    }
}
