//! The marker, which lies on each lock node and proves its votes.
//!
//! The marker lies under three keys. [`MARKER`] holds exactly the text that votes compare, in the memory that votes:
//! extracting it from a longer text would cost each vote more. [`LONGEST`] holds the longest PX ever stored on the
//! node, in ms; a proxy raises it before it stores a longer one. [`SEATS`] says which node sits on which seat. The
//! three are read, and compared when they are written, as one text:
//!
//! ```text
//! <deployment id> <epoch> <seat>/<shape> <prefix, percent-encoded>    MARKER
//! <milliseconds>                                                      LONGEST
//! <run_id> <replication id>                       one for each seat, in their order: it votes
//! <run_id> <replication id>?<election>            it votes, and was elected by Sentinels
//! <run_id> <replication id> <epoch>               it waits, since that epoch
//! - <epoch>                                       no node is there since that epoch
//! ```
//!
//! The shape is followed by the number of the set, unless it is the first set, and by its phase if the set is sealed
//! or left: `3@1`, `3:joint:77`, `3@1:left:77` ([`super::change`]). If it was left, a line `> <shape>` and the seats
//! of the next set follow.
//!
//! Markers are written only in rounds ([`super::deployment`]) and by `lockgate init`.

use std::{borrow::Cow, ops::Range, time::Duration};

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

pub(crate) use crate::lock::scripts::{LONGEST, MARKER};
use crate::{
    config::LocksConfig,
    lock::{
        jitter,
        voters::{Shape, Voters},
    },
};

/// The key that says which node sits on which seat.
pub(crate) const SEATS: &[u8] = b"lockgate:seats";
/// The key that says since when a node waits: `<run_id> <replication id> <epoch> <µs>`.
pub(in crate::lock) const NOTE: &[u8] = b"lockgate:since";
/// The key of the ballots that a node has promised and accepted.
pub(in crate::lock) const BALLOT: &[u8] = b"lockgate:ballot";

/// The most bytes in a text that is taken for a marker.
const MAX_TEXT: usize = 32 * 1024;
/// The words behind the shape of a set that is sealed, and of one that is left.
const JOINT: &str = ":joint:";
const LEFT: &str = ":left:";
/// The most bytes in a word of a marker.
const MAX_WORD: usize = 128;
/// Characters of a prefix that are not percent-encoded.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b':').remove(b'-').remove(b'_').remove(b'.');

/// The identity of a node, which changes whenever the node may have other memory than before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::lock) struct Identity {
    /// The `run_id`, new with each start of the process.
    pub(in crate::lock) run_id: String,
    /// The replication id, new when a replica becomes a master; `?` if the node does not report it.
    pub(in crate::lock) replication_id: String,
    /// The election by which Sentinels made the node the master. `None`: it is not found through Sentinels.
    pub(in crate::lock) election: Option<u64>,
}

impl Identity {
    /// Writes an identity as it stands on nodes, in two words: `<run_id> <replication id>`, followed by `?` and the
    /// election, if there was one.
    pub(in crate::lock) fn text(&self) -> String {
        let Identity { run_id, replication_id, election } = self;
        match election {
            Some(election) => format!("{run_id} {replication_id}?{election}"),
            None => format!("{run_id} {replication_id}"),
        }
    }

    /// Reads the two words. Returns `None` if they are malformed.
    fn read(run_id: &str, second: &str) -> Option<Identity> {
        let (run_id, second) = (word(run_id)?, word(second)?);
        let split = second.rsplit_once('?').and_then(|(id, of)| Some((id.to_owned(), number(of)?)));
        let (replication_id, election) = match split {
            Some((id, election)) => (word(&id)?, Some(election)),
            None => (second, None),
        };
        Some(Identity { run_id, replication_id, election })
    }
}

/// The state of a seat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::lock) enum Seat {
    /// This node sits there, and its votes count.
    Filled(Identity),
    /// This node waits there, since this epoch. It may lack locks that are still held, so it grants nothing, but its
    /// votes to keep a lock count.
    Waiting(Identity, u64),
    /// No node is there, since this epoch.
    Blank(u64),
}

