//! Locks granted through this proxy and not given back yet, as far as it knows: another proxy may
//! have released one, or a node may have forgotten it.

use std::{
    sync::{Arc, MutexGuard},
    time::Duration,
};

use super::{Claim, KeptLock, keep::watch::Watch};
use crate::{
    card::ClientCard,
    clock::Instant,
    key::{Key, KeyMap, Token},
    sync::Mutex,
};

/// Holders whose TTL has run out are removed once the map has twice as many as were left the last time, and at least
/// this number.
const SWEEP: usize = 64;

/// Parts of the map, so that a walk over all of it blocks no client for long.
pub(super) const SHARDS: usize = 64;

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
    /// The number of holders left when those whose TTL had run out were last removed.
    swept: usize,
}

/// A token that has a lock, and the grant by which it has it.
pub(super) struct Holder {
    token: Token,
    claim: Claim,
    fence: u64,
    since: Instant,
    /// When the lock ends unless it is renewed.
    until: Instant,
    /// Set for a session lock.
    watch: Option<Arc<Watch>>,
    /// The library, or else the words, that took the lock for an adopted command; empty for others.
    adopted: &'static str,
    /// The client that was granted the lock, if that is known.
    card: Option<Arc<ClientCard>>,
}

/// A lock that no keeper renews.
pub(super) struct Lease {
    pub(super) key: Key,
    pub(super) token: Token,
    pub(super) claim: Claim,
}

/// Grants that have ended, each with its lock's key.
pub(super) type EndedGrants = Vec<(Key, GrantTold)>;

/// What the log says of a grant that has been made, or has ended.
#[derive(Default)]
pub(super) struct GrantTold {
    pub(super) fence: u64,
    pub(super) held_for: Duration,
    pub(super) is_session_lock: bool,
    pub(super) is_adopted: bool,
    /// The operator that took it back.
    pub(super) by: Option<Box<str>>,
    /// The client that was granted the lock, if that is known.
    card: Option<Arc<ClientCard>>,
}

impl GrantTold {
    /// Notes the operator that took it back.
    pub(super) fn by(self, by: Option<&str>) -> GrantTold {
        GrantTold { by: by.map(Into::into), ..self }
    }

    /// Returns the client's address, and its name.
    pub(super) fn client(&self) -> (String, Arc<str>) {
        self.card.as_ref().map(|card| (card.address(), card.name())).unwrap_or_default()
    }
}

/// The parts of a holder that may be shown.
pub(super) struct Shown {
    pub(super) fence: u64,
    pub(super) is_session_lock: bool,
    /// The library, or else the words, that took the lock for an adopted command.
    pub(super) adopted: Option<&'static str>,
    pub(super) held_for: Duration,
    pub(super) remaining: Duration,
    /// The client that was granted the lock, if that is known.
    pub(super) card: Option<Arc<ClientCard>>,
}

impl Map {
    /// Returns the readers of a lock.
    fn readers(&self, lock: &Key, now: Instant) -> impl Iterator<Item = (&Key, &Holder)> {
        self.by_key.iter().filter(move |(reader, holder)| {
            reader.is_of_reader() && reader[..] == lock[..] && holder.until > now
        })
    }

    /// Forgets the holders whose TTL has run out, except session locks that are still kept.
    #[cold]
    fn remove_over(&mut self, now: Instant) -> EndedGrants {
        let over = self.by_key.extract_if(|_, holder| holder.is_over(now));
        over.map(|(key, holder)| (key, holder.told(now))).collect()
    }
}

impl Holder {
    /// Makes the holder of a grant made at `since`, whose TTL ends at `until`.
    pub(super) fn new(
        token: &Token,
        claim: Claim,
        fence: u64,
        since: Instant,
        until: Instant,
    ) -> Holder {
        let (token, watch, adopted, card) = (token.clone(), None, "", None);
        Holder { token, claim, fence, since, until, watch, adopted, card }
    }

    /// Notes the client that was granted the lock.
    pub(super) fn by(self, card: Option<Arc<ClientCard>>) -> Holder {
        Holder { card, ..self }
    }

    /// Returns the keeper of a session lock.
    pub(super) fn watch(&self) -> Option<&Arc<Watch>> {
        self.watch.as_ref()
    }

    pub(super) fn claim(&self) -> Claim {
        self.claim
    }

    pub(super) fn fence(&self) -> u64 {
        self.fence
    }

    /// Whether the lock's TTL has run out, and no keeper has the lock.
    fn is_over(&self, now: Instant) -> bool {
        self.has_run_out(now) && self.watch.as_ref().is_none_or(|watch| !watch.is_kept())
    }

