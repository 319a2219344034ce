//! TLS by rustls: handshakes with clients and servers, and the words for what goes wrong in them. The
//! settings are in [`crate::config`].
//!
//! - `stream`: an encrypted stream.
//! - `file_following`: settings that follow their files.
//! - [`certificates`]: warnings about the certificates in use.
//! - [`tls_metrics`]: the counters.

pub(crate) mod certificates;
mod file_following;
mod stream;
pub(crate) mod tls_metrics;

pub(crate) use stream::TlsStream;

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use rustls::{
    AlertDescription, CertificateError, ClientConfig, ClientConnection, ServerConfig,
    ServerConnection, pki_types::ServerName,
};
use tokio::{io::AsyncWriteExt, net::TcpStream, time::timeout};

use self::{certificates::UsedCertificates, file_following::Reloading, tls_metrics::TlsMetrics};
use super::Stream;
use crate::config::{ClientTls, RedisUrl, ServerTls, TlsProblem, tls_files};

/// How long a client may take for its handshake. A slow client on a bad line needs a second or two; one that
/// never finishes must not stay.
pub(crate) const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);
/// The first byte from a client that speaks TLS, of a handshake record. No Redis command begins with it.
const HANDSHAKE_RECORD: u8 = 22;
/// The answer to a client that does not speak TLS.
const PLAIN: &[u8] = b"-ERR this port speaks TLS only\r\n";
/// How long sending that answer may take, as the client may not read.
const REFUSAL_LIMIT: Duration = Duration::from_millis(50);
/// The words for the other side's refusal of a handshake without a certificate from here, and of the one shown.
const WANTED: &str = "the other side wants a certificate, and none was shown";
const REFUSED: &str = "the other side refuses the certificate that was shown";

/// Does the TLS handshakes of one listener.
pub(crate) struct Acceptor {
    settings: Arc<Reloading<ServerConfig>>,
    metrics: TlsMetrics,
}

impl Acceptor {
    /// Reads the files and follows their changes. Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// All problems of the files.
    pub(crate) fn start(address: SocketAddr, tls: &ServerTls) -> Result<Acceptor, String> {
        let (metrics, name) = (TlsMetrics::new("client"), format!("listen {address}"));
        let files = tls.files();
        let (tls, used) = (tls.clone(), UsedCertificates::new(&format!("{name}, tls")));
        let (place, ending) = (name.clone(), metrics.clone());
        let load = move || {
            let loaded = tls.load().map_err(|problems| listed(&problems));
            let read = loaded.as_ref().map(|_| tls.certificate_times());
            if let Ok(times) = &read {
                ending.end(&place, times);
            }
            used.read(read.map_err(String::as_str));
            loaded
        };
        let settings = Reloading::start(name, files, load, metrics.clone());
        settings.now()?;
        Ok(Acceptor { settings, metrics })
    }

    /// Makes an accepted connection a TLS stream.
    ///
    /// # Errors
    /// If the client does not finish its handshake, or not in [`HANDSHAKE_LIMIT`].
    pub(crate) async fn accept(&self, client: TcpStream) -> io::Result<Stream> {
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
            // A connection that is closed with unread bytes is reset before the answer arrives, so read first.
            let _ = client.try_read(&mut [0; 4096]);
            let _ = timeout(REFUSAL_LIMIT, client.write_all(PLAIN)).await;
            return Err(io::Error::new(io::ErrorKind::InvalidData, "it does not speak TLS"));
        }
        let session = ServerConnection::new(settings).map_err(|error| failure(&error))?;
        TlsStream::handshake(client, session.into()).await.map(Stream::from)
    }
}

/// Does the TLS handshakes with servers at `rediss://`. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Connector {
    /// `None` if no URL needs TLS.
    tls: Option<Arc<TlsClient>>,
    sends_header: bool,
}

struct TlsClient {
    settings: Arc<Reloading<ClientConfig>>,
    /// The name that certificates must be for. None: the URL's host.
    server_name: Option<ServerName<'static>>,
    metrics: TlsMetrics,
}

impl Connector {
    /// Makes the connector for `urls`, labelled `side` in the metrics: `data` or `node`. If one of the URLs
    /// uses TLS, reads the files and follows their changes, and must be called inside a tokio runtime. Until the
    /// files were usable once, every connection fails with the reason.
    pub(crate) fn start(side: &'static str, tls: &ClientTls, urls: &[RedisUrl]) -> Connector {
        if !urls.iter().any(|url| url.tls) {
            return Connector { tls: None, sends_header: false };
        }
        let (metrics, files) = (TlsMetrics::new(side), tls.files());
        let server_name = tls.server_name.as_deref().and_then(tls_files::server_name);
        let (tls, name, ending) = (tls.clone(), format!("tls ({side})"), metrics.clone());
        let (place, used) = (name.clone(), UsedCertificates::new(&name));
        let load = move || {
            let loaded = tls.load().map_err(|problems| listed(&problems));
            let read = loaded.as_ref().map(|_| tls.certificate_times());
            if let Ok(times) = &read {
                ending.end(&place, times);
            }
            used.read(read.map_err(String::as_str));
            loaded
        };
        let settings = Reloading::start(name, files, load, metrics.clone());
        let tls = Some(Arc::new(TlsClient { settings, server_name, metrics }));
        Connector { tls, sends_header: false }
    }

    /// Sets whether connections begin with a PROXY header, which comes before TLS.
    #[must_use]
    pub(crate) fn sending_header(self, sends_header: bool) -> Connector {
        Connector { sends_header, ..self }
    }

    /// Whether connections begin with a PROXY header; by default they do not.
    pub(crate) fn sends_header(&self) -> bool {
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

impl TlsClient {
    async fn handshake(&self, server: TcpStream, host: &str) -> io::Result<Stream> {
        let settings = self.settings.now().map_err(io::Error::other)?;
        let name = self.server_name.clone().or_else(|| tls_files::server_name(host));
        let name = name.ok_or_else(|| io::Error::other("no certificate can be for this host"))?;
        let session = ClientConnection::new(settings, name).map_err(|error| failure(&error))?;
        let mut stream = TlsStream::handshake(server, session.into()).await?;
        stream.count_refusal(self.metrics.handshake_failures.clone());
        Ok(stream.into())
    }
}

fn late() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "the TLS handshake timed out")
}

fn listed(problems: &[TlsProblem]) -> String {
    problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// Whether an error says that the other side refuses the certificate from here, or the lack of one.
fn is_refusal(error: &io::Error) -> bool {
    let told = error.to_string();
    told.contains(WANTED) || told.contains(REFUSED)
}

/// Describes an error of rustls in words that stay the same while the cause does, so that each change is logged
/// once.
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
            // The certificates that `openssl req -x509` makes.
            CertificateError::Other(other) if other.to_string().contains("CaUsedAsEndEntity") => {
                "the certificate is a CA's own, not one signed by a CA".into()
            }
            other => other.to_string(),
        },
        rustls::Error::InvalidMessage(_) => "what came is not TLS".into(),
        rustls::Error::AlertReceived(alert @ AlertDescription::CertificateRequired) => {
            format!("{WANTED} ({alert:?})")
        }
        rustls::Error::AlertReceived(
            alert @ (AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateUnknown
            | AlertDescription::UnknownCA
            | AlertDescription::AccessDenied),
        ) => format!("{REFUSED} ({alert:?})"),
        other => other.to_string(),
    };
    io::Error::new(io::ErrorKind::InvalidData, format!("TLS: {words}"))
}
