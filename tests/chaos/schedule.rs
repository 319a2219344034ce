//! Which faults come when: all that follows from a seed, but for the instants.
//!
//! Faults come in episodes of one to three at once, with a calm after each. Every kind
//! has come before one comes again. In the last quarter no node forgets, so that the
//! proxies' clocks may say what they like.

use std::{
    collections::BTreeSet,
    thread,
    time::{Duration, Instant},
};

use rand::{RngExt, SeedableRng, rngs::StdRng, seq::SliceRandom};

use crate::{
    deployment::{Deployment, NODES, PROXIES},
    fault::{AFTER, Fault, Impaired, KINDS},
    history::{Time, now},
    network::Wires,
};

/// How long things last, in ms.
#[derive(Debug, Clone)]
pub(crate) struct Pace {
    pub(crate) fault: std::ops::Range<u64>,
    pub(crate) calm: std::ops::Range<u64>,
    /// Faults at once, at the most.
    pub(crate) together: usize,
}

/// A fault that has been.
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
    wild: bool,
}

impl Bag {
    /// The faults of the next episode: of different targets.
    fn episode(&mut self, together: usize) -> Vec<Fault> {
        let wanted = self.random.random_range(1..=together);
        let mut faults: Vec<Fault> = Vec::new();
        let mut later = Vec::new();
        while faults.len() < wanted {
            let Some(kind) = self.kinds.pop() else {
                if !faults.is_empty() || !later.is_empty() {
                    break;
                }
                self.kinds = (0..KINDS).collect();
                self.kinds.shuffle(&mut self.random);
                continue;
            };
            let choose = &mut |below| self.random.random_range(0..below);
            let Some(fault) = Fault::of_kind(kind, self.wild, choose) else { continue };
            let targets = fault.targets();
            let taken: Vec<usize> = faults.iter().flat_map(|fault| fault.targets()).collect();
            if targets.iter().any(|target| taken.contains(target)) {
                later.push(kind);
            } else {
                faults.push(fault);
            }
        }
        self.kinds.extend(later);
        faults
    }
}

/// Lets faults happen for so long and, if so wanted, until each kind has come.
pub(crate) fn run(
    deployment: &mut Deployment,
    length: Duration,
    pace: &Pace,
    all_kinds: bool,
) -> Vec<Span> {
    let random = StdRng::seed_from_u64(deployment.options().seed);
    let mut bag = Bag { random, kinds: Vec::new(), wild: false };
    let (begun, mut spans, mut rounds) = (Instant::now(), Vec::new(), 0);
    loop {
        let rest = bag.kinds.len();
        let faults = bag.episode(pace.together);
        rounds += usize::from(bag.kinds.len() + faults.len() > rest);
        // The first of the second round: all kinds have come.
        let all_have_come = !all_kinds || rounds > 1;
        if all_have_come && begun.elapsed() >= length {
            return spans;
        }
        if all_have_come && !bag.wild && begun.elapsed() >= length.mul_f64(0.75) {
            bag.wild = true;
            continue;
        }
        play(deployment, &faults, &mut bag.random, pace, &mut spans);
    }
}

/// One episode and the calm after it.
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
    // Not in the order in which they came.
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

/// When the data node died, and until when it may still be under way that connections to
/// it have ended.
pub(crate) fn deaths(spans: &[Span]) -> Vec<(Time, Time)> {
    let after = Time::try_from(AFTER.as_micros()).expect("a short time");
    let deaths = spans.iter().filter(|span| span.fault == Fault::DataKilled);
    deaths.map(|span| (span.from, span.until + after)).collect()
}

/// The times in which a quorum of nodes, a proxy and the data node worked, and everybody
/// reached them: in between, grants may pause.
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
        // Without the data node nothing is granted; past one proxy, it is.
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
        let mut bag = Bag { random: StdRng::seed_from_u64(1), kinds: Vec::new(), wild: false };
        let mut faults = bag.episode(2);
        while !bag.kinds.is_empty() {
            faults.extend(bag.episode(2));
        }
        assert_eq!(faults.len(), KINDS);
        let kinds: BTreeSet<String> =
            faults.iter().map(|fault| format!("{:?}", std::mem::discriminant(fault))).collect();
        assert_eq!(kinds.len(), 24);
    }
}
