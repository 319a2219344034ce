//! The state that a node shares with its connection: the marker to prove, and the faults that the connection finds.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64},
};

use arc_swap::ArcSwap;
use tokio::sync::Notify;

use super::clocks::NodeClock;
use crate::{
    lock::{
        scripts::{self, Dialect},
        stations::Station,
    },
    sync::Mutex,
};

/// What the scripts that vote check, and the epoch that this belongs to.
pub(in crate::lock) struct Told {
    /// The encoded end of each request that votes: the marker that the node must have.
    pub(in crate::lock) marker: Vec<u8>,
    /// How many deployments the proxy has learned, including this one.
    pub(in crate::lock) learned: u64,
    /// For each voter, the value of `learned` at the last change of its seats. If an operation is older than that,
    /// the voter's vote on it may be from another node, or from before the node waited. Empty: no seat has changed.
    pub(in crate::lock) seatings: Arc<[u64]>,
}

impl Told {
    /// Wraps an encoded marker that belongs to no deployment.
    fn encoded(marker: Vec<u8>) -> Told {
        Told { marker, learned: 0, seatings: Arc::default() }
    }
}

/// Whether a node may vote, and the marker by which it proves that it may.
pub(in crate::lock) struct NodeStanding {
    /// What each request that votes has the node's scripts check.
    pub(in crate::lock) told: Arc<ArcSwap<Told>>,
    dialect: Dialect,
    /// Where the node's marker lies.
    pub(in crate::lock) station: Mutex<Station>,
    /// Whether the node waits to be admitted, so must not grant.
    pub(in crate::lock) waits: AtomicBool,
    /// The longest TTL, in ms, that this node is known to have noted ([`scripts::LONGEST`]).
    pub(in crate::lock) longest: AtomicU64,
    /// The node's clock, by its answers to TIME on all connections so far.
    pub(in crate::lock) clock: Mutex<NodeClock>,
    /// Whether the clock has jumped forward, so that the node waits and must not grant.
    pub(in crate::lock) jumped: AtomicBool,
    /// Whether the node does not answer TIME: an ACL may forbid it.
    pub(in crate::lock) unwatched: AtomicBool,
    /// Notified when the node has answered a request with an error, so that it is inspected.
    pub(in crate::lock) refused: Notify,
}

impl NodeStanding {
    /// Creates a standing in which the node votes and no marker is compared.
    pub(in crate::lock) fn new(dialect: Dialect) -> NodeStanding {
        let nothing = Told::encoded(scripts::told(dialect, b"", b""));
        NodeStanding {
            told: Arc::new(ArcSwap::from_pointee(nothing)),
            dialect,
            station: Mutex::default(),
            waits: AtomicBool::new(false),
            longest: AtomicU64::new(0),
            clock: Mutex::default(),
            jumped: AtomicBool::new(false),
            unwatched: AtomicBool::new(false),
            refused: Notify::new(),
        }
    }

    /// Encodes the marker that scripts are to find, and its key.
    pub(in crate::lock) fn encode(&self, marker: &[u8]) -> Vec<u8> {
        let station = *self.station.lock();
        scripts::told(self.dialect, marker, &station.key(scripts::MARKER))
    }

    /// Has scripts compare a marker that no deployment has.
    pub(in crate::lock) fn tell_alone(&self, marker: &[u8]) {
        self.told.store(Arc::new(Told::encoded(self.encode(marker))));
    }
}
