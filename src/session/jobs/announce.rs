//! Announces the fence of a lock that guards need on the data node, before the client is told of the lock. With
//! `guards.replicas`, replicas must have acknowledged the fence by then: WAIT goes in the same packet behind the
//! script, which writes in every case in which the lock can be told.

use std::time::Duration;

use super::{
    super::{
        claims::{Before, Granted, Left},
        desk::Desk,
        planted::{self, PlantedFault},
    },
    Job, Ours, Progress, Question,
    lock::encode_grant,
    undo::Undo,
    unsettled::unsettled,
};
use crate::{
    clock::Instant,
    data::write_refusals::RefusedByData,
    guard::{fences, replicas::Replicas},
    key::{Key, Token},
    lock::{Claim, NoQuorum},
    resp::{encode, expected::Expected},
};

/// Most times that the lock nodes raise a fence beyond one that the data node has seen. A larger one may have been
/// announced meanwhile.
const MAX_ROUNDS: u8 = 3;
/// A fence that the data node has seen is outbid only if it is smaller: the scripts' numbers end at 2^53.
const END: u64 = (1 << 53) - 2;

/// Takes in that the connection has a lock. If guards need the lock, announces its fence on the data node before the
/// client is told: from then on no earlier holder can write. The fence is announced even if the client gets no
/// replies.
pub(super) fn granted(ours: Ours, lock: Granted, answer: Vec<u8>, desk: &mut Desk) -> Progress {
    let undo = lock.is_new.then(|| Undo::new(desk.shared.clone(), &lock));
    if lock.key.is_of_reader() || !desk.is_guard_lock(&lock.key) {
        return ours.answer(answer, undo);
    }
    Announcing::begin(ours, lock, undo, AfterFence::Answer(answer), desk)
}

/// Announces the fence of one of several new locks, which guards need, and goes on with `next`. `undo` gives all of
/// them back; if one of their fences cannot be announced, all are.
pub(super) fn one_of_several(
    ours: Ours,
    lock: Granted,
    undo: Option<Undo>,
    next: impl FnOnce(Option<Undo>, &mut Desk) -> Progress + Send + 'static,
    desk: &mut Desk,
) -> Progress {
    Announcing::begin(ours, lock, undo, AfterFence::Next(Box::new(next)), desk)
}

/// The next step once a fence is announced.
enum AfterFence {
    /// The client is told of its one lock by this reply to LOCK or LOCK.ATTACH.
    Answer(Vec<u8>),
    /// A command about several locks goes on.
    Next(GoOn),
}

/// Takes a command about several locks on, with what gives all of them back.
type GoOn = Box<dyn FnOnce(Option<Undo>, &mut Desk) -> Progress + Send>;

/// A lock that was just granted or attached to, and that the client has not been told of.
struct NewLock {
    key: Key,
    token: Token,
    claim: Option<Claim>,
    fence: u64,
    /// The lock was granted elsewhere, or only got a new claim here.
    attached: bool,
    /// This connection's earlier hold on the lock, which stays if this grant is refused.
    again: Option<Before>,
    /// How long the client of an adopted command will count on the lock.
    least: Option<Duration>,
    /// How often the fence has been raised.
    rounds: u8,
}

/// A lock whose fence is being announced on the data node.
struct Announcing {
    ours: Ours,
    lock: NewLock,
    undo: Option<Undo>,
    after: AfterFence,
    /// Replicas that must acknowledge.
    replicas: Option<Replicas>,
    /// How long the lock was still held when the replicas were asked.
    left: Duration,
    /// The reply to the announcement, while WAIT's is missing.
    said: Vec<u8>,
}

/// A lock whose fence the lock nodes are raising beyond one that the data node has seen, which a proxy with a clock
/// that was ahead has made. Only this lock's fence is raised, and only while the lock is held.
struct Raising {
    announcing: Box<Announcing>,
    claim: Claim,
    seen: u64,
}

impl Announcing {
    fn begin(
        ours: Ours,
        lock: Granted,
        undo: Option<Undo>,
        after: AfterFence,
        desk: &mut Desk,
    ) -> Progress {
        let Granted { key, token, claim, fence, attached, again, least, .. } = lock;
        let lock = NewLock { key, token, claim, fence, attached, again, least, rounds: 0 };
        let replicas = desk.replicas();
        let (said, left) = (Vec::new(), Duration::ZERO);
        Box::new(Announcing { ours, lock, undo, after, replicas, left, said }).tell(desk)
    }

