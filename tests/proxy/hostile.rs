//! Clients that do harm, on purpose or not: limits keep some out, and other clients notice nothing of those that are
//! let in.
//!
//! bench/soak measures how much slower the other clients become; here they only have to be served at all.

use std::{
    io::{Read, Write},
    net::{Shutdown, TcpListener},
    panic::{self, AssertUnwindSafe},
    process::{Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use crate::support::{self, Client, Proxy, Reply, Setup, encode, eventually, pipeline};
use lockgate::tools::{free_port::free_port, redis_server::RedisServer};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};

/// 127.0.0.2, which is another address of this machine.
const ELSEWHERE: [u8; 4] = [127, 0, 0, 2];

const FULL: &[u8] = b"-ERR max number of clients reached\r\n";
const FULL_ADDRESS: &[u8] = b"-ERR max number of clients reached\r\n";
const TOO_FAST: &[u8] = b"-ERR max number of clients reached\r\n";

fn pong() -> Reply {
    Reply::simple("PONG")
}

/// Returns the number of connections that the data node has taken since its start.
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
    // The readiness check connects every second, and this question was one more connection.
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
    drop((first, second));
    eventually("there is room again", || {
        let mut both = [proxy.client(), proxy.client()];
        both.iter_mut().for_each(|client| client.send(b"PING\r\n"));
        both.iter_mut().all(Client::rest_is_pong)
    });
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
    // A client that leaves before its first byte is not waited for.
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
    // The limit is only for the first byte.
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
    // The kernel completes these connections, but the proxy cannot accept them.
    let outside: Vec<Client> = (0..50).map(|_| proxy.client()).collect();
    let told = || proxy.log().matches("cannot accept connections").count();
    eventually("it is told", || told() == 1);
    let before = proxy.ticks();
    for _ in 0..30 {
        assert_eq!(inside.cmd(&["PING"]), pong());
        thread::sleep(Duration::from_millis(100));
    }
    // A busy loop would have used all of them.
    let used = proxy.ticks() - before;
    assert!(used < 100, "{used} ticks of CPU in three seconds");
    assert_eq!(told(), 1, "once in a while, not for each failure");
    limit_files(&proxy, 2000);
    // The readiness check frees a descriptor now and then. A client that got it had none left for the data node, and
    // was told that the proxy is full.
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
    let proxy = Proxy::with().files(100, 1000).top("maxclients: 10000").start();
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", proxy.pid())).unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    assert_eq!(line.split_whitespace().nth(3), Some("1000"), "raised as far as it may be");
    let log = proxy.log();
    assert!(log.contains("too few file descriptors") && log.contains("\"lowered_to\":"), "{log}");
    // Each client that is let in is served, and each other one is told.
    let mut clients: Vec<Client> = (0..600).map(|_| proxy.client()).collect();
    let mut served = 0;
    for client in &mut clients {
        match client.socket().write_all(b"PING\r\n").is_ok() && client.rest_is_pong() {
            true => served += 1,
            false => assert!(served > 400, "{served} served"),
        }
    }
    assert!((401..500).contains(&served), "{served} served");
    assert_eq!(proxy.metric("lockgate_accept_errors_total", ""), 0.0);
    assert_eq!(
        proxy.metric("lockgate_clients_refused_total", "maxclients"),
        600.0 - f64::from(served)
    );
}

/// Sets up a proxy at every address of this machine, with the data node `data`.
fn before(data: &RedisServer) -> Setup {
    Proxy::with().host("0.0.0.0").data_port(data.port())
}

/// Runs the proxy with this configuration until it ends by itself. Returns its output.
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
    // The data node comes up, and asks no client for a password.
    data.restart().unwrap();
    eventually("it is seen", || proxy.log().contains("asks nobody for a password"));
    assert!(denied(&proxy));
    eventually("it is reached", || proxy.http("/readyz").contains(": ok"));
    assert!(proxy.http("/readyz").starts_with("HTTP/1.1 503"));
    assert!(proxy.metric("lockgate_clients_refused_total", "open") >= 2.0);
    // The data node's operator gives it a password.
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

