//! Session locks: renewed for as long as somebody keeps them, and told when lost.
//!
//! One timer for all of them. Each is renewed at a third of its TTL, those that
//! are due at about the same time in one call to each node. A renewal without a
//! quorum is tried again until validity ends; then, or as soon as a quorum of
//! nodes says that the lock is not its token's any more, the lock is lost.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering},
    },
    task::Waker,
    time::Duration,
};

use tokio::{
    sync::{Notify, OwnedSemaphorePermit, Semaphore},
    time::sleep_until,
};
use tokio_util::sync::CancellationToken;

use super::{
    Claim, Engine,
    metrics::{LockMetrics, LostReason, Renewal},
    operation::{Kind, Vote},
    quorum::{Decision, Rule, Votes, validity},
    scripts::{self, MAX_RENEWALS},
};
use crate::{
    clock::Instant,
    config::LocksConfig,
    key::{Key, Token},
};

/// A lock is renewed after this share of its TTL.
const RENEW_SHARE: u32 = 3;
/// A renewal that got no quorum is tried again after this share of the TTL.
const RETRY_SHARE: u32 = 20;
/// How often all locks are renewed at once, at the most, because a lock node came back.
const ALL_EVERY: Duration = Duration::from_secs(1);
/// Nodes are told to keep a fence on after this share of its TTL.
const FENCE_SHARE: u32 = 3;
/// How often the clock is looked at while any lock is kept: timers stand still while the
/// machine is suspended.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Calls that renew locks under way at once, as far as no quorum has answered them. With more
/// of them nodes would answer the last ones too late to count, and late ones are repeated.
const AT_ONCE: usize = 8;
/// Bytes of keys and tokens in one of them, unless a single lock has more.
const CALL_BYTES: usize = 64 * 1024;
/// Renewals that are due within this share of the default TTL go together.
const TOGETHER_SHARE: u32 = 30;

#[cfg(test)]
thread_local! {
    /// A fault that tests plant: locks are renewed when they have nearly run out.
    pub(super) static LATE: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
    /// Another: a renewal that got no quorum is not tried again.
    pub(super) static NOT_RETRIED: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// After so long a lock is renewed.
fn renewed_after(ttl: Duration) -> Duration {
    #[cfg(test)]
    if LATE.get() {
        return ttl.mul_f64(0.8);
    }
    ttl / RENEW_SHARE
}

/// After so long it is tried again.
fn tried_again_after(ttl: Duration) -> Duration {
    #[cfg(test)]
    if NOT_RETRIED.get() {
        return ttl;
    }
    ttl / RETRY_SHARE
}

/// A session lock that is watched over.
pub(super) struct Watch {
    id: u64,
    key: Key,
    token: Token,
    claim: Claim,
    /// `locks.max_hold` after its grant.
    hold_until: Option<Instant>,
    stage: AtomicU8,
    times: Mutex<Times>,
    losses: Arc<Losses>,
}

struct Times {
    /// It is renewed for so long.
    ttl: Duration,
    /// When validity ends. No node that has voted for the lock ends it before.
    valid_until: Instant,
    /// Where it stands on the schedule.
    due: Option<Instant>,
    /// Nodes keep its fence for long enough until then.
    fence_until: Instant,
}

/// It is renewed.
const KEPT: u8 = 0;
/// A release is under way, whose outcome is not known.
const RELEASING: u8 = 1;
/// It is released or lost.
const ENDED: u8 = 2;

impl Watch {
    pub(super) fn key(&self) -> &Key {
        &self.key
    }

    pub(super) fn token(&self) -> &Token {
        &self.token
    }

    pub(super) fn claim(&self) -> Claim {
        self.claim
    }

    fn stage(&self) -> u8 {
        self.stage.load(Ordering::Acquire)
    }

    /// It is released.
    pub(super) fn end(&self) {
        self.stage.store(ENDED, Ordering::Release);
    }

    /// The end of `locks.max_hold` ends whatever was told before.
    pub(super) fn within_hold(&self, validity: Duration) -> Duration {
        let left = self.hold_until.map(|until| until.saturating_duration_since(Instant::now()));
        left.map_or(validity, |left| left.min(validity))
    }

    fn times(&self) -> MutexGuard<'_, Times> {
        self.times.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Keeps a session lock. Dropped, it renews the lock no more, which then runs out: who was
/// told how long it holds may go on for so long. [`Keep::give_back`] ends it at once.
pub struct Keep {
    engine: Arc<Engine>,
    watch: Arc<Watch>,
}

impl fmt::Debug for Keep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Keep({})", self.watch.id)
    }
}

