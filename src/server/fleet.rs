//! Writes this proxy's record on the lock nodes, and reads those of the others.
//!
//! A lock node keeps the records of all proxies under one key, each for [`LASTS`]. Each proxy looks every
//! [`LOOK_EVERY`] whether one has changed, so all others know a new record within that time. A proxy that they must
//! know first lets clients in only then ([`introduce`]). A proxy that ends says so ([`farewell`]).

use std::{
    sync::{Arc, Weak, atomic::Ordering},
    time::{Duration, Instant},
};

use bb8_redis::redis::{self, RedisError};
use sha1_smol::Sha1;
use tokio::{
    sync::watch,
    task::JoinHandle,
    time::{sleep, timeout},
};
use tracing::{debug, info, warn};

use crate::{
    config::{ClientTls, Config, LockNode, RedisUrl},
    data::DataNode,
    fleet::{
        known::Fleet,
        record::{MOST_BYTES, MOST_RECORDS, ProxyRecord, RECORDS},
    },
    lock,
    net::{
        Connector,
        redis_client::{self, Connection},
    },
    session::Shared,
};

/// How often a record is written.
const WRITE_EVERY: Duration = Duration::from_secs(10);
/// How often a proxy looks whether other records have changed.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long a record lasts: three writings may fail.
const LASTS: Duration = Duration::from_secs(35);
/// How long one server may take to answer.
const LIMIT: Duration = Duration::from_secs(2);
/// How long a proxy that starts waits for the records of the others.
const FIRST_LIMIT: Duration = Duration::from_secs(1);
/// How long a proxy that ends waits for the lock nodes to take that in.
const LAST_LIMIT: Duration = Duration::from_millis(300);

const SCRIPT: &str = include_str!("fleet.lua");

/// Progress of the tasks that write this proxy's record and read those of others.
#[derive(Clone)]
pub(super) struct FleetTelling {
    reached: watch::Receiver<Reached>,
    nodes: usize,
}

/// The number of lock nodes that have taken a record, or failed to.
#[derive(Default)]
struct Reached {
    /// For the first record of this proxy.
    first: usize,
    /// For the record that the proxy has ended.
    last: usize,
}

/// Starts writing and reading records, until the proxy is gone.
pub(super) fn start(shared: &Arc<Shared>, data: Arc<DataNode>) -> FleetTelling {
    let (told, reached) = watch::channel(Reached::default());
    let nodes = shared.engine.serving().len();
    let lookers = Lookers { all: Vec::new(), reached: Arc::new(told) };
    tokio::spawn(run(Arc::downgrade(shared), data, lookers));
    FleetTelling { reached, nodes }
}

/// Waits until the other proxies are known, for [`FIRST_LIMIT`] at most. Then waits until they know this one, if they
/// must: if its locks last longer than they would wait, or if it takes or frees locks on a side (data node or lock
/// nodes) where they do not look.
pub(super) async fn introduce(shared: &Shared, mut telling: FleetTelling) {
    let all = telling.nodes;
    let _ = timeout(FIRST_LIMIT, telling.reached.wait_for(|reached| reached.first >= all)).await;
    if shared.fleet.must_know() {
        info!("fleet: clients are let in once the other proxies know what this one has otherwise");
        sleep(LOOK_EVERY + LOOK_EVERY / 2).await;
    }
}

/// Tells the other proxies that this one serves no client any more, so that they stop reporting how it differs.
pub(super) async fn farewell(shared: &Shared, mut telling: FleetTelling) {
    shared.fleet.has_ended.store(true, Ordering::Relaxed);
    shared.fleet.stepped.notify_one();
    let all = shared.engine.serving().len();
    let _ = timeout(LAST_LIMIT, telling.reached.wait_for(|reached| reached.last >= all)).await;
}

/// The tasks that look at the lock nodes, one for each. A change of the lock nodes replaces them.
struct Lookers {
    all: Vec<(LockNode, AbortOnDrop)>,
    reached: Arc<watch::Sender<Reached>>,
}

