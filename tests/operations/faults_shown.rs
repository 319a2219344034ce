//! A fault is shown wherever an operator looks first: in /readyz, `lockgate doctor`, the log, and the metrics that
//! alerts use. Each fault is provoked for real.

use std::{path::Path, process::Command, time::Duration};

use crate::support::{Client, Proxy, Reply, eventually, relay::Relay};
use lockgate::tools::redis_server::RedisServer;

/// A fault, and how operators are told of it.
struct Fault {
    /// The first word of the data node's error, or another name.
    name: &'static str,
    provoke: fn(&mut Proxy),
    end: fn(&mut Proxy),
    /// Whether /readyz stays 200.
    is_ready: bool,
    /// The beginning of the line in /readyz, behind the name of the faulty part.
    line: &'static str,
    /// What doctor says, and what it advises.
    doctor: [&'static str; 2],
}

fn set(proxy: &Proxy, name: &str, value: &str) {
    assert_eq!(proxy.data_client().cmd(&["CONFIG", "SET", name, value]), Reply::ok());
}

/// Makes snapshots fail: a directory is in the file's place.
fn fill_the_disk(proxy: &mut Proxy) {
    fill_the_disk_of(&mut proxy.data_client());
}

fn fill_the_disk_of(client: &mut Client) {
    let Reply::Array(told) = client.cmd(&["CONFIG", "GET", "dir"]) else { panic!("no dir") };
    let Some(Reply::Bulk(dir)) = told.get(1) else { panic!("{told:?}") };
    std::fs::create_dir(format!("{}/dump.rdb", String::from_utf8_lossy(dir))).unwrap();
    assert_eq!(client.cmd(&["CONFIG", "SET", "save", "3600 1"]), Reply::ok());
    client.cmd(&["BGSAVE"]);
    eventually("it has failed", || match client.cmd(&["INFO", "persistence"]) {
        Reply::Bulk(told) => String::from_utf8_lossy(&told).contains("bgsave_status:err"),
        other => panic!("{other:?}"),
    });
}

/// Runs a script that does not end.
fn keep_busy(proxy: &mut Proxy) {
    set(proxy, "busy-reply-threshold", "1");
    let mut client = proxy.data_client();
    client.send(b"*3\r\n$4\r\nEVAL\r\n$17\r\nwhile true do end\r\n$1\r\n0\r\n");
    eventually("it runs", || {
        let answer = proxy.data_client().cmd(&["PING"]);
        matches!(&answer, Reply::Error(error) if error.starts_with("BUSY"))
    });
    // Redis lets the script run on.
    std::mem::forget(client);
}

/// Makes the data node read many keys, slowly.
fn load(proxy: &mut Proxy) {
    let mut client = proxy.data_client();
    client.cmd(&["DEBUG", "POPULATE", "2000"]);
    assert_eq!(client.cmd(&["SAVE"]), Reply::ok());
    proxy.data().restart().unwrap();
}

const DATA_NODE: [Fault; 6] = [
    Fault {
        name: "OOM",
        provoke: |proxy| set(proxy, "maxmemory", "1"),
        end: |proxy| set(proxy, "maxmemory", "0"),
        is_ready: true,
        line: "refuses writes (OOM command not allowed",
        doctor: ["!! it refuses writes: \"OOM\"", "Raise its maxmemory"],
    },
    Fault {
        name: "NOREPLICAS",
        provoke: |proxy| set(proxy, "min-replicas-to-write", "1"),
        end: |proxy| set(proxy, "min-replicas-to-write", "0"),
        is_ready: true,
        line: "refuses writes (NOREPLICAS Not enough good replicas",
        doctor: ["!! it refuses writes: \"NOREPLICAS\"", "Bring its replicas back"],
    },
    Fault {
        name: "READONLY",
        provoke: |proxy| {
            proxy.data_client().cmd(&["REPLICAOF", "127.0.0.1", "1"]);
        },
        end: |proxy| {
            proxy.data_client().cmd(&["REPLICAOF", "NO", "ONE"]);
        },
        is_ready: true,
        line: "refuses writes (READONLY You can't write",
        doctor: ["!! it refuses writes: \"READONLY\"", "name the master"],
    },
    Fault {
        name: "MISCONF",
        provoke: fill_the_disk,
        end: |proxy| set(proxy, "save", ""),
        is_ready: false,
        line: "MISCONF Redis is configured to save",
        doctor: ["!! \"MISCONF\"", "Make room on its disk"],
    },
    Fault {
        name: "BUSY",
        provoke: keep_busy,
        end: |proxy| {
            assert_eq!(proxy.data_client().cmd(&["SCRIPT", "KILL"]), Reply::ok());
        },
        is_ready: false,
        line: "BUSY Redis is busy",
        doctor: ["!! \"BUSY\"", "SCRIPT KILL there"],
    },
    Fault {
        name: "LOADING",
        provoke: load,
        // It ends by itself.
        end: |_| {},
        is_ready: false,
        line: "LOADING Redis is loading",
        doctor: ["!! \"LOADING\"", "Wait until it has read its data"],
    },
];

/// Returns the report of `lockgate doctor` with the proxy's own file.
fn doctor(proxy: &Proxy) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_lockgate"))
        .arg("doctor")
        .arg(proxy.config_file())
        .output()
        .unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn a_lock_node_that_refuses_writes_is_shown_whatever_it_refuses_besides() {
    let proxy = Proxy::with().nodes(3).start();
    let mut node = proxy.node_client(2);
    let refuses = |proxy: &Proxy| {
        let fault = proxy.metric("lockgate_node_fault", "fault=\"refuses\"");
        let ready = proxy.http("/readyz");
        (fault == 1.0 && ready.contains("refuses writes"), fault == 0.0)
    };
    let mut is_set = |name: &str, value: &str| {
        assert_eq!(node.cmd(&["CONFIG", "SET", name, value]), Reply::ok());
    };
    for (name, sick, well) in [("maxmemory", "1", "0"), ("min-replicas-to-write", "1", "0")] {
        is_set(name, sick);
        eventually(&format!("{name} is seen"), || refuses(&proxy).0);
        is_set(name, well);
        eventually(&format!("{name} is over"), || refuses(&proxy).1);
    }
    // With this one it refuses PING, too.
    fill_the_disk_of(&mut node);
    eventually("its disk is seen", || refuses(&proxy).0);
    assert_eq!(node.cmd(&["CONFIG", "SET", "save", ""]), Reply::ok());
    eventually("its disk is well again", || refuses(&proxy).1);
}

#[test]
fn a_lock_node_whose_user_may_too_little_is_shown() {
    let nodes: Vec<RedisServer> = (0..3).map(|_| RedisServer::start(&[]).unwrap()).collect();
    let let_user = |node: &RedisServer, rules: &str| {
        let words: Vec<&str> =
            ["ACL", "SETUSER", "locker"].into_iter().chain(rules.split(' ')).collect();
        assert_eq!(Client::connect(node.port()).cmd(&words), Reply::ok());
    };
    nodes.iter().for_each(|node| let_user(node, "on >secret +@all &* ~*"));
    let url = |node: &RedisServer| format!("redis://locker:secret@127.0.0.1:{}", node.port());
    let urls: Vec<String> = nodes.iter().map(url).collect();
    let proxy = Proxy::with().node_urls(&urls).start();
    eventually("its nodes are up", || proxy.nodes_up() == 3);
    let is_lacking = |proxy: &Proxy| proxy.metric("lockgate_node_fault", "fault=\"auth\"") == 1.0;
    assert!(!doctor(&proxy).contains("too little"));
    for (without, with) in [
        ("-evalsha", "+evalsha"),
        ("-script|load", "+script|load"),
        ("-set", "+set"),
        ("-del", "+del"),
        ("-pexpire", "+pexpire"),
        ("-pttl", "+pttl"),
        ("resetkeys ~lockgate:*", "~*"),
    ] {
        let_user(&nodes[2], without);
        let told = doctor(&proxy);
        assert!(told.contains("!! it allows the user too little: NOPERM "), "{without}: {told}");
        if without == "-evalsha" {
            eventually("the proxy sees it", || is_lacking(&proxy));
            assert!(proxy.http("/readyz").contains("allows them too little"));
            assert_eq!(proxy.metric("lockgate_quorum_slack", ""), 0.0);
        }
        let_user(&nodes[2], with);
    }
    eventually("it may again", || !is_lacking(&proxy));
    assert!(!doctor(&proxy).contains("too little"));
}

#[test]
fn a_data_node_that_refuses_writes_is_shown_wherever_one_looks() {
    for Fault { name, provoke, end, is_ready, line, doctor: told } in DATA_NODE {
        // Two hundredths of a second a key, with a look at clients between two keys.
        let slow = ["--key-load-delay", "5000", "--loading-process-events-interval-bytes", "1024"];
        let with_debug = ["--enable-debug-command", "yes"];
        let arguments = [&slow[..], &with_debug[..]].concat();
        let mut proxy = Proxy::with()
            .data_arguments(&arguments)
            .top("guards: [{keys: 'account:*', lock: 'account:{1}'}]")
            .start();
        let mut client = proxy.client();
        client.cmd(&["LOCK", "account:1", "mine", "PX", "60000"]).grant();
        let refuses = format!("error=\"{name}\"");
        let gauge = |proxy: &Proxy| proxy.metric("lockgate_data_refuses_writes", &refuses);
        assert_eq!(gauge(&proxy), 0.0);
        provoke(&mut proxy);
        eventually(&format!("{name} is found"), || gauge(&proxy) == 1.0);
        let page = proxy.http("/readyz");
        assert_eq!(page.starts_with("HTTP/1.1 200"), is_ready, "{name}: {page}");
        let address = format!("data node 127.0.0.1:{}: {line}", proxy.data().port());
        assert!(page.contains(&address), "{address} is not in {page}");
        let problems = proxy.http("/api/status");
        assert!(problems.contains(line.split(' ').next_back().unwrap()), "{name}: {problems}");
        let report = doctor(&proxy);
        for words in told {
            assert!(report.contains(words), "{name}: {words} is not in {report}");
        }
        let log = proxy.log();
        let warned = log.lines().find(|line| line.contains("the data node refuses writes"));
        assert!(warned.is_some_and(|line| line.contains(name)), "{name}: {log}");
        // While the data is read, a new connection may be refused.
        if name != "LOADING" {
            let lock = client.cmd(&["LOCK", "account:2", "PX", "60000"]);
            assert!(lock.error().starts_with(name), "{lock:?}");
            let locks = format!("of=\"lock\",{refuses}");
            assert_eq!(proxy.metric("lockgate_data_refusals_total", &locks), 1.0, "{name}");
            let write = client.cmd(&["SET", "account:1", "1"]);
            assert!(["EXECABORT", name].iter().any(|word| write.error().starts_with(word)));
            let writes = format!("of=\"write\",{refuses}");
            assert_eq!(proxy.metric("lockgate_data_refusals_total", &writes), 1.0, "{name}");
        }
        end(&mut proxy);
        eventually(&format!("{name} is over"), || {
            gauge(&proxy) == 0.0 && proxy.http("/readyz").starts_with("HTTP/1.1 200")
        });
        assert!(!proxy.http("/readyz").contains("refuses writes"), "{name}");
        eventually("its end is told", || proxy.log().contains("the data node takes writes again"));
    }
}

#[test]
fn a_data_node_that_the_proxy_cannot_ask_is_shown_by_what_clients_are_told() {
    let proxy = Proxy::with()
        .data_arguments(&["--requirepass", "secret"])
        .top("guards: [{keys: 'account:*', lock: 'account:{1}'}]")
        .unready()
        .start();
    let authenticated = |port| {
        let mut client = Client::connect(port);
        assert_eq!(client.cmd(&["AUTH", "secret"]), Reply::ok());
        client
    };
    let mut data = authenticated(proxy.data_client_port());
    assert_eq!(data.cmd(&["CONFIG", "SET", "maxmemory", "1"]), Reply::ok());
    let mut client = authenticated(proxy.port());
    let gauge = || proxy.metric("lockgate_data_refuses_writes", "error=\"OOM\"");
    // A lock without a guard is granted all the same, and its LOCK shows the fault.
    eventually("it is found", || {
        client.cmd(&["LOCK", "job", "mine", "PX", "60000"]);
        gauge() == 1.0
    });
    let page = proxy.http("/readyz");
    assert!(page.contains("refuses writes (OOM, as clients were told)"), "{page}");
    assert_eq!(data.cmd(&["CONFIG", "SET", "maxmemory", "0"]), Reply::ok());
    eventually("it is over", || gauge() == 0.0);
}

#[test]
fn lock_nodes_that_are_slow_are_shown_wherever_one_looks() {
    let nodes: Vec<RedisServer> = (0..3).map(|_| RedisServer::start(&[]).unwrap()).collect();
    let relays: Vec<Relay> = nodes[1..].iter().map(|node| Relay::to(node.port())).collect();
    let ports = nodes[..1].iter().map(RedisServer::port).chain(relays.iter().map(Relay::port));
    let urls: Vec<String> = ports.map(|port| format!("redis://127.0.0.1:{port}")).collect();
    let proxy = Proxy::with().locks("node_timeout: 400ms").node_urls(&urls).start();
    eventually("all are up", || proxy.nodes_up() == 3);
    let faults = || proxy.metric("lockgate_node_fault", "fault=\"slow\"");
    assert_eq!(faults(), 0.0);
    let late = |by| relays.iter().for_each(|relay| relay.delay_replies(Duration::from_millis(by)));
    // Slow, but their votes still count.
    late(260);
    eventually("they are slow", || faults() == 2.0);
    let slow = "it often takes more than half of locks.node_timeout to answer";
    let page = proxy.http("/readyz");
    assert!(page.starts_with("HTTP/1.1 200") && page.matches(slow).count() == 2, "{page}");
    // Doctor shows the proxy's view beside its own.
    let report = doctor(&proxy);
    let running = format!("running proxy  127.0.0.1:{}  ", proxy.admin_port());
    let (_, view) = report.split_once(&running).unwrap_or_else(|| panic!("{report}"));
    assert!(view.contains(", ready, version ") && view.matches(slow).count() == 2, "{report}");
    assert_eq!(proxy.log().matches("\"fault\":\"slow\"").count(), 2, "{}", proxy.log());
    // Too slow to vote: LOCK fails, and /readyz has the same line as the log.
    late(900);
    let mut client = proxy.client();
    eventually("it fails", || {
        let reply = client.cmd(&["LOCK", "job", "PX", "30000"]);
        matches!(&reply, Reply::Error(error) if error.starts_with("NOQUORUM"))
    });
    let mut line = String::new();
    eventually("the log has it", || {
        let log = proxy.log();
        let found = log.split('"').find(|text| text.starts_with("NOQUORUM: "));
        line = found.unwrap_or_default().to_owned();
        !line.is_empty()
    });
    let numbers = line.split(';').next().unwrap();
    assert!(numbers.contains(" operations in "), "{line}");
    eventually("/readyz has it", || proxy.http("/readyz").contains("locks: NOQUORUM"));
    late(0);
    eventually("it is over", || faults() == 0.0);
    eventually("it is ready", || proxy.http("/readyz").starts_with("HTTP/1.1 200"));
}

/// Writes a certificate that is valid from and until these days from now, and its key. Returns their paths.
fn certificate(folder: &Path, name: &str, (from, to): (i64, i64)) -> [String; 2] {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let epoch = rcgen::date_time_ymd(1970, 1, 1) + now;
    let days = |days: i64| {
        let time = Duration::from_secs(days.unsigned_abs() * 86_400 + 3600);
        if days < 0 { epoch - time } else { epoch + time }
    };
    let mut params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    (params.not_before, params.not_after) = (days(from), days(to));
    let key = rcgen::KeyPair::generate().unwrap();
    let made = params.self_signed(&key).unwrap();
    [("crt", made.pem()), ("key", key.serialize_pem())].map(|(kind, text)| {
        let file = folder.join(format!("{name}.{kind}"));
        std::fs::write(&file, text).unwrap();
        file.display().to_string()
    })
}

#[test]
fn certificates_that_end_are_shown_wherever_one_looks() {
    let dir = tempfile::tempdir().unwrap();
    let of = |name: &str, days| certificate(dir.path(), name, days);
    let [cert, key] = of("good", (-30, 300));
    let [ended, _] = of("ended", (-30, -2));
    for (days, words, mark) in [
        ((-30, 300), "", ""),
        ((-30, 15), "", ""),
        ((-30, 13), "(cert_file): the certificate in it ends in 13 days, on ", " -"),
        ((-30, -1), "(cert_file): the certificate in it ended on ", "!!"),
        ((5, 300), "(cert_file): the certificate in it is not valid before ", "!!"),
    ] {
        let [cert, key] = of("listener", days);
        let tls = format!("{{cert_file: {cert}, key_file: {key}}}");
        shown(&Proxy::with().tls(&tls).start(), words, mark, "side=\"client\"");
    }
    let tls = format!(
        "{{cert_file: {cert}, key_file: {key}, ca_cert_file: {ended}, auth_clients: optional}}"
    );
    let words = "(ca_cert_file): the last CA in it ended on ";
    shown(&Proxy::with().tls(&tls).start(), words, "!!", "ca_cert_file");
    // The certificate for the data node, and the CA that is trusted there.
    let [client, client_key] = of("client", (-30, 3));
    let tls = format!("tls: {{ca_cert_file: {cert}, cert_file: {client}, key_file: {client_key}}}");
    let proxy = Proxy::with().top(&tls).data_url("rediss://localhost:1").start();
    let words = "tls (data) (cert_file): the certificate in it ends in 3 days, on ";
    eventually("it is shown", || proxy.http("/readyz").contains(words));
    assert!(doctor(&proxy).contains(" - tls (cert_file): the certificate in it ends in 3 days"));
}

/// Checks that a proxy, its log, its metrics, check and doctor say these words, or have nothing to say.
fn shown(proxy: &Proxy, words: &str, mark: &str, place: &str) {
    let text = if words.is_empty() { "cert_file): the " } else { words };
    let expected = usize::from(!words.is_empty());
    let page = proxy.http("/readyz");
    assert!(page.starts_with("HTTP/1.1 200"), "{page}");
    assert_eq!(page.matches(text).count(), expected, "{page}");
    let ends = proxy.metric("lockgate_tls_certificate_not_after_timestamp_seconds", place);
    assert!(ends > 1.7e9, "{ends}");
    let check = Command::new(env!("CARGO_BIN_EXE_lockgate"))
        .arg("check")
        .arg(proxy.config_file())
        .output()
        .unwrap();
    let check = String::from_utf8_lossy(&check.stdout).into_owned();
    assert_eq!(check.matches(text).count(), expected, "{check}");
    let report = doctor(proxy);
    // Once by its own look, and once by the running proxy's.
    assert_eq!(report.matches(text).count(), 2 * expected, "{report}");
    if expected == 1 {
        let line = report.lines().find(|line| line.contains(text)).unwrap();
        assert!(line.trim_start().starts_with(mark.trim()), "{line}");
        eventually("the log has it", || proxy.log().contains("certificate: listen "));
        assert_eq!(proxy.log().matches("certificate: listen ").count(), 1);
    }
}
