//! Changing the set of lock nodes while proxies run: `locks.nodes` gives place to `locks.next_nodes`.
//!
//! The agreement of the set before ([`super::deployment`]) decides, by rounds on its seats:
//!
//! 1. *It is sealed*: a quorum has a marker of the phase [`Phase::Joint`]. No node that has it votes, so
//!    from then on nothing is granted, renewed or raised.
//! 2. *Its locks are copied* to every node of the next set that is there ([`super::copy`]). They are read
//!    on nodes that have that marker, of a quorum at least. What was promised before the seal was
//!    carried out on a quorum before its nodes were sealed; one of these is among the nodes read. A lock
//!    that may be on a quorum is copied, for as long as any node has it. What was released meanwhile is
//!    taken back. A note on each node says that its copy is whole. The note is gone with the memory.
//! 3. *It is left*: the marker turns to [`Phase::Left`], which names the nodes with whole copies, a
//!    quorum of the next set. Or it turns back to [`Phase::Stands`]. Each is one round, which compares
//!    the marker of step 1. So one of both comes about, and only with copies made under that very seal.
//! 4. *The next set begins*: its nodes get the first marker of their own, where the note still stands.
//!    Whoever finds step 3 done may do that, again and again.
//!
//! Each copy has a seal of its own, written by who copies: what another coordinator is about to decide upon
//! comes to nothing, and is not written over. A proxy that lists both sets does step 4, too.
//!
//! Whatever fails in between can be done again by anybody, or taken back before step 3. A quorum of the set
//! before is needed up to there, and one of the next set from step 2 on. A node of the next set that
//! was not there, or has forgotten its copy, is a stranger, and waits as any other.
//!
//! Who was slow does no harm: each write of a copy compares a note that the next copy, and the beginning
//! of the set, take away. A copy is begun where the note is still the one from before its locks were read: so
//! it takes none away that was decided upon, as the set before was sealed for this one after that. A node's own locks that are not among the copied ones are taken away from it: they
//! are from when it was a lock node last, or from a change that was taken back.
//!
//! A proxy has one set at a time ([`SetPair`] says which), and begins no deployment by itself while its
//! file lists two. A set's number stands in its markers, so that a node of both sets never has one text
//! for both.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bb8_redis::redis::RedisError;
use thiserror::Error;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};

use super::{
    copy::{COPIED, Copier, CopyNote, FoundLocks, LockCopy},
    look::{CONNECT_LIMIT, ConnectError, MarkerFound, SelfReport},
    marker::{Deployment, NextSet, Phase, Seat},
    round::{self, Answered, Way},
    seats::{Accepted, Plan, Survey},
};
use crate::{
    config::{LockNode, LocksConfig},
    lock::{
        address::{NodeAddress, connector_to_nodes},
        jitter,
        voters::Voters,
    },
};

/// How long each step of a change is tried, round after round.
const LIMIT: Duration = Duration::from_secs(5);
/// How often nodes are looked at where some do not vote.
const LOOKS: usize = 3;
/// More keys than these take so long to copy that it is told before.
const MANY_KEYS: u64 = 50_000;
/// How long it takes to read a key on one node, or to write it there, about: a release build took 4.3 s for
/// 100,000 from three to three, on two cores.
const PER_KEY: Duration = Duration::from_nanos(7_200);
/// So many times that is to be within the TTL of session locks, which nobody renews meanwhile.
const WELL_ABOVE: u32 = 3;
/// The pause before a round is tried again.
const AGAIN: Duration = Duration::from_millis(100);
/// How long Sentinels may take to name the masters.
const SENTINELS_LIMIT: Duration = Duration::from_secs(3);

/// Why the lock nodes were not changed.
#[derive(Debug, Error)]
pub enum ChangeError {
    /// The file does not say what to change, or how it cannot be.
    #[error("{0}; nothing was changed")]
    Impossible(String),
    /// Nodes are missing, or are not fit.
    #[error("{0}; nothing was changed")]
    Unfit(String),
    /// It was begun, and taken back.
    #[error("{0}; it was begun, and was taken back: locks.nodes vote again")]
    TakenBack(String),
    /// It was begun, and did not come to its end.
    #[error(
        "{0}. No locks are granted until it is done or taken back: run lockgate nodes --change again, or \
         --back-out"
    )]
    HalfWay(String),
    /// It is decided, and the next set has not begun.
    #[error(
        "it is decided that locks.next_nodes vote, and it cannot be taken back: run lockgate nodes \
         --change, so that they begin"
    )]
    Decided,
    /// The next set has begun.
    #[error(
        "the lock nodes have been changed already. Another change, be it back, needs those that vote as \
         locks.nodes, and those to come as locks.next_nodes"
    )]
    Done,
}

/// Which set of lock nodes votes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetNow {
    /// `locks.nodes`.
    Nodes,
    /// None: `locks.nodes` are sealed.
    Sealed,
    /// None: it is decided that `locks.next_nodes` do, and they have not begun.
    Decided,
    /// `locks.next_nodes`.
    NextNodes,
    /// It is decided that others than `locks.next_nodes` do.
    Others,
    /// Too few nodes answer to tell.
    Unknown,
}

