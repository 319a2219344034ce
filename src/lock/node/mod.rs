//! Lock nodes: puts operations to them in order, and brings their votes back.
//!
//! - `nodes`: all of them: operations, votes, who is missing; `fences`: which fence is proposed
//!   to them; `outage`: that no quorum of them answers.
//! - `node`: one of them: whether it can be asked, what it has missed; `supervisor` keeps a
//!   connection to it open, `connect` opens one, `backoff` says when to try again.
//! - `pump`: the ordered, pipelined connection; `link`: its sending end; `repeats`: what is
//!   asked again where a node has forgotten the scripts.

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
