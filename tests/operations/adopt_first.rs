//! Laravel's `Redis::funnel`, by the commands that the package sends: a script takes the first free one of several
//! adopted locks.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use super::adopt::adopted;
use crate::support::{Client, Proxy, Reply, encode, eventually};

/// The package's two scripts.
const TAKE: &str = "for index, value in pairs(redis.call('mget', unpack(KEYS))) do\n    if not value \
                    then\n        redis.call('set', KEYS[index], ARGV[3], \"EX\", ARGV[2])\n        \
                    return ARGV[1]..index\n    end\nend";
const RELEASE: &str = "if redis.call('get', KEYS[1]) == ARGV[1]\nthen\n    return redis.call('del', \
                       KEYS[1])\nelse\n    return 0\nend";
const DIGEST: &str = "420ca604de4310d8301943a71390ee669720d640";

const SLOTS: usize = 3;

fn start(mode: &str, options: &str) -> Proxy {
    let rule = format!("adopt: {{keys: 'lock:*', mode: {mode}, {options}}}");
    Proxy::with().nodes(3).top(&rule).start()
}

/// Takes the first free one of the three slots of this name.
fn take<'a>(script: [&'a str; 2], name: &'a str, token: &'a str) -> Vec<Vec<u8>> {
    let slots = (1..=SLOTS).map(|at| format!("{name}{at}").into_bytes());
    let words = script.map(|word| word.as_bytes().to_vec()).into_iter();
    let rest = [name, "30", token].map(|word| word.as_bytes().to_vec());
    words.chain([SLOTS.to_string().into_bytes()]).chain(slots).chain(rest).collect()
}

fn say(client: &mut Client, words: &[Vec<u8>]) -> Reply {
    let words: Vec<&str> = words.iter().map(|word| std::str::from_utf8(word).unwrap()).collect();
    client.cmd(&words)
}

#[test]
fn replies_are_those_of_redis_and_the_locks_are_ordinary_ones() {
    for (mode, version) in [("enforce", "2"), ("enforce", "3"), ("bridge", "2")] {
        let proxy = start(mode, "no_ttl: refuse");
        let (mut client, mut redis) = (proxy.client(), proxy.data_client());
        for one in [&mut client, &mut redis] {
            one.cmd(&["HELLO", version]);
            one.cmd(&["SCRIPT", "LOAD", TAKE]);
        }
        let both =
            |client: &mut Client, redis: &mut Client, words: &dyn Fn(&str) -> Vec<Vec<u8>>| {
                let said = say(client, &words("lock:f"));
                // The name in the reply differs.
                let expected = match say(redis, &words("same:f")) {
                    Reply::Bulk(name) => {
                        let place =
                            name.strip_prefix(b"same:f").map(|place| [b"lock:f", place].concat());
                        Reply::Bulk(place.unwrap_or(name))
                    }
                    other => other,
                };
                assert_eq!(said, expected, "{mode}: {:?}", words("lock:f").first());
                said
            };
        let mut told = Vec::new();
        for (script, token) in [
            (["EVAL", TAKE], "a"),
            (["evalsha", DIGEST], "b"),
            (["EVAL", TAKE], "c"),
            (["EVAL", TAKE], "d"),
        ] {
            told.push(both(&mut client, &mut redis, &|name| take(script, name, token)));
        }
        let slots = ["lock:f1", "lock:f2", "lock:f3"].map(Reply::bulk);
        assert_eq!(told[..3], slots);
        assert_eq!(told[3], if version == "3" { Reply::Null } else { Reply::NullBulk });
        for (slot, token) in
            ["lock:lock:f1", "lock:lock:f2", "lock:lock:f3"].iter().zip(["a", "b", "c"])
        {
            proxy.assert_value_on_nodes(slot, token);
        }
        let mut ask = |words: &[&str]| {
            let key = |word: &str, name: &str| match word.strip_prefix('K') {
                Some(place @ ("1" | "2")) => format!("{name}{place}").into_bytes(),
                _ => word.as_bytes().to_vec(),
            };
            let with = |name: &str| words.iter().map(|word| key(word, name)).collect();
            both(&mut client, &mut redis, &with)
        };
        assert_eq!(ask(&["GET", "K2"]), Reply::bulk("b"));
        assert_eq!(ask(&["EVAL", RELEASE, "1", "K2", "a"]), Reply::Int(0));
        assert_eq!(ask(&["EVAL", RELEASE, "1", "K2", "b"]), Reply::Int(1));
        assert_eq!(ask(&["SET", "K1", "x", "EX", "30", "NX"]), told[3]);
        let again = both(&mut client, &mut redis, &|name| take(["EVALSHA", DIGEST], name, "e"));
        assert_eq!(again, Reply::bulk("lock:f2"));
        // The keys are on the data node only under bridge.
        let keys = redis.cmd(&["EXISTS", "lock:f1", "lock:f2", "lock:f3"]);
        assert_eq!(keys, Reply::Int(if mode == "bridge" { 3 } else { 0 }));
    }
}

