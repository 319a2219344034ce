//! A connection to a lock node to read its locks, or to copy locks to it, while no node of the set before votes
//! ([`super`]).

use std::{io, time::Duration};

use bb8_redis::redis::{self, RedisError};
use sha1_smol::Sha1;
use tokio::time::{Instant, timeout};

use super::{
    super::{
        inspect::{PROBE, count_own_of_new},
        marker::{Identity, MARKER},
        round::Way,
        self_report::SelfReport,
    },
    found::{FoundLocks, LockCopy, ToldLock},
};
use crate::{
    lock::{jitter, scripts::fence_key},
    net::redis_client::{self, Connection},
};

/// The key of a node's note about the copy that it has: [`CopyNote`].
pub(in crate::lock::members) const COPIED: &[u8] = b"lockgate:copied";
/// The longest time of one exchange.
const LIMIT: Duration = Duration::from_secs(2);
/// The most locks in one exchange.
pub(super) const AT_ONCE: usize = 250;

const TELL: &str =
    concat!(include_str!("../../scripts/readers.lua"), include_str!("../../scripts/tell.lua"));
const COPY: &str =
    concat!(include_str!("../../scripts/readers.lua"), include_str!("../../scripts/copy.lua"));

/// The note on a node about the copy that it has. It is lost with the node's memory.
pub(super) struct CopyNote {
    /// The text while locks are being written.
    begun: String,
    /// The text once all are there.
    pub(super) whole: String,
}

impl CopyNote {
    /// Makes the note about a copy of what this deployment's nodes have under this seal.
    pub(super) fn new(id: &str, seal: u64) -> CopyNote {
        let begun = format!("begun {id} {seal} {:016x}", jitter::number());
        CopyNote { begun, whole: CopyNote::whole(id, seal) }
    }

    /// Returns the note on a node from which such a copy was taken away.
    pub(super) fn taken(id: &str, seal: u64) -> String {
        format!("taken {id} {seal}")
    }

    /// Returns the note on a node whose copy is whole.
    pub(super) fn whole(id: &str, seal: u64) -> String {
        format!("whole {id} {seal}")
    }
}

/// Whether the node has a note about a copy: it has not begun since, and the note was not deleted.
pub(in crate::lock::members) async fn has_copy(way: &Way) -> bool {
    if way.address.cluster().is_some() {
        return false;
    }
    let asked = async { Copier::connect(way).await?.note().await };
    asked.await.is_ok_and(|note| note.is_some())
}

/// A connection to read or write locks.
pub(super) struct Copier {
    pub(super) seat: usize,
    /// The number of the node's database.
    db: u32,
    /// How long the node took to answer when it was tried.
    pub(super) took: Duration,
    /// The node's note from before locks were read for another copy; empty: none.
    noted: String,
    /// The identity of the node, once its copy is whole.
    pub(super) who: Option<Identity>,
    connection: Connection,
}

impl Copier {
    /// Connects to the node on a seat.
    pub(super) async fn connect(way: &Way) -> Result<Copier, RedisError> {
        let there = way.address.now()?;
        let connection =
            within(redis_client::connect_for(&there.url, &way.connector, redis_client::LARGE))
                .await?;
        let (seat, db, took, noted) = (way.seat.seat, there.url.db, Duration::ZERO, String::new());
        let mut copier = Copier { seat, db, took, noted, who: None, connection };
        let mut load = redis::pipe();
        load.cmd("SCRIPT").arg("LOAD").arg(TELL).ignore();
        load.cmd("SCRIPT").arg("LOAD").arg(COPY).ignore();
        within(load.query_async::<()>(&mut copier.connection.redis)).await?;
        Ok(copier)
    }

    /// Tries whether the node lets its keys be listed.
    pub(super) async fn try_to_read(&mut self) -> Result<(), RedisError> {
        let (mut scan, begun) = (redis::cmd("SCAN"), Instant::now());
        let scanned = scan.arg(0).arg("COUNT").arg(1).query_async(&mut self.connection.redis);
        within::<redis::Value>(scanned).await?;
        self.took = begun.elapsed();
        Ok(())
    }

