//! The status page in a headless Chromium, with real servers.

use std::time::Duration;

use serde_json::json;

use crate::support::{Proxy, Reply, Setup, browser::Browser, encode, eventually};

const TOKEN: &str = "0123456789abcdef-secret";
/// A lock's name that a hostile client chooses.
const HOSTILE: &str = "<img src=x onerror=document.title='hacked'>";

/// Script that finds texts whose contrast to their background is below WCAG's AA (4.5 to 1).
const FAINT: &str = "(() => {
    const parse = colour => colour.match(/[0-9.]+/g).map(Number);
    const light = ([r, g, b]) => [r, g, b].map(c => c / 255)
        .map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
        .reduce((sum, c, at) => sum + c * [0.2126, 0.7152, 0.0722][at], 0);
    const behind = element => {
        const colour = parse(getComputedStyle(element).backgroundColor);
        return colour[3] === 0 ? behind(element.parentElement) : colour;
    };
    const ratio = (element, colour) => {
        const [less, more] = [light(behind(element)), light(parse(colour))].sort((a, b) => a - b);
        return (more + 0.05) / (less + 0.05);
    };
    const faint = [];
    const ask = document.getElementById('ask'), yes = document.getElementById('ask-yes');
    const other = yes.cloneNode();
    [yes.textContent, other.textContent, other.className] = ['Yes', 'Yes', 'danger'];
    ask.append(other);
    ask.show();
    for (const element of document.querySelectorAll('body *:not(script)')) {
        const has_text = [...element.childNodes].some(node => node.nodeType === 3 && node.data.trim());
        const colours = has_text || element.value ? [getComputedStyle(element).color] : [];
        if (element.placeholder) colours.push(getComputedStyle(element, '::placeholder').color);
        if (!element.checkVisibility()) continue;
        for (const colour of colours) {
            if (ratio(element, colour) < 4.5) faint.push([element.outerHTML.slice(0, 80), ratio(element, colour)]);
        }
    }
    ask.close();
    other.remove();
    return faint;
})()";

fn count(proxy: &Proxy, labels: &str) -> f64 {
    proxy.metric("lockgate_admin_actions_total", labels)
}

fn origin(proxy: &Proxy) -> String {
    format!("http://127.0.0.1:{}", proxy.admin_port())
}

/// Opens the status page, and waits until it first shows the proxy's state.
fn opened(proxy: &Proxy) -> Browser {
    let mut browser = Browser::start();
    browser.open(&format!("{}/", origin(proxy)));
    browser.shows("#state", "Ready");
    browser
}

/// Gives the page a token.
fn give(page: &mut Browser, token: &str) {
    page.tab_to("#token");
    page.type_text(token);
    page.press("Enter");
}

/// Presses a button, and then the second button of the question.
fn press_and_confirm(page: &mut Browser, button: &str, question: &str) {
    page.tab_to(button);
    page.press("Enter");
    page.shows("#ask", question);
    page.press("Tab");
    page.press("Enter");
}

/// How often the page has asked for the state of the proxy.
fn asked(page: &mut Browser) -> usize {
    page.fetched().iter().filter(|url| url.ends_with("/api/status")).count()
}

/// Checks that nothing was fetched from elsewhere, and that the console is empty.
fn is_clean(browser: &mut Browser, proxy: &Proxy) {
    let fetched = browser.fetched();
    assert!(fetched.iter().any(|url| url.ends_with("/api/status")), "{fetched:?}");
    let is_own = |url: &&String| url.starts_with(&origin(proxy)) || url.starts_with("data:");
    let foreign: Vec<_> = fetched.iter().filter(|url| !is_own(url)).collect();
    assert!(foreign.is_empty(), "{foreign:?}");
    assert_eq!(browser.console(), Vec::<serde_json::Value>::new());
}

