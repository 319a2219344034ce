//! What LOCK, UNLOCK and RENEW promise, with real nodes.

use std::{thread, time::Duration};

use crate::support::{Client, Proxy, Reply, encode, eventually, pipeline};

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

#[test]
fn every_row_of_the_command_table() {
    for nodes in [1, 3, 7] {
        let proxy = Proxy::with().nodes(nodes).start();
        let (mut a, mut b) = (proxy.client(), proxy.client());
        let grant = a.cmd(&["LOCK", "k", "PX", "10000"]).grant();
        assert!(grant.token.len() >= 22 && grant.token.bytes().all(|b| b.is_ascii_graphic()));
        assert!((9000..=9898).contains(&grant.validity), "{grant:?}");
        assert_eq!(b.cmd(&["LOCK", "k", "PX", "10000"]), Reply::NullArray);
        assert!(matches!(b.cmd(&["HELLO", "3"]), Reply::Map(_)));
        assert_eq!(b.cmd(&["LOCK", "k", "t", "EX", "10"]), Reply::Null);
        // A client that was refused may still send its UNLOCK; one that never asked may not.
        for words in [&["UNLOCK", "k"][..], &["RENEW", "k"]] {
            let error = "NOTOKEN this connection took no lock 'k'; name its token";
            assert_eq!(b.cmd(words), Reply::Int(0));
            assert_eq!(proxy.client().cmd(words).error(), error);
        }
        assert_eq!(b.cmd(&["UNLOCK", "k", "wrong"]), Reply::Int(0));
        assert_eq!(b.cmd(&["RENEW", "k", "wrong"]), Reply::Int(0));
        let Reply::Int(validity) = a.cmd(&["RENEW", "k", "PX", "20000"]) else { panic!() };
        assert!((19_000..=19_798).contains(&validity), "{validity}");
        let Reply::Int(validity) = a.cmd(&["renew", "k"]) else { panic!() };
        assert!(validity > 19_000, "the TTL before is kept: {validity}");
        assert_eq!(a.cmd(&["UNLOCK", "k"]), Reply::Int(1));
        assert_eq!(a.cmd(&["UNLOCK", "k"]), Reply::Int(0));
        eventually("released everywhere", || proxy.nodes_with("lock:k") == 0);
        let next = b.cmd(&["LOCK", "k", "mine", "PX", "10000"]).grant();
        assert_eq!(next.token, "mine");
        assert!(next.fence > grant.fence);
        assert_eq!(a.cmd(&["UNLOCK", "k", "mine"]), Reply::Int(1), "a token is enough");
    }
}

#[test]
fn bad_words_are_refused_in_redis_wording_and_harm_nothing() {
    let proxy = Proxy::start();
    let mut client = proxy.client();
    let long = "x".repeat(5000);
    let huge = "x".repeat(200_000);
    let cases: [(&[&str], &str); 22] = [
        (&["LOCK"], "ERR wrong number of arguments for 'lock' command"),
        (&["unlock"], "ERR wrong number of arguments for 'unlock' command"),
        (&["UNLOCK", "a", "b", "c"], "ERR wrong number of arguments for 'unlock' command"),
        (&["RENEW"], "ERR wrong number of arguments for 'renew' command"),
        (&["LOCK", "a", "PX", "1", "FOO", "1"], "ERR syntax error, unknown option 'FOO'"),
        (&["LOCK", "a", "b", "PX"], "ERR syntax error, 'PX' lacks its value"),
        (
            &["LOCK", "a", "1", "2", "3", "4", "5", "6", "7", "8", "9"],
            "ERR syntax error, there are more words than options",
        ),
        (&["LOCK", "a", "PX", "x"], "ERR value is not an integer or out of range, 'x' for PX"),
        (
            &["LOCK", "a", "PX", "99999999999999999999"],
            "ERR value is not an integer or out of range, '99999999999999999999' for PX",
        ),
        (
            &["LOCK", "a", "PX", "0"],
            "ERR invalid expire time in 'lock' command, the shortest is 4 ms",
        ),
        (
            &["LOCK", "a", "EX", "-1"],
            "ERR invalid expire time in 'lock' command, the shortest is 4 ms",
        ),
        (
            &["RENEW", "a", "PX", "3"],
            "ERR invalid expire time in 'renew' command, the shortest is 4 ms",
        ),
        (&["LOCK", "a", "30000"], "ERR '30000' is no token; for a TTL write LOCK a PX 30000"),
        (&["LOCK", "", "PX", "1000"], "ERR the key is empty"),
        (
            &["LOCK", "a", "EX", "61"],
            "ERR invalid expire time in 'lock' command, the longest is 60000 ms (locks.max_ttl)",
        ),
        (&["LOCK", &long, "PX", "1000"], "ERR key is longer than 4096 bytes (locks.max_key)"),
        (&["UNLOCK", "a", &long], "ERR token is longer than 1024 bytes (locks.max_token)"),
        (
            &["LOCK", &huge, "PX", "1000"],
            "ERR key or token is too long (locks.max_key, locks.max_token)",
        ),
        (&["RENEW", "a", &huge], "ERR key or token is too long (locks.max_key, locks.max_token)"),
        (
            &["LOCK", "a", "PX", "1000", "WAIT", "x"],
            "ERR timeout is not an integer or out of range, 'x' for WAIT",
        ),
        (&["LOCK", "a", "WAIT", "-1"], "ERR timeout is negative"),
        (
            &["LOCK", "a", "WAIT", "60001"],
            "ERR invalid wait time in 'lock' command, the longest is 60000 ms (locks.max_wait)",
        ),
    ];
    for (words, error) in cases {
        // The commands before and behind it keep their places.
        let replies = client.pipe(&[&["ECHO", "before"], words, &["ECHO", "behind"]]);
        assert_eq!(replies[0], Reply::bulk("before"), "{words:?}");
        assert_eq!(replies[1].error(), error, "{:?}", &words[..words.len().min(3)]);
        assert_eq!(replies[2], Reply::bulk("behind"), "{words:?}");
    }
    assert_eq!(proxy.nodes_with("lock:a"), 0);
}

