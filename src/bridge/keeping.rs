//! Keeps the keys of session locks whose rule is bridged, for as long as the lock engine keeps the
//! locks: those taken under bridge, and those from before.
//!
//! A lock is lost once another client has its keys. If they cannot be prolonged, as nodes do not answer, it is lost
//! before they run out, so before a client past the proxy can take them. No question delays that: questions are asked
//! beside one another, and none of them is waited for. An adopted lock is lost without LOCKLOST, which its library does
//! not know ([`LossKind::Unknown`](crate::lock::LossKind::Unknown)).

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Weak},
    time::Duration,
};

use tokio::{task::JoinSet, time::sleep_until};

use super::{
    bridged_keys::Bridge,
    data_key::{IfGone, KeysKept, LIMIT, Lasts, OUTLASTS},
};
use crate::{adopt::place::KeyPlace, clock::Instant, key::Key, lock::KeptLock};

/// How often session locks are looked at, and how long after a question without an answer the next one is asked.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// The share of a lock's TTL after which its keys get a new TTL: one third.
const KEEP_SHARE: u32 = 3;
/// The most locks about whose keys the data node is asked at once.
const MOST_ASKED: usize = 64;
/// How often in a row another client must have the keys for the lock to be lost: a client that the quorum will refuse
/// has them only for a moment.
const TRIES: u32 = 3;

/// How much longer than its lock a key lasts at least, whatever the answer to the first question about it took.
const SLACK: Duration = OUTLASTS.saturating_sub(LIMIT);

/// A lock's key, and the number of its keeping.
type KeepingId = (Key, u64);

/// A session lock whose keys are kept.
struct Kept {
    /// The lock as it was when it was last looked at.
    lock: KeptLock,
    /// Where its keys are, or were while its rule was bridged.
    places: Vec<KeyPlace>,
    /// Whether its rule is not bridged any more.
    is_left: bool,
    /// The time until which nobody else can take the keys, as far as is known.
    until: Instant,
    /// When they are to be asked for again.
    due: Instant,
    /// Whether a question about them is not answered yet.
    is_asked: bool,
    /// How often in a row another client had them.
    taken: u32,
}

impl Kept {
    /// Begins to keep a lock's keys.
    fn new(lock: KeptLock, places: Vec<KeyPlace>, now: Instant) -> Kept {
        // The keys of a lock that was granted under bridge outlast its first validity. One from before has no keys
        // yet, and clients past the proxy do not lock yet.
        let until = match lock.granted_until > now {
            true => lock.granted_until.min(now + lock.ttl).max(now + LOOK_EVERY),
            false => now + lock.ttl + SLACK,
        };
        Kept { lock, places, is_left: false, until, due: now, is_asked: false, taken: 0 }
    }

    /// Takes in what the lock is now.
    fn note(&mut self, lock: KeptLock, now: Instant) {
        if lock.ttl != self.lock.ttl {
            // The RENEW that changed the TTL changes that of the keys too, if the data node answers.
            self.until = self.until.min(now + lock.ttl + SLACK);
            self.due = now;
        }
        self.lock = lock;
    }
}

/// What became of a question about the keys of one lock.
struct KeysAsked {
    lock: KeptLock,
    places: Vec<KeyPlace>,
    since: Instant,
    answer: KeysAnswer,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KeysAnswer {
    /// The data node answered.
    Said(KeysKept),
    /// The grant does not have the lock any more: it was released through another proxy, or given a TTL. The watchdog
    /// will hear of that.
    Released,
    /// They are left to the data node.
    Left,
    /// The data node did not answer, or the lock nodes did not.
    Nothing,
}

/// Keeps keys until the bridge is gone.
pub(super) async fn run(bridge: Weak<Bridge>) {
    let mut keeping = Keeping::default();
    let mut look_at = Instant::now() + LOOK_EVERY;
    loop {
        let wake = keeping.first_end.map_or(look_at, |end| end.min(look_at));
        let asked = tokio::select! {
            biased;
            () = sleep_until(wake.timer()) => None,
            Some(Ok(asked)) = keeping.asked.join_next() => Some(asked),
        };
        let Some(bridge) = bridge.upgrade() else { return };
        if let Some(asked) = asked {
            keeping.answered(&bridge, asked);
        }
        let now = Instant::now();
        if now >= look_at {
            keeping.look(&bridge, now);
            look_at = now + LOOK_EVERY;
        }
        if keeping.first_end.is_some_and(|end| end <= now) {
            keeping.lose_ended(&bridge, now);
        }
        keeping.ask(&bridge);
    }
}

/// The session locks whose keys are kept.
#[derive(Default)]
struct Keeping {
    kept: HashMap<KeepingId, Kept>,
    /// A time before which the keys of none of them run out.
    first_end: Option<Instant>,
    /// The locks about whose keys the data node is to be asked.
    due: VecDeque<KeepingId>,
    asked: JoinSet<KeysAsked>,
}

impl Keeping {
    /// Looks at all session locks of this proxy.
    fn look(&mut self, bridge: &Bridge, now: Instant) {
        let is_needed = bridge.adoption.bridges() || !self.kept.is_empty();
        let mut watched = if is_needed { bridge.engine.watched() } else { Vec::new() };
        // By age, so that a simulation repeats exactly.
        watched.sort_unstable_by_key(|lock| lock.id);
        let (mut before, mut due) = (std::mem::take(&mut self.kept), Vec::new());
        for lock in watched {
            let (places, id) = (bridge.places(&lock.key), (lock.key.clone(), lock.id));
            let kept = match (before.remove(&id), places.is_empty()) {
                (None, true) => continue,
                (Some(kept), true) => Kept { lock, is_left: true, due: now, ..kept },
                (Some(mut kept), false) if !kept.is_left => {
                    kept.note(lock, now);
                    kept
                }
                (_, false) => Kept::new(lock, places, now),
            };
            if kept.due <= now && !kept.is_asked {
                due.push((kept.due, id.clone()));
            }
            self.kept.insert(id, kept);
        }
        // Where more are due than the data node answers in time, each has its turn.
        due.sort_by_key(|(due, _)| *due);
        self.due = due.into_iter().map(|(_, id)| id).collect();
        self.note_first_end();
    }

