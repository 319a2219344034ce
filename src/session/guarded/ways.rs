//! The two ways of a guarded write whose locks are held, from the question about the
//! fences to the reply.

use super::{
    super::{Session, barrier::Barrier, metrics::GuardedWrite, owed::Entry},
    Stage,
    batch::{Batch, length_of},
    fenced,
};
use crate::{
    guard::{
        fences::{Fences, Standing, With, read_error},
        write,
    },
    resp::{encode, name::ReplyMode},
};

/// How often a write is tried that Redis drops because a fence was written meanwhile.
pub(super) const MAX_TRIES: usize = 16;
/// What Redis says where an EXEC that it refused has ended the transaction already.
const NOTHING_TO_DISCARD: &[u8] = b"-ERR DISCARD without MULTI";

impl Session {
    /// Goes the short way, if it is open to this write.
    pub(super) fn write_by_script(&mut self, mut barrier: Box<Barrier>) {
        let Some(guarded) = barrier.guarded() else { return };
        let open = guarded.claims.iter().all(|claim| claim.raised)
            && !self.no_scripts
            && !guarded.turned_on;
        let batch = if open { self.batch(guarded) } else { None };
        let Some(Batch { call, writes, length }) = batch else {
            return self.ask_for_fences(barrier, false);
        };
        self.to_upstream.push(&call);
        // Nothing else is owed, so there is room.
        let _ = self.owed.push(Entry::Guarded);
        guarded.stage = Stage::Short { writes, length };
        self.barrier = Some(barrier.goes_on());
    }

    /// The script has made so many writes, of which it tells next. False: it cannot have.
    pub(in crate::session) fn writes_are_told(&mut self, made: usize) -> bool {
        let Some(guarded) = self.barrier.as_mut().and_then(|barrier| barrier.guarded()) else {
            return false;
        };
        let Stage::Short { writes, length } = guarded.stage else { return false };
        if made == 0 || made > writes {
            return false;
        }
        guarded.stage = Stage::Telling;
        guarded.length = length;
        if made < writes {
            guarded.length = length_of(&self.held, made);
        }
        self.together.note(writes, made);
        // That which comes last ends this, as that of a single write would.
        self.owed.push_before(made - 1);
        (1..made).for_each(|_| self.shared.metrics.guarded(GuardedWrite::Passed));
        true
    }

    /// The script was refused, with this error, and nothing was written.
    fn script_has_failed(&mut self, barrier: Box<Barrier>, writes: usize, error: &[u8]) {
        self.together.note(writes, 0);
        if error.starts_with(b"-NOSCRIPT") {
            self.ask(write::load);
        } else if error.starts_with(b"-NOPERM") {
            // The write may be allowed all the same.
            self.no_scripts = true;
        }
        self.ask_for_fences(barrier, false);
    }

    /// Nothing of what is asked may go unanswered.
    pub(super) fn turn_replies_on(&mut self, barrier: &mut Barrier) {
        let Some(guarded) = barrier.guarded() else { return };
        match self.reply_mode {
            ReplyMode::On => {}
            ReplyMode::Skip => {
                guarded.silent = true;
                self.to_upstream.push(b"PING\r\n");
                self.reply_mode = ReplyMode::On;
            }
            ReplyMode::Off => {
                (guarded.silent, guarded.turned_on) = (true, true);
                self.ask(|out| encode::command(out, &[b"CLIENT", b"REPLY", b"ON"]));
            }
        }
        // A flag for the next command only is used up.
        self.next_only = false;
    }

