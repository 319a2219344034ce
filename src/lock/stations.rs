//! Stations: where a node's marker and the keys beside it lie.
//!
//! A script may read only keys of slots that its node has. So the keys of a shard have a tag of one of its own slots:
//! of every 16th slot, a *station*. The highest station of the shard is taken, as slots are moved from the lowest on.
//! Markers move with their slots to other shards; there they are found too, and say that they are not that shard's.

use std::collections::HashMap;

use bb8_redis::redis::{self, Value};

use super::{
    Fault,
    members::marker::{BALLOT, MARKER, NOTE, Note, SEATS},
    voters::{SeatPlace, Shape, Voters},
};
use crate::{cluster::slot, config::LocksConfig, net::redis_client::Connection};

/// The distance of two stations.
const APART: u16 = 16;

/// Where the marker of a node lies.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(in crate::lock) enum Station {
    /// At its plain key: the node is no cluster's.
    #[default]
    Plain,
    /// In this slot.
    Slot(u16),
}

impl Station {
    /// Returns the key of this name that belongs to the node's marker.
    pub(in crate::lock) fn key(self, name: &[u8]) -> Vec<u8> {
        match self {
            Station::Plain => name.to_vec(),
            Station::Slot(number) => [name, b"{", &slot::tag(number), b"}"].concat(),
        }
    }
}

/// Returns the stations among these slots, the highest first.
pub(in crate::lock) fn among(slots: &[(u16, u16)]) -> Vec<u16> {
    let of =
        |(first, last): &(u16, u16)| (first.div_ceil(APART)..=last / APART).map(|at| at * APART);
    let mut all: Vec<u16> = slots.iter().flat_map(of).collect();
    all.sort_unstable_by(|a, b| b.cmp(a));
    all
}

/// The parts of a marker at a station that say whose it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::lock) struct Marked {
    pub(in crate::lock) seat: usize,
    pub(in crate::lock) shape: Shape,
    pub(in crate::lock) epoch: u64,
    /// Whether the marker names the node on which it lies for that seat.
    pub(in crate::lock) is_named: bool,
}

/// What lies at one station.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::lock) struct StationText {
    pub(in crate::lock) marker: Option<String>,
    pub(in crate::lock) seats: Option<String>,
    pub(in crate::lock) ballot: Option<String>,
    pub(in crate::lock) note: Option<String>,
}

impl StationText {
    /// Reads the marker. Returns `None` if there is none.
    fn marked(&self, run_id: &str) -> Option<Marked> {
        let words: Vec<&str> = self.marker.as_deref()?.split(' ').collect();
        let [_, epoch, place, _] = words[..] else { return None };
        let (seat, shape) = place.split_once('/')?;
        let seat = seat.parse::<usize>().ok()?.checked_sub(1)?;
        let line = self.seats.as_deref().and_then(|seats| seats.lines().nth(seat));
        let is_named =
            !run_id.is_empty() && line.is_some_and(|line| line.split(' ').next() == Some(run_id));
        Some(Marked { seat, shape: Shape::read(shape)?, epoch: epoch.parse().ok()?, is_named })
    }

    /// Returns the epoch of the note that this Redis waits, if there is one.
    fn waits_since(&self, run_id: &str) -> Option<u64> {
        let note = Note::parse(self.note.as_deref()?)?;
        (note.who.run_id == run_id).then_some(note.epoch)
    }
}

/// Returns the keys at a station that say whose it is, in the order of [`StationText`].
pub(in crate::lock) fn keys(station: u16) -> [Vec<u8>; 4] {
    [MARKER, SEATS, BALLOT, NOTE].map(|name| Station::Slot(station).key(name))
}

/// Chooses the station of a node with this `run_id` on a seat. Returns `None` if there is none, or other seats'
/// markers lie at all of them.
///
/// A foreign marker is never passed over: one of a deployment of another shape, one that names the node at another
/// voter, or a text that is no marker. A proxy that reads it there learns that the node is another's.
///
/// All proxies that look at the same time choose the same station. So does one that looks later, though slots have
/// come meanwhile: it takes the station where the node's wait is noted, or a round has begun. If that slot has been
/// moved away, what another proxy does there fails.
pub(in crate::lock) fn choose(
    all: &[(u16, StationText)],
    run_id: &str,
    place: &SeatPlace,
) -> Option<Station> {
    let marked = |found: &StationText| found.marked(run_id);
    let is_ours = |found: &StationText| {
        let fits = |marked: Marked| {
            marked.shape == place.shape && (!marked.is_named || place.beside.contains(&marked.seat))
        };
        marked(found).is_some_and(fits)
    };
    let foreign = all.iter().find(|(_, found)| found.marker.is_some() && !is_ours(found));
    if let Some((at, _)) = foreign {
        return Some(Station::Slot(*at));
    }
    let own = all.iter().filter_map(|(at, found)| Some((*at, marked(found)?)));
    let own = own.filter(|(_, marked)| marked.seat == place.seat);
    let best = own.max_by_key(|(at, marked)| (marked.is_named, marked.epoch, *at));
    let is_free = |found: &StationText| found.marker.is_none();
    let waiting = || {
        let noted = |(at, found): &(u16, StationText)| Some((found.waits_since(run_id)?, *at));
        let free = all.iter().filter(|(_, found)| is_free(found));
        free.filter_map(noted).max().map(|(_, at)| at)
    };
    let begun = || all.iter().find(|(_, found)| is_free(found) && found.ballot.is_some());
    let highest = || all.iter().find(|(_, found)| is_free(found));
    let free = || waiting().or_else(|| begun().or_else(highest).map(|(at, _)| *at));
    best.map(|(at, _)| at).or_else(free).map(Station::Slot)
}

