//! Locks that an adopted command takes without a TTL, under `no_ttl: session`. They are kept for as long as their
//! connection lives, and any other connection may release them or give them a TTL.

use std::{
    thread,
    time::{Duration, Instant},
};

use crate::support::{Client, Proxy, Reply, Setup, encode, eventually};

const RELEASE: &str = "if redis.call('get', KEYS[1]) == ARGV[1] then return \
                       redis.call('del', KEYS[1]) else return 0 end";
const EXTEND: &str = "if redis.call('get', KEYS[1]) == ARGV[1] then return \
                      redis.call('pexpire', KEYS[1], ARGV[2]) else return 0 end";
/// redis-py's script, which prolongs no lock without a TTL.
const REDIS_PY_EXTEND: &str = "a4e8783852e6b949f9ef3a97212805108459a890";
const LARAVEL_REFRESH: &str = "d5f94f1848f0c54fff99d99dbc4d54184a157c02";
const LARAVEL_BODY: &str = "if redis.call('get', KEYS[1]) == ARGV[1] then return \
                            redis.call('persist', KEYS[1]) else return 0 end";
/// `locks.default_ttl`, the time for which the lock nodes hold a kept lock.
const TTL: Duration = Duration::from_millis(1500);
const SETNX: [&str; 3] = ["SETNX", "lock:job", "t"];
const RELEASE_JOB: [&str; 5] = ["EVAL", RELEASE, "1", "lock:job", "t"];

fn rules(mode: &str) -> String {
    format!(
        "adopt:\n  - keys: 'lock:*'\n    lock: '{{1}}'\n    mode: {mode}\n    no_ttl: session\n    \
         no_quorum: error\n"
    )
}

fn setup(mode: &str) -> Setup {
    let ttl = format!("default_ttl: {}ms", TTL.as_millis());
    Proxy::with().nodes(3).top(&rules(mode)).locks(&ttl)
}

fn beside(proxy: &Proxy, mode: &str) -> Proxy {
    let beside = Proxy::beside(proxy).top(&rules(mode)).start();
    eventually("its nodes are up", || beside.nodes_up() == 3);
    beside
}

fn pttl(client: &mut Client, key: &str) -> i64 {
    let Reply::Int(left) = client.cmd(&["PTTL", key]) else { panic!() };
    left
}

fn lost(proxy: &Proxy) -> f64 {
    proxy.metric("lockgate_lost_locks_total", "")
}

/// Checks that the client has been told nothing, and that its next command is carried out.
fn hears_nothing(client: &mut Client) {
    assert_eq!(client.cmd(&["ECHO", "x"]), Reply::bulk("x"));
}

