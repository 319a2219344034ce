//! Locks: votes of N independent Redis nodes, a quorum, a fence.
//!
//! Of a client this folder knows only its card: no socket, no protocol. The files, those that need none of the others
//! first:
//!
//! - `quorum`: the count of votes, and validity; pure arithmetic. `voters`: the voters, and the seats of each.
//!   `longest`: the longest time that any grant may last.
//! - `claim`: the name of one grant; `scripts`: the Lua that nodes run; `node_reply`: their answers; `operation`: one
//!   request to all nodes, and their votes as they come in.
//! - `location`: the Redis that a node is now; `stations`: where markers lie; `custody`: whether a slot's locks
//!   have moved with it; `shards`: which master each shard of a cluster has.
//! - `address`: where a node is, which its Sentinels or its cluster may decide, and when its votes count.
//! - `members/`: which nodes may vote, and what is wrong with them.
//! - `node/`: the nodes themselves and the connections to them.
//! - `keep/`: session locks, renewed for as long as a connection keeps them. In this order, what a session lock is
//!   comes before the grants, and what renews and ends it comes after the releases.
//! - `holders`: clients that were granted a lock here and have not given it back; `grants`: the
//!   holders with the nodes and the schedule, which is what an operation needs.
//! - `acquire`, `attach`, `look`, `raise`: one operation each, and its outcome.
//! - `line/`: which client waits for which lock; `refusals`: locks that the nodes just said are held;
//!   `free_permits`: families that are asked for permits, and the permits that were unlocked last; `locks`: the grants,
//!   lines and refusals together.
//! - `release`, `renew`: operations that may end a grant, or pass it on. `take_back`: a release that
//!   the holder did not ask for.
//! - `overview`: what operators see of locks, clients and waits; `families`: and of the permits of a family together.
//! - `audit_trail`: lines in the log about locks, and the audit trail.
//! - `moving`: which set of lock nodes the proxy asks, and its switch to another set.
//! - `engine`: the interface of all this to sessions.
//! - `lock_metrics`: counters of locks and nodes; `key_metrics`: times by pattern of the key; `alarm`: the timer of an
//!   operation, which nearly never fires; `jitter`: randomness, in one place.

mod acquire;
mod address;
mod alarm;
mod attach;
mod audit_trail;
mod claim;
mod custody;
mod engine;
mod families;
mod free_permits;
mod grants;
mod holders;
mod jitter;
mod keep;
mod key_metrics;
mod line;
mod location;
pub(crate) mod lock_metrics;
mod locks;
mod longest;
mod look;
mod members;
mod moving;
mod node;
mod node_reply;
mod operation;
mod overview;
mod quorum;
mod raise;
mod refusals;
mod release;
mod renew;
pub(crate) mod scripts;
mod shards;
mod stations;
mod take_back;
mod voters;

pub use acquire::Acquire;
pub(crate) use address::{ShardsOnce, connector_to_nodes, locate, shards_once};
pub(crate) use alarm::Alarm;
pub(crate) use attach::Attach;
pub(crate) use claim::Claim;
pub use engine::Engine;
pub(crate) use engine::{longest_grant, padded};
pub(crate) use families::{FamiliesWanted, FamilyStatus};
pub(crate) use jitter::jittered;
pub(crate) use keep::{
    keeper::Keep,
    losses::{LossKind, Losses, Lost},
};
pub(crate) use line::{
    family::{ANY_PERMIT, family_of, permit, permit_of},
    in_line::WaiterStatus,
    permit_taker::{PermitGrant, PermitWanted},
    waiter::Waiter,
};
pub(crate) use look::LookUp;
pub(crate) use members::{
    change::{
        BackedOut, ChangeError, ChangeStatus, Changed, NodeOfSet, NodesNow, SetNow, back_out,
        change, nodes_now, status,
    },
    first_markers::InitError,
};
pub use members::{fault::Fault, first_markers::initialise};
pub(crate) use members::{
    inspect::{NodeRefusal, count_own_of_new, faults_of, refusal_of_locks},
    marker::{LONGEST, MARKER, SEATS, text_of},
    refusal::{deployment_named, diagnose},
};
pub(crate) use node::nodes::WallClock;
#[doc(hidden)]
pub use node_reply::{VotesRead, read_votes};
pub(crate) use overview::{ClientStatus, HotLock, MOST_TOLD};
pub(crate) use overview::{LockOrder, LockStatus, LocksWanted};
pub(crate) use quorum::{shortest_ttl, ttl_for};
pub(crate) use raise::Raise;
pub(crate) use release::Release;
pub(crate) use renew::Renew;
pub(crate) use stations::diagnose_shard;
pub(crate) use take_back::FoundGrant;

