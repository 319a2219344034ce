//! All lock nodes: sends them operations, waits for their votes, and says which are missing.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Context, Poll, Waker, ready},
    time::Duration,
};

use tokio::{runtime::Handle, time::sleep};

use super::{
    node::{ASK_AGAIN, Node},
    outage::Outage,
    proposed_fence::LargestFence,
    supervisor,
};
use crate::{
    clock::Instant,
    cluster::slot::slot,
    config::LocksConfig,
    key::{Key, Token},
    lock::{
        Alarm, Claim, NoQuorum, NodeStatus,
        address::NodeAddress,
        longest::LongestGrant,
        members::{clocks::Clocks, fault::Fault, shared_members::SharedMembers},
        operation::{Absence, Kind, Operation, Vote},
        quorum::{DRIFT, Decision, Rule, quorum, validity},
        scripts::{self, Dialect, Ended, Wanted},
        shards::{ShardJudge, Shards},
    },
    net::Connector,
    sync::Mutex,
};

/// The wait for answers is at most the TTL divided by this, so that asking does not use up the validity.
const TIMEOUT_SHARE: u32 = 10;

/// How long a release is remembered while a change of the set is under way: longer than the rest of the change takes
/// once the lock has been copied.
const RELEASES_FOR: Duration = Duration::from_secs(30);

/// The most releases that wait to be repeated elsewhere. Any further lock has to run out.
const MOST_MOVED: usize = 10_000;

/// The time of day in microseconds, from which fences are proposed.
pub(crate) type WallClock = Arc<dyn Fn() -> u64 + Send + Sync>;

/// Which node gives a voter's vote on a lock.
enum VoterRoute {
    /// Always this node.
    One(Arc<Node>),
    /// The node of the shard that has the lock's slot, among those on the cluster's seats.
    Shards(Arc<Shards>, Box<[Arc<Node>]>),
}

impl VoterRoute {
    /// Returns the nodes on the voter's seats.
    fn nodes(&self) -> &[Arc<Node>] {
        match self {
            VoterRoute::One(node) => std::slice::from_ref(node),
            VoterRoute::Shards(_, nodes) => nodes,
        }
    }

    /// Returns the node that votes on the lock at `key`; `None` if no shard is known to have its slot.
    #[inline]
    fn node(&self, key: &[u8]) -> Option<&Arc<Node>> {
        match self {
            VoterRoute::One(node) => Some(node),
            VoterRoute::Shards(shards, nodes) => nodes.get(shards.of(key)?),
        }
    }

    /// Returns why no node votes on a lock.
    fn without_node(&self) -> Absence {
        match self {
            VoterRoute::Shards(shards, _) if !shards.are_known() => Absence::Unconfirmed,
            _ => Absence::ClusterDown,
        }
    }

    /// Sends an operation to the node that votes for `voter` on its lock.
    #[inline]
    fn submit(&self, voter: usize, operation: &Arc<Operation>) {
        match self.node(&operation.key) {
            Some(node) => node.submit(operation),
            None => operation.vote(voter, Vote::Missing(self.without_node())),
        }
    }
}

/// All lock nodes of one proxy, and what all operations on them share.
pub(in crate::lock) struct Nodes {
    /// By seat.
    all: Vec<Arc<Node>>,
    /// One for each voter, in the order of `locks.nodes`.
    routes: Box<[VoterRoute]>,
    members: Arc<SharedMembers>,
    wall_clock: WallClock,
    /// The name of this proxy in the messages about its releases.
    who: String,
    pub(in crate::lock) node_timeout: Duration,
    pub(in crate::lock) drift_factor: f64,
    pub(in crate::lock) dialect: Dialect,
    pub(in crate::lock) fence_ttl: Duration,
    /// For how long writers that wait may bar new readers of a lock.
    pub(in crate::lock) intents_bar: Duration,
    /// The longest TTL that this proxy grants. Also bounds the wait for answers about a lock of unknown TTL.
    pub(in crate::lock) max_ttl: Duration,
    /// The longest TTL that any grant may have.
    longest: Arc<LongestGrant>,
    fences: Arc<LargestFence>,
    /// Releases of the last [`RELEASES_FOR`], kept while a change of the set is under way.
    releases: Mutex<VecDeque<(Instant, Arc<Operation>)>>,
    notes_releases: AtomicBool,
    pub(in crate::lock) clocks: Arc<Clocks>,
    pub(in crate::lock) outage: Outage,
}

