//! Follows a Redis Cluster that votes: which node is the master of each shard, and which shard has
//! which slot.
//!
//! Each shard has a seat of the cluster's voter. A proxy finds the seat by the id of the shard's master, by the id of
//! the master whose replica that one was, or by the marker on it. It is safe if two proxies seat a shard differently,
//! as only the node that the agreement names for a seat votes ([`super::members::shared_members`]); the shard then only
//! waits.
//!
//! - A proxy takes votes of a shard's master only within [`CONFIRM`] of having sent the questions by which it last
//!   learned of the master. A majority of the masters that have slots must have answered them.
//! - A promoted master waits for [`CONFIRM`] and `cluster-node-timeout` longer than others: a master
//!   that is cut off in a minority refuses writes by itself after `cluster-node-timeout`, as soon as it
//!   notices.
//!
//! Why that suffices: a replica is elected by a majority of the masters. A proxy that is cut off with the previous
//! master, and with too few others, takes votes of it for at most [`CONFIRM`]; and after `cluster-node-timeout` there
//! are none. Two things go unseen: what no majority has voted for (CLUSTER FAILOVER TAKEOVER, slots that an operator
//! assigns while their master is cut off), and a master that has voted and joins the minority before it has heard of
//! the outcome.
//!
//! A slot may leave a shard that waits for one that need not wait: [`super::custody`].
//!
//! A change of the configuration epoch alone makes no other identity, as moved slots change it too: an elected node
//! was a replica, and has a new replication id. But the node is looked at anew, as a connection may outlast a time as
//! a replica.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use bb8_redis::redis;
use tokio::{
    sync::{Notify, watch},
    task::JoinSet,
    time::{sleep, timeout},
};
use tracing::{info, warn};

use super::{
    custody::{Custody, CustodyNote, SlotLook},
    location::Location,
    lock_metrics::LockClusterMetrics,
    stations::{self, Marked},
    voters::SeatPlace,
};
use crate::{
    clock::{Instant, millis},
    cluster::{
        ask::{ClusterAnswer, agreed, ask_all, drop_foreign},
        cluster_node::{ClusterNode, SLOTS},
        slot::slot,
        trouble::{ClusterFault, ClusterTrouble},
        view::{settle_claims, uncovered},
    },
    config::{LockCluster, RedisUrl},
    net::{Connector, redis_client::Connection},
    sync::Mutex,
};

/// How long votes of a shard's master count after a majority of the masters was asked for it.
pub(super) const CONFIRM: Duration = Duration::from_secs(5);
/// How often the nodes are asked.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The pause between two looks, whatever asks for one.
const GAP: Duration = Duration::from_millis(50);
/// The longest time for each question besides CLUSTER NODES.
const LIMIT: Duration = Duration::from_secs(1);
/// `cluster-node-timeout` where the nodes do not tell it: Redis's default.
const NODE_TIMEOUT: Duration = Duration::from_secs(15);
/// In the table of slots: no shard has the slot.
const NOBODY: u8 = u8::MAX;

/// What is known of a cluster that votes.
pub(in crate::lock) struct Shards {
    pub(in crate::lock) config: LockCluster,
    connector: Connector,
    /// The first of its seats, among those of all voters.
    seat: SeatPlace,
    /// For each slot the place of its shard among the seats of the voter.
    slots: ArcSwap<Vec<u8>>,
    /// The master of each shard.
    masters: Vec<watch::Sender<Option<Location>>>,
    /// By seat: when the questions were sent to which a majority last answered with the master.
    confirmed: Vec<AtomicI64>,
    /// Since when a majority has known of no shard on the seat, in microseconds; below 0: there is one, or it is not
    /// known.
    gone: Vec<AtomicI64>,
    /// `cluster-node-timeout`, in ms; 0: not asked yet.
    node_timeout: AtomicU64,
    custody: Mutex<Custody>,
    /// The number of slots in doubt.
    doubtful: AtomicUsize,
    /// Decides which shards have every lock.
    judge: OnceLock<Box<dyn ShardJudge>>,
    /// The places to which the next look moves shards, by their places now, as the lock nodes have agreed.
    moves: Mutex<BTreeMap<usize, usize>>,
    /// Notified when a look is wanted now.
    wanted: Notify,
    /// What is wrong with the cluster now.
    troubles: Mutex<Vec<ClusterTrouble>>,
    metrics: LockClusterMetrics,
}