    /// Returns how many keys the node has in its database, or 0 if it does not say.
    pub(super) async fn keys(&mut self) -> u64 {
        let (mut info, db) = (redis::cmd("INFO"), format!("db{}:keys=", self.db));
        let asked = info.arg("keyspace").query_async(&mut self.connection.redis);
        let told: String = within(asked).await.unwrap_or_default();
        let keys = told.lines().find_map(|line| line.strip_prefix(&db)?.split(',').next());
        keys.and_then(|keys| keys.parse().ok()).unwrap_or_default()
    }

    /// Returns how many keys there are beside Lockgate's own on a node that has a part in no deployment.
    pub(super) async fn foreign_keys(&mut self) -> u64 {
        let keys = self.keys().await;
        let own = timeout(LIMIT, count_own_of_new(&mut self.connection.redis)).await;
        keys.saturating_sub(own.unwrap_or_default())
    }

    /// Tries whether the node takes writes.
    pub(super) async fn try_to_write(&mut self) -> Result<(), RedisError> {
        // The key does not exist, so this writes nothing: another coordinator's copy may be there by now.
        let (mut probe, begun) = (redis::cmd("SET"), Instant::now());
        probe.arg(PROBE).arg("").arg("XX").arg("PX").arg(1);
        within::<redis::Value>(probe.query_async(&mut self.connection.redis)).await?;
        self.took = begun.elapsed();
        Ok(())
    }

    /// Reads all locks of the node, as long as its marker is `told`.
    pub(super) async fn read_all(
        &mut self,
        told: &str,
        prefix: &str,
        found: &mut FoundLocks,
    ) -> Result<(), RedisError> {
        let mut cursor = b"0".to_vec();
        loop {
            cursor = self.read(told, prefix, &cursor, &[], found).await?;
            if cursor == b"0" {
                return Ok(());
            }
        }
    }

    /// Reads these locks again, as long as the node's marker is `told`.
    pub(super) async fn read_these(
        &mut self,
        told: &str,
        prefix: &str,
        keys: &[Vec<u8>],
        found: &mut FoundLocks,
    ) -> Result<(), RedisError> {
        for keys in keys.chunks(AT_ONCE) {
            self.read(told, prefix, b"", keys, found).await?;
        }
        Ok(())
    }

    async fn read(
        &mut self,
        told: &str,
        prefix: &str,
        cursor: &[u8],
        keys: &[Vec<u8>],
        found: &mut FoundLocks,
    ) -> Result<Vec<u8>, RedisError> {
        let mut call = redis::cmd("EVALSHA");
        call.arg(Sha1::from(TELL).digest().to_string()).arg(1).arg(MARKER);
        call.arg(told).arg(prefix).arg(cursor).arg(keys);
        let redis = &mut self.connection.redis;
        let answer: Vec<Vec<u8>> = within(call.query_async(redis)).await?;
        let mut words = answer.into_iter();
        let next = words.next().ok_or_else(|| failed("its marker is another meanwhile"))?;
        while let (Some(key), Some(token), Some(left), Some(fence), Some(ended)) =
            (words.next(), words.next(), words.next(), words.next(), words.next())
        {
            let told = ToldLock { token, left, fence, ended };
            let added = found.add(self.seat, key, told);
            added.ok_or_else(|| failed("it answers what Redis does not answer"))?;
        }
        Ok(next)
    }

    /// Remembers the node's note about a copy.
    pub(super) async fn remember_note(&mut self) -> Result<(), RedisError> {
        self.noted = self.note().await?.unwrap_or_default();
        Ok(())
    }

    /// Notes that a copy has begun, if the node's marker still is `told` (empty: none) and its note is the remembered
    /// one. From then on the node carries out no writes of another copy.
    pub(super) async fn begin(&mut self, note: &CopyNote, told: &str) -> Result<(), RedisError> {
        let compare = "if (redis.call('GET', KEYS[2]) or '') ~= ARGV[1] \
                       or (redis.call('GET', KEYS[1]) or '') ~= ARGV[3] then return 0 end \
                       redis.call('SET', KEYS[1], ARGV[2]) return 1";
        let noted = std::mem::take(&mut self.noted);
        self.note_if(compare, &[told, &note.begun, &noted]).await
    }

