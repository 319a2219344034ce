//! The URL of another proxy's admin address: `http://host:port`.

use std::{fmt, net::Ipv6Addr, str::FromStr};

use serde_yaml::Value;

use super::{
    locate::PathStep,
    reader::{FromYaml, Reader, Wrong},
    url::{host_and_port, is_same_host},
};

/// The default port, as that of `admin`.
const ADMIN_PORT: u16 = 9380;
/// The form of a URL, for errors.
const WRITTEN: &str = "http://host:port";
/// The longest DNS name.
pub(super) const LONGEST_HOST: usize = 253;

/// Another proxy's admin address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PeerUrl {
    /// A name or an address, without brackets.
    host: String,
    port: u16,
}

impl PeerUrl {
    /// The host's name or address, without brackets.
    pub(crate) fn host(&self) -> &str {
        &self.host
    }

    /// Whether both certainly are one address, however each is spelled.
    pub(super) fn is_same(&self, other: &PeerUrl) -> bool {
        self.port == other.port && is_same_host(&self.host, &other.host)
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// `host:port`, as a request names it.
    pub(crate) fn authority(&self) -> String {
        match self.host.contains(':') {
            true => format!("[{}]:{}", self.host, self.port),
            false => format!("{}:{}", self.host, self.port),
        }
    }
}

impl fmt::Display for PeerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}", self.authority())
    }
}

/// Reads a URL. Errors never repeat it: it may hold a password.
impl FromStr for PeerUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<PeerUrl, String> {
        let wrong = |what: &str| Err(format!("{what}; write {WRITTEN}"));
        let Some(("http", rest)) = text.split_once("://") else {
            return wrong("an admin address speaks plain HTTP");
        };
        if rest.contains('@') {
            return wrong("no user and no password are sent to another proxy");
        }
        let place = rest.strip_suffix('/').unwrap_or(rest);
        if place.contains(['/', '?', '#']) {
            return wrong("nothing stands behind the port");
        }
        let (host, port) = host_and_port(place, ADMIN_PORT, WRITTEN)?;
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
        let is_name = host.chars().all(is_plain) && host.len() <= LONGEST_HOST;
        if !is_name && host.parse::<Ipv6Addr>().is_err() {
            return wrong("the host is not a name or an address");
        }
        Ok(PeerUrl { host, port })
    }
}

impl FromYaml for PeerUrl {
    fn read(_: &mut Reader<'_>, value: &Value, _: &[PathStep]) -> Result<PeerUrl, Wrong> {
        value.as_str().ok_or(Wrong::Wanted(WRITTEN))?.parse().map_err(Wrong::Because)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_admin_address_is_read_and_written() {
        for (text, written) in [
            ("http://10.0.0.2:9381", "http://10.0.0.2:9381"),
            ("http://proxy-2.internal/", "http://proxy-2.internal:9380"),
            ("http://[::1]:1", "http://[::1]:1"),
        ] {
            assert_eq!(text.parse::<PeerUrl>().unwrap().to_string(), written);
        }
    }

    #[test]
    fn what_is_no_admin_address_is_refused_without_being_repeated() {
        for (text, what) in [
            ("10.0.0.2:9380", "speaks plain HTTP"),
            ("https://secret:9380", "speaks plain HTTP"),
            ("http://me:secret@10.0.0.2:9380", "no user and no password"),
            ("http://10.0.0.2:9380/secret", "nothing stands behind the port"),
            ("http://10.0.0.2:9380?secret", "nothing stands behind the port"),
            ("http://10.0.0.2:0", "the port is not a number"),
            ("http://10.0.0.2:secret", "the port is not a number"),
            ("http://:9380", "the host is missing"),
            ("http://", "the host is missing"),
            ("http://[secret]:9380", "not an IPv6 address"),
            ("http://[fe80::1%secret]:9380", "not a name or an address"),
            ("http://secret\r\nX: y:1", "not a"),
            ("http://secret\u{1}:1", "not a name or an address"),
            ("http://secret\"<b>:1", "not a name or an address"),
        ] {
            let told = text.parse::<PeerUrl>().unwrap_err();
            assert!(told.contains(what) && !told.contains("secret"), "{text:?}: {told}");
        }
    }
}
