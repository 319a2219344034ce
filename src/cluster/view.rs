//! One list of nodes from the answers of several of them.

use std::collections::BTreeMap;

use super::cluster_node::{ClusterNode, SLOTS};

/// Returns the list of nodes upon which the nodes that answered agree. A node is in it if more than half of the
/// answers name it. What a node says of itself counts, except for its address, which others may know better; for a
/// node that did not answer, the line with the largest epoch counts.
pub(crate) fn agree(views: &[Vec<ClusterNode>]) -> Vec<ClusterNode> {
    let mut lines: BTreeMap<&str, Vec<&ClusterNode>> = BTreeMap::new();
    for node in views.iter().flatten() {
        lines.entry(&node.id).or_default().push(node);
    }
    lines.retain(|_, told| told.len() * 2 > views.len());
    let mut nodes: Vec<ClusterNode> = lines.values().filter_map(|told| best(told)).collect();
    nodes.sort_by(|a, b| (&a.host, a.port, &a.id).cmp(&(&b.host, b.port, &b.id)));
    nodes
}

fn best(told: &[&ClusterNode]) -> Option<ClusterNode> {
    let mut node = (*told.iter().max_by_key(|node| (node.is_myself, node.epoch))?).clone();
    let failed = told.iter().filter(|node| node.has_failed).count();
    node.has_failed = failed * 2 > told.len();
    // A node that no other one has met yet does not know its own address.
    let knows = told.iter().filter(|node| !node.host.is_empty()).max_by_key(|node| !node.is_myself);
    if let Some(other) = knows.filter(|_| node.host.is_empty()) {
        (node.host, node.port) = (other.host.clone(), other.port);
    }
    Some(node)
}

/// Leaves each slot to the master that claims it with the largest configuration epoch: nodes that have not yet heard
/// of an election still list the dead master with its slots.
pub(crate) fn settle_claims(nodes: &mut [ClusterNode]) {
    let mut owners: Vec<Option<usize>> = vec![None; usize::from(SLOTS)];
    for (at, node) in nodes.iter().enumerate().filter(|(_, node)| node.is_master) {
        for slot in node.slots.iter().flat_map(|(first, last)| *first..=*last) {
            let owner = &mut owners[usize::from(slot)];
            if owner.is_none_or(|other| nodes[other].epoch < node.epoch) {
                *owner = Some(at);
            }
        }
    }
    for (at, node) in nodes.iter_mut().enumerate().filter(|(_, node)| node.is_master) {
        let all = node.slots.iter().flat_map(|(first, last)| *first..=*last);
        let own: Vec<u16> = all.filter(|slot| owners[usize::from(*slot)] == Some(at)).collect();
        let ranges = own.chunk_by(|slot, next| slot + 1 == *next);
        node.slots = ranges.filter_map(|range| Some((*range.first()?, *range.last()?))).collect();
    }
}

/// Counts the slots that no master has.
pub(crate) fn uncovered(nodes: &[ClusterNode]) -> usize {
    let mut slots = vec![false; usize::from(SLOTS)];
    for (first, last) in nodes.iter().filter(|node| node.is_master).flat_map(|node| &node.slots) {
        slots[usize::from(*first)..=usize::from(*last)].fill(true);
    }
    slots.iter().filter(|is_covered| !**is_covered).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::cluster_node::read;

    #[test]
    fn who_answers_counts_for_itself_and_a_majority_for_who_is_there() {
        let a = "aa :7000@1 myself,master - 0 0 5 connected 0-99\n\
                 bb 10.0.0.2:7001@1 slave,fail aa 0 0 1 connected\n\
                 cc 10.0.0.3:7002@1 master - 0 0 2 connected 100-16383\n";
        let b = "aa 10.0.0.1:7000@1 master - 0 0 4 connected 0-200\n\
                 bb 10.0.0.2:7001@1 myself,slave aa 0 0 1 connected\n\
                 cc 10.0.0.3:7002@1 master - 0 0 1 connected 201-16383\n\
                 dd 10.0.0.4:7003@1 master - 0 0 1 connected\n";
        let nodes = agree(&[read(a).unwrap(), read(b).unwrap()]);
        let ids: Vec<&str> = nodes.iter().map(|node| &*node.id).collect();
        assert_eq!(ids, ["aa", "bb", "cc"], "one of two is no majority");
        assert_eq!((&*nodes[0].host, &nodes[0].slots[..]), ("10.0.0.1", &[(0, 99)][..]));
        assert!(!nodes[1].has_failed);
        assert_eq!(nodes[2].slots, [(100, 16383)], "of two that are not asked, the newer one");
        assert_eq!(uncovered(&nodes), 0);
        assert_eq!(uncovered(&nodes[..2]), 16284);
    }

    #[test]
    fn a_slot_is_whose_claim_is_the_newest() {
        let promoted = "dd 10.0.0.1:1@1 master,fail - 0 0 1 connected 0-99 200-299\n\
                        rr 10.0.0.2:1@1 myself,master - 0 0 4 connected 0-99 200-250\n\
                        oo 10.0.0.3:1@1 master - 0 0 2 connected 100-199\n";
        let mut nodes = read(promoted).unwrap();
        settle_claims(&mut nodes);
        let slots: Vec<&[(u16, u16)]> = nodes.iter().map(|node| &node.slots[..]).collect();
        assert_eq!(slots, [&[(251, 299)][..], &[(0, 99), (200, 250)], &[(100, 199)]]);
        nodes[0].slots.clear();
        let before = nodes.clone();
        settle_claims(&mut nodes);
        assert_eq!(nodes, before, "nothing is claimed twice");
    }
}
