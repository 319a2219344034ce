//! Who holds locks that were granted through other proxies. These (`admin.peers`) are asked at `/api/holders` while
//! an operator looks here.
//!
//! A proxy that is asked this way asks no others. What a peer answers is bounded in time and size, and is only shown.

use std::{
    collections::HashMap,
    fmt::Write as _,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{task::JoinSet, time::timeout};

use super::{
    listing::GrantedElsewhere,
    peers::{Peer, Peers, short},
};
use crate::{
    report::lists::{ClientPart, HolderList, HolderPart},
    sync::Mutex,
};

/// How long all peers together may take.
const ANSWER_LIMIT: Duration = Duration::from_secs(1);
/// How long an answer is used again.
const FRESH: Duration = Duration::from_secs(2);
/// Most locks that are asked about at a time.
pub(super) const MOST_ASKED: usize = 8;
/// The longest name of a lock that is asked about, in bytes.
const LONGEST_NAME: usize = 256;
/// The longest answer, in bytes.
const LONGEST_ANSWER: u64 = 64 * 1024;
/// Most answers that are kept.
const MOST_KEPT: usize = 64;

/// By the lock's name: when the peers had answered, and what the one that granted the lock told.
type ToldLately = HashMap<Vec<u8>, (Instant, Option<HolderPart>)>;

/// What peers told lately.
#[derive(Default)]
pub(super) struct HoldersElsewhere(Mutex<ToldLately>);

impl HoldersElsewhere {
    /// Returns who holds these locks, as far as a peer tells. Waits for the peers unless they told lately.
    pub(super) async fn of(&self, peers: &Peers, names: &[Vec<u8>]) -> Vec<Option<HolderPart>> {
        let is_asked = |name: &&Vec<u8>| name.len() <= LONGEST_NAME && self.known(name).is_none();
        let asked: Vec<Vec<u8>> = names.iter().filter(is_asked).take(MOST_ASKED).cloned().collect();
        if peers.count() > 0 && !asked.is_empty() {
            let told = ask(peers, &asked).await;
            let (now, mut known) = (Instant::now(), self.0.lock());
            known.retain(|_, (at, _)| at.elapsed() < FRESH);
            for (name, told) in asked.into_iter().zip(told) {
                if known.len() < MOST_KEPT {
                    known.insert(name, (now, told));
                }
            }
        }
        names.iter().map(|name| self.known(name).flatten()).collect()
    }

    /// Returns what was told of a lock lately.
    fn known(&self, name: &[u8]) -> Option<Option<HolderPart>> {
        let known = self.0.lock();
        known.get(name).filter(|(at, _)| at.elapsed() < FRESH).map(|(_, told)| told.clone())
    }

    /// Fills in what peers tell of locks that were granted elsewhere, for the first [`MOST_ASKED`] of them.
    pub(super) async fn fill<L: GrantedElsewhere>(&self, peers: &Peers, locks: &mut [L]) {
        let asked =
            locks.iter_mut().filter_map(|lock| Some((lock.name_elsewhere()?.to_vec(), lock)));
        let (names, locks): (Vec<_>, Vec<_>) = asked.take(MOST_ASKED).unzip();
        for (lock, told) in locks.into_iter().zip(self.of(peers, &names).await) {
            if let Some(told) = told {
                lock.told_by_peer(told);
            }
        }
    }
}

/// Asks all peers at once. For each lock the first peer counts that says it granted the lock.
async fn ask(peers: &Peers, names: &[Vec<u8>]) -> Vec<Option<HolderPart>> {
    let mut path = String::from("/api/holders?peers=no");
    for name in names {
        path += "&key=";
        for byte in name {
            // Writing to a String cannot fail.
            let _ = write!(path, "%{byte:02x}");
        }
    }
    let (path, all) = (Arc::<str>::from(path), peers.all());
    let mut asked = JoinSet::new();
    for place in 0..all.len() {
        let (all, path) = (all.clone(), path.clone());
        asked.spawn(async move { told(all.get(place)?, &path).await });
    }
    let mut holders = vec![None; names.len()];
    let collecting = async {
        while let Some(told) = asked.join_next().await {
            let told = told.ok().flatten().unwrap_or_default();
            for (holder, told) in holders.iter_mut().zip(told) {
                *holder = holder.take().or(told);
            }
        }
    };
    // Later answers are not waited for; their tasks end with the set.
    let _ = timeout(ANSWER_LIMIT, collecting).await;
    holders
}

async fn told(peer: &Peer, path: &str) -> Option<Vec<Option<HolderPart>>> {
    let answer = peer.get(path, LONGEST_ANSWER).await.ok()?;
    read(&answer.body)
}

/// Reads what a peer answers, and cuts its texts.
fn read(text: &[u8]) -> Option<Vec<Option<HolderPart>>> {
    let client = |client: ClientPart| ClientPart {
        address: short(client.address),
        name: short(client.name),
        ..client
    };
    let part = |told: HolderPart| HolderPart {
        kind: short(told.kind),
        holder: told.holder.map(client),
        proxy: short(told.proxy),
        ..told
    };
    let HolderList { holders } = serde_json::from_slice(text).ok()?;
    Some(holders.into_iter().map(|told| told.map(part)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_peer_tells_is_read_and_bounded() {
        let text = format!(
            r#"{{"holders": [null, {{"kind": "lease", "fence": 7, "held_ms": 1, "remaining_ms": 2,
                "holder": {{"address": "10.0.0.9:1", "name": "{}", "connected": true}},
                "proxy": "b, pid 7", "more": []}}]}}"#,
            "x".repeat(5000)
        );
        let holders = read(text.as_bytes()).unwrap();
        let part = holders[1].clone().unwrap();
        assert_eq!((holders[0].is_none(), part.fence, &*part.proxy), (true, Some(7), "b, pid 7"));
        assert!(part.holder.unwrap().name.len() < 300);
    }
}
