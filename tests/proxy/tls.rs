//! TLS towards clients, the data node and the lock nodes: real certificates, real servers with their own TLS, and
//! clients that use OpenSSL.

use std::{
    io::{ErrorKind, Read, Write},
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    slice,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use crate::support::{
    Client, LIMIT, Proxy, Reply, Setup, encode, eventually, pipeline,
    sentinel::{MASTER, Sentinel},
};
use lockgate::tools::{free_port::free_port, redis_server::RedisServer};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, date_time_ymd};
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned, SupportedProtocolVersion,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
    version::{TLS12, TLS13},
};

type TlsClient = Client<StreamOwned<ClientConnection, TcpStream>>;

/// A test's own CA and certificates signed by it, as files.
struct Pki {
    dir: tempfile::TempDir,
    ca: Issuer<'static, KeyPair>,
}

impl Pki {
    /// Makes `ca.crt` and the certificates `server` and `client`, all valid.
    fn new() -> Pki {
        let dir = tempfile::tempdir().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // OpenSSL takes a certificate with its issuer's name for one of a CA.
        params.distinguished_name.push(DnType::CommonName, format!("CA {}", dir.path().display()));
        let key = KeyPair::generate().unwrap();
        std::fs::write(dir.path().join("ca.crt"), params.self_signed(&key).unwrap().pem()).unwrap();
        let pki = Pki { dir, ca: Issuer::new(params, key) };
        pki.issue("server", &["localhost", "127.0.0.1"], |_| {});
        pki.issue("client", &["somebody"], |_| {});
        pki
    }

    /// Makes `name.crt` and `name.key` for these hosts.
    fn issue(&self, name: &str, hosts: &[&str], edit: impl FnOnce(&mut CertificateParams)) {
        let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
        let mut params = CertificateParams::new(hosts).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        edit(&mut params);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.ca).unwrap();
        self.put(&format!("{name}.crt"), &certificate.pem());
        self.put(&format!("{name}.key"), &key.serialize_pem());
    }

    /// Replaces a file in one step, as tools that renew certificates do.
    fn put(&self, name: &str, text: &str) {
        let new = self.dir.path().join("new");
        std::fs::write(&new, text).unwrap();
        std::fs::rename(new, self.dir.path().join(name)).unwrap();
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn path(&self, name: &str) -> String {
        self.file(name).to_str().unwrap().to_owned()
    }

    /// Returns the `tls` of a listener that shows the certificate `name`.
    fn shown(&self, name: &str, more: &str) -> String {
        let (cert, key) = (self.path(&format!("{name}.crt")), self.path(&format!("{name}.key")));
        format!("{{cert_file: {cert}, key_file: {key}{more}}}")
    }

    /// Starts a proxy with plain nodes, and with a TLS listener that shows `server`.
    fn proxy(&self) -> Proxy {
        Proxy::with().tls(&self.shown("server", "")).start()
    }

    /// Starts a redis-server that shows the certificate `name`. Returns it with its TLS port.
    fn redis(&self, name: &str, auth_clients: &str) -> (RedisServer, u16) {
        let port = free_port().unwrap();
        let (cert, key) = (self.path(&format!("{name}.crt")), self.path(&format!("{name}.key")));
        let (ca, tls_port) = (self.path("ca.crt"), port.to_string());
        let arguments = [
            ["--tls-port", &tls_port],
            ["--tls-cert-file", &cert],
            ["--tls-key-file", &key],
            ["--tls-ca-cert-file", &ca],
            ["--tls-auth-clients", auth_clients],
        ];
        (RedisServer::start(&arguments.concat()).expect("redis-server with TLS"), port)
    }

    /// Returns a configuration's `tls` that trusts this CA, with these further settings.
    fn trusting(&self, more: &str) -> String {
        format!("tls: {{ca_cert_file: {}{more}}}", self.path("ca.crt"))
    }

    fn client(&self, port: u16) -> TlsClient {
        self.client_as(port, None, &[&TLS13, &TLS12]).unwrap()
    }

    /// Returns a client that shows the certificate `name`, if any, and has done its handshake.
    fn client_as(
        &self,
        port: u16,
        name: Option<&str>,
        versions: &[&'static SupportedProtocolVersion],
    ) -> std::io::Result<TlsClient> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(self.file("ca.crt")).unwrap()).unwrap();
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(versions)
            .unwrap()
            .with_root_certificates(roots);
        let config = match name {
            None => builder.with_no_client_auth(),
            Some(name) => {
                let chain = CertificateDer::from_pem_file(self.file(&format!("{name}.crt")));
                let key = PrivateKeyDer::from_pem_file(self.file(&format!("{name}.key")));
                builder.with_client_auth_cert(vec![chain.unwrap()], key.unwrap()).unwrap()
            }
        };
        let name = ServerName::try_from("localhost").unwrap();
        let mut session = ClientConnection::new(Arc::new(config), name).unwrap();
        let mut tcp = TcpStream::connect(("127.0.0.1", port)).unwrap();
        tcp.set_nodelay(true).unwrap();
        tcp.set_read_timeout(Some(LIMIT)).unwrap();
        tcp.set_write_timeout(Some(LIMIT)).unwrap();
        session.complete_io(&mut tcp)?;
        Ok(Client::over(StreamOwned::new(session, tcp)))
    }
}

