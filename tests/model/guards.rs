//! Guarded writes: what may happen in a run, what must hold and what must be possible.
//!
//! The lock nodes are not modelled again. Here they are one party that grants growing fences to one client at a time.
//! No holder notices that its time is over, as everything may be that slow. The model has the data node
//! (`guards/data.rs`) and the connections that write to it under a claim (`guards/session.rs`).

pub(crate) mod data;
pub(crate) mod session;

use stateright::{Model, Property};

use data::Reply;
use session::{Phase, Session, State, Step};

/// The most clients in a run, each on a connection of its own.
pub(crate) const CLIENTS: usize = 3;

/// Bounds of one run.
#[derive(Debug, Clone)]
pub(crate) struct Setup {
    /// LOCKs of each client.
    pub(crate) locks: [u8; CLIENTS],
    /// Guarded writes of each client.
    pub(crate) writes: u8,
    /// Connections that end at any moment: the client hangs up, or its proxy dies. Bytes that they
    /// have sent may still be carried out at any time, or never.
    pub(crate) stops: u8,
    /// How often the data node forgets fences: FLUSHALL, a restart without what came
    /// last, or a replica in its place that was behind.
    pub(crate) forgets: u8,
    /// Whether the data node then forgets all fences, and no client is told of a lock after it has run out, as the
    /// proxy looks at its clock once the data node has the fence. Otherwise the data node may also go back to an
    /// earlier fence, which no proxy can tell from the largest.
    pub(crate) forgets_all: bool,
    /// Whether replicas must have acknowledged a fence before LOCK is answered, and before it counts as announced
    /// again (`guards.replicas`). The data node goes back to what they have.
    pub(crate) replicas: bool,
    /// Whether the proxies see that the data node has another history, and ask the lock nodes before the next write
    /// under each lock. Updates lost to a write that was under way then do not count: the lock nodes are no longer
    /// asked about it.
    pub(crate) sees: bool,
    /// The fault that is planted.
    pub(crate) fault: Option<Fault>,
    /// The properties to check: some hold in every state, the others in at least one.
    pub(crate) properties: &'static [&'static str],
}

/// A planted fault, which the checker must find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// LOCK does not announce its fence on the data node; the first write does.
    NoRaiseAtLock,
    /// The client is told of its lock before the fence is announced.
    RaiseBehindAnswer,
    /// The data node takes a fence though it knows a larger one.
    RaiseLowers,
    /// A grant has the same fence as the one before it.
    FenceNotLarger,
    /// The script does not compare fences before it writes.
    NoCompareInScript,
    /// The proxy ignores the fence that GET returns.
    NoCompareInProxy,
    /// The proxy accepts a smaller fence, and does not announce its own.
    SmallerIsEnough,
    /// LOCK is answered though replicas have not acknowledged its fence.
    NotAcknowledged,
    /// A fence counts as announced whatever has become of the data node.
    NoDoubt,
    /// The proxy announces the fence again without asking the lock nodes.
    NoAsking,
    /// The long way goes without WATCH.
    NoWatch,
    /// The proxy reads the fence first, and watches it afterwards.
    WatchBehindGet,
    /// A dropped transaction is taken for done.
    DroppedIsDone,
    /// The script compares after it has written, which nothing takes back.
    CompareBehindWrite,
}

impl Setup {
    /// Whether this fault is planted.
    pub(crate) fn has(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }
}

/// No write lands below a fence that the data node has seen since it last forgot.
pub(crate) const NONE_BELOW: &str = "no write lands below a fence that the data node has seen";
/// No smaller fence lands on a write that a client was told of.
pub(crate) const NONE_OVERWRITTEN: &str = "no smaller fence lands on an acknowledged write";
/// Between the read of a client that was told of its lock and the write that it
/// computed from that, no other write lands.
pub(crate) const NO_LOST_UPDATE: &str = "no update is lost";
/// An acknowledged write lands once. A refused one does not land.
pub(crate) const TOLD: &str = "what is told of a write is what became of it";

/// Properties that must hold in every state.
pub(crate) const GUARDS_ALWAYS: &[&str] = &[NONE_BELOW, NONE_OVERWRITTEN, NO_LOST_UPDATE, TOLD];

/// A write of a later holder lands behind one of an earlier holder.
pub(crate) const SECOND_HOLDER: &str = "writes under two grants";
/// A write is refused for a larger fence.
pub(crate) const FENCED: &str = "a fenced write";
/// EXEC is dropped because the fence was written after WATCH.
pub(crate) const DROPPED: &str = "a dropped transaction";
/// LOCK is refused because the data node has seen a later grant.
pub(crate) const GIVEN_BACK: &str = "a lock given back";
/// A write lands after its lock has run out: no client has locked since, so there is none to protect.
pub(crate) const LATE: &str = "a write after its lock has run out";
/// The data node has forgotten the fence, which is announced again.
pub(crate) const RAISED_AGAIN: &str = "a fence that is told again";

/// One run of the checker.
pub(crate) struct Guarded(pub Setup);

impl Model for Guarded {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        vec![State::first(&self.0)]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        state.steps(steps, &self.0);
    }

    fn next_state(&self, state: &State, step: Step) -> Option<State> {
        Some(state.after(step, &self.0))
    }

    fn properties(&self) -> Vec<Property<Guarded>> {
        fn some(state: &State, is_so: impl Fn(&Session) -> bool) -> bool {
            state.sessions.iter().any(is_so)
        }
        /// Compares the fence that the data node answered with the session's own.
        fn told(session: &Session, phase: Phase) -> Option<std::cmp::Ordering> {
            match (session.reply, session.claim) {
                (Some(Reply::Fence(seen)), Some(claim)) if session.phase == phase => {
                    Some(seen.cmp(&claim.fence))
                }
                _ => None,
            }
        }
        use std::cmp::Ordering::{Greater, Less};
        let all: [Property<Guarded>; 10] = [
            Property::always(NONE_BELOW, |_, state: &State| !state.wrong.below),
            Property::always(NONE_OVERWRITTEN, |_, state: &State| !state.wrong.overwritten),
            Property::always(NO_LOST_UPDATE, |_, state: &State| !state.wrong.lost),
            Property::always(TOLD, |_, state: &State| !state.wrong.told),
            Property::sometimes(SECOND_HOLDER, |_, state: &State| {
                state.data.landed.windows(2).any(|two| two[0] < two[1])
            }),
            Property::sometimes(FENCED, |_, state: &State| {
                some(state, |session| told(session, Phase::Asking) == Some(Greater))
            }),
            Property::sometimes(DROPPED, |_, state: &State| {
                some(state, |session| session.reply == Some(Reply::Dropped))
            }),
            Property::sometimes(GIVEN_BACK, |_, state: &State| {
                some(state, |session| told(session, Phase::Locking) == Some(Greater))
            }),
            Property::sometimes(LATE, |_, state: &State| {
                some(state, |session| session.reply == Some(Reply::Done) && !session.valid)
            }),
            Property::sometimes(RAISED_AGAIN, |_, state: &State| {
                some(state, |session| told(session, Phase::Asking) == Some(Less))
            }),
        ];
        all.into_iter().filter(|one| self.0.properties.contains(&one.name)).collect()
    }
}
