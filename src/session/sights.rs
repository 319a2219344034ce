//! What was seen of commands that the data node has not answered yet: idioms on adopted keys, and
//! writes that guards only count.
//!
//! A sight counts once the command is answered, unless the data node refuses the client. So nothing is learned,
//! counted or logged of a client that the data node has not let in, nor of what a client may not do. [`settling`]
//! does the counting.
//!
//! [`settling`]: super::settling

use std::collections::VecDeque;

use super::rare::Unchanged;
use crate::{
    adopt::{Sighting, transaction::TransactionPart},
    guard::Need,
};

/// Most sights of one connection that wait for replies. A client gets there only by a long pipeline;
/// what is beyond counts at once if the data node has let the client in.
pub(super) const MOST: usize = 256;
/// Most bodies among them. Clients that the data node has not let in choose how long these are.
const MOST_BODIES: usize = 4;

/// What was seen of one command.
pub(super) enum SeenCommand {
    /// An idiom on an adopted key.
    Idiom(Sighting),
    /// A command with the body of a script, of a client that the data node may not have let in: the
    /// body is read once it has.
    Body(TransactionPart, Vec<u8>),
    /// A write that passes whether its locks are held or not, with the first lock that is not held.
    Write(Option<Need>),
}

/// What was seen on one connection.
#[derive(Default)]
pub(super) struct Sights {
    /// Sights of the command that is being looked at.
    pub(super) fresh: Vec<SeenCommand>,
    /// Sights of commands whose replies are missing, the oldest first.
    pub(super) waiting: VecDeque<SeenCommand>,
    /// A refused adopted command of this connection was logged.
    pub(super) is_refusal_told: bool,
}

impl Unchanged for Sights {
    const UNCHANGED: &'static Sights =
        &Sights { fresh: Vec::new(), waiting: VecDeque::new(), is_refusal_told: false };
}

impl Sights {
    /// Whether the body of one more script may wait.
    pub(super) fn has_room_for_body(&self) -> bool {
        let all = self.fresh.iter().chain(&self.waiting);
        all.filter(|sight| matches!(sight, SeenCommand::Body(..))).count() < MOST_BODIES
    }

    /// Forgets what waits for replies: they are not followed any more.
    pub(super) fn forget(&mut self) {
        self.fresh = Vec::new();
        self.waiting = VecDeque::new();
    }
}
