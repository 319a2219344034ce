//! Who waits for which lock on this proxy, and whose turn it is.
//!
//! One queue for each lock, first come, first served. Only its head asks the
//! nodes: at once when nothing is known of the lock, then when a quorum of nodes
//! has told of a release, when the holder's TTL has run out, and now and then in
//! case a message was lost. Nothing here knows connections or nodes.

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::Waker,
    time::Duration,
};

use tokio::{sync::Notify, time::Instant};
use tokio_util::sync::CancellationToken;

use crate::{
    config::LocksConfig,
    key::Token,
    lock::{
        Acquire, NoQuorum, NotGranted,
        jitter::jittered,
        metrics::{LockMetrics, WakeUp},
        quorum::quorum,
    },
    sync::Mutex,
};

/// How long a head sleeps at the most while it is told of releases: what a lost
/// message costs.
const LISTENING: Duration = Duration::from_secs(2);
/// How long it sleeps between tries while it is not: at first, and at the most.
const POLLING: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(250));
/// The same where several proxies got some nodes each, or too few nodes answered.
const CONTENDING: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(100));
/// How long a head leaves a lock to other proxies' clients after this proxy has
/// given it up for them. Their release wakes it before that.
const OTHERS_TURN: Duration = Duration::from_millis(10);
/// A node's clock may be behind by so much when a TTL runs out.
const EXPIRY_SLACK: Duration = Duration::from_millis(1);
/// How long a queue, and with it the subscription to its lock's channel, is kept
/// after the last waiter has left: clients that take turns come back.
const LINGER: Duration = Duration::from_secs(1);

/// All queues of one proxy.
pub(in crate::lock) struct Queues {
    queues: Mutex<HashMap<Vec<u8>, Queue>>,
    /// How many there are, for those who only want to know whether there is one.
    count: AtomicUsize,
    quorum: usize,
    /// These two change when the configuration is read again.
    max_waiters: AtomicUsize,
    max_handovers: AtomicUsize,
    metrics: Arc<LockMetrics>,
    /// For each node, what its subscription has to do.
    wishes: Vec<Arc<Wishes>>,
    /// Cancelled when the engine has gone.
    pub(in crate::lock) gone: CancellationToken,
}

/// What the subscription to one node has to do.
#[derive(Default)]
pub(in crate::lock) struct Wishes {
    /// By key, whether to subscribe or to unsubscribe. None while there is no
    /// connection: the next one begins with all that is wanted then.
    changes: Mutex<Option<HashMap<Vec<u8>, bool>>>,
    /// Told whenever there is something.
    pub(in crate::lock) changed: Notify,
}

/// Those who wait for one lock.
struct Queue {
    seats: VecDeque<InLine>,
    /// The head's request, or a hand-over to it, is under way.
    asking: bool,
    /// When the head asks the nodes again if nothing wakes it, and why.
    next_try: Instant,
    reason: Option<WakeUp>,
    /// It is to ask at once, or once more.
    woken: Option<WakeUp>,
    /// Tries without success since something was last heard.
    tries: u32,
    /// Several proxies got some nodes each: messages are of their giving up, and
    /// to follow them would be to clash again.
    clashed: bool,
    /// Hand-overs in a row.
    handovers: usize,
    /// Another proxy's clients wait too.
    others: bool,
    /// Too few nodes answered the last request.
    no_quorum: Option<NoQuorum>,
    /// Nodes that have told of a release since the last try, one bit each.
    heard: u64,
    /// Nodes that are subscribed to, one bit each.
    subscribed: u64,
    /// Nodes were asked to tell of releases.
    listening: bool,
    /// Since when nobody waits.
    empty_since: Option<Instant>,
}

struct InLine {
    ticket: u64,
    since: Instant,
    token: Token,
    ttl: Duration,
    waker: Option<Waker>,
    /// The lock is being handed over to it.
    handed: Option<Acquire>,
}

/// What a waiter is to do.
pub(in crate::lock) enum WaiterTurn {
    /// Ask the nodes. None: for the first time.
    Ask(Option<WakeUp>),
    /// Take what is being handed over.
    Take(Acquire),
    /// Wait, the head until that time at the longest.
    Wait(Option<Instant>),
}

