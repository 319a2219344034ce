//! Custody of slots: whether a slot's locks have moved with it.
//!
//! A slot may leave a shard that lacks locks, as it was just promoted, for one that need not wait. So each slot is
//! either in *custody*: its shard is known to have every lock in it, except locks for whose end the shard itself waits;
//! or *in doubt*: nothing is granted in it for as long as any grant may last.
//!
//! - A slot stays in custody while a proxy, in looks no more than [`CONFIRM`](super::shards::CONFIRM) apart, sees it
//!   on one shard, or sees it leave one that votes. No slot is expected to be moved away and back, with a failover in
//!   between, from one look to the next.
//! - Proxies note what they know on the shard, for those that start later: the node's id, its configuration epoch,
//!   and the slots. A node that imports a slot from a shard with a larger epoch, or is elected, has the largest epoch
//!   of all from then on. So a slot that has been elsewhere meanwhile is in no note of the node's present epoch,
//!   except slots that were assigned without being imported (CLUSTER ADDSLOTS).
//! - A slot that is in no such note when a proxy first sees it is in doubt.
//!
//! A lock in a slot in doubt that the shard lacks is lost: its holder is told, and no other client gets it before it
//! would have run out.
//!
//! `tests/model/shards.rs` models this, with the faults that break it.

use std::{
    collections::{HashMap, HashSet},
    fmt::Write as _,
    time::Duration,
};

use super::stations::Station;
use crate::{
    clock::Instant,
    cluster::cluster_node::{ClusterNode, SLOTS},
};

/// The name of the key of a node's note, which lies in the highest of the node's slots.
const NOTE: &[u8] = b"lockgate:custody";
/// The longest text, in bytes, that is read as a note. A note of every second slot is shorter.
const MAX_TEXT: usize = 128 * 1024;

/// What one proxy knows of the slots of a cluster.
#[derive(Debug, Default)]
pub(super) struct Custody {
    /// The masters at the last look, and when it began.
    masters: Vec<ClusterNode>,
    looked: Option<Instant>,
    /// The slots in doubt, and since when.
    doubts: HashMap<u16, Instant>,
}

/// What a look at a cluster has shown, beside its nodes.
pub(super) struct SlotLook<'a> {
    /// When its questions were sent.
    pub(super) sent: Instant,
    /// The time since the previous look within which this one has missed nothing.
    pub(super) within: Duration,
    /// The master of each replica at the previous look, by their ids.
    pub(super) masters: &'a HashMap<String, String>,
    /// The ids of the previous look's masters that vote.
    pub(super) voting: &'a HashSet<String>,
}

impl Custody {
    /// Takes in a look upon which a majority agrees.
    pub(super) fn take(&mut self, nodes: &[ClusterNode], seen: &SlotLook<'_>) {
        let is_watched = self.looked.is_some_and(|before| seen.sent < before + seen.within);
        let masters: Vec<ClusterNode> = nodes.iter().filter(|it| it.is_master).cloned().collect();
        let (before, after) = (owners(&self.masters), owners(&masters));
        // A master that has lost its last slot becomes a replica of the node that got it.
        let is_emptied = |was: &ClusterNode| {
            let now = nodes.iter().find(|it| it.id == was.id).and_then(|it| it.master.as_ref());
            let had_slots =
                |id: &String| self.masters.iter().any(|it| it.id == *id && !it.slots.is_empty());
            now.is_some_and(had_slots)
        };
        let is_same = |was: &ClusterNode| {
            masters.iter().any(|it| it.id == was.id && it.epoch == was.epoch) || is_emptied(was)
        };
        let is_kept = |was: &ClusterNode, is: &ClusterNode| {
            let stays = was.id == is.id || seen.masters.get(&is.id) == Some(&was.id);
            match stays {
                true => is_watched || was.id == is.id && was.epoch == is.epoch,
                false => is_watched && is_same(was) && seen.voting.contains(&was.id),
            }
        };
        // Most slots are where they were: the answer is kept for each pair of nodes.
        let mut kept: HashMap<(Option<usize>, usize), bool> = HashMap::new();
        // A lock that is lost may have been granted until now, not only until the questions were sent.
        let now = Instant::now();
        for (slot, (was, is)) in (0u16..).zip(before.iter().zip(&after)) {
            let Some(is) = *is else { continue };
            let is_kept = kept.entry((*was, is)).or_insert_with(|| {
                was.is_some_and(|was| is_kept(&self.masters[was], &masters[is]))
            });
            if !*is_kept {
                self.doubts.insert(slot, now);
            }
        }
        (self.masters, self.looked) = (masters, Some(seen.sent));
    }

    /// Whether the slot is in doubt.
    pub(super) fn doubts(&self, slot: u16) -> bool {
        self.doubts.contains_key(&slot)
    }

    /// Returns the number of slots in doubt.
    pub(super) fn all_doubts(&self) -> usize {
        self.doubts.len()
    }

