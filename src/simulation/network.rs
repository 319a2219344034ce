//! The network between proxies and nodes: connections that keep their order, delay, stall and
//! break; nodes that stop, go away and come back.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    ops::Range,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use rand::{RngExt, SeedableRng, rngs::StdRng};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, DuplexStream, ReadHalf, WriteHalf, duplex, split},
    sync::mpsc,
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;

use super::{
    memory::StoredKeys,
    reasons::{History, Loss, Reason},
    recorder,
    redis::{Edit, Illness, Redis, next_command},
    watched_pair::WatchedPair,
};
use crate::lock::{Claim, scripts::MAX_TTL};

/// The most bytes under way in one direction.
const PIPE: usize = 64 * 1024;

/// The longest time until each proxy has looked at a node's clock: it may be cut off for 1.5 s, and looks every half
/// second.
const LOOK: Duration = Duration::from_millis(2500);

/// All nodes and the ways to them.
pub(super) struct Network {
    state: Mutex<NetworkState>,
}

struct NetworkState {
    random: StdRng,
    nodes: Vec<SimulatedNode>,
    next_connection: u64,
    /// The longest time that a message takes.
    delay: Duration,
    /// Whether nodes' clocks are never set.
    keeps_time: bool,
    /// Whether the node is a data node, which keeps its memory at a restart.
    is_data: bool,
    /// Whether the data node forgets all fences and keys of locks now and then.
    forgets: bool,
    /// Whether no more faults happen.
    is_well: bool,
    history: History,
    pair: Option<WatchedPair>,
}

struct SimulatedNode {
    redis: Redis,
    is_up: bool,
    /// The time before which the node does nothing.
    stopped_until: Instant,
    /// The time before which the node answers with errors.
    ill_until: Instant,
    /// The time before which no message passes, by proxy.
    cut_until: BTreeMap<usize, Instant>,
    /// When its clock was set forward last.
    jumped: Option<Instant>,
    restarts: usize,
    connections: BTreeMap<u64, Cable>,
}

struct Cable {
    proxy: usize,
    /// Cancelled when the connection breaks: both ends see it closed.
    broken: CancellationToken,
    /// Whether requests that have arrived are no longer carried out.
    killed: Arc<AtomicBool>,
}

impl Network {
    pub(super) fn new(seed: u64, nodes: usize, fastest: f64, delay: Duration) -> Arc<Network> {
        let mut random = StdRng::seed_from_u64(seed);
        let now = Instant::now();
        let nodes = (0..nodes)
            .map(|index| SimulatedNode {
                redis: Redis::new(
                    &format!("n{index}"),
                    random.random_range(2.0 - fastest..=fastest),
                ),
                is_up: true,
                stopped_until: now,
                ill_until: now,
                cut_until: BTreeMap::new(),
                jumped: None,
                restarts: 0,
                connections: BTreeMap::new(),
            })
            .collect();
        Arc::new(Network {
            state: Mutex::new(NetworkState {
                random,
                nodes,
                next_connection: 1,
                delay,
                is_data: false,
                keeps_time: false,
                forgets: false,
                is_well: false,
                history: History::default(),
                pair: None,
            }),
        })
    }

