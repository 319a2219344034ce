//! The data node: which Redis it is now, and the way to it.
//!
//! A data node at one address is that Redis for as long as the proxy runs, and nothing here asks it anything. One
//! that Sentinels name, or that is behind a name whose address changes, is followed: a Redis has a [`Tenure`] while
//! it is the data node, and all sessions on it end with the tenure. Each node of a Redis Cluster has a front, which
//! is a data node of its own: [`DataNode::front`].
//!
//! - `tenure`: one Redis for as long as it is the data node.
//! - `follow`: from one to the next. `role`: whether a Redis is a master, in its own words.
//! - `cluster`: which node is behind which front. `front_view`: how a client there is shown the others.
//! - `data_metrics`: counters of all. [`write_refusals`]: whether it accepts writes.

mod cluster;
mod data_metrics;
mod follow;
mod front_view;
mod role;
mod tenure;
pub(crate) mod write_refusals;

use std::{fmt, io, net::IpAddr, sync::Arc, time::Duration};

use ::metrics::Counter;
use bb8_redis::redis::{ErrorKind, RedisError};
use tokio::{
    sync::{Notify, watch},
    time::{Instant, timeout},
};
use tokio_util::task::AbortOnDropHandle;

use self::{
    cluster::ClusterWatch,
    data_metrics::FollowMetrics,
    follow::{Authority, Following, RETRY},
};
pub(crate) use self::{cluster::FrontOfNode, front_view::FrontView, tenure::Tenure};
use crate::{
    cluster::trouble::{ClusterFault, ClusterTrouble},
    config::{ClientTls, Config, DataConfig, Endpoint, RedisUrl},
    net::{
        self, Connector, Stream,
        proxy_header::Ends,
        redis_client::{self, Connection},
    },
    sentinel::{self, SentinelFault, SentinelTrouble, Sentinels},
    sync::Mutex,
};

/// Gives each metric its help text. Install the recorder first.
pub(crate) fn describe() {
    data_metrics::describe();
    write_refusals::describe();
    sentinel::describe();
}

/// The Redis to which clients' commands go, whichever it is now.
pub(crate) struct DataNode {
    /// Its name in the configuration.
    name: String,
    connector: Connector,
    /// The Redis that it is now.
    tenure: watch::Receiver<Option<Arc<Tenure>>>,
    way: DataWay,
}

