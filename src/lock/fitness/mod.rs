//! Fitness: whether a lock node may vote, and what is wrong with it if not.
//!
//! - `deployment`: which nodes may vote, and why that is safe. `marker` is the proof on each of them, `self_report` a node's
//!   report on itself, `seats` derives the next step from all reports, `round` writes a marker on a quorum, `first_markers`
//!   writes the first markers, `refusal` says which markers keep a node out for good.
//! - `change`: replaces the set of lock nodes while proxies run.
//! - `right`: what may be asked of a node. `standing`: the part of that which its connection obeys.
//! - `clocks`: nodes' clocks, which must not jump.
//! - `fault`: the faults of nodes; `inspect` looks for them periodically, `pace` finds slow nodes.

pub(super) mod change;
pub(super) mod clocks;
pub(super) mod deployment;
pub(super) mod fault;
pub(super) mod first_markers;
pub(super) mod inspect;
pub(super) mod marker;
pub(super) mod pace;
pub(super) mod refusal;
pub(super) mod right;
pub(super) mod round;
mod seats;
pub(super) mod self_report;
pub(super) mod standing;
