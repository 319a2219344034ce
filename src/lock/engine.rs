//! The lock engine: the interface to sessions, over the nodes, the grants and the lines.
//!
//! Redlock over N independent nodes
//! (<https://redis.io/docs/latest/develop/use/patterns/distributed-locks/>),
//! with a fence that grows from grant to grant: docs/design/votes.md. The time of day is a
//! function, so that tests can give each proxy a clock of its own.

use std::{
    future::{Future, poll_fn},
    sync::{Arc, Weak},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use tokio::{runtime::Handle, time::sleep};

use super::{
    Acquire, Attach, Claim, ClientStatus, Counts, FamiliesWanted, FamilyStatus, FoundGrant,
    HotLock, Keep, KeptLock, LockStatus, LocksWanted, LookUp, Losses, NoQuorum, NodeStatus,
    NotGranted, NotPaused, Raise, Release, Renew, Waiter, WaiterStatus, WallClock, families,
    grants::Grants,
    holders::SHARDS,
    keep::{leases, lose::lose, watchdog},
    line::permit_taker::{self, PermitGrant, PermitWanted},
    lock_metrics::LostReason,
    locks::Locks,
    moving::{self, Moving, NodesAt},
    overview::{self, GrantStatus},
    quorum::ttl_for,
    take_back,
};
use crate::{
    card::ClientCard,
    clock::Instant,
    config::{Config, LockNode, LocksConfig},
    key::{Key, Token},
};

/// How often the engine looks for lines in which no client waits any more, and for grants that have run out.
const SWEEP_EVERY: Duration = Duration::from_millis(500);
/// Parts of the map of holders that are searched for grants that have run out, each time: all of them in eight
/// seconds.
const SHARDS_AT_ONCE: usize = 4;

/// The lock engine over all lock nodes.
pub struct Engine {
    locks: Arc<Locks>,
    moving: Arc<Moving>,
}

/// Returns the TTL for which the lock nodes hold a lock whose holder counts on it for `ttl` from the reply on: up to
/// two rounds of votes come before the reply.
pub(crate) fn padded(ttl: Duration, locks: &LocksConfig) -> Duration {
    ttl_for(ttl, 2 * locks.node_timeout, locks.drift_factor)
}

/// Returns the longest time for which a grant of a proxy with this configuration lasts on the lock nodes. They hold
/// an adopted lock for longer than its TTL; a rule in mode audit counts too, as it may be enforced before the process
/// ends.
pub(crate) fn longest_grant(config: &Config) -> Duration {
    match config.adopt.rules.is_empty() {
        true => config.locks.max_ttl,
        false => padded(config.locks.max_ttl, &config.locks),
    }
}

impl Engine {
    /// Returns the claim and the fence of the grant of `key` to `token`, if it was made through this proxy.
    pub(crate) fn claim_of(&self, key: &Key, token: &Token) -> Option<(Claim, u64)> {
        self.locks.grants.holders.claim(key, token)
    }

    /// Returns the state that the engine shares with operations under way.
    #[cfg(test)]
    pub(super) fn locks(&self) -> &Arc<Locks> {
        &self.locks
    }

    /// Starts connecting to all nodes. Must be called inside a tokio runtime.
    pub fn start(config: &LocksConfig) -> Arc<Engine> {
        Engine::start_on(config, &Handle::current())
    }

    /// Starts with all nodes' connections on `runtime`, whose thread serves sessions too. These wake no other thread,
    /// and the votes on one operation come from one thread. With connections spread over threads, a lock and its
    /// unlock took a seventh more of the proxy's CPU; one thread moves more than nodes can vote on (bench/README.md).
    pub(crate) fn start_on(config: &LocksConfig, runtime: &Handle) -> Arc<Engine> {
        let clock = || {
            let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
        };
        Engine::start_all(config, runtime, Arc::new(clock))
    }

    /// Starts with another clock for the time of day.
    pub fn start_with_clock(config: &LocksConfig, wall_clock: WallClock) -> Arc<Engine> {
        Engine::start_all(config, &Handle::current(), wall_clock)
    }

    fn start_all(config: &LocksConfig, runtime: &Handle, wall_clock: WallClock) -> Arc<Engine> {
        let at = NodesAt::new(config);
        let engine = Engine::start_locks(config, runtime, wall_clock, &at);
        engine.moving.listen(&engine.locks, at);
        tokio::spawn(moving::run(Arc::downgrade(&engine.locks), engine.moving.clone()));
        engine
    }

    /// Starts without inspections and subscriptions, which use the connections of another library.
    #[cfg(test)]
    pub(crate) fn start_alone(config: &LocksConfig, wall_clock: WallClock) -> Arc<Engine> {
        Engine::start_locks(config, &Handle::current(), wall_clock, &NodesAt::new(config))
    }

    fn start_locks(
        config: &LocksConfig,
        runtime: &Handle,
        wall_clock: WallClock,
        at: &NodesAt,
    ) -> Arc<Engine> {
        let moving = Arc::new(Moving::new(config, runtime, wall_clock));
        let locks = Arc::new(Locks::new(config, moving.connect(config, at, None)));
        moving::tell(&locks, &locks.grants.nodes());
        tokio::spawn(watchdog::run(Arc::downgrade(&locks)));
        tokio::spawn(leases::run(Arc::downgrade(&locks)));
        tokio::spawn(sweep(Arc::downgrade(&locks)));
        Arc::new(Engine { locks, moving })
    }

    /// Asks all nodes for `key`, which has the prefix already, on behalf of `token`.
    ///
    /// A held lock is refused, even to the token that holds it. The exception is the grant with the
    /// claim `again`, which the asker has: it is granted again, with a larger fence and the same
    /// claim. If that fails, the grant stays as it was. If the grant has ended, the lock is asked for
    /// by a new claim.
    pub fn acquire(
        &self,
        key: impl Into<Key>,
        token: impl Into<Token>,
        ttl: Duration,
        again: Option<Claim>,
    ) -> Acquire {
        Acquire::ask(&self.locks.grants, key.into(), token.into(), ttl, again)
    }

    /// Asks all nodes for `key` on behalf of an adopted command, to be granted with this claim: a
    /// held lock is refused, whatever its token.
    pub(crate) fn adopt(&self, key: Key, token: Token, ttl: Duration, claim: Claim) -> Acquire {
        Acquire::ask_adopted(&self.locks.grants, key, token, ttl, claim)
    }

    /// Returns the locks that adopted commands took through this proxy and that are held now.
    pub(crate) fn adopted_grants(&self) -> Vec<(Key, Token, Claim)> {
        let holders = &self.locks.grants.holders;
        (0..SHARDS).flat_map(|shard| holders.adopted(shard)).collect()
    }

    /// Returns the token and the claim of the adopted command that took the lock through this proxy, if it is held
    /// now.
    pub(crate) fn adopted_holder(&self, key: &Key) -> Option<(Token, Claim)> {
        self.locks.grants.holders.adopted_holder(key)
    }

    /// Notes which library, or else which words, took a lock that [`Engine::adopt`] was granted.
    pub(crate) fn name_adopted(&self, key: &Key, token: &Token, name: &'static str) {
        self.locks.grants.holders.name_adopted(key, token, name);
    }

    /// Returns whether the lock nodes said a moment ago that `key` is held, and nothing since has shown that it may be
    /// free. Now and then one asker gets `false`, and asks them.
    pub(crate) fn take_known_as_held(&self, key: &Key, now: Instant) -> bool {
        self.locks.refusals.take_known_as_held(key, now)
    }

    /// Returns a number that changes when something shows that `key` may be free.
    pub(crate) fn releases(&self, key: &Key) -> u32 {
        self.locks.refusals.releases(key)
    }

    /// Whether a lock node has refused a release of `key`, and will be asked again.
    pub(crate) fn must_release(&self, key: &Key) -> bool {
        self.locks.grants.nodes().must_release(key)
    }

    /// Notes that [`Engine::adopt`] was refused because the lock is held, for `remaining` at least.
    pub(crate) fn note_held(&self, key: &Key, remaining: Option<Duration>, now: Instant) {
        self.locks.refusals.note(key, remaining, now);
    }

    /// Asks all nodes for `key` as [`Engine::acquire`] does, and waits in line for at most `wait`.
    pub fn wait(
        &self,
        key: impl Into<Key>,
        token: impl Into<Token>,
        ttl: Duration,
        wait: Duration,
        again: Option<Claim>,
    ) -> Waiter {
        Waiter::new(&self.locks, key.into(), token.into(), ttl, wait, again)
    }

    /// Asks all nodes for a reader's part of `key` on behalf of `token`. The grant has no fence. Its holder is kept under
    /// the key [`Key::of_reader`] with the number of the grant's claim, by which it is renewed and released.
    pub(crate) fn acquire_shared(&self, key: &Key, token: Token, ttl: Duration) -> Acquire {
        Acquire::ask_shared(&self.locks.grants, key, token, ttl, Claim::new())
    }

    /// Asks as [`Engine::acquire_shared`] does, on behalf of an adopted command, by this claim.
    pub(crate) fn adopt_shared(
        &self,
        key: &Key,
        token: Token,
        ttl: Duration,
        claim: Claim,
    ) -> Acquire {
        debug_assert!(claim.is_adopted(), "operators are told who reads");
        Acquire::ask_shared(&self.locks.grants, key, token, ttl, claim)
    }

    /// Asks as [`Engine::acquire_shared`] does, and waits in line for at most `wait`.
    pub(crate) fn wait_shared(
        &self,
        key: Key,
        token: Token,
        ttl: Duration,
        wait: Duration,
    ) -> Waiter {
        Waiter::new(&self.locks, key, token, ttl, wait, None).shared()
    }

    /// Asks every node by which grant `token` is a reader of `key`. Changes nothing. The answer is `None` if it is none. An
    /// empty token in the answer: several readers have the token.
    pub(crate) fn reader_of(&self, key: Key, token: &Token) -> LookUp {
        LookUp::ask_reader(&self.locks.grants.nodes(), key, token)
    }

    /// Takes the first free lock of a family, for the client with this card.
    pub(crate) fn permit(
        &self,
        wanted: PermitWanted,
        card: &Arc<ClientCard>,
    ) -> impl Future<Output = Result<PermitGrant, NotGranted>> + Send + use<> {
        permit_taker::take(self.locks.clone(), wanted, card.clone())
    }

    /// Notes that a client was told that it has released this lock, which may be a permit: it is likely to be free.
    pub(crate) fn note_unlocked(&self, key: &Key) {
        self.locks.free_permits.freed(key);
    }

    /// Releases `key` on every node where the grant with this claim holds it, or hands it over to the next waiter
    /// here. Without a claim, releases the grant that `token` has; if this proxy has not made it, the nodes are asked
    /// for it first.
    pub fn release(
        &self,
        key: impl Into<Key>,
        token: impl Into<Token>,
        claim: Option<Claim>,
    ) -> Release {
        Release::ask(&self.locks, key.into(), token.into(), claim)
    }

    /// Releases `key` where the grant with this claim, which the nodes have named, holds it.
    pub fn release_found(
        &self,
        key: impl Into<Key>,
        token: impl Into<Token>,
        claim: Claim,
    ) -> Release {
        Release::ask_found(&self.locks, key.into(), token.into(), claim)
    }

    /// Asks every node for the claim by which `token` holds `key`. Changes nothing. `None`: the token
    /// does not hold it.
    pub(crate) fn claim_held(
        &self,
        key: Key,
        token: Token,
    ) -> impl Future<Output = Result<Option<Claim>, NoQuorum>> + Send + 'static {
        let mut look = self.look(key);
        async move { poll_fn(|cx| look.poll_claim_of(&token, cx)).await }
    }

    /// Returns when the grant with this claim was made through this proxy. `None`: it was not, as far as the proxy
    /// remembers.
    pub(crate) fn granted_at(&self, key: &Key, claim: Claim) -> Option<Instant> {
        self.locks.grants.holders.granted_at(key, claim)
    }

    /// Asks every node which grant has `key`. Changes nothing. `None`: the lock is not held.
    pub(crate) fn find(
        &self,
        key: Key,
    ) -> impl Future<Output = Result<Option<FoundGrant>, NoQuorum>> + Send + 'static {
        take_back::find(self.locks.clone(), key)
    }

    /// Takes `key` back from the grant that [`Engine::find`] has found, whichever proxy made it. That grant can be
    /// neither renewed nor put back on a node any more. Answers `false` if it does not hold the lock any more. `by`:
    /// the operator, as the audit trail names it.
    pub(crate) fn take_back(&self, key: Key, found: &FoundGrant, by: &str) -> Release {
        take_back::ask(&self.locks, key, found, by)
    }

    /// Takes `key` back from all its readers. Answers whether there were any. `by`: the operator, as the audit trail
    /// names it.
    pub(crate) fn end_readers(
        &self,
        key: Key,
        by: String,
    ) -> impl Future<Output = Result<bool, NoQuorum>> + Send + 'static {
        take_back::end_readers(self.locks.clone(), key, by)
    }

    /// Gives `key` a fresh TTL on every node where the grant with this claim holds it. Without a claim, renews the
    /// grant that `token` has.
    pub fn renew(
        &self,
        key: impl Into<Key>,
        token: impl Into<Token>,
        ttl: Duration,
        claim: Option<Claim>,
    ) -> Renew {
        Renew::ask(&self.locks, key.into(), token.into(), ttl, claim)
    }

    /// Keeps a lock that was just granted for `ttl` and is valid until `valid_until`. The watchdog
    /// renews it until the [`Keep`] is dropped, and tells `losses` if it is lost.
    pub(crate) fn keep(
        &self,
        key: &Key,
        token: &Token,
        claim: Claim,
        ttl: Duration,
        valid_until: Instant,
        losses: &Arc<Losses>,
    ) -> Keep {
        Keep::new(&self.locks, (key, token, claim), ttl, valid_until, losses)
    }

    /// Returns all session locks that this proxy keeps.
    pub(crate) fn watched(&self) -> Vec<KeptLock> {
        self.locks.grants.holders.all_watched()
    }

    /// Whether a session lock is still kept, or else its token has been granted the lock anew.
    pub(crate) fn is_held(&self, lock: &KeptLock) -> bool {
        let holders = &self.locks.grants.holders;
        let watch = holders.watched(&lock.key, &lock.token);
        match watch.filter(|watch| watch.id == lock.id) {
            Some(watch) => watch.is_kept(),
            None => holders.claim(&lock.key, &lock.token).is_some(),
        }
    }

    /// Ends a session lock whose key on the data node could not be kept, and tells its holder.
    pub(crate) fn lose(&self, lock: &KeptLock) {
        let watch = self.locks.grants.holders.watched(&lock.key, &lock.token);
        if let Some(watch) = watch.filter(|watch| watch.id == lock.id) {
            lose(&self.locks, &watch, LostReason::DataKey);
        }
    }

    /// Makes the asker the keeper of `key` if `token` holds it, with a fresh TTL, a larger fence and this new claim.
    /// A longer TTL that the lock has stays. The previous keeper, through whichever proxy, can neither renew the lock
    /// nor give it back any more, and is told of the loss. Fails with [`super::NotGranted::Held`] if `token` does not
    /// hold the lock.
    pub(crate) fn take_over(&self, key: Key, token: Token, ttl: Duration, claim: Claim) -> Acquire {
        Acquire::take_over(&self.locks.grants, key, token, ttl, claim)
    }

    /// Raises the fence of a grant that holds the lock to at least `fence` on a quorum of nodes, because the data
    /// node has seen so large a one.
    pub(crate) fn raise(
        &self,
        key: impl Into<Key>,
        token: impl Into<Token>,
        claim: Claim,
        fence: u64,
    ) -> Raise {
        Raise::ask(&self.locks.grants, key.into(), token.into(), claim, fence)
    }

    /// Learns a fence that the data node has seen, so that this proxy proposes no smaller one. A
    /// fence further ahead of this proxy's clock than a clock can be wrong is ignored.
    pub(crate) fn learn_fence(&self, fence: u64) {
        self.locks.grants.nodes().learn_fence(fence);
    }

    /// Asks every node whether `token` holds `key`, and for how long a quorum keeps it.
    pub fn attach(&self, key: impl Into<Key>, token: impl Into<Token>) -> Attach {
        Attach::ask(&self.locks, key.into(), token.into())
    }

    /// Asks every node which token holds `key`, and for how long a quorum keeps it. Changes nothing.
    ///
    /// The answer is `None` if the lock is free: no token can be on a quorum of nodes. Fails with [`NoQuorum`] if the
    /// answers that came in time settle neither.
    pub fn look(&self, key: impl Into<Key>) -> LookUp {
        LookUp::ask(&self.locks.grants.nodes(), key.into()).told(&self.locks)
    }

    /// Returns the state of every node now, in the order of the configuration.
    pub fn status(&self) -> Vec<NodeStatus> {
        self.locks.grants.nodes().status()
    }

    /// Returns how many operations in a row found no quorum, and the last error. Returns `None` unless these show
    /// that locks cannot be had now.
    pub(crate) fn outage(&self) -> Option<(u64, NoQuorum)> {
        self.locks.grants.nodes().outage.status()
    }

    /// Returns the log's last line about operations that found no quorum, while it is recent.
    pub(crate) fn no_quorum_line(&self) -> Option<String> {
        self.locks.grants.nodes().outage.last_line()
    }

    /// Lists the locks that are wanted, of those held through this proxy or waited for here. `prefix`: the length of
    /// `locks.prefix`. Returns `None` if comparing all keys with the pattern would take too long.
    pub(crate) fn list(&self, wanted: &LocksWanted, prefix: usize) -> Option<Vec<LockStatus>> {
        overview::list(&self.locks, wanted, prefix)
    }

    /// Describes the families among these, which are given by their keys, by key.
    pub(crate) fn families<'k>(
        &self,
        names: impl Iterator<Item = &'k [u8]>,
        wanted: &FamiliesWanted<'_>,
    ) -> Vec<FamilyStatus> {
        families::list(&self.locks, names, wanted)
    }

    /// Describes one lock. Returns `None` if no client of this proxy holds it now, or waits for it.
    pub(crate) fn lock(&self, key: &[u8]) -> Option<LockStatus> {
        overview::lock(&self.locks, &Key::from(key), overview::Moment::now())
    }

    /// Returns the readers of a lock that were granted their parts here, at most `most`, each with its number.
    pub(crate) fn readers(&self, key: &Key, most: usize) -> Vec<(u64, GrantStatus)> {
        overview::readers(&self.locks, key, most, Instant::now())
    }

    /// Returns one reader of a lock that was granted its part here, by its number, and the key under which the proxy
    /// keeps it.
    pub(crate) fn reader(&self, key: &Key, number: u64) -> Option<(Key, FoundGrant)> {
        take_back::reader(&self.locks, key, number)
    }

    /// Returns the clients of this proxy that wait for a lock, in the order of their arrival.
    pub(crate) fn waiters(&self, key: &[u8]) -> Vec<WaiterStatus> {
        self.locks.queues.line(key)
    }

    /// Returns the clients of this proxy that hold locks or wait, at most `most`, those that wait longest first.
    pub(crate) fn clients(&self, most: usize) -> Vec<ClientStatus> {
        overview::clients(&self.locks, most)
    }

    /// Returns the locks that clients of this proxy wait for longest, at most `most`.
    pub(crate) fn hot(&self, most: usize) -> Vec<HotLock> {
        overview::hot(&self.locks, most)
    }

    /// Pauses a lock node: it is asked for no new locks from now on. The locks that it has are still renewed there,
    /// put back and released.
    ///
    /// # Errors
    /// If no lock node has this address, or, without `force`, if fewer others vote than are needed.
    pub(crate) fn pause_node(&self, address: &[u8], force: bool) -> Result<(), NotPaused> {
        let nodes = self.status();
        let voter = place_of(&nodes, address)?;
        let others = nodes.iter().enumerate().filter(|(other, _)| *other != voter);
        let voting = others.filter(|(_, node)| node.votes()).count();
        if voting < self.quorum() && !force {
            return Err(NotPaused::TooFew { voting, quorum: self.quorum() });
        }
        self.locks.grants.nodes().pause(voter, true);
        Ok(())
    }

    /// Resumes a lock node: it is asked for new locks again. What was granted meanwhile is put on it.
    ///
    /// # Errors
    /// If no lock node has this address.
    pub(crate) fn resume_node(&self, address: &[u8]) -> Result<(), NotPaused> {
        let voter = place_of(&self.status(), address)?;
        self.locks.grants.nodes().pause(voter, false);
        Ok(())
    }

    /// Stops granting locks for `time`, except again to the present holder. Zero ends the pause.
    pub(crate) fn pause(&self, time: Duration) {
        let until = tokio::time::Instant::now() + time;
        self.locks.queues.pause(Some(until).filter(|_| !time.is_zero()));
    }

    /// Returns for how long no lock is granted, if grants are paused. Clients in line keep waiting; others must not
    /// ask.
    pub(crate) fn paused_for(&self) -> Option<Duration> {
        let until = self.locks.queues.paused_until()?;
        Some(until.saturating_duration_since(tokio::time::Instant::now()))
    }

    /// Returns how many session locks were lost since the start.
    pub(crate) fn lost(&self) -> u64 {
        self.locks.grants.metrics.lost_so_far()
    }

    /// Counts the locks held through this proxy and the clients that wait.
    pub fn counts(&self) -> Counts {
        let (waiters, longest_wait) =
            (self.locks.queues.all_waiting(), self.locks.queues.longest_wait());
        let mut counts = Counts { waiters, longest_wait, ..Counts::default() };
        self.locks.grants.holders.visit(&mut |_, shown| {
            counts.held += 1;
            counts.session_locks += usize::from(shown.is_session_lock);
            counts.adopted += usize::from(shown.adopted.is_some());
            counts.oldest_hold = counts.oldest_hold.max(shown.held_for);
        });
        counts
    }

    /// Turns the audit trail on or off: a line on stderr for each grant and for its end. `proxy`: the name of this
    /// process; the first one that is set stays.
    pub(crate) fn set_audit_trail(&self, is_whole: bool, proxy: &str) {
        self.locks.grants.audit_trail.set(is_whole, proxy);
    }

    /// Whether the audit trail is written.
    pub(crate) fn audit_trail_is_on(&self) -> bool {
        self.locks.grants.audit_trail.is_whole()
    }

    /// Whether a grant must wait for room in the audit trail.
    #[inline]
    pub(crate) fn audit_trail_is_full(&self) -> bool {
        self.locks.grants.audit_trail.is_full()
    }

    /// Waits until the audit trail has room for the lines of a grant: for `wait` at most; if that is `None`, for two
    /// seconds, or not at all while none of the trail gets written.
    ///
    /// # Errors
    /// If there is no room.
    pub(crate) async fn audit_trail_room(&self, wait: Option<Duration>) -> Result<(), NoQuorum> {
        match self.locks.grants.audit_trail.room(wait).await {
            true => Ok(()),
            false => Err(NoQuorum { is_unwritten: true, ..NoQuorum::default() }),
        }
    }

    /// Splits the times of waiting and holding, in /metrics, by the first of these patterns that matches a lock.
    /// `prefix`: `locks.prefix`.
    pub(crate) fn tell_apart(&self, patterns: &[String], prefix: &str) {
        self.locks.grants.metrics.tell_apart(patterns, prefix.len());
    }

    /// Switches to the next set of nodes once that set votes, as [`Engine::start`] does.
    #[cfg(test)]
    pub(crate) fn follow_next_nodes(&self) {
        tokio::spawn(moving::run(Arc::downgrade(&self.locks), self.moving.clone()));
    }

    /// Applies the settings that can change while the process runs: `max_waiters` and
    /// `max_handovers`.
    pub(crate) fn set_limits(&self, config: &LocksConfig) {
        self.locks.queues.set_limits(config);
    }

    /// Notes that grants of other proxies may last for so long: whatever waits for grants to run out waits for those
    /// too.
    pub(crate) fn heard_of(&self, longest: Duration) {
        self.locks.grants.nodes().heard_of(longest);
    }

    /// Returns the lock nodes that the proxy asks: `locks.nodes`, or what was `locks.next_nodes` before it took their
    /// place.
    pub(crate) fn serving(&self) -> Vec<LockNode> {
        self.moving.serving()
    }

    /// Sets what the file has as `locks.nodes` and `locks.next_nodes`. The proxy switches to a listed set once that
    /// set votes.
    pub(crate) fn set_listed_nodes(&self, nodes: &[LockNode], next_nodes: &[LockNode]) {
        self.moving.set_listed(nodes, next_nodes);
    }

    /// Returns the number of nodes that must be up for a lock to be granted.
    pub(crate) fn quorum(&self) -> usize {
        self.locks.grants.nodes().quorum()
    }

    /// Waits until the nodes that are up have carried out all earlier operations, for at most
    /// `limit`.
    pub async fn drain(&self, limit: Duration) {
        let begun = tokio::time::Instant::now();
        // Waits for the releases of all connections that have ended already.
        let given_back = self.locks.grants.giving_back.acquire();
        let _ = tokio::time::timeout(limit, given_back).await;
        let left = limit.saturating_sub(begun.elapsed());
        self.locks.grants.nodes().drain(left).await;
    }
}

