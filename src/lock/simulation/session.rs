//! A client's connection to the data node, as the proxy uses it for guarded writes:
//! the real scripts and the real questions, in the order of `session/guarded.rs`.
//!
//! It never notices that a lock has run out, and pauses wherever it can, so that only
//! the data node stands between two holders.

use std::{sync::Arc, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, DuplexStream},
    time::{sleep, timeout},
};

use super::{super::Engine, Planted, client::full, network::Network, redis::DATA};
use crate::{
    guard::{
        fences::{Claim, Fences, Standing, With, raise, read_error, read_fence},
        write,
    },
    key::Key,
    resp::encode,
};

/// As in `session/guarded.rs`.
const MAX_TRIES: usize = 16;
const FENCE_TTL: Duration = Duration::from_secs(600);

pub(super) struct Session {
    network: Arc<Network>,
    /// The number of its client.
    name: usize,
    planted: Planted,
    stream: Option<DuplexStream>,
    received: Vec<u8>,
}

/// What its client is told of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Told {
    Done,
    /// A larger fence was seen.
    Fenced,
    /// The fences changed too often, or the data node has forgotten that of a lock which is
    /// not held any more, as far as the lock nodes say.
    Refused,
    /// Nothing: the connection ended.
    Nothing,
}

/// The connection has ended, from whatever side.
#[derive(Debug)]
pub(super) struct Ended;

impl Session {
    pub(super) fn new(network: Arc<Network>, name: usize, planted: Planted) -> Session {
        Session { network, name, planted, stream: None, received: Vec::new() }
    }

    /// Sends this and waits for so many replies. Now and then the client hangs up
    /// before they are here.
    async fn ask(&mut self, bytes: &[u8], replies: usize) -> Result<Vec<Vec<u8>>, Ended> {
        let patience = if self.network.below(40) == 0 { self.network.below(40) } else { 60_000 };
        let asking = self.ask_patiently(bytes, replies);
        let answer = timeout(Duration::from_millis(patience), asking).await;
        let answer = answer.unwrap_or(Err(Ended));
        if answer.is_err() {
            self.stream = None;
        }
        answer
    }

    async fn ask_patiently(&mut self, bytes: &[u8], replies: usize) -> Result<Vec<Vec<u8>>, Ended> {
        let stream = self.stream.as_mut().ok_or(Ended)?;
        stream.write_all(bytes).await.map_err(|_| Ended)?;
        let mut answer = Vec::with_capacity(replies);
        while answer.len() < replies {
            let decoded = redis_protocol::resp2::decode::decode(&self.received).unwrap();
            if let Some((_, length)) = decoded {
                answer.push(self.received.drain(..length).collect());
            } else if !matches!(stream.read_buf(&mut self.received).await, Ok(1..)) {
                return Err(Ended);
            }
        }
        Ok(answer)
    }

    /// The connection is the client's for all its locks; it dies with it.
    pub(super) fn is_open(&self) -> bool {
        self.stream.is_some()
    }

    pub(super) fn open(&mut self) {
        if self.stream.is_none() {
            self.received.clear();
            self.stream = self.network.connect(self.name, 0).ok();
        }
    }

    async fn pause(&self) {
        if self.network.below(6) == 0 {
            sleep(Duration::from_millis(self.network.below(600))).await;
        }
    }

    /// Tells the data node the fence of a lock just granted. None: the lock is to be
    /// given back.
    pub(super) async fn claim(&mut self, key: &str, fence: u64) -> Option<Claim> {
        let key = Key::from(&full(key));
        let mut claim = Claim { key, fence, raised: false, wanted_for: Vec::new() };
        if self.planted == Planted::NoRaise {
            return self.is_open().then_some(claim);
        }
        self.pause().await;
        let mut bytes = Vec::new();
        raise(&mut bytes, &claim.key, fence, Some(0), FENCE_TTL);
        let replies = self.ask(&bytes, 1).await.ok()?;
        claim.raised = read_fence(&replies[0])? <= fence;
        claim.raised.then_some(claim)
    }

