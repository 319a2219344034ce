//! A grant's fence, raised on the lock nodes because the data node has seen a larger one.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use super::{
    Claim, NoQuorum,
    grants::Grants,
    node::nodes::Tally,
    operation::{Kind, Vote},
    quorum::{Decision, Rule},
    scripts,
};
use crate::key::{Key, Token};

/// A raise under way.
pub(crate) struct Raise {
    grants: Arc<Grants>,
    claim: Claim,
    tally: Tally,
}

impl Raise {
    /// Asks all nodes to store a fence of at least `fence` for a grant that holds the lock.
    pub(super) fn ask(
        grants: &Arc<Grants>,
        key: Key,
        token: Token,
        claim: Claim,
        fence: u64,
    ) -> Raise {
        let nodes = grants.nodes();
        let request = scripts::raise(nodes.dialect, &key, &token, fence, nodes.fence_ttl, claim);
        let tally = nodes.ask(Kind::Raise, Rule::Grant, key, token, nodes.max_ttl, request);
        Raise { grants: grants.clone(), claim, tally }
    }
}

impl Future for Raise {
    /// The fence that the grant has from now on. `None`: no quorum has the grant.
    type Output = Result<Option<u64>, NoQuorum>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let decision = ready!(self.tally.poll_decision(cx));
        let operation = &self.tally.operation;
        let votes = operation.votes();
        Poll::Ready(match decision {
            Decision::Yes => {
                let stored = votes.iter().filter_map(|vote| match vote {
                    Vote::Yes(fence) => u64::try_from(*fence).ok(),
                    _ => None,
                });
                let fence = stored.max().unwrap_or_default();
                self.grants.holders.raised(&operation.key, self.claim, fence);
                Ok(Some(fence))
            }
            Decision::No => Ok(None),
            Decision::NoQuorum | Decision::Open => {
                Err(self.tally.nodes.no_quorum(&self.tally.operation.key, &votes))
            }
        })
    }
}
