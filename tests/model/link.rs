//! One proxy's ordered connection to one node.

use std::hash::{Hash, Hasher};

use super::setup::{Fault, Setup};

/// A request to a node. `by` is a client, and `number` tells its operations apart. Two clients may share a token, but
/// never a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Request {
    /// Take the lock. `again`: the same claim may have it.
    Acquire { by: u8, number: u8, token: u8, claim: u8, again: bool, ttl: u8, fence: u8 },
    /// Pass the lock on, from this token and claim.
    HandOver { from: u8, giver: u8, by: u8, number: u8, token: u8, claim: u8, ttl: u8, fence: u8 },
    /// Give the lock a fresh TTL.
    Renew { by: u8, number: u8, token: u8, claim: u8, ttl: u8 },
    /// Take the lock where it is free, for a grant that has it elsewhere.
    Heal { by: u8, number: u8, token: u8, claim: u8, ttl: u8, fence: u8 },
    /// Remember a fence, if that grant has the lock.
    Raise { by: u8, number: u8, token: u8, claim: u8, fence: u8 },
    /// Give the lock back.
    Release { by: u8, number: u8, token: u8, whose: Whose },
    /// Tell by which grant the token has the lock.
    Look { by: u8, number: u8, token: u8 },
    /// Give back what one attempt has taken.
    Undo { token: u8, claim: u8 },
}

/// The grant of a token that is given back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Whose {
    /// The grant with this claim, which the proxy has made itself.
    Claim(u8),
    /// The grant with this claim, which the nodes named.
    Elsewhere(u8),
    /// Whichever grant the token has.
    Token,
}

/// An answer of the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Answer {
    /// Done, with the fence or the claim if one was asked for.
    Yes(u8),
    /// Held by another, or not by this grant.
    No,
}

/// A connection. While it is down, `requests` are what the node gets first when it is back.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Link {
    pub(crate) down: bool,
    /// Requests on their way to the node, or not sent yet.
    pub(crate) requests: Vec<Request>,
    /// Answers on their way back, each with its request.
    pub(crate) answers: Vec<(Request, Answer)>,
}

impl Hash for Link {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        let lengths = self.requests.len() << 8 | self.answers.len();
        hasher.write_u64((lengths << 1 | usize::from(self.down)) as u64);
        self.requests.iter().for_each(|request| hasher.write_u64(request.packed()));
        for (request, answer) in &self.answers {
            hasher.write_u64(request.packed());
            hasher.write_u8(if let Answer::Yes(fence) = answer { 1 + fence } else { 0 });
        }
    }
}

impl Request {
    /// Returns the operation that waits for the answer, if one does.
    pub(crate) fn asked_by(self) -> Option<(usize, u8)> {
        match self {
            Request::Acquire { by, number, .. }
            | Request::HandOver { by, number, .. }
            | Request::Renew { by, number, .. }
            | Request::Heal { by, number, .. }
            | Request::Raise { by, number, .. }
            | Request::Look { by, number, .. } => Some((usize::from(by), number)),
            Request::Release { by, number, .. } if number > 0 => Some((usize::from(by), number)),
            Request::Release { .. } | Request::Undo { .. } => None,
        }
    }

    /// Packs all that tells the request from others into one number. Tokens follow from clients.
    fn packed(self) -> u64 {
        u64::from_le_bytes(match self {
            Request::Acquire { by, number, claim, again, ttl, fence, .. } => {
                [1, by, number, claim, ttl, fence, u8::from(again), 0]
            }
            Request::HandOver { from, giver, by, number, ttl, fence, .. } => {
                [2, by, number, giver, ttl, fence, from, 0]
            }
            Request::Renew { by, number, claim, ttl, .. } => [3, by, number, claim, ttl, 0, 0, 0],
            Request::Heal { by, number, claim, ttl, fence, .. } => {
                [4, by, number, claim, ttl, fence, 0, 0]
            }
            Request::Raise { by, number, claim, fence, .. } => {
                [5, by, number, claim, 0, fence, 0, 0]
            }
            Request::Release { by, number, token, whose } => {
                let (whose, what) = match whose {
                    Whose::Claim(claim) => (0, claim),
                    Whose::Elsewhere(claim) => (1, claim),
                    Whose::Token => (2, 0),
                };
                [6, by, number, token, whose, what, 0, 0]
            }
            Request::Undo { token, claim } => [7, token, claim, 0, 0, 0, 0, 0],
            Request::Look { by, number, token } => [8, by, number, token, 0, 0, 0, 0],
        })
    }

