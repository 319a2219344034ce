//! Every key, in the order of the annotated file: type, default, checks, and whether it can change in a
//! running proxy.
//!
//! `live` keys are read when a connection begins, or are numbers that can be replaced. From `fixed` keys
//! something was made: sockets, connections to Redis, threads, locks.

use std::{
    net::{Ipv4Addr, SocketAddr},
    time::Duration,
};

use super::{
    AdminConfig, AdoptConfig, ClientTls, DataConfig, GuardsConfig, Listener, LockNode, LockNotify,
    OnDisconnect, OnLost, RedisUrl, SocketPath,
    check::{
        at_least, below_half, few_patterns, if_given, keepalive, known_format, known_level,
        known_trail, longer_than_zero, not_reserved, short_path, string, threads,
    },
    data::without_database,
    keys::keys,
    permits::{PermitRule, few_permits},
    reader::{Fill, Reader, Section},
};

const fn millis(count: u64) -> Duration {
    Duration::from_millis(count)
}

const fn secs(count: u64) -> Duration {
    Duration::from_secs(count)
}

const HOUR: u64 = 60 * 60;
const KB: usize = 1024;

keys! {
    /// The whole configuration, checked and with its defaults filled in.
    #[derive(Debug, Clone, PartialEq)]
    pub struct Config at "" {
        /// The addresses on which clients are accepted.
        fixed listen: Vec<Listener> =
            vec![Listener::plain(SocketAddr::from((Ipv4Addr::LOCALHOST, 6380)))];
        /// Whether `listen` may go beyond loopback although the data node asks for no password.
        fixed allow_open: bool = false;
        /// The address of the status page, `/metrics`, `/healthz` and `/readyz`, the token that allows
        /// changes there, and the addresses of the other proxies' pages.
        fixed admin: AdminConfig = AdminConfig::default();
        /// The Redis to which every forwarded command goes, or how it is found.
        fixed data: DataConfig = DataConfig::Fixed(RedisUrl::local(6379)) => without_database;
        /// Whether clients share connections to the data node.
        fixed share: bool = false;
        /// Whether connections to the data node begin with a PROXY header.
        fixed send_proxy_protocol: bool = false;
        /// How a data node at `rediss://` is trusted. Changed files are read again.
        fixed tls: ClientTls = ClientTls::default();
        /// How long connecting to the data node may take.
        live connect_timeout: Duration = secs(5) => longer_than_zero;
        /// Idle time before a connection is probed, on both sides.
        live tcp_keepalive: Duration = secs(60)
            => keepalive, at_least(secs(1), "must be at least 1s");
        /// Connections accepted at the same time.
        live maxclients: usize = 10_000 => at_least(1, "0 lets nobody in; give at least 1");
        /// Connections from one address at the same time; 0 for no limit.
        live max_clients_per_address: usize = 0;
        /// Connections accepted from one address in a second; 0 for no limit.
        live max_connect_rate: usize = 0;
        /// How long a new client may send nothing; none with `off`.
        live first_byte_timeout: Option<Duration> = None => if_given(longer_than_zero);
        /// Threads that serve clients; none with `auto`, which is one for each core.
        fixed io_threads: Option<usize> = None => if_given(threads);
        /// Bytes of replies held for a client that does not read while one of its commands waits for them. All
        /// clients together may have twice as much beyond 1 MB each.
        live barrier_buffer: usize = 64 * 1024 * KB => at_least(KB, "must be at least 1kb");
        /// How long clients are still accepted after SIGTERM, while /readyz already says that none should come.
        live shutdown_delay: Duration = Duration::ZERO;
        /// How long commands in flight may take after `shutdown_delay`.
        live shutdown_grace: Duration = secs(10);
        /// The socket at which a process that takes over asks for the listening sockets; none with `off`.
        fixed(crate) upgrade_socket: Option<SocketPath> = None => if_given(short_path);
        /// How long connections may stay with a replaced process; none with `off`, which is without limit.
        live upgrade_grace: Option<Duration> = Some(secs(HOUR));
        /// The log: how much is written, and in which format.
        section log: LogConfig = LogConfig::default();
        /// What /metrics has in addition.
        section(crate) metrics: MetricsConfig = MetricsConfig::default();
        /// The lock nodes and the limits of locks.
        section locks: LocksConfig = LocksConfig::default();
        /// The guards: which writes need which lock. All proxies before one data node need the
        /// same ones.
        fixed(crate) guards: GuardsConfig = GuardsConfig::default();
        /// The keys on which lock idioms of existing libraries are recognised.
        fixed(crate) adopt: AdoptConfig = AdoptConfig::default();
    }
}

keys! {
    /// The `log:` section.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct LogConfig at "log." {
        /// Least severe level that is written; LOCKGATE_LOG overrides it.
        live level: String = "info".into() => known_level;
        /// `auto`, `human` or `json`.
        fixed format: String = "auto".into() => known_format;
        /// `off`, or `all`: a line for each grant of a lock and its end.
        live locks: String = "off".into() => known_trail;
    }
}

