//! Checks the updates that libraries make as a naive user would: LOCK, read, compute, write, UNLOCK. A pure function
//! of what the clients wrote down.
//!
//! Each written value is unique, and its writer has noted what it had read. So if two updates have
//! the same value before them, one is lost. That is wrong
//! - if a guard is about the key, whenever both were acknowledged;
//! - elsewhere, if both were acknowledged within the validity that their writers were told, counted
//!   from sending. Guards exist for updates that come later, or have no answer.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
};

use crate::{
    history::{Event, Idiom, IdiomKind, Outcome, Setting, Time, Verb},
    trace,
};

/// The value before the first write.
const NOTHING: &str = "none";

/// An update that was acknowledged, and that another has not seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Wrong {
    pub(crate) key: String,
    /// The value that was read twice.
    pub(crate) before: String,
    /// The two values, in the order in which they were acknowledged.
    pub(crate) values: [String; 2],
    pub(crate) told: [Time; 2],
}

/// Counts of updates.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Updates acknowledged in time, and too late.
    pub(crate) timely: usize,
    pub(crate) late: usize,
    /// Refused updates by the error's first word.
    pub(crate) refused: BTreeMap<String, usize>,
    pub(crate) open: usize,
}

/// The outcome of all histories.
#[derive(Debug, Default)]
pub(crate) struct Verdict {
    pub(crate) wrong: Vec<Wrong>,
    pub(crate) counts: Counts,
}

/// An acknowledged update.
struct Update {
    setting: Setting,
    told: Time,
    is_timely: bool,
}

/// Judges the updates of all clients. `guards`: whether the proxies have some.
pub(crate) fn check(histories: &[Vec<(Time, Event)>], guards: bool) -> Verdict {
    let mut verdict = Verdict::default();
    let mut updates = Vec::new();
    for history in histories {
        tell(history, &mut updates, &mut verdict.counts);
    }
    let timely: HashMap<&str, bool> =
        updates.iter().map(|update| (update.setting.value.as_str(), update.is_timely)).collect();
    let is_guarded = |key: &str| guards && trace::is_guard(key);
    // A write that comes too late, or perhaps never, may bring a value back. A guard refuses it.
    let is_certain = |key: &str, value: &str| {
        is_guarded(key) || value == NOTHING || timely.get(value).is_some_and(|is| *is)
    };
    let mut seen: HashMap<(&str, &str), &Update> = HashMap::new();
    let mut in_order: Vec<&Update> = updates.iter().collect();
    in_order.sort_by_key(|update| update.told);
    for update in in_order {
        let Setting { key, before, .. } = &update.setting;
        let counts = update.is_timely || is_guarded(key);
        if !counts || !is_certain(key, before) {
            continue;
        }
        match seen.get(&(key.as_str(), before.as_str())) {
            Some(other) => verdict.wrong.push(Wrong {
                key: key.clone(),
                before: before.clone(),
                values: [other.setting.value.clone(), update.setting.value.clone()],
                told: [other.told, update.told],
            }),
            None => _ = seen.insert((key, before), update),
        }
    }
    verdict
}

/// Collects the updates of a client.
fn tell(history: &[(Time, Event)], updates: &mut Vec<Update>, counts: &mut Counts) {
    // The time until which the client may count on its lock.
    let mut until = 0;
    let mut asked: Option<(Time, Verb)> = None;
    let mut idiom: Option<(Time, &Idiom)> = None;
    let mut setting: Option<&Setting> = None;
    for (time, event) in history {
        if let Event::Answered(Outcome::Set | Outcome::Number(1)) = event
            && let Some((sent, idiom)) = idiom.take()
        {
            let told = idiom.until(sent, *time);
            match idiom.kind {
                IdiomKind::Take | IdiomKind::Extend => until = told,
                IdiomKind::Add => until = told.max(until + idiom.ttl * 1000),
                IdiomKind::Release | IdiomKind::Delete | IdiomKind::Look => {}
            }
            continue;
        }
        match event {
            Event::Idiom(sent) => (idiom, asked, setting) = (Some((*time, sent)), None, None),
            Event::Sent { verb, .. } => (asked, setting) = (Some((*time, *verb)), None),
            Event::Setting(next) => (asked, setting) = (None, Some(next)),
            Event::Answered(_) if idiom.take().is_some() => {}
            Event::Answered(outcome) => match (outcome, asked.take(), setting.take()) {
                (
                    Outcome::Granted { validity, .. },
                    Some((sent, Verb::Lease | Verb::Session)),
                    _,
                ) => {
                    until = sent + validity * 1000;
                }
                (Outcome::Number(validity), Some((sent, Verb::Renew)), _) => {
                    until = until.max(sent + validity * 1000);
                }
                (Outcome::Set, _, Some(setting)) => {
                    let is_timely = *time <= until;
                    *(if is_timely { &mut counts.timely } else { &mut counts.late }) += 1;
                    updates.push(Update { setting: setting.clone(), told: *time, is_timely });
                }
                (Outcome::Lost, _, Some(_)) => {
                    *counts.refused.entry("LOCKLOST".to_owned()).or_default() += 1;
                }
                (Outcome::Error(word) | Outcome::Partly { word, .. }, _, Some(_)) => {
                    *counts.refused.entry(word.clone()).or_default() += 1;
                }
                (_, _, Some(_)) => counts.open += 1,
                _ => {}
            },
            _ => {}
        }
    }
}

