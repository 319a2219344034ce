//! SHARED locks: many readers or one writer, over a quorum (`src/lock/scripts/readers.lua`, `acquire_shared.lua` and
//! those behind them).
//!
//! Two quorums share a node, so it is enough that no node has a writer beside a reader. But a reader is a member of a
//! set, which ends by itself while the set goes on: this model has sets whose members end one by one, intents of
//! writers that wait, and writers that take a set in which nobody is left. Claims, fences, hand-overs and
//! connections that break are in the other model. Each client has an ordered connection of its own to each node.

mod node;
mod steps;

use stateright::{Model, Property};

use self::node::Node;
use super::quorum::quorum;

/// The clients of a run: readers first.
pub(crate) const READERS: usize = 2;
pub(crate) const WRITERS: usize = 2;
const CLIENTS: usize = READERS + WRITERS;

/// Bounds of one run. All times are in ticks.
#[derive(Debug, Clone)]
pub(crate) struct Setup {
    /// The TTL of all locks, which is also how long a node waits that has lost its memory.
    pub(crate) ttl: u8,
    /// The time set aside for drift when validity is computed, and the most by which a node's clock may be early.
    pub(crate) drift: u8,
    pub(crate) fastest: u8,
    /// The earliest and the latest time at which an operation is given up.
    pub(crate) timeout: u8,
    pub(crate) patience: u8,
    /// LOCKs of each client, the readers' first. RENEWs of all.
    pub(crate) locks: [u8; CLIENTS],
    pub(crate) renewals: u8,
    /// Whether clients give locks back. Otherwise locks only expire.
    pub(crate) gives_back: bool,
    /// Whether a quorum puts a lock back where it is missing.
    pub(crate) heals: bool,
    /// For how long the intent of a refused writer lasts (0: it leaves none), and for how long in a row intents bar
    /// readers, if that has an end.
    pub(crate) intent: u8,
    pub(crate) bars: Option<u8>,
    /// How often a node leaves, and an empty one takes its seat: another, or itself when it has restarted.
    pub(crate) exchanges: u8,
    /// Whether several votes may come in before a client looks at them.
    pub(crate) late_looks: bool,
    /// Whether all requests are carried out before time passes, and a refused writer asks at each tick.
    pub(crate) prompt: bool,
    /// For how long a writer may wait in such a run, and whether an attempt of one that goes on asking leaves an intent
    /// where it is undone, as the scripts do.
    pub(crate) bound: u8,
    pub(crate) undo_leaves: bool,
    /// The fault that is planted, and on how many nodes, if it is one of nodes that tell it apart.
    pub(crate) fault: Option<Fault>,
    pub(crate) faulty: usize,
    /// The properties to check: some hold in every state, the others in at least one.
    pub(crate) properties: &'static [&'static str],
}

/// A planted fault, which the checker must find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A writer takes the lock on a faulty node though it has readers.
    ReaderBarsNoWriter,
    /// A new reader is granted beside an intent.
    IntentIgnored,
    /// A reader is not put back beside an intent.
    IntentBarsHeal,
    /// A reader is not put back where it has ended and still stands in the set.
    EndedIsThere,
    /// A renewal counts a member that has ended, which stays as it is.
    EndedCounts,
    /// A renewal gives a member that has ended a fresh end.
    EndedIsRenewed,
    /// A writer is put back where readers are.
    HealDropsReaders,
    /// An empty node that takes a seat grants at once, beside the readers of the epoch before.
    SeatWithoutWait,
    /// The vote of a node that has left counts together with votes of the next epoch.
    MixedVotes,
    /// A release has the set end when the released member would have, not with the last one that is left.
    EndOfReleased,
    /// A release ends the whole set, as that of an exclusive lock.
    ReleaseEndsSet,
}

impl Setup {
    /// Whether this fault is planted.
    pub(crate) fn has(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }
}

/// Whether a client only reads.
pub(crate) fn is_reader(client: usize) -> bool {
    client < READERS
}

/// What a client knows of a node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Vote {
    /// Nothing was asked.
    #[default]
    None,
    Pending,
    Yes,
    No,
    Missing,
}

