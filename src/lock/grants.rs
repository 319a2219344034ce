//! Grants made through this proxy: the nodes that keep them, their holders, and when each is to be
//! renewed.

use std::{ops::Range, sync::Arc, time::Duration};

use arc_swap::{ArcSwap, Guard};
use tokio::sync::Semaphore;

use super::{
    Claim,
    audit_trail::{AuditTrail, GrantEnd},
    holders::{EndedGrants, Holder, Holders},
    keep::schedule::Schedule,
    lock_metrics::LockMetrics,
    node::nodes::Nodes,
    operation::{Kind, Operation, Vote},
    quorum::Rule,
    scripts::{self, Wanted},
};
use crate::{
    clock::Instant,
    config::LocksConfig,
    key::{Key, Token},
};

/// The shortest TTL that a node can be asked for.
const LEAST: Duration = Duration::from_millis(1);

#[cfg(test)]
thread_local! {
    /// A fault that tests plant: no lock is put back.
    pub(crate) static NO_HEALS: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// All grants of one proxy.
pub(super) struct Grants {
    /// The lock nodes. Another set takes their place when the lock nodes are changed.
    nodes: ArcSwap<Nodes>,
    /// Holders of locks.
    pub(super) holders: Holders,
    /// The schedule by which session locks are renewed.
    pub(super) schedule: Arc<Schedule>,
    pub(super) metrics: Arc<LockMetrics>,
    /// Lines in the log.
    pub(super) audit_trail: AuditTrail,
    /// One permit: connections that have ended with many session locks release them one connection at a time.
    pub(super) giving_back: Arc<Semaphore>,
}

impl Grants {
    pub(super) fn new(config: &LocksConfig, nodes: Nodes, metrics: Arc<LockMetrics>) -> Grants {
        Grants {
            nodes: ArcSwap::from_pointee(nodes),
            holders: Holders::default(),
            schedule: Arc::new(Schedule::new(config)),
            metrics,
            audit_trail: AuditTrail::new(config.prefix.len()),
            giving_back: Arc::new(Semaphore::new(1)),
        }
    }

    /// Returns the lock nodes. An operation uses one set of them from its beginning to its end.
    #[inline]
    pub(super) fn nodes(&self) -> Guard<Arc<Nodes>> {
        self.nodes.load()
    }

    /// Sets the lock nodes that are asked from now on. Returns the previous ones.
    pub(super) fn move_to(&self, nodes: Arc<Nodes>) -> Arc<Nodes> {
        self.nodes.swap(nodes)
    }

    /// Notes a grant, and tells the lock's previous keeper, if there was one.
    pub(super) fn granted(&self, key: &Key, holder: Holder) {
        let (claim, fence) = (holder.claim(), holder.fence());
        let told = self.audit_trail.is_whole().then(|| holder.told(Instant::now()));
        let (before, over) = self.holders.granted(key, holder);
        let is_same =
            before.as_ref().is_some_and(|one| (one.claim(), one.fence()) == (claim, fence));
        if !over.is_empty() {
            self.ended(over, GrantEnd::RanOut);
        }
        if let Some(before) = &before {
            if let Some(watch) = before.watch() {
                self.schedule.replace(watch);
            }
            // A repeated LOCK keeps the claim, and has a fence of its own; a reader has none.
            if !is_same {
                self.replaced(key, before);
            }
        }
        if let Some(told) = told.filter(|_| !is_same) {
            self.audit_trail.granted(key, &told);
        }
    }

    /// Logs the end of a grant that another one has replaced.
    #[cold]
    fn replaced(&self, key: &Key, before: &Holder) {
        let now = Instant::now();
        let how = match before.has_run_out(now) {
            true => GrantEnd::RanOut,
            false => GrantEnd::Replaced,
        };
        self.audit_trail.ended(key, &before.told(now), how);
    }

    /// Forgets grants whose TTL has run out, in some parts of the map of holders, and logs their ends.
    pub(super) fn forget_run_out(&self, shards: Range<usize>) {
        let now = Instant::now();
        for shard in shards {
            self.ended(self.holders.run_out(shard, now), GrantEnd::RanOut);
        }
    }

    /// Logs the ends of grants that are forgotten.
    #[cold]
    pub(super) fn ended(&self, grants: EndedGrants, how: GrantEnd) {
        grants.iter().for_each(|(key, grant)| self.audit_trail.ended(key, grant, how));
    }

    /// Puts a lock back on the nodes that do not have it, once all have voted or are missing: a quorum of the others
    /// has confirmed it.
    pub(super) fn heal_once_told(
        self: &Arc<Self>,
        nodes: &Arc<Nodes>,
        confirmed: &Arc<Operation>,
        claim: Claim,
        ttl: Duration,
    ) {
        if !confirmed.votes().contains(&Vote::Pending) {
            return self.heal_lost(nodes, confirmed, claim, ttl);
        }
        let grants = self.clone();
        let mut tally = nodes.await_votes(confirmed.clone(), Rule::All, ttl);
        tokio::spawn(async move {
            std::future::poll_fn(|cx| tally.poll_decision(cx).map(drop)).await;
            grants.heal_lost(&tally.nodes, &tally.operation, claim, ttl);
        });
    }

    /// Puts a lock back on the nodes that answered that they do not have it.
    fn heal_lost(&self, nodes: &Arc<Nodes>, renewal: &Operation, claim: Claim, ttl: Duration) {
        let votes = renewal.votes();
        let lost = |node: &usize| matches!(votes[*node], Vote::No(_));
        if (0..votes.len()).any(|node| lost(&node)) {
            let lacking = (0..votes.len()).filter(lost);
            self.heal((nodes, lacking), (&renewal.key, &renewal.token, claim), ttl);
        }
    }

    /// Puts a lock back on these nodes, which have lost it, if the grant still has it: a quorum of the others has
    /// just confirmed it.
    pub(super) fn heal(
        &self,
        lacking: (&Arc<Nodes>, impl Iterator<Item = usize>),
        grant: (&Key, &Token, Claim),
        ttl: Duration,
    ) {
        self.heal_for(lacking, grant, Some(ttl));
    }

    /// Puts a lock back on these nodes, which do not have it, for what is left of its TTL: a quorum of the others has
    /// just granted or confirmed it, or the only node waits and this proxy knows the grant to be valid. Returns
    /// whether the grant still has the lock, as far as this proxy knows.
    pub(super) fn put_back(
        &self,
        lacking: (&Arc<Nodes>, impl Iterator<Item = usize>),
        grant: (&Key, &Token, Claim),
    ) -> bool {
        self.heal_for(lacking, grant, None).is_some()
    }

    /// Puts a lock back for `ttl`, or for what is left of its TTL.
    fn heal_for(
        &self,
        (nodes, lacking): (&Arc<Nodes>, impl Iterator<Item = usize>),
        (key, token, claim): (&Key, &Token, Claim),
        ttl: Option<Duration>,
    ) -> Option<()> {
        #[cfg(test)]
        if NO_HEALS.get() {
            return None;
        }
        #[cfg(feature = "planted")]
        if std::env::var("LOCKGATE_PLANT").is_ok_and(|fault| fault == "heal") {
            return None;
        }
        // Sent under the mutex of the holders, so that no release comes in between: the heal would arrive behind it,
        // and the lock would stay without a holder.
        self.holders.while_held(key, token, claim, |fence, left| {
            let ttl = ttl.unwrap_or(left);
            if ttl < LEAST {
                return;
            }
            let wanted = Wanted { fence, ..nodes.wanted(key, token, ttl, claim) };
            let request = match key.is_of_reader() {
                true => scripts::shared::heal(nodes.dialect, &wanted),
                false => scripts::heal(nodes.dialect, &wanted),
            };
            let (key, token) = (key.clone(), token.clone());
            let operation = Arc::new(nodes.operation(Kind::Heal, key, token, ttl, request));
            for node in lacking {
                self.metrics.heals.increment(1);
                nodes.submit_to(node, &operation);
            }
        })
    }
}

impl Drop for Grants {
    fn drop(&mut self) {
        self.schedule.gone.cancel();
    }
}
