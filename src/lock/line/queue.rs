//! The lines of one proxy: which client waits for which lock, and whose turn it is.
//!
//! Each lock has one queue, first come, first served. Only its head asks the nodes: at once when nothing is known of
//! the lock, then when a quorum of nodes has published a release, when the holder's TTL has run out, and now and then
//! in case a message was lost. Behind a head that was granted a reader's part, all readers up to the next writer ask
//! side by side. This module knows neither connections nor nodes.
//!
//! A lock that is a permit is also waited for by the clients of its family's line (`family`): its head is whoever came
//! first of both.

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::Waker,
    time::Duration,
};

use arc_swap::ArcSwap;
use tokio::{sync::Notify, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{
    family::{Families, FamilyMember},
    in_line::{InLine, LineStatus, LineUp, WaiterStatus, earlier},
};
use crate::{
    card::ClientCard,
    config::LocksConfig,
    key::{Key, Token},
    lock::{
        Acquire, NoQuorum, NotGranted,
        jitter::jittered,
        lock_metrics::{LockMetrics, WakeUp},
        quorum::quorum,
        voters::Voters,
    },
    sync::Mutex,
};

/// The longest sleep of a head that hears of releases: the cost of a lost message.
const LISTENING: Duration = Duration::from_secs(2);
/// The first and the longest sleep of a head that does not hear of releases.
const POLLING: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(250));
/// The first and the longest sleep after several proxies got some nodes each, or too few nodes
/// answered.
const CONTENDING: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(100));
/// The shortest time for which a head leaves a lock to other proxies' clients after this proxy has given it up for
/// them. A release by one of these wakes it earlier.
const OTHERS_TURN: Duration = Duration::from_millis(10);
/// The most readers of a line that ask side by side: lock nodes have room for a few thousand questions.
const READERS_AT_ONCE: usize = 64;
/// How far a node's clock may be behind when a TTL runs out.
const EXPIRY_SLACK: Duration = Duration::from_millis(1);
/// How long a queue, and with it the subscription to its lock's channel, is kept after the last
/// waiter has left: clients that take turns come back.
const LINGER: Duration = Duration::from_secs(1);

/// All queues of one proxy.
pub(in crate::lock) struct Queues {
    pub(super) lines: Mutex<AllLines>,
    /// The number of queues, for callers that only ask whether there is one.
    count: AtomicUsize,
    quorum: AtomicUsize,
    /// Limits that change when the configuration is read again.
    pub(super) max_waiters: AtomicUsize,
    max_handovers: AtomicUsize,
    /// Until when no lock is granted to a waiter, and whether such a pause is set.
    pause: Mutex<Option<Instant>>,
    is_paused: AtomicBool,
    pub(super) metrics: Arc<LockMetrics>,
    /// For each seat, the changes that its subscription has to make.
    wishes: ArcSwap<Vec<Arc<Wishes>>>,
    /// Cancelled when the engine is dropped.
    pub(in crate::lock) gone: CancellationToken,
}

/// The lines by name, and those by family.
#[derive(Default)]
pub(super) struct AllLines {
    pub(super) queues: HashMap<Vec<u8>, Queue>,
    pub(super) families: Families,
}

/// Changes that the subscription to one node has to make. Each shard's seat is given all locks, and picks its own.
#[derive(Default)]
pub(in crate::lock) struct Wishes {
    /// For each key, whether to subscribe or to unsubscribe. `None` while there is no connection:
    /// the next one begins with all keys wanted then.
    changes: Mutex<Option<HashMap<Vec<u8>, bool>>>,
    /// Notified of every change.
    pub(in crate::lock) changed: Notify,
}

