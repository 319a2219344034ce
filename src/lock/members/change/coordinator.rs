//! The coordinator, which replaces the set of lock nodes by the next one, or takes that back.

use std::{collections::BTreeMap, time::Duration};

use tokio::time::{Instant, sleep, timeout_at};

use super::{
    super::{
        marker::{Deployment, Identity, NextSet, Phase, Seat},
        seats::Accepted,
        self_report::SelfReport,
    },
    anew::prevent,
    begin::begin,
    change_error::ChangeError,
    copying::{Copied, copy},
    preflight::{fit, try_out, warn},
    seals::{SealTurn, Seals},
    sets::{AGAIN, LookedAt, NodeSet, Trouble, joined, sets, silent},
    which::{ChangeDecision, SetNow, Which, first_of, which},
};
use crate::{config::LocksConfig, lock::jitter};

/// How long to keep trying what takes no lock away from any client, or cannot be taken back.
const LIMIT: Duration = Duration::from_secs(5);
/// The least default for how long no node may vote, however short the TTL: a busy machine may pause for longer than
/// a short TTL allows.
const LEAST: Duration = Duration::from_secs(2);

/// The trouble if all nodes of the set before answer, and none has its marker.
const NO_MARKER: &str = "no node of locks.nodes has a marker that fits: where they have lost it, nobody can tell what was \
    decided, and a new deployment is needed (docs/changing-lock-nodes.md)";

/// The same, once this coordinator has found the change begun.
const NO_MARKER_ANY_MORE: &str = "no node of locks.nodes has a marker that fits any more: either somebody has changed the \
    lock nodes once more since, and the file of that change says which vote (lockgate nodes), or they have lost it, and a new \
    deployment is needed (docs/changing-lock-nodes.md)";

/// The outcome of a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Changed {
    /// How many locks that may be held were copied. `None`: another coordinator copied them.
    pub held: Option<usize>,
    /// How long no client could be granted a lock, as far as this coordinator knows.
    pub sealed: Duration,
    /// Whether another coordinator had begun the change, so that no client could be granted a lock for longer.
    pub taken_over: bool,
    /// Nodes of the next set that did not begin with the others, each with the reason: they wait before they vote.
    pub waiting: Vec<(String, String)>,
}

/// The outcome of taking a change back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BackedOut {
    /// A change was begun, and is taken back.
    TakenBack,
    /// No change was begun.
    Nothing,
}

/// Replaces `locks.nodes` of a configuration by `locks.next_nodes`, and reports its steps to `tell`. May be repeated,
/// whatever came of it before. `at_most`: how long no client may be granted a lock before the change is taken back;
/// if `None`, half of `locks.default_ttl`, within which each session lock is renewed in time, but at least 2 s.
///
/// # Errors
/// If nodes are missing or not fit. Unless the error says so, nothing has changed.
pub(crate) async fn change(
    config: &LocksConfig,
    at_most: Option<Duration>,
    mut tell: impl FnMut(&str),
) -> Result<Changed, ChangeError> {
    let next = sets(config)?;
    let (from, to) = (NodeSet::new(config).await, NodeSet::new(&next).await);
    let at_most = at_most.unwrap_or_else(|| (config.default_ttl / 2).max(LEAST));
    let mut coordinator = Coordinator::new(from, to, at_most);
    loop {
        while Instant::now() < coordinator.deadline() {
            match coordinator.step(&mut tell).await? {
                Step::Done(changed) => return Ok(changed),
                Step::Next => {}
                Step::Again(trouble) => {
                    coordinator.trouble = trouble;
                    sleep(AGAIN).await;
                }
            }
        }
        let trouble = coordinator.trouble.clone();
        if coordinator.is_decided {
            return Err(ChangeError::NotBegun(trouble));
        }
        // Taking it back must not wait for a repair, nor for nodes by which the change has failed.
        coordinator.to.expect_silence();
        let taken_back = back_out_of(&coordinator.from, &coordinator.to).await;
        let has_sealed = coordinator.sealed_at.is_some();
        return Err(match taken_back {
            Ok(_) if has_sealed => ChangeError::TakenBack(trouble),
            Err(ChangeError::Decided | ChangeError::Done) if has_sealed => {
                coordinator.is_decided = true;
                coordinator.until = Instant::now() + LIMIT;
                continue;
            }
            Err(_) if has_sealed => ChangeError::HalfWay(trouble),
            _ => ChangeError::Unfit(trouble),
        });
    }
}

