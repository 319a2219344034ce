//! What a connection is told of its node's standing while it lives, and tells of it.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64},
};

use arc_swap::ArcSwap;

use super::clocks::NodeClock;
use crate::{lock::scripts, sync::Mutex};

/// How a node stands: whether it may vote, and by what it proves that.
pub(in crate::lock) struct NodeStanding {
    /// The last argument of scripts that vote: what the node's marker must be.
    pub(in crate::lock) told: Arc<ArcSwap<Vec<u8>>>,
    /// The node waits to be admitted: it must not grant.
    pub(in crate::lock) waits: AtomicBool,
    /// The longest TTL, in ms, that this node is known to have noted ([`scripts::LONGEST`]).
    pub(in crate::lock) longest: AtomicU64,
    /// Its clock, as TIME has shown it over all connections.
    pub(in crate::lock) clock: Mutex<NodeClock>,
    /// That has jumped forward: the node waits, and must not grant.
    pub(in crate::lock) jumped: AtomicBool,
    /// It does not tell its TIME: an ACL may forbid that.
    pub(in crate::lock) unwatched: AtomicBool,
}

impl Default for NodeStanding {
    /// Nothing is compared, and it votes.
    fn default() -> NodeStanding {
        NodeStanding {
            told: Arc::new(ArcSwap::from_pointee(scripts::told(b""))),
            waits: AtomicBool::new(false),
            longest: AtomicU64::new(0),
            clock: Mutex::default(),
            jumped: AtomicBool::new(false),
            unwatched: AtomicBool::new(false),
        }
    }
}
