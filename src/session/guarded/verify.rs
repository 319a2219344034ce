//! Asks again about a lock that was taken on another connection, and under which this one acts by LOCK.ATTACH. Such a
//! lock counts only for the time that the lock nodes have told.
//!
//! The lock's keeper may renew it, which this connection does not learn. So once the time has run out, the next
//! guarded write or MULTI asks the lock nodes again, which costs one round trip.

use super::super::{
    desk::Desk,
    jobs::{Attached, FENCE_FORGOTTEN, Job, Progress, Question},
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

/// A write or MULTI for which the lock nodes are asked about locks whose time has run out.
struct Verifying;

impl Job for Verifying {}

/// Asks the lock nodes about these locks. With an error, `then` is told that it is unknown whether all locks are held.
pub(super) fn verify(
    asked: Vec<(Key, Token)>,
    then: impl FnOnce(Option<String>, &mut Desk) -> Progress + Send + 'static,
) -> Progress {
    Progress::ask(Verifying, Question::attached(asked.clone()), move |_, said, desk| {
        let error = take_in(&asked, said, desk);
        then(error, desk)
    })
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