/// The clients that wait for one lock, and what is known of it.
pub(super) struct Queue {
    /// The lock's key, as its waiters have it.
    key: Key,
    pub(super) seats: VecDeque<InLine>,
    /// Set if the lock is a permit of a family for which clients wait.
    pub(super) permit: Option<FamilyMember>,
    /// The waiter whose request, or a hand-over to which, is under way.
    pub(super) asked_by: Option<u64>,
    /// The time when the head asks the nodes again if nothing wakes it, and why.
    pub(super) next_try: Instant,
    pub(super) reason: Option<WakeUp>,
    /// Set if the head is to ask at once, or once more after the request under way.
    pub(super) woken: Option<WakeUp>,
    /// Failed tries since something was last heard of the lock.
    tries: u32,
    /// Whether several proxies got some nodes each. The releases published then come from those that give up, and a
    /// head that followed them would clash again.
    clashed: bool,
    /// Hand-overs in a row.
    handovers: usize,
    /// Whether another proxy's clients wait too.
    others: bool,
    /// The error of the last request, if too few nodes answered.
    pub(super) no_quorum: Option<NoQuorum>,
    /// Whether a quorum named a holder in answer to the last request, and nothing heard since may have changed that.
    pub(super) is_held: bool,
    /// Voters that have published a release since the last try, one bit each.
    pub(super) heard: u64,
    /// Voters with a subscription to the lock, one bit each.
    subscribed: u64,
    /// Whether the lock's releases are wanted from the subscriptions.
    pub(super) listening: bool,
    /// Since when nobody waits.
    pub(super) empty_since: Option<Instant>,
}

/// The next step of a waiter.
pub(in crate::lock) enum WaiterTurn {
    /// Ask the nodes. `None`: for the first time.
    Ask(Option<WakeUp>),
    /// Take the lock that is handed over.
    Take(Acquire),
    /// Wait: the head until that time at the latest.
    Wait(Option<Instant>),
}

/// The next holder of a lock that is released.
pub(in crate::lock) enum NextHolder {
    /// No waiter of this proxy: none is there, the head is asking already, or no lock is granted now.
    Nobody,
    /// Another proxy's clients.
    Others,
    /// The head of the queue.
    HandTo { ticket: u64, token: Token, ttl: Duration },
}

/// Why a waiter leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::lock) enum Departure {
    /// The lock was granted, with this TTL.
    Granted(Duration),
    /// The waiter's time was up, or its client has gone.
    Gone,
}

impl Queues {
    pub(in crate::lock) fn new(config: &LocksConfig, metrics: Arc<LockMetrics>) -> Queues {
        Queues {
            lines: Mutex::default(),
            count: AtomicUsize::new(0),
            quorum: AtomicUsize::new(quorum(config.nodes.len())),
            max_waiters: AtomicUsize::new(config.max_waiters),
            max_handovers: AtomicUsize::new(config.max_handovers),
            pause: Mutex::default(),
            is_paused: AtomicBool::new(false),
            metrics,
            wishes: ArcSwap::from_pointee(Wishes::of_seats(config)),
            gone: CancellationToken::new(),
        }
    }

    /// Sets new limits. A waiter in line keeps its place.
    pub(in crate::lock) fn set_limits(&self, config: &LocksConfig) {
        self.max_waiters.store(config.max_waiters, Ordering::Relaxed);
        self.max_handovers.store(config.max_handovers, Ordering::Relaxed);
    }

    /// Notes that another set of lock nodes is asked from now on. The subscriptions to the previous set have ended,
    /// and there are none to these nodes yet.
    pub(in crate::lock) fn moved(&self, config: &LocksConfig) {
        self.quorum.store(quorum(config.nodes.len()), Ordering::Relaxed);
        self.wishes.store(Arc::new(Wishes::of_seats(config)));
        let mut lines = self.lines.lock();
        let AllLines { queues, families } = &mut *lines;
        let mut all: Vec<(&Vec<u8>, &mut Queue)> = queues.iter_mut().collect();
        // In a fixed order, which a simulation can repeat.
        all.sort_unstable_by_key(|(key, _)| *key);
        for (_, queue) in all {
            (queue.subscribed, queue.heard, queue.tries) = (0, 0, 0);
            queue.wake(WakeUp::Retry, families);
        }
    }

    pub(super) fn quorum(&self) -> usize {
        self.quorum.load(Ordering::Relaxed)
    }

    /// Has all waiters wait until `until`, even if their locks become free. `None` ends the pause.
    pub(in crate::lock) fn pause(&self, until: Option<Instant>) {
        let mut pause = self.pause.lock();
        *pause = until;
        // Under the mutex: a caller that finds an earlier pause over must not take this one away.
        self.is_paused.store(until.is_some(), Ordering::Release);
        drop(pause);
        // Each head checks again whether it may ask.
        let mut lines = self.lines.lock();
        let AllLines { queues, families } = &mut *lines;
        let heads = queues.values_mut().filter_map(|queue| queue.seats.front_mut()?.waker.take());
        let heads: Vec<Waker> = heads.chain(families.wakers()).collect();
        drop(lines);
        heads.into_iter().for_each(Waker::wake);
    }

