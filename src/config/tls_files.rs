//! Reads the files that TLS needs (certificates, keys and CAs) and reports what is wrong with them.
//!
//! It knows nothing of connections. The files are read when the configuration is checked, so that a missing
//! or broken one is reported with its line, and again whenever they change.

use std::{
    fmt, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use rustls::{
    ClientConfig, RootCertStore, ServerConfig,
    crypto::{CryptoProvider, ring},
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
    server::{NoServerSessionStorage, WebPkiClientVerifier},
};

/// The keys under `tls` of a listener.
pub(super) const SERVER_KEYS: &[&str] = &["cert_file", "key_file", "ca_cert_file", "auth_clients"];
/// The keys under `tls` at the top and under `locks`.
pub(super) const CLIENT_KEYS: &[&str] = &["ca_cert_file", "cert_file", "key_file", "server_name"];

/// `tls` of a listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ServerTls {
    /// `cert_file`: the certificate shown to clients, and the intermediate ones up to its CA.
    pub cert_file: PathBuf,
    /// `key_file`: the certificate's private key.
    pub key_file: PathBuf,
    /// `ca_cert_file`: the CAs that must have signed the certificates of clients.
    pub ca_cert_file: Option<PathBuf>,
    /// `auth_clients`: whether clients must show a certificate.
    pub auth_clients: AuthClients,
}

/// Whether clients must show a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AuthClients {
    /// Refuses a client without a certificate.
    Yes,
    /// Accepts a client without a certificate, but not with a bad one.
    Optional,
    /// Asks for no certificate.
    No,
}

/// `tls`: how servers at `rediss://` are trusted, and which certificate they are shown.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ClientTls {
    /// `ca_cert_file`: the CAs that must have signed the servers' certificates. None: those that the system
    /// trusts.
    pub ca_cert_file: Option<PathBuf>,
    /// `cert_file`: the certificate shown to servers that ask for one.
    pub cert_file: Option<PathBuf>,
    /// `key_file`: the certificate's private key.
    pub key_file: Option<PathBuf>,
    /// `server_name`: the name that the servers' certificates must be for. None: the URL's host.
    pub server_name: Option<String>,
}

/// A problem of a file that a key names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TlsProblem {
    /// The key, as `cert_file`.
    pub key: &'static str,
    /// The message. Never repeats the file's name, which may come from the environment.
    pub what: String,
}

impl fmt::Display for TlsProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.key, self.what)
    }
}

impl ServerTls {
    /// Reads the files.
    ///
    /// # Errors
    /// Everything that is wrong with them.
    pub(crate) fn load(&self) -> Result<Arc<ServerConfig>, Vec<TlsProblem>> {
        let mut files = FileReader::default();
        let chain = files.read("cert_file", &self.cert_file, certificates);
        let key = files.read("key_file", &self.key_file, private_key);
        let roots = match (&self.ca_cert_file, self.auth_clients) {
            (Some(file), _) => files.read("ca_cert_file", file, authorities),
            (None, AuthClients::No) => None,
            (None, _) => {
                files.wrong("ca_cert_file", "is missing; who signs clients' certificates?")
            }
        };
        files.finish()?;
        let (Some(chain), Some(key)) = (chain, key) else { return Err(Vec::new()) };
        let builder = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(|error| problem("cert_file", error))?;
        let builder = match roots {
            None => builder.with_no_client_auth(),
            Some(roots) => {
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider());
                let verifier = match self.auth_clients {
                    AuthClients::Optional => verifier.allow_unauthenticated(),
                    AuthClients::Yes | AuthClients::No => verifier,
                };
                let verifier = verifier.build().map_err(|error| problem("ca_cert_file", error))?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let mut config =
            builder.with_single_cert(chain, key).map_err(|error| key_problem(&error))?;
        if self.auth_clients != AuthClients::No {
            // A resumed session does not show the certificate again, and could outlive it.
            config.session_storage = Arc::new(NoServerSessionStorage {});
            config.send_tls13_tickets = 0;
        }
        Ok(Arc::new(config))
    }

    /// The files behind these settings.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        let mut files = vec![self.cert_file.clone(), self.key_file.clone()];
        files.extend(self.ca_cert_file.clone());
        files
    }
}

