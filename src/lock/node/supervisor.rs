//! Keeps a connection to one lock node open, follows its standing, and has it inspected.

use std::{
    future::pending,
    sync::{Arc, Weak, atomic::Ordering},
    time::Duration,
};

use bb8_redis::bb8::Pool;
use tokio::time::{sleep, sleep_until, timeout_at};
use tracing::debug;

use super::{
    backoff::Backoff,
    connect::LinkManager,
    link::Link,
    node::{ASK_AGAIN, Node},
};
use crate::{
    clock::Instant,
    config::RedisUrl,
    lock::{
        jitter::jittered,
        members::{inspect::Inspector, shared_members::SharedMembers},
    },
};

/// The time between two inspections of a node.
const INSPECT_EVERY: Duration = Duration::from_secs(10);
/// The shortest life of a connection after which the next one is opened at once, if the node is well.
const BRIEFLY: Duration = Duration::from_millis(20);
/// The time before the first inspection, and before the next one if the epoch changed during the last.
const INSPECT_FIRST: Duration = Duration::from_millis(500);
/// The time between two checks whether the Sentinels, or the cluster, still name the node.
const CHECK_EVERY: Duration = Duration::from_millis(500);
/// The time before the next inspection of a node that did not answer.
const INSPECT_AGAIN: Duration = Duration::from_secs(2);

/// Keeps a connection open for as long as the node is wanted.
///
/// The connection belongs to a bb8 pool of one and is checked out for its whole life: checked out
/// per operation it would lose the order of operations. bb8 hides why an attempt failed and waits
/// on its own schedule, so the attempts are made here.
pub(super) async fn supervise(node: Arc<Node>) {
    let pool = Pool::builder()
        .max_size(1)
        .test_on_check_out(false)
        .max_lifetime(None)
        .idle_timeout(None)
        .build_unchecked(LinkManager { node: Arc::downgrade(&node) });
    let gone = node.gone.clone();
    let this = Arc::downgrade(&node);
    drop(node);
    let mut backoff = Backoff::default();
    loop {
        let Some(address) = this.upgrade().map(|node| node.address.clone()) else { return };
        tokio::select! {
            () = address.occupied() => {}
            () = gone.cancelled() => return,
        }
        let connected = pool.dedicated_connection().await;
        let Some(node) = this.upgrade() else { return };
        match connected {
            Ok(link) => {
                if pool.add(link).is_ok()
                    && let Ok(link) = pool.get().await
                {
                    let since = Instant::now();
                    let generation = node.members.generation();
                    node.connected(&link);
                    let members = node.members.clone();
                    drop(node);
                    tokio::select! {
                        biased;
                        () = link.closed() => {}
                        () = gone.cancelled() => return,
                        () = follow(&this, &members, &link, generation) => {}
                        () = check(&this) => {}
                    }
                    let lasted = since.elapsed();
                    backoff.lasted(lasted);
                    let mut is_brief = false;
                    if let Some(node) = this.upgrade() {
                        is_brief = lasted >= BRIEFLY && node.is_awaited();
                        let voted = !node.standing.waits.load(Ordering::Acquire);
                        node.members.left(node.index, voted);
                        node.disconnected();
                    }
                    // The node is well: only its connection had to end.
                    if members.generation() != generation || is_brief {
                        continue;
                    }
                }
            }
            Err(error) => {
                node.metrics.errors_connect.increment(1);
                node.mark_down(error.to_string(), None, error.fault());
                drop(node);
            }
        }
        sleep(backoff.next()).await;
    }
}

/// Checks at intervals whether the node's Sentinels, or its cluster, still name it. Returns once the node is not
/// wanted any more; never for a node that needs no confirmation.
async fn check(this: &Weak<Node>) {
    while let Some(node) = this.upgrade() {
        if node.address.confirm().is_zero() {
            drop(node);
            return pending().await;
        }
        node.check_confirmed();
        drop(node);
        sleep(CHECK_EVERY).await;
    }
}

