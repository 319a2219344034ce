//! The client's address in PROXY headers, from a balancer and to the data node, with a real HAProxy on either side.

use std::{
    io::{self, Read, Write},
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Arc,
    thread,
    time::Duration,
};

use crate::support::{Client, LIMIT, Proxy, Reply, Setup, encode, eventually, pipeline};
use lockgate::tools::{free_port::free_port, redis_server::RedisServer};
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned,
    crypto::ring,
    pki_types::{CertificateDer, ServerName, pem::PemObject},
};

const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
const LOCAL: u8 = 0x20;
const PROXY: u8 = 0x21;
/// The reason for which the listener closes.
const REFUSED: &[u8] =
    b"-ERR this port is for a balancer, which must send a PROXY protocol header first\r\n";
const PER_ADDRESS: &[u8] = b"-ERR max number of clients reached\r\n";

/// Encodes a header of version 2.
fn header(command: u8, family: u8, addresses: &[u8]) -> Vec<u8> {
    let length = u16::try_from(addresses.len()).unwrap().to_be_bytes();
    [SIGNATURE, &[command, family], &length, addresses].concat()
}

/// Encodes a header for a client that has connected from `source`.
fn over_ipv4(source: [u8; 4]) -> Vec<u8> {
    header(PROXY, 0x11, &[&source[..], &[10, 9, 9, 9], &[0x30, 0x39], &[0x18, 0xeb]].concat())
}

fn over_ipv6(source: Ipv6Addr) -> Vec<u8> {
    let destination = Ipv6Addr::LOCALHOST.octets();
    header(
        PROXY,
        0x21,
        &[&source.octets()[..], &destination, &[0x30, 0x39], &[0x18, 0xeb]].concat(),
    )
}

/// Sets up a proxy that strangers may use, with a listener for a balancer.
fn behind_balancer() -> Setup {
    Proxy::with().behind_balancer("").top("allow_open: yes")
}

/// Returns a client behind a balancer that sends these bytes first.
fn with(proxy: &Proxy, bytes: &[u8]) -> Client {
    let mut client = Client::connect(proxy.balancer_port());
    client.send(bytes);
    client
}

/// Whether the proxy serves a connection that begins with these bytes.
fn is_served(proxy: &Proxy, bytes: &[u8]) -> bool {
    let mut client = Client::connect(proxy.balancer_port());
    // A refused client may find the connection closed before it has written everything.
    let sent = client.reader().get_mut().write_all(&[bytes, &encode(&["PING"])].concat());
    sent.is_ok() && client.rest_is_pong()
}

fn refused(proxy: &Proxy, reason: &str) -> f64 {
    proxy.metric("lockgate_clients_refused_total", &format!("reason=\"{reason}\""))
}

fn is_ready(proxy: &Proxy) {
    eventually("the proxy is ready", || proxy.http("/readyz").starts_with("HTTP/1.1 200"));
}

/// A real HAProxy with one `listen` section. It ends when this is dropped.
struct HaProxy {
    child: Child,
    port: u16,
    dir: tempfile::TempDir,
}

impl HaProxy {
    /// Starts HAProxy with `lines` for the section, in which DIR is its directory. `bind` stands behind the port, and
    /// `server` behind the server's name.
    fn start(bind: &str, lines: &str, server: &str) -> HaProxy {
        (0..10).find_map(|_| HaProxy::attempt(bind, lines, server)).expect("a free port")
    }

