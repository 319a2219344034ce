//! Where a lock node is: at one address, or wherever its Sentinels or its cluster say. What is so of
//! a shard's master [`super::shards`] tells.
//!
//! A master that Sentinels name is another Redis after a failover, and the one before may live on
//! and be reached. Two masters must never vote on one seat at the same time. Whoever is promoted is
//! another identity there, so it waits ([`super::fitness::deployment`]); and a proxy that has not
//! heard of it stops in time:
//!
//! - A proxy takes votes of a master only within [`CONFIRM`] of having sent the questions to which a
//!   majority of the Sentinels named it.
//! - A node that was found through Sentinels waits for [`CONFIRM`] longer than others.
//! - Whoever is elected is another identity, by the number of the election, even if it is a master from
//!   before: it may not have heard of the one in between, and remembers nothing of it.
//!
//! Why that suffices: any two majorities have a Sentinel in common. It named the master before in its
//! answer to one proxy, and the promoted one in its later answer to another: a Sentinel does not go
//! back to an election before, as long as it keeps its file. So the first proxy had sent its question before the second one learned of the promoted master, and
//! takes no votes of the master before for longer than [`CONFIRM`] after that. What these granted runs
//! out within the longest PX. Hence a wait that is as long as both ends after all of them.
//!
//! - If there is no other node, what is renewed on the promoted one counts from [`CONFIRM`] after its wait
//!   began, and only what the proxy knows to be valid.
//!
//! Why that suffices: until then, the master before may grant a lock anew to a proxy that has not heard
//! of the promoted one, when its copy has run out. Later it grants nothing, and the promoted one does
//! not yet. So no grant becomes valid any more. Two were never valid at once, whatever either has in its
//! memory, so each proxy may renew what it knows to be valid.

use std::{collections::HashMap, fmt, io, sync::Arc, time::Duration};

use super::{shards::Shards, voters::Voters, whereabouts::Whereabouts};
use crate::{
    clock::Instant,
    cluster::{
        ask::{agreed, ask_all, drop_foreign},
        node::ClusterNode,
        slot::slot,
        trouble::ClusterTrouble,
        view::settle_claims,
    },
    config::{ClientTls, LockCluster, LockNode, LocksConfig, RedisUrl, SentinelMaster},
    net::Connector,
    sentinel::{self, NamedMaster, Sentinels},
};

/// How long a master's votes count after a majority of the Sentinels was asked who it is. Each
/// Sentinel is asked more than twice in that time. All proxies of a deployment must have the same
/// value, so it cannot be configured.
pub(in crate::lock) const CONFIRM: Duration = Duration::from_secs(5);