impl fmt::Display for Wrong {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Wrong { key, before, values: [one, other], told: [first, second] } = self;
        write!(
            out,
            "{key}: {one}, acknowledged at {first}, and {other}, at {second}, are both updates of \
             {before}: one is lost"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::parse;

    fn judge(histories: &[&str]) -> Verdict {
        let text = |lines: &&str| {
            lines.split('|').map(|line| format!("{}\n", line.trim())).collect::<String>()
        };
        check(&histories.iter().map(|lines| parse(&text(lines))).collect::<Vec<_>>(), true)
    }

    /// Returns the history of an update under a lock valid from 1000 to 11000.
    fn update(key: &str, value: &str, before: &str, told: Time) -> String {
        format!(
            "1000 sent Session {key} | 2000 granted x 1 10 | 3000 setting {key} {value} {before} 1 \
             | {told} set | 90000 over"
        )
    }

    fn lost(histories: &[&str]) -> usize {
        judge(histories).wrong.len()
    }

    #[test]
    fn of_two_updates_of_one_value_one_is_lost() {
        let one = update("free-3", "0-1", "none", 4000);
        assert_eq!(lost(&[&one, &update("free-3", "1-1", "none", 11_000)]), 1);
        assert_eq!(lost(&[&one, &update("free-3", "1-1", "0-1", 5000)]), 0);
        assert_eq!(lost(&[&one, &update("free-7", "1-1", "none", 5000)]), 0);
    }

    #[test]
    fn what_comes_too_late_counts_only_under_guards() {
        let late = |key: &str| update(key, "1-1", "none", 11_001);
        assert_eq!(lost(&[&update("free-3", "0-1", "none", 4000), &late("free-3")]), 0);
        assert_eq!(lost(&[&update("key-0", "0-1", "none", 4000), &late("key-0")]), 1);
        let renewed =
            late("free-3").replace("| 3000", "| 2500 sent Renew free-3 | 2600 number 10 | 3000");
        assert_eq!(lost(&[&update("free-3", "0-1", "none", 4000), &renewed]), 1);
        let counts = judge(&[&late("free-3")]).counts;
        assert_eq!((counts.timely, counts.late), (0, 1));
    }

    #[test]
    fn what_a_lock_library_writes_counts_for_as_long_as_it_believes_in_its_lock() {
        let adopted = |told: Time| {
            update("free-3", "1-1", "none", told)
                .replace("sent Session free-3", "idiom Take free-3 x 10 200")
                .replace("granted x 1 10", "set")
        };
        let one = update("free-3", "0-1", "none", 4000);
        assert_eq!(lost(&[&one, &adopted(12_000)]), 1);
        assert_eq!(lost(&[&one, &adopted(12_001)]), 0);
        let then = |words: &str| adopted(22_000).replace("| 3000", &format!("| {words} | 3000"));
        assert_eq!(lost(&[&one, &then("2500 idiom Extend free-3 x 20 200 | 2600 number 1")]), 1);
        assert_eq!(lost(&[&one, &then("2500 idiom Extend free-3 x 20 200 | 2600 number 0")]), 0);
        assert_eq!(lost(&[&one, &then("2500 idiom Add free-3 x 10 200 | 2600 number 1")]), 1);
    }

    #[test]
    fn what_was_refused_or_has_no_answer_is_no_update() {
        let one = update("key-0", "0-1", "none", 4000);
        for (answer, words) in [("lost", 1), ("error NOTHELD", 1), ("ended", 0), ("timeout", 0)] {
            let other =
                update("key-0", "1-1", "none", 5000).replace("set |", &format!("{answer} |"));
            let verdict = judge(&[&one, &other]);
            assert_eq!(verdict.wrong, []);
            assert_eq!(verdict.counts.refused.len(), words);
            assert_eq!(verdict.counts.open, 1 - words);
        }
    }

    #[test]
    fn a_value_that_a_late_write_may_have_brought_back_is_read_twice_in_good_faith() {
        let both = |key: &str| [update(key, "1-1", "0-1", 5000), update(key, "2-1", "0-1", 6000)];
        let after = |key: &str, first: &str| {
            let [one, other] = both(key);
            lost(&[first, &one, &other])
        };
        assert_eq!(after("free-3", &update("free-3", "0-1", "none", 4000)), 1);
        assert_eq!(after("free-3", &update("free-3", "0-1", "none", 12_000)), 0);
        let open = update("free-3", "0-1", "none", 4000).replace("set |", "ended |");
        assert_eq!(after("free-3", &open), 0);
        assert_eq!(after("key-0", &open.replace("free-3", "key-0")), 1);
    }
}