    /// Returns the end of the pause in which no lock is granted to a waiter, if there is one now.
    pub(in crate::lock) fn paused_until(&self) -> Option<Instant> {
        if !self.is_paused.load(Ordering::Acquire) {
            return None;
        }
        let pause = self.pause.lock();
        let until = (*pause).filter(|until| *until > Instant::now());
        if until.is_none() {
            self.is_paused.store(false, Ordering::Release);
        }
        until
    }

    /// Takes a place at the end of the queue of `key`.
    ///
    /// # Errors
    /// If the queue is full.
    pub(in crate::lock) fn join(
        &self,
        key: &Key,
        wants: LineUp,
        ticket: u64,
    ) -> Result<(), NotGranted> {
        let mut lines = self.lines.lock();
        let queue = lines.queue(key);
        let limit = self.max_waiters.load(Ordering::Relaxed);
        if queue.seats.len() >= limit {
            return Err(NotGranted::QueueFull { limit, permits: false });
        }
        if queue.seats.is_empty() && queue.permit.is_none() {
            queue.ask_at_once(None);
        }
        queue.empty_since = None;
        queue.seats.push_back(InLine::new(ticket, wants));
        self.joined(&lines);
        Ok(())
    }

    /// Whether nobody waits for `key` at this proxy, nor is to wait.
    pub(in crate::lock) fn is_nobody_there(&self, key: &[u8]) -> bool {
        if self.paused_until().is_some() {
            return false;
        }
        self.count.load(Ordering::Relaxed) == 0
            || self.lines.lock().queues.get(key).is_none_or(Queue::is_empty)
    }

    /// Counts a waiter that has joined.
    pub(super) fn joined(&self, lines: &AllLines) {
        self.count.store(lines.queues.len(), Ordering::Relaxed);
        self.metrics.waiters.increment(1.0);
    }

    /// Returns the next step of the waiter with this ticket. If that is to wait, `waker` is kept, and woken when the
    /// step changes.
    pub(in crate::lock) fn turn(&self, key: &[u8], ticket: u64, waker: &Waker) -> WaiterTurn {
        let mut lines = self.lines.lock();
        let AllLines { queues, families } = &mut *lines;
        let Some(queue) = queues.get_mut(key) else { return WaiterTurn::Wait(None) };
        let is_head = queue.seats.front().is_some_and(|seat| seat.ticket == ticket);
        let first_of_family = families.first(queue.permit.as_ref());
        let Some(seat) = queue.seats.iter_mut().find(|seat| seat.ticket == ticket) else {
            return WaiterTurn::Wait(None);
        };
        if let Some(acquire) = seat.handed.take() {
            debug_assert!(is_head, "a lock is handed to the first in line");
            return WaiterTurn::Take(acquire);
        }
        if std::mem::take(&mut seat.is_let_in) && self.paused_until().is_none() {
            return WaiterTurn::Ask(Some(WakeUp::Release));
        }
        match &mut seat.waker {
            Some(known) => known.clone_from(waker),
            none => *none = Some(waker.clone()),
        }
        if !is_head
            || queue.asked_by.is_some()
            || first_of_family.is_some_and(|family| family.ticket < ticket)
        {
            return WaiterTurn::Wait(None);
        }
        if let Some(until) = self.paused_until() {
            // The nodes are not asked again until then.
            queue.is_held = false;
            return WaiterTurn::Wait(Some(until));
        }
        let reason = match queue.woken.take() {
            Some(woken) => Some(woken),
            None if queue.next_try <= Instant::now() => queue.reason,
            None => return WaiterTurn::Wait(Some(queue.next_try)),
        };
        queue.asks(ticket);
        WaiterTurn::Ask(reason)
    }

    /// Sets the time of the next try, after the head was not granted the lock.
    pub(in crate::lock) fn refused(&self, key: &[u8], ticket: u64, why: &NotGranted) {
        let mut lines = self.lines.lock();
        let AllLines { queues, families } = &mut *lines;
        let Some(queue) = queues.get_mut(key) else { return };
        self.refused_in(queue, ticket, why);
        if queue.permit.is_some() {
            // A client of the family may have come first, and times the next request now.
            queue.wake_heads(families);
        }
    }