    fn tell(mut self: Box<Self>, desk: &mut Desk) -> Progress {
        let (selected, ttl) = (desk.conn.database, desk.config.locks.fence_ttl);
        let (place, lock) = (desk.fence_place(), &self.lock);
        desk.speak_up();
        desk.ask(Expected::Text, |out| {
            fences::announce(out, place, &lock.key, lock.fence, selected, ttl)
        });
        if let Some(replicas) = self.replicas {
            let left = desk.tokens.left(&self.lock.key, self.lock.fence, Instant::now());
            self.left = left.map_or(Duration::ZERO, |(_, left)| left.duration());
            desk.ask(Expected::Number, |out| replicas.ask(out, Some(self.left)));
        }
        Progress::Wait(self)
    }

    fn outbid(mut self: Box<Self>, claim: Claim, seen: u64, desk: &mut Desk) -> Progress {
        desk.shared.engine.learn_fence(seen);
        self.lock.rounds += 1;
        self.raise(claim, seen)
    }

    fn raise(self: Box<Self>, claim: Claim, seen: u64) -> Progress {
        let (key, token) = (self.lock.key.clone(), self.lock.token.clone());
        let question = Question::raise(key, token, claim, seen + 1);
        Progress::ask(Raising { announcing: self, claim, seen }, question, Raising::raised)
    }

    /// Answers once the data node has taken the fence, with the time that is left: the announcement has taken some of
    /// the lock's time.
    fn announced(mut self: Box<Self>, desk: &mut Desk) -> Progress {
        let NewLock { key, fence, rounds, .. } = &self.lock;
        let Some((token, left)) = desk.tokens.left(key, *fence, Instant::now()) else {
            let error =
                "NOTHELD the lock had run out before the data node took its fence, try again";
            return self.fail(error.as_bytes(), desk);
        };
        let is_too_short = |least| matches!(left, Left::For(left) if left < least);
        if self.lock.least.is_some_and(is_too_short) && !planted::has(PlantedFault::ShortHold) {
            let error =
                "NOQUORUM the data node took the lock's fence too late for this TTL, try again";
            return self.fail(error.as_bytes(), desk);
        }
        let left = match left {
            _ if self.lock.least.is_some() => None,
            Left::For(_) if planted::has(PlantedFault::ValidityOfBefore) => None,
            Left::For(validity) => Some(validity),
            // The answer still has the fence from before it was raised.
            Left::Kept(validity) if *rounds > 0 => Some(validity),
            Left::Kept(_) => None,
        };
        if let (Some(validity), AfterFence::Answer(answer)) = (left, &mut self.after) {
            answer.clear();
            encode_grant(answer, token, *fence, validity);
        }
        desk.tokens.announced(key, *fence);
        match self.after {
            AfterFence::Answer(answer) => self.ours.answer(answer, self.undo),
            AfterFence::Next(next) => next(self.undo, desk),
        }
    }

    /// Refuses a lock under which no write could be made. A lock granted here is given back; an earlier hold that the
    /// client was told of stays.
    fn fail(self: Box<Self>, error: &[u8], desk: &mut Desk) -> Progress {
        let NewLock { key, fence, attached, again, .. } = self.lock;
        match (again, self.undo) {
            (Some(before), _) => desk.tokens.restore(&key, before),
            (None, _) if attached => desk.tokens.forget(&key, fence),
            (None, Some(undo)) => undo.undo(&mut desk.tokens),
            (None, None) => {}
        }
        let mut answer = Vec::new();
        encode::error_bytes(&mut answer, error);
        // A data node has no error NOQUORUM, so this is the proxy's own. A TRYAGAIN may be the data node's.
        match error.starts_with(b"NOQUORUM ") {
            true => self.ours.end_unsettled(answer),
            false => self.ours.answer(answer, None),
        }
    }

