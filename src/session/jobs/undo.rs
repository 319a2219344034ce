//! Gives back a lock whose LOCK was granted and is not answered yet, so that no client counts on it.

use std::sync::Arc;

use super::super::{
    claims::{Granted, Tokens},
    shared::Shared,
};
use crate::{
    key::{Key, Token},
    lock::Claim,
};

/// A lock that was granted, and is given back when this is dropped.
pub(in crate::session) struct Undo {
    lock: Option<(Arc<Shared>, Key, Token, Option<Claim>)>,
    fence: u64,
    /// Further locks that are given back with it.
    others: Vec<Undo>,
}

impl Undo {
    pub(in crate::session) fn new(shared: Arc<Shared>, lock: &Granted) -> Undo {
        let Granted { key, token, claim, fence, .. } = lock;
        Undo {
            lock: Some((shared, key.clone(), token.clone(), *claim)),
            fence: *fence,
            others: Vec::new(),
        }
    }

    /// Adds further locks that are given back with these.
    pub(super) fn and(mut self, other: Undo) -> Undo {
        self.others.push(other);
        self
    }

    /// Notes that the fence of one of the locks has been raised.
    pub(super) fn note_raised(&mut self, key: &Key, fence: u64) {
        if self.has(key) {
            self.fence = fence;
        }
        self.others.iter_mut().for_each(|other| other.note_raised(key, fence));
    }

    /// Whether this lock is given back, or among those that are.
    pub(super) fn is_about(&self, key: &Key) -> bool {
        self.has(key) || self.others.iter().any(|other| other.is_about(key))
    }

    fn has(&self, key: &Key) -> bool {
        self.lock.as_ref().is_some_and(|(_, known, ..)| known == key)
    }

    /// Keeps the lock, as its client is told of it.
    pub(in crate::session) fn disarm(mut self) {
        self.lock = None;
        std::mem::take(&mut self.others).into_iter().for_each(Undo::disarm);
    }

    /// Gives the lock back and forgets it: its client will never be told.
    pub(in crate::session) fn undo(mut self, tokens: &mut Tokens) {
        std::mem::take(&mut self.others).into_iter().for_each(|other| other.undo(tokens));
        if let Some((_, key, ..)) = &self.lock {
            tokens.undo(key, self.fence);
        }
    }
}

impl Drop for Undo {
    fn drop(&mut self) {
        if let Some((shared, key, token, claim)) = self.lock.take() {
            shared.give_back(key, token, claim);
        }
    }
}
