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
    resp::{expected::Expected, name::ReplyMode},
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
            database::locate(desk);
        }
        desk.ask(Expected::Ok, |out| out.extend_from_slice(&self.0.command));
        match is_locating {
            true => Progress::Wait(self),
            false => Progress::await_replies(*self, Flushing::flushed),
        }
    }
}

impl Job for Flushing {
    /// Takes in which database is selected. The reply to the command comes next.
    fn reply(self: Box<Self>, reply: &[u8], desk: &mut Desk) -> Progress {
        desk.conn.database = database::selected(reply);
        Progress::await_replies(*self, Flushing::flushed)
    }
}

impl Flushing {
    /// Releases the locks if the data node has carried the command out.
    fn flushed(self, reply: &[u8], desk: &mut Desk) -> Progress {
        let FlushCommand { is_all, length, .. } = self.0;
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
        Progress::ask(self, Question::free(grants), |_, (), _| Progress::Answer(answering))
    }
}
