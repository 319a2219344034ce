//! The configuration: one YAML file to one checked [`Config`].
//!
//! Knows nothing of the rest of Lockgate: it only says what was asked for.
//!
//! - `reader`: values out of parsed YAML, everything wrong with them at once.
//! - `check`: what each value alone does not tell: contradictions.
//! - `duplicates`: a key that stands twice.
//! - `locate`: on which line something stands.
//! - `guards`: which writes need which lock; `pattern`, `template`: of which keys,
//!   and which lock.
//! - `units`, `url`: how durations, sizes and Redis URLs are written.
//! - `tls`: which certificates and keys, and whether they can be used.

use std::{
    fs::File,
    io::Read as _,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    time::Duration,
};

mod check;
mod duplicates;
mod error;
mod guards;
mod locate;
mod pattern;
mod reader;
mod template;
pub(crate) mod tls;
mod units;
mod url;

pub(crate) use check::SHARED_WITH_DATA;
pub use error::{ConfigErrors, Problem};
pub use guards::{Flush, GuardRule, GuardsConfig, Policy};
pub use pattern::Pattern;
pub use reader::Environment;
pub use template::Template;
pub use tls::{AuthClients, ClientTls, ServerTls, TlsProblem};
pub use url::{Endpoint, RedisUrl};

use reader::Reader;

/// The keys of a listener that is more than an address.
const LISTENER_KEYS: &[&str] = &["address", "tls", "proxy_protocol"];

/// The values of `log.level`: how severe a line can be, from the most severe on; with the
/// last, none is written.
pub const LOG_LEVELS: [&str; 6] = ["error", "warn", "info", "debug", "trace", "off"];
/// How a deployment gets other lock nodes, or another prefix.
pub const OTHER_NODES: &str = "For other lock nodes or another prefix: stop all proxies, wait for \
    the longest TTL, DEL lockgate:deployment lockgate:node on all nodes, lockgate init with the \
    new file, start all proxies with it";

/// Keys of the design that this version refuses, wherever they stand.
const PLANNED: &[&str] = &["adopt"];

/// The longest file that is read, in bytes.
const LONGEST_FILE: usize = 1024 * 1024;
/// How deep `[` and `{` may be nested in it.
const DEEPEST: usize = 64;

/// Everything that can be configured, checked and with its defaults filled in.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// `listen`: where clients are accepted.
    pub listen: Vec<Listener>,
    /// `allow_open`: `listen` may leave loopback though the data node asks for no password.
    pub allow_open: bool,
    /// `admin`: address of `/metrics`, `/healthz` and `/readyz`; none with `off`.
    pub admin: Option<SocketAddr>,
    /// `data`: the Redis to which every forwarded command goes.
    pub data: RedisUrl,
    /// `send_proxy_protocol`: connections to it begin with a PROXY header.
    pub send_proxy_protocol: bool,
    /// `tls`: how a data node at `rediss://` is trusted.
    pub tls: ClientTls,
    /// `connect_timeout`: how long connecting to the data node may take.
    pub connect_timeout: Duration,
    /// `tcp_keepalive`: idle time before a peer is probed, on both sides.
    pub tcp_keepalive: Duration,
    /// `maxclients`: connections accepted at the same time.
    pub maxclients: usize,
    /// `max_clients_per_address`: of them, from one address; 0 for no limit.
    pub max_clients_per_address: usize,
    /// `max_connect_rate`: connections accepted from one address in a second; 0
    /// for no limit.
    pub max_connect_rate: usize,
    /// `first_byte_timeout`: how long a new client may say nothing; none with `off`.
    pub first_byte_timeout: Option<Duration>,
    /// `io_threads`: threads that serve clients; none with `auto`: one for each core.
    pub io_threads: Option<usize>,
    /// `barrier_buffer`: bytes of replies held for a client that does not read
    /// while one of its own lock commands is under way.
    pub barrier_buffer: usize,
    /// `shutdown_delay`: how long clients are still let in after SIGTERM, while /readyz
    /// says that they should not come.
    pub shutdown_delay: Duration,
    /// `shutdown_grace`: how long commands in flight may take after that.
    pub shutdown_grace: Duration,
    /// `upgrade_socket`: where a process that takes over asks for the listening
    /// sockets; none with `off`.
    pub upgrade_socket: Option<SocketPath>,
    /// `upgrade_grace`: how long connections may stay with a process whose listening
    /// sockets another has taken over; none with `off`: as long as they like.
    pub upgrade_grace: Option<Duration>,
    /// `log`: what is written, and how.
    pub log: LogConfig,
    /// `locks`: the lock nodes and the limits of locks.
    pub locks: LocksConfig,
    /// `guards`: which writes need which lock.
    pub guards: GuardsConfig,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            listen: vec![Listener::plain(SocketAddr::from((Ipv4Addr::LOCALHOST, 6380)))],
            allow_open: false,
            admin: Some(SocketAddr::from((Ipv4Addr::LOCALHOST, 9380))),
            data: RedisUrl::local(6379),
            send_proxy_protocol: false,
            tls: ClientTls::default(),
            connect_timeout: Duration::from_secs(5),
            tcp_keepalive: Duration::from_secs(60),
            maxclients: 10_000,
            max_clients_per_address: 0,
            max_connect_rate: 0,
            first_byte_timeout: None,
            io_threads: None,
            barrier_buffer: 1024 * 1024,
            shutdown_delay: Duration::ZERO,
            shutdown_grace: Duration::from_secs(10),
            upgrade_socket: None,
            upgrade_grace: Some(Duration::from_secs(60 * 60)),
            log: LogConfig::default(),
            locks: LocksConfig::default(),
            guards: GuardsConfig::default(),
        }
    }
}

