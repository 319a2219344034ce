//! What MLOCK and MUNLOCK promise, with real nodes: each lock is an ordinary one, and there are all or none.

use std::{
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use crate::support::{Client, Proxy, Reply, encode, eventually, rounds, shape};

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// The reply to a granted MLOCK.
#[derive(Debug)]
struct AllGranted {
    token: String,
    validity: i64,
    fences: Vec<i64>,
}

impl AllGranted {
    fn of(reply: &Reply) -> AllGranted {
        let Reply::Array(parts) = reply else { panic!("not granted: {reply:?}") };
        let [Reply::Bulk(token), Reply::Int(validity), Reply::Array(fences)] = &parts[..] else {
            panic!("not a grant: {reply:?}")
        };
        let fence = |fence: &Reply| match fence {
            Reply::Int(fence) => *fence,
            other => panic!("no fence: {other:?}"),
        };
        AllGranted {
            token: String::from_utf8_lossy(token).into_owned(),
            validity: *validity,
            fences: fences.iter().map(fence).collect(),
        }
    }
}

/// Checks that no lock node has any of these locks, within a moment.
fn assert_free(proxy: &Proxy, keys: &[&str]) {
    for key in keys {
        proxy.assert_on_nodes(&format!("lock:{key}"), 0);
    }
}

/// Returns what a lock node stores of the lock's fence and claim.
fn stored(proxy: &Proxy, node: usize, key: &str) -> String {
    let stored = proxy.node_client(node).cmd(&["GET", &format!("lockgate:fence:lock:{key}")]);
    let Reply::Bulk(stored) = stored else { panic!("nothing stored of {key}: {stored:?}") };
    String::from_utf8(stored).unwrap()
}

#[test]
fn a_lock_of_which_no_token_is_known_keeps_no_other() {
    let proxy = Proxy::with().nodes(3).start();
    let mut client = proxy.client();
    AllGranted::of(&client.cmd(&["MLOCK", "2", "b", "c"]));
    let error = "NOTOKEN this connection took no lock 'nope'; name its token";
    assert_eq!(client.cmd(&["MUNLOCK", "3", "b", "nope", "c"]).error(), error);
    assert_free(&proxy, &["b", "c"]);
}

#[test]
fn each_is_an_ordinary_lock() {
    for nodes in [1, 3, 5] {
        let proxy = Proxy::with().nodes(nodes).start();
        let (mut a, mut b) = (proxy.client(), proxy.client());
        let one = a.cmd(&["LOCK", "one", "t", "PX", "60000"]).grant();
        let all = AllGranted::of(&a.cmd(&["MLOCK", "3", "a", "b", "c", "PX", "60000"]));
        assert!(all.token.len() >= 22 && (58_000..=59_398).contains(&all.validity), "{all:?}");
        for (key, fence) in ["a", "b", "c"].into_iter().zip(&all.fences) {
            proxy.assert_value_on_nodes(&format!("lock:{key}"), &all.token);
            let (stored, of_lock) = (stored(&proxy, 0, key), stored(&proxy, 0, "one"));
            assert_eq!(stored.split_once(' ').unwrap().0, fence.to_string());
            assert_eq!(shape(&stored), shape(&of_lock), "as LOCK's");
            assert!(fence.abs_diff(one.fence) < 1_000_000_000, "microseconds, as LOCK's");
            let left = proxy.node_client(0).cmd(&["PTTL", &format!("lock:{key}")]);
            assert!(matches!(left, Reply::Int(58_000..=60_000)), "{left:?}");
        }
        let claims: Vec<String> = ["a", "b", "c"]
            .map(|key| stored(&proxy, 0, key).split_once(' ').unwrap().1.to_owned())
            .into();
        assert!(claims[0] != claims[1] && claims[1] != claims[2], "a claim for each: {claims:?}");
        // Each is renewed, attached to, refused and released by itself.
        assert!(matches!(a.cmd(&["RENEW", "a", "PX", "30000"]), Reply::Int(29_000..)));
        assert_eq!(b.cmd(&["LOCK", "a", "PX", "60000"]), Reply::NullArray);
        assert_eq!(b.cmd(&["LOCK.ATTACH", "c", &all.token]).grant().fence, all.fences[2]);
        assert_eq!(a.cmd(&["UNLOCK", "b"]), Reply::Int(1));
        let next = b.cmd(&["LOCK", "b", "PX", "60000"]).grant();
        assert!(next.fence > all.fences[1]);
        assert_eq!(a.cmd(&["MUNLOCK", "3", "a", "b", "c"]), Reply::Int(2), "b is another's");
        proxy.assert_value_on_nodes("lock:b", &next.token);
        assert_free(&proxy, &["a", "c"]);
        assert_eq!(a.cmd(&["MUNLOCK", "3", "a", "b", "c"]), Reply::Int(0));
        assert_eq!(proxy.metric("lockgate_grants_total", "lease"), 5.0);
    }
}

#[test]
fn one_that_is_held_leaves_none() {
    let proxy = Proxy::with().nodes(3).start();
    let other = Proxy::beside(&proxy).start();
    for (n, mut client) in [proxy.client(), other.client()].into_iter().enumerate() {
        let mut holder = proxy.client();
        for (at, held) in ["a", "b", "c"].into_iter().enumerate() {
            let token = holder.cmd(&["LOCK", held, "PX", "60000"]).grant().token;
            for words in [
                &["MLOCK", "3", "a", "b", "c"][..],
                &["MLOCK", "3", "a", "b", "c", "mine", "PX", "60000"],
                &["MLOCK", "3", "a", "b", "c", "PX", "60000", "WAIT", "30"],
            ] {
                assert_eq!(client.cmd(words), Reply::NullArray, "{n} {held}");
                let free: Vec<&str> =
                    ["a", "b", "c"].into_iter().filter(|key| *key != held).collect();
                // Nobody has to wait for what was given back.
                let mut third = client_of(at, &proxy, &other);
                let both =
                    AllGranted::of(&third.cmd(&["MLOCK", "2", free[0], free[1], "WAIT", "5000"]));
                assert_eq!(both.fences.len(), 2);
                assert_eq!(third.cmd(&["MUNLOCK", "2", free[0], free[1]]), Reply::Int(2));
                // What stands behind a refused MLOCK as its `finally` frees nothing.
                assert_eq!(client.cmd(&["MUNLOCK", "3", "a", "b", "c"]), Reply::Int(0));
                assert_eq!(client.cmd(&["MUNLOCK", "3", "a", "b", "c", "mine"]), Reply::Int(0));
                assert_free(&proxy, &free);
            }
            proxy.assert_value_on_nodes(&format!("lock:{held}"), &token);
            assert_eq!(holder.cmd(&["UNLOCK", held]), Reply::Int(1));
        }
        assert!(matches!(client.cmd(&["HELLO", "3"]), Reply::Map(_)));
        holder.cmd(&["LOCK", "a", "PX", "60000"]).grant();
        assert_eq!(client.cmd(&["MLOCK", "2", "a", "b"]), Reply::Null);
        assert_eq!(holder.cmd(&["UNLOCK", "a"]), Reply::Int(1));
        AllGranted::of(&client.cmd(&["MLOCK", "2", "a", "b", "PX", "60000"]));
        assert_eq!(client.cmd(&["MUNLOCK", "2", "b", "a"]), Reply::Int(2));
    }
}

fn client_of(n: usize, one: &Proxy, other: &Proxy) -> Client {
    if n.is_multiple_of(2) { one.client() } else { other.client() }
}

#[test]
fn who_waits_holds_none_of_them() {
    let proxy = Proxy::with().nodes(3).start();
    let other = Proxy::beside(&proxy).start();
    for through in [&proxy, &other] {
        let (mut holder, mut waiter, mut third) =
            (proxy.client(), through.client(), proxy.client());
        holder.cmd(&["LOCK", "b", "PX", "60000"]).grant();
        waiter.send(&encode(&["MLOCK", "3", "a", "b", "c", "PX", "60000", "WAIT", "30000"]));
        eventually("it waits", || through.waiters() == 1);
        assert_free(&proxy, &["a", "c"]);
        third.cmd(&["LOCK", "c", "PX", "60000"]).grant();
        // It gets b, cannot have c, gives b back, and waits for c.
        assert_eq!(holder.cmd(&["UNLOCK", "b"]), Reply::Int(1));
        assert_free(&proxy, &["a", "b"]);
        holder.cmd(&["LOCK", "b", "PX", "60000", "WAIT", "5000"]).grant();
        assert_eq!(holder.cmd(&["UNLOCK", "b"]), Reply::Int(1));
        eventually("it waits for c", || through.waiters() == 1);
        assert_eq!(third.cmd(&["UNLOCK", "c"]), Reply::Int(1));
        let all = AllGranted::of(&waiter.reply());
        for key in ["lock:a", "lock:b", "lock:c"] {
            proxy.assert_value_on_nodes(key, &all.token);
        }
        assert_eq!(waiter.cmd(&["MUNLOCK", "3", "a", "b", "c"]), Reply::Int(3));

        // Once its time is over it has none, and no place in a line.
        holder.cmd(&["LOCK", "b", "PX", "60000"]).grant();
        let begun = Instant::now();
        let reply = waiter.cmd(&["MLOCK", "2", "a", "b", "WAIT", "300"]);
        assert_eq!((reply, through.waiters()), (Reply::NullArray, 0));
        assert!((ms(290)..ms(2000)).contains(&begun.elapsed()), "{:?}", begun.elapsed());
        assert_eq!(holder.cmd(&["UNLOCK", "b"]), Reply::Int(1));
        assert_free(&proxy, &["a", "b"]);
    }
}

#[test]
fn forty_clients_over_overlapping_sets_all_get_on() {
    let proxy = Proxy::with().nodes(3).start();
    let other = Proxy::beside(&proxy).start();
    const LOCKS: usize = 8;
    let inside: [AtomicBool; LOCKS] = Default::default();
    let last: [AtomicUsize; LOCKS] = Default::default();
    let (rounds, begun) = (rounds(6), Instant::now());
    let one = |n: usize| {
        let mut client = client_of(n, &proxy, &other);
        for round in 0..rounds {
            // Two to four locks, in an order of its own.
            let mut places: Vec<usize> = (0..LOCKS).collect();
            places.sort_by_key(|place| (place * 7 + n * 5 + round * 3) * 31 % 97);
            places.truncate(2 + (n + round) % 3);
            let keys: Vec<String> = places.iter().map(|place| format!("k{place}")).collect();
            let number = keys.len().to_string();
            let named: Vec<&str> = keys.iter().map(String::as_str).collect();
            let mut words = [&["MLOCK", &number][..], &named].concat();
            if !n.is_multiple_of(3) {
                words.extend(["PX", "60000"]);
            }
            words.extend(["WAIT", "60000"]);
            let all = AllGranted::of(&client.cmd(&words));
            for (place, fence) in places.iter().zip(&all.fences) {
                assert!(!inside[*place].swap(true, Ordering::SeqCst), "two hold {place}");
                let before = last[*place].swap(*fence as usize, Ordering::SeqCst);
                assert!(*fence as usize > before, "{fence} after {before}");
            }
            thread::sleep(ms(1));
            places.iter().for_each(|place| inside[*place].store(false, Ordering::SeqCst));
            let unlock = [&["MUNLOCK", &number][..], &named].concat();
            assert_eq!(client.cmd(&unlock), Reply::Int(keys.len() as i64));
        }
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..40).map(|n| scope.spawn(move || one(n))).collect();
        threads.into_iter().for_each(|thread| thread.join().expect("client"));
    });
    println!("{} MLOCKs in {:?}", 40 * rounds, begun.elapsed());
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
    assert_free(&proxy, &["k0", "k1", "k2", "k3", "k4", "k5", "k6", "k7"]);
    assert_eq!((proxy.waiters(), other.waiters()), (0, 0));
}

