//! Guarded writes that are here one behind the other share one call of the script.
//!
//! A call is made of the write whose turn it is and of those held behind it that need
//! nothing to be asked first. It takes what is here and waits for nothing. What the
//! script has not carried out is still held, and looked at again.

use smallvec::{SmallVec, smallvec};

use super::super::{
    desk::Desk,
    planted::{self, Fault},
};
use crate::{
    clock::Instant,
    guard::{
        Look, MAX_LOCKS, Stop,
        fences::Claim,
        write::{self, MAX_BYTES, Write},
    },
    key::Key,
    resp::words::{Step, Walk},
};

/// Locks under which writes are made, with their fences.
type Fences = SmallVec<[(Key, u64); 2]>;

/// Writes that go together.
pub(super) struct Batch {
    /// The script's call.
    pub(super) call: Vec<u8>,
    /// How many there are.
    pub(super) writes: usize,
    /// How many bytes of what is held they are.
    pub(super) length: usize,
}

impl Desk {
    /// This write, with as many of those behind it as may share a call. None: it must go
    /// the longer way.
    /// `alone`: nothing may go with it.
    pub(super) fn batch(&self, length: usize, claims: &[Claim], alone: bool) -> Option<Batch> {
        let mut at = length.min(self.held.len());
        let first = Write::parse(&self.held[..at])?;
        let mut writes: SmallVec<[Write<'_>; 4]> = smallvec![first];
        let mut fences: Fences =
            claims.iter().map(|claim| (claim.key.clone(), claim.fence)).collect();
        // Who is to be told first that a lock is lost is told with the next command.
        let alone = alone || self.losing.has_news();
        let most = if alone { 1 } else { self.short_way.most() };
        // Read once, and only where there is company.
        let mut now = None;
        while writes.len() < most && at < self.held.len() {
            let now = *now.get_or_insert_with(Instant::now);
            let Some((length, locks)) = self.next_write(&self.held[at..], now) else { break };
            let end = at + length;
            let Some(write) = Write::parse(&self.held[at..end]) else { break };
            if end > MAX_BYTES || !write.may_follow(&first) || !unite(&mut fences, locks) {
                break;
            }
            writes.push(write);
            at = end;
        }
        Some(Batch {
            call: write::call(&writes, &fences, self.conn.database.unwrap_or_default()),
            writes: writes.len(),
            length: at,
        })
    }

    /// If a guarded write is at the beginning of these bytes, and all of it: its length,
    /// and its locks, which the connection holds and whose fences the data node has.
    fn next_write(&self, bytes: &[u8], now: Instant) -> Option<(usize, Fences)> {
        let guards = self.shared.guards.as_ref()?;
        let Look::Stop(length, Stop::Needs(needs)) =
            guards.look(guards.catalog.table().as_deref(), bytes)
        else {
            return None;
        };
        let held = |lock: &[u8]| {
            let key = self.key(lock);
            let (fence, raised) = self.tokens.claim(&key, now)?;
            raised.then_some((key, fence))
        };
        if planted::has(Fault::Together) {
            return Some((length, Fences::new()));
        }
        let locks: Option<Fences> = needs.iter().map(|need| held(&need.lock)).collect();
        Some((length, locks?))
    }
}

/// How many bytes so many commands take at the beginning of what is held.
pub(super) fn length_of(held: &[u8], commands: usize) -> usize {
    (0..commands).fold(0, |at, _| {
        match Walk::default().finish(held.get(at..).unwrap_or_default()) {
            Step::End(length) => at + length,
            Step::Word(_) | Step::More(_) | Step::Bad => at,
        }
    })
}

/// Adds locks that are not among these yet. False: they would be too many.
fn unite(fences: &mut Fences, locks: Fences) -> bool {
    let new: Fences = locks.into_iter().filter(|lock| !fences.contains(lock)).collect();
    let fits = fences.len() + new.len() <= MAX_LOCKS;
    if fits {
        fences.extend(new);
    }
    fits
}
