//! One operation on a bridged lock, on the data node and on the lock nodes.

use std::{sync::Arc, time::Duration};

use bb8_redis::redis::RedisError;
use tokio::time::sleep;

use super::{Bridge, data_key};
use crate::{
    adopt::place::KeyPlace,
    bridge::data_key::IfGone,
    clock::Instant,
    key::{Key, Token},
    lock::{Claim, Grant, Holding, NoQuorum, NotGranted, Renewed, ttl_for},
};

/// How often a LOCK that waits asks again: nobody tells when a key of the data node is freed.
const AGAIN: Duration = Duration::from_millis(50);

/// Who asks for an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asker {
    /// A command of ours: only the lock nodes say who holds the lock.
    Ours,
    /// An adopted command: a key of the data node that has its token is its lock, as it was before
    /// the rule was bridged.
    Adopted,
}

/// An operation on a lock and its key.
pub(crate) struct Crossing {
    bridge: Arc<Bridge>,
    place: KeyPlace,
    key: Key,
    token: Token,
    asker: Asker,
}

/// A key that was taken, and is freed when this is dropped.
struct TakenKey<'a> {
    crossing: &'a Crossing,
    is_kept: bool,
}

impl Drop for TakenKey<'_> {
    fn drop(&mut self) {
        if !self.is_kept {
            let Crossing { bridge, place, token, .. } = self.crossing;
            bridge.keys.free_soon(place.clone(), token.clone());
        }
    }
}

impl Crossing {
    /// Prepares an operation; `None` if no bridged rule has the lock.
    pub(crate) fn of(
        bridge: Option<&Arc<Bridge>>,
        key: &Key,
        token: &Token,
        asker: Asker,
    ) -> Option<Crossing> {
        let bridge = bridge?;
        let place = bridge.place(key)?;
        let (key, token) = (key.clone(), token.clone());
        Some(Crossing { bridge: bridge.clone(), place, key, token, asker })
    }

    /// Takes the lock. `again`: the claim of a grant that the asker has. With `wait` the lock is
    /// asked for again and again, for at most that long.
    pub(crate) async fn acquire(
        self,
        ttl: Duration,
        again: Option<Claim>,
        wait: Option<Duration>,
    ) -> Result<Grant, NotGranted> {
        let until = wait.map(|wait| Instant::now() + wait);
        loop {
            let said = self.attempt(ttl, again).await;
            let left = until.map_or(Duration::ZERO, |until| until - Instant::now());
            match said {
                Err(NotGranted::Held { .. }) if !left.is_zero() => sleep(AGAIN.min(left)).await,
                said => return said,
            }
        }
    }

    async fn attempt(&self, ttl: Duration, again: Option<Claim>) -> Result<Grant, NotGranted> {
        let Crossing { bridge, place, key, token, .. } = self;
        let lasts = self.lasts(ttl);
        let mut taken = None;
        if again.is_some() {
            let kept = bridge.keys.keep(place, token, lasts, IfGone::Make).await;
            if !kept.map_err(|error| NotGranted::NoQuorum(silent(&error)))? {
                return Err(NotGranted::Held { remaining: None, contested: false });
            }
        } else {
            let said = bridge.keys.take(place, token, lasts).await;
            if let Err(left) = said.map_err(|error| NotGranted::NoQuorum(silent(&error)))? {
                let remaining = u64::try_from(left).ok().map(Duration::from_millis);
                return Err(NotGranted::Held { remaining, contested: false });
            }
            taken = Some(TakenKey { crossing: self, is_kept: false });
        }
        let (key, token) = (key.clone(), token.clone());
        let grant = match self.asker {
            Asker::Ours => bridge.engine.acquire(key, token, ttl, again).await?,
            Asker::Adopted => bridge.engine.adopt(key, token, ttl).await?,
        };
        if let Some(taken) = &mut taken {
            taken.is_kept = true;
        }
        Ok(grant)
    }

    /// Renews the lock; `None` if it is not the token's.
    pub(crate) async fn renew(
        self,
        ttl: Duration,
        claim: Option<Claim>,
    ) -> Result<Option<Renewed>, NoQuorum> {
        let Crossing { bridge, place, key, token, .. } = &self;
        let (engine, lasts) = (&bridge.engine, self.lasts(ttl));
        let Some(renewed) = engine.renew(key.clone(), token.clone(), ttl, claim).await? else {
            return match self.is_by_token(claim) {
                false => Ok(None),
                true => self.adopt_key(ttl).await,
            };
        };
        let kept = bridge.keys.keep(place, token, lasts, IfGone::Make).await;
        if kept.map_err(|error| silent(&error))? {
            let validity = renewed.until - Instant::now();
            return Ok(Some(Renewed { validity, ..renewed }));
        }
        // The data node has lost the key, and somebody past the proxy has taken it since.
        let _ = engine.release(key.clone(), token.clone(), claim).await;
        Ok(None)
    }

    /// Renews a lock that was taken before the rule was bridged: the data node has its key, and the
    /// lock nodes are asked for the lock.
    async fn adopt_key(&self, ttl: Duration) -> Result<Option<Renewed>, NoQuorum> {
        let Crossing { bridge, place, key, token, .. } = self;
        let kept = bridge.keys.keep(place, token, self.lasts(ttl), IfGone::Leave).await;
        if !kept.map_err(|error| silent(&error))? {
            return Ok(None);
        }
        match bridge.engine.adopt(key.clone(), token.clone(), ttl).await {
            Ok(Grant { fence, claim, validity, until }) => {
                Ok(Some(Renewed { validity, until, grant: claim.map(|claim| (claim, fence)) }))
            }
            Err(NotGranted::NoQuorum(error)) => Err(error),
            Err(_) => Ok(None),
        }
    }

    /// Releases the lock. Returns whether the token held it.
    pub(crate) async fn release(self, claim: Option<Claim>) -> Result<bool, NoQuorum> {
        let Crossing { bridge, place, key, token, .. } = &self;
        let released = bridge.engine.release(key.clone(), token.clone(), claim).await;
        if !self.is_by_token(claim) && released != Ok(true) {
            return released;
        }
        let had_key = bridge.keys.free(place, token).await;
        let released = released?;
        Ok(had_key.map_err(|error| silent(&error))? || released)
    }

    /// Tells who holds the lock, or has its key.
    pub(crate) async fn look(self) -> Result<Option<Holding>, NoQuorum> {
        let Crossing { bridge, place, key, .. } = &self;
        if let Some(holding) = bridge.engine.look(key.clone()).await? {
            return Ok(Some(holding));
        }
        let held = bridge.keys.look(place).await.map_err(|error| silent(&error))?;
        Ok(held.map(|(token, left)| {
            let left = u64::try_from(left).ok().map(Duration::from_millis);
            Holding { token, left, claim: Some(Claim::PAST_THE_NODES) }
        }))
    }

    /// Whether a key that has the token is the asker's, also where the lock nodes know nothing of it.
    fn is_by_token(&self, claim: Option<Claim>) -> bool {
        self.asker == Asker::Adopted && claim.is_none_or(|claim| claim == Claim::PAST_THE_NODES)
    }

    /// The TTL of the key, in which the data node may have been slow once.
    fn lasts(&self, ttl: Duration) -> Duration {
        ttl_for(ttl, data_key::LIMIT, self.bridge.drift_factor)
    }
}

/// The error if the data node did not answer about a key.
fn silent(error: &RedisError) -> NoQuorum {
    NoQuorum { data_node: Some(error.to_string()), ..NoQuorum::default() }
}
