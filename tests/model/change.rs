//! A change of the lock nodes while proxies run: the seal, the copy, the decision and the beginning
//! (`src/lock/members/change/`).
//!
//! The set before is A, the next one is B; they may share nodes. Another model checks the locks themselves: here a
//! node carries out a request and answers it in one step, a fence is raised with the last vote, and a coordinator's
//! look and the promises of a round are one step, as promises of different nodes do not depend on each other. Each
//! marker, reading, copy and release on each node is a step of its own. A coordinator that takes no further step has
//! died.

use stateright::{Model, Property};

use super::quorum::quorum;

/// The number of nodes in each of A and B, and the most in both.
const NODES: usize = 3;
const ALL: usize = 2 * NODES;
/// The number of clients, each with a proxy of its own at first, and that of coordinators.
const PARTIES: usize = 2;
/// A claim that no client has.
const NOBODY: u8 = 15;

/// Bounds of one run. Times are in ticks.
#[derive(Debug, Clone)]
pub(crate) struct Setup {
    /// The TTL of all locks. In the beginning the first client has just been granted the lock on this
    /// many nodes.
    pub(crate) ttl: u8,
    pub(crate) held_by: usize,
    /// The state at the start.
    pub(crate) start: Start,
    /// How many nodes A and B share: the last of A are the first of B.
    pub(crate) shared: usize,
    /// Whether the second node of A waits on its seat, where its votes count for renewals only. The first client was
    /// granted the lock by the first node and by the one that had that seat before.
    pub(crate) waits: bool,
    /// Whether each proxy knows B.
    pub(crate) knows: [bool; PARTIES],
    /// How many may come: LOCKs of each client; RENEWs of both; RENEWs through the other proxy; UNLOCKs of both;
    /// UNLOCKs through a proxy that has not granted the lock.
    pub(crate) locks: [u8; PARTIES],
    pub(crate) renewals: u8,
    pub(crate) take_overs: u8,
    pub(crate) unlocks: u8,
    pub(crate) unlocks_elsewhere: u8,
    /// How often each coordinator asks the nodes of A, after which it may write what it wants.
    pub(crate) asks: [u8; PARTIES],
    /// Whether each coordinator may change the nodes, and may back out.
    pub(crate) changes: [bool; PARTIES],
    pub(crate) backs_out: [bool; PARTIES],
    /// Whether a change that was decided and cannot begin may be copied anew.
    pub(crate) copies_anew: bool,
    /// How often a node of B restarts with an empty memory.
    pub(crate) restarts: u8,
    /// The node of A that no coordinator reaches; whether all others are always asked; the node of B that no
    /// coordinator reaches.
    pub(crate) away: Option<usize>,
    pub(crate) asks_all: bool,
    pub(crate) away_of_b: Option<usize>,
    /// Whether a coordinator copies only what it has read on all nodes of A.
    pub(crate) reads_all: bool,
    /// Whether the note on a copy is a step of its own.
    pub(crate) in_steps: bool,
    /// The fault that is planted.
    pub(crate) fault: Option<Fault>,
    /// The properties to check: some hold in every state, the others in at least one.
    pub(crate) properties: &'static [&'static str],
}

/// States at the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Start {
    /// A stands.
    Plain,
    /// The first coordinator has sealed A, but for the node that it does not reach.
    Sealed,
    /// The same, while the first client asks for the lock, which the last node of A has granted.
    Asked,
    /// The last node of A has noted the first client's grant as ended: an UNLOCK came to nothing.
    Noted,
    /// The first client's grant ran out; nodes of A still have a rest of it.
    Rest,
    /// Nodes of B have a grant of the first client that ran out, as an earlier change was backed out.
    Stale,
    /// The first coordinator has copied to the first two nodes of B, and has left A.
    Decided,
}

/// A planted fault, which the checker must find; [`Fault::OneMarker`] alone does no harm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Nodes are read before they are sealed.
    ReadBeforeSeal,
    /// One node of A is enough to copy from.
    ReadFew,
    /// A node of A that waits on its seat is read, and counts.
    WaitingCounts,
    /// Nodes of B count as complete once one of them is.
    CopiedToFew,
    /// B begins as soon as it has its copies.
    BeginUndecided,
    /// B's marker is written whatever became of the copy.
    NoNote,
    /// A coordinator that backs out overwrites any marker.
    BackOutBlindly,
    /// A sealed node renews.
    SealedRenews,
    /// Every grant that is found on any node is copied.
    CopyAnything,
    /// Of two grants that may be held, one is copied.
    CopyOneOfTwo,
    /// A lock that no single claim can have on a quorum counts as free, though one token has it there.
    CopyByClaim,
    /// A grant that any node notes as ended is not copied.
    EndedIsFree,
    /// A copy brings back a grant that its node notes as ended.
    CopyEnded,
    /// A late copy is written on a node that has begun, or that votes in A again.
    LateCopy,
    /// A copy does not overwrite a lock that is on the node.
    CopyIfFree,
    /// A node that votes in B accepts a marker of A.
    BegunAccepts,
    /// A request goes on across a seal that was backed out.
    VotesOverSeal,
    /// A request goes on from A to B.
    VotesOfBoth,
    /// A proxy goes over to B by the marker of one node.
    OneMarker,
    /// A is sealed again though B may still begin.
    AnewUnproven,
    /// The note is removed from a node that has begun.
    AnewOverBegun,
}

/// The phase that a marker names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Phase {
    /// A votes.
    Stands,
    /// A is sealed.
    Joint,
    /// A is left, for these nodes of B.
    Left([Option<u8>; NODES]),
    /// B votes.
    Begun,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Agreement {
    epoch: u8,
    phase: Phase,
}

/// An agreement as a node stores it, with the ballot that wrote it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Marker {
    ballot: u8,
    is: Agreement,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Lock {
    claim: u8,
    left: u8,
}

/// A lock node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Server {
    who: u8,
    lock: Option<Lock>,
    fence: u8,
    /// The claims that are noted as ended, as bits.
    ended: u16,
    marker: Option<Marker>,
    promised: u8,
    /// The copy under way: its coordinator and the seal's epoch.
    copying: Option<(usize, u8)>,
    /// The epoch of the seal under which the node was copied to.
    note: Option<u8>,
}

