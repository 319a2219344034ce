//! One lock node: whether it can be asked, and what it must be told when it
//! comes back.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use bb8_redis::bb8::Pool;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::{
    NodeStatus,
    backoff::Backoff,
    connect::LinkManager,
    inspect::Inspector,
    link::{Closed, Job, Leftover, Link},
    operation::{Kind, Missing, Operation, Vote},
};
use crate::{
    config::{LocksConfig, RedisUrl},
    metrics::NodeMetrics,
    net::Connector,
    resp::encode,
};

/// Releases remembered for a node that is away. Those that find no place are
/// left to the TTL.
const MAX_CLEANUP: usize = 10_000;
/// Who gives back a lock on a node that has been away: no proxy's release, so that
/// all that hear of it look.
const NOBODY: &[u8] = b"";

/// One lock node.
pub(super) struct Node {
    pub(super) url: RedisUrl,
    pub(super) connector: Connector,
    /// Its place in `locks.nodes`, from 0.
    pub(super) index: usize,
    pub(super) silence: Duration,
    pub(super) keepalive: Duration,
    pub(super) metrics: Arc<NodeMetrics>,
    queue_limit: usize,
    /// Cancelled when the engine has gone.
    gone: CancellationToken,
    /// The longest that anything it holds can last.
    max_ttl: Duration,
    state: Mutex<State>,
}

/// Changed by the supervisor and by the end of a connection; the lock is held
/// while a job is put into the queue, so that order is the order of submission.
struct State {
    link: Option<Link>,
    /// Why there is none.
    reason: String,
    /// What gives back locks that the node may hold in vain, and until when at
    /// the longest it may; that is not known of an acquire that a stopped node
    /// has not read yet, as its TTL has not begun.
    cleanup: VecDeque<(Arc<Operation>, Option<Instant>)>,
    /// `run_id` and CLIENT ID of the connection before.
    before: Option<(String, i64)>,
}

impl Node {
    pub(super) fn new(
        url: RedisUrl,
        connector: Connector,
        index: usize,
        config: &LocksConfig,
    ) -> Node {
        let metrics = NodeMetrics::new(index + 1, &url.to_string());
        metrics.up.set(0.0);
        Node {
            url,
            connector,
            index,
            silence: config.node_silence,
            keepalive: config.node_silence.max(Duration::from_secs(3)),
            metrics: Arc::new(metrics),
            queue_limit: config.node_queue,
            gone: CancellationToken::new(),
            max_ttl: config.max_ttl,
            state: Mutex::new(State {
                link: None,
                reason: "not connected yet".into(),
                cleanup: VecDeque::new(),
                before: None,
            }),
        }
    }

    /// Asks this node. Its vote comes, now or later, exactly once.
    pub(super) fn submit(&self, operation: &Arc<Operation>) {
        let mut state = self.lock();
        let Some(link) = &state.link else {
            self.clean_up_unsent(&mut state, operation);
            drop(state);
            return operation.vote(self.index, Vote::Missing(Missing::Down));
        };
        if matches!(operation.kind, Kind::Acquire { .. }) && link.pending() >= self.queue_limit {
            drop(state);
            self.metrics.errors_queue_full.increment(1);
            return operation.vote(self.index, Vote::Missing(Missing::Busy));
        }
        if link.send(Job::Operation(operation.clone())).is_err() {
            self.clean_up_unsent(&mut state, operation);
            drop(state);
            operation.vote(self.index, Vote::Missing(Missing::Down));
        }
    }

    /// What a node was never asked for it does not hold; a lock given back may be
    /// one that it holds from before.
    fn clean_up_unsent(&self, state: &mut State, operation: &Arc<Operation>) {
        match operation.kind {
            Kind::Release => self.clean_up_later(state, operation.clone(), true),
            Kind::HandOver { .. } => {
                let release = operation.giving_back(NOBODY);
                self.clean_up_later(state, Arc::new(release), true);
            }
            _ => {}
        }
    }

    /// Remembers to give back what an operation whose outcome is unknown may have
    /// taken, or was to give back.
    fn clean_up_sent(&self, state: &mut State, operation: &Arc<Operation>) {
        self.clean_up_unsent(state, operation);
        if let Kind::Acquire { attempt } | Kind::HandOver { attempt } = operation.kind {
            self.clean_up_later(state, Arc::new(operation.undo(attempt)), false);
        }
    }

    /// Remembers a release for when the node is back. `ends`: what it gives back
    /// has a TTL that runs already.
    fn clean_up_later(&self, state: &mut State, release: Arc<Operation>, ends: bool) {
        let until = ends.then(|| Instant::now() + release.ttl.min(self.max_ttl));
        if state.cleanup.len() >= MAX_CLEANUP {
            state.cleanup.pop_front();
        }
        state.cleanup.push_back((release, until));
    }