impl fmt::Display for SetNow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SetNow::Nodes => "locks.nodes vote",
            SetNow::Sealed => {
                "locks.nodes are sealed, and nobody votes: run lockgate nodes --change, or --back-out"
            }
            SetNow::Decided => {
                "it is decided that locks.next_nodes vote, and they have not begun: run lockgate nodes --change"
            }
            SetNow::NextNodes => "locks.next_nodes vote",
            SetNow::Others => {
                "it is decided that other nodes than locks.next_nodes vote, or too few of these have kept their \
                 memory since: list those of the change, or those that vote now as locks.nodes"
            }
            SetNow::Unknown => "too few nodes answer to tell which set votes",
        })
    }
}

/// One node, as `lockgate nodes` tells of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeOfSet {
    /// Its address, without credentials.
    pub address: String,
    /// What it has.
    pub what: String,
    /// What lies on it that keeps it from becoming a lock node.
    pub foreign: Option<String>,
}

/// How far a change is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangeStatus {
    /// Which set votes.
    pub now: SetNow,
    /// The nodes of that set that do not, or do not answer.
    pub without: Vec<String>,
    /// `locks.nodes`.
    pub nodes: Vec<NodeOfSet>,
    /// `locks.next_nodes`.
    pub next_nodes: Vec<NodeOfSet>,
}

/// The outcome of a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Changed {
    /// How many locks that may be held were copied. `None`: another coordinator has copied them.
    pub held: Option<usize>,
    /// For how long nobody could be granted a lock, as far as this coordinator knows.
    pub sealed: Duration,
    /// Nodes of the next set without a copy, each with the reason: they wait before they vote.
    pub waiting: Vec<(String, String)>,
}

/// One of the two sets, as it was just looked at.
struct NodeSet {
    config: LocksConfig,
    voters: Voters,
    ways: Vec<Way>,
    /// For each seat, whether nobody there answered when the set was looked at last, and the others were
    /// enough.
    silent: Vec<AtomicBool>,
}

/// A node that cannot be used, or not in full.
struct Trouble {
    address: String,
    why: String,
}

impl Trouble {
    fn of(set: &NodeSet, seat: usize, why: &impl fmt::Display) -> Trouble {
        Trouble { address: set.ways[seat].address.to_string(), why: why.to_string() }
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "lock node {}: {}", self.address, self.why)
    }
}

/// All of them in one text.
fn joined(troubles: &[Trouble]) -> String {
    let all: Vec<String> = troubles.iter().map(ToString::to_string).collect();
    all.join("; ")
}

/// The answers of a set's nodes.
struct LookedAt {
    all: Vec<Result<Answered, ConnectError>>,
    looks: Vec<Option<SelfReport>>,
    survey: Survey,
}

impl NodeSet {
    async fn new(config: &LocksConfig) -> NodeSet {
        let (connector, voters) = (connector_to_nodes(config), Voters::new(config));
        let way = |(seat, address)| Way {
            address,
            connector: connector.clone(),
            seat: voters.place(seat),
        };
        let ways: Vec<Way> = NodeAddress::all(config).into_iter().enumerate().map(way).collect();
        let until = Instant::now() + SENTINELS_LIMIT;
        for way in &ways {
            way.address.found(until.saturating_duration_since(Instant::now())).await;
        }
        let silent = ways.iter().map(|_| AtomicBool::new(false)).collect();
        NodeSet { config: config.clone(), voters, ways, silent }
    }

    /// Looks at all nodes. One that has not answered the look before is not waited for long, unless a
    /// quorum lacked it: nobody votes meanwhile.
    async fn look(&self) -> LookedAt {
        let was_silent = |seat: usize| self.silent[seat].load(Ordering::Relaxed);
        let patience = |seat| match was_silent(seat) {
            // It is connected to, and asked.
            true => (self.config.node_timeout * 2).min(CONNECT_LIMIT),
            false => CONNECT_LIMIT,
        };
        let all = round::ask_for(&self.ways, patience, |_| false).await;
        let looks = round::looks(&all);
        let there: Vec<usize> = (0..looks.len()).filter(|seat| looks[*seat].is_some()).collect();
        let are_enough = self.is_quorum(&there);
        for (seat, silent) in self.silent.iter().enumerate() {
            silent.store(are_enough && looks[seat].is_none(), Ordering::Relaxed);
        }
        let survey = Survey::of_any_phase(&self.voters, &looks, &self.config.prefix);
        LookedAt { all, looks, survey }
    }

    /// Whether these seats are those of a quorum.
    fn is_quorum(&self, seats: &[usize]) -> bool {
        self.voters.agree(|_| false, |seat| seats.contains(&seat))
    }

    /// How many of the seats are those that this deployment names.
    fn matches(&self, deployment: &Deployment, looks: &[Option<SelfReport>]) -> usize {
        let is_named = |(seat, look): (usize, &Option<SelfReport>)| {
            let who = look.as_ref().and_then(SelfReport::identity);
            who.is_some_and(|who| deployment.names(seat, &who))
        };
        looks.iter().enumerate().filter(|look| is_named((look.0, look.1))).count()
    }

    /// Writes a change of the agreement on a quorum. Returns whether that has accepted it.
    async fn agree(&self, looked: LookedAt, next: Deployment) -> bool {
        // A node of both sets that has begun as one of the next decides here no more.
        let is_ours = |seat: &usize| {
            let marker = looked.looks[*seat].as_ref().and_then(SelfReport::marker);
            looked.survey.intact[*seat]
                && marker.is_some_and(|marker| marker.deployment.set == next.set)
        };
        let acceptors: Vec<usize> = (0..self.ways.len()).filter(is_ours).collect();
        if !self.is_quorum(&acceptors) {
            return false;
        }
        let (blank, admitted, joining) = (vec![], vec![], vec![]);
        let plan = Plan { next, acceptors, blank, admitted, joining };
        let LookedAt { all, survey, .. } = looked;
        let is_quorum = |seats: &[usize]| self.is_quorum(seats);
        let done = round::carry_out(all, &plan, &survey.promised, survey.longest, is_quorum).await;
        done.is_some()
    }
}

