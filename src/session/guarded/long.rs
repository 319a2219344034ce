//! The long way of a guarded write whose locks are held: the question about the fences, the write in a transaction,
//! and the commands that undo the question.

use super::{
    super::{
        desk::Desk,
        filter::{Whose, is_null},
        jobs::{Job, Progress},
        owed::Entry,
        session_metrics::GuardedWrite,
    },
    acknowledged::Acknowledging,
    arm::arm,
    forgotten,
    log::tell_refused,
    refuse::end,
    subject::{GuardedCommand, Subject, error_reply, fenced},
};
use crate::{
    data::write_refusals::RefusedByData,
    guard::{
        fences::{FenceQuestion, FenceStanding, MOVING, With, read_error},
        replicas::Replicas,
    },
    resp::{encode, expected::Expected},
};

/// Most tries of a write, or of arming a MULTI, each with a new question about the fences.
pub(super) const MAX_TRIES: usize = 16;
/// Redis's error for DISCARD where EXEC was refused and has ended the transaction.
const NOTHING_TO_DISCARD: &[u8] = b"-ERR DISCARD without MULTI";

/// Asks the data node about the claims' fences. `again`: the question takes the place of an earlier one.
pub(super) fn ask_for_fences(subject: Subject, again: bool, desk: &mut Desk) -> Progress {
    let ttl = desk.config.locks.fence_ttl;
    let is_multi = subject.is_multi();
    let is_asking = desk.has_slots() && desk.conn.is_asking();
    let with = match is_multi {
        true if is_asking => With::Asking,
        true => With::Nothing,
        false => With::Multi,
    };
    let mut bytes = Vec::new();
    if is_asking {
        // The client's ASKING is for its MULTI and all that it queues. A fence is watched only where its slot is.
        desk.ask(Expected::Pong, |out| encode::command(out, &[b"PING"]));
    }
    // Replies to CLIENT REPLY ON and SCRIPT LOAD may be owed.
    let owed_already = desk.owed.len();
    let mut before = owed_already;
    // The question may announce a fence. If that fence were still watched, this try would be dropped. A client that
    // watches keys itself keeps its WATCH, and finds its transaction dropped.
    let undo: Option<&[u8]> = match again {
        true if !is_multi => Some(b"DISCARD"),
        true if !desk.conn.state.watching => Some(b"UNWATCH"),
        _ => None,
    };
    if let Some(undo) = undo {
        encode::command(&mut bytes, &[undo]);
        before += 1;
    }
    let database = desk.conn.database.unwrap_or_default();
    let (how, place) = ((ttl, desk.replicas()), desk.fence_place());
    let claims = subject.claims();
    let fences = FenceQuestion::ask(&mut bytes, place, claims, before, with, database, how);
    desk.to_data.push(&bytes);
    for expected in fences.expected().skip(owed_already) {
        // Only these replies are owed, so there is room.
        let _ = desk.owed.push(Entry::Ours(expected));
    }
    Progress::Wait(Box::new(Fencing { subject, fences }))
}

/// A write or MULTI for which the data node was asked about the fences.
struct Fencing {
    subject: Subject,
    fences: FenceQuestion,
}

impl Job for Fencing {
    fn reply(mut self: Box<Self>, reply: &[u8], desk: &mut Desk) -> Progress {
        self.fences.reply(reply);
        if self.fences.missing() > 0 {
            return Progress::Wait(self);
        }
        let Fencing { subject, fences } = *self;
        match subject {
            Subject::Multi(claimed) if !fences.is_astray() => arm(claimed, &fences, desk),
            // The selected database is unknown, so the connection is closed.
            Subject::Multi(claimed) => {
                let write = GuardedCommand { claimed, ..GuardedCommand::default() };
                compare(write, &fences, desk)
            }
            Subject::Write(write) => compare(write, &fences, desk),
        }
    }
}

/// Compares the claims with the fences that the data node knows.
fn compare(mut write: GuardedCommand, fences: &FenceQuestion, desk: &mut Desk) -> Progress {
    let undo = ConnectionChange { in_multi: fences.in_multi(), astray: fences.is_astray() };
    if let Some(error) = fences.error() {
        desk.shared.metrics.guarded(GuardedWrite::Refused);
        match fences.lacks_replicas() {
            true => desk.shared.lacks_replicas(),
            false => desk.shared.metrics.refusals.count(RefusedByData::Write, error),
        }
        return undo.then(write, error, desk);
    }
    let standings: Vec<FenceStanding> = fences.standings(&write.claimed.claims).collect();
    let all_largest = standings.iter().all(|standing| *standing == FenceStanding::Largest);
    if all_largest && desk.note_doubts(&mut write.claimed.claims) {
        return forgotten::ask(Subject::Write(write), Some(undo), desk);
    }
    for (claim, standing) in write.claimed.claims.iter_mut().zip(&standings) {
        match standing {
            FenceStanding::Fenced(seen) => {
                let error = fenced(claim, *seen, desk);
                desk.tokens.superseded(&claim.key, claim.fence);
                desk.shared.metrics.guarded(GuardedWrite::Fenced);
                let command = desk.unsent_command(write.length);
                tell_refused(GuardedWrite::Fenced, command, error.as_bytes(), desk);
                return undo.then(write, error.as_bytes(), desk);
            }
            FenceStanding::Elsewhere => return undo.then(write, MOVING, desk),
            FenceStanding::Unknown => {
                claim.announced = false;
                desk.tokens.forgotten(&claim.key, claim.fence);
            }
            FenceStanding::Largest => {
                claim.announced = true;
                desk.tokens.announced(&claim.key, claim.fence);
            }
        }
    }
    if standings.contains(&FenceStanding::Unknown) {
        return forgotten::ask(Subject::Write(write), Some(undo), desk);
    }
    commit(write, desk)
}

