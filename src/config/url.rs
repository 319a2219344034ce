//! The URL of one Redis: `redis://[user:password@]host:port[/db]`, `rediss://` for the same
//! over TLS, or `unix:///path[?db=n]`.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::PathBuf,
    str::FromStr,
};

use percent_encoding::percent_decode_str;

use super::{password::Password, tls_files};

/// The default port.
const DEFAULT_PORT: u16 = 6379;
/// The forms of a URL, for errors.
const FORMS: &str = "redis[s]://[user:password@]host[:port][/db] or unix:///path[?db=n]";

/// The address at which a Redis listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Endpoint {
    /// Host name or address, and port.
    Tcp {
        /// Name or address, without brackets.
        host: String,
        /// TCP port.
        port: u16,
    },
    /// Path of a Unix socket.
    Unix(PathBuf),
}

impl Endpoint {
    /// Whether both certainly are one, however each is spelled. No name but `localhost` is resolved.
    pub(crate) fn is_same(&self, other: &Endpoint) -> bool {
        match (self, other) {
            (Endpoint::Tcp { host: a, port }, Endpoint::Tcp { host: b, port: other }) => {
                port == other && is_same_host(a, b)
            }
            _ => self == other,
        }
    }
}

/// Whether both certainly are one host. No name but `localhost` is resolved.
pub(super) fn is_same_host(one: &str, other: &str) -> bool {
    let others = known_addresses(other);
    one.eq_ignore_ascii_case(other) || known_addresses(one).iter().any(|ip| others.contains(ip))
}

/// Returns the addresses to which a host leads, as far as they are known without a look-up.
pub(super) fn known_addresses(host: &str) -> Vec<IpAddr> {
    if host.eq_ignore_ascii_case("localhost") {
        return vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
    }
    // A connection to the address for all goes to this machine.
    let known = host.parse().map(|ip: IpAddr| match ip.to_canonical() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    });
    known.into_iter().collect()
}

/// A Redis to connect to, with the credentials.
#[derive(Clone, PartialEq, Eq)]
pub struct RedisUrl {
    /// Where the Redis listens.
    pub endpoint: Endpoint,
    /// Whether the connection uses TLS, with the settings of the `tls` section.
    pub tls: bool,
    /// User for AUTH; none means the default user.
    pub username: Option<String>,
    /// Password for AUTH; none means no AUTH is sent.
    pub password: Option<Password>,
    /// Database for SELECT.
    pub db: u32,
    /// The address to which the host's name was resolved. None: each connection resolves it. Not part of the
    /// text.
    pub(crate) found: Option<SocketAddr>,
}

impl RedisUrl {
    /// `redis://127.0.0.1:port`.
    pub(crate) fn local(port: u16) -> RedisUrl {
        let endpoint = Endpoint::Tcp { host: "127.0.0.1".into(), port };
        RedisUrl { endpoint, tls: false, username: None, password: None, db: 0, found: None }
    }

    /// Whether its server certainly is that of one of the others.
    pub(super) fn is_among(&self, others: &[RedisUrl]) -> bool {
        others.iter().any(|other| other.endpoint.is_same(&self.endpoint))
    }
}

/// Reads a URL. Errors never repeat it: it may hold a password.
impl FromStr for RedisUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<RedisUrl, String> {
        let (scheme, rest) = text.split_once("://").ok_or(format!("not a URL; write {FORMS}"))?;
        match scheme {
            "redis" => tcp(rest),
            "rediss" => secure(rest),
            "unix" | "redis+unix" => unix(rest),
            _ => Err(format!("unknown scheme; write {FORMS}")),
        }
    }
}

fn secure(rest: &str) -> Result<RedisUrl, String> {
    let url = RedisUrl { tls: true, ..tcp(rest)? };
    match &url.endpoint {
        Endpoint::Tcp { host, .. } if tls_files::server_name(host).is_none() => {
            Err("no certificate can be for this host".into())
        }
        _ => Ok(url),
    }
}

