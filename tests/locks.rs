//! The folder `tests/locks/` alone, for work on it: `cargo test --test locks`.
//!
//! `make test` runs it within `tests/servers.rs`.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

#[path = "locks/mod.rs"]
mod locks;
mod support;
