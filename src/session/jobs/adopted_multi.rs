//! Adopted commands inside the client's own transaction. For each a stand-in is queued on the data node: the question
//! whether the client may, which changes nothing. The place of its reply in the reply to EXEC is the place of the
//! command's reply.
//!
//! At EXEC the lock nodes are asked first, in order, up to the first command that frees a lock. If they have been
//! asked nothing by then, they are asked who has its lock: while too few of them answer, the data node executes
//! nothing, as a client that tries again would have it execute the rest each time. Then the data node executes the
//! rest. If it does not, what was taken is given back, and nothing has been freed; a lock that was prolonged stays
//! so. The first command that frees a lock, and all behind it, follow the execution.

use smallvec::SmallVec;

use super::{
    super::{
        desk::Desk,
        filter::DROPPED,
        guarded::{
            acknowledged::must_acknowledge,
            arm::{Arming, prepare_to_arm},
            database,
        },
        owed::Entry,
        queued_lock::QueuedLock,
        session_metrics::Outcome,
    },
    Answer, Answering, Job, Ours, Pass, Progress, Waits, When, adopted,
    adopted_exec::ALONE,
    authorize,
    undo::Undo,
    unsettled::is_unsettled,
};
use crate::{
    adopt::{
        by_holder::Acts,
        task::{AdoptTask, AdoptWork, LookWord, WorkOnReaders},
    },
    clock::Instant,
    key::Key,
    resp::{
        encode,
        expected::Expected,
        name::ReplyMode,
        number,
        reply::{NextReply, ReplyScanner},
    },
};

/// Most adopted commands of one transaction: the lock nodes are asked about one after the other.
const MOST: usize = 1000;
/// Length of the longest reply to EXEC that is held until the locks in it are settled, in bytes.
const LONGEST: usize = 4 * 1024 * 1024;

const TOO_MANY: &str = "ERR more than 1000 adopted locks in one transaction (adopt)";
const SEVERAL: &str =
    "ERR several adopted locks of one command are not taken or prolonged inside MULTI (adopt)";
const SHARED: &str = "ERR an adopted lock is not shared inside MULTI (adopt)";
const GUARDS: &str = "ERR a lock that guards need is not taken or prolonged inside MULTI (adopt)";
const REPLICAS: &str = "ERR adopted locks beside writes that replicas must acknowledge are not \
                        supported inside MULTI (adopt)";

/// Queues an adopted command where the data node queues commands, or refuses it.
pub(super) fn inside(ours: Ours, task: AdoptTask, desk: &mut Desk) -> Progress {
    let conn = &desk.conn;
    let is_queueing = conn.state.multi && conn.state.is_plain() && !conn.blind_multi;
    if !is_queueing || conn.state.quit || conn.reply_mode != ReplyMode::On {
        return adopted::refuse_in_place(ours, desk);
    }
    match task.work {
        // The data node refuses WATCH, and the transaction goes on.
        AdoptWork::Watch if ours.length > 0 => return Progress::Pass(Pass::Counted),
        AdoptWork::Refuse(because) => {
            let error = adopted::refusal(&task, because);
            return adopted::fail_transaction(ours, &error, desk);
        }
        _ => {}
    }
    let Some(database) = desk.conn.database.filter(|_| desk.owed.counts_queued()) else {
        return adopted::fail_transaction(ours, adopted::UNKNOWN_DATABASE, desk);
    };
    if let Some(error) = obstacle(&task, database, desk) {
        return adopted::fail_transaction(ours, error, desk);
    }
    adopted::probe_for(Expected::Queued, &task, desk);
    for (key, _) in &task.others {
        desk.ask(Expected::Queued, |out| authorize::probe(out, key));
    }
    let missing = 1 + task.others.len();
    let lock = QueuedLock { task, database, places: SmallVec::new() };
    Progress::Wait(Box::new(Queueing { ours, lock, missing, refused: None }))
}

/// Returns a task that asks who has the lock that a command frees.
fn look_before(lock: &QueuedLock) -> QueuedLock {
    let work = AdoptWork::Look(LookWord::Exists);
    let (others, aside) = (Vec::new(), Vec::new());
    let task = AdoptTask { work, others, aside, ..lock.task.clone() };
    QueuedLock { task, database: lock.database, places: SmallVec::new() }
}

/// Returns why a command cannot be carried out inside a transaction.
fn obstacle(task: &AdoptTask, database: u64, desk: &Desk) -> Option<&'static str> {
    if desk.conn.lost_watch {
        return Some(ALONE);
    }
    if desk.conn.locks.len() >= MOST {
        return Some(TOO_MANY);
    }
    if matches!(&task.work, AdoptWork::Lock(work) if work.readers == WorkOnReaders::Takes) {
        return Some(SHARED);
    }
    let is_easy = match &task.work {
        AdoptWork::Lock(work) => work.acts == Acts::LOOK || task.work.frees(),
        work => matches!(work, AdoptWork::Look(_) | AdoptWork::Fail(_)),
    };
    if is_easy {
        return None;
    }
    let key = desk.key(&adopted::lock_in(database, task.lock.clone()));
    match () {
        () if !task.others.is_empty() => Some(SEVERAL),
        // The lock's fence could not be announced on this connection.
        () if desk.is_guard_lock(&key) => Some(GUARDS),
        () => None,
    }
}

