//! The part of Lua in which libraries compare and delete: locals, one kind of comparison,
//! calls, `if` and `return`.
//!
//! It is narrower than Lua 5.1 and never wider: Redis compiles whatever is read here.

/// The deepest nesting of brackets and blocks. Each link of a chain (`.field`, `[1]`, `(…)`) counts
/// too, as following or dropping an expression recurses through the links one by one.
const DEEPEST: usize = 16;

/// A statement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Statement<'a> {
    /// `local a, b = x, y`, with as many values as names.
    Local(Vec<&'a str>, Vec<Expr<'a>>),
    /// `if left == right then … else … end`, or `~=`.
    If {
        /// `==`, not `~=`.
        equal: bool,
        left: Expr<'a>,
        right: Expr<'a>,
        then: Vec<Statement<'a>>,
        otherwise: Vec<Statement<'a>>,
    },
    /// `None`: `return nil` or `return false`, which give the same reply.
    Return(Option<Expr<'a>>),
    /// A call whose answer is not used.
    Call(Expr<'a>),
}

/// An expression.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Expr<'a> {
    Name(&'a str),
    Number(u32),
    Text(&'a [u8]),
    /// `table[1]`.
    Index(Box<Expr<'a>>, u32),
    /// `table.field`.
    Field(Box<Expr<'a>>, &'a str),
    Call(Box<Expr<'a>>, Vec<Expr<'a>>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LuaToken<'a> {
    Name(&'a str),
    /// A reserved word.
    Word(&'a str),
    Number(u32),
    Text(&'a [u8]),
    /// One of `()[],.;=`.
    Sign(u8),
    /// `==`.
    Equal,
    /// `~=`.
    Unequal,
    /// `..`, which no expression here has.
    Join,
}

/// Lua's reserved words, sorted.
const WORDS: [&str; 21] = [
    "and", "break", "do", "else", "elseif", "end", "false", "for", "function", "if", "in", "local",
    "nil", "not", "or", "repeat", "return", "then", "true", "until", "while",
];

/// Reads a body. Returns `None` if it has anything else in it.
pub(super) fn parse(body: &[u8]) -> Option<Vec<Statement<'_>>> {
    let tokens = tokens(body)?;
    let mut parser = Parser { tokens: &tokens, at: 0, depth: 0 };
    let block = parser.block()?;
    (parser.at == tokens.len()).then_some(block)
}

/// Returns the tokens, and for each whether a line ends before it.
pub(super) fn tokens(body: &[u8]) -> Option<Vec<(LuaToken<'_>, bool)>> {
    // The first line that Redis 7 and later allow. Without flags it changes nothing that matters here.
    let mut rest = body.strip_prefix(b"#!lua\n").unwrap_or(body);
    let (mut found, mut is_new_line) = (Vec::new(), false);
    loop {
        let (token, length) = match rest {
            [] => return Some(found),
            [b'\n' | b'\r', ..] => {
                is_new_line = true;
                rest = &rest[1..];
                continue;
            }
            [b' ' | b'\t' | 0x0b | 0x0c, ..] => {
                rest = &rest[1..];
                continue;
            }
            [b'-', b'-', comment @ ..] => {
                let length = comment_length(comment)?;
                is_new_line |= comment[..length].iter().any(|byte| matches!(byte, b'\n' | b'\r'));
                rest = &comment[length..];
                continue;
            }
            [b'a'..=b'z' | b'A'..=b'Z' | b'_', ..] => {
                let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
                let length = rest.iter().take_while(|byte| is_part(byte)).count();
                let name = std::str::from_utf8(&rest[..length]).ok()?;
                let is_word = WORDS.binary_search(&name).is_ok();
                (if is_word { LuaToken::Word(name) } else { LuaToken::Name(name) }, length)
            }
            [b'0'..=b'9', ..] => number(rest)?,
            [quote @ (b'"' | b'\''), text @ ..] => {
                let length = text.iter().position(|byte| byte == quote)?;
                let text = &text[..length];
                if text.iter().any(|byte| matches!(byte, b'\\' | b'\n' | b'\r' | 0)) {
                    return None;
                }
                (LuaToken::Text(text), length + 2)
            }
            [b'=', b'=', ..] => (LuaToken::Equal, 2),
            [b'~', b'=', ..] => (LuaToken::Unequal, 2),
            // Two brackets begin a string, three dots are arguments.
            [b'[', b'[' | b'=', ..] | [b'.', b'.', b'.', ..] => return None,
            [b'.', b'.', ..] => (LuaToken::Join, 2),
            [sign @ (b'(' | b')' | b'[' | b']' | b',' | b'.' | b';' | b'='), ..] => {
                (LuaToken::Sign(*sign), 1)
            }
            _ => return None,
        };
        found.push((token, std::mem::take(&mut is_new_line)));
        rest = &rest[length..];
    }
}

/// Reads a whole number in plain notation. Lua has others, and counts letters, digits and dots behind
/// a number as part of it.
fn number(bytes: &[u8]) -> Option<(LuaToken<'_>, usize)> {
    let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.');
    let length = bytes.iter().take_while(|byte| is_part(byte)).count();
    let text = std::str::from_utf8(&bytes[..length]).ok()?;
    let is_plain = length <= 3 && (text == "0" || !text.starts_with('0'));
    let number = text.parse().ok().filter(|_| is_plain)?;
    Some((LuaToken::Number(number), length))
}

/// Returns the length of a comment behind its `--`.
fn comment_length(comment: &[u8]) -> Option<usize> {
    if let Some(level) = comment.strip_prefix(b"[") {
        let equals = level.iter().take_while(|byte| **byte == b'=').count();
        if level.get(equals) == Some(&b'[') {
            let end = [&b"]"[..], &b"=".repeat(equals), b"]"].concat();
            let from = 1 + equals + 1;
            let at = memchr::memmem::find(&comment[from..], &end)?;
            let text = &comment[from..from + at];
            // Lua 5.1 may refuse `[[` inside of `[[ ]]` (LUA_COMPAT_LSTR). Here no level may have it.
            let is_plain = memchr::memmem::find(text, b"[[").is_none() && !text.contains(&0);
            return is_plain.then_some(from + at + end.len());
        }
    }
    let end = comment.iter().position(|byte| matches!(byte, b'\n' | b'\r'));
    let length = end.unwrap_or(comment.len());
    (!comment[..length].contains(&0)).then_some(length)
}

struct Parser<'t, 'a> {
    tokens: &'t [(LuaToken<'a>, bool)],
    at: usize,
    depth: usize,
}

impl<'a> Parser<'_, 'a> {
    fn peek(&self) -> Option<LuaToken<'a>> {
        self.tokens.get(self.at).map(|(token, _)| *token)
    }

    fn next(&mut self) -> Option<LuaToken<'a>> {
        let token = self.peek()?;
        self.at += 1;
        Some(token)
    }

    fn takes(&mut self, wanted: LuaToken<'_>) -> bool {
        let is_there = self.peek() == Some(wanted);
        self.at += usize::from(is_there);
        is_there
    }

    fn wants(&mut self, wanted: LuaToken<'_>) -> Option<()> {
        self.takes(wanted).then_some(())
    }

    fn name(&mut self) -> Option<&'a str> {
        match self.next()? {
            LuaToken::Name(name) => Some(name),
            _ => None,
        }
    }

    fn deeper<T>(&mut self, read: impl FnOnce(&mut Self) -> Option<T>) -> Option<T> {
        self.depth += 1;
        let read = if self.depth > DEEPEST { None } else { read(self) };
        self.depth -= 1;
        read
    }

    /// Reads statements up to the end of the block, which it leaves unread.
    fn block(&mut self) -> Option<Vec<Statement<'a>>> {
        let mut block = Vec::new();
        loop {
            let is_end = matches!(self.peek(), None | Some(LuaToken::Word("else" | "end")));
            let is_over = matches!(block.last(), Some(Statement::Return(_)));
            if is_end {
                return Some(block);
            }
            if is_over {
                return None;
            }
            block.push(self.deeper(Self::statement)?);
            self.takes(LuaToken::Sign(b';'));
        }
    }

    fn statement(&mut self) -> Option<Statement<'a>> {
        match self.peek()? {
            LuaToken::Word("local") => {
                self.at += 1;
                let mut names = vec![self.name()?];
                while self.takes(LuaToken::Sign(b',')) {
                    names.push(self.name()?);
                }
                self.wants(LuaToken::Sign(b'='))?;
                let mut values = vec![self.expr()?];
                while self.takes(LuaToken::Sign(b',')) {
                    values.push(self.expr()?);
                }
                (names.len() == values.len()).then_some(Statement::Local(names, values))
            }
            LuaToken::Word("if") => {
                self.at += 1;
                let (equal, left, right) = self.comparison()?;
                self.wants(LuaToken::Word("then"))?;
                let then = self.block()?;
                let mut otherwise = Vec::new();
                if self.takes(LuaToken::Word("else")) {
                    otherwise = self.block()?;
                }
                self.wants(LuaToken::Word("end"))?;
                Some(Statement::If { equal, left, right, then, otherwise })
            }
            LuaToken::Word("return") => {
                self.at += 1;
                let is_nil = matches!(self.peek(), Some(LuaToken::Word("nil" | "false")));
                self.at += usize::from(is_nil);
                Some(Statement::Return(if is_nil { None } else { Some(self.expr()?) }))
            }
            LuaToken::Name(_) => match self.expr()? {
                call @ Expr::Call(..) => Some(Statement::Call(call)),
                _ => None,
            },
            _ => None,
        }
    }

    /// Reads a comparison, in any number of brackets.
    fn comparison(&mut self) -> Option<(bool, Expr<'a>, Expr<'a>)> {
        let from = self.at;
        // Brackets around one side, or around all of it.
        if self.takes(LuaToken::Sign(b'(')) {
            let inner = self.deeper(Self::comparison);
            if inner.is_some() && self.takes(LuaToken::Sign(b')')) {
                return inner;
            }
            self.at = from;
        }
        let left = self.expr()?;
        let equal = match self.next()? {
            LuaToken::Equal => true,
            LuaToken::Unequal => false,
            _ => return None,
        };
        Some((equal, left, self.expr()?))
    }

    /// Reads an expression with all links of its chain.
    fn expr(&mut self) -> Option<Expr<'a>> {
        let depth = self.depth;
        let expr = self.chain();
        self.depth = depth;
        expr
    }

    fn chain(&mut self) -> Option<Expr<'a>> {
        let mut expr = match self.next()? {
            LuaToken::Number(number) => return Some(Expr::Number(number)),
            LuaToken::Text(text) => return Some(Expr::Text(text)),
            LuaToken::Name(name) => Expr::Name(name),
            LuaToken::Sign(b'(') => {
                let inner = self.deeper(Self::expr)?;
                self.wants(LuaToken::Sign(b')'))?;
                inner
            }
            _ => return None,
        };
        loop {
            match self.tokens.get(self.at) {
                Some((LuaToken::Sign(b'['), _)) => {
                    self.link()?;
                    let LuaToken::Number(at) = self.next()? else { return None };
                    self.wants(LuaToken::Sign(b']'))?;
                    expr = Expr::Index(Box::new(expr), at);
                }
                Some((LuaToken::Sign(b'.'), _)) => {
                    self.link()?;
                    expr = Expr::Field(Box::new(expr), self.name()?);
                }
                // Lua 5.1 refuses a bracket on a new line here as ambiguous.
                Some((LuaToken::Sign(b'('), true)) => return None,
                Some((LuaToken::Sign(b'('), false)) => {
                    self.link()?;
                    expr = Expr::Call(Box::new(expr), self.deeper(Self::arguments)?);
                }
                _ => return Some(expr),
            }
        }
    }

    /// Goes on to the next link of a chain.
    fn link(&mut self) -> Option<()> {
        self.at += 1;
        self.depth += 1;
        (self.depth <= DEEPEST).then_some(())
    }

    fn arguments(&mut self) -> Option<Vec<Expr<'a>>> {
        let mut arguments = Vec::new();
        if self.takes(LuaToken::Sign(b')')) {
            return Some(arguments);
        }
        loop {
            arguments.push(self.expr()?);
            match self.next()? {
                LuaToken::Sign(b',') => {}
                LuaToken::Sign(b')') => return Some(arguments),
                _ => return None,
            }
        }
    }
}
