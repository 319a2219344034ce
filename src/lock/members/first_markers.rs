//! Writes the first markers of a deployment, only on request (`lockgate init`).

use std::{sync::Arc, time::Duration};

use thiserror::Error;
use tokio::time::Instant;

use super::{
    change::has_copy,
    marker::{Deployment, Seat},
    refusal::keys_of_marker,
    round::{self, Answered, Way},
    seats::{Plan, Survey},
    self_report::{ConnectError, MarkerFound, SelfReport},
};
use crate::{
    cluster::trouble::ClusterTrouble,
    config::LocksConfig,
    lock::{
        address::{NodeAddress, connector_to_nodes},
        shards::Shards,
        stations::Station,
        voters::Voters,
    },
};

/// How long Sentinels and clusters may take to name the masters.
const SENTINELS_LIMIT: Duration = Duration::from_secs(3);

/// Why a node with a copy gets no first marker: `lockgate nodes --change` may be about to have it vote.
const HAS_COPY: &str =
    "has the locks of another deployment, copied by lockgate nodes --change (lockgate:copied)";

/// The reason why the first markers were not written.
#[derive(Debug, Error)]
pub enum InitError {
    /// Nodes have markers already.
    #[error(
        "{}; nothing was written. Nodes that are set up need no init. If none of them is in use, by no \
         proxy and no client, {} and run it again",
        .markers.join("; "), .deletions.join(", ")
    )]
    Found {
        /// Which node has which marker.
        markers: Vec<String>,
        /// The commands that delete them.
        deletions: Vec<String>,
    },
    /// These nodes cannot be used.
    #[error("{}; nothing was written", .0.join("; "))]
    Unfit(Vec<String>),
    /// A node was lost or changed while the markers were written.
    #[error(
        "not all nodes took their markers: see lockgate doctor. Proxies admit them once locks.max_ttl has \
         passed; or delete their markers (lockgate:deployment…) and run it again"
    )]
    Incomplete,
}

/// Writes the first markers of a new deployment, whose nodes all vote from then on. Returns the deployment's id. Must
/// be called inside a tokio runtime.
///
/// # Errors
/// If a node cannot be reached, must not vote, or has a marker.
pub async fn initialise(config: &LocksConfig) -> Result<String, InitError> {
    let connector = connector_to_nodes(config);
    let voters = Voters::new(config);
    let way =
        |(seat, address)| Way { address, connector: connector.clone(), seat: voters.place(seat) };
    let ways: Vec<Way> = NodeAddress::all(config).into_iter().enumerate().map(way).collect();
    let until = Instant::now() + SENTINELS_LIMIT;
    for way in &ways {
        way.address.found(until.saturating_duration_since(Instant::now())).await;
    }
    let all = round::ask_all(&ways, |_| false).await;
    let looks = round::looks(&all);
    let is_there = |seat: &usize| !ways[*seat].address.is_absent();
    let there: Vec<usize> = (0..ways.len()).filter(is_there).collect();
    refuse_unfit_or_marked(&ways, &all, &there, config).await?;
    let mut next = Deployment { epoch: 1, ..Deployment::new(config) };
    for (seat, look) in next.seats.iter_mut().zip(&looks) {
        let who = look.as_ref().and_then(SelfReport::identity);
        *seat = who.map_or(Seat::Blank(1), Seat::Filled);
    }
    let promised = Survey::new(&voters, &looks, &[], &config.prefix, None).promised;
    let (blank, admitted, joining) = (Vec::new(), Vec::new(), Vec::new());
    let plan = Plan { next, acceptors: there.clone(), blank, admitted, joining };
    let are_all = |seats: &[usize]| seats.len() == there.len();
    let done = round::carry_out(all, &plan, &promised, Duration::ZERO, are_all).await;
    let accepted = done.ok_or(InitError::Incomplete)?;
    for of in clusters(&ways) {
        of.declare_free(SENTINELS_LIMIT).await;
    }
    Ok(accepted.deployment.id)
}

/// Refuses first markers if a node cannot be used, or if one has a marker or a copy.
async fn refuse_unfit_or_marked(
    ways: &[Way],
    all: &[Result<Answered, ConnectError>],
    there: &[usize],
    config: &LocksConfig,
) -> Result<(), InitError> {
    let (mut unfit, mut found, mut deletions) = (Vec::new(), Vec::new(), Vec::new());
    let looks = round::looks(all);
    for of in clusters(ways) {
        let line =
            |trouble: ClusterTrouble| format!("lock node {}: {}", of.config.cluster, trouble.what);
        unfit.extend(of.troubles().into_iter().map(line));
    }
    for seat in there.iter().copied() {
        let (asked, url) = (&all[seat], &ways[seat].address);
        match asked {
            Err(error) => {
                // A cluster that does not answer is one trouble, reported above, not one for each seat.
                if url.cluster().is_none_or(|of| of.troubles().is_empty()) {
                    unfit.push(format!("lock node {url}: {error}"));
                }
            }
            Ok(asked) => {
                let name = |what| format!("lock node {url} {what}");
                if asked.look.marker == MarkerFound::Nothing && has_copy(&ways[seat]).await {
                    found.push(name(HAS_COPY.into()));
                    deletions.push(format!("DEL lockgate:copied on node {}", seat + 1));
                }
                if let Some(marker) = marker_of(&asked.look) {
                    found.push(name(marker));
                    let station = asked.look.station;
                    let command = format!("DEL {}", keys_of_marker(station));
                    match station {
                        Station::Plain if deletions.is_empty() => {
                            deletions.push(format!("{command} on them"));
                        }
                        Station::Plain => {}
                        Station::Slot(_) => deletions.push(format!("redis-cli -c … {command}")),
                    }
                }
                unfit.extend(unfitness(&looks, seat, config).map(name));
            }
        }
    }
    if !unfit.is_empty() {
        return Err(InitError::Unfit(unfit));
    }
    if !found.is_empty() {
        return Err(InitError::Found { markers: found, deletions });
    }
    Ok(())
}

/// Lists the clusters among the voters.
fn clusters(ways: &[Way]) -> Vec<&Arc<Shards>> {
    let mut all: Vec<&Arc<Shards>> = ways.iter().filter_map(|way| way.address.cluster()).collect();
    all.dedup_by(|one, other| Arc::ptr_eq(one, other));
    all
}

fn marker_of(look: &SelfReport) -> Option<String> {
    match &look.marker {
        MarkerFound::Marker(marker) => Some(format!(
            "is node {} of {} of deployment {} (lockgate:deployment)",
            marker.seat + 1,
            marker.deployment.seats.len(),
            marker.deployment.id
        )),
        MarkerFound::Other => Some("has something else at lockgate:deployment".into()),
        MarkerFound::Nothing => None,
    }
}

fn unfitness(looks: &[Option<SelfReport>], seat: usize, config: &LocksConfig) -> Option<String> {
    let look = looks[seat].as_ref()?;
    let is_same = |other: &Option<SelfReport>| {
        other.as_ref().is_some_and(|other| other.run_id.is_some() && other.run_id == look.run_id)
    };
    if !look.is_master {
        return Some("is a replica, whose votes are not its own".into());
    }
    if look.run_id.is_none() {
        return Some("does not tell its run_id: allow its user INFO".into());
    }
    let twin = looks[..seat].iter().position(is_same).filter(|_| !config.allow_shared_instance);
    twin.map(|twin| format!("is the same instance as node {}", twin + 1))
}
