//! Tells the other proxies, over the lock nodes, in which modes the adopt rules are here, and reads
//! theirs.
//!
//! A lock node keeps the records of all proxies under one key, each for [`LASTS`]. A proxy without
//! rules writes one only beside those of others, so that lock nodes of proxies that adopt nothing have
//! no such key.

use std::{
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use bb8_redis::redis::{self, RedisError};
use sha1_smol::Sha1;
use tokio::{
    sync::watch,
    task::JoinHandle,
    time::{sleep, timeout},
};
use tracing::{debug, warn};

use crate::{
    adopt::fleet::{Fleet, MODES, MOST_RECORDS, ProxyModes},
    config::{ClientTls, Config, LockNode, RedisUrl},
    data::DataNode,
    lock,
    net::{Connector, redis_client},
    session::Shared,
};

/// How often records are written and read.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// How long a record lasts: three looks may fail.
const LASTS: Duration = Duration::from_secs(35);
/// How long one server may take.
const LIMIT: Duration = Duration::from_secs(2);

const SCRIPT: &str = include_str!("fleet.lua");

/// Starts to tell and to look, until the proxy is gone.
pub(super) fn start(shared: &Arc<Shared>, config: &Config, data: Arc<DataNode>) {
    let fleet = &shared.fleet;
    let tell = watch::Sender::new(modes(fleet, config, 0));
    tokio::spawn(run(Arc::downgrade(shared), fleet.clone(), data, tell));
}

/// The tasks that look at lock nodes. They are others once the lock nodes are changed.
#[derive(Default)]
struct Lookers(Vec<(LockNode, AbortOnDrop)>);

/// A task that ends once nobody wants it any more.
struct AbortOnDrop(JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Lookers {
    /// Looks at these nodes, and at no others.
    fn look_at(&mut self, nodes: &[LockNode], shared: &Shared, tell: &watch::Sender<ProxyModes>) {
        self.0.retain(|(node, _)| nodes.contains(node));
        let locks = &shared.config.load().locks;
        for node in nodes {
            if self.0.iter().all(|(known, _)| known != node) {
                let ways = (lock::connector_to_nodes(locks), locks.tls.clone());
                let looking = look(shared.fleet.clone(), node.clone(), ways, tell.subscribe());
                self.0.push((node.clone(), AbortOnDrop(tokio::spawn(looking))));
            }
        }
    }
}

/// What operators are told that this proxy is called: its machine, where it listens, its process.
pub(super) fn name_of(config: &Config) -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let listen: Vec<String> =
        config.listen.iter().take(2).map(|listener| listener.address.to_string()).collect();
    format!("{}, {}, pid {}", host.trim(), listen.join(" "), std::process::id())
}

/// The modes of this proxy as they are now.
fn modes(fleet: &Fleet, config: &Config, sequence: u64) -> ProxyModes {
    let name = name_of(config);
    let modes = ProxyModes::new(&fleet.id, &name, &config.data.to_string(), &config.adopt.rules);
    ProxyModes { sequence, ..modes }
}

/// Has all lock nodes told now and then, and when a mode has changed.
async fn run(
    shared: Weak<Shared>,
    fleet: Arc<Fleet>,
    data: Arc<DataNode>,
    tell: watch::Sender<ProxyModes>,
) {
    let mut replication = String::new();
    let mut changes = data.changes();
    let mut lookers = Lookers::default();
    for sequence in 1.. {
        let Some(config) = shared.upgrade().map(|shared| {
            lookers.look_at(&shared.engine.serving(), &shared, &tell);
            shared.config.load_full()
        }) else {
            return;
        };
        let mut ours = modes(&fleet, &config, sequence);
        // Nobody to compare with.
        if !ours.rules.is_empty() || fleet.has_others() {
            // A data node that does not answer now is the one that it was.
            if let Ok(Ok(Some(id))) = timeout(LIMIT, replication_id(&data)).await {
                replication = id;
            }
            ours.replication_id.clone_from(&replication);
        }
        fleet.runs(ours.clone(), Instant::now());
        tell.send_replace(ours);
        tokio::select! {
            () = sleep(LOOK_EVERY) => {}
            () = fleet.stepped.notified() => {}
            // The other proxies know the new data node by its replication id.
            Ok(()) = changes.changed() => {}
        }
    }
}

/// The replication id of the data node, by which proxies know that they have the same one.
async fn replication_id(data: &DataNode) -> Result<Option<String>, RedisError> {
    let (_, mut connection) = data.ask().await?;
    let info: String =
        redis::cmd("INFO").arg("replication").query_async(&mut connection.redis).await?;
    let id = info.lines().find_map(|line| line.strip_prefix("master_replid:"));
    Ok(id.map(|id| id.trim_end().chars().take(40).collect()))
}

/// Writes each record of this proxy on one lock node, and reads those of others.
async fn look(
    fleet: Arc<Fleet>,
    node: LockNode,
    (way, tls): (Connector, ClientTls),
    mut told: watch::Receiver<ProxyModes>,
) {
    let mut is_refused = false;
    while told.changed().await.is_ok() {
        let ours = told.borrow_and_update().clone();
        let url = match timeout(LIMIT, lock::locate(&node, &tls, MODES)).await {
            Ok(Ok(there)) => there.url,
            // The engine tells that too.
            Ok(Err(_)) | Err(_) => continue,
        };
        match timeout(LIMIT, exchange(&url, &way, &ours)).await {
            Ok(Ok(text)) => {
                is_refused = false;
                fleet.heard(ProxyModes::read_all(&text), Instant::now());
            }
            Ok(Err(error))
                if !error.is_io_error()
                    && !error.is_timeout()
                    && !is_refused
                    && !ours.rules.is_empty() =>
            {
                is_refused = true;
                warn!(
                    node = %url, %error,
                    "adopt: modes are not compared with those of other proxies over this lock node"
                );
            }
            // The node is away, which others tell.
            Ok(Err(error)) => debug!(node = %url, %error, "the modes of proxies are not known"),
            Err(_) => debug!(node = %url, "the modes of proxies are not told in time"),
        }
    }
}

async fn exchange(
    url: &RedisUrl,
    way: &Connector,
    ours: &ProxyModes,
) -> Result<String, RedisError> {
    let mut connection = redis_client::connect(url, way).await?;
    let mut commands = redis::pipe();
    commands.cmd("SCRIPT").arg("LOAD").arg(SCRIPT).ignore();
    commands
        .cmd("EVALSHA")
        .arg(Sha1::from(SCRIPT).digest().to_string())
        .arg(1)
        .arg(MODES)
        .arg(&ours.id)
        .arg(ours.record())
        .arg(LASTS.as_millis().to_string())
        .arg(MOST_RECORDS)
        .arg(i64::from(!ours.rules.is_empty()));
    let (text,): (String,) = commands.query_async(&mut connection.redis).await?;
    Ok(text)
}
