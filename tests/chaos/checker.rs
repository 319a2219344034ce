//! Checks what must hold in every history: a pure function of what clients wrote down.
//!
//! The checks follow from what a client may believe:
//! - A lease is held from when the client is told so until the validity that it was told is over,
//!   counted from when it *sent* the request: it cannot know how long the answer was under way. Or
//!   until it sends UNLOCK.
//! - A session lock is held in the same way for the validity that the client was told, even if others end its
//!   connection. It is also held up to the last moment at which the client sent something (PING, RENEW, UNLOCK, a
//!   read, a write) that was answered as if the lock were held. It is not held after the client itself has ended its
//!   connection, or was told that the lock is lost. The answers to a library that reconnects silently show nothing;
//!   the validity that it was told counts.
//!
//! - A lock library's lock is held for the whole TTL from the reply on, until its release is sent. A reply that was
//!   under way for longer than the proxies set aside may come too late: then the TTL counts from the sending and the
//!   time that they set aside. Past the proxies nothing is set aside. A blind DEL may end it, as on Redis, but never
//!   a lock that was taken by LOCK.
//!
//! The locks of a MLOCK are held like others, each by itself, and so is the permit that the answer to a LOCK with
//! PERMITS names. Without an answer the client cannot know of a lock, and believes nothing. A client that is refused
//! either has none of the locks shortly afterwards: where nothing is wrong, its token renews none.
//!
//! Readers of a lock, by LOCK with SHARED, are believed in the same way. They may be many at once, but none beside who
//! has the lock alone; they have no fence.
//!
//! A loss told by a push is the answer to the next command as well. Nothing is carried out behind the first command
//! of a pipeline that is answered so.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
};

use crate::{
    history::{Event, Idiom, IdiomKind, Outcome, Time, Verb, keys},
    trace,
};

/// The longest time for which a blind DEL without an answer may still be carried out.
const LATE_DELETE: Time = 15_000_000;

/// The kind of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asked {
    Verb(Verb),
    /// A write on the connection that took the lock.
    Write,
    /// A command on an attached connection: its answer does not show whether the lock is held.
    Beside,
    /// A read or write of a library, on a connection that may be another than before.
    Anywhere,
    /// A lock library's command.
    Idiom,
}

/// A time in which a client believes that it holds a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Belief {
    pub(crate) key: String,
    pub(crate) token: String,
    pub(crate) client: usize,
    pub(crate) session: bool,
    /// Whether the client is one of the lock's readers.
    pub(crate) shared: bool,
    /// For a lock library's lock, when the command was sent that took or prolonged it.
    pub(crate) adopted: Option<Time>,
    pub(crate) from: Time,
    pub(crate) until: Time,
    /// The end, had a careless client counted from when the answer came.
    pub(crate) careless: Time,
}

/// A blind DEL, from its sending to its answer.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Deletion {
    key: String,
    sent: Time,
    until: Time,
}

/// A LOCK that was answered with a fence.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Grant {
    key: String,
    client: usize,
    fence: u64,
    sent: Time,
    told: Time,
}

/// A request without an answer in time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Silence {
    pub(crate) client: usize,
    pub(crate) sent: Time,
    pub(crate) until: Time,
}

/// A lock of a MLOCK or LOCK that was refused, which is still held by its token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Leak {
    pub(crate) key: String,
    pub(crate) client: usize,
    /// The times when the client was told of the refusal, and when it asked for the lock.
    pub(crate) refused: Time,
    pub(crate) sent: Time,
}

/// A fault in a history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Wrong {
    /// Two clients hold a lock at once.
    TwoHolders(Belief, Belief),
    /// A fence was told after another, and is not larger.
    Fence { key: String, before: u64, fence: u64, told: Time },
    /// A client was told of another permit than one of those that it had asked for.
    Unasked { key: String, client: usize, told: Time },
    /// A reader was told a fence.
    Fenced { key: String, client: usize, told: Time },
    /// A request has no end, though its client was not killed.
    NoAnswer { client: usize, sent: Time },
    /// A push said that a lock is lost, and the next command was carried out.
    Untold { key: String, client: usize, sent: Time },
    /// A command of a pipeline was carried out behind one that was told of the loss.
    Behind { key: String, client: usize, sent: Time },
}

/// Counts of events.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) requests: usize,
    pub(crate) grants: usize,
    pub(crate) held: usize,
    /// Readers' parts that were granted.
    pub(crate) reads: usize,
    /// MLOCKs that were granted and refused, and renewals by a token that was refused.
    pub(crate) sets: usize,
    pub(crate) sets_refused: usize,
    pub(crate) probes: usize,
    /// LOCKs with PERMITS that were refused.
    pub(crate) permits_refused: usize,
    pub(crate) no_quorum: usize,
    pub(crate) renewals: usize,
    /// Locks that lock libraries were granted, prolonged and released, and their blind DELs.
    pub(crate) taken: usize,
    pub(crate) prolonged: usize,
    pub(crate) released: usize,
    pub(crate) deletions: usize,
    pub(crate) losses: usize,
    pub(crate) ended: usize,
    pub(crate) errors: usize,
}

/// The outcome of all histories.
#[derive(Debug, Default)]
pub(crate) struct Verdict {
    pub(crate) wrong: Vec<Wrong>,
    pub(crate) beliefs: Vec<Belief>,
    pub(crate) counts: Counts,
    /// The times when LOCK was answered with a grant, in order.
    pub(crate) granted: Vec<Time>,
    /// The times when LOCK was answered with a permit that it had not named.
    pub(crate) permits: Vec<Time>,
    /// The times when LOCK was answered with a reader's part, and those when it was answered with a lock that is shared
    /// at other times.
    pub(crate) reads: Vec<Time>,
    pub(crate) alone: Vec<Time>,
    /// The times when lock libraries' commands were answered with a lock.
    pub(crate) taken: Vec<Time>,
    /// Errors that lock libraries were told, by their first word.
    pub(crate) refused: BTreeMap<String, usize>,
    pub(crate) silences: Vec<Silence>,
    pub(crate) leaks: Vec<Leak>,
    /// The number of overlaps if holders counted from when the answer came.
    pub(crate) careless: usize,
    /// The number of clients that ended, as they were told to or killed.
    pub(crate) over: usize,
}

