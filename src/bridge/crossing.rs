//! One operation on a bridged lock, on the data node and on the lock nodes.

use std::{sync::Arc, time::Duration};

use bb8_redis::redis::RedisError;
use tokio::time::sleep;

use super::{
    bridged_keys::Bridge,
    data_key::{self, IfGone, KeysKept, LIMIT, Lasts, TakenKeys},
};
use crate::{
    adopt::place::KeyPlace,
    card::ClientCard,
    clock::Instant,
    key::{Key, Token},
    lock::{Claim, Grant, Holding, NoQuorum, NotGranted, Renewed, SameToken},
};

/// How often a LOCK that waits asks again: nothing tells when a key of the data node is freed.
const AGAIN: Duration = Duration::from_millis(50);
/// How often a renewal asks for keys that another client has: a client that the quorum will refuse has them only for a
/// moment.
const TRIES: u32 = 10;
/// Pause between these questions.
const BETWEEN: Duration = Duration::from_millis(20);

/// The asker of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asker {
    /// A command of ours: the lock nodes alone say which token holds the lock.
    Ours,
    /// An adopted command: a key of the data node that has its token is its lock, as it was before
    /// the rule was bridged.
    Adopted,
    /// A command of ours about a grant that the lock nodes have named.
    Told,
    /// An adopted command that the data node carries out itself: only the lock nodes are asked.
    BesideDataNode,
}

/// An operation on a lock and its keys.
pub(crate) struct Crossing {
    bridge: Arc<Bridge>,
    places: Vec<KeyPlace>,
    key: Key,
    token: Token,
    asker: Asker,
    /// The client that asks.
    card: Arc<ClientCard>,
}

impl Crossing {
    /// Prepares an operation; `None` if no bridged rule has the lock.
    pub(crate) fn of(
        bridge: Option<&Arc<Bridge>>,
        (key, token): (&Key, &Token),
        asker: Asker,
        card: &Arc<ClientCard>,
    ) -> Option<Crossing> {
        let bridge = bridge?;
        let places = bridge.places(key);
        let (key, token) = (key.clone(), token.clone());
        let (bridge, card) = (bridge.clone(), card.clone());
        (!places.is_empty()).then_some(Crossing { bridge, places, key, token, asker, card })
    }

    /// Takes the lock for an adopted command, by this claim.
    pub(crate) async fn adopt(self, ttl: Duration, claim: Claim) -> Result<Grant, NotGranted> {
        self.attempt(ttl, None, Some(claim)).await
    }

    /// Takes the lock for a LOCK. `again`: the claim of a grant that the asker has. With `wait` the
    /// lock is asked for again and again, for at most that long.
    pub(crate) async fn acquire(
        self,
        ttl: Duration,
        again: Option<Claim>,
        wait: Option<Duration>,
    ) -> Result<Grant, NotGranted> {
        let until = wait.map(|wait| Instant::now() + wait);
        loop {
            let said = self.attempt(ttl, again, None).await;
            let left = until.map_or(Duration::ZERO, |until| until - Instant::now());
            match said {
                Err(NotGranted::Held { .. }) if !left.is_zero() => sleep(AGAIN.min(left)).await,
                said => return said,
            }
        }
    }

    /// Tries once to take the lock. `adopted`: the new claim, for an adopted command.
    async fn attempt(
        &self,
        ttl: Duration,
        again: Option<Claim>,
        adopted: Option<Claim>,
    ) -> Result<Grant, NotGranted> {
        let Crossing { bridge, key, token, .. } = self;
        if again.is_none() && bridge.engine.paused_for().is_some() {
            return Err(NotGranted::held(true));
        }
        let kept = match again {
            Some(_) => Some(self.keep(ttl).await.map_err(NotGranted::NoQuorum)?),
            None => None,
        };
        let (taken, asked) = match kept {
            Some((KeysKept::Kept | KeysKept::Made, asked)) => (None, asked),
            Some((KeysKept::Refused, _)) => return Err(NotGranted::held(false)),
            Some((KeysKept::Released, _)) | None => {
                let asked = Instant::now();
                (Some(self.take_keys(ttl).await?), asked)
            }
        };
        let (key, token) = (key.clone(), token.clone());
        let acquire = match adopted {
            None => bridge.engine.acquire(key.clone(), token.clone(), ttl, again),
            Some(claim) => bridge.engine.adopt(key.clone(), token.clone(), ttl, claim),
        };
        let grant = acquire.by(&self.card).await?;
        // The process may have stood still in between.
        if grant.until > asked + ttl + LIMIT {
            if taken.is_some() {
                let _ = bridge.engine.release(key, token, grant.claim).await;
            }
            return Err(NotGranted::NoQuorum(silent(&data_key::silent())));
        }
        if let Some(keys) = taken {
            keys.keep();
        }
        Ok(grant)
    }

