//! One client that takes a permit: one of a family's locks that is free.
//!
//! Each lock is taken as any other is. The client first asks for the one that was released last through this proxy, or
//! for one that this proxy does not know to be held, from a random one on, so that proxies seldom ask for the same. If
//! it is held, the nodes are asked which of the others are, and then for those that are free.

use std::{
    future::{Future, poll_fn},
    sync::Arc,
    task::Poll,
    time::Duration,
};

use tokio::time::{Instant, sleep_until};

use super::{
    family::{permit, shown_line},
    in_line::LineUp,
    permit_turns::{FamilyLineUp, LockSeen, PermitTurn},
    waiter::{Waiter, next_ticket},
};
use crate::{
    card::ClientCard,
    clock,
    key::{Key, Token},
    lock::{
        Acquire, Claim, Grant, LookUp, NoQuorum, NotGranted, SameToken, jitter,
        lock_metrics::WakeUp, locks::Locks,
    },
};

/// The most locks at which a client looks at once.
const TOGETHER: usize = 32;

/// What a client wants that takes a permit.
pub(crate) struct PermitWanted {
    /// The family's key, which has the prefix already.
    pub(crate) family: Key,
    /// The number of permits; at least 1.
    pub(crate) n: usize,
    pub(crate) token: Token,
    pub(crate) ttl: Duration,
    /// `None`: not at all.
    pub(crate) wait: Option<Duration>,
    /// The permits that the client has by this token, as far as it knows: one of them is granted to it again.
    pub(crate) again: Vec<(usize, Claim)>,
    /// The client has named the token: another client may have a permit by it.
    pub(crate) is_named: bool,
}

/// A permit that was granted.
pub(crate) struct PermitGrant {
    /// The lock's key.
    pub(crate) key: Key,
    pub(crate) grant: Grant,
}

/// A client that takes a permit. Dropped before it has one, it leaves the line, and its request is undone on every
/// node.
struct Taker {
    locks: Arc<Locks>,
    wanted: PermitWanted,
    card: Arc<ClientCard>,
}

/// Takes the first free lock of a family.
pub(in crate::lock) async fn take(
    locks: Arc<Locks>,
    wanted: PermitWanted,
    card: Arc<ClientCard>,
) -> Result<PermitGrant, NotGranted> {
    let taker = Taker { locks, wanted, card };
    for (at, claim) in &taker.wanted.again {
        match taker.ask(*at, Some(*claim)).only_again().await {
            // It has ended.
            Err(NotGranted::Held { .. }) => {}
            said => return said.map(|grant| taker.granted(*at, grant)),
        }
    }
    if let Some((at, claim)) = taker.has_elsewhere().await.map_err(NotGranted::NoQuorum)? {
        return taker.wait_by_name(at, claim).await;
    }
    match taker.wanted.wait {
        Some(wait) => taker.wait(Instant::now() + wait).await,
        None => taker.take_now().await,
    }
}

impl Taker {
    fn name(&self, at: usize) -> Key {
        permit(&self.wanted.family, at)
    }

    fn granted(&self, at: usize, grant: Grant) -> PermitGrant {
        PermitGrant { key: self.name(at), grant }
    }

    fn ask(&self, at: usize, again: Option<Claim>) -> Acquire {
        let PermitWanted { token, ttl, .. } = &self.wanted;
        Acquire::ask(&self.locks.grants, self.name(at), token.clone(), *ttl, again).by(&self.card)
    }

    /// Returns the permit, and its claim, that the token, which the client has named, has over another connection of
    /// this proxy. The nodes are asked about one that it was granted: it may have been released elsewhere.
    async fn has_elsewhere(&self) -> Result<Option<(usize, Claim)>, NoQuorum> {
        let PermitWanted { n, token, is_named, again, .. } = &self.wanted;
        let permits = if *is_named { *n } else { 0 };
        for at in (0..permits).filter(|at| again.iter().all(|(own, _)| own != at)) {
            let name = self.name(at);
            if self.locks.grants.holders.claim(&name, token).is_some() {
                let mut look = LookUp::ask(&self.locks.grants.nodes(), name);
                if let Some(claim) = poll_fn(|cx| look.poll_claim_of(token, cx)).await? {
                    return Ok(Some((at, claim)));
                }
            }
        }
        Ok(None)
    }

