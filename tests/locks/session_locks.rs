//! Session locks live as long as their connection. They end with it at once if their client has ended it, and run out
//! if another party has. They are never lost in silence.

use std::{
    io::{BufRead, BufReader, Write},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use crate::support::{Client, Proxy, Reply, encode, eventually, pipeline};

/// The time by which anything immediate has happened, however busy the machine.
const SOON: Duration = Duration::from_secs(5);

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Starts a proxy with three nodes, and a TTL so long that nothing runs out, or so short that renewals are frequent.
fn proxy(default_ttl: &str) -> Proxy {
    Proxy::with().nodes(3).locks(&format!("default_ttl: {default_ttl}")).start()
}

/// Starts a proxy that does not wait long for nodes, but keeps its connections to them while they are stopped.
fn impatient(default_ttl: &str) -> Proxy {
    Proxy::with()
        .nodes(3)
        .locks(&format!("default_ttl: {default_ttl}"))
        .locks("node_timeout: 100ms")
        .locks("node_silence: 20s")
        .start()
}

fn free(proxy: &Proxy, key: &str) -> bool {
    proxy.nodes_with(&format!("lock:{key}")) == 0
}

/// Deletes the lock on every node without telling its holder.
fn delete(proxy: &Proxy, key: &str, nodes: usize) {
    let lock = format!("lock:{key}");
    let mut nodes: Vec<Client> = (0..nodes).map(|node| proxy.node_client(node)).collect();
    let delete = encode(&["DEL", &lock]);
    eventually("all of the nodes have it, and none any more", || {
        // A quorum makes the grant; the other nodes follow.
        if !nodes.iter_mut().all(|node| node.cmd(&["EXISTS", &lock]) == Reply::Int(1)) {
            return false;
        }
        // All at once: a renewal in between would put the lock back.
        nodes.iter_mut().for_each(|node| node.send(&delete));
        let replies: Vec<Reply> = nodes.iter_mut().map(Client::reply).collect();
        replies.iter().all(|reply| *reply == Reply::Int(1))
    });
}

fn lost(proxy: &Proxy, reason: &str) -> f64 {
    proxy.metric("lockgate_lost_locks_total", reason)
}

#[test]
fn it_is_renewed_as_long_as_its_connection_lives() {
    let proxy = proxy("300ms");
    let mut client = proxy.client();
    let grant = client.cmd(&["LOCK", "k"]).grant();
    assert!((200..300).contains(&grant.validity), "{grant:?}");
    for _ in 0..20 {
        thread::sleep(ms(100));
        assert!(proxy.on_nodes("lock:k").contains(&Reply::bulk(&grant.token)));
    }
    assert_eq!(lost(&proxy, ""), 0.0);
    assert!(proxy.metric("lockgate_renewals_total", "ok") >= 10.0);
    assert_eq!(proxy.metric("lockgate_session_locks", ""), 1.0);
    assert_eq!(client.cmd(&["UNLOCK", "k"]), Reply::Int(1));
    eventually("released", || free(&proxy, "k"));
    assert_eq!(proxy.metric("lockgate_session_locks", ""), 0.0);
    let renewals = proxy.metric("lockgate_renewals_total", "");
    thread::sleep(ms(400));
    assert_eq!(proxy.metric("lockgate_renewals_total", ""), renewals, "none after its end");
}

/// Starts a client in a process of its own.
fn child(port: u16, key: &str) -> Child {
    let script = format!(
        "exec 3<>/dev/tcp/127.0.0.1/{port}; printf 'LOCK {key}\\r\\n' >&3; \
         read -r line <&3; echo \"$line\"; sleep 1000"
    );
    let mut child = Command::new("setpriv")
        .args(["--pdeathsig", "KILL", "bash", "-c", &script])
        .stdout(Stdio::piped())
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line.trim_end(), "*3");
    child
}

/// Checks that every node gives up the lock at "k" at once.
fn ends(proxy: &Proxy, what: &str) {
    let begun = Instant::now();
    eventually(what, || free(proxy, "k"));
    println!("{what}: {:?}", begun.elapsed());
    assert!(begun.elapsed() < SOON);
}

#[test]
fn it_ends_with_its_connection_however_that_ends() {
    let proxy = proxy("40s");
    let port = proxy.port();
    let lock = |key: &str| {
        let mut client = Client::connect(port);
        client.cmd(&["LOCK", key]).grant();
        client
    };
    let mut client = lock("k");
    client.hang_up();
    ends(&proxy, "FIN");
    lock("k").reset();
    ends(&proxy, "RST");
    drop(lock("k"));
    ends(&proxy, "close");
    let mut killed = child(proxy.port(), "k");
    proxy.assert_on_nodes("lock:k", 3);
    killed.kill().unwrap();
    killed.wait().unwrap();
    ends(&proxy, "kill -9");
    let mut client = lock("k");
    client.send(&pipeline(&[&["BLPOP", "nothing", "0"], &["GET", "x"]]));
    client.hang_up();
    ends(&proxy, "FIN behind a blocked command");
    let mut client = lock("k");
    client.send(&encode(&["CLIENT", "REPLY", "OFF"]));
    client.send(&encode(&["QUIT"]));
    ends(&proxy, "QUIT in silence");
    let mut client = lock("k");
    assert_eq!(client.cmd(&["QUIT"]), Reply::ok());
    ends(&proxy, "QUIT");
    let mut client = lock("k");
    client.cmd(&["LOCK", "lease", "PX", "60000"]).grant();
    assert_eq!(client.cmd(&["RESET"]), Reply::simple("RESET"));
    ends(&proxy, "RESET");
    proxy.assert_on_nodes("lock:lease", 3);
    assert_eq!(client.cmd(&["PING"]), Reply::simple("PONG"), "nothing was lost");
}

/// Checks that "k" is no longer renewed, and was not given back.
fn runs_out(proxy: &Proxy, what: &str) {
    eventually(what, || proxy.metric("lockgate_session_locks", "") == 0.0);
    // By now a lock that was to be released has been.
    thread::sleep(ms(300));
    assert_eq!(proxy.nodes_with("lock:k"), 3, "{what}");
    for node in 0..3 {
        proxy.node_client(node).cmd(&["DEL", "lock:k"]);
    }
}

#[test]
fn it_runs_out_where_the_data_node_or_the_proxy_ended_the_connection() {
    let mut proxy = Proxy::with()
        .nodes(3)
        .top("barrier_buffer: 64kb")
        .locks("default_ttl: 40s")
        .locks("on_lost: close")
        .start();
    let port = proxy.port();
    let lock = || {
        let mut client = Client::connect(port);
        client.cmd(&["LOCK", "k"]).grant();
        client
    };
    let mut client = lock();
    let Reply::Int(id) = client.cmd(&["CLIENT", "ID"]) else { panic!() };
    let kill = ["CLIENT", "KILL", "ID", &id.to_string()];
    assert_eq!(proxy.client().cmd(&kill), Reply::Int(1));
    assert!(client.rest().0.is_empty());
    runs_out(&proxy, "CLIENT KILL of its upstream");
    let mut client = lock();
    client.send(b"*1\r\nbad\r\n");
    client.rest();
    runs_out(&proxy, "a protocol error");
    let mut client = lock();
    client.cmd(&["LOCK", "other"]).grant();
    delete(&proxy, "other", 3);
    assert_eq!(client.cmd(&["RENEW", "other", "PX", "60000"]), Reply::Int(0));
    client.cmd(&["LOCK", "other", "PX", "60000"]).grant();
    // A lock that another connection gives back is lost, and the connection that held it is closed.
    let grant = client.cmd(&["LOCK", "third"]).grant();
    assert_eq!(proxy.client().cmd(&["UNLOCK", "third", &grant.token]), Reply::Int(1));
    assert!(client.rest().0.is_empty());
    runs_out(&proxy, "the loss of another");
    let mut client = lock();
    client.cmd(&["SET", "big", &"x".repeat(1 << 20)]);
    let gets = [&["GET", "big"][..]; 40];
    client.send(&[pipeline(&gets), encode(&["LOCK", "more"])].concat());
    eventually("closed", || proxy.metric("lockgate_closes_total", "barrier_buffer") == 1.0);
    runs_out(&proxy, "more replies than are held");
    drop(client);
    let client = lock();
    proxy.data().kill().unwrap();
    runs_out(&proxy, "the end of the data node");
    drop(client);
}

