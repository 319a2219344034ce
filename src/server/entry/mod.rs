//! Whom this process lets in, and how many.
//!
//! - [`listeners`]: listening sockets, opened here or by somebody else before.
//! - [`exposure`]: whether clients from elsewhere may come at all.
//! - [`admission`]: who is let in; [`descriptors`]: how many there is room for.
//! - [`introduction`]: clients that come through a balancer, which tells who they are.
//! - [`mod@unreachable`]: what a client is told for whom there is no data node.

pub(super) mod admission;
pub(super) mod descriptors;
pub(super) mod exposure;
pub(super) mod introduction;
pub(super) mod listeners;
pub(super) mod unreachable;