    /// Ends doubts that are `enough` old: what was held when they began has run out.
    pub(super) fn expire(&mut self, enough: Duration) {
        let now = Instant::now();
        self.doubts.retain(|_, since| now < *since + enough);
    }

    /// Ends doubts about slots that other proxies have noted on a node.
    pub(super) fn believe(&mut self, node: &ClusterNode, note: &CustodyNote) {
        if note.is_of(node) {
            let has = |slot: &u16| is_in(&node.slots, *slot) && is_in(&note.slots, *slot);
            self.doubts.retain(|slot, _| !has(slot));
        }
    }

    /// Returns the note to write on a node that has the note `noted`. Returns `None` if that one is up to date.
    pub(super) fn note(
        &self,
        node: &ClusterNode,
        noted: Option<&CustodyNote>,
    ) -> Option<CustodyNote> {
        let noted = noted.filter(|noted| noted.is_of(node));
        let is_noted = |slot: u16| noted.is_some_and(|noted| is_in(&noted.slots, slot));
        let own = node.slots.iter().flat_map(|(first, last)| *first..=*last);
        let is_known = |slot: u16| !self.doubts.contains_key(&slot);
        // Slots that have left are dropped from the note: they may be assigned to the node again.
        let slots: Vec<u16> = own.filter(|slot| is_noted(*slot) || is_known(*slot)).collect();
        let ranges = slots.chunk_by(|slot, next| slot + 1 == *next);
        let slots: Vec<_> =
            ranges.filter_map(|range| Some((*range.first()?, *range.last()?))).collect();
        let is_said = match noted {
            Some(noted) => noted.slots == slots,
            None => slots.is_empty(),
        };
        (!is_said).then(|| CustodyNote { node: node.id.clone(), epoch: node.epoch, slots })
    }
}

/// Returns the node of each slot, by its place in the list.
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

/// The note on a node: the slots that its shard is known to have in custody.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CustodyNote {
    /// The id of the node, and its configuration epoch. The note counts for no other.
    node: String,
    epoch: u64,
    slots: Vec<(u16, u16)>,
}

impl CustodyNote {
    /// Returns the key of a node's note, and `None` if the node has no slots.
    pub(super) fn key(node: &ClusterNode) -> Option<Vec<u8>> {
        let highest = node.slots.iter().map(|(_, last)| *last).max()?;
        Some(Station::Slot(highest).key(NOTE))
    }

    fn is_of(&self, node: &ClusterNode) -> bool {
        self.node == node.id && self.epoch == node.epoch
    }

    /// Returns the text of the note: `<id> <epoch> <first>-<last> …`.
    pub(super) fn text(&self) -> String {
        let mut text = format!("{} {}", self.node, self.epoch);
        for (first, last) in &self.slots {
            // Writing to a String cannot fail.
            let _ = write!(text, " {first}-{last}");
        }
        text
    }

    /// Reads a note. Returns `None` if the text is no note.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::cluster_node::read;

    const WITHIN: Duration = Duration::from_secs(5);

    /// Two shards, with these epochs and slots.
    fn nodes(a: (u64, &str), b: (u64, &str)) -> Vec<ClusterNode> {
        let line = |id: &str, (epoch, slots): (u64, &str)| {
            format!("{id} 10.0.0.1:1@1 master - 0 0 {epoch} connected {slots}\n")
        };
        read(&[line("aa", a), line("bb", b)].concat()).unwrap()
    }

    /// A series of looks at two shards. `cc` is known as a replica of the first, `aa`.
    struct Looks {
        custody: Custody,
        sent: Instant,
    }

    impl Looks {
        fn first(nodes: &[ClusterNode]) -> Looks {
            let mut looks = Looks { custody: Custody::default(), sent: Instant::now() };
            looks.next(0, nodes, &[]);
            looks.custody.expire(Duration::ZERO);
            looks
        }

        /// Looks after so many seconds, while these nodes vote. Returns the first and the last slot in doubt, and
        /// their number.
        fn next(
            &mut self,
            seconds: u64,
            nodes: &[ClusterNode],
            voting: &[&str],
        ) -> (u16, u16, usize) {
            self.sent = self.sent + Duration::from_secs(seconds);
            let voting = voting.iter().map(|id| (*id).to_owned()).collect();
            let masters = HashMap::from([("cc".to_owned(), "aa".to_owned())]);
            let (sent, within) = (self.sent, WITHIN);
            self.custody
                .take(nodes, &SlotLook { sent, within, masters: &masters, voting: &voting });
            let all = || self.custody.doubts.keys().copied();
            (all().min().unwrap_or(0), all().max().unwrap_or(0), self.custody.all_doubts())
        }
    }