impl ClientTls {
    /// Reads the files, or the system's certificates where no CA is named.
    ///
    /// # Errors
    /// Everything that is wrong with them.
    pub(crate) fn load(&self) -> Result<Arc<ClientConfig>, Vec<TlsProblem>> {
        let mut files = FileReader::default();
        let roots = match &self.ca_cert_file {
            Some(file) => files.read("ca_cert_file", file, authorities),
            None => match system_authorities() {
                Some(roots) => Some(roots),
                None => files.wrong(
                    "ca_cert_file",
                    "is missing, and this system has no trusted certificates of its own",
                ),
            },
        };
        let own = match (&self.cert_file, &self.key_file) {
            (Some(cert), Some(key)) => {
                let cert = files.read("cert_file", cert, certificates);
                cert.zip(files.read("key_file", key, private_key))
            }
            (None, None) => None,
            (Some(_), None) => files.wrong("key_file", "is missing; cert_file needs its key"),
            (None, Some(_)) => files.wrong("cert_file", "is missing; key_file alone is no use"),
        };
        files.finish()?;
        let builder = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(|error| problem("ca_cert_file", error))?
            .with_root_certificates(roots.unwrap_or_else(RootCertStore::empty));
        let config = match own {
            None => builder.with_no_client_auth(),
            Some((chain, key)) => {
                builder.with_client_auth_cert(chain, key).map_err(|error| key_problem(&error))?
            }
        };
        Ok(Arc::new(config))
    }

    /// The files behind these settings.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        [&self.ca_cert_file, &self.cert_file, &self.key_file]
            .into_iter()
            .flatten()
            .cloned()
            .collect()
    }
}

/// `name` as a certificate may have it. Returns `None` if no certificate can be for it.
pub(crate) fn server_name(name: &str) -> Option<ServerName<'static>> {
    // A zone, as in fe80::1%eth0, matters only on this machine.
    let name = name.split('%').next().unwrap_or(name);
    ServerName::try_from(name.to_owned()).ok()
}

/// A reader of several files that collects what is wrong with each.
#[derive(Default)]
struct FileReader {
    problems: Vec<TlsProblem>,
}

impl FileReader {
    fn read<T>(
        &mut self,
        key: &'static str,
        file: &Path,
        parse: fn(&[u8]) -> Result<T, String>,
    ) -> Option<T> {
        let read =
            std::fs::read(file).map_err(|error| format!("cannot be read: {}", words(&error)));
        match read.and_then(|bytes| parse(&bytes)) {
            Ok(read) => Some(read),
            Err(what) => self.wrong(key, what),
        }
    }

    fn wrong<T>(&mut self, key: &'static str, what: impl Into<String>) -> Option<T> {
        self.problems.push(TlsProblem { key, what: what.into() });
        None
    }

    fn finish(self) -> Result<(), Vec<TlsProblem>> {
        if self.problems.is_empty() { Ok(()) } else { Err(self.problems) }
    }
}

/// The system's text for `error`, without its number.
fn words(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}

fn problem(key: &'static str, error: impl fmt::Display) -> Vec<TlsProblem> {
    vec![TlsProblem { key, what: error.to_string() }]
}

/// Reports the one of the two files that is at fault.
fn key_problem(error: &rustls::Error) -> Vec<TlsProblem> {
    match error {
        rustls::Error::InconsistentKeys(_) => problem("key_file", "is not the key of cert_file"),
        rustls::Error::InvalidCertificate(_) => {
            problem("cert_file", format!("its first certificate cannot be used: {error}"))
        }
        other => problem("key_file", format!("cannot be used: {other}")),
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// Reads the certificates of a file.
///
/// # Errors
/// If there is no certificate, or a damaged one.
pub(super) fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match all {
        Ok(all) if !all.is_empty() => Ok(all),
        _ => Err("there is no certificate in PEM in it, or a damaged one".into()),
    }
}

fn private_key(pem: &[u8]) -> Result<PrivateKeyDer<'static>, String> {
    PrivateKeyDer::from_pem_slice(pem).map_err(|_| {
        "there is no private key in PEM in it, or a damaged one, or one with a passphrase, \
         which cannot be read"
            .into()
    })
}

fn authorities(pem: &[u8]) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(pem)? {
        roots.add(certificate).map_err(|_| "a certificate in it is damaged")?;
    }
    Ok(roots)
}

/// The CAs that this system trusts, or that SSL_CERT_FILE and SSL_CERT_DIR name. Returns `None`
/// if there are none.
fn system_authorities() -> Option<RootCertStore> {
    let mut roots = RootCertStore::empty();
    // A certificate that cannot be parsed is left out, as other programs do.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    (!roots.is_empty()).then_some(roots)
}
