//! Acquire, release, renew: the algorithm of DESIGN.md, "The quorum".
//!
//! Redlock over N independent nodes
//! (<https://redis.io/docs/latest/develop/use/patterns/distributed-locks/>),
//! with a fence that grows from grant to grant. The engine knows nodes only as
//! [`Voter`]s and the time of day only as a function, so that it runs over
//! simulated ones as it does over real ones.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker, ready},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use tokio::time::{Instant, Sleep, sleep};

use super::{
    Grant, NoQuorum, NodeStatus, NotGranted,
    node::Node,
    operation::{Kind, Missing, Operation, Vote},
    quorum::{Decision, quorum, validity},
    scripts,
};
use crate::config::LocksConfig;

/// A node waits for an answer at most this share of the TTL, so that asking
/// does not use the validity up.
const TIMEOUT_SHARE: u32 = 10;

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
    node_timeout: Duration,
    drift_factor: f64,
    fence_ttl: Duration,
    max_ttl: Duration,
}

impl Engine {
    /// Starts connecting to all nodes. Must be called inside a tokio runtime.
    pub fn start(config: &LocksConfig) -> Arc<Engine> {
        Engine::start_with_clock(
            config,
            Box::new(|| {
                let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
            }),
        )
    }

    /// The same with another time of day.
    pub fn start_with_clock(config: &LocksConfig, wall_clock: WallClock) -> Arc<Engine> {
        let mut nodes: Vec<Box<dyn Voter>> = Vec::new();
        for (index, url) in config.nodes.iter().enumerate() {
            let node = Arc::new(Node::new(url.clone(), index, config));
            tokio::spawn(node.clone().supervise());
            nodes.push(Box::new(node));
        }
        Arc::new(Engine {
            nodes,
            wall_clock,
            node_timeout: config.node_timeout,
            drift_factor: config.drift_factor,
            fence_ttl: config.fence_ttl,
            max_ttl: config.max_ttl,
        })
    }

    /// Asks all nodes for `key` (with the prefix already put before it) on
    /// behalf of `token`.
    pub fn acquire(self: &Arc<Self>, key: &[u8], token: &[u8], ttl: Duration) -> Acquire {
        let since = Instant::now();
        let (fence, attempt) = ((self.wall_clock)(), rand::random());
        let request = scripts::acquire(key, token, ttl, fence, self.fence_ttl, attempt);
        let asking = self.ask(Kind::Acquire { attempt }, key, token, ttl, request);
        Acquire { engine: self.clone(), since, ttl, attempt, asking, raising: None, done: false }
    }

    /// Releases `key` on every node if `token` holds it there.
    pub fn release(self: &Arc<Self>, key: &[u8], token: &[u8]) -> Release {
        let request = scripts::release(key, token);
        Release { asking: self.ask(Kind::Release, key, token, self.max_ttl, request) }
    }

    /// Gives `key` a fresh TTL on every node where `token` holds it.
    pub fn renew(self: &Arc<Self>, key: &[u8], token: &[u8], ttl: Duration) -> Renew {
        let since = Instant::now();
        let request = scripts::renew(key, token, ttl);
        let asking = self.ask(Kind::Renew, key, token, ttl, request);
        Renew { engine: self.clone(), since, ttl, asking }
    }

    /// Every node as seen now, in the order of the configuration.
    pub fn status(&self) -> Vec<NodeStatus> {
        self.nodes.iter().map(|node| node.status()).collect()
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
        let mut asking = self.ask(Kind::Flush, b"", b"", limit, ping.into());
        asking.timer = Box::pin(sleep(limit));
        std::future::poll_fn(|cx| asking.poll_decision(cx).map(drop)).await;
    }

    /// Puts one request to every node, in one go and without waiting.
    fn ask(
        self: &Arc<Self>,
        kind: Kind,
        key: &[u8],
        token: &[u8],
        ttl: Duration,
        request: bytes::Bytes,
    ) -> Asking {
        let operation = Operation::new(kind, key, token, ttl, request, self.nodes.len());
        let operation = Arc::new(operation);
        for node in &self.nodes {
            node.submit(&operation);
        }
        let limit = self.node_timeout.min(ttl / TIMEOUT_SHARE);
        Asking { engine: self.clone(), operation, timer: Box::pin(sleep(limit)) }
    }

