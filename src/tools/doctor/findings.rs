//! What is wrong with a server, by its answers, and what to do about it.

use std::{borrow::Cow, time::Duration};

use super::{
    patient::{NodeList, Patient},
    report::Finding,
};
use crate::{
    bridge::{self, CommandFailure},
    config::{
        AdoptRule, Config, DataConfig, Endpoint, LockNode, Policy, RedisUrl, shared_with_data,
    },
    data::write_refusals::WriteRefusal,
    fleet::{difference::ModeConflict, record::ProxyRecord},
    lock::{self, Fault, NodeRefusal},
    tools::keyspace,
};

/// Most findings about modes that are two steps apart, and most about other differences.
const MAX_APART: usize = 32;

/// How long ago a replica may have acknowledged to count as answering, in seconds.
const MAX_LAG: u64 = 3;

/// The largest difference between two clocks that are both kept by NTP.
const CLOCKS_APART: Duration = Duration::from_secs(1);

/// Returns the record that this configuration makes, then those of the running proxies, ordered by name.
fn fleet<'a>(
    config: &Config,
    data: &Result<Patient, String>,
    nodes: &'a [Result<Patient, String>],
) -> Vec<Cow<'a, ProxyRecord>> {
    let running = ProxyRecord::newest(nodes.iter().flatten().flat_map(|node| &node.fleet));
    let file = ProxyRecord {
        replication_id: data.as_ref().map_or("", |data| data.field("master_replid")).to_owned(),
        ..ProxyRecord::new("", "this configuration", config, lock::longest_grant(config))
    };
    std::iter::once(Cow::Owned(file)).chain(running.into_iter().map(Cow::Borrowed)).collect()
}

/// Finds adopt rules whose modes are two steps apart, among this configuration and the running proxies.
pub(super) fn apart(
    config: &Config,
    data: &Result<Patient, String>,
    nodes: &[Result<Patient, String>],
) -> Vec<Finding> {
    let all = fleet(config, data, nodes);
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
            findings.push(Finding::grave(what, advice));
        }
    }
    findings.truncate(MAX_APART);
    findings
}

/// Finds differences in what all proxies should have alike, among this configuration and the running proxies.
pub(super) fn differing(
    config: &Config,
    data: &Result<Patient, String>,
    nodes: &[Result<Patient, String>],
) -> Vec<Finding> {
    let all = fleet(config, data, nodes);
    let mut findings = Vec::new();
    for (at, one) in all.iter().enumerate() {
        for difference in all[at + 1..].iter().flat_map(|other| one.differences(other)) {
            let advice =
                "Give all proxies over these lock nodes the same guards, adopt rules and locks.";
            findings.push(Finding::minor(difference.sentence(&one.name), advice));
        }
    }
    findings.truncate(MAX_APART);
    findings
}