#[test]
fn who_was_refused_a_lock_cannot_free_it() {
    let proxy = Proxy::with().nodes(3).start();
    let other = Proxy::beside(&proxy).start();
    for (key, mut b) in [("k", proxy.client()), ("l", other.client())] {
        let mut a = proxy.client();
        let lease = ["LOCK", key, "host", "PX", "60000"];
        // Two programs on one host would use one token like this, each on its own connection.
        for (held, wait) in [(&lease[..], None), (&lease[..3], None), (&lease[..], Some("50"))] {
            a.cmd(held).grant();
            // A quorum has answered. A node that is asked late would vote for b first, who leaves it again.
            proxy.assert_value_on_nodes(&format!("lock:{key}"), "host");
            let wanted = wait.map_or(lease.to_vec(), |ms| [&lease[..], &["WAIT", ms]].concat());
            assert_eq!(b.cmd(&wanted), Reply::NullArray);
            for _ in 0..2 {
                assert_eq!(b.cmd(&["UNLOCK", key, "host"]), Reply::Int(0), "finally: UNLOCK");
                assert_eq!(b.cmd(&["RENEW", key, "host", "PX", "60000"]), Reply::Int(0));
                assert_eq!(b.cmd(&["RENEW", key, "host"]), Reply::Int(0));
            }
            proxy.assert_value_on_nodes(&format!("lock:{key}"), "host");
            assert_eq!(a.cmd(&["UNLOCK", key, "host"]), Reply::Int(1));
            // A grant made since the refusal is the client's own, made on another connection of its pool.
            a.cmd(held).grant();
            assert_eq!(b.cmd(&["UNLOCK", key, "host"]), Reply::Int(1));
            a.cmd(&["UNLOCK", key, "host"]);
        }
        // So is a grant made after the token was refused without having a lock.
        a.cmd(&["LOCK", key, "other", "PX", "60000"]).grant();
        assert_eq!(b.cmd(&lease), Reply::NullArray);
        assert_eq!(a.cmd(&["UNLOCK", key, "other"]), Reply::Int(1));
        a.cmd(&lease).grant();
        assert!(matches!(b.cmd(&["RENEW", key, "host", "PX", "60000"]), Reply::Int(1..)));
        assert_eq!(b.cmd(&["UNLOCK", key, "host"]), Reply::Int(1));
        // Once attached, the connection acts for the holder of the lock.
        a.cmd(&lease).grant();
        assert_eq!(b.cmd(&lease), Reply::NullArray);
        b.cmd(&["LOCK.ATTACH", key, "host"]).grant();
        assert_eq!(b.cmd(&["UNLOCK", key, "host"]), Reply::Int(1));
        // A lock that the client held before stays its own, whatever is refused later.
        b.cmd(&["LOCK", key, "mine", "PX", "60000"]).grant();
        assert_eq!(b.cmd(&["LOCK", key, "another", "PX", "60000"]), Reply::NullArray);
        assert_eq!(b.cmd(&["UNLOCK", key, "another"]), Reply::Int(0));
        assert_eq!(b.cmd(&["UNLOCK", key, "mine"]), Reply::Int(1));
    }
    assert_eq!(proxy.metric("lockgate_left_alone_total", "why=\"refused\""), 18.0);
    assert_eq!(proxy.metric("lockgate_left_alone_total", "why=\"unsure\""), 0.0);
}

#[test]
fn a_refusal_that_is_not_remembered_frees_nothing() {
    let proxy = Proxy::with().nodes(3).start();
    let (mut a, mut b) = (proxy.client(), proxy.client());
    // Refusals because of other tokens need not be remembered.
    a.cmd(&["LOCK", "k", "t", "PX", "60000"]).grant();
    for n in 0..600 {
        assert_eq!(b.cmd(&["LOCK", "k", &format!("t{n}"), "PX", "60000"]), Reply::NullArray);
    }
    assert_eq!(b.cmd(&["UNLOCK", "k", "t0"]), Reply::Int(0));
    assert_eq!(b.cmd(&["UNLOCK", "k", "t"]), Reply::Int(1));
    let keys: Vec<String> = (0..300).map(|n| format!("k{n}")).collect();
    for key in &keys {
        a.cmd(&["LOCK", key, "host", "PX", "60000"]).grant();
        assert_eq!(b.cmd(&["LOCK", key, "host", "PX", "60000"]), Reply::NullArray);
    }
    let unsure = "UNSURE this connection was refused a LOCK of 'k0' with this token, or its \
                  reader by it has ended, and whether another client has the lock by it is not \
                  known; use the connection that was \
                  granted it";
    assert_eq!(b.cmd(&["UNLOCK", "k0", "host"]).error(), unsure);
    assert_eq!(b.cmd(&["RENEW", "k0", "host"]).error(), unsure);
    assert_eq!(b.cmd(&["UNLOCK", "k299", "host"]), Reply::Int(0));
    for key in &keys {
        assert_eq!(a.cmd(&["UNLOCK", key]), Reply::Int(1), "{key}");
    }
    assert_eq!(b.cmd(&["UNLOCK", "k0", "host"]), Reply::Int(0), "nobody has it");
    assert_eq!(proxy.metric("lockgate_left_alone_total", "why=\"unsure\""), 2.0);
}

#[test]
fn a_refusal_without_a_quorum_frees_nothing_either() {
    let mut proxy = Proxy::with().nodes(3).start();
    let other = Proxy::beside(&proxy).start();
    let (mut a, mut b, mut c) = (proxy.client(), proxy.client(), other.client());
    let lease = ["LOCK", "k", "host", "PX", "60000"];
    let refuse = |proxy: &mut Proxy, client: &mut Client| {
        (0..2).for_each(|node| proxy.node(node).freeze().unwrap());
        assert!(client.cmd(&lease).error().starts_with("NOQUORUM"));
        (0..2).for_each(|node| proxy.node(node).thaw().unwrap());
    };
    a.cmd(&lease).grant();
    refuse(&mut proxy, &mut b);
    refuse(&mut proxy, &mut c);
    eventually("all are back", || proxy.nodes_up() == 3 && other.nodes_up() == 3);
    assert_eq!(b.cmd(&["UNLOCK", "k", "host"]), Reply::Int(0), "its proxy knows since when");
    let reply = c.cmd(&["UNLOCK", "k", "host"]);
    assert!(reply.error().starts_with("UNSURE "), "{reply:?}");
    assert_eq!(a.cmd(&["UNLOCK", "k"]), Reply::Int(1));
    refuse(&mut proxy, &mut b);
    eventually("all are back", || proxy.nodes_up() == 3);
    a.cmd(&lease).grant();
    assert_eq!(b.cmd(&["UNLOCK", "k", "host"]), Reply::Int(1), "it was granted since");
}

