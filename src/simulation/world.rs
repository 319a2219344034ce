//! What every simulated deployment has: lock nodes by their names, the ways to them, and an outcome.
//!
//! A host is called `simulated-PROXY-NODE`, and the data node `simulated-data-END`.

use std::{future::Future, path::PathBuf, sync::Arc, time::Duration};

use tokio::{task::JoinError, time::timeout};

use super::{
    checker::{Checker, Happened},
    history_page::{PageEvent, write_page},
    network::Network,
    recorder,
};
use crate::{
    config::{Endpoint, LockNode, RedisUrl},
    net::memory_stream::set_network,
};

/// The outcome of one deployment.
pub(super) struct RunOutcome {
    pub(super) faults: Vec<String>,
    pub(super) history: String,
    pub(super) digest: u64,
    pub(super) counts: Happened,
    /// What the page of a seed that fails shows.
    pub(super) events: Vec<PageEvent>,
}

impl RunOutcome {
    pub(super) fn of(checker: &Checker) -> RunOutcome {
        RunOutcome {
            faults: checker.faults(),
            history: checker.history(),
            digest: checker.digest(),
            counts: checker.counts(),
            events: recorder::take(),
        }
    }

    /// Writes the page of a seed that fails in the test of this thread, and returns its path.
    pub(super) fn write_page(self, seed: u64) -> PathBuf {
        let test = std::thread::current().name().unwrap_or("simulation").replace("::", "-");
        let title = format!("{test}, seed {seed}");
        write_page(&format!("{test}-{seed}"), &title, self.events, &self.faults)
    }
}

/// Returns the URL of a simulated server.
pub(super) fn url(host: String) -> RedisUrl {
    RedisUrl { endpoint: Endpoint::Tcp { host, port: 1 }, ..RedisUrl::local(1) }
}

/// Returns these lock nodes, as this proxy names them.
pub(super) fn lock_nodes(proxy: usize, which: impl IntoIterator<Item = usize>) -> Vec<LockNode> {
    which.into_iter().map(|node| url(format!("simulated-{proxy}-{node}")).into()).collect()
}

/// Makes this thread's connections lead to these lock nodes, and to this data node if there is one.
pub(super) fn dial(network: &Arc<Network>, data: Option<&Arc<Network>>) {
    let (network, data) = (network.clone(), data.cloned());
    set_network(Some(Box::new(move |host| {
        let ends: Vec<&str> = host.split('-').skip(1).collect();
        let number = |at: usize| ends[at].parse::<usize>().unwrap();
        match ends[0] {
            "data" => data.as_ref().unwrap().connect(number(1), 0),
            "sentinel" => super::failover::connect(&network, number(1), number(2)),
            _ => network.connect(number(0), number(1)),
        }
    })));
}

/// Waits for these tasks to end, for `within` each.
pub(super) async fn must_end(
    tasks: impl IntoIterator<Item = impl Future<Output = Result<(), JoinError>>>,
    within: Duration,
    (what, checker): (&str, &Checker),
) {
    for task in tasks {
        let ended = timeout(within, task).await;
        checker.must(matches!(ended, Ok(Ok(()))), what);
    }
}
