//! Names and handles of everything that is counted.
//!
//! Handles are made once, because looking one up costs ten times what counting
//! does. Labels never carry a key, a token or a user.

use std::{
    io,
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::Context as _;
use metrics::{
    Counter, Gauge, Histogram, Unit, counter, describe_counter, describe_gauge, describe_histogram,
    gauge, histogram,
};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

/// Makes an enum of the values of a label, such as why a connection ended. A value's
/// number is its place in `ALL`, and so among handles that are made from that.
macro_rules! labels {
    ($(#[$about:meta])* $vis:vis enum $name:ident {
        $($(#[$meaning:meta])* $value:ident = $label:literal,)+
    }) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        $vis enum $name { $($(#[$meaning])* $value,)+ }

        impl $name {
            /// Every value, each at its own number.
            $vis const ALL: [$name; [$($label),+].len()] = [$($name::$value),+];

            /// How it is called in the label.
            $vis fn as_str(self) -> &'static str {
                match self { $($name::$value => $label,)+ }
            }
        }
    };
}
pub(crate) use labels;

labels! {
    /// Why a client's connection ended; the label `reason` of `lockgate_closes_total`.
    pub enum CloseReason {
        /// The client closed or reset its connection.
        Client = "client",
        /// The data node closed or reset its connection.
        Upstream = "upstream",
        /// The data node could not be reached when the client connected.
        UpstreamConnect = "upstream_connect",
        /// A barrier's reply buffer was full because the client did not read.
        BarrierBuffer = "barrier_buffer",
        /// The client asked with QUIT while its replies were off.
        Quit = "quit",
        /// The proxy shuts down.
        Shutdown = "shutdown",
        /// The client said nothing within `first_byte_timeout`.
        FirstByte = "first_byte",
        /// Its session lock was lost (`locks.on_lost`).
        LockLost = "lock_lost",
        /// It did not finish its TLS handshake.
        TlsHandshake = "tls_handshake",
        /// Its replies could no longer be followed, so that guards could have been passed by.
        Unguarded = "unguarded",
    }
}

labels! {
    /// Why a client was not let in; the label `reason` of `lockgate_clients_refused_total`.
    pub enum Refusal {
        /// `maxclients`.
        MaxClients = "maxclients",
        /// `max_clients_per_address`.
        PerAddress = "per_address",
        /// `max_connect_rate`.
        ConnectRate = "connect_rate",
        /// It sent no PROXY header, or not in time, where one is demanded
        /// (`proxy_protocol`).
        ProxyHeader = "proxy_header",
        /// It comes from elsewhere, and the data node is not known to ask for a
        /// password (`allow_open`).
        Open = "open",
    }
}

labels! {
    /// What became of a write to guarded keys; the label `result` of
    /// `lockgate_guarded_writes_total`.
    pub enum GuardedWrite {
        /// It was made under its locks.
        Passed = "passed",
        /// The connection did not hold them, or no lock could allow it.
        NotHeld = "notheld",
        /// The data node has seen a larger fence.
        Fenced = "fenced",
        /// It was let through without its lock, as the policy is audit.
        Audited = "audited",
        /// It could not be checked.
        Refused = "refused",
    }
}

labels! {
    /// What one of our commands asks of the nodes; the label `operation`.
    pub enum Operation {
        /// LOCK.
        Lock = "lock",
        /// UNLOCK.
        Unlock = "unlock",
        /// RENEW.
        Renew = "renew",
        /// LOCK.ATTACH.
        Attach = "lock.attach",
        /// LOCK.DETACH, which asks nothing.
        Detach = "lock.detach",
    }
}

labels! {
    /// How one of our commands ended; the label `result`.
    pub enum Outcome {
        /// Granted, released, renewed, attached or detached.
        Ok = "ok",
        /// Held by another, or not free in time (LOCK).
        Busy = "busy",
        /// Not held by that token (UNLOCK, RENEW, LOCK.ATTACH), or not attached (LOCK.DETACH).
        NotHeld = "not_held",
        /// Too few nodes answered.
        NoQuorum = "no_quorum",
        /// The words of the command were refused.
        BadRequest = "bad_request",
        /// The data node would not let this client SET the lock key.
        Denied = "denied",
        /// The client went away before the answer.
        Aborted = "aborted",
        /// Too many waited.
        QueueFull = "queue_full",
    }
}

/// How often samples are folded into buckets; left alone they pile up
/// (110 MB after ten million).
const UPKEEP_EVERY: Duration = Duration::from_secs(5);
/// Buckets of durations in seconds: a loopback round trip to an hour in which a lock is
/// held.
const SECONDS: [f64; 20] = [
    0.0001, 0.000_25, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
    5.0, 10.0, 30.0, 60.0, 300.0, 3600.0,
];

/// Where counted values are kept and rendered.
#[derive(Clone)]
pub struct Recorder(PrometheusHandle);

impl Recorder {
    /// All metrics in Prometheus's text format.
    pub fn render(&self) -> String {
        self.0.render()
    }
}

/// Makes this process count, and keeps what it counts bounded in memory.
/// Further calls give the same recorder.
///
/// # Errors
/// If somebody else installed a recorder before, or no thread can be started.
pub fn install() -> anyhow::Result<Recorder> {
    // Held while installing: whoever comes second must get the first one's recorder.
    static RECORDER: Mutex<Option<Recorder>> = Mutex::new(None);
    let mut installed = RECORDER.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(recorder) = &*installed {
        return Ok(recorder.clone());
    }
    let handle = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".into()), &SECONDS)?
        .install_recorder()
        .context("cannot install the metrics recorder")?;
    keep_up(handle.clone()).context("cannot start the metrics thread")?;
    describe();
    gauge!("lockgate_build_info", "version" => env!("CARGO_PKG_VERSION")).set(1.0);
    Ok(installed.insert(Recorder(handle)).clone())
}

/// Folds samples for as long as the process runs, scraped or not. A thread and
/// not a task: the recorder outlives any one runtime.
fn keep_up(handle: PrometheusHandle) -> io::Result<()> {
    let run = move || {
        loop {
            thread::sleep(UPKEEP_EVERY);
            handle.run_upkeep();
        }
    };
    thread::Builder::new().name("metrics".into()).spawn(run).map(drop)
}

fn describe() {
    describe_gauge!("lockgate_build_info", "Always 1; the label tells the version.");
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
    describe_counter!(
        "lockgate_received_bytes_total",
        "Bytes received, from clients and from the data node."
    );
    describe_counter!("lockgate_commands_total", "Commands of clients, by kind.");
    describe_counter!("lockgate_protocol_errors_total", "Requests that Redis refuses to parse.");
    describe_counter!("lockgate_guarded_writes_total", "Writes to guarded keys, by result.");
    describe_counter!("lockgate_closes_total", "Client connections ended, by reason.");
    describe_counter!(
        "lockgate_guard_fences_ahead_total",
        "LOCKs whose fence on the data node was more than a day ahead of the clock."
    );
    describe_counter!(
        "lockgate_barrier_waits_total",
        "LOCK, UNLOCK and RENEW that had to wait for earlier replies of their connection."
    );
    describe_histogram!(
        "lockgate_barrier_wait_seconds",
        Unit::Seconds,
        "How long LOCK, UNLOCK and RENEW waited for earlier replies."
    );
    describe_counter!(
        "lockgate_lock_requests_total",
        "LOCK, UNLOCK and RENEW answered, by operation and result."
    );
    describe_histogram!(
        "lockgate_lock_request_seconds",
        Unit::Seconds,
        "From asking the lock nodes to the answer."
    );
    describe_counter!(
        "lockgate_config_reloads_total",
        "Times the configuration was read again (SIGHUP), by result."
    );
    describe_gauge!(
        "lockgate_config_last_success_timestamp_seconds",
        "When the configuration was last read with success, in seconds since 1970."
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
    describe_counter!("lockgate_grants_total", "LOCKs granted, by kind: lease or session.");
    describe_gauge!("lockgate_leases", "Leases granted here and held now, as far as is known.");
    describe_gauge!(
        "lockgate_oldest_hold_seconds",
        "How long ago the lock was granted that has been held here the longest."
    );
    describe_gauge!(
        "lockgate_longest_wait_seconds",
        "For how long the client has waited in line that has waited the longest."
    );
}

/// Handles of clients' coming and going.
pub struct DoorMetrics {
    /// Open now.
    pub clients: Gauge,
    /// Let in since the start.
    pub clients_total: Counter,
    /// Failures to accept connections.
    pub accept_errors: Counter,
    /// Connections to the data node made for clients.
    pub upstream_connects_ok: Counter,
    /// Those that could not be made.
    pub upstream_connects_failed: Counter,
    /// By [`CloseReason`].
    closes: Vec<Counter>,
    /// By [`Refusal`].
    refused: Vec<Counter>,
}

impl DoorMetrics {
    /// Makes the handles. Install the recorder first: handles made before go nowhere.
    pub fn new() -> Arc<DoorMetrics> {
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

    /// Counts one closed connection.
    pub fn closed(&self, reason: CloseReason) {
        self.closes[reason as usize].increment(1);
    }

    /// Counts one client that was not let in.
    pub fn refused(&self, reason: Refusal) {
        self.refused[reason as usize].increment(1);
    }
}

/// Handles of what clients send, and of our own commands.
pub struct Metrics {
    /// Leases granted.
    grants_lease: Counter,
    /// Session locks granted.
    grants_session: Counter,
    /// Bytes received from clients.
    pub bytes_from_clients: Counter,
    /// Bytes received from the data node.
    pub bytes_from_data: Counter,
    /// LOCKs.
    pub commands_lock: Counter,
    /// UNLOCKs.
    pub commands_unlock: Counter,
    /// RENEWs.
    pub commands_renew: Counter,
    /// LOCK.ATTACHes.
    pub commands_attach: Counter,
    /// LOCK.DETACHes.
    pub commands_detach: Counter,
    /// LOCKGATE, and COMMAND about commands of ours.
    pub commands_lockgate: Counter,
    /// Commands forwarded.
    pub commands_other: Counter,
    /// Requests that Redis refuses to parse.
    pub protocol_errors: Counter,
    /// Own commands that had to wait for earlier replies.
    pub barrier_waits: Counter,
    /// LOCKs that found a fence on the data node that no clock can have made.
    pub fences_ahead: Counter,
    /// For how long.
    pub barrier_wait_seconds: Histogram,
    /// By [`GuardedWrite`].
    guarded: Vec<Counter>,
    /// By [`Operation`], then [`Outcome`].
    requests: Vec<Vec<Counter>>,
    /// By [`Operation`].
    request_seconds: Vec<Histogram>,
}

impl Metrics {
    /// Makes the handles. Install the recorder first: handles made before go nowhere.
    pub fn new() -> Arc<Metrics> {
        let commands = |kind: &'static str| counter!("lockgate_commands_total", "command" => kind);
        let request = |operation: Operation, outcome: Outcome| {
            counter!("lockgate_lock_requests_total",
                "operation" => operation.as_str(), "result" => outcome.as_str())
        };
        let grants = |kind: &'static str| counter!("lockgate_grants_total", "kind" => kind);
        Arc::new(Metrics {
            grants_lease: grants("lease"),
            grants_session: grants("session"),
            bytes_from_clients: counter!("lockgate_received_bytes_total", "from" => "client"),
            bytes_from_data: counter!("lockgate_received_bytes_total", "from" => "data"),
            commands_lock: commands("lock"),
            commands_unlock: commands("unlock"),
            commands_renew: commands("renew"),
            commands_attach: commands("lock.attach"),
            commands_detach: commands("lock.detach"),
            commands_lockgate: commands("lockgate"),
            commands_other: commands("other"),
            protocol_errors: counter!("lockgate_protocol_errors_total"),
            barrier_waits: counter!("lockgate_barrier_waits_total"),
            fences_ahead: counter!("lockgate_guard_fences_ahead_total"),
            barrier_wait_seconds: histogram!("lockgate_barrier_wait_seconds"),
            guarded: GuardedWrite::ALL
                .map(|result| counter!("lockgate_guarded_writes_total", "result" => result.as_str()))
                .into(),
            requests: Operation::ALL
                .map(|operation| Outcome::ALL.map(|outcome| request(operation, outcome)).into())
                .into(),
            request_seconds: Operation::ALL
                .map(|operation| {
                    histogram!("lockgate_lock_request_seconds", "operation" => operation.as_str())
                })
                .into(),
        })
    }

    /// Counts one LOCK that was granted.
    pub fn granted(&self, is_session_lock: bool) {
        let grants = if is_session_lock { &self.grants_session } else { &self.grants_lease };
        grants.increment(1);
    }

    /// Counts one write to guarded keys.
    pub fn guarded(&self, result: GuardedWrite) {
        self.guarded[result as usize].increment(1);
    }

    /// Counts one lock request and how long it took.
    pub fn lock_request(&self, operation: Operation, outcome: Outcome, took: Duration) {
        self.requests[operation as usize][outcome as usize].increment(1);
        self.request_seconds[operation as usize].record(took.as_secs_f64());
    }
}

/// Handles of what is looked at once a second.
pub struct StateMetrics {
    /// 1 while /readyz says 200.
    pub ready: Gauge,
    /// 1 while the data node answers.
    pub data_up: Gauge,
    /// Lock nodes there are.
    pub nodes: Gauge,
    /// Of them, so many must vote.
    pub quorum: Gauge,
    /// So many of them may still fail.
    pub quorum_slack: Gauge,
    /// Leases held now.
    pub leases: Gauge,
    /// In seconds, of the lock held the longest.
    pub oldest_hold: Gauge,
    /// In seconds, of who waits the longest.
    pub longest_wait: Gauge,
}

impl StateMetrics {
    /// Makes the handles.
    pub fn new() -> StateMetrics {
        StateMetrics {
            ready: gauge!("lockgate_ready"),
            data_up: gauge!("lockgate_data_up"),
            nodes: gauge!("lockgate_nodes"),
            quorum: gauge!("lockgate_quorum"),
            quorum_slack: gauge!("lockgate_quorum_slack"),
            leases: gauge!("lockgate_leases"),
            oldest_hold: gauge!("lockgate_oldest_hold_seconds"),
            longest_wait: gauge!("lockgate_longest_wait_seconds"),
        }
    }
}

impl Default for StateMetrics {
    fn default() -> StateMetrics {
        StateMetrics::new()
    }
}

/// Handles of what is told when the configuration is read again.
pub struct ReloadMetrics {
    /// It was read and could be used.
    pub ok: Counter,
    /// It could not be used; nothing changed.
    pub failed: Counter,
    /// When it was last read with success, in seconds since 1970.
    pub last_success: Gauge,
}

impl ReloadMetrics {
    /// Makes the handles.
    pub fn new() -> ReloadMetrics {
        let reloads =
            |result: &'static str| counter!("lockgate_config_reloads_total", "result" => result);
        ReloadMetrics {
            ok: reloads("ok"),
            failed: reloads("failed"),
            last_success: gauge!("lockgate_config_last_success_timestamp_seconds"),
        }
    }

    /// Notes a success now.
    pub fn succeeded_now(&self) {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.last_success.set(since.as_secs_f64());
    }
}

impl Default for ReloadMetrics {
    fn default() -> ReloadMetrics {
        ReloadMetrics::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        lock::metrics::{LockMetrics, NodeMetrics},
        net::tls::metrics::TlsMetrics,
    };

    #[test]
    fn installing_from_many_threads_gives_one_recorder() {
        let threads: Vec<_> = (0..8).map(|_| thread::spawn(install)).collect();
        for thread in threads {
            thread.join().unwrap().unwrap();
        }
        assert!(install().unwrap().render().contains("lockgate_build_info{"));
    }

    #[test]
    fn everything_is_there_at_zero_before_anything_happened() {
        let recorder = install().unwrap();
        let _doors = DoorMetrics::new();
        let _sessions = Metrics::new();
        let _locks = LockMetrics::new();
        let _node = NodeMetrics::new(7, "10.0.0.7:6379", Duration::from_millis(50));
        let _tls = TlsMetrics::new("client");
        let _reloads = ReloadMetrics::new();
        let _state = StateMetrics::new();
        let text = recorder.render();
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
            r#"lockgate_node_up{node="7",address="10.0.0.7:6379"} 0"#,
        ] {
            assert!(text.contains(line), "{line} is missing in\n{text}");
        }
    }

    labels! {
        /// Of a test.
        enum Side {
            /// Not right.
            Left = "left",
            /// Not left.
            Right = "right_hand",
        }
    }

    #[test]
    fn each_value_of_a_label_is_called_so_and_stands_at_its_number() {
        assert_eq!(Side::ALL.map(Side::as_str), ["left", "right_hand"]);
        assert_eq!(Side::ALL.map(|side| side as usize), [0, 1]);
    }
}