#[test]
fn a_client_that_hangs_up_in_the_middle_leaves_nothing() {
    let mut proxy =
        Proxy::with().nodes(3).locks("node_timeout: 5s").locks("node_silence: 6s").start();
    // Two silent nodes keep the MLOCK waiting.
    proxy.node(1).freeze().unwrap();
    proxy.node(2).freeze().unwrap();
    let mut client = proxy.client();
    client.send(&encode(&["MLOCK", "2", "a", "b", "PX", "60000"]));
    client.send(&encode(&["SET", "under-lock", "1"]));
    eventually("the first node has both", || {
        proxy.node_client(0).cmd(&["EXISTS", "lock:a", "lock:b"]) == Reply::Int(2)
    });
    client.hang_up();
    eventually("the first node is free", || {
        proxy.node_client(0).cmd(&["EXISTS", "lock:a", "lock:b"]) == Reply::Int(0)
    });
    proxy.node(1).thaw().unwrap();
    proxy.node(2).thaw().unwrap();
    assert_free(&proxy, &["a", "b"]);
    assert_eq!(proxy.client().cmd(&["EXISTS", "under-lock"]), Reply::Int(0));
    eventually("it is counted", || proxy.metric("lockgate_lock_requests_total", "aborted") == 1.0);
    // Those that hang up in line, or whose proxy ends, have nothing either.
    proxy.client().cmd(&["LOCK", "b", "PX", "60000"]).grant();
    for ends in ["hang up", "reset", "end of the proxy"] {
        let mut waiter = proxy.client();
        waiter.send(&encode(&["MLOCK", "2", "a", "b", "WAIT", "60000"]));
        eventually("it waits", || proxy.waiters() == 1);
        match ends {
            "hang up" => waiter.hang_up(),
            "reset" => waiter.reset(),
            _ => {
                proxy.terminate();
                assert!(waiter.is_at_end());
                assert_free(&proxy, &["a"]);
                return;
            }
        }
        eventually("it has left", || proxy.waiters() == 0);
        assert_free(&proxy, &["a"]);
    }
}