/// Sends the write and EXEC.
fn commit(write: GuardedCommand, desk: &mut Desk) -> Progress {
    let length = write.length.min(desk.unsent.len());
    desk.to_data.push(&desk.unsent[..length]);
    let mut exec = Vec::new();
    encode::command(&mut exec, &[b"EXEC"]);
    desk.to_data.push(&exec);
    let _ = desk.owed.push(Entry::Ours(Expected::Queued));
    let _ = desk.owed.push(Entry::Guarded);
    let replicas = desk.ask_replicas(write.silent);
    Progress::Wait(Box::new(Committing { write, replicas, error: None }))
}

/// A write that was sent with EXEC. `error`: Redis's error for the write, if there was one.
struct Committing {
    write: GuardedCommand,
    /// Replicas that must acknowledge the write.
    replicas: Option<Replicas>,
    error: Option<Vec<u8>>,
}

impl Job for Committing {
    fn reply(mut self: Box<Self>, reply: &[u8], _desk: &mut Desk) -> Progress {
        self.error = read_error(reply);
        Progress::Wait(self)
    }

    fn wraps(&self) -> Option<(Whose, bool)> {
        Some((Whose::Exec, self.write.silent))
    }

    fn holds(&self) -> bool {
        self.replicas.is_some()
    }

    fn held(self: Box<Self>, made: usize, answer: Vec<u8>, desk: &mut Desk) -> Progress {
        desk.shared.metrics.guarded(GuardedWrite::Passed);
        Acknowledging::hold(self.replicas, (made, self.write.length), answer)
    }

    fn made(self: Box<Self>, desk: &mut Desk) -> Progress {
        desk.shared.metrics.guarded(GuardedWrite::Passed);
        end(self.write, Vec::new(), desk)
    }

    fn not_made(self: Box<Self>, reply: &[u8], desk: &mut Desk) -> Progress {
        match (self.error, read_error(reply)) {
            // Redis refused the write itself, for example for a missing argument.
            (Some(error), _) => {
                desk.shared.metrics.guarded(GuardedWrite::Passed);
                desk.shared.metrics.refusals.count(RefusedByData::Write, &error);
                end(self.write, error_reply(&error), desk)
            }
            // Redis refused EXEC, and the transaction is still open.
            (None, Some(error)) => {
                desk.shared.metrics.guarded(GuardedWrite::Refused);
                desk.shared.metrics.refusals.count(RefusedByData::Write, &error);
                ConnectionChange { in_multi: true, astray: false }.then(self.write, &error, desk)
            }
            // Neither null nor an error: this is no reply to EXEC.
            (None, None) if !is_null(reply) => Progress::Relay,
            // A fence was written in between.
            (None, None) => {
                try_again(self.write, ConnectionChange { in_multi: false, astray: false }, desk)
            }
        }
    }
}

/// Asks about the fences once more, unless that was done too often.
pub(super) fn try_again(
    mut write: GuardedCommand,
    undo: ConnectionChange,
    desk: &mut Desk,
) -> Progress {
    write.claimed.tries += 1;
    if write.claimed.tries < MAX_TRIES {
        return ask_for_fences(Subject::Write(write), undo.in_multi, desk);
    }
    desk.shared.metrics.guarded(GuardedWrite::Refused);
    let error = "ERR the fences of this write's locks change too often, try again";
    undo.then(write, error.as_bytes(), desk)
}

/// The changes that the question about the fences has made to the connection.
#[derive(Clone, Copy)]
pub(super) struct ConnectionChange {
    /// The proxy's transaction is open. If not, some fences may be watched.
    pub(super) in_multi: bool,
    /// The data node may have another database selected than the client believes.
    pub(super) astray: bool,
}

impl ConnectionChange {
    /// Undoes MULTI or WATCH, and then answers with this error.
    pub(super) fn then(self, write: GuardedCommand, error: &[u8], desk: &mut Desk) -> Progress {
        let undo: &[u8] = if self.in_multi { b"DISCARD" } else { b"UNWATCH" };
        desk.ask(Expected::Ok, |out| encode::command(out, &[undo]));
        let answer = error_reply(error);
        // The reply to WAIT may still be owed before that to DISCARD or UNWATCH.
        Progress::await_replies(write, move |write, reply, desk| {
            // A transaction or WATCH that could not be undone leaves the connection in a state that the client does
            // not know.
            let is_undone = !reply.starts_with(b"-") || reply.starts_with(NOTHING_TO_DISCARD);
            match end(write, answer, desk) {
                Progress::Answer(answering) if self.astray || !is_undone => {
                    Progress::Close(answering)
                }
                progress => progress,
            }
        })
    }
}
