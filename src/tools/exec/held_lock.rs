//! The lock of `lockgate exec`: taken, confirmed every third of its TTL, and given back.

use std::time::Duration;

use bb8_redis::redis::{self, RedisError, Value};
use tokio::{
    sync::{oneshot, watch},
    time::{Instant, sleep, sleep_until},
};

use crate::{
    config::{ClientTls, RedisUrl},
    net::{
        Connector,
        redis_client::{self, Connection},
    },
};

/// Pause before a question that was not answered is asked again.
const AGAIN: Duration = Duration::from_millis(250);
/// Errors that end by themselves.
const PASSING: [&str; 7] =
    ["NOQUORUM", "TRYAGAIN", "LOADING", "BUSY", "MASTERDOWN", "CLUSTERDOWN", "NOREPLICAS"];

/// How a lock is taken.
#[derive(Debug, Clone, Copy)]
pub(super) struct Terms {
    /// How long to wait while another client holds it.
    pub(super) wait: Option<Duration>,
    /// Set for a lease: how long it lasts at least.
    pub(super) at_least: Option<Duration>,
}

/// Why a lock was not taken.
pub(super) enum NotLocked {
    /// Another client holds it.
    Held,
    /// Anything else, in words.
    Failed(String),
}

/// How a lock is, as far as is known.
#[derive(Debug, Clone)]
pub(super) struct LockStanding {
    /// The end of the last confirmed validity.
    pub(super) until: Instant,
    /// The server has said that the lock is not held any more.
    pub(super) lost: bool,
}

/// What became of a lock that was to be given back.
pub(super) enum GivenBack {
    /// It is free, will be soon, or is left to run out as a lease.
    Done,
    /// It was not held any more.
    WasLost,
    /// No answer tells; the reason.
    Unknown(String),
}

/// A proxy, and the way to it.
struct Server {
    url: RedisUrl,
    way: Connector,
}

/// A lock that is held. Dropped, it is left to its connection's end, or to its TTL.
pub(super) struct HeldLock {
    server: Server,
    /// `None`: it has ended.
    connection: Option<Connection>,
    /// The connection is not the one by which the lock was taken: the command does not have its socket. So the lock
    /// is renewed as a lease from then on, which does not end with exec.
    is_lease: bool,
    key: Vec<u8>,
    token: String,
    fence: u64,
    terms: Terms,
    since: Instant,
    /// The validity that was granted, for which each renewal asks too.
    validity: Duration,
    standing: LockStanding,
}

impl Server {
    /// Connects. The commands that are started from now on have the socket too.
    async fn connect(&self) -> Result<Connection, RedisError> {
        redis_client::connect_inherited(&self.url, &self.way).await
    }
}

