//! Counters of TLS on each side.

use metrics::{Counter, counter, describe_counter};

/// Gives each metric its help text. Install the recorder first.
pub(crate) fn describe() {
    describe_counter!("lockgate_tls_handshake_failures_total", "TLS handshakes failed, by side.");
    describe_counter!(
        "lockgate_tls_reloads_total",
        "Certificates read again because their files had changed, by side and result."
    );
}

/// Handles of TLS on one side; the label `side` is `client`, `data` or `node`.
#[derive(Clone)]
pub(crate) struct TlsMetrics {
    /// Handshakes that were not finished.
    pub handshake_failures: Counter,
    /// Changed files that were read.
    pub reloads_ok: Counter,
    /// Changed files that could not be used.
    pub reloads_failed: Counter,
}

impl TlsMetrics {
    /// Makes the handles.
    pub(crate) fn new(side: &'static str) -> TlsMetrics {
        let reloads = |result: &'static str| counter!("lockgate_tls_reloads_total", "side" => side, "result" => result);
        TlsMetrics {
            handshake_failures: counter!("lockgate_tls_handshake_failures_total", "side" => side),
            reloads_ok: reloads("ok"),
            reloads_failed: reloads("failed"),
        }
    }
}
