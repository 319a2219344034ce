//! What a look at one command has found.

use super::{
    sighting::Sighting,
    task::{AdoptTask, QueuedWork, SentBy},
};

/// What was found in a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum AdoptLook {
    /// The command is not about adopted keys.
    Free,
    /// At least this many bytes of the command are needed, at most [`MAX_LOOK`](super::MAX_LOOK).
    More(usize),
    /// An idiom, or a command that should not be sent on an adopted key.
    Found(Found),
    /// A SCRIPT EXISTS, in whose place this is forwarded.
    Exists(Vec<u8>),
    /// A FLUSHDB or FLUSHALL that, by some rule, frees locks.
    Flush(FlushCommand),
}

/// A FLUSHDB or FLUSHALL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FlushCommand {
    /// The command as the data node is sent it.
    pub(crate) command: Vec<u8>,
    /// Whether all databases are meant, not the selected one alone.
    pub(crate) is_all: bool,
    /// The length of the client's own command, in bytes.
    pub(crate) length: usize,
}

/// An idiom and its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Found {
    /// The idiom.
    pub(crate) sighting: Sighting,
    /// A hash of its first key, which is valid within this process only.
    pub(crate) key: u64,
    /// The number of keys.
    pub(crate) keys: usize,
    /// The number of those that are locks.
    pub(crate) locks: usize,
    /// What the proxy does in place of the command; `None`: the command is forwarded.
    pub(crate) task: Option<Box<AdoptTask>>,
    /// What the lock nodes do in addition to the data node, to which the command is forwarded: another
    /// proxy has bridged its rule.
    pub(crate) beside: Option<Box<AdoptTask>>,
    /// What the command does in the known transaction about its key; `None`: that transaction has no
    /// such command.
    pub(crate) queued: Option<QueuedWork>,
    /// The command's length in bytes; 0: it is too large to be looked at.
    pub(crate) length: usize,
}

impl Found {
    /// Makes what was found in a command whose first key has this hash.
    pub(super) fn new(sighting: Sighting, key: u64) -> Found {
        let (keys, locks, length) = (0, 0, 0);
        let (task, beside, queued) = (None, None, None);
        Found { sighting, key, keys, locks, task, beside, queued, length }
    }
}

impl AdoptLook {
    pub(super) fn task(&mut self) -> Option<&mut AdoptTask> {
        match self {
            AdoptLook::Found(found) => found.task.as_deref_mut(),
            _ => None,
        }
    }

    /// Notes the command's length in bytes, and its sender.
    pub(super) fn of_length(mut self, bytes: usize) -> AdoptLook {
        if let AdoptLook::Flush(flush) = &mut self {
            flush.length = bytes;
        }
        if let AdoptLook::Found(found) = &mut self {
            found.length = bytes;
            let Sighting { library, form, .. } = found.sighting;
            if let Some(task) = &mut found.task {
                task.sender = SentBy { library, form };
            }
        }
        self
    }
}
