//! One request to all lock nodes, and their votes as they come in.

use std::{sync::Arc, task::Waker, time::Duration};

use smallvec::{SmallVec, smallvec};

use super::{
    Claim,
    quorum::{Decision, Rule, Votes},
    scripts::{self, Dialect, Ended},
};
use crate::{
    key::{Key, Token},
    sync::Mutex,
};

/// The kind of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Take a lock. If the outcome is unknown, the operation must be undone.
    Acquire {
        /// A claim that no other grant has, so that the undo ends no other.
        claim: Claim,
        /// Whether the lock may be held already: by the same claim, or by the token if it is taken over. If so, an
        /// unknown outcome is not undone, as the holder may still count on the lock.
        again: bool,
    },
    /// Pass a lock on: give it back and take it for another token.
    HandOver {
        /// The taker's claim.
        claim: Claim,
    },
    /// Give a lock back, or the part of it that one attempt has taken.
    Release,
    /// Give a lock a fresh TTL.
    Renew,
    /// Give several locks a fresh TTL.
    RenewMany,
    /// Put a lock back where it has been lost.
    Heal,
    /// Store a larger fence.
    Raise,
    /// Tell whether a token holds a lock.
    Attach,
    /// Tell which token holds a lock.
    Look,
    /// Do nothing: the answer shows that all earlier operations are done.
    Flush,
}

impl Kind {
    /// Whether a lock node can give this vote on an operation of this kind.
    fn admits(self, vote: Vote) -> bool {
        match vote {
            Vote::Pending => false,
            Vote::Kept { .. } => self == Kind::Renew,
            Vote::Taken(_) => matches!(self, Kind::HandOver { .. }),
            Vote::Held { .. } => self == Kind::Attach,
            Vote::Found { .. } => self == Kind::Look,
            Vote::Same { .. } => matches!(self, Kind::Acquire { .. }),
            Vote::Yes(_) => !matches!(self, Kind::Renew | Kind::Attach | Kind::Look),
            Vote::No(_) | Vote::Missing(_) => true,
        }
    }

    /// Whether the script compares the node's marker, which is sent to each node separately.
    pub(super) fn is_proven(self) -> bool {
        match self {
            Kind::Acquire { .. }
            | Kind::HandOver { .. }
            | Kind::Renew
            | Kind::RenewMany
            | Kind::Heal
            | Kind::Raise
            | Kind::Attach
            | Kind::Look => true,
            Kind::Release | Kind::Flush => false,
        }
    }

    /// Whether the operation stores a lock for its TTL, or for longer than before.
    pub(super) fn stores(self) -> bool {
        self.is_proven() && !matches!(self, Kind::Raise | Kind::Attach | Kind::Look)
    }

    /// Whether a vote may say that no other client holds the lock: a grant, or that it is free. Such a vote counts
    /// only from a node that is known to have neither forgotten a lock nor ended one too early.
    pub(super) fn may_say_free(self) -> bool {
        self.grants() || self == Kind::Look
    }

    /// Whether this vote says that no other client holds the lock.
    pub(super) fn says_free(self, vote: Vote) -> bool {
        match vote {
            Vote::Yes(_) | Vote::Taken(_) => self.grants(),
            Vote::No(_) => self == Kind::Look,
            _ => false,
        }
    }

    /// Whether the operation grants a lock, which a node that waits to be admitted must not.
    pub(super) fn grants(self) -> bool {
        matches!(self, Kind::Acquire { .. } | Kind::HandOver { .. })
    }
}

#[cfg(test)]
thread_local! {
    /// A fault that tests plant: what a node answers late is undone there though the lock was granted.
    pub(crate) static UNDONE: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Why a node's vote is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Absence {
    /// The node was not connected.
    Down,
    /// The node may have forgotten locks that are still held.
    Quarantined,
    /// The node's clock has jumped forward, so that it may have ended locks that are still held.
    Jumped,
    /// An operator has paused the node: it is asked for no new locks.
    Paused,
    /// The connection ended before the answer.
    Disconnected,
    /// Too many operations are under way there.
    Busy,
    /// The node did not answer in time.
    Timeout,
    /// The node answered with an error.
    Error,
    /// The node's marker is not the one by which it was admitted.
    Unproven,
    /// The lock's fence has come to the end of its numbers on the node.
    FenceEnd,
    /// No majority of the node's Sentinels, or of its cluster's masters, has named it lately.
    Unconfirmed,
    /// The lock's slot is on its way to another shard, or there already.
    Moved,
    /// The cluster does not serve the lock's slot now.
    ClusterDown,
}

