//! What the reports of all nodes add up to: which deployment they are, which of them have kept their memory, and
//! which change to write next. Pure: reports in, a plan out.

use std::time::Duration;

use super::{
    marker::{Deployment, Identity, Marker, Seat},
    self_report::SelfReport,
};
use crate::lock::voters::Voters;

/// A deployment as nodes have accepted it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Accepted {
    pub(super) ballot: String,
    pub(super) deployment: Deployment,
}

/// How far the wait of a node is, unless it votes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Waiting {
    /// The node must not be given the seat now: it is away, a replica, of another deployment, on another seat, or was
    /// just tried in vain.
    Unknown,
    /// There is no such node.
    Nobody,
    /// Locks that the node may have forgotten may still be held.
    Yes,
    /// All locks that the node may have forgotten have run out.
    Over,
}

/// The result of reading the reports of all nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Survey {
    /// The state that a quorum has accepted.
    pub(super) committed: Option<Accepted>,
    /// The newest state of this deployment that any node has accepted. It contains all that was
    /// committed.
    pub(super) newest: Option<Accepted>,
    /// The id of the surveyed deployment. `None`: no node has a marker, or there are several deployments, of which
    /// none has a quorum and none is the one that the proxy knows.
    pub(super) ours: Option<String>,
    /// The ids of all deployments whose marker a node has.
    pub(super) ids: Vec<String>,
    /// For each node, whether it has kept its memory since it was admitted.
    pub(super) intact: Vec<bool>,
    /// For each seat, whether its node is gone for good, whatever the newest state says.
    pub(super) gone: Vec<bool>,
    /// The longest PX that any of the nodes has stored.
    pub(super) longest: Duration,
    /// Whether every node has answered, and none has a marker.
    pub(super) is_blank: bool,
    /// The largest ballot that a node has promised.
    pub(super) promised: String,
}

/// A change to write on a quorum.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) next: Deployment,
    /// Nodes that may accept the change.
    pub(super) acceptors: Vec<usize>,
    /// Blank seats that have no part in the change.
    pub(super) blank: Vec<usize>,
    /// Acceptors that the change admits: they go first, and all of them must accept.
    pub(super) admitted: Vec<usize>,
    /// Nodes that wait from the change on: it is written on them once a quorum has accepted it.
    pub(super) joining: Vec<usize>,
}

/// The seats that a plan is about to change.
#[derive(Default)]
struct SeatChanges {
    /// Seats whose nodes have waited.
    admitted: Vec<usize>,
    /// Seats whose nodes wait from now on.
    joining: Vec<usize>,
    /// Whether a node that is gone leaves its seat.
    is_left: bool,
}

impl Plan {
    /// Whether these seats are those of a quorum of voters.
    pub(super) fn is_quorum(&self, voters: &Voters, seats: &[usize]) -> bool {
        voters.agree(|seat| self.blank.contains(&seat), |seat| seats.contains(&seat))
    }
}

/// Whether a marker is for this seat, in a deployment of these voters with that prefix.
fn is_placed(marker: &Marker, seat: usize, voters: &Voters, prefix: &str) -> bool {
    let deployment = &marker.deployment;
    marker.seat == seat && deployment.shape == voters.shape() && deployment.prefix == prefix
}

/// Whether a marker is for this seat, in a deployment of these voters with that prefix whose nodes vote.
pub(super) fn fits(marker: &Marker, seat: usize, voters: &Voters, prefix: &str) -> bool {
    is_placed(marker, seat, voters, prefix) && marker.deployment.stands()
}

/// Whether the node waits on its seat, and has kept its memory since the wait began.
pub(super) fn has_joined(deployment: &Deployment, seat: usize, look: &SelfReport) -> bool {
    let Seat::Waiting(named, _) = &deployment.seats[seat] else { return false };
    let theirs = look.marker().map(|marker| &marker.deployment);
    look.identity().as_ref() == Some(named)
        && theirs.is_some_and(|theirs| {
            theirs.id == deployment.id && theirs.seats.get(seat) == Some(&deployment.seats[seat])
        })
}

/// Whether the node on `seat` belongs to an earlier set and its seat has since gone to another node. A proxy whose
/// list is from before the change must not take the seat from that other node. A node of both sets that has missed
/// the change does not count: its seat is blank, or names it.
fn was_replaced(deployment: &Deployment, seat: usize, look: &SelfReport) -> bool {
    fn sits(seat: Option<&Seat>) -> Option<&Identity> {
        match seat? {
            Seat::Filled(who) | Seat::Waiting(who, _) => Some(who),
            Seat::Blank(_) => None,
        }
    }
    let (Some(marker), Some(now)) = (look.marker(), sits(deployment.seats.get(seat))) else {
        return false;
    };
    let theirs = &marker.deployment;
    theirs.id == deployment.id
        && theirs.set < deployment.set
        && look.identity().as_ref() != Some(now)
        && sits(theirs.seats.get(marker.seat)) != Some(now)
}

