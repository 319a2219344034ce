//! Who holds a lock, who waits for it and for how long, by redis-cli alone.

use std::{io::Write, thread, time::Duration};

use crate::support::{Client, Proxy, Reply, encode, eventually};

fn text(reply: &Reply) -> String {
    match reply {
        Reply::Bulk(bytes) => String::from_utf8(bytes.clone()).unwrap(),
        other => panic!("no text: {other:?}"),
    }
}

fn number(reply: &Reply) -> i64 {
    match reply {
        Reply::Int(number) => *number,
        other => panic!("no number: {other:?}"),
    }
}

pub(crate) fn elements(reply: Reply) -> Vec<Reply> {
    match reply {
        Reply::Array(all) | Reply::Map(all) => all,
        other => panic!("no elements: {other:?}"),
    }
}

pub(crate) fn field(map: &Reply, name: &str) -> Reply {
    let all = elements(map.clone());
    let at = all.iter().step_by(2).position(|key| text(key) == name);
    all[2 * at.unwrap_or_else(|| panic!("no {name} in {all:?}")) + 1].clone()
}

/// Returns a client that has given itself a name.
pub(crate) fn named(proxy: &Proxy, name: &str) -> Client {
    let mut client = proxy.client();
    assert_eq!(client.cmd(&["CLIENT", "SETNAME", name]), Reply::ok());
    client
}

pub(crate) fn address_of(client: &Client) -> String {
    client.socket().local_addr().unwrap().to_string()
}

fn name_of(operator: &mut Client, key: &str) -> String {
    text(&field(&operator.cmd(&["LOCKGATE", "LOCK", key]), "name"))
}

/// Makes a client wait for a lock.
fn waits(proxy: &Proxy, client: &mut Client, words: &[&str]) {
    let before = proxy.waiters();
    client.send(&encode(words));
    eventually("it waits", || proxy.waiters() > before);
}

fn keys(reply: Reply) -> Vec<String> {
    elements(reply).iter().map(|entry| text(&field(entry, "key"))).collect()
}

#[test]
fn a_lock_is_told_with_the_client_that_took_it() {
    let proxy = Proxy::with().nodes(3).start();
    let (mut holder, mut operator) = (named(&proxy, "worker-7"), proxy.client());
    holder.cmd(&["LOCK", "job", "PX", "30000"]).grant();
    let one = operator.cmd(&["LOCKGATE", "LOCK", "job"]);
    assert_eq!(field(&one, "name"), Reply::bulk("worker-7"));
    assert_eq!(text(&field(&one, "address")), address_of(&holder));
    assert_eq!(field(&one, "connected"), Reply::Int(1));
    let identity = text(&field(&one, "proxy"));
    assert!(identity.contains(&format!("127.0.0.1:{}, pid {}", proxy.port(), proxy.pid())));
    let all = elements(operator.cmd(&["LOCKGATE", "LOCKS"]));
    assert_eq!(field(&all[0], "name"), Reply::bulk("worker-7"));
    // The holder of a session lock had no name, and takes one.
    let mut other = proxy.client();
    other.cmd(&["LOCK", "session"]).grant();
    assert_eq!(name_of(&mut operator, "session"), "");
    other.cmd(&["HELLO", "3", "SETNAME", "late"]);
    assert_eq!(name_of(&mut operator, "session"), "late");
    // Another connection takes the lock over.
    let mut third = named(&proxy, "third");
    let token = holder.cmd(&["LOCK", "kept"]).grant().token;
    assert!(matches!(third.cmd(&["RENEW", "kept", &token]), Reply::Array(_) | Reply::Int(1..)));
    assert_eq!(name_of(&mut operator, "kept"), "third");
    // The client of a lease has gone.
    holder.hang_up();
    drop(holder);
    eventually("it is seen", || {
        field(&operator.cmd(&["LOCKGATE", "LOCK", "job"]), "connected") == Reply::Int(0)
    });
    assert_eq!(name_of(&mut operator, "job"), "worker-7");
}