/// What a coordinator has read on a node of A.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Read {
    lock: Option<Lock>,
    fence: u8,
    ended: u16,
}

/// A marker that is being written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Round {
    write: Marker,
    /// Markers seen on the nodes that have promised.
    seen: [Option<Marker>; NODES],
    accepted: [bool; NODES],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Coordinator {
    asks: u8,
    round: Option<Round>,
    /// The epoch of the seal that it works under.
    sealed: Option<u8>,
    reads: [Option<Read>; NODES],
    /// The nodes of B that it has copied to, and those whose copy is complete.
    copied: [bool; NODES],
    complete: [Option<u8>; NODES],
    /// The marker of phase `Left` that a quorum has accepted.
    left: Option<Marker>,
    /// The nodes named there from which the note on the copy was removed.
    revoked: [bool; NODES],
}

/// The set that a proxy asks, and the marker that its nodes must have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Told {
    begun: bool,
    marker: Marker,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    Lock,
    Renew,
    TakeOver,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Vote {
    Pending,
    Yes(u8),
    No,
}

/// A request of a client, through one proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Asking {
    kind: Kind,
    proxy: usize,
    /// Whether it began on B.
    begun: bool,
    claim: u8,
    votes: [Vote; NODES],
    elapsed: u8,
}

/// A release under way, or the undo of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Ending {
    claim: u8,
    pending: [bool; ALL],
    done: [bool; ALL],
    is_unlock: bool,
    /// Whether B gets it, too.
    both: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Client {
    proxy: usize,
    /// The claim of its grant; 0: none.
    claim: u8,
    valid: u8,
    claims: u8,
    asking: Option<Asking>,
    ending: Option<Ending>,
    /// Whether B granted it the lock; whether A did after a change was backed out; whether B has renewed a grant of
    /// A.
    by_b: bool,
    again: bool,
    kept: bool,
}

/// A state of the model.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct State {
    servers: [Server; ALL],
    proxies: [Told; PARTIES],
    clients: [Client; PARTIES],
    coordinators: [Coordinator; PARTIES],
    /// UNLOCK through a proxy that has not granted the lock.
    elsewhere: Option<Ending>,
    renewals: u8,
    take_overs: u8,
    unlocks: u8,
    unlocks_elsewhere: u8,
    restarts: u8,
    /// What quorums of A have accepted, and which coordinator wrote it.
    chosen: Vec<(Agreement, usize)>,
    last_fence: u8,
    fence_went_back: bool,
    /// Claims, as bits, that were answered as released: once all of B had the release, or before the seal where all
    /// nodes of A are read.
    released: u16,
}

/// The aim of a coordinator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Aim {
    Seal,
    Leave,
    BackOut,
    /// To seal A again, as B cannot begin.
    Anew,
}

/// One step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Time passes.
    Tick,
    Lock {
        client: usize,
    },
    Renew {
        client: usize,
    },
    TakeOver {
        client: usize,
    },
    Vote {
        client: usize,
        seat: usize,
    },
    Unlock {
        client: usize,
    },
    UnlockElsewhere {
        client: usize,
    },
    /// An UNLOCK through the other proxy is given up.
    Abandon,
    /// A node carries a release out.
    Release {
        client: Option<usize>,
        node: usize,
    },
    /// A proxy finds an agreement of a quorum, or brings it to a node that has missed it.
    Learn {
        proxy: usize,
        begun: bool,
    },
    CatchUp {
        proxy: usize,
        seat: usize,
    },
    /// A coordinator looks at all nodes of A, or at all but one, and these promise.
    Ask {
        coordinator: usize,
        aim: Aim,
        without: usize,
    },
    Accept {
        coordinator: usize,
        seat: usize,
    },
    Read {
        coordinator: usize,
        seat: usize,
    },
    Copy {
        coordinator: usize,
        seat: usize,
    },
    Note {
        coordinator: usize,
        seat: usize,
    },
    Begin {
        coordinator: usize,
        seat: usize,
    },
    /// The note on a copy is removed.
    Revoke {
        coordinator: usize,
        seat: usize,
    },
    Restart {
        seat: usize,
    },
}

/// At most one client may count on the lock at any instant.
pub(crate) const ONE_HOLDS: &str = "one client counts on the lock";
/// Quorums of A never accept two agreements of one epoch.
pub(crate) const ONE_DECISION: &str = "a change is decided one way";
/// Fences grow in the order in which grants are told.
pub(crate) const FENCES_ONWARD: &str = "fences grow over a change";
/// No quorum of B holds a lock that was answered as released.
pub(crate) const STAYS_RELEASED: &str = "what is released does not come back";
/// Properties that must hold in every state.
pub(crate) const CHANGE_ALWAYS: &[&str] = &[ONE_HOLDS, ONE_DECISION, FENCES_ONWARD, STAYS_RELEASED];

/// B grants.
pub(crate) const GRANTED_BY_B: &str = "a grant by the nodes to come";
/// B renews a grant of A.
pub(crate) const KEPT_BY_B: &str = "a lock that outlives the change";
/// A grants after a change was backed out.
pub(crate) const GRANTED_AGAIN: &str = "a grant after backing out";
/// One coordinator has sealed, and the other has left A.
pub(crate) const FINISHED: &str = "a change that another coordinator finishes";

/// B grants, or renews a grant of A, after a change that was decided could not begin and was copied anew.
pub(crate) const COPIED_ANEW: &str = "a grant behind a second copy";

/// One run of the checker.
pub(crate) struct Change(pub(crate) Setup);

fn bit(claim: u8) -> u16 {
    1 << claim
}

fn token(claim: u8) -> u8 {
    (claim - 1) % PARTIES as u8
}

fn count(which: &[bool]) -> usize {
    which.iter().filter(|one| **one).count()
}

impl Change {
    fn has(&self, fault: Fault) -> bool {
        self.0.fault == Some(fault)
    }

    /// Returns the node on a seat of A, or of B.
    fn node(&self, begun: bool, seat: usize) -> usize {
        if begun { NODES - self.0.shared + seat } else { seat }
    }

    fn nodes(&self) -> usize {
        ALL - self.0.shared
    }

    fn is_of_b(&self, node: usize) -> bool {
        (NODES - self.0.shared..self.nodes()).contains(&node)
    }