    /// Takes the keys unless one is there.
    async fn take_keys(&self, ttl: Duration) -> Result<TakenKeys, NotGranted> {
        let Crossing { bridge, places, token, .. } = self;
        let said = bridge.keys.take(places, token, bridge.lasts(ttl)).await;
        said.map_err(|error| NotGranted::NoQuorum(silent(&error)))?.map_err(|left| {
            let remaining = u64::try_from(left).ok().map(Duration::from_millis);
            NotGranted::Held { remaining, may_be_free: false, same_token: SameToken::Unknown }
        })
    }

    /// Gives the keys a new TTL, or makes them anew. Returns when that was asked for, too.
    async fn keep(&self, ttl: Duration) -> Result<(KeysKept, Instant), NoQuorum> {
        let Crossing { bridge, places, key, token, .. } = self;
        let mut tried = 1;
        loop {
            let (lasts, asked) = (Lasts::For(bridge.lasts(ttl)), Instant::now());
            let kept = bridge.keep_or_make((key, token), places, lasts).await;
            match kept.map_err(|error| silent(&error))? {
                KeysKept::Refused if tried < TRIES => sleep(BETWEEN).await,
                kept => return Ok((kept, asked)),
            }
            tried += 1;
        }
    }

    /// Gives the keys of a lock that was renewed on the lock nodes a new TTL, or makes them anew. Returns whether they
    /// are the token's.
    async fn keep_renewed(&self, ttl: Duration) -> Result<bool, NoQuorum> {
        Ok(matches!(self.keep(ttl).await?, (KeysKept::Kept | KeysKept::Made, _)))
    }

    /// Renews the lock; `None` if it is not the token's.
    pub(crate) async fn renew(
        self,
        ttl: Duration,
        claim: Option<Claim>,
    ) -> Result<Option<Renewed>, NoQuorum> {
        let Crossing { bridge, key, token, .. } = &self;
        let engine = &bridge.engine;
        let Some(renewed) = engine.renew(key.clone(), token.clone(), ttl, claim).await? else {
            return match self.is_by_token(claim) {
                false => Ok(None),
                true => {
                    let adopted = self.adopt_keys(ttl, Claim::adopted()).await?;
                    Ok(adopted.map(|Grant { fence, claim, validity, until }| Renewed {
                        validity,
                        until,
                        grant: claim.map(|claim| (claim, fence)),
                    }))
                }
            };
        };
        if self.keep_renewed(ttl).await? {
            let validity = renewed.until - Instant::now();
            return Ok(Some(Renewed { validity, ..renewed }));
        }
        // The data node has lost the key, and a client past the proxy has taken it since.
        let _ = engine.release(key.clone(), token.clone(), claim).await;
        Ok(None)
    }

    /// Takes over a lock of an adopted command with a new claim: one without a TTL gets one, or one with a TTL loses
    /// it.
    pub(crate) async fn convert(self, ttl: Duration, claim: Claim) -> Result<Grant, NotGranted> {
        let Crossing { bridge, key, token, .. } = &self;
        let nobodys = NotGranted::held(false);
        let taking = bridge.engine.take_over(key.clone(), token.clone(), ttl, claim);
        let grant = match taking.by(&self.card).await {
            Err(NotGranted::Held { .. }) => {
                let adopted = self.adopt_keys(ttl, claim).await;
                return adopted.map_err(NotGranted::NoQuorum)?.ok_or(nobodys);
            }
            said => said?,
        };
        if self.keep_renewed(ttl).await.map_err(NotGranted::NoQuorum)? {
            let validity = grant.until - Instant::now();
            return Ok(Grant { validity, ..grant });
        }
        // The data node has lost the key, and a client past the proxy has taken it since.
        let _ = bridge.engine.release(key.clone(), token.clone(), Some(claim)).await;
        Err(nobodys)
    }