/// The judge of which shards have every lock.
pub(in crate::lock) trait ShardJudge: Send + Sync {
    /// Whether the shard on a place has every lock in its slots that are not in doubt.
    fn has_all(&self, place: usize) -> bool;
    /// Returns the time after which no lock is held any more that any shard may have forgotten.
    fn longest_wait(&self) -> Duration;
}

/// The judge of a cluster on which nothing was ever granted.
struct NothingHeld;

impl ShardJudge for NothingHeld {
    fn has_all(&self, _place: usize) -> bool {
        false
    }

    fn longest_wait(&self) -> Duration {
        Duration::ZERO
    }
}

/// The shards on their places, as of one look.
struct Seating {
    /// The place of each slot's shard, or [`NOBODY`].
    table: Vec<u8>,
    /// The master on each place.
    seated: Vec<Option<Location>>,
    /// There are more shards than places.
    problem: Option<ClusterTrouble>,
}

/// What is remembered from one look to the next.
#[derive(Default)]
struct ShardMemory {
    /// The seat of each master, by its id.
    seats: HashMap<String, usize>,
    /// The master of each replica, by their ids, as last answered.
    masters: HashMap<String, String>,
    nodes: Vec<ClusterNode>,
    connections: HashMap<String, Connection>,
}

impl ShardMemory {
    /// Moves shards to other places. A shard that was there takes the place that was left.
    fn exchange(&mut self, moves: &BTreeMap<usize, usize>) {
        let on = |(id, place): (&String, &usize)| Some((id.clone(), *moves.get(place)?));
        let moved: Vec<(String, usize)> = self.seats.iter().filter_map(on).collect();
        for (id, home) in moved {
            let other = self.seats.iter().find(|(_, taken)| **taken == home);
            let other = other.map(|(id, _)| id.clone());
            if let Some(place) = self.seats.insert(id.clone(), home)
                && let Some(other) = other.filter(|other| *other != id)
            {
                self.seats.insert(other, place);
            }
        }
    }
}

impl Shards {
    /// Begins to follow a cluster, in the current runtime. `seat` is the first of its seats.
    pub(super) fn start(
        config: &LockCluster,
        connector: &Connector,
        seat: SeatPlace,
    ) -> Arc<Shards> {
        let count = config.shards;
        let shards = Arc::new(Shards {
            config: config.clone(),
            connector: connector.clone(),
            seat,
            slots: ArcSwap::from_pointee(vec![NOBODY; usize::from(SLOTS)]),
            masters: (0..count).map(|_| watch::Sender::new(None)).collect(),
            confirmed: (0..count).map(|_| AtomicI64::new(-1)).collect(),
            gone: (0..count).map(|_| AtomicI64::new(-1)).collect(),
            node_timeout: AtomicU64::new(0),
            custody: Mutex::default(),
            doubtful: AtomicUsize::new(0),
            judge: OnceLock::new(),
            moves: Mutex::new(BTreeMap::new()),
            wanted: Notify::new(),
            troubles: Mutex::new(vec![ClusterTrouble::new(
                ClusterFault::Minority,
                "its nodes were not asked yet",
            )]),
            metrics: LockClusterMetrics::new(&config.cluster.to_string()),
        });
        tokio::spawn(run(Arc::downgrade(&shards)));
        shards
    }

    /// Returns the place of the shard that has the slot of `key`. Returns `None` if none is known.
    pub(super) fn of(&self, key: &[u8]) -> Option<usize> {
        let place = self.slots.load()[usize::from(slot(key))];
        (place != NOBODY).then_some(usize::from(place))
    }

    /// Whether a majority has ever named the shards.
    pub(super) fn are_known(&self) -> bool {
        self.slots.load().iter().any(|place| *place != NOBODY)
    }