/// Whether a set of lock nodes votes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::lock) enum Phase {
    /// Its nodes vote.
    #[default]
    Stands,
    /// Sealed, with the unique number of the seal: the set's nodes do not vote while its locks are copied to the next
    /// set. The set may stand again.
    Joint(u64),
    /// Left, with the number of the seal, and the next set: the set's nodes do not vote. It is sealed again only if
    /// the next set can never begin.
    Left(u64, Box<NextSet>),
}

/// The next set, as it is when it begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::lock) struct NextSet {
    pub(in crate::lock) shape: Shape,
    pub(in crate::lock) seats: Vec<Seat>,
}

/// What a quorum of nodes has agreed upon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::lock) struct Deployment {
    /// A text that no other deployment has.
    pub(in crate::lock) id: String,
    /// A number that grows with each change.
    pub(in crate::lock) epoch: u64,
    /// `locks.prefix`.
    pub(in crate::lock) prefix: String,
    /// How many seats each voter has.
    pub(in crate::lock) shape: Shape,
    /// Seats of all voters, in the order of `locks.nodes`.
    pub(in crate::lock) seats: Vec<Seat>,
    /// How many sets of lock nodes there were before this one.
    pub(in crate::lock) set: u64,
    pub(in crate::lock) phase: Phase,
}

/// The set that a proxy knows to be `locks.nodes`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::lock) struct KnownSet {
    /// The deployment's id.
    pub(in crate::lock) id: String,
    /// How many sets there were before this one.
    pub(in crate::lock) set: u64,
}

impl KnownSet {
    /// Whether `agreed` is a later set of the same deployment, and votes.
    pub(in crate::lock) fn is_before(&self, agreed: &Deployment) -> bool {
        agreed.stands() && agreed.id == self.id && agreed.set > self.set
    }
}

/// The marker of one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::lock) struct Marker {
    pub(in crate::lock) deployment: Deployment,
    /// The node's own seat, from 0.
    pub(in crate::lock) seat: usize,
    /// The longest PX ever stored on the node.
    pub(in crate::lock) longest: Duration,
}

impl Deployment {
    /// Creates a new deployment, which no node knows yet.
    pub(in crate::lock) fn new(config: &LocksConfig) -> Deployment {
        Deployment {
            id: format!("{:016x}{:016x}", jitter::number(), jitter::number()),
            epoch: 0,
            prefix: config.prefix.clone(),
            shape: Voters::new(config).shape(),
            seats: vec![Seat::Blank(0); Voters::new(config).seats()],
            set: 0,
            phase: Phase::Stands,
        }
    }

    /// Returns the words of the marker that a vote of the node on `seat` must prove.
    pub(in crate::lock) fn told(&self, seat: usize) -> String {
        let prefix: Cow<'_, str> = utf8_percent_encode(&self.prefix, PLAIN).into();
        let set = if self.set == 0 { String::new() } else { format!("@{}", self.set) };
        let phase = match &self.phase {
            Phase::Stands => String::new(),
            Phase::Joint(seal) => format!("{JOINT}{seal}"),
            Phase::Left(seal, _) => format!("{LEFT}{seal}"),
        };
        format!("{} {} {}/{}{set}{phase} {prefix}", self.id, self.epoch, seat + 1, self.shape)
    }

    /// Returns the lines about all seats.
    pub(in crate::lock) fn seats_text(&self) -> String {
        let line = |seat: &Seat| match seat {
            Seat::Filled(who) => format!("{}\n", who.text()),
            Seat::Waiting(who, since) => format!("{} {since}\n", who.text()),
            Seat::Blank(since) => format!("- {since}\n"),
        };
        let mut text: String = self.seats.iter().map(line).collect();
        if let Phase::Left(_, next) = &self.phase {
            text.push_str(&format!("> {}\n", next.shape));
            text.extend(next.seats.iter().map(line));
        }
        text
    }

    /// Whether the nodes of this set vote.
    pub(in crate::lock) fn stands(&self) -> bool {
        self.phase == Phase::Stands
    }

    /// Whether no node is on `seat`.
    pub(in crate::lock) fn is_blank(&self, seat: usize) -> bool {
        matches!(self.seats.get(seat), Some(Seat::Blank(_)) | None)
    }

