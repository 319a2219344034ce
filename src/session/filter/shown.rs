//! Replies that name nodes of a cluster, for a client that came through a front. Each is held until it is whole, and
//! the client is told it with fronts in place of nodes.

use std::sync::Arc;

use super::{
    fed::{Fed, Heard},
    unwrap::{DROPPED, is_null},
};
use crate::{
    cluster::rewrite::may_redirect,
    data::FrontView,
    resp::{encode, name::Topology},
};

/// Most bytes held of a reply: CLUSTER NODES of 10,000 nodes has 2 MB.
const LONGEST: usize = 4 * 1024 * 1024;
/// Length of the longest redirection: the longest host has 253 bytes.
const LONGEST_LINE: usize = 512;

/// The kind of a reply that is held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::session) enum HeldTopology {
    /// An error, which may be a redirection.
    Error,
    /// The reply to a command about the cluster.
    Topology(Topology),
    /// The reply to EXEC, in which the elements with these indexes are about the cluster.
    Exec(Vec<(usize, Topology)>),
    /// As before, for a client that watches no key itself, where the proxy watches fences: null then says that a
    /// fence was written.
    ArmedExec(Vec<(usize, Topology)>),
}

/// A reply that may name nodes.
pub(in crate::session) struct ShownReply {
    view: Arc<FrontView>,
    what: HeldTopology,
    kept: Vec<u8>,
    /// The reply names no node, so the rest of it passes.
    passes: bool,
}

impl ShownReply {
    pub(super) fn new(view: Arc<FrontView>, what: HeldTopology) -> ShownReply {
        ShownReply { view, what, kept: Vec::new(), passes: false }
    }

    /// Filters a piece of the reply. `ended`: the reply ends with it.
    pub(super) fn feed(&mut self, piece: &[u8], ended: bool) -> Fed {
        if self.passes {
            return Fed::default();
        }
        self.kept.extend_from_slice(piece);
        let longest = match self.what {
            HeldTopology::Error => LONGEST_LINE,
            HeldTopology::Topology(_) | HeldTopology::Exec(_) | HeldTopology::ArmedExec(_) => {
                LONGEST
            }
        };
        let mut fed = Fed { taken: piece.len(), ..Fed::default() };
        if self.what == HeldTopology::Error && !may_redirect(&self.kept) {
            self.passes = true;
            fed.instead = std::mem::take(&mut self.kept);
        } else if self.kept.len() > longest {
            self.kept = Vec::new();
            fed.heard = Heard::TooLong;
        } else if ended && matches!(self.what, HeldTopology::ArmedExec(_)) && is_null(&self.kept) {
            encode::error(&mut fed.instead, DROPPED);
            fed.heard = Heard::Dropped;
        } else if ended {
            let kept = std::mem::take(&mut self.kept);
            let changed = match &self.what {
                HeldTopology::Error => self.view.redirect(&kept),
                HeldTopology::Topology(kind) => self.view.topology(&kept, *kind),
                HeldTopology::Exec(asked) | HeldTopology::ArmedExec(asked) => {
                    self.view.exec(&kept, asked)
                }
            };
            fed.instead = changed.unwrap_or(kept);
        }
        fed
    }
}