#[test]
fn the_page_tells_a_proxy_and_turns_when_a_node_dies_and_back_when_it_returns() {
    let mut proxy = Proxy::with().nodes(3).locks("quarantine: no").start();
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
    // The keyboard unfolds the waiters, and they stay unfolded.
    assert_eq!(page.run("document.querySelector('#hot details').open"), false);
    page.tab_to("#hot summary");
    page.press("Enter");
    page.shows("#hot details", "next-in-line");
    eventually("it refreshes", || asked(&mut page) >= 4);
    assert_eq!(page.run("document.activeElement.matches('#hot summary')"), true);
    page.shows("#hot details", "next-in-line");
    // A pattern that finds nothing.
    page.tab_to("#match");
    page.type_text("nothing*");
    page.shows("#locks-none", "None.");
    page.run("document.getElementById('match').value = ''");
    page.shows("[data-of='Data node'] .good", "✓ up");

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
    assert!(proxy.client().cmd(&["LOCK", "other"]).error().starts_with("NOQUORUM"));
    page.shows("[data-of='NOQUORUM a second'] .bad", "✗ ");
    eventually("its title tells it", || page.run("document.title") == "● Lockgate: Not ready");
    page.shows("#tiles", "Locks held");
    eventually("lines are drawn", || {
        page.run("document.querySelectorAll('#tiles polyline').length").as_u64() >= Some(5)
    });
    proxy.data().kill().unwrap();
    page.shows("[data-of='Data node'] .bad", "✗ down");

    // Everything comes back, and the page shows it.
    proxy.data().restart().unwrap();
    page.shows("[data-of='Data node'] .good", "✓ up");
    for node in [1, 2] {
        proxy.node(node).restart().unwrap();
        page.shows(&format!("#nodes tbody tr:nth-child({})", node + 1), "✓ votes");
    }
    page.shows("#quorum", "3 of 3 vote");
    proxy.client().cmd(&["LOCK", "other", "PX", "60000"]).grant();
    eventually("its title tells it", || page.run("document.title") == "Lockgate: Ready");
    assert_eq!(page.text("#problems"), "");
    is_clean(&mut page, &proxy);

    // What the page last showed stays, and is marked as old.
    proxy.kill();
    page.shows("#state", "Stale");
    page.shows("#stale", "The proxy does not answer");
    page.shows("#stale", "What stands below is from");
    page.shows("#hot", HOSTILE);
}

#[test]
#[ignore = "takes long: make long"]
fn the_page_says_first_what_is_wrong_what_to_do_and_what_happened() {
    let rules = "guards:\n  - keys: 'account:*'\n    lock: 'account:{1}'";
    let mut proxy = Proxy::with().nodes(3).top(rules).locks("quarantine: no").start();
    let mut page = opened(&proxy);
    let labels = "[...document.querySelectorAll('#tiles li')].map(tile => tile.dataset.of).join()";
    page.shows("#events-none", "Nothing in the last ten minutes.");
    page.shows("#tiles", "Data node");
    // Numbers that are and were 0 have no tile.
    for label in ["NOQUORUM a second", "Locks lost", "Waiting", "Guards refused"] {
        assert!(!page.run(labels).as_str().unwrap().contains(label), "{label}");
    }
    let mut holder = proxy.client();
    holder.cmd(&["LOCK", "job", "PX", "60000"]).grant();
    assert!(holder.cmd(&["SET", "account:1", "x"]).error().starts_with("NOTHELD"));
    page.shows("[data-of='Locks held']", "1");
    page.shows("[data-of='Guards refused']", "1");
    // The event comes from a sample in which all nodes answer, so what happens next is shown beside it.
    page.shows("#events", "1 write refused by guards");

    proxy.node(1).kill().unwrap();
    let address = format!("127.0.0.1:{}", proxy.node(1).port());
    page.shows("#verdict", "Locks are granted: 2 of 3 lock nodes vote, and none more may fail.");
    page.shows("#cure", &format!("Start {address} again"));
    page.shows("#events", &format!("Lock node {address} does not answer"));
    page.shows("#events", "2 of 3 lock nodes vote");
    proxy.node(2).kill().unwrap();
    page.shows("#verdict", "No lock is granted: 1 of 3 lock nodes vote, and 2 are needed.");
    assert!(proxy.client().cmd(&["LOCK", "other"]).error().starts_with("NOQUORUM"));
    page.shows("#events", "command answered NOQUORUM");
    page.shows("#events", "✗ Not ready");
    // Bad tiles come first.
    eventually("it is ranked", || {
        page.run(labels).as_str().unwrap().starts_with("NOQUORUM a second")
    });
    // Under the pointer, each chart shows a time and a number.
    let newest = "(() => {
        const chart = document.querySelector('[data-of=\"NOQUORUM a second\"] svg');
        const {left, top, width} = chart.getBoundingClientRect();
        const at = {bubbles: true, clientX: left + width - 1, clientY: top + 5};
        chart.dispatchEvent(new PointerEvent('pointermove', at));
        return [...document.querySelectorAll('#tiles .moment')].map(moment => moment.textContent);
    })()";
    let moments = page.run(newest);
    let moments = moments.as_array().unwrap();
    assert!(moments.len() >= 4, "{moments:?}");
    for moment in moments {
        let moment = moment.as_str().unwrap();
        assert!(
            moment.contains(':') && moment.ends_with(|end: char| end.is_ascii_digit()),
            "{moment}"
        );
    }
    for node in [1, 2] {
        proxy.node(node).restart().unwrap();
    }
    page.shows("#quorum", "3 of 3 vote");
    proxy.client().cmd(&["LOCK", "other", "PX", "60000"]).grant();
    page.shows("#verdict", "✓ All is well: 3 of 3 lock nodes vote");
    assert_eq!(page.text("#cure"), "");
    page.shows("#events", "✓ Ready again");
    page.shows("#events", &format!("Lock node {address} answers"));
    is_clean(&mut page, &proxy);
}

