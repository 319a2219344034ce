//! Clients that come through a balancer: whose connection it is, before anything
//! else is done for it.
//!
//! A listener with `proxy_protocol` demands a PROXY header. Until that is there a
//! connection has a place among `maxclients` and no address; the limits for each
//! address are for the client that the header names, never for the balancer.

use std::{
    net::SocketAddr,
    sync::{Mutex, PoisonError},
    time::Duration,
};

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
    net::proxy_header::{self, Ends, Missing},
    server::{
        entry::admission::{Place, Seldom},
        metrics::Refusal,
    },
};

/// How long a header may take. It is sent with the connection; lost twice on its way,
/// it is there after three seconds.
const LIMIT: Duration = Duration::from_secs(5);

/// What is demanded at one listener.
pub(crate) struct Introduction {
    listener: SocketAddr,
    limit: Duration,
    /// Of headers missing, in the log.
    trouble: Mutex<Seldom>,
}

impl Introduction {
    /// None where nobody need be introduced.
    pub(crate) fn demanded(config: &Config, listener: &Listener) -> Option<Introduction> {
        listener.proxy_protocol.then(|| Introduction {
            listener: listener.address,
            limit: config.first_byte_timeout.map_or(LIMIT, |limit| limit.min(LIMIT)),
            trouble: Mutex::default(),
        })
    }

    /// Takes the header from a connection that the balancer has made, and counts
    /// `place` for the client that it names. None: it names nobody.
    ///
    /// # Errors
    /// Why the client may not come in; none: it has left.
    pub(crate) async fn hear(
        &self,
        client: &mut TcpStream,
        place: &mut Place,
    ) -> Result<Option<Ends>, Option<Refusal>> {
        // Of the balancer, for the log.
        let peer = client.peer_addr().ok().map(display);
        let told = match timeout(self.limit, proxy_header::receive(client)).await {
            Ok(Ok(told)) => told,
            Ok(Err(Missing::Silent)) => return Err(None),
            Ok(Err(missing)) => return Err(Some(self.missing(peer, &missing.to_string()))),
            Err(_) => return Err(Some(self.missing(peer, "no PROXY header came in time"))),
        };
        let Some(ends) = told else { return Ok(None) };
        debug!(client = %ends.source, balancer = peer, "a client through a balancer");
        match place.belongs_to(ends.source.ip(), Instant::now().into_std()) {
            Ok(()) => Ok(told),
            Err(refusal) => Err(Some(refusal)),
        }
    }

    fn missing(&self, peer: Option<DisplayValue<SocketAddr>>, reason: &str) -> Refusal {
        let now = Instant::now().into_std();
        let mut trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(times) = trouble.note(now) {
            let listener = self.listener;
            warn!(peer, %listener, reason, times, "closed: proxy_protocol demands a PROXY header");
        }
        Refusal::ProxyHeader
    }
}
