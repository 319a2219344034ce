//! The documents of a proxy's admin address, as far as they are shown. What a proxy of another version leaves out
//! is empty.

use std::collections::HashMap;

use serde::Deserialize;

use super::{plain::PlainText, wanted::MOST_LISTED};
use crate::report::few::few;

/// `/api/status`.
#[derive(Debug, Clone, Default, Deserialize)]
pub(super) struct StatusReport {
    pub(super) proxy: ProxyReport,
    #[serde(default, deserialize_with = "few::<_, _, MOST_LISTED>")]
    pub(super) problems: Vec<PlainText>,
    #[serde(default, deserialize_with = "few::<_, _, MOST_LISTED>")]
    pub(super) nodes: Vec<NodeReport>,
    #[serde(default)]
    pub(super) locks: LockCounts,
    #[serde(default)]
    pub(super) totals: TotalsReport,
}

#[derive(Debug, Clone, Default, Deserialize)]
pub(super) struct ProxyReport {
    #[serde(default)]
    pub(super) name: PlainText,
    #[serde(default)]
    pub(super) version: PlainText,
    pub(super) pid: u32,
    pub(super) uptime_ms: u64,
    #[serde(default)]
    pub(super) ready: bool,
    #[serde(default)]
    pub(super) draining: bool,
    #[serde(default)]
    pub(super) connections: u64,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct NodeReport {
    pub(super) address: PlainText,
    pub(super) votes: bool,
    pub(super) state: PlainText,
    pub(super) round_trip_us: Option<u64>,
}

#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(default)]
pub(super) struct LockCounts {
    pub(super) held: u64,
    pub(super) waiters: u64,
}

#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(default)]
pub(super) struct TotalsReport {
    pub(super) grants: u64,
    pub(super) busy: u64,
    pub(super) no_quorum: u64,
    pub(super) queue_full: u64,
    pub(super) guard_refusals: u64,
    pub(super) adopt_refusals: u64,
}

impl TotalsReport {
    /// The number of commands that were refused, for all reasons.
    pub(super) fn refusals(&self) -> u64 {
        let all =
            [self.busy, self.no_quorum, self.queue_full, self.guard_refusals, self.adopt_refusals];
        all.into_iter().fold(0, u64::saturating_add)
    }
}

/// `/api/locks`, and `/api/hot`.
#[derive(Deserialize)]
pub(super) struct LockReports {
    #[serde(alias = "hot", deserialize_with = "few::<_, _, MOST_LISTED>")]
    locks: Vec<LockReport>,
}

/// A lock as one proxy knows it. It has no `held_ms` if this proxy only has waiters for it.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct LockReport {
    #[serde(flatten)]
    pub(super) name: NameReport,
    pub(super) fence: Option<u64>,
    pub(super) held_ms: Option<u64>,
    pub(super) remaining_ms: Option<u64>,
    pub(super) waiters: u64,
    pub(super) longest_wait_ms: u64,
    /// The time that all clients together waited; only in `/api/hot`.
    pub(super) waited_ms: u64,
    pub(super) holder: Option<ClientReport>,
}

