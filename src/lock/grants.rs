//! What was granted through this proxy: the nodes that keep it, who has it, and when it is
//! to be renewed.

use std::{sync::Arc, time::Duration};

use super::{
    Claim,
    holders::{Holder, Holders},
    keep::schedule::Schedule,
    metrics::LockMetrics,
    node::nodes::Nodes,
    operation::{Kind, Operation, Vote},
    scripts::{self, Wanted},
};
use crate::{
    config::LocksConfig,
    key::{Key, Token},
};

#[cfg(test)]
thread_local! {
    /// A fault that tests plant: nothing is put back.
    pub(crate) static NO_HEALS: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// All grants of one proxy.
pub(super) struct Grants {
    pub(super) nodes: Arc<Nodes>,
    /// Who has which lock.
    pub(super) holders: Holders,
    /// When session locks are to be renewed.
    pub(super) schedule: Arc<Schedule>,
    pub(super) metrics: Arc<LockMetrics>,
}

impl Grants {
    pub(super) fn new(config: &LocksConfig, nodes: Nodes, metrics: Arc<LockMetrics>) -> Grants {
        Grants {
            nodes: Arc::new(nodes),
            holders: Holders::default(),
            schedule: Arc::new(Schedule::new(config)),
            metrics,
        }
    }

    /// Notes a grant. Who kept the lock before is told.
    pub(super) fn granted(&self, key: &Key, holder: Holder) {
        if let Some(before) = self.holders.granted(key, holder) {
            self.schedule.replace(&before);
        }
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

    /// Puts a lock back on these nodes, which have lost it, if the grant still has it: a
    /// quorum of others has just confirmed it.
    pub(super) fn heal(
        &self,
        key: &Key,
        token: &Token,
        claim: Claim,
        ttl: Duration,
        nodes: impl Iterator<Item = usize>,
    ) {
        #[cfg(test)]
        if NO_HEALS.get() {
            return;
        }
        #[cfg(feature = "planted")]
        if std::env::var("LOCKGATE_PLANT").is_ok_and(|fault| fault == "heal") {
            return;
        }
        // Under the holders' lock, so that no release comes between: it would be
        // overtaken, and the lock would stay for nobody.
        self.holders.while_held(key, token, claim, |fence| {
            let wanted = Wanted { fence, ..self.nodes.wanted(key, token, ttl, claim) };
            let request = scripts::heal(&wanted);
            let (key, token) = (key.clone(), token.clone());
            let operation = Arc::new(self.nodes.operation(Kind::Heal, key, token, ttl, request));
            for node in nodes {
                self.metrics.heals.increment(1);
                self.nodes.submit_to(node, &operation);
            }
        });
    }
}

impl Drop for Grants {
    fn drop(&mut self) {
        self.schedule.gone.cancel();
    }
}
