//! The requests and answers of one client, as lines of a file, and back.
//!
//! Times are those of CLOCK_MONOTONIC in microseconds: one clock for all processes of a machine, in any namespace,
//! which is never set.

use std::{
    fmt,
    fs::File,
    io::{self, Write as _},
    path::Path,
    str::FromStr,
};

use rustix::time::{ClockId, clock_gettime};

/// Microseconds since the machine was started.
pub(crate) type Time = u64;

/// Returns the present time.
pub(crate) fn now() -> Time {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec.unsigned_abs() * 1_000_000 + time.tv_nsec.unsigned_abs() / 1000
}

/// The verb of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verb {
    /// LOCK with PX. Several keys, joined by commas, are the permits of which it asks for one.
    Lease,
    /// LOCK without PX. The same goes for its keys.
    Session,
    /// LOCK with SHARED, with and without PX.
    SharedLease,
    SharedSession,
    Unlock,
    Renew,
    Ping,
    /// A read of the length of the list that is written under the lock.
    Read,
    /// LOCK.ATTACH, on another connection.
    Attach,
    /// A library's read of the value that it will change.
    Get,
    /// MLOCK with PX. Its keys, like those of the next two, are joined by commas.
    LeaseAll,
    /// MLOCK without PX.
    SessionAll,
    /// MUNLOCK.
    UnlockAll,
    /// RENEW by the token of a MLOCK that was refused, on another connection: it has nothing to renew.
    Probe,
}

impl Verb {
    /// Whether it asks for a reader's part of a lock.
    pub(crate) fn is_shared(self) -> bool {
        matches!(self, Verb::SharedLease | Verb::SharedSession)
    }
}

/// Returns the keys that a request names.
pub(crate) fn keys(joined: &str) -> impl Iterator<Item = &str> {
    joined.split(',')
}

/// The shape of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Shape {
    /// A command that goes the short way.
    Command,
    /// A command as a line of text, which goes the long way.
    Inline,
    /// EVAL, which goes the long way.
    Script,
    /// MULTI, a command for each entry, EXEC.
    Transaction,
    /// A command for each entry, all in one packet: each is made or refused by itself.
    Pipeline,
}

/// A guarded write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Writing {
    /// The lock.
    pub(crate) key: String,
    /// The fence of the grant that the client believes, or believed, that it has.
    pub(crate) fence: u64,
    /// The number among the client's writes.
    pub(crate) number: u64,
    /// The number of entries that it adds.
    pub(crate) parts: usize,
    pub(crate) shape: Shape,
    /// Whether it goes over the connection that is attached to the lock.
    pub(crate) attached: bool,
}

/// A library's write in place of the value that it has read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Setting {
    /// The lock.
    pub(crate) key: String,
    /// A value that is written only once.
    pub(crate) value: String,
    /// The value that the library has read.
    pub(crate) before: String,
    /// The number of such writes in one pipeline.
    pub(crate) parts: usize,
}

/// What a command of a lock library does to a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IdiomKind {
    /// Takes it if it is free.
    Take,
    /// Gives it a TTL, if the token has it.
    Extend,
    /// Adds to its TTL, if the token has it.
    Add,
    /// Frees it, if the token has it.
    Release,
    /// Tells which token has it.
    Look,
    /// Frees it, whichever token has it.
    Delete,
}

/// A command of a lock library, on an adopted key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Idiom {
    pub(crate) kind: IdiomKind,
    /// The lock.
    pub(crate) key: String,
    /// The token, or `-`.
    pub(crate) token: String,
    /// The TTL in ms, or 0.
    pub(crate) ttl: u64,
    /// The time in ms for which a reply may be under way without shortening the lock.
    pub(crate) aside: u64,
}

impl Idiom {
    /// Returns the time until which a client may count on a lock that it asked for at `sent` and was told of at
    /// `told`.
    pub(crate) fn until(&self, sent: Time, told: Time) -> Time {
        told.min(sent + self.aside * 1000) + self.ttl * 1000
    }
}

