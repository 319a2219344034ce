//! What a client sends behind a LOCK that waits in line is read ahead, so that its FIN is
//! seen behind it and the waiter leaves the line at once.
//!
//! Of a full receive buffer the kernel tells no FIN: it has not come yet. So bytes are read
//! as long as there is room for them, here and in all sessions together, and a client that
//! sends more than is its share has its LOCK refused: nobody could tell whether it still
//! lives. Where others have taken all the room, its bytes stay where they are, and its end
//! is looked for from time to time as far as the kernel knows of it.

use std::{
    collections::VecDeque,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
};

use tokio::io::{AsyncRead, ReadBuf};

use super::{
    READ, Session,
    metrics::{CloseReason, Outcome},
};

/// Bytes of one client.
const ONE: usize = 8 * 1024 * 1024;
/// Bytes of all clients.
const ALL: usize = 128 * 1024 * 1024;

/// Told to a LOCK behind which too much came.
const TOO_MUCH: &str = "ERR more than 8 MB were sent behind a LOCK that waits, so that the \
                        client's end could not be noticed; send less before it is answered";

/// Bytes read ahead by all sessions.
#[derive(Debug, Default)]
pub struct Taken(AtomicUsize);

/// What one session has read ahead, as it came.
#[derive(Debug)]
pub struct Ahead {
    pieces: VecDeque<Box<[u8]>>,
    bytes: usize,
    taken: Arc<Taken>,
}

/// What came of reading ahead.
pub(super) enum Read {
    /// Some bytes, or the LOCK is over for their number.
    Some,
    /// Nothing for now.
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

    fn has_room(&self) -> bool {
        self.taken.0.load(Ordering::Relaxed) < ALL
    }

    fn push(&mut self, piece: &[u8]) {
        self.taken.0.fetch_add(piece.len(), Ordering::Relaxed);
        self.bytes += piece.len();
        self.pieces.push_back(piece.into());
    }

    fn pop(&mut self) -> Option<Box<[u8]>> {
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

impl Session {
    /// Reads behind a LOCK that waits in line, beyond what any command may have behind it.
    #[cold]
    pub(super) fn read_ahead(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Result<Read, CloseReason> {
        let taken = &self.shared.ahead;
        let ahead = self.ahead.get_or_insert_with(|| Box::new(Ahead::new(taken.clone())));
        if !ahead.has_room() {
            return Ok(Read::NoRoom);
        }
        let mut read = ReadBuf::new(&mut buffer[..READ]);
        match Pin::new(&mut self.client).poll_read(cx, &mut read) {
            Poll::Pending => return Ok(Read::Nothing),
            Poll::Ready(Err(error)) => return Err(self.client_failed(&error)),
            Poll::Ready(Ok(())) if read.filled().is_empty() => {
                self.ahead = None;
                return Ok(Read::End);
            }
            Poll::Ready(Ok(())) => ahead.push(read.filled()),
        }
        self.shared.metrics.bytes_from_clients.increment(read.filled().len() as u64);
        if ahead.bytes > ONE
            && let Some(barrier) = self.barrier.take()
        {
            // Dropped with it, the waiter leaves the line.
            self.answer_error(barrier, TOO_MUCH, Outcome::BadRequest);
        }
        Ok(Read::Some)
    }

    /// Reads what was read ahead, or from the client.
    #[inline]
    pub(super) fn poll_read_client(
        &mut self,
        cx: &mut Context<'_>,
        read: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        if let Some(ahead) = &mut self.ahead {
            if let Some(piece) = ahead.pop() {
                read.put_slice(&piece);
                return Poll::Ready(Ok(()));
            }
            self.ahead = None;
        }
        Pin::new(&mut self.client).poll_read(cx, read)
    }
}
