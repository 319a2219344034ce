//! Fitness: whether a lock node may vote, and what is wrong with it if not.
//!
//! - `deployment`: which nodes may vote, and why that holds: `marker` is what proves it on
//!   each of them, `look` what one says of itself, `seats` what all of that comes to, `round`
//!   how a marker is written on a quorum, `init` how the first markers are, `refusal` which
//!   markers keep a node out for good.
//! - `standing`: what a connection is told of all that.
//! - `clocks`: nodes' clocks, which must not jump.
//! - `fault`: what can be wrong with a node; `inspect` looks for it now and then, `pace` sees
//!   that it is slow.

pub(super) mod clocks;
pub(super) mod deployment;
pub(super) mod fault;
pub(super) mod init;
pub(super) mod inspect;
pub(super) mod look;
pub(super) mod marker;
pub(super) mod pace;
pub(super) mod refusal;
pub(super) mod round;
mod seats;
pub(super) mod standing;
