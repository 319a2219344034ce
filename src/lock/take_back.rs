//! A lock that an operator takes back from its holder.
//!
//! The nodes say which grant has the lock, and that grant is released by its claim: a client that is granted the lock
//! meanwhile has another claim. The holder goes on, through whichever proxy, and renews. So the nodes note that the
//! grant has ended, as where a lock is released through another proxy ([`release`](super::release)): they refuse to
//! have it put back, and once a quorum has released it every renewal, raise or LOCK by that claim finds it ended.
//! None of this needs the proxy that granted the lock.
//!
//! If too few nodes answer, some may have released the grant. The others keep it, and the operator repeats the
//! command: a grant that is on no quorum any more counts as not held.

use std::{future::poll_fn, sync::Arc};

use super::{
    Attach, Claim, LookUp, NoQuorum, Release,
    keep::lose,
    locks::Locks,
    quorum::{Decision, Rule},
};
use crate::{
    card::ClientCard,
    clock::Instant,
    key::{Key, Token},
};

/// The grant that has a lock.
#[derive(Debug, Clone)]
pub(crate) struct FoundGrant {
    /// The token that a quorum of nodes has. Empty if what lies there is no token.
    pub(crate) token: Token,
    /// The grant's claim, by which it is released.
    pub(crate) claim: Claim,
    /// The two numbers between which its fence lies. `None`: no quorum stores one.
    pub(crate) fences: Option<(u64, u64)>,
    /// The client that was granted it, if that was through this proxy.
    pub(crate) holder: Option<Arc<ClientCard>>,
}

impl FoundGrant {
    /// Returns the fence that operators are told; 0 if no quorum stores one.
    pub(crate) fn fence(&self) -> u64 {
        self.fences.map_or(0, |(_, most)| most)
    }

    /// Returns the holder's address and name; empty if they are not known here.
    pub(crate) fn client(&self) -> (String, Arc<str>) {
        self.holder.as_ref().map(|card| (card.address(), card.name())).unwrap_or_default()
    }
}

/// Asks the nodes which grant has `key`.
pub(super) async fn find(locks: Arc<Locks>, key: Key) -> Result<Option<FoundGrant>, NoQuorum> {
    let mut look = LookUp::ask(&locks.grants.nodes(), key.clone()).told(&locks);
    let Some(holding) = (&mut look).await? else { return Ok(None) };
    let token = holding.token;
    let Some(claim) = poll_fn(|cx| look.poll_claim_of(&token, cx)).await? else {
        return Ok(None);
    };
    let claim = claim.to_release();
    // What was granted here is better known here than on the nodes.
    let known = locks.grants.holders.claim(&key, &token);
    let (fences, holder) = match known.filter(|(known, _)| *known == claim) {
        Some((_, fence)) => {
            let shown = locks.grants.holders.show(&key, Instant::now());
            (Some((fence, fence)), shown.and_then(|shown| shown.card))
        }
        None => {
            let mut attach = Attach::ask(&locks, key, token.clone());
            (poll_fn(|cx| attach.poll_bounds(cx)).await?, None)
        }
    };
    Ok(Some(FoundGrant { token, claim, fences, holder }))
}

/// Takes a lock back from all its readers, for the operator `by`. Those that this proxy keeps are told at once, the
/// others when they are to be renewed next. Answers whether there were any.
pub(super) async fn end_readers(locks: Arc<Locks>, key: Key, by: String) -> Result<bool, NoQuorum> {
    let here = locks.grants.holders.readers(&key, Instant::now());
    for (reader, token, claim) in &here {
        // It goes on without being waited for: the nodes are asked behind it.
        drop(ask(&locks, reader.clone(), &part_of(token, *claim), &by));
    }
    let nodes = Arc::clone(&locks.grants.nodes());
    let mut ending = nodes.await_votes(nodes.end_readers(key), Rule::Renewal, nodes.max_ttl);
    match poll_fn(|cx| ending.poll_decision(cx)).await {
        Decision::Yes => Ok(true),
        Decision::No => Ok(!here.is_empty()),
        Decision::NoQuorum | Decision::Open => {
            let votes = ending.operation.votes();
            Err(nodes.no_quorum(&ending.operation.key, &votes))
        }
    }
}

/// Returns the reader with this number that was granted its part here, and the key that it has.
pub(super) fn reader(locks: &Locks, key: &Key, number: u64) -> Option<(Key, FoundGrant)> {
    let mut readers = locks.grants.holders.readers(key, Instant::now()).into_iter();
    let (reader, token, claim) = readers.find(|(_, _, claim)| claim.number() == number)?;
    let holder = locks.grants.holders.show(&reader, Instant::now()).and_then(|shown| shown.card);
    Some((reader, FoundGrant { holder, ..part_of(&token, claim) }))
}

/// Returns a reader's part of a lock.
fn part_of(token: &Token, claim: Claim) -> FoundGrant {
    FoundGrant { token: token.clone(), claim, fences: None, holder: None }
}

/// Releases the grant for the operator `by`, and tells its keeper if this proxy keeps it.
pub(super) fn ask(locks: &Arc<Locks>, key: Key, found: &FoundGrant, by: &str) -> Release {
    let FoundGrant { token, claim, .. } = found;
    let watch = locks.grants.holders.watched(&key, token).filter(|watch| watch.claim == *claim);
    let release = || Release::ask_taken_back(locks, key, token.clone(), *claim, by);
    match watch {
        Some(watch) => lose::take_back(locks, &watch, release),
        None => release(),
    }
}
