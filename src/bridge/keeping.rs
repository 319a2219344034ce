//! Keeps the keys of session locks whose rule is bridged, for as long as the lock engine keeps the
//! locks: those taken under bridge, and those from before.
//!
//! A lock whose keys are another's, or of which that is not known, ends with LOCKLOST, before
//! anybody past the proxy can count on the key.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
    time::Duration,
};

use tokio::time::sleep;

use super::{Bridge, data_key::IfGone};
use crate::{clock::Instant, key::Key, lock::KeptLock};

/// How often session locks are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// The share of a lock's TTL after which its keys get a new one.
const KEEP_SHARE: u32 = 3;

/// A session lock whose keys are kept.
struct Kept {
    /// When the keys were last asked for with success; first when the lock was seen first.
    since: Instant,
    /// When they are to be asked for again.
    due: Instant,
    /// How often in a row another had them.
    taken: u32,
}

/// How often another may have the keys in a row: somebody whom the quorum will refuse has them for a
/// moment.
const TRIES: u32 = 3;

/// Keeps keys until the bridge is gone.
pub(super) async fn run(bridge: Weak<Bridge>) {
    let mut kept = HashMap::new();
    loop {
        sleep(LOOK_EVERY).await;
        let Some(bridge) = bridge.upgrade() else { return };
        let watched = if bridge.adoption.bridges() { bridge.engine.watched() } else { Vec::new() };
        keep(&bridge, &watched, &mut kept).await;
    }
}

async fn keep(bridge: &Arc<Bridge>, watched: &[KeptLock], kept: &mut HashMap<(Key, u64), Kept>) {
    let name = |lock: &KeptLock| (lock.key.clone(), lock.id);
    let mut before = std::mem::take(kept);
    let mut is_silent = false;
    for lock in watched {
        let places = bridge.places(&lock.key);
        if places.is_empty() {
            continue;
        }
        let now = Instant::now();
        let fresh = Kept { since: now, due: now, taken: 0 };
        let mut entry = before.remove(&name(lock)).unwrap_or(fresh);
        if !bridge.engine.is_held(lock) {
            continue;
        }
        if now >= entry.due && !is_silent {
            let lasts = bridge.lasts(lock.ttl);
            match bridge.keys.keep(&places, &lock.token, lasts, IfGone::Make).await {
                Ok(true) => entry = Kept { since: now, due: now + lock.ttl / KEEP_SHARE, taken: 0 },
                Ok(false) => entry.taken += 1,
                // The others are asked for in the next round; their time runs all the same.
                Err(_) => is_silent = true,
            }
        }
        // Released meanwhile: the keys may have been made anew behind that.
        if !bridge.engine.is_held(lock) {
            bridge.keys.free_soon(places, lock.token.clone());
            continue;
        }
        if entry.taken >= TRIES || entry.since + lock.ttl <= Instant::now() {
            bridge.engine.lose(lock);
            continue;
        }
        kept.insert(name(lock), entry);
    }
}