impl Absence {
    /// Returns the word that clients read in a NOQUORUM error.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Absence::Down => "down",
            Absence::Quarantined => "quarantined",
            Absence::Jumped => "clock jumped",
            Absence::Paused => "paused",
            Absence::Disconnected => "disconnected",
            Absence::Busy => "busy",
            Absence::Timeout => "timeout",
            Absence::Error => "error",
            Absence::Unproven => "not proven",
            Absence::FenceEnd => "fence at its end",
            Absence::Unconfirmed => "not confirmed",
            Absence::Moved => "slot moves",
            Absence::ClusterDown => "no shard serves its slot",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Vote {
    /// The node has not voted yet.
    Pending,
    /// Yes. The number is the fence if one was asked for; for several locks, a bit for each renewed
    /// one.
    Yes(i64),
    /// Renewed, with this fence and claim (0: the node stores none).
    Kept { fence: i64, claim: i64 },
    /// Hand-over only: the lock went to the taker, but not from the giver. The number is the fence.
    Taken(i64),
    /// The token holds the lock, with this fence (0: the node stores none), for `left` ms more.
    Held { fence: i64, left: u32 },
    /// The lock is held by the grant with this claim (0: the node stores none), for `left` ms more (-1: without a
    /// TTL). The token is kept separately: [`Operation::holders`].
    Found { left: i64, claim: i64 },
    /// No. The number is the holder's remaining TTL in ms if it was a LOCK; for several locks, a
    /// bit for each renewed one.
    No(i64),
    /// LOCK only: no. The asker's own token has the lock by another grant, with this claim (1: the node stores none),
    /// for `left` ms more (-1: without a TTL).
    Same { left: i64, claim: i64 },
    /// The node's vote will not come.
    Missing(Absence),
}

/// One request to all lock nodes.
pub(super) struct Operation {
    pub(super) kind: Kind,
    pub(super) key: Key,
    pub(super) token: Token,
    /// The giver's token and claim, of a lock that is handed over.
    pub(super) from: Option<(Token, Claim)>,
    /// Release only: the grant that is meant.
    pub(super) ended: Option<Ended>,
    /// The operation that this one undoes, unless that was granted.
    pub(super) undoes: Option<Arc<Operation>>,
    /// [`SharedMembers::learned`] when the operation was made.
    ///
    /// [`SharedMembers::learned`]: super::members::shared_members::SharedMembers::learned
    pub(super) learned: u64,
    /// LOCK only: whether the client waits in line.
    in_line: bool,
    /// How keys are named in the request.
    dialect: Dialect,
    /// Renewal only: whether this proxy knows the grant to be valid.
    is_vouched: bool,
    /// The TTL that the operation stores; of a release, the longest time for which a node that misses it may keep the
    /// lock.
    pub(super) ttl: Duration,
    /// The command, encoded once for all nodes.
    pub(super) request: Vec<u8>,
    state: Mutex<VoteState>,
}

/// The votes of all nodes, without an allocation for up to five of them.
pub(super) type AllVotes = SmallVec<[Vote; 5]>;

/// What a node says of a lock whose holder it names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NamedLock {
    /// The remaining TTL in ms (-1: none).
    pub(super) left: i64,
    /// The grant's claim (0: the node stores none).
    pub(super) claim: i64,
}