    /// Returns the seat among `seats` on which the process with this `run_id` sits or waits. All proxies find the
    /// same seat in the same deployment.
    pub(in crate::lock) fn seat_of(&self, seats: Range<usize>, run_id: &str) -> Option<usize> {
        let is_there = |seat: &usize| match &self.seats[*seat] {
            Seat::Filled(who) | Seat::Waiting(who, _) => who.run_id == run_id,
            Seat::Blank(_) => false,
        };
        let waits = |seat: &usize| !matches!(self.seats[*seat], Seat::Filled(_));
        seats.filter(is_there).min_by_key(|seat| (waits(seat), *seat))
    }

    /// Whether `who` sits on `seat` and votes.
    pub(in crate::lock) fn names(&self, seat: usize, who: &Identity) -> bool {
        matches!(self.seats.get(seat), Some(Seat::Filled(named)) if named == who)
    }
}

/// Joins the values of [`MARKER`], [`LONGEST`] and [`SEATS`] into the text of a marker. Returns `None` if there is
/// none.
pub(crate) fn text_of(
    first: Option<&str>,
    longest: Option<&str>,
    seats: Option<&str>,
) -> Option<String> {
    let (longest, seats) = (longest.unwrap_or_default(), seats.unwrap_or_default());
    Some(format!("{}\n{longest}\n{seats}", first?))
}

impl Marker {
    /// Reads a marker. Returns `None` if the text is not a marker of Lockgate.
    pub(in crate::lock) fn parse(text: &str) -> Option<Marker> {
        let body = text.strip_suffix('\n').filter(|_| text.len() <= MAX_TEXT)?;
        let mut lines = body.split('\n');
        let [id, epoch, place, prefix] = words(lines.next()?)?;
        let (seat, shape) = place.split_once('/')?;
        let (shape, joint) = cut(shape, JOINT)?;
        let (shape, left) = cut(shape, LEFT)?;
        let (shape, set) = shape.split_once('@').unwrap_or((shape, "0"));
        let (seat, shape, set) = (usize_of(seat)?, Shape::read(shape)?, number(set)?);
        let longest = Duration::from_millis(number(lines.next()?)?);
        let mut lines: Vec<&str> = lines.collect();
        let phase = match (joint, left) {
            (Some(seal), None) => Phase::Joint(seal),
            (None, Some(seal)) => {
                let next = lines.split_off(lines.len().min(shape.seats()));
                let (shape, seats) = next.split_first()?;
                let shape = Shape::read(shape.strip_prefix("> ")?)?;
                let seats: Vec<Seat> =
                    seats.iter().map(|line| seat_of(line)).collect::<Option<_>>()?;
                if seats.len() != shape.seats() {
                    return None;
                }
                Phase::Left(seal, Box::new(NextSet { shape, seats }))
            }
            (None, None) => Phase::Stands,
            (Some(_), Some(_)) => return None,
        };
        let seats: Vec<Seat> = lines.into_iter().map(seat_of).collect::<Option<_>>()?;
        let is_sound = word(id).is_some() && seat <= seats.len() && seats.len() == shape.seats();
        let seat = seat.checked_sub(1)?;
        let prefix = percent_decode_str(prefix).decode_utf8().ok()?.into_owned();
        let (id, epoch) = (id.into(), number(epoch)?);
        let deployment = Deployment { id, epoch, prefix, shape, seats, set, phase };
        let marker = Marker { deployment, seat, longest };
        // Each marker has one spelling only: scripts compare texts, and would take two spellings for two markers.
        (is_sound && marker.text() == text).then_some(marker)
    }

    /// Returns the text of the marker.
    pub(in crate::lock) fn text(&self) -> String {
        let (first, seats) = (self.deployment.told(self.seat), self.deployment.seats_text());
        format!("{first}\n{}\n{seats}", self.longest.as_millis())
    }
}

/// Cuts off this word and the number behind it, if the word is there. Returns `None` if no number follows it.
fn cut<'a>(text: &'a str, word: &str) -> Option<(&'a str, Option<u64>)> {
    match text.split_once(word) {
        None => Some((text, None)),
        Some((text, behind)) => Some((text, Some(number(behind)?))),
    }
}

