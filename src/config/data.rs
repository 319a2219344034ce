//! `data`: one Redis, a master that Sentinels name, a primary behind a DNS name whose address changes, or a
//! Redis Cluster.

use std::{fmt, net::IpAddr, path::PathBuf};

use serde_yaml::Value;

use super::{
    locate::PathStep,
    password::Password,
    reader::{FromYaml, Reader, Section, Wrong, shown},
    tls_files,
    url::{Endpoint, RedisUrl, host_and_port},
};

/// The keys of `data` as a mapping.
pub(super) const DATA_KEYS: &[&str] = &[
    "url",
    "cluster",
    "announce",
    "fronts",
    "primary",
    "sentinels",
    "master",
    "username",
    "password",
    "password_file",
    "tls",
    "sentinel_username",
    "sentinel_password",
    "sentinel_password_file",
    "sentinel_tls",
];
/// The keys of a master that Sentinels name.
pub(super) const SENTINEL_KEYS: &[&str] = DATA_KEYS.split_at(5).1;
/// The keys of a Redis Cluster.
const CLUSTER_KEYS: [&str; 7] =
    ["cluster", "announce", "fronts", "username", "password", "password_file", "tls"];
/// The keys beside `url` and `primary`.
const LOGIN_KEYS: [&str; 3] = ["username", "password", "password_file"];
/// The default port of a cluster's node.
const NODE_PORT: u16 = 6379;
/// The length of a cluster node's id, in hexadecimal digits.
const NODE_ID: usize = 40;
/// The longest host in `announce`: the longest DNS name, in bytes.
const LONGEST_HOST: usize = 253;
/// The default port of a Sentinel.
const SENTINEL_PORT: u16 = 26379;
/// The longest name of a master, in bytes.
const LONGEST_NAME: usize = 128;

/// The Redis to which forwarded commands go, or how it is found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DataConfig {
    /// One Redis for as long as the proxy runs.
    Fixed(RedisUrl),
    /// `primary`: the Redis to which a DNS name leads at the time.
    Primary(RedisUrl),
    /// `sentinels` and `master`: the Redis that a majority of Sentinels names.
    Sentinels(SentinelMaster),
    /// `cluster`: a Redis Cluster. Each node has a front, an address of `listen`.
    Cluster(ClusterConfig),
}

/// A Redis Cluster whose clients come through fronts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterConfig {
    /// `cluster`: nodes that are asked which others there are. Each has the cluster's user, password and TLS flag.
    pub nodes: Vec<RedisUrl>,
    /// `announce`: how fronts are shown to clients.
    pub(crate) announce: Announce,
    /// `fronts`: node ids, each with the port of its front.
    pub fronts: Vec<(String, u16)>,
    /// `username`, `password` and `tls` of all nodes.
    login: RedisUrl,
}

/// The addresses that clients are told where a reply names nodes of the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Announce {
    /// The address to which the client connected, with the port of each node's front.
    Reached,
    /// This host, with the port of each node's front.
    Host(String),
    /// What the nodes announce: no reply is changed.
    Nodes,
}

impl ClusterConfig {
    /// Makes a cluster that these nodes know. Clients are told its fronts by [`Announce::Reached`].
    pub(crate) fn of(nodes: Vec<RedisUrl>) -> ClusterConfig {
        let (announce, login) = (Announce::Reached, RedisUrl::local(0));
        ClusterConfig { nodes, announce, fronts: Vec::new(), login }
    }

    /// A URL with the credentials of all nodes, without an address.
    pub(crate) fn login(&self) -> &RedisUrl {
        &self.login
    }

    /// Returns the URL of the node at an address that the cluster names.
    pub(crate) fn at(&self, host: &str, port: u16) -> RedisUrl {
        let endpoint = Endpoint::Tcp { host: host.to_owned(), port };
        RedisUrl { endpoint, ..self.login.clone() }
    }
}

/// A master that Sentinels watch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SentinelMaster {
    /// `sentinels`: all of them, each with its user, password and TLS flag.
    pub sentinels: Vec<RedisUrl>,
    /// `master`: the name by which the Sentinels know it.
    pub master: String,
    /// `username`, `password` and `tls` of the master, whatever its address.
    login: RedisUrl,
}

impl SentinelMaster {
    /// A master without a password, named by these Sentinels.
    #[cfg(test)]
    pub(crate) fn simulated(sentinels: Vec<RedisUrl>, master: &str) -> SentinelMaster {
        SentinelMaster { sentinels, master: master.to_owned(), login: RedisUrl::local(0) }
    }

