//! Where a command ends and what it is called: an incremental span scanner.
//!
//! [`RequestScanner::next`] is given the bytes as they arrive and holds none of
//! them. A command is reported as soon as its name is known, that is, before
//! its values have arrived; until then its few bytes are *undecided* and the
//! caller keeps them back and shows them again with more behind them. From the
//! first byte that Redis would refuse, everything is [`Next::Broken`]: such
//! bytes are forwarded, so that Redis words the error.

use std::borrow::Cow;

use smallvec::SmallVec;

use super::{
    inline,
    number::{self, MAX_DIGITS},
};

/// The longest line without an end that Redis reads before it gives up
/// (`PROTO_INLINE_MAX_SIZE`).
pub const INLINE_LIMIT: usize = 64 * 1024;
/// Longest length line: type, digits, `\r` and the byte behind it, which Redis does not check.
const HEADER_LIMIT: usize = 1 + MAX_DIGITS + 2;
/// The longest name that any rule of ours knows (`PUNSUBSCRIBE`).
const NAME_LIMIT: usize = 12;

/// What kind of channels a pub/sub command is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Channels {
    /// SUBSCRIBE, UNSUBSCRIBE.
    Plain,
    /// PSUBSCRIBE, PUNSUBSCRIBE.
    Pattern,
    /// SSUBSCRIBE, SUNSUBSCRIBE.
    Shard,
}

/// The argument of CLIENT REPLY.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplyMode {
    /// Replies are sent.
    On,
    /// No replies are sent.
    Off,
    /// The next command's reply is not sent.
    Skip,
}

/// What COMMAND without names lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Listing {
    /// COMMAND and COMMAND INFO: an array with an entry for each command.
    Info,
    /// COMMAND DOCS: a map from names to entries.
    Docs,
}

/// A command's name, as far as a rule of ours depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Name {
    /// One that the proxy may answer.
    Own(Own),
    /// An empty line, `*0` or `*-1`: no command at all, and no reply.
    Blank,
    /// MULTI.
    Multi,
    /// EXEC.
    Exec,
    /// WATCH.
    Watch,
    /// UNWATCH.
    Unwatch,
    /// DISCARD.
    Discard,
    /// SELECT.
    Select,
    /// SUBSCRIBE and its kin.
    Subscribe(Channels),
    /// UNSUBSCRIBE and its kin.
    Unsubscribe(Channels),
    /// CLIENT REPLY with a valid argument.
    ClientReply(ReplyMode),
    /// COMMAND, COMMAND INFO or COMMAND DOCS without names.
    Listing(Listing),
    /// ASKING or CLIENT CACHING: a flag for the next command only.
    NextOnly,
    /// AUTH.
    Auth,
    /// HELLO.
    Hello,
    /// RESET.
    Reset,
    /// QUIT.
    Quit,
    /// MONITOR.
    Monitor,
    /// SYNC or PSYNC.
    Sync,
    /// REPLCONF: a replica's command, with or without a reply.
    Replconf,
    /// Anything else: one reply.
    Other,
}

/// The commands that the proxy answers itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Own {
    /// LOCK.
    Lock,
    /// UNLOCK.
    Unlock,
    /// RENEW.
    Renew,
    /// LOCK.ATTACH.
    Attach,
    /// LOCK.DETACH.
    Detach,
    /// LOCKGATE.
    Lockgate,
    /// COMMAND INFO or DOCS about one of these.
    Command,
}

/// The command of ours that is called so, in any case.
pub fn own_by_name(name: &[u8]) -> Option<Own> {
    match name_of(name) {
        Known::Name(Name::Own(own)) => Some(own),
        _ => None,
    }
}

/// What the scanner found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// A command begins.
    Command {
        /// What it is called.
        name: Name,
        /// Number of words, the name included.
        arguments: usize,
        /// Where its first byte is.
        at: usize,
    },
    /// All bytes were seen; what follows belongs to a command already reported,
    /// or begins a new one.
    End,
    /// The bytes from the position on begin a command whose name is not yet known.
    Undecided,
    /// Not what Redis reads: it will answer with a protocol error and close.
    Broken,
}

