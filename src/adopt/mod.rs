//! Adoption: lock idioms of existing libraries on keys that a rule names.
//!
//! A session shows this folder each command that may be about such a key, and what is found is reported. In mode
//! `audit` the commands pass as they came; in modes `bridge` and `enforce` they become tasks for the
//! lock nodes. Nothing here has a connection.
//!
//! - [`idiom`]: reads the words of a command as an idiom.
//! - [`normal`]: compare-and-delete and compare-and-expire, whatever their spelling; `lua`: the
//!   part of Lua in which they are written. `first_free`: the script that takes the first free one of its keys.
//! - [`rows`]: scripts of libraries, by their digests.
//! - [`known_scripts`]: what is known of scripts that clients have shown; `script_call`: a call of one.
//! - [`verdict`]: what would become of an idiom if its lock were taken on a quorum.
//! - [`by_holder`]: what becomes of a lock, and what the client is told, by who holds the lock.
//! - [`task`]: what does become of it under an enforced rule.
//! - [`transaction`]: a release or an extension made of WATCH, GET, MULTI and EXEC.
//! - [`place`]: the present modes, and where a bridged lock has its key on the data node.
//! - `sighting`: what is reported of a command; `finding`: what a look at it has found.
//! - [`seen`]: what was seen, how often, and from which clients.

pub(crate) mod by_holder;
mod finding;
mod first_free;
pub(crate) mod glance;
pub(crate) mod idiom;
pub(crate) mod known_scripts;
mod lua;
pub(crate) mod normal;
pub(crate) mod place;
pub(crate) mod rows;
mod script_call;
pub(crate) mod seen;
mod sighting;
pub(crate) mod task;
pub(crate) mod transaction;
pub(crate) mod verdict;

use std::{
    hash::{BuildHasher, RandomState},
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU8, Ordering},
    },
    time::{SystemTime, UNIX_EPOCH},
};

use smallvec::{SmallVec, smallvec};

pub(crate) use self::{
    finding::{AdoptLook, FlushCommand, Found},
    sighting::{Sighting, Sightings},
};
use self::{
    glance::{Alike, Class, NameGlance, class},
    idiom::{Idiom, Op},
    known_scripts::KnownScripts,
    rows::WhichKeys,
    script_call::{ScriptCall, ScriptIdiom},
    seen::{AdoptTotals, SeenIdioms},
    task::{AdoptTask, AdoptWork, MAX_KEYS, TOO_MANY_KEYS},
    verdict::{AdoptVerdict, Limits},
};
use crate::{
    config::{AdoptMode, AdoptOptions, AdoptRule},
    glob::Budget,
    resp::{
        encode, number,
        words::{Walk, WordStep},
    },
};

/// The longest command that is looked at, in bytes: the longest script of a lock library has
/// some 3,000. Of a command that comes in pieces, at most this much is copied.
pub(crate) const MAX_LOOK: usize = 16 * 1024;
/// The most steps that comparing the keys of one command with the rules may take.
const MAX_STEPS: usize = 1_000_000;

/// The rules, and what was seen under them.
pub(crate) struct Adoption {
    /// The rules, with the modes that they had at the start.
    rules: Vec<AdoptRule>,
    /// The rules' present modes, as numbers.
    modes: Box<[AtomicU8]>,
    /// Which rules another proxy has bridged.
    bridged_elsewhere: Box<[AtomicBool]>,
    /// Whether the proxy answers idioms of at least one rule.
    answers: AtomicBool,
    /// Whether the proxy answers idioms of at least one rule, or another proxy has bridged one.
    attends: AtomicBool,
    /// First bytes that an adopted key can have.
    first_bytes: [bool; 256],
    scripts: KnownScripts,
    seen: SeenIdioms,
    /// Makes [`Found::key`].
    hasher: RandomState,
    /// The clock, in milliseconds since 1970; locks end by it only where a command gives a time of day.
    time_of_day: fn() -> i64,
}

type WordList<'a> = SmallVec<[&'a [u8]; 8]>;

