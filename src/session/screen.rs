//! Decides for each command whether guards are about it.

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

/// Fate of a command that guards may be about.
pub(super) enum Guarding {
    /// Forwarded.
    Pass,
    /// Kept back, for its turn or for the rest of its bytes.
    Kept,
    /// Dropped: its bytes, as they arrive.
    Drop(Dropping),
}

impl Core {
    /// Looks at a command whether guards are about it. `had_room` is `false` if other clients were
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

    /// Takes in more of a large command. Has it looked at again once that may be enough, or once
    /// its room was given away.
    pub(super) fn gather_more(&mut self) {
        let Turn::Gathering(gather) = &mut self.turn else { return };
        let Desk { unsent, conn, waker, .. } = &self.desk;
        match gather.more(unsent, conn.state.known, waker) {
            Gathered::Part => {}
            Gathered::Enough => self.turn = Turn::Again(First::Anew),
            Gathered::NoRoom => self.turn = Turn::Again(First::NoRoom),
        }
    }

    /// Has a large command refused that stopped coming and whose room other clients were given.
    pub(super) fn look_after_gather(&mut self) {
        if matches!(&self.turn, Turn::Gathering(gather) if gather.room.is_lost()) {
            self.turn = Turn::Again(First::NoRoom);
        }
    }
}
