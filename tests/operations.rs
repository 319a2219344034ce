//! The folder `tests/operations/` alone, for work on it: `cargo test --test operations`.
//!
//! `make test` runs it within `tests/servers.rs`.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

#[path = "operations/mod.rs"]
mod operations;
mod support;