#[test]
fn a_client_that_hangs_up_may_go_on_behind_a_balancer() {
    let header = b"PROXY TCP4 127.0.0.7 127.0.0.8 1234 5678\r\n";
    let lock = |proxy: &Proxy, balanced: bool| {
        let port = if balanced { proxy.balancer_port() } else { proxy.port() };
        let mut client = Client::connect(port);
        if balanced {
            client.send(header);
        }
        client.cmd(&["LOCK", "k"]).grant();
        client
    };
    let balanced = || {
        let open = Proxy::with().nodes(3).top("allow_open: true");
        open.locks("default_ttl: 40s").behind_balancer("")
    };
    let proxy = balanced().start();
    drop(lock(&proxy, true));
    runs_out(&proxy, "FIN of a balancer");
    lock(&proxy, true).reset();
    runs_out(&proxy, "RST of a balancer");
    drop(lock(&proxy, false));
    ends(&proxy, "FIN of a client");
    let mut client = lock(&proxy, true);
    assert_eq!(client.cmd(&["QUIT"]), Reply::ok());
    ends(&proxy, "QUIT");
    let proxy = balanced().locks("on_disconnect: release").start();
    drop(lock(&proxy, true));
    ends(&proxy, "FIN of a balancer that is its client's");
    let proxy = balanced().locks("on_disconnect: expire").start();
    drop(lock(&proxy, false));
    runs_out(&proxy, "FIN of a client");
    let mut client = lock(&proxy, false);
    assert_eq!(client.cmd(&["RESET"]), Reply::simple("RESET"));
    ends(&proxy, "RESET");
}

#[test]
fn it_runs_out_when_its_proxy_ends() {
    let mut proxy = proxy("40s");
    let mut idle = proxy.client();
    idle.cmd(&["LOCK", "idle"]).grant();
    let mut busy = proxy.client();
    busy.cmd(&["LOCK", "busy"]).grant();
    busy.send(&encode(&["BLPOP", "nothing", "0"]));
    let other = Proxy::beside(&proxy).start();
    let mut next = other.client();
    next.send(&encode(&["LOCK", "idle", "WAIT", "0"]));
    eventually("it waits", || other.waiters() == 1);
    proxy.terminate();
    // At once where the connection is at rest, otherwise after shutdown_grace.
    assert!(proxy.wait().success());
    assert!(idle.rest().0.is_empty());
    thread::sleep(ms(300));
    for key in ["lock:idle", "lock:busy"] {
        assert_eq!(proxy.nodes_with(key), 3, "{key}");
    }
    drop(next);
}

#[test]
fn a_lease_stays_when_its_connection_ends_and_is_not_renewed() {
    let proxy = proxy("300ms");
    let mut client = proxy.client();
    client.cmd(&["LOCK", "long", "PX", "60000"]).grant();
    client.cmd(&["LOCK", "short", "PX", "400"]).grant();
    drop(client);
    eventually("its TTL is over", || free(&proxy, "short"));
    proxy.assert_on_nodes("lock:long", 3);
    assert_eq!(lost(&proxy, ""), 0.0, "nobody's loss");
    assert_eq!(proxy.metric("lockgate_renewals_total", ""), 0.0);
}

/// A network namespace that stands for another host at the end of a cable.
struct Beyond {
    id: u32,
}

impl Beyond {
    /// Makes the namespace. Returns `None` if this process may not.
    fn connect() -> Option<Beyond> {
        let id = std::process::id();
        let it = Beyond { id };
        let (there, cable) = (it.namespace(), it.cable());
        let made = as_root(&format!("ip netns add {there}"))
            && as_root(&format!("ip link add {cable} type veth peer name eth0 netns {there}"))
            && as_root(&format!("ip addr add {}/30 dev {cable}", it.address(1)))
            && as_root(&format!("ip link set {cable} up"))
            && as_root(&format!("ip -n {there} addr add {}/30 dev eth0", it.address(2)))
            && as_root(&format!("ip -n {there} link set eth0 up"));
        made.then_some(it)
    }

    fn namespace(&self) -> String {
        format!("lockgate{}", self.id)
    }

    fn cable(&self) -> String {
        format!("lg{}", self.id)
    }

    /// Returns the address of one end of the cable.
    fn address(&self, end: u32) -> String {
        format!("10.213.{}.{}", self.id % 256, 4 * (self.id / 256 % 64) + end)
    }
}

impl Drop for Beyond {
    fn drop(&mut self) {
        as_root(&format!("ip netns del {}", self.namespace()));
    }
}

fn as_root(command: &str) -> bool {
    let sudo = if rustix::process::getuid().is_root() { "" } else { "sudo -n " };
    let command = format!("{sudo}{command}");
    let (program, arguments) = command.split_once(' ').unwrap();
    Command::new(program).args(arguments.split(' ')).status().is_ok_and(|status| status.success())
}

#[test]
fn a_peer_that_vanished_is_found_by_keepalive() {
    let Some(beyond) = Beyond::connect() else {
        // Without another host, the test shows at least that the kernel checks the peer.
        println!("no right to make network namespaces: looking at the socket's timer alone");
        let proxy = Proxy::with().top("tcp_keepalive: 1s").start();
        let mut client = proxy.client();
        client.cmd(&["LOCK", "k"]).grant();
        let sockets = std::fs::read_to_string("/proc/net/tcp").unwrap();
        let local = format!("0100007F:{:04X}", proxy.port());
        let peer = format!("0100007F:{:04X}", client.socket().local_addr().unwrap().port());
        let line = sockets.lines().find(|line| line.contains(&format!("{local} {peer}"))).unwrap();
        let timer = line.split_whitespace().nth(5).unwrap();
        assert!(timer.starts_with("02:"), "no keepalive timer: {line}");
        return;
    };
    let proxy = Proxy::with()
        .nodes(3)
        .host(&beyond.address(1))
        .top("tcp_keepalive: 1s\nallow_open: true")
        .locks("default_ttl: 50s")
        .start();
    let script = format!(
        "exec 3<>/dev/tcp/{}/{}; printf 'LOCK k\\r\\n' >&3; \
         read -r line <&3; echo \"$line\"; sleep 60",
        beyond.address(1),
        proxy.port()
    );
    let sudo = if rustix::process::getuid().is_root() { "env" } else { "sudo" };
    let mut child = Command::new(sudo)
        .args(["ip", "netns", "exec", &beyond.namespace(), "bash", "-c", &script])
        .stdout(Stdio::piped())
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line.trim_end(), "*3");
    thread::sleep(ms(3000));
    assert_eq!(proxy.nodes_with("lock:k"), 3, "idle, but alive");
    let cut = Instant::now();
    assert!(as_root(&format!("ip link set {} down", beyond.cable())));
    // The client at the other end may be alive, so the lock runs out.
    runs_out(&proxy, "found");
    println!("found {:?} after the cable was cut", cut.elapsed());
    let _ = child.kill();
    let _ = child.wait();
}

