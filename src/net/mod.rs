//! TCP, TLS and Unix streams under one name, their socket options, and the PROXY header that may come first.
//!
//! All code that touches a socket of Redis goes through [`Stream`], and need not know its kind.
//! [`mod@bounded`] bounds servers' answers to the proxy's own questions. [`http_client`] asks other proxies at
//! their admin addresses.

pub(crate) use byte_queue::ByteQueue;
pub(crate) use outbox::Outbox;
pub(crate) use tls::{Acceptor, Connector};

pub(crate) mod bounded;
mod byte_queue;
pub(crate) mod http_client;
#[cfg(test)]
pub(crate) mod memory_stream;
mod outbox;
pub(crate) mod proxy_header;
pub(crate) mod redis_client;
pub(crate) mod tls;

use std::{
    fmt, io,
    os::fd::{AsFd, OwnedFd},
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::{Errno, FdFlags, fcntl_dupfd_cloexec, fcntl_setfd, ioctl_fionread},
};
use socket2::{SockRef, TcpKeepalive};
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf},
    net::{TcpStream, UnixStream},
    time::Instant,
};

use self::{proxy_header::Ends, tls::TlsStream};
use crate::config::{Endpoint, RedisUrl};

/// Most bytes that rustls holds between two reads: the rest of one record, and the beginning of
/// another.
const IN_HAND: u64 = 2 * 17 * 1024;

/// Most bytes that a socket takes beyond those that go out, where it is to take few.
#[cfg(target_os = "linux")]
const FEW_NOT_SENT: u32 = 128 * 1024;

/// Keepalive of a connection that is made for one question, and ends sooner than that.
pub(crate) const KEEPALIVE_OF_QUESTIONS: Duration = Duration::from_secs(60);

/// A connected byte stream.
#[derive(Debug)]
pub(crate) enum Stream {
    /// Over TCP.
    Tcp(TcpStream),
    /// Over a Unix socket.
    Unix(UnixStream),
    /// Over TCP, encrypted. Boxed, as it is ten times the size of the others.
    Tls(Box<TlsStream>),
    /// A part of connections that others use too.
    Shared(Box<dyn SharedPart>),
    /// Inside this process.
    #[cfg(test)]
    Memory(tokio::io::DuplexStream),
}

/// One user's part of connections that many use.
pub(crate) trait SharedPart:
    AsyncRead + AsyncWrite + Unpin + Send + Sync + fmt::Debug
{
    /// Ready once nothing that was sent awaits a reply.
    fn poll_settled(&mut self, cx: &Context<'_>) -> Poll<()>;

    /// Whether a reply to a command that may block is owed.
    fn may_block(&self) -> bool;

    /// Whether that reply is the next one, and all before it were taken.
    fn blocks(&self) -> bool;

    /// Whether commands go over connections that others use too.
    fn is_shared(&self) -> bool;

    /// Whether the part has ended because its user took what came for it too slowly for the others. If not, the task is
    /// woken once it has.
    fn gave_up_reader(&self, cx: &Context<'_>) -> bool;

    /// Whether a command waits until all earlier replies were taken.
    fn needs_replies(&self) -> bool;
}

impl From<TlsStream> for Stream {
    fn from(stream: TlsStream) -> Stream {
        Stream::Tls(Box::new(stream))
    }
}

/// Connects to `url` with the options of [`tune`], for the proxy's own purposes.
///
/// # Errors
/// The operating system's, or [`io::ErrorKind::TimedOut`] after `limit`; with TLS, also if the
/// server cannot be trusted.
pub(crate) async fn connect(
    url: &RedisUrl,
    connector: &Connector,
    limit: Duration,
    keepalive: Duration,
) -> io::Result<Stream> {
    connect_for(None, url, connector, limit, keepalive).await
}

/// Connects as [`connect`] does, on behalf of `client`, which the PROXY header names if one is sent.
///
/// # Errors
/// The errors of [`connect`].
pub(crate) async fn connect_for(
    client: Option<&Ends>,
    url: &RedisUrl,
    connector: &Connector,
    limit: Duration,
    keepalive: Duration,
) -> io::Result<Stream> {
    let begun = Instant::now();
    let connecting = async {
        let mut stream = match &url.endpoint {
            Endpoint::Tcp { host, port } => {
                #[cfg(test)]
                if let Some(stream) = memory_stream::connect(host) {
                    return stream.map(Stream::Memory);
                }
                let stream = match url.found {
                    Some(address) => TcpStream::connect(address).await?,
                    None => TcpStream::connect((host.as_str(), *port)).await?,
                };
                tune(&stream, keepalive)?;
                Stream::Tcp(stream)
            }
            Endpoint::Unix(path) => Stream::Unix(UnixStream::connect(path).await?),
        };
        if connector.sends_header() {
            stream.write_all(&proxy_header::encode(client.copied())?).await?;
        }
        Ok(stream)
    };
    let connected: io::Result<Stream> = match tokio::time::timeout(limit, connecting).await {
        Ok(result) => result,
        Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "connection timed out")),
    };
    match (connected?, &url.endpoint) {
        (Stream::Tcp(stream), Endpoint::Tcp { host, .. }) if url.tls => {
            // Boxed, so that a connection without TLS needs no room for it.
            Box::pin(connector.connect(stream, host, limit.saturating_sub(begun.elapsed()))).await
        }
        (stream, _) => Ok(stream),
    }
}

