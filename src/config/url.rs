//! The URL of one Redis: `redis://[user:password@]host:port[/db]` or `unix:///path[?db=n]`.

use std::path::PathBuf;

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
    /// User for AUTH; none means the default user.
    pub username: Option<String>,
    /// Password for AUTH; none means no AUTH is sent.
    pub password: Option<String>,
    /// Database for SELECT.
    pub db: u32,
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
