//! What a lock is: votes of N independent Redis nodes, a quorum, a fence.
//!
//! Knows nothing of clients, their sockets or their protocol. Below come first:
//!
//! - `quorum`: what votes come to; validity. Pure arithmetic.
//! - `claim`: the name of one grant; `scripts`: the Lua that nodes run; `reply`: what they
//!   answer; `operation`: one request to all nodes, and their votes as they come in.
//! - `fitness/`: which nodes may vote, and what is wrong with them.
//! - `node/`: the nodes themselves and the connections to them.
//! - `keep/`: session locks, renewed for as long as somebody keeps them. What one is stands
//!   below the grants; what renews it and ends it stands above the releases.
//! - `holders`: who was granted what here and has not given it back; `grants`: these with the
//!   nodes that keep them, which is what an operation goes by.
//! - `acquire`, `attach`, `raise`: one operation each, with what comes of it.
//! - `line/`: who waits for which lock; `locks`: the grants and the lines together.
//! - `release`, `renew`: operations that may end a grant, or pass it on.
//! - `engine`: what sessions ask of all this.
//! - `metrics`: what is counted of it; `alarm`: the timer of an operation, which nearly never
//!   fires; `jitter`: chance, in one place.

mod acquire;
mod alarm;
mod attach;
mod claim;
mod engine;
mod fitness;
mod grants;
mod holders;
mod jitter;
mod keep;
mod line;
mod locks;
pub(crate) mod metrics;
mod node;
mod operation;
mod quorum;
mod raise;
mod release;
mod renew;
mod reply;
pub(crate) mod scripts;

pub use acquire::Acquire;
pub(crate) use alarm::Alarm;
pub(crate) use attach::Attach;
pub(crate) use claim::Claim;
pub use engine::Engine;
pub use fitness::{
    fault::Fault,
    init::{InitError, initialise},
};
pub(crate) use fitness::{
    inspect::faults_of,
    marker::{LONGEST, MARKER, OLD_MARKER, SEATS, text_of},
    refusal::diagnose,
};
pub(crate) use keep::{
    keeper::Keep,
    losses::{Losses, Lost},
};
pub(crate) use line::waiter::Waiter;
pub(crate) use node::nodes::WallClock;
pub(crate) use quorum::shortest_ttl;
pub(crate) use raise::Raise;
pub(crate) use release::Release;
pub(crate) use renew::Renew;
#[doc(hidden)]
pub use reply::{VotesRead, read_votes};

/// What the simulation plants in this folder, and the arithmetic that it holds answers against.
#[cfg(test)]
pub(crate) mod seams {
    pub(crate) use super::{
        fitness::{clocks::UNWATCHED, deployment::NEW_IF_BARE},
        grants::NO_HEALS,
        jitter::set_seed,
        keep::schedule::{LATE, NOT_RETRIED},
        node::node::{NOT_ASKED_AGAIN, UNDONE},
        quorum::{TOO_SMALL, validity},
    };
}

use std::{fmt, time::Duration};

use crate::clock::Instant;

/// What a granted LOCK is worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grant {
    /// Grows from grant to grant of the same lock.
    pub fence: u64,
    /// Its name on the nodes. None: it was granted elsewhere, and is not known.
    pub claim: Option<Claim>,
    /// What is left of the TTL for the holder.
    pub validity: Duration,
    /// When that ends, by when the nodes were asked: later than that the holder may not
    /// count on it, however long it took to be told.
    pub until: Instant,
}

/// What a RENEW has brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Renewed {
    /// What is left of the TTL for the holder.
    pub validity: Duration,
    /// When that ends, by when the nodes were asked.
    pub until: Instant,
    /// The grant's name on the nodes, and its fence there. None: too few nodes know it.
    pub grant: Option<(Claim, u64)>,
}

/// Why a LOCK was not granted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotGranted {
    /// Another token holds it.
    Held {
        /// When a quorum of nodes may be free at the latest, if they told.
        remaining: Option<Duration>,
        /// Some nodes granted it all the same: others asked at the same time.
        contested: bool,
    },
    /// Too many wait for it.
    QueueFull {
        /// How many may.
        limit: usize,
    },
    /// Too few nodes answered to tell.
    NoQuorum(NoQuorum),
}

/// Why it cannot be told whether a token holds a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotAttached {
    /// Too few nodes answered to tell.
    NoQuorum(NoQuorum),
    /// It does, but too few nodes store a fence of it.
    FenceForgotten,
}

/// Too few lock nodes answered, or not in time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoQuorum {
    /// Nodes that answered in time.
    pub answered: usize,
    /// Nodes there are.
    pub nodes: usize,
    /// Nodes that were needed.
    pub quorum: usize,
    /// Addresses of those that did not answer, without credentials, with the reason:
    /// `10.0.0.1:6379 (down)`.
    pub missing: Vec<String>,
}

impl fmt::Display for NoQuorum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} lock nodes answered, ", self.answered, self.nodes)?;
        if self.answered < self.quorum {
            write!(f, "{} are needed", self.quorum)?;
        } else {
            f.write_str("which did not settle it in time")?;
        }
        if !self.missing.is_empty() {
            write!(f, "; missing: {}", self.missing.join(", "))?;
        }
        Ok(())
    }
}

/// One lock node as seen now, for /readyz and for operators.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeStatus {
    /// Address without credentials.
    pub address: String,
    /// Connected and answering.
    pub up: bool,
    /// Why it is not up.
    pub reason: Option<String>,
    /// What makes it unfit to vote, if that is the reason.
    pub unfit: Option<Fault>,
    /// What else was found wrong with it, whether it is up or not.
    pub found: Vec<Fault>,
    /// It is up, but its votes mostly come too late to count.
    pub too_slow: bool,
}

/// One lock that was granted through this proxy, for operators. Without its token,
/// which is all it takes to release it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockStatus {
    /// Its key on the nodes.
    pub key: Vec<u8>,
    /// That of the last grant.
    pub fence: u64,
    /// A session lock; otherwise a lease.
    pub session: bool,
    /// Since the grant.
    pub held_for: Duration,
    /// Until it ends if nobody renews it.
    pub remaining: Duration,
    /// Clients of this proxy that wait for it.
    pub waiters: usize,
}

/// Locks and waiters of this proxy.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// Locks granted here and held now.
    pub held: usize,
    /// Those of them that are session locks.
    pub session_locks: usize,
    /// For how long the oldest of them has been held.
    pub oldest_hold: Duration,
    /// Clients that wait in line.
    pub waiters: usize,
    /// For how long the first of them has waited.
    pub longest_wait: Duration,
}
