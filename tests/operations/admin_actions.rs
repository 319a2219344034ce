//! What an operator does at the admin address, and which requests are refused.

use std::{io::Write, net::TcpStream, thread, time::Duration};

use serde_json::Value;

use super::logs::lines;
use crate::support::{Proxy, Reply, encode, eventually};

pub(crate) const TOKEN: &str = "0123456789abcdef-secret";
const ACCOUNTS: &str = "guards:\n  - keys: 'account:*'\n    lock: 'account:{1}'";

/// The headers of a permitted request.
fn headers() -> String {
    // The scheme may be in any case.
    format!("Authorization: bearer {TOKEN}\r\nContent-Type: application/json\r\n")
}

/// Posts a body with these headers. Returns the status and the answer.
pub(crate) fn post(proxy: &Proxy, path: &str, body: &str) -> (u16, Value) {
    read(&proxy.http_post(path, &headers(), body))
}

fn read(answer: &str) -> (u16, Value) {
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{answer:?}"));
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, serde_json::from_str(body).unwrap_or(Value::Null))
}

pub(crate) fn freed(freed: bool) -> (u16, Value) {
    (200, serde_json::json!({ "freed": freed }))
}

fn count(proxy: &Proxy, labels: &str) -> f64 {
    proxy.metric("lockgate_admin_actions_total", labels)
}