/// Findings about a bridged rule, for which these commands fail.
pub(super) fn unbridged(rule: &AdoptRule, key: &[u8], failures: &[CommandFailure]) -> Vec<Finding> {
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

/// Finding about the fence that an operator's UNLOCK raises on the data node, for which these commands fail.
pub(super) fn cannot_unlock(failures: &[CommandFailure]) -> Option<Finding> {
    let is_needed = |failure: &&CommandFailure| {
        failure.is_refusal() && ["keys", "eval", "get", "set"].contains(&&*failure.command)
    };
    let lacking: Vec<String> =
        failures.iter().filter(is_needed).map(|failure| name(&failure.command)).collect();
    let what = format!(
        "the proxy's user lacks what an operator's UNLOCK of a lock that guards need sends: {}",
        lacking.join(", ")
    );
    let advice = "Allow the user in data ~lockgate:guard:* +eval +get +set (ACL SETUSER), and +wait with guards.replicas; until then LOCKGATE UNLOCK of such a lock is refused.";
    (!lacking.is_empty()).then(|| Finding::minor(what, advice))
}

/// The name of a failed command for a finding.
fn name(command: &str) -> String {
    if command == "keys" { "the keys".into() } else { command.to_ascii_uppercase() }
}

/// Finding about a server that closes idle connections.
pub(super) fn idle(patient: &Patient, name: &str) -> Option<Finding> {
    let advice = if name == "data node" {
        "Clients that wait for a lock or hold one are kept alive; others find their connection closed, as by Redis itself. CONFIG SET timeout 0 if they should not; tcp-keepalive finds dead clients."
    } else {
        "Its connection is made anew each time. CONFIG SET timeout 0; tcp-keepalive finds dead clients."
    };
    let what = format!("it closes connections that are idle for {} s (timeout)", patient.timeout);
    (patient.timeout > 0).then(|| Finding::minor(what, advice))
}

/// The known Redis servers that are the data node.
#[derive(Default)]
pub(super) struct KnownDataNodes {
    pub(super) endpoints: Vec<Endpoint>,
    pub(super) run_ids: Vec<String>,
}

impl KnownDataNodes {
    /// Adds a server by its run id.
    pub(super) fn add(&mut self, patient: &Patient) {
        self.run_ids.push(patient.field("run_id").to_owned());
    }

    /// Whether this server is one of them.
    pub(super) fn have(&self, url: Option<&RedisUrl>, patient: &Patient) -> bool {
        let run_id = patient.field("run_id");
        url.is_some_and(|url| self.endpoints.iter().any(|known| known.is_same(&url.endpoint)))
            || !run_id.is_empty() && self.run_ids.iter().any(|known| known == run_id)
    }
}

/// Finding about a lock node of the list with this key that is the data node too.
pub(super) fn shared(node: &LockNode, key: &str) -> Finding {
    Finding::minor(shared_with_data(node, key), "Else give locks a Redis of their own.")
}

/// Findings about a lock node that is the only one, or is the data node too.
pub(super) fn alone_or_shared(
    list: &NodeList<'_>,
    index: usize,
    patient: &Patient,
    data: &KnownDataNodes,
) -> Vec<Finding> {
    let (key, node) = (list.key, &list.locks.nodes[index]);
    let mut findings = Vec::new();
    if list.patients.len() == 1 {
        let what = "it is the only lock node: when it fails or is restarted, locks stop";
        let advice = format!("Fine for trying. Else name 3, 5 or 7 in locks.{key}.");
        findings.push(Finding::minor(what, advice));
    }
    if data.have(node.fixed(), patient) {
        findings.push(shared(node, key));
    }
    findings
}

/// Finding about a lock node that `locks.next_nodes` have replaced.
pub(super) fn was_left(patient: &Result<Patient, String>) -> Finding {
    let silent = if patient.is_err() { ", and it does not answer" } else { "" };
    let advice = "Write locks.next_nodes as locks.nodes into all files, without next_nodes; then this one is \
                  not needed any more.";
    Finding::minor(format!("locks.next_nodes have taken its place{silent}"), advice)
}

/// Finding about replicas and Sentinels, which change the replication id by which a lock node is known.
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

/// Advice about a server that cannot be asked, by words in the error. The first match counts.
const WAYS: [(&[&str], &str); 12] = [
    (
        &["DENIED"],
        "Give it a password (requirepass, or a user by ACL SETUSER), or bind it to an address that only proxies reach and set protected-mode no.",
    ),
    (
        &["WRONGPASS", "authentication failed", "invalid password", "AuthenticationFailed"],
        "The user or the password in its URL, or in password_file, is not the right one: redis://user:${PASSWORD}@host:port (ACL LIST there has the users).",
    ),
    (
        &["NOAUTH", "password"],
        "Put user and password into its URL: redis://user:${PASSWORD}@host:port.",
    ),
    (
        &["unknown command 'INFO'"],
        "INFO has another name there (rename-command): LOCKGATE and doctor need it. Leave it its name, and take it from users by an ACL.",
    ),
    (
        &["no permissions"],
        "The ACL user needs ~lock:* ~lockgate:* &lockgate:*, and +@connection +@scripting +@pubsub +info +time +get +set +del +pttl +pexpire; with locks.shared also +exists +pexpireat +zadd +zcount +zrange +zrangebyscore +zrem +zremrangebyscore +zrevrange +zscore.",
    ),
    (
        &["certificate has expired", "certificate is not valid yet"],
        "Renew the certificate of that server; or is the clock of this machine wrong?",
    ),
    (
        &["not signed by a CA", "a CA's own"],
        "Name the CA that has signed that server's certificate: ca_cert_file in tls, or in locks.tls for lock nodes.",
    ),
    (
        &["what came is not TLS", "TLS handshake timed out"],
        "Does it speak TLS at that port (tls-port)? Without TLS its URL begins with redis://.",
    ),
    (
        &["wants a certificate"],
        "It asks its clients for a certificate (tls-auth-clients): name one by cert_file and key_file in tls, or in locks.tls for lock nodes; or set tls-auth-clients no there.",
    ),
    (
        &["refuses the certificate"],
        "That server must trust the CA that has signed cert_file of tls, or of locks.tls for lock nodes (tls-ca-cert-file there), and the certificate must not have expired.",
    ),
    (
        &["TLS:"],
        "See tls, or locks.tls for lock nodes: server_name where the certificate is for another name, cert_file and key_file where it asks for one.",
    ),
    (
        &["reset by peer", "broken pipe", "Broken pipe", "unexpected end of file"],
        "It takes connections and closes them: at a port for TLS (tls-port) its URL begins with rediss://; else see maxclients there, and its log.",
    ),
];

/// Returns the advice about a server that cannot be asked.
fn way_advice(error: &str) -> &'static str {
    let known = WAYS.iter().find(|(words, _)| words.iter().any(|word| error.contains(word)));
    known.map_or(
        "Is it running, is the address right, and does a firewall stand between?",
        |(_, advice)| advice,
    )
}

