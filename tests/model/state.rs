//! A state of the model.
//!
//! States are laid out by node. Sorting the nodes makes one state of those that differ only in node names, which
//! leaves a sixth for the checker.

use std::hash::{Hash, Hasher};

use super::{
    link::{Link, Request},
    node::Node,
    setup::{CLIENTS, Clocks, NODES, PROXIES, Setup},
};

/// A state. It has no time of day, only remaining times, so that waiting alone does not make new states for ever.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct State {
    pub(crate) columns: Box<[Column; NODES]>,
    pub(crate) clients: [Client; CLIENTS],
    /// The time, where the clocks show it.
    pub(crate) now: u8,
    /// How many of each event may still happen.
    pub(crate) renewals: u8,
    pub(crate) hand_overs: u8,
    pub(crate) breaks: u8,
    pub(crate) restarts: u8,
    /// The largest fence that was told.
    pub(crate) last_fence: u8,
    /// Whether a later grant had a smaller fence, or an equal one.
    pub(crate) fence_went_back: bool,
    /// UNLOCKs that may still come by token alone.
    pub(crate) by_token: u8,
    /// The claim that such an UNLOCK is releasing, or may still release after it was given up.
    pub(crate) unlocking: Option<u8>,
    /// Whether another token had the lock when that UNLOCK was sent. Such an UNLOCK ends nothing.
    pub(crate) in_vain: bool,
    /// Whether a lock that should have been kept was lost.
    pub(crate) lost: bool,
}

/// One node and what concerns it: each proxy's connection to it, and its vote on
/// each client's operation.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Column {
    pub(crate) node: Node,
    pub(crate) links: [Link; PROXIES],
    pub(crate) votes: [Vote; CLIENTS],
}

/// One node's vote.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Vote {
    /// Nothing is asked.
    #[default]
    None,
    /// Not yet known.
    Pending,
    /// Yes, with the fence or the claim if one was asked for.
    Yes(u8),
    No,
    /// The vote will not come.
    Missing,
}

/// One client.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Client {
    /// LOCKs that it may still send.
    pub(crate) locks: u8,
    pub(crate) number: u8,
    /// The grant that it has not given back.
    pub(crate) held: Option<Held>,
    /// The command under way.
    pub(crate) asking: Option<Asking>,
}

/// A grant, as its holder was told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Held {
    /// The rest of its validity.
    pub(crate) valid: u8,
    /// The rest with nothing set aside for drift: for so long its proxy knows the grant.
    pub(crate) known: u8,
    /// The grant's name on the nodes.
    pub(crate) claim: u8,
    pub(crate) fence: u8,
    /// The rest of its first TTL.
    pub(crate) first: u8,
    /// Whether the lock was handed over.
    pub(crate) handed: bool,
    /// Whether a node that had lost the lock has it back.
    pub(crate) healed: bool,
    /// Whether an UNLOCK through another proxy has ended it, which its own proxy does not know.
    pub(crate) unlocked: bool,
}

/// A command under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Asking {
    pub(crate) what: What,
    /// The number of the operation whose answers it waits for.
    pub(crate) number: u8,
    /// The claim of the grant that is asked for, or renewed.
    pub(crate) claim: u8,
    /// Whether the same claim may have the lock already.
    pub(crate) again: bool,
    pub(crate) ttl: u8,
    /// The time since before the first node was asked.
    pub(crate) elapsed: u8,
    /// Whether the lock is handed over.
    pub(crate) handed: bool,
    /// Whether an UNLOCK has meanwhile ended what is asked for.
    pub(crate) unlocked: bool,
}

/// The event that a command waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum What {
    /// The nodes' grants.
    Grant,
    /// A quorum that remembers this fence of the grant.
    Raise { fence: u8 },
    /// The nodes' renewals.
    Renewal,
    /// The claim by which a token has the lock, which is released next.
    Look,
    /// A quorum that has released the grant with this claim.
    Release { claim: u8 },
}

// Hashing takes most of the checker's time, so it is done in few words.

impl Hash for Column {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        hasher.write_u64(self.node.packed());
        let votes = self.votes.iter().fold(0, |all, vote| {
            let vote = match vote {
                Vote::None => 0,
                Vote::Pending => 1,
                Vote::No => 2,
                Vote::Missing => 3,
                Vote::Yes(fence) => 0x100 | u64::from(*fence),
            };
            all << 16 | vote
        });
        hasher.write_u64(votes);
        self.links[0].hash(hasher);
        self.links[1].hash(hasher);
    }
}

