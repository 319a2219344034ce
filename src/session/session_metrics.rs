//! Counters of clients' commands, and the labels for outcomes.

use std::{sync::Arc, time::Duration};

use metrics::{Counter, Histogram, Unit, counter, describe_counter, describe_histogram, histogram};

use super::earlier::{self, EarlierProcesses};
use crate::{
    data::write_refusals::DataRefusals,
    metrics::{Tallied, labels},
};

labels! {
    /// Why a client's connection ended; the label `reason` of `lockgate_closes_total`.
    pub(crate) enum CloseReason {
        /// The client closed or reset its connection.
        Client = "client",
        /// The data node closed or reset its connection.
        Upstream = "upstream",
        /// The data node could not be reached when the client connected.
        UpstreamConnect = "upstream_connect",
        /// The data node of the connection is not the data node any more.
        DataMoved = "data_moved",
        /// The client did not read, while a command of its own waited for replies
        /// (`barrier_buffer`).
        BarrierBuffer = "barrier_buffer",
        /// The client took a large reply over a shared connection too slowly for those behind it (`share`).
        SlowReader = "slow_reader",
        /// The client sent QUIT with its replies off, or bytes upon which Redis closes, and the data node did not
        /// close within a second.
        Quit = "quit",
        /// The proxy shuts down.
        Shutdown = "shutdown",
        /// The client sent nothing within `first_byte_timeout`.
        FirstByte = "first_byte",
        /// The client's session lock was lost (`locks.on_lost`).
        LockLost = "lock_lost",
        /// The client did not finish its TLS handshake.
        TlsHandshake = "tls_handshake",
        /// The replies could no longer be followed, as guards, adopt rules or a cluster's fronts need.
        Unguarded = "unguarded",
        /// Too few lock nodes answered about an adopted lock (`no_quorum`).
        NoQuorum = "no_quorum",
    }
}

labels! {
    /// Result of a write to guarded keys; the label `result` of `lockgate_guarded_writes_total`.
    pub(crate) enum GuardedWrite {
        /// The write was made under its locks.
        Passed = "passed",
        /// The connection did not hold the locks, or no lock could allow the write.
        NotHeld = "notheld",
        /// The data node has seen a larger fence.
        Fenced = "fenced",
        /// The write passed without its lock, as the policy is audit.
        Audited = "audited",
        /// The write could not be checked.
        Refused = "refused",
    }
}

labels! {
    /// Operation that one of our commands asks of the lock nodes; the label `operation`.
    pub(crate) enum Verb {
        Lock = "lock",
        Unlock = "unlock",
        Renew = "renew",
        Attach = "lock.attach",
        /// LOCK.DETACH, which asks the lock nodes nothing.
        Detach = "lock.detach",
    }
}

labels! {
    /// How one of our commands ended; the label `result`.
    pub(crate) enum Outcome {
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
        /// Another node of the cluster has the slot of the lock's fence, or none has it now.
        Elsewhere = "elsewhere",
        /// The client went away before the answer.
        Aborted = "aborted",
        /// Too many clients waited for the lock.
        QueueFull = "queue_full",
        /// The audit trail could not be written.
        Unwritten = "unwritten",
    }
}

labels! {
    /// How LOCKGATE UNLOCK ended; the label `result` of `lockgate_operator_unlocks_total`.
    pub(crate) enum TakenBack {
        /// The lock was taken back.
        Ok = "ok",
        /// Nobody held it, or not by that fence.
        NotHeld = "not_held",
        /// Too few lock nodes answered.
        NoQuorum = "no_quorum",
        /// The data node did not take a larger fence, or what lies at the lock's key is no token.
        Failed = "failed",
        /// The operator's connection, or the proxy, ended before it was known.
        Aborted = "aborted",
    }
}

labels! {
    /// Why an UNLOCK or RENEW has left a lock to its holder; the label `why` of
    /// `lockgate_left_alone_total`.
    pub(crate) enum LeftAlone {
        /// It named no token, and the last LOCK without one on its connection was refused.
        Unnamed = "unnamed",
        /// Its token has the lock by the grant that stood in the way of a LOCK on its connection.
        Refused = "refused",
        /// As `Refused`, but not for certain.
        Unsure = "unsure",
    }
}

