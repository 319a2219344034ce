//! The room for large commands that are kept until they can be judged, for all clients.
//!
//! The bytes kept count, not those that a command's head announces: a command is kept until it is
//! answered, and a second time in the outbox to the data node. A client that has room and sends
//! nothing for a while loses it to others that want some.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::Waker,
    time::{Duration, Instant},
};

/// The most bytes of a command that is not counted.
pub(crate) const UNCOUNTED: usize = 64 * 1024;
/// How many copies of a command's bytes are kept at the same time: as they came, and on their way to
/// the data node. The second copy of a held reply is on its way to the client.
const COPIES: usize = 2;
/// How long a client may take for the next [`UNCOUNTED`] bytes while others want room.
const PATIENCE: Duration = Duration::from_secs(5);

/// The room for all clients.
#[derive(Debug)]
pub(super) struct Rooms {
    /// The most bytes of memory.
    limit: usize,
    state: Mutex<RoomState>,
}

#[derive(Debug, Default)]
struct RoomState {
    taken: usize,
    next: u64,
    tenants: HashMap<u64, Tenant>,
}

#[derive(Debug)]
struct Tenant {
    /// Bytes of memory.
    bytes: usize,
    /// How many bytes had come when the command last made progress, and when that was.
    marked: (usize, Instant),
    /// The waker of a command that is still coming, called when its room is given to others.
    waker: Option<Waker>,
}

/// A large command's share of the room, given back when dropped.
#[derive(Debug)]
pub(crate) struct Room {
    rooms: Arc<Rooms>,
    /// `None` if the command is too small to be counted.
    id: Option<u64>,
}

impl Rooms {
    /// Makes room for commands of this many bytes in all.
    pub(super) fn new(commands: usize) -> Arc<Rooms> {
        Arc::new(Rooms { limit: commands.saturating_mul(COPIES), state: Mutex::default() })
    }

    /// Returns room for `bytes` of a command, or `None` if others take too much. `waker`: more bytes
    /// are to come, and if none come, others may take the room.
    pub(super) fn room(self: &Arc<Self>, bytes: usize, waker: Option<&Waker>) -> Option<Room> {
        let mut room = Room { rooms: self.clone(), id: None };
        room.grow(bytes, waker).then_some(room)
    }

    /// Locks the state. Ignores poison: nothing panics while it has the mutex.
    fn lock(&self) -> MutexGuard<'_, RoomState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RoomState {
    /// Takes `more` bytes, if need be from commands that make no progress. Returns `false` if there is
    /// no room.
    fn take(&mut self, more: usize, limit: usize, now: Instant) -> bool {
        if self.taken.saturating_add(more) > limit {
            let has_stopped = |tenant: &Tenant| {
                tenant.waker.is_some() && now.duration_since(tenant.marked.1) >= PATIENCE
            };
            let mut freed = 0;
            self.tenants.retain(|_, tenant| {
                let stays = !has_stopped(tenant);
                if !stays {
                    freed += tenant.bytes;
                    tenant.waker.iter().for_each(Waker::wake_by_ref);
                }
                stays
            });
            self.taken -= freed;
        }
        let fits = self.taken.saturating_add(more) <= limit;
        self.taken += if fits { more } else { 0 };
        fits
    }
}

impl Room {
    /// Enlarges the room to what a command of `bytes` takes. Without a waker the command is whole, and
    /// keeps its room. Returns `false` if others take too much, or were given this room because nothing
    /// came for too long.
    pub(crate) fn grow(&mut self, bytes: usize, waker: Option<&Waker>) -> bool {
        if bytes <= UNCOUNTED && self.id.is_none() {
            return true;
        }
        let (came, bytes) = (bytes, bytes.saturating_mul(COPIES));
        let (now, mut state) = (Instant::now(), self.rooms.lock());
        let before = match self.id {
            None => 0,
            Some(id) => match state.tenants.get(&id) {
                Some(tenant) => tenant.bytes,
                None => return false,
            },
        };
        if !state.take(bytes.saturating_sub(before), self.rooms.limit, now) {
            return false;
        }
        let state = &mut *state;
        let id = *self.id.get_or_insert_with(|| {
            state.next += 1;
            state.next
        });
        let tenant = state.tenants.entry(id).or_insert_with(|| Tenant {
            bytes,
            marked: (came, now),
            waker: waker.cloned(),
        });
        tenant.bytes = tenant.bytes.max(bytes);
        if waker.is_none() {
            tenant.waker = None;
        }
        if came >= tenant.marked.0 + UNCOUNTED {
            tenant.marked = (came, now);
        }
        true
    }

    /// Whether the room was given to others.
    pub(crate) fn is_lost(&self) -> bool {
        self.id.is_some_and(|id| !self.rooms.lock().tenants.contains_key(&id))
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            let mut state = self.rooms.lock();
            if let Some(tenant) = state.tenants.remove(&id) {
                state.taken -= tenant.bytes;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: usize = 1 << 20;

    #[test]
    fn room_is_what_is_held() {
        let rooms = Rooms::new(2 * MB);
        let mut a = rooms.room(100, None).unwrap();
        let b = rooms.room(MB, None).unwrap();
        assert!(a.grow(MB, None) && !a.grow(MB + 1, None), "a megabyte is another's");
        assert!(rooms.room(UNCOUNTED, None).is_some() && rooms.room(MB, None).is_none());
        drop(b);
        assert!(a.grow(2 * MB, None) && !a.is_lost());
        drop(a);
        assert_eq!(rooms.lock().taken, 0);
    }

    #[test]
    fn a_command_that_is_whole_keeps_its_room() {
        let rooms = Rooms::new(2 * MB);
        let mut whole = rooms.room(2 * MB, Some(Waker::noop())).unwrap();
        assert!(whole.grow(2 * MB, None));
        let long_ago = Instant::now().checked_sub(2 * PATIENCE).unwrap();
        rooms.lock().tenants.values_mut().for_each(|tenant| tenant.marked.1 = long_ago);
        assert!(rooms.room(MB, None).is_none() && !whole.is_lost());
    }

    #[test]
    fn who_does_not_move_gives_way() {
        let rooms = Rooms::new(2 * MB);
        let waker = Waker::noop();
        let mut still = rooms.room(MB, Some(waker)).unwrap();
        let mut moves = rooms.room(MB - UNCOUNTED, Some(waker)).unwrap();
        let long_ago = Instant::now().checked_sub(2 * PATIENCE).unwrap();
        for tenant in rooms.lock().tenants.values_mut() {
            tenant.marked.1 = long_ago;
        }
        assert!(moves.grow(MB, Some(waker)) && !still.is_lost(), "there is room for both");
        // A whole command is on its way, and keeps its room.
        let whole = rooms.room(MB, None).unwrap();
        assert!(still.is_lost() && !moves.is_lost() && !still.grow(MB + 1, Some(waker)));
        assert!(rooms.room(MB, None).is_none());
        drop((still, moves, whole));
        assert_eq!(rooms.lock().taken, 0);
        assert!(rooms.lock().tenants.is_empty());
    }
}
