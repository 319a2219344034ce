//! A connection's share in its node's standing: the marker to prove, and the faults it finds.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64},
};

use arc_swap::ArcSwap;

use super::clocks::NodeClock;
use crate::{lock::scripts, sync::Mutex};

/// Whether a node may vote, and the marker by which it proves that.
pub(in crate::lock) struct NodeStanding {
    /// The last argument of scripts that vote: the marker that the node must have.
    pub(in crate::lock) told: Arc<ArcSwap<Vec<u8>>>,
    /// Whether the node waits to be admitted: it must not grant.
    pub(in crate::lock) waits: AtomicBool,
    /// The longest TTL, in ms, that this node is known to have noted ([`scripts::LONGEST`]).
    pub(in crate::lock) longest: AtomicU64,
    /// The node's clock, as TIME has shown it over all connections.
    pub(in crate::lock) clock: Mutex<NodeClock>,
    /// Whether the clock has jumped forward: the node waits, and must not grant.
    pub(in crate::lock) jumped: AtomicBool,
    /// Whether the node does not tell its TIME: an ACL may forbid that.
    pub(in crate::lock) unwatched: AtomicBool,
}

impl Default for NodeStanding {
    /// A standing in which no marker is compared, and the node votes.
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