impl HeldLock {
    /// Takes the lock `key` at the server. Errors that end by themselves are waited for too.
    pub(super) async fn take(
        url: &RedisUrl,
        tls: &ClientTls,
        key: &[u8],
        terms: Terms,
    ) -> Result<HeldLock, NotLocked> {
        let way = Connector::start("exec", tls, std::slice::from_ref(url));
        let server = Server { url: url.clone(), way };
        // The same token each time: a LOCK whose answer was lost is not in the way of the next.
        let token = format!("{:032x}", rand::random::<u128>());
        let until = Instant::now() + terms.wait.unwrap_or_default();
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match server.try_once(key, &token, terms, left).await {
                Ok(Some((connection, since, (fence, validity)))) => {
                    let is_lease = terms.at_least.is_some();
                    let standing = LockStanding { until: since + validity, lost: false };
                    let key = key.to_vec();
                    let mut lock = HeldLock {
                        server,
                        connection: Some(connection),
                        is_lease,
                        key,
                        token,
                        fence,
                        terms,
                        since,
                        validity,
                        standing,
                    };
                    // The validity of a LOCK that has waited began later than the LOCK, nobody here knows when.
                    if since.elapsed() > AGAIN {
                        lock.confirm().await;
                    }
                    return Ok(lock);
                }
                // The proxy's locks.max_wait may be shorter.
                Ok(None) if left <= AGAIN => return Err(NotLocked::Held),
                Ok(None) => {}
                Err(error) if left > AGAIN && passes(&error) => sleep(AGAIN).await,
                Err(error) => return Err(NotLocked::Failed(server.words(&error))),
            }
        }
    }

    /// Returns how long the grant was valid, from before it was asked for.
    pub(super) fn validity(&self) -> Duration {
        self.validity
    }

    pub(super) fn standing(&self) -> LockStanding {
        self.standing.clone()
    }

    /// Returns what the command finds in its environment.
    pub(super) fn environment(&self) -> [(&'static str, Vec<u8>); 3] {
        [
            ("LOCKGATE_LOCK", self.key.clone()),
            ("LOCKGATE_TOKEN", self.token.clone().into_bytes()),
            ("LOCKGATE_FENCE", self.fence.to_string().into_bytes()),
        ]
    }

    /// Has the lock confirmed every third of its validity, and at once when its connection ends, until `stopped`.
    /// Tells each answer.
    pub(super) async fn keep(
        mut self,
        told: watch::Sender<LockStanding>,
        mut stopped: oneshot::Receiver<()>,
    ) -> HeldLock {
        let mut next = self.since + self.validity / 3;
        while !self.standing.lost {
            tokio::select! {
                _ = &mut stopped => return self,
                () = sleep_until(next) => {}
                () = closed(&mut self.connection) => self.connection = None,
            }
            let asked = Instant::now();
            tokio::select! {
                _ = &mut stopped => return self,
                is_confirmed = self.confirm() => {
                    let pause = if is_confirmed { self.validity / 3 } else { AGAIN };
                    next = asked + pause;
                }
            }
            told.send_replace(self.standing.clone());
        }
        self
    }

    /// Asks whether the lock is held, and prolongs it. Returns whether an answer told.
    async fn confirm(&mut self) -> bool {
        let asked = Instant::now();
        match self.renew(self.terms.at_least.unwrap_or(self.validity)).await {
            Ok(0) => self.standing.lost = true,
            Ok(left) => {
                let left = Duration::from_millis(u64::try_from(left).unwrap_or(0));
                self.standing.until = asked + left;
            }
            Err(error) if error.code() == Some("LOCKLOST") => self.standing.lost = true,
            Err(error) => {
                if error.is_io_error() {
                    self.connection = None;
                }
                return false;
            }
        }
        true
    }

    /// Renews the lock, for `ttl` where it is a lease. Returns the validity in ms; 0: it is not held.
    async fn renew(&mut self, ttl: Duration) -> Result<i64, RedisError> {
        let connection = match &mut self.connection {
            Some(connection) => connection,
            None => {
                // The command has the socket of the first connection alone.
                self.is_lease = true;
                self.connection.insert(self.server.connect().await?)
            }
        };
        let mut renew = redis::cmd("RENEW");
        renew.arg(&self.key).arg(&self.token);
        if self.is_lease {
            renew.arg("PX").arg(in_millis(ttl));
        }
        renew.query_async(&mut connection.redis).await
    }

    /// Gives the lock back. A lease that is to last longer is left to run out.
    pub(super) async fn give_back(mut self) -> GivenBack {
        let left = self.terms.at_least.map_or(Duration::ZERO, |at_least| {
            (self.since + at_least).saturating_duration_since(Instant::now())
        });
        if self.standing.lost {
            return GivenBack::WasLost;
        }
        // To be waited for is a lease of its rest alone.
        let said = match left.is_zero() {
            true => self.unlock().await,
            false if self.standing.until <= Instant::now() + left => return GivenBack::Done,
            false => self.renew(left).await,
        };
        match said {
            Ok(0) => GivenBack::WasLost,
            Ok(_) => GivenBack::Done,
            Err(error) if error.code() == Some("LOCKLOST") => GivenBack::WasLost,
            // The proxy gives it back as soon as enough lock nodes answer.
            Err(error) if error.code() == Some("NOQUORUM") => GivenBack::Done,
            Err(error) => GivenBack::Unknown(self.server.words(&error)),
        }
    }

    async fn unlock(&mut self) -> Result<i64, RedisError> {
        let connection = match &mut self.connection {
            Some(connection) => connection,
            None => self.connection.insert(self.server.connect().await?),
        };
        let mut unlock = redis::cmd("UNLOCK");
        unlock.arg(&self.key).arg(&self.token).query_async(&mut connection.redis).await
    }
}

impl Server {
    /// Sends one LOCK, on a connection of its own. Returns the connection, when the LOCK was sent, its fence and its
    /// validity; `None` if another client holds the lock.
    async fn try_once(
        &self,
        key: &[u8],
        token: &str,
        terms: Terms,
        left: Duration,
    ) -> Result<Option<(Connection, Instant, (u64, Duration))>, RedisError> {
        let mut connection = self.connect().await?;
        let mut lock = redis::cmd("LOCK");
        lock.arg(key).arg(token);
        if let Some(at_least) = terms.at_least {
            lock.arg("PX").arg(in_millis(at_least));
        }
        if !left.is_zero() {
            lock.arg("WAIT").arg(in_millis(left));
        }
        let since = Instant::now();
        let granted = match lock.query_async::<Value>(&mut connection.redis).await? {
            Value::Nil => return Ok(None),
            granted => granted,
        };
        let answer: (String, u64, u64) = redis::from_redis_value(granted)?;
        let (_, fence, validity) = answer;
        Ok(Some((connection, since, (fence, Duration::from_millis(validity)))))
    }

    /// An error in the server's own words.
    fn words(&self, error: &RedisError) -> String {
        let Server { url, .. } = self;
        match (error.code(), error.detail()) {
            (_, Some(detail)) if detail.starts_with("unknown command 'LOCK'") => {
                format!("{url} is no Lockgate: {detail}")
            }
            (Some(code), Some(detail)) => format!("{url}: {code} {detail}"),
            _ => format!("{url}: {error}"),
        }
    }
}

/// Whether the cause may pass: the server is away, or says so.
fn passes(error: &RedisError) -> bool {
    error.is_io_error() || error.code().is_some_and(|code| PASSING.contains(&code))
}

/// Waits until the connection has ended.
async fn closed(connection: &mut Option<Connection>) {
    match connection {
        Some(connection) => connection.closed().await,
        None => std::future::pending().await,
    }
}

fn in_millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
