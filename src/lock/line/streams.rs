//! Learns of releases through other proxies by streams, so that a release wakes one proxy and not all.
//!
//! Each lock with waiters has a stream with one consumer group, and each proxy whose clients wait is a consumer of
//! it. The consumer that has waited the longest gets the next entry. A proxy that has no waiters any more, or that
//! reads an entry of its own, passes it on. A stream keeps one entry, until it is read.
//!
//! One command cannot read keys of several slots, so each lock with waiters has a connection, up to [`MOST`] on one
//! node; for further locks the node counts as one that publishes nothing. A proxy that dies with an entry costs the
//! others the time until they look for themselves.

use std::{
    collections::HashMap,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bb8_redis::redis::{self, RedisError, Value};
use thiserror::Error;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};
use tracing::debug;

use super::{queue::Wishes, subscribe::ListeningSeat};
use crate::{
    clock::millis,
    config::RedisUrl,
    lock::{locks::Locks, scripts},
    net::redis_client::{self, Connection},
};

/// The most connections to one node.
const MOST: usize = 64;
/// How long one command waits for an entry.
const BLOCK: Duration = Duration::from_secs(2);
/// How long a command may take beyond that.
const LIMIT: Duration = Duration::from_secs(1);
/// How long a stream lasts unless it is prolonged. A consumer that is silent for longer counts as dead.
const LASTS: Duration = Duration::from_secs(10);
/// The time between two checks where the locks' slots are, and whether clients wait.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// The pause after an error before another lock is read.
const PAUSE: Duration = Duration::from_secs(1);
/// The consumer group of every stream.
const GROUP: &str = "lockgate";

/// Why a lock's stream is no longer read.
#[derive(Debug, Error)]
enum StreamEnded {
    #[error("{0}")]
    Redis(#[from] RedisError),
    /// The engine was dropped.
    #[error("not needed any more")]
    Unused,
}

/// What a reader and its seat's task share.
#[derive(Default)]
struct ReaderState {
    /// Whether the lock's releases are still wanted.
    is_wanted: AtomicBool,
    /// Whether the proxy is one of the stream's consumers.
    attends: AtomicBool,
}

/// The end of a reader: the lock's key, and the connection if it can be used again.
type ReaderEnd = (Vec<u8>, Result<Connection, StreamEnded>);

/// All readers of one node.
struct StreamReaders<'a> {
    locks: &'a Weak<Locks>,
    listener: &'a ListeningSeat,
    url: RedisUrl,
    tasks: JoinSet<ReaderEnd>,
    states: HashMap<Vec<u8>, Arc<ReaderState>>,
    idle: Vec<Connection>,
    /// No reader is started before this time.
    start_at: Instant,
}

/// Reads the streams of a node for as long as a client waits for a lock on which it votes.
pub(in crate::lock) async fn run(locks: Weak<Locks>, listener: ListeningSeat) {
    let Some((wishes, gone)) = locks
        .upgrade()
        .map(|locks| (locks.queues.wishes(listener.seat), locks.queues.gone.clone()))
    else {
        return;
    };
    let keeping = async {
        loop {
            listener.address.occupied().await;
            if let Err(StreamEnded::Unused) = keep(&locks, &listener, &wishes).await {
                return;
            }
            sleep(LOOK_EVERY).await;
        }
    };
    tokio::select! {
        () = keeping => {}
        () = gone.cancelled() => {}
    }
}

/// Serves one node until another takes its place.
async fn keep(
    locks: &Weak<Locks>,
    listener: &ListeningSeat,
    wishes: &Wishes,
) -> Result<(), StreamEnded> {
    let Ok(there) = listener.address.now() else { return Ok(()) };
    let up = || locks.upgrade().ok_or(StreamEnded::Unused);
    up()?.queues.connected(listener.seat);
    let mut readers = StreamReaders {
        locks,
        listener,
        url: there.url.clone(),
        tasks: JoinSet::new(),
        states: HashMap::new(),
        idle: Vec::new(),
        start_at: Instant::now(),
    };
    let mut next_look = Instant::now();
    loop {
        tokio::select! {
            () = listener.address.left(&there) => break,
            () = wishes.changed.notified() => {
                let locks = up()?;
                for (key, is_wanted) in wishes.take() {
                    match is_wanted {
                        true => readers.want(&locks, key),
                        false => readers.forget(&key),
                    }
                }
            }
            Some(ended) = readers.tasks.join_next() => {
                if let Ok(ended) = ended {
                    readers.ended(&*up()?, ended);
                }
            }
            () = sleep_until(next_look) => {
                next_look = Instant::now() + LOOK_EVERY;
                let locks = up()?;
                if !locks.queues.is_listening() {
                    readers.idle.clear();
                }
                for key in locks.queues.untold(listener.voter) {
                    readers.want(&locks, key);
                }
            }
        }
    }
    let locks = up()?;
    locks.queues.disconnected(listener.seat);
    locks.queues.unsubscribed(listener.voter, readers.states.keys());
    Ok(())
}

