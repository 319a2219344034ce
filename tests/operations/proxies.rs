//! The other proxies of `admin.peers`, as one proxy shows them: real proxies, and strangers.

use std::{
    io::{Read, Write},
    net::TcpListener,
    thread,
    time::Duration,
};

use serde_json::Value;

use crate::support::{Proxy, Reply, browser::Browser, encode, eventually};

fn url(proxy: &Proxy) -> String {
    format!("http://127.0.0.1:{}", proxy.admin_port())
}

/// Returns the rows of `/api/proxies`.
fn rows(proxy: &Proxy) -> Vec<Value> {
    let page = proxy.http("/api/proxies");
    assert!(page.starts_with("HTTP/1.1 200"), "{page}");
    let document: Value = serde_json::from_str(page.split_once("\r\n\r\n").unwrap().1).unwrap();
    assert_eq!(document["every_ms"], 2000);
    document["proxies"].as_array().unwrap().clone()
}

/// Starts a server that answers every request with this, a piece at a time. Returns its URL.
fn stranger(answer: String, pause: Duration) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, answer) = (stream.unwrap(), answer.clone());
            thread::spawn(move || {
                let _ = stream.read(&mut [0; 4096]);
                for piece in answer.as_bytes().chunks(1000) {
                    if stream.write_all(piece).is_err() {
                        return;
                    }
                    thread::sleep(pause);
                }
            });
        }
    });
    url
}

#[test]
fn proxies_tell_how_the_others_are_and_which_does_not_answer() {
    let mut other = Proxy::with().nodes(3).top("shutdown_delay: 60s").start();
    let proxy = Proxy::beside(&other).peers(&[url(&other)]).start();
    let mut client = other.client();
    client.cmd(&["LOCK", "job", "PX", "60000"]).grant();
    let peer = |is_so: &dyn Fn(&Value) -> bool| {
        let mut peer = Value::Null;
        eventually("it is told so", || {
            peer = rows(&proxy)[1].clone();
            is_so(&peer)
        });
        peer
    };
    eventually("both are ready", || rows(&proxy).iter().all(|row| row["told"]["ready"] == true));
    let [own, there] = &rows(&proxy)[..] else { panic!("two") };
    assert_eq!(
        (&own["here"], &own["url"], &own["answers"]),
        (&true.into(), &Value::Null, &true.into())
    );
    assert_eq!((&there["here"], &there["url"]), (&false.into(), &url(&other).into()));
    let told = peer(&|peer| peer["told"]["held"] == 1)["told"].clone();
    for (field, value) in [
        ("version", Value::from(env!("CARGO_PKG_VERSION"))),
        ("draining", false.into()),
        ("problems", Value::Array(Vec::new())),
        ("connections", 1.into()),
        ("waiters", 0.into()),
        ("nodes", 3.into()),
        ("nodes_up", 3.into()),
        ("nodes_voting", 3.into()),
        ("data_up", true.into()),
    ] {
        assert_eq!(told[field], value, "{field}");
    }
    assert!(told["name"].as_str().unwrap().contains(&other.pid().to_string()), "{told}");
    // A proxy without peers shows none.
    let status = other.http("/api/status");
    assert!(status.contains("\"peers\":0") && rows(&other).len() == 1, "{status}");

    other.node(1).kill().unwrap();
    let told = peer(&|peer| peer["told"]["nodes_up"] == 2)["told"].clone();
    assert!(told["problems"][0].as_str().unwrap().starts_with("lock node "), "{told}");
    other.terminate();
    peer(&|peer| peer["told"]["draining"] == true && peer["told"]["ready"] == false);
    other.freeze();
    let silent = peer(&|peer| peer["answers"] == false);
    assert_eq!(silent["error"], "no answer within 1s");
    other.kill();
    let gone = peer(&|peer| peer["error"].as_str().is_some_and(|error| error.contains("refused")));
    // Silent since it was first asked in vain, in the round before.
    assert!(gone["silent_ms"].as_u64() >= Some(500), "{gone}");
    assert!(gone["answered_ms"].is_u64() && gone["told"]["name"] == told["name"], "{gone}");
    other.start_again();
    let back = peer(&|peer| peer["answers"] == true);
    assert!(back["silent_ms"].is_null() && back["told"]["name"] != told["name"], "{back}");
}