labels! {
    /// What an operator has done for maintenance; the label `action` of
    /// `lockgate_operator_actions_total`.
    pub(crate) enum Maintenance {
        /// LOCKGATE NODE … PAUSE.
        PauseNode = "pause_node",
        /// LOCKGATE NODE … RESUME.
        ResumeNode = "resume_node",
        /// LOCKGATE PAUSE.
        Pause = "pause",
        /// LOCKGATE UNPAUSE.
        Unpause = "unpause",
    }
}

/// Gives each metric its help text. The recorder must be installed.
pub(crate) fn describe() {
    earlier::describe();
    describe_counter!(
        "lockgate_received_bytes_total",
        "Bytes received, from clients and from the data node."
    );
    describe_counter!("lockgate_commands_total", "Commands of clients, by kind.");
    describe_counter!("lockgate_protocol_errors_total", "Requests that Redis refuses to parse.");
    describe_counter!("lockgate_guarded_writes_total", "Writes to guarded keys, by result.");
    describe_counter!(
        "lockgate_guard_fences_ahead_total",
        "LOCKs whose fence on the data node was more than a day ahead of the clock."
    );
    describe_counter!(
        "lockgate_guard_unacknowledged_total",
        "Fences refused (of=\"lock\") and writes warned of (of=\"write\") as too few replicas had \
         acknowledged them."
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
        "lockgate_operator_unlocks_total",
        "Locks that operators took back, or tried to (LOCKGATE UNLOCK), by result."
    );
    describe_counter!(
        "lockgate_operator_actions_total",
        "Lock nodes paused and resumed by operators (LOCKGATE NODE), and pauses of new LOCKs (LOCKGATE \
         PAUSE), by action and result."
    );
    describe_counter!(
        "lockgate_adopt_retries_total",
        "Times that the lock nodes were asked again for an adopted command, as too few had answered."
    );
    describe_counter!(
        "lockgate_left_alone_total",
        "UNLOCKs and RENEWs behind a refused LOCK that left a lock to its holder, by reason."
    );
    describe_counter!("lockgate_grants_total", "LOCKs granted, by kind: lease or session.");
}

/// Handles of the counters of clients' bytes and commands, and of our own commands.
pub(crate) struct Metrics {
    grants_lease: Tallied,
    grants_session: Tallied,
    pub bytes_from_clients: Counter,
    pub bytes_from_data: Counter,
    pub commands_lock: Counter,
    pub commands_unlock: Counter,
    pub commands_renew: Counter,
    pub commands_attach: Counter,
    pub commands_detach: Counter,
    /// LOCKGATE, and COMMAND about commands of ours.
    pub commands_lockgate: Counter,
    pub commands_other: Counter,
    /// Requests that Redis refuses to parse.
    pub protocol_errors: Counter,
    /// Own commands that had to wait for earlier replies.
    pub barrier_waits: Counter,
    /// LOCKs whose fence on the data node was so large that no clock can have made it.
    pub fences_ahead: Counter,
    /// Locks refused as too few replicas had acknowledged their fences.
    pub unacknowledged_locks: Counter,
    /// Guarded writes that too few replicas had acknowledged.
    pub unacknowledged_writes: Counter,
    /// Processes from before upgrades that still have clients.
    pub earlier: Arc<EarlierProcesses>,
    /// What the data node has refused, on any connection.
    pub refusals: Arc<DataRefusals>,
    /// How long commands of ours waited for earlier replies.
    pub barrier_wait_seconds: Histogram,
    /// Adopted commands for which the lock nodes are asked again.
    pub adopt_retries: Counter,
    /// By [`TakenBack`].
    taken_back: Vec<Tallied>,
    /// By [`LeftAlone`].
    left_alone: Vec<Counter>,
    /// By [`Maintenance`]: those done, and those refused.
    maintenance: Vec<[Counter; 2]>,
    /// By [`GuardedWrite`].
    guarded: Vec<Tallied>,
    /// By [`Verb`], then [`Outcome`].
    requests: Vec<Vec<Tallied>>,
    /// By [`Verb`].
    request_seconds: Vec<Histogram>,
}

