//! What was granted through this proxy and is not given back yet, as far as it
//! knows: another proxy may have released it, or a node may have forgotten it.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use super::watchdog::Watch;
use crate::key::{Key, KeyMap, Token};

/// Those whose TTL has run out are looked for once there are twice as many as
/// were left the last time, and at least so many.
const SWEEP: usize = 64;

/// Parts of the map, so that who looks at all of it stops nobody for long.
const SHARDS: usize = 64;

/// Holders of locks, by key.
pub(super) struct Holders(Vec<Mutex<Map>>);

impl Default for Holders {
    fn default() -> Holders {
        Holders((0..SHARDS).map(|_| Mutex::default()).collect())
    }
}

#[derive(Default)]
struct Map {
    by_key: KeyMap<Holder>,
    /// How many were left when those without a TTL were last taken out.
    swept: usize,
}

struct Holder {
    token: Token,
    fence: u64,
    since: Instant,
    /// When the lock ends if nobody renews it.
    until: Instant,
    /// Of a session lock.
    watch: Option<Arc<Watch>>,
}

/// What may be told of a holder.
pub(super) struct Shown {
    pub(super) fence: u64,
    pub(super) is_session_lock: bool,
    pub(super) held_for: Duration,
    pub(super) remaining: Duration,
}

impl Holder {
    fn shown(&self, now: Instant) -> Shown {
        Shown {
            fence: self.fence,
            is_session_lock: self.watch.is_some(),
            held_for: now - self.since,
            remaining: self.until - now,
        }
    }
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
        key: &Key,
        token: &Token,
        fence: u64,
        now: Instant,
        until: Instant,
    ) -> Option<Arc<Watch>> {
        let mut map = self.lock(key);
        if let Some(holder) = map.by_key.get_mut(key) {
            if holder.token == *token {
                (holder.fence, holder.until) = (fence, until);
                return holder.watch.take();
            }
            *holder = Holder { token: token.clone(), fence, since: now, until, watch: None };
            return None;
        }
        if map.by_key.len() >= SWEEP.max(2 * map.swept) {
            map.by_key.retain(|_, holder| holder.until > now);
            map.swept = map.by_key.len();
        }
        let holder = Holder { token: token.clone(), fence, since: now, until, watch: None };
        map.by_key.insert(key.clone(), holder);
        None
    }

    /// Notes a renewal.
    pub(super) fn renewed(&self, key: &Key, token: &Token, until: Instant) {
        if let Some(holder) = self.lock(key).by_key.get_mut(key)
            && holder.token == *token
        {
            holder.until = until;
        }
    }

    /// Notes that the holder is watched over.
    pub(super) fn watch(&self, key: &Key, token: &Token, watch: Arc<Watch>) {
        if let Some(holder) = self.lock(key).by_key.get_mut(key)
            && holder.token == *token
        {
            holder.watch = Some(watch);
        }
    }

    /// Who watches over the lock of `token`, if it is a session lock.
    pub(super) fn watched(&self, key: &Key, token: &Token) -> Option<Arc<Watch>> {
        let map = self.lock(key);
        map.by_key.get(key).filter(|holder| holder.token == *token)?.watch.clone()
    }

    /// Forgets a holder that gives the lock back. Gives for how long it was held.
    pub(super) fn release(
        &self,
        key: &Key,
        token: &Token,
        now: Instant,
    ) -> (Known, Option<Arc<Watch>>, Option<Duration>) {
        let mut map = self.lock(key);
        match map.by_key.get(key) {
            None => (Known::Nothing, None, None),
            Some(holder) if holder.token != *token && holder.until > now => {
                (Known::Another, None, None)
            }
            Some(holder) if holder.token != *token => (Known::Nothing, None, None),
            Some(_) => {
                let holder = map.by_key.remove(key);
                let held = holder.as_ref().map(|holder| now - holder.since);
                (Known::This, holder.and_then(|holder| holder.watch), held)
            }
        }
    }

    /// Whether `token` has the lock, as far as is known.
    pub(super) fn has(&self, key: &Key, token: &Token) -> bool {
        self.lock(key)
            .by_key
            .get(key)
            .is_some_and(|holder| holder.token == *token && holder.until > Instant::now())
    }

    /// Shows every lock that is held now, until `visit` says false.
    pub(super) fn visit(&self, visit: &mut dyn FnMut(&[u8], Shown) -> bool) {
        let now = Instant::now();
        for shard in &self.0 {
            let map = shard.lock().unwrap_or_else(PoisonError::into_inner);
            for (key, holder) in map.by_key.iter().filter(|(_, holder)| holder.until > now) {
                if !visit(key, holder.shown(now)) {
                    return;
                }
            }
        }
    }

    /// Shows one lock, if it is held now.
    pub(super) fn show(&self, key: &Key) -> Option<Shown> {
        let now = Instant::now();
        let map = self.lock(key);
        map.by_key.get(key).filter(|holder| holder.until > now).map(|holder| holder.shown(now))
    }

    /// Nothing panics while it holds the lock.
    fn lock(&self, key: &Key) -> MutexGuard<'_, Map> {
        self.0[key.spread() % SHARDS].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(secs: u64) -> Instant {
        Instant::now() + Duration::from_secs(secs)
    }

    #[tokio::test(start_paused = true)]
    async fn a_holder_is_who_was_granted_last_until_its_time_is_up() {
        let holders = Holders::default();
        let (k, a, b) = (&Key::from("k"), &Token::from("a"), &Token::from("b"));
        holders.granted(k, a, 1, Instant::now(), after(10));
        assert!(holders.has(k, a) && !holders.has(k, b));
        assert_eq!(holders.release(k, b, Instant::now()).0, Known::Another);
        tokio::time::advance(Duration::from_secs(4)).await;
        holders.granted(k, a, 2, Instant::now(), after(10));
        let shown = holders.show(k).unwrap();
        assert_eq!((shown.fence, shown.held_for), (2, Duration::from_secs(4)));
        holders.renewed(k, b, after(60));
        holders.renewed(k, a, after(20));
        tokio::time::advance(Duration::from_secs(19)).await;
        assert!(holders.has(k, a));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(!holders.has(k, a) && holders.show(k).is_none());
        assert_eq!(
            holders.release(k, b, Instant::now()).0,
            Known::Nothing,
            "that one's time is up"
        );
        holders.granted(k, b, 3, Instant::now(), after(10));
        let (known, _, held) = holders.release(k, b, Instant::now());
        assert_eq!((known, held), (Known::This, Some(Duration::ZERO)));
        assert_eq!(holders.release(k, b, Instant::now()).0, Known::Nothing);
    }

    #[tokio::test(start_paused = true)]
    async fn what_nobody_gives_back_takes_no_memory_for_ever() {
        let holders = Holders::default();
        let token = &Token::from("t");
        for round in 0..50_u64 {
            for n in 0..1000_u64 {
                holders.granted(
                    &Key::from(&format!("{round} {n}")),
                    token,
                    n,
                    Instant::now(),
                    after(1),
                );
            }
            tokio::time::advance(Duration::from_secs(2)).await;
        }
        let kept: usize = holders.0.iter().map(|shard| shard.lock().unwrap().by_key.len()).sum();
        assert!(kept <= SHARDS * SWEEP, "{kept}");
        let mut seen = 0;
        holders.granted(&Key::from("k"), token, 1, Instant::now(), after(1));
        holders.visit(&mut |key, _| {
            seen += 1;
            assert_eq!(key, b"k");
            true
        });
        assert_eq!(seen, 1);
    }
}
