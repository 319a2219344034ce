//! A connection's share in its node's standing: the marker to prove, and the faults it finds.

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

/// What scripts that vote are told of the epoch.
pub(in crate::lock) struct Told {
    /// The last argument, encoded: the marker that the node must have.
    pub(in crate::lock) marker: Vec<u8>,
    /// How many deployments the proxy has learned, this one included.
    pub(in crate::lock) learned: u64,
    /// For each voter, `learned` as of which its seats are as they are now. A vote on an operation from before
    /// that was another node's, or was given before the node waited. Empty: no seat has changed.
    pub(in crate::lock) seatings: Arc<[u64]>,
}

impl Told {
    /// What is encoded, without a deployment.
    fn encoded(marker: Vec<u8>) -> Told {
        Told { marker, learned: 0, seatings: Arc::default() }
    }
}

/// Whether a node may vote, and the marker by which it proves that.
pub(in crate::lock) struct NodeStanding {
    /// What the node's scripts are told.
    pub(in crate::lock) told: Arc<ArcSwap<Told>>,
    dialect: Dialect,
    /// Where the node's marker lies.
    pub(in crate::lock) station: Mutex<Station>,
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
    /// Notified when the node has answered a request with an error: is it fit still?
    pub(in crate::lock) refused: Notify,
}

impl NodeStanding {
    /// A standing in which no marker is compared, and the node votes.
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

    /// Encodes the marker that scripts are told to find, and where.
    pub(in crate::lock) fn encode(&self, marker: &[u8]) -> Vec<u8> {
        let station = *self.station.lock();
        scripts::told(self.dialect, marker, &station.key(scripts::MARKER))
    }

    /// Has scripts look for a marker that no deployment has.
    pub(in crate::lock) fn tell_alone(&self, marker: &[u8]) {
        self.told.store(Arc::new(Told::encoded(self.encode(marker))));
    }
}