    fn attempt(bind: &str, lines: &str, server: &str) -> Option<HaProxy> {
        let (port, dir) = (free_port().unwrap(), tempfile::tempdir().unwrap());
        let path = dir.path().to_str().unwrap();
        let config = format!(
            "global\n  log stdout format raw local0\n  stats socket DIR/stats\n\
             defaults\n  mode tcp\n  log global\n  log-format \"from %ci:%cp to %fi:%fp.\"\n  \
             timeout connect 5s\n  timeout client 30s\n  timeout server 30s\n\
             listen tested\n  bind 127.0.0.1:{port} {bind}\n  {lines}\n  server one {server}\n"
        );
        std::fs::write(dir.path().join("cfg"), config.replace("DIR", path)).unwrap();
        let log = std::fs::File::create(dir.path().join("log")).unwrap();
        let path = std::env::var("PATH").unwrap_or_default();
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "haproxy", "-db", "-f"])
            .arg(dir.path().join("cfg"))
            // Debian has the program where only root's path leads.
            .env("PATH", format!("{path}:/usr/sbin"))
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .expect("setpriv");
        let mut haproxy = HaProxy { child, port, dir };
        let mut taken = false;
        eventually("HAProxy listens", || {
            let ended = haproxy.child.try_wait().unwrap();
            let log = haproxy.log();
            taken = ended.is_some() && log.contains("cannot bind");
            assert!(taken || ended.is_none(), "HAProxy ended: {ended:?}\n{log}");
            taken || UnixStream::connect(haproxy.file("stats")).is_ok()
        });
        (!taken).then_some(haproxy)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.file("log")).unwrap()
    }

    /// Returns a column of HAProxy's statistics about the server.
    fn of_server(&self, column: &str) -> String {
        let mut stats = UnixStream::connect(self.file("stats")).unwrap();
        stats.set_read_timeout(Some(LIMIT)).unwrap();
        stats.write_all(b"show stat\n").unwrap();
        let mut page = String::new();
        stats.read_to_string(&mut page).unwrap();
        let names = page.lines().next().unwrap().trim_start_matches("# ").split(',');
        let at = names.into_iter().position(|name| name == column).unwrap();
        let server = page.lines().find(|line| line.starts_with("tested,one,")).unwrap();
        server.split(',').nth(at).unwrap().to_owned()
    }
}

impl Drop for HaProxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if thread::panicking() {
            eprintln!("HAProxy's log:\n{}", self.log());
        }
    }
}

/// A certificate that is its own CA, and its key: in two files, and in one.
struct Certificate {
    dir: tempfile::TempDir,
}

impl Certificate {
    fn new() -> Certificate {
        let dir = tempfile::tempdir().unwrap();
        let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
        let made = rcgen::generate_simple_self_signed(names).unwrap();
        let (cert, key) = (made.cert.pem(), made.signing_key.serialize_pem());
        std::fs::write(dir.path().join("both"), format!("{cert}{key}")).unwrap();
        std::fs::write(dir.path().join("crt"), cert).unwrap();
        std::fs::write(dir.path().join("key"), key).unwrap();
        Certificate { dir }
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().unwrap().to_owned()
    }

    /// Returns further settings of a listener.
    fn of_listener(&self) -> String {
        format!(", tls: {{cert_file: {}, key_file: {}}}", self.path("crt"), self.path("key"))
    }

    /// Returns a client that speaks TLS and sends its first bytes in one packet with `before`.
    fn client(&self, port: u16, before: &[u8]) -> Client<StreamOwned<ClientConnection, Preceded>> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(Path::new(&self.path("crt"))).unwrap()).unwrap();
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let name = ServerName::try_from("localhost").unwrap();
        let session = ClientConnection::new(Arc::new(config), name).unwrap();
        let tcp = TcpStream::connect(("127.0.0.1", port)).unwrap();
        tcp.set_nodelay(true).unwrap();
        tcp.set_read_timeout(Some(LIMIT)).unwrap();
        tcp.set_write_timeout(Some(LIMIT)).unwrap();
        Client::over(StreamOwned::new(session, Preceded { tcp, before: before.to_vec() }))
    }
}

/// A socket that sends `before` in front of the first bytes that are written.
struct Preceded {
    tcp: TcpStream,
    before: Vec<u8>,
}

impl Read for Preceded {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.tcp.read(buf)
    }
}

impl Write for Preceded {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        if self.before.is_empty() {
            return self.tcp.write(buf);
        }
        let mut all = std::mem::take(&mut self.before);
        all.extend_from_slice(buf);
        self.tcp.write_all(&all).map(|()| buf.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.tcp.flush()
    }
}

