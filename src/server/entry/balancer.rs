//! Clients that come through a balancer: their PROXY header, before anything else.
//!
//! A listener with `proxy_protocol` demands the header. Until it has come, a connection has a place among
//! `maxclients` and no address. The limits for each address apply to the client that the header names, never to the
//! balancer.

use std::{net::SocketAddr, time::Duration};

use tokio::{
    net::TcpStream,
    time::{Instant, timeout},
};
use tracing::{
    debug,
    field::{DisplayValue, display},
    warn,
};

use crate::{
    config::{Config, Listener},
    net::proxy_header::{self, Ends, HeaderMissing},
    server::{
        entry::admission::{Permit, Seldom},
        server_metrics::Refusal,
    },
    sync::Mutex,
};

/// How long a header may take. It is sent with the connection; lost twice on its way, it arrives
/// after three seconds.
const LIMIT: Duration = Duration::from_secs(5);

/// The demand for a header at one listener.
pub(crate) struct HeaderPolicy {
    listener: SocketAddr,
    limit: Duration,
    /// Limits log lines about missing headers.
    trouble: Mutex<Seldom>,
}

impl HeaderPolicy {
    /// Returns `None` if the listener demands no header.
    pub(crate) fn demanded(config: &Config, listener: &Listener) -> Option<HeaderPolicy> {
        listener.proxy_protocol.then(|| HeaderPolicy {
            listener: listener.address,
            limit: config.first_byte_timeout.map_or(LIMIT, |limit| limit.min(LIMIT)),
            trouble: Mutex::default(),
        })
    }

    /// Takes the header from a balancer's connection, and counts `permit` for the client that it names. Returns
    /// `None` if it names no client.
    ///
    /// # Errors
    /// The reason why the client may not come in; `None` if it has left.
    pub(crate) async fn hear(
        &self,
        client: &mut TcpStream,
        permit: &mut Permit,
    ) -> Result<Option<Ends>, Option<Refusal>> {
        // For the log: the balancer's address.
        let peer = client.peer_addr().ok().map(display);
        let told = match timeout(self.limit, proxy_header::receive(client)).await {
            Ok(Ok(told)) => told,
            Ok(Err(HeaderMissing::Silent)) => return Err(None),
            Ok(Err(missing)) => return Err(Some(self.missing(peer, &missing.to_string()))),
            Err(_) => return Err(Some(self.missing(peer, "no PROXY header came in time"))),
        };
        let Some(ends) = told else { return Ok(None) };
        debug!(client = %ends.source, balancer = peer, "a client through a balancer");
        match permit.belongs_to(ends.source.ip(), Instant::now().into_std()) {
            Ok(()) => Ok(told),
            Err(refusal) => Err(Some(refusal)),
        }
    }

    fn missing(&self, peer: Option<DisplayValue<SocketAddr>>, reason: &str) -> Refusal {
        let now = Instant::now().into_std();
        let mut trouble = self.trouble.lock();
        if let Some(times) = trouble.note(now) {
            let listener = self.listener;
            warn!(peer, %listener, reason, times, "closed: proxy_protocol demands a PROXY header");
        }
        Refusal::ProxyHeader
    }
}
