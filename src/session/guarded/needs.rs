//! Which locks a guarded command needs, and whether the connection holds them.

use std::sync::Arc;

use super::{
    super::{
        desk::Desk,
        jobs::{Job, Pass, Progress, Question, Waits, When, authorize},
        session_metrics::GuardedWrite,
    },
    forgotten,
    refuse::{refuse, refuse_where_redis_would},
    short,
    subject::{GuardedCommand, Subject},
    verify::{run_out, verify},
};
use crate::{
    clock::Instant,
    guard::{
        Guards, Look, MAX_LOCKS, Need, Stop,
        fences::{self, FencedLock, MOVING},
        learn::AskError,
        write::Write,
    },
    key::Key,
    log_text::shown,
    resp::{expected::Expected, name::ReplyMode},
};

/// A write that guards stop, before its locks are known.
pub(in crate::session) struct Guarded {
    write: GuardedCommand,
    stop: Stop,
    guards: Arc<Guards>,
}

impl Guarded {
    /// Makes a write of `length` bytes; 0 if its bytes were dropped.
    pub(in crate::session) fn new(
        length: usize,
        by_script: Option<Write>,
        stop: Stop,
        guards: &Arc<Guards>,
    ) -> Guarded {
        let write = GuardedCommand { length, by_script, ..GuardedCommand::default() };
        Guarded { write, stop, guards: guards.clone() }
    }
}

impl Waits for Guarded {
    fn is_unsent(&self) -> bool {
        self.write.length > 0
    }

    fn begin(self: Box<Self>, _when: When, desk: &mut Desk) -> Progress {
        let Guarded { write, stop, guards } = *self;
        // A dropped command has no unsent bytes, so the next command would be forwarded in its place.
        let is_known = !matches!(stop, Stop::Unknown(_) | Stop::ZeroInName);
        if write.length > 0
            && is_known
            && (desk.conn.state.is_resp2_subscriber() || desk.conn.state.monitor)
        {
            return match guards.enforces() {
                true => refuse_where_redis_would(write, desk),
                false => Progress::Pass(Pass::Counted),
            };
        }
        stopped(write, stop, guards, desk)
    }
}

fn stopped(write: GuardedCommand, stop: Stop, guards: Arc<Guards>, desk: &mut Desk) -> Progress {
    use GuardedWrite::{NotHeld, Refused};
    let limit = guards.max_command;
    let (error, result) = match stop {
        Stop::Needs(needs) => return begin_write(write, needs, desk),
        Stop::Ask(command) => {
            let question = Question::keys(guards.clone(), command);
            return Progress::ask(Learning { write, guards }, question, Learning::keys_told);
        }
        Stop::Unknown(name) => {
            let question = Question::commands(guards.clone(), name);
            return Progress::ask(Learning { write, guards }, question, Learning::commands_read);
        }
        Stop::Databases(name) => {
            let name = shown(&name);
            let why = "would touch guarded keys without their locks (guards.flush)";
            (format!("NOTHELD {name} {why}"), NotHeld)
        }
        Stop::Reserved => {
            ("ERR keys that begin with 'lockgate:guard:' are Lockgate's own".into(), NotHeld)
        }
        Stop::Slots(Need { lock, key }) => {
            let (lock, key) = (shown(&lock), shown(&key));
            let error = format!("CROSSSLOT '{key}' is in another slot than its lock '{lock}'");
            (error, NotHeld)
        }
        Stop::ZeroInName => {
            ("ERR unknown command, there is a zero byte in its name".into(), Refused)
        }
        Stop::TooLarge => (
            format!(
                "ERR command too large to be checked against the guards, more than {limit} bytes (guards.max_command)"
            ),
            Refused,
        ),
        Stop::NoRoom => (
            "ERR too many large commands are being checked against the guards, try again".into(),
            Refused,
        ),
        Stop::TooMuch => {
            ("ERR too much in one command to be checked against the guards".into(), Refused)
        }
        Stop::TooMany => {
            (format!("ERR one command may write under at most {MAX_LOCKS} locks"), NotHeld)
        }
    };
    refuse(write, error.as_bytes(), result, desk)
}

/// A write about which the data node was asked, over a connection of the proxy's own.
struct Learning {
    write: GuardedCommand,
    guards: Arc<Guards>,
}

impl Job for Learning {}

impl Learning {
    /// Takes in which keys the command writes.
    fn keys_told(self, said: Result<Vec<Vec<u8>>, AskError>, desk: &mut Desk) -> Progress {
        let keys = match said {
            Ok(keys) => keys,
            Err(error) => return self.refuse(&error.to_string(), desk),
        };
        match self.guards.needs(keys.iter().map(Vec::as_slice)) {
            Ok(audited) => {
                desk.audit(&audited);
                Progress::Pass(Pass::Counted)
            }
            Err(stop) => stopped(self.write, stop, self.guards, desk),
        }
    }

