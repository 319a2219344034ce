//! Finds out whether a client may lock a key: it may lock exactly the keys that it may `SET` on the data node.
//!
//! The data node is asked with `SET key x NX XX` on the client's own connection. Redis checks the client's permission
//! before it refuses the contradicting options, so the probe shows the permission and changes nothing.

use std::hash::BuildHasherDefault;

use crate::{
    clock::Instant,
    key::{Key, KeyMap},
    resp::{encode, expected::Expected},
    session::rare::Unchanged,
};

/// Most keys remembered on one connection. Beyond that all are forgotten and asked for again.
const MAX_KEYS: usize = 64;

/// Error where the data node's answer does not show whether the client may.
const NO_ANSWER: &str = "ERR the data node did not tell whether this client may";

/// The data node's answer to a probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::session) enum Permission {
    /// The client may.
    Granted,
    /// The client may not: the error line for it, without `-` and line end.
    Refused(String),
}

/// The permissions of one connection, remembered for a short time.
#[derive(Debug, Default)]
pub(in crate::session) struct Permissions {
    /// Until when each key's permission holds.
    granted: KeyMap<Instant>,
    /// The same of families: for how many permits.
    families: KeyMap<(usize, Instant)>,
}

impl Unchanged for Permissions {
    const UNCHANGED: &'static Permissions = &Permissions {
        granted: KeyMap::with_hasher(BuildHasherDefault::new()),
        families: KeyMap::with_hasher(BuildHasherDefault::new()),
    };
}

impl Permissions {
    /// Whether a recent probe for this key was permitted; while the data node does not answer, an older one counts too.
    /// A silent data node carries out nothing that could change the answer, but a change from before its silence is
    /// not seen.
    pub(in crate::session) fn remembered(&self, key: &Key, now: Instant, is_silent: bool) -> bool {
        self.granted.get(key).is_some_and(|until| is_silent || now < *until)
    }

    /// Notes that the client may lock this key, which is believed until `until`: a change of the ACL takes effect then.
    pub(in crate::session) fn remember(&mut self, key: &Key, until: Instant) {
        if self.granted.len() >= MAX_KEYS {
            self.granted.clear();
        }
        self.granted.insert(key.clone(), until);
    }

    /// Whether recent probes for all permits of this family were permitted, as [`Permissions::remembered`].
    pub(in crate::session) fn remembered_family(
        &self,
        family: &Key,
        n: usize,
        now: Instant,
        is_silent: bool,
    ) -> bool {
        let known = self.families.get(family);
        known.is_some_and(|(known, until)| n <= *known && (is_silent || now < *until))
    }

    /// Notes that the client may lock so many permits of this family, as [`Permissions::remember`].
    pub(in crate::session) fn remember_family(&mut self, family: &Key, n: usize, until: Instant) {
        if self.families.len() >= MAX_KEYS {
            self.families.clear();
        }
        self.families.insert(family.clone(), (n, until));
    }
}

/// Appends the probe for `key`.
pub(in crate::session) fn probe(out: &mut Vec<u8>, key: &[u8]) {
    encode::command(out, &[b"SET", key, b"x", b"NX", b"XX"]);
}

/// Appends the probe for LOCKGATE: a client that may ask Redis for INFO may ask Lockgate. Redis has no section of
/// this name, so the reply is short.
pub(in crate::session) fn probe_operator(out: &mut Vec<u8>) {
    encode::command(out, &[b"INFO", b"lockgate"]);
}

/// Appends the probe for what an operator makes the proxy do: a client that may kill others' connections may take
/// their locks. CLIENT KILL has no such filter, so Redis checks the client's permission, refuses the words, and kills
/// no connection.
pub(in crate::session) fn probe_act(out: &mut Vec<u8>) {
    encode::command(out, &[b"CLIENT", b"KILL", b"lockgate", b"nobody"]);
}

/// The probe that was sent, which decides how a good answer looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::session) enum Probe {
    /// [`probe`].
    Lock,
    /// [`probe_operator`].
    Operator,
    /// [`probe_act`].
    Act,
    /// COMMAND COUNT.
    Commands,
    /// [`probe`], or a command that only reads the key, with the answer that a permitted client gets.
    Adopted(Expected),
}

/// Errors that Redis gives only after it has checked the client's permission, so that they prove it. All other errors
/// refuse: an unknown command (`rename-command`), a data node that is full, a protocol error and protected mode come
/// before that check, and an error of a proxy in front of the data node may mean anything.
const BEHIND: [&[u8]; 14] = [
    b"READONLY",
    b"OOM",
    b"MISCONF",
    b"LOADING",
    b"BUSY",
    b"MASTERDOWN",
    b"NOREPLICAS",
    b"CLUSTERDOWN",
    b"MOVED",
    b"ASK",
    b"TRYAGAIN",
    b"CROSSSLOT",
    // These come after the check too: Redis reads the options, or the type of the key, last.
    b"ERR syntax error",
    b"WRONGTYPE",
];

/// Reads the reply to a probe. A reply that only a permitted client gets is permission; any other reply is the answer
/// to the command.
pub(in crate::session) fn read(asked: Probe, reply: &[u8]) -> Permission {
    let line = reply.trim_ascii_end();
    let is_answer = match (asked, line.first()) {
        (_, Some(b'-')) => {
            let error = &line[1..];
            BEHIND.iter().any(|code| {
                error.strip_prefix(*code).is_some_and(|rest| rest.is_empty() || rest[0] == b' ')
            })
        }
        (Probe::Lock, _) => Expected::Set.takes(reply),
        (Probe::Operator, _) => Expected::Text.takes(reply),
        (Probe::Act, _) => false,
        (Probe::Commands, _) => Expected::Number.takes(reply),
        (Probe::Adopted(expected), _) => expected.takes(reply),
    };
    if is_answer {
        return Permission::Granted;
    }
    let Some(error) = line.strip_prefix(b"-") else {
        return Permission::Refused(NO_ANSWER.to_owned());
    };
    if matches!(asked, Probe::Adopted(_)) {
        return Permission::Refused(String::from_utf8_lossy(error).into_owned());
    }
    // The client did not say SET.
    Permission::Refused(String::from_utf8_lossy(error).replacen("'set'", "'lock'", 1))
}

#[cfg(test)]
#[path = "authorize_tests.rs"]
mod tests;
