//! An encrypted stream over TCP.
//!
//! rustls turns bytes into records and back, without sockets. All streams of a thread read ciphertext into one
//! shared buffer, so that a large value costs few calls, and an idle connection has no buffer here.

use std::{
    cell::RefCell,
    fmt,
    future::poll_fn,
    io::{self, IoSlice, Read, Write},
    pin::Pin,
    task::{Context, Poll, ready},
};

use metrics::Counter;
use rustls::Connection;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};

use super::{failure, is_refusal};

/// Most ciphertext moved by one read, in bytes: as much as a session reads.
const READ: usize = 64 * 1024;
/// Most ciphertext moved by one read during a handshake, in bytes. Requests may follow its last flight, and
/// rustls must be able to hold them.
const HANDSHAKE_READ: usize = 4 * 1024;
/// How many bytes rustls always has room for. A longer read makes it allocate.
const ROOM: usize = 4 * 1024;
/// Most plaintext encrypted ahead of the socket, in bytes. No more is taken before all of it is written, so this
/// bounds the memory that a slow reader costs.
const AHEAD: usize = 64 * 1024;

thread_local! {
    /// The shared buffer. It holds bytes only between a read and their decryption.
    static CIPHERTEXT: RefCell<Box<[u8]>> = RefCell::new(vec![0; READ].into_boxed_slice());
}

/// An encrypted stream after its handshake.
pub(crate) struct TlsStream {
    tcp: TcpStream,
    session: Connection,
    /// Whether the peer has sent close_notify or FIN.
    done: bool,
    /// Whether rustls may have allocated room for a whole record.
    grown: bool,
    /// Whether dropping the stream writes nothing more.
    reset: bool,
    /// Counts that the server refuses our certificate, which it may do behind the handshake (TLS 1.3).
    refused: Option<Counter>,
}

impl TlsStream {
    /// Completes the handshake.
    pub(super) async fn handshake(
        tcp: TcpStream,
        mut session: Connection,
    ) -> io::Result<TlsStream> {
        session.set_buffer_limit(Some(AHEAD));
        let (done, grown, reset, refused) = (false, false, false, None);
        let mut stream = TlsStream { tcp, session, done, grown, reset, refused };
        poll_fn(|cx| stream.poll_handshake(cx)).await?;
        Ok(stream)
    }

