//! `lockgate doctor`: looks at every Redis that a configuration names, once and from this machine, and says
//! what is wrong and what to do about it. It changes nothing.
//!
//! - `patient`: asks one server.
//! - `findings`: what is wrong with it.
//! - `here`: what is wrong on this machine.
//! - `running`: asks the running proxy of this configuration what it sees; `pinning`: which of its clients do not share
//!   connections to the data node.
//! - `sharing_rights`: what readers of locks need of a lock node.
//! - `report`: the findings as text and as JSON.

mod findings;
mod here;
mod patient;
mod pinning;
mod report;
mod running;
mod sharing_rights;

use std::{collections::HashMap, sync::Arc};

use anyhow::bail;
use bb8_redis::redis::{self, RedisError};
use tokio::{task::JoinHandle, time::timeout};

use self::{
    findings::{
        KnownDataNodes, alone_or_shared, apart, cannot_unlock, diagnose, differing, idle,
        not_found, of_fault, of_marker, one_of_many, paused, refuses, refuses_locks, renamed,
        replicas, shared, unbridged, unreachable, was_left,
    },
    patient::{LIMIT, NodeList, Patient, examine, summary},
    report::{Examined, Finding, Report},
};
use super::say::say;
use crate::{
    bridge,
    cluster::{
        cluster_node::ClusterNode,
        trouble::{ClusterFault, ClusterTrouble},
        view::uncovered,
    },
    config::{
        AdoptMode, AdoptRule, Config, ConfigErrors, DataConfig, LockCluster, LockNode, LocksConfig,
        RedisUrl, SentinelMaster,
    },
    data::{self, DataNode, Tenure},
    fleet::record::RECORDS,
    lock::{self, Fault, SetNow, ShardsOnce},
    net::{Connector, redis_client},
    sentinel,
    server::Exposure,
};

/// The text for each star in the key on which mode bridge is tried. No client can LOCK such a name.
const TRIAL_NAME: &str = "lockgate:doctor";
/// A key as fences have, of no lock that a client can name.
const FENCE_TRIAL: &[u8] = b"lockgate:guard:lockgate:doctor";

/// Examines every Redis of the configuration, and prints the findings.
///
/// # Errors
/// If anything grave was found.
pub fn run(config: &Config, as_json: bool) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let report = runtime.block_on(examine_all(config));
    runtime.shutdown_background();
    match as_json {
        true => say(format_args!("{:#}", report.json())),
        false => say(report.to_string().trim_end()),
    }
    match report.grave() {
        0 => Ok(()),
        _ => bail!("not fit: {}", report.unfit()),
    }
}

/// Prints, for programs, that nothing was examined because the configuration cannot be used.
pub fn tell_unusable(errors: &ConfigErrors) {
    say(format_args!("{:#}", report::unusable(errors)));
}

/// Examines all servers that the configuration names, and what is here.
async fn examine_all(config: &Config) -> Report {
    let locks = &config.locks;
    let data_node = DataNode::start(config);
    let to_nodes = lock::connector_to_nodes(locks);
    let asking = ask_lock_nodes(locks, &to_nodes);
    let found = data_node.found(LIMIT).await;
    let data = match &found {
        Some(tenure) => examine(&tenure.url, data_node.connector(), None).await,
        None => Err(data_node.problem().unwrap_or_default()),
    };
    let mut patients = Vec::new();
    for asked in asking {
        patients.push(asked.await.unwrap_or_else(|error| Err(error.to_string())));
    }
    let findings = of_data_node(config, &data_node, &data, found.is_some()).await;
    let name = |tenure: &Arc<Tenure>| tenure.url.to_string();
    let url = found.as_ref().map_or_else(|| data_node.to_string(), name);
    let mut servers = KnownDataNodes::default();
    servers.endpoints.extend(data_node.all().iter().map(|tenure| tenure.url.endpoint.clone()));
    if let Ok(patient) = &data {
        servers.add(patient);
    }
    let mut all = cluster(config, &data_node, &mut servers).await;
    all.extend(sentinels(config).await);
    let (running, paused) = running::proxy(config).await.unzip();
    all.extend(here::lockgate(config, running.is_some()));
    all.extend(running.into_iter().flatten());
    let paused = paused.unwrap_or_default();
    all.push(Examined::server("data node", url, summary(&data), findings));

    let next = locks.next();
    let change = match next.is_some() {
        true => lock::status(locks).await.ok(),
        false => None,
    };
    let were_left = change.as_ref().is_some_and(|change| change.now == SetNow::NextNodes);
    let (nodes, coming) = patients.split_at(locks.nodes.len());
    let now = NodeList { key: "nodes", locks, patients: nodes, to_come: None };
    let to_come = change.as_ref().filter(|_| !were_left).map(|change| &change.next_nodes[..]);
    let later = next.as_ref().map(|locks| {
        let to_come = (!were_left).then_some(to_come.unwrap_or_default());
        NodeList { key: "next_nodes", locks, patients: coming, to_come }
    });
    let voting = later.as_ref().filter(|_| were_left).unwrap_or(&now);
    let mut waiting = 0;
    let (to_nodes, servers) = (&to_nodes, &servers);
    let here = Surroundings { config, to_nodes, servers, paused: &paused, were_left };
    for (list, is_next) in [(Some(&now), false), (later.as_ref(), true)] {
        if let Some(list) = list {
            let (examined, of_list) = of_lock_nodes(&here, list, is_next).await;
            all.extend(examined);
            waiting += of_list;
        }
    }
    all.extend(of_settings(config, &data, voting.patients));
    Report { all, nodes: voting.patients.len(), waiting }
}

