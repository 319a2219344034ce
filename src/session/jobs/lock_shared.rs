//! LOCK with SHARED: a reader's part of a lock, which any number of clients may have at the same time while no client
//! has the lock alone. A reader has no fence, so guards accept no write by it.

use std::time::Duration;

use super::{
    super::{
        attempts::InTheWay,
        claims::{Granted, Held, MAX_TOKENS},
        desk::Desk,
        session_metrics::{LeftAlone, Outcome},
    },
    Job, Ours, Progress, Question, announce,
    lock::{encode_grant, new_token, no_quorum, refused},
    own_grant,
};
use crate::{
    clock::Instant,
    command::{BadRequest, shown},
    key::{Key, Token},
    lock::{Claim, Grant, NotGranted},
};

/// A LOCK with SHARED about which the lock nodes are asked.
struct Reading {
    ours: Ours,
    key: Key,
    token: Token,
    /// Whether the client has named the token.
    named: bool,
    /// `None`: it lives as long as the connection.
    named_ttl: Option<Duration>,
    /// The TTL that the lock nodes are asked for.
    ttl: Duration,
    wait: Option<Duration>,
    /// The connection has the part by this token, under this key, as far as it knows.
    again: Option<Key>,
}

/// Asks the lock nodes.
///
/// # Errors
/// If the connection has too many locks to keep one more, would wait for its own lock, or asks for a lock that has a
/// key on the data node too.
pub(super) fn begin(
    ours: Ours,
    key: Key,
    token: Option<Token>,
    (named_ttl, wait): (Option<Duration>, Option<Duration>),
    desk: &mut Desk,
) -> Result<Progress, BadRequest> {
    if desk.shared.is_bridged(&key) {
        return Err(BadRequest::SharedBridged);
    }
    // A reader has no fence, by which the data node would refuse what the writer before sent late.
    if desk.is_guard_lock(&key) {
        return Err(BadRequest::SharedGuard);
    }
    if !desk.shared.fleet.all_know_readers() {
        return Err(BadRequest::SharedUnknown);
    }
    // Only this connection knows the reader's grant.
    if !desk.tokens.make_room(&key, ours.since) {
        return Err(BadRequest::TooManyLocks(MAX_TOKENS));
    }
    if wait.is_some() && desk.tokens.held_here(&key, ours.since).is_some_and(|(_, kept)| kept) {
        desk.tokens.stood_in_the_way(InTheWay::of_others());
        return Err(BadRequest::Deadlock);
    }
    let again = token.as_ref().and_then(|token| desk.tokens.reader_with(&key, token));
    let ttl = named_ttl.unwrap_or(desk.config.locks.default_ttl);
    let named = token.is_some();
    let token = token.unwrap_or_else(new_token);
    Ok(Reading { ours, key, token, named, named_ttl, ttl, wait, again }.ask(desk))
}

impl Reading {
    fn ask(self, desk: &Desk) -> Progress {
        let (key, token, ttl, wait) = (self.key.clone(), self.token.clone(), self.ttl, self.wait);
        let again: Option<Claim> =
            self.again.as_ref().and_then(|reader| desk.tokens.claim_of(reader, &token));
        Progress::ask(self, Question::read(key, token, ttl, again, wait), Reading::answered)
    }

    fn answered(mut self, said: Result<Grant, NotGranted>, desk: &mut Desk) -> Progress {
        match said {
            Ok(grant) => self.granted(grant, desk),
            Err(NotGranted::Held { .. }) if self.again.is_some() => {
                // The part has ended. It is asked for as any other.
                if let Some(reader) = self.again.take() {
                    desk.tokens.remove(&reader, &self.token);
                }
                self.ask(desk)
            }
            Err(why) => {
                let has_waited = self.named && self.waits_in_line();
                refused(self.ours, (self.key, self.token), has_waited, why, desk)
            }
        }
    }

    fn granted(self, grant: Grant, desk: &mut Desk) -> Progress {
        let Reading { ours, key, token, named_ttl, ttl, .. } = self;
        let reader = grant.claim.map_or_else(|| key.clone(), |claim| claim.key_of_reader(&key));
        let (is_session_lock, now) = (named_ttl.is_none(), Instant::now());
        desk.shared.metrics.granted(is_session_lock);
        let before = desk.tokens.before(&reader, &token, now);
        let keep = if is_session_lock { desk.keep(&reader, &token, ttl, &grant) } else { None };
        let validity = keep.as_ref().map(|keep| keep.within_hold(grant.validity));
        let mut out = Vec::with_capacity(96);
        encode_grant(&mut out, &token, grant.fence, validity.unwrap_or(grant.validity));
        let granted = Granted::here(&reader, &token, &grant, before);
        desk.tokens.granted_shared(&key, reader, Held::granted(token, ttl, &grant, keep), now);
        ours.count(Outcome::Ok, desk);
        announce::granted(ours, granted, out, desk)
    }
}

impl Job for Reading {
    fn asks_for(&self) -> Option<Ours> {
        Some(self.ours)
    }

    fn waits_in_line(&self) -> bool {
        self.wait.is_some()
    }
}

/// A reader of a lock that the lock nodes have told.
pub(super) struct FoundReader {
    /// Its key.
    pub(super) reader: Key,
    pub(super) token: Token,
    pub(super) claim: Claim,
    /// For how long it surely lasts.
    pub(super) left: Option<Duration>,
}

/// Asks the lock nodes for the reader's part that the token has, which this connection does not know, and goes on with
/// it, or with `nothing` if there is none. `is_ended`: the command ends or prolongs it, and so must be from its own user.
/// One that had the token already when this connection was refused the lock by it, or when its own reader ended, is
/// another client's.
pub(super) fn of_token(
    ours: Ours,
    (key, token, is_ended): (Key, Token, bool),
    go_on: impl FnOnce(Ours, FoundReader, &mut Desk) -> Progress + Send + 'static,
    nothing: impl FnOnce(Ours, Key, &mut Desk) -> Progress + Send + 'static,
) -> Progress {
    let question = Question::reader(key.clone(), token.clone());
    Progress::ask(ours, question, move |ours, said, desk: &mut Desk| match said {
        Ok(None) => nothing(ours, key, desk),
        Ok(Some(held)) if held.token.is_empty() => {
            let error = BadRequest::SeveralReaders(shown(desk.name(&key)));
            ours.refuse(&error.to_string(), Outcome::NotHeld, desk)
        }
        Ok(Some(held)) => match held.claim {
            Some(claim) => {
                let reader = claim.key_of_reader(&key);
                let in_the_way = desk.tokens.reader_in_the_way(&key, &token).filter(|_| is_ended);
                let granted_at = || desk.shared.engine.granted_at(&reader, claim);
                match in_the_way.map(|known| known.has(claim, granted_at())) {
                    None | Some(Some(false)) => {}
                    Some(Some(true)) => {
                        own_grant::leave_alone(&key, LeftAlone::Refused, desk);
                        return nothing(ours, key, desk);
                    }
                    Some(None) => {
                        own_grant::leave_alone(&key, LeftAlone::Unsure, desk);
                        let error = BadRequest::Unsure(shown(desk.name(&key)));
                        return ours.refuse(&error.to_string(), Outcome::NotHeld, desk);
                    }
                }
                go_on(ours, FoundReader { reader, token, claim, left: held.left }, desk)
            }
            None => nothing(ours, key, desk),
        },
        Err(error) => no_quorum(ours, &error, desk),
    })
}