    /// Sets the judge that is asked which shards have every lock.
    pub(super) fn judge_by(&self, judge: impl ShardJudge + 'static) {
        let _ = self.judge.set(Box::new(judge));
    }

    /// Whether the slot of `key` is in doubt: its shard may lack locks that are held there.
    pub(super) fn is_doubtful(&self, key: &[u8]) -> bool {
        self.doubtful.load(Ordering::Acquire) > 0
            && self.judge.get().is_some()
            && self.custody.lock().doubts(slot(key))
    }

    /// Notes on the shards that nothing is held in any slot, or gives up after `limit`.
    pub(super) async fn declare_free(&self, limit: Duration) {
        self.judge_by(NothingHeld);
        self.look_now();
        let noted = async {
            while self.doubtful.load(Ordering::Acquire) > 0 {
                sleep(GAP).await;
            }
        };
        let _ = timeout(limit, noted).await;
    }

    /// Asks for a look now.
    pub(super) fn look_now(&self) {
        self.wanted.notify_one();
    }

    /// Moves the shard on one place to another one, on which the lock nodes have agreed.
    pub(super) fn move_to(&self, place: usize, home: usize) {
        self.moves.lock().insert(place, home);
        self.look_now();
    }

    /// Follows the master of a shard.
    pub(super) fn master(&self, place: usize) -> watch::Receiver<Option<Location>> {
        self.masters[place].subscribe()
    }

    /// Returns where the master of a shard is.
    pub(super) fn master_of(&self, place: usize) -> Option<RedisUrl> {
        self.masters.get(place)?.borrow().as_ref().map(|there| there.url.clone())
    }

    /// Returns once the shard's master is another one, or none, or has claimed its slots anew: it may have been a
    /// replica in between.
    pub(super) async fn left(&self, place: usize, there: &Location) {
        let is_another = |known: &Option<Location>| known.as_ref() != Some(there);
        let _ = self.master(place).wait_for(is_another).await;
    }

    /// Returns once it is known whether there is a shard on the place.
    pub(super) async fn settled(&self, place: usize) {
        while self.confirmed[place].load(Ordering::Acquire) < 0 && !self.is_absent(place) {
            sleep(GAP).await;
        }
    }

    /// Whether votes of the shard's master count now.
    pub(super) fn is_confirmed(&self, place: usize, there: &Location) -> bool {
        let asked = self.confirmed[place].load(Ordering::Acquire);
        let is_fresh = asked >= 0
            && Instant::now().micros() - asked < i64::try_from(CONFIRM.as_micros()).unwrap_or(0);
        is_fresh && self.masters[place].borrow().as_ref() == Some(there)
    }

    /// Returns for how long a majority has known of no shard on the seat. Zero: there is one, or it is not known.
    pub(super) fn gone_for(&self, place: usize) -> Duration {
        let since = self.gone[place].load(Ordering::Acquire);
        if since < 0 {
            return Duration::ZERO;
        }
        Duration::from_micros(u64::try_from(Instant::now().micros() - since).unwrap_or(0))
    }

    /// Whether a majority knows of no shard on the seat.
    pub(super) fn is_absent(&self, place: usize) -> bool {
        self.gone[place].load(Ordering::Acquire) >= 0
    }

    /// Returns how much longer than others a promoted master waits.
    pub(super) fn confirm(&self) -> Duration {
        let told = self.node_timeout.load(Ordering::Relaxed);
        CONFIRM + if told == 0 { NODE_TIMEOUT } else { Duration::from_millis(told) }
    }

    /// Returns what is wrong with the cluster now, the worst first.
    pub(super) fn troubles(&self) -> Vec<ClusterTrouble> {
        self.troubles.lock().clone()
    }

    /// Returns the worst that is wrong with the cluster now.
    pub(super) fn problem(&self) -> Option<String> {
        self.troubles.lock().first().map(|trouble| trouble.what.clone())
    }