/// Judges the histories of all clients.
pub(crate) fn check(histories: &[Vec<(Time, Event)>]) -> Verdict {
    let mut verdict = Verdict::default();
    let (mut beliefs, mut grants, mut deletions) = (Vec::new(), Vec::new(), Vec::new());
    for (client, history) in histories.iter().enumerate() {
        let mut reader = Reader { client, ..Reader::default() };
        for (time, event) in history {
            reader.read(*time, event, &mut verdict);
        }
        reader.end(&mut verdict);
        beliefs.extend(reader.beliefs);
        grants.extend(reader.grants);
        deletions.extend(reader.deletions);
    }
    delete(&mut beliefs, &deletions);
    verdict.taken.sort_unstable();
    verdict.reads.sort_unstable();
    verdict.alone.sort_unstable();
    verdict.granted = grants.iter().map(|grant: &Grant| grant.told).collect();
    verdict.granted.sort_unstable();
    for (one, other) in overlaps(&beliefs, |belief| belief.until) {
        verdict.wrong.push(Wrong::TwoHolders(one.clone(), other.clone()));
    }
    verdict.careless = overlaps(&beliefs, |belief| belief.careless).len();
    verdict.wrong.extend(fences(&mut grants));
    verdict.beliefs = beliefs;
    verdict
}

/// Returns the longest time without a grant within `from..until`, and when it began.
pub(crate) fn longest_gap(granted: &[Time], from: Time, until: Time) -> (Time, Time) {
    let within = granted.iter().copied().filter(|time| (from..until).contains(time));
    let (mut last, mut longest) = (from, (0, from));
    for time in within.chain([until.max(from)]) {
        longest = longest.max((time - last, last));
        last = time;
    }
    longest
}

/// Cuts beliefs off that blind DELs may have ended: those in locks that were asked for before the DEL was answered.
fn delete(beliefs: &mut [Belief], deletions: &[Deletion]) {
    for belief in beliefs {
        let Some(asked) = belief.adopted else { continue };
        let ends = |deletion: &&Deletion| deletion.key == belief.key && asked <= deletion.until;
        let first = deletions.iter().filter(ends).map(|deletion| deletion.sent).min();
        if let Some(sent) = first {
            belief.until = belief.until.min(sent);
            belief.careless = belief.careless.min(sent);
        }
    }
}

/// Returns pairs of beliefs in one key at once; each belief is in at most one pair with an earlier one.
fn overlaps(beliefs: &[Belief], until: impl Fn(&Belief) -> Time) -> Vec<(&Belief, &Belief)> {
    let mut in_order: Vec<&Belief> = beliefs.iter().filter(|b| until(b) > b.from).collect();
    in_order.sort_by_key(|belief| belief.from);
    let mut found = Vec::new();
    // For each key, the beliefs that may still hold.
    let mut holders: HashMap<&str, Vec<&Belief>> = HashMap::new();
    for belief in in_order {
        let open = holders.entry(&belief.key).or_default();
        open.retain(|holder| until(holder) > belief.from);
        let is_other = |holder: &&&Belief| {
            (holder.client, &holder.token) != (belief.client, &belief.token)
                && !(holder.shared && belief.shared)
        };
        let other = open.iter().find(is_other);
        found.extend(other.map(|other| (*other, belief)));
        open.push(belief);
    }
    found
}

/// Checks that a client that asks after a grant was told is told a larger fence.
fn fences(grants: &mut [Grant]) -> Vec<Wrong> {
    let mut told: Vec<Grant> = grants.to_vec();
    told.sort_by_key(|grant| grant.told);
    grants.sort_by_key(|grant| grant.sent);
    let (mut wrong, mut next) = (Vec::new(), 0);
    let mut largest: HashMap<&str, u64> = HashMap::new();
    for grant in grants.iter() {
        while told.get(next).is_some_and(|before| before.told < grant.sent) {
            let before = largest.entry(&told[next].key).or_default();
            *before = told[next].fence.max(*before);
            next += 1;
        }
        let before = largest.get(grant.key.as_str()).copied().unwrap_or(0);
        if grant.fence <= before {
            let (key, fence, told) = (grant.key.clone(), grant.fence, grant.told);
            wrong.push(Wrong::Fence { key, before, fence, told });
        }
    }
    wrong
}

/// A reader of one client's history, event by event. The client has at most one request under way,
/// and the locks of one LOCK or MLOCK.
#[derive(Default)]
struct Reader {
    client: usize,
    asked: Option<(Time, Asked, String)>,
    holds: Vec<Belief>,
    /// When the client was told that its last LOCK or MLOCK is refused.
    refused: Time,
    beliefs: Vec<Belief>,
    grants: Vec<Grant>,
    /// The lock library's command under way.
    idiom: Option<Idiom>,
    deletions: Vec<Deletion>,
    /// The time when a push said that a lock is lost, until a command has been answered so.
    pushed: Option<Time>,
    last: Time,
    is_over: bool,
}

impl Reader {
    fn read(&mut self, time: Time, event: &Event, verdict: &mut Verdict) {
        self.last = time;
        match event {
            Event::Writing(writing) => {
                verdict.counts.requests += 1;
                self.unanswered(verdict);
                let asked = if writing.attached { Asked::Beside } else { Asked::Write };
                self.asked = Some((time, asked, writing.key.clone()));
            }
            Event::Sent { verb, key } => {
                verdict.counts.requests += 1;
                self.unanswered(verdict);
                // A lease ends here. The answer says whether a session lock was held until here.
                if matches!(verb, Verb::Unlock | Verb::UnlockAll) {
                    for belief in self.holds_of(key) {
                        belief.until = belief.until.min(time);
                        belief.careless = belief.careless.min(time);
                    }
                }
                let asked = match verb {
                    Verb::Attach => Asked::Beside,
                    Verb::Get => Asked::Anywhere,
                    verb => Asked::Verb(*verb),
                };
                self.asked = Some((time, asked, key.clone()));
            }
            Event::Setting(setting) => {
                verdict.counts.requests += 1;
                self.unanswered(verdict);
                self.asked = Some((time, Asked::Anywhere, setting.key.clone()));
            }
            Event::Idiom(idiom) => {
                verdict.counts.requests += 1;
                self.unanswered(verdict);
                self.sends(time, idiom);
                self.asked = Some((time, Asked::Idiom, idiom.key.clone()));
                self.idiom = Some(idiom.clone());
            }
            Event::Answered(outcome) => self.answered(time, outcome, verdict),
            Event::Pushed => {
                verdict.counts.losses += 1;
                self.pushed = Some(time);
                self.ends(time, true);
            }
            Event::Closed => {
                self.pushed = None;
                self.ends(time, true);
            }
            Event::Killed => {
                self.asked = None;
                self.ends(time, false);
                self.is_over = true;
            }
            Event::Over => self.is_over = true,
        }
    }

