//! Finds faults in a node's marker that keep it out for good.

use super::{
    change::COPIED,
    fault::Fault,
    marker::{MARKER, Marker, Phase},
    seats::fits,
    self_report::{MarkerFound, SelfReport},
};
use crate::{
    config::LocksConfig,
    lock::{stations::Station, voters::Voters},
};

/// The reason why a node waits.
pub(super) const FORGOTTEN: &str = "it was restarted, emptied, exchanged or a replica, or got its first replica (redis-cli --rdb is one): it may lack \
     locks that are still held";

/// A node's place in this proxy's configuration.
pub(super) struct Place<'a> {
    /// The seat, from 0.
    pub(super) index: usize,
    pub(super) voters: &'a Voters,
    /// `locks.prefix`.
    pub(super) prefix: &'a str,
}

/// The keys to delete so that a node forgets its deployment.
pub(super) fn keys_of_marker(station: Station) -> String {
    // A cluster's nodes never have a copy: they cannot be changed while proxies run.
    let copied = (station == Station::Plain).then_some(COPIED);
    let keys = std::iter::once(MARKER).chain(copied).map(|name| station.key(name));
    keys.map(|key| String::from_utf8_lossy(&key).into_owned()).collect::<Vec<_>>().join(" ")
}

/// Finds the fault that keeps a node out for good. `ours` is the deployment to which it must
/// belong, if that is known. Returns `None` if there is no such fault.
pub(super) fn refusal(
    place: &Place<'_>,
    look: &SelfReport,
    ours: Option<&str>,
) -> Option<(Fault, String)> {
    let Place { index, voters, prefix } = *place;
    let (shape, has_shards) = (voters.shape(), voters.seats() != voters.count());
    let keys = keys_of_marker(look.station);
    let marker = match &look.marker {
        MarkerFound::Nothing => return None,
        MarkerFound::Other => {
            let why = format!(
                "what lies there is no marker of this version; if nothing else uses it, DEL {keys}"
            );
            return Some((Fault::Foreign, why));
        }
        MarkerFound::Marker(marker) => marker,
    };
    let theirs = &marker.deployment;
    let names_itself = look.identity().is_some_and(|who| theirs.names(marker.seat, &who));
    let has_copy = !names_itself && theirs.shape == shape && theirs.prefix == prefix;
    let is_ours = fits(marker, index, voters, prefix) || has_copy;
    if !is_ours {
        return Some((Fault::Disagrees, disagreement(place, marker, &keys)));
    }
    let ours = ours?;
    (theirs.id != ours).then(|| {
        let why = format!(
            "it belongs to deployment {}, not to {ours}: use another {}, or where that deployment is \
             not used any more, DEL {keys} there",
            theirs.id,
            if has_shards { "cluster" } else { "database (redis://host:port/1)" },
        );
        (Fault::Foreign, why)
    })
}

/// Says how a node's marker disagrees with this proxy's configuration. `keys`: those of the marker.
fn disagreement(place: &Place<'_>, marker: &Marker, keys: &str) -> String {
    let Place { index, voters, prefix } = *place;
    let (shape, has_shards) = (voters.shape(), voters.seats() != voters.count());
    let theirs = &marker.deployment;
    if has_shards && theirs.shape == shape && theirs.prefix == prefix {
        return "its marker has it as another entry of locks.nodes: all proxies need the same \
                   locks.nodes in the same order; where that deployment is not used any more, \
                   lockgate init says what to delete"
            .into();
    }
    if has_shards {
        return format!(
            "its marker is of a deployment with seats {} and prefix '{}', this proxy has {shape} and \
             '{prefix}': all proxies need the same locks.nodes in the same order, the same shards, \
             which are a cluster's seats, and locks.prefix; where that deployment is not used any \
             more, lockgate init says what to delete",
            theirs.shape, theirs.prefix,
        );
    }
    let else_do = match theirs.set {
        0 => format!(
            "for another deployment use another database (redis://host:port/1), or where this one is \
                 not used any more, DEL {keys}"
        ),
        // Most likely it votes.
        _ => {
            "the lock nodes were changed for others while proxies ran: locks.nodes are to be those \
                  of the last change"
                .into()
        }
    };
    format!(
        "its marker has it as node {} of {} with prefix '{}', this proxy as node {} of {} \
             with prefix '{}': all proxies need the same locks.nodes, in the same order, and \
             locks.prefix; {else_do}",
        marker.seat + 1,
        theirs.seats.len(),
        theirs.prefix,
        index + 1,
        voters.seats(),
        prefix,
    )
}

/// Returns the id of the deployment on this marker, if it is one.
pub(crate) fn deployment_named(marker: &str) -> Option<String> {
    Marker::parse(marker).map(|marker| marker.deployment.id)
}

/// Finds the fault that keeps a node from voting now, as far as the node alone shows it, by its value of
/// [`MARKER`](super::marker::MARKER). `ours`: the deployment to which it must belong, if that is known. For
/// `lockgate doctor`.
pub(crate) fn diagnose(
    config: &LocksConfig,
    index: usize,
    (run_id, replication_id, election): (&str, &str, Option<u64>),
    marker: Option<&str>,
    ours: Option<&str>,
) -> Option<(Fault, String)> {
    let present = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    let look = SelfReport {
        run_id: present(run_id),
        replication_id: present(replication_id),
        election,
        is_master: true,
        marker: marker.map_or(MarkerFound::Nothing, |text| {
            Marker::parse(text).map_or(MarkerFound::Other, MarkerFound::Marker)
        }),
        ..SelfReport::default()
    };
    let who = look.identity()?;
    let phase = look.marker().map(|marker| &marker.deployment.phase);
    let given_up = match phase {
        None | Some(Phase::Stands) => None,
        Some(Phase::Joint(_)) => Some(
            "its set is sealed, and no node of it votes: other lock nodes are to take its place",
        ),
        Some(Phase::Left(..)) => {
            Some("other lock nodes have taken its place, or are to: it does not vote")
        }
    };
    if let Some(why) = given_up {
        return Some((Fault::Changing, why.into()));
    }
    let voters = Voters::new(config);
    let index = voters.first(index);
    let place = Place { index, voters: &voters, prefix: &config.prefix };
    if let Some(refusal) = refusal(&place, &look, ours) {
        return Some(refusal);
    }
    let Some(marker) = look.marker() else {
        let why = "it has no marker: it was restarted, emptied or is new".to_owned();
        return Some((Fault::Quarantined, why));
    };
    let is_named =
        fits(marker, index, &voters, &config.prefix) && marker.deployment.names(index, &who);
    (!is_named).then(|| (Fault::Quarantined, FORGOTTEN.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_say_the_same_that_a_node_forgets_its_deployment() {
        let keys = keys_of_marker(Station::Plain);
        let command = format!("DEL {keys} on all nodes");
        let page = include_str!("../../../docs/changing-lock-nodes.md").replace('`', "");
        for text in [crate::config::OTHER_NODES, &page] {
            assert!(text.contains(&command), "{command}");
        }
    }
}