    /// Asks about the claims' fences; `again`: in place of the transaction before.
    pub(super) fn ask_for_fences(&mut self, mut barrier: Box<Barrier>, again: bool) {
        let ttl = self.config.locks.fence_ttl;
        let Some(guarded) = barrier.guarded() else { return };
        let with = if guarded.is_multi { With::Nothing } else { With::Multi };
        let mut bytes = Vec::new();
        // CLIENT REPLY ON, SCRIPT LOAD.
        let owed_already = self.owed.len();
        let mut before = owed_already;
        // What is watched already must not be met by what is written now. A client that
        // watches something itself keeps that, and finds its transaction dropped.
        let undo: Option<&[u8]> = match again {
            true if !guarded.is_multi => Some(b"DISCARD"),
            true if !self.state.watching => Some(b"UNWATCH"),
            _ => None,
        };
        if let Some(undo) = undo {
            encode::command(&mut bytes, &[undo]);
            before += 1;
        }
        let database = self.database.unwrap_or_default();
        let fences = Fences::ask(&mut bytes, &guarded.claims, before, with, database, ttl);
        self.to_upstream.push(&bytes);
        for _ in owed_already..fences.missing() {
            // Nothing else is owed but these, so there is room.
            let _ = self.owed.push(Entry::Ours);
        }
        guarded.stage = Stage::Fences(fences);
        self.barrier = Some(barrier.goes_on());
    }

    /// A reply to what was asked for a guarded write.
    pub(in crate::session) fn guard_answered(&mut self, mut barrier: Box<Barrier>, reply: &[u8]) {
        let Some(guarded) = barrier.guarded() else { return };
        match &mut guarded.stage {
            Stage::Fences(fences) => {
                fences.reply(reply);
                if fences.missing() > 0 {
                    self.barrier = Some(barrier.goes_on());
                } else {
                    self.fences_are_known(barrier);
                }
            }
            Stage::Database { missing } => {
                *missing -= 1;
                if *missing > 0 {
                    self.barrier = Some(barrier.goes_on());
                } else {
                    self.database_was_told(barrier, reply);
                }
            }
            Stage::Commit(error) => {
                *error = read_error(reply);
                self.barrier = Some(barrier.goes_on());
            }
            Stage::GivingUp(answer) | Stage::Failing(answer) => {
                let answer = std::mem::take(answer);
                // What was begun could not be undone: to the data node the connection is
                // in a state of which its client knows nothing.
                self.unguarded |= guarded.astray
                    || matches!(guarded.stage, Stage::GivingUp(_))
                        && reply.starts_with(b"-")
                        && !reply.starts_with(NOTHING_TO_DISCARD);
                self.end_write(barrier, answer);
            }
            Stage::Start | Stage::Asking(_) | Stage::Short { .. } | Stage::Telling => {
                self.barrier = Some(barrier.goes_on());
            }
        }
    }

    fn fences_are_known(&mut self, mut barrier: Box<Barrier>) {
        let Some(guarded) = barrier.guarded() else { return };
        let Stage::Fences(fences) = std::mem::replace(&mut guarded.stage, Stage::Start) else {
            return;
        };
        guarded.astray = fences.is_astray();
        if guarded.is_multi && !guarded.astray {
            return self.arm(barrier, &fences);
        }
        if let Some(error) = fences.error() {
            let error = error.to_vec();
            self.shared.metrics.guarded(GuardedWrite::Refused);
            return self.give_up(barrier, fences.in_multi(), &error);
        }
        let standings: Vec<Standing> = fences.standings(&guarded.claims).collect();
        for (claim, standing) in guarded.claims.iter_mut().zip(&standings) {
            match standing {
                Standing::Fenced(seen) => {
                    let error = fenced(claim, *seen, self.config.locks.prefix.len());
                    self.tokens.forget(&claim.key, claim.fence);
                    self.shared.metrics.guarded(GuardedWrite::Fenced);
                    return self.give_up(barrier, fences.in_multi(), error.as_bytes());
                }
                Standing::Unknown => claim.raised = false,
                Standing::Largest => {
                    claim.raised = true;
                    self.tokens.raised(&claim.key, claim.fence);
                }
            }
        }
        if standings.contains(&Standing::Unknown) {
            return self.ask_whether_held(barrier, fences.in_multi());
        }
        self.commit(barrier);
    }