    fn answered(&mut self, time: Time, outcome: &Outcome, verdict: &mut Verdict) {
        let Some((sent, asked, key)) = self.asked.take() else { return };
        self.told_of_loss(sent, outcome, asked, &key, verdict);
        let counts = &mut verdict.counts;
        let session = self.holds.iter().any(|belief| belief.session);
        match (outcome, asked) {
            // The client did not close the connection: what it was told stays true.
            (Outcome::Closed, asked) => {
                counts.ended += 1;
                // A push just before the end does not concern the next connection.
                if asked != Asked::Beside {
                    self.pushed = None;
                }
            }
            (Outcome::TimedOut, _) => {
                verdict.silences.push(Silence { client: self.client, sent, until: time });
                if asked != Asked::Beside {
                    self.ends(time, true);
                }
            }
            (_, Asked::Beside) => {}
            (outcome, Asked::Idiom) => self.idiom_answered(sent, time, outcome, verdict),
            (Outcome::Granted { name, .. }, Asked::Verb(verb)) => {
                let name = name.as_deref();
                if keys(&key).all(|asked| asked != name.unwrap_or(&key)) {
                    let (key, client) = (name.unwrap_or(&key).to_owned(), self.client);
                    verdict.wrong.push(Wrong::Unasked { key, client, told: time });
                }
                verdict.permits.extend(name.map(|_| time));
                counts.grants += 1;
                counts.reads += usize::from(verb.is_shared());
                if verb.is_shared() {
                    verdict.reads.push(time);
                } else if trace::is_shared(&key) {
                    verdict.alone.push(time);
                }
                self.granted(name.unwrap_or(&key), outcome, verb, (sent, time), &mut verdict.wrong);
            }
            (Outcome::AllGranted { token, validity, fences }, Asked::Verb(verb)) => {
                counts.grants += fences.len();
                counts.sets += 1;
                self.beliefs.append(&mut self.holds);
                for (key, fence) in keys(&key).zip(fences) {
                    let (client, key, fence) = (self.client, key.to_owned(), *fence);
                    self.begins(&key, token, (verb == Verb::SessionAll, false), time);
                    self.extends(&key, sent, time, validity * 1000);
                    self.grants.push(Grant { key, client, fence, sent, told: time });
                }
            }
            (Outcome::Number(left), Asked::Verb(Verb::Probe)) => {
                counts.probes += 1;
                if *left > 0 {
                    let (client, refused) = (self.client, self.refused);
                    verdict.leaks.push(Leak { key, client, refused, sent });
                }
            }
            (Outcome::Number(validity), Asked::Verb(Verb::Renew)) if *validity > 0 => {
                counts.renewals += 1;
                self.certain(Some(&key), sent);
                self.extends(&key, sent, time, validity * 1000);
            }
            (Outcome::Number(_), Asked::Verb(Verb::Renew)) => self.ends_of(&key, time),
            (Outcome::Number(held), Asked::Verb(Verb::Unlock | Verb::UnlockAll)) => {
                if *held == keys(&key).count() as u64 {
                    self.certain(Some(&key), sent);
                }
                self.ends_of(&key, sent);
            }
            (
                Outcome::Pong | Outcome::Number(_) | Outcome::Written(_),
                Asked::Verb(_) | Asked::Write,
            ) => self.certain(None, sent),
            (Outcome::Pong | Outcome::Number(_) | Outcome::Written(_), _) => {}
            (Outcome::Value(_) | Outcome::Set, _) => {}
            (Outcome::Held, asked) => {
                counts.held += 1;
                self.refused = time;
                match asked {
                    Asked::Verb(Verb::LeaseAll | Verb::SessionAll) => counts.sets_refused += 1,
                    _ => counts.permits_refused += usize::from(keys(&key).count() > 1),
                }
            }
            (Outcome::Lost, _) => {
                counts.losses += 1;
                self.ends(time, true);
            }
            (Outcome::Error(word) | Outcome::Partly { word, .. }, Asked::Write) => {
                // The proxy has forgotten that it kept the lock.
                if session && ["NOTHELD", "FENCED", "LOCKLOST"].contains(&word.as_str()) {
                    self.ends(sent, false);
                }
            }
            (Outcome::Error(word), Asked::Verb(verb)) => {
                counts.no_quorum += usize::from(word == "NOQUORUM");
                counts.errors += usize::from(word != "NOQUORUM");
                if matches!(verb, Verb::Unlock | Verb::UnlockAll) {
                    self.ends_of(&key, sent);
                }
            }
            (Outcome::Partly { word, .. }, Asked::Anywhere) if word == "LOCKLOST" => {
                counts.losses += 1;
                self.ends(time, true);
            }
            (Outcome::Granted { .. } | Outcome::AllGranted { .. }, _)
            | (Outcome::Partly { .. }, _)
            | (Outcome::Error(_), Asked::Anywhere) => {}
        }
    }

    /// Notes that the client was granted this lock.
    fn granted(
        &mut self,
        key: &str,
        outcome: &Outcome,
        verb: Verb,
        (sent, told): (Time, Time),
        wrong: &mut Vec<Wrong>,
    ) {
        let Outcome::Granted { token, fence, validity, .. } = outcome else { return };
        let (key_of, client, fence) = (|| key.to_owned(), self.client, *fence);
        match (verb.is_shared(), fence) {
            (true, 0) => {}
            (true, _) => wrong.push(Wrong::Fenced { key: key_of(), client, told }),
            (false, _) => self.grants.push(Grant { key: key_of(), client, fence, sent, told }),
        }
        if !self.holds.iter().any(|b| b.token == *token && b.key == key) {
            self.beliefs.append(&mut self.holds);
            let session = matches!(verb, Verb::Session | Verb::SharedSession);
            self.begins(key, token, (session, verb.is_shared()), told);
        }
        self.extends(key, sent, told, validity * 1000);
    }

