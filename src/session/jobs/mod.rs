//! Commands that have the floor: nothing behind such a command is sent on before it is done.
//!
//! Each stage of such a command is a type of its own that holds exactly its data. A stage that waits for earlier
//! replies is a [`Waits`]; any other is a [`Job`]. An event (all earlier replies are in, the data node answers a
//! question of the proxy, the lock nodes answer) consumes the stage and returns a [`Progress`], which `Core::apply`
//! carries out.
//!
//! A stage that asks the lock nodes gives [`Progress::ask`] the function that hears the answer, and one that waits for the
//! data node gives it to [`Progress::await_replies`]. Where nothing else is to be known of a stage, that function holds
//! its data, and the stage is only [`Ours`].
//!
//! ```text
//! Command ─ all earlier replies are in ─┬─ it passes: the data node is to refuse it
//!                                       ├─ Probing ─ may this client lock this key? ─┐
//!                                       ├────────────────────────────────────────────┴─ Locking
//!                                       │   ┌─ the lock nodes have answered ──────────────┘
//!                                       │   ├─ Announcing ⇄ Raising: a lock that guards need
//!                                       └───┴──────┴─ Answering
//! ```
//!
//! - `pass`: ordinary commands that only wait.
//! - `adopted`: a lock idiom on a key of a bridged or enforced adopt rule; `adopted_lock`: what becomes of one lock;
//!   `adopted_many`: of several; `adopted_first`: of the first free one of several; `adopted_shared`: of its readers;
//!   `adopted_kept`: a lock without a TTL; `adopted_beside`: a lock that another proxy has bridged; `adopted_exec`: a
//!   transaction about one lock; `adopted_multi`: idioms inside a client's own transaction.
//! - `asking`: questions that do not go over the session's own connection. `awaiting`: stages that wait for an answer,
//!   or for replies of the data node.
//! - `own`: a command of ours, until the client is known to have permission.
//! - `authorize`: whether this client may lock this key.
//! - `lock`, `unlock`, `renewing`, `attaching`: one file for each of our commands about a lock; `lock_all` and
//!   `unlock_all`: MLOCK and MUNLOCK, about several. `permit`: LOCK with PERMITS; `lock_shared`: with SHARED. `own_grant`: which grant an UNLOCK or RENEW is about.
//! - `announce`: announces the fence of a lock that guards need on the data node.
//! - `undo`: gives back a lock whose LOCK was granted and is not answered.
//! - `inquiry`: LOCKGATE's answers; `inquiry_locks`: those about locks, holders and waiters. `acting`: what an operator
//!   makes the proxy do by LOCKGATE.
//! - `flushing`: FLUSHDB and FLUSHALL, which free adopted locks.
//! - `unsettled`: an adopted command about which too few lock nodes answered.
//! - `lost`: commands that were dropped because the client must be told of a loss first.

mod acting;
pub(super) mod adopted;
pub(super) mod adopted_beside;
pub(super) mod adopted_exec;
mod adopted_first;
mod adopted_kept;
mod adopted_lock;
mod adopted_many;
pub(super) mod adopted_multi;
mod adopted_shared;
pub(super) mod announce;
mod asking;
mod attaching;
pub(super) mod authorize;
mod awaiting;
pub(super) mod flushing;
mod inquiry;
mod inquiry_locks;
mod lock;
mod lock_all;
mod lock_shared;
pub(super) mod lost;
pub(super) mod own;
mod own_grant;
pub(super) mod pass;
mod permit;
mod renewing;
mod undo;
mod unlock;
mod unlock_all;
mod unsettled;

use self::asking::HeardQuestion;
pub(super) use self::{
    asking::{Answer, Attached, Question, Typed},
    attaching::FENCE_FORGOTTEN,
    undo::Undo,
};
use super::{
    desk::Desk,
    filter::Whose,
    session_metrics::{Outcome, Verb},
};
use crate::{
    clock::Instant,
    config::NoQuorumPolicy,
    key::Key,
    resp::{
        encode,
        name::{Own, ReplyMode},
    },
};

/// A command that waits for earlier replies. Its bytes, unless they were dropped, are the first of the unsent ones.
pub(super) trait Waits: Send {
    /// Begins the command. All earlier replies are in, so the state of the connection is known. `when`: when the
    /// command came, and whether it has waited.
    fn begin(self: Box<Self>, when: When, desk: &mut Desk) -> Progress;

