//! A transaction that releases or extends one adopted lock, as StackExchange.Redis sends it. The lock nodes are asked
//! at GET and at EXEC; the data node sees nothing of the transaction.
//!
//! EXEC succeeds if the grant that GET told still stands. Redis would also give up if the key was touched in between,
//! such as by an extension of the same token.

use super::{
    super::{
        desk::Desk,
        lock_transaction::{LockTransaction, SeenLock, Unqueued, WatchedLock},
        session_metrics::Outcome,
    },
    Ours, Pass, Progress, Question, Waits, When,
    adopted_lock::{OneLock, tell},
    unexpected,
    unsettled::unsettled,
};
use crate::{
    adopt::{
        by_holder::{Acts, ByHolder, LockReply, Replies},
        task::{LockWork, QueuedWork, WorkOnReaders},
    },
    config::NoQuorumPolicy,
    key::Key,
    lock::Holding,
    log_text::shown,
    resp::name::{Own, ReplyMode},
};

/// Error for a command that does not fit.
pub(in crate::session) const MISFIT: &str = "ERR a transaction on an adopted lock is WATCH, GET, MULTI, one of DEL, UNLINK, EXPIRE and \
     PEXPIRE, and EXEC, all of one key (adopt)";
/// Error for a WATCH of something else as well.
pub(in crate::session) const ALONE: &str =
    "ERR an adopted lock is watched alone, without other keys (adopt)";
/// Redis's error for EXEC behind an error.
const ABORTED: &str = "EXECABORT Transaction discarded because of previous errors.";
const UNREAD: &str = "EXECABORT an adopted lock was watched and not read (adopt)";

/// Replies to EXEC where the lock is free, has the token, has the token but no TTL, or has another token.
const EXECUTED: Replies = ByHolder::of([
    LockReply::NullArray,
    LockReply::OneNumber(1),
    LockReply::OneNumber(1),
    LockReply::NullArray,
]);

/// A command that begins or ends a transaction about an adopted lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::session) enum TransactionStep {
    /// MULTI.
    Multi,
    /// EXEC.
    Exec,
    /// DISCARD.
    Discard,
    /// UNWATCH.
    Unwatch,
}

/// A whole command that begins or ends a transaction.
pub(in crate::session) struct TransactionCommand {
    pub(in crate::session) step: TransactionStep,
    /// Number of unsent bytes that are its own.
    pub(in crate::session) length: usize,
}

impl Waits for TransactionCommand {
    fn begin(self: Box<Self>, when: When, desk: &mut Desk) -> Progress {
        let stage = desk.transaction.take();
        let Some(stage) = stage.filter(|_| !desk.conn.refuses_ours()) else {
            // The data node refuses it.
            return Progress::Pass(Pass::Counted);
        };
        let TransactionCommand { step, length } = *self;
        let silent = use_up_skip(desk);
        let (own, since) = (Own::Lockgate, when.now());
        let adopted = Some(stage.no_quorum());
        let ours = Ours { own, length, silent, adopted, since };
        match step {
            TransactionStep::Multi => desk.transaction = Some(Box::new(stage.open())),
            TransactionStep::Discard | TransactionStep::Unwatch => {}
            TransactionStep::Exec => return execute(ours, *stage, desk),
        }
        tell(ours, LockReply::Ok, Outcome::Ok, desk)
    }
}