impl Hash for Client {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        hasher.write_u16(u16::from(self.locks) << 8 | u16::from(self.number));
        let held = self.held.map_or([0; 8], |held| {
            let Held { valid, known, claim, fence, first, handed, healed, unlocked } = held;
            let flags = u8::from(handed) << 1 | u8::from(healed) << 3 | u8::from(unlocked) << 4;
            let flags = 1 | flags;
            [valid, known, claim, fence, first, flags, 0, 0]
        });
        hasher.write_u64(u64::from_le_bytes(held));
        let asking = self.asking.map_or([0; 8], |asking| {
            let Asking { what, number, claim, again, ttl, elapsed, handed, unlocked } = asking;
            let (what, fence) = match what {
                What::Grant => (1, 0),
                What::Raise { fence } => (2, fence),
                What::Renewal => (3, 0),
                What::Look => (4, 0),
                What::Release { claim } => (5, claim),
            };
            let flags = u8::from(unlocked) << 2 | u8::from(handed) << 1 | u8::from(again);
            [what, fence, claim, number, ttl, elapsed, flags, 0]
        });
        hasher.write_u64(u64::from_le_bytes(asking));
    }
}

impl State {
    /// Returns the states in which nothing has happened yet: one for each way in which the nodes' clocks may run.
    pub(crate) fn first(setup: &Setup) -> Vec<State> {
        let mut first = Vec::new();
        for a in 0..=setup.fastest {
            for b in a..=setup.fastest {
                for c in b..=setup.fastest {
                    let column = |fast| Column {
                        node: Node { fast, ..Node::default() },
                        ..Column::default()
                    };
                    first.push(State {
                        columns: Box::new([a, b, c].map(column)),
                        clients: setup.locks.map(|locks| Client { locks, ..Client::default() }),
                        now: u8::from(matches!(setup.clocks, Clocks::Right(_))),
                        renewals: setup.renewals,
                        hand_overs: setup.hand_overs,
                        breaks: setup.breaks,
                        restarts: setup.restarts,
                        last_fence: 0,
                        fence_went_back: false,
                        by_token: setup.unlocks_by_token,
                        unlocking: None,
                        in_vain: false,
                        lost: false,
                    });
                }
            }
        }
        first
    }

    /// Maps all states that differ only in node names, or in what can have no effect any more, to one.
    pub(crate) fn in_order(mut self, setup: &Setup) -> State {
        let State { columns, clients, breaks, restarts, .. } = &mut self;
        let stays_up = *breaks == 0 && *restarts == 0;
        let waits = |request: &Request| {
            request.asked_by().is_some_and(|(by, number)| {
                clients[by].asking.is_some_and(|asking| asking.number == number)
            })
        };
        for Column { node, links, .. } in columns.iter_mut() {
            for link in links {
                // An answer that no operation waits for counts only if the connection ends before it.
                link.answers.retain(|(request, _)| {
                    let is_release = matches!(request, Request::Release { .. });
                    let counts = request.leaves_traces() && !is_release;
                    waits(request) || counts && !stays_up
                });
                // A request for a grant that does not have the lock changes nothing, now or later:
                // only a request behind it could give that grant the lock.
                while let Some(first) = link.requests.first()
                    && !link.down
                    && first.is_only_for().is_some_and(|token| node.holder != Some(token))
                    && !waits(first)
                    && !setup.ignores_holders()
                {
                    link.requests.remove(0);
                }
            }
        }
        columns.sort_unstable();
        self
    }

    /// Returns the number of clients that may count on the lock.
    pub(crate) fn valid_holders(&self) -> usize {
        self.held().filter(|held| held.valid > 0).count()
    }

    /// Returns all grants that were not given back.
    pub(crate) fn held(&self) -> impl Iterator<Item = &Held> {
        self.clients.iter().filter_map(|client| client.held.as_ref())
    }

    /// Whether everything asked for is done, and every node can be reached.
    pub(crate) fn is_quiet(&self) -> bool {
        let mut links = self.columns.iter().flat_map(|column| &column.links);
        self.clients.iter().all(|client| client.asking.is_none())
            && links.all(|link| !link.down && link.requests.is_empty() && link.answers.is_empty())
    }
}
