//! TLS by rustls: handshakes with clients and with servers, and the words for
//! what can go wrong in one. What is configured is in [`crate::config`].
//!
//! - `stream`: an encrypted stream.
//! - `reload`: settings that follow their files.
//! - [`metrics`]: what is counted of it.

pub mod metrics;
mod reload;
mod stream;

pub use stream::TlsStream;

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use rustls::{
    CertificateError, ClientConfig, ClientConnection, ServerConfig, ServerConnection,
    pki_types::ServerName,
};
use tokio::{io::AsyncWriteExt, net::TcpStream, time::timeout};

use self::{metrics::TlsMetrics, reload::Reloading};
use super::Stream;
use crate::config::{ClientTls, RedisUrl, ServerTls, TlsProblem, tls};

/// How long a client may take for its handshake: a slow one on a bad line needs
/// a second or two, and who never finishes must not stay.
pub const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);
/// The first byte of a client that speaks TLS: a record of the handshake.
const HANDSHAKE_RECORD: u8 = 22;
/// What a client is told that does not; no text of Redis's begins so.
const PLAIN: &[u8] = b"-ERR this port speaks TLS only\r\n";
/// How long that may take, for a client that does not read.
const REFUSAL_LIMIT: Duration = Duration::from_millis(50);

/// Lets clients in at one listener.
pub struct Acceptor {
    settings: Arc<Reloading<ServerConfig>>,
    metrics: TlsMetrics,
}

impl Acceptor {
    /// Reads the files and follows their changes. Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// What is wrong with the files.
    pub fn start(address: SocketAddr, tls: &ServerTls) -> Result<Acceptor, String> {
        let (metrics, name) = (TlsMetrics::new("client"), format!("listen {address}"));
        let files = tls.files();
        let tls = tls.clone();
        let load = move || tls.load().map_err(|problems| listed(&problems));
        let settings = Reloading::start(name, files, load, metrics.clone());
        settings.now()?;
        Ok(Acceptor { settings, metrics })
    }

    /// Makes an accepted connection a TLS stream.
    ///
    /// # Errors
    /// If the client does not finish its handshake, or not in [`HANDSHAKE_LIMIT`].
    pub async fn accept(&self, client: TcpStream) -> io::Result<Stream> {
        let accepted = match timeout(HANDSHAKE_LIMIT, self.handshake(client)).await {
            Ok(accepted) => accepted,
            Err(_) => Err(late()),
        };
        if accepted.is_err() {
            self.metrics.handshake_failures.increment(1);
        }
        accepted
    }

    async fn handshake(&self, mut client: TcpStream) -> io::Result<Stream> {
        let settings = self.settings.now().map_err(io::Error::other)?;
        let mut first = [0];
        if client.peek(&mut first).await? == 1 && first[0] != HANDSHAKE_RECORD {
            // Closed with bytes unread, the connection is reset before the words arrive.
            let _ = client.try_read(&mut [0; 4096]);
            let _ = timeout(REFUSAL_LIMIT, client.write_all(PLAIN)).await;
            return Err(io::Error::new(io::ErrorKind::InvalidData, "it does not speak TLS"));
        }
        let session = ServerConnection::new(settings).map_err(|error| failure(&error))?;
        TlsStream::handshake(client, session.into()).await.map(Stream::from)
    }
}

/// How servers at `rediss://` are connected to. Cheap to clone.
#[derive(Clone)]
pub struct Connector {
    /// None where no URL needs it.
    tls: Option<Arc<Client>>,
    sends_header: bool,
}

struct Client {
    settings: Arc<Reloading<ClientConfig>>,
    /// What certificates must be for; none: the URL's host.
    server_name: Option<ServerName<'static>>,
    metrics: TlsMetrics,
}

impl Connector {
    /// For `urls`, which are on that side in the metrics: `data` or `node`. Reads
    /// the files and follows their changes, if any of the URLs is to be reached
    /// over TLS; then it must be called inside a tokio runtime. What is wrong with
    /// the files is the error of every connection until it is put right.
    pub fn start(side: &'static str, tls: &ClientTls, urls: &[RedisUrl]) -> Connector {
        if !urls.iter().any(|url| url.tls) {
            return Connector { tls: None, sends_header: false };
        }
        let (metrics, files) = (TlsMetrics::new(side), tls.files());
        let server_name = tls.server_name.as_deref().and_then(tls::server_name);
        let tls = tls.clone();
        let load = move || tls.load().map_err(|problems| listed(&problems));
        let settings = Reloading::start(format!("tls ({side})"), files, load, metrics.clone());
        let tls = Some(Arc::new(Client { settings, server_name, metrics }));
        Connector { tls, sends_header: false }
    }

    /// Whether connections begin with a PROXY header, which goes before TLS.
    #[must_use]
    pub fn sending_header(self, sends_header: bool) -> Connector {
        Connector { sends_header, ..self }
    }

    /// Whether they do; no unless told so.
    pub fn sends_header(&self) -> bool {
        self.sends_header
    }

    /// Makes a fresh connection to `host` a TLS stream.
    ///
    /// # Errors
    /// If the server cannot be trusted or refuses the handshake, or not within `limit`.
    pub(super) async fn connect(
        &self,
        server: TcpStream,
        host: &str,
        limit: Duration,
    ) -> io::Result<Stream> {
        let Some(client) = &self.tls else {
            return Err(io::Error::other("there are no settings for TLS"));
        };
        let connected = match timeout(limit, client.handshake(server, host)).await {
            Ok(connected) => connected,
            Err(_) => Err(late()),
        };
        if connected.is_err() {
            client.metrics.handshake_failures.increment(1);
        }
        connected
    }
}

impl Client {
    async fn handshake(&self, server: TcpStream, host: &str) -> io::Result<Stream> {
        let settings = self.settings.now().map_err(io::Error::other)?;
        let name = self.server_name.clone().or_else(|| tls::server_name(host));
        let name = name.ok_or_else(|| io::Error::other("no certificate can be for this host"))?;
        let session = ClientConnection::new(settings, name).map_err(|error| failure(&error))?;
        TlsStream::handshake(server, session.into()).await.map(Stream::from)
    }
}

fn late() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "the TLS handshake timed out")
}

fn listed(problems: &[TlsProblem]) -> String {
    problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// An error of rustls in words that stay the same while the cause does, as they
/// are logged once for each change.
fn failure(error: &rustls::Error) -> io::Error {
    let words = match error {
        rustls::Error::InvalidCertificate(why) => match why {
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                "the certificate has expired".into()
            }
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                "the certificate is not valid yet".into()
            }
            CertificateError::UnknownIssuer => {
                "the certificate is not signed by a CA that is trusted here".into()
            }
            // How `openssl req -x509` makes them.
            CertificateError::Other(other) if other.to_string().contains("CaUsedAsEndEntity") => {
                "the certificate is a CA's own, not one signed by a CA".into()
            }
            other => other.to_string(),
        },
        rustls::Error::InvalidMessage(_) => "what came is not TLS".into(),
        other => other.to_string(),
    };
    io::Error::new(io::ErrorKind::InvalidData, format!("TLS: {words}"))
}
