//! What one run of the checker looks at: how much may happen in it, how wrong the
//! world around the locks may go, and which fault is planted.

/// Lock nodes.
pub(crate) const NODES: usize = 3;
/// Proxies at the most.
pub(crate) const PROXIES: usize = 2;
/// Clients at the most. Each has one token, which it uses again and again.
pub(crate) const CLIENTS: usize = 3;

/// Bounds of one run. All times are in ticks.
#[derive(Debug, Clone)]
pub(crate) struct Setup {
    /// Which proxy each client is connected to.
    pub(crate) proxy_of: &'static [usize],
    /// The TTL of a LOCK and of a RENEW.
    pub(crate) ttl: u8,
    /// The TTL of a LOCK by the token that holds the lock already.
    pub(crate) ttl_again: u8,
    /// What is set aside for drift when validity is computed.
    pub(crate) drift: u8,
    /// By how much a node's clock may at the most end a TTL too early. Each node
    /// has its own share of that, from none to all.
    pub(crate) fastest: u8,
    /// When an operation may be given up at the earliest. 0 is also a client that
    /// hangs up at any moment.
    pub(crate) timeout: u8,
    /// When it is given up at the latest.
    pub(crate) patience: u8,
    /// What the proxies' clocks show, from which fences are proposed.
    pub(crate) clocks: Clocks,
    /// Where a fence is raised.
    pub(crate) raise: Raise,
    /// What a node does that has lost its memory.
    pub(crate) quarantine: Quarantine,
    /// LOCKs of each client.
    pub(crate) locks: [u8; CLIENTS],
    /// Whether locks are given back, and do not only expire.
    pub(crate) gives_back: bool,
    /// Whether who has the lock may LOCK it again.
    pub(crate) locks_again: bool,
    /// Whose connections may break.
    pub(crate) breaks_at: usize,
    /// RENEWs of all clients together; hand-overs; broken connections; restarts of
    /// nodes that forget everything.
    pub(crate) renewals: u8,
    pub(crate) hand_overs: u8,
    pub(crate) breaks: u8,
    pub(crate) restarts: u8,
    /// Whether several votes may come in before the proxy looks at them.
    pub(crate) late_looks: bool,
    /// What is done wrong on purpose.
    pub(crate) fault: Option<Fault>,
    /// What is to hold always, or to happen at all.
    pub(crate) properties: &'static [&'static str],
}

/// Wall clocks of the proxies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Clocks {
    /// They stand still at the beginning of time: nodes alone make fences grow.
    Stopped,
    /// They stand still, that of the first proxy this far ahead.
    Apart(u8),
    /// They show the time, which ends after so many ticks.
    Right(u8),
}

/// Where the second round, which makes a quorum remember a fence, counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Raise {
    /// On every node, whoever holds the lock there: a planted fault.
    Anywhere,
    /// Only where the attempt holds the lock: `raise.lua`.
    WhereHeld,
}

/// When a node that has lost its memory votes again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Quarantine {
    /// At once.
    Off,
    /// When it has been up for the longest TTL.
    On,
    /// The same, but at once if no node remembers anything: "the deployment is new".
    UnlessAllAreNew,
}

/// What is done wrong on purpose, to see that the checker finds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// One vote less than a quorum is enough.
    QuorumTooSmall,
    /// A release ends the lock whoever holds it.
    ReleaseWithoutCompare,
    /// A renewal prolongs the lock whoever holds it.
    RenewWithoutCompare,
    /// A hand-over takes the lock whoever holds it.
    HandOverWithoutCompare,
    /// Validity is the TTL less the time spent, without anything for drift.
    NoDriftAllowance,
    /// Validity counts from the answer, not from the question.
    TimeSpentForgotten,
    /// A failed attempt gives back whatever its token holds.
    UndoByToken,
    /// Nodes take the proposed fence as it is.
    NodesDoNotRaise,
    /// The largest fence is told though only one node stores it.
    NoSecondRound,
    /// A node that is back is not told what it has missed.
    NoCleanUp,
    /// A node may carry out a proxy's later request before its earlier one.
    Overtaking,
    /// A LOCK again by the holder sets the TTL even if it is shorter.
    AgainShortens,
}

impl Setup {
    /// Whether this fault is planted.
    pub(crate) fn has(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    /// Whether it makes no difference if two clients change their names.
    pub(crate) fn is_symmetric(&self) -> bool {
        let same_clocks = !matches!(self.clocks, Clocks::Apart(_));
        same_clocks && self.breaks == 0 && self.proxy_of == [0, 1] && self.locks[0] == self.locks[1]
    }

    /// Whether a planted fault has nodes do something for who does not hold the lock.
    pub(crate) fn ignores_holders(&self) -> bool {
        matches!(self.fault, Some(Fault::ReleaseWithoutCompare | Fault::RenewWithoutCompare))
    }

    /// The fence that a proxy proposes.
    pub(crate) fn proposal(&self, proxy: usize, now: u8) -> u8 {
        match self.clocks {
            Clocks::Apart(ahead) if proxy == 0 => 1 + ahead,
            Clocks::Stopped | Clocks::Apart(_) => 1,
            // A tick is long beside the clock's microseconds.
            Clocks::Right(_) => now * 8,
        }
    }

    /// What is left of a TTL for the holder.
    pub(crate) fn validity(&self, ttl: u8, elapsed: u8) -> u8 {
        let drift = if self.has(Fault::NoDriftAllowance) { 0 } else { self.drift };
        let elapsed = if self.has(Fault::TimeSpentForgotten) { 0 } else { elapsed };
        ttl.saturating_sub(elapsed).saturating_sub(drift)
    }
}