impl Nodes {
    /// Starts connecting to all nodes, on this runtime. If they replace the nodes `before`, what this proxy learned
    /// from those stays known.
    pub(in crate::lock) fn start(
        config: &LocksConfig,
        (runtime, wall_clock): (&Handle, WallClock),
        addresses: &[Arc<NodeAddress>],
        connector: &Connector,
        before: Option<&Nodes>,
    ) -> Nodes {
        let own = || Arc::new(LongestGrant::new(config.max_ttl));
        let longest = before.map_or_else(own, |before| before.longest.clone());
        let members = Arc::new(SharedMembers::new(config, addresses, connector, longest.clone()));
        let clocks = Arc::new(Clocks::new(config, longest.clone()));
        let mut all = Vec::new();
        for (index, address) in addresses.iter().enumerate() {
            let (connector, members) = (connector.clone(), members.clone());
            let clocks = clocks.clone();
            let node = Node::new(address.clone(), connector, index, config, members, clocks);
            let node = Arc::new(node);
            runtime.spawn(supervisor::supervise(node.clone()));
            all.push(node);
        }
        let routes = routes(&all);
        for route in &routes {
            if let VoterRoute::Shards(shards, nodes) = route {
                if config.quarantine {
                    let nodes = nodes.iter().map(Arc::downgrade).collect();
                    shards.judge_by(JudgeOfShards { nodes, members: members.clone() });
                }
                follow_moves(shards, nodes, runtime, &longest);
            }
        }
        Nodes {
            all,
            routes,
            members,
            wall_clock,
            who: before.map_or_else(
                || format!("{:016x}", rand::random::<u64>()),
                |before| before.who.clone(),
            ),
            node_timeout: config.node_timeout,
            drift_factor: config.drift_factor,
            dialect: Dialect::of(config),
            fence_ttl: config.fence_ttl,
            intents_bar: config.default_ttl,
            max_ttl: config.max_ttl,
            longest,
            fences: before.map(|before| before.fences.clone()).unwrap_or_default(),
            releases: Mutex::default(),
            notes_releases: AtomicBool::new(!config.next_nodes.is_empty()),
            clocks,
            outage: Outage::new(),
        }
    }

    /// Starts to inspect the nodes for faults at intervals.
    pub(in crate::lock) fn inspect(&self, runtime: &Handle) {
        for node in &self.all {
            runtime.spawn(supervisor::inspect(Arc::downgrade(node)));
        }
    }

    /// Registers `came_back`, called whenever a node can be asked again, and `is_late`, called then with the undo of
    /// each lock that was granted and that this node may have taken or may take yet.
    pub(in crate::lock) fn tell(
        &self,
        came_back: impl Fn() + Clone + Send + Sync + 'static,
        is_late: impl Fn(usize, Arc<Operation>) + Clone + Send + Sync + 'static,
    ) {
        for node in &self.all {
            node.on_return(came_back.clone());
            node.on_late(is_late.clone());
        }
    }

    /// Whether a node has refused a release of `key` and the release is still being repeated.
    pub(in crate::lock) fn must_release(&self, key: &Key) -> bool {
        self.all.iter().any(|node| node.must_release(key))
    }

    /// Returns the present state of each voter, in the order of the configuration.
    pub(in crate::lock) fn status(&self) -> Vec<NodeStatus> {
        let status = |route: &VoterRoute| match route {
            VoterRoute::One(node) => node.status(),
            VoterRoute::Shards(shards, nodes) => {
                let there = nodes.iter().enumerate();
                let there = there.filter(|(_, node)| node.address.now().is_ok());
                let all: Vec<_> = there.map(|(place, node)| (place, node.status())).collect();
                of_shards(shards, &all)
            }
        };
        self.routes.iter().map(status).collect()
    }

    /// Notes that grants of other proxies may last for so long.
    pub(in crate::lock) fn heard_of(&self, longest: Duration) {
        self.longest.heard_of(longest);
    }

    /// Returns what this proxy knows about which nodes may vote.
    pub(in crate::lock) fn members(&self) -> &Arc<SharedMembers> {
        &self.members
    }

    /// Stops asking a voter for new locks, or resumes.
    pub(in crate::lock) fn pause(&self, voter: usize, paused: bool) {
        self.routes[voter].nodes().iter().for_each(|node| node.pause(paused));
    }