impl StreamReaders<'_> {
    /// Has a lock's stream read, unless it is being read, or there are too many readers.
    fn want(&mut self, locks: &Locks, key: Vec<u8>) {
        if let Some(state) = self.states.get(&key) {
            state.is_wanted.store(true, Ordering::Release);
            if state.attends.load(Ordering::Acquire) {
                locks.queues.subscribed(self.listener.voter, &key);
            }
            return;
        }
        let is_here = self.listener.address.has(&key);
        if !is_here || self.states.len() >= MOST || Instant::now() < self.start_at {
            return;
        }
        let state = Arc::new(ReaderState::default());
        state.is_wanted.store(true, Ordering::Release);
        self.states.insert(key.clone(), state.clone());
        let nodes = locks.grants.nodes();
        let reader = StreamReader {
            locks: self.locks.clone(),
            voter: self.listener.voter,
            stream: scripts::stream(nodes.dialect, &key),
            who: nodes.who().to_owned(),
            key,
            state,
        };
        let (idle, url) = (self.idle.pop(), self.url.clone());
        let connector = self.listener.connector.clone();
        self.tasks.spawn(async move {
            let reading = async {
                let mut connection = match idle.filter(|connection| !connection.is_closed()) {
                    Some(connection) => connection,
                    None => redis_client::connect(&url, &connector).await?,
                };
                connection.redis.set_response_timeout(BLOCK + LIMIT);
                reader.read(&mut connection).await?;
                Ok(connection)
            };
            let ended = reading.await;
            (reader.key, ended)
        });
    }

    /// Stops the reading of a lock's stream, once the command under way is over.
    fn forget(&mut self, key: &[u8]) {
        if let Some(state) = self.states.get(key) {
            state.is_wanted.store(false, Ordering::Release);
        }
    }

    /// Takes in the end of a reader.
    fn ended(&mut self, locks: &Locks, (key, ended): ReaderEnd) {
        let state = self.states.remove(&key);
        locks.queues.unsubscribed(self.listener.voter, [&key].into_iter());
        match ended {
            Ok(connection) => {
                self.idle.push(connection);
                // The lock was wanted again after the reader had last checked.
                if state.is_some_and(|state| state.is_wanted.load(Ordering::Acquire)) {
                    self.want(locks, key);
                }
            }
            Err(reason) => {
                debug!(node = %self.listener.address, %reason, "a stream is read no more");
                self.start_at = Instant::now() + PAUSE;
                if let Some(shards) = self.listener.address.cluster() {
                    shards.look_now();
                }
            }
        }
    }
}

/// The reader of one lock's stream.
struct StreamReader {
    locks: Weak<Locks>,
    voter: usize,
    key: Vec<u8>,
    stream: Vec<u8>,
    /// The name of this proxy, and of its consumer.
    who: String,
    state: Arc<ReaderState>,
}

