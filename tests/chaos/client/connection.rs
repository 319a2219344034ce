//! A client's connection, and the part of RESP2 and RESP3 that its answers use.

use std::{
    collections::VecDeque,
    io::{self, ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
    time::{Duration, Instant},
};

use super::PATIENCE;

const CONNECT_LIMIT: Duration = Duration::from_secs(2);

/// A reply, in RESP2 or RESP3.
#[derive(Debug)]
pub(super) enum Reply {
    Text(String),
    Error(String),
    Number(i64),
    Null,
    All(Vec<Reply>),
    Push,
}

impl Reply {
    pub(super) fn is_error(&self) -> bool {
        matches!(self, Reply::Error(_))
    }
}

pub(super) struct Connection {
    stream: TcpStream,
    read: VecDeque<u8>,
    /// Pushes since the last look at them.
    pub(super) pushes: usize,
}

impl Connection {
    pub(super) fn new(address: SocketAddr) -> io::Result<Connection> {
        let stream = TcpStream::connect_timeout(&address, CONNECT_LIMIT)?;
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Connection { stream, read: VecDeque::new(), pushes: 0 })
    }

    /// Sends a command and reads its reply.
    pub(super) fn ask(&mut self, words: &[&str], deadline: Instant) -> io::Result<Reply> {
        self.send(&encode(words))?;
        self.answer(deadline)
    }

    pub(super) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// Returns the next reply that is no push.
    pub(super) fn answer(&mut self, deadline: Instant) -> io::Result<Reply> {
        loop {
            match self.reply(deadline)? {
                Reply::Push => self.pushes += 1,
                reply => return Ok(reply),
            }
        }
    }

    fn reply(&mut self, deadline: Instant) -> io::Result<Reply> {
        let line = self.line(deadline)?;
        let (kind, rest) = line.split_at(1);
        let wrong = || io::Error::other(format!("no reply: {line:?}"));
        let number = || rest.parse::<i64>().map_err(|_| wrong());
        match kind {
            "+" => Ok(Reply::Text(rest.to_owned())),
            "-" => Ok(Reply::Error(rest.to_owned())),
            ":" => Ok(Reply::Number(number()?)),
            "_" => Ok(Reply::Null),
            "$" | "*" if rest == "-1" => Ok(Reply::Null),
            "$" => {
                let length = usize::try_from(number()?).map_err(|_| wrong())?;
                let bytes = self.take(length + 2, deadline)?;
                Ok(Reply::Text(String::from_utf8_lossy(&bytes[..length]).into_owned()))
            }
            "*" | ">" | "%" => {
                let count = number()? * if kind == "%" { 2 } else { 1 };
                let all: io::Result<Vec<Reply>> =
                    (0..count).map(|_| self.reply(deadline)).collect();
                Ok(if kind == ">" { all.map(|_| Reply::Push)? } else { Reply::All(all?) })
            }
            _ => Err(wrong()),
        }
    }

    fn line(&mut self, deadline: Instant) -> io::Result<String> {
        loop {
            if let Some(end) = self.read.iter().position(|byte| *byte == b'\n') {
                let bytes = self.take(end + 1, deadline)?;
                let text = String::from_utf8_lossy(&bytes[..end.saturating_sub(1)]).into_owned();
                return match text.is_empty() {
                    true => Err(io::Error::other("an empty line")),
                    false => Ok(text),
                };
            }
            self.fill(deadline)?;
        }
    }

    fn take(&mut self, bytes: usize, deadline: Instant) -> io::Result<Vec<u8>> {
        while self.read.len() < bytes {
            self.fill(deadline)?;
        }
        Ok(self.read.drain(..bytes).collect())
    }

    fn fill(&mut self, deadline: Instant) -> io::Result<()> {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        self.stream.set_read_timeout(Some(left))?;
        let mut buffer = [0; 4096];
        match self.stream.read(&mut buffer)? {
            0 => Err(ErrorKind::UnexpectedEof.into()),
            bytes => {
                self.read.extend(&buffer[..bytes]);
                Ok(())
            }
        }
    }
}

/// Returns a command as an array of bulk strings.
pub(super) fn encode(words: &[&str]) -> Vec<u8> {
    let mut request = format!("*{}\r\n", words.len());
    for word in words {
        request += &format!("${}\r\n{word}\r\n", word.len());
    }
    request.into_bytes()
}