#[test]
fn a_name_is_the_one_that_the_data_node_has_accepted() {
    let proxy = Proxy::start();
    let (mut holder, mut operator) = (proxy.client(), proxy.client());
    holder.cmd(&["LOCK", "job"]).grant();
    let mut told = || name_of(&mut operator, "job");
    holder.pipe(&[
        &["CLIENT", "SETNAME", "first"],
        &["CLIENT", "SETNAME", "a b"],
        &["PING"],
        &["CLIENT", "SETNAME", "second"],
        &["CLIENT", "SETNAME", "c d"],
    ]);
    assert_eq!(told(), "second");
    assert!(holder.cmd(&["HELLO", "9", "SETNAME", "refused"]).error().starts_with("NOPROTO"));
    assert_eq!(told(), "second");
    holder.cmd(&["HELLO", "3"]);
    assert_eq!(told(), "second", "a HELLO without a name");
    let replies = holder.pipe(&[&["MULTI"], &["CLIENT", "SETNAME", "queued"], &["DISCARD"]]);
    assert_eq!((replies[1].clone(), told()), (Reply::simple("QUEUED"), "second".to_owned()));
    // The commands come byte by byte.
    for (words, name) in [
        (&["CLIENT", "SETNAME", "in-pieces"][..], "in-pieces"),
        (&["hello", "2", "setname", "too"], "too"),
    ] {
        for byte in encode(words) {
            holder.socket().write_all(&[byte]).unwrap();
        }
        holder.reply();
        assert_eq!(told(), name);
    }
    let long = "x".repeat(100_000);
    assert_eq!(holder.cmd(&["CLIENT", "SETNAME", &long[..1000]]), Reply::ok());
    assert_eq!(told(), "x".repeat(64));
    assert_eq!(holder.cmd(&["CLIENT", "SETNAME", &long]), Reply::ok());
    assert_eq!(holder.cmd(&["CLIENT", "GETNAME"]), Reply::bulk(&long));
    assert_eq!(holder.cmd(&["CLIENT", "SETNAME", ""]), Reply::ok());
    assert_eq!(told(), "");
    holder.cmd(&["LOCK", "lease", "PX", "30000"]).grant();
    holder.cmd(&["CLIENT", "SETNAME", "before-reset"]);
    assert_eq!(holder.cmd(&["RESET"]), Reply::simple("RESET"));
    assert_eq!(name_of(&mut operator, "lease"), "");
}

#[test]
fn waiters_are_told_in_line_and_the_next_holder_by_its_own_name() {
    let proxy = Proxy::with().nodes(3).start();
    let (mut holder, mut operator) = (named(&proxy, "holder"), proxy.client());
    let token = holder.cmd(&["LOCK", "job"]).grant().token;
    let (mut first, mut second) = (named(&proxy, "first"), named(&proxy, "second"));
    waits(&proxy, &mut first, &["LOCK", "job", "first-token", "PX", "7000", "WAIT", "60000"]);
    waits(&proxy, &mut second, &["LOCK", "job", "WAIT", "60000"]);
    thread::sleep(Duration::from_millis(20));
    for version in ["2", "3"] {
        operator.cmd(&["HELLO", version]);
        let line = elements(operator.cmd(&["LOCKGATE", "WAITERS", "job"]));
        let names: Vec<String> = line.iter().map(|waiter| text(&field(waiter, "name"))).collect();
        assert_eq!(names, ["first", "second"]);
        assert_eq!(text(&field(&line[0], "address")), address_of(&first));
        let [waited, after] = [0, 1].map(|at| number(&field(&line[at], "waited-ms")));
        assert!(waited >= after && after >= 20, "{waited} {after}");
        assert_eq!(field(&line[0], "ttl-ms"), Reply::Int(7000));
        assert_eq!(field(&line[1], "ttl-ms"), Reply::Int(10_000));
        assert_eq!(matches!(line[0], Reply::Map(_)), version == "3");
    }
    assert_eq!(elements(operator.cmd(&["LOCKGATE", "WAITERS", "none"])), []);
    let one = operator.cmd(&["LOCKGATE", "LOCK", "job"]);
    assert!(number(&field(&one, "longest-wait-ms")) >= 20, "{one:?}");

    let clients = elements(operator.cmd(&["LOCKGATE", "CLIENTS"]));
    let names: Vec<String> = clients.iter().map(|client| text(&field(client, "name"))).collect();
    assert_eq!(names, ["first", "second", "holder"]);
    assert_eq!(field(&clients[0], "waits-for"), Reply::bulk("job"));
    assert_eq!(field(&clients[0], "locks"), Reply::Int(0));
    assert_eq!(field(&clients[2], "waits-for"), Reply::bulk(""));
    assert_eq!(field(&clients[2], "locks"), Reply::Int(1));
    assert_eq!(field(&clients[2], "keys"), Reply::Array(vec![Reply::bulk("job")]));
    assert_eq!(text(&field(&clients[2], "address")), address_of(&holder));

    let all = ["LOCK job", "LOCKS", "WAITERS job", "CLIENTS", "HOT"].map(|words| {
        let words: Vec<&str> = std::iter::once("LOCKGATE").chain(words.split(' ')).collect();
        format!("{:?}", operator.cmd(&words))
    });
    for secret in [token.as_str(), "first-token"] {
        let shown = format!("{:?}", secret.as_bytes());
        let inside = &shown[1..shown.len() - 1];
        assert!(all.iter().all(|answer| !answer.contains(inside) && !answer.contains(secret)));
    }

    assert_eq!(holder.cmd(&["UNLOCK", "job"]), Reply::Int(1));
    first.reply().grant();
    assert_eq!(name_of(&mut operator, "job"), "first");
    first.hang_up();
    second.reply().grant();
    assert_eq!(name_of(&mut operator, "job"), "second");
}

