//! A real Redis Cluster for `lockgate dev --cluster`: three masters, and a replica for each.

use std::{
    io,
    time::{Duration, Instant},
};

use anyhow::bail;
use bb8_redis::redis::{self, Cmd, FromRedisValue, RedisError};
use tokio::time::sleep;

use crate::{
    config::{ClientTls, RedisUrl},
    net::{
        Connector,
        redis_client::{self, Connection},
    },
    tools::{free_port::free_port, redis_server::RedisServer},
};

/// The number of masters, and of replicas.
const MASTERS: usize = 3;
/// The number of all nodes.
pub(super) const NODES: usize = 2 * MASTERS;
/// The number of a cluster's slots.
const SLOTS: usize = 16384;
/// How long the nodes may take to know each other.
const LIMIT: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How long a node may be silent before the others consider it dead, in ms. It is short, as a person waits.
const NODE_TIMEOUT: &str = "2000";

/// Starts the nodes (the masters, then their replicas), which do not know each other yet.
///
/// # Errors
/// Those of [`RedisServer::start`].
pub(super) fn start() -> io::Result<Vec<RedisServer>> {
    let node = || {
        let bus = free_port()?.to_string();
        RedisServer::start(&[
            "--cluster-enabled",
            "yes",
            "--cluster-port",
            &bus,
            "--cluster-node-timeout",
            NODE_TIMEOUT,
            // The others serve on while a master is dead.
            "--cluster-require-full-coverage",
            "no",
            "--repl-diskless-sync-delay",
            "0",
        ])
    };
    (0..NODES).map(|_| node()).collect()
}

/// Makes a cluster of the nodes, and waits until all of them report that it works.
///
/// # Errors
/// The nodes', or that they did not come to know each other in time.
pub(super) async fn form(servers: &[RedisServer]) -> anyhow::Result<()> {
    let urls: Vec<RedisUrl> = servers.iter().map(|node| RedisUrl::local(node.port())).collect();
    let way = Connector::start("dev", &ClientTls::default(), &urls);
    let mut nodes = Vec::new();
    for url in &urls {
        nodes.push(redis_client::connect(url, &way).await?);
    }
    let share = SLOTS / MASTERS;
    for (index, node) in nodes.iter_mut().take(MASTERS).enumerate() {
        let last = if index + 1 == MASTERS { SLOTS } else { (index + 1) * share };
        ask::<()>(node, cluster("SET-CONFIG-EPOCH").arg(index + 1)).await?;
        ask::<()>(node, cluster("ADDSLOTSRANGE").arg(index * share).arg(last - 1)).await?;
    }
    for (index, server) in servers.iter().enumerate() {
        let mut port = redis::cmd("CONFIG");
        let (_, bus): (String, u16) =
            ask(&mut nodes[index], port.arg("GET").arg("cluster-port")).await?;
        let mut meet = cluster("MEET");
        meet.arg("127.0.0.1").arg(server.port()).arg(bus);
        for node in &mut nodes[..index] {
            ask::<()>(node, &meet).await?;
        }
    }
    let all = servers.len();
    until(&mut nodes, "NODES", |text| !text.contains("handshake") && text.lines().count() == all)
        .await?;
    for index in 0..MASTERS {
        let id: String = ask(&mut nodes[index], &cluster("MYID")).await?;
        ask::<()>(&mut nodes[MASTERS + index], cluster("REPLICATE").arg(id)).await?;
    }
    until(&mut nodes, "NODES", |text| text.matches("slave ").count() == MASTERS).await?;
    until(&mut nodes, "INFO", |text| text.contains("cluster_state:ok")).await
}

fn cluster(verb: &str) -> Cmd {
    let mut command = redis::cmd("CLUSTER");
    command.arg(verb);
    command
}

async fn ask<T: FromRedisValue>(node: &mut Connection, command: &Cmd) -> Result<T, RedisError> {
    command.query_async(&mut node.redis).await
}

/// Waits until `is_so` is true of each node's reply.
async fn until(
    nodes: &mut [Connection],
    verb: &str,
    is_so: impl Fn(&str) -> bool,
) -> anyhow::Result<()> {
    let deadline = Instant::now() + LIMIT;
    for node in nodes {
        while !is_so(&ask::<String>(node, &cluster(verb)).await?) {
            if Instant::now() > deadline {
                bail!("the nodes of the cluster do not come to know each other");
            }
            sleep(LOOK_EVERY).await;
        }
    }
    Ok(())
}