/// A task that is aborted when this is dropped.
struct AbortOnDrop(JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Lookers {
    /// Looks at these nodes and no others.
    fn look_at(
        &mut self,
        nodes: &[LockNode],
        shared: &Arc<Shared>,
        tell: &watch::Sender<ProxyRecord>,
    ) {
        self.all.retain(|(node, _)| nodes.contains(node));
        let locks = &shared.config.load().locks;
        for node in nodes {
            if self.all.iter().all(|(known, _)| known != node) {
                let looker = Looker {
                    shared: Arc::downgrade(shared),
                    fleet: shared.fleet.clone(),
                    node: node.clone(),
                    way: lock::connector_to_nodes(locks),
                    tls: locks.tls.clone(),
                    connection: None,
                    version: String::new(),
                    is_refused: false,
                };
                let looking = looker.run(tell.subscribe(), self.reached.clone());
                self.all.push((node.clone(), AbortOnDrop(tokio::spawn(looking))));
            }
        }
    }
}

/// Returns the machine's name, or an empty string if it is not known.
pub(super) fn machine() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_owned()
}

/// Returns this proxy's name for operators: its machine, where it listens, its process.
pub(super) fn name_of(config: &Config) -> String {
    let host = machine();
    let listen: Vec<String> =
        config.listen.iter().take(2).map(|listener| listener.address.to_string()).collect();
    format!("{}, {}, pid {}", host, listen.join(" "), std::process::id())
}

/// Returns this proxy's present record.
fn record(shared: &Shared) -> ProxyRecord {
    let config = shared.config.load();
    let longest = lock::longest_grant(&config);
    let record = ProxyRecord::new(&shared.fleet.id, &name_of(&config), &config, longest);
    ProxyRecord { has_ended: shared.fleet.has_ended.load(Ordering::Relaxed), ..record }
}

/// Keeps this proxy's record up to date for the tasks that write it, one for each present lock node.
async fn run(shared: Weak<Shared>, data: Arc<DataNode>, mut lookers: Lookers) {
    let mut replication = String::new();
    let mut changes = data.changes();
    let Some(first) = shared.upgrade().map(|shared| record(&shared)) else { return };
    let tell = watch::Sender::new(first);
    loop {
        // The data node is not asked where there is nothing to compare.
        let has_rules =
            |record: &ProxyRecord| !record.guards.is_empty() || !record.adopted.is_empty();
        let is_asked = shared.upgrade().is_some_and(|shared| {
            let has_ended = shared.fleet.has_ended.load(Ordering::Relaxed);
            !has_ended && (has_rules(&tell.borrow()) || shared.fleet.has_others())
        });
        // A data node that does not answer now counts as the one that it was.
        if is_asked && let Ok(Ok(Some(id))) = timeout(FIRST_LIMIT, replication_id(&data)).await {
            replication = id;
        }
        let stepped = {
            let Some(shared) = shared.upgrade() else { return };
            let ours = ProxyRecord { replication_id: replication.clone(), ..record(&shared) };
            tell.send_if_modified(|told| {
                let sequence = told.sequence;
                let ours = ProxyRecord { sequence, ..ours };
                let has_changed = *told != ours || sequence == 0;
                *told = ProxyRecord { sequence: sequence + u64::from(has_changed), ..ours };
                has_changed
            });
            shared.fleet.runs(tell.borrow().clone(), Instant::now());
            learn(&shared);
            lookers.look_at(&shared.engine.serving(), &shared, &tell);
            shared.fleet.clone()
        };
        tokio::select! {
            () = sleep(WRITE_EVERY) => {}
            () = stepped.stepped.notified() => {}
            // Other proxies recognise the new data node by its replication id.
            Ok(()) = changes.changed() => {}
        }
    }
}

/// Applies what is known of the others: their longest grant, and the rules that they have bridged.
fn learn(shared: &Shared) {
    shared.engine.heard_of(shared.fleet.longest());
    if let Some(adoption) = &shared.adoption {
        adoption.others_bridge(|keys| shared.fleet.bridges(keys));
    }
}

/// Returns the replication id of the data node, by which proxies recognise that they have the same one.
async fn replication_id(data: &DataNode) -> Result<Option<String>, RedisError> {
    let (_, mut connection) = data.ask_for(redis_client::LARGE).await?;
    let info: String =
        redis::cmd("INFO").arg("replication").query_async(&mut connection.redis).await?;
    let id = info.lines().find_map(|line| line.strip_prefix("master_replid:"));
    Ok(id.map(|id| id.trim_end().chars().take(40).collect()))
}