/// The most memory that the proxy may take in any case: see [`while_others_work`].
const BOUND: usize = 64 << 20;
/// The longest time for another client's command meanwhile: far more than it takes, as the machine also runs other
/// tests, but finite.
const PROMPT: Duration = Duration::from_secs(10);

/// Runs `attack` while another client pings and locks. Each of its commands must be prompt, and the proxy's memory
/// must stay below [`BOUND`].
fn while_others_work(proxy: &mut Proxy, attack: impl FnOnce(&Proxy) + Send) {
    let (done, proxy_then) = (AtomicBool::new(false), &*proxy);
    thread::scope(|scope| {
        let attack = scope.spawn(|| {
            let ended = panic::catch_unwind(AssertUnwindSafe(|| attack(proxy_then)));
            done.store(true, Ordering::Relaxed);
            ended
        });
        let mut client = proxy_then.client();
        let mut slowest = Duration::ZERO;
        while !done.load(Ordering::Relaxed) {
            let begun = Instant::now();
            assert_eq!(client.cmd(&["PING"]), pong());
            client.cmd(&["LOCK", "mine", "PX", "10000"]).grant();
            assert_eq!(client.cmd(&["UNLOCK", "mine"]), Reply::Int(1));
            slowest = slowest.max(begun.elapsed());
            // New clients are let in too.
            assert_eq!(proxy_then.client().cmd(&["PING"]), pong());
            thread::sleep(Duration::from_millis(2));
        }
        if let Err(panic) = attack.join().unwrap() {
            panic::resume_unwind(panic);
        }
        let peak = proxy_then.memory("VmHWM");
        println!("slowest {slowest:?}, {} MB at the peak", peak >> 20);
        assert!(slowest < PROMPT, "the other client waited {slowest:?}");
        assert!(peak < BOUND, "{} MB at the peak", peak >> 20);
    });
    assert!(proxy.is_alive());
}

/// Sets up a proxy whose lock nodes get much time, as the machine may be busy.
fn patient() -> Setup {
    Proxy::with().nodes(3).locks("node_timeout: 5s").locks("node_silence: 6s")
}

#[test]
fn a_reader_that_leaves_100_mb_unread_holds_up_nobody() {
    let mut proxy = patient().start();
    proxy.client().cmd(&["SET", "big", &"x".repeat(1 << 20)]);
    while_others_work(&mut proxy, |proxy| {
        let mut greedy: Vec<Client> = (0..4).map(|_| proxy.client()).collect();
        for client in &mut greedy {
            client.send(&encode(&["GET", "big"]).repeat(100));
        }
        thread::sleep(Duration::from_secs(2));
        // One client reads a little now and then, and finds all its replies.
        for _ in 0..100 {
            assert!(matches!(greedy[0].reply(), Reply::Bulk(value) if value.len() == 1 << 20));
        }
    });
}

#[test]
fn a_reader_that_leaves_its_replies_unread_before_a_lock_is_closed_at_the_cap() {
    let mut proxy = patient().top("barrier_buffer: 1mb").start();
    proxy.client().cmd(&["SET", "big", &"x".repeat(1 << 20)]);
    while_others_work(&mut proxy, |proxy| {
        let greedy: Vec<Client> = (0..4)
            .map(|number| {
                let mut client = proxy.client();
                let mut bytes = encode(&["GET", "big"]).repeat(50);
                bytes.extend(encode(&["LOCK", &format!("greedy:{number}"), "PX", "60000"]));
                client.send(&bytes);
                client
            })
            .collect();
        let closed = || proxy.metric("lockgate_closes_total", "barrier_buffer");
        eventually("all are closed", || closed() == 4.0);
        drop(greedy);
    });
    // None of them has left a lock.
    for number in 0..4 {
        proxy.assert_on_nodes(&format!("lock:greedy:{number}"), 0);
    }
}

