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

use bb8_redis::redis::RedisError;
use tokio::time::sleep;

use super::{
    Bridge,
    data_key::{IfGone, KeysKept, Lasts},
};
use crate::{adopt::place::KeyPlace, clock::Instant, key::Key, lock::KeptLock};

/// How often session locks are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// The share of a lock's TTL after which its keys get a new one.
const KEEP_SHARE: u32 = 3;

/// A session lock whose keys are kept.
struct Kept {
    places: Vec<KeyPlace>,
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
        let is_needed = bridge.adoption.bridges() || !kept.is_empty();
        let mut watched = if is_needed { bridge.engine.watched() } else { Vec::new() };
        // By age, so that a simulation tells the same story each time.
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
                // The others are asked for in the next round; their time runs all the same.
                KeysAsked::Nothing => is_silent = true,
            }
            if !bridge.engine.is_held(lock) {
                // Released meanwhile: the keys may have been made anew behind that.
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

/// Leaves the key of an adopted lock without a TTL to the data node, as its rule is only audited by
/// now: there it lasts until its client deletes it.
///
/// Where the lock's name may mean two keys, which of them the client took is not known: they run out.
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
    /// Another grant or nobody has the lock: it was released through another proxy, or given a TTL,
    /// of which the watchdog will hear.
    Released,
    /// The data node did not answer, or the lock nodes did not.
    Nothing,
}

/// Keeps the keys of one lock.
async fn ask(bridge: &Bridge, lock: &KeptLock, places: &[KeyPlace]) -> KeysAsked {
    // The lock may have been released through another proxy just now, or given a TTL: keys made anew
    // behind that would keep others out, and so would a longer TTL.
    match bridge.engine.look(lock.key.clone()).await {
        Ok(Some(holding)) if holding.claim == Some(lock.claim) => {}
        Ok(_) => return KeysAsked::Released,
        Err(_) => return KeysAsked::Nothing,
    }
    let lasts = bridge.lasts(lock.ttl);
    // A shorter TTL would let in who goes past the proxy, if the lock was given one meanwhile.
    let lasts = if lock.claim.is_endless() { Lasts::AtLeast(lasts) } else { Lasts::For(lasts) };
    let kept = bridge.keys.keep(places, &lock.token, lasts, IfGone::Make).await;
    kept.map_or(KeysAsked::Nothing, KeysAsked::Answered)
}
