//! Voters, and the seats of each.
//!
//! A voter is an entry of `locks.nodes`. It has a seat for each Redis that may vote for it at the
//! same time: on different locks, never twice on one. So quorums are counted by voters, whatever
//! number of seats each has.
//!
//! Agreements are written on seats. A voter agrees once every seat by which it could vote has agreed: the vote on a
//! lock comes from one of its seats, and it is not known which locks there are.

use std::{fmt, ops::Range};

use super::quorum::quorum;
use crate::config::LocksConfig;

/// More seats than a deployment can have, as a marker names all of them.
const MOST_SEATS: usize = 4096;

/// The voters, in the order of `locks.nodes`; their seats have numbers from 0 through all of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Voters {
    /// The voter of each seat.
    of: Vec<usize>,
    count: usize,
}

impl Voters {
    /// Returns the voters of a configuration.
    pub(super) fn new(config: &LocksConfig) -> Voters {
        Voters::with_seats(config.nodes.iter().map(|node| node.seats()))
    }

    /// Makes voters with so many seats each.
    pub(super) fn with_seats(seats: impl Iterator<Item = usize>) -> Voters {
        let (mut of, mut count) = (Vec::new(), 0);
        for seats in seats {
            debug_assert!(seats > 0, "a voter without a seat cannot vote");
            of.extend(std::iter::repeat_n(count, seats));
            count += 1;
        }
        Voters { of, count }
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Returns the number of all seats.
    pub(super) fn seats(&self) -> usize {
        self.of.len()
    }

    /// Returns for each voter the largest number of any of its seats.
    pub(super) fn most(&self, number: impl Fn(usize) -> u64) -> Vec<u64> {
        let mut most = vec![0; self.count];
        for (seat, voter) in self.of.iter().enumerate() {
            most[*voter] = most[*voter].max(number(seat));
        }
        most
    }

    /// Returns the first seat of a voter.
    pub(super) fn first(&self, voter: usize) -> usize {
        self.of.partition_point(|of| *of < voter)
    }

    /// Returns a seat with what is known of the others.
    pub(super) fn place(&self, seat: usize) -> SeatPlace {
        SeatPlace { seat, beside: self.beside(seat), shape: self.shape() }
    }

    /// Returns how many seats each voter has, in their order.
    pub(super) fn shape(&self) -> Shape {
        let sizes = self.of.chunk_by(|one, next| one == next).map(<[usize]>::len);
        Shape(sizes.collect())
    }

    /// Returns all seats of the voter to which `seat` belongs.
    pub(super) fn beside(&self, seat: usize) -> Range<usize> {
        let voter = self.of[seat];
        self.first(voter)..self.first(voter + 1)
    }

    /// Returns the voter to which a seat belongs.
    pub(super) fn of(&self, seat: usize) -> usize {
        self.of[seat]
    }

    /// Whether a quorum of the voters agrees: each by at least one seat, and by all of its seats that are not blank.
    pub(super) fn agree(
        &self,
        is_blank: impl Fn(usize) -> bool,
        agrees: impl Fn(usize) -> bool,
    ) -> bool {
        let all = self.agreeing(is_blank, agrees);
        all.into_iter().filter(|agrees| *agrees).count() >= quorum(self.count)
    }

    /// Whether there are other voters than that of `seat`, and all of them agree.
    pub(super) fn others_agree(
        &self,
        seat: usize,
        is_blank: impl Fn(usize) -> bool,
        agrees: impl Fn(usize) -> bool,
    ) -> bool {
        let all = self.agreeing(is_blank, agrees);
        let mut others = all.into_iter().enumerate().filter(|(voter, _)| *voter != self.of[seat]);
        self.count > 1 && others.all(|(_, agrees)| agrees)
    }

    /// Returns for each voter whether it agrees.
    fn agreeing(
        &self,
        is_blank: impl Fn(usize) -> bool,
        agrees: impl Fn(usize) -> bool,
    ) -> Vec<bool> {
        let mut agreeing = vec![false; self.count];
        let mut holding_out = vec![false; self.count];
        for (seat, voter) in self.of.iter().enumerate() {
            if agrees(seat) {
                agreeing[*voter] = true;
            } else if !is_blank(seat) {
                holding_out[*voter] = true;
            }
        }
        let all = agreeing.into_iter().zip(holding_out);
        all.map(|(agrees, holds_out)| agrees && !holds_out).collect()
    }

    /// Whether a quorum of the voters has a seat of which this is so.
    pub(super) fn have_any(&self, is_so: impl Fn(usize) -> bool) -> bool {
        let mut having = vec![false; self.count];
        for (seat, voter) in self.of.iter().enumerate() {
            having[*voter] |= is_so(seat);
        }
        having.into_iter().filter(|has| *has).count() >= quorum(self.count)
    }
}

/// A seat, and what is known of the others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SeatPlace {
    pub(super) seat: usize,
    /// All seats of its voter.
    pub(super) beside: Range<usize>,
    pub(super) shape: Shape,
}

