//! The URL of one Redis: `redis://[user:password@]host:port[/db]`, `rediss://` for the same
//! over TLS, or `unix:///path[?db=n]`.

use std::{net::Ipv6Addr, path::PathBuf, str::FromStr};

use percent_encoding::percent_decode_str;

use super::tls;

/// Where Redis listens unless told otherwise.
const DEFAULT_PORT: u16 = 6379;
/// What a URL may look like, for errors.
const FORMS: &str = "redis[s]://[user:password@]host[:port][/db] or unix:///path[?db=n]";

/// Where a Redis listens.
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

/// A Redis to connect to and as whom.
#[derive(Clone, PartialEq, Eq)]
pub struct RedisUrl {
    /// Where it listens.
    pub endpoint: Endpoint,
    /// Over TLS, with the settings of the `tls` section.
    pub tls: bool,
    /// User for AUTH; none means the default user.
    pub username: Option<String>,
    /// Password for AUTH; none means no AUTH is sent.
    pub password: Option<String>,
    /// Database for SELECT.
    pub db: u32,
}

impl RedisUrl {
    /// `redis://127.0.0.1:port`.
    pub fn local(port: u16) -> RedisUrl {
        let endpoint = Endpoint::Tcp { host: "127.0.0.1".into(), port };
        RedisUrl { endpoint, tls: false, username: None, password: None, db: 0 }
    }
}

/// Errors never repeat the URL, as it may hold a password.
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
        Endpoint::Tcp { host, .. } if tls::server_name(host).is_none() => {
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
    let (host, port) = match place.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, port)) => (host, port.strip_prefix(':').or((port.is_empty()).then_some(""))),
        None => match place.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (place, Some("")),
        },
    };
    let port = match port {
        Some("") => DEFAULT_PORT,
        port => port
            .and_then(|port| port.parse().ok())
            .filter(|port| *port != 0)
            .ok_or("the port is not a number from 1 to 65535")?,
    };
    if host.is_empty() {
        return Err(format!("the host is missing; write {FORMS}"));
    }
    let bracketed = place.starts_with('[');
    // A zone, as in fe80::1%eth0, is the system's to understand.
    let address = host.split('%').next().unwrap_or(host);
    if bracketed && address.parse::<Ipv6Addr>().is_err() {
        return Err("what stands in brackets is not an IPv6 address".into());
    }
    if !bracketed && host.contains(|c: char| c.is_whitespace() || "%?#[]@".contains(c)) {
        return Err(format!("the host is not a name or an address; write {FORMS}"));
    }
    let (username, password) = match credentials.map(|both| both.split_once(':')) {
        None => (None, None),
        Some(None) => {
            return Err("a user without a password; write redis://user:password@host".into());
        }
        Some(Some((user, password))) => (Some(decode(user)?), Some(decode(password)?)),
    };
    let endpoint = Endpoint::Tcp { host: host.to_owned(), port };
    let username = username.filter(|user| !user.is_empty());
    Ok(RedisUrl { endpoint, tls: false, username, password, db })
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
    let endpoint = Endpoint::Unix(PathBuf::from(decode(path)?));
    Ok(RedisUrl { endpoint, tls: false, username: None, password: None, db })
}

fn database(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| "the database is not a number".into())
}

fn decode(text: &str) -> Result<String, String> {
    let decoded = percent_decode_str(text).decode_utf8();
    decoded.map(Into::into).map_err(|_| "its percent-encoding is not UTF-8".into())
}

impl std::fmt::Display for RedisUrl {
    /// Host and port or path, never the user or the password.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.endpoint {
            Endpoint::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}")?,
            Endpoint::Tcp { host, port } => write!(f, "{host}:{port}")?,
            Endpoint::Unix(path) => write!(f, "{}", path.display())?,
        }
        if self.db != 0 { write!(f, "/{}", self.db) } else { Ok(()) }
    }
}

impl std::fmt::Debug for RedisUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RedisUrl({self})")
    }
}

#[cfg(test)]
mod tests {
    use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
    use proptest::prelude::*;

    use super::*;

    fn encoded(text: &str) -> String {
        utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
    }

