//! Commands that have the floor: nothing behind one is sent on before it is done.
//!
//! Each stage of such a command is a type of its own with exactly its data. A stage that waits
//! for earlier replies is a [`Waits`]; any other is a [`Job`]. What happens (earlier replies are
//! all in, the data node answers a question of the proxy's, the lock nodes do) consumes the
//! stage and returns a [`Progress`], which `Core::apply` carries out.
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
//! - `own`: a command of ours, until it is known that the client may.
//! - `authorize`: may this client lock this key.
//! - `lock`, `unlock`, `renew`, `attach`: one file for each of our commands about a lock.
//! - `announce`: the data node is told the fence of a lock that guards need.
//! - `undo`: what becomes of a LOCK that was granted and is not answered.
//! - `inquiry`: LOCKGATE's answers.
//! - `lost`: commands that were dropped because the client must first be told of a loss.

pub(super) mod announce;
mod attach;
pub(super) mod authorize;
mod inquiry;
mod lock;
pub(super) mod lost;
pub(super) mod own;
pub(super) mod pass;
mod renew;
mod undo;
mod unlock;

use std::{sync::Arc, time::Duration};

pub(super) use self::attach::FENCE_FORGOTTEN;
use self::undo::Undo;
use super::{
    desk::Desk,
    filter::Whose,
    metrics::{Outcome, Verb},
};
use crate::{
    clock::Instant,
    guard::{Guards, learn::AskError},
    key::{Key, Token},
    lock::{Claim, Grant, NoQuorum, NotAttached, NotGranted, Renewed},
    resp::{
        encode,
        name::{Own, ReplyMode},
    },
};

/// A command that waits for earlier replies. Its bytes, where it has any left, are at the
/// beginning of what the session holds.
pub(super) trait Waits: Send {
    /// All earlier replies are in, so the state of the connection is known. `when`: the
    /// command began to wait, or it has not waited.
    fn begin(self: Box<Self>, when: When, desk: &mut Desk) -> Progress;

    /// Whether it can be looked at again where it stands, at the beginning of what is held.
    fn is_unsent(&self) -> bool {
        true
    }

    /// Whether its answer tells the client of the loss that it is to be told of.
    fn tells_of_loss(&self, _desk: &Desk) -> bool {
        false
    }

    /// Returns which command of ours it is.
    fn own(&self) -> Option<(Own, usize)> {
        None
    }
}

/// When a command came.
#[derive(Debug, Clone, Copy)]
pub(super) struct When {
    pub(super) since: Instant,
    /// There were earlier replies to wait for.
    pub(super) waited: bool,
}

impl When {
    /// The time now: that at which it came if it has not waited.
    pub(super) fn now(self) -> Instant {
        if self.waited { Instant::now() } else { self.since }
    }
}

/// A command that has begun.
pub(super) trait Job: Send {
    /// The data node has answered a question of the proxy's.
    fn reply(self: Box<Self>, _reply: &[u8], _desk: &mut Desk) -> Progress {
        // Nobody has asked: nothing is known any more.
        Progress::Relay
    }

    /// What was asked by [`Progress::Ask`] is answered.
    fn answer(self: Box<Self>, _answer: Answer, _desk: &mut Desk) -> Progress {
        not_asked()
    }

    /// Returns the command of ours for which the lock nodes are being asked.
    fn asks_for(&self) -> Option<Ours> {
        None
    }

    /// Returns the command of ours that this is.
    fn ours(&self) -> Option<Ours> {
        self.asks_for()
    }

    /// Whether replies must be read for it to get on, even if the client does not take them.
    fn needs_replies(&self) -> bool {
        self.asks_for().is_none()
    }

    /// Whether it is a LOCK that waits in line.
    fn waits_in_line(&self) -> bool {
        false
    }

    /// Whether it is a LOCK of that key whose fence the data node is being told.
    fn announces(&self, _key: &Key) -> bool {
        false
    }

    /// Returns what gives back what it has taken and the client was not told of.
    fn undo(self: Box<Self>) -> Option<Undo> {
        None
    }

    /// Returns what was sent for a guarded write, of which the reply comes next, and whether
    /// the client gets no replies.
    fn wraps(&self) -> Option<(Whose, bool)> {
        None
    }

    /// The script has made so many writes, of which it tells next.
    fn made_several(self: Box<Self>, _made: usize, _desk: &mut Desk) -> Progress {
        Progress::Relay
    }

    /// The write was carried out, and its reply was passed on.
    fn made(self: Box<Self>, _desk: &mut Desk) -> Progress {
        Progress::Relay
    }

    /// The write was not carried out; this is the reply to EXEC or to the script.
    fn not_made(self: Box<Self>, _reply: &[u8], _desk: &mut Desk) -> Progress {
        Progress::Relay
    }
}