/// Where a Unix socket is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SocketPath(pub PathBuf);

/// One address on which clients are accepted, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listener {
    /// `address`, or the whole entry.
    pub address: SocketAddr,
    /// `tls`: none means plain TCP.
    pub tls: Option<ServerTls>,
    /// `proxy_protocol`: a balancer connects here, and tells whose connection it is.
    pub proxy_protocol: bool,
}

impl Listener {
    /// Without TLS, for clients that connect themselves.
    pub fn plain(address: SocketAddr) -> Listener {
        Listener { address, tls: None, proxy_protocol: false }
    }
}

impl Default for LocksConfig {
    fn default() -> LocksConfig {
        LocksConfig {
            nodes: vec![RedisUrl::local(6379)],
            nodes_left_out: true,
            tls: ClientTls::default(),
            prefix: "lock:".into(),
            default_ttl: Duration::from_secs(10),
            max_ttl: Duration::from_secs(60),
            node_timeout: Duration::from_millis(50),
            node_silence: Duration::from_secs(2),
            node_queue: 4096,
            drift_factor: 0.01,
            fence_ttl: Duration::from_secs(7 * 24 * 60 * 60),
            max_key: 4 * 1024,
            max_token: 1024,
            authorize_cache: Duration::from_secs(3),
            max_wait: Duration::from_secs(60),
            max_waiters: 100,
            max_handovers: 16,
            max_hold: None,
            on_lost: OnLost::Error,
            on_disconnect: None,
            quarantine: true,
            allow_shared_instance: false,
        }
    }
}

impl LogConfig {
    /// The keys under `log`.
    pub(crate) const KEYS: &[&str] = &["level", "format"];
}

impl LocksConfig {
    /// The keys under `locks`.
    pub(crate) const KEYS: &[&str] = &[
        "nodes",
        "tls",
        "prefix",
        "default_ttl",
        "max_ttl",
        "node_timeout",
        "node_silence",
        "node_queue",
        "drift_factor",
        "fence_ttl",
        "max_key",
        "max_token",
        "authorize_cache",
        "max_wait",
        "max_waiters",
        "max_handovers",
        "max_hold",
        "on_lost",
        "on_disconnect",
        "quarantine",
        "allow_shared_instance",
    ];
}

impl Config {
    /// The keys at the top of the file.
    pub(crate) const KEYS: &[&str] = &[
        "listen",
        "allow_open",
        "admin",
        "data",
        "send_proxy_protocol",
        "tls",
        "connect_timeout",
        "tcp_keepalive",
        "maxclients",
        "max_clients_per_address",
        "max_connect_rate",
        "first_byte_timeout",
        "io_threads",
        "barrier_buffer",
        "shutdown_delay",
        "shutdown_grace",
        "upgrade_socket",
        "upgrade_grace",
        "log",
        "locks",
        "guards",
    ];

    /// Reads the file at `path`, with `${NAME}` from the process's environment.
    ///
    /// # Errors
    /// All that is wrong with it; that it cannot be read is line 1.
    pub fn load(path: &Path) -> Result<Config, ConfigErrors> {
        let file = path.display().to_string();
        let mut text = String::new();
        // One byte more tells that it is too long.
        let reading = File::open(path)
            .and_then(|file| file.take(LONGEST_FILE as u64 + 1).read_to_string(&mut text));
        match reading.map(|_| text) {
            Ok(text) => Config::parse(&text, &file, &|name| std::env::var(name).ok()),
            Err(error) => Err(ConfigErrors::one(&file, 1, String::new(), error.to_string())),
        }
    }