#[test]
#[ignore = "takes long: make long"]
fn a_row_of_a_table_takes_few_lines_on_a_phone() {
    let proxy = Proxy::with().nodes(3).start();
    let mut client = proxy.client();
    client.cmd(&["CLIENT", "SETNAME", "worker-7"]);
    for number in 0..30 {
        client.cmd(&["LOCK", &format!("job:{number}"), "PX", "60000"]).grant();
    }
    let mut page = opened(&proxy);
    let size = json!({"width": 360, "height": 800, "deviceScaleFactor": 1, "mobile": true});
    page.call("Emulation.setDeviceMetricsOverride", size);
    page.shows("#locks-note", "the first 20");
    let tall = "[...document.querySelectorAll('#locks tbody tr, #nodes tbody tr')]
        .filter(row => row.offsetHeight > 6 * parseFloat(getComputedStyle(row).lineHeight))
        .map(row => row.innerText)";
    eventually("no row is tall", || page.run(tall) == json!([]));
    // It was 5,900 pixels once.
    let height = page.run("document.documentElement.scrollHeight").as_u64().unwrap();
    assert!(height < 4500, "{height}");
}

#[test]
fn the_page_tells_how_many_clients_share_connections_where_they_do() {
    let proxy = Proxy::with().top("share: yes\nio_threads: 1").start();
    let (mut one, mut another, mut pinned) = (proxy.client(), proxy.client(), proxy.client());
    for client in [&mut one, &mut another, &mut pinned] {
        assert_eq!(client.cmd(&["PING"]), Reply::simple("PONG"));
    }
    let mut page = opened(&proxy);
    page.shows("#sharing-sum", "3 clients on 1 link to the data node: no reply is owed.");
    page.shows(
        "#sharing-own",
        "0 clients have a connection of their own. Of 3 since the start 0 got one.",
    );
    pinned.cmd(&["MULTI"]);
    assert_eq!(proxy.data_client().cmd(&["CLIENT", "PAUSE", "60000", "WRITE"]), Reply::ok());
    one.send(&encode(&["SET", "k", "v"]));
    page.shows(
        "#sharing-sum",
        "2 clients on 1 link to the data node: 1 reply is owed, 1 on one link.",
    );
    let own =
        "1 client has a connection of its own. Of 3 since the start 1 got one: 1 by transaction.";
    page.shows("#sharing-own", own);
    assert_eq!(proxy.data_client().cmd(&["CLIENT", "UNPAUSE"]), Reply::ok());
    is_clean(&mut page, &proxy);
    let plain = Proxy::with().top("share: no").start();
    assert_eq!(opened(&plain).text("#sharing-part"), "");
}

#[test]
fn a_lock_is_freed_from_the_page_by_the_keyboard() {
    let proxy = Proxy::with().nodes(3).admin_token(TOKEN).start();
    let (mut holder, mut waiter) = (proxy.client(), proxy.client());
    holder.cmd(&["LOCK", "job"]).grant();
    waiter.send(&encode(&["LOCK", "job", "WAIT", "0"]));
    eventually("it waits", || proxy.waiters() == 1);

    let mut page = opened(&proxy);
    give(&mut page, TOKEN);
    page.shows("#done", "Locks can be freed");
    assert_eq!(page.run("document.getElementById('token').value"), "");
    page.shows("#hot td:last-child", "Free");
    // First without confirming: the button that cancels has the focus.
    page.tab_to("#hot button");
    page.press("Enter");
    page.shows("#ask", "Free this lock?");
    assert_eq!(page.run("document.activeElement.id"), "ask-no");
    page.press("Escape");
    eventually("it closes", || page.run("document.getElementById('ask').open") == false);
    assert_eq!(count(&proxy, "action=\"unlock\",result=\"ok\""), 0.0);

    // One that was closed a moment ago, whose event comes only now, says nothing of the next.
    page.run(
        "(button => { button.click(); document.getElementById('ask').close('no'); button.click(); })
         (document.querySelector('#hot button'))",
    );
    page.shows("#ask", "Free this lock?");
    page.press("Tab");
    page.press("Enter");
    page.shows("#done", "The lock was freed.");
    let first = waiter.reply().grant();
    assert!(holder.cmd(&["PING"]).error().starts_with("LOCKLOST"));
    holder.send(&encode(&["LOCK", "job", "PX", "60000", "WAIT", "0"]));
    eventually("it waits", || proxy.waiters() == 1);
    std::mem::swap(&mut holder, &mut waiter);
    page.run("document.getElementById('done').textContent = ''");
    // Until the page has heard of that grant, its button frees the one before.
    page.shows("#locks", &first.fence.to_string());
    page.shows("#hot td:last-child", "Free");

    page.tab_to("#hot button");
    page.press("Enter");
    // The dialog had the same words before.
    eventually("it opens", || page.run("document.activeElement.id") == "ask-no");
    page.shows("#ask", "The lock job with the fence");
    page.press("Tab");
    page.press("Enter");
    page.shows("#done", "The lock was freed.");
    let second = waiter.reply().grant();
    assert!(holder.cmd(&["PING"]).error().starts_with("LOCKLOST"));
    page.shows("#locks", &second.fence.to_string());

    page.tab_to("#nodes button");
    page.press("Enter");
    eventually("it opens", || page.run("document.activeElement.id") == "ask-no");
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

    // No element has the token.
    let in_elements = format!(
        "[...document.querySelectorAll('*')].some(element => JSON.stringify([element.outerHTML, \
         element.value, ...Object.values(element)]).includes({TOKEN:?}))"
    );
    assert_eq!(page.run(&in_elements), false);
    page.tab_to("#forget");
    page.press("Enter");
    page.shows("#done", "Forgotten.");
    eventually("no button is left", || {
        page.run("document.querySelectorAll('td button').length") == 0
    });
}