/// A node whose marker counts: its seat, its report and the marker.
type Fitting = (usize, SelfReport, Marker);

/// Returns which of these deployments is surveyed: the one that a quorum has, else the known one, else the only one.
fn surveyed_id(
    voters: &Voters,
    ids: &[String],
    all: &[Fitting],
    known: Option<&str>,
    is_gone: impl Fn(usize) -> bool,
) -> Option<String> {
    let has_quorum = |id: &str| {
        let has = || all.iter().filter(|(.., m)| m.deployment.id == id);
        // The newest marker knows which seats are blank.
        let newest = has().max_by_key(|(.., m)| m.deployment.epoch);
        let is_blank =
            |seat| is_gone(seat) || newest.is_some_and(|(.., m)| m.deployment.is_blank(seat));
        voters.agree(is_blank, |seat| has().any(|(of, ..)| *of == seat))
    };
    let ours = ids.iter().find(|id| has_quorum(id));
    let known = || ids.iter().find(|id| known == Some(id.as_str()));
    ours.or_else(known).or(ids.first().filter(|_| ids.len() == 1)).cloned()
}

impl Survey {
    /// Surveys the reports of all nodes, in the order of the configuration. `None`: the node did not answer. `known`
    /// is the deployment's id, if this proxy knows it.
    pub(super) fn new(
        voters: &Voters,
        looks: &[Option<SelfReport>],
        gone: &[bool],
        prefix: &str,
        known: Option<&str>,
    ) -> Survey {
        let fits = |marker: &Marker, seat| fits(marker, seat, voters, prefix);
        Survey::of_those(voters, looks, gone, known, fits)
    }

    /// Surveys as [`Survey::new`] does, but counts only markers of this set, if one is given.
    pub(super) fn of_set(
        set: Option<u64>,
        (voters, prefix): (&Voters, &str),
        looks: &[Option<SelfReport>],
        gone: &[bool],
        known: Option<&str>,
    ) -> Survey {
        let fits = |marker: &Marker, seat| {
            fits(marker, seat, voters, prefix) && set.is_none_or(|set| marker.deployment.set == set)
        };
        Survey::of_those(voters, looks, gone, known, fits)
    }

    /// Surveys as [`Survey::new`] does, but also counts markers of a set that is sealed or left.
    pub(super) fn of_any_phase(
        voters: &Voters,
        looks: &[Option<SelfReport>],
        prefix: &str,
    ) -> Survey {
        let fits = |marker: &Marker, seat| is_placed(marker, seat, voters, prefix);
        Survey::of_those(voters, looks, &[], None, fits)
    }

    fn of_those(
        voters: &Voters,
        looks: &[Option<SelfReport>],
        gone: &[bool],
        known: Option<&str>,
        fits: impl Fn(&Marker, usize) -> bool,
    ) -> Survey {
        let is_gone = |seat: usize| gone.get(seat) == Some(&true);
        let nodes = looks.len();
        let fitting = |(seat, look): (usize, &Option<SelfReport>)| {
            let look = look.as_ref()?;
            let marker = look.marker().filter(|marker| fits(marker, seat))?;
            Some((seat, look.clone(), marker.clone()))
        };
        let all: Vec<Fitting> = looks.iter().enumerate().filter_map(fitting).collect();
        let mut ids: Vec<String> = all.iter().map(|(.., m)| m.deployment.id.clone()).collect();
        ids.sort();
        ids.dedup();
        let id = surveyed_id(voters, &ids, &all, known, is_gone);
        let ours: Vec<&Fitting> =
            all.iter().filter(|(.., m)| Some(&m.deployment.id) == id.as_ref()).collect();
        let accepted = |(_, look, marker): &Fitting| Accepted {
            ballot: look.accepted.clone(),
            deployment: marker.deployment.clone(),
        };
        let is_agreed = |one: &Accepted| {
            let agrees = |seat| ours.iter().any(|other| other.0 == seat && accepted(other) == *one);
            voters.agree(|seat| is_gone(seat) || one.deployment.is_blank(seat), agrees)
        };
        let committed = ours.iter().map(|one| accepted(one)).find(is_agreed);
        // A larger ballot with a smaller epoch dates from before the nodes lost their promises.
        let may_follow = |one: &Accepted| {
            let epoch = |committed: &Accepted| committed.deployment.epoch;
            committed.as_ref().is_none_or(|before| one.deployment.epoch >= epoch(before))
        };
        let newest = ours
            .iter()
            .map(|one| accepted(one))
            .filter(may_follow)
            .max_by_key(|one| (one.ballot.clone(), one.deployment.epoch));
        let mut intact = vec![false; nodes];
        for (seat, look, marker) in &ours {
            let named = |who: &Identity| {
                marker.deployment.names(*seat, who)
                    && newest.as_ref().is_some_and(|newest| newest.deployment.names(*seat, who))
            };
            intact[*seat] = look.is_master && look.identity().is_some_and(|who| named(&who));
        }
        Survey {
            gone: (0..nodes).map(is_gone).collect(),
            committed,
            newest,
            intact,
            longest: ours.iter().map(|(.., m)| m.longest).max().unwrap_or_default(),
            is_blank: looks.iter().all(|look| look.as_ref().is_some_and(SelfReport::is_bare)),
            promised: looks.iter().flatten().map(|l| l.promised.clone()).max().unwrap_or_default(),
            ours: id,
            ids,
        }
    }

