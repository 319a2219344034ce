//! What was granted through this proxy and is not given back yet, as far as it
//! knows: another proxy may have released it, or a node may have forgotten it.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use super::watchdog::Watch;

/// Those whose TTL has run out are looked for once there are twice as many as
/// were left the last time, and at least so many.
const SWEEP: usize = 1024;

/// Holders of locks, by key.
#[derive(Default)]
pub(super) struct Holders(Mutex<Map>);

#[derive(Default)]
struct Map {
    by_key: HashMap<Vec<u8>, Holder>,
    /// How many were left when those without a TTL were last taken out.
    swept: usize,
}

struct Holder {
    token: Vec<u8>,
    fence: u64,
    since: Instant,
    /// When the lock ends if nobody renews it.
    until: Instant,
    /// Of a session lock.
    watch: Option<Arc<Watch>>,
}

/// Who holds a lock that is to be released.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Known {
    /// That token.
    This,
    /// Another token.
    Another,
    /// Nobody here.
    Nothing,
}

impl Holders {
    /// Notes a grant. A token that has the lock already keeps its time; who kept
    /// it before is given back, as the newer grant is another's to keep.
    pub(super) fn granted(
        &self,
        key: &[u8],
        token: &[u8],
        fence: u64,
        until: Instant,
    ) -> Option<Arc<Watch>> {
        let now = Instant::now();
        let mut map = self.lock();
        if let Some(holder) = map.by_key.get_mut(key) {
            if holder.token == token {
                (holder.fence, holder.until) = (fence, until);
                return holder.watch.take();
            }
            *holder = Holder { token: token.to_vec(), fence, since: now, until, watch: None };
            return None;
        }
        if map.by_key.len() >= SWEEP.max(2 * map.swept) {
            map.by_key.retain(|_, holder| holder.until > now);
            map.swept = map.by_key.len();
        }
        let holder = Holder { token: token.to_vec(), fence, since: now, until, watch: None };
        map.by_key.insert(key.to_vec(), holder);
        None
    }

    /// Notes a renewal.
    pub(super) fn renewed(&self, key: &[u8], token: &[u8], until: Instant) {
        if let Some(holder) = self.lock().by_key.get_mut(key)
            && holder.token == token
        {
            holder.until = until;
        }
    }

    /// Notes that the holder is watched over.
    pub(super) fn watch(&self, key: &[u8], token: &[u8], watch: Arc<Watch>) {
        if let Some(holder) = self.lock().by_key.get_mut(key)
            && holder.token == token
        {
            holder.watch = Some(watch);
        }
    }

    /// Forgets a holder that gives the lock back. Gives for how long it was held.
    pub(super) fn release(
        &self,
        key: &[u8],
        token: &[u8],
    ) -> (Known, Option<Arc<Watch>>, Option<Duration>) {
        let now = Instant::now();
        let mut map = self.lock();
        match map.by_key.get(key) {
            None => (Known::Nothing, None, None),
            Some(holder) if holder.token != token && holder.until > now => {
                (Known::Another, None, None)
            }
            Some(holder) if holder.token != token => (Known::Nothing, None, None),
            Some(_) => {
                let holder = map.by_key.remove(key);
                let held = holder.as_ref().map(|holder| now - holder.since);
                (Known::This, holder.and_then(|holder| holder.watch), held)
            }
        }
    }

    /// Whether `token` has the lock, as far as is known.
    pub(super) fn has(&self, key: &[u8], token: &[u8]) -> bool {
        self.lock()
            .by_key
            .get(key)
            .is_some_and(|holder| holder.token == token && holder.until > Instant::now())
    }

    /// Nothing panics while it holds the lock.
    fn lock(&self) -> MutexGuard<'_, Map> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
