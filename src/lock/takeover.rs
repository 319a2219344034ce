//! A session lock whose client goes on over another connection.

use std::sync::Arc;

use tokio::time::{Duration, Instant};

use super::{Engine, Grant, NotAttached};
use crate::key::{Key, Token};

impl Engine {
    /// Gives `key` a fresh TTL where `token` holds it, on behalf of who is to be its keeper
    /// from then on. Who kept it before through this proxy is told of the loss. None: not
    /// held by that token.
    ///
    /// # Errors
    /// As for an attach: the new keeper must know the fence.
    pub async fn take_over(
        self: Arc<Self>,
        key: Key,
        token: Token,
        ttl: Duration,
    ) -> Result<Option<Grant>, NotAttached> {
        let Some(held) = self.attach(key.clone(), token.clone()).await? else { return Ok(None) };
        let renewed = self.renew(key.clone(), token.clone(), ttl).await;
        let Some(renewed) = renewed.map_err(NotAttached::NoQuorum)? else { return Ok(None) };
        let (now, fence) = (Instant::now(), held.fence);
        let before = self.holders.granted(&key, &token, fence, now, renewed.until);
        if let Some(before) = before {
            self.watchdog.replace(&before);
        }
        Ok(Some(Grant { fence, validity: renewed.validity, until: renewed.until }))
    }
}
