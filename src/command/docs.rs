//! What COMMAND INFO and COMMAND DOCS say of our own commands, in the shape in
//! which Redis 7 speaks of its own.

use crate::resp::{encode, request::Own};

/// An argument, as DOCS has it.
struct Argument {
    name: &'static str,
    kind: &'static str,
    /// The word before it.
    token: Option<&'static str>,
    optional: bool,
}

/// One of our commands.
struct Described {
    summary: &'static str,
    arity: i64,
    flags: &'static [&'static str],
    categories: &'static [&'static str],
    /// Where its key is; 0: it has none.
    key: i64,
    arguments: &'static [Argument],
}

const KEY: Argument = Argument { name: "key", kind: "key", token: None, optional: false };
const TOKEN: Argument = Argument { name: "token", kind: "string", token: None, optional: true };
const PX: Argument =
    Argument { name: "milliseconds", kind: "integer", token: Some("PX"), optional: true };
const EX: Argument =
    Argument { name: "seconds", kind: "integer", token: Some("EX"), optional: true };
const WAIT: Argument =
    Argument { name: "milliseconds", kind: "integer", token: Some("WAIT"), optional: true };

fn described(own: Own) -> Described {
    let (flags, categories): (&[&str], &[&str]) = (&["write", "noscript"], &["@write", "@slow"]);
    match own {
        Own::Lock => Described {
            summary: "Takes a lock on a quorum of nodes. \
                      Without PX or EX it lives as long as the connection.",
            arity: -2,
            flags: &["write", "noscript", "blocking"],
            categories: &["@write", "@slow", "@blocking"],
            key: 1,
            arguments: &[KEY, TOKEN, PX, EX, WAIT],
        },
        Own::Unlock => Described {
            summary: "Gives a lock back, or hands it over to who waits for it.",
            arity: -2,
            flags,
            categories,
            key: 1,
            arguments: &[KEY, TOKEN],
        },
        Own::Renew => Described {
            summary: "Gives a lock a fresh TTL.",
            arity: -2,
            flags,
            categories,
            key: 1,
            arguments: &[KEY, TOKEN, PX, EX],
        },
        Own::Lockgate | Own::Command => Described {
            summary: "Tells of the proxy, its lock nodes and its locks.",
            arity: -2,
            flags: &["admin", "noscript", "loading", "stale"],
            categories: &["@admin", "@slow", "@dangerous"],
            key: 0,
            arguments: &[
                Argument { name: "subcommand", kind: "string", token: None, optional: false },
                Argument { name: "argument", kind: "string", token: None, optional: true },
            ],
        },
    }
}

/// Appends the entry of `COMMAND INFO`.
pub fn info(out: &mut Vec<u8>, own: Own, resp3: bool) {
    let it = described(own);
    let words = |out: &mut Vec<u8>, words: &[&str]| {
        encode::set(out, words.len(), resp3);
        words.iter().for_each(|word| encode::simple(out, word));
    };
    encode::array(out, 10);
    encode::bulk(out, super::name(own).as_bytes());
    encode::integer(out, it.arity);
    words(out, it.flags);
    // First key, last key, step.
    for _ in 0..3 {
        encode::integer(out, it.key);
    }
    words(out, it.categories);
    // Tips, key specifications, subcommands.
    for _ in 0..3 {
        encode::array(out, 0);
    }
}

/// Appends the name and the entry of `COMMAND DOCS`.
pub fn docs(out: &mut Vec<u8>, own: Own, resp3: bool) {
    let it = described(own);
    encode::bulk(out, super::name(own).as_bytes());
    encode::map(out, 4, resp3);
    for (field, value) in
        [("summary", it.summary), ("since", env!("CARGO_PKG_VERSION")), ("group", "generic")]
    {
        encode::bulk(out, field.as_bytes());
        encode::bulk(out, value.as_bytes());
    }
    encode::bulk(out, b"arguments");
    encode::array(out, it.arguments.len());
    for argument in it.arguments {
        let fields = 2 + usize::from(argument.token.is_some()) + usize::from(argument.optional);
        encode::map(out, fields, resp3);
        for (field, value) in [
            ("name", Some(argument.name)),
            ("type", Some(argument.kind)),
            ("token", argument.token),
        ] {
            if let Some(value) = value {
                encode::bulk(out, field.as_bytes());
                encode::bulk(out, value.as_bytes());
            }
        }
        if argument.optional {
            encode::bulk(out, b"flags");
            encode::array(out, 1);
            encode::simple(out, "optional");
        }
    }
}
