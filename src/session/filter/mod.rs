//! Replies that do not pass as they come: those to the proxy's own questions, those in which
//! the replies of guarded writes are, and lists of commands, to which ours are added.
//!
//! At most one [`Filter`] is at work, on the reply that is being received.
//!
//! - `fed`: what becomes of a piece of a reply.
//! - `unwrap`: the script's replies and EXEC's.
//! - `listing`: COMMAND, COMMAND INFO, DOCS, LIST and COUNT.

mod fed;
mod listing;
mod unwrap;

use self::{fed::Fed, listing::Addition, unwrap::Unwrap};
pub(super) use self::{fed::Heard, unwrap::Whose};
use crate::resp::name::Listing;

/// How much of the reply to a question of the proxy's is kept: an error line.
const REPLY_LIMIT: usize = 1024;

/// What is done with the reply being received.
pub(super) enum Filter {
    /// It answers a question of the proxy's: as much of it as is kept.
    Ours(Vec<u8>),
    /// It is EXEC's or the script's, and the client gets what is in it.
    Unwrap(Unwrap),
    /// It is a list, to which our entries are added.
    Listing(Addition),
}

impl Filter {
    /// For the reply to a question of the proxy's.
    pub(super) fn ours() -> Filter {
        Filter::Ours(Vec::new())
    }

    /// For the reply to what was sent for a guarded write.
    pub(super) fn unwrap(whose: Whose, silent: bool) -> Filter {
        Filter::Unwrap(Unwrap::new(whose, silent))
    }

    /// For a reply whose first byte is this. Returns `None` if it is not a list, but an error
    /// or `+QUEUED`.
    pub(super) fn listing(listing: Listing, first: u8) -> Option<Filter> {
        Addition::begin(listing, first).map(Filter::Listing)
    }

    /// Whether the head of the reply is to be looked at before anything behind it.
    pub(super) fn awaits_head(&self) -> bool {
        matches!(self, Filter::Unwrap(unwrap) if unwrap.awaits_head())
    }

    /// Whether it is decided that the client gets the reply, and it is only a matter of its
    /// taking it.
    pub(super) fn is_passing(&self) -> bool {
        matches!(self, Filter::Unwrap(unwrap) if unwrap.is_passing())
    }

    /// Whether the reply must be ended as it was begun: its length has been changed.
    pub(super) fn must_end(&self) -> bool {
        matches!(self, Filter::Listing(_))
    }

    /// The data node has closed in the middle of the reply: returns what was kept back of it.
    pub(super) fn rest(self) -> Vec<u8> {
        match self {
            Filter::Listing(addition) => addition.rest(),
            Filter::Ours(_) | Filter::Unwrap(_) => Vec::new(),
        }
    }

    /// Looks at a piece of the reply. With `ended`, this is the last of it, and it is a whole
    /// one if it is `whole`. `resp3`: by HELLO 3.
    pub(super) fn feed(&mut self, piece: &[u8], ended: bool, whole: bool, resp3: bool) -> Fed {
        match self {
            Filter::Ours(reply) => {
                let room = REPLY_LIMIT.saturating_sub(reply.len());
                reply.extend_from_slice(&piece[..piece.len().min(room)]);
                let heard =
                    if ended { Heard::Reply(std::mem::take(reply)) } else { Heard::Nothing };
                Fed { taken: piece.len(), heard, ..Fed::default() }
            }
            Filter::Unwrap(unwrap) => unwrap.feed(piece, ended),
            Filter::Listing(addition) => addition.feed(piece, ended, ended && whole, resp3),
        }
    }
}
