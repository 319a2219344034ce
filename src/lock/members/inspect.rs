//! Faults that a node reports itself: it is a replica, its eviction policy may drop locks, or it is in cluster mode.
//!
//! Inspections use bb8-redis's client library, apart from the connection that carries operations, so that a slow INFO
//! delays no lock.

use std::{collections::HashMap, time::Duration};

use bb8_redis::{
    bb8,
    redis::{self, RedisError, RedisResult, aio::MultiplexedConnection},
};
use thiserror::Error;
use tokio::time::timeout;

use super::{
    fault::Fault,
    marker::{BALLOT, Identity, LONGEST, MARKER, NOTE},
};
use crate::{
    config::RedisUrl,
    lock::{scripts::MAX_TTL, stations::Station},
    net::{Connector, redis_client::Manager},
};

/// The most connections to one node for inspections.
const MAX_CONNECTIONS: u32 = 2;
/// A key that never exists, to ask a node whether it takes writes.
pub(super) const PROBE: &[u8] = b"lockgate:probe";
/// The codes of errors by which a master refuses any write. Other errors do not show that: the user may lack a
/// permission, and READONLY comes from a replica, which is a fault of its own.
const REFUSALS: [&str; 3] = ["MISCONF", "OOM", "NOREPLICAS"];
/// A script that does nothing, and its SHA-1.
const NO_WORK: &str = "return 1";
const NO_WORK_SHA: &str = "e0e1f9fabfc9d4800c877a703b823ac0578ff8db";
/// The longest time for getting a connection, or an answer.
const LIMIT: Duration = Duration::from_secs(1);

