//! Asks one server all that doctor wants to know about it.

use std::{
    collections::HashMap,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use bb8_redis::redis::{self, RedisError, aio::MultiplexedConnection};
use tokio::time::timeout;

use crate::{
    config::{LocksConfig, RedisUrl},
    data::write_refusals::WriteRefusal,
    fleet::record::{ProxyRecord, RECORDS},
    lock::{self, NodeOfSet},
    net::{Connector, redis_client},
    tools::keyspace,
};

/// How long a server may take for the connection, and for each answer.
pub(super) const LIMIT: Duration = Duration::from_secs(3);
/// Most round trips that are timed, and how long that may take: a server may be far away.
const ROUND_TRIPS: usize = 20;
const TIMING: Duration = Duration::from_secs(1);

/// Everything that one server has answered.
pub(super) struct Patient {
    /// The fields of INFO.
    pub(super) info: HashMap<String, String>,
    /// A lock node's marker. `None`: it has none.
    pub(super) marker: Option<String>,
    /// The election by which Sentinels made a lock node the master.
    pub(super) election: Option<u64>,
    /// The number of keys on a lock node that Lockgate has not used yet.
    pub(super) foreign_keys: u64,
    /// The records that proxies keep on this lock node.
    pub(super) fleet: Vec<ProxyRecord>,
    /// Why a lock node carries out nothing that locks need.
    pub(super) refusal: Option<lock::NodeRefusal>,
    /// The error by which the data node refuses writes, and its words.
    pub(super) data_refusal: Option<(WriteRefusal, String)>,
    /// The words in which a lock node refuses to list its keys.
    pub(super) hides_keys: Option<String>,
    /// The median and the longest round trip.
    pub(super) round_trip: (Duration, Duration),
    /// Idle seconds after which the server closes a client's connection; 0: never.
    pub(super) timeout: u64,
    /// The number of Sentinels that watch the server.
    pub(super) sentinels: u64,
    /// The server's clock less this machine's, in ms, and its error, in ms. `None`: the server does not tell.
    pub(super) clock: Option<(i64, i64)>,
}

impl Patient {
    pub(super) fn field(&self, name: &str) -> &str {
        self.info.get(name).map_or("", String::as_str)
    }

    pub(super) fn uptime(&self) -> Duration {
        Duration::from_secs(self.field("uptime_in_seconds").parse().unwrap_or(0))
    }

    pub(super) fn persistence(&self) -> &'static str {
        match (self.field("aof_enabled"), self.info.get("saves").map(String::as_str)) {
            ("1", _) => "append-only file",
            (_, Some("")) => "no persistence",
            (_, Some(_)) => "snapshots",
            (_, None) => "persistence unknown",
        }
    }
}

/// A list of lock nodes, with their answers.
pub(super) struct NodeList<'a> {
    /// The list's key in `locks`.
    pub(super) key: &'static str,
    /// The configuration in which these are the lock nodes.
    pub(super) locks: &'a LocksConfig,
    pub(super) patients: &'a [Result<Patient, String>],
    /// If these nodes are yet to replace others: what is known about each for that change.
    pub(super) to_come: Option<&'a [NodeOfSet]>,
}

pub(super) fn summary(patient: &Result<Patient, String>) -> String {
    let patient = match patient {
        Ok(patient) => patient,
        Err(error) if error.contains("no permissions") => return "not examined".into(),
        Err(_) => return "no answer".into(),
    };
    let (median, longest) = patient.round_trip;
    let (ahead, around) = patient.clock.unwrap_or_default();
    format!(
        "{} {}, up {} s, round trip {:.2} ms (longest {:.2}), clock {ahead:+} ms (±{around}), {}",
        if patient.field("valkey_version").is_empty() { "redis" } else { "valkey" },
        patient.field("redis_version"),
        patient.uptime().as_secs(),
        median.as_secs_f64() * 1e3,
        longest.as_secs_f64() * 1e3,
        patient.persistence(),
    )
}

/// Asks one server everything. `prefix`: `locks.prefix`, if it is a lock node.
pub(super) async fn examine(
    url: &RedisUrl,
    way: &Connector,
    prefix: Option<&str>,
) -> Result<Patient, String> {
    let silent = || format!("no answer within {LIMIT:?}");
    let connecting = timeout(LIMIT, redis_client::connect(url, way)).await;
    let mut connection = connecting.map_err(|_| silent())?.map_err(|error| words(&error))?;
    connection.redis.set_response_timeout(LIMIT);
    let asking = question(&mut connection.redis, prefix).await;
    asking.map_err(|error| if error.is_timeout() { silent() } else { words(&error) })
}

/// An error in Redis's own words: for some codes the client library has words of its own.
fn words(error: &RedisError) -> String {
    match (error.code(), error.detail()) {
        (Some(code), Some(detail)) if WriteRefusal::of(code.as_bytes()).is_some() => {
            format!("\"{code}\": {detail}")
        }
        _ => error.to_string(),
    }
}