/// Who is next when a lock is released.
pub(in crate::lock) enum NextHolder {
    /// Nobody here, or a head that asks the nodes already.
    Nobody,
    /// Another proxy's clients.
    Others,
    /// The head of the queue.
    HandTo { ticket: u64, token: Token, ttl: Duration },
}

/// How a waiter leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::lock) enum Departure {
    /// It has the lock for so long.
    Granted(Duration),
    /// Its time was up, or its client has gone.
    Gone,
}

impl Queues {
    pub(in crate::lock) fn new(config: &LocksConfig, metrics: Arc<LockMetrics>) -> Queues {
        Queues {
            queues: Mutex::default(),
            count: AtomicUsize::new(0),
            quorum: quorum(config.nodes.len()),
            max_waiters: AtomicUsize::new(config.max_waiters),
            max_handovers: AtomicUsize::new(config.max_handovers),
            metrics,
            wishes: config.nodes.iter().map(|_| Arc::default()).collect(),
            gone: CancellationToken::new(),
        }
    }

    /// Other limits from now on; whoever has a place keeps it.
    pub(in crate::lock) fn set_limits(&self, config: &LocksConfig) {
        self.max_waiters.store(config.max_waiters, Ordering::Relaxed);
        self.max_handovers.store(config.max_handovers, Ordering::Relaxed);
    }

    /// Takes a place at the end of the queue of `key`.
    ///
    /// # Errors
    /// If it is full.
    pub(in crate::lock) fn join(
        &self,
        key: &[u8],
        token: Token,
        ttl: Duration,
        ticket: u64,
    ) -> Result<(), NotGranted> {
        let mut queues = self.queues.lock();
        let queue = match queues.get_mut(key) {
            Some(queue) => queue,
            None => queues.entry(key.to_vec()).or_insert_with(Queue::new),
        };
        let limit = self.max_waiters.load(Ordering::Relaxed);
        if queue.seats.len() >= limit {
            return Err(NotGranted::QueueFull { limit });
        }
        if queue.seats.is_empty() {
            queue.ask_at_once(None);
        }
        queue.empty_since = None;
        let since = Instant::now();
        queue.seats.push_back(InLine { ticket, since, token, ttl, waker: None, handed: None });
        self.count.store(queues.len(), Ordering::Relaxed);
        self.metrics.waiters.increment(1.0);
        Ok(())
    }

    /// What the waiter with this ticket is to do. Where that is to wait, `waker`
    /// is woken when it is something else.
    pub(in crate::lock) fn turn(&self, key: &[u8], ticket: u64, waker: &Waker) -> WaiterTurn {
        let mut queues = self.queues.lock();
        let Some(queue) = queues.get_mut(key) else { return WaiterTurn::Wait(None) };
        let is_head = queue.seats.front().is_some_and(|seat| seat.ticket == ticket);
        let Some(seat) = queue.seats.iter_mut().find(|seat| seat.ticket == ticket) else {
            return WaiterTurn::Wait(None);
        };
        if let Some(acquire) = seat.handed.take() {
            debug_assert!(is_head, "a lock is handed to the first in line");
            return WaiterTurn::Take(acquire);
        }
        match &mut seat.waker {
            Some(known) => known.clone_from(waker),
            none => *none = Some(waker.clone()),
        }
        if !is_head || queue.asking {
            return WaiterTurn::Wait(None);
        }
        let reason = match queue.woken.take() {
            Some(woken) => Some(woken),
            None if queue.next_try <= Instant::now() => queue.reason,
            None => return WaiterTurn::Wait(Some(queue.next_try)),
        };
        queue.asking = true;
        queue.heard = 0;
        WaiterTurn::Ask(reason)
    }