impl Metrics {
    /// Makes the handles. The recorder must be installed: handles made before it lead nowhere.
    pub(crate) fn new() -> Arc<Metrics> {
        let commands = |kind: &'static str| counter!("lockgate_commands_total", "command" => kind);
        let request = |operation: Verb, outcome: Outcome| {
            Tallied::new(counter!("lockgate_lock_requests_total",
                "operation" => operation.as_str(), "result" => outcome.as_str()))
        };
        let grants =
            |kind: &'static str| Tallied::new(counter!("lockgate_grants_total", "kind" => kind));
        let unacknowledged =
            |of: &'static str| counter!("lockgate_guard_unacknowledged_total", "of" => of);
        let maintenance = |action: Maintenance| {
            ["ok", "refused"].map(|result| {
                counter!("lockgate_operator_actions_total",
                    "action" => action.as_str(), "result" => result)
            })
        };
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
            unacknowledged_locks: unacknowledged("lock"),
            unacknowledged_writes: unacknowledged("write"),
            earlier: Arc::new(EarlierProcesses::new()),
            refusals: Arc::new(DataRefusals::new()),
            barrier_wait_seconds: histogram!("lockgate_barrier_wait_seconds"),
            adopt_retries: counter!("lockgate_adopt_retries_total"),
            taken_back: TakenBack::ALL
                .map(|result| {
                    counter!("lockgate_operator_unlocks_total", "result" => result.as_str())
                })
                .map(Tallied::new)
                .into(),
            left_alone: LeftAlone::ALL
                .map(|why| counter!("lockgate_left_alone_total", "why" => why.as_str()))
                .into(),
            maintenance: Maintenance::ALL.map(maintenance).into(),
            guarded: GuardedWrite::ALL
                .map(|result| counter!("lockgate_guarded_writes_total", "result" => result.as_str()))
                .map(Tallied::new)
                .into(),
            requests: Verb::ALL
                .map(|operation| Outcome::ALL.map(|outcome| request(operation, outcome)).into())
                .into(),
            request_seconds: Verb::ALL
                .map(|operation| {
                    histogram!("lockgate_lock_request_seconds", "operation" => operation.as_str())
                })
                .into(),
        })
    }

    /// Counts one LOCK that was granted.
    pub(crate) fn granted(&self, is_session_lock: bool) {
        let grants = if is_session_lock { &self.grants_session } else { &self.grants_lease };
        grants.one_more();
    }

    /// Counts one LOCKGATE UNLOCK.
    pub(crate) fn taken_back(&self, result: TakenBack) {
        self.taken_back[result as usize].one_more();
    }

    /// Counts an UNLOCK or RENEW that has left a lock to its holder.
    pub(super) fn left_alone(&self, why: LeftAlone) {
        self.left_alone[why as usize].increment(1);
    }

    /// Counts what an operator has done for maintenance, or was refused.
    pub(super) fn maintained(&self, action: Maintenance, is_done: bool) {
        self.maintenance[action as usize][usize::from(!is_done)].increment(1);
    }

    /// Counts one write to guarded keys.
    pub(crate) fn guarded(&self, result: GuardedWrite) {
        self.guarded[result as usize].one_more();
    }

    /// Counts one lock request and how long it took.
    pub(crate) fn lock_request(&self, operation: Verb, outcome: Outcome, took: Duration) {
        self.requests[operation as usize][outcome as usize].one_more();
        self.request_seconds[operation as usize].record(took.as_secs_f64());
    }

    /// Returns how many LOCKs were granted so far.
    pub(crate) fn grants_so_far(&self) -> u64 {
        self.grants_lease.so_far() + self.grants_session.so_far()
    }

    /// Returns how many writes to guarded keys have had this result so far.
    pub(crate) fn guarded_so_far(&self, result: GuardedWrite) -> u64 {
        self.guarded[result as usize].so_far()
    }

    /// Returns how many LOCKGATE UNLOCKs have had this result so far.
    pub(crate) fn taken_back_so_far(&self, result: TakenBack) -> u64 {
        self.taken_back[result as usize].so_far()
    }

    /// Returns how many of our commands have had this outcome so far.
    pub(crate) fn requests_so_far(&self, operation: Verb, outcome: Outcome) -> u64 {
        self.requests[operation as usize][outcome as usize].so_far()
    }
}