/// A node, with the clients' connections to it and what they know of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Column {
    node: Node,
    /// Requests on their way to the node, the oldest in the lowest byte.
    links: [u64; CLIENTS],
    votes: [Vote; CLIENTS],
}

/// A client that asks all nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Asking {
    renews: bool,
    elapsed: u8,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Client {
    /// The LOCKs that are left, and the number of the last one.
    locks: u8,
    number: u8,
    asking: Option<Asking>,
    /// Whether it was told of a grant that it has not given back, and the rest of its validity.
    holds: bool,
    valid: u8,
}

/// What has happened, as far as a property asks for it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
struct Seen {
    read: bool,
    barred: bool,
    passed: bool,
    let_in: bool,
    counted: bool,
    healed: bool,
    left_out: bool,
}

/// A state of the model.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct State<const NODES: usize> {
    columns: [Column; NODES],
    clients: [Client; CLIENTS],
    renewals: u8,
    exchanges: u8,
    /// In a prompt run, for how long writers have waited.
    waited: u8,
    seen: Seen,
}

/// One step. Nodes and clients are named by their places in the state before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Time passes.
    Tick,
    /// A client sends LOCK, RENEW or UNLOCK.
    Lock(usize),
    Renew(usize),
    Unlock(usize),
    /// Time is up for a command, or its client hangs up.
    GiveUp(usize),
    /// A client looks at the votes that have come in.
    Look(usize),
    /// A node carries out the oldest request of a client, whose vote comes in.
    CarryOut {
        node: usize,
        client: usize,
    },
    /// An empty node takes a node's seat, with which the next epoch begins.
    Exchange(usize),
}

/// No two clients count on the lock, if one of them writes.
pub(crate) const WRITER_ALONE: &str = "a writer counts on the lock alone";
/// The lock of a client that counts on it is on a quorum, but for nodes that have forgotten theirs.
pub(crate) const ON_A_QUORUM: &str = "who counts on the lock has it on a quorum";
/// The key of a set ends with the last of its members.
pub(crate) const SET_LASTS: &str = "a set lasts as long as its last member";
/// A node with an intent that bars grants no new reader.
pub(crate) const BARRED_IS_BARRED: &str = "no reader begins beside an intent that bars";
/// A writer that goes on asking has the lock once the readers that it found have ended.
pub(crate) const NO_STARVING: &str = "readers that come do not keep a writer out";
/// No node renews a member that has ended.
pub(crate) const ENDED_IS_GONE: &str = "a member that has ended counts for nothing";
/// A reader is put back wherever no writer has the lock, beside intents and in place of a member that has ended.
pub(crate) const PUT_BACK_ANYWAY: &str = "only a writer keeps a reader from being put back";
/// Properties that must hold in every state.
pub(crate) const SHARED_ALWAYS: &[&str] = &[
    WRITER_ALONE,
    ON_A_QUORUM,
    SET_LASTS,
    BARRED_IS_BARRED,
    NO_STARVING,
    ENDED_IS_GONE,
    PUT_BACK_ANYWAY,
];

/// Two readers count on the lock.
pub(crate) const BOTH_READ: &str = "two readers at once";
/// A writer is granted the lock that a reader had before.
pub(crate) const WRITES_AFTER: &str = "a writer after a reader";
/// A writer is granted the lock for which it has asked before, and an intent has kept a reader out.
pub(crate) const INTENT_HELPS: &str = "a writer that an intent has let in";
/// A reader is granted beside an intent that no longer bars.
pub(crate) const INTENT_YIELDS: &str = "a reader beside an intent whose time is over";
/// A reader counts on the lock, and a node has one put back.
pub(crate) const READER_HEALED: &str = "a reader that is put back";
/// A node grants again after it has lost its memory.
pub(crate) const FORGETS_AND_GRANTS: &str = "a grant by a node that had forgotten";

/// One run of the checker.
#[derive(Clone)]
pub(crate) struct Shared<const NODES: usize>(pub(crate) Setup);

