//! Acquire, release, renew: the algorithm of docs/design/locks.md.
//!
//! Redlock over N independent nodes
//! (<https://redis.io/docs/latest/develop/use/patterns/distributed-locks/>),
//! with a fence that grows from grant to grant. The time of day is a function, so that
//! tests can give each proxy a clock of its own.

use std::{
    future::Future,
    pin::Pin,
    sync::{Arc, Weak},
    task::{Context, Poll, Waker, ready},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use tokio::{runtime::Handle, time::sleep};

use super::{
    Acquire, Alarm, Attach, Claim, Counts, LockStatus, NoQuorum, NodeStatus, Renewed, Waiter,
    clocks::Clocks,
    deployment::Admissions,
    fences::Fences,
    holders::{Holders, Known},
    metrics::{LockMetrics, LostReason},
    node::{self, Node, ProposedFence},
    operation::{Kind, Missing, Operation, Vote},
    outage::Outage,
    queue::{Next, Queues},
    quorum::{Decision, Rule, fence_bounds, quorum, validity},
    scripts::{self, Wanted, Whose},
    subscribe,
    watchdog::{self, Watch, Watchdog},
};
use crate::{
    clock::Instant,
    config::LocksConfig,
    key::{Key, Token},
    net::Connector,
};

/// A node waits for an answer at most this share of the TTL, so that asking
/// does not use the validity up.
const TIMEOUT_SHARE: u32 = 10;
/// How often queues that nobody comes back to are looked for.
const SWEEP_EVERY: Duration = Duration::from_millis(500);

#[cfg(test)]
thread_local! {
    /// A fault that tests plant: nothing is put back.
    pub(super) static NO_HEALS: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// The time of day in microseconds, from which fences are proposed.
pub type WallClock = Arc<dyn Fn() -> u64 + Send + Sync>;

/// The lock engine over all lock nodes.
pub struct Engine {
    nodes: Vec<Arc<Node>>,
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
    pub(super) fences: Arc<Fences>,
    pub(super) clocks: Arc<Clocks>,
    pub(super) metrics: Arc<LockMetrics>,
    outage: Outage,
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
        Engine::start_all(config, runtime, Arc::new(clock))
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
        let admissions = Arc::new(Admissions::new(config, connector));
        let clocks = Arc::new(Clocks::new(config));
        let fences: Arc<Fences> = Arc::default();
        let mut nodes = Vec::new();
        for (index, url) in config.nodes.iter().enumerate() {
            let (fences, clock) = (fences.clone(), wall_clock.clone());
            let propose: ProposedFence = Arc::new(move || fences.propose(clock()));
            let (connector, admissions) = (connector.clone(), admissions.clone());
            let clocks = clocks.clone();
            let node =
                Node::new(url.clone(), connector, index, config, admissions, clocks, propose);
            let node = Arc::new(node);
            inspected.push(Arc::downgrade(&node));
            runtime.spawn(node.clone().supervise());
            nodes.push(node);
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
            fences,
            clocks,
            metrics,
            outage: Outage::new(),
        });
        for node in inspected.iter().filter_map(Weak::upgrade) {
            let (watched, held) = (Arc::downgrade(&engine), Arc::downgrade(&engine));
            node.on_return(move || {
                if let Some(engine) = watched.upgrade() {
                    engine.watchdog.came_back();
                }
            });
            node.ask_holders(move |key, token, claim| {
                held.upgrade()?.holders.until(key, token, claim)
            });
        }
        tokio::spawn(watchdog::run(Arc::downgrade(&engine)));
        tokio::spawn(sweep(Arc::downgrade(&engine)));
        (engine, inspected)
    }

    /// Asks all nodes for `key` (with the prefix already put before it) on
    /// behalf of `token`.
    ///
    /// Whoever has the lock, it is held, by the same token too; but not by the grant with
    /// the claim `again`, which the asker has: that is granted again, with a larger fence and
    /// the same claim, and what it had stays if this fails.
    pub fn acquire(
        self: &Arc<Self>,
        key: impl Into<Key>,
        token: impl Into<Token>,
        ttl: Duration,
        again: Option<Claim>,
    ) -> Acquire {
        Acquire::ask(self, key.into(), token.into(), ttl, again)
    }

    /// The same, waiting in line for at most `wait`.
    pub fn wait(
        self: &Arc<Self>,
        key: impl Into<Key>,
        token: impl Into<Token>,
        ttl: Duration,
        wait: Duration,
        again: Option<Claim>,
    ) -> Waiter {
        Waiter::new(self, key.into(), token.into(), ttl, wait, again)
    }

    /// Releases `key` on every node if the grant with this claim holds it there, or hands
    /// it over to who waits for it here. Where the claim is not known, that is the grant
    /// that `token` has.
    pub fn release(
        self: &Arc<Self>,
        key: impl Into<Key>,
        token: impl Into<Token>,
        claim: Option<Claim>,
    ) -> Release {
        let release = self.release_unsaid(key.into(), token.into(), claim);
        if let Some(watch) = &release.watch {
            self.watchdog.release(watch);
        }
        release
    }

    /// The same of a lock that is lost, whose keeper is told already. Gives another keeper
    /// that is to be told.
    pub(super) fn release_lost(self: &Arc<Self>, lost: &Arc<Watch>) -> Option<Arc<Watch>> {
        let (key, token) = (lost.key().clone(), lost.token().clone());
        let release = self.release_unsaid(key, token, Some(lost.claim()));
        release.watch.filter(|watch| !Arc::ptr_eq(watch, lost) && self.watchdog.pause(watch))
    }

    /// Releases it, or hands it over, and leaves it to the caller to tell who keeps it.
    fn release_unsaid(self: &Arc<Self>, key: Key, token: Token, claim: Option<Claim>) -> Release {
        let since = Instant::now();
        let (known, watch, held) = self.holders.release(&key, &token, claim, since);
        if let Some(held) = held {
            self.metrics.hold_seconds.record(held.as_secs_f64());
        }
        let claim = match known {
            Known::This(known) => Some(known),
            Known::Another | Known::Nothing => claim,
        };
        let next = match known {
            Known::Another => Next::Nobody,
            Known::This(_) | Known::Nothing => self.queues.next(&key),
        };
        let operation = match next {
            Next::Nobody | Next::Others => {
                let operation = self.submit(self.giving_back(key, token, claim));
                if known != Known::Another {
                    self.queues.released(&operation.key, &next);
                }
                operation
            }
            Next::HandTo { ticket, token: next, ttl } => {
                let giver = (token, claim);
                let (acquire, operation) = Acquire::hand_over(self, giver, key, next, ttl);
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
        let asking = self.await_votes(operation, Rule::Release, self.max_ttl);
        Release { asking, watch }
    }

    fn giving_back(&self, key: Key, token: Token, claim: Option<Claim>) -> Operation {
        let whose = claim.map_or(Whose::Token, Whose::Claim);
        Operation::release(key, token, whose, self.who.as_bytes(), self.max_ttl, self.nodes.len())
    }

    /// Gives `key` a fresh TTL on every node where the grant with this claim holds it; where
    /// the claim is not known, the grant that `token` has.
    pub fn renew(
        self: &Arc<Self>,
        key: impl Into<Key>,
        token: impl Into<Token>,
        ttl: Duration,
        claim: Option<Claim>,
    ) -> Renew {
        let since = Instant::now();
        let (key, token) = (key.into(), token.into());
        let watch = self.holders.watched(&key, &token);
        if let Some(watch) = &watch {
            self.watchdog.asked(watch, ttl, self.drift_factor);
        }
        let claim = claim.or_else(|| Some(self.holders.claim(&key, &token)?.0));
        let request = scripts::renew(&key, &token, ttl, claim, self.fence_ttl);
        let asking = self.ask(Kind::Renew, Rule::Renewal, key, token, ttl, request);
        Renew { engine: self.clone(), since, ttl, claim, asking, watch }
    }

    /// Makes a quorum of nodes remember a fence at least as large as this of a grant that
    /// holds the lock, because the data node has seen so large a one.
    pub fn raise(
        self: &Arc<Self>,
        key: impl Into<Key>,
        token: impl Into<Token>,
        claim: Claim,
        fence: u64,
    ) -> Raise {
        let (key, token) = (key.into(), token.into());
        let request = scripts::raise(&key, &token, fence, self.fence_ttl, claim);
        let asking = self.ask(Kind::Raise, Rule::Grant, key, token, self.max_ttl, request);
        Raise { engine: self.clone(), claim, asking }
    }

    /// Takes in a fence that the data node has seen, so that no smaller one is proposed any
    /// more, unless it is further ahead of this proxy's clock than a clock can be wrong.
    pub fn learn_fence(&self, fence: u64) {
        self.fences.learn(fence, (self.wall_clock)());
    }

    /// Puts a lock back on the nodes that have not renewed it.
    fn heal_lost(&self, renewal: &Operation, claim: Claim, ttl: Duration) {
        let votes = renewal.votes();
        let lost = |node: &usize| matches!(votes[*node], Vote::No(_));
        if (0..votes.len()).any(|node| lost(&node)) {
            let nodes = (0..votes.len()).filter(lost);
            self.heal(&renewal.key, &renewal.token, claim, ttl, nodes);
        }
    }

    /// Puts a lock back on these nodes, which have lost it, if the grant still has it: a
    /// quorum of others has just confirmed it.
    pub(super) fn heal(
        &self,
        key: &Key,
        token: &Token,
        claim: Claim,
        ttl: Duration,
        nodes: impl Iterator<Item = usize>,
    ) {
        #[cfg(test)]
        if NO_HEALS.get() {
            return;
        }
        #[cfg(feature = "planted")]
        if std::env::var("LOCKGATE_PLANT").is_ok_and(|fault| fault == "heal") {
            return;
        }
        // Under the holders' lock, so that no release comes between: it would be
        // overtaken, and the lock would stay for nobody.
        self.holders.while_held(key, token, claim, |fence| {
            let wanted = Wanted { fence, ..self.wanted(key, token, ttl, claim) };
            let request = scripts::heal(&wanted);
            let (key, token) = (key.clone(), token.clone());
            let operation = Arc::new(self.operation(Kind::Heal, key, token, ttl, request));
            for node in nodes {
                self.metrics.heals.increment(1);
                self.submit_to(node, &operation);
            }
        });
    }

    /// Asks every node whether `token` holds `key`, and how long a quorum keeps it.
    pub fn attach(self: &Arc<Self>, key: impl Into<Key>, token: impl Into<Token>) -> Attach {
        Attach::ask(self, key.into(), token.into())
    }

    /// Every node as seen now, in the order of the configuration.
    pub fn status(&self) -> Vec<NodeStatus> {
        self.nodes.iter().map(|node| node.status()).collect()
    }

    /// How many of the last operations found no quorum, and how, if that says that locks
    /// cannot be had now.
    pub fn outage(&self) -> Option<(u64, NoQuorum)> {
        self.outage.status()
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
        let (waiters, longest_wait) = (self.queues.all_waiting(), self.queues.longest_wait());
        let mut counts = Counts { waiters, longest_wait, ..Counts::default() };
        self.holders.visit(&mut |_, shown| {
            counts.held += 1;
            counts.session_locks += usize::from(shown.is_session_lock);
            counts.oldest_hold = counts.oldest_hold.max(shown.held_for);
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
        asking.deadline = tokio::time::Instant::now() + limit;
        std::future::poll_fn(|cx| asking.poll_decision(cx).map(drop)).await;
    }

    /// What is left of `ttl` for who has asked for it at `since`; nothing if this proxy may
    /// have stood still meanwhile.
    pub(super) fn validity(&self, ttl: Duration, since: Instant, now: Instant) -> Option<Duration> {
        if self.clocks.is_lost(since) {
            return None;
        }
        validity(ttl, now - since, self.drift_factor)
    }

    /// Nothing counts any more that is held here: a quorum of nodes may have ended it.
    pub(super) fn lose_all(self: &Arc<Self>) {
        for watch in self.holders.forget() {
            self.lose(&watch, LostReason::Clock);
        }
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
        let operation = self.submit(self.operation(kind, key, token, ttl, request));
        self.await_votes(operation, rule, ttl)
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
    /// was asked for just now.
    pub(super) fn await_votes(
        self: &Arc<Self>,
        operation: Arc<Operation>,
        rule: Rule,
        ttl: Duration,
    ) -> Asking {
        // A timer's, which may be late.
        let deadline = tokio::time::Instant::now() + self.patience(ttl);
        let patient = ttl / TIMEOUT_SHARE >= self.node_timeout;
        Asking { engine: self.clone(), operation, rule, deadline, patient, alarm: Alarm::default() }
    }

    /// How long nodes have to answer about a lock of that TTL.
    pub(super) fn patience(&self, ttl: Duration) -> Duration {
        self.node_timeout.min(ttl / TIMEOUT_SHARE)
    }

    /// What a lock is asked for with.
    pub(super) fn wanted<'a>(
        &self,
        key: &'a [u8],
        token: &'a [u8],
        ttl: Duration,
        claim: Claim,
    ) -> Wanted<'a> {
        let fence = self.fences.propose((self.wall_clock)());
        Wanted { key, token, ttl, fence, fence_ttl: self.fence_ttl, claim }
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
                Vote::Missing(why) => Some((*why, node)),
                Vote::Pending => Some((Missing::Timeout, node)),
                Vote::Yes(_)
                | Vote::Kept { .. }
                | Vote::Taken(_)
                | Vote::Held { .. }
                | Vote::No(_) => None,
            })
            .map(|(why, node)| {
                let NodeStatus { address, reason, .. } = node.status();
                let reason = reason.filter(|_| why == Missing::Quarantined);
                format!("{address} ({})", reason.as_deref().unwrap_or(why.as_str()))
            })
            .collect();
        let error = NoQuorum {
            answered: votes.len() - missing.len(),
            nodes: votes.len(),
            quorum: quorum(votes.len()),
            missing,
        };
        self.outage.failed(&error);
        error
    }
}

/// Ends queues that nobody comes back to, for as long as the engine lives.
async fn sweep(engine: Weak<Engine>) {
    loop {
        sleep(SWEEP_EVERY).await;
        match engine.upgrade() {
            Some(engine) => {
                engine.queues.sweep();
                engine.outage.tell();
            }
            None => return,
        }
    }
}

/// Waits for what the votes on one operation come to, as long as its nodes have.
pub(super) struct Asking {
    engine: Arc<Engine>,
    pub(super) operation: Arc<Operation>,
    pub(super) rule: Rule,
    deadline: tokio::time::Instant,
    /// That is all of `locks.node_timeout`.
    patient: bool,
    pub(super) alarm: Alarm,
}

impl Asking {
    /// Ready once the votes decide, or time is up.
    pub(super) fn poll_decision(&mut self, cx: &mut Context<'_>) -> Poll<Decision> {
        let decision = self.operation.decision(self.rule, cx.waker());
        if decision != Decision::Open {
            self.engine.outage.decided(decision, self.patient);
            return Poll::Ready(decision);
        }
        ready!(self.alarm.poll(self.deadline, cx));
        for late in self.operation.time_out() {
            self.engine.nodes[late].metrics.errors_timeout.increment(1);
        }
        let decision = self.operation.decision(self.rule, Waker::noop());
        self.engine.outage.decided(decision, self.patient);
        Poll::Ready(decision)
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

    /// Gives back what could not be handed over: a node that is out of memory takes a lock
    /// for nobody, but still gives one back.
    fn give_back_instead(&self) -> Option<Asking> {
        #[cfg(feature = "planted")]
        if std::env::var("LOCKGATE_PLANT").is_ok_and(|fault| fault == "repeat") {
            return None;
        }
        let handing = &self.asking.operation;
        let (token, claim) = handing.from.clone()?;
        let engine = &self.asking.engine;
        let operation = engine.submit(engine.giving_back(handing.key.clone(), token, claim));
        Some(engine.await_votes(operation, Rule::Release, engine.max_ttl))
    }
}

impl Future for Release {
    /// True: released. False: not held by that token.
    type Output = Result<bool, NoQuorum>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            let decision = ready!(self.asking.poll_decision(cx));
            let (engine, operation) = (&self.asking.engine, &self.asking.operation);
            engine.queues.heard_of_listeners(&operation.key, operation.listeners());
            let released = match decision {
                Decision::Yes | Decision::No => Ok(decision == Decision::Yes),
                Decision::NoQuorum | Decision::Open => match self.give_back_instead() {
                    Some(asking) => {
                        self.asking = asking;
                        continue;
                    }
                    None => Err(engine.no_quorum(&operation.votes())),
                },
            };
            if let (Some(watch), Ok(_)) = (&self.watch, &released) {
                watch.end();
            }
            return Poll::Ready(released);
        }
    }
}