#[cfg(test)]
thread_local! {
    /// A fault that tests plant: a master's votes count, however long ago it was named.
    pub(crate) static NOT_CONFIRMED: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Where one lock node is.
pub(in crate::lock) enum NodeAddress {
    /// Always there.
    Fixed(RedisUrl),
    /// Where a majority of the Sentinels says.
    Named(SentinelMaster, Sentinels),
    /// Where a majority of the cluster's masters says: the master of the shard on this place.
    Shard(Arc<Shards>, usize),
}

impl NodeAddress {
    /// The addresses of the lock nodes on all seats. Begins to ask Sentinels, where there are some, in the current
    /// runtime.
    pub(in crate::lock) fn all(config: &LocksConfig) -> Vec<Arc<NodeAddress>> {
        let voters = Voters::new(config);
        let mut all = Vec::with_capacity(voters.seats());
        for node in &config.nodes {
            match node {
                LockNode::Fixed(url) => all.push(NodeAddress::Fixed(url.clone())),
                LockNode::Sentinels(master) => {
                    let way = Connector::start("sentinel", &config.tls, &master.sentinels);
                    let sentinels = Sentinels::start(master, &way, true);
                    all.push(NodeAddress::Named(master.clone(), sentinels));
                }
                LockNode::Cluster(of) => {
                    let login = std::slice::from_ref(of.cluster.login());
                    let way = Connector::start("node", &config.tls, login);
                    let shards = Shards::start(of, &way, voters.place(all.len()));
                    all.extend((0..of.shards).map(|at| NodeAddress::Shard(shards.clone(), at)));
                }
            }
        }
        all.into_iter().map(Arc::new).collect()
    }

    /// Whether the node votes on the lock at `key`, as far as is known.
    pub(in crate::lock) fn has(&self, key: &[u8]) -> bool {
        match self {
            NodeAddress::Shard(shards, place) => shards.of(key) == Some(*place),
            _ => true,
        }
    }

    /// Where the node is now.
    ///
    /// # Errors
    /// If no majority of the Sentinels has named a master yet.
    pub(in crate::lock) fn now(&self) -> io::Result<Whereabouts> {
        match self {
            NodeAddress::Fixed(url) => Ok(always(url.clone())),
            NodeAddress::Named(master, sentinels) => match sentinels.named() {
                Some(named) => Ok(at(master, &named)),
                None => Err(io::Error::other(sentinels.problem().unwrap_or_default())),
            },
            NodeAddress::Shard(shards, place) => {
                let there = shards.master(*place).borrow().clone();
                let problem = || shards.problem().unwrap_or_else(|| "nobody is there".into());
                there.ok_or_else(|| io::Error::other(problem()))
            }
        }
    }

    /// Whether votes of the Redis there count now.
    pub(in crate::lock) fn is_confirmed(&self, there: &Whereabouts) -> bool {
        #[cfg(test)]
        if NOT_CONFIRMED.get() {
            return true;
        }
        let (master, sentinels) = match self {
            NodeAddress::Fixed(_) => return true,
            NodeAddress::Named(master, sentinels) => (master, sentinels),
            NodeAddress::Shard(shards, place) => return shards.is_confirmed(*place, there),
        };
        let now = Instant::now();
        sentinels
            .named()
            .is_some_and(|named| now < named.asked + CONFIRM && at(master, &named) == *there)
    }

    /// Why votes do not count, in the words of the Sentinels, or of the cluster.
    pub(in crate::lock) fn problem(&self) -> Option<String> {
        match self {
            NodeAddress::Fixed(_) => None,
            NodeAddress::Named(_, sentinels) => sentinels.problem(),
            NodeAddress::Shard(shards, _) => shards.problem(),
        }
    }

    /// How much longer than others this node must wait before it votes.
    pub(in crate::lock) fn confirm(&self) -> Duration {
        match self {
            NodeAddress::Fixed(_) => Duration::ZERO,
            NodeAddress::Named(..) => CONFIRM,
            NodeAddress::Shard(shards, _) => shards.confirm(),
        }
    }

    /// Returns once the node is not this Redis any more, or that was elected anew.
    pub(in crate::lock) async fn left(&self, there: &Whereabouts) {
        let (master, sentinels) = match self {
            NodeAddress::Fixed(_) => return std::future::pending().await,
            NodeAddress::Named(master, sentinels) => (master, sentinels),
            NodeAddress::Shard(shards, place) => return shards.left(*place, there).await,
        };
        let is_elsewhere = |named: &Option<NamedMaster>| {
            named.as_ref().is_some_and(|named| at(master, named) != *there)
        };
        if sentinels.changes().wait_for(is_elsewhere).await.is_err() {
            std::future::pending().await
        }
    }

    /// Waits until it is known where the node is, at most for `limit`.
    pub(in crate::lock) async fn found(&self, limit: Duration) {
        // Whoever asks for the URL then is told what is wrong.
        match self {
            NodeAddress::Fixed(_) => {}
            NodeAddress::Named(_, sentinels) => {
                let mut changes = sentinels.changes();
                let _ = tokio::time::timeout(limit, changes.wait_for(Option::is_some)).await;
            }
            NodeAddress::Shard(shards, place) => {
                let _ = tokio::time::timeout(limit, shards.settled(*place)).await;
            }
        }
    }

    /// Waits until somebody is there, of a place that may be nobody's.
    pub(in crate::lock) async fn occupied(&self) {
        if let NodeAddress::Shard(shards, place) = self {
            let _ = shards.master(*place).wait_for(Option::is_some).await;
        }
    }

    /// Whether it is known that nobody is there.
    pub(in crate::lock) fn is_absent(&self) -> bool {
        matches!(self, NodeAddress::Shard(shards, place) if shards.is_absent(*place))
    }

    /// How long it has been known that nobody is there. Zero: somebody is, or that is not known.
    pub(in crate::lock) fn gone_for(&self) -> Duration {
        match self {
            NodeAddress::Shard(shards, place) => shards.gone_for(*place),
            _ => Duration::ZERO,
        }
    }

    /// Has the shard there sit on this place of its cluster from now on, as the lock nodes have agreed.
    pub(in crate::lock) fn move_to(&self, home: usize) {
        if let NodeAddress::Shard(shards, place) = self {
            shards.move_to(*place, home);
        }
    }

    /// The cluster of which it is a shard.
    pub(in crate::lock) fn cluster(&self) -> Option<&Arc<Shards>> {
        match self {
            NodeAddress::Shard(shards, _) => Some(shards),
            _ => None,
        }
    }
}

impl fmt::Display for NodeAddress {
    /// Writes the address, or the master's name and the Sentinels, never a user or a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NodeAddress::Fixed(url) => url.fmt(f),
            NodeAddress::Named(master, _) => master.fmt(f),
            NodeAddress::Shard(shards, place) => {
                write!(f, "{}, shard {}", shards.config.cluster, place + 1)
            }
        }
    }
}

