//! What is asked of the data node before a guarded write: has it seen a larger fence?
//!
//! One packet: EVAL remembers a fence that is new, WATCH makes EXEC fail should it be
//! written again, GET reads it, and MULTI opens the transaction that the write
//! belongs to. Knows nothing of connections: makes bytes and reads replies.

use std::{collections::VecDeque, time::Duration};

use crate::{
    guard::FENCE_PREFIX,
    key::Key,
    resp::{encode, number},
};

/// Makes the data node remember a fence; answers the largest that it knows.
const RAISE: &[u8] = include_bytes!("../guard/raise.lua");

/// A lock that this connection holds, and the fence it was granted with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// The lock's key on the nodes.
    pub key: Key,
    /// What it was granted with.
    pub fence: u64,
    /// The data node has seen this fence.
    pub raised: bool,
    /// The guarded key for whose sake it is looked at.
    pub wanted_for: Vec<u8>,
}

/// What the data node knows of a claim's fence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// It is the largest.
    Largest,
    /// There is this larger one.
    Fenced(u64),
    /// It is not known there, or not any more.
    Unknown,
}

/// A reply that is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Missing {
    /// Of a command before the question; nothing in it matters.
    Any,
    /// To EVAL or GET: the fence that is known of this claim.
    Fence(usize),
    /// To WATCH.
    Ok,
    /// To MULTI.
    Multi,
}

/// What else is asked in the same packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum With {
    /// MULTI, behind all else.
    Multi,
    /// Nothing: the client sends MULTI itself.
    Nothing,
}

/// The question, while replies to it are missing.
#[derive(Debug)]
pub struct Fences {
    missing: VecDeque<Missing>,
    /// By claim.
    seen: Vec<Option<u64>>,
    /// The first error line, without `-` and line end.
    error: Option<Vec<u8>>,
    /// MULTI was answered with OK.
    in_multi: bool,
}

/// Appends the key at which the data node keeps a lock's largest fence.
fn fence_key(out: &mut Vec<u8>, key: &Key) {
    encode::bulk_of_two(out, FENCE_PREFIX, key);
}

/// Appends the call that makes the data node remember a fence.
pub fn raise(out: &mut Vec<u8>, key: &Key, fence: u64, ttl: Duration) {
    encode::array(out, 6);
    encode::bulk(out, b"EVAL");
    encode::bulk(out, RAISE);
    encode::bulk(out, b"1");
    fence_key(out, key);
    encode::bulk_number(out, fence);
    encode::bulk_number(out, u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX));
}

/// Reads a fence: a bulk string that is a number. None: another reply.
pub fn read_fence(reply: &[u8]) -> Option<u64> {
    let line = reply.strip_prefix(b"$")?.strip_suffix(b"\r\n")?;
    let at = memchr::memchr(b'\n', line)?;
    u64::try_from(number::integer(&line[at + 1..])?).ok()
}

/// The text of an error reply.
pub fn read_error(reply: &[u8]) -> Option<Vec<u8>> {
    Some(reply.strip_prefix(b"-")?.trim_ascii_end().to_vec())
}

impl Fences {
    /// Appends the question about `claims`. So many replies belong to `before`
    /// commands that were put before it.
    pub fn ask(
        out: &mut Vec<u8>,
        claims: &[Claim],
        before: usize,
        with: With,
        ttl: Duration,
    ) -> Fences {
        let mut missing: VecDeque<Missing> = (0..before).map(|_| Missing::Any).collect();
        for (index, claim) in claims.iter().enumerate().filter(|(_, claim)| !claim.raised) {
            raise(out, &claim.key, claim.fence, ttl);
            missing.push_back(Missing::Fence(index));
        }
        encode::array(out, 1 + claims.len());
        let watch = "WATCH";
        #[cfg(feature = "planted")]
        let watch = match std::env::var("LOCKGATE_PLANT") {
            Ok(fault) if fault == "watch" => "EXISTS",
            _ => watch,
        };
        encode::bulk(out, watch.as_bytes());
        claims.iter().for_each(|claim| fence_key(out, &claim.key));
        missing.push_back(Missing::Ok);
        for (index, claim) in claims.iter().enumerate() {
            encode::array(out, 2);
            encode::bulk(out, b"GET");
            fence_key(out, &claim.key);
            missing.push_back(Missing::Fence(index));
        }
        if with == With::Multi {
            encode::command(out, &[b"MULTI"]);
            missing.push_back(Missing::Multi);
        }
        Fences { missing, seen: vec![None; claims.len()], error: None, in_multi: false }
    }