    /// Returns the error for a fence that the data node did not take.
    fn why(&self, seen: Option<u64>, reply: &[u8]) -> Vec<u8> {
        let fence = self.lock.fence;
        let fenced = match seen {
            None => {
                let error = fences::read_error(reply);
                return error.unwrap_or(b"ERR the data node did not take the lock's fence".into());
            }
            Some(seen) if self.lock.attached => {
                format!("FENCED the lock was granted again since, with fence {seen} after {fence}")
            }
            Some(seen) if seen >= END => format!(
                "FENCED the data node has seen fence {seen} of this lock, the last there is; \
                 delete its key on the data node (docs/guards.md)"
            ),
            Some(seen) => format!(
                "FENCED the data node has seen fence {seen} of this lock, more than {fence}, try again"
            ),
        };
        fenced.into_bytes()
    }
}

impl Job for Announcing {
    fn reply(mut self: Box<Self>, reply: &[u8], desk: &mut Desk) -> Progress {
        if !desk.owed.is_empty() {
            // If replicas must acknowledge, the last reply is WAIT's.
            if desk.owed.len() == 1 && self.replicas.is_some() {
                self.said = reply.to_vec();
            }
            return Progress::Wait(self);
        }
        desk.hush_again();
        let acknowledged = self.replicas.map(|replicas| (replicas, replicas.read(reply)));
        let said = std::mem::take(&mut self.said);
        let reply = if self.replicas.is_some() { &said[..] } else { reply };
        let seen = fences::read_fence(reply);
        if let Some(seen) = seen
            && fences::is_from_the_future(seen)
            && let Some(guards) = &desk.shared.guards
        {
            desk.shared.metrics.fences_ahead.increment(1);
            guards.tell_of_fence_ahead(desk.name(&self.lock.key), seen);
        }
        match (seen, self.lock.claim) {
            (Some(seen), _) if seen <= self.lock.fence => match acknowledged {
                Some((replicas, Err(why))) if !planted::has(PlantedFault::NoReplicas) => {
                    desk.shared.lacks_replicas();
                    let left = Some(self.left);
                    self.fail(&replicas.refuse_fence(&why, left), desk)
                }
                _ => {
                    if let Some(guards) = &desk.shared.guards {
                        guards.note_replicas();
                    }
                    self.announced(desk)
                }
            },
            (Some(seen), Some(claim))
                if seen < END && !self.lock.attached && self.lock.rounds < MAX_ROUNDS =>
            {
                self.outbid(claim, seen, desk)
            }
            (seen, _) => {
                let error = self.why(seen, reply);
                desk.shared.metrics.refusals.count(RefusedByData::Lock, &error);
                self.fail(&error, desk)
            }
        }
    }

    fn ours(&self) -> Option<Ours> {
        Some(self.ours)
    }

    fn announces(&self, key: &Key) -> bool {
        self.lock.key == *key || self.undo.as_ref().is_some_and(|undo| undo.is_about(key))
    }

    fn undo(self: Box<Self>) -> Option<Undo> {
        self.undo
    }
}

impl Raising {
    /// Takes in the fence that counts on the lock nodes now.
    fn raised(self, said: Result<Option<u64>, NoQuorum>, desk: &mut Desk) -> Progress {
        let Raising { mut announcing, claim, seen } = self;
        let error = match said {
            Ok(Some(fence)) if fence > seen => {
                let lock = &mut announcing.lock;
                desk.tokens.note_raised(&lock.key, lock.fence, fence);
                lock.fence = fence;
                if let Some(undo) = &mut announcing.undo {
                    undo.note_raised(&lock.key, fence);
                }
                return announcing.tell(desk);
            }
            Ok(_) => "NOTHELD the lock had run out before its fence was raised, try again".into(),
            Err(error) if announcing.ours.may_ask_again() => {
                let ours = announcing.ours;
                let again = move |_: &mut Desk| announcing.raise(claim, seen);
                return unsettled(ours, &error, desk, again);
            }
            Err(error) => error.told(),
        };
        announcing.fail(error.as_bytes(), desk)
    }
}

impl Job for Raising {
    fn needs_replies(&self) -> bool {
        false
    }

    fn ours(&self) -> Option<Ours> {
        Some(self.announcing.ours)
    }

    fn announces(&self, key: &Key) -> bool {
        self.announcing.announces(key)
    }

    fn undo(self: Box<Self>) -> Option<Undo> {
        self.announcing.undo
    }
}