    fn waits(&self, seat: usize) -> bool {
        self.0.waits && seat == 1
    }

    /// Whether the first client was granted the lock.
    fn was_granted(&self) -> bool {
        self.0.held_by > 0 || self.0.start == Start::Stale
    }

    fn first(&self) -> State {
        let is = Agreement { epoch: 1, phase: Phase::Stands };
        let marker = Marker { ballot: 1, is };
        let ttl = self.0.ttl;
        let held = |node: usize| node < self.0.held_by && !self.waits(node);
        let was_granted = self.was_granted();
        let servers = std::array::from_fn(|node| Server {
            who: 0,
            lock: held(node).then_some(Lock { claim: 1, left: ttl }),
            fence: u8::from(was_granted && node < quorum(NODES)),
            ended: 0,
            marker: (node < NODES).then_some(marker),
            promised: u8::from(node < NODES),
            copying: None,
            note: None,
        });
        let client = |client: usize| Client {
            proxy: client,
            claim: u8::from(client == 0 && self.0.held_by > 0),
            valid: if client == 0 && self.0.held_by > 0 { ttl } else { 0 },
            claims: u8::from(client == 0 && self.0.held_by > 0),
            asking: None,
            ending: None,
            by_b: false,
            again: false,
            kept: false,
        };
        let coordinator = |one: usize| Coordinator {
            asks: self.0.asks[one],
            round: None,
            sealed: None,
            reads: [None; NODES],
            copied: [false; NODES],
            complete: [None; NODES],
            left: None,
            revoked: [false; NODES],
        };
        let mut state = State {
            servers,
            proxies: [Told { begun: false, marker }; PARTIES],
            clients: std::array::from_fn(client),
            coordinators: std::array::from_fn(coordinator),
            elsewhere: None,
            renewals: self.0.renewals,
            take_overs: self.0.take_overs,
            unlocks: self.0.unlocks,
            unlocks_elsewhere: self.0.unlocks_elsewhere,
            restarts: self.0.restarts,
            chosen: vec![(is, 0)],
            last_fence: u8::from(was_granted),
            fence_went_back: false,
            released: 0,
        };
        self.start(&mut state);
        state
    }

    fn start(&self, state: &mut State) {
        let start = self.0.start;
        let last = NODES - 1;
        if matches!(start, Start::Sealed | Start::Asked) {
            let is = Agreement { epoch: 2, phase: Phase::Joint };
            for seat in (0..NODES).filter(|seat| self.0.away != Some(*seat)) {
                let server = &mut state.servers[seat];
                (server.marker, server.promised) = (Some(Marker { ballot: 2, is }), 2);
            }
            state.chosen.push((is, 0));
            state.coordinators[0].sealed = Some(2);
        }
        match start {
            Start::Plain | Start::Sealed => {}
            Start::Decided => {
                let is = Agreement { epoch: 2, phase: Phase::Joint };
                state.chosen.push((is, 0));
                let reached = || (0..NODES).filter(|seat| self.0.away != Some(*seat));
                for seat in reached() {
                    state.servers[seat].marker = Some(Marker { ballot: 2, is });
                }
                state.coordinators[0].sealed = Some(2);
                reached().for_each(|seat| state.read(0, seat));
                (0..quorum(NODES)).for_each(|seat| state.copy(0, seat, self));
                let named = state.coordinators[0].complete;
                let left =
                    Marker { ballot: 4, is: Agreement { epoch: 3, phase: Phase::Left(named) } };
                for seat in reached() {
                    let server = &mut state.servers[seat];
                    (server.marker, server.promised) = (Some(left), 4);
                }
                state.chosen.push((left.is, 0));
                state.coordinators[0].left = Some(left);
            }
            Start::Rest => state.clients[0].valid = 0,
            Start::Asked => {
                state.servers[last].lock = Some(Lock { claim: 1, left: self.0.ttl });
                state.servers[last].fence = 1;
                let mut votes = [Vote::Pending; NODES];
                votes[last] = Vote::Yes(1);
                let kind = Kind::Lock;
                state.clients[0].claims = 1;
                state.clients[0].asking =
                    Some(Asking { kind, proxy: 0, begun: false, claim: 1, votes, elapsed: 0 });
            }
            Start::Noted => state.servers[last].ended |= bit(1),
            Start::Stale => {
                for seat in 0..NODES {
                    let server = &mut state.servers[self.node(true, seat)];
                    server.lock = Some(Lock { claim: 1, left: self.0.ttl });
                }
                (state.clients[0].claim, state.clients[0].claims) = (1, 1);
            }
        }
    }

    /// Returns what is copied, by what was read: the lock, and the fence. `None` if not enough was read.
    fn copy_of(&self, reads: &[Option<Read>; NODES]) -> Option<(Option<Lock>, u8)> {
        let read: Vec<Read> = reads.iter().flatten().copied().collect();
        let enough = match self.0.fault {
            Some(Fault::ReadFew) => 1,
            _ if self.0.reads_all => NODES,
            _ => quorum(NODES),
        };
        if read.len() < enough {
            return None;
        }
        let unread = NODES - read.len();
        let fence = read.iter().map(|read| read.fence).max().unwrap_or_default();
        let locks: Vec<Lock> = read.iter().filter_map(|read| read.lock).collect();
        let has = |claim: u8| locks.iter().filter(|lock| lock.claim == claim).count();
        let needed = if self.has(Fault::CopyAnything) { 0 } else { quorum(NODES) };
        let may_be_held: Vec<Lock> =
            locks.iter().copied().filter(|lock| has(lock.claim) + unread >= needed).collect();
        let ended = read.iter().fold(0, |all, read| all | read.ended);
        let Some(newest) = may_be_held.iter().map(|lock| lock.claim).max() else {
            // One token may have the lock by several claims while another proxy takes it over: no other client gets
            // it.
            let has_token = |of: &Lock| {
                let same = |lock: &&Lock| {
                    lock.claim != NOBODY
                        && of.claim != NOBODY
                        && token(lock.claim) == token(of.claim)
                };
                locks.iter().filter(same).count()
            };
            let is_held = locks.iter().any(|lock| has_token(lock) + unread >= needed);
            let left = locks.iter().map(|lock| lock.left).max().unwrap_or_default();
            let lock = Lock { claim: NOBODY, left };
            return Some(((is_held && !self.has(Fault::CopyByClaim)).then_some(lock), fence));
        };
        let is_one = may_be_held.iter().all(|lock| lock.claim == newest);
        let left = may_be_held.iter().map(|lock| lock.left).max().unwrap_or_default();
        let has_ended = ended & bit(newest) > 0;
        if has_ended && self.has(Fault::EndedIsFree) {
            return Some((None, fence));
        }
        let is_told = is_one && !has_ended || !is_one && self.has(Fault::CopyOneOfTwo);
        let oldest = may_be_held.iter().map(|lock| lock.claim).min().unwrap_or(newest);
        // By that claim no client gets the lock before its time, and none renews it.
        let claim = if is_told { oldest } else { NOBODY };
        Some((Some(Lock { claim, left }), fence))
    }
}