#[test]
#[ignore = "takes long: make long"]
fn ten_thousand_are_kept_in_few_round_trips() {
    const LOCKS: usize = 10_000;
    let proxy = proxy("3s");
    let mut clients: Vec<Client> = (0..10).map(|_| proxy.client()).collect();
    for (n, client) in clients.iter_mut().enumerate() {
        let keys: Vec<String> = (0..LOCKS / 10).map(|key| format!("{n}:{key}")).collect();
        for keys in keys.chunks(100) {
            let locks: Vec<[&str; 2]> = keys.iter().map(|key| ["LOCK", key.as_str()]).collect();
            let locks: Vec<&[&str]> = locks.iter().map(<[&str; 2]>::as_slice).collect();
            client.pipe(&locks).iter().for_each(|reply| drop(reply.grant()));
        }
    }
    let calls = || {
        let Reply::Bulk(stats) = proxy.node_client(0).cmd(&["INFO", "commandstats"]) else {
            panic!()
        };
        let stats = String::from_utf8(stats).unwrap();
        let line = stats.lines().find(|line| line.starts_with("cmdstat_evalsha:")).unwrap();
        let calls = line.split(['=', ',']).nth(1).unwrap();
        calls.parse::<f64>().unwrap()
    };
    let (before, renewed, begun) =
        (calls(), proxy.metric("lockgate_renewals_total", "ok"), Instant::now());
    thread::sleep(ms(9000));
    let calls = calls() - before;
    let renewed = proxy.metric("lockgate_renewals_total", "ok") - renewed;
    println!("{renewed} renewals in {calls} calls in {:?}", begun.elapsed());
    assert!(renewed >= 5.0 * LOCKS as f64, "{renewed}");
    assert!(calls <= renewed / 25.0, "{calls} calls for {renewed} renewals");
    assert_eq!(lost(&proxy, ""), 0.0);
    assert_eq!(proxy.metric("lockgate_session_locks", ""), LOCKS as f64);
    let size = |node: usize| {
        proxy.node_client(node).cmd(&["EVAL", "return #redis.call('KEYS', 'lock:*')", "0"])
    };
    assert_eq!(size(1), Reply::Int(LOCKS as i64));
    drop(clients);
    eventually("all are released", || size(0) == Reply::Int(0) && size(2) == Reply::Int(0));
}

#[test]
#[ignore = "takes long: make long"]
fn more_than_a_connection_can_keep_are_refused() {
    let proxy = Proxy::with().locks("default_ttl: 40s").start();
    let mut client = proxy.client();
    for chunk in 0..100 {
        let keys: Vec<String> = (0..100).map(|key| format!("{chunk}:{key}")).collect();
        let locks: Vec<[&str; 2]> = keys.iter().map(|key| ["LOCK", key.as_str()]).collect();
        let locks: Vec<&[&str]> = locks.iter().map(<[&str; 2]>::as_slice).collect();
        client.pipe(&locks).iter().for_each(|reply| drop(reply.grant()));
    }
    let reply = client.cmd(&["LOCK", "one more"]);
    assert!(reply.error().starts_with("ERR too many session locks on this connection"));
    assert_eq!(client.cmd(&["LOCK", "0:0", "PX", "60000"]), Reply::NullArray);
    client.cmd(&["LOCK", "lease", "PX", "60000"]).grant();
    assert_eq!(client.cmd(&["UNLOCK", "0:1"]), Reply::Int(1));
    client.cmd(&["LOCK", "one more"]).grant();
}

#[test]
fn a_loss_is_told_once_and_the_command_behind_it_does_nothing() {
    let proxy = proxy("300ms");
    let mut client = proxy.client();
    let grant = client.cmd(&["LOCK", "k"]).grant();
    client.cmd(&["SET", "x", "before"]);
    delete(&proxy, "k", 3);
    eventually("it is lost", || lost(&proxy, "not_held") == 1.0);
    let replies = client.pipe(&[&["SET", "x", "behind"], &["GET", "x"], &["RENEW", "k"]]);
    for reply in &replies[..2] {
        assert!(reply.error().starts_with("LOCKLOST the lock 'k' was lost"), "{replies:?}");
    }
    assert_eq!(replies[2], Reply::Int(0));
    assert_eq!(client.cmd(&["GET", "x"]), Reply::bulk("before"));
    assert_eq!(client.cmd(&["RENEW", "k", &grant.token]), Reply::Int(0));
    assert_eq!(client.cmd(&["UNLOCK", "k"]), Reply::Int(0));
    assert_eq!(client.cmd(&["UNLOCK", "k"]), Reply::Int(0));
    assert_eq!(proxy.metric("lockgate_session_locks", ""), 0.0);
    client.cmd(&["LOCK", "k"]).grant();
}

#[test]
fn commands_under_way_are_answered_before_the_news() {
    let proxy = proxy("300ms");
    let mut client = proxy.client();
    client.cmd(&["LOCK", "k"]).grant();
    client.send(&encode(&["BLPOP", "list", "0"]));
    thread::sleep(ms(50));
    delete(&proxy, "k", 3);
    eventually("it is lost", || lost(&proxy, "") == 1.0);
    let big = "x".repeat(3 << 20);
    client.send(&pipeline(&[&["SET", "big", &big], &["EXISTS", "big"]]));
    thread::sleep(ms(50));
    proxy.client().cmd(&["RPUSH", "list", "item"]);
    assert_eq!(client.reply(), Reply::Array(vec![Reply::bulk("list"), Reply::bulk("item")]));
    assert!(client.reply().error().starts_with("LOCKLOST"));
    assert!(client.reply().error().starts_with("LOCKLOST"));
    assert_eq!(client.cmd(&["EXISTS", "big"]), Reply::Int(0), "what was dropped was not stored");
    // Lockgate's own commands and inline ones are no exception.
    for words in ["LOCK a", "UNLOCK a", "PING", "get x"] {
        client.cmd(&["LOCK", "k"]).grant();
        let before = lost(&proxy, "");
        delete(&proxy, "k", 3);
        eventually("it is lost", || lost(&proxy, "") > before);
        client.send(format!("\r\n{words}\r\n").as_bytes());
        assert!(client.reply().error().starts_with("LOCKLOST"), "{words}");
        assert_eq!(client.cmd(&["PING"]), Reply::simple("PONG"));
    }
    assert!(free(&proxy, "a"));
}

