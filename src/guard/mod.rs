//! Guards: rules by which keys are written only under a lock.
//!
//! A session shows [`Guards`] a command and learns what the command needs. [`learn`] and [`history`]
//! have connections of their own to the data node; nothing else here has one.
//!
//! - [`asked`]: a command whose keys only the data node can tell.
//! - [`catalog`]: which commands write, and where their keys are.
//! - [`written_keys`]: Redis's key specifications.
//! - [`learn`]: asks the data node for both, and whether its history has changed.
//! - [`history`]: whether the data node may have forgotten fences.
//! - [`room`]: the memory for large commands that are kept until they can be judged.
//! - [`mod@write`]: the short way, which most writes go: one script.
//! - [`fences`]: the question to the data node before a write that goes the long way.
//! - [`replicas`]: the replicas that must acknowledge fences, or writes.

pub(crate) mod asked;
pub(crate) mod catalog;
pub(crate) mod fences;
pub(crate) mod history;
pub(crate) mod learn;
pub(crate) mod replicas;
pub(crate) mod room;
pub(crate) mod write;
pub(crate) mod written_keys;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::Waker,
    time::Instant,
};

use tokio::runtime::Handle;
use tracing::warn;

pub(crate) use self::room::{Room, UNCOUNTED};
use self::{
    asked::AskedCommand,
    catalog::{FirstBytes, Glance, Table, Writes},
    fences::FencePlace,
    history::DataHistory,
    learn::{Catalog, LONGEST_NAME},
    replicas::Replicas,
    room::Rooms,
    write::Write,
    written_keys::{MAX_POSITIONS, Positions},
};
use crate::{
    cluster::slot::slot,
    config::{Config, Flush, GuardRule, GuardsConfig, Pattern, Policy},
    data::DataNode,
    glob::Budget,
    log_text::shown,
    resp::words::{Spans, Walk, WordStep},
};

/// Prefix of the key on the data node that holds the largest fence it has seen of a lock. The lock's
/// key follows.
pub(crate) const FENCE_PREFIX: &[u8] = b"lockgate:guard:";
/// The most locks that one command can need, and whose fences one transaction can watch.
pub(crate) const MAX_LOCKS: usize = 128;
/// The most words of one command that are looked at. The work for each, and the steps below, take
/// less than ten milliseconds, in which the thread does nothing else.
const MAX_WORDS: usize = MAX_POSITIONS;
/// The most steps that comparing the keys of one command with the rules may take.
const MAX_STEPS: usize = 4_000_000;
/// How many commands of the largest size may be kept at the same time, for all clients. One client
/// has at most one of them.
const MAX_HELD: usize = 8;
/// The most bytes of large commands that are kept at the same time, unless `guards.max_command` is
/// larger.
const MOST_HELD: usize = 128 * 1024 * 1024;
/// The most bytes of a key that are kept for an error or the log.
const SHOWN: usize = 256;
/// The shortest time between two log lines about replicas, and the time for which the last missing
/// acknowledgement counts unless one arrives, in seconds.
const TELL_EVERY: u64 = 10;

/// The rules, and the knowledge to apply them.
pub(crate) struct Guards {
    rules: Vec<GuardRule>,
    /// Patterns of the locks that enforced rules need.
    locks: Vec<Pattern>,
    flush: Flush,
    /// The largest command that is kept to be judged, in bytes.
    pub max_command: usize,
    pub catalog: Catalog,
    /// The data node's history: whether it may have forgotten fences.
    history: Arc<DataHistory>,
    /// The same for each node of a cluster, by its front.
    fronts: Vec<Arc<DataHistory>>,
    /// The replicas that must acknowledge fences, if any.
    pub replicas: Option<Replicas>,
    /// Where the data node keeps fences.
    pub place: FencePlace,
    enforces: bool,
    rooms: Arc<Rooms>,
    /// Last time that [`Guards::tell_of_audited`] logged, in seconds since `started`.
    told_at: AtomicU64,
    /// Last time that [`Guards::tell_of_fence_ahead`] logged, in seconds since `started`.
    told_ahead_at: AtomicU64,
    /// How many fences in a row too few replicas have acknowledged, and when that last happened, in
    /// seconds since `started`.
    unacknowledged: AtomicU64,
    unacknowledged_at: AtomicU64,
    /// Last time that [`Guards::note_lacking_replicas`] logged, in seconds since `started`.
    told_unacknowledged_at: AtomicU64,
    /// Whether the data node knew the script of a guarded write when the script was last called.
    has_script: AtomicBool,
    started: Instant,
}

