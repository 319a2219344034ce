//! What a node says of itself that makes it unfit to vote: a replica, an
//! eviction policy that may drop locks, cluster mode.
//!
//! Asked over bb8-redis's own connections, apart from the one that carries
//! operations, so that a slow INFO delays no lock.

use std::{collections::HashMap, time::Duration};

use bb8_redis::{
    RedisConnectionManager, bb8,
    redis::{self, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, RedisConnectionInfo},
};
use thiserror::Error;

use super::fault::Fault;
use crate::config::{Endpoint, RedisUrl};

/// Connections for admin traffic to one node.
const MAX_CONNECTIONS: u32 = 2;
/// How long getting one, or an answer, may take.
const LIMIT: Duration = Duration::from_secs(1);

/// Why a node could not be asked.
#[derive(Debug, Error)]
pub(super) enum InspectError {
    /// The URL means nothing to the client library, or the node refused.
    #[error("{0}")]
    Redis(#[from] redis::RedisError),
    /// No connection in time.
    #[error("{0}")]
    Pool(#[from] bb8::RunError<redis::RedisError>),
    /// No answer in time.
    #[error("no answer within {LIMIT:?}")]
    Silent,
}

/// Admin connections to one node.
pub(super) struct Inspector {
    pool: bb8::Pool<RedisConnectionManager>,
}

impl Inspector {
    /// Connects only once something is asked.
    pub(super) fn new(url: &RedisUrl) -> Result<Inspector, InspectError> {
        let pool = bb8::Pool::builder()
            .max_size(MAX_CONNECTIONS)
            .connection_timeout(LIMIT)
            .build_unchecked(RedisConnectionManager::new(connection_info(url)?)?);
        Ok(Inspector { pool })
    }

    /// What is wrong with the node as a voter.
    pub(super) async fn inspect(&self) -> Result<Vec<Fault>, InspectError> {
        let mut connection = self.pool.get().await?;
        let command = redis::cmd("INFO");
        let asking = command.query_async::<String>(&mut *connection);
        let info =
            tokio::time::timeout(LIMIT, asking).await.map_err(|_| InspectError::Silent)??;
        let fields: HashMap<&str, &str> =
            info.lines().filter_map(|line| line.trim_end().split_once(':')).collect();
        Ok(faults_of(|name| fields.get(name).copied().unwrap_or_default()))
    }
}

/// How the client library is told of a node.
///
/// # Errors
/// If it cannot connect to such a node.
pub(crate) fn connection_info(url: &RedisUrl) -> Result<ConnectionInfo, redis::RedisError> {
    let addr = match &url.endpoint {
        Endpoint::Tcp { host, port } => ConnectionAddr::Tcp(host.clone(), *port),
        Endpoint::Unix(path) => ConnectionAddr::Unix(path.clone()),
    };
    let mut settings = RedisConnectionInfo::default().set_db(i64::from(url.db));
    if let Some(user) = &url.username {
        settings = settings.set_username(user);
    }
    if let Some(password) = &url.password {
        settings = settings.set_password(password);
    }
    Ok(addr.into_connection_info()?.set_redis_settings(settings))
}

/// What the fields of INFO tell; a field that is not there is empty, and not held
/// against the node.
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
