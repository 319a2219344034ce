//! Members: whether a lock node may vote, and what is wrong with it if not.
//!
//! - `shared_members`: which nodes may vote, and why that is safe. It asks the nodes and obeys `membership`, which decides
//!   without input and output: reports go in, judgements and effects come out. Of that, `seats` derives the next step
//!   from all reports, `seat_wait` counts how long a node has waited, `refusal` says which markers keep a node out for
//!   good. `marker` is the proof on each node, `self_report` a node's report on itself, `round` writes a marker on a
//!   quorum, `first_markers` the first markers.
//! - `change`: replaces the set of lock nodes while proxies run.
//! - `right`: what may be asked of a node. `standing`: the part of that which its connection obeys.
//! - `clocks`: nodes' clocks, which must not jump.
//! - `fault`: the faults of nodes; `inspect` looks for them periodically, `pace` finds slow nodes.

pub(super) mod change;
pub(super) mod clocks;
pub(super) mod fault;
pub(super) mod first_markers;
pub(super) mod inspect;
pub(super) mod marker;
pub(super) mod membership;
pub(super) mod pace;
pub(super) mod refusal;
pub(super) mod right;
pub(super) mod round;
mod seat_wait;
mod seats;
pub(super) mod self_report;
pub(super) mod shared_members;
pub(super) mod standing;
