//! Which front leads to which node.
//!
//! A front is an address on which clients are accepted; its number is its place in `listen`. It leads
//! to one node for as long as the cluster has a node of that id.

use std::time::Duration;

use super::cluster_node::ClusterNode;
use crate::clock::Instant;

/// How long a front stays with a node that has gone. Clients that still know the front find nothing there, instead of
/// another node; a node that was forgotten by mistake gets it back.
pub(crate) const FREED_AFTER: Duration = Duration::from_secs(60);

/// The fronts, each with its node.
#[derive(Debug)]
pub(crate) struct Fronts(Vec<FrontSeat>);

#[derive(Debug, Default, Clone)]
struct FrontSeat {
    /// The id of the node; `None`: the front is free.
    node: Option<String>,
    /// Since when the cluster has no such node.
    gone: Option<Instant>,
    /// The id of the only node that may have the front.
    kept_for: Option<String>,
}

impl FrontSeat {
    /// Whether any node may have the front.
    fn is_free(&self) -> bool {
        self.node.is_none() && self.kept_for.is_none()
    }
}

impl Fronts {
    pub(crate) fn new(count: usize) -> Fronts {
        Fronts(vec![FrontSeat::default(); count])
    }

    /// Keeps a front for the node with this id, before any node has one.
    pub(crate) fn keep_for(&mut self, front: usize, id: &str) {
        if let Some(seat) = self.0.get_mut(front) {
            seat.kept_for = Some(id.to_owned());
        }
    }

    /// Takes over from another process that a front leads to the node with this id. Does nothing if the front is kept
    /// for a node, or if the node has a front or one is kept for it. `gone`: since when the cluster has no such node.
    pub(crate) fn take_over(&mut self, front: usize, id: &str, gone: Option<Instant>) {
        let is_kept = self.0.iter().any(|seat| seat.kept_for.as_deref() == Some(id));
        let is_led = self.of(id).is_some();
        if let Some(seat) = self.0.get_mut(front)
            && seat.kept_for.is_none()
            && !is_kept
            && !is_led
        {
            (seat.node, seat.gone) = (Some(id.to_owned()), gone);
        }
    }

    /// Forgets all that was taken over if the cluster has none of the nodes.
    pub(crate) fn doubt(&mut self, nodes: &[ClusterNode]) {
        if !nodes.iter().any(|node| self.of(&node.id).is_some()) {
            self.0.iter_mut().for_each(|seat| (seat.node, seat.gone) = (None, None));
        }
    }

    /// Returns the number of fronts.
    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    /// Gives each node a front: the one that it has, the one that is kept for it, the one that it `wants`, or the
    /// first free one, in the order of `nodes`. Returns the ids of the nodes that get none.
    pub(crate) fn give(
        &mut self,
        nodes: &[ClusterNode],
        wants: impl Fn(&ClusterNode) -> Option<usize>,
        now: Instant,
    ) -> Vec<String> {
        for seat in &mut self.0 {
            let is_there = nodes.iter().any(|node| Some(&node.id) == seat.node.as_ref());
            if is_there || seat.node.is_none() {
                seat.gone = None;
                continue;
            }
            let gone = *seat.gone.get_or_insert(now);
            if now.saturating_duration_since(gone) >= FREED_AFTER {
                (seat.node, seat.gone) = (None, None);
            }
        }
        let mut left: Vec<&ClusterNode> =
            nodes.iter().filter(|node| self.of(&node.id).is_none()).collect();
        left.retain(|node| {
            let is_kept = |seat: &&mut FrontSeat| seat.kept_for.as_ref() == Some(&node.id);
            let Some(seat) = self.0.iter_mut().find(is_kept) else { return true };
            seat.node = Some(node.id.clone());
            false
        });
        left.retain(|node| {
            let wanted = wants(node).and_then(|front| self.0.get_mut(front));
            let Some(seat) = wanted.filter(|seat| seat.is_free()) else { return true };
            seat.node = Some(node.id.clone());
            false
        });
        left.retain(|node| {
            let Some(seat) = self.0.iter_mut().find(|seat| seat.is_free()) else {
                return true;
            };
            seat.node = Some(node.id.clone());
            false
        });
        left.into_iter().map(|node| node.id.clone()).collect()
    }

    /// Returns the front of a node.
    pub(crate) fn of(&self, id: &str) -> Option<usize> {
        self.0.iter().position(|seat| seat.node.as_deref() == Some(id))
    }

    /// Returns the node to which the front belongs, and since when the cluster does not have the node any more.
    pub(crate) fn last_node(&self, front: usize) -> Option<(&str, Option<Instant>)> {
        let seat = self.0.get(front)?;
        Some((seat.node.as_deref()?, seat.gone))
    }

