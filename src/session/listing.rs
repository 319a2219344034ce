//! COMMAND, COMMAND INFO, DOCS and LIST without names: the data node's list
//! passes as it comes, with the count at its head raised and our entries behind
//! its last one. COMMAND COUNT has nothing but the count.

use std::ops::Range;

use super::Session;
use crate::{
    command::docs::{self, OURS},
    resp::{encode, name::Listing, number},
};

/// The longest head of a list: type, digits, line end.
const HEAD_LIMIT: usize = 1 + number::MAX_DIGITS + 2;

/// A list on its way to the client.
#[derive(Debug)]
pub struct Addition {
    listing: Listing,
    /// The head as far as it has come; empty once it was passed on.
    head: Vec<u8>,
    /// The head was passed on with a larger count.
    promised: bool,
}

impl Addition {
    /// A reply whose first byte is this. None: not a list, but an error or `+QUEUED`.
    pub(super) fn begin(listing: Listing, first: u8) -> Option<Addition> {
        let is_answer = match listing {
            Listing::Info => first == b'*',
            Listing::Docs => matches!(first, b'*' | b'%'),
            Listing::List => matches!(first, b'*' | b'~'),
            Listing::Count => first == b':',
        };
        is_answer.then(|| Addition { listing, head: Vec::new(), promised: false })
    }

    /// What was kept back of the head.
    pub(super) fn head(&self) -> &[u8] {
        &self.head
    }

    /// The head with our entries counted. None where that makes no sense.
    fn raised(&self) -> Option<Vec<u8>> {
        let (kind, rest) = self.head.split_first()?;
        let count = usize::try_from(number::integer(rest.strip_suffix(b"\r\n")?)?).ok()?;
        let mut out = Vec::new();
        match (self.listing, kind) {
            (Listing::Info, _) => encode::array(&mut out, count.checked_add(OURS.len())?),
            (Listing::Docs, b'%') => encode::map(&mut out, count.checked_add(OURS.len())?, true),
            // In RESP2 a map's keys and values are counted.
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

impl Session {
    /// Passes on what has come of a list: `here` of `bytes`, with the bytes from
    /// `from` on before it. Returns from where on bytes are still to be passed on.
    ///
    /// The list has ended where it `ended`, and well if it is `whole`.
    #[cold]
    pub(super) fn add_to_listing(
        &mut self,
        bytes: &[u8],
        mut from: usize,
        here: Range<usize>,
        ended: bool,
        whole: bool,
    ) -> usize {
        let Some(mut addition) = self.addition.take() else { return from };
        let mut given_up = false;
        if !addition.promised {
            let piece = &bytes[here.clone()];
            let line = memchr::memchr(b'\n', piece).map_or(piece.len(), |end| end + 1);
            let line = line.min(HEAD_LIMIT.saturating_sub(addition.head.len()));
            addition.head.extend_from_slice(&piece[..line]);
            self.to_client.push(&bytes[from..here.start]);
            from = here.start + line;
            if addition.head.ends_with(b"\n") || addition.head.len() >= HEAD_LIMIT || ended {
                let raised = addition.raised();
                addition.promised = raised.is_some();
                given_up = raised.is_none();
                self.to_client.push(raised.as_deref().unwrap_or(&addition.head));
                addition.head.clear();
            }
        }
        if ended && whole && addition.promised {
            self.to_client.push(&bytes[from..here.end]);
            from = here.end;
            let (mut entries, resp3) = (Vec::new(), self.state.resp3);
            match addition.listing {
                Listing::Info => OURS.iter().for_each(|own| docs::info(&mut entries, *own, resp3)),
                Listing::Docs => OURS.iter().for_each(|own| docs::docs(&mut entries, *own, resp3)),
                Listing::List => {
                    docs::names().for_each(|name| encode::bulk(&mut entries, name.as_bytes()));
                }
                Listing::Count => {}
            }
            self.to_client.push(&entries);
        }
        if !ended && !given_up {
            self.addition = Some(addition);
        }
        from
    }
}