/// Follows the deployment while a connection is open. Ends the connection when its node must be admitted anew, and
/// then returns.
async fn follow(this: &Weak<Node>, members: &Arc<SharedMembers>, link: &Link, generation: u64) {
    let mut changes = members.changes();
    let Some((address, at)) = this.upgrade().map(|node| (node.address.clone(), node.at())) else {
        return;
    };
    let elsewhere = async {
        match at {
            Some(at) => address.left(&at).await,
            None => pending().await,
        }
    };
    tokio::pin!(elsewhere);
    loop {
        let Some(node) = this.upgrade() else { return };
        let is_waiting = node.standing.waits.load(Ordering::Acquire);
        let wait = if is_waiting { members.wait(node.index) } else { None };
        drop(node);
        let until = wait.and_then(|wait| wait.until);
        let over = async {
            match until {
                Some(until) => {
                    // Jitter: several proxies may wait for the same node.
                    sleep_until(until.max(tokio::time::Instant::now()) + jittered(2 * ASK_AGAIN))
                        .await;
                    members.ask().await;
                }
                None if is_waiting => sleep(ASK_AGAIN).await,
                None => pending().await,
            }
        };
        tokio::select! {
            biased;
            // The channel's sender lives in `members`, so it cannot close.
            _ = changes.changed() => {}
            () = &mut elsewhere => {
                link.end();
                return link.closed().await;
            }
            () = over => {}
        }
        if members.generation() != generation {
            link.end();
            return link.closed().await;
        }
        let Some(node) = this.upgrade() else { return };
        if is_waiting != node.standing.waits.load(Ordering::Acquire) || is_waiting {
            node.update_standing(0);
        }
    }
}

/// Inspects a node for faults at intervals, for as long as it is wanted.
pub(super) async fn inspect(node: Weak<Node>) {
    let Some(gone) = node.upgrade().map(|node| node.gone.clone()) else { return };
    let inspecting = async {
        let mut last: Option<(RedisUrl, Inspector)> = None;
        // The first operations go ahead of the first inspection.
        sleep(INSPECT_FIRST).await;
        loop {
            let (linked, told, url, connector, station, prefix) = {
                let node = node.upgrade()?;
                let members = &node.members;
                let (linked, told) = (members.linked(node.index), members.told(node.index));
                let station = (*node.standing.station.lock(), node.address.cluster().is_some());
                let url = node.at().map(|at| at.url);
                (linked, told, url, node.connector.clone(), station, node.prefix.clone())
            };
            let Some(url) = url else {
                sleep(INSPECT_AGAIN).await;
                continue;
            };
            let (_, inspector) = match last.take_if(|(of, _)| *of == url) {
                Some(last_one) => last.insert(last_one),
                None => last.insert((url.clone(), Inspector::new(&url, &connector, &prefix))),
            };
            let inspected = inspector.inspect(linked.as_ref(), told.as_deref(), station).await;
            let known = node.upgrade()?;
            let (standing, mut refuses) = (known.standing.clone(), false);
            let pause = match inspected {
                // The epoch has changed meanwhile.
                Ok(_) if known.members.told(known.index) != told => INSPECT_FIRST,
                Ok(inspected) => {
                    refuses = inspected.refusal.is_some();
                    known.inspected(inspected);
                    INSPECT_EVERY
                }
                // The node is away, or an ACL refuses INFO.
                Err(error) => {
                    debug!(node = %url, %error, "lock node cannot be inspected");
                    INSPECT_AGAIN
                }
            };
            drop(known);
            let next = tokio::time::Instant::now() + pause;
            loop {
                // Asks a node again soon that refuses writes or has answered a request with an error, but not once for
                // each error.
                let again = if refuses { INSPECT_AGAIN } else { pause };
                let until = next.min(tokio::time::Instant::now() + again);
                let _ = timeout_at(until, standing.refused.notified()).await;
                if tokio::time::Instant::now() >= next {
                    break;
                }
                if let Ok(refusal) = inspector.refusal(station.0).await {
                    refuses = refusal.is_some();
                    node.upgrade()?.note_refusal(refusal);
                }
                sleep(INSPECT_FIRST).await;
            }
        }
    };
    let _: Option<Option<std::convert::Infallible>> = gone.run_until_cancelled(inspecting).await;
}
