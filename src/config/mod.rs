//! The configuration: makes one checked [`Config`] from one YAML file.
//!
//! It knows nothing of the rest of Lockgate.
//!
//! - `settings`: the table of all keys; `keys`: the code generated from it.
//! - `reader`: reads values from parsed YAML and collects all problems.
//! - `schema`: the same table as a JSON Schema, for editors.
//! - `check`: checks single values, and values against each other.
//! - `locate`: finds lines, and keys that are there twice.
//! - `guards`: which writes need which lock; `pattern`: their keys; `template`: the lock's key.
//! - `adopt`: which keys are locks of existing libraries; `adopt_options`: treatment of idioms that a quorum
//!   cannot carry out as they are; `adopt_scripts`: a deployment's own scripts.
//! - `permits`: how many permits families of locks have.
//! - `data`: the Redis to which commands go, or how it is found.
//! - `admin`: where the operators' pages are; `peer`: where those of another proxy are.
//! - `units`, `url`: how durations, sizes and Redis URLs are written.
//! - `password`: passwords, in the file or in files of their own.
//! - `tls_files`: certificates and keys, and whether they can be used; `certificate`: when they end.
//! - `file_modes`: files that every user of the machine may read or write.

use std::{
    fs::File,
    io::Read as _,
    net::SocketAddr,
    path::{Path, PathBuf},
};

mod admin;
mod adopt;
mod adopt_options;
mod adopt_scripts;
mod certificate;
mod check;
mod data;
mod error;
mod file_modes;
mod guards;
mod keys;
mod locate;
mod lock_node;
mod password;
mod pattern;
mod peer;
mod permits;
mod reader;
mod schema;
mod settings;
mod template;
pub(crate) mod tls_files;
mod units;
mod url;
mod weakened;

pub(crate) use admin::{AdminConfig, AdminHost, AdminToken};
pub(crate) use adopt::{AdoptConfig, AdoptMode, AdoptRule};
pub(crate) use adopt_options::{
    AdoptOptions, BlindPolicy, FlushPolicy, LongTtlPolicy, NoQuorumPolicy, NoTtlPolicy,
    UnknownPolicy,
};
pub(crate) use adopt_scripts::{AdoptScript, ScriptOp, ScriptUnit};
pub(crate) use certificate::now_in_seconds;
pub(crate) use certificate::{CertificateTimes, CertificateTrouble};
pub(crate) use check::{poor_count, shared_with_data};
pub(crate) use data::{Announce, ClusterConfig, DataConfig, SentinelMaster};
pub use error::ConfigErrors;
pub(crate) use error::Problem;
pub(crate) use guards::{Flush, GuardRule, GuardsConfig, Policy, WaitAt};
pub use lock_node::{LockCluster, LockNode};
pub use password::Password;
pub use pattern::Pattern;
pub(crate) use peer::PeerUrl;
pub(crate) use permits::MAX_PERMITS;
pub use permits::PermitRule;
pub(crate) use reader::Environment;
pub use schema::schema;
pub use settings::{Config, LocksConfig, LogConfig};
pub(crate) use template::Template;
pub(crate) use tls_files::{AuthClients, ClientTls, ServerTls, TlsProblem};
pub use units::duration;
pub(crate) use units::written;
pub use url::{Endpoint, RedisUrl};

use reader::Reader;

/// The keys of a listener that is written as a mapping.
const LISTENER_KEYS: &[&str] = &["address", "tls", "proxy_protocol", "share"];

/// The values of `log.level`, the most severe first. `off` writes nothing.
pub(crate) const LOG_LEVELS: [&str; 6] = ["error", "warn", "info", "debug", "trace", "off"];
/// The metric label of locks that no pattern of `metrics.keys` matches.
pub(crate) const OTHER_KEYS: &str = "other";
/// Advice to an operator: how a deployment gets other lock nodes or another prefix.
pub(crate) const OTHER_NODES: &str = "For other lock nodes: locks.next_nodes, and lockgate nodes (docs/changing-lock-nodes.md). \
    For another prefix, or from or to Sentinels or a cluster: stop all proxies, wait for the longest TTL, DEL lockgate:deployment lockgate:copied on all nodes, lockgate init with the \
    new file, start all proxies with it";

/// The longest file accepted, in bytes.
const LONGEST_FILE: usize = 1024 * 1024;
/// The deepest nesting of `[` and `{` in a file.
const DEEPEST: usize = 64;

/// The path of a Unix socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SocketPath(pub(crate) PathBuf);

