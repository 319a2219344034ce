//! A small, bounded HTTP server.
//!
//! Nobody can keep others out: if all places are taken, the oldest connection is closed.

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

use hyper::{server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
    time::{Sleep, sleep},
};
use tokio_util::sync::CancellationToken;

use super::site::{AdminSite, PageEnds};
use crate::server::entry::listeners::ACCEPT_PAUSE;

/// Connections served at once; beyond that the oldest are closed. Prometheus and a few operators
/// need a handful.
const MAX_CONNECTIONS: usize = 64;
/// How long a request's head may take to arrive, and how long a connection may be idle.
const HEADER_LIMIT: Duration = Duration::from_secs(5);
/// How long a client may take no byte of an answer.
const WRITE_LIMIT: Duration = Duration::from_secs(5);
/// How long a connection may stay open in all.
const CONNECTION_LIMIT: Duration = Duration::from_secs(60);

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

/// A stream that fails if its peer takes nothing for [`WRITE_LIMIT`].
struct Impatient {
    tcp: TcpStream,
    /// Runs while nothing can be written.
    limit: Option<Pin<Box<Sleep>>>,
}

impl AsyncRead for Impatient {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_read(cx, buf)
    }
}

impl AsyncWrite for Impatient {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.tcp).poll_write(cx, buf);
        if written.is_ready() {
            self.limit = None;
            return written;
        }
        let limit = self.limit.get_or_insert_with(|| Box::pin(sleep(WRITE_LIMIT)));
        limit.as_mut().poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_shutdown(cx)
    }
}

async fn one(tcp: TcpStream, site: Arc<AdminSite>, stop: CancellationToken) {
    let is_local = tcp.local_addr().is_ok_and(|here| here.ip().to_canonical().is_loopback());
    let ends = PageEnds { is_local, peer: tcp.peer_addr().ok() };
    let service = service_fn(|request| {
        let site = site.clone();
        async move { Ok::<_, Infallible>(site.answer(request, ends).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_LIMIT)
        // What was asked for whole is done, though its client waits for no answer.
        .half_close(true)
        .serve_connection(TokioIo::new(Impatient { tcp, limit: None }), service);
    let mut connection = pin!(connection);
    // Errors of a connection concern its client only.
    tokio::select! {
        _ = tokio::time::timeout(CONNECTION_LIMIT, connection.as_mut()) => return,
        () = stop.cancelled() => connection.as_mut().graceful_shutdown(),
    }
    // A process that has taken over answers the next connections.
    let _ = tokio::time::timeout(HEADER_LIMIT, connection).await;
}
