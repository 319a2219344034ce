//! Learns of releases through other proxies: a subscription to one lock node, for the locks that clients of this
//! proxy wait for, while there are any. Each shard of a cluster is subscribed to for the locks whose slots it has.
//!
//! The subscription has a connection apart from the one that carries operations. A missed message
//! costs a waiter time and nothing else.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
    time::Duration,
};

use tokio::time::{Instant, sleep, sleep_until};
use tracing::debug;

use super::{
    queue::Wishes,
    subscription::{Subscription, SubscriptionEnded, SubscriptionNews},
};
use crate::{
    lock::{address::NodeAddress, locks::Locks, node::backoff::Backoff},
    net::Connector,
};

/// The time between two checks where the locks' slots are, and whether clients wait.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Idle time after which a connection without subscriptions is closed.
const IDLE: Duration = Duration::from_secs(10);

/// The longest key, in bytes, of a lock whose channel is subscribed to: a message must fit in one reply.
const LONGEST_KEY: usize = 32 * 1024;

/// A lock node to be subscribed to.
pub(in crate::lock) struct ListeningSeat {
    pub(in crate::lock) seat: usize,
    /// The voter to which the seat belongs.
    pub(in crate::lock) voter: usize,
    pub(in crate::lock) address: Arc<NodeAddress>,
    pub(in crate::lock) connector: Connector,
}

/// Keeps a subscription to a node for as long as a client waits for a lock on which it votes.
pub(in crate::lock) async fn run(locks: Weak<Locks>, listener: ListeningSeat) {
    let Some((wishes, gone)) = locks
        .upgrade()
        .map(|locks| (locks.queues.wishes(listener.seat), locks.queues.gone.clone()))
    else {
        return;
    };
    tokio::select! {
        () = keep(&locks, &listener, &wishes) => {}
        () = gone.cancelled() => {}
    }
}

async fn keep(locks: &Weak<Locks>, listener: &ListeningSeat, wishes: &Wishes) {
    let address = &listener.address;
    let mut backoff = Backoff::default();
    loop {
        address.occupied().await;
        let (here, anywhere) = match locks.upgrade() {
            Some(locks) => {
                (locks.queues.is_listening_to(|key| address.has(key)), locks.queues.is_listening())
            }
            None => return,
        };
        if !here {
            tokio::select! {
                () = wishes.changed.notified() => {}
                // Slots may come here.
                () = sleep(LOOK_EVERY), if anywhere => {}
            }
            continue;
        }
        let since = Instant::now();
        let mut told = ToldOf::default();
        let ended = listen(locks, listener, wishes, &mut told).await;
        let Some(locks) = locks.upgrade() else { return };
        locks.queues.disconnected(listener.seat);
        locks.queues.unsubscribed(listener.voter, told.keys());
        drop(locks);
        if !matches!(ended, Err(SubscriptionEnded::Idle)) {
            if let Err(reason) = ended {
                debug!(node = %address, %reason, "subscription has ended");
            }
            backoff.lasted(since.elapsed());
            sleep(backoff.next()).await;
        }
    }
}

/// The locks whose releases a node was asked to publish here, and whether it has confirmed that.
type ToldOf = HashMap<Vec<u8>, bool>;

/// Serves one connection until it ends.
async fn listen(
    locks: &Weak<Locks>,
    listener: &ListeningSeat,
    wishes: &Wishes,
    told: &mut ToldOf,
) -> Result<(), SubscriptionEnded> {
    let locks = || locks.upgrade().ok_or(SubscriptionEnded::Unused);
    let ListeningSeat { seat, address, connector, .. } = listener;
    let there = address.now()?;
    let dialect = locks()?.grants.nodes().dialect;
    let mut subscription = Subscription::open(&there.url, connector, dialect).await?;
    locks()?.queues.connected(*seat);
    let (mut next_look, mut busy) = (Instant::now(), Instant::now());
    loop {
        let (wanted, unwanted) = tokio::select! {
            news = subscription.next() => {
                hear(&*locks()?, listener, news?, told);
                continue;
            }
            () = address.left(&there) => return Err(SubscriptionEnded::Elsewhere),
            () = wishes.changed.notified() => listener.wished(&*locks()?, wishes, told),
            () = sleep_until(next_look) => {
                next_look = Instant::now() + LOOK_EVERY;
                (listener.look(&*locks()?, told), Vec::new())
            }
        };
        subscription.unsubscribe(unwanted).await?;
        subscription.subscribe(wanted).await?;
        if !told.is_empty() {
            busy = Instant::now();
        } else if busy.elapsed() > IDLE {
            return Err(SubscriptionEnded::Idle);
        }
    }
}

impl ListeningSeat {
    /// Takes the wanted changes. Returns the locks to subscribe to, and those to unsubscribe from.
    fn wished(
        &self,
        locks: &Locks,
        wishes: &Wishes,
        told: &mut ToldOf,
    ) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
        let (mut wanted, mut unwanted) = (Vec::new(), Vec::new());
        for (key, subscribe) in wishes.take() {
            if !subscribe {
                unwanted.extend(told.remove(&key).map(|_| key));
            } else if self.address.has(&key) {
                self.want(locks, key, told, &mut wanted);
            }
        }
        (wanted, unwanted)
    }

    /// Forgets locks whose slots have left. Returns those to subscribe to: their slots have come, or it was not known
    /// where they are.
    fn look(&self, locks: &Locks, told: &mut ToldOf) -> Vec<Vec<u8>> {
        let gone: Vec<Vec<u8>> =
            told.keys().filter(|key| !self.address.has(key)).cloned().collect();
        self.lost(locks, &gone, told);
        let mut wanted = Vec::new();
        for key in locks.queues.untold(self.voter) {
            if self.address.has(&key) {
                self.want(locks, key, told, &mut wanted);
            }
        }
        wanted
    }

    fn want(&self, locks: &Locks, key: Vec<u8>, told: &mut ToldOf, wanted: &mut Vec<Vec<u8>>) {
        match told.get(&key) {
            None if key.len() > LONGEST_KEY => {}
            None => {
                told.insert(key.clone(), false);
                wanted.push(key);
            }
            // The queue is new, or the slot's previous shard has reported its loss late.
            Some(true) => locks.queues.subscribed(self.voter, &key),
            Some(false) => {}
        }
    }

    fn lost(&self, locks: &Locks, keys: &[Vec<u8>], told: &mut ToldOf) {
        for key in keys {
            told.remove(key);
        }
        locks.queues.unsubscribed(self.voter, keys.iter());
    }
}

/// Takes in news from a node. A release by this proxy itself is ignored.
fn hear(locks: &Locks, listener: &ListeningSeat, news: SubscriptionNews, told: &mut ToldOf) {
    match news {
        SubscriptionNews::Released(key, who) => {
            if !locks.grants.nodes().is_own_word(&who) {
                locks.queues.heard_of_release(listener.voter, &key);
            }
        }
        SubscriptionNews::Subscribed(key) => {
            if let Some(is_confirmed) = told.get_mut(&key) {
                *is_confirmed = true;
                locks.queues.subscribed(listener.voter, &key);
            }
        }
        SubscriptionNews::Lost(keys) => {
            listener.lost(locks, &keys, told);
            if let Some(shards) = listener.address.cluster() {
                shards.look_now();
            }
        }
    }
}
