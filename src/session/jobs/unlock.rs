//! UNLOCK.

use super::{
    super::{desk::Desk, session_metrics::Outcome},
    Ours, Progress, Question,
    lock::no_quorum,
    lock_shared::{self, FoundReader},
    own_grant::{self, GrantOfToken},
};
use crate::{
    bridge::Asker,
    command::BadRequest,
    key::{Key, Token},
    lock::Claim,
    resp::encode,
};

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
    let key = own_grant::key_of(key, token.as_ref(), desk)?;
    let token = match own_grant::token_of(&key, token, desk) {
        Ok(token) => token,
        Err(no_grant) => return no_grant.answer(ours, &key, true, desk),
    };
    match desk.tokens.in_the_way(&key, &token) {
        Some(in_the_way) => {
            let asks = GrantOfToken { ours, key, token, in_the_way, unlocks: true };
            let go_on = |ours, key, token, claim| ask(ours, key, token, (Some(claim), Asker::Told));
            Ok(asks.find(go_on))
        }
        None => {
            let claim = gives_back(&key, &token, desk);
            Ok(ask(ours, key, token, (claim, Asker::Ours)))
        }
    }
}

/// Asks the lock nodes to release the grant with this claim; without a claim, that of the token.
pub(super) fn ask(
    ours: Ours,
    key: Key,
    token: Token,
    (claim, asker): (Option<Claim>, Asker),
) -> Progress {
    let question = Question::unlock(key.clone(), token.clone(), claim, asker);
    Progress::ask(ours, question, move |ours, said, desk| {
        let released = match said {
            Ok(released) => released,
            Err(error) => return no_quorum(ours, &error, desk),
        };
        let is_own = desk.tokens.has_by(&key, &token);
        desk.tokens.remove(&key, &token);
        if released && is_own {
            // A LOCK again was refused for another reason than another client's grant.
            desk.tokens.refused_no_more(&key, &token);
        }
        if released && !key.is_of_reader() {
            desk.shared.engine.note_unlocked(&key);
        }
        // Where the connection's own grant has ended, a reader with the token is another client.
        if !released && !is_own && asker == Asker::Ours && desk.may_be_readers(&key) {
            let ask = |ours, FoundReader { reader, token, claim, .. }, _: &mut Desk| {
                ask(ours, reader, token, (Some(claim), Asker::Told))
            };
            return lock_shared::of_token(ours, (key, token, true), ask, |ours, _, desk| {
                told(ours, false, desk)
            });
        }
        told(ours, released, desk)
    })
}

/// Answers whether the lock was released.
fn told(ours: Ours, released: bool, desk: &Desk) -> Progress {
    let mut out = Vec::new();
    encode::integer(&mut out, i64::from(released));
    ours.count(if released { Outcome::Ok } else { Outcome::NotHeld }, desk);
    ours.answer(out, None)
}