#[test]
fn writers_of_a_byte_at_a_time_hold_up_nobody() {
    let mut proxy = patient().start();
    while_others_work(&mut proxy, |proxy| {
        let mut slow: Vec<Client> = (0..50).map(|_| proxy.client()).collect();
        let command =
            |number: usize| encode(&["LOCK", &format!("slow:{number:02}"), "PX", "60000"]);
        for at in 0..command(0).len() {
            for (number, client) in slow.iter_mut().enumerate() {
                client.send(&command(number)[at..=at]);
            }
            thread::sleep(Duration::from_millis(50));
        }
        for client in &mut slow {
            client.reply().grant();
        }
    });
}

#[test]
fn a_thousand_half_commands_hold_up_nobody_and_go_with_their_clients() {
    let mut proxy = patient().start();
    while_others_work(&mut proxy, |proxy| {
        let halves: [&[u8]; 4] = [
            b"*",
            b"*4\r\n$4\r\nLOCK\r\n$1000\r\nhalf a key",
            b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$536870912\r\nhalf a value",
            b"LOCK half an inline comma",
        ];
        let clients: Vec<Client> = (0..1000)
            .map(|number| {
                let mut client = proxy.client();
                client.send(halves[number % halves.len()]);
                client
            })
            .collect();
        let open = || proxy.metric("lockgate_client_connections", "");
        eventually("all are in", || open() >= 1000.0);
        thread::sleep(Duration::from_millis(500));
        drop(clients);
        eventually("all are gone", || open() <= 3.0);
    });
}

#[test]
#[ignore = "takes long: make long"]
fn a_hundred_megabytes_of_garbage_on_several_connections_harm_nobody() {
    // The bytes that each of six connections sends; some are closed long before.
    const EACH: usize = 17 << 20;
    let mut proxy = patient().start();
    while_others_work(&mut proxy, |proxy| {
        // Garbage: bytes that are no command, an unknown command, bytes that may be a value, and bytes that look like
        // replies.
        let block = |begin: &str, fill: u8| [begin.as_bytes(), &vec![fill; 1 << 20]].concat();
        let random: Vec<u8> =
            (0..1u32 << 20).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let beginnings = [
            random,
            b"nonsense of some length\r\n".repeat(40_000),
            block("*3\r\n$3\r\nSET\r\n$7\r\ngarbage\r\n$104857600\r\n", 0xff),
            b"+OK\r\n:1\r\n$-1\r\n".repeat(80_000),
            block("*2\r\n$4\r\nLOCK\r\n$104857600\r\n", 0),
            b"\r\n".repeat(500_000),
        ];
        thread::scope(|scope| {
            for bytes in &beginnings {
                let client = proxy.client();
                let mut reader = client.socket().try_clone().unwrap();
                // A reader takes all replies, so no writer waits.
                scope.spawn(move || std::io::copy(&mut reader, &mut std::io::sink()));
                scope.spawn(move || {
                    let mut sent = 0;
                    // Redis closes at the first protocol error.
                    while sent < EACH && client.socket().write_all(bytes).is_ok() {
                        sent += bytes.len();
                    }
                    // This ends the reader, if it has not ended by then.
                    let _ = client.socket().shutdown(Shutdown::Both);
                });
            }
        });
    });
}

