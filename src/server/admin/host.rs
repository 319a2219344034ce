//! By which names a request may name this server (`Host`).
//!
//! A page of another site can point its own name at this address, and would read what the browser gets from there
//! (DNS rebinding). The name of such a page is never an IP address, `localhost` or a name without a dot: no site can
//! own these. At a loopback address names without a dot are refused too: no other machine gets there by one.

use std::net::IpAddr;

use hyper::{
    header::{HOST, HeaderMap},
    http::uri::Authority,
};

use crate::config::{AdminConfig, AdminHost, PeerUrl};

/// The names by which requests may name this server.
pub(super) struct HostRule {
    /// `admin.hosts`.
    hosts: Vec<AdminHost>,
    /// `admin.peers`: this server may be one of them.
    peers: Vec<PeerUrl>,
    /// This machine's name.
    machine: String,
}

impl HostRule {
    pub(super) fn new(config: &AdminConfig, machine: String) -> HostRule {
        HostRule { hosts: config.hosts.clone(), peers: config.peers.clone(), machine }
    }

    /// Whether the request names its server by an allowed name. HTTP/1.0 need not name it; no browser speaks that.
    /// `is_local`: whether the request came to a loopback address.
    pub(super) fn allows(&self, headers: &HeaderMap, is_local: bool) -> bool {
        let mut hosts = headers.get_all(HOST).iter();
        let Some(host) = hosts.next() else { return true };
        let authority = host.to_str().ok().and_then(|host| host.parse::<Authority>().ok());
        let Some(authority) = authority.filter(|host| is_whole(host) && hosts.next().is_none())
        else {
            return false;
        };
        let name = authority.host().trim_start_matches('[').trim_end_matches(']');
        let is = |other: &str| !other.is_empty() && name.eq_ignore_ascii_case(other);
        is("localhost")
            || name.parse::<IpAddr>().is_ok()
            || self.hosts.iter().any(|host| host.has(name))
            || !is_local
                && (!name.contains('.')
                    || is(&self.machine)
                    || self.peers.iter().any(|peer| is(peer.host())))
    }
}

/// Whether the authority is a host with nothing before it, and at most a port behind it.
fn is_whole(authority: &Authority) -> bool {
    let behind = authority.as_str().strip_prefix(authority.host());
    let port = behind.map(|behind| behind.strip_prefix(':').unwrap_or(behind));
    port.is_some_and(|port| port.bytes().all(|byte| byte.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn allowed(hosts: &str, host: &str, is_local: bool) -> bool {
        let peers = "peers: ['http://proxy1.internal:9380']";
        let text = format!("admin: {{listen: 0.0.0.0:9380, hosts: {hosts}, {peers}}}");
        let config = Config::parse(&text, "a file", &|_| None).unwrap();
        let mut headers = HeaderMap::new();
        headers.insert(HOST, host.parse().unwrap());
        let rule = HostRule::new(&config.admin, "app1.internal".into());
        rule.allows(&headers, is_local)
    }

    #[test]
    fn no_name_of_another_site_leads_here() {
        let own = ["127.0.0.1:9380", "localhost:9380", "LOCALHOST", "[::1]:9380", "10.0.0.7"];
        let names = ["lockgate:9380", "lockgate", "App1.internal", "proxy1.internal:9380"];
        let strange = [
            "evil.example:9380",
            "localhost.evil.example",
            "127.0.0.1.nip.io",
            "a.b.c.",
            "[::1]evil.example",
            "[::1]:80.evil.example",
            "127.0.0.1:evil.example",
            "localhost:80.evil.example",
            "user@localhost",
            "",
            "a b",
        ];
        for is_local in [true, false] {
            assert!(own.iter().all(|host| allowed("[]", host, is_local)));
            assert!(!strange.iter().any(|host| allowed("[]", host, is_local)));
            assert!(names.iter().all(|host| allowed("[]", host, is_local) != is_local));
            let listed = "[lock.example, '*.lock.example']";
            for host in
                ["lock.example:80", "Lock.Example", "a.lock.example", "a.b.lock.example:9380"]
            {
                assert!(
                    allowed(listed, host, is_local) && !allowed("[]", host, is_local),
                    "{host}"
                );
                assert!(allowed("['*']", host, is_local));
            }
            for host in
                ["evil.example", "evillock.example", "lock.example.evil.example", ".lock.example"]
            {
                assert!(!allowed(listed, host, is_local), "{host}");
            }
        }
        let mut twice = HeaderMap::new();
        for host in ["localhost", "evil.example"] {
            twice.append(HOST, host.parse().unwrap());
        }
        let nobody = HostRule::new(&AdminConfig::default(), String::new());
        assert!(!nobody.allows(&twice, true));
        assert!(nobody.allows(&HeaderMap::new(), true) && nobody.allows(&HeaderMap::new(), false));
    }
}
