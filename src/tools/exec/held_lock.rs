//! The lock of `lockgate exec`: taken, confirmed every third of its TTL, and given back.

use std::{os::fd::OwnedFd, time::Duration};

use bb8_redis::redis::{self, ErrorKind, RedisError, Value};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    sync::{oneshot, watch},
    time::{Instant, sleep, sleep_until, timeout},
};

use crate::{
    config::{ClientTls, RedisUrl},
    log_text::plain_line,
    net::{
        self, Connector,
        redis_client::{self, Connection},
    },
};

/// Pause before a question that was not answered is asked again.
const AGAIN: Duration = Duration::from_millis(250);
/// How long the answer to a LOCK may take, beyond its WAIT.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);
/// Most bytes that are read of what a server says as it closes the connection.
const LONGEST_WORDS: u64 = 512;
/// Errors that end by themselves.
const PASSING: [&str; 7] =
    ["NOQUORUM", "TRYAGAIN", "LOADING", "BUSY", "MASTERDOWN", "CLUSTERDOWN", "NOREPLICAS"];
/// Words around the longest WAIT in the proxy's error for a longer one.
const LONGEST_WAIT: (&str, &str) = ("the longest is ", " ms (locks.max_wait)");

/// How a lock is taken.
#[derive(Debug, Clone, Copy)]
pub(super) struct Terms {
    /// How long to wait while another client holds it.
    pub(super) wait: Option<Duration>,
    /// Set for a lease: how long it lasts at least.
    pub(super) at_least: Option<Duration>,
    /// Set for the first free of so many permits.
    pub(super) permits: Option<u16>,
    /// Whether other readers may have the lock at the same time.
    pub(super) shared: bool,
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
    /// Why the last question was not answered.
    pub(super) trouble: Option<String>,
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

/// A LOCK that was granted.
struct FirstGrant {
    connection: Connection,
    socket: OwnedFd,
    /// When the LOCK was sent.
    since: Instant,
    fence: u64,
    validity: Duration,
    /// The permit's name.
    permit: Option<Vec<u8>>,
}

/// A lock that is held. Dropped, it is left to its connection's end, or to its TTL.
pub(super) struct HeldLock {
    server: Server,
    /// `None`: it has ended.
    connection: Option<Connection>,
    /// The copy of the first connection's socket that the command gets, until it has it.
    socket: Option<OwnedFd>,
    /// Whether the lock is renewed as a lease, as it was taken as one, or as the first connection has ended: of no
    /// other has the command the socket, and a session lock would end with exec.
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

impl HeldLock {
    /// Takes the lock `key` at the server. Errors that end by themselves are waited for too.
    pub(super) async fn take(
        url: &RedisUrl,
        tls: &ClientTls,
        key: &[u8],
        terms: Terms,
    ) -> Result<HeldLock, NotLocked> {
        let way = Connector::start("exec", tls, std::slice::from_ref(url));
        let mut server = Server { url: url.clone(), way };
        // The same token each time: a LOCK whose answer was lost is not in the way of the next.
        let mut token = format!("{:032x}", rand::random::<u128>());
        let until = Instant::now() + terms.wait.unwrap_or_default();
        let mut longest = Duration::MAX;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let wait = left.min(longest);
            let locking = server.lock(key, &token, terms, wait);
            let said = match timeout(wait + ANSWER_LIMIT, locking).await {
                Ok(said) => said,
                Err(_) => return Err(NotLocked::Failed(format!("{url}: no answer to LOCK"))),
            };
            match said {
                Ok(Some(grant)) => {
                    let mut lock = HeldLock::of(server, key, token, terms, grant);
                    // The validity of a LOCK that has waited began later than the LOCK; only the proxy knows when.
                    if lock.since.elapsed() > AGAIN {
                        let _ = timeout(ANSWER_LIMIT, lock.confirm()).await;
                    }
                    match lock.standing.lost {
                        true => (server, token) = (lock.server, lock.token),
                        false => return Ok(lock),
                    }
                }
                Ok(None) if left <= wait => return Err(NotLocked::Held),
                Ok(None) => {}
                Err(error) => match longest_wait(&error) {
                    Some(most) if most < wait => longest = most,
                    _ if left > AGAIN && passes(&error) => sleep(AGAIN).await,
                    _ => return Err(NotLocked::Failed(server.last_words(&error).await)),
                },
            }
        }
    }