/// The rules of a command's keys.
struct Ruled {
    /// For each key the first rule about it.
    each: SmallVec<[Option<usize>; 8]>,
    /// The rule that counts for the command.
    rule: usize,
    /// The options of several rules together ([`AdoptOptions::and`]): of those that the proxy answers if it answers
    /// `rule`, else of the others.
    options: AdoptOptions,
}

impl Adoption {
    /// Makes the adoption of a configuration, if it has any. Install the recorder of metrics first.
    pub(crate) fn new(rules: &[AdoptRule]) -> Option<Arc<Adoption>> {
        if rules.is_empty() {
            return None;
        }
        let mut first_bytes = [false; 256];
        for rule in rules {
            match rule.keys.as_str().as_bytes().first() {
                Some(byte) if !b"*?[\\".contains(byte) => first_bytes[usize::from(*byte)] = true,
                _ => first_bytes = [true; 256],
            }
        }
        Some(Arc::new(Adoption {
            rules: rules.to_vec(),
            modes: rules.iter().map(|rule| AtomicU8::new(rule.mode as u8)).collect(),
            bridged_elsewhere: rules.iter().map(|_| AtomicBool::new(false)).collect(),
            answers: AtomicBool::new(rules.iter().any(|rule| rule.mode.is_answered())),
            attends: AtomicBool::new(rules.iter().any(|rule| rule.mode.is_answered())),
            first_bytes,
            scripts: KnownScripts::of(rules),
            seen: SeenIdioms::new(),
            hasher: RandomState::new(),
            time_of_day: || {
                let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
            },
        }))
    }

    /// Whether the proxy answers idioms of at least one rule: it is bridged or enforced.
    #[inline]
    pub(crate) fn enforces(&self) -> bool {
        self.answers.load(Ordering::Acquire)
    }

    /// Whether commands are judged before they are forwarded: the proxy answers some, or another proxy
    /// has bridged a rule, so that some are carried out on the lock nodes too.
    #[inline]
    pub(crate) fn attends(&self) -> bool {
        self.attends.load(Ordering::Acquire)
    }

    /// Glances at the command at the beginning of `bytes`. Returns how it begins if it certainly need
    /// not be looked at.
    #[inline]
    pub(crate) fn glance(&self, bytes: &[u8]) -> Option<Alike> {
        let glance = NameGlance::of(bytes);
        glance.is_free(bytes, &self.first_bytes).then(|| Alike::of(glance, bytes))
    }

    /// Looks at the command at the beginning of `bytes`, which is an array and need not be whole.
    #[cold]
    pub(crate) fn look(&self, bytes: &[u8], limits: &Limits) -> AdoptLook {
        let mut walk = Walk::default();
        let mut words = WordList::new();
        let end = loop {
            match walk.step(bytes) {
                WordStep::Word(Range { end, .. }) if end + 2 > MAX_LOOK => break None,
                WordStep::Word(range) => words.push(&bytes[range]),
                WordStep::End(length) => break Some(Ok(length)),
                // The command has thousands of words, and its key may still come.
                WordStep::More(least)
                    if least > MAX_LOOK && words.len() < 2 && bytes.len() < MAX_LOOK =>
                {
                    break Some(Err(bytes.len() + 1));
                }
                WordStep::More(least) if least > MAX_LOOK => break None,
                WordStep::More(least) => break Some(Err(least)),
                WordStep::Bad => return AdoptLook::Free,
            }
            if let [name, key] = words[..]
                && class(name) == Class::First
                && self.rule(key).is_none()
            {
                return AdoptLook::Free;
            }
        };
        match end {
            Some(Ok(length)) => self.look_at_words(&words, limits).of_length(length),
            Some(Err(least)) => AdoptLook::More(least),
            None => self.too_large(&words, limits),
        }
    }

    /// Notes an idiom and its client, and logs it where it is new.
    pub(crate) fn note(&self, sighting: Sighting, client: Option<&Arc<str>>) {
        if let Some((sighting, client)) = self.seen.note(sighting, client) {
            seen::tell(&sighting, self.pattern(&sighting), &client);
        }
    }