    /// Whether a quorum of voters has kept its memory.
    pub(super) fn is_covered(&self, voters: &Voters) -> bool {
        voters.agree(|seat| self.is_blank(seat), |seat| self.intact[seat])
    }

    /// Returns the state upon which those nodes of a single voter agree that have kept their memory, even if others
    /// are away. Each of them votes alone on its locks, so no later state was accepted without it, unless it counted
    /// as gone.
    pub(super) fn of_those_there(&self, looks: &[Option<SelfReport>]) -> Option<&Accepted> {
        let newest = self.newest.as_ref()?;
        let mut intact = looks.iter().zip(&self.intact).filter(|(_, intact)| **intact).peekable();
        intact.peek()?;
        let agrees = |look: &SelfReport| {
            look.accepted == newest.ballot
                && look.marker().is_some_and(|marker| marker.deployment == newest.deployment)
        };
        intact.all(|(look, _)| look.as_ref().is_some_and(agrees)).then_some(newest)
    }

    /// Whether the seat has no node in the newest state, or its node is gone.
    fn is_blank(&self, seat: usize) -> bool {
        self.gone[seat]
            || self.newest.as_ref().is_some_and(|newest| newest.deployment.is_blank(seat))
    }

    /// Whether there are other voters than that of `seat` and all of them have kept their memory: then they know every
    /// lock that the node on `seat` ever granted with them. A single voter grants alone, so no other node knows.
    pub(super) fn others_know(&self, voters: &Voters, seat: usize) -> bool {
        voters.others_agree(seat, |seat| self.is_blank(seat), |seat| self.intact[seat])
    }

    /// Whether a node has promised a larger ballot than that of the committed state, and refuses this one.
    fn is_held_up(&self, looks: &[Option<SelfReport>]) -> bool {
        let Some(committed) = &self.committed else { return false };
        let is_behind = |look: &SelfReport| {
            look.accepted != committed.ballot && look.promised > committed.ballot
        };
        let mut intact = looks.iter().zip(&self.intact).filter(|(_, intact)| **intact);
        intact.any(|(look, _)| look.as_ref().is_some_and(is_behind))
    }

    /// Plans the change to write now. Returns `None` if none is due or possible.
    pub(super) fn plan(
        &self,
        voters: &Voters,
        looks: &[Option<SelfReport>],
        waiting: &[Waiting],
        known: Option<&Deployment>,
        new: impl FnOnce() -> Deployment,
    ) -> Option<Plan> {
        let nodes = looks.len();
        let over = |seat: &usize| waiting[*seat] == Waiting::Over;
        let acceptors: Vec<usize> =
            (0..nodes).filter(|seat| self.intact[*seat] || over(seat)).collect();
        let Some(newest) = &self.newest else {
            return plan_without_markers(
                voters,
                looks,
                waiting,
                known.cloned().unwrap_or_else(new),
            );
        };
        let base = &newest.deployment;
        let is_covered = self.is_covered(voters);
        let blank: Vec<usize> = (0..nodes).filter(|seat| self.is_blank(*seat)).collect();
        // If too few nodes have kept their memory, those that have waited decide with them: otherwise all would wait
        // forever.
        if is_covered && (self.committed.as_ref() != Some(newest) || self.is_held_up(looks)) {
            // A change that another proxy began is completed first.
            let acceptors: Vec<usize> = (0..nodes).filter(|seat| self.intact[*seat]).collect();
            let (admitted, joining) = (vec![], vec![]);
            return Some(Plan { next: base.clone(), acceptors, blank, admitted, joining });
        }
        // The nodes that had a newer epoch may have forgotten it, but proxies have not: they learn no older one.
        let last = known.filter(|known| known.id == base.id).map_or(0, |known| known.epoch);
        let mut next = Deployment { epoch: base.epoch.max(last) + 1, ..base.clone() };
        let SeatChanges { mut admitted, joining, is_left } =
            self.change_seats(&mut next, base, looks, waiting, is_covered);
        let acceptors = if joining.is_empty() {
            acceptors
        } else {
            // Nodes are admitted in a later step. All acceptors of this one vote in the epoch before it, so each quorum
            // of that epoch contains one of them, which refuses proxies that do not know of the change.
            for seat in admitted.drain(..) {
                next.seats[seat] = base.seats[seat].clone();
            }
            (0..nodes).filter(|seat| self.intact[*seat]).collect()
        };
        let is_overtaken = is_covered && last > base.epoch;
        let is_change = !joining.is_empty() || !admitted.is_empty() || is_overtaken || is_left;
        let plan = Plan { next, acceptors, blank, admitted, joining };
        (is_change && plan.is_quorum(voters, &plan.acceptors)).then_some(plan)
    }