    /// Whether the lock's TTL has run out.
    pub(super) fn has_run_out(&self, now: Instant) -> bool {
        self.until <= now
    }

    /// Returns what the log says of the grant.
    pub(super) fn told(&self, now: Instant) -> GrantTold {
        GrantTold {
            fence: self.fence,
            // A lease that ran out is forgotten seconds after its end, when others may have had the lock.
            held_for: now.min(self.until).saturating_duration_since(self.since),
            is_session_lock: self.watch.is_some(),
            is_adopted: self.claim.is_adopted(),
            by: None,
            card: self.card.clone(),
        }
    }

    fn is(&self, token: &Token, claim: Option<Claim>) -> bool {
        self.token == *token && claim.is_none_or(|claim| claim == self.claim)
    }

    fn shown(&self, now: Instant) -> Shown {
        Shown {
            fence: self.fence,
            is_session_lock: self.watch.is_some(),
            adopted: self.claim.is_adopted().then_some(self.adopted),
            held_for: now - self.since,
            remaining: self.until - now,
            card: self.card.clone(),
        }
    }
}

/// The holder of a lock that is to be released.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Owner {
    /// The releasing token, by this claim.
    This(Claim),
    /// Another token.
    Another,
    Nothing,
}

impl Holders {
    /// Notes a grant. One with the same claim keeps its start. Returns the previous holder, whose keeper has the lock
    /// no more, and what [`Holders::run_out`] would return, if that was needed to make room.
    pub(super) fn granted(&self, key: &Key, new: Holder) -> (Option<Holder>, EndedGrants) {
        let mut map = self.lock(key);
        if let Some(holder) = map.by_key.get_mut(key) {
            debug_assert!(
                holder.claim != new.claim || holder.token == new.token && holder.fence <= new.fence,
                "a claim keeps its token, and its fence never falls"
            );
            let (since, until, adopted) = if holder.claim == new.claim {
                // Nodes never shorten the TTL of a lock that they keep.
                (holder.since, holder.until.max(new.until), holder.adopted)
            } else {
                (new.since, new.until, new.adopted)
            };
            let before = std::mem::replace(holder, Holder { since, until, adopted, ..new });
            return (Some(before), Vec::new());
        }
        let mut over = Vec::new();
        if map.by_key.len() >= SWEEP.max(2 * map.swept) {
            over = map.remove_over(Instant::now());
            map.swept = map.by_key.len();
        }
        map.by_key.insert(key.clone(), new);
        (None, over)
    }

    pub(super) fn renewed(&self, key: &Key, claim: Claim, until: Instant) {
        if let Some(holder) = self.lock(key).by_key.get_mut(key)
            && holder.claim == claim
        {
            holder.until = until;
        }
    }

    /// Notes that the fence of a grant was raised.
    pub(super) fn raised(&self, key: &Key, claim: Claim, fence: u64) {
        if let Some(holder) = self.lock(key).by_key.get_mut(key)
            && holder.claim == claim
        {
            holder.fence = holder.fence.max(fence);
        }
    }

    /// Notes which library, or else which words, took a lock for an adopted command.
    pub(super) fn name_adopted(&self, key: &Key, token: &Token, name: &'static str) {
        if let Some(holder) = self.lock(key).by_key.get_mut(key)
            && holder.token == *token
            && holder.claim.is_adopted()
        {
            holder.adopted = name;
        }
    }

    /// Notes that a keeper watches over the holder's lock.
    pub(super) fn watch(&self, key: &Key, claim: Claim, watch: Arc<Watch>) {
        if let Some(holder) = self.lock(key).by_key.get_mut(key)
            && holder.claim == claim
        {
            holder.watch = Some(watch);
        }
    }

    /// Returns all session locks that are kept.
    pub(super) fn all_watched(&self) -> Vec<KeptLock> {
        let mut all = Vec::new();
        for shard in &self.0 {
            let map = shard.lock();
            let watches = map.by_key.values().filter_map(|holder| holder.watch.as_ref());
            all.extend(watches.filter(|watch| watch.is_kept()).map(|watch| KeptLock {
                id: watch.id,
                key: watch.key.clone(),
                token: watch.token.clone(),
                claim: watch.claim,
                ttl: watch.times().ttl,
                granted_until: watch.granted_until,
            }));
        }
        all
    }

