//! An entry of `locks.nodes`: one Redis, a master that Sentinels name, or a Redis Cluster.

use std::{fmt, str::FromStr};

use serde_yaml::Value;

use super::{
    data::{self, ClusterConfig, SENTINEL_KEYS, SentinelMaster},
    locate::PathStep,
    reader::{FromYaml, Reader, Wrong},
    url::RedisUrl,
};

/// The keys of a mapping.
pub(super) const KEYS: &[&str] = &[
    "url",
    "cluster",
    "shards",
    "sentinels",
    "master",
    "username",
    "password",
    "password_file",
    "tls",
    "sentinel_username",
    "sentinel_password",
    "sentinel_password_file",
    "sentinel_tls",
];
/// The default of `shards`.
const SHARDS: usize = 16;
/// The most shards of a cluster: a marker must have room for all seats.
const MOST_SHARDS: usize = 128;

/// A Redis Cluster that votes. The vote on a lock is that of the shard that has its slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockCluster {
    /// `cluster`: nodes that are asked which others there are.
    pub cluster: ClusterConfig,
    /// `shards`: how many shards it may have.
    pub shards: usize,
}

/// A lock node, or how it is found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LockNode {
    /// One Redis for as long as the proxy runs.
    Fixed(RedisUrl),
    /// The master that a majority of Sentinels names. A promoted replica is another node on the same seat.
    Sentinels(SentinelMaster),
    /// A Redis Cluster. Each of its shards votes on the locks in its slots.
    Cluster(LockCluster),
}

impl LockNode {
    /// The Redis, if it is always the same one.
    pub fn fixed(&self) -> Option<&RedisUrl> {
        match self {
            LockNode::Fixed(url) => Some(url),
            LockNode::Sentinels(_) | LockNode::Cluster(_) => None,
        }
    }

    /// A URL with the credentials. For a master that Sentinels name, or a cluster, the URL has no address.
    pub(crate) fn login(&self) -> &RedisUrl {
        match self {
            LockNode::Fixed(url) => url,
            LockNode::Sentinels(master) => master.login(),
            LockNode::Cluster(of) => of.cluster.login(),
        }
    }

    /// The URLs in the file: those of the Redis, of the Sentinels, or of nodes of the cluster.
    pub(super) fn written(&self) -> &[RedisUrl] {
        match self {
            LockNode::Fixed(url) => std::slice::from_ref(url),
            LockNode::Sentinels(master) => &master.sentinels,
            LockNode::Cluster(of) => &of.cluster.nodes,
        }
    }

    /// How many Redis servers may vote for this entry at the same time, each on the locks of its own slots.
    pub(crate) fn seats(&self) -> usize {
        match self {
            LockNode::Fixed(_) | LockNode::Sentinels(_) => 1,
            LockNode::Cluster(of) => of.shards,
        }
    }

    /// Whether connections to the Redis, or to a Sentinel, use TLS.
    pub(super) fn uses_tls(&self) -> bool {
        self.login().tls || self.written().iter().any(|url| url.tls)
    }

    /// Whether both certainly are the same voter. With `allow_shared_instance`, two databases of one Redis are two.
    pub(super) fn is_same(&self, other: &LockNode, allow_shared_instance: bool) -> bool {
        match (self, other) {
            (LockNode::Fixed(a), LockNode::Fixed(b)) => {
                a.endpoint.is_same(&b.endpoint) && (!allow_shared_instance || a.db == b.db)
            }
            (LockNode::Sentinels(a), LockNode::Sentinels(b)) => {
                a.master == b.master && a.sentinels.iter().any(|url| url.is_among(&b.sentinels))
            }
            (LockNode::Cluster(a), LockNode::Cluster(b)) => {
                a.cluster.nodes.iter().any(|url| url.is_among(&b.cluster.nodes))
            }
            (LockNode::Cluster(of), LockNode::Fixed(url))
            | (LockNode::Fixed(url), LockNode::Cluster(of)) => url.is_among(&of.cluster.nodes),
            _ => false,
        }
    }
}

impl From<RedisUrl> for LockNode {
    fn from(url: RedisUrl) -> LockNode {
        LockNode::Fixed(url)
    }
}

impl FromStr for LockNode {
    type Err = String;

    /// Reads the URL of one Redis.
    fn from_str(url: &str) -> Result<LockNode, String> {
        url.parse().map(LockNode::Fixed)
    }
}

impl fmt::Display for LockNode {
    /// Writes the address, or the master's name and the Sentinels, or nodes of the cluster, never a user
    /// or a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LockNode::Fixed(url) => url.fmt(f),
            LockNode::Sentinels(master) => master.fmt(f),
            LockNode::Cluster(of) => of.cluster.fmt(f),
        }
    }
}

