//! Commands that the client's stream goes on without: their bytes are dropped as they come, and
//! they are answered then.

use std::sync::Arc;

use super::{
    guarded::needs::Guarded,
    jobs::{Waits, own::OwnCommand},
    losses::Refused,
};
use crate::{
    command::{BadRequest, MAX_WORDS},
    guard::{Guards, Stop},
    resp::name::Own,
};

/// A command whose bytes are dropped.
pub(super) enum Dropping {
    /// One of ours, too long to be one.
    TooLong {
        /// Which.
        own: Own,
        /// How many words it has, the name included.
        words: usize,
    },
    /// Any: the client must first be told that its lock is lost.
    Lost(Refused),
    /// A write that cannot be checked against the guards.
    Unguardable(Arc<Guards>, Why),
}

/// Why a write cannot be checked against the guards.
#[derive(Debug, Clone, Copy)]
pub(super) enum Why {
    /// It is larger than `guards.max_command`.
    TooLarge,
    /// Others hold too much.
    NoRoom,
}

impl Dropping {
    /// Returns what waits to be answered once the last byte has been seen.
    pub(super) fn end(self) -> Box<dyn Waits> {
        match self {
            Dropping::Lost(refused) => Box::new(refused),
            Dropping::Unguardable(guards, why) => {
                let stop = match why {
                    Why::TooLarge => Stop::TooLarge,
                    Why::NoRoom => Stop::NoRoom,
                };
                Box::new(Guarded::new(0, None, stop, None, &guards))
            }
            Dropping::TooLong { own, words } => {
                let error = match own {
                    _ if words <= MAX_WORDS => BadRequest::TooLong,
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
