//! Where a lock node is: at a fixed address, or where its Sentinels or its cluster say. For a shard's master see
//! [`super::shards`].
//!
//! After a failover the Sentinels name another Redis, while the previous master may live on and be reachable. Two
//! masters must never vote on one seat at the same time. The promoted one is another identity, so it waits
//! ([`super::members::shared_members`]). A proxy that has not heard of it stops in time:
//!
//! - A majority of the Sentinels names a master in answer to a proxy's questions. The proxy takes that master's votes
//!   only within [`CONFIRM`] of having sent these questions.
//! - A node that was found through Sentinels waits for [`CONFIRM`] longer than others.
//! - A master's identity includes the number of its election. So a Redis that is elected again is another identity: it
//!   may not have heard of the master in between, and remembers nothing of it.
//!
//! Why that suffices: any two majorities have a Sentinel in common. It named the previous master in its answer to one
//! proxy, and the promoted one in its later answer to another: a Sentinel does not return to an earlier election, as
//! long as it keeps its file. So the first proxy sent its question before the second one learned of the promoted
//! master, and takes votes of the previous master for at most [`CONFIRM`] after that. What these votes granted runs
//! out within the longest PX. Hence a wait as long as both together ends after all of these grants.
//!
//! - If there is no other node, a renewal on the promoted one counts only from [`CONFIRM`] after its wait began, and
//!   only for a grant that the proxy knows to be valid.
//!
//! Why that suffices: until then the previous master may still grant a lock anew, once its own copy has run out, to a
//! proxy that has not heard of the promoted one. After that it grants nothing, and the promoted one does not grant
//! yet, so no further grant becomes valid. Two grants of a lock were never valid at once, whatever either master has
//! in its memory, so each proxy may renew what it knows to be valid.

use std::{collections::HashMap, fmt, io, sync::Arc, time::Duration};

use super::{location::Location, shards::Shards, voters::Voters};
use crate::{
    clock::Instant,
    cluster::{
        ask::{agreed, ask_all, drop_foreign},
        cluster_node::ClusterNode,
        slot::slot,
        trouble::ClusterTrouble,
        view::settle_claims,
    },
    config::{ClientTls, LockCluster, LockNode, LocksConfig, RedisUrl, SentinelMaster},
    net::Connector,
    sentinel::{self, NamedMaster, Sentinels},
};

/// How long a master's votes count after a majority of the Sentinels was asked for the master. Each Sentinel is asked
/// more than twice in that time. All proxies of a deployment must have the same value, so it cannot be configured.
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
    /// Returns the address of the lock node on each seat. Starts to ask Sentinels and clusters, where there are any,
    /// in the current runtime.
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

    /// Returns where the node is now.
    ///
    /// # Errors
    /// If that is not known: no majority of the Sentinels has named a master yet, or no shard is known there.
    pub(in crate::lock) fn now(&self) -> io::Result<Location> {
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
    pub(in crate::lock) fn is_confirmed(&self, there: &Location) -> bool {
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

    /// Returns why votes do not count, in the words of the Sentinels or of the cluster.
    pub(in crate::lock) fn problem(&self) -> Option<String> {
        match self {
            NodeAddress::Fixed(_) => None,
            NodeAddress::Named(_, sentinels) => sentinels.problem(),
            NodeAddress::Shard(shards, _) => shards.problem(),
        }
    }

    /// Returns how much longer than others this node must wait before it votes.
    pub(in crate::lock) fn confirm(&self) -> Duration {
        match self {
            NodeAddress::Fixed(_) => Duration::ZERO,
            NodeAddress::Named(..) => CONFIRM,
            NodeAddress::Shard(shards, _) => shards.confirm(),
        }
    }

    /// Returns once the node is not this Redis any more, or this Redis was elected anew.
    pub(in crate::lock) async fn left(&self, there: &Location) {
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
        // If that stays unknown, `now` says what is wrong.
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

    /// Waits until a shard is on this place of its cluster. Other nodes are always there.
    pub(in crate::lock) async fn occupied(&self) {
        if let NodeAddress::Shard(shards, place) = self {
            let _ = shards.master(*place).wait_for(Option::is_some).await;
        }
    }

    /// Whether it is known that no shard is there.
    pub(in crate::lock) fn is_absent(&self) -> bool {
        matches!(self, NodeAddress::Shard(shards, place) if shards.is_absent(*place))
    }

    /// Returns for how long it has been known that no shard is there. Zero: there is one, or it is not known.
    pub(in crate::lock) fn gone_for(&self) -> Duration {
        match self {
            NodeAddress::Shard(shards, place) => shards.gone_for(*place),
            _ => Duration::ZERO,
        }
    }

    /// Moves the shard there to this place of its cluster, as the lock nodes have agreed.
    pub(in crate::lock) fn move_to(&self, home: usize) {
        if let NodeAddress::Shard(shards, place) = self {
            shards.move_to(*place, home);
        }
    }

    /// Returns the cluster whose shard the node is.
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

/// Returns the connector for all lock nodes of a configuration.
pub(crate) fn connector_to_nodes(config: &LocksConfig) -> Connector {
    let logins: Vec<RedisUrl> = config.nodes.iter().map(|node| node.login().clone()).collect();
    Connector::start("node", &config.tls, &logins)
}

/// Finds out once where a lock node is; for a cluster, where the master of the shard that has `key` is.
///
/// # Errors
/// Why no majority of its Sentinels names a master, or no node of the cluster does.
pub(crate) async fn locate(
    node: &LockNode,
    tls: &ClientTls,
    key: &[u8],
) -> Result<Location, String> {
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

/// The shards of a cluster, as its nodes name them when asked once.
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
        // A node that no other node has met does not know its own address.
        let there = answers.iter().find(|answer| answer.id() == Some(&node.id));
        let url = there.map(|answer| answer.url.clone());
        let url = url.unwrap_or_else(|| of.cluster.at(&node.host, node.port));
        (node, url)
    };
    let masters = nodes.into_iter().map(located).collect();
    let troubles = answers.iter().filter_map(|answer| answer.told.as_ref().err().cloned());
    Ok(ShardsOnce { masters, troubles: troubles.collect() })
}

/// Returns a Redis that no Sentinels have elected.
fn always(url: RedisUrl) -> Location {
    Location { url, election: None, claimed: None }
}

fn at(master: &SentinelMaster, named: &NamedMaster) -> Location {
    let url = master.at(&named.address.host, named.address.port);
    Location { url, election: named.address.election, claimed: None }
}
