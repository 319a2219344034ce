//! RENEW, which can also make a connection the keeper of a session lock.

use std::time::Duration;

use super::{
    super::{
        claims::{Granted, Held, MAX_TOKENS},
        desk::Desk,
        session_metrics::Outcome,
    },
    Ours, Progress, Question, announce,
    lock::{encode_millis, no_quorum},
    lock_shared::{self, FoundReader},
    own_grant::{self, GrantOfToken, not_held},
};
use crate::{
    bridge::Asker,
    clock::Instant,
    command::{BadRequest, shown},
    key::{Key, Token},
    lock::{Claim, NotGranted},
    resp::encode,
};

/// Asks the lock nodes.
///
/// # Errors
/// If the connection has too many locks to keep one more, or has no token for this one.
pub(super) fn begin(
    ours: Ours,
    key: Key,
    token: Option<Token>,
    ttl: Option<Duration>,
    desk: &mut Desk,
) -> Result<Progress, BadRequest> {
    let is_named = token.is_some();
    let key = own_grant::key_of(key, token.as_ref(), desk)?;
    let token = match own_grant::token_of(&key, token, desk) {
        Ok(token) => token,
        Err(no_grant) => return no_grant.answer(ours, &key, false, desk),
    };
    let held = desk.tokens.held.get(&key).filter(|held| held.token == token);
    // By a RENEW with a token and without a TTL, a connection that was not granted the lock becomes its keeper.
    let takes_over = is_named && ttl.is_none() && held.is_none_or(|held| held.attached);
    let before = held.filter(|_| !takes_over).map(|held| held.ttl);
    let claim = held.and_then(|held| held.claim);
    let ttl = ttl.or(before).unwrap_or(desk.config.locks.default_ttl);
    if desk.tokens.is_given_back(&key, &token) {
        return Ok(not_held(ours, &key, false, desk));
    }
    if takes_over && !desk.tokens.make_room(&key, ours.since) {
        return Err(BadRequest::TooManySessionLocks(MAX_TOKENS));
    }
    Ok(match desk.tokens.in_the_way(&key, &token) {
        Some(in_the_way) => {
            let asks = GrantOfToken { ours, key, token, in_the_way, unlocks: false };
            asks.find(move |ours, key, token, claim| match takes_over {
                true => take_over(ours, key, token, ttl),
                false => ask(ours, key, token, ttl, (Some(claim), Asker::Told)),
            })
        }
        None if takes_over => take_over(ours, key, token, ttl),
        None => ask(ours, key, token, ttl, (claim, Asker::Ours)),
    })
}

/// Asks the lock nodes to renew the grant with this claim; without a claim, that of the token.
pub(super) fn ask(
    ours: Ours,
    key: Key,
    token: Token,
    ttl: Duration,
    (claim, asker): (Option<Claim>, Asker),
) -> Progress {
    let question = Question::renew(key.clone(), token.clone(), ttl, claim, asker);
    Progress::ask(ours, question, move |ours, said, desk| match said {
        Ok(Some(grant)) => {
            desk.tokens.renewed(&key, &token, ttl, grant.until);
            let out = renewed(ours, grant.validity, desk);
            ours.answer(out, None)
        }
        // The connection's own grant has ended: a reader with the token is another client.
        Ok(None) if desk.tokens.has_by(&key, &token) => nothing_held(ours, (&key, &token), desk),
        Ok(None) if asker == Asker::Ours && desk.may_be_readers(&key) => {
            let ask = move |ours, FoundReader { reader, token, claim, .. }, _: &mut Desk| {
                ask(ours, reader, token, ttl, (Some(claim), Asker::Told))
            };
            lock_shared::of_token(ours, (key, token, true), ask, nothing_shared)
        }
        Ok(None) => nothing_held(ours, (&key, &token), desk),
        Err(error) => no_quorum(ours, &error, desk),
    })
}

/// Asks the lock nodes to give the token's lock another keeper.
pub(super) fn take_over(ours: Ours, key: Key, token: Token, ttl: Duration) -> Progress {
    let question = Question::take_over(key.clone(), token.clone(), ttl, Claim::taken_over());
    Progress::ask(ours, question, move |ours, said, desk| match said {
        Ok(grant) => {
            let now = Instant::now();
            let keep = desk.keep(&key, &token, ttl, &grant);
            let validity = keep.as_ref().map(|keep| keep.within_hold(grant.validity));
            let out = renewed(ours, validity.unwrap_or(grant.validity), desk);
            let granted = Granted::elsewhere(&key, &token, &grant);
            desk.tokens.insert(key, Held::granted(token, ttl, &grant, keep), now);
            announce::granted(ours, granted, out, desk)
        }
        Err(NotGranted::Held { .. }) if desk.may_be_readers(&key) => {
            let kept = |ours: Ours, FoundReader { reader, .. }, desk: &mut Desk| {
                let error = BadRequest::ReaderKept(shown(desk.name(&reader)));
                ours.refuse(&error.to_string(), Outcome::NotHeld, desk)
            };
            lock_shared::of_token(ours, (key, token, false), kept, nothing_shared)
        }
        Err(
            NotGranted::Held { .. } | NotGranted::QueueFull { .. } | NotGranted::Deadlock { .. },
        ) => nothing_held(ours, (&key, &token), desk),
        Err(NotGranted::NoQuorum(error)) => no_quorum(ours, &error, desk),
    })
}

/// Returns the answer with the validity, and counts the command.
fn renewed(ours: Ours, validity: Duration, desk: &Desk) -> Vec<u8> {
    let mut out = Vec::new();
    encode_millis(&mut out, validity);
    ours.count(Outcome::Ok, desk);
    out
}

/// Answers that the lock is neither held nor shared by the token.
fn nothing_shared(ours: Ours, key: Key, desk: &mut Desk) -> Progress {
    not_held(ours, &key, false, desk)
}

/// Answers that the lock is not held.
fn nothing_held(ours: Ours, (key, token): (&Key, &Token), desk: &mut Desk) -> Progress {
    desk.tokens.remove(key, token);
    let mut out = Vec::new();
    encode::integer(&mut out, 0);
    ours.count(Outcome::NotHeld, desk);
    ours.answer(out, None)
}
