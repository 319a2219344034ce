//! Finds out whether a client may lock a key: exactly those clients may that may `SET` it on the
//! data node.
//!
//! The data node is asked with `SET key x NX XX` on the client's own connection. Redis checks who
//! asks before it refuses the contradicting options, so the probe tells and changes nothing.

use std::time::Duration;

use crate::{
    clock::Instant,
    key::{Key, KeyMap},
    resp::{encode, expected::Expected},
};

/// Most keys remembered on one connection. With more, all are forgotten and asked for again.
const MAX_KEYS: usize = 64;

/// Error if the data node's answer does not tell whether the client may.
const NO_ANSWER: &str = "ERR the data node did not tell whether this client may";

/// Answer of the data node to a probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::session) enum Permission {
    /// The client may.
    Granted,
    /// The client may not: the error line for it, without `-` and line end.
    Refused(String),
}

/// Permissions of one connection, remembered for a short time.
#[derive(Debug)]
pub(in crate::session) struct Permissions {
    /// Until when each key's permission holds.
    granted: KeyMap<Instant>,
    /// How long a permission is believed; a change of the ACL is seen after that.
    lifetime: Duration,
}

impl Permissions {
    pub(in crate::session) fn new(lifetime: Duration) -> Permissions {
        Permissions { granted: KeyMap::default(), lifetime }
    }

    /// Whether a recent probe for this key was answered well; while the data node does not answer,
    /// whether any was. It carries out nothing that could change the answer, but what it had carried out
    /// before is not seen.
    pub(in crate::session) fn remembered(&self, key: &Key, now: Instant, is_silent: bool) -> bool {
        self.granted.get(key).is_some_and(|until| is_silent || now < *until)
    }

    /// Notes that the client may lock this key.
    pub(in crate::session) fn remember(&mut self, key: &Key, now: Instant) {
        if self.granted.len() >= MAX_KEYS {
            self.granted.clear();
        }
        self.granted.insert(key.clone(), now + self.lifetime);
    }

    /// Forgets all permissions: the client may have become another user.
    pub(in crate::session) fn forget(&mut self) {
        self.granted = KeyMap::default();
    }
}

/// Appends the probe for `key`.
pub(in crate::session) fn probe(out: &mut Vec<u8>, key: &[u8]) {
    encode::command(out, &[b"SET", key, b"x", b"NX", b"XX"]);
}

/// Appends the probe for LOCKGATE: a client that may ask Redis for INFO may ask Lockgate. Redis has
/// no section of this name, so the reply is short.
pub(in crate::session) fn probe_operator(out: &mut Vec<u8>) {
    encode::command(out, &[b"INFO", b"lockgate"]);
}

/// Appends the probe for what an operator has the proxy do: a client that may kill others' connections
/// may take their locks. There is no such filter, so Redis refuses the words once it has checked who
/// asks, and kills nobody.
pub(in crate::session) fn probe_act(out: &mut Vec<u8>) {
    encode::command(out, &[b"CLIENT", b"KILL", b"lockgate", b"nobody"]);
}

/// The probe sent, which decides how a good answer looks.
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
    /// [`probe`], or a command that only reads the key, with the answer of a client that may.
    Adopted(Expected),
}

/// Errors that Redis gives only after it has checked who asks, so that they prove permission. All
/// other errors refuse: an unknown command (`rename-command`), a data node that is full, a protocol
/// error and protected mode come before that check, and an error of a proxy in front of the data
/// node may mean anything.
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

/// Reads the reply to a probe. A reply that only a permitted client gets is permission; any other
/// is the answer to the command.
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
