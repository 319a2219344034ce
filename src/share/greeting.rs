//! Who a client has said that it is: the words that bring another connection into the same state.

use std::sync::Arc;

use super::share_metrics::PinCause;
use crate::resp::{
    encode,
    words::{self, Spans, Walk, WordStep},
};

/// Most bytes of names that are remembered for one client. Beyond them it gets a connection of its own.
const MOST_NAMES: usize = 1024;

/// The user and password of an AUTH that the data node has accepted. Zeroed when nobody needs them any more.
#[derive(PartialEq, Eq, Hash)]
struct Credentials(Vec<u8>);

impl Drop for Credentials {
    fn drop(&mut self) {
        self.0.fill(0);
        // The compiler must not take the zeros for a useless write.
        std::hint::black_box(&self.0);
    }
}

/// The state that clients of one link share.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub(super) struct ClientStanding {
    /// Whole AUTH commands, so that clients with other passwords never share. `None`: the client has sent none.
    auth: Option<Arc<Credentials>>,
    /// 0 if the client has not said HELLO with a version.
    protocol: u8,
    database: u32,
}

/// Everything that a client has said of itself.
#[derive(Clone, Default)]
pub(super) struct ClientGreeting {
    pub(super) standing: ClientStanding,
    /// CLIENT SETNAME and SETINFO commands, as Redis last accepted them.
    names: Box<[u8]>,
}

impl ClientStanding {
    /// Whether the client has authenticated by itself.
    pub(super) fn has_authenticated(&self) -> bool {
        self.auth.is_some()
    }

    /// The database, by number.
    pub(super) fn database(&self) -> u32 {
        self.database
    }

    /// Whether the client has authenticated anew since it had the standing `earlier`.
    pub(super) fn has_another_auth(&self, earlier: &ClientStanding) -> bool {
        match (&self.auth, &earlier.auth) {
            (Some(one), Some(other)) => !Arc::ptr_eq(one, other),
            (one, other) => one.is_some() != other.is_some(),
        }
    }

    /// Returns the commands that make a fresh connection the client's user's, in its protocol, each with one reply. A
    /// busy data node takes them too.
    pub(super) fn identity(&self) -> Vec<Vec<u8>> {
        let mut all: Vec<Vec<u8>> = self.auth.iter().map(|auth| auth.0.clone()).collect();
        match self.protocol {
            0 => {}
            2 => all.push(command(&[b"HELLO", b"2"])),
            _ => all.push(command(&[b"HELLO", b"3"])),
        }
        all
    }

    /// Returns the command that selects the client's database, if there must be one.
    pub(super) fn place(&self) -> Vec<Vec<u8>> {
        match self.database {
            0 => Vec::new(),
            database => vec![command(&[b"SELECT", database.to_string().as_bytes()])],
        }
    }
}

/// The number by which HELLO calls the connection of a client that shares: no connection has it, so that CLIENT TRACKING
/// with REDIRECT, KILL and UNBLOCK find none, and not one of another client. Programs in JavaScript can hold it.
const NO_ID: &[u8] = b"9007199254740991";

/// Puts [`NO_ID`] into a reply to HELLO, in place of the number of the connection that asked.
pub(super) fn without_id(reply: Vec<u8>) -> Vec<u8> {
    const BEFORE: &[u8] = b"$2\r\nid\r\n:";
    let Some(from) = memchr::memmem::find(&reply, BEFORE).map(|at| at + BEFORE.len()) else {
        return reply;
    };
    let digits = reply[from..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    [&reply[..from], NO_ID, &reply[from + digits..]].concat()
}

impl ClientGreeting {
    /// Takes in a greeting that the data node has accepted.
    ///
    /// # Errors
    /// Why the client cannot share if it is to be greeted so.
    pub(super) fn accepted(&mut self, words: &Spans<'_>) -> Result<(), PinCause> {
        let is = |word: &[u8], name: &str| word.eq_ignore_ascii_case(name.as_bytes());
        match &words[..] {
            [name, secret @ ..] if is(name, "AUTH") => self.authenticated(secret),
            [name, database] if is(name, "SELECT") => {
                let number = std::str::from_utf8(database).ok().and_then(|text| text.parse().ok());
                self.standing.database = number.ok_or(PinCause::Select)?;
            }
            [name, version, options @ ..] if is(name, "HELLO") => {
                self.standing.protocol = if *version == b"2" { 2 } else { 3 };
                let mut options = options.iter();
                while let Some(option) = options.next() {
                    if is(option, "AUTH") {
                        let (Some(user), Some(password)) = (options.next(), options.next()) else {
                            return Err(PinCause::Other);
                        };
                        self.authenticated(&[*user, *password]);
                    } else if is(option, "SETNAME") {
                        let name = options.next().ok_or(PinCause::Other)?;
                        self.named(&[b"CLIENT", b"SETNAME", *name])?;
                    }
                }
            }
            [name, ..] if is(name, "CLIENT") => self.named(words)?,
            _ => {}
        }
        Ok(())
    }

    fn authenticated(&mut self, secret: &[&[u8]]) {
        let mut bytes = Vec::new();
        encode::command(&mut bytes, &[&[&b"AUTH"[..]], secret].concat());
        self.standing.auth = Some(Arc::new(Credentials(bytes)));
    }

    /// Remembers a CLIENT SETNAME or SETINFO in place of what it changes.
    ///
    /// # Errors
    /// If there is no room for it.
    fn named(&mut self, words: &[&[u8]]) -> Result<(), PinCause> {
        let mut names = Vec::new();
        for name in commands(&self.names) {
            if attribute(&words::of(name)) != attribute(words) {
                names.extend_from_slice(name);
            }
        }
        encode::command(&mut names, words);
        if names.len() > MOST_NAMES {
            return Err(PinCause::Names);
        }
        self.names = names.into();
        Ok(())
    }

    /// Returns the name that the client gave itself.
    pub(super) fn name(&self) -> Option<Vec<u8>> {
        self.told(b"SETNAME")
    }

    /// Returns the name of the client's library.
    pub(super) fn library(&self) -> Option<Vec<u8>> {
        self.told(b"SETINFOLIB-NAME")
    }

    fn told(&self, wanted: &[u8]) -> Option<Vec<u8>> {
        commands(&self.names).find_map(|name| {
            let words = words::of(name);
            let value = words.last().filter(|value| !value.is_empty())?;
            (attribute(&words) == wanted).then(|| value.to_vec())
        })
    }

    /// Returns the commands that bring a connection with the client's identity into its state, each with one reply.
    pub(super) fn place(&self) -> Vec<Vec<u8>> {
        let mut all = self.standing.place();
        all.extend(commands(&self.names).map(<[u8]>::to_vec));
        all
    }
}

fn command(words: &[&[u8]]) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode::command(&mut bytes, words);
    bytes
}