#[test]
fn a_token_that_is_wrong_or_not_taken_any_more_is_told_and_forgotten() {
    let mut proxy = Proxy::with().nodes(3).admin_token(TOKEN).start();
    proxy.client().cmd(&["LOCK", "job", "PX", "60000"]).grant();
    let mut page = opened(&proxy);
    give(&mut page, "wrong-wrong-wrong-wrong");
    page.shows("#done", "This is not the token of this proxy.");
    page.shows("#locks", "job");
    assert_eq!(page.run("document.querySelectorAll('td button').length"), 0);
    assert_eq!(page.text("#forget"), "");

    give(&mut page, TOKEN);
    page.shows("#done", "Locks can be freed");
    page.shows("#forget", "Forget it");
    page.shows("#locks button", "Free");
    // The proxy is started again with another token.
    proxy.kill();
    let file = proxy.config_file();
    let config = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, config.replace(TOKEN, "another-another-another")).unwrap();
    proxy.start_again();
    let mut holder = proxy.client();
    let lock = || matches!(holder.cmd(&["LOCK", "other", "PX", "60000"]), Reply::Array(_));
    eventually("it grants locks", lock);
    page.shows("#state", "Ready");
    page.shows("#locks", "other");
    press_and_confirm(&mut page, "#locks button", "Free this lock?");
    page.shows("#done", "does not take this token any more");
    eventually("no button is left", || {
        page.run("document.querySelectorAll('td button').length") == 0
    });
    proxy.assert_on_nodes("lock:other", 3);
}

#[test]
fn what_has_the_focus_keeps_it_while_rows_come_go_and_move() {
    let proxy = Proxy::with().nodes(3).admin_token(TOKEN).start();
    let mut client = proxy.client();
    for key in ["first", "second", "third"] {
        client.cmd(&["LOCK", key, "PX", "60000"]).grant();
    }
    let mut page = opened(&proxy);
    give(&mut page, TOKEN);
    page.shows("#locks tbody tr:nth-child(3) button", "Free");
    page.tab_to("#locks tbody tr:nth-child(2) button");
    page.run(
        "had = document.activeElement; lost = 0; had.addEventListener('blur', () => { lost += 1; })",
    );
    // A row above it goes away.
    client.cmd(&["UNLOCK", "first"]);
    page.shows("#locks tbody tr:nth-child(1)", "second");
    assert_eq!(page.run("[document.activeElement === had, lost].join()"), "true,0");
    // Its row moves behind another.
    let mut waiter = proxy.client();
    waiter.send(&encode(&["LOCK", "third", "WAIT", "0"]));
    page.run("document.getElementById('by').value = 'waiters'");
    page.shows("#locks tbody tr:nth-child(1)", "third");
    page.shows("#locks tbody tr:nth-child(2)", "second");
    assert_eq!(page.run("document.activeElement === had"), true);
    assert_eq!(page.run("had.closest('tr').cells[0].textContent"), "second");
    // Its own row goes away: the focus moves to the heading above, not to the top of the page.
    client.cmd(&["UNLOCK", "second"]);
    eventually("it is gone", || page.run("had.isConnected") == false);
    assert_eq!(page.run("document.activeElement.id"), "locks-title");
}

#[test]
#[ignore = "takes long: make long"]
fn a_line_that_is_folded_out_stays_so_while_clients_come_and_go() {
    let proxy = Proxy::with().nodes(3).start();
    let mut holder = proxy.client();
    holder.cmd(&["LOCK", "job"]).grant();
    let waits = |name: &str| {
        let (before, mut waiter) = (proxy.waiters(), proxy.client());
        waiter.cmd(&["CLIENT", "SETNAME", name]);
        waiter.send(&encode(&["LOCK", "job", "WAIT", "0"]));
        eventually("it waits", || proxy.waiters() > before);
        waiter
    };
    let first = waits("first-in-line");
    let mut page = opened(&proxy);
    page.shows("#hot", "1 in line");
    page.tab_to("#hot summary");
    page.press("Enter");
    page.shows("#hot details", "first-in-line");
    page.run("had = document.activeElement");
    let second = waits("second-in-line");
    page.shows("#hot summary", "2 in line");
    page.shows("#hot details li:nth-child(2)", "second-in-line");
    drop(first);
    page.shows("#hot summary", "1 in line");
    page.shows("#hot details li:nth-child(1)", "second-in-line");
    assert_eq!(page.run("document.querySelectorAll('#hot details li').length"), 1);
    assert_eq!(page.run("document.activeElement === had"), true);
    // No waiter is left, and then a new one comes.
    drop(second);
    eventually("nobody is told", || page.text("#hot details").is_empty());
    let _third = waits("third-in-line");
    page.shows("#hot details", "third-in-line");
}

