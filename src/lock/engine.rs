//! Acquire, release, renew: the algorithm of DESIGN.md, "The quorum".
//!
//! Redlock over N independent nodes
//! (<https://redis.io/docs/latest/develop/use/patterns/distributed-locks/>),
//! with a fence that grows from grant to grant. The engine knows nodes only as
//! `Voter`s and the time of day only as a function, so that it runs over
//! simulated ones as it does over real ones.

use std::{
    future::Future,
    pin::Pin,
    sync::{Arc, Weak},
    task::{Context, Poll, Waker, ready},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use tokio::{
    runtime::Handle,
    time::{Instant, sleep},
};

use super::{
    Acquire, Alarm, Attach, Counts, LockStatus, NoQuorum, NodeStatus, Renewed, Waiter,
    holders::{Holders, Known},
    node::{self, Node},
    operation::{Kind, Missing, Operation, Vote},
    quarantine::Admissions,
    queue::{Next, Queues},
    quorum::{Decision, Rule, quorum, validity},
    scripts, subscribe,
    watchdog::{self, Watch, Watchdog},
};
use crate::{
    config::LocksConfig,
    key::{Key, Token},
    metrics::{LockMetrics, LostReason},
    net::Connector,
};

/// A node waits for an answer at most this share of the TTL, so that asking
/// does not use the validity up.
const TIMEOUT_SHARE: u32 = 10;
/// How often queues that nobody comes back to are looked for.
const SWEEP_EVERY: Duration = Duration::from_millis(500);

/// Something that can be asked and votes exactly once on each operation.
pub(super) trait Voter: Send + Sync {
    fn submit(&self, operation: &Arc<Operation>);
    fn status(&self) -> NodeStatus;
    /// A vote was not there in time.
    fn was_late(&self);
}

impl Voter for Arc<Node> {
    fn submit(&self, operation: &Arc<Operation>) {
        Node::submit(self, operation);
    }

    fn status(&self) -> NodeStatus {
        Node::status(self)
    }

    fn was_late(&self) {
        self.metrics.errors_timeout.increment(1);
    }
}

/// The time of day in microseconds, from which fences are proposed.
pub type WallClock = Box<dyn Fn() -> u64 + Send + Sync>;

/// The lock engine over all lock nodes.
pub struct Engine {
    nodes: Vec<Box<dyn Voter>>,
    wall_clock: WallClock,
    /// Names this proxy in what its releases tell the others.
    who: String,
    node_timeout: Duration,
    pub(super) drift_factor: f64,
    pub(super) fence_ttl: Duration,
    pub(super) max_ttl: Duration,
    /// What was granted here.
    pub(super) holders: Holders,
    /// Who waits here.
    pub(super) queues: Queues,
    pub(super) watchdog: Watchdog,
    pub(super) metrics: Arc<LockMetrics>,
}

impl Engine {
    /// Starts connecting to all nodes. Must be called inside a tokio runtime.
    pub fn start(config: &LocksConfig) -> Arc<Engine> {
        Engine::start_on(config, &Handle::current())
    }

    /// The same, with all nodes' connections on this runtime, that of a thread which has
    /// sessions too: for those no other thread is woken, and the votes on one operation
    /// come from one thread. Spread over threads, a lock and its unlock took a seventh
    /// more of the proxy's CPU, and one thread moves more than nodes can vote on
    /// (bench/README.md).
    pub fn start_on(config: &LocksConfig, runtime: &Handle) -> Arc<Engine> {
        let clock = || {
            let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
        };
        Engine::start_all(config, runtime, Box::new(clock))
    }

    /// The same with another time of day.
    pub fn start_with_clock(config: &LocksConfig, wall_clock: WallClock) -> Arc<Engine> {
        Engine::start_all(config, &Handle::current(), wall_clock)
    }

    fn start_all(config: &LocksConfig, runtime: &Handle, wall_clock: WallClock) -> Arc<Engine> {
        let connector = Connector::start("node", &config.tls, &config.nodes);
        let (engine, nodes) = Engine::start_locks(config, runtime, wall_clock, &connector);
        for node in nodes {
            runtime.spawn(node::inspect(node));
        }
        for (index, url) in config.nodes.iter().enumerate() {
            let (engine, url) = (Arc::downgrade(&engine), url.clone());
            tokio::spawn(subscribe::run(engine, index, url, connector.clone()));
        }
        engine
    }

    /// Without what goes over connections of another library.
    #[cfg(test)]
    pub(super) fn start_alone(config: &LocksConfig, wall_clock: WallClock) -> Arc<Engine> {
        let connector = Connector::start("node", &config.tls, &config.nodes);
        Engine::start_locks(config, &Handle::current(), wall_clock, &connector).0
    }

    fn start_locks(
        config: &LocksConfig,
        runtime: &Handle,
        wall_clock: WallClock,
        connector: &Connector,
    ) -> (Arc<Engine>, Vec<Weak<Node>>) {
        let mut inspected = Vec::new();
        let admissions = Arc::new(Admissions::new(config));
        let mut nodes: Vec<Box<dyn Voter>> = Vec::new();
        for (index, url) in config.nodes.iter().enumerate() {
            let node = Node::new(url.clone(), connector.clone(), index, config, admissions.clone());
            let node = Arc::new(node);
            inspected.push(Arc::downgrade(&node));
            runtime.spawn(node.clone().supervise());
            nodes.push(Box::new(node));
        }
        let metrics = Arc::new(LockMetrics::new());
        let engine = Arc::new(Engine {
            nodes,
            wall_clock,
            who: format!("{:016x}", rand::random::<u64>()),
            node_timeout: config.node_timeout,
            drift_factor: config.drift_factor,
            fence_ttl: config.fence_ttl,
            max_ttl: config.max_ttl,
            holders: Holders::default(),
            queues: Queues::new(config, metrics.clone()),
            watchdog: Watchdog::new(config, metrics.clone()),
            metrics,
        });
        tokio::spawn(watchdog::run(Arc::downgrade(&engine)));
        tokio::spawn(sweep(Arc::downgrade(&engine)));
        (engine, inspected)
    }

    /// Asks all nodes for `key` (with the prefix already put before it) on
    /// behalf of `token`.
    pub fn acquire(
        self: &Arc<Self>,
        key: impl Into<Key>,
        token: impl Into<Token>,
        ttl: Duration,
    ) -> Acquire {
        Acquire::ask(self, key.into(), token.into(), ttl)
    }

    /// The same, waiting in line for at most `wait`.
    pub fn wait(
        self: &Arc<Self>,
        key: impl Into<Key>,
        token: impl Into<Token>,
        ttl: Duration,
        wait: Duration,
    ) -> Waiter {
        Waiter::new(self, key.into(), token.into(), ttl, wait)
    }

    /// Releases `key` on every node if `token` holds it there, or hands it over
    /// to who waits for it here.
    pub fn release(self: &Arc<Self>, key: impl Into<Key>, token: impl Into<Token>) -> Release {
        let release = self.release_unsaid(key.into(), token.into());
        if let Some(watch) = &release.watch {
            self.watchdog.release(watch);
        }
        release
    }

    /// The same of a lock that is lost, whose keeper is told already. Gives another keeper
    /// that is to be told.
    pub(super) fn release_lost(self: &Arc<Self>, lost: &Arc<Watch>) -> Option<Arc<Watch>> {
        let release = self.release_unsaid(lost.key().clone(), lost.token().clone());
        release.watch.filter(|watch| !Arc::ptr_eq(watch, lost) && self.watchdog.pause(watch))
    }

    /// Releases it, or hands it over, and leaves it to the caller to tell who keeps it.
    fn release_unsaid(self: &Arc<Self>, key: Key, token: Token) -> Release {
        let since = Instant::now();
        let (known, watch, held) = self.holders.release(&key, &token, since);
        if let Some(held) = held {
            self.metrics.hold_seconds.record(held.as_secs_f64());
        }
        let next = match known {
            Known::Another => Next::Nobody,
            Known::This | Known::Nothing => self.queues.next(&key),
        };
        let operation = match next {
            Next::Nobody | Next::Others => {
                let request = scripts::release(&key, &token, self.who.as_bytes());
                let operation = self.operation(Kind::Release, key, token, self.max_ttl, request);
                let operation = self.submit(operation);
                if known != Known::Another {
                    self.queues.released(&operation.key, &next);
                }
                operation
            }
            Next::HandTo { ticket, token: next, ttl } => {
                let (acquire, operation) = Acquire::hand_over(self, token, key, next, ttl);
                let key = &operation.key;
                if let Some(unwanted) = self.queues.hand(key, ticket, acquire) {
                    // That waiter has left meanwhile: this undoes it, and whoever
                    // has asked since has asked too early.
                    drop(unwanted);
                    self.queues.released(key, &Next::Nobody);
                }
                operation
            }
        };
        let asking = self.await_votes(operation, Rule::Release, since, self.max_ttl);
        Release { asking, watch }
    }

    /// Gives `key` a fresh TTL on every node where `token` holds it.
    pub fn renew(
        self: &Arc<Self>,
        key: impl Into<Key>,
        token: impl Into<Token>,
        ttl: Duration,
    ) -> Renew {
        let since = Instant::now();
        let (key, token) = (key.into(), token.into());
        let watch = self.holders.watched(&key, &token);
        if let Some(watch) = &watch {
            self.watchdog.asked(watch, ttl, self.drift_factor);
        }
        let request = scripts::renew(&key, &token, ttl);
        let asking = self.ask(Kind::Renew, Rule::Renewal, key, token, ttl, request);
        Renew { engine: self.clone(), since, ttl, asking, watch }
    }

    /// Asks every node whether `token` holds `key`, and how long a quorum keeps it.
    pub fn attach(self: &Arc<Self>, key: impl Into<Key>, token: impl Into<Token>) -> Attach {
        Attach::ask(self, key.into(), token.into())
    }

    /// Every node as seen now, in the order of the configuration.
    pub fn status(&self) -> Vec<NodeStatus> {
        self.nodes.iter().map(|node| node.status()).collect()
    }

    /// Shows the key of every lock that was granted here and is held now, until
    /// `visit` says false.
    pub fn locks(&self, visit: &mut dyn FnMut(&[u8]) -> bool) {
        self.holders.visit(&mut |key, _| visit(key));
    }

    /// Tells of one of them.
    pub fn lock(&self, key: &[u8]) -> Option<LockStatus> {
        let shown = self.holders.show(&Key::from(key))?;
        Some(LockStatus {
            key: key.to_vec(),
            fence: shown.fence,
            session: shown.is_session_lock,
            held_for: shown.held_for,
            remaining: shown.remaining,
            waiters: self.queues.waiting(key),
        })
    }

    /// How many locks are held through this proxy, and how many clients wait.
    pub fn counts(&self) -> Counts {
        let mut counts = Counts { waiters: self.queues.all_waiting(), ..Counts::default() };
        self.holders.visit(&mut |_, shown| {
            counts.held += 1;
            counts.session_locks += usize::from(shown.is_session_lock);
            true
        });
        counts
    }

    /// Takes on what can change while it runs: `max_waiters` and `max_handovers`.
    pub fn set_limits(&self, config: &LocksConfig) {
        self.queues.set_limits(config);
    }

    /// How many nodes must be up for a lock to be granted.
    pub fn quorum(&self) -> usize {
        quorum(self.nodes.len())
    }

    /// Waits until the nodes that are up have done all that was asked of them
    /// before, for at most `limit`.
    pub async fn drain(self: &Arc<Self>, limit: Duration) {
        let mut ping = Vec::new();
        crate::resp::encode::command(&mut ping, &[b"PING"]);
        let mut asking = self.ask(Kind::Flush, Rule::All, "".into(), "".into(), limit, ping);
        asking.deadline = Instant::now() + limit;
        std::future::poll_fn(|cx| asking.poll_decision(cx).map(drop)).await;
    }

    /// Puts one request to every node, in one go and without waiting.
    pub(super) fn ask(
        self: &Arc<Self>,
        kind: Kind,
        rule: Rule,
        key: Key,
        token: Token,
        ttl: Duration,
        request: Vec<u8>,
    ) -> Asking {
        let since = Instant::now();
        let operation = self.submit(self.operation(kind, key, token, ttl, request));
        self.await_votes(operation, rule, since, ttl)
    }

    pub(super) fn operation(
        &self,
        kind: Kind,
        key: Key,
        token: Token,
        ttl: Duration,
        request: Vec<u8>,
    ) -> Operation {
        Operation::new(kind, key, token, ttl, request, self.nodes.len())
    }

    pub(super) fn submit(&self, operation: Operation) -> Arc<Operation> {
        let operation = Arc::new(operation);
        for node in &self.nodes {
            node.submit(&operation);
        }
        operation
    }

    /// Asks one node alone.
    pub(super) fn submit_to(&self, node: usize, operation: &Arc<Operation>) {
        self.nodes[node].submit(operation);
    }

    /// Waits for the votes by `rule`, no longer than a lock of that TTL allows that
    /// was asked for at `since`.
    pub(super) fn await_votes(
        self: &Arc<Self>,
        operation: Arc<Operation>,
        rule: Rule,
        since: Instant,
        ttl: Duration,
    ) -> Asking {
        let deadline = since + self.node_timeout.min(ttl / TIMEOUT_SHARE);
        Asking { engine: self.clone(), operation, rule, deadline, alarm: Alarm::default() }
    }

    /// From which a fence is proposed.
    pub(super) fn now_in_micros(&self) -> u64 {
        (self.wall_clock)()
    }

    /// Whether a message about a release was told by this proxy itself.
    pub(super) fn is_own_word(&self, who: &[u8]) -> bool {
        who == self.who.as_bytes()
    }

    pub(super) fn no_quorum(&self, votes: &[Vote]) -> NoQuorum {
        let missing: Vec<String> = votes
            .iter()
            .zip(&self.nodes)
            .filter_map(|(vote, node)| match vote {
                Vote::Missing(why) => Some((why.as_str(), node)),
                Vote::Pending => Some((Missing::Timeout.as_str(), node)),
                Vote::Yes(_) | Vote::Taken(_) | Vote::Held { .. } | Vote::No(_) => None,
            })
            .map(|(why, node)| format!("{} ({why})", node.status().address))
            .collect();
        NoQuorum {
            answered: votes.len() - missing.len(),
            nodes: votes.len(),
            quorum: quorum(votes.len()),
            missing,
        }
    }
}

/// Ends queues that nobody comes back to, for as long as the engine lives.
async fn sweep(engine: Weak<Engine>) {
    loop {
        sleep(SWEEP_EVERY).await;
        match engine.upgrade() {
            Some(engine) => engine.queues.sweep(),
            None => return,
        }
    }
}

/// Waits for what the votes on one operation come to, as long as its nodes have.
pub(super) struct Asking {
    engine: Arc<Engine>,
    pub(super) operation: Arc<Operation>,
    pub(super) rule: Rule,
    deadline: Instant,
    pub(super) alarm: Alarm,
}

impl Asking {
    /// Ready once the votes decide, or time is up.
    pub(super) fn poll_decision(&mut self, cx: &mut Context<'_>) -> Poll<Decision> {
        let decision = self.operation.decision(self.rule, cx.waker());
        if decision != Decision::Open {
            return Poll::Ready(decision);
        }
        ready!(self.alarm.poll(self.deadline, cx));
        for late in self.operation.time_out() {
            self.engine.nodes[late].was_late();
        }
        Poll::Ready(self.operation.decision(self.rule, Waker::noop()))
    }
}

/// An UNLOCK under way. Dropping it does not stop the release.
pub struct Release {
    asking: Asking,
    /// Of a session lock.
    watch: Option<Arc<Watch>>,
}

impl Release {
    /// What it times itself with, to be used again.
    pub fn alarm(&mut self) -> &mut Alarm {
        &mut self.asking.alarm
    }
}

impl Future for Release {
    /// True: released. False: not held by that token.
    type Output = Result<bool, NoQuorum>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let decision = ready!(self.asking.poll_decision(cx));
        let (engine, operation) = (&self.asking.engine, &self.asking.operation);
        engine.queues.heard_of_listeners(&operation.key, operation.listeners());
        Poll::Ready(match decision {
            Decision::Yes | Decision::No => {
                if let Some(watch) = &self.watch {
                    watch.end();
                }
                Ok(decision == Decision::Yes)
            }
            Decision::NoQuorum | Decision::Open => Err(engine.no_quorum(&operation.votes())),
        })
    }
}

