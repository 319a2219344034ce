//! A process takes another's place, and clients notice nothing: no connection is refused or broken, and no lock is
//! lost, whatever becomes of the new process.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    os::unix::{
        fs::PermissionsExt,
        net::{UnixListener, UnixStream},
        process::CommandExt,
    },
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
    time::Duration,
};

use crate::support::{self, Client, LIMIT, Proxy, Reply, Setup, cluster, eventually};
use lockgate::tools::{free_port::free_port, redis_server::RedisServer};
use rustix::process::{Pid, Signal, kill_process};

/// The socket at which a proxy can be replaced, and the setup of the processes that follow it.
struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    fn new() -> Place {
        Place { dir: tempfile::tempdir().unwrap() }
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("upgrade.sock")
    }

    fn setup(&self) -> Setup {
        Proxy::with().top(&format!("upgrade_socket: {}", self.socket().display()))
    }

    /// Writes another configuration to a file.
    fn write(&self, name: &str, text: &str) -> PathBuf {
        let file = self.dir.path().join(name);
        fs::write(&file, text).unwrap();
        file
    }
}

/// Another process of the real binary.
struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    fn start(place: &Place, config: &Path, arguments: &[&str]) -> Process {
        static STARTED: AtomicUsize = AtomicUsize::new(0);
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let log = place.dir.path().join(format!("log.{number}"));
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", env!("CARGO_BIN_EXE_lockgate"), "--config"])
            .arg(config)
            .args(arguments)
            .env("LOCKGATE_LOG", "debug")
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(fs::File::create(&log).unwrap())
            .spawn()
            .unwrap();
        Process { child, log }
    }

    /// Starts a process that takes over, and waits until it has.
    fn upgrade(place: &Place, config: &Path) -> Process {
        let mut process = Process::start(place, config, &["--upgrade"]);
        eventually("the new process listens", || {
            let ended = process.child.try_wait().unwrap();
            assert!(ended.is_none(), "it ended: {ended:?}\n{}", process.log());
            process.log().contains("\"listening\"")
        });
        process
    }

    fn log(&self) -> String {
        support::log_in(&self.log)
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    fn wait(&mut self) -> ExitStatus {
        let mut status = None;
        eventually("the process ends", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }

    fn is_alive(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Reads the first line that a process with this configuration says to the one that it is to replace.
    fn hello(config: &Path) -> Vec<u8> {
        let other = Place::new();
        let text = fs::read_to_string(config).unwrap();
        let lines = text.lines().filter(|line| !line.starts_with("upgrade_socket: "));
        let lines = lines.collect::<Vec<_>>().join("\n");
        let line = format!("upgrade_socket: {}", other.socket().display());
        let config = other.write("lockgate.yaml", &format!("{lines}\n{line}\n"));
        let listener = UnixListener::bind(other.socket()).unwrap();
        let _new = Process::start(&other, &config, &["--upgrade"]);
        let mut hello = Vec::new();
        BufReader::new(listener.accept().unwrap().0).read_until(b'\n', &mut hello).unwrap();
        hello
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if thread::panicking() {
            eprintln!("a new process's log:\n{}", self.log());
        }
    }
}

/// Sets both flags when dropped, so that threads end when a test fails too.
struct Ends<'a>([&'a AtomicBool; 2]);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        for end in self.0 {
            end.store(true, Ordering::Relaxed);
        }
    }
}

/// Returns the pid of the proxy that serves this client.
fn served_by(client: &mut Client) -> String {
    let Reply::Bulk(info) = client.cmd(&["LOCKGATE", "INFO"]) else { panic!("no INFO") };
    let info = String::from_utf8(info).unwrap();
    info.lines().find_map(|line| line.strip_prefix("process_id:")).unwrap().to_owned()
}

