//! Lock nodes: sends them operations in order, and returns their votes.
//!
//! - `nodes`: all lock nodes: operations, votes, which nodes are missing; `proposed_fence`: the fence that the proxy
//!   proposes; `outage`: whether a quorum answers.
//! - `node`: one of them: whether it can be asked, and which operations it has missed; `supervisor`
//!   keeps a connection to it open, `connect` opens one, `backoff` says when to try again.
//! - `pipeline`: the ordered, pipelined connection; `link`: its sending end; `repeats`: operations to
//!   repeat on a node that has forgotten the scripts.

pub(super) mod backoff;
mod connect;
mod link;
#[allow(clippy::module_inception, reason = "the folder is about it")]
pub(super) mod node;
pub(super) mod nodes;
pub(super) mod outage;
mod pipeline;
mod proposed_fence;
mod repeats;
mod supervisor;
