//! One request to all lock nodes, and their votes as they come in.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    task::Waker,
    time::Duration,
};

use smallvec::{SmallVec, smallvec};

use super::{
    quorum::{Decision, Rule, Votes},
    scripts,
};
use crate::key::{Key, Token};

/// What is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// To take a lock. Its outcome being unknown, it must be undone.
    Acquire {
        /// Known to no other, so that undoing it ends no other grant.
        attempt: u64,
    },
    /// To pass a lock on: to give it back and to take it for another.
    HandOver {
        /// As that of an acquire.
        attempt: u64,
    },
    /// To give a lock back, or what one attempt has taken of it.
    Release,
    /// To give a lock a fresh TTL.
    Renew,
    /// To give several locks a fresh TTL.
    RenewMany,
    /// To remember a fence.
    Raise,
    /// To tell whether a token holds a lock.
    Attach,
    /// Nothing: the answer shows that all before it was done.
    Flush,
}

/// Why a node's vote is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Missing {
    /// It was not connected.
    Down,
    /// It may have forgotten locks that are still held.
    Quarantined,
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
            Missing::Quarantined => "quarantined",
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
    /// Yes; the number is the fence where one was asked for, or which of several
    /// locks were renewed.
    Yes(i64),
    /// Of a hand-over: the lock is the taker's, but was not the giver's. The fence.
    Taken(i64),
    /// The token holds the lock: with this fence (0: none is stored), for so many ms more.
    Held { fence: i64, left: u32 },
    /// No; the number is the holder's remaining TTL in ms where it was a LOCK, or
    /// which of several locks were renewed.
    No(i64),
    /// There will be none.
    Missing(Missing),
}

/// One request to all lock nodes.
pub(super) struct Operation {
    /// What is asked.
    pub(super) kind: Kind,
    /// The lock's key.
    pub(super) key: Key,
    /// On whose behalf.
    pub(super) token: Token,
    /// Who gives the lock, where it is handed over.
    pub(super) from: Option<Token>,
    /// How long a grant that nobody knows of could last.
    pub(super) ttl: Duration,
    /// The command, encoded once for all nodes.
    pub(super) request: Vec<u8>,
    state: Mutex<State>,
}

/// The votes of all nodes; as many as anybody has need no memory of their own.
pub(super) type AllVotes = SmallVec<[Vote; 5]>;

struct State {
    votes: AllVotes,
    counted: Votes,
    /// Nobody waits for it any more: it is answered, or was given up.
    closed: bool,
    /// Who waits for the votes to decide, by which rule. A hand-over has two of
    /// them: who gives the lock and who gets it.
    waiting: SmallVec<[(Rule, Waker); 1]>,
    /// The most subscribers of the lock's channel that a node has told; below 0: a
    /// node has refused to tell.
    listeners: i64,
}

impl Operation {
    /// A request to `nodes` nodes.
    #[inline]
    pub(super) fn new(
        kind: Kind,
        key: Key,
        token: Token,
        ttl: Duration,
        request: Vec<u8>,
        nodes: usize,
    ) -> Operation {
        let state = State {
            votes: smallvec![Vote::Pending; nodes],
            counted: Votes { nodes, ..Votes::default() },
            closed: false,
            waiting: SmallVec::new(),
            listeners: 0,
        };
        Operation { kind, key, token, from: None, ttl, request, state: Mutex::new(state) }
    }

    /// The same, of a lock that `from` gives.
    pub(super) fn given_by(self, from: Token) -> Operation {
        Operation { from: Some(from), ..self }
    }

    /// Takes in what node `node` said. Its first word counts.
    pub(super) fn vote(&self, node: usize, vote: Vote) {
        let mut state = self.lock();
        let state = &mut *state;
        match state.votes.get_mut(node) {
            Some(slot @ Vote::Pending) => *slot = vote,
            _ => return,
        }
        match vote {
            Vote::Yes(_) | Vote::Held { .. } => state.counted.yes += 1,
            Vote::Taken(_) => state.counted.taken += 1,
            Vote::No(_) => state.counted.no += 1,
            Vote::Missing(_) => state.counted.missing += 1,
            Vote::Pending => return,
        }
        let mut at = 0;
        while let Some((rule, _)) = state.waiting.get(at) {
            if state.counted.decide(*rule) == Decision::Open {
                at += 1;
            } else {
                state.waiting.swap_remove(at).1.wake();
            }
        }
    }

    /// Whether node `node` has not voted, nor was given up.
    pub(super) fn is_pending(&self, node: usize) -> bool {
        self.lock().votes.get(node) == Some(&Vote::Pending)
    }

    /// What the votes come to so far by `rule`; while that is open, `waker` is
    /// woken once it is not.
    pub(super) fn decision(&self, rule: Rule, waker: &Waker) -> Decision {
        let mut state = self.lock();
        let decision = state.counted.decide(rule);
        if decision == Decision::Open {
            match state.waiting.iter_mut().find(|(known, _)| *known == rule) {
                Some((_, known)) => known.clone_from(waker),
                None => state.waiting.push((rule, waker.clone())),
            }
        }
        decision
    }

    /// Takes in how many subscribers of the lock's channel a node has told.
    pub(super) fn heard_of_listeners(&self, listeners: i64) {
        let mut state = self.lock();
        state.listeners =
            if listeners < 0 || state.listeners < 0 { -1 } else { state.listeners.max(listeners) };
    }

    /// The most subscribers of the lock's channel that a node has told; none: a
    /// node has refused to tell.
    pub(super) fn listeners(&self) -> Option<u64> {
        u64::try_from(self.lock().listeners).ok()
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
    pub(super) fn votes(&self) -> AllVotes {
        self.lock().votes.clone()
    }

    /// What takes back all that a LOCK may have taken.
    pub(super) fn undo(&self, attempt: u64) -> Operation {
        let request = scripts::undo(&self.key, &self.token, attempt);
        let nodes = self.lock().votes.len();
        let (key, token) = (self.key.clone(), self.token.clone());
        Operation::new(Kind::Release, key, token, self.ttl, request, nodes)
    }

    /// What gives back a lock that was to be handed over. How long its giver may
    /// hold it is not known here.
    pub(super) fn giving_back(&self, who: &[u8]) -> Operation {
        let from = self.from.as_ref().unwrap_or(&self.token).clone();
        let request = scripts::release(&self.key, &from, who);
        let nodes = self.lock().votes.len();
        Operation::new(Kind::Release, self.key.clone(), from, Duration::MAX, request, nodes)
    }

    /// Nothing panics while it holds the lock, and votes stay sound if something did.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
