//! Clients of one proxy that wait for one another: a circle.
//!
//! A LOCK that waits holds up its connection. So a session lock that the connection keeps cannot be given
//! back over it, and who waits for that lock waits for the connection. Leases do not count: they run out,
//! and the programs of a pool release them over any connection.
//!
//! A wait closes a circle when it begins, as nothing else makes a client wait. It is looked for then, and
//! no circle that lasts is missed; of two that begin at once, one is the later. What this proxy knows of a
//! lock may be old: another proxy may have released it. So the lock nodes are asked for each lock of the
//! circle, and then the circle is looked for again.

use std::{future::poll_fn, sync::Arc};

use crate::{
    card::ClientCard,
    key::{Key, Token},
    lock::{Claim, LookUp, grants::Grants, holders::Holders},
    sync::Mutex,
};

/// The most clients of a circle that is found.
const MOST: usize = 16;

/// A session lock that one client of a circle keeps, and the next one waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::lock) struct KeptInCircle {
    pub(in crate::lock) key: Key,
    token: Token,
    claim: Claim,
}

/// Finds circles. Waits begin one after the other under its mutex.
#[derive(Default)]
pub(in crate::lock) struct Circles(Mutex<()>);

impl Circles {
    /// Notes that a client begins to wait for `key`. Returns the circle that it closes, as far as this
    /// proxy knows.
    pub(in crate::lock) fn begin(
        &self,
        holders: &Holders,
        key: &Key,
        card: &Arc<ClientCard>,
    ) -> Option<Vec<KeptInCircle>> {
        let _begins = self.0.lock();
        card.set_waits_for(Some(key.clone()));
        circle(holders, key, card)
    }
}

/// The locks of the circle in which this client waits for `key`, that one first.
fn circle(holders: &Holders, key: &Key, card: &Arc<ClientCard>) -> Option<Vec<KeptInCircle>> {
    let (mut locks, mut key) = (Vec::new(), key.clone());
    while locks.len() < MOST {
        let (token, claim, keeper) = holders.kept(&key)?;
        locks.push(KeptInCircle { key, token, claim });
        if keeper == *card {
            // A lock that the client itself has is no circle: it is asked for again.
            return (locks.len() > 1).then_some(locks);
        }
        key = keeper.waits_for()?;
    }
    None
}

/// Asks the lock nodes whether each lock of the circle is held as this proxy knows, and then whether the
/// circle is there still.
pub(in crate::lock) async fn stands(
    grants: Arc<Grants>,
    found: Vec<KeptInCircle>,
    card: Arc<ClientCard>,
) -> bool {
    let looks: Vec<LookUp> = {
        let nodes = grants.nodes();
        found.iter().map(|lock| LookUp::ask(&nodes, lock.key.clone())).collect()
    };
    for (mut look, lock) in looks.into_iter().zip(&found) {
        let claim = poll_fn(|cx| look.poll_claim_of(&lock.token, cx)).await;
        if claim != Ok(Some(lock.claim)) {
            return false;
        }
    }
    let Some(first) = found.first() else { return false };
    card.waits_for().as_ref() == Some(&first.key)
        && circle(&grants.holders, &first.key, &card).as_ref() == Some(&found)
}