    /// Waits for this permit alone, which the token has over another connection by this claim.
    async fn wait_by_name(&self, at: usize, claim: Claim) -> Result<PermitGrant, NotGranted> {
        let PermitWanted { token, ttl, wait, .. } = &self.wanted;
        if let Some(wait) = *wait {
            let waiter = Waiter::new(&self.locks, self.name(at), token.clone(), *ttl, wait, None);
            return Ok(self.granted(at, waiter.by(&self.card).await?));
        }
        let same_token = SameToken::Grants([claim].into_iter().collect());
        Err(NotGranted::Held { remaining: None, may_be_free: false, same_token })
    }

    /// Returns the lock to be asked for first: the one that was released last through this proxy or else, from a random
    /// one on, the first that no client holds through this proxy.
    fn start(&self) -> usize {
        let (n, now) = (self.wanted.n, clock::Instant::now());
        let last = self.locks.free_permits.take(&self.wanted.family, n).filter(|last| *last < n);
        let random = last.unwrap_or_else(|| jitter::below(n));
        let is_held = |at: &usize| self.locks.grants.holders.show(&self.name(*at), now).is_some();
        let mut order = (0..n).map(|more| (random + more) % n);
        order.find(|at| !is_held(at)).unwrap_or(random)
    }

    /// Asks which of these locks are held: about all at once, as soon as other clients' looks leave room.
    async fn look(&self, all: &[usize]) -> Vec<(usize, LockSeen)> {
        let room = u32::try_from(all.len()).unwrap_or(u32::MAX);
        // It is never closed.
        let _room = self.locks.looks.acquire_many(room).await;
        let nodes = self.locks.grants.nodes();
        let asked: Vec<(usize, LookUp)> =
            all.iter().map(|at| (*at, LookUp::ask(&nodes, self.name(*at)))).collect();
        let mut said = Vec::with_capacity(asked.len());
        for (at, look) in asked {
            said.push((
                at,
                match look.await {
                    Ok(Some(holding)) => LockSeen::Held(holding.left),
                    Ok(None) => LockSeen::Free,
                    Err(error) => LockSeen::Unknown(error),
                },
            ));
        }
        said
    }

    async fn take_now(&self) -> Result<PermitGrant, NotGranted> {
        let (n, start) = (self.wanted.n, self.start());
        // What is known of those that were asked for.
        let (mut soonest, mut clashed) = (None, false);
        let mut refused = |remaining: Option<Duration>, may_be_free: bool| {
            soonest = soonest.into_iter().chain(remaining).min();
            clashed |= may_be_free;
        };
        match self.ask(start, None).await {
            Ok(grant) => return Ok(self.granted(start, grant)),
            Err(NotGranted::Held { remaining, may_be_free, .. }) => refused(remaining, may_be_free),
            Err(why) => return Err(why),
        }
        let others: Vec<usize> = (1..n).map(|more| (start + more) % n).collect();
        for some in others.chunks(TOGETHER) {
            for (at, said) in self.look(some).await {
                match said {
                    LockSeen::Held(remaining) => refused(remaining, false),
                    LockSeen::Unknown(error) => return Err(NotGranted::NoQuorum(error)),
                    LockSeen::Free => match self.ask(at, None).await {
                        Ok(grant) => return Ok(self.granted(at, grant)),
                        Err(NotGranted::Held { remaining, may_be_free, .. }) => {
                            refused(remaining, may_be_free);
                        }
                        Err(why) => return Err(why),
                    },
                }
            }
        }
        let same_token = SameToken::Unknown;
        Err(NotGranted::Held { remaining: soonest, may_be_free: clashed, same_token })
    }