    /// Does the same in this queue.
    pub(super) fn refused_in(&self, queue: &mut Queue, ticket: u64, why: &NotGranted) {
        if queue.asked_by != Some(ticket) {
            return;
        }
        queue.asked_by = None;
        queue.no_quorum = match why {
            NotGranted::NoQuorum(error) => Some(error.clone()),
            _ => None,
        };
        queue.is_held = matches!(why, NotGranted::Held { may_be_free: false, .. });
        match why {
            NotGranted::Held { remaining, may_be_free: false, .. } => {
                queue.clashed = false;
                queue.sleep(*remaining, self.quorum());
                self.listen(queue);
            }
            NotGranted::Held { may_be_free: true, .. } => {
                queue.clashed = true;
                queue.retry_after(CONTENDING);
            }
            NotGranted::NoQuorum(_)
            | NotGranted::QueueFull { .. }
            | NotGranted::Deadlock { .. } => {
                queue.retry_after(CONTENDING);
            }
        }
    }

    /// Returns the error for all waiters in this queue, if too few nodes answered its head.
    pub(in crate::lock) fn no_quorum(&self, key: &[u8]) -> Option<NoQuorum> {
        self.lines.lock().queues.get(key)?.no_quorum.clone()
    }

    /// Takes a waiter out of its queue.
    pub(in crate::lock) fn leave(&self, key: &[u8], ticket: u64, how: Departure) {
        let mut lines = self.lines.lock();
        let AllLines { queues, families } = &mut *lines;
        let Some(queue) = queues.get_mut(key) else { return };
        let Some(at) = queue.seats.iter().position(|seat| seat.ticket == ticket) else { return };
        let left = queue.seats.remove(at);
        self.metrics.waiters.decrement(1.0);
        self.left(queue, ticket, how);
        let is_shared = left.as_ref().is_some_and(|left| left.wants.shared);
        let mut let_in = Vec::new();
        if is_shared && matches!(how, Departure::Granted(_)) && at == 0 {
            // A writer has its intent noted.
            queue.ask_at_once(Some(WakeUp::Release));
            let_in = queue.let_readers_in();
        }
        let next = if at == 0 { queue.heads(families) } else { [None, None] };
        self.end_if_empty(&mut lines, key);
        drop(lines);
        // Undoes a hand-over to the waiter that left, before the next one asks.
        drop(left);
        next.into_iter().flatten().chain(let_in).for_each(Waker::wake);
    }

    /// Notes that a waiter, which is in line no more, does not wait for this lock any longer.
    pub(super) fn left(&self, queue: &mut Queue, ticket: u64, how: Departure) {
        let asked = queue.asked_by.take_if(|asked| *asked == ticket).is_some();
        match how {
            Departure::Granted(ttl) if asked => {
                (queue.clashed, queue.woken, queue.no_quorum) = (false, None, None);
                queue.is_held = false;
                queue.sleep(Some(ttl), self.quorum());
                if !queue.is_empty() {
                    self.listen(queue);
                }
            }
            // The waiter's request is being undone, so nothing is known of the lock.
            Departure::Gone if asked => queue.ask_at_once(Some(WakeUp::Retry)),
            Departure::Granted(_) | Departure::Gone => {}
        }
    }

    /// Ends this queue, at once or in a while, if nobody waits.
    pub(super) fn end_if_empty(&self, lines: &mut AllLines, key: &[u8]) {
        if let Some(queue) = lines.queues.get_mut(key)
            && queue.is_empty()
        {
            if queue.listening {
                queue.empty_since = Some(Instant::now());
            } else {
                lines.queues.remove(key);
                self.count.store(lines.queues.len(), Ordering::Relaxed);
            }
        }
    }

