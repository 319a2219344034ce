//! The watchdog: renews session locks for as long as a connection keeps them, and tells of losses.
//!
//! One timer serves all of them. Each is renewed at a third of its TTL, those that are due at about
//! the same time in one call to each node. A renewal without a quorum is tried again until validity
//! ends. Then, or as soon as so many nodes deny the lock that no quorum is left, it is lost.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use tokio::{sync::OwnedSemaphorePermit, time::sleep_until};

use super::{
    lose::{lose, lose_all},
    schedule::{FENCE_SHARE, Schedule, renewed_after, tried_again_after},
    watch::Watch,
};
use crate::{
    clock::Instant,
    key::{Key, Token},
    lock::{
        grants::Grants,
        lock_metrics::{LostReason, Renewal},
        locks::Locks,
        node::nodes::Nodes,
        operation::{Kind, Vote},
        quorum::{Decision, Rule, Votes},
        scripts::{self, MAX_RENEWALS},
    },
};

/// The shortest time between two renewals of all locks because a lock node came back.
const ALL_EVERY: Duration = Duration::from_secs(1);
/// How often the clock is looked at while any lock is kept: timers stand still while the machine is
/// suspended.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// The most bytes of keys and tokens in one call that renews locks, unless a single lock has more.
const CALL_BYTES: usize = 64 * 1024;

/// Renews these locks, at most [`MAX_RENEWALS`], on every node. Another call may begin once a
/// quorum has answered this one: it does not wait for a silent node.
async fn renew_many(locks: Arc<Locks>, watches: Vec<Arc<Watch>>, call: OwnedSemaphorePermit) {
    let since = Instant::now();
    let ttls: Vec<Duration> = watches.iter().map(|watch| watch.times().ttl).collect();
    let grants = &locks.grants;
    let nodes = Arc::clone(&grants.nodes());
    for watch in &watches {
        if nodes.wait_alone(&watch.key) {
            let grant = (&watch.key, &watch.token, watch.claim);
            grants.put_back((&nodes, std::iter::once(0)), grant);
        }
    }
    let timed = watches.iter().zip(&ttls);
    let renewed = |(watch, ttl): (_, &Duration)| {
        let watch: &Arc<Watch> = watch;
        scripts::Prolonged {
            key: &watch.key,
            token: &watch.token,
            ttl: Some(*ttl),
            claim: watch.claim,
        }
    };
    let calls: Vec<scripts::Prolonged<'_>> = timed.map(renewed).collect();
    let least = ttls.iter().min().copied().unwrap_or_default();
    let longest = ttls.iter().max().copied().unwrap_or_default();
    let fences_until = watches.iter().map(|watch| watch.times().fence_until).min();
    let fence_ttl = fences_until.filter(|until| *until <= since).map(|_| nodes.fence_ttl);
    // Readers have no fences.
    let request = match watches[0].key.is_of_reader() {
        true => scripts::shared::prolong(nodes.dialect, &calls),
        false => scripts::prolong(nodes.dialect, &calls, fence_ttl),
    };
    let operation = nodes.operation(
        Kind::RenewMany,
        nodes.place_of(&watches[0].key),
        "".into(),
        longest,
        request,
    );
    let mut tally = nodes.await_votes(nodes.submit(operation), Rule::All, least);
    let mut call = Some(call);
    std::future::poll_fn(|cx| {
        if tally.operation.decision(Rule::Renewal, cx.waker()) != Decision::Open {
            call = None;
        }
        tally.poll_decision(cx).map(drop)
    })
    .await;
    drop(call);
    let votes = tally.operation.votes();
    for (place, (watch, ttl)) in watches.iter().zip(ttls).enumerate() {
        if watch.is_kept() {
            let counted = count(&votes, place);
            watch.times().votes = Some(counted);
            let decision = counted.decide(Rule::Renewal);
            note_renewal((&locks, &nodes), watch, since, ttl, fence_ttl, decision);
            if decision == Decision::Yes {
                heal_kept((grants, &nodes), watch, ttl, &votes, place);
            }
        }
    }
}

/// Puts a lock back on the nodes that have lost it, while a quorum keeps it.
fn heal_kept(
    (grants, nodes): (&Grants, &Arc<Nodes>),
    watch: &Watch,
    ttl: Duration,
    votes: &[Vote],
    place: usize,
) {
    let mut lacking = lost(votes, place).peekable();
    if lacking.peek().is_some() {
        grants.heal((nodes, lacking), (&watch.key, &watch.token, watch.claim), ttl);
    }
}

/// Returns the nodes that deny one of several locks asked about in one call.
pub(super) fn lost(votes: &[Vote], place: usize) -> impl Iterator<Item = usize> {
    let denies =
        move |vote: &Vote| matches!(vote, Vote::Yes(sum) | Vote::No(sum) if sum >> place & 1 == 0);
    votes.iter().enumerate().filter(move |(_, vote)| denies(vote)).map(|(node, _)| node)
}