    /// Takes in whether the data node's commands could be read.
    fn commands_read(self, were_read: bool, desk: &mut Desk) -> Progress {
        let Learning { write, guards } = &self;
        let table = guards.catalog.table().clone();
        match guards.look(table.as_deref(), &desk.unsent[..write.length]) {
            // The command may be newer than the list of known commands.
            Look::Stop(_, Stop::Unknown(_), _) if table.is_none() || !were_read => {
                self.refuse("the data node's commands cannot be read", desk)
            }
            // Redis does not know the command either, and answers with an error.
            Look::Stop(_, Stop::Unknown(_), _) => Progress::Pass(Pass::Counted),
            Look::Stop(_, stop, by_script) => {
                let Learning { write, guards } = self;
                let write = GuardedCommand { by_script, ..write };
                Box::new(Guarded { write, stop, guards }).begin_again(desk)
            }
            Look::Audited(needs) => {
                desk.audit(&needs);
                Progress::Pass(Pass::Counted)
            }
            Look::Free | Look::More(..) | Look::TooLarge => Progress::Pass(Pass::Counted),
        }
    }

    fn refuse(self, why: &str, desk: &mut Desk) -> Progress {
        let error = format!("ERR the command could not be checked against the guards: {why}");
        refuse(self.write, error.as_bytes(), GuardedWrite::NotHeld, desk)
    }
}

impl Guarded {
    /// Begins again, now that the command is known.
    fn begin_again(self: Box<Self>, desk: &mut Desk) -> Progress {
        let when = When { since: Instant::now(), waited: true };
        self.begin(when, desk)
    }
}

/// Goes on with a write if the connection holds these locks.
fn begin_write(mut write: GuardedCommand, needs: Vec<Need>, desk: &mut Desk) -> Progress {
    desk.take_in_history();
    let (now, in_multi) = (Instant::now(), desk.conn.in_multi());
    if desk.conn.is_asking() && desk.has_slots() && !in_multi {
        // The node to which the slot is being moved may not have the fence yet.
        return refuse(write, MOVING, GuardedWrite::Refused, desk);
    }
    let keys: Vec<Key> = needs.iter().map(|need| desk.key(&need.lock)).collect();
    if !in_multi && !write.claimed.verified {
        let run_out = run_out(keys.iter().cloned(), now, desk);
        if !run_out.is_empty() {
            let then = move |error: Option<String>, desk: &mut Desk| {
                write.claimed.verified = true;
                match error {
                    None => begin_write(write, needs, desk),
                    Some(error) => refuse(write, error.as_bytes(), GuardedWrite::Refused, desk),
                }
            };
            return verify(run_out, then);
        }
    }
    let mut claims = Vec::with_capacity(needs.len());
    for (need, key) in needs.iter().zip(keys) {
        let claim = desk.tokens.claim(&key, now).map(|(fence, announced)| FencedLock {
            key: key.clone(),
            fence,
            announced,
            wanted_for: need.key.clone(),
        });
        let armed = desk.conn.armed.as_deref().filter(|_| in_multi);
        match claim {
            Some(claim) if !in_multi || armed.is_some_and(|armed| armed.watches(&claim)) => {
                claims.push(claim);
            }
            _ => {
                let why = armed.and_then(|armed| armed.refused(&key));
                return match why {
                    Some(why) => refuse(write, &why, GuardedWrite::NotHeld, desk),
                    None => refuse_without_lock(write, need, &key, desk),
                };
            }
        }
    }
    if in_multi {
        if let Some(armed) = &mut desk.conn.armed {
            armed.has_writes = true;
        }
        desk.shared.metrics.guarded(GuardedWrite::Passed);
        return Progress::Pass(Pass::Counted);
    }
    if desk.conn.state.watching {
        let error = "ERR a guarded write between WATCH and MULTI is not supported; write before \
                     WATCH, or in the transaction";
        return refuse(write, error.as_bytes(), GuardedWrite::NotHeld, desk);
    }
    let is_doubted = |claim: &FencedLock| !claim.announced && desk.tokens.is_doubted(&claim.key);
    let doubted = claims.iter().any(is_doubted);
    write.claimed.claims = claims;
    if doubted {
        // Asked before anything is sent to the data node: no reply may come meanwhile.
        return forgotten::ask(Subject::Write(write), None, desk);
    }
    write.turn_replies_on(desk);
    short::begin(Subject::Write(write), desk)
}

/// Refuses a write whose lock the connection does not hold. A cluster's node is asked first whether it has the slot:
/// if not, its redirection leads the client to the node of the lock.
fn refuse_without_lock(write: GuardedCommand, need: &Need, key: &Key, desk: &mut Desk) -> Progress {
    let shares = desk.tokens.readers(key, None).next().is_some();
    let error = not_held(need, shares).into_bytes();
    // In a transaction the question would be queued.
    if !desk.has_slots() || desk.conn.in_multi() || desk.conn.reply_mode != ReplyMode::On {
        return refuse(write, &error, GuardedWrite::NotHeld, desk);
    }
    // The question uses up a flag that an earlier command has set for this one.
    desk.conn.next_only = false;
    let fence = desk.fence_place().fence_key(key);
    desk.ask(Expected::Set, |out| authorize::probe(out, &fence));
    Progress::await_replies(write, move |write, reply, desk| match fences::read_elsewhere(reply) {
        Some(elsewhere) => refuse(write, elsewhere.as_bytes(), GuardedWrite::Refused, desk),
        None => refuse(write, &error, GuardedWrite::NotHeld, desk),
    })
}

fn not_held(Need { lock, key }: &Need, shares: bool) -> String {
    let (lock, key) = (shown(lock), shown(key));
    let alone = if shares { " alone, as it is a reader" } else { "" };
    format!(
        "NOTHELD '{key}' may only be written under the lock '{lock}', which this connection does not hold{alone}"
    )
}