/// Why a node could not be inspected.
#[derive(Debug, Error)]
pub(in crate::lock) enum InspectError {
    /// The node cannot be reached, or answered with an error.
    #[error("{0}")]
    Redis(#[from] RedisError),
    /// No connection was free in time.
    #[error("{0}")]
    Pool(#[from] bb8::RunError<RedisError>),
    /// No answer came in time.
    #[error("no answer within {LIMIT:?}")]
    Silent,
}

/// Connections to one node for inspections.
pub(in crate::lock) struct Inspector {
    pool: bb8::Pool<Manager>,
    /// `locks.prefix`.
    prefix: String,
}

impl Inspector {
    /// Prepares connections, which are opened only when needed.
    pub(in crate::lock) fn new(url: &RedisUrl, connector: &Connector, prefix: &str) -> Inspector {
        let pool = bb8::Pool::builder()
            .max_size(MAX_CONNECTIONS)
            .connection_timeout(LIMIT)
            .build_unchecked(Manager { url: url.clone(), connector: connector.clone() });
        Inspector { pool, prefix: prefix.to_owned() }
    }

    /// Asks only whether the node carries out what locks need. Returns why not.
    pub(in crate::lock) async fn refusal(
        &self,
        station: Station,
    ) -> Result<Option<NodeRefusal>, InspectError> {
        let mut connection = self.pool.get().await?;
        refusal(&mut connection.redis, station, &self.prefix).await
    }

    /// Finds the node's faults, and whether it still is the identity that was admitted and has the marker that it
    /// must have: while no client locks, no vote finds that out. `is_shard`: the node is meant to be a cluster's.
    pub(in crate::lock) async fn inspect(
        &self,
        admitted: Option<&Identity>,
        told: Option<&str>,
        (station, is_shard): (Station, bool),
    ) -> Result<Inspected, InspectError> {
        let mut connection = self.pool.get().await?;
        let command = redis::cmd("INFO");
        let asking = command.query_async::<String>(&mut connection.redis);
        let info = timeout(LIMIT, asking).await.map_err(|_| InspectError::Silent)??;
        let fields: HashMap<&str, &str> =
            info.lines().filter_map(|line| line.trim_end().split_once(':')).collect();
        let field = |name: &str| fields.get(name).copied().unwrap_or_default();
        let is_another = admitted.is_some_and(|admitted| {
            // A field that the node hides now, it may have hidden before.
            let differs = |now: &str, then: &str| !now.is_empty() && now != then;
            differs(field("run_id"), &admitted.run_id)
                || differs(field("master_replid"), &admitted.replication_id)
                || differs(field("role"), "master")
        });
        let (mut is_another, mut longest) = (is_another, Duration::ZERO);
        if let Some(told) = told {
            let mut commands = redis::pipe();
            for name in [MARKER, LONGEST, MAX_TTL] {
                commands.get(station.key(name));
            }
            let asking = commands.query_async::<Lying>(&mut connection.redis);
            let lying = timeout(LIMIT, asking).await.map_err(|_| InspectError::Silent)??;
            is_another |= lying.0.as_deref() != Some(told);
            longest = Duration::from_millis(lying.1.unwrap_or(0).max(lying.2.unwrap_or(0)));
        }
        let refusal = refusal(&mut connection.redis, station, &self.prefix).await?;
        let mut faults = faults_of(field);
        if is_shard {
            faults.retain(|fault| *fault != Fault::Cluster);
        }
        Ok(Inspected { faults, refusal, is_another, longest })
    }
}

/// Why a node carries out nothing that locks need.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NodeRefusal {
    /// [`Fault::Refuses`], or [`Fault::Auth`] if the user lacks a permission.
    pub(crate) fault: Fault,
    /// The node's words.
    pub(crate) error: String,
}

/// Asks a node whether it takes writes, and whether the user may send what locks need. Returns why not.
async fn refusal(
    connection: &mut MultiplexedConnection,
    station: Station,
    prefix: &str,
) -> Result<Option<NodeRefusal>, InspectError> {
    let probe = station.key(PROBE);
    let mut trial = redis::pipe();
    // The key does not exist, so XX writes nothing. A node that refuses writes, or is out of memory, refuses it too.
    trial.cmd("SET").arg(&probe).arg("").arg("XX").arg("PX").arg(1);
    // Nor do these change anything. No lock has the script's key, which the user must be allowed to use.
    trial.cmd("SCRIPT").arg("LOAD").arg(NO_WORK);
    trial.cmd("EVALSHA").arg(NO_WORK_SHA).arg(1).arg(station.key(prefix.as_bytes()));
    trial.cmd("DEL").arg(&probe);
    trial.cmd("PEXPIRE").arg(&probe).arg(1);
    trial.cmd("PTTL").arg(&probe);
    trial.ignore_errors();
    let trying = trial.query_async::<Vec<RedisResult<redis::Value>>>(connection);
    let tried = timeout(LIMIT, trying).await.map_err(|_| InspectError::Silent)??;
    Ok(judge(tried.into_iter().map(Result::err)))
}

/// Returns why a node carries out nothing, from its errors to the write and to what follows.
fn judge(mut errors: impl Iterator<Item = Option<RedisError>>) -> Option<NodeRefusal> {
    let write = errors.next().flatten();
    let is_refusal = |code: &str| REFUSALS.contains(&code);
    if let Some(error) = write.as_ref().filter(|error| error.code().is_some_and(is_refusal)) {
        return Some(NodeRefusal { fault: Fault::Refuses, error: error.to_string() });
    }
    let mut all = write.into_iter().chain(errors.flatten());
    let denied = all.find(|error| error.code() == Some("NOPERM"))?;
    // The client library has a word of its own for this code.
    let error = format!("NOPERM {}", denied.detail().unwrap_or_default());
    Some(NodeRefusal { fault: Fault::Auth, error })
}

/// Asks a lock node whether it carries out what locks need, as proxies do. Returns why not.
pub(crate) async fn refusal_of_locks(
    connection: &mut MultiplexedConnection,
    prefix: &str,
) -> Option<NodeRefusal> {
    refusal(connection, Station::Plain, prefix).await.ok().flatten()
}

/// Counts Lockgate's own keys on a node that has a part in no deployment; 0 if it does not say.
pub(crate) async fn count_own_of_new(connection: &mut MultiplexedConnection) -> u64 {
    let mut exist = redis::cmd("EXISTS");
    exist.arg(&[NOTE, BALLOT, MAX_TTL]);
    exist.query_async(connection).await.unwrap_or_default()
}

/// The findings of an inspection.
pub(in crate::lock) struct Inspected {
    pub(in crate::lock) faults: Vec<Fault>,
    /// Why the node carries out nothing that locks need.
    pub(in crate::lock) refusal: Option<NodeRefusal>,
    /// Whether this is no longer the node that was admitted, or its marker is not the expected one.
    pub(in crate::lock) is_another: bool,
    /// The longest TTL that the node knows of: stored there, or allowed by some proxy.
    pub(in crate::lock) longest: Duration,
}

/// The values of [`MARKER`], [`LONGEST`] and [`MAX_TTL`].
type Lying = (Option<String>, Option<u64>, Option<u64>);

/// Finds the faults in the fields of INFO. A missing field is empty, and no fault.
pub(crate) fn faults_of<'a>(field: impl Fn(&str) -> &'a str) -> Vec<Fault> {
    let mut faults = Vec::new();
    if !matches!(field("role"), "master" | "") {
        faults.push(Fault::Replica);
    }
    if !matches!(field("maxmemory_policy"), "noeviction" | "") {
        faults.push(Fault::Eviction);
    }
    if !matches!(field("cluster_enabled"), "0" | "") {
        faults.push(Fault::Cluster);
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_script_that_does_nothing_is_called_by_its_own_sum() {
        assert_eq!(sha1_smol::Sha1::from(NO_WORK).digest().to_string(), NO_WORK_SHA);
    }

    #[test]
    fn a_sound_node_has_no_faults_and_others_are_named() {
        let sound = |name: &str| match name {
            "role" => "master",
            "maxmemory_policy" => "noeviction",
            "cluster_enabled" => "0",
            _ => "",
        };
        assert!(faults_of(sound).is_empty());
        assert!(faults_of(|_| "").is_empty(), "what is not said is not held against it");
        let bad = |name: &str| match name {
            "role" => "slave",
            "maxmemory_policy" => "allkeys-lru",
            "cluster_enabled" => "1",
            _ => "",
        };
        assert_eq!(faults_of(bad), [Fault::Replica, Fault::Eviction, Fault::Cluster]);
    }
}