/// A whole deployment whose nodes are reached only over TLS.
struct Secure {
    proxy: Proxy,
    data: (RedisServer, u16),
    nodes: Vec<(RedisServer, u16)>,
}

impl Secure {
    fn setup(pki: &Pki, data: u16, nodes: &[(RedisServer, u16)]) -> Setup {
        let urls: Vec<String> =
            nodes.iter().map(|(_, port)| format!("rediss://localhost:{port}")).collect();
        Proxy::with()
            .tls(&pki.shown("server", ""))
            .data_url(&format!("rediss://127.0.0.1:{data}"))
            .node_urls(&urls)
            .locks("quarantine: no")
            .top(&pki.trusting(""))
    }

    fn start(pki: &Pki, nodes: usize) -> Secure {
        let data = pki.redis("server", "no");
        let nodes: Vec<_> = (0..nodes).map(|_| pki.redis("server", "no")).collect();
        let proxy = Secure::setup(pki, data.1, &nodes).start();
        is_ready(&proxy, nodes.len());
        Secure { proxy, data, nodes }
    }

    /// Returns the number of lock nodes that have this key.
    fn nodes_with(&self, key: &str) -> usize {
        let has = |node: &&(RedisServer, u16)| {
            Client::connect(node.0.port()).cmd(&["EXISTS", key]) == Reply::Int(1)
        };
        self.nodes.iter().filter(has).count()
    }
}

fn is_ready(proxy: &Proxy, nodes: usize) {
    eventually("the proxy is ready", || proxy.http("/readyz").starts_with("HTTP/1.1 200"));
    eventually("every node is up", || proxy.nodes_up() == nodes);
}

/// Runs a program for at most a minute.
fn run(program: &Path, arguments: &[&str]) -> Output {
    Command::new("timeout")
        .args(["--kill-after=5", "60"])
        .arg(program)
        .args(arguments)
        // Python would read all of the system's CAs for each connection, which takes a twentieth of a second.
        .env("SSL_CERT_FILE", "/dev/null")
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

/// Returns the output of redis-cli on stdout and stderr.
fn redis_cli(arguments: &[&str]) -> String {
    let output = run(Path::new("redis-cli"), arguments);
    let all = [output.stdout, output.stderr].concat();
    String::from_utf8_lossy(&all).into_owned()
}

#[test]
fn redis_cli_speaks_tls_and_plain_side_by_side() {
    let pki = Pki::new();
    let proxy = pki.proxy();
    let (plain, tls, ca) =
        (proxy.port().to_string(), proxy.tls_port().to_string(), pki.path("ca.crt"));
    let secure = ["-p", &tls, "--tls", "--cacert", &ca];
    assert_eq!(redis_cli(&[&secure[..], &["SET", "x", "1"]].concat()), "OK\n");
    assert_eq!(redis_cli(&["-p", &plain, "GET", "x"]), "1\n");
    let grant = redis_cli(&[&secure[..], &["LOCK", "job", "me", "PX", "30000"]].concat());
    assert!(grant.starts_with("me\n"), "{grant}");
    assert_eq!(redis_cli(&["-p", &plain, "LOCK", "job", "PX", "30000"]), "\n");
    assert_eq!(redis_cli(&[&secure[..], &["UNLOCK", "job", "me"]].concat()), "1\n");
    // With its own CAs it does not trust this one.
    let said = redis_cli(&["-p", &tls, "--tls", "PING"]);
    assert!(said.contains("certificate verify failed"), "{said}");
    eventually("it is counted", || {
        // redis-cli tries twice.
        proxy.metric("lockgate_tls_handshake_failures_total", "side=\"client\"") == 2.0
            && proxy.metric("lockgate_closes_total", "reason=\"tls_handshake\"") == 2.0
    });
}

#[test]
#[ignore = "takes long: make long"]
fn redis_py_does_all_it_does_over_tls() {
    let file = |name: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients").join(name);
    let python = file(".venv/bin/python");
    assert!(python.exists(), "run \"make test\", which installs redis-py");
    let pki = Pki::new();
    let secure = Secure::start(&pki, 3);
    let (port, ca) = (secure.proxy.tls_port().to_string(), pki.path("ca.crt"));
    for version in ["2", "3"] {
        let script = file("redis_py.py");
        let output = run(&python, &[script.to_str().unwrap(), &port, version, &ca]);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.ends_with(&format!("RESP{version} ok\n")), "{said}{error}");
    }
    let mut direct = Client::connect(secure.data.0.port());
    assert_eq!(direct.cmd(&["GET", "counter"]), Reply::bulk("50"));
}

#[test]
fn both_versions_of_tls_are_spoken() {
    let pki = Pki::new();
    let proxy = pki.proxy();
    for version in [&TLS12, &TLS13] {
        let mut client = pki.client_as(proxy.tls_port(), None, &[version]).unwrap();
        assert_eq!(client.cmd(&["PING"]), Reply::simple("PONG"));
        client.cmd(&["LOCK", "a", "PX", "30000"]).grant();
        assert_eq!(client.cmd(&["UNLOCK", "a"]), Reply::Int(1));
    }
}