    fn of(server: Server, key: &[u8], token: String, terms: Terms, grant: FirstGrant) -> HeldLock {
        let FirstGrant { connection, socket, since, fence, validity, permit } = grant;
        let standing = LockStanding { until: since + validity, lost: false, trouble: None };
        HeldLock {
            server,
            connection: Some(connection),
            socket: Some(socket),
            is_lease: terms.at_least.is_some(),
            key: permit.unwrap_or_else(|| key.to_vec()),
            token,
            fence,
            terms,
            since,
            validity,
            standing,
        }
    }

    /// Returns how long the grant was valid, from before it was asked for.
    pub(super) fn validity(&self) -> Duration {
        self.validity
    }

    /// Returns the lock's name: the permit's, if it is one.
    pub(super) fn name(&self) -> &[u8] {
        &self.key
    }

    pub(super) fn standing(&self) -> LockStanding {
        self.standing.clone()
    }

    /// Notes that the command has started, and has the socket.
    pub(super) fn has_started(&mut self) {
        self.socket = None;
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
                () = self.confirm() => {}
            }
            let pause = if self.standing.trouble.is_none() { self.validity / 3 } else { AGAIN };
            next = asked + pause;
            told.send_replace(self.standing.clone());
        }
        self
    }

    /// Asks whether the lock is held, and prolongs it.
    async fn confirm(&mut self) {
        let asked = Instant::now();
        let said = self.renew(self.terms.at_least.unwrap_or(self.validity)).await;
        self.standing.trouble = None;
        match said {
            Ok(0) => self.standing.lost = true,
            Ok(left) => {
                let left = Duration::from_millis(u64::try_from(left).unwrap_or(0));
                self.standing.until = asked + left;
            }
            Err(error) if error.code() == Some("LOCKLOST") => self.standing.lost = true,
            Err(error) => {
                self.standing.trouble = Some(self.server.words(&error));
                if error.is_io_error() {
                    self.connection = None;
                }
            }
        }
    }

    /// Renews the lock, for `ttl` where it is a lease. Returns the validity in ms; 0: it is not held.
    async fn renew(&mut self, ttl: Duration) -> Result<i64, RedisError> {
        self.is_lease |= self.connection.is_none();
        let mut renew = redis::cmd("RENEW");
        renew.arg(&self.key).arg(&self.token);
        if self.is_lease {
            renew.arg("PX").arg(in_millis(ttl));
        }
        self.ask(&renew).await
    }

    /// Gives the lock back at once, as the command has not begun.
    pub(super) async fn give_back_unused(mut self) -> GivenBack {
        self.terms.at_least = None;
        self.give_back().await
    }

    /// Gives the lock back. A lease that is to last longer is left to run out.
    pub(super) async fn give_back(mut self) -> GivenBack {
        let least = self.terms.at_least.unwrap_or_default();
        let left = (self.since + least).saturating_duration_since(Instant::now());
        let said = match left.is_zero() {
            true => {
                let mut unlock = redis::cmd("UNLOCK");
                unlock.arg(&self.key).arg(&self.token);
                self.ask(&unlock).await
            }
            false if self.standing.until <= Instant::now() + left => return GivenBack::Done,
            // It was prolonged, and lasts too long.
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

    /// Sends a command, on a new connection if the last has ended.
    async fn ask(&mut self, command: &redis::Cmd) -> Result<i64, RedisError> {
        let connection = match &mut self.connection {
            Some(connection) => connection,
            None => {
                let Server { url, way } = &self.server;
                self.connection.insert(redis_client::connect(url, way).await?)
            }
        };
        command.query_async(&mut connection.redis).await
    }
}

impl Server {
    /// Sends one LOCK, on a connection of its own. Returns `None` if another client holds the lock.
    async fn lock(
        &self,
        key: &[u8],
        token: &str,
        terms: Terms,
        wait: Duration,
    ) -> Result<Option<FirstGrant>, RedisError> {
        let (mut connection, socket) =
            redis_client::connect_inherited(&self.url, &self.way).await?;
        let mut lock = redis::cmd("LOCK");
        lock.arg(key).arg(token);
        if let Some(permits) = terms.permits {
            lock.arg("PERMITS").arg(permits);
        }
        if terms.shared {
            lock.arg("SHARED");
        }
        if let Some(at_least) = terms.at_least {
            lock.arg("PX").arg(in_millis(at_least));
        }
        if !wait.is_zero() {
            lock.arg("WAIT").arg(in_millis(wait));
        }
        let since = Instant::now();
        let granted = match lock.query_async::<Value>(&mut connection.redis).await? {
            Value::Nil => return Ok(None),
            granted => granted,
        };
        let (fence, validity, permit) = match terms.permits {
            Some(_) => {
                let told: (String, u64, u64, Vec<u8>) = redis::from_redis_value(granted)?;
                (told.1, told.2, Some(told.3))
            }
            None => {
                let told: (String, u64, u64) = redis::from_redis_value(granted)?;
                (told.1, told.2, None)
            }
        };
        let validity = Duration::from_millis(validity);
        Ok(Some(FirstGrant { connection, socket, since, fence, validity, permit }))
    }

    /// An error in the server's own words, also those that a server has for a client that it closes at once: the client
    /// library does not tell them.
    async fn last_words(&self, error: &RedisError) -> String {
        let mut line = String::new();
        if error.is_connection_dropped() && !error.is_connection_refusal() {
            let asking = async {
                let mut stream =
                    net::connect(&self.url, &self.way, ANSWER_LIMIT, ANSWER_LIMIT).await?;
                // It may be closed already, with the words on their way.
                let _ = stream.write_all(b"PING\r\n").await;
                BufReader::new(stream.take(LONGEST_WORDS)).read_line(&mut line).await
            };
            let _ = timeout(ANSWER_LIMIT, asking).await;
        }
        match line.strip_prefix('-') {
            Some(words) => plain_line(&format!("{}: {}", self.url, words.trim_end())).into_owned(),
            None => self.words(error),
        }
    }

    /// An error in the server's own words, in one line.
    fn words(&self, error: &RedisError) -> String {
        let url = &self.url;
        let words = match (error.code(), error.detail()) {
            (_, Some(detail)) if detail.starts_with("unknown command 'LOCK'") => {
                format!("{url} is no Lockgate: {detail}")
            }
            (Some(code), Some(detail)) => format!("{url}: {code} {detail}"),
            _ if error.kind() == ErrorKind::Parse => {
                format!("{url} does not speak Redis's protocol: is it the proxy's own address?")
            }
            _ if error.kind() == ErrorKind::AuthenticationFailed => {
                format!(
                    "{url}: the user or password is not accepted, or the data node asks for none"
                )
            }
            _ if error.is_connection_dropped() && !error.is_connection_refusal() => {
                format!(
                    "{url}: {error} (closed: the proxy may lack its data node, or room for clients)"
                )
            }
            _ => format!("{url}: {error}"),
        };
        plain_line(&words).into_owned()
    }
}

/// Whether the cause may pass: the server is away, or says so.
fn passes(error: &RedisError) -> bool {
    error.is_io_error() || error.code().is_some_and(|code| PASSING.contains(&code))
}

/// Returns the longest WAIT, if the proxy has refused a longer one.
fn longest_wait(error: &RedisError) -> Option<Duration> {
    let (before, behind) = LONGEST_WAIT;
    let (_, rest) = error.detail()?.split_once(before)?;
    rest.strip_suffix(behind)?.parse().ok().map(Duration::from_millis)
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
