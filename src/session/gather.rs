//! A large command that must be whole before it is known whether guards are about it. For a client
//! that has not authenticated, no more is gathered than Redis would read.

use std::sync::Arc;

use crate::{
    guard::Guards,
    resp::words::{Walk, WordStep, too_much_of_a_stranger},
};

/// A large command that stays unsent until it is whole.
pub(super) struct Gather {
    /// How many bytes are needed before another look is worth it.
    pub(super) need: usize,
    pub(super) walk: Walk,
    pub(super) guards: Arc<Guards>,
}

/// Result of taking in more bytes of such a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Gathered {
    /// More bytes are to come.
    Part,
    /// The command is whole, or larger than is allowed.
    Enough,
}

impl Gather {
    /// Looks at the command's bytes so far. `known`: the client has authenticated.
    pub(super) fn more(&mut self, held: &[u8], known: bool) -> Gathered {
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