    async fn look(&self, memory: &mut ShardMemory) {
        let sent = Instant::now();
        let mut urls = self.config.cluster.nodes.clone();
        for node in memory.nodes.iter().filter(|node| !node.host.is_empty()) {
            let url = self.config.cluster.at(&node.host, node.port);
            if !urls.contains(&url) {
                urls.push(url);
            }
        }
        let mut answers = ask_all(&urls, &self.connector, &mut memory.connections).await;
        drop_foreign(&mut answers, &memory.nodes);
        let announced = agreed(&answers);
        let announced = announced.iter().filter(|node| !node.host.is_empty());
        let mut more: Vec<RedisUrl> =
            announced.map(|node| self.config.cluster.at(&node.host, node.port)).collect();
        more.retain(|url| !urls.contains(url));
        answers.extend(ask_all(&more, &self.connector, &mut memory.connections).await);
        drop_foreign(&mut answers, &memory.nodes);
        let mut nodes = agreed(&answers);
        settle_claims(&mut nodes);
        let is_foreign = |answer: &ClusterAnswer| {
            answer.told.as_ref().is_err_and(|it| it.fault == ClusterFault::Foreign)
        };
        if memory.nodes.is_empty() && answers.iter().any(is_foreign) {
            // It is unknown which cluster is meant. Two proxies that chose different ones would grant each lock
            // twice.
            nodes.clear();
        }
        let mut troubles: Vec<ClusterTrouble> =
            self.take(nodes, &answers, memory, sent).await.into_iter().collect();
        troubles.extend(self.doubts());
        let is_named = |answer: &&ClusterAnswer| self.config.cluster.nodes.contains(&answer.url);
        let unheard = answers.iter().filter(is_named).filter_map(|it| it.told.as_ref().err());
        troubles.extend(unheard.cloned());
        self.metrics.count(&troubles);
        let mut known = self.troubles.lock();
        for trouble in troubles.iter().filter(|trouble| !known.contains(trouble)) {
            warn!(cluster = %self.config.cluster, fault = trouble.fault.as_str(), "lock node: {}", trouble.what);
        }
        if troubles.is_empty() && !known.is_empty() {
            info!(cluster = %self.config.cluster, "lock node: its shards are known");
        }
        *known = troubles;
    }

    /// Takes the nodes in. Returns the worst that is wrong with them.
    async fn take(
        &self,
        nodes: Vec<ClusterNode>,
        answers: &[ClusterAnswer],
        memory: &mut ShardMemory,
        sent: Instant,
    ) -> Option<ClusterTrouble> {
        let trouble = |fault, what: String| Some(ClusterTrouble::new(fault, what));
        if nodes.is_empty() {
            return None;
        }
        let mut masters: Vec<&ClusterNode> =
            nodes.iter().filter(|node| node.is_master && !node.slots.is_empty()).collect();
        masters.sort_by_key(|node| node.slots.first().map(|range| range.0));
        let has_answered =
            |node: &&&ClusterNode| answers.iter().any(|answer| answer.id() == Some(&node.id));
        let answered = masters.iter().filter(has_answered).count();
        if masters.is_empty() || answered * 2 <= masters.len() {
            memory.nodes = nodes.clone();
            let what = format!("{answered} of its {} masters answer", masters.len());
            return trouble(ClusterFault::Minority, what);
        }
        let where_is = |node: &ClusterNode| {
            let there = answers.iter().find(|answer| answer.id() == Some(&node.id));
            there.map_or_else(
                || self.config.cluster.at(&node.host, node.port),
                |answer| answer.url.clone(),
            )
        };
        self.ask_node_timeout(memory).await;
        // By the places on which the shards were until now.
        let has_all = |place: usize| self.judge.get().is_some_and(|judge| judge.has_all(place));
        let voting = memory.seats.iter().filter(|(_, place)| has_all(**place));
        let voting: HashSet<String> = voting.map(|(id, _)| id.clone()).collect();
        self.seat(&masters, &where_is, memory).await;
        let Seating { table, seated, mut problem } = self.seating(&masters, &where_is, memory);
        let without = uncovered(&nodes);
        if without > 0 {
            let what = format!("{without} of {SLOTS} slots have no master");
            problem = trouble(ClusterFault::Uncovered, what);
        }
        let seen = SlotLook { sent, within: CONFIRM, masters: &memory.masters, voting: &voting };
        self.custody.lock().take(&nodes, &seen);
        self.share_custody(&masters, &where_is, &mut memory.connections).await;
        for (place, there) in seated.into_iter().enumerate() {
            self.note_presence(place, there.is_some());
            self.note_master(place, there, sent);
        }
        // Last, so that an operation which finds a slot's shard here also finds whether the slot is in doubt there.
        self.slots.store(Arc::new(table));
        let replicas =
            nodes.iter().filter_map(|node| Some((node.id.clone(), node.master.clone()?)));
        memory.masters.extend(replicas);
        memory.masters.retain(|id, _| nodes.iter().any(|node| node.id == *id));
        let kept: HashSet<String> = nodes.iter().map(|node| where_is(node).to_string()).collect();
        memory.connections.retain(|url, _| kept.contains(url));
        memory.nodes = nodes;
        problem
    }