    /// Keeps a connection open for as long as the node is wanted.
    ///
    /// The connection belongs to a bb8 pool of one and is checked out for its
    /// whole life: checked out per operation it would lose the order of
    /// operations. bb8 hides why an attempt failed and waits on its own
    /// schedule, so the attempts are made here.
    pub(super) async fn supervise(self: Arc<Node>) {
        let pool = Pool::builder()
            .max_size(1)
            .test_on_check_out(false)
            .max_lifetime(None)
            .idle_timeout(None)
            .build_unchecked(LinkManager { node: Arc::downgrade(&self) });
        let inspector = Inspector::new(&self.url, &self.connector);
        let gone = self.gone.clone();
        let this = Arc::downgrade(&self);
        drop(self);
        let mut backoff = Backoff::default();
        loop {
            let connected = pool.dedicated_connection().await;
            let Some(node) = this.upgrade() else { return };
            match connected {
                Ok(link) => {
                    if pool.add(link).is_ok()
                        && let Ok(link) = pool.get().await
                    {
                        let since = Instant::now();
                        node.connected(&link);
                        drop(node);
                        let inspecting = async {
                            warn_of_faults(&inspector, &this).await;
                            std::future::pending::<()>().await;
                        };
                        tokio::select! {
                            () = link.closed() => {}
                            () = inspecting => {}
                            () = gone.cancelled() => return,
                        }
                        backoff.lasted(since.elapsed());
                        if let Some(node) = this.upgrade() {
                            node.disconnected();
                        }
                    }
                }
                Err(error) => {
                    node.metrics.errors_connect.increment(1);
                    node.is_down(error.to_string());
                    drop(node);
                }
            }
            sleep(backoff.next()).await;
        }
    }

    /// Tells the node first what it has missed, then opens it to everybody.
    fn connected(&self, link: &Link) {
        let mut state = self.lock();
        if let (Some((run_id, id)), Some(now)) = (&state.before, &link.run_id)
            && run_id == now
        {
            // The connection before may have left requests unread on a node
            // that was stopped: they must not be carried out after the cleanup.
            let mut kill = Vec::new();
            encode::command(&mut kill, &[b"CLIENT", b"KILL", b"ID", id.to_string().as_bytes()]);
            let _ = link.send(Job::Blind(kill));
        }
        state.before = link.run_id.clone().zip(link.client_id);
        let now = Instant::now();
        let cleanup = std::mem::take(&mut state.cleanup);
        let mut releases = 0;
        for (release, until) in cleanup {
            if until.is_none_or(|until| until > now) {
                releases += 1;
                if link.send(Job::Operation(release.clone())).is_err() {
                    state.cleanup.push_back((release, until));
                }
            }
        }
        state.link = Some(link.clone());
        state.reason.clear();
        drop(state);
        self.metrics.up.set(1.0);
        info!(node = %self.url, releases, "lock node is up");
    }

    /// The connection may have ended before it was opened to everybody, so that
    /// its end found nothing to close.
    fn disconnected(&self) {
        if self.lock().link.take().is_some() {
            self.is_down("disconnected".into());
        }
    }

    /// Fails at once what was in flight; called by the connection's own task.
    pub(super) fn connection_ended(&self, leftover: Leftover) {
        match &leftover.reason {
            Closed::Silent(_) => self.metrics.errors_silence.increment(1),
            Closed::Garbage(_) => self.metrics.errors_reply.increment(1),
            Closed::Io(_) => self.metrics.errors_disconnect.increment(1),
            Closed::Unused => {}
        }
        let mut state = self.lock();
        state.link = None;
        for operation in &leftover.sent {
            self.clean_up_sent(&mut state, operation);
        }
        for operation in &leftover.unsent {
            self.clean_up_unsent(&mut state, operation);
        }
        drop(state);
        self.is_down(leftover.reason.to_string());
        for operation in leftover.sent {
            operation.vote(self.index, Vote::Missing(Missing::Disconnected));
        }
        for operation in leftover.unsent {
            operation.vote(self.index, Vote::Missing(Missing::Down));
        }
    }

    /// Notes why the node cannot be asked, with one line in the log for each
    /// new reason.
    fn is_down(&self, reason: String) {
        let mut state = self.lock();
        if state.reason == reason {
            return;
        }
        warn!(node = %self.url, %reason, "lock node is down");
        state.reason = reason;
        drop(state);
        self.metrics.up.set(0.0);
    }

    /// The node as seen now.
    pub(super) fn status(&self) -> NodeStatus {
        let state = self.lock();
        let up = state.link.is_some();
        let reason = (!up).then(|| state.reason.clone());
        NodeStatus { address: self.url.to_string(), up, reason }
    }

    /// Nothing panics while it holds the lock, and the state stays sound if something did.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.gone.cancel();
    }
}

/// One line in the log for each thing that makes a node unfit to vote.
async fn warn_of_faults(inspector: &Inspector, node: &Weak<Node>) {
    let inspected = inspector.inspect().await;
    let Some(node) = node.upgrade() else { return };
    match inspected {
        Ok(faults) => {
            for fault in faults {
                warn!(node = %node.url, "lock node is unfit: {fault}");
            }
        }
        // An ACL may keep INFO from us; the node votes all the same.
        Err(error) => info!(node = %node.url, %error, "lock node cannot be inspected"),
    }
}
