//! Lockgate: a Redis-protocol proxy that makes locks hold.
//!
//! The tree follows the way of a byte. A client's socket is accepted by
//! [`server`]; [`session`] owns it together with its own upstream socket and
//! moves bytes both ways, with [`resp`] finding where commands and replies end;
//! `LOCK`, `UNLOCK` and `RENEW` are parsed by [`command`] and carried out by
//! [`lock`] on a quorum of Redis nodes.
//!
//! - [`server`]: one process: it opens sockets, lets clients in, shows how it is, is replaced,
//!   and ends.
//! - [`session`]: one client connection and its upstream connection.
//! - [`command`]: words of a command to a typed request.
//! - [`guard`]: which locks a write needs.
//! - [`lock`]: what a lock is; knows nothing of the sockets of clients.
//! - [`net`]: TCP, TLS and Unix streams under one name, and their socket options.
//! - [`resp`]: the wire: where commands and replies end, and what a command is called.
//! - [`config`]: the YAML file, its defaults, and its errors with line numbers.
//! - [`metrics`]: where what is counted is kept and rendered.
//! - [`key`], [`glob`], [`clock`]: what several of them share.
//! - [`tools`]: what the other commands of the binary do: `dev`, `doctor`, `init`.
//!
//! Which of them may name which is said, and held, by `tests/layers.rs`.

pub mod clock;
pub mod command;
pub mod config;
pub mod glob;
pub mod guard;
pub mod key;
pub mod lock;
pub mod metrics;
pub mod net;
pub mod resp;
pub mod server;
pub mod session;
pub mod tools;