/// Notes the outcome of a renewal for `ttl`, sent at `since`.
fn note_renewal(
    (locks, nodes): (&Arc<Locks>, &Nodes),
    watch: &Arc<Watch>,
    since: Instant,
    ttl: Duration,
    fence_ttl: Option<Duration>,
    decision: Decision,
) {
    let now = Instant::now();
    let Grants { holders, schedule, metrics, .. } = &*locks.grants;
    let left = nodes.validity(ttl, since, now);
    match (decision, left) {
        (Decision::Yes, Some(left)) => {
            debug_assert!(now + left <= since + ttl, "a validity ends before its lock does");
            metrics.renewed(Renewal::Ok);
            schedule.set(watch, |times| {
                // If the TTL differs, the holder has asked for another one meanwhile: that counts.
                (times.ttl == ttl).then(|| {
                    times.valid_until = times.valid_until.max(now + left);
                    if let Some(fence_ttl) = fence_ttl {
                        times.fence_until = since + fence_ttl / FENCE_SHARE;
                    }
                    holders.renewed(&watch.key, watch.claim, since + ttl);
                    since + renewed_after(ttl)
                })
            });
        }
        (Decision::No, _) => {
            metrics.renewed(Renewal::Lost);
            lose(locks, watch, LostReason::NotHeld);
        }
        (Decision::Yes | Decision::NoQuorum | Decision::Open, _) => {
            metrics.renewed(Renewal::Retried);
            schedule.set(watch, |times| {
                (times.ttl == ttl).then(|| (now + tried_again_after(ttl)).min(times.valid_until))
            });
        }
    }
}

/// Decides on one lock of several that were renewed in one call.
pub(super) fn decide(votes: &[Vote], place: usize) -> Decision {
    count(votes, place).decide(Rule::Renewal)
}

/// Counts the votes on one lock of several that were renewed in one call.
fn count(votes: &[Vote], place: usize) -> Votes {
    let mut counted = Votes { nodes: votes.len(), ..Votes::default() };
    for vote in votes {
        match vote {
            Vote::Yes(sum) | Vote::No(sum) | Vote::Taken(sum) if sum >> place & 1 == 1 => {
                counted.yes += 1;
            }
            Vote::Yes(_)
            | Vote::No(_)
            | Vote::Same { .. }
            | Vote::Taken(_)
            | Vote::Kept { .. }
            | Vote::Held { .. }
            | Vote::Found { .. } => counted.no += 1,
            Vote::Pending | Vote::Missing(_) => counted.missing += 1,
        }
    }
    counted
}

/// Renews the locks that are due, until the engine is dropped.
pub(in crate::lock) async fn run(locks: Weak<Locks>) {
    let Some(schedule) = locks.upgrade().map(|locks| locks.grants.schedule.clone()) else { return };
    let mut all_at = None;
    loop {
        // Read anew each time: a change of the set brings other clocks.
        let Some(clocks) = locks.upgrade().map(|locks| locks.grants.nodes().clocks.clone()) else {
            return;
        };
        let first = schedule.first();
        let sleeping = async {
            // A due lock stays on the schedule until a call is free.
            let _ = schedule.calls.acquire().await;
            match first {
                // The timer's clock may have stood still since it was set, so no timer runs for long.
                Some(when) => sleep_until(when.min(Instant::now() + LOOK_EVERY).timer()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = clocks.lost.notified() => {
                let Some(locks) = locks.upgrade() else { return };
                lose_all(&locks);
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
        let Some(locks) = locks.upgrade() else { return };
        renew_due(&locks, &schedule);
    }
}

/// Renews the locks that are due, and gives up those whose time is over.
fn renew_due(locks: &Arc<Locks>, schedule: &Schedule) {
    let now = Instant::now();
    let most = schedule.calls.available_permits() * MAX_RENEWALS;
    let due = schedule.take_due(now + schedule.together, most);
    let mut renewing = Vec::new();
    for watch in due {
        if watch.hold_until.is_some_and(|until| until <= now) {
            lose(locks, &watch, LostReason::MaxHold);
        } else if watch.times().valid_until <= now {
            lose(locks, &watch, LostReason::NoQuorum);
        } else if watch.is_kept() {
            renewing.push(watch);
        }
    }
    // Nodes have as long to answer a call as the shortest TTL among its locks allows, so locks with a much longer
    // TTL go into another call.
    let nodes = locks.grants.nodes();
    let patience =
        |watch: &Arc<Watch>| nodes.patience(watch.times().ttl).as_millis().checked_ilog2();
    let place = |watch: &Arc<Watch>| (patience(watch), nodes.together(&watch.key));
    renewing.sort_by_cached_key(place);
    for alike in renewing.chunk_by(|one, other| place(one) == place(other)) {
        let mut rest = alike;
        while !rest.is_empty() {
            let (batch, others) =
                rest.split_at(call_length(rest.iter().map(|watch| (&watch.key, &watch.token))));
            rest = others;
            match schedule.calls.clone().try_acquire_owned() {
                Ok(call) => drop(tokio::spawn(renew_many(locks.clone(), batch.to_vec(), call))),
                Err(_) => schedule.put_back(batch, now),
            }
        }
    }
}

/// Returns how many of the first locks go into one call.
pub(super) fn call_length<'a>(locks: impl Iterator<Item = (&'a Key, &'a Token)>) -> usize {
    let mut bytes = 0;
    let fit = locks.take(MAX_RENEWALS).take_while(|(key, token)| {
        bytes += 2 * key.len() + token.len();
        bytes <= CALL_BYTES
    });
    fit.count().max(1)
}
