//! What this proxy knows of the other proxies.

use std::{
    collections::HashMap,
    sync::atomic::AtomicBool,
    time::{Duration, Instant},
};

use metrics::{Gauge, describe_gauge, gauge};
use tokio::sync::Notify;
use tracing::{info, warn};

use super::{
    difference::{DifferenceKind, FleetDifference, ModeConflict},
    record::ProxyRecord,
};
use crate::sync::Mutex;

/// Most other proxies that are remembered.
const MOST_OTHERS: usize = 512;
/// Most differences that are kept and told to operators. All are counted.
const MOST_KEPT: usize = 64;
/// Most log lines at once about new differences, and as many about those that are over.
const MOST_LINES: usize = 16;
/// How long another proxy is remembered after it was last seen: a little more than two writings.
const REMEMBERED: Duration = Duration::from_secs(25);

/// What this proxy knows of the other proxies.
pub(crate) struct Fleet {
    /// The id of this process.
    pub(crate) id: String,
    state: Mutex<FleetState>,
    /// Notified when this proxy's own record has changed.
    pub(crate) stepped: Notify,
    /// Set once this proxy serves no client any more.
    pub(crate) has_ended: AtomicBool,
    gauges: FleetGauges,
}

struct FleetGauges {
    conflicts: Gauge,
    proxies: Gauge,
    /// One for each kind.
    differences: [Gauge; DifferenceKind::ALL.len()],
}

#[derive(Default)]
struct FleetState {
    ours: Option<ProxyRecord>,
    /// By id, each with the time when it was last seen.
    others: HashMap<String, (ProxyRecord, Instant)>,
    conflicts: Vec<ModeConflict>,
    differences: Vec<FleetDifference>,
}

impl FleetState {
    /// Iterates over the other proxies that serve clients.
    fn serving(&self) -> impl Iterator<Item = &ProxyRecord> {
        self.others.values().map(|(other, _)| other).filter(|other| !other.has_ended)
    }
}

impl Fleet {
    /// Knows no other proxy yet. Install the recorder of metrics first.
    pub(crate) fn new() -> Fleet {
        describe_gauge!(
            "lockgate_adopt_mode_conflicts",
            "Adopt rules that another proxy has in a mode two steps away, for each such proxy."
        );
        describe_gauge!(
            "lockgate_fleet_differences",
            "What all proxies should have alike and another one has otherwise, for each such proxy."
        );
        describe_gauge!(
            "lockgate_fleet_proxies",
            "Proxies over the same lock nodes that have told of themselves, with this one."
        );
        let of_kind =
            |kind: DifferenceKind| gauge!("lockgate_fleet_differences", "kind" => kind.as_str());
        Fleet {
            id: format!("{:016x}", rand::random::<u64>()),
            state: Mutex::default(),
            stepped: Notify::new(),
            has_ended: AtomicBool::new(false),
            gauges: FleetGauges {
                conflicts: gauge!("lockgate_adopt_mode_conflicts"),
                proxies: gauge!("lockgate_fleet_proxies"),
                differences: DifferenceKind::ALL.map(of_kind),
            },
        }
    }

    /// Returns all rules whose modes here and in another proxy are two steps apart.
    pub(crate) fn conflicts(&self) -> Vec<ModeConflict> {
        self.state.lock().conflicts.clone()
    }

    /// Returns what other proxies have differently, at most [`MOST_KEPT`] differences.
    pub(crate) fn differences(&self) -> Vec<FleetDifference> {
        self.state.lock().differences.clone()
    }

    /// Returns the longest time that a grant of another proxy lasts on the lock nodes. Zero if no other is known.
    pub(crate) fn longest(&self) -> Duration {
        let state = self.state.lock();
        state.others.values().map(|(other, _)| other.longest).max().unwrap_or_default()
    }

    /// Whether all other proxies that serve clients know of readers of a lock.
    pub(crate) fn all_know_readers(&self) -> bool {
        self.state.lock().serving().all(ProxyRecord::knows_readers)
    }

    /// Whether another proxy bridges the adopt rule on these keys.
    pub(crate) fn bridges(&self, keys: &str) -> bool {
        let state = self.state.lock();
        let Some(ours) = &state.ours else { return false };
        state.others.values().any(|(other, _)| ours.bridges(keys, other))
    }

    /// Whether another proxy that serves clients was seen lately.
    pub(crate) fn has_others(&self) -> bool {
        self.state.lock().serving().next().is_some()
    }

    /// Whether another proxy must know of this one before this one grants anything.
    pub(crate) fn must_know(&self) -> bool {
        let state = self.state.lock();
        let Some(ours) = &state.ours else { return false };
        state.others.values().any(|(other, _)| ours.must_be_known_to(other))
    }

    /// Notes this proxy's own record.
    pub(crate) fn runs(&self, ours: ProxyRecord, now: Instant) {
        let mut state = self.state.lock();
        state.ours = Some(ours);
        self.compare(&mut state, now);
    }