/// The outcome of one look at both sets, and of the step that followed.
enum Step {
    /// The next set votes.
    Done(Changed),
    /// Something was written: look at the nodes again.
    Next,
    /// The step failed, for this reason.
    Again(String),
}

/// A coordinator of a change. It decides by what the nodes have, so that others may do the same at the same time; it
/// remembers only what it has done itself.
struct Coordinator {
    from: NodeSet,
    to: NodeSet,
    /// How long no client may be granted a lock before the change is taken back.
    at_most: Duration,
    /// Until when to try, while nothing is sealed, or once a copy is whole or the change decided.
    until: Instant,
    /// Whether the set before is known to be left.
    is_decided: bool,
    /// Whether too few nodes of the next set can begin by the decision.
    is_hopeless: bool,
    /// Why nodes of the next set did not begin, when this coordinator last had them begin.
    late: Vec<Trouble>,
    /// Why the last step failed.
    trouble: String,
    /// Since when no client can be granted a lock, as far as this coordinator knows.
    sealed_at: Option<Instant>,
    /// Whether the set was sealed, or left, before this coordinator did anything.
    has_taken_over: bool,
    /// Whether this coordinator has found the set sealed: an attempt of its own to seal it may have failed.
    was_sealed: bool,
    seals: Seals,
    /// The seal under which it last copied, and how many of the copied locks may be held.
    copied: Option<(u64, usize)>,
    /// Nodes of the next set that have no copy from this coordinator, each with the reason.
    without: BTreeMap<String, String>,
    has_warned: bool,
}

impl Coordinator {
    fn new(from: NodeSet, to: NodeSet, at_most: Duration) -> Coordinator {
        Coordinator {
            from,
            to,
            at_most,
            until: Instant::now() + LIMIT,
            is_decided: false,
            is_hopeless: false,
            late: Vec::new(),
            trouble: format!("it was not done within {at_most:?}"),
            sealed_at: None,
            has_taken_over: false,
            was_sealed: false,
            seals: Seals::default(),
            copied: None,
            without: BTreeMap::new(),
            has_warned: false,
        }
    }

    /// Returns when this coordinator gives up.
    fn deadline(&self) -> Instant {
        match self.sealed_at {
            Some(since) if self.copied.is_none() && !self.is_decided => since + self.at_most,
            _ => self.until,
        }
    }

    /// Looks at all nodes, and takes the next step.
    async fn step(&mut self, tell: &mut impl FnMut(&str)) -> Result<Step, ChangeError> {
        let (of_from, of_to) = tokio::join!(self.from.look(), self.to.look());
        for lost in silent(&self.to, &of_to) {
            self.without.entry(lost.address).or_insert(lost.why);
        }
        let (from, to) = (self.from.report(&of_from), self.to.report(&of_to));
        let Which { now, decision } = which(from, to, None);
        if let Some(decision) = decision
            && (now != SetNow::NextNodes || decision.has_begun)
        {
            return self.begin_next(&decision, &of_from, of_to, tell).await;
        }
        if now == SetNow::NextNodes {
            // If all nodes belong to both sets, none of them still says that the set before was left.
            return match (&of_to.survey.committed, self.sealed_at) {
                (Some(now), Some(since)) => {
                    Ok(Step::Done(self.changed(&now.deployment, None, since)))
                }
                _ => Err(ChangeError::Done),
            };
        }
        let Some(newest) = of_from.survey.newest.clone() else {
            let silent = silent(&self.from, &of_from);
            return match (silent.is_empty(), self.sealed_at) {
                (false, _) => Ok(Step::Again(joined(&silent))),
                (true, None) => Err(ChangeError::Unfit(NO_MARKER.into())),
                (true, Some(_)) => Err(ChangeError::NotTakenBack(NO_MARKER_ANY_MORE.into())),
            };
        };
        if !of_from.survey.is_covered(&self.from.voters) {
            return Ok(Step::Again(too_few(&newest.deployment)));
        }
        if of_from.survey.committed.as_ref() != Some(&newest) {
            // An unfinished round is completed first.
            self.from.agree(of_from, newest.deployment).await;
            return Ok(Step::Next);
        }
        let Accepted { deployment, .. } = newest;
        let found = match deployment.phase {
            Phase::Joint(seal) => Some(seal),
            Phase::Stands | Phase::Left(..) => None,
        };
        if found.is_none() {
            if self.was_sealed {
                let why = "somebody else has taken it back (lockgate nodes)";
                return Err(ChangeError::TakenBack(why.into()));
            }
            self.sealed_at = None;
            self.try_out(&of_from, &of_to, &deployment, tell).await?;
            tell("seals locks.nodes: no lock is granted or renewed from now on");
        }
        self.was_sealed |= found.is_some();
        self.has_taken_over |= found.is_some() && self.sealed_at.is_none();
        self.sealed_at.get_or_insert_with(Instant::now);
        // A copy removes the copy before it. Another coordinator may be deciding upon that copy just now, or this one
        // may have done so without knowing. So each copy has its own seal: a decision under one seal fails once there
        // is another.
        match self.seals.turn(found) {
            SealTurn::Copy(seal) => {
                self.copy_and_leave((&of_from, &of_to), &deployment, seal, tell).await
            }
            SealTurn::Seal => self.seal(of_from, &deployment, found).await,
            SealTurn::Wait => Ok(Step::Again(format!(
                "another lockgate nodes --change has not been done within {:?}",
                self.at_most
            ))),
        }
    }

