//! A real Redis Cluster of `redis-server` children, for `lockgate dev --cluster` and for tests.

use std::{
    io, thread,
    time::{Duration, Instant},
};

use anyhow::bail;
use bb8_redis::redis::{self, Connection, FromRedisValue, RedisResult};

use super::{free_port::free_port, redis_server::RedisServer};

/// The number of a cluster's slots.
const SLOTS: usize = 16384;
/// How long the nodes may take to know each other.
const LIMIT: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Starts a node that has met no other. `silence`: for how many ms it lets another node be silent before it considers
/// it dead.
///
/// # Errors
/// Those of [`RedisServer::start`].
pub fn node(silence: u32, arguments: &[&str]) -> io::Result<RedisServer> {
    let (bus, silence) = (free_port()?.to_string(), silence.to_string());
    let own = [
        &["--cluster-enabled", "yes", "--cluster-port", &bus, "--cluster-node-timeout", &silence],
        &["--repl-diskless-sync-delay", "0"][..],
    ];
    RedisServer::start(&[&own.concat(), arguments].concat())
}

/// Makes a cluster of new nodes, and waits until all of them report that it works. The first half are the masters,
/// which share the slots; the others are a replica for each.
///
/// # Errors
/// The nodes', or that they did not come to know each other in time.
pub fn form(nodes: &[RedisServer]) -> anyhow::Result<()> {
    let masters = nodes.len() / 2;
    let mut asked = nodes.iter().map(RedisServer::connect).collect::<RedisResult<Vec<_>>>()?;
    for (index, master) in asked.iter_mut().take(masters).enumerate() {
        let (first, last) = slots(masters, index);
        ask::<()>(master, "SET-CONFIG-EPOCH", &[&(index + 1).to_string()])?;
        ask::<()>(master, "ADDSLOTSRANGE", &[&first.to_string(), &last.to_string()])?;
    }
    for (index, node) in nodes.iter().enumerate() {
        for other in &nodes[..index] {
            meet(node, other)?;
        }
    }
    all_know(&nodes.iter().collect::<Vec<_>>())?;
    for index in 0..masters {
        let id: String = ask(&mut asked[index], "MYID", &[])?;
        ask::<()>(&mut asked[masters + index], "REPLICATE", &[&id])?;
    }
    for node in &mut asked {
        until(node, "NODES", |text| text.matches("slave ").count() == masters)?;
        until(node, "INFO", |text| text.contains("cluster_state:ok"))?;
    }
    Ok(())
}

/// Returns the first and the last slot of a master at the start.
pub fn slots(masters: usize, index: usize) -> (usize, usize) {
    let share = SLOTS / masters;
    let end = if index + 1 == masters { SLOTS } else { (index + 1) * share };
    (index * share, end - 1)
}

/// Makes two nodes meet.
///
/// # Errors
/// The nodes'.
pub fn meet(one: &RedisServer, other: &RedisServer) -> RedisResult<()> {
    let mut bus = redis::cmd("CONFIG");
    let (_, bus): (String, String) =
        bus.arg(&["GET", "cluster-port"]).query(&mut other.connect()?)?;
    ask(&mut one.connect()?, "MEET", &["127.0.0.1", &other.port().to_string(), &bus])
}

/// Waits until all nodes know each other.
///
/// # Errors
/// The nodes', or that they did not come to know each other in time.
pub fn all_know(nodes: &[&RedisServer]) -> anyhow::Result<()> {
    let knows = |text: &str| !text.contains("handshake") && text.lines().count() == nodes.len();
    nodes.iter().try_for_each(|node| until(&mut node.connect()?, "NODES", knows))
}

/// Asks a node by a subcommand of CLUSTER.
fn ask<T: FromRedisValue>(node: &mut Connection, verb: &str, words: &[&str]) -> RedisResult<T> {
    redis::cmd("CLUSTER").arg(verb).arg(words).query(node)
}

/// Waits until `is_so` is true of the node's reply.
fn until(node: &mut Connection, verb: &str, is_so: impl Fn(&str) -> bool) -> anyhow::Result<()> {
    let deadline = Instant::now() + LIMIT;
    while !is_so(&ask::<String>(node, verb, &[])?) {
        if Instant::now() > deadline {
            bail!("the nodes of the cluster do not come to know each other");
        }
        thread::sleep(LOOK_EVERY);
    }
    Ok(())
}