#[test]
fn replies_are_those_of_redis() {
    let mut proxy = setup("enforce").start();
    let [mut redis, mut past] = [(); 2].map(|()| Client::connect(proxy.data().port()));
    for version in ["2", "3"] {
        let mut client = proxy.client();
        for one in [&mut client, &mut redis] {
            one.cmd(&["HELLO", version]);
        }
        for words in [
            &["SETNX", "K", "t"][..],
            &["SETNX", "K", "t"],
            &["SET", "K", "u", "NX"],
            &["GET", "K"],
            &["TTL", "K"],
            &["PTTL", "K"],
            &["EXISTS", "K"],
            &["TYPE", "K"],
            &["EVAL", RELEASE, "1", "K", "u"],
            &["EVAL", EXTEND, "1", "K", "u", "10000"],
            &["TTL", "K"],
            &["EVAL", EXTEND, "1", "K", "t", "10000"],
            &["TTL", "K"],
            &["EVAL", LARAVEL_BODY, "1", "K", "t"],
            &["TTL", "K"],
            &["SET", "K", "t", "XX", "EX", "20"],
            &["TTL", "K"],
            &["EVAL", RELEASE, "1", "K", "t"],
            &["EXISTS", "K"],
            &["SET", "K", "t", "NX"],
            &["EXPIRE", "K", "15"],
            &["TTL", "K"],
            &["EXPIRE", "K", "30"],
            &["TTL", "K"],
            &["DEL", "K"],
            &["SETNX", "K", "v"],
            &["EXPIRE", "K", "-1"],
            &["EXISTS", "K"],
            &["SETNX", "K", "v"],
            &["WATCH", "K"],
            &["GET", "K"],
            &["MULTI"],
            &["EXPIRE", "K", "20"],
            &["EXEC"],
            &["TTL", "K"],
            &["DEL", "K"],
            &["SETNX", "K", "v"],
            &["WATCH", "K"],
            &["GET", "K"],
            &["MULTI"],
            &["DEL", "K"],
            &["EXEC"],
            &["TTL", "K"],
        ] {
            let with = |key: &str| -> Vec<String> {
                words.iter().map(|word| if *word == "K" { key } else { word }.to_owned()).collect()
            };
            let [mut here, there] = [with("lock:job"), with("other:job")];
            if here.get(1).is_some_and(|word| word == LARAVEL_BODY) {
                // Laravel's own script, which persists at 0.
                here =
                    ["EVALSHA", LARAVEL_REFRESH, "1", "lock:job", "t", "0"].map(Into::into).into();
            }
            let words = |words: &[String]| -> Vec<u8> {
                encode(&words.iter().map(String::as_str).collect::<Vec<_>>())
            };
            client.send(&words(&here));
            redis.send(&words(&there));
            let (said, expected) = (client.reply(), redis.reply());
            assert_eq!(said, expected, "{here:?}");
            assert_eq!(past.cmd(&["EXISTS", "lock:job"]), Reply::Int(0), "{here:?}");
        }
        // What a script answers if there is no TTL.
        assert_eq!(client.cmd(&SETNX), Reply::Int(1));
        let extend = ["EVALSHA", REDIS_PY_EXTEND, "1", "lock:job", "t", "10000", "0"];
        assert_eq!(client.cmd(&extend), Reply::Int(0));
        assert_eq!(pttl(&mut client, "lock:job"), -1);
        assert_eq!(client.cmd(&RELEASE_JOB), Reply::Int(1));
    }
    assert_eq!(lost(&proxy), 0.0);
}

#[test]
fn a_lock_is_kept_for_as_long_as_its_connection_lives() {
    let proxy = setup("enforce").start();
    let elsewhere = beside(&proxy, "enforce");
    let mut remote = elsewhere.client();
    for end in ["hang up", "QUIT", "reset"] {
        let mut holder = proxy.client();
        assert_eq!(holder.cmd(&SETNX), Reply::Int(1), "{end}");
        // RESET leaves keys as they are, as on Redis.
        assert_eq!(holder.cmd(&["RESET"]), Reply::simple("RESET"));
        let began = Instant::now();
        while began.elapsed() < 2 * TTL {
            assert_eq!(remote.cmd(&SETNX), Reply::Int(0), "{end}");
            assert_eq!(pttl(&mut remote, "lock:job"), -1);
            thread::sleep(TTL / 10);
        }
        assert_eq!(proxy.metric("lockgate_session_locks", ""), 1.0);
        match end {
            "hang up" => holder.hang_up(),
            "QUIT" => assert_eq!(holder.cmd(&["QUIT"]), Reply::ok()),
            _ => holder.reset(),
        }
        let ended = Instant::now();
        // A pool may close a connection whose locks it still counts on, so they run out.
        assert_eq!(remote.cmd(&SETNX), Reply::Int(0), "{end}");
        eventually("it runs out", || remote.cmd(&SETNX) == Reply::Int(1));
        let after = ended.elapsed();
        assert!(after > TTL / 2 && after < 3 * TTL, "{after:?}");
        assert_eq!(remote.cmd(&["DEL", "lock:job"]), Reply::Int(1));
        assert_eq!((lost(&proxy), lost(&elsewhere)), (0.0, 0.0), "{end}");
    }
}