    /// Reads a text. What it leaves out has its default.
    ///
    /// # Errors
    /// All that is wrong with it.
    pub fn parse(
        text: &str,
        file: &str,
        environment: Environment<'_>,
    ) -> Result<Config, ConfigErrors> {
        // Some editors begin UTF-8 with a mark, which the YAML crate does not
        // take before everything that may come first.
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        // What the YAML crate takes for deeper ones grows with the square of the depth.
        let refused = if text.len() > LONGEST_FILE {
            Some((1, format!("is longer than {LONGEST_FILE} bytes")))
        } else {
            let line = locate::too_deep(text, DEEPEST);
            line.map(|line| (line, format!("brackets are nested deeper than {DEEPEST}")))
        };
        if let Some((line, what)) = refused {
            return Err(ConfigErrors::one(file, line, String::new(), what));
        }
        if let Some((line, path)) = duplicates::first(text) {
            let what = "is there twice in the same place; keep one".to_owned();
            return Err(ConfigErrors::one(file, line, locate::name(&path), what));
        }
        let value = serde_yaml::from_str(text).map_err(|error| {
            let line = error.location().map_or(1, |location| location.line());
            // Where the last line has no end, the YAML crate's end of the file is on the next.
            let line = line.min(locate::lines(text));
            let mut what = error.to_string();
            if locate::indented_by_tab(text, line) {
                what += "; this line is indented with a tab: use spaces";
            }
            ConfigErrors::one(file, line, String::new(), what)
        })?;
        let mut config = Config::default();
        let mut reader = Reader::new(text, file, environment);
        let top = reader.top(&value, Config::KEYS);
        reader.read(&top, "listen", &mut config.listen);
        reader.read(&top, "allow_open", &mut config.allow_open);
        reader.read(&top, "admin", &mut config.admin);
        reader.read(&top, "data", &mut config.data);
        reader.read(&top, "send_proxy_protocol", &mut config.send_proxy_protocol);
        let tls = reader.section(&top, "tls", tls::CLIENT_KEYS);
        reader.client_tls(&tls, &mut config.tls);
        reader.read(&top, "connect_timeout", &mut config.connect_timeout);
        reader.read(&top, "tcp_keepalive", &mut config.tcp_keepalive);
        reader.read(&top, "maxclients", &mut config.maxclients);
        reader.read(&top, "max_clients_per_address", &mut config.max_clients_per_address);
        reader.read(&top, "max_connect_rate", &mut config.max_connect_rate);
        reader.read(&top, "first_byte_timeout", &mut config.first_byte_timeout);
        reader.read(&top, "io_threads", &mut config.io_threads);
        reader.read(&top, "barrier_buffer", &mut config.barrier_buffer);
        reader.read(&top, "shutdown_delay", &mut config.shutdown_delay);
        reader.read(&top, "shutdown_grace", &mut config.shutdown_grace);
        reader.read(&top, "upgrade_socket", &mut config.upgrade_socket);
        reader.read(&top, "upgrade_grace", &mut config.upgrade_grace);
        let log = reader.section(&top, "log", LogConfig::KEYS);
        reader.read(&log, "level", &mut config.log.level);
        reader.read(&log, "format", &mut config.log.format);
        let section = reader.section(&top, "locks", LocksConfig::KEYS);
        let locks = &mut config.locks;
        reader.read(&section, "nodes", &mut locks.nodes);
        locks.nodes_left_out = section.get("nodes").is_none();
        let locks_tls = reader.section(&section, "tls", tls::CLIENT_KEYS);
        if locks_tls.is_there() {
            reader.client_tls(&locks_tls, &mut locks.tls);
        } else {
            locks.tls = config.tls.clone();
        }
        reader.read(&section, "prefix", &mut locks.prefix);
        reader.read(&section, "default_ttl", &mut locks.default_ttl);
        reader.read(&section, "max_ttl", &mut locks.max_ttl);
        reader.read(&section, "node_timeout", &mut locks.node_timeout);
        reader.read(&section, "node_silence", &mut locks.node_silence);
        reader.read(&section, "node_queue", &mut locks.node_queue);
        reader.read(&section, "drift_factor", &mut locks.drift_factor);
        reader.read(&section, "fence_ttl", &mut locks.fence_ttl);
        reader.read(&section, "max_key", &mut locks.max_key);
        reader.read(&section, "max_token", &mut locks.max_token);
        reader.read(&section, "authorize_cache", &mut locks.authorize_cache);
        reader.read(&section, "max_wait", &mut locks.max_wait);
        reader.read(&section, "max_waiters", &mut locks.max_waiters);
        reader.read(&section, "max_handovers", &mut locks.max_handovers);
        reader.read(&section, "max_hold", &mut locks.max_hold);
        reader.read(&section, "on_lost", &mut locks.on_lost);
        reader.read(&section, "on_disconnect", &mut locks.on_disconnect);
        reader.read(&section, "quarantine", &mut locks.quarantine);
        reader.read(&section, "allow_shared_instance", &mut locks.allow_shared_instance);
        check::top(&mut reader, &top, &config);
        check::log(&mut reader, &log, &config);
        check::locks(&mut reader, &top, &section, &config);
        config.guards = guards::read(&mut reader, &top, &section, &config.locks.prefix);
        check::tls(&mut reader, (&top, &tls), (&section, &locks_tls), &config);
        reader.finish()?;
        Ok(config)
    }
}