    /// Checks that a loss is the answer to the commands that follow it.
    fn told_of_loss(
        &mut self,
        sent: Time,
        outcome: &Outcome,
        asked: Asked,
        key: &str,
        verdict: &mut Verdict,
    ) {
        let (key, client) = (key.to_owned(), self.client);
        if let Outcome::Partly { made, word } = outcome
            && word == "LOCKLOST"
            && made.iter().skip_while(|made| **made).any(|made| *made)
        {
            verdict.wrong.push(Wrong::Behind { key: key.clone(), client, sent });
        }
        // A command under way when the push came may have been carried out before.
        if asked == Asked::Beside || self.pushed.is_none_or(|pushed| pushed > sent) {
            return;
        }
        let word = match outcome {
            Outcome::Lost => "LOCKLOST",
            Outcome::Error(word) | Outcome::Partly { word, .. } => word,
            _ => "",
        };
        // UNLOCK, MUNLOCK and RENEW tell a loss in their own way, and so does the connection's end. Other
        // errors may come before the lock is looked at.
        let is_told = match (outcome, asked) {
            (Outcome::Closed | Outcome::TimedOut, _) => true,
            (Outcome::Number(released), Asked::Verb(Verb::UnlockAll)) => {
                *released < keys(&key).count() as u64
            }
            (Outcome::Number(0), Asked::Verb(Verb::Unlock | Verb::Renew)) => true,
            _ => word == "LOCKLOST",
        };
        if is_told || word.is_empty() {
            self.pushed = None;
        }
        if !is_told && word.is_empty() {
            verdict.wrong.push(Wrong::Untold { key, client, sent });
        }
    }

    /// Notes that a lock library's command is being sent.
    fn sends(&mut self, time: Time, idiom: &Idiom) {
        let shortened = match idiom.kind {
            IdiomKind::Release | IdiomKind::Delete => time,
            IdiomKind::Extend => time + idiom.ttl * 1000,
            IdiomKind::Take | IdiomKind::Add | IdiomKind::Look => Time::MAX,
        };
        for belief in &mut self.holds {
            belief.until = belief.until.min(shortened);
            belief.careless = belief.careless.min(shortened);
        }
        if idiom.kind == IdiomKind::Delete {
            let (key, until) = (idiom.key.clone(), time + LATE_DELETE);
            self.deletions.push(Deletion { key, sent: time, until });
        }
    }

    fn idiom_answered(&mut self, sent: Time, time: Time, outcome: &Outcome, verdict: &mut Verdict) {
        let Some(idiom) = self.idiom.take() else { return };
        let counts = &mut verdict.counts;
        let is_yes = matches!(outcome, Outcome::Set | Outcome::Number(1));
        if let Outcome::Error(word) = outcome {
            counts.no_quorum += usize::from(word == "NOQUORUM");
            counts.errors += usize::from(word != "NOQUORUM");
            *verdict.refused.entry(word.clone()).or_default() += 1;
        }
        counts.held += usize::from(*outcome == Outcome::Held && idiom.kind == IdiomKind::Take);
        let (until, ttl) = (idiom.until(sent, time), idiom.ttl * 1000);
        match idiom.kind {
            IdiomKind::Take if is_yes => {
                counts.taken += 1;
                verdict.taken.push(time);
                self.takes(&idiom, (sent, time), until, time + ttl);
            }
            IdiomKind::Extend if is_yes => {
                counts.prolonged += 1;
                self.takes(&idiom, (sent, time), until, time + ttl);
            }
            IdiomKind::Add if is_yes => {
                counts.prolonged += 1;
                let before = self.holds.last().map_or((0, 0), |b| (b.until, b.careless));
                let (until, careless) = (until.max(before.0 + ttl), before.1.max(time) + ttl);
                self.takes(&idiom, (sent, time), until, careless);
            }
            IdiomKind::Extend | IdiomKind::Add => {
                if matches!(outcome, Outcome::Held | Outcome::Number(0)) {
                    self.ends(sent, false);
                }
            }
            IdiomKind::Release => {
                counts.released += usize::from(is_yes);
                self.ends(sent, false);
            }
            IdiomKind::Delete => {
                counts.deletions += usize::from(is_yes);
                if let Some(last) = self.deletions.last_mut() {
                    last.until = time;
                }
                self.ends(sent, false);
            }
            IdiomKind::Take | IdiomKind::Look => {}
        }
    }

    /// Notes that a lock library was told at `told` that it has the lock. An earlier answer makes a belief of its
    /// own: a blind DEL may have ended that one, and not this.
    fn takes(
        &mut self,
        idiom: &Idiom,
        (sent, told): (Time, Time),
        mut until: Time,
        mut careless: Time,
    ) {
        if let Some(mut before) = self.holds.pop() {
            if before.key == idiom.key && before.token == idiom.token {
                (until, careless) = (until.max(before.until), careless.max(before.careless));
                before.until = before.until.min(told);
                before.careless = before.careless.min(told);
            }
            self.beliefs.push(before);
        }
        let (key, token, client) = (idiom.key.clone(), idiom.token.clone(), self.client);
        let (session, shared, adopted, from) = (false, false, Some(sent), told);
        let belief = Belief { key, token, client, session, shared, adopted, from, until, careless };
        self.holds.push(belief);
    }

    fn begins(&mut self, key: &str, token: &str, (session, shared): (bool, bool), time: Time) {
        let (key, token, client) = (key.to_owned(), token.to_owned(), self.client);
        let (adopted, from, until, careless) = (None, time, time, time);
        let belief = Belief { key, token, client, session, shared, adopted, from, until, careless };
        self.holds.push(belief);
    }

    /// Returns the beliefs in these locks.
    fn holds_of(&mut self, joined: &str) -> impl Iterator<Item = &mut Belief> {
        self.holds.iter_mut().filter(move |belief| keys(joined).any(|key| key == belief.key))
    }

    /// Notes that the client was told at `time` that its lock is valid for `validity`.
    fn extends(&mut self, key: &str, sent: Time, time: Time, validity: Time) {
        let mut before = None;
        for belief in self.holds_of(key) {
            if belief.until < time && !belief.session {
                // In between the client did not believe so.
                let again = Belief { from: time, until: time, careless: time, ..belief.clone() };
                before = Some(std::mem::replace(belief, again));
            }
            belief.until = belief.until.max(sent + validity);
            belief.careless = belief.careless.max(time + validity);
        }
        self.beliefs.extend(before);
    }

    /// Notes that session locks were held all the time, up to here: these, or all that the client has.
    fn certain(&mut self, joined: Option<&str>, sent: Time) {
        let is_meant = |belief: &&mut Belief| {
            belief.session && joined.is_none_or(|all| keys(all).any(|key| key == belief.key))
        };
        for belief in self.holds.iter_mut().filter(is_meant) {
            belief.until = belief.until.max(sent);
            belief.careless = belief.careless.max(sent);
        }
    }

    /// Ends the client's belief in all its locks. With `connection`, as its connection has ended, only the belief in
    /// session locks ends.
    fn ends(&mut self, time: Time, connection: bool) {
        self.end_beliefs(time, |belief| belief.session || !connection);
    }

