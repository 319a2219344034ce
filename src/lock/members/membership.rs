//! Which nodes vote, decided without input and output: reports of nodes go in, judgements and [`Effect`]s come out.
//!
//! [`Members`] holds all that one proxy knows of the nodes. [`super::deployment`] says which rules it follows and why
//! they are safe; it also asks the nodes, and carries the effects out.

use std::{borrow::Cow, mem, sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{
    fault::Fault,
    marker::{Deployment, Identity, KnownSet, Marker, NOTE, Seat},
    refusal::{FORGOTTEN, Place, refusal},
    round::MarkerWrite,
    seat_wait::SeatWait,
    seats::{Accepted, Plan, Survey, Waiting, has_joined},
    self_report::SelfReport,
};
use crate::{
    config::LocksConfig,
    lock::{longest::LongestGrant, voters::Voters},
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

/// The verdict on a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::lock) enum Judgement {
    /// The node votes, or waits on its seat: its [`NodeStanding`] says which. Carries the generation of connections.
    ///
    /// [`NodeStanding`]: super::standing::NodeStanding
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

/// A consequence of what [`Members`] has learned. Effects are carried out in their order, before the next event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Effect {
    /// The connection to the node on `seat` proves this marker from now on; `waits`: the node must not grant.
    Tell { seat: usize, marker: String, waits: bool, learned: u64, seatings: Arc<[u64]> },
    /// The node on this seat has lost it: no request proves its marker any more.
    TellNothing(usize),
    /// Connections of generations before this one end.
    EndConnections(u64),
    /// The proxy has learned a deployment, its `learned`-th. Operations made from here on have no vote of a node that
    /// has lost its seat.
    Learned { learned: u64, accepted: Arc<Accepted>, before: Option<Arc<Accepted>> },
    /// The longest PX that the node on `seat` is known to have noted.
    Noted { seat: usize, longest: Duration },
    /// The shard met at `seat` of a cluster belongs at this place among the cluster's seats.
    Move { seat: usize, home: usize },
    /// A node's marker says that its set is sealed or left, or is another set than this proxy's.
    GivenUp,
}

/// What the configuration says of the nodes. It never changes.
pub(super) struct MemberRules {
    pub(super) quarantine: bool,
    pub(super) allow_shared_instance: bool,
    pub(super) drift_factor: f64,
    pub(super) prefix: String,
    pub(super) voters: Voters,
    /// A deployment of these nodes that has not begun.
    pub(super) blank: Deployment,
}

impl MemberRules {
    pub(super) fn new(config: &LocksConfig) -> MemberRules {
        MemberRules {
            quarantine: config.quarantine,
            allow_shared_instance: config.allow_shared_instance,
            drift_factor: config.drift_factor,
            prefix: config.prefix.clone(),
            voters: Voters::new(config),
            blank: Deployment::new(config),
        }
    }

    /// Whether there is only one voter, so that no other could give a successor a place to wait.
    pub(super) fn is_alone(&self) -> bool {
        self.voters.count() == 1
    }
}

/// What a proxy knew when it began to ask all nodes.
pub(super) struct SurveyScope {
    rules: Arc<MemberRules>,
    known: Option<Arc<Accepted>>,
}

impl SurveyScope {
    fn survey(&self, looks: &[Option<SelfReport>], gone: &[bool]) -> Survey {
        let known = self.known.as_ref().map(|known| &known.deployment);
        let (id, set) = (known.map(|known| known.id.as_str()), known.map(|known| known.set));
        Survey::of_set(set, (&self.rules.voters, &self.rules.prefix), looks, gone, id)
    }

    /// Whether a quorum has a newer deployment than the known one. That is all that is needed: slow nodes are not
    /// waited for.
    pub(super) fn is_enough(&self, looks: &[Option<SelfReport>]) -> bool {
        self.survey(looks, &[]).committed.is_some_and(|committed| {
            self.known.as_ref().is_none_or(|known| {
                let (known, theirs) = (&known.deployment, &committed.deployment);
                theirs.id == known.id && theirs.epoch > known.epoch
            })
        })
    }
}

/// What was found on a seat when all nodes were asked.
pub(super) struct SeatFound {
    /// `None`: no node has answered.
    pub(super) look: Option<SelfReport>,
    /// Whether the cluster has no shard for this seat.
    pub(super) is_absent: bool,
    /// For how long it has been known that no shard is there.
    pub(super) gone_for: Duration,
}

/// A change to write on a quorum.
pub(super) struct RoundToMake {
    pub(super) plan: Plan,
    /// The largest ballot that a node has promised.
    pub(super) promised: String,
    /// The longest PX that may have been stored.
    pub(super) longest: Duration,
}

/// What one proxy knows of all nodes.
#[cfg_attr(test, derive(Clone))]
pub(super) struct Members {
    rules: Arc<MemberRules>,
    /// The longest that any grant may last. Grows by what is heard, here and elsewhere.
    heard: Arc<LongestGrant>,
    /// Shortens a pause at random.
    jitter: fn(Duration) -> Duration,
    /// For each seat, how long another proxy may take to hear of a failover.
    confirm: Vec<Duration>,
    /// Whether this proxy may write that nodes sit on other seats (`writes`), and that a deployment is new
    /// (`begins`). While the file lists two sets, it begins no deployment, and writes only once it knows which set
    /// votes.
    writes: bool,
    begins: bool,
    generation: u64,
    /// How many times this proxy has learned a deployment.
    learned: u64,
    /// The deployment that a quorum has accepted, as far as this proxy knows.
    current: Option<Arc<Accepted>>,
    /// The result of the last time that all nodes were asked.
    survey: Option<Survey>,
    asked: Option<Instant>,
    /// The newest epoch for which all nodes were asked out of turn.
    asked_for: u64,
    /// The longest PX that was stored, as far as nodes have reported.
    stored: Duration,
    /// Another deployment that a quorum has now, and since when this proxy has seen it.
    other: Option<(String, Instant)>,
    /// The id of a deployment, and the newest epoch in which its nodes showed that this set is sealed, left or
    /// followed by another.
    given_up: Option<(String, u64)>,
    seats: Vec<SeatState>,
    effects: Vec<Effect>,
}

#[derive(Default)]
#[cfg_attr(test, derive(Debug, Clone))]
struct SeatState {
    /// The instance that is connected, or about to be.
    run_id: Option<String>,
    /// The identity that votes or waits over the connection that is open, or about to be.
    linked: Option<Identity>,
    wait: SeatWait,
    /// The value of [`Members::learned`] when the seat's last change was learned.
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

/// Questions.
impl Members {
    pub(super) fn new(
        rules: Arc<MemberRules>,
        heard: Arc<LongestGrant>,
        jitter: fn(Duration) -> Duration,
        may_write: bool,
    ) -> Members {
        let seats = rules.voters.seats();
        Members {
            heard,
            jitter,
            confirm: vec![Duration::ZERO; seats],
            writes: may_write,
            begins: may_write,
            generation: 0,
            learned: 0,
            current: None,
            survey: None,
            asked: None,
            asked_for: 0,
            stored: Duration::ZERO,
            other: None,
            given_up: None,
            seats: (0..seats).map(|_| SeatState::default()).collect(),
            effects: Vec::new(),
            rules,
        }
    }

    /// Returns the set of nodes that votes here, or `None` if it is unknown.
    pub(super) fn set(&self) -> Option<KnownSet> {
        let Deployment { id, set, .. } = &self.current.as_ref()?.deployment;
        Some(KnownSet { id: id.clone(), set: *set })
    }

    /// Returns the identity that votes or waits over the connection to node `index`, or `None` if identities are not
    /// compared.
    pub(super) fn linked(&self, index: usize) -> Option<Identity> {
        self.seats[index].linked.clone()
    }

    /// Returns the marker that node `index` must have, or `None` if markers are not compared.
    pub(super) fn told(&self, index: usize) -> Option<String> {
        self.seats[index].linked.as_ref()?;
        Some(self.current.as_ref()?.deployment.told(index))
    }

    /// Returns why node `index`, which is connected, does not vote yet.
    pub(super) fn wait(&self, index: usize) -> Option<Wait> {
        let seat = &self.seats[index];
        let deployment = &self.current.as_ref()?.deployment;
        if seat.linked.as_ref().is_none_or(|who| deployment.names(index, who)) {
            return None;
        }
        let until = seat.wait.over_at(self.enough(Some(index)))?;
        Some(Wait { until: Some(until), why: self.forgotten(index) })
    }

    /// Returns what the proxy knows before it asks all nodes.
    pub(super) fn asking(&self) -> SurveyScope {
        SurveyScope { rules: self.rules.clone(), known: self.current.clone() }
    }

    /// Returns the time after which no lock is held any more that the node on seat `index` may have forgotten;
    /// without `index`: that any node may have.
    pub(super) fn enough(&self, index: Option<usize>) -> Duration {
        let all_know = index.is_some_and(|index| self.others_know(index));
        let longest = if all_know { self.stored } else { self.stored.max(self.heard.get()) };
        // Another proxy may not have heard of a failover yet.
        let all = || self.confirm.iter().copied().max().unwrap_or_default();
        let confirm = index.map_or_else(all, |index| self.confirm[index]);
        let longest = longest + confirm;
        // A fast clock measures the time too short.
        (self.by_any_clock(longest)).max(FLOOR)
    }

    /// Returns the time that passes on this proxy's clock, which may be fast, until `time` has passed.
    fn by_any_clock(&self, time: Duration) -> Duration {
        time.mul_f64(1.0 + self.rules.drift_factor) + ROUNDING
    }

    /// Whether all nodes of other voters have kept their memory, and know every grant of the node on this seat.
    fn others_know(&self, index: usize) -> bool {
        let survey = self.survey.as_ref();
        survey.is_some_and(|survey| survey.others_know(&self.rules.voters, index))
    }

    /// Says why a node that may have forgotten locks waits, and whether its wait may turn out shorter.
    fn forgotten(&self, index: usize) -> String {
        match self.others_know(index) || self.heard.get() <= self.stored {
            true => FORGOTTEN.into(),
            false => {
                format!("{FORGOTTEN}; less, once all other lock nodes tell which TTLs were stored")
            }
        }
    }

    /// Returns the newest agreement that is known: this proxy's, or what the last survey has found.
    fn known(&self) -> Option<&Accepted> {
        let newest = self.survey.as_ref().and_then(|survey| survey.newest.as_ref());
        self.current.as_deref().or(newest)
    }

    /// Whether this set is given up, as far as is known: another set may vote. Nodes that have forgotten that must
    /// then get no seats in this set.
    fn is_given_up(&self) -> bool {
        let known = self.known();
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

    /// Returns the other seat of its voter on which the deployment has the node that this proxy met on `index`.
    /// Proxies find the shards of a cluster by themselves, and may differ.
    fn home(&self, deployment: &Deployment, index: usize, look: &SelfReport) -> Option<usize> {
        let beside = self.rules.voters.beside(index);
        let home = deployment.seat_of(beside, look.run_id.as_deref()?)?;
        (home != index).then_some(home)
    }

    /// Whether all nodes may be asked, as they were not asked just now.
    fn may_ask(&self, now: Instant) -> bool {
        self.was_asked_before(now, ASK_EVERY)
    }

    /// Whether to ask again those nodes that could tell how long this one must wait, but were away when all were
    /// asked.
    fn may_know_more(&self, index: usize, now: Instant) -> bool {
        !self.others_know(index) && self.was_asked_before(now, ASK_OTHERS_EVERY)
    }

    /// Whether all nodes were last asked at least so long ago, if at all.
    fn was_asked_before(&self, now: Instant, pause: Duration) -> bool {
        self.asked.is_none_or(|asked| now.saturating_duration_since(asked) >= pause)
    }

    fn ask_or(&self, why: &str, now: Instant) -> Judgement {
        if self.may_ask(now) {
            return Judgement::Ask;
        }
        Judgement::Waits(Wait { until: None, why: why.into() })
    }

    /// Returns, for each voter, when the last change of its seats was learned.
    fn seatings(&self) -> Arc<[u64]> {
        self.rules.voters.most(|seat| self.seats[seat].seated).into()
    }

    /// Finds another seat whose connection leads to the same instance.
    fn twin(&self, index: usize) -> Option<usize> {
        let run_id = self.seats[index].run_id.as_ref()?;
        let mut others = (0..self.seats.len()).filter(|other| *other != index);
        others.find(|other| self.seats[*other].run_id.as_ref() == Some(run_id))
    }

    /// Finds the fault in a node's marker that keeps it out.
    fn refusal(&self, index: usize, look: &SelfReport) -> Option<(Fault, String)> {
        let ours = self.current.as_ref().map(|current| &current.deployment);
        if let Some(theirs) = look.marker().map(|marker| &marker.deployment) {
            // A node that has missed an epoch is not refused: it gets the newest marker.
            if ours.is_some_and(|ours| theirs.id == ours.id && theirs.epoch < ours.epoch) {
                return None;
            }
            let is_other_set =
                ours.is_some_and(|ours| theirs.id == ours.id && theirs.set != ours.set);
            if !theirs.stands() || is_other_set {
                return Some((Fault::Changing, Fault::Changing.meaning().into()));
            }
        }
        let place = Place { index, voters: &self.rules.voters, prefix: &self.rules.prefix };
        refusal(&place, look, self.belongs_to().as_deref())
    }
}

/// Events.
impl Members {
    /// Returns the effects of all events since the last call.
    pub(super) fn take_effects(&mut self) -> Vec<Effect> {
        mem::take(&mut self.effects)
    }

    /// Notes, for each seat, how long another proxy may take to hear of a failover.
    pub(super) fn confirms_within(&mut self, confirm: impl Iterator<Item = Duration>) {
        self.confirm.iter_mut().zip(confirm).for_each(|(seat, confirm)| *seat = confirm);
    }

    /// Sets whether this proxy may write that nodes sit on other seats, and that a deployment is new.
    pub(super) fn allow_writes(&mut self, writes: bool, begins: bool) {
        (self.writes, self.begins) = (writes, begins);
    }

    /// Forgets that this set was to be given up, as the operator no longer lists another. If it was, the nodes'
    /// markers say so again.
    pub(super) fn note_kept(&mut self) {
        self.given_up = None;
    }

    /// Notes that the connection to node `index` has ended; `voted`: whether it could vote.
    pub(super) fn gone(&mut self, index: usize, voted: bool, now: Instant) {
        let seat = &mut self.seats[index];
        (seat.run_id, seat.linked) = (None, None);
        if voted {
            seat.wait.left(now);
        }
    }

    /// Judges whether node `index` may vote, by its report on itself.
    pub(super) fn reported(&mut self, index: usize, look: &SelfReport, now: Instant) -> Judgement {
        self.saw(look);
        self.heed(self.current.as_deref(), look);
        self.seats[index].run_id.clone_from(&look.run_id);
        if !look.is_master {
            return Judgement::Refused(Fault::Replica, Fault::Replica.meaning().into());
        }
        if !self.rules.allow_shared_instance
            && let Some(twin) = self.twin(index)
        {
            let why = format!("it is the same instance as node {}; each must be its own", twin + 1);
            return Judgement::Refused(Fault::SharedInstance, why);
        }
        if !self.rules.quarantine {
            return Judgement::Admitted(self.generation);
        }
        let Some(who) = look.identity() else {
            return Judgement::Refused(Fault::Unidentified, Fault::Unidentified.meaning().into());
        };
        let current = self.current.clone();
        if let Some(current) = &current
            && let Some(home) = self.home(&current.deployment, index, look)
        {
            let home = home - self.rules.voters.beside(index).start;
            self.effects.push(Effect::Move { seat: index, home });
            let why = "the lock nodes have it at another seat of its cluster".into();
            return Judgement::Waits(Wait { until: None, why });
        }
        if let Some((fault, why)) = self.note_refusal(index, look) {
            return match &self.other {
                _ if self.may_ask(now) => Judgement::Ask,
                // Locks granted under the earlier deployment may still be held.
                Some((id, since)) if look.marker().is_some_and(|m| m.deployment.id == *id) => {
                    Judgement::Waits(Wait { until: Some(*since + self.enough(None)), why })
                }
                _ => Judgement::Refused(fault, why),
            };
        }
        let Some(current) = current else {
            if self.survey.is_none() || self.may_ask(now) {
                return Judgement::Ask;
            }
            return self.judge_stranger(index, look, now);
        };
        match self.judge_member(index, look, (&who, &current), now) {
            Some(judgement) => judgement,
            None => self.judge_stranger(index, look, now),
        }
    }

    /// Judges a node that has a seat, by its marker or by the present one. `None`: it has none.
    fn judge_member(
        &mut self,
        index: usize,
        look: &SelfReport,
        (who, current): (&Identity, &Arc<Accepted>),
        now: Instant,
    ) -> Option<Judgement> {
        let deployment = &current.deployment;
        let joined = has_joined(deployment, index, look);
        let marker = look.marker().filter(|_| joined || deployment.names(index, who))?;
        let theirs = &marker.deployment;
        if *theirs == *deployment {
            // The node must not be admitted before its wait has begun.
            if joined && self.note_wait(index, look, now).is_none() {
                return Some(Judgement::Note(deployment.epoch));
            }
            self.seats[index].linked = Some(who.clone());
            let (learned, seatings) = (self.learned, self.seatings());
            self.tell(index, deployment, learned, seatings);
            self.effects.push(Effect::Noted { seat: index, longest: marker.longest });
            return Some(Judgement::Admitted(self.generation));
        }
        if theirs.epoch > deployment.epoch {
            // No node counts here until the newer epoch is learned, so all nodes are asked for it at once, even
            // if another proxy wrote it while this one was asking.
            let is_new = theirs.epoch > self.asked_for;
            if is_new || self.asked.is_none() || self.was_asked_before(now, (self.jitter)(ASK_SOON))
            {
                self.asked_for = theirs.epoch.max(self.asked_for);
                return Some(Judgement::Ask);
            }
            return Some(self.ask_or("it knows of a newer epoch", now));
        }
        if !joined && !theirs.names(index, who) {
            return None;
        }
        if look.promised > current.ballot {
            return Some(self.ask_or("another epoch is being written", now));
        }
        let (accepted, longest) = ((**current).clone(), self.stored);
        let (seat, is_admitted, joins) = (index, false, false);
        let write = MarkerWrite { accepted, seat, longest, is_admitted, joins, note: NOTE };
        Some(Judgement::Behind(Box::new(write)))
    }

    /// Judges a node without a seat.
    fn judge_stranger(&mut self, index: usize, look: &SelfReport, now: Instant) -> Judgement {
        if let Some(generation) = self.admit_alone(index, look, now) {
            return Judgement::Admitted(generation);
        }
        let covered =
            self.survey.as_ref().is_some_and(|survey| survey.is_covered(&self.rules.voters));
        let known = self.known();
        // First the node is given a place to wait, which takes the seat from its earlier node.
        if known.is_some() && (covered || self.may_know_more(index, now)) {
            return self.ask_or("it is given its seat", now);
        }
        if self.survey.as_ref().is_some_and(|survey| survey.intact[index]) {
            let why = match self.rules.voters.beside(index).len() {
                1 => "too few other nodes have kept their memory",
                // A running proxy knows the agreement, and goes on.
                _ => {
                    "another shard is away or has forgotten, and until it votes a proxy that was started meanwhile does not learn what the lock nodes have agreed upon"
                }
            };
            return self.ask_or(why, now);
        }
        let epoch = known.map_or(0, |known| known.deployment.epoch);
        match self.note_wait(index, look, now) {
            None => Judgement::Note(epoch),
            Some(Duration::ZERO) => {
                let survey = self.survey.as_ref();
                let nobody_knows = survey.is_some_and(|survey| survey.newest.is_none());
                let why = match nobody_knows && !self.begins {
                    true => UNTOLD,
                    false => "its wait is over, but too few other nodes can be asked",
                };
                self.ask_or(why, now)
            }
            Some(_) if self.may_know_more(index, now) => Judgement::Ask,
            Some(left) => {
                let why = self.why_a_stranger_waits(index);
                Judgement::Waits(Wait { until: Some(now + left), why })
            }
        }
    }

    fn why_a_stranger_waits(&self, index: usize) -> String {
        let is_blank = self.survey.as_ref().is_some_and(|survey| survey.is_blank);
        if is_blank {
            "no node has a marker; where the deployment is new: lockgate init FILE".into()
        } else if self.rules.is_alone() {
            self.forgotten(index)
        } else {
            // Its wait counts from the first step: until then, another proxy may have votes of the server that had
            // the seat.
            let why = self.forgotten(index);
            format!("{why}; if enough other lock nodes vote earlier, its wait begins anew then")
        }
    }

    /// Admits a stranger of a single voter that has a copy of the marker. While it waits, it keeps the locks that
    /// this proxy knows to be held: see the module `members`. Returns the generation of connections, or `None` if
    /// the node must not be admitted yet.
    fn admit_alone(&mut self, index: usize, look: &SelfReport, now: Instant) -> Option<u64> {
        let (current, who) = (self.current.clone()?, look.identity()?);
        let is_copy = look.marker().is_some_and(|m| m.deployment == current.deployment);
        if !self.rules.is_alone() || !is_copy {
            return None;
        }
        // The earlier Redis may still be reachable, and grant what is renewed here. For how long is known only of a
        // node that Sentinels or a cluster name.
        let confirm = self.confirm[index];
        let settled = self.by_any_clock(confirm);
        let left = self.note_wait(index, look, now)?;
        let waited = self.enough(Some(index)).saturating_sub(left);
        if confirm.is_zero() || waited < settled || left.is_zero() {
            return None;
        }
        self.seats[index].linked = Some(who);
        let marker = current.deployment.told(index);
        let (learned, seatings) = (self.learned, self.seatings());
        self.effects.push(Effect::Tell { seat: index, marker, waits: true, learned, seatings });
        Some(self.generation)
    }

    /// Notes what a node shows of its wait. Returns the rest of the wait, or `None` if no note of it is on the node
    /// yet.
    fn note_wait(&mut self, index: usize, look: &SelfReport, now: Instant) -> Option<Duration> {
        #[cfg(test)]
        if NEW_IF_BARE.get() && look.is_bare() {
            return Some(Duration::ZERO);
        }
        let who = look.identity()?;
        #[cfg(feature = "planted")]
        if look.is_bare() && std::env::var("LOCKGATE_PLANT").is_ok_and(|fault| fault == "blank") {
            return Some(Duration::ZERO);
        }
        let needed = self.known().map_or(0, |known| match known.deployment.seats[index] {
            Seat::Blank(since) | Seat::Waiting(_, since) => since,
            Seat::Filled(_) => known.deployment.epoch,
        });
        let note = look.note().filter(|note| note.who == who && note.epoch >= needed)?;
        let by_node = match look.time {
            Some(time) if note.since > 0 => Duration::from_micros(time.saturating_sub(note.since)),
            _ => Duration::ZERO,
        };
        let waited = self.seats[index].wait.saw(who, &look.note, by_node, now);
        Some(self.enough(Some(index)).saturating_sub(waited))
    }

    /// Finds the fault in a node's marker that keeps it out, and has this set's successor looked for if that is it.
    fn note_refusal(&mut self, index: usize, look: &SelfReport) -> Option<(Fault, String)> {
        let refusal = self.refusal(index, look);
        if matches!(refusal, Some((Fault::Changing, _))) {
            self.effects.push(Effect::GivenUp);
        }
        refusal
    }

    /// Notes whether a node shows that this set is sealed, left or followed by another.
    fn saw(&mut self, look: &SelfReport) {
        let current = self.current.as_ref().map(|current| &current.deployment);
        let is_ours = |theirs: &&Deployment| {
            theirs.prefix == self.rules.prefix && current.is_none_or(|ours| ours.id == theirs.id)
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

    /// Notes how long grants may last, as a node reports it, unless the node belongs to another deployment.
    fn heed(&self, current: Option<&Accepted>, look: &SelfReport) {
        let is_ours = |marker: &Marker| {
            let theirs = &marker.deployment;
            theirs.prefix == self.rules.prefix
                && current.is_none_or(|current| current.deployment.id == theirs.id)
        };
        if look.marker().is_none_or(is_ours) {
            self.heard.heard_of(look.longest());
        }
    }

    /// Learns from what all nodes have answered. Returns the change to write, if one is due.
    pub(super) fn surveyed(
        &mut self,
        asking: &SurveyScope,
        found: &[SeatFound],
        now: Instant,
    ) -> Option<RoundToMake> {
        let looks: Vec<Option<SelfReport>> = found.iter().map(|seat| seat.look.clone()).collect();
        // Nothing counts any more that was granted on a seat which has been without a node for so long. Only a seat
        // of a cluster can be, if a majority of the cluster's masters says that no shard is there.
        let long = self.enough(None);
        let gone: Vec<bool> =
            found.iter().map(|seat| seat.look.is_none() && seat.gone_for > long).collect();
        let survey = asking.survey(&looks, &gone);
        self.asked = Some(now);
        self.stored = self.stored.max(survey.longest);
        looks.iter().flatten().for_each(|look| self.heed(asking.known.as_deref(), look));
        self.survey = Some(survey.clone());
        if let Some(committed) = &survey.committed
            && self.take_as_ours(&committed.deployment.id, now)
        {
            self.learn(committed);
        }
        // A shard that is away must not stop the others.
        if self.current.is_none()
            && self.rules.is_alone()
            && let Some(accepted) = survey.of_those_there(&looks)
        {
            self.learn(accepted);
        }
        // Slow nodes were not waited for, but a node that does not vote yet needs their knowledge, too.
        if asking.known.is_none() && self.current.is_some() {
            self.asked = None;
        }
        if asking.known.is_some() && asking.is_enough(&looks) {
            self.asked = None;
            return None;
        }
        let differs = self.current.as_ref().is_some_and(|current| {
            survey.ours.as_ref().is_some_and(|ours| *ours != current.deployment.id)
        });
        if differs {
            return None;
        }
        self.plan(&survey, found, &looks, now)
    }

    /// Plans the change that is due after a survey, if this proxy may write it.
    fn plan(
        &mut self,
        survey: &Survey,
        found: &[SeatFound],
        looks: &[Option<SelfReport>],
        now: Instant,
    ) -> Option<RoundToMake> {
        let mut waiting = Vec::with_capacity(found.len());
        for (seat, found) in found.iter().enumerate() {
            let is_twin = !self.rules.allow_shared_instance && has_twin(looks, seat);
            waiting.push(match is_twin {
                true => Waiting::Unknown,
                false => self.note_waiting(seat, found, survey.newest.as_ref(), now),
            });
        }
        let remembered = self.current.as_ref().map(|current| &current.deployment);
        let blank = || self.rules.blank.clone();
        let plan = survey.plan(&self.rules.voters, looks, &waiting, remembered, blank);
        looks.iter().flatten().for_each(|look| self.saw(look));
        // If no node still knows the longest PX, it may have been as long as is allowed.
        let nobody_knows = survey.newest.is_none();
        let may_write = if nobody_knows { self.begins } else { self.writes };
        let plan = plan.filter(|_| may_write && !self.is_given_up())?;
        for seat in plan.joining.iter().copied() {
            let who = looks[seat].as_ref().and_then(SelfReport::identity);
            self.seats[seat].tried = who.map(|who| (who, now));
        }
        let longest = if nobody_knows { self.stored.max(self.heard.get()) } else { self.stored };
        Some(RoundToMake { plan, promised: survey.promised.clone(), longest })
    }

    /// Notes how far the wait of the node on `seat` is, as all nodes were asked.
    fn note_waiting(
        &mut self,
        seat: usize,
        found: &SeatFound,
        newest: Option<&Accepted>,
        now: Instant,
    ) -> Waiting {
        let look = found.look.as_ref();
        let Some(look) = look.filter(|look| look.is_master && look.run_id.is_some()) else {
            // A cluster has seats for more shards than there are.
            return if found.is_absent { Waiting::Nobody } else { Waiting::Unknown };
        };
        let known = newest.or(self.current.as_deref());
        let is_elsewhere =
            known.and_then(|known| self.home(&known.deployment, seat, look)).is_some();
        let has_joined = newest.is_some_and(|newest| has_joined(&newest.deployment, seat, look));
        if is_elsewhere || self.note_refusal(seat, look).is_some() {
            return Waiting::Unknown;
        }
        let left = self.note_wait(seat, look, now);
        match left {
            _ if !has_joined && self.seats[seat].was_tried(look, now) => Waiting::Unknown,
            Some(Duration::ZERO) => Waiting::Over,
            _ => Waiting::Yes,
        }
    }

    /// Notes that a quorum has accepted the change of a round.
    pub(super) fn wrote(&mut self, round: &RoundToMake, accepted: &Accepted) {
        self.stored = self.stored.max(round.longest);
        // The next proxy that asks finds a quorum that agrees, or asks on.
        self.learn(accepted);
        // The survey dates from before the round.
        self.asked = None;
    }

    /// Notes that a quorum has accepted the deployment `id`. Returns whether it is this proxy's from now on: a
    /// deployment other than the known one becomes so once all locks granted under the known one have run out.
    fn take_as_ours(&mut self, id: &str, now: Instant) -> bool {
        if self.current.as_ref().is_none_or(|current| current.deployment.id == id) {
            self.other = None;
            return true;
        }
        let since = match &self.other {
            Some((other, since)) if other == id => *since,
            _ => {
                self.other = Some((id.to_owned(), now));
                now
            }
        };
        now.saturating_duration_since(since) >= self.enough(None)
    }

    /// Switches to the deployment that a quorum has accepted, if it is newer. A node without a seat in it votes no
    /// more from here on.
    fn learn(&mut self, accepted: &Accepted) {
        let deployment = &accepted.deployment;
        debug_assert_eq!(
            deployment.seats.len(),
            self.rules.voters.seats(),
            "each voter has its seats"
        );
        let before = self.current.clone();
        if let Some(known) = before.as_ref().map(|known| &known.deployment) {
            if known.id == deployment.id && known.epoch > deployment.epoch {
                return;
            }
            if known == deployment {
                // The ballot may be larger.
                self.current = Some(Arc::new(accepted.clone()));
                return;
            }
        }
        self.learned += 1;
        let learned = self.learned;
        self.note_seatings(before.as_deref(), deployment);
        // Nodes that have lost their seats stop voting before any node gets the new epoch.
        let linked: Vec<usize> =
            (0..self.seats.len()).filter(|seat| self.seats[*seat].linked.is_some()).collect();
        let (stays, goes): (Vec<usize>, Vec<usize>) = linked.into_iter().partition(|seat| {
            let who = self.seats[*seat].linked.as_ref();
            who.is_some_and(|who| is_seated(deployment, *seat, who))
        });
        self.effects.extend(goes.iter().copied().map(Effect::TellNothing));
        if goes.is_empty() {
            let seatings = self.seatings();
            for seat in stays {
                self.tell(seat, deployment, learned, seatings.clone());
            }
        } else {
            self.generation += 1;
            self.effects.push(Effect::EndConnections(self.generation));
        }
        let accepted = Arc::new(accepted.clone());
        self.current = Some(accepted.clone());
        self.effects.push(Effect::Learned { learned, accepted, before });
    }

    /// Notes which seats change as the proxy learns this deployment.
    fn note_seatings(&mut self, before: Option<&Accepted>, deployment: &Deployment) {
        let before =
            before.map(|known| &known.deployment).filter(|known| known.id == deployment.id);
        // If this proxy has missed an epoch, its locks may have been copied away from the nodes in it.
        let before = before.filter(|known| deployment.epoch <= known.epoch + 1);
        for (at, seat) in self.seats.iter_mut().enumerate() {
            let stays = |known: &Deployment| match (&known.seats[at], &deployment.seats[at]) {
                // What the node confirmed while it waited stays valid.
                (Seat::Waiting(waits, _), Seat::Filled(votes)) => waits == votes,
                (was, is) => was == is,
            };
            if !before.is_some_and(stays) {
                seat.seated = self.learned;
            }
        }
    }

    /// Has the connection to the node on `seat` obey this deployment.
    fn tell(&mut self, seat: usize, deployment: &Deployment, learned: u64, seatings: Arc<[u64]>) {
        let waits = !matches!(deployment.seats[seat], Seat::Filled(_));
        let marker = deployment.told(seat);
        self.effects.push(Effect::Tell { seat, marker, waits, learned, seatings });
    }
}

/// Whether the deployment names this node on `seat`, or has it wait there.
fn is_seated(deployment: &Deployment, seat: usize, who: &Identity) -> bool {
    match &deployment.seats[seat] {
        Seat::Filled(named) | Seat::Waiting(named, _) => named == who,
        Seat::Blank(_) => false,
    }
}

/// Whether the node on `seat` was also met on another seat, which it has by its marker, or which comes first.
fn has_twin(looks: &[Option<SelfReport>], seat: usize) -> bool {
    let Some(look) = &looks[seat] else { return false };
    let home = look.marker().map(|marker| marker.seat);
    let is_same = |other: &Option<SelfReport>| {
        other.as_ref().is_some_and(|other| other.run_id.is_some() && other.run_id == look.run_id)
    };
    let mut twins = (0..looks.len()).filter(|other| *other != seat && is_same(&looks[*other]));
    twins.any(|other| home == Some(other) || home != Some(seat) && other < seat)
}

#[cfg(test)]
thread_local! {
    /// A fault that tests plant: a node without a marker is new, and votes.
    pub(crate) static NEW_IF_BARE: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

#[cfg(test)]
#[path = "membership_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "membership_explored_tests.rs"]
mod explored;
