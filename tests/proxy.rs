//! The folder `tests/proxy/` alone, for work on it: `cargo test --test proxy`.
//!
//! `make test` runs it within `tests/servers.rs`.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

#[path = "proxy/mod.rs"]
mod proxy;
mod support;
