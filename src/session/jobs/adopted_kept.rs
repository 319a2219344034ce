//! Adopted locks without a TTL, under `no_ttl: session`. Such a lock is renewed for as long as the connection lives
//! that took it, or that took its TTL away. Its claim tells that it has no TTL, so each proxy knows.
//!
//! EXPIRE and similar commands make such a lock a lease: it gets a new claim, so its keeper, through whichever proxy,
//! can renew it no more.

use super::{
    super::{
        claims::{Granted, Held},
        desk::Desk,
        session_metrics::Outcome,
    },
    Answer, Job, Ours, Progress, Question,
    adopted_lock::{OneLock, TOO_SLOW, encode_reply, tell},
    announce, not_asked,
    unsettled::{unsettled, unsettled_as},
};
use crate::{
    bridge::Asker,
    clock::Instant,
    lock::{Grant, NotGranted},
};

/// Takes a lock's TTL away, or gives a TTL to a lock without one.
pub(super) fn convert(lock: OneLock, desk: &mut Desk) -> Progress {
    if let Some(refused) = lock.refused(desk) {
        return refused;
    }
    let (ttl, claim) = lock.terms(desk);
    let (key, token) = (lock.key.clone(), lock.token.clone());
    let held = desk.tokens.held.get(&key).filter(|held| held.token == token);
    let is_ours = held.is_some_and(|held| !held.attached && held.claim == lock.claim);
    let question = Question::TakeOver { key, token, ttl, claim };
    Progress::Ask(Box::new(Converting { lock, is_ours, grant: None }), question)
}

/// A lock for which the lock nodes are asked for a new claim.
struct Converting {
    /// The lock, by its earlier claim.
    lock: OneLock,
    /// The connection was granted the lock, by the earlier claim.
    is_ours: bool,
    /// The new grant, while its TTL is being shortened to the one that the client wants.
    grant: Option<Grant>,
}

impl Job for Converting {
    fn answer(mut self: Box<Self>, answer: Answer, desk: &mut Desk) -> Progress {
        match answer {
            Answer::TakeOver(Ok(grant)) if self.is_to_be_shorter(desk) => {
                self.grant = Some(grant);
                self.shorten(desk)
            }
            Answer::TakeOver(Ok(grant)) => self.converted(grant, desk),
            Answer::Renew(Ok(Some(renewed))) => match self.grant {
                Some(grant) => {
                    let (validity, until) = (renewed.validity, renewed.until);
                    self.converted(Grant { validity, until, ..grant }, desk)
                }
                None => not_asked(),
            },
            Answer::TakeOver(Err(
                NotGranted::Held { .. }
                | NotGranted::QueueFull { .. }
                | NotGranted::Deadlock { .. },
            ))
            | Answer::Renew(Ok(None)) => self.lock.not_held(desk),
            Answer::TakeOver(Err(NotGranted::NoQuorum(error))) => {
                let lock = self.lock;
                unsettled(lock.ours, &error, desk, |desk| convert(lock, desk))
            }
            Answer::Renew(Err(error)) => {
                unsettled(self.lock.ours, &error, desk, |desk| self.shorten(desk))
            }
            _ => not_asked(),
        }
    }

    fn asks_for(&self) -> Option<Ours> {
        Some(self.lock.ours)
    }
}

impl Converting {
    /// Whether the lock nodes hold the lock for longer than the client wants. They shorten nothing when the claim
    /// changes, as the keeper may still count on the lock.
    fn is_to_be_shorter(&self, desk: &Desk) -> bool {
        self.lock.ttl.is_some() && self.lock.terms(desk).0 < desk.config.locks.default_ttl
    }

    /// Gives the lock, which has its new claim, the TTL that the client wants.
    fn shorten(self: Box<Self>, desk: &Desk) -> Progress {
        let Some(Grant { claim, .. }) = self.grant else { return not_asked() };
        let (ttl, _) = self.lock.terms(desk);
        let (key, token, asker) = (self.lock.key.clone(), self.lock.token.clone(), Asker::Adopted);
        Progress::Ask(self, Question::Renew { key, token, ttl, claim, asker })
    }

    fn converted(self, grant: Grant, desk: &mut Desk) -> Progress {
        if self.lock.outlasts(grant.validity) {
            let slow = Box::new(Converting { grant: Some(grant), ..self });
            return unsettled_as(slow.lock.ours, TOO_SLOW, desk, |desk| slow.shorten(desk));
        }
        let Converting { lock, is_ours, .. } = self;
        let OneLock { ours, sender, key, token, ttl, replies, .. } = lock;
        desk.shared.engine.name_adopted(&key, &token, sender.name());
        let reply = if ttl.is_some() { replies.endless } else { replies.own };
        let keep = match ttl {
            None => desk.keep(&key, &token, desk.config.locks.default_ttl, &grant),
            Some(_) if is_ours => None,
            // The connection that took the lock has it no more: for guards a client needs LOCK.ATTACH.
            Some(_) => return tell(ours, reply, Outcome::Ok, desk),
        };
        let granted = Granted::converted(&key, &token, &grant, ttl.unwrap_or_default());
        let ttl = ttl.unwrap_or(desk.config.locks.default_ttl);
        desk.tokens.insert(key, Held::granted(token, ttl, &grant, keep), Instant::now());
        ours.count(Outcome::Ok, desk);
        let mut answer = Vec::new();
        encode_reply(&mut answer, reply, desk.conn.state.resp3);
        announce::granted(ours, granted, answer, desk)
    }
}