    /// Whether its bytes are the first of the unsent ones, so that it can be scanned again.
    fn is_unsent(&self) -> bool {
        true
    }

    /// Whether its answer tells the client of the loss that it must be told of.
    fn tells_of_loss(&self, _desk: &Desk) -> bool {
        false
    }

    /// Returns which command of ours this is, and its length.
    fn own(&self) -> Option<(Own, usize)> {
        None
    }
}

/// When a command came, and whether it has waited.
#[derive(Debug, Clone, Copy)]
pub(super) struct When {
    pub(super) since: Instant,
    /// The command had earlier replies to wait for.
    pub(super) waited: bool,
}

impl When {
    /// Returns the time now, without reading the clock again if the command has not waited.
    pub(super) fn now(self) -> Instant {
        if self.waited { Instant::now() } else { self.since }
    }
}

/// A command that has begun.
pub(super) trait Job: Send + 'static {
    /// Takes in the data node's reply to a command that the proxy sent for this job. The client does not see that
    /// reply.
    fn reply(self: Box<Self>, _reply: &[u8], _desk: &mut Desk) -> Progress {
        // This stage has asked nothing, so the state of the connection is unknown.
        Progress::Relay
    }

    /// Takes in the answer to the question of [`Progress::Ask`].
    fn answer(self: Box<Self>, _answer: Answer, _desk: &mut Desk) -> Progress {
        unexpected()
    }

    /// Returns the command of ours for which the lock nodes are being asked.
    fn asks_for(&self) -> Option<Ours> {
        None
    }

    /// Returns the command of ours that this is.
    fn ours(&self) -> Option<Ours> {
        self.asks_for()
    }

    /// Whether this command needs replies to be read, even if the client does not take them.
    fn needs_replies(&self) -> bool {
        self.asks_for().is_none()
    }

    /// Whether this is a LOCK that waits in line.
    fn waits_in_line(&self) -> bool {
        false
    }

    /// Whether the command waits for more lock nodes to come back. It is given up if its client has gone.
    fn rests(&self) -> bool {
        false
    }

    /// Whether [`Job::more_came`] is called once the client has sent more behind this command.
    fn gives_way(&self) -> bool {
        false
    }

    /// Takes in that the client has sent more behind this command.
    fn more_came(self: Box<Self>, _desk: &mut Desk) -> Progress {
        unexpected()
    }

    /// Whether this is a LOCK of this key whose fence is being announced.
    fn announces(&self, _key: &Key) -> bool {
        false
    }

    /// Returns what gives back a lock that was granted but that the client was not told of.
    fn undo(self: Box<Self>) -> Option<Undo> {
        None
    }

    /// Returns what was sent for a guarded write and has its reply next, and whether the write's client gets no
    /// replies.
    fn wraps(&self) -> Option<(Whose, bool)> {
        None
    }

    /// Whether the whole reply to what was sent is held, as replicas must acknowledge the write or as the reply is to
    /// be changed.
    fn holds(&self) -> bool {
        false
    }

    /// Returns the most bytes that are held of that reply. `None`: `guards.max_command`.
    fn holds_at_most(&self) -> Option<usize> {
        None
    }

    /// Takes in that `made` writes were carried out, with their replies, which are held.
    fn held(self: Box<Self>, _made: usize, _reply: Vec<u8>, _desk: &mut Desk) -> Progress {
        Progress::Relay
    }

    /// Takes in that the script has made `made` writes, whose replies come next.
    fn made_several(self: Box<Self>, _made: usize, _desk: &mut Desk) -> Progress {
        Progress::Relay
    }

    /// Takes in that the write was carried out and its reply was passed on.
    fn made(self: Box<Self>, _desk: &mut Desk) -> Progress {
        Progress::Relay
    }

    /// Takes in that the write was not carried out, with the reply to EXEC or to the script.
    fn not_made(self: Box<Self>, _reply: &[u8], _desk: &mut Desk) -> Progress {
        Progress::Relay
    }
}