/// Returns what a CLIENT SETNAME or SETINFO sets: the words between the first and the last.
fn attribute(words: &[&[u8]]) -> Vec<u8> {
    let between = words.get(1..words.len().saturating_sub(1)).unwrap_or_default();
    between.concat().to_ascii_uppercase()
}

/// Splits bytes into the commands that they are.
fn commands(mut bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let WordStep::End(length) = Walk::default().finish(bytes) else { return None };
        let (first, rest) = bytes.split_at_checked(length)?;
        bytes = rest;
        Some(first)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(all: &[&[&str]]) -> (ClientGreeting, bool) {
        let (mut greeting, mut is_whole) = (ClientGreeting::default(), true);
        for words in all {
            let mut bytes = Vec::new();
            let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
            encode::command(&mut bytes, &words);
            is_whole &= greeting.accepted(&words::of(&bytes)).is_ok();
        }
        (greeting, is_whole)
    }

    fn said(greeting: &ClientGreeting) -> String {
        let all = [greeting.standing.identity(), greeting.place()].concat().concat();
        let lines = String::from_utf8(all).unwrap();
        let words = lines.split("\r\n").filter(|line| !line.is_empty() && !line.starts_with('$'));
        words
            .map(|word| if word.starts_with('*') { "/" } else { word })
            .collect::<Vec<_>>()
            .join(" ")
    }

    #[test]
    fn another_connection_is_brought_into_the_same_state() {
        for (all, wanted) in [
            (&[&["HELLO"][..]][..], ""),
            (
                &[&["hello", "3", "AUTH", "u", "p", "setname", "n"]],
                "/ AUTH u p / HELLO 3 / CLIENT SETNAME n",
            ),
            (&[&["AUTH", "p"], &["SELECT", "3"], &["HELLO", "2"]], "/ AUTH p / HELLO 2 / SELECT 3"),
            (&[&["AUTH", "p"], &["AUTH", "u", "q"], &["SELECT", "0"]], "/ AUTH u q"),
            (&[&["client", "setinfo", "LIB-NAME", "x"]], "/ client setinfo LIB-NAME x"),
            (
                &[&["HELLO", "3", "SETNAME", "AUTH", "AUTH", "AUTH", "SETNAME"]],
                "/ AUTH AUTH SETNAME / HELLO 3 / CLIENT SETNAME AUTH",
            ),
        ] {
            let (greeting, is_whole) = after(all);
            assert_eq!((said(&greeting).as_str(), is_whole), (wanted, true), "{all:?}");
        }
        let again = ["CLIENT", "setname", "n"];
        let (greeting, _) = after(&[&again, &["client", "SETINFO", "LIB-NAME", "x"], &again]);
        assert_eq!(said(&greeting), "/ client SETINFO LIB-NAME x / CLIENT setname n");
        assert_eq!((greeting.name(), greeting.library()), (Some(b"n".into()), Some(b"x".into())));
        let (unnamed, _) = after(&[&again, &["CLIENT", "SETNAME", ""]]);
        assert_eq!((unnamed.name(), unnamed.library()), (None, None));
        assert!(!after(&[&["CLIENT", "SETNAME", &"n".repeat(MOST_NAMES)]]).1);
    }

    #[test]
    fn only_those_share_who_have_said_the_same() {
        let standing = |all: &[&[&str]]| after(all).0.standing;
        let mine = standing(&[&["AUTH", "u", "p"], &["HELLO", "3"]]);
        assert!(mine == standing(&[&["HELLO", "3", "AUTH", "u", "p", "SETNAME", "other"]]));
        for other in [
            &[&["AUTH", "u", "P"][..], &["HELLO", "3"]][..],
            &[&["AUTH", "p"], &["HELLO", "3"]],
            &[&["HELLO", "3"]],
            &[&["AUTH", "u", "p"]],
            &[&["AUTH", "u", "p"], &["HELLO", "3"], &["SELECT", "1"]],
        ] {
            assert!(mine != standing(other), "{other:?}");
        }
    }
}
