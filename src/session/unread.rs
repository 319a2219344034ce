//! Replies held for a client that does not read them, and how many bytes of them may be held.
//!
//! A client may write its whole pipeline before it reads the first reply. Redis carries all of it
//! out and keeps the replies. A command that waits for earlier replies needs them read here, so the
//! proxy keeps them in place of the data node. How many is bounded: for each client by
//! `barrier_buffer`, and for all together.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

/// Bytes that any client may have held, whatever the others have.
const OWN: usize = 1024 * 1024;
/// What all clients may have held beyond [`OWN`], in multiples of `barrier_buffer`.
const ALL: usize = 2;

/// Bytes that all sessions hold beyond [`OWN`].
#[derive(Debug, Default)]
pub(crate) struct UnreadReplies(AtomicUsize);

/// What one session holds of them.
#[derive(Debug)]
pub(super) struct UnreadShare {
    bytes: usize,
    all: Arc<UnreadReplies>,
}

impl UnreadShare {
    pub(super) fn new(all: Arc<UnreadReplies>) -> UnreadShare {
        UnreadShare { bytes: 0, all }
    }

    /// Whether so few bytes are held that the count of all clients need not be looked at.
    #[inline]
    pub(super) fn is_free(held: usize, most: usize) -> bool {
        held < OWN.min(most)
    }

    /// Notes that so many bytes are held.
    pub(super) fn note(&mut self, held: usize) {
        let bytes = held.saturating_sub(OWN);
        // Added first, so that the sum is never negative.
        self.all.0.fetch_add(bytes, Ordering::Relaxed);
        self.all.0.fetch_sub(self.bytes, Ordering::Relaxed);
        self.bytes = bytes;
    }

    /// Whether more may be held besides what was noted. `most`: `barrier_buffer`.
    pub(super) fn has_room(&self, most: usize) -> bool {
        let all = self.all.0.load(Ordering::Relaxed);
        self.bytes == 0 || all < ALL.saturating_mul(most)
    }
}

impl Drop for UnreadShare {
    fn drop(&mut self) {
        self.note(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: usize = 1024 * 1024;

    #[test]
    fn all_clients_share_one_room_and_each_has_some_of_its_own() {
        let all = Arc::new(UnreadReplies::default());
        let mut clients: Vec<UnreadShare> = (0..4).map(|_| UnreadShare::new(all.clone())).collect();
        assert!(UnreadShare::is_free(MB - 1, 4 * MB) && !UnreadShare::is_free(MB, 4 * MB));
        assert!(!UnreadShare::is_free(64 * 1024, 64 * 1024), "less than its own was configured");
        clients[0].note(5 * MB);
        assert!(clients[0].has_room(4 * MB));
        clients[1].note(5 * MB);
        assert!(!clients[0].has_room(4 * MB) && !clients[1].has_room(4 * MB));
        clients[2].note(MB);
        assert!(clients[2].has_room(4 * MB), "its own");
        clients[2].note(MB + 1);
        assert!(!clients[2].has_room(4 * MB));
        clients[0].note(2 * MB);
        assert!(clients[2].has_room(4 * MB));
        clients.clear();
        assert_eq!(all.0.load(Ordering::Relaxed), 0);
    }
}
