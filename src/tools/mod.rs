//! The other commands of the binary, each by itself.
//!
//! - [`dev`]: `lockgate dev`, a whole deployment on this machine; `dev_cluster`: a Redis Cluster for it.
//! - [`doctor`]: `lockgate doctor`, a diagnosis of each Redis of a configuration.
//! - [`init`]: `lockgate init`, the first markers of a deployment.
//! - [`redis_server`]: real `redis-server` children, for `dev` and for tests.

pub mod dev;
mod dev_cluster;
pub mod doctor;
pub mod init;
pub mod redis_server;
