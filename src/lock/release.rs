//! One release: the lock is given back, or handed over to the next waiter here.
//!
//! A release names a claim, so that it ends no other grant, however late a node carries it out. A release by token
//! through a proxy that does not know the token's grant asks the nodes first ([`LookUp::poll_claim_of`]). The proxy
//! that made such a grant goes on as if it had it, until so many nodes deny it that it is lost. Meanwhile it must not
//! put the lock back where it was released, so those nodes refuse that; and a repeated LOCK by that claim takes the
//! lock on no node where it is free. So once a quorum has released the grant, fewer nodes than a quorum have it, and
//! every answer about it from then on is that it has ended.
//!
//! A lock that an operator takes back is released in that way too, whichever proxy granted it: its holder goes on
//! renewing it, through whichever proxy.

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::task::JoinHandle;

use super::{
    Acquire, Alarm, Claim, LookUp, NoQuorum,
    audit_trail::GrantEnd,
    grants::Grants,
    holders::Owner,
    keep::watch::Watch,
    line::queue::NextHolder,
    locks::Locks,
    node::nodes::{Nodes, Tally},
    operation::{Absence, AllVotes, Operation, Vote},
    quorum::{Decision, Rule},
};
use crate::{
    clock::Instant,
    key::{Key, Token},
};

/// An UNLOCK under way. Dropping it does not stop the release.
pub struct Release {
    locks: Arc<Locks>,
    stage: Stage,
    /// Set for a session lock.
    watch: Option<Arc<Watch>>,
    /// Set if the asker has named no grant: the one that this proxy knows may have ended, and
    /// another proxy may have made one since.
    unsure: Option<(Key, Token)>,
    /// Whether this proxy made the grant, and it had not run out.
    was_held: bool,
    /// The hand-over that has failed, of a lock that is given back in its place.
    handing: Option<Arc<Operation>>,
}

/// Why a lock is released.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReleaseCause<'a> {
    /// A client gives it back.
    Asked,
    /// The same, by a claim that the nodes have named.
    Found,
    /// The operator `by` takes it back, by a claim that the nodes have named: the holder knows nothing of that.
    TakenBack { by: &'a str },
    /// The session lock is lost.
    Lost,
}

impl<'a> ReleaseCause<'a> {
    /// Returns the operator who takes the lock back.
    fn by(self) -> Option<&'a str> {
        match self {
            ReleaseCause::TakenBack { by } => Some(by),
            ReleaseCause::Asked | ReleaseCause::Found | ReleaseCause::Lost => None,
        }
    }

    /// Returns how the grant ends.
    fn end(self) -> GrantEnd {
        match self {
            ReleaseCause::Asked | ReleaseCause::Found => GrantEnd::Released,
            ReleaseCause::TakenBack { .. } => GrantEnd::TakenBack,
            ReleaseCause::Lost => GrantEnd::Lost,
        }
    }
}

enum Stage {
    /// A separate task asks the nodes for the grant, and releases it.
    Looking(JoinHandle<Result<bool, NoQuorum>>),
    /// The nodes are asked to release the grant.
    Releasing(Tally),
}

impl Stage {
    /// Asks the nodes for the grant that `token` has, and releases it, even if the caller stops waiting.
    fn look(locks: &Arc<Locks>, key: Key, token: Token) -> Stage {
        let look = LookUp::ask(&locks.grants.nodes(), key.clone()).told(locks);
        Stage::Looking(tokio::spawn(find_and_release(locks.clone(), look, key, token)))
    }
}

impl Release {
    /// Releases `key` on every node where the grant with this claim holds it, or hands it over to the next waiter
    /// here. Without a claim, releases the grant that `token` has: if this proxy does not know it, a quorum of nodes
    /// must.
    pub(super) fn ask(locks: &Arc<Locks>, key: Key, token: Token, claim: Option<Claim>) -> Release {
        Release::begin(locks, key, token, claim, ReleaseCause::Asked).told()
    }

