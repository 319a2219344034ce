//! A listener's door: accepts clients, and does everything that comes before a session.

use std::{
    io,
    net::SocketAddr,
    pin::pin,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tokio::{
    io::AsyncWriteExt,
    net::TcpStream,
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::debug;

use crate::{
    config::Config,
    data::{DataNode, DataStream},
    net::{self, Acceptor, Stream, proxy_header::Ends},
    server::{
        entry::{
            accepting::Accepting,
            admission::{AcceptTrouble, Admission, Permit},
            balancer::HeaderPolicy,
            exposure::Exposure,
            listeners::ACCEPT_PAUSE,
        },
        server_metrics::{DoorMetrics, Refusal},
        workers::{Worker, Workers},
    },
    session::{Session, Shared, Sleeper, session_metrics::CloseReason},
    share::{Connecting, SharedUpstream, Sharing},
};

/// How long closing a client's TLS may take if the data node cannot be reached.
const CLOSING: Duration = Duration::from_secs(1);

/// Lets clients in at one listener.
pub(super) struct Door {
    pub(super) shared: Arc<Shared>,
    pub(super) workers: Arc<Workers>,
    /// Shared by all listeners.
    pub(super) admission: Arc<Admission>,
    /// Whether strangers may come yet; `None` if all clients are on this machine.
    pub(super) exposure: Option<Arc<Exposure>>,
    /// The PROXY header that a balancer must send; `None` if clients connect directly.
    pub(super) header_policy: Option<HeaderPolicy>,
    /// `None` for plain TCP.
    pub(super) tls: Option<Acceptor>,
    /// The data node for this listener's clients; for a cluster, the node behind this front.
    pub(super) data: Arc<DataNode>,
    /// The connections to it that clients share, with `share: yes`.
    pub(super) sharing: Option<Arc<Sharing>>,
    /// Shared by all listeners.
    pub(super) metrics: Arc<DoorMetrics>,
}

/// A client's socket on its way to the thread that serves it.
enum ArrivedClient {
    /// This thread has accepted it.
    Here(TcpStream),
    /// Another has, and its runtime has let it go.
    Passed(std::net::TcpStream),
}

impl ArrivedClient {
    /// Has the runtime of this thread let the client go, if another thread serves it.
    ///
    /// # Errors
    /// The operating system's.
    fn passed_to(worker: &Worker<'_>, client: TcpStream) -> io::Result<ArrivedClient> {
        if worker.is_here() {
            Ok(ArrivedClient::Here(client))
        } else {
            client.into_std().map(ArrivedClient::Passed)
        }
    }

    /// Has the runtime of the thread that serves the client watch its socket.
    ///
    /// # Errors
    /// The operating system's.
    fn watched(self) -> io::Result<TcpStream> {
        match self {
            ArrivedClient::Here(client) => Ok(client),
            ArrivedClient::Passed(client) => TcpStream::from_std(client),
        }
    }
}

impl Door {
    pub(super) async fn accept(self, mut clients: Accepting, stop: CancellationToken) {
        let door = Arc::new(self);
        let mut trouble = AcceptTrouble::default();
        let mut stopped = pin!(stop.cancelled());
        loop {
            let accepted = tokio::select! {
                accepted = clients.next(|| door.shared.config.load().tcp_keepalive) => accepted,
                () = &mut stopped => return,
            };
            match accepted {
                Ok((client, peer)) => door.admit(client, peer),
                Err(error) => {
                    door.metrics.accept_errors.increment(1);
                    if trouble.note(&error, Instant::now().into_std()) {
                        sleep(ACCEPT_PAUSE).await;
                    }
                }
            }
        }
    }

    /// Gives a client to a worker, if the client may come in.
    fn admit(self: &Arc<Self>, client: TcpStream, peer: SocketAddr) {
        let admitted = match &self.exposure {
            Some(exposure) if !exposure.is_safe() => Err(Refusal::Open),
            // The client's address comes with the header.
            _ if self.header_policy.is_some() => self.admission.enter(),
            _ => self.admission.admit(peer.ip(), Instant::now().into_std()),
        };
        let permit = match admitted {
            Ok(permit) => permit,
            Err(refusal) => {
                self.metrics.refused(refusal);
                // With TLS a refusal cannot be sent: there was no handshake.
                if self.tls.is_none()
                    && let Ok(client) = client.into_std()
                {
                    refusal.tell(&client);
                }
                return;
            }
        };
        let worker = match self.sharing {
            Some(_) => self.workers.beside_others(),
            None => self.workers.next(),
        };
        let Ok(client) = ArrivedClient::passed_to(&worker, client) else { return };
        let door = self.clone();
        // Boxed, so that running sessions keep no room for what comes before them.
        let opening = Box::pin(door.clone().let_in((client, peer), permit));
        let served = async move {
            let Some((mut opened, permit)) = opening.await else { return };
            let reason = match &mut opened {
                Ok(session) => session.run().await,
                Err(reason) => *reason,
            };
            drop(opened);
            door.shared.clients.fetch_sub(1, Ordering::Relaxed);
            door.metrics.clients.decrement(1);
            door.metrics.closed(reason);
            drop(permit);
        };
        worker.spawn(served);
    }

    /// Lets an admitted client in, which counts from then on, and opens its session; or says why there is none. Returns
    /// `None` if its balancer does not introduce it as it must.
    async fn let_in(
        self: Arc<Self>,
        (client, peer): (ArrivedClient, SocketAddr),
        mut permit: Permit,
    ) -> Option<(Result<Sleeper, CloseReason>, Permit)> {
        let mut client = client.watched().ok()?;
        let told = match self.introduced(&mut client, &mut permit).await {
            Ok(told) => told,
            Err(refusal) => {
                self.refuse(client, refusal);
                return None;
            }
        };
        self.metrics.clients_total.increment(1);
        self.metrics.clients.increment(1);
        self.shared.clients.fetch_add(1, Ordering::Relaxed);
        Some((self.open_session((client, peer), told).await, permit))
    }

    /// Waits for the PROXY header of a client that comes through a balancer.
    async fn introduced(
        &self,
        client: &mut TcpStream,
        permit: &mut Permit,
    ) -> Result<Option<Box<Ends>>, Option<Refusal>> {
        let Some(header_policy) = &self.header_policy else { return Ok(None) };
        tokio::select! {
            heard = header_policy.hear(client, permit) => heard.map(|told| told.map(Box::new)),
            () = self.shared.drain.cancelled() => Err(None),
        }
    }

    /// Refuses a client that comes through a balancer, with the reason if there is one.
    fn refuse(&self, client: TcpStream, refusal: Option<Refusal>) {
        let Some(refusal) = refusal else { return };
        self.metrics.refused(refusal);
        // Reads first: a connection closed with bytes unread is reset before the words arrive.
        let _ = client.try_read(&mut [0; 4096]);
        if self.tls.is_none()
            && let Ok(client) = client.into_std()
        {
            refusal.tell(&client);
        }
    }

    /// Opens the session of a client that is in; `told` is what its balancer said of it.
    ///
    /// # Errors
    /// The reason why there is no session.
    async fn open_session(
        &self,
        (client, peer): (TcpStream, SocketAddr),
        told: Option<Box<Ends>>,
    ) -> Result<Sleeper, CloseReason> {
        let config = &self.shared.config.load_full();
        let from = told.as_ref().map_or(peer, |told| told.source);
        // The address by which the client knows this front.
        let reached = match &told {
            Some(told) => Some(told.destination.ip()),
            None if self.data.is_front() => client.local_addr().ok().map(|address| address.ip()),
            None => None,
        };
        let told = match told {
            None if self.data.connector().sends_header() => match Ends::of(&client) {
                Ok(ends) => Some(Box::new(ends)),
                Err(_) => return Err(CloseReason::Client),
            },
            told => told,
        };
        self.first_byte(&client, config).await?;
        let client = match &self.tls {
            None => Stream::Tcp(client),
            Some(acceptor) => self.shake_hands(acceptor, client, from).await?,
        };
        let connected = tokio::select! {
            connected = self.upstream(told.as_deref(), from, config) => connected,
            () = self.shared.drain.cancelled() => return Err(CloseReason::Shutdown),
        };
        match connected {
            Ok(DataStream { stream: upstream, tenure }) => {
                self.metrics.upstream_connects_ok.increment(1);
                let balanced = self.header_policy.is_some();
                let view = tenure.as_ref().zip(reached).and_then(|(tenure, reached)| {
                    self.data.view(reached, self.tls.is_some(), tenure)
                });
                let session = Session::new(client, upstream, self.shared.clone(), balanced);
                let session = session.during(tenure).showing(view).through(self.data.number());
                Ok(Sleeper::of(session.of(Some(from))))
            }
            Err(error) => {
                self.metrics.upstream_connects_failed.increment(1);
                debug!(data = %self.data, %error, "no connection to the data node for a client");
                close_without_data(client, &error).await;
                Err(CloseReason::UpstreamConnect)
            }
        }
    }

    /// Connects a client to the data node, or gives it a part of the connections that clients share.
    async fn upstream(
        &self,
        told: Option<&Ends>,
        from: SocketAddr,
        config: &Config,
    ) -> io::Result<DataStream> {
        let (limit, keepalive) = (config.connect_timeout, config.tcp_keepalive);
        let Some(sharing) = &self.sharing else {
            // Boxed, so that a client that shares needs no room for it.
            return Box::pin(self.data.connect_for(told, limit, keepalive)).await;
        };
        let connecting = Connecting { limit, keepalive };
        let address = Some(from.ip());
        let (part, tenure) = SharedUpstream::admit(sharing.clone(), connecting, address).await?;
        Ok(DataStream { stream: Stream::Shared(Box::new(part)), tenure })
    }

    /// Waits for the client's first byte, if `first_byte_timeout` is set.
    async fn first_byte(&self, client: &TcpStream, config: &Config) -> Result<(), CloseReason> {
        let Some(limit) = config.first_byte_timeout else { return Ok(()) };
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

    /// Does the TLS handshake with a client.
    async fn shake_hands(
        &self,
        acceptor: &Acceptor,
        client: TcpStream,
        from: SocketAddr,
    ) -> Result<Stream, CloseReason> {
        let accepted = tokio::select! {
            accepted = Box::pin(acceptor.accept(client)) => accepted,
            () = self.shared.drain.cancelled() => return Err(CloseReason::Shutdown),
        };
        accepted.map_err(|error| {
            // Logged at debug level only: any client can cause it, at any rate.
            debug!(peer = %from, %error, "no TLS with a client");
            CloseReason::TlsHandshake
        })
    }
}

/// Ends the connection of a client for which there is no connection to the data node, for this reason.
async fn close_without_data(client: Stream, error: &io::Error) {
    match client {
        Stream::Tcp(client) if net::descriptors_are_used_up(error) => {
            if let Ok(client) = client.into_std() {
                Refusal::MaxClients.tell(&client);
            }
        }
        // Closed without a reply, as where Redis is down: libraries then connect again, while many
        // programs end at an error reply.
        mut client => {
            let _ = timeout(CLOSING, client.shutdown()).await;
        }
    }
}