/// The connection's own lease by the token has ended, which it does not know.
#[test]
fn behind_lock_attach_a_connection_acts_on_the_grant_that_it_was_told_of() {
    let proxy = Proxy::with().nodes(3).start();
    let lease = ["LOCK", "k", "t", "PX", "60000"];
    for words in [&["UNLOCK", "k"][..], &["UNLOCK", "k", "t"], &["RENEW", "k", "PX", "50000"]] {
        let (mut client, mut mate) = (proxy.client(), proxy.client());
        client.cmd(&lease).grant();
        assert_eq!(mate.cmd(&["UNLOCK", "k", "t"]), Reply::Int(1));
        let fence = mate.cmd(&lease).grant().fence;
        assert_eq!(client.cmd(&["LOCK.ATTACH", "k", "t"]).grant().fence, fence);
        let said = client.cmd(words);
        assert!(matches!(said, Reply::Int(1..)), "{words:?}: {said:?}");
        mate.cmd(&["UNLOCK", "k", "t"]);
        assert_eq!(proxy.nodes_with("lock:k"), 0);
    }
}

/// A proxy may not know yet that its grant of the token has ended.
#[test]
fn the_proxy_that_granted_a_lock_finds_who_has_taken_it_over() {
    let proxy = Proxy::with().nodes(3).start();
    let second = Proxy::beside(&proxy).start();
    for lock in [&["LOCK", "k", "t", "PX", "60000"][..], &["LOCK", "k", "t"]] {
        for words in [&["RENEW", "k", "t", "PX", "50000"][..], &["RENEW", "k", "t"]] {
            let (mut holder, mut taker) = (proxy.client(), second.client());
            let mut asker = proxy.client();
            holder.cmd(lock).grant();
            assert!(matches!(taker.cmd(&["RENEW", "k", "t"]), Reply::Int(1..)));
            let said = asker.cmd(words);
            assert!(matches!(said, Reply::Int(1..)), "{lock:?}, {words:?}: {said:?}");
            assert_eq!(asker.cmd(&["UNLOCK", "k", "t"]), Reply::Int(1));
            assert_eq!(proxy.nodes_with("lock:k"), 0);
        }
    }
}

/// Neither the end of its own grant, of which it is told meanwhile, nor a take-over of the other client's makes up for
/// the refusal.
#[test]
fn who_was_refused_lets_go_of_nothing_whatever_became_of_the_grants() {
    let proxy = Proxy::with().nodes(3).locks("shared: yes").start();
    let second = Proxy::beside(&proxy).start();
    let mut nodes = [0, 1, 2].map(|node| proxy.node_client(node));
    let lease = |ttl| ["LOCK", "k", "host", "PX", ttl];
    let unlock = &["UNLOCK", "k", "host"][..];
    // A quorum must answer within this TTL.
    let renew = &["RENEW", "k", "host", "PX", "1000"][..];
    let (munlock, take_over) = (&["MUNLOCK", "1", "k", "host"][..], &["RENEW", "k", "host"][..]);
    for refused in [
        &lease("60000")[..],
        &["LOCK", "k", "host", "PX", "60000", "WAIT", "1"],
        &["MLOCK", "1", "k", "host", "PX", "60000"],
        &["LOCK", "k", "host", "SHARED"],
    ] {
        for commands in [[unlock, unlock], [renew, munlock], [munlock, take_over]] {
            for (here, there) in [(&proxy, &proxy), (&proxy, &second)] {
                for how in [
                    "it had none",
                    "it ran out",
                    "it was given back",
                    "it was attached",
                    "it was taken over",
                ] {
                    let (mut asker, mut holder) = (here.client(), there.client());
                    let mut taker = there.client();
                    match how {
                        "it ran out" => {
                            let granted = || matches!(asker.cmd(&lease("60")), Reply::Array(_));
                            eventually("it is granted", granted);
                        }
                        "it was attached" => {
                            taker.cmd(&lease("60000")).grant();
                            asker.cmd(&["LOCK.ATTACH", "k", "host"]).grant();
                            assert_eq!(taker.cmd(unlock), Reply::Int(1));
                        }
                        "it was given back" => {
                            asker.cmd(&lease("60000")).grant();
                            assert_eq!(taker.cmd(unlock), Reply::Int(1));
                        }
                        _ => {}
                    }
                    let granted = || matches!(holder.cmd(&lease("60000")), Reply::Array(_));
                    eventually("the other client has it", granted);
                    let said = asker.cmd(refused);
                    // MLOCK takes the token's lock for its own.
                    let is_refused =
                        said == Reply::NullArray || said.error_text().contains("already");
                    assert!(is_refused, "{how}, {refused:?}: {said:?}");
                    if how == "it was taken over" {
                        assert!(matches!(taker.cmd(take_over), Reply::Int(1..)), "{refused:?}");
                    }
                    for words in commands {
                        let said = asker.cmd(words);
                        let is_unsure = said.error_text().starts_with("UNSURE ");
                        let is_nobodys = said == Reply::Int(0) || is_unsure;
                        assert!(is_nobodys, "{how}, {refused:?}, {words:?}: {said:?}");
                    }
                    assert_eq!(holder.cmd(&["LOCK", "k", "other"]), Reply::NullArray, "{how}");
                    // A node on which the lease of 60 ms ended last may have none: a quorum is a grant.
                    let left = nodes.each_mut().map(|node| node.cmd(&["PTTL", "lock:k"]));
                    let kept =
                        left.iter().filter(|left| matches!(left, Reply::Int(1001..))).count();
                    let lacking = left.iter().filter(|left| **left == Reply::Int(-2)).count();
                    let is_whole = kept >= 2 && kept + lacking == 3;
                    assert!(is_whole, "{how}, {refused:?}, {commands:?}: {left:?}");
                    assert_eq!(taker.cmd(unlock), Reply::Int(1), "{how}, {refused:?}");
                }
            }
        }
    }
}

