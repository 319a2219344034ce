//! The other commands of the binary, each by itself.
//!
//! - [`dev`]: `lockgate dev`, a whole deployment on this machine; `dev_rules`: its guards and adopt rules;
//!   `dev_data`: its data servers.
//! - [`doctor`]: `lockgate doctor`, a diagnosis of each Redis of a configuration.
//! - [`exec`]: `lockgate exec`, a command under a lock.
//! - [`init`]: `lockgate init`, the first markers of a deployment.
//! - `keyspace`: keys that a new lock node has already, for `doctor` and `init`.
//! - [`manual`]: `lockgate manual`, man pages and shell completions.
//! - [`change_nodes`]: `lockgate nodes`, which shows, makes or takes back a change of the lock nodes.
//! - [`top`]: `lockgate top`, several proxies in a terminal.
//! - [`say`]: prints what the commands have to say.
//! - [`redis_server`], [`sentinel_server`], [`redis_cluster`]: real `redis-server` children, as a Redis, as a Sentinel
//!   and as a Redis Cluster, for `dev` and for tests; [`free_port`]: their ports.

pub mod change_nodes;
pub mod dev;
mod dev_data;
mod dev_rules;
pub mod doctor;
pub mod exec;
pub mod free_port;
pub mod init;
mod keyspace;
pub mod manual;
pub mod redis_cluster;
pub mod redis_server;
pub mod say;
pub mod sentinel_server;
pub mod top;

use std::time::Duration;

/// Reads a time in an argument, written as in the configuration.
///
/// # Errors
/// How a time is written.
pub fn time_argument(text: &str) -> Result<Duration, String> {
    let time = crate::config::duration(text);
    time.ok_or_else(|| "a time is written as 500ms, 30s or 2m".into())
}
