//! Whether a token holds a lock, and with which fence: asked for a client that acts under a lock
//! taken on another connection. Changes nothing on the nodes.
//!
//! **How long.** A quorum of nodes must keep the lock, so what counts is the quorum-th largest of
//! their remaining TTLs, less the time since before they were asked and the drift.
//!
//! **The fence.** No single node is sure to store the grant's own fence. While a token has the lock on a node, only
//! its own attempts write the fence there. But a node whose vote was not waited for may have given it a larger one,
//! if others' failed attempts have left one there. And a node that the second round (`raise.lua`) has not reached may
//! store a smaller one. With too large a fence the data node would refuse the lock's holder, so the largest will not
//! do. The nodes that voted for the grant, a quorum, store at most its fence, and a quorum stores at least that. So
//! the fence lies between two numbers ([`fence_bounds`]). They are equal once all nodes have answered, and nearly
//! always before. If they differ, the proxy waits for the other nodes. If those are away, the smaller number counts:
//! at worst the data node refuses it in favour of a larger one, and no other client is harmed.
//!
//! A LOCK of the same token that most nodes have granted but that was answered NOQUORUM cannot be told from a granted
//! one: its fence counts. A token that was written on the nodes past Lockgate has no fence of its own: it gets that
//! of the previous grant, or is refused if there is none.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use super::{
    Grant, NoQuorum, NotAttached,
    locks::Locks,
    node::nodes::Tally,
    operation::{Kind, Vote},
    quorum::{Decision, Rule, fence_bounds, quorum},
    scripts,
};
use crate::{
    clock::Instant,
    key::{Key, Token},
};

/// The question under way. Dropping it changes nothing.
pub struct Attach {
    locks: Arc<Locks>,
    /// The time before the first node was asked.
    since: Instant,
    tally: Tally,
}

impl Attach {
    /// Asks all nodes whether `token` holds `key`.
    pub(super) fn ask(locks: &Arc<Locks>, key: Key, token: Token) -> Attach {
        let (since, nodes) = (Instant::now(), locks.grants.nodes());
        let request = scripts::attach(nodes.dialect, &key, &token);
        let tally = nodes.ask(Kind::Attach, Rule::Renewal, key, token, nodes.max_ttl, request);
        Attach { locks: locks.clone(), since, tally }
    }

    /// Polls for the two numbers between which the fence of the token's grant lies. `None`: that token
    /// does not hold the lock, or too few nodes store a fence of it.
    pub(super) fn poll_bounds(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<(u64, u64)>, NoQuorum>> {
        loop {
            let all_told = self.tally.rule == Rule::All;
            let decision = ready!(self.tally.poll_decision(cx));
            let votes = self.tally.operation.votes();
            let bounds = fence_bounds(&mut fences(&votes), votes.len());
            return Poll::Ready(match (decision, bounds) {
                (Decision::No, _) => Ok(None),
                (Decision::Yes, Some((least, most))) if least == most || all_told => Ok(bounds),
                (Decision::Yes, _) if all_told => Ok(None),
                (Decision::Yes, _) => {
                    self.tally.rule = Rule::All;
                    continue;
                }
                (Decision::NoQuorum | Decision::Open, _) => {
                    Err(self.tally.nodes.no_quorum(&self.tally.operation.key, &votes))
                }
            });
        }
    }

    /// Returns the answer when a quorum keeps the lock, or `None` if these votes do not settle the fence.
    fn held(&self, all_told: bool) -> Option<Result<Option<Grant>, NotAttached>> {
        let votes = self.tally.operation.votes();
        let mut left = Vec::new();
        for vote in &votes {
            if let Vote::Held { left: millis, .. } = vote {
                left.push(Duration::from_millis((*millis).into()).min(self.tally.nodes.max_ttl));
            }
        }
        let fence = match fence_bounds(&mut fences(&votes), votes.len()) {
            Some((least, most)) if least == most || all_told => least,
            None if all_told => return Some(Err(NotAttached::FenceForgotten)),
            _ => return None,
        };
        debug_assert!(left.len() >= quorum(votes.len()), "a quorum says that it is held");
        left.sort_unstable_by(|a, b| b.cmp(a));
        let left = left.get(quorum(votes.len()) - 1).copied().unwrap_or_default();
        let now = Instant::now();
        let validity = self.tally.nodes.validity(left, self.since, now);
        // A lock without validity left counts as ended.
        let grant = |validity| Grant { fence, claim: None, validity, until: now + validity };
        Some(Ok(validity.map(grant)))
    }
}

/// Returns the fences that nodes store for the token.
fn fences(votes: &[Vote]) -> Vec<u64> {
    let fence = |vote: &Vote| match vote {
        Vote::Held { fence, .. } => u64::try_from(*fence).ok().filter(|fence| *fence > 0),
        _ => None,
    };
    votes.iter().filter_map(fence).collect()
}

impl Future for Attach {
    /// The lock's validity from now on. `None`: that token does not hold the lock.
    type Output = Result<Option<Grant>, NotAttached>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            let all_told = self.tally.rule == Rule::All;
            match ready!(self.tally.poll_decision(cx)) {
                Decision::Yes => match self.held(all_told) {
                    Some(answer) => return Poll::Ready(answer),
                    None => self.tally.rule = Rule::All,
                },
                Decision::No => {
                    self.locks.refusals.freed(&self.tally.operation.key);
                    return Poll::Ready(Ok(None));
                }
                Decision::NoQuorum | Decision::Open => {
                    let votes = self.tally.operation.votes();
                    let error = self.tally.nodes.no_quorum(&self.tally.operation.key, &votes);
                    return Poll::Ready(Err(NotAttached::NoQuorum(error)));
                }
            }
        }
    }
}