    /// Returns the node of a front, while the cluster has it.
    pub(crate) fn node(&self, front: usize) -> Option<&str> {
        let seat = self.0.get(front).filter(|seat| seat.gone.is_none())?;
        seat.node.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::cluster_node::read;

    fn nodes(ids: &[&str]) -> Vec<ClusterNode> {
        let line = |id: &&str| format!("{id} 10.0.0.1:7000@1 master - 0 0 0 connected\n");
        read(&ids.iter().map(line).collect::<String>()).unwrap()
    }

    #[test]
    fn a_front_stays_with_its_node_and_is_free_some_time_after_it_has_gone() {
        let (mut fronts, start) = (Fronts::new(3), Instant::now());
        let nobody = |_: &ClusterNode| None;
        assert!(fronts.give(&nodes(&["a", "b"]), nobody, start).is_empty());
        assert_eq!((fronts.of("a"), fronts.of("b")), (Some(0), Some(1)));
        // `b` goes, and two come.
        assert_eq!(fronts.give(&nodes(&["c", "a", "d"]), nobody, start), ["d"]);
        assert_eq!((fronts.of("a"), fronts.of("c"), fronts.node(1)), (Some(0), Some(2), None));
        let gone = fronts.last_node(1);
        assert_eq!(gone, Some(("b", Some(start))), "a successor keeps it for the node too");
        // Both processes give it to another node at the same time.
        let mut successor = Fronts::new(3);
        for (front, id, gone) in [(0, "a", None), (1, "b", Some(start)), (2, "c", None)] {
            successor.take_over(front, id, gone);
        }
        let soon = start + FREED_AFTER / 2;
        successor.doubt(&nodes(&["a", "c", "d"]));
        assert_eq!(successor.give(&nodes(&["a", "c", "d"]), nobody, soon), ["d"]);
        let later = start + FREED_AFTER;
        assert!(successor.give(&nodes(&["a", "c", "d"]), nobody, later).is_empty());
        assert_eq!(successor.of("d"), Some(1));
        // `b` comes back to its front.
        assert_eq!(fronts.give(&nodes(&["a", "b", "c", "d"]), nobody, start), ["d"]);
        assert_eq!(fronts.node(1), Some("b"));
        assert_eq!(fronts.give(&nodes(&["a", "c", "d"]), nobody, start), ["d"]);
        let later = start + FREED_AFTER;
        assert!(fronts.give(&nodes(&["a", "c", "d"]), nobody, later).is_empty());
        assert_eq!(fronts.of("d"), Some(1));
    }

    #[test]
    fn a_front_that_is_kept_for_a_node_leads_to_no_other() {
        let (mut fronts, nobody) = (Fronts::new(3), |_: &ClusterNode| None);
        fronts.keep_for(0, "c");
        let wants = |_: &ClusterNode| Some(0);
        assert!(fronts.give(&nodes(&["a"]), wants, Instant::now()).is_empty());
        assert!(fronts.give(&nodes(&["a", "c", "b"]), nobody, Instant::now()).is_empty());
        assert_eq!((fronts.of("a"), fronts.of("c"), fronts.of("b")), (Some(1), Some(0), Some(2)));
        assert_eq!(fronts.give(&nodes(&["a", "b", "d"]), nobody, Instant::now()), ["d"]);
        let later = Instant::now() + FREED_AFTER;
        assert_eq!(fronts.give(&nodes(&["a", "b", "d"]), nobody, later), ["d"]);
        assert!(fronts.give(&nodes(&["a", "b", "c"]), nobody, later).is_empty());
        assert_eq!(fronts.node(0), Some("c"));
    }

    #[test]
    fn fronts_are_taken_over_as_they_were() {
        let nobody = |_: &ClusterNode| None;
        let taken = |kept: Option<(usize, &str)>| {
            let mut fronts = Fronts::new(3);
            kept.iter().for_each(|(front, id)| fronts.keep_for(*front, id));
            for (front, id) in [(1, "a"), (0, "b"), (2, "b"), (9, "c")] {
                fronts.take_over(front, id, None);
            }
            fronts
        };
        let given = |mut fronts: Fronts, ids: &[&str]| {
            fronts.doubt(&nodes(ids));
            fronts.give(&nodes(ids), nobody, Instant::now());
            ids.iter().map(|id| fronts.of(id)).collect::<Vec<_>>()
        };
        assert_eq!(given(taken(None), &["a", "b", "c"]), [Some(1), Some(0), Some(2)]);
        // The fronts that the file names come first, and a node that has gone keeps its front for a while.
        assert_eq!(given(taken(Some((1, "b"))), &["a", "b"]), [Some(0), Some(1)]);
        assert_eq!(given(taken(None), &["a", "d"]), [Some(1), Some(2)]);
        // They are of another cluster.
        assert_eq!(given(taken(None), &["x", "y", "z"]), [Some(0), Some(1), Some(2)]);
    }

    #[test]
    fn a_node_that_announces_a_front_has_that_one() {
        let mut fronts = Fronts::new(2);
        let wants = |node: &ClusterNode| (node.id == "b").then_some(0);
        assert!(fronts.give(&nodes(&["a", "b"]), wants, Instant::now()).is_empty());
        assert_eq!((fronts.of("a"), fronts.of("b")), (Some(1), Some(0)));
    }
}