    #[test]
    fn a_slot_that_leaves_a_shard_that_votes_stays_in_custody() {
        let all = ["aa", "bb"];
        let begun = || Looks::first(&nodes((1, "0-99"), (2, "100-199")));
        let moved = || nodes((1, "0-89"), (2, "90-199"));
        assert_eq!(begun().next(1, &moved(), &all), (0, 0, 0));
        assert_eq!(begun().next(1, &moved(), &["bb"]), (90, 99, 10), "it waited");
        assert_eq!(begun().next(6, &moved(), &all), (90, 99, 10), "nobody has watched");
        let elected = nodes((3, "0-89"), (4, "90-199"));
        assert_eq!(begun().next(1, &elected, &all), (90, 99, 10), "it may be elected anew");
        let mut emptied = begun();
        assert_eq!(emptied.next(1, &nodes((1, ""), (2, "0-199")), &all), (0, 0, 0));
        let mut emptied = nodes((1, ""), (3, "0-199"));
        (emptied[0].is_master, emptied[0].master) = (false, Some("bb".into()));
        assert_eq!(begun().next(1, &emptied, &all), (0, 0, 0));
        emptied[0].master = Some("cc".into());
        assert_eq!(begun().next(1, &emptied, &all), (0, 99, 100), "it has failed over");
        let gap = nodes((1, "0-98"), (2, "100-199"));
        let mut looks = begun();
        looks.next(1, &gap, &all);
        assert_eq!(looks.next(1, &nodes((1, "0-99"), (2, "100-199")), &all), (99, 99, 1));
    }

    #[test]
    fn who_stays_on_its_shard_stays_in_custody_while_somebody_watches() {
        let begun = || Looks::first(&nodes((1, "0-99"), (2, "100-199")));
        let newer = nodes((1, "0-99"), (3, "100-199"));
        assert_eq!(begun().next(1, &newer, &[]), (0, 0, 0));
        assert_eq!(begun().next(6, &newer, &[]), (100, 199, 100), "they may have been elsewhere");
        // The replica of aa is promoted: it waits by itself.
        let mut promoted = nodes((4, "0-99"), (2, "100-199"));
        promoted[0].id = "cc".into();
        assert_eq!(begun().next(1, &promoted, &[]), (0, 0, 0));
        promoted[0].id = "dd".into();
        assert_eq!(begun().next(1, &promoted, &[]), (0, 99, 100), "whose replica was it?");
    }

    #[test]
    fn what_is_noted_of_a_nodes_present_epoch_is_believed() {
        let now = nodes((1, "0-99"), (2, "100-199"));
        let mut started = Looks { custody: Custody::default(), sent: Instant::now() };
        assert_eq!(started.next(0, &now, &[]), (0, 199, 200));
        let note = |text: &str| CustodyNote::read(text).unwrap();
        for other in ["aa 0 0-99", "aa 2 0-99", "bb 1 0-99", "aa 1 100-199"] {
            started.custody.believe(&now[0], &note(other));
            assert_eq!(started.custody.all_doubts(), 200, "{other}");
        }
        assert_eq!(started.custody.note(&now[0], None), None, "nothing is known");
        started.custody.believe(&now[0], &note("aa 1 0-9 20-99 150-160"));
        assert_eq!(started.custody.all_doubts(), 110);
        let known = started.custody.note(&now[0], None).unwrap();
        assert_eq!(known.text(), "aa 1 0-9 20-99");
        assert_eq!(started.custody.note(&now[0], Some(&known)), None);
        let gone = started.custody.note(&now[0], Some(&note("aa 1 0-9 20-100"))).unwrap();
        assert_eq!(gone.text(), "aa 1 0-9 20-99");
        let more = started.custody.note(&now[0], Some(&note("aa 1 15-15 200-300"))).unwrap();
        assert_eq!(more.text(), "aa 1 0-9 15-15 20-99", "what others know stands");
        let anew = started.custody.note(&now[0], Some(&note("aa 0 15-15"))).unwrap();
        assert_eq!(anew.text(), "aa 1 0-9 20-99");
        assert_eq!(CustodyNote::read(&anew.text()), Some(anew));
    }

    #[test]
    fn a_doubt_lasts_from_the_answers_on() {
        let mut started = Looks { custody: Custody::default(), sent: Instant::now() };
        // The questions count as sent 1000 s from now: a doubt that began with them would outlast the test.
        started.next(1000, &nodes((1, "0-99"), (2, "100-199")), &[]);
        started.custody.expire(Duration::from_secs(900));
        assert_eq!(started.custody.all_doubts(), 200);
        std::thread::sleep(Duration::from_millis(2));
        started.custody.expire(Duration::from_millis(1));
        assert_eq!(started.custody.all_doubts(), 0);
    }

    #[test]
    fn whatever_else_lies_there_is_no_note() {
        let long = format!("aa 1{}", " 0-1".repeat(MAX_TEXT));
        for bad in ["", "aa", "aa x 0-1", "aa 1 ", "aa 1 1-0", "aa 1 0-16384", "aa 1 0", &long] {
            assert_eq!(CustodyNote::read(bad), None, "{bad:?}");
        }
        let fragments: String = (0..SLOTS / 2).map(|at| format!(" {0}-{0}", 2 * at)).collect();
        assert!(CustodyNote::read(&format!("{} 1{fragments}", "a".repeat(40))).is_some());
    }
}