#[test]
fn an_unlock_without_a_token_is_about_the_last_lock_without_one() {
    let proxy = Proxy::start();
    let mut pooled = proxy.client();
    let must_name = "NOTOKEN several LOCKs of 'k' came over this connection; name the token";
    let lock = ["LOCK", "k", "PX", "60000"];
    // Two threads share one connection of a pool.
    for refused in [&lock[..], &["LOCK", "k", "PX", "70000"], &["LOCK", "k", "WAIT", "1"]] {
        let first = pooled.cmd(&lock).grant();
        let said = pooled.cmd(refused);
        assert!(said == Reply::NullArray || said.error_text().contains("expire time"), "{said:?}");
        assert_eq!(pooled.cmd(&["RENEW", "k"]), Reply::Int(0), "{refused:?}");
        assert_eq!(pooled.cmd(&["UNLOCK", "k"]), Reply::Int(0), "finally: UNLOCK");
        assert_eq!(pooled.cmd(&["UNLOCK", "k"]).error(), must_name);
        assert_eq!(pooled.cmd(&["RENEW", "k"]).error(), must_name);
        assert_eq!(pooled.cmd(&["UNLOCK", "k", &first.token]), Reply::Int(1));
        assert_eq!(pooled.cmd(&["UNLOCK", "k"]), Reply::Int(0));
    }
    // The second thread sends its UNLOCK late.
    let first = pooled.cmd(&lock).grant();
    assert_eq!(pooled.cmd(&lock), Reply::NullArray);
    assert_eq!(pooled.cmd(&["UNLOCK", "k", &first.token]), Reply::Int(1));
    pooled.cmd(&["LOCK", "k", "third", "PX", "60000"]).grant();
    assert_eq!(pooled.cmd(&["UNLOCK", "k"]).error(), must_name);
    assert_eq!(pooled.cmd(&["UNLOCK", "k", "third"]), Reply::Int(1));
    // The token may be left out until another LOCK comes over the connection.
    pooled.cmd(&["LOCK", "k", "mine", "PX", "60000"]).grant();
    assert_eq!(pooled.cmd(&["UNLOCK", "k"]), Reply::Int(1));
    pooled.cmd(&["LOCK", "k", "mine", "PX", "60000"]).grant();
    assert_eq!(pooled.cmd(&["LOCK", "k", "another", "PX", "60000"]), Reply::NullArray);
    assert_eq!(pooled.cmd(&["UNLOCK", "k"]).error(), must_name);
    assert_eq!(pooled.cmd(&["UNLOCK", "k", "mine"]), Reply::Int(1));
    // The connection has only had a refusal.
    let mut other = proxy.client();
    other.cmd(&lock).grant();
    assert_eq!(pooled.cmd(&lock), Reply::NullArray);
    assert_eq!(pooled.cmd(&["UNLOCK", "k"]), Reply::Int(0));
    assert_eq!(other.cmd(&["UNLOCK", "k"]), Reply::Int(1));
    assert_eq!(proxy.metric("lockgate_left_alone_total", "why=\"unnamed\""), 6.0);
}

#[test]
fn a_lease_that_another_connection_has_released_is_no_deadlock() {
    let proxy = Proxy::start();
    let other = Proxy::beside(&proxy).start();
    let mut client = proxy.client();
    for mut elsewhere in [proxy.client(), other.client()] {
        client.cmd(&["LOCK", "job", "a", "PX", "20000"]).grant();
        assert_eq!(elsewhere.cmd(&["UNLOCK", "job", "a"]), Reply::Int(1));
        client.cmd(&["LOCK", "job", "b", "PX", "20000", "WAIT", "100"]).grant();
        assert_eq!(elsewhere.cmd(&["UNLOCK", "job", "b"]), Reply::Int(1));
        elsewhere.cmd(&["LOCK", "job", "c", "PX", "20000"]).grant();
        let busy = client.cmd(&["LOCK", "job", "d", "PX", "20000", "WAIT", "100"]);
        assert_eq!(busy, Reply::NullArray, "another has it");
        assert_eq!(elsewhere.cmd(&["UNLOCK", "job", "c"]), Reply::Int(1));
    }
}

#[test]
fn a_connection_waits_for_its_own_lease_which_another_may_release() {
    let proxy = Proxy::start();
    let (mut pooled, mut other) = (proxy.client(), proxy.client());
    let wanted = encode(&["LOCK", "job", "b", "PX", "60000", "WAIT", "20000"]);
    pooled.cmd(&["LOCK", "job", "a", "PX", "60000"]).grant();
    pooled.send(&wanted);
    eventually("it waits", || proxy.waiters() == 1);
    assert_eq!(other.cmd(&["UNLOCK", "job", "a"]), Reply::Int(1));
    pooled.reply().grant();
    assert_eq!(other.cmd(&["UNLOCK", "job", "b"]), Reply::Int(1));

    // Commands behind the LOCK do not end the wait for a lock that another client has meanwhile.
    pooled.cmd(&["LOCK", "job", "a", "PX", "60000"]).grant();
    assert_eq!(other.cmd(&["UNLOCK", "job", "a"]), Reply::Int(1));
    other.cmd(&["LOCK", "job", "c", "PX", "60000"]).grant();
    pooled.send(&wanted);
    eventually("it waits", || proxy.waiters() == 1);
    pooled.send(&encode(&["ECHO", "behind"]));
    thread::sleep(ms(100));
    eventually("it waits on", || proxy.waiters() == 1);
    assert_eq!(other.cmd(&["UNLOCK", "job", "c"]), Reply::Int(1));
    pooled.reply().grant();
    assert_eq!(pooled.reply(), Reply::bulk("behind"));
}

#[test]
fn a_connection_does_not_wait_for_itself() {
    let mut proxy = Proxy::with().nodes(3).start();
    let mut client = proxy.client();
    let deadlock = "DEADLOCK this connection holds the lock and would wait for itself";
    let session = client.cmd(&["LOCK", "k"]).grant();
    assert_eq!(client.cmd(&["LOCK", "k", "WAIT", "0"]).error(), deadlock);
    assert_eq!(client.cmd(&["LOCK", "k", "other", "PX", "100", "WAIT", "50"]).error(), deadlock);
    assert_eq!(client.cmd(&["UNLOCK", "k", "other"]), Reply::Int(0));
    client.cmd(&["LOCK", "k", &session.token, "WAIT", "0"]).grant();
    assert_eq!(client.cmd(&["UNLOCK", "k", &session.token]), Reply::Int(1));
    // Another connection may release a lease, unless something waits behind the LOCK.
    let lease = client.cmd(&["LOCK", "k", "PX", "60000"]).grant();
    let behind = client.pipe(&[&["LOCK", "k", "WAIT", "20000"], &["ECHO", "behind"]]);
    assert_eq!((behind[0].error(), &behind[1]), (deadlock, &Reply::bulk("behind")));
    client.send(&encode(&["LOCK", "k", "other", "PX", "60000", "WAIT", "20000"]));
    eventually("it waits", || proxy.waiters() == 1);
    client.send(&encode(&["UNLOCK", "k", "other"])[..1]);
    assert_eq!(client.reply().error(), deadlock);
    client.send(&encode(&["UNLOCK", "k", "other"])[1..]);
    assert_eq!((client.reply(), proxy.waiters()), (Reply::Int(0), 0));
    assert_eq!(client.cmd(&["UNLOCK", "k", &lease.token]), Reply::Int(1));
    // A lock that runs out meanwhile is worth waiting for.
    client.cmd(&["LOCK", "k", "PX", "300"]).grant();
    client.cmd(&["LOCK", "k", "PX", "60000", "WAIT", "30000"]).grant();
    assert_eq!(client.cmd(&["UNLOCK", "k"]), Reply::Int(1));
    // So is a lock whose UNLOCK is still under way.
    client.cmd(&["LOCK", "k", "PX", "60000"]).grant();
    (0..2).for_each(|node| proxy.node(node).freeze().unwrap());
    assert!(client.cmd(&["UNLOCK", "k"]).error().starts_with("NOQUORUM"));
    client.send(&encode(&["LOCK", "k", "PX", "60000", "WAIT", "30000"]));
    (0..2).for_each(|node| proxy.node(node).thaw().unwrap());
    client.reply().grant();
    // So is a lock that is held elsewhere.
    let mut other = proxy.client();
    let grant = other.cmd(&["LOCK", "l"]).grant();
    client.cmd(&["LOCK.ATTACH", "l", &grant.token]).grant();
    client.send(&encode(&["LOCK", "l", "WAIT", "0"]));
    eventually("it waits", || proxy.waiters() == 1);
    assert_eq!(other.cmd(&["UNLOCK", "l"]), Reply::Int(1));
    client.reply().grant();
}

