//! Commands whose bytes are dropped as they arrive, and which are answered behind their last byte.

use std::sync::Arc;

use super::{
    guarded::needs::Guarded,
    jobs::{
        Waits,
        adopted_exec::Misfit,
        own::OwnCommand,
        pass::{Instead, StrangerRefused},
    },
    loss_news::Refused,
};
use crate::{
    adopt::task::AdoptTask,
    command::{BadRequest, max_words},
    guard::{Guards, Stop},
    resp::name::Own,
};

/// A command whose bytes are dropped.
pub(super) enum Dropping {
    /// A command of ours that is too long to be valid.
    TooLong {
        own: Own,
        /// Number of words, the name included.
        words: usize,
    },
    /// Any command: the client must first be told that its lock is lost.
    Lost(Refused),
    /// A write that cannot be checked against the guards.
    Unguardable(Arc<Guards>, Why),
    /// A command on an adopted key that is too long to be a lock idiom.
    Adopted(Box<AdoptTask>),
    /// A command in whose place these bytes are forwarded, which have one plain reply.
    Replaced(Vec<u8>),
    /// A command of a client that the data node has not let in, and the data node's error.
    Stranger(Vec<u8>),
    /// A command that does not fit into a transaction about an adopted lock, and the error for it.
    Misfit(&'static str),
}

/// Reason why a write cannot be checked against the guards.
#[derive(Debug, Clone, Copy)]
pub(super) enum Why {
    /// The write is larger than `guards.max_command`.
    TooLarge,
    /// The large commands of other clients take all the room.
    NoRoom,
}

impl Dropping {
    /// Returns the answer that waits for its place, once the last byte has been seen.
    pub(super) fn end(self) -> Box<dyn Waits> {
        match self {
            Dropping::Lost(refused) => Box::new(refused),
            Dropping::Adopted(task) => Box::new(OwnCommand::adopted(task, 0)),
            Dropping::Replaced(instead) => Box::new(Instead(instead)),
            Dropping::Stranger(error) => Box::new(StrangerRefused(error)),
            Dropping::Misfit(error) => Box::new(Misfit(error)),
            Dropping::Unguardable(guards, why) => {
                let stop = match why {
                    Why::TooLarge => Stop::TooLarge,
                    Why::NoRoom => Stop::NoRoom,
                };
                Box::new(Guarded::new(0, None, stop, &guards))
            }
            Dropping::TooLong { own, words } => {
                let error = match own {
                    Own::Mlock | Own::Munlock if words <= max_words(own) => BadRequest::KeysTooLong,
                    Own::Mlock | Own::Munlock => BadRequest::TooManyKeys,
                    _ if words <= max_words(own) => BadRequest::TooLong,
                    Own::Lock | Own::Renew => BadRequest::TooManyWords,
                    Own::Unlock | Own::Attach | Own::Detach | Own::Lockgate | Own::Command => {
                        BadRequest::Arity(own)
                    }
                };
                Box::new(OwnCommand::dropped(own, error))
            }
        }
    }
}
