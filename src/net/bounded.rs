//! A stream of replies to the proxy's own questions, each bounded to what its caller can use.
//!
//! A server that answers without end, by fault or by intent, would otherwise fill the memory, as the client
//! library keeps a reply until it is whole. Such a connection ends with an error that says so.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::Stream;
use crate::resp::reply::{NextReply, ReplyScanner};

/// Bounds the bytes received between two writes, as a multiple of the longest reply. Without it, unsolicited
/// replies that are each short enough could come without end.
const UNASKED: usize = 16;

/// A stream that fails once a reply is too long, or once too much came that was not asked for.
pub(crate) struct BoundedStream {
    stream: Stream,
    replies: ReplyScanner,
    /// The longest reply allowed, in bytes.
    longest: usize,
    /// Bytes received of the reply that is still incomplete.
    begun: usize,
    /// Bytes received since the last write.
    unasked: usize,
}

impl BoundedStream {
    /// Bounds each reply on this stream to `longest` bytes.
    pub(crate) fn new(stream: Stream, longest: usize) -> BoundedStream {
        BoundedStream { stream, replies: ReplyScanner::default(), longest, begun: 0, unasked: 0 }
    }

    /// Counts received bytes against both bounds.
    fn received(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut at = 0;
        self.unasked += bytes.len();
        loop {
            let before = at;
            let next = self.replies.next(bytes, &mut at);
            self.begun += at - before;
            if self.begun > self.longest {
                return Err(too_long(self.longest));
            }
            match next {
                NextReply::Frame(_) => self.begun = 0,
                NextReply::End => break,
                // The client library reports that.
                NextReply::Broken => return Ok(()),
            }
        }
        let most = self.longest.saturating_mul(UNASKED);
        if self.unasked > most { Err(too_long(most)) } else { Ok(()) }
    }
}

fn too_long(most: usize) -> io::Error {
    let why = format!("the server answers with more than {most} bytes");
    io::Error::new(io::ErrorKind::InvalidData, why)
}

impl AsyncRead for BoundedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buffer))?;
        let received = buffer.filled().get(before..).unwrap_or_default();
        Poll::Ready(self.received(received))
    }
}

impl AsyncWrite for BoundedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.unasked = 0;
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

    const LONGEST: usize = 64 * 1024;

    fn pair() -> (BoundedStream, DuplexStream) {
        let (here, there) = tokio::io::duplex(1 << 16);
        (BoundedStream::new(Stream::Memory(here), LONGEST), there)
    }

    /// Sends `head` and then `unit` without end. Returns how many bytes are read before the stream fails.
    async fn read_of_endless(head: &[u8], unit: &[u8]) -> usize {
        let (mut bounded, mut server) = pair();
        let (head, units) = (head.to_vec(), unit.repeat(8192 / unit.len()));
        let sending = async move {
            let _ = server.write_all(&head).await;
            while server.write_all(&units).await.is_ok() {}
        };
        let reading = async move {
            let (mut read, mut buffer) = (0, vec![0; 8192]);
            loop {
                match bounded.read(&mut buffer).await {
                    Ok(0) => panic!("the stream has ended"),
                    Ok(more) => read += more,
                    Err(error) => {
                        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
                        return read;
                    }
                }
            }
        };
        tokio::join!(sending, reading).1
    }

    #[tokio::test]
    async fn a_server_that_answers_without_end_is_heard_only_so_long() {
        for (head, unit) in [
            ("*2147483647\r\n", "$1\r\na\r\n"),
            ("*2147483647\r\n", "*0\r\n"),
            ("", "*1\r\n"),
            ("+", "a"),
            ("-ERR ", "a"),
            ("$629145600\r\n", "a"),
            ("%9223372036854775807\r\n", ":1\r\n"),
            ("", "|1\r\n:1\r\n:1\r\n"),
        ] {
            let read = read_of_endless(head.as_bytes(), unit.as_bytes()).await;
            assert!(read <= LONGEST + 8192, "{head:?} {unit:?}: {read}");
        }
        for unit in ["+OK\r\n", ">1\r\n:1\r\n", "*0\r\n"] {
            let read = read_of_endless(b"", unit.as_bytes()).await;
            assert!(read <= UNASKED * LONGEST + 8192, "{unit:?}: {read}");
        }
    }

    #[tokio::test]
    async fn many_replies_pass_whose_lengths_are_ordinary() {
        let (mut bounded, mut server) = pair();
        let reply = [&b"$60000\r\n"[..], &[b'x'; 60_000], b"\r\n"].concat();
        for _ in 0..3 * UNASKED {
            bounded.write_all(b"PING\r\n").await.unwrap();
            server.write_all(&reply).await.unwrap();
            let mut read = vec![0; reply.len()];
            bounded.read_exact(&mut read).await.unwrap();
            assert!(read == reply);
        }
    }
}
