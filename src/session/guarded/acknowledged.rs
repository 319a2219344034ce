//! Replicas that must acknowledge guarded writes (`guards.wait_at: write`): WAIT goes behind each write in the same
//! packet, and the write's reply is held until WAIT is answered.
//!
//! A client that takes no replies cannot be told, so no replica is waited for.

use super::{
    super::{
        desk::Desk,
        filter::{DROPPED, Whose},
        jobs::{Answering, Job, Progress, Waits, When},
        session_metrics::GuardedWrite,
    },
    log::{EXEC, tell_refused},
    subject::error_reply,
};
use crate::{
    guard::replicas::Replicas,
    resp::{
        expected::Expected,
        name::{Name, ReplyMode},
    },
};

impl Desk {
    /// Appends WAIT behind a guarded write, if replicas must acknowledge it.
    pub(super) fn ask_replicas(&mut self, silent: bool) -> Option<Replicas> {
        let replicas = self.replicas_at_writes(silent)?;
        self.ask(Expected::Number, |out| replicas.ask(out, None));
        Some(replicas)
    }

    /// Returns the replicas that must acknowledge a guarded write, unless its client gets no replies.
    pub(super) fn replicas_at_writes(&self, silent: bool) -> Option<Replicas> {
        self.replicas().filter(|replicas| replicas.at_writes && !silent)
    }
}

/// A guarded write that was made, while the reply to WAIT is missing.
pub(super) struct Acknowledging {
    replicas: Replicas,
    /// The data node's replies to the write.
    answer: Vec<u8>,
    /// Number of writes that they answer.
    writes: usize,
    /// Number of unsent bytes that are the writes'.
    length: usize,
}

impl Acknowledging {
    /// Holds `answer`, the data node's replies to so many writes, until the reply to WAIT. The writes have `length`
    /// unsent bytes together.
    pub(super) fn hold(
        replicas: Option<Replicas>,
        (writes, length): (usize, usize),
        answer: Vec<u8>,
    ) -> Progress {
        match replicas {
            // An error is told at once, even of a script that may have written before it. WAIT's reply is dropped.
            Some(_) if answer.starts_with(b"-") => Progress::Answer(Answering::new(answer, length)),
            Some(replicas) => {
                Progress::Wait(Box::new(Acknowledging { replicas, answer, writes, length }))
            }
            // Replies are held only where replicas must acknowledge.
            None => Progress::Relay,
        }
    }
}

impl Job for Acknowledging {
    fn reply(self: Box<Self>, reply: &[u8], desk: &mut Desk) -> Progress {
        let Acknowledging { replicas, answer, writes, length } = *self;
        let answer = match replicas.read(reply) {
            Ok(()) => answer,
            Err(why) => {
                desk.shared.metrics.unacknowledged_writes.increment(writes as u64);
                error_reply(&replicas.warn_of_write(&why)).repeat(writes)
            }
        };
        Progress::Answer(Answering::new(answer, length))
    }
}

/// Whether replicas must acknowledge the client's EXEC: with `wait_at: write`, if there are guarded writes in its
/// transaction and its client gets replies.
pub(in crate::session) fn must_acknowledge(desk: &Desk) -> bool {
    desk.conn.reply_mode == ReplyMode::On
        && desk.conn.armed.as_ref().is_some_and(|armed| armed.has_writes)
        && desk.replicas().is_some_and(|replicas| replicas.at_writes)
}

/// EXEC of a client's transaction with guarded writes.
pub(in crate::session) struct Exec {
    /// Number of unsent bytes that are its own.
    length: usize,
}

impl Exec {
    pub(in crate::session) fn new(length: usize) -> Exec {
        Exec { length }
    }
}

impl Waits for Exec {
    fn begin(self: Box<Self>, _when: When, desk: &mut Desk) -> Progress {
        let length = self.length.min(desk.unsent.len());
        desk.to_data.push(&desk.unsent[..length]);
        let is_watching = desk.conn.state.watching;
        // Nothing else is owed, so there is room.
        let _ = desk.note(Name::Exec, 1);
        let replicas = desk.ask_replicas(false);
        Progress::Wait(Box::new(Executing { replicas, length, is_watching }))
    }
}

/// The client's EXEC was sent.
struct Executing {
    replicas: Option<Replicas>,
    length: usize,
    /// The client itself watches keys.
    is_watching: bool,
}

impl Job for Executing {
    fn wraps(&self) -> Option<(Whose, bool)> {
        Some((Whose::Clients, false))
    }

    fn holds(&self) -> bool {
        true
    }

    fn held(self: Box<Self>, _made: usize, answer: Vec<u8>, _desk: &mut Desk) -> Progress {
        Acknowledging::hold(self.replicas, (1, self.length), answer)
    }

    fn not_made(self: Box<Self>, reply: &[u8], desk: &mut Desk) -> Progress {
        let is_error = reply.starts_with(b"-");
        let answer = if self.is_watching || is_error {
            reply.to_vec()
        } else {
            desk.shared.metrics.guarded(GuardedWrite::Fenced);
            tell_refused(GuardedWrite::Fenced, EXEC, DROPPED.as_bytes(), desk);
            error_reply(DROPPED.as_bytes())
        };
        Progress::Answer(Answering::new(answer, self.length))
    }
}
