//! A large command that must be whole before it is known whether guards are about it. Of a client
//! that has not said who it is no more is held than Redis would.

use std::{sync::Arc, task::Waker};

use crate::{
    guard::{Guards, Room},
    resp::words::{Walk, WordStep, too_much_of_a_stranger},
};

/// A large command that is held until it is whole.
pub(super) struct Gather {
    /// How many bytes are needed before it is worth another look.
    pub(super) need: usize,
    pub(super) walk: Walk,
    pub(super) room: Room,
    pub(super) guards: Arc<Guards>,
}

/// What more bytes of such a command come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Gathered {
    /// There are more to come.
    Part,
    /// All of it is there, or more than is allowed.
    Enough,
    /// Others were given its room.
    NoRoom,
}

impl Gather {
    /// So much of the command is there. `known`: the client has said who it is. `waker`: of its
    /// session.
    pub(super) fn more(&mut self, held: &[u8], known: bool, waker: &Waker) -> Gathered {
        if !self.room.grow(held.len(), Some(waker)) {
            return Gathered::NoRoom;
        }
        if held.len() < self.need {
            return Gathered::Part;
        }
        if let WordStep::More(need) = self.walk.finish(held)
            && need <= self.guards.max_command
            && (known || too_much_of_a_stranger(held).is_none())
        {
            self.need = need;
            return Gathered::Part;
        }
        Gathered::Enough
    }
}