#[test]
fn who_may_not_set_may_not_lock_whatever_set_and_info_are_called() {
    let renamed = [
        "--requirepass",
        "secret",
        "--rename-command",
        "SET",
        "MYSET",
        "--rename-command",
        "INFO",
        "MYINFO",
    ];
    let proxy = Proxy::with().data_arguments(&renamed).start();
    let mut stranger = proxy.client();
    assert_eq!(stranger.cmd(&["GET", "x"]).error(), "NOAUTH Authentication required.");
    for words in [&["LOCK", "job", "PX", "30000"][..], &["LOCK", "job"], &["UNLOCK", "job", "t"]] {
        let refused = stranger.cmd(words);
        assert!(refused.error_text().starts_with("ERR unknown command 'SET'"), "{refused:?}");
    }
    for words in [&["LOCKGATE", "LOCKS"][..], &["LOCKGATE", "INFO"], &["LOCKGATE", "NODES"]] {
        let refused = stranger.cmd(words);
        assert!(refused.error_text().starts_with("ERR unknown command 'INFO'"), "{refused:?}");
    }
    proxy.assert_on_nodes("lock:job", 0);
    // The proxy cannot learn who may lock, so it lets no client.
    assert_eq!(stranger.cmd(&["AUTH", "secret"]), Reply::ok());
    assert!(stranger.cmd(&["LOCK", "job", "PX", "30000"]).error().contains("'SET'"));
}

#[test]
fn what_a_full_data_node_says_is_no_permission() {
    // The data node refuses at once or at the first question, and closes late.
    for at_once in [true, false] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        thread::spawn(move || {
            let mut open = Vec::new();
            while let Ok((mut stream, _)) = listener.accept() {
                open.push(thread::spawn(move || {
                    let asked = at_once || stream.read(&mut [0; 4096]).is_ok_and(|n| n > 0);
                    if asked && stream.write_all(FULL).is_ok() {
                        let _ = std::io::copy(&mut stream, &mut std::io::sink());
                    }
                }));
            }
        });
        let proxy = Proxy::with().data_port(port).start();
        eventually("the node is up", || proxy.nodes_up() == 1);
        for n in 0..20 {
            let mut client = proxy.client();
            client.send(&encode(&["LOCK", &format!("evil{n}"), "PX", "30000"]));
            assert_eq!(client.reply().error(), "ERR max number of clients reached");
            client.hang_up();
        }
        assert_eq!(proxy.node_client(0).cmd(&["KEYS", "lock:*"]), Reply::Array(Vec::new()));
        assert_eq!(proxy.metric("lockgate_lock_requests_total", "result=\"ok\""), 0.0);
    }
}

#[test]
fn a_key_that_no_stranger_may_send_is_no_permission() {
    let proxy =
        Proxy::with().locks("max_key: 32kb").data_arguments(&["--requirepass", "s"]).start();
    for _ in 0..20 {
        let mut stranger = proxy.client();
        stranger.send(&encode(&["LOCK", &"k".repeat(20_000), "PX", "30000"]));
        let refused = stranger.reply();
        assert_eq!(refused.error(), "ERR Protocol error: unauthenticated bulk length");
    }
    let asked = proxy.metric("lockgate_lock_requests_total", "result=\"denied\"");
    assert_eq!(asked, 20.0, "some were begun");
}

#[test]
fn one_question_for_locks_does_not_hold_a_thread() {
    // Not optimised, the questions keep the only thread for more than a second, and beside other tests for several times
    // as long.
    let much_time = Proxy::with().nodes(3).locks("max_ttl: 2m").locks("node_timeout: 9s");
    let mut proxy = much_time.locks("node_silence: 10s").top("io_threads: 1").start();
    let mut holder = proxy.client();
    for n in 0..100 {
        let key = format!("{}{n:03}", "a".repeat(4000));
        holder.cmd(&["LOCK", &key, "PX", "50000"]).grant();
    }
    while_others_work(&mut proxy, |proxy| {
        let mut curious = proxy.client();
        let pattern = |length: usize| format!("*{}b", "a".repeat(length - 2));
        let refused = curious.cmd(&["LOCKGATE", "LOCKS", &pattern(257)]);
        assert_eq!(refused.error(), "ERR pattern is longer than 256 bytes");
        for _ in 0..3 {
            let refused = curious.cmd(&["LOCKGATE", "LOCKS", &pattern(256)]);
            assert!(refused.error().contains("would take too long"), "{refused:?}");
        }
        // Ordinary patterns still work.
        let Reply::Array(all) = curious.cmd(&["LOCKGATE", "LOCKS", "a*00?"]) else { panic!() };
        assert_eq!(all.len(), 10);
    });
}

