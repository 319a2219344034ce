//! The `admin:` section: where the operators' pages are, which token allows changes there, and where the
//! other proxies' pages are.

use std::{
    fmt,
    net::{Ipv4Addr, SocketAddr},
};

use serde_yaml::Value;

use super::{
    locate::PathStep,
    peer::{LONGEST_HOST, PeerUrl},
    reader::{FromYaml, Reader, Wrong},
};

/// The keys of a section that is a mapping.
pub(super) const KEYS: &[&str] = &["listen", "token", "peers", "hosts"];
/// Most peers. While an operator looks at its status page, a proxy asks each peer every two seconds.
const MOST_PEERS: usize = 32;
/// Most host names. Each request's Host is compared with all of them.
const MOST_HOSTS: usize = 32;
/// The shortest token: nearly 128 bits, in base64 or hexadecimal.
const SHORTEST_TOKEN: usize = 20;
/// The longest token. It must fit into one header line of a request.
const LONGEST_TOKEN: usize = 512;

/// The `admin:` section.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdminConfig {
    /// `listen`, or the whole section: the address that serves the pages; none with `off`.
    pub listen: Option<SocketAddr>,
    /// `token`: a request that carries it may free locks and pause lock nodes. None: no request may.
    pub(crate) token: Option<AdminToken>,
    /// `peers`: the admin addresses of the other proxies that the status page shows.
    pub(crate) peers: Vec<PeerUrl>,
    /// `hosts`: names by which requests may name this server.
    pub(crate) hosts: Vec<AdminHost>,
}

/// Names that a request's Host may have: one name, all below one (`*.example.com`), or any (`*`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AdminHost(String);

impl AdminHost {
    /// Whether `name` is one of them.
    pub(crate) fn has(&self, name: &str) -> bool {
        match self.0.strip_prefix('*') {
            Some(end) => {
                let begins = name.len().checked_sub(end.len()).filter(|begins| *begins > 0);
                begins
                    .and_then(|begins| name.get(begins..))
                    .is_some_and(|name_end| name_end.eq_ignore_ascii_case(end))
            }
            None => self.0.eq_ignore_ascii_case(name),
        }
    }
}

impl FromYaml for AdminHost {
    fn read(_: &mut Reader<'_>, value: &Value, _: &[PathStep]) -> Result<AdminHost, Wrong> {
        let text = value.as_str().ok_or(Wrong::Wanted("a host name"))?;
        let name = text.strip_prefix("*.").unwrap_or(text);
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
        let is_name = !name.is_empty() && name.len() <= LONGEST_HOST && name.chars().all(is_plain);
        match is_name || text == "*" {
            true => Ok(AdminHost(text.to_owned())),
            false => Err(Wrong::Because(
                "is no host name; write one without a port, *.example.com for all below it, or *"
                    .into(),
            )),
        }
    }
}

/// A secret that is compared and never shown.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct AdminToken(String);

impl Default for AdminConfig {
    fn default() -> AdminConfig {
        let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 9380));
        AdminConfig { listen: Some(listen), token: None, peers: Vec::new(), hosts: Vec::new() }
    }
}

impl AdminToken {
    /// Whether `given` is the token. The time that this takes reveals only the token's length.
    pub(crate) fn is(&self, given: &[u8]) -> bool {
        bool::from(subtle::ConstantTimeEq::ct_eq(self.0.as_bytes(), given))
    }
}

impl fmt::Debug for AdminToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AdminToken")
    }
}

/// An address, `off`, or a mapping with more settings.
impl FromYaml for AdminConfig {
    fn read(
        reader: &mut Reader<'_>,
        value: &Value,
        path: &[PathStep],
    ) -> Result<AdminConfig, Wrong> {
        let mut admin = AdminConfig::default();
        if !matches!(value, Value::Mapping(_)) {
            admin.listen = FromYaml::read(reader, value, path)?;
            return Ok(admin);
        }
        let section = reader.mapping(value, path.to_vec(), KEYS);
        reader.read(&section, "listen", &mut admin.listen);
        reader.read(&section, "token", &mut admin.token);
        reader.read(&section, "peers", &mut admin.peers);
        reader.read(&section, "hosts", &mut admin.hosts);
        if admin.hosts.len() > MOST_HOSTS {
            let hosts = section.path("hosts");
            reader.problem(&hosts, format!("names more than {MOST_HOSTS} hosts"));
        }
        let peers = section.path("peers");
        if admin.peers.len() > MOST_PEERS {
            reader.problem(&peers, format!("names more than {MOST_PEERS} proxies"));
        }
        let mut before = admin.peers.iter().enumerate();
        let is_there =
            |place: usize, peer: &PeerUrl| admin.peers[..place].iter().any(|it| it.is_same(peer));
        if let Some((_, twice)) = before.find(|(place, peer)| is_there(*place, peer)) {
            reader.problem(&peers, format!("{twice} is there twice"));
        }
        match reader.sound(&section, KEYS) {
            true => Ok(admin),
            false => Err(Wrong::Told),
        }
    }
}

/// No error repeats the value.
impl FromYaml for Option<AdminToken> {
    fn read(_: &mut Reader<'_>, value: &Value, _: &[PathStep]) -> Result<Self, Wrong> {
        let wrong = |what: String| Err(Wrong::Because(what));
        let Some(token) = value.as_str() else {
            return wrong("is not text; put it in quotes".into());
        };
        if !(SHORTEST_TOKEN..=LONGEST_TOKEN).contains(&token.len()) {
            return wrong(format!(
                "has {} bytes; give {SHORTEST_TOKEN} to {LONGEST_TOKEN}, as openssl rand -hex 16 makes \
                 them",
                token.len()
            ));
        }
        if !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            return wrong(
                "has spaces, or characters that no line of a request's head can have".into(),
            );
        }
        Ok(Some(AdminToken(token.to_owned())))
    }
}