    /// A master without a password on this machine, named by Sentinels at these ports.
    pub(crate) fn local(sentinels: impl Iterator<Item = u16>, master: &str) -> SentinelMaster {
        SentinelMaster {
            sentinels: sentinels.map(RedisUrl::local).collect(),
            master: master.to_owned(),
            login: RedisUrl::local(0),
        }
    }

    /// Returns the URL of the master at an address that the Sentinels name.
    pub(crate) fn at(&self, host: &str, port: u16) -> RedisUrl {
        let endpoint = Endpoint::Tcp { host: host.to_owned(), port };
        RedisUrl { endpoint, ..self.login.clone() }
    }

    /// A URL with the master's credentials, without its address.
    pub(crate) fn login(&self) -> &RedisUrl {
        &self.login
    }

    /// Returns a line about a setting that is allowed but easily not what was meant. `key` is this section's.
    pub(super) fn notes(&self, key: &str) -> Option<String> {
        match self.sentinels.len() {
            1 => Some(format!(
                "{key}.sentinels: one Sentinel; when it fails, a new master is not heard of: name all \
                 that watch the master, 3 or more"
            )),
            even if even % 2 == 0 => Some(format!(
                "{key}.sentinels: {even} Sentinels; a majority of them is {}, so that no more may fail \
                 than of {}: name all that watch the master, 3, 5 or 7",
                even / 2 + 1,
                even - 1
            )),
            _ => None,
        }
    }
}

impl DataConfig {
    /// The Redis, if it is always the same one.
    pub fn fixed(&self) -> Option<&RedisUrl> {
        match self {
            DataConfig::Fixed(url) => Some(url),
            DataConfig::Primary(_) | DataConfig::Sentinels(_) | DataConfig::Cluster(_) => None,
        }
    }

    /// The Redis Cluster, if `data` is one.
    pub(crate) fn cluster(&self) -> Option<&ClusterConfig> {
        match self {
            DataConfig::Cluster(cluster) => Some(cluster),
            _ => None,
        }
    }

    /// Whether connections to the Redis, or to a Sentinel, use TLS.
    pub(crate) fn uses_tls(&self) -> bool {
        match self {
            DataConfig::Fixed(url) | DataConfig::Primary(url) => url.tls,
            DataConfig::Sentinels(master) => {
                master.login.tls || master.sentinels.iter().any(|sentinel| sentinel.tls)
            }
            DataConfig::Cluster(cluster) => cluster.login.tls,
        }
    }

    /// A URL with the credentials. For a master that Sentinels name, or a cluster, the URL has no address.
    pub(crate) fn login(&self) -> &RedisUrl {
        match self {
            DataConfig::Fixed(url) | DataConfig::Primary(url) => url,
            DataConfig::Sentinels(master) => &master.login,
            DataConfig::Cluster(cluster) => &cluster.login,
        }
    }

    /// The URLs in the file: those of the Redis, of the Sentinels, or of nodes of the cluster.
    pub(super) fn written(&self) -> &[RedisUrl] {
        match self {
            DataConfig::Fixed(url) | DataConfig::Primary(url) => std::slice::from_ref(url),
            DataConfig::Sentinels(master) => &master.sentinels,
            DataConfig::Cluster(cluster) => &cluster.nodes,
        }
    }

    /// Returns a line about a setting that is allowed but easily not what was meant.
    pub(super) fn notes(&self) -> Option<String> {
        match self {
            DataConfig::Fixed(_) | DataConfig::Primary(_) => None,
            DataConfig::Sentinels(master) => master.notes("data"),
            DataConfig::Cluster(cluster) => (cluster.nodes.len() == 1).then(|| {
                "data.cluster: one node; while it is down, a starting proxy does not find the others: \
                 name two or more"
                    .into()
            }),
        }
    }
}

impl fmt::Display for SentinelMaster {
    /// Writes the master's name and the Sentinels, never a user or a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: Vec<String> = self.sentinels.iter().map(ToString::to_string).collect();
        write!(f, "{} (Sentinels {})", self.master, all.join(", "))
    }
}

impl fmt::Display for ClusterConfig {
    /// Writes the nodes in the file, never a user or a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: Vec<String> = self.nodes.iter().map(ToString::to_string).collect();
        write!(f, "cluster ({})", all.join(", "))
    }
}

impl fmt::Display for DataConfig {
    /// Writes the address, or the master's name and the Sentinels, or nodes of the cluster, never a
    /// user or a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DataConfig::Fixed(url) | DataConfig::Primary(url) => url.fmt(f),
            DataConfig::Sentinels(master) => master.fmt(f),
            DataConfig::Cluster(cluster) => cluster.fmt(f),
        }
    }
}

