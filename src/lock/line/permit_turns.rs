//! Whose turn it is in the lines of families.
//!
//! A lock that is released goes to whoever came first, of those that wait for it by its name and those that wait for any
//! lock of its family. A client in a family's line asks for one lock at a time, and meanwhile the next one may ask for
//! another: so as many locks as are free are asked for side by side. Where nothing was heard of several locks, the lock
//! nodes are first asked which of these are held, as each request for a held lock costs them more than a look at it.

use std::{
    collections::{HashMap, VecDeque},
    sync::atomic::Ordering,
    task::Waker,
    time::Duration,
};

use tokio::time::Instant;

use super::{
    family::{Family, FamilyMember, FamilySeat, UnderWay, permit, shown_line},
    in_line::{InLine, LineUp},
    queue::{AllLines, Departure, Queue, Queues},
};
use crate::{
    key::Key,
    lock::{Acquire, NoQuorum, NotGranted, SameToken, lock_metrics::WakeUp},
};

/// The most locks of which all lines of families together take note: each has a queue, and a subscription to each
/// node.
const MOST_NAMES: usize = 65_536;

/// What a client wants that waits for any lock of a family.
pub(in crate::lock) struct FamilyLineUp {
    pub(in crate::lock) family: Key,
    /// One of so many locks.
    pub(in crate::lock) n: usize,
    /// The lock to be asked for first.
    pub(in crate::lock) start: usize,
    pub(in crate::lock) wants: LineUp,
}

/// The next step of a client in a family's line.
pub(in crate::lock) enum PermitTurn {
    /// Ask the nodes for this lock. `None`: for the first time.
    Ask(usize, Option<WakeUp>),
    /// Take this lock, which is handed over.
    Take(usize, Acquire),
    /// Ask the nodes which of these locks are held.
    Look(Vec<usize>),
    /// Wait: until that time at the latest if it is this client's turn.
    Wait(Option<Instant>),
}

/// What the nodes say of a lock.
pub(in crate::lock) enum LockSeen {
    /// It is held, for so long at least.
    Held(Option<Duration>),
    /// It may be free.
    Free,
    Unknown(NoQuorum),
}

impl Queue {
    /// Whether something was heard of the lock that calls for a request: it was released, or its holder's time has
    /// run out, or a look has found it free.
    fn seems_free(&self, now: Instant) -> bool {
        match self.woken {
            Some(WakeUp::Release | WakeUp::Message | WakeUp::Expiry) => true,
            Some(WakeUp::HandOver | WakeUp::Retry) => false,
            None => self.next_try <= now && self.reason == Some(WakeUp::Expiry),
        }
    }

    fn is_due(&self, now: Instant) -> bool {
        self.woken.is_some() || self.next_try <= now
    }
}

impl Queues {
    /// Takes a place at the end of a family's line.
    ///
    /// # Errors
    /// If the line is full, or if there are too many lines.
    pub(in crate::lock) fn join_family(
        &self,
        wanted: FamilyLineUp,
        ticket: u64,
    ) -> Result<(), NotGranted> {
        let FamilyLineUp { family, n, start, wants } = wanted;
        let mut lines = self.lines.lock();
        let limit = self.max_waiters.load(Ordering::Relaxed);
        let known = lines.families.lines.get(&family);
        let (waiting, before) = known.map_or((0, 0), |line| (line.seats.len(), line.names.len()));
        if waiting >= limit {
            return Err(NotGranted::QueueFull { limit, permits: false });
        }
        let more = n.saturating_sub(before);
        if lines.families.names + more > MOST_NAMES {
            return Err(NotGranted::QueueFull { limit: MOST_NAMES, permits: true });
        }
        let new: Vec<Key> = (before..n).map(|at| permit(&family, at)).collect();
        for (name, at) in new.iter().zip(before..) {
            let queue = lines.queue(name);
            if queue.is_empty() {
                queue.ask_at_once(None);
                queue.empty_since = None;
            }
            queue.permit = Some(FamilyMember { family: family.clone(), at, of: n });
        }
        lines.families.names += more;
        let seat = FamilySeat {
            seat: InLine::new(ticket, wants),
            n,
            start,
            has_asked: false,
            under_way: UnderWay::Nothing,
        };
        let line = lines.families.lines.entry(family).or_insert_with_key(|family| Family {
            shown: shown_line(family),
            names: Vec::new(),
            seats: VecDeque::new(),
        });
        line.names.extend(new);
        line.seats.push_back(seat);
        self.joined(&lines);
        Ok(())
    }

