//! Checks locks that are shared: while one client counts on having a lock alone, no other counts on it in any way.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::time::Instant;

use super::{checker::Checker, recorder};

pub(super) struct SharedChecker {
    pub(super) checker: Arc<Checker>,
    /// Locks by key.
    locks: Mutex<BTreeMap<&'static str, Parts>>,
}

/// How a client has a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Share {
    Reader,
    /// The client has the lock alone.
    Writer,
}

/// The clients that may count on a lock.
#[derive(Default)]
struct Parts {
    holders: BTreeMap<String, CountedPart>,
    /// The times that readers were granted it, and clients that had it alone.
    granted: [usize; 2],
}

struct CountedPart {
    share: Share,
    /// The time until which the client counts on it. `None`: until it is told otherwise.
    until: Option<Instant>,
}

impl SharedChecker {
    pub(super) fn new() -> SharedChecker {
        SharedChecker { checker: Arc::new(Checker::new()), locks: Mutex::default() }
    }

    /// Notes a grant. `validity` is `None` for a session lock.
    pub(super) fn granted(
        &self,
        (key, name, share): (&'static str, &str, Share),
        fence: u64,
        validity: Option<Duration>,
    ) {
        self.locks.lock().unwrap().entry(key).or_default().granted[share as usize] += 1;
        match share {
            // Whoever has it alone is one of those whom the other checker knows: it compares their fences too.
            Share::Writer => self.checker.granted(key, name, fence, validity),
            Share::Reader => {
                self.checker.must(fence == 0, &format!("{key}: reader {name} has fence {fence}"));
                self.checker.told(name, &format!("{key} read by {name}, for {validity:?}"));
            }
        }
        self.counts_on(key, name, share, validity);
    }

    /// Notes a renewal that its client was told of.
    pub(super) fn renewed(
        &self,
        (key, name, share): (&'static str, &str, Share),
        validity: Option<Duration>,
    ) {
        match (share, validity) {
            (Share::Writer, Some(validity)) => self.checker.renewed(key, name, validity),
            _ => self.checker.told(name, &format!("{key} renewed by {name} for {validity:?}")),
        }
        self.counts_on(key, name, share, validity);
    }

    /// Notes that a renewal is asked for. A shorter TTL counts from then on, whatever comes of it.
    pub(super) fn asked(&self, key: &'static str, name: &str, validity: Duration) {
        self.checker.asked(key, name, validity);
        let mut locks = self.locks.lock().unwrap();
        let part = locks.entry(key).or_default().holders.get_mut(name);
        if let Some(CountedPart { until: Some(before), .. }) = part {
            *before = (*before).min(Instant::now() + validity);
            recorder::ends(key, name, *before);
        }
    }

    /// Notes that a client no longer counts on the lock.
    pub(super) fn ended(&self, key: &'static str, name: &str, why: &str) {
        self.checker.ended(key, name, why);
        self.locks.lock().unwrap().entry(key).or_default().holders.remove(name);
    }

    /// Returns how often readers were granted this lock, and how often clients had it alone.
    pub(super) fn grants_of(&self, key: &'static str) -> [usize; 2] {
        self.locks.lock().unwrap().entry(key).or_default().granted
    }

    fn counts_on(&self, key: &'static str, name: &str, share: Share, validity: Option<Duration>) {
        let now = Instant::now();
        let mut locks = self.locks.lock().unwrap();
        let holders = &mut locks.entry(key).or_default().holders;
        holders.retain(|_, part| part.until.is_none_or(|until| until > now));
        // The answer came when the client could not count on the lock any more.
        if validity.is_some_and(|validity| validity.is_zero()) {
            holders.remove(name);
            recorder::ends(key, name, now);
            return;
        }
        let excludes = |part: &CountedPart| share == Share::Writer || part.share == Share::Writer;
        let others = holders.iter().filter(|(other, part)| *other != name && excludes(part));
        let others: Vec<&String> = others.map(|(other, _)| other).collect();
        let what = format!("{key}: {share:?} {name} beside {others:?}");
        self.checker.must(others.is_empty(), &what);
        let until = validity.map(|validity| now + validity);
        holders.insert(name.to_owned(), CountedPart { share, until });
        recorder::holds(key, name, until);
    }
}