/// Asks a node for all markers in its slots. Returns `None` if it does not answer.
pub(in crate::lock) async fn markers(
    connection: &mut Connection,
    slots: &[(u16, u16)],
) -> Option<Vec<Marked>> {
    let info: String =
        redis::cmd("INFO").arg("server").query_async(&mut connection.redis).await.ok()?;
    let fields: HashMap<&str, &str> =
        info.lines().filter_map(|line| line.trim_end().split_once(':')).collect();
    let run_id = fields.get("run_id").copied().unwrap_or_default();
    let mut asking = redis::pipe();
    let stations = among(slots);
    for station in &stations {
        for key in keys(*station) {
            asking.get(key);
        }
    }
    let told: Vec<Value> = asking.query_async(&mut connection.redis).await.ok()?;
    let text = |value: &Value| match value {
        Value::BulkString(text) => Some(String::from_utf8_lossy(text).into_owned()),
        _ => None,
    };
    let found = told.chunks(4).filter_map(|four| match four {
        [marker, seats, ballot, note] => {
            let [marker, seats, ballot, note] = [marker, seats, ballot, note].map(text);
            StationText { marker, seats, ballot, note }.marked(run_id)
        }
        _ => None,
    });
    Some(found.collect())
}

/// Finds the fault that keeps a shard from voting now, as far as its markers tell. For `lockgate doctor`.
pub(crate) async fn diagnose_shard(
    config: &LocksConfig,
    connection: &mut Connection,
    slots: &[(u16, u16)],
) -> Option<(Fault, String)> {
    let shape = Voters::new(config).shape();
    let told = markers(connection, slots).await?;
    if let Some(other) = told.iter().find(|marked| marked.shape != shape) {
        let what = format!(
            "its marker is of a deployment with seats {}, this file has {shape}: locks.nodes and the \
             shards of each cluster must be the same for all proxies",
            other.shape
        );
        return Some((Fault::Disagrees, what));
    }
    if told.iter().any(|marked| marked.is_named) {
        return None;
    }
    let what = match told.is_empty() {
        true => "it has no marker: it was emptied, or is new",
        false => "its markers are of another Redis: it was restarted, or promoted",
    };
    Some((Fault::Quarantined, what.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::slot::slot;

    fn found(marker: &str, run_ids: &[&str]) -> StationText {
        let seats = run_ids.iter().map(|run_id| format!("{run_id} r\n")).collect();
        let ballot = Some("1 1".into());
        StationText { marker: Some(marker.into()), seats: Some(seats), ballot, note: None }
    }

    #[test]
    fn a_station_is_in_its_slot() {
        assert_eq!(among(&[(0, 16), (31, 31), (48, 63), (70, 79)]), [48, 16, 0]);
        assert!(among(&[(0, 16383)]).len() == 1024 && among(&[(1, 15)]).is_empty());
        for station in [0, 4096, 16368] {
            for name in [MARKER, SEATS, BALLOT] {
                assert_eq!(slot(&Station::Slot(station).key(name)), station);
            }
        }
        assert_eq!(Station::Plain.key(MARKER), MARKER);
    }

    #[test]
    fn who_has_a_marker_keeps_its_station_and_others_take_the_highest_that_is_free() {
        // A cluster of three seats beside one node.
        let place = Voters::with_seats([3, 1].into_iter()).place(1);
        let ours = found("d 3 2/3+1 lock:", &["a", "b", "c", "d"]);
        let theirs = found("d 9 1/3+1 lock:", &["a", "b", "c", "d"]);
        let copy = found("d 5 2/3+1 lock:", &["a", "x", "c", "d"]);
        let promised = StationText { ballot: Some("1 0".into()), ..StationText::default() };
        let choose = |all: &[(u16, StationText)]| choose(all, "b", &place);
        let free = || StationText::default();
        assert_eq!(choose(&[(48, free()), (32, free())]), Some(Station::Slot(48)));
        assert_eq!(choose(&[(48, theirs.clone()), (32, free())]), Some(Station::Slot(32)));
        let all = [(64, free()), (48, copy.clone()), (32, ours.clone()), (16, promised.clone())];
        assert_eq!(choose(&all), Some(Station::Slot(32)), "it is named there");
        assert_eq!(choose(&[(48, copy), (32, free())]), Some(Station::Slot(48)));
        assert_eq!(
            choose(&[(48, free()), (32, promised)]),
            Some(Station::Slot(32)),
            "it has promised"
        );
        let of_five = found("d 9 1/5 lock:", &["a", "b", "c", "d", "e"]);
        let in_other_order = found("d 9 2/1+3 lock:", &["a", "b", "c", "d"]);
        let of_another_voter = found("d 9 4/3+1 lock:", &["a", "x", "c", "b"]);
        let strange = found("hello", &[]);
        for foreign in [of_five, in_other_order, of_another_voter, strange] {
            let all = [(48, free()), (32, ours.clone()), (16, foreign)];
            assert_eq!(choose(&all), Some(Station::Slot(16)), "it is not passed by");
        }
        let noted = |who: &str, epoch: u64| StationText {
            note: Some(format!("{who} r {epoch} 1")),
            ..StationText::default()
        };
        let all = [(64, free()), (48, noted("b", 3)), (32, noted("b", 3)), (16, noted("b", 2))];
        assert_eq!(choose(&all), Some(Station::Slot(48)), "slots that come change nothing");
        assert_eq!(choose(&[(48, free()), (32, noted("x", 3))]), Some(Station::Slot(48)));
        assert_eq!(choose(&[(48, theirs)]), None);
        assert_eq!(choose(&[]), None);
    }
}