fn tcp(rest: &str) -> Result<RedisUrl, String> {
    let (credentials, place) = match rest.rsplit_once('@') {
        Some((credentials, place)) => (Some(credentials), place),
        None => (None, rest),
    };
    let (place, db) = match place.split_once('/') {
        Some((place, "")) => (place, 0),
        Some((place, db)) => (place, database(db)?),
        None => (place, 0),
    };
    let (host, port) = host_and_port(place, DEFAULT_PORT, FORMS)?;
    let (username, password) = match credentials.map(|both| both.split_once(':')) {
        None => (None, None),
        Some(None) => {
            return Err("a user without a password; write redis://user:password@host".into());
        }
        Some(Some((user, password))) => {
            (Some(decode(user)?), Some(Password::Written(decode(password)?)))
        }
    };
    let endpoint = Endpoint::Tcp { host, port };
    let username = username.filter(|user| !user.is_empty());
    Ok(RedisUrl { endpoint, tls: false, username, password, db, found: None })
}

/// Reads a host and a port, by default `default`. Errors name `forms` as what to write.
pub(super) fn host_and_port(
    place: &str,
    default: u16,
    forms: &str,
) -> Result<(String, u16), String> {
    let (host, port) = match place.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, port)) => (host, port.strip_prefix(':').or((port.is_empty()).then_some(""))),
        None => match place.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (place, Some("")),
        },
    };
    let port = match port {
        Some("") => default,
        port => port
            .and_then(|port| port.parse().ok())
            .filter(|port| *port != 0)
            .ok_or("the port is not a number from 1 to 65535")?,
    };
    if host.is_empty() {
        return Err(format!("the host is missing; write {forms}"));
    }
    let bracketed = place.starts_with('[');
    // A zone, as in fe80::1%eth0, is left to the system.
    let address = host.split('%').next().unwrap_or(host);
    if bracketed && address.parse::<Ipv6Addr>().is_err() {
        return Err("what stands in brackets is not an IPv6 address".into());
    }
    if !bracketed && host.contains(|c: char| c.is_whitespace() || "%?#[]@".contains(c)) {
        return Err(format!("the host is not a name or an address; write {forms}"));
    }
    Ok((host.to_owned(), port))
}

fn unix(rest: &str) -> Result<RedisUrl, String> {
    let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
    let db = match query.strip_prefix("db=") {
        Some(db) => database(db)?,
        None if query.is_empty() => 0,
        None => return Err("only ?db=n may follow the path".into()),
    };
    if !path.starts_with('/') {
        return Err("the path of the socket must be absolute; write unix:///path".into());
    }
    // Errors and the log show the path, and a password in it with it. A path that has both is written as %3A and %40.
    if path.split_once(':').is_some_and(|(_, behind)| behind.contains('@')) {
        return Err("the path of a socket has no user and no password; write unix:///path".into());
    }
    let endpoint = Endpoint::Unix(PathBuf::from(decode(path)?));
    Ok(RedisUrl { endpoint, db, ..RedisUrl::local(0) })
}

fn database(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| "the database is not a number".into())
}

fn decode(text: &str) -> Result<String, String> {
    let decoded = percent_decode_str(text).decode_utf8();
    decoded.map(Into::into).map_err(|_| "its percent-encoding is not UTF-8".into())
}

impl std::fmt::Display for RedisUrl {
    /// Writes host and port or path, never the user or the password.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.endpoint {
            Endpoint::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}")?,
            Endpoint::Tcp { host, port } => write!(f, "{host}:{port}")?,
            Endpoint::Unix(path) => write!(f, "{}", path.display())?,
        }
        if self.db != 0 {
            write!(f, "/{}", self.db)?;
        }
        match self.found {
            Some(address) => write!(f, " ({})", address.ip()),
            None => Ok(()),
        }
    }
}

impl std::fmt::Debug for RedisUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RedisUrl({self})")
    }
}

#[cfg(test)]
#[path = "url_tests.rs"]
mod tests;
