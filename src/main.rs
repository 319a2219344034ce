//! stub
use lockgate::config::*;
use std::time::Duration;
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let url = |p: &str| RedisUrl {
        endpoint: Endpoint::Tcp { host: "127.0.0.1".into(), port: p.parse().unwrap() },
        username: None,
        password: None,
        db: 0,
    };
    let config = Config {
        listen: vec![format!("127.0.0.1:{}", a[1]).parse().unwrap()],
        admin: None,
        data: url(&a[2]),
        connect_timeout: Duration::from_secs(1),
        tcp_keepalive: Duration::from_secs(60),
        maxclients: 10000,
        barrier_buffer: 1 << 20,
        shutdown_grace: Duration::from_secs(5),
        locks: LocksConfig {
            nodes: vec![url(&a[3])],
            prefix: "lock:".into(),
            default_ttl: Duration::from_secs(10),
            max_ttl: Duration::from_secs(60),
            node_timeout: Duration::from_millis(50),
            node_silence: Duration::from_secs(2),
            node_queue: 4096,
            drift_factor: 0.01,
            fence_ttl: Duration::from_secs(7 * 86400),
            max_key: 4096,
            max_token: 1024,
            authorize_cache: Duration::from_secs(3),
        },
    };
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap()
        .block_on(lockgate::server::run(config, Default::default()))
        .unwrap();
}