    /// Names the next holder of a lock that is about to be released.
    pub(in crate::lock) fn next(&self, key: &[u8]) -> NextHolder {
        if self.count.load(Ordering::Relaxed) == 0 {
            return NextHolder::Nobody;
        }
        let mut lines = self.lines.lock();
        let AllLines { queues, families } = &mut *lines;
        let Some(queue) = queues.get_mut(key) else { return NextHolder::Nobody };
        let first_of_family = families.first(queue.permit.as_ref());
        let Some(head) = earlier(queue.seats.front(), first_of_family) else {
            return NextHolder::Nobody;
        };
        if queue.asked_by.is_some() || self.paused_until().is_some() {
            return NextHolder::Nobody;
        }
        if queue.others || queue.handovers >= self.max_handovers.load(Ordering::Relaxed) {
            queue.handovers = 0;
            return NextHolder::Others;
        }
        let (ticket, LineUp { token, ttl, shared, .. }) = (head.ticket, &head.wants);
        if *shared {
            // It asks at once, and each reader behind it as soon as the one before has the lock.
            return NextHolder::Nobody;
        }
        let next = NextHolder::HandTo { ticket, token: token.clone(), ttl: *ttl };
        queue.handovers += 1;
        queue.asks(ticket);
        families.asks(queue.permit.as_ref(), ticket);
        next
    }

    /// Notes that a release is on its way to every node, ahead of all later requests. A request of the head that is
    /// already under way may have come too early.
    pub(in crate::lock) fn released(&self, key: &[u8], next: &NextHolder) {
        if self.count.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut lines = self.lines.lock();
        let AllLines { queues, families } = &mut *lines;
        let Some(queue) = queues.get_mut(key).filter(|queue| !queue.is_empty()) else {
            return;
        };
        queue.is_held = false;
        if !matches!(next, NextHolder::Others) || queue.asked_by.is_some() {
            return queue.wake(WakeUp::Release, families);
        }
        queue.woken = None;
        queue.next_try = Instant::now() + jittered(2 * OTHERS_TURN);
        queue.reason = Some(WakeUp::Retry);
        queue.wake_heads(families);
    }

    /// Hands the lock to the waiter that [`Queues::next`] has named. Returns it if that waiter has
    /// left.
    pub(in crate::lock) fn hand(
        &self,
        key: &[u8],
        ticket: u64,
        acquire: Acquire,
    ) -> Option<Acquire> {
        let mut lines = self.lines.lock();
        let AllLines { queues, families } = &mut *lines;
        let Some(queue) = queues.get_mut(key) else { return Some(acquire) };
        let head = match queue.seats.front_mut().filter(|head| head.ticket == ticket) {
            Some(by_name) => Some(by_name),
            None => families.asking(queue.permit.as_ref(), ticket),
        };
        let Some(head) = head else { return Some(acquire) };
        debug_assert!(head.handed.is_none(), "one lock is handed over once");
        head.handed = Some(acquire);
        let waker = head.waker.take();
        drop(lines);
        if let Some(waker) = waker {
            waker.wake();
        }
        None
    }

    /// Notes the number of subscribers to the lock's channel, as counted by a release or a hand-over through this
    /// proxy. `None`: a node has refused to count them.
    pub(in crate::lock) fn heard_of_listeners(&self, key: &[u8], listeners: Option<u64>) {
        if self.count.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut lines = self.lines.lock();
        let AllLines { queues, families } = &mut *lines;
        let Some(queue) = queues.get_mut(key) else { return };
        // One of the subscribers is this proxy.
        queue.others = listeners.is_some_and(|listeners| listeners > 1);
        let nobody_else = listeners.is_some_and(|listeners| listeners <= 1);
        if nobody_else && queue.handovers == 0 && queue.asked_by.is_none() {
            // No other proxy waits, so the turn was given up in vain.
            queue.wake(WakeUp::Release, families);
        }
    }

    /// Notes that a voter has published a release through another proxy.
    pub(in crate::lock) fn heard_of_release(&self, voter: usize, key: &[u8]) {
        let mut lines = self.lines.lock();
        let AllLines { queues, families } = &mut *lines;
        let Some(queue) = queues.get_mut(key) else { return };
        queue.heard |= bit(voter);
        if queue.heard.count_ones() as usize >= self.quorum() {
            queue.heard = 0;
            queue.is_held = false;
            if !queue.clashed {
                queue.tries = 0;
                queue.wake(WakeUp::Message, families);
            }
        }
    }

