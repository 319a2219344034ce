//! Reports to operators how far a change of the lock nodes is. Changes nothing.

use tokio::time::sleep;

use super::{
    super::{
        marker::{Deployment, Phase},
        round::Way,
        self_report::{MarkerFound, SelfReport},
    },
    change_error::ChangeError,
    misfit::foreign,
    sets::{AGAIN, LookedAt, NodeSet, sets},
    which::{SetNow, Which, which},
};
use crate::config::LocksConfig;

/// How many times nodes are looked at if some do not vote.
const LOOKS: usize = 3;

/// One node, as `lockgate nodes` shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NodeOfSet {
    /// Its address, without credentials.
    pub address: String,
    /// What the node has, in words.
    pub what: String,
    /// What on the node keeps it from becoming a lock node.
    pub foreign: Option<String>,
}

/// How far a change is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ChangeStatus {
    /// Which set votes.
    pub now: SetNow,
    /// The nodes of that set that do not vote, or do not answer.
    pub without: Vec<String>,
    /// Nodes that were left and do not know it.
    pub behind: Vec<String>,
    /// `locks.nodes`.
    pub nodes: Vec<NodeOfSet>,
    /// `locks.next_nodes`.
    pub next_nodes: Vec<NodeOfSet>,
}

/// Reports how far the change of the lock nodes is that a file asks for. Changes nothing.
///
/// # Errors
/// If the file asks for no change, or for one that is impossible.
pub(crate) async fn status(config: &LocksConfig) -> Result<ChangeStatus, ChangeError> {
    let next = sets(config)?;
    let (from, to) = (NodeSet::new(config).await, NodeSet::new(&next).await);
    let mut looks = 0;
    loop {
        let (of_from, of_to) = tokio::join!(from.look(), to.look());
        let Which { now, decision } = which(from.report(&of_from), to.report(&of_to), None);
        let others = now == SetNow::Decided
            && decision.is_some_and(|it| !to.report(&of_to).are_of(&it.first, true));
        let now = if others { SetNow::Others } else { now };
        let without = match now {
            SetNow::Nodes => missing(&from, &of_from),
            SetNow::NextNodes => missing(&to, &of_to),
            _ => Vec::new(),
        };
        // Proxies soon bring up to date a node that has just begun, or was restarted.
        looks += 1;
        if !without.is_empty() && looks < LOOKS {
            sleep(AGAIN).await;
            continue;
        }
        let behind = match now {
            SetNow::NextNodes => behind(&from, &of_from, &of_to),
            _ => Vec::new(),
        };
        let ours = of_from.survey.ours.as_deref();
        let (nodes, next_nodes) = (told(&from, &of_from, ours), told(&to, &of_to, ours));
        return Ok(ChangeStatus { now, without, behind, nodes, next_nodes });
    }
}

/// `locks.nodes`, if the file asks for no change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NodesNow {
    /// What each of them has.
    pub nodes: Vec<NodeOfSet>,
    /// Whether they were left for other lock nodes.
    pub were_left: bool,
}

/// Reports what each of `locks.nodes` has. Changes nothing.
pub(crate) async fn nodes_now(config: &LocksConfig) -> NodesNow {
    let set = NodeSet::new(config).await;
    let looked = set.look().await;
    NodesNow { nodes: told(&set, &looked, None), were_left: were_left(&looked) }
}

/// Whether more than half of the nodes know that their set was left, or belong to a later set.
fn were_left(looked: &LookedAt) -> bool {
    let all = || {
        let markers = looked.looks.iter().flatten().filter_map(SelfReport::marker);
        markers.map(|marker| &marker.deployment)
    };
    let is_left = |one: &&Deployment| matches!(one.phase, Phase::Left(..));
    let Some(left) = all().filter(is_left).max_by_key(|one| one.set) else { return false };
    let is_later = |one: &&Deployment| one.set > left.set || is_left(one);
    let those = all().filter(|one| one.id == left.id).filter(is_later).count();
    those * 2 > looked.looks.len()
}

/// Lists the nodes of the voting set that do not vote, or do not answer.
fn missing(set: &NodeSet, looked: &LookedAt) -> Vec<String> {
    let agreed = looked.survey.committed.as_ref().map(|accepted| accepted.deployment.set);
    let votes = |seat: usize| {
        let marker = looked.looks[seat].as_ref().and_then(SelfReport::marker);
        looked.survey.intact[seat] && marker.map(|marker| marker.deployment.set) == agreed
    };
    let missing = (0..set.ways.len()).filter(|seat| !votes(*seat));
    missing.map(|seat| set.ways[seat].address.to_string()).collect()
}

/// Lists the nodes of the set before whose markers would still vote, once the next set has begun.
fn behind(from: &NodeSet, of_from: &LookedAt, of_to: &LookedAt) -> Vec<String> {
    let Some(now) = of_to.survey.committed.as_ref().map(|accepted| &accepted.deployment) else {
        return Vec::new();
    };
    let votes_still = |seat: &usize| {
        let marker = of_from.looks[*seat].as_ref().and_then(SelfReport::marker);
        marker.is_some_and(|marker| {
            let theirs = &marker.deployment;
            theirs.id == now.id && theirs.set < now.set && theirs.stands()
        })
    };
    let seats = (0..from.ways.len()).filter(votes_still);
    seats.map(|seat| from.ways[seat].address.to_string()).collect()
}

/// Reports what each node has. `ours`: the deployment of `locks.nodes`, if it is known.
fn told(set: &NodeSet, looked: &LookedAt, ours: Option<&str>) -> Vec<NodeOfSet> {
    let of = |(seat, way): (usize, &Way)| {
        let (what, foreign) = match &looked.all[seat] {
            Err(error) => (error.to_string(), None),
            Ok(answered) => (words(&answered.look), foreign(&answered.look, ours)),
        };
        NodeOfSet { address: way.address.to_string(), what, foreign }
    };
    set.ways.iter().enumerate().map(of).collect()
}

/// Says in words what a node has.
fn words(look: &SelfReport) -> String {
    let marker = match &look.marker {
        MarkerFound::Nothing => return "no marker".into(),
        MarkerFound::Other => return "something else than a marker".into(),
        MarkerFound::Marker(marker) => marker,
    };
    let Deployment { id, epoch, set, phase, shape, .. } = &marker.deployment;
    let phase = match phase {
        Phase::Stands => "votes",
        Phase::Joint(_) => "is sealed",
        Phase::Left(..) => "is left",
    };
    let is_named = look.identity().is_some_and(|who| marker.deployment.names(marker.seat, &who));
    let forgotten = if is_named { "" } else { ", waits" };
    let seat = marker.seat + 1;
    format!("node {seat} of {shape} of set {set}, which {phase}{forgotten}; epoch {epoch} of {id}")
}