#[test]
fn a_lock_that_another_proxy_granted_is_freed_after_a_sharper_question() {
    let other = Proxy::with().nodes(3).start();
    let proxy = Proxy::beside(&other).admin_token(TOKEN).start();
    let (mut holder, mut waiter) = (other.client(), proxy.client());
    holder.cmd(&["LOCK", "job"]).grant();
    waiter.send(&encode(&["LOCK", "job", "PX", "60000", "WAIT", "0"]));
    eventually("it waits", || proxy.waiters() == 1);
    let mut page = opened(&proxy);
    give(&mut page, TOKEN);
    page.shows("#hot", "held elsewhere");
    page.shows("#hot button", "Free whoever has it");
    press_and_confirm(&mut page, "#hot button", "knows neither who has it nor the fence");
    page.shows("#done", "The lock was freed.");
    waiter.reply().grant();
    let lost = || holder.cmd(&["PING"]).error_text().starts_with("LOCKLOST");
    eventually("its holder is told", lost);
}

#[test]
fn a_lock_of_which_a_peer_tells_the_fence_is_freed_by_it() {
    let other = Proxy::with().nodes(3).start();
    let peer = format!("http://127.0.0.1:{}", other.admin_port());
    let proxy = Proxy::beside(&other).peers(&[peer]).admin_token(TOKEN).start();
    let (mut holder, mut waiter) = (other.client(), proxy.client());
    assert_eq!(holder.cmd(&["CLIENT", "SETNAME", "worker-7"]), Reply::ok());
    let fence = holder.cmd(&["LOCK", "job"]).grant().fence;
    waiter.send(&encode(&["LOCK", "job", "PX", "60000", "WAIT", "0"]));
    eventually("it waits", || proxy.waiters() == 1);
    let mut page = opened(&proxy);
    give(&mut page, TOKEN);
    page.shows("#hot", "worker-7");
    eventually("it can be freed by its fence", || page.text("#hot button") == "Free");
    press_and_confirm(&mut page, "#hot button", &format!("with the fence {fence} is taken from"));
    page.shows("#done", "The lock was freed.");
    waiter.reply().grant();
    let lost = || holder.cmd(&["PING"]).error_text().starts_with("LOCKLOST");
    eventually("its holder is told", lost);
}

#[test]
fn a_lock_node_that_is_needed_is_paused_after_a_second_question() {
    let mut proxy = Proxy::with().nodes(3).admin_token(TOKEN).start();
    proxy.node(2).kill().unwrap();
    let mut page = opened(&proxy);
    page.shows("#nodes tbody tr:nth-child(3)", "✗ down");
    give(&mut page, TOKEN);
    page.shows("#nodes button", "Pause");
    press_and_confirm(&mut page, "#nodes button", "Pause this lock node?");
    page.shows("#ask", "Pause all the same?");
    assert_eq!(page.run("document.activeElement.id"), "ask-no");
    page.press("Enter");
    page.shows("#done", "was not paused: too few others vote");
    assert_eq!(count(&proxy, "action=\"pause\",result=\"ok\""), 0.0);
    press_and_confirm(&mut page, "#nodes button", "Pause this lock node?");
    page.shows("#ask", "Pause all the same?");
    page.press("Tab");
    page.press("Enter");
    page.shows("#nodes tbody tr:nth-child(1)", "✗ paused");
    page.shows("#state", "Not ready");
    assert_eq!(count(&proxy, "action=\"pause\",result=\"ok\""), 1.0);
}

#[test]
#[ignore = "takes long: make long"]
fn where_no_answer_came_the_page_says_that_it_may_have_been_done() {
    let proxy = Proxy::with().nodes(3).admin_token(TOKEN).start();
    let mut holder = proxy.client();
    holder.cmd(&["LOCK", "job", "PX", "60000"]).grant();
    let mut page = opened(&proxy);
    give(&mut page, TOKEN);
    page.shows("#locks button", "Free");
    page.tab_to("#locks button");
    page.press("Enter");
    page.shows("#ask", "Free this lock?");
    proxy.freeze();
    page.press("Tab");
    page.press("Enter");
    page.shows("#done", "has not answered yet");
    // Nothing else can be done meanwhile.
    let idle = "[...document.querySelectorAll('td button, #acts [type=submit]')]\
                .every(button => button.ariaDisabled === 'true')";
    assert_eq!(page.run(idle), true);
    page.run("document.querySelector('#nodes button').click()");
    assert_eq!(page.run("document.getElementById('ask').open"), false);
    page.shows("#done", "No answer came (none within 15 s): it may have been done all the same");
    assert_eq!(page.run("document.querySelector('#nodes button').ariaDisabled"), "false");
    proxy.thaw();
    page.shows("#state", "Ready");
}