impl Drop for Keep {
    fn drop(&mut self) {
        self.engine.watchdog.pause(&self.watch);
        self.watch.end();
        self.engine.metrics.session_locks.decrement(1.0);
    }
}

impl Keep {
    /// Releases the lock, or hands it over to who waits: its holder wants it no more.
    pub fn give_back(self) {
        self.engine.watchdog.pause(&self.watch);
        if self.watch.stage.swap(ENDED, Ordering::AcqRel) != ENDED {
            let Watch { key, token, claim, .. } = &*self.watch;
            drop(self.engine.release(key.clone(), token.clone(), Some(*claim)));
        }
    }

    /// Its holder is about to release it, which is no loss.
    pub fn unlocking(&self) {
        self.engine.watchdog.pause(&self.watch);
    }

    /// Whether that loss is of this lock.
    pub fn is(&self, lost: &Lost) -> bool {
        self.watch.id == lost.id
    }

    /// What its holder may be told of a validity: nothing beyond `locks.max_hold`.
    pub fn within_hold(&self, validity: Duration) -> Duration {
        self.watch.within_hold(validity)
    }

    /// Notes that its holder was told that another has taken it over or released it.
    pub fn was_replaced(self) {
        self.engine.watchdog.metrics.lost(LostReason::Replaced);
    }

    /// Until when it is surely held, as far as is known; none if it is not, of which the
    /// connection is told like of any loss. The watchdog finds that out too, but perhaps
    /// only after its holder's next command: when this process has stood still, or while
    /// a renewal is under way that comes too late.
    pub fn valid_until(&self, now: Instant) -> Option<Instant> {
        if self.watch.stage() != KEPT {
            return None;
        }
        let until = self.watch.times().valid_until;
        if until <= now {
            self.engine.lose(&self.watch, LostReason::NoQuorum);
            return None;
        }
        Some(until)
    }
}

/// A lock that was lost.
#[derive(Debug)]
pub struct Lost {
    /// Its key on the nodes.
    pub key: Key,
    /// With which it was held.
    pub token: Token,
    /// Another connection has taken it over or released it; that may be the same one,
    /// which then does not keep it any more ([`Keep::is`]).
    pub replaced: bool,
    /// Of the watch.
    id: u64,
}

impl Lost {
    fn of(watch: &Watch, replaced: bool) -> Lost {
        Lost { key: watch.key.clone(), token: watch.token.clone(), replaced, id: watch.id }
    }
}

/// What one connection is to be told of.
#[derive(Debug)]
pub struct Losses {
    any: AtomicBool,
    lost: Mutex<Vec<Lost>>,
    /// Before that, no lock of the connection's is lost for want of a renewal; none:
    /// it keeps none.
    check_at: Mutex<Option<Instant>>,
    waker: Waker,
}

impl Losses {
    /// None yet. `waker` is woken for each.
    pub fn new(waker: Waker) -> Losses {
        let (any, lost) = (AtomicBool::new(false), Mutex::default());
        Losses { any, lost, check_at: Mutex::default(), waker }
    }

    /// Whether validity may have ended of a lock that is kept. If so, each must be looked
    /// at ([`Keep::valid_until`]), and the next check be set ([`Losses::check_by`]).
    pub fn is_check_due(&self) -> bool {
        self.check_at().take_if(|check_at| *check_at <= Instant::now()).is_some()
    }

    /// A check is due then, if none is before.
    pub fn check_by(&self, valid_until: Instant) {
        let mut check_at = self.check_at();
        *check_at = Some(check_at.map_or(valid_until, |before| before.min(valid_until)));
    }