/// Begins to examine the lock nodes of both lists, one after the other.
fn ask_lock_nodes(
    locks: &LocksConfig,
    to_nodes: &Connector,
) -> Vec<JoinHandle<Result<Patient, String>>> {
    let both = locks.nodes.iter().chain(&locks.next_nodes);
    both.map(|node| (node.clone(), to_nodes.clone(), locks.tls.clone(), locks.prefix.clone()))
        .map(|(node, way, tls, prefix)| {
            tokio::spawn(async move {
                let there = lock::locate(&node, &tls, RECORDS).await?;
                let patient = examine(&there.url, &way, Some(&prefix)).await?;
                Ok(Patient { election: there.election, ..patient })
            })
        })
        .collect()
}

/// Findings about the data node. `is_found`: it is known where it is.
async fn of_data_node(
    config: &Config,
    data_node: &Arc<DataNode>,
    data: &Result<Patient, String>,
    is_found: bool,
) -> Vec<Finding> {
    let exposure = exposure(config, data_node).await;
    let lacking = rights(config, data_node).await;
    let known = replicas_known(config).await;
    match data {
        Err(error) if error.contains("no permissions") => {
            // Clients are served with their own users' permissions.
            let advice = "doctor cannot examine it; for that the user in data needs INFO and PING.";
            let mut findings = vec![Finding::minor(error, advice)];
            findings.extend_from_slice(&lacking);
            findings
        }
        Err(error) if !is_found => vec![not_found(error, config)],
        Err(error) => vec![unreachable(error)],
        Ok(patient) => {
            let mut findings: Vec<Finding> = exposure.iter().cloned().collect();
            findings.extend(idle(patient, "data node"));
            findings.extend(renamed(patient));
            findings.extend(refuses(patient));
            findings.extend(one_of_many(config, patient));
            if config.data.cluster().is_none() {
                findings.extend(replicas(config, patient, known));
            }
            findings.extend_from_slice(&lacking);
            findings
        }
    }
}

/// What a list of lock nodes is examined against.
struct Surroundings<'a> {
    config: &'a Config,
    to_nodes: &'a Connector,
    /// The servers of the data node.
    servers: &'a KnownDataNodes,
    /// The lock nodes that the running proxy is to leave alone.
    paused: &'a [String],
    /// Whether the nodes of `locks.next_nodes` vote instead of those of `locks.nodes`.
    were_left: bool,
}

