//! Checks each value by itself, and all values against each other.

use std::{net::SocketAddr, time::Duration};

use super::{
    AdoptMode, Announce, ClientTls, Config, DataConfig, Endpoint, LOG_LEVELS, Listener, LockNode,
    LockNotify, LocksConfig, OTHER_KEYS, RedisUrl, SocketPath,
    permits::check_slots,
    reader::{Reader, Section},
    url::is_same_host,
};

/// `max_ttl` must be at least this many `node_timeout`s (see the engine).
const TIMEOUT_SHARE: u32 = 10;
/// Most patterns of `metrics.keys`, and most bytes of one.
const MAX_METRICS_PATTERNS: usize = 32;
const MAX_METRICS_PATTERN: usize = 256;
/// `drift_factor` must be below this. A larger share would leave no lock worth having.
const MAX_DRIFT: f64 = 0.5;
/// The longest keepalive that Linux takes (MAX_TCP_KEEPIDLE). Linux refuses a longer one, so that every
/// connection would fail.
const LONGEST_KEEPALIVE: Duration = Duration::from_secs(32_767);
/// Redis's own limit for io-threads.
const MAX_THREADS: usize = 128;
/// The longest string that Redis accepts (proto-max-bulk-len), in bytes.
pub(super) const LONGEST_STRING: usize = 512 * 1024 * 1024;
/// The longest path of a socket, in bytes. A socket's address has room for 108 with its final NUL, and
/// `.new` is appended to the path while the socket is made.
const LONGEST_PATH: usize = 100;

// Checks of a value by itself. Each returns `None` if nothing is wrong.

pub(super) fn longer_than_zero(value: &Duration) -> Option<String> {
    value.is_zero().then(|| "must be longer than 0".into())
}

pub(super) fn at_least<T: PartialOrd>(
    least: T,
    what: &'static str,
) -> impl Fn(&T) -> Option<String> {
    move |value| (*value < least).then(|| what.into())
}

pub(super) fn if_given<T>(
    check: impl Fn(&T) -> Option<String>,
) -> impl Fn(&Option<T>) -> Option<String> {
    move |value| value.as_ref().and_then(&check)
}

pub(super) fn keepalive(value: &Duration) -> Option<String> {
    (*value > LONGEST_KEEPALIVE)
        .then(|| format!("{value:?} is more than the system can wait; give at most 9h"))
}

pub(super) fn string(longest: &usize) -> Option<String> {
    (*longest > LONGEST_STRING)
        .then(|| "Redis has no longer strings than 512mb; give at most that".into())
}

pub(super) fn threads(count: &usize) -> Option<String> {
    let is_right = (1..=MAX_THREADS).contains(count);
    (!is_right).then(|| "must be auto or from 1 to 128".into())
}

pub(super) fn short_path(SocketPath(path): &SocketPath) -> Option<String> {
    (path.as_os_str().len() > LONGEST_PATH)
        .then(|| format!("must be at most {LONGEST_PATH} bytes long, as the system has it"))
}

pub(super) fn below_half(share: &f64) -> Option<String> {
    let is_right = (0.0..MAX_DRIFT).contains(share);
    (!is_right).then(|| format!("{share} is not at least 0 and below {MAX_DRIFT}"))
}

pub(super) fn not_reserved(prefix: &str) -> Option<String> {
    prefix.starts_with("lockgate:").then(|| "keys that begin with 'lockgate:' are reserved".into())
}

/// Bounds the patterns: each has two histograms of some twenty numbers, and is compared with the key of
/// each released lock.
pub(super) fn few_patterns(patterns: &[String]) -> Option<String> {
    let is_wrong = |pattern: &&String| pattern.is_empty() || pattern.len() > MAX_METRICS_PATTERN;
    if patterns.len() > MAX_METRICS_PATTERNS {
        return Some(format!("has more than {MAX_METRICS_PATTERNS} patterns"));
    }
    if patterns.iter().any(|pattern| is_wrong(&pattern)) {
        return Some(format!("a pattern must have 1 to {MAX_METRICS_PATTERN} bytes"));
    }
    let is_other = patterns.iter().any(|pattern| pattern == OTHER_KEYS);
    is_other.then(|| format!("'{OTHER_KEYS}' stands for locks that no pattern matches"))
}