/// Finds commands in a stream of bytes. Knows nothing of connections.
#[derive(Debug, Default)]
pub struct RequestScanner {
    phase: Phase,
    /// A length line that was cut by the end of the bytes.
    line: [u8; HEADER_LIMIT],
    line_len: usize,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Between commands.
    #[default]
    Start,
    /// Before the length line of the next of `left` arguments.
    Header { left: usize },
    /// `bytes` of a value and its line end are still to come, then `left` arguments.
    Value { bytes: u64, left: usize },
}

/// A line's number, if the line is whole.
pub(super) enum Line {
    Number { value: i64, length: usize },
    Incomplete,
    Bad,
}

impl RequestScanner {
    /// Whether the last command reported has been seen to its end.
    pub fn between_commands(&self) -> bool {
        self.phase == Phase::Start
    }

    /// Forgets the command just reported; its bytes will be shown again.
    pub fn restart(&mut self) {
        *self = RequestScanner::default();
    }

    /// Looks on from `*pos` and moves it.
    ///
    /// After `Command`, `*pos` is somewhere behind the command's first byte;
    /// the next call goes on from there. After `Undecided` it is where those
    /// bytes begin.
    #[inline]
    pub fn next(&mut self, buf: &[u8], pos: &mut usize) -> Next {
        if self.phase != Phase::Start
            && let Some(stopped) = self.skip(buf, pos)
        {
            return stopped;
        }
        self.start(buf, pos)
    }

    /// Skips what is left of the command reported last. None: its end was reached.
    #[inline]
    fn skip(&mut self, buf: &[u8], pos: &mut usize) -> Option<Next> {
        let (mut bytes, mut left) = match self.phase {
            Phase::Start => return None,
            Phase::Value { bytes, left } => (bytes, left),
            Phase::Header { left } => (0, left),
        };
        loop {
            let here = (buf.len() - *pos) as u64;
            if here < bytes {
                *pos = buf.len();
                self.phase = Phase::Value { bytes: bytes - here, left };
                return Some(Next::End);
            }
            *pos += bytes as usize;
            if left == 0 {
                self.phase = Phase::Start;
                return None;
            }
            match self.argument_line(buf, pos) {
                Line::Number { value, .. } if value >= 0 => bytes = value as u64 + 2,
                Line::Incomplete => {
                    self.phase = Phase::Header { left };
                    return Some(Next::End);
                }
                Line::Number { .. } | Line::Bad => {
                    self.phase = Phase::Header { left };
                    return Some(Next::Broken);
                }
            }
            left -= 1;
        }
    }

    /// Reads an argument's length line, which an earlier call may have begun.
    #[inline]
    fn argument_line(&mut self, buf: &[u8], pos: &mut usize) -> Line {
        if self.line_len == 0 {
            let line = line(&buf[*pos..], b'$');
            match line {
                Line::Number { value: 0.., length } => *pos += length,
                Line::Number { .. } => {}
                Line::Incomplete => {
                    let rest = &buf[*pos..];
                    self.line[..rest.len()].copy_from_slice(rest);
                    self.line_len = rest.len();
                    *pos = buf.len();
                }
                Line::Bad => {}
            }
            return line;
        }
        self.cut_line(buf, pos)
    }

    /// Goes on with a line of which at most HEADER_LIMIT bytes came before.
    #[cold]
    fn cut_line(&mut self, buf: &[u8], pos: &mut usize) -> Line {
        while let Some(byte) = buf.get(*pos) {
            self.line[self.line_len] = *byte;
            self.line_len += 1;
            *pos += 1;
            match line(&self.line[..self.line_len], b'$') {
                Line::Incomplete => {}
                done => {
                    self.line_len = 0;
                    return done;
                }
            }
        }
        Line::Incomplete
    }

    fn start(&mut self, buf: &[u8], pos: &mut usize) -> Next {
        let here = &buf[*pos..];
        match here.first() {
            None => Next::End,
            Some(b'*') => self.start_array(here, pos),
            Some(_) => start_inline(here, pos),
        }
    }