/// Examines a list of lock nodes. Returns how many of them only wait, or are paused. `is_next`: it is `locks.next_nodes`.
async fn of_lock_nodes(
    here: &Surroundings<'_>,
    list: &NodeList<'_>,
    is_next: bool,
) -> (Vec<Examined>, usize) {
    let Surroundings { config, to_nodes, servers, paused, were_left } = *here;
    let others = if is_next { &config.locks.nodes } else { &config.locks.next_nodes };
    let (mut all, mut waiting) = (Vec::new(), 0);
    for (index, (node, patient)) in list.locks.nodes.iter().zip(list.patients).enumerate() {
        // A node of both lists is examined once, in the list that votes.
        if is_next != were_left && others.contains(node) {
            continue;
        }
        let part = if is_next { "next lock node" } else { "lock node" };
        let part = format!("{part} {}", index + 1);
        if let LockNode::Cluster(of) = node {
            let is_data = |url: &RedisUrl, patient: &Patient| servers.have(Some(url), patient);
            let (mut shards, has_data) = shards(of, config, to_nodes, &part, is_data).await;
            if has_data {
                shards[0].findings.push(shared(node, list.key));
            }
            if is_next == were_left && paused.contains(&node.to_string()) {
                shards[0].findings.push(self::paused(&node.to_string()));
            }
            let all_wait = shards[1..].iter().all(Examined::waits) && shards.len() > 1;
            waiting += usize::from(all_wait || shards[0].waits());
            all.extend(shards);
            continue;
        }
        let findings = match patient {
            _ if were_left && !is_next => vec![was_left(patient)],
            Err(error) => vec![unreachable(error)],
            Ok(patient) => {
                let mut findings = diagnose(index, patient, list);
                if is_next == were_left && paused.contains(&node.to_string()) {
                    findings.push(self::paused(&node.to_string()));
                }
                waiting += usize::from(findings.iter().any(|finding| finding.waits));
                findings.extend(alone_or_shared(list, index, patient, servers));
                findings.extend(sharing_rights::cannot_share(&config.locks, node, to_nodes).await);
                findings
            }
        };
        all.push(Examined::server(part, node.to_string(), summary(patient), findings));
    }
    (all, waiting)
}

/// Findings about settings: adopt rules of other proxies, promises that are weakened, and what differs in the fleet.
fn of_settings(
    config: &Config,
    data: &Result<Patient, String>,
    voting: &[Result<Patient, String>],
) -> Vec<Examined> {
    let advice = "Meant so? Else take it out of the file: the default weakens nothing.";
    let weakened = config.weakened().into_iter().map(|what| Finding::minor(what, advice));
    let parts = [
        ("adopt", apart(config, data, voting)),
        ("settings", weakened.collect()),
        ("fleet", differing(config, data, voting)),
    ];
    let parts = parts.into_iter().filter(|(_, findings)| !findings.is_empty());
    parts.map(|(part, findings)| Examined::other(part, "", findings)).collect()
}

/// Finds out, as a starting proxy does, whether clients from other machines may connect.
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

/// Tries, as the proxy's user, what the rules in mode bridge and an operator's UNLOCK of a lock that guards need send
/// the data node. Finds nothing if the data node does not answer.
async fn rights(config: &Config, data: &DataNode) -> Vec<Finding> {
    let bridged: Vec<&AdoptRule> =
        config.adopt.rules.iter().filter(|rule| rule.mode == AdoptMode::Bridge).collect();
    // In a cluster the key would have to be in a slot of the node that is asked.
    let unlocks = config.guards.enforces() && config.data.cluster().is_none();
    if bridged.is_empty() && !unlocks {
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
        if unlocks {
            let failures = bridge::try_commands(&mut connection.redis, FENCE_TRIAL).await?;
            findings.extend(cannot_unlock(&failures));
        }
        Ok::<(), RedisError>(())
    };
    let _ = timeout(LIMIT, trying).await;
    findings
}

/// Asks the Sentinels of `data`, if there are any.
async fn sentinels(config: &Config) -> Vec<Examined> {
    let DataConfig::Sentinels(master) = &config.data else { return Vec::new() };
    let way = data::sentinel_connector(&config.tls, &master.sentinels);
    let (named, troubles) = sentinel::ask_once(master, &way, false).await;
    let examined = |url: &RedisUrl| {
        let trouble = troubles.iter().find(|(other, _)| other == url).map(|(_, trouble)| trouble);
        let (summary, findings) = match (trouble, &named) {
            (None, Ok(named)) => (format!("names {}", named.address), Vec::new()),
            (None, Err(_)) => ("names what no majority names".into(), Vec::new()),
            (Some(trouble), _) => {
                let (what, advice) = (trouble.what.clone(), trouble.fault.advice());
                let finding = match named.is_err() {
                    true => Finding::grave(what, advice),
                    false => Finding::minor(what, advice),
                };
                (String::new(), vec![finding])
            }
        };
        Examined { address: url.to_string(), ..Examined::other("sentinel", summary, findings) }
    };
    master.sentinels.iter().map(examined).collect()
}