/// The two sets of a file.
fn sets(config: &LocksConfig) -> Result<LocksConfig, ChangeError> {
    let impossible = |why: &str| Err(ChangeError::Impossible(why.into()));
    if !config.quarantine {
        return impossible("locks.quarantine is off, so no node can prove to which set it belongs");
    }
    let Some(next) = config.next() else {
        return impossible("the file has no locks.next_nodes, the lock nodes to come");
    };
    // A failover may lose a marker, and what a single voter says then goes.
    let is_fixed = |node: &LockNode| matches!(node, LockNode::Fixed(_));
    match config.nodes.iter().chain(&next.nodes).all(is_fixed) {
        true => Ok(next),
        false => {
            impossible("lock nodes behind Sentinels and clusters are not changed while proxies run")
        }
    }
}

/// Two sets of nodes of which one votes.
pub(in crate::lock) struct SetPair {
    from: NodeSet,
    to: NodeSet,
}

impl SetPair {
    /// The sets of a configuration. Returns `None` if it has one alone.
    pub(in crate::lock) async fn new(config: &LocksConfig) -> Option<SetPair> {
        let next = sets(config).ok()?;
        Some(SetPair { from: NodeSet::new(config).await, to: NodeSet::new(&next).await })
    }

    /// Finds out which set votes. `known`: the number of the set that the asker knows to be
    /// `locks.nodes`, if it does.
    pub(in crate::lock) async fn find(&self, known: Option<u64>) -> SetNow {
        let (of_from, of_to) = tokio::join!(self.from.look(), self.to.look());
        let now = set_now((&self.from, &of_from), (&self.to, &of_to), known);
        if now == SetNow::Decided
            && let Some((first, seal)) = decided(&of_from, &of_to)
        {
            let are_those = are_of(&self.to, &of_to, &first, false);
            // Who has decided it may have died.
            begin(&self.to, of_to, &first, (seal, of_from.survey.longest)).await;
            // A list that was edited since may have nodes that know of nothing: they would begin a
            // deployment of their own, beside the one that votes.
            if !are_those {
                return SetNow::Others;
            }
        }
        now
    }
}

/// The agreement of the next set that was decided upon. Returns `None` if none was, as far as these
/// nodes tell.
fn decided(of_from: &LookedAt, of_to: &LookedAt) -> Option<(Deployment, u64)> {
    let agreed = of_from.survey.committed.as_ref().map(|accepted| &accepted.deployment);
    if let Some(left) = agreed
        && let Phase::Left(seal, successor) = &left.phase
    {
        return Some((first_of(left, successor), *seal));
    }
    // Nothing of the next set is written before it is decided upon.
    let deployments = |looked: &LookedAt| -> Vec<Deployment> {
        let markers = looked.looks.iter().flatten().filter_map(SelfReport::marker);
        markers.map(|marker| marker.deployment.clone()).collect()
    };
    let before = deployments(of_from);
    let seal_before = |next: &Deployment| {
        let is_before = |it: &&Deployment| it.id == next.id && it.set + 1 == next.set;
        let last = before.iter().filter(is_before).max_by_key(|it| it.epoch)?;
        match last.phase {
            Phase::Stands => None,
            Phase::Joint(seal) | Phase::Left(seal, _) => Some(seal),
        }
    };
    let all = [deployments(of_to), before.clone()].concat();
    let begun = all.into_iter().filter(Deployment::stands);
    let begun = begun.filter_map(|next| seal_before(&next).map(|seal| (next, seal)));
    begun.max_by_key(|(next, _)| next.epoch)
}

/// Whether a quorum of the next set has begun.
fn has_begun(of_to: &LookedAt, first: &Deployment) -> bool {
    of_to
        .survey
        .committed
        .as_ref()
        .is_some_and(|it| it.deployment.set == first.set && it.deployment.epoch >= first.epoch)
}

fn set_now(
    (from, of_from): (&NodeSet, &LookedAt),
    (to, of_to): (&NodeSet, &LookedAt),
    known: Option<u64>,
) -> SetNow {
    if let Some((first, _)) = decided(of_from, of_to) {
        return match has_begun(of_to, &first) {
            true => SetNow::NextNodes,
            false if first.shape != to.voters.shape() => SetNow::Others,
            false => SetNow::Decided,
        };
    }
    let agreed = of_from.survey.committed.as_ref().map(|accepted| &accepted.deployment);
    let theirs = of_to.survey.committed.as_ref().map(|accepted| &accepted.deployment);
    let theirs = theirs.filter(|theirs| theirs.stands() && theirs.set > 0);
    match agreed {
        // Nodes before that were left, and have forgotten it, were given seats anew.
        Some(agreed)
            if theirs.is_some_and(|theirs| theirs.id == agreed.id && theirs.set > agreed.set) =>
        {
            SetNow::NextNodes
        }
        // Nodes of both sets: it is the one whose nodes it names.
        Some(agreed)
            if theirs == Some(agreed)
                && (known.is_some_and(|known| known < agreed.set)
                    || to.matches(agreed, &of_to.looks) > from.matches(agreed, &of_from.looks)) =>
        {
            SetNow::NextNodes
        }
        Some(Deployment { phase: Phase::Stands, .. }) => SetNow::Nodes,
        Some(_) => SetNow::Sealed,
        None if theirs.is_some() => SetNow::NextNodes,
        None => SetNow::Unknown,
    }
}