    /// Takes a lock whose key the token has from before the rule was bridged: asks the lock nodes for the lock, by
    /// this claim.
    async fn adopt_keys(&self, ttl: Duration, claim: Claim) -> Result<Option<Grant>, NoQuorum> {
        let Crossing { bridge, places, key, token, .. } = self;
        bridge.engine.audit_trail_room(None).await?;
        let lasts = Lasts::For(bridge.lasts(ttl));
        let kept = bridge.keys.keep(places, token, lasts, IfGone::Leave).await;
        if kept.map_err(|error| silent(&error))? == KeysKept::Refused {
            return Ok(None);
        }
        match bridge.engine.adopt(key.clone(), token.clone(), ttl, claim).by(&self.card).await {
            Ok(grant) => Ok(Some(grant)),
            Err(NotGranted::NoQuorum(error)) => Err(error),
            Err(_) => Ok(None),
        }
    }

    /// Frees keys of which the lock nodes know nothing, for a command that names no token. A client that took them
    /// may be asking the lock nodes for the lock just now, so this asks for it first: one of the two is refused.
    async fn release_past(&self) -> Result<bool, NoQuorum> {
        let Crossing { bridge, places, key, token, .. } = self;
        let (engine, claim) = (&bridge.engine, Claim::adopted());
        engine.audit_trail_room(None).await?;
        match engine.adopt(key.clone(), token.clone(), LIMIT, claim).await {
            Ok(_) => {}
            Err(NotGranted::NoQuorum(error)) => return Err(error),
            Err(_) => return Ok(false),
        }
        let had_key = bridge.keys.free(places, token).await;
        let _ = engine.release(key.clone(), token.clone(), Some(claim)).await;
        had_key.map_err(|error| silent(&error))
    }

    /// Releases the lock. Returns whether the token held it.
    pub(crate) async fn release(self, claim: Option<Claim>) -> Result<bool, NoQuorum> {
        if claim == Some(Claim::PAST_THE_NODES) {
            return self.release_past().await;
        }
        let Crossing { bridge, places, key, token, .. } = &self;
        let released = match (claim, self.asker) {
            (Some(claim), Asker::Adopted | Asker::Told) if claim != Claim::PAST_THE_NODES => {
                bridge.engine.release_found(key.clone(), token.clone(), claim).await
            }
            _ => bridge.engine.release(key.clone(), token.clone(), claim).await,
        };
        // Lock nodes may still carry out a release that too few of them answered.
        if !self.is_by_token(claim) && released == Ok(false) {
            return released;
        }
        let had_key = bridge.keys.free(places, token).await;
        let released = released?;
        match had_key {
            Ok(had_key) => Ok(had_key || released),
            Err(error) => Err(NoQuorum { was_held: released, ..silent(&error) }),
        }
    }

    /// Finds which token holds the lock, or has its key.
    pub(crate) async fn look(self) -> Result<Option<Holding>, NoQuorum> {
        let Crossing { bridge, places, key, .. } = &self;
        if let Some(holding) = bridge.engine.look(key.clone()).await? {
            return Ok(Some(holding));
        }
        let held = bridge.keys.look(places).await.map_err(|error| silent(&error))?;
        Ok(held.map(|(token, left)| {
            let left = u64::try_from(left).ok().map(Duration::from_millis);
            Holding { token, left, claim: Some(Claim::PAST_THE_NODES) }
        }))
    }

    /// Whether a key that has the token is the asker's, even where the lock nodes know nothing of it.
    fn is_by_token(&self, claim: Option<Claim>) -> bool {
        self.asker == Asker::Adopted && claim.is_none_or(|claim| claim == Claim::PAST_THE_NODES)
    }
}

/// Returns the error for a data node that did not answer about a key.
fn silent(error: &RedisError) -> NoQuorum {
    NoQuorum { data_node: Some(error.to_string()), ..NoQuorum::default() }
}
