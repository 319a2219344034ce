//! The clients of shared connections, as operators are told of them: how many share, what is owed to them, and which
//! got a connection of their own.

use std::sync::{
    Arc, Weak,
    atomic::{AtomicU64, AtomicUsize, Ordering},
};

use super::pinned::{PinnedKind, PinnedKinds};
use crate::sync::Mutex;

/// A link, as far as operators are told of it.
pub(super) trait OwingLink: Send + Sync {
    /// How many replies clients are owed over it; `None` if it is not open.
    fn owed(&self) -> Option<u64>;
}

/// All clients of a proxy that shares connections.
#[derive(Default)]
pub(crate) struct Sharers {
    /// Clients that have come since the start.
    come: AtomicU64,
    /// Those of them that are connected.
    here: AtomicUsize,
    /// Those of them that have a connection of their own.
    own: AtomicUsize,
    pinned: Mutex<PinnedKinds>,
    links: Mutex<Vec<Weak<dyn OwingLink>>>,
}

/// What operators are told at one moment.
pub(crate) struct SharersNow {
    /// Clients connected now that share.
    pub(crate) shared: usize,
    /// Clients connected now that have a connection of their own.
    pub(crate) own: usize,
    /// Clients that have come since the start.
    pub(crate) come: u64,
    /// How many of these got a connection of their own, by what they sent.
    pub(crate) pinned: Vec<(&'static str, u64)>,
    /// Links that are open.
    pub(crate) links: usize,
    /// Replies that clients are owed over them.
    pub(crate) owed: u64,
    /// Those over the link with most.
    pub(crate) most_owed: u64,
}

impl Sharers {
    /// Adds a link, which is looked at for as long as it is open.
    pub(super) fn add(&self, link: Weak<dyn OwingLink>) {
        let mut links = self.links.lock();
        links.retain(|link| link.strong_count() > 0);
        links.push(link);
    }

    /// Returns what operators are told now.
    pub(crate) fn now(&self) -> SharersNow {
        let links: Vec<_> = self.links.lock().iter().filter_map(Weak::upgrade).collect();
        let owed: Vec<u64> = links.iter().filter_map(|link| link.owed()).collect();
        let own = self.own.load(Ordering::Relaxed);
        SharersNow {
            shared: self.here.load(Ordering::Relaxed).saturating_sub(own),
            own,
            come: self.come.load(Ordering::Relaxed),
            pinned: self.pinned.lock().by_cause(),
            links: owed.len(),
            owed: owed.iter().sum(),
            most_owed: owed.into_iter().max().unwrap_or(0),
        }
    }

    /// Returns which clients got a connection of their own, the most frequent kinds first, each with its number.
    pub(crate) fn pinned(&self) -> Vec<(PinnedKind, u64)> {
        self.pinned.lock().all()
    }
}

/// A client, which counts while this exists.
pub(super) struct CountedSharer {
    all: Arc<Sharers>,
    has_own: bool,
}

impl CountedSharer {
    /// Counts a client that has come.
    pub(super) fn come(all: Arc<Sharers>) -> CountedSharer {
        all.come.fetch_add(1, Ordering::Relaxed);
        all.here.fetch_add(1, Ordering::Relaxed);
        CountedSharer { all, has_own: false }
    }

    /// Notes that the client gets a connection of its own, as one of this kind.
    pub(super) fn pin(&mut self, kind: PinnedKind) {
        if !std::mem::replace(&mut self.has_own, true) {
            self.all.own.fetch_add(1, Ordering::Relaxed);
            self.all.pinned.lock().note(kind);
        }
    }
}

impl Drop for CountedSharer {
    fn drop(&mut self) {
        self.all.here.fetch_sub(1, Ordering::Relaxed);
        if self.has_own {
            self.all.own.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