    proptest! {
        #[test]
        fn what_is_written_encoded_is_read_as_meant(
            user in any::<Option<String>>(),
            password in any::<String>(),
            host in "[a-z0-9][a-z0-9.-]{0,20}",
            port in 1u16..,
            db in any::<u32>(),
            tls in any::<bool>(),
        ) {
            prop_assume!(!tls || tls::server_name(&host).is_some());
            let scheme = if tls { "rediss" } else { "redis" };
            let (name, word) = (encoded(user.as_deref().unwrap_or("")), encoded(&password));
            let url: RedisUrl = format!("{scheme}://{name}:{word}@{host}:{port}/{db}").parse().unwrap();
            prop_assert_eq!(url.tls, tls);
            prop_assert_eq!(url.username, user.filter(|user| !user.is_empty()));
            prop_assert_eq!(url.password, Some(password));
            prop_assert_eq!(url.endpoint, Endpoint::Tcp { host, port });
            prop_assert_eq!(url.db, db);
        }

        #[test]
        fn every_ipv6_address_is_read_in_brackets(ip in any::<Ipv6Addr>(), port in 1u16..) {
            let url: RedisUrl = format!("redis://[{ip}]:{port}").parse().unwrap();
            prop_assert_eq!(url.to_string(), format!("[{ip}]:{port}"));
            prop_assert_eq!(url.endpoint, Endpoint::Tcp { host: ip.to_string(), port });
        }

        #[test]
        fn every_socket_path_is_read(path in "/[^\\x00]{0,40}", db in any::<u32>()) {
            for scheme in ["unix", "redis+unix"] {
                let url: RedisUrl = format!("{scheme}://{}?db={db}", path_encoded(&path)).parse().unwrap();
                prop_assert_eq!(&url.endpoint, &Endpoint::Unix(PathBuf::from(&path)));
                prop_assert_eq!(url.db, db);
            }
        }

        #[test]
        fn no_text_is_too_odd_to_be_refused_or_shown(
            text in r"(redis|unix|redis\+unix|rediss)?(://)?[\[\]@:/?%=a-z0-9]{0,24}|\PC*",
        ) {
            if let Ok(url) = text.parse::<RedisUrl>() {
                let again: RedisUrl = match url.endpoint {
                    Endpoint::Tcp { .. } => format!("redis://{url}").parse().unwrap(),
                    Endpoint::Unix(_) => return Ok(()),
                };
                prop_assert_eq!((again.endpoint, again.db), (url.endpoint, url.db));
            }
        }
    }

    /// As `encoded`, but a path begins with a plain slash.
    fn path_encoded(path: &str) -> String {
        format!("/{}", encoded(&path[1..]))
    }

    #[test]
    fn reads_every_form() {
        let url: RedisUrl = "redis://me:p%40ss@10.0.0.1:7000/3".parse().unwrap();
        assert_eq!(url.endpoint, Endpoint::Tcp { host: "10.0.0.1".into(), port: 7000 });
        assert_eq!((url.username.as_deref(), url.password.as_deref()), (Some("me"), Some("p@ss")));
        assert_eq!((url.db, url.to_string()), (3, "10.0.0.1:7000/3".into()));
        let url: RedisUrl = "redis://:secret@[::1]".parse().unwrap();
        assert_eq!((url.username, url.password.as_deref()), (None, Some("secret")));
        assert_eq!(url.endpoint, Endpoint::Tcp { host: "::1".into(), port: 6379 });
        let url: RedisUrl = "unix:///run/redis.sock?db=2".parse().unwrap();
        assert_eq!((url.endpoint, url.db), (Endpoint::Unix("/run/redis.sock".into()), 2));
        assert_eq!("redis://localhost/".parse::<RedisUrl>().unwrap().to_string(), "localhost:6379");
    }

    #[test]
    fn what_is_no_host_is_refused() {
        for bad in ["[zz]:1", "[::1", "a b:1", "a%zz", "a?db=1", "a#1", "::1:6379", "", ":6379"] {
            let url = format!("redis://{bad}");
            assert!(url.parse::<RedisUrl>().is_err(), "{url}");
        }
        assert!("redis://[fe80::1%eth0]:1".parse::<RedisUrl>().is_ok());
    }

    #[test]
    fn a_refused_url_is_never_repeated() {
        for bad in [
            "secret",
            "http://secret@x",
            "secret://x",
            "rediss://:secret@x:0",
            "rediss://:secret@1.2.3.4.5",
            "redis://secret@x",
            "redis://:secret@",
            "redis://:secret@x:0",
            "redis://:secret@x:99999",
            "redis://:secret@x/secret",
            "redis://:secret%ff@x",
            "unix://secret",
            "unix:///x?secret=1",
            "redis://:secret@[::1]secret",
        ] {
            let error = bad.parse::<RedisUrl>().unwrap_err();
            assert!(!error.contains("secret"), "{bad}: {error}");
        }
    }
}