/// How far the change of the lock nodes is that a file asks for. Changes nothing.
///
/// # Errors
/// If the file asks for none.
pub async fn status(config: &LocksConfig) -> Result<ChangeStatus, ChangeError> {
    let next = sets(config)?;
    let (from, to) = (NodeSet::new(config).await, NodeSet::new(&next).await);
    let mut looks = 0;
    loop {
        let (of_from, of_to) = tokio::join!(from.look(), to.look());
        let now = set_now((&from, &of_from), (&to, &of_to), None);
        let others = now == SetNow::Decided
            && decided(&of_from, &of_to)
                .is_some_and(|(first, _)| !are_of(&to, &of_to, &first, true));
        let now = if others { SetNow::Others } else { now };
        let without = match now {
            SetNow::Nodes => missing(&from, &of_from),
            SetNow::NextNodes => missing(&to, &of_to),
            _ => Vec::new(),
        };
        // Who has just begun, or was restarted, is told by the proxies.
        looks += 1;
        if !without.is_empty() && looks < LOOKS {
            sleep(AGAIN).await;
            continue;
        }
        let ours = of_from.survey.ours.as_deref();
        let (nodes, next_nodes) = (told(&from, &of_from, ours), told(&to, &of_to, ours));
        return Ok(ChangeStatus { now, without, nodes, next_nodes });
    }
}

/// Whether a quorum of these are nodes that were decided upon. `if_silent`: whether one that does not
/// answer counts as such.
fn are_of(to: &NodeSet, of_to: &LookedAt, first: &Deployment, if_silent: bool) -> bool {
    let is_named = |seat: &usize| match &of_to.looks[*seat] {
        Some(look) => look.identity().is_some_and(|who| first.names(*seat, &who)),
        None => if_silent,
    };
    to.is_quorum(&(0..to.ways.len()).filter(is_named).collect::<Vec<usize>>())
}

/// The nodes of the set that votes which do not vote, or do not answer.
fn missing(set: &NodeSet, looked: &LookedAt) -> Vec<String> {
    let agreed = looked.survey.committed.as_ref().map(|accepted| accepted.deployment.set);
    let votes = |seat: usize| {
        let marker = looked.looks[seat].as_ref().and_then(SelfReport::marker);
        looked.survey.intact[seat] && marker.map(|marker| marker.deployment.set) == agreed
    };
    let missing = (0..set.ways.len()).filter(|seat| !votes(*seat));
    missing.map(|seat| set.ways[seat].address.to_string()).collect()
}

/// What each node has. `ours`: the deployment of `locks.nodes`, if it is known.
fn told(set: &NodeSet, looked: &LookedAt, ours: Option<&str>) -> Vec<NodeOfSet> {
    let of = |(seat, way): (usize, &Way)| {
        let (what, foreign) = match &looked.all[seat] {
            Err(error) => (error.to_string(), None),
            Ok(answered) => (words(&answered.look), foreign(&answered.look, ours)),
        };
        NodeOfSet { address: way.address.to_string(), what, foreign }
    };
    set.ways.iter().enumerate().map(of).collect()
}

/// What a node has, in words.
fn words(look: &SelfReport) -> String {
    let marker = match &look.marker {
        MarkerFound::Nothing => return "no marker".into(),
        MarkerFound::Other => return "something else than a marker".into(),
        MarkerFound::Marker(marker) => marker,
    };
    let Deployment { id, epoch, set, phase, shape, .. } = &marker.deployment;
    let phase = match phase {
        Phase::Stands => "votes",
        Phase::Joint(_) => "is sealed",
        Phase::Left(..) => "is left",
    };
    let is_named = look.identity().is_some_and(|who| marker.deployment.names(marker.seat, &who));
    let forgotten = if is_named { "" } else { ", waits" };
    let seat = marker.seat + 1;
    format!("node {seat} of {shape} of set {set}, which {phase}{forgotten}; epoch {epoch} of {id}")
}

