//! One request to all lock nodes, and their votes as they come in.

use std::{sync::Arc, task::Waker, time::Duration};

use smallvec::{SmallVec, smallvec};

use super::{
    Claim,
    quorum::{Decision, Rule, Votes},
    scripts::{self, WhichGrant},
};
use crate::{
    clock::Instant,
    key::{Key, Token},
    sync::Mutex,
};

/// What is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// To take a lock. Its outcome being unknown, it must be undone.
    Acquire {
        /// Known to no other, so that undoing it ends no other grant.
        claim: Claim,
        /// The same claim may have it already: then there is nothing to undo, as its
        /// holder may still count on it.
        again: bool,
    },
    /// To pass a lock on: to give it back and to take it for another.
    HandOver {
        /// The taker's.
        claim: Claim,
    },
    /// To give a lock back, or what one attempt has taken of it.
    Release,
    /// To give a lock a fresh TTL.
    Renew,
    /// To give several locks a fresh TTL.
    RenewMany,
    /// To put a lock back where it has been lost.
    Heal,
    /// To remember a fence.
    Raise,
    /// To tell whether a token holds a lock.
    Attach,
    /// Nothing: the answer shows that all before it was done.
    Flush,
}

impl Kind {
    /// Whether a lock node can vote so on an operation of this kind.
    fn admits(self, vote: Vote) -> bool {
        match vote {
            Vote::Pending => false,
            Vote::Kept { .. } => self == Kind::Renew,
            Vote::Taken(_) => matches!(self, Kind::HandOver { .. }),
            Vote::Held { .. } => self == Kind::Attach,
            Vote::Yes(_) => !matches!(self, Kind::Renew | Kind::Attach),
            Vote::No(_) | Vote::Missing(_) => true,
        }
    }

    /// Whether its script compares the node's marker, which is told to each node apart.
    pub(super) fn is_proven(self) -> bool {
        match self {
            Kind::Acquire { .. }
            | Kind::HandOver { .. }
            | Kind::Renew
            | Kind::RenewMany
            | Kind::Heal
            | Kind::Raise
            | Kind::Attach => true,
            Kind::Release | Kind::Flush => false,
        }
    }

    /// Whether it stores a lock for its TTL, or for longer than before.
    pub(super) fn stores(self) -> bool {
        self.is_proven() && !matches!(self, Kind::Raise | Kind::Attach)
    }

    /// Whether it grants a lock, which a node that waits to be admitted must not.
    pub(super) fn grants(self) -> bool {
        matches!(self, Kind::Acquire { .. } | Kind::HandOver { .. })
    }
}

/// Why a node's vote is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Absence {
    /// It was not connected.
    Down,
    /// It may have forgotten locks that are still held.
    Quarantined,
    /// Its clock has jumped forward, so that it may have ended locks that are still held.
    Jumped,
    /// The connection ended before the answer.
    Disconnected,
    /// Too many operations are under way there.
    Busy,
    /// It did not answer in time.
    Timeout,
    /// It answered with an error.
    Error,
    /// Its marker is not the one that it was admitted by.
    Unproven,
    /// The lock's fence has come to the end of its numbers there.
    FenceEnd,
}

impl Absence {
    /// The word for it in errors.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Absence::Down => "down",
            Absence::Quarantined => "quarantined",
            Absence::Jumped => "clock jumped",
            Absence::Disconnected => "disconnected",
            Absence::Busy => "busy",
            Absence::Timeout => "timeout",
            Absence::Error => "error",
            Absence::Unproven => "not proven",
            Absence::FenceEnd => "fence at its end",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Vote {
    /// Not yet known.
    Pending,
    /// Yes; the number is the fence where one was asked for or released, or which of
    /// several locks were renewed.
    Yes(i64),
    /// Renewed: with this fence and claim (0: none is stored).
    Kept { fence: i64, claim: i64 },
    /// Of a hand-over: the lock is the taker's, but was not the giver's. The fence.
    Taken(i64),
    /// The token holds the lock: with this fence (0: none is stored), for so many ms more.
    Held { fence: i64, left: u32 },
    /// No; the number is the holder's remaining TTL in ms where it was a LOCK, or
    /// which of several locks were renewed.
    No(i64),
    /// There will be none.
    Missing(Absence),
}

/// One request to all lock nodes.
pub(super) struct Operation {
    pub(super) kind: Kind,
    pub(super) key: Key,
    pub(super) token: Token,
    /// Who gives the lock, where it is handed over, and its claim, if that is known.
    pub(super) from: Option<(Token, Option<Claim>)>,
    /// Of a release: which grant is meant.
    pub(super) whose: WhichGrant,
    /// What this takes back, unless that was granted.
    pub(super) undoes: Option<Arc<Operation>>,
    /// How long a grant that nobody knows of could last.
    pub(super) ttl: Duration,
    /// The command, encoded once for all nodes.
    pub(super) request: Vec<u8>,
    state: Mutex<VoteState>,
}

/// The votes of all nodes; as many as anybody has need no memory of their own.
pub(super) type AllVotes = SmallVec<[Vote; 5]>;

struct VoteState {
    votes: AllVotes,
    counted: Votes,
    /// Nobody waits for it any more: it is answered, or was given up.
    closed: bool,
    /// Until when its lock was granted: so long no vote of it may be taken back.
    granted: Option<Instant>,
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
        let state = VoteState {
            votes: smallvec![Vote::Pending; nodes],
            counted: Votes { nodes, ..Votes::default() },
            closed: false,
            granted: None,
            waiting: SmallVec::new(),
            listeners: 0,
        };
        let (from, whose, undoes) = (None, WhichGrant::Token, None);
        let state = Mutex::new(state);
        Operation { kind, key, token, from, whose, undoes, ttl, request, state }
    }

