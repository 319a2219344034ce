//! What was seen, how often, and from clients of which names. It is bounded, whatever clients send.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::{Duration, Instant},
};

use metrics::{Counter, counter, describe_counter};
use tracing::{info, warn};

use super::{
    idiom::Op,
    rows::Digest,
    sighting::Sighting,
    verdict::{self, AdoptVerdict, RefusalReason, danger},
};
use crate::{metrics::Tallied, sync::Mutex};

/// The most kinds of sightings that are told apart. Programs send a dozen; each takes some 300 bytes.
const MOST_KINDS: usize = 1024;
/// The most names of clients that are told apart; clients choose them.
const MOST_NAMES: usize = 64;
/// The most digests of unknown scripts that are told apart; clients choose them too.
const MOST_DIGESTS: usize = 64;
/// The most log lines in one second; a program that starts causes a dozen. What finds no room is
/// logged when it is seen again.
const LINES_A_SECOND: u32 = 32;
/// Stands for all clients whose names there was no room for.
const OTHERS: &str = "(others)";

/// What was seen since the proxy was started.
pub(super) struct SeenIdioms {
    kinds: Mutex<Kinds>,
    /// Handles by [`Op`], then [`AdoptVerdict`].
    counters: Vec<Vec<Counter>>,
    left_out: Counter,
    /// Handles by [`RefusalReason`].
    refused: Vec<Tallied>,
    started: Instant,
}

#[derive(Default)]
struct Kinds {
    counts: HashMap<(Sighting, Arc<str>), Count>,
    names: HashSet<Arc<str>>,
    digests: HashSet<Digest>,
    left_out: u64,
    /// The second of the last log line, and the number of lines in that second.
    told: (u64, u32),
}

/// The number of commands on keys of adopt rules since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct AdoptTotals {
    /// All that were seen.
    pub(crate) seen: u64,
    /// Those of an unsafe idiom, as far as there was room to tell idioms apart.
    pub(crate) unsafe_ones: u64,
    /// Those that were refused.
    pub(crate) refused: u64,
}

/// How often something was seen.
#[derive(Debug, Clone, Copy, Default)]
struct Count {
    times: u64,
    /// The longest TTL that was asked for.
    longest: Option<Duration>,
    /// Whether it was logged.
    is_told: bool,
}

impl SeenIdioms {
    pub(super) fn new() -> SeenIdioms {
        describe_counter!(
            "lockgate_adopt_seen_total",
            "Commands on keys of adopt rules, by idiom, and by what would become of them."
        );
        describe_counter!(
            "lockgate_adopt_left_out_total",
            "Of them, those for which LOCKGATE ADOPTED has no room."
        );
        describe_counter!(
            "lockgate_adopt_refused_total",
            "Commands on keys of enforced adopt rules that were refused, by reason."
        );
        let handle = |op: Op, verdict: AdoptVerdict| {
            counter!("lockgate_adopt_seen_total",
                "idiom" => op.as_str(), "verdict" => verdict.as_str())
        };
        SeenIdioms {
            kinds: Mutex::default(),
            counters: Op::ALL
                .map(|op| AdoptVerdict::ALL.map(|verdict| handle(op, verdict)).into())
                .into(),
            left_out: counter!("lockgate_adopt_left_out_total"),
            refused: RefusalReason::ALL
                .map(|reason| counter!("lockgate_adopt_refused_total", "reason" => reason.as_str()))
                .map(Tallied::new)
                .into(),
            started: Instant::now(),
        }
    }

