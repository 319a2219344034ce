//! What an operator and Prometheus see: `/metrics`, `/healthz`, `/readyz`.
//!
//! - [`http`]: the bounded HTTP server.
//! - [`health`]: whether the data node and a quorum of lock nodes are there.

pub mod health;
pub mod http;

pub use health::{State, health_check};
pub use http::serve;
