//! Which token holds a lock now, and for how long: asked for a client that names no token. Changes
//! nothing on the nodes.
//!
//! **Who.** The holder is the token that a quorum of nodes has. The lock is free once no token can be on a quorum any
//! more, even if all nodes that are silent or missing had it. If the answers settle neither, the question fails:
//! nothing is guessed. "Free" does not count from a node that waits to be admitted or whose clock has jumped forward,
//! just as its grants do not: it may have lost locks that are still held.
//!
//! **By which grant.** Blind commands end only grants to adopted commands, so the claim counts too. Where a quorum
//! names one token, but no one claim, all nodes are waited for.
//!
//! **How long.** A quorum of nodes must keep the lock, so what counts is the quorum-th largest of
//! their remaining TTLs, less the time since before they were asked and the drift, as in
//! [`attach`](super::attach).

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use super::{
    Claim, Holding, NoQuorum,
    locks::Locks,
    node::nodes::{Nodes, Tally},
    operation::{Kind, NamedLock, Vote},
    quorum::{Decision, Rule, quorum},
    scripts,
};
use crate::{
    clock::Instant,
    key::{Key, Token},
};

/// The longest token that look.lua returns, in bytes.
const MOST_TOLD: usize = 32_768;

/// The question under way. Dropping it changes nothing.
pub struct LookUp {
    /// Set if clients are told of the answer.
    locks: Option<Arc<Locks>>,
    /// The time before the first node was asked.
    since: Instant,
    tally: Tally,
}

impl LookUp {
    /// Asks all nodes which token holds `key`.
    pub(super) fn ask(nodes: &Arc<Nodes>, key: Key) -> LookUp {
        let request = scripts::look(nodes.dialect, &key);
        LookUp::begin(nodes, key, request)
    }

    /// Asks all nodes by which grant `token` is a reader of `key`. Several readers with the token are told as a holder
    /// without one.
    pub(super) fn ask_reader(nodes: &Arc<Nodes>, key: Key, token: &Token) -> LookUp {
        let request = scripts::shared::look(nodes.dialect, &key, token);
        LookUp::begin(nodes, key, request)
    }

    fn begin(nodes: &Arc<Nodes>, key: Key, request: Vec<u8>) -> LookUp {
        let (since, nobody) = (Instant::now(), Token::from(b""));
        // A node that names a holder counts as a yes if most nodes name that one, and as a no otherwise.
        let tally = nodes.ask(Kind::Look, Rule::Renewal, key, nobody, nodes.max_ttl, request);
        LookUp { locks: None, since, tally }
    }

    /// Notes that clients are told of the answer: a lock that is said to be free is then not refused from memory.
    pub(super) fn told(self, locks: &Arc<Locks>) -> LookUp {
        LookUp { locks: Some(locks.clone()), ..self }
    }

    /// Notes that the lock may be free.
    fn note_free(&self) {
        if let Some(locks) = &self.locks {
            locks.refusals.freed(&self.tally.operation.key);
        }
    }

    /// Polls for the claim by which a quorum names `token` as the holder. `None`: so many nodes deny
    /// that the token has the lock that the others are no quorum.
    ///
    /// A claim that fewer nodes name must not be released: it may be an attempt under way, which would still count
    /// the votes of the nodes that have released it.
    pub(super) fn poll_claim_of(
        &mut self,
        token: &Token,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<Claim>, NoQuorum>> {
        loop {
            ready!(self.tally.poll_decision(cx));
            let (named, votes) = (self.tally.operation.holders(), self.tally.operation.votes());
            let enough = quorum(votes.len());
            // For a token that is too long, nodes answer with an empty one and the claim.
            let token: &[u8] = if token.len() > MOST_TOLD { b"" } else { token };
            let claims =
                || named.iter().filter(|(holder, _)| **holder == *token).map(|(_, at)| at.claim);
            let by = |claim: i64| claims().filter(|other| *other == claim).count();
            if let Some(claim) = claims().find(|claim| by(*claim) >= enough) {
                return Poll::Ready(Ok(Some(Claim::told(claim))));
            }
            let free = votes.iter().filter(|vote| matches!(vote, Vote::No(_))).count();
            let others = free + named.len() - claims().count();
            if others > votes.len() - enough {
                self.note_free();
                return Poll::Ready(Ok(None));
            }
            if self.tally.rule == Rule::All {
                return Poll::Ready(Err(self
                    .tally
                    .nodes
                    .no_quorum(&self.tally.operation.key, &votes)));
            }
            self.tally.rule = Rule::All;
        }
    }

    /// Returns the holder that a quorum names.
    fn held(&self) -> Option<Holding> {
        let Tally { nodes, operation, .. } = &self.tally;
        let (token, left, claim) = named_by_quorum(operation.holders(), operation.votes().len())?;
        let validity = |left| nodes.validity(left, self.since, Instant::now());
        // The keeper of an endless lock renews it for as long as its connection lives.
        let left = left.filter(|_| !claim.is_some_and(Claim::is_endless));
        Some(Holding { token, left: left.map(|left| validity(left).unwrap_or_default()), claim })
    }
}

impl Future for LookUp {
    /// `None`: the lock is free.
    type Output = Result<Option<Holding>, NoQuorum>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let decision = ready!(self.tally.poll_decision(cx));
        let Tally { nodes, operation, rule, .. } = &mut self.tally;
        let failed = || Err(nodes.no_quorum(&operation.key, &operation.votes()));
        if decision == Decision::Yes {
            // If one node still has an older grant of the same token, the first answers may name two claims, though a
            // quorum has one of them.
            let (named, votes) = (operation.holders(), operation.votes());
            if are_of_two_grants(&named, votes.len()) {
                if *rule != Rule::All {
                    *rule = Rule::All;
                    return self.poll(cx);
                }
                if votes.iter().any(|vote| matches!(vote, Vote::Missing(_))) {
                    return Poll::Ready(failed());
                }
            }
            let held = self.held();
            debug_assert!(held.is_some(), "a quorum names one holder");
            return Poll::Ready(Ok(held));
        }
        Poll::Ready(match decision {
            Decision::No => {
                self.note_free();
                Ok(None)
            }
            Decision::Yes | Decision::NoQuorum | Decision::Open => failed(),
        })
    }
}