    /// Makes the next set begin, as was decided.
    async fn begin_next(
        &mut self,
        decision: &ChangeDecision,
        of_from: &LookedAt,
        of_to: LookedAt,
        tell: &mut impl FnMut(&str),
    ) -> Result<Step, ChangeError> {
        let ChangeDecision { first, seal, has_begun: is_begun } = decision;
        let (seal, is_begun) = (*seal, *is_begun);
        if is_begun && self.sealed_at.is_none() {
            self.leave_the_others(first).await;
            return Err(ChangeError::Done);
        }
        let is_hopeless = std::mem::take(&mut self.is_hopeless);
        let are_these = is_begun || self.to.report(&of_to).are_of(first, true);
        if !is_begun && (is_hopeless || !are_these) {
            if prevent(&self.to, &of_to, first, seal).await {
                return Ok(self.seal_again(first, tell).await);
            }
            if !are_these {
                return Err(ChangeError::Others);
            }
        }
        if !std::mem::replace(&mut self.is_decided, true) {
            self.until = Instant::now() + LIMIT;
        }
        self.has_taken_over |= self.sealed_at.is_none();
        let since = *self.sealed_at.get_or_insert_with(Instant::now);
        // They may have begun by an attempt of this coordinator whose answers it had not got in time.
        let mut late = std::mem::take(&mut self.late);
        late.retain(|late| !has_begun(&self.to, &of_to, &late.address, first));
        if !is_begun {
            match begin(&self.to, of_to, decision, of_from.survey.longest).await {
                Ok(troubles) => late = troubles,
                Err(not_begun) => {
                    let why = not_begun.why();
                    (self.is_hopeless, self.late) = (not_begun.is_hopeless, not_begun.late);
                    return Ok(Step::Again(why));
                }
            }
        }
        self.leave_the_others(first).await;
        let mut changed = self.changed(first, Some(seal), since);
        let is_new =
            |late: &Trouble| !changed.waiting.iter().any(|(address, _)| *address == late.address);
        late.retain(is_new);
        changed.waiting.extend(late.into_iter().map(|late| (late.address, late.why)));
        Ok(Step::Done(changed))
    }

    /// Seals the set before again, which was left for a set that never begins with `first`.
    async fn seal_again(&mut self, first: &Deployment, tell: &mut impl FnMut(&str)) -> Step {
        tell(
            "what was copied to locks.next_nodes is lost on too many of them: seals locks.nodes again, to copy anew",
        );
        self.has_taken_over |= self.sealed_at.is_none();
        self.sealed_at.get_or_insert_with(Instant::now);
        (self.is_decided, self.was_sealed, self.copied) = (false, true, None);
        let looked = self.from.look().await;
        let agreed = looked.survey.committed.as_ref().map(|it| it.deployment.clone());
        let left = agreed.filter(|agreed| match &agreed.phase {
            Phase::Left(_, successor) => first_of(agreed, successor) == *first,
            Phase::Stands | Phase::Joint(_) => false,
        });
        // If another coordinator has sealed it meanwhile, the work goes on under that seal.
        let Some(left) = left else { return Step::Next };
        let own = jitter::number();
        self.seals.replaces(None, own);
        match self.from.agree(looked, following(&left, Phase::Joint(own))).await {
            true => Step::Next,
            false => Step::Again("not enough of locks.nodes agreed".into()),
        }
    }

