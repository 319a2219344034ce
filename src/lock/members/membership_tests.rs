//! One proxy and the reports of lock nodes, without connections.

use super::*;
use crate::lock::members::{marker::Phase, self_report::MarkerFound};

const MAX_TTL: Duration = Duration::from_secs(20);

fn who(name: &str) -> Identity {
    Identity { run_id: name.into(), replication_id: "f0".into(), election: None }
}

/// The reports of lock nodes, and one proxy which gets them.
struct SeatReports {
    members: Members,
    looks: Vec<SelfReport>,
    now: Instant,
}

impl SeatReports {
    /// Makes nodes "a", "b", … that have voted in epoch 7, each a voter of its own.
    fn new(count: usize) -> SeatReports {
        let voters = Voters::with_seats(std::iter::repeat_n(1, count));
        let names: Vec<String> = ('a'..).take(count).map(|name| name.to_string()).collect();
        let seats: Vec<Seat> = names.iter().map(|name| Seat::Filled(who(name))).collect();
        let (id, prefix, phase) = ("d".into(), "lock:".to_owned(), Phase::Stands);
        let shape = voters.shape();
        let deployment =
            Deployment { id, epoch: 7, prefix: prefix.clone(), shape, seats, set: 0, phase };
        let rules = MemberRules {
            quarantine: true,
            allow_shared_instance: false,
            drift_factor: 0.0,
            prefix,
            voters,
            blank: Deployment { id: "new".into(), epoch: 0, ..deployment.clone() },
        };
        let heard = Arc::new(LongestGrant::new(MAX_TTL));
        let look = |(seat, name): (usize, &String)| SelfReport {
            run_id: Some(name.clone()),
            replication_id: Some("f0".into()),
            is_master: true,
            marker: marker(&deployment, seat),
            promised: "1".into(),
            accepted: "1".into(),
            ..SelfReport::default()
        };
        SeatReports {
            looks: names.iter().enumerate().map(look).collect(),
            members: Members::new(Arc::new(rules), heard, |pause| pause, true),
            now: Instant::now(),
        }
    }

    /// Makes nodes whose agreement the proxy knows, and to which it has connections.
    fn known(count: usize) -> SeatReports {
        let mut nodes = SeatReports::new(count);
        assert!(nodes.survey().is_none(), "all agree, so nothing is due");
        for seat in 0..count {
            assert_eq!(nodes.report(seat), Judgement::Admitted(0));
        }
        nodes.members.take_effects();
        nodes
    }

    fn report(&mut self, seat: usize) -> Judgement {
        self.members.reported(seat, &self.looks[seat], self.now)
    }

    fn survey(&mut self) -> Option<RoundToMake> {
        let found = |look: &SelfReport| SeatFound {
            look: Some(look.clone()),
            is_absent: false,
            gone_for: Duration::ZERO,
        };
        let found: Vec<SeatFound> = self.looks.iter().map(found).collect();
        self.members.surveyed(&self.members.asking(), &found, self.now)
    }

    /// Writes a round's marker on these nodes, as a quorum accepts it.
    fn write(&mut self, round: &RoundToMake, seats: &[usize]) {
        let deployment = round.plan.next.clone();
        let ballot = format!("{}", deployment.epoch);
        for seat in seats.iter().copied() {
            let look = &mut self.looks[seat];
            (look.promised, look.accepted) = (ballot.clone(), ballot.clone());
            look.marker = marker(&deployment, seat);
        }
        self.members.wrote(round, &Accepted { ballot, deployment });
    }

    /// Restarts the node on `seat`, empty, under another name.
    fn restart(&mut self, seat: usize, name: &str) {
        self.members.gone(seat, true, self.now);
        self.looks[seat] = SelfReport {
            run_id: Some(name.into()),
            replication_id: Some("f0".into()),
            is_master: true,
            ..SelfReport::default()
        };
    }

    /// Returns the effects since the last call, each as a short text.
    fn effects(&mut self) -> Vec<String> {
        let text = |effect| match effect {
            Effect::Tell { seat, marker, waits, .. } => {
                let epoch = marker.split(' ').nth(1).unwrap_or_default().to_owned();
                format!("{seat} {} in {epoch}", if waits { "waits" } else { "votes" })
            }
            Effect::TellNothing(seat) => format!("{seat} has no seat"),
            Effect::EndConnections(before) => format!("connections before {before} end"),
            Effect::Learned { learned, .. } => format!("learned {learned}"),
            Effect::Noted { seat, .. } => format!("{seat} notes"),
            Effect::Move { seat, home } => format!("{seat} moves to {home}"),
            Effect::GivenUp => "given up".into(),
        };
        self.members.take_effects().into_iter().map(text).collect()
    }
}

