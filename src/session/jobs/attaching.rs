//! LOCK.ATTACH and LOCK.DETACH.

use super::{
    super::{
        claims::{Granted, MAX_TOKENS},
        desk::Desk,
        session_metrics::Outcome,
    },
    Attached, Ours, Progress, Question, announce,
    lock::{encode_grant, no_quorum},
    lock_shared::{self, FoundReader},
};
use crate::{
    clock::Instant,
    command::BadRequest,
    key::{Key, Token},
    lock::{Grant, NotAttached},
    resp::encode,
};

/// Error for a lock whose fence the lock nodes have forgotten.
pub(in crate::session) const FENCE_FORGOTTEN: &str =
    "ERR too few lock nodes know this lock's fence (locks.fence_ttl), LOCK it again";

/// Asks the lock nodes.
///
/// # Errors
/// If the connection has too many locks to remember one more.
pub(super) fn begin(
    ours: Ours,
    key: Key,
    token: Token,
    desk: &mut Desk,
) -> Result<Progress, BadRequest> {
    if !desk.tokens.make_room(&key, ours.since) {
        return Err(BadRequest::TooManyLocks(MAX_TOKENS));
    }
    let question = Question::attached(vec![(key.clone(), token.clone())]);
    Ok(Progress::ask(ours, question, |ours, said, desk| attached(ours, key, token, said, desk)))
}

/// Answers LOCK.DETACH, without asking the lock nodes.
pub(super) fn detach(ours: Ours, key: &Key, desk: &mut Desk) -> Progress {
    let detached = desk.tokens.detach(key);
    let mut out = Vec::new();
    encode::integer(&mut out, i64::from(detached));
    ours.count(if detached { Outcome::Ok } else { Outcome::NotHeld }, desk);
    ours.answer(out, None)
}

/// Takes in whether the token holds the lock.
fn attached(ours: Ours, key: Key, token: Token, said: Vec<Attached>, desk: &mut Desk) -> Progress {
    let mut out = Vec::with_capacity(96);
    // Only one lock was asked about.
    match said.into_iter().next() {
        Some(Ok(Some(grant))) => {
            // The TTL of the lock's LOCK is not known here; a RENEW without a TTL uses the default.
            let (ttl, now) = (desk.config.locks.default_ttl, Instant::now());
            let fence = desk.tokens.attach((&key, &token), ttl, grant, now);
            encode_grant(&mut out, &token, fence, grant.validity);
            ours.count(Outcome::Ok, desk);
            let granted = Granted::elsewhere(&key, &token, &Grant { fence, ..grant });
            announce::granted(ours, granted, out, desk)
        }
        Some(Ok(None)) | None if desk.may_be_readers(&key) => {
            desk.tokens.not_held(&key, &token);
            let told = |ours: Ours, FoundReader { token, left, .. }, desk: &mut Desk| {
                let mut out = Vec::with_capacity(96);
                encode_grant(&mut out, &token, 0, left.unwrap_or_default());
                ours.count(Outcome::Ok, desk);
                ours.answer(out, None)
            };
            lock_shared::of_token(ours, (key, token, false), told, |ours, _, desk| {
                not_held(ours, desk)
            })
        }
        Some(Ok(None)) | None => {
            desk.tokens.not_held(&key, &token);
            not_held(ours, desk)
        }
        Some(Err(NotAttached::FenceForgotten)) => {
            ours.refuse(FENCE_FORGOTTEN, Outcome::NotHeld, desk)
        }
        Some(Err(NotAttached::NoQuorum(error))) => no_quorum(ours, &error, desk),
    }
}

/// Answers that the token does not hold the lock.
fn not_held(ours: Ours, desk: &Desk) -> Progress {
    let mut out = Vec::new();
    encode::null_array(&mut out, desk.conn.state.resp3);
    ours.count(Outcome::NotHeld, desk);
    ours.answer(out, None)
}