keys! {
    /// The `metrics:` section.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub(crate) struct MetricsConfig at "metrics." {
        /// Patterns of locks' keys; each has its own metrics of waiting and holding.
        fixed keys: Vec<String> = Vec::new() => few_patterns;
    }
}

keys! {
    /// The `locks:` section.
    #[derive(Debug, Clone, PartialEq)]
    pub struct LocksConfig at "locks." {
        /// The independent Redis masters that vote: 1, 3, 5, 7, …
        fixed nodes: Vec<LockNode> = vec![RedisUrl::local(6379).into()];
        /// The lock nodes that are to replace `nodes`, or have already. Empty: `nodes` stay.
        live next_nodes: Vec<LockNode> = Vec::new();
        /// How nodes at `rediss://` are trusted; if left out, like the data node.
        fixed tls: ClientTls = ClientTls::default();
        /// The prefix that turns a client's key into a key on the lock nodes.
        fixed prefix: String = "lock:".into() => not_reserved;
        /// The TTL where a command may leave it out. Session locks have it too, and are renewed every third of
        /// it: with less than 100 ms they would depend on every machine being prompt.
        live default_ttl: Duration = secs(10) => at_least(millis(100), "must be at least 100ms");
        /// The longest TTL that a client may ask for. Other proxies and quarantined nodes rely on it.
        fixed max_ttl: Duration = secs(60) => at_least(millis(10), "must be at least 10ms");
        /// How long one node may take to vote.
        fixed node_timeout: Duration = millis(50) => longer_than_zero;
        /// How long a connection with requests in flight may receive nothing before it is dropped. Also the
        /// connection's keepalive.
        fixed node_silence: Duration = secs(2) => keepalive;
        /// Operations in flight on one node before an acquire is refused.
        fixed node_queue: usize = 4096 => at_least(1, "0 refuses every lock; give at least 1");
        /// The share of the TTL set aside for clock drift.
        fixed drift_factor: f64 = 0.01 => below_half;
        /// How long a node remembers a lock's last fence.
        fixed fence_ttl: Duration = secs(7 * 24 * HOUR);
        /// Longest key of a lock, in bytes, without the prefix.
        live max_key: usize = 4 * KB
            => at_least(1, "0 refuses every key; give at least 1"), string;
        /// Longest token, in bytes.
        live max_token: usize = KB => string,
            at_least(32, "shorter than the tokens that Lockgate makes itself (32 bytes)");
        /// How long a connection's permission for a key is remembered.
        live authorize_cache: Duration = secs(3);
        /// The longest WAIT that a client may ask for.
        live max_wait: Duration = secs(60) => longer_than_zero;
        /// Clients in the queue of one lock.
        live max_waiters: usize = 100 => at_least(1, "0 lets nobody wait; give at least 1");
        /// Whether clients may share locks, by LOCK SHARED.
        live shared: bool = false;
        /// How many permits families of locks have, for LOCK PERMITS. Others have as many as their clients say.
        live permits: Vec<PermitRule> = Vec::new() => few_permits;
        /// How often in a row a lock may pass between clients of this proxy before other proxies get a turn.
        live max_handovers: usize = 16;
        /// How a proxy learns of releases through other proxies.
        fixed notify: LockNotify = LockNotify::PubSub;
        /// The longest that a session lock may be held; none with `off`.
        fixed max_hold: Option<Duration> = None;
        /// Treatment of a connection whose session lock is lost.
        live on_lost: OnLost = OnLost::Error;
        /// Treatment of session locks whose client hangs up. If left out: `expire` at a listener behind a
        /// balancer, `release` at others.
        live on_disconnect: Option<OnDisconnect> = None;
        /// Whether a restarted node votes only once all locks that it may have forgotten have run out.
        fixed quarantine: bool = true;
        /// Whether several nodes may be one instance.
        fixed allow_shared_instance: bool = false;
    }
    beside {
        /// Whether the file leaves out `nodes`.
        nodes_left_out: bool = true;
    }
}

impl LocksConfig {
    /// How many lock nodes both lists have together.
    pub(crate) fn listed(&self) -> usize {
        self.nodes.len() + self.next_nodes.len()
    }

    /// Both lists of lock nodes, each with its key.
    pub(crate) fn lists(&self) -> [(&'static str, &[LockNode]); 2] {
        [("nodes", &self.nodes), ("next_nodes", &self.next_nodes)]
    }

    /// The configuration with `next_nodes` in the place of `nodes`. Returns `None` if there are none.
    pub(crate) fn next(&self) -> Option<LocksConfig> {
        let nodes = Some(self.next_nodes.clone()).filter(|nodes| !nodes.is_empty())?;
        Some(LocksConfig { nodes, next_nodes: Vec::new(), ..self.clone() })
    }
}
