//! Which nodes may vote: docs/design/locks.md, "Locks".
//!
//! **Seats.** What all proxies agree upon is a [`Deployment`]: an id, an epoch, and who
//! sits on each seat, the place of a node in `locks.nodes`. It lies on the nodes
//! themselves, as markers ([`super::marker`]). Only who sits on a seat votes: the script
//! of each vote compares the epoch with what lies in the memory that votes, and a node
//! that has lost its memory has no marker. Whoever else is met at a seat waits until all
//! that its memory may lack has run out, and is then given the seat.
//!
//! **One step at a time.** A seat goes from one identity to the next in two steps, each
//! with an epoch of its own: the next one waits there, and later it votes. Two quorums
//! that grant have a seat in common. Between neighbouring epochs that seat has the same
//! identity in both, or grants nothing in one of them and so is in none of its quorums; so
//! votes of one may meet votes of the other, and nothing breaks. Who was on the seat before
//! may still be reached by another proxy (an address that leads to another server now):
//! once the first step is written on a quorum, every quorum with it has a node that refuses
//! the epoch. Whatever was granted with it before runs out within the longest PX ever
//! stored, so the wait begins behind that. Meanwhile locks are put back on who waits, and
//! its renewals count, proven like votes: a quorum that keeps a lock with its help meets
//! each quorum that grants in a node that has the lock. Where too few nodes have kept their
//! memory to make a quorum, there is no first step: the wait counts from when the others
//! were first seen, by a note on them, and those that have waited count as consenting.
//! (What remains: most addresses lead to other servers at once, the old ones live on, and a
//! proxy keeps its connections to them.)
//!
//! **Rounds.** Markers are written by [`super::round`]: Paxos over the seats, with the
//! marker as its register. Who wants a change reads all nodes, takes the newest marker
//! (that of the largest ballot: all that was committed is in it), gets promises for a
//! larger ballot from a quorum, and writes the change of it there. A node promises and
//! accepts only while what lies on it is what was read. Two proxies at once: one of them
//! finds a larger ballot, or another marker, and reads again; never do two quorums accept
//! different markers of one epoch. One that dies in the middle leaves a newer marker on
//! fewer than a quorum: the next one brings that to its end, or overwrites it with a
//! larger ballot, and nobody has used it meanwhile, as only what a quorum has accepted
//! under one ballot is used. A node that has lost its promises is no acceptor before it
//! has waited for longer than any round counts ([`FLOOR`]).
//!
//! **In a proxy.** It has one deployment at a time, and learns a newer one where a node
//! refuses or shows it. Who has lost its seat in that one is told nothing that it could
//! prove from then on, before anything else is told the new epoch; if a connection to it was
//! open, all of them end and are made anew ([`Admissions::generation`]), so that no
//! operation has its vote and one of the new epoch. A node that missed an epoch and kept
//! its memory is told the marker when it is admitted.

use std::{
    borrow::Cow,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{sync::watch, time::Instant};
use tracing::{info, warn};

use super::{
    fault::Fault,
    look::{MarkerFound, SelfReport},
    marker::{Deployment, Identity, Seat},
    refusal::{FORGOTTEN, Place, refusal},
    round::{self, MarkerWrite, Way},
    seats::{Accepted, Survey, Waiting, has_joined},
    standing::NodeStanding,
};
use crate::{
    clock::millis,
    config::{LocksConfig, RedisUrl},
    lock::{quorum::quorum, scripts},
    net::Connector,
    sync::Mutex,
};

/// The shortest wait: longer than any round counts, so that whoever forgot a promise is not
/// asked again in the same one.
const FLOOR: Duration = Duration::from_secs(2);
/// Set aside for clocks that count in whole milliseconds.
const ROUNDING: Duration = Duration::from_millis(2);
/// How soon all nodes are asked again, where that did not help.
const ASK_EVERY: Duration = Duration::from_millis(500);

/// How soon nodes that were away are asked what others may have forgotten.
const ASK_OTHERS_EVERY: Duration = Duration::from_secs(3);

/// What no marker begins with.
const NOTHING: &[u8] = b"-";

/// What is to become of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::lock) enum Judgement {
    /// It votes, or waits on its seat: its [`NodeStanding`] says so. The generation.
    Admitted(u64),
    /// It has kept its memory and missed an epoch: it is to be told of it first.
    Behind(Box<MarkerWrite>),
    /// It is to be noted on it since when it waits, in this epoch.
    Note(u64),
    /// All nodes are to be asked.
    Ask,
    /// Not now: it is to be looked at again.
    Waits(Wait),
    /// Not as it is.
    Refused(Fault, String),
}

