//! One release: the lock is given back, or handed over to the next waiter here.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use super::{
    Acquire, Alarm, Claim, NoQuorum,
    holders::Owner,
    keep::watch::Watch,
    line::queue::NextHolder,
    locks::Locks,
    node::nodes::Tally,
    quorum::{Decision, Rule},
};
use crate::{
    clock::Instant,
    key::{Key, Token},
};

/// An UNLOCK under way. Dropping it does not stop the release.
pub struct Release {
    locks: Arc<Locks>,
    tally: Tally,
    /// Set for a session lock.
    watch: Option<Arc<Watch>>,
}

impl Release {
    /// Releases `key` on every node where the grant with this claim holds it, or hands it over to
    /// the next waiter here. Without a claim, the grant that `token` has is meant.
    pub(super) fn ask(locks: &Arc<Locks>, key: Key, token: Token, claim: Option<Claim>) -> Release {
        let release = Release::begin(locks, key, token, claim);
        if let Some(watch) = &release.watch {
            locks.grants.schedule.release(watch);
        }
        release
    }

    /// Releases a lost lock, whose keeper is told already. Returns another keeper that must be
    /// told, if there is one.
    pub(super) fn ask_lost(locks: &Arc<Locks>, lost: &Arc<Watch>) -> Option<Arc<Watch>> {
        let (key, token) = (lost.key.clone(), lost.token.clone());
        let release = Release::begin(locks, key, token, Some(lost.claim));
        let other = release.watch.filter(|watch| !Arc::ptr_eq(watch, lost));
        other.filter(|other| locks.grants.schedule.pause(other))
    }

    /// Releases the lock or hands it over. The caller tells its keeper.
    fn begin(locks: &Arc<Locks>, key: Key, token: Token, claim: Option<Claim>) -> Release {
        let since = Instant::now();
        let (grants, nodes) = (&locks.grants, &locks.grants.nodes);
        let (known, watch, held) = grants.holders.release(&key, &token, claim, since);
        locks.refusals.released(&key);
        if let Some(held) = held {
            grants.metrics.hold_seconds.record(held.as_secs_f64());
        }
        let claim = match known {
            Owner::This(known) => Some(known),
            Owner::Another | Owner::Nothing => claim,
        };
        let next = match known {
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
                let giver = (token, claim);
                let (acquire, operation) = Acquire::hand_over(grants, giver, key, next, ttl);
                let key = &operation.key;
                if let Some(unwanted) = locks.queues.hand(key, ticket, acquire) {
                    // The waiter has left meanwhile. Dropping its request undoes it. A request that
                    // another waiter has sent since came too early.
                    drop(unwanted);
                    locks.queues.released(key, &NextHolder::Nobody);
                }
                operation
            }
        };
        let tally = nodes.await_votes(operation, Rule::Release, nodes.max_ttl);
        Release { locks: locks.clone(), tally, watch }
    }

    /// The operation's timer, to be used again.
    pub(crate) fn alarm(&mut self) -> &mut Alarm {
        &mut self.tally.alarm
    }

    /// Gives back a lock that could not be handed over: a node that is out of memory stores no new
    /// lock, but still gives one back.
    fn give_back_instead(&self) -> Option<Tally> {
        #[cfg(feature = "planted")]
        if std::env::var("LOCKGATE_PLANT").is_ok_and(|fault| fault == "repeat") {
            return None;
        }
        let handing = &self.tally.operation;
        let (token, claim) = handing.from.clone()?;
        let nodes = &self.tally.nodes;
        let operation = nodes.submit(nodes.releasing(handing.key.clone(), token, claim));
        Some(nodes.await_votes(operation, Rule::Release, nodes.max_ttl))
    }
}

impl Future for Release {
    /// `true`: released. `false`: that token did not hold the lock.
    type Output = Result<bool, NoQuorum>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            let decision = ready!(self.tally.poll_decision(cx));
            let operation = &self.tally.operation;
            self.locks.queues.heard_of_listeners(&operation.key, operation.listeners());
            let released = match decision {
                Decision::Yes | Decision::No => Ok(decision == Decision::Yes),
                Decision::NoQuorum | Decision::Open => match self.give_back_instead() {
                    Some(tally) => {
                        self.tally = tally;
                        continue;
                    }
                    None => Err(self.tally.nodes.no_quorum(&operation.votes())),
                },
            };
            self.locks.refusals.released(&operation.key);
            if let (Some(watch), Ok(_)) = (&self.watch, &released) {
                watch.end();
            }
            return Poll::Ready(released);
        }
    }
}