/// The message does not repeat the value, which may come from the environment.
pub(super) fn known_level(level: &str) -> Option<String> {
    let is_right = LOG_LEVELS.contains(&level);
    (!is_right).then(|| format!("no level; use one of {}", LOG_LEVELS.join(", ")))
}

/// The message does not repeat the value, which may come from the environment.
pub(super) fn known_trail(trail: &str) -> Option<String> {
    let is_right = ["off", "all"].contains(&trail);
    (!is_right).then(|| "neither off nor all".into())
}

/// The message does not repeat the value, which may come from the environment.
pub(super) fn known_format(format: &str) -> Option<String> {
    let formats = ["auto", "human", "json"];
    let is_right = formats.contains(&format);
    (!is_right).then(|| format!("no format; use one of {}", formats.join(", ")))
}

/// Whether `url` certainly leads to a listener on `addr`. No name but `localhost` is resolved.
fn leads_to(url: &RedisUrl, addr: &SocketAddr) -> bool {
    let Endpoint::Tcp { host, port } = &url.endpoint else { return false };
    *port != 0 && *port == addr.port() && is_same_host(host, &addr.ip().to_string())
}

/// Whether the system refuses to listen on both: they are the same, or one of them is the wildcard address
/// that includes the other. `[::]` includes IPv4 too, unless net.ipv6.bindv6only is set, which is rare.
fn overlap(one: SocketAddr, other: SocketAddr) -> bool {
    let takes = |every: SocketAddr, one: SocketAddr| {
        every.ip().is_unspecified() && (every.is_ipv6() || one.is_ipv4())
    };
    let is_same_port = one.port() == other.port() && one.port() != 0;
    is_same_port && (one.ip() == other.ip() || takes(one, other) || takes(other, one))
}

/// Whether a lock node is the data node too, or shares a node with it, as far as the file tells.
fn is_shared(node: &LockNode, data: &DataConfig) -> bool {
    let has_same_address = || node.written().iter().any(|url| url.is_among(data.written()));
    match (node, data) {
        // One Sentinel may watch many masters.
        (LockNode::Sentinels(node), DataConfig::Sentinels(data)) => {
            node.master == data.master && has_same_address()
        }
        (LockNode::Sentinels(_), _) | (_, DataConfig::Sentinels(_)) => false,
        _ => has_same_address(),
    }
}

/// Reports a URL that leads to this proxy, which would connect to itself until it is full.
fn itself(
    reader: &mut Reader<'_>,
    section: &Section<'_>,
    key: &str,
    url: &RedisUrl,
    listen: &[Listener],
) {
    if listen.iter().any(|listener| leads_to(url, &listener.address)) {
        let what = format!("{url} is this proxy itself (listen); give the address of a Redis");
        reader.problem(&section.path(key), what);
    }
}

impl Config {
    /// Returns a line for each setting that is allowed but easily not what was meant.
    pub fn notes(&self) -> Vec<String> {
        let open = |listener: &&Listener| {
            listener.proxy_protocol && !listener.address.ip().to_canonical().is_loopback()
        };
        let note = |listener: &Listener| {
            format!(
                "{} (listen, proxy_protocol): whoever reaches it can claim any client's address; \
                 let only the balancer reach it",
                listener.address
            )
        };
        let mut notes: Vec<String> = self.listen.iter().filter(open).map(note).collect();
        if self.admin.listen.is_none() && !self.admin.peers.is_empty() {
            notes.push("admin.peers are shown nowhere: admin.listen is off".into());
        }
        let nodes = &self.locks.nodes;
        if let [LockNode::Cluster(of)] = nodes.as_slice() {
            notes.push(format!(
                "locks.nodes is {} alone. While one of its shards fails over, no new lock of its slots is \
                 granted",
                of.cluster
            ));
        } else if let [node] = nodes.as_slice() {
            let left_out = if self.locks.nodes_left_out { " is left out, so that it" } else { "" };
            notes.push(alone(node, &format!("locks.nodes{left_out}")));
        }
        if let [node] = self.locks.next_nodes.as_slice() {
            notes.push(alone(node, "locks.next_nodes"));
        }
        for (key, nodes) in self.locks.lists() {
            let shared = nodes.iter().filter(|node| is_shared(node, &self.data));
            notes.extend(shared.map(|node| shared_with_data(node, key)));
        }
        notes.extend(nodes.iter().enumerate().filter_map(|(index, node)| match node {
            LockNode::Fixed(_) | LockNode::Cluster(_) => None,
            LockNode::Sentinels(master) => master.notes(&format!("locks.nodes[{index}]")),
        }));
        notes.extend(self.data.notes());
        notes.extend(self.guards.notes(self.data.fixed().is_none()));
        notes.extend(self.adopt.notes());
        notes.extend(self.weakened());
        notes
    }
}