impl StreamReader {
    /// Reads until the lock's releases are not wanted any more.
    async fn read(&self, connection: &mut Connection) -> Result<(), StreamEnded> {
        let mut renew_at = Instant::now();
        while self.state.is_wanted.load(Ordering::Acquire) {
            if Instant::now() >= renew_at {
                renew_at = Instant::now() + BLOCK;
                self.attend(connection).await?;
                if !self.state.attends.swap(true, Ordering::AcqRel) {
                    self.up()?.queues.subscribed(self.voter, &self.key);
                }
            }
            let mut reading = redis::cmd("XREADGROUP");
            reading.arg("GROUP").arg(GROUP).arg(&self.who).arg("COUNT").arg(1).arg("BLOCK");
            reading.arg(millis(BLOCK)).arg("NOACK").arg("STREAMS").arg(&self.stream).arg(">");
            let told: Value = reading.query_async(&mut connection.redis).await?;
            let Some(who) = last_text(told) else { continue };
            if self.up()?.queues.stop_listening(&self.key) {
                self.state.is_wanted.store(false, Ordering::Release);
                self.pass_on(connection).await?;
                break;
            }
            match who == self.who.as_bytes() {
                true => self.pass_on(connection).await?,
                false => self.up()?.queues.heard_of_release(self.voter, &self.key),
            }
        }
        self.state.attends.store(false, Ordering::Release);
        let mut leaving = redis::cmd("XGROUP");
        leaving.arg("DELCONSUMER").arg(&self.stream).arg(GROUP).arg(&self.who);
        let left: Result<Value, RedisError> = leaving.query_async(&mut connection.redis).await;
        // The stream may have run out.
        left.map(drop).or_else(|error| {
            if error.code() == Some("NOGROUP") { Ok(()) } else { Err(error.into()) }
        })
    }

    fn up(&self) -> Result<Arc<Locks>, StreamEnded> {
        self.locks.upgrade().ok_or(StreamEnded::Unused)
    }

    /// Becomes a consumer, or stays one: prolongs the stream, and removes dead consumers.
    async fn attend(&self, connection: &mut Connection) -> Result<(), StreamEnded> {
        let mut creating = redis::cmd("XGROUP");
        creating.arg("CREATE").arg(&self.stream).arg(GROUP).arg("$").arg("MKSTREAM");
        match creating.query_async::<Value>(&mut connection.redis).await {
            Err(error) if error.code() != Some("BUSYGROUP") => return Err(error.into()),
            _ => {}
        }
        let mut staying = redis::pipe();
        // Before Redis 7.2 a waiting consumer does not count as active, but a new one does.
        for word in ["DELCONSUMER", "CREATECONSUMER"] {
            staying.cmd("XGROUP").arg(word).arg(&self.stream).arg(GROUP).arg(&self.who).ignore();
        }
        staying.cmd("PEXPIRE").arg(&self.stream).arg(millis(LASTS)).ignore();
        staying.cmd("XINFO").arg("CONSUMERS").arg(&self.stream).arg(GROUP);
        let (all,): (Vec<Value>,) = staying.query_async(&mut connection.redis).await?;
        for dead in all.iter().filter_map(dead_consumer) {
            let mut removing = redis::cmd("XGROUP");
            removing.arg("DELCONSUMER").arg(&self.stream).arg(GROUP).arg(dead);
            removing.query_async::<Value>(&mut connection.redis).await?;
        }
        Ok(())
    }

    /// Leaves a release to another proxy.
    async fn pass_on(&self, connection: &mut Connection) -> Result<(), StreamEnded> {
        let mut passing = redis::cmd("XADD");
        passing.arg(&self.stream).arg("NOMKSTREAM").arg("MAXLEN").arg(1).arg("*").arg("by").arg("");
        Ok(passing.query_async::<Value>(&mut connection.redis).await.map(drop)?)
    }
}

/// Returns the text at the end of nested arrays: the value of the entry that was read; `None` if there is none.
fn last_text(told: Value) -> Option<Vec<u8>> {
    let mut at = told;
    loop {
        at = match at {
            Value::Array(mut all) => all.pop()?,
            Value::BulkString(text) => return Some(text),
            _ => return None,
        };
    }
}

/// Returns the name of a consumer that was silent for too long, by its part of XINFO CONSUMERS.
fn dead_consumer(told: &Value) -> Option<&[u8]> {
    let Value::Array(fields) = told else { return None };
    let of = |name: &[u8]| {
        let mut pairs = fields.chunks_exact(2);
        pairs.find(|pair| pair[0] == Value::BulkString(name.to_vec())).map(|pair| &pair[1])
    };
    match (of(b"name"), of(b"idle")) {
        (Some(Value::BulkString(name)), Some(Value::Int(idle)))
            if u64::try_from(*idle).is_ok_and(|idle| idle > millis(LASTS)) =>
        {
            Some(name)
        }
        _ => None,
    }
}
