//! One renewal that a client asks for.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use super::{
    Alarm, Claim, NoQuorum, Release, Renewed,
    grants::Grants,
    keep::{lose::lose, watch::Watch},
    lock_metrics::LostReason,
    locks::Locks,
    node::nodes::Tally,
    operation::{Kind, Vote},
    quorum::{Decision, Rule, fence_bounds},
    scripts,
};
use crate::{
    clock::Instant,
    key::{Key, Token},
};

/// A RENEW under way. Dropping it does not undo what it has renewed.
pub struct Renew {
    locks: Arc<Locks>,
    since: Instant,
    ttl: Duration,
    claim: Option<Claim>,
    /// Whether the asker has named no grant, and the one that this proxy knows is asked for: that may have ended, and
    /// another proxy may have made one since.
    unsure: bool,
    tally: Tally,
    /// Set for a session lock.
    watch: Option<Arc<Watch>>,
}

impl Renew {
    /// Gives `key` a fresh TTL on every node where the grant with this claim holds it. Without a claim, renews the
    /// grant that `token` has: the one that this proxy knows or, if that has ended, any other.
    pub(super) fn ask(
        locks: &Arc<Locks>,
        key: Key,
        token: Token,
        ttl: Duration,
        claim: Option<Claim>,
    ) -> Renew {
        let since = Instant::now();
        let Grants { holders, schedule, .. } = &*locks.grants;
        let nodes = locks.grants.nodes();
        let watch = holders.watched(&key, &token);
        if let Some(watch) = &watch {
            schedule.asked(watch, ttl, nodes.drift_factor);
        }
        let known = claim.is_none().then(|| holders.claim(&key, &token)).flatten();
        let claim = claim.or_else(|| Some(known?.0));
        let request = match claim.filter(|_| key.is_of_reader()) {
            Some(claim) => scripts::shared::renew(nodes.dialect, &key, &token, ttl, claim),
            None => scripts::renew(nodes.dialect, &key, &token, ttl, claim, nodes.fence_ttl),
        };
        let valid = claim.filter(|claim| {
            nodes.wait_alone(&key) && holders.is_valid(&key, &token, *claim, nodes.most_drift())
        });
        if let Some(claim) = valid {
            locks.grants.put_back((&nodes, std::iter::once(0)), (&key, &token, claim));
        }
        let operation = nodes.operation(Kind::Renew, key, token, ttl, request);
        let operation = if valid.is_some() { operation.vouched() } else { operation };
        let tally = nodes.await_votes(nodes.submit(operation), Rule::Renewal, ttl);
        let unsure = known.is_some() && !tally.operation.key.is_of_reader();
        Renew { locks: locks.clone(), since, ttl, claim, unsure, tally, watch }
    }

    /// Takes in that the nodes deny the grant. The holder is told that it holds nothing, so its lock must not stay on
    /// any node. Without a claim it stays, as a lock that is still there may belong to another grant.
    fn give_up(&self) {
        let operation = &self.tally.operation;
        self.locks.refusals.freed(&operation.key);
        if self.claim.is_some() {
            let (key, token) = (operation.key.clone(), operation.token.clone());
            drop(Release::ask(&self.locks, key, token, self.claim));
        }
    }

    /// Asks again, for any grant of the token.
    fn ask_for_any(&mut self) {
        let nodes = self.locks.grants.nodes();
        let (key, token) = (self.tally.operation.key.clone(), self.tally.operation.token.clone());
        let request = scripts::renew(nodes.dialect, &key, &token, self.ttl, None, nodes.fence_ttl);
        let operation = nodes.operation(Kind::Renew, key, token, self.ttl, request);
        self.since = Instant::now();
        self.tally = nodes.await_votes(nodes.submit(operation), Rule::Renewal, self.ttl);
        (self.claim, self.unsure, self.watch) = (None, false, None);
    }

    /// Returns the operation's timer, for reuse.
    pub(crate) fn alarm(&mut self) -> &mut Alarm {
        &mut self.tally.alarm
    }