impl Server {
    fn is_sealed(&self, epoch: u8) -> bool {
        self.marker.is_some_and(|m| m.is == Agreement { epoch, phase: Phase::Joint })
    }

    fn has_begun(&self) -> bool {
        self.marker.is_some_and(|marker| marker.is.phase == Phase::Begun)
    }

    /// Whether the node has begun, and not by a decision from before the seal of this epoch.
    fn has_begun_since(&self, epoch: u8) -> bool {
        self.has_begun() && self.marker.is_some_and(|marker| marker.is.epoch >= epoch)
    }
}

impl State {
    /// Returns the agreement that a quorum of these nodes has accepted under one ballot.
    fn committed(&self, begun: bool, model: &Change) -> Option<Marker> {
        let markers = (0..NODES).filter_map(|seat| self.servers[model.node(begun, seat)].marker);
        let markers: Vec<Marker> = markers.collect();
        let wanted = if begun { Phase::Begun } else { Phase::Stands };
        let is_agreed = |one: &&Marker| {
            let enough = if begun && model.has(Fault::OneMarker) { 1 } else { quorum(NODES) };
            one.is.phase == wanted && markers.iter().filter(|other| other == one).count() >= enough
        };
        markers.iter().find(is_agreed).copied()
    }

    fn may_learn(&self, proxy: usize, begun: bool, model: &Change) -> Option<Marker> {
        let told = self.proxies[proxy];
        if begun && !model.0.knows[proxy] || told.begun {
            return None;
        }
        self.committed(begun, model).filter(|found| found.is.epoch > told.marker.is.epoch)
    }

    /// Takes on an agreement. Requests from before are given up, as a seal lies between.
    fn learn(&mut self, proxy: usize, begun: bool, model: &Change) {
        let Some(marker) = self.may_learn(proxy, begun, model) else { return };
        self.proxies[proxy] = Told { begun, marker };
        let goes_on = model.has(if begun { Fault::VotesOfBoth } else { Fault::VotesOverSeal });
        for client in 0..PARTIES {
            if !goes_on && self.clients[client].asking.is_some_and(|asking| asking.proxy == proxy) {
                self.give_up(client, model);
            }
        }
    }

    fn catch_up(&mut self, proxy: usize, seat: usize) {
        let Told { begun, marker } = self.proxies[proxy];
        let server = &mut self.servers[seat];
        let behind = server.marker.is_some_and(|theirs| {
            theirs.is.epoch < marker.is.epoch && theirs.is.phase != Phase::Begun
        });
        if !begun && behind && server.promised <= marker.ballot {
            (server.marker, server.promised) = (Some(marker), marker.ballot);
        }
    }

    /// Ends an attempt, and undoes it where it was granted.
    fn give_up(&mut self, client: usize, model: &Change) {
        let Some(asking) = self.clients[client].asking.take() else { return };
        if asking.kind != Kind::Lock {
            return;
        }
        let mut pending = [false; ALL];
        for (seat, vote) in asking.votes.iter().enumerate() {
            pending[model.node(asking.begun, seat)] |= matches!(vote, Vote::Yes(_));
        }
        if pending.contains(&true) {
            let (claim, done) = (asking.claim, [false; ALL]);
            self.clients[client].ending =
                Some(Ending { claim, pending, done, is_unlock: false, both: false });
        }
    }

    fn vote(&mut self, client: usize, seat: usize, model: &Change) {
        let this = self.clients[client];
        let Some(mut asking) = this.asking else { return };
        let told = self.proxies[asking.proxy];
        let node = model.node(told.begun, seat);
        // What was sent before comes first.
        self.carry_out_before(client, node, model);
        let ttl = model.0.ttl;
        let server = &mut self.servers[node];
        let proven = server.marker.is_some_and(|theirs| theirs.is == told.marker.is);
        let renews = asking.kind == Kind::Renew;
        let unproven = model.has(Fault::SealedRenews)
            && renews
            && server.marker.is_some_and(|theirs| theirs.is.phase == Phase::Joint);
        let must_not = !told.begun && model.waits(seat) && !renews;
        if !(proven || unproven) || must_not {
            return;
        }
        let own = |lock: &Lock| lock.claim == asking.claim;
        let of_token = |lock: &Lock| lock.claim != NOBODY && token(lock.claim) == client as u8;
        let vote = match (asking.kind, server.lock) {
            (Kind::Lock, None) => Some(ttl),
            (Kind::Renew, Some(lock)) if own(&lock) => Some(ttl),
            (Kind::TakeOver, Some(lock)) if of_token(&lock) => Some(ttl.max(lock.left)),
            _ => None,
        };
        asking.votes[seat] = match vote {
            Some(left) => {
                if !renews {
                    server.fence += 1;
                }
                server.lock = Some(Lock { claim: asking.claim, left });
                Vote::Yes(server.fence)
            }
            None => Vote::No,
        };
        self.clients[client].asking = Some(asking);
        self.count_votes(client, model);
    }

