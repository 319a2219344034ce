//! One proxy's ordered connection to one node.

use std::hash::{Hash, Hasher};

use super::setup::{Fault, Setup};

/// What a node is asked. `by` is a client, `number` tells its operations apart; the
/// token may be another client's too, the claim never is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Request {
    /// To take the lock. `again`: the same claim may have it.
    Acquire { by: u8, number: u8, token: u8, claim: u8, again: bool, ttl: u8, fence: u8 },
    /// To pass it on, from this token and claim.
    HandOver { from: u8, giver: u8, by: u8, number: u8, token: u8, claim: u8, ttl: u8, fence: u8 },
    /// To give it a fresh TTL.
    Renew { by: u8, number: u8, token: u8, claim: u8, ttl: u8 },
    /// To take it where it is free, for a grant that has it elsewhere.
    Heal { by: u8, number: u8, token: u8, claim: u8, ttl: u8, fence: u8 },
    /// To remember a fence, if that grant has the lock.
    Raise { by: u8, number: u8, token: u8, claim: u8, fence: u8 },
    /// To give it back.
    Release { by: u8, token: u8, whose: Whose },
    /// To give back what one attempt has taken.
    Undo { token: u8, claim: u8 },
}

/// Which grant of a token is given back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Whose {
    /// The one with this claim.
    Claim(u8),
    /// Whichever it is.
    Token,
    /// The same, unless its fence is larger.
    UpTo(u8),
}

/// What it says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Answer {
    /// Done; the fence where one was asked for.
    Yes(u8),
    /// Held by another, or not by this grant.
    No,
}

/// The connection. While it is down, `requests` are what the node is told first
/// when it is back.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Link {
    pub(crate) down: bool,
    /// On their way to the node, or not sent yet.
    pub(crate) requests: Vec<Request>,
    /// On their way back, with what they answer.
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
    /// Whose operation waits for the answer.
    pub(crate) fn asked_by(self) -> Option<(usize, u8)> {
        match self {
            Request::Acquire { by, number, .. }
            | Request::HandOver { by, number, .. }
            | Request::Renew { by, number, .. }
            | Request::Heal { by, number, .. }
            | Request::Raise { by, number, .. } => Some((usize::from(by), number)),
            Request::Release { .. } | Request::Undo { .. } => None,
        }
    }

    /// What tells it from all others, in one number. Tokens follow from clients.
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
            Request::Release { by, token, whose } => {
                let (whose, what) = match whose {
                    Whose::Claim(claim) => (0, claim),
                    Whose::Token => (1, 0),
                    Whose::UpTo(fence) => (2, fence),
                };
                [6, by, token, whose, what, 0, 0, 0]
            }
            Request::Undo { token, claim } => [7, token, claim, 0, 0, 0, 0, 0],
        })
    }

    /// The token that must hold the lock for this to do anything, where there is one.
    pub(crate) fn is_only_for(self) -> Option<u8> {
        match self {
            Request::Renew { token, .. }
            | Request::Release { token, .. }
            | Request::Undo { token, .. } => Some(token),
            _ => None,
        }
    }

    /// Whether it grants the lock, which a node that waits must not.
    pub(crate) fn grants(self) -> bool {
        matches!(self, Request::Acquire { .. } | Request::HandOver { .. })
    }

    /// Whether the node must be told something if its answer never comes.
    pub(crate) fn leaves_traces(self) -> bool {
        match self {
            Request::Acquire { again, .. } => !again,
            Request::HandOver { .. } | Request::Release { .. } | Request::Undo { .. } => true,
            Request::Renew { .. } | Request::Heal { .. } | Request::Raise { .. } => false,
        }
    }

    /// What gives back the lock that a hand-over was to give.
    fn giving_back(self) -> Option<Request> {
        match self {
            Request::HandOver { from, giver, .. } => {
                let by = giver / NUMBERS;
                Some(Request::Release { by, token: from, whose: Whose::Claim(giver) })
            }
            _ => None,
        }
    }
}

/// Operations of a client at the most; a grant is named after the one that took it.
pub(crate) const NUMBERS: u8 = 16;

/// What the nodes know the grant of that operation by.
pub(crate) fn claim_of(client: usize, number: u8) -> u8 {
    assert!(number < NUMBERS, "bounds are too wide");
    client as u8 * NUMBERS + number
}

impl Link {
    /// Sends a request. False: it is not asked, as it is down, or waits and must not grant.
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

    /// Notes what is to be told to the node when it is back: `Node::clean_up_sent`
    /// and `Node::clean_up_unsent`.
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

    /// To be told the same twice in a row changes nothing.
    fn remember_once(&mut self, request: Request) {
        if !self.requests.contains(&request) {
            self.requests.push(request);
        }
    }

    /// The connection ends: what was in flight is carried out now or never, and its
    /// outcome is not known. Gives whose votes will not come.
    pub(crate) fn end(&mut self) -> Vec<(usize, u8)> {
        let answered = std::mem::take(&mut self.answers).into_iter().map(|(request, _)| request);
        let in_flight: Vec<Request> = answered.chain(std::mem::take(&mut self.requests)).collect();
        self.down = true;
        for request in &in_flight {
            self.remember(*request, true);
        }
        in_flight.into_iter().filter_map(Request::asked_by).collect()
    }

    /// The node is back, and is told first what it has missed: no more than what was granted
    /// with the fences that others have released, or that could be proposed now.
    pub(crate) fn open(&mut self, released: [u8; 3], proposal: u8, setup: &Setup) {
        self.down = false;
        if setup.has(Fault::NoCleanUp) {
            self.requests.clear();
        }
        if setup.has(Fault::CleanUpWithoutBound) {
            return;
        }
        for request in &mut self.requests {
            if let Request::Release { by, whose: whose @ Whose::Token, .. } = request {
                let released = released[usize::from(*by)];
                *whose = Whose::UpTo(if released > 0 { released } else { proposal });
            }
        }
    }
}
