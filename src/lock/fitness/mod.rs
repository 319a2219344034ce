//! Fitness: whether a lock node may vote, and what is wrong with it if not.
//!
//! - `deployment`: which nodes may vote, and why that holds: `marker` is the proof on each of them,
//!   `look` a node's report on itself, `seats` the outcome of all reports, `round` writes a marker
//!   on a quorum, `init` writes the first markers, `refusal` says which markers keep a node out for
//!   good.
//! - `change`: other lock nodes take the place of these, while proxies run.
//! - `standing`: the part of that which a connection obeys; `right`: what may be asked of the node.
//! - `clocks`: nodes' clocks, which must not jump.
//! - `fault`: the faults of nodes; `inspect` looks for them now and then, `pace` finds slow nodes.

pub(super) mod change;
pub(super) mod clocks;
pub(super) mod deployment;
pub(super) mod fault;
pub(super) mod init;
pub(super) mod inspect;
pub(super) mod look;
pub(super) mod marker;
pub(super) mod pace;
pub(super) mod refusal;
pub(super) mod right;
pub(super) mod round;
mod seats;
pub(super) mod standing;
