//! A lock's keys on the data node: taken, kept and freed by scripts, over a connection of the
//! proxy's own. There is one key, or two: [`Adoption::places`](crate::adopt::Adoption::places).
//!
//! All questions go over one connection, so that one which frees a key comes after the one that took it. A key has the
//! value that the client gave, even an empty one, for which the lock nodes store another.

use std::{sync::Arc, time::Duration};

use bb8_redis::redis::{self, FromRedisValue, RedisError, aio::MultiplexedConnection};
use tokio::{
    runtime::Handle,
    sync::{Mutex, oneshot},
    time::timeout,
};

use crate::{
    adopt::place::KeyPlace,
    clock::millis,
    data::{DataNode, Tenure},
    key::Token,
    net::redis_client::Connection,
};

/// How long the data node may take for one answer.
pub(super) const LIMIT: Duration = Duration::from_secs(1);
/// How much longer than its lock a key lasts, as far as the answer took no time. [`LIMIT`] is for the time between the
/// question for a key and that for its lock, the rest for the time until the keys of session locks are looked at.
pub(super) const OUTLASTS: Duration = Duration::from_millis(1500);
/// How long the proxy waits for an answer that comes too late to count, to give back what it took. The question is
/// kept as long, so a client that asks again each [`LIMIT`] has some five of them.
const LATE: Duration = Duration::from_secs(5);

/// A script, behind the part that all scripts share.
macro_rules! script_text {
    ($file:literal) => {
        concat!(include_str!("is_there.lua"), include_str!($file))
    };
}
pub(super) const TAKE: &str = script_text!("take.lua");
pub(super) const KEEP: &str = script_text!("keep.lua");
pub(super) const FREE: &str = script_text!("free.lua");
pub(super) const LOOK: &str = script_text!("look_key.lua");
/// What `take.lua` answers if the keys were taken; PTTL answers no such number.
const TAKEN: i64 = -3;

/// The data node as the proxy asks it about keys of locks.
pub(super) struct DataKeys {
    data: Arc<DataNode>,
    runtime: Handle,
    /// The connection, and the Redis to which it leads.
    connection: Mutex<Option<(Arc<Tenure>, Connection)>>,
}

/// What to do about keys if none of them is there when they are to be kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum IfGone {
    /// Make them anew.
    Make,
    /// Leave them missing.
    Leave,
}

/// How long keys are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lasts {
    /// For this time from now.
    For(Duration),
    /// For this time from now, or for as long as they last already if that is longer: another proxy may have given
    /// the lock a longer TTL.
    AtLeast(Duration),
    /// Without a TTL: they are left to the data node.
    Ever,
}

/// What became of keys that were to be kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KeysKept {
    /// They are the token's, as at least one of them was before.
    Kept,
    /// None was there, and they were made anew.
    Made,
    /// One has another token; or none was there, and none was made.
    Refused,
    /// They were made anew and are freed again: the lock was released through another proxy meanwhile.
    Released,
}

/// Keys that were taken, and are freed when this is dropped.
pub(super) struct TakenKeys {
    keys: Arc<DataKeys>,
    places: Vec<KeyPlace>,
    token: Token,
    is_kept: bool,
}

impl TakenKeys {
    /// Leaves the keys to their client.
    pub(super) fn keep(mut self) {
        self.is_kept = true;
    }
}

impl Drop for TakenKeys {
    fn drop(&mut self) {
        if !self.is_kept {
            self.keys.free_soon(std::mem::take(&mut self.places), self.token.clone());
        }
    }
}

impl DataKeys {
    /// Makes the way to the keys, without asking anything yet.
    pub(super) fn new(data: Arc<DataNode>, runtime: Handle) -> Arc<DataKeys> {
        Arc::new(DataKeys { data, runtime, connection: Mutex::new(None) })
    }

    /// Takes the keys unless one is there. Fails with its remaining TTL in ms, below 0 without a TTL. Keys that are
    /// taken after the caller has stopped waiting are given back.
    pub(super) async fn take(
        self: &Arc<Self>,
        places: &[KeyPlace],
        token: &Token,
        ttl: Duration,
    ) -> Result<Result<TakenKeys, i64>, RedisError> {
        let (keys, places, token) = (self.clone(), places.to_vec(), token.clone());
        let (answer, answered) = oneshot::channel();
        self.runtime.spawn(async move {
            let mut script = script(TAKE, &places);
            script.arg(token.value()).arg(millis(ttl));
            let left: Result<i64, RedisError> =
                keys.ask(with_databases(script, &places), LATE).await;
            // If the answer is dropped, the keys are freed with it.
            let _ = answer.send(left.map(|left| match left {
                TAKEN => Ok(TakenKeys { keys, places, token, is_kept: false }),
                left => Err(left),
            }));
        });
        match timeout(LIMIT, answered).await {
            Ok(Ok(said)) => said,
            _ => Err(silent()),
        }
    }