    /// The same, of a lock that `from` gives.
    pub(super) fn given_by(self, from: Token, claim: Option<Claim>) -> Operation {
        Operation { from: Some((from, claim)), ..self }
    }

    /// The same, unless that was granted meanwhile and still runs: its votes are then its holder's.
    pub(super) fn unless_granted(self, undoes: Arc<Operation>) -> Operation {
        Operation { undoes: Some(undoes), ..self }
    }

    /// The same, of a lock that ends by itself after that.
    pub(super) fn lasting(self, ttl: Duration) -> Operation {
        Operation { ttl, ..self }
    }

    /// A release of that grant, told by `who`. A release that nobody waits for lasts as
    /// long as a lock can.
    pub(super) fn release(
        key: Key,
        token: Token,
        whose: WhichGrant,
        who: &[u8],
        ttl: Duration,
        nodes: usize,
    ) -> Operation {
        let request = scripts::release(&key, &token, who, whose);
        Operation { whose, ..Operation::new(Kind::Release, key, token, ttl, request, nodes) }
    }

    /// Takes in what node `node` said. Its first word counts.
    pub(super) fn vote(&self, node: usize, vote: Vote) {
        debug_assert!(self.kind.admits(vote), "{:?}: {vote:?} is no vote on that", self.kind);
        let mut state = self.state.lock();
        let state = &mut *state;
        match state.votes.get_mut(node) {
            Some(slot @ Vote::Pending) => *slot = vote,
            _ => return,
        }
        match vote {
            Vote::Yes(_) | Vote::Kept { .. } | Vote::Held { .. } => state.counted.yes += 1,
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
        self.state.lock().votes.get(node) == Some(&Vote::Pending)
    }

    /// What the votes come to so far by `rule`; while that is open, `waker` is
    /// woken once it is not.
    pub(super) fn decision(&self, rule: Rule, waker: &Waker) -> Decision {
        let mut state = self.state.lock();
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
        let mut state = self.state.lock();
        state.listeners =
            if listeners < 0 || state.listeners < 0 { -1 } else { state.listeners.max(listeners) };
    }

    /// The most subscribers of the lock's channel that a node has told; none: a
    /// node has refused to tell.
    pub(super) fn listeners(&self) -> Option<u64> {
        u64::try_from(self.state.lock().listeners).ok()
    }

    /// Time is up: who has not answered is missing. Gives their numbers.
    pub(super) fn time_out(&self) -> Vec<usize> {
        let mut state = self.state.lock();
        let late: Vec<usize> =
            (0..state.votes.len()).filter(|node| state.votes[*node] == Vote::Pending).collect();
        for node in &late {
            state.votes[*node] = Vote::Missing(Absence::Timeout);
        }
        state.counted.missing += late.len();
        late
    }

    /// Nobody waits for it any more.
    pub(super) fn close(&self) {
        self.state.lock().closed = true;
    }

    /// Its lock was granted, as far as is known until then.
    pub(super) fn grant(&self, until: Instant) {
        debug_assert!(self.kind.grants(), "only what asks for a lock is granted");
        let mut state = self.state.lock();
        (state.closed, state.granted) = (true, Some(until));
    }

    /// Whether its lock was granted.
    pub(super) fn is_granted(&self) -> bool {
        self.state.lock().granted.is_some()
    }

    /// Whether its grant still runs, as far as is known. What a node carries out after it has
    /// missed all of it, it has for nobody.
    pub(super) fn is_granted_still(&self) -> bool {
        self.state.lock().granted.is_some_and(|until| until > Instant::now())
    }

    /// Whether it is answered or was given up.
    pub(super) fn is_closed(&self) -> bool {
        self.state.lock().closed
    }

    /// The votes as they are now.
    pub(super) fn votes(&self) -> AllVotes {
        self.state.lock().votes.clone()
    }

    /// What takes back all that a LOCK may have taken.
    pub(super) fn undo(&self, claim: Claim) -> Operation {
        debug_assert!(self.kind.grants(), "only what asks for a lock is undone");
        let request = scripts::undo(&self.key, &self.token, claim);
        let nodes = self.state.lock().votes.len();
        let (key, token) = (self.key.clone(), self.token.clone());
        let undo = Operation::new(Kind::Release, key, token, self.ttl, request, nodes);
        Operation { whose: WhichGrant::Claim(claim), ..undo }
    }

    /// What gives back, on a node that could not do it at its time, the lock that this was
    /// to give back or to hand over. None: it was to do nothing of that kind.
    ///
    /// Where the grant's claim is not known, the token may have been granted the lock again
    /// meanwhile: the largest fence that other nodes have released tells. `newest` is that
    /// of a grant made now, for the case that no other has.
    pub(super) fn late_release(&self, newest: u64) -> Option<Operation> {
        let (token, whose, ttl) = match (self.kind, &self.from) {
            (Kind::Release, _) => (&self.token, self.whose, self.ttl),
            (Kind::HandOver { .. }, Some((token, claim))) => {
                // How long its giver may hold it is not known here.
                (token, claim.map_or(WhichGrant::Token, WhichGrant::Claim), Duration::MAX)
            }
            _ => return None,
        };
        let state = self.state.lock();
        let released = state.votes.iter().filter_map(|vote| match vote {
            Vote::Yes(fence) if self.kind == Kind::Release => u64::try_from(*fence).ok(),
            _ => None,
        });
        let whose = match whose {
            WhichGrant::Token => WhichGrant::UpTo(released.max().unwrap_or(newest)),
            known => known,
        };
        let nodes = state.votes.len();
        drop(state);
        // No proxy's release, so that all that hear of it look.
        Some(Operation::release(self.key.clone(), token.clone(), whose, b"", ttl, nodes))
    }
}