/// Splits a line into words. Returns `None` if there are not `N`.
fn words<const N: usize>(line: &str) -> Option<[&str; N]> {
    line.split(' ').collect::<Vec<_>>().try_into().ok()
}

fn word(text: &str) -> Option<String> {
    let is_sound = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'?');
    ((1..=MAX_WORD).contains(&text.len()) && is_sound).then(|| text.to_owned())
}

fn number(text: &str) -> Option<u64> {
    let is_sound = (1..=18).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit());
    is_sound.then(|| text.parse().ok())?
}

fn usize_of(text: &str) -> Option<usize> {
    number(text)?.try_into().ok()
}

fn seat_of(line: &str) -> Option<Seat> {
    match line.split(' ').collect::<Vec<_>>().as_slice() {
        ["-", since] => Some(Seat::Blank(number(since)?)),
        [run_id, second] => Identity::read(run_id, second).map(Seat::Filled),
        [run_id, second, since] => {
            Some(Seat::Waiting(Identity::read(run_id, second)?, number(since)?))
        }
        _ => None,
    }
}

/// A note on a node that waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::lock) struct Note {
    pub(in crate::lock) who: Identity,
    /// The epoch in which the note was written.
    pub(in crate::lock) epoch: u64,
    /// The time of writing, by the node's clock in µs since 1970; 0: unknown.
    pub(in crate::lock) since: u64,
}

