//! Checks guarded writes: compares the data node's own record of stored values with
//! what clients were told.

use std::collections::BTreeMap;

use super::{connection::WriteReply, memory::DATA};
use crate::guard::FENCE_PREFIX;

/// The outcomes that clients were told.
#[derive(Debug, Default)]
pub(super) struct WriteRecord {
    /// The outcome of each write, by name.
    told: BTreeMap<String, WriteReply>,
    /// The last acknowledged write, by key.
    acknowledged: BTreeMap<&'static str, String>,
    /// Reads: the value found, and the write that had been acknowledged when they were sent.
    reads: Vec<(Option<String>, Option<String>)>,
}

/// Returns a value: the write's name, its fence, and the write that its client had read before.
pub(super) fn value(name: &str, fence: u64, based_on: Option<&str>) -> String {
    format!("{name} {fence} {}", based_on.unwrap_or("-"))
}

/// Returns the name of the write that left this value.
pub(super) fn name(value: &str) -> &str {
    value.split(' ').next().unwrap_or_default()
}

/// The writes under one lock, by the record.
#[derive(Default)]
struct LockWrites {
    seen: u64,
    last: Option<String>,
    /// The largest fence, forgotten or not.
    largest: u64,
    /// For each fence, how often fences had been forgotten when it was first stored.
    stored: BTreeMap<u64, usize>,
}

impl WriteRecord {
    pub(super) fn told(&mut self, key: &'static str, name: &str, told: WriteReply) {
        self.told.insert(name.to_owned(), told);
        if told == WriteReply::Done {
            self.acknowledged.insert(key, name.to_owned());
        }
    }

    /// Returns the write that a read sent now must see, unless it sees a later one.
    pub(super) fn acknowledged(&self, key: &str) -> Option<String> {
        self.acknowledged.get(key).cloned()
    }

    pub(super) fn read(&mut self, seen: Option<&str>, acknowledged: Option<String>) {
        self.reads.push((seen.map(|value| name(value).to_owned()), acknowledged));
    }

    /// Returns all faults, given every key and value that the data node stored.
    pub(super) fn faults(&self, record: &[(Vec<u8>, Vec<u8>)]) -> Vec<String> {
        let mut faults = Vec::new();
        let mut locks: BTreeMap<&[u8], LockWrites> = BTreeMap::new();
        let mut landed: BTreeMap<&str, usize> = BTreeMap::new();
        let mut forgotten = 0;
        for (place, (key, stored)) in record.iter().enumerate() {
            let stored = std::str::from_utf8(stored).unwrap();
            if key == FENCE_PREFIX {
                locks.values_mut().for_each(|lock| lock.seen = 0);
                forgotten += 1;
                continue;
            }
            if let Some(key) = key.strip_prefix(FENCE_PREFIX) {
                let lock = locks.entry(key).or_default();
                let fence: u64 = stored.parse().unwrap();
                if fence < lock.seen {
                    faults.push(format!("fence {fence} is stored over {}", lock.seen));
                }
                // Once fences were forgotten, the lock nodes are asked before one is stored again.
                // If that happens twice, the lock may have been held when they were asked.
                let first = *lock.stored.entry(fence).or_insert(forgotten);
                if fence < lock.largest && forgotten == first + 1 {
                    faults.push(format!("fence {fence} is raised again after {}", lock.largest));
                }
                lock.largest = lock.largest.max(fence);
                lock.seen = lock.seen.max(fence);
                continue;
            }
            let lock = locks.entry(key.strip_prefix(DATA).unwrap()).or_default();
            let words: Vec<&str> = stored.split(' ').collect();
            let [name, fence, based_on] = words[..] else { panic!("{stored}") };
            let fence: u64 = fence.parse().unwrap();
            if fence < lock.seen {
                faults.push(format!("{name} lands with fence {fence} below {}", lock.seen));
            }
            lock.seen = lock.seen.max(fence);
            let last = lock.last.replace(name.to_owned());
            // Once fences were forgotten, a late holder may be let in, as its fence is not known to be small.
            if last.as_deref().unwrap_or("-") != based_on && forgotten == 0 {
                faults.push(format!("update {last:?} is lost by {name}, based on {based_on}"));
            }
            if landed.insert(name, place).is_some() {
                faults.push(format!("{name} lands twice"));
            }
        }
        for (name, told) in &self.told {
            match (told, landed.contains_key(name.as_str())) {
                (WriteReply::Done, false) => {
                    faults.push(format!("{name} was acknowledged and is lost"))
                }
                (WriteReply::Fenced | WriteReply::Refused, true) => {
                    faults.push(format!("{name} was refused and has landed"));
                }
                _ => {}
            }
        }
        let place =
            |name: &Option<String>| name.as_ref().and_then(|name| landed.get(name.as_str()));
        for (seen, acknowledged) in &self.reads {
            if place(seen) < place(acknowledged) {
                faults.push(format!("{seen:?} is read after {acknowledged:?}"));
            }
        }
        faults
    }
}