/// An adopted command whose stand-ins were sent to the data node.
struct Queueing {
    ours: Ours,
    lock: QueuedLock,
    missing: usize,
    /// The data node's error for one of the stand-ins, which makes the transaction fail.
    refused: Option<Vec<u8>>,
}

impl Job for Queueing {
    fn reply(mut self: Box<Self>, reply: &[u8], desk: &mut Desk) -> Progress {
        match (reply.trim_ascii_end(), desk.owed.last_queued()) {
            (b"+QUEUED", Some(place)) => self.lock.places.push(place),
            ([b'-', error @ ..], _) => {
                self.refused.get_or_insert_with(|| error.to_vec());
            }
            _ => return Progress::Relay,
        }
        self.missing -= 1;
        if self.missing > 0 {
            return Progress::Wait(self);
        }
        let Queueing { ours, lock, refused, .. } = *self;
        let Some(error) = refused else {
            desk.conn.locks.push(lock);
            let mut answer = Vec::new();
            encode::simple(&mut answer, "QUEUED");
            return ours.answer(answer, None);
        };
        ours.count(Outcome::Denied, desk);
        let mut answer = Vec::new();
        encode::error_bytes(&mut answer, &error);
        ours.answer(answer, None)
    }

    fn ours(&self) -> Option<Ours> {
        Some(self.ours)
    }
}

/// A MULTI of a client whose database is unknown, and cannot be asked for inside the transaction.
pub(in crate::session) struct LocatingTransaction;

impl LocatingTransaction {
    /// Whether the database must be asked for before a MULTI is forwarded.
    pub(in crate::session) fn is_due(desk: &Desk) -> bool {
        desk.conn.database.is_none()
            && desk.conn.reply_mode == ReplyMode::On
            && desk.shared.adoption.as_ref().is_some_and(|adoption| adoption.enforces())
    }
}

impl Waits for LocatingTransaction {
    fn begin(self: Box<Self>, when: When, desk: &mut Desk) -> Progress {
        if desk.conn.refuses_ours() {
            return Progress::Pass(Pass::Counted);
        }
        database::locate(desk);
        database::await_database(*self, move |_, _, desk| {
            match desk.shared.guards.is_some() && prepare_to_arm(desk) {
                true => Box::new(Arming).begin(when, desk),
                false => Progress::Pass(Pass::Counted),
            }
        })
    }
}

impl Job for LocatingTransaction {}

/// EXEC of a transaction with adopted commands.
pub(in crate::session) struct LockedExec {
    /// Number of unsent bytes that are its own.
    length: usize,
}

impl LockedExec {
    pub(in crate::session) fn new(length: usize) -> LockedExec {
        LockedExec { length }
    }
}

impl Job for LockedExec {}

impl Waits for LockedExec {
    fn begin(self: Box<Self>, when: When, desk: &mut Desk) -> Progress {
        let mut waiting = std::mem::take(&mut desk.conn.locks);
        if !desk.conn.state.multi {
            // The data node answers that there is no transaction.
            return Progress::Pass(Pass::Counted);
        }
        if must_acknowledge(desk) {
            return discard(REPLICAS, self.length, desk);
        }
        waiting.reverse();
        let (since, length) = (when.now(), self.length);
        let (replies, undo, executed) = (Vec::new(), None, None);
        // Only a null can mean that a fence was written meanwhile. An error itself tells why nothing was executed.
        let may_be_fenced = desk.conn.armed.is_some() && !desk.conn.state.watching;
        let at = SmallVec::new();
        Box::new(LockedTransaction {
            length,
            since,
            waiting,
            has_asked: false,
            at,
            replies,
            undo,
            executed,
            may_be_fenced,
        })
        .go_on(desk)
    }
}

/// A transaction with adopted commands that is being carried out.
struct LockedTransaction {
    length: usize,
    since: Instant,
    /// The commands that are still to be carried out, in reverse order.
    waiting: Vec<QueuedLock>,
    /// The lock nodes have been asked something.
    has_asked: bool,
    /// The places of the command that is being carried out.
    at: SmallVec<[usize; 1]>,
    /// The replies to the commands that were carried out, with their places.
    replies: Vec<(SmallVec<[usize; 1]>, Vec<u8>)>,
    /// Gives back what was taken, unless the client is told.
    undo: Option<Undo>,
    /// The data node's reply to EXEC, once it has executed the rest.
    executed: Option<Vec<u8>>,
    /// A null from the data node says that the lock of a guarded write was granted again.
    may_be_fenced: bool,
}