/// Faults that the simulation plants in this folder, and the arithmetic by which it checks answers.
#[cfg(test)]
pub(crate) mod seams {
    pub(crate) use super::{
        address::NOT_CONFIRMED,
        grants::NO_HEALS,
        jitter::set_seed,
        keep::schedule::{LATE, NOT_RETRIED},
        longest::OWN_LONGEST,
        members::{clocks::UNWATCHED, membership::NEW_IF_BARE},
        node::node::NOT_ASKED_AGAIN,
        operation::UNDONE,
        quorum::{TOO_SMALL, validity},
    };

    /// Reads what may lie on a lock node.
    pub(crate) fn read_marker(text: &str) {
        use super::members::marker::{Marker, Note};
        std::hint::black_box((Marker::parse(text), Note::parse(text)));
    }
}

use std::{fmt, time::Duration};

use smallvec::SmallVec;

use crate::{
    clock::Instant,
    key::{Key, Token},
};

/// A granted LOCK.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grant {
    /// A number that grows with every grant of the lock.
    pub fence: u64,
    /// The grant's name on the nodes. `None` for an attached connection, which does not learn it.
    pub claim: Option<Claim>,
    /// The rest of the TTL that the holder may count on.
    pub validity: Duration,
    /// The end of the validity, counted from when the nodes were asked. The holder may not count on the lock after
    /// it, however late the reply reaches it.
    pub(crate) until: Instant,
}

/// A successful RENEW.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Renewed {
    /// The rest of the TTL that the holder may count on.
    pub validity: Duration,
    /// The end of the validity, counted from when the nodes were asked.
    pub(crate) until: Instant,
    /// The grant's name on the nodes, and its fence there. `None`: too few nodes know them.
    pub grant: Option<(Claim, u64)>,
}

/// A session lock that this proxy keeps.
#[derive(Debug, Clone)]
pub(crate) struct KeptLock {
    /// The number of this keeping, unique in the process.
    pub(crate) id: u64,
    /// The lock's key on the nodes.
    pub(crate) key: Key,
    /// The holder's token.
    pub(crate) token: Token,
    /// The grant's claim.
    pub(crate) claim: Claim,
    /// The TTL for which it is renewed.
    pub(crate) ttl: Duration,
    /// The end of its validity as it was granted.
    pub(crate) granted_until: Instant,
}

/// The holder of a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holding {
    /// The token that a quorum of nodes has. Empty, as no client's token is, if a quorum has something at the lock's
    /// key that is no token: keys of another type than a string, or values of more than 32 KiB, perhaps not all the
    /// same.
    pub token: Token,
    /// The time for which the lock surely lasts unless it is released: the validity of what a quorum still keeps.
    /// Zero if less than the drift is left, or if the proxy may have stood still meanwhile. `None` if the lock does
    /// not end by itself, or is kept for an adopted command that named no TTL.
    pub left: Option<Duration>,
    /// The grant's claim, if a quorum of nodes names one.
    pub claim: Option<Claim>,
}

/// The grants of the refused token itself that stood in its way: two clients may use one token.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum SameToken {
    /// It is not known whether the token had the lock.
    #[default]
    Unknown,
    /// These grants had the lock on some nodes. Empty: only other tokens had it.
    Grants(SmallVec<[Claim; 1]>),
}

/// Why a LOCK was not granted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotGranted {
    /// Another token holds the lock.
    Held {
        /// The time after which a quorum of nodes is free, unless the lock is renewed. `None`: too few nodes named one.
        remaining: Option<Duration>,
        /// Whether the lock may be free: some nodes granted it, as other clients asked at the same time, or no node was
        /// asked.
        may_be_free: bool,
        /// Grants of the same token that stood in the way.
        same_token: SameToken,
    },
    /// Too many clients wait for the lock.
    QueueFull {
        /// `locks.max_waiters`, or the most permits.
        limit: usize,
        /// Whether too many permits are waited for: not for this one, but in all lines together.
        permits: bool,
    },
    /// The client would wait for clients that wait for it.
    Deadlock {
        /// The locks of the circle, beginning with the one that was asked for.
        keys: Vec<Key>,
    },
    /// Too few nodes answered to decide.
    NoQuorum(NoQuorum),
}

