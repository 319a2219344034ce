//! What a node says of itself that makes it unfit to vote: a replica, an
//! eviction policy that may drop locks, cluster mode.
//!
//! Asked over bb8-redis's client library, apart from the one that carries
//! operations, so that a slow INFO delays no lock.

use std::{collections::HashMap, time::Duration};

use bb8_redis::{
    bb8::{self, ManageConnection},
    redis::{
        self, AsyncConnectionConfig, RedisConnectionInfo, RedisError, aio::MultiplexedConnection,
    },
};
use thiserror::Error;
use tokio::{task::JoinHandle, time::timeout};

use crate::{
    config::RedisUrl,
    net::{self, Connector},
};

/// Connections for admin traffic to one node.
const MAX_CONNECTIONS: u32 = 2;
/// How long getting one, or an answer, may take.
const LIMIT: Duration = Duration::from_secs(1);

/// How long a peer may be idle before it is asked for a sign of life.
const KEEPALIVE: Duration = Duration::from_secs(3);

/// Why a node could not be asked.
#[derive(Debug, Error)]
pub(super) enum InspectError {
    /// It cannot be reached, or refused.
    #[error("{0}")]
    Redis(#[from] RedisError),
    /// No connection in time.
    #[error("{0}")]
    Pool(#[from] bb8::RunError<RedisError>),
    /// No answer in time.
    #[error("no answer within {LIMIT:?}")]
    Silent,
}

/// Admin connections to one node.
pub(super) struct Inspector {
    pool: bb8::Pool<Manager>,
}

impl Inspector {
    /// Connects only once something is asked.
    pub(super) fn new(url: &RedisUrl, connector: &Connector) -> Inspector {
        let pool = bb8::Pool::builder()
            .max_size(MAX_CONNECTIONS)
            .connection_timeout(LIMIT)
            .build_unchecked(Manager { url: url.clone(), connector: connector.clone() });
        Inspector { pool }
    }

    /// What is wrong with the node as a voter, each in one sentence.
    pub(super) async fn inspect(&self) -> Result<Vec<&'static str>, InspectError> {
        let mut connection = self.pool.get().await?;
        let command = redis::cmd("INFO");
        let asking = command.query_async::<String>(&mut connection.redis);
        let info = timeout(LIMIT, asking).await.map_err(|_| InspectError::Silent)??;
        Ok(faults(&info))
    }
}

/// Makes connections as bb8 wants them; bb8-redis's own manager knows neither our
/// TLS settings nor when their files have changed.
struct Manager {
    url: RedisUrl,
    connector: Connector,
}

struct Connection {
    redis: MultiplexedConnection,
    /// The task that moves its bytes.
    driver: JoinHandle<()>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl ManageConnection for Manager {
    type Connection = Connection;
    type Error = RedisError;

    async fn connect(&self) -> Result<Connection, RedisError> {
        let stream = net::connect(&self.url, &self.connector, LIMIT, KEEPALIVE).await?;
        let (settings, options) = (redis_settings(&self.url), AsyncConnectionConfig::new());
        let (redis, driver) =
            MultiplexedConnection::new_with_config(&settings, stream, options).await?;
        Ok(Connection { redis, driver: tokio::spawn(driver) })
    }

    async fn is_valid(&self, connection: &mut Connection) -> Result<(), RedisError> {
        redis::cmd("PING").query_async::<()>(&mut connection.redis).await
    }

    fn has_broken(&self, connection: &mut Connection) -> bool {
        connection.driver.is_finished()
    }
}

/// Who we are and which database we want, for the client library.
pub(super) fn redis_settings(url: &RedisUrl) -> RedisConnectionInfo {
    let mut settings = RedisConnectionInfo::default().set_db(i64::from(url.db));
    if let Some(user) = &url.username {
        settings = settings.set_username(user);
    }
    if let Some(password) = &url.password {
        settings = settings.set_password(password);
    }
    settings
}

fn faults(info: &str) -> Vec<&'static str> {
    let fields: HashMap<&str, &str> =
        info.lines().filter_map(|line| line.trim_end().split_once(':')).collect();
    let field = |name: &str| fields.get(name).copied().unwrap_or_default();
    let mut faults = Vec::new();
    if !matches!(field("role"), "master" | "") {
        faults.push("it is a replica, whose votes are not its own");
    }
    if !matches!(field("maxmemory_policy"), "noeviction" | "") {
        faults.push("its maxmemory-policy is not noeviction, so it may drop locks");
    }
    if !matches!(field("cluster_enabled"), "0" | "") {
        faults.push("it is in cluster mode, where it refuses keys of other slots");
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sound_node_has_no_faults_and_others_are_named() {
        let sound =
            "# Server\r\nrole:master\r\nmaxmemory_policy:noeviction\r\ncluster_enabled:0\r\n";
        assert!(faults(sound).is_empty());
        assert!(faults("").is_empty(), "what is not said is not held against it");
        let bad = "role:slave\r\nmaxmemory_policy:allkeys-lru\r\ncluster_enabled:1\r\n";
        assert_eq!(faults(bad).len(), 3);
    }
}
