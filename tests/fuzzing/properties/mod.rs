//! Properties that must hold for any bytes: one function for each target of the fuzzer, which the stable tests call
//! too. A function panics if its property does not hold.

#![allow(dead_code, unreachable_pub, reason = "each fuzz target uses a part")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a property fails by panicking"
)]

pub mod bodies;
pub mod configuration;
pub mod differential;
pub mod grammar;
pub mod node_replies;
pub mod pieces;
pub mod replies;
pub mod requests;
pub mod script;
