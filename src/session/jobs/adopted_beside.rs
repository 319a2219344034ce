//! A lock idiom that gives an adopted lock back or extends it, where the rule is audited here and another
//! proxy has bridged it. The data node carries the command out, and its word is the answer; before that
//! the lock nodes release or extend what the token has there. Otherwise a lock that was taken through
//! the other proxy would stay there for its TTL, or end before its holder's time is up.
//!
//! Whatever the lock nodes say, the command passes: in mode audit nothing depends on them. One inside of
//! MULTI, without a reply or about several keys passes as it came.

use super::{
    super::{desk::Desk, guarded::database},
    Answer, Job, Pass, Progress, Question, Waits, When,
    adopted::held_for,
    authorize::{self, Permission, Probe},
};
use crate::{
    adopt::task::{AdoptTask, AdoptWork},
    bridge::Asker,
    clock::Instant,
    key::{Key, Token},
    lock::{Claim, Holding},
    resp::{encode, expected::Expected, name::ReplyMode},
};

/// The command passes as it came.
const PASSES: Progress = Progress::Pass(Pass::Counted);

/// An idiom that gives a lock back or extends it, whose turn has come.
pub(in crate::session) struct BesideDataNode(pub(in crate::session) Box<AdoptTask>);

impl Waits for BesideDataNode {
    fn begin(self: Box<Self>, when: When, desk: &mut Desk) -> Progress {
        let permission = Key::from(&self.0.key);
        if desk.conn.refuses_ours() || desk.conn.reply_mode != ReplyMode::On {
            return PASSES;
        }
        let is_permitted = desk.conn.permissions.remembered(&permission, when.now(), false);
        if is_permitted && desk.conn.database.is_some() {
            return ask(*self.0, desk);
        }
        desk.ask(Expected::Set, |out| authorize::probe(out, &self.0.key));
        desk.ask(Expected::Text, |out| encode::command(out, &[b"CLIENT", b"INFO"]));
        Progress::Wait(Box::new(AskingBeside { task: self.0, permitted: None }))
    }
}

/// The data node was asked whether the client may, and which database is selected.
struct AskingBeside {
    task: Box<AdoptTask>,
    permitted: Option<Permission>,
}

impl Job for AskingBeside {
    fn reply(mut self: Box<Self>, reply: &[u8], desk: &mut Desk) -> Progress {
        let Some(permitted) = self.permitted.take() else {
            self.permitted = Some(authorize::read(Probe::Adopted(Expected::Set), reply));
            return Progress::Wait(self);
        };
        desk.conn.database = database::selected(reply);
        // The data node refuses the command itself.
        if permitted != Permission::Granted || desk.conn.database.is_none() {
            return PASSES;
        }
        desk.conn.permissions.remember(&Key::from(&self.task.key), Instant::now());
        ask(*self.task, desk)
    }
}

/// Asks the lock nodes.
fn ask(task: AdoptTask, desk: &Desk) -> Progress {
    let Some(database) = desk.conn.database else { return PASSES };
    let name = match database {
        0 => task.lock,
        _ => [format!("{database}:").as_bytes(), &task.lock].concat(),
    };
    if name.is_empty() || name.len() > desk.config.locks.max_key {
        return PASSES;
    }
    let (key, asker) = (desk.key(&name), Asker::BesideDataNode);
    let question = match task.work {
        AdoptWork::Release { token, .. } => {
            Question::Unlock { key, token: Token::from(&token), claim: None, asker }
        }
        AdoptWork::Extend { token, ttl, .. } | AdoptWork::AcquireAgain { token, ttl, .. } => {
            let (token, ttl) = (Token::from(&token), held_for(ttl, desk));
            Question::Renew { key, token, ttl, claim: None, asker }
        }
        work => {
            let looking = LookingBeside { key: key.clone(), work };
            return Progress::Ask(Box::new(looking), Question::Look(key));
        }
    };
    Progress::Ask(Box::new(AskedBeside), question)
}

/// The lock nodes are asked to release or renew what the token has there.
struct AskedBeside;

impl Job for AskedBeside {
    fn answer(self: Box<Self>, _: Answer, _: &mut Desk) -> Progress {
        PASSES
    }
}

/// The lock nodes are asked who holds the lock, as the command does not say for whom it is, or for how
/// long.
struct LookingBeside {
    key: Key,
    work: AdoptWork,
}

impl Job for LookingBeside {
    fn answer(self: Box<Self>, answer: Answer, desk: &mut Desk) -> Progress {
        let LookingBeside { key, work } = *self;
        let Answer::Look(Ok(Some(Holding { token, left, claim }))) = answer else { return PASSES };
        let asker = Asker::BesideDataNode;
        // A LOCK client's lock is its own: a blind command changes nothing.
        let is_adopted = claim.is_some_and(Claim::is_adopted);
        let question = match work {
            AdoptWork::ReleaseBlind { .. } if is_adopted => {
                Question::Unlock { key, token, claim, asker }
            }
            AdoptWork::ExtendBlind { ttl, .. } if is_adopted => {
                Question::Renew { key, token, ttl: held_for(ttl, desk), claim, asker }
            }
            AdoptWork::ExtendBy { token: own, ttl, .. } if *own == *token => {
                let Some(left) = left else { return PASSES };
                // The lock nodes' time has what is set aside for drift already.
                let ttl = (left + ttl).min(held_for(desk.config.locks.max_ttl, desk));
                Question::Renew { key, token, ttl, claim, asker }
            }
            _ => return PASSES,
        };
        Progress::Ask(Box::new(AskedBeside), question)
    }
}