    /// Returns which shard sits on each place, and which has each slot.
    fn seating(
        &self,
        masters: &[&ClusterNode],
        where_is: &impl Fn(&ClusterNode) -> RedisUrl,
        memory: &ShardMemory,
    ) -> Seating {
        let most = self.config.shards;
        let mut seating = Seating {
            table: vec![NOBODY; usize::from(SLOTS)],
            seated: vec![None; most],
            problem: None,
        };
        for node in masters {
            let Some(place) = memory.seats.get(&node.id).copied() else {
                let what = format!("it has {} shards; shards is {most}", masters.len());
                seating.problem = Some(ClusterTrouble::new(ClusterFault::TooMany, what));
                continue;
            };
            let (url, claimed) = (where_is(node), Some(node.epoch));
            seating.seated[place] = Some(Location { url, election: None, claimed });
            for (first, last) in &node.slots {
                seating.table[usize::from(*first)..=usize::from(*last)].fill(place as u8);
            }
        }
        seating
    }

    /// Notes whether a shard is there. The time without one counts from the first look that knew of none.
    fn note_presence(&self, place: usize, is_there: bool) {
        let gone = &self.gone[place];
        if is_there {
            gone.store(-1, Ordering::Release);
        } else {
            let now = Instant::now().micros();
            let _ = gone.compare_exchange(-1, now, Ordering::AcqRel, Ordering::Acquire);
        }
    }

    /// Notes the master of a shard, or that there is none, as answered to the questions sent at `sent`.
    fn note_master(&self, place: usize, there: Option<Location>, sent: Instant) {
        let is_there = there.is_some();
        self.masters[place].send_if_modified(|known| {
            let is_new = *known != there;
            if is_new {
                // Another master is not confirmed by what named the previous one. The same one stays confirmed
                // throughout: its votes come in meanwhile.
                self.confirmed[place].store(-1, Ordering::Release);
                info!(
                    cluster = %self.config.cluster, shard = place + 1,
                    master = there.as_ref().map(|it| tracing::field::display(&it.url)),
                    "the shard's master"
                );
                *known = there;
            }
            is_new
        });
        if is_there {
            self.confirmed[place].store(sent.micros(), Ordering::Release);
        }
    }

