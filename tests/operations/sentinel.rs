//! A data node that Sentinels name, or that has a name whose address changes.

use std::{path::Path, process::Command};

use lockgate::tools::{free_port::free_port, redis_server::RedisServer};

use crate::support::{
    Client, Proxy, Reply, eventually,
    sentinel::{MASTER, Sentinel, Watched, answering},
};

/// Starts a proxy that waits long for a data node, and waits until it is ready.
fn proxy(data: &str) -> Proxy {
    let proxy =
        Proxy::with().data_url(data).top("connect_timeout: 25s").locks("default_ttl: 30s").start();
    ready(&proxy);
    proxy
}

/// Returns the value of `data` for the master that these Sentinels name.
fn named_by(sentinels: &[&Sentinel]) -> String {
    let all: Vec<String> = sentinels.iter().map(|sentinel| sentinel.address()).collect();
    format!("{{sentinels: ['{}'], master: {MASTER}}}", all.join("', '"))
}

fn ready(proxy: &Proxy) {
    eventually("the proxy is ready", || proxy.http("/readyz").starts_with("HTTP/1.1 200"));
}

fn switches(proxy: &Proxy) -> f64 {
    proxy.metric("lockgate_data_switches_total", "")
}

fn moved(proxy: &Proxy) -> f64 {
    proxy.metric("lockgate_closes_total", "reason=\"data_moved\"")
}

/// Whether exactly one line in the log says that the sessions end.
fn says_so_once(proxy: &Proxy) -> bool {
    proxy.log().matches("this Redis is not the data node any more").count() == 1
}

#[test]
fn a_failover_by_hand_ends_all_sessions_on_the_old_master() {
    let watched = Watched::steady();
    let proxy = proxy(&watched.data(""));
    let (mut writer, mut reader) = (proxy.client(), proxy.client());
    assert_eq!(writer.cmd(&["SET", "k", "1"]), Reply::ok());
    assert_eq!(reader.cmd(&["GET", "k"]), Reply::bulk("1"));
    writer.cmd(&["LOCK", "l"]).grant();
    let old_id = reader.cmd(&["CLIENT", "ID"]);
    watched.fail_over();
    // Both sessions end: one client is idle, the other is blocked in Redis.
    reader.send(b"BLPOP nothing 0\r\n");
    assert_eq!((writer.rest().0, reader.rest().0), (vec![], vec![]));
    let mut next = proxy.client();
    assert_eq!(next.cmd(&["SET", "k", "2"]), Reply::ok());
    assert_eq!(watched.replica_client().cmd(&["GET", "k"]), Reply::bulk("2"));
    assert_eq!(next.cmd(&["LOCK", "l"]), Reply::NullArray, "a lost connection gives no lock back");
    eventually("the data node sees no connection of the sessions", || {
        let Reply::Bulk(list) = Client::connect(watched.master.port()).cmd(&["CLIENT", "LIST"])
        else {
            panic!("no list")
        };
        let Reply::Int(id) = old_id else { panic!("no id") };
        !String::from_utf8_lossy(&list).contains(&format!("id={id} "))
    });
    assert_eq!((switches(&proxy), moved(&proxy)), (1.0, 2.0));
    assert!(says_so_once(&proxy));
    ready(&proxy);
}

#[test]
fn a_client_that_comes_after_the_master_died_waits_for_the_next() {
    let mut watched = Watched::start(&[]);
    let proxy = proxy(&watched.data(""));
    let mut before = proxy.client();
    assert_eq!(before.cmd(&["SET", "k", "1"]), Reply::ok());
    watched.master.kill().unwrap();
    let mut during = proxy.client();
    assert_eq!(during.cmd(&["SET", "k", "2"]), Reply::ok());
    assert_eq!(watched.replica_client().cmd(&["GET", "k"]), Reply::bulk("2"));
    assert_eq!(before.rest().0, b"");
    // The old master comes back and takes writes until the Sentinels have told it; no client is connected to it.
    watched.master.restart().unwrap();
    for _ in 0..20 {
        assert_eq!(proxy.client().cmd(&["INCR", "n"]).error_text(), "");
    }
    assert_eq!(watched.replica_client().cmd(&["GET", "n"]), Reply::bulk("20"));
}