    fn poll_handshake(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            ready!(self.poll_send(cx))?;
            if !self.session.is_handshaking() {
                return Poll::Ready(Ok(()));
            }
            ready!(self.poll_receive(cx, HANDSHAKE_READ, &mut ReadBuf::new(&mut [])))?;
            // A client that has sent its requests and close_notify behind the handshake is still answered.
            if self.done && self.session.is_handshaking() {
                let words = "closed during the TLS handshake";
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::UnexpectedEof, words)));
            }
        }
    }

    /// Has `failures` count it if the server refuses our certificate from now on.
    pub(super) fn count_refusal(&mut self, failures: Counter) {
        self.refused = Some(failures);
    }

    /// Returns the error to report of a write that has failed with `error`: a server that refuses our certificate says
    /// so and closes, and a write may find that it has closed before its word is read.
    fn reason(&mut self, cx: &mut Context<'_>, error: io::Error) -> io::Error {
        while !self.done {
            match self.poll_receive(cx, HANDSHAKE_READ, &mut ReadBuf::new(&mut [])) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(told)) if is_refusal(&told) => return told,
                Poll::Ready(Err(_)) | Poll::Pending => break,
            }
        }
        error
    }

    /// The connection underneath.
    pub(in crate::net) fn tcp(&self) -> &TcpStream {
        &self.tcp
    }

    /// Makes dropping the stream discard unsent bytes, and send no close_notify.
    pub(in crate::net) fn forget_unsent(&mut self) {
        self.reset = true;
    }

    /// Writes all pending ciphertext.
    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.session.wants_write() {
            match self.session.write_tls(&mut Sink { tcp: &mut self.tcp, cx }) {
                Ok(0) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Poll::Pending,
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Reads ciphertext once, at most `room` bytes, and decrypts it into `buf`.
    fn poll_receive(
        &mut self,
        cx: &mut Context<'_>,
        room: usize,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        CIPHERTEXT.with_borrow_mut(|space| {
            let mut read = ReadBuf::new(&mut space[..room.min(READ)]);
            if Pin::new(&mut self.tcp).poll_read(cx, &mut read)?.is_pending() {
                if std::mem::take(&mut self.grown) {
                    // rustls frees memory when it is asked to read and there is nothing.
                    let _ = self.session.read_tls(&mut Nothing);
                }
                return Poll::Pending;
            }
            self.grown |= read.filled().len() > ROOM;
            if read.filled().is_empty() {
                // FIN without close_notify is accepted, like FIN without TLS: every command and reply tells
                // where it ends.
                self.done = true;
            }
            let mut ciphertext = read.filled();
            while !ciphertext.is_empty() && !self.done {
                self.session.read_tls(&mut ciphertext)?;
                let processed = self.session.process_new_packets();
                self.take(buf)?;
                match processed {
                    Ok(state) => self.done |= state.peer_has_closed(),
                    // Sound data before the error comes first. rustls will report the error again.
                    Err(_) if buf.filled().len() > before => break,
                    Err(error) => {
                        // Sends the alert that rustls has for the peer.
                        let _ = self.poll_send(cx);
                        let error = failure(&error);
                        if is_refusal(&error)
                            && let Some(failures) = self.refused.take()
                        {
                            failures.increment(1);
                        }
                        return Poll::Ready(Err(error));
                    }
                }
            }
            Poll::Ready(Ok(()))
        })
    }

    /// Takes plaintext out of rustls, as far as `buf` has room.
    fn take(&mut self, buf: &mut ReadBuf<'_>) -> io::Result<()> {
        while buf.remaining() > 0 {
            match self.session.reader().read(buf.initialize_unfilled()) {
                // The end, which `done` shows too.
                Ok(0) => break,
                Ok(count) => buf.advance(count),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl AsyncRead for TlsStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        // A caller that waits for a reply relies on its request being sent, and rustls has messages of its own.
        // An error shows when reading.
        let _ = this.poll_send(cx);
        let before = buf.filled().len();
        loop {
            this.take(buf)?;
            if buf.filled().len() > before || this.done || buf.remaining() == 0 {
                return Poll::Ready(Ok(()));
            }
            // Plaintext is shorter than its ciphertext. So what `buf` cannot take is less than one record,
            // which rustls holds until the next read.
            ready!(this.poll_receive(cx, buf.remaining(), buf))?;
        }
    }
}

impl AsyncWrite for TlsStream {
    /// Takes bytes only once all earlier ones are written. What the socket does not take at once is written by
    /// a later call, [`poll_flush`](AsyncWrite::poll_flush) at the latest.
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if let Err(error) = ready!(this.poll_send(cx)) {
            return Poll::Ready(Err(this.reason(cx, error)));
        }
        let taken = this.session.writer().write(bytes)?;
        match this.poll_send(cx) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(this.reason(cx, error))),
            Poll::Ready(Ok(())) | Poll::Pending => Poll::Ready(Ok(taken)),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let sent = ready!(this.poll_send(cx));
        Poll::Ready(sent.map_err(|error| this.reason(cx, error)))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.session.send_close_notify();
        ready!(this.poll_send(cx))?;
        Pin::new(&mut this.tcp).poll_shutdown(cx)
    }
}

impl Drop for TlsStream {
    /// Sends close_notify, as far as the socket takes it at once.
    fn drop(&mut self) {
        if self.reset {
            return;
        }
        self.session.send_close_notify();
        while self.session.wants_write() {
            match self.session.write_tls(&mut AtOnce(&self.tcp)) {
                Ok(count) if count > 0 => {}
                _ => return,
            }
        }
    }
}

impl fmt::Debug for TlsStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsStream").field("tcp", &self.tcp).finish_non_exhaustive()
    }
}

/// A reader that never has bytes.
struct Nothing;

impl Read for Nothing {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        Err(io::ErrorKind::WouldBlock.into())
    }
}

/// A socket as a [`Write`] for rustls. Wakes the task when the socket takes bytes again.
struct Sink<'a, 'b> {
    tcp: &'a mut TcpStream,
    cx: &'a mut Context<'b>,
}

impl Write for Sink<'_, '_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match Pin::new(&mut *self.tcp).poll_write_vectored(self.cx, slices) {
            Poll::Ready(written) => written,
            Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A socket that is written to without waiting.
struct AtOnce<'a>(&'a TcpStream);

impl Write for AtOnce<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.try_write(bytes)
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.try_write_vectored(slices)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