/// Reports a database in the URL of `data`.
pub(super) fn without_database(data: &DataConfig) -> Option<String> {
    (data.login().db != 0).then(|| {
        "a database has no effect here: clients choose theirs with SELECT; leave it out".into()
    })
}

impl FromYaml for Option<RedisUrl> {
    fn read(reader: &mut Reader<'_>, value: &Value, path: &[PathStep]) -> Result<Self, Wrong> {
        RedisUrl::read(reader, value, path).map(Some)
    }
}

/// Text that no error may repeat.
struct Secret(String);

impl FromYaml for Option<Secret> {
    fn read(_: &mut Reader<'_>, value: &Value, _: &[PathStep]) -> Result<Self, Wrong> {
        let text = value.as_str().ok_or("is not text; put it in quotes");
        text.map(|text| Some(Secret(text.to_owned()))).map_err(|what| Wrong::Because(what.into()))
    }
}

/// The address of a Sentinel.
struct SentinelAddress(Endpoint);

impl FromYaml for SentinelAddress {
    fn read(_: &mut Reader<'_>, value: &Value, _: &[PathStep]) -> Result<Self, Wrong> {
        let text = value.as_str().ok_or(Wrong::Wanted("the address of a Sentinel"))?;
        if text.contains("://") || text.contains('@') {
            let what = "write host:port; its user and password are sentinel_username and \
                        sentinel_password beside sentinels, TLS is sentinel_tls";
            return Err(Wrong::Because(what.into()));
        }
        let read = host_and_port(text, SENTINEL_PORT, "host:port");
        let (host, port) = read.map_err(Wrong::Because)?;
        Ok(SentinelAddress(Endpoint::Tcp { host, port }))
    }
}

/// The address of a cluster's node.
struct ClusterAddress(Endpoint);

impl FromYaml for ClusterAddress {
    fn read(_: &mut Reader<'_>, value: &Value, _: &[PathStep]) -> Result<Self, Wrong> {
        let text = value.as_str().ok_or(Wrong::Wanted("the address of a node"))?;
        if text.contains("://") || text.contains('@') {
            let what = "write host:port; user and password of all nodes are username and password \
                        beside cluster, TLS is tls";
            return Err(Wrong::Because(what.into()));
        }
        let read = host_and_port(text, NODE_PORT, "host:port");
        let (host, port) = read.map_err(Wrong::Because)?;
        Ok(ClusterAddress(Endpoint::Tcp { host, port }))
    }
}

/// Ports of fronts by ids of nodes.
#[derive(Default)]
struct NamedFronts(Vec<(String, u16)>);

impl FromYaml for NamedFronts {
    fn read(reader: &mut Reader<'_>, value: &Value, path: &[PathStep]) -> Result<Self, Wrong> {
        let wanted = Wrong::Wanted("a mapping from nodes' ids to the ports of their fronts");
        let Value::Mapping(all) = value else { return Err(wanted) };
        let mut fronts = Vec::<(String, u16)>::new();
        for (id, port) in all {
            // YAML reads an id without quotes that has only digits as a number.
            let text = id.as_str().unwrap_or_default();
            let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
            if text.len() != NODE_ID || !text.bytes().all(is_digit) {
                let what = format!(
                    "{} where a node's id is wanted: 40 digits and letters from a to f, in quotes, as \
                     CLUSTER MYID tells",
                    shown(id)
                );
                reader.problem(path, what);
                continue;
            }
            let own = [path, &[PathStep::Key(text.to_owned())]].concat();
            let Some(number) = port.as_u64().and_then(|port| u16::try_from(port).ok()) else {
                reader.problem(
                    &own,
                    format!("{} where the port of its front is wanted", shown(port)),
                );
                continue;
            };
            if fronts.iter().any(|(_, other)| *other == number) {
                let what =
                    format!("{number} is the port of another node's front; each has its own");
                reader.problem(&own, what);
            }
            fronts.push((text.to_owned(), number));
        }
        Ok(NamedFronts(fronts))
    }
}

