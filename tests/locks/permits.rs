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
        // Beside other tests a machine of two cores may be late.
        let proxy = Proxy::with().nodes(nodes).locks("node_timeout: 1s").start();
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
        assert_eq!(Permit::of(&b.cmd(&["LOCK", "solo", "PERMITS", "1", "EX", "9"])).name, "solo#0");
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
            line.map(|is_by_name| proxy.in_line(if is_by_name { &by_name } else { &any })).into();
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
        proxy.in_line(&["LOCK", "gpu", &token, "PERMITS", "4", "PX", "60000", "WAIT", "0"])
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
            let mut waiting: Vec<Client> = (0..3).map(|_| through.in_line(&lock)).collect();
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
    let (mut told, mut at_once) = (0, 0);
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
        let mut waiter = proxy.in_line(&any);
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
        // The other proxy tells of it.
        if way == "operator" || way != "expiry" && !round.is_multiple_of(2) {
            told += 1;
            at_once += usize::from(begun.elapsed() < ms(400));
        }
        two.iter().for_each(|permit| unlock(&mut operator, permit));
        // Through the proxy that granted it: an UNLOCK through another one could overtake the grant on a node.
        unlock(&mut waiter, &permit);
        assert_free(&proxy, 3);
    }
    let woken = |cause| proxy.metric("lockgate_wakeups_total", cause);
    let causes = ["handover", "release", "message", "expiry", "retry"];
    println!("{at_once} of {told}, {:?}", causes.map(|cause| (cause, woken(cause))));
    // A waiter also looks for itself, every 1 to 2 s, and may have been about to.
    assert!(at_once > told * 2 / 3, "{at_once} of {told}");
    assert!(woken("message") >= 6.0, "{} of {told}", woken("message"));
    assert!(woken("expiry") >= 3.0, "{} of 6", woken("expiry"));
    assert!(woken("handover") >= 6.0, "{} of 9", woken("handover"));
}

#[test]
fn a_release_of_which_no_message_comes_is_found() {
    let proxy = Proxy::with().nodes(3).start();
    let mut holder = proxy.client();
    take_all(&mut holder, 3);
    let any = ["LOCK", "gpu", "PERMITS", "3", "PX", "60000", "WAIT", "0"];
    let mut waiting = [proxy.in_line(&any), proxy.in_line(&any)];
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
    let mut first = proxy.in_line(&lock("4"));
    let _second = proxy.in_line(&lock("2"));
    let mut third = proxy.in_line(&lock("4"));
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
        let mut head = proxy.in_line(&head);
        if way == "end of the proxy" {
            proxy.terminate();
            assert!(head.is_at_end());
            proxy.wait();
            held.iter().for_each(|permit| {
                proxy.assert_value_on_nodes(&format!("lock:{}", permit.name), &permit.token);
            });
            return;
        }
        let mut next = proxy.in_line(&any);
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
        proxy.assert_value_on_nodes(&format!("lock:{}", last.name), "mine");
    }
    // With all permits held, it is granted again too.
    let others = ["LOCK", "gpu", "PERMITS", "3", "PX", "60000"];
    let others: Vec<Permit> = (0..2).map(|_| Permit::of(&operator.cmd(&others))).collect();
    assert_eq!(Permit::of(&a.cmd(&lock)).name, last.name);
    // Whoever waits by the same token is handed that permit.
    let mut waiter =
        proxy.in_line(&["LOCK", "gpu", "mine", "PERMITS", "3", "PX", "40000", "WAIT", "0"]);
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
fn through_another_proxy_a_token_may_have_a_second_permit() {
    let proxy = Proxy::with().nodes(3).start();
    let other = Proxy::beside(&proxy).start();
    let lock = ["LOCK", "gpu", "mine", "PERMITS", "2", "PX", "60000"];
    let one = Permit::of(&proxy.client().cmd(&lock));
    let mut client = other.client();
    let two = Permit::of(&client.cmd(&lock));
    assert_eq!(one.at() + two.at(), 1);
    // Each goes by its name all the same.
    assert_eq!(client.cmd(&["UNLOCK", &one.name, "mine"]), Reply::Int(1));
    proxy.assert_value_on_nodes(&format!("lock:{}", two.name), "mine");
    unlock(&mut client, &two);
    assert_free(&proxy, 2);
}