/// Has `locks.next_nodes` of a configuration take the place of `locks.nodes`. May be repeated whatever
/// became of it before. Tells its steps.
///
/// # Errors
/// If nodes are missing or not fit. Unless the error says so, nothing has changed.
pub async fn change(
    config: &LocksConfig,
    mut tell: impl FnMut(&str),
) -> Result<Changed, ChangeError> {
    let next = sets(config)?;
    let (from, to) = (NodeSet::new(config).await, NodeSet::new(&next).await);
    let mut deadline = Instant::now() + LIMIT;
    let (mut sealed_at, mut trouble) = (None, String::new());
    // The seal under which this coordinator may copy.
    let mut own_seal = None;
    // The seal under which it has copied, and how many held locks.
    let mut copied = None;
    // Why nodes of the next set have no copy.
    let (mut without, mut has_told) = (BTreeMap::new(), false);
    loop {
        let half_way = |why: String| match sealed_at {
            None => ChangeError::Unfit(why),
            Some(_) => ChangeError::HalfWay(why),
        };
        if Instant::now() >= deadline {
            // Nobody is to wait for who mends it.
            return Err(match back_out(config).await {
                Ok(()) if sealed_at.is_some() => ChangeError::TakenBack(trouble),
                Ok(()) => ChangeError::Unfit(trouble),
                Err(_) => half_way(trouble),
            });
        }
        let (of_from, of_to) = tokio::join!(from.look(), to.look());
        for lost in silent(&to, &of_to) {
            without.entry(lost.address).or_insert(lost.why);
        }
        let done = |first: &Deployment, seal: Option<u64>, since: Instant| {
            let own = copied.filter(|(own, _)| seal.is_none_or(|seal| *own == seal));
            let held = own.map(|(_, held)| held);
            Changed { held, sealed: since.elapsed(), waiting: without_copy(&to, first, &without) }
        };
        if let Some((first, seal)) = decided(&of_from, &of_to) {
            let is_begun = has_begun(&of_to, &first);
            if is_begun && sealed_at.is_none() {
                return Err(ChangeError::Done);
            }
            let since = *sealed_at.get_or_insert_with(Instant::now);
            let longest = of_from.survey.longest;
            if is_begun || begin(&to, of_to, &first, (seal, longest)).await {
                return Ok(done(&first, Some(seal), since));
            }
            trouble = "too few of locks.next_nodes have kept what was copied: they wait as if they had been \
                       restarted; or it is decided that other nodes vote"
                .into();
            sleep(AGAIN).await;
            continue;
        }
        if set_now((&from, &of_from), (&to, &of_to), None) == SetNow::NextNodes {
            // Where all nodes are of both sets, none tells any more that one was left.
            return match (&of_to.survey.committed, sealed_at) {
                (Some(now), Some(since)) => Ok(done(&now.deployment, None, since)),
                _ => Err(ChangeError::Done),
            };
        }
        let Some(newest) = of_from.survey.newest.clone() else {
            return Err(half_way("no node of locks.nodes has a marker that fits".into()));
        };
        if !of_from.survey.is_covered(&from.voters) {
            "too few of locks.nodes are there and have kept their memory".clone_into(&mut trouble);
            sleep(AGAIN).await;
            continue;
        }
        if of_from.survey.committed.as_ref() != Some(&newest) {
            // What was begun is brought to its end.
            from.agree(of_from, newest.deployment).await;
            continue;
        }
        let Accepted { deployment, .. } = newest;
        if deployment.stands() {
            fit(&to, &of_to, &deployment)?;
            let tried = try_out(&from, &of_from, &to, &of_to, &deployment).await?;
            if !has_told {
                warn(&tried, (&from, &of_from), (&to, &of_to), &mut tell);
                has_told = true;
            }
            tell("seals locks.nodes: no lock is granted or renewed from now on");
        }
        sealed_at.get_or_insert_with(Instant::now);
        // A copy takes the one before away, upon which another coordinator may decide just now, or
        // this one has not known whether it has: each has a seal of its own. What is decided under a seal
        // comes to nothing once there is another.
        let Some(seal) = own_seal.take().filter(|seal| deployment.phase == Phase::Joint(*seal))
        else {
            let seal = jitter::number();
            own_seal = Some(seal);
            if !from.agree(of_from, following(&deployment, Phase::Joint(seal))).await {
                "not enough of locks.nodes agreed".clone_into(&mut trouble);
                sleep(AGAIN).await;
            }
            continue;
        };
        tell("copies the locks to locks.next_nodes");
        match copy((&from, &of_from), (&to, &of_to), &deployment, seal).await {
            Ok(Copied { held, seats, troubles }) => {
                copied = Some((seal, held));
                without.extend(troubles.into_iter().map(|lost| (lost.address, lost.why)));
                deadline = Instant::now() + LIMIT;
                let successor = successor(&to, &of_to, &seats, &deployment);
                tell("leaves locks.nodes for locks.next_nodes");
                let left = following(&deployment, Phase::Left(seal, Box::new(successor)));
                // The marker must be the one under which was copied.
                let looked = from.look().await;
                if looked.survey.committed.as_ref().map(|it| &it.deployment) == Some(&deployment) {
                    from.agree(looked, left).await;
                }
            }
            Err(why) => {
                trouble = why;
                sleep(AGAIN).await;
            }
        }
    }
}

/// Takes a change back that was begun and not decided.
///
/// # Errors
/// If it was decided, or too few nodes are there.
pub async fn back_out(config: &LocksConfig) -> Result<(), ChangeError> {
    let next = sets(config)?;
    let (from, to) = (NodeSet::new(config).await, NodeSet::new(&next).await);
    let deadline = Instant::now() + LIMIT;
    while Instant::now() < deadline {
        let (of_from, of_to) = tokio::join!(from.look(), to.look());
        match set_now((&from, &of_from), (&to, &of_to), None) {
            SetNow::NextNodes => return Err(ChangeError::Done),
            SetNow::Decided => return Err(ChangeError::Decided),
            SetNow::Others => return Err(ChangeError::Decided),
            SetNow::Nodes | SetNow::Sealed | SetNow::Unknown => {}
        }
        let Some(newest) = of_from.survey.newest.clone() else { break };
        let is_committed = of_from.survey.committed.as_ref() == Some(&newest);
        let stands = newest.deployment.stands();
        if is_committed && stands {
            return Ok(());
        }
        let next = match is_committed {
            true => following(&newest.deployment, Phase::Stands),
            false => newest.deployment,
        };
        from.agree(of_from, next).await;
        sleep(AGAIN).await;
    }
    Err(ChangeError::HalfWay("too few of locks.nodes are there and have kept their memory".into()))
}

