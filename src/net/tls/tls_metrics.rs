//! Counters of TLS on each side.

use metrics::{Counter, Unit, counter, describe_counter, describe_gauge, gauge};

use crate::config::CertificateTimes;

/// Gives each metric its help text. The recorder must be installed before.
pub(crate) fn describe() {
    describe_counter!("lockgate_tls_handshake_failures_total", "TLS handshakes failed, by side.");
    describe_counter!(
        "lockgate_tls_reloads_total",
        "Certificates read again because their files had changed, by side and result."
    );
    describe_gauge!(
        "lockgate_tls_certificate_not_after_timestamp_seconds",
        Unit::Seconds,
        "When the certificate that the proxy shows ends, or the last of the CAs that it trusts, in seconds since \
         1970, by side and place."
    );
}

/// The TLS metrics of one side: the label `side` is `client`, `data` or `node`.
#[derive(Clone)]
pub(crate) struct TlsMetrics {
    side: &'static str,
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
            side,
            handshake_failures: counter!("lockgate_tls_handshake_failures_total", "side" => side),
            reloads_ok: reloads("ok"),
            reloads_failed: reloads("failed"),
        }
    }

    /// Sets the gauge of when certificates end. `place` is the name in the log.
    pub(super) fn end(&self, place: &str, times: &[CertificateTimes]) {
        for CertificateTimes { key, ends, .. } in times {
            let place = match *key {
                "cert_file" => place.to_owned(),
                key => format!("{place}, {key}"),
            };
            gauge!("lockgate_tls_certificate_not_after_timestamp_seconds",
                "side" => self.side, "place" => place)
            .set(*ends as f64);
        }
    }
}
