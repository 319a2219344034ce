//! Checks guarded writes: a pure function of what clients wrote down and of the lists at the end.
//!
//! - An acknowledged write is there, once, whole, and where its client was told.
//! - A refused write, with whatever error, is not there. A write without an answer may be there,
//!   whole, or not at all; so may one that replicas have not acknowledged in time.
//! - Fences never fall from one entry of a list to the next.
//! - A client that reads a list's length under a new lock has seen all that was ever written under earlier locks:
//!   behind that length there is no smaller fence.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
};

use crate::{
    history::{Event, Outcome, Shape, Time, Verb, Writing, keys},
    trace::{self, Entry},
};

/// The lists, by lock.
pub(crate) type Lists = BTreeMap<String, Vec<Entry>>;

/// A fault of a write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Wrong {
    pub(crate) key: String,
    pub(crate) client: usize,
    pub(crate) number: u64,
    pub(crate) fence: u64,
    /// The time when the write was sent; 0: not known.
    pub(crate) sent: Time,
    pub(crate) what: What,
}

/// The kind of a fault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum What {
    /// The write was acknowledged, and is not there.
    Lost,
    /// The write is there more than once.
    Repeated,
    /// Only a part of the write is there.
    Half,
    /// The write was refused with this word, and is there.
    Refused(String),
    /// The client was told that the write ends at this length, and it does not.
    Elsewhere(u64),
    /// No client has written the entry.
    Unknown,
    /// The write landed behind this larger fence.
    Below(u64),
    /// The write landed behind a length that was read under this larger fence.
    Late(u64),
}

/// The error of a write that was made, and which replicas did not acknowledge in time.
const UNREPLICATED: &str = "UNREPLICATED";

/// Counts of writes.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Acknowledged writes by shape, and by whether they went over an attached connection.
    pub(crate) acknowledged: BTreeMap<(Shape, bool), usize>,
    /// Refused writes by the error's first word.
    pub(crate) refused: BTreeMap<String, usize>,
    /// Writes without an answer: those that are there, and those that are not.
    pub(crate) open: (usize, usize),
    /// Entries in all lists.
    pub(crate) entries: usize,
    /// Lengths that were read under a lock.
    pub(crate) lengths: usize,
}

/// The outcome of histories and lists.
#[derive(Debug, Default)]
pub(crate) struct Verdict {
    pub(crate) wrong: Vec<Wrong>,
    pub(crate) counts: Counts,
    /// The times when writes were acknowledged, in order.
    pub(crate) acknowledged: Vec<Time>,
}