    /// Gives the seats of `base` in `next` to the nodes that have waited, or wait from now on, and takes them from those
    /// that are gone. `is_covered`: enough nodes have kept their memory to decide alone.
    fn change_seats(
        &self,
        next: &mut Deployment,
        base: &Deployment,
        looks: &[Option<SelfReport>],
        waiting: &[Waiting],
        is_covered: bool,
    ) -> SeatChanges {
        let mut changes = SeatChanges::default();
        for (seat, look) in looks.iter().enumerate() {
            if self.gone[seat] && !base.is_blank(seat) {
                next.seats[seat] = Seat::Blank(next.epoch);
                changes.is_left = true;
            }
            let Some(look) = look.as_ref().filter(|_| !self.intact[seat]) else { continue };
            let Some(who) = look.identity() else { continue };
            if was_replaced(base, seat, look) {
                continue;
            }
            match waiting[seat] {
                Waiting::Unknown | Waiting::Nobody => {}
                // The seat's earlier node may still vote for another proxy: it loses the seat first, and the wait
                // begins after that.
                _ if is_covered && !has_joined(base, seat, look) => {
                    next.seats[seat] = Seat::Waiting(who, next.epoch);
                    changes.joining.push(seat);
                }
                Waiting::Over => {
                    next.seats[seat] = Seat::Filled(who);
                    changes.admitted.push(seat);
                }
                Waiting::Yes => {}
            }
        }
        changes
    }
}