    /// Reads each shard's note of its slots, and adds there what this proxy knows beyond it.
    async fn share_custody(
        &self,
        masters: &[&ClusterNode],
        where_is: &impl Fn(&ClusterNode) -> RedisUrl,
        connections: &mut HashMap<String, Connection>,
    ) {
        if let Some(judge) = self.judge.get() {
            self.custody.lock().expire(judge.longest_wait());
        }
        let mut asking = JoinSet::new();
        for node in masters {
            let (url, key) = (where_is(node).to_string(), CustodyNote::key(node));
            if let (Some(key), Some(mut connection)) = (key, connections.remove(&url)) {
                let node = (*node).clone();
                asking.spawn(async move {
                    let noted = timeout(LIMIT, read_note(&mut connection, &key)).await;
                    (node, url, connection, noted.unwrap_or_default())
                });
            }
        }
        let mut writing = JoinSet::new();
        while let Some(asked) = asking.join_next().await {
            let Ok((node, url, mut connection, noted)) = asked else { continue };
            let mut custody = self.custody.lock();
            if let Some(noted) = &noted {
                custody.believe(&node, noted);
            }
            match (custody.note(&node, noted.as_ref()), CustodyNote::key(&node)) {
                (Some(note), Some(key)) if self.judge.get().is_some() => {
                    writing.spawn(async move {
                        let mut command = redis::cmd("SET");
                        command.arg(key).arg(note.text());
                        let done = command.query_async::<()>(&mut connection.redis);
                        // The next look finds whether it is written.
                        let _ = timeout(LIMIT, done).await;
                        (url, connection)
                    });
                }
                _ => drop(connections.insert(url, connection)),
            }
        }
        while let Some(written) = writing.join_next().await {
            connections.extend(written.ok());
        }
        self.doubtful.store(self.custody.lock().all_doubts(), Ordering::Release);
    }

    /// Returns the trouble with slots in doubt, if there are some.
    fn doubts(&self) -> Option<ClusterTrouble> {
        let (slots, judge) = (self.doubtful.load(Ordering::Acquire), self.judge.get()?);
        let seconds = judge.longest_wait().as_secs();
        let what = format!(
            "{slots} slots are in doubt: their shards may lack what is held there, so for {seconds} s nothing \
             is granted there"
        );
        (slots > 0).then(|| ClusterTrouble::new(ClusterFault::InDoubt, what))
    }

    /// Finds a seat for each shard that has none.
    async fn seat(
        &self,
        masters: &[&ClusterNode],
        where_is: &impl Fn(&ClusterNode) -> RedisUrl,
        memory: &mut ShardMemory,
    ) {
        memory.exchange(&std::mem::take(&mut *self.moves.lock()));
        let ids: HashSet<&str> = masters.iter().map(|node| &*node.id).collect();
        let (mut strangers, count) = (Vec::new(), self.config.shards);
        for node in masters {
            if memory.seats.contains_key(&node.id) {
                continue;
            }
            let before = memory.masters.get(&node.id).filter(|id| !ids.contains(id.as_str()));
            match before.and_then(|id| memory.seats.remove(id)) {
                Some(place) => drop(memory.seats.insert(node.id.clone(), place)),
                None => strangers.push(*node),
            }
        }
        // A shard that has lost all its slots keeps its seat while no other shard needs it.
        for node in &strangers {
            let url = where_is(node);
            let told = match memory.connections.get_mut(&url.to_string()) {
                Some(connection) => {
                    timeout(LIMIT, stations::markers(connection, &node.slots)).await
                }
                None => continue,
            };
            let Ok(Some(told)) = told else { continue };
            let SeatPlace { beside, shape, .. } = &self.seat;
            let is_ours =
                |marked: &&Marked| marked.shape == *shape && beside.contains(&marked.seat);
            let place =
                told.iter().filter(is_ours).max_by_key(|marked| (marked.is_named, marked.epoch));
            let Some(place) = place.map(|marked| marked.seat - beside.start) else { continue };
            if !memory.seats.values().any(|taken| *taken == place) {
                memory.seats.insert(node.id.clone(), place);
            }
        }
        for node in strangers {
            if memory.seats.contains_key(&node.id) {
                continue;
            }
            let is_free = |place: &usize| !memory.seats.values().any(|taken| taken == place);
            let free = (0..count).find(is_free).or_else(|| {
                let gone = memory.seats.iter().find(|(id, _)| !ids.contains(id.as_str()));
                gone.map(|(_, place)| *place)
            });
            if let Some(place) = free {
                memory.seats.retain(|_, taken| *taken != place);
                memory.seats.insert(node.id.clone(), place);
            }
        }
    }

