//! One lock node, which does line by line what `src/lock/scripts/*.lua` do.

use super::{
    link::{Answer, Request, Whose},
    setup::{Fault, Setup},
};

/// A node's memory and its clock.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Node {
    /// The token at the lock's key, and the rest of its TTL.
    pub(crate) holder: Option<u8>,
    pub(crate) left: u8,
    /// The claim of the grant that has it. (On a real node it outlives the lock, without meaning.)
    pub(crate) claim: u8,
    /// The last fence, beside the lock.
    pub(crate) fence: u8,
    /// How much too early its clock ends a TTL.
    pub(crate) fast: u8,
    /// For how long it still grants nothing.
    pub(crate) quarantine: u8,
    /// The claim, plus 1, of the grant that another proxy's UNLOCK has ended here.
    pub(crate) ended: u8,
}

impl Node {
    /// Packs the node into one number.
    pub(crate) fn packed(&self) -> u64 {
        let holder = self.holder.map_or(0, |holder| holder + 1);
        let Node { left, claim, fence, fast, quarantine, ended, .. } = *self;
        u64::from_le_bytes([holder, left, claim, fence, fast, quarantine, ended, 0])
    }

    fn is_held_by(&self, token: u8, claim: u8) -> bool {
        self.holder == Some(token) && self.claim == claim
    }

    /// Carries a request out. Returns `None` if no operation waits for the answer.
    pub(crate) fn carry_out(&mut self, request: Request, setup: &Setup) -> Option<Answer> {
        let has = |fault| setup.has(fault);
        match request {
            Request::Acquire { token, claim, again, ttl, fence, .. } => {
                let own = again && self.is_held_by(token, claim);
                let anybodys = has(Fault::AgainToAnybody) && self.holder == Some(token);
                let free = self.holder.is_none() && (!again || has(Fault::AgainTakesFree));
                if !free && !own && !anybodys {
                    return Some(Answer::No);
                }
                let left = if has(Fault::AgainShortens) { 0 } else { self.left };
                let answer = self.take(token, claim, ttl, fence, setup);
                self.left = self.left.max(left);
                Some(answer)
            }
            Request::HandOver { from, giver, token, claim, ttl, fence, .. } => {
                let given = self.is_held_by(from, giver)
                    || has(Fault::HandOverWithoutCompare)
                    || has(Fault::HandOverByToken) && self.holder == Some(from)
                    || has(Fault::HandOverToToken) && self.holder == Some(token);
                if self.holder.is_some() && !given {
                    return Some(Answer::No);
                }
                Some(self.take(token, claim, ttl, fence, setup))
            }
            Request::Renew { token, claim, ttl, .. } => {
                let held = self.holder.is_some() && has(Fault::RenewWithoutCompare);
                if !self.is_held_by(token, claim) && !held {
                    return Some(Answer::No);
                }
                self.left = ttl.saturating_sub(self.fast);
                Some(Answer::Yes(0))
            }
            Request::Heal { token, claim, ttl, fence, .. } => {
                let ended = self.ended == claim + 1 && !has(Fault::HealEnded);
                let free = self.holder.is_none() && !ended;
                if free {
                    self.fence = self.fence.max(fence);
                    (self.holder, self.claim) = (Some(token), claim);
                    self.left = ttl.saturating_sub(self.fast);
                }
                has(Fault::HealCounts).then_some(if free { Answer::Yes(0) } else { Answer::No })
            }
            Request::Raise { token, claim, fence, .. } => {
                let by_token = has(Fault::RaiseByToken) && self.holder == Some(token);
                if !self.is_held_by(token, claim) && !by_token && !has(Fault::RaiseAnywhere) {
                    return Some(Answer::No);
                }
                self.fence = self.fence.max(fence);
                Some(Answer::Yes(0))
            }
            Request::Release { token, whose, number, .. } => {
                let meant = match whose {
                    Whose::Claim(claim) => self.claim == claim || has(Fault::ReleaseByToken),
                    Whose::Elsewhere(claim) => self.claim == claim,
                    Whose::Token => true,
                };
                if let Whose::Elsewhere(claim) = whose {
                    self.ended = claim + 1;
                }
                let held = self.holder == Some(token) && meant || has(Fault::ReleaseWithoutCompare);
                if held {
                    self.end();
                }
                (number > 0).then_some(if held { Answer::Yes(0) } else { Answer::No })
            }
            Request::Look { token, .. } => {
                let held = self.holder == Some(token);
                Some(if held { Answer::Yes(self.claim) } else { Answer::No })
            }
            Request::Undo { token, claim } => {
                let by_token = has(Fault::UndoByToken) && self.holder == Some(token);
                if self.is_held_by(token, claim) || by_token {
                    self.end();
                }
                None
            }
        }
    }

    fn take(&mut self, token: u8, claim: u8, ttl: u8, proposed: u8, setup: &Setup) -> Answer {
        let next = if setup.has(Fault::NodesDoNotRaise) { 0 } else { self.fence + 1 };
        self.fence = proposed.max(next);
        (self.holder, self.claim) = (Some(token), claim);
        self.left = ttl.saturating_sub(self.fast);
        Answer::Yes(self.fence)
    }

    /// Removes the lock's key. The fence stays.
    fn end(&mut self) {
        (self.holder, self.left, self.claim) = (None, 0, 0);
    }

    /// Lets one tick pass.
    pub(crate) fn tick(&mut self) {
        self.quarantine = self.quarantine.saturating_sub(1);
        self.left = self.left.saturating_sub(1);
        if self.left == 0 {
            self.end();
        }
    }

    /// Starts the node again, without its memory.
    pub(crate) fn restart(&mut self, quarantine: u8) {
        *self = Node { fast: self.fast, quarantine, ..Node::default() };
    }
}