// From a balancer.

#[test]
fn clients_of_a_balancer_are_limited_by_their_own_addresses() {
    let proxy = behind_balancer().top("max_clients_per_address: 1").start();
    for version in ["send-proxy-v2", "send-proxy"] {
        let server = format!("127.0.0.1:{} {version}", proxy.balancer_port());
        let haproxy = HaProxy::start("", "", &server);
        let mut one = Client::connect_from([127, 0, 0, 2], haproxy.port);
        let token = one.cmd(&["LOCK", "k", "one"]).grant().token;
        let mut other = Client::connect_from([127, 0, 0, 3], haproxy.port);
        assert_eq!(other.cmd(&["LOCK", "k", "other"]), Reply::NullArray);
        let mut same = Client::connect_from([127, 0, 0, 2], haproxy.port);
        same.send(&encode(&["PING"]));
        assert_eq!(same.rest().0, PER_ADDRESS, "{version}");
        assert_eq!(one.cmd(&["UNLOCK", "k", &token]), Reply::Int(1));
        // The log names the client's address.
        let seen = format!("\"client\":\"{}\"", one.socket().local_addr().unwrap());
        assert!(proxy.log().contains(&seen), "{seen}");
        drop(one);
        eventually("its place is free", || {
            let mut again = Client::connect_from([127, 0, 0, 2], haproxy.port);
            again.send(&encode(&["PING"]));
            again.rest_is_pong()
        });
    }
    assert!(refused(&proxy, "per_address") >= 2.0);
    assert_eq!(refused(&proxy, "proxy_header"), 0.0);
}

#[test]
fn the_rate_is_that_of_the_client_not_of_the_balancer() {
    let proxy = behind_balancer().top("max_connect_rate: 1").start();
    for last in 1..=20 {
        assert!(is_served(&proxy, &over_ipv4([10, 0, 0, last])), "{last}");
    }
    let mut clients: Vec<Client> =
        (0..20).map(|_| with(&proxy, &over_ipv4([10, 0, 1, 1]))).collect();
    let refused_ones = clients.iter_mut().filter_map(|client| {
        client.send(&encode(&["QUIT"]));
        client.rest().0.starts_with(b"-ERR max number of clients reached").then_some(())
    });
    assert!(refused_ones.count() > 0);
}

#[test]
fn a_balancer_that_looks_whether_the_proxy_lives_is_answered() {
    let proxy = behind_balancer().top("max_clients_per_address: 1\nmax_connect_rate: 1").start();
    let server =
        format!("127.0.0.1:{} send-proxy-v2 check inter 2s fastinter 100ms", proxy.balancer_port());
    let haproxy = HaProxy::start(
        "",
        "option redis-check\n  option log-health-checks\n  timeout check 10s",
        &server,
    );
    let before = proxy.metric("lockgate_client_connections_total", "");
    eventually("it has looked many times", || {
        proxy.metric("lockgate_client_connections_total", "") >= before + 3.0
    });
    assert_eq!(
        (haproxy.of_server("status"), haproxy.of_server("check_status")),
        ("UP".into(), "L7OK".into())
    );
    assert_eq!(haproxy.of_server("chkfail"), "0");
}

#[test]
fn what_stands_behind_the_header_is_not_lost() {
    let proxy = behind_balancer().start();
    let increments = vec![&["INCR", "n"][..]; 2000];
    let mut bytes = over_ipv4([10, 0, 0, 1]);
    bytes.extend(pipeline(&increments));
    bytes.extend(encode(&["LOCK", "k"]));
    let mut client = with(&proxy, &bytes);
    for n in 1..=2000 {
        assert_eq!(client.reply(), Reply::Int(n));
    }
    client.reply().grant();
}

