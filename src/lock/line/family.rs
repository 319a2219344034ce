//! The lines of permits: which client waits for any lock of a family, and whose turn it is.
//!
//! Permit i of a family is the lock `family#i`. What is known of each of these locks stands in a queue of its own
//! (`queue`), where clients wait that want this very lock. The clients that want any of them stand in one line of the
//! family. A lock that is released goes to whoever came first of both.
//!
//! A client in that line asks for one lock at a time, and meanwhile the next one may ask for another: so as many
//! locks as are free are asked for side by side. Where nothing was heard of several locks, the lock nodes are first
//! asked which of these are held, as each request for a held lock costs them more than a look at it.

use std::{
    collections::{HashMap, VecDeque},
    sync::atomic::Ordering,
    task::Waker,
    time::Duration,
};

use tokio::time::Instant;

use super::queue::{Departure, InLine, LineStatus, LineUp, Lines, Queue, Queues, WaiterStatus};
use crate::{
    key::{Key, KeyMap},
    lock::{Acquire, NoQuorum, NotGranted, SameToken, lock_metrics::WakeUp},
};

/// The most locks of which all lines of families together take note: each has a queue, and a subscription to each
/// node.
const MOST_NAMES: usize = 65_536;
/// What stands behind a family's name where operators see its line.
const ANY: &[u8] = b"#*";

/// Returns the key of a family's permit.
pub(crate) fn permit(family: &Key, at: usize) -> Key {
    Key::new(family, format!("#{at}").as_bytes())
}

/// Returns the key by which operators see a family's line.
pub(super) fn line_of(family: &Key) -> Key {
    Key::new(family, ANY)
}

/// A lock's place in the family for which clients wait.
#[derive(Clone)]
pub(super) struct Permit {
    family: Key,
    at: usize,
    /// How many locks the family has.
    of: usize,
}

impl Permit {
    /// How many times rarer this lock is asked about than one that is waited for by its name alone.
    pub(super) fn rarer(&self) -> u32 {
        u32::try_from(self.of / 8).unwrap_or(u32::MAX).clamp(1, 32)
    }
}

/// The lines of all families.
#[derive(Default)]
pub(super) struct Families {
    lines: KeyMap<Family>,
    /// How many locks they have.
    names: usize,
}

/// The clients that wait for any lock of a family.
pub(super) struct Family {
    /// The family's name as operators see it.
    shown: Key,
    /// The keys of its locks: as many as the client that asked for most.
    names: Vec<Key>,
    seats: VecDeque<FamilySeat>,
}

struct FamilySeat {
    seat: InLine,
    /// The client wants one of so many locks.
    n: usize,
    /// The lock for which it asks first.
    start: usize,
    /// Whether it has asked for one.
    has_asked: bool,
    under_way: UnderWay,
}

/// What is under way for a client in line.
#[derive(Clone, Copy, PartialEq, Eq)]
enum UnderWay {
    Nothing,
    /// A request for this lock, or a hand-over of it.
    Lock(usize),
    /// Questions which locks are held.
    Looks,
}

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
pub(in crate::lock) enum Looked {
    /// It is held, for so long at least.
    Held(Option<Duration>),
    /// It may be free.
    Free,
    Unknown(NoQuorum),
}

impl Families {
    /// Returns the first client in the line of this permit's family for which nothing is under way.
    pub(super) fn first(&self, permit: Option<&Permit>) -> Option<&InLine> {
        let Permit { family, at, .. } = permit?;
        let seats = &self.lines.get(family)?.seats;
        seats.iter().find(|seat| seat.may_take(*at)).map(|seat| &seat.seat)
    }

    pub(super) fn first_mut(&mut self, permit: Option<&Permit>) -> Option<&mut InLine> {
        let Permit { family, at, .. } = permit?;
        let seats = &mut self.lines.get_mut(family)?.seats;
        seats.iter_mut().find(|seat| seat.may_take(*at)).map(|seat| &mut seat.seat)
    }

    /// Notes that this permit is handed over to the client with this ticket, if that is in the family's line.
    pub(super) fn asks(&mut self, permit: Option<&Permit>, ticket: u64) {
        if let Some(Permit { family, at, .. }) = permit
            && let Some(line) = self.lines.get_mut(family)
            && let Some(seat) = line.seats.iter_mut().find(|seat| seat.seat.ticket == ticket)
        {
            seat.under_way = UnderWay::Lock(*at);
        }
    }

    /// Returns the client with this ticket if a request for this permit is under way.
    pub(super) fn asking(&mut self, permit: Option<&Permit>, ticket: u64) -> Option<&mut InLine> {
        let Permit { family, at, .. } = permit?;
        let seats = &mut self.lines.get_mut(family)?.seats;
        let asks =
            |seat: &FamilySeat| seat.seat.ticket == ticket && seat.under_way == UnderWay::Lock(*at);
        seats.iter_mut().find(|seat| asks(seat)).map(|seat| &mut seat.seat)
    }

    /// Takes the wakers of all clients in line.
    pub(super) fn wakers(&mut self) -> impl Iterator<Item = Waker> {
        let seats = self.lines.values_mut().flat_map(|line| line.seats.iter_mut());
        seats.filter_map(|seat| seat.seat.waker.take())
    }

    /// Returns the number of clients in line.
    pub(super) fn waiting(&self) -> usize {
        self.lines.values().map(|line| line.seats.len()).sum()
    }

