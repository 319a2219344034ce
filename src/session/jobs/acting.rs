//! What an operator makes the proxy do by LOCKGATE.
//!
//! Allowed to any client that may CLIENT KILL on the data node: it could end the holder's connection anyway. The data
//! node is asked over the client's connection who the operator is, for the log. All else is done by
//! [`operator_acts`].

use std::{fmt, sync::Arc};

use tracing::warn;

use super::{
    super::{
        desk::Desk,
        operator_acts::{self, NodePause, NotTakenBack},
        session_metrics::{Maintenance, Outcome, TakenBack},
    },
    Ours, Progress, Question,
};
use crate::{
    card::ClientCard,
    command::{act::OperatorAct, shown},
    config::written,
    resp::{encode, expected::Expected},
};

/// Begins an operator's request, from a client that may make it.
pub(super) fn begin(ours: Ours, act: OperatorAct, desk: &mut Desk) -> Progress {
    desk.speak_up();
    desk.ask(Expected::Text, |out| encode::command(out, &[b"ACL", b"WHOAMI"]));
    Progress::await_replies(ours, |ours, reply, desk| {
        desk.hush_again();
        let operator = Operator { card: desk.card.clone(), user: text_of(reply) };
        carry_out(ours, act, &operator, desk)
    })
}

/// The operator, as the log names it.
struct Operator {
    card: Arc<ClientCard>,
    /// The client's user on the data node; `None` if the data node does not tell.
    user: Option<String>,
}

impl fmt::Display for Operator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.card.address().as_str() {
            "" => f.write_str("?")?,
            address => f.write_str(address)?,
        }
        if let Some(user) = &self.user {
            write!(f, " user {user:?}")?;
        }
        let name = self.card.name();
        if !name.is_empty() {
            write!(f, " name {name:?}")?;
        }
        Ok(())
    }
}

/// Carries out the request of an operator who is known.
fn carry_out(ours: Ours, act: OperatorAct, operator: &Operator, desk: &mut Desk) -> Progress {
    match act {
        OperatorAct::Unlock { key: name, grant } => {
            let question = Question::take_back(name, grant, operator.to_string());
            Progress::ask(ours, question, answered)
        }
        OperatorAct::PauseNode { address, force } => {
            of_node(ours, &address, NodePause::Pause { force }, operator, desk)
        }
        OperatorAct::ResumeNode { address } => {
            of_node(ours, &address, NodePause::Resume, operator, desk)
        }
        OperatorAct::Pause { time } => {
            desk.shared.engine.pause(time);
            let action = match time.is_zero() {
                true => {
                    warn!(by = %operator, "an operator has new LOCKs granted again");
                    Maintenance::Unpause
                }
                false => {
                    let time = written(time);
                    warn!(time, by = %operator, "an operator has new LOCKs wait (LOCKGATE PAUSE)");
                    Maintenance::Pause
                }
            };
            desk.shared.metrics.maintained(action, true);
            answer_ok(ours)
        }
    }
}

/// Pauses or resumes a lock node.
fn of_node(
    ours: Ours,
    address: &[u8],
    how: NodePause,
    operator: &Operator,
    desk: &Desk,
) -> Progress {
    match operator_acts::pause_node(&desk.shared, address, how, operator) {
        Ok(()) => answer_ok(ours),
        Err(error) => ours.refuse(&error.told("FORCE"), Outcome::BadRequest, desk),
    }
}

fn answer_ok(ours: Ours) -> Progress {
    let mut out = Vec::new();
    encode::simple(&mut out, "OK");
    ours.answer(out, None)
}

fn answer_integer(ours: Ours, number: i64) -> Progress {
    let mut out = Vec::new();
    encode::integer(&mut out, number);
    ours.answer(out, None)
}

/// Answers an UNLOCK, which has been counted.
fn answered(ours: Ours, done: Result<(), NotTakenBack>, desk: &mut Desk) -> Progress {
    let why = match done {
        Ok(()) => return answer_integer(ours, 1),
        Err(NotTakenBack::NotHeld) => return answer_integer(ours, 0),
        Err(why) => why,
    };
    let outcome = match why.result() {
        Some(TakenBack::NoQuorum) => Outcome::NoQuorum,
        _ => Outcome::Denied,
    };
    ours.refuse(&why.to_string(), outcome, desk)
}

/// Reads a bulk string, and cuts it to what a log line may hold.
fn text_of(reply: &[u8]) -> Option<String> {
    let line = reply.strip_prefix(b"$")?.strip_suffix(b"\r\n")?;
    let at = memchr::memchr(b'\n', line)?;
    Some(shown(&line[at + 1..]))
}
