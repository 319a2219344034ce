//! A lock idiom on a key of a bridged or enforced adopt rule. The lock nodes decide, and the client gets the reply
//! that Redis would have given.
//!
//! Libraries count the whole TTL from the reply on, so the lock nodes hold the lock for longer
//! ([`crate::lock::padded`]). A grant that comes too late for that is given back.

use std::time::Duration;

use super::{
    super::{
        claims::{Granted, Held, MAX_TOKENS},
        desk::Desk,
        guarded::database,
        planted::{self, PlantedFault},
        session_metrics::Outcome,
    },
    Answer, Job, Ours, Pass, Progress, Question, adopted_exec, adopted_kept,
    adopted_many::{Many, ManyWork},
    announce,
    authorize::probe as probe_lock,
    not_asked, unlock,
    unsettled::{unsettled, unsettled_as},
};
use crate::{
    adopt::by_holder::{LockReply, Replies},
    adopt::place::KeyPlace,
    adopt::task::{AdoptTask, AdoptWork, KeptFrom, LookWord, SentBy},
    bridge::Asker,
    clock::{Instant, millis},
    command::BadRequest,
    config::{BlindPolicy, LongTtlPolicy, NoTtlPolicy},
    key::{Key, Token},
    lock::{Claim, Holding, NotGranted, SameToken, padded},
    resp::{
        encode,
        expected::Expected,
        name::{Own, ReplyMode},
    },
    told::shown,
};

/// Returns the command of ours as which a task is counted.
pub(super) fn verb(task: &AdoptTask) -> Own {
    match &task.work {
        AdoptWork::Acquire { .. }
        | AdoptWork::AcquirePast { .. }
        | AdoptWork::AcquireAgain { .. }
        | AdoptWork::Keep { .. } => Own::Lock,
        AdoptWork::Release { .. } | AdoptWork::ReleaseBlind { .. } => Own::Unlock,
        AdoptWork::Extend { .. } | AdoptWork::ExtendBy { .. } | AdoptWork::ExtendBlind { .. } => {
            Own::Renew
        }
        AdoptWork::Look(_)
        | AdoptWork::Left { .. }
        | AdoptWork::Watch
        | AdoptWork::Queue(_)
        | AdoptWork::Refuse(_)
        | AdoptWork::Fail(_) => Own::Lockgate,
    }
}

/// Returns the name under which the permission for a task is remembered.
pub(super) fn permission(task: &AdoptTask) -> Key {
    match task.work {
        AdoptWork::Look(word) => Key::new(&[0, word as u8], &task.key),
        AdoptWork::Watch => Key::new(&[0, LookWord::Get as u8], &task.key),
        _ => Key::from(&task.key),
    }
}

/// Asks the data node whether the client may: by the command itself if it only reads, by GET for WATCH, and otherwise
/// as for LOCK.
pub(super) fn probe(task: &AdoptTask, desk: &mut Desk) {
    probe_for(permits(task), task, desk);
}

/// Sends [`probe`]'s question where its first reply is `expected`, such as `+QUEUED` inside MULTI.
pub(super) fn probe_for(expected: Expected, task: &AdoptTask, desk: &mut Desk) {
    desk.ask(expected, |out| match task.work {
        AdoptWork::Look(word) => encode::command(out, &[word.name(), &task.key]),
        AdoptWork::Watch => encode::command(out, &[LookWord::Get.name(), &task.key]),
        _ => probe_lock(out, &task.key),
    });
}

/// Returns how the data node answers [`probe`] if the client may.
pub(super) fn permits(task: &AdoptTask) -> Expected {
    match task.work {
        AdoptWork::Look(LookWord::Get) | AdoptWork::Watch => Expected::Text,
        AdoptWork::Look(LookWord::Type) => Expected::Type,
        AdoptWork::Look(LookWord::Exists | LookWord::Ttl | LookWord::Pttl | LookWord::Strlen) => {
            Expected::Number
        }
        _ => Expected::Set,
    }
}

/// Refuses an adopted command where the data node would queue or refuse it. A transaction is made
/// to fail, as it must not go on without the command.
pub(super) fn refuse_in_place(ours: Ours, desk: &mut Desk) -> Progress {
    let in_multi = desk.conn.in_multi();
    if desk.conn.state.quit && !in_multi && ours.length > 0 {
        return Progress::Pass(Pass::Counted);
    }
    if in_multi && !desk.conn.state.is_plain() {
        // Replies to the proxy's own commands could not be told from other frames.
        return Progress::Relay;
    }
    let error = match in_multi {
        true => "ERR an adopted lock inside a MULTI that was not answered is not supported (adopt)",
        false => "ERR an adopted lock is not for subscribers, nor after MONITOR (adopt)",
    };
    match desk.conn.reply_mode {
        ReplyMode::On if in_multi => return fail_transaction(ours, error, desk),
        ReplyMode::On => {}
        mode => {
            if mode == ReplyMode::Skip || in_multi {
                desk.to_data.push(b"LOCK\r\n");
            }
            if mode == ReplyMode::Skip {
                desk.conn.reply_mode = ReplyMode::On;
            }
        }
    }
    ours.refuse(error, Outcome::BadRequest, desk)
}