#[test]
fn headers_come_in_any_number_of_pieces() {
    let proxy = behind_balancer().start();
    for whole in [over_ipv4([10, 0, 0, 1]), b"PROXY TCP4 10.0.0.1 10.0.0.2 1 2\r\n".to_vec()] {
        let mut client = Client::connect(proxy.balancer_port());
        for byte in whole.iter().chain(b"PING\r\n") {
            client.send(&[*byte]);
            thread::sleep(Duration::from_millis(2));
        }
        assert_eq!(client.reply(), Reply::simple("PONG"));
        for at in 1..whole.len() {
            let (first, second) = whole.split_at(at);
            let mut client = with(&proxy, first);
            client.send(&[second, b"PING\r\n"].concat());
            assert_eq!(client.reply(), Reply::simple("PONG"), "{at}");
        }
    }
}

#[test]
fn every_family_is_understood_and_counted_as_what_it_is() {
    let proxy = behind_balancer().top("max_clients_per_address: 1").start();
    let mapped = Ipv4Addr::new(10, 0, 0, 1).to_ipv6_mapped();
    let net = |host| Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, host);
    // This header has more bytes behind the addresses than one look sees.
    let mut added = over_ipv4([10, 0, 0, 1]);
    added[14..16].copy_from_slice(&(12u16 + 3 + 3000).to_be_bytes());
    added.extend([&[0xe0, 0x0b, 0xb8][..], &[b'x'; 3000]].concat());
    let udp = header(PROXY, 0x12, &over_ipv4([10, 0, 0, 1])[16..]);
    let text = |line: &str| line.as_bytes().to_vec();
    let groups = [
        vec![
            over_ipv4([10, 0, 0, 1]),
            over_ipv6(mapped),
            added,
            udp,
            text("PROXY TCP4 10.0.0.1 10.0.0.2 1 2\r\n"),
        ],
        vec![over_ipv6(net(1)), over_ipv6(net(2)), text("PROXY TCP6 2001:db8::3 ::1 1 2\r\n")],
    ];
    for same in groups {
        for holder in &same {
            let mut holding = with(&proxy, holder);
            // The place of the previous client may not be free yet.
            eventually("it is in", || {
                holding.send(b"PING\r\n");
                holding.rest_is_pong() || {
                    holding = with(&proxy, holder);
                    false
                }
            });
            for bytes in &same {
                let mut client = with(&proxy, bytes);
                assert_eq!(client.rest().0, PER_ADDRESS, "{}", String::from_utf8_lossy(bytes));
            }
        }
    }
}

#[test]
fn a_balancer_that_names_nobody_is_not_limited_as_one_client() {
    let proxy = behind_balancer().top("max_clients_per_address: 1\nmax_connect_rate: 1").start();
    let nobody = [
        header(LOCAL, 0x00, b""),
        header(LOCAL, 0x11, &over_ipv4([10, 0, 0, 1])[16..]),
        // Bytes that must be ignored may be nonsense.
        header(LOCAL, 0x11, b""),
        header(LOCAL, 0x77, b"??"),
        header(PROXY, 0x00, b""),
        header(PROXY, 0x00, b"whatever"),
        header(PROXY, 0x31, &[b'/'; 216]),
        b"PROXY UNKNOWN\r\n".to_vec(),
        b"PROXY UNKNOWN ffff::1 ffff::2 1 2\r\n".to_vec(),
    ];
    let mut held: Vec<Client> =
        nobody.iter().chain(&nobody).map(|bytes| with(&proxy, bytes)).collect();
    for (index, client) in held.iter_mut().enumerate() {
        assert_eq!(client.cmd(&["PING"]), Reply::simple("PONG"), "{index}");
    }
}