    /// Ends the client's belief in these locks.
    fn ends_of(&mut self, joined: &str, time: Time) {
        self.end_beliefs(time, |belief| keys(joined).any(|key| key == belief.key));
    }

    fn end_beliefs(&mut self, time: Time, is_meant: impl Fn(&Belief) -> bool) {
        let ended = self.holds.extract_if(.., |belief| is_meant(belief));
        self.beliefs.extend(ended.map(|belief| Belief {
            until: belief.until.min(time),
            careless: belief.careless.min(time),
            ..belief
        }));
    }

    fn unanswered(&mut self, verdict: &mut Verdict) {
        if let Some((sent, ..)) = self.asked.take() {
            verdict.wrong.push(Wrong::NoAnswer { client: self.client, sent });
        }
    }

    fn end(&mut self, verdict: &mut Verdict) {
        if self.is_over {
            self.unanswered(verdict);
            verdict.over += 1;
        }
        for mut belief in std::mem::take(&mut self.holds) {
            // Of a client that still runs, it is certain only up to its last line that it held the lock.
            if belief.session && !self.is_over {
                belief.until = belief.until.min(self.last);
            }
            self.beliefs.push(belief);
        }
    }
}

impl fmt::Display for Wrong {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Wrong::TwoHolders(one, other) => {
                let together = one.until.min(other.until) - other.from;
                write!(out, "{}: {one} and {other} hold it at once, for {together} µs", one.key)
            }
            Wrong::Fence { key, before, fence, told } => {
                write!(out, "{key}: fence {fence} after {before}, told at {told}")
            }
            Wrong::Unasked { key, client, told } => {
                write!(
                    out,
                    "{key}: granted to client {client}, told at {told}, which asked for others"
                )
            }
            Wrong::Fenced { key, client, told } => {
                write!(out, "{key}: client {client}, a reader, was told a fence at {told}")
            }
            Wrong::NoAnswer { client, sent } => {
                write!(out, "client {client} has no answer to what it sent at {sent}")
            }
            Wrong::Untold { key, client, sent } => write!(
                out,
                "{key}: what client {client} sent at {sent}, after the push, does not say LOCKLOST"
            ),
            Wrong::Behind { key, client, sent } => write!(
                out,
                "{key}: of what client {client} sent at {sent} something was made behind LOCKLOST"
            ),
        }
    }
}

