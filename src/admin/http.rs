//! A small, bounded HTTP server for three pages.

use std::{convert::Infallible, pin::pin, sync::Arc, time::Duration};

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
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    time::sleep,
};
use tokio_util::sync::CancellationToken;

use super::health::State;

/// Connections served at once; more wait to be accepted. Prometheus and a few
/// operators need a handful.
const MAX_CONNECTIONS: usize = 64;
/// How long a request's head may take to arrive.
const HEADER_LIMIT: Duration = Duration::from_secs(5);
/// How long a connection may stay open in all.
const CONNECTION_LIMIT: Duration = Duration::from_secs(300);
/// Pause after accept has failed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

const TEXT: &str = "text/plain; charset=utf-8";
const METRICS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Serves the pages until `stop` is cancelled.
pub async fn serve(listener: Arc<TcpListener>, state: Arc<State>, stop: CancellationToken) {
    tokio::select! {
        () = stop.cancelled() => {}
        () = state.watch() => {}
        () = accept(listener, &state, &stop) => {}
    }
}

async fn accept(listener: Arc<TcpListener>, state: &Arc<State>, stop: &CancellationToken) {
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let Ok(place) = places.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                tokio::spawn(one(stream, state.clone(), stop.clone(), place));
            }
            Err(_) => sleep(ACCEPT_PAUSE).await,
        }
    }
}

async fn one(
    stream: TcpStream,
    state: Arc<State>,
    stop: CancellationToken,
    _place: OwnedSemaphorePermit,
) {
    let service = service_fn(|request| {
        let response = answer(&request, &state);
        async { Ok::<_, Infallible>(response) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_LIMIT)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    // What goes wrong here is the other side's affair.
    tokio::select! {
        _ = tokio::time::timeout(CONNECTION_LIMIT, connection.as_mut()) => return,
        () = stop.cancelled() => connection.as_mut().graceful_shutdown(),
    }
    // Whoever has taken this process's place answers from here on.
    let _ = tokio::time::timeout(HEADER_LIMIT, connection).await;
}

fn answer(request: &Request<Incoming>, state: &State) -> Response<Full<Bytes>> {
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