/// The `log:` section.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogConfig {
    /// `level`: least severe level that is written; LOCKGATE_LOG goes before it.
    pub level: String,
    /// `format`: `auto`, `human` or `json`.
    pub format: String,
}

impl Default for LogConfig {
    fn default() -> LogConfig {
        LogConfig { level: "info".into(), format: "auto".into() }
    }
}

/// The `locks:` section.
#[derive(Debug, Clone, PartialEq)]
pub struct LocksConfig {
    /// `nodes`: the independent Redis masters that vote. 1, 3, 5, 7, …
    pub nodes: Vec<RedisUrl>,
    /// The file has no `nodes`.
    pub nodes_left_out: bool,
    /// `tls`: how nodes at `rediss://` are trusted; as the data node unless it is given.
    pub tls: ClientTls,
    /// `prefix`: put before a client's key to make the key on the nodes.
    pub prefix: String,
    /// `default_ttl`: TTL where a command may leave it out.
    pub default_ttl: Duration,
    /// `max_ttl`: the longest TTL a client may ask for.
    pub max_ttl: Duration,
    /// `node_timeout`: how long one node may take to vote.
    pub node_timeout: Duration,
    /// `node_silence`: a connection with requests in flight on which nothing
    /// arrives for this long is dropped.
    pub node_silence: Duration,
    /// `node_queue`: operations under way on one node before an acquire is refused.
    pub node_queue: usize,
    /// `drift_factor`: the share of the TTL set aside for clock drift.
    pub drift_factor: f64,
    /// `fence_ttl`: how long a node remembers a lock's last fence.
    pub fence_ttl: Duration,
    /// `max_key`: longest key of a lock, in bytes, without the prefix.
    pub max_key: usize,
    /// `max_token`: longest token, in bytes.
    pub max_token: usize,
    /// `authorize_cache`: how long a connection's permission for a key is remembered.
    pub authorize_cache: Duration,
    /// `max_wait`: the longest WAIT that a client may ask for.
    pub max_wait: Duration,
    /// `max_waiters`: clients in the queue of one lock.
    pub max_waiters: usize,
    /// `max_handovers`: how often in a row a lock may pass from client to client
    /// of this proxy before other proxies have their turn.
    pub max_handovers: usize,
    /// `max_hold`: the longest that a session lock may be held; none with `off`.
    pub max_hold: Option<Duration>,
    /// `on_lost`: what becomes of a connection whose session lock is lost.
    pub on_lost: OnLost,
    /// `on_disconnect`: what becomes of session locks whose client hangs up; none: by
    /// listener, [`OnDisconnect::Expire`] behind a balancer.
    pub on_disconnect: Option<OnDisconnect>,
    /// `quarantine`: a node that was restarted votes only once all that it may have
    /// forgotten has run out.
    pub quarantine: bool,
    /// `allow_shared_instance`: several nodes may be one instance.
    pub allow_shared_instance: bool,
}

/// What becomes of a connection whose session lock is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnLost {
    /// Its next command is answered `-LOCKLOST` and goes no further, nor does what is
    /// already behind it. In RESP3 a push tells of it too.
    Error,
    /// It is closed.
    Close,
    /// It is told by a push alone in RESP3, otherwise as by [`OnLost::Error`].
    Push,
    /// It is told by a push in RESP3, otherwise not.
    Ignore,
}

/// What becomes of session locks whose client hangs up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnDisconnect {
    /// They are released at once.
    Release,
    /// They are renewed no more and run out.
    Expire,
}

#[cfg(test)]
mod tests;