#[test]
fn a_plain_set_client_and_lockgate_exclude_each_other() {
    let proxy = Proxy::with().nodes(3).start();
    let mut client = proxy.client();
    let set =
        |node: usize| proxy.node_client(node).cmd(&["SET", "lock:k", "plain", "NX", "PX", "5000"]);
    assert_eq!((set(0), set(1)), (Reply::ok(), Reply::ok()));
    assert_eq!(client.cmd(&["LOCK", "k", "PX", "5000"]), Reply::NullArray);
    eventually("what was got is released", || {
        proxy.node_client(2).cmd(&["GET", "lock:k"]) == Reply::NullBulk
    });
    for node in 0..2 {
        proxy.node_client(node).cmd(&["DEL", "lock:k"]);
    }
    let grant = client.cmd(&["LOCK", "k", "PX", "5000"]).grant();
    for node in 0..3 {
        assert_eq!(set(node), Reply::NullBulk);
        assert_eq!(proxy.node_client(node).cmd(&["GET", "lock:k"]), Reply::bulk(&grant.token));
    }
}

#[test]
fn only_one_of_many_clients_gets_a_lock() {
    let proxy = Proxy::with().nodes(5).start();
    for round in 0..10 {
        let key = format!("k{round}");
        let granted: usize = thread::scope(|scope| {
            let tries: Vec<_> = (0..8)
                .map(|_| {
                    let (proxy, key) = (&proxy, &key);
                    scope.spawn(move || {
                        let reply = proxy.client().cmd(&["LOCK", key, "PX", "30000"]);
                        usize::from(matches!(reply, Reply::Array(_)))
                    })
                })
                .collect();
            tries.into_iter().map(|t| t.join().unwrap()).sum()
        });
        assert!(granted <= 1, "{granted} clients hold {key}");
    }
}

#[test]
fn a_lock_ends_with_its_ttl() {
    let proxy = Proxy::with().nodes(3).start();
    let mut client = proxy.client();
    client.cmd(&["LOCK", "k", "PX", "1000"]).grant();
    assert_eq!(client.cmd(&["LOCK", "k", "PX", "1000"]), Reply::NullArray);
    thread::sleep(ms(1010));
    client.cmd(&["LOCK", "k", "PX", "1000"]).grant();
}

#[test]
fn the_holder_may_lock_again_and_fences_only_grow() {
    let proxy = Proxy::with().nodes(3).start();
    let mut client = proxy.client();
    let mut last = 0;
    for _ in 0..20 {
        let grant = client.cmd(&["LOCK", "k", "t", "PX", "5000"]).grant();
        assert!(grant.fence > last);
        last = grant.fence;
    }
    client.cmd(&["UNLOCK", "k", "t"]);
    // A node whose fence is far ahead makes the next fence larger still.
    proxy.node_client(1).cmd(&["SET", "lockgate:fence:lock:k", "9000000000000000"]);
    let mut fences = Vec::new();
    for _ in 0..5 {
        fences.push(client.cmd(&["LOCK", "k", "PX", "5000"]).grant().fence);
        client.cmd(&["UNLOCK", "k"]);
    }
    eventually("the far fence was seen", || {
        let grant = client.cmd(&["LOCK", "k", "PX", "5000"]).grant();
        client.cmd(&["UNLOCK", "k"]);
        fences.push(grant.fence);
        grant.fence > 9_000_000_000_000_000
    });
    assert!(fences.windows(2).all(|pair| pair[0] < pair[1]), "{fences:?}");
}

#[test]
fn locks_hold_while_a_quorum_is_up_and_noquorum_says_who_is_missing() {
    let mut proxy = Proxy::with().nodes(5).locks("quarantine: no").start();
    let mut client = proxy.client();
    let held = client.cmd(&["LOCK", "held", "PX", "60000"]).grant();
    for killed in 0..3 {
        proxy.node(killed).kill().unwrap();
        eventually("it is seen", || proxy.nodes_up() == 4 - killed);
        let (mut a, mut b) = (proxy.client(), proxy.client());
        if killed < 2 {
            a.cmd(&["LOCK", "k", "PX", "5000"]).grant();
            assert_eq!(b.cmd(&["LOCK", "k", "PX", "5000"]), Reply::NullArray);
            assert_eq!(b.cmd(&["LOCK", "held", "PX", "5000"]), Reply::NullArray);
            assert!(matches!(a.cmd(&["RENEW", "k"]), Reply::Int(1..)));
            assert_eq!(a.cmd(&["UNLOCK", "k"]), Reply::Int(1));
        } else {
            for words in [
                ["LOCK", "k", "t", "PX", "5000"].as_slice(),
                &["UNLOCK", "k", "u"],
                &["RENEW", "k", "t"],
            ] {
                let reply = a.cmd(words);
                let error = reply.error();
                assert!(
                    error.starts_with("NOQUORUM 2 of 5 lock nodes answered, 3 are needed; "),
                    "{error}"
                );
                for node in 0..3 {
                    let address = proxy.node(node).addr().to_string();
                    assert!(error.contains(&format!("{address} (down)")), "{error}");
                }
            }
            assert!(proxy.http("/readyz").starts_with("HTTP/1.1 503"));
            assert_eq!(a.cmd(&["SET", "x", "1"]), Reply::ok(), "other commands do not care");
        }
    }
    for node in 3..5 {
        assert_eq!(proxy.node_client(node).cmd(&["EXISTS", "lock:k"]), Reply::Int(0), "released");
    }
    // The nodes are back, but empty: the held lock has two votes of five left.
    for node in 0..3 {
        proxy.node(node).restart().unwrap();
    }
    eventually("all are back", || proxy.nodes_up() == 5);
    client.cmd(&["LOCK", "k", "PX", "5000"]).grant();
    assert_eq!(client.cmd(&["UNLOCK", "held", &held.token]), Reply::Int(0));
}

