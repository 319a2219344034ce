//! Decides for each command whether guards are about it.

use super::{
    core::{Core, First, READ_AHEAD, Turn},
    desk::Desk,
    dropping::{Dropping, Why},
    gather::{Gather, Gathered},
    guarded::needs::Guarded,
    jobs::pass::Unidentified,
};
use crate::guard::{
    Look, Room,
    catalog::{Glance, Table},
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
    /// Decides whether guards are about a command. `had_room` is `false` if other clients were given the room of this
    /// command.
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
            self.desk.room = None;
            return unguardable(Why::NoRoom);
        }
        let guards = guards.clone();
        let unguardable = |why| Guarding::Drop(Dropping::Unguardable(guards.clone(), why));
        match guards.look(commands, bytes) {
            Look::Free => Guarding::Pass,
            Look::Audited(needs) => {
                self.desk.audit(&needs);
                Guarding::Pass
            }
            // A client that the data node has not let in is not told which keys are guarded, nor counted as having
            // written one.
            _ if !self.desk.is_let_in() => {
                self.wait(Box::new(Unidentified));
                Guarding::Kept
            }
            Look::TooLarge => unguardable(Why::TooLarge),
            Look::More(need, walk) if self.desk.reserve_room(bytes.len(), false) => {
                self.turn = Turn::Gathering(Box::new(Gather { need, walk, guards }));
                Guarding::Kept
            }
            Look::Stop(length, stop, by_script) if self.desk.reserve_room(length, true) => {
                debug_assert!(length <= bytes.len());
                self.wait(Box::new(Guarded::new(length, by_script, stop, &guards)));
                Guarding::Kept
            }
            Look::More(..) | Look::Stop(..) => unguardable(Why::NoRoom),
        }
    }

    /// Takes in more of a large command. Has it looked at again once that may be enough, or once
    /// its room was given away.
    pub(super) fn gather_more(&mut self) {
        let Turn::Gathering(gather) = &mut self.turn else { return };
        let held = self.desk.unsent.len();
        if !self.desk.reserve_room(held, false) {
            self.turn = Turn::Again(First::NoRoom);
            return;
        }
        let Desk { unsent, conn, .. } = &self.desk;
        if gather.more(unsent, conn.state.known) == Gathered::Enough {
            // From here on the command's room is given to no other client, even while it is on its way to the data
            // node.
            let has_room = self.desk.reserve_room(held, true);
            self.turn = Turn::Again(if has_room { First::Anew } else { First::NoRoom });
        }
    }

    /// Has a large command refused that stopped arriving and whose room was given to other clients.
    pub(super) fn look_after_gather(&mut self) {
        let is_lost = self.desk.room.as_ref().is_some_and(Room::is_lost);
        if self.is_gathering() && is_lost {
            self.turn = Turn::Again(First::NoRoom);
        }
    }

    /// Gives the room of a large command back once nothing of it, and little of its answer, is held.
    #[cold]
    pub(super) fn give_back_room(&mut self) {
        let is_gone = matches!(self.turn, Turn::Client | Turn::Dropping(_))
            && self.desk.to_data.is_empty()
            && self.to_client.len() < READ_AHEAD;
        if is_gone {
            self.desk.room = None;
        }
    }
}