    /// Writes that the set before was left on those of its nodes that have missed that and answer. Otherwise, for a
    /// proxy that knows only that set, a quorum of such nodes and emptied ones would vote.
    async fn leave_the_others(&self, first: &Deployment) {
        let looked = self.from.look().await;
        let Some(left) = looked.survey.committed.as_ref().map(|it| it.deployment.clone()) else {
            return;
        };
        let has_missed_it = |(seat, look): (usize, &Option<SelfReport>)| {
            let marker = look.as_ref().and_then(SelfReport::marker);
            looked.survey.intact[seat]
                && marker.is_some_and(|marker| marker.deployment.epoch < left.epoch)
        };
        let is_left = matches!(left.phase, Phase::Left(..)) && left.set < first.set;
        if is_left && looked.looks.iter().enumerate().any(has_missed_it) {
            self.from.agree(looked, left).await;
        }
    }

    /// Tries, before anything is sealed, whether locks can be copied.
    async fn try_out(
        &mut self,
        of_from: &LookedAt,
        of_to: &LookedAt,
        ours: &Deployment,
        tell: &mut impl FnMut(&str),
    ) -> Result<(), ChangeError> {
        fit(&self.to, of_to, ours)?;
        let tried = try_out(&self.from, of_from, &self.to, of_to, ours).await?;
        let long = tried.copying((&self.from, &self.to));
        if long > self.at_most {
            let (long, at_most) = (long.as_secs_f64(), self.at_most.as_secs_f64());
            return Err(ChangeError::Unfit(format!(
                "to copy all fences and locks takes about {long:.1} s, and nobody votes meanwhile; that may be \
                 {at_most:.1} s: allow more by --at-most, behind which session locks may be lost, or change \
                 the nodes when fewer locks are in use"
            )));
        }
        if !self.has_warned {
            warn(&tried, (&self.from, of_from), (&self.to, of_to), tell);
            self.has_warned = true;
        }
        Ok(())
    }

    /// Seals the set before, with a new seal.
    async fn seal(
        &mut self,
        of_from: LookedAt,
        now: &Deployment,
        found: Option<u64>,
    ) -> Result<Step, ChangeError> {
        let seal = jitter::number();
        self.seals.replaces(found, seal);
        Ok(match self.from.agree(of_from, following(now, Phase::Joint(seal))).await {
            true => Step::Next,
            false => Step::Again("not enough of locks.nodes agreed".into()),
        })
    }

    /// Copies all locks under this coordinator's seal, and leaves the set before if that seal is still there.
    async fn copy_and_leave(
        &mut self,
        (of_from, of_to): (&LookedAt, &LookedAt),
        joint: &Deployment,
        seal: u64,
        tell: &mut impl FnMut(&str),
    ) -> Result<Step, ChangeError> {
        tell("copies the locks to locks.next_nodes");
        let copying = copy((&self.from, of_from), (&self.to, of_to), joint, seal);
        let Copied { held, seats, troubles } = match timeout_at(self.deadline(), copying).await {
            Ok(Ok(copied)) => copied,
            Ok(Err(why)) => return Ok(Step::Again(why)),
            Err(_) => {
                let why = format!("the locks could not be copied within {:?}", self.at_most);
                return Ok(Step::Again(why));
            }
        };
        // Only once: a coordinator that makes copy after copy and cannot leave must not keep the set sealed.
        if self.copied.replace((seal, held)).is_none() {
            self.until = Instant::now() + LIMIT;
        }
        self.without.extend(troubles.into_iter().map(|lost| (lost.address, lost.why)));
        tell("leaves locks.nodes for locks.next_nodes");
        let successor = successor(&self.to, seats, joint);
        let left = following(joint, Phase::Left(seal, Box::new(successor)));
        // The marker must be the one under which the locks were copied.
        let looked = self.from.look().await;
        if looked.survey.committed.as_ref().map(|it| &it.deployment) == Some(joint) {
            self.from.agree(looked, left).await;
        }
        Ok(Step::Next)
    }

    /// Returns the outcome, once the set that begins with `first` votes. `seal`: that of the set's copies, if known.
    fn changed(&self, first: &Deployment, seal: Option<u64>, since: Instant) -> Changed {
        let own = self.copied.filter(|(own, _)| seal.is_none_or(|seal| *own == seal));
        let waiting = without_copy(&self.to, first, &self.without);
        let (sealed, taken_over) = (since.elapsed(), self.has_taken_over);
        Changed { held: own.map(|(_, held)| held), sealed, taken_over, waiting }
    }
}