/// Makes the client's transaction fail, and answers the command with this error.
pub(super) fn fail_transaction(ours: Ours, error: &str, desk: &mut Desk) -> Progress {
    let mut answer = Vec::new();
    encode::error(&mut answer, error);
    // Redis knows no such command, so EXEC will fail.
    desk.ask(Expected::Error, |out| encode::command(out, &[b"LOCK"]));
    Progress::Wait(Box::new(FailingTransaction { ours, answer }))
}

/// A command for which another was sent that makes the client's transaction fail; `answer` follows the reply.
struct FailingTransaction {
    ours: Ours,
    answer: Vec<u8>,
}

impl Job for FailingTransaction {
    fn reply(self: Box<Self>, _error: &[u8], desk: &mut Desk) -> Progress {
        self.ours.count(Outcome::BadRequest, desk);
        self.ours.answer(self.answer, None)
    }

    fn ours(&self) -> Option<Ours> {
        Some(self.ours)
    }
}

/// Returns the error for a command that is refused for this reason.
pub(super) fn refusal(task: &AdoptTask, because: &str) -> String {
    match &task.key[..] {
        [] => format!("ERR the command on an adopted lock is refused: {because} (adopt)"),
        key => {
            let key = shown(key);
            format!("ERR '{key}' is an adopted lock: {because} (LOCKGATE ADOPTED)")
        }
    }
}

/// Begins a task in this database, for a client that may.
pub(super) fn begin_in(ours: Ours, task: AdoptTask, database: u64, desk: &mut Desk) -> Progress {
    match task.work {
        AdoptWork::Fail(error) => ours.refuse(error, Outcome::BadRequest, desk),
        AdoptWork::Refuse(because) => {
            ours.refuse(&refusal(&task, because), Outcome::BadRequest, desk)
        }
        _ => carry_out(ours, task, database, desk),
    }
}

/// Begins a task for a client that may.
pub(super) fn begin(ours: Ours, mut task: AdoptTask, desk: &mut Desk) -> Progress {
    desk.count_task(&mut task);
    let is_refused = matches!(task.work, AdoptWork::Fail(_) | AdoptWork::Refuse(_));
    if let Some(database) = desk.conn.database.or(is_refused.then_some(0)) {
        return begin_in(ours, task, database, desk);
    }
    let missing = 1 + usize::from(desk.speak_up());
    desk.ask(Expected::Text, |out| encode::command(out, &[b"CLIENT", b"INFO"]));
    Progress::Wait(Box::new(LocatingLock { ours, task, missing }))
}

/// A task for which the data node was asked which database is selected.
struct LocatingLock {
    ours: Ours,
    task: AdoptTask,
    /// Number of missing replies; the last one is CLIENT INFO's.
    missing: usize,
}

impl Job for LocatingLock {
    fn reply(mut self: Box<Self>, reply: &[u8], desk: &mut Desk) -> Progress {
        if !desk.count_in(&mut self.missing) {
            return Progress::Wait(self);
        }
        desk.conn.database = database::selected(reply);
        match desk.conn.database {
            Some(database) => carry_out(self.ours, self.task, database, desk),
            None => {
                let error = "ERR an adopted lock behind SELECT needs CLIENT INFO (adopt)";
                self.ours.refuse(error, Outcome::Denied, desk)
            }
        }
    }

    fn ours(&self) -> Option<Ours> {
        Some(self.ours)
    }
}

/// Returns the name of a lock in this database; in database 0 the name is `lock`.
pub(super) fn lock_in(database: u64, lock: Vec<u8>) -> Vec<u8> {
    match database {
        0 => lock,
        _ => [format!("{database}:").as_bytes(), &lock].concat(),
    }
}

/// Carries a task out: checks its locks, and asks the lock nodes.
fn carry_out(ours: Ours, mut task: AdoptTask, database: u64, desk: &mut Desk) -> Progress {
    let (other_keys, others): (Vec<_>, Vec<_>) =
        std::mem::take(&mut task.others).into_iter().unzip();
    let locks = std::iter::once(std::mem::take(&mut task.lock)).chain(others);
    let names: Vec<Vec<u8>> = locks.map(|lock| lock_in(database, lock)).collect();
    if let Some(error) = obstacle(&task, (&names, &other_keys), database, desk) {
        return ours.refuse(&error, Outcome::BadRequest, desk);
    }
    let mut keys: Vec<Key> = names.iter().map(|name| desk.key(name)).collect();
    if keys.len() > 1 {
        return carry_out_many(ours, task, (keys, &other_keys), desk);
    }
    let Some(key) = keys.pop() else { return not_asked() };
    carry_out_one(ours, task, key, desk)
}

