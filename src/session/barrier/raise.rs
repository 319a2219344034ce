//! A lock that guards need was granted: the data node is told its fence before the client
//! is told of the lock.

use std::{fmt, sync::Arc};

use super::{
    super::{
        Session, fences,
        lock_command::{Granted, Left, encode_grant},
    },
    Barrier, Phase,
};
use crate::{
    clock::Instant,
    key::{Key, Token},
    lock::{Claim, Engine},
    resp::{encode, name::ReplyMode},
};

/// A lock just granted, or attached to, whose fence the data node is being told.
pub(super) struct Raising {
    key: Key,
    fence: u64,
    /// Of a lock granted to this connection: it is given back when this is dropped before.
    undo: Option<(Arc<Engine>, Token, Option<Claim>)>,
    /// The reply to LOCK or LOCK.ATTACH.
    answer: Vec<u8>,
    /// How many replies are missing; the last one tells.
    missing: usize,
}

impl fmt::Debug for Raising {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Raising({})", self.fence)
    }
}

impl Drop for Raising {
    fn drop(&mut self) {
        if let Some((engine, token, claim)) = self.undo.take() {
            drop(engine.release(self.key.clone(), token, claim));
        }
    }
}

impl Session {
    /// Whether writes to some keys need this lock.
    pub(super) fn is_guard_lock(&self, key: &Key) -> bool {
        #[cfg(feature = "planted")]
        if std::env::var("LOCKGATE_PLANT").is_ok_and(|fault| fault == "raise") {
            return false;
        }
        self.shared.guards.as_ref().is_some_and(|guards| {
            key.get(self.config.locks.prefix.len()..).is_some_and(|lock| guards.is_needed(lock))
        })
    }

    /// Tells the data node the fence of a lock just granted or attached to, before the client
    /// is told of the lock: from then on no earlier holder can write any more. Where the client
    /// gets no replies it is told all the same.
    pub(super) fn begin_raise(
        &mut self,
        mut barrier: Box<Barrier>,
        lock: Granted,
        answer: Vec<u8>,
    ) {
        let Granted { key, token, claim, fence, attached } = lock;
        let (selected, ttl) = (self.database, self.config.locks.fence_ttl);
        if self.reply_mode == ReplyMode::Off {
            self.ask(|out| encode::command(out, &[b"CLIENT", b"REPLY", b"ON"]));
        }
        self.ask(|out| fences::raise(out, &key, fence, selected, ttl));
        let undo = (!attached).then(|| (self.shared.engine.clone(), token, claim));
        let missing = self.owed.len();
        barrier.phase = Phase::Raise(Raising { key, fence, undo, answer, missing });
        self.barrier = Some(barrier);
    }

    pub(super) fn raise_answered(
        &mut self,
        mut barrier: Box<Barrier>,
        mut raising: Raising,
        reply: &[u8],
    ) {
        raising.missing -= 1;
        if raising.missing > 0 {
            barrier.phase = Phase::Raise(raising);
            return self.barrier = Some(barrier);
        }
        if self.reply_mode == ReplyMode::Off {
            let mut off = Vec::new();
            encode::command(&mut off, &[b"CLIENT", b"REPLY", b"OFF"]);
            self.to_upstream.push(&off);
        }
        let error = match (fences::read_fence(reply), fences::read_error(reply)) {
            (Some(seen), _) if seen <= raising.fence => {
                // The data node took its time, which is the lock's time too.
                match self.tokens.left(&raising.key, raising.fence, Instant::now()) {
                    None => {
                        b"NOTHELD the lock had run out before the data node took its fence, try again"
                            .to_vec()
                    }
                    Some((token, left)) => {
                        let mut answer = std::mem::take(&mut raising.answer);
                        if let Left::For(validity) = left {
                            answer.clear();
                            encode_grant(&mut answer, token, raising.fence, validity);
                        }
                        self.tokens.raised(&raising.key, raising.fence);
                        raising.undo = None;
                        return self.answer(barrier, answer);
                    }
                }
            }
            (Some(seen), _) if raising.undo.is_none() => format!(
                "FENCED the lock was granted again since, with fence {seen} after {}",
                raising.fence
            )
            .into_bytes(),
            (Some(seen), _) => format!(
                "FENCED the data node has seen fence {seen} of this lock, more than {}, try again",
                raising.fence
            )
            .into_bytes(),
            (None, Some(error)) => error,
            (None, None) => b"ERR the data node did not take the lock's fence".to_vec(),
        };
        // Nothing could be written under it. One granted here is given back.
        self.tokens.forget(&raising.key, raising.fence);
        drop(raising);
        let mut answer = Vec::new();
        encode::error_bytes(&mut answer, &error);
        self.answer(barrier, answer);
    }
}
