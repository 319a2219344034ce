//! One Redis, for as long as it is the data node.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use metrics::Counter;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::config::RedisUrl;

/// A Redis while it is the data node. Sessions end with the tenure of the Redis that they talk to.
#[derive(Debug)]
pub(crate) struct Tenure {
    pub(crate) url: RedisUrl,
    /// Set before `end` is cancelled; cheaper to look at.
    has_ended: AtomicBool,
    end: CancellationToken,
    /// Notified when a session doubts that this Redis is still a master.
    doubted: Arc<Notify>,
    doubts: Counter,
}

impl Tenure {
    /// Begins a tenure. Doubts notify `doubted` and are counted.
    pub(super) fn new(url: RedisUrl, doubted: Arc<Notify>, doubts: Counter) -> Tenure {
        let (has_ended, end) = (AtomicBool::new(false), CancellationToken::new());
        Tenure { url, has_ended, end, doubted, doubts }
    }

    /// Whether another Redis is the data node now, or none.
    #[inline]
    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Relaxed)
    }

    /// Returns once the tenure has ended.
    pub(crate) async fn ended(&self) {
        self.end.cancelled().await;
    }

    /// Asks for a new look at this Redis, as it has refused a write.
    pub(crate) fn doubt(&self) {
        self.doubts.increment(1);
        self.doubted.notify_one();
    }

    /// Ends the tenure, and with it all sessions that talk to this Redis.
    pub(super) fn finish(&self) {
        self.has_ended.store(true, Ordering::Relaxed);
        self.end.cancel();
    }
}
