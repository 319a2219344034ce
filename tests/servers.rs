//! All tests that start real servers, except those that change their own process or run it again. They are one
//! binary, so that they are linked once and what they share is compiled once.
//!
//! Each folder also has a binary of its own, which `make test` leaves out: `cargo test --test guards`.

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