#[test]
fn ten_thousand_commands_in_a_pipeline_are_answered_in_order() {
    let pki = Pki::new();
    let secure = Secure::start(&pki, 1);
    let mut client = pki.client(secure.proxy.tls_port());
    let commands: Vec<Vec<u8>> = (0..10_000).map(|n| encode(&["ECHO", &n.to_string()])).collect();
    client.send(&commands.concat());
    for n in 0..10_000 {
        assert_eq!(client.reply(), Reply::bulk(&n.to_string()));
    }
    // A lock in the middle keeps its place.
    let before = vec![&["INCR", "n"][..]; 500];
    let mut all = pipeline(&before);
    all.extend(pipeline(&[
        &["LOCK", "job", "t", "PX", "30000"],
        &["GET", "n"],
        &["UNLOCK", "job", "t"],
    ]));
    client.send(&all);
    for n in 1..=500 {
        assert_eq!(client.reply(), Reply::Int(n));
    }
    client.reply().grant();
    assert_eq!((client.reply(), client.reply()), (Reply::bulk("500"), Reply::Int(1)));
}

#[test]
fn a_value_of_50_mb_passes_both_ways_past_a_slow_reader() {
    const VALUE: usize = 50 << 20;
    let pki = Pki::new();
    let secure = Secure::start(&pki, 1);
    let mut client = pki.client(secure.proxy.tls_port());
    let value: Vec<u8> = (0..VALUE).map(|n| ((n * 31) >> 3) as u8).collect();
    client.send(format!("*3\r\n$3\r\nSET\r\n$1\r\nv\r\n${VALUE}\r\n").as_bytes());
    for block in value.chunks(1 << 20) {
        client.send(block);
    }
    client.send(b"\r\n");
    assert_eq!(client.reply(), Reply::ok());
    client.send(&encode(&["GET", "v"]));
    // Redis has to wait, and the proxy holds none of the value.
    thread::sleep(Duration::from_secs(2));
    let mut head = [0; 11];
    client.reader().read_exact(&mut head).unwrap();
    assert_eq!(&head, format!("${VALUE}\r\n").as_bytes());
    let mut received = vec![0; 1 << 20];
    for (number, block) in value.chunks(1 << 20).enumerate() {
        client.reader().read_exact(&mut received).unwrap();
        assert!(received == block, "block {number} differs");
        if number % 10 == 0 {
            thread::sleep(Duration::from_millis(100));
        }
    }
    client.reader().read_exact(&mut head[..2]).unwrap();
    assert_eq!(client.cmd(&["STRLEN", "v"]), Reply::Int(VALUE as i64));
    let peak = secure.proxy.memory("VmHWM");
    assert!(peak < 40 << 20, "{} MB at the peak", peak >> 20);
}

#[test]
fn a_late_reader_gets_the_last_byte_of_a_connection_that_is_over() {
    let pki = Pki::new();
    let proxy = pki.proxy();
    proxy.client().cmd(&["SETRANGE", "v", &(8 << 20).to_string(), "x"]);
    // With some of these lengths the end is within the 64 KB that TLS has taken when the system takes no more,
    // however much that is.
    for length in (64 << 10..5 << 20).step_by(40 << 10) {
        let mut client = pki.client(proxy.tls_port());
        // Otherwise the system would take everything.
        let tcp = &client.reader().get_ref().sock;
        socket2::SockRef::from(tcp).set_recv_buffer_size(64 << 10).unwrap();
        let end = (length - 1).to_string();
        client.send(&pipeline(&[&["GETRANGE", "v", "0", &end], &["QUIT"]]));
        thread::sleep(Duration::from_millis(20));
        let mut received = Vec::new();
        client.reader().read_to_end(&mut received).expect("an end with close_notify");
        assert_eq!(received.len(), format!("${length}\r\n").len() + length + "\r\n+OK\r\n".len());
        assert!(received.ends_with(b"\r\n+OK\r\n"));
    }
}

