//! Lines: which client waits for which lock, and whose turn it is.
//!
//! - `queue`: all lines of one proxy; knows neither nodes nor connections.
//! - `waiter`: one client that waits.
//! - `family`: the lines of permits, in which clients wait for any lock of a family; `permit_taker`: one client that
//!   takes a permit.
//! - `circle`: clients that wait for one another; `circle_confirmed`: whether they still do.
//! - `hot`: the locks that are waited for longest.
//! - `subscribe`: learns of releases through other proxies; `subscription`: its connection to one node.
//! - `streams`: the same by streams, which wake one proxy at a time.

pub(super) mod circle;
mod circle_confirmed;
pub(super) mod family;
pub(super) mod hot;
pub(super) mod permit_taker;
pub(super) mod queue;
pub(super) mod streams;
pub(super) mod subscribe;
mod subscription;
pub(super) mod waiter;