    /// Releases the grant with this claim, which the nodes have named.
    pub(super) fn ask_found(locks: &Arc<Locks>, key: Key, token: Token, claim: Claim) -> Release {
        let claim = claim.to_release();
        Release::begin(locks, key, token, Some(claim), ReleaseCause::Found).told()
    }

    /// Releases the grant with this claim, which the nodes have named, though its holder goes on. If this proxy keeps
    /// the lock, the caller has stopped its renewals, and tells the keeper afterwards.
    pub(super) fn ask_taken_back(
        locks: &Arc<Locks>,
        key: Key,
        token: Token,
        claim: Claim,
        by: &str,
    ) -> Release {
        Release::begin(locks, key, token, Some(claim), ReleaseCause::TakenBack { by }).told()
    }

    /// Tells the lock's keeper of the release.
    fn told(self) -> Release {
        if let Some(watch) = &self.watch {
            self.locks.grants.schedule.release(watch);
        }
        self
    }

    /// Releases a lost lock. The caller tells its keeper afterwards, and also the keeper that this returns, if there is
    /// another one.
    pub(super) fn ask_lost(locks: &Arc<Locks>, lost: &Arc<Watch>) -> Option<Arc<Watch>> {
        let (key, token) = (lost.key.clone(), lost.token.clone());
        let release = Release::begin(locks, key, token, Some(lost.claim), ReleaseCause::Lost);
        let other = release.watch.filter(|watch| !Arc::ptr_eq(watch, lost));
        other.filter(|other| locks.grants.schedule.pause(other))
    }

    /// Forgets a lost lock on which its holder may still count: the nodes that have it keep it until its TTL has run
    /// out. Returns another keeper as [`Release::ask_lost`] does.
    pub(super) fn leave_lost(locks: &Arc<Locks>, lost: &Arc<Watch>) -> Option<Arc<Watch>> {
        let (grants, claim) = (&locks.grants, Some(lost.claim));
        let now = Instant::now();
        let (_, watch, held) = grants.holders.release(&lost.key, &lost.token, claim, now);
        if let Some(held) = held {
            grants.metrics.held(&lost.key, held.held_for);
            grants.audit_trail.ended(&lost.key, &held, ReleaseCause::Lost.end());
        }
        let other = watch.filter(|watch| !Arc::ptr_eq(watch, lost));
        other.filter(|other| grants.schedule.pause(other))
    }

    /// Releases the lock or hands it over. The caller tells its keeper.
    fn begin(
        locks: &Arc<Locks>,
        key: Key,
        token: Token,
        claim: Option<Claim>,
        cause: ReleaseCause<'_>,
    ) -> Release {
        let since = Instant::now();
        let (grants, nodes) = (&locks.grants, locks.grants.nodes());
        let (known, watch, held) = grants.holders.release(&key, &token, claim, since);
        locks.refusals.freed(&key);
        let by = cause.by();
        let is_found = by.is_some() || cause == ReleaseCause::Found;
        match held {
            Some(held) => {
                let held = held.by(by);
                grants.metrics.held(&key, held.held_for);
                grants.audit_trail.ended(&key, &held, cause.end());
            }
            None if is_found => grants.audit_trail.released_elsewhere(&key, by),
            None => {}
        }
        let releasing = |tally, unsure| {
            let (locks, stage) = (locks.clone(), Stage::Releasing(tally));
            let was_held = matches!(known, Owner::This(_));
            Release { locks, stage, watch: watch.clone(), unsure, was_held, handing: None }
        };
        let unsure = claim.is_none().then(|| (key.clone(), token.clone()));
        let claim = match (known, claim) {
            (Owner::This(known), _) if by.is_none() => known,
            (_, Some(claim)) if is_found => {
                let operation = nodes.submit(nodes.releasing_elsewhere(key, token, claim));
                locks.queues.released(&operation.key, &NextHolder::Nobody);
                // A quorum must have released it. That a quorum may have is not enough.
                let tally = nodes.await_votes(operation, Rule::Renewal, nodes.max_ttl);
                return releasing(tally, None);
            }
            (_, Some(claim)) => claim,
            (_, None) => {
                let (locks, stage) = (locks.clone(), Stage::look(locks, key, token));
                let (unsure, handing) = (None, None);
                return Release { locks, stage, watch, unsure, was_held: false, handing };
            }
        };
        let next = match known {
            // Other readers may be left.
            _ if key.is_of_reader() => NextHolder::Nobody,
            Owner::Another => NextHolder::Nobody,
            Owner::This(_) | Owner::Nothing => locks.queues.next(&key),
        };
        let operation = match next {
            NextHolder::Nobody | NextHolder::Others => {
                let operation = nodes.submit(nodes.releasing(key, token, claim));
                if known != Owner::Another {
                    locks.queues.released(&operation.key, &next);
                }
                operation
            }
            NextHolder::HandTo { ticket, token: next, ttl } => {
                Release::hand_over(locks, &nodes, (key, token, claim), (ticket, next, ttl))
            }
        };
        let tally = nodes.await_votes(operation, Rule::Release, nodes.max_ttl);
        releasing(tally, unsure)
    }

