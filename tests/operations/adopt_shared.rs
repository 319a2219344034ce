//! Symfony's locks, by the digests of its scripts: one client has a lock alone, or many read.

use std::{
    sync::atomic::{AtomicI64, AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use super::adopt::adopted;
use crate::support::{Client, Proxy, Reply, encode, eventually};

/// The scripts, in the form that reads the clock of Redis.
const SAVE: &str = "6fdee501a3714553b74c0d67687b921b90b05d18";
const READ: &str = "b5745b5be27d9033eb5d3eb254df2faf502b88df";
const EXTEND: &str = "63be12a3515941092212f15c08327d60916de9fa";
const DELETE: &str = "a70f7f5087a0cb2c2c9ca50d1f64e234c2628f0c";
const IS_MINE: &str = "3b6bdbbe16f821f49177b16c7707f331f015a779";

const YES: Reply = Reply::Int(1);
const NO: Reply = Reply::NullBulk;
const KEY: &str = "lock:job";

fn rules(mode: &str) -> String {
    format!("adopt:\n  - keys: 'lock:*'\n    mode: {mode}")
}

fn start(mode: &str) -> Proxy {
    Proxy::with().nodes(3).locks("shared: yes").top(&rules(mode)).start()
}

/// Sends one of the scripts with a TTL in milliseconds, as Symfony does.
fn lasting(client: &mut Client, script: &str, token: &str, ttl: &str) -> Reply {
    match script {
        DELETE => client.cmd(&["EVALSHA", script, "1", KEY, token]),
        IS_MINE => client.cmd(&["EVALSHA", script, "1", KEY, "1.5", token]),
        _ => client.cmd(&["EVALSHA", script, "1", KEY, "1.5", token, ttl]),
    }
}

fn send(client: &mut Client, script: &str, token: &str) -> Reply {
    lasting(client, script, token, "30000")
}

/// Whether this lock node has the lock with this token, alone or as a reader's.
fn is_there(proxy: &Proxy, node: usize, token: &str) -> bool {
    let mut node = proxy.node_client(node);
    match node.cmd(&["ZRANGE", "lock:lock:job", "0", "-1"]) {
        Reply::Array(members) => members.iter().any(|member| {
            matches!(member, Reply::Bulk(member) if member.ends_with(format!(" {token}").as_bytes()))
        }),
        _ => node.cmd(&["GET", "lock:lock:job"]) == Reply::bulk(token),
    }
}

#[test]
fn many_read_or_one_client_has_it_alone_through_each_proxy() {
    let proxy = start("enforce");
    let other = Proxy::beside(&proxy).top(&rules("enforce")).start();
    let (mut here, mut there) = (proxy.client(), other.client());
    for (script, token, expected) in [
        (READ, "r1", YES),
        (READ, "r2", YES),
        (SAVE, "w", NO),
        (IS_MINE, "r1", YES),
        (IS_MINE, "r2", YES),
        (IS_MINE, "w", NO),
        (EXTEND, "r1", YES),
        (EXTEND, "r2", YES),
        (EXTEND, "w", NO),
        // Again, through the other proxy: it is the same reader.
        (READ, "r1", YES),
        (READ, "r2", YES),
        (DELETE, "w", NO),
        (DELETE, "r1", YES),
        (DELETE, "r1", NO),
        (IS_MINE, "r1", NO),
        (SAVE, "w", NO),
        (DELETE, "r2", YES),
        (SAVE, "w", YES),
        (SAVE, "w", YES),
        (SAVE, "r1", NO),
        (READ, "r1", NO),
        (IS_MINE, "w", YES),
        (EXTEND, "w", YES),
        (DELETE, "r1", NO),
        (DELETE, "w", YES),
        (IS_MINE, "w", NO),
        (READ, "r1", YES),
        (DELETE, "r1", YES),
    ] {
        let said = send(&mut here, script, token);
        assert_eq!(said, expected, "{script} {token}");
        if said == YES && [READ, SAVE].contains(&script) {
            // A node that grants it late would keep it behind a release through the other proxy, until its TTL.
            eventually("each node has it", || (0..3).all(|node| is_there(&proxy, node, token)));
        }
        std::mem::swap(&mut here, &mut there);
    }
    eventually("nothing is left", || proxy.nodes_with("lock:lock:job") == 0);
    assert_eq!(proxy.data_client().cmd(&["EXISTS", KEY]), Reply::Int(0));
}

#[test]
fn readers_and_writers_of_locks_own_commands_count_too() {
    let proxy = start("enforce");
    let (mut client, mut own) = (proxy.client(), proxy.client());
    assert_eq!(send(&mut client, READ, "r"), YES);
    assert_eq!(own.cmd(&["LOCK", KEY, "w", "PX", "30000"]), Reply::NullArray);
    assert_eq!(own.cmd(&["SET", KEY, "w", "NX", "PX", "30000"]), NO);
    assert!(matches!(own.cmd(&["LOCK", KEY, "s", "SHARED", "PX", "30000"]), Reply::Array(_)));
    assert_eq!(own.cmd(&["DEL", KEY]), Reply::Int(0), "no reader is a blind DEL's");
    assert_eq!(own.cmd(&["UNLOCK", KEY, "s"]), YES);
    // A reader of Symfony's by its token.
    assert_eq!(own.cmd(&["UNLOCK", KEY, "r"]), YES);
    assert_eq!(send(&mut client, IS_MINE, "r"), NO);
    assert_eq!(send(&mut client, EXTEND, "r"), NO);
    assert!(matches!(own.cmd(&["LOCK", KEY, "w", "PX", "30000"]), Reply::Array(_)));
    assert_eq!([SAVE, READ].map(|script| send(&mut client, script, "r")), [NO, NO]);
    assert_eq!(own.cmd(&["UNLOCK", KEY, "w"]), YES);
    assert_eq!(send(&mut client, READ, "r"), YES);
    let Reply::Array(locks) = own.cmd(&["LOCKGATE", "LOCKS"]) else { panic!("no array") };
    let Reply::Array(row) = &locks[0] else { panic!("{locks:?}") };
    let field =
        |name| row.chunks(2).find(|pair| pair[0] == Reply::bulk(name)).expect(name)[1].clone();
    assert_eq!((field("kind"), field("adopted")), (Reply::bulk("shared"), Reply::bulk("Symfony")));
    eventually("it is counted", || proxy.metric("lockgate_adopted_locks", "") == 1.0);
}

#[test]
fn no_reader_becomes_a_writer_and_a_writer_that_reads_stays_alone() {
    let proxy = start("enforce");
    let (mut client, mut other) = (proxy.client(), proxy.client());
    assert_eq!(send(&mut client, READ, "t"), YES);
    // The only reader, on its connection and on another.
    assert_eq!(send(&mut client, SAVE, "t"), NO);
    assert_eq!(send(&mut other, SAVE, "t"), NO);
    assert_eq!(send(&mut other, IS_MINE, "t"), YES);
    assert_eq!(send(&mut other, READ, "u"), YES);
    assert_eq!(["t", "u"].map(|token| send(&mut other, DELETE, token)), [YES, YES]);
    assert_eq!(send(&mut client, SAVE, "t"), YES);
    assert_eq!(lasting(&mut other, READ, "t", "50000"), YES);
    proxy.assert_value_on_nodes("lock:lock:job", "t");
    assert_eq!(send(&mut other, READ, "u"), NO);
    let Reply::Int(left) = client.cmd(&["PTTL", KEY]) else { panic!() };
    assert!(left > 30_000, "{left}");
    assert_eq!(send(&mut client, DELETE, "t"), YES);
    assert_eq!(send(&mut other, READ, "u"), YES);
}

#[test]
fn a_reader_lasts_for_its_whole_ttl_and_not_for_ever() {
    let proxy = start("enforce");
    let (mut client, mut other) = (proxy.client(), proxy.client());
    let began = Instant::now();
    assert_eq!(lasting(&mut client, READ, "r", "1500"), YES);
    eventually("it has run out", || lasting(&mut other, SAVE, "w", "30000") == YES);
    assert!(began.elapsed() >= Duration::from_millis(1500), "{:?}", began.elapsed());
    assert_eq!(
        [IS_MINE, EXTEND, DELETE, READ].map(|script| send(&mut client, script, "r")),
        [NO, NO, NO, NO]
    );
    assert_eq!(send(&mut other, DELETE, "w"), YES);
    // A longer TTL, and a shorter one.
    assert_eq!(lasting(&mut client, READ, "r", "1500"), YES);
    assert_eq!(lasting(&mut other, EXTEND, "r", "50000"), YES);
    thread::sleep(Duration::from_secs(2));
    assert_eq!(send(&mut other, SAVE, "w"), NO);
    let began = Instant::now();
    assert_eq!(lasting(&mut client, EXTEND, "r", "1500"), YES);
    eventually("it has run out", || send(&mut other, SAVE, "w") == YES);
    assert!(began.elapsed() >= Duration::from_millis(1500), "{:?}", began.elapsed());
}

#[test]
fn what_cannot_be_shared_is_refused_and_never_forwarded() {
    let off = "ERR 'lock:job' is an adopted lock: it shares the lock with other readers, which needs \
               'locks.shared: yes' in the file of every proxy (LOCKGATE ADOPTED)";
    let bridged = "ERR no SHARED of a lock that an adopt rule bridges";
    let guarded = "ERR no SHARED of a lock that a guard needs";
    let guard = "guards:\n  - {keys: 'report:*', lock: 'lock:job', policy: enforce}";
    for (shared, more, mode, error) in [
        ("no", "", "enforce", off),
        ("no", "", "bridge", off),
        ("no", "\n    unknown: forward", "enforce", off),
        ("yes", "", "bridge", bridged),
        ("yes", "\n    unknown: forward", "bridge", bridged),
        ("yes", guard, "enforce", guarded),
    ] {
        let more = if more == guard { format!("\n{guard}") } else { more.into() };
        let rules = format!("{}{more}", rules(mode));
        let shared = format!("shared: {shared}");
        let proxy = Proxy::with().nodes(3).locks(&shared).top(&rules).start();
        let (mut client, mut data) = (proxy.client(), proxy.data_client());
        let said = send(&mut client, READ, "t");
        assert!(said.error().starts_with(error), "{said:?} instead of {error}");
        assert_eq!(data.cmd(&["EXISTS", KEY]), Reply::Int(0));
        // One client alone may have it all the same.
        assert_eq!(
            [SAVE, EXTEND, IS_MINE].map(|script| send(&mut client, script, "t")),
            [YES, YES, YES]
        );
        assert_eq!(
            [SAVE, EXTEND, IS_MINE].map(|script| send(&mut client, script, "u")),
            [NO, NO, NO]
        );
        assert!(send(&mut client, READ, "t").error().starts_with(error));
        assert_eq!(data.cmd(&["EXISTS", KEY]), Reply::Int(i64::from(mode == "bridge")));
        assert_eq!([DELETE, DELETE].map(|script| send(&mut client, script, "t")), [YES, NO]);
        if mode == "bridge" {
            // An instance past the proxy has it.
            assert_eq!(data.cmd(&["ZADD", KEY, "9999999999999", "x"]), Reply::Int(1));
            assert_eq!(
                [SAVE, EXTEND, DELETE, IS_MINE].map(|script| send(&mut client, script, "t")),
                [NO, NO, NO, NO]
            );
            assert_eq!(data.cmd(&["ZCARD", KEY]), Reply::Int(1));
        }
    }
}

#[test]
fn flushing_frees_readers_where_the_rule_says_so() {
    let rules = format!("{}\n    flush: free", rules("enforce"));
    let proxy = Proxy::with().nodes(3).locks("shared: yes").top(&rules).start();
    let (mut client, mut own) = (proxy.client(), proxy.client());
    assert_eq!(["r1", "r2"].map(|token| send(&mut client, READ, token)), [YES, YES]);
    assert!(matches!(own.cmd(&["LOCK", "lock:own", "s", "SHARED"]), Reply::Array(_)));
    assert_eq!(client.cmd(&["FLUSHDB"]), Reply::ok());
    assert_eq!(send(&mut own, SAVE, "w"), YES);
    assert_eq!(own.cmd(&["UNLOCK", "lock:own", "s"]), YES, "no adopted command's");
}

#[test]
fn inside_multi_readers_are_released_and_prolonged_but_none_is_added() {
    let proxy = start("enforce");
    let (mut client, mut other) = (proxy.client(), proxy.client());
    assert_eq!(send(&mut other, READ, "r"), YES);
    client.cmd(&["MULTI"]);
    let said = send(&mut client, READ, "t");
    assert_eq!(said.error(), "ERR an adopted lock is not shared inside MULTI (adopt)");
    assert!(client.cmd(&["EXEC"]).error().starts_with("EXECABORT"));
    client.cmd(&["MULTI"]);
    for script in [EXTEND, IS_MINE, SAVE, DELETE, IS_MINE] {
        assert_eq!(send(&mut client, script, "r"), Reply::simple("QUEUED"));
    }
    assert_eq!(client.cmd(&["EXEC"]), Reply::Array(vec![YES, YES, NO, YES, NO]));
    assert_eq!(send(&mut other, SAVE, "w"), YES);
}

#[test]
fn operators_are_told_what_it_is_and_the_clock_check_passes() {
    let proxy = Proxy::with().top("adopt: {keys: '*', mode: enforce}").start();
    let mut client = proxy.client();
    let check = "c481d49b4a48e48a9eeacd5d51655b5fcbb19925";
    let said = client.cmd(&["EVALSHA", check, "1", "symfony_check_support_time"]);
    assert!(said.error().starts_with("NOSCRIPT No matching script. "), "the data node's: {said:?}");
    let said = client.cmd(&["EVALSHA", check, "1", KEY]);
    assert!(said.error().starts_with("NOSCRIPT"), "{said:?}");
    let all = adopted(&mut client);
    assert_eq!((all.len(), &*all[0]["times"]), (1, "1"), "only the one about a lock: {all:?}");
    let proxy = start("enforce");
    let mut client = proxy.client();
    for script in [SAVE, READ, EXTEND, DELETE, IS_MINE] {
        send(&mut client, script, "t");
    }
    let all = adopted(&mut client);
    for (idiom, replies) in [
        ("acquire_reentrant", "1 1 1 nil"),
        ("acquire_shared", "1 1 1 nil"),
        ("extend", "nil 1 1 nil"),
        ("release", "nil 1 1 nil"),
        ("look", "nil 1 1 nil"),
    ] {
        let entry = all.iter().find(|entry| entry["idiom"] == idiom).expect(idiom);
        assert_eq!(
            ["library", "verdict", "replies"].map(|field| &*entry[field]),
            ["Symfony", "quorum", replies]
        );
    }
    let off = Proxy::with().nodes(3).top(&rules("enforce")).start();
    let mut client = off.client();
    send(&mut client, READ, "t");
    let entry = &adopted(&mut client)[0];
    assert_eq!(entry["verdict"], "refused");
    assert!(entry["because"].contains("locks.shared"), "{entry:?}");
}

#[test]
fn two_proxies_never_let_a_writer_in_beside_readers_and_all_get_on() {
    let proxy = start("enforce");
    let other = Proxy::beside(&proxy).top(&rules("enforce")).start();
    // Readers count 1, a writer 1000.
    let (inside, most_readers, grants) =
        (AtomicI64::new(0), AtomicI64::new(0), AtomicUsize::new(0));
    let until = Instant::now() + Duration::from_secs(120);
    thread::scope(|scope| {
        for number in 0..16_u64 {
            let proxy = if number % 2 == 0 { &proxy } else { &other };
            let (inside, most_readers, grants) = (&inside, &most_readers, &grants);
            scope.spawn(move || {
                let (mut client, token) = (proxy.client(), format!("t{number}"));
                let (script, weight) = if number < 4 { (SAVE, 1000) } else { (READ, 1) };
                for _ in 0..4 {
                    while send(&mut client, script, &token) != YES {
                        assert!(Instant::now() < until, "{number} does not get on");
                        thread::sleep(Duration::from_millis(10 + number));
                    }
                    let now = weight + inside.fetch_add(weight, Ordering::SeqCst);
                    assert!(now <= 1000, "{now}");
                    if weight == 1 {
                        most_readers.fetch_max(now, Ordering::SeqCst);
                    }
                    grants.fetch_add(1, Ordering::SeqCst);
                    thread::sleep(Duration::from_millis(20));
                    inside.fetch_sub(weight, Ordering::SeqCst);
                    assert_eq!(send(&mut client, DELETE, &token), YES);
                    thread::sleep(Duration::from_millis(15));
                }
            });
        }
    });
    assert_eq!(grants.load(Ordering::SeqCst), 64);
    assert!(most_readers.load(Ordering::SeqCst) > 1, "some read side by side");
    eventually("nothing is left", || proxy.nodes_with("lock:lock:job") == 0);
}

#[test]
fn a_client_that_goes_while_the_lock_nodes_are_away_leaves_no_reader() {
    let mut proxy = start("enforce");
    let retries = |proxy: &Proxy| proxy.metric("lockgate_adopt_retries_total", "");
    let freeze = |proxy: &mut Proxy, are_away: bool| {
        for node in 0..2 {
            let node = proxy.node(node);
            if are_away { node.freeze() } else { node.thaw() }.expect("a lock node");
        }
    };
    for goes in [true, false] {
        let (mut client, before) = (proxy.client(), retries(&proxy));
        assert_eq!(client.cmd(&["GET", KEY]), NO);
        freeze(&mut proxy, true);
        client.send(&encode(&["EVALSHA", READ, "1", KEY, "1.5", "t", "30000"]));
        eventually("they are asked again", || retries(&proxy) > before);
        if goes {
            client.reset();
            freeze(&mut proxy, false);
            eventually("nothing is left", || proxy.nodes_with("lock:lock:job") == 0);
        } else {
            freeze(&mut proxy, false);
            assert_eq!(client.reply(), YES);
            assert_eq!(send(&mut client, IS_MINE, "t"), YES);
        }
    }
}