    fn start_array(&mut self, here: &[u8], pos: &mut usize) -> Next {
        let begin = *pos;
        let (arguments, mut at) = match line(here, b'*') {
            Line::Number { value, length } if value <= 0 => {
                *pos += length;
                return Next::Command { name: Name::Blank, arguments: 0, at: begin };
            }
            Line::Number { value, length } if value <= i64::from(i32::MAX) => {
                (value as usize, length)
            }
            Line::Incomplete => return Next::Undecided,
            Line::Number { .. } | Line::Bad => return Next::Broken,
        };
        let length = match line(&here[at..], b'$') {
            Line::Number { value, length } if value >= 0 => {
                at += length;
                value as u64
            }
            Line::Incomplete => return Next::Undecided,
            Line::Number { .. } | Line::Bad => return Next::Broken,
        };
        let mut name = Name::Other;
        if length <= NAME_LIMIT as u64 {
            let Some(text) = here.get(at..at + length as usize) else { return Next::Undecided };
            name = match name_of(text) {
                Known::Name(name) => name,
                Known::Container(container) => {
                    match container_rule(container, here, at + length as usize + 2, arguments) {
                        Some(name) => name,
                        None => return Next::Undecided,
                    }
                }
            };
        }
        self.phase = Phase::Value { bytes: length + 2, left: arguments - 1 };
        *pos += at;
        Next::Command { name, arguments, at: begin }
    }
}

/// Reads `<kind><number>\r<any byte>` at the beginning of `buf`.
#[inline]
pub(super) fn line(buf: &[u8], kind: u8) -> Line {
    match *buf {
        // Numbers of one digit and of two are nearly all there are.
        [first, digit @ b'0'..=b'9', b'\r', _, ..] if first == kind => {
            Line::Number { value: i64::from(digit - b'0'), length: 4 }
        }
        [first, ten @ b'1'..=b'9', one @ b'0'..=b'9', b'\r', _, ..] if first == kind => {
            Line::Number { value: i64::from(ten - b'0') * 10 + i64::from(one - b'0'), length: 5 }
        }
        _ => any_line(buf, kind),
    }
}

fn any_line(buf: &[u8], kind: u8) -> Line {
    match buf.first() {
        None => return Line::Incomplete,
        Some(first) if *first != kind => return Line::Bad,
        Some(_) => {}
    }
    let window = &buf[..buf.len().min(HEADER_LIMIT)];
    match window.iter().position(|b| *b == b'\r') {
        // Redis waits for the byte behind `\r` and does not look at it.
        Some(end) if end + 1 < buf.len() => match number::integer(&buf[1..end]) {
            Some(value) => Line::Number { value, length: end + 2 },
            None => Line::Bad,
        },
        // With more digits than any number has, the byte behind `\r` no longer matters.
        Some(_) if window.len() == HEADER_LIMIT => Line::Bad,
        Some(_) => Line::Incomplete,
        None if window.len() == HEADER_LIMIT => Line::Bad,
        None => Line::Incomplete,
    }
}

fn start_inline(here: &[u8], pos: &mut usize) -> Next {
    let Some(end) = memchr::memchr(b'\n', here) else {
        return if here.len() > INLINE_LIMIT { Next::Broken } else { Next::Undecided };
    };
    let text = here[..end].strip_suffix(b"\r").unwrap_or(&here[..end]);
    // Redis looks for the line's end with strchr, which a NUL stops.
    if memchr::memchr(0, text).is_some() {
        return Next::Broken;
    }
    let plain = memchr::memchr2(b'"', b'\'', text).is_none();
    let (name, arguments) = if plain {
        let mut words = text.split(|b| inline::is_space(*b)).filter(|word| !word.is_empty());
        inline_rule(words.next(), words.next(), words.next(), words.count())
    } else {
        match inline::split(text) {
            None => return Next::Broken,
            Some(words) => {
                let word = |n: usize| words.get(n).map(Vec::as_slice);
                inline_rule(word(0), word(1), word(2), words.len().saturating_sub(3))
            }
        }
    };
    let at = *pos;
    *pos += end + 1;
    Next::Command { name, arguments, at }
}

/// Name and number of words of an inline command, from its first three and how many follow.
fn inline_rule(
    first: Option<&[u8]>,
    second: Option<&[u8]>,
    third: Option<&[u8]>,
    more: usize,
) -> (Name, usize) {
    let Some(first) = first else { return (Name::Blank, 0) };
    let words = 1 + usize::from(second.is_some()) + usize::from(third.is_some()) + more;
    let name = match name_of(first) {
        Known::Name(name) => name,
        Known::Container(container) => container_name(container, second, third, words),
    };
    (name, words)
}

