//! One of the two sets of lock nodes of a change: the answers of its nodes, and its agreement.

use std::{
    fmt,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use tokio::time::Instant;

use super::{
    super::{
        marker::Deployment,
        round::{self, Answered, Way},
        seats::{Plan, Survey},
        self_report::{CONNECT_LIMIT, ConnectError, SelfReport},
    },
    change_error::ChangeError,
    which::SetReport,
};
use crate::{
    config::{LockNode, LocksConfig},
    lock::{
        address::{NodeAddress, connector_to_nodes},
        voters::Voters,
    },
};

/// The pause before another attempt.
pub(super) const AGAIN: Duration = Duration::from_millis(100);
/// How long Sentinels may take to name the masters.
const SENTINELS_LIMIT: Duration = Duration::from_secs(3);

/// One of the two sets, and the way to its nodes.
pub(super) struct NodeSet {
    pub(super) config: LocksConfig,
    pub(super) voters: Voters,
    pub(super) ways: Vec<Way>,
    /// For each seat, whether its node did not answer the last look, though a quorum did.
    silent: Vec<AtomicBool>,
}

/// A node that cannot be used, or not fully.
pub(super) struct Trouble {
    pub(super) address: String,
    pub(super) why: String,
}

impl Trouble {
    pub(super) fn of(set: &NodeSet, seat: usize, why: &impl fmt::Display) -> Trouble {
        Trouble { address: set.ways[seat].address.to_string(), why: why.to_string() }
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "lock node {}: {}", self.address, self.why)
    }
}

/// Joins all of them into one text.
pub(super) fn joined(troubles: &[Trouble]) -> String {
    let all: Vec<String> = troubles.iter().map(ToString::to_string).collect();
    all.join("; ")
}

/// The answers of a set's nodes.
pub(super) struct LookedAt {
    pub(super) all: Vec<Result<Answered, ConnectError>>,
    pub(super) looks: Vec<Option<SelfReport>>,
    pub(super) survey: Survey,
}

impl NodeSet {
    pub(super) async fn new(config: &LocksConfig) -> NodeSet {
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

    /// Looks at all nodes. A node that did not answer the last look, though a quorum did, gets little time: no node may
    /// be voting meanwhile.
    pub(super) async fn look(&self) -> LookedAt {
        let was_silent = |seat: usize| self.silent[seat].load(Ordering::Relaxed);
        let patience = |seat| match was_silent(seat) {
            // One `node_timeout` to connect, and one to answer.
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

    /// Makes the next look give little time to any node of this set.
    pub(super) fn expect_silence(&self) {
        self.silent.iter().for_each(|silent| silent.store(true, Ordering::Relaxed));
    }

    /// Whether these seats are those of a quorum.
    pub(super) fn is_quorum(&self, seats: &[usize]) -> bool {
        self.voters.agree(|_| false, |seat| seats.contains(&seat))
    }

    /// Returns the reports of its nodes, for [`super::which`].
    pub(super) fn report<'a>(&'a self, looked: &'a LookedAt) -> SetReport<'a> {
        SetReport { voters: &self.voters, looks: &looked.looks, survey: &looked.survey }
    }

    /// Writes a change of the agreement on a quorum. Returns whether a quorum has accepted it.
    pub(super) async fn agree(&self, looked: LookedAt, next: Deployment) -> bool {
        // A node of both sets that has begun in the next one no longer decides here.
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

/// Returns the configuration of the next set, if the file asks for a change that is possible.
pub(super) fn sets(config: &LocksConfig) -> Result<LocksConfig, ChangeError> {
    let impossible = |why: &str| Err(ChangeError::Impossible(why.into()));
    if !config.quarantine {
        return impossible("locks.quarantine is off, so no node can prove to which set it belongs");
    }
    let Some(next) = config.next() else {
        return impossible("the file has no locks.next_nodes, the lock nodes to come");
    };
    if next.nodes == config.nodes {
        return impossible("locks.next_nodes are locks.nodes: there is nothing to change");
    }
    // A failover may lose a marker, and no other node contradicts a single voter that has lost it.
    let is_fixed = |node: &LockNode| matches!(node, LockNode::Fixed(_));
    match config.nodes.iter().chain(&next.nodes).all(is_fixed) {
        true => Ok(next),
        false => {
            impossible("lock nodes behind Sentinels and clusters are not changed while proxies run")
        }
    }
}

/// Lists the nodes that do not answer.
pub(super) fn silent(set: &NodeSet, looked: &LookedAt) -> Vec<Trouble> {
    let of = |(seat, asked): (usize, &Result<Answered, ConnectError>)| {
        Some(Trouble::of(set, seat, asked.as_ref().err()?))
    };
    looked.all.iter().enumerate().filter_map(of).collect()
}
