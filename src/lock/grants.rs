//! Grants made through this proxy: the nodes that keep them, their holders, and when each is to be
//! renewed.

use std::{ops::Range, sync::Arc, time::Duration};

use super::{
    Claim,
    holders::{Holder, Holders},
    keep::schedule::Schedule,
    metrics::LockMetrics,
    node::nodes::Nodes,
    operation::{Kind, Operation, Vote},
    quorum::Rule,
    scripts::{self, Wanted},
    trail::{GrantEnd, Trail},
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
    pub(super) nodes: Arc<Nodes>,
    /// Holders of locks.
    pub(super) holders: Holders,
    /// The schedule by which session locks are renewed.
    pub(super) schedule: Arc<Schedule>,
    pub(super) metrics: Arc<LockMetrics>,
    /// Lines in the log.
    pub(super) trail: Trail,
}

impl Grants {
    pub(super) fn new(config: &LocksConfig, nodes: Nodes, metrics: Arc<LockMetrics>) -> Grants {
        Grants {
            nodes: Arc::new(nodes),
            holders: Holders::default(),
            schedule: Arc::new(Schedule::new(config)),
            metrics,
            trail: Trail::new(config.prefix.len()),
        }
    }

    /// Notes a grant, and tells the lock's keeper before, if there was one.
    pub(super) fn granted(&self, key: &Key, holder: Holder) {
        let claim = holder.claim();
        let told = self.trail.is_whole().then(|| holder.told(Instant::now()));
        let before = self.holders.granted(key, holder);
        if let Some(before) = &before {
            if let Some(watch) = before.watch() {
                self.schedule.replace(watch);
            }
            if before.claim() != claim {
                self.replaced(key, before);
            }
        }
        if let Some(told) = told {
            self.trail.granted(key, &told);
        }
    }

    /// Tells of the end of a grant that another one has followed.
    #[cold]
    fn replaced(&self, key: &Key, before: &Holder) {
        let now = Instant::now();
        let how = match before.has_run_out(now) {
            true => GrantEnd::RanOut,
            false => GrantEnd::Replaced,
        };
        self.trail.ended(key, &before.told(now), how);
    }

    /// Forgets grants in some parts of the map of holders whose TTL has run out, and tells of them.
    pub(super) fn forget_run_out(&self, shards: Range<usize>) {
        let now = Instant::now();
        for shard in shards {
            for (key, ended) in self.holders.run_out(shard, now) {
                self.trail.ended(&key, &ended, GrantEnd::RanOut);
            }
        }
    }

    /// Puts a lock back on the nodes that have not confirmed it, once all have answered: a quorum of
    /// others had it.
    pub(super) fn heal_once_told(
        self: &Arc<Self>,
        confirmed: &Arc<Operation>,
        claim: Claim,
        ttl: Duration,
    ) {
        let (grants, operation) = (self.clone(), confirmed.clone());
        if !operation.votes().contains(&Vote::Pending) {
            return grants.heal_lost(&operation, claim, ttl);
        }
        tokio::spawn(async move {
            let mut tally = grants.nodes.await_votes(operation, Rule::All, ttl);
            std::future::poll_fn(|cx| tally.poll_decision(cx).map(drop)).await;
            grants.heal_lost(&tally.operation, claim, ttl);
        });
    }

    /// Puts a lock back on the nodes that have not renewed it.
    pub(super) fn heal_lost(&self, renewal: &Operation, claim: Claim, ttl: Duration) {
        let votes = renewal.votes();
        let lost = |node: &usize| matches!(votes[*node], Vote::No(_));
        if (0..votes.len()).any(|node| lost(&node)) {
            let nodes = (0..votes.len()).filter(lost);
            self.heal(&renewal.key, &renewal.token, claim, ttl, nodes);
        }
    }

    /// Puts a lock back on `nodes`, which have lost it, if the grant still has it: a quorum of
    /// other nodes has just confirmed it.
    pub(super) fn heal(
        &self,
        key: &Key,
        token: &Token,
        claim: Claim,
        ttl: Duration,
        nodes: impl Iterator<Item = usize>,
    ) {
        self.heal_for(key, token, claim, Some(ttl), nodes);
    }

    /// Puts a lock back on `nodes`, which do not have it, for what is left of its TTL: a quorum of
    /// other nodes has just granted or confirmed it. Returns whether the grant still has the lock,
    /// as far as this proxy knows.
    pub(super) fn put_back(
        &self,
        key: &Key,
        token: &Token,
        claim: Claim,
        nodes: impl Iterator<Item = usize>,
    ) -> bool {
        self.heal_for(key, token, claim, None, nodes).is_some()
    }

    /// Puts a lock back for `ttl`, or for what is left of its TTL.
    fn heal_for(
        &self,
        key: &Key,
        token: &Token,
        claim: Claim,
        ttl: Option<Duration>,
        nodes: impl Iterator<Item = usize>,
    ) -> Option<()> {
        #[cfg(test)]
        if NO_HEALS.get() {
            return None;
        }
        #[cfg(feature = "planted")]
        if std::env::var("LOCKGATE_PLANT").is_ok_and(|fault| fault == "heal") {
            return None;
        }
        // Sent under the mutex of the holders, so that no release comes in between: the heal would
        // overtake it, and the lock would stay without a holder.
        self.holders.while_held(key, token, claim, |fence, left| {
            let ttl = ttl.unwrap_or(left);
            if ttl < LEAST {
                return;
            }
            let wanted = Wanted { fence, ..self.nodes.wanted(key, token, ttl, claim) };
            let request = scripts::heal(self.nodes.dialect, &wanted);
            let (key, token) = (key.clone(), token.clone());
            let operation = Arc::new(self.nodes.operation(Kind::Heal, key, token, ttl, request));
            for node in nodes {
                self.metrics.heals.increment(1);
                self.nodes.submit_to(node, &operation);
            }
        })
    }
}

impl Drop for Grants {
    fn drop(&mut self) {
        self.schedule.gone.cancel();
    }
}