#[test]
fn who_sends_no_header_is_told_and_closed_and_reaches_nothing() {
    let mut proxy = behind_balancer().start();
    let mut long = header(PROXY, 0x11, &over_ipv4([10, 0, 0, 1])[16..]);
    long[14..16].copy_from_slice(&u16::MAX.to_be_bytes());
    long.resize(16 + usize::from(u16::MAX), 0);
    let mut version_3 = over_ipv4([10, 0, 0, 1]);
    version_3[12] = 0x31;
    let mut command = over_ipv4([10, 0, 0, 1]);
    command[12] = 0x22;
    let bad: Vec<(&str, Vec<u8>)> = vec![
        ("a command", encode(&["SET", "reached", "1"])),
        ("a command without array", b"PING\r\n".to_vec()),
        ("a byte", b"x".to_vec()),
        ("an empty line", b"\r\nSET reached 1\r\n".to_vec()),
        ("nearly the signature", b"\r\n\r\n\0\r\nQUIT\r".to_vec()),
        ("another version", version_3),
        ("another command", command),
        ("another family", header(PROXY, 0x41, &[0; 300])),
        ("no transport", header(PROXY, 0x10, &[0; 12])),
        ("too few bytes for IPv4", header(PROXY, 0x11, &[0; 11])),
        ("too few bytes for IPv6", header(PROXY, 0x21, &[0; 12])),
        ("too few bytes for a socket's name", header(PROXY, 0x31, &[0; 215])),
        ("too long", long),
        ("text of no family", b"PROXY TCP5 10.0.0.1 10.0.0.2 1 2\r\n".to_vec()),
        ("text with a wrong address", b"PROXY TCP4 10.0.0 10.0.0.2 1 2\r\n".to_vec()),
        ("text with a wrong port", b"PROXY TCP4 10.0.0.1 10.0.0.2 1 99999\r\n".to_vec()),
        ("text without an end", [b"PROXY TCP4 ", &[b'1'; 200][..]].concat()),
        ("TLS", [&[22, 3, 1, 2, 0][..], &[0; 512]].concat()),
    ];
    let mut count = refused(&proxy, "proxy_header");
    for (what, bytes) in bad {
        let mut client = Client::connect(proxy.balancer_port());
        // The connection may be closed before all bytes are sent.
        let sent = client.reader().get_mut().write_all(&bytes);
        let (text, orderly) = client.rest();
        if orderly && sent.is_ok() {
            assert_eq!(text, REFUSED, "{what}");
        }
        count += 1.0;
        eventually(what, || refused(&proxy, "proxy_header") >= count);
        assert_eq!(refused(&proxy, "proxy_header"), count, "{what}");
    }
    for cut in 1..28 {
        let mut client = with(&proxy, &over_ipv4([10, 0, 0, 1])[..cut]);
        client.hang_up();
        assert_eq!(client.rest(), (REFUSED.to_vec(), true), "{cut}");
    }
    assert_eq!(refused(&proxy, "proxy_header"), count + 27.0);
    let mut data = Client::connect(proxy.data().port());
    assert_eq!(data.cmd(&["EXISTS", "reached"]), Reply::Int(0));
    let lines = proxy.log().matches("proxy_protocol demands a PROXY header").count();
    assert!((1..=4).contains(&lines), "{lines} lines for {} refusals", count + 27.0);
    assert_eq!(proxy.metric("lockgate_client_connections", ""), 0.0);
    assert!(is_served(&proxy, &over_ipv4([10, 0, 0, 1])));
}

#[test]
fn who_only_looks_whether_somebody_listens_is_no_trouble() {
    let proxy = behind_balancer().start();
    for _ in 0..10 {
        let mut client = Client::connect(proxy.balancer_port());
        client.hang_up();
        assert_eq!(client.rest(), (Vec::new(), true));
    }
    assert_eq!(refused(&proxy, "proxy_header"), 0.0);
}

#[test]
fn a_header_must_come_in_time() {
    let quick = behind_balancer().top("first_byte_timeout: 300ms").start();
    // The header comes slowly, but without a pause.
    let mut client = Client::connect(quick.balancer_port());
    let mut endless = over_ipv4([10, 0, 0, 1]);
    endless[14..16].copy_from_slice(&4000u16.to_be_bytes());
    endless.resize(16 + 4000, b'x');
    let sent = endless.iter().take_while(|byte| {
        thread::sleep(Duration::from_millis(20));
        client.reader().get_mut().write_all(&[**byte]).is_ok()
    });
    assert!(sent.count() < 4000);
    // What comes behind the header has a time limit of its own, and another error.
    let mut silent = with(&quick, &over_ipv4([10, 0, 0, 1]));
    assert_eq!(silent.rest(), (Vec::new(), true));
    // The proxy counts once the connection is closed.
    eventually("it is counted", || quick.metric("lockgate_closes_total", "first_byte") == 1.0);
    // Clients may be silent, a balancer may not.
    let patient = behind_balancer().start();
    let mut begun = with(&patient, b"\r\n\r\n");
    let mut silent = Client::connect(patient.balancer_port());
    let mut named = with(&patient, &over_ipv4([10, 0, 0, 1]));
    assert_eq!(begun.rest(), (REFUSED.to_vec(), true));
    assert_eq!(silent.rest(), (REFUSED.to_vec(), true));
    assert_eq!(named.cmd(&["PING"]), Reply::simple("PONG"));
    assert_eq!(refused(&patient, "proxy_header"), 2.0);
}

