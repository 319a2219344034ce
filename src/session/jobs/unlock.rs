//! UNLOCK.

use super::{
    super::{desk::Desk, metrics::Outcome},
    Answer, Job, Ours, Progress, Question,
    lock::no_quorum,
    not_asked,
};
use crate::{
    bridge::Asker,
    command::{BadRequest, shown},
    key::{Key, Token},
    lock::Claim,
    resp::encode,
};

/// An UNLOCK that the lock nodes are asked for.
struct Unlocking {
    ours: Ours,
    key: Key,
    token: Token,
}

/// Makes the error for a connection that has no token for this lock.
pub(super) fn no_token(key: &Key, desk: &Desk) -> BadRequest {
    BadRequest::NoToken(shown(desk.name(key)))
}

/// Answers that the connection does not hold the lock, without asking the lock nodes. If the lock
/// was lost, this answer tells the client so.
pub(super) fn not_held(ours: Ours, key: &Key, unlocks: bool, desk: &mut Desk) -> Progress {
    let prefix = desk.config.locks.prefix.len();
    desk.losing.tells_of(key, unlocks, prefix);
    let mut out = Vec::new();
    encode::integer(&mut out, 0);
    ours.count(Outcome::NotHeld, desk);
    ours.answer(out, None)
}

/// Notes that the connection's lock is about to be released. Returns the claim of the connection's
/// grant.
pub(super) fn gives_back(key: &Key, token: &Token, desk: &mut Desk) -> Option<Claim> {
    let held = desk.tokens.held.get(key).filter(|held| held.token == *token);
    // The answer tells the client that the lock has ended; that is no loss.
    if let Some(keep) = held.and_then(|held| held.keep.as_ref()) {
        keep.unlocking();
    }
    let claim = held.and_then(|held| held.claim);
    desk.tokens.gives_back(key, token);
    claim
}

/// Asks the lock nodes.
///
/// # Errors
/// If the connection has no token for this lock.
pub(super) fn begin(
    ours: Ours,
    key: Key,
    token: Option<Token>,
    desk: &mut Desk,
) -> Result<Progress, BadRequest> {
    let held = desk.tokens.held.get(&key);
    let token = token.or_else(|| held.map(|held| held.token.clone()));
    if desk.losing.was_lost(&key, token.as_deref()) {
        return Ok(not_held(ours, &key, true, desk));
    }
    let Some(token) = token else {
        return match desk.tokens.has_ended(&key) {
            true => Ok(not_held(ours, &key, true, desk)),
            false => Err(no_token(&key, desk)),
        };
    };
    if desk.tokens.was_refused(&key, &token) {
        return Ok(not_held(ours, &key, true, desk));
    }
    let claim = gives_back(&key, &token, desk);
    let question =
        Question::Unlock { key: key.clone(), token: token.clone(), claim, asker: Asker::Ours };
    Ok(Progress::Ask(Box::new(Unlocking { ours, key, token }), question))
}

impl Job for Unlocking {
    fn answer(self: Box<Self>, answer: Answer, desk: &mut Desk) -> Progress {
        let Answer::Unlock(said) = answer else { return not_asked() };
        let released = match said {
            Ok(released) => released,
            Err(error) => return no_quorum(self.ours, &error, desk),
        };
        desk.tokens.remove(&self.key, &self.token);
        let mut out = Vec::new();
        encode::integer(&mut out, i64::from(released));
        self.ours.count(if released { Outcome::Ok } else { Outcome::NotHeld }, desk);
        self.ours.answer(out, None)
    }

    fn asks_for(&self) -> Option<Ours> {
        Some(self.ours)
    }
}
