//! Watches what scripts make of the sets of readers on a node, by rules of its own.
//!
//! A fault here need not show in what clients are told: most often a quorum of other nodes hides it.

use super::{
    memory::{EPOCH, Memory, StoredValue},
    sorted_set::SortedSet,
};

/// What is at the keys of locks before a script runs.
pub(super) struct SetWatch {
    /// The keys, with their values.
    before: Vec<(Vec<u8>, Option<StoredValue>)>,
    /// The node's TIME, in ms.
    now: f64,
    /// Whether intents may have been renewed for a shorter time than they had, as the clock was set back. The set's
    /// own TTL stays then.
    may_outlast: bool,
}

/// For how long an intent lasts, in ms, and its set.
const INTENT: u64 = 1001;

/// The members of a set that have a token, with the times at which they end: readers, and intents of writers.
fn members(set: &SortedSet) -> impl Iterator<Item = (f64, &[u8])> {
    let marked = set.all().iter().filter(|(_, member)| member != b"lockgate");
    marked.map(|(score, member)| (score.abs(), member.as_slice()))
}

/// Returns the readers that have not ended.
fn readers(value: Option<&StoredValue>, now: f64) -> Vec<&[u8]> {
    let Some(StoredValue::Set(set)) = value else { return Vec::new() };
    let lives = |(score, member): &(f64, &[u8])| *score >= now && !member.starts_with(b"w ");
    members(set).filter(lives).map(|(_, member)| member).collect()
}

impl SetWatch {
    /// Looks at the locks among a script's keys. `set_back_from`: the latest time from which the node's clock was set
    /// back.
    pub(super) fn before(memory: &Memory, keys: &[Vec<u8>], set_back_from: u64) -> SetWatch {
        let locks = keys.iter().filter(|key| key.starts_with(b"lock:"));
        let value = |key: &Vec<u8>| memory.get(key).map(|(value, _)| value.clone());
        let before = locks.map(|key| (key.clone(), value(key))).collect();
        let may_outlast = memory.now < set_back_from + INTENT;
        SetWatch { before, now: (EPOCH + memory.now) as f64, may_outlast }
    }

    /// Returns what the script has done wrong.
    pub(super) fn faults(
        &self,
        memory: &Memory,
        (body, arguments): (&str, &[Vec<u8>]),
        reply: &[u8],
    ) -> Vec<String> {
        let is = |words: &str| body.contains(words);
        let mut faults = Vec::new();
        for (key, before) in &self.before {
            let mut wrong = |what: &str, member: &[u8]| {
                let [key, member] = [key, member].map(String::from_utf8_lossy);
                faults.push(format!("{key} {member}: {what}"));
            };
            let after = memory.get(key).map(|(value, ends)| (value, *ends));
            let read_before = readers(before.as_ref(), self.now);
            let read_after = readers(after.map(|(value, _)| value), self.now);
            let named = || [&arguments[2], &b" "[..], &arguments[0]].concat();
            for gone in read_before.iter().filter(|reader| !read_after.contains(reader)) {
                if !is("-- Takes a reader from a lock") || named() != *gone {
                    wrong("it is taken away from a reader that has not ended", gone);
                }
            }
            for new in read_after.iter().filter(|reader| !read_before.contains(reader)) {
                let is_first = is("-- Adds a reader to a lock") && arguments[3].is_empty();
                if !is_first && !is("-- Puts a reader back") || named() != *new {
                    wrong("a reader that had ended counts again", new);
                }
            }
            let had_text = matches!(before, Some(StoredValue::Text(_)));
            let refuses = |said: &&[u8]| reply.starts_with(said);
            let is_refused = [&b"*3\r\n:0"[..], b"*3\r\n:5"].iter().any(refuses)
                && is("-- Takes a lock on this node and");
            if is_refused && arguments[5] != b"1" && !had_text && read_before.is_empty() {
                wrong("it is refused though nobody has it", b"");
            }
            if let Some((StoredValue::Set(set), ends)) = after {
                let last = members(set).map(|(score, _)| score).fold(0.0, f64::max);
                let more = ends.map_or(f64::INFINITY, |ends| (EPOCH + ends) as f64 - last - 1.0);
                if more < 0.0 || more > 0.0 && !self.may_outlast {
                    wrong(&format!("it ends {more} ms later than its last member"), b"");
                }
            }
        }
        faults
    }
}
