//! Lets guarded writes that have arrived one behind the other share one call of the script.
//!
//! A call carries the write whose turn it is, and the unsent writes behind it for which nothing must be asked first.
//! It takes what has arrived and waits for nothing. Writes that the script has not carried out stay unsent, and are
//! scanned again.

use smallvec::{SmallVec, smallvec};

use super::super::{
    desk::Desk,
    planted::{self, PlantedFault},
};
use crate::{
    clock::Instant,
    guard::{
        Look, MAX_LOCKS, Stop,
        fences::FencedLock,
        write::{self, MAX_BYTES, Write},
    },
    key::Key,
};

/// Locks under which writes are made, with their fences.
type CallFences = SmallVec<[(Key, u64); 2]>;

/// Writes that share one call.
pub(super) struct Batch {
    pub(super) call: Vec<u8>,
    /// The writes, one behind the other at the beginning of the unsent bytes.
    pub(super) writes: SmallVec<[Write; 4]>,
}

impl Desk {
    /// Makes a call of this write and as many writes behind it as may share the call. `alone`: no other may.
    pub(super) fn batch(&self, first: Write, claims: &[FencedLock], alone: bool) -> Batch {
        let (mut writes, mut length) = (smallvec![first], first.length);
        let mut fences: CallFences =
            claims.iter().map(|claim| (claim.key.clone(), claim.fence)).collect();
        // A client that must be told of a loss is told at its next command, so this call takes no further one.
        let alone = alone || self.losing.has_news();
        let most = if alone { 1 } else { self.short_way.most() };
        // The clock is read once, and only if there are further writes.
        let mut now = None;
        while writes.len() < most && length < self.unsent.len() {
            let now = *now.get_or_insert_with(Instant::now);
            let Some((write, locks)) = self.next_write(&self.unsent[length..], now) else { break };
            length += write.length;
            let is_alike = write.may_follow(&first) && self.are_in_one_slot(&fences, &locks);
            if length > MAX_BYTES || !is_alike || !unite(&mut fences, locks) {
                break;
            }
            writes.push(write);
        }
        let database = self.conn.database.unwrap_or_default();
        let place = self.fence_place();
        Batch { call: write::call(&self.unsent, &writes, place, &fences, database), writes }
    }

    /// Whether the fences of these locks may be in one call: a cluster's node takes only keys of one slot.
    fn are_in_one_slot(&self, fences: &CallFences, more: &CallFences) -> bool {
        let place = self.fence_place();
        let mut slots = fences.iter().chain(more).map(|(key, _)| place.slot(key));
        let first = slots.next();
        slots.all(|slot| Some(slot) == first)
    }

    /// Returns the write at the beginning of these bytes, and its locks. Returns `None` unless the write is whole and
    /// may go the short way, and the connection holds its locks with announced fences.
    fn next_write(&self, bytes: &[u8], now: Instant) -> Option<(Write, CallFences)> {
        let guards = self.shared.guards.as_ref()?;
        let Look::Stop(_, Stop::Needs(needs), Some(write)) =
            guards.look(guards.catalog.table().as_deref(), bytes)
        else {
            return None;
        };
        let held = |lock: &[u8]| {
            let key = self.key(lock);
            let (fence, announced) = self.tokens.claim(&key, now)?;
            announced.then_some((key, fence))
        };
        if planted::has(PlantedFault::Together) {
            return Some((write, CallFences::new()));
        }
        let locks: Option<CallFences> = needs.iter().map(|need| held(&need.lock)).collect();
        Some((write, locks?))
    }
}

/// Adds locks that are not among `fences` yet. Returns `false` if there would be too many.
fn unite(fences: &mut CallFences, locks: CallFences) -> bool {
    let new: CallFences = locks.into_iter().filter(|lock| !fences.contains(lock)).collect();
    let fits = fences.len() + new.len() <= MAX_LOCKS;
    if fits {
        fences.extend(new);
    }
    fits
}
