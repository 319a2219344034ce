//! Lines: which client waits for which lock, and whose turn it is.
//!
//! - `queue`: all lines of one proxy; knows neither nodes nor connections.
//! - `waiter`: one client that waits.
//! - `in_line`: a client in a line.
//! - `family`: the clients that wait for any lock of a family; `permit_turns`: whose turn it is among them;
//!   `permit_taker`: one client that takes a permit.
//! - `circle`: clients that wait for one another; `circle_confirmed`: whether they still do.
//! - `hot`: the locks that are waited for longest.
//! - `subscribe`: learns of releases through other proxies; `subscription`: its connection to one node.
//! - `streams`: the same by streams, which wake one proxy at a time.

pub(super) mod circle;
mod circle_confirmed;
pub(super) mod family;
pub(super) mod hot;
pub(super) mod in_line;
pub(super) mod permit_taker;
mod permit_turns;
pub(super) mod queue;
pub(super) mod streams;
pub(super) mod subscribe;
mod subscription;
pub(super) mod waiter;
