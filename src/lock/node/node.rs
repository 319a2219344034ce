//! One lock node: whether it can be asked, and what it must be sent when it comes back.

use std::{
    collections::VecDeque,
    sync::{
        Arc, LazyLock, OnceLock, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::time::{sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::link::{Closed, Leftover, Link, Queued};
use crate::{
    clock::{Instant, millis},
    config::LocksConfig,
    key::Key,
    lock::{
        NodeStatus,
        address::NodeAddress,
        location::Location,
        lock_metrics::NodeMetrics,
        members::{
            clocks::{Clocks, Sight},
            fault::Fault,
            inspect::{Inspected, NodeRefusal},
            membership::Wait,
            right::Right,
            self_report::SelfReport,
            shared_members::SharedMembers,
            standing::NodeStanding,
        },
        operation::{Absence, Kind, Operation, Vote},
        scripts::{self, Dialect},
    },
    net::Connector,
    resp::encode,
    sync::Mutex,
};

/// The most releases remembered for a node that is away. A lock whose release is not among them has to run out.
const MAX_CLEANUP: usize = 10_000;
/// How long operations are held back for a node whose connection had to end, though it is well.
const HELD_FOR: Duration = Duration::from_secs(1);
/// The pause before a refused release is sent again.
pub(super) const ASK_AGAIN: Duration = Duration::from_millis(100);

#[cfg(test)]
thread_local! {
    /// A fault that tests plant: a release that the node answers with an error is not sent again.
    pub(crate) static NOT_ASKED_AGAIN: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Metrics that are made when they are first needed.
type LazyMetrics = LazyLock<Arc<NodeMetrics>, Box<dyn FnOnce() -> Arc<NodeMetrics> + Send>>;
/// A callback with an operation.
type Again = dyn Fn(&Arc<Operation>) + Send + Sync;
/// A callback with the number of a node, and an operation.
type Late = dyn Fn(usize, Arc<Operation>) + Send + Sync;

pub(super) struct Node {
    pub(super) address: Arc<NodeAddress>,
    pub(super) connector: Connector,
    /// The node's seat, from 0.
    pub(super) index: usize,
    /// The place of its voter in `locks.nodes`, from 0.
    pub(super) voter: usize,
    pub(super) silence: Duration,
    pub(super) keepalive: Duration,
    /// Made once a node is on the seat.
    pub(super) metrics: LazyMetrics,
    pub(super) members: Arc<SharedMembers>,
    /// The node's standing, which its connection obeys.
    pub(super) standing: Arc<NodeStanding>,
    clocks: Arc<Clocks>,
    /// Whether an operator has paused the node: it is asked for no new locks.
    paused: AtomicBool,
    /// `locks.drift_factor`.
    pub(super) drift_factor: f64,
    /// `locks.prefix`.
    pub(super) prefix: String,
    pub(super) dialect: Dialect,
    /// Called when the node can be asked again, even if only to put locks back.
    came_back: OnceLock<Box<dyn Fn() + Send + Sync>>,
    /// Called with the undo of a lock that was granted, whose request the node may carry out late, or have carried out.
    is_late: OnceLock<Box<Late>>,
    /// Called with a release or a hand-over whose lock must be given back on another shard.
    again: OnceLock<Box<Again>>,
    queue_limit: usize,
    /// Cancelled when the engine is dropped.
    pub(super) gone: CancellationToken,
    state: Mutex<NodeState>,
}

/// State changed by the supervisor and by the end of a connection. The mutex is held while a job is put into the
/// queue, so that jobs keep the order of submission.
struct NodeState {
    link: Option<Link>,
    /// The location of the Redis to which the connection leads, or will lead.
    at: Option<Location>,
    /// Whether its votes did not count at the last check.
    is_unconfirmed: bool,
    /// Why there is no connection, or why the node does not vote yet, and until when, if known.
    reason: String,
    until: Option<tokio::time::Instant>,
    /// The fault that makes the node unfit to vote, if one does.
    unfit: Option<Fault>,
    /// Other faults of the node.
    found: Vec<Fault>,
    /// The fault by which it carries out nothing that locks need, as it was asked last.
    refuses: Option<Fault>,
    /// Releases of locks that the node may still have though no client holds them, each with the latest end of its
    /// lock. The end is `None` for the undo of a request that a stopped node may not have read: its TTL has not begun.
    cleanup: VecDeque<(Arc<Operation>, Option<Instant>)>,
    /// Releases and hand-overs that the node has answered with an error, each with the time when its lock has run out
    /// by itself.
    refused: VecDeque<(Arc<Operation>, Instant)>,
    /// `run_id` and CLIENT ID of the previous connection.
    before: Option<(String, i64)>,
    /// Operations to be sent once the node is admitted, for the first time or anew, and since when they are held
    /// back. While a connection is ending: those that came when it took no more.
    held_back: Option<(Instant, Vec<Arc<Operation>>)>,
}

impl Node {
    pub(super) fn new(
        address: Arc<NodeAddress>,
        connector: Connector,
        index: usize,
        config: &LocksConfig,
        members: Arc<SharedMembers>,
        clocks: Arc<Clocks>,
    ) -> Node {
        let (name, timeout) = (address.to_string(), config.node_timeout);
        let metrics: LazyMetrics =
            LazyLock::new(Box::new(move || Arc::new(NodeMetrics::new(index + 1, &name, timeout))));
        if address.cluster().is_none() {
            metrics.up.set(0.0);
        }
        Node {
            address,
            connector,
            index,
            voter: members.voter(index),
            silence: config.node_silence,
            keepalive: config.node_silence.max(Duration::from_secs(3)),
            metrics,
            standing: members.standing(index),
            members,
            clocks,
            paused: AtomicBool::new(false),
            drift_factor: config.drift_factor,
            prefix: config.prefix.clone(),
            dialect: Dialect::of(config),
            came_back: OnceLock::new(),
            is_late: OnceLock::new(),
            again: OnceLock::new(),
            queue_limit: config.node_queue,
            gone: CancellationToken::new(),
            state: Mutex::new(NodeState {
                link: None,
                at: None,
                is_unconfirmed: false,
                reason: "not connected yet".into(),
                until: None,
                unfit: None,
                found: Vec::new(),
                refuses: None,
                cleanup: VecDeque::new(),
                refused: VecDeque::new(),
                before: None,
                // What comes before the first connection waits for it.
                held_back: Some((Instant::now(), Vec::new())),
            }),
        }
    }

    /// Registers `came_back`, called whenever the node can be asked again, or waits on its seat.
    pub(super) fn on_return(&self, came_back: impl Fn() + Send + Sync + 'static) {
        let _ = self.came_back.set(Box::new(came_back));
    }

    /// Registers `is_late`, called without this node's mutex with the undo of a lock that was granted, and the node's
    /// number, once the node is back.
    pub(super) fn on_late(&self, is_late: impl Fn(usize, Arc<Operation>) + Send + Sync + 'static) {
        let _ = self.is_late.set(Box::new(is_late));
    }

    /// Sends an operation to this node. The node's vote comes, now or later, exactly once.
    pub(super) fn submit(&self, operation: &Arc<Operation>) {
        let mut state = self.state.lock();
        let Some(link) = &state.link else {
            if let Some((since, held_back)) = &mut state.held_back
                && since.elapsed() < HELD_FOR
                && held_back.len() < self.queue_limit
            {
                held_back.push(operation.clone());
                return;
            }
            self.clean_up_unsent(&mut state, operation);
            let quarantined = state.unfit == Some(Fault::Quarantined);
            drop(state);
            let why = if quarantined { Absence::Quarantined } else { Absence::Down };
            return operation.vote(self.voter, Vote::Missing(why));
        };
        if let Some(why) = self.right_on(&state, &operation.key).refuses(operation) {
            // The node may still give the giver's lock back.
            if let Some(release) = operation.late_release() {
                link.send(Queued::Operation(Arc::new(release)));
            }
            drop(state);
            return operation.vote(self.voter, Vote::Missing(why));
        }
        if matches!(operation.kind, Kind::Acquire { .. }) && link.pending() >= self.queue_limit {
            drop(state);
            self.metrics.errors_queue_full.increment(1);
            return operation.vote(self.voter, Vote::Missing(Absence::Busy));
        }
        if !link.send(Queued::Operation(operation.clone())) {
            // The connection is about to end; how it ends decides what becomes of this.
            let (_, held_back) =
                state.held_back.get_or_insert_with(|| (Instant::now(), Vec::new()));
            if held_back.len() < self.queue_limit {
                held_back.push(operation.clone());
                return;
            }
            self.clean_up_unsent(&mut state, operation);
            drop(state);
            operation.vote(self.voter, Vote::Missing(Absence::Down));
        }
    }

    /// Notes that the lock's slot is, or moves, elsewhere, or is served nowhere. A lock that the operation was to give
    /// back is given back where the slot is then.
    pub(super) fn answered_elsewhere(&self, operation: &Arc<Operation>) {
        if let Some(shards) = self.address.cluster() {
            shards.look_now();
        }
        if let Some(again) = self.again.get()
            && matches!(operation.kind, Kind::Release | Kind::HandOver { .. })
        {
            again(operation);
        }
    }

    /// Registers `again`, called with each release or hand-over whose lock must be given back on another shard.
    pub(super) fn on_elsewhere(&self, again: impl Fn(&Arc<Operation>) + Send + Sync + 'static) {
        let _ = self.again.set(Box::new(again));
    }

    /// Returns what may be asked of the connected node about the lock at `key`.
    fn right_on(&self, state: &NodeState, key: &Key) -> Right {
        let in_doubt = || {
            let shards = self.address.cluster()?;
            shards.is_doubtful(key).then_some(Absence::Quarantined)
        };
        let kept_from = self.kept_from().or_else(in_doubt);
        Right::of(kept_from, self.is_confirmed(state), self.waits_alone())
    }

    /// Returns what may be asked of the connected node; in a cluster, about locks in slots that are not in doubt.
    fn right(&self, state: &NodeState) -> Right {
        Right::of(self.kept_from(), self.is_confirmed(state), self.waits_alone())
    }

    /// Returns what keeps the node from granting.
    fn kept_from(&self) -> Option<Absence> {
        if self.standing.waits.load(Ordering::Acquire) {
            Some(Absence::Quarantined)
        } else if self.standing.jumped.load(Ordering::Acquire) {
            Some(Absence::Jumped)
        } else if self.is_paused() {
            Some(Absence::Paused)
        } else {
            None
        }
    }

    /// Whether votes of the connected Redis count, by its Sentinels or its cluster.
    fn is_confirmed(&self, state: &NodeState) -> bool {
        state.at.as_ref().is_none_or(|there| self.address.is_confirmed(there))
    }

    /// Returns the location of the Redis to which the connection leads, or will lead.
    pub(super) fn at(&self) -> Option<Location> {
        self.state.lock().at.clone()
    }

    /// Notes whether the Sentinels, or the cluster, still confirm the connected Redis, and logs a change.
    pub(super) fn check_confirmed(&self) {
        let mut state = self.state.lock();
        let is_confirmed = self.is_confirmed(&state);
        if state.is_unconfirmed != is_confirmed {
            return;
        }
        state.is_unconfirmed = !is_confirmed;
        self.show_faults(&state);
        drop(state);
        if !is_confirmed {
            self.metrics.up.set(0.0);
            let reason = self.unconfirmed();
            warn!(node = %self.address, reason, "the votes of this lock node do not count");
            return;
        }
        match self.address.cluster() {
            Some(_) => info!(node = %self.address, "the cluster confirms this lock node again"),
            None => info!(node = %self.address, "the Sentinels confirm this lock node again"),
        }
        // The node may have begun to wait meanwhile.
        if self.state.lock().link.is_some() {
            self.update_standing(0);
        }
    }

    /// Notes where the next connection leads.
    pub(super) fn leads_to(&self, there: Location) {
        self.state.lock().at = Some(there);
    }

    /// Whether the node's voter is the only one, and the node waits: no other node knows which locks are held.
    pub(super) fn waits_alone(&self) -> bool {
        self.members.is_alone() && self.standing.waits.load(Ordering::Acquire)
    }

    /// Whether the node has every lock that it should have. A pause takes none from it.
    pub(super) fn has_all(&self) -> bool {
        let state = self.state.lock();
        state.link.is_some() && self.right(&state).may_lack().is_none()
    }

    /// Returns why the node may lack the lock at `key`: then its word that the lock is free does not count.
    pub(super) fn may_lack(&self, key: &Key) -> Option<Absence> {
        self.right_on(&self.state.lock(), key).may_lack()
    }

    fn is_paused(&self) -> bool {
        self.paused.load(Ordering::Acquire)
    }

    /// Stops asking the node for new locks, or resumes. The locks that it has are still renewed there, put back and
    /// released.
    pub(super) fn pause(&self, paused: bool) {
        if self.paused.swap(paused, Ordering::AcqRel) != paused && self.state.lock().link.is_some()
        {
            self.update_standing(0);
            if paused {
                // The node may be stopped soon: locks that other nodes lack are put back there.
                self.tell_of_return();
            }
        }
    }

    /// Remembers an operation that was never sent. Only a release leaves something to do: the node may have the lock.
    fn clean_up_unsent(&self, state: &mut NodeState, operation: &Arc<Operation>) {
        if matches!(operation.kind, Kind::Release | Kind::HandOver { .. }) {
            self.clean_up_later(state, operation.clone(), true);
        }
    }

    /// Remembers to give back the lock that an operation with an unknown outcome may have taken, or was to give back.
    fn clean_up_sent(&self, state: &mut NodeState, operation: &Arc<Operation>) {
        self.clean_up_unsent(state, operation);
        if let Kind::Acquire { claim, again: false } | Kind::HandOver { claim } = operation.kind {
            let undo = operation.undo(claim).unless_granted(operation.clone());
            self.clean_up_later(state, Arc::new(undo), false);
        }
    }

    /// Notes that the node has refused to give a lock back, as it is out of memory, busy, or lacks replicas. The
    /// release is sent again until it is done or the lock has run out.
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
        let ttl = operation.gives_back_for().min(self.members.longest().get());
        state.refused.push_back((operation.clone(), Instant::now() + ttl));
        debug_assert!(state.refused.len() <= MAX_CLEANUP, "what is refused is bounded");
        drop(state);
        if is_first {
            tokio::spawn(ask_again(Arc::downgrade(self)));
        }
    }

    /// Whether the node has refused a release of `key` and the release is still being repeated.
    pub(super) fn must_release(&self, key: &Key) -> bool {
        self.state.lock().refused.iter().any(|(operation, _)| operation.key == *key)
    }

    /// Sends the refused releases again.
    fn release_refused(&self) {
        let mut state = self.state.lock();
        let now = Instant::now();
        for (operation, until) in std::mem::take(&mut state.refused) {
            if until <= now {
                continue;
            }
            let release = operation.late_release();
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

    /// Remembers a release for when the node is back. `ends`: the lock's TTL is running already.
    fn clean_up_later(&self, state: &mut NodeState, release: Arc<Operation>, ends: bool) {
        let lasts = release.gives_back_for().min(self.members.longest().get());
        let until = ends.then(|| Instant::now() + lasts);
        if state.cleanup.len() >= MAX_CLEANUP {
            state.cleanup.pop_front();
        }
        state.cleanup.push_back((release, until));
        debug_assert!(state.cleanup.len() <= MAX_CLEANUP, "the clean-up list is bounded");
    }

    /// Takes a new connection into use. First sends what the node has missed, then operations.
    pub(super) fn connected(&self, link: &Link) {
        let mut state = self.state.lock();
        if let (Some((run_id, id)), Some(now)) = (&state.before, &link.run_id)
            && run_id == now
        {
            // A node that was stopped may have unread requests of the previous connection, which must not be carried
            // out after the clean-up.
            let mut kill = Vec::new();
            encode::command(&mut kill, &[b"CLIENT", b"KILL", b"ID", id.to_string().as_bytes()]);
            link.send(Queued::Blind(kill));
        }
        link.send(Queued::Blind(self.note_longest()));
        state.before = link.run_id.clone().zip(link.client_id);
        let now = Instant::now();
        let cleanup = std::mem::take(&mut state.cleanup);
        let (mut releases, mut granted) = (0, Vec::new());
        for (release, until) in cleanup {
            if release.undoes_grant() {
                granted.push(release);
            } else if until.is_none_or(|until| until > now)
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
        let held_back = state.held_back.take();
        let missing = self.send_held_back(&mut state, link, held_back);
        drop(state);
        self.update_standing(releases);
        if self.kept_from().is_some() {
            // It grants nothing, but keeps the locks that are put back.
            self.tell_of_return();
        }
        self.give_up(missing);
        if let Some(is_late) = self.is_late.get() {
            granted.into_iter().for_each(|undo| is_late(self.voter, undo));
        }
    }

    fn note_longest(&self) -> Vec<u8> {
        let station = *self.standing.station.lock();
        scripts::note(&station.key(scripts::MAX_TTL), self.members.longest().get())
    }

    /// Sends what was held back, after what the node has missed and before all new operations. The connection leaves
    /// out what must not be asked any more. Returns the operations that were not sent, with the reason.
    fn send_held_back(
        &self,
        state: &mut NodeState,
        link: &Link,
        held_back: Option<(Instant, Vec<Arc<Operation>>)>,
    ) -> Vec<(Arc<Operation>, Absence)> {
        let Some((_, held_back)) = held_back else { return Vec::new() };
        let mut missing = Vec::new();
        for operation in held_back {
            let waits = self.right_on(state, &operation.key).refuses(&operation);
            let is_wanted = !operation.kind.is_proven() || operation.is_wanted(self.voter, &[]);
            if waits.is_some() || !is_wanted {
                // The node may still give the giver's lock back.
                if let Some(release) = operation.late_release() {
                    link.send(Queued::Operation(Arc::new(release)));
                }
            } else if link.send(Queued::Operation(operation.clone())) {
                continue;
            } else {
                self.clean_up_unsent(state, &operation);
            }
            missing.push((operation, waits.unwrap_or(Absence::Unproven)));
        }
        missing
    }

    /// Whether the node is expected to be admitted anew at once.
    pub(super) fn is_awaited(&self) -> bool {
        self.state.lock().held_back.is_some()
    }

    /// Gives up the operations that are held back, as the node is not admitted. Returns them with the reason.
    fn give_up_held_back(&self, state: &mut NodeState) -> Vec<(Arc<Operation>, Absence)> {
        let Some((_, held_back)) = state.held_back.take() else { return Vec::new() };
        held_back.iter().for_each(|operation| self.clean_up_unsent(state, operation));
        held_back.into_iter().map(|operation| (operation, Absence::Down)).collect()
    }

    /// Votes in the node's place on operations that it is not asked any more. Called without the mutex.
    fn give_up(&self, missing: Vec<(Arc<Operation>, Absence)>) {
        for (operation, why) in missing {
            operation.vote(self.voter, Vote::Missing(why));
        }
    }

    /// Notes whether the node votes or waits, now that it is connected.
    pub(super) fn update_standing(&self, releases: usize) {
        if self.standing.waits.load(Ordering::Acquire) {
            let wait = self.members.wait(self.index);
            let Wait { until, why } =
                wait.unwrap_or_else(|| Wait { until: None, why: "it waits".into() });
            return self.mark_down(why, until, Some(Fault::Quarantined));
        }
        if self.standing.jumped.load(Ordering::Acquire) {
            return self.mark_down(
                Fault::Clock.meaning().into(),
                self.clocks_until(),
                Some(Fault::Clock),
            );
        }
        if self.is_paused() {
            return self.mark_down(Fault::Paused.meaning().into(), None, Some(Fault::Paused));
        }
        let mut state = self.state.lock();
        state.reason.clear();
        (state.until, state.unfit) = (None, None);
        self.show_faults(&state);
        drop(state);
        self.metrics.up.set(1.0);
        self.tell_of_return();
        info!(node = %self.address, releases, "lock node is up");
    }

    fn tell_of_return(&self) {
        if let Some(came_back) = self.came_back.get() {
            came_back();
        }
    }

    /// Returns the end of the wait after a jump of the node's clock.
    fn clocks_until(&self) -> Option<tokio::time::Instant> {
        self.clocks.waits_until(self.index).map(Instant::timer)
    }

    /// Samples the clock of a node that may not vote yet: a jump that goes unseen would later pass for its time of
    /// day.
    pub(super) fn saw_look(self: &Arc<Node>, sent: Instant, look: &SelfReport) {
        let Some(time) = look.time.and_then(|time| i64::try_from(time).ok()) else { return };
        let mut clock = self.standing.clock.lock();
        let sight = clock.sample(sent, Instant::now(), time, self.drift_factor);
        drop(clock);
        if sight != Sight::Steady {
            self.saw_clock(Some(sight));
        }
    }

    /// Notes a sight of the node's clock. `None`: the node does not tell its TIME.
    pub(super) fn saw_clock(self: &Arc<Node>, sight: Option<Sight>) {
        let unwatched = sight.is_none();
        if self.standing.unwatched.swap(unwatched, Ordering::AcqRel) != unwatched {
            if unwatched {
                let fault = Fault::Unwatched;
                warn!(node = %self.address, fault = fault.as_str(), "lock node: {}", fault.meaning());
            }
            self.show_faults(&self.state.lock());
        }
        match sight {
            None | Some(Sight::Steady) => {}
            Some(Sight::SteppedBack(by)) => {
                self.metrics.clock_stepped_back.increment(1);
                warn!(
                    node = %self.address, by_ms = millis(by),
                    "the clock of a lock node was stepped back: what nobody gives back stays locked there for so much longer"
                );
            }
            Some(Sight::JumpedForward(by)) => {
                self.metrics.clock_jumped_forward.increment(1);
                let until = self.clocks.jumped(self.index);
                let waits_ms =
                    until.map(|until| millis(until.saturating_duration_since(Instant::now())));
                warn!(
                    node = %self.address, by_ms = millis(by), waits_ms,
                    "the clock of a lock node has jumped forward: it may have ended locks too early"
                );
                if until.is_some() {
                    if !self.standing.jumped.swap(true, Ordering::AcqRel) {
                        tokio::spawn(wait_for_clock(Arc::downgrade(self)));
                    }
                    self.update_standing(0);
                }
            }
        }
    }

    /// Returns what to send in place of an operation that the node has missed: a hand-over only gives back.
    fn as_late(&self, missed: Arc<Operation>) -> Option<Arc<Operation>> {
        match missed.kind {
            Kind::Release => Some(missed),
            _ => missed.late_release().map(Arc::new),
        }
    }

    /// Notes that the connection is gone. It may have ended before [`Node::connected`] took it, so that
    /// [`Node::connection_ended`] found no connection to drop.
    pub(super) fn disconnected(&self) {
        if self.state.lock().link.take().is_some() {
            self.mark_down("disconnected".into(), None, None);
        }
    }

    /// Fails at once all that was in flight; called by the connection's own task.
    pub(super) fn connection_ended(&self, leftover: Leftover) {
        match &leftover.reason {
            Closed::Silent(_) => self.metrics.errors_silence.increment(1),
            Closed::Garbage(_) => self.metrics.errors_reply.increment(1),
            Closed::Io(_) => self.metrics.errors_disconnect.increment(1),
            Closed::Unproven | Closed::Anew | Closed::Replica | Closed::Unused => {}
        }
        self.metrics.pace.reset();
        let mut state = self.state.lock();
        state.link = None;
        for operation in &leftover.sent {
            self.clean_up_sent(&mut state, operation);
        }
        let mut unsent = leftover.unsent;
        // These came when the connection took no more.
        unsent.extend(state.held_back.take().into_iter().flat_map(|(_, later)| later));
        state.held_back = Some((Instant::now(), unsent));
        let unsent = match leftover.reason.is_brief() {
            true => Vec::new(),
            false => self.give_up_held_back(&mut state),
        };
        let garbage = matches!(leftover.reason, Closed::Garbage(_)).then_some(Fault::Garbage);
        self.note_down(&mut state, leftover.reason.to_string(), None, garbage);
        drop(state);
        for operation in leftover.sent {
            operation.vote(self.voter, Vote::Missing(Absence::Disconnected));
        }
        self.give_up(unsent);
    }

    /// Notes why the node cannot be asked, and gives up what was held back for it.
    pub(super) fn mark_down(
        &self,
        reason: String,
        until: Option<tokio::time::Instant>,
        unfit: Option<Fault>,
    ) {
        let mut state = self.state.lock();
        let missing = self.give_up_held_back(&mut state);
        self.note_down(&mut state, reason, until, unfit);
        drop(state);
        self.give_up(missing);
    }

    /// Notes why the node cannot be asked, with one line in the log for each new reason.
    fn note_down(
        &self,
        state: &mut NodeState,
        reason: String,
        until: Option<tokio::time::Instant>,
        unfit: Option<Fault>,
    ) {
        state.until = until;
        if state.reason == reason {
            return;
        }
        (state.unfit, state.reason) = (unfit, reason);
        self.show_faults(state);
        let reason = state.reason();
        warn!(node = %self.address, %reason, "lock node is down");
        self.metrics.up.set(0.0);
    }

    /// Returns the node's present state.
    pub(super) fn status(&self) -> NodeStatus {
        let state = self.state.lock();
        let right = state.link.is_some().then(|| self.right(&state));
        let up = right == Some(Right::Vote);
        let (reason, unfit) = match right {
            Some(Right::Nothing(Absence::Unconfirmed)) => {
                (self.unconfirmed(), Some(Fault::Unconfirmed))
            }
            _ => (state.reason(), state.unfit),
        };
        let reason = (!up).then_some(reason);
        let pace = &self.metrics.pace;
        let slow = (up && pace.is_slow()).then_some(Fault::Slow);
        let found = self.found(&state).filter(|fault| Some(*fault) != unfit).chain(slow);
        let (found, too_slow) = (found.collect(), up && pace.is_too_slow());
        // Old measurements do not describe a node that is down.
        let measured = Some(&self.metrics).filter(|_| state.link.is_some());
        NodeStatus {
            address: self.address.to_string(),
            up,
            reason,
            unfit,
            found,
            too_slow,
            paused: self.is_paused(),
            round_trip: measured.and_then(|metrics| metrics.last_round_trip()),
            clock_ahead: measured.and_then(|metrics| metrics.last_offset()),
        }
    }

    /// Returns why votes of the connected Redis do not count.
    fn unconfirmed(&self) -> String {
        let why = self.address.problem().unwrap_or_else(|| "they were not heard lately".into());
        match self.address.cluster() {
            Some(_) => format!("not confirmed by its cluster: {why}"),
            None => format!("not confirmed by its Sentinels: {why}"),
        }
    }

    /// Notes the faults that an inspection has found, and logs each new one.
    pub(super) fn inspected(&self, inspected: Inspected) {
        let Inspected { faults: found, refusal, is_another, longest } = inspected;
        self.members.longest().heard_of(longest);
        let mut state = self.state.lock();
        if is_another && let Some(link) = &state.link {
            warn!(node = %self.address, "another server answers at its address, or it was emptied or a replica");
            link.end();
        }
        for fault in found.iter().filter(|fault| !state.found.contains(fault)) {
            warn!(node = %self.address, fault = fault.as_str(), "lock node is unfit: {}", fault.meaning());
        }
        state.found = found;
        self.note_refusal_in(&mut state, refusal);
    }

    /// Notes that the node calls itself a master, so that an earlier finding that it is a replica no longer holds.
    pub(super) fn is_no_replica(&self) {
        let mut state = self.state.lock();
        state.found.retain(|fault| *fault != Fault::Replica);
        self.show_faults(&state);
    }

    /// Notes whether the node carries out what locks need, and why not.
    pub(super) fn note_refusal(&self, refusal: Option<NodeRefusal>) {
        self.note_refusal_in(&mut self.state.lock(), refusal);
    }

    /// Notes whether the node carries out what locks need, and logs a change.
    fn note_refusal_in(&self, state: &mut NodeState, refusal: Option<NodeRefusal>) {
        let now = refusal.as_ref().map(|refusal| refusal.fault);
        match (&state.refuses, refusal) {
            (before, Some(NodeRefusal { fault, error })) if *before != Some(fault) => {
                warn!(node = %self.address, fault = fault.as_str(), error, "lock node is unfit: {}", fault.meaning());
            }
            (Some(_), None) => info!(node = %self.address, "lock node serves locks again"),
            _ => {}
        }
        state.refuses = now;
        self.show_faults(state);
    }

    /// Returns the node's faults.
    fn found(&self, state: &NodeState) -> impl Iterator<Item = Fault> {
        let unwatched = self.standing.unwatched.load(Ordering::Acquire);
        let found = state.found.iter().copied().chain(unwatched.then_some(Fault::Unwatched));
        found.chain(state.refuses)
    }

    fn show_faults(&self, state: &NodeState) {
        for (fault, gauge) in Fault::ALL.into_iter().zip(&self.metrics.faults) {
            let has = state.unfit == Some(fault)
                || fault == Fault::Unconfirmed && state.is_unconfirmed
                || self.found(state).any(|found| found == fault)
                || fault == Fault::Slow && self.metrics.pace.is_slow();
            gauge.set(f64::from(u8::from(has)));
        }
    }
}

impl NodeState {
    /// Returns why the node does not vote, and for how much longer.
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

/// Lets the node vote again once its clock has been steady for long enough.
async fn wait_for_clock(node: Weak<Node>) {
    loop {
        let Some(known) = node.upgrade() else { return };
        let Some(until) = known.clocks.waits_until(known.index) else {
            let jumped = &known.standing.jumped;
            jumped.store(false, Ordering::Release);
            // The clock may have jumped again before that store, in which case no other task waits for it.
            if known.clocks.waits_until(known.index).is_some() {
                match jumped.swap(true, Ordering::AcqRel) {
                    true => return,
                    false => continue,
                }
            }
            if known.state.lock().link.is_some() {
                known.update_standing(0);
            }
            return;
        };
        drop(known);
        sleep_until(until.timer()).await;
    }
}

/// Sends the refused releases again, once. The first new refusal starts the next round.
async fn ask_again(node: Weak<Node>) {
    sleep(ASK_AGAIN).await;
    if let Some(node) = node.upgrade() {
        node.release_refused();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;
    use crate::{
        config::Config,
        key::Token,
        lock::{
            Claim,
            address::connector_to_nodes,
            longest::LongestGrant,
            node::link::{Closed, JobQueue, LinkShared, Sender},
        },
    };

    fn a_node() -> Node {
        let text = "data: redis://127.0.0.1:1\nlocks: {nodes: [redis://127.0.0.1:2]}\n";
        let config = Config::parse(text, "f", &|_| None).unwrap().locks;
        let (addresses, connector) = (NodeAddress::all(&config), connector_to_nodes(&config));
        let longest = Arc::new(LongestGrant::new(config.max_ttl));
        let members =
            Arc::new(SharedMembers::new(&config, &addresses, &connector, longest.clone()));
        let clocks = Arc::new(Clocks::new(&config, longest));
        Node::new(addresses[0].clone(), connector, 0, &config, members, clocks)
    }

    fn a_link() -> Link {
        let shared = LinkShared {
            queue: Mutex::new(JobQueue::default()),
            pending: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
            ending: AtomicBool::new(false),
            ended: tokio::sync::Notify::new(),
        };
        Link { sender: Arc::new(Sender(Arc::new(shared))), client_id: None, run_id: None }
    }

    fn a_release() -> Arc<Operation> {
        let (key, token) = (Key::new(b"lock:", b"k"), Token::from("t"));
        Arc::new(Operation::new(Kind::Release, key, token, Duration::from_secs(1), Vec::new(), 1))
    }

    fn held_back(node: &Node) -> usize {
        node.state.lock().held_back.as_ref().map_or(0, |(_, held_back)| held_back.len())
    }

    #[test]
    fn what_comes_before_the_first_connection_waits_for_it() {
        let node = a_node();
        let release = a_release();
        node.submit(&release);
        assert_eq!((held_back(&node), &release.votes()[0]), (1, &Vote::Pending));
        // A node that cannot be reached is not waited for.
        node.mark_down("refused".into(), None, None);
        assert_eq!(held_back(&node), 0);
        assert_eq!(release.votes()[0], Vote::Missing(Absence::Down));
        node.submit(&a_release());
        assert_eq!(held_back(&node), 0);
    }

    #[test]
    fn what_a_hand_over_gives_back_may_outlast_the_next_holders_ttl() {
        let node = a_node();
        let (key, token, ttl) =
            (Key::new(b"lock:", b"k"), Token::from("t"), Duration::from_millis(1));
        let hands_over = Kind::HandOver { claim: Claim::new() };
        let operation = Arc::new(Operation::new(hands_over, key, token, ttl, Vec::new(), 1));
        let longest = Instant::now() + node.members.longest().get();
        let mut state = node.state.lock();
        node.clean_up_unsent(&mut state, &operation);
        assert!(state.cleanup[0].1.is_some_and(|until| until >= longest));
    }

    #[test]
    fn what_comes_while_a_connection_ends_waits_for_the_next_one() {
        let (node, link) = (a_node(), a_link());
        node.state.lock().link = Some(link.clone());
        link.end();
        node.submit(&a_release());
        assert_eq!(held_back(&node), 1);
        let leftover =
            Leftover { sent: Vec::new(), unsent: vec![a_release()], reason: Closed::Anew };
        node.connection_ended(leftover);
        assert_eq!(held_back(&node), 2);
        // A node that is gone is not waited for.
        let leftover = Leftover { sent: Vec::new(), unsent: Vec::new(), reason: Closed::Replica };
        node.connection_ended(leftover);
        assert_eq!(held_back(&node), 0);
    }
}