/// A lock without which a key must not be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Need {
    /// The lock's name as clients know it, without `locks.prefix`.
    pub lock: Vec<u8>,
    /// The command's first key that needs the lock, cut to what errors and the log show.
    pub key: Vec<u8>,
}

/// What becomes of a command.
#[derive(Debug)]
pub(crate) enum Look {
    /// Passes: no rule is about the command.
    Free,
    /// Passes, but the metrics count whether these locks are held.
    Audited(Vec<Need>),
    /// Undecided: at least this many bytes are needed. The walk goes on where it stands.
    More(usize, Walk),
    /// Refused: larger than `guards.max_command`.
    TooLarge,
    /// Stopped: the command's length in bytes, the reason, and the facts for the script if the write
    /// can go the short way.
    Stop(usize, Stop, Option<Write>),
}

/// The judgement on a command: it passes, and the metrics count whether these locks are held; or it
/// is stopped.
pub(crate) type Ruling = Result<Vec<Need>, Stop>;

/// The reason why a command is stopped.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The command writes guarded keys.
    Needs(Vec<Need>),
    /// Only the data node can tell which keys the command writes.
    Ask(AskedCommand),
    /// No command of this name is known.
    Unknown(Vec<u8>),
    /// The name (or subcommand) contains NUL. Redis compares names that share a place in its table only
    /// up to the NUL, so it is unknown which command would run.
    ZeroInName,
    /// The command would empty or swap databases that have guarded keys.
    Databases(Vec<u8>),
    /// The command would write one of Lockgate's own keys.
    Reserved,
    /// A key and a lock that it needs are in different slots of the cluster.
    Slots(Need),
    /// The command needs more than [`MAX_LOCKS`] locks.
    TooMany,
    /// Working out which locks the command needs would take too long.
    TooMuch,
    /// The command is larger than `guards.max_command`, and its bytes were dropped.
    TooLarge,
    /// Large commands of other clients take all the room, and this one's bytes were dropped.
    NoRoom,
}

impl Guards {
    /// Starts the guards of a configuration, if there are any.
    pub(crate) fn start(
        config: &Config,
        data: &Arc<DataNode>,
        runtime: &Handle,
    ) -> Option<Arc<Guards>> {
        let rules = &config.guards.rules;
        if rules.is_empty() {
            return None;
        }
        let history = Arc::new(DataHistory::default());
        let catalog = Catalog::start(data, first_bytes(rules), history.clone(), runtime);
        let place = place(config);
        let fronts = if place == FencePlace::Alone { 0 } else { config.listen.len() };
        let watched = (0..fronts).map(|front| {
            let history = Arc::new(DataHistory::default());
            runtime.spawn(history::watch(data.front(front), Arc::downgrade(&history)));
            history
        });
        let fronts = watched.collect();
        Some(Guards::with(&config.guards, place, catalog, (history, fronts)))
    }

    fn with(
        config: &GuardsConfig,
        place: FencePlace,
        catalog: Catalog,
        (history, fronts): (Arc<DataHistory>, Vec<Arc<DataHistory>>),
    ) -> Arc<Guards> {
        let GuardsConfig { rules, max_command, flush, .. } = config;
        Arc::new(Guards {
            rules: rules.clone(),
            locks: rules
                .iter()
                .filter(|rule| rule.policy == Policy::Enforce)
                .map(|rule| rule.lock.as_pattern())
                .collect(),
            flush: *flush,
            max_command: *max_command,
            catalog,
            history,
            fronts,
            replicas: Replicas::of(config),
            place,
            enforces: rules.iter().any(|rule| rule.policy == Policy::Enforce),
            rooms: Rooms::new(all_held(*max_command)),
            told_at: AtomicU64::new(u64::MAX),
            told_ahead_at: AtomicU64::new(u64::MAX),
            unacknowledged: AtomicU64::new(0),
            unacknowledged_at: AtomicU64::new(0),
            told_unacknowledged_at: AtomicU64::new(u64::MAX),
            has_script: AtomicBool::new(false),
            started: Instant::now(),
        })
    }

