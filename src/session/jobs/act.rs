//! What an operator has the proxy do, by LOCKGATE.
//!
//! A client may that the data node lets kill connections: it could end a holder's connection as well.
//!
//! **UNLOCK.** The lock nodes say which grant has the lock, and it is compared with the fence that the
//! operator has named. If guards need the lock, the data node is told a larger fence then: from there on
//! it refuses the holder's writes. Behind that the grant is released on the lock nodes. So nobody is
//! granted the lock while its last holder may still write, and a step that fails leaves the lock with its
//! holder, whose writes are refused; the operator repeats it.
//!
//! **NODE, PAUSE.** They end with the process: an operator who forgets them is forgiven by a restart.

use std::{
    fmt,
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use tracing::warn;

use super::{
    super::{
        desk::Desk,
        metrics::{Outcome, TakenBack},
    },
    Answer, Job, Ours, Progress, Question, not_asked,
};
use crate::{
    card::ClientCard,
    command::{self, BadRequest, act::OperatorAct, shown},
    guard::fences,
    key::Key,
    lock::{FoundGrant, NoQuorum, NotPaused},
    resp::{encode, name::ReplyMode},
};

/// The largest fence that the data node is told.
const LAST_FENCE: u64 = (1 << 53) - 2;

const NO_TOKEN: &str = "ERR what lies at the lock's key on the lock nodes is no token: \
     nobody was granted it, delete it there";

/// Begins what a client wants that may have it done.
///
/// # Errors
/// If no lock can have that key.
pub(super) fn begin(ours: Ours, act: OperatorAct, desk: &mut Desk) -> Result<Progress, BadRequest> {
    if let OperatorAct::Unlock { key, .. } = &act {
        command::check_key(key, &desk.key(key), &desk.config.locks)?;
    }
    desk.speak_up();
    desk.ask(|out| encode::command(out, &[b"ACL", b"WHOAMI"]));
    let missing = desk.owed.len();
    let operator = Operator { card: desk.card.clone(), user: None };
    Ok(Progress::Wait(Box::new(Introducing { ours, act, operator, missing })))
}

/// Who has something done.
struct Operator {
    card: Arc<ClientCard>,
    /// The user on the data node; `None` if that does not tell.
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

/// A lock to be taken back.
struct ForcedUnlock {
    key: Key,
    /// The fence of the grant that is meant. `None`: whichever has the lock.
    fence: Option<u64>,
}

/// The data node is asked who the operator is.
struct Introducing {
    ours: Ours,
    act: OperatorAct,
    operator: Operator,
    /// How many replies are missing; the last one tells the user.
    missing: usize,
}

/// The lock nodes are asked which grant has the lock.
struct FindingGrant {
    ours: Ours,
    unlock: ForcedUnlock,
    operator: Operator,
}

/// The data node is told a larger fence.
struct Outbidding {
    ours: Ours,
    key: Key,
    found: FoundGrant,
    operator: Operator,
    /// How many replies are missing; the last one is that to the fence.
    missing: usize,
}

/// The lock nodes are asked to release the grant.
struct TakingBack {
    ours: Ours,
    key: Key,
    found: FoundGrant,
    operator: Operator,
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
                let unlock = ForcedUnlock { key: key.clone(), fence };
                let finding = FindingGrant { ours, unlock, operator };
                Progress::Ask(Box::new(finding), Question::Find(key))
            }
            OperatorAct::PauseNode { address, force } => {
                let paused = desk.shared.engine.pause_node(&address, force);
                of_node(ours, &address, paused, &operator, desk)
            }
            OperatorAct::ResumeNode { address } => {
                let resumed = desk.shared.engine.resume_node(&address);
                of_node(ours, &address, resumed, &operator, desk)
            }
            OperatorAct::Pause { time } => {
                desk.shared.engine.pause(time);
                match time.is_zero() {
                    true => warn!(by = %operator, "an operator has new LOCKs granted again"),
                    false => {
                        warn!(?time, by = %operator, "an operator has new LOCKs wait (LOCKGATE PAUSE)")
                    }
                }
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
        let FindingGrant { ours, unlock: ForcedUnlock { key, fence }, operator } = *self;
        let found = match said {
            Ok(Some(found)) => found,
            Ok(None) => return not_held(ours, desk),
            Err(error) => return no_quorum(ours, &error, desk),
        };
        if found.token.is_empty() {
            return failed(ours, NO_TOKEN, desk);
        }
        match (fence, found.fences) {
            (None, _) => {}
            (Some(meant), Some((least, most))) if least == most && meant == least => {}
            // Neither can it be said that it is that one, nor that it is not.
            (Some(meant), Some((least, most)))
                if least < most && (least..=most).contains(&meant) =>
            {
                let error = format!(
                    "NOQUORUM the lock nodes that answer do not tell whether the holder's fence is \
                     {meant}: it is one of {least} to {most}"
                );
                desk.shared.metrics.taken_back(TakenBack::NoQuorum);
                return ours.refuse(&error, Outcome::NoQuorum, desk);
            }
            _ => return not_held(ours, desk),
        }
        match desk.is_guard_lock(&key) {
            true => outbid(ours, key, found, operator, desk),
            false => take_back(ours, key, found, operator),
        }
    }

    fn asks_for(&self) -> Option<Ours> {
        Some(self.ours)
    }
}

/// Tells the data node a fence that is larger than the holder's.
fn outbid(
    ours: Ours,
    key: Key,
    found: FoundGrant,
    operator: Operator,
    desk: &mut Desk,
) -> Progress {
    let fence = found.fences.map_or_else(now_as_fence, |(_, most)| most + 1).min(LAST_FENCE);
    let (selected, ttl) = (desk.conn.database, desk.config.locks.fence_ttl);
    let place = desk.fence_place();
    desk.speak_up();
    desk.ask(|out| fences::announce(out, place, &key, fence, selected, ttl));
    let missing = desk.owed.len();
    Progress::Wait(Box::new(Outbidding { ours, key, found, operator, missing }))
}

/// The fence that a proxy would propose now.
fn now_as_fence() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(LAST_FENCE)
}