#[test]
fn clients_see_nothing_of_three_upgrades_in_a_row() {
    let place = Place::new();
    let mut proxy = place.setup().nodes(3).start();
    let (port, config) = (proxy.port(), proxy.config_file());
    let (stop, leave) = (AtomicBool::new(false), AtomicBool::new(false));
    // By the number of upgrades done: how many rounds were begun.
    let rounds: [AtomicUsize; 4] = Default::default();
    let (generation, batches) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let mut processes = Vec::new();
    thread::scope(|scope| {
        for number in 0..4 {
            let (stop, rounds, generation) = (&stop, &rounds, &generation);
            scope.spawn(move || {
                let (key, mut value) = (format!("k{number}"), 0);
                while !stop.load(Ordering::Relaxed) {
                    let now = generation.load(Ordering::Relaxed);
                    value += 1;
                    let text = value.to_string();
                    let mut client = Client::connect(port);
                    assert_eq!(client.cmd(&["SET", &key, &text]), Reply::ok());
                    assert_eq!(client.cmd(&["GET", &key]), Reply::bulk(&text));
                    let lock = format!("lock{number}");
                    assert!(client.cmd(&["LOCK", &lock, "PX", "30000"]).grant().fence > 0);
                    assert_eq!(client.cmd(&["UNLOCK", &lock]), Reply::Int(1));
                    rounds[now].fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let _ends = Ends([&stop, &leave]);
        // A client that stays connected and always has commands in flight.
        let (leave, batches) = (&leave, &batches);
        scope.spawn(move || {
            let (mut client, mut count) = (Client::connect(port), 0);
            while !leave.load(Ordering::Relaxed) {
                let replies = client.pipe(&[&["INCR", "count"][..]; 50]);
                for reply in replies {
                    count += 1;
                    assert_eq!(reply, Reply::Int(count));
                }
                batches.fetch_add(1, Ordering::Relaxed);
            }
        });
        let enough = |counter: &AtomicUsize| {
            let before = counter.load(Ordering::Relaxed);
            // A failed thread ends the test when the scope does.
            eventually("rounds go on", || counter.load(Ordering::Relaxed) >= before + 20);
        };
        for (upgrades, rounds) in rounds.iter().enumerate() {
            if upgrades > 0 {
                processes.push(Process::upgrade(&place, &config));
                generation.store(upgrades, Ordering::Relaxed);
            }
            enough(rounds);
            enough(batches);
        }
        stop.store(true, Ordering::Relaxed);
        assert!(proxy.is_alive(), "it has a client");
        leave.store(true, Ordering::Relaxed);
    });
    println!("rounds in each generation: {rounds:?}, batches: {batches:?}");
    assert!(proxy.wait().success());
    let mut last = processes.pop().unwrap();
    for mut process in processes {
        assert!(process.wait().success());
    }
    assert_eq!(served_by(&mut Client::connect(port)), last.child.id().to_string());
    last.signal(Signal::TERM);
    assert!(last.wait().success());
    assert!(!place.socket().exists(), "who ends for good leaves nothing behind");
}

/// Upgrades a proxy under redis-py, which never reconnects without its user's knowledge.
fn redis_py_sees_nothing_of_upgrades(version: &str) {
    let clients = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients");
    let python = clients.join(".venv/bin/python");
    assert!(python.exists(), "redis-py is missing: run \"make test\", which installs it");
    let place = Place::new();
    let mut proxy = place.setup().nodes(3).start();
    let errors = place.dir.path().join("errors");
    let mut child = Command::new("timeout")
        .args(["--kill-after=5", "120"])
        .args([python, clients.join("redis_py_upgrade.py")])
        .args([&proxy.port().to_string(), version])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(fs::File::create(&errors).unwrap())
        .spawn()
        .unwrap();
    let mut rounds = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut some = || {
        for _ in 0..10 {
            let line = rounds.next().map(Result::unwrap);
            assert!(line.is_some(), "{}", fs::read_to_string(&errors).unwrap());
        }
    };
    some();
    let processes: Vec<Process> = (0..3)
        .map(|_| {
            let process = Process::upgrade(&place, &proxy.config_file());
            some();
            process
        })
        .collect();
    drop(child.stdin.take());
    let last = rounds.map(Result::unwrap).last();
    let status = child.wait().unwrap();
    assert!(status.success(), "{}", fs::read_to_string(&errors).unwrap());
    assert_eq!(last.as_deref(), Some("ok"));
    assert!(proxy.wait().success());
    drop(processes);
}

#[test]
fn redis_py_sees_nothing_of_upgrades_in_resp2() {
    redis_py_sees_nothing_of_upgrades("2");
}

#[test]
fn redis_py_sees_nothing_of_upgrades_in_resp3() {
    redis_py_sees_nothing_of_upgrades("3");
}

#[test]
fn a_session_lock_stays_with_the_process_that_granted_it() {
    let place = Place::new();
    let adopt = "adopt: {keys: 'old:*', mode: enforce, no_ttl: session}";
    let mut proxy = place.setup().nodes(3).top(adopt).locks("default_ttl: 600ms").start();
    let mut holder = proxy.client();
    holder.cmd(&["LOCK", "k"]).grant();
    assert_eq!(holder.cmd(&["SETNX", "old:k", "t"]), Reply::Int(1));
    let mut idle = proxy.client();
    assert_eq!(idle.cmd(&["MULTI"]), Reply::ok());
    let new = Process::upgrade(&place, &proxy.config_file());
    let mut other = proxy.client();
    assert_eq!(served_by(&mut other), new.child.id().to_string());
    // Over several TTLs the old process renews the lock.
    for _ in 0..20 {
        assert_eq!(other.cmd(&["LOCK", "k", "PX", "1000"]), Reply::NullArray);
        assert_eq!(other.cmd(&["SETNX", "old:k", "u"]), Reply::Int(0));
        assert_eq!(other.cmd(&["TTL", "old:k"]), Reply::Int(-1));
        thread::sleep(Duration::from_millis(100));
    }
    // A release through the new process is no loss to a client of the old one.
    assert_eq!(other.cmd(&["DEL", "old:k"]), Reply::Int(1));
    assert_eq!(other.cmd(&["SETNX", "old:k", "u"]), Reply::Int(1));
    assert_eq!(holder.cmd(&["UNLOCK", "k"]), Reply::Int(1));
    other.cmd(&["LOCK", "k", "PX", "1000"]).grant();
    assert_eq!(idle.cmd(&["SET", "x", "1"]), Reply::simple("QUEUED"));
    assert_eq!(idle.cmd(&["EXEC"]), Reply::Array(vec![Reply::ok()]));
    assert_eq!(served_by(&mut holder), proxy.pid().to_string());
    assert!(proxy.is_alive());
    drop((holder, idle));
    assert!(proxy.wait().success(), "its last connection has ended");
}

#[test]
fn what_the_process_before_has_still_is_told_until_it_ends() {
    let place = Place::new();
    let mut old = place.setup().nodes(3).start();
    let mut holder = old.client();
    holder.cmd(&["LOCK", "kept"]).grant();
    holder.cmd(&["LOCK", "lease", "PX", "60000"]).grant();
    let _other = old.client().cmd(&["PING"]);
    let _next = Process::upgrade(&place, &old.config_file());
    let line = format!("upgrade: the process before (pid {}) has ", old.pid());
    let told = |words: &str| old.http("/readyz").contains(&format!("{line}{words}"));
    eventually("it is told", || told("1 connections, 2 locks and 0 waiters still"));
    assert!(old.http("/readyz").starts_with("HTTP/1.1 200"));
    assert_eq!(old.metric("lockgate_earlier_processes", ""), 1.0);
    assert_eq!(old.metric("lockgate_earlier_connections", ""), 1.0);
    assert_eq!(old.metric("lockgate_earlier_locks", ""), 2.0);
    let status = old.http("/api/status");
    let part = format!("\"pid\":{},\"connections\":1,\"held\":2,\"waiters\":0", old.pid());
    assert!(status.contains(&part), "{status}");
    let mut operator = old.client();
    let Reply::Bulk(info) = operator.cmd(&["LOCKGATE", "INFO"]) else { panic!() };
    let info = String::from_utf8(info).unwrap();
    let entry = format!("earlier_process0:pid={};connections=1;held=2;waiters=0", old.pid());
    assert!(info.contains("earlier_processes:1") && info.contains(&entry), "{info}");
    // A client of the old process waits, and /readyz shows it.
    operator.cmd(&["LOCK", "mine", "PX", "60000"]).grant();
    holder.send(&support::encode(&["LOCK", "mine", "PX", "60000", "WAIT", "60000"]));
    eventually("it is told", || told("1 connections, 2 locks and 1 waiters still"));
    drop(holder);
    old.wait();
    eventually("its end is seen", || !old.http("/readyz").contains("upgrade: "));
    assert_eq!(old.metric("lockgate_earlier_processes", ""), 0.0);
}

#[test]
fn a_waiter_of_the_old_process_gets_the_lock_of_a_client_of_the_new_one() {
    let place = Place::new();
    let mut proxy = place.setup().nodes(3).start();
    let mut holder = proxy.client();
    let first = holder.cmd(&["LOCK", "k", "PX", "50000"]).grant();
    let mut waiter = proxy.client();
    waiter.send(&support::encode(&["LOCK", "k", "PX", "50000", "WAIT", "30000"]));
    eventually("it waits", || proxy.waiters() == 1);
    let _new = Process::upgrade(&place, &proxy.config_file());
    drop(holder);
    waiter.expect_silence(Duration::from_millis(100));
    let mut other = proxy.client();
    assert_eq!(other.cmd(&["UNLOCK", "k", &first.token]), Reply::Int(1));
    let second = waiter.reply().grant();
    assert!(second.fence > first.fence);
    assert_eq!(other.cmd(&["LOCK", "k", "PX", "1000"]), Reply::NullArray);
    drop(waiter);
    assert!(proxy.wait().success());
}

#[test]
fn blocked_and_subscribed_clients_are_served_on_by_the_old_process() {
    let place = Place::new();
    let mut proxy = place.setup().start();
    let (mut blocked, mut subscribed) = (proxy.client(), proxy.client());
    blocked.send(&support::encode(&["BLPOP", "list", "0"]));
    subscribed.cmd(&["SUBSCRIBE", "news"]);
    let _new = Process::upgrade(&place, &proxy.config_file());
    let mut other = proxy.client();
    eventually("it is blocked", || match other.cmd(&["INFO", "clients"]) {
        Reply::Bulk(info) => String::from_utf8_lossy(&info).contains("blocked_clients:1"),
        _ => false,
    });
    assert_eq!(other.cmd(&["PUBLISH", "news", "x"]), Reply::Int(1));
    assert_eq!(other.cmd(&["LPUSH", "list", "y"]), Reply::Int(1));
    let news = ["message", "news", "x"].map(Reply::bulk).to_vec();
    assert_eq!(subscribed.reply(), Reply::Array(news));
    assert_eq!(blocked.reply(), Reply::Array(["list", "y"].map(Reply::bulk).to_vec()));
    drop((blocked, subscribed));
    assert!(proxy.wait().success());
}

#[test]
fn the_old_process_goes_on_whatever_becomes_of_the_new_one() {
    let place = Place::new();
    let mut proxy = place.setup().start();
    let (port, config) = (proxy.port(), proxy.config_file());
    let text = fs::read_to_string(&config).unwrap();
    let mut client = proxy.client();
    client.cmd(&["LOCK", "mine"]).grant();

    let bad = place.write("bad.yaml", &format!("{text}  no_such_key: 1\n"));
    let mut new = Process::start(&place, &bad, &["--upgrade"]);
    assert!(!new.wait().success());
    assert!(new.log().contains("unknown key"), "{}", new.log());

    // This process would take over a proxy that serves, and could not serve itself.
    let nowhere = format!("data: redis://127.0.0.1:{}", free_port().unwrap());
    let data = text.lines().find(|line| line.starts_with("data:")).unwrap();
    let unready = place.write("unready.yaml", &text.replace(data, &nowhere));
    let mut new = Process::start(&place, &unready, &["--upgrade"]);
    assert!(!new.wait().success());
    assert!(new.log().contains("the running proxy goes on"), "{}", new.log());

    // Killed when it already has the sockets.
    let mut new = Process::start(&place, &unready, &["--upgrade"]);
    let passed = |times| {
        eventually("it has the sockets", || {
            proxy.log().matches("passed the listening sockets on").count() == times
        });
    };
    passed(2);
    new.signal(Signal::KILL);
    new.wait();

    // Told to end before it has taken over, it does not take over.
    let mut new = Process::start(&place, &unready, &["--upgrade"]);
    passed(3);
    new.signal(Signal::TERM);
    assert!(new.wait().success());

    // A port is taken.
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let clash =
        place.write("clash.yaml", &text.replace("listen:\n", &format!("listen:\n  - {address}\n")));
    let mut new = Process::start(&place, &clash, &["--upgrade"]);
    assert!(!new.wait().success());
    assert!(new.log().contains("Address already in use"), "{}", new.log());

    eventually("the old process has noticed", || {
        proxy.log().matches("did not take over").count() == 4
    });
    assert!(proxy.is_alive());
    assert_eq!(served_by(&mut client), proxy.pid().to_string());
    assert_eq!(served_by(&mut Client::connect(port)), proxy.pid().to_string());
    assert_eq!(client.cmd(&["UNLOCK", "mine"]), Reply::Int(1));
    assert!(proxy.http("/readyz").starts_with("HTTP/1.1 200"));
    let new = Process::upgrade(&place, &config);
    assert_eq!(served_by(&mut Client::connect(port)), new.child.id().to_string());
    let names = fs::read_dir(place.dir.path()).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(names.filter(|name| name.to_string_lossy().contains("sock")).count(), 1);
    drop(client);
    assert!(proxy.wait().success());
}

#[test]
fn who_waits_in_the_kernel_while_nobody_accepts_is_served() {
    let place = Place::new();
    let mut proxy = place.setup().start();
    // Keeps the new process from being ready at once.
    proxy.data().freeze().unwrap();
    let new = Process::start(&place, &proxy.config_file(), &["--upgrade"]);
    eventually("it has the sockets", || proxy.log().contains("passed the listening sockets on"));
    proxy.freeze();
    let mut clients: Vec<Client> = (0..100).map(|_| proxy.client()).collect();
    for client in &mut clients {
        client.send(b"PING\r\n");
    }
    proxy.data().thaw().unwrap();
    for client in &mut clients {
        assert_eq!(client.reply(), Reply::simple("PONG"));
    }
    assert_eq!(served_by(&mut clients[0]), new.child.id().to_string());
    // The stopped proxy learns what has happened meanwhile.
    proxy.thaw();
    assert!(proxy.wait().success());
    for client in &mut clients {
        assert_eq!(client.cmd(&["PING"]), Reply::simple("PONG"));
    }
    assert_eq!(served_by(&mut proxy.client()), new.child.id().to_string());
}

#[test]
fn a_process_that_was_replaced_shuts_down_as_any_other() {
    let place = Place::new();
    let mut proxy = place.setup().nodes(3).start();
    let mut holder = proxy.client();
    holder.cmd(&["LOCK", "k"]).grant();
    let new = Process::upgrade(&place, &proxy.config_file());
    eventually("it was replaced", || proxy.log().contains("\"replaced;"));
    proxy.terminate();
    assert!(proxy.wait().success());
    assert_eq!(holder.rest(), (Vec::new(), true));
    let mut other = proxy.client();
    assert_eq!(served_by(&mut other), new.child.id().to_string());
    // The lock's client did not end the connection, so the lock runs out.
    assert_eq!(other.cmd(&["LOCK", "k", "PX", "1000"]), Reply::NullArray);
    other.cmd(&["LOCK", "k", "PX", "1000", "WAIT", "20000"]).grant();
    assert!(place.socket().exists(), "it is the new process's now");
}

#[test]
fn the_grace_of_a_process_that_was_replaced_has_an_end() {
    let place = Place::new();
    let mut proxy = place.setup().top("upgrade_grace: 500ms\nshutdown_grace: 200ms").start();
    let mut holder = proxy.client();
    holder.cmd(&["LOCK", "k"]).grant();
    let mut blocked = proxy.client();
    blocked.send(&support::encode(&["BLPOP", "list", "0"]));
    let _new = Process::upgrade(&place, &proxy.config_file());
    assert!(proxy.wait().success());
    assert!(proxy.log().contains("upgrade_grace is over"));
    assert_eq!(holder.rest(), (Vec::new(), true));
    proxy.client().cmd(&["LOCK", "k", "PX", "1000", "WAIT", "20000"]).grant();
}

#[test]
fn strange_peers_on_the_upgrade_socket_harm_nothing() {
    let place = Place::new();
    let mut proxy = place.setup().start();
    let hello = Process::hello(&proxy.config_file());
    let peer = || {
        let stream = UnixStream::connect(place.socket()).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream
    };
    let ended = |mut stream: UnixStream| {
        // The read fails with a reset if not everything sent was read.
        let _ = stream.read_to_end(&mut Vec::new());
    };
    let mut garbage = peer();
    let _ = garbage.write_all(&[0xff; 100_000]);
    ended(garbage);
    let mut words = peer();
    words.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    ended(words);
    let mut older = peer();
    older.write_all(b"lockgate-upgrade 1\n").unwrap();
    ended(older);
    drop(peer());
    // One takes the sockets and leaves, one says nothing, and one takes the sockets and says something else.
    let mut leaving = peer();
    leaving.write_all(&hello).unwrap();
    let mut head = [0; 16];
    leaving.read_exact(&mut head).unwrap();
    assert_eq!(&head, b"sockets 2 ready ");
    drop(leaving);
    ended(peer());
    let mut lying = peer();
    lying.write_all(&[&hello[..], b"READY!\n"].concat()).unwrap();
    ended(lying);
    assert_eq!(proxy.client().cmd(&["PING"]), Reply::simple("PONG"));
    eventually("each was told of", || proxy.log().matches("did not take over").count() == 7);
    // The next process comes while one that hangs is still connected.
    let hung = peer();
    let mut new = Process::upgrade(&place, &proxy.config_file());
    assert!(proxy.wait().success());
    assert_eq!(served_by(&mut proxy.client()), new.child.id().to_string());
    assert!(new.is_alive());
    drop(hung);
}

#[test]
fn a_proxy_that_does_not_know_what_it_says_is_not_taken_over() {
    let place = Place::new();
    let port = free_port().unwrap();
    let text = format!(
        "listen: 127.0.0.1:{port}\nadmin: off\nupgrade_socket: {}\n",
        place.socket().display()
    );
    let config = place.write("lockgate.yaml", &text);
    for (answer, expected) in [
        ("", "it has gone"),
        ("welcome\n", "does not speak this version's language"),
        ("sockets 129 ready yes\n", "does not speak this version's language"),
        ("sockets 1 ready yes\n127.0.0.1:1\n", "an address without a socket"),
        ("sockets 1 ready yes\nhere\n", "it sent no address"),
    ] {
        let _ = fs::remove_file(place.socket());
        let listener = UnixListener::bind(place.socket()).unwrap();
        let mut new = Process::start(&place, &config, &["--upgrade"]);
        let says = |expected: &str| {
            let (mut stream, _) = listener.accept().unwrap();
            let mut hello = String::new();
            BufReader::new(&stream).read_line(&mut hello).unwrap();
            assert!(hello.starts_with(expected) && hello.ends_with('\n'), "{hello:?}");
            stream.write_all(answer.as_bytes()).unwrap();
        };
        says("lockgate-upgrade 2 ");
        assert!(!new.wait().success());
        assert!(new.log().contains(expected), "{answer:?}: {}", new.log());
        assert!(TcpStream::connect(("127.0.0.1", port)).is_err());
    }
}

/// Starts two nodes of a cluster; one of them has all slots.
fn two_nodes() -> [RedisServer; 2] {
    let one = cluster::node(&[]);
    let two = cluster::join(std::slice::from_ref(&one));
    let words = ["CLUSTER", "ADDSLOTSRANGE", "0", "16383"];
    assert_eq!(Client::connect(two.port()).cmd(&words), Reply::ok());
    [one, two]
}

/// Returns the ids of the nodes behind these fronts.
fn behind(fronts: &[u16]) -> Vec<String> {
    let id = |front: &u16| match cluster::answer(*front, &["CLUSTER", "MYID"]) {
        Some(reply @ Reply::Bulk(_)) => cluster::text(&reply),
        _ => String::new(),
    };
    fronts.iter().map(id).collect()
}

#[test]
fn the_fronts_of_a_cluster_lead_to_the_nodes_as_before() {
    let nodes = two_nodes();
    let place = Place::new();
    let [one, two] = nodes.each_ref().map(|node| format!("'127.0.0.1:{}'", node.port()));
    let mut proxy =
        place.setup().data_url(&format!("{{cluster: [{one}, {two}]}}")).fronts(2).start();
    let fronts = proxy.fronts().to_vec();
    let mut ids = Vec::new();
    eventually("each node has a front", || {
        ids = behind(&fronts);
        ids.iter().all(|id| id.len() == 40)
    });
    // The file turns the order of the addresses around.
    let text = fs::read_to_string(proxy.config_file()).unwrap();
    let named = format!("fronts: {{'{}': {}, '{}': {}}}", ids[0], fronts[1], ids[1], fronts[0]);
    let turned = text.replace("{cluster:", &format!("{{{named}, cluster:"));
    assert_ne!(turned, text);
    proxy.kill();
    fs::write(proxy.config_file(), turned).unwrap();
    proxy.start_again();
    let other_way = vec![ids[1].clone(), ids[0].clone()];
    eventually("the file counts", || behind(&fronts) == other_way);

    // A process whose file names no fronts leads clients as the process before did.
    fs::write(proxy.config_file(), &text).unwrap();
    let mut old = Client::connect(fronts[0]);
    assert_eq!(cluster::text(&old.cmd(&["CLUSTER", "MYID"])), other_way[0]);
    let process = Process::upgrade(&place, &proxy.config_file());
    for _ in 0..6 {
        assert_eq!(behind(&fronts), other_way);
        thread::sleep(Duration::from_millis(500));
    }
    assert_eq!(cluster::text(&old.cmd(&["CLUSTER", "MYID"])), other_way[0]);
    // The node with the lower port had the first front: mostly that without slots, as it was started first.
    let leads_to = |node: &RedisServer| {
        let id = cluster::answer(node.port(), &["CLUSTER", "MYID"]).map(|id| cluster::text(&id));
        fronts[other_way.iter().position(|other| Some(other) == id.as_ref()).unwrap()]
    };
    let moved = Client::connect(leads_to(&nodes[0])).cmd(&["GET", "k"]);
    let to = format!(" 127.0.0.1:{}", leads_to(&nodes[1]));
    assert!(moved.error_text().ends_with(&to), "{moved:?}");
    assert!(!process.log().contains("its sessions end"), "{}", process.log());
    drop(process);
    // A fresh start follows the addresses.
    proxy.kill();
    proxy.start_again();
    eventually("the order is that of the addresses", || behind(&fronts) == ids);
}

#[test]
fn a_proxy_that_knows_no_fronts_is_asked_as_it_wants() {
    let place = Place::new();
    let port = free_port().unwrap();
    let text = format!(
        "listen: 127.0.0.1:{port}\nadmin: off\nupgrade_socket: {}\ndata: {{cluster: \
         ['127.0.0.1:9']}}\n",
        place.socket().display()
    );
    let config = place.write("lockgate.yaml", &text);
    for (answer, expected) in [
        ("sockets 0 ready no\nfronts 129\n", "does not speak this version's language"),
        ("sockets 0 ready no\nfronts 1\nhere\n", "it sent no front"),
        ("sockets 0 ready no\nwelcome\n", "does not speak this version's language"),
        ("sockets 0 ready no\n", "it has gone"),
        ("", "it has gone"),
    ] {
        let _ = fs::remove_file(place.socket());
        let listener = UnixListener::bind(place.socket()).unwrap();
        let mut new = Process::start(&place, &config, &["--upgrade"]);
        let says = |expected: &str, answer: &str| {
            let (mut stream, _) = listener.accept().unwrap();
            let mut hello = String::new();
            BufReader::new(&stream).read_line(&mut hello).unwrap();
            assert!(hello.starts_with(expected), "{hello:?}");
            stream.write_all(answer.as_bytes()).unwrap();
        };
        says("lockgate-upgrade 3 ", answer);
        // A proxy that hangs up may be of an earlier version.
        if !answer.contains("fronts") && !answer.contains("welcome") {
            says("lockgate-upgrade 2 ", "");
        }
        assert!(!new.wait().success());
        assert!(new.log().contains(expected), "{answer:?}: {}", new.log());
    }
}

#[test]
fn the_upgrade_socket_belongs_to_one_proxy_at_a_time() {
    let place = Place::new();
    let mut proxy = place.setup().start();
    let mode = fs::metadata(place.socket()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let text = fs::read_to_string(proxy.config_file()).unwrap();
    let mut second = Process::start(&place, &proxy.config_file(), &[]);
    assert!(!second.wait().success());
    assert!(second.log().contains("a proxy runs there; --upgrade takes its place"));
    assert_eq!(proxy.client().cmd(&["PING"]), Reply::simple("PONG"));

    // A socket left by a crash is not in the way.
    proxy.kill();
    assert!(place.socket().exists());
    let mut again = Process::start(&place, &proxy.config_file(), &[]);
    let listens = |process: &Process| {
        eventually("it listens", || process.log().contains("\"listening\""));
    };
    listens(&again);
    assert_eq!(served_by(&mut proxy.client()), again.child.id().to_string());
    again.signal(Signal::KILL);
    again.wait();

    // With no proxy to take over from, it starts as it would without `--upgrade`.
    let new = Process::upgrade(&place, &proxy.config_file());
    assert!(new.log().contains("no proxy runs there"), "{}", new.log());
    drop(new);

    let socket = format!("upgrade_socket: {}", place.socket().display());
    let file = place.write("precious", "x");
    let elsewhere = text.replace(&socket, &format!("upgrade_socket: {}", file.display()));
    let config = place.write("file.yaml", &elsewhere);
    for arguments in [&["--upgrade"][..], &[]] {
        let mut new = Process::start(&place, &config, arguments);
        assert!(!new.wait().success());
        assert!(new.log().contains("not a socket"), "{}", new.log());
    }
    assert_eq!(fs::read_to_string(&file).unwrap(), "x");
    let none = place.write("none.yaml", &text.replace(&socket, ""));
    let mut new = Process::start(&place, &none, &["--upgrade"]);
    assert!(!new.wait().success());
    assert!(new.log().contains("--upgrade needs an upgrade_socket"));
}

#[test]
fn addresses_can_change_with_an_upgrade() {
    let place = Place::new();
    let mut proxy = place.setup().start();
    let (port, admin) = (proxy.port(), proxy.admin_port());
    let text = fs::read_to_string(proxy.config_file()).unwrap();
    let other = free_port().unwrap();
    let moved = text.replace(&format!("127.0.0.1:{port}"), &format!("127.0.0.1:{other}"));
    let config = place.write("moved.yaml", &moved);
    // One client keeps the old process going, and a scraper keeps its connection.
    let mut staying = proxy.client();
    assert_eq!(staying.cmd(&["PING"]), Reply::simple("PONG"));
    let mut scraper = TcpStream::connect(("127.0.0.1", admin)).unwrap();
    scraper.set_read_timeout(Some(LIMIT)).unwrap();
    scraper.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut head = [0; 15];
    scraper.read_exact(&mut head).unwrap();
    assert_eq!(&head, b"HTTP/1.1 200 OK");
    let new = Process::upgrade(&place, &config);
    assert!(new.log().contains("but is not configured; closed"), "{}", new.log());
    assert!(TcpStream::connect(("127.0.0.1", port)).is_err());
    assert_eq!(served_by(&mut Client::connect(other)), new.child.id().to_string());
    // The scraper is never quiet for long enough to be closed for that.
    eventually("it is closed by the process that was replaced", || {
        let asked = scraper.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n");
        !matches!((asked, scraper.read(&mut [0; 4096])), (Ok(()), Ok(1..)))
    });
    assert_eq!(staying.cmd(&["PING"]), Reply::simple("PONG"));
    assert!(proxy.http("/metrics").contains("lockgate_build_info"));
    assert!(proxy.http("/readyz").starts_with("HTTP/1.1 200"));
    drop(staying);
    assert!(proxy.wait().success());
}

/// The operator sends SIGHUP to the process that he knows, which has it sent to those before it.
#[test]
fn locks_from_before_two_upgrades_outlast_a_change_of_the_lock_nodes() {
    let place = Place::new();
    let proxy = place.setup().nodes(3).locks("default_ttl: 2s").start();
    let mut holder = proxy.client();
    holder.cmd(&["LOCK", "session"]).grant();
    let first = Process::upgrade(&place, &proxy.config_file());
    let mut between = proxy.client();
    between.cmd(&["LOCK", "between"]).grant();
    let second = Process::upgrade(&place, &proxy.config_file());
    let next: Vec<RedisServer> = (0..3).map(|_| RedisServer::start(&[]).unwrap()).collect();
    let urls: Vec<String> = next.iter().map(RedisServer::url).collect();
    let text = fs::read_to_string(proxy.config_file()).unwrap();
    fs::write(proxy.config_file(), format!("{text}  next_nodes: {urls:?}\n")).unwrap();
    second.signal(Signal::HUP);
    let taken = |log: String| log.contains("locks.next_nodes");
    eventually("all three have read it", || {
        taken(second.log()) && taken(first.log()) && taken(proxy.log())
    });
    let mut tool = Command::new(env!("CARGO_BIN_EXE_lockgate"));
    let changed = tool.args(["nodes", "--change"]).arg(proxy.config_file()).output().unwrap();
    assert!(changed.status.success(), "{changed:?}");
    assert!(!String::from_utf8_lossy(&changed.stderr).contains("has not read"), "{changed:?}");
    // By then the TTLs are over, unless the locks were renewed on the next nodes.
    thread::sleep(Duration::from_secs(4));
    let mut other = proxy.client();
    for (client, key) in [(&mut holder, "session"), (&mut between, "between")] {
        assert_eq!(client.cmd(&["PING"]), Reply::simple("PONG"), "{key}");
        assert_eq!(other.cmd(&["LOCK", key, "PX", "1000"]), Reply::NullArray);
        assert_eq!(client.cmd(&["UNLOCK", key]), Reply::Int(1));
    }
}

#[test]
fn an_upgrade_by_which_two_could_hold_one_lock_is_refused() {
    let place = Place::new();
    let others: Vec<RedisServer> = (0..2).map(|_| RedisServer::start(&[]).unwrap()).collect();
    let mut proxy = place.setup().nodes(3).start();
    let held = proxy.client().cmd(&["LOCK", "job", "a", "PX", "30000"]);
    assert!(held.grant().validity > 0);
    let text = fs::read_to_string(proxy.config_file()).unwrap();
    let node = proxy.node(0).url();
    let one = text.replacen(&format!("    - {node}"), &format!("    - {}", others[0].url()), 1);
    for (number, (text, words)) in [
        (one, "another locks.nodes"),
        (text.replace("locks:\n", "locks:\n  prefix: 'p:'\n"), "another locks.prefix"),
        (format!("{text}\nadopt: {{keys: 'a:*', mode: enforce}}\n"), "another adopt"),
    ]
    .into_iter()
    .enumerate()
    {
        let file = place.write(&format!("other.{number}.yaml"), &text);
        let mut process = Process::start(&place, &file, &["--upgrade"]);
        assert!(!process.wait().success(), "{}", process.log());
        let what_to_do = match words {
            "another adopt" => ["stop it, and start the new one"; 2],
            _ => ["stop all proxies", "lockgate init"],
        };
        for words in [&[words][..], &what_to_do].concat() {
            assert!(process.log().contains(words), "{words}: {}", process.log());
        }
        eventually("the old one says so", || proxy.log().contains(words));
    }
    assert!(proxy.is_alive());
    let mut client = proxy.client();
    assert_eq!(client.cmd(&["LOCK", "job", "b", "PX", "1000"]), Reply::NullArray);
}
