//! Compare-and-delete and compare-and-expire in Lua, known by what their text means.
//!
//! Libraries write the two in dozens of ways: other quotes, names, blanks, comments, an `if` the
//! other way round. A body is read by a grammar that has only what they need, and followed along
//! its two ways: the token is the holder's, or it is not. Whatever the grammar does not have, or a
//! way that does anything else, makes the body unknown: a body is never taken for what it is not.
//! [`of`] is for bodies with one key.

use std::time::Duration;

use smallvec::SmallVec;

use super::lua::{self, Expr, Statement};

/// What a TTL is counted in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum TtlUnit {
    /// The unit of EX and EXPIRE.
    Seconds,
    /// The unit of PX and PEXPIRE.
    Millis,
}

impl TtlUnit {
    /// Returns this many of the unit; none if the number is below 0.
    pub(super) fn times(self, count: i64) -> Duration {
        let count = u64::try_from(count).unwrap_or(0);
        match self {
            TtlUnit::Seconds => Duration::from_secs(count),
            TtlUnit::Millis => Duration::from_millis(count),
        }
    }
}

/// What a body does if the key has the token, with the places of its arguments in ARGV,
/// from 1. Otherwise it does nothing and answers 0, or nil.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Normal {
    /// Deletes the key and answers 1.
    Release {
        /// The token.
        token: usize,
        /// Whether the answer is nil where the key is absent or another's.
        is_nil: bool,
    },
    /// Gives the key a TTL and answers 1.
    Extend {
        /// The token.
        token: usize,
        /// The TTL.
        ttl: usize,
        /// What the TTL is counted in.
        unit: TtlUnit,
        /// Whether SET writes the key anew. A TTL of 0 or less is an error for SET; EXPIRE deletes the
        /// key by it and answers 1.
        is_set: bool,
        /// Whether the answer is nil where the key is absent or another's.
        is_nil: bool,
    },
}

/// The value of an expression.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Value<'a> {
    /// The table KEYS.
    Keys,
    /// The table ARGV.
    Argv,
    /// The table redis.
    Redis,
    /// `redis.call` or, where `true`, `redis.pcall`.
    Call(bool),
    /// `KEYS[1]`.
    Key,
    /// An argument, from 1.
    Argument(usize),
    /// What GET answered.
    Got,
    /// What the command that writes answered.
    Result,
    /// `nil` or `false`.
    Nil,
    /// The function `tonumber`.
    ToNumber,
    /// The number that an argument is, from 1.
    NumberOf(usize),
    Number(u32),
    Text(&'a [u8]),
}

/// The command that writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WriteCall<'a> {
    Delete,
    Expire { ttl: usize, unit: TtlUnit },
    Set { value: Value<'a>, ttl: usize, unit: TtlUnit },
}

/// A way through the body, as far as it was followed.
#[derive(Debug, Clone, Default)]
struct BodyWay<'a> {
    names: Vec<(&'a str, Value<'a>)>,
    /// Whether GET was called.
    has_read: bool,
    /// Whether the key has the token; `None`: it has not been compared.
    is_mine: Option<bool>,
    /// What was written, and whether by `redis.pcall`.
    wrote: Option<(WriteCall<'a>, bool)>,
}

/// Whether a body with one key is a compare-and-delete or a compare-and-expire.
pub fn is_lock_script(body: &[u8]) -> bool {
    of(body).is_some()
}

/// Returns what a body with one key does, if it is one of the two.
pub(crate) fn of(body: &[u8]) -> Option<Normal> {
    let block = lua::parse(body)?;
    let mut way = BodyWay::default();
    for (at, statement) in block.iter().enumerate() {
        match statement {
            Statement::Local(names, values) => way.bind(names, values)?,
            Statement::If { equal, left, right, then, otherwise } => {
                let token = match (way.value(left)?, way.value(right)?) {
                    (Value::Got, Value::Argument(token)) | (Value::Argument(token), Value::Got) => {
                        token
                    }
                    _ => return None,
                };
                let rest = &block[at + 1..];
                let (mine, other) = if *equal { (then, otherwise) } else { (otherwise, then) };
                let mine = way.follow(true, mine, rest)?;
                let other = way.follow(false, other, rest)?;
                return judge(token, mine, other);
            }
            Statement::Return(_) | Statement::Call(_) => return None,
        }
    }
    None
}

/// What was written on a way, and what it answers.
type Ending<'a> = (Option<(WriteCall<'a>, bool)>, Value<'a>);

fn judge<'a>(token: usize, mine: Ending<'a>, other: Ending<'a>) -> Option<Normal> {
    let ((Some((command, is_caught)), answer), (None, otherwise)) = (mine, other) else {
        return None;
    };
    let is_nil = match otherwise {
        Value::Number(0) => false,
        Value::Nil => true,
        _ => return None,
    };
    // An error that is caught and not returned would look like success.
    let is_told = answer == Value::Result;
    let is_one = answer == Value::Number(1) && !is_caught;
    match command {
        WriteCall::Delete if is_told || is_one => Some(Normal::Release { token, is_nil }),
        WriteCall::Expire { ttl, unit } if is_told || is_one => {
            Some(Normal::Extend { token, ttl, unit, is_set: false, is_nil })
        }
        WriteCall::Set { value, ttl, unit } if is_one => {
            let is_token = value == Value::Got || value == Value::Argument(token);
            is_token.then_some(Normal::Extend { token, ttl, unit, is_set: true, is_nil })
        }
        _ => None,
    }
}

