//! The status page in a headless Chromium, before real servers.

use serde_json::json;

use crate::support::{Proxy, Reply, browser::Browser, encode, eventually};

const TOKEN: &str = "0123456789abcdef-secret";
/// A lock's name as a hostile client chooses it.
const HOSTILE: &str = "<img src=x onerror=document.title='hacked'>";

fn origin(proxy: &Proxy) -> String {
    format!("http://127.0.0.1:{}", proxy.admin_port())
}

/// Opens the status page, and waits until it has told the first time.
fn opened(proxy: &Proxy) -> Browser {
    let mut browser = Browser::start();
    browser.open(&format!("{}/", origin(proxy)));
    browser.shows("#state", "Ready");
    browser
}

/// Nothing was fetched from elsewhere, and nothing stands in the console.
fn is_clean(browser: &mut Browser, proxy: &Proxy) {
    let fetched = browser.fetched();
    assert!(fetched.iter().any(|url| url.ends_with("/api/status")), "{fetched:?}");
    let is_own = |url: &&String| url.starts_with(&origin(proxy)) || url.starts_with("data:");
    let foreign: Vec<_> = fetched.iter().filter(|url| !is_own(url)).collect();
    assert!(foreign.is_empty(), "{foreign:?}");
    assert_eq!(browser.console(), Vec::<serde_json::Value>::new());
}

#[test]
fn the_page_tells_a_proxy_and_turns_when_a_node_dies() {
    let mut proxy = Proxy::with().nodes(3).start();
    let (mut holder, mut waiter) = (proxy.client(), proxy.client());
    holder.cmd(&["CLIENT", "SETNAME", "worker-7<b>"]);
    holder.cmd(&["LOCK", HOSTILE]).grant();
    waiter.cmd(&["CLIENT", "SETNAME", "next-in-line"]);
    waiter.send(&encode(&["LOCK", HOSTILE, "WAIT", "0"]));
    eventually("it waits", || proxy.waiters() == 1);

    let mut page = opened(&proxy);
    assert_eq!(page.text("#state"), "Ready");
    page.shows("#name", &format!("pid {}", proxy.pid()));
    page.shows("#quorum", "3 of 3 vote, 2 are needed: 1 more may fail");
    page.shows("#nodes tbody tr:nth-child(3)", "✓ votes");
    let trip = "/[0-9] (µs|ms)/.test(document.querySelector('#nodes tbody tr').textContent)";
    eventually("a round trip is told", || page.run(trip) == true);
    page.shows("#hot", HOSTILE);
    page.shows("#hot", "worker-7<b>");
    page.shows("#hot", "1 in line");
    page.shows("#locks", "session");
    assert_eq!(page.text("#problems"), "");
    assert_eq!(page.run("document.images.length + document.querySelectorAll('bdi *').length"), 0);
    assert_eq!(page.run("document.title"), "Lockgate: Ready");
    assert_eq!(page.run("document.querySelectorAll('#hot bdi')[0].textContent"), HOSTILE);
    page.shows("#acts-none", "Read only");
    assert_eq!(page.run("document.querySelectorAll('td button').length"), 0);
    // Who waits is folded out by the keyboard, and stays so.
    assert_eq!(page.run("document.querySelector('#hot details').open"), false);
    page.tab_to("#hot summary");
    page.press("Enter");
    page.shows("#hot details", "next-in-line");
    eventually("it refreshes", || {
        page.fetched().iter().filter(|url| url.ends_with("/api/status")).count() >= 4
    });
    assert_eq!(page.run("document.activeElement.matches('#hot summary')"), true);
    page.shows("#hot details", "next-in-line");
    // A pattern, and one of which nothing is found.
    page.tab_to("#match");
    page.type_text("nothing*");
    page.shows("#locks-none", "None.");
    page.type_text(&"*".repeat(300));
    page.run("document.getElementById('match').value = ''");

    proxy.node(1).kill().unwrap();
    page.shows("#state", "Ready, not all well");
    page.shows("#nodes tbody tr:nth-child(2)", "✗ down");
    page.shows("#quorum", "2 of 3 vote, 2 are needed: 0 more may fail");
    let told = proxy.http("/readyz");
    let line = told.lines().find(|line| line.starts_with("lock node ") && !line.ends_with(": ok"));
    page.shows("#problem-list", line.unwrap());
    proxy.node(2).kill().unwrap();
    page.shows("#state", "Not ready");
    page.shows("#quorum", "no lock is granted");
    eventually("its title tells it", || page.run("document.title") == "● Lockgate: Not ready");
    page.shows("#tiles", "Locks held");
    eventually("lines are drawn", || {
        page.run("document.querySelectorAll('#tiles polyline').length").as_u64() >= Some(5)
    });
    is_clean(&mut page, &proxy);

    // What it told last stays, and is told to be old.
    proxy.kill();
    page.shows("#state", "Stale");
    page.shows("#stale", "The proxy does not answer");
    page.shows("#stale", "What stands below is from");
    page.shows("#hot", HOSTILE);
}