    /// Notes the records that a lock node has.
    pub(crate) fn heard(&self, records: Vec<ProxyRecord>, now: Instant) {
        let mut state = self.state.lock();
        for record in records.into_iter().filter(|record| record.id != self.id) {
            let is_known = state.others.contains_key(&record.id);
            if !is_known && state.others.len() >= MOST_OTHERS {
                continue;
            }
            let (known, seen) =
                state.others.entry(record.id.clone()).or_insert_with(|| (record.clone(), now));
            *seen = now;
            // A lock node that was away may have an older record.
            if record.sequence > known.sequence {
                *known = record;
            }
        }
        self.compare(&mut state, now);
    }

    /// Compares the records, and logs differences that are new and those that are over.
    fn compare(&self, state: &mut FleetState, now: Instant) {
        state.others.retain(|_, (_, seen)| now.saturating_duration_since(*seen) < REMEMBERED);
        self.gauges.proxies.set(as_gauge(state.serving().count() + 1));
        let Some(ours) = &state.ours else { return };
        let mut conflicts: Vec<ModeConflict> =
            state.serving().flat_map(|other| ours.conflicts(other)).collect();
        conflicts.sort_by(|one, other| (&one.keys, &one.name).cmp(&(&other.keys, &other.name)));
        let mut found: Vec<FleetDifference> =
            state.serving().flat_map(|other| ours.differences(other)).collect();
        let key = |it: &FleetDifference| (it.kind, it.what.clone(), it.name.clone());
        found.sort_by_cached_key(key);
        tell_conflicts(&state.conflicts, &conflicts);
        self.gauges.conflicts.set(as_gauge(conflicts.len()));
        for (kind, gauge) in DifferenceKind::ALL.iter().zip(&self.gauges.differences) {
            gauge.set(as_gauge(found.iter().filter(|it| it.kind == *kind).count()));
        }
        found.truncate(MOST_KEPT);
        tell_differences(&state.differences, &found);
        (state.conflicts, state.differences) = (conflicts, found);
    }
}

fn tell_conflicts(before: &[ModeConflict], found: &[ModeConflict]) {
    let new = found.iter().filter(|conflict| !before.contains(conflict));
    for ModeConflict { keys, here, there, id, name } in new.take(MOST_LINES) {
        let (here, there) = (here.as_str(), there.as_str());
        warn!(
            keys,
            here,
            there,
            proxy = name,
            id,
            "adopt: another proxy has this rule in a mode two steps away: a lock may be granted \
             twice, by either"
        );
    }
    let over = before.iter().filter(|conflict| !found.contains(conflict));
    for ModeConflict { keys, name, id, .. } in over.take(MOST_LINES) {
        info!(
            keys,
            proxy = name,
            id,
            "adopt: the other proxy's mode is near again, or it is not seen any more"
        );
    }
}

fn tell_differences(before: &[FleetDifference], found: &[FleetDifference]) {
    let new = found.iter().filter(|difference| !before.contains(difference));
    for difference in new.take(MOST_LINES) {
        let FleetDifference { kind, what, here, there, id, name } = difference;
        let meaning = kind.meaning();
        warn!(
            what,
            here,
            there,
            proxy = name,
            id,
            "fleet: another proxy has this otherwise: {meaning}"
        );
    }
    let over = before.iter().filter(|difference| !found.contains(difference));
    for FleetDifference { what, name, id, .. } in over.take(MOST_LINES) {
        info!(
            what,
            proxy = name,
            id,
            "fleet: the other proxy has this alike again, or it is not seen any more"
        );
    }
}

fn as_gauge(count: usize) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn proxy(id: &str, mode: &str) -> ProxyRecord {
        let text = format!("adopt: [{{keys: 'l:*', mode: {mode}}}]");
        let config = Config::parse(&text, "f", &|_| None).unwrap();
        ProxyRecord::new(id, "web", &config, Duration::from_secs(9))
    }

    #[test]
    fn the_newest_record_counts_and_is_forgotten_in_the_end() {
        let (fleet, now) = (Fleet::new(), Instant::now());
        let at = |sequence, mode| ProxyRecord { sequence, ..proxy("b", mode) };
        fleet.runs(proxy("a", "enforce"), now);
        assert!(!fleet.bridges("l:*") && fleet.longest().is_zero());
        fleet.heard(vec![at(4, "audit")], now);
        assert_eq!(fleet.conflicts().len(), 1);
        fleet.heard(vec![at(5, "bridge")], now);
        fleet.heard(vec![at(4, "audit")], now);
        assert_eq!(fleet.conflicts(), [], "a lock node that was away has an older one");
        assert!(fleet.bridges("l:*") && fleet.longest() == Duration::from_secs(9));
        fleet.heard(vec![at(6, "audit")], now);
        assert_eq!(fleet.conflicts().len(), 1);
        fleet.heard(vec![], now + REMEMBERED);
        assert_eq!((fleet.conflicts(), fleet.has_others()), (vec![], false));
        let many = |n| ProxyRecord { id: format!("{n}"), ..at(1, "audit") };
        fleet.heard((0..2 * MOST_OTHERS).map(many).collect(), now);
        assert_eq!(fleet.conflicts().len(), MOST_OTHERS);
        assert_eq!(fleet.differences().len(), 0, "the rules are the same otherwise");
    }
}
