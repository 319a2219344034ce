//! Lock nodes: puts operations to them in order, and brings their votes back.
//!
//! - `nodes`: all of them: operations, votes, who is missing; `fences`: the fence proposed to them;
//!   `outage`: whether a quorum of them answers.
//! - `node`: one of them: whether it can be asked, and which operations it has missed; `supervisor`
//!   keeps a connection to it open, `connect` opens one, `backoff` says when to try again.
//! - `pump`: the ordered, pipelined connection; `link`: its sending end; `repeats`: operations to
//!   repeat on a node that has forgotten the scripts.

pub(super) mod backoff;
mod connect;
mod fences;
mod link;
#[allow(clippy::module_inception, reason = "the folder is about it")]
pub(super) mod node;
pub(super) mod nodes;
pub(super) mod outage;
mod pump;
mod repeats;
mod supervisor;
