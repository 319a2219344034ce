//! Ordinary commands that only wait: AUTH, HELLO and CLIENT REPLY, because of what their replies depend on, commands
//! in whose place others are sent, and commands of a client that may not have authenticated.

use super::{
    super::{desk::Desk, notes::Noted},
    Answering, Job, Pass, Progress, Waits, When,
};
use crate::resp::{
    encode,
    expected::Expected,
    name::{Name, ReplyMode},
    words::too_much_of_a_stranger,
};

/// AUTH or HELLO.
pub(in crate::session) struct Login;

impl Waits for Login {
    fn begin(self: Box<Self>, _when: When, _desk: &mut Desk) -> Progress {
        Progress::Pass(Pass::Counted)
    }
}

/// CLIENT REPLY, which asks for this mode.
pub(in crate::session) struct ClientReply(pub(in crate::session) ReplyMode);

impl Waits for ClientReply {
    fn begin(self: Box<Self>, _when: When, desk: &mut Desk) -> Progress {
        match (desk.conn.reply_mode, self.0) {
            // The data node answers with OK, an error or QUEUED.
            (ReplyMode::On, ReplyMode::On) => Progress::Pass(Pass::Counted),
            // Nothing is asked first: the session decides by a reply's first byte whose it is, and could not tell an
            // answer from MONITOR's lines. A refusal shows as a reply that is not owed.
            (ReplyMode::On, mode) if desk.conn.state.monitor && !desk.conn.in_multi() => {
                Progress::Pass(Pass::Unanswered(mode))
            }
            (ReplyMode::On, _) if desk.conn.refuses_ours() => Progress::Pass(Pass::Counted),
            // The data node will obey without a reply if CLIENT REPLY is allowed at all.
            (ReplyMode::On, mode) => {
                desk.ask(Expected::Ok, |out| encode::command(out, &[b"CLIENT", b"REPLY", b"ON"]));
                Progress::await_replies(*self, move |_, reply, _| match reply.starts_with(b"+OK") {
                    true => Progress::Pass(Pass::Unanswered(mode)),
                    false => Progress::Pass(Pass::Counted),
                })
            }
            // The command is queued without a reply, so its outcome stays unknown.
            _ if desk.conn.blind_multi => Progress::Relay,
            (_, ReplyMode::On) => {
                desk.conn.reply_mode = ReplyMode::On;
                Progress::Pass(Pass::Counted)
            }
            // SKIP has no effect while replies are off.
            (ReplyMode::Off, _) => Progress::Pass(Pass::Unanswered(ReplyMode::Off)),
            (ReplyMode::Skip, mode) => Progress::Pass(Pass::Unanswered(mode)),
        }
    }
}

impl Job for ClientReply {}

/// What is forwarded in place of a command whose bytes were dropped: another command, which has one plain reply.
pub(in crate::session) struct Instead(pub(in crate::session) Vec<u8>);

impl Waits for Instead {
    fn begin(self: Box<Self>, _when: When, desk: &mut Desk) -> Progress {
        desk.to_data.push(&self.0);
        match desk.note(Name::Other, 1) {
            Noted::Followed => Progress::Answer(Answering::new(Vec::new(), 0)),
            Noted::Lost | Noted::Quit => Progress::Relay,
        }
    }

    fn is_unsent(&self) -> bool {
        false
    }
}

/// The answer to a command whose bytes were dropped.
pub(in crate::session) struct StrangerRefused(pub(in crate::session) Vec<u8>);

impl Waits for StrangerRefused {
    fn begin(self: Box<Self>, _when: When, _desk: &mut Desk) -> Progress {
        Progress::Answer(Answering::new(self.0, 0))
    }

    fn is_unsent(&self) -> bool {
        false
    }
}

/// A command that is judged, counted or learned from only if the data node has let its client in.
pub(in crate::session) struct Unidentified;

impl Waits for Unidentified {
    fn begin(self: Box<Self>, _when: When, desk: &mut Desk) -> Progress {
        if desk.conn.state.known || desk.conn.reply_mode != ReplyMode::On {
            desk.conn.state.known = true;
            return Progress::Again;
        }
        // The data node answers this only to a client that has authenticated.
        desk.ask(Expected::Pong, |out| encode::command(out, &[b"PING"]));
        Progress::await_replies(*self, |_, reply, desk| {
            if !reply.starts_with(b"-NOAUTH") {
                desk.conn.state.known = true;
                return Progress::Again;
            }
            let Some(least) = too_much_of_a_stranger(&desk.unsent) else {
                return Progress::Stranger(reply.to_vec());
            };
            // These are the fewest bytes that Redis refuses as it would refuse this command. Redis words the error
            // and closes.
            desk.to_data.push(least);
            desk.unsent = Vec::new();
            Progress::Mute
        })
    }
}

impl Job for Unidentified {}