    fn lock(&self) -> MutexGuard<'_, NetworkState> {
        self.state.lock().unwrap()
    }

    /// Lets Sentinels watch two of the nodes.
    pub(super) fn watch(&self, pair: WatchedPair) {
        let mut state = self.lock();
        state.nodes[pair.replica()].is_up = false;
        state.pair = Some(pair);
    }

    /// Calls `act` with what the Sentinels watch.
    pub(super) fn watched<T>(&self, act: impl FnOnce(&mut WatchedPair) -> T) -> T {
        act(self.lock().pair.as_mut().unwrap())
    }

    /// Returns what a replica of this node would be sent now.
    pub(super) fn keys_of(&self, index: usize) -> StoredKeys {
        self.lock().nodes[index].redis.keys()
    }

    /// Returns the marker of a node, and the occupants of the seats by that; empty if there is none.
    pub(super) fn marker_of(&self, index: usize) -> [String; 2] {
        let state = self.lock();
        let text = |key: &str| {
            let found = state.nodes[index].redis.get(key.as_bytes()).unwrap_or_default();
            String::from_utf8_lossy(found).into_owned()
        };
        ["lockgate:deployment", "lockgate:seats"].map(text)
    }

    /// Makes a replica a master, with the keys that it was sent.
    pub(super) fn promote(&self, index: usize, keys: StoredKeys) {
        let mut state = self.lock();
        let node = &mut state.nodes[index];
        node.restarts += 1;
        node.redis.promote(keys, node.restarts);
        node.is_up = true;
    }

    /// Makes a master a replica, or ends it: all its connections end.
    pub(super) fn demote(&self, index: usize) {
        let mut state = self.lock();
        let node = &mut state.nodes[index];
        node.break_connections(|_| true);
        for connection in node.connections.values() {
            connection.killed.store(true, Ordering::Relaxed);
        }
        node.is_up = false;
    }

    /// Returns a number below `limit` that depends on the seed alone.
    pub(super) fn below(&self, limit: u64) -> u64 {
        self.lock().random.random_range(0..limit)
    }

    pub(super) fn keep_time(&self, keep: bool) {
        self.lock().keeps_time = keep;
    }

    pub(super) fn careless(&self) {
        self.lock().nodes.iter_mut().for_each(|node| node.redis.careless = true);
    }

    pub(super) fn edit(&self, edits: &'static [Edit]) {
        self.lock().nodes.iter_mut().for_each(|node| node.redis.edits = edits);
    }

    /// Perhaps makes a data node that forgets its fences do so now.
    pub(super) fn forget_now_and_then(&self) {
        let mut state = self.lock();
        if state.forgets && state.random.random_ratio(1, 4) {
            state.nodes[0].redis.forget_fences();
        }
    }

    /// Cuts this proxy off from the first node for `time`.
    pub(super) fn cut(&self, proxy: usize, time: Duration) {
        let until = Instant::now() + time;
        self.lock().nodes[0].cut_until.insert(proxy, until);
    }

    /// Stops a node for `time`; it goes on as if nothing had happened.
    pub(super) fn stop(&self, index: usize, time: Duration) {
        self.lock().nodes[index].stopped_until = Instant::now() + time;
    }

    /// Makes a node answer with errors for `time`.
    pub(super) fn ail(&self, index: usize, illness: Illness, time: Duration) {
        self.lock().ail(index, illness, time);
    }

    /// Restarts all nodes, without their memory.
    pub(super) fn forget_all(&self) {
        let mut state = self.lock();
        (0..state.nodes.len()).for_each(|index| state.restart(index, false));
    }

    /// Returns why a session lock was lost just now, or an error that explains how it could have been kept.
    pub(super) fn reason_of(&self, loss: &Loss) -> Result<Reason, String> {
        let state = self.lock();
        let records: Vec<_> = state.nodes.iter().map(|node| node.redis.record.as_slice()).collect();
        state.history.reason_of(loss, &records)
    }

    /// Makes a network of one data node. `forgets`: whether it forgets fences and keys of locks now and then;
    /// `fastest`: the largest rate of its clock; `careless`, `blind`: see [`Redis`].
    pub(super) fn of_data(
        seed: u64,
        delay: Duration,
        fastest: f64,
        forgets: bool,
        careless: bool,
        blind: bool,
    ) -> Arc<Network> {
        let network = Network::new(!seed, 1, fastest, delay);
        let mut state = network.lock();
        (state.is_data, state.forgets) = (true, forgets);
        (state.nodes[0].redis.careless, state.nodes[0].redis.blind) = (careless, blind);
        drop(state);
        network
    }

    /// Returns the values that the data node has stored, in order.
    pub(super) fn written(&self) -> Vec<(Vec<u8>, Vec<u8>)> {
        self.lock().nodes[0].redis.written()
    }

    /// Whether the data node has had a key that only the lock nodes may know.
    pub(super) fn had_adopted(&self) -> bool {
        self.lock().nodes[0].redis.had_adopted()
    }

    /// Returns the keys of locks that the data node has.
    pub(super) fn adopted(&self) -> Vec<String> {
        self.lock().nodes[0].redis.adopted()
    }

    /// Returns the number of locks put back on nodes.
    pub(super) fn heals(&self) -> usize {
        self.lock().nodes.iter().map(|node| node.redis.heals).sum()
    }

    /// Returns what scripts did wrong about readers since this was asked last, with the nodes.
    pub(super) fn wrong(&self) -> Vec<String> {
        let mut state = self.lock();
        let nodes = state.nodes.iter_mut().enumerate();
        let wrong = nodes.flat_map(|(index, node)| {
            std::mem::take(&mut node.redis.wrong)
                .into_iter()
                .map(move |what| format!("node {index}: {what}"))
        });
        wrong.collect()
    }

    /// Whether nodes have had markers of several deployments at once.
    pub(super) fn was_split(&self) -> bool {
        self.lock().history.was_split
    }

    /// Returns the keys of locks that are held, by node.
    pub(super) fn locks(&self) -> Vec<Vec<Vec<u8>>> {
        self.lock().nodes.iter_mut().map(|node| node.redis.locks()).collect()
    }

    /// Returns which token has this lock, by node.
    pub(super) fn tokens_of(&self, key: &[u8]) -> Vec<Option<String>> {
        self.lock().nodes.iter_mut().map(|node| node.redis.token_of(key)).collect()
    }

    /// Returns how many nodes the grant with this claim has had the lock on.
    pub(super) fn had(&self, key: &[u8], claim: Claim) -> usize {
        let claim = claim.to_string();
        self.lock().nodes.iter().filter(|node| node.redis.has_had(key, &claim)).count()
    }

    /// Returns when the last fault of each node or of a way to it ends.
    pub(super) fn last_faults(&self) -> Vec<Option<Instant>> {
        let state = self.lock();
        (0..state.nodes.len()).map(|node| state.history.last_fault(node)).collect()
    }

    /// Connects proxy `proxy` to node `index`.
    pub(super) fn connect(
        self: &Arc<Self>,
        proxy: usize,
        index: usize,
    ) -> io::Result<DuplexStream> {
        let mut state = self.lock();
        let now = Instant::now();
        let connection = state.next_connection;
        state.next_connection += 1;
        let node = &mut state.nodes[index];
        if !node.is_up || node.cut_until.get(&proxy).is_some_and(|until| *until > now) {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        let (here, there) = duplex(PIPE);
        let broken = CancellationToken::new();
        let killed = Arc::new(AtomicBool::new(false));
        let entry = Cable { proxy, broken: broken.clone(), killed: killed.clone() };
        node.connections.insert(connection, entry);
        drop(state);
        let (reader, writer) = split(there);
        let (arriving, arrived) = mpsc::unbounded_channel();
        let (leaving, left) = mpsc::unbounded_channel();
        let way = Route { network: self.clone(), proxy, index, connection };
        tokio::spawn(way.clone().read(reader, arriving, broken.clone()));
        tokio::spawn(way.carry_out(arrived, leaving, killed));
        tokio::spawn(write(writer, left, broken));
        Ok(here)
    }

    /// Returns the time when a message sent now arrives.
    fn arrival(&self, proxy: usize, index: usize, connection: u64) -> Instant {
        let mut state = self.lock();
        let now = Instant::now();
        let most = state.delay.as_micros() as u64;
        let mut delay = Duration::from_micros(state.random.random_range(50..most));
        // Rare messages take much longer.
        if !state.is_well && state.random.random_ratio(1, 50) {
            delay *= 10;
        }
        let cut = state.nodes[index].cut_until.get(&proxy).copied().unwrap_or(now);
        let arrives = cut.max(now) + delay;
        if !state.is_data {
            state.history.sent(index, connection, arrives);
        }
        arrives
    }

    /// Makes a fault that depends on the seed.
    pub(super) fn fail(&self, proxies: usize) -> String {
        let mut state = self.lock();
        let nodes = state.nodes.len();
        let index = state.random.random_range(0..nodes);
        let proxy = state.random.random_range(0..proxies);
        let time = Duration::from_millis(state.random.random_range(20..1500));
        if state.forgets && state.random.random_ratio(1, 10) {
            state.nodes[index].redis.forget_fences();
            return "it forgets its fences, and keys of locks".to_owned();
        }
        if !state.is_data && !state.keeps_time && state.random.random_ratio(1, 12) {
            let back = state.random.random_ratio(1, 3);
            let by: i64 = state.random.random_range(400..3000);
            // The clock of one node is set, or all clocks.
            let all = state.random.random_ratio(1, 4);
            let which = if all { 0..nodes } else { index..index + 1 };
            // A step back hides a jump that a proxy has not seen yet: docs/limits.md, "Clocks".
            let was_seen = |node: &SimulatedNode| node.jumped.is_none_or(|at| at.elapsed() > LOOK);
            let back = back && state.nodes[which.clone()].iter().all(was_seen);
            let by = if back { -by } else { by };
            if !back {
                which.clone().for_each(|node| state.history.jumped(node));
            }
            for node in &mut state.nodes[which.clone()] {
                node.redis.set_clock(by);
                node.jumped = if back { node.jumped } else { Some(Instant::now()) };
            }
            return format!("clocks of nodes {which:?} are set by {by} ms");
        }
        state.fail_alone(index, proxy, time)
    }

    /// Makes a fault at some node that makes no node forget anything.
    pub(super) fn disturb(&self, proxies: usize) -> String {
        let mut state = self.lock();
        let nodes = state.nodes.len();
        let index = state.random.random_range(0..nodes);
        let proxy = state.random.random_range(0..proxies);
        let time = Duration::from_millis(state.random.random_range(20..1500));
        let kind = state.random.random_range(0..8);
        state.pass_badly(index, proxy, time, kind)
    }

    /// Sets the clocks of these nodes forward by `by` ms.
    pub(super) fn set_clocks(&self, which: Range<usize>, by: i64) {
        let mut state = self.lock();
        which.clone().for_each(|node| state.history.jumped(node));
        state.nodes[which].iter_mut().for_each(|node| node.redis.set_clock(by));
    }

    /// Restarts a node without its memory.
    pub(super) fn forget(&self, index: usize) {
        self.lock().restart(index, false);
    }

    /// Makes a fault at this node alone; most often, it forgets all.
    pub(super) fn fail_at(&self, index: usize, proxies: usize) -> String {
        let mut state = self.lock();
        let proxy = state.random.random_range(0..proxies);
        let time = Duration::from_millis(state.random.random_range(20..800));
        if state.random.random_ratio(2, 3) {
            state.restart(index, false);
            return format!("node {index} is restarted, and has forgotten all");
        }
        state.fail_alone(index, proxy, time)
    }

    /// Ends all faults.
    pub(super) fn heal(&self) {
        let mut state = self.lock();
        let now = Instant::now();
        state.is_well = true;
        for node in &mut state.nodes {
            node.cut_until.clear();
            (node.stopped_until, node.ill_until) = (now, now);
            node.is_up = true;
        }
    }
}