    /// Makes the guards of a data node that has a few commands only.
    #[cfg(test)]
    pub(crate) fn of_few_commands(config: &Config) -> Arc<Guards> {
        let catalog = Catalog::of_few_commands(first_bytes(&config.guards.rules));
        Guards::with(&config.guards, place(config), catalog, Default::default())
    }

    /// Returns the history of the data node, or of the cluster node behind this front.
    pub(crate) fn history(&self, front: usize) -> &Arc<DataHistory> {
        self.fronts.get(front).unwrap_or(&self.history)
    }

    /// Returns the rules as configured.
    pub(crate) fn rules(&self) -> &[GuardRule] {
        &self.rules
    }

    /// Whether at least one rule is enforced.
    pub(crate) fn enforces(&self) -> bool {
        self.enforces
    }

    /// Counts the caller's line as logged, and returns whether it is the first of this second.
    fn take_line(&self, told_at: &AtomicU64) -> bool {
        let now = self.started.elapsed().as_secs();
        told_at.swap(now, Ordering::Relaxed) != now
    }

    /// Logs, at most once a second, that the data node's fence of this lock is larger than any proxy's
    /// clock can have made it.
    pub(crate) fn tell_of_fence_ahead(&self, lock: &[u8], fence: u64) {
        if self.take_line(&self.told_ahead_at) {
            let lock = shown(lock);
            warn!(
                lock = &*lock,
                fence,
                "guards: the data node's fence of this lock is more than a day ahead of the clock; \
                 was it written past Lockgate (ACL: docs/guards.md), or is a clock wrong?"
            );
        }
    }

    /// Notes that too few replicas have acknowledged a fence, and logs that, at most every ten seconds.
    pub(crate) fn note_lacking_replicas(&self) {
        let times = self.unacknowledged.fetch_add(1, Ordering::Relaxed) + 1;
        let now = self.started.elapsed().as_secs();
        self.unacknowledged_at.store(now, Ordering::Relaxed);
        let told = self.told_unacknowledged_at.load(Ordering::Relaxed);
        if told == u64::MAX || now.saturating_sub(told) >= TELL_EVERY {
            self.told_unacknowledged_at.store(now, Ordering::Relaxed);
            warn!(
                times,
                "guards: too few replicas have acknowledged a lock's fence (guards.replicas): locks of \
                 guards are refused (NOREPLICAS)"
            );
        }
    }

    /// Whether the data node knew the script of a guarded write when the script was last called.
    pub(crate) fn has_script(&self) -> bool {
        self.has_script.load(Ordering::Relaxed)
    }

    /// Notes whether the data node knows the script of a guarded write.
    pub(crate) fn note_script(&self, is_known: bool) {
        if self.has_script() != is_known {
            self.has_script.store(is_known, Ordering::Relaxed);
        }
    }

    /// Notes that enough replicas have acknowledged a fence.
    pub(crate) fn note_replicas(&self) {
        if self.unacknowledged.load(Ordering::Relaxed) > 0 {
            self.unacknowledged.store(0, Ordering::Relaxed);
        }
    }

    /// Returns how many fences in a row too few replicas have acknowledged; `None` if the last fence
    /// was acknowledged, or the last failure is [`TELL_EVERY`] seconds ago or more.
    pub(crate) fn unacknowledged(&self) -> Option<u64> {
        let at = self.unacknowledged_at.load(Ordering::Relaxed);
        let is_recent = self.started.elapsed().as_secs().saturating_sub(at) < TELL_EVERY;
        let times = self.unacknowledged.load(Ordering::Relaxed);
        (times > 0 && is_recent).then_some(times)
    }

    /// Logs, at most once a second, a write that passed without its lock. `client`: returns its address and its name.
    pub(crate) fn tell_of_audited(&self, need: &Need, client: impl FnOnce() -> (String, Arc<str>)) {
        if self.take_line(&self.told_at) {
            let (key, lock) = (shown(&need.key), shown(&need.lock));
            let (address, name) = client();
            warn!(
                key = &*key,
                lock = &*lock,
                address,
                name = &*name,
                "guards: written without its lock, as the policy is audit"
            );
        }
    }