#[test]
fn who_holds_a_lock_through_another_proxy_is_told() {
    let other = Proxy::with().nodes(3).start();
    let peers = [stranger("x".into(), Duration::ZERO), url(&other)];
    let proxy = Proxy::beside(&other).peers(&peers).start();
    let mut holder = other.client();
    assert_eq!(holder.cmd(&["CLIENT", "SETNAME", "worker-7"]), Reply::ok());
    let fence = holder.cmd(&["LOCK", "job 1/2", "PX", "60000"]).grant().fence;
    let asked = |proxy: &Proxy, path: &str| -> Value {
        let page = proxy.http(path);
        assert!(page.starts_with("HTTP/1.1 200"), "{page}");
        serde_json::from_str(page.split_once("\r\n\r\n").unwrap().1).unwrap()
    };
    let of_holder = |row: &Value| {
        assert_eq!(row["holder"]["name"], "worker-7", "{row}");
        assert_eq!(row["holder"]["connected"], true);
        assert_eq!(row["fence"], fence);
        assert!(row["proxy"].as_str().unwrap().contains(&other.pid().to_string()), "{row}");
    };
    let holders = asked(&proxy, "/api/holders?key=job+1%2f2&key=nobody")["holders"].clone();
    assert_eq!((holders[0]["kind"].clone(), &holders[1]), ("lease".into(), &Value::Null));
    of_holder(&holders[0]);
    let alone = asked(&proxy, "/api/holders?peers=no&key=job+1%2f2")["holders"].clone();
    assert_eq!(alone[0], Value::Null);
    of_holder(&asked(&other, "/api/holders?key=job+1%2f2")["holders"][0]);
    // With a waiter here, the lock is in this proxy's lists.
    let mut waiter = proxy.client();
    waiter.send(&encode(&["LOCK", "job 1/2", "PX", "60000", "WAIT", "60000"]));
    eventually("it waits", || proxy.waiters() == 1);
    let mut row = Value::Null;
    eventually("the lock nodes have named a holder", || {
        row = asked(&proxy, "/api/locks?by=waiters")["locks"][0].clone();
        row["proxy"].is_string()
    });
    of_holder(&row);
    assert_eq!((&row["kind"], &row["waiters"]), (&"elsewhere".into(), &1.into()));
    assert!(proxy.http("/api/holders").starts_with("HTTP/1.1 400"));
}

#[test]
fn the_page_shows_all_proxies_and_no_stranger_breaks_it() {
    let hostile = r#"{"proxy": {"name": "<img src=x onerror=document.title='hacked'>\u202eevil", "uptime_ms": 1,
        "ready": false}, "problems": ["<b>", "\u202eb", "c", "d", "e"], "nodes": 7}"#;
    let ok = "HTTP/1.1 200 OK\r\n\r\n";
    let mut other = Proxy::with().nodes(3).start();
    let peers = [
        url(&other),
        stranger(format!("{ok}{hostile}"), Duration::ZERO),
        stranger(format!("{ok}{}", hostile.replace('7', "[]")), Duration::ZERO),
        stranger(format!("{ok}{}", "x".repeat(1 << 20)), Duration::ZERO),
        // An answer that never ends.
        stranger(format!("{ok}{}", " ".repeat(1 << 20)), Duration::from_secs(1)),
    ];
    let proxy = Proxy::beside(&other).peers(&peers).start();
    let mut page = Browser::start();
    page.open(&format!("{}/", url(&proxy)));
    page.shows("#state", "Ready");
    page.shows("#proxies-sum", "3 of 6 do not answer.");
    let row = |number: usize| format!("#proxies tbody tr:nth-child({number})");
    page.shows(&row(1), "this proxy");
    page.shows(&row(1), "✓ ready");
    page.shows(&row(2), "✓ ready");
    page.shows(&row(2), &format!("version {}", env!("CARGO_PKG_VERSION")));
    page.shows(&row(2), "3 of 3 up");
    page.shows(&row(2), "✓ up");
    page.shows(&row(3), "✗ does not answer: /api/status is not what Lockgate tells there. For ");
    page.shows(&row(3), "it has never answered");
    page.shows(&row(4), "<img src=x onerror=document.title='hacked'>\\u{202e}evil");
    page.shows(&row(4), "✗ not ready");
    page.shows(&row(4), "\\u{202e}b");
    page.shows(&row(4), "and more");
    page.shows(&row(5), "its answer is longer than 262144 bytes");
    page.shows(&row(6), "no answer within 1s");
    assert_eq!(page.run("document.images.length"), 0);
    let links = "[...document.querySelectorAll('#proxies a')].map(link => link.href)";
    let expected: Vec<_> = peers.iter().map(|peer| format!("{peer}/")).collect();
    assert_eq!(page.run(links), serde_json::json!(expected));
    // A link that has the focus keeps it.
    page.tab_to("#proxies a");
    page.run("had = document.activeElement");
    other.kill();
    page.shows(&row(2), "✗ does not answer: Connection refused");
    assert_eq!(page.run("document.activeElement === had"), true);
    other.start_again();
    page.shows(&row(2), "✓ ready");
    assert_eq!(page.text("#state"), "Ready");
    assert_eq!(page.run("document.title"), "Lockgate: Ready");
    for width in [320, 1180] {
        let size = serde_json::json!({"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500});
        page.call("Emulation.setDeviceMetricsOverride", size);
        let wide = "document.documentElement.scrollWidth";
        eventually("nothing goes beyond the edge", || page.run(wide).as_u64() <= Some(width));
    }
    // The browser has asked this proxy alone.
    let origin = url(&proxy);
    let fetched = page.fetched();
    assert!(
        fetched.iter().all(|at| at.starts_with(&origin) || at.starts_with("data:")),
        "{fetched:?}"
    );
    assert_eq!(page.console(), Vec::<Value>::new());
}