#[test]
fn what_was_granted_is_given_back_while_the_rest_is_unknown() {
    let rules = "adopt: {keys: 'lock:s:*', lock: 's:{1}', mode: bridge}";
    let mut proxy = Proxy::with().nodes(3).top(rules).locks("authorize_cache: 60s").start();
    let mut client = proxy.client();
    let words = ["MLOCK", "2", "a", "s:1", "PX", "60000"];
    let all = AllGranted::of(&client.cmd(&words));
    proxy.assert_value_on_nodes("lock:s:1", &all.token);
    assert_eq!(proxy.data_client().cmd(&["GET", "lock:s:1"]), Reply::bulk(&all.token));
    assert_eq!(client.cmd(&["MUNLOCK", "2", "a", "s:1"]), Reply::Int(2));
    assert_eq!(proxy.data_client().cmd(&["GET", "lock:s:1"]), Reply::NullBulk);
    // The data node, which a bridged lock needs too, does not answer; the other lock is granted meanwhile.
    for hangs_up in [true, false] {
        proxy.data().freeze().unwrap();
        client.send(&encode(&words));
        proxy.assert_on_nodes("lock:a", 3);
        if hangs_up {
            client.hang_up();
        } else {
            let reply = client.reply();
            assert!(reply.error().starts_with("NOQUORUM a bridged lock needs"), "{reply:?}");
        }
        assert_free(&proxy, &["a", "s:1"]);
        proxy.data().thaw().unwrap();
        client = proxy.client();
        eventually("the data node answers", || client.cmd(&["PING"]) == Reply::simple("PONG"));
        AllGranted::of(&client.cmd(&[&words[..], &["WAIT", "10000"]].concat()));
        assert_eq!(client.cmd(&["MUNLOCK", "2", "a", "s:1"]), Reply::Int(2));
    }
    // So it is if lock nodes do not answer about one of them: its fence has come to its end.
    for node in 0..2 {
        proxy.node_client(node).cmd(&["SET", "lockgate:fence:lock:b", "9007199254740991"]);
    }
    let reply = client.cmd(&["MLOCK", "2", "a", "b", "PX", "60000"]);
    assert!(reply.error().starts_with("NOQUORUM "), "{reply:?}");
    assert_free(&proxy, &["a", "b"]);
}