/// Takes back a change that was begun and not decided.
///
/// # Errors
/// If it was decided, or too few nodes are there.
pub(crate) async fn back_out(config: &LocksConfig) -> Result<BackedOut, ChangeError> {
    let next = sets(config)?;
    back_out_of(&NodeSet::new(config).await, &NodeSet::new(&next).await).await
}

async fn back_out_of(from: &NodeSet, to: &NodeSet) -> Result<BackedOut, ChangeError> {
    let deadline = Instant::now() + LIMIT;
    let mut done = BackedOut::Nothing;
    let mut trouble = String::from(NO_MARKER);
    while Instant::now() < deadline {
        let (of_from, of_to) = tokio::join!(from.look(), to.look());
        let Which { now, decision } = which(from.report(&of_from), to.report(&of_to), None);
        match now {
            SetNow::NextNodes => return Err(ChangeError::Done),
            SetNow::Decided
                if decision.is_some_and(|it| to.report(&of_to).are_of(&it.first, true)) =>
            {
                return Err(ChangeError::Decided);
            }
            SetNow::Decided | SetNow::Others => return Err(ChangeError::Others),
            SetNow::Nodes | SetNow::Sealed | SetNow::Unknown => {}
        }
        let Some(newest) = of_from.survey.newest.clone() else {
            let silent = silent(from, &of_from);
            if silent.is_empty() {
                break;
            }
            trouble = joined(&silent);
            sleep(AGAIN).await;
            continue;
        };
        let is_committed = of_from.survey.committed.as_ref() == Some(&newest);
        let stands = newest.deployment.stands();
        if is_committed && stands {
            return Ok(done);
        }
        trouble = too_few(&newest.deployment);
        if !stands {
            done = BackedOut::TakenBack;
        }
        let next = match is_committed {
            true => following(&newest.deployment, Phase::Stands),
            false => newest.deployment,
        };
        from.agree(of_from, next).await;
        sleep(AGAIN).await;
    }
    Err(ChangeError::NotTakenBack(trouble))
}

/// Says that the set before cannot agree on anything. `newest`: the newest state that any of its nodes has accepted.
fn too_few(newest: &Deployment) -> String {
    let what = "too few of locks.nodes are there and have kept their memory";
    match newest.stands() {
        true => what.into(),
        false => format!(
            "locks.nodes are sealed, and {what}: run it again once they are there. Where those that were sealed \
             have lost it, nobody can tell what was decided: a new deployment is needed (docs/changing-lock-nodes.md)"
        ),
    }
}

/// Returns the next epoch of a set, in this phase.
fn following(deployment: &Deployment, phase: Phase) -> Deployment {
    Deployment { epoch: deployment.epoch + 1, phase, ..deployment.clone() }
}

/// Returns the next set, in which the nodes with copies have seats.
fn successor(to: &NodeSet, mut copied: BTreeMap<usize, Identity>, joint: &Deployment) -> NextSet {
    // One epoch to leave the set before, one to begin.
    let epoch = joint.epoch + 2;
    let seat = |seat| copied.remove(&seat).map_or(Seat::Blank(epoch), Seat::Filled);
    let seats = (0..to.ways.len()).map(seat).collect();
    NextSet { shape: to.voters.shape(), seats }
}

/// Whether the node at this address is known to vote in the set that began with `first`.
fn has_begun(to: &NodeSet, of_to: &LookedAt, address: &str, first: &Deployment) -> bool {
    let begun = |look: &Option<SelfReport>| {
        let marker = look.as_ref().and_then(SelfReport::marker);
        let now = marker.map(|marker| &marker.deployment);
        now.is_some_and(|now| now.id == first.id && now.epoch >= first.epoch)
    };
    let mut all = to.ways.iter().zip(&of_to.looks);
    all.any(|(way, look)| way.address.to_string() == address && begun(look))
}

/// Lists the nodes that have no copy, each with the reason, if known.
fn without_copy(
    to: &NodeSet,
    first: &Deployment,
    why: &BTreeMap<String, String>,
) -> Vec<(String, String)> {
    let blank = (0..to.ways.len()).filter(|seat| first.is_blank(*seat));
    let reason = |address: String| match why.get(&address).cloned() {
        Some(why) => (address, why),
        None => (address, "another coordinator has not copied to it".into()),
    };
    blank.map(|seat| reason(to.ways[seat].address.to_string())).collect()
}
