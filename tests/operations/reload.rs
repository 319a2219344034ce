//! SIGHUP has the proxy read its configuration again. Settings that can change in a running proxy change, others are
//! named, and if anything is wrong nothing changes.

use std::{fs, net::TcpStream, time::Duration};

use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use socket2::SockRef;

use crate::support::{self, Client, Proxy, Reply, eventually};

/// Replaces text in the proxy's configuration.
fn rewrite(proxy: &Proxy, changes: &[(&str, &str)]) {
    let mut text = fs::read_to_string(proxy.config_file()).unwrap();
    for (from, to) in changes {
        assert!(text.contains(from), "{from} is not in\n{text}");
        text = text.replace(from, to);
    }
    fs::write(proxy.config_file(), text).unwrap();
}

/// Makes the proxy read its configuration again, and waits until that is done.
fn reload(proxy: &Proxy, result: &str) {
    let label = format!("result=\"{result}\"");
    let done = || proxy.metric("lockgate_config_reloads_total", &label);
    let before = done();
    proxy.reload();
    eventually("it was read again", || done() > before);
}

/// Whether the log has a line with all of these words.
fn logged(proxy: &Proxy, words: &[&str]) -> bool {
    proxy.log().lines().any(|line| words.iter().all(|word| line.contains(word)))
}

/// Returns a copy of the proxy's socket of a client's connection.
fn proxys_socket(proxy: &Proxy, client: &Client) -> TcpStream {
    let proxys_id = Pid::from_raw(proxy.pid().cast_signed()).unwrap();
    let process = pidfd_open(proxys_id, PidfdFlags::empty()).unwrap();
    let client = client.socket().local_addr().unwrap();
    let open = fs::read_dir(format!("/proc/{}/fd", proxy.pid())).unwrap();
    let copy = |file: fs::DirEntry| {
        let number = file.file_name().to_str()?.parse().ok()?;
        let copy = pidfd_getfd(&process, number, PidfdGetfdFlags::empty()).ok()?;
        Some(TcpStream::from(copy))
    };
    let is_clients = |socket: &TcpStream| socket.peer_addr().is_ok_and(|peer| peer == client);
    open.filter_map(|file| copy(file.ok()?)).find(is_clients).expect("the proxy's socket")
}

#[test]
fn each_clients_socket_has_the_options_of_the_configuration_it_came_under() {
    let proxy = Proxy::with().top("tcp_keepalive: 90s").start();
    for (before, seconds) in [("90s", 90), ("90s", 90), ("90s", 60), ("60s", 60)] {
        let now = format!("tcp_keepalive: {seconds}s");
        if !now.ends_with(before) {
            rewrite(&proxy, &[(&format!("tcp_keepalive: {before}"), &now)]);
            reload(&proxy, "ok");
        }
        let mut client = proxy.client();
        assert_eq!(client.cmd(&["PING"]), Reply::simple("PONG"));
        let socket = proxys_socket(&proxy, &client);
        let socket = SockRef::from(&socket);
        assert!(socket.tcp_nodelay().unwrap() && socket.keepalive().unwrap());
        assert_eq!(socket.tcp_keepalive_time().unwrap(), Duration::from_secs(seconds));
        assert_eq!(socket.tcp_keepalive_interval().unwrap(), Duration::from_secs(seconds / 3));
        assert_eq!(socket.tcp_keepalive_retries().unwrap(), 3);
        let limit = socket.tcp_user_timeout().unwrap();
        assert_eq!(limit, Some(Duration::from_secs(2 * seconds)));
    }
}