    /// Returns the next step of the client with this ticket. If that is to wait, `waker` is kept, and woken when the
    /// step changes.
    pub(in crate::lock) fn permit_turn(
        &self,
        family: &Key,
        ticket: u64,
        waker: &Waker,
    ) -> PermitTurn {
        let mut lines = self.lines.lock();
        let AllLines { queues, families } = &mut *lines;
        let Some(line) = families.lines.get_mut(family) else { return PermitTurn::Wait(None) };
        // Those before it come first to the locks that they want too.
        let mut taken = 0;
        let before = line.seats.iter().take_while(|seat| seat.seat.ticket != ticket);
        for seat in before.filter(|seat| seat.under_way == UnderWay::Nothing) {
            taken = taken.max(seat.n);
        }
        let Family { names, seats, .. } = &mut *line;
        let Some(seat) = seats.iter_mut().find(|seat| seat.seat.ticket == ticket) else {
            return PermitTurn::Wait(None);
        };
        if let Some(acquire) = seat.seat.handed.take() {
            if let UnderWay::Lock(at) = seat.under_way {
                return PermitTurn::Take(at, acquire);
            }
            debug_assert!(false, "a lock is handed to who waits for it");
        }
        match &mut seat.seat.waker {
            Some(known) => known.clone_from(waker),
            none => *none = Some(waker.clone()),
        }
        if seat.under_way != UnderWay::Nothing || taken >= seat.n {
            return PermitTurn::Wait(None);
        }
        if let Some(until) = self.paused_until() {
            for name in names.iter() {
                if let Some(queue) = queues.get_mut(&**name) {
                    queue.is_held = false;
                }
            }
            return PermitTurn::Wait(Some(until));
        }
        let (now, mut soonest, mut due, mut free) = (Instant::now(), None, Vec::new(), None);
        for at in seat.order().filter(|at| *at >= taken) {
            let Some(queue) = names.get(at).and_then(|name| queues.get(&**name)) else { continue };
            let by_name = queue.seats.front().is_some_and(|head| head.ticket < ticket);
            if queue.asked_by.is_some() || by_name {
                continue;
            }
            if queue.seems_free(now) {
                free = Some(at);
                break;
            }
            match queue.is_due(now) {
                true => due.push(at),
                false => soonest = soonest.into_iter().chain([queue.next_try]).min(),
            }
        }
        let asked = match (free, &due[..]) {
            (Some(free), _) => free,
            (None, []) => return PermitTurn::Wait(soonest),
            (None, [one]) => *one,
            (None, [first, ..]) if !seat.has_asked => *first,
            (None, _) => {
                seat.under_way = UnderWay::Looks;
                for at in &due {
                    if let Some(queue) = names.get(*at).and_then(|name| queues.get_mut(&**name)) {
                        queue.woken = None;
                        queue.asks(ticket);
                    }
                }
                return PermitTurn::Look(due);
            }
        };
        let Some(queue) = names.get(asked).and_then(|name| queues.get_mut(&**name)) else {
            return PermitTurn::Wait(soonest);
        };
        let reason = queue.woken.take().or(queue.reason);
        queue.asks(ticket);
        (seat.under_way, seat.has_asked) = (UnderWay::Lock(asked), true);
        // Others may ask for other locks meanwhile.
        let heads = heads(line, queues);
        drop(lines);
        heads.into_iter().for_each(Waker::wake);
        PermitTurn::Ask(asked, reason)
    }

    /// Notes that a client in line was not granted this lock.
    pub(in crate::lock) fn permit_refused(
        &self,
        family: &Key,
        ticket: u64,
        at: usize,
        why: &NotGranted,
    ) {
        let mut lines = self.lines.lock();
        let AllLines { queues, families } = &mut *lines;
        let Some(line) = families.lines.get_mut(family) else { return };
        if let Some(queue) = line.names.get(at).and_then(|name| queues.get_mut(&**name)) {
            self.refused_in(queue, ticket, why);
        }
        asks_no_more(line, queues, ticket);
    }