#[test]
fn an_unfit_node_is_found_over_tls_too() {
    let pki = Pki::new();
    let (node, port) = pki.redis("server", "no");
    Client::connect(node.port()).cmd(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    let nodes = [(node, port)];
    let data = pki.redis("server", "no");
    let proxy = Secure::setup(&pki, data.1, &nodes).start();
    eventually("it is said", || proxy.log().contains("its maxmemory-policy is not noeviction"));
}

#[test]
fn an_idle_tls_connection_costs_no_large_buffer() {
    let pki = Pki::new();
    let proxy = Proxy::with().tls(&pki.shown("server", "")).top("maxclients: 2000").start();
    let connected = |count: usize| -> Vec<TlsClient> {
        let mut clients: Vec<_> = (0..count).map(|_| pki.client(proxy.tls_port())).collect();
        for client in &mut clients {
            // Each client has moved something large, and then rests.
            let value = "x".repeat(100_000);
            assert_eq!(client.cmd(&["ECHO", &value]), Reply::bulk(&value));
        }
        clients
    };
    let _others = connected(50);
    let before = proxy.memory("VmRSS");
    let clients = connected(400);
    let each = (proxy.memory("VmRSS") - before) / clients.len();
    println!("{each} bytes for each idle TLS connection");
    assert!(each < 32 << 10, "{each} bytes for each idle TLS connection");
}

#[test]
fn what_is_sent_before_the_end_is_answered_with_and_without_a_farewell() {
    let pki = Pki::new();
    let proxy = pki.proxy();
    for farewell in [false, true] {
        let mut client = pki.client(proxy.tls_port());
        client.send(&pipeline(&[&["SET", "a", "1"], &["INCR", "a"]]));
        let stream = client.reader().get_mut();
        if farewell {
            stream.conn.send_close_notify();
            stream.flush().unwrap();
        }
        stream.sock.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!((client.reply(), client.reply()), (Reply::ok(), Reply::Int(2)));
        let mut rest = Vec::new();
        client.reader().read_to_end(&mut rest).expect("an end with close_notify");
        assert!(rest.is_empty());
    }
}

#[test]
fn quit_ends_with_close_notify() {
    let pki = Pki::new();
    let proxy = pki.proxy();
    let mut client = pki.client(proxy.tls_port());
    client.send(&encode(&["QUIT"]));
    let mut all = String::new();
    client.reader().read_to_string(&mut all).expect("an end with close_notify");
    assert_eq!(all, "+OK\r\n");
}

#[test]
fn where_the_data_node_is_away_a_client_over_tls_is_closed_with_close_notify() {
    let pki = Pki::new();
    let mut proxy = pki.proxy();
    proxy.data().kill().unwrap();
    let mut client = pki.client(proxy.tls_port());
    client.send(&encode(&["LOCK", "job", "PX", "1000"]));
    let mut all = String::new();
    client.reader().read_to_string(&mut all).expect("an end with close_notify");
    assert_eq!(all, "", "as where Redis is away");
}

#[test]
fn a_session_lock_over_tls_is_handed_from_proxy_to_proxy_and_ends_with_its_connection() {
    let pki = Pki::new();
    let secure = Secure::start(&pki, 3);
    let other = Secure::setup(&pki, secure.data.1, &secure.nodes).start();
    is_ready(&other, 3);
    let mut first = pki.client(secure.proxy.tls_port());
    let fence = first.cmd(&["LOCK", "job"]).grant().fence;
    assert_eq!(secure.nodes_with("lock:job"), 3);
    let mut second = pki.client(other.tls_port());
    second.send(&encode(&["LOCK", "job", "WAIT", "30000"]));
    eventually("it stands in line", || other.waiters() == 1);
    // Once subscribed, the head looks by itself only every two seconds, so a message wakes it.
    let heard = || other.metric("lockgate_wakeups_total", "cause=\"message\"");
    thread::sleep(Duration::from_millis(500));
    let begun = Instant::now();
    // Without close_notify, as when a process is killed.
    drop(first);
    assert!(second.reply().grant().fence > fence);
    assert!(begun.elapsed() < Duration::from_millis(1500), "{:?}", begun.elapsed());
    assert_eq!(heard(), 1.0, "the other proxy told of the release");
    drop(second);
    eventually("the lock ends with its connection", || secure.nodes_with("lock:job") == 0);
}

#[test]
fn a_waiter_that_floods_and_hangs_up_leaves_the_line() {
    let pki = Pki::new();
    let proxy = pki.proxy();
    let mut holder = proxy.client();
    holder.cmd(&["LOCK", "job", "PX", "60000"]).grant();
    let mut client = pki.client(proxy.tls_port());
    client.send(&encode(&["LOCK", "job", "WAIT", "30000"]));
    eventually("it stands in line", || proxy.waiters() == 1);
    // Less than the proxy reads ahead, and more than the sockets hold.
    let ping = encode(&["PING"]).repeat(10_000);
    let stream = client.reader().get_mut();
    (0..30).for_each(|_| stream.write_all(&ping).unwrap());
    assert_eq!(proxy.waiters(), 1);
    drop(client);
    eventually("it has left", || proxy.waiters() == 0);
}

#[test]
fn a_node_killed_and_restarted_is_up_again_over_tls() {
    let pki = Pki::new();
    let mut secure = Secure::start(&pki, 3);
    secure.nodes[0].0.restart().unwrap();
    eventually("it was down", || secure.proxy.log().matches("lock node is up").count() == 4);
    let mut client = pki.client(secure.proxy.tls_port());
    client.cmd(&["LOCK", "a", "PX", "30000"]).grant();
    eventually("all nodes grant", || secure.nodes_with("lock:a") == 3);
}

/// Starts a proxy whose data node and lock node show the certificate `name`. Returns the reason for which it is not
/// ready.
fn refused(pki: &Pki, name: &str, url: &str, top: &str, auth_clients: &str) -> String {
    let (_redis, port) = pki.redis(name, auth_clients);
    let url = url.replace("PORT", &port.to_string());
    let proxy = Proxy::with().data_url(&url).node_urls(slice::from_ref(&url)).top(top).start();
    let failed = || proxy.metric("lockgate_tls_handshake_failures_total", "side=\"node\"");
    eventually("the node is refused", || {
        failed() > 0.0 || proxy.log().matches("lock node is down").count() > 0
    });
    let mut page = String::new();
    eventually("the data node was asked", || {
        page = proxy.http("/readyz");
        !page.contains("not asked yet") && !page.contains("not connected yet")
    });
    assert!(page.starts_with("HTTP/1.1 503"), "{page}");
    // A client's connection is closed, and nothing hangs.
    let (bytes, _) = proxy.client().rest();
    assert!(bytes.is_empty());
    assert_eq!(proxy.nodes_up(), 0);
    // One line in the log for each cause, not for each attempt.
    thread::sleep(Duration::from_secs(2));
    assert!(proxy.log().matches("data node is not reachable").count() <= 2, "{}", proxy.log());
    page
}

#[test]
fn a_server_that_cannot_be_trusted_is_not_spoken_to_and_readyz_says_why() {
    let pki = Pki::new();
    let stranger = Pki::new();
    pki.issue("elsewhere", &["elsewhere.example"], |_| {});
    pki.issue("expired", &["localhost", "127.0.0.1"], |params| {
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(2021, 1, 1);
    });
    pki.issue("early", &["localhost", "127.0.0.1"], |params| {
        params.not_before = date_time_ymd(2090, 1, 1);
    });
    pki.issue("nameless", &[], |_| {});
    let (ours, theirs) = (pki.trusting(""), stranger.trusting(""));
    let (local, nobody) = ("rediss://localhost:PORT", String::new());
    thread::scope(|scope| {
        for (name, url, top, words) in [
            ("server", local, &theirs, "not signed by a CA that is trusted here"),
            ("elsewhere", local, &ours, "not valid for name \"localhost\""),
            ("elsewhere", "rediss://127.0.0.1:PORT", &ours, "not valid for name \"127.0.0.1\""),
            ("nameless", local, &ours, "not valid for any names"),
            ("expired", local, &ours, "the certificate has expired"),
            ("early", local, &ours, "the certificate is not valid yet"),
            // The system's CAs do not include it either.
            ("server", local, &nobody, "not signed by a CA that is trusted here"),
        ] {
            let pki = &pki;
            scope.spawn(move || {
                let page = refused(pki, name, url, top, "no");
                assert_eq!(page.matches(words).count(), 2, "{words}: {page}");
            });
        }
    });
}

#[test]
fn a_certificate_for_another_name_is_trusted_if_that_name_is_configured() {
    let pki = Pki::new();
    pki.issue("elsewhere", &["redis.internal"], |_| {});
    let (_redis, port) = pki.redis("elsewhere", "no");
    let url = format!("rediss://localhost:{port}");
    let proxy = Proxy::with()
        .data_url(&url)
        .node_urls(slice::from_ref(&url))
        .top(&pki.trusting(", server_name: redis.internal"))
        .start();
    is_ready(&proxy, 1);
    assert_eq!(proxy.client().cmd(&["PING"]), Reply::simple("PONG"));
}

#[test]
fn without_a_ca_of_its_own_the_proxy_trusts_whom_the_system_trusts() {
    let pki = Pki::new();
    let (_redis, port) = pki.redis("server", "no");
    let url = format!("rediss://localhost:{port}");
    let proxy = Proxy::with()
        .data_url(&url)
        .node_urls(slice::from_ref(&url))
        .environment("SSL_CERT_FILE", &pki.path("ca.crt"))
        .start();
    is_ready(&proxy, 1);
    assert_eq!(proxy.client().cmd(&["PING"]), Reply::simple("PONG"));
}

#[test]
fn a_server_that_asks_for_a_certificate_is_shown_ours() {
    let pki = Pki::new();
    let (_redis, port) = pki.redis("server", "yes");
    let url = format!("rediss://localhost:{port}");
    let own =
        format!(", cert_file: {}, key_file: {}", pki.path("client.crt"), pki.path("client.key"));
    let proxy = Proxy::with()
        .data_url(&url)
        .node_urls(slice::from_ref(&url))
        .top(&pki.trusting(&own))
        .start();
    is_ready(&proxy, 1);
    proxy.client().cmd(&["LOCK", "a", "PX", "30000"]).grant();
    drop(proxy);
}

/// With TLS 1.3 the server says so only behind the handshake, and closes at once.
#[test]
fn a_server_that_refuses_our_certificate_is_named_and_counted() {
    let (pki, stranger) = (Pki::new(), Pki::new());
    let shown = |pki: &Pki| {
        format!(", cert_file: {}, key_file: {}", pki.path("client.crt"), pki.path("client.key"))
    };
    for (own, words) in [
        (String::new(), "wants a certificate, and none was shown (CertificateRequired)"),
        (shown(&stranger), "refuses the certificate that was shown (UnknownCA)"),
    ] {
        let (_redis, port) = pki.redis("server", "yes");
        let url = format!("rediss://localhost:{port}");
        let top = pki.trusting(&own);
        let setup = Proxy::with().data_url(&url).node_urls(slice::from_ref(&url)).top(&top);
        let proxy = setup.start();
        let mut page = String::new();
        eventually("/readyz names it for the data node and the lock node", || {
            page = proxy.http("/readyz");
            page.matches(words).count() == 2
        });
        // Whatever came first stays the reason: which of both is found does not depend on the moment.
        for _ in 0..10 {
            thread::sleep(Duration::from_millis(200));
            page = proxy.http("/readyz");
            assert_eq!(page.matches(words).count(), 2, "{words}: {page}");
        }
        for side in ["data", "node"] {
            let labels = format!("side=\"{side}\"");
            let failed = proxy.metric("lockgate_tls_handshake_failures_total", &labels);
            assert!(failed > 0.0, "{side}: {failed}");
        }
        assert!(proxy.log().contains(words), "{}", proxy.log());
        let file = proxy.config_file();
        let report =
            run(Path::new(env!("CARGO_BIN_EXE_lockgate")), &["doctor", file.to_str().unwrap()]);
        let report = String::from_utf8_lossy(&report.stdout).into_owned();
        assert!(report.matches(words).count() >= 2, "{report}");
        assert!(
            report.contains("tls-auth-clients") || report.contains("must trust the CA"),
            "{report}"
        );
    }
}

#[test]
fn a_plain_server_where_tls_is_expected_is_named() {
    let pki = Pki::new();
    let redis = RedisServer::start(&[]).unwrap();
    let url = format!("rediss://localhost:{}", redis.port());
    let proxy = Proxy::with()
        .data_url(&url)
        .node_urls(slice::from_ref(&url))
        .top(&pki.trusting(""))
        .start();
    eventually("it is said", || {
        let page = proxy.http("/readyz");
        page.contains("what came is not TLS")
            || page.contains("TLS handshake timed out")
            || page.contains("no answer within")
            || page.contains("closed during")
    });
    // Redis itself still works.
    assert_eq!(Client::connect(redis.port()).cmd(&["PING"]), Reply::simple("PONG"));
}

/// Whether a client with this certificate is let in; the same with either version of TLS.
fn is_let_in(pki: &Pki, proxy: &Proxy, name: Option<&str>) -> bool {
    let tls = |version| {
        // In TLS 1.3 the client is done before the server has seen its certificate.
        let Ok(mut client) = pki.client_as(proxy.tls_port(), name, &[version]) else {
            return false;
        };
        let stream = client.reader().get_mut();
        let mut pong = [0; 7];
        stream.write_all(&encode(&["PING"])).is_ok() && stream.read_exact(&mut pong).is_ok()
    };
    let (old, new) = (tls(&TLS12), tls(&TLS13));
    assert_eq!(old, new, "{name:?}");
    new
}

#[test]
fn clients_certificates_are_asked_for_as_configured() {
    let (pki, stranger) = (Pki::new(), Pki::new());
    pki.issue("expired", &["somebody"], |params| {
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(2021, 1, 1);
    });
    for file in ["client.crt", "client.key"] {
        let text = std::fs::read_to_string(stranger.file(file)).unwrap();
        pki.put(&format!("strange-{file}"), &text);
    }
    let names = [None, Some("client"), Some("strange-client"), Some("expired")];
    for (auth, expected) in [
        ("", [false, true, false, false]),
        (", auth_clients: yes", [false, true, false, false]),
        (", auth_clients: optional", [true, true, false, false]),
    ] {
        let settings =
            pki.shown("server", &format!(", ca_cert_file: {}{auth}", pki.path("ca.crt")));
        let proxy = Proxy::with().tls(&settings).start();
        for (name, expected) in names.into_iter().zip(expected) {
            assert_eq!(is_let_in(&pki, &proxy, name), expected, "{auth} {name:?}");
        }
        let failures = 2 * expected.iter().filter(|expected| !**expected).count();
        eventually("they are counted", || {
            let side = "side=\"client\"";
            proxy.metric("lockgate_tls_handshake_failures_total", side) == failures as f64
        });
        // None of these clients has reached the data node.
        assert_eq!(proxy.client().cmd(&["PING"]), Reply::simple("PONG"));
    }
    let ca = pki.path("ca.crt");
    let settings = pki.shown("server", &format!(", ca_cert_file: {ca}"));
    let proxy = Proxy::with().tls(&settings).start();
    let port = proxy.tls_port().to_string();
    let (cert, key) = (pki.path("client.crt"), pki.path("client.key"));
    let all = ["-p", &port, "--tls", "--cacert", &ca, "--cert", &cert, "--key", &key, "PING"];
    assert_eq!(redis_cli(&all), "PONG\n");
    // The server need not say why, but it does not go on.
    let said = redis_cli(&["-p", &port, "--tls", "--cacert", &ca, "PING"]);
    assert!(said.starts_with("Error: "), "{said}");
    let mut client = pki.client_as(proxy.tls_port(), None, &[&TLS13]).unwrap();
    let error = client.reader().read(&mut [0]).unwrap_err();
    assert!(error.to_string().contains("CertificateRequired"), "{error}");
    assert!(proxy.log().contains("peer sent no certificates"));
}

#[test]
fn lockgate_exec_locks_over_tls_with_a_password() {
    let pki = Pki::new();
    let proxy = pki.proxy();
    let user = ["ACL", "SETUSER", "app", "on", ">secret", "~*", "&*", "+@all"];
    assert_eq!(proxy.data_client().cmd(&user), Reply::ok());
    let run = |scheme: &str, password: &str, trust: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_lockgate"));
        let url = format!("{scheme}://app:{password}@localhost:{}", proxy.tls_port());
        command.args(["exec", "job", "--server", &url]).args(trust);
        let output = command.args(["--", "echo", "ran"]).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let trusting = ["--cacert", &pki.path("ca.crt")];
    assert_eq!(run("rediss", "secret", &trusting), (Some(0), "ran\n".into(), String::new()));
    let (status, output, error) = run("rediss", "wrong", &trusting);
    assert_eq!((status, output.as_str()), (Some(125), ""));
    assert!(error.contains("password is not accepted") && !error.contains("wrong"), "{error}");
    let (status, output, error) = run("rediss", "secret", &[]);
    assert_eq!((status, output.as_str()), (Some(125), ""));
    assert!(error.contains("not signed by a CA"), "{error}");
    let (status, output, error) = run("redis", "secret", &[]);
    assert_eq!((status, output.as_str()), (Some(125), ""));
    assert!(error.ends_with("ERR this port speaks TLS only\n"), "{error}");
}

#[test]
fn a_plain_client_at_the_tls_port_is_told() {
    let pki = Pki::new();
    let proxy = pki.proxy();
    let port = proxy.tls_port().to_string();
    let said = redis_cli(&["-p", &port, "PING"]);
    assert!(said.contains("this port speaks TLS only"), "{said}");
    let mut client = Client::connect(proxy.tls_port());
    client.send(b"PING\r\n");
    assert_eq!(client.reply().error(), "ERR this port speaks TLS only");
    assert_eq!(client.rest(), (Vec::new(), true));
    // These bytes begin like TLS, but are none.
    let mut client = Client::connect(proxy.tls_port());
    client.send(&[22, 3, 1, 0, 4, 0xff, 0xff, 0xff, 0xff]);
    client.rest();
    assert_eq!(pki.client(proxy.tls_port()).cmd(&["PING"]), Reply::simple("PONG"));
}

#[test]
fn a_tls_client_at_the_plain_port_fails_and_harms_nobody() {
    let pki = Pki::new();
    let proxy = pki.proxy();
    let (port, ca) = (proxy.port().to_string(), pki.path("ca.crt"));
    for _ in 0..5 {
        let output = Command::new("timeout")
            .args(["2", "redis-cli", "-p", &port, "--tls", "--cacert", &ca, "PING"])
            .output()
            .unwrap();
        assert!(!String::from_utf8_lossy(&output.stdout).contains("PONG"));
    }
    assert_eq!(proxy.client().cmd(&["PING"]), Reply::simple("PONG"));
    assert_eq!(pki.client(proxy.tls_port()).cmd(&["PING"]), Reply::simple("PONG"));
}

#[test]
fn a_handshake_that_is_never_finished_stops_nobody_and_ends() {
    let pki = Pki::new();
    let proxy = pki.proxy();
    let begun = Instant::now();
    let mut silent: Vec<_> = (0..50)
        .map(|number| {
            let mut client = Client::connect(proxy.tls_port());
            if number % 2 == 0 {
                // The head of a ClientHello that never comes.
                client.send(&[22, 3, 1, 2, 0, 1, 0, 1]);
            }
            client
        })
        .collect();
    let mut client = pki.client(proxy.tls_port());
    for _ in 0..100 {
        assert_eq!(client.cmd(&["PING"]), Reply::simple("PONG"));
    }
    assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
    for client in &mut silent {
        client.rest();
    }
    let took = begun.elapsed();
    assert!((Duration::from_secs(9)..Duration::from_secs(20)).contains(&took), "{took:?}");
    eventually("they are counted", || {
        proxy.metric("lockgate_tls_handshake_failures_total", "side=\"client\"") == 50.0
    });
    // A silent client does not keep the proxy from ending.
    let _silent = Client::connect(proxy.tls_port());
    thread::sleep(Duration::from_millis(100));
    let mut proxy = proxy;
    let begun = Instant::now();
    proxy.terminate();
    assert!(proxy.wait().success());
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
}

/// Returns the certificate that a server shows now.
fn shown_by(pki: &Pki, port: u16) -> Vec<u8> {
    let mut client = pki.client(port);
    client.reader().get_ref().conn.peer_certificates().unwrap()[0].to_vec()
}

#[test]
fn a_renewed_certificate_is_shown_without_a_restart_and_a_broken_one_is_not() {
    let pki = Pki::new();
    let proxy = pki.proxy();
    let file = || CertificateDer::from_pem_file(pki.file("server.crt")).unwrap().to_vec();
    let first = file();
    assert_eq!(shown_by(&pki, proxy.tls_port()), first);
    let mut old = pki.client(proxy.tls_port());
    assert_eq!(old.cmd(&["PING"]), Reply::simple("PONG"));

    pki.issue("server", &["localhost"], |_| {});
    let second = file();
    assert_ne!(first, second);
    eventually("the new one is shown", || shown_by(&pki, proxy.tls_port()) == second);
    assert_eq!(old.cmd(&["PING"]), Reply::simple("PONG"), "connections stay");

    let reloads = |result: &str| proxy.metric("lockgate_tls_reloads_total", result);
    assert_eq!((reloads("ok"), reloads("failed")), (1.0, 0.0));
    let good = std::fs::read_to_string(pki.file("server.crt")).unwrap();
    for (number, broken) in ["", "garbage", &good[..good.len() / 2]].into_iter().enumerate() {
        pki.put("server.crt", broken);
        eventually("it is counted", || reloads("failed") == (number + 1) as f64);
        assert_eq!(shown_by(&pki, proxy.tls_port()), second);
        let page = proxy.http("/readyz");
        let of_files = page.lines().filter(|line| line.contains("(files): they cannot be used: "));
        assert_eq!(of_files.count(), 1, "{page}");
        assert!(page.starts_with("HTTP/1.1 200"), "{page}");
    }
    assert!(proxy.log().contains("those before stay in use"));
    std::fs::remove_file(pki.file("server.key")).unwrap();
    eventually("it is counted", || reloads("failed") == 4.0);
    assert_eq!(shown_by(&pki, proxy.tls_port()), second);

    pki.issue("server", &["localhost"], |params| {
        params.not_after = rcgen::date_time_ymd(2030, 1, 2);
    });
    let third = file();
    eventually("the next good one is shown", || shown_by(&pki, proxy.tls_port()) == third);
    assert!(!proxy.http("/readyz").contains("cannot be used"));
    let ends =
        || proxy.metric("lockgate_tls_certificate_not_after_timestamp_seconds", "\"client\"");
    eventually("its end is told", || ends() == 1_893_542_400.0);
    assert_eq!(old.cmd(&["PING"]), Reply::simple("PONG"), "connections stay");
}

#[test]
fn a_renewed_ca_is_trusted_without_a_restart() {
    let (pki, next) = (Pki::new(), Pki::new());
    let (_redis, port) = next.redis("server", "no");
    let url = format!("rediss://localhost:{port}");
    let proxy = Proxy::with()
        .data_url(&url)
        .node_urls(slice::from_ref(&url))
        .top(&pki.trusting(""))
        // The node has no marker yet, so it waits for the longest TTL.
        .locks("max_ttl: 4s")
        .locks("default_ttl: 2s")
        .locks("node_timeout: 400ms")
        .start();
    eventually("it is not trusted", || {
        proxy.http("/readyz").matches("not signed by a CA that is trusted here").count() == 2
    });
    let both = [&pki, &next].map(|pki| std::fs::read_to_string(pki.file("ca.crt")).unwrap());
    pki.put("ca.crt", &both.concat());
    is_ready(&proxy, 1);
    assert_eq!(proxy.client().cmd(&["PING"]), Reply::simple("PONG"));
}

#[test]
fn more_than_maxclients_are_dropped_before_their_handshake() {
    let pki = Pki::new();
    let proxy = Proxy::with().tls(&pki.shown("server", "")).top("maxclients: 1").start();
    let mut first = pki.client(proxy.tls_port());
    assert_eq!(first.cmd(&["PING"]), Reply::simple("PONG"));
    let error = pki.client_as(proxy.tls_port(), None, &[&TLS13]).map(drop).unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset),
        "{error}"
    );
    assert_eq!(proxy.metric("lockgate_clients_refused_total", "reason=\"maxclients\""), 1.0);
}

#[test]
fn sentinels_and_the_master_that_they_name_are_reached_over_tls_alone() {
    let pki = Pki::new();
    let (_master, master_port) = pki.redis("server", "no");
    let port = free_port().unwrap();
    let file = |name: &str| pki.path(name);
    let lines = format!(
        "tls-port {port}\ntls-cert-file {}\ntls-key-file {}\ntls-ca-cert-file {}\n\
         tls-auth-clients no\ntls-replication yes",
        file("server.crt"),
        file("server.key"),
        file("ca.crt")
    );
    let _sentinel = Sentinel::start(master_port, 1, &lines);
    let data = |more: &str| {
        format!("{{sentinels: ['127.0.0.1:{port}'], master: {MASTER}, tls: yes{more}}}")
    };
    let before = |data: &str| {
        Proxy::with().data_url(data).top(&pki.trusting("")).top("connect_timeout: 25s").start()
    };
    let proxy = before(&data(", sentinel_tls: yes"));
    assert_eq!(proxy.client().cmd(&["SET", "k", "v"]), Reply::ok());
    let plain = before(&data(""));
    eventually("a Sentinel that wants TLS is named", || {
        plain.http("/readyz").contains(&format!("sentinel 127.0.0.1:{port}: no use"))
    });
}