    /// Hands a lock from its holder to a waiter.
    fn hand_over(
        locks: &Arc<Locks>,
        nodes: &Arc<Nodes>,
        (key, token, claim): (Key, Token, Claim),
        (ticket, next, ttl): (u64, Token, Duration),
    ) -> Arc<Operation> {
        let (acquire, operation) =
            Acquire::hand_over((&locks.grants, nodes), (token, claim), key, next, ttl);
        let key = &operation.key;
        if let Some(unwanted) = locks.queues.hand(key, ticket, acquire) {
            // The waiter has left meanwhile, and dropping its request undoes it. A request of another waiter that was
            // sent since came too early.
            drop(unwanted);
            locks.queues.released(key, &NextHolder::Nobody);
        }
        operation
    }

    /// Returns the operation's timer, for reuse.
    pub(crate) fn alarm(&mut self) -> Option<&mut Alarm> {
        match &mut self.stage {
            Stage::Looking(_) => None,
            Stage::Releasing(tally) => Some(&mut tally.alarm),
        }
    }
}

/// Gives back a lock that could not be handed over: a node that is out of memory stores no new lock,
/// but still gives one back.
fn give_back_instead(Tally { nodes, operation: handing, .. }: &Tally) -> Option<Tally> {
    #[cfg(feature = "planted")]
    if std::env::var("LOCKGATE_PLANT").is_ok_and(|fault| fault == "repeat") {
        return None;
    }
    let (token, claim) = handing.from.clone()?;
    let operation = nodes.submit(nodes.releasing(handing.key.clone(), token, claim));
    Some(nodes.await_votes(operation, Rule::Release, nodes.max_ttl))
}

/// Puts together the votes on a hand-over and on the release in its place: whether each node had the grant when its
/// holder gave it back. One that may have carried the hand-over out, if late, counts as missing.
fn put_together(handing: &Operation, mut votes: AllVotes) -> AllVotes {
    for (node, vote) in votes.iter_mut().enumerate() {
        *vote = match (*vote, handing.had_given(node)) {
            (Vote::Yes(_), _) | (_, Some(true)) => Vote::Yes(0),
            (_, Some(false)) => Vote::No(0),
            (_, None) => Vote::Missing(Absence::Timeout),
        };
    }
    votes
}

/// Finds the grant that `token` has on the nodes, and releases it.
async fn find_and_release(
    locks: Arc<Locks>,
    mut look: LookUp,
    key: Key,
    token: Token,
) -> Result<bool, NoQuorum> {
    match poll_fn(|cx| look.poll_claim_of(&token, cx)).await? {
        Some(claim) => Release::ask_found(&locks, key, token, claim).await,
        None => {
            // The head of the line here may look.
            locks.queues.released(&key, &NextHolder::Nobody);
            Ok(false)
        }
    }
}

