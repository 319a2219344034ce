//! What must hold in every history: no two holders at once, fences that grow.

use std::{
    collections::HashMap,
    fmt::Write as _,
    hash::{DefaultHasher, Hash, Hasher},
    sync::{Mutex, MutexGuard},
    time::Duration,
};

use tokio::time::Instant;

use super::{connection::WriteReply, reasons::Reason, writes::WriteRecord};

/// Everything that clients were told, and what is wrong with it.
pub(super) struct Checker {
    begun: Instant,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    /// By key.
    locks: HashMap<&'static str, LockRecord>,
    history: String,
    faults: Vec<String>,
    counts: Happened,
    writes: WriteRecord,
}

/// How much has happened.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Happened {
    pub(super) grants: usize,
    pub(super) refusals: usize,
    pub(super) renewals: usize,
    pub(super) losses: usize,
    /// Of those, how many could have been kept had their nodes been well: the others had too
    /// short a TTL.
    pub(super) judged: usize,
    /// For which reason they were lost all the same.
    pub(super) clocks: usize,
    pub(super) forgotten: usize,
    pub(super) unreachable: usize,
    /// Locks put back on a node.
    pub(super) heals: usize,
    /// Seeds in which nodes had markers of several deployments.
    pub(super) split: usize,
    /// Guarded writes that were acknowledged, refused for a larger fence, and of which
    /// nothing was told.
    pub(super) writes: usize,
    pub(super) fenced: usize,
    pub(super) untold: usize,
}

#[derive(Default)]
struct LockRecord {
    fence: u64,
    /// Who may believe that it holds it, and until when; none: until it is told
    /// otherwise.
    holders: HashMap<String, Option<Instant>>,
}

