//! What becomes of a lock, and what the client of a command is told, by who holds the lock.

use std::fmt;

/// One thing for each holder that a lock may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ByHolder<T> {
    /// The lock is free.
    pub(crate) absent: T,
    /// The command's token holds the lock.
    pub(crate) own: T,
    /// The command's token holds the lock, which has no TTL.
    pub(crate) endless: T,
    /// Another token holds the lock.
    pub(crate) other: T,
}

impl<T: Copy> ByHolder<T> {
    /// Takes the four in the order of the fields.
    pub(crate) const fn of([absent, own, endless, other]: [T; 4]) -> ByHolder<T> {
        ByHolder { absent, own, endless, other }
    }
}

/// What a command does to a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Act {
    /// Nothing.
    Nothing,
    /// Takes the lock, with the command's TTL.
    Take,
    /// Gives the lock the command's TTL.
    Renew,
    /// Adds the command's TTL to the lock's.
    AddTo,
    /// Frees the lock.
    Free,
}

/// The acts of a command.
pub(crate) type Acts = ByHolder<Act>;

impl Acts {
    pub(crate) const LOOK: Acts = ByHolder::of([Act::Nothing; 4]);
    pub(crate) const TAKE: Acts = Acts { absent: Act::Take, ..Acts::LOOK };
    pub(crate) const RENEW: Acts = Acts { own: Act::Renew, endless: Act::Renew, ..Acts::LOOK };
    pub(crate) const TAKE_OR_RENEW: Acts = Acts { absent: Act::Take, ..Acts::RENEW };
    pub(crate) const ADD_TO: Acts = Acts { own: Act::AddTo, ..Acts::LOOK };
    pub(crate) const FREE: Acts = Acts { own: Act::Free, endless: Act::Free, ..Acts::LOOK };
}

/// The replies of a command.
pub(crate) type Replies = ByHolder<LockReply>;

/// A reply to a command about a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LockReply {
    /// Null.
    Nil,
    /// `+OK`.
    Ok,
    Number(i64),
    /// The bulk string `true`.
    True,
    /// The bulk string `false`.
    False,
    /// The bulk string of a name and the place of the lock among the command's, from 1.
    Place,
    /// The error of aioredlock's scripts.
    Error,
    /// What is left of the TTL, in milliseconds.
    Millis,
    /// What is left of the TTL, in seconds.
    Seconds,
    /// The key's value and its TTL, both of an absent key. No command with pairs is carried out.
    AbsentPair,
    /// The key's value and what is left of its TTL.
    TimedPair,
    /// The key's value and that it has no TTL.
    EndlessPair,
    /// `+QUEUED`.
    Queued,
    /// EXEC's null.
    NullArray,
    /// EXEC's reply to a transaction without a command.
    Empty,
    /// EXEC's reply to a transaction with one command, which was answered by this number.
    OneNumber(i64),
}

impl LockReply {
    /// Reads a script's reply as the tables of scripts have it.
    pub(crate) const fn read(text: &'static str) -> LockReply {
        match text.as_bytes() {
            b"nil" => LockReply::Nil,
            b"+OK" => LockReply::Ok,
            b"ms" => LockReply::Millis,
            b"s" => LockReply::Seconds,
            b"error" => LockReply::Error,
            b"true" => LockReply::True,
            b"false" => LockReply::False,
            b"place" => LockReply::Place,
            b"[nil,-2]" => LockReply::AbsentPair,
            b"[token,ms]" => LockReply::TimedPair,
            b"[token,-1]" => LockReply::EndlessPair,
            [digit @ b'0'..=b'9'] => LockReply::Number((*digit - b'0') as i64),
            [b'-', digit @ b'0'..=b'9'] => LockReply::Number(-((*digit - b'0') as i64)),
            // The tables have no other.
            _ => LockReply::Nil,
        }
    }

    /// Puts in what is left of the TTL, in milliseconds.
    pub(crate) fn with_left(self, left: i64) -> LockReply {
        match self {
            LockReply::Millis => LockReply::Number(left),
            LockReply::Seconds => LockReply::Number((left + 500) / 1000),
            reply => reply,
        }
    }
}

/// Writes a reply as the tables of scripts have it.
impl fmt::Display for LockReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LockReply::Number(number) => return number.fmt(f),
            LockReply::Nil => "nil",
            LockReply::Ok => "+OK",
            LockReply::True => "true",
            LockReply::False => "false",
            LockReply::Place => "place",
            LockReply::Error => "error",
            LockReply::Millis => "ms",
            LockReply::Seconds => "s",
            LockReply::AbsentPair => "[nil,-2]",
            LockReply::TimedPair => "[token,ms]",
            LockReply::EndlessPair => "[token,-1]",
            // No script answers so.
            LockReply::Queued
            | LockReply::NullArray
            | LockReply::Empty
            | LockReply::OneNumber(_) => "",
        })
    }
}

impl Replies {
    /// Reads a script's replies as the tables of scripts have them.
    pub(crate) const fn read([absent, own, endless, other]: [&'static str; 4]) -> Replies {
        ByHolder::of([
            LockReply::read(absent),
            LockReply::read(own),
            LockReply::read(endless),
            LockReply::read(other),
        ])
    }
}

impl fmt::Display for Replies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ByHolder { absent, own, endless, other } = self;
        write!(f, "{absent} {own} {endless} {other}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_shown_as_the_tables_have_them() {
        for text in [
            "nil",
            "+OK",
            "true",
            "false",
            "place",
            "error",
            "ms",
            "s",
            "0",
            "1",
            "5",
            "-1",
            "-4",
            "[nil,-2]",
            "[token,ms]",
            "[token,-1]",
        ] {
            assert_eq!(LockReply::read(text).to_string(), text);
        }
        let replies = Replies::read(["-2", "+OK", "1", "nil"]);
        assert_eq!(replies.to_string(), "-2 +OK 1 nil");
    }
}