#[test]
fn bad_words_are_refused_in_redis_wording_and_harm_nothing() {
    let proxy = Proxy::with().nodes(1).start();
    let mut client = proxy.client();
    let keys: Vec<String> = (0..140).map(|n| format!("k{n}")).collect();
    let many = |number: &'static str, count: usize| {
        let named = keys[..count].iter().map(String::as_str);
        ["MLOCK", number].into_iter().chain(named).collect::<Vec<_>>()
    };
    let long = "x".repeat(4096);
    let longest = [&["MLOCK", "20"][..], &[&*long; 20]].concat();
    let cases: [(&[&str], &str); 14] = [
        (&["MLOCK"], "ERR wrong number of arguments for 'mlock' command"),
        (&["munlock", "1"], "ERR wrong number of arguments for 'munlock' command"),
        (&["MLOCK", "0", "a"], "ERR numkeys should be greater than 0, '0' is not"),
        (&["MLOCK", "a", "b"], "ERR numkeys should be greater than 0, 'a' is not"),
        (&many("129", 129), "ERR numkeys should be at most 128, '129' is more"),
        (&many("128", 140), "ERR syntax error, there are more words than 128 keys and all options"),
        (&longest, "ERR the keys are too long, together they may take 65536 bytes"),
        (
            &["MUNLOCK", "2", "a"],
            "ERR Number of keys can't be greater than number of args, numkeys is 2, and 1 words follow",
        ),
        (&["MLOCK", "2", "a", "a"], "ERR the lock 'a' is named twice"),
        (&["MLOCK", "2", "a", "", "PX", "9"], "ERR the key is empty"),
        (&["MLOCK", "1", "a", "t", "SHARED"], "ERR syntax error, unknown option 'SHARED'"),
        (&["MLOCK", "1", "a", "PERMITS", "3"], "ERR syntax error, unknown option 'PERMITS'"),
        (
            &["MLOCK", "2", "a", "b", "PX", "70000"],
            "ERR invalid expire time in 'mlock' command, the longest is 60000 ms (locks.max_ttl)",
        ),
        (&["MUNLOCK", "2", "x", "y"], "NOTOKEN this connection took no lock 'x'; name its token"),
    ];
    for (words, error) in cases {
        // The commands before and behind it keep their places.
        let replies = client.pipe(&[&["ECHO", "before"], words, &["ECHO", "behind"]]);
        assert_eq!(replies[0], Reply::bulk("before"), "{error}");
        assert_eq!(replies[1].error(), error);
        assert_eq!(replies[2], Reply::bulk("behind"), "{error}");
    }
    assert_free(&proxy, &["a", "b"]);
    // As many as there may be.
    let all = AllGranted::of(&client.cmd(&[&many("128", 128)[..], &["PX", "60000"]].concat()));
    assert_eq!(all.fences.len(), 128);
    let mut unlock = many("128", 128);
    unlock[0] = "MUNLOCK";
    assert_eq!(client.cmd(&unlock), Reply::Int(128));
    let queued = client.pipe(&[&["MULTI"], &["MLOCK", "1", "a"], &["EXEC"]]);
    assert!(queued[1].error().starts_with("ERR unknown command 'MLOCK'"), "{queued:?}");
    assert!(queued[2].error().starts_with("EXECABORT"), "{queued:?}");
    assert_free(&proxy, &["a"]);
}

