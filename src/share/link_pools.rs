//! Which links there are: each thread has its own, a pool for each standing of clients.

use std::{cell::RefCell, collections::HashMap, sync::Arc};

use super::{
    greeting::ClientStanding,
    mailbox::Mailbox,
    opening,
    shared_link::SharedLink,
    sharing::{Connecting, Sharing},
};
use crate::data::Tenure;

/// The pool of links of one standing with one data node.
type PoolKey = (u64, ClientStanding);

thread_local! {
    static LINKS: RefCell<HashMap<PoolKey, Vec<Arc<SharedLink>>>> = RefCell::default();
}

/// Returns a link of this thread on which a client's commands may go, and opens one if there is none.
pub(super) fn link(
    sharing: &Arc<Sharing>,
    standing: &ClientStanding,
    tenure: Option<&Arc<Tenure>>,
    mailbox: &Arc<Mailbox>,
    connecting: Connecting,
) -> Arc<SharedLink> {
    LINKS.with_borrow_mut(|pools| {
        let key = (sharing.number, standing.clone());
        let pool = pools.entry(key.clone()).or_default();
        let is_fit = |link: &&Arc<SharedLink>| link.is_of(tenure) && link.takes(mailbox);
        if let Some(link) = pool.iter().find(is_fit) {
            return link.clone();
        }
        let tenure = tenure.cloned();
        let link = Arc::new(match pool.first() {
            Some(first) => first.beside(tenure),
            None => SharedLink::new(tenure),
        });
        pool.push(link.clone());
        drop(tokio::spawn(keep(link.clone(), sharing.clone(), key, connecting)));
        link
    })
}

/// Returns the tenure of the Redis to which an open link of this thread leads, `None` inside if it never ends. Returns
/// `None` if there is no such link.
pub(super) fn reached(sharing: &Sharing) -> Option<Option<Arc<Tenure>>> {
    LINKS.with_borrow(|pools| {
        let own = pools.iter().filter(|((number, _), _)| *number == sharing.number);
        let mut links = own.flat_map(|(_, pool)| pool);
        let open = links.find(|link| link.is_open() && link.is_of(link.tenure()));
        open.map(|link| link.tenure().cloned())
    })
}

/// Keeps a link in its pool until it ends.
async fn keep(link: Arc<SharedLink>, sharing: Arc<Sharing>, key: PoolKey, connecting: Connecting) {
    sharing.metrics.links.increment(1);
    let told = Arc::downgrade(&link);
    sharing.sharers.add(told);
    opening::run(link.clone(), &sharing, &key.1, connecting).await;
    sharing.metrics.links.decrement(1);
    LINKS.with_borrow_mut(|pools| {
        let Some(pool) = pools.get_mut(&key) else { return };
        pool.retain(|other| !Arc::ptr_eq(other, &link));
        if pool.is_empty() {
            pools.remove(&key);
        }
    });
}
