//! Messages between the proxy and a service manager: readiness, reloading, the watchdog, a new main process after an
//! upgrade, sockets that the manager has opened.

use std::{
    fs,
    io::ErrorKind,
    net::TcpListener,
    os::{
        fd::OwnedFd,
        unix::{net::UnixDatagram, process::CommandExt},
    },
    process::{Command, Stdio},
};

use crate::support::{Client, LIMIT, Proxy, Reply, eventually};
use lockgate::tools::free_port::free_port;
use rustix::process::{Pid, Signal, kill_process, test_kill_process};

/// A socket that stands in for systemd.
struct Manager {
    dir: tempfile::TempDir,
    socket: UnixDatagram,
}

impl Manager {
    fn new() -> Manager {
        let dir = tempfile::tempdir().unwrap();
        let socket = UnixDatagram::bind(dir.path().join("notify")).unwrap();
        socket.set_read_timeout(Some(LIMIT)).unwrap();
        Manager { dir, socket }
    }

    fn address(&self) -> String {
        self.dir.path().join("notify").to_str().unwrap().to_owned()
    }

    /// Returns the next message to the manager.
    fn told(&self) -> String {
        let mut bytes = [0; 4096];
        let length = self.socket.recv(&mut bytes).expect("it is told nothing");
        String::from_utf8(bytes[..length].to_vec()).unwrap()
    }

    fn is_told_nothing(&self) {
        self.socket.set_nonblocking(true).unwrap();
        let told = self.socket.recv(&mut [0; 4096]);
        assert_eq!(told.unwrap_err().kind(), ErrorKind::WouldBlock);
        self.socket.set_nonblocking(false).unwrap();
    }
}

/// A process beyond the test's deployment; it is killed at the end.
struct Stranger(Pid);

impl Drop for Stranger {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::KILL);
    }
}

#[test]
fn a_service_manager_is_told_what_becomes_of_the_proxy() {
    let manager = Manager::new();
    let mut proxy = Proxy::with().environment("NOTIFY_SOCKET", &manager.address()).start();
    assert_eq!(manager.told(), "READY=1\nSTATUS=Accepting clients\n");
    proxy.reload();
    let told = manager.told();
    let time = told.strip_prefix("RELOADING=1\nMONOTONIC_USEC=").unwrap();
    assert!(time.trim_end().parse::<u64>().unwrap() > 0, "{told}");
    assert_eq!(manager.told(), "READY=1\n");
    // The proxy is ready again with its old settings, though the file cannot be used.
    fs::write(proxy.config_file(), "nonsense").unwrap();
    proxy.reload();
    assert!(manager.told().starts_with("RELOADING=1\n"));
    assert_eq!(manager.told(), "READY=1\n");
    manager.is_told_nothing();
    proxy.terminate();
    assert_eq!(manager.told(), "STOPPING=1\nSTATUS=Shutting down\n");
    assert!(proxy.wait().success());
    manager.is_told_nothing();
}

#[test]
fn ready_means_listening_whether_redis_is_there_or_not() {
    let manager = Manager::new();
    let nowhere = free_port().unwrap();
    let proxy = Proxy::with()
        .environment("NOTIFY_SOCKET", &manager.address())
        .data_port(nowhere)
        .node_urls(&[format!("redis://127.0.0.1:{nowhere}")])
        .start();
    assert!(manager.told().starts_with("READY=1\n"));
    assert!(proxy.http("/readyz").starts_with("HTTP/1.1 503"));
}

#[test]
fn the_watchdog_is_told_as_long_as_every_thread_runs() {
    let manager = Manager::new();
    let proxy = Proxy::with()
        .environment("NOTIFY_SOCKET", &manager.address())
        .environment("WATCHDOG_USEC", "100000")
        .start();
    assert!(manager.told().starts_with("READY=1\n"));
    for _ in 0..5 {
        assert_eq!(manager.told(), "WATCHDOG=1\n");
    }
    proxy.freeze();
    proxy.thaw();
    assert_eq!(manager.told(), "WATCHDOG=1\n");
}