#[test]
fn locks_come_by_what_is_asked_for() {
    let proxy = Proxy::with().nodes(3).start();
    let (mut holder, mut operator) = (named(&proxy, "holder"), proxy.client());
    for key in ["c:old", "a:young", "b:calm"] {
        holder.cmd(&["LOCK", key]).grant();
        thread::sleep(Duration::from_millis(5));
    }
    let mut waiters: Vec<Client> = (0..3).map(|_| proxy.client()).collect();
    waits(&proxy, &mut waiters[0], &["LOCK", "c:old", "WAIT", "60000"]);
    thread::sleep(Duration::from_millis(30));
    waits(&proxy, &mut waiters[1], &["LOCK", "a:young", "WAIT", "60000"]);
    waits(&proxy, &mut waiters[2], &["LOCK", "a:young", "WAIT", "60000"]);
    let mut locks = |words: &str| {
        let words: Vec<&str> = ["LOCKGATE", "LOCKS"].into_iter().chain(words.split(' ')).collect();
        keys(operator.cmd(&words))
    };
    assert_eq!(locks("* COUNT 2").len(), 2);
    assert_eq!(locks("BY age"), ["c:old", "a:young", "b:calm"]);
    assert_eq!(locks("count 1 by AGE"), ["c:old"]);
    assert_eq!(locks("BY waiters"), ["a:young", "c:old", "b:calm"]);
    assert_eq!(locks("BY wait COUNT 2"), ["c:old", "a:young"]);
    assert_eq!(locks("[ab]* BY wait"), ["a:young", "b:calm"]);

    // Both finished waits and those under way count.
    let hot = elements(operator.cmd(&["LOCKGATE", "HOT"]));
    assert_eq!(keys(Reply::Array(hot.clone())).len(), 2);
    assert_eq!(text(&field(&hot[0], "name")), "holder");
    assert_eq!(field(&hot[0], "kind"), Reply::bulk("session"));
    assert_eq!(holder.cmd(&["UNLOCK", "c:old"]), Reply::Int(1));
    waiters[0].reply().grant();
    thread::sleep(Duration::from_millis(60));
    let hot = elements(operator.cmd(&["LOCKGATE", "HOT"]));
    assert_eq!(keys(Reply::Array(hot.clone())), ["a:young", "c:old"]);
    assert_eq!(field(&hot[0], "waiters"), Reply::Int(2));
    assert_eq!(field(&hot[0], "waits"), Reply::Int(2));
    assert_eq!(field(&hot[1], "waiters"), Reply::Int(0));
    assert_eq!(field(&hot[1], "waits"), Reply::Int(1));
    let (all, longest) = (field(&hot[1], "waited-ms"), field(&hot[1], "longest-ms"));
    assert!(number(&all) >= 30 && all == longest, "{hot:?}");
    assert!(number(&field(&hot[0], "waited-ms")) >= 2 * 60);
    assert_eq!(field(&hot[1], "excess-ms"), Reply::Int(0));
    assert_eq!(keys(operator.cmd(&["LOCKGATE", "HOT", "1"])), ["a:young"]);
    // A lock that was free when asked for was not waited for.
    holder.cmd(&["LOCK", "free", "WAIT", "1000"]).grant();
    assert_eq!(keys(operator.cmd(&["LOCKGATE", "HOT"])).len(), 2);
}