    fn check_at(&self) -> MutexGuard<'_, Option<Instant>> {
        self.check_at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there is anything to take.
    pub fn any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    /// Takes the locks that were lost since the last time.
    pub fn take(&self) -> Vec<Lost> {
        let mut lost = self.lock();
        self.any.store(false, Ordering::Release);
        std::mem::take(&mut lost)
    }

    /// Returns once every loss that had been found is among those to take.
    pub fn settle(&self) {
        drop(self.lock());
    }

    /// Another connection has taken the lock over, or releases it.
    fn tell_replaced(&self, watch: &Watch) {
        self.lock().push(Lost::of(watch, true));
        self.any.store(true, Ordering::Release);
        self.waker.wake_by_ref();
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Lost>> {
        self.lost.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// All session locks of one proxy, by when they are to be renewed.
pub(super) struct Watchdog {
    schedule: Arc<Schedule>,
    next_id: AtomicU64,
    max_hold: Option<Duration>,
    together: Duration,
    metrics: Arc<LockMetrics>,
}

struct Schedule {
    due: Mutex<BTreeMap<(Instant, u64), Arc<Watch>>>,
    /// The first of them has changed.
    changed: Notify,
    /// A lock node has come back, which may have lost all of them.
    came_back: Notify,
    /// One for each call that may be under way.
    calls: Arc<Semaphore>,
    gone: CancellationToken,
}

impl Default for Schedule {
    fn default() -> Schedule {
        Schedule {
            due: Mutex::default(),
            changed: Notify::new(),
            came_back: Notify::new(),
            calls: Arc::new(Semaphore::new(AT_ONCE)),
            gone: CancellationToken::new(),
        }
    }
}

impl Schedule {
    /// Has all locks renewed now.
    fn all_are_due(&self) {
        let now = Instant::now();
        let mut due = self.lock();
        for ((_, id), watch) in std::mem::take(&mut *due) {
            watch.times().due = Some(now);
            due.insert((now, id), watch);
        }
    }

    /// Has those renewed later that could not be now, unless their times have changed.
    fn put_back(&self, watches: &[Arc<Watch>], when: Instant) {
        let mut due = self.lock();
        for watch in watches.iter().filter(|watch| watch.stage() == KEPT) {
            if watch.times().due.get_or_insert(when) == &when {
                due.insert((when, watch.id), watch.clone());
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<(Instant, u64), Arc<Watch>>> {
        self.due.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watchdog {
    pub(super) fn new(config: &LocksConfig, metrics: Arc<LockMetrics>) -> Watchdog {
        Watchdog {
            schedule: Arc::default(),
            next_id: AtomicU64::new(0),
            max_hold: config.max_hold,
            together: config.default_ttl / TOGETHER_SHARE,
            metrics,
        }
    }

    /// Puts it on the schedule, or moves it there, unless `change` says that it is
    /// to stay where it is.
    fn schedule(&self, watch: &Arc<Watch>, change: impl FnOnce(&mut Times) -> Option<Instant>) {
        let mut due = self.schedule.lock();
        let mut times = watch.times();
        let Some(when) = change(&mut times) else { return };
        let when = watch.hold_until.map_or(when, |until| when.min(until));
        if let Some(before) = times.due.replace(when) {
            due.remove(&(before, watch.id));
        }
        due.insert((when, watch.id), watch.clone());
        let first = due.first_key_value().is_some_and(|((_, id), _)| *id == watch.id);
        drop(times);
        drop(due);
        if first {
            self.schedule.changed.notify_one();
        }
    }

    /// A lock node has come back: what it has lost is put back soon.
    pub(super) fn came_back(&self) {
        self.schedule.came_back.notify_one();
    }

    /// Its holder asks the nodes for another TTL. A shorter one counts at once: the
    /// nodes may have it though nobody hears of it, and a renewal for the longer
    /// one, under way since before, says nothing any more.
    pub(super) fn asked(&self, watch: &Arc<Watch>, ttl: Duration, drift_factor: f64) {
        let now = Instant::now();
        if watch.stage() == KEPT {
            self.schedule(watch, |times| {
                let shorter = ttl < times.ttl;
                if shorter {
                    let until =
                        now + validity(ttl, Duration::ZERO, drift_factor).unwrap_or_default();
                    (times.ttl, times.valid_until) = (ttl, times.valid_until.min(until));
                    watch.losses.check_by(times.valid_until);
                }
                shorter.then(|| now + renewed_after(ttl))
            });
        }
    }

    /// Its holder got that TTL, which is valid until then; it goes on with it.
    pub(super) fn granted(&self, watch: &Arc<Watch>, ttl: Duration, until: Instant) {
        let now = Instant::now();
        if watch.stage() == KEPT {
            self.schedule(watch, |times| {
                (times.ttl, times.valid_until) = (ttl, until);
                watch.losses.check_by(times.valid_until);
                Some(now + renewed_after(ttl))
            });
        }
    }

    /// Takes it off the schedule: it is being released. True: it was kept until now.
    pub(super) fn pause(&self, watch: &Watch) -> bool {
        let stage =
            watch.stage.compare_exchange(KEPT, RELEASING, Ordering::AcqRel, Ordering::Acquire);
        let mut due = self.schedule.lock();
        if let Some(before) = watch.times().due.take() {
            due.remove(&(before, watch.id));
        }
        stage.is_ok()
    }

    /// The same, where not its keeper may be who releases it: the keeper is told.
    pub(super) fn release(&self, watch: &Watch) {
        if self.pause(watch) {
            watch.losses.tell_replaced(watch);
        }
    }

    /// Another is the lock's keeper from now on: the one before is told.
    pub(super) fn replace(&self, watch: &Watch) {
        self.release(watch);
        watch.end();
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.schedule.gone.cancel();
    }
}

impl Engine {
    /// Keeps a lock that was just granted for `ttl` and is valid until then, renewing it
    /// until the [`Keep`] is dropped. `losses` is told if it is lost.
    pub fn keep(
        self: &Arc<Self>,
        key: &Key,
        token: &Token,
        claim: Claim,
        ttl: Duration,
        valid_until: Instant,
        losses: &Arc<Losses>,
    ) -> Keep {
        let now = Instant::now();
        let watch = Arc::new(Watch {
            id: self.watchdog.next_id.fetch_add(1, Ordering::Relaxed),
            key: key.clone(),
            token: token.clone(),
            claim,
            hold_until: self.watchdog.max_hold.map(|hold| now + hold),
            stage: AtomicU8::new(KEPT),
            times: Mutex::new(Times {
                ttl,
                valid_until,
                due: None,
                fence_until: now + self.fence_ttl / FENCE_SHARE,
            }),
            losses: losses.clone(),
        });
        losses.check_by(valid_until);
        self.holders.watch(key, claim, watch.clone());
        self.watchdog.schedule(&watch, |_| Some(now + renewed_after(ttl)));
        self.metrics.session_locks.increment(1.0);
        Keep { engine: self.clone(), watch }
    }

    /// The holder is told, and nothing of the lock may stay.
    pub(super) fn lose(self: &Arc<Self>, watch: &Arc<Watch>, reason: LostReason) {
        // Held until it is told: its holder's connection, which may have found out at the
        // same time, must not go on in between (see [`Losses::settle`]).
        let mut lost = watch.losses.lock();
        let stage = watch.stage.compare_exchange(KEPT, ENDED, Ordering::AcqRel, Ordering::Acquire);
        if stage.is_ok() {
            self.watchdog.metrics.lost(reason);
            // Before anybody is told: who locks again at once, by the same token,
            // must not be met by this.
            let other = self.release_lost(watch);
            lost.push(Lost::of(watch, false));
            watch.losses.any.store(true, Ordering::Release);
            drop(lost);
            // By the same token it may have been granted anew meanwhile.
            if let Some(other) = other {
                other.losses.tell_replaced(&other);
            }
            watch.losses.waker.wake_by_ref();
        }
    }

    /// Renews these locks, at most [`MAX_RENEWALS`], on every node. Another call may begin
    /// once a quorum has answered this one: it does not wait for a node that is silent.
    async fn renew_many(self: Arc<Self>, watches: Vec<Arc<Watch>>, call: OwnedSemaphorePermit) {
        let since = Instant::now();
        let ttls: Vec<Duration> = watches.iter().map(|watch| watch.times().ttl).collect();
        let locks = watches.iter().zip(&ttls);
        let renewed = |(watch, ttl): (_, &Duration)| {
            let watch: &Arc<Watch> = watch;
            scripts::Renewed { key: &watch.key, token: &watch.token, ttl: *ttl, claim: watch.claim }
        };
        let locks: Vec<scripts::Renewed<'_>> = locks.map(renewed).collect();
        let least = ttls.iter().min().copied().unwrap_or_default();
        let longest = ttls.iter().max().copied().unwrap_or_default();
        let fences_until = watches.iter().map(|watch| watch.times().fence_until).min();
        let fence_ttl = fences_until.filter(|until| *until <= since).map(|_| self.fence_ttl);
        let request = scripts::prolong(&locks, fence_ttl);
        let operation = self.operation(Kind::RenewMany, "".into(), "".into(), longest, request);
        let mut asking = self.await_votes(self.submit(operation), Rule::All, least);
        let mut call = Some(call);
        std::future::poll_fn(|cx| {
            if asking.operation.decision(Rule::Renewal, cx.waker()) != Decision::Open {
                call = None;
            }
            asking.poll_decision(cx).map(drop)
        })
        .await;
        drop(call);
        let votes = asking.operation.votes();
        for (place, (watch, ttl)) in watches.iter().zip(ttls).enumerate() {
            if watch.stage() == KEPT {
                let decision = decide(&votes, place);
                self.renewed(watch, since, ttl, fence_ttl, decision);
                if decision == Decision::Yes {
                    self.heal_kept(watch, ttl, &votes, place);
                }
            }
        }
    }

    /// A quorum keeps this lock: it is put back on the nodes that have lost it.
    fn heal_kept(&self, watch: &Watch, ttl: Duration, votes: &[Vote], place: usize) {
        let lost = |node: &usize| matches!(votes[*node], Vote::Yes(sum) | Vote::No(sum) if sum >> place & 1 == 0);
        if (0..votes.len()).any(|node| lost(&node)) {
            let nodes = (0..votes.len()).filter(lost);
            self.heal(&watch.key, &watch.token, watch.claim, ttl, nodes);
        }
    }

    /// What came of a renewal for `ttl`, sent at `since`.
    fn renewed(
        self: &Arc<Self>,
        watch: &Arc<Watch>,
        since: Instant,
        ttl: Duration,
        fence_ttl: Option<Duration>,
        decision: Decision,
    ) {
        let now = Instant::now();
        let metrics = &self.watchdog.metrics;
        let left = self.validity(ttl, since, now);
        match (decision, left) {
            (Decision::Yes, Some(left)) => {
                metrics.renewed(Renewal::Ok);
                self.watchdog.schedule(watch, |times| {
                    // Else its holder has asked for another TTL meanwhile: that counts.
                    (times.ttl == ttl).then(|| {
                        times.valid_until = times.valid_until.max(now + left);
                        if let Some(fence_ttl) = fence_ttl {
                            times.fence_until = since + fence_ttl / FENCE_SHARE;
                        }
                        self.holders.renewed(&watch.key, watch.claim, since + ttl);
                        since + renewed_after(ttl)
                    })
                });
            }
            (Decision::No, _) => {
                metrics.renewed(Renewal::Lost);
                self.lose(watch, LostReason::NotHeld);
            }
            (Decision::Yes | Decision::NoQuorum | Decision::Open, _) => {
                metrics.renewed(Renewal::Retried);
                self.watchdog.schedule(watch, |times| {
                    (times.ttl == ttl)
                        .then(|| (now + tried_again_after(ttl)).min(times.valid_until))
                });
            }
        }
    }
}

/// What the nodes say of one lock of several.
fn decide(votes: &[Vote], place: usize) -> Decision {
    let mut counted = Votes { nodes: votes.len(), ..Votes::default() };
    for vote in votes {
        match vote {
            Vote::Yes(sum) | Vote::No(sum) | Vote::Taken(sum) if sum >> place & 1 == 1 => {
                counted.yes += 1;
            }
            Vote::Yes(_) | Vote::No(_) | Vote::Taken(_) | Vote::Kept { .. } | Vote::Held { .. } => {
                counted.no += 1
            }
            Vote::Pending | Vote::Missing(_) => counted.missing += 1,
        }
    }
    counted.decide(Rule::Renewal)
}

/// Renews what is due, for as long as the engine lives.
pub(super) async fn run(engine: Weak<Engine>) {
    let Some((schedule, clocks)) =
        engine.upgrade().map(|engine| (engine.watchdog.schedule.clone(), engine.clocks.clone()))
    else {
        return;
    };
    let mut all_at = None;
    loop {
        let first = schedule.lock().first_key_value().map(|((when, _), _)| *when);
        let sleeping = async {
            // What is due stays on the schedule until it can be asked.
            let _ = schedule.calls.acquire().await;
            match first {
                // The timer's clock may have stood still since it was set, so it is not
                // trusted for long.
                Some(when) => sleep_until(when.min(Instant::now() + LOOK_EVERY).timer()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = clocks.lost.notified() => {
                let Some(engine) = engine.upgrade() else { return };
                engine.lose_all();
                continue;
            }
            () = sleeping => {}
            () = schedule.changed.notified() => continue,
            () = schedule.came_back.notified() => {
                if all_at.is_none_or(|at: Instant| at.elapsed() >= ALL_EVERY) {
                    all_at = Some(Instant::now());
                    schedule.all_are_due();
                }
                continue;
            }
            () = schedule.gone.cancelled() => return,
        }
        let Some(engine) = engine.upgrade() else { return };
        let now = Instant::now();
        let most = schedule.calls.available_permits() * MAX_RENEWALS;
        let due = take_due(&schedule, now + engine.watchdog.together, most);
        let mut renewing = Vec::new();
        for watch in due {
            if watch.hold_until.is_some_and(|until| until <= now) {
                engine.lose(&watch, LostReason::MaxHold);
            } else if watch.times().valid_until <= now {
                engine.lose(&watch, LostReason::NoQuorum);
            } else if watch.stage() == KEPT {
                renewing.push(watch);
            }
        }
        // Nodes have as long to answer as the shortest TTL among them allows, which must
        // not be too short for the others.
        let patience =
            |watch: &Arc<Watch>| engine.patience(watch.times().ttl).as_millis().checked_ilog2();
        renewing.sort_by_cached_key(patience);
        for alike in renewing.chunk_by(|one, other| patience(one) == patience(other)) {
            let mut rest = alike;
            while !rest.is_empty() {
                let (batch, others) = rest.split_at(call_length(rest));
                rest = others;
                match schedule.calls.clone().try_acquire_owned() {
                    Ok(call) => drop(tokio::spawn(engine.clone().renew_many(batch.to_vec(), call))),
                    Err(_) => schedule.put_back(batch, now),
                }
            }
        }
    }
}

/// How many of these go into one call.
fn call_length(watches: &[Arc<Watch>]) -> usize {
    let mut bytes = 0;
    let fit = watches.iter().take(MAX_RENEWALS).take_while(|watch| {
        bytes += 2 * watch.key.len() + watch.token.len();
        bytes <= CALL_BYTES
    });
    fit.count().max(1)
}

/// Takes off the schedule what is due until then, the first `most` of it.
fn take_due(schedule: &Schedule, until: Instant, most: usize) -> Vec<Arc<Watch>> {
    let mut due = schedule.lock();
    let mut taken = Vec::new();
    while taken.len() < most
        && let Some(entry) = due.first_entry().filter(|entry| entry.key().0 <= until)
    {
        let watch = entry.remove();
        watch.times().due = None;
        taken.push(watch);
    }
    taken
}
