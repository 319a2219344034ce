//! The writes of a client under its locks, in time and too late, and their shapes. No write is ever
//! sent twice.

use std::{
    io, thread,
    time::{Duration, Instant},
};

use rand::RngExt;

use super::{
    BY_ITSELF, Client, Ended, Grant, Line, Style,
    connection::{Connection, Reply, encode},
    outcome,
};
use crate::{
    history::{Event, Outcome, Shape, Verb, Writing},
    trace::{self, Entry},
};

/// A script that writes what RPUSH does.
const SCRIPT: &str = "return redis.call('RPUSH', KEYS[1], unpack(ARGV))";

/// A second connection that acts under a lock, perhaps for longer than it is held.
pub(super) struct Attached {
    connection: Connection,
    key: String,
    fence: u64,
}

impl Attached {
    pub(super) fn connection(&mut self) -> &mut Connection {
        &mut self.connection
    }
}

impl Client {
    /// Whether writes need this lock.
    pub(super) fn writes_under(&self, key: &str) -> bool {
        self.plan.writes && trace::is_guard(key)
    }

    /// Works under a lock that was just granted.
    pub(super) fn work(&mut self, key: &str, grant: &Grant) -> Result<(), Ended> {
        if !self.writes_under(key) {
            return Ok(());
        }
        if self.random.random_bool(0.7) {
            self.read(key)?;
            self.think(0, 30);
        }
        for _ in 0..self.random.random_range(0..3) {
            self.write(key, grant.fence)?;
            self.think(0, 20);
        }
        if self.random.random_bool(0.25) && self.attach(key, &grant.token).is_ok() {
            for _ in 0..self.random.random_range(0..3) {
                let _ = self.write_attached();
            }
        }
        Ok(())
    }

    /// Reads how much has been written.
    pub(super) fn read(&mut self, key: &str) -> Result<(), Ended> {
        let words = ["LLEN", &trace::list(key)];
        self.ask(Verb::Read, key, &words, Duration::ZERO).map(|_| ())
    }

    /// Attaches another connection to a lock that the client holds.
    fn attach(&mut self, key: &str, token: &str) -> Result<(), Ended> {
        let proxy = self.plan.proxies[self.random.random_range(0..self.plan.proxies.len())];
        let connection = Connection::new(proxy).map_err(|_| Ended)?;
        self.attached = Some(Attached { connection, key: key.to_owned(), fence: 0 });
        let event = Event::Sent { verb: Verb::Attach, key: key.to_owned() };
        let talk = |connection: &mut Connection, deadline| {
            connection.ask(&["LOCK.ATTACH", key, token], deadline).map(outcome)
        };
        match (self.exchange(Line::Attached, &event, Duration::ZERO, talk), &mut self.attached) {
            (Ok((_, Outcome::Granted { fence, .. })), Some(attached)) => {
                attached.fence = fence;
                Ok(())
            }
            _ => {
                self.attached = None;
                Err(Ended)
            }
        }
    }

    /// Sometimes writes once more under a lock that was given back long ago, or has run out.
    pub(super) fn write_late(&mut self) {
        if self.attached.is_some() && self.random.random_bool(0.3) {
            let _ = self.write_attached();
            if self.random.random_bool(0.3) {
                self.attached = None;
            }
        }
    }

    fn write_attached(&mut self) -> Result<Outcome, Ended> {
        let Some(Attached { key, fence, .. }) = &self.attached else { return Err(Ended) };
        let (key, fence) = (key.clone(), *fence);
        self.write_over(Line::Attached, &key, fence)
    }

    /// Writes, if guards need the lock. The client does not check whether it is still held.
    pub(super) fn write(&mut self, key: &str, fence: u64) -> Result<Outcome, Ended> {
        if !self.writes_under(key) {
            return Ok(Outcome::Pong);
        }
        self.write_over(Line::Own, key, fence)
    }

