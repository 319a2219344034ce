//! `lockgate dev`: a whole deployment on this machine, for trying things out.
//!
//! The data node, the Sentinels (`--sentinel`), the nodes of a cluster (`--cluster`) and the lock nodes are real
//! `redis-server` children in temporary directories. They end with this process, however it ends.

use std::{
    io::{ErrorKind, Write, stdout},
    net::{Ipv4Addr, SocketAddr, TcpListener},
    time::Duration,
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
    config::{self, AdminConfig, Config, Listener, RedisUrl},
    lock::initialise,
    server::{self, Control, logging},
    tools::{
        dev_data::{CLUSTER_NODES, DataServers, EVICT_NOTHING, line},
        dev_rules,
        redis_server::RedisServer,
    },
};

/// What can be chosen.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// Where the proxy listens on 127.0.0.1.
    #[arg(long, default_value_t = 6380)]
    pub port: u16,
    /// Where /metrics, /healthz and /readyz are served on 127.0.0.1.
    #[arg(long, default_value_t = 9380)]
    pub admin_port: u16,
    /// Lock nodes: 1, 3 (one may fail), 5 (two may) or 7 (three may). An even number bears no more failures than
    /// one less.
    #[arg(long, default_value_t = 5)]
    pub nodes: usize,
    /// The data node is a master with two replicas and three Sentinels, which is followed.
    #[arg(long)]
    pub sentinel: bool,
    /// The data is a Redis Cluster of six nodes; the proxy listens on six ports from --port on.
    #[arg(long, conflicts_with = "sentinel")]
    pub cluster: bool,
    /// Writes to keys like these need the lock of the same name, as 'account:*' (guards). May be
    /// repeated.
    #[arg(long, value_name = "KEYS")]
    pub guard: Vec<String>,
    /// Keys like these are locks of existing libraries, as 'lock:*', and are taken on the lock nodes
    /// (adopt, mode enforce). May be repeated.
    #[arg(long, value_name = "KEYS")]
    pub adopt: Vec<String>,
}

/// Runs until SIGINT or SIGTERM.
///
/// Must be called on the main thread, before there is a runtime: the kernel ends the children with the thread
/// that started them.
///
/// # Errors
/// If `redis-server` is missing, a port is taken, the number of nodes is even, or keys cannot be guarded or
/// adopted.
pub fn run(options: &Options) -> anyhow::Result<()> {
    if let Some(what) = config::poor_count(options.nodes) {
        bail!("--nodes: {what}");
    }
    let (guards, adopt) = dev_rules::read(&options.guard, &options.adopt)?;
    logging::start("warn", "auto")?;
    let count = if options.cluster { CLUSTER_NODES } else { 1 };
    if usize::from(u16::MAX - options.port) < count {
        bail!("there are no {count} ports from {} on; choose another with --port", options.port);
    }
    let listen: Vec<SocketAddr> = (options.port..)
        .take(count)
        .map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
        .collect();
    let admin = SocketAddr::from((Ipv4Addr::LOCALHOST, options.admin_port));
    let ports = listen.iter().map(|addr| (*addr, "--port")).chain([(admin, "--admin-port")]);
    for (addr, option) in ports {
        match TcpListener::bind(addr) {
            Err(error) if error.kind() == ErrorKind::AddrInUse => {
                bail!("{addr} is in use; choose another port with {option}")
            }
            other => drop(other.with_context(|| format!("cannot listen on {addr}"))?),
        }
    }
    let data = match options {
        Options { sentinel: true, .. } => DataServers::watched()?,
        Options { cluster: true, .. } => DataServers::cluster()?,
        _ => DataServers::one()?,
    };
    let nodes = (0..options.nodes).map(|_| RedisServer::start(EVICT_NOTHING));
    let nodes = nodes.collect::<Result<Vec<_>, _>>()?;

    let mut config = Config {
        listen: listen.iter().copied().map(Listener::plain).collect(),
        admin: AdminConfig { listen: Some(admin), ..AdminConfig::default() },
        guards,
        adopt,
        ..Config::default()
    };
    let rules = dev_rules::to_try(&config.guards.rules, &config.adopt.rules, &cli(options));
    data.configure(&mut config);
    config.locks.nodes = nodes.iter().map(|node| RedisUrl::local(node.port()).into()).collect();
    // All that can be tried.
    config.locks.shared = true;

    let runtime = Builder::new_multi_thread().enable_all().build()?;
    let result = runtime.block_on(async {
        // The nodes are new, so no lock is held there.
        initialise(&config.locks).await?;
        let shutdown = CancellationToken::new();
        let control = Control { shutdown: shutdown.clone(), ..Control::default() };
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut proxy = tokio::spawn(server::run(config, control));
        tokio::select! {
            ended = &mut proxy => return ended?,
            () = accepts(listen[0]) => {
                // A welcome that cannot be written does not stop the proxy.
                let _ = writeln!(stdout(), "{}", welcome(options, &data, &nodes, &rules));
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

/// Waits until a connection to `addr` succeeds.
async fn accepts(addr: SocketAddr) {
    while TcpStream::connect(addr).await.is_err() {
        sleep(Duration::from_millis(10)).await;
    }
}

/// Returns redis-cli with the options that lead to the proxy.
fn cli(options: &Options) -> String {
    // The fronts of a cluster lead clients from one to another.
    let follow = if options.cluster { "-c " } else { "" };
    format!("redis-cli {follow}-p {}", options.port)
}

fn welcome(options: &Options, data: &DataServers, nodes: &[RedisServer], rules: &str) -> String {
    let port = options.port;
    let last = if options.cluster {
        format!(" to {}, a front for each node", usize::from(port) + CLUSTER_NODES - 1)
    } else {
        String::new()
    };
    let mut text = format!(
        "\nLockgate is running. Ctrl-C ends it and everything below.\n\n  \
         proxy       127.0.0.1:{port}{last}\n  \
         admin       http://127.0.0.1:{}/metrics  /healthz  /readyz\n",
        options.admin_port,
    );
    text += &data.welcome();
    for (index, node) in nodes.iter().enumerate() {
        text += &line(&format!("lock node {}", index + 1), node.addr(), node.pid());
    }
    let cli = cli(options);
    text += &format!(
        "\nTry, in another terminal:\n\n  \
         {cli} LOCK job PX 30000\n\
         {}{rules}  \
         {cli} UNLOCK job TOKEN     (the token that LOCK answered)\n",
        data.to_try(port)
    );
    text
}
