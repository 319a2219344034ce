//! Which nodes may vote: docs/design/members.md.
//!
//! **Seats.** All proxies agree upon a [`Deployment`]: an id, an epoch, and which node sits on each seat, the place
//! of a node in `locks.nodes`. The agreement lies on the nodes themselves, as markers ([`super::marker`]). Only a
//! node on its seat votes: the script of each vote compares the epoch with the marker in the memory that votes, and a
//! node that has lost its memory has no marker. Any other node that a proxy meets at a seat waits until all locks
//! that its memory may lack have run out, and then gets the seat.
//!
//! **One step at a time.** A seat passes from one identity to the next in two steps, each with its own epoch: first
//! the next node waits there, later it votes. Two quorums that grant have a seat in common. In neighbouring epochs,
//! that seat either has the same identity, or in one of them grants nothing and so is in none of its quorums. So
//! votes of both epochs may meet in one operation without harm. Another proxy may still reach the seat's earlier node
//! (an address that leads to another server now). But once a quorum has accepted the first step, every quorum with
//! the earlier node contains a node that refuses the earlier epoch. A grant made with the earlier node before that
//! runs out within the longest PX ever stored, so the wait begins after the first step. Meanwhile locks are put back
//! on the waiting node, and its votes on renewals count, proven like other votes: a quorum that keeps a lock with its
//! help, and any quorum that grants, have in common a node that has the lock. If fewer than a quorum have kept their
//! memory, there is no first step: each other node waits from when it was first seen, by a note on it, and those that
//! have waited count as consenting. If a single voter's node was promoted, and has waited for
//! [`CONFIRM`](crate::lock::address::CONFIRM), it keeps the locks that this proxy knows to be valid for the rest of
//! its wait: no other node could confirm them. (A gap remains if most addresses lead to other servers at once, the old
//! servers live on, and a proxy keeps its connections to them.)
//!
//! **Rounds.** Markers are written by [`super::round`]: Paxos over the seats, with the marker as its register. A
//! proxy that wants a change reads all nodes and takes the newest marker, that of the largest ballot, which contains
//! all that was committed. It gets promises for a larger ballot from a quorum, and writes its change of the marker
//! there. A node promises and accepts only while its marker is the one that was read. If two proxies do so at once,
//! one of them finds a larger ballot, or another marker, and reads again; two quorums never accept different markers
//! of one epoch. A proxy that dies in the middle leaves a newer marker on fewer than a quorum. The next proxy
//! completes that change, or overwrites it with a larger ballot. No proxy has used that marker meanwhile: proxies use
//! only a marker that a quorum has accepted under one ballot. A node that has lost its promises is no acceptor before
//! it has waited for longer than any round counts ([`FLOOR`]).
//!
//! **In a proxy.** A proxy has one deployment at a time, and learns a newer one when a node refuses its epoch or
//! shows a newer one. Before any node gets requests of the new epoch, a node that has lost its seat in it gets only
//! requests with a marker that it cannot prove. If a connection to such a node was open, all connections end and are
//! made anew ([`Admissions::generation`]), so that no operation has its vote and one of the new epoch. If that
//! connection had ended before, operations with its vote are no longer sent ([`Told::seatings`]). A node that kept
//! its memory and missed an epoch gets the marker before it is admitted.

use std::{
    borrow::Cow,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::{Notify, watch},
    time::Instant,
};
use tracing::{info, warn};

use super::{
    fault::Fault,
    marker::{Deployment, Identity, KnownSet, Marker, NOTE, Seat},
    refusal::{FORGOTTEN, Place, refusal},
    round::{self, MarkerWrite, Way},
    seats::{Accepted, Survey, Waiting, has_joined},
    self_report::SelfReport,
    standing::{NodeStanding, Told},
};
use crate::{
    clock::millis,
    config::LocksConfig,
    lock::{
        address::NodeAddress,
        jitter::jittered,
        longest::LongestGrant,
        scripts::Dialect,
        voters::{SeatPlace, Voters},
    },
    net::Connector,
    sync::Mutex,
};

/// The shortest wait: longer than any round counts, so that a node that lost a promise is not asked again in the same
/// round.
const FLOOR: Duration = Duration::from_secs(2);
/// The allowance for clocks that count in whole milliseconds.
const ROUNDING: Duration = Duration::from_millis(2);
/// The pause before a node is told again that it waits, if it has not accepted that.
const TRIED_EVERY: Duration = Duration::from_secs(3);
/// The pause before all nodes are asked again, if asking did not help.
const ASK_EVERY: Duration = Duration::from_millis(500);
/// The pause before all nodes are asked once more for a newer epoch that a node knows of, without which no node votes
/// here. Jitter keeps proxies that write that epoch at the same time from hindering each other again.
const ASK_SOON: Duration = Duration::from_millis(60);

/// The pause before nodes that were away are asked again what others may have forgotten.
const ASK_OTHERS_EVERY: Duration = Duration::from_secs(3);

/// Why no node votes if all of `locks.nodes` have lost their memory while `locks.next_nodes` are listed.
const UNTOLD: &str = "no node of locks.nodes knows any more whether locks.next_nodes have taken their place: where they \
    have not, take locks.next_nodes out of the file, and send SIGHUP";