#[test]
fn the_permits_of_a_family_are_one_row_that_unfolds() {
    let proxy = Proxy::with().nodes(3).admin_token(TOKEN).start();
    let (mut holder, mut waiter) = (proxy.client(), proxy.client());
    let words = ["LOCK", "gpu", "PERMITS", "4", "PX", "60000"];
    for _ in 0..3 {
        assert!(matches!(holder.cmd(&words), Reply::Array(_)));
    }
    holder.cmd(&["LOCK", "build#12", "PX", "60000"]).grant();
    let mut page = opened(&proxy);
    page.shows("#locks tbody tr:nth-child(1)", "3 of 4 held here");
    page.shows("#locks tbody tr:nth-child(2)", "build#12");
    let rows = "document.querySelectorAll('#locks tbody tr').length";
    assert_eq!(page.run(rows), 2);
    give(&mut page, TOKEN);
    page.shows("#locks tbody tr:nth-child(2) button", "Free");
    assert_eq!(page.run("document.querySelectorAll('#locks td button').length"), 1);

    // The keyboard unfolds it, and it stays unfolded.
    page.tab_to("#locks summary");
    page.press("Enter");
    eventually("each permit has a row", || page.run(rows) == 5);
    let before = asked(&mut page);
    eventually("it refreshes", || asked(&mut page) >= before + 2);
    assert_eq!(page.run("document.activeElement.matches('#locks summary')"), true);
    assert_eq!(page.run(rows), 5);
    page.shows("#locks tbody tr:nth-child(2)", "lease");
    press_and_confirm(&mut page, "#locks button", "Free this lock?");
    page.shows("#done", "The lock was freed.");
    page.shows("#locks", "2 of 4 held here");
    eventually("it has no row", || page.run(rows) == 4);
    page.tab_to("#locks summary");
    page.press("Enter");
    eventually("it is folded", || page.run(rows) == 2);

    // Who waits for all of them.
    for _ in 0..2 {
        assert!(matches!(holder.cmd(&words), Reply::Array(_)));
    }
    waiter.send(&encode(&["LOCK", "gpu", "PERMITS", "4", "WAIT", "0"]));
    eventually("it waits", || proxy.waiters() == 1);
    page.shows("#hot", "4 of 4 held here");
    page.shows("#locks", "1, longest");
    page.run("(by => { by.value = 'waiters'; by.dispatchEvent(new Event('change')); })(document.getElementById('by'))");
    eventually("a line is no row", || asked(&mut page) >= before + 4 && page.run(rows) == 2);
    page.shows("#locks tbody tr:nth-child(1)", "4 of 4 held here");
    // A pattern that leaves out the family.
    page.tab_to("#match");
    page.type_text("gpu#[0-9]");
    eventually("each permit is a lock", || page.run(rows) == 4);
    is_clean(&mut page, &proxy);
}

