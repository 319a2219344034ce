//! The order and targets of faults. All but the exact times follows from a seed.
//!
//! Faults come in episodes of one to three at once, with a calm after each. While they last, one more comes that is
//! over at once. Every kind comes before one comes again. Clocks of nodes jump forward only while no node waits and
//! no proxy starts. In the last quarter no node forgets, so that the proxies' clocks may say anything.

use std::{
    collections::BTreeSet,
    thread,
    time::{Duration, Instant},
};

use rand::{RngExt, SeedableRng, rngs::StdRng, seq::SliceRandom};

use crate::{
    deployment::{Deployment, NODES, PROXIES},
    fault::{Choose, Fault, Impaired, KINDS, SUDDEN},
    history::{Time, now},
    network::Wires,
};

/// The time for which nodes wait beyond the longest lock, and somewhat more.
const SETTLED: Duration = Duration::from_millis(2500);

/// The time within which a proxy that has reached a node has seen its clock.
const SEEN: Duration = Duration::from_millis(1000);

/// The durations of faults and calms, in ms.
#[derive(Debug, Clone)]
pub(crate) struct Pace {
    pub(crate) fault: std::ops::Range<u64>,
    pub(crate) calm: std::ops::Range<u64>,
    /// The most faults at once.
    pub(crate) together: usize,
}

/// A fault that has come.
#[derive(Debug, Clone)]
pub(crate) struct Span {
    pub(crate) fault: Fault,
    pub(crate) from: Time,
    pub(crate) until: Time,
}

/// Kinds that are still to come before one comes again.
struct Bag {
    random: StdRng,
    kinds: Vec<usize>,
    /// Kinds of faults that are over at once, still to come.
    sudden: Vec<usize>,
    wild: bool,
}

impl Bag {
    fn new(seed: u64) -> Bag {
        let random = StdRng::seed_from_u64(seed);
        Bag { random, kinds: Vec::new(), sudden: Vec::new(), wild: false }
    }

    /// Returns the faults of the next episode, which have different targets.
    fn episode(&mut self, together: usize) -> Vec<Fault> {
        let wanted = self.random.random_range(1..=together);
        let mut faults = Vec::new();
        let (random, wild) = (&mut self.random, self.wild);
        draw(random, &mut self.kinds, KINDS, wanted, &mut faults, |kind, choose| {
            Fault::of_kind(kind, wild, choose)
        });
        // The sudden fault comes while the others last.
        let wanted = faults.len() + 1;
        draw(random, &mut self.sudden, SUDDEN, wanted, &mut faults, |kind, choose| {
            Fault::sudden(kind, wild, choose)
        });
        faults
    }
}

