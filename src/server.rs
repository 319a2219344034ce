//! Listeners, accept, limits, drain.
//!
//! Each accepted connection becomes one task with one [`Session`] on one of the
//! [`Workers`]; nothing is shared between sessions but the lock engine and the
//! counters.

use std::{
    io,
    net::SocketAddr,
    slice,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::Context as _;
use tokio::{
    io::AsyncWriteExt,
    net::{TcpListener, TcpSocket, TcpStream},
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info, warn};

use crate::{
    admin,
    config::{Config, Listener},
    lock::Engine,
    metrics::{self, CloseReason, Metrics},
    net::{self, Acceptor, Connector, Stream},
    session::{Session, Shared},
    workers::Workers,
};

/// Connections that the kernel may complete before they are accepted
/// (`tcp-backlog` in redis.conf).
const BACKLOG: u32 = 511;
/// Pause after accept has failed, as for want of file descriptors: trying again
/// at once would only burn the processor.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// What is left of the grace for releases to reach the nodes.
const RELEASE_GRACE: Duration = Duration::from_millis(500);

/// Runs the proxy until `shutdown` is cancelled and what was in flight is done.
///
/// # Errors
/// If an address cannot be listened on, or the metrics cannot be set up.
pub async fn run(config: Config, shutdown: CancellationToken) -> anyhow::Result<()> {
    let recorder = metrics::install()?;
    let listeners = config.listen.iter().map(open).collect::<anyhow::Result<Vec<_>>>()?;
    let admin_listener = match config.admin {
        Some(addr) => {
            Some(listen(addr).with_context(|| format!("cannot listen on {addr} (admin)"))?)
        }
        None => None,
    };
    let metrics = Metrics::new();
    let workers = Arc::new(Workers::start(config.io_threads)?);
    let connector = Connector::start("data", &config.tls, slice::from_ref(&config.data));
    let engine = Engine::start_on(&config.locks, workers.handles());
    let admin_stop = CancellationToken::new();
    if let Some(listener) = admin_listener {
        let state =
            admin::State::new(recorder, engine.clone(), config.data.clone(), connector.clone());
        tokio::spawn(admin::serve(listener, Arc::new(state), admin_stop.clone()));
    }

    let (drain, abort) = (CancellationToken::new(), CancellationToken::new());
    let shared = Arc::new(Shared {
        engine: engine.clone(),
        metrics,
        locks: config.locks.clone(),
        barrier_buffer: config.barrier_buffer,
        clients: AtomicUsize::new(0),
        started: Instant::now(),
        listen: config.listen.iter().map(|listener| listener.address).collect(),
        draining: AtomicBool::new(false),
        drain: drain.clone(),
        abort: abort.clone(),
    });
    let config = Arc::new(config);
    for (listener, tls) in listeners {
        if let Ok(addr) = listener.local_addr() {
            let (nodes, tls) = (config.locks.nodes.len(), tls.is_some());
            info!(%addr, tls, data = %config.data, nodes, "listening");
        }
        let door = Door {
            shared: shared.clone(),
            config: config.clone(),
            workers: workers.clone(),
            tls,
            connector: connector.clone(),
        };
        tokio::spawn(door.accept(listener, shutdown.clone()));
    }

    shutdown.cancelled().await;
    info!(connections = workers.running(), grace = ?config.shutdown_grace, "shutting down");
    shared.draining.store(true, Ordering::Relaxed);
    drain.cancel();
    if timeout(config.shutdown_grace, workers.finished()).await.is_err() {
        warn!(connections = workers.running(), "closed with commands still in flight");
        abort.cancel();
        let _ = timeout(RELEASE_GRACE, workers.finished()).await;
    }
    engine.drain(RELEASE_GRACE).await;
    admin_stop.cancel();
    Ok(())
}

/// Opens one entry of `listen`.
fn open(listener: &Listener) -> anyhow::Result<(TcpListener, Option<Acceptor>)> {
    let Listener { address, tls } = listener;
    let cannot = || format!("cannot listen on {address} (listen)");
    let socket = listen(*address).with_context(cannot)?;
    let acceptor = tls.as_ref().map(|tls| Acceptor::start(*address, tls)).transpose();
    Ok((socket, acceptor.map_err(anyhow::Error::msg).with_context(cannot)?))
}

fn listen(addr: SocketAddr) -> io::Result<TcpListener> {
    let socket = if addr.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    socket.bind(addr)?;
    socket.listen(BACKLOG)
}

/// Lets clients in at one listener.
struct Door {
    shared: Arc<Shared>,
    config: Arc<Config>,
    workers: Arc<Workers>,
    /// None: plain TCP.
    tls: Option<Acceptor>,
    /// The way to the data node.
    connector: Connector,
}

impl Door {
    async fn accept(self, listener: TcpListener, shutdown: CancellationToken) {
        let door = Arc::new(self);
        let mut failing = false;
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = shutdown.cancelled() => return,
            };
            match accepted {
                Ok((client, _)) => {
                    failing = false;
                    door.admit(client);
                }
                Err(error) => {
                    if !failing {
                        error!(%error, "cannot accept connections");
                    }
                    failing = true;
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    /// Gives a client to a worker.
    fn admit(self: &Arc<Self>, client: TcpStream) {
        let metrics = &self.shared.metrics;
        metrics.clients_total.increment(1);
        let full = self.workers.running() >= self.config.maxclients;
        // A socket belongs to the runtime it was made in until it is taken out.
        let Ok(client) = client.into_std() else { return metrics.closed(CloseReason::Client) };
        let door = self.clone();
        self.workers.spawn(async move {
            let reason = match TcpStream::from_std(client) {
                Err(_) => CloseReason::Client,
                // Without a handshake there is no way to say why.
                Ok(_) if full && door.tls.is_some() => CloseReason::MaxClients,
                Ok(client) if full => {
                    refuse(client, b"-ERR max number of clients reached\r\n").await;
                    CloseReason::MaxClients
                }
                Ok(client) => {
                    door.shared.metrics.clients.increment(1);
                    door.shared.clients.fetch_add(1, Ordering::Relaxed);
                    let reason = door.serve(client).await;
                    door.shared.clients.fetch_sub(1, Ordering::Relaxed);
                    door.shared.metrics.clients.decrement(1);
                    reason
                }
            };
            door.shared.metrics.closed(reason);
        });
    }

    async fn serve(&self, client: TcpStream) -> CloseReason {
        let config = &self.config;
        if net::tune(&client, config.tcp_keepalive).is_err() {
            return CloseReason::Client;
        }
        let client = match &self.tls {
            None => Stream::Tcp(client),
            Some(acceptor) => match self.shake_hands(acceptor, client).await {
                Ok(client) => client,
                Err(reason) => return reason,
            },
        };
        let (limit, keepalive) = (config.connect_timeout, config.tcp_keepalive);
        match net::connect(&config.data, &self.connector, limit, keepalive).await {
            Ok(upstream) => Session::new(client, upstream, self.shared.clone()).run().await,
            Err(_) => CloseReason::UpstreamConnect,
        }
    }

    /// TLS with a client, before anything else is done for it.
    async fn shake_hands(
        &self,
        acceptor: &Acceptor,
        client: TcpStream,
    ) -> Result<Stream, CloseReason> {
        let peer = client.peer_addr().ok();
        let accepted = tokio::select! {
            accepted = acceptor.accept(client) => accepted,
            () = self.shared.drain.cancelled() => return Err(CloseReason::Shutdown),
        };
        accepted.map_err(|error| {
            // Anybody can cause it, at any rate, so it is said to those who look for it.
            let peer = peer.map(tracing::field::display);
            debug!(peer, %error, "no TLS with a client");
            CloseReason::TlsHandshake
        })
    }
}

/// Says why and closes. A client that does not read that is not waited for.
async fn refuse(mut client: TcpStream, words: &[u8]) {
    let _ = timeout(ACCEPT_PAUSE, client.write_all(words)).await;
}