/// Sets TCP_NODELAY, keepalive after `idle`, and TCP_USER_TIMEOUT.
///
/// A peer that vanished is noticed after `idle` plus three probes, each a third of `idle` apart. Data that is
/// never acknowledged is given up after the same time.
///
/// # Errors
/// The operating system's.
pub fn tune(socket: &impl AsFd, idle: Duration) -> io::Result<()> {
    let socket = SockRef::from(socket);
    socket.set_tcp_nodelay(true)?;
    let interval = (idle / 3).max(Duration::from_secs(1));
    socket.set_tcp_keepalive(
        &TcpKeepalive::new().with_time(idle).with_interval(interval).with_retries(3),
    )?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(idle + 3 * interval))?;
    Ok(())
}

/// Whether `error` says that no descriptor is left, for this process or the system.
pub(crate) fn descriptors_are_used_up(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE))
}

impl Stream {
    /// Ends the sending, and is ready once nothing that was sent can be carried out any more: over shared connections
    /// when no reply is owed, over a connection of one's own when the server has closed it, as Redis does upon FIN
    /// behind all that it has read. Replies are dropped.
    pub(crate) fn poll_settled(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Stream::Shared(part) = self
            && part.is_shared()
        {
            return part.poll_settled(cx);
        }
        // Of a connection that has failed, no more can be known.
        let _ = ready!(Pin::new(&mut *self).poll_shutdown(cx));
        let mut space = [0; 4096];
        loop {
            let mut read = ReadBuf::new(&mut space);
            match ready!(Pin::new(&mut *self).poll_read(cx, &mut read)) {
                Ok(()) if !read.filled().is_empty() => {}
                _ => return Poll::Ready(()),
            }
        }
    }

    /// Whether a reply to a command that may block is owed over shared connections.
    pub(crate) fn may_block(&self) -> bool {
        matches!(self, Stream::Shared(part) if part.may_block())
    }

    /// Whether that reply is the next one, and all before it were taken.
    pub(crate) fn blocks(&self) -> bool {
        matches!(self, Stream::Shared(part) if part.blocks())
    }

    /// Whether shared connections have given this user up, as it took what came for it too slowly.
    pub(crate) fn gave_up_reader(&self, cx: &Context<'_>) -> bool {
        matches!(self, Stream::Shared(part) if part.gave_up_reader(cx))
    }

    /// Whether a command that is to leave shared connections waits until all earlier replies were taken.
    pub(crate) fn needs_replies(&self) -> bool {
        matches!(self, Stream::Shared(part) if part.needs_replies())
    }

    /// Whether these are shared connections, on which others wait behind a user that is slow to take what comes.
    pub(crate) fn is_shared(&self) -> bool {
        matches!(self, Stream::Shared(part) if part.is_shared())
    }

    /// Has the socket take few bytes more than go out, so that what it takes tells how fast its peer reads; or as many
    /// as it will.
    pub(crate) fn take_few(&self, is_few: bool) {
        let tcp = match self {
            Stream::Tcp(stream) => stream,
            Stream::Tls(stream) => stream.tcp(),
            Stream::Unix(_) | Stream::Shared(_) => return,
            #[cfg(test)]
            Stream::Memory(_) => return,
        };
        // A socket that cannot takes more at once.
        #[cfg(target_os = "linux")]
        let _ = SockRef::from(tcp).set_tcp_notsent_lowat(if is_few { FEW_NOT_SENT } else { 0 });
    }

    /// Whether the peer has sent FIN or a reset, even behind bytes that are still unread.
    pub(crate) fn has_hung_up(&self) -> bool {
        let flags = PollFlags::RDHUP;
        let mut asked = match self {
            Stream::Tcp(stream) => [PollFd::new(stream, flags)],
            Stream::Unix(stream) => [PollFd::new(stream, flags)],
            // A peer that ends TLS ends TCP with it.
            Stream::Tls(stream) => [PollFd::new(stream.tcp(), flags)],
            Stream::Shared(_) => return false,
            #[cfg(test)]
            Stream::Memory(_) => return false,
        };
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let hung_up = flags | PollFlags::HUP | PollFlags::ERR;
        poll(&mut asked, Some(&at_once)).is_ok() && asked[0].revents().intersects(hung_up)
    }