#[test]
fn a_lock_that_the_connection_holds_is_named_and_stays() {
    let proxy = Proxy::with().nodes(3).start();
    let (mut client, mut other) = (proxy.client(), proxy.client());
    for held in [&["LOCK", "b"][..], &["LOCK", "b", "PX", "60000"]] {
        let token = client.cmd(held).grant().token;
        for words in [
            &["MLOCK", "2", "a", "b"][..],
            &["MLOCK", "2", "a", "b", &token, "PX", "60000"],
            &["MLOCK", "2", "a", "b", "WAIT", "60000"],
        ] {
            let refused = client.cmd(words);
            assert_eq!(refused.error(), "ERR this connection holds the lock 'b' already");
        }
        // The `finally` of the refused MLOCK, which named no token.
        assert_eq!(client.cmd(&["MUNLOCK", "2", "a", "b"]), Reply::Int(0));
        proxy.assert_value_on_nodes("lock:b", &token);
        assert_eq!(client.cmd(&["UNLOCK", "b", &token]), Reply::Int(1));
        assert_free(&proxy, &["a", "b"]);
    }
    // A lease may have been released over another connection of a pool.
    client.cmd(&["LOCK", "b", "t", "PX", "60000"]).grant();
    assert_eq!(other.cmd(&["UNLOCK", "b", "t"]), Reply::Int(1));
    AllGranted::of(&client.cmd(&["MLOCK", "2", "a", "b", "PX", "60000"]));
    assert_eq!(client.cmd(&["MUNLOCK", "2", "a", "b"]), Reply::Int(2));
}