/// Returns the error of a task that is refused because of the names of its locks.
fn obstacle(
    task: &AdoptTask,
    (names, other_keys): (&[Vec<u8>], &[Vec<u8>]),
    database: u64,
    desk: &Desk,
) -> Option<String> {
    let first = shown(&task.key);
    if task.database.is_some_and(|named| named != database) {
        return Some(format!(
            "ERR '{first}' is an adopted lock: the script names another database than the selected \
             one ({database})"
        ));
    }
    let limit = desk.config.locks.max_key;
    if names.iter().any(|name| name.is_empty() || name.len() > limit) {
        return Some(format!(
            "ERR '{first}' is an adopted lock whose name is empty, or longer than {limit} bytes \
             (locks.max_key)"
        ));
    }
    // A bridged lock's key on the data node is found by the lock's name, so no lock is granted whose name does not
    // lead to its key.
    let is_lost = |(name, key): (&Vec<u8>, &Vec<u8>)| {
        let adoption = desk.shared.adoption.as_ref().filter(|adoption| adoption.is_bridged(key));
        let is_there = |place: KeyPlace| (place.database, &place.key) == (database, key);
        adoption.is_some_and(|adoption| !adoption.places(name).into_iter().any(is_there))
    };
    if names.iter().zip(std::iter::once(&task.key).chain(other_keys)).any(is_lost) {
        return Some(format!(
            "ERR '{first}' is an adopted lock that does not tell its key (adopt)"
        ));
    }
    if names.len() > 1 && matches!(task.work, AdoptWork::Keep { .. }) {
        return Some("ERR several adopted locks at once need a TTL (adopt)".into());
    }
    None
}

/// Carries out a task on several locks.
fn carry_out_many(
    ours: Ours,
    task: AdoptTask,
    (keys, other_keys): (Vec<Key>, &[Vec<u8>]),
    desk: &mut Desk,
) -> Progress {
    let (token, work) = match task.work {
        AdoptWork::Acquire { token, ttl, .. } => (token, ManyWork::Acquire(ttl)),
        AdoptWork::Extend { token, ttl, .. } => (token, ManyWork::Extend(ttl)),
        AdoptWork::Release { token, .. } => (token, ManyWork::Release),
        AdoptWork::ReleaseBlind { .. } => {
            let is_own_only = task.options.blind == BlindPolicy::OwnOnly;
            (Vec::new(), ManyWork::ReleaseBlind { is_own_only })
        }
        _ => return not_asked(),
    };
    Many::begin((ours, task.sender), (keys, Token::from(&token)), work, other_keys, desk)
}

/// Carries out a task on one lock.
fn carry_out_one(ours: Ours, task: AdoptTask, key: Key, desk: &mut Desk) -> Progress {
    let AdoptTask { work, options, aside, sender, .. } = task;
    // A script may answer otherwise where its lock has no TTL, which only the lock nodes know.
    let may_be_endless = options.no_ttl == NoTtlPolicy::Session;
    match work {
        AdoptWork::Acquire { token, ttl, replies } => {
            let (token, ttl) = (Token::from(&token), Some(ttl));
            acquire(Taking { ours, sender, key, token, ttl, replies }, desk)
        }
        AdoptWork::Keep { token, of: KeptFrom::Nobody, replies } => {
            let (token, ttl) = (Token::from(&token), None);
            acquire(Taking { ours, sender, key, token, ttl, replies }, desk)
        }
        AdoptWork::AcquireAgain { token, ttl, replies } if !may_be_endless => {
            let (token, ttl) = (Token::from(&token), Some(ttl));
            let taking = Taking { ours, sender, key, token, ttl, replies };
            renew(taking, Missed::Take, None, desk)
        }
        AdoptWork::Extend { token, ttl, replies } if !may_be_endless => {
            let (token, ttl) = (Token::from(&token), Some(ttl));
            let taking = Taking { ours, sender, key, token, ttl, replies };
            renew(taking, Missed::Tell, None, desk)
        }
        AdoptWork::Release { token, replies } => {
            let token = Token::from(&token);
            let (claim, was_held) = (None, false);
            release(Releasing { ours, key, token, replies, claim, was_held, aside }, desk)
        }
        AdoptWork::Look(_)
        | AdoptWork::AcquirePast { .. }
        | AdoptWork::AcquireAgain { .. }
        | AdoptWork::Keep { .. }
        | AdoptWork::Left { .. }
        | AdoptWork::Extend { .. }
        | AdoptWork::ExtendBy { .. }
        | AdoptWork::ReleaseBlind { .. }
        | AdoptWork::ExtendBlind { .. } => {
            let is_blind =
                matches!(work, AdoptWork::ReleaseBlind { .. } | AdoptWork::ExtendBlind { .. });
            let is_own_only = is_blind && options.blind == BlindPolicy::OwnOnly;
            let is_capped = options.long_ttl == LongTtlPolicy::Cap;
            Looking { ours, sender, key, work, aside, is_own_only, is_capped }.ask()
        }
        AdoptWork::Watch => adopted_exec::watch(ours, key, desk),
        AdoptWork::Queue(work) => adopted_exec::queue(ours, &key, work, desk),
        AdoptWork::Refuse(_) | AdoptWork::Fail(_) => not_asked(),
    }
}

