//! A small, bounded HTTP server for three pages.
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

use http_body_util::Full;
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Bytes, Incoming},
    header::{ALLOW, CONTENT_TYPE},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
    time::{Sleep, sleep},
};
use tokio_util::sync::CancellationToken;

use super::health::PageSource;
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

const TEXT: &str = "text/plain; charset=utf-8";
const METRICS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Serves the pages until `stop` is cancelled.
pub(crate) async fn serve(
    listener: Arc<TcpListener>,
    state: Arc<PageSource>,
    stop: CancellationToken,
) {
    tokio::select! {
        () = stop.cancelled() => {}
        () = state.watch() => {}
        () = accept(listener, &state, &stop) => {}
    }
}

async fn accept(listener: Arc<TcpListener>, state: &Arc<PageSource>, stop: &CancellationToken) {
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
                open.push_back(tokio::spawn(one(stream, state.clone(), stop.clone())));
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

async fn one(tcp: TcpStream, state: Arc<PageSource>, stop: CancellationToken) {
    let service = service_fn(|request| {
        let response = answer(&request, &state);
        async { Ok::<_, Infallible>(response) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_LIMIT)
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

fn answer(request: &Request<Incoming>, state: &PageSource) -> Response<Full<Bytes>> {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut response = page(StatusCode::METHOD_NOT_ALLOWED, TEXT, "only GET and HEAD\n");
        response.headers_mut().insert(ALLOW, hyper::header::HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    match request.uri().path() {
        "/metrics" => page(StatusCode::OK, METRICS, state.metrics()),
        "/healthz" => page(StatusCode::OK, TEXT, "ok\n"),
        "/readyz" => {
            let (ready, text) = state.readiness();
            let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
            page(status, TEXT, text)
        }
        _ => page(StatusCode::NOT_FOUND, TEXT, "there are /metrics, /healthz and /readyz\n"),
    }
}

fn page(status: StatusCode, kind: &'static str, text: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(text.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, hyper::header::HeaderValue::from_static(kind));
    response
}
