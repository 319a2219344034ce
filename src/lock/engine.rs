//! Acquire, release, renew: the algorithm.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use super::{Grant, NoQuorum, NodeStatus, NotGranted};
use crate::config::LocksConfig;

/// The lock engine over all lock nodes.
pub struct Engine {}

/// A LOCK under way. Dropped before it is ready, it releases what it got on every node.
pub struct Acquire {}
/// An UNLOCK under way. Dropping it does not stop the release.
pub struct Release {}
/// A RENEW under way.
pub struct Renew {}

impl Engine {
    /// Starts the nodes' links. Must be called inside a tokio runtime.
    pub fn start(_config: &LocksConfig) -> Arc<Engine> {
        Arc::new(Engine {})
    }
    /// Asks all nodes for `key` (with the prefix already put before it) on behalf of `token`.
    pub fn acquire(self: &Arc<Self>, _key: &[u8], _token: &[u8], _ttl: Duration) -> Acquire {
        Acquire {}
    }
    /// Releases `key` on every node if `token` holds it there.
    pub fn release(self: &Arc<Self>, _key: &[u8], _token: &[u8]) -> Release {
        Release {}
    }
    /// Gives `key` a fresh TTL on every node where `token` holds it.
    pub fn renew(self: &Arc<Self>, _key: &[u8], _token: &[u8], _ttl: Duration) -> Renew {
        Renew {}
    }
    /// Every node as seen now, in the order of the configuration.
    pub fn status(&self) -> Vec<NodeStatus> {
        Vec::new()
    }
    /// How many nodes must be up for a lock to be granted.
    pub fn quorum(&self) -> usize {
        1
    }
    /// Waits until releases already enqueued have been written, for at most `limit`.
    pub async fn drain(&self, _limit: Duration) {}
}

impl Future for Acquire {
    type Output = Result<Grant, NotGranted>;
    fn poll(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<Self::Output> {
        Poll::Pending
    }
}
impl Future for Release {
    /// True: released. False: not held by that token.
    type Output = Result<bool, NoQuorum>;
    fn poll(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<Self::Output> {
        Poll::Pending
    }
}
impl Future for Renew {
    /// The new validity, or none: not held by that token.
    type Output = Result<Option<Duration>, NoQuorum>;
    fn poll(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<Self::Output> {
        Poll::Pending
    }
}
