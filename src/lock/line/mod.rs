//! Lines: which client waits for which lock, and whose turn it is.
//!
//! - `queue`: all lines of one proxy; names neither nodes nor connections.
//! - `waiter`: one client that waits.
//! - `circle`: clients that wait for one another; `circle_confirmed`: whether they do still.
//! - `hot`: the locks that are waited for longest.
//! - `subscribe`: hears of releases through other proxies; `subscription`: over one connection.
//! - `streams`: hears of them one proxy at a time.

pub(super) mod circle;
mod circle_confirmed;
pub(super) mod hot;
pub(super) mod queue;
pub(super) mod streams;
pub(super) mod subscribe;
mod subscription;
pub(super) mod waiter;