impl<'a> BodyWay<'a> {
    /// Follows one side of the comparison and what stands behind it, up to what it returns.
    fn follow(
        &self,
        is_mine: bool,
        side: &[Statement<'a>],
        rest: &[Statement<'a>],
    ) -> Option<Ending<'a>> {
        let mut way = BodyWay { is_mine: Some(is_mine), ..self.clone() };
        for (block, is_inner) in [(side, true), (rest, false)] {
            if !is_inner {
                // The names of the inner block end with it.
                way.names.truncate(self.names.len());
            }
            for statement in block {
                match statement {
                    Statement::Local(names, values) => way.bind(names, values)?,
                    Statement::Call(call) => {
                        way.value(call)?;
                    }
                    Statement::Return(value) => {
                        let value = match value {
                            Some(value) => way.value(value)?,
                            None => Value::Nil,
                        };
                        return Some((way.wrote, value));
                    }
                    Statement::If { .. } => return None,
                }
            }
        }
        // A body that returns nothing answers nil.
        Some((way.wrote, Value::Nil))
    }

    fn bind(&mut self, names: &[&'a str], values: &[Expr<'a>]) -> Option<()> {
        let values =
            values.iter().map(|value| self.value(value)).collect::<Option<SmallVec<[_; 4]>>>()?;
        self.names.extend(names.iter().copied().zip(values));
        Some(())
    }

    fn value(&mut self, expr: &Expr<'a>) -> Option<Value<'a>> {
        match expr {
            Expr::Name(name) => {
                let bound = self.names.iter().rev().find(|(bound, _)| bound == name);
                match (bound, *name) {
                    (Some((_, value)), _) => Some(*value),
                    (None, "KEYS") => Some(Value::Keys),
                    (None, "ARGV") => Some(Value::Argv),
                    (None, "redis") => Some(Value::Redis),
                    (None, "tonumber") => Some(Value::ToNumber),
                    _ => None,
                }
            }
            Expr::Number(number) => Some(Value::Number(*number)),
            Expr::Text(text) => Some(Value::Text(text)),
            Expr::Index(table, at) => match (self.value(table)?, *at) {
                (Value::Keys, 1) => Some(Value::Key),
                (Value::Argv, at @ 1..) => Some(Value::Argument(at as usize)),
                _ => None,
            },
            Expr::Field(table, field) => match (self.value(table)?, *field) {
                (Value::Redis, "call") => Some(Value::Call(false)),
                (Value::Redis, "pcall") => Some(Value::Call(true)),
                _ => None,
            },
            Expr::Call(function, arguments) => {
                let function = self.value(function)?;
                let arguments = arguments
                    .iter()
                    .map(|argument| self.value(argument))
                    .collect::<Option<SmallVec<[_; 8]>>>()?;
                match (function, &arguments[..]) {
                    (Value::Call(is_caught), arguments) => self.call(arguments, is_caught),
                    // A text that is no whole number is an error here, whatever Lua makes of it.
                    (Value::ToNumber, [Value::Argument(at)]) => Some(Value::NumberOf(*at)),
                    _ => None,
                }
            }
        }
    }

    fn call(&mut self, arguments: &[Value<'a>], is_caught: bool) -> Option<Value<'a>> {
        let [Value::Text(name), Value::Key, rest @ ..] = arguments else { return None };
        let name = name.to_ascii_lowercase();
        if name == b"get" {
            let is_first = rest.is_empty() && self.is_mine.is_none() && !self.has_read;
            self.has_read = true;
            return is_first.then_some(Value::Got);
        }
        let command = match (name.as_slice(), rest) {
            (b"del" | b"unlink", []) => WriteCall::Delete,
            (b"expire", [Value::Argument(ttl) | Value::NumberOf(ttl)]) => {
                WriteCall::Expire { ttl: *ttl, unit: TtlUnit::Seconds }
            }
            (b"pexpire", [Value::Argument(ttl) | Value::NumberOf(ttl)]) => {
                WriteCall::Expire { ttl: *ttl, unit: TtlUnit::Millis }
            }
            (b"set", [value, Value::Text(option), Value::Argument(ttl)]) => {
                WriteCall::Set { value: *value, ttl: *ttl, unit: unit(option)? }
            }
            (b"set", [value, Value::Text(option), Value::Argument(ttl), Value::Text(xx)])
            | (b"set", [value, Value::Text(xx), Value::Text(option), Value::Argument(ttl)])
                if xx.eq_ignore_ascii_case(b"xx") =>
            {
                WriteCall::Set { value: *value, ttl: *ttl, unit: unit(option)? }
            }
            _ => return None,
        };
        if self.is_mine != Some(true) || self.wrote.is_some() {
            return None;
        }
        self.wrote = Some((command, is_caught));
        Some(Value::Result)
    }
}

fn unit(option: &[u8]) -> Option<TtlUnit> {
    match option.to_ascii_lowercase().as_slice() {
        b"ex" => Some(TtlUnit::Seconds),
        b"px" => Some(TtlUnit::Millis),
        _ => None,
    }
}

#[cfg(test)]
#[path = "normal_tests.rs"]
mod tests;