impl LockedTransaction {
    fn go_on(mut self: Box<Self>, desk: &mut Desk) -> Progress {
        loop {
            let is_executed = self.executed.is_some();
            let next = match self.waiting.pop() {
                Some(lock) if is_executed || !lock.task.work.frees() => Some(lock),
                Some(lock) if !self.has_asked => {
                    let look = look_before(&lock);
                    self.waiting.push(lock);
                    Some(look)
                }
                other => {
                    self.waiting.extend(other);
                    None
                }
            };
            let Some(QueuedLock { task, database, places }) = next else {
                return match self.executed.take() {
                    None => self.execute(desk),
                    Some(reply) => self.tell(&reply),
                };
            };
            self.at = places;
            self.has_asked |= !matches!(task.work, AdoptWork::Fail(_));
            let ours = Ours {
                own: adopted::verb(&task),
                length: 0,
                silent: false,
                adopted: Some(task.options.no_quorum),
                since: self.since,
            };
            let progress = adopted::begin_in(ours, task, database, desk);
            match self.follow(progress, desk) {
                Followed::Done(all) => self = all,
                Followed::Open(progress) => return progress,
            }
        }
    }

    /// Takes in a step of the command that is being carried out.
    fn follow(mut self: Box<Self>, progress: Progress, desk: &mut Desk) -> Followed {
        Followed::Open(match progress {
            Progress::Wait(job) => Progress::Wait(Box::new(OneOfSeveral { all: self, job })),
            Progress::Ask(job, question) => {
                Progress::Ask(Box::new(OneOfSeveral { all: self, job }), question)
            }
            Progress::Answer(answering) => {
                let Answering { answer, undo, .. } = *answering;
                self.undo = match (self.undo.take(), undo) {
                    (Some(undo), Some(other)) => Some(undo.and(other)),
                    (undo, other) => undo.or(other),
                };
                if self.executed.is_none()
                    && let Some(error) = answer.strip_prefix(b"-")
                    && is_unsettled(error)
                {
                    let error = String::from_utf8_lossy(error.trim_ascii_end()).into_owned();
                    self.give_back(desk);
                    return Followed::Open(discard(&error, self.length, desk));
                }
                let at = std::mem::take(&mut self.at);
                // The reply to the question of `look_before` has no place: the client is not told it.
                if !at.is_empty() {
                    self.replies.push((at, answer));
                }
                return Followed::Done(self);
            }
            // The connection ends, and what was taken is given back.
            other => other,
        })
    }

    fn give_back(&mut self, desk: &mut Desk) {
        if let Some(undo) = self.undo.take() {
            undo.undo(&mut desk.tokens);
        }
    }

    /// Has the data node execute the rest.
    fn execute(self: Box<Self>, desk: &mut Desk) -> Progress {
        let mut exec = Vec::new();
        encode::command(&mut exec, &[b"EXEC"]);
        desk.to_data.push(&exec);
        desk.conn.next_only = false;
        desk.conn.transaction_ended();
        // Nothing else is owed, so there is room.
        let _ = desk.owe(Entry::ArmedExec);
        Progress::Wait(self)
    }

    /// Tells the client the data node's reply to EXEC, with the locks' replies at their places.
    fn tell(self: Box<Self>, executed: &[u8]) -> Progress {
        let LockedTransaction { length, replies, undo, .. } = *self;
        match spliced(executed, replies) {
            Some(answer) => {
                let ours = None;
                Progress::Answer(Box::new(Answering { answer, length, ours, undo }))
            }
            None => Progress::Relay,
        }
    }
}

/// How far one command of a transaction is.
enum Followed {
    /// The command is done.
    Done(Box<LockedTransaction>),
    Open(Progress),
}

impl Job for LockedTransaction {
    fn holds(&self) -> bool {
        true
    }

    fn holds_at_most(&self) -> Option<usize> {
        Some(LONGEST)
    }

    fn held(mut self: Box<Self>, _made: usize, reply: Vec<u8>, desk: &mut Desk) -> Progress {
        self.executed = Some(reply);
        self.since = Instant::now();
        self.go_on(desk)
    }

    fn not_made(mut self: Box<Self>, reply: &[u8], desk: &mut Desk) -> Progress {
        self.give_back(desk);
        let mut answer = reply.to_vec();
        if self.may_be_fenced && !reply.starts_with(b"-") {
            answer.clear();
            encode::error(&mut answer, DROPPED);
        }
        Progress::Answer(Answering::new(answer, self.length))
    }
}

/// One command of a transaction, while it is being carried out.
struct OneOfSeveral {
    all: Box<LockedTransaction>,
    job: Box<dyn Job>,
}

