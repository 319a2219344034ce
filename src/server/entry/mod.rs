//! Which clients this process lets in, and how many.
//!
//! - [`listeners`]: listening sockets, opened here or inherited.
//! - [`accepting`]: accepts clients at one of them.
//! - [`exposure`]: whether clients from elsewhere may come at all.
//! - [`admission`]: which clients are let in; [`descriptors`]: how many there is room for.
//! - [`balancer`]: clients that come through a balancer, which names them.

pub(super) mod accepting;
pub(super) mod admission;
pub(super) mod balancer;
pub(super) mod descriptors;
pub(super) mod exposure;
pub(super) mod listeners;
