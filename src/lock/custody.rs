//! Custody of slots: where what was held in a slot has gone with it.
//!
//! A slot may leave a shard that lacks locks, as it has just been promoted, for one that need not wait. So
//! each slot is either in *custody*, its shard lacks nothing of it but what the shard itself waits for, or
//! in doubt: then nothing is granted in it for as long as any grant may last.
//!
//! - A slot stays in custody while a proxy sees it, in looks no more than [`CONFIRM`] apart, on one shard,
//!   or leave one that votes. Nobody moves a slot away and back, with a failover in between, from one look
//!   to the next.
//! - What the proxies know they note on the shard, so that one that is started knows it too: the node's id,
//!   its configuration epoch, and the slots. Whoever imports a slot from a shard with a larger epoch, or is
//!   elected, has a larger one than all others from then on. So a slot that has been elsewhere meanwhile is
//!   in no note of the node's present epoch, but for slots that somebody assigns without importing them
//!   (CLUSTER ADDSLOTS).
//! - A slot that is in no such note when a proxy meets it first is in doubt.
//!
//! `tests/model/shards.rs` has that, with the faults that break it.

use std::{
    collections::{HashMap, HashSet},
    fmt::Write as _,
    time::Duration,
};

use super::stations::Station;
use crate::{
    clock::Instant,
    cluster::node::{ClusterNode, SLOTS},
};

/// The name of the key that has a node's note; it lies in the highest of the node's slots.
const NOTE: &[u8] = b"lockgate:custody";
/// Bytes of the longest text that is taken for a note: that of every second slot is shorter.
const MAX_TEXT: usize = 128 * 1024;

/// What one proxy knows of the slots of a cluster.
#[derive(Debug, Default)]
pub(super) struct Custody {
    /// The masters at the last look, and when it began.
    masters: Vec<ClusterNode>,
    looked: Option<Instant>,
    /// The slots in doubt, since when.
    doubts: HashMap<u16, Instant>,
}

/// What a look at a cluster has shown, beside its nodes.
pub(super) struct Seen<'a> {
    /// When its questions were sent.
    pub(super) sent: Instant,
    /// How long after the look before it nothing can have escaped.
    pub(super) within: Duration,
    /// The master of each replica at the look before, by their ids.
    pub(super) masters: &'a HashMap<String, String>,
    /// The masters of before that vote, by their ids.
    pub(super) voting: &'a HashSet<String>,
}

impl Custody {
    /// Takes in a look upon which a majority agrees.
    pub(super) fn take(&mut self, nodes: &[ClusterNode], seen: &Seen<'_>) {
        let is_watched = self.looked.is_some_and(|before| seen.sent < before + seen.within);
        let masters: Vec<ClusterNode> = nodes.iter().filter(|it| it.is_master).cloned().collect();
        let (before, after) = (owners(&self.masters), owners(&masters));
        let is_same =
            |was: &ClusterNode| masters.iter().any(|it| it.id == was.id && it.epoch == was.epoch);
        let is_kept = |was: &ClusterNode, is: &ClusterNode| {
            let stays = was.id == is.id || seen.masters.get(&is.id) == Some(&was.id);
            match stays {
                true => is_watched || was.id == is.id && was.epoch == is.epoch,
                false => is_watched && is_same(was) && seen.voting.contains(&was.id),
            }
        };
        // Most slots are where they were: one answer for each pair of nodes.
        let mut kept: HashMap<(Option<usize>, usize), bool> = HashMap::new();
        for (slot, (was, is)) in (0u16..).zip(before.iter().zip(&after)) {
            let Some(is) = *is else { continue };
            let is_kept = kept.entry((*was, is)).or_insert_with(|| {
                was.is_some_and(|was| is_kept(&self.masters[was], &masters[is]))
            });
            if !*is_kept {
                self.doubts.insert(slot, seen.sent);
            }
        }
        (self.masters, self.looked) = (masters, Some(seen.sent));
    }

    /// Whether the slot is in doubt.
    pub(super) fn doubts(&self, slot: u16) -> bool {
        self.doubts.contains_key(&slot)
    }