/// A lock's name: its bytes, which identify it, and the text that is shown.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "RawName")]
pub(super) struct NameReport {
    pub(super) bytes: Vec<u8>,
    pub(super) shown: PlainText,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawName {
    key: String,
    key_hex: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct ClientReport {
    pub(super) address: PlainText,
    pub(super) name: PlainText,
    pub(super) connected: bool,
}

/// `/api/clients`.
#[derive(Deserialize)]
pub(super) struct BusyClients {
    #[serde(deserialize_with = "few::<_, _, MOST_LISTED>")]
    clients: Vec<BusyClient>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct BusyClient {
    pub(super) address: PlainText,
    pub(super) name: PlainText,
    pub(super) locks: u64,
    waits_for: Option<NameReport>,
    pub(super) waited_ms: u64,
}

/// The document of an answer other than 200.
#[derive(Deserialize)]
pub(super) struct ErrorReport {
    pub(super) error: PlainText,
}

/// Everything that a proxy reported in one round.
#[derive(Debug, Clone, Default)]
pub(super) struct Round {
    pub(super) status: StatusReport,
    /// Locks, each once.
    pub(super) locks: Vec<LockReport>,
    /// Clients in line for the open lock.
    pub(super) line: Vec<BusyClient>,
    /// Why a list is missing.
    pub(super) complaint: Option<PlainText>,
}

impl Round {
    /// Adds a list of locks. A lock may be in several lists, with different fields.
    pub(super) fn add(&mut self, list: LockReports) {
        let known = self.locks.iter().enumerate();
        let known: HashMap<Vec<u8>, usize> =
            known.map(|(place, lock)| (lock.name.bytes.clone(), place)).collect();
        for lock in list.locks {
            match known.get(&lock.name.bytes).and_then(|place| self.locks.get_mut(*place)) {
                None => self.locks.push(lock),
                Some(known) => known.complete(lock),
            }
        }
    }

    /// Keeps those of all clients that wait for the lock of this name.
    pub(super) fn keep_line(&mut self, clients: BusyClients, name: &[u8]) {
        let waits =
            |client: &BusyClient| client.waits_for.as_ref().is_some_and(|lock| lock.bytes == name);
        self.line = clients.clients.into_iter().filter(waits).collect();
    }
}

impl LockReport {
    /// Adds what the same proxy reports of the same lock in another list.
    fn complete(&mut self, other: LockReport) {
        self.fence = self.fence.max(other.fence);
        self.held_ms = self.held_ms.max(other.held_ms);
        self.remaining_ms = self.remaining_ms.or(other.remaining_ms);
        self.waiters = self.waiters.max(other.waiters);
        self.waited_ms = self.waited_ms.max(other.waited_ms);
        self.longest_wait_ms = self.longest_wait_ms.max(other.longest_wait_ms);
        if self.holder.is_none() {
            self.holder = other.holder;
        }
    }
}

impl From<RawName> for NameReport {
    fn from(raw: RawName) -> NameReport {
        let bytes = raw.key_hex.as_deref().and_then(of_hexadecimal);
        let bytes = bytes.unwrap_or_else(|| raw.key.into_bytes());
        NameReport { shown: PlainText::of_bytes(&bytes), bytes }
    }
}

fn of_hexadecimal(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> =
        text.chars().map(|c| u8::try_from(c.to_digit(16)?).ok()).collect();
    digits?.chunks(2).map(|pair| Some(pair.first()? << 4 | pair.get(1)?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_known_by_its_bytes_and_shown_plainly() {
        let list = r#"{"locks": [
            {"key": "a�", "key_hex": "61ff", "waiters": 2, "holder":
                {"address": "10.0.0.7:4711", "name": "\u001b]0;w\u0007", "connected": true}},
            {"key": "\u001b[2J", "waiters": 1, "new_field": {}}]}"#;
        let list: LockReports = serde_json::from_str(list).unwrap();
        let [first, second] = &list.locks[..] else { panic!("two locks") };
        assert_eq!((&first.name.bytes[..], first.name.shown.as_str()), (&b"a\xff"[..], "a\\xff"));
        assert_eq!(first.holder.as_ref().unwrap().name.as_str(), "\\u{1b}]0;w\\u{7}");
        assert_eq!(second.name.shown.as_str(), "\\u{1b}[2J");
        assert_eq!(second.name.bytes, b"\x1b[2J");
    }

    #[test]
    fn what_is_no_proxy_is_no_status_and_an_older_one_is() {
        assert!(serde_json::from_str::<StatusReport>("{}").is_err());
        let old = r#"{"proxy": {"pid": 7, "uptime_ms": 1000}}"#;
        let old: StatusReport = serde_json::from_str(old).unwrap();
        assert_eq!((old.proxy.pid, old.nodes.len()), (7, 0));
    }

    #[test]
    fn no_more_of_a_list_is_kept_than_was_asked_for() {
        let many = format!(r#"{{"locks": [{}{{}}]}}"#, "{},".repeat(MOST_LISTED + 5));
        let many: LockReports = serde_json::from_str(&many).unwrap();
        assert_eq!(many.locks.len(), MOST_LISTED);
    }

    #[test]
    fn a_lock_of_two_lists_is_one() {
        let lists = [
            r#"{"locks": [{"key": "a", "waiters": 2, "held_ms": 5, "remaining_ms": 9}]}"#,
            r#"{"hot": [{"key": "a", "waiters": 2, "waited_ms": 70}, {"key": "b"}]}"#,
        ];
        let mut round = Round::default();
        for list in lists {
            round.add(serde_json::from_str(list).unwrap());
        }
        let [a, b] = &round.locks[..] else { panic!("two locks") };
        assert_eq!((a.waiters, a.held_ms, a.remaining_ms, a.waited_ms), (2, Some(5), Some(9), 70));
        assert_eq!(b.name.shown.as_str(), "b");
    }
}