/// A RENEW under way. Dropping it does not undo what it has renewed.
pub struct Renew {
    engine: Arc<Engine>,
    since: Instant,
    ttl: Duration,
    claim: Option<Claim>,
    asking: Asking,
    /// Of a session lock.
    watch: Option<Arc<Watch>>,
}

impl Renew {
    /// What it times itself with, to be used again.
    pub fn alarm(&mut self) -> &mut Alarm {
        &mut self.asking.alarm
    }

    /// Which grant a quorum of nodes has renewed, and its fence.
    fn grant(&self, votes: &[Vote]) -> Option<(Claim, u64)> {
        let told: Vec<(Claim, u64)> = votes
            .iter()
            .filter_map(|vote| match vote {
                Vote::Kept { fence, claim } => {
                    Some((Claim::read(*claim)?, u64::try_from(*fence).ok()?))
                }
                _ => None,
            })
            .collect();
        let by = |claim: Claim| told.iter().filter(move |(other, _)| *other == claim);
        let claim = told.iter().map(|(claim, _)| *claim).max_by_key(|claim| by(*claim).count())?;
        let mut fences: Vec<u64> = by(claim).map(|(_, fence)| *fence).collect();
        Some((claim, fence_bounds(&mut fences, votes.len())?.0))
    }

    /// Puts the lock back on the nodes that have lost it, once all have answered.
    fn heal(&self, claim: Claim, votes: &[Vote]) {
        let (engine, operation) = (self.engine.clone(), self.asking.operation.clone());
        let ttl = self.ttl;
        if !votes.contains(&Vote::Pending) {
            return engine.heal_lost(&operation, claim, ttl);
        }
        tokio::spawn(async move {
            let mut asking = engine.await_votes(operation, Rule::All, ttl);
            std::future::poll_fn(|cx| asking.poll_decision(cx).map(drop)).await;
            engine.heal_lost(&asking.operation, claim, ttl);
        });
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
        let until = renewed.until - (renewed.validity - validity);
        Some(Renewed { validity, until, ..renewed })
    }
}

