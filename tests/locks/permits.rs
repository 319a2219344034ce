//! What LOCK with PERMITS promises, with real nodes: a permit is the first free of n ordinary locks.

use std::{
    sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use crate::support::{
    Client, Granted, LIMIT, Proxy, Reply, Setup, encode, eventually, rounds, shape,
};

/// The time by which anything immediate has happened, however busy the machine.
const SOON: Duration = Duration::from_secs(5);

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// The reply to a granted LOCK with PERMITS.
#[derive(Debug)]
struct Permit {
    token: String,
    fence: i64,
    validity: i64,
    /// The lock that it got.
    name: String,
}

impl Permit {
    fn of(reply: &Reply) -> Permit {
        let Reply::Array(parts) = reply else { panic!("not granted: {reply:?}") };
        let [grant @ .., Reply::Bulk(name)] = &parts[..] else { panic!("no name: {reply:?}") };
        let Granted { token, fence, validity } = Reply::Array(grant.to_vec()).grant();
        Permit { token, fence, validity, name: String::from_utf8(name.clone()).unwrap() }
    }

    /// Returns which of the family's locks it is.
    fn at(&self) -> usize {
        self.name.rsplit_once('#').unwrap().1.parse().unwrap()
    }
}

/// Returns the names of the first permits of the family `gpu`.
fn names(n: usize) -> Vec<String> {
    (0..n).map(|at| format!("gpu#{at}")).collect()
}

/// Takes this many permits of `gpu`, and returns them in the order of their names.
fn take_all(client: &mut Client, n: usize) -> Vec<Permit> {
    let number = n.to_string();
    let words = ["LOCK", "gpu", "PERMITS", &number, "PX", "60000"];
    let mut all: Vec<Permit> = (0..n).map(|_| Permit::of(&client.cmd(&words))).collect();
    all.sort_by_key(Permit::at);
    assert_eq!(all.iter().map(|permit| permit.name.clone()).collect::<Vec<_>>(), names(n));
    assert_eq!(client.cmd(&words), Reply::NullArray, "there are no more");
    all
}

fn unlock(client: &mut Client, permit: &Permit) {
    assert_eq!(client.cmd(&["UNLOCK", &permit.name, &permit.token]), Reply::Int(1), "{permit:?}");
}

/// Returns the token of a granted LOCK, with PERMITS or without.
fn token(reply: &Reply) -> String {
    match reply {
        Reply::Array(parts) if parts.len() == 4 => Permit::of(reply).token,
        _ => reply.grant().token,
    }
}

/// Returns a client whose LOCK stands in line.
fn in_line(proxy: &Proxy, words: &[&str]) -> Client {
    let before = proxy.waiters();
    let mut client = proxy.client();
    client.send(&encode(words));
    eventually("it stands in line", || proxy.waiters() == before + 1);
    client
}

/// Checks that no lock node has any of these permits of `gpu`, within a moment, or gets one later.
fn assert_free(proxy: &Proxy, n: usize) {
    for name in names(n) {
        proxy.assert_on_nodes(&format!("lock:{name}"), 0);
    }
    thread::sleep(ms(20));
    assert!(names(n).iter().all(|name| proxy.nodes_with(&format!("lock:{name}")) == 0));
}

/// Returns what a lock node stores of the lock's fence and claim.
fn stored(proxy: &Proxy, node: usize, key: &str) -> String {
    let stored = proxy.node_client(node).cmd(&["GET", &format!("lockgate:fence:lock:{key}")]);
    let Reply::Bulk(stored) = stored else { panic!("nothing stored of {key}: {stored:?}") };
    String::from_utf8(stored).unwrap()
}

/// Sets up nodes that are given much time, whether the test stops them or the machine is slow.
fn patient() -> Setup {
    Proxy::with().nodes(3).locks("node_timeout: 5s").locks("node_silence: 20s")
}

fn client_of(n: usize, one: &Proxy, other: &Proxy) -> Client {
    if n.is_multiple_of(2) { one.client() } else { other.client() }
}

#[test]
fn a_permit_is_an_ordinary_lock() {
    for nodes in [1, 3, 5] {
        let proxy = Proxy::with().nodes(nodes).start();
        let other = Proxy::beside(&proxy).start();
        let (mut a, mut b, mut c) = (proxy.client(), proxy.client(), other.client());
        let one = a.cmd(&["LOCK", "one", "PX", "60000"]).grant();
        let all = take_all(&mut a, 3);
        for permit in &all {
            assert!(permit.token.len() >= 22, "{permit:?}");
            assert!((58_000..=59_398).contains(&permit.validity), "{permit:?}");
            proxy.assert_value_on_nodes(&format!("lock:{}", permit.name), &permit.token);
            let (stored, of_lock) = (stored(&proxy, 0, &permit.name), stored(&proxy, 0, "one"));
            assert_eq!(stored.split_once(' ').unwrap().0, permit.fence.to_string());
            assert_eq!(shape(&stored), shape(&of_lock), "as LOCK's");
            assert!(permit.fence.abs_diff(one.fence) < 1_000_000_000, "microseconds, as LOCK's");
            let left = proxy.node_client(0).cmd(&["PTTL", &format!("lock:{}", permit.name)]);
            assert!(matches!(left, Reply::Int(58_000..=60_000)), "{left:?}");
        }
        // Each goes by its name, on any connection and through any proxy.
        let [zero, first, second] = &all[..] else { panic!("three") };
        for client in [&mut a, &mut b, &mut c] {
            let renewed = client.cmd(&["RENEW", &zero.name, &zero.token, "PX", "50000"]);
            assert!(matches!(renewed, Reply::Int(48_000..)), "{renewed:?}");
            let attached = client.cmd(&["LOCK.ATTACH", &first.name, &first.token]);
            assert_eq!(attached.grant().fence, first.fence);
            let shown = format!("{:?}", client.cmd(&["LOCKGATE", "LOCK", &second.name]));
            assert!(shown.contains(&second.fence.to_string()), "{shown}");
        }
        assert!(matches!(a.cmd(&["RENEW", &second.name]), Reply::Int(1..)));
        assert_eq!(a.cmd(&["UNLOCK", &zero.name]), Reply::Int(1), "without a token");
        unlock(&mut c, first);
        assert_eq!(b.cmd(&["LOCKGATE", "UNLOCK", &second.name, "ANY"]), Reply::Int(1));
        assert_free(&proxy, 3);
        let again = take_all(&mut c, 3);
        for (before, after) in all.iter().zip(&again) {
            assert!(after.fence > before.fence, "{after:?} after {before:?}");
        }
        assert_eq!(proxy.metric("lockgate_grants_total", "lease"), 4.0);
        // One of one, and one of the most there may be.
        assert_eq!(Permit::of(&b.cmd(&["LOCK", "solo", "PERMITS", "1", "PX", "9"])).name, "solo#0");
        Permit::of(&b.cmd(&["lock", "many", "permits", "256", "ex", "9"]));
    }
}

#[test]
fn a_lock_of_the_same_name_excludes_and_is_excluded() {
    let proxy = Proxy::with().nodes(3).start();
    let other = Proxy::beside(&proxy).start();
    for (n, mut holder) in [proxy.client(), other.client()].into_iter().enumerate() {
        let (mut client, mut third) = (client_of(n, &proxy, &other), other.client());
        // By its name, as a lease or a session lock, or past the proxies.
        let by_name = holder.cmd(&["LOCK", "gpu#1", "PX", "60000"]).grant();
        holder.cmd(&["LOCK", "gpu#2"]).grant();
        for node in 0..3 {
            let set = ["SET", "lock:gpu#3", "foreign", "NX", "PX", "60000"];
            assert_eq!(proxy.node_client(node).cmd(&set), Reply::ok());
        }
        let lock = ["LOCK", "gpu", "PERMITS", "4", "PX", "60000"];
        let permit = Permit::of(&client.cmd(&lock));
        assert_eq!(permit.name, "gpu#0");
        for client in [&mut client, &mut third] {
            assert_eq!(client.cmd(&lock), Reply::NullArray);
            assert_eq!(client.cmd(&[&lock[..], &["WAIT", "20"]].concat()), Reply::NullArray);
            assert_eq!(client.cmd(&["LOCK", "gpu#0", "PX", "60000"]), Reply::NullArray);
            assert_eq!(client.cmd(&["UNLOCK", "gpu#1", "another"]), Reply::Int(0));
        }
        proxy.assert_value_on_nodes("lock:gpu#1", &by_name.token);
        proxy.assert_value_on_nodes("lock:gpu#3", "foreign");
        let foreign = ["SET", "lock:gpu#0", "foreign", "NX", "PX", "60000"];
        assert!((0..3).all(|node| proxy.node_client(node).cmd(&foreign) == Reply::NullBulk));
        for node in 0..3 {
            assert_eq!(proxy.node_client(node).cmd(&["DEL", "lock:gpu#3"]), Reply::Int(1));
        }
        let next = Permit::of(&third.cmd(&lock));
        assert_eq!(next.name, "gpu#3");
        unlock(&mut third, &next);
        unlock(&mut client, &permit);
        assert_eq!(holder.cmd(&["UNLOCK", "gpu#1", &by_name.token]), Reply::Int(1));
        assert_eq!(holder.cmd(&["UNLOCK", "gpu#2"]), Reply::Int(1));
        assert_free(&proxy, 4);
    }
}

/// How many clients hold a permit of a family.
#[derive(Default)]
struct Holders {
    each: [AtomicBool; 4],
    last: [AtomicI64; 4],
    all: AtomicUsize,
    most: AtomicUsize,
}

impl Holders {
    fn enter(&self, permit: &Permit, n: usize) {
        let at = permit.at();
        assert!(at < n, "one of {n}: {permit:?}");
        assert!(!self.each[at].swap(true, Ordering::SeqCst), "two hold {at}");
        let before = self.last[at].swap(permit.fence, Ordering::SeqCst);
        assert!(permit.fence > before, "{permit:?} after {before}");
        let all = self.all.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(all, Ordering::SeqCst);
    }

    fn leave(&self, permit: &Permit) {
        self.all.fetch_sub(1, Ordering::SeqCst);
        self.each[permit.at()].store(false, Ordering::SeqCst);
    }
}

/// Makes forty clients of two proxies take permits, each one of `n(client)`. Returns the most that held one at once.
fn forty_clients(n: impl Fn(usize) -> usize + Sync) -> usize {
    let proxy = Proxy::with().nodes(3).start();
    let other = Proxy::beside(&proxy).start();
    let (holders, rounds, begun) = (Holders::default(), rounds(15), Instant::now());
    let (holders, n, proxies) = (&holders, &n, (&proxy, &other));
    let one = |which: usize| {
        let mut client = client_of(which, proxies.0, proxies.1);
        let (of, mut slowest) = (n(which), Duration::ZERO);
        for round in 0..rounds {
            let number = of.to_string();
            let mut words = vec!["LOCK", "gpu", "PERMITS", &number, "WAIT", "60000"];
            if !which.is_multiple_of(3) {
                words.extend(["PX", "60000"]);
            }
            let asked = Instant::now();
            let permit = Permit::of(&client.cmd(&words));
            slowest = slowest.max(asked.elapsed());
            holders.enter(&permit, of);
            thread::sleep(ms(1));
            holders.leave(&permit);
            // Some let their connection end instead.
            if which.is_multiple_of(3) && round % 5 == 4 {
                client.hang_up();
                client = client_of(which, proxies.0, proxies.1);
            } else {
                unlock(&mut client, &permit);
            }
        }
        slowest
    };
    let slowest = thread::scope(|scope| {
        let threads: Vec<_> = (0..40).map(|which| scope.spawn(move || one(which))).collect();
        threads.into_iter().map(|thread| thread.join().expect("client")).max().unwrap()
    });
    println!("{} permits in {:?}, slowest {slowest:?}", 40 * rounds, begun.elapsed());
    assert!(begun.elapsed() < 2 * LIMIT, "{:?}", begun.elapsed());
    assert_free(&proxy, 4);
    assert_eq!((proxy.waiters(), other.waiters()), (0, 0));
    holders.most.load(Ordering::SeqCst)
}

#[test]
fn never_more_than_n_of_forty_clients_hold_one() {
    let most = forty_clients(|_| 4);
    assert!((2..=4).contains(&most), "{most} at once");
}

#[test]
fn clients_that_know_of_fewer_permits_take_those() {
    let most = forty_clients(|which| [4, 2, 3, 1][which / 2 % 4]);
    assert!((2..=4).contains(&most), "{most} at once");
}

#[test]
fn who_waits_by_name_and_who_waits_for_any_are_served_as_they_came() {
    let proxy = Proxy::with().nodes(3).start();
    let any = ["LOCK", "gpu", "PERMITS", "2", "PX", "60000", "WAIT", "0"];
    let by_name = ["LOCK", "gpu#1", "PX", "60000", "WAIT", "0"];
    // Whether each client waits by name, in the order in which they come.
    for line in [[false, true, true, false, true, false], [true, false, false, true, false, true]] {
        let mut holder = proxy.client();
        let [zero, one] = &take_all(&mut holder, 2)[..] else { panic!("two") };
        let mut waiting: Vec<Client> =
            line.map(|is_by_name| in_line(&proxy, if is_by_name { &by_name } else { &any })).into();
        let handed = || proxy.metric("lockgate_wakeups_total", "handover");
        let before = handed();
        // Only gpu#1 is released again and again, and each time it goes to whoever came first.
        let mut last = one.token.clone();
        for (n, client) in waiting.iter_mut().enumerate() {
            assert_eq!(holder.cmd(&["UNLOCK", "gpu#1", &last]), Reply::Int(1));
            last = token(&client.reply());
            assert_eq!(proxy.waiters(), line.len() - 1 - n);
        }
        assert_eq!(holder.cmd(&["UNLOCK", "gpu#1", &last]), Reply::Int(1));
        unlock(&mut holder, zero);
        let after = handed();
        assert_eq!(after - before, 6.0, "each in one round trip");
        assert_free(&proxy, 2);
    }
    let handed = proxy.metric("lockgate_wakeups_total", "handover");
    assert!((handed - proxy.metric("lockgate_handovers_total", "")).abs() < 0.5);
    assert!(proxy.metric("lockgate_queue_seconds_count", "") >= 12.0);
}

#[test]
fn a_line_of_a_family_is_served_in_order() {
    let proxy = Proxy::with().nodes(3).locks("max_waiters: 60").start();
    let mut holder = proxy.client();
    let mut held = take_all(&mut holder, 4);
    let lock = |n: usize| {
        let token = format!("t{n}");
        in_line(&proxy, &["LOCK", "gpu", &token, "PERMITS", "4", "PX", "60000", "WAIT", "0"])
    };
    let mut line: Vec<Client> = (0..60).map(lock).collect();
    let full = proxy.client().cmd(&["LOCK", "gpu", "PERMITS", "2", "WAIT", "0"]);
    assert_eq!(full.error(), "QUEUEFULL 60 clients wait for this lock already");
    for (n, client) in line.iter_mut().enumerate() {
        let released = held.remove(n * 7 % 4);
        assert_eq!(holder.cmd(&["UNLOCK", &released.name, &released.token]), Reply::Int(1));
        let permit = Permit::of(&client.reply());
        assert_eq!((&*permit.token, &permit.name), (&*format!("t{n}"), &released.name));
        assert!(permit.fence > released.fence, "{permit:?} after {released:?}");
        assert!((58_000..=59_398).contains(&permit.validity), "{permit:?}");
        assert_eq!(proxy.waiters(), 59 - n);
        held.push(permit);
    }
    assert!(proxy.metric("lockgate_handovers_total", "") > 50.0);
    held.iter().for_each(|permit| unlock(&mut holder, permit));
    assert_free(&proxy, 4);
}

#[test]
fn permits_released_at_once_reach_as_many_waiters() {
    let proxy = Proxy::with().nodes(3).start();
    let other = Proxy::beside(&proxy).start();
    let lock = ["LOCK", "gpu", "PERMITS", "3", "PX", "60000", "WAIT", "0"];
    for through in [&proxy, &other] {
        for _ in 0..5 {
            let mut holder = proxy.client();
            let held = take_all(&mut holder, 3);
            let mut waiting: Vec<Client> = (0..3).map(|_| in_line(through, &lock)).collect();
            let begun = Instant::now();
            let all: Vec<u8> = held
                .iter()
                .flat_map(|permit| encode(&["UNLOCK", &permit.name, &permit.token]))
                .collect();
            holder.send(&all);
            let mut got: Vec<Permit> =
                waiting.iter_mut().map(|client| Permit::of(&client.reply())).collect();
            assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
            assert!(held.iter().all(|_| holder.reply() == Reply::Int(1)));
            got.sort_by_key(Permit::at);
            assert_eq!(got.iter().map(Permit::at).collect::<Vec<_>>(), [0, 1, 2]);
            got.iter().for_each(|permit| unlock(&mut holder, permit));
            assert_free(&proxy, 3);
        }
    }
}

/// Whether all nodes will tell this proxy or another of a release of each of the first permits of `gpu`.
fn are_subscribed(proxy: &Proxy, n: usize) -> bool {
    (0..3).all(|node| {
        let mut node = proxy.node_client(node);
        names(n).iter().all(|name| {
            let numsub = node.cmd(&["PUBSUB", "NUMSUB", &format!("lockgate:free:lock:{name}")]);
            matches!(numsub, Reply::Array(all) if all[1] != Reply::Int(0))
        })
    })
}

#[test]
fn whatever_frees_a_permit_wakes_who_waits_for_any() {
    let proxy = Proxy::with().nodes(3).start();
    let other = Proxy::beside(&proxy).start();
    let (any, rounds) = (["LOCK", "gpu", "PERMITS", "3", "PX", "60000", "WAIT", "0"], 6);
    let ways = ["unlock", "hang up", "reset", "expiry", "operator"];
    for (round, way) in (0..rounds).flat_map(|round| ways.map(|way| (round, way))) {
        let mut operator = other.client();
        // One permit will be freed, in different ways and places, and the others are held for long.
        let at = round % 3;
        let mut holder = client_of(round, &proxy, &other);
        let name = format!("gpu#{at}");
        let one = match way {
            "hang up" | "reset" => holder.cmd(&["LOCK", &name]).grant(),
            "expiry" => holder.cmd(&["LOCK", &name, "PX", "700"]).grant(),
            _ => holder.cmd(&["LOCK", &name, "PX", "60000"]).grant(),
        };
        let two = ["LOCK", "gpu", "PERMITS", "3", "PX", "60000"];
        let two = [0; 2].map(|_| Permit::of(&operator.cmd(&two)));
        let mut waiter = in_line(&proxy, &any);
        if way != "expiry" {
            eventually("all will tell", || are_subscribed(&proxy, 3));
        }
        let begun = Instant::now();
        match way {
            "unlock" => assert_eq!(holder.cmd(&["UNLOCK", &name, &one.token]), Reply::Int(1)),
            "hang up" => holder.hang_up(),
            "reset" => holder.reset(),
            "operator" => {
                assert_eq!(operator.cmd(&["LOCKGATE", "UNLOCK", &name, "ANY"]), Reply::Int(1));
            }
            _ => {}
        }
        let permit = Permit::of(&waiter.reply());
        assert!(begun.elapsed() < SOON, "{way} {:?}", begun.elapsed());
        assert_eq!(permit.name, name, "{way}");
        assert!(permit.fence > one.fence);
        two.iter().chain([&permit]).for_each(|permit| unlock(&mut operator, permit));
        assert_free(&proxy, 3);
    }
    // A waiter also looks for itself, and may have been about to.
    let woken = |cause| proxy.metric("lockgate_wakeups_total", cause);
    let causes = ["handover", "release", "message", "expiry", "retry"];
    println!("{:?}", causes.map(|cause| (cause, woken(cause))));
    assert!(woken("message") >= 6.0, "{} of 12 and more", woken("message"));
    assert!(woken("expiry") >= 3.0, "{} of 6", woken("expiry"));
    assert!(woken("handover") >= 6.0, "{} of 9", woken("handover"));
}

#[test]
fn a_release_of_which_no_message_comes_is_found() {
    let proxy = Proxy::with().nodes(3).start();
    let mut holder = proxy.client();
    take_all(&mut holder, 3);
    let any = ["LOCK", "gpu", "PERMITS", "3", "PX", "60000", "WAIT", "0"];
    let mut waiting = [in_line(&proxy, &any), in_line(&proxy, &any)];
    thread::sleep(ms(300));
    for node in 0..3 {
        let gone = proxy.node_client(node).cmd(&["DEL", "lock:gpu#1", "lock:gpu#2"]);
        assert_eq!(gone, Reply::Int(2));
    }
    let got: Vec<Permit> = waiting.iter_mut().map(|client| Permit::of(&client.reply())).collect();
    assert_eq!(got.iter().map(Permit::at).sum::<usize>(), 3, "{got:?}");
}

#[test]
fn who_waits_behind_a_client_of_fewer_permits_wakes_by_itself() {
    let proxy = Proxy::with().nodes(3).start();
    let other = Proxy::beside(&proxy).start();
    let mut holder = other.client();
    for (at, ttl) in ["60000", "60000", "3000", "60000"].into_iter().enumerate() {
        holder.cmd(&["LOCK", &format!("gpu#{at}"), "PX", ttl]).grant();
    }
    let lock = |n| ["LOCK", "gpu", "PERMITS", n, "PX", "60000", "WAIT", "20000"];
    let mut first = in_line(&proxy, &lock("4"));
    let _second = in_line(&proxy, &lock("2"));
    let mut third = in_line(&proxy, &lock("4"));
    eventually("all will tell", || are_subscribed(&proxy, 4));
    thread::sleep(ms(300));
    // The second is now the first in line, and does not want the permit that runs out.
    first.hang_up();
    eventually("it has left", || proxy.waiters() == 2);
    let begun = Instant::now();
    assert_eq!(Permit::of(&third.reply()).name, "gpu#2");
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
}

#[test]
fn who_leaves_the_line_leaves_nothing() {
    let mut proxy = Proxy::with().nodes(3).start();
    let any = ["LOCK", "gpu", "PERMITS", "2", "PX", "60000", "WAIT", "60000"];
    for way in ["time is over", "hang up", "reset", "end of the proxy"] {
        let mut holder = proxy.client();
        let held = take_all(&mut holder, 2);
        let head = match way {
            "time is over" => ["LOCK", "gpu", "PERMITS", "2", "PX", "60000", "WAIT", "300"],
            _ => any,
        };
        let begun = Instant::now();
        let mut head = in_line(&proxy, &head);
        if way == "end of the proxy" {
            proxy.terminate();
            assert!(head.is_at_end());
            proxy.wait();
            held.iter().for_each(|permit| {
                proxy.assert_value_on_nodes(&format!("lock:{}", permit.name), &permit.token);
            });
            return;
        }
        let mut next = in_line(&proxy, &any);
        match way {
            "time is over" => {
                assert_eq!(head.reply(), Reply::NullArray);
                assert!((ms(290)..SOON).contains(&begun.elapsed()), "{:?}", begun.elapsed());
            }
            "hang up" => head.hang_up(),
            _ => head.reset(),
        }
        eventually("it has left", || proxy.waiters() == 1);
        for permit in &held {
            proxy.assert_value_on_nodes(&format!("lock:{}", permit.name), &permit.token);
        }
        next.expect_silence(ms(50));
        unlock(&mut holder, &held[1]);
        let permit = Permit::of(&next.reply());
        assert_eq!(permit.name, "gpu#1");
        unlock(&mut next, &permit);
        unlock(&mut holder, &held[0]);
        assert_free(&proxy, 2);
        assert_eq!(proxy.waiters(), 0);
    }
}

#[test]
fn who_leaves_while_the_nodes_are_asked_leaves_nothing() {
    for (waits, reset) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut proxy = patient().start();
        (1..3).for_each(|node| proxy.node(node).freeze().unwrap());
        let mut client = proxy.client();
        let mut words = vec!["LOCK", "gpu", "mine", "PERMITS", "3", "PX", "60000"];
        if waits {
            words.extend(["WAIT", "60000"]);
        }
        client.send(&encode(&words));
        client.send(&encode(&["SET", "under-lock", "1"]));
        let on_first = || {
            let exists = ["EXISTS", "lock:gpu#0", "lock:gpu#1", "lock:gpu#2"];
            proxy.node_client(0).cmd(&exists)
        };
        eventually("the first node has one", || on_first() == Reply::Int(1));
        let left = match reset {
            true => {
                client.reset();
                None
            }
            false => {
                client.hang_up();
                Some(client)
            }
        };
        eventually("the first node is free", || on_first() == Reply::Int(0));
        (1..3).for_each(|node| proxy.node(node).thaw().unwrap());
        assert_free(&proxy, 3);
        assert_eq!(proxy.waiters(), 0);
        assert_eq!(proxy.client().cmd(&["EXISTS", "under-lock"]), Reply::Int(0));
        take_all(&mut proxy.client(), 3);
        drop(left);
    }
}

