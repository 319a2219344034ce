//! Counters of client connections and of reloads of the configuration, and gauges set once a second.

use std::{
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use metrics::{Counter, Gauge, counter, describe_counter, describe_gauge, gauge};

use crate::{metrics::labels, session::session_metrics::CloseReason};

labels! {
    /// Reason why a client was not let in; the label `reason` of
    /// `lockgate_clients_refused_total`.
    pub(super) enum Refusal {
        /// `maxclients`.
        MaxClients = "maxclients",
        /// `max_clients_per_address`.
        PerAddress = "per_address",
        /// `max_connect_rate`.
        ConnectRate = "connect_rate",
        /// No PROXY header came, or none in time, where `proxy_protocol` demands one.
        ProxyHeader = "proxy_header",
        /// The client comes from elsewhere, and the data node is not known to ask for a password
        /// (`allow_open`).
        Open = "open",
    }
}

/// Gives each metric its help text. Install the recorder first.
pub(super) fn describe() {
    describe_gauge!("lockgate_client_connections", "Client connections open now.");
    describe_counter!("lockgate_client_connections_total", "Clients let in.");
    describe_counter!(
        "lockgate_clients_refused_total",
        "Clients told that they may not come in, and closed, by reason."
    );
    describe_counter!(
        "lockgate_accept_errors_total",
        "Failures to accept connections, as for want of file descriptors."
    );
    describe_counter!("lockgate_closes_total", "Client connections ended, by reason.");
    describe_counter!(
        "lockgate_config_reloads_total",
        "Times the configuration was read again (SIGHUP), by result."
    );
    describe_gauge!(
        "lockgate_config_last_success_timestamp_seconds",
        "When the configuration was last read with success, in seconds since 1970."
    );
    describe_counter!(
        "lockgate_admin_actions_total",
        "What operators have done at the admin address, or tried to, by action and result."
    );
    describe_gauge!("lockgate_ready", "1 while /readyz says 200.");
    describe_gauge!("lockgate_data_up", "1 while the data node answers a PING of the proxy's own.");
    describe_counter!(
        "lockgate_upstream_connects_total",
        "Connections to the data node made for clients, by result."
    );
    describe_gauge!("lockgate_nodes", "Lock nodes there are.");
    describe_gauge!("lockgate_quorum", "Lock nodes that must vote for a lock to be granted.");
    describe_gauge!(
        "lockgate_quorum_slack",
        "Lock nodes that may still fail or become slow before locks stop; below 0: they have."
    );
    describe_gauge!("lockgate_paused", "1 while an operator has new LOCKs wait (LOCKGATE PAUSE).");
    describe_gauge!("lockgate_leases", "Leases granted here and held now, as far as is known.");
    describe_gauge!(
        "lockgate_adopted_locks",
        "Those among the locks held that adopted commands took."
    );
    describe_gauge!(
        "lockgate_oldest_hold_seconds",
        "How long ago the lock was granted that has been held here the longest."
    );
    describe_gauge!(
        "lockgate_longest_wait_seconds",
        "For how long the client has waited in line that has waited the longest."
    );
    describe_gauge!(
        "lockgate_audit_trail_stalled_seconds",
        "For how long no line could be written while lines of the audit trail waited."
    );
}

/// Handles for client connections.
pub(super) struct DoorMetrics {
    /// Clients connected now.
    pub clients: Gauge,
    /// Clients let in since the start.
    pub clients_total: Counter,
    /// Failures to accept connections.
    pub accept_errors: Counter,
    /// Connections to the data node made for clients.
    pub upstream_connects_ok: Counter,
    /// Connections to the data node that could not be made.
    pub upstream_connects_failed: Counter,
    /// Closed connections, by [`CloseReason`].
    closes: Vec<Counter>,
    /// Clients not let in, by [`Refusal`].
    refused: Vec<Counter>,
}

impl DoorMetrics {
    /// Makes the handles. Install the recorder first: handles made before count nothing.
    pub(super) fn new() -> Arc<DoorMetrics> {
        let connects =
            |result: &'static str| counter!("lockgate_upstream_connects_total", "result" => result);
        let close =
            |reason: CloseReason| counter!("lockgate_closes_total", "reason" => reason.as_str());
        let refused = |reason: Refusal| counter!("lockgate_clients_refused_total", "reason" => reason.as_str());
        Arc::new(DoorMetrics {
            clients: gauge!("lockgate_client_connections"),
            clients_total: counter!("lockgate_client_connections_total"),
            accept_errors: counter!("lockgate_accept_errors_total"),
            upstream_connects_ok: connects("ok"),
            upstream_connects_failed: connects("failed"),
            closes: CloseReason::ALL.map(close).into(),
            refused: Refusal::ALL.map(refused).into(),
        })
    }

    pub(super) fn closed(&self, reason: CloseReason) {
        self.closes[reason as usize].increment(1);
    }

    pub(super) fn refused(&self, reason: Refusal) {
        self.refused[reason as usize].increment(1);
    }
}

/// Handles of the gauges that are set once a second.
pub(super) struct StateMetrics {
    /// 1 while /readyz says 200.
    pub ready: Gauge,
    /// 1 while the data node answers.
    pub data_up: Gauge,
    /// Number of lock nodes.
    pub nodes: Gauge,
    /// Number of lock nodes that must vote.
    pub quorum: Gauge,
    /// Number of usable lock nodes beyond the quorum.
    pub quorum_slack: Gauge,
    /// 1 while an operator has new LOCKs wait.
    pub paused: Gauge,
    /// Leases held now.
    pub leases: Gauge,
    /// Held locks that adopted commands took.
    pub adopted_locks: Gauge,
    /// Age of the longest-held lock, in seconds.
    pub oldest_hold: Gauge,
    /// Waiting time of the longest-waiting client, in seconds.
    pub longest_wait: Gauge,
    /// How long nothing has been written although lines of the audit trail wait, in seconds.
    pub audit_trail_stalled: Gauge,
}

impl StateMetrics {
    pub(super) fn new() -> StateMetrics {
        StateMetrics {
            ready: gauge!("lockgate_ready"),
            data_up: gauge!("lockgate_data_up"),
            nodes: gauge!("lockgate_nodes"),
            quorum: gauge!("lockgate_quorum"),
            quorum_slack: gauge!("lockgate_quorum_slack"),
            paused: gauge!("lockgate_paused"),
            leases: gauge!("lockgate_leases"),
            adopted_locks: gauge!("lockgate_adopted_locks"),
            oldest_hold: gauge!("lockgate_oldest_hold_seconds"),
            longest_wait: gauge!("lockgate_longest_wait_seconds"),
            audit_trail_stalled: gauge!("lockgate_audit_trail_stalled_seconds"),
        }
    }
}

labels! {
    /// What an operator asked for at the admin address; the label `action` of `lockgate_admin_actions_total`.
    pub(super) enum AdminAction {
        /// A token was to be checked, and nothing else done.
        Token = "token",
        /// A lock was to be freed.
        Unlock = "unlock",
        /// A lock node was to be asked for no new locks.
        Pause = "pause",
        /// A lock node was to be asked again.
        Resume = "resume",
    }
}

labels! {
    /// The outcome of an action; the label `result`.
    pub(super) enum ActionResult {
        /// It was done. Freeing a lock that was not held counts too.
        Ok = "ok",
        /// The request made no sense, or is not allowed now.
        Refused = "refused",
        /// The sender is not allowed to do it.
        Denied = "denied",
        /// The lock nodes, or the data node, did not do their part.
        Failed = "failed",
    }
}

/// Handles for actions of operators at the admin address, by [`AdminAction`], then [`ActionResult`].
pub(super) struct ActionMetrics(Vec<Vec<Counter>>);

impl ActionMetrics {
    pub(super) fn new() -> ActionMetrics {
        let handle = |action: AdminAction, result: ActionResult| {
            counter!("lockgate_admin_actions_total",
                "action" => action.as_str(), "result" => result.as_str())
        };
        let of = |action| ActionResult::ALL.map(|result| handle(action, result)).into();
        ActionMetrics(AdminAction::ALL.map(of).into())
    }

    /// Counts a request.
    pub(super) fn count(&self, action: AdminAction, result: ActionResult) {
        self.0[action as usize][result as usize].increment(1);
    }
}

/// Handles for readings of the configuration.
pub(super) struct ReloadMetrics {
    /// Readings that could be used.
    pub ok: Counter,
    /// Readings that could not be used; nothing changed.
    pub failed: Counter,
    /// Time of the last successful reading, in seconds since 1970.
    pub last_success: Gauge,
}

impl ReloadMetrics {
    pub(super) fn new() -> ReloadMetrics {
        let reloads =
            |result: &'static str| counter!("lockgate_config_reloads_total", "result" => result);
        ReloadMetrics {
            ok: reloads("ok"),
            failed: reloads("failed"),
            last_success: gauge!("lockgate_config_last_success_timestamp_seconds"),
        }
    }

    /// Notes a success now.
    pub(super) fn succeeded_now(&self) {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.last_success.set(since.as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{
        lock::lock_metrics::{LockMetrics, NodeMetrics},
        metrics::counted,
        net::tls::tls_metrics::TlsMetrics,
        session::session_metrics::Metrics,
    };

    #[test]
    fn everything_is_there_at_zero_before_anything_happened() {
        // Other tests count at the same time, in other threads.
        let text = counted(|| {
            let _doors = DoorMetrics::new();
            let _sessions = Metrics::new();
            let _locks = LockMetrics::new();
            let _node = NodeMetrics::new(7, "10.0.0.7:6379", Duration::from_millis(50));
            let _tls = TlsMetrics::new("client");
            let _reloads = ReloadMetrics::new();
            let _state = StateMetrics::new();
            let _actions = ActionMetrics::new();
        });
        for line in [
            r#"lockgate_closes_total{reason="first_byte"} 0"#,
            r#"lockgate_clients_refused_total{reason="connect_rate"} 0"#,
            r#"lockgate_clients_refused_total{reason="proxy_header"} 0"#,
            r#"lockgate_accept_errors_total 0"#,
            r#"lockgate_commands_total{command="renew"} 0"#,
            r#"lockgate_lock_requests_total{operation="lock",result="no_quorum"} 0"#,
            r#"lockgate_lock_request_seconds_bucket{operation="unlock",le="0.0001"} 0"#,
            r#"lockgate_lock_request_seconds_count{operation="unlock"} 0"#,
            r#"lockgate_waiters 0"#,
            r#"lockgate_ready 0"#,
            r#"lockgate_grants_total{kind="session"} 0"#,
            r#"lockgate_hold_seconds_bucket{le="3600"} 0"#,
            r#"lockgate_wakeups_total{cause="message"} 0"#,
            r#"lockgate_renewals_total{result="retried"} 0"#,
            r#"lockgate_lost_locks_total{reason="max_hold"} 0"#,
            r#"lockgate_hold_seconds_count 0"#,
            r#"lockgate_tls_handshake_failures_total{side="client"} 0"#,
            r#"lockgate_tls_reloads_total{side="client",result="failed"} 0"#,
            r#"lockgate_config_reloads_total{result="failed"} 0"#,
            r#"lockgate_admin_actions_total{action="unlock",result="denied"} 0"#,
            r#"lockgate_node_up{node="7",address="10.0.0.7:6379"} 0"#,
        ] {
            assert!(text.contains(line), "{line} is missing in\n{text}");
        }
    }
}
