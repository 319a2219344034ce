//! `lockgate doctor`: looks at every Redis that a configuration names, once and from this
//! machine, and says what is wrong and what to do about it. Changes nothing.

use std::{
    collections::HashMap,
    fmt::Write as _,
    path::Path,
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::bail;
use bb8_redis::redis::{self, RedisError, aio::MultiplexedConnection};
use tokio::time::timeout;

use crate::{
    adopt::fleet::{MODES, ModeConflict, ProxyModes},
    bridge::{self, CommandFailure},
    cluster::{trouble::ClusterTrouble, view::uncovered},
    config::{
        AdoptMode, AdoptRule, Config, DataConfig, LockCluster, LockNode, LocksConfig, Policy,
        RedisUrl, SHARED_WITH_DATA, SentinelMaster,
    },
    data::{self, DataNode, Tenure},
    lock::{self, Fault},
    net::{Connector, redis_client},
    sentinel,
    server::Exposure,
};

/// How long examining one server may take.
const LIMIT: Duration = Duration::from_secs(3);
/// What stands for each star in a key on which mode bridge is tried: no client can LOCK such a name.
const TRIAL_NAME: &str = "lockgate:doctor";
/// Most findings about modes that are two steps apart.
const MAX_APART: usize = 32;
/// The longest time since a replica has acknowledged, in seconds, after which it still answers.
const MAX_LAG: u64 = 3;
const ROUND_TRIPS: usize = 20;
/// A larger difference between two clocks means that one of them is not kept.
const CLOCKS_APART: Duration = Duration::from_secs(1);

/// Everything that one server told.
struct Patient {
    /// The fields of INFO.
    info: HashMap<String, String>,
    /// The marker of a lock node, and version 0.1's. `None`: the node has none.
    markers: [Option<String>; 2],
    /// The election by which Sentinels made a lock node the master.
    election: Option<u64>,
    /// The modes of adopt rules in the proxies that use this lock node.
    modes: Vec<ProxyModes>,
    /// Median and longest of the round trips.
    round_trip: (Duration, Duration),
    /// Idle seconds after which the server closes a client's connection; 0: never.
    timeout: u64,
    /// Number of Sentinels that watch the server.
    sentinels: u64,
    /// The server's clock less this machine's, in ms, and the error of that, in ms. `None`: the
    /// server does not tell.
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

/// A problem of a server.
#[derive(Clone)]
struct Finding {
    /// Whether the server cannot vote, no command can be forwarded, or no bridged lock be taken.
    is_grave: bool,
    what: String,
    /// Advice what to do about the problem.
    advice: String,
    /// Whether the server is a lock node that may not vote yet.
    waits: bool,
}

impl Finding {
    fn grave(what: impl Into<String>, advice: impl Into<String>) -> Finding {
        Finding { is_grave: true, what: what.into(), advice: advice.into(), waits: false }
    }

    fn minor(what: impl Into<String>, advice: impl Into<String>) -> Finding {
        Finding { is_grave: false, what: what.into(), advice: advice.into(), waits: false }
    }
}

/// Examines every Redis of the configuration, and prints the findings.
///
/// # Errors
/// The configuration's, or that something grave was found.
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
    let data_node = DataNode::start(config);
    let to_nodes = lock::connector_to_nodes(&config.locks);
    let asking: Vec<_> = nodes
        .iter()
        .map(|node| (node.clone(), to_nodes.clone(), config.locks.tls.clone()))
        .map(|(node, way, tls)| {
            tokio::spawn(async move {
                let there = lock::locate(&node, &tls, MODES).await?;
                let patient = examine(&there.url, &way, true).await?;
                Ok(Patient { election: there.election, ..patient })
            })
        })
        .collect();
    let found = data_node.found(LIMIT).await;
    let mut patients = vec![match &found {
        Some(tenure) => examine(&tenure.url, data_node.connector(), false).await,
        None => Err(data_node.problem().unwrap_or_default()),
    }];
    for asked in asking {
        patients.push(asked.await.unwrap_or_else(|error| Err(error.to_string())));
    }
    let exposure = exposure(config, &data_node).await;
    let unbridged = bridging(config, &data_node).await;
    let known = replicas_known(config).await;
    let (data, nodes) = (&patients[0], &patients[1..]);
    let name = |tenure: &Arc<Tenure>| tenure.url.to_string();
    let first = found.as_ref().map_or_else(|| data_node.to_string(), name);
    let urls = std::iter::once(first).chain(config.locks.nodes.iter().map(ToString::to_string));
    let mut report = String::new();
    let (mut grave, mut minor, mut waiting) = (0, 0, 0);
    if let Some((lines, faults, others)) = cluster(config, &data_node).await {
        report += &lines;
        grave += faults;
        minor += others;
    }
    if let Some((lines, others)) = sentinels(config).await {
        report += &lines;
        minor += others;
    }
    for (place, (url, patient)) in urls.zip(&patients).enumerate() {
        let name = if place == 0 { "data node".into() } else { format!("lock node {place}") };
        if let Some(LockNode::Cluster(of)) = place.checked_sub(1).map(|at| &config.locks.nodes[at])
        {
            let (lines, faults, others, waits) = shards(of, config, &to_nodes, &name).await;
            report += &lines;
            grave += faults;
            minor += others;
            waiting += usize::from(waits);
            continue;
        }
        let findings = match (place, patient) {
            (0, Err(error)) if error.contains("no permissions") => {
                // What clients are served with is their own user's.
                let advice =
                    "doctor cannot examine it; for that the user in data needs INFO and PING.";
                let mut findings = vec![Finding::minor(error, advice)];
                findings.extend_from_slice(&unbridged);
                findings
            }
            (0, Err(error)) if found.is_none() => vec![not_found(error, config)],
            (_, Err(error)) => vec![unreachable(error)],
            (0, Ok(patient)) => {
                let mut findings: Vec<Finding> = exposure.iter().cloned().collect();
                findings.extend(idle(patient, "data node"));
                findings.extend(renamed(patient));
                findings.extend(one_of_many(config, patient));
                if config.data.cluster().is_none() {
                    findings.extend(replicas(config, patient, known));
                }
                findings.extend_from_slice(&unbridged);
                findings
            }
            (_, Ok(patient)) => {
                let mut findings = diagnose(place - 1, patient, nodes, &config.locks);
                waiting += usize::from(findings.iter().any(|finding| finding.waits));
                let data = (found.as_deref(), data);
                findings.extend(alone_or_shared(
                    config,
                    &config.locks.nodes[place - 1],
                    patient,
                    data,
                ));
                findings
            }
        };
        // Writing to a String cannot fail.
        let _ = writeln!(report, "{name}  {url}  {}", summary(patient));
        for finding in &findings {
            let mark = if finding.is_grave { "!!" } else { " -" };
            let _ = writeln!(report, "  {mark} {}\n     {}", finding.what, finding.advice);
        }
        grave += usize::from(findings.iter().any(|finding| finding.is_grave));
        minor += findings.iter().filter(|finding| !finding.is_grave).count();
    }
    let apart = apart(config, data, nodes);
    if !apart.is_empty() {
        let _ = writeln!(report, "adopt");
    }
    for finding in &apart {
        let _ = writeln!(report, "   - {}\n     {}", finding.what, finding.advice);
    }
    minor += apart.len();
    // Those of a cluster have a line each.
    let is_server = |line: &&str| {
        ["data node ", "lock node ", "front "].iter().any(|name| line.starts_with(name))
    };
    let servers = report.lines().filter(is_server).count();
    let may_fail = nodes.len() - (nodes.len() / 2 + 1);
    let verdict = match grave {
        0 if waiting > may_fail => format!(
            "fit, but no lock can be had now: of {} lock nodes {waiting} wait, and {may_fail} may",
            nodes.len()
        ),
        0 if waiting > 0 => format!(
            "fit: of {} lock nodes {waiting} may not vote yet, and {} may fail",
            nodes.len(),
            may_fail - waiting
        ),
        0 => format!("fit: of {} lock nodes {may_fail} may fail", nodes.len()),
        _ => format!("not fit: {grave} of {} servers (!!)", servers.max(grave)),
    };
    let rest = if minor == 0 { String::new() } else { format!("; to look at: {minor} (-)") };
    let _ = writeln!(report, "{verdict}{rest}");
    (report, grave)
}

/// Asks, as a starting proxy does, whether clients from elsewhere may come.
async fn exposure(config: &Config, data: &Arc<DataNode>) -> Option<Finding> {
    match Exposure::find_out(config, data.clone()).await {
        Err(open) => Some(Finding::grave(open.to_string(), "Until then Lockgate does not start.")),
        Ok(exposure) if !exposure.is_safe() => Some(Finding::minor(
            "it does not tell whether it asks for a password",
            "Until it does, clients from other machines are refused (listen, allow_open).",
        )),
        Ok(_) => None,
    }
}

/// Findings about adopt rules whose modes are two steps apart, in proxies that run or in the
/// configuration.
fn apart(
    config: &Config,
    data: &Result<Patient, String>,
    nodes: &[Result<Patient, String>],
) -> Vec<Finding> {
    let mut running: HashMap<&str, &ProxyModes> = HashMap::new();
    for modes in nodes.iter().flatten().flat_map(|node| &node.modes) {
        let known = running.entry(&modes.id).or_insert(modes);
        if modes.sequence > known.sequence {
            *known = modes;
        }
    }
    let file = "this configuration";
    let file = ProxyModes {
        replication_id: data.as_ref().map_or("", |data| data.field("master_replid")).to_owned(),
        ..ProxyModes::new("", file, &config.data.to_string(), &config.adopt.rules)
    };
    let mut all: Vec<&ProxyModes> = running.into_values().collect();
    all.sort_by_key(|modes| &modes.name);
    all.insert(0, &file);
    let mut findings = Vec::new();
    for (at, one) in all.iter().enumerate() {
        for conflict in all[at + 1..].iter().flat_map(|other| one.conflicts(other)) {
            let ModeConflict { keys, here, there, name, .. } = conflict;
            let what = format!(
                "'{keys}' is {} in {} and {} in {name}: a lock may be granted twice",
                here.as_str(),
                one.name,
                there.as_str(),
            );
            let advice = "Two proxies may be one step apart, and never two: step one of them.";
            findings.push(Finding::minor(what, advice));
        }
    }
    findings.truncate(MAX_APART);
    findings
}

/// Tries, as the proxy's user, what the rules in mode bridge need of the data node. There are no
/// findings if the data node does not answer.
async fn bridging(config: &Config, data: &DataNode) -> Vec<Finding> {
    let bridged: Vec<&AdoptRule> =
        config.adopt.rules.iter().filter(|rule| rule.mode == AdoptMode::Bridge).collect();
    if bridged.is_empty() {
        return Vec::new();
    }
    let mut findings = Vec::new();
    let trying = async {
        let (_, mut connection) = data.ask().await?;
        for rule in bridged {
            let Some(key) = rule.keys.example(TRIAL_NAME) else { continue };
            let failures = bridge::try_commands(&mut connection.redis, &key).await?;
            findings.extend(unbridged(rule, &key, &failures));
        }
        Ok::<(), RedisError>(())
    };
    let _ = timeout(LIMIT, trying).await;
    findings
}

/// Findings about a bridged rule, of which these commands fail.
fn unbridged(rule: &AdoptRule, key: &[u8], failures: &[CommandFailure]) -> Vec<Finding> {
    let keys = rule.keys.as_str();
    let (refused, broken): (Vec<_>, Vec<_>) =
        failures.iter().partition(|failure| failure.is_refusal());
    let mut findings = Vec::new();
    if !refused.is_empty() {
        let names: Vec<String> = refused.iter().map(|failure| name(&failure.command)).collect();
        let what = format!(
            "the proxy's user lacks what mode: bridge needs on '{keys}': {} (tried on '{}')",
            names.join(", "),
            String::from_utf8_lossy(key),
        );
        let needed: Vec<String> =
            bridge::NEEDED.iter().map(|command| format!("+{command}")).collect();
        let advice = format!(
            "Allow the user in data ~{keys} {} (ACL SETUSER); until then no lock of these keys is granted.",
            needed.join(" ")
        );
        findings.push(Finding::grave(what, advice));
    }
    for CommandFailure { command, error } in broken {
        let what = format!("mode: bridge cannot use {} on '{keys}': {error}", name(command));
        findings.push(Finding::grave(what, "Until that works no lock of these keys is granted."));
    }
    findings
}

/// A failed command as it is told.
fn name(command: &str) -> String {
    if command == "keys" { "the keys".into() } else { command.to_ascii_uppercase() }
}

/// Finding about a server that closes idle connections.
fn idle(patient: &Patient, name: &str) -> Option<Finding> {
    let advice = if name == "data node" {
        "Clients that wait for a lock or hold one are kept alive; others find their connection closed, as by Redis itself. CONFIG SET timeout 0 if they should not; tcp-keepalive finds dead clients."
    } else {
        "Its connection is made anew each time. CONFIG SET timeout 0; tcp-keepalive finds dead clients."
    };
    let what = format!("it closes connections that are idle for {} s (timeout)", patient.timeout);
    (patient.timeout > 0).then(|| Finding::minor(what, advice))
}

/// Findings about a lock node that is the only one, or is the data node too.
fn alone_or_shared(
    config: &Config,
    node: &LockNode,
    patient: &Patient,
    (tenure, data): (Option<&Tenure>, &Result<Patient, String>),
) -> Vec<Finding> {
    let mut findings = Vec::new();
    if config.locks.nodes.len() == 1 {
        let what = "it is the only lock node: when it fails or is restarted, locks stop";
        findings.push(Finding::minor(what, "Fine for trying. Else name 3, 5 or 7 in locks.nodes."));
    }
    let run_id = patient.field("run_id");
    let is_there =
        |tenure: &Tenure| node.fixed().is_some_and(|url| tenure.url.endpoint == url.endpoint);
    let is_data = tenure.is_some_and(is_there)
        || !run_id.is_empty() && data.as_ref().is_ok_and(|data| data.field("run_id") == run_id);
    if is_data {
        let what = SHARED_WITH_DATA.replace("{}", &node.to_string());
        findings.push(Finding::minor(what, "Else give locks a Redis of their own."));
    }
    findings
}

/// Finding about replicas and Sentinels: they change the replication id by which a lock node is
/// known.
fn replication(patient: &Patient) -> Option<Finding> {
    let replicas: u64 = patient.field("connected_slaves").parse().unwrap_or(0);
    let (what, when) = match (replicas, patient.sentinels) {
        (0, 0) => return None,
        (_, 0) => (format!("it has replicas ({replicas})"), ""),
        (_, sentinels) => {
            (format!("Sentinels watch it ({sentinels})"), "at each failover, which they make, ")
        }
    };
    let what = format!(
        "{what}: its replication id changes {when}when a first replica comes, an hour after the last \
         has left (repl-backlog-ttl), and when a replica is promoted; it then waits before it votes"
    );
    Some(Finding::minor(what, "A lock node needs no replicas: what it votes is its own."))
}

fn summary(patient: &Result<Patient, String>) -> String {
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

fn unreachable(error: &str) -> Finding {
    let advice = if error.contains("DENIED") {
        "Give it a password (requirepass, or a user by ACL SETUSER), or bind it to an address that only proxies reach and set protected-mode no."
    } else if error.contains("NOAUTH") || error.contains("WRONGPASS") || error.contains("password")
    {
        "Put user and password into its URL: redis://user:${PASSWORD}@host:port."
    } else if error.contains("unknown command 'INFO'") {
        "INFO has another name there (rename-command): LOCKGATE and doctor need it. Leave it its name, and take it from users by an ACL."
    } else if error.contains("no permissions") {
        "The ACL user needs ~lock:* ~lockgate:* &lockgate:*, and +@connection +@scripting +@pubsub +info +time +get +set +del +pttl +pexpire."
    } else {
        "Is it running, is the address right, and does a firewall stand between?"
    };
    Finding::grave(error, advice)
}

/// Finding about a data node that is followed, if none was found.
fn not_found(error: &str, config: &Config) -> Finding {
    let advice = match &config.data {
        _ if error.contains("ROLE is asked with") => {
            "Give data the user and password of a user of that Redis that may ROLE; clients authenticate \
             themselves."
        }
        DataConfig::Sentinels(_) if error.contains("must name one master") => {
            "A majority of all Sentinels in data.sentinels must answer, and name the same master."
        }
        DataConfig::Sentinels(_) => {
            "Sentinels name it until they have promoted another: is a failover under way, and can that \
             address be reached from here (sentinel announce-ip, replica-announce-ip)?"
        }
        DataConfig::Cluster(_) => "No node of the cluster has told of it.",
        _ => "The name in data.primary must lead to a Redis that says role:master.",
    };
    Finding::grave(error, advice)
}

/// Asks each Sentinel. Returns a line for each with what is wrong with it, and how many things there
/// are to look at if they agree upon a master. Returns `None` if there are no Sentinels.
async fn sentinels(config: &Config) -> Option<(String, usize)> {
    let DataConfig::Sentinels(master) = &config.data else { return None };
    let way = data::sentinel_connector(&config.tls, &master.sentinels);
    let (named, troubles) = sentinel::ask_once(master, &way, false).await;
    let mut report = String::new();
    for url in &master.sentinels {
        let trouble = troubles.iter().find(|(other, _)| other == url).map(|(_, trouble)| trouble);
        // Writing to a String cannot fail.
        let _ = match (trouble, &named) {
            (None, Ok(named)) => writeln!(report, "sentinel  {url}  names {}", named.address),
            (None, Err(_)) => writeln!(report, "sentinel  {url}  names what no majority names"),
            (Some(trouble), _) => {
                let mark = if named.is_err() { "!!" } else { " -" };
                let (what, advice) = (&trouble.what, trouble.fault.advice());
                writeln!(report, "sentinel  {url}\n  {mark} {what}\n     {advice}")
            }
        };
    }
    let minor = if named.is_ok() { troubles.len() } else { 0 };
    Some((report, minor))
}

/// Examines the shards of a cluster that votes. Returns a line for each with what is wrong with it,
/// how many of them are not fit, how many things there are to look at, and whether all of them wait.
async fn shards(
    of: &LockCluster,
    config: &Config,
    way: &Connector,
    name: &str,
) -> (String, usize, usize, bool) {
    let mut report = String::new();
    let (mut grave, mut minor, mut waiting) = (0, 0, 0);
    let mut tell = |title: String, findings: Vec<Finding>| {
        // Writing to a String cannot fail.
        let _ = writeln!(report, "{title}");
        for finding in &findings {
            let mark = if finding.is_grave { "!!" } else { " -" };
            let _ = writeln!(report, "  {mark} {}\n     {}", finding.what, finding.advice);
        }
        grave += usize::from(findings.iter().any(|finding| finding.is_grave));
        minor += findings.iter().filter(|finding| !finding.is_grave).count();
        waiting += usize::from(findings.iter().any(|finding| finding.waits));
    };
    let masters = match lock::masters_once(of, &config.locks.tls).await {
        Ok(masters) => masters,
        Err(error) => {
            let advice = "Are its nodes running, with cluster-enabled yes, and does the user may \
                          CLUSTER NODES (+cluster|nodes)?";
            tell(format!("{name}  {}", of.cluster), vec![Finding::grave(error, advice)]);
            return (report, grave, minor, false);
        }
    };
    let mut findings = Vec::new();
    let without = uncovered(&masters);
    if without > 0 {
        let what = format!("{without} slots have no master: no lock in them is granted");
        let advice = "redis-cli --cluster check HOST:PORT says which, --cluster fix assigns them.";
        findings.push(Finding::grave(what, advice));
    }
    if masters.len() > of.shards {
        let what = format!("it has {} shards, and shards is {}", masters.len(), of.shards);
        let advice = "Set shards in all proxies' files to more than there will ever be; then the \
                      deployment is a new one (lockgate init).";
        findings.push(Finding::grave(what, advice));
    }
    if masters.len() < 3 {
        let what =
            format!("of {} masters none is replaced by a replica when it fails", masters.len());
        findings.push(Finding::minor(what, "A cluster that fails over has three masters or more."));
    }
    tell(format!("{name}  {}  {} shards", of.cluster, masters.len()), findings);
    for master in &masters {
        let url = of.cluster.at(&master.host, master.port);
        let patient = examine(&url, way, true).await;
        let findings = match &patient {
            Err(error) => vec![unreachable(error)],
            Ok(patient) => {
                let faults = lock::faults_of(|name| patient.field(name)).into_iter();
                let faults = faults.filter(|fault| *fault != Fault::Cluster).map(of_fault);
                let unwatched = patient.clock.is_none().then(|| of_fault(Fault::Unwatched));
                let marked = marked(&config.locks, way, &url, &master.slots).await;
                faults.chain(unwatched).chain(marked).chain(idle(patient, "lock node")).collect()
            }
        };
        tell(format!("{name}  {url}  {}", summary(&patient)), findings);
    }
    (report, grave, minor, waiting == masters.len())
}

/// Finding about the markers on a shard that has these slots.
async fn marked(
    locks: &LocksConfig,
    way: &Connector,
    url: &RedisUrl,
    slots: &[(u16, u16)],
) -> Option<Finding> {
    let asking = async {
        let mut connection = redis_client::connect(url, way).await.ok()?;
        lock::diagnose_shard(locks, &mut connection, slots).await
    };
    let (fault, what) = timeout(LIMIT, asking).await.ok()??;
    Some(of_marker(fault, what))
}

/// Asks the nodes of a cluster for it, and examines each. Returns a line for each front with what is wrong
/// with its node, and how many nodes are not fit and how many things there are to look at. Returns `None`
/// if there is no cluster.
async fn cluster(config: &Config, data: &Arc<DataNode>) -> Option<(String, usize, usize)> {
    let (summary, troubles) = data.cluster()?;
    let mut report = String::new();
    // Writing to a String cannot fail.
    let _ = writeln!(report, "{}  {summary}", config.data);
    let is_grave = |trouble: &&ClusterTrouble| trouble.fault.is_grave();
    for ClusterTrouble { fault, what } in &troubles {
        let mark = if fault.is_grave() { "!!" } else { " -" };
        let _ = writeln!(report, "  {mark} {what}\n     {}", fault.advice());
    }
    let mut grave = usize::from(troubles.iter().any(|trouble| trouble.fault.is_grave()));
    let mut minor = troubles.iter().filter(|trouble| !is_grave(trouble)).count();
    let fronts = config.listen.iter().enumerate();
    let led =
        fronts.filter_map(|(index, front)| Some((front.address, data.front(index).tenure()?)));
    let asking: Vec<_> = led
        .map(|(front, tenure)| {
            let (url, way) = (tenure.url.clone(), data.connector().clone());
            let asking = tokio::spawn(async move { examine(&url, &way, false).await });
            (front, tenure, asking)
        })
        .collect();
    for (front, tenure, asking) in asking {
        let patient = asking.await.unwrap_or_else(|error| Err(error.to_string()));
        let findings: Vec<Finding> = match &patient {
            Err(error) if error.contains("no permissions") => Vec::new(),
            Err(error) => vec![unreachable(error)],
            Ok(patient) => {
                let mut findings: Vec<Finding> =
                    idle(patient, "data node").into_iter().chain(renamed(patient)).collect();
                if patient.field("role") == "master" {
                    findings.extend(replicas(config, patient, 0));
                }
                findings
            }
        };
        let _ = writeln!(report, "front {front}  {}  {}", tenure.url, self::summary(&patient));
        for finding in &findings {
            let mark = if finding.is_grave { "!!" } else { " -" };
            let _ = writeln!(report, "  {mark} {}\n     {}", finding.what, finding.advice);
        }
        grave += usize::from(findings.iter().any(|finding| finding.is_grave));
        minor += findings.iter().filter(|finding| !finding.is_grave).count();
    }
    Some((report, grave, minor))
}

/// Counts the replicas that Sentinels may promote, those that are away included. Returns 0 if there
/// are no Sentinels, or none answers.
async fn replicas_known(config: &Config) -> usize {
    let DataConfig::Sentinels(master) = &config.data else { return 0 };
    let SentinelMaster { sentinels, master: name, .. } = master;
    let way = data::sentinel_connector(&config.tls, sentinels);
    let mut most = 0;
    for url in sentinels {
        let asking = async {
            let mut connection = redis_client::connect(url, &way).await?;
            let mut question = redis::cmd("SENTINEL");
            question.arg("REPLICAS").arg(name);
            question.query_async::<Vec<HashMap<String, String>>>(&mut connection.redis).await
        };
        let Ok(Ok(replicas)) = timeout(LIMIT, asking).await else { continue };
        let may_be_promoted = |replica: &&HashMap<String, String>| {
            replica.get("slave-priority").is_none_or(|it| it != "0")
        };
        most = most.max(replicas.iter().filter(may_be_promoted).count());
    }
    most
}

/// Findings about a data node whose replicas may lack a fence when one is promoted. `known`: how many
/// replicas Sentinels may promote.
fn replicas(config: &Config, patient: &Patient, known: usize) -> Vec<Finding> {
    let guards = &config.guards;
    let mut findings = Vec::new();
    if !guards.rules.iter().any(|rule| rule.policy == Policy::Enforce) {
        return findings;
    }
    let connected: usize = patient.field("connected_slaves").parse().unwrap_or(0);
    let (wanted, all) = (guards.replicas, connected.max(known));
    let answering = (0..connected).filter(|number| answers(patient, *number)).count();
    if wanted > answering {
        let what = format!(
            "it has {connected} replicas now, of which {answering} acknowledge what they get, and \
             guards.replicas is {wanted}: no lock of a guard is granted"
        );
        let advice = "Bring the replicas back, or set guards.replicas to how many there are.";
        findings.push(Finding::grave(what, advice));
    }
    if wanted < all {
        let what = format!(
            "{all} replicas may be promoted, and guards.replicas is {wanted}: one that lacks the last \
             fence lets a late write in"
        );
        let advice =
            "Set guards.replicas to their number: any of them may be those that acknowledge.";
        findings.push(Finding::minor(what, advice));
    } else if all == 0 && wanted == 0 && config.data.fixed().is_none() {
        let what = "data may become another Redis, and no replica of it is known: what it has not \
                    replicated is lost then, fences too";
        findings.push(Finding::minor(what, "Set guards.replicas to how many there should be."));
    }
    // The field is there only where the setting is.
    if all > 0 && !patient.info.contains_key("min_slaves_good_slaves") {
        let what = "min-replicas-to-write is 0: a master that is cut off from its replicas takes writes \
                    that are lost once one of them is promoted";
        findings.push(Finding::minor(what, "CONFIG SET min-replicas-to-write 1."));
    }
    findings
}

/// Finding about a data node that is one of many.
fn one_of_many(config: &Config, patient: &Patient) -> Option<Finding> {
    let is_one = config.data.cluster().is_none() && patient.field("cluster_enabled") == "1";
    is_one.then(|| {
        let what = "it is a node of a Redis Cluster, and leads clients past the proxy to the others (-MOVED)";
        let advice = "Write data: {cluster: [host:port, …]}, with an address of listen for each node \
                      (docs/cluster.md).";
        match config.guards.enforces() {
            true => Finding::grave(what, advice),
            false => Finding::minor(what, advice),
        }
    })
}

/// Whether a replica has lately acknowledged what the data node has sent it. Each does once a second.
fn answers(patient: &Patient, number: usize) -> bool {
    let (replica, mut is_online, mut lag) = (patient.field(&format!("slave{number}")), false, None);
    for field in replica.split(',') {
        match field.split_once('=') {
            Some(("state", state)) => is_online = state == "online",
            Some(("lag", seconds)) => lag = seconds.parse::<u64>().ok(),
            _ => {}
        }
    }
    is_online && lag.is_some_and(|lag| lag <= MAX_LAG)
}

/// Finding about a data node that knows SET by another name.
fn renamed(patient: &Patient) -> Option<Finding> {
    (patient.field("set_is_unknown") == "1").then(|| {
        Finding::grave(
            "it knows no command SET (rename-command), so that it cannot tell who may lock: LOCK is refused",
            "Leave SET its name, and take it from users by an ACL.",
        )
    })
}

/// Findings about one lock node.
fn diagnose(
    index: usize,
    patient: &Patient,
    nodes: &[Result<Patient, String>],
    locks: &LocksConfig,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    let run_id = patient.field("run_id");
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
    let identity = (run_id, patient.field("master_replid"), patient.election);
    let markers = patient.markers.each_ref().map(Option::as_deref);
    let is_bare = |node: &Result<Patient, String>| {
        node.as_ref().is_ok_and(|node| node.markers.iter().all(Option::is_none))
    };
    if locks.quarantine
        && let Some((fault, what)) = lock::diagnose(locks, index, identity, markers)
    {
        let finding = match fault {
            Fault::Quarantined if nodes.iter().all(is_bare) => Finding::minor(
                "no lock node has a marker, so all of them wait as if they had been restarted",
                "If the deployment is new: lockgate init with this file.",
            ),
            _ => of_marker(fault, what),
        };
        findings.push(Finding { waits: fault == Fault::Quarantined, ..finding });
    }
    if locks.nodes[index].fixed().is_some() {
        findings.extend(replication(patient));
    }
    findings.extend(idle(patient, "lock node"));
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

/// Finding about the marker of a lock node.
fn of_marker(fault: Fault, what: String) -> Finding {
    if fault != Fault::Quarantined {
        return Finding::grave(what, "All proxies need the same locks.nodes and locks.prefix.");
    }
    let advice = "It votes by itself after the longest TTL that was asked for; /readyz says how \
                  long still. Restart one node at a time.";
    Finding { waits: true, ..Finding::minor(what, advice) }
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
        Fault::Cluster => {
            "Write {cluster: [host:port, …]} in its place in locks.nodes, or use a Redis outside of a \
             cluster (cluster-enabled no)."
        }
        Fault::Unidentified => {
            "Allow the user INFO (ACL SETUSER … +info), or set locks.quarantine: no."
        }
        Fault::Slow => "Set node_timeout to some ten round trips, or move it nearer.",
        Fault::Unwatched => "Allow the user TIME (ACL SETUSER … +time).",
        Fault::Unconfirmed => "Let the proxy reach a majority of its Sentinels.",
        Fault::Quarantined
        | Fault::ProtectedMode
        | Fault::Auth
        | Fault::Garbage
        | Fault::Clock
        | Fault::Foreign
        | Fault::Disagrees => "See its log.",
    };
    Finding {
        is_grave: !matches!(fault, Fault::Eviction | Fault::Slow | Fault::Unwatched),
        what: fault.meaning().into(),
        advice: advice.into(),
        waits: false,
    }
}

/// Asks one server everything. `votes`: it is a lock node.
async fn examine(url: &RedisUrl, way: &Connector, votes: bool) -> Result<Patient, String> {
    let asking = async {
        let mut connection = redis_client::connect(url, way).await?;
        question(&mut connection.redis, votes).await
    };
    match timeout(LIMIT, asking).await {
        Ok(answer) => answer.map_err(|error: RedisError| error.to_string()),
        Err(_) => Err(format!("no answer within {LIMIT:?}")),
    }
}

async fn question(
    connection: &mut MultiplexedConnection,
    votes: bool,
) -> Result<Patient, RedisError> {
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
    // An ACL may refuse TIME and the next questions: their answers are useful, not needed.
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
    let mut timeout = redis::cmd("CONFIG");
    timeout.arg("GET").arg("timeout");
    let timeout = timeout.query_async::<(String, u64)>(connection).await.map_or(0, |told| told.1);
    let mut sentinels = redis::cmd("PUBSUB");
    sentinels.arg("NUMSUB").arg("__sentinel__:hello");
    let sentinels = sentinels.query_async::<(String, u64)>(connection).await;
    let sentinels = sentinels.map_or(0, |told| told.1);
    // The probe by which LOCK asks whether a client may: a syntax error, found only after the
    // ACL's check.
    let mut set = redis::cmd("SET");
    set.arg("lockgate:doctor").arg("x").arg("NX").arg("XX");
    if let Err(error) = set.query_async::<()>(connection).await
        && error.to_string().contains("unknown command")
    {
        info.insert("set_is_unknown".into(), "1".into());
    }
    let is_cluster = info.get("cluster_enabled").is_some_and(|told| told == "1");
    let mut lying: [Option<String>; 4] = [const { None }; 4];
    let keys = [lock::MARKER, lock::LONGEST, lock::SEATS, lock::OLD_MARKER];
    // The data node's user needs no key of Lockgate's.
    for (found, key) in lying.iter_mut().zip(keys).filter(|_| votes) {
        let asked = redis::cmd("GET").arg(key).query_async(connection).await;
        *found = match asked {
            // Another node may have the key's slot, which is told by itself.
            Err(_) if is_cluster => None,
            told => told?,
        };
    }
    let [first, longest, seats, old] = lying;
    let marker = lock::text_of(first.as_deref(), longest.as_deref(), seats.as_deref());
    let markers = [marker, old];
    let round_trip = (round_trips[ROUND_TRIPS / 2], round_trips[ROUND_TRIPS - 1]);
    let modes = match votes {
        true => redis::cmd("GET").arg(MODES).query_async::<Option<String>>(connection).await,
        false => Ok(None),
    };
    // A user need not have this key.
    let modes = ProxyModes::read_all(&modes.ok().flatten().unwrap_or_default());
    let election = None;
    Ok(Patient { info, markers, election, modes, round_trip, timeout, sentinels, clock })
}

/// The time of day on this machine, in ms since 1970.
fn now_in_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}
