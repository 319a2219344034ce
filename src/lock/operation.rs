//! One request to all lock nodes, and their votes as they come in.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    task::Waker,
    time::Duration,
};

use bytes::Bytes;

use super::{
    quorum::{Decision, Votes},
    scripts,
};

/// What is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// To take a lock. Its outcome being unknown, it must be undone.
    Acquire {
        /// Known to no other, so that undoing it ends no other grant.
        attempt: u64,
    },
    /// To give a lock back, or what one attempt has taken of it.
    Release,
    /// To give a lock a fresh TTL.
    Renew,
    /// To remember a fence.
    Raise,
    /// Nothing: the answer shows that all before it was done.
    Flush,
}

/// Why a node's vote is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Missing {
    /// It was not connected.
    Down,
    /// The connection ended before the answer.
    Disconnected,
    /// Too many operations are under way there.
    Busy,
    /// It did not answer in time.
    Timeout,
    /// It answered with an error.
    Error,
}

impl Missing {
    /// The word for it in errors.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Missing::Down => "down",
            Missing::Disconnected => "disconnected",
            Missing::Busy => "busy",
            Missing::Timeout => "timeout",
            Missing::Error => "error",
        }
    }
}

/// One node's vote.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Vote {
    /// Not yet known.
    Pending,
    /// Yes; the number is the fence where one was asked for.
    Yes(i64),
    /// No; the number is the holder's remaining TTL in ms where it was a LOCK.
    No(i64),
    /// There will be none.
    Missing(Missing),
}

/// One request to all lock nodes.
pub(super) struct Operation {
    /// What is asked.
    pub(super) kind: Kind,
    /// The lock's key.
    pub(super) key: Vec<u8>,
    /// On whose behalf.
    pub(super) token: Vec<u8>,
    /// How long a grant that nobody knows of could last.
    pub(super) ttl: Duration,
    /// The command, encoded once for all nodes.
    pub(super) request: Bytes,
    state: Mutex<State>,
}

struct State {
    votes: Vec<Vote>,
    counted: Votes,
    /// Nobody waits for it any more: it is answered, or was given up.
    closed: bool,
    waker: Option<Waker>,
}

impl Operation {
    /// A request to `nodes` nodes.
    pub(super) fn new(
        kind: Kind,
        key: &[u8],
        token: &[u8],
        ttl: Duration,
        request: Bytes,
        nodes: usize,
    ) -> Operation {
        let state = State {
            votes: vec![Vote::Pending; nodes],
            counted: Votes { nodes, ..Votes::default() },
            closed: false,
            waker: None,
        };
        let (key, token) = (key.to_vec(), token.to_vec());
        Operation { kind, key, token, ttl, request, state: Mutex::new(state) }
    }

    /// Takes in what node `node` said. Its first word counts.
    pub(super) fn vote(&self, node: usize, vote: Vote) {
        let mut state = self.lock();
        match state.votes.get_mut(node) {
            Some(slot @ Vote::Pending) => *slot = vote,
            _ => return,
        }
        match vote {
            Vote::Yes(_) => state.counted.yes += 1,
            Vote::No(_) => state.counted.no += 1,
            Vote::Missing(_) => state.counted.missing += 1,
            Vote::Pending => return,
        }
        if self.decide(state.counted) != Decision::Open {
            let waker = state.waker.take();
            drop(state);
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }

    /// What the votes come to so far; while that is open, `waker` is woken once it is not.
    pub(super) fn decision(&self, waker: &Waker) -> Decision {
        let mut state = self.lock();
        let decision = self.decide(state.counted);
        if decision == Decision::Open {
            match &mut state.waker {
                Some(known) => known.clone_from(waker),
                none => *none = Some(waker.clone()),
            }
        }
        decision
    }

    /// Time is up: who has not answered is missing. Gives their numbers.
    pub(super) fn time_out(&self) -> Vec<usize> {
        let mut state = self.lock();
        let late: Vec<usize> =
            (0..state.votes.len()).filter(|node| state.votes[*node] == Vote::Pending).collect();
        for node in &late {
            state.votes[*node] = Vote::Missing(Missing::Timeout);
        }
        state.counted.missing += late.len();
        late
    }

    /// Nobody waits for it any more.
    pub(super) fn close(&self) {
        self.lock().closed = true;
    }

    /// Whether it is answered or was given up.
    pub(super) fn is_closed(&self) -> bool {
        self.lock().closed
    }

    /// The votes as they are now.
    pub(super) fn votes(&self) -> Vec<Vote> {
        self.lock().votes.clone()
    }

    /// What takes back all that a LOCK may have taken.
    pub(super) fn undo(&self, attempt: u64) -> Operation {
        let request = scripts::undo(&self.key, &self.token, attempt);
        let nodes = self.lock().votes.len();
        Operation::new(Kind::Release, &self.key, &self.token, self.ttl, request, nodes)
    }

    fn decide(&self, votes: Votes) -> Decision {
        match self.kind {
            Kind::Acquire { .. } | Kind::Raise => votes.majority(),
            Kind::Renew => votes.renewal(),
            Kind::Release => votes.release(),
            Kind::Flush if votes.yes + votes.no + votes.missing == votes.nodes => Decision::Yes,
            Kind::Flush => Decision::Open,
        }
    }

    /// Nothing panics while it holds the lock, and votes stay sound if something did.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