    fn count_votes(&mut self, client: usize, model: &Change) {
        let Some(asking) = self.clients[client].asking else { return };
        let told = self.proxies[asking.proxy];
        let no = asking.votes.iter().filter(|vote| **vote == Vote::No).count();
        if NODES - no < quorum(NODES) {
            return self.give_up(client, model);
        }
        let yes: Vec<u8> = asking
            .votes
            .iter()
            .filter_map(|vote| if let Vote::Yes(fence) = vote { Some(*fence) } else { None })
            .collect();
        let valid = model.0.ttl.saturating_sub(asking.elapsed);
        if yes.len() < quorum(NODES) {
            return;
        }
        if asking.kind != Kind::Renew {
            let fence = yes.iter().copied().max().unwrap_or_default();
            for seat in 0..NODES {
                let server = &mut self.servers[model.node(told.begun, seat)];
                if !matches!(asking.votes[seat], Vote::Yes(_)) || server.fence >= fence {
                    continue;
                }
                let proven = server.marker.is_some_and(|theirs| theirs.is == told.marker.is)
                    && server.lock.is_some_and(|lock| lock.claim == asking.claim);
                if !proven {
                    return self.give_up(client, model);
                }
                server.fence = fence;
            }
            if valid > 0 {
                self.fence_went_back |= fence <= self.last_fence;
                self.last_fence = fence;
            }
        }
        let is_new = asking.kind == Kind::Lock;
        let this = &mut self.clients[client];
        this.asking = None;
        if valid == 0 {
            return;
        }
        (this.valid, this.claim, this.proxy) = (valid, asking.claim, asking.proxy);
        if is_new {
            this.by_b = told.begun;
            this.again = !told.begun && told.marker.is.epoch > 1;
        } else {
            this.kept |= told.begun && !this.by_b;
        }
    }

    /// Carries out what the client has sent to the node before.
    fn carry_out_before(&mut self, client: usize, node: usize, model: &Change) {
        if self.clients[client].ending.is_some_and(|ending| ending.pending[node]) {
            self.release(Some(client), node, model);
        }
    }

    fn release(&mut self, client: Option<usize>, node: usize, model: &Change) {
        let ending = match client {
            Some(client) => self.clients[client].ending,
            None => self.elsewhere,
        };
        let Some(mut ending) = ending else { return };
        let server = &mut self.servers[node];
        if server.lock.is_some_and(|lock| lock.claim == ending.claim) {
            server.lock = None;
        }
        if client.is_none() || model.is_of_b(node) {
            server.ended |= bit(ending.claim);
        }
        (ending.pending[node], ending.done[node]) = (false, true);
        let of =
            |begun: bool| (0..NODES).filter(|seat| ending.done[model.node(begun, *seat)]).count();
        let is_sealed = self.chosen.iter().any(|(chosen, _)| chosen.phase == Phase::Joint);
        // If a node of A is not read, a lock that was released on the others may be held there and on one more.
        let is_seen = model.0.reads_all && !is_sealed || ending.both && of(true) == NODES;
        if ending.is_unlock && of(false) >= quorum(NODES) && is_seen {
            self.released |= bit(ending.claim);
        }
        if let Some(client) = client {
            let is_done = !ending.pending.contains(&true);
            self.clients[client].ending = Some(ending).filter(|_| !is_done);
            return;
        }
        self.elsewhere = Some(ending);
        // The client that has ended it tells its holder.
        if of(false) >= quorum(NODES) || of(true) >= quorum(NODES) {
            for client in &mut self.clients {
                if client.claim == ending.claim {
                    (client.valid, client.claim) = (0, 0);
                }
            }
        }
    }

    fn ending(&self, claim: u8, begun: bool, both: bool, model: &Change) -> Ending {
        let hears = |node: usize| {
            node < model.nodes() && (both || begun && model.is_of_b(node) || node < NODES)
        };
        let pending = std::array::from_fn(hears);
        Ending { claim, pending, done: [false; ALL], is_unlock: true, both }
    }

    fn ask(&mut self, coordinator: usize, aim: Aim, without: usize, model: &Change) {
        let this = self.coordinators[coordinator];
        let mut seen = [None; NODES];
        for (seat, seen) in seen.iter_mut().enumerate() {
            let server = &self.servers[seat];
            let may = server.marker.is_some() && !model.waits(seat) && model.0.away != Some(seat);
            // A node that votes in B no longer has a say in A.
            let is_of_a = !server.has_begun() || model.has(Fault::BegunAccepts);
            if seat != without && may && is_of_a {
                *seen = server.marker;
            }
        }
        let found = seen.iter().flatten();
        let Some(newest) = found.clone().max_by_key(|marker| marker.ballot).copied() else {
            return;
        };
        if found.clone().count() < quorum(NODES) {
            return;
        }
        let is_committed = found.filter(|marker| **marker == newest).count() >= quorum(NODES);
        let epoch = newest.is.epoch;
        let next = |phase: Phase| Some(Agreement { epoch: epoch + 1, phase });
        let same = Some(newest.is);
        let write = match (newest.is.phase, aim) {
            (Phase::Left(_), Aim::BackOut) if model.has(Fault::BackOutBlindly) => {
                Some(Agreement { epoch, phase: Phase::Stands })
            }
            (Phase::Stands, Aim::Seal) if is_committed => next(Phase::Joint),
            (Phase::Joint, Aim::Leave) if this.sealed == Some(epoch) => {
                next(Phase::Left(this.complete))
            }
            (Phase::Joint, Aim::BackOut) if is_committed => next(Phase::Stands),
            (Phase::Left(_), Aim::Anew)
                if is_committed && this.left.is_some_and(|left| left.is == newest.is) =>
            {
                next(Phase::Joint)
            }
            (Phase::Joint, Aim::Seal) if is_committed => None,
            (Phase::Left(_), _) if is_committed => None,
            (Phase::Stands, _) if is_committed => return,
            (Phase::Begun, _) => return,
            _ => same,
        };
        let mut ballot = 2 + coordinator as u8;
        for (server, _) in self.servers.iter().zip(&seen).filter(|(_, seen)| seen.is_some()) {
            while ballot <= server.promised {
                ballot += PARTIES as u8;
            }
        }
        for (server, _) in self.servers.iter_mut().zip(&seen).filter(|(_, seen)| seen.is_some()) {
            server.promised = ballot;
        }
        let this = &mut self.coordinators[coordinator];
        this.asks -= 1;
        this.round =
            write.map(|is| Round { write: Marker { ballot, is }, seen, accepted: [false; NODES] });
        if this.round.is_none() {
            self.go_on(coordinator, newest, model);
        }
    }