/// A command that does not fit, whose bytes were dropped.
pub(in crate::session) struct Misfit(pub(in crate::session) &'static str);

impl Waits for Misfit {
    fn begin(self: Box<Self>, when: When, desk: &mut Desk) -> Progress {
        let silent = use_up_skip(desk);
        let (own, since) = (Own::Lockgate, when.since);
        let adopted = Some(NoQuorumPolicy::default());
        let ours = Ours { own, length: 0, silent, adopted, since };
        ours.refuse(self.0, Outcome::BadRequest, desk)
    }

    fn is_unsent(&self) -> bool {
        false
    }
}

/// Uses up a SKIP, and returns whether the client gets no reply to a command that the proxy answers.
fn use_up_skip(desk: &mut Desk) -> bool {
    let mode = desk.conn.reply_mode;
    if mode == ReplyMode::Skip {
        // The command uses up the SKIP flag, as any other would.
        desk.to_data.push(b"LOCK\r\n");
        desk.conn.reply_mode = ReplyMode::On;
    }
    mode != ReplyMode::On
}

/// Answers WATCH of a lock.
pub(super) fn watch(ours: Ours, key: Key, desk: &mut Desk) -> Progress {
    let is_alone = !desk.conn.state.watching && !desk.conn.blind_watch;
    match desk.transaction.as_deref() {
        None if is_alone => {
            let no_quorum = ours.adopted.unwrap_or_default();
            desk.transaction = Some(Box::new(LockTransaction::watching(key, no_quorum)));
        }
        Some(LockTransaction::Watching(lock)) if lock.key == key => {}
        _ => {
            desk.conn.lost_watch = true;
            desk.step_transaction(LockTransaction::misfit);
            return ours.refuse(ALONE, Outcome::BadRequest, desk);
        }
    }
    tell(ours, LockReply::Ok, Outcome::Ok, desk)
}

/// Queues what the one command of a transaction does to its lock.
pub(super) fn queue(ours: Ours, key: &Key, work: QueuedWork, desk: &mut Desk) -> Progress {
    let Some(stage) = desk.transaction.take() else { return unexpected() };
    let error = match stage.queue(key, work) {
        Ok(queued) => {
            desk.transaction = Some(Box::new(queued));
            return tell(ours, LockReply::Queued, Outcome::Ok, desk);
        }
        Err(Unqueued::Misfit) => MISFIT.to_owned(),
        Err(Unqueued::Unread) => {
            let name = shown(desk.name(key));
            format!("ERR no GET told who holds the adopted lock '{name}' since its WATCH (adopt)")
        }
        Err(Unqueued::NotAdopted) => {
            let name = shown(desk.name(key));
            format!(
                "ERR the adopted lock '{name}' was taken by LOCK, and no transaction ends or \
                 prolongs such (adopt)"
            )
        }
    };
    desk.transaction = Some(Box::new(LockTransaction::Failed));
    ours.refuse(&error, Outcome::BadRequest, desk)
}

fn execute(ours: Ours, stage: LockTransaction, desk: &mut Desk) -> Progress {
    let (lock, work) = match stage {
        LockTransaction::Queued(lock, work) => (lock, Some(work)),
        LockTransaction::Open(lock) => (lock, None),
        LockTransaction::Trying(_)
        | LockTransaction::Failed
        | LockTransaction::Watching(_)
        | LockTransaction::Spoiled => return ours.refuse(ABORTED, Outcome::BadRequest, desk),
    };
    let WatchedLock { key, seen, .. } = lock;
    match (seen, work) {
        (SeenLock::Unread, _) => ours.refuse(UNREAD, Outcome::BadRequest, desk),
        (SeenLock::Changed, _) => tell(ours, EXECUTED.other, Outcome::NotHeld, desk),
        (SeenLock::HeldBy(Holding { token, claim, .. }), Some(work)) => {
            let (own, acts, ttl) = match work {
                QueuedWork::Release => (Own::Unlock, Acts::FREE, None),
                QueuedWork::Extend(ttl) => (Own::Renew, Acts::RENEW, Some(ttl)),
            };
            let (token, first_of, readers) = (Some(token), None, WorkOnReaders::None);
            let work = LockWork { token, ttl, acts, replies: EXECUTED, first_of, readers };
            let mut lock = OneLock::new(Ours { own, ..ours }, key, work);
            lock.claim = claim;
            lock.begin(desk)
        }
        // The lock was free, or nothing is to be done.
        (seen, work) => {
            let reply = if work.is_some() { LockReply::OneNumber(0) } else { LockReply::Empty };
            Comparing { ours, key, seen, reply }.ask()
        }
    }
}

/// An EXEC for which the lock nodes are asked whether the lock is still as GET told it.
struct Comparing {
    ours: Ours,
    key: Key,
    seen: SeenLock,
    /// The reply if it is.
    reply: LockReply,
}

impl Comparing {
    fn ask(self) -> Progress {
        let question = Question::look(self.key.clone());
        Progress::ask(self.ours, question, |ours, said, desk| match said {
            Ok(holding) if self.seen.is_still(holding.as_ref()) => {
                tell(ours, self.reply, Outcome::Ok, desk)
            }
            Ok(_) => tell(ours, EXECUTED.other, Outcome::NotHeld, desk),
            Err(error) => unsettled(ours, &error, desk, |_| self.ask()),
        })
    }
}