#[test]
fn a_transaction_fails_with_the_lock() {
    let proxy = proxy("300ms");
    let mut client = proxy.client();
    client.cmd(&["LOCK", "k"]).grant();
    client.pipe(&[&["MULTI"], &["SET", "a", "1"]]);
    delete(&proxy, "k", 3);
    eventually("it is lost", || lost(&proxy, "") == 1.0);
    let replies = client.pipe(&[&["SET", "b", "1"], &["SET", "c", "1"], &["EXEC"], &["DBSIZE"]]);
    for reply in &replies {
        assert!(reply.error().starts_with("LOCKLOST"), "{replies:?}");
    }
    assert_eq!(client.cmd(&["DBSIZE"]), Reply::Int(0), "nor is it queued");
    // The command that ends the transaction comes later, or is itself refused.
    for ends in ["EXEC", "DISCARD"] {
        let before = lost(&proxy, "");
        client.cmd(&["LOCK", "k"]).grant();
        client.pipe(&[&["MULTI"], &["SET", "a", "1"]]);
        delete(&proxy, "k", 3);
        eventually("it is lost", || lost(&proxy, "") > before);
        assert!(client.cmd(&["SET", "b", "1"]).error().starts_with("LOCKLOST"));
        match ends {
            "EXEC" => assert!(client.cmd(&["EXEC"]).error().starts_with("EXECABORT")),
            _ => assert_eq!(client.cmd(&["DISCARD"]), Reply::ok()),
        }
        let before = lost(&proxy, "");
        client.cmd(&["LOCK", "k"]).grant();
        client.pipe(&[&["WATCH", "w"], &["MULTI"], &["SET", "a", "1"]]);
        delete(&proxy, "k", 3);
        eventually("it is lost", || lost(&proxy, "") > before);
        assert!(client.cmd(&[ends]).error().starts_with("LOCKLOST"));
        assert_eq!(client.cmd(&["DBSIZE"]), Reply::Int(0), "nor is it queued");
    }
}

/// Everything that the client has sent before it is told was sent without knowing of the loss, however much it is.
#[test]
fn the_rest_of_a_pipeline_is_refused_with_the_command_that_tells() {
    let proxy = proxy("300ms");
    for version in ["2", "3"] {
        let mut client = proxy.client();
        client.cmd(&["HELLO", version]);
        client.cmd(&["LOCK", "k"]).grant();
        client.send(&encode(&["BLPOP", "list", "0"]));
        let before = lost(&proxy, "");
        delete(&proxy, "k", 3);
        eventually("it is lost", || lost(&proxy, "") > before);
        // More than the proxy reads ahead, and less than the sockets hold.
        let incr = ["INCR", "executed"];
        client.send(&pipeline(&[&incr[..]; 3000]));
        thread::sleep(ms(200));
        proxy.client().cmd(&["RPUSH", "list", "item"]);
        let mut refused = 0;
        while refused < 3000 {
            match client.reply() {
                Reply::Push(_) | Reply::Array(_) => {}
                reply => {
                    assert!(reply.error().starts_with("LOCKLOST"), "{reply:?}");
                    refused += 1;
                }
            }
        }
        // Nothing later is refused.
        assert!(matches!(client.cmd(&["GET", "executed"]), Reply::NullBulk | Reply::Null));
        assert_eq!(client.cmd(&["PING"]), Reply::simple("PONG"));
    }
}

#[test]
fn what_waits_for_earlier_replies_is_not_carried_out_after_a_loss() {
    let proxy = proxy("300ms");
    for command in [&["LOCK", "other"][..], &["AUTH", "x"], &["CLIENT", "REPLY", "OFF"]] {
        let mut client = proxy.client();
        client.cmd(&["LOCK", "k"]).grant();
        client.send(&pipeline(&[&["BLPOP", "list", "0"], command, &["PING"]]));
        thread::sleep(ms(50));
        let before = lost(&proxy, "");
        delete(&proxy, "k", 3);
        eventually("it is lost", || lost(&proxy, "") > before);
        proxy.client().cmd(&["RPUSH", "list", "item"]);
        assert!(matches!(client.reply(), Reply::Array(_)));
        assert!(client.reply().error().starts_with("LOCKLOST"), "{command:?}");
        assert!(client.reply().error().starts_with("LOCKLOST"), "{command:?}");
        assert_eq!(client.cmd(&["PING"]), Reply::simple("PONG"));
    }
    assert!(free(&proxy, "other"));
}

#[test]
fn unlock_and_renew_of_a_lost_lock_tell_as_much() {
    let proxy = proxy("300ms");
    let mut client = proxy.client();
    let lose = |client: &mut Client, keys: &[&str]| {
        let before = lost(&proxy, "");
        let grants: Vec<_> = keys.iter().map(|key| client.cmd(&["LOCK", key]).grant()).collect();
        keys.iter().for_each(|key| delete(&proxy, key, 3));
        eventually("lost", || lost(&proxy, "") >= before + keys.len() as f64);
        grants
    };
    lose(&mut client, &["k"]);
    assert_eq!(client.pipe(&[&["UNLOCK", "k"], &["INCR", "n"]]), [Reply::Int(0), Reply::Int(1)]);
    let grants = lose(&mut client, &["k"]);
    assert_eq!(client.cmd(&["UNLOCK", "k", &grants[0].token]), Reply::Int(0));
    assert_eq!(client.cmd(&["PING"]), Reply::simple("PONG"));
    // The commands behind a RENEW were to run under the lock.
    lose(&mut client, &["k"]);
    let replies = client.pipe(&[&["RENEW", "k"], &["INCR", "n"], &["UNLOCK", "k"]]);
    assert_eq!((&replies[0], &replies[2]), (&Reply::Int(0), &Reply::Int(0)));
    assert!(replies[1].error().starts_with("LOCKLOST"), "{replies:?}");
    assert_eq!(client.cmd(&["INCR", "n"]), Reply::Int(2));
    // Both losses must be told.
    lose(&mut client, &["k", "l"]);
    assert_eq!(client.cmd(&["UNLOCK", "l"]), Reply::Int(0));
    let told = client.cmd(&["PING"]);
    assert!(told.error().starts_with("LOCKLOST the lock 'k' was lost"), "{told:?}");
    // UNLOCK byte by byte.
    lose(&mut client, &["k"]);
    for byte in encode(&["UNLOCK", "k"]) {
        client.send(&[byte]);
        thread::sleep(ms(2));
    }
    assert_eq!(client.reply(), Reply::Int(0));
    assert_eq!(client.cmd(&["PING"]), Reply::simple("PONG"));
}

#[test]
fn a_malformed_command_about_a_lost_lock_is_refused_like_any_other() {
    let proxy = proxy("300ms");
    let mut client = proxy.client();
    for words in [
        "RENEW k t 500",
        "RENEW k t PX",
        "RENEW k t PX 0",
        "RENEW k PX 500 t",
        "UNLOCK k t PX",
        "UNLOCK k t u v",
        "MUNLOCK 1 k t u",
        "MUNLOCK 3 k t",
        "MUNLOCK 0 k",
    ] {
        client.cmd(&["LOCK", "k", "t"]).grant();
        let before = lost(&proxy, "");
        delete(&proxy, "k", 3);
        eventually("it is lost", || lost(&proxy, "") > before);
        let words: Vec<&str> = words.split(' ').collect();
        assert!(client.cmd(&words).error().starts_with("LOCKLOST"), "{words:?}");
        assert_eq!(client.cmd(&["PING"]), Reply::simple("PONG"), "{words:?}");
    }
}

#[test]
fn what_is_sent_after_a_loss_was_told_is_carried_out() {
    let proxy = proxy("300ms");
    let mut client = proxy.client();
    for _ in 0..20 {
        let before = lost(&proxy, "");
        client.cmd(&["LOCK", "k"]).grant();
        delete(&proxy, "k", 3);
        eventually("it is lost", || lost(&proxy, "") > before);
        assert!(client.cmd(&["INCR", "n"]).error().starts_with("LOCKLOST"));
        assert_eq!(client.cmd(&["GET", "n"]), Reply::NullBulk);
    }
}

