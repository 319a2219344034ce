//! Makes `/api/status` of the proxy as it is now.

use std::{
    sync::atomic::Ordering,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use super::health::{PageSource, Readiness, state_of};
use crate::{
    clock::millis,
    config::Policy,
    fleet::difference::ModeConflict,
    lock::{Counts, NodeStatus},
    report::document::{
        AdoptRulePart, AdoptionPart, ConflictPart, DataPart, EarlierPart, GuardRulePart,
        GuardedWrites, GuardsPart, LocksPart, NodePart, PinnedByPart, ProxyPart, QuorumPart,
        SharingPart, StatusDocument, Totals,
    },
    session::{
        Shared,
        earlier::EarlierProcess,
        session_metrics::{GuardedWrite, Outcome, TakenBack, Verb},
    },
    share::{Sharers, SharersNow},
};

/// Most rules with modes two steps apart that one document lists; all are counted.
const MOST_CONFLICTS: usize = 16;

impl Totals {
    /// Returns what was counted so far.
    pub(super) fn of(shared: &Shared) -> Totals {
        let metrics = &shared.metrics;
        let adopted = shared.adoption.as_ref().map(|adoption| adoption.totals());
        let adopted = adopted.unwrap_or_default();
        let refusals = [GuardedWrite::NotHeld, GuardedWrite::Fenced, GuardedWrite::Refused];
        let no_quorum = |verb: Verb| metrics.requests_so_far(verb, Outcome::NoQuorum);
        Totals {
            grants: metrics.grants_so_far(),
            busy: metrics.requests_so_far(Verb::Lock, Outcome::Busy),
            no_quorum: Verb::ALL.into_iter().map(no_quorum).sum(),
            queue_full: metrics.requests_so_far(Verb::Lock, Outcome::QueueFull),
            lost: shared.engine.lost(),
            guard_refusals: refusals.map(|result| metrics.guarded_so_far(result)).iter().sum(),
            adopted: adopted.seen,
            adopt_refusals: adopted.refused,
            taken_back: metrics.taken_back_so_far(TakenBack::Ok),
        }
    }
}

impl StatusDocument {
    /// Describes the proxy as it is now.
    pub(super) fn of(
        state: &PageSource,
        shared: &Shared,
        sharers: Option<&Sharers>,
        actions: bool,
        peers: usize,
    ) -> StatusDocument {
        let readiness = state.readiness();
        let problems = readiness.lines.problems().into_iter().map(str::to_owned).collect();
        let (name, address) = state.data_names();
        let nodes = readiness.nodes.iter().enumerate();
        StatusDocument {
            now_ms: now_ms(),
            proxy: proxy(shared, &readiness, actions, peers),
            problems,
            data: DataPart {
                name,
                address,
                up: readiness.data_problem.is_none(),
                problem: readiness.data_problem.clone(),
            },
            quorum: QuorumPart {
                nodes: readiness.nodes.len(),
                needed: readiness.quorum,
                voting: readiness.voting,
                slack: signed(readiness.voting) - signed(readiness.quorum),
            },
            nodes: nodes.map(|(place, node)| NodePart::of(place + 1, node)).collect(),
            locks: locks(shared.engine.counts(), readiness.paused),
            totals: Totals::of(shared),
            guards: guards(shared),
            adoption: adoption(shared),
            sharing: sharers.map(sharing),
            earlier: state.earlier.all().into_iter().map(EarlierPart::of).collect(),
        }
    }
}

fn proxy(shared: &Shared, readiness: &Readiness, actions: bool, peers: usize) -> ProxyPart {
    ProxyPart {
        name: shared.name.clone(),
        version: env!("CARGO_PKG_VERSION").into(),
        pid: std::process::id(),
        uptime_ms: millis(shared.started.elapsed()),
        listen: shared.listen.iter().map(ToString::to_string).collect(),
        ready: readiness.is_ready,
        waits: readiness.only_waits,
        draining: readiness.is_draining,
        connections: shared.clients.load(Ordering::Relaxed),
        actions,
        peers,
    }
}

impl EarlierPart {
    fn of(process: EarlierProcess) -> EarlierPart {
        let EarlierProcess { pid, left } = process;
        EarlierPart {
            pid,
            connections: left.map(|left| left.connections),
            held: left.map(|left| left.held),
            waiters: left.map(|left| left.waiters),
        }
    }
}

impl NodePart {
    fn of(seat: usize, node: &NodeStatus) -> NodePart {
        let faults = || node.unfit.iter().chain(&node.found);
        NodePart {
            seat,
            address: node.address.clone(),
            up: node.up,
            votes: node.votes(),
            paused: node.paused,
            state: state_of(node),
            faults: faults().map(|fault| fault.as_str()).collect(),
            round_trip_us: node.round_trip.map(micros),
            clock_ahead_us: node.clock_ahead,
        }
    }
}

fn locks(counts: Counts, paused: Option<Duration>) -> LocksPart {
    LocksPart {
        held: counts.held,
        session: counts.session_locks,
        leases: counts.held - counts.session_locks,
        adopted: counts.adopted,
        waiters: counts.waiters,
        longest_wait_ms: millis(counts.longest_wait),
        oldest_hold_ms: millis(counts.oldest_hold),
        paused_ms: millis(paused.unwrap_or_default()),
    }
}

fn guards(shared: &Shared) -> Option<GuardsPart> {
    let guards = shared.guards.as_ref()?;
    let so_far = |result| shared.metrics.guarded_so_far(result);
    let rules = guards.rules().iter().map(|rule| GuardRulePart {
        keys: rule.keys.as_str().to_owned(),
        lock: rule.lock.as_str().to_owned(),
        policy: match rule.policy {
            Policy::Enforce => "enforce",
            Policy::Audit => "audit",
        },
    });
    Some(GuardsPart {
        enforced: guards.enforces(),
        informed: guards.catalog.table().is_some(),
        unacknowledged: guards.unacknowledged().unwrap_or(0),
        rules: rules.collect(),
        writes: GuardedWrites {
            passed: so_far(GuardedWrite::Passed),
            notheld: so_far(GuardedWrite::NotHeld),
            fenced: so_far(GuardedWrite::Fenced),
            audited: so_far(GuardedWrite::Audited),
            refused: so_far(GuardedWrite::Refused),
        },
    })
}

fn adoption(shared: &Shared) -> Option<AdoptionPart> {
    let adoption = shared.adoption.as_ref()?;
    let totals = adoption.totals();
    let rules = adoption.rules().map(|(rule, mode)| AdoptRulePart {
        keys: rule.keys.as_str().to_owned(),
        lock: rule.lock.as_ref().map(|lock| lock.as_str().to_owned()),
        mode: mode.as_str(),
    });
    let conflicts = shared.fleet.conflicts();
    let told = conflicts.iter().take(MOST_CONFLICTS);
    Some(AdoptionPart {
        rules: rules.collect(),
        seen: totals.seen,
        unsafe_ones: totals.unsafe_ones,
        refused: totals.refused,
        mode_conflicts: conflicts.len(),
        conflicts: told
            .map(|ModeConflict { keys, here, there, name, .. }| ConflictPart {
                keys: keys.clone(),
                here: here.as_str(),
                there: there.as_str(),
                proxy: name.clone(),
            })
            .collect(),
    })
}

fn sharing(sharers: &Sharers) -> SharingPart {
    let SharersNow { shared, own, come, pinned, links, owed, most_owed } = sharers.now();
    let by = |(by, clients): (&str, u64)| PinnedByPart { by: by.into(), clients };
    let pinned = pinned.into_iter().map(by).collect();
    SharingPart { shared, own, come, pinned, links, owed, most_owed }
}

/// Returns the milliseconds since 1970.
pub(super) fn now_ms() -> u64 {
    millis(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}

/// Returns a duration in whole microseconds.
pub(super) fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

fn signed(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
