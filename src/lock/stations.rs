//! Stations: where a node's marker and the keys beside it lie.
//!
//! A script may read keys of those slots alone that its node has. So the keys of a shard have a tag of
//! one of its own slots: of every 16th slot, a *station*. The highest station of the shard is taken,
//! as slots are moved from the lowest on. Markers move with their slots to other shards; there they
//! are found too, and say that they are not that shard's.

use std::collections::HashMap;

use bb8_redis::redis::{self, Value};

use super::{
    Fault,
    fitness::marker::{BALLOT, MARKER, SEATS},
    voters::Voters,
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
    /// The key of this name that belongs to the node's marker.
    pub(in crate::lock) fn key(self, name: &[u8]) -> Vec<u8> {
        match self {
            Station::Plain => name.to_vec(),
            Station::Slot(number) => [name, b"{", &slot::tag(number), b"}"].concat(),
        }
    }
}

/// The stations among these slots, the highest first.
pub(in crate::lock) fn among(slots: &[(u16, u16)]) -> Vec<u16> {
    let of =
        |(first, last): &(u16, u16)| (first.div_ceil(APART)..=last / APART).map(|at| at * APART);
    let mut all: Vec<u16> = slots.iter().flat_map(of).collect();
    all.sort_unstable_by(|a, b| b.cmp(a));
    all
}

/// A marker that lies at a station, as far as it says whose it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::lock) struct Marked {
    pub(in crate::lock) seat: usize,
    pub(in crate::lock) seats: usize,
    pub(in crate::lock) epoch: u64,
    /// Whether the seat is that of the node on which it lies.
    pub(in crate::lock) is_named: bool,
}

/// What lies at one station.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::lock) struct StationText {
    pub(in crate::lock) marker: Option<String>,
    pub(in crate::lock) seats: Option<String>,
    pub(in crate::lock) ballot: Option<String>,
}

impl StationText {
    /// Reads the marker. Returns `None` if there is none.
    fn marked(&self, run_id: &str) -> Option<Marked> {
        let words: Vec<&str> = self.marker.as_deref()?.split(' ').collect();
        let [_, epoch, place, _] = words[..] else { return None };
        let (seat, seats) = place.split_once('/')?;
        let seat = seat.parse::<usize>().ok()?.checked_sub(1)?;
        let line = self.seats.as_deref().and_then(|seats| seats.lines().nth(seat));
        let is_named =
            !run_id.is_empty() && line.is_some_and(|line| line.split(' ').next() == Some(run_id));
        Some(Marked { seat, seats: seats.parse().ok()?, epoch: epoch.parse().ok()?, is_named })
    }
}

/// The keys at a station that say whose it is, in the order of [`StationText`].
pub(in crate::lock) fn keys(station: u16) -> [Vec<u8>; 3] {
    [MARKER, SEATS, BALLOT].map(|name| Station::Slot(station).key(name))
}

/// Chooses the station of a node with this `run_id` on `seat` of `seats`. Returns `None` if other
/// seats' markers lie at all of them, or there is none.
///
/// A marker of a deployment with other seats, or what is none, is never passed by: whoever reads it
/// there is told that the node is another's.
///
/// Whoever looks at the same time chooses the same one, unless its slot has been moved away: then what
/// another proxy does there fails.
pub(in crate::lock) fn choose(
    all: &[(u16, StationText)],
    run_id: &str,
    seat: usize,
    seats: usize,
) -> Option<Station> {
    let marked = |found: &StationText| found.marked(run_id);
    let is_ours = |found: &StationText| marked(found).is_some_and(|marked| marked.seats == seats);
    let foreign = all.iter().find(|(_, found)| found.marker.is_some() && !is_ours(found));
    if let Some((at, _)) = foreign {
        return Some(Station::Slot(*at));
    }
    let own = all.iter().filter_map(|(at, found)| Some((*at, marked(found)?)));
    let own = own.filter(|(_, marked)| marked.seat == seat);
    let best = own.max_by_key(|(at, marked)| (marked.is_named, marked.epoch, *at));
    let is_free = |found: &StationText| found.marker.is_none();
    let begun = || all.iter().find(|(_, found)| is_free(found) && found.ballot.is_some());
    let highest = || all.iter().find(|(_, found)| is_free(found));
    let free = || begun().or_else(highest).map(|(at, _)| *at);
    best.map(|(at, _)| at).or_else(free).map(Station::Slot)
}

/// Asks a node for all markers in its slots. Returns `None` if it does not answer that.
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
    let found = told.chunks(3).filter_map(|three| match three {
        [marker, seats, ballot] => {
            StationText { marker: text(marker), seats: text(seats), ballot: text(ballot) }
                .marked(run_id)
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
    let seats = Voters::new(config).seats();
    let told = markers(connection, slots).await?;
    if let Some(other) = told.iter().find(|marked| marked.seats != seats) {
        let what = format!(
            "its marker is of a deployment of {} seats, this file has {seats}: locks.nodes and the shards \
             of each cluster must be the same for all proxies",
            other.seats
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
        StationText { marker: Some(marker.into()), seats: Some(seats), ballot: Some("1 1".into()) }
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
        let ours = found("d 3 2/4 lock:", &["a", "b", "c", "d"]);
        let theirs = found("d 9 1/4 lock:", &["a", "b", "c", "d"]);
        let copy = found("d 5 2/4 lock:", &["a", "x", "c", "d"]);
        let promised = StationText { ballot: Some("1 0".into()), ..StationText::default() };
        let choose = |all: &[(u16, StationText)]| choose(all, "b", 1, 4);
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
        let strange = found("hello", &[]);
        for foreign in [of_five, strange] {
            let all = [(48, free()), (32, ours.clone()), (16, foreign)];
            assert_eq!(choose(&all), Some(Station::Slot(16)), "it is not passed by");
        }
        assert_eq!(choose(&[(48, theirs)]), None);
        assert_eq!(choose(&[]), None);
    }
}