#[test]
fn resp3_is_told_by_a_push_between_frames() {
    let proxy = proxy("300ms");
    let mut client = proxy.client();
    client.cmd(&["HELLO", "3"]);
    let push = |key: &str, token: &str| {
        Reply::Push(vec![Reply::bulk("lock-lost"), Reply::bulk(key), Reply::bulk(token)])
    };
    let grant = client.cmd(&["LOCK", "k"]).grant();
    delete(&proxy, "k", 3);
    assert_eq!(client.reply(), push("k", &grant.token), "idle");
    // The error is sent too, as most libraries swallow pushes.
    assert!(client.cmd(&["PING"]).error().starts_with("LOCKLOST"));
    assert_eq!(client.cmd(&["PING"]), Reply::simple("PONG"));
    client.cmd(&["LOCK", "k", "mine"]).grant();
    client.send(&encode(&["BLPOP", "list", "0"]));
    delete(&proxy, "k", 3);
    assert_eq!(client.reply(), push("k", "mine"), "blocked");
    proxy.client().cmd(&["RPUSH", "list", "item"]);
    assert!(matches!(client.reply(), Reply::Array(_)));
    assert!(client.cmd(&["PING"]).error().starts_with("LOCKLOST"));
    // A large reply is on its way, and is read late.
    let big = "x".repeat(30 << 20);
    client.cmd(&["SET", "big", &big]);
    client.cmd(&["LOCK", "k", "mine"]).grant();
    client.send(&encode(&["GET", "big"]));
    assert!(!client.reader().fill_buf().unwrap().is_empty(), "it has begun");
    let before = lost(&proxy, "");
    delete(&proxy, "k", 3);
    eventually("it is lost", || lost(&proxy, "") > before);
    thread::sleep(ms(100));
    assert!(client.reply() == Reply::Bulk(big.into_bytes()), "whole, and before the push");
    assert_eq!(client.reply(), push("k", "mine"));
    assert!(client.cmd(&["PING"]).error().starts_with("LOCKLOST"));
    assert_eq!(client.cmd(&["PING"]), Reply::simple("PONG"));
}

#[test]
fn who_gets_no_replies_is_closed() {
    let proxy = proxy("300ms");
    let mut client = proxy.client();
    client.cmd(&["LOCK", "k"]).grant();
    client.send(&encode(&["CLIENT", "REPLY", "OFF"]));
    client.send(&encode(&["SET", "a", "1"]));
    eventually("silent", || proxy.client().cmd(&["EXISTS", "a"]) == Reply::Int(1));
    delete(&proxy, "k", 3);
    assert!(client.rest().0.is_empty());
    eventually("it is counted", || proxy.metric("lockgate_closes_total", "lock_lost") == 1.0);
}

#[test]
fn on_lost_can_close_or_say_nothing() {
    let closing =
        Proxy::with().nodes(3).locks("default_ttl: 300ms").locks("on_lost: close").start();
    for version in ["2", "3"] {
        let mut client = closing.client();
        client.cmd(&["HELLO", version]);
        client.cmd(&["LOCK", "k", "t"]).grant();
        delete(&closing, "k", 3);
        let (rest, _) = client.rest();
        let push = b">3\r\n$9\r\nlock-lost\r\n$1\r\nk\r\n$1\r\nt\r\n".to_vec();
        assert_eq!(rest, if version == "3" { push } else { Vec::new() });
    }
    let silent =
        Proxy::with().nodes(3).locks("default_ttl: 300ms").locks("on_lost: ignore").start();
    let mut client = silent.client();
    client.cmd(&["LOCK", "k"]).grant();
    delete(&silent, "k", 3);
    eventually("it is lost", || lost(&silent, "") == 1.0);
    assert_eq!(client.cmd(&["PING"]), Reply::simple("PONG"));
    assert_eq!(client.cmd(&["RENEW", "k"]), Reply::Int(0));
    let pushing = Proxy::with().nodes(3).locks("default_ttl: 300ms").locks("on_lost: push").start();
    let mut client = pushing.client();
    client.cmd(&["LOCK", "k"]).grant();
    delete(&pushing, "k", 3);
    eventually("it is lost", || lost(&pushing, "") == 1.0);
    assert!(client.cmd(&["PING"]).error().starts_with("LOCKLOST"));
    client.cmd(&["HELLO", "3"]);
    client.cmd(&["LOCK", "k"]).grant();
    delete(&pushing, "k", 3);
    assert!(matches!(client.reply(), Reply::Push(_)));
    assert_eq!(client.cmd(&["PING"]), Reply::simple("PONG"));
}

#[test]
fn a_minority_that_forgot_it_gets_it_back() {
    let proxy = proxy("300ms");
    let mut client = proxy.client();
    let grant = client.cmd(&["LOCK", "k"]).grant();
    let everywhere = vec![Reply::bulk(&grant.token); 3];
    for _ in 0..2 {
        delete(&proxy, "k", 1);
        eventually("it is put back", || proxy.on_nodes("lock:k") == everywhere);
    }
    assert_eq!(client.cmd(&["PING"]), Reply::simple("PONG"));
    assert_eq!(lost(&proxy, ""), 0.0);
    delete(&proxy, "k", 2);
    eventually("it is lost with the quorum", || lost(&proxy, "not_held") == 1.0);
    eventually("nothing of it stays", || free(&proxy, "k"));
}

/// Nodes that deny the lock may have ended it too early, as one does whose clock jumps, or may never have had it. Were
/// it released on the others, these could grant it to another client before the holder is told.
#[test]
fn where_a_lost_lock_is_held_it_stays_for_as_long_as_its_holder_was_told() {
    let proxy = Proxy::with().nodes(5).locks("default_ttl: 6s").start();
    let (mut client, mut other) = (proxy.client(), proxy.client());
    let begun = Instant::now();
    let grant = client.cmd(&["LOCK", "k"]).grant();
    delete(&proxy, "k", 3);
    eventually("it is lost", || lost(&proxy, "not_held") == 1.0);
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
    let valid = Duration::from_millis(u64::try_from(grant.validity).unwrap());
    while begun.elapsed() + ms(300) < valid {
        assert_eq!(proxy.nodes_with("lock:k"), 2, "{:?} of {valid:?}", begun.elapsed());
        thread::sleep(ms(100));
    }
    eventually("it has run out", || free(&proxy, "k"));
    // It keeps nobody out whom the other nodes let in.
    client.cmd(&["SET", "x", "1"]).error();
    client.cmd(&["LOCK", "k"]).grant();
    delete(&proxy, "k", 3);
    other.cmd(&["LOCK", "k", "PX", "60000"]).grant();
}

/// The proxy that loses a session lock may not know of a longer validity: RENEW was sent through another proxy, or the
/// lock was a lease then.
#[test]
fn a_lost_lock_stays_for_as_long_as_a_renew_has_told() {
    let first = proxy("1500ms");
    let second = Proxy::beside(&first).start();
    let mut other = second.client();
    for (losses, was_lease) in [(1.0, false), (2.0, true)] {
        let mut holder = first.client();
        let first_lock = if was_lease { &["LOCK", "k", "PX", "1500"][..] } else { &["LOCK", "k"] };
        let token = holder.cmd(first_lock).grant().token;
        let begun = Instant::now();
        let Reply::Int(told) = other.cmd(&["RENEW", "k", &token, "PX", "6000"]) else {
            panic!("renewed")
        };
        assert!(told > 5500, "{told}");
        if was_lease {
            holder.cmd(&["LOCK", "k", &token]).grant();
        }
        first.freeze();
        thread::sleep(ms(2000));
        first.thaw();
        eventually("it is lost", || lost(&first, "") == losses);
        let told = ms(u64::try_from(told).unwrap());
        while begun.elapsed() + ms(300) < told {
            assert!(first.nodes_with("lock:k") >= 2, "{:?} of {told:?}", begun.elapsed());
            thread::sleep(ms(50));
        }
        eventually("it has run out", || free(&first, "k"));
    }
}