    /// Returns the leases in one of the [`SHARDS`] parts of the map that have not run out.
    pub(super) fn leases(&self, shard: usize) -> Vec<Lease> {
        let now = Instant::now();
        let map = self.0[shard].lock();
        let leases =
            map.by_key.iter().filter(|(_, holder)| holder.watch.is_none() && holder.until > now);
        leases
            .map(|(key, holder)| Lease {
                key: key.clone(),
                token: holder.token.clone(),
                claim: holder.claim,
            })
            .collect()
    }

    /// Returns the locks in one of the [`SHARDS`] parts of the map that adopted commands took and that are held now.
    pub(super) fn adopted(&self, shard: usize) -> Vec<(Key, Token, Claim)> {
        let now = Instant::now();
        let map = self.0[shard % SHARDS].lock();
        let adopted =
            map.by_key.iter().filter(|(_, holder)| holder.claim.is_adopted() && holder.until > now);
        adopted.map(|(key, holder)| (key.clone(), holder.token.clone(), holder.claim)).collect()
    }

    /// Returns the keeper of the lock of `token`, if it is a session lock.
    pub(super) fn watched(&self, key: &Key, token: &Token) -> Option<Arc<Watch>> {
        let map = self.lock(key);
        map.by_key.get(key).filter(|holder| holder.token == *token)?.watch.clone()
    }

    /// Returns the token and the claim of the adopted command that has the lock, as far as this proxy knows.
    pub(super) fn adopted_holder(&self, key: &Key) -> Option<(Token, Claim)> {
        let map = self.lock(key);
        let holder = map.by_key.get(key)?;
        let has = holder.claim.is_adopted() && holder.until > Instant::now();
        has.then(|| (holder.token.clone(), holder.claim))
    }

    /// Returns the claim and fence by which `token` has the lock, as far as this proxy knows.
    pub(super) fn claim(&self, key: &Key, token: &Token) -> Option<(Claim, u64)> {
        let map = self.lock(key);
        let holder = map.by_key.get(key)?;
        let has = holder.token == *token && holder.until > Instant::now();
        has.then_some((holder.claim, holder.fence))
    }

    /// Returns the session lock of `key` that a connection keeps here, and that connection, which cannot give the
    /// lock back while it waits. Adopted locks do not count: lock libraries give them back over any connection.
    pub(super) fn kept(&self, key: &Key) -> Option<(Token, Claim, Arc<ClientCard>)> {
        let map = self.lock(key);
        let holder = map.by_key.get(key).filter(|holder| !holder.claim.is_adopted())?;
        let is_kept = holder.watch.as_ref().is_some_and(|watch| watch.is_kept());
        let card = holder.card.clone().filter(|card| is_kept && card.is_here())?;
        Some((holder.token.clone(), holder.claim, card))
    }

    /// Returns when the grant with this claim was made, as far as this proxy knows.
    pub(super) fn granted_at(&self, key: &Key, claim: Claim) -> Option<Instant> {
        let map = self.lock(key);
        map.by_key.get(key).filter(|holder| holder.claim == claim).map(|holder| holder.since)
    }

    /// Forgets the grant of `token` that is given back: the one with this claim or, without a claim, whichever the
    /// token has. Returns the lock's owner, the keeper, and what the log says of the grant.
    pub(super) fn release(
        &self,
        key: &Key,
        token: &Token,
        claim: Option<Claim>,
        now: Instant,
    ) -> (Owner, Option<Arc<Watch>>, Option<GrantTold>) {
        let mut map = self.lock(key);
        match map.by_key.get(key) {
            Some(holder) if holder.is(token, claim) => {
                let known = match holder.until > now {
                    true => Owner::This(holder.claim),
                    false => Owner::Nothing,
                };
                let holder = map.by_key.remove(key);
                let held = holder.as_ref().map(|holder| holder.told(now));
                (known, holder.and_then(|holder| holder.watch), held)
            }
            Some(holder) if holder.until > now => (Owner::Another, None, None),
            Some(_) | None => (Owner::Nothing, None, None),
        }
    }

    /// Forgets the holders in one of the [`SHARDS`] parts of the map whose TTL has run out, except session locks that
    /// are still kept.
    pub(super) fn run_out(&self, shard: usize, now: Instant) -> EndedGrants {
        self.0[shard % SHARDS].lock().remove_over(now)
    }

    /// Returns the time until which this grant has the lock, as far as this proxy knows.
    fn until(&self, key: &Key, token: &Token, claim: Claim) -> Option<Instant> {
        let map = self.lock(key);
        let holder = map.by_key.get(key).filter(|holder| holder.is(token, Some(claim)))?;
        (holder.until > Instant::now()).then_some(holder.until)
    }

