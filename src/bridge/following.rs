//! Giving back and extending a lock whose adopt rule another proxy has bridged, and this one has not. A proxy
//! acquires by its own mode, which also says who decides: here the lock nodes. The lock may have been taken through
//! the other proxy, so its keys on the data node are extended or freed too, where they have the token.

use std::{sync::Arc, time::Duration};

use super::{
    bridged_keys::Bridge,
    crossing::Asker,
    data_key::{IfGone, Lasts},
};
use crate::{
    adopt::place::KeyPlace,
    clock::Instant,
    key::{Key, Token},
    lock::{Claim, NoQuorum, Renewed},
};

/// An operation on a lock that another proxy may have taken on the data node as well.
pub(crate) struct FollowingKeys {
    bridge: Arc<Bridge>,
    places: Vec<KeyPlace>,
    key: Key,
    token: Token,
    asker: Asker,
}

impl FollowingKeys {
    /// Prepares an operation; `None` if no other proxy has bridged a rule that has the lock.
    pub(crate) fn of(
        bridge: Option<&Arc<Bridge>>,
        (key, token): (&Key, &Token),
        asker: Asker,
    ) -> Option<FollowingKeys> {
        let bridge = bridge?;
        let places = bridge.followed_places(key);
        let (key, token, bridge) = (key.clone(), token.clone(), bridge.clone());
        (!places.is_empty()).then_some(FollowingKeys { bridge, places, key, token, asker })
    }

    /// Renews the lock; `None` if it is not the token's.
    ///
    /// # Errors
    /// If too few lock nodes have answered.
    pub(crate) async fn renew(
        self,
        ttl: Duration,
        claim: Option<Claim>,
    ) -> Result<Option<Renewed>, NoQuorum> {
        let FollowingKeys { bridge, places, key, token, .. } = self;
        let renewed = bridge.engine.renew(key, token.clone(), ttl, claim).await?;
        let Some(renewed) = renewed else { return Ok(None) };
        let lasts = Lasts::For(bridge.lasts(ttl));
        // Without the key the lock nodes keep others out all the same.
        let _ = bridge.keys.keep(&places, &token, lasts, IfGone::Leave).await;
        Ok(Some(Renewed { validity: renewed.until - Instant::now(), ..renewed }))
    }

    /// Releases the lock. Returns whether the token held it.
    ///
    /// # Errors
    /// If too few lock nodes have answered.
    pub(crate) async fn release(self, claim: Option<Claim>) -> Result<bool, NoQuorum> {
        let FollowingKeys { bridge, places, key, token, asker } = self;
        let released = match (claim, asker) {
            (Some(claim), Asker::Adopted) => {
                bridge.engine.release_found(key, token.clone(), claim).await
            }
            _ => bridge.engine.release(key, token.clone(), claim).await,
        };
        // Of an adopted command only the token is known: a key that has it is its own.
        let is_by_token = asker == Asker::Adopted && claim.is_none();
        if released != Ok(false) || is_by_token {
            // Where that fails the key runs out.
            let _ = bridge.keys.free(&places, &token).await;
        }
        released
    }
}
