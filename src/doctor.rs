//! `lockgate doctor`: looks at every Redis that a configuration names, from here
//! and now, and says what is wrong and what to do about it. Changes nothing.

use std::{
    collections::HashMap,
    fmt::Write as _,
    path::Path,
    slice,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::bail;
use bb8_redis::redis::{self, RedisError, aio::MultiplexedConnection};
use tokio::time::timeout;

use crate::{
    config::{Config, LocksConfig, RedisUrl},
    lock::{self, Fault},
    net::Connector,
};

/// How long anything that is asked of a server may take.
const LIMIT: Duration = Duration::from_secs(3);
/// Round trips that are timed.
const ROUND_TRIPS: usize = 20;
/// More than this between two clocks means that one of them is not kept.
const CLOCKS_APART: Duration = Duration::from_secs(1);

/// What one server told.
struct Patient {
    /// The fields of INFO.
    info: HashMap<String, String>,
    /// `run_id` that was admitted the last time.
    marker: Option<String>,
    /// Median and longest of some round trips.
    round_trip: (Duration, Duration),
    /// Its clock less the one here, in ms, and how far that may be off; none: it does not
    /// tell.
    clock: Option<(i64, i64)>,
}

impl Patient {
    fn field(&self, name: &str) -> &str {
        self.info.get(name).map_or("", String::as_str)
    }

    fn uptime(&self) -> Duration {
        Duration::from_secs(self.field("uptime_in_seconds").parse().unwrap_or(0))
    }

    fn persistence(&self) -> &'static str {
        match (self.field("aof_enabled"), self.info.get("saves").map(String::as_str)) {
            ("1", _) => "append-only file",
            (_, Some("")) => "no persistence",
            (_, Some(_)) => "snapshots",
            (_, None) => "persistence unknown",
        }
    }
}

/// Something to be done about a server.
struct Finding {
    /// No lock may be granted with its vote, or no command forwarded.
    is_grave: bool,
    what: String,
    /// What to do about it.
    advice: String,
}

impl Finding {
    fn grave(what: impl Into<String>, advice: impl Into<String>) -> Finding {
        Finding { is_grave: true, what: what.into(), advice: advice.into() }
    }

    fn minor(what: impl Into<String>, advice: impl Into<String>) -> Finding {
        Finding { is_grave: false, what: what.into(), advice: advice.into() }
    }
}

/// Prints what it finds.
///
/// # Errors
/// The configuration's own; and if something grave was found.
pub fn run(file: &Path) -> anyhow::Result<()> {
    let config = Config::load(file)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (report, grave) = runtime.block_on(examine_all(&config));
    runtime.shutdown_background();
    print!("{report}");
    match grave {
        0 => Ok(()),
        1 => bail!("1 server is not fit for its part"),
        many => bail!("{many} servers are not fit for their part"),
    }
}

async fn examine_all(config: &Config) -> (String, usize) {
    let nodes = &config.locks.nodes;
    let to_data = Connector::start("data", &config.tls, slice::from_ref(&config.data))
        .sending_header(config.send_proxy_protocol);
    let to_nodes = Connector::start("node", &config.locks.tls, nodes);
    let urls: Vec<RedisUrl> = std::iter::once(&config.data).chain(nodes).cloned().collect();
    let ways = std::iter::once(&to_data).chain(std::iter::repeat(&to_nodes));
    let asking: Vec<_> = urls
        .iter()
        .zip(ways)
        .map(|(url, way)| (url.clone(), way.clone()))
        .map(|(url, way)| tokio::spawn(async move { examine(&url, &way).await }))
        .collect();
    let mut patients = Vec::new();
    for asked in asking {
        patients.push(asked.await.unwrap_or_else(|error| Err(error.to_string())));
    }
    let nodes = &patients[1..];
    let mut report = String::new();
    let mut grave = 0;
    for (place, (url, patient)) in urls.iter().zip(&patients).enumerate() {
        let name = if place == 0 { "data node".into() } else { format!("lock node {place}") };
        let findings = match (place, patient) {
            (_, Err(error)) => vec![unreachable(error)],
            (0, Ok(_)) => Vec::new(),
            (_, Ok(patient)) => diagnose(place - 1, patient, nodes, &config.locks),
        };
        // Writing to a String cannot fail.
        let _ = writeln!(report, "{name}  {url}  {}", summary(patient));
        for finding in &findings {
            let mark = if finding.is_grave { "!!" } else { " -" };
            let _ = writeln!(report, "  {mark} {}\n     {}", finding.what, finding.advice);
        }
        grave += usize::from(findings.iter().any(|finding| finding.is_grave));
    }
    (report, grave)
}