/// A RENEW under way. Dropping it does not undo what it has renewed.
pub struct Renew {
    engine: Arc<Engine>,
    since: Instant,
    ttl: Duration,
    asking: Asking,
    /// Of a session lock.
    watch: Option<Arc<Watch>>,
}

impl Renew {
    /// What it times itself with, to be used again.
    pub fn alarm(&mut self) -> &mut Alarm {
        &mut self.asking.alarm
    }
}

impl Renew {
    /// What its holder is told of a TTL that it has got: of a session lock, nothing
    /// beyond `locks.max_hold`. None: that is over.
    fn told(&self, renewed: Renewed) -> Option<Renewed> {
        let Some(watch) = &self.watch else { return Some(renewed) };
        self.engine.watchdog.granted(watch, self.ttl, renewed.until);
        let validity = watch.within_hold(renewed.validity);
        if validity < Duration::from_millis(1) {
            self.engine.lose(watch, LostReason::MaxHold);
            return None;
        }
        Some(Renewed { validity, until: renewed.until - (renewed.validity - validity) })
    }
}

impl Future for Renew {
    /// The new validity, or none: not held by that token.
    type Output = Result<Option<Renewed>, NoQuorum>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let decision = ready!(self.asking.poll_decision(cx));
        let operation = &self.asking.operation;
        Poll::Ready(match decision {
            Decision::Yes => {
                let (key, token) = (&operation.key, &operation.token);
                self.engine.holders.renewed(key, token, self.since + self.ttl);
                let now = Instant::now();
                match validity(self.ttl, now - self.since, self.engine.drift_factor) {
                    Some(validity) => Ok(self.told(Renewed { validity, until: now + validity })),
                    None => Err(self.engine.no_quorum(&operation.votes())),
                }
            }
            // The holder is told that it holds nothing, so nothing of it may stay.
            Decision::No => {
                drop(self.engine.release(operation.key.clone(), operation.token.clone()));
                Ok(None)
            }
            Decision::NoQuorum | Decision::Open => Err(self.engine.no_quorum(&operation.votes())),
        })
    }
}