/// Returns the warning that a lock node is the only one of its list.
fn alone(node: &LockNode, list: &str) -> String {
    format!(
        "{list} is {node} alone. One lock node: when it fails or is restarted, locks stop; fine for trying"
    )
}

/// Returns the warning that a lock node of this list is the data node too.
pub(crate) fn shared_with_data(node: &LockNode, list: &str) -> String {
    format!(
        "{node} (locks.{list}) is the data node too: whoever may write there can take locks past the \
         votes, FLUSHALL forgets them, and both fail together; fine for trying"
    )
}

/// Reports what is wrong with each value, and values that contradict each other.
pub(super) fn all(reader: &mut Reader<'_>, top: &Section<'_>, config: &Config) {
    let (log, locks) = (top.inside("log"), top.inside("locks"));
    config.check(reader, top);
    addresses(reader, top, config);
    config.log.check(reader, &log);
    config.metrics.check(reader, &top.inside("metrics"));
    nodes(reader, top, &locks, config);
    config.locks.check(reader, &locks);
    times(reader, &locks, &config.locks);
}

fn addresses(reader: &mut Reader<'_>, top: &Section<'_>, config: &Config) {
    if config.listen.is_empty() && reader.sound(top, &["listen"]) {
        reader.problem(&top.path("listen"), "no address; give at least one");
    }
    for (index, Listener { address: addr, .. }) in config.listen.iter().enumerate() {
        let mut before = config.listen[..index].iter().map(|before| before.address);
        if let Some(other) = before.find(|other| overlap(*addr, *other)) {
            let what = match *addr == other {
                true => format!("{addr} is there twice"),
                false => {
                    format!("{addr} and {other} are one port of one address; keep one of them")
                }
            };
            reader.problem(&top.path("listen"), what);
        }
    }
    if let Some(admin) = config.admin.listen
        && reader.sound(top, &["listen", "admin"])
        && let Some(listener) =
            config.listen.iter().find(|listener| overlap(listener.address, admin))
    {
        let what = match listener.address == admin {
            true => format!("{admin} is in listen too; clients and /metrics need two ports"),
            false => format!(
                "{admin} and {} (listen) are one port of one address; clients and /metrics need two ports",
                listener.address
            ),
        };
        reader.problem(&top.path("admin"), what);
    }
    if reader.sound(top, &["listen", "data"]) {
        for url in config.data.written() {
            itself(reader, top, "data", url, &config.listen);
        }
    }
}