fn summary(patient: &Result<Patient, String>) -> String {
    let Ok(patient) = patient else { return "no answer".into() };
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

fn unreachable(error: &str) -> Finding {
    let advice = if error.contains("DENIED") {
        "Give it a password (requirepass, or a user by ACL SETUSER), or bind it to an address that only proxies reach and set protected-mode no."
    } else if error.contains("NOAUTH") || error.contains("WRONGPASS") || error.contains("password")
    {
        "Put user and password into its URL: redis://user:${PASSWORD}@host:port."
    } else if error.contains("no permissions") {
        "The ACL user needs ~lock:* ~lockgate:* &lockgate:*, and +@connection +@scripting +@pubsub +info +time +get +set +del +pttl +pexpire."
    } else {
        "Is it running, is the address right, and does a firewall stand between?"
    };
    Finding::grave(error, advice)
}

/// What is wrong with a lock node.
fn diagnose(
    index: usize,
    patient: &Patient,
    nodes: &[Result<Patient, String>],
    locks: &LocksConfig,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    let run_id = patient.field("run_id");
    let known =
        |node: &Result<Patient, String>| node.as_ref().is_ok_and(|node| node.marker.is_some());
    let same = |node: &Result<Patient, String>| {
        node.as_ref().is_ok_and(|node| !run_id.is_empty() && node.field("run_id") == run_id)
    };
    for fault in lock::faults_of(|name| patient.field(name)) {
        findings.push(of_fault(fault));
    }
    if run_id.is_empty() && locks.quarantine {
        findings.push(of_fault(Fault::Unidentified));
    }
    if !locks.allow_shared_instance && nodes[..index].iter().any(same) {
        findings.push(of_fault(Fault::SharedInstance));
    }
    let marked = patient.marker.as_deref() == Some(run_id);
    let left = locks.max_ttl.saturating_sub(patient.uptime());
    if locks.quarantine && !marked && nodes.iter().any(known) && !left.is_zero() {
        let what = format!(
            "{}: it was restarted or is new, {left:?} are left",
            Fault::Quarantined.meaning()
        );
        findings.push(Finding::minor(
            what,
            "It votes again by itself after that. Restart one node at a time.",
        ));
    }
    if patient.clock.is_none() {
        findings.push(of_fault(Fault::Unwatched));
    }
    let (ahead, around) = patient.clock.unwrap_or_default();
    if ahead.unsigned_abs() > around.unsigned_abs() + CLOCKS_APART.as_millis() as u64 {
        let advice = "Locks do not need equal clocks, but one that is set while Redis runs ends locks too early or too late: keep all of them by NTP, without steps.";
        findings
            .push(Finding::minor(format!("its clock is {ahead} ms ahead of the one here"), advice));
    }
    if patient.round_trip.0 * 2 > locks.node_timeout {
        let what = format!(
            "a round trip takes more than half of locks.node_timeout ({:?})",
            locks.node_timeout
        );
        findings.push(Finding::minor(
            what,
            "Set node_timeout to some ten round trips, or move it nearer.",
        ));
    }
    if patient.field("loading") == "1" {
        findings.push(Finding::minor("it is loading its data", "Wait."));
    }
    findings
}

fn of_fault(fault: Fault) -> Finding {
    let advice = match fault {
        Fault::SharedInstance => {
            "Give each entry of locks.nodes a Redis of its own, on a machine of its own."
        }
        Fault::Replica => {
            "Name masters only; a replica votes for what its master has voted already."
        }
        Fault::Eviction => {
            "CONFIG SET maxmemory-policy noeviction, or give locks a Redis of their own."
        }
        Fault::Cluster => "Use Redis servers outside of a cluster (cluster-enabled no).",
        Fault::Unidentified => {
            "Allow the user INFO (ACL SETUSER … +info), or set locks.quarantine: no."
        }
        Fault::Unwatched => "Allow the user TIME (ACL SETUSER … +time).",
        Fault::Quarantined | Fault::ProtectedMode | Fault::Auth | Fault::Garbage | Fault::Clock => {
            "See its log."
        }
    };
    Finding {
        is_grave: !matches!(fault, Fault::Eviction | Fault::Unwatched),
        what: fault.meaning().into(),
        advice: advice.into(),
    }
}

/// Asks one server.
async fn examine(url: &RedisUrl, way: &Connector) -> Result<Patient, String> {
    let asking = async {
        let mut connection = lock::connect(url, way).await?;
        question(&mut connection.redis).await
    };
    match timeout(LIMIT, asking).await {
        Ok(answer) => answer.map_err(|error: RedisError| error.to_string()),
        Err(_) => Err(format!("no answer within {LIMIT:?}")),
    }
}

async fn question(connection: &mut MultiplexedConnection) -> Result<Patient, RedisError> {
    let info: String = redis::cmd("INFO").query_async(connection).await?;
    let mut info: HashMap<String, String> = info
        .lines()
        .filter_map(|line| line.trim_end().split_once(':'))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    let mut round_trips = Vec::new();
    for _ in 0..ROUND_TRIPS {
        let begun = Instant::now();
        let _: String = redis::cmd("PING").query_async(connection).await?;
        round_trips.push(begun.elapsed());
    }
    round_trips.sort();
    let before = now_in_ms();
    // An ACL may refuse these; what they tell is good to know, not needed.
    let time = redis::cmd("TIME").query_async::<(i64, i64)>(connection).await;
    let after = now_in_ms();
    let clock = time.ok().map(|(seconds, micros)| {
        let around = (after - before) / 2 + 1;
        (seconds * 1000 + micros / 1000 - before.midpoint(after), around)
    });
    let mut saves = redis::cmd("CONFIG");
    saves.arg("GET").arg("save");
    if let Ok((_, saves)) = saves.query_async::<(String, String)>(connection).await {
        info.insert("saves".into(), saves);
    }
    let marker = redis::cmd("GET").arg(lock::MARKER).query_async(connection).await?;
    let round_trip = (round_trips[ROUND_TRIPS / 2], round_trips[ROUND_TRIPS - 1]);
    Ok(Patient { info, marker, round_trip, clock })
}

/// The time of day here.
fn now_in_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}