#[test]
fn a_master_that_becomes_a_replica_by_hand_has_no_sessions() {
    let server = RedisServer::start(&[]).unwrap();
    // The Sentinel has nothing to promote, so it still names a replica.
    let sentinel = Sentinel::start(server.port(), 1, "");
    let proxy = proxy(&named_by(&[&sentinel]));
    let mut client = proxy.client();
    assert_eq!(client.cmd(&["SET", "k", "1"]), Reply::ok());
    let mut master = Client::connect(server.port());
    let nobody = free_port().unwrap().to_string();
    // A queued write is refused at its EXEC.
    assert_eq!(client.pipe(&[&["MULTI"], &["SET", "k", "2"]])[1], Reply::simple("QUEUED"));
    assert_eq!(master.cmd(&["REPLICAOF", "127.0.0.1", &nobody]), Reply::ok());
    client.send(b"EXEC\r\n");
    let (rest, _) = client.rest();
    let rest = String::from_utf8_lossy(&rest);
    assert!(rest.is_empty() || rest.contains("READONLY"), "{rest}");
    eventually("it is told", || {
        let page = proxy.http("/readyz");
        page.starts_with("HTTP/1.1 503") && page.contains("says that it is a replica")
    });
    let mut waiting = proxy.client();
    waiting.send(b"PING\r\n");
    assert_eq!(master.cmd(&["REPLICAOF", "NO", "ONE"]), Reply::ok());
    assert_eq!(waiting.reply(), Reply::simple("PONG"));
    assert_eq!((switches(&proxy), moved(&proxy)), (1.0, 1.0));
}

#[test]
fn a_refused_write_has_the_data_node_asked_for_its_role() {
    let server = RedisServer::start(&[]).unwrap();
    let sentinel = Sentinel::start(server.port(), 1, "");
    let proxy = proxy(&named_by(&[&sentinel]));
    let doubts = || proxy.metric("lockgate_data_readonly_total", "");
    let mut client = proxy.client();
    // A master that calls itself one is believed: the error comes from a script.
    let script = "return redis.error_reply('READONLY You can not')";
    for words in [&["EVAL", script, "0"][..], &["GET", "k"]] {
        client.cmd(words);
    }
    eventually("it is counted", || doubts() >= 1.0);
    assert_eq!(client.cmd(&["SET", "k", "1"]), Reply::ok());
    assert_eq!((switches(&proxy), moved(&proxy)), (0.0, 0.0));
}

#[test]
fn a_minority_of_sentinels_changes_nothing() {
    let other = RedisServer::start(&[]).unwrap();
    let mut watched = Watched::steady();
    // The third Sentinel watches another Redis under that name.
    watched.sentinels[2] = Sentinel::start(other.port(), 1, "");
    let proxy = proxy(&watched.data(""));
    let fault = |name: &str| proxy.metric("lockgate_sentinel_fault", &format!("fault=\"{name}\""));
    let mut client = proxy.client();
    assert_eq!(client.cmd(&["SET", "k", "1"]), Reply::ok());
    eventually("it is told", || {
        let page = proxy.http("/readyz");
        page.starts_with("HTTP/1.1 200") && page.contains("it names 127.0.0.1:")
    });
    assert!((fault("disagrees") - 1.0).abs() < 0.5);
    // If the third Sentinel names another master, this changes nothing either.
    let mut liar = watched.sentinels[2].client();
    for words in [
        &["SENTINEL", "REMOVE", MASTER][..],
        &["SENTINEL", "MONITOR", MASTER, "127.0.0.1", "1", "1"],
    ] {
        assert_eq!(liar.cmd(words), Reply::ok());
    }
    eventually("it is told anew", || proxy.http("/readyz").contains("it names 127.0.0.1:1,"));
    drop(liar);
    assert_eq!(proxy.client().cmd(&["GET", "k"]), Reply::bulk("1"));
    assert_eq!(client.cmd(&["GET", "k"]), Reply::bulk("1"));
    // One Sentinel that is left is no majority, but what a majority has named stays.
    watched.sentinels[0].kill();
    eventually("too few agree", || {
        proxy.http("/readyz").contains("2 of 3 Sentinels must name one master")
    });
    assert_eq!(proxy.client().cmd(&["GET", "k"]), Reply::bulk("1"));
    assert_eq!(client.cmd(&["GET", "k"]), Reply::bulk("1"));
    assert_eq!(moved(&proxy), 0.0);
}