    /// Takes the socket's error. Returns `None` if there is none, or if it was reported before.
    pub(crate) fn take_error(&self) -> Option<io::Error> {
        match self {
            Stream::Tcp(stream) => stream.take_error(),
            Stream::Unix(stream) => stream.take_error(),
            Stream::Tls(stream) => stream.tcp().take_error(),
            Stream::Shared(_) => Ok(None),
            #[cfg(test)]
            Stream::Memory(_) => Ok(None),
        }
        .ok()
        .flatten()
    }

    /// How many bytes can be read without waiting. With TLS this is an upper bound.
    pub(crate) fn readable(&self) -> u64 {
        let readable = match self {
            Stream::Tcp(stream) => ioctl_fionread(stream),
            Stream::Unix(stream) => ioctl_fionread(stream),
            Stream::Tls(stream) => ioctl_fionread(stream.tcp()).map(|coming| coming + IN_HAND),
            Stream::Shared(_) => Ok(0),
            #[cfg(test)]
            Stream::Memory(_) => Ok(0),
        };
        // A socket that cannot tell is closed.
        readable.unwrap_or_default()
    }

    /// Returns a copy of the socket that the commands which this process starts have too, under a number that scripts
    /// give to no file of their own: flock's are 9 and 200, a shell's 10 and 255.
    ///
    /// # Errors
    /// The operating system's.
    pub(crate) fn inherited(&self) -> io::Result<OwnedFd> {
        let socket = match self {
            Stream::Tcp(stream) => stream.as_fd(),
            Stream::Unix(stream) => stream.as_fd(),
            Stream::Tls(stream) => stream.tcp().as_fd(),
            Stream::Shared(_) => return Err(io::ErrorKind::Unsupported.into()),
            #[cfg(test)]
            Stream::Memory(_) => return Err(io::ErrorKind::Unsupported.into()),
        };
        // A process may be allowed fewer files.
        let copy =
            [700, 100, 0].into_iter().find_map(|from| fcntl_dupfd_cloexec(socket, from).ok());
        let copy = copy.ok_or_else(io::Error::last_os_error)?;
        fcntl_setfd(&copy, FdFlags::empty())?;
        Ok(copy)
    }

    /// Makes dropping this stream reset the connection: bytes that the peer has not received yet are never
    /// delivered.
    pub(crate) fn reset_on_drop(&mut self) {
        let tcp = match self {
            Stream::Tcp(stream) => &*stream,
            Stream::Tls(stream) => {
                stream.forget_unsent();
                stream.tcp()
            }
            Stream::Unix(_) | Stream::Shared(_) => return,
            #[cfg(test)]
            Stream::Memory(_) => return,
        };
        // A socket that cannot linger is closed the ordinary way.
        let _ = SockRef::from(tcp).set_linger(Some(Duration::ZERO));
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Tcp(s) => Pin::new(s).poll_read(cx, buf),
            Stream::Unix(s) => Pin::new(s).poll_read(cx, buf),
            Stream::Tls(s) => Pin::new(&mut **s).poll_read(cx, buf),
            Stream::Shared(s) => Pin::new(&mut **s).poll_read(cx, buf),
            #[cfg(test)]
            Stream::Memory(s) => Pin::new(s).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Stream::Tcp(s) => Pin::new(s).poll_write(cx, buf),
            Stream::Unix(s) => Pin::new(s).poll_write(cx, buf),
            Stream::Tls(s) => Pin::new(&mut **s).poll_write(cx, buf),
            Stream::Shared(s) => Pin::new(&mut **s).poll_write(cx, buf),
            #[cfg(test)]
            Stream::Memory(s) => Pin::new(s).poll_write(cx, buf),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Tcp(_) | Stream::Unix(_) => Poll::Ready(Ok(())),
            #[cfg(test)]
            Stream::Memory(s) => Pin::new(s).poll_flush(cx),
            Stream::Tls(s) => Pin::new(&mut **s).poll_flush(cx),
            Stream::Shared(s) => Pin::new(&mut **s).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Tcp(s) => Pin::new(s).poll_shutdown(cx),
            Stream::Unix(s) => Pin::new(s).poll_shutdown(cx),
            Stream::Tls(s) => Pin::new(&mut **s).poll_shutdown(cx),
            Stream::Shared(s) => Pin::new(&mut **s).poll_shutdown(cx),
            #[cfg(test)]
            Stream::Memory(s) => Pin::new(s).poll_shutdown(cx),
        }
    }
}