/// DEL comes right behind the SETNX that took the lock: one lock node still has the earlier grant of the same token,
/// and answers first.
#[test]
fn a_lock_is_freed_though_a_node_keeps_the_grant_before_of_the_same_token() {
    let mut proxy = Proxy::with().nodes(3).top(&rules("enforce")).locks("default_ttl: 60s").start();
    let mut client = proxy.client();
    let fences = "lockgate:fence:lock:job";
    let mut keep_before = |proxy: &mut Proxy, node: usize| {
        assert_eq!(client.cmd(&SETNX), Reply::Int(1));
        eventually("all nodes have the lock", || proxy.nodes_with("lock:job") == 3);
        let mut there = proxy.node_client(node);
        let Reply::Bulk(stored) = there.cmd(&["GET", fences]) else { panic!() };
        let stored = String::from_utf8(stored).unwrap();
        let (fence, _) = stored.split_once(' ').unwrap();
        assert_eq!(there.cmd(&["SET", fences, &format!("{fence} 9000000000000001")]), Reply::ok());
        there
    };
    let mut there = keep_before(&mut proxy, 0);
    let mut remote = proxy.client();
    proxy.node(1).freeze().expect("lock node");
    remote.send(&encode(&["DEL", "lock:job"]));
    thread::sleep(Duration::from_millis(100));
    proxy.node(1).thaw().expect("lock node");
    assert_eq!(remote.reply(), Reply::Int(1));
    there.cmd(&["DEL", "lock:job"]);

    // If the third node never answers, no other proxy knows which grant is the lock's.
    let elsewhere = beside(&proxy, "enforce");
    keep_before(&mut proxy, 0);
    proxy.node(1).freeze().expect("lock node");
    let said = elsewhere.client().cmd(&["DEL", "lock:job"]);
    proxy.node(1).thaw().expect("lock node");
    assert!(said.error().starts_with("NOQUORUM"), "{said:?}");
}

#[test]
fn a_release_on_another_connection_is_no_loss() {
    let proxy = setup("enforce").start();
    let elsewhere = beside(&proxy, "enforce");
    let del = ["DEL", "lock:job"];
    for (version, place, release) in [
        ("2", &proxy, &RELEASE_JOB[..]),
        ("3", &proxy, &del),
        ("2", &elsewhere, &del),
        ("3", &elsewhere, &RELEASE_JOB),
    ] {
        let (mut holder, mut pool) = (proxy.client(), place.client());
        holder.cmd(&["HELLO", version]);
        let before = lost(&proxy);
        assert_eq!(holder.cmd(&SETNX), Reply::Int(1));
        assert_eq!(pool.cmd(release), Reply::Int(1));
        // Another connection takes the lock at once with the same token, which is not the first one's lock.
        assert_eq!(pool.cmd(&SETNX), Reply::Int(1));
        let began = Instant::now();
        while began.elapsed() < TTL {
            hears_nothing(&mut holder);
            thread::sleep(TTL / 20);
        }
        let kept = |proxy: &Proxy| proxy.metric("lockgate_session_locks", "");
        eventually("it is kept by one", || kept(&proxy) + kept(&elsewhere) == 1.0);
        let lost_by = if place.port() == proxy.port() { 0.0 } else { 1.0 };
        assert_eq!(lost(&proxy) - before, lost_by);
        drop(holder);
        thread::sleep(TTL * 3 / 2);
        assert_eq!(pttl(&mut pool, "lock:job"), -1, "it is another's by then");
        assert_eq!(pool.cmd(release), Reply::Int(1));
    }
    assert_eq!(proxy.metric("lockgate_lost_locks_total", "reason=\"elsewhere\""), 2.0);
    assert!(!proxy.log().contains("its client does not know"));
}

