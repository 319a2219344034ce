//! What an operator makes the proxy do by LOCKGATE.
//!
//! Allowed to any client that may CLIENT KILL on the data node: it could end the holder's connection anyway.
//!
//! For the steps and the reason for their order see [`operator`](super::super::operator_acts).

use std::{fmt, sync::Arc};

use tracing::warn;

use super::{
    super::{
        desk::Desk,
        operator_acts::{self, ForcedUnlock, NodePause, NotTakenBack, Outbid},
        session_metrics::{Maintenance, Outcome, TakenBack},
    },
    Answer, Job, Ours, Progress, Question, not_asked,
};
use crate::{
    card::ClientCard,
    command::{self, BadRequest, act::OperatorAct, shown},
    config::written,
    guard::{fences, replicas::Replicas},
    key::Key,
    lock::FoundGrant,
    resp::{encode, expected::Expected, name::ReplyMode},
};

/// Begins an operator's request, from a client that may make it.
///
/// # Errors
/// If no lock can have this key.
pub(super) fn begin(ours: Ours, act: OperatorAct, desk: &mut Desk) -> Result<Progress, BadRequest> {
    if let OperatorAct::Unlock { key, .. } = &act {
        command::check_key(key, &desk.key(key), &desk.config.locks)?;
    }
    desk.speak_up();
    desk.ask(Expected::Text, |out| encode::command(out, &[b"ACL", b"WHOAMI"]));
    let missing = desk.owed.len();
    let operator = Operator { card: desk.card.clone(), user: None };
    Ok(Progress::Wait(Box::new(Introducing { ours, act, operator, missing })))
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

/// A request for which the data node is asked who the operator is.
struct Introducing {
    ours: Ours,
    act: OperatorAct,
    operator: Operator,
    /// Number of missing replies; the last one tells the user.
    missing: usize,
}

/// An UNLOCK for which the lock nodes are asked which grant has the lock.
struct FindingGrant {
    ours: Ours,
    key: Key,
    /// The fence of the grant that is to be taken back. `None`: whichever grant has the lock.
    fence: Option<u64>,
    unlocking: Box<ForcedUnlock>,
}

/// An UNLOCK for which the data node is told a fence that is to outbid the holder's.
struct Outbidding {
    ours: Ours,
    key: Key,
    found: FoundGrant,
    unlocking: Box<ForcedUnlock>,
    outbid: Outbid,
    /// Replicas that must acknowledge the fence.
    replicas: Option<Replicas>,
    /// The reply to the fence, while WAIT's is missing.
    said: Vec<u8>,
    /// Number of missing replies. The last ones are the fence's and, if replicas must acknowledge it, WAIT's.
    missing: usize,
}

/// An UNLOCK for which the lock nodes are asked whether the same grant still has the lock, before the data node is
/// told a fence beyond one that it has seen.
struct Confirming {
    ours: Ours,
    key: Key,
    found: FoundGrant,
    unlocking: Box<ForcedUnlock>,
    outbid: Outbid,
}

/// An UNLOCK for which the lock nodes are asked to release the grant.
struct TakingBack {
    ours: Ours,
}

impl Job for Introducing {
    fn reply(mut self: Box<Self>, reply: &[u8], desk: &mut Desk) -> Progress {
        self.missing -= 1;
        if self.missing > 0 {
            return Progress::Wait(self);
        }
        self.operator.user = text_of(reply);
        if desk.conn.reply_mode == ReplyMode::Off {
            desk.hush();
        }
        let Introducing { ours, act, operator, .. } = *self;
        match act {
            OperatorAct::Unlock { key: name, fence } => {
                let key = desk.key(&name);
                let question = Question::Find(key.clone());
                let unlocking = ForcedUnlock::new(&desk.shared, &name, operator.to_string());
                Progress::Ask(Box::new(FindingGrant { ours, key, fence, unlocking }), question)
            }
            OperatorAct::PauseNode { address, force } => {
                of_node(ours, &address, NodePause::Pause { force }, &operator, desk)
            }
            OperatorAct::ResumeNode { address } => {
                of_node(ours, &address, NodePause::Resume, &operator, desk)
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

    fn ours(&self) -> Option<Ours> {
        Some(self.ours)
    }
}

impl Job for FindingGrant {
    fn answer(self: Box<Self>, answer: Answer, desk: &mut Desk) -> Progress {
        let Answer::Find(said) = answer else { return not_asked() };
        let FindingGrant { ours, key, fence, mut unlocking } = *self;
        let found = match operator_acts::meant(said, fence) {
            Ok(found) => found,
            Err(why) => return answered(ours, unlocking.ends(Err(why)), desk),
        };
        unlocking.begins(&found);
        match desk.is_guard_lock(&key) {
            true => {
                let outbid = Outbid::of(&found);
                Confirming { ours, key, found, unlocking, outbid }.tell(desk)
            }
            false => take_back(ours, key, found, unlocking),
        }
    }

    fn asks_for(&self) -> Option<Ours> {
        Some(self.ours)
    }
}

impl Confirming {
    /// Tells the data node the larger fence.
    fn tell(self, desk: &mut Desk) -> Progress {
        let Confirming { ours, key, found, unlocking, outbid } = self;
        let (selected, ttl) = (desk.conn.database, desk.config.locks.fence_ttl);
        let (place, replicas) = (desk.fence_place(), desk.replicas());
        desk.speak_up();
        desk.ask(Expected::Text, |out| {
            fences::announce(out, place, &key, outbid.fence, selected, ttl)
        });
        if let Some(replicas) = replicas {
            desk.ask(Expected::Number, |out| replicas.ask(out, None));
        }
        let (said, missing) = (Vec::new(), desk.owed.len());
        let outbidding =
            Outbidding { ours, key, found, unlocking, outbid, replicas, said, missing };
        Progress::Wait(Box::new(outbidding))
    }
}

impl Job for Confirming {
    fn answer(self: Box<Self>, answer: Answer, desk: &mut Desk) -> Progress {
        let Answer::Find(said) = answer else { return not_asked() };
        match operator_acts::still(said, &self.found) {
            Ok(()) => self.tell(desk),
            Err(why) => answered(self.ours, self.unlocking.ends(Err(why)), desk),
        }
    }

    fn asks_for(&self) -> Option<Ours> {
        Some(self.ours)
    }
}

impl Job for Outbidding {
    fn reply(mut self: Box<Self>, reply: &[u8], desk: &mut Desk) -> Progress {
        self.missing -= 1;
        if self.missing > 0 {
            if self.missing == 1 && self.replicas.is_some() {
                self.said = reply.to_vec();
            }
            return Progress::Wait(self);
        }
        if desk.conn.reply_mode == ReplyMode::Off {
            desk.hush();
        }
        let Outbidding { ours, key, found, unlocking, outbid, replicas, said, .. } = *self;
        let (said, acknowledged) = match &replicas {
            Some(replicas) => (&said[..], Some((replicas, replicas.read(reply)))),
            None => (reply, None),
        };
        let Some(seen) = fences::read_fence(said) else {
            let error = fences::read_error(said).unwrap_or_default();
            let why = NotTakenBack::fence(&String::from_utf8_lossy(&error));
            return answered(ours, unlocking.ends(Err(why)), desk);
        };
        if let Some((replicas, acknowledged)) = acknowledged
            && let Err(why) = operator_acts::take_in(&desk.shared, replicas, acknowledged)
        {
            return answered(ours, unlocking.ends(Err(why)), desk);
        }
        match outbid.again(seen) {
            None => take_back(ours, key, found, unlocking),
            Some(outbid) => {
                let question = Question::Find(key.clone());
                let confirming = Confirming { ours, key, found, unlocking, outbid };
                Progress::Ask(Box::new(confirming), question)
            }
        }
    }

    fn ours(&self) -> Option<Ours> {
        Some(self.ours)
    }
}

fn take_back(ours: Ours, key: Key, found: FoundGrant, unlocking: Box<ForcedUnlock>) -> Progress {
    Progress::Ask(Box::new(TakingBack { ours }), Question::TakeBack { key, found, unlocking })
}

impl Job for TakingBack {
    fn answer(self: Box<Self>, answer: Answer, desk: &mut Desk) -> Progress {
        let Answer::TakenBack(done) = answer else { return not_asked() };
        answered(self.ours, done, desk)
    }

    fn asks_for(&self) -> Option<Ours> {
        Some(self.ours)
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
fn answered(ours: Ours, done: Result<(), NotTakenBack>, desk: &Desk) -> Progress {
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
