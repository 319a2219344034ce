//! Clients of one proxy that wait for one another: a circle.
//!
//! A LOCK that waits holds up its connection. So the connection cannot give back a session lock that it keeps, and a
//! client that waits for that lock waits for the connection. Leases do not count: they run out, and the programs of a
//! pool release them over any connection.
//!
//! Only a wait that begins can close a circle, as nothing else makes a client wait. So the proxy looks for a circle
//! then, and misses none that lasts: of two waits that begin at once, one is the later. What this proxy knows of a
//! lock may be old: another proxy may have released it. So it asks the lock nodes for each lock of the circle, and
//! then looks for the circle again.

use std::sync::Arc;

use crate::{
    card::ClientCard,
    key::{Key, Token},
    lock::{Claim, holders::Holders},
    sync::Mutex,
};

/// The most clients of a circle that is looked for.
const MOST: usize = 16;

/// A session lock that one client of a circle keeps, and the next one waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::lock) struct KeptInCircle {
    pub(in crate::lock) key: Key,
    pub(in crate::lock) token: Token,
    pub(in crate::lock) claim: Claim,
}

/// The search for circles. Waits begin one after the other under its mutex.
#[derive(Default)]
pub(in crate::lock) struct Circles(Mutex<()>);

impl Circles {
    /// Notes that a client begins to wait for `key`. Returns the circle that this closes, as far as this proxy knows.
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

/// Returns the locks of the circle in which this client waits for `key`, that one first.
pub(super) fn circle(
    holders: &Holders,
    key: &Key,
    card: &Arc<ClientCard>,
) -> Option<Vec<KeptInCircle>> {
    let (mut locks, mut key) = (Vec::new(), key.clone());
    while locks.len() < MOST {
        let (token, claim, keeper) = holders.kept(&key)?;
        locks.push(KeptInCircle { key, token, claim });
        if keeper == *card {
            // A client that itself has the lock makes no circle: it asks for the lock again.
            return (locks.len() > 1).then_some(locks);
        }
        key = keeper.waits_for()?;
    }
    None
}