#[test]
fn expire_on_any_connection_makes_it_a_lease() {
    let proxy = setup("enforce").start();
    let elsewhere = beside(&proxy, "enforce");
    let extend = ["EVAL", EXTEND, "1", "lock:job", "t", "20000"];
    for (place, expire) in [
        ("own", &["EXPIRE", "lock:job", "20"][..]),
        ("other", &["PEXPIRE", "lock:job", "20000"]),
        ("elsewhere", &["EXPIRE", "lock:job", "20"]),
        ("elsewhere", &extend),
    ] {
        let mut holder = proxy.client();
        assert_eq!(holder.cmd(&SETNX), Reply::Int(1));
        let mut pool = if place == "elsewhere" { elsewhere.client() } else { proxy.client() };
        let said = if place == "own" { holder.cmd(expire) } else { pool.cmd(expire) };
        assert_eq!(said, Reply::Int(1), "{place}");
        for client in [&mut holder, &mut pool] {
            assert!((15_000..=20_000).contains(&pttl(client, "lock:job")), "{place}");
        }
        // The lock is no longer renewed, and the end of a connection does not end it.
        let kept = || proxy.metric("lockgate_session_locks", "");
        eventually("it is kept no more", || kept() == 0.0);
        hears_nothing(&mut holder);
        drop(holder);
        thread::sleep(TTL * 3 / 2);
        assert!((15_000..=19_000).contains(&pttl(&mut pool, "lock:job")), "{place}");
        assert_eq!(pool.cmd(&RELEASE_JOB), Reply::Int(1));
    }
    // The reverse: the connection that removes the TTL keeps the lock.
    let (mut holder, mut keeper) = (proxy.client(), elsewhere.client());
    assert_eq!(holder.cmd(&["SET", "lock:job", "t", "NX", "PX", "1000"]), Reply::ok());
    let refresh = ["EVALSHA", LARAVEL_REFRESH, "1", "lock:job", "t", "0"];
    assert_eq!(keeper.cmd(&refresh), Reply::Int(1));
    drop(holder);
    thread::sleep(2 * TTL);
    assert_eq!(pttl(&mut keeper, "lock:job"), -1);
    drop(keeper);
    let mut other = proxy.client();
    eventually("it runs out", || other.cmd(&SETNX) == Reply::Int(1));
}

#[test]
fn a_ttl_may_be_shorter_than_what_the_lock_nodes_had_it_for() {
    let proxy = Proxy::with().nodes(3).top(&rules("enforce")).start();
    let elsewhere = beside(&proxy, "enforce");
    for place in [&proxy, &elsewhere] {
        let (mut holder, mut pool) = (proxy.client(), place.client());
        assert_eq!(holder.cmd(&SETNX), Reply::Int(1));
        let began = Instant::now();
        assert_eq!(pool.cmd(&["PEXPIRE", "lock:job", "150"]), Reply::Int(1));
        assert!((1..=150).contains(&pttl(&mut pool, "lock:job")));
        // It runs out though its connection lives, and is not put back.
        eventually("it runs out", || pool.cmd(&["EXISTS", "lock:job"]) == Reply::Int(0));
        let after = began.elapsed();
        assert!((150..8000).contains(&after.as_millis()), "{after:?}");
        thread::sleep(Duration::from_secs(4));
        assert_eq!(pool.cmd(&["EXISTS", "lock:job"]), Reply::Int(0));
        hears_nothing(&mut holder);
    }
}

