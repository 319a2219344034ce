//! Where a bridged lock has its keys on the data node, and for how long.

use std::{sync::Arc, time::Duration};

use bb8_redis::redis::RedisError;

use super::data_key::{self, DataKeys, IfGone, KeysKept, Lasts};
use crate::{
    adopt::{Adoption, place::KeyPlace},
    key::{Key, Token},
    lock::{Engine, ttl_for},
};

/// The way to locks of bridged rules.
pub(crate) struct Bridge {
    pub(super) adoption: Arc<Adoption>,
    pub(super) engine: Arc<Engine>,
    pub(super) keys: Arc<DataKeys>,
    /// The length of `locks.prefix`.
    pub(super) prefix: usize,
    /// `locks.drift_factor`.
    pub(super) drift_factor: f64,
}

impl Bridge {
    /// Returns where the lock has its keys on the data node; empty if no bridged rule has the lock.
    pub(crate) fn places(&self, key: &Key) -> Vec<KeyPlace> {
        key.get(self.prefix..).map_or_else(Vec::new, |name| self.adoption.places(name))
    }

    /// Returns where another proxy has the lock's keys on the data node, as it has bridged a rule that is not bridged
    /// here.
    pub(super) fn followed_places(&self, key: &Key) -> Vec<KeyPlace> {
        key.get(self.prefix..).map_or_else(Vec::new, |name| self.adoption.followed_places(name))
    }

    /// Whether the data node alone decides on the lock for adopted commands, as its rule is only audited now.
    pub(crate) fn leaves(&self, key: &Key) -> bool {
        key.get(self.prefix..).is_some_and(|name| self.adoption.leaves(name))
    }

    /// Returns the TTL of the keys of a lock with this TTL: longer, as the data node may be slow once.
    pub(super) fn lasts(&self, ttl: Duration) -> Duration {
        ttl_for(ttl, data_key::OUTLASTS, self.drift_factor)
    }

    /// Gives the keys of a lock that the token holds a new TTL, or makes them anew.
    ///
    /// # Errors
    /// If the data node did not answer.
    pub(super) async fn keep_or_make(
        &self,
        (key, token): (&Key, &Token),
        places: &[KeyPlace],
        lasts: Lasts,
    ) -> Result<KeysKept, RedisError> {
        let kept = self.keys.keep(places, token, lasts, IfGone::Make).await?;
        // A release through another proxy ends first on the lock nodes, and then frees the keys. Keys that are made
        // behind it would keep others out until they run out.
        if kept == KeysKept::Made
            && let Ok(holding) = self.engine.look(key.clone()).await
            && holding.is_none_or(|holding| holding.token != *token)
        {
            self.keys.free(places, token).await?;
            return Ok(KeysKept::Released);
        }
        Ok(kept)
    }

    /// Frees the lock's keys on the data node some time soon, if they have the token.
    pub(crate) fn free_soon(&self, key: &Key, token: &Token) {
        let mut places = self.places(key);
        places.extend(self.followed_places(key));
        if !places.is_empty() {
            self.keys.free_soon(places, token.clone());
        }
    }
}
