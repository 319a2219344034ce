//! The answers to COMMAND INFO, DOCS and GETKEYS about our own commands, in Redis 7's format.

use crate::resp::{encode, name::Own};

/// Our commands, as COMMAND lists them.
pub(crate) const OURS: [Own; 8] = [
    Own::Lock,
    Own::Unlock,
    Own::Renew,
    Own::Mlock,
    Own::Munlock,
    Own::Attach,
    Own::Detach,
    Own::Lockgate,
];

/// An argument in COMMAND DOCS.
struct Argument {
    name: &'static str,
    kind: &'static str,
    /// The word before the argument.
    token: Option<&'static str>,
    optional: bool,
    /// Whether there may be several.
    multiple: bool,
    /// Alternatives, one of which stands for the argument.
    choices: &'static [Argument],
}

/// The words of a command that are keys.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum KeyWords {
    /// None.
    Nothing,
    /// The first word behind the name.
    First,
    /// As many as the first word behind the name says, from the second on.
    Counted,
}

/// A command or subcommand of ours.
pub(super) struct Described {
    /// The name; a subcommand's begins with its command's, as in `lockgate|help`.
    name: &'static str,
    summary: &'static str,
    group: &'static str,
    arity: i64,
    flags: &'static [&'static str],
    categories: &'static [&'static str],
    pub(super) keys: KeyWords,
    arguments: &'static [Argument],
    pub(super) subcommands: &'static [Described],
}

impl Described {
    /// Whether the command may have this number of words, its name included.
    pub(super) fn takes(&self, words: usize) -> bool {
        let words = i64::try_from(words).unwrap_or(i64::MAX);
        if self.arity > 0 { words == self.arity } else { words >= -self.arity }
    }

    /// Whether this word, in any case, is one of its subcommands.
    pub(super) fn has_subcommand(&self, word: &[u8]) -> bool {
        let mut names = self.subcommands.iter().filter_map(|each| each.name.split_once('|'));
        names.any(|(_, name)| name.as_bytes().eq_ignore_ascii_case(word))
    }
}

/// What a command of ours does with its keys.
const KEY_FLAGS: &[&str] = &["RW", "access", "update"];

const KEY: Argument = Argument {
    name: "key",
    kind: "key",
    token: None,
    optional: false,
    multiple: false,
    choices: &[],
};
const NUMKEYS: Argument = Argument { name: "numkeys", kind: "integer", ..KEY };
const KEYS: Argument = Argument { multiple: true, ..KEY };
const TOKEN: Argument = Argument { name: "token", kind: "string", optional: true, ..KEY };
const EXPIRATION: Argument = Argument {
    name: "expiration",
    kind: "oneof",
    optional: true,
    choices: &[number("milliseconds", "PX", false), number("seconds", "EX", false)],
    ..KEY
};
/// Which grant LOCKGATE UNLOCK means.
const GRANT: &[Argument] =
    &[number("fence", "FENCE", false), number("reader", "READER", false), word("any", "ANY")];
/// The state that LOCKGATE NODE sets for a lock node.
const STATE: &[Argument] = &[word("pause", "PAUSE"), word("resume", "RESUME")];
const COUNT: Argument = number("count", "COUNT", true);
const BY: Argument = Argument {
    name: "order",
    kind: "oneof",
    token: Some("BY"),
    optional: true,
    choices: &[word("waiters", "WAITERS"), word("age", "AGE"), word("wait", "WAIT")],
    ..KEY
};
/// A lock's name in LOCKGATE. A cluster client must not route by it: the answer is this proxy's.
const LOCK_NAME: Argument = Argument { name: "key", optional: false, ..TOKEN };
const WAIT: Argument = number("milliseconds", "WAIT", true);
const PERMITS: Argument = number("n", "PERMITS", true);
const SHARED: Argument = Argument { optional: true, ..word("shared", "SHARED") };

const fn number(name: &'static str, token: &'static str, optional: bool) -> Argument {
    Argument { name, kind: "integer", token: Some(token), optional, ..KEY }
}

/// Returns an argument that is a fixed word.
const fn word(name: &'static str, token: &'static str) -> Argument {
    Argument { name, kind: "pure-token", token: Some(token), ..KEY }
}