#[test]
fn passwords_are_those_of_sentinels_and_those_of_the_master() {
    let master = RedisServer::start(&["--requirepass", "m"]).unwrap();
    let lines = format!("sentinel auth-pass {MASTER} m\nrequirepass s");
    let sentinel = Sentinel::start(master.port(), 1, &lines);
    let data =
        |more: &str| format!("{{sentinels: ['{}'], master: {MASTER}{more}}}", sentinel.address());
    let good = proxy(&data(", sentinel_password: s, password: m"));
    let mut client = good.client();
    assert!(client.cmd(&["GET", "k"]).error().starts_with("NOAUTH"), "a client's own password");
    assert_eq!(client.cmd(&["AUTH", "m"]), Reply::ok());
    assert_eq!(client.cmd(&["SET", "k", "1"]), Reply::ok());
    for (more, told) in [
        (", password: m", "NOAUTH"),
        (", sentinel_password: x, password: m", "WRONGPASS"),
        (", sentinel_password: s", "ROLE is asked with the user and password of data"),
        (", sentinel_password: s, password: x", "ROLE is asked with the user and password of data"),
    ] {
        let proxy = Proxy::with().data_url(&data(more)).top("connect_timeout: 2s").start();
        eventually("it is told", || {
            let page = proxy.http("/readyz");
            page.starts_with("HTTP/1.1 503") && page.contains(told)
        });
        assert!(proxy.client().rest().0.is_empty(), "closed, as where Redis is away");
        let (status, report) = doctor(&proxy.config_file());
        assert!(status != Some(0) && report.contains(told), "{report}");
    }
}