enum Known {
    Name(Name),
    /// Its next two words decide, and how many there are.
    Container(Container),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Container {
    Client,
    Command,
}

#[inline]
fn name_of(text: &[u8]) -> Known {
    let is = |name: &str| text.eq_ignore_ascii_case(name.as_bytes());
    // One look at length and first letter keeps ordinary commands cheap.
    let name = match (text.len(), text.first().map(u8::to_ascii_uppercase)) {
        (4, Some(b'L')) if is("LOCK") => Name::Own(Own::Lock),
        (6, Some(b'U')) if is("UNLOCK") => Name::Own(Own::Unlock),
        (5, Some(b'R')) if is("RENEW") => Name::Own(Own::Renew),
        (11, Some(b'L')) if is("LOCK.ATTACH") => Name::Own(Own::Attach),
        (11, Some(b'L')) if is("LOCK.DETACH") => Name::Own(Own::Detach),
        (5, Some(b'M')) if is("MULTI") => Name::Multi,
        (4, Some(b'E')) if is("EXEC") => Name::Exec,
        (5, Some(b'W')) if is("WATCH") => Name::Watch,
        (7, Some(b'U')) if is("UNWATCH") => Name::Unwatch,
        (7, Some(b'D')) if is("DISCARD") => Name::Discard,
        (6, Some(b'S')) if is("SELECT") => Name::Select,
        (9, Some(b'S')) if is("SUBSCRIBE") => Name::Subscribe(Channels::Plain),
        (10, Some(b'P')) if is("PSUBSCRIBE") => Name::Subscribe(Channels::Pattern),
        (10, Some(b'S')) if is("SSUBSCRIBE") => Name::Subscribe(Channels::Shard),
        (11, Some(b'U')) if is("UNSUBSCRIBE") => Name::Unsubscribe(Channels::Plain),
        (12, Some(b'P')) if is("PUNSUBSCRIBE") => Name::Unsubscribe(Channels::Pattern),
        (12, Some(b'S')) if is("SUNSUBSCRIBE") => Name::Unsubscribe(Channels::Shard),
        (6, Some(b'C')) if is("CLIENT") => return Known::Container(Container::Client),
        (7, Some(b'C')) if is("COMMAND") => return Known::Container(Container::Command),
        (8, Some(b'L')) if is("LOCKGATE") => Name::Own(Own::Lockgate),
        (6, Some(b'A')) if is("ASKING") => Name::NextOnly,
        (4, Some(b'A')) if is("AUTH") => Name::Auth,
        (5, Some(b'H')) if is("HELLO") => Name::Hello,
        (5, Some(b'R')) if is("RESET") => Name::Reset,
        (4, Some(b'Q')) if is("QUIT") => Name::Quit,
        (7, Some(b'M')) if is("MONITOR") => Name::Monitor,
        (4, Some(b'S')) if is("SYNC") => Name::Sync,
        (5, Some(b'P')) if is("PSYNC") => Name::Sync,
        (8, Some(b'R')) if is("REPLCONF") => Name::Replconf,
        _ => Name::Other,
    };
    Known::Name(name)
}

/// What a container command of `words` words is, by its second and third.
fn container_name(
    container: Container,
    second: Option<&[u8]>,
    third: Option<&[u8]>,
    words: usize,
) -> Name {
    match (container, second, third) {
        (Container::Client, Some(sub), Some(argument)) if words == 3 => client_name(sub, argument),
        (Container::Client, ..) => Name::Other,
        (Container::Command, None, _) => Name::Listing(Listing::Info),
        (Container::Command, Some(sub), argument) => command_name(sub, argument),
    }
}

/// COMMAND with names is ours only where it may be about commands of ours alone.
fn command_name(sub: &[u8], name: Option<&[u8]>) -> Name {
    let listing = match sub.to_ascii_uppercase().as_slice() {
        b"INFO" => Listing::Info,
        b"DOCS" => Listing::Docs,
        _ => return Name::Other,
    };
    match name {
        None => Name::Listing(listing),
        Some(name) if own_by_name(name).is_some() => Name::Own(Own::Command),
        Some(_) => Name::Other,
    }
}

fn client_name(sub: &[u8], argument: &[u8]) -> Name {
    if sub.eq_ignore_ascii_case(b"CACHING") {
        // Refused with any other word, and then there is no flag.
        let is = |word: &[u8]| argument.eq_ignore_ascii_case(word);
        return if is(b"YES") || is(b"NO") { Name::NextOnly } else { Name::Other };
    }
    if !sub.eq_ignore_ascii_case(b"REPLY") {
        return Name::Other;
    }
    match argument.to_ascii_uppercase().as_slice() {
        b"ON" => Name::ClientReply(ReplyMode::On),
        b"OFF" => Name::ClientReply(ReplyMode::Off),
        b"SKIP" => Name::ClientReply(ReplyMode::Skip),
        _ => Name::Other,
    }
}

/// The same, of a command whose second word begins at `at`; none while undecided.
fn container_rule(container: Container, here: &[u8], at: usize, arguments: usize) -> Option<Name> {
    const LONGEST: usize = 11; // LOCK.ATTACH
    if container == Container::Client && arguments != 3 {
        return Some(Name::Other);
    }
    let mut at = at;
    let mut words: [Option<&[u8]>; 2] = [None, None];
    for word in words.iter_mut().take(arguments - 1) {
        match line(here.get(at..)?, b'$') {
            Line::Number { value, length } if (0..=LONGEST as i64).contains(&value) => {
                let start = at + length;
                *word = Some(here.get(start..start + value as usize)?);
                at = start + value as usize + 2;
            }
            Line::Incomplete => return None,
            // Another subcommand, or bytes that the scanner will call broken.
            Line::Number { .. } | Line::Bad => return Some(Name::Other),
        }
    }
    Some(container_name(container, words[0], words[1], arguments))
}

/// Words where they stand, but for those that had to be freed of quotes.
pub type Words<'a> = SmallVec<[Cow<'a, [u8]>; 7]>;