    /// The head was not granted the lock: says when it is to try again.
    pub(in crate::lock) fn refused(&self, key: &[u8], ticket: u64, why: &NotGranted) {
        let mut queues = self.queues.lock();
        let Some(queue) = queues.get_mut(key) else { return };
        if queue.seats.front().is_none_or(|seat| seat.ticket != ticket) {
            return;
        }
        debug_assert!(queue.asking, "only who has asked is refused");
        queue.asking = false;
        queue.no_quorum = match why {
            NotGranted::NoQuorum(error) => Some(error.clone()),
            _ => None,
        };
        match why {
            NotGranted::Held { remaining, contested: false } => {
                queue.clashed = false;
                queue.sleep(*remaining, self.quorum);
                self.listen(key, queue);
            }
            NotGranted::Held { contested: true, .. } => {
                queue.clashed = true;
                queue.retry_after(CONTENDING);
            }
            NotGranted::NoQuorum(_) | NotGranted::QueueFull { .. } => {
                queue.retry_after(CONTENDING);
            }
        }
    }

    /// Why nobody in this queue can be told whether the lock is held.
    pub(in crate::lock) fn no_quorum(&self, key: &[u8]) -> Option<NoQuorum> {
        self.queues.lock().get(key)?.no_quorum.clone()
    }

    /// Gives a place up.
    pub(in crate::lock) fn leave(&self, key: &[u8], ticket: u64, how: Departure) {
        let mut queues = self.queues.lock();
        let Some(queue) = queues.get_mut(key) else { return };
        let Some(at) = queue.seats.iter().position(|seat| seat.ticket == ticket) else { return };
        let left = queue.seats.remove(at);
        self.metrics.waiters.decrement(1.0);
        if at == 0 {
            let asking = std::mem::take(&mut queue.asking);
            match how {
                Departure::Granted(ttl) => {
                    (queue.clashed, queue.woken, queue.no_quorum) = (false, None, None);
                    queue.sleep(Some(ttl), self.quorum);
                    if !queue.seats.is_empty() {
                        self.listen(key, queue);
                    }
                }
                // What it asked for is being undone: all is open again.
                Departure::Gone if asking => queue.ask_at_once(Some(WakeUp::Retry)),
                Departure::Gone => {}
            }
        }
        let next = (at == 0).then(|| queue.seats.front_mut()?.waker.take()).flatten();
        if queue.seats.is_empty() {
            if queue.listening {
                queue.empty_since = Some(Instant::now());
            } else {
                queues.remove(key);
                self.count.store(queues.len(), Ordering::Relaxed);
            }
        }
        drop(queues);
        // Undoes what was being handed over to it, before the next one asks.
        drop(left);
        if let Some(waker) = next {
            waker.wake();
        }
    }

    /// The lock is about to be released: who gets it?
    pub(in crate::lock) fn next(&self, key: &[u8]) -> NextHolder {
        if self.count.load(Ordering::Relaxed) == 0 {
            return NextHolder::Nobody;
        }
        let mut queues = self.queues.lock();
        let Some(queue) = queues.get_mut(key) else { return NextHolder::Nobody };
        let Some(head) = queue.seats.front() else { return NextHolder::Nobody };
        if queue.asking {
            return NextHolder::Nobody;
        }
        if queue.others || queue.handovers >= self.max_handovers.load(Ordering::Relaxed) {
            queue.handovers = 0;
            return NextHolder::Others;
        }
        queue.asking = true;
        queue.handovers += 1;
        queue.heard = 0;
        NextHolder::HandTo { ticket: head.ticket, token: head.token.clone(), ttl: head.ttl }
    }

    /// The release is on its way to every node, before whatever is asked from now
    /// on. What the head has asked for may have come too early.
    pub(in crate::lock) fn released(&self, key: &[u8], next: &NextHolder) {
        if self.count.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut queues = self.queues.lock();
        let Some(queue) = queues.get_mut(key).filter(|queue| !queue.seats.is_empty()) else {
            return;
        };
        if !matches!(next, NextHolder::Others) || queue.asking {
            return queue.wake(WakeUp::Release);
        }
        queue.woken = None;
        queue.next_try = Instant::now() + jittered(2 * OTHERS_TURN);
        queue.reason = Some(WakeUp::Retry);
        if let Some(waker) = queue.seats.front_mut().and_then(|head| head.waker.take()) {
            waker.wake();
        }
    }

