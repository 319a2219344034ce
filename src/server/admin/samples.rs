//! `/api/history`: the last ten minutes, a sample every few seconds, in memory that does not grow.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use serde::{Serialize, Serializer};
use tokio::time::{MissedTickBehavior, interval};

use super::{
    health::PageSource,
    status::{micros, now_ms},
};
use crate::{clock::millis, report::document::Totals, session::Shared, sync::Mutex};

/// The time between two samples.
const EVERY: Duration = Duration::from_secs(5);
/// Samples that are kept: ten minutes.
const KEPT: usize = 120;

/// The samples, the oldest first.
#[derive(Default)]
pub(super) struct StatusHistory(Mutex<VecDeque<StatusSample>>);

/// The proxy at one moment.
#[derive(Debug, Clone, Default)]
struct StatusSample {
    at_ms: u64,
    ready: bool,
    voting: usize,
    connections: usize,
    held: usize,
    waiters: usize,
    longest_wait_ms: u64,
    /// What was counted since the sample before, per second.
    rates: Totals<f64>,
    /// The lock nodes at that moment, in the order of the configuration. Samples share this list, which seldom
    /// changes.
    addresses: Arc<[String]>,
    /// One for each of them.
    round_trips_us: Box<[Option<u64>]>,
}

/// The samples in columns: the same index in each is the same moment.
#[derive(Default, Serialize)]
pub(super) struct HistoryDocument {
    every_ms: u64,
    at_ms: Vec<u64>,
    ready: Vec<bool>,
    voting: Vec<usize>,
    connections: Vec<usize>,
    held: Vec<usize>,
    waiters: Vec<usize>,
    longest_wait_ms: Vec<u64>,
    #[serde(flatten, serialize_with = "rate_columns")]
    rates: Vec<Totals<f64>>,
    nodes: Vec<NodeColumn>,
}

#[derive(Serialize)]
struct NodeColumn {
    seat: usize,
    address: String,
    round_trip_us: Vec<Option<u64>>,
}

type OneRate = fn(&Totals<f64>) -> f64;

/// The rates that are told, with their names.
const RATES: [(&str, OneRate); 7] = [
    ("grants_per_s", |rates| rates.grants),
    ("busy_per_s", |rates| rates.busy),
    ("no_quorum_per_s", |rates| rates.no_quorum),
    ("lost_per_s", |rates| rates.lost),
    ("guard_refusals_per_s", |rates| rates.guard_refusals),
    ("adopted_per_s", |rates| rates.adopted),
    ("adopt_refusals_per_s", |rates| rates.adopt_refusals),
];

/// Writes a column for each of [`RATES`].
fn rate_columns<S: Serializer>(all: &[Totals<f64>], serializer: S) -> Result<S::Ok, S::Error> {
    // Two digits are enough for a line of a few pixels.
    let two_digits = |rate: f64| (rate * 100.0).round() / 100.0;
    serializer.collect_map(RATES.iter().map(|(name, of)| {
        let column: Vec<f64> = all.iter().map(|rates| two_digits(of(rates))).collect();
        (name, column)
    }))
}

impl StatusHistory {
    /// Takes a sample every [`EVERY`], until it is dropped.
    pub(super) async fn keep(&self, state: &PageSource, shared: &Shared) {
        let mut ticks = interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut before, mut at) = (Totals::of(shared), Instant::now());
        // The first tick comes at once, and nothing was counted yet.
        ticks.tick().await;
        loop {
            ticks.tick().await;
            let (totals, now) = (Totals::of(shared), Instant::now());
            let rates = totals.per_second(&before, now.saturating_duration_since(at));
            (before, at) = (totals, now);
            let last = self.0.lock().back().map(|sample| sample.addresses.clone());
            self.note(sample(state, shared, rates, last.unwrap_or_default()));
        }
    }

    fn note(&self, sample: StatusSample) {
        let mut samples = self.0.lock();
        if samples.len() >= KEPT {
            samples.pop_front();
        }
        samples.push_back(sample);
    }

    /// Returns the samples so far.
    pub(super) fn document(&self, state: &PageSource) -> HistoryDocument {
        let samples: Vec<StatusSample> = self.0.lock().iter().cloned().collect();
        let addresses = state.readiness().nodes.into_iter().map(|node| node.address);
        let nodes = addresses.enumerate().map(|(place, address)| column(&samples, place, address));
        HistoryDocument {
            every_ms: millis(EVERY),
            at_ms: of_each(&samples, |sample| sample.at_ms),
            ready: of_each(&samples, |sample| sample.ready),
            voting: of_each(&samples, |sample| sample.voting),
            connections: of_each(&samples, |sample| sample.connections),
            held: of_each(&samples, |sample| sample.held),
            waiters: of_each(&samples, |sample| sample.waiters),
            longest_wait_ms: of_each(&samples, |sample| sample.longest_wait_ms),
            rates: of_each(&samples, |sample| sample.rates),
            nodes: nodes.collect(),
        }
    }
}