/// The next epoch of a set, in another phase.
fn following(deployment: &Deployment, phase: Phase) -> Deployment {
    Deployment { epoch: deployment.epoch + 1, phase, ..deployment.clone() }
}

/// The first agreement of the set that follows one that was left.
fn first_of(left: &Deployment, successor: &NextSet) -> Deployment {
    let NextSet { shape, seats } = successor.clone();
    let (epoch, set) = (left.epoch + 1, left.set + 1);
    Deployment { epoch, set, shape, seats, phase: Phase::Stands, ..left.clone() }
}

/// The seats of the next set: those have copies.
fn successor(to: &NodeSet, of_to: &LookedAt, copied: &[usize], joint: &Deployment) -> NextSet {
    // Sealed, left, begun.
    let epoch = joint.epoch + 2;
    let seat = |(seat, look): (usize, &Option<SelfReport>)| {
        let who = look.as_ref().and_then(SelfReport::identity);
        who.filter(|_| copied.contains(&seat)).map_or(Seat::Blank(epoch), Seat::Filled)
    };
    let seats = of_to.looks.iter().enumerate().map(seat).collect();
    NextSet { shape: to.voters.shape(), seats }
}

/// The nodes that have no copy, each with the reason, where that is known.
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

/// The nodes that do not answer.
fn silent(set: &NodeSet, looked: &LookedAt) -> Vec<Trouble> {
    let of = |(seat, asked): (usize, &Result<Answered, ConnectError>)| {
        Some(Trouble::of(set, seat, asked.as_ref().err()?))
    };
    looked.all.iter().enumerate().filter_map(of).collect()
}

/// Whether a node may be copied to: why not.
fn misfit(look: &SelfReport, ours: &Deployment) -> Option<String> {
    if !look.is_master {
        return Some("is a replica".into());
    }
    if look.run_id.is_none() {
        return Some("does not tell its run_id: allow its user INFO".into());
    }
    foreign(look, Some(&ours.id))
}

/// What lies on a node that keeps it from becoming one of the deployment `ours`.
fn foreign(look: &SelfReport, ours: Option<&str>) -> Option<String> {
    match &look.marker {
        MarkerFound::Marker(marker) if ours.is_some_and(|ours| marker.deployment.id != ours) => {
            let id = &marker.deployment.id;
            Some(format!(
                "belongs to another deployment, {id}: if that is not used any more, DEL lockgate:deployment there"
            ))
        }
        MarkerFound::Other => Some("has something else at lockgate:deployment".into()),
        _ => None,
    }
}

/// Whether the next set can begin, before anything is written.
fn fit(to: &NodeSet, of_to: &LookedAt, ours: &Deployment) -> Result<(), ChangeError> {
    let mut there = Vec::new();
    let mut seen: Vec<&str> = Vec::new();
    for (seat, asked) in of_to.all.iter().enumerate() {
        let address = &to.ways[seat].address;
        let Ok(Answered { look, .. }) = asked else { continue };
        let run_id = look.run_id.as_deref().unwrap_or_default();
        if let Some(why) = misfit(look, ours) {
            return Err(ChangeError::Unfit(format!("lock node {address} {why}")));
        }
        if seen.contains(&run_id) && !to.config.allow_shared_instance {
            let why = format!("lock node {address} is the same instance as another one");
            return Err(ChangeError::Unfit(why));
        }
        seen.push(run_id);
        there.push(seat);
    }
    match to.is_quorum(&there) {
        true => Ok(()),
        false => Err(ChangeError::Unfit(joined(&silent(to, of_to)))),
    }
}

/// What came out when nodes were tried.
struct Tried {
    /// Nodes that cannot be read or written.
    troubles: Vec<Trouble>,
    /// Nodes that can, but took longer than `locks.node_timeout`.
    slow: Vec<(String, Duration)>,
    /// The most keys on any node.
    keys: u64,
}

/// Tries whether locks can be read and written, before anything is sealed.
async fn try_out(
    from: &NodeSet,
    of_from: &LookedAt,
    to: &NodeSet,
    of_to: &LookedAt,
    ours: &Deployment,
) -> Result<Tried, ChangeError> {
    let intact = (0..from.ways.len()).filter(|seat| of_from.survey.intact[*seat]);
    let is_fit =
        |seat: &usize| of_to.looks[*seat].as_ref().is_some_and(|look| misfit(look, ours).is_none());
    let fit = (0..to.ways.len()).filter(is_fit);
    let mut troubles = Vec::new();
    let readers = connect(from, &intact.collect::<Vec<_>>(), &mut troubles).await;
    let mut readers = each(readers, from, &mut troubles, |mut reader| async move {
        let done = reader.try_to_read().await;
        (reader, done)
    })
    .await;
    let writers = connect(to, &fit.collect::<Vec<_>>(), &mut troubles).await;
    let writers = each(writers, to, &mut troubles, |mut writer| async move {
        let done = writer.try_to_write().await;
        (writer, done)
    })
    .await;
    if !from.is_quorum(&seats_of(&readers)) || !to.is_quorum(&seats_of(&writers)) {
        troubles.extend(silent(from, of_from));
        troubles.extend(silent(to, of_to));
        return Err(ChangeError::Unfit(joined(&troubles)));
    }
    let mut slow = BTreeMap::new();
    for (set, all) in [(from, &readers), (to, &writers)] {
        for one in all.iter().filter(|one| one.took > set.config.node_timeout) {
            slow.insert(set.ways[one.seat].address.to_string(), one.took);
        }
    }
    let mut keys = 0;
    for reader in &mut readers {
        keys = keys.max(reader.keys().await);
    }
    Ok(Tried { troubles, slow: slow.into_iter().collect(), keys })
}

