//! Which of two sets of lock nodes votes, as far as their nodes tell.

use std::{cmp::Ordering, fmt};

use super::{
    super::{
        look::SelfReport,
        marker::{Deployment, KnownSet, NextSet, Phase},
        seats::Accepted,
    },
    sets::{LookedAt, NodeSet},
};

/// Which set of lock nodes votes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetNow {
    /// `locks.nodes`.
    Nodes,
    /// None: `locks.nodes` are sealed.
    Sealed,
    /// None: it is decided that `locks.next_nodes` do, and they have not begun.
    Decided,
    /// `locks.next_nodes`.
    NextNodes,
    /// It is decided that others than `locks.next_nodes` do.
    Others,
    /// Too few nodes answer to tell.
    Unknown,
}

impl fmt::Display for SetNow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SetNow::Nodes => "locks.nodes vote",
            SetNow::Sealed => {
                "locks.nodes are sealed, and nobody votes: run lockgate nodes --change, or --back-out"
            }
            SetNow::Decided => {
                "it is decided that locks.next_nodes vote, and they have not begun: run lockgate nodes --change"
            }
            SetNow::NextNodes => "locks.next_nodes vote",
            SetNow::Others => {
                "it is decided that other nodes than locks.next_nodes vote, or too few of these have kept their \
                 memory since: list those of the change and run lockgate nodes --change, or list those that vote \
                 now as locks.nodes"
            }
            SetNow::Unknown => "too few nodes answer, and have kept their memory, to tell which set votes",
        })
    }
}

/// The agreement of the next set that was decided upon. Returns `None` if none was, as far as these
/// nodes tell.
pub(super) fn decided(of_from: &LookedAt, of_to: &LookedAt) -> Option<(Deployment, u64)> {
    let agreed = of_from.survey.committed.as_ref().map(|accepted| &accepted.deployment);
    if let Some(left) = agreed
        && let Phase::Left(seal, successor) = &left.phase
    {
        return Some((first_of(left, successor), *seal));
    }
    // Nothing of the next set is written before it is decided upon.
    let deployments = |looked: &LookedAt| -> Vec<Deployment> {
        let markers = looked.looks.iter().flatten().filter_map(SelfReport::marker);
        markers.map(|marker| marker.deployment.clone()).collect()
    };
    let before = deployments(of_from);
    let seal_before = |next: &Deployment| {
        let is_before = |it: &&Deployment| it.id == next.id && it.set + 1 == next.set;
        let last = before.iter().filter(is_before).max_by_key(|it| it.epoch)?;
        if last.epoch >= next.epoch {
            // It could not begin, and what it followed was sealed again.
            return None;
        }
        match last.phase {
            Phase::Stands => None,
            Phase::Joint(seal) | Phase::Left(seal, _) => Some(seal),
        }
    };
    let all = [deployments(of_to), before.clone()].concat();
    let begun = all.into_iter().filter(Deployment::stands);
    let begun = begun.filter_map(|next| seal_before(&next).map(|seal| (next, seal)));
    begun.max_by_key(|(next, _)| next.epoch)
}

/// Whether a quorum of the next set has begun.
pub(super) fn has_begun(of_to: &LookedAt, first: &Deployment) -> bool {
    of_to.survey.committed.as_ref().is_some_and(|Accepted { deployment: it, .. }| {
        it.id == first.id && it.set == first.set && it.epoch >= first.epoch
    })
}

pub(super) fn set_now(
    (from, of_from): (&NodeSet, &LookedAt),
    (to, of_to): (&NodeSet, &LookedAt),
    known: Option<&KnownSet>,
) -> SetNow {
    let agreed = of_from.survey.committed.as_ref().map(|accepted| &accepted.deployment);
    let theirs = of_to.survey.committed.as_ref().map(|accepted| &accepted.deployment);
    // Who has missed changes knows another deployment by its id alone.
    let is_known = |theirs: &Deployment| known.is_none_or(|known| known.id == theirs.id);
    let theirs = theirs.filter(|theirs| theirs.stands() && theirs.set > 0 && is_known(theirs));
    // Nodes before that were left may have been given seats anew, as they have forgotten it; and more sets
    // than one may have followed, to which some of these nodes belong.
    let follows = |theirs: &Deployment| match (agreed, known) {
        (Some(agreed), _) if agreed.set >= theirs.set => false,
        (Some(agreed), None) => agreed.id == theirs.id,
        (None, None) => false,
        (_, Some(known)) => theirs.set > known.set,
    };
    if theirs.is_some_and(follows) {
        return SetNow::NextNodes;
    }
    if let Some((first, _)) = decided(of_from, of_to) {
        return match has_begun(of_to, &first) {
            true => SetNow::NextNodes,
            false if first.shape != to.voters.shape() => SetNow::Others,
            false => SetNow::Decided,
        };
    }
    match agreed {
        // Nodes of both sets: it is the one whose nodes it names.
        Some(agreed) if theirs == Some(agreed) => {
            let of_both = (to.matches(agreed, &of_to.looks), from.matches(agreed, &of_from.looks));
            // With a seat that nobody has yet, both lists may have all others.
            let has_changed = match known {
                Some(known) => known.set < agreed.set,
                None => has_left(from, of_from, agreed) && !has_left(to, of_to, agreed),
            };
            match of_both.0.cmp(&of_both.1) {
                Ordering::Greater => SetNow::NextNodes,
                Ordering::Equal if has_changed => SetNow::NextNodes,
                Ordering::Equal | Ordering::Less => SetNow::Nodes,
            }
        }
        Some(Deployment { phase: Phase::Stands, .. }) => SetNow::Nodes,
        Some(_) => SetNow::Sealed,
        // Who knows its set was told of a later one above: with nodes of both sets these may be its own.
        None if theirs.is_some() && known.is_none() => SetNow::NextNodes,
        None => SetNow::Unknown,
    }
}

/// Whether a node of this list is no member of `agreed`, but was one of a set before that.
fn has_left(set: &NodeSet, looked: &LookedAt, agreed: &Deployment) -> bool {
    let is_former = |seat: usize| {
        let marker = looked.looks[seat].as_ref().and_then(SelfReport::marker);
        marker.is_some_and(|marker| {
            marker.deployment.id == agreed.id && marker.deployment.set < agreed.set
        })
    };
    (0..set.ways.len()).any(is_former)
}

/// Whether a quorum of these are nodes that were decided upon. `if_silent`: whether one that does not
/// answer counts as such.
pub(super) fn are_of(to: &NodeSet, of_to: &LookedAt, first: &Deployment, if_silent: bool) -> bool {
    let is_named = |seat: &usize| match &of_to.looks[*seat] {
        Some(look) => look.identity().is_some_and(|who| first.names(*seat, &who)),
        None => if_silent && !first.is_blank(*seat),
    };
    to.is_quorum(&(0..to.ways.len()).filter(is_named).collect::<Vec<usize>>())
}

/// The first agreement of the set that follows one that was left.
pub(super) fn first_of(left: &Deployment, successor: &NextSet) -> Deployment {
    let NextSet { shape, seats } = successor.clone();
    let (epoch, set) = (left.epoch + 1, left.set + 1);
    Deployment { epoch, set, shape, seats, phase: Phase::Stands, ..left.clone() }
}