#[test]
fn a_lock_client_s_lock_is_never_touched() {
    let proxy = setup("enforce").start();
    let (mut holder, mut old) = (proxy.client(), proxy.client());
    holder.cmd(&["LOCK", "job", "t"]).grant();
    assert_eq!(old.cmd(&SETNX), Reply::Int(0));
    for words in [&["EXPIRE", "lock:job", "1"][..], &["DEL", "lock:job"]] {
        assert_eq!(old.cmd(words), Reply::Int(0), "{words:?}");
    }
    assert!(matches!(holder.cmd(&["RENEW", "job"]), Reply::Int(1..)));
    assert_eq!(holder.cmd(&["RESET"]), Reply::simple("RESET"));
    eventually("RESET gives it back", || old.cmd(&SETNX) == Reply::Int(1));
    // The reverse: UNLOCK needs the token, and LOCK is refused.
    assert_eq!(holder.cmd(&["LOCK", "job", "t"]), Reply::NullArray);
    let Reply::Array(shown) = old.cmd(&["LOCKGATE", "LOCKS"]) else { panic!() };
    let [Reply::Array(shown)] = &shown[..] else { panic!("{shown:?}") };
    for pair in [["kind", "session"], ["adopted", "SETNX"]] {
        let pair = pair.map(Reply::bulk);
        assert!(shown.chunks(2).any(|field| *field == pair), "{pair:?} in {shown:?}");
    }
    assert_eq!(holder.cmd(&["UNLOCK", "job", "t"]), Reply::Int(0), "it was refused that lock");
    assert_eq!(proxy.client().cmd(&["UNLOCK", "job", "t"]), Reply::Int(1));
    hears_nothing(&mut old);
}

#[test]
fn a_loss_is_counted_and_told_in_the_log_alone() {
    for on_lost in ["error", "close"] {
        let mut proxy = setup("enforce").locks(&format!("on_lost: {on_lost}")).start();
        let (mut holder, mut session) = (proxy.client(), proxy.client());
        assert_eq!(holder.cmd(&SETNX), Reply::Int(1));
        session.cmd(&["LOCK", "other"]).grant();
        for node in 0..2 {
            proxy.node(node).kill().unwrap();
        }
        let reason = "reason=\"no_quorum\"";
        eventually("both are lost", || proxy.metric("lockgate_lost_locks_total", reason) == 2.0);
        eventually("it is told of", || proxy.log().contains("its client does not know"));
        assert!(proxy.log().contains("\"job\""), "{}", proxy.log());
        if on_lost == "error" {
            hears_nothing(&mut holder);
            assert!(session.cmd(&["PING"]).error().starts_with("LOCKLOST"));
        } else {
            assert!(holder.rest().0.is_empty(), "closed");
        }
    }
}

#[test]
fn its_holder_may_write_what_it_guards_until_it_has_it_no_more() {
    let guards = "guards:\n  - keys: 'job:*'\n    lock: '{1}'";
    let proxy = setup("enforce").top(guards).start();
    let elsewhere = Proxy::beside(&proxy).top(&rules("enforce")).top(guards).start();
    let (mut client, mut pool) = (proxy.client(), elsewhere.client());
    let write = ["SET", "job:1", "x"];
    let take = ["SETNX", "lock:1", "t"];
    assert_eq!(client.cmd(&take), Reply::Int(1));
    thread::sleep(2 * TTL);
    assert_eq!(client.cmd(&write), Reply::ok());
    assert!(pool.cmd(&write).error().starts_with("NOTHELD"));
    // On its own connection it goes on as a lease.
    assert_eq!(client.cmd(&["EXPIRE", "lock:1", "20"]), Reply::Int(1));
    thread::sleep(2 * TTL);
    assert_eq!(client.cmd(&write), Reply::ok());
    assert_eq!(client.cmd(&["DEL", "lock:1"]), Reply::Int(1));
    assert!(client.cmd(&write).error().starts_with("NOTHELD"));
    // The lock is released through another proxy, and taken there by another client.
    assert_eq!(client.cmd(&take), Reply::Int(1));
    assert_eq!(pool.cmd(&["DEL", "lock:1"]), Reply::Int(1));
    assert_eq!(pool.cmd(&take), Reply::Int(1));
    assert_eq!(pool.cmd(&write), Reply::ok());
    let said = client.cmd(&write);
    assert!(said.error().starts_with("FENCED"), "{said:?}");
    eventually("it is learned", || client.cmd(&write).error().starts_with("NOTHELD"));
}

