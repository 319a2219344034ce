//! Whether a Redis is a master, in its own words.

use std::time::Duration;

use bb8_redis::redis::{self, RedisError, Value};
use tokio::time::timeout;

use crate::{
    config::RedisUrl,
    net::{
        Connector,
        redis_client::{self, Connection},
    },
};

/// How long connecting and an answer may take.
const LIMIT: Duration = Duration::from_secs(1);

/// A Redis's answer to ROLE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Master,
    Replica,
    /// That of a Sentinel, or one that this version does not know.
    Other,
}

/// The proxy's own connection to one Redis, over which ROLE is asked.
pub(super) struct RoleAsker {
    url: RedisUrl,
    connector: Connector,
    connection: Option<Connection>,
}

impl RoleAsker {
    /// Makes an asker that has not connected yet.
    pub(super) fn new(url: RedisUrl, connector: &Connector) -> RoleAsker {
        RoleAsker { url, connector: connector.clone(), connection: None }
    }

    /// Returns the Redis that is asked.
    pub(super) fn url(&self) -> &RedisUrl {
        &self.url
    }

    /// Asks the Redis, over the previous connection if it is still open. Fails with the reason in words.
    pub(super) async fn ask(&mut self) -> Result<Role, String> {
        match timeout(LIMIT, self.role()).await {
            Ok(Ok(role)) => Ok(role),
            Ok(Err(error)) => {
                self.connection = None;
                Err(words(&error))
            }
            Err(_) => {
                self.connection = None;
                Err(format!("no answer within {LIMIT:?}"))
            }
        }
    }

    async fn role(&mut self) -> Result<Role, RedisError> {
        let kept = self.connection.take().filter(|connection| !connection.is_closed());
        let mut connection = match kept {
            Some(connection) => connection,
            None => redis_client::connect(&self.url, &self.connector).await?,
        };
        let answer: Value = redis::cmd("ROLE").query_async(&mut connection.redis).await?;
        self.connection = Some(connection);
        Ok(read(&answer))
    }
}

fn read(answer: &Value) -> Role {
    let Value::Array(fields) = answer else { return Role::Other };
    match fields.first() {
        Some(Value::BulkString(role)) if role == b"master" => Role::Master,
        Some(Value::BulkString(role)) if role == b"slave" => Role::Replica,
        _ => Role::Other,
    }
}

/// Puts an error into words, with what to do where the Redis wants credentials.
fn words(error: &RedisError) -> String {
    let code = error.code().unwrap_or_default();
    let text = error.to_string();
    // The system's own texts end with the error's number.
    let text = text.split(" (os error").next().unwrap_or_default();
    let refused = matches!(code, "NOAUTH" | "WRONGPASS" | "NOPERM") || text.contains("assword");
    match refused {
        true => {
            format!("{text} (ROLE is asked with the user and password of data; it needs +role)")
        }
        false => text.to_owned(),
    }
}