/// Tells what makes the time long in which nobody votes, and which nodes will have no part in the change.
fn warn(
    tried: &Tried,
    (from, of_from): (&NodeSet, &LookedAt),
    (to, of_to): (&NodeSet, &LookedAt),
    tell: &mut impl FnMut(&str),
) {
    let mut lost: BTreeMap<String, &str> = BTreeMap::new();
    let (before, next) = (silent(from, of_from), silent(to, of_to));
    for Trouble { address, why } in before.iter().chain(&next).chain(&tried.troubles) {
        lost.insert(address.clone(), why);
    }
    for (address, why) in lost {
        tell(&format!(
            "warning: lock node {address} has no part in it, and nobody waits for it: {why}"
        ));
    }
    for (address, took) in &tried.slow {
        let (took, limit) = (took.as_millis(), from.config.node_timeout);
        tell(&format!(
            "warning: lock node {address} takes {took} ms to answer, more than locks.node_timeout ({limit:?}): \
             nobody votes while it is waited for"
        ));
    }
    let nodes = u32::try_from(from.ways.len() + to.ways.len()).unwrap_or(u32::MAX);
    let keys = u32::try_from(tried.keys).unwrap_or(u32::MAX);
    let long = PER_KEY.saturating_mul(nodes).saturating_mul(keys);
    let ttl = from.config.default_ttl;
    let is_risky = long.saturating_mul(WELL_ABOVE) > ttl;
    if tried.keys > MANY_KEYS || is_risky {
        let about = if tried.keys < 10_000 { tried.keys } else { (tried.keys + 500) / 1000 * 1000 };
        let seconds = long.as_secs_f64();
        tell(&format!(
            "about {about} fences and locks are to be copied: nobody votes for about {seconds:.1} s"
        ));
    }
    if is_risky {
        tell(&format!(
            "warning: locks.default_ttl ({ttl:?}) is not well above that, and no lock is renewed meanwhile: \
             session locks may be lost"
        ));
    }
}

/// What came of copying.
struct Copied {
    /// How many locks may be held.
    held: usize,
    /// The seats whose copies are whole: those of a quorum.
    seats: Vec<usize>,
    /// Nodes that were not read or not written.
    troubles: Vec<Trouble>,
}

/// Copies the locks.
async fn copy(
    (from, of_from): (&NodeSet, &LookedAt),
    (to, of_to): (&NodeSet, &LookedAt),
    joint: &Deployment,
    seal: u64,
) -> Result<Copied, String> {
    let marker_of = |looked: &LookedAt, seat: usize| {
        let marker = looked.looks[seat].as_ref().and_then(SelfReport::marker);
        marker.map(|marker| marker.deployment.clone())
    };
    // A node that waits may lack locks: it counts as not read.
    let is_sealed = |seat: &usize| {
        of_from.survey.intact[*seat] && marker_of(of_from, *seat).as_ref() == Some(joint)
    };
    let sealed: Vec<usize> = (0..from.ways.len()).filter(is_sealed).collect();
    // A node of both sets that is not sealed still votes in the one before.
    let is_fit = |seat: &usize| {
        of_to.looks[*seat].as_ref().is_some_and(|look| misfit(look, joint).is_none())
            && marker_of(of_to, *seat)
                .is_none_or(|theirs| theirs == *joint || theirs.set < joint.set)
    };
    let fit: Vec<usize> = (0..to.ways.len()).filter(is_fit).collect();
    let mut troubles = Vec::new();
    let prefix: Arc<str> = from.config.prefix.as_str().into();
    let fence_ttl = from.config.fence_ttl;
    let note = Arc::new(CopyNote::new(&joint.id, seal));

    // Before the locks are read under this seal: what is noted later may be another's copy, and decided upon.
    let writers = connect(to, &fit, &mut troubles).await;
    let writers = each(writers, to, &mut troubles, |mut writer| async move {
        let done = writer.remember_note().await;
        (writer, done)
    })
    .await;

    let mut found = FoundLocks::default();
    let mut read = Vec::new();
    for mut reader in connect(from, &sealed, &mut troubles).await {
        match reader.read_all(&joint.told(reader.seat), &prefix, &mut found).await {
            Ok(()) => read.push(reader),
            // It counts as not read; what it has told stays.
            Err(error) => troubles.push(Trouble::of(from, reader.seat, &error)),
        }
    }
    if !from.is_quorum(&seats_of(&read)) {
        return Err(format!("too few of locks.nodes could be read: {}", joined(&troubles)));
    }
    let copies: Arc<[LockCopy]> = found.copies(read.len(), from.ways.len()).into();
    let held: Vec<&LockCopy> = copies.iter().filter(|lock| !lock.token.is_empty()).collect();
    let keys: Arc<BTreeSet<Vec<u8>>> = Arc::new(held.iter().map(|lock| lock.key.clone()).collect());

    let writers = each(writers, to, &mut troubles, |mut writer| {
        let marker = of_to.looks[writer.seat].as_ref().and_then(SelfReport::marker);
        let is_sealed = marker.is_some_and(|marker| marker.deployment == *joint);
        let told = marker.map(|marker| marker.deployment.told(marker.seat)).unwrap_or_default();
        let (copies, note, keys, prefix) =
            (copies.clone(), note.clone(), keys.clone(), prefix.clone());
        async move {
            let done = async {
                writer.begin(&note, &told).await?;
                // What it decides upon in the set before must not be missing there, should that stand again.
                if !is_sealed {
                    let mut own = FoundLocks::default();
                    writer.read_all(&told, &prefix, &mut own).await?;
                    writer.write((&note, &told), &own.others(&keys), fence_ttl).await?;
                }
                writer.write((&note, &told), &copies, fence_ttl).await
            };
            let done = done.await;
            (writer, done)
        }
    })
    .await;

    // Releases go through, and may have come behind the reading.
    let keys: Vec<Vec<u8>> = keys.iter().cloned().collect();
    let (mut again, mut read_again) = (FoundLocks::default(), 0);
    for reader in &mut read {
        let told = joint.told(reader.seat);
        match reader.read_these(&told, &prefix, &keys, &mut again).await {
            Ok(()) => read_again += 1,
            Err(error) => troubles.push(Trouble::of(from, reader.seat, &error)),
        }
    }
    let free = again.free(read_again, from.ways.len());
    let ended = held.iter().filter(|lock| free.contains(&lock.key));
    let ended: Arc<[LockCopy]> =
        ended.map(|lock| LockCopy { left: 0, ..(**lock).clone() }).collect();
    let count = held.len() - ended.len();
    let writers = each(writers, to, &mut troubles, |mut writer| {
        let marker = of_to.looks[writer.seat].as_ref().and_then(SelfReport::marker);
        let told = marker.map(|marker| marker.deployment.told(marker.seat)).unwrap_or_default();
        let (ended, note) = (ended.clone(), note.clone());
        async move {
            let done = async {
                writer.write((&note, &told), &ended, fence_ttl).await?;
                writer.end(&note).await
            };
            let done = done.await;
            (writer, done)
        }
    })
    .await;
    let seats = seats_of(&writers);
    match to.is_quorum(&seats) {
        true => Ok(Copied { held: count, seats, troubles }),
        false => Err(format!("too few of locks.next_nodes took a copy: {}", joined(&troubles))),
    }
}

