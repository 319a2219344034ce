//! A call of a script about adopted keys: its arguments, and what it does to the lock.

use std::cell::Cell;

use super::{
    first_free::FirstFree,
    idiom::{Idiom, NO_SCRIPT, NOT_AN_INTEGER, Op},
    known_scripts::{Known, KnownScripts},
    normal::{Normal, TtlUnit},
    rows::{self, ArgumentPlace, AsideWord, Behaviour, Digest, Row, WhichKeys},
    task::{self, AdoptWork, MAX_KEYS, TOO_MANY_KEYS},
    verdict,
};
use crate::{config::MAX_PERMITS, resp::number};

/// The error of a call that has fewer arguments than its script reads.
pub(super) const TOO_FEW_ARGUMENTS: &str = "ERR the script has too few arguments";

/// A call of a script.
pub(super) struct ScriptCall<'w, 's> {
    keys: &'w [&'w [u8]],
    argv: &'w [&'w [u8]],
    /// EVAL or EVALSHA.
    form: &'static str,
    /// The script's digest; `None`: the client gave something else.
    pub(super) digest: Option<Digest>,
    known: Option<Known<'s>>,
    /// Whether an argument is missing that the script reads.
    is_short: Cell<bool>,
}

/// What a call does.
pub(super) struct ScriptIdiom<'w> {
    /// Which keys are locks.
    pub(super) locks: WhichKeys,
    pub(super) idiom: Idiom<'w>,
    /// The script's library, where it is known what the script does; empty: the library is not known.
    pub(super) library: Option<&'static str>,
}

