//! Checks that every history has at most one holder of a lock at a time, and fences that grow.

use std::{
    collections::HashMap,
    fmt::Write as _,
    hash::{DefaultHasher, Hash, Hasher},
    ops::AddAssign,
    sync::{Mutex, MutexGuard},
    time::Duration,
};

use tokio::time::Instant;

use super::{
    connection::WriteReply, history_page::PageKind, reasons::Reason, recorder, writes::WriteRecord,
};

/// The longest time for which a blind DEL whose connection has ended may still be carried out.
const LATE_DELETE: Duration = Duration::from_secs(1);

/// The answers that clients got, and the faults in them.
pub(super) struct Checker {
    begun: Instant,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    /// Locks by key.
    locks: HashMap<&'static str, LockRecord>,
    history: String,
    faults: Vec<String>,
    counts: Happened,
    writes: WriteRecord,
}

/// Counts of the events of a history.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Happened {
    pub(super) grants: usize,
    pub(super) refusals: usize,
    pub(super) renewals: usize,
    pub(super) losses: usize,
    /// Losses that need a reason: the other locks had too short a TTL to be kept by nodes that are
    /// well.
    pub(super) judged: usize,
    /// Losses because of jumped clocks. The next two fields count the other reasons.
    pub(super) clocks: usize,
    pub(super) forgotten: usize,
    pub(super) unreachable: usize,
    /// Locks put back on a node.
    pub(super) heals: usize,
    /// Locks that lock libraries were granted, the times that they prolonged them, and blind DELs.
    pub(super) taken: usize,
    pub(super) prolonged: usize,
    pub(super) deleted: usize,
    /// Locks that clients past the proxies took on the data node.
    pub(super) past: usize,
    /// Seeds in which nodes had markers of several deployments.
    pub(super) split: usize,
    /// Guarded writes that were acknowledged, refused for a larger fence, and left without an
    /// answer.
    pub(super) writes: usize,
    pub(super) fenced: usize,
    pub(super) untold: usize,
    /// MLOCKs that were granted, and those of the others after which nodes were looked at.
    pub(super) sets: usize,
    pub(super) looks: usize,
}

impl AddAssign for Happened {
    fn add_assign(&mut self, other: Happened) {
        self.grants += other.grants;
        self.refusals += other.refusals;
        self.renewals += other.renewals;
        self.losses += other.losses;
        self.judged += other.judged;
        self.clocks += other.clocks;
        self.forgotten += other.forgotten;
        self.unreachable += other.unreachable;
        self.heals += other.heals;
        self.taken += other.taken;
        self.prolonged += other.prolonged;
        self.deleted += other.deleted;
        self.past += other.past;
        self.split += other.split;
        self.writes += other.writes;
        self.fenced += other.fenced;
        self.untold += other.untold;
        self.sets += other.sets;
        self.looks += other.looks;
    }
}

#[derive(Default)]
struct LockRecord {
    fence: u64,
    /// The clients that may believe that they hold the lock.
    holders: HashMap<String, Believer>,
    /// Blind DELs that are not answered yet.
    deleting: usize,
    /// The time until which a blind DEL may have ended a lock library's lock.
    deleted: Option<Instant>,
}

/// A client that may believe that it holds a lock.
struct Believer {
    /// The time until which it believes so. `None`: until it is told otherwise.
    until: Option<Instant>,
    /// The time since which it believes so.
    since: Instant,
    /// Whether it is a client of a lock library, whose lock a blind DEL may end.
    is_adopted: bool,
}

/// How a client was told that it holds a lock.
#[derive(Debug, Clone, Copy)]
enum By {
    Lock,
    /// By an adopted command that was sent at this time.
    Adopted(Instant),
}

impl LockRecord {
    /// Whether a blind DEL may have ended a lock that was asked for at this time.
    fn may_be_deleted(&self, asked: Instant) -> bool {
        self.deleting > 0 || self.deleted.is_some_and(|until| until >= asked)
    }
}

