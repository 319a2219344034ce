//! `lockgate dev`: a whole deployment on this machine, for trying things out.
//!
//! The data node and the lock nodes, and with `--sentinel` the Sentinels, are real `redis-server`
//! children in temporary directories. The servers end with this process, however it ends.

use std::{
    io::{self, ErrorKind, Write, stdout},
    net::{Ipv4Addr, SocketAddr, TcpListener},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use tokio::{
    net::TcpStream,
    runtime::Builder,
    signal::unix::{SignalKind, signal},
    time::sleep,
};
use tokio_util::sync::CancellationToken;

use crate::{
    config::{Config, DataConfig, Listener, RedisUrl, SentinelMaster},
    lock::initialise,
    server::{self, Control, logging},
    tools::{redis_server::RedisServer, sentinel_server::SentinelServer},
};

/// What all servers are started with.
const EVICT_NOTHING: &[&str] = &["--maxmemory-policy", "noeviction"];
/// With `--sentinel`: the name of the master, and how many replicas and Sentinels it has.
const MASTER: &str = "mymaster";
const REPLICAS: usize = 2;
const SENTINELS: usize = 3;
/// How long the replicas may take to find their master.
const START_LIMIT: Duration = Duration::from_secs(20);
/// With `--sentinel`: how long clients wait for a master, longer than a failover takes.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);

/// What can be chosen.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// Where the proxy listens on 127.0.0.1.
    #[arg(long, default_value_t = 6380)]
    pub port: u16,
    /// Where /metrics, /healthz and /readyz are served on 127.0.0.1.
    #[arg(long, default_value_t = 9380)]
    pub admin_port: u16,
    /// Lock nodes: 1, 3, 5, 7.
    #[arg(long, default_value_t = 5)]
    pub nodes: usize,
    /// The data node is a master with two replicas and three Sentinels, which is followed.
    #[arg(long)]
    pub sentinel: bool,
}

/// The servers of the data node.
struct DataServers {
    /// The master at first.
    master: RedisServer,
    replicas: Vec<RedisServer>,
    sentinels: Vec<SentinelServer>,
}

/// Runs until SIGINT or SIGTERM.
///
/// Must be called on the main thread, before there is a runtime: the kernel ends the children
/// with the thread that started them.
///
/// # Errors
/// If `redis-server` is missing, a port is taken, or the number of nodes is even.
pub fn run(options: &Options) -> anyhow::Result<()> {
    if options.nodes.is_multiple_of(2) {
        bail!("{} lock nodes have no better majority than one less; give 1, 3, 5", options.nodes);
    }
    logging::start("warn", "auto")?;
    let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, options.port));
    let admin = SocketAddr::from((Ipv4Addr::LOCALHOST, options.admin_port));
    for (addr, option) in [(listen, "--port"), (admin, "--admin-port")] {
        match TcpListener::bind(addr) {
            Err(error) if error.kind() == ErrorKind::AddrInUse => {
                bail!("{addr} is in use; choose another port with {option}")
            }
            other => drop(other.with_context(|| format!("cannot listen on {addr}"))?),
        }
    }
    let start = || RedisServer::start(EVICT_NOTHING);
    let data = DataServers::start(options)?;
    let nodes = (0..options.nodes).map(|_| start()).collect::<Result<Vec<_>, _>>()?;

    let mut config = Config {
        listen: vec![Listener::plain(listen)],
        admin: Some(admin),
        data: data.config(),
        ..Config::default()
    };
    if options.sentinel {
        config.connect_timeout = CONNECT_TIMEOUT;
    }
    config.locks.nodes = nodes.iter().map(|node| RedisUrl::local(node.port()).into()).collect();

    let runtime = Builder::new_multi_thread().enable_all().build()?;
    let result = runtime.block_on(async {
        // The nodes are new: nobody holds a lock there.
        initialise(&config.locks).await?;
        let shutdown = CancellationToken::new();
        let control = Control { shutdown: shutdown.clone(), ..Control::default() };
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut proxy = tokio::spawn(server::run(config, control));
        tokio::select! {
            ended = &mut proxy => return ended?,
            () = accepts(listen) => {
                // A welcome that cannot be written does not stop the proxy.
                let _ = writeln!(stdout(), "{}", welcome(options, &data, &nodes));
            }
        }
        tokio::select! {
            ended = &mut proxy => return ended?,
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        shutdown.cancel();
        proxy.await?
    });
    runtime.shutdown_background();
    result
}