/// A URL, or a mapping with `sentinels` and `master`, or with `cluster`.
impl FromYaml for LockNode {
    fn read(reader: &mut Reader<'_>, value: &Value, path: &[PathStep]) -> Result<Self, Wrong> {
        let Value::Mapping(mapping) = value else {
            return RedisUrl::read(reader, value, path).map(LockNode::Fixed);
        };
        if mapping.contains_key("primary") {
            let what = "a name whose address changes cannot be a lock node: nobody votes on where it \
                        leads, so locks could be granted twice; give the address of one Redis, or \
                        its Sentinels";
            return Err(Wrong::Because(what.into()));
        }
        if mapping.contains_key("cluster") {
            let section = reader.mapping(value, path.to_vec(), KEYS);
            let mut shards = SHARDS;
            reader.read(&section, "shards", &mut shards);
            if !(1..=MOST_SHARDS).contains(&shards) {
                let what = format!("must be from 1 to {MOST_SHARDS}");
                reader.problem(&section.path("shards"), what);
            }
            let cluster = data::cluster(reader, &section).ok_or(Wrong::Told)?;
            return Ok(LockNode::Cluster(LockCluster { cluster, shards }));
        }
        if mapping.contains_key("url") {
            let section = reader.mapping(value, path.to_vec(), KEYS);
            let url = data::with_login(reader, &section, ("url", KEYS)).ok_or(Wrong::Told)?;
            return Ok(LockNode::Fixed(url));
        }
        let section = reader.mapping(value, path.to_vec(), SENTINEL_KEYS);
        if section.get("sentinels").is_none() {
            let what = "has no sentinels; write redis://host:port, or \
                        {sentinels: [host:port, …], master: mymaster}";
            return Err(Wrong::Because(what.into()));
        }
        data::sentinels(reader, &section).map(LockNode::Sentinels).ok_or(Wrong::Told)
    }
}

#[cfg(test)]
mod tests {
    use super::{super::Config, *};

    fn parse(nodes: &str) -> Result<Config, String> {
        let text = format!("locks: {{nodes: {nodes}}}\n");
        Config::parse(&text, "f", &|_| None).map_err(|errors| errors.to_string())
    }

    #[test]
    fn a_node_is_a_url_or_what_sentinels_name() {
        let read = parse("[redis://a, {sentinels: [b, c, d], master: m, password: x}, redis://e]");
        let nodes = read.unwrap().locks.nodes;
        assert_eq!(nodes[0], "redis://a".parse().unwrap());
        let LockNode::Sentinels(master) = &nodes[1] else { panic!("{nodes:?}") };
        assert_eq!(master.at("f", 7), "redis://:x@f:7".parse().unwrap());
        assert_eq!(nodes[1].to_string(), "m (Sentinels b:26379, c:26379, d:26379)");
        assert!(nodes[1].fixed().is_none() && nodes[2].fixed().is_some());
    }

    #[test]
    fn what_cannot_be_a_node_is_named() {
        for (nodes, what) in [
            ("{primary: 'redis://a'}", "cannot be a lock node: nobody votes on where it leads"),
            ("{master: m}", "has no sentinels; write redis://host:port"),
            ("{sentinels: [a]}", "locks.nodes.master: is missing"),
            ("{sentinels: [a], master: m, primary: b}", "cannot be a lock node"),
            ("{sentinels: [a], master: m, host: b}", "host"),
            ("[{cluster: [a, b]}, redis://c, {cluster: [d, b]}]", "is there twice"),
            ("[{cluster: [a, b]}, redis://b, redis://c]", "is there twice"),
            ("{cluster: [a, b], shards: 0}", "shards: must be from 1 to 128"),
            ("{cluster: [a, b], master: m}", "master: has no effect beside cluster"),
            ("{url: 'redis://a', shards: 2}", "shards: has no effect beside url"),
            ("{url: 'redis://a', master: m}", "master: has no effect beside url"),
            (
                "[{sentinels: [a, b, c], master: m}, redis://d, {sentinels: [c], master: m}]",
                "is there twice",
            ),
        ] {
            let problems = parse(nodes).unwrap_err();
            assert!(problems.contains(what), "{nodes}: {problems}");
        }
        let even = parse("{sentinels: [a, b], master: m}").unwrap().notes().join("; ");
        assert!(even.contains("locks.nodes[0].sentinels: 2 Sentinels"), "{even}");
    }
}