/// Returns the place of the lock node with this address.
fn place_of(nodes: &[NodeStatus], address: &[u8]) -> Result<usize, NotPaused> {
    let place = nodes.iter().position(|node| node.address.as_bytes() == address);
    place.ok_or(NotPaused::Unknown)
}

/// Ends lines in which no client waits any more, forgets grants that have run out, and logs when the quorum is lost
/// or back, for as long as there are locks.
async fn sweep(locks: Weak<Locks>) {
    let (mut shard, mut quorum) = (0, QuorumWatch::default());
    loop {
        sleep(SWEEP_EVERY).await;
        let Some(locks) = locks.upgrade() else { return };
        locks.queues.sweep();
        let grants = &locks.grants;
        grants.nodes().outage.tell();
        grants.forget_run_out(shard..shard + SHARDS_AT_ONCE);
        shard = (shard + SHARDS_AT_ONCE) % SHARDS;
        quorum.look(grants);
        grants.audit_trail.tell_left_out();
    }
}

/// The watch that logs when a quorum of the lock nodes cannot vote any more, and when it can again.
#[derive(Default)]
struct QuorumWatch {
    /// Whether a quorum could vote once; a proxy that starts has none yet.
    was_there: bool,
    lost_at: Option<Instant>,
}

impl QuorumWatch {
    fn look(&mut self, grants: &Grants) {
        let (nodes, needed) = (grants.nodes().status(), grants.nodes().quorum());
        let voting = nodes.iter().filter(|node| node.votes()).count();
        let is_there = voting >= needed;
        if is_there && let Some(since) = self.lost_at.take() {
            grants.audit_trail.quorum_back(voting, needed, since.elapsed());
        } else if !is_there && self.was_there && self.lost_at.is_none() {
            self.lost_at = Some(Instant::now());
            let missing = nodes.iter().filter(|node| !node.votes()).map(|node| {
                let why = match &node.reason {
                    _ if node.refuses() => "refuses locks",
                    _ if node.too_slow => "too slow",
                    Some(reason) => reason,
                    None => "down",
                };
                format!("{} ({why})", node.address)
            });
            grants.audit_trail.quorum_lost(voting, needed, &missing.collect::<Vec<_>>().join(", "));
        }
        self.was_there |= is_there;
    }
}