/// An address on which clients are accepted, with its settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listener {
    /// `address`, or the whole entry.
    pub address: SocketAddr,
    /// `tls`; none means plain TCP.
    pub(crate) tls: Option<ServerTls>,
    /// `proxy_protocol`: whether a balancer connects here and names the client of each connection.
    pub proxy_protocol: bool,
    /// `share`: whether its clients share connections to the data node; none means as [`Config::share`] says.
    pub(crate) share: Option<bool>,
}

impl Listener {
    /// Makes a listener without TLS, for clients that connect directly.
    pub(crate) fn plain(address: SocketAddr) -> Listener {
        Listener { address, tls: None, proxy_protocol: false, share: None }
    }
}

impl Config {
    /// Whether clients of this listener share connections to the data node.
    pub(crate) fn shares(&self, listener: &Listener) -> bool {
        listener.share.unwrap_or(self.share)
    }

    /// Whether any clients share connections to the data node.
    pub(crate) fn shares_any(&self) -> bool {
        self.listen.iter().any(|listener| self.shares(listener))
    }

    /// Reads the file at `path`, with `${NAME}` from the process's environment.
    ///
    /// # Errors
    /// Everything that is wrong with the file. A file that cannot be read is reported without a line.
    pub fn load(path: &Path) -> Result<Config, ConfigErrors> {
        let file = path.display().to_string();
        let mut text = String::new();
        // Reading one byte more shows that the file is too long.
        let reading = File::open(path)
            .and_then(|file| file.take(LONGEST_FILE as u64 + 1).read_to_string(&mut text));
        match reading.map(|_| text) {
            Ok(text) => Config::parse(&text, &file, &|name| std::env::var(name).ok()),
            Err(error) => Err(ConfigErrors::unread(&file, error.to_string())),
        }
    }

    /// Reads a text. Keys that it leaves out have their defaults.
    ///
    /// # Errors
    /// Everything that is wrong with the text.
    pub fn parse(
        text: &str,
        file: &str,
        environment: Environment<'_>,
    ) -> Result<Config, ConfigErrors> {
        // Some editors begin a file with a byte order mark, which the YAML crate does not always accept.
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        // The YAML crate's time grows with the square of the nesting depth.
        let refused = if text.len() > LONGEST_FILE {
            Some((1, format!("is longer than {LONGEST_FILE} bytes")))
        } else {
            let line = locate::too_deep(text, DEEPEST);
            line.map(|line| (line, format!("brackets are nested deeper than {DEEPEST}")))
        };
        if let Some((line, what)) = refused {
            return Err(ConfigErrors::one(file, line, String::new(), what));
        }
        if let Some((line, path)) = locate::first_duplicate(text) {
            let what = "is there twice in the same place; keep one".to_owned();
            return Err(ConfigErrors::one(file, line, locate::name(&path), what));
        }
        let value = serde_yaml::from_str(text).map_err(|error| {
            let line = error.location().map_or(1, |location| location.line());
            // If the last line has no line end, the YAML crate puts the end of the file on the next line.
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
        config.read(&mut reader, &top);
        let locks = top.inside("locks");
        config.locks.nodes_left_out = locks.get("nodes").is_none();
        if !locks.inside("tls").is_there() {
            config.locks.tls = config.tls.clone();
        }
        check::all(&mut reader, &top, &config);
        let prefix = &config.locks.prefix;
        config.guards = guards::read(&mut reader, &top, (&locks, prefix), &config.data);
        config.adopt = adopt::read(&mut reader, &top, &config.guards.rules, config.locks.max_ttl);
        check::tls(&mut reader, &top, &config);
        check::cluster(&mut reader, &top, &config);
        reader.finish()?;
        Ok(config)
    }
}

/// Treatment of a connection whose session lock is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnLost {
    /// Answers the next command with `-LOCKLOST`, and forwards neither that command nor those already behind
    /// it. In RESP3 the client also gets a push.
    Error,
    /// Closes the connection.
    Close,
    /// In RESP3 sends only a push; in RESP2 acts as [`OnLost::Error`].
    Push,
    /// In RESP3 sends a push; in RESP2 does not report the loss.
    Ignore,
}

/// How a proxy learns of releases through other proxies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockNotify {
    /// By a message to all proxies with waiters.
    PubSub,
    /// By a stream entry for one proxy with waiters. Only where a Redis Cluster is the only lock node.
    Stream,
}

/// Treatment of session locks whose client hangs up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnDisconnect {
    /// Releases the locks at once.
    Release,
    /// Stops renewing the locks, so that they run out.
    Expire,
}

#[cfg(test)]
mod config_tests;