impl NetworkState {
    fn ail(&mut self, index: usize, illness: Illness, time: Duration) {
        self.history.failed(index, None, time);
        let node = &mut self.nodes[index];
        node.redis.illness = Some(illness);
        node.ill_until = Instant::now() + time;
    }

    fn restart(&mut self, index: usize, keeps_memory: bool) {
        self.history.restarted(index);
        let node = &mut self.nodes[index];
        node.break_connections(|_| true);
        for connection in node.connections.values() {
            connection.killed.store(true, Ordering::Relaxed);
        }
        node.restarts += 1;
        node.redis.restart(node.restarts, keeps_memory);
        node.stopped_until = Instant::now();
    }

    fn fail_alone(&mut self, index: usize, proxy: usize, time: Duration) -> String {
        let state = self;
        if !state.is_data && state.random.random_ratio(1, 6) {
            if state.random.random_ratio(1, 5) {
                state.nodes[index].redis.forget_scripts();
                state.history.forgot_scripts(index);
                return format!("node {index} has forgotten its scripts");
            }
            let illness = Illness::ALL[state.random.random_range(0..Illness::ALL.len())];
            state.ail(index, illness, time);
            return format!("node {index} is {illness:?} for {time:?}");
        }
        // Memory is lost so rarely that a quorum is there now and then.
        let kind = state.random.random_range(0..10);
        if kind < 8 {
            return state.pass_badly(index, proxy, time, kind);
        }
        // The node dies, and is back at some time.
        let keeps_memory = state.is_data || state.random.random_ratio(1, 4);
        state.restart(index, keeps_memory);
        format!("node {index} is restarted, keeping its memory: {keeps_memory}")
    }

