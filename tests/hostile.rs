//! Clients that mean harm, or only do it: whom the limits keep out, and that the
//! others notice nothing of those who are in.
//!
//! How much slower the others become is bench/soak's question; here they only
//! have to be served at all.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod support;

use std::{
    io::{Read, Write},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use lockgate::redis_server::{RedisServer, free_port};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use support::{Client, Proxy, Reply, Setup, encode, eventually, pipeline};

/// 127.0.0.2, which is this machine too but another address.
const ELSEWHERE: [u8; 4] = [127, 0, 0, 2];

const FULL: &[u8] = b"-ERR max number of clients reached\r\n";
const FULL_ADDRESS: &[u8] = b"-ERR max number of clients of this address reached\r\n";
const TOO_FAST: &[u8] = b"-ERR too many new connections from this address, come back later\r\n";

fn pong() -> Reply {
    Reply::simple("PONG")
}

/// How many connections the data node has taken since its start.
fn upstream_connections(proxy: &mut Proxy) -> u64 {
    let mut client = Client::connect(proxy.data().port());
    let Reply::Bulk(text) = client.cmd(&["INFO", "stats"]) else { panic!("no INFO") };
    let text = String::from_utf8(text).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("total_connections_received:"));
    line.unwrap().parse().unwrap()
}

/// Whether a new client is let in.
fn is_let_in(mut client: Client) -> bool {
    client.send(b"PING\r\n");
    client.rest_is_pong()
}

#[test]
fn a_refused_client_is_told_why_and_costs_the_data_node_nothing() {
    let mut proxy = Proxy::with().top("maxclients: 3").start();
    let mut inside: Vec<Client> = (0..3).map(|_| proxy.client()).collect();
    for client in &mut inside {
        assert_eq!(client.cmd(&["PING"]), pong());
    }
    let (begun, before) = (Instant::now(), upstream_connections(&mut proxy));
    for _ in 0..500 {
        assert_eq!(proxy.client().rest().0, FULL);
    }
    // Readiness is asked every second; this question itself was another.
    let checks = begun.elapsed().as_secs() + 3;
    let more = upstream_connections(&mut proxy) - before;
    assert!(more <= checks, "{more} connections to the data node");
    assert_eq!(proxy.metric("lockgate_clients_refused_total", "maxclients"), 500.0);
    assert_eq!(proxy.metric("lockgate_client_connections_total", ""), 3.0);
    inside.pop();
    eventually("there is room again", || is_let_in(proxy.client()));
}

#[test]
fn refused_clients_that_do_not_read_hold_nothing() {
    let proxy = Proxy::with().top("maxclients: 2").start();
    let mut inside = proxy.client();
    assert_eq!(inside.cmd(&["PING"]), pong());
    let _second = proxy.client();
    let files = || std::fs::read_dir(format!("/proc/{}/fd", proxy.pid())).unwrap().count();
    eventually("the second is in", || proxy.metric("lockgate_client_connections", "") == 2.0);
    let before = files();
    let unread: Vec<Client> = (0..1000).map(|_| proxy.client()).collect();
    eventually("all are refused", || {
        proxy.metric("lockgate_clients_refused_total", "maxclients") == 1000.0
    });
    eventually("none is held", || files() <= before + 2);
    assert_eq!(inside.cmd(&["PING"]), pong());
    drop(unread);
}

#[test]
fn one_address_cannot_take_the_places_of_others() {
    let proxy = Proxy::with().top("max_clients_per_address: 2").start();
    let mut first = proxy.client();
    let mut second = proxy.client();
    assert_eq!((first.cmd(&["PING"]), second.cmd(&["PING"])), (pong(), pong()));
    assert_eq!(proxy.client().rest().0, FULL_ADDRESS);
    let mut other = Client::connect_from(ELSEWHERE, proxy.port());
    assert_eq!(other.cmd(&["PING"]), pong());
    assert_eq!(proxy.metric("lockgate_clients_refused_total", "per_address"), 1.0);
    drop(first);
    eventually("there is room again", || is_let_in(proxy.client()));
}

#[test]
fn an_address_that_comes_too_often_is_sent_away_for_a_while() {
    let proxy = Proxy::with().top("max_connect_rate: 5").start();
    let begun = Instant::now();
    let mut let_in = 0;
    for _ in 0..100 {
        let mut client = proxy.client();
        client.send(b"PING\r\n");
        let (mut bytes, mut byte) = (Vec::new(), [0; 1]);
        while !bytes.ends_with(b"\n") && client.socket().read(&mut byte).unwrap() == 1 {
            bytes.push(byte[0]);
        }
        match bytes.as_slice() {
            b"+PONG\r\n" => let_in += 1,
            refused => assert_eq!(refused, TOO_FAST),
        }
    }
    let at_most = 5.0 + 5.0 * begun.elapsed().as_secs_f64();
    assert!((5.0..=at_most).contains(&f64::from(let_in)), "{let_in} let in");
    assert!(is_let_in(Client::connect_from(ELSEWHERE, proxy.port())), "another address");
    let refused = proxy.metric("lockgate_clients_refused_total", "connect_rate");
    assert_eq!(refused, f64::from(100 - let_in));
    thread::sleep(Duration::from_millis(1100));
    assert!((0..5).all(|_| is_let_in(proxy.client())), "a second later");
}