impl FromYaml for Announce {
    fn read(_: &mut Reader<'_>, value: &Value, _: &[PathStep]) -> Result<Self, Wrong> {
        // YAML 1.1 reads `off` as false, so a tool may write `false` for it.
        if matches!(value, Value::Bool(false)) {
            return Ok(Announce::Nodes);
        }
        let text = value.as_str().ok_or(Wrong::Wanted("auto, off or the host of the fronts"))?;
        let lower = text.to_ascii_lowercase();
        let is_word = ["auto", "off", "on", "no", "yes", "true", "false"].contains(&&*lower);
        let address = text.parse::<IpAddr>();
        let is_host = !text.is_empty()
            && !is_word
            && text.len() <= LONGEST_HOST
            && !address.as_ref().is_ok_and(IpAddr::is_unspecified)
            && (address.is_ok()
                || text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte)));
        match text {
            "auto" => Ok(Announce::Reached),
            "off" => Ok(Announce::Nodes),
            host if is_host => Ok(Announce::Host(host.to_owned())),
            _ => {
                let what = "is neither auto nor off nor the host of the fronts: a name or an address \
                            without a port, as each node's front has its own";
                Err(Wrong::Because(what.into()))
            }
        }
    }
}

/// A URL, or a mapping with `cluster`, with `primary`, or with `sentinels` and `master`.
impl FromYaml for DataConfig {
    fn read(reader: &mut Reader<'_>, value: &Value, path: &[PathStep]) -> Result<Self, Wrong> {
        let Value::Mapping(_) = value else {
            return RedisUrl::read(reader, value, path).map(DataConfig::Fixed);
        };
        let section = reader.mapping(value, path.to_vec(), DATA_KEYS);
        if section.get("cluster").is_some() {
            let cluster = self::cluster(reader, &section).map(DataConfig::Cluster);
            return cluster.ok_or(Wrong::Told);
        }
        for key in ["announce", "fronts"] {
            if section.get(key).is_some() {
                let what = "has no effect without cluster, whose nodes have fronts";
                reader.problem(&section.path(key), what);
            }
        }
        if section.get("url").is_some() {
            let url = with_login(reader, &section, ("url", DATA_KEYS)).map(DataConfig::Fixed);
            return url.ok_or(Wrong::Told);
        }
        let (primary, sentinels) = (section.get("primary"), section.get("sentinels"));
        let read = match (primary, sentinels) {
            (Some(_), Some(_)) => {
                let what = "there are sentinels too; either they say which Redis it is, or a name";
                reader.problem(&section.path("primary"), what);
                None
            }
            (Some(_), None) => self::primary(reader, &section).map(DataConfig::Primary),
            (None, Some(_)) => self::sentinels(reader, &section).map(DataConfig::Sentinels),
            (None, None) => {
                let what = "has neither primary nor sentinels nor cluster; write \
                            data: redis://host:port, data: {url: …, password_file: …}, \
                            data: {primary: redis://name:port}, \
                            data: {sentinels: [host:port, …], master: mymaster}, or \
                            data: {cluster: [host:port, …]}";
                reader.problem(path, what);
                None
            }
        };
        read.ok_or(Wrong::Told)
    }
}

fn primary(reader: &mut Reader<'_>, section: &Section<'_>) -> Option<RedisUrl> {
    let url = with_login(reader, section, ("primary", DATA_KEYS))?;
    let is_name = matches!(
        &url.endpoint,
        Endpoint::Tcp { host, .. } if host.parse::<IpAddr>().is_err() && !host.contains(':')
    );
    if !is_name {
        let what =
            format!("{url} is no name, so it never leads elsewhere; write data: with its URL");
        reader.problem(&section.path("primary"), what);
    }
    Some(url)
}

/// Reads a Redis Cluster.
pub(super) fn cluster(reader: &mut Reader<'_>, section: &Section<'_>) -> Option<ClusterConfig> {
    let mut addresses = Vec::<ClusterAddress>::new();
    reader.read(section, "cluster", &mut addresses);
    if addresses.is_empty() && reader.sound(section, &["cluster"]) {
        let what = "no node; name two or more, which know the others";
        reader.problem(&section.path("cluster"), what);
    }
    let mut announce = Announce::Reached;
    reader.read(section, "announce", &mut announce);
    let mut fronts = NamedFronts::default();
    reader.read(section, "fronts", &mut fronts);
    for key in DATA_KEYS.iter().filter(|key| !CLUSTER_KEYS.contains(key)) {
        if section.get(key).is_some() {
            let what = "has no effect beside cluster, whose nodes know their masters";
            reader.problem(&section.path(key), what);
        }
    }
    let login = login(reader, section, "");
    let nodes: Vec<RedisUrl> = addresses
        .into_iter()
        .map(|ClusterAddress(endpoint)| RedisUrl { endpoint, ..login.clone() })
        .collect();
    for (index, node) in nodes.iter().enumerate() {
        if node.is_among(&nodes[..index]) {
            reader.problem(&section.path("cluster"), format!("{node} is there twice"));
        }
    }
    Some(ClusterConfig { nodes, announce, fronts: fronts.0, login })
}