    /// Returns the token that must hold the lock for this request to do anything, now or later, if there is one: no
    /// other proxy's request gives the lock to that grant.
    pub(crate) fn is_only_for(self) -> Option<u8> {
        match self {
            Request::Renew { token, .. }
            | Request::Release { token, whose: Whose::Claim(_), .. }
            | Request::Undo { token, .. } => Some(token),
            _ => None,
        }
    }

    /// Whether the request grants the lock, which a node that waits must not.
    pub(crate) fn grants(self) -> bool {
        matches!(self, Request::Acquire { .. } | Request::HandOver { .. })
    }

    /// Whether the node must be sent something if the answer never comes.
    pub(crate) fn leaves_traces(self) -> bool {
        match self {
            Request::Acquire { again, .. } => !again,
            Request::HandOver { .. } | Request::Release { .. } | Request::Undo { .. } => true,
            Request::Renew { .. }
            | Request::Heal { .. }
            | Request::Raise { .. }
            | Request::Look { .. } => false,
        }
    }

    /// Returns the request that gives back the lock that a hand-over was to pass on.
    fn giving_back(self) -> Option<Request> {
        match self {
            Request::HandOver { from, giver, .. } => {
                let by = giver / NUMBERS;
                Some(Request::Release { by, number: 0, token: from, whose: Whose::Claim(giver) })
            }
            _ => None,
        }
    }
}

/// The bound on the numbers of a client's operations. A grant is named after the operation that took it.
pub(crate) const NUMBERS: u8 = 16;

/// Returns the claim of the grant by that operation.
pub(crate) fn claim_of(client: usize, number: u8) -> u8 {
    assert!(number < NUMBERS, "bounds are too wide");
    client as u8 * NUMBERS + number
}

impl Link {
    /// Sends a request. Returns false if the node is not asked: it is down, or waits and must not
    /// grant.
    pub(crate) fn send(&mut self, request: Request, waits: bool) -> bool {
        if self.down {
            self.remember(request, false);
        } else if waits && request.grants() {
            self.requests.extend(request.giving_back());
            return false;
        } else {
            self.requests.push(request);
        }
        !self.down
    }

    /// Notes the request to send when the node is back: `Node::clean_up_sent` and
    /// `Node::clean_up_unsent`.
    fn remember(&mut self, request: Request, sent: bool) {
        match request {
            Request::Release { .. } | Request::Undo { .. } => self.remember_once(request),
            _ => request.giving_back().into_iter().for_each(|release| self.remember_once(release)),
        }
        if let Request::Acquire { token, claim, again: false, .. }
        | Request::HandOver { token, claim, .. } = request
            && sent
        {
            self.remember_once(Request::Undo { token, claim });
        }
    }

    /// Notes a request unless it is noted already: a repetition changes nothing.
    fn remember_once(&mut self, request: Request) {
        if !self.requests.contains(&request) {
            self.requests.push(request);
        }
    }

    /// Ends the connection: each request in flight is carried out now or never, and its outcome is
    /// not known. Returns the operations whose votes will not come.
    pub(crate) fn end(&mut self) -> Vec<(usize, u8)> {
        let answered = std::mem::take(&mut self.answers).into_iter().map(|(request, _)| request);
        let in_flight: Vec<Request> = answered.chain(std::mem::take(&mut self.requests)).collect();
        self.down = true;
        for request in &in_flight {
            self.remember(*request, true);
        }
        in_flight.into_iter().filter_map(Request::asked_by).collect()
    }

    /// Opens the connection: the node first gets what it has missed.
    pub(crate) fn open(&mut self, setup: &Setup) {
        self.down = false;
        if setup.has(Fault::NoCleanUp) {
            self.requests.clear();
        }
    }
}