    /// Whether the only node that votes on the lock at `key` waits. Then no node can confirm that the lock is held:
    /// it is put back on this proxy's own knowledge.
    pub(in crate::lock) fn wait_alone(&self, key: &[u8]) -> bool {
        match &*self.routes {
            [only] => only.node(key).is_some_and(|node| node.waits_alone()),
            _ => false,
        }
    }

    pub(in crate::lock) fn quorum(&self) -> usize {
        quorum(self.routes.len())
    }

    /// Returns the name of this proxy in the messages about its releases.
    pub(in crate::lock) fn who(&self) -> &str {
        &self.who
    }

    /// Whether `who`, the name in a message about a release, is this proxy's own.
    pub(in crate::lock) fn is_own_word(&self, who: &[u8]) -> bool {
        who == self.who.as_bytes()
    }

    /// Learns a fence that was granted, or that the data node has seen.
    pub(in crate::lock) fn learn_fence(&self, fence: u64) {
        self.fences.learn(fence, (self.wall_clock)());
    }

    /// Gathers the arguments of a request for a lock.
    pub(in crate::lock) fn wanted<'a>(
        &self,
        key: &'a [u8],
        token: &'a [u8],
        ttl: Duration,
        claim: Claim,
    ) -> Wanted<'a> {
        debug_assert!(ttl <= self.max_ttl, "a node waits for max_ttl before it votes anew");
        let fence = self.fences.propose((self.wall_clock)());
        Wanted { key, token, ttl, fence, fence_ttl: self.fence_ttl, claim }
    }

    /// Builds one request to all nodes, without sending it.
    pub(in crate::lock) fn operation(
        &self,
        kind: Kind,
        key: Key,
        token: Token,
        ttl: Duration,
        request: Vec<u8>,
    ) -> Operation {
        let operation = Operation::new(kind, key, token, ttl, request, self.routes.len());
        operation.in_dialect(self.dialect).made_at(self.members.learned())
    }

    /// Builds the operation that gives a lock back, in this proxy's name.
    pub(in crate::lock) fn releasing(&self, key: Key, token: Token, claim: Claim) -> Operation {
        self.ending(key, token, Ended { claim, barred: None })
    }

    /// Builds the operation that gives back a lock that another proxy may have granted, and may be healing.
    pub(in crate::lock) fn releasing_elsewhere(
        &self,
        key: Key,
        token: Token,
        claim: Claim,
    ) -> Operation {
        self.ending(key, token, Ended { claim, barred: Some(self.longest.get()) })
    }

    fn ending(&self, key: Key, token: Token, ended: Ended) -> Operation {
        let (who, count) = (self.who.as_bytes(), self.routes.len());
        Operation::release(self.dialect, key, token, ended, who, self.longest.get(), count)
    }

    /// Has every voter end all readers of a lock. It is not repeated on a node that misses it, as others may read by
    /// then.
    pub(in crate::lock) fn end_readers(&self, key: Key) -> Arc<Operation> {
        let longest = self.longest.get();
        let who = self.who.as_bytes();
        let request = scripts::shared::release_all(self.dialect, &key, who, longest);
        self.submit(self.operation(Kind::Release, key, "".into(), longest, request))
    }

    /// Sends an operation to every voter at once, without waiting.
    pub(in crate::lock) fn submit(&self, operation: Operation) -> Arc<Operation> {
        let operation = Arc::new(operation);
        self.note_release(&operation);
        for (voter, route) in self.routes.iter().enumerate() {
            route.submit(voter, &operation);
        }
        operation
    }

    /// Sends an operation to one voter alone.
    pub(in crate::lock) fn submit_to(&self, voter: usize, operation: &Arc<Operation>) {
        self.note_release(operation);
        self.routes[voter].submit(voter, operation);
    }

    /// Starts or stops noting releases, which are to be repeated on the next set.
    pub(in crate::lock) fn note_releases(&self, notes: bool) {
        self.notes_releases.store(notes, Ordering::Release);
    }

    #[inline]
    fn note_release(&self, operation: &Arc<Operation>) {
        if operation.kind == Kind::Release && self.notes_releases.load(Ordering::Acquire) {
            self.note(operation);
        }
    }

    #[cold]
    fn note(&self, operation: &Arc<Operation>) {
        let now = Instant::now();
        let mut releases = self.releases.lock();
        if releases.back().is_some_and(|(_, last)| Arc::ptr_eq(last, operation)) {
            return;
        }
        releases.push_back((now, operation.clone()));
        let is_old = |(at, _): &(Instant, _)| now.saturating_duration_since(*at) > RELEASES_FOR;
        while releases.len() > MOST_MOVED || releases.front().is_some_and(is_old) {
            releases.pop_front();
        }
    }

    /// Repeats on these nodes the releases that were lately sent to the nodes `before`: a lock may have been copied
    /// before its release.
    pub(in crate::lock) fn repeat_releases(&self, before: &Nodes) {
        let releases = std::mem::take(&mut *before.releases.lock());
        for (_, release) in releases {
            if let Some(ended) = release.ended.filter(|_| !release.undoes_grant()) {
                self.submit(self.ending(release.key.clone(), release.token.clone(), ended));
            }
        }
    }

    /// Returns what locks must have in common to share one call: readers have a script of their own, and no node of a
    /// cluster carries out a call on several slots.
    pub(in crate::lock) fn together(&self, key: &Key) -> (bool, u16) {
        let slot = match self.dialect {
            Dialect::Plain => 0,
            Dialect::Tagged | Dialect::Streams => slot(key),
        };
        (key.is_of_reader(), slot)
    }

    /// Returns the key that routes a call on several locks to its nodes. `key` is one of these locks'.
    pub(in crate::lock) fn place_of(&self, key: &Key) -> Key {
        match self.dialect {
            Dialect::Plain => "".into(),
            Dialect::Tagged | Dialect::Streams => key.clone(),
        }
    }

    /// Sends one request to every node, and returns the [`Tally`] that waits for the votes by `rule`.
    pub(in crate::lock) fn ask(
        self: &Arc<Self>,
        kind: Kind,
        rule: Rule,
        key: Key,
        token: Token,
        ttl: Duration,
        request: Vec<u8>,
    ) -> Tally {
        let operation = self.submit(self.operation(kind, key, token, ttl, request));
        self.await_votes(operation, rule, ttl)
    }

    /// Returns the [`Tally`] that waits for the votes by `rule`, as long as [`Nodes::patience`] allows for that TTL.
    pub(in crate::lock) fn await_votes(
        self: &Arc<Self>,
        operation: Arc<Operation>,
        rule: Rule,
        ttl: Duration,
    ) -> Tally {
        // An instant of tokio's clock, as for all timers, which may fire late.
        let deadline = tokio::time::Instant::now() + self.patience(ttl);
        let patient = ttl / TIMEOUT_SHARE >= self.node_timeout;
        let (nodes, alarm) = (self.clone(), Alarm::default());
        Tally { nodes, operation, rule, deadline, patient, looked_again: false, alarm }
    }

    /// Returns how long nodes have to answer about a lock with that TTL.
    pub(in crate::lock) fn patience(&self, ttl: Duration) -> Duration {
        self.node_timeout.min(ttl / TIMEOUT_SHARE)
    }

    /// Waits until the nodes that are up have carried out all earlier operations, for at most
    /// `limit`.
    pub(in crate::lock) async fn drain(self: &Arc<Self>, limit: Duration) {
        let mut ping = Vec::new();
        crate::resp::encode::command(&mut ping, &[b"PING"]);
        let deadline = tokio::time::Instant::now() + limit;
        // One node of each voter at a time: a voter has one vote.
        let mut rounds = Vec::new();
        for round in 0.. {
            let operation = self.operation(Kind::Flush, "".into(), "".into(), limit, ping.clone());
            let operation = Arc::new(operation);
            let mut any = false;
            for voter in 0..self.routes.len() {
                let mut own = self.all.iter().filter(|node| node.voter == voter);
                let node = own.nth(round);
                any |= node.is_some();
                match node.filter(|node| !node.address.is_absent()) {
                    Some(node) => node.submit(&operation),
                    None => operation.vote(voter, Vote::Missing(Absence::Down)),
                }
            }
            if !any {
                break;
            }
            rounds.push(self.await_votes(operation, Rule::All, limit));
        }
        for mut tally in rounds {
            tally.deadline = deadline;
            std::future::poll_fn(|cx| tally.poll_decision(cx).map(drop)).await;
        }
    }

    /// Returns the validity that is left at `now` for a lock requested at `since`. `None` if none is left, or if this
    /// proxy may have stood still since.
    pub(in crate::lock) fn validity(
        &self,
        ttl: Duration,
        since: Instant,
        now: Instant,
    ) -> Option<Duration> {
        if self.clocks.is_lost(since) {
            return None;
        }
        validity(ttl, now - since, self.drift_factor)
    }

    /// Returns the most by which a lock may end sooner on a node than by this proxy's clock.
    pub(in crate::lock) fn most_drift(&self) -> Duration {
        self.longest.get().mul_f64(self.drift_factor) + DRIFT
    }

    /// Returns the state of the node that votes for a voter on the lock at `key`.
    fn status_of(&self, voter: usize, key: &[u8]) -> NodeStatus {
        let route = &self.routes[voter];
        match (route.node(key), route) {
            (Some(node), _) | (None, VoterRoute::One(node)) => node.status(),
            (None, VoterRoute::Shards(shards, _)) => of_shards(shards, &[]),
        }
    }

    /// Makes the NOQUORUM error of votes that do not decide, which names the missing nodes, and counts it.
    pub(in crate::lock) fn no_quorum(&self, key: &[u8], votes: &[Vote]) -> NoQuorum {
        let missing: Vec<String> = votes
            .iter()
            .enumerate()
            .filter_map(|(node, vote)| match vote {
                Vote::Missing(why) => Some((*why, node)),
                Vote::Pending => Some((Absence::Timeout, node)),
                Vote::Yes(_)
                | Vote::Kept { .. }
                | Vote::Taken(_)
                | Vote::Held { .. }
                | Vote::Found { .. }
                | Vote::No(_)
                | Vote::Same { .. } => None,
            })
            .map(|(why, node)| {
                let NodeStatus { address, reason, unfit, .. } = self.status_of(node, key);
                let why = match (why, unfit, reason) {
                    (Absence::Quarantined | Absence::Unconfirmed, _, Some(reason))
                    | (Absence::Down, Some(Fault::Changing), Some(reason)) => reason,
                    // The node answers, but has a named fault.
                    (Absence::Down, Some(fault), _) => fault.as_str().replace('_', " "),
                    (why, ..) => why.as_str().to_owned(),
                };
                format!("{address} ({why})")
            })
            .collect();
        let error = NoQuorum {
            answered: votes.len() - missing.len(),
            nodes: votes.len(),
            quorum: quorum(votes.len()),
            missing,
            data_node: None,
            was_held: false,
            is_unwritten: false,
        };
        self.outage.failed(&error);
        error
    }
}