    /// What is written there; none: nothing.
    pub(super) async fn read(&mut self, key: &str) -> Result<Option<String>, Ended> {
        let mut bytes = Vec::new();
        encode::command(&mut bytes, &[b"GET", &data(key)]);
        let reply = self.ask(&bytes, 1).await?.remove(0);
        let value = reply.strip_prefix(b"$").and_then(|line| line.strip_suffix(b"\r\n"));
        let value = value.and_then(|line| line.split(|byte| *byte == b'\n').nth(1));
        Ok(value.map(|value| String::from_utf8_lossy(value).into_owned()))
    }

    /// Writes under a claim of this token's, which `engine` can be asked about.
    pub(super) async fn write(
        &mut self,
        (engine, token): (&Arc<Engine>, &str),
        claim: &mut Claim,
        (key, value): (&str, &str),
    ) -> Told {
        let mut command = Vec::new();
        encode::command(&mut command, &[b"SET", &data(key), value.as_bytes()]);
        self.try_write((engine, token), claim, &command).await.unwrap_or(Told::Nothing)
    }

    /// Whether the lock nodes say so, as `session/guarded/forgotten.rs` asks them.
    async fn is_held(&self, engine: &Arc<Engine>, token: &str, claim: &Claim) -> bool {
        if self.planted == Planted::NoAsking {
            return true;
        }
        let told = engine.attach(claim.key.clone(), token.as_bytes()).await;
        matches!(told, Ok(Some(grant)) if grant.fence <= claim.fence)
    }

    async fn try_write(
        &mut self,
        (engine, token): (&Arc<Engine>, &str),
        claim: &mut Claim,
        command: &[u8],
    ) -> Result<Told, Ended> {
        let (mut before, mut bytes) = (0, Vec::new());
        self.pause().await;
        if claim.raised && self.network.below(2) == 0 {
            let writes = [write::Write::parse(command).unwrap()];
            let call = write::call(&writes, &[(claim.key.clone(), claim.fence)], 0);
            let reply = self.ask(&call, 1).await?.remove(0);
            if !reply.starts_with(b"-") {
                return Ok(Told::Done);
            }
            if reply.starts_with(b"-NOSCRIPT") {
                write::load(&mut bytes);
                before += 1;
            }
        }
        let undo = b"*1\r\n$7\r\nDISCARD\r\n";
        for _ in 0..MAX_TRIES {
            let claims = std::slice::from_ref(claim);
            let mut fences = Fences::ask(&mut bytes, claims, before, With::Multi, 0, FENCE_TTL);
            for reply in self.ask(&bytes, fences.missing()).await? {
                fences.reply(&reply);
            }
            (before, bytes) = (0, Vec::new());
            self.pause().await;
            let standing = fences.standings(claims).next();
            match standing {
                Some(Standing::Largest) => claim.raised = true,
                _ if self.planted == Planted::NoCompare => {}
                Some(Standing::Fenced(_)) => {
                    self.ask(undo, 1).await?;
                    return Ok(Told::Fenced);
                }
                Some(Standing::Unknown) | None => {
                    if !self.is_held(engine, token, claim).await {
                        self.ask(undo, 1).await?;
                        return Ok(Told::Refused);
                    }
                    self.pause().await;
                    claim.raised = false;
                    (before, bytes) = (1, undo.to_vec());
                    continue;
                }
            }
            let mut commit = command.to_vec();
            encode::command(&mut commit, &[b"EXEC"]);
            let reply = self.ask(&commit, 2).await?.remove(1);
            assert!(read_error(&reply).is_none(), "{}", String::from_utf8_lossy(&reply));
            if !reply.starts_with(b"*-1") {
                return Ok(Told::Done);
            }
        }
        if before > 0 {
            self.ask(undo, 1).await?;
        }
        Ok(Told::Refused)
    }
}

/// What is written under the lock at `key`.
fn data(key: &str) -> Vec<u8> {
    [DATA, &full(key)].concat()
}