    /// Counts a sighting. Returns it and its client's name as they are kept, if they are to be logged.
    pub(super) fn note(
        &self,
        mut sighting: Sighting,
        client: Option<&Arc<str>>,
    ) -> Option<(Sighting, Arc<str>)> {
        self.counters[sighting.op as usize][sighting.verdict as usize].increment(1);
        let mut kinds = self.kinds.lock();
        let Kinds { counts, names, digests, left_out, told } = &mut *kinds;
        let name: Arc<str> = match client {
            Some(name) if names.contains(name) => name.clone(),
            Some(name) if names.len() < MOST_NAMES => {
                names.insert(name.clone());
                name.clone()
            }
            Some(_) => OTHERS.into(),
            None => Arc::default(),
        };
        if let Some(digest) = sighting.digest
            && !digests.contains(&digest)
        {
            if digests.len() < MOST_DIGESTS {
                digests.insert(digest);
            } else {
                sighting.digest = None;
            }
        }
        let ttl = sighting.ttl.take();
        let kind = (sighting, name);
        if counts.len() >= MOST_KINDS && !counts.contains_key(&kind) {
            *left_out += 1;
            self.left_out.increment(1);
            return None;
        }
        let count = counts.entry(kind.clone()).or_default();
        count.times += 1;
        count.longest = count.longest.max(ttl);
        if count.is_told || !take_line_of(told, self.started) {
            return None;
        }
        count.is_told = true;
        let (sighting, name) = kind;
        Some((Sighting { ttl, ..sighting }, name))
    }

    /// Counts a refusal. Returns whether it may be logged: its connection has had no line before
    /// (`is_told`), and there is room for one, which is taken.
    pub(super) fn refused(&self, sighting: &Sighting, is_told: bool) -> bool {
        let reason = verdict::reason(sighting.op, sighting.because);
        self.refused[reason as usize].one_more();
        !is_told && self.take_line()
    }

    /// Takes room for one more log line in this second, and returns whether there was any.
    pub(super) fn take_line(&self) -> bool {
        take_line_of(&mut self.kinds.lock().told, self.started)
    }

    /// Returns how many commands were seen, how many of them were unsafe, and how many were refused.
    pub(super) fn totals(&self) -> AdoptTotals {
        let kinds = self.kinds.lock();
        let is_unsafe = |(sighting, _): &(Sighting, Arc<str>)| !danger(sighting.op).is_empty();
        let counted: u64 = kinds.counts.values().map(|count| count.times).sum();
        let unsafe_ones = kinds.counts.iter().filter(|(kind, _)| is_unsafe(kind));
        AdoptTotals {
            seen: counted + kinds.left_out,
            unsafe_ones: unsafe_ones.map(|(_, count)| count.times).sum(),
            refused: self.refused.iter().map(Tallied::so_far).sum(),
        }
    }

    /// Returns all kinds with the longest TTL of each, the unsafe first, then by how often; and how many
    /// sightings there was no room for.
    pub(super) fn all(&self) -> (Vec<(Sighting, Arc<str>, u64)>, u64) {
        let kinds = self.kinds.lock();
        let mut all: Vec<_> = kinds
            .counts
            .iter()
            .map(|((sighting, name), count)| {
                let sighting = Sighting { ttl: count.longest, ..*sighting };
                (sighting, name.clone(), count.times)
            })
            .collect();
        let left_out = kinds.left_out;
        drop(kinds);
        all.sort_by_key(|(sighting, name, times)| {
            let is_safe = danger(sighting.op).is_empty();
            let text = (sighting.op.as_str(), sighting.form, sighting.library);
            (is_safe, std::cmp::Reverse(*times), text, name.clone())
        });
        (all, left_out)
    }
}

/// Takes room for one more log line in this second, and returns whether there was any.
fn take_line_of(told: &mut (u64, u32), started: Instant) -> bool {
    let second = started.elapsed().as_secs();
    if told.0 != second {
        *told = (second, 0);
    }
    told.1 += 1;
    told.1 <= LINES_A_SECOND
}

/// Logs the first command of a connection that was refused.
pub(super) fn tell_of_refusal(sighting: &Sighting, keys: &str, client: &str) {
    let Sighting { op, form, library, because, .. } = *sighting;
    let reason = verdict::reason(op, because).as_str();
    let ttl_ms = sighting.ttl.map(|ttl| u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX));
    warn!(
        keys,
        idiom = op.as_str(),
        form,
        library,
        client,
        reason,
        because,
        ttl_ms,
        "adopt: a command was refused; further ones of this connection are only counted"
    );
}