/// Why a node does not vote yet. The words stay the same meanwhile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::lock) struct Wait {
    /// Until when, if that is known.
    pub(in crate::lock) until: Option<Instant>,
    pub(in crate::lock) why: String,
}

#[cfg(test)]
thread_local! {
    /// A fault that tests plant: a node without a marker is new, and votes.
    pub(crate) static NEW_IF_BARE: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// What is known of all nodes of one proxy.
pub(in crate::lock) struct Admissions {
    quarantine: bool,
    allow_shared_instance: bool,
    drift_factor: f64,
    prefix: String,
    blank: Deployment,
    ways: Vec<Way>,
    standings: Vec<Arc<NodeStanding>>,
    state: Mutex<AdmissionState>,
    generation: AtomicU64,
    changed: watch::Sender<()>,
    /// Held while all nodes are asked: one task does it for all.
    asking: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct AdmissionState {
    /// What a quorum has accepted, as far as this proxy knows.
    current: Option<Arc<Accepted>>,
    /// What all nodes said the last time.
    survey: Option<Survey>,
    asked: Option<Instant>,
    /// The newest epoch for which all nodes were asked out of turn.
    asked_for: u64,
    /// The longest PX that any node has told of.
    longest: Duration,
    /// The longest that any proxy may have stored: this one's `max_ttl`, and what nodes
    /// told when they knew.
    possible: Duration,
    /// Another deployment that a quorum is now, and since when that is seen.
    other: Option<(String, Instant)>,
    seats: Vec<SeatState>,
}

impl AdmissionState {
    /// The deployment to which nodes must belong. Returns `None` if that is not known.
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
    /// Who is connected, or is about to be.
    run_id: Option<String>,
    /// Who votes or waits over the connection that is open, or about to be.
    linked: Option<Identity>,
    /// When the last connection that could vote ended.
    left: Option<Instant>,
    vigil: Option<Vigil>,
}

/// Somebody who waits, as this proxy has seen.
struct Vigil {
    who: Identity,
    note: String,
    /// Seen at this time, and had waited for so long already.
    since: Instant,
    before: Duration,
}

impl Admissions {
    pub(in crate::lock) fn new(config: &LocksConfig, connector: &Connector) -> Admissions {
        let way = |url: &RedisUrl| Way { url: url.clone(), connector: connector.clone() };
        Admissions {
            quarantine: config.quarantine,
            allow_shared_instance: config.allow_shared_instance,
            drift_factor: config.drift_factor,
            prefix: config.prefix.clone(),
            blank: Deployment::new(config),
            ways: config.nodes.iter().map(way).collect(),
            state: Mutex::new(AdmissionState {
                possible: config.max_ttl,
                seats: config.nodes.iter().map(|_| SeatState::default()).collect(),
                ..AdmissionState::default()
            }),
            standings: config.nodes.iter().map(|_| Arc::default()).collect(),
            generation: AtomicU64::new(0),
            changed: watch::Sender::new(()),
            asking: tokio::sync::Mutex::new(()),
        }
    }

    /// What the connection to node `index` goes by.
    pub(in crate::lock) fn standing(&self, index: usize) -> Arc<NodeStanding> {
        self.standings[index].clone()
    }

    /// Connections of another generation are to end.
    pub(in crate::lock) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Changes with the deployment.
    pub(in crate::lock) fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// Who votes or waits over the connection to node `index`, if that is compared.
    pub(in crate::lock) fn linked(&self, index: usize) -> Option<Identity> {
        self.state.lock().seats[index].linked.clone()
    }

    /// A node knows of a TTL that long, be it another proxy's: where all nodes have forgotten,
    /// this one remembers.
    pub(in crate::lock) fn heard_of(&self, longest: Duration) {
        let mut state = self.state.lock();
        state.possible = state.possible.max(longest);
    }

    /// What the marker of node `index` must be, if that is compared.
    pub(in crate::lock) fn told(&self, index: usize) -> Option<String> {
        let state = self.state.lock();
        state.seats[index].linked.as_ref()?;
        Some(state.current.as_ref()?.deployment.told(index))
    }

    /// Why node `index`, which is connected, does not vote yet.
    pub(in crate::lock) fn wait(&self, index: usize) -> Option<Wait> {
        let state = self.state.lock();
        let seat = &state.seats[index];
        let sits = state.current.as_ref().map(|current| &current.deployment.seats[index]);
        if seat.linked.is_none() || !matches!(sits, Some(Seat::Waiting(..))) {
            return None;
        }
        let vigil = seat.vigil.as_ref()?;
        let until = vigil.since + self.enough(&state, Some(index)).saturating_sub(vigil.before);
        Some(Wait { until: Some(until), why: FORGOTTEN.into() })
    }

    /// The connection to node `index` is gone; `voted`: it could vote.
    pub(in crate::lock) fn left(&self, index: usize, voted: bool) {
        let mut state = self.state.lock();
        let seat = &mut state.seats[index];
        (seat.run_id, seat.linked) = (None, None);
        if voted {
            seat.left = Some(Instant::now());
        }
    }

    /// Notes what node `index` says, and whether it may vote.
    pub(in crate::lock) fn judge(&self, index: usize, look: &SelfReport) -> Judgement {
        let mut state = self.state.lock();
        let state = &mut *state;
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
        if let Some((fault, why)) = self.refusal(state, index, look) {
            return match &state.other {
                _ if self.may_ask(state) => Judgement::Ask,
                // What was granted under the one before may still be held.
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
                // It must not be admitted before its wait has begun.
                if joined && self.remaining(state, index, look, Instant::now()).is_none() {
                    return Judgement::Note(deployment.epoch);
                }
                state.seats[index].linked = Some(who);
                self.tell(index, deployment);
                let longest = millis(marker.longest);
                self.standings[index].longest.store(longest, Ordering::Relaxed);
                return Judgement::Admitted(self.generation());
            }
            if theirs.epoch > deployment.epoch {
                // Until it is learned no node counts here, so it is asked for at once,
                // even if another proxy has written it while this one was asking.
                if theirs.epoch > state.asked_for {
                    state.asked_for = theirs.epoch;
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
                let write = MarkerWrite { accepted, seat, longest, is_admitted, joins };
                return Judgement::Behind(Box::new(write));
            }
        }
        self.judge_stranger(state, index, look)
    }

    /// Nothing is known yet that a quorum has accepted.
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

    /// It has no seat.
    fn judge_stranger(
        &self,
        state: &mut AdmissionState,
        index: usize,
        look: &SelfReport,
    ) -> Judgement {
        let covered = state.survey.as_ref().is_some_and(|s| s.intact() >= quorum(self.ways.len()));
        let known =
            state.current.as_deref().or(state.survey.as_ref().and_then(|s| s.newest.as_ref()));
        let sits = known.map(|known| &known.deployment.seats[index]);
        // It is given a place to wait first, and whoever had the seat loses it.
        if sits.is_some() && (covered || self.may_know_more(state, index)) {
            return self.ask_or(state, "it is given its seat");
        }
        let survey = state.survey.as_ref();
        if survey.is_some_and(|s| s.intact[index]) {
            return self.ask_or(state, "too few other nodes have kept their memory");
        }
        let epoch = known.map_or(0, |known| known.deployment.epoch);
        match self.remaining(state, index, look, Instant::now()) {
            None => Judgement::Note(epoch),
            Some(Duration::ZERO) => {
                self.ask_or(state, "its wait is over, but too few other nodes can be asked")
            }
            Some(_) if self.may_know_more(state, index) => Judgement::Ask,
            Some(left) => {
                let is_blank = state.survey.as_ref().is_some_and(|survey| survey.is_blank);
                let why = if is_blank {
                    "no node has a marker; where the deployment is new: lockgate init FILE"
                } else {
                    FORGOTTEN
                };
                Judgement::Waits(Wait { until: Some(Instant::now() + left), why: why.into() })
            }
        }
    }

    fn ask_or(&self, state: &AdmissionState, why: &str) -> Judgement {
        if self.may_ask(state) {
            return Judgement::Ask;
        }
        Judgement::Waits(Wait { until: None, why: why.into() })
    }

    /// All nodes were not asked just now.
    fn may_ask(&self, state: &AdmissionState) -> bool {
        state.asked.is_none_or(|asked| asked.elapsed() >= ASK_EVERY)
    }

    /// Nodes that could tell how long it must wait were not there when all were asked.
    fn may_know_more(&self, state: &AdmissionState, index: usize) -> bool {
        let all_know = state.survey.as_ref().is_some_and(|survey| survey.others_know(index));
        !all_know && state.asked.is_none_or(|asked| asked.elapsed() >= ASK_OTHERS_EVERY)
    }

    /// How much longer a stranger waits. None: it is not noted yet that it does.
    fn remaining(
        &self,
        state: &mut AdmissionState,
        index: usize,
        look: &SelfReport,
        now: Instant,
    ) -> Option<Duration> {
        #[cfg(test)]
        if NEW_IF_BARE.get() && look.marker == MarkerFound::Nothing {
            return Some(Duration::ZERO);
        }
        let who = look.identity()?;
        #[cfg(feature = "planted")]
        if look.marker == MarkerFound::Nothing
            && std::env::var("LOCKGATE_PLANT").is_ok_and(|fault| fault == "blank")
        {
            return Some(Duration::ZERO);
        }
        let newest = state.survey.as_ref().and_then(|survey| survey.newest.as_ref());
        let known = state.current.as_deref().or(newest);
        if newest.is_none()
            && look.marker == MarkerFound::Nothing
            && look.old_marker == look.run_id
            && state.survey.is_some()
        {
            // A proxy of version 0.1 has admitted it, and none of this version has yet.
            return Some(Duration::ZERO);
        }
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
                // Our own clock goes on from what was seen first: the node's may jump.
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

    /// After so long nothing is held any more that a node may have forgotten: the one on
    /// this seat; none: anyone.
    fn enough(&self, state: &AdmissionState, index: Option<usize>) -> Duration {
        let all_know = index.is_some_and(|index| {
            state.survey.as_ref().is_some_and(|survey| survey.others_know(index))
        });
        let longest = if all_know { state.longest } else { state.longest.max(state.possible) };
        // A clock that is fast counts the time too soon.
        (longest.mul_f64(1.0 + self.drift_factor) + ROUNDING).max(FLOOR)
    }

    /// What keeps a node out for good, as its marker tells.
    fn refusal(
        &self,
        state: &AdmissionState,
        index: usize,
        look: &SelfReport,
    ) -> Option<(Fault, String)> {
        let place = Place { index, nodes: self.ways.len(), prefix: &self.prefix };
        refusal(&place, look, state.belongs_to().as_deref())
    }

    /// Asks all nodes, learns what a quorum has accepted, and writes what is due. Returns at
    /// once where another task has just done so.
    pub(in crate::lock) async fn ask(&self) {
        let Ok(_asking) = self.asking.try_lock() else {
            drop(self.asking.lock().await);
            return;
        };
        let known = self.state.lock().current.clone();
        let id = known.as_ref().map(|known| known.deployment.id.as_str());
        // All that is needed where nothing is amiss: slow nodes are not waited for.
        let enough = |looks: &[Option<SelfReport>]| {
            known.is_none() && Survey::new(looks, &self.prefix, id).committed.is_some()
        };
        let all = round::ask_all(&self.ways, enough).await;
        let looks = round::looks(&all);
        let survey = Survey::new(&looks, &self.prefix, id);
        let (plan, longest) = {
            let mut state = self.state.lock();
            let state = &mut *state;
            state.asked = Some(Instant::now());
            state.longest = state.longest.max(survey.longest);
            state.survey = Some(survey.clone());
            let now = Instant::now();
            if let Some(committed) = &survey.committed
                && self.is_ours(state, &committed.deployment.id, now)
            {
                self.learn(state, committed);
            }
            // Slow nodes were not waited for: who is no voter needs what they know, too.
            if known.is_none() && state.current.is_some() {
                state.asked = None;
            }
            let differs = state.current.as_ref().is_some_and(|current| {
                survey.ours.as_ref().is_some_and(|ours| *ours != current.deployment.id)
            });
            if differs {
                return;
            }
            let mut waiting = Vec::new();
            for (seat, look) in looks.iter().enumerate() {
                waiting.push(self.waiting(state, seat, look.as_ref(), now));
            }
            let remembered = state.current.as_ref().map(|current| &current.deployment);
            let plan = survey.plan(&looks, &waiting, remembered, || self.blank.clone());
            // Where nobody has kept it, it may have been as long as is allowed.
            let nobody_knows = survey.newest.is_none();
            let longest =
                if nobody_knows { state.longest.max(state.possible) } else { state.longest };
            (plan, longest)
        };
        let Some(plan) = plan else { return };
        let needed = quorum(self.ways.len());
        let done = round::carry_out(all, &plan, &survey.promised, longest, needed).await;
        if let Some(accepted) = done {
            let mut state = self.state.lock();
            state.longest = state.longest.max(longest);
            // Whoever comes next finds a quorum that agrees, or asks.
            self.learn(&mut state, &accepted);
            // What is noted of who has kept its memory is of before.
            state.asked = None;
        }
    }

    /// Whether a deployment that a quorum has accepted is this proxy's. Another one than it
    /// knew is once all has run out that was granted under the one before.
    fn is_ours(&self, state: &mut AdmissionState, id: &str, now: Instant) -> bool {
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
            return Waiting::Unknown;
        };
        if self.refusal(state, seat, look).is_some() {
            return Waiting::Unknown;
        }
        match self.remaining(state, seat, look, now) {
            Some(Duration::ZERO) => Waiting::Over,
            _ => Waiting::Yes,
        }
    }

    /// Takes on what a quorum has accepted, if it is newer. What was admitted under what
    /// was known before votes no more from here on.
    fn learn(&self, state: &mut AdmissionState, accepted: &Accepted) {
        let deployment = &accepted.deployment;
        debug_assert_eq!(deployment.seats.len(), self.ways.len(), "each lock node has a seat");
        if let Some(current) = &state.current {
            let known = &current.deployment;
            if known.id == deployment.id && known.epoch > deployment.epoch {
                return;
            }
            if known == deployment {
                // Perhaps with a larger ballot.
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
        let filled = |seat: &&Seat| matches!(seat, Seat::Filled(_));
        info!(
            deployment = deployment.id,
            epoch = deployment.epoch,
            seats = deployment.seats.len(),
            filled = deployment.seats.iter().filter(filled).count(),
            "the lock nodes' epoch"
        );
        // Who has lost its seat goes first.
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
            self.standings[*seat].told.store(Arc::new(scripts::told(NOTHING)));
        }
        if goes.is_empty() {
            stays.into_iter().for_each(|seat| self.tell(seat, deployment));
        } else {
            self.generation.fetch_add(1, Ordering::AcqRel);
        }
        state.current = Some(Arc::new(accepted.clone()));
        self.changed.send_replace(());
    }

    /// Has the connection to the node on `seat` go by this.
    fn tell(&self, seat: usize, deployment: &Deployment) {
        let standing = &self.standings[seat];
        let waits = !matches!(deployment.seats[seat], Seat::Filled(_));
        if waits {
            standing.waits.store(true, Ordering::Release);
        }
        standing.told.store(Arc::new(scripts::told(deployment.told(seat).as_bytes())));
        if !waits {
            standing.waits.store(false, Ordering::Release);
        }
    }
}

/// Another node that is connected to the same instance.
fn twin(seats: &[SeatState], index: usize) -> Option<usize> {
    let run_id = seats[index].run_id.as_ref()?;
    (0..seats.len()).find(|other| *other != index && seats[*other].run_id.as_ref() == Some(run_id))
}
