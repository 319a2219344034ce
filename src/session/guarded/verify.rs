//! Asks again about a lock that was taken on another connection, and under which this one acts by LOCK.ATTACH. Such a
//! lock counts only for the time that the lock nodes have told.
//!
//! The lock's keeper may renew it, which this connection does not learn. So once the time has run out, the next
//! guarded write or MULTI asks the lock nodes again, which costs one round trip.

use super::super::{
    desk::Desk,
    jobs::{Answer, Attached, FENCE_FORGOTTEN, Job, Progress, Question, not_asked},
};
use crate::{
    clock::Instant,
    guard::MAX_LOCKS,
    key::{Key, Token},
    lock::NotAttached,
};

/// Returns the attached locks whose time has run out, with their tokens.
pub(super) fn run_out(
    keys: impl Iterator<Item = Key>,
    now: Instant,
    desk: &Desk,
) -> Vec<(Key, Token)> {
    keys.filter_map(|key| {
        let token = desk.tokens.run_out(&key, now)?.clone();
        Some((key, token))
    })
    .take(MAX_LOCKS)
    .collect()
}

/// What is done once the lock nodes have answered. With an error, it is unknown whether all locks are held.
type Then = Box<dyn FnOnce(Option<String>, &mut Desk) -> Progress + Send>;

/// Locks whose time has run out, and about which the lock nodes were asked.
struct Verifying {
    asked: Vec<(Key, Token)>,
    then: Then,
}

/// Asks the lock nodes about these locks.
pub(super) fn verify(asked: Vec<(Key, Token)>, then: Then) -> Progress {
    let question = Question::Attached(asked.clone());
    Progress::Ask(Box::new(Verifying { asked, then }), question)
}

impl Job for Verifying {
    fn answer(self: Box<Self>, answer: Answer, desk: &mut Desk) -> Progress {
        let Answer::Attached(said) = answer else { return not_asked() };
        let error = take_in(&self.asked, said, desk);
        (self.then)(error, desk)
    }
}

/// Takes in the lock nodes' answers about attached locks. Returns the error that refuses a write under them, if it is
/// unknown whether they are held.
fn take_in(asked: &[(Key, Token)], said: Vec<Attached>, desk: &mut Desk) -> Option<String> {
    let mut error = None;
    let now = Instant::now();
    for ((key, token), held) in asked.iter().zip(said) {
        match held {
            Ok(Some(grant)) => {
                let ttl = desk.config.locks.default_ttl;
                desk.tokens.attach((key, token), ttl, grant, now);
            }
            Ok(None) => desk.tokens.not_held(key, token),
            Err(NotAttached::NoQuorum(why)) => error = Some(why.told()),
            Err(NotAttached::FenceForgotten) => error = Some(FENCE_FORGOTTEN.to_owned()),
        }
    }
    error
}
