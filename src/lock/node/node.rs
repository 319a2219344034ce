//! One lock node: whether it can be asked, and what it must be told when it
//! comes back.

use std::{
    collections::VecDeque,
    sync::{Arc, OnceLock, Weak, atomic::Ordering},
    time::Duration,
};

use tokio::time::{sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::link::{Closed, Leftover, Link, Queued};
use crate::{
    clock::Instant,
    config::{LocksConfig, RedisUrl},
    key::{Key, Token},
    lock::{
        Claim, NodeStatus,
        fitness::{
            clocks::{Clocks, Sight},
            deployment::{Admissions, Wait},
            fault::Fault,
            inspect::Inspected,
            look::SelfReport,
            standing::NodeStanding,
        },
        metrics::NodeMetrics,
        operation::{Absence, Kind, Operation, Vote},
        scripts::{self, WhichGrant},
    },
    net::Connector,
    resp::encode,
    sync::Mutex,
};

/// Releases remembered for a node that is away. Those that find no place are
/// left to the TTL.
const MAX_CLEANUP: usize = 10_000;
/// How soon a node is asked again to give a lock back that it has refused to give back.
pub(super) const ASK_AGAIN: Duration = Duration::from_millis(100);

#[cfg(test)]
thread_local! {
    /// A fault that tests plant: an error in answer to a release is the end of it.
    pub(crate) static NOT_ASKED_AGAIN: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
    /// Another: what may have been granted in vain is taken back though it was renewed since.
    pub(crate) static UNDONE: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// The fence that would be proposed now.
pub(super) type ProposedFence = Arc<dyn Fn() -> u64 + Send + Sync>;

/// Until when a grant made by this proxy has its lock, as far as is known.
type HeldUntil = dyn Fn(&Key, &Token, Claim) -> Option<Instant> + Send + Sync;

pub(super) struct Node {
    pub(super) url: RedisUrl,
    pub(super) connector: Connector,
    /// Its place in `locks.nodes`, from 0.
    pub(super) index: usize,
    pub(super) silence: Duration,
    pub(super) keepalive: Duration,
    pub(super) metrics: Arc<NodeMetrics>,
    pub(super) admissions: Arc<Admissions>,
    /// What its connection goes by.
    pub(super) standing: Arc<NodeStanding>,
    clocks: Arc<Clocks>,
    /// `locks.drift_factor`.
    pub(super) drift_factor: f64,
    clock: ProposedFence,
    /// Told when it can be asked again.
    came_back: OnceLock<Box<dyn Fn() + Send + Sync>>,
    held_until: OnceLock<Box<HeldUntil>>,
    queue_limit: usize,
    /// Cancelled when the engine has gone.
    pub(super) gone: CancellationToken,
    /// The longest that anything it holds can last.
    max_ttl: Duration,
    state: Mutex<NodeState>,
}

/// Changed by the supervisor and by the end of a connection; the lock is held
/// while a job is put into the queue, so that order is the order of submission.
struct NodeState {
    link: Option<Link>,
    /// Why there is none, or why it does not vote yet, and until when, if that is known.
    reason: String,
    until: Option<tokio::time::Instant>,
    /// What makes it unfit to vote, if that is why.
    unfit: Option<Fault>,
    /// What else was found wrong with it.
    found: Vec<Fault>,
    /// What gives back locks that the node may hold in vain, and until when at
    /// the longest it may; that is not known of an acquire that a stopped node
    /// has not read yet, as its TTL has not begun.
    cleanup: VecDeque<(Arc<Operation>, Option<Instant>)>,
    /// Releases and hand-overs that it has answered with an error, and when the lock has
    /// run out by itself.
    refused: VecDeque<(Arc<Operation>, Instant)>,
    /// `run_id` and CLIENT ID of the connection before.
    before: Option<(String, i64)>,
}

impl Node {
    pub(super) fn new(
        url: RedisUrl,
        connector: Connector,
        index: usize,
        config: &LocksConfig,
        admissions: Arc<Admissions>,
        clocks: Arc<Clocks>,
        clock: ProposedFence,
    ) -> Node {
        let metrics = NodeMetrics::new(index + 1, &url.to_string(), config.node_timeout);
        metrics.up.set(0.0);
        Node {
            url,
            connector,
            index,
            silence: config.node_silence,
            keepalive: config.node_silence.max(Duration::from_secs(3)),
            metrics: Arc::new(metrics),
            standing: admissions.standing(index),
            admissions,
            clocks,
            drift_factor: config.drift_factor,
            clock,
            came_back: OnceLock::new(),
            held_until: OnceLock::new(),
            queue_limit: config.node_queue,
            gone: CancellationToken::new(),
            max_ttl: config.max_ttl,
            state: Mutex::new(NodeState {
                link: None,
                reason: "not connected yet".into(),
                until: None,
                unfit: None,
                found: Vec::new(),
                cleanup: VecDeque::new(),
                refused: VecDeque::new(),
                before: None,
            }),
        }
    }

    /// Tells `came_back` from now on whenever the node can be asked again.
    pub(super) fn on_return(&self, came_back: impl Fn() + Send + Sync + 'static) {
        let _ = self.came_back.set(Box::new(came_back));
    }

    /// Asks this of grants from now on. Whoever answers may have this node asked something
    /// meanwhile, so it is called without the node's lock.
    pub(super) fn ask_holders(
        &self,
        held_until: impl Fn(&Key, &Token, Claim) -> Option<Instant> + Send + Sync + 'static,
    ) {
        let _ = self.held_until.set(Box::new(held_until));
    }

    /// Asks this node. Its vote comes, now or later, exactly once.
    pub(super) fn submit(&self, operation: &Arc<Operation>) {
        let mut state = self.state.lock();
        let Some(link) = &state.link else {
            self.clean_up_unsent(&mut state, operation);
            let quarantined = state.unfit == Some(Fault::Quarantined);
            drop(state);
            let why = if quarantined { Absence::Quarantined } else { Absence::Down };
            return operation.vote(self.index, Vote::Missing(why));
        };
        if operation.kind.grants()
            && let Some(why) = self.waits()
        {
            // It may give back all the same.
            if let Some(release) = operation.late_release((self.clock)()) {
                link.send(Queued::Operation(Arc::new(release)));
            }
            drop(state);
            return operation.vote(self.index, Vote::Missing(why));
        }
        if matches!(operation.kind, Kind::Acquire { .. }) && link.pending() >= self.queue_limit {
            drop(state);
            self.metrics.errors_queue_full.increment(1);
            return operation.vote(self.index, Vote::Missing(Absence::Busy));
        }
        if !link.send(Queued::Operation(operation.clone())) {
            self.clean_up_unsent(&mut state, operation);
            drop(state);
            operation.vote(self.index, Vote::Missing(Absence::Down));
        }
    }

    /// Why it must not grant, though it is connected.
    fn waits(&self) -> Option<Absence> {
        if self.standing.waits.load(Ordering::Acquire) {
            Some(Absence::Quarantined)
        } else if self.standing.jumped.load(Ordering::Acquire) {
            Some(Absence::Jumped)
        } else {
            None
        }
    }

    /// What a node was never asked for it does not hold; a lock given back may be
    /// one that it holds from before.
    fn clean_up_unsent(&self, state: &mut NodeState, operation: &Arc<Operation>) {
        if matches!(operation.kind, Kind::Release | Kind::HandOver { .. }) {
            self.clean_up_later(state, operation.clone(), true);
        }
    }

    /// Remembers to give back what an operation whose outcome is unknown may have
    /// taken, or was to give back.
    fn clean_up_sent(&self, state: &mut NodeState, operation: &Arc<Operation>) {
        self.clean_up_unsent(state, operation);
        if let Kind::Acquire { claim, again: false } | Kind::HandOver { claim } = operation.kind {
            let undo = operation.undo(claim).unless_granted(operation.clone());
            self.clean_up_later(state, Arc::new(undo), false);
        }
    }

    /// It has refused to give a lock back, as it is out of memory, busy, or wants replicas.
    /// It is asked again until it does, or the lock has run out by itself.
    pub(super) fn answered_with_error(self: &Arc<Node>, operation: &Arc<Operation>) {
        #[cfg(test)]
        if NOT_ASKED_AGAIN.get() {
            return;
        }
        #[cfg(feature = "planted")]
        if std::env::var("LOCKGATE_PLANT").is_ok_and(|fault| fault == "repeat") {
            return;
        }
        let mut state = self.state.lock();
        if state.refused.len() >= MAX_CLEANUP {
            return;
        }
        let is_first = state.refused.is_empty();
        let ttl = operation.ttl.min(self.max_ttl);
        state.refused.push_back((operation.clone(), Instant::now() + ttl));
        debug_assert!(state.refused.len() <= MAX_CLEANUP, "what is refused is bounded");
        drop(state);
        if is_first {
            tokio::spawn(ask_again(Arc::downgrade(self)));
        }
    }

    /// Sends again what the node has refused to give back.
    fn release_refused(&self) {
        let mut state = self.state.lock();
        let now = Instant::now();
        for (operation, until) in std::mem::take(&mut state.refused) {
            if until <= now {
                continue;
            }
            let release = operation.late_release((self.clock)());
            let undo = match operation.kind {
                Kind::HandOver { claim } if !operation.is_granted() => Some(operation.undo(claim)),
                _ => None,
            };
            for release in release.into_iter().chain(undo) {
                let release = Arc::new(release.lasting(until - now));
                let sent = state.link.as_ref();
                if !sent.is_some_and(|link| link.send(Queued::Operation(release.clone()))) {
                    self.clean_up_later(&mut state, release, true);
                }
            }
        }
    }

    /// Remembers a release for when the node is back. `ends`: what it gives back
    /// has a TTL that runs already.
    fn clean_up_later(&self, state: &mut NodeState, release: Arc<Operation>, ends: bool) {
        let until = ends.then(|| Instant::now() + release.ttl.min(self.max_ttl));
        if state.cleanup.len() >= MAX_CLEANUP {
            state.cleanup.pop_front();
        }
        state.cleanup.push_back((release, until));
        debug_assert!(state.cleanup.len() <= MAX_CLEANUP, "the clean-up list is bounded");
    }

    /// Tells the node first what it has missed, then opens it to everybody.
    pub(super) fn connected(&self, link: &Link) {
        self.note_held();
        let mut state = self.state.lock();
        if let (Some((run_id, id)), Some(now)) = (&state.before, &link.run_id)
            && run_id == now
        {
            // The connection before may have left requests unread on a node
            // that was stopped: they must not be carried out after the cleanup.
            let mut kill = Vec::new();
            encode::command(&mut kill, &[b"CLIENT", b"KILL", b"ID", id.to_string().as_bytes()]);
            link.send(Queued::Blind(kill));
        }
        link.send(Queued::Blind(scripts::note_max_ttl(self.max_ttl)));
        state.before = link.run_id.clone().zip(link.client_id);
        let now = Instant::now();
        let cleanup = std::mem::take(&mut state.cleanup);
        let mut releases = 0;
        for (release, until) in cleanup {
            if until.is_none_or(|until| until > now)
                && let Some(release) = self.as_late(release)
            {
                releases += 1;
                if !link.send(Queued::Operation(release.clone())) {
                    state.cleanup.push_back((release, until));
                }
            }
        }
        debug_assert!(state.link.is_none(), "there is one connection to each lock node");
        state.link = Some(link.clone());
        drop(state);
        self.stands(releases);
    }

    /// Notes on grants whose votes are to be taken back how long they last by now: they were
    /// renewed since, and put back on this node, and it must not end them.
    fn note_held(&self) {
        #[cfg(test)]
        if UNDONE.get() {
            return;
        }
        let Some(held_until) = self.held_until.get() else { return };
        let undoes = |(release, _): &(Arc<Operation>, _)| release.undoes.clone();
        let undone: Vec<Arc<Operation>> =
            self.state.lock().cleanup.iter().filter_map(undoes).collect();
        for grant in undone.iter().filter(|undone| undone.is_granted()) {
            if let Kind::Acquire { claim, .. } | Kind::HandOver { claim } = grant.kind
                && let Some(until) = held_until(&grant.key, &grant.token, claim)
            {
                grant.grant(until);
            }
        }
    }

    /// Notes whether the node votes or waits, now that it is connected.
    pub(super) fn stands(&self, releases: usize) {
        if self.standing.waits.load(Ordering::Acquire) {
            let wait = self.admissions.wait(self.index);
            let Wait { until, why } =
                wait.unwrap_or_else(|| Wait { until: None, why: "it waits".into() });
            return self.is_down(why, until, Some(Fault::Quarantined));
        }
        if self.standing.jumped.load(Ordering::Acquire) {
            return self.is_down(
                Fault::Clock.meaning().into(),
                self.clocks_until(),
                Some(Fault::Clock),
            );
        }
        let mut state = self.state.lock();
        state.reason.clear();
        (state.until, state.unfit) = (None, None);
        self.show_faults(&state);
        drop(state);
        self.metrics.up.set(1.0);
        if let Some(came_back) = self.came_back.get() {
            came_back();
        }
        info!(node = %self.url, releases, "lock node is up");
    }

    /// Until when it waits as its clock has jumped.
    fn clocks_until(&self) -> Option<tokio::time::Instant> {
        self.clocks.waits_until(self.index).map(Instant::timer)
    }

    /// Its clock is watched before it may vote too: a jump that nobody has seen would be taken
    /// for its time of day.
    pub(super) fn saw_look(self: &Arc<Node>, sent: Instant, look: &SelfReport) {
        let Some(time) = look.time.and_then(|time| i64::try_from(time).ok()) else { return };
        let mut clock = self.standing.clock.lock();
        let sight = clock.sample(sent, Instant::now(), time, self.drift_factor);
        drop(clock);
        if sight != Sight::Steady {
            self.saw_clock(Some(sight));
        }
    }

    /// What is new of its clock; none: that it does not tell its TIME.
    pub(super) fn saw_clock(self: &Arc<Node>, sight: Option<Sight>) {
        let unwatched = sight.is_none();
        if self.standing.unwatched.swap(unwatched, Ordering::AcqRel) != unwatched {
            if unwatched {
                let fault = Fault::Unwatched;
                warn!(node = %self.url, fault = fault.as_str(), "lock node: {}", fault.meaning());
            }
            self.show_faults(&self.state.lock());
        }
        match sight {
            None | Some(Sight::Steady) => {}
            Some(Sight::SteppedBack(by)) => {
                self.metrics.clock_stepped_back.increment(1);
                warn!(
                    node = %self.url, ?by,
                    "the clock of a lock node was stepped back: what nobody gives back stays locked there for so much longer"
                );
            }
            Some(Sight::JumpedForward(by)) => {
                self.metrics.clock_jumped_forward.increment(1);
                let until = self.clocks.jumped(self.index);
                warn!(
                    node = %self.url, ?by, waits = ?until.map(|until| until - Instant::now()),
                    "the clock of a lock node has jumped forward: it may have ended locks too early"
                );
                if until.is_some() {
                    if !self.standing.jumped.swap(true, Ordering::AcqRel) {
                        tokio::spawn(wait_for_clock(Arc::downgrade(self)));
                    }
                    self.stands(0);
                }
            }
        }
    }

    /// What is sent in place of an operation that the node has missed: it must take nothing
    /// that was granted since.
    fn as_late(&self, missed: Arc<Operation>) -> Option<Arc<Operation>> {
        if missed.undoes.as_ref().is_some_and(|undone| undone.is_granted_still()) {
            return None;
        }
        if matches!(
            (missed.kind, missed.whose),
            (Kind::Release, WhichGrant::Claim(_) | WhichGrant::UpTo(_))
        ) {
            return Some(missed);
        }
        missed.late_release((self.clock)()).map(Arc::new)
    }

    /// The connection may have ended before it was opened to everybody, so that
    /// its end found nothing to close.
    pub(super) fn disconnected(&self) {
        if self.state.lock().link.take().is_some() {
            self.is_down("disconnected".into(), None, None);
        }
    }

    /// Fails at once what was in flight; called by the connection's own task.
    pub(super) fn connection_ended(&self, leftover: Leftover) {
        match &leftover.reason {
            Closed::Silent(_) => self.metrics.errors_silence.increment(1),
            Closed::Garbage(_) => self.metrics.errors_reply.increment(1),
            Closed::Io(_) => self.metrics.errors_disconnect.increment(1),
            Closed::Changed(_) | Closed::Unused => {}
        }
        self.metrics.pace.reset();
        let mut state = self.state.lock();
        state.link = None;
        for operation in &leftover.sent {
            self.clean_up_sent(&mut state, operation);
        }
        for operation in &leftover.unsent {
            self.clean_up_unsent(&mut state, operation);
        }
        drop(state);
        let garbage = matches!(leftover.reason, Closed::Garbage(_)).then_some(Fault::Garbage);
        self.is_down(leftover.reason.to_string(), None, garbage);
        for operation in leftover.sent {
            operation.vote(self.index, Vote::Missing(Absence::Disconnected));
        }
        for operation in leftover.unsent {
            operation.vote(self.index, Vote::Missing(Absence::Down));
        }
    }

    /// Notes why the node cannot be asked, with one line in the log for each
    /// new reason.
    pub(super) fn is_down(
        &self,
        reason: String,
        until: Option<tokio::time::Instant>,
        unfit: Option<Fault>,
    ) {
        let mut state = self.state.lock();
        state.until = until;
        if state.reason == reason {
            return;
        }
        (state.unfit, state.reason) = (unfit, reason);
        self.show_faults(&state);
        let reason = state.reason();
        warn!(node = %self.url, %reason, "lock node is down");
        drop(state);
        self.metrics.up.set(0.0);
    }

    /// The node as seen now.
    pub(super) fn status(&self) -> NodeStatus {
        let state = self.state.lock();
        let up = state.link.is_some()
            && !self.standing.waits.load(Ordering::Acquire)
            && !self.standing.jumped.load(Ordering::Acquire);
        let reason = (!up).then(|| state.reason());
        let unfit = state.unfit;
        let pace = &self.metrics.pace;
        let slow = (up && pace.is_slow()).then_some(Fault::Slow);
        let found = self.found(&state).filter(|fault| Some(*fault) != unfit).chain(slow);
        let (found, too_slow) = (found.collect(), up && pace.is_too_slow());
        NodeStatus { address: self.url.to_string(), up, reason, unfit, found, too_slow }
    }

    /// Notes what an inspection has found, with one line in the log for each that is new.
    pub(super) fn inspected(&self, Inspected { faults: found, is_another, longest }: Inspected) {
        self.admissions.heard_of(longest);
        let mut state = self.state.lock();
        if is_another && let Some(link) = &state.link {
            warn!(node = %self.url, "another server answers at its address, or it was emptied or a replica");
            link.end();
        }
        for fault in found.iter().filter(|fault| !state.found.contains(fault)) {
            warn!(node = %self.url, fault = fault.as_str(), "lock node is unfit: {}", fault.meaning());
        }
        state.found = found;
        self.show_faults(&state);
    }

    /// What was found wrong with it.
    fn found(&self, state: &NodeState) -> impl Iterator<Item = Fault> {
        let unwatched = self.standing.unwatched.load(Ordering::Acquire);
        state.found.iter().copied().chain(unwatched.then_some(Fault::Unwatched))
    }

    fn show_faults(&self, state: &NodeState) {
        for (fault, gauge) in Fault::ALL.into_iter().zip(&self.metrics.faults) {
            let has = state.unfit == Some(fault)
                || self.found(state).any(|found| found == fault)
                || fault == Fault::Slow && self.metrics.pace.is_slow();
            gauge.set(f64::from(u8::from(has)));
        }
    }
}

impl NodeState {
    /// Why it does not vote, with how long still.
    fn reason(&self) -> String {
        match self.until {
            Some(until) => {
                let now = tokio::time::Instant::now();
                let left = until.saturating_duration_since(now);
                format!("waits {} s more ({})", left.as_secs_f64().ceil(), self.reason)
            }
            None => self.reason.clone(),
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.gone.cancel();
    }
}

/// Has the node vote again once its clock has been steady for long enough.
async fn wait_for_clock(node: Weak<Node>) {
    loop {
        let Some(known) = node.upgrade() else { return };
        let Some(until) = known.clocks.waits_until(known.index) else {
            let jumped = &known.standing.jumped;
            jumped.store(false, Ordering::Release);
            // It may have jumped again just now, and nobody else have begun to wait.
            if known.clocks.waits_until(known.index).is_some() {
                match jumped.swap(true, Ordering::AcqRel) {
                    true => return,
                    false => continue,
                }
            }
            if known.state.lock().link.is_some() {
                known.stands(0);
            }
            return;
        };
        drop(known);
        sleep_until(until.timer()).await;
    }
}

/// Has the node give back what it has refused to, for as long as there is something.
async fn ask_again(node: Weak<Node>) {
    sleep(ASK_AGAIN).await;
    if let Some(node) = node.upgrade() {
        node.release_refused();
    }
}
