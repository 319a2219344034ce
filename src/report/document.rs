//! `/api/status`: the whole proxy in one document, bounded in size except for what the configuration names.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::few::few;

/// The document. What no program reads is only written.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct StatusDocument<T: Default = String> {
    /// Milliseconds since 1970, by this machine's clock.
    #[serde(skip_deserializing)]
    pub(crate) now_ms: u64,
    pub(crate) proxy: ProxyPart<T>,
    /// What is not well, in the words of /readyz.
    #[serde(default, deserialize_with = "few")]
    pub(crate) problems: Vec<T>,
    #[serde(default)]
    pub(crate) data: DataPart<T>,
    #[serde(skip_deserializing)]
    pub(crate) quorum: QuorumPart,
    #[serde(default, deserialize_with = "few")]
    pub(crate) nodes: Vec<NodePart<T>>,
    #[serde(default)]
    pub(crate) locks: LocksPart,
    #[serde(default)]
    pub(crate) totals: Totals,
    #[serde(skip_deserializing)]
    pub(crate) guards: Option<GuardsPart>,
    #[serde(skip_deserializing)]
    pub(crate) adoption: Option<AdoptionPart>,
    /// With `share: yes`.
    #[serde(default)]
    pub(crate) sharing: Option<SharingPart<T>>,
    /// Processes from before upgrades that still have clients.
    #[serde(skip_deserializing)]
    pub(crate) earlier: Vec<EarlierPart>,
}

#[derive(Debug, Clone, Serialize)]
pub(crate) struct EarlierPart {
    pub(crate) pid: i32,
    /// This and the next are left out if it does not tell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) connections: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) held: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) waiters: Option<u64>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct ProxyPart<T: Default = String> {
    #[serde(default)]
    pub(crate) name: T,
    #[serde(default)]
    pub(crate) version: T,
    #[serde(default)]
    pub(crate) pid: u32,
    /// The one field that no proxy leaves out.
    pub(crate) uptime_ms: u64,
    #[serde(skip_deserializing)]
    pub(crate) listen: Vec<String>,
    #[serde(default)]
    pub(crate) ready: bool,
    /// Whether lock nodes that wait are all that keeps the proxy from being ready.
    #[serde(default)]
    pub(crate) waits: bool,
    #[serde(default)]
    pub(crate) draining: bool,
    #[serde(default)]
    pub(crate) connections: usize,
    /// Whether `admin.token` is set, so that operators can act here.
    #[serde(skip_deserializing)]
    pub(crate) actions: bool,
    /// How many `admin.peers` there are.
    #[serde(skip_deserializing)]
    pub(crate) peers: usize,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct DataPart<T: Default = String> {
    pub(crate) name: T,
    /// The Redis that it is now, if that can change.
    pub(crate) address: Option<T>,
    pub(crate) up: bool,
    pub(crate) problem: Option<T>,
}

#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct QuorumPart {
    pub(crate) nodes: usize,
    pub(crate) needed: usize,
    pub(crate) voting: usize,
    /// How many more may fail; below 0: no lock is granted.
    pub(crate) slack: i64,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct NodePart<T: Default = String> {
    /// Its place in `locks.nodes`, from 1.
    pub(crate) seat: usize,
    pub(crate) address: T,
    pub(crate) up: bool,
    pub(crate) votes: bool,
    pub(crate) paused: bool,
    /// `ok`, or why it does not vote, and what else is wrong, in the words of /readyz.
    pub(crate) state: T,
    #[serde(skip_deserializing)]
    pub(crate) faults: Vec<&'static str>,
    pub(crate) round_trip_us: Option<u64>,
    pub(crate) clock_ahead_us: Option<i64>,
}

#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct LocksPart {
    pub(crate) held: usize,
    pub(crate) session: usize,
    pub(crate) leases: usize,
    pub(crate) adopted: usize,
    pub(crate) waiters: usize,
    pub(crate) longest_wait_ms: u64,
    pub(crate) oldest_hold_ms: u64,
    /// How long new LOCKs still wait (LOCKGATE PAUSE).
    pub(crate) paused_ms: u64,
}

/// What is counted: since the start, or per second.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Totals<N = u64> {
    /// LOCKs granted, adopted ones too.
    pub(crate) grants: N,
    /// LOCKs not granted because another client had the lock, at once or for as long as they waited.
    pub(crate) busy: N,
    /// Commands of ours that too few lock nodes answered.
    pub(crate) no_quorum: N,
    /// LOCKs not granted because too many waited.
    pub(crate) queue_full: N,
    /// Session locks lost.
    pub(crate) lost: N,
    /// Writes that guards refused.
    pub(crate) guard_refusals: N,
    /// Commands seen on keys of adopt rules.
    pub(crate) adopted: N,
    /// Those of them that were refused.
    pub(crate) adopt_refusals: N,
    /// Locks that operators took back.
    pub(crate) taken_back: N,
}

