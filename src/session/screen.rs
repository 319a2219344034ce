//! A look at each command whether guards are about it.

use super::{
    core::{Core, First, Turn},
    desk::Desk,
    dropping::{Dropping, Why},
    gather::{Gather, Gathered},
    guarded::needs::Guarded,
    jobs::pass::Unidentified,
};
use crate::{
    guard::{
        Look,
        catalog::{Glance, Table},
    },
    resp::words::too_much_of_a_stranger,
};

/// What becomes of a command that guards may be about.
pub(super) enum Guarding {
    /// It is forwarded.
    Pass,
    /// It waits for its turn, or for the rest of itself.
    Kept,
    /// Its bytes are dropped as they come.
    Drop(Dropping),
}

impl Core {
    /// Looks at a command whether guards are about it. `had_room`: false where others were
    /// given the room of this command.
    pub(super) fn guard(
        &mut self,
        commands: Option<&Table>,
        glance: Glance,
        bytes: &[u8],
        had_room: bool,
    ) -> Guarding {
        let Some(guards) = &self.desk.shared.guards else { return Guarding::Pass };
        if commands.is_some_and(|commands| guards.is_free(commands, glance, bytes)) {
            return Guarding::Pass;
        }
        let unguardable = |why| Guarding::Drop(Dropping::Unguardable(guards.clone(), why));
        if !had_room {
            return unguardable(Why::NoRoom);
        }
        match guards.look(commands, bytes) {
            Look::Free => Guarding::Pass,
            Look::Audited(needs) => {
                self.desk.audit(&needs);
                Guarding::Pass
            }
            _ if !self.desk.conn.state.known && too_much_of_a_stranger(bytes).is_some() => {
                self.wait(Box::new(Unidentified));
                Guarding::Kept
            }
            Look::TooLarge => unguardable(Why::TooLarge),
            Look::More(need, walk) => match guards.room(bytes.len(), Some(&self.desk.waker)) {
                Some(room) => {
                    let guards = guards.clone();
                    self.turn = Turn::Gathering(Box::new(Gather { need, walk, room, guards }));
                    Guarding::Kept
                }
                None => unguardable(Why::NoRoom),
            },
            Look::Stop(length, stop, by_script) => match guards.room(length, None) {
                Some(room) => {
                    debug_assert!(length <= bytes.len());
                    let write = Guarded::new(length, by_script, stop, Some(room), guards);
                    self.wait(Box::new(write));
                    Guarding::Kept
                }
                None => unguardable(Why::NoRoom),
            },
        }
    }

    /// More of a large command has come: looks whether that is enough to look at it again, or
    /// no more of it is to be held.
    pub(super) fn gather_more(&mut self) {
        let Turn::Gathering(gather) = &mut self.turn else { return };
        let Desk { unsent, conn, waker, .. } = &self.desk;
        match gather.more(unsent, conn.state.known, waker) {
            Gathered::Part => {}
            Gathered::Enough => self.turn = Turn::Again(First::Anew),
            Gathered::NoRoom => self.turn = Turn::Again(First::NoRoom),
        }
    }

    /// Lets a large command go whose room others were given, as nothing more of it came.
    pub(super) fn look_after_gather(&mut self) {
        if matches!(&self.turn, Turn::Gathering(gather) if gather.room.is_lost()) {
            self.turn = Turn::Again(First::NoRoom);
        }
    }
}
