//! The data that a guarded write, or a client's MULTI, carries from stage to stage.

use super::super::{desk::Desk, jobs::Job};
use crate::{
    guard::{fences::FencedLock, write::Write},
    log_text::shown,
    resp::{encode, name::ReplyMode},
};

/// Locks under which writes are made, and whether they are known to be held.
#[derive(Default)]
pub(super) struct Claimed {
    pub(super) claims: Vec<FencedLock>,
    /// How often the fences had to be compared anew: Redis dropped the write because a fence was written meanwhile,
    /// or the lock nodes were asked about a fence that the data node had forgotten.
    pub(super) tries: usize,
    /// The lock nodes have been asked about attached locks whose time had run out.
    pub(super) verified: bool,
}

/// A write to guarded keys.
#[derive(Default)]
pub(super) struct GuardedCommand {
    /// Number of unsent bytes that are its own; 0 if they were dropped.
    pub(super) length: usize,
    /// What the script must know of the write. `None` if the write must go the long way.
    pub(super) by_script: Option<Write>,
    /// Replies are off or skipped: the write runs without an answer.
    pub(super) silent: bool,
    /// Replies are off for the client, and were turned on for the proxy's questions.
    pub(super) turned_on: bool,
    pub(super) claimed: Claimed,
}

/// The subject of the questions about locks and fences: a write, or a MULTI behind which there may be writes.
pub(super) enum Subject {
    Write(GuardedCommand),
    Multi(Claimed),
}

impl Job for Subject {}

impl Subject {
    pub(super) fn claimed(&mut self) -> &mut Claimed {
        match self {
            Subject::Write(write) => &mut write.claimed,
            Subject::Multi(claimed) => claimed,
        }
    }

    pub(super) fn claims(&self) -> &[FencedLock] {
        match self {
            Subject::Write(write) => &write.claimed.claims,
            Subject::Multi(claimed) => &claimed.claims,
        }
    }

    pub(super) fn is_multi(&self) -> bool {
        matches!(self, Subject::Multi(_))
    }
}

impl Job for GuardedCommand {}

impl GuardedCommand {
    /// Turns replies on if they are off or skipped, so that all questions are answered.
    pub(super) fn turn_replies_on(&mut self, desk: &mut Desk) {
        match desk.conn.reply_mode {
            ReplyMode::On => {}
            ReplyMode::Skip => {
                self.silent = true;
                desk.to_data.push(b"PING\r\n");
                desk.conn.reply_mode = ReplyMode::On;
            }
            ReplyMode::Off => {
                self.silent = true;
                self.turned_on = desk.speak_up();
            }
        }
        // A flag set for the next command is used up by the questions.
        desk.conn.next_only = false;
    }
}

/// Returns the error for a write whose lock was granted again.
pub(super) fn fenced(claim: &FencedLock, seen: u64, desk: &Desk) -> String {
    let lock = shown(desk.name(&claim.key));
    let (key, fence) = (shown(&claim.wanted_for), claim.fence);
    let what = if key.is_empty() { String::new() } else { format!("'{key}' was not written: ") };
    format!(
        "FENCED {what}the lock '{lock}' was granted again since, with fence {seen} after {fence}"
    )
}

/// Encodes an error reply.
pub(super) fn error_reply(text: &[u8]) -> Vec<u8> {
    let mut answer = Vec::new();
    encode::error_bytes(&mut answer, text);
    answer
}