    /// Counts a command that is refused. Logs it unless a refusal of its connection was logged before
    /// (`is_told`), or there is no room for a line. Returns whether one has been logged by now.
    pub(crate) fn note_refused(
        &self,
        sighting: &Sighting,
        client: Option<&Arc<str>>,
        is_told: bool,
    ) -> bool {
        let may_tell = self.seen.refused(sighting, is_told);
        if may_tell {
            let client = client.map_or("", |client| client);
            seen::tell_of_refusal(sighting, self.pattern(sighting), client);
        }
        is_told || may_tell
    }

    /// Logs that a lock without a TTL was lost, and how many more its client has lost.
    pub(crate) fn tell_of_loss(&self, lock: &str, others: usize) {
        if self.seen.take_line() {
            seen::tell_of_loss(lock, others);
        }
    }

    /// Returns all that was seen, the unsafe first, then by how often; and how often something was seen
    /// that there was no room for.
    pub(crate) fn seen(&self) -> (Vec<(Sighting, Arc<str>, u64)>, u64) {
        self.seen.all()
    }

    /// Returns how many commands were seen, and how many of them were unsafe or refused.
    pub(crate) fn totals(&self) -> AdoptTotals {
        self.seen.totals()
    }

    /// Returns all rules, with their present modes.
    pub(crate) fn rules(&self) -> impl Iterator<Item = (&AdoptRule, AdoptMode)> {
        self.rules.iter().enumerate().map(|(index, rule)| (rule, self.mode(index)))
    }

    /// Returns `keys` of a sighting's rule, as configured.
    pub(crate) fn pattern(&self, sighting: &Sighting) -> &str {
        sighting.rule.and_then(|rule| self.rules.get(rule)).map_or("", |rule| rule.keys.as_str())
    }

    /// Returns `lock` of a sighting's rule, as configured; empty: the lock is named like the key.
    pub(crate) fn lock(&self, sighting: &Sighting) -> &str {
        let rule = sighting.rule.and_then(|rule| self.rules.get(rule));
        rule.and_then(|rule| rule.lock.as_ref()).map_or("", |lock| lock.as_str())
    }