/// The connector for all lock nodes of a configuration.
pub(crate) fn connector_to_nodes(config: &LocksConfig) -> Connector {
    let logins: Vec<RedisUrl> = config.nodes.iter().map(|node| node.login().clone()).collect();
    Connector::start("node", &config.tls, &logins)
}

/// Finds out once where a lock node is; of a cluster, the master of the shard that has `key`.
///
/// # Errors
/// Why no majority of its Sentinels names a master, or no node of the cluster does.
pub(crate) async fn locate(
    node: &LockNode,
    tls: &ClientTls,
    key: &[u8],
) -> Result<Whereabouts, String> {
    match node {
        LockNode::Fixed(url) => Ok(always(url.clone())),
        LockNode::Sentinels(master) => {
            let way = Connector::start("sentinel", tls, &master.sentinels);
            sentinel::ask_once(master, &way, true).await.0.map(|named| at(master, &named))
        }
        LockNode::Cluster(of) => {
            let slot = slot(key);
            let has =
                |node: &ClusterNode| node.slots.iter().any(|(a, b)| (*a..=*b).contains(&slot));
            let masters = shards_once(of, tls).await?.masters;
            let master = masters.into_iter().find(|(node, _)| has(node));
            let there = master.map(|(_, url)| always(url));
            there.ok_or_else(|| format!("no master has slot {slot}"))
        }
    }
}

/// The shards of a cluster, as it tells them when it is asked once.
pub(crate) struct ShardsOnce {
    /// The masters that have slots, and where they are.
    pub(crate) masters: Vec<(ClusterNode, RedisUrl)>,
    /// What is wrong with the nodes in the configuration.
    pub(crate) troubles: Vec<ClusterTrouble>,
}

/// Asks once which masters have slots.
///
/// # Errors
/// Why none of the nodes in the configuration says so.
pub(crate) async fn shards_once(of: &LockCluster, tls: &ClientTls) -> Result<ShardsOnce, String> {
    let way = Connector::start("node", tls, std::slice::from_ref(of.cluster.login()));
    let mut answers = ask_all(&of.cluster.nodes, &way, &mut HashMap::new()).await;
    drop_foreign(&mut answers, &[]);
    let mut nodes = agreed(&answers);
    if nodes.is_empty() {
        let first = answers.iter().find_map(|answer| answer.told.as_ref().err());
        return Err(first.map_or_else(|| "no node answers".into(), |trouble| trouble.what.clone()));
    }
    settle_claims(&mut nodes);
    nodes.retain(|node| node.is_master && !node.slots.is_empty());
    let located = |node: ClusterNode| {
        // A node that nobody has met does not know its own address.
        let there = answers.iter().find(|answer| answer.id() == Some(&node.id));
        let url = there.map(|answer| answer.url.clone());
        let url = url.unwrap_or_else(|| of.cluster.at(&node.host, node.port));
        (node, url)
    };
    let masters = nodes.into_iter().map(located).collect();
    let troubles = answers.iter().filter_map(|answer| answer.told.as_ref().err().cloned());
    Ok(ShardsOnce { masters, troubles: troubles.collect() })
}

/// A Redis that no Sentinels have elected.
fn always(url: RedisUrl) -> Whereabouts {
    Whereabouts { url, election: None, claimed: None }
}

fn at(master: &SentinelMaster, named: &NamedMaster) -> Whereabouts {
    let url = master.at(&named.address.host, named.address.port);
    Whereabouts { url, election: named.address.election, claimed: None }
}