#[test]
fn session_locks_of_a_family_live_as_long_as_their_connection() {
    let proxy = Proxy::with().nodes(3).start();
    let (mut client, mut operator) = (proxy.client(), proxy.client());
    let lock = ["LOCK", "gpu", "PERMITS", "3"];
    let mut all: Vec<Permit> = (0..2).map(|_| Permit::of(&client.cmd(&lock))).collect();
    let lease = Permit::of(&client.cmd(&["LOCK", "gpu", "PERMITS", "3", "PX", "60000"]));
    assert!(all[0].validity <= 10_000, "default_ttl: {all:?}");
    assert_eq!(proxy.metric("lockgate_session_locks", ""), 2.0);
    // One that is lost is told by its name, and the other is still held.
    let lost = all.remove(0);
    assert_eq!(operator.cmd(&["LOCKGATE", "UNLOCK", &lost.name, "ANY"]), Reply::Int(1));
    let told = client.cmd(&["GET", "x"]);
    let error =
        format!("LOCKLOST the lock '{}' was lost, this command was not executed", lost.name);
    assert_eq!(told.error(), error);
    assert_eq!(client.cmd(&["GET", "x"]), Reply::NullBulk);
    proxy.assert_value_on_nodes(&format!("lock:{}", all[0].name), &all[0].token);
    client.hang_up();
    proxy.assert_on_nodes(&format!("lock:{}", all[0].name), 0);
    proxy.assert_value_on_nodes(&format!("lock:{}", lease.name), &lease.token);
    unlock(&mut operator, &lease);
    assert_free(&proxy, 3);
}

#[test]
fn a_client_that_would_wait_for_itself_alone_is_told() {
    let proxy = Proxy::with().nodes(3).start();
    let mut client = proxy.client();
    let lock = ["LOCK", "gpu", "PERMITS", "2", "WAIT", "200"];
    let names: Vec<String> = (0..2).map(|_| Permit::of(&client.cmd(&lock)).name).collect();
    let error = "DEADLOCK this connection holds the lock and would wait for itself";
    assert_eq!(client.cmd(&lock).error(), error);
    assert_eq!(client.cmd(&lock[..4]), Reply::NullArray, "it does not wait");
    // A third permit, which another client has, may become free.
    let mut other = proxy.client();
    let third = other.cmd(&["LOCK", "gpu#2", "PX", "60000"]).grant();
    let of_three = ["LOCK", "gpu", "PERMITS", "3", "WAIT", "200"];
    assert_eq!(client.cmd(&of_three), Reply::NullArray);
    client.send(&encode(&["LOCK", "gpu", "PERMITS", "3", "WAIT", "0"]));
    eventually("it waits", || proxy.waiters() == 1);
    assert_eq!(other.cmd(&["UNLOCK", "gpu#2", &third.token]), Reply::Int(1));
    assert_eq!(Permit::of(&client.reply()).name, "gpu#2");
    // A lease may be released over another connection.
    assert_eq!(client.cmd(&["UNLOCK", &names[0]]), Reply::Int(1));
    Permit::of(&client.cmd(&["LOCK", "gpu", "PERMITS", "2", "PX", "60000"]));
    let begun = Instant::now();
    assert_eq!(client.cmd(&lock), Reply::NullArray);
    assert!(begun.elapsed() >= ms(190), "{:?}", begun.elapsed());
    // A connection that holds all but one of the session locks waits for that one.
    assert_eq!(proxy.waiters(), 0);
}

