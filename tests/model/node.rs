//! One lock node: what `src/lock/scripts/*.lua` do, line by line.

use super::{
    link::{Answer, Request},
    setup::{Fault, Setup},
};

/// A node's memory and its clock.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Node {
    /// Whose token stands at the lock's key, and for how long still.
    pub(crate) holder: Option<u8>,
    pub(crate) left: u8,
    /// Which of its attempts has taken it; 0: more than one.
    pub(crate) attempt: u8,
    /// The last fence.
    pub(crate) fence: u8,
    /// How much too early its clock ends a TTL.
    pub(crate) fast: u8,
    /// How long it does not vote.
    pub(crate) quarantine: u8,
}

impl Node {
    /// All of it in one number.
    pub(crate) fn packed(&self) -> u64 {
        let holder = self.holder.map_or(0, |holder| holder + 1);
        let Node { left, attempt, fence, fast, quarantine, .. } = *self;
        u64::from_le_bytes([holder, left, attempt, fence, fast, quarantine, 0, 0])
    }

    /// Carries a request out. None: nobody waits for the answer.
    pub(crate) fn carry_out(&mut self, request: Request, setup: &Setup) -> Option<Answer> {
        match request {
            Request::Acquire { by, number, ttl, fence } => {
                let held = self.holder.is_some();
                if held && self.holder != Some(by) {
                    return Some(Answer::No);
                }
                let attempt = if held { 0 } else { number };
                let left = if setup.has(Fault::AgainShortens) { 0 } else { self.left };
                let answer = self.take(by, attempt, ttl, fence, setup);
                self.left = self.left.max(left);
                Some(answer)
            }
            Request::HandOver { from, by, number, ttl, fence } => {
                let given = self.holder == Some(from) || setup.has(Fault::HandOverWithoutCompare);
                if self.holder.is_some() && !given && self.holder != Some(by) {
                    return Some(Answer::No);
                }
                let attempt = if given || self.holder.is_none() { number } else { 0 };
                Some(self.take(by, attempt, ttl, fence, setup))
            }
            Request::Renew { by, ttl, .. } => {
                let held = self.holder.is_some() && setup.has(Fault::RenewWithoutCompare);
                if self.holder != Some(by) && !held {
                    return Some(Answer::No);
                }
                self.left = ttl.saturating_sub(self.fast);
                Some(Answer::Yes(0))
            }
            Request::Raise { by, held: true, .. } if self.holder != Some(by) => Some(Answer::No),
            Request::Raise { fence, .. } => {
                self.fence = self.fence.max(fence);
                Some(Answer::Yes(0))
            }
            Request::Release { by } => {
                if self.holder == Some(by) || setup.has(Fault::ReleaseWithoutCompare) {
                    self.end();
                }
                None
            }
            Request::Undo { by, number } => {
                let own = self.attempt == number || setup.has(Fault::UndoByToken);
                if self.holder == Some(by) && own {
                    self.end();
                }
                None
            }
        }
    }

    fn take(&mut self, by: u8, attempt: u8, ttl: u8, proposed: u8, setup: &Setup) -> Answer {
        let next = if setup.has(Fault::NodesDoNotRaise) { 0 } else { self.fence + 1 };
        self.fence = proposed.max(next);
        (self.holder, self.attempt) = (Some(by), attempt);
        self.left = ttl.saturating_sub(self.fast);
        Answer::Yes(self.fence)
    }

    /// The lock's key is gone. The fence stays.
    fn end(&mut self) {
        (self.holder, self.left, self.attempt) = (None, 0, 0);
    }

    /// One tick later.
    pub(crate) fn tick(&mut self) {
        self.quarantine = self.quarantine.saturating_sub(1);
        self.left = self.left.saturating_sub(1);
        if self.left == 0 {
            self.end();
        }
    }

    /// Starts again, with nothing that it knew.
    pub(crate) fn restart(&mut self, quarantine: u8) {
        *self = Node { fast: self.fast, quarantine, ..Node::default() };
    }
}
