//! Reads ahead behind a LOCK that waits in line, or behind a command that blocks on shared connections, so that the
//! client's FIN is seen and the waiter leaves the line, or the session ends, at once; and behind a command of ours that
//! waits for earlier replies for more than a second.
//!
//! Behind a full receive buffer no FIN arrives, so the kernel cannot tell of one. The session therefore reads as long
//! as there is room, for this client and for all together. A client that sends more than its share has its LOCK
//! refused, as the proxy could no longer tell whether the client still lives; elsewhere no more is
//! read. If all the room is taken, the client's bytes stay in the kernel, and the session looks from time to time
//! whether the kernel knows of the client's end.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

/// Most bytes read ahead for one client.
const ONE: usize = 8 * 1024 * 1024;
/// Most bytes read ahead for all clients.
const ALL: usize = 128 * 1024 * 1024;

/// Error for a LOCK behind which the client has sent too much.
pub(super) const TOO_MUCH: &str = "ERR more than 8 MB were sent behind a LOCK that waits, so that the \
                        client's end could not be noticed; send less before it is answered";

/// Bytes read ahead by all sessions.
#[derive(Debug, Default)]
pub(crate) struct Taken(AtomicUsize);

/// Small pieces are joined up to this many bytes: by themselves, many would take more memory than their bytes.
const PIECE: usize = 16 * 1024;

/// Bytes that one session has read ahead.
#[derive(Debug)]
pub(super) struct Ahead {
    pieces: VecDeque<Vec<u8>>,
    bytes: usize,
    taken: Arc<Taken>,
}

/// Result of reading ahead.
pub(super) enum ReadAhead {
    /// Some bytes.
    Some,
    /// Some bytes, and the session now holds more than one client may send.
    TooMuch,
    /// No bytes for now.
    Nothing,
    /// The client's FIN.
    End,
    /// There is no room for more.
    NoRoom,
}

impl Ahead {
    pub(super) fn new(taken: Arc<Taken>) -> Ahead {
        Ahead { pieces: VecDeque::new(), bytes: 0, taken }
    }

    pub(super) fn has_room(&self) -> bool {
        self.taken.0.load(Ordering::Relaxed) < ALL
    }

    /// Whether there are more bytes than one client may send.
    pub(super) fn is_too_much(&self) -> bool {
        self.bytes > ONE
    }

    pub(super) fn push(&mut self, piece: &[u8]) {
        self.taken.0.fetch_add(piece.len(), Ordering::Relaxed);
        self.bytes += piece.len();
        match self.pieces.back_mut().filter(|last| last.len() + piece.len() <= PIECE) {
            Some(last) => last.extend_from_slice(piece),
            None => self.pieces.push_back(piece.to_vec()),
        }
    }

    pub(super) fn pop(&mut self) -> Option<Vec<u8>> {
        let piece = self.pieces.pop_front()?;
        self.bytes -= piece.len();
        self.taken.0.fetch_sub(piece.len(), Ordering::Relaxed);
        Some(piece)
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        self.taken.0.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_pieces_take_no_more_memory_than_their_bytes() {
        let mut ahead = Ahead::new(Arc::default());
        let bytes: Vec<u8> = (0..100_000_u32).map(|n| (n % 251) as u8).collect();
        bytes.iter().for_each(|byte| ahead.push(&[*byte]));
        let held: usize = ahead.pieces.iter().map(|piece| piece.capacity() + 24).sum();
        assert!(held <= 2 * bytes.len(), "{held}");
        let again: Vec<u8> = std::iter::from_fn(|| ahead.pop()).flatten().collect();
        assert!(again == bytes && ahead.bytes == 0);
    }
}