/// Finding about a server that cannot be asked.
pub(super) fn unreachable(error: &str) -> Finding {
    // The client library puts the first word in quotation marks.
    let word = error.trim_start_matches('"').split(['"', ' ']).next().unwrap_or_default();
    if let Some(refusal) = WriteRefusal::of(word.as_bytes()) {
        return Finding::grave(error, sentence(refusal.advice()));
    }
    Finding::grave(error, way_advice(error))
}

/// Finding about a followed data node that was not found.
pub(super) fn not_found(error: &str, config: &Config) -> Finding {
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

/// Findings about a data node whose replicas may lack a fence when one is promoted. `known` is the number of
/// replicas that Sentinels may promote.
pub(super) fn replicas(config: &Config, patient: &Patient, known: usize) -> Vec<Finding> {
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
    // INFO has the field only if min-replicas-to-write is set.
    if all > 0 && !patient.info.contains_key("min_slaves_good_slaves") {
        let what = "min-replicas-to-write is 0: a master that is cut off from its replicas takes writes \
                    that are lost once one of them is promoted";
        findings.push(Finding::minor(what, "CONFIG SET min-replicas-to-write 1."));
    }
    findings
}

/// Finding about a data node that is a node of a cluster, although `data` is no cluster.
pub(super) fn one_of_many(config: &Config, patient: &Patient) -> Option<Finding> {
    let is_one = config.data.cluster().is_none() && patient.field("cluster_enabled") == "1";
    is_one.then(|| {
        let what = "it is a node of a Redis Cluster, and leads clients past the proxy to the others (-MOVED)";
        let advice = "Write data: {cluster: [host:port, …]}, with an address of listen for each node \
                      (docs/moving-data-node.md).";
        match config.guards.enforces() {
            true => Finding::grave(what, advice),
            false => Finding::minor(what, advice),
        }
    })
}

/// Whether the replica of this number has acknowledged lately. Replicas do so once a second.
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
pub(super) fn renamed(patient: &Patient) -> Option<Finding> {
    (patient.field("set_is_unknown") == "1").then(|| {
        Finding::grave(
            "it knows no command SET (rename-command), so that it cannot tell who may lock: LOCK is refused",
            "Leave SET its name, and take it from users by an ACL.",
        )
    })
}

/// Finding about a data node that refuses writes.
pub(super) fn refuses(patient: &Patient) -> Option<Finding> {
    let (refusal, words) = patient.data_refusal.as_ref()?;
    let words = words.trim_end_matches('.');
    let what = format!("it refuses writes: {words}; LOCK of guards' locks fails too");
    Some(Finding::grave(what, sentence(refusal.advice())))
}

/// Finding about a lock node that carries out nothing that locks need.
pub(super) fn refuses_locks(patient: &Patient) -> Option<Finding> {
    let NodeRefusal { fault, error } = patient.refusal.as_ref()?;
    let what = match fault {
        Fault::Auth => format!("it allows the user too little: {error}"),
        _ => format!("it refuses writes: {error}"),
    };
    Some(Finding { what, ..of_fault(*fault) })
}

/// Makes half a sentence a whole one.
fn sentence(half: &str) -> String {
    let mut letters = half.chars();
    let first = letters.next().map(|first| first.to_ascii_uppercase());
    first.into_iter().chain(letters).chain(['.']).collect()
}

/// Finding about a lock node that the running proxy is to leave alone.
pub(super) fn paused(address: &str) -> Finding {
    let what = "an operator has the running proxy ask it for no new locks (LOCKGATE NODE)";
    let advice = format!("When the maintenance is over: LOCKGATE NODE {address} RESUME.");
    Finding { waits: true, ..Finding::minor(what, advice) }
}

/// Findings about one lock node.
pub(super) fn diagnose(index: usize, patient: &Patient, list: &NodeList<'_>) -> Vec<Finding> {
    let (locks, nodes) = (list.locks, list.patients);
    let mut findings = Vec::new();
    let run_id = patient.field("run_id");
    let same = |node: &Result<Patient, String>| {
        node.as_ref().is_ok_and(|node| !run_id.is_empty() && node.field("run_id") == run_id)
    };
    for fault in lock::faults_of(|name| patient.field(name)) {
        // Without a limit of memory nothing is evicted.
        let evicts = fault == Fault::Eviction && !matches!(patient.field("maxmemory"), "0" | "");
        let finding = of_fault(fault);
        findings.push(Finding { is_grave: finding.is_grave || evicts, ..finding });
    }
    findings.extend(refuses_locks(patient));
    let is_to_change = list.key == "next_nodes" || !locks.next_nodes.is_empty();
    if is_to_change && let Some(words) = &patient.hides_keys {
        let what = format!("lockgate nodes --change cannot list its locks: {words}");
        findings.push(Finding::minor(what, "Allow the user SCAN (ACL SETUSER … +scan)."));
    }
    if run_id.is_empty() && locks.quarantine {
        findings.push(of_fault(Fault::Unidentified));
    }
    if !locks.allow_shared_instance && nodes[..index].iter().any(same) {
        findings.push(of_fault(Fault::SharedInstance));
    }
    findings.extend(match list.to_come {
        Some(known) => known.get(index).and_then(|node| node.foreign.as_deref()).map(foreign),
        None => marked(index, patient, list),
    });
    if locks.nodes[index].fixed().is_some() {
        findings.extend(replication(patient));
    }
    findings.extend(keyspace::shared_with_keys(patient.foreign_keys).map(|what| {
        let advice = "Meant so? Else give locks a Redis of their own: FLUSHALL there forgets them, and slow commands \
                      delay their votes.";
        Finding::minor(what, advice)
    }));
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
    findings.extend(late(patient.round_trip.0, locks.node_timeout));
    if patient.field("loading") == "1" {
        findings.push(Finding::minor("it is loading its data", "Wait."));
    }
    findings
}

/// Finding about a lock node whose votes come too late to count, or nearly so.
fn late(round_trip: Duration, node_timeout: Duration) -> Option<Finding> {
    if round_trip > node_timeout {
        let what = format!(
            "from here a round trip takes {} ms, more than locks.node_timeout ({node_timeout:?}): its votes come too late to count",
            round_trip.as_millis()
        );
        return Some(Finding { is_grave: true, what, ..of_fault(Fault::Slow) });
    }
    (round_trip * 2 > node_timeout).then(|| {
        let what =
            format!("a round trip takes more than half of locks.node_timeout ({node_timeout:?})");
        Finding::minor(what, "Set node_timeout to some ten round trips, or move it nearer.")
    })
}

/// Returns the deployment to which more than half of the list's nodes belong.
fn deployment_of(list: &NodeList<'_>) -> Option<String> {
    let named = |patient: &Result<Patient, String>| {
        lock::deployment_named(patient.as_ref().ok()?.marker.as_deref()?)
    };
    let ids: Vec<String> = list.patients.iter().filter_map(named).collect();
    let is_ours =
        |id: &&String| ids.iter().filter(|other| other == id).count() > list.patients.len() / 2;
    ids.iter().find(is_ours).cloned()
}

/// Finding about the marker of a lock node in the list that votes.
fn marked(index: usize, patient: &Patient, list: &NodeList<'_>) -> Option<Finding> {
    let identity = (patient.field("run_id"), patient.field("master_replid"), patient.election);
    let is_bare =
        |node: &Result<Patient, String>| node.as_ref().is_ok_and(|node| node.marker.is_none());
    let locks = Some(list.locks).filter(|locks| locks.quarantine)?;
    let ours = deployment_of(list);
    let marker = patient.marker.as_deref();
    let (fault, what) = lock::diagnose(locks, index, identity, marker, ours.as_deref())?;
    let all_bare = fault == Fault::Quarantined && list.patients.iter().all(is_bare);
    let finding = match fault {
        _ if all_bare && !locks.next_nodes.is_empty() => Finding::grave(
            "no lock node of this list has a marker, and others are to take their place: none votes, as nobody knows \
             whether those have",
            "Where they have not: take locks.next_nodes out of the file, and send SIGHUP. Where the deployment is new: \
             lockgate init with this file.",
        ),
        _ if all_bare => Finding::minor(
            "no lock node has a marker, so all of them wait as if they had been restarted",
            "If the deployment is new: lockgate init with this file.",
        ),
        _ => of_marker(fault, what),
    };
    Some(Finding { waits: fault == Fault::Quarantined, ..finding })
}

/// Finding about a node of `locks.next_nodes` that cannot become a lock node as it is.
fn foreign(what: &str) -> Finding {
    Finding::grave(format!("it {what}"), "Until then lockgate nodes --change changes nothing.")
}

/// Finding about the marker of a lock node.
pub(super) fn of_marker(fault: Fault, what: String) -> Finding {
    if fault == Fault::Changing {
        return Finding { what, ..of_fault(fault) };
    }
    if fault != Fault::Quarantined {
        return Finding::grave(what, "All proxies need the same locks.nodes and locks.prefix.");
    }
    let advice = "It votes by itself after the longest TTL that was asked for; /readyz says how \
                  long still. Restart one node at a time.";
    Finding { waits: true, ..Finding::minor(what, advice) }
}

pub(super) fn of_fault(fault: Fault) -> Finding {
    let advice = match fault {
        Fault::Changing => {
            "lockgate nodes FILE says how far that is, with those other nodes as locks.next_nodes in the file."
        }
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
        Fault::Refuses => "Make room on its disk, raise maxmemory, or bring its replicas back.",
        Fault::Auth => {
            "Allow the user what config/lockgate.yaml says at locks.nodes (ACL SETUSER …)."
        }
        Fault::Unwatched => "Allow the user TIME (ACL SETUSER … +time).",
        Fault::Unconfirmed => {
            "Let the proxy reach a majority of its Sentinels, or of its cluster's masters."
        }
        Fault::Quarantined
        | Fault::Paused
        | Fault::ProtectedMode
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