    /// Breaks or cuts the way to a node, or stops the node. `kind`: a number below 8.
    fn pass_badly(&mut self, index: usize, proxy: usize, time: Duration, kind: u32) -> String {
        let until = Instant::now() + time;
        match kind {
            // A connection breaks.
            0..=2 => {
                self.history.failed(index, Some(proxy), Duration::ZERO);
                let node = &mut self.nodes[index];
                node.break_connections(|connection| connection.proxy == proxy);
                format!("connections from proxy {proxy} to node {index} break")
            }
            // The way to a node is cut for a while; messages under way arrive later.
            3..=5 => {
                self.history.failed(index, Some(proxy), time);
                self.nodes[index].cut_until.insert(proxy, until);
                format!("nothing passes from proxy {proxy} to node {index} for {time:?}")
            }
            // A node is stopped, and goes on as if nothing had happened.
            _ => {
                self.history.failed(index, None, time);
                self.nodes[index].stopped_until = until;
                format!("node {index} is stopped for {time:?}")
            }
        }
    }
}

impl SimulatedNode {
    fn break_connections(&mut self, which: impl Fn(&Cable) -> bool) {
        for connection in self.connections.values().filter(|connection| which(connection)) {
            connection.broken.cancel();
        }
    }
}

#[derive(Clone)]
struct Route {
    network: Arc<Network>,
    proxy: usize,
    index: usize,
    connection: u64,
}

