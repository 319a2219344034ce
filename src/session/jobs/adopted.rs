//! A lock idiom on a key of a bridged or enforced adopt rule. The lock nodes decide, and the client gets the reply
//! that Redis would have given.
//!
//! Here a task gets the names of its locks; what becomes of one lock is in `adopted_lock`.

use super::{
    super::{desk::Desk, guarded::database, session_metrics::Outcome},
    Ours, Pass, Progress, Question, adopted_exec,
    adopted_first::TakingFirst,
    adopted_lock::{OneLock, left},
    adopted_many::Many,
    authorize::probe as probe_lock,
    unexpected,
    unsettled::unsettled,
};
use crate::{
    adopt::{
        by_holder::Act,
        place::KeyPlace,
        task::{AdoptTask, AdoptWork, LookWord},
    },
    key::{Key, Token},
    lock::Holding,
    log_text::shown,
    resp::{
        encode,
        expected::Expected,
        name::{Own, ReplyMode},
    },
};

pub(super) const UNKNOWN_DATABASE: &str =
    "ERR an adopted lock behind SELECT needs CLIENT INFO (adopt)";

/// Returns the command of ours as which a task is counted.
pub(super) fn verb(task: &AdoptTask) -> Own {
    let AdoptWork::Lock(work) = &task.work else { return Own::Lockgate };
    match (work.acts.absent, work.acts.own) {
        (Act::Take, _) => Own::Lock,
        (_, Act::Renew) if work.keeps() => Own::Lock,
        (_, Act::Renew | Act::AddTo) => Own::Renew,
        (_, Act::Free) => Own::Unlock,
        (_, Act::Nothing | Act::Take) => Own::Lockgate,
    }
}

/// Returns the command that reads what a task reads, unless it does more.
fn reads(task: &AdoptTask) -> Option<LookWord> {
    match task.work {
        AdoptWork::Look(word) => Some(word),
        AdoptWork::Watch => Some(LookWord::Get),
        _ => None,
    }
}

/// Returns the name under which the permission for a task is remembered.
pub(super) fn permission(task: &AdoptTask) -> Key {
    match reads(task) {
        Some(word) => Key::new(&[0, word as u8], &task.key),
        None => Key::from(&task.key),
    }
}

/// Asks the data node whether the client may: by the command itself if it only reads, by GET for WATCH, and otherwise
/// as for LOCK.
pub(super) fn probe(task: &AdoptTask, desk: &mut Desk) {
    probe_for(permits(task), task, desk);
}

/// Sends [`probe`]'s question where its first reply is `expected`, such as `+QUEUED` inside MULTI.
pub(super) fn probe_for(expected: Expected, task: &AdoptTask, desk: &mut Desk) {
    desk.ask(expected, |out| match reads(task) {
        Some(word) => encode::command(out, &[word.name(), &task.key]),
        None => probe_lock(out, &task.key),
    });
}

/// Returns how the data node answers [`probe`] if the client may.
pub(super) fn permits(task: &AdoptTask) -> Expected {
    match reads(task) {
        Some(LookWord::Get) => Expected::Text,
        Some(LookWord::Type) => Expected::Type,
        Some(LookWord::Exists | LookWord::Ttl | LookWord::Pttl | LookWord::Strlen) => {
            Expected::Number
        }
        None => Expected::Set,
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
    Progress::await_replies(ours, |ours, _, desk| {
        ours.count(Outcome::BadRequest, desk);
        ours.answer(answer, None)
    })
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
    let is_refused = task.work.is_refusal();
    if let Some(database) = desk.conn.database.or(is_refused.then_some(0)) {
        return begin_in(ours, task, database, desk);
    }
    desk.speak_up();
    database::locate(desk);
    database::await_database(ours, |ours, _, desk| {
        desk.hush_again();
        match desk.conn.database {
            Some(database) => carry_out(ours, task, database, desk),
            None => ours.refuse(UNKNOWN_DATABASE, Outcome::Denied, desk),
        }
    })
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
    let options = task.options;
    match (task.work, keys.len()) {
        (AdoptWork::Lock(work), _) if work.first_of.is_some() => {
            let sender = task.sender;
            TakingFirst { ours, sender, keys, work, options }.begin(&other_keys, desk)
        }
        (AdoptWork::Lock(work), 2..) => {
            Many::begin((ours, task.sender), keys, (work, options.blind), &other_keys, desk)
        }
        (work, _) => {
            let Some(key) = keys.pop() else { return unexpected() };
            match work {
                AdoptWork::Lock(work) => {
                    let mut lock = OneLock::new(ours, key, work);
                    (lock.sender, lock.aside, lock.options) = (task.sender, task.aside, options);
                    lock.begin(desk)
                }
                AdoptWork::Look(word) => look(ours, key, word),
                AdoptWork::Watch => adopted_exec::watch(ours, key, desk),
                AdoptWork::Queue(work) => adopted_exec::queue(ours, &key, work, desk),
                AdoptWork::Refuse(_) | AdoptWork::Fail(_) => unexpected(),
            }
        }
    }
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
    if names.len() > 1 && matches!(&task.work, AdoptWork::Lock(work) if work.keeps()) {
        return Some("ERR several adopted locks at once need a TTL (adopt)".into());
    }
    None
}

/// Asks the lock nodes who holds a lock, for a command that reads it.
fn look(ours: Ours, key: Key, word: LookWord) -> Progress {
    let question = Question::look(key.clone());
    Progress::ask(ours, question, move |ours, said, desk| {
        let holding = match said {
            Ok(holding) => holding,
            Err(error) => return unsettled(ours, &error, desk, move |_| look(ours, key, word)),
        };
        // A value that is no token is answered with an error.
        let is_told = holding.as_ref().is_none_or(has_token);
        if word == LookWord::Get && is_told {
            desk.step_transaction(|stage| stage.read(&key, holding.as_ref()));
        }
        let mut answer = Vec::new();
        encode_look(&mut answer, word, holding.as_ref(), desk);
        ours.answer(answer, None)
    })
}

/// Whether one client holds the lock, by a token that could be told.
fn has_token(holding: &Holding) -> bool {
    !holding.token.is_empty() && *holding.token != *Token::OF_READERS
}

fn encode_look(out: &mut Vec<u8>, word: LookWord, holding: Option<&Holding>, desk: &Desk) {
    let resp3 = desk.conn.state.resp3;
    let is_string = holding.is_none_or(has_token);
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
        // Symfony's readers are a sorted set.
        (LookWord::Type, Some(holding)) if *holding.token == *Token::OF_READERS => {
            encode::simple(out, "zset");
        }
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
