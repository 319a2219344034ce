//! A lock idiom that releases or extends an adopted lock whose rule is only audited here, and bridged by another
//! proxy. The data node carries the command out, and its reply is the answer. Before that the lock nodes release or
//! extend what the token has there. Otherwise a lock that was taken through the other proxy would stay on the lock
//! nodes for its TTL, or end there before its holder's time is up.
//!
//! The command passes whatever the lock nodes say: in mode audit nothing depends on them. A command inside MULTI,
//! without a reply or about several keys passes as it came.

use std::time::Duration;

use super::{
    super::{desk::Desk, guarded::database},
    Job, Pass, Progress, Question, Waits, When,
    adopted::lock_in,
    adopted_lock::held_for,
    authorize::{self, Permission, Probe},
};
use crate::{
    adopt::{
        by_holder::Act,
        task::{AdoptTask, AdoptWork, LockWork},
    },
    bridge::Asker,
    clock::Instant,
    key::{Key, Token},
    lock::{Claim, Holding, NoQuorum},
    resp::{expected::Expected, name::ReplyMode},
};

/// The command passes as it came.
const PASSES: Progress = Progress::Pass(Pass::Counted);

/// An idiom that releases or extends a lock, and whose turn has come.
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
        database::locate(desk);
        Progress::Wait(self)
    }
}

impl Job for BesideDataNode {
    /// Takes in whether the client may. The reply that tells the database comes next.
    fn reply(self: Box<Self>, reply: &[u8], _: &mut Desk) -> Progress {
        let permitted = authorize::read(Probe::Adopted(Expected::Set), reply);
        database::await_database(*self, move |BesideDataNode(task), _, desk| {
            // The data node itself refuses a command that the client may not send.
            if permitted != Permission::Granted || desk.conn.database.is_none() {
                return PASSES;
            }
            let until = Instant::now() + desk.config.locks.authorize_cache;
            desk.conn.permissions.remember(&Key::from(&task.key), until);
            ask(*task, desk)
        })
    }
}

/// Asks the lock nodes.
fn ask(task: AdoptTask, desk: &Desk) -> Progress {
    let Some(database) = desk.conn.database else { return PASSES };
    let name = lock_in(database, task.lock);
    if name.is_empty() || name.len() > desk.config.locks.max_key {
        return PASSES;
    }
    let key = desk.key(&name);
    let AdoptWork::Lock(work) = task.work else { return PASSES };
    match (work.token.clone(), work.acts.own) {
        (Some(token), Act::Free) => release(key, token, None),
        (Some(token), Act::Renew) => {
            let ttl = held_for(work.ttl.unwrap_or_default(), desk);
            renew(key, token, ttl, None)
        }
        _ => {
            let question = Question::look(key.clone());
            Progress::ask(AskedBeside, question, move |_, said, desk| {
                looked(key, &work, said, desk)
            })
        }
    }
}

/// A command for which the lock nodes are asked.
struct AskedBeside;

impl Job for AskedBeside {}

/// Takes in who holds the lock, for a command that names no token, or adds to the lock's TTL.
fn looked(
    key: Key,
    work: &LockWork,
    said: Result<Option<Holding>, NoQuorum>,
    desk: &mut Desk,
) -> Progress {
    let Ok(Some(Holding { token, left, claim })) = said else { return PASSES };
    // A LOCK client's lock is its own: a blind command changes nothing.
    let is_adopted = claim.is_some_and(Claim::is_adopted);
    let (ttl, is_own) = (work.ttl.unwrap_or_default(), work.token.as_ref() == Some(&token));
    match (work.acts.own, left) {
        (Act::Free, _) if is_adopted => release(key, token, claim),
        (Act::Renew, _) if is_adopted => renew(key, token, held_for(ttl, desk), claim),
        (Act::AddTo, Some(left)) if is_own => {
            // The time left on the lock nodes already includes what `held_for` has added.
            renew(key, token, (left + ttl).min(held_for(desk.config.locks.max_ttl, desk)), claim)
        }
        _ => PASSES,
    }
}

fn release(key: Key, token: Token, claim: Option<Claim>) -> Progress {
    let question = Question::unlock(key, token, claim, Asker::BesideDataNode);
    Progress::ask(AskedBeside, question, |_, _, _| PASSES)
}

fn renew(key: Key, token: Token, ttl: Duration, claim: Option<Claim>) -> Progress {
    let question = Question::renew(key, token, ttl, claim, Asker::BesideDataNode);
    Progress::ask(AskedBeside, question, |_, _, _| PASSES)
}
