//! A small, bounded HTTP server.
//!
//! No client can keep others out: if all places are taken, the oldest connection is closed.

use std::{
    collections::VecDeque,
    convert::Infallible,
    future::Future,
    io,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use hyper::{
    body::{Body, Incoming},
    server::conn::http1,
    service::{HttpService, service_fn},
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
    time::{Sleep, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::site::{AdminSite, PageEnds};
use crate::server::entry::listeners::ACCEPT_PAUSE;

/// Connections served at once; beyond that the oldest are closed. Prometheus and a few operators
/// need a handful.
const MAX_CONNECTIONS: usize = 64;
/// How long a request's head may take to arrive, and how long a connection may be idle.
const HEADER_LIMIT: Duration = Duration::from_secs(5);
/// How long a client may accept no byte of an answer.
const WRITE_LIMIT: Duration = Duration::from_secs(5);
/// How long a connection may stay open in all, except for the request that is under way then.
const CONNECTION_LIMIT: Duration = Duration::from_secs(60);
/// How long that request may still take: none of ours takes longer.
const LAST_REQUEST_LIMIT: Duration = Duration::from_secs(15);

/// Serves the pages until `stop` is cancelled.
pub(crate) async fn serve(
    listener: Arc<TcpListener>,
    site: Arc<AdminSite>,
    stop: CancellationToken,
) {
    tokio::select! {
        () = stop.cancelled() => {}
        () = site.watch() => {}
        () = accept(listener, &site, &stop) => {}
    }
}

async fn accept(listener: Arc<TcpListener>, site: &Arc<AdminSite>, stop: &CancellationToken) {
    // Oldest first.
    let mut open: VecDeque<JoinHandle<()>> = VecDeque::new();
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                open.retain(|task| !task.is_finished());
                if open.len() >= MAX_CONNECTIONS
                    && let Some(oldest) = open.pop_front()
                {
                    oldest.abort();
                }
                open.push_back(tokio::spawn(one(stream, site.clone(), stop.clone())));
            }
            Err(_) => sleep(ACCEPT_PAUSE).await,
        }
    }
}

/// A stream that fails if the other side accepts nothing for [`WRITE_LIMIT`].
struct Impatient<S> {
    stream: S,
    /// Runs while nothing can be written.
    limit: Option<Pin<Box<Sleep>>>,
}

impl<S: AsyncRead + Unpin> AsyncRead for Impatient<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Impatient<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        if written.is_ready() {
            self.limit = None;
            return written;
        }
        let limit = self.limit.get_or_insert_with(|| Box::pin(sleep(WRITE_LIMIT)));
        limit.as_mut().poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

async fn one(tcp: TcpStream, site: Arc<AdminSite>, stop: CancellationToken) {
    let is_local = tcp.local_addr().is_ok_and(|here| here.ip().to_canonical().is_loopback());
    let ends = PageEnds { is_local, peer: tcp.peer_addr().ok() };
    let service = service_fn(|request| {
        let site = site.clone();
        async move { Ok::<_, Infallible>(site.answer(request, ends).await) }
    });
    converse(tcp, service, &stop).await;
}

/// Serves one connection until it ends, has lasted long enough, or `stop` is cancelled. A request that is under way
/// then is still answered.
async fn converse<IO, S, B>(stream: IO, service: S, stop: &CancellationToken)
where
    IO: AsyncRead + AsyncWrite + Unpin,
    S: HttpService<Incoming, ResBody = B, Error = Infallible>,
    B: Body<Error = Infallible> + 'static,
{
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_LIMIT)
        // A request that came whole is carried out, even if its client waits for no answer.
        .half_close(true)
        .serve_connection(TokioIo::new(Impatient { stream, limit: None }), service);
    let mut connection = pin!(connection);
    let limit = tokio::select! {
        // Errors of a connection concern its client only.
        _ = connection.as_mut() => return,
        () = sleep(CONNECTION_LIMIT) => LAST_REQUEST_LIMIT,
        // A process that has taken over answers the next connections.
        () = stop.cancelled() => HEADER_LIMIT,
    };
    connection.as_mut().graceful_shutdown();
    let _ = timeout(limit, connection).await;
}

#[cfg(test)]
mod tests {
    use http_body_util::Full;
    use hyper::{Request, Response, body::Bytes};
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex},
        time::Instant,
    };

    use super::*;

    const ASKED: &[u8] = b"GET / HTTP/1.1\r\nHost: here\r\n\r\n";

    /// Returns the client's end of a connection to a server that takes so long to answer each request.
    fn server(takes: Duration) -> DuplexStream {
        let (client, stream) = duplex(4096);
        let service = service_fn(move |_: Request<Incoming>| async move {
            sleep(takes).await;
            Ok::<_, Infallible>(Response::new(Full::new(Bytes::from_static(b"done"))))
        });
        let stop = CancellationToken::new();
        tokio::spawn(async move { converse(stream, service, &stop).await });
        client
    }

    /// Returns how many of several requests are answered on one connection, and how long the connection lasts.
    async fn answered(takes: Duration) -> (usize, Duration) {
        let (begun, mut client) = (Instant::now(), server(takes));
        let mut answers = String::new();
        client.write_all(&ASKED.repeat(4)).await.unwrap();
        client.read_to_string(&mut answers).await.unwrap();
        (answers.matches("HTTP/1.1 200").count(), begun.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_under_way_at_the_limit_is_answered_unless_it_takes_too_long() {
        let secs = Duration::from_secs;
        assert_eq!(
            answered(secs(24)).await,
            (3, secs(72)),
            "the third is under way after a minute"
        );
        assert_eq!(answered(secs(40)).await, (1, CONNECTION_LIMIT + LAST_REQUEST_LIMIT));
    }
}