impl NotGranted {
    /// Refuses a lock of which nothing more is known.
    pub(crate) fn held(may_be_free: bool) -> NotGranted {
        NotGranted::Held { remaining: None, may_be_free, same_token: SameToken::Unknown }
    }
}

/// Why LOCK.ATTACH could not be answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotAttached {
    /// Too few nodes answered to decide.
    NoQuorum(NoQuorum),
    /// The token holds the lock, but too few nodes store a fence of it.
    FenceForgotten,
}

/// Why a lock node is not paused or resumed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotPaused {
    /// No lock node has the address.
    Unknown,
    /// Fewer lock nodes would vote than are needed.
    TooFew {
        /// Other nodes that vote.
        voting: usize,
        /// Votes needed.
        quorum: usize,
    },
}

/// An operation that too few lock nodes answered, or not in time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NoQuorum {
    /// Nodes that answered in time.
    pub answered: usize,
    /// All nodes.
    pub nodes: usize,
    /// Votes needed.
    pub quorum: usize,
    /// Addresses of nodes that did not answer, without credentials, with the reason: `10.0.0.1:6379
    /// (down)`.
    pub missing: Vec<String>,
    /// Why the data node, which a bridged lock needs too, did not answer. If set, it is not the lock nodes that were
    /// missing.
    pub data_node: Option<String>,
    /// For a release: whether this proxy made the grant and it had not run out; for a bridged lock whose keys could
    /// not be freed, whether the lock nodes released it. The lock nodes may still carry out a release that failed.
    pub was_held: bool,
    /// Whether the audit trail could not be written. If so, no node was asked.
    pub is_unwritten: bool,
}

impl NoQuorum {
    /// Returns the error as the client is told it.
    pub(crate) fn told(&self) -> String {
        let code = if self.is_unwritten { "TRYAGAIN" } else { "NOQUORUM" };
        format!("{code} {self}")
    }
}

impl fmt::Display for NoQuorum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_unwritten {
            return f.write_str(
                "the audit trail cannot be written (log.locks): nobody reads it, or the disk is full",
            );
        }
        if let Some(why) = &self.data_node {
            return write!(f, "a bridged lock needs the data node too, which failed: {why}");
        }
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
    /// Whether the node is connected and may vote; for a cluster, whether any of its shards is and may.
    pub up: bool,
    /// Why the node is not up, or some shards of it are not.
    pub reason: Option<String>,
    /// The fault that makes the node unfit to vote, if that is the reason.
    pub unfit: Option<Fault>,
    /// Other faults of the node, whether it is up or not.
    pub found: Vec<Fault>,
    /// Whether the node is up, but its votes mostly come too late to count.
    pub too_slow: bool,
    /// Whether an operator has paused the node: it is asked for no new locks.
    pub paused: bool,
    /// The round trip of the last TIME, while the node is connected; for a cluster, that of its slowest shard.
    pub round_trip: Option<Duration>,
    /// By how many microseconds its time of day is ahead of this machine's, while the node is connected; for a
    /// cluster, that of the shard whose clock is furthest off.
    pub clock_ahead: Option<i64>,
}

impl NodeStatus {
    /// Whether the node's votes can be counted on: it is up, accepts writes, and is not too slow.
    pub(crate) fn votes(&self) -> bool {
        self.up && !self.too_slow && !self.refuses()
    }

    /// Whether the node is up, but refuses writes, or allows its user too little.
    pub(crate) fn refuses(&self) -> bool {
        self.up && [Fault::Refuses, Fault::Auth].iter().any(|fault| self.found.contains(fault))
    }
}

/// Locks and waiters of this proxy.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// Locks granted here and held now.
    pub held: usize,
    /// Session locks among the held ones.
    pub session_locks: usize,
    /// Locks among the held ones that an adopted command took.
    pub adopted: usize,
    /// Time for which the oldest of the held locks has been held.
    pub oldest_hold: Duration,
    /// Clients that wait in line.
    pub waiters: usize,
    /// Time for which the first of the waiting clients has waited.
    pub longest_wait: Duration,
}
