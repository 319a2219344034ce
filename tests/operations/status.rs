//! The JSON of the admin port: what it has, that it is bounded, and that it has no secret.

use serde_json::{Value, json as value};

use crate::support::{self, Client, Proxy, Reply, encode, eventually, pipeline};

/// Returns the body of a page, as JSON.
fn json(proxy: &Proxy, path: &str) -> Value {
    let page = proxy.http(path);
    let (head, body) = page.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200"), "{path}: {page}");
    assert!(head.contains("content-type: application/json"), "{head}");
    assert!(head.contains("cache-control: no-store"), "{head}");
    serde_json::from_str(body).unwrap()
}

/// Returns the names of the locks in a list.
fn keys(list: &Value) -> Vec<&str> {
    list.as_array().unwrap().iter().map(|lock| lock["key"].as_str().unwrap()).collect()
}

#[test]
fn a_whole_proxy_is_told_in_one_document() {
    let mut proxy = Proxy::with().nodes(3).start();
    let (mut holder, mut other) = (proxy.client(), proxy.client());
    holder.cmd(&["LOCK", "job", "PX", "30000"]).grant();
    holder.cmd(&["LOCK", "session"]).grant();
    assert_eq!(other.cmd(&["LOCK", "job", "PX", "1000"]), Reply::NullArray);
    eventually("the nodes' TIME was asked for", || {
        let status = json(&proxy, "/api/status");
        status["nodes"].as_array().unwrap().iter().all(|node| node["round_trip_us"].is_u64())
    });
    let status = json(&proxy, "/api/status");
    let told = &status["proxy"];
    assert_eq!(told["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(told["pid"], proxy.pid());
    assert_eq!(told["listen"][0], format!("127.0.0.1:{}", proxy.port()));
    assert_eq!(
        (&told["ready"], &told["draining"], &told["connections"], &told["actions"]),
        (&true.into(), &false.into(), &2.into(), &false.into())
    );
    assert_eq!(status["problems"], Value::Array(Vec::new()));
    assert_eq!(status["data"]["up"], true);
    assert_eq!(status["quorum"].to_string(), r#"{"needed":2,"nodes":3,"slack":1,"voting":3}"#);
    let locks = &status["locks"];
    assert_eq!(
        (&locks["held"], &locks["session"], &locks["leases"]),
        (&2.into(), &1.into(), &1.into())
    );
    let totals = &status["totals"];
    assert_eq!(
        (&totals["grants"], &totals["busy"], &totals["no_quorum"]),
        (&2.into(), &1.into(), &0.into())
    );
    for (place, node) in status["nodes"].as_array().unwrap().iter().enumerate() {
        assert_eq!(node["seat"], place + 1);
        assert_eq!((&node["votes"], &node["state"]), (&true.into(), &"ok".into()));
        assert!(node["clock_ahead_us"].is_i64(), "{node}");
    }
    assert!(status["guards"].is_null() && status["adoption"].is_null());

    proxy.node(1).kill().unwrap();
    eventually("it is seen", || json(&proxy, "/api/status")["quorum"]["voting"] == 2);
    let status = json(&proxy, "/api/status");
    let node = &status["nodes"][1];
    assert_eq!(
        (&node["up"], &node["votes"], &status["quorum"]["slack"]),
        (&false.into(), &false.into(), &0.into())
    );
    assert!(node["round_trip_us"].is_null() && node["clock_ahead_us"].is_null(), "{node}");
    // The state has the words of /readyz.
    let line = format!(
        "lock node {}: {}",
        node["address"].as_str().unwrap(),
        node["state"].as_str().unwrap()
    );
    assert!(proxy.http("/readyz").contains(&format!("{line}\n")), "{line}");
    assert_eq!(status["problems"], Value::Array(vec![line.into()]));
    assert_eq!(
        other.cmd(&["LOCKGATE", "NODE", node["address"].as_str().unwrap(), "PAUSE"]),
        Reply::ok()
    );
    assert_eq!(json(&proxy, "/api/status")["nodes"][1]["paused"], true);

    proxy.node(0).kill().unwrap();
    eventually("it is not ready", || json(&proxy, "/api/status")["proxy"]["ready"] == false);
    assert!(other.cmd(&["LOCK", "more", "PX", "1000"]).error().starts_with("NOQUORUM"));
    let status = json(&proxy, "/api/status");
    assert_eq!(
        (&status["quorum"]["slack"], &status["totals"]["no_quorum"]),
        (&(-1).into(), &1.into())
    );
}

#[test]
fn locks_clients_and_who_waits_are_told_without_tokens() {
    let proxy = Proxy::with().nodes(3).start();
    let mut holder = proxy.client();
    holder.cmd(&["CLIENT", "SETNAME", "worker-7"]);
    holder.cmd(&["LOCK", "job:1", "secret-token", "PX", "30000"]).grant();
    let session = holder.cmd(&["LOCK", "job:2"]).grant();
    holder.cmd(&["LOCK", "other", "PX", "30000"]).grant();
    let mut waiters: Vec<_> = (0..2).map(|_| proxy.client()).collect();
    for (number, waiter) in waiters.iter_mut().enumerate() {
        waiter.cmd(&["CLIENT", "SETNAME", &format!("waiter-{number}")]);
        waiter.send(&support::encode(&["LOCK", "job:2", "WAIT", "0"]));
        eventually("it waits", || proxy.waiters() == number + 1);
    }
    let all = json(&proxy, "/api/locks");
    assert_eq!(keys(&all["locks"]), ["job:1", "job:2", "other"]);
    assert_eq!(keys(&json(&proxy, "/api/locks?match=job:*&by=age")["locks"]), ["job:1", "job:2"]);
    assert_eq!(keys(&json(&proxy, "/api/locks?by=waiters&count=1")["locks"]), ["job:2"]);
    assert_eq!(keys(&json(&proxy, "/api/locks?match=nothing*")["locks"]), [""; 0]);
    let lock = &all["locks"][1];
    assert_eq!(
        (&lock["kind"], &lock["fence"], &lock["waiters"]),
        (&"session".into(), &session.fence.into(), &2.into())
    );
    assert_eq!(
        (&lock["holder"]["name"], &lock["holder"]["connected"]),
        (&"worker-7".into(), &true.into())
    );
    assert!(
        lock["remaining_ms"].as_u64().is_some_and(|left| (1..=10_000).contains(&left)),
        "{lock}"
    );

    let hot = json(&proxy, "/api/hot");
    let lock = &hot["hot"][0];
    assert_eq!(
        (&lock["key"], &lock["waiters"], &lock["fence"]),
        (&"job:2".into(), &2.into(), &session.fence.into())
    );
    assert_eq!(lock["holder"]["name"], "worker-7");
    let line: Vec<_> =
        lock["line"].as_array().unwrap().iter().map(|one| &one["client"]["name"]).collect();
    assert_eq!(line, ["waiter-0", "waiter-1"]);

    let clients = json(&proxy, "/api/clients");
    let names: Vec<_> =
        clients["clients"].as_array().unwrap().iter().map(|one| &one["name"]).collect();
    assert_eq!(names, ["waiter-0", "waiter-1", "worker-7"]);
    assert_eq!(clients["clients"][0]["waits_for"]["key"], "job:2");
    assert_eq!(keys(&clients["clients"][2]["keys"]), ["job:1", "job:2", "other"]);
    assert_eq!(json(&proxy, "/api/clients?count=1")["clients"].as_array().unwrap().len(), 1);

    for path in ["status", "locks", "hot", "clients", "adopted", "history"] {
        let page = proxy.http(&format!("/api/{path}"));
        assert!(!page.contains("secret-token") && !page.contains(&session.token), "{page}");
    }
}

#[test]
fn a_family_is_told_whole_beside_its_locks() {
    let proxy = Proxy::with().nodes(3).locks("permits: [{keys: 'disk:*', n: 4}]").start();
    let mut holder = proxy.client();
    for _ in 0..3 {
        let words = ["LOCK", "gpu", "PERMITS", "3", "PX", "60000"];
        assert!(matches!(holder.cmd(&words), Reply::Array(_)));
    }
    holder.cmd(&["LOCK", "disk:a#1", "PX", "30000"]).grant();
    // Of no family, though their names are like those of permits.
    for key in ["build#12", "gpu#03", "gpu#256", "disk:a#1#2", "#1"] {
        holder.cmd(&["LOCK", key, "PX", "60000"]).grant();
    }
    let mut waiters: Vec<_> = (0..3).map(|_| proxy.client()).collect();
    let permits = ["LOCK", "gpu", "PERMITS", "3", "WAIT", "60000"];
    for (waiter, words) in
        waiters.iter_mut().zip([&permits[..], &permits, &["LOCK", "gpu#1", "WAIT", "60000"]])
    {
        let before = proxy.waiters();
        waiter.send(&support::encode(words));
        eventually("it waits", || proxy.waiters() == before + 1);
    }
    let all = json(&proxy, "/api/locks");
    let of = |lock: &Value| lock["family"]["key"].as_str().map(str::to_owned);
    let told = |all: &Value| -> Vec<_> {
        let locks = all["locks"].as_array().unwrap().iter();
        locks.filter_map(|lock| Some((lock["key"].as_str()?.to_owned(), of(lock)?))).collect()
    };
    let expected =
        [("disk:a#1", "disk:a#*"), ("gpu#0", "gpu#*"), ("gpu#1", "gpu#*"), ("gpu#2", "gpu#*")];
    assert_eq!(told(&all), expected.map(|(key, family)| (key.to_owned(), family.to_owned())));
    assert_eq!(all["locks"].as_array().unwrap().len(), 9, "each lock is there as before");
    let [disk, gpu] = &all["families"].as_array().unwrap()[..] else { panic!("{all}") };
    assert_eq!(
        (&disk["key"], &disk["n"], disk["held"].to_string()),
        (&"disk:a#*".into(), &4.into(), "[1]".into())
    );
    assert_eq!(
        (&gpu["key"], &gpu["n"], gpu["held"].to_string()),
        (&"gpu#*".into(), &3.into(), "[0,1,2]".into())
    );
    assert_eq!((&disk["waiters"], &gpu["waiters"]), (&0.into(), &3.into()));
    assert!(disk["remaining_ms"].as_u64().is_some_and(|left| left <= 30_000), "{disk}");
    let held = all["locks"].as_array().unwrap().iter();
    let gpus = held.filter(|lock| of(lock).as_deref() == Some("gpu#*"));
    let oldest = gpus.filter_map(|lock| lock["held_ms"].as_u64()).max();
    assert!(oldest <= gpu["held_ms"].as_u64() && gpu["longest_wait_ms"].is_u64(), "{all}");

    // Its line is what it is, and of one permit in the list all are told.
    let line = &json(&proxy, "/api/locks?by=waiters&count=1");
    let lock = &line["locks"][0];
    assert_eq!(
        (&lock["key"], &lock["kind"], &lock["waiters"]),
        (&"gpu#*".into(), &"permits".into(), &2.into())
    );
    for list in [line, &json(&proxy, "/api/locks?by=age&count=1")] {
        assert_eq!(
            (told(list).len(), list["families"][0]["held"].to_string()),
            (1, "[0,1,2]".into())
        );
    }
    let hot = json(&proxy, "/api/hot");
    let line = hot["hot"].as_array().unwrap().iter().find(|lock| lock["key"] == "gpu#*").unwrap();
    assert_eq!((&line["kind"], &hot["families"][0]["waiters"]), (&"permits".into(), &3.into()));
    // A pattern that leaves out the line shows the permits as locks.
    let few = json(&proxy, "/api/locks?match=gpu%23[0-9]");
    assert_eq!(
        (keys(&few["locks"]).len(), told(&few).len(), few["families"].to_string()),
        (3, 0, "[]".into())
    );
}

#[test]
fn names_of_any_bytes_are_told_in_json() {
    let proxy = Proxy::start();
    let mut client = proxy.client();
    let key = b"a\xff\x00</script>\"\n";
    let mut command = format!("*4\r\n$4\r\nLOCK\r\n${}\r\n", key.len()).into_bytes();
    command.extend_from_slice(key);
    command.extend_from_slice(b"\r\n$2\r\nPX\r\n$5\r\n30000\r\n");
    client.send(&command);
    client.reply().grant();
    let locks = json(&proxy, "/api/locks");
    let lock = &locks["locks"][0];
    assert_eq!(lock["key"], "a\u{fffd}\0</script>\"\n");
    assert_eq!(lock["key_hex"], "61ff003c2f7363726970743e220a");
    assert_eq!(json(&proxy, "/api/clients")["clients"][0]["keys"][0]["key_hex"], lock["key_hex"]);
    client.cmd(&["LOCK", "plain", "PX", "30000"]).grant();
    assert!(json(&proxy, "/api/locks?match=plain")["locks"][0].get("key_hex").is_none());
    assert_eq!(json(&proxy, "/api/locks?match=a%ff*")["locks"][0]["key_hex"], lock["key_hex"]);
}

#[test]
fn a_list_is_bounded_whatever_there_is() {
    let proxy = Proxy::start();
    let mut client = proxy.client();
    for key in 0..1100 {
        client.cmd(&["LOCK", &format!("k{key}"), "PX", "60000"]).grant();
    }
    let many = |query: &str| json(&proxy, query)["locks"].as_array().unwrap().len();
    assert_eq!((many("/api/locks"), many("/api/locks?count=1000&by=age")), (100, 1000));
    assert_eq!(json(&proxy, "/api/status")["locks"]["held"], 1100);
    let long = "x".repeat(257);
    for query in [
        "locks?count=1001",
        "locks?count=0",
        "locks?by=size",
        "locks?sort=age",
        "hot?by=age",
        "clients?count=-1",
        &format!("locks?match={long}"),
    ] {
        let page = proxy.http(&format!("/api/{query}"));
        assert!(page.starts_with("HTTP/1.1 400") && page.contains(r#"{"error":""#), "{page}");
    }
    for page in ["status", "history", "proxies"] {
        let page = proxy.http(&format!("/api/{page}?x=1"));
        assert!(page.starts_with("HTTP/1.1 400"), "{page}");
        assert!(page.ends_with(r#"{"error":"there is no parameter 'x' here"}"#), "{page}");
    }
    // If a pattern would take too long to compare, the answer says so, and does not leave locks out.
    let slow = format!("/api/locks?match=*{}b", "k".repeat(128));
    for key in 0..50 {
        let key = format!("{key}{}", "k".repeat(4000));
        client.cmd(&["LOCK", &key, "PX", "60000"]).grant();
    }
    assert!(proxy.http(&slow).contains("would take too long"), "{}", proxy.http(&slow));
}

#[test]
fn the_last_minutes_are_kept_and_a_rate_is_for_a_second() {
    let proxy = Proxy::with().nodes(3).start();
    let mut client = proxy.client();
    for key in 0..100 {
        client.cmd(&["LOCK", &format!("k{key}"), "PX", "60000"]).grant();
    }
    eventually("there is a sample", || {
        json(&proxy, "/api/history")["held"].as_array().unwrap().contains(&100.into())
    });
    let history = json(&proxy, "/api/history");
    assert_eq!(history["every_ms"], 5000);
    let columns = history.as_object().unwrap();
    let length = history["at_ms"].as_array().unwrap().len();
    for (name, column) in
        columns.iter().filter(|(name, _)| !["every_ms", "nodes"].contains(&name.as_str()))
    {
        assert_eq!(column.as_array().unwrap().len(), length, "{name}");
    }
    let rates = history["grants_per_s"].as_array().unwrap();
    // A hundred grants in one interval or two, whatever its length.
    let sum: f64 = rates.iter().map(|rate| rate.as_f64().unwrap()).sum();
    assert!(sum > 1.0 && sum <= 20.0, "{rates:?}");
    for node in history["nodes"].as_array().unwrap() {
        let times = node["round_trip_us"].as_array().unwrap();
        assert!(times.len() == length && times[length - 1].is_u64(), "{node}");
    }
}

#[test]
fn guards_and_adoption_are_told_with_what_they_refused() {
    let rules = "guards:\n  - keys: 'account:*'\n    lock: 'account:{1}'\n\
                 adopt:\n  - keys: 'lock:*'\n    lock: 'adopted:{1}'\n    mode: enforce";
    let proxy = Proxy::with().nodes(3).top(rules).start();
    let mut client = proxy.client();
    assert!(client.cmd(&["SET", "account:1", "x"]).error().starts_with("NOTHELD"));
    client.cmd(&["LOCK", "account:1"]).grant();
    assert_eq!(client.cmd(&["SET", "account:1", "x"]), Reply::ok());
    client.cmd(&["CLIENT", "SETNAME", "old-worker"]);
    assert_eq!(client.cmd(&["SET", "lock:a", "token", "NX", "PX", "30000"]), Reply::ok());
    assert_eq!(client.cmd(&["DEL", "lock:a"]), Reply::Int(1));
    let status = json(&proxy, "/api/status");
    let guards = &status["guards"];
    assert_eq!((&guards["enforced"], &guards["informed"]), (&true.into(), &true.into()));
    assert_eq!(guards["rules"][0]["lock"], "account:{1}");
    assert_eq!((&guards["writes"]["passed"], &guards["writes"]["notheld"]), (&1.into(), &1.into()));
    assert_eq!(status["totals"]["guard_refusals"], 1);
    let adoption = &status["adoption"];
    assert_eq!(
        (&adoption["rules"][0]["keys"], &adoption["rules"][0]["mode"]),
        (&"lock:*".into(), &"enforce".into())
    );
    assert_eq!(adoption["seen"], 2);
    let adopted = json(&proxy, "/api/adopted");
    let unsafe_one = &adopted["adopted"][0];
    assert_eq!(
        (&unsafe_one["idiom"], &unsafe_one["client"]),
        (&"blind_release".into(), &"old-worker".into())
    );
    assert_ne!(unsafe_one["unsafe"], "");
    assert_eq!(unsafe_one["longest_ttl_ms"], serde_json::Value::Null);
    assert_eq!(adopted["adopted"][1]["longest_ttl_ms"], 30_000);
}

#[test]
fn who_shares_connections_and_who_got_one_of_its_own_is_told() {
    let proxy = Proxy::with().top("share: yes\nio_threads: 1").start();
    let told = || {
        let mut sharing = json(&proxy, "/api/status")["sharing"].take();
        sharing["come"].take();
        sharing
    };
    let none = value!({"shared": 0, "own": 0, "come": null, "pinned": [], "links": 0, "owed": 0, "most_owed": 0});
    assert_eq!(told(), none);
    assert_eq!(json(&proxy, "/api/pinned"), value!({"pinned": []}));
    let mut clients: Vec<Client> = (0..5).map(|_| proxy.client()).collect();
    for client in &mut clients {
        assert_eq!(client.cmd(&["PING"]), Reply::simple("PONG"));
    }
    let [worker, twin, library, stranger, sharing] = &mut clients[..] else { unreachable!() };
    for client in [&mut *worker, &mut *twin] {
        assert_eq!(client.cmd(&["CLIENT", "SETNAME", "worker"]), Reply::ok());
        client.pipe(&[&["MULTI"], &["EXEC"], &["MULTI"], &["EXEC"]]);
    }
    // Redis knows it from 7.2 on.
    let library_told = match library.cmd(&["CLIENT", "SETINFO", "LIB-NAME", "some-py"]) {
        Reply::Error(_) => "127.0.0.1",
        _ => "some-py at 127.0.0.1",
    };
    library.cmd(&["client", "id"]);
    stranger.cmd(&["no<b>such", "secret"]);
    let all = json(&proxy, "/api/pinned");
    let pinned = |client: &str, by: &str, command: &str, clients: u64| value!({"client": client, "by": by, "command": command, "clients": clients});
    let wanted = [
        pinned("worker", "transaction", "MULTI", 2),
        pinned(library_told, "client", "CLIENT ID", 1),
        pinned("127.0.0.1", "other", "", 1),
    ];
    assert_eq!(all, value!({"pinned": wanted}));
    assert_eq!(json(&proxy, "/api/pinned?count=1"), value!({"pinned": wanted[..1]}));
    let by = value!([{"by": "transaction", "clients": 2}, {"by": "client", "clients": 1}, {"by": "other", "clients": 1}]);
    let with = |shared: u64, own: u64, owed: u64| value!({"shared": shared, "own": own, "come": null, "pinned": by, "links": 1, "owed": owed, "most_owed": owed});
    assert_eq!(told(), with(1, 4, 0));
    // What the data node has not answered is owed.
    assert_eq!(proxy.data_client().cmd(&["CLIENT", "PAUSE", "60000", "WRITE"]), Reply::ok());
    sharing.send(&pipeline(&[&["SET", "k", "v"], &["GET", "k"]]));
    eventually("both are owed", || told() == with(1, 4, 2));
    assert_eq!(proxy.data_client().cmd(&["CLIENT", "UNPAUSE"]), Reply::ok());
    assert_eq!((sharing.reply(), sharing.reply()), (Reply::ok(), Reply::bulk("v")));
    assert_eq!(told(), with(1, 4, 0));
    drop(clients);
    eventually("they are gone", || told() == with(0, 0, 0));
    let come = json(&proxy, "/api/status")["sharing"]["come"].as_u64();
    assert_eq!(come, Some(5));
    // Names that clients choose take bounded room, and what they send in place of commands is not told.
    for n in 0..100 {
        let mut client = proxy.client();
        let name = format!("n{n}");
        client.cmd(&["HELLO", "2", "SETNAME", &name]);
        client.send(&encode(&["password=secret", &name]));
        client.reply();
    }
    let page = proxy.http("/api/pinned");
    let list = json(&proxy, "/api/pinned")["pinned"].take();
    let list = list.as_array().unwrap();
    assert!(list.len() <= 64 && !page.contains("secret"), "{page}");
    let sum: u64 = list.iter().map(|kind| kind["clients"].as_u64().unwrap()).sum();
    assert_eq!(sum, 104, "each is counted");
    assert!(page.contains("\"n99\"") && page.contains("\"worker\""), "{page}");
    let plain = Proxy::with().top("share: no").start();
    assert!(json(&plain, "/api/status")["sharing"].is_null());
    assert_eq!(json(&plain, "/api/pinned"), value!({"pinned": []}));
}
