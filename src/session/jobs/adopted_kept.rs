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
    Progress, Question,
    adopted_lock::{OneLock, TOO_SLOW, encode_reply, tell},
    announce,
    unsettled::{unsettled, unsettled_as},
};
use crate::{
    bridge::Asker,
    clock::Instant,
    lock::{Grant, NotGranted, Renewed},
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
    let question = Question::take_over(key, token, ttl, claim);
    Progress::ask(lock.ours, question, move |_, said, desk| {
        Converting { lock, is_ours }.taken_over(said, desk)
    })
}

/// A lock for which the lock nodes are asked for a new claim.
struct Converting {
    /// The lock, by its earlier claim.
    lock: OneLock,
    /// The connection was granted the lock, by the earlier claim.
    is_ours: bool,
}

impl Converting {
    /// Takes in whether the lock nodes have given the lock its new claim.
    fn taken_over(self, said: Result<Grant, NotGranted>, desk: &mut Desk) -> Progress {
        match said {
            Ok(grant) if self.is_to_be_shorter(desk) => self.shorten(grant, desk),
            Ok(grant) => self.converted(grant, desk),
            Err(
                NotGranted::Held { .. }
                | NotGranted::QueueFull { .. }
                | NotGranted::Deadlock { .. },
            ) => self.lock.not_held(desk),
            Err(NotGranted::NoQuorum(error)) => {
                let lock = self.lock;
                unsettled(lock.ours, &error, desk, |desk| convert(lock, desk))
            }
        }
    }

    /// Whether the lock nodes hold the lock for longer than the client wants. They shorten nothing when the claim
    /// changes, as the keeper may still count on the lock.
    fn is_to_be_shorter(&self, desk: &Desk) -> bool {
        self.lock.ttl.is_some() && self.lock.terms(desk).0 < desk.config.locks.default_ttl
    }

    /// Gives the lock, which has its new claim by `grant`, the TTL that the client wants.
    fn shorten(self, grant: Grant, desk: &Desk) -> Progress {
        let (ttl, _) = self.lock.terms(desk);
        let (key, token) = (self.lock.key.clone(), self.lock.token.clone());
        let question = Question::renew(key, token, ttl, grant.claim, Asker::Adopted);
        Progress::ask(self.lock.ours, question, move |ours, said, desk| match said {
            Ok(Some(Renewed { validity, until, .. })) => {
                self.converted(Grant { validity, until, ..grant }, desk)
            }
            Ok(None) => self.lock.not_held(desk),
            Err(error) => unsettled(ours, &error, desk, move |desk| self.shorten(grant, desk)),
        })
    }

    fn converted(self, grant: Grant, desk: &mut Desk) -> Progress {
        if self.lock.outlasts(grant.validity) {
            let ours = self.lock.ours;
            return unsettled_as(ours, TOO_SLOW, desk, move |desk| self.shorten(grant, desk));
        }
        let Converting { lock, is_ours } = self;
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