#[test]
fn nodes_that_are_all_late_at_once_are_waited_for_once_more() {
    let mut proxy =
        Proxy::with().nodes(3).locks("node_timeout: 1500ms\n  node_silence: 20s").start();
    let mut client = proxy.client();
    for words in [&["LOCK", "k", "t", "PX", "60000"][..], &["UNLOCK", "k", "t"]] {
        // To the proxy it looks as if this machine stood still while the nodes are stopped.
        (0..3).for_each(|node| proxy.node(node).freeze().unwrap());
        client.send(&encode(words));
        thread::sleep(ms(2000));
        (0..3).for_each(|node| proxy.node(node).thaw().unwrap());
        match client.reply() {
            Reply::Int(released) => assert_eq!(released, 1),
            granted => {
                let validity = granted.grant().validity;
                assert!(validity <= 58_000, "it counts from the first question: {validity}");
            }
        }
    }
    assert_eq!(proxy.metric("lockgate_all_late_total", ""), 2.0);
}

#[test]
fn a_node_stopped_during_acquire_is_left_without_a_ghost() {
    // The connection survives the stop.
    let proxy = Proxy::with().nodes(3).start();
    ghost_hunt(proxy, ms(300));
    // The connection is closed because of the silence, and made anew after the stop.
    let proxy = Proxy::with().nodes(3).locks("node_silence: 200ms").start();
    ghost_hunt(proxy, ms(800));
}

fn ghost_hunt(mut proxy: Proxy, stopped: Duration) {
    let mut client = proxy.client();
    proxy.node(0).freeze().unwrap();
    let grant = client.cmd(&["LOCK", "won", "PX", "60000"]).grant();
    assert!(grant.validity < 59_900);
    assert_eq!(client.cmd(&["UNLOCK", "won"]), Reply::Int(1));
    // One of the two nodes that answer has another's lock: it is not granted, and the stopped node is unknown.
    proxy.node_client(1).cmd(&["SET", "lock:lost", "other", "PX", "60000"]);
    let reply = client.cmd(&["LOCK", "lost", "PX", "60000"]);
    assert_eq!(reply, Reply::NullArray);
    thread::sleep(stopped);
    proxy.node(0).thaw().unwrap();
    eventually("the node is up", || proxy.nodes_up() == 3);
    // The stopped node has read everything it had to read before it votes on this.
    proxy.client().cmd(&["LOCK", "after", "PX", "60000"]).grant();
    eventually("the node votes again", || {
        proxy.node_client(0).cmd(&["EXISTS", "lock:after"]) == Reply::Int(1)
    });
    for key in ["lock:won", "lock:lost"] {
        assert_eq!(proxy.node_client(0).cmd(&["EXISTS", key]), Reply::Int(0), "ghost of {key}");
    }
}

#[test]
fn a_node_killed_with_requests_in_flight_fails_them_at_once() {
    let mut proxy = Proxy::with()
        .nodes(1)
        .locks("node_timeout: 5s")
        .locks("node_silence: 6s")
        .locks("quarantine: no")
        .start();
    let mut client = proxy.client();
    proxy.node(0).freeze().unwrap();
    client.send(&pipeline(&[&["LOCK", "k", "PX", "60000"]]));
    thread::sleep(ms(100));
    let begun = std::time::Instant::now();
    proxy.node(0).kill().unwrap();
    let reply = client.reply();
    assert!(reply.error().contains("(disconnected)"), "{reply:?}");
    assert!(begun.elapsed() < Duration::from_secs(4), "it did not wait for node_timeout");
    proxy.node(0).restart().unwrap();
    eventually("the node is up", || proxy.nodes_up() == 1);
    client.cmd(&["LOCK", "k", "PX", "60000"]).grant();
}

#[test]
fn scripts_forgotten_by_the_nodes_are_loaded_again_unseen() {
    let proxy = Proxy::with().nodes(3).start();
    let mut client = proxy.client();
    for round in 0..5 {
        for node in 0..3 {
            proxy.node_client(node).cmd(&["SCRIPT", "FLUSH"]);
        }
        let key = format!("k{round}");
        client.cmd(&["LOCK", &key, "PX", "60000"]).grant();
        for node in 0..3 {
            proxy.node_client(node).cmd(&["SCRIPT", "FLUSH"]);
        }
        assert!(matches!(client.cmd(&["RENEW", &key]), Reply::Int(1..)));
        assert_eq!(client.cmd(&["UNLOCK", &key]), Reply::Int(1));
        eventually("released everywhere", || proxy.nodes_with(&format!("lock:{key}")) == 0);
    }
}

#[test]
fn a_client_that_hangs_up_during_its_lock_leaves_nothing() {
    for reset in [false, true] {
        let mut proxy =
            Proxy::with().nodes(3).locks("node_timeout: 5s").locks("node_silence: 6s").start();
        // Two silent nodes keep the LOCK waiting.
        proxy.node(1).freeze().unwrap();
        proxy.node(2).freeze().unwrap();
        let mut client = proxy.client();
        client.send(&pipeline(&[&["LOCK", "k", "PX", "60000"], &["SET", "under-lock", "1"]]));
        eventually("the first node has it", || {
            proxy.node_client(0).cmd(&["EXISTS", "lock:k"]) == Reply::Int(1)
        });
        if reset {
            let socket = socket2::SockRef::from(client.socket());
            socket.set_linger(Some(Duration::ZERO)).unwrap();
            drop(client);
        } else {
            client.hang_up();
        }
        eventually("the first node is free", || {
            proxy.node_client(0).cmd(&["EXISTS", "lock:k"]) == Reply::Int(0)
        });
        proxy.node(1).thaw().unwrap();
        proxy.node(2).thaw().unwrap();
        eventually("the others are free", || proxy.nodes_with("lock:k") == 0);
        thread::sleep(ms(50));
        assert_eq!(proxy.nodes_with("lock:k"), 0);
        assert_eq!(proxy.client().cmd(&["EXISTS", "under-lock"]), Reply::Int(0));
        eventually("it is counted", || {
            proxy.metric("lockgate_lock_requests_total", "aborted") == 1.0
        });
    }
}