/// Returns each voter's route.
fn routes(all: &[Arc<Node>]) -> Box<[VoterRoute]> {
    let of_voter = all.chunk_by(|one, next| one.voter == next.voter);
    let route = |nodes: &[Arc<Node>]| match nodes[0].address.cluster() {
        Some(shards) => VoterRoute::Shards(shards.clone(), nodes.into()),
        None => VoterRoute::One(nodes[0].clone()),
    };
    of_voter.map(route).collect()
}

/// The judge that tells the follower of a cluster which of its shards have every lock.
struct JudgeOfShards {
    /// By the shards' places. Weak, as the nodes hold the [`Shards`] that hold this judge.
    nodes: Vec<Weak<Node>>,
    members: Arc<SharedMembers>,
}

impl ShardJudge for JudgeOfShards {
    fn has_all(&self, place: usize) -> bool {
        self.nodes.get(place).and_then(Weak::upgrade).is_some_and(|node| node.has_all())
    }

    fn longest_wait(&self) -> Duration {
        self.members.longest_wait()
    }
}

/// Has each release whose slot has left its shard carried out by the shard that has the slot then.
fn follow_moves(
    shards: &Arc<Shards>,
    nodes: &[Arc<Node>],
    runtime: &Handle,
    longest: &Arc<LongestGrant>,
) {
    // Weak, as each node keeps its callback.
    let weak: Arc<[Weak<Node>]> = nodes.iter().map(Arc::downgrade).collect();
    for node in nodes {
        let (shards, weak, runtime) = (shards.clone(), weak.clone(), runtime.clone());
        let longest = longest.clone();
        let waiting = Arc::new(AtomicUsize::new(0));
        node.on_elsewhere(move |operation| {
            // Any further lock has to run out.
            if waiting.fetch_add(1, Ordering::Relaxed) >= MOST_MOVED {
                waiting.fetch_sub(1, Ordering::Relaxed);
                return;
            }
            let route = (shards.clone(), weak.clone());
            let giving = give_back_elsewhere(route, operation.clone(), longest.get());
            let waiting = waiting.clone();
            runtime.spawn(async move {
                giving.await;
                waiting.fetch_sub(1, Ordering::Relaxed);
            });
        });
    }
}