    async fn wait(&self, deadline: Instant) -> Result<PermitGrant, NotGranted> {
        // Dropped last: the client's request is undone before the next one asks.
        let mut place = PlaceInLine::take(self)?;
        let family = &self.wanted.family;
        let (queues, metrics) = (&self.locks.queues, &self.locks.grants.metrics);
        loop {
            let (at, asking) = match place.turn(deadline).await {
                Some(PermitTurn::Take(at, acquire)) => {
                    metrics.woken(WakeUp::HandOver);
                    metrics.handovers.increment(1);
                    (at, acquire.by(&self.card))
                }
                Some(PermitTurn::Ask(at, reason)) => {
                    if let Some(reason) = reason {
                        metrics.woken(reason);
                    }
                    (at, self.ask(at, None))
                }
                Some(PermitTurn::Look(all)) => {
                    let mut said = Vec::with_capacity(all.len());
                    for some in all.chunks(TOGETHER) {
                        said.extend(self.look(some).await);
                    }
                    queues.looked(family, place.ticket, said.into_iter());
                    continue;
                }
                Some(PermitTurn::Wait(_)) | None => {
                    let no_quorum = queues.family_no_quorum(family);
                    return Err(no_quorum.map_or(NotGranted::held(false), NotGranted::NoQuorum));
                }
            };
            match asking.await {
                Ok(grant) => {
                    place.granted = Some((at, self.wanted.ttl));
                    return Ok(self.granted(at, grant));
                }
                Err(why) => queues.permit_refused(family, place.ticket, at, &why),
            }
        }
    }
}

/// A client's place in a family's line. Dropping it leaves the line.
struct PlaceInLine<'t> {
    taker: &'t Taker,
    ticket: u64,
    since: Instant,
    has_waited: bool,
    granted: Option<(usize, Duration)>,
}

impl<'t> PlaceInLine<'t> {
    fn take(taker: &'t Taker) -> Result<PlaceInLine<'t>, NotGranted> {
        let PermitWanted { family, n, token, ttl, .. } = &taker.wanted;
        let (token, card) = (token.clone(), Some(taker.card.clone()));
        let wants = LineUp { token, ttl: *ttl, shared: false, card };
        let wanted = FamilyLineUp { family: family.clone(), n: *n, start: taker.start(), wants };
        let (ticket, since) = (next_ticket(), Instant::now());
        taker.locks.queues.join_family(wanted, ticket)?;
        Ok(PlaceInLine { taker, ticket, since, has_waited: false, granted: None })
    }

    /// Waits for the client's turn; `None` once its time is up. A request that is under way then may still be granted.
    async fn turn(&mut self, deadline: Instant) -> Option<PermitTurn> {
        let (queues, family) = (&self.taker.locks.queues, &self.taker.wanted.family);
        let mut timer = Box::pin(sleep_until(deadline));
        poll_fn(|cx| {
            loop {
                let turn = queues.permit_turn(family, self.ticket, cx.waker());
                let is_over = Instant::now() >= deadline;
                let until = match turn {
                    PermitTurn::Take(..) | PermitTurn::Ask(_, None) => {
                        return Poll::Ready(Some(turn));
                    }
                    PermitTurn::Ask(..) | PermitTurn::Look(_) if !is_over => {
                        return Poll::Ready(Some(turn));
                    }
                    PermitTurn::Ask(..) | PermitTurn::Look(_) => return Poll::Ready(None),
                    PermitTurn::Wait(_) if is_over => return Poll::Ready(None),
                    PermitTurn::Wait(until) => until,
                };
                self.has_waited = true;
                let until = until.map_or(deadline, |until| until.min(deadline));
                if timer.deadline() != until {
                    timer.as_mut().reset(until);
                }
                if timer.as_mut().poll(cx).is_pending() {
                    return Poll::Pending;
                }
            }
        })
        .await
    }
}

impl Drop for PlaceInLine<'_> {
    fn drop(&mut self) {
        let Taker { locks, wanted, .. } = self.taker;
        locks.queues.leave_family(&wanted.family, self.ticket, self.granted.take());
        let (line, waited) = (shown_line(&wanted.family), self.since.elapsed());
        locks.grants.metrics.waited(&line, waited);
        if self.has_waited {
            locks.hot.count(&line, waited);
        }
    }
}
