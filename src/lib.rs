//! Lockgate: a Redis-protocol proxy that makes locks hold.
//!
//! The tree follows a byte's path. [`server`] accepts a client's socket; [`session`] owns it together with its own
//! upstream socket and moves bytes both ways, with [`resp`] finding where commands and replies end; [`command`]
//! parses `LOCK`, `UNLOCK` and `RENEW`, and [`lock`] carries them out on a quorum of Redis nodes.
//!
//! - [`server`]: one process: it opens sockets, lets clients in, shows its state, is replaced,
//!   and ends.
//! - [`session`]: one client connection and its upstream connection.
//! - [`command`]: from the words of a command to a typed request.
//! - [`fleet`]: what proxies over the same lock nodes tell each other, and where they differ.
//! - [`guard`]: which locks a write needs.
//! - [`adopt`]: lock idioms of existing libraries, and what was seen of them.
//! - [`lock`]: what a lock is; knows nothing of the sockets of clients.
//! - [`data`]: which Redis the data node is now. [`sentinel`]: which one Sentinels name.
//! - [`cluster`]: what a Redis Cluster says of itself, and how clients are shown it.
//! - [`net`]: TCP, TLS and Unix streams under one name, and their socket options.
//! - [`report`]: what a proxy tells of itself in JSON.
//! - [`resp`]: the wire: where commands and replies end, and what a command is called.
//! - [`config`]: the YAML file, its defaults, and its errors with line numbers.
//! - [`metrics`]: keeps and renders the counters.
//! - [`log_writer`]: lines for stderr, on a thread of their own.
//! - [`card`], [`key`], [`glob`], [`clock`], [`sync`], [`log_text`]: shared by several of them.
//! - [`tools`]: the other commands of the binary: `dev`, `doctor`, `init`, `top`.
//! - `simulation`, only in tests: the real engine and real sessions over a simulated network.
//! - `depth`, only in tests: everything that reads bytes from outside, on a small stack.
//!
//! `tests/layers.rs` lists, and checks, which of them may name which.

mod adopt;
mod bridge;
mod card;
mod clock;
mod cluster;
// Fuzzing reads the words of commands with it.
pub mod command;
// The binary reads a configuration; tests write one.
pub mod config;
mod data;
#[cfg(test)]
mod depth;
mod fleet;
// Tests compare its matching with Redis's.
pub mod glob;
mod guard;
mod key;
// Tests run the engine without a proxy.
pub mod lock;
mod log_text;
mod log_writer;
mod metrics;
mod net;
mod report;
// Fuzzing and tests cut and encode with it.
pub mod resp;
mod sentinel;
// The binary runs it.
pub mod server;
mod session;
mod share;
#[cfg(test)]
mod simulation;
mod sync;
// The binary runs them; tests start a Redis with them.
pub mod tools;

/// Fuzzing reads script bodies with it.
#[doc(hidden)]
pub use adopt::normal::is_lock_script;
/// A test checks which writes may share a call.
#[doc(hidden)]
pub use guard::write::Write;
/// A test sets the time after which a dead peer is given up.
#[doc(hidden)]
pub use net::tune;