fn of_each<T>(samples: &[StatusSample], value: fn(&StatusSample) -> T) -> Vec<T> {
    samples.iter().map(value).collect()
}

/// Returns the round trips of the lock node that is at this place now. Before a change of the lock nodes other nodes
/// may have been there, and this one at another place.
fn column(samples: &[StatusSample], place: usize, address: String) -> NodeColumn {
    let of = |sample: &StatusSample| {
        let is_it = |at: &usize| sample.addresses.get(*at) == Some(&address);
        let at = Some(place).filter(is_it).or_else(|| (0..sample.addresses.len()).find(is_it))?;
        sample.round_trips_us.get(at).copied().flatten()
    };
    let round_trip_us = samples.iter().map(of).collect();
    NodeColumn { seat: place + 1, address, round_trip_us }
}

/// Takes a sample of the proxy. `last`: the lock nodes of the sample before.
fn sample(
    state: &PageSource,
    shared: &Shared,
    rates: Totals<f64>,
    last: Arc<[String]>,
) -> StatusSample {
    let (readiness, counts) = (state.readiness(), shared.engine.counts());
    let nodes = &readiness.nodes;
    let are_same = nodes.iter().map(|node| &node.address).eq(last.iter());
    StatusSample {
        at_ms: now_ms(),
        ready: readiness.is_ready,
        voting: readiness.voting,
        connections: shared.clients.load(std::sync::atomic::Ordering::Relaxed),
        held: counts.held,
        waiters: counts.waiters,
        longest_wait_ms: millis(counts.longest_wait),
        rates,
        addresses: match are_same {
            true => last,
            false => nodes.iter().map(|node| node.address.clone()).collect(),
        },
        round_trips_us: nodes.iter().map(|node| node.round_trip.map(micros)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_samples_are_kept_and_the_oldest_goes() {
        let history = StatusHistory::default();
        for at_ms in 0..2 * KEPT as u64 {
            history.note(StatusSample { at_ms, ..StatusSample::default() });
        }
        let samples = history.0.lock();
        let at: Vec<u64> = samples.iter().map(|sample| sample.at_ms).collect();
        assert_eq!(at, (KEPT as u64..2 * KEPT as u64).collect::<Vec<_>>());
    }

    #[test]
    fn a_round_trip_stays_with_the_node_that_it_is_of() {
        let sample = |nodes: &[(&str, u64)]| StatusSample {
            addresses: nodes.iter().map(|(address, _)| (*address).to_owned()).collect(),
            round_trips_us: nodes.iter().map(|(_, us)| Some(*us)).collect(),
            ..StatusSample::default()
        };
        let samples = [
            sample(&[("a:1", 1), ("b:1", 2)]),
            sample(&[("a:1", 3), ("b:1", 4)]),
            // The first place has another node now, and the second node is third.
            sample(&[("c:1", 5), ("d:1", 6), ("b:1", 7)]),
        ];
        let of = |place, address: &str| column(&samples, place, address.into()).round_trip_us;
        assert_eq!(of(0, "c:1"), [None, None, Some(5)]);
        assert_eq!(of(2, "b:1"), [Some(2), Some(4), Some(7)]);
        assert_eq!(of(0, "a:1"), [Some(1), Some(3), None]);
        assert_eq!(of(3, "new:1"), [None; 3]);
        // One server at two places has a column for each.
        let shared = [sample(&[("a:1", 1), ("a:1", 2)])];
        assert_eq!(column(&shared, 1, "a:1".into()).round_trip_us, [Some(2)]);
    }

    #[test]
    fn a_rate_has_a_column_and_two_digits() {
        let rates = vec![Totals { lost: 1.0 / 6.0, ..Totals::default() }, Totals::default()];
        let document = HistoryDocument { rates, ..HistoryDocument::default() };
        let told = serde_json::to_string(&document).unwrap();
        let columns = r#""longest_wait_ms":[],"grants_per_s":[0.0,0.0],"busy_per_s":[0.0,0.0],"no_quorum_per_s":[0.0,0.0],"lost_per_s":[0.17,0.0],"guard_refusals_per_s""#;
        assert!(told.contains(columns), "{told}");
        assert!(told.contains(r#""adopt_refusals_per_s":[0.0,0.0],"nodes":[]"#), "{told}");
    }
}