#[test]
fn what_can_change_in_a_running_proxy_changes_for_clients_that_come_then() {
    let proxy = Proxy::with()
        .top("maxclients: 100\nmax_connect_rate: 0\nbarrier_buffer: 1mb\nfirst_byte_timeout: off")
        .locks("max_wait: 60s")
        .locks("max_key: 4kb")
        .locks("max_waiters: 100")
        .start();
    let (mut before, mut holder) = (proxy.client(), proxy.client());
    holder.cmd(&["LOCK", "k", "PX", "50000"]).grant();
    before.cmd(&["LOCK", "mine"]).grant();
    rewrite(
        &proxy,
        &[
            ("maxclients: 100", "maxclients: 4"),
            ("first_byte_timeout: off", "first_byte_timeout: 100ms"),
            ("max_wait: 60s", "max_wait: 1s"),
            ("max_key: 4kb", "max_key: 8"),
            ("max_waiters: 100", "max_waiters: 1"),
        ],
    );
    let time = proxy.metric("lockgate_config_last_success_timestamp_seconds", "");
    assert!(time > 1.0e9, "when it was started");
    reload(&proxy, "ok");
    assert!(proxy.metric("lockgate_config_last_success_timestamp_seconds", "") > time);
    for key in ["maxclients", "first_byte_timeout", "locks.max_wait", "locks.max_key"] {
        assert!(logged(&proxy, &["\"changed\"", &format!("\"key\":\"{key}\"")]), "{key}");
    }
    assert!(!logged(&proxy, &["\"changed\"", "\"key\":\"barrier_buffer\""]));

    // A client that is already connected keeps its limits.
    assert_eq!(before.cmd(&["LOCK", "k", "PX", "1000", "WAIT", "1001"]).error_text(), "");
    assert_eq!(before.cmd(&["UNLOCK", "mine"]), Reply::Int(1));
    let mut after = proxy.client();
    assert_eq!(
        after.cmd(&["LOCK", "k", "PX", "1000", "WAIT", "1001"]).error(),
        "ERR invalid wait time in 'lock' command, the longest is 1000 ms (locks.max_wait)"
    );
    assert_eq!(
        after.cmd(&["LOCK", "123456789", "PX", "1000"]).error(),
        "ERR key is longer than 8 bytes (locks.max_key)"
    );
    before.send(&support::encode(&["LOCK", "k", "PX", "1000", "WAIT", "30000"]));
    eventually("it waits", || proxy.waiters() == 1);
    let full = after.cmd(&["LOCK", "k", "PX", "1000", "WAIT", "1000"]);
    assert_eq!(full.error(), "QUEUEFULL 1 clients wait for this lock already");
    // The fourth client, which is silent, and one more.
    let mut silent = proxy.client();
    let mut fifth = proxy.client();
    assert_eq!(fifth.reply().error(), "ERR max number of clients reached");
    assert_eq!(silent.rest(), (Vec::new(), true));
}

#[test]
fn what_cannot_change_is_named_and_stays() {
    let proxy = Proxy::with()
        .top("io_threads: 1")
        .locks("max_ttl: 60s")
        .locks("prefix: 'a:'")
        .locks("default_ttl: 10s")
        .start();
    rewrite(
        &proxy,
        &[
            ("io_threads: 1", "io_threads: 2\nupgrade_socket: /tmp/of-nobody"),
            ("- redis://127.0.0.1", "- redis://localhost"),
            ("max_ttl: 60s", "max_ttl: 120s"),
            ("prefix: 'a:'", "prefix: 'b:'"),
            ("default_ttl: 10s", "default_ttl: 90s"),
            ("data: redis://127.0.0.1", "data: redis://localhost"),
        ],
    );
    for _ in 0..2 {
        reload(&proxy, "ok");
    }
    for key in ["io_threads", "locks.max_ttl", "data"] {
        let key = format!("\"key\":\"{key}\"");
        assert!(logged(&proxy, &[&key, "needs a restart or an upgrade"]), "{key}");
    }
    let page = proxy.http("/readyz");
    assert!(page.starts_with("HTTP/1.1 200"), "{page}");
    let told = " in the file, as it was read last, is not what this process goes by: ";
    for (key, why) in [
        ("io_threads", "needs a restart or an upgrade"),
        ("locks.max_ttl", "needs a restart or an upgrade"),
        ("locks.prefix", "stop all proxies"),
        ("locks.default_ttl", "does not fit locks.max_ttl"),
        ("locks.nodes", "Do not restart it with this file before"),
        ("data", "needs a restart or an upgrade"),
        ("upgrade_socket", "needs a restart\n"),
    ] {
        let about = format!("configuration: {key}{told}");
        let line = page.split_inclusive('\n').find(|line| line.contains(&about));
        assert!(line.is_some_and(|line| line.contains(why)), "{key}: {page}");
    }
    assert!(logged(&proxy, &["\"key\":\"locks.prefix\"", "stop all proxies"]));
    assert!(logged(&proxy, &["\"key\":\"locks.default_ttl\"", "does not fit locks.max_ttl"]));
    let mut client = proxy.client();
    assert!(client.cmd(&["LOCK", "k", "PX", "60001"]).error().contains("60000"));
    assert!(client.cmd(&["LOCK", "k"]).grant().validity <= 10_000);
    proxy.assert_on_nodes("a:k", 1);
    let back = [
        ("io_threads: 2\nupgrade_socket: /tmp/of-nobody", "io_threads: 1"),
        ("- redis://localhost", "- redis://127.0.0.1"),
        ("max_ttl: 120s", "max_ttl: 60s"),
        ("prefix: 'b:'", "prefix: 'a:'"),
        ("default_ttl: 90s", "default_ttl: 10s"),
        ("data: redis://localhost", "data: redis://127.0.0.1"),
    ];
    rewrite(&proxy, &back);
    reload(&proxy, "ok");
    assert!(!proxy.http("/readyz").contains(told), "{}", proxy.http("/readyz"));
}

