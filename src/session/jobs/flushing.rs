//! FLUSHDB and FLUSHALL where an adopt rule says `flush: free`. Once the data node has carried the command out, the
//! locks that adopted commands took through this proxy under such a rule are released, as Redis would have dropped
//! their keys.
//!
//! Inside MULTI or without a reply the command passes as it came, and frees no lock.

use super::{
    super::{desk::Desk, guarded::database},
    Answering, Job, Pass, Progress, Question, Waits, When, unlock,
};
use crate::{
    adopt::FlushCommand,
    resp::{encode, expected::Expected, name::ReplyMode},
};

/// A FLUSHDB or FLUSHALL.
pub(in crate::session) struct Flushing(pub(in crate::session) FlushCommand);

impl Waits for Flushing {
    fn begin(self: Box<Self>, _: When, desk: &mut Desk) -> Progress {
        if desk.conn.refuses_ours() || desk.conn.reply_mode != ReplyMode::On {
            return Progress::Pass(Pass::Counted);
        }
        let is_locating = !self.0.is_all && desk.conn.database.is_none();
        if is_locating {
            desk.ask(Expected::Text, |out| encode::command(out, &[b"CLIENT", b"INFO"]));
        }
        desk.ask(Expected::Ok, |out| out.extend_from_slice(&self.0.command));
        Progress::Wait(Box::new(Flushed { flush: self.0, is_locating }))
    }
}

/// A command that was sent to the data node, behind the question which database is selected if that is unknown.
struct Flushed {
    flush: FlushCommand,
    is_locating: bool,
}

impl Job for Flushed {
    fn reply(mut self: Box<Self>, reply: &[u8], desk: &mut Desk) -> Progress {
        if std::mem::take(&mut self.is_locating) {
            desk.conn.database = database::selected(reply);
            return Progress::Wait(self);
        }
        let FlushCommand { is_all, length, .. } = self.flush;
        let answering = Answering::new(reply.to_vec(), length);
        let scope = if is_all { None } else { desk.conn.database };
        if !reply.starts_with(b"+OK") || scope.is_none() && !is_all {
            return Progress::Answer(answering);
        }
        let grants = desk.shared.flushed(scope);
        for (key, token, _) in &grants {
            unlock::gives_back(key, token, desk);
            desk.tokens.remove(key, token);
        }
        Progress::ask(Freeing, Question::free(grants), |_, (), _| Progress::Answer(answering))
    }
}

/// A command whose locks are being released.
struct Freeing;

impl Job for Freeing {}