impl Job for Outbidding {
    fn reply(mut self: Box<Self>, reply: &[u8], desk: &mut Desk) -> Progress {
        self.missing -= 1;
        if self.missing > 0 {
            return Progress::Wait(self);
        }
        if desk.conn.reply_mode == ReplyMode::Off {
            desk.hush();
        }
        let Outbidding { ours, key, found, operator, .. } = *self;
        if fences::read_fence(reply).is_some() {
            return take_back(ours, key, found, operator);
        }
        let error = fences::read_error(reply).unwrap_or_default();
        let error = match error.is_empty() {
            true => "ERR the data node did not take a larger fence".into(),
            false => String::from_utf8_lossy(&error),
        };
        failed(ours, &error, desk)
    }

    fn ours(&self) -> Option<Ours> {
        Some(self.ours)
    }
}

fn take_back(ours: Ours, key: Key, found: FoundGrant, operator: Operator) -> Progress {
    let question = Question::TakeBack { key: key.clone(), found: found.clone() };
    Progress::Ask(Box::new(TakingBack { ours, key, found, operator }), question)
}

impl Job for TakingBack {
    fn answer(self: Box<Self>, answer: Answer, desk: &mut Desk) -> Progress {
        let Answer::Unlock(said) = answer else { return not_asked() };
        let TakingBack { ours, key, found, operator } = *self;
        let fence = found.fences.map_or(0, |(_, most)| most);
        let lock = shown(desk.name(&key));
        match said {
            Ok(true) => {
                warn!(lock, fence, by = %operator, "an operator has taken a lock back (LOCKGATE UNLOCK)");
                if let Some(bridge) = &desk.shared.bridge {
                    bridge.free_soon(&key, &found.token);
                }
                desk.shared.metrics.taken_back(TakenBack::Ok);
                answer_integer(ours, 1)
            }
            Ok(false) => not_held(ours, desk),
            Err(error) => {
                warn!(
                    lock, fence, by = %operator, %error,
                    "an operator has tried to take a lock back (LOCKGATE UNLOCK)"
                );
                no_quorum(ours, &error, desk)
            }
        }
    }

    fn asks_for(&self) -> Option<Ours> {
        Some(self.ours)
    }
}

/// Answers whether a lock node was paused or resumed. Its own line in the log says which.
fn of_node(
    ours: Ours,
    address: &[u8],
    done: Result<(), NotPaused>,
    operator: &Operator,
    desk: &Desk,
) -> Progress {
    let node = shown(address);
    let error = match done {
        Ok(()) => {
            warn!(node, by = %operator, "an operator has paused or resumed a lock node (LOCKGATE NODE)");
            return answer_ok(ours);
        }
        Err(NotPaused::Unknown) => {
            format!("ERR no lock node has the address '{node}' (LOCKGATE NODES)")
        }
        Err(NotPaused::TooFew { voting, quorum }) => format!(
            "ERR {voting} other lock nodes vote, and {quorum} are needed; with FORCE it is paused all the same"
        ),
    };
    ours.refuse(&error, Outcome::BadRequest, desk)
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

fn not_held(ours: Ours, desk: &Desk) -> Progress {
    desk.shared.metrics.taken_back(TakenBack::NotHeld);
    answer_integer(ours, 0)
}

fn no_quorum(ours: Ours, error: &NoQuorum, desk: &Desk) -> Progress {
    desk.shared.metrics.taken_back(TakenBack::NoQuorum);
    super::lock::no_quorum(ours, error, desk)
}

fn failed(ours: Ours, error: &str, desk: &Desk) -> Progress {
    desk.shared.metrics.taken_back(TakenBack::Failed);
    ours.refuse(error, Outcome::Denied, desk)
}

/// Reads a bulk string, cut to what a line of the log bears.
fn text_of(reply: &[u8]) -> Option<String> {
    let line = reply.strip_prefix(b"$")?.strip_suffix(b"\r\n")?;
    let at = memchr::memchr(b'\n', line)?;
    Some(shown(&line[at + 1..]))
}