    /// Notes that this proxy is subscribed to the lock's releases on a voter.
    pub(in crate::lock) fn subscribed(&self, voter: usize, key: &[u8]) {
        let mut lines = self.lines.lock();
        let AllLines { queues, families } = &mut *lines;
        let Some(queue) = queues.get_mut(key) else { return };
        let before = queue.subscribed.count_ones() as usize;
        queue.subscribed |= bit(voter);
        if before < self.quorum() && queue.subscribed.count_ones() as usize >= self.quorum() {
            // The lock may have been released before the subscription.
            queue.wake(WakeUp::Retry, families);
        }
    }

    /// Notes that this proxy is no longer subscribed to these locks' releases on a voter.
    pub(in crate::lock) fn unsubscribed<'a>(
        &self,
        voter: usize,
        keys: impl Iterator<Item = &'a Vec<u8>>,
    ) {
        let mut lines = self.lines.lock();
        let AllLines { queues, families } = &mut *lines;
        for key in keys {
            let Some(queue) = queues.get_mut(key) else { continue };
            queue.subscribed &= !bit(voter);
            // The head must look for itself, and soon.
            let soon = Instant::now() + jittered(POLLING.1 * queue.rarer());
            queue.next_try = queue.next_try.min(soon);
            queue.wake_heads(families);
        }
    }

    /// Whether any lock's releases are wanted.
    pub(in crate::lock) fn is_listening(&self) -> bool {
        self.is_listening_to(|_| true)
    }

    /// Whether the releases of any of the locks that `is_one` accepts are wanted.
    pub(in crate::lock) fn is_listening_to(&self, is_one: impl Fn(&[u8]) -> bool) -> bool {
        let is_wanted = |(key, queue): (&Vec<u8>, &Queue)| queue.listening && is_one(key);
        self.count.load(Ordering::Relaxed) > 0 && self.lines.lock().queues.iter().any(is_wanted)
    }

    /// Notes that the node on this seat can be subscribed to.
    pub(in crate::lock) fn connected(&self, seat: usize) {
        *self.wishes.load()[seat].changes.lock() = Some(HashMap::new());
    }

    /// Notes that the node on this seat cannot be subscribed to any more.
    pub(in crate::lock) fn disconnected(&self, seat: usize) {
        *self.wishes.load()[seat].changes.lock() = None;
    }

    /// Returns the locks whose releases are wanted from a voter, and which have no subscription there.
    pub(in crate::lock) fn untold(&self, voter: usize) -> Vec<Vec<u8>> {
        let lines = self.lines.lock();
        let is_untold = |queue: &Queue| queue.listening && queue.subscribed & bit(voter) == 0;
        let untold = lines.queues.iter().filter(|(_, queue)| is_untold(queue));
        untold.map(|(key, _)| key.clone()).collect()
    }

    /// Stops listening for a lock's releases, until a later waiter is refused the lock. Does nothing while clients
    /// wait for it. Returns whether none does.
    pub(in crate::lock) fn stop_listening(&self, key: &[u8]) -> bool {
        let mut lines = self.lines.lock();
        let Some(queue) = lines.queues.get_mut(key) else { return true };
        if queue.is_empty() {
            (queue.listening, queue.subscribed) = (false, 0);
        }
        queue.is_empty()
    }

    /// Returns the number of all waiters.
    pub(in crate::lock) fn all_waiting(&self) -> usize {
        let lines = self.lines.lock();
        let by_name: usize = lines.queues.values().map(|queue| queue.seats.len()).sum();
        by_name + lines.families.waiting()
    }

    /// Returns the longest time for which any waiter has waited.
    pub(in crate::lock) fn longest_wait(&self) -> Duration {
        let heads = |queue: &Queue| queue.seats.front().map(|seat| seat.since);
        let lines = self.lines.lock();
        let by_name = lines.queues.values().filter_map(heads);
        let first = by_name.chain(lines.families.first_arrivals()).min();
        drop(lines);
        first.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// Returns the lines with waiters, in no order.
    pub(in crate::lock) fn lines(&self) -> Vec<LineStatus> {
        if self.count.load(Ordering::Relaxed) == 0 {
            return Vec::new();
        }
        let (now, lines) = (Instant::now(), self.lines.lock());
        let by_name = lines.queues.values().filter_map(|queue| queue.status(now));
        by_name.chain(lines.families.status(now)).collect()
    }

    /// Returns the line for `key` as of `now`, if it has waiters.
    pub(in crate::lock) fn line_of(&self, key: &[u8], now: Instant) -> Option<LineStatus> {
        let lines = self.lines.lock();
        let by_name = lines.queues.get(key).and_then(|queue| queue.status(now));
        by_name.or_else(|| lines.families.named(key)?.status(now))
    }

    /// Returns how many permits the clients in line for this family know, if there are any.
    pub(in crate::lock) fn permits_of(&self, family: &Key) -> Option<usize> {
        self.lines.lock().families.lines.get(family).map(|line| line.names.len())
    }

    /// Returns the waiting clients, as far as they are known: for which lock each waits, and for how long.
    pub(in crate::lock) fn waiting_clients(&self) -> Vec<(Arc<ClientCard>, Key, Duration)> {
        let (now, lines) = (Instant::now(), self.lines.lock());
        let by_name = lines
            .queues
            .values()
            .flat_map(|queue| queue.seats.iter().map(move |seat| (&queue.key, seat)));
        let known = by_name.chain(lines.families.seats()).filter_map(|(key, seat)| {
            Some((seat.wants.card.clone()?, key.clone(), now - seat.since))
        });
        known.collect()
    }

    /// Returns the waiters for `key`, the first in line first.
    pub(in crate::lock) fn line(&self, key: &[u8]) -> Vec<WaiterStatus> {
        let (now, lines) = (Instant::now(), self.lines.lock());
        let by_name = lines.queues.get(key).filter(|queue| !queue.seats.is_empty());
        match (by_name, lines.families.named(key)) {
            (Some(queue), _) => queue.seats.iter().map(|seat| seat.shown(now)).collect(),
            (None, Some(family)) => family.shown(now),
            (None, None) => Vec::new(),
        }
    }

    /// Returns the changes that the subscription on a seat has to make.
    pub(in crate::lock) fn wishes(&self, seat: usize) -> Arc<Wishes> {
        self.wishes.load()[seat].clone()
    }

    /// Ends the queues that have been empty for a while.
    pub(in crate::lock) fn sweep(&self) {
        if self.count.load(Ordering::Relaxed) == 0 {
            return;
        }
        let now = Instant::now();
        let mut lines = self.lines.lock();
        lines.queues.retain(|key, queue| {
            let stays = queue.empty_since.is_none_or(|since| now - since < LINGER);
            if !stays {
                self.wishes.load().iter().for_each(|wishes| wishes.add(key, false));
            }
            stays
        });
        self.count.store(lines.queues.len(), Ordering::Relaxed);
    }

    /// Has the subscriptions to all nodes include this lock.
    pub(super) fn listen(&self, queue: &mut Queue) {
        if !std::mem::replace(&mut queue.listening, true) {
            self.wishes.load().iter().for_each(|wishes| wishes.add(&queue.key, true));
        }
    }
}