/// How the proxy knows which Redis the data node is.
enum DataWay {
    /// It is always the same; the sender only keeps the channel open.
    Fixed(Arc<Tenure>, #[allow(dead_code, reason = "kept")] watch::Sender<Option<Arc<Tenure>>>),
    /// It is followed.
    Followed(Arc<Following>, #[allow(dead_code, reason = "aborted with it")] AbortOnDropHandle<()>),
    /// It is a cluster. The proxy's own questions go to any node that answers.
    Cluster(
        Arc<ClusterWatch>,
        #[allow(dead_code, reason = "aborted with it")] AbortOnDropHandle<()>,
    ),
    /// It is the cluster node behind a front.
    Front(Arc<ClusterWatch>, usize),
}

/// A client's connection to the data node.
pub(crate) struct DataStream {
    pub(crate) stream: Stream,
    /// The tenure with which the session must end. `None` if it never ends.
    pub(crate) tenure: Option<Arc<Tenure>>,
}

/// Makes the connector for the data node of a configuration.
pub(crate) fn connector(config: &Config) -> Connector {
    let url = RedisUrl { tls: config.data.uses_tls(), ..config.data.login().clone() };
    Connector::start("data", &config.tls, &[url]).sending_header(config.send_proxy_protocol)
}

/// Makes the connector for Sentinels.
pub(crate) fn sentinel_connector(tls: &ClientTls, sentinels: &[RedisUrl]) -> Connector {
    Connector::start("sentinel", tls, sentinels)
}

impl DataNode {
    /// Starts the data node in the current runtime, and follows it if it can change.
    pub(crate) fn start(config: &Config) -> Arc<DataNode> {
        DataNode::take_over(config, Vec::new())
    }

    /// Like [`DataNode::start`], with a cluster's fronts as the previous process had them.
    pub(crate) fn take_over(config: &Config, fronts: Vec<FrontOfNode>) -> Arc<DataNode> {
        let (name, connector) = (config.data.to_string(), connector(config));
        let authority = match &config.data {
            DataConfig::Fixed(url) => {
                let fixed = Arc::new(Tenure::new(url.clone(), Arc::default(), Counter::noop()));
                let (sender, tenure) = watch::channel(Some(fixed.clone()));
                let way = DataWay::Fixed(fixed, sender);
                return Arc::new(DataNode { name, connector, tenure, way });
            }
            DataConfig::Primary(url) => Authority::Name(url.clone()),
            DataConfig::Sentinels(master) => {
                let way = sentinel_connector(&config.tls, &master.sentinels);
                Authority::Sentinels(Sentinels::start(master, &way, false), master.clone())
            }
            DataConfig::Cluster(cluster) => {
                let listen = config.listen.iter().map(|listener| listener.address).collect();
                let enforces = config.guards.enforces();
                let watch = ClusterWatch::new(cluster, listen, &connector).taking_over(fronts);
                let watch = Arc::new(if enforces { watch.keeping_clients_here() } else { watch });
                let tenure = watch.any();
                let task = AbortOnDropHandle::new(tokio::spawn(watch.clone().run()));
                let way = DataWay::Cluster(watch, task);
                return Arc::new(DataNode { name, connector, tenure, way });
            }
        };
        let (sender, tenure) = watch::channel(None);
        let following = Arc::new(Following {
            name: name.clone(),
            authority,
            connector: connector.clone(),
            tenure: sender,
            problem: Mutex::new(Some("not asked yet".into())),
            wanted: Arc::new(Notify::new()),
            metrics: FollowMetrics::new(),
        });
        let task = AbortOnDropHandle::new(tokio::spawn(following.clone().run()));
        Arc::new(DataNode { name, connector, tenure, way: DataWay::Followed(following, task) })
    }

    /// Returns the connector for the proxy's own connections.
    pub(crate) fn connector(&self) -> &Connector {
        &self.connector
    }

    /// Whether the data node may become another Redis.
    pub(crate) fn is_followed(&self) -> bool {
        !matches!(self.way, DataWay::Fixed(..))
    }

    /// Returns the data node for clients of the listener with this number: of a cluster, the node behind that front.
    pub(crate) fn front(self: &Arc<DataNode>, index: usize) -> Arc<DataNode> {
        let DataWay::Cluster(watch, _) = &self.way else { return self.clone() };
        Arc::new(DataNode {
            name: self.name.clone(),
            connector: self.connector.clone(),
            tenure: watch.front(index),
            way: DataWay::Front(watch.clone(), index),
        })
    }

    /// Whether clients come through a front of a cluster.
    pub(crate) fn is_front(&self) -> bool {
        matches!(self.way, DataWay::Front(..))
    }

    /// Returns the number of the front, or 0 if this is none.
    pub(crate) fn number(&self) -> usize {
        if let DataWay::Front(_, index) = &self.way { *index } else { 0 }
    }

    /// Returns how often the node behind the front may have gained slots.
    pub(crate) fn gains(&self) -> u64 {
        if let DataWay::Front(watch, index) = &self.way { watch.gains(*index) } else { 0 }
    }

    /// Returns how a client that connected to `reached`, and is connected to `node`, is shown the cluster. Returns
    /// `None` if its replies are not changed.
    pub(crate) fn view(&self, reached: IpAddr, tls: bool, node: &Tenure) -> Option<Arc<FrontView>> {
        let DataWay::Front(watch, _) = &self.way else { return None };
        let host = watch.host(reached)?;
        let asked = match &node.url.endpoint {
            Endpoint::Tcp { host, .. } => host.clone(),
            Endpoint::Unix(_) => String::new(),
        };
        Some(Arc::new(FrontView {
            table: watch.table.clone(),
            host,
            tls,
            asked,
            wanted: watch.wanted.clone(),
            metrics: watch.metrics.clone(),
        }))
    }

    /// Returns each Redis to which clients are led now.
    pub(crate) fn all(&self) -> Vec<Arc<Tenure>> {
        match &self.way {
            DataWay::Cluster(watch, _) => watch.all(),
            _ => self.tenure().into_iter().collect(),
        }
    }

    /// Returns a line about the cluster's size, and what is wrong with it. Returns `None` if it is no cluster.
    pub(crate) fn cluster(&self) -> Option<(String, Vec<ClusterTrouble>)> {
        match &self.way {
            DataWay::Cluster(watch, _) => Some((watch.summary(), watch.troubles())),
            _ => None,
        }
    }

    /// Returns the fronts of a cluster that lead to a node, or did before the node was gone.
    pub(crate) fn fronts(&self) -> Vec<FrontOfNode> {
        if let DataWay::Cluster(watch, _) = &self.way { watch.led() } else { Vec::new() }
    }

    /// Returns the fault of a node that leads clients past the fronts, with what to do about it, if there is one.
    pub(crate) fn way_past(&self) -> Option<ClusterTrouble> {
        let (_, troubles) = self.cluster()?;
        troubles.into_iter().find(|trouble| trouble.fault == ClusterFault::Past)
    }

    /// Returns the Redis that is the data node now, or `None` while there is none.
    pub(crate) fn tenure(&self) -> Option<Arc<Tenure>> {
        self.tenure.borrow().clone()
    }

    /// Follows [`DataNode::tenure`]. Never changes if the data node is not followed.
    pub(crate) fn changes(&self) -> watch::Receiver<Option<Arc<Tenure>>> {
        let mut changes = self.tenure.clone();
        changes.mark_unchanged();
        changes
    }

    /// Waits until there is a data node, at most for `limit`.
    pub(crate) async fn found(&self, limit: Duration) -> Option<Arc<Tenure>> {
        let mut changes = self.tenure.clone();
        let found = timeout(limit, changes.wait_for(Option::is_some)).await;
        found.ok()?.ok()?.clone()
    }

    /// Returns why there is no data node now, or why it does not answer. Returns `None` if it answers, or is not
    /// followed.
    pub(crate) fn problem(&self) -> Option<String> {
        match &self.way {
            DataWay::Fixed(..) => None,
            DataWay::Followed(following, _) => following.problem.lock().clone(),
            DataWay::Cluster(watch, _) | DataWay::Front(watch, _) if self.tenure().is_none() => {
                let first = watch.troubles().into_iter().next();
                Some(first.map_or_else(|| "not asked yet".into(), |trouble| trouble.to_string()))
            }
            DataWay::Cluster(..) | DataWay::Front(..) => None,
        }
    }

    /// Returns what is wrong with the Sentinels, a line for each.
    pub(crate) fn sentinel_problems(&self) -> Vec<String> {
        let DataWay::Followed(following, _) = &self.way else { return Vec::new() };
        let Authority::Sentinels(sentinels, _) = &following.authority else { return Vec::new() };
        let line = |(url, SentinelTrouble { what, fault }): (RedisUrl, SentinelTrouble)| {
            let grave = if fault == SentinelFault::Disagrees { "" } else { "no use: " };
            format!("sentinel {url}: {grave}{what}")
        };
        let mut lines: Vec<String> = sentinels.troubles().into_iter().map(line).collect();
        lines.extend(sentinels.problem().map(|problem| format!("sentinels: {problem}")));
        lines
    }

    /// Connects the client library to the data node, for the proxy's own questions.
    ///
    /// # Errors
    /// Those of the network and the node, and that there is no data node now.
    pub(crate) async fn ask(&self) -> Result<(Arc<Tenure>, Connection), RedisError> {
        self.ask_for(redis_client::ORDINARY).await
    }

    /// Connects as [`DataNode::ask`] does, for replies of at most `longest` bytes.
    ///
    /// # Errors
    /// Those of [`DataNode::ask`].
    pub(crate) async fn ask_for(
        &self,
        longest: usize,
    ) -> Result<(Arc<Tenure>, Connection), RedisError> {
        let Some(tenure) = self.tenure() else {
            let why = self.problem().unwrap_or_default();
            return Err((ErrorKind::Io, "there is no data node now", why).into());
        };
        let connection = redis_client::connect_for(&tenure.url, &self.connector, longest).await?;
        Ok((tenure, connection))
    }

    /// Connects on behalf of a client within `limit`. If the data node is followed, waits for one while there is
    /// none, and tries again while it cannot be reached.
    ///
    /// # Errors
    /// The last reason why there was no connection.
    pub(crate) async fn connect_for(
        &self,
        client: Option<&Ends>,
        limit: Duration,
        keepalive: Duration,
    ) -> io::Result<DataStream> {
        match &self.way {
            DataWay::Fixed(fixed, _) => {
                let (url, connector) = (&fixed.url, &self.connector);
                let stream = net::connect_for(client, url, connector, limit, keepalive).await?;
                Ok(DataStream { stream, tenure: None })
            }
            DataWay::Cluster(watch, _) | DataWay::Front(watch, _) => {
                self.connect_to_front(watch, client, limit, keepalive).await
            }
            DataWay::Followed(following, _) => {
                self.connect_to_whoever_it_is(following, client, limit, keepalive).await
            }
        }
    }

    /// Connects to the node behind a front, once the nodes are known. A node that is down has no
    /// successor here: its replica has a front of its own.
    async fn connect_to_front(
        &self,
        watch: &ClusterWatch,
        client: Option<&Ends>,
        limit: Duration,
        keepalive: Duration,
    ) -> io::Result<DataStream> {
        let deadline = Instant::now() + limit;
        let mut known = watch.known.subscribe();
        let is_known = timeout(limit, known.wait_for(|known| *known)).await.is_ok();
        let Some(tenure) = self.tenure() else {
            let why = match is_known {
                true => "no node of the cluster is behind this front".into(),
                false => self.problem().unwrap_or_default(),
            };
            return Err(io::Error::other(why));
        };
        let left = deadline.saturating_duration_since(Instant::now());
        match net::connect_for(client, &tenure.url, &self.connector, left, keepalive).await {
            Ok(stream) => Ok(DataStream { stream, tenure: Some(tenure) }),
            Err(error) => {
                watch.wanted.notify_one();
                Err(error)
            }
        }
    }

    async fn connect_to_whoever_it_is(
        &self,
        following: &Following,
        client: Option<&Ends>,
        limit: Duration,
        keepalive: Duration,
    ) -> io::Result<DataStream> {
        let deadline = Instant::now() + limit;
        let mut changes = self.tenure.clone();
        let mut failed = None;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let tenure = changes.borrow_and_update().clone();
            if let Some(tenure) = tenure.filter(|_| !left.is_zero()) {
                let connecting =
                    net::connect_for(client, &tenure.url, &self.connector, left, keepalive);
                tokio::select! {
                    connected = connecting => match connected {
                        Ok(_) if tenure.has_ended() => continue,
                        Ok(stream) => return Ok(DataStream { stream, tenure: Some(tenure) }),
                        // Waiting for another data node does not help this proxy.
                        Err(error) if net::descriptors_are_used_up(&error) => return Err(error),
                        Err(error) => failed = Some(error),
                    },
                    () = tenure.ended() => continue,
                }
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(match failed {
                    Some(error) if self.tenure().is_some() => error,
                    _ => self.nobody(limit),
                });
            }
            following.wanted.notify_one();
            let _ = timeout(left.min(RETRY), changes.changed()).await;
        }
    }

    /// Makes the error for a client that waited for a data node in vain.
    fn nobody(&self, limit: Duration) -> io::Error {
        let why = self.problem().unwrap_or_default();
        io::Error::other(format!("no master within {limit:?}: {why}"))
    }
}

impl fmt::Display for DataNode {
    /// Writes its name in the configuration, never a user or a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}