/// Logs that a lock without a TTL was lost, with `others` more.
pub(super) fn tell_of_loss(lock: &str, others: usize) {
    warn!(lock, others, "adopt: a lock without a TTL was lost, and its client does not know");
}

/// Logs what was seen for the first time.
pub(super) fn tell(sighting: &Sighting, keys: &str, client: &str) {
    let Sighting { op, form, library, verdict, because, .. } = *sighting;
    let danger = match because {
        verdict::CAPPED => "the client counts on the lock for longer than it has it",
        _ => danger(op),
    };
    let (idiom, verdict) = (op.as_str(), verdict.as_str());
    if danger.is_empty() {
        info!(keys, idiom, form, library, client, verdict, because, "adopt: a lock idiom was seen");
    } else {
        warn!(
            keys,
            idiom,
            form,
            library,
            client,
            verdict,
            because,
            danger,
            "adopt: an unsafe lock idiom was seen"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sighting(digest: u64) -> Sighting {
        let mut bytes = Digest::default();
        bytes[..8].copy_from_slice(&digest.to_le_bytes());
        Sighting {
            rule: Some(0),
            op: Op::UnseenScript,
            form: "EVALSHA",
            library: "",
            digest: Some(bytes),
            verdict: AdoptVerdict::NoScript,
            because: "",
            replies: None,
            ttl: None,
        }
    }

    #[test]
    fn names_and_digests_that_clients_choose_take_bounded_room() {
        let seen = SeenIdioms::new();
        for n in 0..5000_u64 {
            seen.note(sighting(n), Some(&n.to_string().into()));
        }
        let kinds = seen.kinds.lock();
        assert_eq!((kinds.names.len(), kinds.digests.len()), (MOST_NAMES, MOST_DIGESTS));
        assert!(kinds.counts.len() <= MOST_KINDS);
        let counted: u64 = kinds.counts.values().map(|count| count.times).sum();
        assert_eq!(counted + kinds.left_out, 5000, "each is counted somewhere");
        assert!(
            kinds
                .counts
                .keys()
                .any(|(sighting, name)| { sighting.digest.is_none() && &**name == OTHERS })
        );
    }

    #[test]
    fn kinds_are_bounded() {
        let seen = SeenIdioms::new();
        for rule in 0..2 * MOST_KINDS {
            seen.note(Sighting { rule: Some(rule), ..sighting(0) }, None);
        }
        let (all, left_out) = seen.all();
        assert_eq!((all.len(), left_out), (MOST_KINDS, MOST_KINDS as u64));
    }

    #[test]
    fn the_log_tells_of_each_kind_once_and_of_few_in_a_second() {
        let seen = SeenIdioms::new();
        assert!(seen.note(sighting(1), None).is_some());
        assert!(seen.note(sighting(1), None).is_none(), "told of before");
        let told = (2..100).filter(|n| seen.note(sighting(*n), None).is_some()).count();
        assert!(told <= 3 * LINES_A_SECOND as usize, "{told}");
    }

    #[test]
    fn the_longest_ttl_of_a_kind_is_told() {
        let seen = SeenIdioms::new();
        for seconds in [None, Some(20), Some(600), Some(60)] {
            seen.note(Sighting { ttl: seconds.map(Duration::from_secs), ..sighting(1) }, None);
        }
        let (all, _) = seen.all();
        assert_eq!(all.len(), 1, "a TTL makes no kind of its own");
        assert_eq!((all[0].0.ttl, all[0].2), (Some(Duration::from_secs(600)), 4));
    }

    #[test]
    fn the_unsafe_come_first() {
        let seen = SeenIdioms::new();
        let (look, release) = (
            Sighting { op: Op::Look, ..sighting(1) },
            Sighting { op: Op::ReleaseBlind, ..sighting(1) },
        );
        seen.note(look, None);
        seen.note(look, None);
        seen.note(release, None);
        let ops: Vec<Op> = seen.all().0.iter().map(|(sighting, ..)| sighting.op).collect();
        assert_eq!(ops, [Op::ReleaseBlind, Op::Look]);
    }
}