impl Drop for Queues {
    fn drop(&mut self) {
        self.gone.cancel();
    }
}

impl Wishes {
    /// Returns an empty set of changes for each seat of a configuration.
    fn of_seats(config: &LocksConfig) -> Vec<Arc<Wishes>> {
        (0..Voters::new(config).seats()).map(|_| Arc::default()).collect()
    }

    fn add(&self, key: &[u8], subscribe: bool) {
        if let Some(changes) = &mut *self.changes.lock() {
            changes.insert(key.to_vec(), subscribe);
        }
        self.changed.notify_one();
    }

    /// Takes all changes: keys, and for each whether to subscribe or to unsubscribe.
    pub(in crate::lock) fn take(&self) -> HashMap<Vec<u8>, bool> {
        self.changes.lock().as_mut().map(std::mem::take).unwrap_or_default()
    }
}

impl AllLines {
    /// Returns the queue of this lock, which it makes if there is none.
    pub(super) fn queue(&mut self, key: &Key) -> &mut Queue {
        self.queues.entry(key.to_vec()).or_insert_with(|| Queue::new(key.clone()))
    }
}

impl Queue {
    fn new(key: Key) -> Queue {
        Queue {
            key,
            seats: VecDeque::new(),
            permit: None,
            asked_by: None,
            next_try: Instant::now(),
            reason: None,
            woken: None,
            tries: 0,
            clashed: false,
            handovers: 0,
            others: false,
            no_quorum: None,
            is_held: false,
            heard: 0,
            subscribed: 0,
            listening: false,
            empty_since: None,
        }
    }