/// Reads a master that Sentinels name.
pub(super) fn sentinels(reader: &mut Reader<'_>, section: &Section<'_>) -> Option<SentinelMaster> {
    let mut addresses = Vec::<SentinelAddress>::new();
    reader.read(section, "sentinels", &mut addresses);
    if addresses.is_empty() && reader.sound(section, &["sentinels"]) {
        reader.problem(&section.path("sentinels"), "no Sentinel; name all that watch the master");
    }
    let mut master = String::new();
    reader.read(section, "master", &mut master);
    if section.get("master").is_none() {
        let what =
            "is missing; give the name that stands behind 'sentinel monitor' in sentinel.conf";
        reader.problem(&section.path("master"), what);
    } else if reader.sound(section, &["master"])
        && (master.is_empty()
            || master.len() > LONGEST_NAME
            || master.contains(|c: char| c.is_whitespace() || c.is_control()))
    {
        reader.problem(&section.path("master"), "is no name that Sentinels can have for a master");
    }
    let login = login(reader, section, "");
    let one = self::login(reader, section, "sentinel_");
    let sentinels: Vec<RedisUrl> = addresses
        .into_iter()
        .map(|SentinelAddress(endpoint)| RedisUrl { endpoint, ..one.clone() })
        .collect();
    for (index, sentinel) in sentinels.iter().enumerate() {
        if sentinel.is_among(&sentinels[..index]) {
            let what = "one of them is there twice; each Sentinel has one voice";
            reader.problem(&section.path("sentinels"), what);
        }
        if let Endpoint::Tcp { host, .. } = &sentinel.endpoint
            && sentinel.tls
            && tls_files::server_name(host).is_none()
        {
            reader.problem(&section.path("sentinels"), "no certificate can be for this host");
        }
    }
    Some(SentinelMaster { sentinels, master, login })
}

/// Reads a URL under `of` whose user and password may stand beside it, of the `known` keys.
pub(super) fn with_login(
    reader: &mut Reader<'_>,
    section: &Section<'_>,
    (of, known): (&str, &[&str]),
) -> Option<RedisUrl> {
    let mut url = None::<RedisUrl>;
    reader.read(section, of, &mut url);
    for key in known.iter().filter(|key| **key != of && !LOGIN_KEYS.contains(key)) {
        if section.get(key).is_some() {
            let what = format!(
                "has no effect beside {of}, whose URL says it: redis[s]://user:password@host:port"
            );
            reader.problem(&section.path(key), what);
        }
    }
    let beside = login(reader, section, "");
    let url = url?;
    if LOGIN_KEYS.iter().all(|key| section.get(key).is_none()) {
        return Some(url);
    }
    if url.password.is_some() {
        let what = "has a password, and there is one beside it; leave one out";
        reader.problem(&section.path(of), what);
    }
    Some(RedisUrl { username: beside.username, password: beside.password, ..url })
}

/// Reads user, password and TLS flag from the keys that begin with `prefix`.
fn login(reader: &mut Reader<'_>, section: &Section<'_>, prefix: &str) -> RedisUrl {
    let mut url = RedisUrl::local(0);
    let [username, password, password_file, tls] =
        ["username", "password", "password_file", "tls"].map(|key| prefix.to_owned() + key);
    let (mut user, mut word, mut file) = (None::<Secret>, None::<Secret>, None::<PathBuf>);
    reader.read(section, &username, &mut user);
    reader.read(section, &password, &mut word);
    reader.read(section, &password_file, &mut file);
    reader.read(section, &tls, &mut url.tls);
    let [has_password, has_file] =
        [&password, &password_file].map(|key| section.get(key).is_some());
    if section.get(&username).is_some() && !has_password && !has_file {
        let what = format!("a user without a password; give {password} or {password_file}");
        reader.problem(&section.path(&username), what);
    }
    if has_password && has_file {
        let what = format!("there is {password} too; leave one out");
        reader.problem(&section.path(&password_file), what);
    }
    url.username = user.map(|Secret(user)| user).filter(|user| !user.is_empty());
    url.password = word.map(|Secret(word)| Password::Written(word));
    if let Some(file) = file {
        let password = Password::File(file);
        if let Err(error) = password.get() {
            reader.problem(&section.path(&password_file), error.to_string());
        }
        url.password = Some(password);
    }
    url
}

#[cfg(test)]
#[path = "data_tests.rs"]
mod tests;