#[test]
fn a_client_that_never_speaks_is_closed_and_costs_the_data_node_nothing() {
    let mut proxy = Proxy::with().top("first_byte_timeout: 2s").start();
    let mut speaker = proxy.client();
    assert_eq!(speaker.cmd(&["PING"]), pong());
    let (begun, before) = (Instant::now(), upstream_connections(&mut proxy));
    let mut silent: Vec<Client> = (0..100).map(|_| proxy.client()).collect();
    // Gone before it spoke: not waited for.
    drop(proxy.client());
    eventually("its end is seen", || proxy.metric("lockgate_closes_total", "\"client\"") == 1.0);
    for client in &mut silent {
        assert_eq!(client.rest(), (Vec::new(), true));
    }
    assert!(begun.elapsed() >= Duration::from_secs(2), "closed after {:?}", begun.elapsed());
    eventually("it is counted", || proxy.metric("lockgate_closes_total", "first_byte") == 100.0);
    let more = upstream_connections(&mut proxy) - before;
    let checks = begun.elapsed().as_secs() + 3;
    assert!(more <= checks, "{more} connections to the data node");
    // The limit is for the first byte alone.
    assert_eq!(speaker.cmd(&["PING"]), pong());
}

#[test]
fn without_a_limit_silence_is_no_offence_and_shutdown_ends_it_with_one() {
    let mut proxy = Proxy::start();
    let mut silent = proxy.client();
    silent.expect_silence(Duration::from_millis(1500));
    assert_eq!(silent.cmd(&["PING"]), pong());
    let mut limited = Proxy::with().top("first_byte_timeout: 1h").start();
    let mut silent = limited.client();
    silent.expect_silence(Duration::from_millis(100));
    for proxy in [&mut proxy, &mut limited] {
        let begun = Instant::now();
        proxy.terminate();
        assert!(proxy.wait().success());
        assert!(begun.elapsed() < Duration::from_secs(8), "not before shutdown_grace was over");
    }
}

fn limit_files(proxy: &Proxy, files: u64) {
    let limit = Rlimit { current: Some(files), maximum: getrlimit(Resource::Nofile).maximum };
    let pid = Pid::from_raw(proxy.pid().try_into().unwrap());
    prlimit(pid, Resource::Nofile, limit).unwrap();
}

#[test]
fn without_file_descriptors_the_proxy_waits_and_goes_on() {
    let mut proxy = Proxy::start();
    let mut inside = proxy.client();
    assert_eq!(inside.cmd(&["PING"]), pong());
    let open = std::fs::read_dir(format!("/proc/{}/fd", proxy.pid())).unwrap().count() as u64;
    limit_files(&proxy, open);
    // The kernel completes these; nobody can take them up.
    let outside: Vec<Client> = (0..50).map(|_| proxy.client()).collect();
    let told = || proxy.log().matches("cannot accept connections").count();
    eventually("it is told", || told() == 1);
    let ticks = || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", proxy.pid())).unwrap();
        let fields: Vec<u64> =
            stat.split(' ').skip(13).take(2).map(|n| n.parse().unwrap()).collect();
        fields.iter().sum::<u64>()
    };
    let before = ticks();
    for _ in 0..30 {
        assert_eq!(inside.cmd(&["PING"]), pong());
        thread::sleep(Duration::from_millis(100));
    }
    // A hundred to the second: one that spins would have used all of them.
    let used = ticks() - before;
    assert!(used < 100, "{used} ticks of CPU in three seconds");
    assert_eq!(told(), 1, "once in a while, not for each failure");
    limit_files(&proxy, 2000);
    // The readiness check gives a descriptor back now and then: whoever got that
    // had none left for the data node, and was told as if the proxy were full.
    for mut client in outside {
        client.socket().write_all(b"PING\r\nQUIT\r\n").unwrap();
        let (bytes, _) = client.rest();
        let text = String::from_utf8_lossy(&bytes);
        assert!(bytes == FULL || text == "+PONG\r\n+OK\r\n", "{text}");
    }
    assert!(is_let_in(proxy.client()));
    let errors = proxy.metric("lockgate_accept_errors_total", "");
    assert!((1.0..1000.0).contains(&errors), "{errors} failures counted");
    assert!(proxy.is_alive());
}