struct VoteState {
    votes: AllVotes,
    counted: Votes,
    /// Whether the operation is answered or was given up: its votes are waited for no more.
    closed: bool,
    /// Whether its lock was granted. Then only its holder ends it.
    granted: bool,
    /// Tasks that wait for the votes to decide, with their rules. A hand-over has two: the giver's
    /// and the taker's.
    waiting: SmallVec<[(Rule, Waker); 1]>,
    /// The largest number of subscribers of the lock's channel in a node's answer. Below 0: a node could not count
    /// them. Of a LOCK: 1 if a node has refused it as there are readers.
    listeners: i64,
    /// Hand-over only: the nodes, a bit for each, that passed the lock on after they counted as missing.
    late: u64,
    /// Kind::Look only: the holders that nodes have named. An empty token is a holder without one.
    named: Vec<(usize, Token)>,
}

impl VoteState {
    /// Returns the nodes whose votes name a holder, with its token. A node that named one too late has no such vote.
    fn holders(&self) -> impl Iterator<Item = (usize, &Token, NamedLock)> {
        self.named.iter().filter_map(|(node, token)| match self.votes.get(*node) {
            Some(Vote::Found { left, claim }) => {
                Some((*node, token, NamedLock { left: *left, claim: *claim }))
            }
            _ => None,
        })
    }

    /// Returns the number of nodes that name the same holder as `node`, itself included.
    fn alike(&self, node: usize) -> usize {
        let own = self.holders().find(|(named_by, ..)| *named_by == node);
        self.holders().filter(|(_, token, _)| own.is_some_and(|(_, own, _)| own == *token)).count()
    }
}