/// A lock that is to be taken or renewed.
pub(super) struct Taking {
    pub(super) ours: Ours,
    pub(super) sender: SentBy,
    pub(super) key: Key,
    pub(super) token: Token,
    /// How long the client will count on the lock. `None`: the lock is to have no TTL, and is kept for as long as the
    /// connection lives.
    pub(super) ttl: Option<Duration>,
    pub(super) replies: Replies,
}

impl Taking {
    /// Returns how long the lock nodes are to hold the lock, and the claim of a new grant.
    pub(super) fn terms(&self, desk: &Desk) -> (Duration, Claim) {
        match self.ttl {
            Some(ttl) => (held_for(ttl, desk), Claim::adopted()),
            None => (desk.config.locks.default_ttl, Claim::endless()),
        }
    }

    /// Refuses a lock without a TTL that the connection has no room to keep.
    pub(super) fn refused(&self, desk: &mut Desk) -> Option<Progress> {
        let is_refused = self.ttl.is_none() && !desk.tokens.make_room(&self.key, self.ours.since);
        let error = || BadRequest::TooManySessionLocks(MAX_TOKENS).to_string();
        is_refused.then(|| self.ours.refuse(&error(), Outcome::BadRequest, desk))
    }

    /// Whether the client would count on a grant for longer than it is valid. A lock without a TTL is renewed, so
    /// never.
    pub(super) fn outlasts(&self, validity: Duration) -> bool {
        self.ttl.is_some_and(|ttl| validity < ttl) && !planted::has(PlantedFault::ShortHold)
    }
}

/// Error where the client would count on the lock for longer than the lock nodes hold it. By `no_quorum` they may be
/// asked again first.
pub(super) const TOO_SLOW: &str =
    "NOQUORUM the lock nodes answered too late for this TTL, try again";
/// Error while a release of the lock is under way: the lock nodes carry it out sooner or later, and would end what is
/// renewed now.
pub(super) const RELEASE_UNDER_WAY: &str =
    "NOQUORUM a release of this lock is still under way, try again";

/// Returns how long the lock nodes are to hold a lock on which a client counts for `ttl`.
pub(super) fn held_for(ttl: Duration, desk: &Desk) -> Duration {
    match planted::has(PlantedFault::ShortHold) {
        true => ttl,
        false => padded(ttl, &desk.config.locks),
    }
}

pub(super) fn acquire(taking: Taking, desk: &mut Desk) -> Progress {
    if let Some(refused) = taking.refused(desk) {
        return refused;
    }
    if desk.shared.engine.take_known_as_held(&taking.key, taking.ours.since) {
        // Which grant has the lock is unknown if it was made through another proxy.
        let same_token = match desk.shared.engine.claim_of(&taking.key, &taking.token) {
            Some((claim, _)) => SameToken::Grants(std::iter::once(claim).collect()),
            None => SameToken::Unknown,
        };
        desk.tokens.refused_adopted(&taking.key, &taking.token, same_token);
        return tell(taking.ours, taking.replies.other, Outcome::Busy, desk);
    }
    let (ttl, claim) = taking.terms(desk);
    let (key, token) = (taking.key.clone(), taking.token.clone());
    let question = Question::Adopt { key, token, ttl, claim };
    let releases = desk.shared.engine.releases(&taking.key);
    Progress::Ask(Box::new(Acquiring { taking, releases }), question)
}

/// A lock that the lock nodes are asked for.
struct Acquiring {
    taking: Taking,
    /// The count of the lock's releases from before the question.
    releases: u32,
}

impl Job for Acquiring {
    fn answer(self: Box<Self>, answer: Answer, desk: &mut Desk) -> Progress {
        let Answer::Lock(said) = answer else { return not_asked() };
        let Acquiring { taking, releases } = *self;
        let grant = match said {
            Ok(grant) => grant,
            Err(NotGranted::Held { remaining, contested, same_token }) => {
                desk.tokens.refused_adopted(&taking.key, &taking.token, same_token);
                // Split votes say that several clients ask, and not that one holds the lock.
                if !contested && desk.shared.engine.releases(&taking.key) == releases {
                    desk.shared.engine.note_held(&taking.key, remaining, taking.ours.since);
                }
                return tell(taking.ours, taking.replies.other, Outcome::Busy, desk);
            }
            Err(NotGranted::QueueFull { .. } | NotGranted::Deadlock { .. }) => return not_asked(),
            Err(NotGranted::NoQuorum(error)) => {
                return unsettled(taking.ours, &error, desk, |desk| acquire(taking, desk));
            }
        };
        if taking.outlasts(grant.validity) {
            let (key, token) = (taking.key.clone(), taking.token.clone());
            desk.shared.give_back(key, token, grant.claim);
            return unsettled_as(taking.ours, TOO_SLOW, desk, |desk| acquire(taking, desk));
        }
        let Taking { ours, sender, key, token, ttl, replies } = taking;
        desk.shared.engine.name_adopted(&key, &token, sender.name());
        desk.shared.metrics.granted(ttl.is_none());
        let granted = Granted::adopted(&key, &token, &grant, ttl.unwrap_or_default());
        let now = Instant::now();
        let (ttl, keep) = match ttl {
            Some(ttl) => (ttl, None),
            None => {
                let ttl = desk.config.locks.default_ttl;
                (ttl, desk.keep(&key, &token, ttl, &grant))
            }
        };
        desk.tokens.insert(key, Held::granted(token, ttl, &grant, keep), now);
        ours.count(Outcome::Ok, desk);
        let mut answer = Vec::new();
        encode_reply(&mut answer, replies.absent, desk.conn.state.resp3);
        announce::granted(ours, granted, answer, desk)
    }