#[test]
fn a_configuration_with_a_fault_changes_nothing() {
    let mut proxy = Proxy::with().top("maxclients: 100").locks("max_wait: 60s").start();
    let good = fs::read_to_string(proxy.config_file()).unwrap();
    rewrite(
        &proxy,
        &[("maxclients: 100", "maxclients: 1\nmaxclient: 7"), ("max_wait: 60s", "max_wait: soon")],
    );
    reload(&proxy, "failed");
    assert!(logged(&proxy, &["maxclient", "did you mean maxclients?", "\"line\":6"]));
    assert!(logged(&proxy, &["locks.max_wait", "'soon' where a duration"]));
    assert!(logged(&proxy, &["nothing has changed"]));
    let clients: Vec<Client> = (0..5).map(|_| proxy.client()).collect();
    for mut client in clients {
        assert_eq!(client.cmd(&["PING"]), Reply::simple("PONG"));
    }
    fs::remove_file(proxy.config_file()).unwrap();
    reload(&proxy, "failed");
    fs::write(proxy.config_file(), good).unwrap();
    reload(&proxy, "ok");
    assert!(proxy.is_alive());
    assert_eq!(proxy.metric("lockgate_config_reloads_total", "failed"), 2.0);
}

#[test]
fn the_log_level_changes_unless_the_environment_has_one() {
    let mut proxy = Proxy::with().top("log: {level: error}\n").start();
    rewrite(&proxy, &[("level: error", "level: debug")]);
    for _ in 0..2 {
        reload(&proxy, "ok");
    }
    let told = |words: &[&str]| {
        proxy.log().lines().filter(|line| words.iter().all(|word| line.contains(word))).count()
    };
    let why = "not changed in the running proxy: LOCKGATE_LOG goes before it";
    assert_eq!(told(&[why, "\"key\":\"log.level\""]), 2, "{}", proxy.log());
    assert_eq!(told(&["\"message\":\"changed\"", "log.level"]), 0, "{}", proxy.log());
    assert_eq!(told(&["\"changed\":0,\"not_changed\":1"]), 2, "{}", proxy.log());
    drop(proxy);
    proxy = Proxy::with().environment("LOCKGATE_LOG", "").top("log: {level: info}\n").start();
    rewrite(&proxy, &[("level: info", "level: error")]);
    reload(&proxy, "ok");
    let length = proxy.log().len();
    reload(&proxy, "ok");
    assert_eq!(proxy.log().len(), length, "it is quiet now");
    rewrite(&proxy, &[("level: error", "level: info")]);
    reload(&proxy, "ok");
    reload(&proxy, "ok");
    eventually("it speaks again", || proxy.log()[length..].contains("read the configuration"));
}

#[test]
fn many_signals_at_once_are_as_good_as_one() {
    let mut proxy = Proxy::with().top("shutdown_grace: 10s").start();
    let mut client = proxy.client();
    for _ in 0..200 {
        proxy.reload();
    }
    rewrite(&proxy, &[("shutdown_grace: 10s", "shutdown_grace: 100ms")]);
    reload(&proxy, "ok");
    assert_eq!(client.cmd(&["PING"]), Reply::simple("PONG"));
    // Aborted after the new grace period, not after the old one.
    client.send(&support::encode(&["BLPOP", "list", "0"]));
    let mut other = proxy.client();
    eventually("it is blocked", || match other.cmd(&["INFO", "clients"]) {
        Reply::Bulk(info) => String::from_utf8_lossy(&info).contains("blocked_clients:1"),
        _ => false,
    });
    proxy.terminate();
    assert!(proxy.wait().success());
    let grace = format!("\"grace\":\"{:?}\"", Duration::from_millis(100));
    assert!(logged(&proxy, &["shutting down", &grace]), "{}", proxy.log());
}