impl<const NODES: usize> State<NODES> {
    /// Returns the states in which nothing has happened yet: one for each way in which the nodes' clocks may run.
    fn first(setup: &Setup) -> Vec<Self> {
        let late = (0..=setup.fastest).map(|fast| {
            let column = |at: usize| {
                // Of all ways, those in which clocks differ most.
                let fast = if at.is_multiple_of(2) { fast } else { 0 };
                let is_faulty = at < setup.faulty;
                let node = Node { fast, is_faulty, ..Node::default() };
                Column { node, links: [0; CLIENTS], votes: [Vote::None; CLIENTS] }
            };
            State {
                columns: std::array::from_fn(column),
                clients: setup.locks.map(|locks| Client { locks, ..Client::default() }),
                renewals: setup.renewals,
                exchanges: setup.exchanges,
                waited: 0,
                seen: Seen::default(),
            }
        });
        late.collect()
    }

    /// Returns the clients of a kind that count on the lock.
    fn valid(&self, readers: bool) -> impl Iterator<Item = (usize, &Client)> {
        let all = self.clients.iter().enumerate();
        all.filter(move |(at, one)| one.valid > 0 && is_reader(*at) == readers)
    }

    fn is_writer_alone(&self) -> bool {
        match self.valid(false).count() {
            0 => true,
            writers => writers + self.valid(true).count() == 1,
        }
    }

    /// Whether all who count on the lock have it on enough nodes.
    fn is_on_quorums(&self) -> bool {
        let has = |client: usize, number: u8| {
            let node = |column: &&Column| column.node.has(client, number) || column.node.forgot;
            self.columns.iter().filter(node).count()
        };
        let mut all = self.valid(true).chain(self.valid(false));
        all.all(|(client, one)| has(client, one.number) >= quorum(NODES))
    }
}

impl<const NODES: usize> Model for Shared<NODES> {
    type State = State<NODES>;
    type Action = Step;

    fn init_states(&self) -> Vec<State<NODES>> {
        State::first(&self.0).into_iter().map(State::in_order).collect()
    }

    fn actions(&self, state: &State<NODES>, steps: &mut Vec<Step>) {
        state.steps(&self.0, steps);
    }

    fn next_state(&self, state: &State<NODES>, step: Step) -> Option<State<NODES>> {
        Some(state.after(step, &self.0))
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let all: [Property<Self>; 13] = [
            Property::always(WRITER_ALONE, |_, state: &State<NODES>| state.is_writer_alone()),
            Property::always(ON_A_QUORUM, |_, state: &State<NODES>| state.is_on_quorums()),
            Property::always(SET_LASTS, |_, state: &State<NODES>| {
                state.columns.iter().all(|column| column.node.last() <= column.node.key)
            }),
            Property::always(BARRED_IS_BARRED, |_, state: &State<NODES>| !state.seen.passed),
            Property::always(NO_STARVING, |run: &Self, state: &State<NODES>| {
                state.waited <= run.0.bound
            }),
            Property::always(ENDED_IS_GONE, |_, state: &State<NODES>| !state.seen.counted),
            Property::always(PUT_BACK_ANYWAY, |_, state: &State<NODES>| !state.seen.left_out),
            Property::sometimes(BOTH_READ, |_, state: &State<NODES>| {
                state.valid(true).count() == READERS
            }),
            Property::sometimes(WRITES_AFTER, |_, state: &State<NODES>| {
                state.seen.read && state.valid(false).count() > 0
            }),
            Property::sometimes(INTENT_HELPS, |_, state: &State<NODES>| {
                state.seen.barred && state.valid(false).any(|(_, writer)| writer.number > 1)
            }),
            Property::sometimes(INTENT_YIELDS, |_, state: &State<NODES>| state.seen.let_in),
            Property::sometimes(READER_HEALED, |_, state: &State<NODES>| {
                state.seen.healed && state.valid(true).count() > 0
            }),
            Property::sometimes(FORGETS_AND_GRANTS, |_, state: &State<NODES>| {
                let grants = |column: &Column, client: usize| {
                    column.node.forgot && column.votes[client] == Vote::Yes
                };
                state.columns.iter().any(|column| {
                    let asks = |(at, one): (usize, &Client)| !one.holds && grants(column, at);
                    state.clients.iter().enumerate().any(asks)
                })
            }),
        ];
        all.into_iter().filter(|one| self.0.properties.contains(&one.name)).collect()
    }
}