    fn asks_for(&self) -> Option<Ours> {
        Some(self.taking.ours)
    }
}

/// What is done if the token does not hold the lock.
#[derive(Clone, Copy)]
pub(super) enum Missed {
    /// The client is told.
    Tell,
    /// The lock is asked for.
    Take,
}

/// Asks the lock nodes to renew the lock. `claim`: the holder's, if the lock nodes have told it. It counts whichever
/// connection of the client was granted the lock, as libraries know no claims.
pub(super) fn renew(
    taking: Taking,
    missed: Missed,
    claim: Option<Claim>,
    desk: &mut Desk,
) -> Progress {
    let Taking { key, token, .. } = &taking;
    if desk.tokens.is_given_back(key, token) {
        return match missed {
            Missed::Take => acquire(taking, desk),
            Missed::Tell => tell_not_held(taking.ours, taking.key, taking.replies, desk),
        };
    }
    if desk.shared.engine.must_release(key) {
        let ours = taking.ours;
        let again = move |desk: &mut Desk| renew(taking, missed, claim, desk);
        return unsettled_as(ours, RELEASE_UNDER_WAY, desk, again);
    }
    let Some(ttl) = taking.ttl.filter(|_| !claim.is_some_and(Claim::is_endless)) else {
        return adopted_kept::convert(taking, claim, desk);
    };
    let (key, token, asker) = (key.clone(), token.clone(), Asker::Adopted);
    let question = Question::Renew { key, token, ttl: held_for(ttl, desk), claim, asker };
    Progress::Ask(Box::new(Extending { taking, ttl, missed, claim }), question)
}

/// A lock that the lock nodes are asked to renew.
struct Extending {
    taking: Taking,
    ttl: Duration,
    missed: Missed,
    /// The holder's claim, if the lock nodes have told it.
    claim: Option<Claim>,
}

impl Job for Extending {
    fn answer(self: Box<Self>, answer: Answer, desk: &mut Desk) -> Progress {
        let Answer::Renew(said) = answer else { return not_asked() };
        let Extending { taking, ttl, missed, claim } = *self;
        let ours = taking.ours;
        match (said, missed) {
            (Ok(Some(renewed)), _) => {
                desk.tokens.renewed(&taking.key, &taking.token, ttl, renewed.until);
                if !taking.sender.library.is_empty() {
                    let Taking { key, token, sender, .. } = &taking;
                    desk.shared.engine.name_adopted(key, token, sender.library);
                }
                if taking.outlasts(renewed.validity) {
                    let again = move |desk: &mut Desk| renew(taking, missed, claim, desk);
                    return unsettled_as(ours, TOO_SLOW, desk, again);
                }
                tell(taking.ours, taking.replies.own, Outcome::Ok, desk)
            }
            (Ok(None), Missed::Take) => acquire(taking, desk),
            (Ok(None), Missed::Tell) if planted::has(PlantedFault::ExtendedAnyway) => {
                tell(taking.ours, taking.replies.own, Outcome::Ok, desk)
            }
            (Ok(None), Missed::Tell) => {
                let Taking { ours, key, token, replies, .. } = taking;
                not_held(ours, key, token, replies, desk)
            }
            (Err(error), _) => {
                unsettled(ours, &error, desk, move |desk| renew(taking, missed, claim, desk))
            }
        }
    }

    fn asks_for(&self) -> Option<Ours> {
        Some(self.taking.ours)
    }
}

pub(super) fn release(releasing: Releasing, desk: &mut Desk) -> Progress {
    let (key, token, claim) = (releasing.key.clone(), releasing.token.clone(), releasing.claim);
    unlock::gives_back(&key, &token, desk);
    let asker = Asker::Adopted;
    Progress::Ask(Box::new(releasing), Question::Unlock { key, token, claim, asker })
}

/// A lock that the lock nodes are asked to release.
pub(super) struct Releasing {
    pub(super) ours: Ours,
    pub(super) key: Key,
    pub(super) token: Token,
    pub(super) replies: Replies,
    /// The holder's claim, if the lock nodes have told it or this proxy knows it.
    pub(super) claim: Option<Claim>,
    /// An earlier release, which too few lock nodes answered, was of a grant that was valid.
    pub(super) was_held: bool,
    /// Commands for the data node once the lock is released.
    pub(super) aside: Vec<Vec<Vec<u8>>>,
}

