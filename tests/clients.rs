//! The folder `tests/clients/` alone, for work on it: `cargo test --test clients`.
//!
//! `make test` runs it within `tests/servers.rs`.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

#[path = "clients/mod.rs"]
mod clients;
mod support;