/// The outcome of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The answer of a granted LOCK; validity in ms, and the name of a permit.
    Granted {
        token: String,
        fence: u64,
        validity: u64,
        name: Option<String>,
    },
    /// The answer of a granted MLOCK; validity in ms, fences in the order of the keys.
    AllGranted {
        token: String,
        validity: u64,
        fences: Vec<u64>,
    },
    /// The null answer of LOCK or MLOCK, or of an idiom.
    Held,
    /// The answer of UNLOCK, RENEW or a script.
    Number(u64),
    Pong,
    /// The answer of GET.
    Value(String),
    /// The answer of SET, to all SETs of a pipeline; that of an idiom that succeeded.
    Set,
    /// The length of the list behind the written entries.
    Written(u64),
    /// For a pipeline, which entries were written, and the first error's first word.
    Partly {
        made: Vec<bool>,
        word: String,
    },
    /// `-LOCKLOST`.
    Lost,
    /// The first word of another error.
    Error(String),
    /// The connection ended, or could not be made.
    Closed,
    /// No answer came in the time that the client gives it.
    TimedOut,
}

/// One line of a history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Event {
    /// A request is about to be sent.
    Sent { verb: Verb, key: String },
    /// A write is about to be sent.
    Writing(Writing),
    /// A library's write is about to be sent.
    Setting(Setting),
    /// A lock library's command is about to be sent.
    Idiom(Idiom),
    /// The answer to the request before.
    Answered(Outcome),
    /// The client sees that its connection has ended, or is about to end it.
    Closed,
    /// A push: the lock is lost.
    Pushed,
    /// The client is about to be killed.
    Killed,
    /// The client was told to stop and has nothing more to ask.
    Over,
}

/// Writes a history. Each line is one write, so the file of a client that is killed has whole
/// lines.
pub(crate) struct Writer(File);

impl Writer {
    /// Appends to the file.
    pub(crate) fn new(file: &Path) -> io::Result<Writer> {
        Ok(Writer(File::options().create(true).append(true).open(file)?))
    }

    /// Adds an event that happens now.
    pub(crate) fn add(&mut self, event: &Event) {
        self.0.write_all(format!("{} {event}\n", now()).as_bytes()).expect("a history");
    }
}

impl fmt::Display for Event {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Event::Sent { verb, key } => write!(out, "sent {verb:?} {key}"),
            Event::Writing(Writing { key, fence, number, parts, shape, attached }) => {
                let line = if *attached { "attached" } else { "own" };
                write!(out, "writing {key} {fence} {number} {parts} {shape:?} {line}")
            }
            Event::Setting(Setting { key, value, before, parts }) => {
                write!(out, "setting {key} {value} {before} {parts}")
            }
            Event::Idiom(Idiom { kind, key, token, ttl, aside }) => {
                write!(out, "idiom {kind:?} {key} {token} {ttl} {aside}")
            }
            Event::Answered(Outcome::Value(value)) => write!(out, "value {value}"),
            Event::Answered(Outcome::Set) => write!(out, "set"),
            Event::Answered(Outcome::Granted { token, fence, validity, name }) => {
                write!(out, "granted {token} {fence} {validity}")?;
                name.iter().try_for_each(|name| write!(out, " {name}"))
            }
            Event::Answered(Outcome::AllGranted { token, validity, fences }) => {
                let fences: Vec<String> = fences.iter().map(u64::to_string).collect();
                write!(out, "all {token} {validity} {}", fences.join(","))
            }
            Event::Answered(Outcome::Held) => write!(out, "held"),
            Event::Answered(Outcome::Number(number)) => write!(out, "number {number}"),
            Event::Answered(Outcome::Pong) => write!(out, "pong"),
            Event::Answered(Outcome::Written(length)) => write!(out, "written {length}"),
            Event::Answered(Outcome::Partly { made, word }) => {
                let made: String = made.iter().map(|made| if *made { '+' } else { '-' }).collect();
                write!(out, "partly {made} {word}")
            }
            Event::Answered(Outcome::Lost) => write!(out, "lost"),
            Event::Answered(Outcome::Error(word)) => write!(out, "error {word}"),
            Event::Answered(Outcome::Closed) => write!(out, "ended"),
            Event::Answered(Outcome::TimedOut) => write!(out, "timeout"),
            Event::Closed => write!(out, "closed"),
            Event::Pushed => write!(out, "pushed"),
            Event::Killed => write!(out, "killed"),
            Event::Over => write!(out, "over"),
        }
    }
}

impl FromStr for Event {
    type Err = String;