    /// Asks for `cluster-node-timeout` until a node tells it; an ACL may refuse that.
    async fn ask_node_timeout(&self, memory: &mut ShardMemory) {
        if self.node_timeout.load(Ordering::Relaxed) != 0 {
            return;
        }
        let Some(connection) = memory.connections.values_mut().next() else { return };
        let mut question = redis::cmd("CONFIG");
        question.arg("GET").arg("cluster-node-timeout");
        let asking = question.query_async::<(String, u64)>(&mut connection.redis);
        let told = match timeout(LIMIT, asking).await {
            Ok(Ok((_, told))) => told.max(1),
            Ok(Err(_)) => millis(NODE_TIMEOUT),
            Err(_) => return,
        };
        self.node_timeout.store(told, Ordering::Relaxed);
    }
}

/// Reads the note of a node's slots. Returns `None` if there is none, or the node does not answer.
async fn read_note(connection: &mut Connection, key: &[u8]) -> Option<CustodyNote> {
    let asking =
        redis::cmd("GET").arg(key).query_async::<Option<String>>(&mut connection.redis).await;
    CustodyNote::read(&asking.ok()??)
}

/// Looks at the cluster again and again, for as long as it is wanted.
async fn run(shards: std::sync::Weak<Shards>) {
    let mut memory = ShardMemory::default();
    while let Some(known) = shards.upgrade() {
        known.look(&mut memory).await;
        let known = Arc::downgrade(&known);
        sleep(GAP).await;
        let Some(shards) = known.upgrade() else { return };
        tokio::select! {
            () = sleep(LOOK_EVERY) => {}
            () = shards.wanted.notified() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        config::{Config, LockNode},
        lock::voters::Voters,
    };

    #[tokio::test]
    async fn a_master_that_is_named_again_does_not_cease_to_be_confirmed() {
        let text = "locks: {nodes: [{cluster: ['127.0.0.1:1'], shards: 1}]}";
        let config = Config::parse(text, "f", &|_| None).unwrap();
        let LockNode::Cluster(of) = &config.locks.nodes[0] else { panic!("no cluster") };
        let way =
            Connector::start("node", &config.locks.tls, std::slice::from_ref(of.cluster.login()));
        let shards = Shards::start(of, &way, Voters::new(&config.locks).place(0));
        let at = |port| Location { url: RedisUrl::local(port), election: None, claimed: Some(1) };
        let (one, other) = (at(1), at(2));
        shards.note_master(0, Some(one.clone()), Instant::now());
        let done = std::sync::atomic::AtomicBool::new(false);
        let ceased = std::thread::scope(|scope| {
            let looking = scope.spawn(|| {
                let mut ceased = 0;
                while !done.load(Ordering::Relaxed) {
                    ceased += u32::from(!shards.is_confirmed(0, &one));
                }
                ceased
            });
            for _ in 0..20_000 {
                shards.note_master(0, Some(one.clone()), Instant::now());
            }
            done.store(true, Ordering::Relaxed);
            looking.join().unwrap()
        });
        assert_eq!(ceased, 0);
        shards.note_master(0, Some(other.clone()), Instant::now());
        assert!(!shards.is_confirmed(0, &one) && shards.is_confirmed(0, &other));
        shards.note_master(0, None, Instant::now());
        assert!(!shards.is_confirmed(0, &other));
    }

    #[test]
    fn shards_are_exchanged_as_was_agreed() {
        let exchanged = |moves: &[(usize, usize)]| {
            let seats = [("a", 0), ("b", 1), ("c", 2)].map(|(id, place)| (id.to_owned(), place));
            let mut memory = ShardMemory { seats: seats.into(), ..ShardMemory::default() };
            memory.exchange(&moves.iter().copied().collect());
            ["a", "b", "c"].map(|id| memory.seats[id])
        };
        assert_eq!(exchanged(&[(0, 2)]), [2, 1, 0]);
        assert_eq!(exchanged(&[(0, 2), (2, 0)]), [2, 1, 0], "both are misplaced");
        assert_eq!(exchanged(&[(1, 5), (4, 0)]), [0, 5, 2], "one place was free, one is nobody's");
        let all = exchanged(&[(0, 1), (1, 2), (2, 0)]);
        assert_eq!(all, [1, 2, 0], "three go round");
    }
}