#[test]
fn connections_that_send_no_header_are_bounded() {
    let proxy = behind_balancer().top("maxclients: 5").start();
    let silent: Vec<Client> = (0..5).map(|_| Client::connect(proxy.balancer_port())).collect();
    let full = b"-ERR max number of clients reached\r\n";
    assert_eq!(Client::connect(proxy.balancer_port()).rest().0, full);
    assert_eq!(proxy.client().rest().0, full);
    drop(silent);
    eventually("there is room", || is_served(&proxy, &over_ipv4([10, 0, 0, 1])));
}

#[test]
fn a_shutdown_does_not_wait_for_headers() {
    let mut proxy = behind_balancer().start();
    let mut waiting = with(&proxy, b"\r\n\r\n");
    let mut served = with(&proxy, &over_ipv4([10, 0, 0, 1]));
    assert_eq!(served.cmd(&["PING"]), Reply::simple("PONG"));
    proxy.terminate();
    assert!(proxy.wait().success());
    // Closed without the refusal that it would have got in the end.
    assert_eq!(waiting.rest().0, b"");
}

#[test]
fn tls_begins_behind_the_header() {
    let certificate = Certificate::new();
    let proxy = Proxy::with()
        .behind_balancer(&certificate.of_listener())
        .top("allow_open: yes\nmax_clients_per_address: 1")
        .start();
    let server = format!("127.0.0.1:{} send-proxy-v2", proxy.balancer_port());
    let haproxy = HaProxy::start("", "", &server);
    let mut balanced = certificate.client(haproxy.port, b"");
    balanced.cmd(&["LOCK", "k", "balanced"]).grant();
    // The header comes in one packet with the first bytes of the handshake.
    let mut direct = certificate.client(proxy.balancer_port(), &over_ipv4([10, 0, 0, 1]));
    assert_eq!(direct.cmd(&["LOCK", "k", "direct"]), Reply::NullArray);
    // TLS without a header.
    let mut bare = certificate.client(proxy.balancer_port(), b"");
    assert!(
        bare.reader()
            .get_mut()
            .write_all(b"PING\r\n")
            .and_then(|()| { bare.reader().read_exact(&mut [0; 1]) })
            .is_err()
    );
    assert_eq!(refused(&proxy, "proxy_header"), 1.0);
    // A header without TLS.
    let mut plain = with(&proxy, &[&over_ipv4([10, 0, 0, 2])[..], b"PING\r\n"].concat());
    assert_eq!(plain.rest().0, b"-ERR this port speaks TLS only\r\n");
    let own = "\"peer\":\"10.0.0.2:12345\"";
    eventually("the log has the client's own address", || proxy.log().contains(own));
}

#[test]
fn a_header_elsewhere_is_redis_s_affair() {
    let mut proxy = Proxy::start();
    let text = b"PROXY TCP4 10.0.0.1 10.0.0.2 1 2\r\nPING\r\nQUIT\r\n";
    let ports = [proxy.data().port(), proxy.port()];
    let [direct, through] = ports.map(|port| {
        let mut client = Client::connect(port);
        client.send(text);
        client.rest().0
    });
    assert!(direct.starts_with(b"-ERR unknown command 'PROXY'"));
    assert_eq!(direct, through);
    // Redis sees no end of line behind a zero byte, and waits.
    for port in ports {
        let mut client = Client::connect(port);
        client.send(&[&over_ipv4([10, 0, 0, 1])[..], b"PING\r\n"].concat());
        client.expect_silence(Duration::from_millis(300));
    }
}