/// The result of a step.
#[must_use]
pub(super) enum Progress {
    /// The command waits for replies that are owed.
    Wait(Box<dyn Job>),
    /// The command waits for the answer to a question: made by [`Progress::ask`].
    Ask(Box<dyn Job>, HeardQuestion),
    /// The command at the beginning of the unsent bytes passes.
    Pass(Pass),
    /// The command at the beginning of the unsent bytes is scanned again.
    Again,
    /// The command at the beginning of the unsent bytes is refused with this reply of the data node, which has not
    /// let the client in.
    Stranger(Vec<u8>),
    /// The command is done, and this is its answer.
    Answer(Box<Answering>),
    /// Replies can no longer be matched to commands.
    Relay,
    /// The data node refuses the client and closes; no more client bytes are forwarded.
    Mute,
    /// As `Answer`, and the connection ends: on the data node it is in a state that the client does not know.
    Close(Box<Answering>),
    /// As `Close`: too few lock nodes answered, which the client sees as a Redis that has gone away.
    Leave(Box<Answering>),
}

/// How the command at the beginning of the unsent bytes goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pass {
    /// The command is forwarded and answered as any other.
    Counted,
    /// The command is a CLIENT REPLY that the data node will obey without an answer.
    Unanswered(ReplyMode),
}

/// Handles an event that this stage cannot have: the state of the connection is unknown.
pub(super) fn unexpected() -> Progress {
    debug_assert!(false, "an event of another stage");
    Progress::Relay
}

/// Facts about a command of ours, known at every stage.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ours {
    pub(super) own: Own,
    /// Number of unsent bytes that are its own.
    pub(super) length: usize,
    /// Replies are off or skipped: the command runs without an answer.
    pub(super) silent: bool,
    /// Set for an adopted command, which Redis would carry out even if its client has gone: what the client is to see
    /// where too few lock nodes answer.
    pub(super) adopted: Option<NoQuorumPolicy>,
    /// When the command came, or when the lock nodes were asked.
    pub(super) since: Instant,
}

impl Ours {
    /// Counts the command by its outcome.
    pub(super) fn count(self, outcome: Outcome, desk: &Desk) {
        let operation = match self.own {
            Own::Lock | Own::Mlock => Verb::Lock,
            Own::Unlock | Own::Munlock => Verb::Unlock,
            Own::Renew => Verb::Renew,
            Own::Attach => Verb::Attach,
            Own::Detach => Verb::Detach,
            Own::Lockgate | Own::Command => return,
        };
        desk.shared.metrics.lock_request(operation, outcome, self.since.elapsed());
    }

    /// Answers, or ends without an answer if the client gets no replies.
    fn answer(self, answer: Vec<u8>, undo: Option<Undo>) -> Progress {
        let answer = if self.silent { Vec::new() } else { answer };
        Progress::Answer(Box::new(Answering {
            answer,
            length: self.length,
            ours: Some(self),
            undo,
        }))
    }

    /// Answers with an error.
    pub(super) fn refuse(self, error: &str, outcome: Outcome, desk: &Desk) -> Progress {
        self.count(outcome, desk);
        let mut answer = Vec::new();
        encode::error(&mut answer, error);
        self.answer(answer, None)
    }
}

/// An answer that is to be written between two frames. It is empty if the client gets no reply, or already has it.
pub(super) struct Answering {
    answer: Vec<u8>,
    /// Number of unsent bytes that are the command's own.
    length: usize,
    ours: Option<Ours>,
    /// Gives back a lock that the client was granted and has not been told of.
    undo: Option<Undo>,
}

impl Answering {
    /// Makes the answer to a command that is not ours.
    pub(super) fn new(answer: Vec<u8>, length: usize) -> Box<Answering> {
        Box::new(Answering { answer, length, ours: None, undo: None })
    }

    /// Returns the command of ours that is answered.
    pub(super) fn ours(&self) -> Option<Ours> {
        self.ours
    }

    /// Whether there is nothing to be written.
    pub(super) fn is_empty(&self) -> bool {
        self.answer.is_empty()
    }

    /// Returns the answer's bytes, and how many unsent bytes are done with. The client counts as told from here on.
    pub(super) fn finish(self) -> (Vec<u8>, usize) {
        if let Some(undo) = self.undo {
            undo.disarm();
        }
        (self.answer, self.length)
    }

    /// Returns what gives back a lock that the client will not be told of.
    pub(super) fn undo(self) -> Option<Undo> {
        self.undo
    }
}