impl Route {
    /// Reads the requests of a proxy, in the order in which they arrive.
    async fn read(
        self,
        mut reader: ReadHalf<DuplexStream>,
        arriving: mpsc::UnboundedSender<(Instant, Vec<Vec<u8>>)>,
        broken: CancellationToken,
    ) {
        let mut received = Vec::new();
        let mut last = Instant::now();
        loop {
            let read = reader.read_buf(&mut received);
            match broken.run_until_cancelled(read).await {
                Some(Ok(1..)) => {}
                _ => return self.network.lock().history.unlinked(self.connection),
            }
            while let Some(words) = next_command(&mut received) {
                last = last.max(self.network.arrival(self.proxy, self.index, self.connection));
                let _ = arriving.send((last, words));
            }
        }
    }

    /// Carries out the requests that have arrived, even of a broken connection: unless it was
    /// killed, a node reads its socket to the end.
    async fn carry_out(
        self,
        mut arrived: mpsc::UnboundedReceiver<(Instant, Vec<Vec<u8>>)>,
        leaving: mpsc::UnboundedSender<(Instant, Vec<u8>)>,
        killed: Arc<AtomicBool>,
    ) {
        let mut last = Instant::now();
        while let Some((when, words)) = arrived.recv().await {
            sleep_until(when).await;
            loop {
                let until = self.network.lock().nodes[self.index].stopped_until;
                if until <= Instant::now() {
                    break;
                }
                sleep_until(until).await;
            }
            if killed.load(Ordering::Relaxed) {
                break;
            }
            let reply = {
                let mut state = self.network.lock();
                let node = &mut state.nodes[self.index];
                if words[0] == b"CLIENT" && words[1] == b"KILL" {
                    let id: u64 = String::from_utf8_lossy(&words[3]).parse().unwrap();
                    if let Some(connection) = node.connections.get(&id) {
                        connection.killed.store(true, Ordering::Relaxed);
                        connection.broken.cancel();
                    }
                }
                if node.ill_until <= Instant::now() {
                    node.redis.illness = None;
                }
                let marker = node.redis.marker().map(<[u8]>::to_vec);
                let reply = node.redis.execute(&words, self.connection);
                if !state.is_data {
                    self.note(&mut state, &words, marker.as_deref());
                    let script = state.nodes[self.index].redis.script(&words);
                    recorder::vote(self.index, self.proxy, (script, &words), &reply);
                }
                reply
            };
            last = last.max(self.network.arrival(self.proxy, self.index, self.connection));
            let _ = leaving.send((last, reply));
        }
        self.network.lock().nodes[self.index].connections.remove(&self.connection);
    }
}

impl Route {
    /// Notes what a command that was just carried out shows of the way to the node. `before` is the
    /// node's marker before the command.
    fn note(&self, state: &mut NetworkState, words: &[Vec<u8>], before: Option<&[u8]>) {
        let id = |node: &SimulatedNode| {
            Some(node.redis.marker()?.split(|byte| *byte == b' ').next()?.to_vec())
        };
        let (history, now) = (&mut state.history, state.nodes[self.index].redis.marker());
        if now.is_some() && now != before {
            history.marked(self.index);
            let ids: BTreeSet<Vec<u8>> = state.nodes.iter().filter_map(id).collect();
            history.was_split |= ids.len() > 1;
        }
        match words[0].as_slice() {
            b"SCRIPT" => history.has_scripts(self.index),
            // The first command of a connection once it is open to all requests.
            b"EVALSHA" if words.get(2..4) == Some(&[b"1".to_vec(), MAX_TTL.to_vec()]) => {
                history.linked(self.index, self.proxy, self.connection);
            }
            // A script that got the marker.
            b"EVALSHA" if now.is_some() && words.last().map(Vec::as_slice) == now => {
                history.proven(self.index, self.proxy);
            }
            _ => {}
        }
    }
}

async fn write(
    mut writer: WriteHalf<DuplexStream>,
    mut left: mpsc::UnboundedReceiver<(Instant, Vec<u8>)>,
    broken: CancellationToken,
) {
    let writing = async {
        while let Some((when, reply)) = left.recv().await {
            sleep_until(when).await;
            if writer.write_all(&reply).await.is_err() {
                return;
            }
        }
    };
    broken.run_until_cancelled(writing).await;
    let _ = writer.shutdown().await;
}