#[test]
fn a_balancer_on_this_machine_brings_strangers() {
    let data = RedisServer::start(&[]).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("f.yaml");
    let config = format!(
        "listen: {{address: '127.0.0.1:{}', proxy_protocol: yes}}\nadmin: off\ndata: {url}\n\
         locks: {{nodes: ['{url}']}}\n",
        free_port().unwrap(),
        url = data.url()
    );
    std::fs::write(&file, config).unwrap();
    let mut child = Command::new("setpriv")
        .args(["--pdeathsig", "KILL", env!("CARGO_BIN_EXE_lockgate"), "--config"])
        .arg(&file)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut ended = None;
    let mut waiting = || {
        ended = child.try_wait().unwrap();
        ended.is_some()
    };
    eventually("it does not start", &mut waiting);
    assert!(!ended.unwrap().success());
    let mut words = String::new();
    child.stderr.take().unwrap().read_to_string(&mut words).unwrap();
    assert!(words.contains("(listen, through a balancer) can be reached from other"), "{words}");
    // With a password the proxy starts, and its clients have to authenticate.
    let proxy =
        Proxy::with().behind_balancer("").data_arguments(&["--requirepass", "secret"]).start();
    let mut client = with(&proxy, &over_ipv4([10, 0, 0, 1]));
    assert!(client.cmd(&["GET", "k"]).error().starts_with("NOAUTH"));
}

// To the data node.

/// Sets up a proxy whose data node is a Redis behind this HAProxy, which is told the clients' addresses.
fn before(haproxy: &HaProxy) -> Setup {
    Proxy::with()
        .data_url(&format!("redis://127.0.0.1:{}", haproxy.port))
        .top("send_proxy_protocol: yes")
}

#[test]
fn the_data_node_sees_each_client_and_the_proxy_as_itself() {
    let redis = RedisServer::start(&[]).unwrap();
    let keep_out = "tcp-request connection reject if { src 127.0.0.9 }";
    let haproxy = HaProxy::start("accept-proxy", "", &format!("127.0.0.1:{}", redis.port()));
    let keeper = HaProxy::start(
        "accept-proxy",
        &keep_out.replace("connection", "session"),
        &format!("127.0.0.1:{}", redis.port()),
    );
    // HAProxy demands a header; otherwise the checks below would show nothing.
    let mut bare = Client::connect(haproxy.port);
    bare.send(b"PING\r\n");
    assert_eq!(bare.rest().0, b"");

    let proxy = before(&haproxy).start();
    is_ready(&proxy);
    let mut client = Client::connect_from([127, 0, 0, 2], proxy.port());
    assert_eq!(client.cmd(&["SET", "k", "v"]), Reply::ok());
    client.cmd(&["LOCK", "k"]).grant();
    let (here, there) =
        (client.socket().local_addr().unwrap(), client.socket().peer_addr().unwrap());
    drop(client);
    let line = format!("from {here} to {there}.");
    eventually("HAProxy tells of the client", || haproxy.log().contains(&line));
    // The proxy's own questions go from its own address to HAProxy.
    let own = format!(" to 127.0.0.1:{}.", haproxy.port);
    eventually("HAProxy tells of the proxy", || haproxy.log().contains(&own));

    let proxy = before(&keeper).start();
    is_ready(&proxy);
    let mut welcome = Client::connect_from([127, 0, 0, 2], proxy.port());
    assert_eq!(welcome.cmd(&["GET", "k"]), Reply::bulk("v"));
    let mut kept_out = Client::connect_from([127, 0, 0, 9], proxy.port());
    kept_out.send(&encode(&["GET", "k"]));
    assert_eq!(kept_out.rest().0, b"");
}