    /// How many replies are missing.
    pub fn missing(&self) -> usize {
        self.missing.len()
    }

    /// Takes in a reply.
    pub fn reply(&mut self, reply: &[u8]) {
        let Some(missing) = self.missing.pop_front() else { return };
        if missing == Missing::Any {
            return;
        }
        if let Some(error) = read_error(reply) {
            self.error.get_or_insert(error);
            return;
        }
        match missing {
            // The last one told counts: GET comes after WATCH.
            Missing::Fence(index) => self.seen[index] = read_fence(reply),
            Missing::Multi => self.in_multi = reply.starts_with(b"+OK"),
            Missing::Any | Missing::Ok => {}
        }
    }

    /// Whether the transaction was opened.
    pub fn in_multi(&self) -> bool {
        self.in_multi
    }

    /// The first error, once all replies are in.
    pub fn error(&self) -> Option<&[u8]> {
        self.error.as_deref()
    }

    /// How each of the claims stands, once all replies are in.
    pub fn standings<'a>(&'a self, claims: &'a [Claim]) -> impl Iterator<Item = Standing> + 'a {
        claims.iter().zip(&self.seen).map(|(claim, seen)| match seen {
            #[cfg(feature = "planted")]
            _ if std::env::var("LOCKGATE_PLANT").is_ok_and(|fault| fault == "compare") => {
                Standing::Largest
            }
            Some(seen) if *seen > claim.fence => Standing::Fenced(*seen),
            Some(seen) if *seen == claim.fence => Standing::Largest,
            _ => Standing::Unknown,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(key: &str, fence: u64, raised: bool) -> Claim {
        Claim { key: Key::from(key), fence, raised, wanted_for: Vec::new() }
    }

    fn asked(claims: &[Claim], with: With) -> (String, Fences) {
        let mut out = Vec::new();
        let fences = Fences::ask(&mut out, claims, 0, with, Duration::from_secs(1));
        (String::from_utf8(out).unwrap(), fences)
    }

    #[test]
    fn what_get_says_behind_watch_counts() {
        let claims = [claim("a", 5, false), claim("b", 7, true)];
        let (sent, mut fences) = asked(&claims, With::Multi);
        assert_eq!(sent.matches("EVAL").count(), 1);
        assert_eq!(sent.matches("GET\r\n$16\r\nlockgate:guard:").count(), 2);
        for reply in ["$1\r\n5\r\n", "+OK\r\n", "$1\r\n6\r\n", "$1\r\n7\r\n", "+OK\r\n"] {
            fences.reply(reply.as_bytes());
        }
        assert_eq!(fences.missing(), 0);
        assert!(fences.in_multi() && fences.error().is_none());
        let standings: Vec<Standing> = fences.standings(&claims).collect();
        assert_eq!(standings, [Standing::Fenced(6), Standing::Largest]);
    }

    #[test]
    fn a_fence_that_was_forgotten_is_not_the_largest() {
        let claims = [claim("a", 5, true)];
        for (reply, expected) in [
            ("$-1\r\n", Standing::Unknown),
            ("_\r\n", Standing::Unknown),
            ("$1\r\n4\r\n", Standing::Unknown),
        ] {
            let (_, mut fences) = asked(&claims, With::Nothing);
            fences.reply(b"+OK\r\n");
            fences.reply(reply.as_bytes());
            assert_eq!(fences.standings(&claims).next(), Some(expected));
        }
    }

    #[test]
    fn the_first_error_is_kept() {
        let (_, mut fences) = asked(&[claim("a", 5, true)], With::Multi);
        fences.reply(b"-NOPERM x\r\n");
        fences.reply(b"-ERR y\r\n");
        fences.reply(b"+OK\r\n");
        assert_eq!(fences.error(), Some(b"NOPERM x".as_slice()));
        assert!(fences.in_multi());
    }
}
