//! Listeners, accept, drain.
//!
//! Each accepted connection becomes one task with one [`Session`] on one of the
//! [`Workers`]; nothing is shared between sessions but the lock engine and the
//! counters.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    slice,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::Context as _;
use tokio::{
    net::{TcpListener, TcpSocket, TcpStream},
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::{
    admin,
    admission::{AcceptTrouble, Admission, Place},
    config::{Config, Listener},
    descriptors,
    exposure::{self, Exposure},
    introduction::Introduction,
    lock::Engine,
    metrics::{self, CloseReason, Metrics, Refusal},
    net::{self, Acceptor, Connector, Stream, proxy_header::Ends},
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
/// If an address cannot be listened on, strangers would come to a data node that is open
/// to them, or the metrics cannot be set up.
pub async fn run(mut config: Config, shutdown: CancellationToken) -> anyhow::Result<()> {
    let recorder = metrics::install()?;
    let connector = Connector::start("data", &config.tls, slice::from_ref(&config.data))
        .sending_header(config.send_proxy_protocol);
    let exposure = Exposure::find_out(&config, connector.clone()).await?;
    let listeners = config.listen.iter().map(open).collect::<anyhow::Result<Vec<_>>>()?;
    let admin_listener = match config.admin {
        Some(addr) => {
            Some(listen(addr).with_context(|| format!("cannot listen on {addr} (admin)"))?)
        }
        None => None,
    };
    config.maxclients = descriptors::make_room(config.maxclients, config.locks.nodes.len());
    let admission = Admission::new(&config);
    let metrics = Metrics::new();
    let workers = Arc::new(Workers::start(config.io_threads)?);
    let engine = Engine::start_on(&config.locks, workers.shared());
    let admin_stop = CancellationToken::new();
    if let Some(listener) = admin_listener {
        let state = admin::State::new(
            recorder,
            engine.clone(),
            config.data.clone(),
            connector.clone(),
            exposure.clone(),
        );
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
    tokio::spawn(exposure.clone().watch(shutdown.clone()));
    let config = Arc::new(config);
    for ((listener, tls), settings) in listeners.into_iter().zip(&config.listen) {
        if let Ok(addr) = listener.local_addr() {
            let (nodes, tls) = (config.locks.nodes.len(), tls.is_some());
            info!(%addr, tls, data = %config.data, nodes, "listening");
        }
        let door = Door {
            shared: shared.clone(),
            config: config.clone(),
            workers: workers.clone(),
            admission: admission.clone(),
            // None: its clients can only be on this machine.
            exposure: Some(exposure.clone()).filter(|_| exposure::serves_strangers(settings)),
            introduction: Introduction::demanded(&config, settings),
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
    let Listener { address, tls, .. } = listener;
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
    /// One for all listeners.
    admission: Arc<Admission>,
    /// What must be safe before anybody is let in.
    exposure: Option<Arc<Exposure>>,
    /// What a balancer must send. None: clients connect themselves.
    introduction: Option<Introduction>,
    /// None: plain TCP.
    tls: Option<Acceptor>,
    /// The way to the data node.
    connector: Connector,
}

impl Door {
    async fn accept(self, listener: TcpListener, shutdown: CancellationToken) {
        let door = Arc::new(self);
        let mut trouble = AcceptTrouble::default();
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = shutdown.cancelled() => return,
            };
            match accepted {
                Ok((client, peer)) => door.admit(client, peer.ip()),
                Err(error) => {
                    door.shared.metrics.accept_errors.increment(1);
                    if trouble.note(&error, Instant::now().into_std()) {
                        sleep(ACCEPT_PAUSE).await;
                    }
                }
            }
        }
    }

    /// Gives a client to a worker, if it may come in.
    fn admit(self: &Arc<Self>, client: TcpStream, peer: IpAddr) {
        let metrics = &self.shared.metrics;
        let admitted = match &self.exposure {
            Some(exposure) if !exposure.is_safe() => Err(Refusal::Open),
            // Whose it is comes with the header.
            _ if self.introduction.is_some() => self.admission.enter(),
            _ => self.admission.admit(peer, Instant::now().into_std()),
        };
        // A socket belongs to the runtime it was made in until it is taken out.
        let (mut place, client) = match (admitted, client.into_std()) {
            (Ok(place), Ok(client)) => (place, client),
            (Err(refusal), client) => {
                metrics.refused(refusal);
                // Without a handshake there is no way to say why.
                return client
                    .iter()
                    .filter(|_| self.tls.is_none())
                    .for_each(|client| refusal.tell(client));
            }
            (Ok(_), Err(_)) => return,
        };
        let door = self.clone();
        self.workers.spawn(async move {
            let Ok(mut client) = TcpStream::from_std(client) else { return };
            let told = match &door.introduction {
                None => None,
                // All of it in boxes, so that connections without it have no room for it.
                Some(_) => match Box::pin(door.introduced(&mut client, &mut place)).await {
                    Ok(told) => told,
                    Err(refusal) => return door.refuse(client, refusal),
                },
            };
            let metrics = &door.shared.metrics;
            metrics.clients_total.increment(1);
            metrics.clients.increment(1);
            door.shared.clients.fetch_add(1, Ordering::Relaxed);
            let reason = door.serve(client, told).await;
            door.shared.clients.fetch_sub(1, Ordering::Relaxed);
            metrics.clients.decrement(1);
            metrics.closed(reason);
            drop(place);
        });
    }

    /// Who comes through a balancer.
    async fn introduced(
        &self,
        client: &mut TcpStream,
        place: &mut Place,
    ) -> Result<Option<Box<Ends>>, Option<Refusal>> {
        let Some(introduction) = &self.introduction else { return Ok(None) };
        tokio::select! {
            heard = introduction.hear(client, place) => heard.map(|told| told.map(Box::new)),
            () = self.shared.drain.cancelled() => Err(None),
        }
    }

    /// Ends the connection of a client that a balancer has brought in vain.
    fn refuse(&self, client: TcpStream, refusal: Option<Refusal>) {
        let Some(refusal) = refusal else { return };
        self.shared.metrics.refused(refusal);
        // Closed with bytes unread, the connection is reset before the words arrive.
        let _ = client.try_read(&mut [0; 4096]);
        if self.tls.is_none()
            && let Ok(client) = client.into_std()
        {
            refusal.tell(&client);
        }
    }

    /// Everything for a client that is let in; `told` is what a balancer has told of it.
    async fn serve(&self, client: TcpStream, told: Option<Box<Ends>>) -> CloseReason {
        let config = &self.config;
        if net::tune(&client, config.tcp_keepalive).is_err() {
            return CloseReason::Client;
        }
        let told = match told {
            None if self.connector.sends_header() => match Ends::of(&client) {
                Ok(ends) => Some(Box::new(ends)),
                Err(_) => return CloseReason::Client,
            },
            told => told,
        };
        if let Err(reason) = self.first_byte(&client).await {
            return reason;
        }
        let client = match &self.tls {
            None => Stream::Tcp(client),
            Some(acceptor) => match self.shake_hands(acceptor, client, told.as_deref()).await {
                Ok(client) => client,
                Err(reason) => return reason,
            },
        };
        let (limit, keepalive) = (config.connect_timeout, config.tcp_keepalive);
        match net::connect_for(told.as_deref(), &config.data, &self.connector, limit, keepalive)
            .await
        {
            Ok(upstream) => Session::new(client, upstream, self.shared.clone()).run().await,
            Err(error) => {
                if descriptors::are_used_up(&error)
                    && let Stream::Tcp(client) = client
                    && let Ok(client) = client.into_std()
                {
                    Refusal::MaxClients.tell(&client);
                }
                CloseReason::UpstreamConnect
            }
        }
    }

    /// Waits for the client's first byte, if there is a limit for that.
    async fn first_byte(&self, client: &TcpStream) -> Result<(), CloseReason> {
        let Some(limit) = self.config.first_byte_timeout else { return Ok(()) };
        let mut byte = [0; 1];
        tokio::select! {
            spoken = timeout(limit, client.peek(&mut byte)) => match spoken {
                Ok(Ok(1..)) => Ok(()),
                Ok(_) => Err(CloseReason::Client),
                Err(_) => Err(CloseReason::FirstByte),
            },
            () = self.shared.drain.cancelled() => Err(CloseReason::Shutdown),
        }
    }

    /// TLS with a client, before anything else is done for it.
    async fn shake_hands(
        &self,
        acceptor: &Acceptor,
        client: TcpStream,
        told: Option<&Ends>,
    ) -> Result<Stream, CloseReason> {
        let peer = told.map(|told| told.source).or_else(|| client.peer_addr().ok());
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