    /// Whether this grant's lock lasts for more than `drift` from now, as far as this proxy knows.
    pub(super) fn is_valid(&self, key: &Key, token: &Token, claim: Claim, drift: Duration) -> bool {
        self.until(key, token, claim).is_some_and(|until| until > Instant::now() + drift)
    }

    /// Calls `act` with the fence and the rest of the TTL if this grant has the lock, as far as this proxy knows. A
    /// release through this proxy comes either before the call or after it. `act` must not call the holders.
    pub(super) fn while_held<T>(
        &self,
        key: &Key,
        token: &Token,
        claim: Claim,
        act: impl FnOnce(u64, Duration) -> T,
    ) -> Option<T> {
        let map = self.lock(key);
        let holder = map.by_key.get(key).filter(|holder| holder.is(token, Some(claim)))?;
        let now = Instant::now();
        (holder.until > now).then(|| act(holder.fence, holder.until - now))
    }

    /// Forgets all leases. Returns the keepers of all session locks, and the forgotten leases.
    pub(super) fn forget(&self, now: Instant) -> (Vec<Arc<Watch>>, EndedGrants) {
        let (mut watches, mut leases) = (Vec::new(), Vec::new());
        for shard in &self.0 {
            let mut map = shard.lock();
            let ended = map.by_key.extract_if(|_, holder| holder.watch.is_none());
            leases.extend(ended.map(|(key, holder)| (key, holder.told(now))));
            watches.extend(map.by_key.values().filter_map(|holder| holder.watch.clone()));
        }
        (watches, leases)
    }

    /// Calls `visit` with every lock that is held now.
    pub(super) fn visit(&self, visit: &mut dyn FnMut(&Key, Shown)) {
        let now = Instant::now();
        for shard in &self.0 {
            let map = shard.lock();
            for (key, holder) in map.by_key.iter().filter(|(_, holder)| holder.until > now) {
                visit(key, holder.shown(now));
            }
        }
    }

    /// Returns the locks in one of the [`SHARDS`] parts of the map that are held at `now`, and for how long they have
    /// been. To sort locks by these times, use one `now` for all parts.
    pub(super) fn held(&self, shard: usize, now: Instant) -> Vec<(Key, Duration)> {
        let map = self.0[shard].lock();
        let held = map.by_key.iter().filter(|(_, holder)| holder.until > now);
        held.map(|(key, holder)| (key.clone(), now - holder.since)).collect()
    }

    /// Shows one lock, if it is held at `now`.
    pub(super) fn show(&self, key: &Key, now: Instant) -> Option<Shown> {
        let map = self.lock(key);
        map.by_key.get(key).filter(|holder| holder.until > now).map(|holder| holder.shown(now))
    }

    /// Returns all readers of the lock that were granted their parts here.
    pub(super) fn readers(&self, key: &Key, now: Instant) -> Vec<(Key, Token, Claim)> {
        let map = self.lock(key);
        let readers = map.readers(key, now);
        readers
            .map(|(reader, holder)| (reader.clone(), holder.token.clone(), holder.claim))
            .collect()
    }

    /// Returns what is shown of each reader of the lock that was granted its part here.
    pub(super) fn shown_readers(&self, key: &Key, now: Instant) -> Vec<(Claim, Shown)> {
        let map = self.lock(key);
        map.readers(key, now).map(|(_, holder)| (holder.claim, holder.shown(now))).collect()
    }

    /// Returns the reader of the lock that was granted its part here first, and how many there are.
    pub(super) fn oldest_reader(&self, key: &Key, now: Instant) -> Option<(Shown, usize)> {
        let map = self.lock(key);
        let readers: Vec<&Holder> = map.readers(key, now).map(|(_, holder)| holder).collect();
        let oldest = readers.iter().min_by_key(|holder| holder.since)?;
        Some((oldest.shown(now), readers.len()))
    }

    fn lock(&self, key: &Key) -> MutexGuard<'_, Map> {
        self.0[key.spread() % SHARDS].lock()
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;
    use crate::lock::keep::{losses::Losses, watch::Times};

    fn after(secs: u64) -> Instant {
        Instant::now() + Duration::from_secs(secs)
    }

    fn holder(token: &Token, claim: Claim, fence: u64, secs: u64) -> Holder {
        Holder::new(token, claim, fence, Instant::now(), after(secs))
    }

