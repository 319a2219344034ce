//! The data servers of `lockgate dev`: one Redis, a master that Sentinels watch, or a cluster.

use std::{
    io,
    net::SocketAddr,
    thread,
    time::{Duration, Instant},
};

use anyhow::bail;
use bb8_redis::redis::{self, Connection, InfoDict, RedisResult};

use super::redis_cluster;
use crate::{
    config::{ClusterConfig, Config, DataConfig, RedisUrl, SentinelMaster},
    tools::{redis_server::RedisServer, sentinel_server::SentinelServer},
};

/// Arguments for a server that evicts nothing.
pub(super) const EVICT_NOTHING: &[&str] = &["--maxmemory-policy", "noeviction"];
/// The master's name at the Sentinels, and the numbers of its replicas and Sentinels.
const MASTER: &str = "mymaster";
const REPLICAS: usize = 2;
const SENTINELS: usize = 3;
/// The number of a cluster's masters and replicas.
pub(super) const CLUSTER_NODES: usize = 6;
/// How long a cluster's node may be silent before the others consider it dead, in ms. It is short, as a person waits.
const CLUSTER_SILENCE: u32 = 2000;
/// How long the replicas may take to find their master.
const START_LIMIT: Duration = Duration::from_secs(20);
/// How long clients wait for a master: longer than a failover takes.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);

/// The data servers.
pub(super) enum DataServers {
    One(RedisServer),
    Watched {
        /// The master at first.
        master: RedisServer,
        replicas: Vec<RedisServer>,
        sentinels: Vec<SentinelServer>,
    },
    /// The masters, then a replica for each.
    Cluster(Vec<RedisServer>),
}

impl DataServers {
    /// Starts one Redis.
    ///
    /// # Errors
    /// The errors of [`RedisServer::start`], like those of the next two functions.
    pub(super) fn one() -> anyhow::Result<DataServers> {
        Ok(DataServers::One(RedisServer::start(EVICT_NOTHING)?))
    }

    /// Starts a cluster.
    pub(super) fn cluster() -> anyhow::Result<DataServers> {
        // The others serve on while a master is dead.
        let arguments = &["--cluster-require-full-coverage", "no"];
        let nodes = (0..CLUSTER_NODES).map(|_| redis_cluster::node(CLUSTER_SILENCE, arguments));
        let nodes = nodes.collect::<io::Result<Vec<_>>>()?;
        redis_cluster::form(&nodes)?;
        Ok(DataServers::Cluster(nodes))
    }

    /// Starts a master, its replicas and Sentinels, and waits until the replicas have found the master.
    pub(super) fn watched() -> anyhow::Result<DataServers> {
        let master = RedisServer::start(EVICT_NOTHING)?;
        let port = master.port().to_string();
        let of_master = [EVICT_NOTHING, &["--replicaof", "127.0.0.1", &port]].concat();
        let watch = format!(
            "sentinel monitor {MASTER} 127.0.0.1 {port} 2\n\
             sentinel down-after-milliseconds {MASTER} 2000\n\
             sentinel failover-timeout {MASTER} 10000"
        );
        let replicas = (0..REPLICAS).map(|_| RedisServer::start(&of_master));
        let replicas = replicas.collect::<io::Result<Vec<_>>>()?;
        // Sentinels ask the master for its replicas only now and then.
        let deadline = Instant::now() + START_LIMIT;
        let mut asked = master.connect()?;
        while known_replicas(&mut asked)? != Some(REPLICAS) {
            if Instant::now() > deadline {
                bail!("the replicas do not find their master");
            }
            thread::sleep(Duration::from_millis(20));
        }
        let sentinels = (0..SENTINELS).map(|_| SentinelServer::start(&watch));
        Ok(DataServers::Watched {
            master,
            replicas,
            sentinels: sentinels.collect::<io::Result<_>>()?,
        })
    }

    /// Writes these servers into the configuration.
    pub(super) fn configure(&self, config: &mut Config) {
        let local = |server: &RedisServer| RedisUrl::local(server.port());
        config.data = match self {
            DataServers::One(server) => DataConfig::Fixed(local(server)),
            DataServers::Watched { sentinels, .. } => {
                config.connect_timeout = CONNECT_TIMEOUT;
                let ports = sentinels.iter().map(SentinelServer::port);
                DataConfig::Sentinels(SentinelMaster::local(ports, MASTER))
            }
            DataServers::Cluster(nodes) => {
                DataConfig::Cluster(ClusterConfig::of(nodes.iter().map(local).collect()))
            }
        };
    }

    /// A line for each server.
    pub(super) fn welcome(&self) -> String {
        let all = |what: &str, servers: &[RedisServer]| -> String {
            servers.iter().map(|server| line(what, server.addr(), server.pid())).collect()
        };
        match self {
            DataServers::One(server) => line("data node", server.addr(), server.pid()),
            DataServers::Watched { master, replicas, sentinels } => {
                let watching = sentinels.iter().map(|one| line("Sentinel", one.addr(), one.pid()));
                line("master", master.addr(), master.pid())
                    + &all("replica", replicas)
                    + &watching.collect::<String>()
            }
            DataServers::Cluster(nodes) => {
                let (masters, replicas) = nodes.split_at(nodes.len() / 2);
                all("master", masters) + &all("replica", replicas)
            }
        }
    }

    /// Returns commands to try, with the proxy at `port`.
    pub(super) fn to_try(&self, port: u16) -> String {
        match self {
            DataServers::One(_) => format!("  redis-cli -p {port} SET x 1\n"),
            DataServers::Watched { master, .. } => format!(
                "  redis-cli -p {port} SET x 1\n  \
                 kill -9 {}    (the master: the next client waits some 5 s for another)\n  \
                 redis-cli -p {port} ROLE\n",
                master.pid()
            ),
            DataServers::Cluster(nodes) => format!(
                "  redis-cli -c -p {port} SET x 1\n  \
                 redis-cli -p {port} CLUSTER NODES        (the fronts, not the nodes)\n  \
                 kill -9 {}    (a master: its replica takes over in a few seconds)\n  \
                 redis-cli -c -p {} SET x 2\n",
                nodes.first().map_or(0, RedisServer::pid),
                port.saturating_add(1)
            ),
        }
    }
}

/// Returns how many replicas a master has.
fn known_replicas(master: &mut Connection) -> RedisResult<Option<usize>> {
    let info: InfoDict = redis::cmd("INFO").arg("replication").query(master)?;
    Ok(info.get("connected_slaves"))
}

/// A line of the welcome about one server.
pub(super) fn line(what: &str, addr: SocketAddr, pid: u32) -> String {
    format!("  {what:<11} {addr}  (pid {pid})\n")
}
