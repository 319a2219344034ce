//! The two sets of lock nodes that a proxy's configuration lists during a change.

use super::{
    super::marker::KnownSet,
    begin::begin,
    sets::{LookedAt, NodeSet, sets},
    which::{SetNow, Which, which},
};
use crate::config::LocksConfig;

/// Which set votes, for a proxy that may have missed changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::lock) struct FoundSet {
    pub(in crate::lock) now: SetNow,
    /// Whether `locks.nodes` vote as a later set than the known one: others replaced them, and they replaced those in
    /// turn.
    pub(in crate::lock) is_anew: bool,
}

/// Finds [`FoundSet::is_anew`] for the nodes of a configuration with only one set.
pub(in crate::lock) async fn votes_anew(config: &LocksConfig, known: &KnownSet) -> bool {
    let set = NodeSet::new(config).await;
    let looked = set.look().await;
    set.report(&looked).is_later(known)
}

/// Two sets of nodes, of which one votes.
pub(in crate::lock) struct SetPair {
    from: NodeSet,
    to: NodeSet,
}

impl SetPair {
    /// Prepares the sets of a configuration. Returns `None` if it lists only one, or the change is impossible.
    pub(in crate::lock) async fn new(config: &LocksConfig) -> Option<SetPair> {
        let next = sets(config).ok()?;
        Some(SetPair { from: NodeSet::new(config).await, to: NodeSet::new(&next).await })
    }

    /// Finds out which set votes, and makes the next one begin if that is decided. `known`: the set that the proxy
    /// knows to be `locks.nodes`, if it does.
    pub(in crate::lock) async fn find(&self, known: Option<&KnownSet>) -> FoundSet {
        let (of_from, of_to) = tokio::join!(self.from.look(), self.to.look());
        let is_anew = known.is_some_and(|known| self.from.report(&of_from).is_later(known));
        let now = self.now(of_from, of_to, known).await;
        FoundSet { now, is_anew: is_anew && now == SetNow::Nodes }
    }

    async fn now(&self, of_from: LookedAt, of_to: LookedAt, known: Option<&KnownSet>) -> SetNow {
        let to = self.to.report(&of_to);
        let Which { now, decision } = which(self.from.report(&of_from), to, known);
        let Some(decision) = decision.filter(|_| now == SetNow::Decided) else { return now };
        let are_those = to.are_of(&decision.first, false);
        // The coordinator that decided it may have died.
        let begun = begin(&self.to, of_to, &decision, of_from.survey.longest).await;
        // A list that was edited since may have nodes that know of nothing: they would begin a
        // deployment of their own, beside the one that votes.
        match (are_those, begun) {
            (false, _) => SetNow::Others,
            (true, Ok(_)) => SetNow::NextNodes,
            (true, Err(_)) => SetNow::Decided,
        }
    }
}
