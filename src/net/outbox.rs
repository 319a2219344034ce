//! Bytes that a socket has not taken yet.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::io::AsyncWrite;

use super::Stream;

/// The default of the memory kept once everything is written, in bytes; more is freed.
const KEEP: usize = 4 * 1024;
/// Written bytes are dropped from the front once there are this many of them, and at least as many as
/// unwritten ones.
const STALE: usize = 256 * 1024;

/// Bytes still to be written to one socket, in order.
#[derive(Debug)]
pub(crate) struct Outbox {
    bytes: Vec<u8>,
    /// How much of `bytes` has been written.
    written: usize,
    /// Whether the stream has taken more bytes than its socket: TLS encrypts ahead.
    unflushed: bool,
    keep: usize,
}

impl Default for Outbox {
    fn default() -> Outbox {
        Outbox::keeping(KEEP)
    }
}

impl Outbox {
    /// Makes an outbox that keeps `keep` bytes of memory once everything is written.
    pub(crate) fn keeping(keep: usize) -> Outbox {
        Outbox { bytes: Vec::new(), written: 0, unflushed: false, keep }
    }

    /// Whether the socket has taken everything.
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty() && !self.unflushed
    }

    /// The number of bytes still to be written, without those that TLS has taken.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len() - self.written
    }

    /// Takes all bytes still to be written.
    #[cfg(test)]
    pub(crate) fn take(&mut self) -> Vec<u8> {
        std::mem::take(self).bytes
    }

    /// Appends bytes without writing yet.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Writes `bytes` behind those still to be written; straight from the slice if there are none. Keeps what
    /// the socket does not take.
    ///
    /// # Errors
    /// The socket's.
    pub(crate) fn send(
        &mut self,
        stream: &mut Stream,
        cx: &mut Context<'_>,
        mut bytes: &[u8],
    ) -> io::Result<()> {
        if self.is_empty() {
            while !bytes.is_empty() {
                match Pin::new(&mut *stream).poll_write(cx, bytes) {
                    Poll::Ready(Ok(0)) => return Err(io::ErrorKind::WriteZero.into()),
                    Poll::Ready(Ok(n)) => bytes = &bytes[n..],
                    Poll::Ready(Err(error)) => return Err(error),
                    Poll::Pending => break,
                }
            }
            match Pin::new(stream).poll_flush(cx) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => return Err(error),
                Poll::Pending => self.unflushed = true,
            }
        }
        self.push(bytes);
        Ok(())
    }

    /// Writes the outbox; ready once all of it is written.
    ///
    /// # Errors
    /// The socket's.
    #[inline]
    pub(crate) fn poll_flush(
        &mut self,
        stream: &mut Stream,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        if self.is_empty() { Poll::Ready(Ok(())) } else { self.poll_write(stream, cx) }
    }

    fn poll_write(&mut self, stream: &mut Stream, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.written < self.bytes.len() {
            match Pin::new(&mut *stream).poll_write(cx, &self.bytes[self.written..]) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(n)) => self.written += n,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => {
                    self.drop_stale();
                    return Poll::Pending;
                }
            }
        }
        ready!(Pin::new(stream).poll_flush(cx))?;
        self.unflushed = false;
        self.written = 0;
        if self.bytes.capacity() > self.keep {
            self.bytes = Vec::new();
        } else {
            self.bytes.clear();
        }
        Poll::Ready(Ok(()))
    }

    /// Drops written bytes, if they are many: with a slow reader an outbox may never be empty, and would grow
    /// without end.
    fn drop_stale(&mut self) {
        if self.written < STALE || self.written < self.len() {
            return;
        }
        self.bytes.drain(..self.written);
        self.written = 0;
        if self.bytes.capacity() / 4 > self.bytes.len() {
            self.bytes.shrink_to(self.bytes.len() * 2);
        }
    }

    /// Takes the last `count` bytes back. Returns `false` if some of them were written.
    #[must_use]
    pub(crate) fn take_back(&mut self, count: usize) -> bool {
        let may = count <= self.len();
        if may {
            self.bytes.truncate(self.bytes.len() - count);
        }
        may
    }
}
