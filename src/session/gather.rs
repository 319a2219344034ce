//! A look at each command whether guards are about it, and large ones held until they
//! are whole. Of a client that has not said who it is no more is held than Redis would.

use std::task::Context;

use super::{Session, barrier::Barrier, guarded::Guarded, intercept::Dropping};
use crate::{
    guard::{Look, Room, catalog::Table},
    resp::{
        encode,
        name::ReplyMode,
        words::{Step, Walk, too_much_of_a_stranger},
    },
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
    pub(super) fn guard(
        &mut self,
        cx: &Context<'_>,
        commands: Option<&Table>,
        bytes: &[u8],
    ) -> Guarding {
        if let (Some(guards), Some(commands)) = (&self.shared.guards, commands)
            && guards.is_free(commands, bytes)
        {
            return Guarding::Pass;
        }
        self.look_closely(cx, commands, bytes)
    }

    #[cold]
    fn look_closely(
        &mut self,
        cx: &Context<'_>,
        commands: Option<&Table>,
        bytes: &[u8],
    ) -> Guarding {
        let Some(guards) = &self.shared.guards else { return Guarding::Pass };
        let no_room = Guarding::Dropping(Dropping::Unguardable { too_large: false });
        if std::mem::take(&mut self.no_room) {
            return no_room;
        }
        let look = guards.look(commands, bytes);
        match look {
            Look::Free => Guarding::Pass,
            Look::Audited(needs) => {
                self.audit(&needs);
                Guarding::Pass
            }
            _ if !self.state.known && too_much_of_a_stranger(bytes).is_some() => {
                self.wait(Barrier::identify());
                Guarding::Kept
            }
            Look::TooLarge => Guarding::Dropping(Dropping::Unguardable { too_large: true }),
            Look::More(need, walk) => match guards.room(bytes.len(), Some(cx.waker())) {
                Some(room) => {
                    self.gather = Some(Box::new(Gather { need, walk, room }));
                    Guarding::Kept
                }
                None => no_room,
            },
            Look::Stop(length, stop) => match guards.room(length, None) {
                Some(room) => {
                    debug_assert!(length <= bytes.len());
                    self.wait(Barrier::of(Guarded::write(length, stop, Some(room))));
                    Guarding::Kept
                }
                None => no_room,
            },
        }
    }

    /// Whether enough of a large command has come to look at it again, or no more of it is
    /// to be held.
    pub(super) fn is_gathered(&mut self, cx: &Context<'_>) -> bool {
        let Some(gather) = &mut self.gather else { return true };
        if !gather.room.grow(self.held.len(), Some(cx.waker())) {
            self.no_room = true;
            self.gather = None;
            return true;
        }
        if self.held.len() < gather.need {
            return false;
        }
        if let Step::More(need) = gather.walk.finish(&self.held)
            && let Some(guards) = &self.shared.guards
            && need <= guards.max_command
            && (self.state.known || too_much_of_a_stranger(&self.held).is_none())
        {
            gather.need = need;
            return false;
        }
        // All there, or more than is allowed.
        self.gather = None;
        true
    }

    /// Lets a large command go whose room others were given, as nothing more of it came.
    pub(super) fn look_after_gather(&mut self) {
        if self.gather.as_ref().is_some_and(|gather| gather.room.is_lost()) {
            (self.gather, self.no_room, self.rescan) = (None, true, true);
        }
    }

    /// All earlier replies are in, and none has told that the client has said who it is:
    /// asks for one that does.
    pub(super) fn begin_identify(&mut self, barrier: Box<Barrier>) {
        if self.state.known || self.reply_mode != ReplyMode::On {
            self.rescan = true;
            self.state.known = true;
            return;
        }
        self.ask(|out| encode::command(out, &[b"PING"]));
        self.barrier = Some(barrier.probes());
    }

    /// Goes on with the command, or has Redis refuse it as it would that of a stranger.
    pub(super) fn identified(&mut self, reply: &[u8]) {
        if !reply.starts_with(b"-NOAUTH") {
            (self.state.known, self.rescan) = (true, true);
            return;
        }
        // The least that is refused alike: Redis words the error and closes.
        let least = too_much_of_a_stranger(&self.held).unwrap_or(b"*11\r\n");
        self.to_upstream.push(least);
        self.held = Vec::new();
        self.relay_from_here();
        (self.unguarded, self.broken) = (false, true);
        self.start_linger();
    }
}