impl Note {
    /// Reads a note. Returns `None` if the text is not a note of Lockgate.
    pub(in crate::lock) fn parse(text: &str) -> Option<Note> {
        let [run_id, second, epoch, since] = words(text)?;
        let who = Identity::read(run_id, second)?;
        Some(Note { who, epoch: number(epoch)?, since: number(since)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn who(name: &str) -> Identity {
        Identity { run_id: name.into(), replication_id: "0f".into(), election: None }
    }

    fn marker() -> Marker {
        let seats = vec![Seat::Filled(who("aa")), Seat::Blank(3), Seat::Waiting(who("cc"), 6)];
        let shape = Shape::read("3").unwrap();
        let (prefix, phase) = ("lock %/é:".into(), Phase::Stands);
        let deployment =
            Deployment { id: "d1".into(), epoch: 7, prefix, shape, seats, set: 0, phase };
        Marker { deployment, seat: 2, longest: Duration::from_millis(30_000) }
    }

    #[test]
    fn it_is_written_as_others_read_it() {
        let text = "d1 7 3/3 lock%20%25%2F%C3%A9:\n30000\naa 0f\n- 3\ncc 0f 6\n";
        assert_eq!(marker().text(), text);
        assert_eq!(Marker::parse(text), Some(marker()));
        assert_eq!(marker().deployment.told(2), text.split('\n').next().unwrap());
        let given_up = text.replace("3/3", "3/3@2:joint:5");
        let read = Marker::parse(&given_up).unwrap();
        assert_eq!((read.deployment.set, &read.deployment.phase), (2, &Phase::Joint(5)));
        assert_eq!(read.text(), given_up);
        let left = format!("{}> 1\naa 0f\n", text.replace("3/3", "3/3:left:5"));
        let next =
            NextSet { shape: Shape::read("1").unwrap(), seats: vec![Seat::Filled(who("aa"))] };
        let read = Marker::parse(&left).unwrap();
        assert_eq!(read.deployment.phase, Phase::Left(5, Box::new(next)));
        assert_eq!((read.text(), read.deployment.seats.len()), (left, 3));
        assert!(marker().deployment.names(0, &who("aa")));
        assert!(!marker().deployment.names(1, &who("aa")));
        assert!(!marker().deployment.names(2, &who("cc")), "it only waits");
        assert!(!marker().deployment.names(9, &who("aa")));
        let mut deployment = marker().deployment;
        deployment.seats[1] = Seat::Waiting(who("dd"), 7);
        deployment.seats.push(Seat::Filled(who("cc")));
        let found = |from, run_id| deployment.seat_of(from..4, run_id);
        assert_eq!(
            ["aa", "cc", "dd", "ee"].map(|it| found(0, it)),
            [Some(0), Some(3), Some(1), None]
        );
        assert_eq!(found(1, "aa"), None, "it is another voter's");
    }

    #[test]
    fn whatever_else_lies_there_is_none() {
        let good = marker().text();
        for bad in [
            "",
            "\n",
            "hello",
            &good[..good.len() - 1],
            &format!("{good}\n"),
            &format!("{good}dd 0f\n"),
            &good.replace("3/3", "0/3"),
            &good.replace("3/3", "4/3"),
            &good.replace("3/3", "3/4"),
            &good.replace("d1 7", "d1 07"),
            &good.replace("d1 7", "d1 -7"),
            &good.replace("d1 7", "d1  7"),
            &good.replace("30000", "99999999999999999999"),
            &good.replace("- 3", "-"),
            &good.replace("cc 0f 6", "cc 0f 6 7"),
            &good.replace("cc 0f 6", "cc 0f x"),
            &good.replace("aa 0f", "a\ra 0f"),
            &good.replace("%20", "%2"),
            &good.replace("%20", "%FF"),
            &good.replace("d1", &"d".repeat(MAX_TEXT)),
            &good.replace("3/3", "3/3@0"),
            &good.replace("3/3", "3/3:joint"),
            &good.replace("3/3", "3/3:joint:1:left:1"),
            &good.replace("3/3", "3/3:left:1"),
            &good.replace("3/3", "3/3:gone"),
            &format!("{good}> 1\naa 0f\n"),
            &format!("{}> 2\naa 0f\n", good.replace("3/3", "3/3:left:1")),
        ] {
            assert_eq!(Marker::parse(bad), None, "{bad:?}");
        }
        for bad in ["", "a b 1", "a b 1 2 3", "a b x 1", "a\n b 1 2"] {
            assert_eq!(Note::parse(bad), None, "{bad:?}");
        }
        let note = Note { who: who("aa"), epoch: 4, since: 1_700_000_000_000_000 };
        assert_eq!(Note::parse("aa 0f 4 1700000000000000"), Some(note));
    }

    fn seat() -> impl Strategy<Value = Seat> {
        let who = || {
            ("[0-9a-f]{1,40}", "[0-9a-f]{1,40}|[?]", proptest::option::of(0u64..1 << 50)).prop_map(
                |(run_id, replication_id, election)| Identity { run_id, replication_id, election },
            )
        };
        let epoch = || 0u64..1 << 50;
        prop_oneof![
            who().prop_map(Seat::Filled),
            (who(), epoch()).prop_map(|(who, since)| Seat::Waiting(who, since)),
            epoch().prop_map(Seat::Blank)
        ]
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            id in "[0-9a-f]{32}",
            epoch in 0u64..1 << 50,
            prefix in ".{0,40}",
            seats in proptest::collection::vec(seat(), 1..10),
            at in 0usize..10,
            longest in 0u64..1 << 40,
            set in 0u64..3,
            phase in 0usize..3,
        ) {
            let seat = at % seats.len();
            let shape = Shape::read(&seats.len().to_string()).unwrap();
            let next = NextSet { shape: shape.clone(), seats: seats.clone() };
            let phase = [Phase::Stands, Phase::Joint(set + 7), Phase::Left(set, Box::new(next))][phase].clone();
            let deployment = Deployment { id, epoch, prefix, shape, seats, set, phase };
            let marker = Marker { deployment, seat, longest: Duration::from_millis(longest) };
            prop_assert_eq!(Marker::parse(&marker.text()), Some(marker));
        }

        #[test]
        fn nothing_makes_it_panic_and_what_is_read_is_written_alike(
            edits in proptest::collection::vec((0usize..60, ".?"), 0..6),
            noise in ".{0,80}",
        ) {
            let _ = Marker::parse(&noise);
            let _ = Note::parse(&noise);
            let mut text: Vec<char> = marker().text().chars().collect();
            for (at, with) in edits {
                let at = at % text.len().max(1);
                text.splice(at..(at + 1).min(text.len()), with.chars());
            }
            let text: String = text.into_iter().collect();
            if let Some(read) = Marker::parse(&text) {
                prop_assert_eq!(read.text(), text);
            }
        }
    }
}
