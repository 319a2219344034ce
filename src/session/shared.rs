//! Parts that all sessions share.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize},
    },
};

use arc_swap::ArcSwap;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{
    ahead::Taken, idle::Idle, roll::Roll, session_metrics::Metrics, unread::UnreadReplies,
};
use crate::{
    adopt::Adoption,
    bridge::Bridge,
    config::Config,
    data::DataNode,
    fleet::known::Fleet,
    guard::{Guards, replicas::Replicas},
    key::{Key, Token},
    lock::{Claim, Engine, Release},
};

/// Most locks that are given back at once.
const FREED_AT_ONCE: usize = 256;

pub(crate) struct Shared {
    pub engine: Arc<Engine>,
    /// The way to the data node for the proxy's own questions; of a cluster, to all its nodes.
    pub data: Arc<DataNode>,
    pub metrics: Arc<Metrics>,
    /// The current configuration, which a reload replaces.
    pub config: ArcSwap<Config>,
    /// Rules on the keys that clients write, if there are any.
    pub guards: Option<Arc<Guards>>,
    /// Rules on which keys are locks of existing libraries, if there are any.
    pub adoption: Option<Arc<Adoption>>,
    /// The way to locks of bridged adopt rules, if there are any adopt rules.
    pub bridge: Option<Arc<Bridge>>,
    /// What other proxies over the same lock nodes say of themselves.
    pub fleet: Arc<Fleet>,
    /// Whether the last check of the data node got no answer in time.
    pub data_is_silent: Arc<AtomicBool>,
    pub idle: Arc<Idle>,
    /// Bytes read ahead behind LOCKs that wait.
    pub ahead: Arc<Taken>,
    /// Replies held for clients that do not read them.
    pub unread: Arc<UnreadReplies>,
    /// Clients connected now, for LOCKGATE; a metric cannot be read back.
    pub clients: AtomicUsize,
    pub started: Instant,
    /// The name of this proxy, as operators are told it.
    pub name: String,
    /// Addresses on which clients are accepted.
    pub listen: Vec<SocketAddr>,
    /// Set when the proxy shuts down, before `drain` is cancelled.
    pub draining: AtomicBool,
    /// Ends the sessions that are being opened, once `draining` is set.
    pub drain: CancellationToken,
    /// The open ones, which are woken then, and once `abort` is cancelled.
    pub(crate) roll: Arc<Roll>,
    /// Ends every session, whatever it is doing.
    pub abort: CancellationToken,
}

impl Shared {
    /// Gives back a lock that its client does not count on, without waiting for that.
    pub(super) fn give_back(&self, key: Key, token: Token, claim: Option<Claim>) {
        self.free_keys(&key, &token);
        drop(self.engine.release(key, token, claim));
    }

    /// Frees the keys that a bridged lock has on the data node, some time soon: it is being given back.
    pub(super) fn free_keys(&self, key: &Key, token: &Token) {
        if let Some(bridge) = &self.bridge {
            bridge.free_soon(key, token);
        }
    }

    /// Returns the locks of adopted commands that this proxy has granted and that FLUSHDB in this database frees.
    /// `None`: FLUSHALL.
    pub(super) fn flushed(&self, database: Option<u64>) -> Vec<(Key, Token, Claim)> {
        let Some(adoption) = &self.adoption else { return Vec::new() };
        let mut grants = self.engine.adopted_grants();
        grants.retain(|(key, ..)| adoption.frees(self.name_of(key), database));
        grants
    }

    /// Gives these locks back, a few hundred at a time. A lock about which too few lock nodes answer is given back
    /// once they do.
    pub(super) async fn free(&self, grants: Vec<(Key, Token, Claim)>) {
        for some in grants.chunks(FREED_AT_ONCE) {
            let release = |(key, token, claim): &(Key, Token, Claim)| {
                self.free_keys(key, token);
                self.engine.release(key.clone(), token.clone(), Some(*claim))
            };
            let releases: Vec<Release> = some.iter().map(release).collect();
            for release in releases {
                let _ = release.await;
            }
        }
    }

    /// Returns the key that a client must be allowed to SET for this lock: the lock's own, or that of a bridged lock
    /// on the data node.
    pub(super) fn set_key(&self, key: &Key) -> Vec<u8> {
        let places = self.bridge.as_ref().map(|bridge| bridge.places(key)).unwrap_or_default();
        places.into_iter().next().map_or_else(|| key.to_vec(), |place| place.key)
    }

    /// Returns the lock's name as clients know it, without `locks.prefix`.
    pub(super) fn name_of<'k>(&self, key: &'k Key) -> &'k [u8] {
        key.get(self.config.load().locks.prefix.len()..).unwrap_or_default()
    }

    /// Whether writes to some keys need this lock.
    pub(super) fn is_guard_lock(&self, key: &Key) -> bool {
        let name = || self.name_of(key);
        self.guards.as_ref().is_some_and(|guards| guards.is_needed(name()))
    }

    /// Returns the replicas that must acknowledge fences.
    pub(super) fn replicas(&self) -> Option<Replicas> {
        self.guards.as_ref().and_then(|guards| guards.replicas)
    }

    /// Counts and logs that too few replicas have acknowledged a fence.
    #[cold]
    pub(super) fn lacks_replicas(&self) {
        self.metrics.unacknowledged_locks.increment(1);
        if let Some(guards) = &self.guards {
            guards.note_lacking_replicas();
        }
    }

    /// Whether the lock's key on the data node is taken as well.
    pub(super) fn is_bridged(&self, key: &Key) -> bool {
        self.bridge.as_ref().is_some_and(|bridge| !bridge.places(key).is_empty())
    }
}