/// Combines the states of a cluster's shards, given with their places, into that of its voter. The voter is up while
/// any shard is, though no other shard votes on the locks of one that is down.
fn of_shards(shards: &Shards, all: &[(usize, NodeStatus)]) -> NodeStatus {
    let troubles = shards.troubles();
    let mut reasons: Vec<String> = troubles.into_iter().map(|trouble| trouble.what).collect();
    let (mut told, mut found) = (BTreeMap::<&str, Vec<usize>>::new(), Vec::new());
    for (place, shard) in all {
        if let Some(reason) = &shard.reason {
            told.entry(reason).or_default().push(*place);
        }
        let new = shard.found.iter().filter(|fault| !found.contains(*fault));
        let new: Vec<_> = new.copied().collect();
        found.extend(new);
    }
    for (reason, places) in told {
        let (s, at) = match places[..] {
            [place] => ("", shards.master_of(place).map(|url| format!(" ({url})"))),
            _ => ("s", None),
        };
        let places: Vec<String> = places.iter().map(|place| (place + 1).to_string()).collect();
        reasons.push(format!("shard{s} {}{}: {reason}", places.join(", "), at.unwrap_or_default()));
    }
    let up = all.iter().any(|(_, shard)| shard.up);
    NodeStatus {
        address: shards.config.cluster.to_string(),
        up,
        reason: Some(reasons.join("; ")).filter(|reasons| !reasons.is_empty()),
        unfit: all.iter().find_map(|(_, shard)| shard.unfit),
        found,
        too_slow: up && all.iter().all(|(_, shard)| shard.too_slow || !shard.up),
        paused: all.iter().any(|(_, shard)| shard.paused),
        round_trip: all.iter().filter_map(|(_, shard)| shard.round_trip).max(),
        clock_ahead: all
            .iter()
            .filter_map(|(_, shard)| shard.clock_ahead)
            .max_by_key(|micros| micros.unsigned_abs()),
    }
}

