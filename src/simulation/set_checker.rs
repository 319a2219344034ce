//! Checks MLOCKs, beside what must hold of each lock by itself: a client that is told of a grant has all of its locks,
//! and one that is not told has none of them shortly afterwards.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::time::Instant;

use super::{
    checker::Checker,
    client::{Client, full},
    network::Network,
};

/// The time after which a node to which all ways are open has been told what to give back. A proxy may try a
/// connection again after 2 s, and each message of the handshake may take ten times as long as others.
const SHORTLY: Duration = Duration::from_secs(4);

pub(super) struct SetChecker {
    network: Arc<Network>,
    checker: Arc<Checker>,
    /// MLOCKs that were not granted, as long as some nodes were not looked at.
    ungranted: Mutex<Vec<Ungranted>>,
}

/// A MLOCK of which its client was not told that it is granted.
struct Ungranted {
    keys: Vec<&'static str>,
    /// The token, which no other LOCK or MLOCK names.
    token: String,
    since: Instant,
    /// The nodes that were not looked at yet.
    unseen: Vec<usize>,
}

impl SetChecker {
    pub(super) fn new(network: Arc<Network>, checker: Arc<Checker>) -> SetChecker {
        SetChecker { network, checker, ungranted: Mutex::default() }
    }

    /// Checks a grant that the client was told of just now: a quorum of nodes has had each of the locks by that grant.
    pub(super) fn granted(&self, client: &Client, token: &str, locks: &[(&'static str, u64)]) {
        self.checker.took_sets(1, 0);
        for (key, fence) in locks {
            let nodes = self.network.tokens_of(&full(key)).len();
            let known = client.known(key, token).filter(|(_, known)| known == fence);
            let had = known.map_or(0, |(claim, _)| self.network.had(&full(key), claim));
            let what = format!("{token} was told of {key}, which {had} of {nodes} nodes have had");
            self.checker.must(had > nodes / 2, &what);
        }
    }

    /// Notes that a client was refused these locks, or will never be told of them.
    pub(super) fn none(&self, token: &str, keys: &[&'static str]) {
        let (keys, token, since) = (keys.to_vec(), token.to_owned(), Instant::now());
        let unseen = (0..self.network.last_faults().len()).collect();
        self.ungranted.lock().unwrap().push(Ungranted { keys, token, since, unseen });
    }

    /// Looks at the nodes that were well for long enough since a MLOCK was not granted.
    pub(super) fn look(&self) {
        let (now, last_faults) = (Instant::now(), self.network.last_faults());
        let mut looks = 0;
        self.ungranted.lock().unwrap().retain_mut(|one| {
            let is_due = |node: &usize| {
                let since = last_faults[*node].map_or(one.since, |last| last.max(one.since));
                now >= since + SHORTLY
            };
            let (due, unseen): (Vec<usize>, _) = one.unseen.iter().partition(|node| is_due(node));
            if due.is_empty() {
                return true;
            }
            looks += usize::from(one.unseen.len() > unseen.len() && unseen.is_empty());
            for key in &one.keys {
                let tokens = self.network.tokens_of(&full(key));
                let has = |node: &&usize| tokens[**node].as_deref() == Some(&one.token);
                let having: Vec<&usize> = due.iter().filter(has).collect();
                let what = format!("nodes {having:?} keep {key} for {}, refused", one.token);
                self.checker.must(having.is_empty(), &what);
            }
            one.unseen = unseen;
            !one.unseen.is_empty()
        });
        self.checker.took_sets(0, looks);
    }

    /// Returns how many were not granted, and still have nodes that were not looked at.
    pub(super) fn left(&self) -> usize {
        self.ungranted.lock().unwrap().len()
    }
}
