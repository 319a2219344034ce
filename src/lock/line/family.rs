//! The clients that wait for any lock of a family.
//!
//! Permit i of a family is the lock `family#i`. What is known of each of these locks stands in a queue of its own
//! (`queue`), where clients wait that want this very lock. The clients that want any of them stand in one line of the
//! family. This module knows what each client of such a line wants, and what is under way for it; `permit_turns` whose
//! turn it is.

use std::{collections::VecDeque, task::Waker};

use tokio::time::Instant;

use super::in_line::{InLine, LineStatus, WaiterStatus};
use crate::{
    config::MAX_PERMITS,
    key::{Key, KeyMap},
    resp::number,
};

/// What stands behind a family's name where operators see its line.
pub(crate) const ANY_PERMIT: &[u8] = b"#*";

/// Returns the key of a family's permit.
pub(crate) fn permit(family: &Key, at: usize) -> Key {
    Key::new(family, format!("#{at}").as_bytes())
}

/// Returns the name of the family of which the lock with this name is a permit, and which of them it is. Whether there is
/// such a family is another question.
pub(crate) fn permit_of(name: &[u8]) -> Option<(&[u8], usize)> {
    let (family, number) = name.split_at(memchr::memrchr(b'#', name)?);
    let at = usize::try_from(number::integer(number.get(1..)?)?).ok()?;
    (at < MAX_PERMITS && !family.is_empty()).then_some((family, at))
}

/// Returns the same of a permit, or of the line of a family, by the name by which operators see it.
pub(crate) fn family_of(name: &[u8]) -> Option<&[u8]> {
    name.strip_suffix(ANY_PERMIT).or_else(|| permit_of(name).map(|(family, _)| family))
}

/// Returns the key by which operators see a family's line.
pub(in crate::lock) fn shown_line(family: &Key) -> Key {
    Key::new(family, ANY_PERMIT)
}

/// A lock's place in the family for which clients wait.
#[derive(Clone)]
pub(super) struct FamilyMember {
    pub(super) family: Key,
    pub(super) at: usize,
    /// How many locks the family has.
    pub(super) of: usize,
}

impl FamilyMember {
    /// How many times rarer this lock is asked about than one that is waited for by its name alone.
    pub(super) fn rarer(&self) -> u32 {
        u32::try_from(self.of / 8).unwrap_or(u32::MAX).clamp(1, 32)
    }
}

/// The lines of all families.
#[derive(Default)]
pub(super) struct Families {
    pub(super) lines: KeyMap<Family>,
    /// How many locks they have.
    pub(super) names: usize,
}

/// The clients that wait for any lock of a family.
pub(super) struct Family {
    /// The family's name as operators see it.
    pub(super) shown: Key,
    /// The keys of its locks: as many as the client that asked for most.
    pub(super) names: Vec<Key>,
    pub(super) seats: VecDeque<FamilySeat>,
}

pub(super) struct FamilySeat {
    pub(super) seat: InLine,
    /// The client wants one of so many locks.
    pub(super) n: usize,
    /// The lock for which it asks first.
    pub(super) start: usize,
    /// Whether it has asked for one.
    pub(super) has_asked: bool,
    pub(super) under_way: UnderWay,
}

/// What is under way for a client in line.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum UnderWay {
    Nothing,
    /// A request for this lock, or a hand-over of it.
    Lock(usize),
    /// Questions which locks are held.
    Looks,
}

impl Families {
    /// Returns the first client in the line of this permit's family for which nothing is under way.
    pub(super) fn first(&self, permit: Option<&FamilyMember>) -> Option<&InLine> {
        let FamilyMember { family, at, .. } = permit?;
        let seats = &self.lines.get(family)?.seats;
        seats.iter().find(|seat| seat.may_take(*at)).map(|seat| &seat.seat)
    }

    pub(super) fn first_mut(&mut self, permit: Option<&FamilyMember>) -> Option<&mut InLine> {
        let FamilyMember { family, at, .. } = permit?;
        let seats = &mut self.lines.get_mut(family)?.seats;
        seats.iter_mut().find(|seat| seat.may_take(*at)).map(|seat| &mut seat.seat)
    }

    /// Notes that this permit is handed over to the client with this ticket, if that is in the family's line.
    pub(super) fn asks(&mut self, permit: Option<&FamilyMember>, ticket: u64) {
        if let Some(FamilyMember { family, at, .. }) = permit
            && let Some(line) = self.lines.get_mut(family)
            && let Some(seat) = line.seats.iter_mut().find(|seat| seat.seat.ticket == ticket)
        {
            seat.under_way = UnderWay::Lock(*at);
        }
    }

    /// Returns the client with this ticket if a request for this permit is under way.
    pub(super) fn asking(
        &mut self,
        permit: Option<&FamilyMember>,
        ticket: u64,
    ) -> Option<&mut InLine> {
        let FamilyMember { family, at, .. } = permit?;
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
    pub(super) fn status(&self, now: Instant) -> impl Iterator<Item = LineStatus> {
        self.lines.values().filter_map(move |line| line.status(now))
    }

    /// Returns the line that operators see by this name, or of the family of this name.
    pub(super) fn named(&self, shown: &[u8]) -> Option<&Family> {
        if self.lines.is_empty() {
            return None;
        }
        self.lines.get(&Key::from(shown.strip_suffix(ANY_PERMIT).unwrap_or(shown)))
    }
}

impl Family {
    /// Returns the clients in line as operators see them.
    pub(super) fn shown(&self, now: Instant) -> Vec<WaiterStatus> {
        self.seats.iter().map(|seat| seat.seat.shown(now)).collect()
    }

    /// Returns the line as operators see it. No one client holds a family.
    pub(super) fn status(&self, now: Instant) -> Option<LineStatus> {
        let longest = now - self.seats.front()?.seat.since;
        let waited = self.seats.iter().map(|seat| now - seat.seat.since).sum();
        let (key, waiters) = (self.shown.clone(), self.seats.len());
        Some(LineStatus { key, waiters, waited, longest, is_held: false, is_family: true })
    }

    pub(super) fn seat(&mut self, ticket: u64) -> Option<&mut FamilySeat> {
        self.seats.iter_mut().find(|seat| seat.seat.ticket == ticket)
    }

    /// Takes the wakers of those that may be the head of one of the locks: of the clients in line for which nothing is
    /// under way, each that wants more locks than all before it.
    pub(super) fn heads(&mut self) -> Vec<Waker> {
        let (mut heads, mut wanted) = (Vec::new(), 0);
        for seat in self.seats.iter_mut().filter(|seat| seat.under_way == UnderWay::Nothing) {
            if seat.n > wanted {
                wanted = seat.n;
                heads.extend(seat.seat.waker.take());
            }
        }
        heads
    }
}

impl FamilySeat {
    fn may_take(&self, at: usize) -> bool {
        self.under_way == UnderWay::Nothing && at < self.n
    }

    /// Returns its locks, from the one for which it asks first on.
    pub(super) fn order(&self) -> impl Iterator<Item = usize> + use<> {
        let (start, n) = (self.start, self.n);
        (0..n).map(move |more| (start + more) % n)
    }
}