    fn no_quorum(&self, votes: &[Vote]) -> NoQuorum {
        let missing: Vec<String> = votes
            .iter()
            .zip(&self.nodes)
            .filter_map(|(vote, node)| match vote {
                Vote::Missing(why) => Some((why.as_str(), node)),
                Vote::Pending => Some((Missing::Timeout.as_str(), node)),
                Vote::Yes(_) | Vote::No(_) => None,
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

/// One operation and the time its nodes have for it.
struct Asking {
    engine: Arc<Engine>,
    operation: Arc<Operation>,
    timer: Pin<Box<Sleep>>,
}

impl Asking {
    /// Ready once the votes decide, or time is up.
    fn poll_decision(&mut self, cx: &mut Context<'_>) -> Poll<Decision> {
        let decision = self.operation.decision(cx.waker());
        if decision != Decision::Open {
            return Poll::Ready(decision);
        }
        ready!(self.timer.as_mut().poll(cx));
        for late in self.operation.time_out() {
            self.engine.nodes[late].was_late();
        }
        Poll::Ready(self.operation.decision(Waker::noop()))
    }
}

/// A LOCK under way. Dropped before it is ready, it gives back what it got on every node.
pub struct Acquire {
    engine: Arc<Engine>,
    /// Before the first node was asked.
    since: Instant,
    ttl: Duration,
    /// What the nodes know this attempt by.
    attempt: u64,
    asking: Asking,
    /// The fence, and the second round that makes a quorum remember it.
    raising: Option<(u64, Asking)>,
    done: bool,
}

impl Acquire {
    fn granted(&mut self, fence: u64) -> Result<Grant, NotGranted> {
        match validity(self.ttl, self.since.elapsed(), self.engine.drift_factor) {
            Some(validity) => {
                self.done = true;
                self.asking.operation.close();
                Ok(Grant { fence, validity })
            }
            // Too slow to be worth anything.
            None => Err(self.no_quorum(&self.asking.operation.votes())),
        }
    }

    /// Another holds it.
    fn held(&mut self) -> NotGranted {
        self.give_up();
        let votes = self.asking.operation.votes();
        let remaining = votes.iter().filter_map(|vote| match vote {
            Vote::No(millis) => u64::try_from(*millis).ok().map(Duration::from_millis),
            _ => None,
        });
        NotGranted::Held { remaining: remaining.max() }
    }

    /// These votes do not tell, or came too late.
    fn no_quorum(&mut self, votes: &[Vote]) -> NotGranted {
        self.give_up();
        NotGranted::NoQuorum(self.engine.no_quorum(votes))
    }

    /// Undoes this attempt on every node that may have granted it, whatever it
    /// answered or failed to answer.
    ///
    /// What the token held before stays: its holder may still count on the grant
    /// before this one.
    fn give_up(&mut self) {
        self.done = true;
        let operation = &self.asking.operation;
        operation.close();
        let undo = Arc::new(operation.undo(self.attempt));
        for (node, vote) in self.engine.nodes.iter().zip(operation.votes()) {
            match vote {
                // It was never asked, or has this on its list for when it is back.
                Vote::Missing(Missing::Down | Missing::Busy | Missing::Disconnected) => {}
                _ => node.submit(&undo),
            }
        }
    }

    /// The largest fence that a granting node gave, and how many nodes store it.
    fn fence(&self) -> (u64, usize) {
        let (mut fence, mut stored) = (0, 0);
        for vote in self.asking.operation.votes() {
            if let Vote::Yes(given) = vote {
                let given = u64::try_from(given).unwrap_or(0);
                if given > fence {
                    (fence, stored) = (given, 0);
                }
                stored += usize::from(given == fence);
            }
        }
        (fence, stored)
    }
}

impl Future for Acquire {
    type Output = Result<Grant, NotGranted>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if self.raising.is_none() {
            match ready!(self.asking.poll_decision(cx)) {
                Decision::Yes => {}
                Decision::No => return Poll::Ready(Err(self.held())),
                Decision::NoQuorum | Decision::Open => {
                    let votes = self.asking.operation.votes();
                    return Poll::Ready(Err(self.no_quorum(&votes)));
                }
            }
            let (fence, stored) = self.fence();
            if stored >= self.engine.quorum() {
                return Poll::Ready(self.granted(fence));
            }
            let (engine, key) = (self.engine.clone(), self.asking.operation.key.clone());
            let request = scripts::raise(&key, fence, engine.fence_ttl);
            self.raising = Some((fence, engine.ask(Kind::Raise, &key, b"", self.ttl, request)));
        }
        let Some((fence, raising)) = &mut self.raising else { return Poll::Pending };
        let fence = *fence;
        let decision = ready!(raising.poll_decision(cx));
        let votes = raising.operation.votes();
        Poll::Ready(match decision {
            Decision::Yes => self.granted(fence),
            _ => Err(self.no_quorum(&votes)),
        })
    }
}

impl Drop for Acquire {
    fn drop(&mut self) {
        if !self.done {
            self.give_up();
        }
    }
}

/// An UNLOCK under way. Dropping it does not stop the release.
pub struct Release {
    asking: Asking,
}

impl Future for Release {
    /// True: released. False: not held by that token.
    type Output = Result<bool, NoQuorum>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Poll::Ready(match ready!(self.asking.poll_decision(cx)) {
            Decision::Yes => Ok(true),
            Decision::No => Ok(false),
            Decision::NoQuorum | Decision::Open => {
                Err(self.asking.engine.no_quorum(&self.asking.operation.votes()))
            }
        })
    }
}

/// A RENEW under way. Dropping it does not undo what it has renewed.
pub struct Renew {
    engine: Arc<Engine>,
    since: Instant,
    ttl: Duration,
    asking: Asking,
}

impl Future for Renew {
    /// The new validity, or none: not held by that token.
    type Output = Result<Option<Duration>, NoQuorum>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let decision = ready!(self.asking.poll_decision(cx));
        let operation = &self.asking.operation;
        Poll::Ready(match decision {
            Decision::Yes => {
                match validity(self.ttl, self.since.elapsed(), self.engine.drift_factor) {
                    Some(validity) => Ok(Some(validity)),
                    None => Err(self.engine.no_quorum(&operation.votes())),
                }
            }
            // The holder is told that it holds nothing, so nothing of it may stay.
            Decision::No => {
                let (key, token) = (&operation.key, &operation.token);
                let (request, nodes) = (scripts::release(key, token), self.engine.nodes.len());
                let release =
                    Operation::new(Kind::Release, key, token, operation.ttl, request, nodes);
                let release = Arc::new(release);
                self.engine.nodes.iter().for_each(|node| node.submit(&release));
                Ok(None)
            }
            Decision::NoQuorum | Decision::Open => Err(self.engine.no_quorum(&operation.votes())),
        })
    }
}
