//! Bytes that a socket has not taken yet.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::io::AsyncWrite;

use super::{Stream, byte_queue::ByteQueue};

/// The default of the memory kept once everything is written, in bytes; more is freed.
const KEEP: usize = 4 * 1024;

/// Bytes still to be written to one socket, in order.
#[derive(Debug)]
pub(crate) struct Outbox {
    bytes: ByteQueue,
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
        Outbox { bytes: ByteQueue::default(), unflushed: false, keep }
    }

    /// Whether the socket has taken everything.
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty() && !self.unflushed
    }

    /// The number of bytes still to be written, without those that TLS has taken.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Takes all bytes still to be written.
    #[cfg(test)]
    pub(crate) fn take(&mut self) -> Vec<u8> {
        std::mem::take(self).bytes.all().to_vec()
    }

    /// Appends bytes without writing yet.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.bytes.put(bytes);
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
        while !self.bytes.is_empty() {
            match ready!(Pin::new(&mut *stream).poll_write(cx, self.bytes.all()))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => self.bytes.take(written, self.keep),
            }
            self.unflushed = true;
        }
        ready!(Pin::new(stream).poll_flush(cx))?;
        self.unflushed = false;
        Poll::Ready(Ok(()))
    }

    /// Takes the last `count` bytes back. Returns `false` if some of them were written.
    #[must_use]
    pub(crate) fn take_back(&mut self, count: usize) -> bool {
        self.bytes.take_back(count)
    }
}