async fn question(
    connection: &mut MultiplexedConnection,
    prefix: Option<&str>,
) -> Result<Patient, RedisError> {
    let votes = prefix.is_some();
    let info: String = redis::cmd("INFO").query_async(connection).await?;
    let mut info: HashMap<String, String> = info
        .lines()
        .filter_map(|line| line.trim_end().split_once(':'))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    let round_trip = round_trip(connection).await?;
    // An ACL may refuse TIME and the next questions; their answers are useful, but not needed.
    let clock = clock(connection).await;
    let mut saves = redis::cmd("CONFIG");
    saves.arg("GET").arg("save");
    if let Ok((_, saves)) = saves.query_async::<(String, String)>(connection).await {
        info.insert("saves".into(), saves);
    }
    let timeout = number(connection, ["CONFIG", "GET", "timeout"]).await;
    let sentinels = number(connection, ["PUBSUB", "NUMSUB", "__sentinel__:hello"]).await;
    let set = set_in_vain(connection).await;
    if set.as_ref().is_some_and(|error| error.to_string().contains("unknown command")) {
        info.insert("set_is_unknown".into(), "1".into());
    }
    let data_refusal = set.filter(|_| !votes).and_then(|error| {
        let refusal = WriteRefusal::of(error.code()?.as_bytes())?;
        Some((refusal, words(&error)))
    });
    let is_cluster = info.get("cluster_enabled").is_some_and(|told| told == "1");
    // The data node's user needs no access to Lockgate's keys.
    let lying = if votes { lying(connection, is_cluster).await? } else { Default::default() };
    let [first, longest, seats] = &lying;
    let marker = lock::text_of(first.as_deref(), longest.as_deref(), seats.as_deref());
    let refusal = match prefix {
        Some(prefix) => lock::refusal_of_locks(connection, prefix).await,
        None => None,
    };
    let hides_keys = match votes && !is_cluster {
        true => refusal_of_scan(connection).await,
        false => None,
    };
    let records = match votes {
        true => redis::cmd("GET").arg(RECORDS).query_async::<Option<String>>(connection).await,
        false => Ok(None),
    };
    // The user need not have access to this key.
    let records = records.ok().flatten();
    let is_unused = votes && !is_cluster && records.is_none() && lying.iter().all(Option::is_none);
    let fields = info.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    let foreign_keys = match is_unused {
        true => keyspace::count_foreign(connection, fields).await,
        false => 0,
    };
    let fleet = ProxyRecord::read_all(&records.unwrap_or_default());
    let election = None;
    Ok(Patient {
        info,
        marker,
        election,
        foreign_keys,
        fleet,
        refusal,
        data_refusal,
        hides_keys,
        round_trip,
        timeout,
        sentinels,
        clock,
    })
}

/// Asks for permission to SET as LOCK does: by a syntax error, found only after the ACL's check. Returns the error.
async fn set_in_vain(connection: &mut MultiplexedConnection) -> Option<RedisError> {
    let mut set = redis::cmd("SET");
    set.arg("lockgate:doctor").arg("x").arg("NX").arg("XX");
    set.query_async::<()>(connection).await.err()
}

/// Tries to list keys. Returns the words in which the server refuses that.
async fn refusal_of_scan(connection: &mut MultiplexedConnection) -> Option<String> {
    let mut scan = redis::cmd("SCAN");
    scan.arg(0).arg("COUNT").arg(1);
    let scanned = scan.query_async::<redis::Value>(connection).await;
    scanned.err().map(|error| error.to_string())
}

/// Returns the median and the longest round trip of some PINGs.
async fn round_trip(
    connection: &mut MultiplexedConnection,
) -> Result<(Duration, Duration), RedisError> {
    let (mut round_trips, first) = (Vec::new(), Instant::now());
    while round_trips.is_empty() || round_trips.len() < ROUND_TRIPS && first.elapsed() < TIMING {
        let begun = Instant::now();
        let _: String = redis::cmd("PING").query_async(connection).await?;
        round_trips.push(begun.elapsed());
    }
    round_trips.sort();
    Ok((round_trips[round_trips.len() / 2], round_trips.last().copied().unwrap_or_default()))
}

/// Returns how far the server's clock is ahead of this machine's, and by how much that may be wrong, in ms.
async fn clock(connection: &mut MultiplexedConnection) -> Option<(i64, i64)> {
    let before = now_in_ms();
    let time = redis::cmd("TIME").query_async::<(i64, i64)>(connection).await;
    let after = now_in_ms();
    let (seconds, micros) = time.ok()?;
    let around = (after - before) / 2 + 1;
    Some((seconds * 1000 + micros / 1000 - before.midpoint(after), around))
}

/// Returns the number behind a name, as CONFIG GET and PUBSUB NUMSUB answer; 0 if the question is refused.
async fn number(connection: &mut MultiplexedConnection, words: [&str; 3]) -> u64 {
    let mut question = redis::cmd(words[0]);
    question.arg(&words[1..]);
    question.query_async::<(String, u64)>(connection).await.map_or(0, |told| told.1)
}

/// Returns the three parts of a lock node's marker.
async fn lying(
    connection: &mut MultiplexedConnection,
    is_cluster: bool,
) -> Result<[Option<String>; 3], RedisError> {
    let mut lying: [Option<String>; 3] = [const { None }; 3];
    let keys = [lock::MARKER, lock::LONGEST, lock::SEATS];
    for (found, key) in lying.iter_mut().zip(keys) {
        let asked = redis::cmd("GET").arg(key).query_async(connection).await;
        *found = match asked {
            // In a cluster another node may have the key's slot; the cluster is a finding of its own.
            Err(_) if is_cluster => None,
            told => told?,
        };
    }
    Ok(lying)
}

/// The time of day on this machine, in ms since 1970.
fn now_in_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}