    fn write_over(&mut self, line: Line, key: &str, fence: u64) -> Result<Outcome, Ended> {
        self.written += 1;
        // Writers mostly go the long way, where more can come in between.
        let short = if self.plan.style == Style::Writers { 2 } else { 4 };
        let shape = match self.random.random_range(0..10) {
            kind if kind < short => Shape::Command,
            4 => Shape::Inline,
            ..7 => Shape::Script,
            7 => Shape::Pipeline,
            _ => Shape::Transaction,
        };
        let parts = match shape {
            Shape::Pipeline => self.random.random_range(2..=6),
            _ => self.random.random_range(1..=3),
        };
        // A pause between a transaction's commands and its EXEC; otherwise all go in one packet.
        let pause = (shape == Shape::Transaction && self.random.random_bool(0.5))
            .then(|| Duration::from_millis(self.random.random_range(0..300)));
        let (client, number) = (self.plan.number, self.written);
        let entries: Vec<String> =
            (0..parts).map(|part| Entry { fence, client, number, part }.to_string()).collect();
        let (key, attached) = (key.to_owned(), line == Line::Attached);
        let commands = commands(shape, &trace::list(&key), &entries);
        // A hasty client does not wait for an answer.
        let hasty = self.random.random_bool(0.03);
        let event = Event::Writing(Writing { key, fence, number, parts, shape, attached });
        let talk = |connection: &mut Connection, deadline| match (pause, &commands[..]) {
            _ if hasty => {
                connection.send(&commands.concat())?;
                Err(BY_ITSELF.into())
            }
            (_, [command]) => {
                connection.send(command)?;
                connection.answer(deadline).map(written)
            }
            (None, commands) => {
                connection.send(&commands.concat())?;
                let replies = commands.iter().map(|_| connection.answer(deadline));
                let replies = replies.collect::<io::Result<Vec<Reply>>>()?;
                if shape == Shape::Pipeline { Ok(each(replies)) } else { carried_out(replies) }
            }
            (Some(pause), commands) => {
                carried_out(one_by_one(connection, commands, pause, deadline)?)
            }
        };
        let done = self.exchange(line, &event, pause.unwrap_or_default(), talk);
        done.map(|(_, outcome)| outcome)
    }
}

/// Returns the commands of a write in its shape.
fn commands(shape: Shape, list: &str, entries: &[String]) -> Vec<Vec<u8>> {
    let start = match shape {
        Shape::Script => vec!["EVAL", SCRIPT, "1", list],
        _ => vec!["RPUSH", list],
    };
    let words: Vec<&str> = start.into_iter().chain(entries.iter().map(String::as_str)).collect();
    match shape {
        Shape::Command | Shape::Script => vec![encode(&words)],
        Shape::Inline => vec![format!("{}\r\n", words.join(" ")).into_bytes()],
        Shape::Transaction => {
            let pushes = entries.iter().map(|entry| encode(&["RPUSH", list, entry]));
            [encode(&["MULTI"])].into_iter().chain(pushes).chain([encode(&["EXEC"])]).collect()
        }
        Shape::Pipeline => entries.iter().map(|entry| encode(&["RPUSH", list, entry])).collect(),
    }
}

/// Sends each command of a transaction once the one before is answered; pauses before EXEC.
fn one_by_one(
    connection: &mut Connection,
    commands: &[Vec<u8>],
    pause: Duration,
    deadline: Instant,
) -> io::Result<Vec<Reply>> {
    let mut replies = Vec::new();
    for (number, command) in commands.iter().enumerate() {
        if number + 1 == commands.len() {
            thread::sleep(pause);
        }
        connection.send(command)?;
        replies.push(connection.answer(deadline)?);
        // There is no transaction without MULTI.
        if number == 0 && replies.iter().any(Reply::is_error) {
            break;
        }
    }
    Ok(replies)
}

/// Returns the outcome of a transaction: EXEC's reply to its last write, or the first error.
fn carried_out(mut replies: Vec<Reply>) -> io::Result<Outcome> {
    let last = match replies.pop() {
        Some(Reply::All(mut all)) => all.pop(),
        Some(other) => Some(replies.into_iter().find(Reply::is_error).unwrap_or(other)),
        None => None,
    };
    last.map(written).ok_or_else(|| io::Error::other("an empty transaction"))
}

/// Returns the outcome of a pipeline's writes.
fn each(replies: Vec<Reply>) -> Outcome {
    let made = replies.iter().map(|reply| !reply.is_error()).collect();
    let mut outcomes: Vec<Outcome> = replies.into_iter().map(written).collect();
    let lost = outcomes.contains(&Outcome::Lost);
    let word = outcomes.iter().find_map(|outcome| match outcome {
        Outcome::Error(word) => Some(word.clone()),
        _ => None,
    });
    match (lost, word, outcomes.pop()) {
        (false, None, Some(last)) => last,
        (_, word, _) => Outcome::Partly { made, word: word.unwrap_or("LOCKLOST".to_owned()) },
    }
}

/// Returns the outcome of a write.
fn written(reply: Reply) -> Outcome {
    match reply {
        Reply::Number(length) => Outcome::Written(length.unsigned_abs()),
        Reply::Null => Outcome::Error("null".to_owned()),
        error @ Reply::Error(_) => outcome(error),
        other => panic!("no answer of a write: {other:?}"),
    }
}
