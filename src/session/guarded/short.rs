//! The short way of guarded writes whose locks are held: one script compares the fences and makes the writes.

use smallvec::SmallVec;

use super::{
    super::{
        desk::Desk,
        filter::Whose,
        jobs::{Job, Progress},
        owed::Entry,
        session_metrics::GuardedWrite,
    },
    acknowledged::Acknowledging,
    batch::Batch,
    database,
    long::ask_for_fences,
    refuse::end,
    subject::{GuardedCommand, Subject},
};
use crate::{
    guard::{
        replicas::Replicas,
        write::{self, Write},
    },
    resp::expected::Expected,
};

/// Begins once the locks are known to be held. A write takes the short way if it may.
pub(super) fn begin(subject: Subject, desk: &mut Desk) -> Progress {
    match (desk.conn.database, subject) {
        (None, subject) => database::ask(subject, desk),
        (Some(_), Subject::Write(write)) => write_by_script(write, desk),
        (Some(_), multi) => ask_for_fences(multi, false, desk),
    }
}

fn write_by_script(write: GuardedCommand, desk: &mut Desk) -> Progress {
    let is_open = write.claimed.claims.iter().all(|claim| claim.announced)
        && desk.short_way.is_open()
        && !write.turned_on;
    let Some(first) = write.by_script.filter(|_| is_open) else {
        return ask_for_fences(Subject::Write(write), false, desk);
    };
    let Batch { call, writes } = desk.batch(first, &write.claimed.claims, write.silent);
    desk.to_data.push(&call);
    // Nothing else is owed, so there is room.
    let _ = desk.owed.push(Entry::Guarded);
    // The connection stands still while WAIT waits for replicas that are away. So WAIT does not follow a call that
    // may be refused, as the long way would wait once more.
    let are_asked = desk.shared.guards.as_ref().is_some_and(|guards| guards.has_script());
    let replicas = match are_asked {
        true => desk.ask_replicas(write.silent),
        false => desk.replicas_at_writes(write.silent),
    };
    Progress::Wait(Box::new(Short { write, writes, replicas, are_asked }))
}

/// The writes for which the script was sent.
struct Short {
    write: GuardedCommand,
    writes: SmallVec<[Write; 4]>,
    /// Replicas that must acknowledge them.
    replicas: Option<Replicas>,
    /// WAIT went in the same packet.
    are_asked: bool,
}

fn note_script(is_known: bool, desk: &Desk) {
    if let Some(guards) = &desk.shared.guards {
        guards.note_script(is_known);
    }
}

impl Job for Short {
    fn holds(&self) -> bool {
        self.replicas.is_some()
    }

    fn held(self: Box<Self>, made: usize, answer: Vec<u8>, desk: &mut Desk) -> Progress {
        if made > self.writes.len() {
            return Progress::Relay;
        }
        let length = self.writes[..made].iter().map(|write| write.length).sum();
        desk.short_way.note(self.writes.len(), made);
        note_script(true, desk);
        if !self.are_asked && !answer.starts_with(b"-") {
            desk.ask_replicas(self.write.silent);
        }
        (0..made).for_each(|_| desk.shared.metrics.guarded(GuardedWrite::Passed));
        Acknowledging::hold(self.replicas, (made, length), answer)
    }

    fn wraps(&self) -> Option<(Whose, bool)> {
        let whose = if self.writes.len() > 1 { Whose::Batch } else { Whose::Script };
        Some((whose, self.write.silent))
    }

    fn made_several(self: Box<Self>, made: usize, desk: &mut Desk) -> Progress {
        let Short { mut write, writes, .. } = *self;
        if made == 0 || made > writes.len() {
            return Progress::Relay;
        }
        write.length = writes[..made].iter().map(|write| write.length).sum();
        desk.short_way.note(writes.len(), made);
        // The last reply ends the next stage, as a single write's reply would.
        desk.owed.push_before(made - 1);
        (1..made).for_each(|_| desk.shared.metrics.guarded(GuardedWrite::Passed));
        Progress::Wait(Box::new(Telling { write }))
    }

    fn made(self: Box<Self>, desk: &mut Desk) -> Progress {
        desk.short_way.note(self.writes.len(), self.writes.len());
        desk.shared.metrics.guarded(GuardedWrite::Passed);
        end(self.write, Vec::new(), desk)
    }

    /// Goes the long way, which finds out why: the script was refused with this error, and nothing was written.
    fn not_made(self: Box<Self>, error: &[u8], desk: &mut Desk) -> Progress {
        desk.short_way.note(self.writes.len(), 0);
        if error.starts_with(b"-NOSCRIPT") {
            note_script(false, desk);
            desk.ask(Expected::Text, write::load);
        } else if error.starts_with(b"-NOPERM") {
            // The client may still be allowed the write itself.
            desk.short_way.forbid();
        }
        ask_for_fences(Subject::Write(self.write), false, desk)
    }
}

/// The writes that the script has made, while their replies are coming.
struct Telling {
    write: GuardedCommand,
}

impl Job for Telling {
    fn wraps(&self) -> Option<(Whose, bool)> {
        Some((Whose::Script, self.write.silent))
    }

    fn made(self: Box<Self>, desk: &mut Desk) -> Progress {
        desk.shared.metrics.guarded(GuardedWrite::Passed);
        end(self.write, Vec::new(), desk)
    }
}
