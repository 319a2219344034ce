//! Whom this process lets in, and how many.
//!
//! - [`listeners`]: listening sockets, opened here or by somebody else before.
//! - [`exposure`]: whether clients from elsewhere may come at all.
//! - [`admission`]: who is let in; [`descriptors`]: how many there is room for.
//! - [`introduction`]: clients that come through a balancer, which tells who they are.
//! - [`mod@unreachable`]: what a client is told for whom there is no data node.

pub mod admission;
pub mod descriptors;
pub mod exposure;
pub mod introduction;
pub mod listeners;
pub mod unreachable;