fn seats_of(all: &[Copier]) -> Vec<usize> {
    all.iter().map(|one| one.seat).collect()
}

/// Connects to the nodes on these seats, at once.
async fn connect(set: &NodeSet, seats: &[usize], troubles: &mut Vec<Trouble>) -> Vec<Copier> {
    let mut connecting = JoinSet::new();
    for seat in seats.iter().copied() {
        let way = set.ways[seat].clone();
        connecting.spawn(async move { (seat, Copier::connect(&way).await) });
    }
    let mut all = Vec::new();
    while let Some(Ok((seat, connected))) = connecting.join_next().await {
        match connected {
            Ok(copier) => all.push(copier),
            Err(error) => troubles.push(Trouble::of(set, seat, &error)),
        }
    }
    all
}

/// Has each connection do something, all at once. Returns those that have.
async fn each<D>(
    all: Vec<Copier>,
    set: &NodeSet,
    troubles: &mut Vec<Trouble>,
    what: impl Fn(Copier) -> D,
) -> Vec<Copier>
where
    D: Future<Output = (Copier, Result<(), RedisError>)> + Send + 'static,
{
    let mut doing: JoinSet<_> = all.into_iter().map(what).collect();
    let mut well = Vec::new();
    while let Some(Ok((copier, done))) = doing.join_next().await {
        match done {
            Ok(()) => well.push(copier),
            Err(error) => troubles.push(Trouble::of(set, copier.seat, &error)),
        }
    }
    well
}

/// Writes the next set's first marker where the copy is whole still. Returns whether a quorum has it.
async fn begin(
    to: &NodeSet,
    mut of_to: LookedAt,
    first: &Deployment,
    (seal, longest): (u64, Duration),
) -> bool {
    let whole = CopyNote::whole(&first.id, seal);
    let (mut acceptors, mut admitted) = (Vec::new(), Vec::new());
    for (seat, look) in of_to.looks.iter().enumerate() {
        let Some(look) = look else { continue };
        if !look.identity().is_some_and(|who| first.names(seat, &who)) {
            continue;
        }
        if look.marker().is_some_and(|marker| marker.deployment == *first) {
            acceptors.push(seat);
            continue;
        }
        let Ok(mut copier) = Copier::connect(&to.ways[seat]).await else { continue };
        if matches!(copier.note().await, Ok(Some(note)) if note == whole) {
            acceptors.push(seat);
            admitted.push(seat);
        }
    }
    let is_begun = of_to.survey.committed.as_ref().is_some_and(|it| it.deployment == *first);
    if is_begun && admitted.is_empty() {
        return true;
    }
    if !to.is_quorum(&acceptors) {
        return false;
    }
    // The note that admits them is that of the copy.
    for seat in &admitted {
        if let Ok(answered) = &mut of_to.all[*seat] {
            answered.look.note.clone_from(&whole);
        }
    }
    let (blank, joining) = (vec![], vec![]);
    let plan = Plan { next: first.clone(), acceptors, blank, admitted, joining };
    let is_quorum = |seats: &[usize]| to.is_quorum(seats);
    let promised = of_to.survey.promised.clone();
    round::carry_out_by(COPIED, of_to.all, &plan, &promised, longest, is_quorum).await.is_some()
}