impl DataServers {
    fn start(options: &Options) -> io::Result<DataServers> {
        let master = RedisServer::start(EVICT_NOTHING)?;
        let (mut replicas, mut sentinels) = (Vec::new(), Vec::new());
        if options.sentinel {
            let port = master.port().to_string();
            let of_master = [EVICT_NOTHING, &["--replicaof", "127.0.0.1", &port]].concat();
            let watch = format!(
                "sentinel monitor {MASTER} 127.0.0.1 {port} 2\n\
                 sentinel down-after-milliseconds {MASTER} 2000\n\
                 sentinel failover-timeout {MASTER} 10000"
            );
            for _ in 0..REPLICAS {
                replicas.push(RedisServer::start(&of_master)?);
            }
            // Sentinels ask the master only now and then who its replicas are.
            let deadline = Instant::now() + START_LIMIT;
            while master.replicas() != Some(REPLICAS) {
                if Instant::now() > deadline {
                    return Err(io::Error::other("the replicas do not find their master"));
                }
                thread::sleep(Duration::from_millis(20));
            }
            for _ in 0..SENTINELS {
                sentinels.push(SentinelServer::start(&watch)?);
            }
        }
        Ok(DataServers { master, replicas, sentinels })
    }

    fn config(&self) -> DataConfig {
        if self.sentinels.is_empty() {
            return DataConfig::Fixed(RedisUrl::local(self.master.port()));
        }
        let ports = self.sentinels.iter().map(SentinelServer::port);
        DataConfig::Sentinels(SentinelMaster::local(ports, MASTER))
    }

    /// A line for each server.
    fn welcome(&self) -> String {
        if self.sentinels.is_empty() {
            return line("data node", self.master.addr(), self.master.pid());
        }
        let mut text = line("master", self.master.addr(), self.master.pid());
        for replica in &self.replicas {
            text += &line("replica", replica.addr(), replica.pid());
        }
        for sentinel in &self.sentinels {
            text += &line("Sentinel", sentinel.addr(), sentinel.pid());
        }
        text
    }
}

fn line(what: &str, addr: SocketAddr, pid: u32) -> String {
    format!("  {what:<11} {addr}  (pid {pid})\n")
}

/// Waits until a connection to `addr` succeeds.
async fn accepts(addr: SocketAddr) {
    while TcpStream::connect(addr).await.is_err() {
        sleep(Duration::from_millis(10)).await;
    }
}

fn welcome(options: &Options, data: &DataServers, nodes: &[RedisServer]) -> String {
    let port = options.port;
    let mut text = format!(
        "\nLockgate is running. Ctrl-C ends it and everything below.\n\n  \
         proxy       127.0.0.1:{port}\n  \
         admin       http://127.0.0.1:{}/metrics  /healthz  /readyz\n",
        options.admin_port,
    );
    text += &data.welcome();
    for (index, node) in nodes.iter().enumerate() {
        text += &line(&format!("lock node {}", index + 1), node.addr(), node.pid());
    }
    if options.sentinel {
        text += &format!(
            "\nKill the master and watch (as if nothing had happened, some 5 s later):\n\n  \
             kill -9 {}\n  \
             redis-cli -p {port} ROLE\n",
            data.master.pid()
        );
    }
    text += &format!(
        "\nTry, in another terminal:\n\n  \
         redis-cli -p {port} LOCK job PX 30000\n  \
         redis-cli -p {port} SET x 1\n  \
         redis-cli -p {port} UNLOCK job TOKEN     (the token that LOCK answered)\n"
    );
    text
}