#[test]
fn nodes_that_hang_longer_than_validity_lose_it() {
    let mut proxy = impatient("1s");
    let mut client = proxy.client();
    client.cmd(&["HELLO", "3"]);
    let grant = client.cmd(&["LOCK", "k"]).grant();
    let mut brief = proxy.client();
    proxy.node(0).freeze().unwrap();
    proxy.node(1).freeze().unwrap();
    thread::sleep(ms(400));
    proxy.node(1).thaw().unwrap();
    thread::sleep(ms(1500));
    assert_eq!(lost(&proxy, ""), 0.0, "renewed again in time");
    proxy.node(1).freeze().unwrap();
    let told = client.reply();
    assert!(matches!(&told, Reply::Push(all) if all[2] == Reply::bulk(&grant.token)), "{told:?}");
    assert_eq!(lost(&proxy, "no_quorum"), 1.0);
    assert!(proxy.metric("lockgate_renewals_total", "retried") >= 1.0);
    proxy.node(0).thaw().unwrap();
    proxy.node(1).thaw().unwrap();
    eventually("nothing of it stays", || free(&proxy, "k"));
    thread::sleep(ms(500));
    assert!(free(&proxy, "k"), "nor is it renewed");
    brief.cmd(&["LOCK", "k", "PX", "60000"]).grant();
}

#[test]
fn a_proxy_that_slept_loses_what_another_has_taken() {
    let first = proxy("1s");
    let second = Proxy::beside(&first).start();
    let mut holder = first.client();
    holder.cmd(&["LOCK", "k"]).grant();
    let mut next = second.client();
    next.send(&encode(&["LOCK", "k", "WAIT", "0"]));
    eventually("it waits", || second.waiters() == 1);
    thread::sleep(ms(2000));
    first.freeze();
    let grant = next.reply().grant();
    thread::sleep(ms(300));
    first.thaw();
    eventually("it is lost", || lost(&first, "") == 1.0);
    assert!(holder.cmd(&["SET", "x", "1"]).error().starts_with("LOCKLOST"));
    for _ in 0..10 {
        thread::sleep(ms(100));
        let held = second.on_nodes_of(&first, "lock:k");
        assert!(held.iter().filter(|value| **value == Reply::bulk(&grant.token)).count() >= 2);
    }
    assert_eq!(next.cmd(&["UNLOCK", "k"]), Reply::Int(1));
}

/// Many holders, because the proxy's threads race when it goes on: the thread that serves a client may run before the
/// one that finds the lock lost.
#[test]
fn what_was_sent_while_the_proxy_slept_is_not_executed_under_a_lost_lock() {
    let proxy = proxy("1s");
    let mut holders: Vec<Client> = (0..200).map(|_| proxy.client()).collect();
    for round in 0..3 {
        for (number, holder) in holders.iter_mut().enumerate() {
            holder.cmd(&["LOCK", &format!("{round}-{number}")]).grant();
        }
        proxy.freeze();
        thread::sleep(ms(1300));
        for holder in &mut holders {
            holder.send(&encode(&["INCR", "executed"]));
        }
        proxy.thaw();
        for holder in &mut holders {
            assert!(holder.reply().error().starts_with("LOCKLOST"));
        }
    }
    assert_eq!(proxy.client().cmd(&["GET", "executed"]), Reply::NullBulk);
}

#[test]
fn max_hold_ends_even_a_renewed_lock() {
    let proxy =
        Proxy::with().nodes(3).locks("default_ttl: 300ms").locks("max_hold: 1500ms").start();
    let mut client = proxy.client();
    client.cmd(&["HELLO", "3"]);
    let begun = Instant::now();
    let grant = client.cmd(&["LOCK", "k"]).grant();
    let mut next = proxy.client();
    next.send(&encode(&["LOCK", "k", "n", "PX", "60000", "WAIT", "0"]));
    let push = [Reply::bulk("lock-lost"), Reply::bulk("k"), Reply::bulk(&grant.token)];
    assert_eq!(client.reply(), Reply::Push(push.to_vec()));
    assert!(begun.elapsed() >= ms(1500), "{:?}", begun.elapsed());
    assert_eq!(next.reply().grant().token, "n");
    assert_eq!(lost(&proxy, "max_hold"), 1.0);
}

#[test]
fn nothing_is_told_beyond_max_hold() {
    let proxy = Proxy::with().nodes(3).locks("default_ttl: 2s").locks("max_hold: 2s").start();
    let mut client = proxy.client();
    let grant = client.cmd(&["LOCK", "k"]).grant();
    assert!(grant.validity <= 2000, "{grant:?}");
    for command in [&["RENEW", "k", "PX", "60000"][..], &["RENEW", "k", &grant.token, "EX", "9"]] {
        let reply = client.cmd(command);
        assert!(matches!(reply, Reply::Int(..=2000)), "{reply:?}");
        let reply = proxy.client().cmd(&["RENEW", "k", &grant.token, "PX", "50000"]);
        assert!(matches!(reply, Reply::Int(..=2000)), "{reply:?}");
    }
    eventually("lost", || lost(&proxy, "max_hold") == 1.0);
}

#[test]
fn renew_and_lock_again_say_what_it_is_from_then_on() {
    let proxy = proxy("400ms");
    let mut client = proxy.client();
    let grant = client.cmd(&["LOCK", "k"]).grant();
    let Reply::Int(validity) = client.cmd(&["RENEW", "k", "PX", "3000"]) else { panic!() };
    assert!(validity > 2000);
    thread::sleep(ms(3500));
    assert_eq!(proxy.nodes_with("lock:k"), 3, "renewed with the new TTL");
    // LOCK again with that token and a TTL makes it a lease.
    client.cmd(&["LOCK", "k", &grant.token, "PX", "1000"]).grant();
    assert_eq!(proxy.metric("lockgate_session_locks", ""), 0.0);
    thread::sleep(ms(200));
    assert_eq!(proxy.nodes_with("lock:k"), 3, "nor given back");
    eventually("it is not renewed any more", || free(&proxy, "k"));
    assert_eq!(lost(&proxy, ""), 0.0);
    // LOCK again without a TTL makes a lease a session lock.
    client.cmd(&["LOCK", "k", "t", "PX", "1000"]).grant();
    client.cmd(&["LOCK", "k", "t"]).grant();
    thread::sleep(ms(1500));
    assert_eq!(proxy.nodes_with("lock:k"), 3);
    drop(client);
    eventually("released", || free(&proxy, "k"));
}

#[test]
fn a_renewal_behind_a_longer_renew_takes_nothing_from_it() {
    let mut proxy = Proxy::with()
        .nodes(3)
        .locks("default_ttl: 3s")
        .locks("node_silence: 20s")
        .locks("node_timeout: 2s")
        .start();
    let mut client = proxy.client();
    client.cmd(&["LOCK", "k"]).grant();
    (0..3).for_each(|node| proxy.node(node).freeze().unwrap());
    client.send(&encode(&["RENEW", "k", "PX", "60000"]));
    // The renewal, due after a third of the TTL, reaches the nodes behind the RENEW.
    thread::sleep(ms(1200));
    (0..3).for_each(|node| proxy.node(node).thaw().unwrap());
    let Reply::Int(validity) = client.reply() else { panic!("not renewed") };
    assert!(validity > 50_000, "{validity}");
    for _ in 0..5 {
        for node in 0..3 {
            let left = proxy.node_client(node).cmd(&["PTTL", "lock:k"]);
            assert!(matches!(left, Reply::Int(50_000..)), "{left:?}");
        }
        thread::sleep(ms(200));
    }
    assert_eq!(client.cmd(&["UNLOCK", "k"]), Reply::Int(1));
}