impl Future for Renew {
    /// The new validity, or none: not held by that token.
    type Output = Result<Option<Renewed>, NoQuorum>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let decision = ready!(self.asking.poll_decision(cx));
        let operation = &self.asking.operation;
        let votes = operation.votes();
        Poll::Ready(match decision {
            Decision::Yes => {
                let grant = self.grant(&votes);
                if let Some(claim) = self.claim.or_else(|| grant.map(|(claim, _)| claim)) {
                    self.engine.holders.renewed(&operation.key, claim, self.since + self.ttl);
                }
                let now = Instant::now();
                match self.engine.validity(self.ttl, self.since, now) {
                    Some(validity) => {
                        if let Some(claim) = self.claim {
                            self.heal(claim, &votes);
                        }
                        Ok(self.told(Renewed { validity, until: now + validity, grant }))
                    }
                    None => Err(self.engine.no_quorum(&votes)),
                }
            }
            // The holder is told that it holds nothing, so nothing of it may stay. Where its
            // claim is not known, what there is may be another's.
            Decision::No => {
                if self.claim.is_some() {
                    let (key, token) = (operation.key.clone(), operation.token.clone());
                    drop(self.engine.release(key, token, self.claim));
                }
                Ok(None)
            }
            Decision::NoQuorum | Decision::Open => Err(self.engine.no_quorum(&votes)),
        })
    }
}

/// A fence that a quorum of nodes is made to remember.
pub struct Raise {
    engine: Arc<Engine>,
    claim: Claim,
    asking: Asking,
}

impl Future for Raise {
    /// The fence that the grant has from now on; none: a quorum does not have the lock.
    type Output = Result<Option<u64>, NoQuorum>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let decision = ready!(self.asking.poll_decision(cx));
        let operation = &self.asking.operation;
        let votes = operation.votes();
        Poll::Ready(match decision {
            Decision::Yes => {
                let stored = votes.iter().filter_map(|vote| match vote {
                    Vote::Yes(fence) => u64::try_from(*fence).ok(),
                    _ => None,
                });
                let fence = stored.max().unwrap_or_default();
                self.engine.holders.raised(&operation.key, self.claim, fence);
                Ok(Some(fence))
            }
            Decision::No => Ok(None),
            Decision::NoQuorum | Decision::Open => Err(self.engine.no_quorum(&votes)),
        })
    }
}