#[test]
fn a_client_needs_the_right_to_each_key() {
    let proxy = Proxy::with().nodes(1).start();
    let user = ["ACL", "SETUSER", "app", "on", ">p", "~lock:a", "~lock:b", "+@all"];
    assert_eq!(proxy.data_client().cmd(&user), Reply::ok());
    let mut client = proxy.client();
    assert_eq!(client.cmd(&["AUTH", "app", "p"]), Reply::ok());
    for words in [
        &["MLOCK", "2", "a", "c"][..],
        &["MLOCK", "2", "c", "a"],
        // Wrong words are told only to a client that may.
        &["MLOCK", "3", "a", "b", "c", "PX", "x"],
        &["MUNLOCK", "3", "a", "c", "b", "t"],
    ] {
        for _ in 0..2 {
            let refused = client.cmd(words);
            assert!(refused.error().starts_with("NOPERM "), "{words:?}: {refused:?}");
        }
    }
    assert_free(&proxy, &["a", "b", "c"]);
    for silent in [false, true] {
        if silent {
            client.send(&encode(&["CLIENT", "REPLY", "OFF"]));
            client.send(&encode(&["MLOCK", "2", "a", "c"]));
            client.send(&encode(&["MLOCK", "2", "a", "b"]));
            client.send(&encode(&["CLIENT", "REPLY", "ON"]));
            assert_eq!(client.reply(), Reply::ok());
            proxy.assert_on_nodes("lock:b", 1);
        } else {
            AllGranted::of(&client.cmd(&["MLOCK", "2", "a", "b"]));
        }
        assert_eq!(client.cmd(&["MUNLOCK", "2", "a", "b"]), Reply::Int(2));
    }
}

#[test]
fn session_locks_end_with_their_connection_and_leases_do_not() {
    let proxy = Proxy::with().nodes(3).start();
    let mut client = proxy.client();
    let session = AllGranted::of(&client.cmd(&["MLOCK", "2", "a", "b"]));
    assert!((1..=10_000).contains(&session.validity), "default_ttl: {session:?}");
    AllGranted::of(&client.cmd(&["MLOCK", "2", "c", "d", "PX", "60000"]));
    // They are kept beyond their TTL.
    thread::sleep(ms(100));
    assert_eq!(proxy.metric("lockgate_session_locks", ""), 2.0);
    client.hang_up();
    assert_free(&proxy, &["a", "b"]);
    proxy.assert_on_nodes("lock:c", 3);
    proxy.assert_on_nodes("lock:d", 3);
    // One that is lost is told by its name, and the other is still held.
    let (mut client, mut operator) = (proxy.client(), proxy.client());
    let session = AllGranted::of(&client.cmd(&["MLOCK", "2", "a", "b"]));
    assert_eq!(operator.cmd(&["LOCKGATE", "UNLOCK", "a", "ANY"]), Reply::Int(1));
    let lost = client.cmd(&["GET", "x"]);
    assert_eq!(lost.error(), "LOCKLOST the lock 'a' was lost, this command was not executed");
    proxy.assert_value_on_nodes("lock:b", &session.token);
    assert_eq!(client.cmd(&["MUNLOCK", "2", "a", "b"]), Reply::Int(1));
    // MUNLOCK itself tells of the loss by its number, and releases the other one.
    AllGranted::of(&client.cmd(&["MLOCK", "2", "a", "b"]));
    assert_eq!(operator.cmd(&["LOCKGATE", "UNLOCK", "b", "ANY"]), Reply::Int(1));
    assert_eq!(client.cmd(&["MUNLOCK", "2", "a", "b"]), Reply::Int(1));
    assert_eq!(client.cmd(&["GET", "x"]), Reply::NullBulk);
    assert_free(&proxy, &["a", "b"]);
}

