//! The folder `tests/guards/` alone, for work on it: `cargo test --test guards`.
//!
//! `make test` runs it within `tests/servers.rs`.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

#[path = "guards/mod.rs"]
mod guards;
mod support;
