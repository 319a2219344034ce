//! Lines: which client waits for which lock, and whose turn it is.
//!
//! - `queue`: all lines of one proxy; knows neither nodes nor connections.
//! - `waiter`: one client that waits.
//! - `seat`: a waiting client's place in a line.
//! - `family`: the clients that wait for any lock of a family; `family_line`: whose turn it is there; `permit_taker`:
//!   one client that takes a permit.
//! - `circle`: clients that wait for one another; `circle_confirmed`: whether they still do.
//! - `hot`: the locks that are waited for longest.
//! - `subscribe`: learns of releases through other proxies; `subscription`: its connection to one node.
//! - `streams`: the same by streams, which wake one proxy at a time.

pub(super) mod circle;
mod circle_confirmed;
pub(super) mod family;
mod family_line;
pub(super) mod hot;
pub(super) mod permit_taker;
pub(super) mod queue;
pub(super) mod seat;
pub(super) mod streams;
pub(super) mod subscribe;
mod subscription;
pub(super) mod waiter;