#[test]
fn no_two_names_look_alike() {
    let proxy = Proxy::with().nodes(3).admin_token(TOKEN).start();
    let names: [(&[u8], &str); 17] = [
        (b"job", "job"),
        (b" job", "\\u{20}job"),
        (b"job ", "job\\u{20}"),
        (b"job 1", "job 1"),
        (b"job  1", "job\\u{20} 1"),
        ("job\u{a0}1".as_bytes(), "job\\u{a0}1"),
        ("job\u{202e}1:bp\u{2066}".as_bytes(), "job\\u{202e}1:bp\\u{2066}"),
        ("j\u{200b}ob".as_bytes(), "j\\u{200b}ob"),
        ("jo\u{301}b".as_bytes(), "jo\\u{301}b"),
        ("job\u{3164}".as_bytes(), "job\\u{3164}"),
        (b"job\\u{200b}", "job\\\\u{200b}"),
        (b"job\t\r\n\x1b\x7f", "job\\t\\r\\n\\u{1b}\\u{7f}"),
        (b"job\xff", "job\\xff"),
        (b"job\xc3\xa4\xf0\x9f", "jobä\\xf0\\x9f"),
        (b"job\\xff", "job\\\\xff"),
        ("job\u{fffd}".as_bytes(), "job\u{fffd}"),
        ("作業 \u{1f512}".as_bytes(), "作業 \u{1f512}"),
    ];
    let mut client = proxy.client();
    for (key, _) in names {
        let mut command = format!("*4\r\n$4\r\nLOCK\r\n${}\r\n", key.len()).into_bytes();
        command.extend_from_slice(key);
        command.extend_from_slice(b"\r\n$2\r\nPX\r\n$5\r\n60000\r\n");
        client.send(&command);
        client.reply().grant();
    }
    // Two long names differ at their ends.
    for end in ["1", "2"] {
        client.cmd(&["LOCK", &format!("{}{end}", "long".repeat(100)), "PX", "60000"]).grant();
    }
    let mut page = opened(&proxy);
    let count = names.len() + 2;
    page.shows(&format!("#locks tbody tr:nth-child({count})"), "lease");
    let shown = page
        .run("[...document.querySelectorAll('#locks td:first-child')].map(cell => cell.innerText)");
    let shown: Vec<&str> =
        shown.as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
    let mut expected: Vec<_> = names.iter().map(|(_, shown)| (*shown).to_owned()).collect();
    let long =
        |end| format!("{} … {}{end} (401 characters)", "long".repeat(25), &"long".repeat(10)[1..]);
    expected.extend(["1", "2"].map(long));
    assert_eq!(shown, expected);
    // The dialog shows the same name, in full.
    give(&mut page, TOKEN);
    for (row, shown) in [(7, names[6].1.to_owned()), (count, "long".repeat(100) + "2")] {
        page.shows(&format!("#locks tbody tr:nth-child({row}) button"), "Free");
        page.run(&format!(
            "document.querySelector('#locks tbody tr:nth-child({row}) button').click()"
        ));
        page.shows("#ask", &format!("The lock {shown} with the fence"));
        assert_eq!(
            page.run("getComputedStyle(document.querySelector('#ask bdi')).unicodeBidi"),
            "isolate"
        );
        page.press("Escape");
        eventually("it closes", || page.run("document.getElementById('ask').open") == false);
    }
    is_clean(&mut page, &proxy);
}

#[test]
#[ignore = "takes long: make long"]
fn a_pattern_that_cannot_be_used_is_told_and_is_no_news_of_the_locks() {
    let proxy = Proxy::start();
    proxy.client().cmd(&["LOCK", "job", "PX", "60000"]).grant();
    let mut page = opened(&proxy);
    page.shows("#locks", "job");
    page.tab_to("#match");
    // 400 bytes.
    page.type_text(&"ö".repeat(200));
    page.shows("#locks-note", "a pattern has at most 256 bytes");
    assert_eq!((page.text("#locks-none"), page.text("#locks")), (String::new(), String::new()));
    assert_eq!(page.run("document.getElementById('match').ariaInvalid"), "true");
    page.run("document.getElementById('match').value = 'job'");
    page.shows("#locks", "job");
    assert_eq!(page.text("#locks-note"), "");
    assert_eq!(page.run("document.getElementById('match').ariaInvalid"), "false");
}

