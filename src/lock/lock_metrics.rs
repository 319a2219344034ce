//! Metrics of locks and of each lock node.

use std::{
    sync::{
        OnceLock,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use metrics::{
    Counter, Gauge, Histogram, Unit, counter, describe_counter, describe_gauge, describe_histogram,
    gauge, histogram,
};

use super::{
    Fault,
    key_metrics::{self, KeyMetrics},
    members::pace::Pace,
};
use crate::{
    cluster::trouble::{ClusterFault, ClusterTrouble},
    key::Key,
    metrics::{SeriesOwner, Tallied, labels},
};

labels! {
    /// Why the head of a line asked the nodes once more; the label `cause`.
    pub(crate) enum WakeUp {
        /// The lock was handed over to the head.
        HandOver = "handover",
        /// The lock was released through this proxy, but not handed over.
        Release = "release",
        /// A quorum of nodes published a release through another proxy.
        Message = "message",
        /// The holder's TTL had run out.
        Expiry = "expiry",
        /// A message may have been lost, or several proxies clashed.
        Retry = "retry",
    }
}

labels! {
    /// How a renewal of a session lock ended; the label `result`.
    pub(crate) enum Renewal {
        /// A quorum renewed the lock.
        Ok = "ok",
        /// Too few nodes answered.
        Retried = "retried",
        /// So many nodes denied the lock that no quorum was left.
        Lost = "lost",
    }
}

labels! {
    /// Why a session lock was lost; the label `reason`.
    pub(crate) enum LostReason {
        /// No quorum renewed it before its validity ended.
        NoQuorum = "no_quorum",
        /// So many nodes denied the lock that no quorum was left.
        NotHeld = "not_held",
        /// `locks.max_hold` had passed.
        MaxHold = "max_hold",
        /// Another connection took the lock over or released it, or was granted it since.
        Replaced = "replaced",
        /// The clocks of a quorum of nodes had jumped, or this proxy had stood still.
        Clock = "clock",
        /// Its key on the data node, which a bridged lock needs too, could not be kept.
        DataKey = "data_key",
        /// An adopted command took it without a TTL, and its grant does not hold it any more: another proxy's client
        /// has released it or given it a TTL, or the nodes lost it.
        Elsewhere = "elsewhere",
        /// An operator took it back through this proxy. A lock that another proxy keeps counts there as `not_held`,
        /// or as `elsewhere` if an adopted command took it without a TTL.
        Operator = "operator",
    }
}

/// Gives each metric its help text. The recorder must be installed before.
pub(crate) fn describe() {
    key_metrics::describe();
    describe_gauge!("lockgate_node_up", "1 while a lock node is connected and answers.");
    describe_gauge!(
        "lockgate_node_fault",
        "1 for each thing that is wrong with a lock node, by name."
    );
    describe_gauge!(
        "lockgate_lock_cluster_fault",
        "Things that are wrong with a cluster that is a lock node, by name."
    );
    describe_histogram!(
        "lockgate_node_round_trip_seconds",
        Unit::Seconds,
        "Round trip of a TIME to a lock node, behind other requests where it is never idle."
    );
    describe_gauge!(
        "lockgate_node_clock_offset_seconds",
        Unit::Seconds,
        "How far a lock node's time of day is ahead of this machine's, as far as a round trip tells."
    );
    describe_counter!(
        "lockgate_clock_jumps_total",
        "Jumps of lock nodes' clocks beside this proxy's, by direction."
    );
    describe_counter!("lockgate_node_errors_total", "Failures of lock nodes, by reason.");
    describe_gauge!("lockgate_waiters", "Clients waiting in line for a lock now.");
    describe_histogram!(
        "lockgate_queue_seconds",
        Unit::Seconds,
        "How long clients waited in line, granted or not."
    );
    describe_histogram!(
        "lockgate_hold_seconds",
        Unit::Seconds,
        "From a grant to its release, both through this proxy."
    );
    describe_counter!(
        "lockgate_all_late_total",
        "Operations whose lock nodes were all late at once, and were waited for once more."
    );
    describe_counter!("lockgate_handovers_total", "Locks handed from client to client.");
    describe_counter!(
        "lockgate_wakeups_total",
        "Why the head of a queue asked the lock nodes once more, by cause."
    );
    describe_gauge!("lockgate_session_locks", "Locks kept for connections now.");
    describe_counter!("lockgate_renewals_total", "Renewals of session locks, by result.");
    describe_counter!("lockgate_lost_locks_total", "Session locks lost, by reason.");
    describe_counter!(
        "lockgate_heals_total",
        "Locks put back on a lock node that had lost them, while a quorum kept them."
    );
}

/// Handles of the locks themselves.
pub(crate) struct LockMetrics {
    /// Times by pattern of the key, if there are patterns.
    by_key: OnceLock<KeyMetrics>,
    /// Clients waiting in line now.
    pub(crate) waiters: Gauge,
    /// Time for which clients waited in line.
    queue_seconds: Histogram,
    /// Time from a grant to its release.
    hold_seconds: Histogram,
    /// Locks handed from client to client.
    pub(crate) handovers: Counter,
    /// Locks kept for connections now.
    pub(crate) session_locks: Gauge,
    /// Locks put back on nodes that had lost them.
    pub(crate) heals: Counter,
    wakeups: Vec<Counter>,
    renewals: Vec<Counter>,
    lost: Vec<Tallied>,
}

impl LockMetrics {
    pub(crate) fn new() -> LockMetrics {
        let wakeup = |cause: WakeUp| counter!("lockgate_wakeups_total", "cause" => cause.as_str());
        let renewal =
            |result: Renewal| counter!("lockgate_renewals_total", "result" => result.as_str());
        let lost = |reason: LostReason| {
            Tallied::new(counter!("lockgate_lost_locks_total", "reason" => reason.as_str()))
        };
        LockMetrics {
            by_key: OnceLock::new(),
            waiters: gauge!("lockgate_waiters"),
            queue_seconds: histogram!("lockgate_queue_seconds"),
            hold_seconds: histogram!("lockgate_hold_seconds"),
            handovers: counter!("lockgate_handovers_total"),
            session_locks: gauge!("lockgate_session_locks"),
            heals: counter!("lockgate_heals_total"),
            wakeups: WakeUp::ALL.map(wakeup).into(),
            renewals: Renewal::ALL.map(renewal).into(),
            lost: LostReason::ALL.map(lost).into(),
        }
    }

    /// Splits the times of waiting and holding by these patterns from now on. `prefix`: the length of `locks.prefix`.
    pub(crate) fn tell_apart(&self, patterns: &[String], prefix: usize) {
        if !patterns.is_empty() {
            let _ = self.by_key.set(KeyMetrics::new(patterns, prefix));
        }
    }

    /// Counts a client that has waited in line, granted or not.
    pub(crate) fn waited(&self, key: &Key, time: Duration) {
        self.queue_seconds.record(time.as_secs_f64());
        if let Some(by_key) = self.by_key.get() {
            by_key.waited(key, time);
        }
    }

    /// Counts a lock that was given back.
    pub(crate) fn held(&self, key: &Key, time: Duration) {
        self.hold_seconds.record(time.as_secs_f64());
        if let Some(by_key) = self.by_key.get() {
            by_key.held(key, time);
        }
    }

    /// Counts one wake-up of a queue's head.
    pub(crate) fn woken(&self, cause: WakeUp) {
        self.wakeups[cause as usize].increment(1);
    }

    pub(crate) fn renewed(&self, result: Renewal) {
        self.renewals[result as usize].increment(1);
    }

    pub(crate) fn lost(&self, reason: LostReason) {
        self.lost[reason as usize].one_more();
    }

    /// Returns how many session locks were lost so far.
    pub(crate) fn lost_so_far(&self) -> u64 {
        self.lost.iter().map(Tallied::so_far).sum()
    }
}

impl Default for LockMetrics {
    fn default() -> LockMetrics {
        LockMetrics::new()
    }
}

/// Handles of one lock node. Label `node` is the number of its seat from 1, which without clusters is that in
/// `locks.nodes`; label `address` is its address without credentials.
pub(crate) struct NodeMetrics {
    /// Keeps its series in /metrics.
    _owner: SeriesOwner,
    /// 1 while the node is connected and may vote.
    pub(crate) up: Gauge,
    /// By a [`Fault`]'s number: 1 while the node has that fault.
    pub(crate) faults: [Gauge; Fault::ALL.len()],
    /// How fast the node answers.
    pub(crate) pace: Pace,
    round_trip_seconds: Histogram,
    clock_offset: Gauge,
    /// The last of its round trips and offsets, in microseconds; [`i64::MIN`]: none yet.
    last_round_trip: AtomicI64,
    last_offset: AtomicI64,
    /// Forward jumps of the node's clock.
    pub(crate) clock_jumped_forward: Counter,
    /// Backward steps of the node's clock.
    pub(crate) clock_stepped_back: Counter,
    /// Failed attempts to connect.
    pub(crate) errors_connect: Counter,
    pub(crate) errors_disconnect: Counter,
    /// Connections dropped because nothing arrived.
    pub(crate) errors_silence: Counter,
    /// Votes that did not come in time, whether the others made a quorum or not.
    pub(crate) errors_timeout: Counter,
    /// Replies that were errors or made no sense.
    pub(crate) errors_reply: Counter,
    /// Acquires refused because too many operations were under way.
    pub(crate) errors_queue_full: Counter,
}

impl NodeMetrics {
    /// Notes the round trip of a TIME.
    pub(crate) fn round_trip(&self, took: Duration) {
        self.round_trip_seconds.record(took.as_secs_f64());
        let micros = i64::try_from(took.as_micros()).unwrap_or(i64::MAX);
        self.last_round_trip.store(micros, Ordering::Relaxed);
    }

    /// Notes by how many seconds its time of day is ahead of this machine's.
    pub(crate) fn clock_is_ahead(&self, seconds: f64) {
        self.clock_offset.set(seconds);
        // A float that does not fit becomes the nearest number that does.
        self.last_offset.store((seconds * 1e6) as i64, Ordering::Relaxed);
    }

    /// Returns the last round trip, if there was any.
    pub(crate) fn last_round_trip(&self) -> Option<Duration> {
        let micros = self.last_round_trip.load(Ordering::Relaxed);
        u64::try_from(micros).ok().map(Duration::from_micros)
    }

    /// Returns by how many microseconds its time of day was last ahead, if that was ever measured.
    pub(crate) fn last_offset(&self) -> Option<i64> {
        Some(self.last_offset.load(Ordering::Relaxed)).filter(|micros| *micros != i64::MIN)
    }

    /// Makes the handles of node `number` (from 1) at `address`, whose votes count within `timeout`.
    pub(crate) fn new(number: usize, address: &str, timeout: Duration) -> NodeMetrics {
        let labels = [("node", number.to_string()), ("address", address.to_owned())];
        let errors = |reason: &'static str| {
            let mut labels = labels.to_vec();
            labels.push(("reason", reason.to_owned()));
            counter!("lockgate_node_errors_total", &labels)
        };
        let faults = Fault::ALL.map(|fault| {
            let mut labels = labels.to_vec();
            labels.push(("fault", fault.as_str().to_owned()));
            gauge!("lockgate_node_fault", &labels)
        });
        let jumps = |direction: &'static str| {
            let mut labels = labels.to_vec();
            labels.push(("direction", direction.to_owned()));
            counter!("lockgate_clock_jumps_total", &labels)
        };
        NodeMetrics {
            _owner: SeriesOwner::new(&labels),
            clock_jumped_forward: jumps("forward"),
            clock_stepped_back: jumps("back"),
            up: gauge!("lockgate_node_up", &labels),
            pace: Pace::new(address, timeout, faults[Fault::Slow as usize].clone()),
            faults,
            clock_offset: gauge!("lockgate_node_clock_offset_seconds", &labels),
            last_round_trip: AtomicI64::new(i64::MIN),
            last_offset: AtomicI64::new(i64::MIN),
            round_trip_seconds: histogram!("lockgate_node_round_trip_seconds", &labels),
            errors_connect: errors("connect"),
            errors_disconnect: errors("disconnect"),
            errors_silence: errors("silence"),
            errors_timeout: errors("timeout"),
            errors_reply: errors("reply"),
            errors_queue_full: errors("queue_full"),
        }
    }
}

/// Handles of a cluster that is a lock node, by [`ClusterFault`].
pub(super) struct LockClusterMetrics(Vec<Gauge>);

impl LockClusterMetrics {
    pub(super) fn new(cluster: &str) -> LockClusterMetrics {
        let fault = |fault: ClusterFault| gauge!("lockgate_lock_cluster_fault", "cluster" => cluster.to_owned(), "fault" => fault.as_str());
        LockClusterMetrics(ClusterFault::ALL.map(fault).into())
    }

    /// Sets the gauges.
    pub(super) fn count(&self, troubles: &[ClusterTrouble]) {
        for (fault, gauge) in ClusterFault::ALL.iter().zip(&self.0) {
            let count = troubles.iter().filter(|trouble| trouble.fault == *fault).count();
            gauge.set(u32::try_from(count).unwrap_or(u32::MAX));
        }
    }
}