    /// Returns when the first client of each line came.
    pub(super) fn first_arrivals(&self) -> impl Iterator<Item = Instant> {
        self.lines.values().filter_map(|line| line.seats.front()).map(|seat| seat.seat.since)
    }

    /// Returns the clients in line, each with the family's name as operators see it.
    pub(super) fn seats(&self) -> impl Iterator<Item = (&Key, &InLine)> {
        self.lines
            .values()
            .flat_map(|line| line.seats.iter().map(move |seat| (&line.shown, &seat.seat)))
    }

    /// Returns the lines as operators see them.
    pub(super) fn status(
        &self,
        queues: &HashMap<Vec<u8>, Queue>,
        now: Instant,
    ) -> impl Iterator<Item = LineStatus> {
        self.lines.values().filter_map(move |line| line.status(queues, now))
    }

    /// Returns the line that operators see by this name.
    pub(super) fn status_of(
        &self,
        shown: &[u8],
        queues: &HashMap<Vec<u8>, Queue>,
        now: Instant,
    ) -> Option<LineStatus> {
        self.named(shown)?.status(queues, now)
    }

    /// Returns the line that operators see by this name.
    pub(super) fn named(&self, shown: &[u8]) -> Option<&Family> {
        if self.lines.is_empty() {
            return None;
        }
        self.lines.get(&Key::from(shown.strip_suffix(ANY)?))
    }
}

impl Family {
    /// Returns the clients in line as operators see them.
    pub(super) fn shown(&self, now: Instant) -> Vec<WaiterStatus> {
        self.seats.iter().map(|seat| seat.seat.shown(now)).collect()
    }

    fn status(&self, queues: &HashMap<Vec<u8>, Queue>, now: Instant) -> Option<LineStatus> {
        let longest = now - self.seats.front()?.seat.since;
        let waited = self.seats.iter().map(|seat| now - seat.seat.since).sum();
        let is_held = |name: &Key| queues.get(&**name).is_some_and(|queue| queue.is_held);
        let is_held = self.names.iter().all(is_held);
        Some(LineStatus {
            key: self.shown.clone(),
            waiters: self.seats.len(),
            waited,
            longest,
            is_held,
        })
    }

    fn seat(&mut self, ticket: u64) -> Option<&mut FamilySeat> {
        self.seats.iter_mut().find(|seat| seat.seat.ticket == ticket)
    }

    /// Takes the wakers of whoever may be the head of one of the locks: of the clients in line for which nothing is
    /// under way, each that wants more locks than all before it, and the clients that wait by name.
    fn heads(&mut self, queues: &mut HashMap<Vec<u8>, Queue>) -> Vec<Waker> {
        let (mut heads, mut wanted) = (Vec::new(), 0);
        for seat in self.seats.iter_mut().filter(|seat| seat.under_way == UnderWay::Nothing) {
            if seat.n > wanted {
                wanted = seat.n;
                heads.extend(seat.seat.waker.take());
            }
        }
        for name in &self.names {
            let queue = queues.get_mut(&**name);
            heads.extend(queue.and_then(|queue| queue.seats.front_mut()?.waker.take()));
        }
        heads
    }
}

impl FamilySeat {
    fn may_take(&self, at: usize) -> bool {
        self.under_way == UnderWay::Nothing && at < self.n
    }

    /// Returns its locks, from the one for which it asks first on.
    fn order(&self) -> impl Iterator<Item = usize> + use<> {
        let (start, n) = (self.start, self.n);
        (0..n).map(move |more| (start + more) % n)
    }
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
            queue.permit = Some(Permit { family: family.clone(), at, of: n });
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
            shown: line_of(family),
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
        let Lines { queues, families } = &mut *lines;
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
        let heads = line.heads(queues);
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
        let Lines { queues, families } = &mut *lines;
        let Some(line) = families.lines.get_mut(family) else { return };
        if let Some(queue) = line.names.get(at).and_then(|name| queues.get_mut(&**name)) {
            self.refused_in(queue, ticket, why);
        }
        if let Some(seat) = line.seat(ticket) {
            seat.under_way = UnderWay::Nothing;
        }
    }

    /// Notes what the nodes say of the locks at which a client in line has looked.
    pub(in crate::lock) fn looked(
        &self,
        family: &Key,
        ticket: u64,
        said: impl Iterator<Item = (usize, Looked)>,
    ) {
        let mut lines = self.lines.lock();
        let Lines { queues, families } = &mut *lines;
        let Some(line) = families.lines.get_mut(family) else { return };
        for (at, said) in said {
            let queue = line.names.get(at).and_then(|name| queues.get_mut(&**name));
            let Some(queue) = queue.filter(|queue| queue.asked_by == Some(ticket)) else {
                continue;
            };
            let why = match said {
                Looked::Held(remaining) => {
                    let same_token = SameToken::Unknown;
                    NotGranted::Held { remaining, may_be_free: false, same_token }
                }
                Looked::Unknown(error) => NotGranted::NoQuorum(error),
                Looked::Free => {
                    (queue.asked_by, queue.no_quorum) = (None, None);
                    (queue.is_held, queue.woken) = (false, Some(WakeUp::Expiry));
                    continue;
                }
            };
            self.refused_in(queue, ticket, &why);
        }
        if let Some(seat) = line.seat(ticket) {
            seat.under_way = UnderWay::Nothing;
        }
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
        let Lines { queues, families } = &mut *lines;
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
        let heads = line.heads(queues);
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

#[cfg(test)]
#[path = "family_tests.rs"]
mod tests;
