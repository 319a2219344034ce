//! The two sets of lock nodes that a proxy's configuration lists while they are changed.

use super::{
    super::{
        look::SelfReport,
        marker::{KnownSet, Seat},
        seats::Accepted,
    },
    begin::begin,
    sets::{LookedAt, NodeSet, sets},
    which::{SetNow, are_of, decided, set_now},
};
use crate::config::LocksConfig;

/// Which set votes, for somebody who may have missed changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::lock) struct FoundSet {
    pub(in crate::lock) now: SetNow,
    /// Whether `locks.nodes` vote as a later set than the one that is known: they were left for others and
    /// took the place of those again.
    pub(in crate::lock) is_anew: bool,
}

/// As [`FoundSet::is_anew`], of the nodes of a configuration that has one set alone.
pub(in crate::lock) async fn votes_anew(config: &LocksConfig, known: &KnownSet) -> bool {
    let set = NodeSet::new(config).await;
    let looked = set.look().await;
    is_later(&set, &looked, known)
}

/// Whether a set votes, as a later one than the one that is known. All of its nodes must be there, with the
/// seats that they have on the list: where a quorum of them is one of other nodes too, those may vote.
fn is_later(set: &NodeSet, looked: &LookedAt, known: &KnownSet) -> bool {
    let Some(Accepted { deployment: agreed, .. }) = &looked.survey.committed else { return false };
    let has_seat = |(seat, look): (usize, &Option<SelfReport>)| {
        let who = look.as_ref().and_then(SelfReport::identity);
        match &agreed.seats[seat] {
            Seat::Filled(named) | Seat::Waiting(named, _) => who.as_ref() == Some(named),
            Seat::Blank(_) => false,
        }
    };
    known.is_before(agreed)
        && agreed.seats.len() == set.ways.len()
        && looked.looks.iter().enumerate().all(has_seat)
}

/// Two sets of nodes of which one votes.
pub(in crate::lock) struct SetPair {
    from: NodeSet,
    to: NodeSet,
}

impl SetPair {
    /// The sets of a configuration. Returns `None` if it has one alone.
    pub(in crate::lock) async fn new(config: &LocksConfig) -> Option<SetPair> {
        let next = sets(config).ok()?;
        Some(SetPair { from: NodeSet::new(config).await, to: NodeSet::new(&next).await })
    }

    /// Finds out which set votes. `known`: the set that the asker knows to be `locks.nodes`, if it does.
    pub(in crate::lock) async fn find(&self, known: Option<&KnownSet>) -> FoundSet {
        let (of_from, of_to) = tokio::join!(self.from.look(), self.to.look());
        let is_anew = known.is_some_and(|known| is_later(&self.from, &of_from, known));
        let now = self.now(of_from, of_to, known).await;
        FoundSet { now, is_anew: is_anew && now == SetNow::Nodes }
    }

    async fn now(&self, of_from: LookedAt, of_to: LookedAt, known: Option<&KnownSet>) -> SetNow {
        let now = set_now((&self.from, &of_from), (&self.to, &of_to), known);
        if now == SetNow::Decided
            && let Some((first, seal)) = decided(&of_from, &of_to)
        {
            let are_those = are_of(&self.to, &of_to, &first, false);
            // Who has decided it may have died.
            let begun = begin(&self.to, of_to, &first, (seal, of_from.survey.longest)).await;
            // A list that was edited since may have nodes that know of nothing: they would begin a
            // deployment of their own, beside the one that votes.
            return match (are_those, begun) {
                (false, _) => SetNow::Others,
                (true, Ok(_)) => SetNow::NextNodes,
                (true, Err(_)) => SetNow::Decided,
            };
        }
        now
    }
}