/// Examines a cluster that votes, then each of its shards. Also returns whether a shard is the data node, by
/// `is_data`.
async fn shards(
    of: &LockCluster,
    config: &Config,
    way: &Connector,
    name: &str,
    is_data: impl Fn(&RedisUrl, &Patient) -> bool,
) -> (Vec<Examined>, bool) {
    let tell = |summary: String, findings| Examined {
        address: of.cluster.to_string(),
        ..Examined::other(name, summary, findings)
    };
    let ShardsOnce { masters, troubles } = match lock::shards_once(of, &config.locks.tls).await {
        Ok(shards) => shards,
        Err(error) => {
            let advice = "Are its nodes running, with cluster-enabled yes, and are user, password and tls \
                          right? The user needs +cluster|nodes.";
            return (vec![tell(String::new(), vec![Finding::grave(error, advice)])], false);
        }
    };
    let finding = |ClusterTrouble { fault, what }: &ClusterTrouble| match fault {
        // A starting proxy would not know which cluster is meant.
        ClusterFault::Foreign => Finding::grave(what, fault.advice()),
        _ => Finding::minor(what, fault.advice()),
    };
    let mut findings: Vec<Finding> = troubles.iter().map(finding).collect();
    let nodes: Vec<ClusterNode> = masters.iter().map(|(node, _)| node.clone()).collect();
    let without = uncovered(&nodes);
    if without > 0 {
        let what = format!("{without} slots have no master: no lock in them is granted");
        let advice = "redis-cli --cluster check HOST:PORT says which, --cluster fix assigns them: locks that \
                      are still held in them may then be granted again.";
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
    let s = if masters.len() == 1 { "" } else { "s" };
    let mut all = vec![tell(format!("{} shard{s}", masters.len()), findings)];
    let mut has_data = false;
    for (master, url) in &masters {
        let patient = examine(url, way, Some(&config.locks.prefix)).await;
        has_data |= patient.as_ref().is_ok_and(|patient| is_data(url, patient));
        let findings = match &patient {
            Err(error) => vec![unreachable(error)],
            Ok(patient) => {
                let faults = lock::faults_of(|name| patient.field(name)).into_iter();
                let faults = faults.filter(|fault| *fault != Fault::Cluster).map(of_fault);
                let unwatched = patient.clock.is_none().then(|| of_fault(Fault::Unwatched));
                let marked = marked(&config.locks, way, url, &master.slots).await;
                let found = unwatched.into_iter().chain(refuses_locks(patient)).chain(marked);
                faults.chain(found).chain(idle(patient, "lock node")).collect()
            }
        };
        all.push(Examined::server(name, url.to_string(), summary(&patient), findings));
    }
    (all, has_data)
}

/// Finding about the markers on a shard with these slots.
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

/// Examines a data cluster as a whole, then the node behind each front, and adds the nodes to `servers`. Returns
/// nothing if the data is not a cluster.
async fn cluster(
    config: &Config,
    data: &Arc<DataNode>,
    servers: &mut KnownDataNodes,
) -> Vec<Examined> {
    let Some((summary, troubles)) = data.cluster() else { return Vec::new() };
    let finding = |ClusterTrouble { fault, what }: &ClusterTrouble| match fault.is_grave() {
        true => Finding::grave(what, fault.advice()),
        false => Finding::minor(what, fault.advice()),
    };
    let findings = troubles.iter().map(finding).collect();
    let mut all = vec![Examined::other(config.data.to_string(), summary, findings)];
    let fronts = config.listen.iter().enumerate();
    let led =
        fronts.filter_map(|(index, front)| Some((front.address, data.front(index).tenure()?)));
    let asking: Vec<_> = led
        .map(|(front, tenure)| {
            let (url, way) = (tenure.url.clone(), data.connector().clone());
            let asking = tokio::spawn(async move { examine(&url, &way, None).await });
            (front, tenure, asking)
        })
        .collect();
    for (front, tenure, asking) in asking {
        let patient = asking.await.unwrap_or_else(|error| Err(error.to_string()));
        if let Ok(patient) = &patient {
            servers.add(patient);
        }
        let findings: Vec<Finding> = match &patient {
            Err(error) if error.contains("no permissions") => Vec::new(),
            Err(error) => vec![unreachable(error)],
            Ok(patient) => {
                let mut findings: Vec<Finding> =
                    idle(patient, "data node").into_iter().chain(renamed(patient)).collect();
                if patient.field("role") == "master" {
                    findings.extend(refuses(patient));
                    findings.extend(replicas(config, patient, 0));
                }
                findings
            }
        };
        let part = format!("front {front}");
        all.push(Examined::server(part, tenure.url.to_string(), self::summary(&patient), findings));
    }
    all
}

/// Counts the replicas that Sentinels may promote, including those that are away. Returns 0 if there are no
/// Sentinels, or none answers.
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