#[test]
fn sigusr2_starts_a_new_process_that_becomes_the_main_one() {
    let manager = Manager::new();
    let socket = manager.dir.path().join("upgrade.sock");
    let mut proxy = Proxy::with()
        .environment("NOTIFY_SOCKET", &manager.address())
        .top(&format!("upgrade_socket: {}", socket.display()))
        .start();
    assert!(manager.told().starts_with("READY=1\n"));
    let mut client = proxy.client();
    assert_eq!(client.cmd(&["PING"]), Reply::simple("PONG"));
    let text = fs::read_to_string(proxy.config_file()).unwrap();
    let upgrade = || {
        kill_process(Pid::from_raw(proxy.pid() as i32).unwrap(), Signal::USR2).unwrap();
    };
    // A new process that cannot start changes nothing, and another one may be tried.
    fs::write(proxy.config_file(), "nonsense").unwrap();
    upgrade();
    eventually("it has failed", || proxy.log().contains("started to take over has ended"));
    manager.is_told_nothing();
    fs::write(proxy.config_file(), text).unwrap();
    upgrade();
    let told = manager.told();
    let main = told.lines().next().unwrap().strip_prefix("MAINPID=").unwrap().to_owned();
    assert_eq!(told, format!("MAINPID={main}\nREADY=1\nSTATUS=Accepting clients\n"));
    let new = Stranger(Pid::from_raw(main.parse().unwrap()).unwrap());
    assert_ne!(main, proxy.pid().to_string());
    let Reply::Bulk(info) = proxy.client().cmd(&["LOCKGATE", "INFO"]) else { panic!() };
    assert!(String::from_utf8_lossy(&info).contains(&format!("process_id:{main}\r\n")));
    // The old process sends no more messages, whatever it is sent.
    proxy.reload();
    assert_eq!(client.cmd(&["PING"]), Reply::simple("PONG"));
    drop(client);
    assert!(proxy.wait().success());
    manager.is_told_nothing();
    kill_process(new.0, Signal::TERM).unwrap();
    assert!(manager.told().starts_with("STOPPING=1\n"));
    eventually("it ends", || test_kill_process(new.0).is_err());
}

#[test]
fn sigusr2_does_nothing_without_an_upgrade_socket() {
    let mut proxy = Proxy::start();
    kill_process(Pid::from_raw(proxy.pid() as i32).unwrap(), Signal::USR2).unwrap();
    eventually("it says so", || proxy.log().contains("there is no upgrade_socket"));
    assert!(proxy.is_alive());
}

#[test]
fn sockets_that_a_service_manager_has_opened_are_used() {
    let dir = tempfile::tempdir().unwrap();
    let (wanted, unwanted) =
        (TcpListener::bind("127.0.0.1:0").unwrap(), TcpListener::bind("127.0.0.1:0").unwrap());
    let address = wanted.local_addr().unwrap();
    // Connects before there is a process that could accept.
    let mut early = Client::connect(address.port());
    early.send(b"PING\r\n");
    let data = lockgate::tools::redis_server::RedisServer::start(&[]).unwrap();
    let (file, log) = (dir.path().join("lockgate.yaml"), dir.path().join("log"));
    let url = data.url();
    fs::write(
        &file,
        format!("listen: {address}\nadmin: off\ndata: {url}\nlocks: {{nodes: {url}}}\n"),
    )
    .unwrap();
    let as_systemd_does = "exec 3<&0 4<&1 </dev/null >/dev/null; LISTEN_FDS=2 LISTEN_PID=$$ \
                           exec \"$0\" \"$@\"";
    let mut child = Command::new("setpriv")
        .args(["--pdeathsig", "KILL", "sh", "-c", as_systemd_does])
        .args([env!("CARGO_BIN_EXE_lockgate"), "--config"])
        .arg(&file)
        .process_group(0)
        .stdin(Stdio::from(OwnedFd::from(wanted)))
        .stdout(Stdio::from(OwnedFd::from(unwanted)))
        .stderr(fs::File::create(&log).unwrap())
        .spawn()
        .unwrap();
    let reply = early.reply();
    let text = crate::support::log_in(&log);
    let _ = child.kill();
    let _ = child.wait();
    assert_eq!(reply, Reply::simple("PONG"));
    assert!(text.contains("this socket was open already"), "{text}");
    assert!(text.contains("but is not configured; closed"), "{text}");
}
