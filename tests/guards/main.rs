//! Guarded keys are written under their locks, or not at all, and replies are Redis's.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod account;
mod commands;
mod databases;
mod fencing;
mod forgotten;
mod guide;
mod patterns;
mod pipeline;
mod random;
mod replicas;
mod slots;
#[path = "../support/mod.rs"]
mod support;
mod writes;
