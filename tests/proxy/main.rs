//! The proxy as a client meets it that takes no lock: its bytes in order, and nothing of other
//! clients, whatever these send.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod bad_input;
mod hostile;
mod memory;
mod ordering;
mod proxy_protocol;
#[path = "../support/mod.rs"]
mod support;
mod tls;