#[test]
fn a_pause_keeps_permits_too() {
    let proxy = Proxy::with().nodes(3).start();
    let (mut holder, mut operator) = (proxy.client(), proxy.client());
    let held = Permit::of(&holder.cmd(&["LOCK", "gpu", "mine", "PERMITS", "2", "PX", "60000"]));
    assert_eq!(operator.cmd(&["LOCKGATE", "PAUSE", "600000"]), Reply::ok());
    let lock = ["LOCK", "gpu", "PERMITS", "2", "PX", "60000"];
    let mut client = proxy.client();
    assert_eq!(client.cmd(&lock), Reply::NullArray);
    let begun = Instant::now();
    assert_eq!(client.cmd(&[&lock[..], &["WAIT", "300"]].concat()), Reply::NullArray);
    assert!(begun.elapsed() >= ms(290), "{:?}", begun.elapsed());
    // What a client has stays its own.
    let again = Permit::of(&holder.cmd(&["LOCK", "gpu", "mine", "PERMITS", "2", "PX", "60000"]));
    assert_eq!(again.name, held.name);
    let mut waiting = [0; 2].map(|_| proxy.in_line(&[&lock[..], &["WAIT", "0"]].concat()));
    unlock(&mut holder, &again);
    waiting[0].expect_silence(ms(200));
    assert_free(&proxy, 2);
    assert_eq!(operator.cmd(&["LOCKGATE", "UNPAUSE"]), Reply::ok());
    let mut got = waiting.each_mut().map(|client| Permit::of(&client.reply()).at());
    got.sort_unstable();
    assert_eq!(got, [0, 1]);
    // A pause also ends by itself.
    unlock_all(&mut operator, 2);
    assert_eq!(operator.cmd(&["LOCKGATE", "PAUSE", "400"]), Reply::ok());
    let begun = Instant::now();
    Permit::of(&client.cmd(&[&lock[..], &["WAIT", "20000"]].concat()));
    assert!((ms(300)..SOON).contains(&begun.elapsed()), "{:?}", begun.elapsed());
}

/// Takes this many permits of `gpu` away from whoever has them.
fn unlock_all(operator: &mut Client, n: usize) {
    for name in names(n) {
        assert_eq!(operator.cmd(&["LOCKGATE", "UNLOCK", &name, "ANY"]), Reply::Int(1), "{name}");
    }
}

#[test]
fn a_guard_admits_the_holder_of_its_shard() {
    let rules = "guards: {keys: 'shard:*:*', lock: 'shard#{1}'}";
    let mut proxy = Proxy::with().nodes(3).top(rules).start();
    let (mut a, mut b) = (proxy.client(), proxy.client());
    let lock = ["LOCK", "shard", "PERMITS", "2", "PX", "60000"];
    let mut before = [0, 0];
    for _ in 0..3 {
        let (one, two) = (Permit::of(&a.cmd(&lock)), Permit::of(&b.cmd(&lock)));
        assert_eq!(one.at() + two.at(), 1);
        for (client, permit) in [(&mut a, &one), (&mut b, &two)] {
            let (own, foreign) = (permit.at(), 1 - permit.at());
            assert!(permit.fence > std::mem::replace(&mut before[own], permit.fence));
            let fence = format!("lockgate:guard:lock:{}", permit.name);
            let fence = proxy.data_client().cmd(&["GET", &fence]);
            assert_eq!(fence, Reply::bulk(&permit.fence.to_string()), "before it is told");
            assert_eq!(client.cmd(&["SET", &format!("shard:{own}:x"), "1"]), Reply::ok());
            let refused = client.cmd(&["SET", &format!("shard:{foreign}:x"), "1"]);
            assert!(refused.error().starts_with("NOTHELD "), "{refused:?}");
        }
        // A holder whose permit was taken away and given to another writes no more.
        let mut operator = proxy.client();
        assert_eq!(operator.cmd(&["LOCKGATE", "UNLOCK", &one.name, "ANY"]), Reply::Int(1));
        let next = Permit::of(&operator.cmd(&lock));
        before[next.at()] = next.fence;
        let late = a.cmd(&["SET", &format!("shard:{}:x", one.at()), "late"]);
        assert!(late.error().starts_with("FENCED "), "{late:?}");
        unlock(&mut operator, &next);
        unlock(&mut b, &two);
    }
    // There is no permit if the client leaves before the data node has taken its fence.
    proxy.data().freeze().unwrap();
    a.send(&encode(&["LOCK", "shard", "PERMITS", "2", "PX", "60000", "WAIT", "0"]));
    let on_nodes = |proxy: &Proxy| {
        let exists = ["EXISTS", "lock:shard#0", "lock:shard#1"];
        proxy.node_client(0).cmd(&exists)
    };
    eventually("it is granted", || on_nodes(&proxy) == Reply::Int(1));
    a.hang_up();
    eventually("it is given back", || on_nodes(&proxy) == Reply::Int(0));
    proxy.data().thaw().unwrap();
}