/// Plans how the nodes that have waited become the deployment `last`, which is new, or which this proxy remembers: no
/// node has a marker.
fn plan_without_markers(
    voters: &Voters,
    looks: &[Option<SelfReport>],
    waiting: &[Waiting],
    last: Deployment,
) -> Option<Plan> {
    let seats_that = |is: Waiting| (0..looks.len()).filter(move |seat| waiting[*seat] == is);
    let mut next = Deployment { epoch: last.epoch + 1, ..last };
    for (seat, look) in looks.iter().enumerate() {
        let who = look.as_ref().and_then(SelfReport::identity);
        let admitted = who.filter(|_| waiting[seat] == Waiting::Over);
        next.seats[seat] = admitted.map_or(Seat::Blank(next.epoch), Seat::Filled);
    }
    // No node knows which seats were blank, so every seat that has a node is needed.
    let blank = seats_that(Waiting::Nobody).collect();
    let acceptors: Vec<usize> = seats_that(Waiting::Over).collect();
    let (admitted, joining) = (acceptors.clone(), vec![]);
    let plan = Plan { next, acceptors, blank, admitted, joining };
    plan.is_quorum(voters, &plan.acceptors).then_some(plan)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::{
        members::{marker::Phase, self_report::MarkerFound},
        quorum::quorum,
    };
    use proptest::prelude::*;

    fn who(name: &str) -> Identity {
        Identity { run_id: name.into(), replication_id: "r".into(), election: None }
    }

    fn deployment(epoch: u64, seats: Vec<Seat>) -> Deployment {
        deployment_of(&alone(seats.len()), epoch, seats)
    }

    fn deployment_of(voters: &Voters, epoch: u64, seats: Vec<Seat>) -> Deployment {
        let shape = voters.shape();
        let (prefix, phase) = ("lock:".into(), Phase::Stands);
        Deployment { id: "d".into(), epoch, prefix, shape, seats, set: 0, phase }
    }

    /// Makes the report of node `name`, which has accepted this.
    fn look(name: &str, seat: usize, accepted: Option<(&str, &Deployment)>) -> Option<SelfReport> {
        let marker = |deployment: &Deployment| {
            let longest = Duration::from_secs(3);
            MarkerFound::Marker(Marker { deployment: deployment.clone(), seat, longest })
        };
        let ballot = accepted.map(|(ballot, _)| ballot.to_owned()).unwrap_or_default();
        Some(SelfReport {
            run_id: Some(name.into()),
            replication_id: Some("r".into()),
            is_master: true,
            marker: accepted.map_or(MarkerFound::Nothing, |(_, deployment)| marker(deployment)),
            promised: ballot.clone(),
            accepted: ballot,
            ..SelfReport::default()
        })
    }

    fn filled(names: &[&str]) -> Vec<Seat> {
        names.iter().map(|name| Seat::Filled(who(name))).collect()
    }

    /// Makes this many voters, each with one seat.
    fn alone(voters: usize) -> Voters {
        Voters::with_seats(std::iter::repeat_n(1, voters))
    }

    fn surveyed(looks: &[Option<SelfReport>], known: Option<&str>) -> Survey {
        Survey::new(&alone(looks.len()), looks, &[], "lock:", known)
    }

    /// Counts the nodes that have kept their memory.
    fn intact(survey: &Survey) -> usize {
        survey.intact.iter().filter(|intact| **intact).count()
    }

    fn plan(looks: &[Option<SelfReport>], waiting: &[Waiting]) -> Option<Plan> {
        let survey = surveyed(looks, None);
        survey.plan(&alone(looks.len()), looks, waiting, None, || {
            deployment(0, vec![Seat::Blank(0); looks.len()])
        })
    }

    const NONE: [Waiting; 3] = [Waiting::Yes; 3];

    #[test]
    fn where_all_agree_nothing_is_to_be_done() {
        let now = deployment(1, filled(&["a", "b", "c"]));
        let looks: Vec<_> =
            (0..3).map(|seat| look(["a", "b", "c"][seat], seat, Some(("1", &now)))).collect();
        let survey = surveyed(&looks, None);
        assert_eq!(survey.committed.as_ref().map(|c| &c.deployment), Some(&now));
        assert_eq!((intact(&survey), survey.longest), (3, Duration::from_secs(3)));
        assert_eq!(plan(&looks, &NONE), None);
        let other = Survey::new(&alone(3), &looks, &[], "other:", None);
        assert_eq!((other.committed, other.newest), (None, None), "another prefix");
    }

    #[test]
    fn a_stranger_waits_on_its_seat_before_it_votes() {
        let now = deployment(1, filled(&["a", "b", "c"]));
        let mut looks: Vec<_> =
            (0..3).map(|seat| look(["a", "b", "c"][seat], seat, Some(("1", &now)))).collect();
        looks[2] = look("x", 2, None);
        // The length of the wait does not matter: another proxy may still reach the seat's earlier node.
        for waiting in [Waiting::Yes, Waiting::Over] {
            let plan = plan(&looks, &[Waiting::Yes, Waiting::Yes, waiting]).unwrap();
            assert_eq!(plan.next.seats[2], Seat::Waiting(who("x"), 2));
            assert_eq!(
                (plan.acceptors, plan.admitted, plan.joining),
                (vec![0, 1], vec![], vec![2])
            );
        }
        let joined =
            deployment(2, [filled(&["a", "b"]), vec![Seat::Waiting(who("x"), 2)]].concat());
        let looks: Vec<_> =
            (0..3).map(|seat| look(["a", "b", "x"][seat], seat, Some(("2", &joined)))).collect();
        assert_eq!(plan(&looks, &NONE), None);
        let over = [Waiting::Yes, Waiting::Yes, Waiting::Over];
        let plan = plan(&looks, &over).unwrap();
        assert_eq!(plan.next, deployment(3, filled(&["a", "b", "x"])));
        assert_eq!(plan.admitted, [2]);
    }

    #[test]
    fn a_node_of_before_a_change_takes_no_seat_from_the_one_that_replaced_it() {
        let before = deployment(4, filled(&["a", "b", "c"]));
        let changed = |seats| Deployment { set: 1, ..deployment(7, seats) };
        let looks = |now: &Deployment, third| {
            let both = ["a", "b"].iter().enumerate();
            let mut looks: Vec<_> =
                both.map(|(seat, name)| look(name, seat, Some(("1", now)))).collect();
            looks.push(look(third, 2, Some(("1", &before))));
            looks
        };
        let now = changed(filled(&["a", "b", "d"]));
        assert_eq!(plan(&looks(&now, "c"), &NONE), None);
        // A node of both sets that has missed the change, and one that was restarted since.
        let blank = changed([filled(&["a", "b"]), vec![Seat::Blank(7)]].concat());
        assert_eq!(plan(&looks(&blank, "c"), &NONE).unwrap().joining, [2]);
        let now = changed(filled(&["a", "b", "c"]));
        assert_eq!(plan(&looks(&now, "x"), &NONE).unwrap().joining, [2]);
    }

    #[test]
    fn who_was_emptied_while_it_waits_begins_anew() {
        let joined =
            deployment(2, [filled(&["a", "b"]), vec![Seat::Waiting(who("x"), 2)]].concat());
        let mut looks: Vec<_> =
            (0..3).map(|seat| look(["a", "b", "x"][seat], seat, Some(("2", &joined)))).collect();
        looks[2] = look("x", 2, None);
        let plan = plan(&looks, &[Waiting::Yes, Waiting::Yes, Waiting::Over]).unwrap();
        assert_eq!(plan.next.seats[2], Seat::Waiting(who("x"), 3));
    }

    #[test]
    fn where_too_few_kept_their_memory_those_that_have_waited_consent() {
        let now = deployment(4, filled(&["a", "b", "c"]));
        let looks = [look("a", 0, Some(("4", &now))), look("x", 1, None), look("y", 2, None)];
        assert_eq!(plan(&looks, &NONE), None);
        let one = [Waiting::Yes, Waiting::Over, Waiting::Yes];
        let plan_of_one = plan(&looks, &one).unwrap();
        assert_eq!(plan_of_one.next, deployment(5, filled(&["a", "x", "c"])));
        assert_eq!(plan_of_one.acceptors, [0, 1]);
        let blank = [look("u", 0, None), look("x", 1, None), look("y", 2, None)];
        assert_eq!(plan(&blank, &one), None);
        let two = [Waiting::Yes, Waiting::Over, Waiting::Over];
        let seats = vec![Seat::Blank(1), Seat::Filled(who("x")), Seat::Filled(who("y"))];
        assert_eq!(plan(&blank, &two).unwrap().next, deployment(1, seats));
    }

    #[test]
    fn what_was_begun_is_brought_to_its_end() {
        let now = deployment(1, filled(&["a", "b", "c"]));
        let begun = deployment(2, [filled(&["a", "b"]), vec![Seat::Waiting(who("x"), 2)]].concat());
        let looks = [look("a", 0, Some(("2", &begun))), look("b", 1, Some(("1", &now))), None];
        let survey = surveyed(&looks, None);
        assert_eq!((survey.committed.is_none(), intact(&survey)), (true, 2));
        let plan = plan(&looks, &NONE).unwrap();
        assert_eq!((plan.next, plan.acceptors), (begun, vec![0, 1]));
    }

    #[test]
    fn what_was_begun_holds_nobody_up_where_too_few_kept_their_memory() {
        let waits = |name: &str| Seat::Waiting(who(name), 5);
        let (a, c, d) = (filled(&["a"]), filled(&["c"]), filled(&["d"]));
        let seats = [a, vec![waits("b")], c, d, vec![waits("e")]].concat();
        let (now, begun) =
            (deployment(6, seats), deployment(7, filled(&["x", "b", "c", "d", "e"])));
        let looks = [
            look("x", 0, None),
            look("b", 1, Some(("06", &now))),
            look("c", 2, Some(("06", &now))),
            // The only node that has accepted the marker that was to admit all.
            look("d", 3, Some(("20", &begun))),
            look("e", 4, Some(("06", &now))),
        ];
        let survey = surveyed(&looks, None);
        assert_eq!((survey.committed.is_some(), intact(&survey)), (true, 2));
        let over = Waiting::Over;
        let plan = plan(&looks, &[over, over, Waiting::Yes, Waiting::Yes, over]).unwrap();
        assert_eq!(plan.next, Deployment { epoch: 8, ..begun });
        assert_eq!((plan.acceptors, plan.admitted), (vec![0, 1, 2, 3, 4], vec![0, 1, 4]));
    }

    #[test]
    fn an_epoch_that_a_proxy_knows_and_no_node_any_more_is_passed() {
        let known = deployment(10, filled(&["a", "b", "c"]));
        let now = deployment(4, filled(&["x", "y", "z"]));
        let looks: Vec<_> =
            (0..3).map(|seat| look(["x", "y", "z"][seat], seat, Some(("1", &now)))).collect();
        let survey = surveyed(&looks, Some("d"));
        let plan = |known: &Deployment| {
            survey.plan(&alone(3), &looks, &NONE, Some(known), || unreachable!())
        };
        let plan_of_now = plan(&known).unwrap();
        assert_eq!(plan_of_now.next, Deployment { epoch: 11, ..now.clone() });
        assert_eq!((plan_of_now.acceptors, plan_of_now.admitted), (vec![0, 1, 2], vec![]));
        assert_eq!(plan(&now), None);
        assert_eq!(plan(&Deployment { id: "other".into(), ..known }), None);
    }

    #[test]
    fn a_ballot_of_before_all_was_forgotten_is_not_the_newest() {
        let now = deployment(4, filled(&["a", "b", "c"]));
        let before = deployment(3, filled(&["a", "b", "y"]));
        let looks = [
            look("a", 0, Some(("10", &now))),
            look("b", 1, Some(("10", &now))),
            look("z", 2, Some(("12", &before))),
        ];
        let survey = surveyed(&looks, None);
        assert_eq!((survey.newest.clone(), intact(&survey)), (survey.committed.clone(), 2));
        assert_eq!(plan(&looks, &NONE).unwrap().joining, [2]);
        let newer = deployment(5, filled(&["a", "b", "y"]));
        let looks = [looks[0].clone(), looks[1].clone(), look("y", 2, Some(("12", &newer)))];
        assert_eq!(surveyed(&looks, None).newest.unwrap().deployment, newer);
    }

    #[test]
    fn a_shard_that_is_gone_hinders_nobody_and_loses_its_seat() {
        let voters = Voters::with_seats([3].into_iter());
        let now = deployment_of(&voters, 4, filled(&["a", "b", "c"]));
        let looks = [look("a", 0, Some(("1", &now))), look("b", 1, Some(("1", &now))), None];
        let survey = |gone| Survey::new(&voters, &looks, &[false, false, gone], "lock:", None);
        let away = survey(false);
        assert!(!away.is_covered(&voters) && away.committed.is_none(), "it may still vote");
        assert_eq!(away.plan(&voters, &looks, &NONE, None, || unreachable!()), None);
        let gone = survey(true);
        assert!(gone.is_covered(&voters) && gone.committed.is_some());
        let plan = gone.plan(&voters, &looks, &NONE, None, || unreachable!()).unwrap();
        let seats = [filled(&["a", "b"]), vec![Seat::Blank(5)]].concat();
        assert_eq!(
            (plan.next.clone(), &plan.acceptors[..]),
            (deployment_of(&voters, 5, seats), &[0, 1][..])
        );
        // A new shard waits there.
        let looks =
            [0, 1].map(|seat| look(["a", "b"][seat], seat, Some(("2", &plan.next)))).to_vec();
        let looks = [looks, vec![look("d", 2, None)]].concat();
        let survey = Survey::new(&voters, &looks, &[], "lock:", None);
        let plan = survey.plan(&voters, &looks, &NONE, None, || unreachable!()).unwrap();
        assert_eq!(plan.next.seats[2], Seat::Waiting(who("d"), 6));
    }

    #[test]
    fn a_cluster_without_markers_begins_by_all_shards_that_there_are() {
        let voters = Voters::with_seats([3].into_iter());
        let looks = [look("a", 0, None), look("b", 1, None), None];
        let survey = Survey::new(&voters, &looks, &[], "lock:", None);
        let new = || deployment_of(&voters, 0, vec![Seat::Blank(0); 3]);
        let plan = |third| {
            let waiting = [Waiting::Over, Waiting::Over, third];
            survey.plan(&voters, &looks, &waiting, None, new)
        };
        assert_eq!(plan(Waiting::Unknown), None, "it may have a marker of another deployment");
        let seats = [filled(&["a", "b"]), vec![Seat::Blank(1)]].concat();
        assert_eq!(plan(Waiting::Nobody).unwrap().next, deployment_of(&voters, 1, seats));
    }

    #[test]
    fn nodes_of_two_deployments_are_none() {
        let ours = deployment(1, filled(&["a", "b", "c"]));
        let theirs = Deployment { id: "e".into(), ..ours.clone() };
        let looks = [look("a", 0, Some(("1", &ours))), look("b", 1, Some(("1", &theirs))), None];
        let survey = surveyed(&looks, None);
        assert_eq!((survey.ours, survey.newest, survey.ids.len()), (None, None, 2));
        let known = surveyed(&looks, Some("e"));
        assert_eq!(known.ours.as_deref(), Some("e"));
    }

    proptest! {
        /// Votes of neighbouring epochs may meet in one operation: see the module `members`.
        #[test]
        fn quorums_of_neighbouring_epochs_share_an_identity(
            kept in proptest::collection::vec(0u8..4, 5),
            over in proptest::collection::vec(any::<bool>(), 5),
        ) {
            let names = ["a", "b", "c", "d", "e"];
            let now = deployment(7, filled(&names));
            let looks: Vec<_> = (0..5).map(|seat| match kept[seat] {
                0 => look("x", seat, None),
                1 => None,
                _ => look(names[seat], seat, Some(("7", &now))),
            }).collect();
            let survey = surveyed(&looks, None);
            let waiting: Vec<_> = over.iter()
                .map(|over| if *over { Waiting::Over } else { Waiting::Yes }).collect();
            let blank = || deployment(7, vec![Seat::Blank(0); 5]);
            if let Some(plan) = survey.plan(&alone(5), &looks, &waiting, None, blank) {
                prop_assert!(plan.acceptors.len() >= quorum(5));
                prop_assert_eq!(plan.next.epoch, now.epoch + u64::from(plan.next != now));
                for (seat, over) in over.iter().enumerate() {
                    let exchanged = matches!(
                        (&now.seats[seat], &plan.next.seats[seat]),
                        (Seat::Filled(a), Seat::Filled(b)) if a != b
                    );
                    // A seat is exchanged in one step only if no node can refuse, and after a wait.
                    prop_assert!(!exchanged || intact(&survey) < quorum(5) && *over);
                }
            }
        }

        /// Seats are exchanged as safely if a voter has several: once a node waits on a seat, each quorum with the
        /// seat's earlier node, on whatever lock, contains a node that refuses.
        #[test]
        fn where_voters_have_several_seats_quorums_on_each_lock_share_an_identity(
            seats in prop_oneof![
                proptest::collection::vec(1usize..4, 1),
                proptest::collection::vec(1usize..4, 3),
                proptest::collection::vec(1usize..4, 5),
            ],
            kept in proptest::collection::vec(0u8..8, 15),
            blank in proptest::collection::vec(0u8..5, 15),
            over in proptest::collection::vec(any::<bool>(), 15),
            shards in proptest::collection::vec(0usize..3, 5),
            order in Just((0usize..5).collect::<Vec<_>>()).prop_shuffle(),
        ) {
            let voters = Voters::with_seats(seats.iter().copied());
            let all = 0..voters.seats();
            let name = |seat: usize| format!("n{seat}");
            let seat = |seat: usize| match blank[seat] {
                0 => Seat::Blank(3),
                _ => Seat::Filled(who(&name(seat))),
            };
            let now = deployment_of(&voters, 7, all.clone().map(seat).collect());
            let looks: Vec<_> = all.clone().map(|seat| match kept[seat] {
                0 => look("x", seat, None),
                1 => None,
                _ if now.is_blank(seat) => None,
                _ => look(&name(seat), seat, Some(("7", &now))),
            }).collect();
            let survey = Survey::new(&voters, &looks, &[], "lock:", None);
            let waiting: Vec<_> = all.clone()
                .map(|seat| if over[seat] { Waiting::Over } else { Waiting::Yes }).collect();
            let new = || deployment_of(&voters, 7, vec![Seat::Blank(0); voters.seats()]);
            let Some(plan) = survey.plan(&voters, &looks, &waiting, None, new) else {
                return Ok(());
            };
            prop_assert!(plan.is_quorum(&voters, &plan.acceptors));
            for seat in all.clone() {
                let exchanged = matches!(
                    (&now.seats[seat], &plan.next.seats[seat]),
                    (Seat::Filled(a), Seat::Filled(b)) if a != b
                );
                prop_assert!(!exchanged || !survey.is_covered(&voters) && over[seat]);
            }
            for lost in &plan.joining {
                // The nodes that vote on a lock of the seat's earlier node: it, and one seat each of enough other
                // voters for a quorum.
                let of = |seat: usize| voters.of(seat);
                let others = order.iter().filter(|voter| **voter < voters.count());
                let others = others.filter(|voter| **voter != of(*lost));
                let filled = |voter: usize| -> Option<usize> {
                    let own = all.clone().filter(|seat| of(*seat) == voter && !now.is_blank(*seat));
                    let own: Vec<usize> = own.collect();
                    own.get(shards[voter] % own.len().max(1)).copied()
                };
                let others: Vec<usize> = others.filter_map(|voter| filled(*voter)).collect();
                if now.is_blank(*lost) {
                    continue;
                }
                let needed = quorum(voters.count()) - 1;
                if let Some(others) = others.get(..needed) {
                    prop_assert!(others.iter().any(|seat| plan.acceptors.contains(seat)));
                }
            }
        }
    }
}
