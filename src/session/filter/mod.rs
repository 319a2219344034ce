//! Replies that are changed on their way: those to the proxy's own questions, those that wrap the replies to guarded
//! writes, lists of commands, to which ours are added, and those that name nodes of a cluster.
//!
//! At most one [`Filter`] is at work, on the reply that is being received.
//!
//! - `fed`: the result of filtering a piece of a reply.
//! - `unwrap`: replies to the script and to EXEC. `held`: those that a job needs whole.
//! - `command_list`: COMMAND, COMMAND INFO, DOCS, LIST and COUNT.
//! - `shown`: redirections, CLUSTER SLOTS, SHARDS, NODES and REPLICAS.

mod command_list;
mod fed;
mod held;
mod shown;
mod unwrap;

use std::sync::Arc;

use self::{command_list::Addition, fed::Fed, held::HeldReply, shown::ShownReply, unwrap::Unwrap};
pub(super) use self::{
    fed::Heard,
    shown::HeldTopology,
    unwrap::{DROPPED, Whose, is_null},
};
use crate::{
    data::FrontView,
    resp::{expected::Expected, name::Listing},
};

/// Most bytes kept of the reply to a question of the proxy: enough for an error line.
pub(super) const REPLY_LIMIT: usize = 1024;

/// Treatment of the reply being received.
pub(super) enum Filter {
    /// Keeps the reply to a question of the proxy, up to a limit.
    Ours(Expected, Vec<u8>),
    /// Takes the client's replies out of EXEC's or the script's.
    Unwrap(Unwrap),
    /// Holds the client's replies in EXEC's or the script's until they are whole.
    Held(HeldReply),
    /// Adds our entries to a list.
    Listing(Addition),
    /// Replaces a cluster's nodes by their fronts.
    Shown(Box<ShownReply>),
}

impl Filter {
    /// Filters the reply to a question of the proxy.
    pub(super) fn ours(expected: Expected) -> Filter {
        Filter::Ours(expected, Vec::new())
    }

    /// Filters the reply to what was sent for a guarded write.
    pub(super) fn unwrap(whose: Whose, silent: bool) -> Filter {
        Filter::Unwrap(Unwrap::new(whose, silent))
    }

    /// Holds the reply to what was sent for a guarded write, or to the client's EXEC, up to `limit` bytes.
    pub(super) fn held(whose: Whose, limit: usize) -> Filter {
        Filter::Held(HeldReply::new(whose, limit))
    }

    /// Filters a list whose first byte is `first`. Returns `None` if the reply is not a list but an error or
    /// `+QUEUED`.
    pub(super) fn listing(listing: Listing, first: u8) -> Option<Filter> {
        Addition::begin(listing, first).map(Filter::Listing)
    }

    /// Filters a reply that may name nodes of a cluster.
    pub(super) fn shown(view: Arc<FrontView>, what: HeldTopology) -> Filter {
        Filter::Shown(Box::new(ShownReply::new(view, what)))
    }

    /// Whether the head of the reply must be looked at by itself first.
    pub(super) fn awaits_head(&self) -> bool {
        matches!(self, Filter::Unwrap(unwrap) if unwrap.awaits_head())
    }

    /// Returns how many bytes of the reply are held. Returns `None` if replies of its kind are not held.
    pub(super) fn holds(&self) -> Option<usize> {
        match self {
            Filter::Held(held) => Some(held.length()),
            _ => None,
        }
    }

    /// Whether the filter must see the end of the reply, as the reply's announced length was changed.
    pub(super) fn must_end(&self) -> bool {
        matches!(self, Filter::Listing(_))
    }

    /// Ends a reply that the data node has cut off by closing. Returns the bytes that were kept back.
    pub(super) fn rest(self) -> Vec<u8> {
        match self {
            Filter::Listing(addition) => addition.rest(),
            Filter::Ours(..) | Filter::Unwrap(_) | Filter::Held(_) | Filter::Shown(_) => Vec::new(),
        }
    }

    /// Filters a piece of the reply. `ended`: the reply ends with it. `whole`: the reply is
    /// complete then. `resp3`: the client has sent HELLO 3.
    pub(super) fn feed(&mut self, piece: &[u8], ended: bool, whole: bool, resp3: bool) -> Fed {
        match self {
            Filter::Ours(expected, reply) => {
                let room = REPLY_LIMIT.saturating_sub(reply.len());
                reply.extend_from_slice(&piece[..piece.len().min(room)]);
                let heard = match ended {
                    false => Heard::Nothing,
                    true if expected.takes(reply) => Heard::Reply(std::mem::take(reply)),
                    true => Heard::Unexpected(std::mem::take(reply)),
                };
                Fed { taken: piece.len(), heard, ..Fed::default() }
            }
            Filter::Unwrap(unwrap) => unwrap.feed(piece, ended),
            Filter::Shown(shown) => shown.feed(piece, ended && whole),
            Filter::Held(held) => held.feed(piece, ended),
            Filter::Listing(addition) => addition.feed(piece, ended, ended && whole, resp3),
        }
    }
}