impl Checker {
    pub(super) fn new() -> Checker {
        recorder::begin();
        Checker { begun: Instant::now(), seen: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap()
    }

    fn note(&self, seen: &mut Seen, what: &str) {
        self.note_of(seen, None, PageKind::Other, what);
    }

    fn note_of(&self, seen: &mut Seen, client: Option<&str>, kind: PageKind, what: &str) {
        let _ = writeln!(seen.history, "{:>12?} {what}", self.begun.elapsed());
        recorder::note(client, kind, what);
    }

    /// Notes what a reader was told.
    pub(super) fn told(&self, reader: &str, what: &str) {
        self.note_client(&mut self.lock(), reader, what);
    }

    /// Notes what a client asked for or was told.
    fn note_client(&self, seen: &mut Seen, client: &str, what: &str) {
        self.note_of(seen, Some(client), PageKind::Other, what);
    }

    /// Notes an event that clients were not told of.
    pub(super) fn happened(&self, what: &str) {
        let mut seen = self.lock();
        self.note_of(&mut seen, None, PageKind::Fault, what);
    }

    /// Notes a grant. `until` is `None` for a session lock.
    pub(super) fn granted(
        &self,
        key: &'static str,
        token: &str,
        fence: u64,
        validity: Option<Duration>,
    ) {
        let mut seen = self.lock();
        seen.counts.grants += 1;
        self.note_client(
            &mut seen,
            token,
            &format!("{key} granted to {token}, fence {fence}, for {validity:?}"),
        );
        let before = seen.locks.entry(key).or_default().fence;
        if fence <= before {
            self.wrong(&mut seen, &format!("{key}: fence {fence} after {before}"));
        }
        seen.locks.entry(key).or_default().fence = fence;
        self.holds(&mut seen, key, token, validity, By::Lock);
    }

    pub(super) fn renewed(&self, key: &'static str, token: &str, validity: Duration) {
        let mut seen = self.lock();
        seen.counts.renewals += 1;
        self.note_client(&mut seen, token, &format!("{key} renewed by {token} for {validity:?}"));
        self.holds(&mut seen, key, token, Some(validity), By::Lock);
    }

    /// Notes that a renewal is asked for. A shorter TTL counts from then on, whatever comes of it.
    pub(super) fn asked(&self, key: &'static str, token: &str, validity: Duration) {
        let mut seen = self.lock();
        self.note_client(
            &mut seen,
            token,
            &format!("{key} to be renewed by {token} for {validity:?}"),
        );
        let until = Instant::now() + validity;
        if let Some(Believer { until: Some(before), .. }) =
            seen.locks.entry(key).or_default().holders.get_mut(token)
        {
            *before = until.min(*before);
            recorder::ends(key, token, *before);
        }
    }

    /// Notes that a lock library was granted a lock that it asked for at `asked`. `fence`: as its
    /// proxy knows it.
    pub(super) fn taken(
        &self,
        key: &'static str,
        token: &str,
        fence: Option<u64>,
        ttl: Duration,
        asked: Instant,
    ) {
        let mut seen = self.lock();
        let is_past = token.starts_with("past");
        *if is_past { &mut seen.counts.past } else { &mut seen.counts.taken } += 1;
        self.note_client(
            &mut seen,
            token,
            &format!("{key} taken by {token}, fence {fence:?}, for {ttl:?}"),
        );
        let lock = seen.locks.entry(key).or_default();
        let (before, is_certain) = (lock.fence, !lock.may_be_deleted(asked));
        if let Some(fence) = fence {
            lock.fence = fence.max(before);
            if is_certain && fence <= before {
                self.wrong(&mut seen, &format!("{key}: fence {fence} after {before}"));
            }
        }
        self.holds(&mut seen, key, token, Some(ttl), By::Adopted(asked));
    }

    /// Notes that a lock library has given its lock a new TTL.
    pub(super) fn extended(&self, key: &'static str, token: &str, ttl: Duration, asked: Instant) {
        let mut seen = self.lock();
        seen.counts.prolonged += 1;
        self.note_client(&mut seen, token, &format!("{key} extended by {token} for {ttl:?}"));
        self.holds(&mut seen, key, token, Some(ttl), By::Adopted(asked));
    }

    /// Notes that a lock library has added to its lock's TTL.
    pub(super) fn prolonged(&self, key: &'static str, token: &str, more: Duration, asked: Instant) {
        let mut seen = self.lock();
        seen.counts.prolonged += 1;
        self.note_client(&mut seen, token, &format!("{key} prolonged by {token} by {more:?}"));
        let before = seen.locks.entry(key).or_default().holders.get(token);
        let left = before.and_then(|before| before.until?.checked_duration_since(Instant::now()));
        let ttl = left.unwrap_or_default() + more;
        self.holds(&mut seen, key, token, Some(ttl), By::Adopted(asked));
    }

    /// Notes that a blind DEL is about to be sent.
    pub(super) fn deletes(&self, key: &'static str) {
        let mut seen = self.lock();
        seen.counts.deleted += 1;
        self.note(&mut seen, &format!("{key} to be deleted"));
        let lock = seen.locks.entry(key).or_default();
        lock.deleting += 1;
        lock.holders.retain(|name, holder| {
            if holder.is_adopted {
                recorder::ends(key, name, Instant::now());
            }
            !holder.is_adopted
        });
    }

    /// Notes the end of a blind DEL. One without an answer may be carried out a while later.
    pub(super) fn deleted(&self, key: &'static str, is_answered: bool) {
        let mut seen = self.lock();
        self.note(&mut seen, &format!("{key} deleted, answered: {is_answered}"));
        let lock = seen.locks.entry(key).or_default();
        lock.deleting -= 1;
        let until = Instant::now() + if is_answered { Duration::ZERO } else { LATE_DELETE };
        lock.deleted = lock.deleted.max(Some(until));
    }

    fn holds(
        &self,
        seen: &mut Seen,
        key: &'static str,
        token: &str,
        validity: Option<Duration>,
        by: By,
    ) {
        let now = Instant::now();
        let lock = seen.locks.entry(key).or_default();
        lock.holders.retain(|_, holder| holder.until.is_none_or(|until| until > now));
        // The answer came when the client could not count on the lock any more.
        if validity.is_some_and(|validity| validity.is_zero()) {
            lock.holders.remove(token);
            recorder::ends(key, token, now);
            return;
        }
        // A lock that a blind DEL may have ended since it was asked for may by now be a later holder's.
        let (is_adopted, uncertain) = match by {
            By::Lock => (false, None),
            By::Adopted(asked) => (true, Some(asked).filter(|asked| lock.may_be_deleted(*asked))),
        };
        let counts = |holder: &Believer| {
            uncertain.is_none_or(|asked| !holder.is_adopted && holder.since < asked)
        };
        let others: Vec<String> = lock
            .holders
            .iter()
            .filter(|(other, holder)| *other != token && counts(holder))
            .map(|(other, _)| other.clone())
            .collect();
        if uncertain.is_none() {
            let since = lock.holders.get(token).map_or(now, |holder| holder.since);
            let until = validity.map(|validity| now + validity);
            lock.holders.insert(token.to_owned(), Believer { until, since, is_adopted });
            recorder::holds(key, token, until);
        }
        if !others.is_empty() {
            self.wrong(seen, &format!("{key}: {token} and {others:?} hold it at once"));
        }
    }

    /// Notes that a client no longer believes that it holds the lock.
    pub(super) fn ended(&self, key: &'static str, token: &str, why: &str) {
        let mut seen = self.lock();
        seen.counts.losses += usize::from(why == "lost");
        let kind = if why == "lost" { PageKind::Loss } else { PageKind::Other };
        self.note_of(&mut seen, Some(token), kind, &format!("{key} ended by {token}: {why}"));
        recorder::ends(key, token, Instant::now());
        seen.locks.entry(key).or_default().holders.remove(token);
    }

    /// Adds to the numbers of MLOCKs that were granted, and of those after which nodes were looked at.
    pub(super) fn took_sets(&self, granted: usize, looks: usize) {
        let counts = &mut self.lock().counts;
        counts.sets += granted;
        counts.looks += looks;
    }

    /// Adds to the number of locks put back on nodes.
    pub(super) fn healed(&self, times: usize) {
        self.lock().counts.heals += times;
    }

    /// Notes whether nodes had markers of several deployments.
    pub(super) fn split(&self, is_split: bool) {
        self.lock().counts.split += usize::from(is_split);
    }

    /// Notes the reason why a session lock was lost. `Err`: there was no reason.
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
        self.note_client(&mut seen, token, &format!("{key} refused to {token}: {why}"));
    }

    /// Returns the write that a read sent now must see, unless it sees a later one.
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
        self.note_client(
            &mut seen,
            name,
            &format!("{key} written by {name}, fence {fence}: {told:?}"),
        );
        seen.counts.writes += usize::from(told == WriteReply::Done);
        seen.counts.fenced += usize::from(told == WriteReply::Fenced);
        seen.counts.untold += usize::from(told == WriteReply::Nothing);
        seen.writes.told(key, name, told);
    }

    /// Checks all that the data node has stored.
    pub(super) fn stored(&self, record: &[(Vec<u8>, Vec<u8>)]) {
        let mut seen = self.lock();
        for fault in seen.writes.faults(record) {
            self.wrong(&mut seen, &fault);
        }
    }

    fn wrong(&self, seen: &mut Seen, what: &str) {
        self.note_of(seen, None, PageKind::Wrong, &format!("WRONG: {what}"));
        seen.faults.push(what.to_owned());
    }

    /// Notes a fault unless `is_so`.
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

    /// Returns a number that is equal for equal histories.
    pub(super) fn digest(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.lock().history.hash(&mut hasher);
        hasher.finish()
    }
}
