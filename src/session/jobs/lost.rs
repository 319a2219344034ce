//! Commands that were dropped because the client must first be told that its lock is lost.

use super::{
    super::{desk::Desk, loss_news::Refused},
    Answering, Job, Progress, Waits, When,
};
use crate::resp::{encode, expected::Expected};

impl Waits for Refused {
    /// Answers, but first makes an open transaction fail, or ends it: it must not go on without the dropped commands,
    /// nor stay open if one of them would have ended it.
    fn begin(self: Box<Self>, _when: When, desk: &mut Desk) -> Progress {
        if !desk.conn.in_multi() {
            return tell(*self, desk);
        }
        let command: &[u8] = if self.ends_transaction { b"DISCARD" } else { b"LOCK" };
        let expected = if self.ends_transaction { Expected::Ok } else { Expected::Error };
        desk.ask(expected, |out| encode::command(out, &[command]));
        Progress::await_replies(*self, |refused, reply, desk| {
            if refused.ends_transaction && reply.starts_with(b"+OK") {
                (desk.conn.state.multi, desk.conn.state.watching) = (false, false);
                desk.conn.transaction_ended();
            }
            tell(refused, desk)
        })
    }

    fn is_unsent(&self) -> bool {
        false
    }

    fn tells_of_loss(&self, _desk: &Desk) -> bool {
        true
    }
}

impl Job for Refused {}

fn tell(refused: Refused, desk: &mut Desk) -> Progress {
    Progress::Answer(Answering::new(desk.losing.answer(refused.count), 0))
}