fn nodes(reader: &mut Reader<'_>, top: &Section<'_>, section: &Section<'_>, config: &Config) {
    let locks = &config.locks;
    for (key, nodes) in locks.lists() {
        // `next_nodes` may be empty.
        let is_there = key == "nodes" || !nodes.is_empty();
        if is_there && reader.sound(section, &[key]) {
            independent(reader, section, (key, nodes), locks);
            if reader.sound(top, &["listen"]) {
                for url in nodes.iter().flat_map(LockNode::written) {
                    itself(reader, section, key, url, &config.listen);
                }
            }
        }
    }
    let is_cluster = |node: &LockNode| !matches!(node, LockNode::Fixed(_));
    if !locks.next_nodes.is_empty()
        && (locks.nodes.iter().chain(&locks.next_nodes).any(is_cluster) || !locks.quarantine)
        && reader.sound(section, &["nodes", "next_nodes", "quarantine"])
    {
        let what = "lock nodes are changed while proxies run from and to addresses of Redis servers alone, \
                    and with quarantine: of others the proofs may be lost; stop all proxies for that";
        reader.problem(&section.path("next_nodes"), what);
    }
    if config.send_proxy_protocol && config.shares_any() {
        let what = "clients with share: yes have no connection of their own whose PROXY header could name \
                    them; set one of the two to no";
        reader.problem(&top.path("send_proxy_protocol"), what);
    }
    for (key, nodes) in locks.lists() {
        if config.send_proxy_protocol
            && reader.sound(top, &["data", "send_proxy_protocol"])
            && reader.sound(section, &[key])
            && let Some(node) = nodes.iter().find(|node| is_shared(node, &config.data))
        {
            let what = format!(
                "{node} is the data node too, which is sent a PROXY header (send_proxy_protocol); lock \
                 nodes are sent none: give the address of the Redis itself"
            );
            reader.problem(&section.path(key), what);
        }
    }
}

fn times(reader: &mut Reader<'_>, section: &Section<'_>, locks: &LocksConfig) {
    if locks.default_ttl > locks.max_ttl && reader.sound(section, &["default_ttl", "max_ttl"]) {
        let what =
            format!("{:?} is longer than locks.max_ttl ({:?})", locks.default_ttl, locks.max_ttl);
        reader.problem(&section.path("default_ttl"), what);
    }
    if locks.node_timeout > locks.max_ttl / TIMEOUT_SHARE
        && reader.sound(section, &["node_timeout", "max_ttl"])
    {
        let what = format!(
            "{:?} is more than a tenth of locks.max_ttl ({:?}), so it would never be waited for",
            locks.node_timeout, locks.max_ttl
        );
        reader.problem(&section.path("node_timeout"), what);
    }
    if locks.node_silence < locks.node_timeout
        && reader.sound(section, &["node_silence", "node_timeout"])
    {
        let what = format!(
            "{:?} is shorter than locks.node_timeout ({:?})",
            locks.node_silence, locks.node_timeout
        );
        reader.problem(&section.path("node_silence"), what);
    }
    if locks.fence_ttl < locks.max_ttl && reader.sound(section, &["fence_ttl", "max_ttl"]) {
        let what = format!(
            "{:?} is shorter than locks.max_ttl ({:?}): a fence must be remembered longer than its lock",
            locks.fence_ttl, locks.max_ttl
        );
        reader.problem(&section.path("fence_ttl"), what);
    }
    if let Some(max_hold) = locks.max_hold
        && max_hold < locks.default_ttl
        && reader.sound(section, &["max_hold", "default_ttl"])
    {
        let what = format!(
            "{max_hold:?} is shorter than locks.default_ttl ({:?}), which every session lock has",
            locks.default_ttl
        );
        reader.problem(&section.path("max_hold"), what);
    }
}

/// Checks `tls` at the top and under `locks` against the URLs that use it.
pub(super) fn tls(reader: &mut Reader<'_>, top: &Section<'_>, config: &Config) {
    let section = &top.inside("locks");
    // A URL that could not be read may be the one that needs the settings.
    if !reader.sound(top, &["data", "tls"]) || !reader.sound(section, &["nodes", "tls"]) {
        return;
    }
    let data = config.data.uses_tls();
    let nodes = config.locks.nodes.iter().any(LockNode::uses_tls);
    if section.inside("tls").is_there() {
        servers(reader, section, nodes, "locks.nodes", &config.locks.tls);
        servers(reader, top, data, "data", &config.tls);
    } else {
        servers(reader, top, data || nodes, "data or locks.nodes", &config.tls);
    }
}

