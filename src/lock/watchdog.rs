//! Session locks: renewed for as long as somebody keeps them, and told when lost.
//!
//! One timer for all of them. Each is renewed at a third of its TTL, those that
//! are due at about the same time in one call to each node. A renewal without a
//! quorum is tried again until validity ends; then, or as soon as a quorum of
//! nodes says that the lock is not its token's any more, the lock is lost.

use std::{
    fmt,
    sync::{Arc, Weak},
    time::Duration,
};

use tokio::{sync::OwnedSemaphorePermit, time::sleep_until};

use super::{
    Claim, Engine,
    losses::{Losses, Lost},
    metrics::{LostReason, Renewal},
    operation::{Kind, Vote},
    quorum::{Decision, Rule, Votes},
    schedule::{renewed_after, tried_again_after},
    scripts::{self, MAX_RENEWALS},
    watch::{Times, Watch},
};
use crate::{
    clock::Instant,
    key::{Key, Token},
};

/// How often all locks are renewed at once, at the most, because a lock node came back.
const ALL_EVERY: Duration = Duration::from_secs(1);
/// Nodes are told to keep a fence on after this share of its TTL.
const FENCE_SHARE: u32 = 3;
/// How often the clock is looked at while any lock is kept: timers stand still while the
/// machine is suspended.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Bytes of keys and tokens in one call that renews locks, unless a single lock has more.
const CALL_BYTES: usize = 64 * 1024;

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
        self.engine.schedule.pause(&self.watch);
        self.watch.end();
        self.engine.metrics.session_locks.decrement(1.0);
    }
}

impl Keep {
    /// Releases the lock, or hands it over to who waits: its holder wants it no more.
    pub fn give_back(self) {
        self.engine.schedule.pause(&self.watch);
        if self.watch.end() {
            let Watch { key, token, claim, .. } = &*self.watch;
            drop(self.engine.release(key.clone(), token.clone(), Some(*claim)));
        }
    }

    /// Its holder is about to release it, which is no loss.
    pub fn unlocking(&self) {
        self.engine.schedule.pause(&self.watch);
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
        self.engine.metrics.lost(LostReason::Replaced);
    }

    /// Until when it is surely held, as far as is known; none if it is not, of which the
    /// connection is told like of any loss. The watchdog finds that out too, but perhaps
    /// only after its holder's next command: when this process has stood still, or while
    /// a renewal is under way that comes too late.
    pub fn valid_until(&self, now: Instant) -> Option<Instant> {
        if !self.watch.is_kept() {
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
        let schedule = &self.schedule;
        let fence_until = now + self.nodes.fence_ttl / FENCE_SHARE;
        let times = Times { ttl, valid_until, due: None, fence_until };
        let hold_until = schedule.hold_until(now);
        let watch = Watch::new(schedule.next_id(), (key, token, claim), hold_until, times, losses);
        let watch = Arc::new(watch);
        losses.check_by(valid_until);
        self.holders.watch(key, claim, watch.clone());
        schedule.set(&watch, |_| Some(now + renewed_after(ttl)));
        self.metrics.session_locks.increment(1.0);
        Keep { engine: self.clone(), watch }
    }

    /// The holder is told, and nothing of the lock may stay.
    pub(super) fn lose(self: &Arc<Self>, watch: &Arc<Watch>, reason: LostReason) {
        // Held until it is told: its holder's connection, which may have found out at the
        // same time, must not go on in between (see [`Losses::settle`]).
        let mut lost = watch.losses.lock();
        if watch.lose() {
            self.metrics.lost(reason);
            // Before anybody is told: who locks again at once, by the same token,
            // must not be met by this.
            let other = self.release_lost(watch);
            watch.losses.add(&mut lost, watch.loss(false));
            drop(lost);
            // By the same token it may have been granted anew meanwhile.
            if let Some(other) = other {
                other.losses.tell(other.loss(true));
            }
            watch.losses.wake();
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
        let fence_ttl = fences_until.filter(|until| *until <= since).map(|_| self.nodes.fence_ttl);
        let request = scripts::prolong(&locks, fence_ttl);
        let operation =
            self.nodes.operation(Kind::RenewMany, "".into(), "".into(), longest, request);
        let mut asking = self.nodes.await_votes(self.nodes.submit(operation), Rule::All, least);
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
            if watch.is_kept() {
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
        let metrics = &self.metrics;
        let left = self.nodes.validity(ttl, since, now);
        match (decision, left) {
            (Decision::Yes, Some(left)) => {
                metrics.renewed(Renewal::Ok);
                self.schedule.set(watch, |times| {
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
                self.schedule.set(watch, |times| {
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
        engine.upgrade().map(|engine| (engine.schedule.clone(), engine.nodes.clocks.clone()))
    else {
        return;
    };
    let mut all_at = None;
    loop {
        let first = schedule.first();
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
        let due = schedule.take_due(now + schedule.together, most);
        let mut renewing = Vec::new();
        for watch in due {
            if watch.hold_until.is_some_and(|until| until <= now) {
                engine.lose(&watch, LostReason::MaxHold);
            } else if watch.times().valid_until <= now {
                engine.lose(&watch, LostReason::NoQuorum);
            } else if watch.is_kept() {
                renewing.push(watch);
            }
        }
        // Nodes have as long to answer as the shortest TTL among them allows, which must
        // not be too short for the others.
        let patience = |watch: &Arc<Watch>| {
            engine.nodes.patience(watch.times().ttl).as_millis().checked_ilog2()
        };
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
