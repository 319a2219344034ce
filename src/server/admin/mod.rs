//! The pages for operators and Prometheus: the status page and its JSON, `/metrics`, `/healthz`,
//! `/readyz`.
//!
//! - [`http`]: the bounded HTTP server.
//! - [`site`]: which page answers which request; [`host`]: by which names requests may name this server.
//! - [`markup`]: the status page, out of the files in `page/`.
//! - [`health`]: whether the data node and a quorum of lock nodes are there; [`data_check`] asks the data
//!   node.
//! - [`status`]: the whole proxy in one document; [`listing`]: locks, clients and idioms;
//!   [`samples`]: the last ten minutes.
//! - [`peers`]: how the other proxies are; [`elsewhere`]: who holds locks through them.
//! - [`actions`]: what operators do there.
//! - [`query`]: query strings of requests.

mod actions;
mod data_check;
mod elsewhere;
mod health;
mod host;
mod http;
mod listing;
mod markup;
mod peers;
mod query;
mod samples;
mod site;
mod status;

pub(super) use health::PageSource;
pub use health::health_check;
pub(super) use http::serve;
pub(super) use site::AdminSite;

/// Reads a query string, for a test.
#[cfg(test)]
pub(super) fn read_query(query: &str) {
    std::hint::black_box((query::locks(query).is_ok(), query::count(query, 1).is_ok()));
}
