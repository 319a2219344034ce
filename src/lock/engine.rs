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
    task::{Context, Poll, ready},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use tokio::{runtime::Handle, time::sleep};

use super::{
    Acquire, Alarm, Attach, Claim, Counts, LockStatus, NoQuorum, NodeStatus, Renewed, Waiter,
    WallClock,
    holders::{Holders, Known},
    metrics::{LockMetrics, LostReason},
    nodes::{Asking, Nodes},
    operation::{Kind, Operation, Vote},
    queue::{Next, Queues},
    quorum::{Decision, Rule, fence_bounds},
    schedule::Schedule,
    scripts::{self, Wanted},
    subscribe,
    watch::Watch,
    watchdog,
};
use crate::{
    clock::Instant,
    config::LocksConfig,
    key::{Key, Token},
    net::Connector,
};

/// How often queues that nobody comes back to are looked for.
const SWEEP_EVERY: Duration = Duration::from_millis(500);

#[cfg(test)]
thread_local! {
    /// A fault that tests plant: nothing is put back.
    pub(super) static NO_HEALS: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// The lock engine over all lock nodes.
pub struct Engine {
    pub(super) nodes: Arc<Nodes>,
    /// What was granted here.
    pub(super) holders: Holders,
    /// Who waits here.
    pub(super) queues: Queues,
    pub(super) schedule: Arc<Schedule>,
    pub(super) metrics: Arc<LockMetrics>,
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.schedule.gone.cancel();
    }
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
        let engine = Engine::start_locks(config, runtime, wall_clock, &connector);
        engine.nodes.inspect(runtime);
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
        Engine::start_locks(config, &Handle::current(), wall_clock, &connector)
    }

    fn start_locks(
        config: &LocksConfig,
        runtime: &Handle,
        wall_clock: WallClock,
        connector: &Connector,
    ) -> Arc<Engine> {
        let nodes = Arc::new(Nodes::start(config, runtime, wall_clock, connector));
        let metrics = Arc::new(LockMetrics::new());
        let engine = Arc::new(Engine {
            nodes,
            holders: Holders::default(),
            queues: Queues::new(config, metrics.clone()),
            schedule: Arc::new(Schedule::new(config)),
            metrics,
        });
        let (watched, held) = (Arc::downgrade(&engine), Arc::downgrade(&engine));
        engine.nodes.tell(
            move || {
                if let Some(engine) = watched.upgrade() {
                    engine.schedule.came_back();
                }
            },
            move |key, token, claim| held.upgrade()?.holders.until(key, token, claim),
        );
        tokio::spawn(watchdog::run(Arc::downgrade(&engine)));
        tokio::spawn(sweep(Arc::downgrade(&engine)));
        engine
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
            self.schedule.release(watch);
        }
        release
    }

    /// The same of a lock that is lost, whose keeper is told already. Gives another keeper
    /// that is to be told.
    pub(super) fn release_lost(self: &Arc<Self>, lost: &Arc<Watch>) -> Option<Arc<Watch>> {
        let (key, token) = (lost.key.clone(), lost.token.clone());
        let release = self.release_unsaid(key, token, Some(lost.claim));
        release.watch.filter(|watch| !Arc::ptr_eq(watch, lost) && self.schedule.pause(watch))
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
                let operation = self.nodes.submit(self.nodes.releasing(key, token, claim));
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
        let asking = self.nodes.await_votes(operation, Rule::Release, self.nodes.max_ttl);
        Release { engine: self.clone(), asking, watch }
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
            self.schedule.asked(watch, ttl, self.nodes.drift_factor);
        }
        let claim = claim.or_else(|| Some(self.holders.claim(&key, &token)?.0));
        let request = scripts::renew(&key, &token, ttl, claim, self.nodes.fence_ttl);
        let asking = self.nodes.ask(Kind::Renew, Rule::Renewal, key, token, ttl, request);
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
        let request = scripts::raise(&key, &token, fence, self.nodes.fence_ttl, claim);
        let asking =
            self.nodes.ask(Kind::Raise, Rule::Grant, key, token, self.nodes.max_ttl, request);
        Raise { engine: self.clone(), claim, asking }
    }

    /// Takes in a fence that the data node has seen, so that no smaller one is proposed any
    /// more, unless it is further ahead of this proxy's clock than a clock can be wrong.
    pub fn learn_fence(&self, fence: u64) {
        self.nodes.learn_fence(fence);
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
            let wanted = Wanted { fence, ..self.nodes.wanted(key, token, ttl, claim) };
            let request = scripts::heal(&wanted);
            let (key, token) = (key.clone(), token.clone());
            let operation = Arc::new(self.nodes.operation(Kind::Heal, key, token, ttl, request));
            for node in nodes {
                self.metrics.heals.increment(1);
                self.nodes.submit_to(node, &operation);
            }
        });
    }

    /// Asks every node whether `token` holds `key`, and how long a quorum keeps it.
    pub fn attach(self: &Arc<Self>, key: impl Into<Key>, token: impl Into<Token>) -> Attach {
        Attach::ask(&self.nodes, key.into(), token.into())
    }

    /// Every node as seen now, in the order of the configuration.
    pub fn status(&self) -> Vec<NodeStatus> {
        self.nodes.status()
    }

    /// How many of the last operations found no quorum, and how, if that says that locks
    /// cannot be had now.
    pub fn outage(&self) -> Option<(u64, NoQuorum)> {
        self.nodes.outage.status()
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
        self.nodes.quorum()
    }

    /// Waits until the nodes that are up have done all that was asked of them
    /// before, for at most `limit`.
    pub async fn drain(self: &Arc<Self>, limit: Duration) {
        self.nodes.drain(limit).await;
    }

    /// Nothing counts any more that is held here: a quorum of nodes may have ended it.
    pub(super) fn lose_all(self: &Arc<Self>) {
        for watch in self.holders.forget() {
            self.lose(&watch, LostReason::Clock);
        }
    }
}