impl OneOfSeveral {
    fn step(
        self,
        step: impl FnOnce(Box<dyn Job>, &mut Desk) -> Progress,
        desk: &mut Desk,
    ) -> Progress {
        let OneOfSeveral { all, job } = self;
        let progress = step(job, desk);
        match all.follow(progress, desk) {
            Followed::Done(all) => all.go_on(desk),
            Followed::Open(progress) => progress,
        }
    }
}

impl Job for OneOfSeveral {
    fn reply(self: Box<Self>, reply: &[u8], desk: &mut Desk) -> Progress {
        (*self).step(|job, desk| job.reply(reply, desk), desk)
    }

    fn answer(self: Box<Self>, answer: Answer, desk: &mut Desk) -> Progress {
        (*self).step(|job, desk| job.answer(answer, desk), desk)
    }

    fn asks_for(&self) -> Option<Ours> {
        self.job.asks_for()
    }

    fn ours(&self) -> Option<Ours> {
        self.job.ours()
    }

    fn needs_replies(&self) -> bool {
        self.job.needs_replies()
    }

    fn rests(&self) -> bool {
        self.job.rests()
    }

    fn announces(&self, key: &Key) -> bool {
        self.job.announces(key)
    }
}

/// Ends the client's transaction without executing it, and answers EXEC with this error.
fn discard(error: &str, length: usize, desk: &mut Desk) -> Progress {
    desk.ask(Expected::Ok, |out| encode::command(out, &[b"DISCARD"]));
    desk.conn.transaction_ended();
    let mut answer = Vec::new();
    encode::error(&mut answer, error);
    Progress::await_replies(LockedExec { length }, |exec, reply, desk| {
        if !reply.starts_with(b"+OK") {
            return Progress::Relay;
        }
        (desk.conn.state.multi, desk.conn.state.watching) = (false, false);
        Progress::Answer(Answering::new(answer, exec.length))
    })
}

/// Returns the data node's reply to EXEC with these replies put in. Each goes to the first of its places, and the
/// data node's replies at its other places are left out. Returns `None` if the data node's reply has no such places.
fn spliced(executed: &[u8], replies: Vec<(SmallVec<[usize; 1]>, Vec<u8>)>) -> Option<Vec<u8>> {
    let head = memchr::memchr(b'\n', executed)? + 1;
    let count = executed.get(..head)?.strip_prefix(b"*")?.strip_suffix(b"\r\n")?;
    let count = usize::try_from(number::integer(count)?).ok()?;
    let mut instead: Vec<(usize, Option<Vec<u8>>)> = Vec::new();
    let mut left_out = 0;
    for (places, reply) in replies {
        let mut reply = Some(reply);
        left_out += places.len().saturating_sub(1);
        instead.extend(places.into_iter().map(|place| (place, reply.take())));
    }
    instead.sort_by_key(|(place, _)| *place);
    let mut answer = Vec::with_capacity(executed.len());
    encode::array(&mut answer, count.checked_sub(left_out)?);
    let (mut scanner, mut at) = (ReplyScanner::default(), head);
    let mut instead = instead.into_iter().peekable();
    for place in 0..count {
        let begin = at;
        let NextReply::Frame(_) = scanner.next(executed, &mut at) else { return None };
        match instead.next_if(|(other, _)| *other == place) {
            Some((_, reply)) => answer.extend(reply.unwrap_or_default()),
            None => answer.extend_from_slice(executed.get(begin..at)?),
        }
    }
    instead.next().is_none().then_some(answer)
}

#[cfg(test)]
mod tests {
    use smallvec::smallvec;

    use super::*;

    #[test]
    fn replies_stand_at_their_places() {
        let executed = b"*4\r\n-ERR syntax error\r\n*2\r\n:1\r\n:2\r\n$4\r\na\r\nb\r\n_\r\n";
        let one = |place: usize, reply: &str| (smallvec![place], reply.as_bytes().to_vec());
        let several = (smallvec![0, 3], b":5\r\n".to_vec());
        for (replies, expected) in [
            (vec![], Some(&executed[..])),
            (
                vec![one(3, ":7\r\n"), one(0, "+OK\r\n")],
                Some(b"*4\r\n+OK\r\n*2\r\n:1\r\n:2\r\n$4\r\na\r\nb\r\n:7\r\n"),
            ),
            (vec![several], Some(b"*3\r\n:5\r\n*2\r\n:1\r\n:2\r\n$4\r\na\r\nb\r\n")),
            (vec![one(4, ":7\r\n")], None),
            (vec![one(1, ":7\r\n"), one(1, ":8\r\n")], None),
        ] {
            assert_eq!(spliced(executed, replies).as_deref(), expected);
        }
        assert_eq!(spliced(b"*2\r\n:1\r\n", Vec::new()), None);
    }
}
