//! Promises to clients that take locks, over real lock nodes that fail, restart and have wrong
//! clocks.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod attach;
mod clocks;
mod engine;
mod failover;
mod locking;
mod seats;
mod session_locks;
mod shards;
#[path = "../support/mod.rs"]
mod support;
mod unfit_nodes;
mod waiting;
mod wake_ups;
