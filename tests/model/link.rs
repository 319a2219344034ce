//! One proxy's ordered connection to one node.

use std::hash::{Hash, Hasher};

use super::setup::{Fault, Setup};

/// What a node is asked. `by` is a client, whose number is also its token;
/// `number` tells its operations apart, as the name of an attempt does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Request {
    /// To take the lock.
    Acquire { by: u8, number: u8, ttl: u8, fence: u8 },
    /// To pass it on.
    HandOver { from: u8, by: u8, number: u8, ttl: u8, fence: u8 },
    /// To give it a fresh TTL.
    Renew { by: u8, number: u8, ttl: u8 },
    /// To remember a fence; `held`: if the token holds the lock.
    Raise { by: u8, number: u8, fence: u8, held: bool },
    /// To give it back.
    Release { by: u8 },
    /// To give back what one attempt has taken.
    Undo { by: u8, number: u8 },
}

/// What it says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Answer {
    /// Done; the fence where one was asked for.
    Yes(u8),
    /// Held by another, or not by this token.
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
            let answer = match answer {
                Answer::Yes(fence) => 0x100 | u64::from(*fence),
                Answer::No => 0,
            };
            hasher.write_u64(request.packed() | answer << 48);
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
            | Request::Raise { by, number, .. } => Some((usize::from(by), number)),
            Request::Release { .. } | Request::Undo { .. } => None,
        }
    }

    /// All of it in one number.
    pub(crate) fn packed(self) -> u64 {
        u64::from_le_bytes(match self {
            Request::Acquire { by, number, ttl, fence } => [1, by, number, ttl, fence, 0, 0, 0],
            Request::HandOver { from, by, number, ttl, fence } => {
                [2, by, number, ttl, fence, from, 0, 0]
            }
            Request::Renew { by, number, ttl } => [3, by, number, ttl, 0, 0, 0, 0],
            Request::Raise { by, number, fence, held } => {
                [4, by, number, u8::from(held), fence, 0, 0, 0]
            }
            Request::Release { by } => [5, by, 0, 0, 0, 0, 0, 0],
            Request::Undo { by, number } => [6, by, number, 0, 0, 0, 0, 0],
        })
    }

    /// For whom it is.
    pub(crate) fn by(self) -> u8 {
        match self {
            Request::Acquire { by, .. }
            | Request::HandOver { by, .. }
            | Request::Renew { by, .. }
            | Request::Raise { by, .. }
            | Request::Release { by }
            | Request::Undo { by, .. } => by,
        }
    }

    /// Whether it does nothing where another token holds the lock.
    pub(crate) fn is_only_for_the_holder(self) -> bool {
        matches!(self, Request::Renew { .. } | Request::Release { .. } | Request::Undo { .. })
    }

    /// Whether the node must be told something if its answer never comes.
    pub(crate) fn leaves_traces(self) -> bool {
        !matches!(self, Request::Renew { .. } | Request::Raise { .. })
    }
}

impl Link {
    /// Sends a request. False: it is not asked, as it is down.
    pub(crate) fn send(&mut self, request: Request) -> bool {
        if self.down {
            self.remember(request, false);
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
            Request::HandOver { from, .. } => self.remember_once(Request::Release { by: from }),
            _ => {}
        }
        if let Request::Acquire { by, number, .. } | Request::HandOver { by, number, .. } = request
            && sent
        {
            self.remember_once(Request::Undo { by, number });
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

    /// The node is back, and is told first what it has missed.
    pub(crate) fn open(&mut self, setup: &Setup) {
        self.down = false;
        if setup.has(Fault::NoCleanUp) {
            self.requests.clear();
        }
    }
}