#[test]
fn what_a_balancer_tells_is_told_on() {
    let redis = RedisServer::start(&[]).unwrap();
    let after = HaProxy::start("accept-proxy", "", &format!("127.0.0.1:{}", redis.port()));
    let proxy = before(&after).behind_balancer("").top("allow_open: yes").start();
    is_ready(&proxy);
    let first =
        HaProxy::start("", "", &format!("127.0.0.1:{} send-proxy-v2", proxy.balancer_port()));
    let mut client = Client::connect_from([127, 0, 0, 2], first.port);
    assert_eq!(client.cmd(&["SET", "k", "v"]), Reply::ok());
    let here = client.socket().local_addr().unwrap();
    drop(client);
    let line = format!("from {here} to 127.0.0.1:{}.", first.port);
    eventually("the last one knows what the first one knew", || after.log().contains(&line));
    // IPv6, and IPv4 mapped to it.
    let six: SocketAddr = "[2001:db8::7]:12345".parse().unwrap();
    assert!(is_served(&proxy, &over_ipv6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 7))));
    let told = format!("from {}:{} to ::1:6379.", six.ip(), six.port());
    eventually("IPv6 is told on", || after.log().contains(&told));
    // A balancer that names no client stands for itself.
    let mut local = with(&proxy, &header(LOCAL, 0, b""));
    assert_eq!(local.cmd(&["PING"]), Reply::simple("PONG"));
    let (here, there) = (local.socket().local_addr().unwrap(), local.socket().peer_addr().unwrap());
    drop(local);
    let line = format!("from {here} to {there}.");
    eventually("the balancer itself is told on", || after.log().contains(&line));
}

#[test]
fn the_header_goes_before_tls_and_over_unix_sockets() {
    let redis = RedisServer::start(&[]).unwrap();
    let certificate = Certificate::new();
    let server = format!("127.0.0.1:{}", redis.port());
    let bind = format!("accept-proxy ssl crt {}", certificate.path("both"));
    let haproxy = HaProxy::start(&bind, "bind unix@DIR/socket accept-proxy", &server);
    let trusted = format!("tls: {{ca_cert_file: {}}}", certificate.path("crt"));
    let encrypted = Proxy::with()
        .data_url(&format!("rediss://localhost:{}", haproxy.port))
        .top("send_proxy_protocol: yes")
        .top(&trusted)
        .start();
    let local = Proxy::with()
        .data_url(&format!("unix://{}", haproxy.file("socket").display()))
        .top("send_proxy_protocol: yes")
        .start();
    for proxy in [encrypted, local] {
        is_ready(&proxy);
        let mut client = proxy.client();
        assert_eq!(client.cmd(&["SET", "k", "v"]), Reply::ok());
        let line = format!("from {} to ", client.socket().local_addr().unwrap());
        drop(client);
        eventually("HAProxy tells of the client", || haproxy.log().contains(&line));
    }
}

#[test]
fn doctor_and_the_question_for_a_password_send_a_header_too() {
    let redis = RedisServer::start(&["--requirepass", "secret"]).unwrap();
    let node = RedisServer::start(&[]).unwrap();
    let haproxy = HaProxy::start("accept-proxy", "", &format!("127.0.0.1:{}", redis.port()));
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("f.yaml");
    let config = format!(
        "data: redis://:secret@127.0.0.1:{}\nsend_proxy_protocol: yes\nlocks: {{nodes: ['{}']}}\n",
        haproxy.port,
        node.url()
    );
    std::fs::write(&file, config).unwrap();
    let output =
        Command::new(env!("CARGO_BIN_EXE_lockgate")).arg("doctor").arg(&file).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    // Without allow_open the client is let in only because the data node was asked.
    let proxy = before(&haproxy).behind_balancer("").start();
    eventually("clients are let in", || {
        let mut client = with(&proxy, &over_ipv4([10, 0, 0, 1]));
        client.send(&encode(&["AUTH", "secret"]));
        client.send(&encode(&["QUIT"]));
        client.rest().0.starts_with(b"+OK")
    });
    assert!(!proxy.log().contains("not known whether the data node asks"));
}