fn marker(deployment: &Deployment, seat: usize) -> MarkerFound {
    let longest = Duration::from_secs(3);
    MarkerFound::Marker(Marker { deployment: deployment.clone(), seat, longest })
}

fn reason(judgement: Judgement) -> String {
    match judgement {
        Judgement::Waits(wait) => wait.why,
        other => format!("{other:?}"),
    }
}

#[test]
fn a_restarted_node_gets_its_seat_to_wait_on_and_votes_once_the_wait_is_over() {
    let mut nodes = SeatReports::known(3);
    nodes.now += ASK_EVERY;
    nodes.restart(2, "z");
    assert_eq!(nodes.report(2), Judgement::Ask);
    let round = nodes.survey().unwrap();
    assert_eq!((&round.plan.joining[..], round.plan.next.epoch), (&[2][..], 8));
    assert_eq!(nodes.report(2), nodes.members.ask_or("it is given its seat", nodes.now));
    nodes.write(&round, &[0, 1, 2]);
    assert_eq!(nodes.effects(), ["0 votes in 8", "1 votes in 8", "learned 2"]);
    assert_eq!(nodes.report(2), Judgement::Note(8), "its wait has not begun");
    nodes.looks[2].note = "z f0 8 1000000".into();
    nodes.looks[2].time = Some(1_000_000);
    assert_eq!(nodes.report(2), Judgement::Admitted(0));
    assert_eq!(nodes.effects(), ["2 waits in 8", "2 notes"]);
    // All other nodes have kept their memory, so it waits for the longest TTL that was stored.
    let wait = nodes.members.wait(2).unwrap();
    assert_eq!(wait.until, Some(nodes.now + Duration::from_secs(3) + ROUNDING));
    nodes.now = wait.until.unwrap() - Duration::from_millis(1);
    assert!(nodes.survey().is_none(), "a millisecond is left");
    nodes.now += Duration::from_millis(1);
    let round = nodes.survey().unwrap();
    assert_eq!(&round.plan.admitted[..], &[2]);
    nodes.write(&round, &[0, 1, 2]);
    let votes = ["0 votes in 9", "1 votes in 9", "2 votes in 9", "learned 3"];
    assert_eq!((nodes.effects(), nodes.members.wait(2)), (votes.map(String::from).into(), None));
}

#[test]
fn where_another_node_has_forgotten_too_the_wait_is_for_the_longest_grant_of_any_proxy() {
    let mut nodes = SeatReports::known(5);
    nodes.now += ASK_EVERY;
    nodes.restart(3, "y");
    nodes.restart(4, "z");
    let round = nodes.survey().unwrap();
    nodes.write(&round, &[0, 1, 2, 3, 4]);
    nodes.looks[4].note = "z f0 8 0".into();
    assert_eq!(nodes.report(4), Judgement::Admitted(0));
    let until = |nodes: &SeatReports| nodes.members.wait(4).unwrap().until.unwrap() - nodes.now;
    assert_eq!(until(&nodes), MAX_TTL + ROUNDING);
    nodes.members.heard.heard_of(3 * MAX_TTL);
    assert_eq!(until(&nodes), 3 * MAX_TTL + ROUNDING, "another proxy grants for longer");
    nodes.members.confirms_within([MAX_TTL; 5].into_iter());
    assert_eq!(until(&nodes), 4 * MAX_TTL + ROUNDING, "and may hear of a failover late");
}

/// No operation may have votes of a node that has lost its seat and of one that votes in the new epoch.
#[test]
fn connections_end_before_any_node_gets_an_epoch_in_which_a_connected_node_has_lost_its_seat() {
    let mut nodes = SeatReports::known(3);
    nodes.now += ASK_EVERY;
    // Another proxy has met an exchanged node at the same address.
    let mut next = nodes.members.current.as_ref().unwrap().deployment.clone();
    next.epoch = 8;
    next.seats[2] = Seat::Waiting(who("z"), 8);
    let accepted = Accepted { ballot: "8".into(), deployment: next };
    let plan = Plan {
        next: accepted.deployment.clone(),
        acceptors: vec![0, 1],
        blank: vec![],
        admitted: vec![],
        joining: vec![2],
    };
    let round = RoundToMake { plan, promised: String::new(), longest: Duration::ZERO };
    nodes.members.wrote(&round, &accepted);
    let effects = ["2 has no seat", "connections before 1 end", "learned 2"];
    assert_eq!(nodes.effects(), effects);
    assert_eq!(nodes.members.seatings()[..], [1, 1, 2]);
}