    /// Gives the keys a new TTL if they have the token.
    pub(super) async fn keep(
        &self,
        places: &[KeyPlace],
        token: &Token,
        lasts: Lasts,
        if_gone: IfGone,
    ) -> Result<KeysKept, RedisError> {
        let mut script = script(KEEP, places);
        let ttl = match lasts {
            Lasts::For(ttl) | Lasts::AtLeast(ttl) => millis(ttl),
            Lasts::Ever => 0,
        };
        script.arg(token.value()).arg(ttl).arg(i64::from(if_gone == IfGone::Make));
        script.arg(i64::from(matches!(lasts, Lasts::AtLeast(_))));
        Ok(match self.ask::<i64>(with_databases(script, places), LIMIT).await? {
            1 => KeysKept::Kept,
            2 => KeysKept::Made,
            _ => KeysKept::Refused,
        })
    }

    /// Deletes the keys that have the token. Returns whether one had it.
    pub(super) async fn free(
        &self,
        places: &[KeyPlace],
        token: &Token,
    ) -> Result<bool, RedisError> {
        let mut script = script(FREE, places);
        script.arg(token.value());
        self.ask(with_databases(script, places), LIMIT).await
    }

    /// Deletes the keys that have the token, some time soon. Where that fails they run out.
    pub(super) fn free_soon(self: &Arc<Self>, places: Vec<KeyPlace>, token: Token) {
        let keys = self.clone();
        self.runtime.spawn(async move { keys.free(&places, &token).await });
    }

    /// Returns the token that a key has, and its remaining TTL in ms, below 0 without a TTL.
    pub(super) async fn look(
        &self,
        places: &[KeyPlace],
    ) -> Result<Option<(Token, i64)>, RedisError> {
        let script = script(LOOK, places);
        let holder: Option<(Vec<u8>, i64)> =
            self.ask(with_databases(script, places), LIMIT).await?;
        Ok(holder.map(|(value, left)| (Token::from(Token::stored(&value)), left)))
    }

    async fn ask<T: FromRedisValue>(
        &self,
        command: redis::Cmd,
        limit: Duration,
    ) -> Result<T, RedisError> {
        let asking = async {
            let mut redis = self.connected().await?;
            command.query_async(&mut redis).await
        };
        timeout(limit, asking).await.unwrap_or_else(|_| Err(silent()))
    }

    /// Returns the connection, a new one if the last has ended or leads to a Redis that is not the data node any
    /// more.
    async fn connected(&self) -> Result<MultiplexedConnection, RedisError> {
        let mut kept = self.connection.lock().await;
        if let Some((tenure, connection)) = kept.as_ref()
            && !tenure.has_ended()
            && !connection.is_closed()
        {
            return Ok(connection.redis.clone());
        }
        let data = self.data.clone();
        // On the runtime that stays, as the connection outlives the task that asks first.
        let connecting = self.runtime.spawn(async move { data.ask().await });
        let ended = || RedisError::from((redis::ErrorKind::Io, "the proxy is ending"));
        let (tenure, mut connection) = connecting.await.map_err(|_| ended())??;
        // Each question has a limit of its own.
        connection.redis.set_response_timeout(LATE);
        Ok(kept.insert((tenure, connection)).1.redis.clone())
    }
}

fn script(body: &str, places: &[KeyPlace]) -> redis::Cmd {
    let mut script = redis::cmd("EVAL");
    script.arg(body).arg(places.len());
    for place in places {
        script.arg(&place.key);
    }
    script
}

fn with_databases(mut script: redis::Cmd, places: &[KeyPlace]) -> redis::Cmd {
    for place in places {
        script.arg(place.database);
    }
    script
}

/// Returns the error for a data node that did not answer in time.
pub(super) fn silent() -> RedisError {
    RedisError::from((redis::ErrorKind::Io, "it did not answer in time"))
}