    /// The number of slots in doubt.
    pub(super) fn all_doubts(&self) -> usize {
        self.doubts.len()
    }

    /// Forgets doubts that are `enough` old: what was held then has run out.
    pub(super) fn expire(&mut self, enough: Duration) {
        let now = Instant::now();
        self.doubts.retain(|_, since| now < *since + enough);
    }

    /// Takes in what other proxies have noted on a node.
    pub(super) fn believe(&mut self, node: &ClusterNode, note: &CustodyNote) {
        if note.is_of(node) {
            let has = |slot: &u16| is_in(&node.slots, *slot) && is_in(&note.slots, *slot);
            self.doubts.retain(|slot, _| !has(slot));
        }
    }

    /// What is to be noted on a node on which `noted` stands. Returns `None` if that says it.
    pub(super) fn note(
        &self,
        node: &ClusterNode,
        noted: Option<&CustodyNote>,
    ) -> Option<CustodyNote> {
        let noted = noted.filter(|noted| noted.is_of(node));
        let is_noted = |slot: u16| noted.is_some_and(|noted| is_in(&noted.slots, slot));
        let own = || node.slots.iter().flat_map(|(first, last)| *first..=*last);
        let is_known = |slot: u16| !self.doubts.contains_key(&slot);
        if own().all(|slot| is_noted(slot) || !is_known(slot)) {
            return None;
        }
        let slots: Vec<u16> = own().filter(|slot| is_noted(*slot) || is_known(*slot)).collect();
        let ranges = slots.chunk_by(|slot, next| slot + 1 == *next);
        let slots = ranges.filter_map(|range| Some((*range.first()?, *range.last()?))).collect();
        Some(CustodyNote { node: node.id.clone(), epoch: node.epoch, slots })
    }
}

/// The node of each slot, by its place in the list.
fn owners(nodes: &[ClusterNode]) -> Vec<Option<usize>> {
    let mut owners = vec![None; usize::from(SLOTS)];
    for (at, node) in nodes.iter().enumerate() {
        for (first, last) in &node.slots {
            owners[usize::from(*first)..=usize::from(*last)].fill(Some(at));
        }
    }
    owners
}

fn is_in(ranges: &[(u16, u16)], slot: u16) -> bool {
    ranges.iter().any(|(first, last)| (*first..=*last).contains(&slot))
}

/// The note on a node: of which slots its shard is known to lack nothing but what it waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CustodyNote {
    /// The id of the node, and its configuration epoch: the note counts for no other.
    node: String,
    epoch: u64,
    slots: Vec<(u16, u16)>,
}

impl CustodyNote {
    /// The key of a node's note. Returns `None` if the node has no slots.
    pub(super) fn key(node: &ClusterNode) -> Option<Vec<u8>> {
        let highest = node.slots.iter().map(|(_, last)| *last).max()?;
        Some(Station::Slot(highest).key(NOTE))
    }

    fn is_of(&self, node: &ClusterNode) -> bool {
        self.node == node.id && self.epoch == node.epoch
    }

    /// The text of the note: `<id> <epoch> <first>-<last> …`.
    pub(super) fn text(&self) -> String {
        let mut text = format!("{} {}", self.node, self.epoch);
        for (first, last) in &self.slots {
            // Writing to a String cannot fail.
            let _ = write!(text, " {first}-{last}");
        }
        text
    }

    /// Reads a note. Returns `None` if the text is none.
    pub(super) fn read(text: &str) -> Option<CustodyNote> {
        let mut words = Some(text).filter(|text| text.len() <= MAX_TEXT)?.split(' ');
        let (node, epoch) = (words.next()?.to_owned(), words.next()?.parse().ok()?);
        let range = |word: &str| {
            let (first, last) = word.split_once('-')?;
            let range: (u16, u16) = (first.parse().ok()?, last.parse().ok()?);
            (range.0 <= range.1 && range.1 < SLOTS).then_some(range)
        };
        let slots = words.map(range).collect::<Option<_>>()?;
        Some(CustodyNote { node, epoch, slots })
    }
}
