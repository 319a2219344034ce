//! A script of a lock library that takes the first free one of several adopted locks, such as Laravel's `Redis::funnel`.
//!
//! The lock nodes are asked about all locks side by side, and then for those that are free, one after the other in the
//! script's order. Each is asked for as any other adopted lock: what is not granted is undone, and the client is told of
//! one lock at most.

use super::{
    super::{desk::Desk, session_metrics::Outcome},
    Job, Ours, Progress, Question,
    adopted_lock::{OneLock, Otherwise, tell},
    adopted_many::{TWO_KEYS, has_twice, permit_others},
    unsettled::unsettled,
};
use crate::{
    adopt::{
        by_holder::LockReply,
        task::{LockWork, SentBy},
    },
    config::AdoptOptions,
    key::{Key, Token},
    lock::{Holding, NoQuorum, SameToken},
    resp::encode,
};

/// A command that takes the first free one of these locks.
pub(super) struct TakingFirst {
    pub(super) ours: Ours,
    pub(super) sender: SentBy,
    /// In the script's order.
    pub(super) keys: Vec<Key>,
    pub(super) work: LockWork,
    pub(super) options: AdoptOptions,
}

/// What the lock nodes have told about a lock that they may grant.
enum MayBeFree {
    Free,
    Unknown(NoQuorum),
}

impl TakingFirst {
    /// Asks whether the client may, for the keys behind the first, and then about the locks.
    pub(super) fn begin(self, others: &[Vec<u8>], desk: &mut Desk) -> Progress {
        if has_twice(&self.keys) {
            return self.ours.refuse(TWO_KEYS, Outcome::BadRequest, desk);
        }
        match others {
            [] => self.look(),
            _ => permit_others(self.ours, others, |_| self.look(), desk),
        }
    }

    /// Asks who holds the locks.
    fn look(self) -> Progress {
        let question = Question::look_all(self.keys.clone());
        Progress::ask(self, question, TakingFirst::looked)
    }

    /// Takes in who holds each of the locks.
    fn looked(self, said: Vec<Result<Option<Holding>, NoQuorum>>, desk: &mut Desk) -> Progress {
        let token = self.work.token.clone().unwrap_or_else(|| Token::from(b""));
        let mut left = Vec::new();
        for (at, said) in said.into_iter().enumerate() {
            match said {
                Ok(None) => left.push((at, MayBeFree::Free)),
                Err(error) => left.push((at, MayBeFree::Unknown(error))),
                Ok(Some(_)) => {
                    if let Some(key) = self.keys.get(at) {
                        desk.tokens.refused_adopted(key, &token, SameToken::Unknown);
                    }
                }
            }
        }
        left.reverse();
        self.next(left, desk)
    }

    /// Asks for the next lock that may be free. `left`: these, in reverse order.
    fn next(self, mut left: Vec<(usize, MayBeFree)>, desk: &mut Desk) -> Progress {
        let at = match left.pop() {
            None => return tell(self.ours, LockReply::Nil, Outcome::Busy, desk),
            Some((_, MayBeFree::Unknown(error))) => {
                return unsettled(self.ours, &error, desk, |_| self.look());
            }
            Some((at, MayBeFree::Free)) => at,
        };
        let Some(key) = self.keys.get(at).cloned() else { return self.next(left, desk) };
        let mut lock = OneLock::new(self.ours, key, self.work.clone());
        (lock.sender, lock.options) = (self.sender, self.options);
        let name = self.work.first_of.as_deref().unwrap_or_default();
        let mut granted = Vec::new();
        encode::bulk(&mut granted, &[name, (at + 1).to_string().as_bytes()].concat());
        let held = Box::new(|desk: &mut Desk| self.next(left, desk));
        lock.otherwise = Some(Otherwise { granted, held });
        lock.begin(desk)
    }
}

impl Job for TakingFirst {
    fn asks_for(&self) -> Option<Ours> {
        Some(self.ours)
    }
}
