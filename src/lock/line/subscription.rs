//! A connection that is subscribed to channels of locks on one lock node.
//!
//! The client library's subscriptions do not support channels of a shard (SSUBSCRIBE): a command may name channels of
//! one slot alone and may be answered MOVED, and the node takes a subscription back when the slot is moved away.

use std::{collections::VecDeque, io, time::Duration};

use redis_protocol::resp2::types::OwnedFrame;
use thiserror::Error;
use tokio::{
    io::AsyncReadExt,
    time::{Instant, error::Elapsed, timeout, timeout_at},
};

use crate::{
    cluster::slot::slot,
    config::RedisUrl,
    lock::{
        members::self_report::{ConnectError, encode_greeting, read_reply, send, within_limit},
        node_reply,
        operation::Kind,
        scripts::{self, Dialect},
    },
    net::{self, Connector, Stream},
    resp::{encode, flat},
};

/// The longest time for connecting, or for a confirmation.
const LIMIT: Duration = Duration::from_secs(1);
/// Idle time after which the node is asked for a sign of life.
const KEEPALIVE: Duration = Duration::from_secs(3);
/// The most channels in one command.
const CHANNELS: usize = 1000;

/// Why a subscription ended.
#[derive(Debug, Error)]
pub(super) enum SubscriptionEnded {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("{0}")]
    Connect(#[from] ConnectError),
    #[error("{0}")]
    Garbage(#[from] flat::Garbage),
    /// The node's own words.
    #[error("{0}")]
    Refused(String),
    #[error("no answer within {LIMIT:?}")]
    Silent(#[from] Elapsed),
    /// Another node is there now.
    #[error("another node is there")]
    Elsewhere,
    /// There is nothing to subscribe to.
    #[error("idle")]
    Idle,
    /// The engine was dropped.
    #[error("not needed any more")]
    Unused,
}

/// A connection that is subscribed to channels of locks.
pub(super) struct Subscription {
    stream: Stream,
    received: Vec<u8>,
    dialect: Dialect,
    /// Whether channels of shards are used: a cluster is among the lock nodes, and this node knows them (Redis 7).
    is_sharded: bool,
    /// Commands that are not answered yet, in their order.
    asked: VecDeque<SubscriptionCommand>,
    /// When something was last received, or was asked while nothing else was unanswered.
    heard: Instant,
}

/// A command whose channels are not all confirmed yet.
struct SubscriptionCommand {
    subscribes: bool,
    /// The locks of the channels that are not confirmed yet.
    keys: Vec<Vec<u8>>,
}

/// News from a node.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum SubscriptionNews {
    /// A release of the lock at this key, and the name of the proxy that released it.
    Released(Vec<u8>, Vec<u8>),
    /// The node will publish this lock's releases here.
    Subscribed(Vec<u8>),
    /// The node does not publish these locks' releases here: another shard may.
    Lost(Vec<Vec<u8>>),
}

impl Subscription {
    /// Connects.
    ///
    /// # Errors
    /// The network's and the node's.
    pub(super) async fn open(
        url: &RedisUrl,
        connector: &Connector,
        dialect: Dialect,
    ) -> Result<Subscription, SubscriptionEnded> {
        let mut stream = net::connect(url, connector, LIMIT, KEEPALIVE).await?;
        let mut out = Vec::new();
        let mut received = Vec::new();
        let asked = encode_greeting(&mut out, url)?;
        if dialect.is_tagged() {
            // Without subscriptions it only shows whether the node knows the command.
            encode::command(&mut out, &[b"SUNSUBSCRIBE"]);
        }
        let greeting = async {
            send(&mut stream, &out).await?;
            for _ in asked {
                if let OwnedFrame::Error(error) = read_reply(&mut stream, &mut received).await? {
                    return Ok(Err(error));
                }
            }
            if !dialect.is_tagged() {
                return Ok(Ok(false));
            }
            let told = read_reply(&mut stream, &mut received).await?;
            let is_unknown = |text: &String| text.starts_with("ERR unknown command");
            Ok(Ok(!matches!(told, OwnedFrame::Error(text) if is_unknown(&text))))
        };
        let is_sharded = within_limit(greeting).await?.map_err(SubscriptionEnded::Refused)?;
        let (asked, heard) = (VecDeque::new(), Instant::now());
        Ok(Subscription { stream, received, dialect, is_sharded, asked, heard })
    }

    /// Subscribes to the releases of these locks.
    ///
    /// # Errors
    /// The network's.
    pub(super) async fn subscribe(&mut self, keys: Vec<Vec<u8>>) -> Result<(), SubscriptionEnded> {
        self.ask(true, keys).await
    }

    /// Unsubscribes from the releases of these locks.
    ///
    /// # Errors
    /// The network's.
    pub(super) async fn unsubscribe(
        &mut self,
        keys: Vec<Vec<u8>>,
    ) -> Result<(), SubscriptionEnded> {
        self.ask(false, keys).await
    }

    async fn ask(
        &mut self,
        subscribes: bool,
        mut keys: Vec<Vec<u8>>,
    ) -> Result<(), SubscriptionEnded> {
        let command: &[u8] = match (self.is_sharded, subscribes) {
            (true, true) => b"SSUBSCRIBE",
            (true, false) => b"SUNSUBSCRIBE",
            (false, true) => b"SUBSCRIBE",
            (false, false) => b"UNSUBSCRIBE",
        };
        if keys.is_empty() {
            return Ok(());
        }
        if self.asked.is_empty() {
            self.heard = Instant::now();
        }
        let is_sharded = self.is_sharded;
        let mut out = Vec::new();
        keys.sort_by_cached_key(|key| slot(key));
        let together = |a: &Vec<u8>, b: &Vec<u8>| !is_sharded || slot(a) == slot(b);
        for keys in keys.chunk_by(together).flat_map(|keys| keys.chunks(CHANNELS)) {
            encode::array(&mut out, 1 + keys.len());
            encode::bulk(&mut out, command);
            for key in keys {
                encode::bulk(&mut out, &scripts::channel(self.dialect, key));
            }
            self.asked.push_back(SubscriptionCommand { subscribes, keys: keys.to_vec() });
        }
        Ok(timeout(LIMIT, send(&mut self.stream, &out)).await??)
    }

    /// Waits for news. Dropped before it is ready, it loses none.
    ///
    /// # Errors
    /// The network's; or the node has refused a subscription, or sends what Redis does not send.
    pub(super) async fn next(&mut self) -> Result<SubscriptionNews, SubscriptionEnded> {
        loop {
            if let Some((frame, length)) = node_reply::read(&self.received)? {
                self.received.drain(..length);
                if let Some(news) = self.told(frame)? {
                    return Ok(news);
                }
                continue;
            }
            let reading = self.stream.read_buf(&mut self.received);
            let read = match self.asked.is_empty() {
                true => reading.await?,
                false => timeout_at(self.heard + LIMIT, reading).await??,
            };
            self.heard = Instant::now();
            if read == 0 {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "closed").into());
            }
        }
    }

    /// Takes in a reply or a message.
    fn told(&mut self, frame: OwnedFrame) -> Result<Option<SubscriptionNews>, SubscriptionEnded> {
        use OwnedFrame::BulkString;
        let parts = match frame {
            OwnedFrame::Array(parts) => parts,
            OwnedFrame::Error(error) => return self.refused(error),
            _ => return Err(flat::Garbage.into()),
        };
        let mut parts = parts.into_iter();
        let (Some(BulkString(kind)), Some(BulkString(channel)), Some(last)) =
            (parts.next(), parts.next(), parts.next())
        else {
            return Err(flat::Garbage.into());
        };
        let key = scripts::key_of_channel(self.dialect, &channel).ok_or(flat::Garbage)?.to_vec();
        Ok(match (&kind[..], last) {
            (b"message" | b"smessage", BulkString(who)) => {
                Some(SubscriptionNews::Released(key, who))
            }
            (b"subscribe" | b"ssubscribe", _) => {
                self.confirmed(true, &key);
                Some(SubscriptionNews::Subscribed(key))
            }
            (b"unsubscribe" | b"sunsubscribe", _) if self.confirmed(false, &key) => None,
            // The slot has been moved away.
            (b"sunsubscribe", _) => Some(SubscriptionNews::Lost(vec![key])),
            _ => return Err(flat::Garbage.into()),
        })
    }

    /// Takes in a confirmation. Returns whether the node was asked for it.
    fn confirmed(&mut self, subscribes: bool, key: &[u8]) -> bool {
        let Some(asked) = self.asked.front_mut().filter(|it| it.subscribes == subscribes) else {
            return false;
        };
        let Some(at) = asked.keys.iter().position(|known| known == key) else { return false };
        asked.keys.swap_remove(at);
        if asked.keys.is_empty() {
            self.asked.pop_front();
        }
        true
    }

    /// Takes in an error, which is the only answer to its command.
    fn refused(&mut self, error: String) -> Result<Option<SubscriptionNews>, SubscriptionEnded> {
        let asked = self.asked.pop_front().ok_or(flat::Garbage)?;
        let is_elsewhere = node_reply::elsewhere(Kind::Release, &error).is_some();
        match (is_elsewhere, asked.subscribes) {
            (true, true) => Ok(Some(SubscriptionNews::Lost(asked.keys))),
            (true, false) => Ok(None),
            (false, _) => Err(SubscriptionEnded::Refused(error)),
        }
    }
}