    /// Goes on from what a quorum has accepted.
    fn go_on(&mut self, coordinator: usize, marker: Marker, model: &Change) {
        let this = &mut self.coordinators[coordinator];
        match marker.is.phase {
            Phase::Joint if this.sealed != Some(marker.is.epoch) => {
                this.sealed = Some(marker.is.epoch);
                (this.copied, this.complete) = ([false; NODES], [None; NODES]);
                (this.left, this.revoked) = (None, [false; NODES]);
                if !model.has(Fault::ReadBeforeSeal) {
                    this.reads = [None; NODES];
                }
            }
            Phase::Left(_) => {
                if this.left.is_none_or(|left| left.is != marker.is) {
                    this.revoked = [false; NODES];
                }
                this.left = Some(marker);
            }
            _ => {}
        }
    }

    fn accept(&mut self, coordinator: usize, seat: usize, model: &Change) {
        let Some(mut round) = self.coordinators[coordinator].round else { return };
        let server = &mut self.servers[seat];
        let blindly = model.has(Fault::BackOutBlindly) && round.write.is.phase == Phase::Stands;
        let changed = server.marker != round.seen[seat] || server.promised > round.write.ballot;
        if changed && !blindly {
            // The round has failed there for good.
            round.seen[seat] = None;
            self.coordinators[coordinator].round = Some(round);
            return;
        }
        (server.marker, server.promised) = (Some(round.write), round.write.ballot);
        round.accepted[seat] = true;
        self.coordinators[coordinator].round = Some(round);
        if count(&round.accepted) == quorum(NODES) {
            let is = round.write.is;
            if !self.chosen.iter().any(|(chosen, _)| *chosen == is) {
                self.chosen.push((is, coordinator));
            }
            self.go_on(coordinator, round.write, model);
        }
    }

    fn read(&mut self, coordinator: usize, seat: usize) {
        let Server { lock, fence, ended, .. } = self.servers[seat];
        self.coordinators[coordinator].reads[seat] = Some(Read { lock, fence, ended });
    }

    fn copy(&mut self, coordinator: usize, seat: usize, model: &Change) {
        let this = self.coordinators[coordinator];
        let (Some(epoch), Some((lock, fence))) = (this.sealed, model.copy_of(&this.reads)) else {
            return;
        };
        let node = model.node(true, seat);
        self.coordinators[coordinator].copied[seat] = true;
        let server = &mut self.servers[node];
        let may = !server.has_begun_since(epoch) && (node >= NODES || server.is_sealed(epoch));
        if !may && !model.has(Fault::LateCopy) {
            return;
        }
        let has_ended = |lock: &Lock| server.ended & bit(lock.claim) > 0;
        let lock = lock.filter(|lock| !has_ended(lock) || model.has(Fault::CopyEnded));
        if server.lock.is_none() || !model.has(Fault::CopyIfFree) {
            server.lock = lock;
        }
        server.fence = server.fence.max(fence);
        if may {
            (server.copying, server.note) = (Some((coordinator, epoch)), None);
        }
        if !model.0.in_steps {
            self.note(coordinator, seat, model);
        }
    }

    fn note(&mut self, coordinator: usize, seat: usize, model: &Change) {
        let this = &mut self.coordinators[coordinator];
        let Some(epoch) = this.sealed else { return };
        let server = &mut self.servers[model.node(true, seat)];
        if server.copying != Some((coordinator, epoch)) || server.has_begun_since(epoch) {
            return;
        }
        server.note = Some(epoch);
        this.complete[seat] = Some(server.who);
        if model.has(Fault::CopiedToFew) {
            for seat in 0..NODES {
                let server = &mut self.servers[model.node(true, seat)];
                server.note = Some(epoch);
                this.complete[seat] = Some(server.who);
            }
        }
    }

    fn may_begin(&self, coordinator: usize, seat: usize, model: &Change) -> Option<Marker> {
        let this = self.coordinators[coordinator];
        let server = &self.servers[model.node(true, seat)];
        let is_since = |left: Marker| server.has_begun_since(left.is.epoch - 1);
        if this.left.map_or(server.has_begun(), is_since) {
            return None;
        }
        let begun = |epoch: u8| Agreement { epoch: epoch + 1, phase: Phase::Begun };
        if model.has(Fault::BeginUndecided) {
            let epoch = this.sealed.filter(|epoch| server.note == Some(*epoch))?;
            return Some(Marker { ballot: 100, is: begun(epoch) });
        }
        let left = this.left?;
        let Phase::Left(named) = left.is.phase else { return None };
        let noted = named[seat] == Some(server.who) && server.note == Some(left.is.epoch - 1);
        // B begins under one ballot, whichever coordinator wrote `Left`, and under whichever ballot.
        let may = noted || model.has(Fault::NoNote);
        may.then(|| Marker { ballot: 100, is: begun(left.is.epoch - 1) })
    }

    fn begin(&mut self, coordinator: usize, seat: usize, model: &Change) {
        let Some(mut marker) = self.may_begin(coordinator, seat, model) else { return };
        if model.has(Fault::BegunAccepts) {
            marker.ballot = 0;
        }
        let server = &mut self.servers[model.node(true, seat)];
        (server.marker, server.promised, server.note) = (Some(marker), marker.ballot, None);
    }

    /// Whether the nodes that `Left` names, less those whose note this coordinator has removed, are too few to begin.
    fn cannot_begin(&self, coordinator: usize, model: &Change) -> bool {
        let this = &self.coordinators[coordinator];
        let Some(Phase::Left(named)) = this.left.map(|left| left.is.phase) else { return false };
        let may = |seat: &usize| named[*seat].is_some() && !this.revoked[*seat];
        (0..NODES).filter(may).count() < quorum(NODES) || model.has(Fault::AnewUnproven)
    }

    /// Whether a node has the note by which it would begin.
    fn may_revoke(&self, coordinator: usize, seat: usize, model: &Change) -> bool {
        let this = &self.coordinators[coordinator];
        let Some(left) = this.left else { return false };
        let Phase::Left(named) = left.is.phase else { return false };
        let server = &self.servers[model.node(true, seat)];
        let has_note = named[seat] == Some(server.who) && server.note == Some(left.is.epoch - 1);
        let any = model.has(Fault::AnewOverBegun) && server.has_begun();
        model.0.copies_anew && !this.revoked[seat] && (has_note || any)
    }

