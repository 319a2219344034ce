//! The proxy as operators meet it: command line, configuration, signals, upgrades, metrics.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod admin;
mod admin_actions;
mod adopt;
mod adopt_bridge;
mod adopt_enforced;
mod adopt_exec;
mod adopt_fleet;
mod adopt_session;
mod alerts;
mod change;
mod cluster;
mod configuration;
mod dev;
mod digests;
mod doctor;
mod logs;
mod manual;
mod operator;
mod pause;
mod proxies;
mod readiness;
mod reload;
mod sentinel;
mod status;
mod status_page;
#[path = "../support/mod.rs"]
mod support;
mod systemd;
mod top;
mod unlock;
mod upgrade;
mod who;