impl Totals {
    /// Returns how much was counted per second, since `before` was counted.
    pub(crate) fn per_second(&self, before: &Totals, passed: Duration) -> Totals<f64> {
        let seconds = passed.as_secs_f64().max(0.001);
        let rate = |of: fn(&Totals) -> u64| of(self).saturating_sub(of(before)) as f64 / seconds;
        Totals {
            grants: rate(|totals| totals.grants),
            busy: rate(|totals| totals.busy),
            no_quorum: rate(|totals| totals.no_quorum),
            queue_full: rate(|totals| totals.queue_full),
            lost: rate(|totals| totals.lost),
            guard_refusals: rate(|totals| totals.guard_refusals),
            adopted: rate(|totals| totals.adopted),
            adopt_refusals: rate(|totals| totals.adopt_refusals),
            taken_back: rate(|totals| totals.taken_back),
        }
    }
}

impl Totals<f64> {
    /// Returns the rate of commands that were refused, for all reasons.
    pub(crate) fn refusals(&self) -> f64 {
        self.busy + self.no_quorum + self.queue_full + self.guard_refusals + self.adopt_refusals
    }
}

#[derive(Debug, Clone, Serialize)]
pub(crate) struct GuardsPart {
    pub(crate) enforced: bool,
    /// Whether the data node has told which commands it has; until then commands are refused.
    pub(crate) informed: bool,
    /// How many fences in a row too few replicas have acknowledged.
    pub(crate) unacknowledged: u64,
    pub(crate) rules: Vec<GuardRulePart>,
    pub(crate) writes: GuardedWrites,
}

#[derive(Debug, Clone, Serialize)]
pub(crate) struct GuardRulePart {
    pub(crate) keys: String,
    pub(crate) lock: String,
    pub(crate) policy: &'static str,
}

#[derive(Debug, Clone, Serialize)]
pub(crate) struct GuardedWrites {
    pub(crate) passed: u64,
    pub(crate) notheld: u64,
    pub(crate) fenced: u64,
    pub(crate) audited: u64,
    pub(crate) refused: u64,
}

#[derive(Debug, Clone, Serialize)]
pub(crate) struct AdoptionPart {
    pub(crate) rules: Vec<AdoptRulePart>,
    pub(crate) seen: u64,
    #[serde(rename = "unsafe")]
    pub(crate) unsafe_ones: u64,
    pub(crate) refused: u64,
    /// How many rules have modes two steps apart here and in another proxy.
    pub(crate) mode_conflicts: usize,
    pub(crate) conflicts: Vec<ConflictPart>,
}

#[derive(Debug, Clone, Serialize)]
pub(crate) struct AdoptRulePart {
    pub(crate) keys: String,
    pub(crate) lock: Option<String>,
    pub(crate) mode: &'static str,
}

#[derive(Debug, Clone, Serialize)]
pub(crate) struct ConflictPart {
    pub(crate) keys: String,
    pub(crate) here: &'static str,
    pub(crate) there: &'static str,
    pub(crate) proxy: String,
}

/// Clients that share connections to the data node.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct SharingPart<T: Default = String> {
    /// Clients connected now that share.
    pub(crate) shared: usize,
    /// Clients connected now that have a connection of their own.
    pub(crate) own: usize,
    /// Clients that have come since the start.
    pub(crate) come: u64,
    /// How many of these got a connection of their own, by what they sent.
    #[serde(deserialize_with = "few", bound(deserialize = "T: Deserialize<'de>"))]
    pub(crate) pinned: Vec<PinnedByPart<T>>,
    /// Links that are open.
    pub(crate) links: usize,
    /// Replies that clients are owed over them.
    pub(crate) owed: u64,
    /// Those over the link with most.
    pub(crate) most_owed: u64,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct PinnedByPart<T: Default = String> {
    /// As in the label of `lockgate_pinned_total`.
    pub(crate) by: T,
    pub(crate) clients: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_proxy_is_no_status_and_an_older_one_is() {
        assert!(serde_json::from_str::<StatusDocument>("{}").is_err());
        let old = r#"{"proxy": {"pid": 7, "uptime_ms": 1000}}"#;
        let old: StatusDocument = serde_json::from_str(old).unwrap();
        assert_eq!((old.proxy.pid, old.nodes.len()), (7, 0));
    }

    #[test]
    fn a_rate_is_for_a_second() {
        let before = Totals { grants: 100, busy: 7, queue_full: 1, ..Totals::default() };
        let now = Totals { grants: 151, busy: 7, queue_full: 7, ..Totals::default() };
        let rates = now.per_second(&before, Duration::from_secs(6));
        assert_eq!((rates.grants, rates.busy, rates.refusals()), (8.5, 0.0, 1.0));
        let restarted = before.per_second(&now, Duration::ZERO);
        assert_eq!(restarted, Totals::default());
    }
}
