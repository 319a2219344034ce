//! Which of two sets of lock nodes votes: a pure function of what their nodes report.

use std::{cmp::Ordering, fmt};

use super::super::{
    marker::{Deployment, KnownSet, NextSet, Phase, Seat},
    seats::Survey,
    self_report::SelfReport,
};
use crate::lock::voters::Voters;

/// Which set of lock nodes votes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SetNow {
    /// `locks.nodes`.
    Nodes,
    /// None: `locks.nodes` are sealed.
    Sealed,
    /// None: `locks.next_nodes` were decided upon, and have not begun.
    Decided,
    /// `locks.next_nodes`.
    NextNodes,
    /// Other nodes than `locks.next_nodes` were decided upon.
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

/// One of the two sets, as its nodes report it.
#[derive(Clone, Copy)]
pub(super) struct SetReport<'a> {
    pub(super) voters: &'a Voters,
    /// By seat. `None`: the node does not answer.
    pub(super) looks: &'a [Option<SelfReport>],
    pub(super) survey: &'a Survey,
}

/// The decision that another set follows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ChangeDecision {
    /// The first agreement of the next set.
    pub(super) first: Deployment,
    /// The seal under which the locks were copied.
    pub(super) seal: u64,
    /// Whether a quorum of the next set has begun.
    pub(super) has_begun: bool,
}

/// Which of two sets votes, and the decision behind it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Which {
    pub(super) now: SetNow,
    /// The last decision, as far as these nodes show it.
    pub(super) decision: Option<ChangeDecision>,
}

/// Says which set votes: `from`, the nodes of `locks.nodes`, or `to`, those of `locks.next_nodes`. `known`: the set
/// that the caller knows to be `locks.nodes`; `None`: the caller has only now looked at both sets.
pub(super) fn which(from: SetReport<'_>, to: SetReport<'_>, known: Option<&KnownSet>) -> Which {
    let decision = decision(from, to);
    let now = if follows(from, to, known) {
        SetNow::NextNodes
    } else if let Some(decision) = &decision {
        match decision.has_begun {
            true => SetNow::NextNodes,
            false if decision.first.shape != to.voters.shape() => SetNow::Others,
            false => SetNow::Decided,
        }
    } else {
        undecided(from, to, known)
    };
    Which { now, decision }
}

/// Whether `to` votes as a set that comes after `from`, whatever is left of the decision.
fn follows(from: SetReport<'_>, to: SetReport<'_>, known: Option<&KnownSet>) -> bool {
    let Some(theirs) = later_set(to, known) else { return false };
    match (from.agreed(), known) {
        // Nodes of `from` that have forgotten that their set was left may since have got seats in a later set to which
        // they belong too.
        (Some(agreed), _) if agreed.set >= theirs.set => false,
        (Some(agreed), None) => agreed.id == theirs.id,
        (None, None) => false,
        (_, Some(known)) => theirs.set > known.set,
    }
}

/// Returns the agreement of `to`, if its nodes vote and it is not the first set of its deployment. For a caller that
/// knows `locks.nodes`, other deployments do not count.
fn later_set<'a>(to: SetReport<'a>, known: Option<&KnownSet>) -> Option<&'a Deployment> {
    let theirs = to.agreed().filter(|theirs| theirs.stands() && theirs.set > 0)?;
    known.is_none_or(|known| known.id == theirs.id).then_some(theirs)
}

/// Says which set votes if no decision is found.
fn undecided(from: SetReport<'_>, to: SetReport<'_>, known: Option<&KnownSet>) -> SetNow {
    let theirs = later_set(to, known);
    match from.agreed() {
        // All nodes that agree belong to both lists: the set is the list whose nodes the agreement names.
        Some(agreed) if theirs == Some(agreed) => {
            // If a seat is blank, both lists may have all nodes that are named.
            let has_changed = match known {
                Some(known) => known.set < agreed.set,
                None => from.has_left(agreed) && !to.has_left(agreed),
            };
            match to.named(agreed).cmp(&from.named(agreed)) {
                Ordering::Greater => SetNow::NextNodes,
                Ordering::Equal if has_changed => SetNow::NextNodes,
                Ordering::Equal | Ordering::Less => SetNow::Nodes,
            }
        }
        Some(Deployment { phase: Phase::Stands, .. }) => SetNow::Nodes,
        Some(_) => SetNow::Sealed,
        // For a caller that knows its set, `follows` has ruled out a later one: with nodes of both lists, these may
        // be its own.
        None if theirs.is_some() && known.is_none() => SetNow::NextNodes,
        None => SetNow::Unknown,
    }
}