impl Job for Releasing {
    fn answer(self: Box<Self>, answer: Answer, desk: &mut Desk) -> Progress {
        let Answer::Unlock(said) = answer else { return not_asked() };
        let mut releasing = *self;
        match said {
            Ok(released) if released || releasing.was_held => {
                let Releasing { ours, key, token, replies, aside, .. } = releasing;
                desk.tokens.remove(&key, &token);
                wake(ours, replies.own, &aside, desk)
            }
            Ok(_) => {
                let Releasing { ours, key, token, replies, .. } = releasing;
                not_held(ours, key, token, replies, desk)
            }
            Err(error) => {
                // The lock nodes may have carried the release out all the same.
                releasing.was_held |= error.was_held;
                unsettled(releasing.ours, &error, desk, |desk| release(releasing, desk))
            }
        }
    }

    fn asks_for(&self) -> Option<Ours> {
        Some(self.ours)
    }
}

/// Has the data node wake the clients that wait for a released lock, and answers.
fn wake(ours: Ours, reply: LockReply, aside: &[Vec<Vec<u8>>], desk: &mut Desk) -> Progress {
    if aside.is_empty() {
        return tell(ours, reply, Outcome::Ok, desk);
    }
    let missing = aside.len() + usize::from(desk.speak_up());
    for command in aside {
        let words: Vec<&[u8]> = command.iter().map(Vec::as_slice).collect();
        desk.ask(Expected::Done, |out| encode::command(out, &words));
    }
    Progress::Wait(Box::new(Waking { ours, reply, missing }))
}

/// A release for which the data node was sent commands that wake waiting clients. The lock stays released even if the
/// data node does not carry them out.
struct Waking {
    ours: Ours,
    reply: LockReply,
    missing: usize,
}

impl Job for Waking {
    fn reply(mut self: Box<Self>, _reply: &[u8], desk: &mut Desk) -> Progress {
        if !desk.count_in(&mut self.missing) {
            return Progress::Wait(self);
        }
        tell(self.ours, self.reply, Outcome::Ok, desk)
    }

    fn ours(&self) -> Option<Ours> {
        Some(self.ours)
    }
}

/// Forgets the lock, and answers that the token does not hold it.
pub(super) fn not_held(
    ours: Ours,
    key: Key,
    token: Token,
    replies: Replies,
    desk: &mut Desk,
) -> Progress {
    desk.tokens.remove(&key, &token);
    tell_not_held(ours, key, replies, desk)
}

/// Answers that the token does not hold the lock. Where Redis would tell whether another token does, the lock nodes
/// are asked.
pub(super) fn tell_not_held(ours: Ours, key: Key, replies: Replies, desk: &Desk) -> Progress {
    if replies.absent == replies.other {
        return tell(ours, replies.absent, Outcome::NotHeld, desk);
    }
    let question = Question::Look(key.clone());
    Progress::Ask(Box::new(Missing { ours, key, replies }), question)
}

/// A command whose token does not hold the lock, while the lock nodes are asked whether another token does.
struct Missing {
    ours: Ours,
    key: Key,
    replies: Replies,
}

impl Job for Missing {
    fn answer(self: Box<Self>, answer: Answer, desk: &mut Desk) -> Progress {
        let Answer::Look(said) = answer else { return not_asked() };
        match said {
            Ok(None) => tell(self.ours, self.replies.absent, Outcome::NotHeld, desk),
            Ok(Some(_)) => tell(self.ours, self.replies.other, Outcome::NotHeld, desk),
            Err(error) => {
                let Missing { ours, key, replies } = *self;
                unsettled(ours, &error, desk, move |desk| tell_not_held(ours, key, replies, desk))
            }
        }
    }

    fn asks_for(&self) -> Option<Ours> {
        Some(self.ours)
    }
}

/// A task for which the lock nodes are asked who holds the lock.
struct Looking {
    ours: Ours,
    sender: SentBy,
    key: Key,
    work: AdoptWork,
    aside: Vec<Vec<Vec<u8>>>,
    /// The lock must be one that this connection was granted or has attached to.
    is_own_only: bool,
    /// A TTL above `locks.max_ttl` is cut to it.
    is_capped: bool,
}

impl Job for Looking {
    fn answer(self: Box<Self>, answer: Answer, desk: &mut Desk) -> Progress {
        let Answer::Look(said) = answer else { return not_asked() };
        match said {
            Ok(holding) => (*self).seen(holding, desk),
            Err(error) if self.releases_blindly() && !self.ours.may_ask_again() => {
                match desk.known_adopted(&self.key, self.is_own_only) {
                    // The grant that this proxy knows is released all the same. Only if enough lock nodes answer that
                    // is the client told the outcome.
                    Some((token, claim)) => {
                        let claim = Some(claim);
                        (*self).seen(Some(Holding { token, claim, left: None }), desk)
                    }
                    None => unsettled(self.ours, &error, desk, |_| (*self).ask()),
                }
            }
            Err(error) => unsettled(self.ours, &error, desk, |_| (*self).ask()),
        }
    }

