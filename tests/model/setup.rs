//! The bounds of one run of the checker: how much may happen in it, what may go wrong around the locks, and which
//! fault is planted.

/// The number of lock nodes.
pub(crate) const NODES: usize = 3;
/// The most proxies in a run.
pub(crate) const PROXIES: usize = 2;
/// The most clients in a run. Each has one token, which it uses for every LOCK.
pub(crate) const CLIENTS: usize = 3;

/// Bounds of one run. All times are in ticks.
#[derive(Debug, Clone)]
pub(crate) struct Setup {
    /// The proxy that each client is connected to.
    pub(crate) proxy_of: &'static [usize],
    /// Each client's token. Two clients with the same token still exclude each other.
    pub(crate) token_of: [u8; CLIENTS],
    /// The TTL of a LOCK and of a RENEW.
    pub(crate) ttl: u8,
    /// The TTL of a LOCK by the token that holds the lock already.
    pub(crate) ttl_again: u8,
    /// The time set aside for drift when validity is computed.
    pub(crate) drift: u8,
    /// The most by which a node's clock may end a TTL too early. Each node is early by its own amount, from zero to
    /// this.
    pub(crate) fastest: u8,
    /// The earliest time at which an operation may be given up. 0: a client may also hang up at any
    /// moment.
    pub(crate) timeout: u8,
    /// The latest time at which an operation is given up.
    pub(crate) patience: u8,
    /// The proxies' clocks, from which fences are proposed.
    pub(crate) clocks: Clocks,
    /// The behaviour of a node that has lost its memory.
    pub(crate) quarantine: Quarantine,
    /// LOCKs of each client.
    pub(crate) locks: [u8; CLIENTS],
    /// Whether clients give locks back. Otherwise locks only expire.
    pub(crate) gives_back: bool,
    /// Whether the holder may LOCK again.
    pub(crate) locks_again: bool,
    /// The proxy whose connections may break.
    pub(crate) breaks_at: usize,
    /// How often each may happen: RENEWs of all clients together, hand-overs, broken connections, restarts of nodes
    /// with an empty memory.
    pub(crate) renewals: u8,
    pub(crate) hand_overs: u8,
    pub(crate) breaks: u8,
    pub(crate) restarts: u8,
    /// UNLOCKs by a client with the token of another client's grant, which its own proxy does not know.
    pub(crate) unlocks_by_token: u8,
    /// Whether renewals put the lock back where it is free. They then wait for all nodes.
    pub(crate) heals: bool,
    /// Whether everything is prompt: time passes only once nodes that are up have answered all requests; each grant
    /// is renewed at each tick; and a node goes away only while all others have the lock.
    pub(crate) prompt: bool,
    /// Whether several votes may come in before the proxy looks at them.
    pub(crate) late_looks: bool,
    /// The fault that is planted.
    pub(crate) fault: Option<Fault>,
    /// The properties to check: some hold in every state, the others in at least one.
    pub(crate) properties: &'static [&'static str],
}

/// Wall clocks of the proxies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Clocks {
    /// Clocks that stand still at the beginning of time: nodes alone make fences grow.
    Stopped,
    /// Clocks that stand still, that of the first proxy this far ahead.
    Apart(u8),
    /// Clocks that show the time, which ends after this many ticks.
    Right(u8),
}

/// When a node that has lost its memory grants again. (`epochs.rs` models which proxy knows that, and how the wait is
/// counted.)
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Quarantine {
    /// The node grants at once.
    Off,
    /// The node grants when it has waited for the longest TTL; renewals count meanwhile.
    On,
}

/// A planted fault, which the checker must find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// One vote less than a quorum is enough.
    QuorumTooSmall,
    /// A release ends the lock whichever client holds it.
    ReleaseWithoutCompare,
    /// A renewal prolongs the lock whichever client holds it.
    RenewWithoutCompare,
    /// A hand-over takes the lock whichever client holds it.
    HandOverWithoutCompare,
    /// Validity is the TTL less the time spent, without anything for drift.
    NoDriftAllowance,
    /// Validity counts from the answer, not from the question.
    TimeSpentForgotten,
    /// A failed attempt gives back whatever its token holds.
    UndoByToken,
    /// Nodes take the proposed fence without raising it.
    NodesDoNotRaise,
    /// The largest fence is told though only one node stores it.
    NoSecondRound,
    /// A node that is back does not get what it has missed.
    NoCleanUp,
    /// A node may carry out a proxy's later request before its earlier one.
    Overtaking,
    /// A repeated LOCK by the holder sets the TTL even if it is shorter.
    AgainShortens,
    /// A repeated LOCK is granted to any client that has the token.
    AgainToAnybody,
    /// A release by claim ends any grant of the token.
    ReleaseByToken,
    /// A repeated LOCK that fails also undoes the grant before it.
    UndoTakesEarlier,
    /// An UNLOCK that does not know the grant releases any grant of its token.
    UnlockByToken,
    /// An UNLOCK that does not know the grant releases the one that most nodes name, even if they are no quorum.
    UnlockAllSeen,
    /// A repeated LOCK takes the lock where it is free, by its earlier claim.
    AgainTakesFree,
    /// A lock is put back where another proxy's UNLOCK has ended it.
    HealEnded,
    /// A fence is raised for any grant of the token.
    RaiseByToken,
    /// A fence is raised whichever client has the lock.
    RaiseAnywhere,
    /// A hand-over takes the lock from any grant of the giver's token.
    HandOverByToken,
    /// A hand-over takes the lock from another grant of the taker's token.
    HandOverToToken,
    /// Nothing is put back.
    NoHeal,
    /// A lock is put back as soon as one node lacks it.
    HealWithoutQuorum,
    /// A node on which the lock was put back counts as having had it.
    HealCounts,
    /// A lock is put back though its client has given it back since the nodes were asked.
    HealBehindRelease,
}

impl Setup {
    /// Whether this fault is planted.
    pub(crate) fn has(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    /// Whether two clients can swap names without making a difference.
    pub(crate) fn is_symmetric(&self) -> bool {
        let same_clocks = !matches!(self.clocks, Clocks::Apart(_));
        same_clocks
            && self.breaks == 0
            && self.proxy_of == [0, 1]
            && self.locks[0] == self.locks[1]
            && self.unlocks_by_token == 0
    }

    /// Whether a planted fault makes nodes act for a client that does not hold the lock.
    pub(crate) fn ignores_holders(&self) -> bool {
        matches!(self.fault, Some(Fault::ReleaseWithoutCompare | Fault::RenewWithoutCompare))
    }

    /// Returns the fence that a proxy proposes.
    pub(crate) fn proposal(&self, proxy: usize, now: u8) -> u8 {
        match self.clocks {
            Clocks::Apart(ahead) if proxy == 0 => 1 + ahead,
            Clocks::Stopped | Clocks::Apart(_) => 1,
            // A tick is long beside the clock's microseconds.
            Clocks::Right(_) => now * 8,
        }
    }

    /// Returns the part of a TTL that is left for the holder.
    pub(crate) fn validity(&self, ttl: u8, elapsed: u8) -> u8 {
        let drift = if self.has(Fault::NoDriftAllowance) { 0 } else { self.drift };
        let elapsed = if self.has(Fault::TimeSpentForgotten) { 0 } else { elapsed };
        ttl.saturating_sub(elapsed).saturating_sub(drift)
    }
}