    fn revoke(&mut self, coordinator: usize, seat: usize, model: &Change) {
        let server = &mut self.servers[model.node(true, seat)];
        (server.note, server.copying) = (None, None);
        self.coordinators[coordinator].revoked[seat] = true;
    }

    fn tick(&mut self, model: &Change) {
        for server in &mut self.servers {
            let next = server.lock.map(|lock| Lock { left: lock.left - 1, ..lock });
            server.lock = next.filter(|lock| lock.left > 0);
        }
        for client in 0..PARTIES {
            let this = &mut self.clients[client];
            this.valid = this.valid.saturating_sub(1);
            if let Some(asking) = &mut this.asking {
                asking.elapsed += 1;
                if asking.elapsed >= model.0.ttl {
                    self.give_up(client, model);
                }
            }
        }
    }

    fn steps_of_client(&self, client: usize, model: &Change, steps: &mut Vec<Step>) {
        let this = &self.clients[client];
        if let Some(asking) = this.asking {
            let pending = |seat: &usize| asking.votes[*seat] == Vote::Pending;
            steps.extend((0..NODES).filter(pending).map(|seat| Step::Vote { client, seat }));
        } else {
            let first = u8::from(client == 0 && model.was_granted());
            let locks = this.claims - first < model.0.locks[client];
            // A request that no quorum takes now might as well have come earlier.
            let told = self.proxies[this.proxy];
            let proven = |seat: &usize| {
                let server = &self.servers[model.node(told.begun, *seat)];
                server.marker.is_some_and(|theirs| theirs.is == told.marker.is)
            };
            let is_asked = (0..NODES).filter(proven).count() >= quorum(NODES);
            if locks && this.valid == 0 && this.ending.is_none() && is_asked {
                steps.push(Step::Lock { client });
            }
            let is_ending = self.elsewhere.is_some_and(|ending| ending.claim == this.claim);
            if this.claim > 0 && self.renewals > 0 && !is_ending {
                steps.push(Step::Renew { client });
            }
            if this.claim > 0 && self.take_overs > 0 && this.ending.is_none() {
                steps.push(Step::TakeOver { client });
            }
            if this.claim > 0 && self.unlocks > 0 && this.ending.is_none() {
                steps.push(Step::Unlock { client });
            }
        }
        if this.claim > 0 && self.unlocks_elsewhere > 0 && this.asking.is_none() {
            steps.push(Step::UnlockElsewhere { client });
        }
        if let Some(ending) = this.ending {
            let pending = (0..model.nodes()).filter(|node| ending.pending[*node]);
            steps.extend(pending.map(|node| Step::Release { client: Some(client), node }));
        }
    }

    fn steps_of_coordinator(&self, coordinator: usize, model: &Change, steps: &mut Vec<Step>) {
        let this = &self.coordinators[coordinator];
        if this.asks > 0 {
            let complete = this.complete.iter().flatten().count();
            let enough = if model.has(Fault::CopiedToFew) { 1 } else { quorum(NODES) };
            let mut aims = Vec::new();
            if model.0.changes[coordinator] {
                aims.push(Aim::Seal);
                if this.sealed.is_some() && complete >= enough && this.left.is_none() {
                    aims.push(Aim::Leave);
                }
            }
            if model.0.backs_out[coordinator] {
                aims.push(Aim::BackOut);
            }
            if model.0.copies_anew && self.cannot_begin(coordinator, model) {
                aims.push(Aim::Anew);
            }
            for aim in aims {
                // Without one of the nodes, or with all.
                for without in 0..=NODES {
                    let is_reached = match model.0.away {
                        Some(away) => away == without,
                        None => !model.0.asks_all || without == NODES,
                    };
                    if is_reached {
                        steps.push(Step::Ask { coordinator, aim, without });
                    }
                }
            }
        }
        for seat in 0..NODES {
            if let Some(round) = &this.round
                && round.seen[seat].is_some()
                && !round.accepted[seat]
            {
                steps.push(Step::Accept { coordinator, seat });
            }
            let early = model.has(Fault::ReadBeforeSeal) && this.sealed.is_none();
            let is_there = model.0.away != Some(seat);
            if early && is_there && this.asks > 0 && this.reads[seat..].iter().all(Option::is_none)
            {
                steps.push(Step::Read { coordinator, seat });
            }
            if let Some(epoch) = this.sealed
                && this.left.is_none()
                && model.0.changes[coordinator]
            {
                let server = &self.servers[seat];
                let unsealed = model.has(Fault::WaitingCounts) && model.waits(seat);
                let is_there = model.0.away != Some(seat)
                    && (!model.waits(seat) || model.has(Fault::WaitingCounts));
                // The order among sealed nodes, and among nodes that have not begun, makes no difference: one is
                // tried.
                let first =
                    !this.copied.contains(&true) && this.reads[seat..].iter().all(Option::is_none);
                if first && is_there && (server.is_sealed(epoch) || unsealed) {
                    steps.push(Step::Read { coordinator, seat });
                }
                let is_there = model.0.away_of_b != Some(seat);
                let is_next = is_there && !this.copied[seat..].contains(&true);
                if is_next && model.copy_of(&this.reads).is_some() {
                    steps.push(Step::Copy { coordinator, seat });
                }
                if this.copied[seat] && this.complete[seat].is_none() && model.0.in_steps {
                    steps.push(Step::Note { coordinator, seat });
                }
            }
            if self.may_begin(coordinator, seat, model).is_some() {
                steps.push(Step::Begin { coordinator, seat });
            }
            if self.may_revoke(coordinator, seat, model) {
                steps.push(Step::Revoke { coordinator, seat });
            }
        }
    }

    /// Whether a quorum of B holds a lock that was answered as released.
    fn came_back(&self, model: &Change) -> bool {
        let holds = |claim: u8| {
            let has = |seat: &usize| {
                let server = &self.servers[model.node(true, *seat)];
                server.has_begun() && server.lock.is_some_and(|lock| lock.claim == claim)
            };
            (0..NODES).filter(has).count() >= quorum(NODES)
        };
        (1..NOBODY).any(|claim| self.released & bit(claim) > 0 && holds(claim))
    }
}

