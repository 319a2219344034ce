//! A lock's key on the data node: taken, kept and freed by scripts, over a connection of the
//! proxy's own.
//!
//! All questions go over one connection, so that a key is freed behind the question that took it,
//! however late the data node answers that.

use std::{sync::Arc, time::Duration};

use bb8_redis::redis::{self, FromRedisValue, RedisError, aio::MultiplexedConnection};
use tokio::{runtime::Handle, sync::Mutex, time::timeout};

use crate::{
    adopt::place::KeyPlace,
    clock::millis,
    config::RedisUrl,
    key::Token,
    net::{
        Connector,
        redis_client::{self, Connection},
    },
};

/// How long the data node may take for one answer. A key lasts for as much longer than its lock.
pub(super) const LIMIT: Duration = Duration::from_secs(1);

const TAKE: &str = include_str!("take.lua");
const KEEP: &str = include_str!("keep.lua");
const FREE: &str = include_str!("free.lua");
const LOOK: &str = include_str!("look.lua");
/// What `take.lua` answers if the key was taken; PTTL answers no such number.
const TAKEN: i64 = -3;

/// The data node as the proxy asks it about keys of locks.
pub(super) struct DataKeys {
    url: RedisUrl,
    connector: Connector,
    runtime: Handle,
    connection: Mutex<Option<Connection>>,
}

/// What becomes of a key that is not there when it is to be kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum IfGone {
    /// It is made anew.
    Make,
    /// It is left.
    Leave,
}

impl DataKeys {
    /// Asks nothing yet.
    pub(super) fn new(url: RedisUrl, connector: Connector, runtime: Handle) -> Arc<DataKeys> {
        Arc::new(DataKeys { url, connector, runtime, connection: Mutex::new(None) })
    }

    /// Takes the key unless it is there. Fails with its remaining TTL in ms, below 0 without a TTL.
    pub(super) async fn take(
        &self,
        place: &KeyPlace,
        token: &Token,
        ttl: Duration,
    ) -> Result<Result<(), i64>, RedisError> {
        let mut script = redis::cmd("EVAL");
        script.arg(TAKE).arg(1).arg(&place.key).arg(&token[..]);
        script.arg(millis(ttl)).arg(place.database);
        let left: i64 = self.ask(&script).await?;
        Ok(if left == TAKEN { Ok(()) } else { Err(left) })
    }

    /// Gives the key a new TTL if it has the token. Returns whether it has it now.
    pub(super) async fn keep(
        &self,
        place: &KeyPlace,
        token: &Token,
        ttl: Duration,
        if_gone: IfGone,
    ) -> Result<bool, RedisError> {
        let mut script = redis::cmd("EVAL");
        script.arg(KEEP).arg(1).arg(&place.key).arg(&token[..]);
        script.arg(millis(ttl)).arg(place.database).arg(i64::from(if_gone == IfGone::Make));
        self.ask(&script).await
    }

    /// Deletes the key if it has the token. Returns whether it had.
    pub(super) async fn free(&self, place: &KeyPlace, token: &Token) -> Result<bool, RedisError> {
        let mut script = redis::cmd("EVAL");
        script.arg(FREE).arg(1).arg(&place.key).arg(&token[..]).arg(place.database);
        self.ask(&script).await
    }

    /// Deletes the key if it has the token, some time soon. Where that fails the key runs out.
    pub(super) fn free_soon(self: &Arc<Self>, place: KeyPlace, token: Token) {
        let keys = self.clone();
        self.runtime.spawn(async move { keys.free(&place, &token).await });
    }

    /// The token that the key has, and its remaining TTL in ms, below 0 without a TTL.
    pub(super) async fn look(&self, place: &KeyPlace) -> Result<Option<(Token, i64)>, RedisError> {
        let mut script = redis::cmd("EVAL");
        script.arg(LOOK).arg(1).arg(&place.key).arg(place.database);
        let holder: Option<(Vec<u8>, i64)> = self.ask(&script).await?;
        Ok(holder.map(|(token, left)| (Token::from(&token), left)))
    }

    async fn ask<T: FromRedisValue>(&self, command: &redis::Cmd) -> Result<T, RedisError> {
        let asking = async {
            let mut redis = self.connected().await?;
            command.query_async(&mut redis).await
        };
        let silent = || RedisError::from((redis::ErrorKind::Io, "it did not answer in time"));
        timeout(LIMIT, asking).await.unwrap_or_else(|_| Err(silent()))
    }

    /// The connection, made anew if it has ended.
    async fn connected(&self) -> Result<MultiplexedConnection, RedisError> {
        let mut kept = self.connection.lock().await;
        if let Some(connection) = kept.as_ref().filter(|connection| !connection.is_closed()) {
            return Ok(connection.redis.clone());
        }
        let (url, connector) = (self.url.clone(), self.connector.clone());
        // On the runtime that stays, as the connection outlives whoever asks first.
        let connecting =
            self.runtime.spawn(async move { redis_client::connect(&url, &connector).await });
        let ended = || RedisError::from((redis::ErrorKind::Io, "the proxy is ending"));
        let connection = connecting.await.map_err(|_| ended())??;
        Ok(kept.insert(connection).redis.clone())
    }
}