/// The words of one command of ours.
#[derive(Debug, PartialEq, Eq)]
pub enum Split<'a> {
    /// All there: its words and how many bytes it takes.
    Whole {
        /// The words, the name included.
        words: Words<'a>,
        /// Bytes from the command's first to its last.
        length: usize,
    },
    /// More bytes are needed.
    Incomplete,
    /// More words or bytes than any of our commands has.
    TooLong,
}

/// Takes apart the command that begins at `buf[0]` and that the scanner has
/// reported, if it has at most `max_words` words in at most `max_bytes` bytes.
pub fn split(buf: &[u8], max_words: usize, max_bytes: usize) -> Split<'_> {
    if buf.first() != Some(&b'*') {
        let Some(end) = memchr::memchr(b'\n', buf) else { return Split::Incomplete };
        let Some(words) = inline::split(&buf[..end]) else { return Split::TooLong };
        if words.len() > max_words || end > max_bytes {
            return Split::TooLong;
        }
        let words = words.into_iter().map(Cow::Owned).collect();
        return Split::Whole { words, length: end + 1 };
    }
    let Line::Number { value, length: mut at } = line(buf, b'*') else { return Split::Incomplete };
    if value > max_words as i64 {
        return Split::TooLong;
    }
    let mut words = Words::new();
    for _ in 0..value {
        match line(buf.get(at..).unwrap_or_default(), b'$') {
            Line::Number { value, length } => {
                let start = at + length;
                if value < 0 || value > max_bytes as i64 {
                    return Split::TooLong;
                }
                at = start + value as usize + 2;
                if at > max_bytes {
                    return Split::TooLong;
                }
                let Some(word) = buf.get(start..start + value as usize) else {
                    return Split::Incomplete;
                };
                words.push(Cow::Borrowed(word));
            }
            Line::Incomplete => return Split::Incomplete,
            Line::Bad => return Split::TooLong,
        }
    }
    if at > buf.len() {
        return Split::Incomplete;
    }
    Split::Whole { words, length: at }
}

#[cfg(test)]
#[path = "request_tests.rs"]
mod tests;