/// Returns the last decision, as far as these nodes show it.
fn decision(from: SetReport<'_>, to: SetReport<'_>) -> Option<ChangeDecision> {
    let (first, seal) = decided(from, to)?;
    let has_begun = to
        .agreed()
        .is_some_and(|it| it.id == first.id && it.set == first.set && it.epoch >= first.epoch);
    Some(ChangeDecision { first, seal, has_begun })
}

fn decided(from: SetReport<'_>, to: SetReport<'_>) -> Option<(Deployment, u64)> {
    if let Some(left) = from.agreed()
        && let Phase::Left(seal, successor) = &left.phase
    {
        return Some((first_of(left, successor), *seal));
    }
    // The next set gets no marker before it is decided upon.
    let before: Vec<&Deployment> = from.markers().collect();
    let seal_before = |next: &Deployment| {
        let is_before = |it: &&&Deployment| it.id == next.id && it.set + 1 == next.set;
        let last = before.iter().filter(is_before).max_by_key(|it| it.epoch)?;
        if last.epoch >= next.epoch {
            // The next set could not begin, and the set before was sealed again.
            return None;
        }
        match last.phase {
            Phase::Stands => None,
            Phase::Joint(seal) | Phase::Left(seal, _) => Some(seal),
        }
    };
    let begun = to.markers().chain(from.markers()).filter(|it| it.stands());
    let begun = begun.filter_map(|next| seal_before(next).map(|seal| (next, seal)));
    begun.max_by_key(|(next, _)| next.epoch).map(|(next, seal)| (next.clone(), seal))
}

impl<'a> SetReport<'a> {
    /// Returns the agreement of a quorum of these nodes.
    fn agreed(self) -> Option<&'a Deployment> {
        self.survey.committed.as_ref().map(|accepted| &accepted.deployment)
    }

    /// Returns the agreement that each node has accepted last.
    fn markers(self) -> impl Iterator<Item = &'a Deployment> {
        let markers = self.looks.iter().flatten().filter_map(SelfReport::marker);
        markers.map(|marker| &marker.deployment)
    }

    /// Counts the seats that have the node which this deployment names.
    fn named(self, deployment: &Deployment) -> usize {
        let is_named = |(seat, look): &(usize, &Option<SelfReport>)| {
            let who = look.as_ref().and_then(SelfReport::identity);
            who.is_some_and(|who| deployment.names(*seat, &who))
        };
        self.looks.iter().enumerate().filter(is_named).count()
    }

    /// Whether a node of this list is not in the set of `agreed`, but was in an earlier one.
    fn has_left(self, agreed: &Deployment) -> bool {
        self.markers().any(|theirs| theirs.id == agreed.id && theirs.set < agreed.set)
    }

    /// Whether a quorum of these are the nodes that `first` names. `if_silent`: whether a node that does not answer
    /// counts as one.
    pub(super) fn are_of(self, first: &Deployment, if_silent: bool) -> bool {
        let is_named = |seat: usize| match &self.looks[seat] {
            Some(look) => look.identity().is_some_and(|who| first.names(seat, &who)),
            None => if_silent && !first.is_blank(seat),
        };
        self.voters.agree(|_| false, is_named)
    }

    /// Whether these nodes vote as a later set than the known one. All of them must be there, on the seats that they
    /// have on the list: a quorum of them may also be a quorum of another list, which may be the one that votes.
    pub(super) fn is_later(self, known: &KnownSet) -> bool {
        let Some(agreed) = self.agreed() else { return false };
        let has_seat = |(seat, look): (usize, &Option<SelfReport>)| {
            let who = look.as_ref().and_then(SelfReport::identity);
            match &agreed.seats[seat] {
                Seat::Filled(named) | Seat::Waiting(named, _) => who.as_ref() == Some(named),
                Seat::Blank(_) => false,
            }
        };
        known.is_before(agreed)
            && agreed.seats.len() == self.looks.len()
            && self.looks.iter().enumerate().all(has_seat)
    }
}