#[test]
fn maxclients_is_made_to_fit_the_file_descriptors_there_are() {
    let limit = getrlimit(Resource::Nofile).maximum;
    let Some(files) = limit else { return println!("no limit here") };
    let proxy = Proxy::with().top("maxclients: 100000000").start();
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", proxy.pid())).unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let soft: u64 = line.split_whitespace().nth(3).unwrap().parse().unwrap();
    assert_eq!(soft, files, "raised as far as it may be");
    let log = proxy.log();
    assert!(log.contains("too few file descriptors") && log.contains("lowered_to"), "{log}");
    let mut client = proxy.client();
    assert_eq!(client.cmd(&["PING"]), pong());
    client.send(&encode(&["LOCK", "k", "PX", "1000"]));
    client.reply().grant();
}

/// A proxy at every address of this machine, before `data`.
fn before(data: &RedisServer) -> Setup {
    Proxy::with().host("0.0.0.0").data_port(data.port())
}

/// Runs with this configuration until it ends by itself, and gives what it said.
fn ends_with(config: &str) -> String {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("lockgate.yaml");
    std::fs::write(&file, config).unwrap();
    let mut child = Command::new("setpriv")
        .args(["--pdeathsig", "KILL", env!("CARGO_BIN_EXE_lockgate"), "--config"])
        .arg(&file)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let begun = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if begun.elapsed() > support::LIMIT {
            let _ = child.kill();
            panic!("it runs with {config}");
        }
        thread::sleep(Duration::from_millis(5));
    };
    assert_eq!(status.code(), Some(1));
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    said
}

#[test]
fn beyond_loopback_an_open_data_node_is_refused() {
    let data = RedisServer::start(&[]).unwrap();
    for host in ["0.0.0.0", "[::]"] {
        let port = free_port().unwrap();
        let said = ends_with(&format!(
            "listen: [127.0.0.1:{}, '{host}:{port}']\nadmin: off\ndata: redis://127.0.0.1:{}\n",
            free_port().unwrap(),
            data.port()
        ));
        for words in [&format!("{host}:{port} (listen)"), "for a password", "allow_open: true"] {
            assert!(said.contains(words), "{words} is not in {said}");
        }
    }
    let proxy = before(&data).top("allow_open: true").start();
    assert_eq!(proxy.client().cmd(&["PING"]), pong());
}

#[test]
fn beyond_loopback_a_data_node_with_a_password_is_served() {
    let data = RedisServer::start(&["--requirepass", "secret"]).unwrap();
    let proxy = before(&data).start();
    let mut client = proxy.client();
    assert!(client.cmd(&["PING"]).error().starts_with("NOAUTH"));
    assert_eq!(client.cmd(&["AUTH", "secret"]), Reply::ok());
    assert_eq!(client.cmd(&["PING"]), pong());
}

#[test]
fn a_data_node_that_cannot_be_asked_at_start_is_asked_until_it_tells() {
    let mut data = RedisServer::start(&[]).unwrap();
    data.kill().unwrap();
    let proxy = before(&data).start();
    let denied = |proxy: &Proxy| {
        let text = String::from_utf8(proxy.client().rest().0).unwrap();
        text.starts_with("-DENIED Lockgate ")
            && text.contains("allow_open")
            && text.ends_with("\r\n")
    };
    assert!(denied(&proxy));
    assert!(proxy.http("/readyz").contains("not known to ask for a password"));
    // It comes up, and is open to everybody.
    data.restart().unwrap();
    eventually("it is seen", || proxy.log().contains("asks nobody for a password"));
    assert!(denied(&proxy));
    eventually("it is reached", || proxy.http("/readyz").contains(": ok"));
    assert!(proxy.http("/readyz").starts_with("HTTP/1.1 503"));
    assert!(proxy.metric("lockgate_clients_refused_total", "open") >= 2.0);
    // Its operator gives it a password.
    Client::connect(data.port()).cmd(&["CONFIG", "SET", "requirepass", "secret"]);
    eventually("clients are let in", || {
        let mut client = proxy.client();
        client.send(&pipeline(&[&["AUTH", "secret"], &["QUIT"]]));
        client.rest().0.starts_with(b"+OK")
    });
    eventually("it is ready", || proxy.http("/readyz").starts_with("HTTP/1.1 200"));
}

#[test]
fn on_loopback_nothing_is_asked() {
    let mut data = RedisServer::start(&[]).unwrap();
    data.kill().unwrap();
    let proxy = Proxy::with().data_port(data.port()).start();
    assert_eq!(proxy.client().rest().0, b"", "closed for want of a data node, not denied");
    data.restart().unwrap();
    assert_eq!(proxy.client().cmd(&["PING"]), pong());
}