#[test]
fn silent_nodes_grant_none_and_keep_none() {
    let mut proxy = Proxy::with().nodes(3).start();
    let mut client = proxy.client();
    let held = Permit::of(&client.cmd(&["LOCK", "gpu", "PERMITS", "3", "PX", "60000"]));
    (0..2).for_each(|node| proxy.node(node).freeze().unwrap());
    for more in [&[][..], &["WAIT", "300"]] {
        let words = [&["LOCK", "gpu", "PERMITS", "3", "PX", "60000"][..], more].concat();
        let begun = Instant::now();
        let refused = client.cmd(&words);
        assert!(refused.error().starts_with("NOQUORUM "), "{refused:?}");
        assert!(begun.elapsed() < 2 * SOON, "{:?}", begun.elapsed());
    }
    (0..2).for_each(|node| proxy.node(node).thaw().unwrap());
    eventually("all are back", || proxy.nodes_up() == 3);
    unlock(&mut client, &held);
    assert_free(&proxy, 3);
    assert_eq!(proxy.waiters(), 0);
    take_all(&mut client, 3);
}

#[test]
fn a_named_token_has_one_permit() {
    let proxy = Proxy::with().nodes(3).start();
    let (mut a, mut b, mut operator) = (proxy.client(), proxy.client(), proxy.client());
    let lock = ["LOCK", "gpu", "mine", "PERMITS", "3", "PX", "40000"];
    let waiting = [&lock[..], &["WAIT", "300"]].concat();
    let mut last = Permit::of(&a.cmd(&lock));
    assert_eq!(last.token, "mine");
    for words in [&lock[..], &waiting, &lock[..5], &["LOCK", "gpu", "mine", "PERMITS", "256"]] {
        // Its own connection gets the same one again.
        let again = Permit::of(&a.cmd(words));
        assert!(again.name == last.name && again.fence > last.fence, "{again:?} {last:?}");
        last = again;
        // Another connection gets none, though others are free.
        assert_eq!(b.cmd(&lock), Reply::NullArray);
        let begun = Instant::now();
        assert_eq!(b.cmd(&waiting), Reply::NullArray);
        assert!((ms(290)..SOON).contains(&begun.elapsed()), "{:?}", begun.elapsed());
        // What stands behind a refused LOCK as its `finally` frees nothing.
        for name in names(3) {
            assert_eq!(b.cmd(&["UNLOCK", &name, "mine"]), Reply::Int(0), "{name} {last:?}");
        }
        proxy.assert_value_on_nodes(&format!("lock:{}", last.name), "mine");
    }
    // With all permits held, it is granted again too.
    let others = ["LOCK", "gpu", "PERMITS", "3", "PX", "60000"];
    let others: Vec<Permit> = (0..2).map(|_| Permit::of(&operator.cmd(&others))).collect();
    assert_eq!(Permit::of(&a.cmd(&lock)).name, last.name);
    // Whoever waits by the same token is handed that permit.
    let mut waiter =
        in_line(&proxy, &["LOCK", "gpu", "mine", "PERMITS", "3", "PX", "40000", "WAIT", "0"]);
    assert_eq!(a.cmd(&["UNLOCK", &last.name]), Reply::Int(1));
    assert_eq!(Permit::of(&waiter.reply()).name, last.name);
    // One that was taken away is no longer its own.
    assert_eq!(operator.cmd(&["LOCKGATE", "UNLOCK", &last.name, "ANY"]), Reply::Int(1));
    let by_another = Permit::of(&b.cmd(&["LOCK", "gpu", "PERMITS", "3", "PX", "60000"]));
    assert_eq!(by_another.name, last.name);
    unlock(&mut operator, &others[0]);
    assert_eq!(Permit::of(&waiter.cmd(&lock)).name, others[0].name);
    assert_eq!(waiter.cmd(&["UNLOCK", &others[0].name]), Reply::Int(1));
    [&others[1], &by_another].into_iter().for_each(|permit| unlock(&mut operator, permit));
    assert_free(&proxy, 3);
}