    /// Notes what the nodes say of the locks at which a client in line has looked.
    pub(in crate::lock) fn looked(
        &self,
        family: &Key,
        ticket: u64,
        said: impl Iterator<Item = (usize, LockSeen)>,
    ) {
        let mut lines = self.lines.lock();
        let AllLines { queues, families } = &mut *lines;
        let Some(line) = families.lines.get_mut(family) else { return };
        for (at, said) in said {
            let queue = line.names.get(at).and_then(|name| queues.get_mut(&**name));
            let Some(queue) = queue.filter(|queue| queue.asked_by == Some(ticket)) else {
                continue;
            };
            let why = match said {
                LockSeen::Held(remaining) => {
                    let same_token = SameToken::Unknown;
                    NotGranted::Held { remaining, may_be_free: false, same_token }
                }
                LockSeen::Unknown(error) => NotGranted::NoQuorum(error),
                LockSeen::Free => {
                    (queue.asked_by, queue.no_quorum) = (None, None);
                    (queue.is_held, queue.woken) = (false, Some(WakeUp::Expiry));
                    continue;
                }
            };
            self.refused_in(queue, ticket, &why);
        }
        asks_no_more(line, queues, ticket);
    }

    /// Returns the error for all clients in this line, if too few nodes answered when they were last asked for one of
    /// its locks.
    pub(in crate::lock) fn family_no_quorum(&self, family: &Key) -> Option<NoQuorum> {
        let lines = self.lines.lock();
        let names = lines.families.lines.get(family)?.names.iter();
        let mut errors = names.map(|name| lines.queues.get(&**name)?.no_quorum.clone());
        errors.find_map(|error| error)
    }

    /// Takes a client out of a family's line. `granted`: which of the locks it was granted, and for how long.
    pub(in crate::lock) fn leave_family(
        &self,
        family: &Key,
        ticket: u64,
        granted: Option<(usize, Duration)>,
    ) {
        let mut lines = self.lines.lock();
        let AllLines { queues, families } = &mut *lines;
        let Some(line) = families.lines.get_mut(family) else { return };
        let place = line.seats.iter().position(|seat| seat.seat.ticket == ticket);
        let Some(left) = place.and_then(|place| line.seats.remove(place)) else { return };
        self.metrics.waiters.decrement(1.0);
        let is_last = line.seats.is_empty();
        let names = std::mem::take(&mut line.names);
        for (name, at) in names.iter().zip(0..) {
            let Some(queue) = queues.get_mut(&**name) else { continue };
            if is_last {
                queue.permit = None;
            }
            let how = match granted {
                Some((granted, ttl)) if granted == at => Departure::Granted(ttl),
                _ => Departure::Gone,
            };
            self.left(queue, ticket, how);
        }
        line.names = names;
        let heads = heads(line, queues);
        if is_last && let Some(ended) = families.lines.remove(family) {
            families.names -= ended.names.len();
            ended.names.iter().for_each(|name| self.end_if_empty(&mut lines, name));
        }
        drop(lines);
        // Undoes a hand-over to the client that left, before the next one asks.
        drop(left);
        heads.into_iter().for_each(Waker::wake);
    }
}

/// Notes that nothing is under way any more for a client in line. Clients that wait by name may have come before it,
/// and time the next requests then.
fn asks_no_more(line: &mut Family, queues: &mut HashMap<Vec<u8>, Queue>, ticket: u64) {
    if let Some(seat) = line.seat(ticket) {
        seat.under_way = UnderWay::Nothing;
    }
    named_heads(line, queues).into_iter().for_each(Waker::wake);
}

/// Takes the wakers of whoever may be the head of one of a family's locks, by the family or by the lock's name.
fn heads(line: &mut Family, queues: &mut HashMap<Vec<u8>, Queue>) -> Vec<Waker> {
    let mut heads = line.heads();
    heads.extend(named_heads(line, queues));
    heads
}

/// Takes the wakers of the first in line by the name of each of a family's locks.
fn named_heads(line: &Family, queues: &mut HashMap<Vec<u8>, Queue>) -> Vec<Waker> {
    let mut head = |name: &Key| queues.get_mut(&**name)?.seats.front_mut()?.waker.take();
    line.names.iter().filter_map(&mut head).collect()
}

#[cfg(test)]
#[path = "permit_turns_tests.rs"]
mod tests;
