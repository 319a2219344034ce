//! Holds the reply to a guarded write, or to the client's EXEC, until it is whole, for the job to decide what the
//! client is told: an error if replicas do not acknowledge the write, or EXEC's reply with those of adopted locks.

use super::{
    fed::{Fed, Heard},
    unwrap::{Whose, elements, is_null},
};
use crate::{
    guard::write,
    resp::reply::{NextReply, ReplyScanner},
};

/// A reply being held.
#[derive(Debug)]
pub(in crate::session) struct HeldReply {
    whose: Whose,
    /// Length of the longest reply that is held, in bytes.
    limit: usize,
    kept: Vec<u8>,
}

impl HeldReply {
    pub(super) fn new(whose: Whose, limit: usize) -> HeldReply {
        HeldReply { whose, limit, kept: Vec::new() }
    }

    /// Number of bytes held.
    pub(super) fn length(&self) -> usize {
        self.kept.len()
    }

    /// Takes a piece of the reply. `ended`: the reply ends with it.
    pub(super) fn feed(&mut self, piece: &[u8], ended: bool) -> Fed {
        let mut fed = Fed { taken: piece.len(), ..Fed::default() };
        if self.kept.len() + piece.len() > self.limit {
            // The write was made, and can neither be told nor denied.
            self.kept = Vec::new();
            fed.heard = Heard::Unreadable;
            return fed;
        }
        self.kept.extend_from_slice(piece);
        if ended {
            fed.heard = decide(self.whose, std::mem::take(&mut self.kept));
        }
        fed
    }
}

/// Takes the client's replies out of a whole reply.
fn decide(whose: Whose, reply: Vec<u8>) -> Heard {
    let head = memchr::memchr(b'\n', &reply).map_or(reply.len(), |end| end + 1);
    match whose {
        Whose::Script | Whose::Batch if reply.starts_with(b"-") => Heard::NotMade(reply),
        Whose::Script => exact(1, reply, 0),
        Whose::Batch => match elements(&reply[..head]) {
            0 => Heard::NotMade(reply),
            made => {
                let last = last_element(&reply, head, made);
                last.map_or(Heard::Unreadable, |last| exact(made, reply, last)).behind(head)
            }
        },
        Whose::Exec if &reply[..head] != b"*1\r\n" => Heard::NotMade(reply),
        Whose::Exec => Heard::Held(1, reply).behind(head),
        Whose::Clients if is_null(&reply) || reply.starts_with(b"-") => Heard::NotMade(reply),
        Whose::Clients => Heard::Held(1, reply),
    }
}

/// Returns where the last of `count` elements behind the array's head begins.
fn last_element(reply: &[u8], head: usize, count: usize) -> Option<usize> {
    let (mut scanner, mut at) = (ReplyScanner::default(), head);
    for _ in 1..count {
        let NextReply::Frame(_) = scanner.next(reply, &mut at) else { return None };
    }
    Some(at)
}

/// Replaces the script's text for a large number by the number. Only the last reply can be such a text.
fn exact(made: usize, mut reply: Vec<u8>, last: usize) -> Heard {
    match reply[last..].strip_prefix(write::INTEGER) {
        Some(b"\r\n") => Heard::Unreadable,
        Some(digits) => {
            let number = [b":", digits].concat();
            reply.truncate(last);
            reply.extend_from_slice(&number);
            Heard::Held(made, reply)
        }
        None => Heard::Held(made, reply),
    }
}

impl Heard {
    /// Removes the first bytes of a held reply.
    fn behind(self, head: usize) -> Heard {
        match self {
            Heard::Held(made, mut reply) => {
                reply.drain(..head);
                Heard::Held(made, reply)
            }
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns what a reply tells that comes in pieces of this many bytes.
    fn told(whose: Whose, reply: &str, piece: usize) -> String {
        let mut held = HeldReply::new(whose, 100);
        let mut pieces = reply.as_bytes().chunks(piece).peekable();
        while let Some(piece) = pieces.next() {
            let fed = held.feed(piece, pieces.peek().is_none());
            assert_eq!((fed.taken, fed.instead.len(), fed.behind.len()), (piece.len(), 0, 0));
            match fed.heard {
                Heard::Nothing => {}
                Heard::Held(made, reply) => {
                    return format!("{made} {}", String::from_utf8(reply).unwrap());
                }
                Heard::NotMade(reply) => {
                    return format!("not made {}", String::from_utf8(reply).unwrap());
                }
                Heard::Unreadable => return "unreadable".into(),
                _ => unreachable!("nothing else is told"),
            }
        }
        "nothing".into()
    }

    #[test]
    fn the_clients_replies_are_taken_out() {
        let long = format!("$95\r\n{}\r\n", "x".repeat(95));
        for (whose, reply, expected) in [
            (Whose::Script, "+OK\r\n", "1 +OK\r\n"),
            (Whose::Script, "-FENCE\r\n", "not made -FENCE\r\n"),
            (Whose::Script, "+INTEGER 9\r\n", "1 :9\r\n"),
            (Whose::Script, "+INTEGER \r\n", "unreadable"),
            (Whose::Script, &long, "unreadable"),
            (Whose::Batch, "*2\r\n+OK\r\n:1\r\n", "2 +OK\r\n:1\r\n"),
            (Whose::Batch, "*2\r\n$5\r\na\r\nbc\r\n+INTEGER 9\r\n", "2 $5\r\na\r\nbc\r\n:9\r\n"),
            // A text that looks like the script's own.
            (Whose::Batch, "*1\r\n$12\r\n\r\n+INTEGER 9\r\n", "1 $12\r\n\r\n+INTEGER 9\r\n"),
            (Whose::Batch, "*2\r\n*1\r\n:1\r\n+INTEGER \r\n", "unreadable"),
            (Whose::Batch, "-FENCE\r\n", "not made -FENCE\r\n"),
            (Whose::Exec, "*1\r\n*2\r\n:1\r\n:2\r\n", "1 *2\r\n:1\r\n:2\r\n"),
            (Whose::Exec, "*-1\r\n", "not made *-1\r\n"),
            (Whose::Exec, "_\r\n", "not made _\r\n"),
            (Whose::Clients, "*2\r\n+OK\r\n+OK\r\n", "1 *2\r\n+OK\r\n+OK\r\n"),
            (Whose::Clients, "*-1\r\n", "not made *-1\r\n"),
            (Whose::Clients, "-EXECABORT\r\n", "not made -EXECABORT\r\n"),
        ] {
            for piece in [1, 3, 200] {
                assert_eq!(told(whose, reply, piece), expected, "{whose:?} {reply} {piece}");
            }
        }
    }
}
