use std::time::{Duration, Instant};

use redis::{
    AsyncConnectionConfig, Client, Cmd, ErrorKind, FromRedisValue, RedisError,
    aio::MultiplexedConnection, cmd,
};

/// Token, fence and validity; none: another has the lock.
type Grant = Option<(String, u64, u64)>;

async fn connect(client: &Client) -> Result<MultiplexedConnection, RedisError> {
    // Longer than WAIT.
    let patience = Some(Duration::from_secs(10));
    let config = AsyncConnectionConfig::new().set_response_timeout(patience);
    client.get_multiplexed_async_connection_with_config(&config).await
}

fn lost() -> RedisError {
    RedisError::from((ErrorKind::Client, "LOST: read again before you write"))
}

/// Until when nobody else has the lock.
async fn add_under_a_lease(
    connection: &mut MultiplexedConnection,
    key: &str,
    token: &str, // of this attempt
) -> Result<Instant, RedisError> {
    let sent = Instant::now();
    let lock = cmd("LOCK").arg(&[key, token, "PX", "10000"]).clone();
    let granted: Result<Grant, _> = lock.query_async(connection).await;
    let added = match granted {
        // The fence is for what is not in Redis.
        Ok(Some((_, _fence, validity))) => {
            let added = add(connection, key).await;
            added.map(|()| sent + Duration::from_millis(validity))
        }
        Ok(None) => Err(lost()),
        Err(error) => Err(error),
    };
    // Behind an error of LOCK as well: it may be granted yet.
    let unlock = cmd("UNLOCK").arg(&[key, token]).clone();
    let _: Result<u64, _> = unlock.query_async(connection).await;
    added
}

async fn add(connection: &mut MultiplexedConnection, key: &str) -> Result<(), RedisError> {
    let value: Option<u64> = cmd("GET").arg(key).query_async(connection).await?;
    cmd("SET").arg(key).arg(value.unwrap_or(0) + 1).query_async(connection).await
}

/// LOCK without a TTL, on a connection of its own: its end releases the lock.
struct SessionLock {
    client: Client,
    connection: MultiplexedConnection,
    key: String,
    token: String,
}

impl SessionLock {
    async fn take(client: &Client, key: &str, token: &str) -> Result<SessionLock, RedisError> {
        let mut connection = connect(client).await?;
        let lock = cmd("LOCK").arg(&[key, token, "WAIT", "5000"]).clone();
        let grant: Grant = lock.query_async(&mut connection).await?;
        let (client, key, token) = (client.clone(), key.to_owned(), token.to_owned());
        grant.map(|_| SessionLock { client, connection, key, token }).ok_or_else(lost)
    }

    async fn send<T: FromRedisValue>(&mut self, command: &Cmd) -> Result<T, RedisError> {
        let mut broken = false;
        loop {
            let sent = match broken {
                true => self.take_over().await,
                false => Ok(()),
            };
            let reply = match sent {
                Ok(()) => command.query_async(&mut self.connection).await,
                Err(error) => Err(error),
            };
            match reply {
                Err(error) if error.is_unrecoverable_error() => broken = true,
                reply => return reply,
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// A new connection becomes the keeper of the lock, if it is still held.
    async fn take_over(&mut self) -> Result<(), RedisError> {
        self.connection = connect(&self.client).await?;
        let renew = cmd("RENEW").arg(&[&self.key, &self.token]).clone();
        let validity: u64 = renew.query_async(&mut self.connection).await?;
        if validity > 0 { Ok(()) } else { Err(lost()) }
    }
}

async fn add_under_a_session_lock(
    client: &Client,
    key: &str,
    token: &str,
) -> Result<(), RedisError> {
    let mut lock = SessionLock::take(client, key, token).await?;
    let value: Option<u64> = lock.send(cmd("GET").arg(key)).await?;
    lock.send(cmd("SET").arg(key).arg(value.unwrap_or(0) + 1)).await
}