#[test]
fn a_full_queue_refuses_an_acquire_and_never_a_release() {
    let mut proxy = Proxy::with().nodes(1).locks("node_queue: 4").locks("node_timeout: 1s").start();
    let mut holder = proxy.client();
    holder.cmd(&["LOCK", "held", "t", "PX", "60000"]).grant();
    proxy.node(0).freeze().unwrap();
    let mut clients: Vec<_> = (0..4).map(|_| proxy.client()).collect();
    for (index, client) in clients.iter_mut().enumerate() {
        client.send(&pipeline(&[&["LOCK", &format!("k{index}"), "PX", "60000"]]));
    }
    thread::sleep(ms(100));
    let reply = proxy.client().cmd(&["LOCK", "one-more", "PX", "60000"]);
    assert!(reply.error().contains("(busy)"), "{reply:?}");
    holder.send(&pipeline(&[&["UNLOCK", "held", "t"]]));
    thread::sleep(ms(100));
    proxy.node(0).thaw().unwrap();
    assert_eq!(holder.reply(), Reply::Int(1));
    assert!(proxy.metric("lockgate_node_errors_total", "queue_full") >= 1.0);
}

#[test]
fn nodes_are_reached_with_password_database_and_unix_socket() {
    let protected =
        lockgate::tools::redis_server::RedisServer::start(&["--requirepass", "s3cret"]).unwrap();
    let plain = lockgate::tools::redis_server::RedisServer::start(&[]).unwrap();
    let user = lockgate::tools::redis_server::RedisServer::start(&[]).unwrap();
    Client::connect(user.port()).cmd(&["ACL", "SETUSER", "gate", "on", ">p@ss", "~*", "+@all"]);
    let urls = [
        format!("redis://:s3cret@127.0.0.1:{}/3", protected.port()),
        format!("unix://{}?db=2", plain.unix_socket().display()),
        format!("redis://gate:p@ss@127.0.0.1:{}", user.port()),
    ];
    let proxy = Proxy::with().node_urls(&urls).start();
    eventually("all are up", || proxy.nodes_up() == 3);
    let mut client = proxy.client();
    let grant = client.cmd(&["LOCK", "k", "PX", "60000"]).grant();
    eventually("all have it", || {
        let mut direct = Client::connect(plain.port());
        direct.cmd(&["SELECT", "2"]);
        direct.cmd(&["GET", "lock:k"]) == Reply::bulk(&grant.token)
    });
    let mut direct = Client::connect(protected.port());
    direct.pipe(&[&["AUTH", "s3cret"], &["SELECT", "3"]]);
    assert_eq!(direct.cmd(&["GET", "lock:k"]), Reply::bulk(&grant.token));
    let seen = proxy.http("/metrics") + &proxy.http("/readyz") + &proxy.log();
    assert!(!seen.contains("s3cret") && !seen.contains("p@ss"), "a password is shown");
    assert!(!seen.contains(&grant.token) && !seen.contains("lock:k"), "a key or token is shown");
}

#[test]
fn a_wrong_password_is_named_and_the_node_does_not_vote() {
    let protected =
        lockgate::tools::redis_server::RedisServer::start(&["--requirepass", "right"]).unwrap();
    let urls = [format!("redis://:wrong@127.0.0.1:{}", protected.port())];
    let proxy = Proxy::with().node_urls(&urls).start();
    eventually("it is named", || proxy.http("/readyz").contains("WRONGPASS"));
    assert!(
        proxy.client().cmd(&["LOCK", "k", "PX", "1000"]).error().starts_with("NOQUORUM 0 of 1")
    );
}

#[test]
fn a_node_that_answers_garbage_hurts_nobody() {
    use std::io::{Read, Write};
    // No real Redis can be made to misbehave like this.
    for garbage in [b"*1\r\n".repeat(100_000), vec![b'x'; 1_000_000], b"+OK\r\n".repeat(1000)] {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        thread::spawn(move || {
            while let Ok((mut stream, _)) = listener.accept() {
                let garbage = garbage.clone();
                thread::spawn(move || {
                    let _ = stream.write_all(&garbage);
                    let _ = stream.read(&mut [0; 1000]);
                });
            }
        });
        let good: Vec<_> = (0..2)
            .map(|_| lockgate::tools::redis_server::RedisServer::start(&[]).unwrap())
            .collect();
        let urls = [format!("redis://127.0.0.1:{port}"), good[0].url(), good[1].url()];
        let mut proxy = Proxy::with().node_urls(&urls).locks("quarantine: no").start();
        eventually("the good ones are up", || proxy.nodes_up() == 2);
        let mut client = proxy.client();
        for _ in 0..20 {
            client.cmd(&["LOCK", "k", "PX", "5000"]).grant();
            assert_eq!(client.cmd(&["UNLOCK", "k"]), Reply::Int(1));
        }
        eventually("it is named", || proxy.http("/readyz").contains("makes no sense"));
        assert!(proxy.is_alive() && proxy.memory("VmRSS") < 64 << 20);
    }
}

#[test]
fn a_holder_that_fails_to_lock_again_still_holds() {
    let mut proxy = Proxy::with().nodes(3).start();
    let mut holder = proxy.client();
    holder.cmd(&["LOCK", "k", "t", "PX", "60000"]).grant();
    proxy.node(1).freeze().unwrap();
    proxy.node(2).freeze().unwrap();
    assert!(holder.cmd(&["LOCK", "k", "t", "PX", "60000"]).error().starts_with("NOQUORUM 1 of 3"));
    proxy.node(1).thaw().unwrap();
    proxy.node(2).thaw().unwrap();
    eventually("all vote again", || {
        matches!(holder.cmd(&["LOCK", "other", "o", "PX", "60000"]), Reply::Array(_))
    });
    // The grant counts until its TTL has run out.
    assert_eq!(proxy.client().cmd(&["LOCK", "k", "PX", "60000"]), Reply::NullArray);
    assert!(matches!(holder.cmd(&["RENEW", "k", "t"]), Reply::Int(1..)));
}

