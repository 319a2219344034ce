//! The client library's connections to a Redis, over [`Stream`](super::Stream): for the proxy's own
//! questions, not for clients' commands.

use std::{io, os::fd::OwnedFd, sync::LazyLock, time::Duration};

use bb8_redis::{
    bb8::ManageConnection,
    redis::{
        self, AsyncConnectionConfig, RedisConnectionInfo, RedisError, aio::MultiplexedConnection,
    },
};
use tokio::{runtime::Runtime, task::JoinHandle, time::timeout};

use super::{Connector, Stream, bounded::BoundedStream};
use crate::config::RedisUrl;

/// How long connecting may take, and then how long a server may take to let the proxy in.
const LIMIT: Duration = Duration::from_secs(1);

/// How long a connection may be idle before it is probed.
const KEEPALIVE: Duration = Duration::from_secs(3);

/// The longest reply to an ordinary question, in bytes.
pub(crate) const ORDINARY: usize = 64 * 1024;
/// The longest reply to a question about all that a server has, such as its commands or the nodes of its
/// cluster, in bytes.
pub(crate) const LARGE: usize = 4 * 1024 * 1024;

/// The thread that reads servers' answers, so that a server that answers without end takes no time from the
/// threads that serve clients or ask lock nodes. `None` if no thread could be started.
static READER: LazyLock<Option<Runtime>> = LazyLock::new(|| {
    let mut reader = tokio::runtime::Builder::new_multi_thread();
    reader.worker_threads(1).thread_name("servers").enable_all().build().ok()
});

/// Makes connections for bb8. bb8-redis's own manager knows neither our TLS settings nor when
/// their files have changed.
pub(crate) struct Manager {
    pub(crate) url: RedisUrl,
    pub(crate) connector: Connector,
}

/// A connection of the client library.
pub(crate) struct Connection {
    pub(crate) redis: MultiplexedConnection,
    /// The task that moves the connection's bytes.
    driver: JoinHandle<()>,
}

/// Connects the client library to a Redis, for questions with an [`ORDINARY`] reply.
///
/// # Errors
/// The network's and the node's.
pub(crate) async fn connect(
    url: &RedisUrl,
    connector: &Connector,
) -> Result<Connection, RedisError> {
    connect_for(url, connector, ORDINARY).await
}

/// Connects the client library to a Redis, for questions with a reply of at most `longest` bytes. The
/// connection ends with a longer one. Each asker limits how long it waits for a reply: the library's own limit, 500 ms
/// by default, would undercut that.
///
/// # Errors
/// The network's and the node's.
pub(crate) async fn connect_for(
    url: &RedisUrl,
    connector: &Connector,
    longest: usize,
) -> Result<Connection, RedisError> {
    over(super::connect(url, connector, LIMIT, KEEPALIVE).await?, url, longest).await
}

/// Connects as [`connect`] does. Returns [`Stream::inherited`]'s copy of the socket too.
///
/// # Errors
/// Those of [`connect`].
pub(crate) async fn connect_inherited(
    url: &RedisUrl,
    connector: &Connector,
) -> Result<(Connection, OwnedFd), RedisError> {
    let stream = super::connect(url, connector, LIMIT, KEEPALIVE).await?;
    let copy = stream.inherited()?;
    Ok((over(stream, url, ORDINARY).await?, copy))
}

/// Has the client library use a stream.
async fn over(stream: Stream, url: &RedisUrl, longest: usize) -> Result<Connection, RedisError> {
    let stream = BoundedStream::new(stream, longest);
    let settings = redis_settings(url)?;
    let options = AsyncConnectionConfig::new().set_response_timeout(None);
    let connecting = MultiplexedConnection::new_with_config(&settings, stream, options);
    let connected = timeout(LIMIT, connecting).await;
    let (redis, driver) = connected.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    let driver = match &*READER {
        // Tests have their own clock, on one thread.
        Some(reader) if !cfg!(test) => reader.spawn(driver),
        _ => tokio::spawn(driver),
    };
    Ok(Connection { redis, driver })
}

impl Connection {
    /// Whether the connection has ended.
    pub(crate) fn is_closed(&self) -> bool {
        self.driver.is_finished()
    }

    /// Returns once the connection has ended.
    pub(crate) async fn closed(&mut self) {
        let _ = (&mut self.driver).await;
    }
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
        connect(&self.url, &self.connector).await
    }

    async fn is_valid(&self, connection: &mut Connection) -> Result<(), RedisError> {
        let answer = redis::cmd("PING").query_async::<()>(&mut connection.redis).await;
        // A Redis that cannot write its disk refuses even PING. It is asked why over this connection.
        answer.or_else(|error| (error.code() == Some("MISCONF")).then_some(()).ok_or(error))
    }

    fn has_broken(&self, connection: &mut Connection) -> bool {
        connection.is_closed()
    }
}

/// The user, password and database of `url`, for the client library.
fn redis_settings(url: &RedisUrl) -> io::Result<RedisConnectionInfo> {
    let mut settings = RedisConnectionInfo::default().set_db(i64::from(url.db));
    if let Some(user) = &url.username {
        settings = settings.set_username(user);
    }
    if let Some(password) = &url.password {
        settings = settings.set_password(password.get()?);
    }
    Ok(settings)
}