/// What a step comes to.
#[must_use]
pub(super) enum Progress {
    /// It waits for replies that are owed.
    Wait(Box<dyn Job>),
    /// It waits for the answer to a question.
    Ask(Box<dyn Job>, Question),
    /// The command at the beginning of what is held passes.
    Pass(Pass),
    /// The command at the beginning of what is held is looked at again.
    Again,
    /// It is done, and this is its answer.
    Answer(Box<Answering>),
    /// Replies can no longer be matched to commands.
    Relay,
    /// Redis refuses the client, and closes; nothing more of it is forwarded.
    Mute,
    /// As `Answer`, but to the data node the connection is in a state of which its client knows
    /// nothing: it ends.
    Close(Box<Answering>),
}

/// How the command at the beginning of what is held goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pass {
    /// It is forwarded and answered as any other.
    Counted,
    /// It is a CLIENT REPLY that will be obeyed without an answer.
    Unanswered(ReplyMode),
}

/// What is asked of others than the data node's connection. There is at most one question.
pub(super) enum Question {
    /// LOCK, of the lock nodes.
    Lock { key: Key, token: Token, ttl: Duration, again: Option<Claim>, wait: Option<Duration> },
    /// UNLOCK.
    Unlock { key: Key, token: Token, claim: Option<Claim> },
    /// RENEW.
    Renew { key: Key, token: Token, ttl: Duration, claim: Option<Claim> },
    /// RENEW by which the connection becomes the keeper of a session lock.
    TakeOver { key: Key, token: Token, ttl: Duration },
    /// Whether these tokens hold these locks.
    Attached(Vec<(Key, Token)>),
    /// The fence of a lock is to be at least this.
    Raise { key: Key, token: Token, claim: Claim, fence: u64 },
    /// Which keys this command writes; the data node knows, over another connection.
    Keys(Arc<Guards>, Vec<Vec<u8>>),
    /// Which commands the data node has, as this one is not known.
    Commands(Arc<Guards>, Vec<u8>),
}

/// Whether a token holds a lock.
pub(super) type Attached = Result<Option<Grant>, NotAttached>;

/// The answer to a [`Question`].
pub(super) enum Answer {
    /// To [`Question::Lock`].
    Lock(Result<Grant, NotGranted>),
    /// To [`Question::Unlock`].
    Unlock(Result<bool, NoQuorum>),
    /// To [`Question::Renew`].
    Renew(Result<Option<Renewed>, NoQuorum>),
    /// To [`Question::TakeOver`].
    TakeOver(Result<Grant, NotGranted>),
    /// To [`Question::Attached`], in its order.
    Attached(Vec<Attached>),
    /// To [`Question::Raise`]: the fence that counts, or that the lock is not held any more.
    Raise(Result<Option<u64>, NoQuorum>),
    /// To [`Question::Keys`].
    Keys(Result<Vec<Vec<u8>>, AskError>),
    /// To [`Question::Commands`]: whether they could be read.
    Commands(bool),
}

/// An answer to another question than the one that was asked: nothing is known any more.
pub(super) fn not_asked() -> Progress {
    debug_assert!(false, "the answer to another question");
    Progress::Relay
}

/// What is known of a command of ours at every stage.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ours {
    pub(super) own: Own,
    /// How many bytes of what is held are its own.
    pub(super) length: usize,
    /// Replies are off or skipped: it runs, but says nothing.
    pub(super) silent: bool,
    /// When it came, or when the lock nodes were asked.
    pub(super) since: Instant,
}

impl Ours {
    /// Counts the command by what came of it.
    pub(super) fn count(self, outcome: Outcome, desk: &Desk) {
        let operation = match self.own {
            Own::Lock => Verb::Lock,
            Own::Unlock => Verb::Unlock,
            Own::Renew => Verb::Renew,
            Own::Attach => Verb::Attach,
            Own::Detach => Verb::Detach,
            Own::Lockgate | Own::Command => return,
        };
        desk.shared.metrics.lock_request(operation, outcome, self.since.elapsed());
    }

    /// Answers, or is done where the client gets no replies.
    fn answer(self, answer: Vec<u8>, undo: Option<Undo>) -> Progress {
        let answer = if self.silent { Vec::new() } else { answer };
        Progress::Answer(Box::new(Answering {
            answer,
            length: self.length,
            ours: Some(self),
            undo,
        }))
    }

    /// Answers with an error in place of what the command was to bring.
    pub(super) fn refuse(self, error: &str, outcome: Outcome, desk: &Desk) -> Progress {
        self.count(outcome, desk);
        let mut answer = Vec::new();
        encode::error(&mut answer, error);
        self.answer(answer, None)
    }
}

/// What is still to be written, between two frames. Nothing, where the client gets no reply or
/// has got it.
pub(super) struct Answering {
    answer: Vec<u8>,
    /// How many bytes of what is held are the command's own.
    length: usize,
    ours: Option<Ours>,
    /// The client does not know yet of the lock that it was granted.
    undo: Option<Undo>,
}

impl Answering {
    /// The answer to a command that is not ours.
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

    /// Gives the bytes to be written, of which the client is told now, and how many of what is
    /// held are done with.
    pub(super) fn finish(self) -> (Vec<u8>, usize) {
        if let Some(undo) = self.undo {
            undo.disarm();
        }
        (self.answer, self.length)
    }

    /// Returns what gives back what the client will not be told of.
    pub(super) fn undo(self) -> Option<Undo> {
        self.undo
    }
}