impl fmt::Display for Belief {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Belief { client, token, from, until, session, shared, adopted, .. } = self;
        let kind = match adopted {
            Some(_) => "adopted",
            None if *shared => "reader",
            None if *session => "session",
            None => "lease",
        };
        write!(out, "client {client} ({kind} {token}, {from} to {until})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::parse;

    fn read(histories: &[&str]) -> Vec<Vec<(Time, Event)>> {
        let text = |lines: &&str| {
            lines.split('|').map(|line| format!("{}\n", line.trim())).collect::<String>()
        };
        histories.iter().map(|lines| parse(&text(lines))).collect()
    }

    fn judge(histories: &[&str]) -> Verdict {
        check(&read(histories))
    }

    fn is_two(verdict: &Verdict) -> bool {
        matches!(verdict.wrong[..], [Wrong::TwoHolders(..)])
    }

    #[test]
    fn two_leases_at_once_are_seen() {
        let first = "1000 sent Lease a | 2000 granted x 1 10 | 20000 over";
        // A lease valid from the sending at 1000 for 10 ms.
        let at = |time: u64| format!("{} sent Lease a | {time} granted y 2 10 | 90000 over", 2001);
        assert!(is_two(&judge(&[first, &at(10_999)])));
        assert_eq!(judge(&[first, &at(11_000)]).wrong, []);
        assert_eq!(judge(&[first, &at(11_000)]).careless, 1);
        assert_eq!(judge(&[first, &at(12_000)]).careless, 0);
        assert_eq!(judge(&[first, &at(3000).replace(" a ", " b ")]).wrong, []);
    }

    #[test]
    fn each_lock_of_a_mlock_is_held_by_itself() {
        let all = "1000 sent LeaseAll a,b | 2000 all x 10 1,2";
        let lock = |key: &str, time: u64| {
            let fence = 7;
            format!("{} sent Lease {key} | {time} granted y {fence} 9 | 90000 over", time - 500)
        };
        let is_wrong = |first: &str, key, time| {
            is_two(&judge(&[&format!("{first} | 90000 over"), &lock(key, time)]))
        };
        for key in ["a", "b"] {
            assert!(is_wrong(all, key, 10_999));
            assert!(!is_wrong(all, key, 11_000));
            let unlocked = format!("{all} | 4000 sent UnlockAll a,b | 5000 number 2");
            assert!(is_wrong(&unlocked, key, 3999) && !is_wrong(&unlocked, key, 4000));
        }
        assert!(!is_wrong(all, "c", 5000));
        let one = format!("{all} | 4000 sent Unlock a | 5000 number 1");
        assert!(!is_wrong(&one, "a", 4000) && is_wrong(&one, "b", 4000));
        let renewed = format!("{all} | 4000 sent Renew b | 5000 number 20");
        assert!(!is_wrong(&renewed, "a", 12_000) && is_wrong(&renewed, "b", 12_000));
        assert!(matches!(
            judge(&[
                "1 sent LeaseAll a,b | 2 all x 0 5,5 | 9 over",
                "3 sent Lease b | 4 granted y 5 0 | 9 over"
            ])
            .wrong[..],
            [Wrong::Fence { .. }]
        ));
        // Session locks are held up to the last answer, or until MUNLOCK has released all.
        let session = all.replace("Lease", "Session");
        let ping = format!("{session} | 50000 sent Ping a | 51000 pong | 70000 closed");
        assert!(is_wrong(&ping, "a", 49_000) && is_wrong(&ping, "b", 49_000));
        let unlock =
            |number: u64| format!("{session} | 50000 sent UnlockAll a,b | 51000 number {number}");
        assert!(is_wrong(&unlock(2), "b", 49_000) && !is_wrong(&unlock(1), "b", 49_000));
        let pushed = format!("{session} | 3000 sent Ping a | 4000 pushed | 4000 pong");
        let then = |rest: &str| judge(&[&format!("{pushed} | {rest} | 9000 over")]).wrong;
        assert_eq!(then("5000 sent UnlockAll a,b | 6000 number 1"), []);
        let untold = [Wrong::Untold { key: "a,b".to_owned(), client: 0, sent: 5000 }];
        assert_eq!(then("5000 sent UnlockAll a,b | 6000 number 2"), untold);
    }

    #[test]
    fn a_refused_mlock_that_keeps_a_lock_is_seen() {
        let refused = "1 sent LeaseAll a,b | 2 held | 3 closed | 400 sent Probe b | 401 number";
        let verdict = judge(&[&format!("{refused} 0 | 900 over")]);
        assert_eq!(
            (verdict.leaks, verdict.counts.probes, verdict.counts.sets_refused),
            (vec![], 1, 1)
        );
        let leak = Leak { key: "b".to_owned(), client: 0, refused: 2, sent: 400 };
        assert_eq!(judge(&[&format!("{refused} 30 | 900 over")]).leaks, [leak]);
    }

    #[test]
    fn a_permit_is_held_as_the_lock_that_the_answer_names() {
        let first = "1000 sent Lease p#0,p#1 | 2000 granted x 5 10 p#1 | 90000 over";
        let then = |asked: &str, time: u64, told: &str| {
            judge(&[
                first,
                &format!("3000 sent Lease {asked} | {time} granted y {told} | 90000 over"),
            ])
        };
        for (asked, name) in [("p#0,p#1", " p#1"), ("p#0,p#1,p#2", " p#1"), ("p#1", "")] {
            assert!(is_two(&then(asked, 10_999, &format!("6 9{name}"))));
            assert_eq!(then(asked, 11_000, &format!("6 9{name}")).wrong, []);
            let lower = then(asked, 11_000, &format!("5 9{name}")).wrong;
            assert!(matches!(&lower[..], [Wrong::Fence { key, .. }] if key == "p#1"));
        }
        // Each permit has fences and holders of its own.
        let other = then("p#0,p#1", 5000, "1 9 p#0");
        assert_eq!((other.wrong, other.permits.len()), (vec![], 2));
        let unasked = |key: &str| Wrong::Unasked { key: key.to_owned(), client: 1, told: 5000 };
        assert_eq!(then("p#0,p#1", 5000, "1 9 p#2").wrong, [unasked("p#2")]);
        assert_eq!(then("p#0,p#1", 5000, "1 9").wrong, [unasked("p#0,p#1")]);
        // The client learns of none of them.
        assert_eq!(judge(&[first, "3000 sent Lease p#0,p#1 | 5000 ended | 90000 over"]).wrong, []);
        let session = first
            .replace("Lease", "Session")
            .replace("90000", "50000 sent Ping p#1 | 51000 pong | 90000");
        assert!(is_two(&judge(&[
            &session,
            "40000 sent Lease p#1 | 49000 granted y 6 90 | 90000 over"
        ])));
        let refused = judge(&[
            "1 sent Lease p#0,p#1 | 2 held | 3 closed | 400 sent Probe p#1 | 401 number 30 | 900 over",
        ]);
        let leak = Leak { key: "p#1".to_owned(), client: 0, refused: 2, sent: 400 };
        assert_eq!((refused.leaks, refused.counts.permits_refused), (vec![leak], 1));
    }

    #[test]
    fn readers_are_many_at_once_but_none_is_beside_who_has_the_lock_alone() {
        let reader = "1000 sent SharedLease a | 2000 granted x 0 10 | 90000 over";
        let then = |verb: &str, time: u64, fence: u64| {
            let sent = time - 500;
            format!("{sent} sent {verb} a | {time} granted y {fence} 9 | 90000 over")
        };
        for shared in ["SharedLease", "SharedSession"] {
            let both = judge(&[reader, &then(shared, 5000, 0)]);
            assert_eq!((both.wrong, both.reads.len()), (vec![], 2));
        }
        for alone in ["Lease", "Session"] {
            assert!(is_two(&judge(&[reader, &then(alone, 10_999, 1)])));
            assert_eq!(judge(&[reader, &then(alone, 11_000, 1)]).wrong, []);
            // And the other way round.
            let first = reader.replace("SharedLease", alone).replace("x 0", "x 1");
            assert!(is_two(&judge(&[&first, &then("SharedLease", 9999, 0)])));
            assert_eq!(judge(&[&first, &then("SharedLease", 11_001, 0)]).wrong, []);
        }
        let third = then("Lease", 6000, 1).replace(" y ", " z ");
        assert!(is_two(&judge(&[reader, &then("SharedLease", 4000, 0), &third])));
        let session = reader.replace("Lease", "Session");
        let ping = session.replace("90000", "50000 sent Ping a | 51000 pong | 90000");
        assert!(is_two(&judge(&[&ping, &then("Lease", 49_000, 1)])));
        let told = judge(&[&reader.replace("x 0", "x 1")]).wrong;
        assert_eq!(told, [Wrong::Fenced { key: "a".to_owned(), client: 0, told: 2000 }]);
    }

    #[test]
    fn unlock_ends_a_lease_when_it_is_sent() {
        let first = "1000 sent Lease a | 2000 granted x 1 10 | 5000 sent Unlock a | 6000 number 1 | 7000 over";
        assert_eq!(
            judge(&[first, "3000 sent Lease a | 5000 granted y 2 9 | 90000 over"]).wrong,
            []
        );
        assert!(is_two(&judge(&[first, "3000 sent Lease a | 4999 granted y 2 9 | 90000 over"])));
    }

    #[test]
    fn a_lease_outlives_its_connection_and_a_renewal_prolongs_it() {
        let other = "3000 sent Lease a | 10500 granted y 2 9 | 90000 over";
        assert!(is_two(&judge(&["1000 sent Lease a | 2000 granted x 1 10 | 3000 closed", other])));
        let late = "13000 sent Lease a | 13500 granted y 2 9 | 90000 over";
        let renewed = "1000 sent Lease a | 2000 granted x 1 10 | 4000 sent Renew a | 5000 number 10 | 6000 over";
        assert!(is_two(&judge(&[renewed, late])));
        let denied = renewed.replace("number 10", "number 0");
        assert_eq!(judge(&[&denied, late]).wrong, []);
    }

    #[test]
    fn what_was_granted_too_late_is_held_only_from_a_renewal_on() {
        let first = "1000 sent Lease a | 12000 granted x 1 10 | 13000 sent Renew a | 14000 number 10 | 90000 over";
        let at = |time: u64| format!("12001 sent Lease a | {time} granted y 2 1 | 90000 over");
        assert_eq!(judge(&[first, &at(12_500)]).wrong, []);
        assert!(is_two(&judge(&[first, &at(15_000).replace("y 2 1 ", "y 2 9 ")])));
    }

    #[test]
    fn a_session_lock_is_held_up_to_the_last_request_answered() {
        let ping = "1000 sent Session a | 2000 granted x 1 10 | 50000 sent Ping a | 60000 pong | 70000 closed";
        let at = |time: u64| {
            format!("{} sent Lease a | {time} granted y 2 100 | 990000 over", time - 500)
        };
        assert!(is_two(&judge(&[ping, &at(49_000)])));
        assert_eq!(judge(&[ping, &at(51_000)]).wrong, []);
        // A loss was told: the lock was certain only for as long as its validity.
        assert_eq!(judge(&[&ping.replace("pong", "lost"), &at(49_000)]).wrong, []);
        assert!(is_two(&judge(&[&ping.replace("pong", "lost"), &at(10_000)])));
        assert_eq!(judge(&["1 sent Session a | 2 granted x 1 10 | 9 closed", &at(1000)]).wrong, []);
    }

    #[test]
    fn a_session_lock_holds_as_told_unless_its_client_ends_it() {
        let first = "1000 sent Session a | 2000 granted x 1 100 | 40000 sent Ping a | 41000 ended | 92000 over";
        let at =
            |time: u64| format!("{} sent Lease a | {time} granted y 2 1 | 990000 over", time - 500);
        let is_wrong = |first: &str, time| is_two(&judge(&[first, &at(time)]));
        // Another party has ended the connection.
        assert!(is_wrong(first, 60_000));
        assert!(is_wrong(first, 100_999));
        assert_eq!(judge(&[first, &at(101_000)]).wrong, []);
        // The client ended it, was killed, or has heard nothing and given up.
        for end in ["41000 pong | 42000 closed", "41000 timeout", "41000 killed"] {
            let ended = first.replace("41000 ended", end);
            assert!(is_wrong(&ended, 40_900));
            assert_eq!(judge(&[&ended, &at(42_000)]).wrong, []);
        }
        // The client's own next connection counts like any other.
        let again = first.replace("92000", "50000 sent Session a | 51000 granted z 2 9 | 92000");
        assert!(is_two(&judge(&[&again])));
    }

    #[test]
    fn what_a_library_is_answered_shows_nothing_and_what_it_was_told_counts() {
        let first = "1000 sent Session a | 2000 granted x 1 10 | 50000 sent Get a | 60000 value 0-1 | 61000 setting a 0-2 0-1 1 | 62000 set | 70000 over";
        let at = |time: u64| {
            format!("{} sent Lease a | {time} granted y 2 100 | 990000 over", time - 500)
        };
        assert!(is_two(&judge(&[first, &at(10_000)])));
        assert_eq!(judge(&[first, &at(49_000)]).wrong, []);
        let renewed = first
            .replace("50000 sent Get a | 60000 value 0-1", "50000 sent Renew a | 60000 number 10");
        assert!(is_two(&judge(&[&renewed, &at(49_000)])));
        let lost = first.replace("| 62000 set", "| 62000 lost");
        assert_eq!(judge(&[&lost, &at(49_000)]).counts.losses, 1);
    }

    #[test]
    fn a_loss_is_the_answer_to_what_was_sent_behind_its_push() {
        let pushed = "1000 sent Session a | 2000 granted x 1 10 | 3000 sent Ping a | 4000 pushed | 4000 pong";
        let then = |rest: &str| judge(&[&format!("{pushed} | {rest} | 9000 over")]).wrong;
        let untold = [Wrong::Untold { key: "a".to_owned(), client: 0, sent: 5000 }];
        assert_eq!(then("5000 sent Ping a | 6000 lost | 7000 sent Ping a | 8000 pong"), []);
        assert_eq!(then("5000 sent Ping a | 6000 pong | 7000 sent Ping a | 8000 pong"), untold);
        assert_eq!(then("5000 writing a 1 1 1 Command own | 6000 written 1"), untold);
        assert_eq!(then("5000 sent Unlock a | 6000 number 0 | 7000 sent Ping a | 8000 pong"), []);
        assert_eq!(then("5000 sent Unlock a | 6000 number 1"), untold);
        assert_eq!(then("5000 sent Ping a | 6000 error OOM | 7000 sent Ping a | 8000 lost"), []);
        assert_eq!(then("4500 closed | 5000 sent Ping a | 6000 pong"), []);
        let ended = pushed.replace("4000 pong", "4000 ended");
        let another = format!("{ended} | 5000 sent Session a | 6000 granted y 2 10 | 9000 over");
        assert_eq!(judge(&[&another]).wrong, []);
    }

    #[test]
    fn nothing_is_made_behind_a_loss_in_a_pipeline() {
        let partly = |made: &str, word: &str| {
            judge(&[&format!("1 setting a 0-1 none 3 | 2 partly {made} {word} | 3 over")]).wrong
        };
        let behind = [Wrong::Behind { key: "a".to_owned(), client: 0, sent: 1 }];
        assert_eq!(partly("---", "LOCKLOST"), []);
        assert_eq!(partly("+--", "LOCKLOST"), []);
        assert_eq!(partly("-++", "LOCKLOST"), behind);
        assert_eq!(partly("+-+", "LOCKLOST"), behind);
        assert_eq!(partly("-++", "OOM"), []);
    }

    #[test]
    fn writes_show_that_a_session_lock_is_held_unless_they_are_refused_or_beside_it() {
        let write = "1000 sent Session a | 2000 granted x 1 10 | 50000 writing a 1 1 1 Command own | 60000 written 1 | 70000 closed";
        let other = "48500 sent Lease a | 49000 granted y 2 100 | 990000 over";
        assert!(is_two(&judge(&[write, other])));
        assert!(is_two(&judge(&[
            &write
                .replace("writing a 1 1 1 Command own", "sent Read a")
                .replace("written", "number"),
            other
        ])));
        let refused = write.replace("written 1", "error FENCED");
        let ping = refused.replace("70000", "71000 sent Ping a | 72000 pong | 80000");
        assert_eq!(judge(&[&refused, other]).wrong, []);
        assert_eq!(judge(&[&ping, other]).wrong, []);
        assert_eq!(judge(&[&write.replace("own", "attached"), other]).wrong, []);
        // The end of the attached connection does not end the client's own.
        let beside = "1000 sent Session a | 2000 granted x 1 10 | 3000 sent Attach a | 4000 ended | 70000 sent Ping a | 71000 pong | 80000 closed";
        assert!(is_two(&judge(&[beside, other])));
    }

    /// A lock library's lock, from 2000 on, for 300 ms that count from 201000 at the latest.
    const TAKEN: &str = "1000 idiom Take a x 300 200 | 2000 set | 990000 over";

    /// Returns the history of a LOCK that is told at this time.
    fn lock_told(time: u64) -> String {
        format!("{} sent Lease a | {time} granted y 2 999 | 1990000 over", time - 500)
    }

    #[test]
    fn a_lock_librarys_lock_is_held_for_its_ttl_from_the_reply_on() {
        assert!(is_two(&judge(&[TAKEN, &lock_told(301_999)])));
        assert_eq!(judge(&[TAKEN, &lock_told(302_000)]).wrong, []);
        // The client cannot know for how long a late answer was under way.
        let late = TAKEN.replace("2000 set", "450000 set");
        assert!(is_two(&judge(&[&late, &lock_told(500_999)])));
        assert_eq!(judge(&[&late, &lock_told(501_000)]).wrong, []);
        assert_eq!(judge(&[&late, &lock_told(501_000)]).careless, 1);
        let two = judge(&[TAKEN, &TAKEN.replace(" x ", " y ")]);
        assert!(is_two(&two));
        assert_eq!((two.counts.taken, two.taken.len()), (2, 2));
        // One token for all is no excuse.
        assert!(is_two(&judge(&[TAKEN, TAKEN])));
        assert_eq!(judge(&[TAKEN, &TAKEN.replace("set", "held")]).wrong, []);
        // Past the proxies.
        let past = TAKEN.replace(" 200 ", " 0 ");
        assert!(is_two(&judge(&[&past, &lock_told(300_999)])));
        assert_eq!(judge(&[&past, &lock_told(301_000)]).wrong, []);
    }

    #[test]
    fn a_lock_librarys_lock_is_prolonged_and_released() {
        let then = |rest: &str| TAKEN.replace("990000", &format!("{rest} | 990000"));
        for yes in ["number 1", "set"] {
            let extended = then(&format!("100000 idiom Extend a x 300 200 | 101000 {yes}"));
            assert!(is_two(&judge(&[&extended, &lock_told(400_999)])));
            assert_eq!(judge(&[&extended, &lock_told(401_000)]).wrong, []);
        }
        let added = then("100000 idiom Add a x 300 200 | 101000 number 1");
        assert!(is_two(&judge(&[&added, &lock_told(601_999)])));
        assert_eq!(judge(&[&added, &lock_told(602_000)]).wrong, []);
        let refused = then("100000 idiom Extend a x 300 200 | 101000 number 0");
        assert!(is_two(&judge(&[&refused, &lock_told(99_999)])));
        assert_eq!(judge(&[&refused, &lock_told(100_000)]).wrong, []);
        // An error ends nothing, but a shorter TTL counts from when it was sent.
        let failed = then("100000 idiom Extend a x 50 200 | 101000 error NOQUORUM");
        assert!(is_two(&judge(&[&failed, &lock_told(149_999)])));
        assert_eq!(judge(&[&failed, &lock_told(150_000)]).wrong, []);
        for end in ["number 1", "number 0", "ended", "error NOQUORUM"] {
            let released = then(&format!("100000 idiom Release a x 0 200 | 101000 {end}"));
            assert!(is_two(&judge(&[&released, &lock_told(99_999)])));
            assert_eq!(judge(&[&released, &lock_told(100_000)]).wrong, []);
        }
    }

    #[test]
    fn a_blind_delete_ends_what_lock_libraries_have_and_no_lock_clients_lock() {
        let delete = "100000 idiom Delete a - 0 200 | 110000 number 1 | 990000 over";
        assert_eq!(judge(&[TAKEN, delete, &lock_told(100_000)]).wrong, []);
        assert!(is_two(&judge(&[TAKEN, delete, &lock_told(99_999)])));
        assert!(is_two(&judge(&[TAKEN, &delete.replace(" a ", " b "), &lock_told(100_000)])));
        // A lock that is told later may have been granted before; one that is asked for later was not.
        let at = |time: u64| TAKEN.replace("1000", &time.to_string()).replace("2000 ", "120000 ");
        assert_eq!(judge(&[&at(110_000), delete, &lock_told(120_001)]).wrong, []);
        assert!(is_two(&judge(&[&at(110_001), delete, &lock_told(120_001)])));
        let open = delete.replace("number 1", "ended");
        assert_eq!(judge(&[&at(110_001), &open, &lock_told(120_001)]).wrong, []);
        // A lock that was prolonged since was still there.
        let prolonged =
            TAKEN.replace("990000", "110001 idiom Extend a x 300 200 | 120000 set | 990000");
        assert!(is_two(&judge(&[&prolonged, delete, &lock_told(120_001)])));
        let lock = "1000 sent Lease a | 2000 granted z 1 900 | 1990000 over";
        let after = TAKEN.replace("1000", "120000").replace(" 2000", " 130000");
        assert!(is_two(&judge(&[lock, delete, &after])));
    }

    #[test]
    fn who_was_killed_believes_nothing_and_is_owed_nothing() {
        let killed = "1000 sent Lease a | 2000 granted x 1 10 | 3000 sent Unlock a | 4000 killed";
        assert_eq!(judge(&[killed]).wrong, []);
        let waits = "1000 sent Lease a | 2000 over";
        assert_eq!(judge(&[waits]).wrong, [Wrong::NoAnswer { client: 0, sent: 1000 }]);
    }

    #[test]
    fn fences_grow_from_one_that_was_told_to_the_next_that_is_asked_for() {
        let first = "1 sent Lease a | 2 granted x 5 0 | 9 over";
        let next =
            |fence: u64, sent: u64| format!("{sent} sent Lease a | 7 granted y {fence} 0 | 9 over");
        assert_eq!(judge(&[first, &next(6, 3)]).wrong, []);
        assert!(matches!(judge(&[first, &next(5, 3)]).wrong[..], [Wrong::Fence { .. }]));
        // The lock was asked for before the other was told: either may be first.
        assert_eq!(judge(&[first, &next(4, 2)]).wrong, []);
        assert_eq!(judge(&[first, &next(4, 3).replace(" a ", " b ")]).wrong, []);
    }

    #[test]
    fn gaps_are_measured_to_both_ends() {
        assert_eq!(longest_gap(&[10, 30, 90], 20, 50), (20, 30));
        assert_eq!(longest_gap(&[10, 90], 20, 50), (30, 20));
        assert_eq!(longest_gap(&[45], 20, 50), (25, 20));
    }
}