#[test]
fn a_node_has_at_most_a_tenth_of_the_ttl() {
    let mut proxy = Proxy::with().locks("node_timeout: 6s").locks("node_silence: 30s").start();
    let mut client = proxy.client();
    proxy.node(0).freeze().unwrap();
    let begun = std::time::Instant::now();
    assert!(client.cmd(&["LOCK", "k", "PX", "2000"]).error().contains("(timeout)"));
    let took = begun.elapsed();
    assert!(took >= ms(200) && took < ms(4000), "{took:?}");
}

#[test]
fn what_was_given_back_while_a_node_was_cut_off_is_given_back_there_too() {
    let mut proxy = Proxy::with().nodes(3).locks("node_silence: 200ms").start();
    let mut client = proxy.client();
    client.cmd(&["LOCK", "before", "PX", "60000"]).grant();
    eventually("all have it", || proxy.nodes_with("lock:before") == 3);
    proxy.node(0).freeze().unwrap();
    // This LOCK lies unread in the stopped node's socket, and is carried out after the stop.
    client.cmd(&["LOCK", "unread", "PX", "60000"]).grant();
    eventually("the node is cut off", || proxy.nodes_up() == 2);
    for key in ["before", "unread"] {
        assert_eq!(client.cmd(&["UNLOCK", key]), Reply::Int(1));
    }
    proxy.node(0).thaw().unwrap();
    eventually("the node is back", || proxy.nodes_up() == 3);
    eventually("the node votes again", || {
        client.cmd(&["LOCK", "after", "t", "PX", "60000"]).grant();
        proxy.node_client(0).cmd(&["EXISTS", "lock:after"]) == Reply::Int(1)
    });
    for key in ["lock:before", "lock:unread"] {
        assert_eq!(proxy.node_client(0).cmd(&["EXISTS", key]), Reply::Int(0), "ghost of {key}");
    }
}

#[test]
fn a_fence_known_to_one_node_is_raised_on_a_quorum_before_it_is_given() {
    let mut proxy = Proxy::with().nodes(3).start();
    let mut client = proxy.client();
    proxy.node_client(1).cmd(&["SET", "lockgate:fence:lock:k", "9000000000000000"]);
    // The node with the large fence is needed for this grant …
    proxy.node(2).freeze().unwrap();
    let first = client.cmd(&["LOCK", "k", "PX", "60000"]).grant();
    assert_eq!(first.fence, 9_000_000_000_000_001);
    assert_eq!(client.cmd(&["UNLOCK", "k"]), Reply::Int(1));
    proxy.node(2).thaw().unwrap();
    // … and is away for the next one.
    proxy.node(1).kill().unwrap();
    eventually("it is seen", || proxy.nodes_up() == 2);
    let second = client.cmd(&["LOCK", "k", "PX", "60000"]).grant();
    assert!(second.fence > first.fence, "{} after {}", second.fence, first.fence);
}

#[test]
fn a_key_may_be_as_long_as_is_configured() {
    let proxy = Proxy::with().locks("max_key: 1mb").locks("max_token: 1mb").start();
    let mut client = proxy.client();
    let (key, token) = ("k".repeat(1 << 20), "t".repeat(300_000));
    for _ in 0..2 {
        assert_eq!(client.cmd(&["LOCK", &key, &token, "PX", "30000"]).grant().token, token);
        assert_eq!(client.cmd(&["UNLOCK", &key, &token]), Reply::Int(1));
    }
    let longer = key + "k";
    let error = "ERR key is longer than 1048576 bytes (locks.max_key)";
    assert_eq!(client.cmd(&["LOCK", &longer, "PX", "1000"]).error(), error);
}

#[test]
fn what_was_given_back_late_ends_no_newer_grant() {
    let proxy = Proxy::with().nodes(3).start();
    let mut client = proxy.client();
    let refuse = |count: &str| {
        for node in 0..3 {
            proxy.node_client(node).cmd(&["CONFIG", "SET", "min-replicas-to-write", count]);
        }
    };
    let lock = ["LOCK", "k", "mine", "PX", "30000"];
    for _ in 0..3 {
        client.cmd(&lock).grant();
        eventually("all have it", || proxy.nodes_with("lock:k") == 3);
        refuse("1");
        assert!(client.cmd(&["UNLOCK", "k"]).error().starts_with("NOQUORUM"));
        refuse("0");
        // Sooner or later every node carries the UNLOCK out.
        assert_eq!(client.cmd(&["RENEW", "k", "mine", "PX", "30000"]), Reply::Int(0));
        let waiting = [&lock[..], &["WAIT", "10000"]].concat();
        let granted = client.cmd(&waiting).grant();
        std::thread::sleep(Duration::from_millis(300));
        let left = client.cmd(&["RENEW", "k", "mine", "PX", "30000"]);
        assert!(matches!(left, Reply::Int(1..)), "{left:?}");
        assert!(proxy.nodes_with("lock:k") >= 2, "{granted:?}");
        assert_eq!(client.cmd(&["UNLOCK", "k"]), Reply::Int(1));
        eventually("it is free", || proxy.nodes_with("lock:k") == 0);
    }
}

#[test]
fn a_lock_that_has_ended_unnoticed_is_told_for_what_it_lasts_now() {
    let proxy = Proxy::with().nodes(3).start();
    for way in ["released", "shortened", "another's", "deleted"] {
        let (mut client, mut other) = (proxy.client(), proxy.client());
        let before = client.cmd(&["LOCK", way, "t", "PX", "50000"]).grant();
        assert!(before.validity > 40_000);
        match way {
            "released" => assert_eq!(other.cmd(&["UNLOCK", way, "t"]), Reply::Int(1)),
            "shortened" => drop(other.cmd(&["RENEW", way, "t", "PX", "3000"])),
            "another's" => {
                assert_eq!(other.cmd(&["UNLOCK", way, "t"]), Reply::Int(1));
                other.cmd(&["LOCK", way, "u", "PX", "3000"]).grant();
                assert_eq!(other.cmd(&["UNLOCK", way]), Reply::Int(1));
            }
            _ => {
                for node in 0..3 {
                    proxy.node_client(node).cmd(&["DEL", &format!("lock:{way}")]);
                }
            }
        }
        let again = client.cmd(&["LOCK", way, "t", "PX", "5000", "WAIT", "10000"]).grant();
        assert!(again.validity <= 5000, "{way}: {again:?}");
        let Reply::Int(renewed) = client.cmd(&["RENEW", way, "t", "PX", "6000"]) else { panic!() };
        assert!((1..=6000).contains(&renewed), "{way}");
    }
}