    fn asks_for(&self) -> Option<Ours> {
        Some(self.ours)
    }
}

impl Desk {
    /// Returns the adopted grant that a blind release is about, if it was made through this proxy. `is_own_only`: on
    /// this connection.
    pub(super) fn known_adopted(&self, key: &Key, is_own_only: bool) -> Option<(Token, Claim)> {
        let holder = self.shared.engine.adopted_holder(key);
        holder.filter(|(token, claim)| {
            !is_own_only || self.tokens.has_grant(key, token, Some(*claim))
        })
    }
}

impl Looking {
    fn releases_blindly(&self) -> bool {
        matches!(self.work, AdoptWork::ReleaseBlind { .. })
    }

    fn ask(self) -> Progress {
        let question = Question::Look(self.key.clone());
        Progress::Ask(Box::new(self), question)
    }

    fn seen(self, holding: Option<Holding>, desk: &mut Desk) -> Progress {
        let Looking { ours, sender, key, work, aside, is_own_only, is_capped } = self;
        let holding = holding.filter(|Holding { token, claim, .. }| {
            !is_own_only || desk.tokens.has_grant(&key, token, *claim)
        });
        match (work, holding) {
            (AdoptWork::Look(word), holding) => {
                // A value that is no token is answered with an error.
                let is_told = holding.as_ref().is_none_or(|holding| !holding.token.is_empty());
                if word == LookWord::Get && is_told {
                    desk.step_transaction(|stage| stage.read(&key, holding.as_ref()));
                }
                let mut answer = Vec::new();
                encode_look(&mut answer, word, holding.as_ref(), desk);
                ours.answer(answer, None)
            }
            (AdoptWork::Extend { token, ttl, replies }, holding) => {
                let (token, ttl) = (Token::from(&token), Some(ttl));
                let taking = Taking { ours, sender, key, token, ttl, replies };
                adopted_kept::again(taking, Missed::Tell, holding, desk)
            }
            (AdoptWork::AcquireAgain { token, ttl, replies }, holding) => {
                let (token, ttl) = (Token::from(&token), Some(ttl));
                let taking = Taking { ours, sender, key, token, ttl, replies };
                adopted_kept::again(taking, Missed::Take, holding, desk)
            }
            (AdoptWork::Keep { token, of, replies }, holding) => {
                let missed = match of {
                    KeptFrom::Nobody | KeptFrom::NobodyOrToken => Missed::Take,
                    KeptFrom::Token => Missed::Tell,
                };
                let (token, ttl) = (Token::from(&token), None);
                let taking = Taking { ours, sender, key, token, ttl, replies };
                adopted_kept::again(taking, missed, holding, desk)
            }
            (AdoptWork::AcquirePast { replies }, None) => {
                tell(ours, replies.absent, Outcome::Ok, desk)
            }
            (AdoptWork::AcquirePast { replies }, Some(_)) => {
                tell(ours, replies.other, Outcome::Busy, desk)
            }
            (AdoptWork::Left { replies, .. }, None) => {
                tell(ours, replies.absent, Outcome::NotHeld, desk)
            }
            (AdoptWork::Left { token, replies }, Some(holding)) => {
                tell_left(ours, (&token, replies), &holding, desk)
            }
            (
                AdoptWork::ReleaseBlind { replies }
                | AdoptWork::ExtendBlind { replies, .. }
                | AdoptWork::ExtendBy { replies, .. },
                None,
            ) => tell(ours, replies.absent, Outcome::NotHeld, desk),
            (AdoptWork::ExtendBy { token, ttl, replies }, Some(holding)) => {
                let token = Token::from(&token);
                let taking = Taking { ours, sender, key, token, ttl: Some(ttl), replies };
                extend_by(taking, is_capped, &holding, desk)
            }
            // A LOCK client's lock is its own: a blind command changes nothing.
            (
                AdoptWork::ReleaseBlind { replies } | AdoptWork::ExtendBlind { replies, .. },
                Some(Holding { claim, .. }),
            ) if !claim.is_some_and(|claim| claim.is_adopted())
                && !planted::has(PlantedFault::BlindForAll) =>
            {
                tell(ours, replies.absent, Outcome::NotHeld, desk)
            }
            (AdoptWork::ReleaseBlind { replies }, Some(holding)) => {
                let Holding { token, claim, .. } = holding;
                let (replies, was_held) = (whoever(replies), false);
                release(Releasing { ours, key, token, replies, claim, was_held, aside }, desk)
            }
            (AdoptWork::ExtendBlind { ttl, replies }, Some(holding)) => {
                let (replies, Holding { token, claim, .. }) = (whoever(replies), holding);
                let taking = Taking { ours, sender, key, token, ttl: Some(ttl), replies };
                renew(taking, Missed::Tell, claim, desk)
            }
            _ => not_asked(),
        }
    }
}

