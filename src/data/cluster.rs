//! Follows a Redis Cluster: asks its nodes who they are, and gives each a front.
//!
//! Asks all nodes for CLUSTER NODES every [`LOOK_EVERY`], and at once when a session has seen a redirection. A front
//! leads to the same node, by its id, wherever that is.

use std::{
    collections::{HashMap, HashSet},
    net::{IpAddr, SocketAddr, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use tokio::{
    sync::{Notify, watch},
    time::sleep,
};
use tracing::{info, warn};

use super::{data_metrics::ClusterMetrics, tenure::Tenure};
use crate::{
    clock::Instant,
    cluster::{
        ask::{ClusterAnswer, agreed, ask_all, drop_foreign},
        cluster_node::{self, ClusterNode},
        fronts::Fronts,
        table::{FrontTable, ShownAs},
        trouble::{ClusterFault, ClusterTrouble},
        view::uncovered,
    },
    config::{Announce, ClusterConfig, RedisUrl},
    net::{Connector, redis_client::Connection},
    sync::Mutex,
};

/// How often each node is asked.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// Least time between two looks, however often one is wanted.
const GAP: Duration = Duration::from_millis(100);
/// Pause while no node has answered yet.
const RETRY: Duration = Duration::from_millis(300);
/// Most faults that are told; all are counted.
const MOST_TROUBLES: usize = 20;

/// A front and its node, as a process hands them over to its successor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FrontOfNode {
    pub(crate) front: SocketAddr,
    /// The id of the node to which it leads.
    pub(crate) node: String,
    /// For how long the cluster has had no such node; `None` if it has one.
    pub(crate) gone_for: Option<Duration>,
}

/// What is known of a cluster.
pub(super) struct ClusterWatch {
    config: ClusterConfig,
    connector: Connector,
    /// Addresses of the fronts.
    listen: Vec<SocketAddr>,
    /// Whether clients must not be led past the proxy, whatever nodes announce: guards are enforced.
    keeps_clients: bool,
    /// Fronts with their nodes that another process handed over, and when it did.
    taken_over: (Vec<FrontOfNode>, Instant),
    /// Fronts with the ids of their nodes, and since when the cluster has no such node.
    led: Mutex<Vec<(SocketAddr, String, Option<Instant>)>>,
    /// A node that answers, for the proxy's own questions.
    any: watch::Sender<Option<Arc<Tenure>>>,
    /// The node of each front.
    fronts: Vec<watch::Sender<Option<Arc<Tenure>>>>,
    /// How often the node of each front may have gained slots.
    gains: Vec<AtomicU64>,
    pub(super) table: Arc<ArcSwap<FrontTable>>,
    /// Whether a look has found the nodes.
    pub(super) known: watch::Sender<bool>,
    troubles: Mutex<Vec<ClusterTrouble>>,
    /// A line about how many nodes and fronts there are.
    summary: Mutex<String>,
    /// Notified when a look is wanted now.
    pub(super) wanted: Arc<Notify>,
    pub(super) metrics: Arc<ClusterMetrics>,
}

/// What one look leaves for the next.
struct ClusterMemory {
    fronts: Fronts,
    /// The nodes of the last look that found any.
    nodes: Vec<ClusterNode>,
    /// Where each node is reached, by its id.
    reached: HashMap<String, RedisUrl>,
    /// Ids of nodes that have answered at least once.
    answered: HashSet<String>,
    /// Connections that are still open, by address.
    connections: HashMap<String, Connection>,
}

impl ClusterWatch {
    pub(super) fn new(
        config: &ClusterConfig,
        listen: Vec<SocketAddr>,
        connector: &Connector,
    ) -> ClusterWatch {
        let count = listen.len();
        ClusterWatch {
            config: config.clone(),
            connector: connector.clone(),
            listen,
            keeps_clients: false,
            taken_over: (Vec::new(), Instant::now()),
            led: Mutex::default(),
            any: watch::Sender::new(None),
            fronts: (0..count).map(|_| watch::Sender::new(None)).collect(),
            gains: (0..count).map(|_| AtomicU64::new(0)).collect(),
            table: Arc::default(),
            known: watch::Sender::new(false),
            troubles: Mutex::default(),
            summary: Mutex::default(),
            wanted: Arc::new(Notify::new()),
            metrics: Arc::new(ClusterMetrics::new()),
        }
    }

    /// Keeps clients from being led past the proxy, whatever nodes announce.
    pub(super) fn keeping_clients_here(self) -> ClusterWatch {
        ClusterWatch { keeps_clients: true, ..self }
    }

    /// Begins with the fronts that another process handed over.
    pub(super) fn taking_over(self, taken_over: Vec<FrontOfNode>) -> ClusterWatch {
        ClusterWatch { taken_over: (taken_over, Instant::now()), ..self }
    }

    /// Returns the fronts that lead to a node, or did before the node was gone.
    pub(super) fn led(&self) -> Vec<FrontOfNode> {
        let led = self.led.lock();
        let told = |(front, node, gone): &(SocketAddr, String, Option<Instant>)| FrontOfNode {
            front: *front,
            node: node.clone(),
            gone_for: gone.map(Instant::elapsed),
        };
        led.iter().map(told).collect()
    }

    /// Returns the fronts before the first look: those kept for a node, and those that lead to one already.
    fn first_fronts(&self) -> Fronts {
        let mut fronts = Fronts::new(self.listen.len());
        for (id, port) in &self.config.fronts {
            if let Some(front) = self.listen.iter().position(|front| front.port() == *port) {
                fronts.keep_for(front, id);
            }
        }
        let (taken_over, told) = &self.taken_over;
        for FrontOfNode { front: address, node, gone_for } in taken_over {
            if let Some(front) = self.listen.iter().position(|front| front == address) {
                fronts.take_over(front, node, gone_for.map(|gone_for| *told - gone_for));
            }
        }
        fronts
    }

    /// Follows a node that answers.
    pub(super) fn any(&self) -> watch::Receiver<Option<Arc<Tenure>>> {
        self.any.subscribe()
    }

    /// Follows the node of a front; there is none if the number is no front's.
    pub(super) fn front(&self, index: usize) -> watch::Receiver<Option<Arc<Tenure>>> {
        let front = self.fronts.get(index).map(watch::Sender::subscribe);
        front.unwrap_or_else(|| watch::channel(None).1)
    }

    /// Returns how often the node of a front may have gained slots.
    pub(super) fn gains(&self, index: usize) -> u64 {
        self.gains.get(index).map_or(0, |gains| gains.load(Ordering::Acquire))
    }

    /// Returns all nodes that have a front.
    pub(super) fn all(&self) -> Vec<Arc<Tenure>> {
        self.fronts.iter().filter_map(|front| front.borrow().clone()).collect()
    }

    /// Returns the host under which replies name the fronts, or `None` if replies are not changed.
    pub(super) fn host(&self, reached: IpAddr) -> Option<String> {
        match &self.config.announce {
            // Nodes announce fronts themselves: replies only lose addresses that are no front's.
            Announce::Nodes => self.keeps_clients.then(String::new),
            Announce::Host(host) => Some(host.clone()),
            Announce::Reached => Some(reached.to_canonical().to_string()),
        }
    }

    /// Returns what is wrong.
    pub(super) fn troubles(&self) -> Vec<ClusterTrouble> {
        self.troubles.lock().clone()
    }

    /// Returns a line about how many nodes and fronts there are.
    pub(super) fn summary(&self) -> String {
        self.summary.lock().clone()
    }

    /// Looks again and again, for as long as the runtime runs.
    pub(super) async fn run(self: Arc<ClusterWatch>) {
        let mut memory = ClusterMemory {
            fronts: self.first_fronts(),
            nodes: Vec::new(),
            reached: HashMap::new(),
            answered: HashSet::new(),
            connections: HashMap::new(),
        };
        loop {
            self.look(&mut memory).await;
            sleep(GAP).await;
            let pause = if memory.nodes.is_empty() { RETRY } else { LOOK_EVERY };
            tokio::select! {
                () = sleep(pause) => {}
                () = self.wanted.notified() => {}
            }
        }
    }

    async fn look(&self, memory: &mut ClusterMemory) {
        let mut urls = self.config.nodes.clone();
        for url in memory.reached.values() {
            if !urls.contains(url) {
                urls.push(url.clone());
            }
        }
        let mut answers = ask_all(&urls, &self.connector, &mut memory.connections).await;
        let mut troubles = drop_foreign(&mut answers, &memory.nodes);
        // Nodes that only other nodes name are asked too, so that the first look finds all.
        let mut more: Vec<RedisUrl> =
            agreed(&answers).iter().filter_map(|node| self.announced(node)).collect();
        more.retain(|url| !urls.contains(url));
        answers.extend(ask_all(&more, &self.connector, &mut memory.connections).await);
        troubles.extend(drop_foreign(&mut answers, &memory.nodes));
        let nodes = agreed(&answers);
        if nodes.is_empty() {
            troubles.extend(answers.iter().filter_map(|answer| answer.told.clone().err()));
        } else {
            troubles.extend(self.take(nodes, &answers, memory));
        }
        let kept: HashSet<String> = memory.reached.values().map(ToString::to_string).collect();
        memory.connections.retain(|url, _| kept.contains(url));
        self.tell(troubles, memory);
        // Comes last: a task that waits for a node then finds what is wrong.
        self.choose_any(&answers);
    }

    /// Returns the address that a node announces, or `None` if it announces none or that of a front.
    fn announced(&self, node: &ClusterNode) -> Option<RedisUrl> {
        let is_usable = !node.host.is_empty() && self.own_front(node).is_none();
        is_usable.then(|| self.config.at(&node.host, node.port))
    }

    /// Returns the front whose address a node announces, if the address is certainly a front's.
    fn own_front(&self, node: &ClusterNode) -> Option<usize> {
        let index = self.listen.iter().position(|front| front.port() == node.port)?;
        let front = self.listen[index].ip().to_canonical();
        let is_front = match node.host.parse::<IpAddr>() {
            Ok(host) => {
                let host = host.to_canonical();
                host == front || front.is_unspecified() && is_of_this_machine(host)
            }
            Err(_) => false,
        };
        let is_announced = matches!(
            &self.config.announce,
            Announce::Host(host) if host.eq_ignore_ascii_case(&node.host)
        );
        (is_front || is_announced).then_some(index)
    }

    /// Returns the front that a node announces, as far as can be told.
    fn wanted_front(&self, node: &ClusterNode) -> Option<usize> {
        self.own_front(node).or_else(|| {
            let by_port = || self.listen.iter().position(|front| front.port() == node.port);
            (self.config.announce == Announce::Nodes).then(by_port).flatten()
        })
    }

    /// Takes the nodes in, and leads the fronts to them. Returns what is wrong.
    fn take(
        &self,
        nodes: Vec<ClusterNode>,
        answers: &[ClusterAnswer],
        memory: &mut ClusterMemory,
    ) -> Vec<ClusterTrouble> {
        let mut troubles = self.reach_all(&nodes, answers, memory);
        if memory.nodes.is_empty() {
            memory.fronts.doubt(&nodes);
        }
        troubles.extend(self.give_fronts(&nodes, &mut memory.fronts));
        if let [node] = &nodes[..] {
            let what = format!("the cluster has one node, {}", name(node));
            troubles.push(ClusterTrouble::new(ClusterFault::Alone, what));
        }
        let without = uncovered(&nodes);
        if without > 0 {
            let what = format!("{without} of {} slots have no master", cluster_node::SLOTS);
            troubles.push(ClusterTrouble::new(ClusterFault::Uncovered, what));
        }
        let mut table = FrontTable::default();
        for node in &nodes {
            let front = memory.fronts.of(&node.id);
            let before = memory.nodes.iter().find(|before| before.id == node.id);
            if let Some(front) = front
                && before.is_some_and(|before| node.may_have_gained(before))
            {
                self.gains[front].fetch_add(1, Ordering::Release);
            }
            if node.has_failed {
                let what = format!("{} is down, say the others", name(node));
                troubles.push(ClusterTrouble::new(ClusterFault::Down, what));
            }
            // By its port alone: the host may be any name that leads to the fronts. A front that is announced with a
            // mapped port is not recognised.
            if self.config.announce == Announce::Nodes
                && front.is_some_and(|front| self.listen[front].port() != node.port)
            {
                let what = format!("{} announces no front", name(node));
                troubles.push(ClusterTrouble::new(ClusterFault::Past, what));
            }
            let hosts = [&*node.host, node.hostname.as_deref().unwrap_or_default()];
            table.add(&node.id, &hosts, node.port, self.shown(node, front));
        }
        // Comes before the table: a client that is told of a front finds its node there.
        for (index, front) in self.fronts.iter().enumerate() {
            let url = memory.fronts.node(index).and_then(|id| memory.reached.get(id));
            self.lead(index, front, url);
        }
        self.table.store(Arc::new(table));
        let led = self.listen.iter().enumerate();
        let of_node = |(index, front): (usize, &SocketAddr)| {
            let (node, gone) = memory.fronts.last_node(index)?;
            Some((*front, node.to_owned(), gone))
        };
        *self.led.lock() = led.filter_map(of_node).collect();
        memory.nodes = nodes;
        self.known.send_if_modified(|known| !std::mem::replace(known, true));
        troubles
    }

    /// Gives each node a front, as far as there are enough. Returns a trouble for each node that has none.
    fn give_fronts(&self, nodes: &[ClusterNode], fronts: &mut Fronts) -> Vec<ClusterTrouble> {
        let without = fronts.give(nodes, |node| self.wanted_front(node), Instant::now());
        let trouble = |id: String| {
            let node = nodes.iter().find(|node| node.id == id);
            let what = format!(
                "{} has no front: listen has {}, and the cluster {} nodes",
                node.map_or(id, name),
                self.listen.len(),
                nodes.len(),
            );
            ClusterTrouble::new(ClusterFault::NoFront, what)
        };
        without.into_iter().map(trouble).collect()
    }

    /// Returns how replies show a node whose front is `front`.
    fn shown(&self, node: &ClusterNode, front: Option<usize>) -> ShownAs {
        let Some(front) = front else { return ShownAs::Nothing };
        let port = self.listen[front].port();
        if self.own_front(node) == Some(front) {
            return ShownAs::AsItIs;
        }
        match (&self.config.announce, port == node.port) {
            (Announce::Nodes, true) => ShownAs::AsItIs,
            (Announce::Nodes, false) => ShownAs::Nothing,
            _ => ShownAs::Front(port),
        }
    }

    /// Finds out where each node is reached. Returns what is wrong with nodes, and with addresses in the configuration
    /// at which none is reached.
    fn reach_all(
        &self,
        nodes: &[ClusterNode],
        answers: &[ClusterAnswer],
        memory: &mut ClusterMemory,
    ) -> Vec<ClusterTrouble> {
        memory.reached.retain(|id, _| nodes.iter().any(|node| node.id == *id));
        memory.answered.retain(|id| nodes.iter().any(|node| node.id == *id));
        let reached = nodes.iter().map(|node| self.reach(node, answers, memory));
        let mut troubles: Vec<ClusterTrouble> = reached.filter_map(Result::err).collect();
        for answer in answers.iter().filter(|answer| self.config.nodes.contains(&answer.url)) {
            let is_known = memory.reached.values().any(|url| *url == answer.url);
            if let Err(trouble) = &answer.told
                && trouble.fault != ClusterFault::Foreign
                && !is_known
            {
                troubles.push(trouble.clone());
            }
        }
        troubles
    }

    /// Finds out where a node is reached. Its address stays while the node answers there, or answers
    /// nowhere else.
    fn reach(
        &self,
        node: &ClusterNode,
        answers: &[ClusterAnswer],
        ClusterMemory { reached, answered, .. }: &mut ClusterMemory,
    ) -> Result<(), ClusterTrouble> {
        let is_there = |url: &RedisUrl| {
            answers.iter().any(|answer| answer.url == *url && answer.id() == Some(&node.id))
        };
        let told = |url: &RedisUrl| {
            answers.iter().find(|answer| answer.url == *url).map(|answer| &answer.told)
        };
        if reached.get(&node.id).is_some_and(&is_there) {
            return Ok(());
        }
        let is_another = |url: &RedisUrl| {
            answers.iter().any(|answer| answer.url == *url && answer.id().is_some())
        };
        if reached.get(&node.id).is_some_and(is_another) {
            reached.remove(&node.id);
        }
        let announced = self.announced(node);
        let written = self.config.nodes.iter().find(|url| is_there(url)).cloned();
        if let Some(url) = announced.clone().filter(&is_there).or(written) {
            reached.insert(node.id.clone(), url);
            answered.insert(node.id.clone());
            return Ok(());
        }
        if answered.contains(&node.id)
            && let Some(Err(error)) = reached.get(&node.id).and_then(told)
        {
            // A node that the others know to be down is reported as that.
            return if node.has_failed { Ok(()) } else { Err(error.clone()) };
        }
        let Some(announced) = announced else {
            let what = format!(
                "{} announces a front, and is not in data.cluster with an address of its own",
                name(node)
            );
            return Err(ClusterTrouble::new(ClusterFault::Address, what));
        };
        let error = told(&announced);
        let what = match error {
            Some(Err(error)) => error.what.clone(),
            Some(Ok(_)) => format!("{announced} is another node"),
            None => format!("{announced} was not asked"),
        };
        // If another node answers at that address, the front leads nowhere rather than to it.
        if !matches!(error, Some(Ok(_))) {
            reached.entry(node.id.clone()).or_insert(announced);
        }
        match node.has_failed {
            // The other nodes know it, and send no clients here.
            true => Ok(()),
            false => {
                let what = format!("{} cannot be reached where it announces: {what}", name(node));
                Err(ClusterTrouble::new(ClusterFault::Address, what))
            }
        }
    }

    /// Leads a front to the node at `url`. Sessions on another node end.
    fn lead(
        &self,
        index: usize,
        front: &watch::Sender<Option<Arc<Tenure>>>,
        url: Option<&RedisUrl>,
    ) {
        let now = front.borrow().clone();
        if now.as_ref().map(|tenure| &tenure.url) == url {
            return;
        }
        let address = self.listen[index];
        match (&now, url) {
            (Some(_), _) => {
                self.metrics.moves.increment(1);
                warn!(
                    front = %address, node = url.map(tracing::field::display),
                    "the node behind this front has gone or is elsewhere now; its sessions end"
                );
            }
            (None, Some(url)) => {
                info!(front = %address, node = %url, "this front leads to the node")
            }
            (None, None) => {}
        }
        front.send_replace(url.map(|url| self.tenure(url)));
        if let Some(tenure) = now {
            tenure.finish();
        }
    }

    fn tenure(&self, url: &RedisUrl) -> Arc<Tenure> {
        Arc::new(Tenure::new(url.clone(), self.wanted.clone(), self.metrics.doubts.clone()))
    }

    /// Keeps or chooses the node for the proxy's own questions.
    fn choose_any(&self, answers: &[ClusterAnswer]) {
        let now = self.any.borrow().clone();
        let alive =
            |url: &RedisUrl| answers.iter().any(|answer| answer.url == *url && answer.told.is_ok());
        if now.as_ref().is_some_and(|tenure| alive(&tenure.url)) {
            return;
        }
        let next = answers.iter().find(|answer| answer.told.is_ok());
        if now.is_some() || next.is_some() {
            self.any.send_replace(next.map(|answer| self.tenure(&answer.url)));
        }
        if let Some(tenure) = now {
            tenure.finish();
        }
    }

    /// Notes what is wrong, and logs what is new.
    fn tell(&self, mut troubles: Vec<ClusterTrouble>, memory: &ClusterMemory) {
        troubles.dedup();
        self.metrics.count(&troubles, memory.nodes.len());
        let left = (0..memory.fronts.count()).filter(|front| memory.fronts.node(*front).is_some());
        *self.summary.lock() = format!(
            "cluster: {} nodes; {} of {} fronts lead to one",
            memory.nodes.len(),
            left.count(),
            memory.fronts.count()
        );
        troubles.truncate(MOST_TROUBLES);
        let mut known = self.troubles.lock();
        for trouble in troubles.iter().filter(|trouble| !known.contains(trouble)) {
            warn!(cluster = %self.config, fault = trouble.fault.as_str(), "{trouble}");
        }
        if troubles.is_empty() && !known.is_empty() {
            info!(cluster = %self.config, "nothing is wrong with the cluster any more");
        }
        *known = troubles;
    }
}

/// Returns what operators are told of a node: its address, and the beginning of its id.
fn name(node: &ClusterNode) -> String {
    let id: String = node.id.chars().take(8).collect();
    format!("the node {}:{} ({id})", node.host, node.port)
}

/// Whether an address is one of this machine's: a socket can bind to no other.
fn is_of_this_machine(host: IpAddr) -> bool {
    host.is_loopback() || UdpSocket::bind((host, 0)).is_ok()
}
