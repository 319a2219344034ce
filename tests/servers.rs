//! All tests that start real servers and neither change the process that they run in nor run it
//! again: one binary, so that they are linked once, and what they share is compiled once.
//!
//! Each folder has a binary of its own besides, which `make test` leaves out:
//! `cargo test --test guards`.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

#[path = "clients/mod.rs"]
mod clients;
#[path = "guards/mod.rs"]
mod guards;
#[path = "locks/mod.rs"]
mod locks;
#[path = "operations/mod.rs"]
mod operations;
#[path = "proxy/mod.rs"]
mod proxy;
mod support;