    /// Gives the head what [`Queues::next`] has promised; gives it back where that
    /// waiter has left.
    pub(in crate::lock) fn hand(
        &self,
        key: &[u8],
        ticket: u64,
        acquire: Acquire,
    ) -> Option<Acquire> {
        let mut queues = self.queues.lock();
        let head = queues.get_mut(key).and_then(|queue| queue.seats.front_mut());
        let Some(head) = head.filter(|head| head.ticket == ticket) else { return Some(acquire) };
        debug_assert!(head.handed.is_none(), "one lock is handed over once");
        head.handed = Some(acquire);
        let waker = head.waker.take();
        drop(queues);
        if let Some(waker) = waker {
            waker.wake();
        }
        None
    }

    /// A release or a hand-over through this proxy has told how many subscribe to
    /// the lock's channel; none: that was refused.
    pub(in crate::lock) fn heard_of_listeners(&self, key: &[u8], listeners: Option<u64>) {
        if self.count.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut queues = self.queues.lock();
        let Some(queue) = queues.get_mut(key) else { return };
        // One of them is this proxy.
        queue.others = listeners.is_some_and(|listeners| listeners > 1);
        let nobody_else = listeners.is_some_and(|listeners| listeners <= 1);
        if nobody_else && queue.handovers == 0 && !queue.asking {
            // The turn was given up for nobody.
            queue.wake(WakeUp::Release);
        }
    }

    /// Node `node` has told of a release through another proxy.
    pub(in crate::lock) fn heard_of_release(&self, node: usize, key: &[u8]) {
        let mut queues = self.queues.lock();
        let Some(queue) = queues.get_mut(key) else { return };
        queue.heard |= bit(node);
        if queue.heard.count_ones() as usize >= self.quorum {
            queue.heard = 0;
            if !queue.clashed {
                queue.tries = 0;
                queue.wake(WakeUp::Message);
            }
        }
    }

    /// Node `node` will tell of releases from now on.
    pub(in crate::lock) fn subscribed<'a>(
        &self,
        node: usize,
        keys: impl Iterator<Item = &'a [u8]>,
    ) {
        let mut queues = self.queues.lock();
        for key in keys {
            let Some(queue) = queues.get_mut(key) else { continue };
            let before = queue.subscribed.count_ones() as usize;
            queue.subscribed |= bit(node);
            if before < self.quorum && queue.subscribed.count_ones() as usize >= self.quorum {
                // It may have been released before that.
                queue.wake(WakeUp::Retry);
            }
        }
    }

    /// Whether anybody wants to be told of anything.
    pub(in crate::lock) fn is_listening(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 0
            && self.queues.lock().values().any(|queue| queue.listening)
    }

    /// Node `node` can be subscribed to. Gives all keys that are wanted now.
    pub(in crate::lock) fn connected(&self, node: usize) -> Vec<Vec<u8>> {
        let queues = self.queues.lock();
        *self.wishes[node].changes.lock() = Some(HashMap::new());
        let wanted = queues.iter().filter(|(_, queue)| queue.listening);
        wanted.map(|(key, _)| key.clone()).collect()
    }

    /// Node `node` tells of nothing any more.
    pub(in crate::lock) fn disconnected(&self, node: usize) {
        let mut queues = self.queues.lock();
        *self.wishes[node].changes.lock() = None;
        for queue in queues.values_mut() {
            queue.subscribed &= !bit(node);
            // It must look for itself, and soon.
            queue.next_try = queue.next_try.min(Instant::now() + jittered(POLLING.1));
            if let Some(waker) = queue.seats.front_mut().and_then(|head| head.waker.take()) {
                waker.wake();
            }
        }
    }

    /// How many wait for `key`.
    pub(in crate::lock) fn waiting(&self, key: &[u8]) -> usize {
        self.queues.lock().get(key).map_or(0, |queue| queue.seats.len())
    }

    /// How many wait for anything.
    pub(in crate::lock) fn all_waiting(&self) -> usize {
        self.queues.lock().values().map(|queue| queue.seats.len()).sum()
    }

    /// For how long the first of them has waited.
    pub(in crate::lock) fn longest_wait(&self) -> Duration {
        let heads = |queue: &Queue| queue.seats.front().map(|seat| seat.since);
        let first = self.queues.lock().values().filter_map(heads).min();
        first.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// What the subscription to a node has to do.
    pub(in crate::lock) fn wishes(&self, node: usize) -> Arc<Wishes> {
        self.wishes[node].clone()
    }

    /// Ends the queues in which nobody has waited for a while.
    pub(in crate::lock) fn sweep(&self) {
        if self.count.load(Ordering::Relaxed) == 0 {
            return;
        }
        let now = Instant::now();
        let mut queues = self.queues.lock();
        queues.retain(|key, queue| {
            let stays = queue.empty_since.is_none_or(|since| now - since < LINGER);
            if !stays {
                self.wishes.iter().for_each(|wishes| wishes.add(key, false));
            }
            stays
        });
        self.count.store(queues.len(), Ordering::Relaxed);
    }

    /// Has all nodes tell of this lock's releases.
    fn listen(&self, key: &[u8], queue: &mut Queue) {
        if !std::mem::replace(&mut queue.listening, true) {
            self.wishes.iter().for_each(|wishes| wishes.add(key, true));
        }
    }
}