    /// Writes locks, as long as the node's marker is `told` (empty: none) and no other copy has begun.
    pub(super) async fn write(
        &mut self,
        (note, told): (&CopyNote, &str),
        locks: &[LockCopy],
        fence_ttl: Duration,
    ) -> Result<(), RedisError> {
        let digest = Sha1::from(COPY).digest().to_string();
        for locks in locks.chunks(AT_ONCE) {
            let mut calls = redis::pipe();
            for lock in locks {
                let call = calls.cmd("EVALSHA").arg(&digest).arg(4);
                call.arg(&lock.key).arg(fence_key(&lock.key)).arg(COPIED).arg(MARKER);
                call.arg(&note.begun).arg(told);
                call.arg(&lock.token).arg(lock.left).arg(lock.fence).arg(lock.largest);
                call.arg(fence_ttl.as_millis().to_string()).arg(&lock.claim);
                for (reader, left) in &lock.readers {
                    call.arg(reader).arg(left);
                }
            }
            let redis = &mut self.connection.redis;
            let answers: Vec<(i64,)> = within(calls.query_async(redis)).await?;
            if answers.contains(&(0,)) {
                return Err(failed("it has forgotten what was copied"));
            }
        }
        Ok(())
    }

    /// Notes that the copy is whole, and remembers the node's identity, asked for over this connection: the address
    /// may lead to another node by now.
    pub(super) async fn end(&mut self, note: &CopyNote) -> Result<(), RedisError> {
        // A node that has forgotten the copy has forgotten the note.
        let compare = "if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end \
                       redis.call('SET', KEYS[1], ARGV[2]) return 1";
        self.note_if(compare, &[&note.begun, &note.whole]).await?;
        self.who = Some(self.identity().await?);
        Ok(())
    }

    /// Takes away the copy made under this seal, so that the node does not begin with it. Returns the node's
    /// identity.
    ///
    /// # Errors
    /// If the node's note on that copy is not there: it has begun, or has lost the note, perhaps after it had begun.
    pub(super) async fn take_away(&mut self, id: &str, seal: u64) -> Result<Identity, RedisError> {
        let compare = "local note = redis.call('GET', KEYS[1]) \
                       if note ~= ARGV[1] and note ~= ARGV[2] then return 0 end \
                       redis.call('SET', KEYS[1], ARGV[2]) return 1";
        let (whole, taken) = (CopyNote::whole(id, seal), CopyNote::taken(id, seal));
        self.note_if(compare, &[&whole, &taken]).await?;
        self.identity().await
    }

    async fn identity(&mut self) -> Result<Identity, RedisError> {
        let mut both = redis::pipe();
        both.cmd("INFO").arg("server").cmd("INFO").arg("replication");
        let asked = both.query_async(&mut self.connection.redis);
        let (server, replication): (Vec<u8>, Vec<u8>) = within(asked).await?;
        let told = SelfReport::of_info(&server, &replication);
        told.identity().ok_or_else(|| failed("it does not tell its run_id"))
    }

    async fn note_if(&mut self, script: &str, words: &[&str]) -> Result<(), RedisError> {
        let mut load = redis::pipe();
        load.cmd("SCRIPT").arg("LOAD").arg(script).ignore();
        let call = load.cmd("EVALSHA").arg(Sha1::from(script).digest().to_string());
        call.arg(2).arg(COPIED).arg(MARKER).arg(words);
        match within(load.query_async::<(i64,)>(&mut self.connection.redis)).await? {
            (1,) => Ok(()),
            _ => Err(failed("it has forgotten what was copied, or was changed meanwhile")),
        }
    }

    /// Returns the node's note about a copy.
    pub(super) async fn note(&mut self) -> Result<Option<String>, RedisError> {
        within(redis::cmd("GET").arg(COPIED).query_async(&mut self.connection.redis)).await
    }
}

async fn within<T>(asking: impl Future<Output = Result<T, RedisError>>) -> Result<T, RedisError> {
    timeout(LIMIT, asking).await.unwrap_or_else(|_| Err(failed("no answer in time")))
}

fn failed(why: &'static str) -> RedisError {
    io::Error::other(why).into()
}
