//! How long the data node lets a client be idle (`timeout` in redis.conf), and so how often a connection needs a sign
//! of life while its client waits for Lockgate or holds a lock.
//!
//! Redis never closes a client that is blocked in Redis. A client that waits for a lock, or
//! computes under one, is idle to Redis all the same.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bb8_redis::redis::{self, RedisError};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::{clock::millis, data::DataNode};

/// How often the data node is asked, as CONFIG SET may change its `timeout`.
const ASK_EVERY: Duration = Duration::from_secs(10);
/// How long the answer may take.
const ASK_LIMIT: Duration = Duration::from_secs(3);
/// Time between signs of life if the data node does not tell its `timeout`.
const UNTOLD: Duration = Duration::from_secs(1);
/// Least and most time between two signs of life. Redis counts whole seconds, and closes after more
/// than its `timeout` of them.
const LEAST: Duration = Duration::from_millis(300);
const MOST: Duration = Duration::from_secs(20);

/// The data node's `timeout`, as far as it is known.
#[derive(Debug)]
pub(crate) struct Idle {
    /// Milliseconds between two signs of life; 0 if none is needed.
    every: AtomicU64,
}

/// The data node's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum IdleAnswer {
    /// The data node closes clients after this many seconds; 0: never.
    Seconds(u64),
    /// The data node refuses to tell this proxy.
    Refused,
}

impl Default for Idle {
    fn default() -> Idle {
        Idle { every: AtomicU64::new(millis(UNTOLD)) }
    }
}

/// Returns the time between signs of life: three in each `timeout`.
fn every(told: IdleAnswer) -> Duration {
    match told {
        IdleAnswer::Seconds(0) => Duration::ZERO,
        IdleAnswer::Seconds(seconds) => (Duration::from_secs(seconds) / 3).clamp(LEAST, MOST),
        IdleAnswer::Refused => UNTOLD,
    }
}

impl Idle {
    /// Returns the time between two signs of life. Returns `None` if the data node closes no idle client.
    pub(crate) fn every(&self) -> Option<Duration> {
        let millis = self.every.load(Ordering::Relaxed);
        (millis > 0).then(|| Duration::from_millis(millis))
    }

    /// Asks the data node from now on, and logs each change.
    pub(crate) async fn watch(self: Arc<Self>, data: Arc<DataNode>, shutdown: CancellationToken) {
        let (mut known, mut changes) = (None, data.changes());
        loop {
            if let Ok(Some(told)) = timeout(ASK_LIMIT, ask(&data)).await
                && known.replace(told) != Some(told)
            {
                self.every.store(millis(every(told)), Ordering::Relaxed);
                match told {
                    IdleAnswer::Seconds(0) => {}
                    IdleAnswer::Seconds(seconds) => warn!(
                        %data, seconds,
                        "the data node closes clients that are idle for so long (timeout); who waits \
                         for a lock or holds one is kept alive, others are closed as by Redis"
                    ),
                    IdleAnswer::Refused => info!(
                        %data,
                        "the data node does not tell whether it closes idle clients (CONFIG GET \
                         timeout); who waits for a lock or holds one is kept alive each second"
                    ),
                }
            }
            tokio::select! {
                () = sleep(ASK_EVERY) => {}
                Ok(()) = changes.changed() => {}
                () = shutdown.cancelled() => return,
            }
        }
    }
}

/// Asks the data node once. Returns `None` if it cannot be asked now.
async fn ask(data: &DataNode) -> Option<IdleAnswer> {
    let refused = |error: &RedisError| !error.is_io_error() && !error.is_timeout();
    let mut connection = match data.ask().await {
        Ok((_, connection)) => connection,
        Err(error) => return refused(&error).then_some(IdleAnswer::Refused),
    };
    let mut question = redis::cmd("CONFIG");
    question.arg("GET").arg("timeout");
    match question.query_async::<(String, u64)>(&mut connection.redis).await {
        Ok((_, seconds)) => Some(IdleAnswer::Seconds(seconds)),
        Err(error) => refused(&error).then_some(IdleAnswer::Refused),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sign_of_life_comes_well_before_the_end() {
        assert_eq!(Idle::default().every(), Some(UNTOLD));
        assert_eq!(every(IdleAnswer::Seconds(0)), Duration::ZERO);
        assert_eq!(every(IdleAnswer::Refused), UNTOLD);
        for seconds in [1, 2, 5, 300, 100_000] {
            let every = every(IdleAnswer::Seconds(seconds));
            assert!(every >= LEAST && every <= MOST && every * 3 <= Duration::from_secs(seconds));
        }
    }
}