impl Model for Change {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        vec![self.first()]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        steps.push(Step::Tick);
        for party in 0..PARTIES {
            state.steps_of_client(party, self, steps);
            state.steps_of_coordinator(party, self, steps);
            for begun in [false, true] {
                if state.may_learn(party, begun, self).is_some() {
                    steps.push(Step::Learn { proxy: party, begun });
                }
            }
            if state.proxies[party].marker.is.epoch > 1 && !state.proxies[party].begun {
                steps.extend((0..NODES).map(|seat| Step::CatchUp { proxy: party, seat }));
            }
        }
        if let Some(ending) = state.elsewhere {
            let pending = (0..self.nodes()).filter(|node| ending.pending[*node]);
            steps.extend(pending.map(|node| Step::Release { client: None, node }));
            steps.push(Step::Abandon);
        }
        if state.restarts > 0 {
            steps.extend((0..NODES).map(|seat| Step::Restart { seat }));
        }
    }

    fn next_state(&self, state: &State, step: Step) -> Option<State> {
        let mut next = state.clone();
        let ask = |next: &mut State, client: usize, kind: Kind| {
            let this = &mut next.clients[client];
            let (mut claim, mut proxy) = (this.claim, this.proxy);
            if kind != Kind::Renew {
                claim = 1 + client as u8 + PARTIES as u8 * this.claims;
                this.claims += 1;
            }
            if kind == Kind::TakeOver {
                proxy = 1 - proxy;
            }
            let (begun, votes) = (state.proxies[proxy].begun, [Vote::Pending; NODES]);
            this.asking = Some(Asking { kind, proxy, begun, claim, votes, elapsed: 0 });
        };
        match step {
            Step::Tick => next.tick(self),
            Step::Lock { client } => ask(&mut next, client, Kind::Lock),
            Step::Renew { client } => {
                next.renewals -= 1;
                ask(&mut next, client, Kind::Renew);
            }
            Step::TakeOver { client } => {
                next.take_overs -= 1;
                ask(&mut next, client, Kind::TakeOver);
            }
            Step::Vote { client, seat } => next.vote(client, seat, self),
            Step::Unlock { client } => {
                next.unlocks -= 1;
                let this = state.clients[client];
                let begun = state.proxies[this.proxy].begun;
                let ending = state.ending(this.claim, begun, self.0.knows[this.proxy], self);
                let this = &mut next.clients[client];
                (this.valid, this.claim, this.ending) = (0, 0, Some(ending));
            }
            Step::UnlockElsewhere { client } => {
                next.unlocks_elsewhere -= 1;
                let claim = state.clients[client].claim;
                let proxy = 1 - state.clients[client].proxy;
                let begun = state.proxies[proxy].begun;
                next.elsewhere = Some(state.ending(claim, begun, self.0.knows[proxy], self));
                // The client counts on the lock again once it is renewed.
                next.clients[client].valid = 0;
            }
            Step::Abandon => next.elsewhere = None,
            Step::Release { client, node } => next.release(client, node, self),
            Step::Learn { proxy, begun } => next.learn(proxy, begun, self),
            Step::CatchUp { proxy, seat } => next.catch_up(proxy, seat),
            Step::Ask { coordinator, aim, without } => next.ask(coordinator, aim, without, self),
            Step::Accept { coordinator, seat } => next.accept(coordinator, seat, self),
            Step::Read { coordinator, seat } => next.read(coordinator, seat),
            Step::Copy { coordinator, seat } => next.copy(coordinator, seat, self),
            Step::Note { coordinator, seat } => next.note(coordinator, seat, self),
            Step::Begin { coordinator, seat } => next.begin(coordinator, seat, self),
            Step::Revoke { coordinator, seat } => next.revoke(coordinator, seat, self),
            Step::Restart { seat } => {
                next.restarts -= 1;
                let server = &mut next.servers[self.node(true, seat)];
                *server = Server {
                    who: server.who + 1,
                    lock: None,
                    fence: 0,
                    ended: 0,
                    marker: None,
                    promised: 0,
                    copying: None,
                    note: None,
                };
            }
        }
        (next != *state).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Change>> {
        let all: [Property<Change>; 9] = [
            Property::always(ONE_HOLDS, |_, state: &State| {
                state.clients.iter().filter(|client| client.valid > 0).count() <= 1
            }),
            Property::always(ONE_DECISION, |model: &Change, state: &State| {
                let chosen = &state.chosen;
                let is_twice =
                    |at: usize| chosen[..at].iter().any(|one| one.0.epoch == chosen[at].0.epoch);
                let stands = |epoch: u8| {
                    chosen.contains(&(Agreement { epoch, phase: Phase::Stands }, 0))
                        || chosen.contains(&(Agreement { epoch, phase: Phase::Stands }, 1))
                };
                let begun = state.committed(true, model);
                !(0..chosen.len()).any(is_twice) && !begun.is_some_and(|one| stands(one.is.epoch))
            }),
            Property::always(FENCES_ONWARD, |_, state: &State| !state.fence_went_back),
            Property::always(STAYS_RELEASED, |model: &Change, state: &State| {
                !state.came_back(model)
            }),
            Property::sometimes(GRANTED_BY_B, |_, state: &State| {
                state.clients.iter().any(|client| client.valid > 0 && client.by_b)
            }),
            Property::sometimes(KEPT_BY_B, |_, state: &State| {
                state.clients.iter().any(|client| client.valid > 0 && client.kept)
            }),
            Property::sometimes(GRANTED_AGAIN, |_, state: &State| {
                state.clients.iter().any(|client| client.valid > 0 && client.again)
            }),
            Property::sometimes(COPIED_ANEW, |_, state: &State| {
                let is_anew =
                    |(is, _): &(Agreement, usize)| is.phase == Phase::Joint && is.epoch > 2;
                let by_b = |client: &Client| client.valid > 0 && (client.by_b || client.kept);
                state.chosen.iter().any(is_anew) && state.clients.iter().any(by_b)
            }),
            Property::sometimes(FINISHED, |_, state: &State| {
                let by = |one: usize, is: fn(&Phase) -> bool| {
                    state.chosen.iter().any(|(chosen, who)| *who == one && is(&chosen.phase))
                };
                by(0, |phase| *phase == Phase::Joint)
                    && by(1, |phase| matches!(phase, Phase::Left(_)))
            }),
        ];
        all.into_iter().filter(|one| self.0.properties.contains(&one.name)).collect()
    }
}