#[test]
fn a_client_needs_the_right_to_each_permit() {
    let proxy = Proxy::with().nodes(1).start();
    let user = ["ACL", "SETUSER", "app", "on", ">p", "~lock:gpu#0", "~lock:gpu#1", "+@all"];
    assert_eq!(proxy.data_client().cmd(&user), Reply::ok());
    let mut client = proxy.client();
    assert_eq!(client.cmd(&["AUTH", "app", "p"]), Reply::ok());
    let of = |n| ["LOCK", "gpu", "PERMITS", n, "PX", "60000"];
    for _ in 0..3 {
        let refused = client.cmd(&of("3"));
        assert!(refused.error().starts_with("NOPERM "), "{refused:?}");
        assert_free(&proxy, 3);
        // The right to two of them is remembered, and is none to a third.
        let permit = Permit::of(&client.cmd(&of("2")));
        unlock(&mut client, &permit);
    }
    // Wrong words are told only to a client that may lock the first of them.
    let wrong = client.cmd(&["LOCK", "gpu", "PERMITS", "0"]);
    assert_eq!(wrong.error(), "ERR PERMITS should be between 1 and 256, '0' is not");
    for words in [&["LOCK", "cpu", "PERMITS", "0"][..], &["LOCK", "cpu", "PERMITS", "2", "PX", "x"]]
    {
        assert!(client.cmd(words).error().starts_with("NOPERM "));
    }
    let silent = [
        encode(&["CLIENT", "REPLY", "OFF"]),
        encode(&of("3")),
        encode(&of("2")),
        encode(&of("2")),
        encode(&["CLIENT", "REPLY", "ON"]),
    ];
    client.send(&silent.concat());
    assert_eq!(client.reply(), Reply::ok());
    for name in names(2) {
        proxy.assert_on_nodes(&format!("lock:{name}"), 1);
        assert_eq!(client.cmd(&["UNLOCK", &name]), Reply::Int(1));
    }
    assert_free(&proxy, 3);
    let all = ["ACL", "SETUSER", "app", "resetkeys", "~lock:gpu#*"];
    assert_eq!(proxy.data_client().cmd(&all), Reply::ok());
    Permit::of(&client.cmd(&of("256")));
}
