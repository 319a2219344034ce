//! Where a lock node is: at one address, or wherever its Sentinels say.
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

use std::{fmt, io, sync::Arc, time::Duration};

use crate::{
    clock::Instant,
    config::{ClientTls, LockNode, LocksConfig, RedisUrl, SentinelMaster},
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

/// The Redis that a lock node is now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Whereabouts {
    pub(crate) url: RedisUrl,
    /// The election that made it the master. `None`: it is always this one.
    pub(crate) election: Option<u64>,
}

/// Where one lock node is.
pub(in crate::lock) enum NodeAddress {
    /// Always there.
    Fixed(RedisUrl),
    /// Where a majority of the Sentinels says.
    Named(SentinelMaster, Sentinels),
}

impl NodeAddress {
    /// The addresses of the lock nodes on all seats. Begins to ask Sentinels, where there are some, in the current
    /// runtime.
    pub(in crate::lock) fn all(config: &LocksConfig) -> Vec<Arc<NodeAddress>> {
        let address = |node: &LockNode| match node {
            LockNode::Fixed(url) => NodeAddress::Fixed(url.clone()),
            LockNode::Sentinels(master) => {
                let way = Connector::start("sentinel", &config.tls, &master.sentinels);
                NodeAddress::Named(master.clone(), Sentinels::start(master, &way, true))
            }
            // The configuration refuses it.
            LockNode::Cluster(of) => NodeAddress::Fixed(of.cluster.login().clone()),
        };
        let all = config.nodes.iter();
        let seats = all.flat_map(|node| std::iter::repeat_n(node, node.seats()));
        seats.map(|node| Arc::new(address(node))).collect()
    }

    /// Where the node is now.
    ///
    /// # Errors
    /// If no majority of the Sentinels has named a master yet.
    pub(in crate::lock) fn now(&self) -> io::Result<Whereabouts> {
        match self {
            NodeAddress::Fixed(url) => Ok(Whereabouts { url: url.clone(), election: None }),
            NodeAddress::Named(master, sentinels) => match sentinels.named() {
                Some(named) => Ok(at(master, &named)),
                None => Err(io::Error::other(sentinels.problem().unwrap_or_default())),
            },
        }
    }

    /// Whether votes of the Redis there count now.
    pub(in crate::lock) fn is_confirmed(&self, there: &Whereabouts) -> bool {
        let NodeAddress::Named(master, sentinels) = self else { return true };
        #[cfg(test)]
        if NOT_CONFIRMED.get() {
            return true;
        }
        let now = Instant::now();
        sentinels
            .named()
            .is_some_and(|named| now < named.asked + CONFIRM && at(master, &named) == *there)
    }

    /// Why votes do not count, in the words of the Sentinels.
    pub(in crate::lock) fn problem(&self) -> Option<String> {
        match self {
            NodeAddress::Fixed(_) => None,
            NodeAddress::Named(_, sentinels) => sentinels.problem(),
        }
    }

    /// How much longer than others this node must wait before it votes.
    pub(in crate::lock) fn confirm(&self) -> Duration {
        match self {
            NodeAddress::Fixed(_) => Duration::ZERO,
            NodeAddress::Named(..) => CONFIRM,
        }
    }

    /// Returns once the node is not this Redis any more, or that was elected anew.
    pub(in crate::lock) async fn left(&self, there: &Whereabouts) {
        let NodeAddress::Named(master, sentinels) = self else {
            return std::future::pending().await;
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
        if let NodeAddress::Named(_, sentinels) = self {
            let mut changes = sentinels.changes();
            // Whoever asks for the URL then is told what is wrong.
            let _ = tokio::time::timeout(limit, changes.wait_for(Option::is_some)).await;
        }
    }
}

impl fmt::Display for NodeAddress {
    /// Writes the address, or the master's name and the Sentinels, never a user or a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NodeAddress::Fixed(url) => url.fmt(f),
            NodeAddress::Named(master, _) => master.fmt(f),
        }
    }
}

/// The connector for all lock nodes of a configuration.
pub(crate) fn connector_to_nodes(config: &LocksConfig) -> Connector {
    let logins: Vec<RedisUrl> = config.nodes.iter().map(|node| node.login().clone()).collect();
    Connector::start("node", &config.tls, &logins)
}

/// Finds out once where a lock node is.
///
/// # Errors
/// Why no majority of its Sentinels names a master.
pub(crate) async fn locate(node: &LockNode, tls: &ClientTls) -> Result<Whereabouts, String> {
    match node {
        LockNode::Fixed(url) => Ok(Whereabouts { url: url.clone(), election: None }),
        LockNode::Sentinels(master) => {
            let way = Connector::start("sentinel", tls, &master.sentinels);
            sentinel::ask_once(master, &way, true).await.0.map(|named| at(master, &named))
        }
        LockNode::Cluster(_) => Err("its shards are several".into()),
    }
}

fn at(master: &SentinelMaster, named: &NamedMaster) -> Whereabouts {
    let url = master.at(&named.address.host, named.address.port);
    Whereabouts { url, election: named.address.election }
}