/// Draws kinds until there are `wanted` faults, or no kind with other targets is left.
fn draw(
    random: &mut StdRng,
    kinds: &mut Vec<usize>,
    of: usize,
    wanted: usize,
    faults: &mut Vec<Fault>,
    fault: impl Fn(usize, Choose<'_>) -> Option<Fault>,
) {
    let (mut later, before) = (Vec::new(), faults.len());
    while faults.len() < wanted {
        let Some(kind) = kinds.pop() else {
            if faults.len() > before || !later.is_empty() {
                break;
            }
            *kinds = (0..of).collect();
            kinds.shuffle(random);
            continue;
        };
        let Some(fault) = fault(kind, &mut |below| random.random_range(0..below)) else { continue };
        let targets = fault.targets();
        let taken: Vec<usize> = faults.iter().flat_map(|fault| fault.targets()).collect();
        if targets.iter().any(|target| taken.contains(target)) {
            later.push(kind);
        } else {
            faults.push(fault);
        }
    }
    kinds.extend(later);
}

/// Makes faults for `length` and, if `all_kinds`, until each kind has come.
pub(crate) fn run(
    deployment: &mut Deployment,
    length: Duration,
    pace: &Pace,
    all_kinds: bool,
) -> Vec<Span> {
    let mut bag = Bag::new(deployment.options().seed);
    let (begun, mut spans, mut rounds) = (Instant::now(), Vec::new(), 0);
    loop {
        let rest = bag.kinds.len();
        let faults = bag.episode(pace.together);
        rounds += usize::from(bag.kinds.len() > rest);
        // The second round has begun: all kinds have come.
        let all_have_come = !all_kinds || rounds > 1;
        if all_have_come && begun.elapsed() >= length {
            return spans;
        }
        if all_have_come && !bag.wild && begun.elapsed() >= length.mul_f64(0.75) {
            bag.wild = true;
            continue;
        }
        wait_for_others(&faults, &spans, deployment);
        play(deployment, &faults, &mut bag.random, pace, &mut spans);
    }
}

/// Waits until clocks may jump or proxies may start, if these faults make them.
fn wait_for_others(faults: &[Fault], spans: &[Span], deployment: &Deployment) {
    // Waits in quarantine, and after jumps, are over; and proxies reach all nodes.
    let settled = Duration::from_millis(deployment.options().max_ttl) + SETTLED;
    let settled = Time::try_from(settled.as_micros()).expect("a short time");
    let (jump, start) =
        (faults.iter().any(|fault| fault.jumps()), faults.iter().any(|fault| fault.starts_proxy()));
    let is_met = |span: &&Span| jump && !span.fault.jumps() || start && span.fault.jumps();
    let last = spans.iter().filter(is_met).map(|span| span.until).max();
    let until = last.map_or(0, |last| last + settled);
    thread::sleep(Duration::from_micros(until.saturating_sub(now())));
    if jump {
        // A busy machine may need longer; and the proxies must have seen the clocks.
        deployment.wait_for_nodes();
        thread::sleep(SEEN);
    }
}

/// Plays one episode and the calm after it.
fn play(
    deployment: &mut Deployment,
    faults: &[Fault],
    random: &mut StdRng,
    pace: &Pace,
    spans: &mut Vec<Span>,
) {
    let mut active: Vec<Span> = Vec::new();
    let mut sleep = |range: &std::ops::Range<u64>, part: u64| {
        thread::sleep(Duration::from_millis(random.random_range(range.clone()) / part));
    };
    for fault in faults {
        if !active.is_empty() {
            sleep(&pace.fault, 4);
        }
        deployment.note(format!("begins: {fault:?}"));
        active.push(Span { fault: *fault, from: now(), until: Time::MAX });
        fault.begin(deployment);
        deployment.network().set(wires(deployment, &active));
    }
    sleep(&pace.fault, 1);
    // The last fault ends first.
    while let Some(mut span) = active.pop() {
        span.fault.end(deployment);
        deployment.network().set(wires(deployment, &active));
        deployment.note(format!("ends: {:?}", span.fault));
        span.until = now();
        spans.push(span);
        if !active.is_empty() {
            sleep(&pace.fault, 4);
        }
    }
    sleep(&pace.calm, 1);
}

fn wires(deployment: &Deployment, active: &[Span]) -> Wires {
    let mut wires = deployment.network().all_well();
    active.iter().for_each(|span| span.fault.change(&mut wires));
    wires
}

/// Returns the times in which a quorum of nodes, a proxy and the data node worked and could be reached by all. In
/// between, grants may pause.
pub(crate) fn quorum_up(
    spans: &[Span],
    from: Time,
    until: Time,
    max_ttl: Duration,
) -> Vec<(Time, Time)> {
    let felt: Vec<(Time, Time, Impaired)> = spans
        .iter()
        .map(|span| {
            let impaired = span.fault.impaired(max_ttl);
            let after = Time::try_from(impaired.after.as_micros()).expect("a short time");
            (span.from, span.until + after, impaired)
        })
        .collect();
    let is_up = |time: Time| {
        let now = || felt.iter().filter(|(from, until, _)| (*from..*until).contains(&time));
        let count = |some: fn(&Impaired) -> &BTreeSet<usize>| {
            let all = now().flat_map(|(.., impaired)| some(impaired));
            all.collect::<BTreeSet<_>>().len()
        };
        let nodes = count(|impaired| &impaired.nodes);
        let proxies = count(|impaired| &impaired.proxies);
        !now().any(|(.., impaired)| impaired.everything)
            && NODES - nodes > NODES / 2
            && proxies < PROXIES
    };
    let mut edges: Vec<Time> = felt.iter().flat_map(|(from, until, _)| [*from, *until]).collect();
    edges.extend([from, until]);
    edges.retain(|edge| (from..=until).contains(edge));
    edges.sort_unstable();
    let mut windows: Vec<(Time, Time)> = Vec::new();
    for pair in edges.windows(2).filter(|pair| pair[0] < pair[1] && is_up(pair[0])) {
        match windows.last_mut() {
            Some(last) if last.1 == pair[0] => last.1 = pair[1],
            _ => windows.push((pair[0], pair[1])),
        }
    }
    windows
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::Way;

    #[test]
    fn a_quorum_is_up_while_two_nodes_are_away_and_not_three() {
        let span = |fault, from: u64, until: u64| Span {
            fault,
            from: from * 1_000_000,
            until: until * 1_000_000,
        };
        let ttl = Duration::from_secs(3);
        let up = |spans: &[Span]| quorum_up(spans, 0, 100_000_000, ttl);
        let two = [span(Fault::NodeCut(0, Way::To), 10, 20), span(Fault::NodeStopped(1), 10, 20)];
        assert_eq!(up(&two), [(0, 100_000_000)]);
        let three = [&two[..], &[span(Fault::NodeCut(2, Way::Both), 15, 30)]].concat();
        // A cut is felt for four seconds after its end.
        assert_eq!(up(&three), [(0, 15_000_000), (24_000_000, 100_000_000)]);
        let forgets = [&two[..], &[span(Fault::NodeForgets(3), 5, 6)]].concat();
        assert_eq!(up(&forgets), [(0, 10_000_000), (15_000_000, 100_000_000)]);
        // Without the data node no lock is granted; with one proxy cut off from it, locks are.
        let away = [span(Fault::DataStopped, 10, 12)];
        assert_eq!(up(&away), [(0, 10_000_000), (13_000_000, 100_000_000)]);
        let past = [span(Fault::DataCut(Some(1), Way::To), 10, 20)];
        assert_eq!(up(&past), [(0, 100_000_000)]);
        assert_eq!(
            up(&[span(Fault::AllSlow, 10, 20)]),
            [(0, 10_000_000), (24_000_000, 100_000_000)]
        );
    }

    #[test]
    fn every_kind_comes_before_one_comes_again() {
        let mut bag = Bag::new(1);
        let mut faults = bag.episode(2);
        while !bag.kinds.is_empty() {
            faults.extend(bag.episode(2));
        }
        let is_of = |kinds, kind: fn(usize, bool, Choose<'_>) -> Option<Fault>| {
            let fault = |number| kind(number, false, &mut |_| 0).expect("a fault");
            let is_same = |one: Fault, other: Fault| {
                std::mem::discriminant(&one) == std::mem::discriminant(&other)
            };
            (0..kinds).all(|number| faults.iter().any(|other| is_same(fault(number), *other)))
        };
        assert!(is_of(KINDS, Fault::of_kind));
        assert!(is_of(SUDDEN, Fault::sudden));
        assert_eq!(Fault::of_kind(KINDS, false, &mut |_| 0), None);
        assert_eq!(Fault::sudden(SUDDEN, false, &mut |_| 0), None);
    }
}
