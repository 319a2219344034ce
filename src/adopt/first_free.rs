//! The script that takes the first free one of its keys, known by what its text means. Laravel's `Redis::funnel` sends
//! it.
//!
//! It reads all of KEYS by one MGET, sets the first that is absent, and answers a name and that key's place. Blanks,
//! comments, quotes, the names of its two variables and the places in ARGV may differ. Whatever else differs makes the
//! body unknown.

use super::{
    lua::{self, LuaToken},
    normal::TtlUnit,
};

/// A script that takes the first free one of its keys, with the places of its arguments in ARGV, from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FirstFree {
    /// The name that it answers before the key's place.
    pub(super) name: usize,
    /// The TTL.
    pub(super) ttl: usize,
    /// What the TTL is counted in.
    pub(super) unit: TtlUnit,
    /// The token.
    pub(super) token: usize,
}

/// Names that a variable would hide from the statements in the loop.
const TABLES: [&str; 3] = ["KEYS", "ARGV", "redis"];

/// Returns what a body does, if it is such a script.
pub(super) fn of(body: &[u8]) -> Option<FirstFree> {
    use LuaToken::{Join, Name, Word};
    let tokens = lua::tokens(body)?;
    let mut rest = ScriptRest(&tokens);
    rest.word("for")?;
    let place = rest.variable()?;
    rest.signs(b",")?;
    let value = rest.variable()?;
    rest.all(&[Word("in"), Name("pairs")])?;
    rest.command(b"(", "mget")?;
    rest.all(&[Name("unpack")])?;
    rest.signs(b"(")?;
    rest.all(&[Name("KEYS")])?;
    rest.signs(b")))")?;
    rest.all(&[Word("do"), Word("if"), Word("not"), Name(value), Word("then")])?;
    rest.command(b"", "set")?;
    rest.all(&[Name("KEYS")])?;
    rest.signs(b"[")?;
    rest.all(&[Name(place)])?;
    rest.signs(b"],")?;
    let token = rest.argument()?;
    rest.signs(b",")?;
    let unit = rest.unit()?;
    rest.signs(b",")?;
    let ttl = rest.argument()?;
    rest.signs(b")")?;
    rest.semicolon();
    rest.word("return")?;
    let name = rest.argument()?;
    rest.all(&[Join, Name(place)])?;
    for _ in 0..2 {
        rest.semicolon();
        rest.word("end")?;
    }
    rest.semicolon();
    // Where both variables have one name, that is the value's.
    (rest.0.is_empty() && place != value).then_some(FirstFree { name, ttl, unit, token })
}

/// The tokens that are still to be read.
struct ScriptRest<'t, 'a>(&'t [(LuaToken<'a>, bool)]);

impl<'a> ScriptRest<'_, 'a> {
    fn next(&mut self) -> Option<LuaToken<'a>> {
        let ((token, is_new_line), rest) = self.0.split_first()?;
        self.0 = rest;
        // Lua 5.1 refuses a bracket on a new line as ambiguous, unless it begins an expression.
        (*token != LuaToken::Sign(b'(') || !is_new_line).then_some(*token)
    }

    fn all(&mut self, wanted: &[LuaToken<'_>]) -> Option<()> {
        wanted.iter().all(|wanted| self.next() == Some(*wanted)).then_some(())
    }

    fn word(&mut self, word: &str) -> Option<()> {
        self.all(&[LuaToken::Word(word)])
    }

    fn signs(&mut self, signs: &[u8]) -> Option<()> {
        signs.iter().all(|sign| self.next() == Some(LuaToken::Sign(*sign))).then_some(())
    }

    fn semicolon(&mut self) {
        if let [(LuaToken::Sign(b';'), _), rest @ ..] = self.0 {
            self.0 = rest;
        }
    }

    fn variable(&mut self) -> Option<&'a str> {
        match self.next()? {
            LuaToken::Name(name) if !TABLES.contains(&name) => Some(name),
            _ => None,
        }
    }

    fn text(&mut self) -> Option<Vec<u8>> {
        match self.next()? {
            LuaToken::Text(text) => Some(text.to_ascii_lowercase()),
            _ => None,
        }
    }

    /// Reads these signs and the beginning of a call of a Redis command, up to the comma behind the command's name.
    fn command(&mut self, before: &[u8], name: &str) -> Option<()> {
        self.signs(before)?;
        self.all(&[LuaToken::Name("redis")])?;
        self.signs(b".")?;
        self.all(&[LuaToken::Name("call")])?;
        self.signs(b"(")?;
        (self.text()? == name.as_bytes()).then_some(())?;
        self.signs(b",")
    }

    /// Reads `ARGV[n]`, and returns n.
    fn argument(&mut self) -> Option<usize> {
        self.all(&[LuaToken::Name("ARGV")])?;
        self.signs(b"[")?;
        let LuaToken::Number(at @ 1..) = self.next()? else { return None };
        self.signs(b"]")?;
        usize::try_from(at).ok()
    }

    fn unit(&mut self) -> Option<TtlUnit> {
        match self.text()?.as_slice() {
            b"ex" => Some(TtlUnit::Seconds),
            b"px" => Some(TtlUnit::Millis),
            _ => None,
        }
    }
}

#[cfg(test)]
#[path = "first_free_tests.rs"]
mod tests;
