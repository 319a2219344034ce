//! A session lock whose client goes on over another connection.

use std::{sync::Arc, time::Duration};

use super::{Acquire, Engine};
use crate::key::{Key, Token};

impl Engine {
    /// Makes the asker the keeper of `key` where `token` holds it, with a fresh TTL, a larger
    /// fence and a claim of its own: whoever kept it before, through whichever proxy, can
    /// neither renew it nor give it back any more, and is told of the loss. Held by another:
    /// `token` does not hold it.
    pub fn take_over(self: &Arc<Self>, key: Key, token: Token, ttl: Duration) -> Acquire {
        Acquire::take_over(self, key, token, ttl)
    }
}