    /// Returns the line as shown to operators, if it has waiters.
    fn status(&self, now: Instant) -> Option<LineStatus> {
        // The first in line has waited longest.
        let longest = now - self.seats.front()?.since;
        let waited = self.seats.iter().map(|seat| now - seat.since).sum();
        let (key, waiters, is_held) = (self.key.clone(), self.seats.len(), self.is_held);
        Some(LineStatus { key, waiters, waited, longest, is_held, is_family: false })
    }

    /// Whether nobody waits for the lock, by its name or by its family.
    pub(super) fn is_empty(&self) -> bool {
        self.seats.is_empty() && self.permit.is_none()
    }

    /// Notes that the request of this waiter, or a hand-over to it, is under way.
    pub(super) fn asks(&mut self, ticket: u64) {
        self.asked_by = Some(ticket);
        self.heard = 0;
    }

    /// Has the head ask at once, as nothing is known of the lock.
    pub(super) fn ask_at_once(&mut self, reason: Option<WakeUp>) {
        self.next_try = Instant::now();
        self.reason = reason;
        self.woken = None;
        self.asked_by = None;
        self.is_held = false;
        self.handovers = 0;
        self.tries = 0;
    }

    /// Has the readers ask that are first in line. Returns whom to wake.
    fn let_readers_in(&mut self) -> Vec<Waker> {
        let first = self.seats.iter_mut().take(READERS_AT_ONCE);
        let readers = first.take_while(|seat| seat.wants.shared);
        let let_in = readers.filter_map(|seat| {
            seat.is_let_in = true;
            seat.waker.take()
        });
        let_in.collect()
    }

    /// Has the head ask now, or once more when its request is answered.
    pub(super) fn wake(&mut self, reason: WakeUp, families: &mut Families) {
        self.woken = Some(reason);
        if self.asked_by.is_none() {
            self.wake_heads(families);
        }
    }

    /// Wakes the first in line by name and the first by family: one of them is the head.
    pub(super) fn wake_heads(&mut self, families: &mut Families) {
        self.heads(families).into_iter().flatten().for_each(Waker::wake);
    }

    fn heads(&mut self, families: &mut Families) -> [Option<Waker>; 2] {
        let by_name = self.seats.front_mut().and_then(|head| head.waker.take());
        let by_family = families.first_mut(self.permit.as_ref());
        [by_name, by_family.and_then(|head| head.waker.take())]
    }

    /// How many times rarer the lock is asked about with nothing heard of it: clients that wait for one of many
    /// permits have the others too.
    fn rarer(&self) -> u32 {
        self.permit.as_ref().map_or(1, FamilyMember::rarer)
    }

    /// Has the head sleep while the lock is held. The lock ends after `remaining` unless it is renewed.
    fn sleep(&mut self, remaining: Option<Duration>, quorum: usize) {
        let listens = self.subscribed.count_ones() as usize >= quorum;
        if listens {
            self.next_try = Instant::now() + jittered(LISTENING * self.rarer());
            self.reason = Some(WakeUp::Retry);
        } else {
            let (first, longest) = POLLING;
            self.retry_after((first * self.rarer(), longest * self.rarer()));
        }
        if let Some(remaining) = remaining {
            let expiry = Instant::now() + remaining + EXPIRY_SLACK;
            if expiry <= self.next_try {
                self.next_try = expiry;
                self.reason = Some(WakeUp::Expiry);
            }
        }
    }

    /// Sets the next try after a pause that grows from try to try.
    fn retry_after(&mut self, (first, longest): (Duration, Duration)) {
        let pause = first.saturating_mul(1 << self.tries.min(16)).min(longest);
        self.tries = self.tries.saturating_add(1);
        self.next_try = Instant::now() + jittered(pause);
        self.reason = Some(WakeUp::Retry);
    }
}

/// Returns the bit of a voter. Voters beyond the 64th would share one; no configuration has so many.
fn bit(voter: usize) -> u64 {
    1 << voter.min(63)
}

#[cfg(test)]
#[path = "queue_tests.rs"]
mod tests;
