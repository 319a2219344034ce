//! The pages for operators and Prometheus: `/metrics`, `/healthz`, `/readyz`.
//!
//! - [`http`]: the bounded HTTP server.
//! - [`health`]: whether the data node and a quorum of lock nodes are there.

mod health;
mod http;

pub(super) use health::PageSource;
pub use health::health_check;
pub(super) use http::serve;