impl Future for Release {
    /// `true`: released. `false`: that token did not hold the lock.
    type Output = Result<bool, NoQuorum>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Release { locks, stage, watch, unsure, was_held, handing } = &mut *self;
        let released = loop {
            let tally = match stage {
                Stage::Looking(task) => {
                    // A task ends early only with its runtime.
                    break ready!(Pin::new(task).poll(cx))
                        .unwrap_or_else(|_| Err(NoQuorum::default()));
                }
                Stage::Releasing(tally) => tally,
            };
            let decision = ready!(tally.poll_decision(cx));
            let operation = &tally.operation;
            locks.queues.heard_of_listeners(&operation.key, operation.listeners());
            let released = match decision {
                // So few nodes have the grant that it has ended, or is just being made. A release that is still under
                // way to another node could end it there, so all are waited for.
                Decision::No if tally.rule == Rule::Renewal => {
                    tally.rule = Rule::All;
                    continue;
                }
                // A node may have carried the hand-over out, if late: then it has the grant no more.
                Decision::No if tally.rule == Rule::Release && handing.is_some() => {
                    tally.rule = Rule::All;
                    continue;
                }
                Decision::Yes if tally.rule == Rule::All => {
                    let handing = handing.as_deref();
                    let votes = match handing {
                        Some(handing) => put_together(handing, operation.votes()),
                        None => operation.votes(),
                    };
                    let count = |is: fn(&&Vote) -> bool| votes.iter().filter(is).count();
                    let yes = count(|vote| matches!(vote, Vote::Yes(_)));
                    let no = count(|vote| matches!(vote, Vote::No(_)));
                    let missing = count(|vote| matches!(vote, Vote::Missing(_)));
                    let quorum = tally.nodes.quorum();
                    match () {
                        () if yes >= quorum => Ok(true),
                        () if missing == 0 => Ok(false),
                        () if handing.is_some() && no > votes.len() - quorum => Ok(false),
                        () => Err(tally.nodes.no_quorum(&operation.key, &votes)),
                    }
                }
                Decision::Yes | Decision::No => Ok(decision == Decision::Yes),
                Decision::NoQuorum | Decision::Open => match give_back_instead(tally) {
                    Some(instead) => {
                        *handing = Some(operation.clone());
                        *tally = instead;
                        continue;
                    }
                    None => Err(tally.nodes.no_quorum(&operation.key, &operation.votes())),
                },
            };
            locks.refusals.freed(&operation.key);
            match unsure.take().filter(|_| released == Ok(false)) {
                None => break released,
                Some((key, token)) => {
                    if let Some(watch) = watch.take() {
                        watch.end();
                    }
                    *stage = Stage::look(locks, key, token);
                }
            }
        };
        if let (Some(watch), Ok(_)) = (watch, &released) {
            watch.end();
        }
        Poll::Ready(released.map_err(|error| NoQuorum { was_held: *was_held, ..error }))
    }
}

/// Undoes a lock that was granted on one node, once so many nodes deny the grant that no quorum can have it: when it
/// ends is not known here, as its holder may have renewed it through another proxy. A reader's part ends there by
/// itself, as nodes do not tell apart several readers with one token.
pub(super) async fn undo_if_ended(grants: Arc<Grants>, voter: usize, undo: Arc<Operation>) {
    if undo.key.is_of_reader() {
        return;
    }
    let nodes = grants.nodes();
    let mut look = LookUp::ask(&nodes, undo.key.clone());
    let found = poll_fn(|cx| look.poll_claim_of(&undo.token, cx)).await;
    let claim = undo.ended.map(|ended| ended.claim);
    if found.is_ok_and(|found| found != claim) {
        nodes.submit_to(voter, &undo);
    }
}
