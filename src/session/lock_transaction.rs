//! How far a client's transaction about one adopted lock has come: WATCH, GET, MULTI, one of DEL,
//! UNLINK, EXPIRE and PEXPIRE, EXEC. The data node sees nothing of it, MULTI and EXEC included.
//!
//! ```text
//!  WATCH       GET, others' commands   MULTI        DEL, …          QUEUED           EXEC
//! ─────→ Watching ─────→ Watching ─────────→ Open ────────→ Trying ───────→ Queued ───────→
//!           │ refused WATCH                   │ anything else  │ an error      │ anything else
//!           └──→ Spoiled ─ MULTI ─→ Failed ←──┴────────────────┴───────────────┘
//! ```
//!
//! Each step consumes the stage before. UNWATCH before MULTI, DISCARD behind it, RESET and QUIT end the transaction.

use crate::{adopt::task::QueuedWork, config::NoQuorumPolicy, key::Key, lock::Holding};

/// A client's transaction about one adopted lock.
#[derive(Debug)]
pub(super) enum LockTransaction {
    /// WATCH was answered.
    Watching(WatchedLock),
    /// As `Watching`, but a further WATCH was refused: once MULTI comes, the transaction has failed.
    Spoiled,
    /// MULTI was answered.
    Open(WatchedLock),
    /// A command came that may fit: the transaction has failed unless it is answered QUEUED.
    Trying(WatchedLock),
    /// The one command was answered QUEUED.
    Queued(WatchedLock, QueuedWork),
    /// A command was refused: EXEC will fail.
    Failed,
}

/// A lock under WATCH.
#[derive(Debug)]
pub(super) struct WatchedLock {
    pub(super) key: Key,
    pub(super) seen: SeenLock,
    /// Its rule's policy where too few lock nodes answer.
    pub(super) no_quorum: NoQuorumPolicy,
}

/// What GET has answered of a lock under WATCH.
#[derive(Debug)]
pub(super) enum SeenLock {
    /// No GET was answered.
    Unread,
    /// Nobody holds the lock.
    Free,
    HeldBy(Holding),
    /// Two GETs were answered differently.
    Changed,
}

/// Why a command is not queued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unqueued {
    /// Another command, another key, or a second command.
    Misfit,
    /// No GET was answered under the WATCH.
    Unread,
    /// The lock that GET told was not taken by an adopted command.
    NotAdopted,
}

impl LockTransaction {
    /// Returns the stage once WATCH is answered.
    pub(super) fn watching(key: Key, no_quorum: NoQuorumPolicy) -> LockTransaction {
        LockTransaction::Watching(WatchedLock { key, seen: SeenLock::Unread, no_quorum })
    }

    /// Returns the policy of the lock's rule where too few lock nodes answer.
    pub(super) fn no_quorum(&self) -> NoQuorumPolicy {
        match self {
            LockTransaction::Watching(lock)
            | LockTransaction::Open(lock)
            | LockTransaction::Trying(lock)
            | LockTransaction::Queued(lock, _) => lock.no_quorum,
            LockTransaction::Spoiled | LockTransaction::Failed => NoQuorumPolicy::default(),
        }
    }

    /// Whether MULTI was answered.
    pub(super) fn is_open(&self) -> bool {
        !matches!(self, LockTransaction::Watching(_) | LockTransaction::Spoiled)
    }

    /// Takes in the answer to a GET of a lock. `holding`: `None` if nobody holds the lock.
    pub(super) fn read(self, key: &Key, holding: Option<&Holding>) -> LockTransaction {
        match self {
            LockTransaction::Watching(lock) if lock.key == *key => {
                let seen = lock.seen.again(holding);
                LockTransaction::Watching(WatchedLock { seen, ..lock })
            }
            stage => stage,
        }
    }

    /// Takes in MULTI.
    pub(super) fn open(self) -> LockTransaction {
        match self {
            LockTransaction::Watching(lock) => LockTransaction::Open(lock),
            _ => LockTransaction::Failed,
        }
    }

    /// Takes in that a command behind MULTI, which may fit, is being looked at.
    pub(super) fn attempt(self) -> LockTransaction {
        match self {
            LockTransaction::Open(lock) => LockTransaction::Trying(lock),
            _ => LockTransaction::Failed,
        }
    }

    /// Takes in a command that does not fit.
    pub(super) fn misfit(self) -> LockTransaction {
        if self.is_open() { LockTransaction::Failed } else { LockTransaction::Spoiled }
    }

    /// Queues what the command that was looked at does to a lock.
    ///
    /// # Errors
    /// If the command does not fit: the transaction has failed.
    pub(super) fn queue(self, key: &Key, work: QueuedWork) -> Result<LockTransaction, Unqueued> {
        let LockTransaction::Trying(lock) = self else { return Err(Unqueued::Misfit) };
        if lock.key != *key {
            return Err(Unqueued::Misfit);
        }
        match &lock.seen {
            SeenLock::Unread => Err(Unqueued::Unread),
            // The lock of a LOCK client is only that client's to end, and a transaction shows no token.
            SeenLock::HeldBy(Holding { claim, .. })
                if !claim.is_some_and(|claim| claim.is_adopted()) =>
            {
                Err(Unqueued::NotAdopted)
            }
            SeenLock::HeldBy(_) | SeenLock::Free | SeenLock::Changed => {
                Ok(LockTransaction::Queued(lock, work))
            }
        }
    }
}

impl SeenLock {
    /// Takes in one more answer.
    fn again(self, holding: Option<&Holding>) -> SeenLock {
        match (self, holding) {
            (SeenLock::Unread, Some(holding)) => SeenLock::HeldBy(holding.clone()),
            (SeenLock::Unread, None) => SeenLock::Free,
            (seen, holding) if seen.is_still(holding) => seen,
            _ => SeenLock::Changed,
        }
    }

    /// Whether the lock is as GET told it.
    pub(super) fn is_still(&self, holding: Option<&Holding>) -> bool {
        match (self, holding) {
            (SeenLock::Free, None) => true,
            (SeenLock::HeldBy(before), Some(now)) => {
                let same_claim = match (before.claim, now.claim) {
                    (Some(before), Some(now)) => before == now,
                    // Too few lock nodes name the claim.
                    _ => true,
                };
                before.token == now.token && same_claim
            }
            _ => false,
        }
    }
}