    /// Sends the write and EXEC.
    fn commit(&mut self, mut barrier: Box<Barrier>) {
        let Some(guarded) = barrier.guarded() else { return };
        let length = guarded.length.min(self.held.len());
        self.to_upstream.push(&self.held[..length]);
        let mut exec = Vec::new();
        encode::command(&mut exec, &[b"EXEC"]);
        self.to_upstream.push(&exec);
        let _ = self.owed.push(Entry::Ours);
        let _ = self.owed.push(Entry::Guarded);
        guarded.stage = Stage::Commit(None);
        self.barrier = Some(barrier.goes_on());
    }

    /// The write was carried out, and its reply was passed on.
    pub(in crate::session) fn write_is_done(&mut self) {
        let Some(mut barrier) = self.barrier.take() else { return };
        if let Some(Stage::Short { writes, .. }) = barrier.guarded().map(|guarded| &guarded.stage) {
            self.together.note(*writes, *writes);
        }
        self.shared.metrics.guarded(GuardedWrite::Passed);
        self.end_write(barrier, Vec::new());
    }

    /// It was not, and this is the reply to EXEC or to the script.
    pub(in crate::session) fn write_was_dropped(&mut self, reply: &[u8]) {
        let Some(mut barrier) = self.barrier.take() else { return };
        let Some(guarded) = barrier.guarded() else { return };
        let error = match &mut guarded.stage {
            Stage::Commit(error) => error,
            Stage::Short { writes, .. } => {
                let writes = *writes;
                return self.script_has_failed(barrier, writes, reply);
            }
            // No element of the script's array is an error.
            _ => return self.relay_from_here(),
        };
        match (error.take(), read_error(reply)) {
            // The write itself was refused, as for want of an argument.
            (Some(error), _) => {
                let mut answer = Vec::new();
                encode::error_bytes(&mut answer, &error);
                self.shared.metrics.guarded(GuardedWrite::Passed);
                self.end_write(barrier, answer);
            }
            // EXEC was, and the transaction is still open.
            (None, Some(error)) => {
                self.shared.metrics.guarded(GuardedWrite::Refused);
                self.give_up(barrier, true, &error);
            }
            // A fence was written in between.
            (None, None) => self.try_again(barrier, false),
        }
    }

    pub(super) fn try_again(&mut self, mut barrier: Box<Barrier>, in_multi: bool) {
        let Some(guarded) = barrier.guarded() else { return };
        guarded.tries += 1;
        if guarded.tries < MAX_TRIES {
            return self.ask_for_fences(barrier, in_multi);
        }
        self.shared.metrics.guarded(GuardedWrite::Refused);
        let error = "ERR the fences of this write's locks change too often, try again";
        self.give_up(barrier, in_multi, error.as_bytes());
    }

    /// Undoes MULTI or WATCH, and then answers with this error.
    pub(super) fn give_up(&mut self, mut barrier: Box<Barrier>, in_multi: bool, error: &[u8]) {
        let Some(guarded) = barrier.guarded() else { return };
        let mut answer = Vec::new();
        encode::error_bytes(&mut answer, error);
        let undo: &[u8] = if in_multi { b"DISCARD" } else { b"UNWATCH" };
        self.ask(|out| encode::command(out, &[undo]));
        guarded.stage = Stage::GivingUp(answer);
        self.barrier = Some(barrier.goes_on());
    }

    /// The write is done with; an empty answer was given already.
    pub(super) fn end_write(&mut self, mut barrier: Box<Barrier>, answer: Vec<u8>) {
        let Some(guarded) = barrier.guarded() else { return };
        guarded.room = None;
        if guarded.turned_on {
            let mut off = Vec::new();
            encode::command(&mut off, &[b"CLIENT", b"REPLY", b"OFF"]);
            self.to_upstream.push(&off);
        }
        self.answer(barrier, answer);
    }
}