#[test]
fn a_lock_is_freed_from_the_page_by_the_keyboard() {
    let proxy = Proxy::with().nodes(3).admin_token(TOKEN).start();
    let (mut holder, mut waiter) = (proxy.client(), proxy.client());
    holder.cmd(&["LOCK", "job"]).grant();
    waiter.send(&encode(&["LOCK", "job", "PX", "60000", "WAIT", "0"]));
    eventually("it waits", || proxy.waiters() == 1);

    let mut page = opened(&proxy);
    page.tab_to("#token");
    page.type_text(TOKEN);
    page.press("Enter");
    page.shows("#done", "Locks can be freed");
    assert_eq!(page.run("document.getElementById('token').value"), "");
    page.shows("#hot td:last-child", "Free");
    // Left alone first: the button to do so has the focus.
    page.tab_to("#hot button");
    page.press("Enter");
    page.shows("#ask", "Free this lock?");
    assert_eq!(page.run("document.activeElement.id"), "ask-no");
    page.press("Escape");
    eventually("it closes", || page.run("document.getElementById('ask').open") == false);
    assert_eq!(
        proxy.metric("lockgate_admin_actions_total", "action=\"unlock\",result=\"ok\""),
        0.0
    );

    page.tab_to("#hot button");
    page.press("Enter");
    page.shows("#ask", "The lock job with the fence");
    page.press("Tab");
    page.press("Enter");
    page.shows("#done", "The lock was freed.");
    let second = waiter.reply().grant();
    assert!(holder.cmd(&["PING"]).error().starts_with("LOCKLOST"));
    page.shows("#locks", &second.fence.to_string());

    page.tab_to("#nodes button");
    page.press("Enter");
    page.shows("#ask", "Pause this lock node?");
    page.press("Tab");
    page.press("Enter");
    page.shows("#nodes tbody tr:nth-child(1)", "✗ paused");
    page.shows("#state", "Ready, not all well");
    page.shows("#nodes tbody tr:nth-child(1) button", "Resume");
    page.tab_to("#nodes button");
    page.press("Enter");
    page.shows("#done", "is asked again");
    page.shows("#nodes tbody tr:nth-child(1)", "✓ votes");
    is_clean(&mut page, &proxy);
    let stored = "JSON.stringify([localStorage, sessionStorage, document.cookie])";
    assert_eq!(page.run(stored), r#"[{},{},""]"#);

    // A wrong token is told, and does nothing.
    page.tab_to("#token");
    page.type_text("wrong-wrong-wrong-wrong");
    page.press("Enter");
    page.tab_to("#locks button");
    page.press("Enter");
    page.press("Tab");
    page.press("Enter");
    page.shows("#done", "Not done: send admin.token");
    assert_eq!(waiter.cmd(&["PING"]), Reply::simple("PONG"));
    assert_eq!(proxy.nodes_with("lock:job"), 3);
}

#[test]
fn the_page_is_for_phones_and_the_dark_and_for_who_does_not_see() {
    let rules = "guards:\n  - keys: 'account:*'\n    lock: 'account:{1}'\n\
                 adopt:\n  - keys: 'lock:*'\n    lock: 'adopted:{1}'\n    mode: enforce";
    let proxy = Proxy::with().nodes(3).top(rules).admin_token(TOKEN).start();
    let (mut client, mut waiter) = (proxy.client(), proxy.client());
    assert!(client.cmd(&["SET", "account:1", "x"]).error().starts_with("NOTHELD"));
    client.cmd(&["SET", "lock:a", "token", "NX", "PX", "60000"]);
    client.cmd(&["LOCK", &"long".repeat(100), "PX", "60000"]).grant();
    waiter.send(&encode(&["LOCK", &"long".repeat(100), "PX", "60000", "WAIT", "0"]));
    let mut page = opened(&proxy);
    page.shows("#guards-sum", "0 passed, 1 without the lock");
    page.shows("#guards", "account:{1}");
    page.shows("#adopt-sum", "1 commands seen");
    page.shows("#seen", "SET NX with a TTL");
    page.shows("#hot", "longlong");

    let mut colours = Vec::new();
    for scheme in ["light", "dark"] {
        let feature = json!([{"name": "prefers-color-scheme", "value": scheme}]);
        page.call("Emulation.setEmulatedMedia", json!({ "features": feature }));
        colours.push(page.run("getComputedStyle(document.body).backgroundColor"));
    }
    assert_ne!(colours[0], colours[1]);
    for width in [320, 360, 800, 1400] {
        let size =
            json!({"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500});
        page.call("Emulation.setDeviceMetricsOverride", size);
        let wide = "document.documentElement.scrollWidth";
        eventually("nothing goes beyond the edge", || page.run(wide).as_u64() <= Some(width));
    }
    // Each control and table has a name, and each cell a row.
    let tree = page.call("Accessibility.getFullAXTree", json!({}));
    let mut roles = std::collections::BTreeMap::new();
    for node in tree["nodes"].as_array().unwrap().iter().filter(|node| node["ignored"] == false) {
        let role = node["role"]["value"].as_str().unwrap_or_default();
        *roles.entry(role.to_owned()).or_insert(0) += 1;
        let is_named = node["name"]["value"].as_str().is_some_and(|name| !name.trim().is_empty());
        let must =
            ["button", "textbox", "searchbox", "combobox", "checkbox", "table", "link", "image"];
        assert!(is_named || !must.contains(&role), "{node}");
    }
    for role in ["button", "combobox", "table", "row", "cell", "columnheader", "heading", "main"] {
        assert!(roles.contains_key(role), "no {role} in {roles:?}");
    }
    is_clean(&mut page, &proxy);

    // Nothing is fetched from elsewhere though a script wants it, and no other page shows this one.
    let elsewhere = format!(
        "fetch('http://localhost:{}/').then(() => 'came', () => 'refused')",
        proxy.admin_port()
    );
    assert_eq!(page.run(&elsewhere), "refused");
    let written = "try { document.body.innerHTML = '<b>'; 'done' } catch { 'refused' }";
    assert_eq!(page.run(written), "refused");
    let head = proxy.http("/").split_once("\r\n\r\n").unwrap().0.to_owned();
    for header in [
        "x-frame-options: DENY",
        "frame-ancestors 'none'",
        "default-src 'none'",
        "cache-control: no-store",
        "referrer-policy: no-referrer",
        "x-content-type-options: nosniff",
        "cross-origin-resource-policy: same-origin",
        "content-type: text/html; charset=utf-8",
    ] {
        assert!(head.contains(header), "{header} in {head}");
    }
    assert!(!head.contains("unsafe"), "{head}");
    let nonce = |page: String| {
        page.split_once("script-src 'nonce-").unwrap().1.split('\'').next().unwrap().to_owned()
    };
    assert_ne!(nonce(proxy.http("/")), nonce(proxy.http("/")));
}

/// Remakes docs/images/status-page.png: `make picture`.
#[test]
#[ignore = "writes a file of the repository"]
fn the_picture_of_the_page() {
    let rules = "guards:\n  - keys: 'account:*'\n    lock: 'account:{1}'";
    let mut proxy = Proxy::with().nodes(5).top(rules).locks("max_wait: 10m").start();
    let named = |name: &str| {
        let mut client = proxy.client();
        client.cmd(&["CLIENT", "SETNAME", name]);
        client
    };
    let (mut worker, mut import) = (named("worker-7"), named("nightly-import"));
    worker.cmd(&["LOCK", "invoice:2026-11"]).grant();
    import.cmd(&["LOCK", "import:customers", "PX", "60000"]).grant();
    import.cmd(&["LOCK", "account:42"]).grant();
    assert!(worker.cmd(&["SET", "account:42", "100"]).error().starts_with("NOTHELD"));
    let mut waiters: Vec<_> = (1..4).map(|number| named(&format!("worker-{number}"))).collect();
    for (number, waiter) in waiters.iter_mut().enumerate() {
        let key = if number < 2 { "invoice:2026-11" } else { "import:customers" };
        waiter.send(&encode(&["LOCK", key, "WAIT", "0"]));
    }
    eventually("they wait", || proxy.waiters() == 3);
    let mut busy = named("batch");
    // Two minutes of history.
    for round in 0..120_u32 {
        for key in 0..20 + 15 * (round / 10 % 3) {
            let key = format!("job:{key}");
            busy.cmd(&["LOCK", &key, "PX", "60000"]);
            busy.cmd(&["UNLOCK", &key]);
        }
        std::thread::sleep(std::time::Duration::from_secs(1));
        if round % 40 == 0 {
            import.cmd(&["RENEW", "import:customers", "PX", "60000"]);
        }
    }
    proxy.node(3).kill().unwrap();
    let mut page = opened(&proxy);
    let size = json!({"width": 1180, "height": 1020, "deviceScaleFactor": 1, "mobile": false});
    page.call("Emulation.setScrollbarsHidden", json!({"hidden": true}));
    page.call("Emulation.setDeviceMetricsOverride", size);
    page.shows("#nodes", "✗ down");
    page.shows("#hot", "in line");
    let shot =
        page.call("Page.captureScreenshot", json!({"format": "png", "optimizeForSpeed": false}));
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/images/status-page.png");
    std::fs::write(file, bytes_of(shot["data"].as_str().unwrap())).unwrap();
}

/// Reads base64.
fn bytes_of(text: &str) -> Vec<u8> {
    let digits = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let value = |byte: u8| digits.iter().position(|digit| *digit == byte).unwrap();
    let (mut bytes, mut bits, mut count) = (Vec::new(), 0, 0);
    for byte in text.bytes().filter(|byte| *byte != b'=') {
        bits = bits << 6 | value(byte);
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
            bits &= (1 << count) - 1;
        }
    }
    bytes
}