/// Checks `data.cluster` against the fronts in `listen` and the adopt rules.
pub(super) fn cluster(reader: &mut Reader<'_>, top: &Section<'_>, config: &Config) {
    let Some(cluster) = config.data.cluster() else { return };
    check_slots(reader, &top.inside("locks"), &config.locks.permits);
    if reader.sound(top, &["listen", "data"]) && config.listen.len() < cluster.nodes.len() {
        let what = format!(
            "{} fronts for a cluster of which data.cluster names {} nodes; give an address for each \
             node, masters and replicas, as 127.0.0.1:7100-7105",
            config.listen.len(),
            cluster.nodes.len()
        );
        reader.problem(&top.path("listen"), what);
    }
    // Clients are told one host for all fronts.
    let ports = || config.listen.iter().map(|front| front.address.port());
    let twice = ports().enumerate().find(|(index, port)| ports().take(*index).any(|p| p == *port));
    if cluster.announce != Announce::Nodes
        && let Some((_, port)) = twice
    {
        let what = format!(
            "two fronts have port {port}; clients are told of all fronts by one host, so give each a \
             port of its own, or set data.announce to off"
        );
        reader.problem(&top.path("listen"), what);
    }
    let fronts = top.inside("data").inside("fronts");
    for (id, port) in &cluster.fronts {
        let what = match ports().filter(|other| other == port).count() {
            1 => continue,
            0 => format!("{port} is the port of no front; give one of those in listen"),
            _ => format!("{port} is in listen more than once; which front is meant?"),
        };
        reader.problem(&fronts.path(id), what);
    }
    if config.adopt.rules.iter().any(|rule| rule.mode == AdoptMode::Bridge) {
        let what =
            "mode bridge does not work with data.cluster yet: it takes locks on one data node";
        reader.problem(&top.path("adopt"), what);
    }
}

/// Checks the `tls` in `parent` against the URLs that use it.
fn servers(reader: &mut Reader<'_>, parent: &Section<'_>, used: bool, urls: &str, tls: &ClientTls) {
    let section = &parent.inside("tls");
    // The author of unused TLS settings believes that the traffic is encrypted.
    if section.is_there() && !used {
        let what = format!("has no effect: no URL of {urls} begins with rediss://");
        reader.problem(&parent.path("tls"), what);
    } else if used && let Err(problems) = tls.load() {
        reader.tls_problems(section, problems);
    }
}

/// What is wrong with this number of lock nodes. `None`: nothing.
pub(crate) fn poor_count(nodes: usize) -> Option<String> {
    match nodes {
        0 => Some("no lock node; give 1, 3, 5 or 7".into()),
        2 => Some(
            "2 nodes; a majority of 2 is 2, so one that fails stops all locks: give 1 or 3".into(),
        ),
        even if even % 2 == 0 => Some(format!(
            "{even} nodes bear no more failures than {}; give {} or {}",
            even - 1,
            even - 1,
            even + 1
        )),
        _ => None,
    }
}

fn independent(
    reader: &mut Reader<'_>,
    section: &Section<'_>,
    (key, nodes): (&str, &[LockNode]),
    locks: &LocksConfig,
) {
    let path = section.path(key);
    if let Some(what) = poor_count(nodes.len()) {
        reader.problem(&path, what);
    }
    if locks.notify == LockNotify::Stream && !matches!(locks.nodes[..], [LockNode::Cluster(_)]) {
        let what = "stream is for a Redis Cluster that is the only lock node: each of several would \
                    wake another proxy, and one Redis alone has nobody else to tell; leave it out";
        reader.problem(&section.path("notify"), what);
    }
    for (index, node) in nodes.iter().enumerate() {
        let is_same = |other: &&LockNode| other.is_same(node, locks.allow_shared_instance);
        if let Some(other) = nodes[..index].iter().find(is_same) {
            let twice = match (other.fixed(), node.fixed()) {
                (Some(one), Some(two)) if one.endpoint != two.endpoint => {
                    format!("{two} and {one} are one address")
                }
                _ => format!("{node} is there twice"),
            };
            reader.problem(&path, format!("{twice}; votes of one instance are not independent"));
        }
    }
}