    #[tokio::test(start_paused = true)]
    async fn a_holder_is_who_was_granted_last_until_its_time_is_up() {
        let holders = Holders::default();
        let (k, a, b) = (&Key::from("k"), &Token::from("a"), &Token::from("b"));
        let (first, second) = (Claim::new(), Claim::new());
        let has = |key: &Key, token: &Token, claim| holders.until(key, token, claim).is_some();
        holders.granted(k, holder(a, first, 1, 10));
        assert!(has(k, a, first) && !has(k, b, first));
        assert!(!has(k, a, second), "the same token by another grant");
        for (token, claim) in [(b, None), (a, Some(second))] {
            assert_eq!(holders.release(k, token, claim, Instant::now()).0, Owner::Another);
        }
        tokio::time::advance(Duration::from_secs(4)).await;
        holders.granted(k, holder(a, first, 2, 3));
        let shown = holders.show(k, Instant::now()).unwrap();
        assert_eq!((shown.fence, shown.held_for), (2, Duration::from_secs(4)));
        assert_eq!(shown.remaining, Duration::from_secs(6), "nodes shorten nothing");
        holders.renewed(k, second, after(60));
        holders.renewed(k, first, after(20));
        holders.raised(k, first, 7);
        assert_eq!(holders.claim(k, a), Some((first, 7)));
        tokio::time::advance(Duration::from_secs(19)).await;
        assert!(has(k, a, first));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(!has(k, a, first) && holders.show(k, Instant::now()).is_none());
        let (known, ..) = holders.release(k, b, None, Instant::now());
        assert_eq!(known, Owner::Nothing, "that one's time is up");
        holders.granted(k, holder(b, second, 3, 10));
        let (known, _, held) = holders.release(k, b, None, Instant::now());
        let held = held.map(|held| (held.fence, held.held_for));
        assert_eq!((known, held), (Owner::This(second), Some((3, Duration::ZERO))));
        assert_eq!(holders.release(k, b, None, Instant::now()).0, Owner::Nothing);
    }

    #[tokio::test(start_paused = true)]
    async fn what_nobody_gives_back_takes_no_memory_for_ever() {
        let holders = Holders::default();
        let token = &Token::from("t");
        for round in 0..50_u64 {
            for n in 0..1000_u64 {
                let key = Key::from(&format!("{round} {n}"));
                holders.granted(&key, holder(token, Claim::new(), n, 1));
            }
            tokio::time::advance(Duration::from_secs(2)).await;
        }
        let kept: usize = holders.0.iter().map(|shard| shard.lock().by_key.len()).sum();
        assert!(kept <= SHARDS * SWEEP, "{kept}");
        let mut seen = 0;
        holders.granted(&Key::from("k"), holder(token, Claim::new(), 1, 1));
        holders.visit(&mut |key, _| {
            seen += 1;
            assert_eq!(&**key, b"k");
        });
        assert_eq!(seen, 1);
    }
    #[tokio::test(start_paused = true)]
    async fn every_grant_that_runs_out_is_told_once_and_a_lock_that_is_kept_is_not() {
        let holders = Holders::default();
        let (token, kept, claim) = (&Token::from("t"), &Key::from("kept"), Claim::new());
        let times = Times {
            ttl: Duration::from_secs(1),
            valid_until: after(1),
            due: None,
            fence_until: after(1),
            votes: None,
        };
        let losses = Arc::new(Losses::new(Waker::noop().clone(), ClientCard::new(None)));
        let watch = Arc::new(Watch::new(1, (kept, token, claim), None, times, &losses));
        holders.granted(kept, holder(token, claim, 1, 1));
        holders.watch(kept, claim, watch.clone());
        let mut ended = Vec::new();
        for n in 0..10_000_u64 {
            let key = Key::from(&n.to_string());
            ended.extend(holders.granted(&key, holder(token, Claim::new(), n, 1)).1);
            tokio::time::advance(Duration::from_micros(500)).await;
        }
        assert!(ended.len() > 5000, "{} were removed as others came", ended.len());
        tokio::time::advance(Duration::from_secs(1)).await;
        let now = Instant::now();
        (0..SHARDS).for_each(|shard| ended.extend(holders.run_out(shard, now)));
        let mut fences: Vec<u64> = ended.iter().map(|(_, told)| told.fence).collect();
        fences.sort_unstable();
        assert_eq!(fences, (0..10_000).collect::<Vec<_>>());
        assert!(holders.watched(kept, token).is_some(), "its keeper has not given it up");
        watch.lose();
        assert_eq!((0..SHARDS).map(|shard| holders.run_out(shard, now).len()).sum::<usize>(), 1);
    }
}