    fn note_first_end(&mut self) {
        let bridged = self.kept.values().filter(|kept| !kept.is_left);
        self.first_end = bridged.map(|kept| kept.until).min();
    }

    /// Ends the locks whose keys may be anybody's now.
    fn lose_ended(&mut self, bridge: &Bridge, now: Instant) {
        let is_over = |_: &KeepingId, kept: &mut Kept| !kept.is_left && kept.until <= now;
        let mut ended: Vec<Kept> = self.kept.extract_if(is_over).map(|(_, kept)| kept).collect();
        ended.sort_unstable_by_key(|kept| kept.lock.id);
        ended.iter().for_each(|kept| bridge.engine.lose(&kept.lock));
        self.note_first_end();
    }

    /// Asks about the keys that are due.
    fn ask(&mut self, bridge: &Arc<Bridge>) {
        while self.asked.len() < MOST_ASKED
            && let Some(id) = self.due.pop_front()
        {
            let Some(kept) = self.kept.get_mut(&id).filter(|kept| !kept.is_asked) else { continue };
            if !bridge.engine.is_held(&kept.lock) {
                continue;
            }
            kept.is_asked = true;
            let (bridge, lock, places) = (bridge.clone(), kept.lock.clone(), kept.places.clone());
            let (since, is_left) = (Instant::now(), kept.is_left);
            self.asked.spawn(async move {
                let answer = match is_left {
                    true => leave(&bridge, &lock, &places).await,
                    false => keep(&bridge, &lock, &places).await,
                };
                KeysAsked { lock, places, since, answer }
            });
        }
    }

    /// Takes in an answer.
    fn answered(&mut self, bridge: &Bridge, asked: KeysAsked) {
        let KeysAsked { lock, places, since, answer } = asked;
        let id = (lock.key.clone(), lock.id);
        let is_held = bridge.engine.is_held(&lock);
        // Released meanwhile: the keys may have been made anew after that.
        if !is_held && answer == KeysAnswer::Said(KeysKept::Made) {
            bridge.keys.free_soon(places, lock.token.clone());
        }
        if !is_held || answer == KeysAnswer::Left {
            self.kept.remove(&id);
            return;
        }
        let Some(kept) = self.kept.get_mut(&id) else { return };
        kept.is_asked = false;
        kept.due = Instant::now() + LOOK_EVERY;
        match answer {
            KeysAnswer::Said(KeysKept::Refused) => {
                kept.taken += 1;
                if kept.taken >= TRIES {
                    self.kept.remove(&id);
                    bridge.engine.lose(&lock);
                }
            }
            KeysAnswer::Said(_) => {
                kept.taken = 0;
                // Asked for another TTL than the lock has now, they may have got that one since.
                if kept.lock.ttl == lock.ttl {
                    kept.until = kept.until.max(since + lock.ttl + SLACK);
                    kept.due = since + lock.ttl / KEEP_SHARE;
                }
            }
            KeysAnswer::Released | KeysAnswer::Left | KeysAnswer::Nothing => {}
        }
    }
}

/// Leaves the key of an adopted lock without a TTL to the data node, as its rule is only audited now: there it lasts
/// until its client deletes it.
///
/// Where the lock's name may mean two keys, it is not known which one the client took: both run out.
async fn leave(bridge: &Bridge, lock: &KeptLock, places: &[KeyPlace]) -> KeysAnswer {
    let [place] = places else { return KeysAnswer::Left };
    if !lock.claim.is_endless()
        || !bridge.adoption.is_audited(&place.key)
        || !bridge.engine.is_held(lock)
    {
        return KeysAnswer::Left;
    }
    if bridge.keys.keep(places, &lock.token, Lasts::Ever, IfGone::Leave).await.is_err() {
        return KeysAnswer::Nothing;
    }
    let (key, token) = (lock.key.clone(), lock.token.clone());
    drop(bridge.engine.release(key, token, Some(lock.claim)));
    KeysAnswer::Left
}

/// Keeps the keys of one lock.
async fn keep(bridge: &Bridge, lock: &KeptLock, places: &[KeyPlace]) -> KeysAnswer {
    // The lock may have been released through another proxy just now, or given a TTL. Keys made anew after that would
    // keep others out, and so would a longer TTL.
    match bridge.engine.look(lock.key.clone()).await {
        Ok(Some(holding)) if holding.claim == Some(lock.claim) => {}
        Ok(_) => return KeysAnswer::Released,
        Err(_) => return KeysAnswer::Nothing,
    }
    let lasts = bridge.lasts(lock.ttl);
    // If the lock was given a longer TTL meanwhile, shortening that of the key would let in clients past the proxy.
    let lasts = if lock.claim.is_endless() { Lasts::AtLeast(lasts) } else { Lasts::For(lasts) };
    match bridge.keep_or_make((&lock.key, &lock.token), places, lasts).await {
        Ok(KeysKept::Released) => KeysAnswer::Released,
        Ok(kept) => KeysAnswer::Said(kept),
        Err(_) => KeysAnswer::Nothing,
    }
}
