//! A connection's share in its node's standing: the marker to prove, and the faults it finds.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64},
};

use arc_swap::ArcSwap;

use super::clocks::NodeClock;
use crate::{lock::scripts, sync::Mutex};

/// What scripts that vote are told of the epoch.
pub(in crate::lock) struct Told {
    /// The last argument, encoded: the marker that the node must have.
    pub(in crate::lock) marker: Vec<u8>,
    /// How many deployments the proxy has learned, this one included.
    pub(in crate::lock) learned: u64,
    /// For each seat, `learned` as of which it is as it is now. A vote on an operation from before
    /// that was another node's, or was given before the node waited. Empty: no seat has changed.
    pub(in crate::lock) seatings: Arc<[u64]>,
}

impl Told {
    /// This marker, without a deployment.
    pub(in crate::lock) fn marker(marker: &[u8]) -> Told {
        Told { marker: scripts::told(marker), learned: 0, seatings: Arc::default() }
    }
}

/// Whether a node may vote, and the marker by which it proves that.
pub(in crate::lock) struct NodeStanding {
    /// What the node's scripts are told.
    pub(in crate::lock) told: Arc<ArcSwap<Told>>,
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
            told: Arc::new(ArcSwap::from_pointee(Told::marker(b""))),
            waits: AtomicBool::new(false),
            longest: AtomicU64::new(0),
            clock: Mutex::default(),
            jumped: AtomicBool::new(false),
            unwatched: AtomicBool::new(false),
        }
    }
}