impl Operation {
    /// Makes a request to `nodes` nodes.
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
            granted: false,
            waiting: SmallVec::new(),
            listeners: 0,
            late: 0,
            named: Vec::new(),
        };
        let (from, ended, undoes, learned, is_vouched) = (None, None, None, 0, false);
        let state = Mutex::new(state);
        Operation {
            kind,
            key,
            token,
            from,
            ended,
            undoes,
            learned,
            in_line: false,
            dialect: Dialect::default(),
            is_vouched,
            ttl,
            request,
            state,
        }
    }

    /// Marks the operation as a hand-over of a lock that `from` gives.
    pub(super) fn given_by(self, from: Token, claim: Claim) -> Operation {
        Operation { from: Some((from, claim)), ..self }
    }

    /// Marks the operation as the undo of `undoes`, to be left out if that was granted meanwhile: the votes then belong
    /// to its holder.
    pub(super) fn unless_granted(self, undoes: Arc<Operation>) -> Operation {
        Operation { undoes: Some(undoes), ..self }
    }

    /// Whether the operation would undo what was granted.
    pub(super) fn undoes_grant(&self) -> bool {
        #[cfg(test)]
        if UNDONE.get() {
            return false;
        }
        self.undoes.as_ref().is_some_and(|undone| undone.is_granted())
    }

    /// Notes how keys are named in the request.
    pub(super) fn in_dialect(self, dialect: Dialect) -> Operation {
        Operation { dialect, ..self }
    }

    /// Notes how many deployments the proxy had learned when the operation was made.
    pub(super) fn made_at(self, learned: u64) -> Operation {
        Operation { learned, ..self }
    }

    /// Notes that this proxy knows the grant to be still valid.
    pub(super) fn vouched(self) -> Operation {
        Operation { is_vouched: true, ..self }
    }

    /// Whether the only lock node may be asked this while it waits. What it has may be old: a lock that has run out
    /// elsewhere, or was released. So it confirms no lock that this proxy does not know to be held.
    pub(super) fn may_ask_alone(&self) -> bool {
        match self.kind {
            Kind::Acquire { .. } | Kind::HandOver { .. } | Kind::Attach | Kind::Raise => false,
            Kind::Renew => self.is_vouched,
            // The watchdog renews only valid locks.
            Kind::RenewMany | Kind::Heal | Kind::Look | Kind::Release | Kind::Flush => true,
        }
    }

    /// Notes that the lock ends by itself after `ttl`.
    pub(super) fn lasting(self, ttl: Duration) -> Operation {
        Operation { ttl, ..self }
    }

    /// Makes a release of that grant, published under the name `who`. `ttl`: the longest time for which a node that
    /// misses it may keep the lock.
    pub(super) fn release(
        dialect: Dialect,
        key: Key,
        token: Token,
        ended: Ended,
        who: &[u8],
        ttl: Duration,
        nodes: usize,
    ) -> Operation {
        let request = match key.is_of_reader() {
            true => scripts::shared::release(dialect, &key, &token, who, ended),
            false => scripts::release(dialect, &key, &token, who, ended),
        };
        let release = Operation::new(Kind::Release, key, token, ttl, request, nodes);
        Operation { ended: Some(ended), dialect, ..release }
    }

    /// Counts the vote of node `node`. Only the first vote of a node counts, and one that comes in time.
    pub(super) fn vote(&self, node: usize, vote: Vote) {
        debug_assert!(self.kind.admits(vote), "{:?}: {vote:?} is no vote on that", self.kind);
        let mut state = self.state.lock();
        let state = &mut *state;
        match state.votes.get_mut(node) {
            Some(slot @ Vote::Pending) => *slot = vote,
            Some(Vote::Missing(_))
                if matches!((self.kind, vote), (Kind::HandOver { .. }, Vote::Yes(_))) =>
            {
                state.late |=
                    1_u64.checked_shl(u32::try_from(node).unwrap_or(u32::MAX)).unwrap_or(0);
                return;
            }
            _ => return,
        }
        match vote {
            Vote::Yes(_) | Vote::Kept { .. } | Vote::Held { .. } => state.counted.yes += 1,
            Vote::Taken(_) => state.counted.taken += 1,
            Vote::No(_) | Vote::Same { .. } => state.counted.no += 1,
            Vote::Found { .. } => {
                let alike = state.alike(node);
                state.counted.named(alike);
            }
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

    /// Whether node `node` has neither voted nor been given up.
    pub(super) fn is_pending(&self, node: usize) -> bool {
        self.state.lock().votes.get(node) == Some(&Vote::Pending)
    }

    /// Whether node `node` may still be asked, though an epoch has begun since the operation was
    /// made. `seatings` tell when the seats last changed ([`Told::seatings`]).
    ///
    /// Votes from before the epoch count together with those to come only if the nodes that gave them have kept their
    /// seats: otherwise the node that takes such a seat has no part in the operation's quorum. A heal or a closed
    /// operation is not sent any more, as the lock may have been released meanwhile.
    ///
    /// [`Told::seatings`]: super::members::standing::Told::seatings
    pub(super) fn is_wanted(&self, node: usize, seatings: &[u64]) -> bool {
        let state = self.state.lock();
        // A refusal takes part in no quorum, unless it says that the lock is free.
        let counts = |vote: &Vote| match vote {
            Vote::Pending | Vote::Missing(_) | Vote::Same { .. } => false,
            Vote::No(_) => self.kind.says_free(*vote),
            _ => true,
        };
        let mut votes = state.votes.iter().zip(seatings);
        self.kind != Kind::Heal
            && !state.closed
            && state.votes.get(node) == Some(&Vote::Pending)
            && votes.all(|(vote, seated)| !counts(vote) || *seated <= self.learned)
    }

    /// Decides by `rule` on the votes so far. While that is open, `waker` is kept and woken once it
    /// is decided.
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

    /// Notes how many subscribers of the lock's channel a node has counted.
    pub(super) fn heard_of_listeners(&self, listeners: i64) {
        let mut state = self.state.lock();
        state.listeners =
            if listeners < 0 || state.listeners < 0 { -1 } else { state.listeners.max(listeners) };
    }

    /// Returns the largest number of subscribers of the lock's channel that a node has counted. Returns `None` if a
    /// node could not count them.
    pub(super) fn listeners(&self) -> Option<u64> {
        u64::try_from(self.state.lock().listeners).ok()
    }

    /// Whether the client waits in line, and a node has refused it as there are readers.
    fn met_readers(&self) -> bool {
        self.in_line && self.state.lock().listeners > 0
    }

    /// Marks the operation as the request of a client that waits in line.
    pub(super) fn in_line(self) -> Operation {
        Operation { in_line: true, ..self }
    }

    /// Notes the holder that node `node` is about to vote for.
    pub(super) fn heard_of_holder(&self, node: usize, token: &[u8]) {
        debug_assert_eq!(self.kind, Kind::Look, "no other answer names a holder");
        let mut state = self.state.lock();
        let known = state.named.iter().find(|(_, known)| **known == *token);
        let token = known.map_or_else(|| token.into(), |(_, known)| known.clone());
        state.named.push((node, token));
    }

    /// Returns the holders that nodes have voted for, one for each node. An empty token is a holder without one.
    pub(super) fn holders(&self) -> Vec<(Token, NamedLock)> {
        self.state.lock().holders().map(|(_, token, lock)| (token.clone(), lock)).collect()
    }

    /// Whether node `node` had the giver's grant when it was asked to hand the lock over; `None`: that is not known.
    pub(super) fn had_given(&self, node: usize) -> Option<bool> {
        let state = self.state.lock();
        let is_late = |node| state.late.checked_shr(node).is_some_and(|late| late & 1 == 1);
        match state.votes.get(node)? {
            Vote::Yes(_) => Some(true),
            Vote::No(_) | Vote::Taken(_) => Some(false),
            _ => u32::try_from(node).is_ok_and(is_late).then_some(true),
        }
    }

    /// Counts every node that has not answered as missing. Returns their numbers.
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

    /// Whether no node has answered, and a quorum still may.
    pub(super) fn is_unheard(&self) -> bool {
        self.state.lock().counted.are_unheard()
    }

    /// Notes that the operation is answered or was given up.
    pub(super) fn close(&self) {
        self.state.lock().closed = true;
    }

    /// Notes that the lock was granted.
    pub(super) fn grant(&self) {
        debug_assert!(self.kind.grants(), "only what asks for a lock is granted");
        let mut state = self.state.lock();
        (state.closed, state.granted) = (true, true);
    }

    /// Whether its lock was granted.
    pub(super) fn is_granted(&self) -> bool {
        self.state.lock().granted
    }

    /// Whether the operation is answered or was given up.
    pub(super) fn is_closed(&self) -> bool {
        self.state.lock().closed
    }

    /// Returns the votes as they are now.
    pub(super) fn votes(&self) -> AllVotes {
        self.state.lock().votes.clone()
    }

    /// Makes the operation that takes back all that a LOCK may have taken.
    pub(super) fn undo(&self, claim: Claim) -> Operation {
        debug_assert!(self.kind.grants(), "only what asks for a lock is undone");
        let (dialect, ended) = (self.dialect, Ended { claim, barred: None });
        let request = match self.key.is_of_reader() {
            true => scripts::shared::release(dialect, &self.key, &self.token, b"", ended),
            false => scripts::undo(dialect, &self.key, &self.token, claim, self.met_readers()),
        };
        let nodes = self.state.lock().votes.len();
        let (key, token) = (self.key.clone(), self.token.clone());
        let undo = Operation::new(Kind::Release, key, token, self.ttl, request, nodes);
        Operation { ended: Some(ended), dialect, ..undo }
    }

    /// Returns for how long what this operation gives back may be on a node. The rest of the TTL of whoever hands a
    /// lock over is not known: the operation's own TTL is that of the next holder.
    pub(super) fn gives_back_for(&self) -> Duration {
        match self.kind {
            Kind::HandOver { .. } => Duration::MAX,
            _ => self.ttl,
        }
    }

    /// Makes the operation that gives back, on a node that could not do it in time, the lock that
    /// this one was to give back or hand over. Returns `None` for other kinds.
    pub(super) fn late_release(&self) -> Option<Operation> {
        let (token, ended, ttl) = match (self.ended, &self.from) {
            (Some(ended), _) => (&self.token, ended, self.ttl),
            (None, Some((token, claim))) => {
                (token, Ended { claim: *claim, barred: None }, self.gives_back_for())
            }
            (None, None) => return None,
        };
        let nodes = self.state.lock().votes.len();
        // The release names no proxy, so that every proxy that hears of it looks.
        let (key, token) = (self.key.clone(), token.clone());
        Some(Operation::release(self.dialect, key, token, ended, b"", ttl, nodes))
    }
}