/// Sets up guards, with room for two megabytes of large commands.
fn guarded() -> Setup {
    let rules = "guards: {max_command: 256kb, rules: [{keys: 'g:*', lock: 'l:{1}'}]}";
    patient().top(rules)
}

#[test]
fn room_that_is_only_announced_is_nobodys() {
    let proxy = guarded().start();
    let mut holder = proxy.client();
    holder.cmd(&["LOCK", "l:1"]).grant();
    let large = "x".repeat(100_000);
    assert_eq!(holder.cmd(&["SET", "g:1", &large]), Reply::ok());
    // The headers alone announce more than all room there is.
    let announcing: Vec<Client> = (0..20)
        .map(|_| {
            let mut client = proxy.client();
            client.send(b"*3\r\n$3\r\nSET\r\n$3\r\ng:9\r\n$260000\r\nx");
            client
        })
        .collect();
    eventually("all are in", || proxy.metric("lockgate_client_connections", "") >= 21.0);
    thread::sleep(Duration::from_millis(200));
    assert_eq!(holder.cmd(&["SET", "g:1", &large]), Reply::ok());
    assert_eq!(proxy.client().cmd(&["MSET", "free", &large, "more", "x"]), Reply::ok());
    drop(announcing);
}

#[test]
fn who_holds_room_and_does_not_move_gives_it_to_others() {
    let proxy = guarded().start();
    let mut holder = proxy.client();
    holder.cmd(&["LOCK", "l:1"]).grant();
    let value = "x".repeat(250_000);
    let whole = encode(&["SET", "g:9", &value]);
    let mut stalled = Vec::new();
    let mut large = || holder.cmd(&["SET", "g:1", &value]);
    let mut tries = 0;
    eventually("there is no room", || {
        // If the machine stands still for long, the earlier clients have given way already.
        if tries % 20 == 0 {
            stalled.extend((0..9).map(|_| {
                let mut client = proxy.client();
                client.send(&whole[..240_000]);
                client
            }));
        }
        tries += 1;
        large().error_text().starts_with("ERR too many large commands")
    });
    eventually("they give way", || large() == Reply::ok());
    // The stalled clients find out when they go on, and nothing of theirs was written.
    for client in &mut stalled {
        client.send(&whole[240_000..]);
        let error = client.reply();
        let told = ["ERR too many large commands", "NOTHELD"];
        assert!(told.iter().any(|words| error.error_text().starts_with(words)), "{error:?}");
        assert_eq!(client.cmd(&["PING"]), pong());
    }
    assert_eq!(holder.cmd(&["EXISTS", "g:9"]), Reply::Int(0));
}

