//! Keeps the keys of session locks whose rule is bridged, for as long as the lock engine keeps the
//! locks: those taken under bridge, and those from before.
//!
//! A lock is lost once another client has its keys. If they cannot be prolonged, as nodes do not answer, it is lost
//! before they run out, so before a client past the proxy can take them. An adopted lock is lost without LOCKLOST,
//! which its library does not know ([`LossKind::Unknown`](crate::lock::LossKind::Unknown)).

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
    time::Duration,
};

use bb8_redis::redis::RedisError;
use tokio::time::sleep;

use super::{
    bridged_keys::Bridge,
    data_key::{IfGone, KeysKept, Lasts},
};
use crate::{adopt::place::KeyPlace, clock::Instant, key::Key, lock::KeptLock};

/// How often session locks are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// The share of a lock's TTL after which its keys get a new TTL: one third.
const KEEP_SHARE: u32 = 3;

/// A session lock whose keys are kept.
struct Kept {
    places: Vec<KeyPlace>,
    /// When the keys were last asked for with success; at first, when the lock was first seen.
    since: Instant,
    /// When they are to be asked for again.
    due: Instant,
    /// How often in a row another client had them.
    taken: u32,
}

/// How often in a row another client must have the keys for the lock to be lost: a client that the quorum will refuse
/// has them only for a moment.
const TRIES: u32 = 3;

/// Keeps keys until the bridge is gone.
pub(super) async fn run(bridge: Weak<Bridge>) {
    let mut kept = HashMap::new();
    loop {
        sleep(LOOK_EVERY).await;
        let Some(bridge) = bridge.upgrade() else { return };
        let is_needed = bridge.adoption.bridges() || !kept.is_empty();
        let mut watched = if is_needed { bridge.engine.watched() } else { Vec::new() };
        // By age, so that a simulation repeats exactly.
        watched.sort_unstable_by_key(|lock| lock.id);
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
            if let Some(entry) = before.remove(&name(lock))
                && leave(bridge, lock, &entry.places).await.is_err()
            {
                kept.insert(name(lock), entry);
            }
            continue;
        }
        let now = Instant::now();
        let fresh = Kept { places: places.clone(), since: now, due: now, taken: 0 };
        let mut entry = before.remove(&name(lock)).unwrap_or(fresh);
        if !bridge.engine.is_held(lock) {
            continue;
        }
        if now >= entry.due && !is_silent {
            let said = ask(bridge, lock, &places).await;
            match said {
                KeysAsked::Answered(KeysKept::Refused) => entry.taken += 1,
                KeysAsked::Answered(_) => {
                    let due = now + lock.ttl / KEEP_SHARE;
                    entry = Kept { since: now, due, taken: 0, ..entry };
                }
                KeysAsked::Released => continue,
                // The keys of the other locks are asked for in the next round; their time runs all the same.
                KeysAsked::Nothing => is_silent = true,
            }
            if !bridge.engine.is_held(lock) {
                // Released meanwhile: the keys may have been made anew after that.
                if said == KeysAsked::Answered(KeysKept::Made) {
                    bridge.keys.free_soon(places, lock.token.clone());
                }
                continue;
            }
        }
        if entry.taken >= TRIES || entry.since + lock.ttl <= Instant::now() {
            bridge.engine.lose(lock);
            continue;
        }
        kept.insert(name(lock), entry);
    }
}

/// Leaves the key of an adopted lock without a TTL to the data node, as its rule is only audited now: there it lasts
/// until its client deletes it.
///
/// Where the lock's name may mean two keys, it is not known which one the client took: both run out.
///
/// # Errors
/// If the data node did not answer.
async fn leave(bridge: &Bridge, lock: &KeptLock, places: &[KeyPlace]) -> Result<(), RedisError> {
    let [place] = places else { return Ok(()) };
    if !lock.claim.is_endless()
        || !bridge.adoption.is_audited(&place.key)
        || !bridge.engine.is_held(lock)
    {
        return Ok(());
    }
    bridge.keys.keep(places, &lock.token, Lasts::Ever, IfGone::Leave).await?;
    let (key, token) = (lock.key.clone(), lock.token.clone());
    drop(bridge.engine.release(key, token, Some(lock.claim)));
    Ok(())
}

/// What became of a question about the keys of one lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KeysAsked {
    /// The data node answered.
    Answered(KeysKept),
    /// The grant does not have the lock any more: it was released through another proxy, or given a TTL. The watchdog
    /// will hear of that.
    Released,
    /// The data node did not answer, or the lock nodes did not.
    Nothing,
}

/// Keeps the keys of one lock.
async fn ask(bridge: &Bridge, lock: &KeptLock, places: &[KeyPlace]) -> KeysAsked {
    // The lock may have been released through another proxy just now, or given a TTL. Keys made anew after that would
    // keep others out, and so would a longer TTL.
    match bridge.engine.look(lock.key.clone()).await {
        Ok(Some(holding)) if holding.claim == Some(lock.claim) => {}
        Ok(_) => return KeysAsked::Released,
        Err(_) => return KeysAsked::Nothing,
    }
    let lasts = bridge.lasts(lock.ttl);
    // If the lock was given a longer TTL meanwhile, shortening that of the key would let in clients past the proxy.
    let lasts = if lock.claim.is_endless() { Lasts::AtLeast(lasts) } else { Lasts::For(lasts) };
    match bridge.keep_or_make((&lock.key, &lock.token), places, lasts).await {
        Ok(KeysKept::Released) => KeysAsked::Released,
        Ok(kept) => KeysAsked::Answered(kept),
        Err(_) => KeysAsked::Nothing,
    }
}