/// Gives a lock back on the shard to which its slot has moved. Waits first, as the map may not show the move yet.
async fn give_back_elsewhere(
    (shards, nodes): (Arc<Shards>, Arc<[Weak<Node>]>),
    operation: Arc<Operation>,
    longest: Duration,
) {
    sleep(ASK_AGAIN).await;
    let left = operation.ttl.min(longest).saturating_sub(ASK_AGAIN);
    let (Some(release), false) = (operation.late_release(), left.is_zero()) else { return };
    let Some(place) = shards.of(&operation.key) else { return };
    if let Some(node) = nodes.get(place).and_then(Weak::upgrade) {
        node.submit(&Arc::new(release.lasting(left)));
    }
}

/// The wait for the votes on one operation, which ends when they decide or time is up.
pub(in crate::lock) struct Tally {
    pub(in crate::lock) nodes: Arc<Nodes>,
    pub(in crate::lock) operation: Arc<Operation>,
    pub(in crate::lock) rule: Rule,
    deadline: tokio::time::Instant,
    /// Whether the nodes have all of `locks.node_timeout`.
    patient: bool,
    /// Whether they were given it twice.
    looked_again: bool,
    pub(in crate::lock) alarm: Alarm,
}

impl Tally {
    /// Ready once the votes decide, or time is up.
    ///
    /// When all nodes are late at once, this machine is usually busy and their answers are there unread. So the proxy
    /// waits once more. It sends nothing again, and a validity still counts from the first request.
    pub(in crate::lock) fn poll_decision(&mut self, cx: &mut Context<'_>) -> Poll<Decision> {
        let decision = self.operation.decision(self.rule, cx.waker());
        if decision != Decision::Open {
            self.nodes.outage.decided(decision, self.patient);
            return Poll::Ready(decision);
        }
        ready!(self.alarm.poll(self.deadline, cx));
        if self.patient && !self.looked_again && self.operation.is_unheard() {
            self.looked_again = true;
            self.deadline = tokio::time::Instant::now() + self.nodes.node_timeout;
            self.nodes.outage.all_late();
            ready!(self.alarm.poll(self.deadline, cx));
        }
        for late in self.operation.time_out() {
            if let Some(node) = self.nodes.routes[late].node(&self.operation.key) {
                node.metrics.errors_timeout.increment(1);
            }
        }
        let decision = self.operation.decision(self.rule, Waker::noop());
        debug_assert_ne!(decision, Decision::Open, "no vote is waited for any more");
        self.nodes.outage.decided(decision, self.patient);
        Poll::Ready(decision)
    }
}