/// Whether a quorum of `nodes` nodes names one holder, but no quorum names one grant to it.
fn are_of_two_grants(named: &[(Token, NamedLock)], nodes: usize) -> bool {
    let alike = |token: &Token, claim: Option<i64>| {
        let is_alike = |(other, lock): &&(Token, NamedLock)| {
            other == token && claim.is_none_or(|claim| claim == lock.claim)
        };
        named.iter().filter(is_alike).count() >= quorum(nodes)
    };
    named.iter().any(|(token, _)| alike(token, None))
        && !named.iter().any(|(token, lock)| alike(token, Some(lock.claim)))
}

/// Returns the holder that a quorum of `nodes` nodes names; how long a quorum keeps its lock (`None`: without end);
/// and the grant's claim, if a quorum names one.
fn named_by_quorum(
    named: Vec<(Token, NamedLock)>,
    nodes: usize,
) -> Option<(Token, Option<Duration>, Option<Claim>)> {
    let by = |token: &Token| named.iter().filter(|(other, _)| other == token).count();
    let holder = named.iter().map(|(token, _)| token).find(|token| by(token) >= quorum(nodes))?;
    let holder = holder.clone();
    let with_holder: Vec<NamedLock> =
        named.into_iter().filter(|(token, _)| *token == holder).map(|(_, lock)| lock).collect();
    let by_claim = |claim: i64| with_holder.iter().filter(|lock| lock.claim == claim).count();
    let claim = with_holder.iter().find(|lock| by_claim(lock.claim) >= quorum(nodes));
    let claim = claim.and_then(|lock| Claim::read(lock.claim));
    let mut left: Vec<Duration> = with_holder
        .iter()
        .map(|lock| match lock.left {
            -1 => Duration::MAX,
            millis => Duration::from_millis(u64::try_from(millis).unwrap_or_default()),
        })
        .collect();
    left.sort_unstable_by(|a, b| b.cmp(a));
    let left = left.get(quorum(nodes) - 1).copied();
    Some((holder, left.filter(|left| *left < Duration::MAX), claim))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_token_may_have_two_grants() {
        let are_two = |all: &[(&str, i64)]| {
            let lock = |claim| NamedLock { left: 9, claim };
            let named: Vec<(Token, NamedLock)> =
                all.iter().map(|(token, claim)| (Token::from(token), lock(*claim))).collect();
            are_of_two_grants(&named, 3)
        };
        assert!(are_two(&[("a", 1), ("a", 2)]));
        assert!(!are_two(&[("a", 1), ("a", 2), ("a", 2)]));
        assert!(!are_two(&[("a", 2), ("b", 1), ("a", 2)]));
        assert!(!are_two(&[("a", 1), ("b", 2)]), "nobody has a quorum");
        assert!(!are_two(&[("a", 0), ("a", 0)]));
        assert!(!are_two(&[]));
    }

    #[test]
    fn the_holder_is_told_for_as_long_as_a_quorum_keeps_its_lock() {
        let named = |all: &[(&str, i64)]| {
            let lock = |left| NamedLock { left, claim: 0 };
            let all = all.iter().map(|(token, left)| (Token::from(token), lock(*left))).collect();
            let (token, left, _) = named_by_quorum(all, 5)?;
            Some((String::from_utf8_lossy(&token).into_owned(), left.map(|left| left.as_millis())))
        };
        let by_a = |left| Some(("a".to_owned(), left));
        assert_eq!(named(&[("a", 10), ("a", 30), ("a", 20)]), by_a(Some(10)));
        assert_eq!(named(&[("a", 10), ("a", 30), ("a", 20), ("a", 40)]), by_a(Some(20)));
        assert_eq!(named(&[("b", 99), ("a", 7), ("a", 9), ("b", 99), ("a", 8)]), by_a(Some(7)));
        assert_eq!(named(&[("a", -1), ("a", 5), ("a", -1)]), by_a(Some(5)));
        assert_eq!(named(&[("a", -1), ("a", 5), ("a", -1), ("a", -1)]), by_a(None));
        assert_eq!(named(&[("a", -2), ("a", 5), ("a", 6)]), by_a(Some(0)), "it has just ended");
        assert_eq!(named(&[("a", 9), ("a", 9), ("b", 9), ("b", 9), ("c", 9)]), None);
        assert_eq!(named(&[]), None);
    }
}