impl Drop for Queues {
    fn drop(&mut self) {
        self.gone.cancel();
    }
}

impl Wishes {
    fn add(&self, key: &[u8], subscribe: bool) {
        if let Some(changes) = &mut *self.changes.lock() {
            changes.insert(key.to_vec(), subscribe);
        }
        self.changed.notify_one();
    }

    /// Takes all changes: key, and whether to subscribe or to unsubscribe.
    pub(in crate::lock) fn take(&self) -> HashMap<Vec<u8>, bool> {
        self.changes.lock().as_mut().map(std::mem::take).unwrap_or_default()
    }
}

impl Queue {
    fn new() -> Queue {
        Queue {
            seats: VecDeque::new(),
            asking: false,
            next_try: Instant::now(),
            reason: None,
            woken: None,
            tries: 0,
            clashed: false,
            handovers: 0,
            others: false,
            no_quorum: None,
            heard: 0,
            subscribed: 0,
            listening: false,
            empty_since: None,
        }
    }

    /// Nothing is known of the lock.
    fn ask_at_once(&mut self, reason: Option<WakeUp>) {
        self.next_try = Instant::now();
        self.reason = reason;
        self.woken = None;
        self.asking = false;
        self.handovers = 0;
        self.tries = 0;
    }

    /// The head asks now, or once more when its request is answered.
    fn wake(&mut self, reason: WakeUp) {
        self.woken = Some(reason);
        if !self.asking
            && let Some(waker) = self.seats.front_mut().and_then(|head| head.waker.take())
        {
            waker.wake();
        }
    }

    /// The lock is held, for so long if nobody renews it.
    fn sleep(&mut self, remaining: Option<Duration>, quorum: usize) {
        let listens = self.subscribed.count_ones() as usize >= quorum;
        if listens {
            self.next_try = Instant::now() + jittered(LISTENING);
            self.reason = Some(WakeUp::Retry);
        } else {
            self.retry_after(POLLING);
        }
        if let Some(remaining) = remaining {
            let expiry = Instant::now() + remaining + EXPIRY_SLACK;
            if expiry <= self.next_try {
                self.next_try = expiry;
                self.reason = Some(WakeUp::Expiry);
            }
        }
    }

    /// Tries again after a while that grows from try to try.
    fn retry_after(&mut self, (first, longest): (Duration, Duration)) {
        let pause = first.saturating_mul(1 << self.tries.min(16)).min(longest);
        self.tries = self.tries.saturating_add(1);
        self.next_try = Instant::now() + jittered(pause);
        self.reason = Some(WakeUp::Retry);
    }
}

/// Nodes beyond the 64th, which nobody has, share one.
fn bit(node: usize) -> u64 {
    1 << node.min(63)
}

#[cfg(test)]
#[path = "queue_tests.rs"]
mod tests;