impl Checker {
    pub(super) fn new() -> Checker {
        Checker { begun: Instant::now(), seen: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap()
    }

    fn note(&self, seen: &mut Seen, what: &str) {
        let _ = writeln!(seen.history, "{:>12?} {what}", self.begun.elapsed());
    }

    /// Something happened that clients were not told of.
    pub(super) fn happened(&self, what: &str) {
        let mut seen = self.lock();
        self.note(&mut seen, what);
    }

    /// `until` is none for a session lock.
    pub(super) fn granted(
        &self,
        key: &'static str,
        token: &str,
        fence: u64,
        validity: Option<Duration>,
    ) {
        let mut seen = self.lock();
        seen.counts.grants += 1;
        self.note(&mut seen, &format!("{key} granted to {token}, fence {fence}, for {validity:?}"));
        let before = seen.locks.entry(key).or_default().fence;
        if fence <= before {
            self.wrong(&mut seen, &format!("{key}: fence {fence} after {before}"));
        }
        seen.locks.entry(key).or_default().fence = fence;
        self.holds(&mut seen, key, token, validity);
    }

    pub(super) fn renewed(&self, key: &'static str, token: &str, validity: Duration) {
        let mut seen = self.lock();
        seen.counts.renewals += 1;
        self.note(&mut seen, &format!("{key} renewed by {token} for {validity:?}"));
        self.holds(&mut seen, key, token, Some(validity));
    }

    /// A shorter TTL counts from when it is asked for, whatever comes of it.
    pub(super) fn asked(&self, key: &'static str, token: &str, validity: Duration) {
        let mut seen = self.lock();
        self.note(&mut seen, &format!("{key} to be renewed by {token} for {validity:?}"));
        let until = Instant::now() + validity;
        if let Some(Some(before)) = seen.locks.entry(key).or_default().holders.get_mut(token) {
            *before = until.min(*before);
        }
    }

    fn holds(&self, seen: &mut Seen, key: &'static str, token: &str, validity: Option<Duration>) {
        let now = Instant::now();
        let lock = seen.locks.entry(key).or_default();
        lock.holders.retain(|_, until| until.is_none_or(|until| until > now));
        let others: Vec<String> =
            lock.holders.keys().filter(|holder| *holder != token).cloned().collect();
        lock.holders.insert(token.to_owned(), validity.map(|validity| now + validity));
        if !others.is_empty() {
            self.wrong(seen, &format!("{key}: {token} and {others:?} hold it at once"));
        }
    }

    /// From now on it does not believe to hold it any more.
    pub(super) fn ended(&self, key: &'static str, token: &str, why: &str) {
        let mut seen = self.lock();
        seen.counts.losses += usize::from(why == "lost");
        self.note(&mut seen, &format!("{key} ended by {token}: {why}"));
        seen.locks.entry(key).or_default().holders.remove(token);
    }

    /// So many locks were put back on nodes.
    pub(super) fn healed(&self, times: usize) {
        self.lock().counts.heals += times;
    }

    /// Whether nodes had markers of several deployments.
    pub(super) fn split(&self, is_split: bool) {
        self.lock().counts.split += usize::from(is_split);
    }

    /// Why a session lock was lost; an error: without a reason.
    pub(super) fn lost(&self, key: &str, reason: &Result<Reason, String>) {
        let mut seen = self.lock();
        self.note(&mut seen, &format!("{key} was lost: {reason:?}"));
        let counts = &mut seen.counts;
        counts.judged += usize::from(*reason != Ok(Reason::TooShort));
        match reason {
            Ok(Reason::Clocks) => counts.clocks += 1,
            Ok(Reason::Forgotten) => counts.forgotten += 1,
            Ok(Reason::Unreachable) => counts.unreachable += 1,
            Ok(Reason::TooShort) => {}
            Err(why) => self.wrong(&mut seen, &format!("{key} is lost without a reason: {why}")),
        }
    }

    pub(super) fn refused(&self, key: &str, token: &str, why: &str) {
        let mut seen = self.lock();
        seen.counts.refusals += 1;
        self.note(&mut seen, &format!("{key} refused to {token}: {why}"));
    }

    /// A read is sent; what it must see, or something later.
    pub(super) fn reads(&self, key: &'static str) -> Option<String> {
        self.lock().writes.acknowledged(key)
    }

    pub(super) fn read(&self, key: &str, found: Option<&str>, acknowledged: Option<String>) {
        let mut seen = self.lock();
        self.note(&mut seen, &format!("{key} read: {found:?}"));
        seen.writes.read(found, acknowledged);
    }

    pub(super) fn wrote(&self, key: &'static str, name: &str, fence: u64, told: WriteReply) {
        let mut seen = self.lock();
        self.note(&mut seen, &format!("{key} written by {name}, fence {fence}: {told:?}"));
        seen.counts.writes += usize::from(told == WriteReply::Done);
        seen.counts.fenced += usize::from(told == WriteReply::Fenced);
        seen.counts.untold += usize::from(told == WriteReply::Nothing);
        seen.writes.told(key, name, told);
    }

    /// All that the data node has stored.
    pub(super) fn stored(&self, record: &[(Vec<u8>, Vec<u8>)]) {
        let mut seen = self.lock();
        for fault in seen.writes.faults(record) {
            self.wrong(&mut seen, &fault);
        }
    }

    fn wrong(&self, seen: &mut Seen, what: &str) {
        self.note(seen, &format!("WRONG: {what}"));
        seen.faults.push(what.to_owned());
    }

    /// Something else must not be so.
    pub(super) fn must(&self, is_so: bool, what: &str) {
        if !is_so {
            self.wrong(&mut self.lock(), what);
        }
    }

    pub(super) fn faults(&self) -> Vec<String> {
        self.lock().faults.clone()
    }

    pub(super) fn counts(&self) -> Happened {
        self.lock().counts
    }

    pub(super) fn history(&self) -> String {
        self.lock().history.clone()
    }

    /// Equal for equal histories.
    pub(super) fn digest(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.lock().history.hash(&mut hasher);
        hasher.finish()
    }
}