#[test]
fn a_bridged_permit_is_held_on_the_data_node_too() {
    let rules = "adopt: {keys: 'lock:s#*', lock: 's#{1}', mode: bridge}";
    let proxy = Proxy::with().nodes(3).top(rules).start();
    let mut client = proxy.client();
    let lock = ["LOCK", "s", "PERMITS", "2", "PX", "60000"];
    for _ in 0..2 {
        let all = [0; 2].map(|_| Permit::of(&client.cmd(&lock)));
        assert_eq!(all[0].at() + all[1].at(), 1);
        for permit in &all {
            let key = format!("lock:{}", permit.name);
            proxy.assert_value_on_nodes(&key, &permit.token);
            assert_eq!(proxy.data_client().cmd(&["GET", &key]), Reply::bulk(&permit.token));
            unlock(&mut client, permit);
            assert_eq!(proxy.data_client().cmd(&["GET", &key]), Reply::NullBulk);
        }
    }
    // A program that locks on the data node past the proxy excludes, and is excluded.
    let set = ["SET", "lock:s#0", "legacy", "NX", "PX", "60000"];
    assert_eq!(proxy.data_client().cmd(&set), Reply::ok());
    let mut granted = 0;
    for n in 0..30 {
        let words = if n % 2 == 0 { &lock[..] } else { &[&lock[..], &["WAIT", "100"]].concat() };
        let reply = client.cmd(words);
        proxy.assert_on_nodes("lock:s#0", 0);
        if reply != Reply::NullArray {
            let permit = Permit::of(&reply);
            assert_eq!(permit.name, "s#1");
            let legacy = ["SET", "lock:s#1", "legacy", "NX", "PX", "60000"];
            assert_eq!(proxy.data_client().cmd(&legacy), Reply::NullBulk);
            unlock(&mut client, &permit);
            granted += 1;
        }
    }
    assert!(granted > 0);
    assert_eq!(proxy.data_client().cmd(&["GET", "lock:s#0"]), Reply::bulk("legacy"));
    proxy.assert_on_nodes("lock:s#1", 0);
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

#[test]
fn bad_words_keep_their_places_and_harm_nothing() {
    let proxy = Proxy::with()
        .nodes(1)
        .locks("max_key: 8")
        .locks("permits: [{keys: 'a*', n: 2}, {keys: 'ab', n: 3}]")
        .start();
    let mut client = proxy.client();
    let cases: [(&[&str], &str); 14] = [
        (
            &["LOCK", "b", "PERMITS"],
            "ERR 'PERMITS' is no token; for one of n permits write LOCK b PERMITS <n>",
        ),
        (&["LOCK", "b", "t", "PERMITS"], "ERR syntax error, 'PERMITS' lacks its value"),
        (&["LOCK", "b", "PERMITS", "0"], "ERR PERMITS should be between 1 and 256, '0' is not"),
        (&["LOCK", "b", "PERMITS", "257"], "ERR PERMITS should be between 1 and 256, '257' is not"),
        (&["LOCK", "b", "PERMITS", "-1"], "ERR PERMITS should be between 1 and 256, '-1' is not"),
        (&["LOCK", "b", "PERMITS", "x"], "ERR PERMITS should be between 1 and 256, 'x' is not"),
        (
            &["LOCK", "b", "PERMITS", "2", "PERMITS", "2"],
            "ERR syntax error, 'PERMITS' is one option too many",
        ),
        (
            &["LOCK", "b#1", "PERMITS", "2"],
            "ERR 'b#1' is a permit of 'b', and has no permits of its own",
        ),
        (&["LOCK", "1234567", "PERMITS", "2"], "ERR key is longer than 8 bytes (locks.max_key)"),
        (
            &["LOCK", "ab", "PERMITS", "3"],
            "ERR 'ab' has 2 permits (locks.permits), PERMITS 3 contradicts that",
        ),
        (
            &["LOCK", "b", "PERMITS", "2", "PX", "3"],
            "ERR invalid expire time in 'lock' command, the shortest is 4 ms",
        ),
        (
            &["UNLOCK", "b", "t", "PERMITS", "2"],
            "ERR wrong number of arguments for 'unlock' command",
        ),
        (&["RENEW", "b", "t", "PERMITS", "2"], "ERR syntax error, unknown option 'PERMITS'"),
        (&["LOCK", "", "PERMITS", "2"], "ERR the key is empty"),
    ];
    for (words, error) in cases {
        let replies = client.pipe(&[&["ECHO", "before"], words, &["ECHO", "behind"]]);
        assert_eq!(replies[0], Reply::bulk("before"), "{error}");
        assert_eq!(replies[1].error(), error, "{words:?}");
        assert_eq!(replies[2], Reply::bulk("behind"), "{error}");
    }
    for family in ["lock:a", "lock:b", "lock:ab"] {
        (0..3).for_each(|at| assert_eq!(proxy.nodes_with(&format!("{family}#{at}")), 0));
    }
    let granted = client.pipe(&[
        &["LOCK", "b", "t", "WAIT", "100", "PX", "60000", "PERMITS", "2"],
        &["LOCK", "ab", "PERMITS", "2", "EX", "60"],
        &["LOCK", "a#x", "PERMITS", "2", "EX", "60"],
        &["LOCK", "1234567#", "EX", "60"],
    ]);
    granted[..3].iter().for_each(|reply| drop(Permit::of(reply)));
    granted[3].grant();
    let queued = client.pipe(&[&["MULTI"], &["LOCK", "c", "PERMITS", "2"], &["EXEC"]]);
    assert!(queued[1].error().starts_with("ERR unknown command 'LOCK'"), "{queued:?}");
    assert!(queued[2].error().starts_with("EXECABORT"), "{queued:?}");
    assert_eq!(proxy.nodes_with("lock:c#0") + proxy.nodes_with("lock:c#1"), 0);
}

#[test]
fn the_number_in_the_file_can_change() {
    let proxy = Proxy::with().nodes(1).locks("permits: [{keys: 'gpu', n: 4}]").start();
    let (mut holder, mut client) = (proxy.client(), proxy.client());
    let held = take_all(&mut holder, 4);
    let of = |n| ["LOCK", "gpu", "PERMITS", n, "PX", "60000"];
    let mut waiter = proxy.in_line(&[&of("4")[..], &["WAIT", "0"]].concat());
    let text = std::fs::read_to_string(proxy.config_file()).unwrap();
    std::fs::write(proxy.config_file(), text.replace("n: 4", "n: 2")).unwrap();
    let label = "result=\"ok\"";
    let done = || proxy.metric("lockgate_config_reloads_total", label);
    let before = done();
    proxy.reload();
    eventually("it was read again", || done() > before);
    let error = "ERR 'gpu' has 2 permits (locks.permits), PERMITS 4 contradicts that";
    assert_eq!(proxy.client().cmd(&of("4")).error(), error);
    // Those that have one keep it, and so does who stands in line.
    for permit in &held {
        proxy.assert_value_on_nodes(&format!("lock:{}", permit.name), &permit.token);
    }
    let mut next = proxy.client();
    assert_eq!(next.cmd(&of("2")), Reply::NullArray);
    unlock(&mut holder, &held[3]);
    assert_eq!(Permit::of(&waiter.reply()).name, "gpu#3");
    unlock(&mut holder, &held[1]);
    assert_eq!(Permit::of(&next.cmd(&of("2"))).name, "gpu#1");
    // So it is on connections from before.
    assert_eq!(client.cmd(&of("4")).error(), error);
    assert_eq!(client.cmd(&of("2")), Reply::NullArray);
    assert_eq!(client.cmd(&["LOCK", "other", "PERMITS", "4"]).error_text(), "");
}

#[test]
fn before_a_cluster_a_family_needs_a_tag() {
    let cluster = crate::support::cluster::Cluster::start(3);
    let proxy = cluster.proxy("").nodes(3).start();
    let mut client = Client::connect(cluster.fronts(&proxy)[0]);
    let lock = |family| ["LOCK", family, "PERMITS", "4", "PX", "60000"];
    let refused = client.cmd(&lock("gpu"));
    assert_eq!(refused.error(), "CROSSSLOT Keys in request don't hash to the same slot");
    assert_free(&proxy, 4);
    for _ in 0..4 {
        assert!(Permit::of(&client.cmd(&lock("{gpu}"))).name.starts_with("{gpu}#"));
    }
    assert_eq!(client.cmd(&lock("{gpu}")), Reply::NullArray);
    // Clients route by the family's name.
    let refused = client.cmd(&["LOCK", "solo", "PERMITS", "1"]);
    assert!(refused.error().starts_with("CROSSSLOT "), "{refused:?}");
}

#[test]
fn operators_see_the_line_of_a_family() {
    let proxy = Proxy::with().nodes(3).start();
    let mut holder = proxy.client();
    let held = take_all(&mut holder, 2);
    let words = ["LOCK", "gpu", "PERMITS", "2", "PX", "7000", "WAIT", "60000"];
    let mut first = proxy.in_line(&words);
    let _by_name = proxy.in_line(&["LOCK", "gpu#1", "WAIT", "60000"]);
    let _second = proxy.in_line(&words);
    thread::sleep(ms(30));
    let mut operator = proxy.client();
    let mut ask = |words: &[&str]| {
        let reply = operator.cmd(&[&["LOCKGATE"], words].concat());
        let Reply::Array(all) = &reply else { panic!("{reply:?}") };
        let text = |reply: &Reply| match reply {
            Reply::Bulk(text) => String::from_utf8_lossy(text).into_owned(),
            Reply::Int(number) => number.to_string(),
            other => format!("{other:?}"),
        };
        let entry = |entry: &Reply| match entry {
            Reply::Array(parts) => parts.iter().map(text).collect::<Vec<_>>().join(" "),
            other => panic!("{other:?}"),
        };
        all.iter().map(entry).collect::<Vec<_>>()
    };
    let line = ask(&["WAITERS", "gpu#*"]);
    assert_eq!(line.len(), 2, "{line:?}");
    assert!(line.iter().all(|waiter| waiter.contains("ttl-ms 7000")), "{line:?}");
    assert_eq!(ask(&["WAITERS", "gpu#1"]).len(), 1);
    let clients = ask(&["CLIENTS"]);
    let waits = |what: &str| clients.iter().filter(|one| one.contains(what)).count();
    assert_eq!((waits("waits-for gpu#*"), waits("waits-for gpu#1")), (2, 1), "{clients:?}");
    for words in [&["HOT"][..], &["LOCKS", "BY", "waiters"]] {
        let lines = ask(words);
        let of_family: Vec<&String> =
            lines.iter().filter(|line| line.contains("key gpu#* ")).collect();
        assert!(of_family.len() == 1 && of_family[0].contains("waiters 2 "), "{words:?} {lines:?}");
        assert!(of_family[0].contains("kind permits"), "{lines:?}");
        assert!(lines.iter().any(|line| line.contains("key gpu#1 ")), "{lines:?}");
    }
    assert!(proxy.http("/api/hot").contains("gpu#*"));
    // The wait that is over still counts.
    unlock(&mut holder, &held[0]);
    Permit::of(&first.reply());
    let hot = ask(&["HOT"]);
    let family = hot.iter().find(|line| line.contains("key gpu#* ")).unwrap();
    assert!(family.contains("waiters 1 ") && family.contains("waits 2 "), "{hot:?}");
}

#[test]
fn a_pattern_for_the_names_of_permits_counts_the_family_as_one() {
    let proxy = Proxy::with().nodes(3).top("metrics: {keys: ['gpu#*']}").start();
    let mut holder = proxy.client();
    let held = take_all(&mut holder, 2);
    let mut by_family = proxy.in_line(&["LOCK", "gpu", "PERMITS", "2", "WAIT", "60000"]);
    let mut by_name = proxy.in_line(&["LOCK", &held[1].name, "WAIT", "60000"]);
    unlock(&mut holder, &held[0]);
    Permit::of(&by_family.reply());
    unlock(&mut holder, &held[1]);
    by_name.reply().grant();
    let count = |name: &str, keys: &str| {
        proxy.metric(&format!("lockgate_key_{name}_seconds_count"), &format!("keys=\"{keys}\""))
    };
    for (name, times) in [("hold", 2.0), ("queue", 2.0)] {
        eventually("both are counted", || count(name, "gpu#*") == times);
        assert_eq!(count(name, "other"), 0.0, "{name}");
    }
}

#[test]
fn none_is_null_in_resp3() {
    let proxy = Proxy::with().nodes(1).start();
    let (mut holder, mut client) = (proxy.client(), proxy.client());
    assert!(matches!(client.cmd(&["HELLO", "3"]), Reply::Map(_)));
    let held = take_all(&mut holder, 2);
    assert_eq!(client.cmd(&["LOCK", "gpu", "PERMITS", "2"]), Reply::Null);
    assert_eq!(client.cmd(&["LOCK", "gpu", "PERMITS", "2", "WAIT", "20"]), Reply::Null);
    unlock(&mut holder, &held[0]);
    assert_eq!(Permit::of(&client.cmd(&["LOCK", "gpu", "PERMITS", "2"])).name, "gpu#0");
}

#[test]
fn the_one_that_is_free_is_found_whoever_holds_the_others() {
    let proxy = Proxy::with().nodes(3).start();
    let other = Proxy::beside(&proxy).start();
    let (mut holder, mut client) = (other.client(), proxy.client());
    let number = "16";
    for round in 0..8 {
        let free = (round * 5 + 3) % 16;
        for at in (0..16).filter(|at| *at != free) {
            holder.cmd(&["LOCK", &format!("gpu#{at}"), "t", "PX", "60000"]).grant();
        }
        let mut words = vec!["LOCK", "gpu", "PERMITS", number, "PX", "60000"];
        if round % 2 == 1 {
            words.extend(["WAIT", "500"]);
        }
        let permit = Permit::of(&client.cmd(&words));
        assert_eq!(permit.at(), free);
        assert_eq!(client.cmd(&words), Reply::NullArray);
        unlock(&mut client, &permit);
        for at in (0..16).filter(|at| *at != free) {
            assert_eq!(holder.cmd(&["UNLOCK", &format!("gpu#{at}"), "t"]), Reply::Int(1));
        }
    }
    assert_free(&proxy, 16);
}

#[test]
fn who_waits_is_told_of_nodes_that_fell_silent() {
    let mut proxy = Proxy::with().nodes(3).locks("node_timeout: 300ms").start();
    take_all(&mut proxy.client(), 4);
    let mut waiter = proxy.in_line(&["LOCK", "gpu", "PERMITS", "4", "PX", "9000", "WAIT", "5000"]);
    eventually("all will tell", || are_subscribed(&proxy, 4));
    (0..2).for_each(|node| proxy.node(node).freeze().unwrap());
    let refused = waiter.reply();
    assert!(refused.error().starts_with("NOQUORUM "), "{refused:?}");
    assert_eq!(proxy.waiters(), 0);
    (0..2).for_each(|node| proxy.node(node).thaw().unwrap());
}

/// A poller names a new token for each try, and releases whatever it has over whichever connection of its pool.
#[test]
fn refusals_make_no_other_lock_doubtful() {
    let proxy = Proxy::with().nodes(1).start();
    let (mut holder, mut poller) = (proxy.client(), proxy.client());
    let all: Vec<String> = (0..64).map(|at| format!("k{at}")).collect();
    let held = take_all(&mut holder, 3);
    holder.cmd(&["LOCK", "k63", "PX", "60000"]).grant();
    for n in 0..300 {
        let token = format!("try{n}");
        let permit = poller.cmd(&["LOCK", "gpu", &token, "PERMITS", "3", "PX", "30000"]);
        let keys = all.iter().map(String::as_str);
        let words = ["MLOCK", "64"].into_iter().chain(keys).chain([&*token, "PX", "30000"]);
        let several = poller.cmd(&words.collect::<Vec<_>>());
        assert_eq!((permit, several), (Reply::NullArray, Reply::NullArray));
    }
    for n in 0..200 {
        let (key, token) = (format!("job{n}"), format!("own{n}"));
        holder.cmd(&["LOCK", &key, &token, "PX", "60000"]).grant();
        assert_eq!(poller.cmd(&["UNLOCK", &key, &token]), Reply::Int(1), "{key}");
    }
    for permit in &held {
        let unlocked = poller.cmd(&["UNLOCK", &permit.name, &permit.token]);
        assert_eq!(unlocked, Reply::Int(1), "{permit:?}");
    }
}

/// The connection's memory of a permit may be older than its end.
#[test]
fn a_permit_that_has_ended_elsewhere_keeps_its_token_from_no_other() {
    let proxy = Proxy::with().nodes(3).start();
    let other = Proxy::beside(&proxy).start();
    let (mut a, mut b) = (proxy.client(), other.client());
    let lock = ["LOCK", "gpu", "mine", "PERMITS", "3", "PX", "60000"];
    for wait in [&[][..], &["WAIT", "5000"]] {
        let first = Permit::of(&a.cmd(&lock));
        assert_eq!(b.cmd(&["UNLOCK", &first.name, "mine"]), Reply::Int(1));
        let taken = b.cmd(&["LOCK", &first.name, "PX", "60000"]).grant();
        let begun = Instant::now();
        let second = Permit::of(&a.cmd(&[&lock[..], wait].concat()));
        assert!(second.name != first.name && begun.elapsed() < SOON, "{second:?}");
        // That is its permit now, though the first one is free again.
        assert_eq!(b.cmd(&["UNLOCK", &first.name, &taken.token]), Reply::Int(1));
        assert_eq!(Permit::of(&a.cmd(&lock)).name, second.name);
        proxy.assert_on_nodes(&format!("lock:{}", first.name), 0);
        assert_eq!(a.cmd(&["UNLOCK", &second.name]), Reply::Int(1));
        assert_free(&proxy, 3);
    }
}

#[test]
fn many_looks_leave_room_for_others() {
    let proxy = Proxy::with().nodes(1).locks("node_queue: 600").locks("node_timeout: 1s").start();
    let mut holder = proxy.client();
    take_all(&mut holder, 256);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut poller = proxy.client();
                for _ in 0..2 {
                    assert_eq!(poller.cmd(&["LOCK", "gpu", "PERMITS", "256"]), Reply::NullArray);
                }
            });
        }
        let mut client = proxy.client();
        for n in 0..40 {
            client.cmd(&["LOCK", &format!("job{n}"), "PX", "60000"]).grant();
        }
    });
}