fn whoever(Replies { absent, own, .. }: Replies) -> Replies {
    Replies { absent, own, endless: own, other: absent }
}

/// Tells how long the lock will last that the token is asked about.
fn tell_left(
    ours: Ours,
    (token, replies): (&[u8], Replies),
    holding: &Holding,
    desk: &mut Desk,
) -> Progress {
    if *holding.token != *token {
        return tell(ours, replies.other, Outcome::NotHeld, desk);
    }
    let reply = match (replies.own, left(holding, desk)) {
        (LockReply::Millis, Some(left)) => LockReply::Number(left),
        (LockReply::Seconds, Some(left)) => LockReply::Number((left + 500) / 1000),
        (_, None) => replies.endless,
        (reply, _) => reply,
    };
    tell(ours, reply, Outcome::Ok, desk)
}

/// Adds `taking.ttl` to what is left of the lock. `is_capped`: at most to the longest TTL that a lock may have.
fn extend_by(taking: Taking, is_capped: bool, holding: &Holding, desk: &mut Desk) -> Progress {
    if holding.token != taking.token {
        return tell(taking.ours, taking.replies.other, Outcome::NotHeld, desk);
    }
    let (Some(left), Some(more)) = (left(holding, desk), taking.ttl) else {
        return tell(taking.ours, taking.replies.endless, Outcome::NotHeld, desk);
    };
    let ttl = more + Duration::from_millis(left.unsigned_abs());
    let most = desk.config.locks.max_ttl;
    let ttl = if is_capped { ttl.min(most) } else { ttl };
    if ttl > most {
        let error = "ERR the TTL would be longer than locks.max_ttl";
        return taking.ours.refuse(error, Outcome::BadRequest, desk);
    }
    renew(Taking { ttl: Some(ttl), ..taking }, Missed::Tell, holding.claim, desk)
}

/// Returns how many milliseconds a holder can count on, as PTTL tells them. `None`: no TTL.
fn left(holding: &Holding, desk: &Desk) -> Option<i64> {
    let left = holding.left?.saturating_sub(2 * desk.config.locks.node_timeout);
    Some(i64::try_from(millis(left)).unwrap_or(i64::MAX).max(1))
}

fn encode_look(out: &mut Vec<u8>, word: LookWord, holding: Option<&Holding>, desk: &Desk) {
    let resp3 = desk.conn.state.resp3;
    let is_string = holding.is_none_or(|holding| !holding.token.is_empty());
    match (word, holding) {
        (LookWord::Get | LookWord::Strlen, Some(_)) if !is_string => {
            encode::error(out, "WRONGTYPE Operation against a key holding the wrong kind of value")
        }
        (LookWord::Get, Some(holding)) => encode::bulk(out, holding.token.value()),
        (LookWord::Get, None) => encode::null(out, resp3),
        (LookWord::Strlen, holding) => {
            let length = holding.map_or(0, |holding| holding.token.value().len());
            encode::integer(out, i64::try_from(length).unwrap_or(i64::MAX));
        }
        (LookWord::Exists, holding) => encode::integer(out, i64::from(holding.is_some())),
        (LookWord::Type, holding) => {
            encode::simple(out, if holding.is_some() { "string" } else { "none" });
        }
        (LookWord::Ttl | LookWord::Pttl, None) => encode::integer(out, -2),
        (LookWord::Pttl, Some(holding)) => encode::integer(out, left(holding, desk).unwrap_or(-1)),
        (LookWord::Ttl, Some(holding)) => {
            // Rounded as Redis does.
            let left = left(holding, desk).map_or(-1, |left| (left + 500) / 1000);
            encode::integer(out, left);
        }
    }
}

/// Answers with this reply.
pub(super) fn tell(ours: Ours, reply: LockReply, outcome: Outcome, desk: &Desk) -> Progress {
    ours.count(outcome, desk);
    let mut answer = Vec::new();
    encode_reply(&mut answer, reply, desk.conn.state.resp3);
    ours.answer(answer, None)
}

pub(super) fn encode_reply(out: &mut Vec<u8>, reply: LockReply, resp3: bool) {
    match reply {
        LockReply::Nil => encode::null(out, resp3),
        LockReply::Ok => encode::simple(out, "OK"),
        LockReply::Number(number) => encode::integer(out, number),
        LockReply::True => encode::bulk(out, b"true"),
        LockReply::False => encode::bulk(out, b"false"),
        LockReply::Error => encode::error(out, "ERR ERROR"),
        LockReply::Queued => encode::simple(out, "QUEUED"),
        LockReply::NullArray => encode::null_array(out, resp3),
        LockReply::Empty => encode::array(out, 0),
        LockReply::OneNumber(number) => {
            encode::array(out, 1);
            encode::integer(out, number);
        }
        // What is left of the TTL was put in before, and commands with pairs are refused.
        LockReply::Millis
        | LockReply::Seconds
        | LockReply::AbsentPair
        | LockReply::TimedPair
        | LockReply::EndlessPair => encode::integer(out, 0),
    }
}