    fn from_str(line: &str) -> Result<Event, String> {
        let words: Vec<&str> = line.split(' ').collect();
        let wrong = || format!("not an event: {line:?}");
        let number = |word: &str| word.parse().map_err(|_| wrong());
        let answered = |outcome| Ok(Event::Answered(outcome));
        match words[..] {
            ["sent", verb, key] => {
                let verb = match verb {
                    "Lease" => Verb::Lease,
                    "Session" => Verb::Session,
                    "SharedLease" => Verb::SharedLease,
                    "SharedSession" => Verb::SharedSession,
                    "Unlock" => Verb::Unlock,
                    "Renew" => Verb::Renew,
                    "Ping" => Verb::Ping,
                    "Read" => Verb::Read,
                    "Attach" => Verb::Attach,
                    "Get" => Verb::Get,
                    "LeaseAll" => Verb::LeaseAll,
                    "SessionAll" => Verb::SessionAll,
                    "UnlockAll" => Verb::UnlockAll,
                    "Probe" => Verb::Probe,
                    _ => return Err(wrong()),
                };
                Ok(Event::Sent { verb, key: key.to_owned() })
            }
            ["writing", key, fence, count, parts, shape, line] => {
                let shape = match shape {
                    "Command" => Shape::Command,
                    "Inline" => Shape::Inline,
                    "Script" => Shape::Script,
                    "Transaction" => Shape::Transaction,
                    "Pipeline" => Shape::Pipeline,
                    _ => return Err(wrong()),
                };
                Ok(Event::Writing(Writing {
                    key: key.to_owned(),
                    fence: number(fence)?,
                    number: number(count)?,
                    parts: parts.parse().map_err(|_| wrong())?,
                    shape,
                    attached: line == "attached",
                }))
            }
            ["setting", key, value, before, parts] => Ok(Event::Setting(Setting {
                key: key.to_owned(),
                value: value.to_owned(),
                before: before.to_owned(),
                parts: parts.parse().map_err(|_| wrong())?,
            })),
            ["idiom", kind, key, token, ttl, aside] => {
                let kind = match kind {
                    "Take" => IdiomKind::Take,
                    "Extend" => IdiomKind::Extend,
                    "Add" => IdiomKind::Add,
                    "Release" => IdiomKind::Release,
                    "Look" => IdiomKind::Look,
                    "Delete" => IdiomKind::Delete,
                    _ => return Err(wrong()),
                };
                let (key, token) = (key.to_owned(), token.to_owned());
                let (ttl, aside) = (number(ttl)?, number(aside)?);
                Ok(Event::Idiom(Idiom { kind, key, token, ttl, aside }))
            }
            ["value", value] => answered(Outcome::Value(value.to_owned())),
            ["set"] => answered(Outcome::Set),
            ["granted", token, fence, validity, ref name @ ..] => answered(Outcome::Granted {
                token: token.to_owned(),
                fence: number(fence)?,
                validity: number(validity)?,
                name: name.first().map(ToString::to_string),
            }),
            ["all", token, validity, fences] => answered(Outcome::AllGranted {
                token: token.to_owned(),
                validity: number(validity)?,
                fences: keys(fences).map(number).collect::<Result<_, _>>()?,
            }),
            ["held"] => answered(Outcome::Held),
            ["number", value] => answered(Outcome::Number(number(value)?)),
            ["pong"] => answered(Outcome::Pong),
            ["written", length] => answered(Outcome::Written(number(length)?)),
            ["partly", made, word] => answered(Outcome::Partly {
                made: made.chars().map(|made| made == '+').collect(),
                word: word.to_owned(),
            }),
            ["lost"] => answered(Outcome::Lost),
            ["error", word] => answered(Outcome::Error(word.to_owned())),
            ["ended"] => answered(Outcome::Closed),
            ["timeout"] => answered(Outcome::TimedOut),
            ["closed"] => Ok(Event::Closed),
            ["pushed"] => Ok(Event::Pushed),
            ["killed"] => Ok(Event::Killed),
            ["over"] => Ok(Event::Over),
            _ => Err(wrong()),
        }
    }
}

/// Reads a client's whole history.
pub(crate) fn read(file: &Path) -> Vec<(Time, Event)> {
    parse(&std::fs::read_to_string(file).unwrap_or_default())
}

/// Parses a whole history; a last line without its end was being written.
pub(crate) fn parse(text: &str) -> Vec<(Time, Event)> {
    let lines = text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'));
    lines
        .map(|line| {
            let (time, event) = line.split_once(' ').expect("a time and an event");
            (time.parse().expect("a time"), event.parse().expect("an event"))
        })
        .collect()
}