/// Writer of this proxy's record on one lock node, and reader of the others'.
struct Looker {
    shared: Weak<Shared>,
    fleet: Arc<Fleet>,
    node: LockNode,
    way: Connector,
    tls: ClientTls,
    /// The connection, and the Redis that was the node when the record was last written.
    connection: Option<(RedisUrl, Connection)>,
    /// The version of the records that were read last.
    version: String,
    is_refused: bool,
}

impl Looker {
    async fn run(
        mut self,
        mut told: watch::Receiver<ProxyRecord>,
        reached: Arc<watch::Sender<Reached>>,
    ) {
        let mut is_first = true;
        loop {
            let ours = told.borrow_and_update().clone();
            self.write(&ours).await;
            let is_first = std::mem::take(&mut is_first);
            reached.send_modify(|reached| {
                reached.first += usize::from(is_first);
                reached.last += usize::from(ours.has_ended);
            });
            let looking = async {
                loop {
                    sleep(LOOK_EVERY).await;
                    self.look(&ours).await;
                }
            };
            tokio::select! {
                changed = told.changed() => if changed.is_err() { return },
                _ = timeout(WRITE_EVERY, looking) => {}
            }
        }
    }

    /// Writes this proxy's record.
    async fn write(&mut self, ours: &ProxyRecord) {
        let locating = lock::locate(&self.node, &self.tls, RECORDS);
        // The engine reports a node that cannot be found.
        let Ok(Ok(there)) = timeout(LIMIT, locating).await else { return };
        self.connection.take_if(|(url, kept)| *url != there.url || kept.is_closed());
        if self.connection.is_none() {
            let connecting = redis_client::connect_for(&there.url, &self.way, redis_client::LARGE);
            match timeout(LIMIT, connecting).await {
                Ok(Ok(connection)) => self.connection = Some((there.url, connection)),
                Ok(Err(error)) => return self.failed(&error),
                Err(_) => return,
            }
        }
        self.exchange(&ours.id, &ours.line()).await;
    }

    /// Looks whether other records have changed.
    async fn look(&mut self, ours: &ProxyRecord) {
        if self.connection.is_some() {
            self.exchange(&ours.id, "").await;
        }
    }

    async fn exchange(&mut self, id: &str, line: &str) {
        let Some((_, connection)) = &mut self.connection else { return };
        match timeout(LIMIT, exchange(connection, id, line, &self.version)).await {
            Ok(Ok((version, others))) => {
                self.is_refused = false;
                self.version = version;
                if let Some(text) = others {
                    self.fleet.heard(ProxyRecord::read_all(&text), Instant::now());
                    if let Some(shared) = self.shared.upgrade() {
                        learn(&shared);
                    }
                }
            }
            Ok(Err(error)) => {
                self.connection = None;
                self.failed(&error);
            }
            Err(_) => {
                self.connection = None;
                debug!(node = %self.node, "the records of proxies are not told in time");
            }
        }
    }

    fn failed(&mut self, error: &RedisError) {
        // The engine reports a node that is away.
        let is_away = error.is_io_error() || error.is_timeout() || error.is_connection_dropped();
        if is_away || self.is_refused {
            debug!(node = %self.node, %error, "the records of proxies are not known");
            return;
        }
        self.is_refused = true;
        warn!(
            node = %self.node, %error,
            "fleet: this proxy is not compared with others over this lock node"
        );
    }
}

async fn exchange(
    connection: &mut Connection,
    id: &str,
    line: &str,
    version: &str,
) -> Result<(String, Option<String>), RedisError> {
    let digest = Sha1::from(SCRIPT).digest().to_string();
    let mut calling = redis::cmd("EVALSHA");
    calling.arg(digest).arg(1).arg(RECORDS).arg(id).arg(line).arg(LASTS.as_millis().to_string());
    calling.arg(MOST_RECORDS).arg(MOST_BYTES).arg(version);
    let mut all = redis::pipe();
    // A restarted node has forgotten its scripts.
    if !line.is_empty() {
        all.cmd("SCRIPT").arg("LOAD").arg(SCRIPT).ignore();
    }
    all.add_command(calling);
    let (answer,): (Vec<String>,) = all.query_async(&mut connection.redis).await?;
    let mut words = answer.into_iter();
    Ok((words.next().unwrap_or_default(), words.next()))
}
