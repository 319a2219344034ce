//! Puts leases back on a lock node that can be asked again, or that begins to wait on its seat.
//!
//! The proxy does not renew leases, so nothing else brings one to a node that was away when it was granted, or has
//! forgotten it. A quorum must confirm the lease first. The call that asks changes no TTL, and the lease is put back
//! for what is left of its own.
//!
//! A client may release a lease through another proxy in between, and the release may reach the node before the heal.
//! So the proxy asks for the lease once more a `node_timeout` later: if no quorum can have it any more, it is
//! released where it was put back.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use tokio::{sync::Semaphore, time::sleep};

use super::watchdog::{call_length, decide, lost};
use crate::{
    clock::Instant,
    lock::{
        holders::{Lease, SHARDS},
        locks::Locks,
        node::nodes::Nodes,
        operation::{AllVotes, Kind},
        quorum::{Decision, Rule},
        scripts::{self, MAX_RENEWALS},
    },
};

/// The most calls about leases under way at once, beside those that renew session locks.
const AT_ONCE: usize = 2;
/// The shortest pause between two walks over all leases.
const PAUSE: Duration = Duration::from_millis(100);

/// Puts leases back whenever a node has come back. The pause after a walk over all leases is as
/// long as the walk was.
pub(in crate::lock) async fn run(locks: Weak<Locks>) {
    let Some(schedule) = locks.upgrade().map(|locks| locks.grants.schedule.clone()) else { return };
    let calls = Arc::new(Semaphore::new(AT_ONCE));
    let walks = async {
        loop {
            schedule.lacks_leases.notified().await;
            let since = Instant::now();
            if walk(&locks, &calls).await.is_none() {
                return;
            }
            sleep(since.elapsed().max(PAUSE)).await;
        }
    };
    let _: Option<()> = schedule.gone.run_until_cancelled(walks).await;
}

/// Puts all leases back, one call after the other. Returns `None` once the engine is gone.
async fn walk(locks: &Weak<Locks>, calls: &Arc<Semaphore>) -> Option<()> {
    let mut found = Vec::new();
    for shard in 0..SHARDS {
        found.extend(locks.upgrade()?.grants.holders.leases(shard));
        let is_last = shard + 1 == SHARDS;
        while found.len() >= MAX_RENEWALS || is_last && !found.is_empty() {
            let nodes = Arc::clone(&locks.upgrade()?.grants.nodes());
            found.sort_by_cached_key(|lease: &Lease| nodes.together(&lease.key));
            let first = found.first().map(|lease| nodes.together(&lease.key));
            let alike = found.iter().take_while(|lease| Some(nodes.together(&lease.key)) == first);
            let length = call_length(alike.map(|lease| (&lease.key, &lease.token)));
            let others = found.split_off(length);
            let batch = std::mem::replace(&mut found, others);
            put_back(&locks.upgrade()?, batch, calls).await;
        }
    }
    Some(())
}

/// Puts these leases, at most [`MAX_RENEWALS`], back on the nodes that deny them.
async fn put_back(locks: &Arc<Locks>, leases: Vec<Lease>, calls: &Arc<Semaphore>) {
    let nodes = Arc::clone(&locks.grants.nodes());
    let (alone, leases): (Vec<Lease>, Vec<Lease>) =
        leases.into_iter().partition(|lease| nodes.wait_alone(&lease.key));
    for Lease { key, token, claim } in &alone {
        locks.grants.put_back((&nodes, std::iter::once(0)), (key, token, *claim));
    }
    if leases.is_empty() {
        return;
    }
    let votes = confirm(&nodes, &leases, calls).await;
    let mut healed = Vec::new();
    for (place, lease) in leases.into_iter().enumerate() {
        let lost: Vec<usize> = lost(&votes, place).collect();
        if !lost.is_empty() && decide(&votes, place) == Decision::Yes {
            let lacking = lost.iter().copied();
            let grant = (&lease.key, &lease.token, lease.claim);
            if locks.grants.put_back((&nodes, lacking), grant) {
                healed.push((lease, lost));
            }
        }
    }
    if !healed.is_empty() {
        tokio::spawn(look_again(Arc::downgrade(locks), nodes, healed, calls.clone()));
    }
}

/// Asks all nodes whether they have these leases.
async fn confirm(nodes: &Arc<Nodes>, leases: &[Lease], calls: &Semaphore) -> AllVotes {
    let _call = calls.acquire().await;
    let mut asked = Vec::with_capacity(leases.len());
    for Lease { key, token, claim } in leases {
        asked.push(scripts::Prolonged { key, token, ttl: None, claim: *claim });
    }
    let request = match leases[0].key.is_of_reader() {
        true => scripts::shared::prolong(nodes.dialect, &asked),
        false => scripts::prolong(nodes.dialect, &asked, None),
    };
    // The call stores nothing, so the nodes note no TTL for it.
    let operation = nodes.operation(
        Kind::RenewMany,
        nodes.place_of(&leases[0].key),
        "".into(),
        Duration::ZERO,
        request,
    );
    let mut tally = nodes.await_votes(nodes.submit(operation), Rule::All, nodes.max_ttl);
    std::future::poll_fn(|cx| tally.poll_decision(cx).map(drop)).await;
    tally.operation.votes()
}

/// Releases leases where they were put back, if no quorum can have them any more.
async fn look_again(
    locks: Weak<Locks>,
    nodes: Arc<Nodes>,
    healed: Vec<(Lease, Vec<usize>)>,
    calls: Arc<Semaphore>,
) {
    sleep(nodes.node_timeout).await;
    if locks.strong_count() == 0 {
        return;
    }
    let (leases, healed): (Vec<Lease>, Vec<Vec<usize>>) = healed.into_iter().unzip();
    let votes = confirm(&nodes, &leases, &calls).await;
    for (place, (lease, healed)) in leases.into_iter().zip(healed).enumerate() {
        if decide(&votes, place) == Decision::No {
            let release = Arc::new(nodes.releasing(lease.key, lease.token, lease.claim));
            for node in healed {
                nodes.submit_to(node, &release);
            }
        }
    }
}