#[test]
fn a_lock_is_freed_by_its_fence_and_its_holder_is_told() {
    let proxy = Proxy::with().nodes(3).admin_token(TOKEN).start();
    let mut holder = proxy.client();
    let first = holder.cmd(&["LOCK", "job"]).grant();
    let unlock = |fence| {
        let body = format!(r#"{{"key": "job", "fence": {fence}}}"#);
        post(&proxy, "/api/locks/unlock", &body)
    };
    assert_eq!(unlock(first.fence - 1), freed(false));
    proxy.assert_on_nodes("lock:job", 3);
    assert_eq!(unlock(first.fence), freed(true));
    proxy.assert_on_nodes("lock:job", 0);
    assert!(holder.cmd(&["PING"]).error().starts_with("LOCKLOST"));
    assert_eq!(unlock(first.fence), freed(false));

    // A name of any bytes, and any grant of it.
    holder.send(b"*4\r\n$4\r\nLOCK\r\n$2\r\n\xff\x00\r\n$2\r\nPX\r\n$5\r\n30000\r\n");
    let second = holder.reply().grant();
    let any = r#"{"key_hex": "fF00", "any": true}"#;
    assert_eq!(post(&proxy, "/api/locks/unlock", any), freed(true));
    assert_eq!(post(&proxy, "/api/locks/unlock", any), freed(false));

    assert_eq!(proxy.metric("lockgate_operator_unlocks_total", "result=\"ok\""), 2.0);
    assert_eq!(proxy.metric("lockgate_operator_unlocks_total", "result=\"not_held\""), 3.0);
    assert_eq!(count(&proxy, "action=\"unlock\",result=\"ok\""), 5.0);
    let log = proxy.log();
    let told: Vec<&str> =
        log.lines().filter(|line| line.contains("an operator has taken a lock back")).collect();
    assert_eq!(told.len(), 2, "{log}");
    for part in ["job", &first.fence.to_string(), "127.0.0.1:", "admin page"] {
        assert!(told[0].contains(part), "{part} in {}", told[0]);
    }
    for secret in [TOKEN, &first.token, &second.token] {
        assert!(!log.contains(secret), "{secret}");
        for page in ["/metrics", "/readyz", "/api/status", "/api/locks"] {
            assert!(!proxy.http(page).contains(secret), "{secret} in {page}");
        }
    }
}

#[test]
fn late_writes_of_the_last_holder_are_refused_before_the_lock_is_free() {
    let mut proxy = Proxy::with().nodes(3).top(ACCOUNTS).admin_token(TOKEN).start();
    let other = Proxy::beside(&proxy).top(ACCOUNTS).start();
    let mut holder = other.client();
    let first = holder.cmd(&["LOCK", "account:1", "PX", "60000"]).grant();
    assert_eq!(holder.cmd(&["SET", "account:1", "100"]), Reply::ok());
    let unlock = format!(r#"{{"key": "account:1", "fence": {}}}"#, first.fence);

    // If the data node cannot be told, the lock stays.
    let mut direct = proxy.data_client();
    assert_eq!(direct.cmd(&["ACL", "SETUSER", "default", "-eval"]), Reply::ok());
    let (status, told) = post(&proxy, "/api/locks/unlock", &unlock);
    let told = told["error"].as_str().unwrap();
    assert!(status == 502 && told.starts_with("the data node: NOPERM "), "{status} {told}");
    proxy.assert_on_nodes("lock:account:1", 3);
    assert_eq!(direct.cmd(&["ACL", "SETUSER", "default", "+eval"]), Reply::ok());
    assert_eq!(holder.cmd(&["SET", "account:1", "150"]), Reply::ok());

    assert_eq!(post(&proxy, "/api/locks/unlock", &unlock), freed(true));
    proxy.assert_on_nodes("lock:account:1", 0);
    assert!(holder.cmd(&["SET", "account:1", "200"]).error().starts_with("FENCED 'account:1'"));
    assert_eq!(direct.cmd(&["GET", "account:1"]), Reply::bulk("150"));
    let second = proxy.client().cmd(&["LOCK", "account:1", "PX", "60000"]).grant();
    assert!(second.fence > first.fence);

    // Nor is it taken back without a data node.
    proxy.data().kill().unwrap();
    let any = r#"{"key": "account:1", "any": true}"#;
    assert_eq!(post(&proxy, "/api/locks/unlock", any).0, 502);
    proxy.assert_on_nodes("lock:account:1", 3);
    assert_eq!(proxy.metric("lockgate_operator_unlocks_total", "result=\"failed\""), 2.0);
    assert_eq!(count(&proxy, "action=\"unlock\",result=\"failed\""), 2.0);
    // A lock without a guard does not need the data node.
    let any = r#"{"key": "job", "any": true}"#;
    assert_eq!(post(&proxy, "/api/locks/unlock", any), freed(false));
    for node in [0, 1] {
        proxy.node(node).kill().unwrap();
    }
    let (status, told) = post(&proxy, "/api/locks/unlock", any);
    assert!(status == 503 && told["error"].as_str().unwrap().starts_with("NOQUORUM"), "{told}");
}

#[test]
fn a_lock_node_is_paused_and_resumed() {
    let proxy = Proxy::with().nodes(3).admin_token(TOKEN).start();
    let address = |index| {
        let mut operator = proxy.client();
        let Reply::Array(nodes) = operator.cmd(&["LOCKGATE", "NODES"]) else { panic!("no array") };
        let Reply::Array(fields) = &nodes[index] else { panic!("no fields") };
        let Reply::Bulk(address) = &fields[1] else { panic!("no address") };
        String::from_utf8(address.clone()).unwrap()
    };
    let (first, second) = (address(0), address(1));
    let node = |verb: &str, address: &str| {
        post(&proxy, &format!("/api/nodes/{verb}"), &format!(r#"{{"address": "{address}"}}"#))
    };
    assert_eq!(node("pause", &first), (200, serde_json::json!({"paused": true})));
    let body = |page: String| page.split_once("\r\n\r\n").unwrap().1.to_owned();
    let status: Value = serde_json::from_str(&body(proxy.http("/api/status"))).unwrap();
    assert_eq!(
        (&status["nodes"][0]["paused"], &status["quorum"]["voting"]),
        (&true.into(), &2.into())
    );
    let (status, told) = node("pause", &second);
    assert!(
        status == 409 && told["error"].as_str().unwrap().contains("1 other lock nodes vote"),
        "{told}"
    );
    let words = told["error"].as_str().unwrap();
    assert!(
        words.contains("with \"force\": true it is paused") && !words.contains("FORCE"),
        "{told}"
    );
    let forced = format!(r#"{{"address": "{second}", "force": true}}"#);
    assert_eq!(post(&proxy, "/api/nodes/pause", &forced).0, 200);
    assert!(proxy.client().cmd(&["LOCK", "job"]).error().starts_with("NOQUORUM"));
    for address in [&first, &second] {
        assert_eq!(node("resume", address), (200, serde_json::json!({"paused": false})));
    }
    eventually("all vote", || proxy.metric("lockgate_quorum_slack", "") == 1.0);
    proxy.client().cmd(&["LOCK", "job"]).grant();
    assert_eq!(node("pause", "nobody:1").0, 404);
    assert_eq!(
        (count(&proxy, "action=\"pause\",result=\"ok\""), count(&proxy, "action=\"resume\"")),
        (2.0, 2.0)
    );
    assert_eq!(count(&proxy, "action=\"pause\",result=\"refused\""), 2.0);
    for (what, node, force) in [
        ("paused", &first, "\"force\":false"),
        ("paused", &second, "\"force\":true"),
        ("resumed", &first, ""),
        ("resumed", &second, ""),
    ] {
        let what = format!("an operator has {what} a lock node");
        let told = lines(&proxy, &[&what, &format!("\"node\":\"{node}\""), force, "admin page"]);
        assert_eq!(told.len(), 1, "{what} {node} in {}", proxy.log());
    }
}

/// An answer to a wrong token takes a second, and connections beyond 64 end the oldest.
#[test]
fn who_does_not_wait_for_the_answer_is_counted_too() {
    let proxy = Proxy::with().nodes(3).admin_token(TOKEN).start();
    let port = proxy.admin_port();
    let head = format!("POST /api/locks/unlock HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n");
    let request = format!(
        "{head}Authorization: Bearer wrong\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{{}}"
    );
    let asked: Vec<TcpStream> = (0..100)
        .map(|_| {
            let mut asked = TcpStream::connect(("127.0.0.1", port)).unwrap();
            asked.write_all(request.as_bytes()).unwrap();
            // A new connection may end one whose request has not been read.
            thread::sleep(Duration::from_millis(2));
            asked
        })
        .collect();
    eventually("all are counted", || count(&proxy, "result=\"denied\"") > 70.0);
    drop(asked);
}

#[test]
fn nothing_is_done_for_who_may_not() {
    let any = r#"{"key": "job", "any": true}"#;
    let proxy = Proxy::with().nodes(3).start();
    proxy.client().cmd(&["LOCK", "job", "PX", "60000"]).grant();
    let (status, told) = post(&proxy, "/api/locks/unlock", any);
    assert_eq!(
        (status, &told["error"]),
        (403, &"read only: no admin.token is in the configuration".into())
    );
    proxy.assert_on_nodes("lock:job", 3);
    assert_eq!(count(&proxy, "result=\"denied\""), 1.0);

    let proxy = Proxy::with().nodes(3).admin_token(TOKEN).start();
    proxy.client().cmd(&["LOCK", "job", "PX", "60000"]).grant();
    let json = "Content-Type: application/json\r\n";
    let bearer = format!("Authorization: Bearer {TOKEN}\r\n");
    let (half, long) = (&TOKEN[..TOKEN.len() - 1], format!("{TOKEN}x"));
    for (headers, expected) in [
        (json.to_owned(), 401),
        (format!("{json}Authorization: Bearer \r\n"), 401),
        (format!("{json}Authorization: Bearer {half}\r\n"), 401),
        (format!("{json}Authorization: Bearer {long}\r\n"), 401),
        (format!("{json}Authorization: Basic {TOKEN}\r\n"), 401),
        (bearer.clone(), 415),
        (format!("{bearer}Content-Type: text/plain\r\n"), 415),
        (format!("{bearer}Content-Type: application/x-www-form-urlencoded\r\n"), 415),
        (format!("{bearer}{json}Origin: http://evil.example\r\n"), 403),
        (format!("{bearer}{json}Origin: null\r\n"), 403),
    ] {
        let answer = proxy.http_post("/api/locks/unlock", &headers, any);
        let (status, told) = read(&answer);
        assert!(status == expected && told["error"].is_string(), "{headers}: {answer}");
        assert_eq!(status == 401, answer.contains("www-authenticate: Bearer"), "{answer}");
    }
    assert_eq!(count(&proxy, "action=\"unlock\",result=\"denied\""), 7.0);
    let log = proxy.log();
    assert!(log.contains("without the right admin.token") && !log.contains(half), "{log}");

    // A request from another site that has its own name lead here.
    let evil = format!(
        "POST /api/locks/unlock HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n{}\
         Content-Length: {}\r\n\r\n{any}",
        headers(),
        any.len()
    );
    assert!(proxy.http_bytes(evil.as_bytes()).starts_with("HTTP/1.1 421"));
    for path in
        ["/api/status", "/api/locks", "/api/hot", "/api/clients", "/api/pinned", "/api/history"]
    {
        let answer = proxy.http_bytes(
            format!("GET {path} HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n")
                .as_bytes(),
        );
        assert!(answer.starts_with("HTTP/1.1 421") && !answer.contains("job"), "{answer}");
    }
    proxy.assert_on_nodes("lock:job", 3);
    // The same request with the page's own origin is accepted.
    let own = format!("{}Origin: http://127.0.0.1:{}\r\n", headers(), proxy.admin_port());
    assert_eq!(read(&proxy.http_post("/api/locks/unlock", &own, any)), freed(true));
}

#[test]
fn a_token_is_looked_at_without_anything_being_done() {
    let proxy = Proxy::with().nodes(3).admin_token(TOKEN).start();
    let accepted = (200, serde_json::json!({"accepted": true}));
    assert_eq!(post(&proxy, "/api/token", "{}"), accepted);
    let wrong = headers().replace(TOKEN, "wrong-wrong-wrong-wrong");
    assert_eq!(read(&proxy.http_post("/api/token", &wrong, "{}")).0, 401);
    for body in ["", "[]", r#"{"token": "x"}"#] {
        assert_eq!(post(&proxy, "/api/token", body).0, 400, "{body}");
    }
    let page = proxy.http("/api/token");
    assert!(page.starts_with("HTTP/1.1 405"), "{page}");
    for (result, times) in [("ok", 1.0), ("denied", 1.0), ("refused", 3.0)] {
        let labels = format!("action=\"token\",result=\"{result}\"");
        assert_eq!(count(&proxy, &labels), times, "{result}");
    }
    let readable = Proxy::start();
    assert_eq!(post(&readable, "/api/token", "{}").0, 403);
}

#[test]
fn requests_that_make_no_sense_are_refused_and_harm_nobody() {
    let proxy = Proxy::with().nodes(3).admin_token(TOKEN).start();
    proxy.client().cmd(&["LOCK", "job", "PX", "60000"]).grant();
    let deep = "[".repeat(60_000);
    for (body, error) in [
        ("", "the body is not JSON: EOF while parsing"),
        ("{", "the body is not JSON: EOF while parsing"),
        ("{\"key\": job}", "the body is not JSON: expected value at line 1 column 9"),
        ("null", "the body is to be one JSON object: {\"key\": text"),
        (&deep, "the body is to be one JSON object"),
        (r#"["job", null, null, true]"#, "the body is to be one JSON object"),
        (r#"{"any": true}"#, "give the lock's 'key'"),
        (r#"{"key": "job"}"#, "give the 'fence'"),
        (r#"{"key": "job", "fence": 1, "any": true}"#, "give the 'fence'"),
        (r#"{"key": "job", "fence": -1}"#, "\"fence\": number of 0 or more"),
        (r#"{"key": "job", "fence": "1"}"#, "a value is of another kind"),
        (r#"{"key": "job", "any": 1}"#, "\"any\": true or false"),
        (r#"{"key": "job", "key": "jobs", "any": true}"#, "duplicate field `key`"),
        (r#"{"key": "job", "key_hex": "00", "any": true}"#, "give the lock's 'key'"),
        (r#"{"key_hex": "0g", "any": true}"#, "is not hexadecimal"),
        (r#"{"key": "", "any": true}"#, "the key is empty"),
        (r#"{"key": "job", "any": true, "all": true}"#, "unknown field"),
        ("{\"key\": \"\u{0}\", \"any\": true}", "control character"),
    ] {
        let (status, told) = post(&proxy, "/api/locks/unlock", body);
        let text = told["error"].as_str().unwrap_or_else(|| panic!("{status} {told}"));
        let body = &body[..body.len().min(100)];
        assert!(status == 400 && text.contains(error), "{body}: {status} {text}");
        for word in ["struct", "Body", "u64", "option"] {
            assert!(!text.contains(word), "{body}: {text}");
        }
    }
    for path in ["/api/nodes/pause", "/api/nodes/resume"] {
        let (status, told) = post(&proxy, path, "{}");
        let expected = "missing field `address`; the body is to be one JSON object: \
                        {\"address\": text, \"force\": true or false}";
        assert_eq!((status, &told["error"]), (400, &expected.into()));
    }
    let long = format!(r#"{{"key": "{}", "any": true}}"#, "x".repeat(5000));
    let (status, told) = post(&proxy, "/api/locks/unlock", &long);
    assert!(
        status == 400 && told["error"].as_str().unwrap().contains("is longer than 4096 bytes"),
        "{told}"
    );
    let huge = " ".repeat(100_000);
    assert_eq!(post(&proxy, "/api/locks/unlock", &huge).0, 413);
    // Announced as huge, and in pieces without an end.
    let port = proxy.admin_port();
    let head = format!(
        "POST /api/locks/unlock HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n{}",
        headers()
    );
    let told = format!("{head}Content-Length: 99999999999\r\n\r\n{huge}");
    assert!(proxy.http_bytes(told.as_bytes()).starts_with("HTTP/1.1 413"));
    let pieces =
        format!("{head}Transfer-Encoding: chunked\r\n\r\n{}", "5\r\n     \r\n".repeat(20_000));
    assert!(proxy.http_bytes(pieces.as_bytes()).starts_with("HTTP/1.1 413"));
    let slow = format!("{head}Content-Length: 10\r\n\r\n ");
    assert!(proxy.http_bytes(slow.as_bytes()).starts_with("HTTP/1.1 408"));

    for (method, path, status) in [
        ("GET", "/api/locks/unlock", "405"),
        ("HEAD", "/api/nodes/pause", "405"),
        ("PUT", "/api/nodes/resume", "405"),
        ("OPTIONS", "/api/locks/unlock", "405"),
        ("POST", "/api/status", "405"),
        ("DELETE", "/api/locks", "405"),
        ("POST", "/api/nodes", "405"),
        ("GET", "/api/nodes", "404"),
        ("GET", "/api/", "404"),
        ("GET", "/api/locks/", "404"),
        ("GET", "//", "404"),
        ("GET", "/../etc/passwd", "404"),
        ("HEAD", "/api/locks", "200"),
        ("GET", "/api/locks?", "200"),
        ("GET", "/api/locks?count=%zz", "400"),
        ("GET", "/api/locks?match=%zz", "400"),
        ("GET", "/api/locks?match=a%2", "400"),
        ("GET", "/api/locks?count=1&match=a&count=2", "400"),
        ("GET", "/api/clients?count=1&count=1", "400"),
    ] {
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n"
        );
        let answer = proxy.http_bytes(request.as_bytes());
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{method} {path}: {answer}");
        assert!(method != "HEAD" || answer.ends_with("\r\n\r\n"), "{answer}");
        assert_eq!(status == "405", answer.contains("allow: "), "{answer}");
    }
    let many: String = (0..500).map(|n| format!("X-{n}: y\r\n")).collect();
    for head in [many, format!("X: {}\r\n", "y".repeat(1_000_000))] {
        let request = format!("GET /api/status HTTP/1.1\r\nHost: 127.0.0.1\r\n{head}\r\n");
        let answer = proxy.http_bytes(request.as_bytes());
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431"), "{answer}");
    }
    for garbage in
        [&b"\0\0\0\0\r\n\r\n"[..], b"*1\r\n$4\r\nPING\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n"]
    {
        let answer = proxy.http_bytes(garbage);
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{answer}");
    }
    // The proxy gives up a head that does not end.
    assert!(!proxy.http_bytes(b"GET /api/status HTTP/1.1\r\nHost: ").starts_with("HTTP/1.1 200"));
    proxy.assert_on_nodes("lock:job", 3);
    assert!(proxy.http("/api/status").starts_with("HTTP/1.1 200"));
    assert_eq!(count(&proxy, "result=\"ok\""), 0.0);
}

#[test]
fn who_hangs_up_does_not_leave_half_of_it() {
    let proxy = Proxy::with().nodes(3).admin_token(TOKEN).start();
    let mut holder = proxy.client();
    holder.cmd(&["LOCK", "job", "PX", "60000"]).grant();
    let mut waiter = proxy.client();
    waiter.send(&encode(&["LOCK", "job", "PX", "60000", "WAIT", "30000"]));
    eventually("it waits", || proxy.waiters() == 1);
    let any = r#"{"key": "job", "any": true}"#;
    let head = format!(
        "POST /api/locks/unlock HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {}\r\n{}\r\n",
        any.len(),
        headers()
    );
    let mut stream = TcpStream::connect(("127.0.0.1", proxy.admin_port())).unwrap();
    stream.write_all(head.as_bytes()).unwrap();
    // The proxy waits for the body, and then reads it and the end at once.
    std::thread::sleep(std::time::Duration::from_millis(300));
    proxy.freeze();
    stream.write_all(any.as_bytes()).unwrap();
    drop(stream);
    proxy.thaw();
    waiter.reply().grant();
    eventually("it is told", || proxy.log().contains("an operator has taken a lock back"));
}