#[test]
fn a_release_that_too_few_nodes_answer_is_asked_again_without_harm() {
    let mut proxy = Proxy::with().nodes(3).start();
    let mut client = proxy.client();
    AllGranted::of(&client.cmd(&["MLOCK", "2", "a", "b", "t", "PX", "60000"]));
    (0..2).for_each(|node| proxy.node(node).freeze().unwrap());
    assert!(client.cmd(&["MUNLOCK", "2", "a", "b", "t"]).error().starts_with("NOQUORUM "));
    let refused = client.cmd(&["MLOCK", "2", "c", "d"]);
    assert!(refused.error().starts_with("NOQUORUM "), "{refused:?}");
    (0..2).for_each(|node| proxy.node(node).thaw().unwrap());
    eventually("all are back", || proxy.nodes_up() == 3);
    let again = client.cmd(&["MUNLOCK", "2", "a", "b", "t"]);
    assert!(matches!(again, Reply::Int(0..=2)), "{again:?}");
    assert_free(&proxy, &["a", "b", "c", "d"]);
}

#[test]
fn clients_that_wait_for_one_another_are_told() {
    let proxy = Proxy::with().nodes(3).start();
    let (mut a, mut b) = (proxy.client(), proxy.client());
    AllGranted::of(&a.cmd(&["MLOCK", "2", "x", "y"]));
    b.cmd(&["LOCK", "z"]).grant();
    a.send(&encode(&["LOCK", "z", "WAIT", "60000"]));
    eventually("it waits", || proxy.waiters() == 1);
    let told = b.cmd(&["MLOCK", "2", "free", "y", "WAIT", "60000"]);
    assert_eq!(told.error(), "DEADLOCK clients wait for one another: 'y', 'z'");
    assert_free(&proxy, &["free"]);
    assert_eq!(b.cmd(&["UNLOCK", "z"]), Reply::Int(1));
    a.reply().grant();
}

#[test]
fn guards_have_the_fence_of_each_before_the_client_is_told() {
    let rules = "guards:\n  - keys: 'account:*'\n    lock: 'account:{1}'";
    let mut proxy = Proxy::with().nodes(3).top(rules).start();
    let (mut client, mut other) = (proxy.client(), proxy.client());
    let words = ["MLOCK", "3", "account:1", "free", "account:2", "PX", "60000"];
    // The data node has seen a larger fence of the second account: the lock nodes raise it.
    let seen = other.cmd(&["LOCK", "account:2", "PX", "60000"]).grant().fence + 5_000_000;
    assert_eq!(other.cmd(&["UNLOCK", "account:2"]), Reply::Int(1));
    let (one, two) = ("lockgate:guard:lock:account:1", "lockgate:guard:lock:account:2");
    proxy.data_client().cmd(&["SET", two, &seen.to_string()]);
    let all = AllGranted::of(&client.cmd(&words));
    assert!(all.fences[2] > seen, "{all:?} after {seen}");
    for (key, fence) in [(one, all.fences[0]), (two, all.fences[2])] {
        assert_eq!(proxy.data_client().cmd(&["GET", key]), Reply::bulk(&fence.to_string()));
    }
    for account in ["account:1", "account:2"] {
        assert_eq!(client.cmd(&["SET", account, "5"]), Reply::ok());
        assert!(other.cmd(&["SET", account, "6"]).error().starts_with("NOTHELD "));
    }
    assert_eq!(client.cmd(&["MUNLOCK", "3", "account:1", "free", "account:2"]), Reply::Int(3));
    // If the data node takes one of the fences no more, there is none of the locks.
    proxy.data_client().cmd(&["SET", two, "9007199254740991"]);
    let refused = client.cmd(&words);
    assert!(refused.error().starts_with("FENCED the data node has seen fence"), "{refused:?}");
    assert_free(&proxy, &["account:1", "free", "account:2"]);
    assert_eq!(client.cmd(&["MUNLOCK", "3", "account:1", "free", "account:2"]), Reply::Int(0));
    // Nor is there if the client leaves before the data node has taken them.
    proxy.data_client().cmd(&["DEL", two]);
    proxy.data().freeze().unwrap();
    client.send(&encode(&words));
    proxy.assert_on_nodes("lock:free", 3);
    client.hang_up();
    assert_free(&proxy, &["account:1", "free", "account:2"]);
    proxy.data().thaw().unwrap();
}
