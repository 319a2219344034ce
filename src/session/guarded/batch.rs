//! Guarded writes that are here one behind the other share one call of the script.
//!
//! A call is made of the write whose turn it is and of those held behind it that need
//! nothing to be asked first. It takes what is here and waits for nothing. What the
//! script has not carried out is still held, and looked at again.

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

/// Writes that go together.
pub(super) struct Batch {
    /// The script's call.
    pub(super) call: Vec<u8>,
    /// They stand at the beginning of what is held, one behind the other.
    pub(super) writes: SmallVec<[Write; 4]>,
}

impl Desk {
    /// This write, with as many of those behind it as may share a call.
    /// `alone`: nothing may go with it.
    pub(super) fn batch(&self, first: Write, claims: &[FencedLock], alone: bool) -> Batch {
        let (mut writes, mut length) = (smallvec![first], first.length);
        let mut fences: CallFences =
            claims.iter().map(|claim| (claim.key.clone(), claim.fence)).collect();
        // Who is to be told first that a lock is lost is told with the next command.
        let alone = alone || self.losing.has_news();
        let most = if alone { 1 } else { self.short_way.most() };
        // Read once, and only where there is company.
        let mut now = None;
        while writes.len() < most && length < self.unsent.len() {
            let now = *now.get_or_insert_with(Instant::now);
            let Some((write, locks)) = self.next_write(&self.unsent[length..], now) else { break };
            length += write.length;
            if length > MAX_BYTES || !write.may_follow(&first) || !unite(&mut fences, locks) {
                break;
            }
            writes.push(write);
        }
        let database = self.conn.database.unwrap_or_default();
        Batch { call: write::call(&self.unsent, &writes, &fences, database), writes }
    }

    /// If a write that may go the short way is at the beginning of these bytes, and all of it:
    /// the write, and its locks, which the connection holds and whose fences the data node has.
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

/// Adds locks that are not among these yet. False: they would be too many.
fn unite(fences: &mut CallFences, locks: CallFences) -> bool {
    let new: CallFences = locks.into_iter().filter(|lock| !fences.contains(lock)).collect();
    let fits = fences.len() + new.len() <= MAX_LOCKS;
    if fits {
        fences.extend(new);
    }
    fits
}