#[test]
#[ignore = "takes long: make long"]
fn a_token_over_plain_http_from_another_machine_is_warned_of() {
    let proxy = Proxy::with().admin_token(TOKEN).start();
    let mut page = opened(&proxy);
    page.shows("#token-note", "Kept by this page alone");
    assert_eq!(page.text("#plain-http"), "");
    drop(page);
    // This address leads to this machine too, which the browser does not know.
    let rule = "--host-resolver-rules=MAP 192.0.2.7 127.0.0.1";
    let mut page = Browser::start_with(&[rule]);
    page.open(&format!("http://192.0.2.7:{}/", proxy.admin_port()));
    page.shows("#plain-http", "⚠ This page came over plain HTTP");
    assert_eq!(page.run("document.getElementById('token').autocomplete"), "new-password");
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
    page.shows("#adopt-sum", "1 command seen");
    page.shows("#seen", "SET NX with a TTL");
    page.shows("#hot", "longlong");

    let mut colours = Vec::new();
    for scheme in ["light", "dark"] {
        // Without motion, no colour is changing to another.
        let features = json!([
            {"name": "prefers-color-scheme", "value": scheme},
            {"name": "prefers-reduced-motion", "value": "reduce"},
        ]);
        page.call("Emulation.setEmulatedMedia", json!({ "features": features }));
        colours.push(page.run("getComputedStyle(document.body).backgroundColor"));
        assert_eq!(page.run(FAINT), json!([]), "{scheme}");
    }
    assert_ne!(colours[0], colours[1]);
    for width in [320, 360, 800, 1400] {
        let size =
            json!({"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500});
        page.call("Emulation.setDeviceMetricsOverride", size);
        let wide = "document.documentElement.scrollWidth";
        eventually("nothing goes beyond the edge", || page.run(wide).as_u64() <= Some(width));
        let scrolled = "[...document.querySelectorAll('section')]
            .filter(part => part.scrollWidth > part.clientWidth).map(part => part.innerText)";
        assert_eq!(page.run(scrolled), json!([]), "{width}");
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

    // Scripts can fetch nothing from elsewhere, and no other page can frame this one.
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

/// Makes docs/images/status-page.png again: `make picture`.
#[test]
#[ignore = "takes eleven minutes, and writes a file of the repository"]
fn the_picture_of_the_page() {
    let rules = "guards:\n  - keys: 'account:*'\n    lock: 'account:{1}'";
    let set_up = |setup: Setup, name| setup.top(rules).locks("max_wait: 10m").hostname(name);
    let mut first = set_up(Proxy::with().nodes(5), "proxy-2").start();
    let mut gone = Proxy::beside(&first).top(rules).hostname("proxy-3").start();
    let peers = [origin(&first), origin(&gone)];
    let proxy = Proxy::beside(&first).top(rules).hostname("proxy-1").peers(&peers).start();
    let named = |name: &str| {
        let mut client = proxy.client();
        client.cmd(&["CLIENT", "SETNAME", name]);
        client
    };
    let (mut worker, mut import, mut busy) =
        (named("worker-7"), named("nightly-import"), named("batch"));
    eventually("it grants locks", || {
        matches!(import.cmd(&["LOCK", "import:customers", "PX", "60000"]), Reply::Array(_))
    });
    import.cmd(&["LOCK", "account:42"]).grant();
    let mut waiters: Vec<_> = (1..4).map(|number| named(&format!("worker-{number}"))).collect();
    // As long as the page's history, and a little longer.
    for round in 0..660_u32 {
        for key in 0..20 + 15 * (round / 10 % 3) {
            let key = format!("job:{key}");
            busy.cmd(&["LOCK", &key, "PX", "60000"]);
            busy.cmd(&["UNLOCK", &key]);
        }
        if round % 40 < 12 {
            busy.cmd(&["LOCK", "import:customers", "PX", "60000"]);
        }
        if round % 20 == 0 {
            import.cmd(&["RENEW", "import:customers", "PX", "60000"]);
        }
        match round {
            // Two clients stand in line for a while, one behind the other.
            200 | 400 => {
                worker.cmd(&["LOCK", "report:daily"]).grant();
                for (number, waiter) in waiters[..2].iter_mut().enumerate() {
                    waiter.send(&encode(&["LOCK", "report:daily", "WAIT", "0"]));
                    eventually("it is in line", || proxy.waiters() > number);
                }
            }
            230 | 450 => {
                worker.cmd(&["UNLOCK", "report:daily"]);
                for waiter in &mut waiters[..2] {
                    waiter.reply().grant();
                    waiter.cmd(&["UNLOCK", "report:daily"]);
                }
            }
            310 => {
                for _ in 0..7 {
                    assert!(worker.cmd(&["SET", "account:42", "1"]).error().starts_with("NOTHELD"));
                }
            }
            540 => first.node(3).kill().unwrap(),
            570 => drop(proxy.http("/api/proxies")),
            580 => gone.kill(),
            // It has not answered since then.
            585 => drop(proxy.http("/api/proxies")),
            620 => {
                worker.cmd(&["LOCK", "invoice:2026-11"]).grant();
                for (number, waiter) in waiters.iter_mut().enumerate() {
                    let key = if number < 2 { "invoice:2026-11" } else { "import:customers" };
                    waiter.send(&encode(&["LOCK", key, "WAIT", "0"]));
                }
            }
            _ => {}
        }
        std::thread::sleep(Duration::from_secs(1));
    }
    let mut page = Browser::start();
    page.open(&format!("{}/", origin(&proxy)));
    page.call("Emulation.setScrollbarsHidden", json!({"hidden": true}));
    page.shows("#nodes", "✗ down");
    page.shows("#hot", "2 in line");
    page.shows("#proxies", "✗ does not answer");
    // Waits, for a minute at most, until nothing else that runs on this machine is visible.
    let is_calm = "[...document.querySelectorAll('#nodes td:nth-child(4)')]
        .every(cell => /^([0-9]+ µs|–)$/.test(cell.textContent))";
    for _ in 0..60 {
        if page.run(is_calm) == true {
            break;
        }
        std::thread::sleep(Duration::from_secs(1));
    }
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/images/status-page.png");
    std::fs::write(file, shot(&mut page)).unwrap();
}

/// Takes a picture of the page above the list of all locks, for screens with two pixels per CSS pixel.
fn shot(page: &mut Browser) -> Vec<u8> {
    let width = 1180;
    let size = json!({"width": width, "height": 1000, "deviceScaleFactor": 2, "mobile": false});
    page.call("Emulation.setDeviceMetricsOverride", size);
    let end = "document.getElementById('locks-title').parentElement.getBoundingClientRect().top + scrollY";
    let height = page.run(end);
    let clip = json!({"x": 0, "y": 0, "width": width, "height": height, "scale": 1});
    let params = json!({"format": "png", "captureBeyondViewport": true, "clip": clip});
    bytes_of(page.call("Page.captureScreenshot", params)["data"].as_str().unwrap())
}

/// Decodes base64.
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