#[test]
fn a_shorter_renew_of_which_nothing_is_heard_loses_nothing() {
    let mut proxy = impatient("60s");
    let mut client = proxy.client();
    client.cmd(&["LOCK", "k"]).grant();
    (0..3).for_each(|node| proxy.node(node).freeze().unwrap());
    let reply = client.cmd(&["RENEW", "k", "PX", "2000"]);
    assert!(reply.error().starts_with("NOQUORUM "), "{reply:?}");
    // The nodes still carry out the RENEW, so the lock has two seconds left.
    (0..3).for_each(|node| proxy.node(node).thaw().unwrap());
    thread::sleep(ms(3000));
    assert_eq!(proxy.nodes_with("lock:k"), 3);
    assert_eq!(lost(&proxy, ""), 0.0);
    assert_eq!(client.cmd(&["UNLOCK", "k"]), Reply::Int(1));
}

#[test]
fn a_renew_on_another_connection_counts_for_its_holder_too() {
    let proxy = proxy("60s");
    let (mut client, mut other) = (proxy.client(), proxy.client());
    let grant = client.cmd(&["LOCK", "k"]).grant();
    let Reply::Int(1..) = other.cmd(&["RENEW", "k", &grant.token, "PX", "600"]) else { panic!() };
    thread::sleep(ms(1500));
    assert!(proxy.nodes_with("lock:k") >= 2);
    assert_eq!(client.cmd(&["UNLOCK", "k"]), Reply::Int(1));
}

#[test]
fn a_client_that_came_back_keeps_what_it_locked_again() {
    let proxy = proxy("300ms");
    let mut old = proxy.client();
    old.cmd(&["LOCK", "k", "mine"]).grant();
    // The old client's connection is gone, but the proxy has not noticed yet.
    let mut new = proxy.client();
    assert!(matches!(new.cmd(&["RENEW", "k", "mine"]), Reply::Int(1..)));
    drop(old);
    thread::sleep(ms(1000));
    assert_eq!(proxy.on_nodes("lock:k"), vec![Reply::bulk("mine"); 3]);
    assert_eq!(proxy.metric("lockgate_session_locks", ""), 1.0);
    assert_eq!(new.cmd(&["UNLOCK", "k"]), Reply::Int(1));
    assert_eq!(new.cmd(&["RENEW", "k", "mine"]), Reply::Int(0));
}

#[test]
fn renew_by_token_makes_another_connection_the_keeper() {
    let first = proxy("1s");
    let second = Proxy::beside(&first).start();
    for proxy in [&first, &second] {
        let mut old = first.client();
        let grant = old.cmd(&["LOCK", "k"]).grant();
        let Reply::Int(id) = old.cmd(&["CLIENT", "ID"]) else { panic!() };
        first.client().cmd(&["CLIENT", "KILL", "ID", &id.to_string()]);
        assert!(old.rest().0.is_empty());
        let mut new = proxy.client();
        let attached = new.cmd(&["LOCK.ATTACH", "k", &grant.token]).grant();
        assert_eq!(attached.fence, grant.fence);
        assert!(matches!(new.cmd(&["RENEW", "k", &grant.token]), Reply::Int(1..)));
        // Long after the TTL that the former keeper had set.
        thread::sleep(ms(2500));
        assert_eq!(first.nodes_with("lock:k"), 3);
        assert_eq!(new.cmd(&["PING"]), Reply::simple("PONG"));
        drop(new);
        eventually("released with its new connection", || free(&first, "k"));
    }
    // Neither a lock of another token nor a free one can be taken over.
    let mut client = first.client();
    client.cmd(&["LOCK", "k", "t", "PX", "60000"]).grant();
    let mut other = first.client();
    assert_eq!(other.cmd(&["RENEW", "k", "wrong"]), Reply::Int(0));
    assert_eq!(other.cmd(&["RENEW", "free", "t"]), Reply::Int(0));
    // With a TTL it stays a lease, and RENEW by its own connection makes no session lock of it.
    assert!(matches!(other.cmd(&["RENEW", "k", "t", "PX", "50000"]), Reply::Int(49_000..)));
    assert!(matches!(client.cmd(&["RENEW", "k", "t"]), Reply::Int(59_000..)));
    assert_eq!(first.metric("lockgate_session_locks", ""), 0.0);
}

#[test]
fn who_is_replaced_is_told() {
    let proxy = proxy("40s");
    let (mut holder, mut other) = (proxy.client(), proxy.client());
    let grant = holder.cmd(&["LOCK", "k"]).grant();
    assert!(matches!(other.cmd(&["RENEW", "k", &grant.token]), Reply::Int(1..)));
    let told = holder.cmd(&["PING"]);
    assert!(told.error().starts_with("LOCKLOST the lock 'k' was lost"), "{told:?}");
    assert_eq!(lost(&proxy, "replaced"), 1.0);
    assert_eq!(holder.cmd(&["PING"]), Reply::simple("PONG"));
    drop(holder);
    thread::sleep(ms(300));
    assert_eq!(proxy.nodes_with("lock:k"), 3, "it is the other's");
    // A client that takes over its own lock loses nothing.
    assert!(matches!(other.cmd(&["RENEW", "k", &grant.token]), Reply::Int(1..)));
    other.cmd(&["LOCK", "k", &grant.token]).grant();
    assert_eq!(other.cmd(&["PING"]), Reply::simple("PONG"));
    assert_eq!(other.cmd(&["UNLOCK", "k", &grant.token]), Reply::Int(1));
    assert_eq!(other.cmd(&["PING"]), Reply::simple("PONG"));
    assert_eq!(lost(&proxy, ""), 1.0);
}

#[test]
fn unlock_on_another_connection_is_told() {
    let proxy = proxy("300ms");
    let (mut holder, mut other) = (proxy.client(), proxy.client());
    let grant = holder.cmd(&["LOCK", "k"]).grant();
    assert_eq!(other.cmd(&["UNLOCK", "k", &grant.token]), Reply::Int(1));
    assert!(holder.cmd(&["PING"]).error().starts_with("LOCKLOST"));
    assert_eq!(lost(&proxy, ""), 1.0);
    assert_eq!(holder.cmd(&["UNLOCK", "k"]), Reply::Int(0));
    // The end of the first connection does not affect a lock that another client has by then, even with the same
    // token.
    holder.cmd(&["LOCK", "k", "same"]).grant();
    assert_eq!(other.cmd(&["UNLOCK", "k", "same"]), Reply::Int(1));
    other.cmd(&["LOCK", "k", "same", "PX", "60000"]).grant();
    drop(holder);
    thread::sleep(ms(300));
    assert_eq!(proxy.nodes_with("lock:k"), 3);
}