#[test]
fn a_lock_of_another_proxy_is_told_as_held_elsewhere() {
    let mut one = Proxy::with().nodes(3).start();
    let other = Proxy::beside(&one).start();
    let (mut holder, mut operator) = (named(&one, "holder"), other.client());
    let granted = holder.cmd(&["LOCK", "job", "PX", "30000"]).grant();
    let lock = operator.cmd(&["LOCKGATE", "LOCK", "job"]);
    assert_eq!(field(&lock, "kind"), Reply::bulk("elsewhere"));
    assert_eq!(field(&lock, "fence"), Reply::Int(granted.fence));
    let left = number(&field(&lock, "remaining-ms"));
    assert!((1..=30_000).contains(&left), "{left}");
    for unknown in ["held-ms", "connected"] {
        assert_eq!(field(&lock, unknown), Reply::Int(-1), "{unknown}");
    }
    for unknown in ["address", "name", "proxy"] {
        assert_eq!(field(&lock, unknown), Reply::bulk(""), "{unknown}");
    }
    assert!(!format!("{lock:?}").contains(&format!("{:?}", Reply::bulk(&granted.token))));
    assert_eq!(operator.cmd(&["LOCKGATE", "LOCK", "none"]), Reply::NullBulk);
    assert_eq!(elements(operator.cmd(&["LOCKGATE", "LOCKS", "BY", "wait"])), []);

    let mut waiter = named(&other, "waiter");
    waits(&other, &mut waiter, &["LOCK", "job", "WAIT", "60000"]);
    // The client waits, and is counted, before a lock node has answered that the lock is held.
    let mut locks = Vec::new();
    eventually("it is known that the lock is held", || {
        locks = elements(operator.cmd(&["LOCKGATE", "LOCKS", "BY", "wait"]));
        field(&locks[0], "kind") == Reply::bulk("elsewhere")
    });
    assert_eq!(field(&locks[0], "fence"), Reply::Int(-1));
    assert_eq!(field(&locks[0], "waiters"), Reply::Int(1));
    assert_eq!(elements(operator.cmd(&["LOCKGATE", "LOCKS"])), [], "as ever");
    let hot = elements(operator.cmd(&["LOCKGATE", "HOT"]));
    assert_eq!(field(&hot[0], "kind"), Reply::bulk("elsewhere"));
    assert!(
        other.http("/api/hot").contains("\"kind\":\"elsewhere\""),
        "{}",
        other.http("/api/hot")
    );
    let lock = operator.cmd(&["LOCKGATE", "LOCK", "job"]);
    assert_eq!(field(&lock, "waiters"), Reply::Int(1));

    // A command behind it is answered behind it.
    let replies = operator.pipe(&[&["LOCKGATE", "LOCK", "job"], &["ECHO", "behind"]]);
    assert_eq!(field(&replies[0], "kind"), Reply::bulk("elsewhere"));
    assert_eq!(replies[1], Reply::bulk("behind"));
    for node in 0..2 {
        one.node(node).kill().unwrap();
    }
    eventually("it is seen", || other.nodes_up() == 1);
    let silence = operator.cmd(&["LOCKGATE", "LOCK", "job"]);
    assert!(silence.error().starts_with("NOQUORUM"), "{silence:?}");
}

#[test]
fn waiting_and_holding_are_told_by_the_first_pattern_that_matches() {
    let proxy = Proxy::with().nodes(3).top("metrics: {keys: ['account:1*', 'account:*']}").start();
    let (mut holder, mut waiter) = (proxy.client(), proxy.client());
    holder.cmd(&["LOCK", "account:17"]).grant();
    waits(&proxy, &mut waiter, &["LOCK", "account:17", "WAIT", "60000"]);
    assert_eq!(holder.cmd(&["UNLOCK", "account:17"]), Reply::Int(1));
    waiter.reply().grant();
    for key in ["account:2", "job", "lock:account:3"] {
        holder.cmd(&["LOCK", key]).grant();
        assert_eq!(holder.cmd(&["UNLOCK", key]), Reply::Int(1));
    }
    let count = |metric: &str, keys: &str| {
        proxy.metric(&format!("lockgate_key_{metric}_seconds_count"), &format!("keys=\"{keys}\""))
    };
    let held = ["account:1*", "account:*", "other"].map(|keys| count("hold", keys));
    assert_eq!(held, [1.0, 1.0, 2.0]);
    let waited = ["account:1*", "account:*", "other"].map(|keys| count("queue", keys));
    assert_eq!(waited, [1.0, 0.0, 0.0]);
    assert_eq!(Proxy::start().http("/metrics").matches("lockgate_key_").count(), 0);
}
