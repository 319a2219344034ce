//! A lock that guards need was granted: the data node is told its fence before the client
//! is told of the lock.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use super::{
    super::{
        Session,
        lock_command::{Before, Granted, Left, encode_grant},
    },
    Barrier, Phase,
};
use crate::{
    clock::Instant,
    guard::fences,
    key::{Key, Token},
    lock::{Claim, NoQuorum, Raise},
    resp::{encode, name::ReplyMode},
};

/// The data node tells the fences that it has seen, and who raises a lock's beyond one of
/// them may meet a larger one meanwhile: so often it is tried.
const MAX_ROUNDS: u8 = 3;
/// A fence from here on is not raised any more: the scripts' numbers end at 2^53.
const END: u64 = (1 << 53) - 2;

/// A lock just granted, or attached to, whose fence the data node is being told.
pub(super) struct Raising {
    key: Key,
    token: Token,
    claim: Option<Claim>,
    fence: u64,
    /// How often the lock nodes were made to raise it.
    rounds: u8,
    /// It was granted elsewhere.
    attached: bool,
    /// This connection held it before: of that nothing is taken back.
    again: Option<Before>,
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

/// The data node has seen a larger fence of a lock just granted: the lock nodes raise theirs
/// beyond it.
pub(super) struct Outbidding {
    raising: Raising,
    seen: u64,
    raise: Raise,
}

impl fmt::Debug for Outbidding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Outbidding({})", self.seen)
    }
}

impl Outbidding {
    pub(super) fn is_of(&self, key: &Key) -> bool {
        self.raising.is_of(key)
    }

    /// Ready once the lock nodes have answered.
    pub(super) fn poll_raised(&mut self, cx: &mut Context<'_>) -> Poll<Raised> {
        Pin::new(&mut self.raise).poll(cx)
    }
}

/// What the lock nodes say of a fence that they were to raise: the one that counts, or that
/// the lock is not held any more.
pub(super) type Raised = Result<Option<u64>, NoQuorum>;

impl Raising {
    pub(super) fn is_of(&self, key: &Key) -> bool {
        self.key == *key
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
    pub(super) fn begin_raise(&mut self, barrier: Box<Barrier>, lock: Granted, answer: Vec<u8>) {
        let Granted { key, token, claim, fence, attached, again, .. } = lock;
        let (rounds, missing) = (0, 0);
        let raising =
            Raising { key, token, claim, fence, rounds, attached, again, answer, missing };
        self.tell_fence(barrier, raising);
    }

    /// Tells the data node the fence.
    fn tell_fence(&mut self, mut barrier: Box<Barrier>, mut raising: Raising) {
        let (selected, ttl) = (self.database, self.config.locks.fence_ttl);
        if self.reply_mode == ReplyMode::Off {
            self.ask(|out| encode::command(out, &[b"CLIENT", b"REPLY", b"ON"]));
        }
        self.ask(|out| fences::raise(out, &raising.key, raising.fence, selected, ttl));
        raising.missing = self.owed.len();
        barrier.phase = Phase::Raise(raising);
        self.barrier = Some(barrier);
    }

    /// Has the lock nodes raise a lock's fence beyond one that the data node has seen, which
    /// a proxy whose clock was ahead has made. It is this lock's alone, and only while it is
    /// held.
    fn outbid(&mut self, mut barrier: Box<Barrier>, mut raising: Raising, claim: Claim, seen: u64) {
        let engine = &self.shared.engine;
        engine.learn_fence(seen);
        raising.rounds += 1;
        let raise = engine.raise(raising.key.clone(), raising.token.clone(), claim, seen + 1);
        barrier.phase = Phase::Outbid(Outbidding { raising, seen, raise });
        self.barrier = Some(barrier);
    }

    /// The lock nodes have raised it, or not.
    pub(super) fn outbid_answered(&mut self, mut barrier: Box<Barrier>, raised: Raised) {
        let outbidding = match std::mem::replace(&mut barrier.phase, Phase::Drain) {
            Phase::Outbid(outbidding) => outbidding,
            phase => {
                barrier.phase = phase;
                return self.barrier = Some(barrier);
            }
        };
        let Outbidding { mut raising, seen, .. } = outbidding;
        let error = match raised {
            Ok(Some(fence)) if fence > seen => {
                self.tokens.was_raised(&raising.key, raising.fence, fence);
                raising.fence = fence;
                return self.tell_fence(barrier, raising);
            }
            Ok(_) => "NOTHELD the lock had run out before its fence was raised, try again".into(),
            Err(error) => format!("NOQUORUM {error}"),
        };
        self.not_raised(barrier, &raising, error.as_bytes());
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
        let seen = fences::read_fence(reply);
        if let Some(seen) = seen
            && fences::is_from_the_future(seen)
            && let Some(guards) = &self.shared.guards
        {
            self.shared.metrics.fences_ahead.increment(1);
            guards.tell_of_fence_ahead(&raising.key[self.config.locks.prefix.len()..], seen);
        }
        let error = match (seen, fences::read_error(reply)) {
            (Some(seen), _)
                if seen > raising.fence
                    && seen < END
                    && !raising.attached
                    && raising.rounds < MAX_ROUNDS
                    && let Some(claim) = raising.claim =>
            {
                return self.outbid(barrier, raising, claim, seen);
            }
            (Some(seen), _) if seen <= raising.fence => {
                // The data node took its time, which is the lock's time too.
                match self.tokens.left(&raising.key, raising.fence, Instant::now()) {
                    None => {
                        b"NOTHELD the lock had run out before the data node took its fence, try again"
                            .to_vec()
                    }
                    Some((token, left)) => {
                        let mut answer = std::mem::take(&mut raising.answer);
                        let left = match left {
                            Left::For(validity) => Some(validity),
                            // That was told with the fence of before.
                            Left::Kept(validity) if raising.rounds > 0 => Some(validity),
                            Left::Kept(_) => None,
                        };
                        if let Some(validity) = left {
                            answer.clear();
                            encode_grant(&mut answer, token, raising.fence, validity);
                        }
                        self.tokens.raised(&raising.key, raising.fence);
                        return self.answer(barrier, answer);
                    }
                }
            }
            (Some(seen), _) if raising.attached => format!(
                "FENCED the lock was granted again since, with fence {seen} after {}",
                raising.fence
            )
            .into_bytes(),
            (Some(seen), _) if seen >= END => format!(
                "FENCED the data node has seen fence {seen} of this lock, the last there is; \
                 delete its key on the data node (docs/guards.md)"
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
        self.not_raised(barrier, &raising, &error);
    }

    /// Nothing could be written under it. One granted here is given back, but what the
    /// client was told before of the same lock stays true.
    fn not_raised(&mut self, mut barrier: Box<Barrier>, raising: &Raising, error: &[u8]) {
        match raising.again {
            Some(before) => self.tokens.restore(&raising.key, before),
            None if raising.attached => self.tokens.forget(&raising.key, raising.fence),
            None => {
                if let Some(undo) = barrier.undo.take() {
                    undo.undo(&mut self.tokens);
                }
            }
        }
        let mut answer = Vec::new();
        encode::error_bytes(&mut answer, error);
        self.answer(barrier, answer);
    }
}