#[test]
fn a_stranger_has_redis_own_limits_before_guards_too() {
    let data = RedisServer::start(&["--requirepass", "secret"]).unwrap();
    let proxy = guarded().data_url(&format!("redis://:secret@{}", data.addr())).start();
    eventually("it is ready", || proxy.http("/readyz").starts_with("HTTP/1.1 200"));
    let long = encode(&["SET", "g:1", &"x".repeat(16_385)]);
    let many = encode(&[&["DEL"], &["g:1"; 10][..]].concat());
    for before in [&b""[..], b"*1\r\n$5\r\nRESET\r\n", b"FOO\r\n", b"HELLO 3\r\n"] {
        for (command, error) in [
            (&long[..40], "-ERR Protocol error: unauthenticated bulk length\r\n"),
            (&long, "-ERR Protocol error: unauthenticated bulk length\r\n"),
            (&many[..20], "-ERR Protocol error: unauthenticated multibulk length\r\n"),
            (&many, "-ERR Protocol error: unauthenticated multibulk length\r\n"),
        ] {
            let mut stranger = proxy.client();
            stranger.send(&[before, command].concat());
            let (bytes, _) = stranger.rest();
            let text = String::from_utf8_lossy(&bytes);
            assert!(text.ends_with(error), "{text:?} to {}", before.escape_ascii());
        }
    }
    // A client that has authenticated, in either way, has none of these limits.
    for introduction in
        [&[&["AUTH", "secret"][..]][..], &[&["HELLO", "3", "AUTH", "default", "secret"]]]
    {
        let mut client = proxy.client();
        client.send(&[&pipeline(introduction)[..], &long].concat());
        client.reply();
        assert!(client.reply().error().starts_with("NOTHELD"));
        client.cmd(&["LOCK", "l:1"]).grant();
        client.send(&long);
        assert_eq!(client.reply(), Reply::ok());
        client.cmd(&["UNLOCK", "l:1"]);
        // RESET makes it a stranger again.
        client.cmd(&["RESET"]);
        client.send(&long);
        assert!(client.reply().error().ends_with("unauthenticated bulk length"));
    }
    // Where no password is needed, the first command may be as large as any other.
    let open = guarded().start();
    let mut client = open.client();
    client.send(&long);
    assert!(client.reply().error().starts_with("NOTHELD"));
    assert_eq!(client.cmd(&["PING"]), pong());
}

#[test]
fn a_keyword_at_each_place_is_not_looked_at_for_ever() {
    let mut proxy = guarded().top("io_threads: 1").start();
    while_others_work(&mut proxy, |proxy| {
        let mut client = proxy.client();
        let words: Vec<&str> =
            ["XREADGROUP", "GROUP", "g", "c"].into_iter().chain(["STREAMS"; 12_000]).collect();
        let refused = client.cmd(&words);
        assert!(refused.error().starts_with("ERR too much in one command"), "{refused:?}");
        assert_eq!(client.cmd(&["PING"]), pong());
    });
}

/// Sets up a data node that closes a connection after two silent seconds.
fn impatient() -> Setup {
    Proxy::with().data_arguments(&["--timeout", "2"])
}