/// Found by exploration: no round could be made that admits one node on two seats.
#[test]
fn a_node_that_is_met_on_two_seats_gets_one_of_them() {
    let mut nodes = SeatReports::known(3);
    nodes.now += ASK_EVERY;
    for seat in [0, 1] {
        nodes.restart(seat, "z");
        nodes.looks[seat].note = "z f0 7 1000000".into();
        nodes.looks[seat].time = Some(1_000_000);
    }
    assert!(nodes.survey().is_none(), "its wait begins");
    nodes.now += MAX_TTL + ROUNDING;
    let round = nodes.survey().unwrap();
    assert_eq!((&round.plan.acceptors[..], &round.plan.admitted[..]), (&[0, 2][..], &[0][..]));
    let MarkerFound::Marker(mut found) = nodes.looks[2].marker.clone() else { unreachable!() };
    let mut met = |at: Option<usize>| {
        found.seat = at.unwrap_or_default();
        let found = at.map_or(MarkerFound::Nothing, |_| MarkerFound::Marker(found.clone()));
        let look = SelfReport { marker: found, ..nodes.looks[0].clone() };
        [0, 1].map(|seat| has_twin(&[Some(look.clone()), Some(look.clone())], seat))
    };
    assert_eq!(
        [None, Some(0), Some(1)].map(&mut met),
        [[false, true], [false, true], [true, false]]
    );
}

#[test]
fn another_deployment_is_taken_once_all_locks_of_the_known_one_have_run_out() {
    let mut nodes = SeatReports::known(3);
    for seat in 0..3 {
        let MarkerFound::Marker(marker) = &mut nodes.looks[seat].marker else { unreachable!() };
        marker.deployment.id = "other".into();
    }
    nodes.now += ASK_EVERY;
    assert!(nodes.survey().is_none() && nodes.effects().is_empty());
    let until = nodes.now + MAX_TTL + ROUNDING;
    let Judgement::Waits(wait) = nodes.report(0) else { panic!("it waits") };
    assert_eq!(wait.until, Some(until));
    nodes.now = until - Duration::from_millis(1);
    assert!(nodes.survey().is_none() && nodes.effects().is_empty());
    nodes.now = until;
    assert!(nodes.survey().is_none());
    assert_eq!(nodes.effects().last().unwrap(), "learned 2");
}

#[test]
fn nodes_are_refused_or_wait_for_a_reason_that_is_told() {
    type Change = fn(&mut SeatReports);
    let rows: [(&str, Change, &str); 6] = [
        ("a replica", |n| n.looks[2].is_master = false, "Refused(Replica"),
        ("a twin", |n| n.looks[2].run_id = Some("a".into()), "Refused(SharedInstance"),
        ("without INFO", |n| n.looks[2].run_id = None, "Refused(Unidentified"),
        ("no marker of ours", |n| n.looks[2].marker = MarkerFound::Other, "Ask"),
        (
            "asked just now",
            |n| {
                n.looks[2].marker = MarkerFound::Other;
                n.members.asked = Some(n.now);
            },
            "Refused(Foreign",
        ),
        (
            "a newer epoch, asked for just now",
            |n| {
                let MarkerFound::Marker(it) = &mut n.looks[2].marker else { unreachable!() };
                it.deployment.epoch = 9;
                (n.members.asked, n.members.asked_for) = (Some(n.now), 9);
            },
            "it knows of a newer epoch",
        ),
    ];
    for (what, change, expected) in rows {
        let mut nodes = SeatReports::known(3);
        nodes.now += ASK_EVERY;
        change(&mut nodes);
        let is = reason(nodes.report(2));
        assert!(is.starts_with(expected), "{what}: {is}");
    }
}

#[test]
fn a_proxy_that_lists_two_sets_writes_nothing_until_it_knows_which_votes() {
    let mut nodes = SeatReports::known(3);
    nodes.now += ASK_EVERY;
    nodes.restart(2, "z");
    nodes.members.allow_writes(false, false);
    assert!(nodes.survey().is_none());
    nodes.members.allow_writes(true, false);
    assert!(nodes.survey().is_some());
    // A seal, found on one node, stops it, too.
    let MarkerFound::Marker(sealed) = &mut nodes.looks[1].marker else { unreachable!() };
    (sealed.deployment.epoch, sealed.deployment.phase) = (8, Phase::Joint(7));
    nodes.effects();
    assert!(nodes.survey().is_none());
    assert_eq!(nodes.effects(), ["given up"]);
}