    /// Whether writes to some keys need this lock, named as clients know it.
    pub(crate) fn is_needed(&self, lock: &[u8]) -> bool {
        self.locks.iter().any(|pattern| pattern.matches(lock))
    }

    /// Whether, by the glance, the command at the beginning of `bytes` writes only the key behind its
    /// name, and no rule is about that key. Without this, a SET of a key that begins with the same byte
    /// as a guarded one takes 41 % more instructions at depth 16.
    pub(crate) fn is_free(&self, table: &Table, glance: Glance, bytes: &[u8]) -> bool {
        table.first_key(glance, bytes).is_some_and(|key| !self.concerns(key))
    }

    /// Whether a rule is about this key, comparing would take too long, or the key is reserved.
    #[inline]
    fn concerns(&self, key: &[u8]) -> bool {
        let mut budget = Budget::of(MAX_STEPS);
        let mut matches = |rule: &GuardRule| rule.keys.matches_within(key, &mut budget);
        self.rules.iter().any(|rule| matches(rule).unwrap_or(true)) || key.starts_with(FENCE_PREFIX)
    }

    /// Judges the command at the beginning of `bytes`, which is an array and need not be whole.
    pub(crate) fn look(&self, table: Option<&Table>, bytes: &[u8]) -> Look {
        let (mut walk, mut words) = (Walk::default(), Spans::new());
        let mut end = walk.find(bytes, &mut words, 1);
        let writes = words.first().and_then(|name| table?.writes(name, bytes));
        let mut ruling = None;
        match writes {
            Some(Writes::Nothing) => return Look::Free,
            // The commonest writes have one key, behind the name. Their values may still be on the way,
            // unless the key is guarded.
            Some(Writes::First) => {
                end = walk.find(bytes, &mut words, 2);
                if let Some(key) = words.get(1) {
                    match self.needs(std::iter::once(*key)) {
                        Ok(audited) if audited.is_empty() => return Look::Free,
                        needs => ruling = Some(needs),
                    }
                }
            }
            _ => {}
        }
        // One word more than allowed shows that there are too many.
        let end = end
            .or_else(|| walk.find(bytes, &mut words, MAX_WORDS + 1))
            .unwrap_or_else(|| walk.finish(bytes));
        let length = match end {
            WordStep::End(length) if length > self.max_command => return Look::TooLarge,
            WordStep::End(length) if !words.is_empty() => length,
            WordStep::More(least) => return self.more(least, walk),
            // Redis does not carry this out.
            WordStep::End(_) | WordStep::Word(_) | WordStep::Bad => return Look::Free,
        };
        if words.len() > MAX_WORDS {
            return Look::Stop(length, Stop::TooMuch, None);
        }
        let ruling = ruling.unwrap_or_else(|| self.judge(writes, &words));
        ruled(ruling, &words, &bytes[..length])
    }

    fn more(&self, least: usize, walk: Walk) -> Look {
        if least > self.max_command { Look::TooLarge } else { Look::More(least, walk) }
    }

    /// Judges a command whose words have all arrived.
    fn judge(&self, mut writes: Option<&Writes>, words: &[&[u8]]) -> Ruling {
        if let (Some(Writes::Subcommand(known)), Some(word)) = (writes, words.get(1)) {
            writes = known.get(&cut(word, LONGEST_NAME + 1).to_ascii_uppercase());
            if writes.is_none() {
                // Redis refuses an unknown subcommand itself.
                let is_unclear = self.enforces && word.contains(&0);
                return if is_unclear { Err(Stop::ZeroInName) } else { Ok(Vec::new()) };
            }
        }
        let name = words.first().copied().unwrap_or_default();
        let mut positions = Positions::new();
        match writes {
            None if !self.enforces => return Ok(Vec::new()),
            None if name.contains(&0) => return Err(Stop::ZeroInName),
            None => return Err(Stop::Unknown(cut(name, LONGEST_NAME + 1).to_vec())),
            Some(Writes::Nothing | Writes::Subcommand(_)) => return Ok(Vec::new()),
            Some(Writes::Databases) if self.flush == Flush::Allow || !self.enforces => {
                return Ok(Vec::new());
            }
            Some(Writes::Databases) => return Err(Stop::Databases(name.to_ascii_uppercase())),
            Some(Writes::Ask) => {
                return Err(AskedCommand::of(words).map_or(Stop::TooMuch, Stop::Ask));
            }
            Some(Writes::First) => positions.push(1),
            Some(Writes::Groups(groups)) => {
                groups.iter().for_each(|group| group.find(words, &mut positions));
            }
        }
        if positions.len() > MAX_POSITIONS {
            return Err(Stop::TooMuch);
        }
        self.needs(positions.iter().filter_map(|at| words.get(*at)).copied())
    }

