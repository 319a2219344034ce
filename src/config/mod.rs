//! The configuration: one YAML file to one checked [`Config`].
//!
//! Knows nothing of the rest of Lockgate: it only says what was asked for.

use std::{net::SocketAddr, time::Duration};

mod url;

pub use url::{Endpoint, RedisUrl};

/// Everything that can be configured, checked and with its defaults filled in.
#[derive(Debug, Clone)]
pub struct Config {
    /// `listen`: addresses on which clients are accepted.
    pub listen: Vec<SocketAddr>,
    /// `admin`: address of `/metrics`, `/healthz` and `/readyz`; none with `off`.
    pub admin: Option<SocketAddr>,
    /// `data`: the Redis to which every forwarded command goes.
    pub data: RedisUrl,
    /// `connect_timeout`: how long connecting to the data node may take.
    pub connect_timeout: Duration,
    /// `tcp_keepalive`: idle time before a peer is probed, on both sides.
    pub tcp_keepalive: Duration,
    /// `maxclients`: connections accepted at the same time.
    pub maxclients: usize,
    /// `barrier_buffer`: bytes of replies held for a client that does not read
    /// while one of its own lock commands is under way.
    pub barrier_buffer: usize,
    /// `shutdown_grace`: how long commands in flight may take after SIGTERM.
    pub shutdown_grace: Duration,
    /// `locks`: the lock nodes and the limits of locks.
    pub locks: LocksConfig,
}

/// The `locks:` section.
#[derive(Debug, Clone)]
pub struct LocksConfig {
    /// `nodes`: the independent Redis masters that vote. 1, 3, 5, 7, …
    pub nodes: Vec<RedisUrl>,
    /// `prefix`: put before a client's key to make the key on the nodes.
    pub prefix: String,
    /// `default_ttl`: TTL where a command may leave it out.
    pub default_ttl: Duration,
    /// `max_ttl`: the longest TTL a client may ask for.
    pub max_ttl: Duration,
    /// `node_timeout`: how long one node may take to vote.
    pub node_timeout: Duration,
    /// `node_silence`: a connection with requests in flight on which nothing
    /// arrives for this long is dropped.
    pub node_silence: Duration,
    /// `node_queue`: operations under way on one node before an acquire is refused.
    pub node_queue: usize,
    /// `drift_factor`: the share of the TTL set aside for clock drift.
    pub drift_factor: f64,
    /// `fence_ttl`: how long a node remembers a lock's last fence.
    pub fence_ttl: Duration,
    /// `max_key`: longest key of a lock, in bytes, without the prefix.
    pub max_key: usize,
    /// `max_token`: longest token, in bytes.
    pub max_token: usize,
    /// `authorize_cache`: how long a connection's permission for a key is remembered.
    pub authorize_cache: Duration,
}