#[test]
fn what_was_to_be_unlocked_is_neither_renewed_nor_lost() {
    let mut proxy = impatient("1s");
    let mut client = proxy.client();
    client.cmd(&["LOCK", "k"]).grant();
    proxy.node(0).freeze().unwrap();
    proxy.node(1).freeze().unwrap();
    assert!(client.cmd(&["UNLOCK", "k"]).error().starts_with("NOQUORUM"));
    proxy.node(0).thaw().unwrap();
    proxy.node(1).thaw().unwrap();
    eventually("released", || free(&proxy, "k"));
    thread::sleep(ms(1000));
    assert_eq!(lost(&proxy, ""), 0.0);
    assert_eq!(client.cmd(&["PING"]), Reply::simple("PONG"));
}

#[test]
fn an_unlock_without_a_quorum_is_made_good_at_the_end() {
    let mut proxy = impatient("50s");
    let mut client = proxy.client();
    client.cmd(&["LOCK", "k"]).grant();
    proxy.node(0).freeze().unwrap();
    proxy.node(1).freeze().unwrap();
    assert!(client.cmd(&["UNLOCK", "k"]).error().starts_with("NOQUORUM"));
    drop(client);
    proxy.node(0).thaw().unwrap();
    proxy.node(1).thaw().unwrap();
    eventually("released", || free(&proxy, "k"));
    assert_eq!(lost(&proxy, ""), 0.0);
}

#[test]
fn a_lost_connection_hands_its_locks_to_those_who_wait() {
    let proxy = proxy("40s");
    let mut holder = proxy.client();
    holder.pipe(&[&["LOCK", "a"], &["LOCK", "b"]]).iter().for_each(|reply| drop(reply.grant()));
    let mut waiters: Vec<Client> = ["a", "b"]
        .iter()
        .map(|key| {
            let mut client = proxy.client();
            client.send(&encode(&["LOCK", key, "WAIT", "0"]));
            client
        })
        .collect();
    eventually("they wait", || proxy.waiters() == 2);
    let begun = Instant::now();
    holder.reset();
    waiters.iter_mut().for_each(|client| drop(client.reply().grant()));
    println!("after {:?}", begun.elapsed());
    assert!(begun.elapsed() < SOON);
}

#[test]
#[ignore = "takes long: make long"]
fn a_writer_that_never_reads_is_told_when_it_does() {
    let proxy = proxy("300ms");
    let mut client = proxy.client();
    client.cmd(&["HELLO", "3"]);
    client.cmd(&["LOCK", "k", "t"]).grant();
    let mut writer = client.socket().try_clone().unwrap();
    let writing = thread::spawn(move || {
        let echo = encode(&["ECHO", &"x".repeat(10_000)]);
        (0..2000).for_each(|_| writer.write_all(&echo).unwrap());
    });
    thread::sleep(ms(200));
    delete(&proxy, "k", 3);
    eventually("it is lost", || lost(&proxy, "") == 1.0);
    let (mut echoes, mut refused, mut pushes) = (0, 0, 0);
    while echoes + refused < 2000 || pushes < 1 {
        match client.reply() {
            Reply::Push(_) => pushes += 1,
            Reply::Bulk(value) if value.len() == 10_000 => echoes += 1,
            Reply::Error(text) if text.starts_with("LOCKLOST") => refused += 1,
            other => panic!("{other:?}"),
        }
    }
    writing.join().unwrap();
    assert_eq!((echoes + refused, pushes), (2000, 1));
}

/// Many small commands are refused faster than their answers are read.
#[test]
#[ignore = "takes long: make long"]
fn refusals_that_are_not_read_are_not_piled_up() {
    let proxy = proxy("300ms");
    let mut client = proxy.client();
    client.cmd(&["LOCK", "k"]).grant();
    delete(&proxy, "k", 3);
    eventually("it is lost", || lost(&proxy, "") == 1.0);
    let mut writer = client.socket().try_clone().unwrap();
    let writing = thread::spawn(move || {
        for _ in 0..100 {
            writer.write_all(&b"PING\r\n".repeat(10_000)).unwrap();
        }
    });
    thread::sleep(ms(500));
    let mut refused = 0;
    for _ in 0..1_000_000 {
        match client.reply() {
            Reply::Error(text) if text.starts_with("LOCKLOST") => refused += 1,
            other => assert_eq!(other, Reply::simple("PONG")),
        }
    }
    writing.join().unwrap();
    println!("{refused} refused");
    assert!(refused >= 1);
}

/// One node after the other is restarted without its memory; never is more than one away. The lock is back on each of
/// them before the next one goes.
#[test]
fn a_session_lock_outlives_a_restart_of_every_node() {
    let mut proxy = Proxy::with()
        .nodes(3)
        .locks("default_ttl: 4s")
        .locks("max_ttl: 4s")
        .locks("node_timeout: 400ms")
        .start();
    let mut holder = proxy.client();
    let token = holder.cmd(&["LOCK", "k"]).grant().token;
    for node in 0..3 {
        proxy.node(node).restart().unwrap();
        eventually("the lock is back there", || {
            proxy.node_client(node).cmd(&["GET", "lock:k"]) == Reply::bulk(&token)
        });
        eventually("the node votes again", || proxy.nodes_up() == 3);
    }
    assert_eq!(proxy.client().cmd(&["LOCK", "k", "PX", "500"]), Reply::NullArray);
    assert_eq!(holder.cmd(&["UNLOCK", "k"]), Reply::Int(1));
    assert!(proxy.metric("lockgate_heals_total", "") >= 3.0);
}

/// A renewal waits for all nodes, but the next renewals do not wait for it.
#[test]
#[ignore = "takes long: make long"]
fn a_silent_node_keeps_no_lock_from_being_renewed() {
    let locks = "default_ttl: 5s\n  node_timeout: 1s\n  node_silence: 30s";
    let mut proxy = Proxy::with().nodes(3).locks(locks).start();
    let mut client = proxy.client();
    // More than could be renewed in time if each call waited for a tenth of the TTL.
    let keys: Vec<String> = (0..6000).map(|n| format!("k{n}")).collect();
    for some in keys.chunks(500) {
        let locks: Vec<[&str; 2]> = some.iter().map(|key| ["LOCK", key]).collect();
        client.send(&locks.iter().flat_map(|lock| encode(lock)).collect::<Vec<_>>());
        some.iter().for_each(|_| drop(client.reply().grant()));
    }
    proxy.node(2).freeze().unwrap();
    thread::sleep(ms(8000));
    proxy.node(2).thaw().unwrap();
    assert_eq!(client.cmd(&["PING"]), Reply::simple("PONG"));
    assert_eq!(lost(&proxy, ""), 0.0);
}

#[test]
#[ignore = "takes long: make long"]
fn who_leaves_with_thousands_of_locks_keeps_nobody_else_from_locking() {
    let proxy = proxy("60s");
    let (mut leaving, mut other) = (proxy.client(), proxy.client());
    let keys: Vec<String> = (0..8000).map(|n| format!("k{n}")).collect();
    for some in keys.chunks(500) {
        let locks: Vec<[&str; 2]> = some.iter().map(|key| ["LOCK", key]).collect();
        leaving.send(&locks.iter().flat_map(|lock| encode(lock)).collect::<Vec<_>>());
        some.iter().for_each(|_| drop(leaving.reply().grant()));
    }
    drop(leaving);
    let is_held = |key: &String| !free(&proxy, key);
    let mut granted = 0;
    while is_held(&keys[0]) || is_held(&keys[7999]) {
        for _ in 0..20 {
            other.cmd(&["LOCK", &format!("other{granted}"), "PX", "60000"]).grant();
            granted += 1;
        }
    }
    assert!(granted > 0);
    eventually("all are released", || !keys.iter().any(is_held));
}