#[test]
fn under_bridge_the_key_is_kept_as_well() {
    let proxy = setup("bridge").start();
    let elsewhere = beside(&proxy, "bridge");
    let mut past = proxy.data_client();
    let take_past = ["SET", "lock:job", "u", "NX", "PX", "20000"];
    let (mut holder, mut pool) = (proxy.client(), elsewhere.client());
    assert_eq!(holder.cmd(&SETNX), Reply::Int(1));
    let began = Instant::now();
    while began.elapsed() < 2 * TTL {
        assert_eq!(past.cmd(&take_past), Reply::NullBulk);
        assert_eq!(pool.cmd(&SETNX), Reply::Int(0));
        assert_eq!(pttl(&mut pool, "lock:job"), -1);
        thread::sleep(TTL / 10);
    }
    assert!(pttl(&mut past, "lock:job") > 0, "never without a TTL");
    // A key that the data node has lost is made anew, since the lock nodes have the lock.
    past.cmd(&["FLUSHALL"]);
    eventually("it is made anew", || past.cmd(&["GET", "lock:job"]) == Reply::bulk("t"));
    assert_eq!(holder.cmd(&["DEL", "lock:job"]), Reply::Int(1));
    // EXPIRE comes through another proxy: the keeper of the key, which does not know yet, does not shorten the key's
    // TTL.
    for pause in 0..6 {
        assert_eq!(holder.cmd(&SETNX), Reply::Int(1));
        thread::sleep(TTL * pause / 12);
        assert_eq!(pool.cmd(&["EXPIRE", "lock:job", "20"]), Reply::Int(1));
        let began = Instant::now();
        while began.elapsed() < TTL {
            let left = pttl(&mut past, "lock:job");
            assert!(left > 17_000, "{left}");
            thread::sleep(TTL / 20);
        }
        assert_eq!(pool.cmd(&RELEASE_JOB), Reply::Int(1));
        hears_nothing(&mut holder);
        eventually("it is known as free", || holder.cmd(&["EXISTS", "lock:job"]) == Reply::Int(0));
    }
    // After a release through another proxy the key is not made anew.
    for _ in 0..3 {
        assert_eq!(past.cmd(&["EXISTS", "lock:job"]), Reply::Int(0));
        assert_eq!(holder.cmd(&SETNX), Reply::Int(1));
        thread::sleep(TTL / 8);
        assert_eq!(pool.cmd(&RELEASE_JOB), Reply::Int(1));
        let began = Instant::now();
        while began.elapsed() < TTL {
            assert_eq!(past.cmd(&["EXISTS", "lock:job"]), Reply::Int(0));
            thread::sleep(TTL / 50);
        }
        hears_nothing(&mut holder);
    }
    // The holder's connection ends.
    assert_eq!(holder.cmd(&SETNX), Reply::Int(1));
    holder.hang_up();
    assert_eq!(past.cmd(&take_past), Reply::NullBulk);
    eventually("both run out", || past.cmd(&take_past) == Reply::ok());
    assert_eq!(pool.cmd(&SETNX), Reply::Int(0));
    assert_eq!(past.cmd(&["DEL", "lock:job"]), Reply::Int(1));
    // A lock that was taken past the proxy without a TTL is released as ever.
    assert_eq!(past.cmd(&SETNX), Reply::Int(1));
    assert_eq!(pool.cmd(&SETNX), Reply::Int(0));
    assert_eq!(pttl(&mut pool, "lock:job"), -1);
    assert_eq!(pool.cmd(&["EXPIRE", "lock:job", "20"]), Reply::Int(1));
    assert!(pttl(&mut past, "lock:job") > 17_000);
    assert_eq!(pool.cmd(&RELEASE_JOB), Reply::Int(1));
}
