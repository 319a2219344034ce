//! What fails is shown wherever one looks first: /readyz, `lockgate doctor`, the metrics that alerts go
//! by, and the log. Each fault is provoked for real.

use std::process::Command;

use crate::support::{Client, Proxy, Reply, eventually};

/// A fault, and how it is told.
struct Fault {
    /// The first word of the data node's error, or another name.
    name: &'static str,
    provoke: fn(&mut Proxy),
    end: fn(&mut Proxy),
    /// Whether /readyz stays 200.
    is_ready: bool,
    /// The beginning of the line in /readyz, behind the name of what has the fault.
    line: &'static str,
    /// What doctor says, and what it advises.
    doctor: [&'static str; 2],
}

fn set(proxy: &Proxy, name: &str, value: &str) {
    assert_eq!(proxy.data_client().cmd(&["CONFIG", "SET", name, value]), Reply::ok());
}

/// Makes snapshots fail: a directory lies where the file is to be.
fn fill_the_disk(proxy: &mut Proxy) {
    let mut client = proxy.data_client();
    let Reply::Array(told) = client.cmd(&["CONFIG", "GET", "dir"]) else { panic!("no dir") };
    let Some(Reply::Bulk(dir)) = told.get(1) else { panic!("{told:?}") };
    std::fs::create_dir(format!("{}/dump.rdb", String::from_utf8_lossy(dir))).unwrap();
    set(proxy, "save", "3600 1");
    client.cmd(&["BGSAVE"]);
    eventually("it has failed", || {
        format!("{:?}", client.cmd(&["INFO", "persistence"])).contains("bgsave_status:err")
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

/// Has the data node read many keys, slowly.
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

/// The report of `lockgate doctor` with the proxy's own file.
fn doctor(proxy: &Proxy) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_lockgate"))
        .arg("doctor")
        .arg(proxy.config_file())
        .output()
        .unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn a_data_node_that_refuses_writes_is_shown_wherever_one_looks() {
    for Fault { name, provoke, end, is_ready, line, doctor: told } in DATA_NODE {
        // Two hundredths of a second a key, with a look at clients between two.
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
        // A connection that is new may not be let in while the data is read.
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
    // A lock that no guard needs is granted all the same, and tells of it.
    eventually("it is found", || {
        client.cmd(&["LOCK", "job", "mine", "PX", "60000"]);
        gauge() == 1.0
    });
    let page = proxy.http("/readyz");
    assert!(page.contains("refuses writes (OOM, as clients were told)"), "{page}");
    assert_eq!(data.cmd(&["CONFIG", "SET", "maxmemory", "0"]), Reply::ok());
    eventually("it is over", || gauge() == 0.0);
}