impl<'w, 's> ScriptCall<'w, 's> {
    /// Takes in a call: `script` is a body if `is_body`, else a digest. `rule`: that of its keys. A body is learned.
    pub(super) fn new(
        (is_body, script): (bool, &[u8]),
        (keys, argv): (&'w [&'w [u8]], &'w [&'w [u8]]),
        scripts: &'s KnownScripts,
        rule: usize,
    ) -> ScriptCall<'w, 's> {
        let (digest, known, form) = if is_body {
            let (digest, known) = scripts.learn(script, Some(rule));
            (Some(digest), Some(known), "EVAL")
        } else {
            let digest = rows::read(script);
            (digest, digest.and_then(|digest| scripts.get(&digest, Some(rule))), "EVALSHA")
        };
        ScriptCall { keys, argv, form, digest, known, is_short: Cell::new(false) }
    }

    /// Returns what the call does.
    pub(super) fn idiom(&self) -> ScriptIdiom<'w> {
        let idiom = |op| Idiom::new(op, self.form);
        let (locks, idiom, library) = match self.known {
            None if self.digest.is_none() => {
                (WhichKeys::All, Idiom::malformed(self.form, NO_SCRIPT), None)
            }
            None => (WhichKeys::All, idiom(Op::UnseenScript), None),
            // Each of its keys is asked about.
            Some(Known::FirstFree(_) | Known::Row(Row { name: Some(_), .. }))
                if self.keys.len() > MAX_PERMITS =>
            {
                (WhichKeys::All, idiom(Op::UnknownScript), None)
            }
            Some(Known::FirstFree(FirstFree { name, ttl, unit, token })) => {
                let ttl = Some((ArgumentPlace::Argv(ttl), unit));
                let idiom = self.read(rows::FIRST_FREE, Some(ArgumentPlace::Argv(token)), ttl);
                let name = self.given(ArgumentPlace::Argv(name));
                (WhichKeys::All, Idiom { name, ..idiom }, Some(""))
            }
            Some(Known::Normal(normal)) if self.keys.len() == 1 => {
                let (behaviour, token, ttl) = rows::of_normal(normal);
                let ttl = ttl.map(|(ttl, unit)| (ArgumentPlace::Argv(ttl), unit));
                let idiom = self.read(behaviour, Some(ArgumentPlace::Argv(token)), ttl);
                let frees_at_zero = matches!(normal, Normal::Extend { is_set: false, .. });
                (WhichKeys::First, Idiom { frees_at_zero, ..idiom }, Some(""))
            }
            Some(Known::Normal(_)) => (WhichKeys::All, idiom(Op::UnknownScript), None),
            Some(Known::Nothing(kind)) => {
                (WhichKeys::All, Idiom { kind, ..idiom(Op::UnknownScript) }, None)
            }
            Some(Known::Row(row)) => {
                let behaviour = row.behaviour(self.argv);
                let mut idiom = self.read(behaviour, row.token, row.ttl);
                if row.is_for_ever_at_zero && matches!(idiom.ttl, Some((..=0, _))) {
                    idiom.ttl = None;
                    if idiom.op == Op::Acquire {
                        idiom.op = Op::AcquireForEver;
                    }
                }
                idiom.name = row.name.and_then(|place| self.given(place));
                idiom.may_read = row.has_readers;
                (row.locks, idiom, Some(row.library))
            }
        };
        ScriptIdiom { locks, idiom, library }
    }

    /// Whether the call is about no lock, though its key may be one by a rule for many keys: Symfony asks so whether
    /// scripts may read the clock.
    pub(super) fn is_clock_check(&self) -> bool {
        const CLOCK_CHECK: &[u8] = b"c481d49b4a48e48a9eeacd5d51655b5fcbb19925";
        self.digest == rows::read(CLOCK_CHECK) && self.keys == [b"symfony_check_support_time"]
    }

    /// Returns why the proxy cannot carry the call out. `others`: further keys that are locks.
    pub(super) fn obstacle(&self, idiom: &Idiom<'_>, others: &[&[u8]]) -> Option<&'static str> {
        match self.known {
            _ if idiom.op == Op::AcquireFirst => None,
            _ if !others.is_empty() && !task::is_for_many(idiom) => Some(verdict::SEVERAL),
            _ if self.keys.len() > MAX_KEYS => Some(TOO_MANY_KEYS),
            Some(Known::Row(Row { database: Some(_), .. })) if self.database().is_none() => {
                Some("the database that it names is no number")
            }
            _ => None,
        }
    }

    /// Returns the database that the call names.
    fn database(&self) -> Option<u64> {
        let Some(Known::Row(row)) = self.known else { return None };
        let number = self.argv.get(row.database? - 1).and_then(|number| number::integer(number));
        number.and_then(|number| u64::try_from(number).ok())
    }

    /// Adds to the call's task its database, and what the script does besides on the data node. A call with too few arguments fails.
    pub(super) fn complete(&self, task: &mut task::AdoptTask) {
        task.database = self.database();
        if let Some(Known::Row(Row { aside: Some(aside), .. })) = self.known {
            let word = |word: &AsideWord| word.spell(&|place| self.argument(place));
            let commands = aside.commands.iter().map(|words| words.iter().map(word).collect());
            match commands.collect::<Option<Vec<Vec<Vec<u8>>>>>() {
                Some(commands) => task.aside = commands,
                None => task.work = AdoptWork::Fail(TOO_FEW_ARGUMENTS),
            }
        }
        if self.is_short.get() {
            task.work = AdoptWork::Fail(TOO_FEW_ARGUMENTS);
        }
    }

    /// Returns what the script does besides, for a report that has no other reason; may be empty.
    pub(super) fn besides(&self) -> &'static str {
        let Some(Known::Row(row)) = self.known else { return "" };
        match (row.aside, row.database) {
            (Some(aside), _) => aside.told,
            (None, Some(_)) => verdict::DATABASE,
            (None, None) => "",
        }
    }

    fn argument(&self, place: ArgumentPlace) -> Option<&'w [u8]> {
        match place {
            ArgumentPlace::Argv(at) => self.argv.get(at - 1).copied(),
            ArgumentPlace::Keys(at) => self.keys.get(at - 1).copied(),
        }
    }

    /// Returns an argument that the script reads, and notes it if that is missing.
    fn given(&self, place: ArgumentPlace) -> Option<&'w [u8]> {
        let argument = self.argument(place);
        self.is_short.set(self.is_short.get() || argument.is_none());
        argument
    }

    fn read(
        &self,
        Behaviour { op, replies }: Behaviour,
        token: Option<ArgumentPlace>,
        ttl: Option<(ArgumentPlace, TtlUnit)>,
    ) -> Idiom<'w> {
        let token = token.map(|place| self.given(place).ok_or(()));
        let ttl = ttl.map(|(place, unit)| {
            self.given(place).and_then(number::integer).map(|ttl| (ttl, unit)).ok_or(())
        });
        match (token.transpose(), ttl.transpose()) {
            (Ok(token), Ok(ttl)) => Idiom { token, ttl, replies, ..Idiom::new(op, self.form) },
            _ => Idiom { replies, ..Idiom::malformed(self.form, NOT_AN_INTEGER) },
        }
    }
}