const LOCK: Described = Described {
    name: "lock",
    summary: "Takes a lock, a part of it beside other readers, or a free one of n permits, on a quorum of nodes. \
              Without PX or EX it lives as long as the connection.",
    group: "generic",
    arity: -2,
    flags: &["write", "noscript", "blocking"],
    categories: &["@write", "@slow", "@blocking"],
    keys: KeyWords::First,
    arguments: &[KEY, TOKEN, EXPIRATION, WAIT, PERMITS, SHARED],
    subcommands: &[],
};
const UNLOCK: Described = Described {
    name: "unlock",
    summary: "Gives a lock back, or hands it over to who waits for it.",
    flags: &["write", "noscript"],
    categories: &["@write", "@slow"],
    arguments: &[KEY, TOKEN],
    ..LOCK
};
const RENEW: Described = Described {
    name: "renew",
    summary: "Gives a lock a fresh TTL.",
    arguments: &[KEY, TOKEN, EXPIRATION],
    ..UNLOCK
};
const MLOCK: Described = Described {
    name: "mlock",
    summary: "Takes all of several locks, or none. \
              Without PX or EX they live as long as the connection.",
    arity: -3,
    flags: &["write", "noscript", "blocking", "movablekeys"],
    keys: KeyWords::Counted,
    arguments: &[NUMKEYS, KEYS, TOKEN, EXPIRATION, WAIT],
    ..LOCK
};
const MUNLOCK: Described = Described {
    name: "munlock",
    summary: "Gives several locks back, or hands them over to who waits for them.",
    arity: -3,
    flags: &["write", "noscript", "movablekeys"],
    keys: KeyWords::Counted,
    arguments: &[NUMKEYS, KEYS, TOKEN],
    ..UNLOCK
};
const ATTACH: Described = Described {
    name: "lock.attach",
    summary: "Lets the connection act under a lock that another has taken.",
    arity: 3,
    arguments: &[KEY, Argument { optional: false, ..TOKEN }],
    ..UNLOCK
};
const DETACH: Described = Described {
    name: "lock.detach",
    summary: "Ends what LOCK.ATTACH began. The lock stays.",
    arity: 2,
    arguments: &[KEY],
    ..UNLOCK
};
const LOCKGATE: Described = Described {
    name: "lockgate",
    summary: "Tells of the proxy, its lock nodes and its locks.",
    group: "server",
    arity: -2,
    flags: &[],
    categories: &["@slow"],
    keys: KeyWords::Nothing,
    arguments: &[],
    subcommands: &[
        subcommand("lockgate|help", "Shows the subcommands.", 2, &[]),
        subcommand("lockgate|info", "Tells of the proxy as a whole.", 2, &[]),
        subcommand("lockgate|nodes", "Lists the lock nodes.", 2, &[]),
        subcommand("lockgate|adopted", "Lists the lock idioms seen on adopted keys.", 2, &[]),
        subcommand("lockgate|version", "Tells the version.", 2, &[]),
        subcommand(
            "lockgate|locks",
            "Lists the locks granted through this proxy.",
            -2,
            &[Argument { name: "pattern", kind: "pattern", ..TOKEN }, COUNT, BY],
        ),
        subcommand("lockgate|lock", "Tells of one lock, wherever it was granted.", 3, &[LOCK_NAME]),
        subcommand("lockgate|readers", "Lists the readers of a lock.", 3, &[LOCK_NAME]),
        subcommand("lockgate|waiters", "Lists the clients that wait for a lock.", 3, &[LOCK_NAME]),
        subcommand("lockgate|clients", "Lists the clients that hold locks or wait.", 2, &[]),
        subcommand(
            "lockgate|hot",
            "Lists the locks that are waited for longest.",
            -2,
            &[Argument { name: "count", token: None, ..COUNT }],
        ),
        subcommand(
            "lockgate|unlock",
            "Takes a lock back from its holder.",
            -4,
            &[
                Argument { name: "key", optional: false, ..TOKEN },
                Argument { name: "grant", kind: "oneof", optional: false, choices: GRANT, ..TOKEN },
            ],
        ),
        subcommand(
            "lockgate|node",
            "Has a lock node asked for no new locks, or asked again.",
            -4,
            &[
                Argument { name: "address", optional: false, ..TOKEN },
                Argument { name: "state", kind: "oneof", optional: false, choices: STATE, ..TOKEN },
                Argument { optional: true, ..word("force", "FORCE") },
            ],
        ),
        subcommand(
            "lockgate|pause",
            "Has new LOCKs wait.",
            3,
            &[Argument { token: None, ..number("milliseconds", "", false) }],
        ),
        subcommand("lockgate|unpause", "Has new LOCKs granted again.", 2, &[]),
    ],
};

const fn subcommand(
    name: &'static str,
    summary: &'static str,
    arity: i64,
    arguments: &'static [Argument],
) -> Described {
    Described {
        name,
        summary,
        group: "server",
        arity,
        flags: &["noscript", "loading", "stale"],
        categories: &["@slow", "@dangerous"],
        keys: KeyWords::Nothing,
        arguments,
        subcommands: &[],
    }
}

/// Returns the entry of a command.
pub(super) fn described(own: Own) -> &'static Described {
    match own {
        Own::Lock => &LOCK,
        Own::Unlock => &UNLOCK,
        Own::Renew => &RENEW,
        Own::Mlock => &MLOCK,
        Own::Munlock => &MUNLOCK,
        Own::Attach => &ATTACH,
        Own::Detach => &DETACH,
        Own::Lockgate | Own::Command => &LOCKGATE,
    }
}

/// Returns all names for `COMMAND LIST`, which includes subcommands.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    let all = OURS.iter().map(|own| described(*own));
    all.flat_map(|it| std::iter::once(it.name).chain(it.subcommands.iter().map(|each| each.name)))
}