/// Returns the first agreement of the set that follows one that was left.
pub(super) fn first_of(left: &Deployment, successor: &NextSet) -> Deployment {
    let NextSet { shape, seats } = successor.clone();
    let (epoch, set) = (left.epoch + 1, left.set + 1);
    Deployment { epoch, set, shape, seats, phase: Phase::Stands, ..left.clone() }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{
        super::super::{
            marker::{Identity, Marker},
            self_report::MarkerFound,
        },
        *,
    };

    /// Makes seats of nodes with names of one letter; `-`: no node.
    fn seats(names: &str) -> Vec<Seat> {
        let who = |name: char| Identity {
            run_id: name.to_string(),
            replication_id: "r".into(),
            election: None,
        };
        let seat = |name| if name == '-' { Seat::Blank(0) } else { Seat::Filled(who(name)) };
        names.chars().map(seat).collect()
    }

    fn voters(nodes: usize) -> Voters {
        Voters::with_seats(std::iter::repeat_n(1, nodes))
    }

    fn agreement(epoch: u64, set: u64, names: &str, phase: Phase) -> Deployment {
        let (id, prefix) = ("d".to_owned(), "lock:".to_owned());
        let shape = voters(names.len()).shape();
        Deployment { id, epoch, prefix, shape, seats: seats(names), set, phase }
    }

    fn stands(epoch: u64, set: u64, names: &str) -> Deployment {
        agreement(epoch, set, names, Phase::Stands)
    }

    fn sealed(epoch: u64, set: u64, names: &str) -> Deployment {
        agreement(epoch, set, names, Phase::Joint(7))
    }

    fn left(epoch: u64, set: u64, names: &str, next: &str) -> Deployment {
        let next = NextSet { shape: voters(next.len()).shape(), seats: seats(next) };
        agreement(epoch, set, names, Phase::Left(7, Box::new(next)))
    }

    fn of_another(deployment: Deployment) -> Deployment {
        Deployment { id: "other".into(), ..deployment }
    }

    /// Makes the reports of the nodes of one list: each node's name, with the number, from 1, of the agreement that
    /// it has accepted last; 0: it has no marker. `-`: it does not answer.
    fn looks(nodes: &str, agreements: &[Deployment]) -> Vec<Option<SelfReport>> {
        let look = |(place, node): (usize, &str)| {
            let (name, number) = node.split_at_checked(1).filter(|(name, _)| *name != "-")?;
            let number: usize = number.parse().unwrap();
            let accepted = number.checked_sub(1).map(|number| &agreements[number]);
            let marker = accepted.map(|deployment| {
                let own = deployment.seats.iter().position(|seat| [seat.clone()] == *seats(name));
                let (deployment, seat) = (deployment.clone(), own.unwrap_or(place));
                MarkerFound::Marker(Marker { deployment, seat, longest: Duration::ZERO })
            });
            Some(SelfReport {
                run_id: Some(name.into()),
                replication_id: Some("r".into()),
                is_master: true,
                marker: marker.unwrap_or_default(),
                accepted: number.to_string(),
                promised: number.to_string(),
                ..SelfReport::default()
            })
        };
        nodes.split(' ').enumerate().map(look).collect()
    }

    struct ChangeRow<'a> {
        what: &'a str,
        agreements: Vec<Deployment>,
        nodes: &'a str,
        next_nodes: &'a str,
        /// What a caller finds that has only now looked.
        now: SetNow,
        /// The same for a caller that knows `locks.nodes` to be the set of this number.
        known: (u64, SetNow),
    }

    fn row<'a>(
        what: &'a str,
        agreements: impl Into<Vec<Deployment>>,
        [nodes, next_nodes]: [&'a str; 2],
        now: SetNow,
        known: (u64, SetNow),
    ) -> ChangeRow<'a> {
        ChangeRow { what, agreements: agreements.into(), nodes, next_nodes, now, known }
    }

    #[test]
    fn each_state_of_a_change_has_one_set_that_votes() {
        use SetNow::{Decided, NextNodes, Nodes, Others, Sealed, Unknown};
        // From abc to def.
        let old = || stands(1, 0, "abc");
        let joint = || sealed(2, 0, "abc");
        let gone = || left(3, 0, "abc", "def");
        let new = || stands(4, 1, "def");
        // From abc to abd; from one node to three.
        let both = || [left(3, 0, "abc", "abd"), stands(4, 1, "abd")];
        let grown = || [left(3, 0, "a", "-ba"), stands(4, 1, "-ba")];
        let rows = [
            row("nothing is begun", [old()], ["a1 b1 c1", "d0 e0 f0"], Nodes, (0, Nodes)),
            row("too few answer", [old()], ["a1 - -", "d0 e0 f0"], Unknown, (0, Unknown)),
            row("nobody has a marker", [], ["a0 b0 c0", "d0 e0 f0"], Unknown, (0, Unknown)),
            row("sealed", [joint()], ["a1 b1 c1", "d0 e0 f0"], Sealed, (0, Sealed)),
            row("one is sealed", [old(), joint()], ["a2 b1 c1", "d0 e0 f0"], Nodes, (0, Nodes)),
            row("decided", [gone()], ["a1 b1 c1", "d0 e0 f0"], Decided, (0, Decided)),
            row(
                "one knows the decision",
                [joint(), gone()],
                ["a2 b1 c1", "d0 e0 f0"],
                Sealed,
                (0, Sealed),
            ),
            row("one has begun", [gone(), new()], ["a1 b1 c1", "d2 e0 f0"], Decided, (0, Decided)),
            row(
                "one has begun, and one sealed node is left to tell",
                [joint(), new()],
                ["a1 - -", "d2 e0 f0"],
                Decided,
                (0, Decided),
            ),
            row("begun", [gone(), new()], ["a1 b1 c1", "d2 e2 f0"], NextNodes, (0, NextNodes)),
            row("begun, old ones away", [new()], ["- - -", "d1 e1 f1"], NextNodes, (0, NextNodes)),
            row(
                "begun, old ones empty",
                [new()],
                ["a0 b0 c0", "d1 e1 f1"],
                NextNodes,
                (0, NextNodes),
            ),
            row(
                "begun, old ones are seated as a deployment of their own",
                [of_another(stands(1, 0, "abc")), new()],
                ["a1 b1 c1", "d2 e2 f2"],
                Nodes,
                (0, NextNodes),
            ),
            row(
                "another deployment of several sets",
                [old(), of_another(new())],
                ["a1 b1 c1", "d2 e2 f2"],
                Nodes,
                (0, Nodes),
            ),
            row(
                "decided upon four nodes, of which the list has three",
                [left(3, 0, "abc", "defg")],
                ["a1 b1 c1", "d0 e0 f0"],
                Others,
                (0, Others),
            ),
            row(
                "sealed again behind a beginning that came to nothing",
                [sealed(5, 0, "abc"), new()],
                ["a1 b1 c1", "d2 e0 f0"],
                Sealed,
                (0, Sealed),
            ),
            row(
                "back on nodes that were left once",
                [stands(8, 2, "abc"), left(7, 1, "def", "abc")],
                ["a1 b1 c1", "d2 e2 f2"],
                Nodes,
                (0, Nodes),
            ),
            row("kept nodes: decided", both(), ["a1 b1 c1", "a1 b1 d0"], Decided, (0, Decided)),
            row("kept nodes: begun", both(), ["a2 b2 c1", "a2 b2 d2"], NextNodes, (0, NextNodes)),
            row(
                "kept nodes: one has begun",
                both(),
                ["a2 b1 c1", "a2 b1 d0"],
                Decided,
                (0, Decided),
            ),
            row(
                "kept nodes: begun, the one that is left is away",
                both(),
                ["a2 b2 -", "a2 b2 d2"],
                NextNodes,
                (0, NextNodes),
            ),
            // Without the nodes in which the lists differ, both match the set.
            row(
                "kept nodes: begun, those that differ are away",
                both(),
                ["a2 b2 -", "a2 b2 -"],
                Nodes,
                (0, NextNodes),
            ),
            row("one to three: decided", grown(), ["a1", "c0 b0 a1"], Decided, (0, Decided)),
            row(
                "one to three: another has begun",
                grown(),
                ["a1", "c0 b2 a1"],
                Decided,
                (0, Decided),
            ),
            row("one to three: begun", grown(), ["a2", "c0 b2 a2"], NextNodes, (0, NextNodes)),
            // The state that `round` avoids by the order of its writes: no node knows the seal any more.
            row(
                "one to three: the old one alone",
                grown(),
                ["a2", "c0 b0 a2"],
                Unknown,
                (0, Unknown),
            ),
        ];
        for ChangeRow { what, agreements, nodes, next_nodes, now, known: (known, to_who_knows) } in
            rows
        {
            let (from, to) = (looks(nodes, &agreements), looks(next_nodes, &agreements));
            let (voters_from, voters_to) = (voters(from.len()), voters(to.len()));
            let survey = |voters, looks| Survey::of_any_phase(voters, looks, "lock:");
            let (of_from, of_to) = (survey(&voters_from, &from), survey(&voters_to, &to));
            let from = SetReport { voters: &voters_from, looks: &from, survey: &of_from };
            let to = SetReport { voters: &voters_to, looks: &to, survey: &of_to };
            let known = KnownSet { id: "d".into(), set: known };
            let found = [None, Some(&known)].map(|known| which(from, to, known).now);
            assert_eq!(found, [now, to_who_knows], "{what}");
        }
    }
}