/// How many seats each voter has: a deployment has the same shape for all proxies. As text
/// `5`, if each voter has one, else `1+16+1`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Shape(Vec<usize>);

impl Shape {
    /// Reads the text. Returns `None` if it is no shape.
    pub(super) fn read(text: &str) -> Option<Shape> {
        let number =
            |text: &str| text.parse().ok().filter(|number| (1..=MOST_SEATS).contains(number));
        let shape = match (text.strip_suffix('+'), text.contains('+')) {
            (Some(alone), _) => Shape(vec![number(alone)?]),
            (None, true) => Shape(text.split('+').map(number).collect::<Option<_>>()?),
            (None, false) => Shape(vec![1; number(text)?]),
        };
        (shape.seats() <= MOST_SEATS && shape.to_string() == text).then_some(shape)
    }

    /// Returns the number of all seats.
    pub(super) fn seats(&self) -> usize {
        self.0.iter().sum()
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.iter().all(|size| *size == 1) {
            return self.0.len().fmt(f);
        }
        let sizes: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        // Tells one voter with so many seats from so many voters.
        let alone = if sizes.len() == 1 { "+" } else { "" };
        write!(f, "{}{alone}", sizes.join("+"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_voter_agrees_by_all_seats_that_are_not_blank() {
        let voters = Voters::with_seats([1, 3, 1].into_iter());
        assert_eq!((voters.count(), voters.seats()), (3, 5));
        assert_eq!(voters.of, [0, 1, 1, 1, 2]);
        assert_eq!([0, 1, 2].map(|voter| voters.first(voter)), [0, 1, 4]);
        assert_eq!([0, 1, 3, 4].map(|seat| voters.beside(seat)), [0..1, 1..4, 1..4, 4..5]);
        assert_eq!(voters.shape().to_string(), "1+3+1");
        for (sizes, text) in
            [(&[1, 1, 1][..], "3"), (&[1], "1"), (&[16], "16+"), (&[2, 16], "2+16")]
        {
            let shape = Voters::with_seats(sizes.iter().copied()).shape();
            assert_eq!((shape.to_string().as_str(), shape.seats()), (text, sizes.iter().sum()));
            assert_eq!(Shape::read(text), Some(shape));
        }
        for bad in
            ["", "+", "0", "1+", "1+1", "01", "2++", "2+0", "-1", "5000", "4000+4000", "2+ 3"]
        {
            assert_eq!(Shape::read(bad), None, "{bad}");
        }
        let agree = |blank: &[usize], agreeing: &[usize]| {
            voters.agree(|seat| blank.contains(&seat), |seat| agreeing.contains(&seat))
        };
        assert!(agree(&[], &[0, 4]));
        assert!(agree(&[], &[0, 1, 2, 3]));
        assert!(!agree(&[], &[0, 1, 2]), "a seat holds out");
        assert!(agree(&[3], &[0, 1, 2]));
        assert!(!agree(&[1, 2, 3], &[0]), "a voter without anybody has no vote");
        assert!(!agree(&[], &[1, 2, 3]), "three seats are one voter");
        let others = |of, agreeing: &[usize]| {
            voters.others_agree(of, |seat| seat == 3, |seat| agreeing.contains(&seat))
        };
        assert!(others(0, &[1, 2, 4]) && others(1, &[0, 4]) && !others(4, &[0, 1]));
        assert!(!Voters::with_seats([3].into_iter()).others_agree(0, |_| false, |_| true), "alone");
        assert!(voters.have_any(|seat| matches!(seat, 2 | 4)));
        assert!(!voters.have_any(|seat| (1..4).contains(&seat)));
    }

    proptest! {
        /// What a quorum has agreed upon, each quorum on a lock knows.
        #[test]
        fn who_votes_for_a_quorum_has_agreed_for_one_voter(
            seats in prop_oneof![
                proptest::collection::vec(1usize..5, 1),
                proptest::collection::vec(1usize..5, 3),
                proptest::collection::vec(1usize..5, 5),
            ],
            blank in proptest::collection::vec(any::<bool>(), 25),
            agreeing in proptest::collection::vec(any::<bool>(), 25),
            shards in proptest::collection::vec(0usize..5, 5),
            order in Just((0usize..5).collect::<Vec<_>>()).prop_shuffle(),
        ) {
            let voters = Voters::with_seats(seats.iter().copied());
            if voters.agree(|seat| blank[seat], |seat| agreeing[seat]) {
                // One seat that is not blank votes on a lock for each voter of a quorum.
                let mut votes = Vec::new();
                for voter in order.into_iter().filter(|voter| *voter < voters.count()) {
                    let own = (0..voters.seats()).filter(|seat| voters.of[*seat] == voter);
                    let filled: Vec<usize> = own.filter(|seat| !blank[*seat]).collect();
                    if !filled.is_empty() {
                        votes.push(filled[shards[voter] % filled.len()]);
                    }
                }
                if let Some(votes) = votes.get(..quorum(voters.count())) {
                    prop_assert!(votes.iter().any(|seat| agreeing[*seat]), "{votes:?}");
                }
            }
        }
    }
}