/// Runs doctor. Returns its status and its report.
fn doctor(file: &Path) -> (Option<i32>, String) {
    let output =
        Command::new(env!("CARGO_BIN_EXE_lockgate")).arg("doctor").arg(file).output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn what_is_no_sentinel_of_the_master_is_named_with_what_to_do() {
    let dead = RedisServer::start(&[]).unwrap();
    let good = [(); 4].map(|()| Sentinel::start(dead.port(), 1, ""));
    let (plain, idle) = (RedisServer::start(&[]).unwrap(), Sentinel::idle(""));
    let web = format!("127.0.0.1:{}", answering(b"HTTP/1.1 400 Bad Request\r\n\r\n"));
    let endless = format!("127.0.0.1:{}", answering(&[b'a'; 8192]));
    let nobody = format!("127.0.0.1:{}", free_port().unwrap());
    let mut all: Vec<String> = good.iter().map(Sentinel::address).collect();
    let bad = [
        (plain.addr().to_string(), "it is no Sentinel", "port 26379"),
        (idle.address(), "it watches no master 'mymaster'", "sentinel monitor"),
        (web, "not a Sentinel's reply", "another service"),
        (endless, "not a Sentinel's reply", "another service"),
        (nobody, "connection refused", "Is it running"),
    ];
    all.extend(bad.iter().map(|(address, ..)| address.clone()));
    let data = format!("{{sentinels: ['{}'], master: {MASTER}}}", all.join("', '"));
    let proxy = Proxy::with().data_url(&data).top("connect_timeout: 2s").start();
    eventually("four of nine are no majority", || {
        let page = proxy.http("/readyz");
        page.starts_with("HTTP/1.1 503")
            && page.contains("5 of 9 Sentinels must name one master")
            && bad.iter().all(|(address, what, _)| {
                page.lines().any(|line| {
                    line.starts_with(&format!("sentinel {address}:")) && line.contains(what)
                })
            })
    });
    let faults = proxy.metric("lockgate_sentinel_fault", "");
    assert!((faults - 5.0).abs() < 0.5, "{faults}");
    assert!(proxy.client().rest().0.is_empty(), "closed, as where Redis is away");
    let (status, report) = doctor(&proxy.config_file());
    assert_eq!(status, Some(1), "{report}");
    for (address, what, advice) in &bad {
        let about = report.split(&format!("sentinel  {address}")).nth(1).unwrap();
        let about = about.split("sentinel  ").next().unwrap();
        assert!(about.contains(what) && about.contains(advice), "{address}: {report}");
    }
    assert!(report.contains("5 of 9 Sentinels must name one master"), "{report}");
}

#[test]
fn a_sentinel_under_two_names_has_one_voice() {
    let [one, other] = [(); 2].map(|()| RedisServer::start(&[]).unwrap());
    let sentinels = [&one, &other].map(|master| Sentinel::start(master.port(), 1, ""));
    let [first, second] = sentinels.each_ref().map(Sentinel::port);
    // A spelling that only the system knows.
    let all = format!("'127.0.0.1:{first}', '127.1:{first}', '127.0.0.1:{second}'");
    let data = format!("{{sentinels: [{all}], master: {MASTER}}}");
    let proxy = Proxy::with().data_url(&data).top("connect_timeout: 1s").start();
    let what = format!("it is the Sentinel at 127.0.0.1:{first}, by another name");
    eventually("it is told", || {
        let page = proxy.http("/readyz");
        page.starts_with("HTTP/1.1 503") && page.contains(&what)
    });
    let (status, report) = doctor(&proxy.config_file());
    assert!(status == Some(1) && report.contains("List each Sentinel once"), "{report}");
    assert!(proxy.http("/readyz").contains("2 of 3"), "two voices name two masters");
}

#[test]
fn a_named_master_that_is_dead_is_told_and_waited_for() {
    let mut dead = RedisServer::start(&[]).unwrap();
    let sentinel = Sentinel::start(dead.port(), 1, "");
    dead.kill().unwrap();
    let data = named_by(&[&sentinel]);
    let proxy = Proxy::with().data_url(&data).top("connect_timeout: 25s").start();
    eventually("it is told", || {
        let page = proxy.http("/readyz");
        page.starts_with("HTTP/1.1 503")
            && page
                .to_lowercase()
                .contains(&format!("127.0.0.1:{}: connection refused", dead.port()))
    });
    let (status, report) = doctor(&proxy.config_file());
    assert!(status == Some(1) && report.contains("Sentinels name it until"), "{report}");
    let mut client = proxy.client();
    client.send(b"PING\r\n");
    dead.restart().unwrap();
    assert_eq!(client.reply(), Reply::simple("PONG"));
}

#[test]
fn a_master_that_hangs_is_left_when_the_sentinels_name_another() {
    let watched = Watched::start(&[]);
    let proxy = Proxy::with()
        .data_url(&watched.data(""))
        .top(
            "connect_timeout: 25s\nguards: [{keys: 'g:*', lock: 'g:{1}'}]\n\
             adopt: [{keys: 'lock:*', lock: '{1}', mode: bridge}]",
        )
        .start();
    ready(&proxy);
    // The proxy's own connections are used for the keys of SORT, and for the bridged lock.
    let uses_all = |client: &mut Client, name: &str| {
        let (key, lock) = (format!("g:{name}"), format!("lock:{name}"));
        client.cmd(&["LOCK", &key, "PX", "50000"]).grant();
        assert_eq!(client.cmd(&["RPUSH", &key, "2", "1"]), Reply::Int(2));
        // It is refused until the new data node's commands are known.
        eventually("SORT is checked", || {
            client.cmd(&["SORT", &key, "STORE", &key]) == Reply::Int(2)
        });
        assert_eq!(client.cmd(&["SET", &lock, "t", "NX", "PX", "30000"]), Reply::ok());
    };
    let mut client = proxy.client();
    uses_all(&mut client, "a");
    let mut dies = proxy.client();
    dies.cmd(&["LOCK", "dies"]).grant();
    watched.master.freeze().unwrap();
    dies.reset();
    assert_eq!(client.rest().0, b"");
    // Nobody waits for what the Redis of before may still do.
    eventually("the lock of the client that has left is free", || {
        proxy.nodes_with("lock:dies") == 0
    });
    let mut next = proxy.client();
    uses_all(&mut next, "b");
    let on_replica = |words: &[&str]| watched.replica_client().cmd(words);
    assert_eq!(on_replica(&["LINDEX", "g:b", "0"]), Reply::bulk("1"));
    assert_eq!(on_replica(&["EXISTS", "lock:b"]), Reply::Int(1));
    let refused = next.cmd(&["SET", "g:c", "v"]);
    assert!(refused.error().starts_with("NOTHELD"), "{refused:?}");
    assert_eq!(proxy.metric("lockgate_data_switches_total", "reason=\"sentinels\""), 1.0);
    assert_eq!(moved(&proxy), 1.0);
    ready(&proxy);
}

#[test]
fn strangers_are_kept_out_once_a_master_without_a_password_is_the_data_node() {
    let user = ["--user", "m", "on", ">m", "~*", "&*", "+@all"];
    let master = RedisServer::start(&[&["--requirepass", "m"][..], &user].concat()).unwrap();
    // Its user m has the proxy's password, and other clients need none.
    let open = RedisServer::start(&user).unwrap();
    let sentinel = Sentinel::start(master.port(), 1, "");
    let proxy = Proxy::with()
        .host("0.0.0.0")
        .data_url(&named_by(&[&sentinel]).replace('}', ", username: m, password: m}"))
        .top("connect_timeout: 25s")
        .start();
    ready(&proxy);
    assert!(proxy.client().cmd(&["PING"]).error().starts_with("NOAUTH"));
    let mut operator = sentinel.client();
    for words in [
        &["SENTINEL", "REMOVE", MASTER][..],
        &["SENTINEL", "MONITOR", MASTER, "127.0.0.1", &open.port().to_string(), "1"],
    ] {
        assert_eq!(operator.cmd(words), Reply::ok());
    }
    let first_line = || {
        let mut client = proxy.client();
        let mut line = String::new();
        client.send(b"PING\r\n");
        // The connection may end together with that of the old data node.
        let _ = std::io::BufRead::read_line(client.reader(), &mut line);
        line
    };
    eventually("it is noticed", || first_line().starts_with("-DENIED Lockgate "));
    assert!(proxy.log().contains("asks nobody for a password"));
    let mut redis = Client::connect(open.port());
    assert_eq!(redis.cmd(&["CONFIG", "SET", "requirepass", "m"]), Reply::ok());
    eventually("it is noticed, too", || first_line().starts_with("-NOAUTH"));
}

#[test]
fn an_upgrade_leaves_the_old_process_with_its_sessions_and_both_follow() {
    let watched = Watched::start(&[]);
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("upgrade.sock");
    let mut proxy = Proxy::with()
        .data_url(&watched.data(""))
        .top(&format!("connect_timeout: 25s\nupgrade_socket: {}", socket.display()))
        .start();
    ready(&proxy);
    let mut old = proxy.client();
    assert_eq!(old.cmd(&["SET", "k", "1"]), Reply::ok());
    let log = std::fs::File::create(dir.path().join("log")).unwrap();
    let mut next = Command::new("setpriv")
        .args(["--pdeathsig", "KILL", env!("CARGO_BIN_EXE_lockgate"), "--upgrade", "--config"])
        .arg(proxy.config_file())
        .stderr(log)
        .spawn()
        .unwrap();
    eventually("the old process is replaced", || proxy.log().contains("replaced; serving"));
    let mut new = proxy.client();
    assert_eq!(new.cmd(&["GET", "k"]), Reply::bulk("1"));
    assert_eq!(old.cmd(&["GET", "k"]), Reply::bulk("1"));
    // The stopped master closes no connection, so both processes must.
    watched.master.freeze().unwrap();
    assert_eq!((old.rest().0, new.rest().0), (vec![], vec![]));
    assert_eq!(proxy.client().cmd(&["SET", "k", "2"]), Reply::ok());
    assert_eq!(watched.replica_client().cmd(&["GET", "k"]), Reply::bulk("2"));
    assert!(proxy.wait().success(), "the old process has no sessions left");
    assert!(says_so_once(&proxy));
    next.kill().unwrap();
    next.wait().unwrap();
}

#[test]
fn a_name_that_leads_elsewhere_is_followed_once_a_master_is_there() {
    let first = RedisServer::start(&[]).unwrap();
    let port = first.port().to_string();
    // Both have the same port, as both have one name.
    let second = RedisServer::start(&[
        "--bind",
        "127.0.0.2",
        "--port",
        &port,
        "--replicaof",
        "127.0.0.1",
        &port,
    ])
    .unwrap();
    let dir = tempfile::tempdir().unwrap();
    let hosts = dir.path().join("hosts");
    let lead_to = |address: &str| {
        // In place, as the file is mounted.
        std::fs::write(&hosts, format!("{address} primary.test\n")).unwrap();
    };
    lead_to("127.0.0.1");
    let proxy = Proxy::with()
        .data_url(&format!("{{primary: 'redis://primary.test:{port}'}}"))
        .top("connect_timeout: 25s")
        .with_hosts(&hosts)
        .start();
    ready(&proxy);
    let mut client = proxy.client();
    assert_eq!(client.cmd(&["SET", "k", "1"]), Reply::ok());
    // The name changes before the promotion: no client is connected to a replica.
    lead_to("127.0.0.2");
    eventually("the replica was asked", || {
        let mut replica = at_second(&second);
        let Reply::Bulk(stats) = replica.cmd(&["INFO", "commandstats"]) else { panic!("no INFO") };
        String::from_utf8_lossy(&stats).contains("cmdstat_role:")
    });
    assert_eq!(client.cmd(&["SET", "k", "2"]), Reply::ok());
    assert_eq!(proxy.client().cmd(&["SET", "k", "3"]), Reply::ok());
    assert_eq!(at_second(&second).cmd(&["REPLICAOF", "NO", "ONE"]), Reply::ok());
    assert_eq!(client.rest().0, b"");
    assert_eq!(proxy.client().cmd(&["SET", "k", "4"]), Reply::ok());
    assert_eq!(at_second(&second).cmd(&["GET", "k"]), Reply::bulk("4"));
    assert_eq!(Client::connect(first.port()).cmd(&["GET", "k"]), Reply::bulk("3"));
    assert!(says_so_once(&proxy));
    assert_eq!(proxy.metric("lockgate_data_switches_total", "reason=\"name\""), 1.0);
}

/// Returns a client of the second server that does not use its address.
fn at_second(second: &RedisServer) -> Client<std::os::unix::net::UnixStream> {
    let stream = std::os::unix::net::UnixStream::connect(second.unix_socket()).unwrap();
    Client::over(stream)
}

#[test]
fn a_data_node_at_one_address_is_not_asked_for_its_role() {
    let proxy = Proxy::start();
    let mut client = proxy.client();
    client.cmd(&["EVAL", "return redis.error_reply('READONLY You can not')", "0"]);
    assert_eq!(client.cmd(&["SET", "k", "1"]), Reply::ok());
    let Reply::Bulk(stats) = proxy.data_client().cmd(&["INFO", "commandstats"]) else {
        panic!("no INFO")
    };
    assert!(!String::from_utf8_lossy(&stats).contains("cmdstat_role:"));
    assert!(!proxy.http("/metrics").contains("lockgate_data_switches_total{"));
}

/// A has a lock that a guard needs, and is late: its time is over, and B asks for the lock. The master is killed
/// before it has replicated B's fence. Returns B's reply.
fn killed_before_the_fence_was_replicated(replicas: usize) -> (Watched, Proxy, Reply) {
    const FENCE: &str = "lockgate:guard:lock:account:1";
    let mut watched = Watched::start(&[]);
    let guards = format!(
        "connect_timeout: 25s\nguards: {{replicas: {replicas}, replica_timeout: 2s, rules: {{keys: \
         'account:*', lock: 'account:{{1}}'}}}}"
    );
    let proxy = Proxy::with().nodes(3).data_url(&watched.data("")).top(&guards).start();
    ready(&proxy);
    let mut a = proxy.client();
    let fence = a.cmd(&["LOCK", "account:1", "a", "PX", "30000"]).grant().fence;
    assert_eq!(a.cmd(&["SET", "account:1", "100"]), Reply::ok());
    eventually("the replica has A's write", || {
        watched.replica_client().cmd(&["GET", "account:1"]) == Reply::bulk("100")
    });
    watched.hold_replication();
    for node in 0..3 {
        proxy.node_client(node).cmd(&["DEL", "lock:account:1"]);
    }
    let answer = proxy.client().cmd(&["LOCK", "account:1", "b", "PX", "30000"]);
    watched.master.kill().unwrap();
    // All connections end with the master. A reconnects, and is late.
    let mut back = proxy.client();
    assert_eq!(back.cmd(&["PING"]), Reply::simple("PONG"));
    assert_eq!(back.cmd(&["GET", FENCE]), Reply::bulk(&fence.to_string()), "B's fence is lost");
    assert!(a.rest().0.is_empty());
    assert!(back.cmd(&["SET", "account:1", "late"]).error_text().starts_with("NOTHELD"));
    assert_eq!(back.cmd(&["LOCK.ATTACH", "account:1", "a"]), Reply::NullArray);
    assert_eq!(back.cmd(&["RENEW", "account:1", "a"]), Reply::Int(0));
    assert!(back.cmd(&["SET", "account:1", "late"]).error_text().starts_with("NOTHELD"));
    (watched, proxy, answer)
}

#[test]
fn a_late_holder_comes_back_to_a_promoted_replica_by_no_way() {
    let (watched, proxy, answer) = killed_before_the_fence_was_replicated(0);
    let fence = answer.grant().fence;
    // B still has the lock, and its fence is announced again when it reconnects.
    let mut b = proxy.client();
    assert_eq!(b.cmd(&["LOCK.ATTACH", "account:1", "b"]).grant().fence, fence);
    assert_eq!(b.cmd(&["SET", "account:1", "101"]), Reply::ok());
    assert_eq!(watched.replica_client().cmd(&["GET", "account:1"]), Reply::bulk("101"));
}

#[test]
fn no_lock_is_granted_whose_fence_a_failover_could_lose() {
    let (mut watched, proxy, answer) = killed_before_the_fence_was_replicated(1);
    assert!(answer.error_text().starts_with("NOREPLICAS 0 of 1"), "{answer:?}");
    // The promoted Redis has no replica until the old master becomes one.
    let mut client = proxy.client();
    let lock = ["LOCK", "account:1", "PX", "30000"];
    assert!(client.cmd(&lock).error_text().starts_with("NOREPLICAS 0 of 1"));
    watched.master.restart().unwrap();
    eventually("locks are granted again", || matches!(client.cmd(&lock), Reply::Array(_)));
    assert_eq!(client.cmd(&["SET", "account:1", "101"]), Reply::ok());
}