#[test]
fn what_is_not_carried_out_is_refused_and_takes_nothing() {
    let rules =
        "adopt:\n  - keys: 'lock:*'\n    mode: enforce\n  - keys: 'seen:*'\n    mode: audit";
    let mut proxy = Proxy::with().nodes(3).top(rules).start();
    let mut client = proxy.client();
    let of = |keys: &[&str], rest: &[&str]| {
        let count = keys.len().to_string();
        let words = [&["EVAL", TAKE, &count][..], keys, rest].concat();
        words.iter().map(|word| word.as_bytes().to_vec()).collect::<Vec<_>>()
    };
    let argv = ["lock:f", "30", "t"];
    let many: Vec<String> = (0..257).map(|at| format!("lock:{at}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    for (words, told) in [
        (
            of(&["lock:f1", "lock:f1"], &argv),
            "ERR two keys of one command are one adopted lock (adopt)",
        ),
        (of(&["lock:f1", "seen:f2"], &argv), "some of its keys are adopted and some are not"),
        (of(&["lock:f1", "f2"], &argv), "some of its keys are adopted and some are not"),
        (of(&many, &argv), "the script is none that is known"),
        (of(&["lock:f1", "lock:f2"], &["lock:f", "30"]), "ERR the script has too few arguments"),
        (of(&["lock:f1"], &["lock:f", "x", "t"]), "ERR value is not an integer or out of range"),
        (of(&["lock:f1"], &["lock:f", "0", "t"]), "its TTL is not above 0"),
        (of(&["lock:f1"], &["lock:f", "61", "t"]), "its TTL is longer than locks.max_ttl"),
    ] {
        let said = say(&mut client, &words);
        assert!(said.error().contains(told), "{said:?} instead of {told}");
    }
    // Inside MULTI only one lock is taken.
    client.cmd(&["MULTI"]);
    let several =
        "ERR several adopted locks of one command are not taken or prolonged inside MULTI";
    assert!(say(&mut client, &take(["EVAL", TAKE], "lock:f", "t")).error().starts_with(several));
    assert!(client.cmd(&["EXEC"]).error().starts_with("EXECABORT"));
    client.cmd(&["MULTI"]);
    assert_eq!(say(&mut client, &of(&["lock:f1"], &argv)), Reply::simple("QUEUED"));
    assert_eq!(client.cmd(&["EXEC"]), Reply::Array(vec![Reply::bulk("lock:f1")]));
    for (slot, nodes) in [("lock:lock:f1", 3), ("lock:lock:f2", 0), ("lock:lock:0", 0)] {
        proxy.assert_on_nodes(slot, nodes);
    }
    // A key behind the first that the client may not set.
    let mut data = Client::connect(proxy.data().port());
    let rights = ["ACL", "SETUSER", "some", "on", ">p", "+@all", "~lock:f1", "~lock:f3"];
    assert_eq!(data.cmd(&rights), Reply::ok());
    let mut some = proxy.client();
    assert_eq!(some.cmd(&["AUTH", "some", "p"]), Reply::ok());
    let said = say(&mut some, &take(["EVAL", TAKE], "lock:f", "u"));
    assert!(said.error().starts_with("NOPERM"), "{said:?}");
    proxy.assert_on_nodes("lock:lock:f3", 0);
}

#[test]
fn audit_names_it_and_leaves_it_to_redis() {
    let proxy = start("audit", "no_ttl: refuse");
    let mut client = proxy.client();
    for (token, place) in [("a", "lock:f1"), ("b", "lock:f2")] {
        assert_eq!(say(&mut client, &take(["EVAL", TAKE], "lock:f", token)), Reply::bulk(place));
    }
    let all = adopted(&mut client);
    let entry = all.iter().find(|entry| entry["idiom"] == "acquire_first").expect("its entry");
    for (field, value) in [
        ("library", "Laravel"),
        ("verdict", "quorum"),
        ("replies", "place nil nil nil"),
        ("times", "2"),
    ] {
        assert_eq!(entry[field], value, "{field}");
    }
    assert!(proxy.http("/api/adopted").contains("acquire_first"));
}

#[test]
fn a_client_that_goes_while_the_lock_nodes_are_away_leaves_nothing() {
    let mut proxy = start("enforce", "no_quorum: wait");
    let retries = |proxy: &Proxy| proxy.metric("lockgate_adopt_retries_total", "");
    let freeze = |proxy: &mut Proxy, are_away: bool| {
        for node in 0..2 {
            let node = proxy.node(node);
            if are_away { node.freeze() } else { node.thaw() }.expect("a lock node");
        }
    };
    let mut waits = proxy.client();
    assert_eq!(say(&mut waits, &take(["EVAL", TAKE], "lock:f", "first")), Reply::bulk("lock:f1"));
    for goes in [true, false] {
        let (mut client, before) = (proxy.client(), retries(&proxy));
        freeze(&mut proxy, true);
        let words = take(["EVAL", TAKE], "lock:f", "t");
        let words: Vec<&str> =
            words.iter().map(|word| std::str::from_utf8(word).unwrap()).collect();
        client.send(&encode(&words));
        eventually("they are asked again", || retries(&proxy) > before);
        if goes {
            client.reset();
            freeze(&mut proxy, false);
            eventually("nothing is left", || proxy.nodes_with("lock:lock:f2") == 0);
        } else {
            freeze(&mut proxy, false);
            assert_eq!(client.reply(), Reply::bulk("lock:f2"));
        }
    }
}

#[test]
fn never_more_than_the_limit_hold_one_and_all_get_on() {
    for mode in ["enforce", "bridge"] {
        let proxy = start(mode, "no_ttl: refuse");
        let rule = format!("adopt: {{keys: 'lock:*', mode: {mode}}}");
        let other = Proxy::beside(&proxy).top(&rule).start();
        let (inside, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let until = Instant::now() + Duration::from_secs(60);
        thread::scope(|scope| {
            for number in 0..40_u64 {
                let proxy = if number % 2 == 0 { &proxy } else { &other };
                let (inside, most) = (&inside, &most);
                scope.spawn(move || {
                    let (mut client, token) = (proxy.client(), format!("t{number}"));
                    let slot = loop {
                        match say(&mut client, &take(["EVAL", TAKE], "lock:f", &token)) {
                            Reply::Bulk(slot) => break String::from_utf8(slot).unwrap(),
                            Reply::NullBulk => {}
                            other => panic!("{other:?}"),
                        }
                        assert!(Instant::now() < until, "{number} does not get on");
                        thread::sleep(Duration::from_millis(20 + number));
                    };
                    most.fetch_max(1 + inside.fetch_add(1, Ordering::SeqCst), Ordering::SeqCst);
                    thread::sleep(Duration::from_millis(30));
                    inside.fetch_sub(1, Ordering::SeqCst);
                    let release = client.cmd(&["EVAL", RELEASE, "1", &slot, &token]);
                    assert_eq!(release, Reply::Int(1), "{slot}");
                });
            }
        });
        assert_eq!(most.load(Ordering::SeqCst), SLOTS, "{mode}");
        for slot in 1..=SLOTS {
            let slot = format!("lock:lock:f{slot}");
            eventually("each is free", || proxy.nodes_with(&slot) == 0);
        }
    }
}