    /// Returns which locks writing these keys needs.
    pub(crate) fn needs<'k>(&self, keys: impl Iterator<Item = &'k [u8]>) -> Ruling {
        let (mut enforced, mut audited) = (Vec::<Need>::new(), Vec::<Need>::new());
        let mut budget = Budget::of(MAX_STEPS);
        for key in keys {
            if key.starts_with(FENCE_PREFIX) {
                return Err(Stop::Reserved);
            }
            for rule in &self.rules {
                budget.take(1).ok_or(Stop::TooMuch)?;
                let captures = match rule.keys.captures_within(key, &mut budget) {
                    Some(Some(captures)) => captures,
                    Some(None) => continue,
                    None => return Err(Stop::TooMuch),
                };
                // Long captures are copied, and a long key is hashed for its slot.
                let mut long: usize = captures.iter().map(|took| took.len()).sum();
                if self.place != FencePlace::Alone {
                    long = key.len();
                }
                if long > UNCOUNTED {
                    budget.take(long).ok_or(Stop::TooMuch)?;
                }
                let mut lock = Vec::new();
                rule.lock.fill(&captures, &mut lock);
                let needs = match rule.policy {
                    Policy::Enforce => &mut enforced,
                    Policy::Audit => &mut audited,
                };
                if rule.policy == Policy::Enforce
                    && self.place != FencePlace::Alone
                    && slot(key) != slot(&lock)
                {
                    return Err(Stop::Slots(Need { lock, key: cut(key, SHOWN).to_vec() }));
                }
                budget.take(needs.len()).ok_or(Stop::TooMuch)?;
                if !needs.iter().any(|need| need.lock == lock) {
                    if needs.len() >= MAX_LOCKS {
                        return Err(Stop::TooMany);
                    }
                    needs.push(Need { lock, key: cut(key, SHOWN).to_vec() });
                }
            }
        }
        if enforced.is_empty() { Ok(audited) } else { Err(Stop::Needs(enforced)) }
    }

    /// Returns room for a command of which `bytes` have arrived, or `None` if other clients take too
    /// much. `waker`: more bytes are to come; if none come, other commands may take the room.
    pub(crate) fn room(&self, bytes: usize, waker: Option<&Waker>) -> Option<Room> {
        self.rooms.room(bytes, waker)
    }
}

/// Returns the most bytes of large commands that may be kept at the same time, if one may have
/// `max_command`.
fn all_held(max_command: usize) -> usize {
    MAX_HELD.saturating_mul(max_command).min(MOST_HELD.max(max_command))
}

/// Cuts a text that a client chooses to at most this many bytes.
fn cut(text: &[u8], most: usize) -> &[u8] {
    &text[..text.len().min(most)]
}

/// Returns where fences are kept under this configuration.
fn place(config: &Config) -> FencePlace {
    match config.data.cluster() {
        Some(_) => FencePlace::Slot { prefix: config.locks.prefix.len() },
        None => FencePlace::Alone,
    }
}

/// Returns which first bytes a guarded or reserved key can have.
fn first_bytes(rules: &[GuardRule]) -> FirstBytes {
    let mut first = [false; 256];
    for text in rules.iter().map(|rule| rule.keys.as_str().as_bytes()).chain([FENCE_PREFIX]) {
        match text.first() {
            Some(literal) if !b"*?[\\".contains(literal) => first[usize::from(*literal)] = true,
            _ => first = [true; 256],
        }
    }
    first
}

/// Turns a ruling on a whole command into a look.
fn ruled(ruling: Ruling, words: &[&[u8]], command: &[u8]) -> Look {
    match ruling {
        Ok(audited) if audited.is_empty() => Look::Free,
        Ok(audited) => Look::Audited(audited),
        Err(stop) => Look::Stop(command.len(), stop, Write::of(words, command)),
    }
}