    /// Returns the grant that a quorum of nodes has renewed, and its fence.
    fn grant(&self, votes: &[Vote]) -> Option<(Claim, u64)> {
        let told: Vec<(Claim, u64)> = votes
            .iter()
            .filter_map(|vote| match vote {
                Vote::Kept { fence, claim } => {
                    Some((Claim::read(*claim)?, u64::try_from(*fence).ok()?))
                }
                _ => None,
            })
            .collect();
        let by = |claim: Claim| told.iter().filter(move |(other, _)| *other == claim);
        let claim = told.iter().map(|(claim, _)| *claim).max_by_key(|claim| by(*claim).count())?;
        let mut fences: Vec<u64> = by(claim).map(|(_, fence)| *fence).collect();
        Some((claim, fence_bounds(&mut fences, votes.len())?.0))
    }

    /// Whether a quorum of nodes has renewed one and the same grant. Only then does the lock last: other grants of
    /// the token on some nodes may be about to be released.
    fn is_one_grant(&self, votes: &[Vote]) -> bool {
        let told = || {
            votes.iter().filter_map(|vote| match vote {
                Vote::Kept { claim, .. } => Some(*claim),
                _ => None,
            })
        };
        let by = |claim: i64| told().filter(|other| *other == claim).count();
        self.claim.is_some() || told().any(|claim| by(claim) >= self.tally.nodes.quorum())
    }

    /// Limits a renewal before its holder is told of it: a session lock's validity ends at `locks.max_hold`. Returns
    /// `None` if that time has come.
    fn told(&self, renewed: Renewed) -> Option<Renewed> {
        debug_assert!(
            renewed.until <= self.since + self.ttl,
            "a validity ends before its lock does"
        );
        let Some(watch) = &self.watch else { return Some(renewed) };
        self.locks.grants.schedule.granted(watch, self.ttl, renewed.until);
        let validity = watch.within_hold(renewed.validity);
        if validity < Duration::from_millis(1) {
            lose(&self.locks, watch, LostReason::MaxHold);
            return None;
        }
        let until = renewed.until - (renewed.validity - validity);
        Some(Renewed { validity, until, ..renewed })
    }
}

impl Future for Renew {
    /// The new validity. `None`: that token does not hold the lock.
    type Output = Result<Option<Renewed>, NoQuorum>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut decision = ready!(self.tally.poll_decision(cx));
        if decision == Decision::No && self.unsure {
            self.give_up();
            self.ask_for_any();
            decision = ready!(self.tally.poll_decision(cx));
        }
        if decision == Decision::Yes && !self.is_one_grant(&self.tally.operation.votes()) {
            // The nodes that have not answered may have the grant.
            self.tally.rule = Rule::All;
            ready!(self.tally.poll_decision(cx));
            if !self.is_one_grant(&self.tally.operation.votes()) {
                decision = Decision::NoQuorum;
            }
        }
        let operation = &self.tally.operation;
        let votes = operation.votes();
        Poll::Ready(match decision {
            Decision::Yes => {
                debug_assert!(
                    votes.iter().filter(|vote| matches!(vote, Vote::Kept { .. })).count()
                        >= self.tally.nodes.quorum(),
                    "a quorum has renewed it"
                );
                let grant = self.grant(&votes);
                if let Some(claim) = self.claim.or_else(|| grant.map(|(claim, _)| claim)) {
                    self.locks.grants.holders.renewed(&operation.key, claim, self.since + self.ttl);
                }
                let now = Instant::now();
                match self.tally.nodes.validity(self.ttl, self.since, now) {
                    Some(validity) => {
                        if let Some(claim) = self.claim {
                            let grants = &self.locks.grants;
                            grants.heal_once_told(&self.tally.nodes, operation, claim, self.ttl);
                        }
                        Ok(self.told(Renewed { validity, until: now + validity, grant }))
                    }
                    None => Err(self.tally.nodes.no_quorum(&self.tally.operation.key, &votes)),
                }
            }
            Decision::No => {
                self.give_up();
                Ok(None)
            }
            Decision::NoQuorum | Decision::Open => {
                Err(self.tally.nodes.no_quorum(&self.tally.operation.key, &votes))
            }
        })
    }
}
