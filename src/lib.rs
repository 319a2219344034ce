//! Lockgate: a Redis-protocol proxy that makes locks hold.
//!
//! The tree follows the way of a byte. A client's socket is accepted by
//! [`server`]; [`session`] owns it together with its own upstream socket and
//! moves bytes both ways, with [`resp`] finding where commands and replies end;
//! `LOCK`, `UNLOCK` and `RENEW` are parsed by [`command`] and carried out by
//! [`lock`] on a quorum of Redis nodes.
//!
//! - [`config`]: the YAML file, its defaults, and its errors with line numbers.
//! - [`server`]: start, accept, drain.
//! - [`listeners`]: listening sockets, opened here or by somebody else before.
//! - [`upgrade`]: one process takes another's place.
//! - [`reload`]: the configuration read again, and what of it can change.
//! - [`systemd`]: what a service manager is told.
//! - [`exposure`]: whether clients from elsewhere may come at all.
//! - [`idle`]: how long the data node lets clients be idle.
//! - [`admission`]: who is let in; [`descriptors`]: how many there is room for.
//! - [`introduction`]: clients that come through a balancer, which tells who they are.
//! - [`mod@unreachable`]: what a client is told for whom there is no data node.
//! - [`workers`]: a thread for each core, to which sessions are dealt.
//! - [`resp`]: the wire, and nothing of locks.
//! - [`session`]: one client connection and its upstream connection.
//! - [`command`]: words of a command to a typed request.
//! - [`glob`]: Redis's patterns, for an operator's question and for guards.
//! - [`guard`]: which locks a write needs.
//! - [`key`]: a lock's key and a token, shared by all that know them.
//! - [`lock`]: what a lock is; knows nothing of the sockets of clients.
//! - [`net`]: TCP, TLS and Unix streams under one name, and their socket options.
//! - [`metrics`]: names and handles of everything that is counted.
//! - [`admin`]: `/metrics`, `/healthz`, `/readyz` over HTTP.
//! - [`redis_server`]: real `redis-server` children, for `dev` and for tests.
//! - [`init`]: `lockgate init`, the first markers of a deployment.
//! - [`dev`]: `lockgate dev`, a whole deployment on this machine.
//! - [`doctor`]: `lockgate doctor`, what is wrong with each Redis of a configuration.
//! - [`logging`]: tracing's output, human on a terminal and JSON otherwise.

pub mod admin;
pub mod admission;
pub mod clock;
pub mod command;
pub mod config;
pub mod descriptors;
pub mod dev;
pub mod doctor;
pub mod exposure;
pub mod glob;
pub mod guard;
pub mod idle;
pub mod init;
pub mod introduction;
pub mod key;
pub mod listeners;
pub mod lock;
pub mod logging;
pub mod metrics;
pub mod net;
pub mod redis_server;
pub mod reload;
pub mod resp;
pub mod server;
pub mod session;
pub mod systemd;
pub mod unreachable;
pub mod upgrade;
pub mod workers;
