//! Everything there is at one instant.
//!
//! It is laid out by node, so that states which differ only in the names of nodes
//! can be made one by sorting: the checker then has a sixth to look at.

use std::hash::{Hash, Hasher};

use super::{
    link::{Link, Request},
    node::Node,
    setup::{CLIENTS, Clocks, NODES, PROXIES, Setup},
};

/// A state. No time of day stands in it, only what is left of times, so that
/// waiting comes to an end for the checker.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct State {
    pub(crate) columns: Box<[Column; NODES]>,
    pub(crate) clients: [Client; CLIENTS],
    /// The time, where the clocks show it.
    pub(crate) now: u8,
    /// What may still happen.
    pub(crate) renewals: u8,
    pub(crate) hand_overs: u8,
    pub(crate) breaks: u8,
    pub(crate) restarts: u8,
    /// The largest fence that was told.
    pub(crate) last_fence: u8,
    /// A later grant had a smaller one, or the same.
    pub(crate) fence_went_back: bool,
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
    /// Yes; the fence where one was asked for.
    Yes(u8),
    /// No.
    No,
    /// It will not come.
    Missing,
}

/// One client.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Client {
    /// LOCKs that it may still send.
    pub(crate) locks: u8,
    /// The number of its last operation.
    pub(crate) number: u8,
    /// What it was granted and has not given back.
    pub(crate) held: Option<Held>,
    /// Its command under way.
    pub(crate) asking: Option<Asking>,
}

/// A grant, as its holder was told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Held {
    /// What is left of its validity.
    pub(crate) valid: u8,
    /// What is left of its first TTL.
    pub(crate) first: u8,
    /// It was handed over.
    pub(crate) handed: bool,
}

/// A command under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Asking {
    pub(crate) what: What,
    /// Which answers it waits for.
    pub(crate) number: u8,
    pub(crate) ttl: u8,
    /// Since before the first node was asked.
    pub(crate) elapsed: u8,
    /// It was handed over.
    pub(crate) handed: bool,
}

/// What a command waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum What {
    /// The nodes' grants.
    Grant,
    /// That a quorum remembers this fence of the attempt with that number.
    Raise { fence: u8, attempt: u8 },
    /// The nodes' renewals.
    Renewal,
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
        let (valid, first, handed) =
            self.held.map_or((0, 0, 2), |held| (held.valid, held.first, u8::from(held.handed)));
        let own = [self.locks, self.number, valid, first, handed, 0, 0, 0];
        hasher.write_u64(u64::from_le_bytes(own));
        let asking = self.asking.map_or([0; 8], |asking| {
            let Asking { what, number, ttl, elapsed, handed } = asking;
            let (what, fence, attempt) = match what {
                What::Grant => (1, 0, 0),
                What::Raise { fence, attempt } => (2, fence, attempt),
                What::Renewal => (3, 0, 0),
            };
            [what, fence, attempt, number, ttl, elapsed, u8::from(handed), 0]
        });
        hasher.write_u64(u64::from_le_bytes(asking));
    }
}

impl State {
    /// Nothing has happened yet: one state for each way in which the nodes' clocks
    /// may run.
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
                    });
                }
            }
        }
        first
    }

    /// Gives one state for all that differ only in the names of nodes or in what
    /// can have no effect any more.
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
                // An answer to nobody counts only if the connection ends before it.
                link.answers.retain(|(request, _)| {
                    waits(request) || (request.leaves_traces() && !stays_up)
                });
                // What is for a token that does not hold the lock changes nothing, now
                // or later: only what comes behind it could give that token the lock.
                while let Some(first) = link.requests.first()
                    && !link.down
                    && first.is_only_for_the_holder()
                    && node.holder != Some(first.by())
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

    /// How many clients may count on the lock.
    pub(crate) fn valid_holders(&self) -> usize {
        self.held().filter(|held| held.valid > 0).count()
    }

    /// All grants that are not given back.
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
