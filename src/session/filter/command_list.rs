//! Adds our commands to COMMAND, COMMAND INFO, DOCS and LIST without names: the data node's list passes as it is,
//! with a larger count at its head and our entries behind its last one. The reply to COMMAND COUNT is only a count.

use super::fed::{Fed, Heard};
use crate::{
    command::docs::{self, OURS},
    resp::{encode, name::Listing, number},
};

/// The longest head of a list: type, digits, line end.
const HEAD_LIMIT: usize = 1 + number::MAX_DIGITS + 2;

/// A list on its way to the client.
#[derive(Debug)]
pub(in crate::session) struct Addition {
    listing: Listing,
    /// The head as far as it has arrived; empty once it has passed.
    head: Vec<u8>,
    /// The head has passed, with a larger count.
    promised: bool,
}

impl Addition {
    /// Begins with a reply whose first byte is `first`. Returns `None` if the reply is not a list but an error or
    /// `+QUEUED`.
    pub(super) fn begin(listing: Listing, first: u8) -> Option<Addition> {
        let is_answer = match listing {
            Listing::Info => first == b'*',
            Listing::Docs => matches!(first, b'*' | b'%'),
            Listing::List => matches!(first, b'*' | b'~'),
            Listing::Count => first == b':',
        };
        is_answer.then(|| Addition { listing, head: Vec::new(), promised: false })
    }

    /// Returns the bytes of the head that were kept back.
    pub(super) fn rest(self) -> Vec<u8> {
        self.head
    }

    /// Returns the head with our entries counted. Returns `None` if the head has no such count.
    fn increased(&self) -> Option<Vec<u8>> {
        let (kind, rest) = self.head.split_first()?;
        let count = usize::try_from(number::integer(rest.strip_suffix(b"\r\n")?)?).ok()?;
        let mut out = Vec::new();
        match (self.listing, kind) {
            (Listing::Info, _) => encode::array(&mut out, count.checked_add(OURS.len())?),
            (Listing::Docs, b'%') => encode::map(&mut out, count.checked_add(OURS.len())?, true),
            // In RESP2 the count is of keys and values together.
            (Listing::Docs, _) => encode::array(&mut out, count.checked_add(2 * OURS.len())?),
            (Listing::List, kind) => {
                encode::array(&mut out, count.checked_add(docs::names().count())?);
                out[0] = *kind;
            }
            (Listing::Count, _) => {
                encode::integer(&mut out, i64::try_from(count.checked_add(OURS.len())?).ok()?);
            }
        }
        Some(out)
    }
}

impl Addition {
    /// Filters a piece of the list. `ended`: the list ends with it. `whole`: the list is complete then.
    pub(super) fn feed(&mut self, piece: &[u8], ended: bool, whole: bool, resp3: bool) -> Fed {
        let mut fed = Fed::default();
        if !self.promised {
            let line = memchr::memchr(b'\n', piece).map_or(piece.len(), |end| end + 1);
            let line = line.min(HEAD_LIMIT.saturating_sub(self.head.len()));
            self.head.extend_from_slice(&piece[..line]);
            fed.taken = line;
            if self.head.ends_with(b"\n") || self.head.len() >= HEAD_LIMIT || ended {
                let increased = self.increased();
                let head = std::mem::take(&mut self.head);
                self.promised = increased.is_some();
                fed.instead = increased.unwrap_or(head);
                if !self.promised {
                    fed.heard = Heard::NoList;
                }
            }
        }
        if whole && self.promised {
            self.add(&mut fed.behind, resp3);
        }
        fed
    }

    fn add(&self, out: &mut Vec<u8>, resp3: bool) {
        match self.listing {
            Listing::Info => OURS.iter().for_each(|own| docs::info(out, *own, resp3)),
            Listing::Docs => OURS.iter().for_each(|own| docs::docs(out, *own, resp3)),
            Listing::List => docs::names().for_each(|name| encode::bulk(out, name.as_bytes())),
            Listing::Count => {}
        }
    }
}