type Commands = &'static [&'static [&'static str]];

/// In turn: commands that put a connection into a state, and commands that show it.
const STATES: [Commands; 6] = [
    &[&["MULTI"], &["ECHO", "a"]],
    &[&["EXEC"]],
    &[&["WATCH", "w"]],
    &[&["MULTI"], &["ECHO", "a"], &["EXEC"]],
    &[&["SELECT", "3"], &["SET", "a", "3"]],
    &[&["GET", "a"]],
];

#[test]
fn the_data_nodes_timeout_ends_nobody_who_waits_or_holds() {
    let proxy = impatient().start();
    let mut holder = proxy.client();
    holder.cmd(&["LOCK", "held"]).grant();
    let mut waiter = proxy.client();
    waiter.send(&encode(&["LOCK", "held", "WAIT", "6000"]));
    // Whatever the state of these connections, it is the same afterwards.
    let queued = || Reply::simple("QUEUED");
    let executed = || Reply::Array(vec![Reply::bulk("a")]);
    let mut others: Vec<(Client, Commands, Vec<Reply>)> = Vec::new();
    for (before, behind, expected) in [
        (STATES[0], STATES[1], vec![executed()]),
        (STATES[2], STATES[3], vec![Reply::ok(), queued(), executed()]),
        (STATES[4], STATES[5], vec![Reply::bulk("3")]),
    ] {
        let mut client = proxy.client();
        client.cmd(&["LOCK", &format!("other:{}", others.len())]).grant();
        client.pipe(before);
        others.push((client, behind, expected));
    }
    let mut mute = proxy.client();
    mute.cmd(&["LOCK", "mute"]).grant();
    mute.send(&encode(&["CLIENT", "REPLY", "OFF"]));
    let mut skips = proxy.client();
    skips.cmd(&["LOCK", "skips"]).grant();
    skips.send(&encode(&["CLIENT", "REPLY", "SKIP"]));
    let mut lease = proxy.client();
    lease.cmd(&["LOCK", "lease", "PX", "30000"]).grant();
    let mut idle = proxy.client();
    assert_eq!(idle.cmd(&["PING"]), pong());
    assert_eq!(idle.rest(), (Vec::new(), true), "closed as by Redis");
    assert_eq!(waiter.reply(), Reply::NullArray);
    for (client, behind, expected) in &mut others {
        assert_eq!(client.pipe(behind), *expected, "{behind:?}");
    }
    assert_eq!(holder.cmd(&["UNLOCK", "held"]), Reply::Int(1));
    mute.send(&pipeline(&[&["ECHO", "unseen"], &["CLIENT", "REPLY", "ON"], &["ECHO", "seen"]]));
    assert_eq!((mute.reply(), mute.reply()), (Reply::ok(), Reply::bulk("seen")));
    skips.send(&pipeline(&[&["ECHO", "unseen"], &["ECHO", "seen"]]));
    assert_eq!(skips.reply(), Reply::bulk("seen"));
    assert_eq!(lease.cmd(&["PING"]), pong());
    assert_eq!(lease.cmd(&["UNLOCK", "lease"]), Reply::Int(1));
    // From here on the client holds nothing.
    assert_eq!(lease.rest(), (Vec::new(), true));
    eventually("it is told", || proxy.log().contains("closes clients that are idle"));
}

#[test]
fn who_is_answered_without_the_data_node_is_not_idle_to_it() {
    let proxy = impatient().locks("authorize_cache: 1h").start();
    let mut client = proxy.client();
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(6) {
        client.cmd(&["LOCK", "job", "PX", "10000"]).grant();
        assert_eq!(client.cmd(&["UNLOCK", "job"]), Reply::Int(1));
        thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(client.cmd(&["PING"]), pong());
}

#[test]
fn a_timeout_that_nobody_may_ask_for_is_kept_alive_through_as_well() {
    let user =
        ["--timeout", "2", "--user", "default", "on", "nopass", "~*", "&*", "+@all", "-config"];
    let proxy = Proxy::with().data_arguments(&user).start();
    let mut holder = proxy.client();
    holder.cmd(&["LOCK", "held"]).grant();
    holder.expect_silence(Duration::from_secs(5));
    assert_eq!(holder.cmd(&["UNLOCK", "held"]), Reply::Int(1));
    assert!(proxy.log().contains("does not tell whether it closes idle"));
}

#[test]
fn nothing_of_ours_is_carried_out_behind_a_quit() {
    let proxy = Proxy::start();
    for _ in 0..300 {
        let mut client = proxy.client();
        client.send(&pipeline(&[
            &["LOCK", "k", "PX", "20000"],
            &["UNLOCK", "k"],
            &["QUIT"],
            &["LOCK", "k", "PX", "20000"],
        ]));
        client.reply().grant();
        assert_eq!((client.reply(), client.reply()), (Reply::Int(1), Reply::ok()));
        assert_eq!(client.rest().0, b"");
        proxy.assert_on_nodes("lock:k", 0);
    }
    assert_eq!(
        proxy.metric("lockgate_lock_requests_total", "operation=\"lock\",result=\"ok\""),
        300.0
    );
}

#[test]
fn a_waiter_that_dies_behind_megabytes_leaves_the_line() {
    let mut proxy = Proxy::with().locks("default_ttl: 60s").start();
    let mut holder = proxy.client();
    holder.cmd(&["LOCK", "job"]).grant();
    let behind = encode(&["SET", "big", &"x".repeat(6 << 20)]);
    for by_reset in [false, true] {
        let mut waiter = proxy.client();
        waiter.cmd(&["LOCK", "own"]).grant();
        waiter.send(&encode(&["LOCK", "job", "PX", "60000", "WAIT", "60000"]));
        eventually("it waits", || proxy.waiters() == 1);
        waiter.send(&behind);
        if by_reset {
            waiter.reset()
        } else {
            drop(waiter)
        }
        eventually("it is gone", || proxy.waiters() == 0);
        eventually("what it held is given back", || proxy.nodes_with("lock:own") == 0);
    }
    // A client that stays gets all of its replies, and one that floods gets an error.
    let mut waiter = proxy.client();
    waiter.send(&[encode(&["LOCK", "job", "WAIT", "60000"]), behind].concat());
    waiter.send(&encode(&["STRLEN", "big"]));
    eventually("it waits", || proxy.waiters() == 1);
    assert_eq!(holder.cmd(&["UNLOCK", "job"]), Reply::Int(1));
    waiter.reply().grant();
    assert_eq!((waiter.reply(), waiter.reply()), (Reply::ok(), Reply::Int(6 << 20)));
    let mut flood = proxy.client();
    let mut reader = flood.socket().try_clone().unwrap();
    flood.send(&encode(&["LOCK", "job", "WAIT", "60000"]));
    eventually("it waits", || proxy.waiters() == 1);
    let value = encode(&["SET", "big", &"x".repeat(1 << 20)]);
    thread::scope(|scope| {
        scope.spawn(|| {
            (0..20).for_each(|_| flood.socket().write_all(&value).unwrap());
            flood.socket().shutdown(Shutdown::Write).unwrap();
        });
        let mut told = String::new();
        reader.read_to_string(&mut told).unwrap();
        assert!(told.starts_with("-ERR more than 8 MB were sent behind a LOCK"), "{told}");
        assert_eq!(told.matches("+OK\r\n").count(), 20);
    });
    assert_eq!(proxy.waiters(), 0);
    assert!(proxy.is_alive() && proxy.memory("VmHWM") < BOUND);
}

/// If there were more renewals at once than nodes answer in time, all would be late, be repeated, and pile up.
#[test]
#[ignore = "takes long: make long"]
fn thousands_of_session_locks_of_one_client_cost_nobody_else_a_lock() {
    let mut proxy = Proxy::with().nodes(3).start();
    let mut bystander = proxy.client();
    bystander.cmd(&["LOCK", "bystander"]).grant();
    let mut many = proxy.client();
    let keys: Vec<String> = (0..3000).map(|n| format!("{}{n}", "k".repeat(4000))).collect();
    for some in keys.chunks(100) {
        let locks: Vec<[&str; 2]> = some.iter().map(|key| ["LOCK", key]).collect();
        many.send(&locks.iter().flat_map(|lock| encode(lock)).collect::<Vec<_>>());
        some.iter().for_each(|_| drop(many.reply().grant()));
    }
    // After a third of their TTL all of them are due.
    thread::sleep(Duration::from_millis(2500));
    let before = proxy.memory("VmHWM");
    (0..3).for_each(|node| proxy.node(node).freeze().unwrap());
    thread::sleep(Duration::from_millis(1500));
    (0..3).for_each(|node| proxy.node(node).thaw().unwrap());
    let grown = proxy.memory("VmHWM") - before;
    assert!(grown < 4 << 20, "{grown}");
    // Longer than any of the locks lasts without a renewal.
    for _ in 0..100 {
        thread::sleep(Duration::from_millis(100));
        assert_eq!(bystander.cmd(&["PING"]), Reply::simple("PONG"));
    }
    assert_eq!(many.cmd(&["PING"]), Reply::simple("PONG"));
    drop(many);
    eventually("all are given back", || proxy.nodes_with(&format!("lock:{}", keys[2999])) == 0);
    proxy.client().cmd(&["LOCK", "other"]).grant();
    assert_eq!(bystander.cmd(&["UNLOCK", "bystander"]), Reply::Int(1));
}