    /// Returns the name of the present mode of a sighting's rule; empty: the sighting has no rule.
    pub(crate) fn mode_of(&self, sighting: &Sighting) -> &'static str {
        sighting.rule.map_or("", |rule| self.mode(rule).as_str())
    }

    /// Returns the rules that none of these sightings is about, with their present modes.
    pub(crate) fn unseen<'a>(
        &'a self,
        seen: &'a [(Sighting, Arc<str>, u64)],
    ) -> impl Iterator<Item = (&'a AdoptRule, AdoptMode)> {
        let is_seen = |rule| seen.iter().any(|(sighting, ..)| sighting.rule == Some(rule));
        let rules = self.rules.iter().enumerate().filter(move |(index, _)| !is_seen(*index));
        rules.map(|(index, rule)| (rule, self.mode(index)))
    }

    fn is_enforced(&self, rule: usize) -> bool {
        self.mode(rule).is_answered()
    }

    /// Returns the first of these rules that the proxy answers, or else the first.
    fn foremost(&self, mut rules: impl Iterator<Item = usize> + Clone) -> Option<usize> {
        rules.clone().find(|rule| self.is_enforced(*rule)).or_else(|| rules.next())
    }

    /// Returns the first rule that is about this key.
    fn rule(&self, key: &[u8]) -> Option<usize> {
        let mut budget = Budget::of(MAX_STEPS);
        // A pattern that would take too long to compare counts as one that matches.
        self.rules
            .iter()
            .position(|rule| rule.keys.matches_within(key, &mut budget).unwrap_or(true))
    }

    /// Returns the rules of these keys. `None`: no rule is about any.
    fn ruled(&self, keys: &[&[u8]]) -> Option<Ruled> {
        let each: SmallVec<[Option<usize>; 8]> = keys.iter().map(|key| self.rule(key)).collect();
        // The proxy answers a command if it answers the rule of at least one of the keys.
        let rule = self.foremost(each.iter().copied().flatten())?;
        let options = each
            .iter()
            .flatten()
            .filter(|other| self.is_enforced(**other) == self.is_enforced(rule))
            .filter_map(|other| Some(self.rules.get(*other)?.options))
            .reduce(AdoptOptions::and)?;
        Some(Ruled { each, rule, options })
    }

    /// Looks at a command whose words have all come.
    fn look_at_words(&self, words: &[&[u8]], limits: &Limits) -> AdoptLook {
        let [name, rest @ ..] = words else { return AdoptLook::Free };
        match (class(name), rest) {
            (Class::Flush, _) => self.look_at_flush(words),
            (Class::None, _) | (_, []) => AdoptLook::Free,
            (Class::Script, _) => self.look_at_script(words, limits),
            (Class::Load, [exists, digests @ ..]) if exists.eq_ignore_ascii_case(b"EXISTS") => {
                self.look_at_exists(words, digests)
            }
            (Class::Load, [load, body]) => {
                if load.eq_ignore_ascii_case(b"LOAD") {
                    self.scripts.learn(body, None);
                }
                AdoptLook::Free
            }
            (Class::Load, _) => AdoptLook::Free,
            (Class::Function, [_, count, keys @ ..]) => {
                let keys = first_of(count, keys);
                self.judge_plain(keys, Idiom::new(Op::Other, "a function"), limits)
            }
            (Class::Function, _) => AdoptLook::Free,
            (Class::First, [key, ..]) => self.judge_plain(&[*key], idiom::of_words(words), limits),
            (Class::Every, keys) => self.judge_plain(keys, idiom::of_words(words), limits),
            (Class::EverySecond, pairs) => {
                let keys: WordList<'_> = pairs.iter().step_by(2).copied().collect();
                self.judge_plain(&keys, idiom::of_words(words), limits)
            }
        }
    }

    /// Looks at FLUSHDB and FLUSHALL.
    fn look_at_flush(&self, words: &[&[u8]]) -> AdoptLook {
        if !(0..self.rules.len()).any(|rule| self.is_flushed(rule)) {
            return AdoptLook::Free;
        }
        let is_all = words.first().is_some_and(|name| name.eq_ignore_ascii_case(b"FLUSHALL"));
        let mut command = Vec::new();
        encode::command(&mut command, words);
        AdoptLook::Flush(FlushCommand { command, is_all, length: 0 })
    }

    /// Looks at SCRIPT EXISTS. The proxy answers NOSCRIPT to a call of a script whose text it does not
    /// know, even if the data node has the script. So the data node is asked about a digest that no
    /// script has instead: the client then shows the script, as it would to a Redis that has lost it.
    fn look_at_exists(&self, words: &[&[u8]], digests: &[&[u8]]) -> AdoptLook {
        const NOBODYS: &[u8] = &[b'0'; 40];
        let is_known = |digest: &[u8]| {
            let Some(digest) = rows::read(digest) else { return true };
            let mut rules = (0..self.rules.len()).filter(|rule| self.is_enforced(*rule));
            rules.all(|rule| self.scripts.get(&digest, Some(rule)).is_some())
        };
        if digests.iter().all(|digest| is_known(digest)) {
            return AdoptLook::Free;
        }
        let digests = digests.iter().map(|digest| if is_known(digest) { *digest } else { NOBODYS });
        let words: WordList<'_> = words.iter().take(2).copied().chain(digests).collect();
        let mut instead = Vec::new();
        encode::command(&mut instead, &words);
        AdoptLook::Exists(instead)
    }

    /// Judges a command that is no script.
    fn judge_plain(&self, keys: &[&[u8]], idiom: Idiom<'_>, limits: &Limits) -> AdoptLook {
        let Some(ruled) = self.ruled(keys) else { return AdoptLook::Free };
        let idiom = idiom.counted_from(self.time_of_day);
        let idiom = verdict::capped(idiom, limits, &ruled.options);
        let mut look = self.judge(keys, &ruled, WhichKeys::All, idiom, limits);
        let is_for_many = idiom.op == Op::ReleaseBlind;
        let obstacle = match keys.len() {
            0..=1 => None,
            2..=MAX_KEYS if is_for_many => None,
            _ if is_for_many => Some(TOO_MANY_KEYS),
            _ => Some(verdict::SEVERAL),
        };
        self.set_task(&mut look, (keys, &ruled.options), &idiom, obstacle);
        if let AdoptLook::Found(found) = &mut look
            && keys.len() == 1
        {
            found.queued = task::queued(&idiom, limits);
        }
        self.set_others(&mut look, keys.get(1..).unwrap_or_default());
        look
    }

    /// Settles what becomes of an idiom, and makes its task if this proxy answers its rule, or another proxy
    /// has bridged it.
    fn set_task(
        &self,
        look: &mut AdoptLook,
        (keys, options): (&[&[u8]], &AdoptOptions),
        idiom: &Idiom<'_>,
        obstacle: Option<&'static str>,
    ) {
        let AdoptLook::Found(found) = look else { return };
        if found.sighting.verdict == AdoptVerdict::Forwarded {
            return;
        }
        let Some(number) = found.sighting.rule else { return };
        let Some(rule) = self.rules.get(number) else { return };
        let Some(key) = keys.iter().find(|key| rule.keys.matches(key)) else { return };
        let sighting = &mut found.sighting;
        let work = task::of(idiom, (sighting.verdict, sighting.because), obstacle, options);
        if let AdoptWork::Refuse(because) = work {
            (sighting.verdict, sighting.because) = (AdoptVerdict::Refused, because);
        }
        let is_beside = || keys.len() == 1 && work.gives_back_or_extends();
        let is_beside = self.is_followed(number) && is_beside();
        let is_enforced = self.is_enforced(number);
        if !is_enforced && !is_beside {
            return;
        }
        let (key, lock, options) = (key.to_vec(), lock_of(rule, key), *options);
        let task = AdoptTask { options, ..AdoptTask::new(key, lock, work) };
        let task = Some(Box::new(task));
        match is_enforced {
            true => found.task = task,
            false => found.beside = task,
        }
    }

    fn look_at_script(&self, words: &[&[u8]], limits: &Limits) -> AdoptLook {
        let [name, script, count, rest @ ..] = words else { return AdoptLook::Free };
        let keys = first_of(count, rest);
        let Some(ruled) = self.ruled(keys) else { return AdoptLook::Free };
        let argv = &rest[keys.len()..];
        let is_body = name.eq_ignore_ascii_case(b"EVAL");
        let call = ScriptCall::new((is_body, script), (keys, argv), &self.scripts, ruled.rule);
        if call.is_clock_check() {
            return AdoptLook::Free;
        }
        let ScriptIdiom { locks, idiom, library } = call.idiom();
        let idiom = verdict::capped(idiom, limits, &ruled.options);
        let mut look = self.judge(keys, &ruled, locks, idiom, limits);
        let others = if locks == WhichKeys::All { &keys[1..] } else { &[] };
        let obstacle = call.obstacle(&idiom, others);
        self.set_task(&mut look, (keys, &ruled.options), &idiom, obstacle);
        self.set_others(&mut look, others);
        if let Some(task) = look.task() {
            call.complete(task);
        }
        if let AdoptLook::Found(Found { sighting, .. }) = &mut look {
            if let Some(library) = library {
                (sighting.library, sighting.replies) = (library, Some(idiom.replies));
            }
            if sighting.library.is_empty() {
                sighting.digest = call.digest;
            }
            if sighting.because.is_empty() {
                sighting.because = call.besides();
            }
        }
        look
    }

    /// Adds the locks of further keys to the task of a command whose reply is their number.
    fn set_others(&self, look: &mut AdoptLook, others: &[&[u8]]) {
        let Some(task) = look.task().filter(|_| !others.is_empty()) else { return };
        if task.work.is_refusal() {
            return;
        }
        let lock = |key: &&[u8]| {
            let rule = self.rule(key).filter(|rule| self.is_enforced(*rule))?;
            Some((key.to_vec(), lock_of(self.rules.get(rule)?, key)))
        };
        match others.iter().map(lock).collect() {
            Some(others) => task.others = others,
            None => task.work = AdoptWork::Refuse("some of its keys are not enforced"),
        }
    }

    /// Judges an idiom on these keys. `locks`: which of them are locks.
    fn judge(
        &self,
        keys: &[&[u8]],
        ruled: &Ruled,
        locks: WhichKeys,
        idiom: Idiom<'_>,
        limits: &Limits,
    ) -> AdoptLook {
        let Ruled { each: ref rules, rule, ref options } = *ruled;
        let counts = |other: &Option<usize>| {
            other.is_some_and(|other| !self.is_enforced(rule) || self.is_enforced(other))
        };
        let all_adopted = match locks {
            WhichKeys::First => rules.first().is_some_and(counts),
            WhichKeys::All => rules.iter().all(counts),
        };
        let others = locks == WhichKeys::First && rules.iter().skip(1).any(Option::is_some);
        let mut op = idiom.op;
        let (verdict, because) = if op == Op::Malformed {
            verdict::of(op)
        } else if verdict::is_forwarded(&idiom, options) {
            (AdoptVerdict::Forwarded, verdict::within(&idiom, limits, options).1)
        } else if !all_adopted || others {
            (AdoptVerdict::Refused, verdict::MIXED)
        } else if keys.len() > 1 && matches!(op, Op::Look | Op::Watch) {
            op = if op == Op::Watch { op } else { Op::Other };
            (AdoptVerdict::Refused, verdict::SEVERAL)
        } else {
            verdict::within(&idiom, limits, options)
        };
        let sighting = Sighting::new(Some(rule), op, (verdict, because));
        let sighting = Sighting { form: idiom.form, ttl: idiom.asked_ttl(), ..sighting };
        let locks = if locks == WhichKeys::First { 1 } else { keys.len() };
        let (key, keys) = (self.hasher.hash_one(keys.first()), keys.len());
        AdoptLook::Found(Found { keys, locks, ..Found::new(sighting, key) })
    }

    /// Judges a command of which only these words could be looked at.
    fn too_large(&self, words: &[&[u8]], limits: &Limits) -> AdoptLook {
        let class = words.first().map_or(Class::Every, |name| class(name));
        let rule = match (class, words) {
            (Class::None | Class::Flush, _) => return AdoptLook::Free,
            // Its key is adopted: the command would have been left alone otherwise.
            (Class::First, [_, key, ..]) => self.rule(key),
            (_, [_, keys @ ..]) => {
                let rules: SmallVec<[usize; 8]> =
                    keys.iter().filter_map(|key| self.rule(key)).collect();
                self.foremost(rules.iter().copied())
            }
            _ => None,
        };
        if let (Class::First, [_, key, ..], Some(rule)) = (class, words, rule)
            && let idiom = idiom::of_words(&words[..2])
            && let Some(AdoptRule { options, .. }) = self.rules.get(rule)
            && verdict::is_forwarded(&idiom, options)
        {
            let (each, options) = (smallvec![Some(rule)], *options);
            let ruled = Ruled { each, rule, options };
            return self.judge(&[*key], &ruled, WhichKeys::All, idiom, limits);
        }
        let sighting = Sighting::new(rule, Op::TooLarge, verdict::of(Op::TooLarge));
        let because = sighting.because;
        let task = rule
            .filter(|rule| self.is_enforced(*rule))
            .map(|_| Box::new(AdoptTask::new(Vec::new(), Vec::new(), AdoptWork::Refuse(because))));
        let key = self.hasher.hash_one(None::<&[u8]>);
        AdoptLook::Found(Found { task, ..Found::new(sighting, key) })
    }
}

/// Returns the lock that a key of this rule stands for.
fn lock_of(rule: &AdoptRule, key: &[u8]) -> Vec<u8> {
    let Some(template) = &rule.lock else { return key.to_vec() };
    let mut lock = Vec::new();
    if let Some(Some(captures)) = rule.keys.captures_within(key, &mut Budget::of(MAX_STEPS)) {
        template.fill(&captures, &mut lock);
    }
    lock
}

/// Returns the first of the words, as many as `count` says; none if that is no number, or too large.
fn first_of<'w, 'a>(count: &[u8], words: &'w [&'a [u8]]) -> &'w [&'a [u8]] {
    let count = number::integer(count).and_then(|count| usize::try_from(count).ok());
    count.and_then(|count| words.get(..count)).unwrap_or_default()
}

#[cfg(test)]
mod adopt_tests;
#[cfg(test)]
mod redis_tests;