/// Appends the command's entry of `COMMAND INFO`.
pub(crate) fn info(out: &mut Vec<u8>, own: Own, resp3: bool) {
    info_of(out, described(own), resp3);
}

fn info_of(out: &mut Vec<u8>, it: &Described, resp3: bool) {
    encode::array(out, 10);
    encode::bulk(out, it.name.as_bytes());
    encode::integer(out, it.arity);
    words(out, it.flags, resp3);
    // First key, last key, step. Of counted keys Redis tells none here.
    for _ in 0..3 {
        encode::integer(out, i64::from(it.keys == KeyWords::First));
    }
    words(out, it.categories, resp3);
    // No tips.
    encode::set(out, 0, resp3);
    encode::set(out, usize::from(it.keys != KeyWords::Nothing), resp3);
    if it.keys != KeyWords::Nothing {
        key_specification(out, it.keys, resp3);
    }
    if it.subcommands.is_empty() {
        encode::set(out, 0, resp3);
    } else {
        encode::array(out, it.subcommands.len());
        it.subcommands.iter().for_each(|each| info_of(out, each, resp3));
    }
}

/// Appends the key specification.
fn key_specification(out: &mut Vec<u8>, keys: KeyWords, resp3: bool) {
    encode::map(out, 3, resp3);
    encode::bulk(out, b"flags");
    words(out, KEY_FLAGS, resp3);
    let (kind, numbers) = match keys {
        KeyWords::Counted => ("keynum", [("keynumidx", 0), ("firstkey", 1), ("keystep", 1)]),
        _ => ("range", [("lastkey", 0), ("keystep", 1), ("limit", 0)]),
    };
    for (field, kind, numbers) in
        [("begin_search", "index", &[("index", 1)][..]), ("find_keys", kind, &numbers)]
    {
        encode::bulk(out, field.as_bytes());
        encode::map(out, 2, resp3);
        text(out, "type", kind);
        encode::bulk(out, b"spec");
        encode::map(out, numbers.len(), resp3);
        for (name, number) in numbers {
            encode::bulk(out, name.as_bytes());
            encode::integer(out, *number);
        }
    }
}

/// Appends the command's name and entry of `COMMAND DOCS`.
pub(crate) fn docs(out: &mut Vec<u8>, own: Own, resp3: bool) {
    docs_of(out, described(own), resp3);
}

fn docs_of(out: &mut Vec<u8>, it: &Described, resp3: bool) {
    let (has_arguments, has_subcommands) = (!it.arguments.is_empty(), !it.subcommands.is_empty());
    encode::bulk(out, it.name.as_bytes());
    encode::map(out, 3 + usize::from(has_arguments) + usize::from(has_subcommands), resp3);
    text(out, "summary", it.summary);
    text(out, "since", env!("CARGO_PKG_VERSION"));
    text(out, "group", it.group);
    if has_arguments {
        arguments(out, it.arguments, resp3);
    }
    if has_subcommands {
        encode::bulk(out, b"subcommands");
        encode::map(out, it.subcommands.len(), resp3);
        it.subcommands.iter().for_each(|each| docs_of(out, each, resp3));
    }
}

fn arguments(out: &mut Vec<u8>, all: &[Argument], resp3: bool) {
    encode::bulk(out, b"arguments");
    encode::array(out, all.len());
    for argument in all {
        let (is_key, has_choices) = (argument.kind == "key", !argument.choices.is_empty());
        let flags: Vec<&str> = [(argument.optional, "optional"), (argument.multiple, "multiple")]
            .into_iter()
            .filter_map(|(is_set, flag)| is_set.then_some(flag))
            .collect();
        let has = [is_key, argument.token.is_some(), !flags.is_empty(), has_choices];
        encode::map(out, 2 + has.into_iter().filter(|has| *has).count(), resp3);
        text(out, "name", argument.name);
        text(out, "type", argument.kind);
        if is_key {
            encode::bulk(out, b"key_spec_index");
            encode::integer(out, 0);
        }
        if let Some(token) = argument.token {
            text(out, "token", token);
        }
        if !flags.is_empty() {
            encode::bulk(out, b"flags");
            words(out, &flags, resp3);
        }
        if has_choices {
            arguments(out, argument.choices, resp3);
        }
    }
}

/// Appends the keys of a command as COMMAND GETKEYS tells them, or `with_flags` as GETKEYSANDFLAGS does.
pub(crate) fn keys(out: &mut Vec<u8>, keys: &[Vec<u8>], with_flags: bool, resp3: bool) {
    encode::array(out, keys.len());
    for key in keys {
        if with_flags {
            encode::array(out, 2);
        }
        encode::bulk(out, key);
        if with_flags {
            words(out, KEY_FLAGS, resp3);
        }
    }
}

fn text(out: &mut Vec<u8>, field: &str, value: &str) {
    encode::bulk(out, field.as_bytes());
    encode::bulk(out, value.as_bytes());
}

fn words(out: &mut Vec<u8>, words: &[&str], resp3: bool) {
    encode::set(out, words.len(), resp3);
    words.iter().for_each(|word| encode::simple(out, word));
}