impl What {
    /// Whether the write landed after another's lock had been granted.
    pub(crate) fn is_late(&self) -> bool {
        matches!(self, What::Below(_) | What::Late(_))
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Fate {
    Open,
    /// Done: the list's length behind it.
    Done(u64),
    Refused(String),
    /// For a pipeline, which entries were written, and the first error.
    Partly(Vec<bool>, String),
}

#[derive(Debug)]
struct Write {
    client: usize,
    writing: Writing,
    /// The fence of the grant under which the client writes. What LOCK.ATTACH tells may be a smaller one
    /// of the same grant, where nodes are away (`src/lock/attach.rs`).
    granted: u64,
    sent: Time,
    fate: Fate,
}

/// A list's length, read under a lock with this fence.
#[derive(Debug)]
struct Seen {
    fence: u64,
    length: u64,
}

/// The writes and reads of one client.
#[derive(Default)]
struct Told {
    writes: Vec<Write>,
    seen: HashMap<String, Vec<Seen>>,
    acknowledged: Vec<Time>,
    /// Whether the client will write no more.
    is_over: bool,
}

/// Judges all writes. The lists must have been read after the histories.
pub(crate) fn check(histories: &[Vec<(Time, Event)>], lists: &Lists) -> Verdict {
    let mut verdict = Verdict::default();
    let mut told: Vec<Told> =
        histories.iter().enumerate().map(|(client, history)| tell(client, history)).collect();
    // Entries by client and number of the write.
    let mut found: HashMap<(usize, u64), Vec<(usize, Entry)>> = HashMap::new();
    for list in lists.values() {
        verdict.counts.entries += list.len();
        for (index, entry) in list.iter().enumerate() {
            found.entry((entry.client, entry.number)).or_default().push((index, *entry));
        }
    }
    for write in told.iter().flat_map(|told| &told.writes) {
        let key = (write.client, write.writing.number);
        fate(write, &found.remove(&key).unwrap_or_default(), &mut verdict);
    }
    for (key, list) in lists {
        let seen = told.iter_mut().filter_map(|told| told.seen.remove(key)).flatten().collect();
        order(key, list, seen, &told, &mut verdict);
    }
    // A client that runs may not have written down all when its history was read.
    let strangers = found.into_iter().filter(|((client, number), _)| {
        told.get(*client).is_none_or(|told| told.is_over || *number <= told.writes.len() as u64)
    });
    for ((client, number), entries) in strangers {
        let fence = entries.first().map_or(0, |(_, entry)| entry.fence);
        let key = String::new();
        verdict.wrong.push(Wrong { key, client, number, fence, sent: 0, what: What::Unknown });
    }
    verdict.acknowledged = told.into_iter().flat_map(|told| told.acknowledged).collect();
    verdict.acknowledged.sort_unstable();
    verdict
}

/// Collects the writes and reads of a client.
fn tell(client: usize, history: &[(Time, Event)]) -> Told {
    let mut told = Told::default();
    let mut granted: HashMap<&str, u64> = HashMap::new();
    // The request under way, if it matters here.
    let mut asked: Option<(Verb, &str)> = None;
    let mut writes = false;
    for (time, event) in history {
        match event {
            Event::Sent { verb, key } => (asked, writes) = (Some((*verb, key.as_str())), false),
            Event::Writing(writing) => {
                (asked, writes) = (None, true);
                let own = granted.get(writing.key.as_str()).filter(|_| writing.attached);
                let granted = own.copied().unwrap_or(0).max(writing.fence);
                let (writing, fate) = (writing.clone(), Fate::Open);
                told.writes.push(Write { client, writing, granted, sent: *time, fate });
            }
            Event::Setting(_) | Event::Idiom(_) => (asked, writes) = (None, false),
            Event::Answered(outcome) => {
                let write = told.writes.last_mut().filter(|_| std::mem::take(&mut writes));
                match (outcome, asked.take(), write) {
                    (Outcome::Written(length), _, Some(write)) => {
                        write.fate = Fate::Done(*length);
                        told.acknowledged.push(*time);
                    }
                    (Outcome::Error(word), _, Some(write)) => {
                        write.fate = Fate::Refused(word.clone());
                    }
                    (Outcome::Partly { made, word }, _, Some(write)) => {
                        write.fate = Fate::Partly(made.clone(), word.clone());
                    }
                    (Outcome::Lost, _, Some(write)) => {
                        write.fate = Fate::Refused("LOCKLOST".to_owned());
                    }
                    (Outcome::Granted { fence, name, .. }, Some((verb, key)), _)
                        if verb != Verb::Attach =>
                    {
                        granted.insert(name.as_deref().unwrap_or(key), *fence);
                    }
                    (Outcome::AllGranted { fences, .. }, Some((_, joined)), _) => {
                        granted.extend(keys(joined).zip(fences.iter().copied()));
                    }
                    (Outcome::Number(length), Some((Verb::Read, key)), _) => {
                        if let Some(fence) = granted.get(key).copied() {
                            let seen = told.seen.entry(key.to_owned()).or_default();
                            seen.push(Seen { fence, length: *length });
                        }
                    }
                    _ => {}
                }
            }
            Event::Killed | Event::Over => told.is_over = true,
            Event::Closed | Event::Pushed => {}
        }
    }
    told
}

/// Checks a write's entries against what its client was told.
fn fate(write: &Write, found: &[(usize, Entry)], verdict: &mut Verdict) {
    let Write { client, writing, sent, fate, .. } = write;
    let Writing { key, fence, number, parts, shape, attached } = writing;
    let mut there: Vec<usize> = found.iter().map(|(_, entry)| entry.part).collect();
    there.sort_unstable();
    let has_twice = there.windows(2).any(|pair| pair[0] == pair[1]);
    let is_half = !there.is_empty() && there.len() < *parts;
    let counts = &mut verdict.counts;
    let is_pipeline = *shape == Shape::Pipeline;
    let what = match fate {
        _ if has_twice => Some(What::Repeated),
        // A pipeline's entries are in the order in which they were sent, even if some are missing.
        _ if is_pipeline && !found.is_sorted_by_key(|(_, entry)| entry.part) => {
            Some(What::Elsewhere(0))
        }
        Fate::Partly(made, word) => {
            *counts.refused.entry(format!("{word}, in a pipeline")).or_default() += 1;
            let is_there = |part: &usize| there.contains(part);
            let missing = (0..made.len()).any(|part| made[part] && !is_there(&part));
            let refused = (0..made.len()).any(|part| !made[part] && is_there(&part));
            match (missing, refused) {
                (true, _) => Some(What::Lost),
                (_, true) if word != UNREPLICATED => Some(What::Refused(word.clone())),
                _ => None,
            }
        }
        Fate::Refused(word) => {
            *counts.refused.entry(word.clone()).or_default() += 1;
            let is_refused = word != UNREPLICATED || is_half && !is_pipeline;
            (!there.is_empty() && is_refused).then(|| What::Refused(word.clone()))
        }
        Fate::Done(_) if there.is_empty() => Some(What::Lost),
        Fate::Open if is_pipeline => {
            *(if there.is_empty() { &mut counts.open.1 } else { &mut counts.open.0 }) += 1;
            None
        }
        _ if is_half => Some(What::Half),
        Fate::Open => {
            *(if there.is_empty() { &mut counts.open.1 } else { &mut counts.open.0 }) += 1;
            None
        }
        Fate::Done(length) => {
            *counts.acknowledged.entry((*shape, *attached)).or_default() += 1;
            let first = usize::try_from(*length).ok().and_then(|length| length.checked_sub(*parts));
            let is_at =
                |(index, entry): &(usize, Entry)| Some(*index) == first.map(|f| f + entry.part);
            // Another connection under the same lock may write in between the commands of a pipeline.
            let is_told = match is_pipeline {
                true => found.last().is_some_and(is_at),
                false => found.iter().all(is_at),
            };
            (!is_told).then_some(What::Elsewhere(*length))
        }
    };
    let (key, client) = (key.clone(), *client);
    let wrong = |what| Wrong { key, client, number: *number, fence: *fence, sent: *sent, what };
    verdict.wrong.extend(what.map(wrong));
}

/// Checks that entries landed in the order of their fences.
fn order(key: &str, list: &[Entry], mut seen: Vec<Seen>, told: &[Told], verdict: &mut Verdict) {
    verdict.counts.lengths += seen.len();
    seen.sort_by_key(|seen| seen.length);
    let mut seen = seen.into_iter().peekable();
    let (mut landed, mut read) = (0, 0);
    for (index, entry) in list.iter().enumerate() {
        while let Some(seen) = seen.next_if(|seen| seen.length <= index as u64) {
            read = read.max(seen.fence);
        }
        let Entry { fence, client, number, .. } = *entry;
        let by = |write: &&Write| write.writing.number == number;
        let write = told.get(client).and_then(|told| told.writes.iter().find(by));
        let what = match write.map_or(fence, |write| write.granted) {
            granted if granted < landed => What::Below(landed),
            granted if granted < read => What::Late(read),
            _ => {
                landed = landed.max(fence);
                continue;
            }
        };
        let sent = write.map_or(0, |write| write.sent);
        verdict.wrong.push(Wrong { key: key.to_owned(), client, number, fence, sent, what });
    }
}

impl fmt::Display for Wrong {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Wrong { key, client, number, fence, sent, what } = self;
        let list = trace::list(key);
        write!(out, "{list}: write {number} of client {client}, fence {fence}, sent at {sent}, ")?;
        match what {
            What::Lost => write!(out, "was acknowledged and is not there"),
            What::Repeated => write!(out, "is there more than once"),
            What::Half => write!(out, "is there in part"),
            What::Refused(word) => write!(out, "was refused with {word} and is there"),
            What::Elsewhere(length) => write!(out, "was told to end at {length} and does not"),
            What::Unknown => write!(out, "was never sent"),
            What::Below(fence) => write!(out, "landed behind fence {fence}"),
            What::Late(fence) => {
                write!(out, "landed behind what was read under fence {fence}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::parse;

    /// Histories with `|` between their lines; a list with spaces between its entries.
    fn judge(histories: &[&str], list: &str) -> Verdict {
        let text = |lines: &&str| {
            lines.split('|').map(|line| format!("{}\n", line.trim())).collect::<String>()
        };
        let histories: Vec<_> = histories.iter().map(|lines| parse(&text(lines))).collect();
        let entries = list.split(' ').filter(|entry| !entry.is_empty());
        let list = entries.map(|entry| entry.parse().unwrap()).collect();
        check(&histories, &Lists::from([("key-0".to_owned(), list)]))
    }

    fn whats(histories: &[&str], list: &str) -> Vec<What> {
        judge(histories, list).wrong.into_iter().map(|wrong| wrong.what).collect()
    }

    /// Returns the history of one write of client 0 with fence 5, of two entries, and its answer.
    fn one(answer: &str) -> String {
        format!("1 writing key-0 5 1 2 Command own | 2 {answer} | 3 over")
    }

    #[test]
    fn what_was_acknowledged_is_there_once_and_whole() {
        let whats = |list| whats(&[&one("written 2")], list);
        assert_eq!(whats("5:0:1:0 5:0:1:1"), []);
        assert_eq!(whats(""), [What::Lost]);
        assert_eq!(whats("5:0:1:0"), [What::Half]);
        assert_eq!(whats("5:0:1:0 5:0:1:1 5:0:1:1"), [What::Repeated]);
        assert_eq!(whats("5:0:1:1 5:0:1:0"), [What::Elsewhere(2)]);
    }

    #[test]
    fn what_was_refused_is_not_there() {
        for word in ["FENCED", "NOTHELD", "EXECABORT"] {
            let refused = one(&format!("error {word}"));
            assert_eq!(whats(&[&refused], ""), []);
            assert_eq!(whats(&[&refused], "5:0:1:0"), [What::Refused(word.to_owned())]);
        }
        assert_eq!(whats(&[&one("lost")], "5:0:1:0"), [What::Refused("LOCKLOST".to_owned())]);
        // It was made, whole, and may be lost.
        let unreplicated = one("error UNREPLICATED");
        assert_eq!(whats(&[&unreplicated], ""), []);
        assert_eq!(whats(&[&unreplicated], "5:0:1:0 5:0:1:1"), []);
        assert_eq!(whats(&[&unreplicated], "5:0:1:0"), [What::Refused("UNREPLICATED".to_owned())]);
    }

    #[test]
    fn what_has_no_answer_is_there_whole_or_not_at_all() {
        for end in ["ended", "timeout", "killed"] {
            let open = one(end);
            assert_eq!(whats(&[&open], ""), []);
            assert_eq!(judge(&[&open], "5:0:1:0 5:0:1:1").counts.open, (1, 0));
            assert_eq!(whats(&[&open], "5:0:1:0 5:0:1:1"), []);
            assert_eq!(whats(&[&open], "5:0:1:0"), [What::Half]);
        }
    }

    #[test]
    fn what_is_pipelined_is_made_or_refused_one_by_one() {
        let pipeline = |answer| one(answer).replace("Command", "Pipeline");
        let whats = |answer, list| whats(&[&pipeline(answer)], list);
        assert_eq!(whats("partly +- FENCED", "5:0:1:0"), []);
        assert_eq!(whats("partly +- FENCED", ""), [What::Lost]);
        assert_eq!(
            whats("partly +- FENCED", "5:0:1:0 5:0:1:1"),
            [What::Refused("FENCED".to_owned())]
        );
        assert_eq!(whats("ended", "5:0:1:0"), []);
        assert_eq!(whats("ended", "5:0:1:0 5:0:1:0"), [What::Repeated]);
        assert_eq!(whats("ended", "5:0:1:1 5:0:1:0"), [What::Elsewhere(0)]);
        assert_eq!(whats("written 2", "5:0:1:0"), [What::Half]);
        assert_eq!(whats("written 2", "5:0:1:0 5:0:1:1"), []);
        assert_eq!(whats("written 3", "5:0:1:0 5:0:1:1"), [What::Elsewhere(3)]);
    }

    #[test]
    fn entries_that_nobody_wrote_are_seen_unless_their_client_still_runs() {
        assert_eq!(whats(&["1 over"], "5:0:1:0"), [What::Unknown]);
        assert_eq!(whats(&["1 sent Ping key-0"], "5:0:1:0"), []);
        assert_eq!(whats(&[], "5:0:1:0"), [What::Unknown]);
    }

    #[test]
    fn fences_never_fall() {
        let write = |fence: u64, length: u64| {
            format!("1 writing key-0 {fence} 1 1 Script attached | 2 written {length} | 3 over")
        };
        let both = [&*write(5, 1), &*write(6, 2)];
        assert_eq!(whats(&both, "5:0:1:0 6:1:1:0"), []);
        let both = [&*write(5, 2), &*write(6, 1)];
        assert_eq!(whats(&both, "6:1:1:0 5:0:1:0"), [What::Below(6)]);
    }

    #[test]
    fn a_smaller_fence_of_the_same_grant_is_the_same_grants() {
        let attached = "1 sent Lease key-0 | 2 granted x 6 9 | 3 writing key-0 6 1 1 Command own \
                        | 4 written 1 | 5 writing key-0 5 2 1 Command attached | 6 written 2 | 7 over";
        assert_eq!(whats(&[attached], "6:0:1:0 5:0:2:0"), []);
        assert_eq!(
            whats(&[&attached.replace("attached", "own")], "6:0:1:0 5:0:2:0"),
            [What::Below(6)]
        );
        // Behind another client's grant, it may not land.
        let another = "5 sent Lease key-0 | 6 granted y 7 9 | 7 writing key-0 7 1 1 Command own \
                       | 8 written 2 | 9 over";
        let attached = attached.replace("6 written 2", "9 written 3");
        assert_eq!(whats(&[&attached, another], "6:0:1:0 7:1:1:0 5:0:2:0"), [What::Below(7)]);
    }

    #[test]
    fn nothing_lands_behind_what_was_read_under_a_larger_fence() {
        let write = "1 writing key-0 5 1 1 Inline own | 2 written 1 | 3 over";
        let reads = |length: u64| {
            format!(
                "1 sent Lease key-0 | 2 granted x 6 9 | 3 sent Read key-0 | 4 number {length} | 5 over"
            )
        };
        assert_eq!(whats(&[write, &reads(1)], "5:0:1:0"), []);
        assert_eq!(whats(&[write, &reads(0)], "5:0:1:0"), [What::Late(6)]);
        assert_eq!(whats(&[write, &reads(0).replace(" 6 ", " 4 ")], "5:0:1:0"), []);
        assert_eq!(whats(&[write, &reads(0).replace("key-0", "key-1")], "5:0:1:0"), []);
        // LOCK.ATTACH says nothing of other clients.
        assert_eq!(whats(&[write, &reads(0).replace("Lease", "Attach")], "5:0:1:0"), []);
    }
}