/// A text with which no marker begins.
const NOTHING: &[u8] = b"-";

/// The verdict on a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::lock) enum Judgement {
    /// The node votes, or waits on its seat: its [`NodeStanding`] says which. Carries the generation of connections.
    Admitted(u64),
    /// The node has kept its memory and missed an epoch: the marker must be written on it first.
    Behind(Box<MarkerWrite>),
    /// A note must be written on the node: it waits from now on, in this epoch.
    Note(u64),
    /// All nodes must be asked.
    Ask,
    /// The node does not vote yet: it must be looked at again.
    Waits(Wait),
    /// The node cannot vote as it is.
    Refused(Fault, String),
}

/// Why a node does not vote yet. The words stay the same during the wait.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::lock) struct Wait {
    /// The end of the wait, if that is known.
    pub(in crate::lock) until: Option<Instant>,
    pub(in crate::lock) why: String,
}

#[cfg(test)]
thread_local! {
    /// A fault that tests plant: a node without a marker is new, and votes.
    pub(crate) static NEW_IF_BARE: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// What one proxy knows of all nodes.
pub(in crate::lock) struct Admissions {
    quarantine: bool,
    allow_shared_instance: bool,
    drift_factor: f64,
    longest: Arc<LongestGrant>,
    prefix: String,
    voters: Voters,
    blank: Deployment,
    ways: Vec<Way>,
    standings: Vec<Arc<NodeStanding>>,
    state: Mutex<AdmissionState>,
    generation: AtomicU64,
    learned: AtomicU64,
    changed: watch::Sender<()>,
    /// Notified when a node's marker says that its set is sealed or left, or is another set than this proxy's.
    pub(in crate::lock) given_up: Notify,
    /// Whether this proxy may write that nodes sit on other seats (`writes`), and that a deployment is new
    /// (`begins`). While the file lists two sets, it begins no deployment, and writes only once it knows which set
    /// votes.
    writes: AtomicBool,
    begins: AtomicBool,
    /// Locked while one task asks all nodes, on behalf of all tasks.
    asking: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct AdmissionState {
    /// The deployment that a quorum has accepted, as far as this proxy knows.
    current: Option<Arc<Accepted>>,
    /// The result of the last time that all nodes were asked.
    survey: Option<Survey>,
    asked: Option<Instant>,
    /// The newest epoch for which all nodes were asked out of turn.
    asked_for: u64,
    /// The longest PX that was stored, as far as nodes have reported.
    longest: Duration,
    /// Another deployment that a quorum has now, and since when this proxy has seen it.
    other: Option<(String, Instant)>,
    /// The id of a deployment, and the newest epoch in which its nodes showed that this set is sealed, left or
    /// followed by another.
    given_up: Option<(String, u64)>,
    seats: Vec<SeatState>,
}

impl AdmissionState {
    /// Notes whether a node shows that this set is sealed, left or followed by another.
    fn saw(&mut self, look: &SelfReport, prefix: &str) {
        let current = self.current.as_ref().map(|current| &current.deployment);
        let is_ours = |theirs: &&Deployment| {
            theirs.prefix == prefix && current.is_none_or(|ours| ours.id == theirs.id)
        };
        let theirs = look.marker().map(|marker| &marker.deployment).filter(is_ours);
        let Some(theirs) = theirs
            .filter(|theirs| !theirs.stands() || current.is_some_and(|ours| ours.set < theirs.set))
        else {
            return;
        };
        let is_newer = |(id, epoch): &(String, u64)| *id != theirs.id || *epoch < theirs.epoch;
        if self.given_up.as_ref().is_none_or(is_newer) {
            self.given_up = Some((theirs.id.clone(), theirs.epoch));
        }
    }

    /// Whether this set is given up, as far as is known: another set may vote. Nodes that have forgotten that must
    /// then get no seats in this set.
    fn is_given_up(&self, newest: Option<&Accepted>) -> bool {
        let known = self.current.as_deref().or(newest);
        self.given_up.as_ref().is_some_and(|(id, epoch)| {
            known.is_none_or(|known| known.deployment.id == *id && known.deployment.epoch < *epoch)
        })
    }

    /// Returns the deployment to which nodes must belong, or `None` if it is unknown.
    fn belongs_to(&self) -> Option<Cow<'_, str>> {
        match (&self.current, &self.survey) {
            (Some(current), _) => Some(Cow::Borrowed(&current.deployment.id)),
            (None, Some(survey)) => match (&survey.newest, survey.ids.len()) {
                (Some(newest), _) => Some(Cow::Borrowed(&newest.deployment.id)),
                (None, 0 | 1) => None,
                (None, _) => {
                    Some(format!("one that a quorum has ({} are there)", survey.ids.len()).into())
                }
            },
            (None, None) => None,
        }
    }
}

#[derive(Default)]
struct SeatState {
    /// The instance that is connected, or about to be.
    run_id: Option<String>,
    /// The identity that votes or waits over the connection that is open, or about to be.
    linked: Option<Identity>,
    /// The time when the last connection that could vote ended.
    left: Option<Instant>,
    vigil: Option<Vigil>,
    /// The value of [`Admissions::learned`] when the seat's last change was learned.
    seated: u64,
    /// The node that was last told that it waits there, and when.
    tried: Option<(Identity, Instant)>,
}

impl SeatState {
    /// Whether this node was told just now that it waits there. If it has not accepted that, it may refuse writes,
    /// and each epoch that is written in vain stops all other nodes for a moment.
    fn was_tried(&self, look: &SelfReport, now: Instant) -> bool {
        self.tried.as_ref().is_some_and(|(who, at)| {
            look.identity().as_ref() == Some(who)
                && now.saturating_duration_since(*at) < TRIED_EVERY
        })
    }
}

/// A waiting node, as this proxy has seen it.
struct Vigil {
    who: Identity,
    note: String,
    /// The time when this proxy first saw it; by then it had waited for `before` already.
    since: Instant,
    before: Duration,
}

impl Admissions {
    pub(in crate::lock) fn new(
        config: &LocksConfig,
        addresses: &[Arc<NodeAddress>],
        connector: &Connector,
        longest: Arc<LongestGrant>,
    ) -> Admissions {
        let dialect = Dialect::of(config);
        let voters = Voters::new(config);
        let way = |(seat, address): (usize, &Arc<NodeAddress>)| Way {
            address: address.clone(),
            connector: connector.clone(),
            seat: voters.place(seat),
        };
        Admissions {
            quarantine: config.quarantine,
            allow_shared_instance: config.allow_shared_instance,
            drift_factor: config.drift_factor,
            longest,
            prefix: config.prefix.clone(),
            blank: Deployment::new(config),
            ways: addresses.iter().enumerate().map(way).collect(),
            voters,
            state: Mutex::new(AdmissionState {
                seats: addresses.iter().map(|_| SeatState::default()).collect(),
                ..AdmissionState::default()
            }),
            standings: addresses.iter().map(|_| Arc::new(NodeStanding::new(dialect))).collect(),
            generation: AtomicU64::new(0),
            learned: AtomicU64::new(0),
            changed: watch::Sender::new(()),
            given_up: Notify::new(),
            writes: AtomicBool::new(config.next_nodes.is_empty()),
            begins: AtomicBool::new(config.next_nodes.is_empty()),
            asking: tokio::sync::Mutex::new(()),
        }
    }

    /// Returns the standing that the connection to node `index` obeys.
    pub(in crate::lock) fn standing(&self, index: usize) -> Arc<NodeStanding> {
        self.standings[index].clone()
    }

    /// Returns the place of a seat among those of its voter.
    pub(in crate::lock) fn place(&self, seat: usize) -> &SeatPlace {
        &self.ways[seat].seat
    }

    /// Returns the voter to which a seat belongs.
    pub(in crate::lock) fn voter(&self, seat: usize) -> usize {
        self.voters.of(seat)
    }

    /// Returns the generation of connections: those of an earlier generation must end.
    pub(in crate::lock) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Returns how many times this proxy has learned a deployment.
    pub(in crate::lock) fn learned(&self) -> u64 {
        self.learned.load(Ordering::Acquire)
    }

    /// Returns the set of nodes that votes here, or `None` if it is unknown.
    pub(in crate::lock) fn set(&self) -> Option<KnownSet> {
        let state = self.state.lock();
        let Deployment { id, set, .. } = &state.current.as_ref()?.deployment;
        Some(KnownSet { id: id.clone(), set: *set })
    }

    /// Sets whether this proxy may write that nodes sit on other seats, and that a deployment is new.
    pub(in crate::lock) fn allow_writes(&self, writes: bool, begins: bool) {
        self.writes.store(writes, Ordering::Release);
        self.begins.store(begins, Ordering::Release);
    }

    /// Forgets that this set was to be given up, as the operator no longer lists another. If it was, the nodes'
    /// markers say so again.
    pub(in crate::lock) fn note_kept(&self) {
        self.state.lock().given_up = None;
    }

    /// Returns a receiver that is notified when the deployment changes.
    pub(in crate::lock) fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// Returns the identity that votes or waits over the connection to node `index`, or `None` if identities are not
    /// compared.
    pub(in crate::lock) fn linked(&self, index: usize) -> Option<Identity> {
        self.state.lock().seats[index].linked.clone()
    }

    /// Returns the longest that any grant may last. If all nodes forget it, this proxy remembers.
    pub(in crate::lock) fn longest(&self) -> &LongestGrant {
        &self.longest
    }

    /// Notes how long grants may last, as a node reports it, unless the node belongs to another deployment.
    fn heed(&self, current: Option<&Accepted>, look: &SelfReport) {
        let is_ours = |marker: &Marker| {
            let theirs = &marker.deployment;
            theirs.prefix == self.prefix
                && current.is_none_or(|current| current.deployment.id == theirs.id)
        };
        if look.marker().is_none_or(is_ours) {
            self.longest.heard_of(look.longest());
        }
    }

    /// Returns the marker that node `index` must have, or `None` if markers are not compared.
    pub(in crate::lock) fn told(&self, index: usize) -> Option<String> {
        let state = self.state.lock();
        state.seats[index].linked.as_ref()?;
        Some(state.current.as_ref()?.deployment.told(index))
    }

    /// Returns why node `index`, which is connected, does not vote yet.
    pub(in crate::lock) fn wait(&self, index: usize) -> Option<Wait> {
        let state = self.state.lock();
        let seat = &state.seats[index];
        let deployment = &state.current.as_ref()?.deployment;
        if seat.linked.as_ref().is_none_or(|who| deployment.names(index, who)) {
            return None;
        }
        let vigil = seat.vigil.as_ref()?;
        let until = vigil.since + self.enough(&state, Some(index)).saturating_sub(vigil.before);
        Some(Wait { until: Some(until), why: self.forgotten(&state, index) })
    }

    /// Notes that the connection to node `index` has ended; `voted`: whether it could vote.
    pub(in crate::lock) fn left(&self, index: usize, voted: bool) {
        let mut state = self.state.lock();
        let seat = &mut state.seats[index];
        (seat.run_id, seat.linked) = (None, None);
        if voted {
            seat.left = Some(Instant::now());
        }
    }

    /// Judges whether node `index` may vote, by its report on itself.
    pub(in crate::lock) fn judge(&self, index: usize, look: &SelfReport) -> Judgement {
        let mut state = self.state.lock();
        let state = &mut *state;
        state.saw(look, &self.prefix);
        self.heed(state.current.as_deref(), look);
        state.seats[index].run_id.clone_from(&look.run_id);
        if !look.is_master {
            return Judgement::Refused(Fault::Replica, Fault::Replica.meaning().into());
        }
        if !self.allow_shared_instance
            && let Some(twin) = twin(&state.seats, index)
        {
            let why = format!("it is the same instance as node {}; each must be its own", twin + 1);
            return Judgement::Refused(Fault::SharedInstance, why);
        }
        if !self.quarantine {
            return Judgement::Admitted(self.generation());
        }
        let Some(who) = look.identity() else {
            return Judgement::Refused(Fault::Unidentified, Fault::Unidentified.meaning().into());
        };
        if let Some(current) = state.current.clone()
            && let Some(home) = self.home(&current.deployment, index, look)
        {
            self.ways[index].address.move_to(home - self.voters.beside(index).start);
            let why = "the lock nodes have it at another seat of its cluster".into();
            return Judgement::Waits(Wait { until: None, why });
        }
        if let Some((fault, why)) = self.refusal(state, index, look) {
            return match &state.other {
                _ if self.may_ask(state) => Judgement::Ask,
                // Locks granted under the earlier deployment may still be held.
                Some((id, since)) if look.marker().is_some_and(|m| m.deployment.id == *id) => {
                    Judgement::Waits(Wait { until: Some(*since + self.enough(state, None)), why })
                }
                _ => Judgement::Refused(fault, why),
            };
        }
        let Some(current) = state.current.clone() else {
            return self.judge_unknown(state, index, look);
        };
        let deployment = &current.deployment;
        let joined = has_joined(deployment, index, look);
        if let Some(marker) = look.marker()
            && (joined || deployment.names(index, &who))
        {
            let theirs = &marker.deployment;
            if *theirs == *deployment {
                // The node must not be admitted before its wait has begun.
                if joined && self.remaining(state, index, look, Instant::now()).is_none() {
                    return Judgement::Note(deployment.epoch);
                }
                state.seats[index].linked = Some(who);
                self.tell(index, deployment, self.learned(), self.seatings(state));
                let longest = millis(marker.longest);
                self.standings[index].longest.store(longest, Ordering::Relaxed);
                return Judgement::Admitted(self.generation());
            }
            if theirs.epoch > deployment.epoch {
                // No node counts here until the newer epoch is learned, so all nodes are asked for it at once, even
                // if another proxy wrote it while this one was asking.
                let is_new = theirs.epoch > state.asked_for;
                if is_new || state.asked.is_none_or(|asked| asked.elapsed() >= jittered(ASK_SOON)) {
                    state.asked_for = theirs.epoch.max(state.asked_for);
                    return Judgement::Ask;
                }
                return self.ask_or(state, "it knows of a newer epoch");
            }
            if joined || theirs.names(index, &who) {
                if look.promised > current.ballot {
                    return self.ask_or(state, "another epoch is being written");
                }
                let (accepted, longest) = ((*current).clone(), state.longest);
                let (seat, is_admitted, joins) = (index, false, false);
                let write = MarkerWrite { accepted, seat, longest, is_admitted, joins, note: NOTE };
                return Judgement::Behind(Box::new(write));
            }
        }
        self.judge_stranger(state, index, look)
    }

    /// Returns the other seat of its voter on which the deployment has the node that this proxy met on `index`.
    /// Proxies find the shards of a cluster by themselves, and may differ.
    fn home(&self, deployment: &Deployment, index: usize, look: &SelfReport) -> Option<usize> {
        let beside = self.voters.beside(index);
        let home = deployment.seat_of(beside, look.run_id.as_deref()?)?;
        (home != index).then_some(home)
    }

    /// Judges a node while this proxy knows no deployment that a quorum has accepted.
    fn judge_unknown(
        &self,
        state: &mut AdmissionState,
        index: usize,
        look: &SelfReport,
    ) -> Judgement {
        if state.survey.is_none() || self.may_ask(state) {
            return Judgement::Ask;
        }
        self.judge_stranger(state, index, look)
    }

    /// Judges a node without a seat.
    fn judge_stranger(
        &self,
        state: &mut AdmissionState,
        index: usize,
        look: &SelfReport,
    ) -> Judgement {
        if let Some(generation) = self.admit_alone(state, index, look) {
            return Judgement::Admitted(generation);
        }
        let covered = state.survey.as_ref().is_some_and(|survey| survey.is_covered(&self.voters));
        let known =
            state.current.as_deref().or(state.survey.as_ref().and_then(|s| s.newest.as_ref()));
        let sits = known.map(|known| &known.deployment.seats[index]);
        // First the node is given a place to wait, which takes the seat from its earlier node.
        if sits.is_some() && (covered || self.may_know_more(state, index)) {
            return self.ask_or(state, "it is given its seat");
        }
        let survey = state.survey.as_ref();
        if survey.is_some_and(|s| s.intact[index]) {
            let why = match self.voters.beside(index).len() {
                1 => "too few other nodes have kept their memory",
                // A running proxy knows the agreement, and goes on.
                _ => {
                    "another shard is away or has forgotten, and until it votes a proxy that was started meanwhile does not learn what the lock nodes have agreed upon"
                }
            };
            return self.ask_or(state, why);
        }
        let epoch = known.map_or(0, |known| known.deployment.epoch);
        let nobody_knows = survey.is_some_and(|survey| survey.newest.is_none());
        match self.remaining(state, index, look, Instant::now()) {
            None => Judgement::Note(epoch),
            Some(Duration::ZERO) => {
                let why = match nobody_knows && !self.begins.load(Ordering::Acquire) {
                    true => UNTOLD,
                    false => "its wait is over, but too few other nodes can be asked",
                };
                self.ask_or(state, why)
            }
            Some(_) if self.may_know_more(state, index) => Judgement::Ask,
            Some(left) => {
                let is_blank = state.survey.as_ref().is_some_and(|survey| survey.is_blank);
                let why = if is_blank {
                    "no node has a marker; where the deployment is new: lockgate init FILE".into()
                } else if self.is_alone() {
                    self.forgotten(state, index)
                } else {
                    // Its wait counts from the first step: until then, another proxy may have votes of the server
                    // that had the seat.
                    let why = self.forgotten(state, index);
                    format!(
                        "{why}; if enough other lock nodes vote earlier, its wait begins anew then"
                    )
                };
                Judgement::Waits(Wait { until: Some(Instant::now() + left), why })
            }
        }
    }

    /// Whether there is only one voter, so that no other could give a successor a place to wait.
    pub(in crate::lock) fn is_alone(&self) -> bool {
        self.voters.count() == 1
    }

    /// Admits a stranger of a single voter that has a copy of the marker. While it waits, it keeps the locks that
    /// this proxy knows to be held: see the head of this module. Returns the generation of connections, or `None` if
    /// the node must not be admitted yet.
    fn admit_alone(
        &self,
        state: &mut AdmissionState,
        index: usize,
        look: &SelfReport,
    ) -> Option<u64> {
        let (current, who) = (state.current.clone()?, look.identity()?);
        let is_copy = look.marker().is_some_and(|m| m.deployment == current.deployment);
        if !self.is_alone() || !is_copy {
            return None;
        }
        // The earlier Redis may still be reachable, and grant what is renewed here. For how long is known only of a
        // node that Sentinels or a cluster name.
        let confirm = self.ways[index].address.confirm();
        let settled = confirm.mul_f64(1.0 + self.drift_factor) + ROUNDING;
        let left = self.remaining(state, index, look, Instant::now())?;
        let waited = self.enough(state, Some(index)).saturating_sub(left);
        if confirm.is_zero() || waited < settled || left.is_zero() {
            return None;
        }
        state.seats[index].linked = Some(who);
        let standing = &self.standings[index];
        standing.waits.store(true, Ordering::Release);
        let marker = standing.encode(current.deployment.told(index).as_bytes());
        let (learned, seatings) = (self.learned(), self.seatings(state));
        standing.told.store(Arc::new(Told { marker, learned, seatings }));
        Some(self.generation())
    }

    fn ask_or(&self, state: &AdmissionState, why: &str) -> Judgement {
        if self.may_ask(state) {
            return Judgement::Ask;
        }
        Judgement::Waits(Wait { until: None, why: why.into() })
    }

    /// Whether all nodes may be asked, as they were not asked just now.
    fn may_ask(&self, state: &AdmissionState) -> bool {
        state.asked.is_none_or(|asked| asked.elapsed() >= ASK_EVERY)
    }

    /// Whether to ask again those nodes that could tell how long this one must wait, but were away when all were
    /// asked.
    fn may_know_more(&self, state: &AdmissionState, index: usize) -> bool {
        let all_know =
            state.survey.as_ref().is_some_and(|survey| survey.others_know(&self.voters, index));
        !all_know && state.asked.is_none_or(|asked| asked.elapsed() >= ASK_OTHERS_EVERY)
    }

    /// Returns the rest of a stranger's wait, or `None` if no note of its wait is on the node yet.
    fn remaining(
        &self,
        state: &mut AdmissionState,
        index: usize,
        look: &SelfReport,
        now: Instant,
    ) -> Option<Duration> {
        #[cfg(test)]
        if NEW_IF_BARE.get() && look.is_bare() {
            return Some(Duration::ZERO);
        }
        let who = look.identity()?;
        #[cfg(feature = "planted")]
        if look.is_bare() && std::env::var("LOCKGATE_PLANT").is_ok_and(|fault| fault == "blank") {
            return Some(Duration::ZERO);
        }
        let newest = state.survey.as_ref().and_then(|survey| survey.newest.as_ref());
        let known = state.current.as_deref().or(newest);
        let needed = known.map_or(0, |known| match known.deployment.seats[index] {
            Seat::Blank(since) | Seat::Waiting(_, since) => since,
            Seat::Filled(_) => known.deployment.epoch,
        });
        let note = look.note().filter(|note| note.who == who && note.epoch >= needed)?;
        let by_node = match look.time {
            Some(time) if note.since > 0 => Duration::from_micros(time.saturating_sub(note.since)),
            _ => Duration::ZERO,
        };
        let enough = self.enough(state, Some(index));
        let seat = &mut state.seats[index];
        let mut before = by_node;
        match &seat.vigil {
            Some(vigil) if vigil.who == who && vigil.note == look.note => {
                // The proxy's own clock counts on from what it saw first: the node's may jump.
                let waited = vigil.before + now.saturating_duration_since(vigil.since);
                return Some(enough.saturating_sub(waited));
            }
            Some(vigil) if vigil.who == who => {
                let waited = vigil.before + now.saturating_duration_since(vigil.since);
                before = before.min(waited);
            }
            _ => {}
        }
        if let Some(left) = seat.left {
            before = before.min(now.saturating_duration_since(left));
        }
        seat.vigil = Some(Vigil { who, note: look.note.clone(), since: now, before });
        Some(enough.saturating_sub(before))
    }

    /// Returns the time after which no lock is held any more that the node on seat `index` may have forgotten;
    /// without `index`: that any node may have.
    fn enough(&self, state: &AdmissionState, index: Option<usize>) -> Duration {
        let all_know = index.is_some_and(|index| {
            state.survey.as_ref().is_some_and(|survey| survey.others_know(&self.voters, index))
        });
        let longest = if all_know { state.longest } else { state.longest.max(self.longest.get()) };
        // Another proxy may not have heard of a failover yet.
        let all = || self.ways.iter().map(|way| way.address.confirm()).max().unwrap_or_default();
        let confirm = index.map_or_else(all, |index| self.ways[index].address.confirm());
        let longest = longest + confirm;
        // A fast clock measures the time too short.
        (longest.mul_f64(1.0 + self.drift_factor) + ROUNDING).max(FLOOR)
    }

    /// Says why a node that may have forgotten locks waits, and whether its wait may turn out shorter.
    fn forgotten(&self, state: &AdmissionState, index: usize) -> String {
        let survey = state.survey.as_ref();
        let all_know = survey.is_some_and(|survey| survey.others_know(&self.voters, index));
        match all_know || self.longest.get() <= state.longest {
            true => FORGOTTEN.into(),
            false => {
                format!("{FORGOTTEN}; less, once all other lock nodes tell which TTLs were stored")
            }
        }
    }

    /// Returns the time after which no lock is held any more that any node may have forgotten.
    pub(in crate::lock) fn longest_wait(&self) -> Duration {
        self.enough(&self.state.lock(), None)
    }

    /// Finds the fault in a node's marker that keeps it out.
    fn refusal(
        &self,
        state: &AdmissionState,
        index: usize,
        look: &SelfReport,
    ) -> Option<(Fault, String)> {
        let ours = state.current.as_ref().map(|current| &current.deployment);
        if let Some(theirs) = look.marker().map(|marker| &marker.deployment) {
            // A node that has missed an epoch is not refused: it gets the newest marker.
            if ours.is_some_and(|ours| theirs.id == ours.id && theirs.epoch < ours.epoch) {
                return None;
            }
            let is_other_set =
                ours.is_some_and(|ours| theirs.id == ours.id && theirs.set != ours.set);
            if !theirs.stands() || is_other_set {
                self.given_up.notify_one();
                return Some((Fault::Changing, Fault::Changing.meaning().into()));
            }
        }
        let place = Place { index, voters: &self.voters, prefix: &self.prefix };
        refusal(&place, look, state.belongs_to().as_deref())
    }

    /// Asks all nodes, learns the deployment that a quorum has accepted, and writes the change that is due. If
    /// another task is doing so, only waits until it has.
    pub(in crate::lock) async fn ask(&self) {
        let Ok(_asking) = self.asking.try_lock() else {
            drop(self.asking.lock().await);
            return;
        };
        let known = self.state.lock().current.clone();
        let id = known.as_ref().map(|known| known.deployment.id.as_str());
        let set = known.as_ref().map(|known| known.deployment.set);
        let surveyed = |looks: &[Option<SelfReport>], gone: &[bool]| {
            Survey::of_set(set, (&self.voters, &self.prefix), looks, gone, id)
        };
        // If a quorum has a newer deployment than the known one, that is all that is needed: slow nodes are not
        // waited for.
        let enough = |looks: &[Option<SelfReport>]| {
            let committed = surveyed(looks, &[]).committed;
            committed.is_some_and(|committed| {
                known.as_ref().is_none_or(|known| {
                    let (known, theirs) = (&known.deployment, &committed.deployment);
                    theirs.id == known.id && theirs.epoch > known.epoch
                })
            })
        };
        let all = round::ask_all(&self.ways, enough).await;
        let looks = round::looks(&all);
        let gone = self.gone(&looks);
        let survey = surveyed(&looks, &gone);
        let (plan, longest) = {
            let mut state = self.state.lock();
            let state = &mut *state;
            state.asked = Some(Instant::now());
            state.longest = state.longest.max(survey.longest);
            looks.iter().flatten().for_each(|look| self.heed(known.as_deref(), look));
            state.survey = Some(survey.clone());
            let now = Instant::now();
            if let Some(committed) = &survey.committed
                && self.take_as_ours(state, &committed.deployment.id, now)
            {
                self.learn(state, committed);
            }
            // A shard that is away must not stop the others.
            if state.current.is_none()
                && self.is_alone()
                && let Some(accepted) = survey.of_those_there(&looks)
            {
                self.learn(state, accepted);
            }
            // Slow nodes were not waited for, but a node that does not vote yet needs their knowledge, too.
            if known.is_none() && state.current.is_some() {
                state.asked = None;
            }
            if known.is_some() && enough(&looks) {
                state.asked = None;
                return;
            }
            let differs = state.current.as_ref().is_some_and(|current| {
                survey.ours.as_ref().is_some_and(|ours| *ours != current.deployment.id)
            });
            if differs {
                return;
            }
            let mut waiting = Vec::new();
            for (seat, look) in looks.iter().enumerate() {
                let waits = self.waiting(state, seat, look.as_ref(), now);
                let in_vain = look.as_ref().is_some_and(|look| {
                    let newest = survey.newest.as_ref();
                    let joined =
                        newest.is_some_and(|newest| has_joined(&newest.deployment, seat, look));
                    !joined && state.seats[seat].was_tried(look, now)
                });
                waiting.push(if in_vain { Waiting::Unknown } else { waits });
            }
            let remembered = state.current.as_ref().map(|current| &current.deployment);
            let plan =
                survey.plan(&self.voters, &looks, &waiting, remembered, || self.blank.clone());
            // If no node still knows the longest PX, it may have been as long as is allowed.
            let nobody_knows = survey.newest.is_none();
            let may = if nobody_knows { &self.begins } else { &self.writes };
            looks.iter().flatten().for_each(|look| state.saw(look, &self.prefix));
            let is_given_up = state.is_given_up(survey.newest.as_ref());
            let plan = plan.filter(|_| may.load(Ordering::Acquire) && !is_given_up);
            for seat in plan.iter().flat_map(|plan| plan.joining.iter().copied()) {
                let who = looks[seat].as_ref().and_then(SelfReport::identity);
                state.seats[seat].tried = who.map(|who| (who, now));
            }
            let longest =
                if nobody_knows { state.longest.max(self.longest.get()) } else { state.longest };
            (plan, longest)
        };
        let Some(plan) = plan else { return };
        let are_enough = |seats: &[usize]| plan.is_quorum(&self.voters, seats);
        let done = round::carry_out(all, &plan, &survey.promised, longest, are_enough).await;
        if let Some(accepted) = done {
            let mut state = self.state.lock();
            state.longest = state.longest.max(longest);
            // The next proxy that asks finds a quorum that agrees, or asks on.
            self.learn(&mut state, &accepted);
            // The survey dates from before the round.
            state.asked = None;
        }
    }

    /// Returns, for each seat, whether it has been without a node for so long that nothing granted there counts any
    /// more. Only a seat of a cluster can be, if a majority of the cluster's masters says that no shard is there.
    fn gone(&self, looks: &[Option<SelfReport>]) -> Vec<bool> {
        let state = self.state.lock();
        let enough = self.enough(&state, None);
        let ways = self.ways.iter().zip(looks);
        ways.map(|(way, look)| look.is_none() && way.address.gone_for() > enough).collect()
    }

    /// Returns whether a deployment that a quorum has accepted is this proxy's from now on. A deployment other than
    /// the known one becomes so once all locks granted under the known one have run out.
    fn take_as_ours(&self, state: &mut AdmissionState, id: &str, now: Instant) -> bool {
        match &state.current {
            Some(current) if current.deployment.id != id => {}
            _ => {
                state.other = None;
                return true;
            }
        }
        let since = match &state.other {
            Some((other, since)) if other == id => *since,
            _ => {
                state.other = Some((id.to_owned(), now));
                now
            }
        };
        now.saturating_duration_since(since) >= self.enough(state, None)
    }

    fn waiting(
        &self,
        state: &mut AdmissionState,
        seat: usize,
        look: Option<&SelfReport>,
        now: Instant,
    ) -> Waiting {
        let Some(look) = look.filter(|look| look.is_master && look.run_id.is_some()) else {
            // A cluster has seats for more shards than there are.
            return match self.ways[seat].address.is_absent() {
                true => Waiting::Nobody,
                false => Waiting::Unknown,
            };
        };
        let newest = state.survey.as_ref().and_then(|survey| survey.newest.as_ref());
        let known = newest.or(state.current.as_deref());
        let is_elsewhere =
            known.and_then(|known| self.home(&known.deployment, seat, look)).is_some();
        if is_elsewhere || self.refusal(state, seat, look).is_some() {
            return Waiting::Unknown;
        }
        match self.remaining(state, seat, look, now) {
            Some(Duration::ZERO) => Waiting::Over,
            _ => Waiting::Yes,
        }
    }

    /// Switches to the deployment that a quorum has accepted, if it is newer. A node without a seat in it votes no
    /// more from here on.
    fn learn(&self, state: &mut AdmissionState, accepted: &Accepted) {
        let deployment = &accepted.deployment;
        debug_assert_eq!(deployment.seats.len(), self.voters.seats(), "each voter has its seats");
        if let Some(current) = &state.current {
            let known = &current.deployment;
            if known.id == deployment.id && known.epoch > deployment.epoch {
                return;
            }
            if known == deployment {
                // The ballot may be larger.
                state.current = Some(Arc::new(accepted.clone()));
                return;
            }
            if known.id != deployment.id {
                warn!(
                    before = known.id,
                    now = deployment.id,
                    "the lock nodes are another deployment"
                );
            }
        }
        let learned = self.learned() + 1;
        let before = state.current.as_ref().filter(|known| known.deployment.id == deployment.id);
        for (at, seat) in state.seats.iter_mut().enumerate() {
            let stays = |known: &Arc<Accepted>| match (
                &known.deployment.seats[at],
                &deployment.seats[at],
            ) {
                // What the node confirmed while it waited stays valid.
                (Seat::Waiting(waits, _), Seat::Filled(votes)) => waits == votes,
                (was, is) => was == is,
            };
            // If this proxy has missed an epoch, its locks may have been copied away from the nodes in it.
            let is_next = |known: &Arc<Accepted>| deployment.epoch <= known.deployment.epoch + 1;
            if !before.is_some_and(|known| is_next(known) && stays(known)) {
                seat.seated = learned;
            }
        }
        let filled = |seat: &&Seat| matches!(seat, Seat::Filled(_));
        info!(
            deployment = deployment.id,
            epoch = deployment.epoch,
            seats = deployment.seats.len(),
            filled = deployment.seats.iter().filter(filled).count(),
            "the lock nodes' epoch"
        );
        // Nodes that have lost their seats stop voting before any node gets the new epoch.
        let is_there = |seat: usize, who: &Identity| match &deployment.seats[seat] {
            Seat::Filled(named) | Seat::Waiting(named, _) => named == who,
            Seat::Blank(_) => false,
        };
        let linked = |seat: &usize| state.seats[*seat].linked.is_some();
        let (stays, goes): (Vec<usize>, Vec<usize>) =
            (0..state.seats.len()).filter(linked).partition(|seat| {
                state.seats[*seat].linked.as_ref().is_some_and(|who| is_there(*seat, who))
            });
        for seat in &goes {
            self.standings[*seat].tell_alone(NOTHING);
        }
        if goes.is_empty() {
            let seatings = self.seatings(state);
            for seat in stays {
                self.tell(seat, deployment, learned, seatings.clone());
            }
        } else {
            self.generation.fetch_add(1, Ordering::AcqRel);
        }
        state.current = Some(Arc::new(accepted.clone()));
        // Operations made from here on have no vote of a node that has lost its seat.
        self.learned.store(learned, Ordering::Release);
        self.changed.send_replace(());
    }

    /// Returns, for each voter, when the last change of its seats was learned.
    fn seatings(&self, state: &AdmissionState) -> Arc<[u64]> {
        self.voters.most(|seat| state.seats[seat].seated).into()
    }

    /// Makes the connection to the node on `seat` obey this deployment.
    fn tell(&self, seat: usize, deployment: &Deployment, learned: u64, seatings: Arc<[u64]>) {
        let standing = &self.standings[seat];
        let waits = !matches!(deployment.seats[seat], Seat::Filled(_));
        if waits {
            standing.waits.store(true, Ordering::Release);
        }
        let marker = standing.encode(deployment.told(seat).as_bytes());
        standing.told.store(Arc::new(Told { marker, learned, seatings }));
        if !waits {
            standing.waits.store(false, Ordering::Release);
        }
    }
}

/// Finds another seat whose connection leads to the same instance.
fn twin(seats: &[SeatState], index: usize) -> Option<usize> {
    let run_id = seats[index].run_id.as_ref()?;
    (0..seats.len()).find(|other| *other != index && seats[*other].run_id.as_ref() == Some(run_id))
}
