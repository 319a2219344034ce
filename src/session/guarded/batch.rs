//! Guarded writes that are here one behind the other share one call of the script.
//!
//! A call is made of the write whose turn it is and of those held behind it that need
//! nothing to be asked first. It takes what is here and waits for nothing. What the
//! script has not carried out is still held, and looked at again.

use smallvec::{SmallVec, smallvec};

use super::{super::Session, Guarded};
use crate::{
    clock::Instant,
    guard::{
        Look, MAX_LOCKS, Stop,
        write::{self, MAX_BYTES, MAX_WRITES, Write},
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

/// How many writes the next call may have. One that cannot be carried out as a whole has
/// cost its length in vain, so what comes behind it begins small again.
#[derive(Debug, Clone, Copy)]
pub(in crate::session) struct Limit(usize);

impl Default for Limit {
    fn default() -> Limit {
        Limit(MAX_WRITES)
    }
}

impl Limit {
    /// Of so many writes in one call so many were carried out.
    pub(super) fn note(&mut self, tried: usize, made: usize) {
        if made == tried {
            self.0 = (self.0 * 2).min(MAX_WRITES);
        } else if tried > 1 {
            self.0 = 1;
        }
    }
}

impl Session {
    /// This write, with as many of those behind it as may share a call. None: it must go
    /// the longer way.
    pub(super) fn batch(&self, guarded: &Guarded) -> Option<Batch> {
        let mut at = guarded.length.min(self.held.len());
        let first = Write::parse(&self.held[..at])?;
        let mut writes: SmallVec<[Write<'_>; 4]> = smallvec![first];
        let mut fences: Fences =
            guarded.claims.iter().map(|claim| (claim.key.clone(), claim.fence)).collect();
        // Who is to be told first that a lock is lost is told with the next command.
        let alone = guarded.silent || self.news.is_some();
        let most = if alone { 1 } else { self.together.0 };
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
            call: write::call(&writes, &fences, self.database.unwrap_or_default()),
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
        let prefix = self.config.locks.prefix.as_bytes();
        let held = |lock: &[u8]| {
            let key = Key::new(prefix, lock);
            let (fence, raised) = self.tokens.claim(&key, now)?;
            raised.then_some((key, fence))
        };
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
