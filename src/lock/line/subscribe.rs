//! Hears of releases through other proxies: a subscription to one lock node, for the locks that
//! clients of this proxy wait for, while there are any.
//!
//! The subscription uses bb8-redis's client library, over a connection apart from the one that
//! carries operations. A missed message costs a waiter time and nothing else.

use std::{
    io,
    pin::Pin,
    sync::{Arc, Weak},
    time::Duration,
};

use bb8_redis::redis::{
    Msg, RedisError,
    aio::{PubSub, PubSubSink, PubSubStream},
};
use futures_core::Stream;
use thiserror::Error;
use tokio::time::{Instant, error::Elapsed, sleep, timeout};
use tracing::debug;

use super::queue::Wishes;
use crate::{
    lock::{address::NodeAddress, locks::Locks, node::backoff::Backoff, scripts},
    net::{self, Connector, redis_client::redis_settings},
};

/// The longest time for connecting, or for a confirmation.
const LIMIT: Duration = Duration::from_secs(1);
/// Idle time after which the node is asked for a sign of life.
const KEEPALIVE: Duration = Duration::from_secs(3);
/// Channels in one command.
const CHANNELS: usize = 1000;
/// Idle time after which a connection without subscriptions is closed.
const IDLE: Duration = Duration::from_secs(10);

/// Why a subscription ended.
#[derive(Debug, Error)]
enum SubscriptionEnded {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("{0}")]
    Redis(#[from] RedisError),
    #[error("no answer within {LIMIT:?}")]
    Silent(#[from] Elapsed),
    #[error("disconnected")]
    Disconnected,
    /// Nobody waits for anything.
    #[error("idle")]
    Idle,
    /// The engine was dropped.
    #[error("not needed any more")]
    Unused,
}

/// Keeps a subscription to node `node` for as long as a client waits.
pub(in crate::lock) async fn run(
    locks: Weak<Locks>,
    node: usize,
    address: Arc<NodeAddress>,
    connector: Connector,
) {
    let Some((wishes, gone)) =
        locks.upgrade().map(|locks| (locks.queues.wishes(node), locks.queues.gone.clone()))
    else {
        return;
    };
    let mut backoff = Backoff::default();
    loop {
        let idle = match locks.upgrade() {
            Some(locks) => !locks.queues.is_listening(),
            None => return,
        };
        if idle {
            tokio::select! {
                () = wishes.changed.notified() => {}
                () = gone.cancelled() => return,
            }
            continue;
        }
        let since = Instant::now();
        let ended = tokio::select! {
            ended = listen(&locks, node, (&address, &connector), &wishes) => ended,
            () = gone.cancelled() => return,
        };
        if let Some(locks) = locks.upgrade() {
            locks.queues.disconnected(node);
        }
        if !matches!(ended, Err(SubscriptionEnded::Idle)) {
            if let Err(reason) = ended {
                debug!(node = %address, %reason, "subscription has ended");
            }
            backoff.lasted(since.elapsed());
            sleep(backoff.next()).await;
        }
    }
}

/// Serves one connection until it ends.
async fn listen(
    locks: &Weak<Locks>,
    node: usize,
    (address, connector): (&NodeAddress, &Connector),
    wishes: &Wishes,
) -> Result<(), SubscriptionEnded> {
    let there = &address.now()?;
    let stream = net::connect(&there.url, connector, LIMIT, KEEPALIVE).await?;
    let connection = timeout(LIMIT, PubSub::new(&redis_settings(&there.url), stream)).await??;
    let (mut sink, mut messages) = connection.split();
    let wanted = locks.upgrade().ok_or(SubscriptionEnded::Unused)?.queues.connected(node);
    subscribe(locks, node, &mut sink, &wanted).await?;
    loop {
        tokio::select! {
            message = next(&mut messages) => {
                let message = message.ok_or(SubscriptionEnded::Disconnected)?;
                heard(&locks.upgrade().ok_or(SubscriptionEnded::Unused)?, node, &message);
            }
            () = address.left(there) => return Err(SubscriptionEnded::Disconnected),
            () = wishes.changed.notified() => {
                let (mut wanted, mut unwanted) = (Vec::new(), Vec::new());
                for (key, subscribe) in wishes.take() {
                    if subscribe { wanted.push(key) } else { unwanted.push(scripts::channel(&key)) }
                }
                for channels in unwanted.chunks(CHANNELS) {
                    timeout(LIMIT, sink.unsubscribe(channels)).await??;
                }
                subscribe(locks, node, &mut sink, &wanted).await?;
            }
            () = sleep(IDLE) => {
                if !locks.upgrade().ok_or(SubscriptionEnded::Unused)?.queues.is_listening() {
                    return Err(SubscriptionEnded::Idle);
                }
            }
        }
    }
}

async fn subscribe(
    locks: &Weak<Locks>,
    node: usize,
    sink: &mut PubSubSink,
    keys: &[Vec<u8>],
) -> Result<(), SubscriptionEnded> {
    for keys in keys.chunks(CHANNELS) {
        let channels: Vec<Vec<u8>> = keys.iter().map(|key| scripts::channel(key)).collect();
        timeout(LIMIT, sink.subscribe(channels.as_slice())).await??;
        let locks = locks.upgrade().ok_or(SubscriptionEnded::Unused)?;
        locks.queues.subscribed(node, keys.iter().map(Vec::as_slice));
    }
    Ok(())
}

async fn next(messages: &mut PubSubStream) -> Option<Msg> {
    std::future::poll_fn(|cx| Pin::new(&mut *messages).poll_next(cx)).await
}

/// Notes a release that a node has told of, unless it is this proxy's own.
fn heard(locks: &Arc<Locks>, node: usize, message: &Msg) {
    let Ok(channel) = message.get_channel::<Vec<u8>>() else { return };
    if let Some(key) = scripts::key_of_channel(&channel)
        && !locks.grants.nodes.is_own_word(message.get_payload_bytes())
    {
        locks.queues.heard_of_release(node, key);
    }
}