/// Ends queues that nobody comes back to, for as long as the engine lives.
async fn sweep(engine: Weak<Engine>) {
    loop {
        sleep(SWEEP_EVERY).await;
        match engine.upgrade() {
            Some(engine) => {
                engine.queues.sweep();
                engine.nodes.outage.tell();
            }
            None => return,
        }
    }
}

/// An UNLOCK under way. Dropping it does not stop the release.
pub struct Release {
    engine: Arc<Engine>,
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
        let nodes = &self.asking.nodes;
        let operation = nodes.submit(nodes.releasing(handing.key.clone(), token, claim));
        Some(nodes.await_votes(operation, Rule::Release, nodes.max_ttl))
    }
}

impl Future for Release {
    /// True: released. False: not held by that token.
    type Output = Result<bool, NoQuorum>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            let decision = ready!(self.asking.poll_decision(cx));
            let operation = &self.asking.operation;
            self.engine.queues.heard_of_listeners(&operation.key, operation.listeners());
            let released = match decision {
                Decision::Yes | Decision::No => Ok(decision == Decision::Yes),
                Decision::NoQuorum | Decision::Open => match self.give_back_instead() {
                    Some(asking) => {
                        self.asking = asking;
                        continue;
                    }
                    None => Err(self.asking.nodes.no_quorum(&operation.votes())),
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
            let mut asking = engine.nodes.await_votes(operation, Rule::All, ttl);
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
        self.engine.schedule.granted(watch, self.ttl, renewed.until);
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
                match self.asking.nodes.validity(self.ttl, self.since, now) {
                    Some(validity) => {
                        if let Some(claim) = self.claim {
                            self.heal(claim, &votes);
                        }
                        Ok(self.told(Renewed { validity, until: now + validity, grant }))
                    }
                    None => Err(self.asking.nodes.no_quorum(&votes)),
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
            Decision::NoQuorum | Decision::Open => Err(self.asking.nodes.no_quorum(&votes)),
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
            Decision::NoQuorum | Decision::Open => Err(self.asking.nodes.no_quorum(&votes)),
        })
    }
}
